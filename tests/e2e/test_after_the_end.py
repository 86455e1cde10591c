"""After the end of a replay or of a recorded program, whatever it left behind has no traced effect that goes unnoticed."""

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
    """Finalizers, exit handlers and signal handlers left by a replay are refused their effects with an error that says
    why; what the process itself does afterwards works as ever."""
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
    """A finalizer that runs while the interpreter shuts down is too late for the log, so its effect does not happen, in
    a recording or in a replay."""
    script = place.program(LEFT_AT_THE_END)
    done = place.cli("run", script)
    assert done.returncode == 0, done.stderr
    assert paid(place) == ["inside", "at exit"]
    assert "RunEndedError" in done.stderr
    assert "it was not executed" in done.stderr
    assert place.cli("replay", place.run).returncode == 0
    assert paid(place) == ["inside", "at exit"]


WAITING = """
import asyncio, os, queue, sys, threading, time
from concurrent.futures import Future
from tracekit import instrument, record, replay, traced_tool

instrument()

@traced_tool(side_effect="read_only")
def look(i):
    return i

HOUR, acted = 3600, threading.Semaphore(0)

def acts(how):
    print(f"acted: {how}\\n", end="", flush=True)
    acted.release()

def after(wait):
    def body():
        try:
            wait()
        except (queue.Empty, TimeoutError):
            pass
        acts(wait.__name__)
    return body

def sleep(): time.sleep(HOUR)
def event(): threading.Event().wait(HOUR)
def semaphore(): threading.Semaphore(0).acquire(timeout=HOUR)
def condition():
    one = threading.Condition()
    with one:
        one.wait(HOUR)
def join(): threading.main_thread().join(HOUR)
def future(): Future().result(HOUR)
def get(): queue.Queue().get(timeout=HOUR)
def get_simple(): queue.SimpleQueue().get(timeout=HOUR)
def coroutine(): asyncio.run(asyncio.sleep(HOUR))
def deadline():
    async def main():
        async with asyncio.timeout(HOUR):
            await asyncio.Event().wait()
    asyncio.run(main())

WAITS = [sleep, event, semaphore, condition, join, future, get, get_simple, coroutine, deadline]

def program():
    look(1)
    for wait in WAITS:
        threading.Thread(target=after(wait), daemon=True).start()
"""

WAITING_IN_THREADS = (
    WAITING
    + """
with record() as run:
    program()
with replay(run) as session:
    program()
assert session.report.exact, session.report
acted.acquire(timeout=1)
print("over", flush=True)
os._exit(0)
"""
)


def test_a_wait_that_had_not_ended_with_the_recorded_block_does_not_end_with_its_replay(place: Place) -> None:
    """A wait with a time limit that was still open at the end of the recorded block goes on as a real wait after the
    replay, so that its thread does not act for real just because the replay is over."""
    done = python(place, place.program(WAITING_IN_THREADS))
    assert (done.stdout, done.stderr, done.returncode) == ("over\n", "", 0)


WAITING_IN_A_LOOP = (
    WAITING
    + """
async def later():
    await asyncio.sleep(HOUR)
    acts("task")

async def program():
    look(1)
    loop = asyncio.get_running_loop()
    loop.call_later(HOUR, acts, "call_later")
    loop.call_at(loop.time() + HOUR, acts, "call_at")
    return asyncio.create_task(later())

async def main():
    async with record() as run:
        first = await program()
    async with replay(run) as session:
        second = await program()
    assert session.report.exact, session.report
    for _ in range(1000):
        await asyncio.sleep(0)
    print("over", first.done(), second.done(), flush=True)
    os._exit(0)

asyncio.run(main())
"""
)


def test_a_timer_of_a_loop_that_goes_on_after_the_replay_keeps_its_time(place: Place) -> None:
    """A ``call_later`` callback and a sleeping task wait for the rest of their hour after the replayed block has ended."""
    done = python(place, place.program(WAITING_IN_A_LOOP))
    assert (done.stdout, done.stderr, done.returncode) == ("over False False\n", "", 0)


WAITED_OUT = (
    WAITING
    + """
def program():
    look(1)
    threads = [threading.Thread(target=after(wait)) for wait in WAITS if wait is not join]
    for thread in threads:
        thread.start()
    return threads

HOUR = 3600
with record() as run:
    program()
HOUR = 0.01
with replay(run) as session:
    threads = program()
    assert not acted.acquire(timeout=0), "in the block"
assert session.report.exact, session.report
for thread in threads:
    thread.join()
print("over", flush=True)
os._exit(0)
"""
)


def test_a_wait_that_goes_on_after_the_replay_comes_to_its_end(place: Place) -> None:
    """A program that waits for its threads after the replayed block does not wait for ever."""
    done = python(place, place.program(WAITED_OUT))
    assert (done.stderr, done.returncode) == ("", 0)
    *lines, last = done.stdout.splitlines()
    waits = ("sleep", "event", "semaphore", "condition", "future", "get", "get_simple", "coroutine", "deadline")
    assert (sorted(lines), last) == (sorted(f"acted: {name}" for name in waits), "over")


WAITING_AT_THE_END = (
    WAITING
    + """
class Kept:
    def __del__(self):
        print("collected", flush=True)

kept = Kept()
WAITS.remove(join)  # the interpreter counts the main thread as ended before it ends the others
program()
print("end", flush=True)
"""
)


def test_the_threads_of_a_replayed_program_wait_until_its_process_is_gone(place: Place) -> None:
    """Daemon threads do not see the end of a replayed program, as they did not see that of the recorded one: none acts
    while the process shuts down, and what they keep alive is not collected."""
    recorded = place.cli("run", place.program(WAITING_AT_THE_END))
    assert (recorded.returncode, recorded.stdout) == (0, "end\n"), recorded.stderr
    done = place.cli("replay", place.run)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "exact" in done.stderr
    assert "Traceback" not in done.stderr


LEFT_RUNNING = """
import asyncio, gc, subprocess
from asyncio.subprocess import PIPE
from tracekit import record, replay

async def begun():
    process = await asyncio.create_subprocess_exec("sh", "-c", "echo one; exec sleep 60", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    return await process.stdout.readline(), process, subprocess.Popen(["sleep", "60"], stdout=PIPE)

async def ended(line, process, other):
    process.kill()
    other.kill()
    found = line, await process.wait(), await process.stdout.read(), other.wait()
    other.stdout.close()
    return found

async def main():
    async with record() as run:
        begun_now = await begun()
    recorded = await ended(*begun_now)
    async with replay(run) as session:
        begun_now = await begun()
    assert session.report.exact, session.report
    assert await asyncio.wait_for(ended(*begun_now), 60) == recorded
    print(recorded)

asyncio.run(main())
gc.collect()
"""


def test_a_process_that_the_recorded_block_left_running_can_be_ended_after_its_replay(place: Place) -> None:
    """After the block of a replay such a process, which does not exist, is as one that was killed: the program can wait for it, and
    nothing of it is left open."""
    place.program(LEFT_RUNNING)
    done = place.python("-W", "error", "agent.py")
    assert (done.stdout, done.stderr, done.returncode) == ("(b'one\\n', -9, b'', -9)\n", "", 0)
