"""Threads and what they wait for: a replay waits for what was recorded earlier, however long, and never for what can't come."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracekit import TraceExhaustedError, record, replay, traced_tool

_usleep = ctypes.CDLL(None).usleep


def native(ms: float) -> None:
    """Sleep where no hook of Python sees it."""
    _usleep(int(ms * 1000))


@traced_tool(side_effect="read_only")
def tool(name: str, ms: float = 0) -> str:
    native(ms)
    return name


def in_threads(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def same(tmp_path: Path, program: Callable[[], Any]) -> Any:
    """What ``program`` saw, recorded and replayed; the replay is exact."""
    with record("order", store=tmp_path) as run:
        seen = program()
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact, session.report.as_dict()
    return seen


# -- earlier events are waited for -----------------------------------------------------------------------------------------


def test_a_native_sleep_in_a_thread_before_a_tool(tmp_path: Path) -> None:
    """``to_thread`` of 300 ms of native code, then a tool, beside a slower tool: the first one answers first, as it did."""

    async def main() -> list[str]:
        seen = []

        async def first() -> None:
            await asyncio.to_thread(native, 300)
            seen.append(await asyncio.to_thread(tool, "first"))

        async def second() -> None:
            seen.append(await asyncio.to_thread(tool, "second", 900))

        await asyncio.gather(first(), second())
        return seen

    assert same(tmp_path, lambda: asyncio.run(main())) == ["first", "second"]


@pytest.mark.parametrize("late", [0, 1])
def test_native_sleeps_in_two_threads(tmp_path: Path, late: int) -> None:
    """Two threads that sleep 100 ms in native code, one before its call and one in it: their answers keep their order."""

    def program() -> list[str]:
        seen: list[str] = []

        def sleeps_before() -> None:
            native(100)
            seen.append(tool("before", 600 * late))

        def sleeps_inside() -> None:
            seen.append(tool("inside", 400))

        in_threads(sleeps_before, sleeps_inside)
        return seen

    assert same(tmp_path, program) == (["inside", "before"] if late else ["before", "inside"])


def test_the_wait_for_a_lock_of_sqlite(tmp_path: Path) -> None:
    """A thread that waits inside sqlite until another connection commits comes to its call before the slower one is answered."""

    def program() -> list[str]:
        path = tmp_path / "data"
        path.unlink(missing_ok=True)
        holder = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        holder.execute("create table item(n)")
        holder.execute("begin exclusive")
        seen: list[str] = []

        def waits() -> None:
            own = sqlite3.connect(path, timeout=30, isolation_level=None)
            own.execute("insert into item values (1)")
            own.close()
            seen.append(tool("waited"))

        def commits() -> None:
            native(200)
            holder.execute("commit")

        in_threads(waits, commits, lambda: seen.append(tool("slow", 1500)))
        holder.close()
        return seen

    assert same(tmp_path, program) == ["waited", "slow"]


def test_pure_python_before_a_step(tmp_path: Path) -> None:
    """A thread that computes for seconds before its call is waited for, though the other one asked long ago."""
    rounds = [2_000]

    def program() -> list[str]:
        seen: list[str] = []

        def computes() -> None:
            total = 0
            for _ in range(rounds[0]):
                total += sum(range(1000))
            seen.append(tool("computed"))

        in_threads(computes, lambda: seen.append(tool("slow", 2000)))
        return seen

    with record("order", store=tmp_path) as run:
        seen = program()
    assert seen == ["computed", "slow"]
    rounds[0] = 120_000  # a much slower machine
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact


def test_an_answer_waits_for_the_calls_that_were_made_before_it(tmp_path: Path) -> None:
    """What a thread looked up under a lock before another one's answer came, it looks up before it in the replay."""
    calculation = [0]

    def program() -> Any:
        lock, latest = threading.Lock(), ["nothing"]

        def looks() -> None:
            for _ in range(calculation[0]):
                sum(range(1000))
            with lock:
                seen = latest[0]
            tool(f"saw {seen}", 600)

        def changes() -> None:
            answer = tool("news", 300)
            with lock:
                latest[0] = answer

        in_threads(looks, changes)
        return latest

    with record("order", store=tmp_path) as run:
        program()
    calculation[0] = 40_000
    with replay(run) as session:
        program()
    assert session.report.exact


def test_an_order_that_a_lock_forbids_is_left_and_said(tmp_path: Path) -> None:
    """The thread that had the lock second in the recording has it first: the other order is taken, and the replay is inexact."""
    turns = [["first", "second"]]

    def program() -> list[str]:
        lock, order, gates = threading.Lock(), [], [threading.Event(), threading.Event()]
        gates[0].set()

        def work(name: str) -> None:
            place = turns[0].index(name)
            gates[place].wait()
            with lock:
                if place == 0:
                    gates[1].set()
                order.append(tool(name))

        in_threads(lambda: work("first"), lambda: work("second"))
        return order

    with record("order", store=tmp_path) as run:
        assert program() == ["first", "second"]
    turns[0] = ["second", "first"]
    with replay(run) as session:
        assert program() == ["second", "first"]
    assert session.report.reordered
    assert not session.report.exact


