"""Random concurrent programs, recorded under one order of the loop and replayed under another."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import programs
from tests.support.simulation import Recording, Replay, Shuffled


class Tools:
    """Steps of a session whose values are never the same twice."""

    _serial = itertools.count()

    def __init__(self, session: Any) -> None:
        self._session = session

    async def fetch(self, ms: int) -> object:
        async def body() -> int:
            await asyncio.sleep(ms / 1000)
            return next(self._serial)

        return await self._session.call("fetch", ms, body)

    async def instant(self) -> object:
        async def body() -> int:
            return next(self._serial)

        return await self._session.call("instant", None, body)

    def compute(self, ms: int) -> object:
        def body() -> int:
            if ms:
                time.sleep(ms / 1000)
            return next(self._serial)

        return self._session.call_sync("compute", ms, body)

    async def report(self, value: object) -> object:
        async def body() -> object:
            return value

        return await self._session.call("report", value, body)


def execute(session: Any, program: Any, loop: Callable[[], asyncio.AbstractEventLoop]) -> list[Any]:
    with session, asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(programs.run(program, Tools(session), strict=True))


def twice(seed: int, loops: Callable[[int], asyncio.AbstractEventLoop]) -> Replay:
    """Record program ``seed`` and replay it; whatever it saw must be the same."""
    program = programs.random_program(seed)
    recording = Recording()
    seen = execute(recording, program, lambda: loops(seed))
    replay = Replay(recording.log)
    again = execute(replay, program, lambda: loops(seed + 1))
    assert replay.failure is None
    assert again == seen
    assert replay.leftovers() == []
    return replay


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_shuffled_loops_see_the_same(first: int) -> None:
    """Whatever is ready runs in another order in each round, and the program sees what it saw: values, who was first, time-outs."""
    for seed in range(first, first + 20):
        twice(seed, Shuffled)


def test_a_replay_does_not_wait() -> None:
    """A program that slept for a minute is replayed without sleeping."""

    async def program(session: Any) -> list[Any]:
        tools = Tools(session)
        return [await tools.fetch(20_000), await asyncio.sleep(40), await tools.fetch(1)]

    recording = Recording()
    with recording, asyncio.Runner(loop_factory=lambda: Shuffled(1)) as runner:
        seen = runner.run(program(recording))
    replay = Replay(recording.log)
    with replay, asyncio.Runner() as runner:
        loop = runner.get_loop()
        before = loop.time()
        assert runner.run(program(replay)) == seen
        assert loop.time() - before < 20
