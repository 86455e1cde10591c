"""Threads and what they wait for: a replay waits for what was recorded earlier, however long, and never for what can't come."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import queue
import selectors
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from tests.support.processes import python
from tracekit import InexactReplayError, TraceExhaustedError, record, replay, traced_tool

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


def test_what_follows_from_the_end_of_a_thread_comes_before_the_next_event(tmp_path: Path) -> None:
    """A thread that joins another one with a time limit clears a flag next; one that looks at it between two waits sees that
    where it saw it. (Recorded, the two are far apart, so that it is no matter of chance.)"""

    class Flag:
        on = True

    def program() -> int:
        flag, items, misses = Flag(), queue.Queue[int](), 0

        def look() -> None:
            nonlocal misses
            while flag.on:
                try:
                    items.get(timeout=0.2)
                except queue.Empty:
                    misses += 1

        looks, works = threading.Thread(target=look), threading.Thread(target=tool, args=("answer", 100))
        looks.start()
        works.start()
        works.join(timeout=60)
        flag.on = False
        looks.join(timeout=60)
        return misses

    with record("flag", store=tmp_path) as run:
        seen = program()
    for _ in range(20):
        with replay(run) as session:
            assert program() == seen
        assert session.report.exact


def test_a_thread_that_was_there_before_the_run(tmp_path: Path) -> None:
    """A program's own worker, started before the run, that does what it is handed with its context: whoever was answered first is, however
    long the worker takes to come to its call."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def worker() -> None:
        while (job := jobs.get()) is not None:
            job()

    thread = threading.Thread(target=worker)
    thread.start()
    replaying = threading.Event()

    def program() -> list[str]:
        seen: list[str] = []
        done = threading.Event()

        def job() -> None:
            if replaying.is_set():
                native(50)
            seen.append(tool("worker"))
            done.set()

        jobs.put(partial(copy_context().run, job))
        seen.append(tool("program", 50))
        done.wait()
        return seen

    try:
        with record("order", store=tmp_path) as run:
            assert program() == ["worker", "program"]
        replaying.set()
        with replay(run) as session:
            assert program() == ["worker", "program"]
        assert session.report.exact, session.report.as_dict()
    finally:
        jobs.put(None)
        thread.join()


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
    """A thread that computes for long before its call is waited for, though the other one asked long ago."""
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
    rounds[0] = 40_000  # a much slower machine
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
    with pytest.raises(InexactReplayError, match="1 reordered") as inexact, replay(run):
        assert program() == ["second", "first"]
    assert str(inexact.value.next_action).startswith("where nothing changed in the code, threads"), (
        "the code is not to blame"
    )


def test_a_task_that_polls_while_a_lock_forbids_the_order(tmp_path: Path) -> None:
    """It does not go on for ever, past the place where it was: what the lock allows comes to it."""
    turns = [["first", "second"]]

    async def main() -> list[str]:
        lock, order, gates = threading.Lock(), [], [threading.Event(), threading.Event()]
        gates[0].set()

        def work(name: str) -> None:
            place = turns[0].index(name)
            gates[place].wait()
            with lock:
                if place == 0:
                    gates[1].set()
                order.append(tool(name, 20))

        both = asyncio.gather(asyncio.to_thread(work, "first"), asyncio.to_thread(work, "second"))
        while not both.done():
            await asyncio.sleep(0)
        return order

    with record("order", store=tmp_path) as run:
        assert asyncio.run(main()) == ["first", "second"]
    turns[0] = ["second", "first"]
    with pytest.raises(InexactReplayError, match="reordered"), replay(run):
        assert asyncio.run(main()) == ["second", "first"]


@traced_tool(side_effect="read_only")
async def later(ms: float) -> str:
    await asyncio.sleep(ms / 1000)
    return "later"


async def joining(joins_first: bool, work: Callable[[], object]) -> None:
    """A call on the loop, and a thread that is joined there, without awaiting."""
    call = asyncio.create_task(later(10), name="late")
    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.sleep(0)
    if joins_first:
        thread.join()
    await call
    thread.join()  # here


def test_a_loop_that_waits_for_a_thread_without_awaiting(tmp_path: Path) -> None:
    """It can't be given the answer that came first in the recording: the thread gets its own before, and the replay is inexact."""
    with record("joins", store=tmp_path) as run:
        asyncio.run(joining(False, lambda: tool("thread", 200)))
    with pytest.raises(InexactReplayError, match="1 reordered"), replay(run):
        asyncio.run(joining(True, lambda: tool("thread", 200)))


def test_a_loop_that_waits_for_a_thread_that_waits_for_it(tmp_path: Path) -> None:
    """An answer has its turn that nobody can take: that fails at once, and names who waits."""

    async def main(joins_first: bool) -> None:
        event = threading.Event()
        other = asyncio.create_task(later(5))
        other.add_done_callback(lambda _: event.set())
        await joining(joins_first, event.wait)

    with record("joins", store=tmp_path) as run:
        asyncio.run(main(False))
    with pytest.raises(TraceExhaustedError, match="task 'late'"), replay(run):
        asyncio.run(main(True))


