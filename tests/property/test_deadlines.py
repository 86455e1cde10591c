"""Whatever arms a deadline, it runs out in a replay as it did, and the program sees the same instants: compared by value."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import importlib.util
import itertools
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest
import tenacity

from tests.support.generated import loops
from tracekit import record, replay, traced_tool
from tracekit.errors import TraceExhaustedError

_serial = itertools.count()
_usleep = ctypes.CDLL(None).usleep
#: Seconds: of the deadline, and of the answer that it is for.
TOO_SHORT, LONG_ENOUGH = (0.01, 0.1), (30.0, 0.005)


@traced_tool(side_effect="read_only")
async def fetch(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return next(_serial)


@traced_tool(side_effect="read_only")
def look(seconds: float) -> int:
    _usleep(int(seconds * 1_000_000))
    return next(_serial)


def now() -> list[float]:
    """What the program's clocks say: the instant after a deadline is the recorded one."""
    return [asyncio.get_running_loop().time(), time.monotonic(), time.time()]


# -- tasks ---------------------------------------------------------------------------------------------------------------


async def timeout(limit: float, answer: float) -> Any:
    begun = now()
    try:
        async with asyncio.timeout(limit) as scope:
            return [begun, scope.when(), await fetch(answer), now()]
    except TimeoutError:
        return [begun, scope.when(), scope.expired(), now(), await fetch(0)]


async def timeout_at(limit: float, answer: float) -> Any:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(loop.time() + limit) as scope:
            return [scope.when(), await fetch(answer), now()]
    except TimeoutError:
        return [scope.when(), scope.expired(), now(), await fetch(0)]


async def rescheduled(limit: float, answer: float) -> Any:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as scope:
            await fetch(0)
            scope.reschedule(loop.time() + limit)
            return [scope.when(), await fetch(answer), now()]
    except TimeoutError:
        return [scope.when(), scope.expired(), now(), await fetch(0)]


async def wait_for(limit: float, answer: float) -> Any:
    try:
        return [await asyncio.wait_for(fetch(answer), limit), now()]
    except TimeoutError:
        return ["late", now(), await fetch(0)]


async def wait_for_an_event(limit: float, answer: float) -> Any:
    event = asyncio.Event()

    async def setter() -> None:
        await fetch(answer)
        event.set()

    task = asyncio.create_task(setter())
    try:
        seen: Any = await asyncio.wait_for(event.wait(), limit)
    except TimeoutError:
        seen = ["late", event.is_set()]
    return [seen, now(), await task, await fetch(0)]


async def wait(limit: float, answer: float) -> Any:
    tasks = [asyncio.create_task(fetch(answer)), asyncio.create_task(fetch(answer / 2))]
    done, pending = await asyncio.wait(tasks, timeout=limit)
    return [len(done), len(pending), now(), await asyncio.gather(*tasks), now()]


async def as_completed(limit: float, answer: float) -> Any:
    tasks = [asyncio.create_task(fetch(answer)), asyncio.create_task(fetch(0))]
    seen: list[Any] = []
    try:
        for each in asyncio.as_completed(tasks, timeout=limit):
            seen.append(await each)
    except TimeoutError:
        seen.append("late")
    return [seen, now(), await asyncio.gather(*tasks)]


async def fail_after(limit: float, answer: float) -> Any:
    try:
        with anyio.fail_after(limit) as scope:
            return [scope.deadline, await fetch(answer), now(), scope.cancel_called]
    except TimeoutError:
        return [scope.deadline, scope.cancel_called, scope.cancelled_caught, now(), await fetch(0)]


async def move_on_after(limit: float, answer: float) -> Any:
    seen: list[Any] = []
    with anyio.move_on_after(limit) as scope:
        seen.append(anyio.current_effective_deadline())
        seen.append(await fetch(answer))
    return [
        seen,
        scope.deadline,
        scope.cancel_called,
        scope.cancelled_caught,
        anyio.current_time(),
        now(),
        await fetch(0),
    ]


