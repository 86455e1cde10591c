"""Where in a program's own progress its events belong: a replay brings them there, at any speed, and beside anything."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import random
import select
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import tenacity
import uvloop

from tests.support.cut import cut
from tests.support.tracing import entries
from tracekit import (
    InexactReplayError,
    Report,
    TraceExhaustedError,
    decision,
    record,
    replay,
    resume,
    traced,
    traced_tool,
)
from tracekit.errors import ReplayError

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
Loop = Callable[[], asyncio.AbstractEventLoop]
#: No generator that a run would record: speeds are the world's.
speeds = random.Random(7)


def run_on(loop: Loop, main: Any) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


def twice(store: Path, loop: Loop, program: Callable[[], Any]) -> tuple[Any, Report]:
    """Record and replay ``program``; what it returns must be the same."""
    with record("program", store=store) as run:
        seen = run_on(loop, program())
    with replay(run) as session:
        assert run_on(loop, program()) == seen
    assert session.report.exact
    return seen, session.report


def work(amount: int) -> None:
    sum(range(amount))


@traced_tool(side_effect="read_only")
def in_thread(what: object, seconds: float) -> object:
    time.sleep(seconds)
    return what


@traced_tool(side_effect="read_only")
async def on_loop(what: object, seconds: float) -> object:
    for _ in range(7):
        await asyncio.sleep(seconds / 7)
    return what


async def polling_agent(pauses: list[float], speed: Callable[[], float]) -> Any:
    """Four tools of two calls each; beside them a task that looks, without a pause, how far they have come."""
    seen: list[Any] = []

    async def tool(i: int, pause: float) -> None:
        await asyncio.sleep(0)
        for k in range(2):
            if (i + k) % 2:
                got = await asyncio.to_thread(in_thread, [i, k], pause)
            else:
                got = await on_loop([i, k], pause)
            seen.append(("got", got))

    tasks = [asyncio.create_task(tool(i, pause)) for i, pause in enumerate(pauses)]
    polls = 0
    while not all(task.done() for task in tasks):
        polls += 1
        await asyncio.sleep(0)
        work(int(3000 * speed()))
        if polls % 11 == 0:
            seen.append(("poll", polls, len([one for one in seen if one[0] == "got"])))
    return seen, polls


@LOOPS
def test_who_polls_sees_what_he_saw(tmp_path: Path, loop: Loop) -> None:
    """Each look of a task that polls with ``sleep(0)`` comes to what it came to, whatever the speed of the replay."""
    pauses = [speeds.random() * 0.02 for _ in range(4)]
    with record("agent", store=tmp_path) as run:
        seen = run_on(loop, polling_agent(pauses, lambda: speeds.choice([0.5, 1, 3])))
    for _ in range(3):
        with replay(run) as session:
            assert run_on(loop, polling_agent(pauses, lambda: speeds.choice([0.2, 1, 5]))) == seen
        assert session.report.exact


@LOOPS
def test_who_has_given_up_looking_gives_up(tmp_path: Path, loop: Loop) -> None:
    """A task looks a number of times, and waits then: in the recording the answer came when it waited, and so it does in the replay."""

    given_up = threading.Event()

    @traced_tool(side_effect="read_only")
    def ask_late() -> str:
        given_up.wait()
        return "late"

    async def program() -> Any:
        answer = asyncio.create_task(asyncio.to_thread(ask_late))
        looks = 0
        while not answer.done() and looks < 3000:
            looks += 1
            await asyncio.sleep(0)
        given_up.set()
        return looks, await answer

    seen, _ = twice(tmp_path, loop, program)
    assert seen == (3000, "late")


@LOOPS
def test_who_polls_in_one_loop_after_another_sees_what_he_saw(tmp_path: Path, loop: Loop) -> None:
    """Each of two loops holds the program at the places that it had in that loop."""

    async def program() -> list[Any]:
        answers = [asyncio.create_task(on_loop(n, 0.01 * (n + 1))) for n in range(2)]
        seen, rounds = [], 0
        while not all(answer.done() for answer in answers):
            rounds += 1
            await asyncio.sleep(0)
            seen.append((rounds, [answer.done() for answer in answers]))
        return seen

    with record("two loops", store=tmp_path) as run:
        seen = [run_on(loop, program()) for _ in range(2)]
    with replay(run) as session:
        assert [run_on(loop, program()) for _ in range(2)] == seen
    assert session.report.verdict.line == "exact"


@LOOPS
def test_a_timer_that_outlives_its_task(tmp_path: Path, loop: Loop) -> None:
    """A task arms a timer and ends; that comes when others have had their answers, and holds nobody until then."""

    async def program() -> Any:
        came = asyncio.Event()

        async def arms() -> None:
            asyncio.get_running_loop().call_later(0.3, came.set)
            await asyncio.sleep(0)

        await asyncio.create_task(arms())
        answer = await on_loop("first", 0)
        return answer, came.is_set(), await came.wait(), await on_loop("second", 0.001)

    seen, report = twice(tmp_path, loop, program)
    assert seen == ("first", False, True, "second")
    assert report.verdict.line == "exact"


@pytest.mark.parametrize("side_by_side", [2, 8])
@LOOPS
def test_runs_recorded_side_by_side_replay_alone(tmp_path: Path, loop: Loop, side_by_side: int) -> None:
    """Runs that shared one busy event loop: each replays alone, exactly."""
    pauses = [[speeds.random() * 0.02 for _ in range(4)] for _ in range(side_by_side)]

    async def one(i: int) -> Any:
        with record("agent", store=tmp_path) as run:
            seen = await asyncio.create_task(polling_agent(pauses[i], lambda: speeds.choice([0.5, 1, 3])))
        return run, seen

    async def other() -> None:
        for _ in range(3000):
            await asyncio.sleep(0)

    async def server() -> Any:
        found = await asyncio.gather(*map(one, range(side_by_side)), *(other() for _ in range(3)))
        return found[:side_by_side]

    async def alone(i: int) -> Any:
        return await asyncio.create_task(polling_agent(pauses[i], lambda: speeds.choice([0.2, 1, 5])))

    for i, (run, seen) in enumerate(run_on(loop, server())):

        async def again(run: Any = run, i: int = i) -> Any:
            with replay(run) as session:
                found = await alone(i)
            assert session.report.exact
            return found

        assert run_on(loop, again()) == seen


@LOOPS
def test_answers_that_came_together_come_together(tmp_path: Path, loop: Loop) -> None:
    """A task that was woken for two answers at once is so again, and one that saw the first alone sees it alone."""

    async def program() -> Any:
        seen = []
        for pause in (0.002, 0.0):
            begun = asyncio.Event()

            async def ask(i: int, begun: asyncio.Event = begun, pause: float = pause) -> object:
                await begun.wait()
                return await on_loop(i, 0.001 + i * pause)

            tasks = [asyncio.create_task(ask(i)) for i in range(3)]
            await asyncio.sleep(0)
            begun.set()
            done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            seen.append([task.result() for task in done])
            await asyncio.gather(*left)
        return seen

    for _ in range(5):
        twice(tmp_path, loop, program)


@LOOPS
def test_a_cancelled_call_ends_in_its_turn(tmp_path: Path, loop: Loop) -> None:
    """Deadlines, answers and cancelled calls that come close upon one another come in their order again."""

    async def program() -> list[Any]:
        seen: list[Any] = []

        async def late(i: int) -> None:
            try:
                async with asyncio.timeout(0.002 + (i % 5) * 0.0005):
                    await on_loop(i, 0.002 + (i % 7) * 0.0004)
                seen.append(("in time", i))
            except TimeoutError:
                seen.append(("late", i))
            seen.append(await on_loop(i, 0.0))

        async with asyncio.TaskGroup() as group:
            for i in range(24):
                group.create_task(late(i))
        return seen

    for _ in range(3):
        twice(tmp_path, loop, program)


@LOOPS
def test_tasks_that_are_done_are_completed_in_the_order_given(tmp_path: Path, loop: Loop) -> None:
    """``asyncio.as_completed`` yields tasks that are done already in the order in which the program names them, and those
    that are not after them, in a recording and in a replay."""

    async def failing() -> None:
        raise ValueError("failed")

    async def program() -> list[Any]:
        tasks = [asyncio.create_task(on_loop(i, 0)) for i in range(20)]
        failed = asyncio.create_task(failing())
        await asyncio.wait([*tasks, failed])
        late = asyncio.create_task(on_loop("late", 0.001))
        found: list[Any] = []
        for one in asyncio.as_completed([late, *reversed(tasks), failed, tasks[0]]):
            try:
                found.append(await one)
            except ValueError as error:
                found.append(str(error))
        assert found == [*[await task for task in reversed(tasks)], "failed", await late]
        if sys.version_info >= (3, 13):
            async for task in asyncio.as_completed(tasks):
                assert task is tasks[len(found) - 22]
                found.append(task.result())
        return found

    twice(tmp_path, loop, program)


def test_a_group_cancels_its_tasks_in_order(tmp_path: Path) -> None:
    """A group that fails cancels its tasks in the order in which they were started, in the recording and in the replay."""

    async def program() -> list[int]:
        ended: list[int] = []

        async def sibling(i: int) -> None:
            try:
                await on_loop(i, 10)
            finally:
                ended.append(i)

        async def failing() -> None:
            await on_loop("fails", 0.001)
            raise ValueError

        try:
            async with asyncio.TaskGroup() as group:
                for i in range(20):
                    group.create_task(sibling(i))
                group.create_task(failing())
        except* ValueError:
            pass
        return ended

    seen, _ = twice(tmp_path, asyncio.new_event_loop, program)
    assert seen == list(range(20))


def test_a_program_that_polls_for_a_deadline_goes_on(tmp_path: Path) -> None:
    """``sleep(0)`` until ``call_later`` has called: the replay ends, after as many looks."""

    async def program() -> int:
        called: list[int] = []
        await asyncio.wait([asyncio.ensure_future(on_loop("a", 0.001))])
        asyncio.get_running_loop().call_later(0.02, called.append, 1)
        polls = 0
        while not called:
            polls += 1
            await asyncio.sleep(0)
        return polls

    twice(tmp_path, asyncio.new_event_loop, program)


def test_places_grow_with_what_runs(tmp_path: Path) -> None:
    """A place names what has changed since the one before: all places together name no lane oftener than its callbacks ran."""
    polls = 0

    async def program() -> None:
        answered = asyncio.Event()

        async def poll() -> None:
            nonlocal polls
            while not answered.is_set():
                polls += 1
                await asyncio.sleep(0)

        polling = [asyncio.create_task(poll()) for _ in range(50)]
        await asyncio.gather(
            *(on_loop(i, 0) for i in range(50)), *(asyncio.to_thread(in_thread, i, 0) for i in range(50))
        )
        answered.set()
        await asyncio.gather(*polling)

    with record("many", store=tmp_path) as run:
        asyncio.run(program())
    named = [lane for entry in entries(run) for lane in entry.get("place", {}).get("lanes", {})]
    assert len(named) <= 2 * (polls + 50 * 12)
    with replay(run) as session:
        asyncio.run(program())
    assert session.report.exact


class InContext:
    """Awaits a coroutine each piece of which runs in a context of its own, as some agent frameworks do."""

    def __init__(self, made: Any) -> None:
        self.context = contextvars.copy_context()
        self.made = made

    def __await__(self) -> Generator[Any, Any, Any]:
        value = None
        while True:
            try:
                value = yield self.context.run(self.made.send, value)
            except StopIteration as stop:
                return stop.value


@LOOPS
def test_calls_whose_pieces_run_in_another_context(tmp_path: Path, loop: Loop) -> None:
    """Answers that come at the same time go on in the order in which they came, and who polls meanwhile finds each where it
    was."""

    async def program() -> Any:
        seen: list[Any] = []
        polls = 0

        async def agent(i: int) -> None:
            for k in range(3):
                answer = await InContext(on_loop([i, k], 0.002 * (k + 1)))
                await asyncio.sleep(0)
                seen.append((answer, polls))

        tasks = [asyncio.create_task(agent(i)) for i in range(4)]
        while not all(task.done() for task in tasks):
            polls += 1
            await asyncio.sleep(0)
        return seen, polls

    twice(tmp_path, loop, program)


@LOOPS
def test_polling_in_a_traced_function_after_a_call(tmp_path: Path, loop: Loop) -> None:
    """A call inside a traced function is over before that is: who polls after it looks as often as when it was recorded."""

    @traced("phase")
    async def program() -> Any:
        polls = 0
        await on_loop("first", 0.002)
        second = asyncio.create_task(on_loop("second", 0.005))
        while not second.done() and polls < 20_000:
            polls += 1
            await asyncio.sleep(0)
        return polls, await second

    twice(tmp_path, loop, program)


# -- what a process does once --------------------------------------------------------------------------------------------

warm = False


@LOOPS
@pytest.mark.parametrize("first", [True, False])
def test_what_ends_inside_a_call_is_no_place_to_wait_for(tmp_path: Path, loop: Loop, first: bool) -> None:
    """An answer comes before what other tasks do next, also where something inside another call has ended beside it: that is
    not made in a replay."""
    go = asyncio.Event()
    done = asyncio.Event()

    @traced_tool(side_effect="read_only")
    async def inner() -> str:
        await go.wait()
        return "inner"

    @traced_tool(side_effect="read_only")
    async def outer() -> str:
        await inner()
        await done.wait()
        return "outer"

    @traced_tool(side_effect="read_only")
    async def beside() -> str:
        await go.wait()
        return "beside"

    async def program() -> list[object]:
        seen: list[object] = []

        async def one(tool: Callable[[], Awaitable[str]]) -> None:
            seen.append(await tool())

        async def turns() -> None:
            for i in range(40):
                seen.append(i)
                if i == 10:
                    go.set()
                if i == 30:
                    done.set()
                await asyncio.sleep(0)

        go.clear()
        done.clear()
        tools = [outer, beside] if first else [beside, outer]
        await asyncio.gather(*map(one, tools), turns())
        return seen

    with record("inside", store=tmp_path) as run:
        seen = run_on(loop, program())
    assert seen[10:13] == [10, "beside", 11]
    with replay(run) as session:
        assert run_on(loop, program()) == seen
    assert session.report.exact


def compiled() -> None:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)


async def lazily(library: Any) -> None:
    """Something that a process looks up once, in a thread."""
    global warm
    if not warm:
        warm = True
        await (library.in_thread(compiled) if library else asyncio.to_thread(compiled))


@pytest.mark.parametrize("then", ["recorded cold", "recorded warm"])
@pytest.mark.parametrize("now", ["replayed cold", "replayed warm"])
@pytest.mark.parametrize("by", ["user", "library"])
@LOOPS
def test_what_a_process_does_once(tmp_path: Path, loop: Loop, by: str, then: str, now: str, monkeypatch: Any) -> None:
    """A cache that is filled in a thread, by user code or by a library, may be filled already or not: the replay is exact."""
    library = None
    if by == "library":
        import importlib.util

        path = tmp_path / "site-packages" / "some_library.py"
        path.parent.mkdir()
        path.write_text("import asyncio\n\nasync def in_thread(call):\n    return await asyncio.to_thread(call)\n")
        spec = importlib.util.spec_from_file_location("some_library", path)
        assert spec is not None
        assert spec.loader is not None
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)

    async def program() -> Any:
        seen: list[Any] = []

        async def tool(i: int) -> None:
            await asyncio.sleep(0)
            if i == 0:
                await lazily(library)
            for k in range(2):
                seen.append(await on_loop([i, k], 0.001 * (i + 1)))
            seen.append(await asyncio.to_thread(in_thread, i, 0.001))

        tasks = [asyncio.create_task(tool(i)) for i in range(3)]
        polls = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            polls += 1
            if polls % 10 == 0:
                seen.append((polls, len(seen)))
        return seen, polls

    def run(cold: bool) -> Any:
        global warm
        warm = not cold
        return run_on(loop, program())

    with record("once", store=tmp_path) as recorded:
        seen = run(then == "recorded cold")
    with replay(recorded) as session:
        assert run(now == "replayed cold") == seen
    assert session.report.exact
    # A library's own is no event. One of user code is: that it is more or fewer is counted.
    assert session.report.verdict.counts["hops"] == (by == "user" and then.split()[1] != now.split()[1])


def sleeping() -> None:
    time.sleep(0.01)


def in_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(lambda i: (time.sleep(0.002), i)[1], range(3))] == [0, 1, 2]


def in_a_loop() -> None:
    asyncio.run(asyncio.sleep(0.005))


def read_the_clock() -> None:
    assert time.time()


async def polling(first: Callable[[], object] | None, *, clock: bool = False) -> Any:
    """An agent that begins with something that a process does once, and then polls in the same task."""
    if first is not None:
        await asyncio.to_thread(first)
    if clock:
        assert time.time()
    call = asyncio.create_task(on_loop("answer", 0.002))
    polls = 0
    while not call.done() and polls < 30:
        await asyncio.sleep(0)
        polls += 1
    return polls, await call


@pytest.mark.parametrize("recorded_first", [compiled, None])
@pytest.mark.parametrize("replayed_first", [compiled, None])
@LOOPS
def test_what_a_process_does_once_before_it_polls(
    tmp_path: Path, loop: Loop, recorded_first: Any, replayed_first: Any
) -> None:
    """The task that lacks the call in a thread goes on as far as it had come when the next answer came, not further and not less far."""
    with record("once", store=tmp_path) as recorded:
        seen = run_on(loop, polling(recorded_first))
    with replay(recorded) as session:
        assert run_on(loop, polling(replayed_first)) == seen
    assert session.report.exact


@pytest.mark.parametrize("first", [sleeping, in_a_pool, in_a_loop, read_the_clock])
@pytest.mark.parametrize("clock", [False, True])
def test_what_a_process_does_once_takes_its_time(tmp_path: Path, first: Callable[[], None], clock: bool) -> None:
    """A cache that was full when a request was recorded is filled in its replay, whatever that waits for meanwhile."""
    with record("once", store=tmp_path) as recorded:
        seen = asyncio.run(polling(None, clock=clock))
    with replay(recorded) as session:
        assert asyncio.run(polling(first, clock=clock)) == seen
    assert session.report.exact
    assert session.report.verdict.counts["hops"]


async def unlike(extra: Callable[[], Awaitable[object]] | None, where: str) -> int:
    """An agent that has something more or less to wait for, itself before it polls, or in the task for whose end it polls."""

    async def work() -> None:
        await on_loop("answer", 0.005)
        if extra is not None and where == "after the last event":
            await extra()

    if extra is not None and where == "before it polls":
        await extra()
    task, polls = asyncio.create_task(work()), 0
    while not task.done():
        await asyncio.sleep(0)
        polls += 1
    return polls


@pytest.mark.parametrize(
    "extra",
    [
        lambda: asyncio.wait_for(asyncio.ensure_future(asyncio.to_thread(len, "")), 5),  # 3.12 makes no task of its own
        lambda: asyncio.gather(asyncio.to_thread(len, ""), asyncio.to_thread(len, "")),
        lambda: asyncio.wait([asyncio.create_task(asyncio.to_thread(len, ""))]),
    ],
    ids=["wait_for", "gather", "wait"],
)
@pytest.mark.parametrize("where", ["before it polls", "after the last event"])
@pytest.mark.parametrize("change", ["added", "removed"])
def test_a_task_more_or_less_beside_one_that_polls(tmp_path: Path, extra: Any, where: str, change: str) -> None:
    """It has looked more or fewer times than in the recording by then: the replay is not exact, and says so."""
    then, now = (None, extra) if change == "added" else (extra, None)
    with record("x", store=tmp_path) as run:
        asyncio.run(unlike(then, where))
    inexact = pytest.raises(InexactReplayError, match="a task that polls may have looked more or fewer times")
    with inexact, replay(run):
        asyncio.run(unlike(now, where))


def test_a_sleep_that_was_added_is_no_more_than_that(tmp_path: Path) -> None:
    """Where the call in a thread is the program itself, a sleep that the recording lacks is a difference."""

    def program(naps: int) -> Any:
        with ThreadPoolExecutor(1) as pool:

            def agent() -> Any:
                tool = asyncio.run(on_loop("first", 0.001))
                for _ in range(naps):
                    time.sleep(0.001)
                return tool

            return pool.submit(agent).result()

    with record("slept", store=tmp_path) as recorded:
        program(0)
    with pytest.raises(TraceExhaustedError, match="no such sleep"), replay(recorded):
        program(1)


# -- wrappers ------------------------------------------------------------------------------------------------------------


async def wrapped() -> Any:
    """An agent whose main line polls, and makes calls of its own."""
    seen = [await on_loop("first", 0.001)]
    tasks = [asyncio.create_task(on_loop(i, 0.002)) for i in range(3)]
    polls = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        polls += 1
    async with asyncio.timeout(5):
        seen.append(await asyncio.to_thread(in_thread, polls, 0.001))
    return seen


def by_run() -> Any:
    return asyncio.run(wrapped())


def by_uvloop() -> Any:
    return run_on(uvloop.new_event_loop, wrapped())


def by_loop() -> Any:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(wrapped())


def by_anyio() -> Any:
    return anyio.run(wrapped)


AROUND = pytest.mark.parametrize("runs", [by_run, by_uvloop, by_loop, by_anyio])


@AROUND
def test_recorded_in_a_task_and_replayed_around_a_loop(tmp_path: Path, runs: Callable[[], Any]) -> None:
    """Recorded in a server's handler, replayed as a program: what stands around the agent is none of it."""

    async def handler() -> Any:
        with record("agent", store=tmp_path) as run:
            seen = await wrapped()
        return run, seen

    async def server() -> Any:
        return await asyncio.create_task(handler())

    run, seen = asyncio.run(server())
    with replay(run) as session:
        assert runs() == seen
    assert session.report.exact


