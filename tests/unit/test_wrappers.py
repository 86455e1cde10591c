"""Lanes are compared by what the program starts, not by how many tasks and threads stand around it."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tracekit import DivergenceError, TraceExhaustedError, record, replay, traced_tool

Agent = Callable[[], Awaitable[Any]]


@traced_tool(side_effect="read_only")
async def look(number: int) -> float:
    await asyncio.sleep(random.random() / 200)
    return random.random()


@traced_tool(side_effect="read_only")
def count() -> int:
    return random.randrange(1000)


async def agent() -> list[Any]:
    """Steps of its own, in tasks, and a task that looks how far they are."""
    seen: list[Any] = []
    found = asyncio.ensure_future(asyncio.wait_for(look(0), 5))
    rounds = 0
    while not found.done():
        rounds += 1
        await asyncio.sleep(0)
    seen += [rounds, await found, count()]
    seen += await asyncio.gather(*map(look, range(3)))
    async for one in answers():
        seen.append(one)
    return [*seen, random.random(), count()]


async def answers() -> Any:
    for task in asyncio.as_completed([look(number) for number in range(3)]):
        yield await task


async def plain(what: Agent) -> Any:
    return await what()


async def in_a_task(what: Agent) -> Any:
    return await asyncio.ensure_future(what())


async def in_a_middleware(what: Agent) -> Any:
    """What Starlette's does: the handler runs in a task of its own, and hands its answer on through a queue."""
    answer: asyncio.Queue[Any] = asyncio.Queue()

    async def call_next() -> None:
        await answer.put(await what())

    async with asyncio.TaskGroup() as group:
        group.create_task(call_next())
        return await answer.get()


async def in_two_tasks(what: Agent) -> Any:
    return await in_a_task(lambda: in_a_middleware(what))


async def beside_a_watchdog(what: Agent) -> Any:
    """A task in which nothing happens that a recording would have is started first."""
    watchdog = asyncio.ensure_future(asyncio.Event().wait())
    try:
        return await what()
    finally:
        watchdog.cancel()


AROUND = [plain, in_a_task, in_a_middleware, in_two_tasks, beside_a_watchdog]


def run(what: Callable[[Agent], Coroutine[Any, Any, Any]], loop: str) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        return runner.run(what(agent))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("replayed", AROUND)
@pytest.mark.parametrize("recorded", AROUND)
def test_what_stands_around_a_program_is_none_of_it(recorded: Any, replayed: Any, loop: str, tmp_path: Path) -> None:
    """Recorded in one surrounding and replayed in another the agent sees the same, and the replay is exact."""
    random.seed(4)
    with record("agent", store=tmp_path) as made:
        first = run(recorded, loop)
    with replay(made.id, store=tmp_path) as session:
        again = run(replayed, loop)
    assert again == first
    assert session.report.exact


def test_a_task_that_does_something_itself_is_no_surrounding(tmp_path: Path) -> None:
    """Where the surrounding had steps of its own, the agent alone is another program, and fails."""

    async def with_a_step(what: Agent) -> Any:
        count()
        return await in_a_task(what)

    with record("agent", store=tmp_path) as made:
        run(with_a_step, "asyncio")
    # Which of the two it is depends on how many tasks a version of Python makes for `wait_for`.
    with pytest.raises((TraceExhaustedError, DivergenceError)), replay(made.id, store=tmp_path):
        run(plain, "asyncio")


@pytest.mark.parametrize("replayed", [plain, in_a_middleware])
def test_in_a_surrounding_a_difference_is_a_difference(replayed: Any, tmp_path: Path) -> None:
    """One call more than was recorded fails, whatever stands around it."""

    async def more() -> Any:
        return await agent(), count()

    with record("agent", store=tmp_path) as made:
        run(in_a_task, "asyncio")
    with pytest.raises(TraceExhaustedError), replay(made.id, store=tmp_path):
        asyncio.run(replayed(more))


def test_a_read_before_the_only_task_is_not_the_task(tmp_path: Path) -> None:
    """A clock that is read once more before the program's only task starts is a remark; the task's steps are found."""

    def program(reads: int) -> Any:
        for _ in range(reads):
            time.time()
        return run(in_a_task, "asyncio")

    with record("agent", store=tmp_path) as made:
        first = program(0)
    with replay(made.id, store=tmp_path) as session:
        assert program(2) == first
    assert session.report.exact
    assert session.report.clock_drift
