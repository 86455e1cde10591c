"""A resumed run that aborts also undoes what an earlier process did inside steps that the log answers and that it never
ran itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import python

PROGRAM = """
import json, os, signal, sys
from tracekit import record, replay, resume, traced_tool

def did(what):
    with open("ledger", "a") as file:
        file.write(what + "\\n")
    if sys.argv[1] == what:
        os.kill(os.getpid(), signal.SIGKILL)
    return what

def unbook(what, output):
    assert output in (f"book {what}", None)
    did(f"unbook {what}")

@traced_tool(side_effect="reversible", compensate=unbook)
def book(what):
    return did(f"book {what}")

class Desk:
    def unhold(self, what):
        did(f"unhold {what}")

    @traced_tool(side_effect="reversible", compensate=unhold, name="hold")
    def hold(self, what):
        return did(f"hold {what}")

@traced_tool(side_effect="reversible")
def trip(what):
    book(f"flight to {what}")
    book(f"hotel in {what}")
    if what == "Rome":
        Desk().hold("car")
    return what

@traced_tool(side_effect="reversible", compensate=lambda what: did(f"cancel {what}"))
def package(what):
    book(f"package in {what}")

@traced_tool(side_effect="read_only")
def look():
    did("look")

def program(run):
    trip(sys.argv[2])
    package("Bern")
    look()
    run.abort("too dear")

if sys.argv[1] != "resume" and not os.path.exists(".tracekit"):
    with record("trip", run_id="trip") as run:
        program(run)
with resume("trip") as run:
    program(run)
before = open("ledger").read()
for _ in range(2):
    with replay("trip") as session:
        program(session.as_run())
    assert session.report.exact, session.report.as_dict()
assert open("ledger").read() == before
"""


class Trip:
    """The program in a directory of its own, which can be started again after each kill."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def live(self, die: str, where: str = "Oslo") -> int:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TRACEKIT_DIR": str(self.directory / ".tracekit"),
        }
        process = python("-W", "ignore", "-c", PROGRAM, die, where, cwd=self.directory, env=environment)
        assert process.returncode in (0, -signal.SIGKILL), process.stderr
        return process.returncode

    @property
    def done(self) -> list[str]:
        return (self.directory / "ledger").read_text().splitlines()

    @property
    def last(self) -> dict[str, Any]:
        path = self.directory / ".tracekit" / "runs" / "trip.jsonl"
        return dict(json.loads(path.read_bytes().splitlines()[-1]))


DONE = ["book flight to Oslo", "book hotel in Oslo", "book package in Bern", "look"]
UNDONE = ["cancel Bern", "unbook hotel in Oslo", "unbook flight to Oslo"]


def test_what_was_done_inside_is_undone_by_the_resumed_run(tmp_path: Path) -> None:
    """The resumed run undoes the last effect first and each one once; what lies inside a step that is undone as a whole
    is left to that step."""
    trip = Trip(tmp_path)
    assert trip.live("look") == -signal.SIGKILL
    assert trip.live("resume") == 0
    assert trip.done == [*DONE, "look", *UNDONE]
    meta = trip.last["meta"]
    assert (len(meta["compensated"]), meta["uncompensated"], meta["in_doubt"]) == (3, [], [])


@pytest.mark.parametrize("die", UNDONE)
def test_killed_while_it_undoes(tmp_path: Path, die: str) -> None:
    """If the process is killed inside a compensation, that effect is in doubt: the next resume is refused, and nothing
    is undone twice."""
    trip = Trip(tmp_path)
    assert trip.live("look") == -signal.SIGKILL
    assert trip.live(die) == -signal.SIGKILL
    expected = [*DONE, "look", *UNDONE[: UNDONE.index(die) + 1]]
    assert trip.done == expected
    with pytest.raises(AssertionError, match="RecoveryRefusedError"):
        trip.live("resume")
    assert trip.done == expected


def test_what_can_not_be_undone_is_named(tmp_path: Path) -> None:
    """If the object of a method no longer exists, its compensation is not run, and its step is listed among those that
    were not undone."""
    trip = Trip(tmp_path)
    assert trip.live("look", "Rome") == -signal.SIGKILL
    assert trip.live("resume", "Rome") == 0
    assert [what for what in trip.done if what.startswith("un")] == ["unbook hotel in Rome", "unbook flight to Rome"]
    (held,) = trip.last["meta"]["uncompensated"]
    assert any(f"step {held} ('hold')" in text for text in trip.last["meta"]["warnings"])


DESK = """
import os, signal, sys
from tracekit import record, recovery, traced_tool

def did(what):
    with open("ledger", "a") as file:
        file.write(what + "\\n")

@traced_tool(side_effect="reversible", compensate=lambda key, what: did(f"unbook {what} with {key}"))
def book(key, what):
    did(f"book {what}")

if __name__ == "__main__":
    with record("desk", run_id="desk"):
        book("sk-ant-api03-" + "aZx9qT7mB2" * 4, "flight")
        book("no secret", "hotel")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_undone_by_a_placeholder(tmp_path: Path) -> None:
    """An abort does not run a compensation with a placeholder in place of a redacted secret; the step is listed as not
    undone."""
    (tmp_path / "desk.py").write_text(DESK)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "TRACEKIT_DIR": str(tmp_path / "store"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return python(*arguments, cwd=tmp_path, env=environment)

    assert run("desk.py").returncode == -signal.SIGKILL
    given_up = "from tracekit import recovery; print(recovery.abort('desk', reason='x', tools=['desk']).uncompensated)"
    process = run("-c", given_up)
    assert process.stdout.strip() == "(2,)", process.stdout + process.stderr
    assert (tmp_path / "ledger").read_text().splitlines() == [
        "book flight",
        "book hotel",
        "unbook hotel with no secret",
    ]