def test_what_done_callbacks_of_a_pool_do_is_recorded(tmp_path: Path) -> None:
    """A worker calls them after the submitted call, the manager of a pool of processes in a thread of its own: their
    steps belong to the run all the same, in the same lane whether the future was done when the callback was added or not."""

    def program() -> list[str]:
        seen: list[str] = []

        def noted(name: str, future: Future[str]) -> None:
            seen.append(tool(f"{name} {future.result()}"))
            if name == "first":
                pool.submit(tool, "again", 5).add_done_callback(partial(noted, "second"))

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(tool, "a", 20)
            future.add_done_callback(partial(noted, "first"))
            wait([future])
            pool.submit(tool, "b").result()
            future.add_done_callback(lambda future: noted("late", future))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as processes:
            processes.submit(str, 1).add_done_callback(partial(noted, "process"))
        return seen

    assert sorted(same(tmp_path, program)) == ["first a", "late a", "process 1", "second again"]


def test_what_the_hook_for_exceptions_of_threads_does_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``threading.excepthook`` is called after the thread's own function has ended, and belongs to the run as that did."""
    seen: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(tool(str(args.exc_value))))

    def program() -> list[str]:
        seen.clear()
        in_threads(partial(int, "one"), partial(int, "two"))
        return sorted(seen)

    assert len(same(tmp_path, program)) == 2


@pytest.mark.parametrize("slower", [0, 100])
def test_two_results_that_reach_a_loop_at_once(tmp_path: Path, slower: int) -> None:
    """Results of two threads came while the loop was busy; the second takes its time in the replay, and nobody goes on before it."""
    after = [0]

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(2) as pool:
            both = asyncio.gather(
                loop.run_in_executor(pool, tool, "first"),
                loop.run_in_executor(pool, lambda: (tool("second", 20), native(after[0]))),
            )
            await asyncio.sleep(0)
            native(100)
            polls = [0, 0]
            while not both.done():
                polls[0] += 1
                await asyncio.sleep(0)
            call = asyncio.create_task(later(3))
            while not call.done():
                polls[1] += 1
                await asyncio.sleep(0)
            return polls

    with record("arrivals", store=tmp_path) as run:
        seen = asyncio.run(main())
    after[0] = slower
    with replay(run):
        assert asyncio.run(main()) == seen


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


def task_waits_with_a_deadline() -> None:
    async def main() -> None:
        event = asyncio.Event()
        _reached[0] = lambda _: event.set()
        asyncio.get_running_loop().call_later(60, list)
        async with asyncio.timeout(60):
            reaches(1)
            await event.wait()  # here

    asyncio.run(main())


def task_of_a_nested_group_waits() -> None:
    async def waits(event: asyncio.Event) -> None:
        await event.wait()  # here

    async def main() -> None:
        event = asyncio.Event()
        _reached[0] = lambda _: event.set()
        async with asyncio.TaskGroup() as outer:
            outer.create_task(asyncio.sleep(0.001))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(waits(event))
                inner.create_task(reaches_later(1))

    asyncio.run(main())


def task_waits_on_a_condition() -> None:
    async def main() -> None:
        ready = asyncio.Condition()
        found: list[int] = []

        async def tells(n: int) -> None:
            async with ready:
                found.append(n)
                ready.notify_all()

        _reached[0] = lambda n: asyncio.ensure_future(tells(n))
        await reaches_later(1)
        async with ready:
            await ready.wait_for(lambda: found)  # here

    asyncio.run(main())


def task_waits_for_its_turn() -> None:
    async def main() -> None:
        turns = asyncio.Semaphore(0)
        _reached[0] = lambda _: turns.release()
        calls = asyncio.gather(reaches_later(1), reaches_later(2))
        for _ in range(2):
            await turns.acquire()  # here
        await calls

    asyncio.run(main())


def task_waits_for_a_message() -> None:
    async def receives(messages: Any) -> None:
        async for _ in messages:  # here
            return

    async def main() -> None:
        sender, receiver = anyio.create_memory_object_stream[int](1)
        _reached[0] = sender.send_nowait
        with sender, receiver:
            async with anyio.create_task_group() as group:
                group.start_soon(receives, receiver)
                await reaches_later(1)

    asyncio.run(main())


def task_on_uvloop_waits_for_a_future() -> None:
    async def main() -> None:
        found = asyncio.get_running_loop().create_future()
        _reached[0] = found.set_result
        await asyncio.gather(reaches_later(1), asyncio.sleep(0.001))
        await found  # here

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def thread_waits_for_an_item() -> None:
    items: queue.Queue[int] = queue.Queue()
    _reached[0] = items.put
    thread = threading.Thread(target=reaches, args=(1,))
    thread.start()
    items.get()  # here
    thread.join()


