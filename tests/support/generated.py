"""Generated concurrent programs: their grammar, the interpreter that runs them, and a way to make a failing one smaller.

A program is a list of statements, each a list ``[kind, argument, …]``; what it returns is all that it saw: answers, orders, how often
it looked before something had happened. Everything that Python's tasks and threads offer is in it but unsynchronised writes to shared
data. How long calls, native sleeps and computations take is multiplied by a *pace* that is another one in each run of a program.

::

    python -m tests.support.generated 4711           record and replay program 4711, and say what became of it
    python -m tests.support.generated 4711 --smaller make it smaller as long as it fails
    python -m tests.support.generated '[["fetch", 5]]'   a program by its text
    python -m tests.support.generated --serve        check the programs that come in, for a ``Checker``
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import contextvars
import ctypes
import faulthandler
import itertools
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tracekit import Report, Run, record, replay, traced, traced_tool
from tracekit.errors import ReplayError

__all__ = [
    "KINDS",
    "Checker",
    "Differs",
    "Pace",
    "check",
    "edited",
    "generate",
    "kinds_of",
    "loops",
    "play",
    "smaller",
    "twice",
]

Block = list[list[Any]]
#: Sleeps below Python, where nothing can see it.
_usleep = ctypes.CDLL(None).usleep


# -- how long things take ------------------------------------------------------------------------------------------------


class Pace:
    """Multiplies durations: a fixed factor, or (``None``) another one each time, drawn from ``seed``."""

    def __init__(self, factor: float | None = None, seed: int = 1) -> None:
        self.factor = factor
        self._state = seed * 2 + 1
        self._lock = threading.Lock()

    def __call__(self, ms: float) -> float:
        if self.factor is not None:
            return ms * self.factor
        with self._lock:  # no generator of Python's: its draws would be the program's
            self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
            return ms * (0.2, 1, 1, 3)[self._state >> 62]

    def native(self, ms: float) -> None:
        _usleep(int(self(ms) * 1000))

    def compute(self, ms: float) -> None:
        for _ in range(int(self(ms) * 20_000)):
            pass


pace = Pace()


# -- tools: what a program does to the world -------------------------------------------------------------------------------

#: How many calls of tools have really been made in this process; their answers are that number, so that no two are equal.
_executed = itertools.count(1)
executed = 0


def _answer() -> int:
    global executed
    executed = next(_executed)
    return executed


@traced_tool(side_effect="read_only")
async def fetch(ms: int) -> int:
    await asyncio.sleep(pace(ms) / 1000)
    return _answer()


@traced_tool(side_effect="reversible")
async def instant() -> int:
    return _answer()


@traced_tool(side_effect="read_only")
def call(ms: int) -> int:
    if ms:
        pace.native(ms)
    return _answer()


@traced_tool(side_effect="read_only")
async def crowd(n: int) -> int:
    """Starts tasks and threads of its own, which a replay does not start."""
    await asyncio.gather(*(asyncio.to_thread(pace.native, i) for i in range(n)), *(asyncio.sleep(0) for _ in range(n)))
    return _answer()


@traced_tool(side_effect="read_only")
async def failing(ms: int) -> int:
    await asyncio.sleep(pace(ms) / 1000)
    raise ValueError(_answer())


@traced_tool(side_effect="irreversible")
async def report(value: object) -> int:
    """A step whose input is what the program saw: a replay that saw something else diverges here."""
    return _answer()


@traced_tool(side_effect="irreversible")
def report_here(value: object) -> int:
    return _answer()


# -- the grammar -----------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of statement: what runs it, how often it is drawn, and what draws its arguments."""

    run: Callable[..., Any]
    weight: int
    arguments: tuple[Callable[[random.Random, int, str], Any], ...]
    where: str
    nests: bool


KINDS: dict[str, Kind] = {}
#: Levels of statements in statements.
DEPTH = 3
#: How often polling code looks before it gives up.
POLLS = 20_000


class Argument(NamedTuple):
    draw: Callable[[random.Random, int, str], Any]
    nests: bool = False


def ms(*choices: int) -> Argument:
    return Argument(lambda rng, depth, where: rng.choice(choices))


def block(where: str | None = None, most: int = 3) -> Argument:
    return Argument(lambda rng, depth, here: _block(rng, depth - 1, where or here, most), nests=True)


def blocks(least: int, most: int, where: str | None = None) -> Argument:
    return Argument(
        lambda rng, depth, here: [_block(rng, depth - 1, where or here, 2) for _ in range(rng.randint(least, most))],
        nests=True,
    )


def several(argument: Argument, least: int, most: int) -> Argument:
    return Argument(
        lambda rng, depth, where: [argument.draw(rng, depth, where) for _ in range(rng.randint(least, most))]
    )


