"""The docstrings that a newcomer reads first have examples, and every example in a public docstring runs."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import tracekit
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


SOURCES = Path(tracekit.__file__).parent
PACKAGES = {path.parent for path in SOURCES.rglob("__init__.py")}


@pytest.mark.parametrize("directory", sorted(PACKAGES), ids=lambda path: path.name)
def test_the_first_line_of_a_module_says_what_it_is(directory: Path) -> None:
    """As a sentence that is complete on that line: the page on how it works tells its reader to print these lines."""
    broken = []
    for path in directory.glob("*.py"):
        first, _, rest = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")
        if not first or rest.partition("\n")[0]:
            broken.append((path.name, first))
    assert broken == []


def test_the_first_docstrings_have_examples() -> None:
    """Each of them shows how it is used."""
    assert set(FIRST) <= {name for name, _ in examples()}


def test_the_examples_in_docstrings_run(tmp_path: Path) -> None:
    """What a docstring shows is what Python prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACEKIT_")}
    done = python("-m", "tests.support.docstrings", str(tmp_path), env=environment, imports=SDKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(FIRST) <= set((tmp_path / "passed").read_text().split())