def thread_waits_on_a_condition() -> None:
    ready, found = threading.Condition(), list[int]()

    def tells(n: int) -> None:
        with ready:
            found.append(n)
            ready.notify()

    _reached[0] = tells
    thread = threading.Thread(target=reaches, args=(1,))
    thread.start()
    with ready:
        ready.wait_for(lambda: found)  # here
    thread.join()


def pool_waits_for_a_future() -> None:
    found: Future[int] = Future()
    _reached[0] = found.set_result
    with ThreadPoolExecutor(2) as pool:
        pool.submit(reaches, 1)
        pool.submit(found.result).result()  # here


STUCK = [
    task_waits_for_an_event,
    task_waits_with_a_deadline,
    task_waits_for_an_item,
    task_of_a_nested_group_waits,
    task_waits_on_a_condition,
    task_waits_for_its_turn,
    task_waits_for_a_message,
    task_on_uvloop_waits_for_a_future,
    thread_waits_for_an_event,
    thread_waits_for_an_item,
    thread_waits_on_a_condition,
    thread_waits_for_a_lock,
    pool_waits_for_a_future,
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


def test_a_thread_of_a_package_that_waits_is_named_with_the_package(tmp_path: Path) -> None:
    """A thread in which no code of the program runs is named with the line of the package that waits in it, not with one of tracekit's;
    and that threads may wait for one another is said."""
    package: dict[str, Any] = {}
    exec(compile("def work(event):\n    event.wait()\n", "/opt/site-packages/pool.py", "exec"), package)

    def program() -> None:
        event = threading.Event()
        _reached[0] = lambda _: event.set()
        thread = threading.Thread(target=package["work"], args=(event,), name="of the package")
        thread.start()
        reaches(1)
        thread.join()

    with record("stuck", store=tmp_path) as run:
        program()
    with pytest.raises(TraceExhaustedError, match="everything in the program waits") as failed, replay(run) as session:
        program()
    assert "thread 'of the package' at /opt/site-packages/pool.py:2" in str(failed.value)
    assert f"{os.sep}tracekit{os.sep}_" not in str(failed.value)
    assert "thread order may differ" in str(failed.value)
    assert "everything_waits" in {reason.code for reason in session.report.verdict.reasons}


def test_a_task_of_a_package_that_waits_is_named_with_the_package(tmp_path: Path) -> None:
    """The same for a task whose coroutine is a package's: it is named with the package's innermost line."""
    package: dict[str, Any] = {}
    code = "async def inner(event):\n    await event.wait()\nasync def work(event):\n    await inner(event)\n"
    exec(compile(code, "/opt/site-packages/pool.py", "exec"), package)

    def program() -> None:
        async def main() -> None:
            event = asyncio.Event()
            _reached[0] = lambda _: event.set()
            task = asyncio.create_task(package["work"](event), name="of the package")
            await reaches_later(1)
            await task

        asyncio.run(main())

    with record("stuck", store=tmp_path) as run:
        program()
    with pytest.raises(TraceExhaustedError) as failed, replay(run):
        program()
    assert "task 'of the package' (work) at /opt/site-packages/pool.py:2" in str(failed.value)


# -- beside threads that are none of the run's -----------------------------------------------------------------------------


#: What a thread does, what ends that, and what waits until it has begun, if that is more than its start.
_Work = tuple[Callable[[], object], Callable[[], object], *tuple[Callable[[], object], ...]]


@contextmanager
def accepting() -> Iterator[_Work]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield lambda: server.accept()[0].close(), lambda: socket.create_connection(server.getsockname()).close()


@contextmanager
def receiving() -> Iterator[_Work]:
    here, there = socket.socketpair()
    with here, there:
        yield lambda: here.recv(1), lambda: there.send(b"1")


@contextmanager
def selecting(kind: type[selectors.BaseSelector]) -> Iterator[_Work]:
    here, there = socket.socketpair()
    with here, there, kind() as selector:
        selector.register(here, selectors.EVENT_READ)
        yield selector.select, lambda: there.send(b"1")


@contextmanager
def serving() -> Iterator[_Work]:
    async def serve() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        server.close()

    def end() -> None:
        loop, stop = started.result()
        loop.call_soon_threadsafe(stop.set)

    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    yield lambda: asyncio.run(serve()), end, started.result


WAITING: dict[str, Callable[[], AbstractContextManager[_Work]]] = {
    "accepts": accepting,
    "receives": receiving,
    "epoll": partial(selecting, selectors.EpollSelector),
    "poll": partial(selecting, selectors.PollSelector),
    "select": partial(selecting, selectors.SelectSelector),
    "serves": serving,
}


@contextmanager
def beside(working: AbstractContextManager[_Work]) -> Iterator[None]:
    """A thread of user code that was there before the run, and knows nothing of it."""
    with working as (work, end, *begun):
        thread = threading.Thread(target=lambda: work(), name="beside")
        thread.start()
        for wait in begun:
            wait()
        yield
        end()
        thread.join()


@pytest.mark.parametrize("program", [task_waits_for_an_event, thread_waits_for_an_item], ids=["task", "thread"])
@pytest.mark.parametrize("waiting", WAITING)
def test_nothing_can_move_beside_a_server(tmp_path: Path, waiting: str, program: Callable[[], None]) -> None:
    """A thread that waits for connections or data without a limit, as a server of before the run does, brings nothing about in a replay:
    nobody from outside has a part in that."""
    with beside(WAITING[waiting]()):
        with record("beside", store=tmp_path) as run:
            program()
        with pytest.raises(TraceExhaustedError, match="everything in the program waits"), replay(run):
            program()


@pytest.mark.parametrize("limit", ["the socket's", "of poll"])
def test_a_thread_beside_that_receives_with_a_limit(tmp_path: Path, limit: str) -> None:
    """A thread from before the run that receives with a time limit goes on when that has run out, and may wake the program then."""
    here, there = socket.socketpair()
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    if limit == "of poll":
        here.settimeout(0.2)
    else:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200_000))

    def works() -> None:
        while (job := jobs.get()) is not None:
            with suppress(OSError):
                here.recv(1)
            job.set()

    def program() -> None:
        done = threading.Event()
        jobs.put(done)
        done.wait()
        tool("after")

    with here, there, beside(nullcontext((works, lambda: jobs.put(None)))):
        same(tmp_path, program)


