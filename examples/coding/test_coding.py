"""The coding agent does what it did when ``traces/`` was recorded; no process starts, and no file changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from examples.coding.agent import work

PROJECT = Path(__file__).parent / "project"


@pytest.mark.tracekit
def test_the_bug_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracekit_run) -> None:
    shutil.copytree(PROJECT, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    assert "passes" in work("Make the tests pass.")
    fixed = (tmp_path / "project" / "prices.py").read_text() != (PROJECT / "prices.py").read_text()
    assert fixed == tracekit_run.recording
