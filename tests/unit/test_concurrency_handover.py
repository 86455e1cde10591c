"""What threads hand to one another: a replay sees the same calls done, the same items taken, the same calls never begun."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.depth import examples
from tests.support.processes import python
from tracekit import DivergenceError, record, replay, traced_tool
from tracekit._capture import timers
from tracekit.integration import Integration, QueueClass, discover

REPEATED = examples(40)
usleep = ctypes.CDLL(None).usleep


@traced_tool(side_effect="read_only")
def ask(what: object) -> object:
    time.sleep(random.random() / 500)
    return what


def again_and_again(tmp_path: Path, program: Callable[[], Any]) -> None:
    times(REPEATED, tmp_path, program)


def times(repeated: int, tmp_path: Path, program: Callable[[], Any]) -> None:
    """Record and replay ``program``; what it saw must be the same each time, and the report exact."""
    for _ in range(repeated):
        with record("handover", store=tmp_path) as run:
            seen = program()
        with replay(run) as session:
            assert program() == seen
        assert session.report.failure is None
        assert session.report.unconsumed == []


def test_the_first_completed_of_threaded_calls(tmp_path: Path) -> None:
    """``asyncio.wait(FIRST_COMPLETED)`` over ``to_thread`` gives the set that was recorded, of one or of several."""

    async def main() -> list[Any]:
        seen = []
        for _ in range(5):
            tasks = [asyncio.create_task(asyncio.to_thread(ask, i)) for i in range(4)]
            done, left = await asyncio.wait(tasks, return_when=FIRST_COMPLETED)
            seen.append(sorted(task.result() for task in done))
            await asyncio.gather(*left)
        return seen

    again_and_again(tmp_path, lambda: asyncio.run(main()))


def test_a_group_that_fails_with_calls_in_threads(tmp_path: Path) -> None:
    """One task fails and its siblings are cancelled, asleep or in a thread: begun calls go on, the others never begin."""

    async def child(i: int) -> object:
        await asyncio.sleep(random.random() / 200)
        if i == 3:
            raise ValueError("boom")
        return await asyncio.to_thread(ask, f"b{i}")

    async def main() -> None:
        for _ in range(3):
            try:
                async with asyncio.TaskGroup() as group:
                    for i in range(5):
                        group.create_task(child(i))
            except* ValueError:
                pass

    again_and_again(tmp_path, lambda: asyncio.run(main()))


def test_a_deadline_on_a_threaded_call(tmp_path: Path) -> None:
    """Whether the answer or the deadline reached the loop first is as it was."""

    async def main() -> list[Any]:
        seen: list[Any] = []
        for i in range(5):
            try:
                seen.append(await asyncio.wait_for(asyncio.to_thread(ask, i), random.random() / 250))
            except TimeoutError:
                seen.append("late")
        return seen

    again_and_again(tmp_path, lambda: asyncio.run(main()))


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue])
def test_workers_that_share_a_queue(tmp_path: Path, kind: Any) -> None:
    """In a replay, each of several threads that read one queue takes the same items as in the recording."""

    def program() -> Any:
        items: Any = kind()
        results: queue.Queue[Any] = queue.Queue(maxsize=2)
        by: dict[int, int] = {}

        def work(me: int) -> None:
            while (i := items.get()) < 99:
                by[i] = me
                results.put(ask(i))

        workers = [threading.Thread(target=work, args=(me,)) for me in range(3)]
        for worker in workers:
            worker.start()
        for i in range(9):
            items.put(i)
        got = [results.get(timeout=30) for _ in range(9)]
        for _ in workers:
            items.put(99)
        for worker in workers:
            worker.join()
        return by, got

    again_and_again(tmp_path, program)


#: A package that runs the program's functions in threads of its own, as task queues do.
_PACKAGE = """
import queue, threading