def test_a_thread_beside_that_may_be_reached(tmp_path: Path) -> None:
    """Where a replay may be reached from outside, a thread beside it that waits for data may wake the program: that is no standstill."""
    here, there = socket.socketpair()
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def works() -> None:
        while (job := jobs.get()) is not None:
            os.write(asks, b"1")
            here.recv(1)
            job.set()

    def program() -> None:
        done = threading.Event()
        jobs.put(done)
        done.wait()
        tool("after")

    # Another process, which answers once everything here waits.
    answers = "import os, time\nwhile os.read(0, 1):\n    time.sleep(0.2)\n    os.write(1, b'1')"
    asked, asks = os.pipe()
    other = subprocess.Popen([sys.executable, "-c", answers], stdin=asked, stdout=there.fileno())
    os.close(asked)
    try:
        with here, there, beside(nullcontext((works, lambda: jobs.put(None)))):
            with record("reached", store=tmp_path) as run:
                program()
            with replay(run, guard="context") as session:
                program()
    finally:
        os.close(asks)
        other.wait()
    assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["in the background", "an own handler"])
@pytest.mark.parametrize("program", [thread_waits_for_an_item, thread_waits_for_a_lock])
def test_nothing_can_move_where_sigint_does_nothing(tmp_path: Path, program: Callable[[], None], handler: Any) -> None:
    """A shell lets what it puts into the background ignore Ctrl-C, and a server has a handler of its own: the replay fails all the same."""
    signals = signal.SIGINT, signal.SIGURG
    with record("stuck", store=tmp_path) as run:
        program()
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(TraceExhaustedError, match="everything in the program waits"), replay(run):
            program()
        assert [signal.getsignal(one) for one in signals] == [handler, signal.SIG_DFL]
    finally:
        signal.signal(signal.SIGINT, before)


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


SLEEPS_FOR_EVER = """
import ctypes, os, sys, threading
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(name):
    return name

mark = sys.argv[1]

def sleeps():
    if os.path.exists(mark):  # in the replay
        ctypes.CDLL(None).sleep(1_000_000)
    ask("first")

def asks():
    thread.join() if not os.path.exists(mark) else None
    ask("second")

thread = threading.Thread(target=sleeps)
other = threading.Thread(target=asks)
thread.start(); other.start(); thread.join(); other.join()
"""

LOOKS_FOR_EVER = """
import ctypes, os, sys, threading
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def ask(name):
    return name

mark = sys.argv[1]

def looks():
    while True:
        ctypes.CDLL(None).usleep(10_000)

threading.Thread(target=looks, name="looks", daemon=True).start()
with record("looked at"):
    ask("first")
    if os.path.exists(mark):  # in the replay
        threading.Event().wait()
"""


ALONE_FOR_EVER = """
import ctypes, os, sys, threading
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(name):
    return name

def sleeps():
    if os.path.exists(sys.argv[1]):  # in the replay
        ctypes.CDLL(None).sleep(1_000_000)
    ask("first")

thread = threading.Thread(target=sleeps, daemon=True)
thread.start()
thread.join()
"""

LEFT_FOR_EVER = """
import ctypes, os, sys, threading
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def ask(name):
    return name

def sleeps():
    ask("first")
    begun.set()
    if os.path.exists(sys.argv[1]):  # in the replay
        ctypes.CDLL(None).sleep(1_000_000)
    ask("second")

begun = threading.Event()
with record("left"):
    threading.Thread(target=sleeps, daemon=True).start()
    begun.wait()
"""