async def move_on_in_a_group(limit: float, answer: float) -> Any:
    seen: list[Any] = []

    async def part(n: int) -> None:
        try:
            seen.append([n, await fetch(answer + n / 100)])
        except asyncio.CancelledError:
            seen.append([n, "cancelled", time.monotonic()])
            raise

    with anyio.move_on_after(limit) as scope:
        async with anyio.create_task_group() as group:
            for n in range(3):
                group.start_soon(part, n)
    return [seen, scope.cancelled_caught, now(), await fetch(0)]


async def polling_deadline(limit: float, answer: float) -> Any:
    """As SDKs do it: look, sleep, look, until the clock is past the deadline."""
    task, deadline, looks = asyncio.create_task(fetch(answer)), time.monotonic() + limit, 0
    while not task.done() and time.monotonic() < deadline:
        looks += 1
        await asyncio.sleep(0.002)
    return [looks, task.done(), now(), await task]


async def stop_after_delay(limit: float, answer: float) -> Any:
    attempts: list[Any] = []

    @tenacity.retry(stop=tenacity.stop_after_delay(limit), wait=tenacity.wait_fixed(0.002), reraise=True)
    async def attempt() -> Any:
        attempts.append(await fetch(0.001))
        if limit < 1 or len(attempts) < 3:
            raise ConnectionError(len(attempts))
        return "answered"

    try:
        seen = await attempt()
    except ConnectionError as error:
        seen = str(error)
    return [seen, attempts, now()]


async def together(limit: float, answer: float) -> Any:
    """Deadlines within a millisecond of one another: which ran out before which."""
    order: list[int] = []

    async def limited(n: int) -> Any:
        try:
            async with asyncio.timeout(limit + (7 * n % 24) / 24_000):
                return await fetch(answer)
        except TimeoutError:
            order.append(n)
            return [n, time.monotonic()]

    seen = await asyncio.gather(*(limited(n) for n in range(24)))
    return [order, seen, await fetch(0)]


TASKS = [
    timeout, timeout_at, rescheduled, wait_for, wait_for_an_event, wait, as_completed, fail_after, move_on_after,
    move_on_in_a_group, polling_deadline, stop_after_delay, together,
]  # fmt: skip


def same(program: Callable[[], Any]) -> Any:
    """What ``program`` saw when it was recorded, which is what it sees in an exact replay."""
    with record("deadline", durability="none") as run:
        first = program()
    before = next(_serial)
    with replay(run) as session:
        second = program()
    assert second == first
    assert session.report.exact, session.report.as_dict()
    assert next(_serial) == before + 1
    return first


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("limit", "answer"), [TOO_SHORT, LONG_ENOUGH], ids=["runs out", "in time"])
@pytest.mark.parametrize("api", TASKS, ids=lambda api: api.__name__)
def test_of_tasks(api: Callable[[float, float], Any], limit: float, answer: float, loop: str) -> None:
    """A deadline of asyncio, anyio or a library: what came of it, and the instants seen around it, are the recorded ones."""

    def program() -> Any:
        with asyncio.Runner(loop_factory=loops()[loop]) as runner:
            return runner.run(api(limit, answer))

    same(program)


