"""The SDKs of other providers against a real server, recorded here, replayed in a fresh process with the server gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations import scenarios
from tests.support.recorded import Recorded, record_scenarios

NAMES = [name for name in scenarios.SCENARIOS if scenarios.sdk_of(name) is not None]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_scenarios(NAMES, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", NAMES)
def test_same_again(recorded: Recorded, name: str) -> None:
    """A program sees exactly in the replay what it saw when it was recorded, without a key and with the server gone."""
    replayed = recorded.replayed[name]
    assert "error" not in replayed, replayed["error"]
    assert replayed["result"] == recorded.saw[name]
    assert replayed["exact"], replayed["warnings"]


def calls(recorded: Recorded, name: str) -> list[tuple[Any, ...]]:
    """Dialect, provider, SDK and usage of each model call."""
    entries = {entry["seq"]: entry for entry in recorded.entries[name]}
    answers = [entry for entry in entries.values() if entry["type"] == "llm.response"]
    asked = [entries[answer["step"]]["meta"] for answer in answers]
    return [
        (
            meta["dialect"],
            meta["info"]["provider"],
            meta["info"]["sdk"],
            answer["meta"].get("usage", {}).get("output_tokens"),
        )
        for meta, answer in zip(asked, answers, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("google_generate", [("gemini.generate_content", "gcp.gemini", "google", 10)] * 2),
        ("google_stream", [("gemini.generate_content", "gcp.gemini", "google", 10)]),
        ("ollama_stream", [("ollama.chat", "ollama", "ollama", 7), ("ollama.generate", "ollama", "ollama", 7)]),
        ("cohere_chat", [("cohere.chat", "cohere", "cohere", 7)] * 2 + [("cohere.embed", "cohere", "cohere", None)]),
        ("mistral_chat_async", [("mistral.chat", "mistral_ai", "mistral", 7)]),
        ("bedrock_converse", [("bedrock.converse", "aws.bedrock", "bedrock", 7)] * 2),
        ("bedrock_invoke", [("bedrock.invoke", "aws.bedrock", "bedrock", 7)] * 2),
        ("anthropic_on_bedrock", [("anthropic.messages", "aws.bedrock", "anthropic", 7)] * 2),
    ],
)
def test_calls(recorded: Recorded, name: str, expected: list[tuple[Any, ...]]) -> None:
    """Each call is one of its provider, by its own dialect, and has its usage, streamed or not."""
    assert calls(recorded, name) == expected


def test_what_is_no_model_call(recorded: Recorded) -> None:
    """Counting tokens is read-only, pulling a model is irreversible."""
    classes = [
        entry["meta"]["side_effect"]
        for name in ("google_generate", "ollama_chat")
        for entry in recorded.entries[name]
        if entry["type"] == "http.request"
    ]
    assert classes == ["read_only", "irreversible"]


def test_nothing_secret(recorded: Recorded) -> None:
    """No key that a client was given is in a log."""
    assert b"canary" not in recorded.bytes.lower()