WAITS_FOR_A_DEAD_CHILD = """
import multiprocessing, os, signal, sys, threading
from tracekit import traced_tool

@traced_tool(side_effect="irreversible")
def pay(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number

def child(queue, number):
    queue.put(pay(number))

if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    for number in range(3):
        fork.Process(target=child, args=(queue, number)).start()
    if not os.path.exists(sys.argv[1]):  # in the recording
        threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    print(sorted(queue.get() for _ in range(3)), flush=True)
"""

#: Programs whose replay only ``--grace`` ends, with the status of the recorded ones and options of the replay.
ENDED_BY_GRACE: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "sleeps": (SLEEPS_FOR_EVER, 0, ("--isolate", "off")),
    "looks": (LOOKS_FOR_EVER, 0, ("--isolate", "off")),
    "alone": (ALONE_FOR_EVER, 0, ("--isolate", "off")),
    "left": (LEFT_FOR_EVER, 0, ("--isolate", "off")),
    "dead child": (WAITS_FOR_A_DEAD_CHILD, -signal.SIGKILL, ()),
}


@pytest.fixture(scope="module")
def ended_by_grace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, subprocess.CompletedProcess[str]]:
    """The replay of each, side by side: the time of ``--grace`` begins after ten seconds, with the line that names what is waited for."""
    base = tmp_path_factory.mktemp("grace")

    def replayed(name: str) -> subprocess.CompletedProcess[str]:
        program, status, options = ENDED_BY_GRACE[name]
        directory = base / name
        directory.mkdir()
        (directory / "program.py").write_text(program)
        own = {**os.environ, "TRACEKIT_DIR": str(directory / "store")}
        done = python("-m", "tracekit", "run", "program.py", str(directory / "mark"), cwd=directory, env=own)
        assert done.returncode == status, done.stderr
        (directory / "mark").touch()
        return python("-m", "tracekit", "replay", "last", *options, "--grace", "0", cwd=directory, env=own)

    with ThreadPoolExecutor(len(ENDED_BY_GRACE)) as pool:
        return dict(zip(ENDED_BY_GRACE, pool.map(replayed, ENDED_BY_GRACE), strict=True))