@AROUND
def test_recorded_around_a_loop_and_replayed_in_a_task(tmp_path: Path, runs: Callable[[], Any]) -> None:
    """Recorded as a program, replayed in an asynchronous test."""
    with record("agent", store=tmp_path) as run:
        seen = runs()

    async def a_test() -> Any:
        with replay(run) as session:
            again = await wrapped()
        assert session.report.exact
        return again

    assert asyncio.run(a_test()) == seen


async def in_a_task(agent: Callable[[], Any]) -> Any:
    return await asyncio.create_task(agent())


async def in_a_group(agent: Callable[[], Any]) -> Any:
    async def inner() -> Any:
        return await agent()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(inner())
    return task.result()


async def bare(agent: Callable[[], Any]) -> Any:
    return await agent()


@pytest.mark.parametrize("then", [bare, in_a_task, in_a_group])
@pytest.mark.parametrize("now", [bare, in_a_task, in_a_group])
@LOOPS
def test_an_agent_that_does_nothing_but_poll(tmp_path: Path, loop: Loop, then: Any, now: Any) -> None:
    """A task that has started one other task, and polls for it, is not merely around it, and is held where it was."""

    async def agent() -> Any:
        return await polling(None)

    with record("agent", store=tmp_path) as run:
        seen = run_on(loop, then(agent))
    with replay(run) as session:
        assert run_on(loop, now(agent)) == seen
    assert session.report.exact


