"""Threads, tasks and calls that are inside a tool when a recorded run ends: a replay holds them until it ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.place import Place
from tracekit import Run, TraceExhaustedError, record, recovery, replay, traced_tool


@traced_tool(side_effect="read_only")
def ask(prompt: str) -> str:
    return "answer"


class Interrupted:
    """A program in which ``begin`` starts something that is inside ``tool`` when the recorded block ends."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.bodies = 0

    def stay(self) -> int:
        self.bodies += 1
        self.begun.set()
        self.goes_on.wait()
        return self.bodies

    def check(self, begin: Callable[[], Callable[[], object]]) -> None:
        """Record and replay ``begin``, which returns a function that waits for what it started."""
        with record("test") as run:
            end = begin()
            self.begun.wait()
            ask("beside it")
        self.goes_on.set()
        end()
        with replay(run) as session:
            end = begin()
            ask("beside it")
        assert session.report.verdict.line == "exact"
        assert self.bodies == 1
        with pytest.raises(TraceExhaustedError, match="the recorded run ended without an outcome of this step"):
            end()


def in_thread(function: Callable[[], object]) -> Callable[[], object]:
    """Start ``function`` in a thread; return what waits for it, and returns or raises what it did."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return lambda: future.result(20)


@pytest.mark.filterwarnings("ignore:tracekit. ")
@pytest.mark.parametrize(
    "options",
    [
        {"side_effect": "read_only"},
        {"side_effect": "irreversible", "exactly_once": True},
        {"side_effect": "read_only", "timeout_ms": 60_000, "timeout_in": "thread", "max_retries": 2},
    ],
    ids=["plain", "exactly-once", "timeout"],
)
def test_a_tool_that_was_running_when_the_run_ended_is_held_in_a_replay(options: dict[str, Any]) -> None:
    """A replay is exact, executes nothing, and ends although a thread is inside a tool that has no outcome in the log."""
    program = Interrupted()
    tool = traced_tool(**options)(program.stay)
    program.check(lambda: in_thread(tool))


@pytest.mark.filterwarnings("ignore:tracekit. ")
def test_a_call_in_a_pool_and_a_generator_that_were_running_are_held_in_a_replay() -> None:
    """What was submitted to a pool, or takes an item from a generator, ends with the replay, as a thread does."""
    program = Interrupted()
    tool = traced_tool(side_effect="read_only")(program.stay)
    with ThreadPoolExecutor() as pool:
        program.check(lambda: pool.submit(tool).result)

    program = Interrupted()

    @traced_tool(side_effect="read_only")
    def items() -> Iterator[int]:
        yield 1
        yield 2
        yield program.stay()

    program.check(lambda: in_thread(lambda: list(items())))


@pytest.mark.filterwarnings("ignore:tracekit. ")
def test_a_task_that_was_inside_a_tool_when_the_run_ended_is_held_in_a_replay() -> None:
    """The event loop runs on beside it, and the task ends with the replay."""
    bodies = []

    async def main() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        @traced_tool(side_effect="read_only")
        async def stay() -> None:
            bodies.append(1)
            begun.set()
            await goes_on.wait()

        async with record("test") as run:
            task = asyncio.create_task(stay())
            await begun.wait()
            ask("beside it")
        goes_on.set()
        await task
        async with replay(run) as session:
            task = asyncio.create_task(stay())
            await asyncio.sleep(0)
            ask("beside it")
        assert session.report.verdict.answer == "exact"
        with pytest.raises(TraceExhaustedError, match="ended without an outcome"):
            await task

    asyncio.run(main())
    assert len(bodies) == 1


@pytest.mark.filterwarnings("ignore:tracekit. ")
def test_a_thread_that_gets_further_than_when_the_run_ended_is_held_there() -> None:
    """A thread that was between two tools when the run ended may reach the next one in a replay: counted, not executed."""
    program = Interrupted()
    look = traced_tool(side_effect="read_only")(lambda n: n)

    def begin() -> Callable[[], object]:
        def both() -> None:
            look(1)
            program.stay()
            look(2)

        return in_thread(both)

    with record("test") as run:
        end = begin()
        program.begun.wait()
    program.goes_on.set()
    end()
    with replay(run) as session:
        end = begin()
        program.begun.wait()
        while not session.report.verdict.remarks:  # the end of the block does not wait for it as long as it may take
            ctypes.CDLL(None).usleep(2000)
    assert session.report.verdict.line == "exact, 1 step past the recorded end"
    with pytest.raises(TraceExhaustedError, match="ended before its thread reached this step"):
        end()


def test_waiting_for_a_thread_that_was_inside_a_tool_when_the_run_ended_fails() -> None:
    """A program that now waits for the outcome that the recorded one left without does not hang: it fails."""
    program = Interrupted()
    tool = traced_tool(side_effect="read_only")(program.stay)
    with record("test") as run:
        end = in_thread(tool)
        program.begun.wait()
    program.goes_on.set()
    end()
    with pytest.raises(TraceExhaustedError, match="everything in the program waits"), replay(run):
        in_thread(tool)()


# -- under the command line ----------------------------------------------------------------------------------------------

DAEMON = """
import threading
from tracekit import traced_tool

