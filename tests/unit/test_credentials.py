"""Placeholder credentials of a replay."""

from __future__ import annotations

import os

import pytest

from tracekit._capture.plugins import PLACEHOLDER, supply_placeholders


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


def test_what_the_program_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the program sets during the replay is not taken away."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    restore = supply_placeholders()
    monkeypatch.setenv("OPENAI_API_KEY", "set by the program")
    restore()
    assert os.environ["OPENAI_API_KEY"] == "set by the program"