# -- nothing can move ------------------------------------------------------------------------------------------------------

#: Where a tool's body reaches: it is not run in a replay.
_reached: list[Any] = [None]


@traced_tool(side_effect="read_only")
def reaches(n: int) -> int:
    _reached[0](n)
    return n


@traced_tool(side_effect="read_only")
async def reaches_later(n: int) -> int:
    await asyncio.sleep(0)
    _reached[0](n)
    return n


def task_waits_for_an_event() -> None:
    async def waits(event: asyncio.Event) -> None:
        await event.wait()  # here

    async def main() -> None:
        event = asyncio.Event()
        _reached[0] = lambda _: event.set()
        task = asyncio.create_task(waits(event), name="patient")
        await reaches_later(1)
        await task

    asyncio.run(main())


def task_waits_for_an_item() -> None:
    async def main() -> None:
        items: asyncio.Queue[int] = asyncio.Queue()
        _reached[0] = items.put_nowait
        await reaches_later(1)
        await items.get()  # here

    asyncio.run(main())


def thread_waits_for_an_event() -> None:
    event = threading.Event()
    _reached[0] = lambda _: event.set()
    thread = threading.Thread(target=reaches, args=(1,))
    thread.start()
    event.wait()  # here
    thread.join()


def thread_waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    _reached[0] = lambda _: lock.release()
    thread = threading.Thread(target=reaches, args=(1,))
    thread.start()
    with lock:  # here
        thread.join()


def lone_thread_waits_for_an_event() -> None:
    event = threading.Event()
    _reached[0] = lambda _: event.set()
    reaches(1)
    event.wait()  # here


STUCK = [
    task_waits_for_an_event,
    task_waits_for_an_item,
    thread_waits_for_an_event,
    thread_waits_for_a_lock,
    lone_thread_waits_for_an_event,
]


@pytest.mark.parametrize("program", STUCK, ids=lambda program: program.__name__)
def test_nothing_can_move(tmp_path: Path, program: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    """A tool's body sets what the program waits for, and a replay does not run it: that fails at once, on stderr too, and names
    who waits at which line."""
    with record("stuck", store=tmp_path) as run:
        program()
    with pytest.raises(TraceExhaustedError, match="everything in the program waits") as failed, replay(run):
        program()
    first = program.__code__.co_firstlineno
    source = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(source[first:], first + 1) if text.endswith("# here"))
    assert f"{__file__}:{line}" in str(failed.value)
    if program is task_waits_for_an_event:
        assert "task 'patient'" in str(failed.value)
    assert "everything in the program waits" in capsys.readouterr().err


def test_a_program_that_computes_is_not_stuck(tmp_path: Path) -> None:
    """Somebody waits for a thread that computes, sleeps in native code or waits with a time limit: that is no standstill."""

    def program() -> int:
        items: queue.SimpleQueue[int] = queue.SimpleQueue()

        def works() -> None:
            native(300)
            for _ in range(5_000):
                sum(range(1000))
            lock = threading.Lock()
            lock.acquire()
            lock.acquire(timeout=0.3)
            items.put(1)

        thread = threading.Thread(target=works)
        thread.start()
        got = items.get()
        thread.join()
        tool("done")
        return got

    assert same(tmp_path, program) == 1


def test_a_thread_that_is_none_of_the_run_is_waited_for(tmp_path: Path) -> None:
    """A worker that was there before the run, and knows nothing of it, may wake the program: it is no standstill either."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def works() -> None:
        while (job := jobs.get()) is not None:
            native(300)
            job.set()

    worker = threading.Thread(target=works)
    worker.start()

    def program() -> None:
        def asks() -> None:
            done = threading.Event()
            jobs.put(done)
            done.wait()
            tool("after")

        in_threads(asks, lambda: tool("slow", 600))

    try:
        same(tmp_path, program)
    finally:
        jobs.put(None)
        worker.join()


DIES = """
import os, sys
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="read_only")
def ask(question):
    return 1

def program(question):
    try:
        ask(question)
    finally:
        if question == "b":
            os.abort()

with record("dies") as run:
    program("a")
with replay(run):
    program("b")
"""


def test_a_divergence_is_printed_when_it_happens(tmp_path: Path) -> None:
    """A program that dies while it unwinds has said on stderr what differed."""
    done = subprocess.run(
        [sys.executable, "-c", DIES], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode < 0
    assert "the replay has failed: [divergence]" in done.stderr
    assert "'a'" in done.stderr or '"a"' in done.stderr