begun = threading.Event()

@traced_tool(side_effect="irreversible")
def poll(n):
    if n == 2:
        begun.set()
        threading.Event().wait()
    return n

@traced_tool(side_effect="read_only")
def answer():
    begun.wait()
    return 42

def beside():
    for n in range(10):
        poll(n)

threading.Thread(target=beside, daemon=True).start()
print(answer())
"""

WATCHDOG = """
import asyncio, os, sys, threading, time
from tracekit import traced_tool

begun = threading.Event()

@traced_tool(side_effect="read_only")
def stay():
    begun.set()
    threading.Event().wait()

@traced_tool(side_effect="read_only")
async def stay_async():
    begun.set()
    await asyncio.Event().wait()

@traced_tool(side_effect="read_only")
def wait():
    begun.wait()

def watch():
    wait()
    print("giving up", flush=True)
    os._exit(3)

threading.Thread(target=watch).start()
if sys.argv[1:]:
    asyncio.run(stay_async())
else:
    stay()
"""


def test_a_daemon_thread_inside_a_tool_does_not_fail_the_replay(tmp_path: Path) -> None:
    """The replay of a program that ended while its daemon thread was inside a tool is exact; the tool is in doubt."""
    place = Place(tmp_path)
    assert place.cli("run", place.program(DAEMON)).stdout == "42\n"
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, "42\n"), replayed.stderr
    assert ": exact (4 steps matched)" in replayed.stderr
    doubtful = place.cli("in-doubt")
    assert (doubtful.returncode, "poll" in doubtful.stdout) == (1, True), doubtful.stderr


@pytest.mark.parametrize("arguments", [[], ["async"]], ids=["thread", "task"])
def test_a_program_that_a_watchdog_ends_inside_a_tool_replays(tmp_path: Path, arguments: list[str]) -> None:
    """A thread that ends the process while the main line is inside a tool does so in the replay, too."""
    place = Place(tmp_path)
    assert place.cli("run", place.program(WATCHDOG), *arguments).returncode == 3
    replayed = place.cli("replay", "last")
    assert (replayed.returncode, replayed.stdout) == (0, "giving up\n"), replayed.stderr
    assert ": exact (2 steps matched)" in replayed.stderr


LATER = """
import threading, time
from tracekit import traced_tool

begun = threading.Event()

@traced_tool(side_effect="irreversible")
def beat(number):
    begun.set()
    time.sleep(0.05)
    with open("beats", "a") as file:
        file.write(f"{number}\\n")

def work():
    beat(1)
    time.sleep(0.7)
    beat(2)

threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_a_daemon_thread_does_no_more_than_it_would_have_done(tmp_path: Path) -> None:
    """``tracekit run`` does not keep a program alive for its daemon threads: what they are doing gets its outcome, and what they would do
    next does not happen, without a word."""
    place = Place(tmp_path)
    done = place.cli("run", place.program(LATER))
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert (tmp_path / "beats").read_text() == "1\n"
    assert place.cli("in-doubt").returncode == 0


def test_an_effect_that_waits_for_the_device_when_its_run_ends_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends while another thread waits for an irreversible step's intent record to be on the device lists that step."""
    done: list[int] = []
    waits, went_on = threading.Event(), threading.Event()
    really = os.fdatasync

    def slowly(fd: int) -> None:
        if threading.current_thread() is thread and not waits.is_set():
            waits.set()
            while b'"run.completed"' not in Path(run.path).read_bytes():
                went_on.wait(0.001)
        really(fd)

    @traced_tool(side_effect="irreversible", name="pay")
    def pay() -> None:
        done.append(1)

    def program() -> Iterator[Run]:
        with record("job", store=tmp_path) as run:
            yield run
            thread.start()
            waits.wait()
        thread.join()

    monkeypatch.setattr("tracekit._journal.writer._fdatasync", slowly)
    thread = threading.Thread(target=pay)
    going = program()
    run = next(going)
    with pytest.warns(RuntimeWarning, match="had ended"):
        next(going, None)
    assert done == [1]
    (doubtful,) = recovery.in_doubt(tmp_path).in_doubt
    assert (doubtful.run_id, doubtful.name) == (run.id, "pay")