def as_function(agent: Callable[[], Any]) -> Any:
    return agent()


def by_asyncio(agent: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.to_thread(agent))


def by_anyio_in_a_thread(agent: Callable[[], Any]) -> Any:
    return anyio.run(anyio.to_thread.run_sync, agent)


def by_a_pool(agent: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(agent).result()


AROUND_A_FUNCTION = [as_function, by_asyncio, by_anyio_in_a_thread]


@pytest.mark.parametrize("then", AROUND_A_FUNCTION)
@pytest.mark.parametrize("now", AROUND_A_FUNCTION)
def test_a_call_in_a_thread_around_the_agent(tmp_path: Path, then: Any, now: Any) -> None:
    """A server runs a synchronous agent in a thread, a test calls it, or the other way round: what it does is the same."""

    def agent() -> Any:
        seen = [in_thread(random.random(), 0.001)]
        with ThreadPoolExecutor(2) as pool:
            seen += pool.map(in_thread, range(3), [0.004, 0.001, 0.002])
        return seen

    with record("agent", store=tmp_path) as run:
        seen = then(agent)
    with replay(run) as session:
        assert now(agent) == seen
    assert session.report.exact


@pytest.mark.parametrize("then", [as_function, by_a_pool])
@pytest.mark.parametrize("now", [as_function, by_a_pool])
@pytest.mark.parametrize("around", [bare, in_a_task])
def test_a_loop_in_a_thread_around_the_agent(tmp_path: Path, around: Any, then: Any, now: Any) -> None:
    """The agent polls as often wherever the loop runs: as a task, or as what a loop in this or another thread is run for."""

    async def agent() -> Any:
        return await polling(None)

    with record("agent", store=tmp_path) as run:
        seen = then(lambda: asyncio.run(agent()))
    with replay(run) as session:
        assert now(lambda: asyncio.run(around(agent))) == seen
    assert session.report.exact


# -- deadlines -----------------------------------------------------------------------------------------------------------


@LOOPS
def test_deadlines_of_anyio_come_to_what_they_came_to(tmp_path: Path, loop: Loop) -> None:
    """``fail_after`` and ``move_on_after`` that ran out raise and cancel again, around calls and around sleeps; the others don't."""

    async def program() -> list[Any]:
        seen: list[Any] = []
        for pause in (0.0, 0.2):
            try:
                with anyio.fail_after(0.02):
                    seen.append(await on_loop("answer", pause))
            except TimeoutError:
                seen.append("late")
            with anyio.move_on_after(0.02) as scope:
                await anyio.sleep(pause)
            seen.append(scope.cancelled_caught)
        return seen

    seen, _ = twice(tmp_path, loop, program)
    assert seen[2:] == ["late", True]


@LOOPS
def test_what_a_thread_hands_to_a_loop(tmp_path: Path, loop: Loop) -> None:
    """A thread puts its answers into a queue of the loop: a task that polls finds each where it found it."""

    async def program() -> list[Any]:
        here, items, seen = asyncio.get_running_loop(), asyncio.Queue[Any](), list[Any]()

        def work() -> None:
            for i in range(5):
                here.call_soon_threadsafe(items.put_nowait, in_thread(i, 0.001 * (i * 7 % 3)))

        thread = threading.Thread(target=work)
        thread.start()
        other, polls = asyncio.create_task(on_loop("other", 0.003)), 0
        while len(seen) < 5:
            try:
                seen.append((items.get_nowait(), polls, other.done()))
            except asyncio.QueueEmpty:
                await asyncio.sleep(0)
                polls += 1
        thread.join()
        await other
        return seen

    twice(tmp_path, loop, program)


@LOOPS
def test_a_library_that_stops_after_a_while(tmp_path: Path, loop: Loop) -> None:
    """tenacity's ``stop_after_delay`` gives up after as many attempts."""

    async def program() -> int:
        attempts = 0

        @tenacity.retry(stop=tenacity.stop_after_delay(0.5), wait=tenacity.wait_fixed(0.2), reraise=True)
        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            await on_loop(attempts, 0.005)
            raise ValueError("again")

        with pytest.raises(ValueError, match="again"):
            await attempt()
        return attempts

    twice(tmp_path, loop, program)


@LOOPS
def test_threads_of_anyio(tmp_path: Path, loop: Loop) -> None:
    """A task that polls finds the result of ``anyio.to_thread.run_sync`` where it found it."""

    async def program() -> list[Any]:
        tasks = [asyncio.create_task(one) for one in (anyio.to_thread.run_sync(in_thread, 1, 0.004), on_loop(2, 0.003))]
        seen, polls = list[Any](), 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            polls += 1
            seen.append([task.done() for task in tasks])
        return [polls, *seen]

    twice(tmp_path, loop, program)


async def late_for_both() -> str:
    """A deadline and the result of a thread, both due while the loop stands still: which of them counts is the loop's to say."""
    result = asyncio.create_task(asyncio.to_thread(select.select, [], [], [], 0.02))
    try:
        async with asyncio.timeout(0.05):
            await asyncio.sleep(0)
            select.select([], [], [], 0.1)
            await result
    except TimeoutError:
        return "too late"
    return "in time"


async def first_of_both() -> tuple[bool, bool]:
    """The same of a sleep and the result of a thread, asked by ``FIRST_COMPLETED``."""
    result = asyncio.create_task(asyncio.to_thread(select.select, [], [], [], 0.02))
    pause = asyncio.create_task(asyncio.sleep(0.05))
    await asyncio.sleep(0)
    select.select([], [], [], 0.1)
    done, _ = await asyncio.wait([pause, result], return_when=asyncio.FIRST_COMPLETED)
    return pause in done, result in done


@LOOPS
@pytest.mark.parametrize("program", [late_for_both, first_of_both])
def test_what_was_due_in_one_turn_of_the_loop_is_delivered_in_one(
    program: Callable[[], Any], tmp_path: Path, loop: Loop
) -> None:
    """A deadline that expired in the turn in which a thread's result came expires again before the program goes on with the result."""
    twice(tmp_path, loop, program)


def test_a_deadline_that_is_cancelled_before_it_can_expire_again_is_no_exact_replay() -> None:
    """A program that takes another way round a recorded deadline is told so, though no recorded step is missing."""

    async def program(pause: float) -> str:
        try:
            async with asyncio.timeout(0.02):
                if pause:
                    await asyncio.sleep(pause)
        except TimeoutError:
            return "too late"
        return "in time"

    with record("deadline") as run:
        on_time(1)
        assert asyncio.run(program(5)) == "too late"
    inexact = pytest.raises(InexactReplayError, match="recorded event that never came")
    with inexact, replay(run):
        on_time(1)
        asyncio.run(program(0))


@pytest.mark.parametrize(
    "way", ["asyncio.sleep", "time.sleep", "Event.wait", "a result of a thread", "pieces of a stream"]
)
def test_what_never_comes_again_is_missed(way: str) -> None:
    """What came to the recorded program, and what the replayed one never asks for, makes the replay inexact, however it came."""

    @traced_tool(side_effect="read_only")
    def pieces() -> Any:
        yield from range(3)

    async def sleeps() -> None:
        await asyncio.sleep(0.001)

    async def hands_over() -> None:
        await asyncio.to_thread(on_time, 2)
        await asyncio.get_running_loop().run_in_executor(None, hashlib.md5, b"")

    def program(now: bool) -> None:
        on_time(1)
        if way == "pieces of a stream":
            for piece in pieces():
                if now and piece:
                    break
        elif now:
            if way == "a result of a thread":
                asyncio.run(asyncio.wait_for(asyncio.to_thread(on_time, 2), None))
        elif way == "asyncio.sleep":
            asyncio.run(sleeps())
        elif way == "time.sleep":
            time.sleep(0.001)
        elif way == "Event.wait":
            threading.Event().wait(0.001)
        else:
            asyncio.run(hands_over())

    with record("x") as run:
        program(False)
    if way == "a result of a thread":  # a hop, in which nothing is captured, may be there or not
        with replay(run) as session:
            program(True)
        assert session.report.verdict.line == "exact, 1 hop more or fewer"
        return
    inexact = pytest.raises(InexactReplayError, match="undelivered: entry")
    with inexact, replay(run):
        program(True)


def test_a_program_that_can_not_keep_its_places_is_remarked() -> None:
    """Where nothing else can go on, what should have waited for an event goes past its place: the verdict counts it."""
    wanted, polls = 1, 0

    async def program() -> None:
        nonlocal polls
        polls, done, reached = 0, [], asyncio.Event()

        async def answer() -> None:
            await reached.wait()
            done.append(await on_loop(1, 0.002))

        task = asyncio.create_task(answer())
        while not done:
            polls += 1
            if polls == wanted:
                reached.set()
            await asyncio.sleep(0)
        await task

    with record("x") as run:
        asyncio.run(program())
    wanted = polls + 50
    with replay(run) as session:
        asyncio.run(program())
    assert session.report.verdict.line == "exact, 1 event whose place was passed"


@pytest.mark.parametrize("where", ["before the first event", "between two", "up to its end", "after the last event"])
@LOOPS
def test_who_runs_on_without_an_event_is_not_taken_for_one_who_polls(tmp_path: Path, loop: Loop, where: str) -> None:
    """A task that gives way 5000 times, and nobody else ever does so: the replay is exact."""

    async def gives_way(here: str) -> int:
        times = 5000 if here == where else 5
        for _ in range(times):
            await asyncio.sleep(0)
        return times

    async def program() -> Any:
        seen = [await gives_way("before the first event"), await on_loop("first", 0)]
        task = asyncio.create_task(gives_way("up to its end"))
        answer = asyncio.create_task(on_loop("second", 0.05))
        seen += [await task, await gives_way("between two"), await answer]
        return seen, await asyncio.gather(*(gives_way("after the last event") for _ in range(2)))

    _, report = twice(tmp_path, loop, program)
    assert report.verdict.line == "exact"


async def _looks_again(event: asyncio.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0)


async def _starts_a_task_each_time(event: asyncio.Event) -> None:
    while not event.is_set():
        await asyncio.create_task(asyncio.sleep(0))


async def _starts_tasks_for_nothing(event: asyncio.Event) -> None:
    while not event.is_set():
        left = asyncio.create_task(asyncio.sleep(0))
        await asyncio.sleep(0)
    del left


async def _waits_for_no_time(event: asyncio.Event) -> None:
    while not event.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), 0)


