"""Placeholder credentials of a replay."""

from __future__ import annotations

import os

import pytest

from tracekit._capture.plugins import PLACEHOLDER, facts_to_record, replayed_credentials, supply_placeholders


def test_only_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A placeholder is set where there is nothing, a key that is there stays, and afterwards all is as before."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "mine")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = dict(os.environ)
    restore = supply_placeholders()
    assert os.environ["OPENAI_API_KEY"] == os.environ["AZURE_OPENAI_API_KEY"] == PLACEHOLDER
    assert os.environ["ANTHROPIC_API_KEY"] == "mine"
    restore()
    restore()
    assert dict(os.environ) == before


def test_those_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK gets the variables that the recorded process had, and not those of another service; of two names the same one."""
    for name in facts_to_record().get("credentials", []):
        monkeypatch.delenv(name)
    monkeypatch.setenv("GOOGLE_API_KEY", "mine")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "mine")
    recorded = facts_to_record()["credentials"]
    assert recorded == ["AZURE_OPENAI_API_KEY", "GOOGLE_API_KEY"]
    for name in recorded:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    restore = supply_placeholders(replayed_credentials({"credentials": recorded}, None))
    assert os.environ["GOOGLE_API_KEY"] == os.environ["AZURE_OPENAI_API_KEY"] == PLACEHOLDER
    assert {"OPENAI_API_KEY", "GEMINI_API_KEY"}.isdisjoint(os.environ)
    assert os.environ["MISTRAL_API_KEY"] == PLACEHOLDER  # whether the program set it later is unknown
    restore()
    assert dict(os.environ) == before
    restore = supply_placeholders(replayed_credentials({"credentials": recorded}, {"credentials": recorded}))
    assert os.environ["GOOGLE_API_KEY"] == PLACEHOLDER
    assert "MISTRAL_API_KEY" not in os.environ
    restore()
    assert dict(os.environ) == before


def test_what_the_program_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the program sets during the replay is not taken away."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    restore = supply_placeholders()
    monkeypatch.setenv("OPENAI_API_KEY", "set by the program")
    restore()
    assert os.environ["OPENAI_API_KEY"] == "set by the program"


def test_one_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an SDK takes either of two variables, one that is set is enough: it warns of two."""
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "CO_API_KEY", "COHERE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "mine")
    before = dict(os.environ)
    restore = supply_placeholders()
    assert (os.environ.get("GEMINI_API_KEY"), os.environ["GOOGLE_API_KEY"]) == (None, "mine")
    assert (os.environ["CO_API_KEY"], os.environ.get("COHERE_API_KEY")) == (PLACEHOLDER, None)
    restore()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("key", "token"),
    [
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"),
        ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
        ("AWS_ACCESS_KEY_ID", "AWS_BEARER_TOKEN_BEDROCK"),
    ],
)
def test_the_way_in_which_the_recorded_program_signed_in(monkeypatch: pytest.MonkeyPatch, key: str, token: str) -> None:
    """Where an SDK accepts a token in place of a key, a placeholder is set for the one that the recorded process had."""
    for name in facts_to_record().get("credentials", []):
        monkeypatch.delenv(name)
    for recorded, other in ((key, token), (token, key)):
        had = {"credentials": [recorded]}
        restore = supply_placeholders(replayed_credentials(had, had))
        assert os.environ[recorded] == PLACEHOLDER
        assert other not in os.environ
        restore()