class Workers:
    def __init__(self, kind, function, count):
        self.items, self.function = kind(), function
        self.threads = [threading.Thread(target=self.work) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def work(self):
        while True:
            try:
                number, *given = self.items.get(timeout=0.002)
            except queue.Empty:
                continue
            if not given:
                return
            self.function(*given)

    def send(self, number, *given):
        self.items.put((number, *given))

    def stop(self):
        for _ in self.threads:
            self.send(99)
        for thread in self.threads:
            thread.join()
"""


@pytest.fixture
def package(tmp_path: Path) -> Any:
    names: dict[str, Any] = {"__name__": "jobs.workers"}
    exec(compile(_PACKAGE, str(tmp_path / "site-packages" / "jobs" / "workers.py"), "exec"), names)
    return names["Workers"]


@pytest.mark.parametrize("kind", [queue.Queue, queue.PriorityQueue, queue.SimpleQueue])
def test_workers_of_a_package(tmp_path: Path, package: Any, kind: Any) -> None:
    """The threads of a package that calls the program's functions get the work that they got, though the program has no queue itself."""

    def program() -> Any:
        seen: list[Any] = []
        workers = package(kind, lambda i: seen.append((ask(i), ask("again"))), 3)
        for i in range(6):
            workers.send(i, i)
        workers.stop()
        return sorted(seen)

    times(6, tmp_path, program)


def test_a_pool_of_threads_of_multiprocessing(tmp_path: Path) -> None:
    """Each of its threads gets the calls that it got, and whoever takes results as they come gets them in that order."""

    def program() -> Any:
        with ThreadPool(3) as pool:
            every = pool.map(lambda i: (ask(i), random.random()), range(4), chunksize=1)
            return every, list(pool.imap_unordered(ask, range(4))), pool.apply(ask, ("one",))

    times(6, tmp_path, program)


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_package_hands_over_once_a_process(tmp_path: Path, package: Any, recorded: bool) -> None:
    """What a package moves between its own threads may be there in a recording or not, and in its replay or not: both are exact."""

    def program(cold: bool) -> Any:
        if cold:
            beside = package(queue.Queue, lambda i: None, 2)
            beside.send(0, 0)
        seen = [ask(1)]
        if cold:
            beside.stop()
        return [*seen, ask(2)]

    with record("handover", store=tmp_path) as run:
        program(recorded)
    with replay(run) as session:
        program(not recorded)
    assert session.report.exact, session.report.as_dict()


def test_a_clock_that_a_call_reads_which_the_recording_lacks(tmp_path: Path) -> None:
    """A call in a thread that only a replay makes may read a clock, also where the lane that makes it has nothing but long texts in
    the log, which its threads have passed to a tool."""

    @traced_tool(side_effect="read_only")
    def total(texts: list[str]) -> int:
        return sum(map(len, texts))

    def program(cold: bool) -> list[int]:
        found: list[int] = []
        if cold:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(time.time).result()
        for name in "ab":
            texts = [f"{name}{number:02}{'x' * 1100}" for number in range(12)]
            thread = threading.Thread(target=lambda texts=texts: found.append(total(texts)))
            thread.start()
            thread.join()
        return found

    with record("handover", store=tmp_path) as run:
        program(False)
    with replay(run) as session:
        program(True)
    assert session.report.exact, session.report.as_dict()


def test_a_pool_that_one_thread_has_is_no_event(tmp_path: Path) -> None:
    """A package that keeps its connections in a queue hands nothing over: nothing of that is on the log."""
    names: dict[str, Any] = {"__name__": "pool.connections"}
    code = "import queue\nidle = queue.LifoQueue()\nidle.put(1)\ndef use():\n    idle.put(idle.get(block=False))\n"
    exec(compile(code, str(tmp_path / "site-packages" / "pool" / "connections.py"), "exec"), names)

    def program() -> object:
        names["use"]()
        return ask(1)

    with record("handover", store=tmp_path) as run:
        program()
    assert "queue." not in Path(run.path).read_text()
    with replay(run) as session:
        program()
    assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("kind", [queue.Queue, queue.SimpleQueue])
def test_a_queue_that_is_looked_into(tmp_path: Path, kind: Any) -> None:
    """``get_nowait`` and ``get(timeout=)`` find an item, or none, where they did."""

    def program() -> list[Any]:
        items: Any = kind()
        thread = threading.Thread(target=lambda: [items.put(ask(i)) for i in range(3)])
        thread.start()
        seen: list[Any] = []
        while len([item for item in seen if item is not None]) < 3:
            for look in (items.get_nowait, lambda: items.get(timeout=0.001)):
                try:
                    seen.append(look())
                except queue.Empty:
                    seen.append(None)
        thread.join()
        return seen

    again_and_again(tmp_path, program)


def test_futures_that_are_waited_for(tmp_path: Path) -> None:
    """``wait`` and ``as_completed`` give what they gave, and a call that was cancelled in time never begins."""

    def program() -> list[Any]:
        seen: list[Any] = []
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(ask, i) for i in range(4)]
            done, left = wait(set(calls), return_when=FIRST_COMPLETED)
            seen.append(([call.result() for call in done], [call.cancel() for call in left]))
            calls = [pool.submit(ask, i) for i in range(6)]
            for call in as_completed(calls):
                seen.append(call.result())
                seen.append([other.cancel() for other in calls])
                break
            seen.append([call.cancelled() for call in calls])
        return seen

    again_and_again(tmp_path, program)


