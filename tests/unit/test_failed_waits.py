"""A replay that has failed ends well: whoever waits for another thread waits until that has ended, and never for ever."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

from tracekit import DivergenceError, record, replay, traced_tool

_usleep = ctypes.CDLL(None).usleep
#: Longer than any test: nobody waits that long.
LONG = 600


def native(ms: float) -> None:
    """Sleep where no hook of Python sees it."""
    _usleep(int(ms * 1000))


@traced_tool(side_effect="read_only")
def ask(question: str) -> str:
    return question


class Database:
    """A resource that must not be closed while somebody uses it."""

    def __init__(self) -> None:
        self.closed = False
        self.used_closed: list[bool] = []

    def work(self, over: Callable[[], bool]) -> None:
        """Go on until ``over``, and for a while then, without a step."""
        while not over():
            native(1)
        for _ in range(20):
            native(2)
            self.used_closed.append(self.closed)


Way = Callable[[ThreadPoolExecutor, Callable[[], object], Callable[[], object]], object]


def in_futures(wait_for: Callable[[list[Future[Any]]], object]) -> Way:
    return lambda pool, work, step: wait_for([pool.submit(work), pool.submit(step)])


def polled(futures: list[Future[Any]]) -> None:
    left = set(futures)
    while left:
        _, left = wait(left, timeout=LONG, return_when=FIRST_COMPLETED)


def with_an_event(pool: ThreadPoolExecutor, work: Callable[[], object], step: Callable[[], object]) -> None:
    done = threading.Event()
    pool.submit(lambda: (work(), done.set()))
    pool.submit(step)
    done.wait(LONG)


def with_a_condition(pool: ThreadPoolExecutor, work: Callable[[], object], step: Callable[[], object]) -> None:
    ready, found = threading.Condition(), list[int]()

    def works() -> None:
        work()
        with ready:
            found.append(1)
            ready.notify()

    pool.submit(works)
    pool.submit(step)
    with ready:
        ready.wait_for(lambda: found, LONG)


def with_a_queue(limit: float | None) -> Way:
    def way(pool: ThreadPoolExecutor, work: Callable[[], object], step: Callable[[], object]) -> None:
        items: queue.Queue[int] = queue.Queue()
        pool.submit(lambda: (work(), items.put(1)))
        pool.submit(step)
        items.get(timeout=limit)

    return way


def with_a_thread(limit: float | None) -> Way:
    def way(pool: ThreadPoolExecutor, work: Callable[[], object], step: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        pool.submit(step)
        thread.join(limit)

    return way


def in_a_loop(pool: ThreadPoolExecutor, work: Callable[[], object], step: Callable[[], object]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait([loop.run_in_executor(pool, work), loop.run_in_executor(pool, step)])
        for future in done:
            future.exception()

    asyncio.run(main())


def with_questions(pool: ThreadPoolExecutor, work: Callable[[], object], step: Callable[[], object]) -> None:
    """As frameworks do that wait, on their way out, for those that are not done."""
    futures = [pool.submit(work)]
    try:
        step()
    finally:
        if left := {future for future in futures if not future.done()}:
            wait(left)


WAYS: dict[str, Way] = {
    "wait": in_futures(wait),
    "wait with a limit": in_futures(lambda futures: wait(futures, timeout=LONG)),
    "wait for the first": in_futures(polled),
    "as_completed": in_futures(lambda futures: list(as_completed(futures))),
    "result": in_futures(lambda futures: futures[0].result()),
    "result with a limit": in_futures(lambda futures: futures[0].result(LONG)),
    "exception with a limit": in_futures(lambda futures: futures[0].exception(LONG)),
    "event": with_an_event,
    "condition": with_a_condition,
    "queue": with_a_queue(None),
    "queue with a limit": with_a_queue(LONG),
    "join": with_a_thread(None),
    "join with a limit": with_a_thread(LONG),
    "asyncio.wait": in_a_loop,
    "done": with_questions,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_that_works_is_waited_for(tmp_path: Path, way: str) -> None:
    """A step fails in one thread of a pool while another works with a database: who waits for that one gets the failure when it has
    ended, and closes the database then."""

    def program(question: str, over: Callable[[], bool]) -> Database:
        database, pool = Database(), ThreadPoolExecutor(2)
        pools.append(pool)
        databases.append(database)
        try:
            WAYS[way](pool, lambda: database.work(over), lambda: ask(question))
            ask("after")
        finally:
            database.closed = True
        return database

    pools: list[ThreadPoolExecutor] = []
    databases: list[Database] = []
    with record("works", store=tmp_path) as run:
        program("a", lambda: True)
    with pytest.raises(DivergenceError, match=r"\[divergence\]") as failed, replay(run) as session:
        program("b", lambda: session.report.failure is not None)
    assert failed.value is session.report.failure
    for pool in pools:
        pool.shutdown()
    assert databases[1].used_closed == [False] * 20


@pytest.mark.parametrize("limit", [None, LONG], ids=["without a limit", "with a limit"])
@pytest.mark.parametrize("what", ["item", "event", "future", "condition"])
def test_what_can_not_come_is_not_waited_for(tmp_path: Path, what: str, limit: float | None) -> None:
    """The thread that would have brought it has ended by the failure: who waits for that gets the failure, too, whatever threads that are
    none of the run's do."""

    def program(question: str) -> None:
        items: queue.Queue[int] = queue.Queue()
        event, future, ready = threading.Event(), Future[int](), threading.Condition()

        def brings() -> None:
            ask(question)
            items.put(1)
            event.set()
            future.set_result(1)
            with ready:
                ready.notify()

        thread = threading.Thread(target=brings)
        with ready:
            thread.start()
            if what == "condition":
                ready.wait(limit)
        if what == "item":
            items.get(timeout=limit)
        elif what == "event":
            event.wait(limit)
        elif what == "future":
            future.result(limit)
        thread.join()

    over = threading.Event()
    beside = threading.Thread(target=lambda: [native(1) for _ in iter(over.is_set, True)])
    beside.start()
    try:
        with record("never", store=tmp_path) as run:
            program("a")
        with pytest.raises(DivergenceError, match=r"\[divergence\]"), replay(run):
            program("b")
    finally:
        over.set()
        beside.join()