def _block(rng: random.Random, depth: int, where: str, most: int) -> Block:
    return [_statement(rng, depth, where) for _ in range(rng.randint(1, most))]


def _statement(rng: random.Random, depth: int, where: str) -> list[Any]:
    fitting = {name: kind for name, kind in KINDS.items() if kind.where == where and (depth > 0 or not kind.nests)}
    (name,) = rng.choices(list(fitting), [kind.weight for kind in fitting.values()])
    return [name, *(draw(rng, depth, where) for draw in fitting[name].arguments)]


def generate(seed: int, *, without: frozenset[str] = frozenset(), most: int = 4) -> Block:
    """The program of ``seed``, up to ``most`` statements long; none of the kinds ``without`` is in it."""
    rng = random.Random(seed)
    while True:
        program = _block(rng, DEPTH, "task", most)
        if not kinds_of(program) & without:
            return program


def edited(program: Block, rng: random.Random) -> Block:
    """``program`` with one statement less, one part in place of a whole, or another statement put in somewhere."""
    cuts = [cut for cut in _cuts(program) if cut]
    if cuts and rng.random() < 0.5:
        return rng.choice(cuts)
    longer: Block = json.loads(json.dumps(program))
    found = list(_blocks_of(longer))
    chosen = rng.choice(found)
    chosen.insert(rng.randint(0, len(chosen)), _statement(rng, 1, KINDS[chosen[0][0]].where))
    return longer


def _blocks_of(program: Block) -> Iterator[Block]:
    """A program and the blocks in it, on all levels."""
    yield program
    for statement in program:
        for argument in statement[1:]:
            for part in [argument] if _is_block(argument) else argument if isinstance(argument, list) else []:
                if _is_block(part):
                    yield from _blocks_of(part)


def kinds_of(program: Any) -> set[str]:
    """The kinds of statements in a program, on all levels."""
    found: set[str] = set()
    if isinstance(program, list):
        if program and isinstance(program[0], str):
            found.add(program[0])
        for part in program:
            found |= kinds_of(part)
    return found


def in_task(weight: int, *arguments: Argument) -> Callable[[Any], Any]:
    return _kind("task", weight, arguments)


def in_thread(weight: int, *arguments: Argument) -> Callable[[Any], Any]:
    return _kind("thread", weight, arguments)


def _kind(where: str, weight: int, arguments: tuple[Argument, ...]) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        draws = tuple(argument.draw for argument in arguments)
        KINDS[function.__name__] = Kind(function, weight, draws, where, any(argument.nests for argument in arguments))
        return function

    return add


_WAIT = (0, 1, 1, 2, 2, 3, 5, 8, 13)
_NATIVE = (0, 1, 2, 5, 20, 20, 300)
_CPU = (0, 0, 1, 3, 10, 10, 50, 2000)


class World:
    """What the tasks and threads of one run share."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.thread_lock = threading.Lock()
        self.semaphore = threading.Semaphore()
        self.condition = threading.Condition()
        #: What threads share under a lock, by how that is taken.
        self.shared: dict[str, list[int]] = {"lock": [], "semaphore": [], "condition": []}
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        #: One with fewer workers than there may be calls, each of which takes a while to begin.
        self.small = concurrent.futures.ThreadPoolExecutor(2, initializer=pace.native, initargs=(1,))
        #: The calls that tasks have submitted to it, and those in threads that need the loop.
        self.submitted: list[concurrent.futures.Future[Any]] = []
        self.needing: list[asyncio.Future[Any]] = []

    async def settle(self) -> None:
        """Wait for calls in threads that were left behind: a step after the end of the run is on no log.

        The loop waits for the others. The pool is not shut down: whether a thread that was left behind finds it so is a race.
        """
        while left := [one for one in self.needing if not one.done()]:
            await asyncio.gather(*left, return_exceptions=True)
        await asyncio.to_thread(concurrent.futures.wait, self.submitted)


async def play(program: Block) -> list[Any]:
    """Run a program on the loop that is running; all that it saw. It makes a call first: a run without a step replays nothing."""
    world = World()
    try:
        return [await instant(), *await _run(world, program)]
    finally:
        await world.settle()


async def _run(world: World, program: Block) -> list[Any]:
    return [await KINDS[kind].run(world, *arguments) for kind, *arguments in program]


def _run_here(world: World, program: Block) -> list[Any]:
    return [KINDS[kind].run(world, *arguments) for kind, *arguments in program]


# -- statements of tasks: calls, hops, time -----------------------------------------------------------------------------------


@in_task(8, ms(*_WAIT))
async def t_fetch(world: World, ms: int) -> Any:
    return await fetch(ms)


@in_task(2)
async def t_instant(world: World) -> Any:
    return await instant()


@in_task(2, ms(0, 0, 1, 3))
async def t_call(world: World, ms: int) -> Any:
    return call(ms)


@in_task(4, ms(*_WAIT, 30))
async def t_threaded(world: World, ms: int) -> Any:
    return await asyncio.to_thread(call, ms)


@in_task(2, ms(*_WAIT))
async def t_executor(world: World, ms: int) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, ms)


@in_task(2, ms(1, 2, 3))
async def t_crowd(world: World, n: int) -> Any:
    return await crowd(n)


@in_task(2, ms(*_WAIT))
async def t_failing(world: World, ms: int) -> Any:
    try:
        return await failing(ms)
    except ValueError as error:
        return ["raised", *error.args]


@in_task(3, ms(*_NATIVE))
async def t_hop(world: World, ms: int) -> None:
    """A thread in which no step is made."""
    await asyncio.to_thread(pace.native, ms)


@in_task(2, ms(*_WAIT))
async def t_sleep(world: World, ms: int) -> None:
    await asyncio.sleep(ms / 1000)


@in_task(3, ms(1, 2, 3, 10, 50))
async def t_yield(world: World, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@in_task(1, ms(0, 1, 5))
async def t_native(world: World, ms: int) -> None:
    pace.native(ms)


@in_task(1, ms(*_CPU))
async def t_compute(world: World, ms: int) -> None:
    pace.compute(ms)


@in_task(2)
async def t_clock(world: World) -> Any:
    return [time.time(), time.monotonic_ns(), asyncio.get_running_loop().time()]


@in_task(2)
async def t_random(world: World) -> Any:
    return [random.random(), random.randrange(1_000_000)]


@in_task(2, ms(0, 2))
async def t_soon(world: World, ms: int) -> Any:
    """A call made by a callback of the loop, at once or by a timer."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def callback() -> None:
        if not future.done():
            future.set_result(call(0))

    loop.call_later(ms / 1000, callback) if ms else loop.call_soon(callback)
    return await future


