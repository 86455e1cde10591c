"""A signal handler that raises while the hooks of a run are being installed leaves none of them behind."""

from __future__ import annotations

from tests.support.processes import python

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