def test_threads_that_wait_for_one_another_end_one_after_the_other(tmp_path: Path) -> None:
    """Nobody can move: the thread that was started last gets the failure first, and who waits for it waits until it has come to its end."""

    def program(question: str) -> list[str]:
        ended: list[str] = []
        never, inside = threading.Event(), threading.Event()

        def inner() -> None:
            inside.set()
            try:
                never.wait(LONG)
                ask(question)
            finally:
                native(30)
                ended.append("inner")

        def outer() -> None:
            with ThreadPoolExecutor() as pool:
                wait([pool.submit(inner)], timeout=LONG)
                ended.append("waited")

        thread = threading.Thread(target=outer)
        thread.start()
        inside.wait()
        if question == "b":
            with pytest.raises(DivergenceError):
                ask("c")
        else:
            ask("a")
            never.set()
        try:
            thread.join(LONG)
        finally:
            ended.append("main")
        return ended

    with record("one by one", store=tmp_path) as run:
        program("a")
    ended: list[str] = []
    with pytest.raises(DivergenceError), replay(run):
        ended += program("b")
    assert ended == ["inner", "waited", "main"]


def test_a_thread_that_waits_when_the_block_ends(tmp_path: Path) -> None:
    """The program has left a failed replay without a thread that waits: that one gets the failure and ends, its time limit or not."""
    threads: list[threading.Thread] = []

    def program(question: str) -> None:
        ready, waiting, over = threading.Condition(), list[int](), list[int]()

        def waits(limit: float | None) -> None:
            with ready:
                waiting.append(1)
                while not over:
                    ready.wait(limit)

        threads[:] = [threading.Thread(target=waits, args=(limit,)) for limit in (None, LONG)]
        for thread in threads:
            thread.start()
        both = False
        while not both:
            native(1)
            with ready:  # so each that is counted waits
                both = len(waiting) == 2
        ask(question)
        with ready:
            over.append(1)
            ready.notify_all()
        for thread in threads:
            thread.join()

    with record("left", store=tmp_path) as run:
        program("a")
    with pytest.raises(DivergenceError), replay(run):
        program("b")
    for thread in threads:
        thread.join()
