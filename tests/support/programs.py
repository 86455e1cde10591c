"""Random concurrent programs: trees of statements, and the interpreter that runs them on any pair of tools.

A program is a list of statements, each a tuple ``(kind, …)``; a run of it returns a nested list of everything that it saw,
so that two runs are equal only if they saw the same. ``strict`` programs also see who came first: whatever two events do
within microseconds of one another is then part of it, which no recorder of events can tell apart between threads.
"""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

__all__ = ["IN_THREAD", "STATEMENTS", "Tools", "random_program", "run"]

Program = list[tuple[Any, ...]]


class Tools(Protocol):
    """What a program does to the world: each call is a step whose value differs from run to run."""

    async def fetch(self, ms: int) -> object: ...
    async def instant(self) -> object: ...
    def compute(self, ms: int) -> object: ...
    async def report(self, value: object) -> object:
        """A step whose *input* is what the program saw: a replay that saw something else diverges here."""
        ...


_LEAVES = ("fetch", "fetch", "fetch", "instant", "compute", "sleep")
_NODES = (
    "gather",
    "group",
    "first",
    "as_completed",
    "timeout",
    "wait_for",
    "cancel",
    "lock",
    "semaphore",
    "queue",
    "event",
)


def random_program(seed: int, *, size: int = 4) -> Program:
    """The program of ``seed``: some ``size`` statements, three levels deep at most, of tasks alone."""
    rng = random.Random(seed)
    return [_statement(rng, 3) for _ in range(rng.randint(1, size))]


def _statement(rng: random.Random, depth: int) -> tuple[Any, ...]:
    if depth == 0 or rng.random() < 0.35:
        return (rng.choice(_LEAVES), rng.randint(1, 5))
    kind = rng.choice(_NODES)

    def block() -> Program:
        return [_statement(rng, depth - 1) for _ in range(rng.randint(1, 3))]

    if kind in ("gather", "group", "first", "as_completed"):
        return (kind, [block() for _ in range(rng.randint(2, 4))])
    if kind in ("timeout", "wait_for", "cancel"):
        return (kind, rng.randint(1, 6), block())
    if kind in ("lock", "semaphore"):
        return (kind, block())
    if kind == "queue":
        return (kind, [rng.randint(1, 5) for _ in range(rng.randint(2, 5))])
    return (kind, rng.randint(1, 4), rng.randint(1, 4))


class _World:
    """What the tasks and threads of one run share."""

    def __init__(self, tools: Tools, strict: bool) -> None:
        self.tools = tools
        self.strict = strict
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(2)
        self.tlock = threading.Lock()


async def run(program: Program, tools: Tools, *, strict: bool = False) -> list[Any]:
    """Run ``program``; everything that it saw."""
    return await _block(_World(tools, strict), program)


async def _block(world: _World, program: Program) -> list[Any]:
    return [await STATEMENTS[statement[0]](world, *statement[1:]) for statement in program]


async def _fetch(world: _World, ms: int) -> Any:
    return await world.tools.fetch(ms)


async def _instant(world: _World, _: int) -> Any:
    return await world.tools.instant()


async def _compute(world: _World, _: int) -> Any:
    return world.tools.compute(0)


async def _sleep(world: _World, ms: int) -> None:
    await asyncio.sleep(ms / 1000)


async def _gather(world: _World, blocks: list[Program]) -> Any:
    return await asyncio.gather(*(_block(world, block) for block in blocks))


async def _group(world: _World, blocks: list[Program]) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_block(world, block)) for block in blocks]
    return [task.result() for task in tasks]


async def _first(world: _World, blocks: list[Program]) -> Any:
    """The first to end is a step's input, if each begins with an answer of its own to wait for."""
    tasks = [asyncio.ensure_future(_after_an_answer(world, block)) for block in blocks]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [i for i, task in enumerate(tasks) if task in done] if world.strict else 0
        return [await world.tools.report(["first", first]), *await asyncio.gather(*tasks)]
    finally:
        await _dismiss(tasks)


