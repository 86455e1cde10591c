"""The end of an event loop: it waits for its own threads, and that wait is none of the run's; then it is gone."""

from __future__ import annotations

import asyncio
import gc
import select
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import uvloop

from tracekit import record, replay, traced_tool


@traced_tool(side_effect="read_only")
def look() -> str:
    return "found"


def lingering() -> None:
    """Holds a worker of the loop's pool for a while after the program has its answer."""
    select.select([], [], [], 0.3)


async def program() -> str:
    asyncio.get_running_loop().run_in_executor(None, lingering)
    return look()


def test_the_loops_own_deadline_is_no_event_of_the_run() -> None:
    """A replay does not take the loop's wait for its pool (with a deadline of 300 s, from 3.12 on) for a program that is stuck."""
    with record("shutdown") as run:
        recorded = asyncio.run(program())
    for _ in range(3):
        with replay(run.id) as session:
            assert asyncio.run(program()) == recorded
        assert session.report.exact


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_loop_that_is_closed_is_not_kept(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A run that goes on, as that of a service with a loop for each request, holds no loop that the program has closed and forgotten."""

    async def ask() -> None:
        await asyncio.sleep(0.001)
        await asyncio.gather(asyncio.to_thread(look), asyncio.sleep(0))

    def loops() -> list[object]:
        kept = []
        for _ in range(3):
            loop = new_loop()
            loop.run_until_complete(ask())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            kept.append(weakref.ref(loop))
            del loop
        gc.collect()
        return [one() for one in kept]

    with record("loops") as run:
        assert loops() == [None, None, None]
    with replay(run.id) as session:
        assert loops() == [None, None, None]
    assert session.report.exact


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("held", [(True, False), (False, True)])
def test_when_a_generator_is_collected_is_no_event_of_the_run(
    make: Callable[[], asyncio.AbstractEventLoop], held: tuple[bool, bool]
) -> None:
    """A loop closes an asynchronous generator when the interpreter finds that nobody holds it; in a replay that is another time."""
    was, now = held

    async def answers() -> AsyncIterator[str]:
        yield look()
        yield look()

    async def begun() -> AsyncIterator[str]:
        generator = answers()
        await anext(generator)
        return generator

    async def again() -> str:
        await asyncio.sleep(0)
        return look()

    def program(hold: bool) -> str:
        loop = make()
        try:
            generator: object = loop.run_until_complete(begun())
            if not hold:
                generator = None
            found = loop.run_until_complete(again())
            del generator
            loop.run_until_complete(loop.shutdown_asyncgens())
            return found
        finally:
            loop.close()

    with record("collected") as run:
        recorded = program(was)
    with replay(run.id) as session:
        assert program(now) == recorded
    assert session.report.exact, session.report.as_dict()


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_came_before_an_abandoned_generator_was_closed(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A loop closes a generator that nobody refers to any more after what had come from threads by then. What the generator
    cancels at its end had its answer in the recording, and has it in a replay."""

    async def program(pool: ThreadPoolExecutor) -> str:
        answer = asyncio.create_task(asked(pool))
        await asyncio.sleep(0)

        async def answers() -> AsyncIterator[None]:
            try:
                yield
            finally:
                answer.cancel()

        generator = answers()
        await anext(generator)
        pool.submit(int).result()  # so the only worker has handed over the answer
        del generator
        try:
            return await answer
        except asyncio.CancelledError:
            return "cancelled"

    async def asked(pool: ThreadPoolExecutor) -> str:
        return await asyncio.get_running_loop().run_in_executor(pool, look)

    def played() -> str:
        with ThreadPoolExecutor(1) as pool, asyncio.Runner(loop_factory=make) as runner:
            return runner.run(program(pool))

    with record("closed") as run:
        recorded = played()
    assert recorded == "found"
    with replay(run.id) as session:
        assert played() == recorded
    assert session.report.exact, session.report.as_dict()


class _Client:
    """Closes itself when it is collected, as OpenAI's asynchronous client does."""

    def __del__(self) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop().create_task(asyncio.sleep(0))


async def _generated() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("what", ["finalizer", "generator", "collected generator"])
def test_a_task_that_a_finalizer_starts_is_no_other_task(
    make: Callable[[], asyncio.AbstractEventLoop], what: str
) -> None:
    """When the interpreter collects an object is chance, and so is a task that this starts: one that the recording lacks makes
    no replay inexact, though tasks waited for events afterwards."""

    async def left() -> object:
        if what == "finalizer":
            return _Client()
        generator = _generated()
        await anext(generator)
        return [generator]

    async def program(drop: bool) -> list[str]:
        kept = await left()
        if what.startswith("collected"):
            kept.append(kept)  # type: ignore[attr-defined]
        if drop:
            kept = None
            gc.collect()
        looks: list[str] = []
        asked = asyncio.create_task(look_later())
        while not asked.done():
            looks.append(await asyncio.sleep(0, "look"))
        del kept
        return [*looks, await asked]

    async def look_later() -> str:
        await asyncio.sleep(0.002)
        return look()

    with record("chance") as run, asyncio.Runner(loop_factory=make) as runner:
        recorded = runner.run(program(drop=False))
    with replay(run.id) as session, asyncio.Runner(loop_factory=make) as runner:
        assert runner.run(program(drop=True)) == recorded
    assert session.report.exact, session.report.as_dict()
