"""Greenlets open no lanes: a run says so before anything of theirs is recorded, as it does of trio (``tests/unit/test_trio.py``)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit.integration import Store

#: What each library calls its parts, after ``import``, before anything is patched.
LIBRARIES = {
    "gevent": """
import gevent, gevent.monkey, gevent.pool
name, patch = "gevent", gevent.monkey.patch_all
starts = {
    "spawn": lambda: gevent.spawn(pay, "ann").get(),
    "spawn_later": lambda: gevent.spawn_later(0, pay, "ann").get(),
    "spawn_raw": lambda: gevent.spawn_raw(pay, "ann"),
    "a pool": lambda: gevent.pool.Pool(2).map(pay, ["ann", "bob"]),
    "patches": patch,
}
inside = lambda: gevent.spawn(recorded).get()
compute = lambda: gevent.spawn(lambda: 7).get()
""",
    "eventlet": """
import warnings
warnings.simplefilter("ignore")
import eventlet, eventlet.greenpool
name, patch = "eventlet", eventlet.monkey_patch
starts = {
    "spawn": lambda: eventlet.spawn(pay, "ann").wait(),
    "spawn_n": lambda: eventlet.spawn_n(pay, "ann"),
    "spawn_after": lambda: eventlet.spawn_after(0, pay, "ann").wait(),
    "a pool": lambda: list(eventlet.greenpool.GreenPool(2).imap(pay, ["ann", "bob"])),
    "patches": patch,
}
inside = lambda: eventlet.spawn(recorded).wait()
compute = lambda: eventlet.spawn(lambda: 7).wait()
""",
}

PROGRAM = """
import sys
from tracekit import record, replay, traced_tool
from tracekit.errors import RunStateError
from tracekit.integration import Store
{library}
done = []

@traced_tool(side_effect="irreversible")
def pay(who):
    done.append(who)
    return who

@traced_tool(side_effect="read_only")
def computed():
    return compute()

def refused(call):
    try:
        call()
    except RunStateError as error:
        assert f"{{name}} is not covered" in str(error) and "asyncio" in error.next_action, error
    else:
        raise AssertionError("it was not refused")

def recorded():
    with record("inside"):
        pay("ann")

for start in starts.values():
    def begins():
        with record("job"):
            start()
    refused(begins)
assert done == []
runs = len(Store().list())
refused(inside)  # a run that would begin in a greenlet
assert (done, len(Store().list())) == ([], runs)
with record("a tool may use it inside") as run:
    assert computed() == 7
with replay(run) as session:
    assert computed() == 7
assert session.report.exact
assert starts["spawn"]() == "ann"  # outside of runs the library is as it was
patch()
refused(recorded)  # threads are greenlets now
refused(lambda: replay(run).__enter__())
print("refused")
"""


@pytest.mark.parametrize("library", ["gevent", pytest.param("eventlet", marks=pytest.mark.eventlet)])
def test_greenlets_are_refused_in_a_run(tmp_path: Path, library: str) -> None:
    """Whatever starts them in a run, a run that begins in one or in a process with patched threads: one error that says what to do, and
    nothing has happened. A tool may use them inside, and outside of runs they are as they were."""
    own = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    done = python("-c", PROGRAM.format(library=LIBRARIES[library]), cwd=tmp_path, env=own)
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.parametrize("library", ["gevent", pytest.param("eventlet", marks=pytest.mark.eventlet)])
def test_tracekit_run_refuses_patched_threads(tmp_path: Path, library: str) -> None:
    """The whole program is the run, and its first line patches: it ends there with that error."""
    (tmp_path / "program.py").write_text(LIBRARIES[library] + "print('before')\npatch()\nprint('after')\n")
    own = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store")}
    done = python("-m", "tracekit", "run", "program.py", cwd=tmp_path, env=own)
    assert (done.returncode, done.stdout) == (1, "before\n"), done.stderr
    assert f"{library} is not covered" in done.stderr
    (listed,) = Store(tmp_path / "store").list()
    assert listed