async def _dismiss(tasks: list[Any]) -> None:
    """Leave no task behind: ``asyncio.run`` would cancel those in the order of their addresses."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        while not task.done():
            await asyncio.sleep(0)


async def _as_completed(world: _World, blocks: list[Program]) -> Any:
    order: list[int] = []

    async def numbered(i: int, block: Program) -> Any:
        result = await _after_an_answer(world, block)
        order.append(i)
        return result

    tasks = [asyncio.ensure_future(numbered(i, block)) for i, block in enumerate(blocks)]
    try:
        results = [await task for task in asyncio.as_completed(tasks)]
    finally:
        await _dismiss(tasks)
    # Two tasks that end in one round of the loop have no order where the loop runs a round in any order.
    told = world.strict and not getattr(asyncio.get_running_loop(), "permutes", False)
    return [await world.tools.report(["order", order if told else sorted(order)]), results if told else 0]


async def _after_an_answer(world: _World, block: Program) -> Any:
    return [await world.tools.fetch(2), *(await _block(world, block))]


async def _timeout(world: _World, ms: int, block: Program) -> Any:
    try:
        async with asyncio.timeout(ms / 1000):
            return await _block(world, block)
    except TimeoutError:
        return await world.tools.report("timed out")


async def _wait_for(world: _World, ms: int, block: Program) -> Any:
    try:
        return await asyncio.wait_for(_block(world, block), ms / 1000)
    except TimeoutError:
        return await world.tools.report("timed out")


async def _cancel(world: _World, ms: int, block: Program) -> Any:
    task = asyncio.create_task(_block(world, block))
    try:
        await asyncio.sleep(ms / 1000)
        task.cancel()
        return await task
    except asyncio.CancelledError:
        if not task.cancelled():  # it is this one that was
            await _dismiss([task])
            raise
        return await world.tools.report("cancelled")


async def _lock(world: _World, block: Program) -> Any:
    leaves = [statement for statement in block if statement[0] in _LEAVES]  # no lock in a lock
    async with world.lock:
        return await _block(world, leaves)


async def _semaphore(world: _World, block: Program) -> Any:
    leaves = [statement for statement in block if statement[0] in _LEAVES]
    async with world.semaphore:
        return await _block(world, leaves)


async def _queue(world: _World, delays: list[int]) -> Any:
    items: asyncio.Queue[Any] = asyncio.Queue()

    async def produce(ms: int) -> None:
        items.put_nowait(await world.tools.fetch(ms))

    producers = [asyncio.create_task(produce(ms)) for ms in delays]
    try:
        got = [await items.get() for _ in delays]
        return [await world.tools.report(item if world.strict else 0) for item in got]
    finally:
        await _dismiss(producers)


async def _event(world: _World, ms: int, patience: int) -> Any:
    event = asyncio.Event()

    async def setter() -> None:
        await world.tools.fetch(ms)
        event.set()

    task = asyncio.create_task(setter())
    try:
        await asyncio.wait_for(event.wait(), patience / 1000)
        seen = "set"
    except TimeoutError:
        seen = "late"
    finally:
        await _dismiss([task])
    return await world.tools.report(seen)


# -- threads ---------------------------------------------------------------------------------------------------------------


async def _to_thread(world: _World, block: Program) -> Any:
    return await asyncio.to_thread(_in_thread, world, block)


async def _pool(world: _World, blocks: list[Program]) -> Any:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as pool:
        return await asyncio.gather(*(loop.run_in_executor(pool, _in_thread, world, block) for block in blocks))


async def _threads(world: _World, blocks: list[Program]) -> Any:
    return await asyncio.to_thread(_join_threads, world, blocks)


def _join_threads(world: _World, blocks: list[Program]) -> Any:
    results: dict[int, Any] = {}

    def work(i: int, block: Program) -> None:
        results[i] = _in_thread(world, block)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(blocks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results.get(i) for i in range(len(blocks))]


def _in_thread(world: _World, block: Program) -> list[Any]:
    return [IN_THREAD[kind](world, a, b) for kind, a, b in block]


def _t_compute(world: _World, ms: int, _: int) -> Any:
    return world.tools.compute(ms)


def _t_nap(world: _World, ms: int, _: int) -> None:
    time.sleep(ms / 1000)


def _t_lock(world: _World, ms: int, _: int) -> Any:
    with world.tlock:
        return world.tools.compute(ms)


def _t_get_nothing(world: _World, ms: int, _: int) -> Any:
    try:
        return queue.Queue().get(timeout=ms / 1000)
    except queue.Empty:
        return world.tools.compute(0)


STATEMENTS: dict[str, Callable[..., Awaitable[Any]]] = {
    "fetch": _fetch,
    "instant": _instant,
    "compute": _compute,
    "sleep": _sleep,
    "gather": _gather,
    "group": _group,
    "first": _first,
    "as_completed": _as_completed,
    "timeout": _timeout,
    "wait_for": _wait_for,
    "cancel": _cancel,
    "lock": _lock,
    "semaphore": _semaphore,
    "queue": _queue,
    "event": _event,
    "to_thread": _to_thread,
    "pool": _pool,
    "threads": _threads,
}
IN_THREAD: dict[str, Callable[..., Any]] = {
    "compute": _t_compute,
    "nap": _t_nap,
    "tlock": _t_lock,
    "get_nothing": _t_get_nothing,
}
