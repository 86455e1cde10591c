"""The real SDKs against a real server, recorded here, replayed in a fresh process with the server gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integrations import scenarios
from tests.support.recorded import Recorded, record_scenarios

NAMES = [name for name in scenarios.SCENARIOS if scenarios.sdk_of(name) is None]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_scenarios(NAMES, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", NAMES)
def test_same_again(recorded: Recorded, name: str) -> None:
    """A program sees exactly in the replay what it saw when it was recorded, errors and their details included."""
    replayed = recorded.replayed[name]
    assert "error" not in replayed, replayed["error"]
    assert replayed["result"] == recorded.saw[name]
    assert replayed["exact"], replayed["warnings"]


def of(recorded: Recorded, name: str, *kinds: str) -> list[dict[str, Any]]:
    return [entry for entry in recorded.entries[name] if entry["type"] in kinds]


def test_each_attempt_is_a_step(recorded: Recorded) -> None:
    """The SDK's retries are requests of their own, numbered."""
    attempts = [entry["meta"]["info"]["attempt"] for entry in of(recorded, "retried_429", "llm.request")]
    statuses = [entry["output"]["status"] for entry in of(recorded, "retried_429", "llm.response")]
    assert attempts == [1, 2, 3]
    assert statuses == [429, 503, 200]


@pytest.mark.parametrize(
    ("name", "model", "usage", "reasons"),
    [
        ("openai_chat", "gpt-stub-0613", {"input_tokens": 11, "output_tokens": 7}, ["stop"]),
        ("openai_stream", "gpt-stub-0613", {"cache_read_input_tokens": 4, "reasoning_output_tokens": 2}, ["stop"]),
        ("openai_responses", "gpt-stub", {"input_tokens": 9, "output_tokens": 5}, ["completed"]),
        ("openai_responses_stream", "gpt-stub", {"cache_read_input_tokens": 3}, ["completed"]),
        ("openai_embeddings", "embed-stub", {"input_tokens": 3}, None),
        ("anthropic_message", "claude-stub", {"input_tokens": 19, "output_tokens": 6}, ["end_turn"]),
        ("anthropic_stream_helper", "claude-stub", {"input_tokens": 19, "cache_read_input_tokens": 5}, ["tool_use"]),
        ("openai_gzip_async", "gpt-stub-0613", {}, ["stop"]),
    ],
)
def test_meta(recorded: Recorded, name: str, model: str, usage: dict[str, int], reasons: list[str] | None) -> None:
    """Model, usage and finish reasons can be queried without reading bodies, streamed or not."""
    meta = of(recorded, name, "llm.response")[-1]["meta"]
    assert meta["model"] == model
    assert usage.items() <= meta.get("usage", {}).items()
    assert meta.get("finish_reasons") == reasons


def test_signature(recorded: Recorded) -> None:
    """The request says model, decoding parameters, dialect, SDK and class, and the conversation is readable JSON."""
    (request,) = of(recorded, "openai_chat", "llm.request")
    meta = request["meta"]
    assert (meta["model"], meta["temperature"], meta["seed"]) == ("gpt-stub", 0.25, 7)
    assert (meta["dialect"], meta["side_effect"], meta["info"]["sdk"]) == ("openai.chat", "read_only", "openai")
    assert request["name"] == "gpt-stub"
    assert request["input"]["url"] == "/v1/chat/completions"
    assert request["input"]["body"]["temperature"] == 0.25


@pytest.mark.parametrize("name", ["openai_chat", "openai_chat_async", "anthropic_message", "anthropic_message_async"])
def test_a_call_is_its_request_and_its_answer(recorded: Recorded, name: str) -> None:
    """The ids that an SDK makes for the headers of its requests, which nothing compares, are no entries."""
    entries = recorded.entries[name]
    assert {entry["type"] for entry in entries} >= {"llm.request", "llm.response"}
    assert not [one for one in entries if one.get("name") in ("uuid.uuid4:openai", "uuid.uuid4:anthropic")]


