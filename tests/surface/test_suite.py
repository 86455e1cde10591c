"""The suite is a tool: who runs it learns of a failure when it happens, and a check that fails is not lost among others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.environment import Environment

ROOT = Path(__file__).parents[2]

TESTS = """
import time
from pathlib import Path

def test_that_fails():
    assert 1 == 2, "one is not two"

def test_that_waits_until_the_failure_was_seen():
    for _ in range(3000):
        if Path("seen").exists():
            return
        time.sleep(0.01)
    assert False, "nobody was told of the failure"
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_a_failure_is_named_when_it_happens(tmp_path: Path, workers: list[str]) -> None:
    """The name of a failing test and what it said is printed while other tests still run."""
    (tmp_path / "conftest.py").write_text("from tests.support.named import pytest_configure")
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        *workers,
        "test_two.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("FAILED test_two.py::test_that_fails: AssertionError: one is not two"):
                (tmp_path / "seen").touch()
                break
        rest = running.stdout.read()
    assert (tmp_path / "seen").exists(), rest
    assert "1 failed, 1 passed" in rest


def test_checks_side_by_side(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Checks that run at the same time are all run and shown in order; the status is that of the first that failed."""
    environment = Environment(Path(sys.executable))
    python = Path(sys.executable).name
    fails = [(python, "-c", f"print('check {n}'); raise SystemExit({n})") for n in (0, 3, 0, 4)]
    with pytest.raises(SystemExit) as status:
        environment.side_by_side(fails)
    assert status.value.code == 3
    said = capfdbinary.readouterr().out
    assert [line for line in said.split(b"\n") if line] == [b"check 0", b"check 3", b"check 0", b"check 4"]
    environment.side_by_side(fails[:1])