async def _calls_itself_soon(event: asyncio.Event) -> None:
    here = asyncio.get_running_loop()
    came = here.create_future()

    def look() -> None:
        if event.is_set():
            came.set_result(None)
        else:
            here.call_soon(look)

    look()
    await came


async def _asks_a_thread(event: asyncio.Event) -> None:
    while not event.is_set():
        await asyncio.to_thread(hashlib.md5, b"")


async def _polls_in_a_thread(event: asyncio.Event) -> None:
    def poll() -> None:
        while not event.is_set():
            time.sleep(0.0005)

    await asyncio.to_thread(poll)


async def _until_a_deadline(event: asyncio.Event) -> None:
    until = time.monotonic() + 30
    while not event.is_set() and time.monotonic() < until:
        await asyncio.sleep(0)


POLLS = [
    _looks_again, _starts_a_task_each_time, _starts_tasks_for_nothing, _waits_for_no_time, _calls_itself_soon, _asks_a_thread,
    _polls_in_a_thread, _until_a_deadline,
]  # fmt: skip


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("removed", ["what is polled for", "a step", "the task"])
@pytest.mark.parametrize("polls", POLLS, ids=lambda polls: polls.__name__.strip("_"))
@LOOPS
def test_who_polls_for_what_an_edit_took_away_keeps_no_replay_from_its_end(
    loop: Loop, polls: Any, removed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay fails, or tells that it was not exact, however somebody polls for what does not come."""
    monkeypatch.setattr("tracekit._runtime.progress._FAR", 50)
    monkeypatch.setattr("tracekit._runtime.schedule._UNHEARD_OF", 50)
    monkeypatch.setattr("tracekit._runtime.replayer._STANDS_STILL", 1000)
    now = ""

    async def program() -> None:
        event = asyncio.Event()

        async def sets() -> None:
            await on_loop("a", 0.001)
            if now != "a step":
                await on_loop("b", 0.001)
            if now != "what is polled for":
                event.set()

        tasks = [asyncio.create_task(polls(event))]
        if now != "the task":
            tasks.append(asyncio.create_task(sets()))
        await asyncio.gather(*tasks)
        await on_loop("end", 0.001)

    with record("polls") as run:
        run_on(loop, program())
    if polls is not _polls_in_a_thread:  # whether it sees the event one look earlier or later is not recorded
        with replay(run) as session:
            run_on(loop, program())
        assert session.report.exact
    now = removed
    with pytest.raises(ReplayError) as caught, replay(run) as session:
        run_on(loop, program())
    assert not session.report.exact
    assert caught.value.location or __file__ in str(caught.value) or "never requested" in str(caught.value)


@pytest.mark.timeout(60, method="thread")
@LOOPS
def test_who_polls_beyond_the_end_of_a_log_that_was_cut_off(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was killed during a call, beside a task that polls: the replay ends there, and a resumed run goes on."""
    monkeypatch.setattr("tracekit._runtime.replayer.Replay._patience", 2_500)

    async def program() -> Any:
        task = asyncio.create_task(on_loop("a", 0.001))
        looks = 0
        while not task.done():
            looks += 1
            await asyncio.sleep(0)
        for _ in range(3_000):
            await asyncio.sleep(0)
        return looks > 0, await on_loop("b", 0.001), await on_loop("c", 0.001)

    with record("cut off", store=tmp_path / "whole") as run:
        seen = run_on(loop, program())
    found = entries(run)
    first, second = (
        next(i for i, one in enumerate(found, 1) if one["type"] == "tool.call" and one["input"]["what"] == what)
        for what in "ab"
    )
    for n, (count, beyond) in enumerate([(first, False), (second - 1, True), (second, True)]):
        path = cut(run, count, tmp_path / f"cut {n}")
        with pytest.raises(ReplayError) as caught, replay(path):
            run_on(loop, program())
        assert beyond or __file__ in str(caught.value)
        with resume(path):
            assert run_on(loop, program()) == seen


@pytest.mark.timeout(60, method="thread")
@LOOPS
def test_who_polls_for_a_thread_waits_as_long_as_that_takes(loop: Loop) -> None:
    """What a thread does that nobody records is waited for, however often somebody looks meanwhile whether it has done it."""
    long = 0

    async def program() -> list[str]:
        seen, there, back = list[str](), list[int](), list[int]()

        def answers() -> None:
            for _ in range(long):
                work(20_000)
            there.append(1)
            while not back:
                work(1)
            seen.append(in_thread("answered", 0))  # type: ignore[arg-type]

        await on_loop("first", 0)
        thread = threading.Thread(target=answers)
        thread.start()
        while not there:
            await asyncio.sleep(0)
        back.append(1)
        thread.join()
        seen.append(await on_loop("last", 0))  # type: ignore[arg-type]
        return seen

    with record("thread") as run:
        seen = run_on(loop, program())
    long = 1000
    with replay(run) as session:
        assert run_on(loop, program()) == seen
    assert session.report.exact


@pytest.mark.parametrize("after", ["a read", "a note", "an effect", "a clock"])
def test_what_comes_after_the_end_of_a_replay_is_refused_and_said(
    after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread that goes on when the block has ended reaches nothing; a step of it makes the replay inexact, and stderr says so."""
    ran: list[str] = []

    @traced_tool(side_effect="irreversible")
    def pay() -> None:
        ran.append("paid")

    def call() -> None:
        ended.wait()
        try:
            if after == "a read":
                on_time(2)
            elif after == "a note":
                decision("go on", input=None, output=True)
            elif after == "an effect":
                pay()
            else:
                time.time()
        except BaseException as error:
            raised.append(error)

    def program() -> threading.Thread:
        on_time(1)
        thread = threading.Thread(target=call)
        thread.start()
        return thread

    ended, raised = threading.Event(), list[BaseException]()
    with record("x") as run:
        thread = program()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended.set()
        thread.join()
    ended, raised = threading.Event(), []
    with replay(run) as session:
        thread = program()
    assert session.report.exact
    capsys.readouterr()
    ended.set()
    thread.join()
    said = capsys.readouterr().err
    if after in ("a read", "a note"):
        assert session.report.verdict.line == "inexact: 1 call after the end"
        assert "was called after the end of the replayed run" in said
        assert [type(one).__name__ for one in raised] == ["TraceExhaustedError"]
    else:
        assert (session.report.verdict.line, said, ran) == ("exact", "", [])
        assert [type(one).__name__ for one in raised] == ["RunEndedError"] * (after == "an effect")


@traced_tool(side_effect="read_only")
def on_time(n: int) -> int:
    return n


def test_replays_side_by_side_on_one_loop_do_not_stand_still_for_one_another(tmp_path: Path) -> None:
    """Each looks at the threads while another one does: who waits for a look to end, or for the interpreter, is not blocked."""

    @traced_tool(side_effect="read_only")
    async def fetch(n: int) -> int:
        await asyncio.sleep(0.001 * n)
        return n

    async def handle(n: int) -> str:
        async with record("one of three", store=tmp_path) as run:
            run.set_result(await fetch(n))
        return run.path

    async def again(path: str, n: int) -> None:
        async with replay(path, guard="context") as session:
            session.set_result(await fetch(n))

    async def beside(made: Iterable[Any]) -> list[Any]:
        return await asyncio.gather(*made)

    paths = asyncio.run(beside(handle(n) for n in range(3)))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(60):
            asyncio.run(beside(again(path, n) for n, path in enumerate(paths)))
    finally:
        sys.setswitchinterval(interval)


@LOOPS
def test_a_generator_that_its_reader_drops_at_the_end_is_closed_as_it_was(tmp_path: Path, loop: Loop) -> None:
    """The loop stops before it has closed an async generator that the last task dropped, or after that: in both runs the same."""

    @traced_tool(side_effect="read_only")
    async def pages() -> AsyncIterator[int]:
        for page in range(5):
            await asyncio.sleep(0)
            yield page

    async def main() -> list[int]:
        async for page in pages():
            return [page]
        return []

    def program() -> list[Any]:
        return [*run_on(loop, main()), run_on(loop, on_loop("after", 0))]

    with record("program", store=tmp_path) as run:
        seen = program()
    assert seen == [0, "after"]
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact


@LOOPS
def test_a_loops_exception_handler_is_in_the_run_of_the_callback(tmp_path: Path, loop: Loop) -> None:
    """What a handler of ``loop.set_exception_handler`` does is recorded and replayed, wherever the callback came from."""
    alerts: list[str] = []

    @traced_tool(side_effect="irreversible")
    def alert(where: str) -> float:
        alerts.append(where)
        return speeds.random()

    def fails(where: str) -> None:
        raise LookupError(where)

    async def program() -> Any:
        running = asyncio.get_running_loop()
        seen: list[Any] = []
        running.set_exception_handler(lambda _, about: seen.append(alert(str(about["exception"]))))
        running.call_soon(fails, "soon")
        await asyncio.sleep(0)
        running.call_later(0.001, fails, "later")
        await asyncio.sleep(0.01)
        thread = threading.Thread(target=running.call_soon_threadsafe, args=(fails, "thread"))
        thread.start()
        while len(seen) < 3:
            await asyncio.sleep(0.001)
        thread.join()
        return seen

    seen, _ = twice(tmp_path, loop, program)
    assert alerts == ["soon", "later", "thread"]
    assert len(seen) == 3


def test_a_callback_that_waits_for_a_thread_is_seen_to_wait(tmp_path: Path) -> None:
    """In a replay a timer's callback that holds up its loop until a thread has come to something is one more that waits.

    The thread gets its events meanwhile; and where the thread never comes, nothing moves, and the replay fails.
    """
    ends = [True]

    async def program() -> Any:
        running, done, seen = asyncio.get_running_loop(), threading.Event(), list[Any]()

        def work() -> None:
            time.sleep(0.001)
            if ends[0]:
                done.set()

        def wait() -> None:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            seen.append(done.wait())
            thread.join()

        running.call_later(0.001, wait)
        await asyncio.sleep(0.01)
        return seen

    with record("program", store=tmp_path) as run:
        assert asyncio.run(program()) == [True]
    with replay(run) as session:
        assert asyncio.run(program()) == [True]
    assert session.report.exact
    ends[0] = False
    with pytest.raises(ReplayError), replay(run):
        asyncio.run(program())


@LOOPS
def test_asyncio_wait_gives_the_tasks_of_a_set_in_the_order_of_their_making(tmp_path: Path, loop: Loop) -> None:
    """Sets of tasks and of calls in threads are iterated by address; what ``asyncio.wait`` returns of them is in one order."""

    async def program() -> Any:
        running, seen = asyncio.get_running_loop(), []
        for _ in range(4):
            tasks = {asyncio.create_task(on_loop(i, 0.001), name=f"{i}") for i in range(12)}
            await asyncio.wait(set(tasks))
            done, _ = await asyncio.wait(tasks | set())
            seen.append([task.get_name() for task in done])
            calls = {running.run_in_executor(None, in_thread, i, 0): i for i in range(6)}
            await asyncio.wait(set(calls))
            done, _ = await asyncio.wait({*calls})
            seen.append([calls[call] for call in done])
        return seen

    seen, _ = twice(tmp_path, loop, program)
    assert seen == [[f"{i}" for i in range(12)], [*range(6)]] * 4