# -- a library's calls in threads ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module of a library that does something in a thread."""
    path = tmp_path_factory.mktemp("library") / "site-packages" / "hopping.py"
    path.parent.mkdir()
    path.write_text(
        "import asyncio\nimport anyio.to_thread\n\n"
        "async def plainly(call):\n    return await asyncio.to_thread(call)\n\n"
        "async def with_anyio(call):\n    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)\n\n"
        "async def staying(call):\n    return await anyio.to_thread.run_sync(call)\n"
    )
    spec = importlib.util.spec_from_file_location("hopping", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Ask = Callable[[str], Coroutine[Any, Any, Any]]


async def hop_timeout(limit: float, ask: Ask) -> Any:
    seen: list[Any] = []
    for each in "abc":
        try:
            async with asyncio.timeout(limit):
                seen.append(await ask(each))
        except TimeoutError:
            seen.append("late")
    return seen


async def hop_wait_for(limit: float, ask: Ask) -> Any:
    return await asyncio.gather(*(asyncio.wait_for(ask(each), limit) for each in "abc"), return_exceptions=True)


async def hop_wait(limit: float, ask: Ask) -> Any:
    tasks = [asyncio.create_task(ask(each)) for each in "abc"]
    _, pending = await asyncio.wait(tasks, timeout=limit)
    for task in pending:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def hop_move_on_after(limit: float, ask: Ask) -> Any:
    seen: list[Any] = []
    for each in "abc":
        with anyio.move_on_after(limit) as scope:
            seen.append(await ask(each))
        seen.append(scope.cancelled_caught)
    return seen


HOPS = [hop_timeout, hop_wait_for, hop_wait, hop_move_on_after]


def _in_thread(
    library: Any, how: str, loop: str, api: Any, block: Callable[[], Any], limit: float
) -> Callable[[], Any]:
    async def ask(name: str) -> Any:
        await getattr(library, how)(block)
        return [name, await fetch(0)]

    async def main() -> Any:
        return [repr(await api(limit, ask)), await fetch(0)]

    def program() -> Any:
        with asyncio.Runner(loop_factory=loops()[loop]) as runner:
            return runner.run(main())

    return program


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["plainly", "with_anyio", "staying"])
@pytest.mark.parametrize("api", HOPS, ids=lambda api: api.__name__)
def test_that_comes_while_a_library_works_in_a_thread(library: Any, api: Any, how: str, loop: str) -> None:
    """A program that was cut off in a library's call in a thread gets no further in a replay, in which the call takes no time."""
    pauses = [50_000]  # microseconds; below Python, where nothing is captured
    program = _in_thread(library, how, loop, api, lambda: _usleep(pauses[0]), 0.01)
    with record("cut off", durability="none") as run:
        first = program()
    assert "late" in first[0] or "Error" in first[0] or "True" in first[0]
    pauses[0] = 0
    before = next(_serial)
    with replay(run) as session:
        assert program() == first
    assert session.report.exact, session.report.as_dict()
    assert next(_serial) == before + 1


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["plainly", "with_anyio", "staying"])
@pytest.mark.parametrize("api", HOPS, ids=lambda api: api.__name__)
def test_that_a_library_in_a_thread_keeps(library: Any, api: Any, how: str, loop: str) -> None:
    """A limit that a library's call in a thread keeps changes nothing."""
    first = same(_in_thread(library, how, loop, api, lambda: None, 30.0))
    assert "late" not in first[0]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", ["plainly", "with_anyio", "staying"])
@pytest.mark.parametrize("pauses", [(0, 50_000), (50_000, 0)], ids=["slower", "faster"])
def test_that_a_timer_meets_a_library_in_a_thread_where_it_met_it(
    library: Any, pauses: tuple[int, int], how: str, loop: str
) -> None:
    """What a library does in a thread has ended, or has not, when a timer of another task fires, as in the recording."""
    pause = [0]

    async def main() -> Any:
        seen: list[Any] = []

        async def ask() -> None:
            try:
                for each in "ab":
                    await getattr(library, how)(lambda: _usleep(pause[0]))
                    seen.append(each)
                await asyncio.sleep(60)
            finally:
                seen.append("end")

        task = asyncio.create_task(ask())
        await asyncio.sleep(0.02)
        seen.append(await fetch(0))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return [*seen, await fetch(0)]

    def program() -> Any:
        with asyncio.Runner(loop_factory=loops()[loop]) as runner:
            return runner.run(main())

    pause[0] = pauses[0]
    with record("met", durability="none") as run:
        first = program()
    pause[0] = pauses[1]
    with replay(run) as session:
        assert program() == first
    assert session.report.exact, session.report.as_dict()


def test_that_comes_while_a_library_does_what_it_does_once(library: Any) -> None:
    """Where the recording was cut off in a call that a library had made before in the replaying process, the error says so."""
    cold = [True]

    async def main() -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                if cold:
                    await library.plainly(lambda: _usleep(50_000))
                await fetch(0)

    with record("cold", durability="none") as run:
        asyncio.run(main())
    cold.clear()
    with pytest.raises(TraceExhaustedError, match="which a library called in a thread") as caught, replay(run):
        asyncio.run(main())
    assert "thread order" not in str(caught.value)
    assert "changed" not in str(caught.value)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_clock_in_a_callback_of_a_timer(loop: str) -> None:
    """What the loop's clock says when a timer's callback looks at it is the recorded instant."""

    async def main() -> Any:
        running = asyncio.get_running_loop()
        told = running.create_future()
        running.call_later(0.002, lambda: told.set_result(running.time()))
        return [await told, await fetch(0)]

    def program() -> Any:
        with asyncio.Runner(loop_factory=loops()[loop]) as runner:
            return runner.run(main())

    same(program)