# -- statements of tasks: several at once ------------------------------------------------------------------------------------


@in_task(4, blocks(2, 4))
async def t_gather(world: World, blocks: list[Block]) -> Any:
    return await asyncio.gather(*(_run(world, block) for block in blocks))


@in_task(4, blocks(2, 4))
async def t_group(world: World, blocks: list[Block]) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run(world, block)) for block in blocks]
    return [task.result() for task in tasks]


@in_task(4, blocks(2, 4))
async def t_first(world: World, blocks: list[Block]) -> Any:
    tasks = [asyncio.ensure_future(_run(world, block)) for block in blocks]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [i for i, task in enumerate(tasks) if task in done]
        return [first, await report(["first", first]), *await asyncio.gather(*tasks)]
    finally:
        await _dismiss(tasks)


@in_task(2, blocks(2, 3))
async def t_merged(world: World, blocks: list[Block]) -> Any:
    """Streams whose pieces are taken as they come, each of them in a task in the context of its stream."""
    context = contextvars.copy_context()
    contexts = [contextvars.copy_context() for _ in blocks]

    async def stream(block: Block) -> AsyncIterator[Any]:
        for statement in block:
            yield await _run(world, [statement])

    async def merged() -> AsyncIterator[Any]:
        streams = [stream(block) for block in blocks]
        pending: dict[Any, int] = {}

        def ask(i: int) -> None:
            pending[asyncio.create_task(_next(streams[i]), context=contexts[i])] = i

        for i in range(len(streams)):
            ask(i)
        try:
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in pending if task in done]:
                    i, piece = pending.pop(task), task.result()
                    if piece is not _END:
                        ask(i)
                        yield i, piece
        finally:
            await _dismiss(list(pending))

    found, pieces = [], merged()
    while (piece := await asyncio.create_task(_next(pieces), context=context)) is not _END:
        found.append(piece)
    return [await report(["merged", [i for i, _ in found]]), *found]


_END: Final = object()


async def _next(pieces: AsyncIterator[Any]) -> Any:
    return await anext(pieces, _END)


@in_task(3, blocks(2, 4))
async def t_as_completed(world: World, blocks: list[Block]) -> Any:
    order: list[int] = []

    async def numbered(i: int, block: Block) -> Any:
        result = await _run(world, block)
        order.append(i)
        return result

    tasks = [asyncio.ensure_future(numbered(i, block)) for i, block in enumerate(blocks)]
    try:
        results = [await task for task in asyncio.as_completed(tasks)]
    finally:
        await _dismiss(tasks)
    return [order, await report(["order", order]), results]


@in_task(3, ms(1, 2, 5, 10), block())
async def t_timeout(world: World, ms: int, block: Block) -> Any:
    try:
        async with asyncio.timeout(ms / 1000):
            return await _run(world, block)
    except TimeoutError:
        return await report("timed out")