def test_conversation_stays_readable(recorded: Recorded) -> None:
    """Decoded content is in the trace, whatever coding it travelled in, and headers that only say how are left out."""
    response, _ = of(recorded, "openai_gzip", "llm.response")
    assert response["output"]["format"] == "json:indent"
    assert not {"content-encoding", "content-length", "set-cookie"} & response["output"]["headers"].keys()
    text = "".join(entry["output"] for entry in of(recorded, "openai_gzip", "llm.chunk")[1:])
    assert text.startswith("data: {")
    assert text.endswith("data: [DONE]\n\n")


def test_sdk_endpoints(recorded: Recorded) -> None:
    """What no dialect claims is plain HTTP; inference and listing are read-only, uploading is irreversible."""
    (models,) = of(recorded, "openai_models", "http.request")
    (upload,) = of(recorded, "openai_file_upload", "http.request")
    (speech,) = of(recorded, "openai_binary_stream", "llm.request")
    assert models["meta"]["side_effect"] == "read_only"
    assert upload["meta"]["side_effect"] == "irreversible"
    assert speech["meta"]["side_effect"] == "read_only"
    parts = upload["input"]["body"]
    assert [part["name"] for part in parts] == ["purpose", "file"]
    assert parts[1]["filename"] == "notes.txt"


def test_how_streams_end(recorded: Recorded) -> None:
    """A stream that was cut is an error, one that the caller left is abandoned, one that said all is complete."""
    (cut,) = of(recorded, "cut_stream", "llm.error", "llm.response")
    left, _ = of(recorded, "abandoned_stream", "llm.response")
    (whole,) = of(recorded, "openai_stream", "llm.response")
    assert cut["type"] == "llm.error"
    assert cut["output"]["raised"] == "RemoteProtocolError"
    assert left["meta"]["abandoned"]
    assert left["output"] == {"complete": False}
    assert whole["output"] == {"complete": True}


def test_intention_and_chunks_come_first(recorded: Recorded) -> None:
    """The head of a stream and each piece are entries of their own between request and response, in order."""
    kinds = [entry["type"] for entry in recorded.entries["anthropic_stream"] if entry["type"].startswith("llm.")]
    assert kinds[0] == "llm.request"
    assert kinds[-1] == "llm.response"
    assert len(kinds) > 5
    assert set(kinds[1:-1]) == {"llm.chunk"}
    assert of(recorded, "anthropic_stream", "llm.chunk")[0]["output"]["head"]["status"] == 200


def test_suspension_is_told(recorded: Recorded) -> None:
    """Outcomes and chunks of coroutines say that the loop ran in between."""
    (response, _) = of(recorded, "openai_chat_async", "llm.response")
    assert response["meta"]["suspended"] is True
    assert of(recorded, "openai_stream_async", "llm.chunk")[0]["meta"]["suspended"] is True
    assert "suspended" not in of(recorded, "openai_chat", "llm.response")[0]["meta"]


def test_nothing_secret(recorded: Recorded) -> None:
    """No key, cookie, password or secret of a query is in any byte of any trace."""
    for canary in (b"canary", b"authorization", b"Bearer", b"x-api-key", b"sid=cookie", b"cGFzc3dvcmQ"):
        assert canary not in recorded.bytes, canary


def test_shuffled(recorded: Recorded) -> None:
    """Fifty gathered calls, answered in another order than asked, are recorded in the order of their answers."""
    requests = of(recorded, "fifty_at_once", "llm.request")
    responses = of(recorded, "fifty_at_once", "llm.response")
    assert len({entry["lane"] for entry in requests}) == 50
    assert [entry["lane"] for entry in requests] != [entry["lane"] for entry in responses]
    answers, arrived = recorded.saw["fifty_at_once"]
    assert arrived != sorted(arrived)
    assert all(f"question {number}" in text for number, text in answers)
