"""The docstrings that a newcomer reads first have examples, and every example in a public docstring runs."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.docstrings import examples
from tests.support.processes import SDKS, python

#: What a program, its tests and whoever is on call begin with.
FIRST = [
    "tracekit.record",
    "tracekit.replay",
    "tracekit.resume",
    "tracekit.traced_tool",
    "tracekit.instrument",
    "tracekit.effect",
    "tracekit.decision",
    "tracekit.Budget",
    "tracekit.regress",
    "tracekit.recorded_failures",
    "tracekit.recovery.in_doubt",
    "tracekit.testing.assert_replays",
    "tracekit.testing.ScriptedModel",
    "tracekit.testing.temporary_store",
    "tracekit.integration.read_run",
    "tracekit.integration.Store",
]


def test_the_first_docstrings_have_examples() -> None:
    """Each of them shows how it is used."""
    assert set(FIRST) <= {name for name, _ in examples()}


def test_the_examples_in_docstrings_run(tmp_path: Path) -> None:
    """What a docstring shows is what Python prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
    done = python("-m", "tests.support.docstrings", str(tmp_path), env=environment, imports=SDKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(FIRST) <= set((tmp_path / "passed").read_text().split())
