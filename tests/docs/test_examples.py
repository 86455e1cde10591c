"""The agents of ``examples/`` do what they did when their runs were recorded."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import python

ROOT = Path(__file__).parents[2]


def test_the_examples_pass_their_tests() -> None:
    """In a process of their own, as their page says: the plugin captures the SDKs for the whole of a suite."""
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples", cwd=ROOT, fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
