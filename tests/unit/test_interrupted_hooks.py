"""A signal handler that raises while tracekit installs hooks, or imports something, leaves nothing half done."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes import python
from tracekit import record
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
