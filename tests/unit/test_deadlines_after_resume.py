"""A deadline is made of the run's clock and runs out by it, wherever this process's clock began and however long the run was down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.cut import cut, down_longer, elsewhere, lines
from tests.support.generated import loops
from tracekit import Run, record, replay, resume, traced_tool

Program = Callable[[float], Coroutine[Any, Any, str]]
#: Seconds by which the machine that recorded had been up for longer: a clock far behind, and one far ahead.
ELSEWHERE = (-1e6, 1e6)
#: Of a deadline that is to be kept, and of one that is to run out.
LONG, SHORT = 300.0, 0.01


@traced_tool(side_effect="read_only")
async def look(n: int) -> int:
    return n


@traced_tool(side_effect="reversible")
async def begin() -> None:
    """What the run that goes on makes first, in one half of the tests."""


@traced_tool(side_effect="reversible")
async def send(seconds: float) -> str:
    await (asyncio.sleep(0.001) if seconds == LONG else asyncio.Event().wait())
    return "sent"


@traced_tool(side_effect="reversible")
async def send_until(seconds: float, deadline: float) -> str:
    async with asyncio.timeout_at(deadline):
        await (asyncio.sleep(0.001) if seconds == LONG else asyncio.Event().wait())
    return "sent"


@traced_tool(side_effect="reversible")
async def send_while(seconds: float, deadline: float) -> str:
    pauses = 0
    while time.monotonic() < deadline:
        await asyncio.sleep(0.001)
        pauses += 1
        if seconds == LONG:
            return "sent"
    raise TimeoutError(pauses)


async def timeout(limit: float) -> str:
    async with asyncio.timeout(limit):
        return await send(limit)


async def timeout_at(limit: float) -> str:
    async with asyncio.timeout_at(asyncio.get_running_loop().time() + limit) as scope:
        assert scope.when() is not None
        return await send(limit)


async def wait_for(limit: float) -> str:
    return await asyncio.wait_for(send(limit), limit)


async def wait(limit: float) -> str:
    task = asyncio.ensure_future(send(limit))
    done, _ = await asyncio.wait([task], timeout=limit)
    if not done:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise TimeoutError
    return task.result()


async def call_at(limit: float) -> str:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    when = loop.time() + limit
    handle = loop.call_at(when, task.cancel)
    if hasattr(loop, "_run_once"):
        assert handle.when() == when
    try:
        return await send(limit)
    except asyncio.CancelledError:
        raise TimeoutError from None
    finally:
        handle.cancel()


async def move_on_after(limit: float) -> str:
    with anyio.move_on_after(limit):
        return await send(limit)
    raise TimeoutError


async def fail_after(limit: float) -> str:
    with anyio.fail_after(limit):
        return await send(limit)


async def inside_a_tool(limit: float) -> str:
    return await send_until(limit, asyncio.get_running_loop().time() + limit)


async def polled_inside_a_tool(limit: float) -> str:
    return await send_while(limit, time.monotonic() + limit)


async def made_before_the_crash(limit: float) -> str:
    async with asyncio.timeout(limit):
        await look(2)
        return await send(limit)


PROGRAMS: tuple[Program, ...] = (
    timeout,
    timeout_at,
    wait_for,
    wait,
    call_at,
    move_on_after,
    fail_after,
    inside_a_tool,
    polled_inside_a_tool,
    made_before_the_crash,
)


async def beside(program: Program, limit: float) -> str:
    await look(1)
    await begin()
    try:
        return await program(limit)
    except TimeoutError:
        return "too late"


def before(run: Run, tool: str) -> int:
    """How many entries there are before the first call of a tool whose name begins so."""
    text = f'"name":"{tool}'.encode()
    return next(n for n, line in enumerate(lines(run)) if b'"type":"tool.call"' in line and text in line)


@pytest.mark.parametrize("factory", loops().values(), ids=loops())
@pytest.mark.parametrize("seconds", ELSEWHERE)
@pytest.mark.parametrize(("limit", "comes_to"), [(LONG, "sent"), (SHORT, "too late")])
@pytest.mark.parametrize("first", ["begin", "send"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_deadline_of_a_resumed_run(
    program: Program, first: str, limit: float, comes_to: str, seconds: float, factory: Any, tmp_path: Path
) -> None:
    """What is left of it when the log ends is left, however far this machine's clock is from the recorded one."""
    with asyncio.Runner(loop_factory=factory) as runner, record("deadline") as run:
        assert runner.run(beside(program, limit)) == comes_to
    store = tmp_path / "store"
    path = cut(run, before(run, first), store)
    elsewhere(path, seconds)
    with asyncio.Runner(loop_factory=factory) as runner, resume(path, store=store):
        assert runner.run(beside(program, limit)) == comes_to
    with asyncio.Runner(loop_factory=factory) as runner, replay(path, store=store) as session:
        assert runner.run(beside(program, limit)) == comes_to
    assert session.report.exact


def test_a_run_that_was_down_before_has_its_clock_go_on_without_that_time(tmp_path: Path) -> None:
    """A deadline of before the first crash still holds after the second: for as long as nobody made the run its clock stood."""

    async def program() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(LONG):
            await look(1)
            await look(2)
            return await send(LONG), loop.time() - begun

    with record("down twice") as run:
        asyncio.run(program())
    first, second = tmp_path / "first", tmp_path / "second"
    path = cut(run, 5, first)
    with resume(path, store=first) as again:
        asyncio.run(program())
    path = cut(again, before(again, "send"), second)
    down_longer(path, 2 * LONG)
    with resume(path, store=second):
        sent, took = asyncio.run(program())
    assert sent == "sent"
    assert took < LONG


@pytest.mark.parametrize("factory", loops().values(), ids=loops())
@pytest.mark.parametrize("seconds", ELSEWHERE)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_deadline_around_what_goes_live_in_a_replay(
    program: Program, seconds: float, factory: Any, tmp_path: Path
) -> None:
    """Steps that go live are given the time that the program gives them, whatever clock the recorded run had."""
    with asyncio.Runner(loop_factory=factory) as runner, record("what if") as run:
        assert runner.run(beside(program, LONG)) == "sent"
    store = tmp_path / "store"
    path = cut(run, len(lines(run)), store)
    elsewhere(path, seconds)
    with asyncio.Runner(loop_factory=factory) as runner, replay(path, store=store, live={"tool"}):
        assert runner.run(beside(program, LONG)) == "sent"
