"""After the end of a replay, or of a recorded program, nothing that was left behind has a traced effect that nobody knows of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.place import Place

HEAD = """
import asyncio, atexit, builtins, gc, os, signal, sys, weakref
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="irreversible")
def pay(who, _open=os.open, _write=os.write, _flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND):
    _write(_open("ledger", _flags), f"{who}\\n".encode())

class Late:
    def __init__(self, name, pay=pay):
        self.name, self.pay = name, pay
    def __del__(self):
        self.pay(self.name)

def handler(*_):
    pay("signal")
"""

IN_ONE_PROCESS = (
    HEAD
    + """
def program():
    global kept, references
    kept = Late("collected")
    references = [weakref.ref(kept, lambda _: pay("weakref")), weakref.ref(kept, lambda *_: pay("weakref with any arguments"))]
    kept.me = Late("in a cycle")
    kept.me.me = kept.me
    weakref.finalize(kept, pay, "finalize")
    atexit.register(pay, "at exit")
    register(pay, who="at exit, by an earlier reference")
    signal.signal(signal.SIGUSR1, handler)
    assert signal.getsignal(signal.SIGUSR1) is handler
    pay("inside")

register = atexit.register
registered, set_signal, get_signal = atexit.register.__self__, signal.signal.__code__, signal.getsignal.__code__
if "record" in sys.argv:
    with record("job", run_id="job"):
        program()
    os._exit(0)

atexit.register(lambda: pay("at exit, registered before"))
with replay("job"):
    program()
assert (atexit.register.__self__, signal.signal.__code__, signal.getsignal.__code__) == (registered, set_signal, get_signal)
try:
    os.kill(os.getpid(), signal.SIGUSR1)
except BaseException as error:
    print(type(error).__name__)
kept = None
gc.collect()
pay("by hand")
with record("another"):
    pay("in a run")
"""
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    directory = tmp_path / "here"
    directory.mkdir()
    return Place(directory)


def paid(place: Place) -> list[str]:
    path = place.directory / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def python(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.python(*arguments, cwd=place.directory, env={**os.environ, "TRACEKIT_DIR": str(place.store)})


def test_what_a_replay_leaves_behind_does_not_act(place: Place) -> None:
    """Objects that are collected after the block, handlers of exit and of signals that were registered in it: each is refused with an
    error that says so. What the process does by itself after the replay goes on as ever."""
    script = place.program(IN_ONE_PROCESS)
    assert python(place, script, "record").returncode == 0
    (place.directory / "ledger").unlink()
    done = python(place, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "LiveCallBlockedError\n"
    assert paid(place) == ["by hand", "in a run", "at exit, registered before"]
    assert done.stderr.count("registered inside a replay") == 2  # both at exit; the signal's was caught
    assert done.stderr.count("which may have made the object") == 5


LEFT_AT_THE_END = (
    HEAD
    + """
gc.disable()  # else what is in a cycle may be collected at any allocation, before the end
cycle = Late("in a cycle")
cycle.me = cycle
del cycle
builtins.kept = Late("in another module")
atexit.register(pay, "at exit")
pay("inside")
"""
)


def test_no_effect_after_the_end_of_a_recorded_program_is_unrecorded(place: Place) -> None:
    """What is collected when the interpreter goes comes too late for the log, so it is not done; nor by a replay."""
    script = place.program(LEFT_AT_THE_END)
    done = place.cli("run", script)
    assert done.returncode == 0, done.stderr
    assert paid(place) == ["inside", "at exit"]
    assert "RunEndedError" in done.stderr
    assert "it was not executed" in done.stderr
    assert place.cli("replay", place.run).returncode == 0
    assert paid(place) == ["inside", "at exit"]