def test_grace_ends_what_nobody_can_tell(ended_by_grace: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """A thread that sleeps outside Python for ever, and one that is none of the run's and looks at something again and again, are neither
    overtaken nor called a failure: after a while standard error names them, and the time of ``--grace`` ends the replay as not known.
    So it is where the end of a block waits for them, or nobody for anything that was recorded."""
    said = {name: ended_by_grace[name].stderr for name in ("sleeps", "looks", "alone", "left")}
    for name, text in said.items():
        assert ended_by_grace[name].returncode == 3, text
        assert "not known" in text
    for name, line in (("sleeps", 13), ("alone", 11), ("left", 13)):
        assert "waits for step" in said[name]
        assert f"program.py:{line}" in said[name]
    assert "'looks', which is not one of the run's, at" in said["looks"]
    assert "program.py:19" in said["looks"]


def test_a_program_that_died_waiting_for_a_dead_child(
    ended_by_grace: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    """The replay of a program that was killed while it waited for what a killed child would have sent waits for it no longer than it says:
    nobody knows how it would have gone on."""
    done = ended_by_grace["dead child"]
    assert done.returncode == 3, done.stderr
    assert "nothing in the program has moved for so long that it is ended" in done.stderr


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
    done = python("-c", DIES, cwd=tmp_path)
    assert done.returncode < 0
    assert "the replay has failed: [divergence]" in done.stderr
    assert "'a'" in done.stderr or '"a"' in done.stderr


# -- questions and limits --------------------------------------------------------------------------------------------------

#: How long (ms) the worker takes, and how long who looks pauses, in native code.
pace = [30.0, 3.0]


class Worker:
    """A thread, a pool's call and what they leave behind, in all the ways in which somebody may look for it."""

    def __init__(self) -> None:
        self.event, self.lock, self.held = threading.Event(), threading.Lock(), threading.Event()
        self.again = threading.RLock()
        self.items: queue.Queue[str] = queue.Queue()
        self.thread = threading.Thread(target=self._work)
        self.pool = ThreadPoolExecutor(1)
        self.free = threading.Semaphore(0)
        self.simple: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.processes = ThreadPool(1)
        self.changed = threading.Condition()

    def __enter__(self) -> Worker:
        self.thread.start()
        self.held.wait()
        self.call = self.pool.submit(self.thread.join)
        self.result = self.processes.apply_async(self.thread.join)
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join()
        self.pool.shutdown()
        self.processes.close()
        self.processes.join()

    def _work(self) -> None:
        with self.lock, self.again:
            self.held.set()
            native(pace[0])
        self.event.set()
        self.items.put("item")
        self.simple.put("item")
        self.free.release()
        with self.changed:
            self.changed.notify_all()

    def acquired(self) -> bool:
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return True
        return False


QUESTIONS: dict[str, Callable[[Worker], Callable[[], Any]]] = {
    "Event.is_set": lambda worker: worker.event.is_set,
    "Thread.is_alive": lambda worker: lambda: not worker.thread.is_alive(),
    "Future.done": lambda worker: worker.call.done,
    "Future.running": lambda worker: lambda: not worker.call.running(),
    "Queue.qsize": lambda worker: worker.items.qsize,
    "Queue.empty": lambda worker: lambda: not worker.items.empty(),
    "Lock.acquire(False)": lambda worker: worker.acquired,
    "Lock.locked": lambda worker: lambda: not worker.lock.locked(),
    **(
        {"RLock.locked": lambda worker: lambda: not worker.again.locked()}
        if hasattr(threading.RLock(), "locked")
        else {}
    ),
    "Semaphore.acquire(False)": lambda worker: lambda: worker.free.acquire(blocking=False),
    "Semaphore.acquire(timeout=0)": lambda worker: lambda: worker.free.acquire(timeout=0),
    "Event.wait(0)": lambda worker: lambda: worker.event.wait(0),
    "Thread.join(0)": lambda worker: lambda: (worker.thread.join(0), not worker.thread.is_alive())[1],
    "Future.result(0)": lambda worker: lambda: in_time(worker.call.result),
    "Future.exception(0)": lambda worker: lambda: in_time(worker.call.exception),
    "futures.wait(0)": lambda worker: lambda: bool(wait([worker.call], timeout=0).done),
    "futures.as_completed(0)": lambda worker: lambda: in_time(lambda limit: [*as_completed([worker.call], limit)]),
    "SimpleQueue.empty": lambda worker: lambda: not worker.simple.empty(),
    "SimpleQueue.qsize": lambda worker: lambda: worker.simple.qsize(),
    "AsyncResult.ready": lambda worker: worker.result.ready,
    "AsyncResult.wait(0)": lambda worker: lambda: (worker.result.wait(0), worker.result.ready())[1],
    "AsyncResult.get(0)": lambda worker: lambda: in_time(worker.result.get),
    "Queue.get(timeout=0)": lambda worker: lambda: in_time(lambda limit: worker.items.get(timeout=limit)),
}


def in_time(wait: Callable[[float], object]) -> bool:
    """Whether what is waited for is there already."""
    try:
        wait(0)
    except (TimeoutError, multiprocessing.TimeoutError, queue.Empty):
        return False
    return True


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("faster", [0.0, 4.0])
def test_polling_code_is_told_what_it_was_told(tmp_path: Path, question: str, faster: float) -> None:
    """A thread that looks again and again whether another one is done finds it done at the same look, at whatever pace."""

    def program() -> Any:
        looks = 0
        with Worker() as worker:
            happened = QUESTIONS[question](worker)
            while not happened():
                looks += 1
                native(pace[1])
            held = [worker.event.is_set(), worker.items.qsize()]
        tool(f"{looks} {held}")
        return looks, held

    pace[:] = [30, 3]
    with record("polls", store=tmp_path) as run:
        seen = program()
    pace[:] = [30 * faster, 3 / (faster or 10)]
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact, session.report.as_dict()


def test_what_the_answer_says_has_happened(tmp_path: Path) -> None:
    """Who was told that an event was set finds what was put down before it, though the replayed thread is slower."""

    def program() -> Any:
        found: list[str] = []
        done = threading.Event()

        def work() -> None:
            native(pace[0])
            found.append("result")
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            native(pace[1])
        seen = found[0]
        thread.join()
        tool(seen)
        return seen

    pace[:] = [10, 2]
    with record("polls", store=tmp_path) as run:
        assert program() == "result"
    pace[:] = [200, 0]
    with replay(run) as session:
        assert program() == "result"
    assert session.report.exact


def test_a_question_of_a_task_is_recorded_too(tmp_path: Path) -> None:
    """A task that looks at a thread's event sees it set at the same look."""

    async def main() -> int:
        done, looks = threading.Event(), 0

        def work() -> None:
            native(pace[0])
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            looks += 1
            native(pace[1])
        thread.join()
        tool(str(looks))
        return looks

    pace[:] = [20, 2]
    with record("polls", store=tmp_path) as run:
        seen = asyncio.run(main())
    pace[:] = [0, 5]
    with replay(run) as session:
        assert asyncio.run(main()) == seen
    assert session.report.exact


LIMITS: dict[str, Callable[[Worker, float], Any]] = {
    "Event.wait": lambda worker, limit: worker.event.wait(limit),
    "Event.wait(timeout=)": lambda worker, limit: worker.event.wait(timeout=limit),
    "Queue.get": lambda worker, limit: worker.items.get(timeout=limit),
    "Future.result": lambda worker, limit: worker.call.result(limit),
    "Future.exception": lambda worker, limit: worker.call.exception(timeout=limit),
    "Condition.wait_for": lambda worker, limit: _notified(worker, limit),
    "Semaphore.acquire": lambda worker, limit: worker.free.acquire(timeout=limit),
    "Thread.join": lambda worker, limit: (worker.thread.join(limit), worker.thread.is_alive()),
    "wait": lambda worker, limit: len(wait([worker.call], timeout=limit).done),
    "Lock.acquire": lambda worker, limit: worker.lock.acquire(timeout=limit) and worker.lock.release(),
}


def _notified(worker: Worker, limit: float) -> bool:
    with worker.changed:
        return worker.changed.wait_for(lambda: worker.event._flag, limit)  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("late", [True, False], ids=["late", "in time"])
@pytest.mark.parametrize("reached", ["before", "after"])
def test_limits_run_out_where_they_did(tmp_path: Path, limit: str, late: bool, reached: str) -> None:
    """A wait with a time limit comes to what it came to, ``True`` or late, whether the other thread is done already or not yet."""

    def program() -> Any:
        with Worker() as worker:
            try:
                native(pace[1])
                seen = LIMITS[limit](worker, 0.01 if late else 60)
            except (queue.Empty, TimeoutError) as error:
                seen = type(error).__name__
        tool(repr(seen))
        return seen

    pace[:] = [200 if late else 20, 0]
    with record("limits", store=tmp_path) as run:
        seen = program()
    pace[:] = [0, 100] if reached == "before" else [100, 0]
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("late", [True, False], ids=["late", "in time"])
def test_the_limit_of_a_map_runs_out_where_it_did(tmp_path: Path, late: bool) -> None:
    """The limit of ``Executor.map`` has run out, or not, where the program asks for the next result, however long it took itself."""

    limit = 0.1 if late else 1.0

    def program() -> list[Any]:
        seen: list[Any] = []
        with ThreadPoolExecutor(3) as pool:
            try:
                for result in pool.map(lambda i: (native(i * pace[0]), tool(str(i)))[1], range(3), timeout=limit):
                    seen.append(result)
                    native(pace[1])
            except TimeoutError:
                seen.append("late")
        tool(repr(seen))
        return seen

    pace[:] = [300, 200] if late else [0, 0]
    with record("limits", store=tmp_path) as run:
        seen = program()
    assert (seen[-1] == "late") == late
    pace[:] = [0, 0] if late else [50, 600]
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact, session.report.as_dict()


def test_futures_that_were_not_waited_for(tmp_path: Path) -> None:
    """``wait`` and ``as_completed`` that the recording had no need of return when their futures are done."""

    def program() -> None:
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(native, pace[0]) for _ in range(2)]
            native(pace[1])
            left = [call for call in calls if call._state != "FINISHED"]  # type: ignore[attr-defined]
            if left:
                assert len(wait(left).done) == len(left)
                assert len(list(as_completed(left))) == len(left)
        tool("done")

    pace[:] = [0, 50]
    with record("waits", store=tmp_path) as run:
        program()
    pace[:] = [50, 0]
    with replay(run) as session:
        program()
    assert session.report.failure is None


@pytest.mark.parametrize("paces", [((0, 30), (30, 0)), ((30, 0), (0, 30))], ids=["one more", "one fewer"])
def test_a_wait_for_all_that_are_not_done_yet(tmp_path: Path, paces: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """An event bus waits for those of its handlers that are not done when somebody looks, if any: the replay may have to wait where the
    recording had not, or need not, and is exact."""

    def program() -> None:
        with ThreadPoolExecutor(2) as pool:
            for number in range(3):
                handler = pool.submit(native, pace[number % 2])
                native(pace[1 - number % 2])
                left = [handler] if handler._state != "FINISHED" else []  # type: ignore[attr-defined]
                if left:
                    assert wait(left, timeout=60).done == {handler}
            tool("done")

    pace[:] = paces[0]
    with record("handlers", store=tmp_path) as run:
        program()
    pace[:] = paces[1]
    with replay(run) as session:
        program()
    assert session.report.exact, session.report.as_dict()


def test_a_thread_that_ends_after_the_block(tmp_path: Path) -> None:
    """A thread that made its last step while the end of the block waited for it makes it in the replay, however slow that is."""

    def program() -> threading.Thread:
        begun = threading.Event()

        def work() -> None:
            tool("early")
            begun.set()
            native(pace[0])
            tool("late")

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        return thread

    pace[:] = [50, 0]
    with record("late", store=tmp_path) as run:
        program()
    pace[:] = [1800, 0]
    with replay(run) as session:
        thread = program()
    assert session.report.exact, session.report.as_dict()
    thread.join()


@pytest.mark.parametrize("first", ["the thread", "the items"])
def test_a_thread_that_gets_nothing_any_more(tmp_path: Path, first: str) -> None:
    """A block that ends by an error which the recording lacks does not wait for what its thread would have done with the next item; that
    error comes out of it, and not that a thread which got its item in another order was too late."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def works() -> None:
        while (job := jobs.get()) is not None:
            tool(job)

    def program(fails: bool) -> None:
        thread = threading.Thread(target=works)
        if first == "the thread" or fails:
            thread.start()
        jobs.put("first")
        if fails:
            raise RuntimeError("that is new")
        jobs.put("second")
        jobs.put(None)
        if first == "the items":
            thread.start()
        thread.join()

    with record("gets", store=tmp_path) as run:
        program(fails=False)
    try:
        with pytest.raises(RuntimeError, match="that is new"), replay(run):
            program(fails=True)
    finally:
        jobs.put(None)


def test_what_the_program_lets_go_of_is_gone(tmp_path: Path) -> None:
    """A replay looks at the stacks of its threads, and keeps nothing alive by that: a cursor is closed when the program drops it."""

    class Row:
        pass

    def hands(todo: queue.SimpleQueue[asyncio.Future[Row] | None]) -> None:
        while (future := todo.get()) is not None:
            row = Row()
            future.get_loop().call_soon_threadsafe(future.set_result, row)
            del row

    async def program() -> int:
        todo: queue.SimpleQueue[asyncio.Future[Row] | None] = queue.SimpleQueue()
        thread = threading.Thread(target=hands, args=(todo,))
        thread.start()
        rows: list[weakref.ref[Row]] = []
        for _ in range(12):
            future = asyncio.get_running_loop().create_future()
            todo.put(future)
            rows.append(weakref.ref(await future))
        todo.put(None)
        thread.join()
        return sum(
            row() is not None for row in rows[:10]
        )  # who has brought the last ones may be about to let go of them

    with record("rows", store=tmp_path) as run:
        asyncio.run(program())
    gc.disable()
    try:
        with replay(run) as session:
            left = asyncio.run(program())
    finally:
        gc.enable()
    assert left == 0
    assert session.report.exact, session.report.as_dict()


def test_what_has_every_attribute_can_be_handed_to_a_thread(tmp_path: Path) -> None:
    """A mock, or a proxy that has whatever it is asked for, is called in a thread like any other function."""

    class Anything:
        def __getattr__(self, name: str) -> Any:
            if name == "__qualname__":
                raise AttributeError(name)
            return Anything()

        def __call__(self, *args: Any) -> str:
            return tool("called")

    async def agent() -> list[str]:
        loop = asyncio.get_running_loop()
        return [
            await anyio.to_thread.run_sync(Anything(), "query"),
            await asyncio.to_thread(Anything()),
            await loop.run_in_executor(None, Anything()),
        ]

    assert same(tmp_path, lambda: asyncio.run(agent())) == ["called"] * 3


@pytest.mark.parametrize("prepares", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_threads_that_share_a_pool_submit_in_any_order(workers: int, prepares: bool) -> None:
    """A replay in which another thread comes first has the pool begin its calls in the recorded order all the same.

    All workers may hold calls that begin later: one of them then begins the one that is next, and what it holds goes back to the queue. So
    the pool has the workers that it had, also if each of them is prepared by the program's own code.
    """

    prepared: list[int] = []

    def program(first: int) -> dict[int, list[Any]]:
        submitted: list[int] = []
        seen: dict[int, list[Any]] = {}

        def submit(me: int) -> None:
            while not submitted and me != first:  # nothing that a replay could see
                pass
            calls = [pool.submit(tool, f"{me} {i}") for i in range(3)]
            submitted.append(me)
            seen[me] = [call.result() for call in calls]

        with ThreadPoolExecutor(workers, "shared", partial(prepared.append, 1) if prepares else None) as pool:
            agents = [threading.Thread(target=submit, args=(me,)) for me in range(2)]
            for agent in agents:
                agent.start()
            for agent in agents:
                agent.join()
            assert len([one for one in threading.enumerate() if one.name.startswith("shared")]) <= workers
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("shared")]
        return seen

    with record("pool") as run:
        seen = program(0)
    for first in (1, 0):
        prepared.clear()
        with replay(run) as session:
            assert program(first) == seen
        assert session.report.exact
        assert len(prepared) <= workers * prepares


def test_a_worker_that_holds_a_call_which_never_began_begins_another_one() -> None:
    """A call that was cancelled in the queue does not keep the only worker of its pool from those that began."""
    usleep = ctypes.CDLL(None).usleep

    def program(late: bool) -> list[Any]:
        submitted = threading.Event()

        def beside() -> list[Any]:
            if late:
                usleep(100_000)
            calls = [pool.submit(tool, "first"), pool.submit(usleep, 100_000)]
            if not late:
                submitted.set()
            return [call.result() for call in calls]

        with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
            results = other.submit(beside)
            if not late:
                submitted.wait()
            cancelled = pool.submit(tool, "never")
            if late:
                usleep(200_000)
            return [cancelled.cancel(), *results.result()]

    with record("pool") as run:
        seen = program(late=False)
    assert seen[0] is True
    with replay(run) as session:
        assert program(late=True) == seen
    assert session.report.exact
