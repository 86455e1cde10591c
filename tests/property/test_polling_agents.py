"""Agents that poll beside calls in threads and on the loop: recorded together on a busy loop, replayed alone, cold and warm.

How often each looked, and what it had by then, is part of what it saw. An agent is *cold* where it hands something to a thread once
before its calls, as a process does that fills a cache; such a hop may be there in the recording and not in the replay, or the other way
round.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.support.generated import Pace, loops
from tracekit import Run, record, replay, traced_tool

_serial = itertools.count()


class World(NamedTuple):
    """What may differ between a recording and a replay: speeds, and what the process has done before."""

    pace: Pace
    cold: bool


world = World(Pace(1), False)


@traced_tool(side_effect="read_only")
async def in_a_thread(agent: int, call: int, ms: float) -> int:
    await asyncio.to_thread(world.pace.native, ms)
    return next(_serial)


@traced_tool(side_effect="read_only")
async def on_the_loop(agent: int, call: int, ms: float) -> int:
    for _ in range(7):
        await asyncio.sleep(world.pace(ms) / 7000)
    return next(_serial)


async def once(i: int) -> None:
    """What a process does once, in a thread."""
    if world.cold:
        await asyncio.to_thread(world.pace.native, (1, 4, 30)[i % 3])


async def tool(i: int, ms: float, seen: list[Any]) -> None:
    await asyncio.sleep(0)
    await once(i)
    await calls(i, ms, seen)


async def calls(i: int, ms: float, seen: list[Any]) -> None:
    for k in range(2):
        answer = await (in_a_thread if (i + k) % 2 else on_the_loop)(i, k, ms)
        seen.append(["got", i, k, answer])


async def polled(tasks: list[asyncio.Task[Any]], seen: list[Any]) -> Any:
    polls = 0
    while not all(task.done() for task in tasks):
        polls += 1
        await asyncio.sleep(0)
        world.pace.compute(0.02)
        if polls % 11 == 0:
            seen.append(["poll", polls, len(seen)])
        if polls > 60_000:
            return ["gave up", polls]
    return [seen, polls]


async def plain(durations: list[float]) -> Any:
    seen: list[Any] = []
    return await polled([asyncio.create_task(tool(i, ms, seen)) for i, ms in enumerate(durations)], seen)


async def nested(durations: list[float]) -> Any:
    """Tasks in tasks, and in groups."""
    seen: list[Any] = []

    async def group(i: int, ms: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for n in range(2):
                tasks.create_task(tool(2 * i + n, ms / (n + 1), seen))

    return await polled([asyncio.create_task(group(i, ms)) for i, ms in enumerate(durations[:2])], seen)


async def timed(durations: list[float]) -> Any:
    """Timers and time limits between the calls."""
    seen: list[Any] = []

    async def limited(i: int, ms: float) -> None:
        await once(i)
        try:
            async with asyncio.timeout(0.004):
                await calls(i, ms, seen)
        except TimeoutError:
            seen.append(["late", i])
        await asyncio.sleep(ms / 1000)
        seen.append(["slept", i])

    return await polled([asyncio.create_task(limited(i, ms)) for i, ms in enumerate(durations)], seen)


async def locked(durations: list[float]) -> Any:
    """A lock, and an event that one of them sets."""
    seen: list[Any] = []
    lock, ready = asyncio.Lock(), asyncio.Event()

    async def holder(i: int, ms: float) -> None:
        async with lock:
            await tool(i, ms, seen)
        if i == 2:
            ready.set()
        await ready.wait()
        seen.append(["ready", i])

    return await polled([asyncio.create_task(holder(i, ms)) for i, ms in enumerate(durations)], seen)


AGENTS: list[Callable[[list[float]], Any]] = [plain, nested, timed, locked]
DURATIONS = [[random.Random(f"{agent} {i}").random() * 10 for i in range(4)] for agent in range(len(AGENTS))]


async def other() -> None:
    """Work of nobody's run, on the same loop."""
    for _ in range(1000):
        await asyncio.sleep(0)


def on(loop: str, main: Callable[[], Any], now: World) -> Any:
    global world
    world = now
    with asyncio.Runner(loop_factory=loops()[loop]) as runner:
        return runner.run(main())


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["cold", "warm"])
def recorded(
    request: pytest.FixtureRequest, loop: str, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Run, Any]]:
    """The run of each agent, recorded at once on one loop beside other work, and what it saw."""
    store = tmp_path_factory.mktemp("store")

    async def one(n: int) -> tuple[Run, Any]:
        async with record(AGENTS[n].__name__, store=store, durability="none") as run:
            return run, await AGENTS[n](DURATIONS[n])

    async def main() -> Any:
        others = [asyncio.create_task(other()) for _ in range(3)]
        found = await asyncio.gather(*(asyncio.create_task(one(n)) for n in range(len(AGENTS))))
        await asyncio.gather(*others)
        return found

    found: list[tuple[Run, Any]] = on(loop, main, World(Pace(None, 5), request.param == "cold"))
    return found


@pytest.mark.parametrize("now", [World(Pace(0.2), True), World(Pace(3), False)], ids=["cold and fast", "warm and slow"])
@pytest.mark.parametrize("agent", range(len(AGENTS)), ids=lambda n: AGENTS[n].__name__)
def test_recorded_together_and_replayed_alone(
    recorded: list[tuple[Run, Any]], loop: str, agent: int, now: World
) -> None:
    """Every order, every count of looks and every answer is the recorded one, and the replay is exact."""
    run, seen = recorded[agent]

    async def main() -> Any:
        async with replay(run.path) as session:
            again = await AGENTS[agent](DURATIONS[agent])
        return again, session.report

    again, report = on(loop, main, now)
    assert again == seen
    assert report.exact, report.as_dict()