@in_task(3, ms(1, 2, 5, 10), block())
async def t_wait_for(world: World, ms: int, block: Block) -> Any:
    try:
        return await asyncio.wait_for(_run(world, block), ms / 1000)
    except TimeoutError:
        return await report("timed out")


@in_task(3, ms(1, 2, 5, 10), blocks(1, 3))
async def t_wait(world: World, ms: int, blocks: list[Block]) -> Any:
    tasks = [asyncio.ensure_future(_run(world, block)) for block in blocks]
    try:
        done, _ = await asyncio.wait(tasks, timeout=ms / 1000)
        return [[task in done for task in tasks], await report(len(done))]
    finally:
        await _dismiss(tasks)


@in_task(3, several(ms(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 2, 6), ms(1, 3, 5))
async def t_deadlines(world: World, tenths: list[int], base: int) -> Any:
    """Deadlines within a millisecond of one another, and of an answer."""
    expired: list[int] = []
    never = asyncio.Event()

    async def limited(i: int, tenth: int) -> Any:
        try:
            async with asyncio.timeout((base + tenth / 10) / 1000):
                await (fetch(base) if i % 2 else never.wait())
                return "in time"
        except TimeoutError:
            expired.append(i)
            return await instant()

    seen = await asyncio.gather(*(limited(i, tenth) for i, tenth in enumerate(tenths)))
    return [expired, await report(expired), seen]


@in_task(3, ms(1, 2, 5), block())
async def t_cancel(world: World, ms: int, block: Block) -> Any:
    task = asyncio.create_task(_run(world, block))
    try:
        await asyncio.sleep(ms / 1000)
        task.cancel()
        return await task
    except asyncio.CancelledError:
        if not task.cancelled():  # it is this one that was
            await _dismiss([task])
            raise
        return await report("cancelled")


@in_task(3, ms(1, 2, 5, 10), ms(1, 2, 5, 10))
async def t_event(world: World, ms: int, limit: int) -> Any:
    event = asyncio.Event()

    async def setter() -> None:
        await fetch(ms)
        event.set()

    task = asyncio.create_task(setter())
    try:
        await asyncio.wait_for(event.wait(), limit / 1000)
        seen = "set"
    except TimeoutError:
        seen = "late"
    finally:
        await _dismiss([task])
    return [seen, await report(seen)]


@in_task(3, blocks(2, 4))
async def t_lock(world: World, blocks: list[Block]) -> Any:
    """Who gets the lock, one after the other, with calls inside (of which none wants the lock)."""
    order: list[int] = []
    lock = asyncio.Lock()

    async def holder(i: int, block: Block) -> Any:
        await fetch(i % 2)
        async with lock:
            order.append(i)
            return await _run(world, block)

    seen = await asyncio.gather(*(holder(i, block) for i, block in enumerate(blocks)))
    return [order, seen]


@in_task(2, blocks(2, 4))
async def t_semaphore(world: World, blocks: list[Block]) -> Any:
    """Two at a time."""
    order: list[int] = []
    few = asyncio.Semaphore(2)

    async def holder(i: int, block: Block) -> Any:
        async with few:
            order.append(i)
            return await _run(world, block)

    seen = await asyncio.gather(*(holder(i, block) for i, block in enumerate(blocks)))
    return [order, seen]


@in_task(2, ms(2, 3, 6))
async def t_equal(world: World, count: int) -> Any:
    """Equal calls at once, which only their lanes tell apart."""
    return await asyncio.gather(*(fetch(1) for _ in range(count)))


@in_task(2, block())
async def t_span(world: World, block: Block) -> Any:
    @traced("phase")
    async def phase(statements: int) -> Any:
        return [time.time(), await _run(world, block), random.random()]

    return await phase(len(block))


@in_task(3, several(ms(*_WAIT), 2, 5), ms(1, 2, 3))
async def t_queue(world: World, delays: list[int], consumers: int) -> Any:
    items: asyncio.Queue[Any] = asyncio.Queue(maxsize=2)
    seen: list[Any] = []

    async def produce(ms: int) -> None:
        await items.put(await fetch(ms))

    async def consume(i: int) -> None:
        while True:
            item = await items.get()
            seen.append([i, item, await fetch(1)])
            items.task_done()

    tasks = [asyncio.create_task(consume(i)) for i in range(consumers)]
    try:
        await asyncio.gather(*(produce(ms) for ms in delays))
        await items.join()
    finally:
        await _dismiss(tasks)
    return [seen, await report(seen)]


# -- statements of tasks: polling --------------------------------------------------------------------------------------------


@in_task(4, ms(0, 1, 2, 3), block())
async def t_poll(world: World, what: int, block: Block) -> Any:
    """Look in each round of the loop whether a task has ended, an event is set, or something is in a queue."""
    event, items = asyncio.Event(), asyncio.Queue[Any]()

    async def work() -> Any:
        result = await _run(world, block)
        event.set()
        items.put_nowait(len(result))
        return result

    task = asyncio.create_task(work())
    taken: list[Any] = []

    def take() -> bool:
        with contextlib.suppress(asyncio.QueueEmpty):
            taken.append(items.get_nowait())
        return bool(taken)

    happened = (task.done, event.is_set, lambda: items.qsize() > 0, take)[what]
    polls = 0
    try:
        while not happened() and not task.done() and polls < POLLS:
            polls += 1
            await asyncio.sleep(0)
        return [polls, taken, await report(polls), await task]
    finally:
        await _dismiss([task])


@in_task(3, ms(0, 1, 2), block("thread"))
async def t_poll_thread(world: World, what: int, block: Block) -> Any:
    """The same of what a thread does: its future of the loop, a future of a pool, an event that it sets."""
    event = threading.Event()

    def work() -> Any:
        try:
            return _run_here(world, block)
        finally:
            event.set()

    if what == 0:
        future: Any = asyncio.ensure_future(asyncio.to_thread(work))
        happened = future.done
    else:
        future = world.pool.submit(work)
        world.submitted.append(future)
        happened = future.done if what == 1 else event.is_set
    polls = 0
    while not happened() and polls < POLLS:
        polls += 1
        await asyncio.sleep(0)
    result = await (future if what == 0 else asyncio.wrap_future(future))
    return [polls, await report(polls), result]


async def _dismiss(tasks: list[Any]) -> None:
    """Leave no task behind: ``asyncio.run`` would cancel those in the order of their addresses."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        while not task.done():
            await asyncio.sleep(0)


# -- statements of tasks: threads --------------------------------------------------------------------------------------------


@in_task(4, block("thread"))
async def t_to_thread(world: World, block: Block) -> Any:
    return await asyncio.to_thread(_run_here, world, block)


@in_task(3, blocks(2, 4, "thread"))
async def t_pool(world: World, blocks: list[Block]) -> Any:
    loop = asyncio.get_running_loop()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return await asyncio.gather(*(loop.run_in_executor(pool, _run_here, world, block) for block in blocks))


@in_task(3, blocks(2, 4, "thread"))
async def t_threads(world: World, blocks: list[Block]) -> Any:
    return await asyncio.to_thread(th_threads, world, blocks)


@in_task(2, ms(0, 2, 5), ms(0, 2, 5))
async def t_hand_over(world: World, ms: int, limit: int) -> Any:
    """A thread gives an answer to the loop, by a callback and by a task that it has the loop run."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def work() -> Any:
        answer = call(ms)
        loop.call_soon_threadsafe(lambda: future.done() or future.set_result(answer))
        return asyncio.run_coroutine_threadsafe(t_fetch(world, limit), loop).result()

    later = asyncio.ensure_future(asyncio.to_thread(work))
    world.needing.append(later)
    return [await future, await instant(), await asyncio.shield(later)]


@in_task(3, several(ms(0, 1, 2, 5), 1, 3), ms(0, 1, 3))
async def t_give_up(world: World, limits: list[int], ms: int) -> Any:
    """Threads have the loop make calls, and give up on those that take longer than their limits: at once, or while they are made."""
    loop = asyncio.get_running_loop()

    async def one() -> Any:
        task = asyncio.current_task()
        assert task is not None
        world.needing.append(task)
        return await fetch(ms)

    def work() -> Any:
        seen: list[Any] = []
        for limit in limits:
            coroutine = one()
            try:
                future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            except BaseException:  # the replay has failed
                coroutine.close()
                raise
            try:
                seen.append(future.result(timeout=limit / 1000))
            except TimeoutError:
                seen.append(["late", future.cancel()])
        return [seen, report_here(seen)]

    both = [asyncio.ensure_future(asyncio.to_thread(work)) for _ in range(2)]
    world.needing.extend(both)
    return [await asyncio.shield(each) for each in both]


# -- statements of threads ---------------------------------------------------------------------------------------------------


@in_thread(8, ms(*_WAIT))
def th_call(world: World, ms: int) -> Any:
    return call(ms)


@in_thread(3, ms(*_NATIVE))
def th_native(world: World, ms: int) -> None:
    pace.native(ms)


@in_thread(2, ms(*_CPU))
def th_compute(world: World, ms: int) -> None:
    pace.compute(ms)


@in_thread(2, ms(0, 1, 5))
def th_sleep(world: World, ms: int) -> None:
    time.sleep(ms / 1000)


@in_thread(2)
def th_clock(world: World) -> Any:
    return [time.time(), time.perf_counter()]


@in_thread(2)
def th_random(world: World) -> Any:
    return random.random()


@in_thread(3, ms(0, 1, 3), ms(0, 1))
def th_lock(world: World, ms: int, inside: int) -> Any:
    """A call under the lock that all threads share."""
    with world.thread_lock:
        return call(ms)


@in_thread(3, ms(0, 1, 2, 3, 4, 5, 6), ms(0, 0, 1))
def th_shared(world: World, what: int, ms: int) -> Any:
    """What other threads have put into a list before, under a lock that is taken in each way that there is."""
    if what < 3:
        lock, shared = world.thread_lock, world.shared["lock"]
    elif what < 5:
        lock, shared = world.semaphore, world.shared["semaphore"]  # type: ignore[assignment]
    else:
        lock, shared = world.condition, world.shared["condition"]  # type: ignore[assignment]
    if what in (0, 5, 6):
        lock.acquire()
    elif what in (1, 3):
        lock.acquire(timeout=60)
    else:
        while not lock.acquire(blocking=False):
            pace.native(1)
    try:
        there = len(shared)
        if what == 6:
            world.condition.wait_for(lambda: len(shared) > there, 0.002)
        pace.native(ms)
        shared.append(what)
        if what > 4:
            world.condition.notify()
        return [there, *shared]
    finally:
        lock.release()


@in_thread(3, ms(*_WAIT))
def th_small_pool(world: World, ms: int) -> Any:
    """A call in a pool in which threads are in one another's way."""
    return world.small.submit(call, ms).result()


@in_thread(2, blocks(2, 3))
def th_threads(world: World, blocks: list[Block]) -> Any:
    results: dict[int, Any] = {}

    def work(i: int, block: Block) -> None:
        results[i] = _run_here(world, block)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(blocks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results.get(i) for i in range(len(blocks))]


@in_thread(2, blocks(2, 3))
def th_first(world: World, blocks: list[Block]) -> Any:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(_run_here, world, block) for block in blocks]
        done, _ = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED)
        first = [i for i, future in enumerate(futures) if future in done]
        return [first, report_here(["first", first]), *(future.result() for future in futures)]