def test_a_timers_handle_shows_what_was_armed() -> None:
    """Whoever looks at the handle of a timer finds the callback and arguments that he gave, in a recording and in its replay."""

    async def main() -> Any:
        running, came = asyncio.get_running_loop(), asyncio.Event()

        def callback(*args: Any) -> None:
            came.set()

        handles = [running.call_later(0.001, callback, 1, 2), running.call_at(running.time() + 60, callback, 3)]
        seen = [handle._callback is callback and handle._args for handle in handles]  # type: ignore[attr-defined]
        await came.wait()
        handles[1].cancel()
        return [seen, await fetch(0)]

    assert same(lambda: asyncio.run(main()))[0] == [(1, 2), (3,)]


# -- threads -------------------------------------------------------------------------------------------------------------


def thread_event(limit: float, answer: float) -> Any:
    event = threading.Event()
    return _limited(lambda: event.set(), answer, lambda: event.wait(limit))


def thread_queue(limit: float, answer: float) -> Any:
    items: queue.Queue[Any] = queue.Queue()
    return _limited(lambda: items.put("item"), answer, lambda: items.get(timeout=limit))


def full_queue(limit: float, answer: float) -> Any:
    items: queue.Queue[Any] = queue.Queue(maxsize=1)
    items.put("first")
    return _limited(lambda: items.get(), answer, lambda: items.put("second", timeout=limit))


def thread_condition(limit: float, answer: float) -> Any:
    condition, ready = threading.Condition(), []

    def notify() -> None:
        with condition:
            ready.append(True)
            condition.notify()

    def waiting() -> Any:
        with condition:
            return condition.wait_for(lambda: bool(ready), limit)

    return _limited(notify, answer, waiting)


def thread_lock(limit: float, answer: float) -> Any:
    lock = threading.Lock()
    lock.acquire()
    return _limited(lock.release, answer, lambda: lock.acquire(timeout=limit))


def thread_semaphore(limit: float, answer: float) -> Any:
    few = threading.Semaphore(0)
    return _limited(few.release, answer, lambda: few.acquire(timeout=limit))


def pool_result(limit: float, answer: float) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(look, answer)
        try:
            seen: Any = future.result(timeout=limit)
        except TimeoutError:
            seen = "late"
        return [seen, time.monotonic(), look(0), future.result()]


def pool_wait(limit: float, answer: float) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(look, answer), pool.submit(look, 0)]
        done, late = concurrent.futures.wait(futures, timeout=limit)
        return [len(done), len(late), time.monotonic(), look(0), [future.result() for future in futures]]


def thread_join(limit: float, answer: float) -> Any:
    thread = threading.Thread(target=look, args=(answer,))
    thread.start()
    thread.join(limit)
    alive = thread.is_alive()
    seen = [alive, time.monotonic(), look(0)]
    thread.join()
    return seen


def _limited(happens: Callable[[], Any], answer: float, waits: Callable[[], Any]) -> Any:
    """``waits`` in this thread for what ``happens`` in another, after an answer; both write down when."""
    seen: list[Any] = []

    def work() -> None:
        seen.append(look(answer))
        happens()

    thread = threading.Thread(target=work)
    thread.start()
    got: Any = "late"
    with contextlib.suppress(queue.Empty, queue.Full):
        got = waits()
    after = [got, time.monotonic(), look(0)]
    thread.join()
    return [after, seen]


THREADS = [
    thread_event, thread_queue, full_queue, thread_condition, thread_lock, thread_semaphore, pool_result, pool_wait, thread_join,
]  # fmt: skip


@pytest.mark.parametrize(("limit", "answer"), [TOO_SHORT, LONG_ENOUGH], ids=["runs out", "in time"])
@pytest.mark.parametrize("api", THREADS, ids=lambda api: api.__name__)
def test_of_threads(api: Callable[[float, float], Any], limit: float, answer: float) -> None:
    """A limit on a wait of threads: what came of it, and the instant after it, are the recorded ones."""
    seen = same(lambda: api(limit, answer))
    assert seen