def test_the_functions_of_the_standard_library_are_as_before(tmp_path: Path) -> None:
    """After the last run ``wait``, ``as_completed`` and the queues are what they were."""

    def found() -> list[Any]:
        simple = [vars(queue.SimpleQueue)[name] for name in ("get", "get_nowait", "put", "put_nowait")]
        return [wait.__code__, as_completed.__code__, queue.Queue.get, queue.Queue._get, queue.Queue.put, *simple]

    before = found()
    with record("handover", store=tmp_path):
        assert all(now is not then for now, then in zip(found(), before, strict=True))
    assert found() == before
    with ThreadPoolExecutor(1) as pool:
        assert [call.result() for call in as_completed([pool.submit(int, "4")])] == [4]


def test_threads_that_race_are_named_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where threads share something that is not recorded the message says so, once, and only the block raises the failure."""
    first = ["a b"]

    def program() -> None:
        threads = [threading.Thread(target=lambda: ask(first[0])) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    before = threading.excepthook
    with record("race", store=tmp_path) as run:
        program()
    first[0] = "b a"  # what they share came about in another order
    with pytest.raises(DivergenceError, match="thread order may differ"), replay(run):
        program()
    said = capsys.readouterr().err
    assert said.startswith("tracekit: the replay has failed: [divergence]")
    assert said.count("[divergence]") == 1
    assert "Traceback" not in said
    assert threading.excepthook is before


def test_a_changed_prompt_of_a_thread_is_no_matter_of_order(tmp_path: Path) -> None:
    """The same step with another input is what changed: no order of threads is blamed, and no other step is offered."""
    prompt = ["where is order 1042?"]

    def program() -> None:
        threads = [threading.Thread(target=ask, args=(f"{prompt[0]} {n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with record("prompts", store=tmp_path) as run:
        program()
    prompt[0] = "where is the order 1042, please?"
    with pytest.raises(DivergenceError) as failed, replay(run):
        program()
    assert "please" in str(failed.value)
    assert "thread order" not in str(failed.value)
    assert "nearest recorded step" not in str(failed.value)


COLLECTED = """\
import gc, queue, sys, threading, weakref
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="read_only")
def noted(number): return number

def drained(items):
    try:
        while True: items.get(block=False)
    except queue.Empty: pass

class Pool:
    def __init__(self):
        self.me = self  # so that it is collected when the interpreter likes
        self.items = queue.LifoQueue()
        for number in range(2): self.items.put(number)
        weakref.finalize(self, drained, self.items)

class Noting:
    def __init__(self):
        self.me = self
        weakref.finalize(self, noted, 1)

def work(collect_after):
    gc.set_threshold(collect_after)
    line, seen = queue.Queue(), []
    def other():
        for _ in range(100):
            seen.append(line.get())
            Pool()
    thread = threading.Thread(target=other)
    thread.start()
    for number in range(100):
        Pool()
        line.put(number)
    thread.join()
    gc.set_threshold(700)
    return seen

# First: once a process has replayed, a finalizer that comes in a thread of no run is refused.
with record("notes", store=sys.argv[1]):
    gc.set_threshold(13)
    for number in range(300):
        Noting()
        noted(number)
    gc.collect()
gc.set_threshold(700)
with record("pools", store=sys.argv[1]) as run:
    seen = work(13)
with replay(run) as session:
    assert work(37) == seen
assert session.report.exact, session.report
print("whole")
"""


def test_what_is_collected_while_threads_hand_over(tmp_path: Path) -> None:
    """A pool of connections that is collected drains its queue, at any moment: that is no event, a replay in which it happens elsewhere is
    exact, and the interpreter survives it (3.11 collects in the middle of what sets a context variable)."""
    done = python("-c", COLLECTED, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")


class Stream:
    """A queue as a library makes one for itself: of a list and a semaphore; who looks for an item leaves it there."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._count = threading.Condition()

    def push(self, item: Any) -> None:
        with self._count:
            self._items.append(item)
            self._count.notify_all()

    def next(self, block: bool = False, timeout: float | None = None) -> Any:
        with self._count:
            if block:
                self._count.wait_for(lambda: self._items, timeout)
            if not self._items:
                raise queue.Empty
            return self._items.popleft()

    def peek(self) -> None:
        with self._count:
            while not self._items:
                self._count.wait()


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Stream]:
    """The class as one of a library that an integration names."""
    module: Any = ModuleType("acme_streams")
    module.Stream = kind = type("Stream", (), {**vars(Stream), "__doc__": None})
    monkeypatch.setitem(sys.modules, "acme_streams", module)
    described = QueueClass("acme_streams", "Stream", put="push", get="next", wait="peek")
    monkeypatch.setitem(discover(), "acme", Integration("acme", queues=[described]))
    timers.hooks.declared_anew()  # an earlier test may have begun a run
    return kind