@in_thread(2, blocks(2, 3))
def th_as_completed(world: World, blocks: list[Block]) -> Any:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(_run_here, world, block) for block in blocks]
        order = [futures.index(future) for future in concurrent.futures.as_completed(futures)]
        return [order, report_here(order), *(future.result() for future in futures)]


@in_thread(3, ms(0, 1, 2, 3, 4, 5), ms(0, 1, 2), block())
def th_poll(world: World, what: int, pause: int, block: Block) -> Any:
    """Look again and again whether a thread has ended, a future is done, an event is set, a queue has something, a lock is free."""
    event, items, lock = threading.Event(), queue.Queue[Any](), threading.Lock()
    held, results = threading.Event(), []

    def work() -> None:
        with lock:
            held.set()
            result = _run_here(world, block)
            results.append(result)
        event.set()
        items.put(len(result))

    taken: list[Any] = []

    def take() -> bool:
        with contextlib.suppress(queue.Empty):
            taken.append(items.get_nowait())
        return bool(taken)

    def acquired() -> bool:
        if free := lock.acquire(blocking=False):
            lock.release()
        return free

    if what == 0:
        future = world.pool.submit(work)
        join: Callable[[], Any] = future.result
        happened: Callable[[], bool] = future.done
    else:
        thread = threading.Thread(target=work)
        thread.start()
        join = thread.join
        happened = (event.is_set, lambda: not thread.is_alive(), lambda: items.qsize() > 0, take, acquired)[what - 1]
    held.wait()
    polls = 0
    while not happened() and polls < POLLS:
        polls += 1
        if pause == 1 or polls > 50:
            pace.native(1)
        elif pause == 2:
            time.sleep(0.0005)
    join()
    return [polls, taken, report_here(polls), results]


