"""A signal handler that is called, or raises, while tracekit does something leaves nothing half done."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import python
from tracekit import _reality, record
from tracekit._lazy import _LaterModule

PROGRAM = """
import asyncio, builtins, gc, os, queue, random, select, socket, subprocess, sys, threading, time

from tracekit._capture import world

OWNERS = [
    asyncio, asyncio.BaseEventLoop, builtins, os, queue, queue.Queue, random, random.Random, select, socket, socket.socket,
    subprocess, subprocess.Popen, threading, threading.Thread, threading.Event, time,
]

def replaced():
    found = {(owner.__name__, name): id(value) for owner in OWNERS for name, value in vars(owner).items()}
    return found, len(gc.callbacks), world.guard._engaged.observing

class Interrupter:
    '''Raises ``KeyboardInterrupt`` at the n-th call or return, as a signal handler may.'''

    def __init__(self, n):
        self.left = n

    def __call__(self, frame, event, arg):
        if event == "c_call" or (event == "return" and frame.f_code is world.enter.__func__.__code__):
            return  # Python calls no handler there; when ``enter`` has returned, its caller has to undo it
        self.left -= 1
        if not self.left:
            sys.setprofile(None)
            raise KeyboardInterrupt

world.enter()  # fills the caches
world.leave()
before, n, interrupted = replaced(), 0, True
while interrupted:
    n += 1 + n // 25
    sys.setprofile(Interrupter(n))
    try:
        world.enter()
        interrupted = False
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    assert world.active() is not interrupted, n
    if not interrupted:
        world.leave()
    now = replaced()
    assert now == before, (n, now[0].items() ^ before[0].items(), now[1:], before[1:])
print(n)
"""


def test_an_interrupted_installation_leaves_nothing_behind() -> None:
    """Wherever ``KeyboardInterrupt`` comes while a run begins, every function is its original afterwards, and the next run
    installs all hooks."""
    done = python("-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500


def test_a_handler_that_raises_while_tracekit_imports_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called once the import is done: neither the package nor what needs it is left in the middle."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "needed_late.py").write_text(
        "from _thread import interrupt_main\nfrom signal import SIGUSR1\ninterrupt_main(SIGUSR1)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(place)

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with record("interrupted", store=tmp_path), pytest.raises(KeyboardInterrupt):
            _LaterModule("needed_late")._real()
        assert sys.modules["needed_late"].whole
    finally:
        signal.signal(signal.SIGUSR1, before)
        sys.modules.pop("needed_late", None)


LANES = """
import asyncio, json, os, sys
from collections import Counter

import tracekit
from tracekit import record, traced_tool
from tracekit.integration import Store

OURS = os.path.dirname(tracekit.__file__)

class Interrupter:
    '''Calls ``handler`` after the n-th call in code of tracekit, or at its n-th beginning of a function, once.'''

    def __init__(self, n, handler, where):
        self.left, self.handler, self.where = n, handler, where

    def __call__(self, frame, event, arg):
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and name.startswith(OURS) and name.endswith(self.where):
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                self.handler()

def interrupted(n, handler, do, where=".py"):
    interrupter = Interrupter(n, handler, where)
    sys.setprofile(interrupter)
    try:
        do()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return interrupter.left <= 0

@traced_tool(side_effect="read_only")
def look():
    return 1

def raises():
    raise KeyboardInterrupt

def numbers_of(run):
    assert Store.of(run.path).verify(run.id).state == "complete"
    with open(run.path, "rb") as file:
        entries = [json.loads(line) for line in file]
    lanes = Counter(entry["input"]["id"] for entry in entries if entry["type"] == "lane")
    assert {entry["lane"] for entry in entries} <= {0, *lanes}
    return lanes, Counter(entry["lane"] for entry in entries if entry["type"] == "tool.call")
"""

RAISES = (
    LANES
    + """
async def main():
    n, goes_on = 0, True
    while goes_on:
        n += 1
        async def first():
            return interrupted(n, raises, look)
        async def second():
            look()
        goes_on = await asyncio.create_task(first())
        await asyncio.create_task(second())
    return n

with record("raises", store=sys.argv[1]) as run:
    n = asyncio.run(main())
lanes, steps = numbers_of(run)
assert max(lanes.values()) == 1, lanes
assert max(steps.values()) == 1, steps
print(n)
"""
)

STARTS = (
    LANES
    + """
async def main():
    n, goes_on = 0, True
    while goes_on:
        n += 1
        tasks = []
        async def looks():
            look()
        def start():
            tasks.append(asyncio.create_task(looks()))
        goes_on = interrupted(n, start, start)
        await asyncio.gather(*tasks)
    return n

with record("starts", store=sys.argv[1]) as run:
    n = asyncio.run(main())
lanes, steps = numbers_of(run)
assert max(lanes.values()) == 1, lanes
assert [*steps.values()] == [1] * (2 * n - 1), steps
print(n)
"""
)


OPENS = (
    LANES
    + """
def opens():
    with record("opens", store=sys.argv[1]):
        look()

n, goes_on = 0, True
while goes_on:
    n += 1
    goes_on = interrupted(n, opens, lambda: record("opens", store=sys.argv[1]), "store.py")
    goes_on = interrupted(n, opens, opens, "store.py") or goes_on
print(n)
"""
)

CLOSES = (
    LANES
    + """
import fcntl

n, goes_on = 0, True
while goes_on:
    n += 1
    block = record("closes", store=sys.argv[1], durability="none")
    run = block.__enter__()
    look()
    goes_on = interrupted(n, raises, lambda: block.__exit__(None, None, None), "writer.py")
    with open(run.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while somebody may write to it
print(n)
"""
)


@pytest.mark.parametrize("program", [RAISES, STARTS], ids=["raises", "starts"])
def test_a_handler_in_the_middle_of_a_lane_s_beginning(program: str, tmp_path: Path) -> None:
    """Wherever ``KeyboardInterrupt`` comes in the first step of a task, no other task gets the number of its lane. Wherever a
    finalizer starts a task while another one is started, both go on, each in a lane of its own."""
    done = python("-c", program, str(tmp_path), timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8


@pytest.mark.parametrize("program", [OPENS, CLOSES], ids=["opens", "closes"])
def test_a_handler_in_the_middle_of_a_log_s_beginning_or_end(program: str, tmp_path: Path) -> None:
    """Wherever a handler records a run of its own while one is opened, both go on. Wherever ``KeyboardInterrupt`` comes while a
    log is closed, it is closed: it does not look as if the process still wrote to it."""
    done = python("-c", program, str(tmp_path), timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 8


@pytest.mark.parametrize("who", ["another thread", "the one that forks"])
def test_locks_in_a_forked_child(who: str) -> None:
    """A lock of tracekit's own that another thread holds at a fork is free in the child; the code that forks has it in both."""
    lock, held, over = _reality.OwnLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    if who == "another thread":
        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        context: Any = nullcontext()
    else:
        context = lock
    with context:
        child = os.fork()
        if not child:
            status = 1
            try:
                with lock:
                    status = 0
            finally:
                try:
                    context.__exit__(None, None, None)
                    free: list[bool] = []
                    another = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))
                    another.start()
                    another.join()
                    os._exit(status if free == [True] else 2)
                finally:
                    os._exit(3)
    over.set()
    if who == "another thread":
        other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