def test_a_queue_of_a_library(tmp_path: Path, stream: Callable[[], Stream]) -> None:
    """Who looks for an item finds it where it did, though in the replay another thread could have taken it by then."""

    def look(items: Stream) -> str:
        usleep(30_000)  # below Python: no replay knows of it
        items.peek()
        return "seen"

    def program() -> Any:
        items = stream()
        with ThreadPoolExecutor(2) as pool:
            looking = pool.submit(look, items)
            items.push("a")
            time.sleep(0.2)  # which a replay does not wait
            found = [items.next()]
            with pytest.raises(queue.Empty):
                items.next()
            return found, looking.result()

    times(2, tmp_path, program)


def test_workers_of_a_library_that_has_queues_of_its_own(tmp_path: Path, stream: Callable[[], Stream]) -> None:
    """Which worker takes which item, and in which order they hand on what they made."""

    def work(given: Stream, made: Stream) -> None:
        while (item := given.next(block=True)) is not None:
            made.push(ask(item))

    def program() -> Any:
        given, made = stream(), stream()
        workers = [threading.Thread(target=work, args=(given, made)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for item in [*range(8), None, None, None]:
            given.push(item)
        found = []
        for _ in range(8):
            made.peek()
            found.append(made.next())
        for worker in workers:
            worker.join()
        return found

    times(5, tmp_path, program)


def test_a_call_that_a_thread_hands_to_a_loop_can_be_cancelled_as_without_a_run(tmp_path: Path) -> None:
    """What ``call_soon_threadsafe`` returns in another thread is of the loop's own kind: from Python 3.14 on, one that any thread
    may cancel; cancelled before the loop comes to it, it is not called."""

    async def program() -> tuple[type, list[str]]:
        loop, called, over = asyncio.get_running_loop(), list[str](), asyncio.Event()

        def hand_over() -> type:
            handle = loop.call_soon_threadsafe(called.append, "cancelled")
            handle.cancel()
            loop.call_soon_threadsafe(over.set)
            return type(handle)

        with ThreadPoolExecutor() as pool:
            kind = pool.submit(hand_over).result()  # the loop waits as well
        await over.wait()
        return kind, called

    bare = asyncio.run(program())
    assert bare[1] == []
    with record("test", store=tmp_path) as run:
        assert asyncio.run(program()) == bare
    with replay(run) as session:
        assert asyncio.run(program()) == bare
    assert session.report.exact


_CONNECTION = """
import asyncio, queue, threading

class Connection:
    def __init__(self):
        self.todo = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while (job := self.todo.get()) is not None:
            future, function = job
            future.get_loop().call_soon_threadsafe(future.set_result, function())

    async def call(self, function):
        future = asyncio.get_running_loop().create_future()
        self.todo.put((future, function))
        return await future

    def close(self):
        self.todo.put(None)
        self.thread.join()
"""


@pytest.mark.parametrize("needed", [False, True], ids=["ends last", "is waited for"])
def test_what_calls_in_threads_of_a_package_share(tmp_path: Path, needed: bool) -> None:
    """Each connection to a database has a thread: a call whose result came last does its work last, though it had begun first.

    Unless another one waits for that work in native code: the work had been done, and only its result came last.
    """
    names: dict[str, Any] = {"__name__": "database.connections"}
    exec(compile(_CONNECTION, str(tmp_path / "site-packages" / "database" / "connections.py"), "exec"), names)

    async def program(recorded: bool) -> Any:
        table: list[str] = []
        begun, ended = [], []

        def first() -> str:
            begun.append(True)
            if needed:
                table.append("first")
            while recorded and not ended:
                usleep(1000)
            if not needed:
                table.append("first")
            return "done"

        def second() -> str:
            while recorded and not begun:
                usleep(1000)
            for _ in range(0 if recorded else 1_000_000):  # slower now
                pass
            for _ in range(100):
                if table or not needed:
                    break
                usleep(50_000)
            table.append("second")
            return "done"

        connections = [names["Connection"]() for _ in range(2)]
        earlier = asyncio.create_task(connections[0].call(first))
        await asyncio.sleep(0)
        ask(await connections[1].call(second))
        ended.append(True)
        ask(await earlier)
        for connection in connections:
            connection.close()
        return table

    with record("shared", store=tmp_path) as run:
        found = asyncio.run(program(True))
    with replay(run) as session:
        assert asyncio.run(program(False)) == found == (["first", "second"] if needed else ["second", "first"])
    assert session.report.exact, session.report.as_dict()


class Latest(queue.Queue[int]):
    """A queue of the program's own, by the methods that ``queue`` has for that."""

    def _init(self, maxsize: int) -> None:
        self.items: set[int] = set()

    def _qsize(self) -> int:
        return len(self.items)

    def _put(self, item: int) -> None:
        self.items.add(item)

    def _get(self) -> int:
        found = max(self.items)
        self.items.remove(found)
        return found


class Doubled(queue.LifoQueue[int]):
    """One that changes what is put and leaves the rest to the library's."""

    def _put(self, item: int) -> None:
        super()._put(2 * item)


@pytest.mark.parametrize("kind", [Latest, Doubled])
def test_queues_of_the_programs_own(tmp_path: Path, kind: type[queue.Queue[int]]) -> None:
    """A class derived from ``queue.Queue`` that keeps its items in its own way hands them over as recorded, and is as it was afterwards."""

    def program() -> list[list[int]]:
        items, got = kind(), [list[int]() for _ in range(3)]

        def worker(mine: list[int]) -> None:
            while (item := items.get()) >= 0:
                mine.append(item)
                ask(item)

        threads = [threading.Thread(target=worker, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for n in range(9):
            items.put(n)
            ask(100 + n)
        for n in range(len(threads)):
            items.put(-1 - n)
        for thread in threads:
            thread.join()
        return got

    before = {name: vars(kind).get(name) for name in ("_get", "_put")}
    times(3, tmp_path, program)
    assert {name: vars(kind).get(name) for name in before} == before


def test_a_call_that_a_thread_gives_up_before_its_loop_takes_it(tmp_path: Path) -> None:
    """The task begins and is cancelled, as it was, although in the replay the thread goes on to its next call only later."""

    @traced_tool(side_effect="read_only")
    async def fetch(what: str) -> str:
        await asyncio.sleep(0)
        return what

    async def main(busy: int, pause: int) -> list[str]:
        loop = asyncio.get_running_loop()

        def work() -> list[str]:
            first = asyncio.run_coroutine_threadsafe(fetch("first"), loop).result()
            loop.call_soon_threadsafe(usleep, busy)
            usleep(20_000)
            assert asyncio.run_coroutine_threadsafe(fetch("given up"), loop).cancel()
            usleep(pause)
            return [first, asyncio.run_coroutine_threadsafe(fetch("last"), loop).result()]

        return await asyncio.to_thread(work)

    with record("handover", store=tmp_path) as run:
        seen = asyncio.run(main(200_000, 0))
    with replay(run) as session:
        assert asyncio.run(main(0, 100_000)) == seen
    assert session.report.exact


@pytest.mark.parametrize("in_time", [True, False])
def test_a_thread_gives_up_what_its_loop_has_as_late_as_it_did(tmp_path: Path, in_time: bool) -> None:
    """Whether ``cancel()`` came before the result does not depend on how fast the loop is in the replay."""

    @traced_tool(side_effect="read_only")
    async def fetch(what: str) -> str:
        await asyncio.sleep(0)
        return what

    async def main(busy: int) -> list[Any]:
        loop = asyncio.get_running_loop()

        async def one() -> str:
            answer = await fetch("one")
            loop.call_soon(usleep, busy)  # before whoever waits for the task gets its result
            return answer

        def work() -> list[Any]:
            future = asyncio.run_coroutine_threadsafe(one(), loop)
            usleep(50_000)
            seen = [future.cancel(), future.done(), future.cancelled(), future.cancel()]
            return [*seen, asyncio.run_coroutine_threadsafe(fetch("last"), loop).result()]

        return await asyncio.to_thread(work)

    slow, fast = 200_000, 0
    with record("handover", store=tmp_path) as run:
        seen = asyncio.run(main(slow if in_time else fast))
    assert seen == [in_time, True, in_time, in_time, "last"]
    with replay(run) as session:
        assert asyncio.run(main(fast if in_time else slow)) == seen
    assert session.report.exact