@in_thread(3, ms(0, 1, 2, 3, 4), ms(1, 2, 5, 10), block())
def th_limit(world: World, what: int, limit: int, block: Block) -> Any:
    """Wait for a thread with a time limit, in each way that there is."""
    event, items, condition, results = threading.Event(), queue.Queue[Any](), threading.Condition(), []

    def work() -> Any:
        result = _run_here(world, block)
        results.append(result)
        event.set()
        items.put(len(result))
        with condition:
            condition.notify_all()
        return len(result)

    future = world.pool.submit(work)
    seconds = limit / 1000
    try:
        if what == 0:
            seen: Any = event.wait(seconds)
        elif what == 1:
            seen = items.get(timeout=seconds)
        elif what == 2:
            seen = future.result(timeout=seconds)
        elif what == 3:
            with condition:
                seen = condition.wait_for(event.is_set, seconds)
        else:
            seen = len(concurrent.futures.wait([future], timeout=seconds).done)
    except (queue.Empty, TimeoutError):
        seen = "late"
    answer = report_here(seen)
    future.result()
    return [seen, answer, results]


@in_thread(3, several(ms(*_WAIT), 1, 4))
def th_queue(world: World, delays: list[int]) -> Any:
    """One thread hands what its calls answer to another, which makes calls of its own."""
    items: queue.Queue[Any] = queue.Queue(maxsize=1)
    seen: list[Any] = []

    def consume() -> None:
        while (item := items.get()) is not None:
            seen.append([item, call(1)])

    thread = threading.Thread(target=consume)
    thread.start()
    for ms in delays:
        items.put(call(ms))
    items.put(None)
    thread.join()
    return seen


@in_thread(1, block("task"))
def th_loop(world: World, block: Block) -> Any:
    """A loop of its own in a thread."""

    async def main() -> Any:
        world = World()
        try:
            return await _run(world, block)
        finally:
            await world.settle()

    return asyncio.run(main())


# -- recorded and replayed ---------------------------------------------------------------------------------------------------

Loop = Callable[[], asyncio.AbstractEventLoop]
#: Kinds whose steps come in the order in which threads got a lock: another order is possible, and then reported.
LOCKED = frozenset({"th_lock", "th_poll"})


class Differs(AssertionError):
    """A replay that is not the recording, or not exact."""


def loops() -> dict[str, Loop]:
    import uvloop

    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


class Load:
    """What else the machine and the loop have to do: threads that sleep below Python and compute, and tasks of no run."""

    def __init__(self, threads: int = 2, tasks: int = 3) -> None:
        self._ended = threading.Event()
        self._tasks = tasks
        self._threads = [threading.Thread(target=self._work, args=(Pace(None, n),)) for n in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self, busy: Pace) -> None:
        while not self._ended.is_set():
            busy.native(3)
            busy.compute(0.5)

    async def _poll(self, busy: Pace) -> None:
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            busy.compute(0.05)
            await asyncio.sleep(busy(0.5) / 1000)

    async def beside(self, main: Callable[[], Awaitable[Any]]) -> Any:
        """Await ``main()`` while tasks that belong to no run keep its loop busy."""
        others = [asyncio.create_task(self._poll(Pace(None, n))) for n in range(self._tasks)]
        try:
            return await main()
        finally:
            await _dismiss(others)


def run_on(loop: Loop, at: Pace, main: Callable[[], Awaitable[Any]], load: Load | None = None) -> Any:
    """Run ``main()`` on a new loop, with another pace and beside other work."""
    global pace
    pace = at
    with asyncio.Runner(loop_factory=loop) as runner, load or contextlib.nullcontext():
        return runner.run(main() if load is None else load.beside(main))  # type: ignore[arg-type]


async def seen_by(program: Block) -> Any:
    """What :func:`play` returns, as JSON has it."""
    return json.loads(json.dumps(await play(program)))


def recorded_together(programs: list[Block], loop: Loop, at: Pace, load: Load | None = None) -> list[tuple[Run, Any]]:
    """Programs that run at once on one loop, each in a run of its own: the runs, and what each saw."""

    async def one(program: Block) -> tuple[Run, Any]:
        async with record("generated", durability="none") as run:
            return run, await seen_by(program)

    async def all_of_them() -> Any:
        return await asyncio.gather(*(asyncio.create_task(one(program)) for program in programs))

    found: list[tuple[Run, Any]] = run_on(loop, at, all_of_them, load)
    return found


def replayed(
    program: Block,
    run: Run | Path,
    seen: Any,
    loop: Loop,
    at: Pace,
    *,
    on_the_loop: bool = False,
    load: Load | None = None,
) -> Report:
    """Replay the run of a program, around its loop or ``on_the_loop``; :class:`Differs` unless it sees the same, and exactly."""
    story = f"{json.dumps(program)}\n{run if isinstance(run, Path) else run.path}"
    ran = executed
    session = replay(run)

    async def on_it() -> Any:
        async with session:
            return await seen_by(program)

    try:
        if on_the_loop:
            again = run_on(loop, at, on_it, load)
        else:
            with session:
                again = run_on(loop, at, lambda: seen_by(program))
    except ReplayError as failure:
        if session.report.reordered and LOCKED & kinds_of(program):
            return session.report
        raise Differs(f"{story}\n{type(failure).__name__}: {failure}") from failure
    if executed != ran:
        raise Differs(f"{story}\na tool ran in the replay")
    if session.report.reordered and LOCKED & kinds_of(program):
        return session.report
    if again != seen:
        raise Differs(f"{story}\nrecorded {seen}\nreplayed {again}\n{session.report.as_dict()}")
    if not session.report.exact:
        raise Differs(f"{story}\nnot exact: {session.report.as_dict()}")
    return session.report


def check(
    program: Block,
    *,
    first: Loop,
    second: Loop | None = None,
    recorded_at: Pace | None = None,
    replayed_at: Pace | None = None,
) -> Report:
    """Record a program on one loop and replay it on another, each at its own pace."""
    with record("generated", durability="none") as run:
        seen = run_on(first, recorded_at or Pace(1), lambda: seen_by(program))
    return replayed(program, run, seen, second or first, replayed_at or Pace(1))


def twice(program: Block, loop: str, seed: int) -> Report:
    """Record and replay a program on one kind of loop, each call and computation at another pace in each run."""
    made = loops()[loop]
    return check(program, first=made, recorded_at=Pace(None, seed), replayed_at=Pace(None, seed + 7))


class Checker:
    """A process that checks programs, one by one. One that hangs is ended, with its stacks; the next has a new process."""

    def __init__(self, hangs_after: float = 100) -> None:
        self._hangs_after = hangs_after
        self._process: subprocess.Popen[str] | None = None

    def check(self, seed: int, loop: str, store: Path) -> None:
        """:func:`twice`; raises :class:`Differs` also where the process ended meanwhile."""
        with (store / "stderr").open("w+") as stderr:
            process = self._process = self._process or self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([seed, loop, os.fspath(store)]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                self.close()
                raise Differs(f"the process ended, or was ended after {self._hangs_after} s:\n{stderr.read()}")
        if failure := json.loads(answer):
            raise Differs(failure)

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-m", __name__, "--serve", "--hangs-after", str(self._hangs_after)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:  # which closes its input, and waits for its end
                pass


def _serve(hangs_after: float) -> None:
    """The process of a :class:`Checker`."""
    for line in sys.stdin:
        seed, loop, store = json.loads(line)
        os.environ["TRACEKIT_DIR"] = store
        answer = ""
        with Path(store, "stderr").open("w") as stderr:
            faulthandler.dump_traceback_later(hangs_after, exit=True, file=stderr)
            try:
                twice(generate(seed), loop, seed)
            except (Exception, ReplayError) as error:
                answer = "".join(traceback.format_exception(error))
            finally:
                faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), flush=True)


def smaller(program: Block, fails: Callable[[Block], bool]) -> Block:
    """``program`` with as many statements taken away or put in place of their surroundings as still ``fails``."""
    found = True
    while found:
        found = False
        for candidate in _cuts(program):
            if candidate and fails(candidate):
                program, found = candidate, True
                break
    return program


def _cuts(program: Block) -> list[Block]:
    """The programs that have one statement less, one argument cut, or one part in place of a whole."""
    found: list[Block] = [[*program[:i], *program[i + 1 :]] for i in range(len(program))]
    for i, statement in enumerate(program):
        where = KINDS[statement[0]].where
        for n, argument in enumerate(statement[1:], 1):
            inner = [argument] if _is_block(argument) else argument if isinstance(argument, list) else []
            for part in inner:
                if _is_block(part) and all(KINDS[s[0]].where == where for s in part):
                    found.append([*program[:i], *part, *program[i + 1 :]])
            if _is_block(argument):
                found += [_with(program, i, n, cut) for cut in _cuts(argument) if cut]
            elif isinstance(argument, list):
                if len(argument) > 1:
                    found += [_with(program, i, n, argument[:k] + argument[k + 1 :]) for k in range(len(argument))]
                for k, part in enumerate(argument):
                    if _is_block(part):
                        found += [
                            _with(program, i, n, [*argument[:k], cut, *argument[k + 1 :]]) for cut in _cuts(part) if cut
                        ]
    return found


def _is_block(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(s, list) and s and isinstance(s[0], str) for s in value)
    )


def _with(program: Block, i: int, n: int, argument: Any) -> Block:
    statement = [*program[i][:n], argument, *program[i][n + 1 :]]
    return [*program[:i], statement, *program[i + 1 :]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", nargs="?", default="1", help="a number, or the program itself")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--hangs-after", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--smaller", action="store_true")
    parser.add_argument("--paces", default="1,1", help="of recording and replay; 0: another one each time")
    options = parser.parse_args()
    if options.serve:
        _serve(options.hangs_after)
        return
    program: Block = generate(int(options.program)) if options.program.isdigit() else json.loads(options.program)
    recorded, replayed = (float(factor) or None for factor in options.paces.split(","))

    def failure(candidate: Block) -> str | None:
        for n in range(options.times):
            try:
                check(
                    candidate,
                    first=loops()[options.loop],
                    recorded_at=Pace(recorded, n),
                    replayed_at=Pace(replayed, n + 99),
                )
            except Differs as differs:
                return str(differs)
        return None

    os.environ["TRACEKIT_DIR"] = tempfile.mkdtemp()
    found = failure(program)
    if found and options.smaller:
        program = smaller(program, lambda candidate: failure(candidate) is not None)
        found = failure(program) or found
    print(json.dumps(program), found or "exact", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
