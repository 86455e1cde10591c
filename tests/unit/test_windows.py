"""Readings of clocks and random numbers stay with the line that makes them, whoever else takes what comes between them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tracekit import record, replay, traced_tool


class Ids:
    """Ids in the order of time: one in the same instant as the last one is told apart by fewer random bytes, as a UUIDv7 is."""

    def __init__(self) -> None:
        self.last = 0

    def new(self) -> str:
        now = time.time_ns()
        more = os.urandom(10 if now > self.last else 4)
        self.last = max(self.last, now)
        return f"{now:x}{more.hex()}"


@traced_tool(side_effect="read_only")
async def pieces(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield i


@traced_tool(side_effect="read_only")
def parts(n: int) -> Iterator[int]:
    yield from range(n)


async def drained(stream: AsyncIterator[int], ids: Ids) -> list[Any]:
    return [[one, ids.new()] async for one in stream]


async def read_to_its_end_elsewhere(ids: Ids) -> list[Any]:
    """A stream is begun here, and another task reads it to its end."""
    stream = pieces(3)
    seen: list[Any] = [await anext(stream), ids.new()]
    seen.append(await asyncio.create_task(drained(stream, ids)))
    return [*seen, ids.new(), ids.new()]


async def a_task_a_piece(ids: Ids) -> list[Any]:
    """As whoever waits for the next piece with a time limit reads it."""
    stream, seen = pieces(3), []
    while True:
        waiting = asyncio.ensure_future(anext(stream, None))
        await asyncio.wait([waiting], timeout=60)
        seen.append([waiting.result(), ids.new()])
        if waiting.result() is None:
            return [*seen, ids.new()]


async def begun_in_a_task(ids: Ids) -> list[Any]:
    """The other way round: a task begins it, and the rest is read by who started that."""

    async def begin() -> Any:
        stream = pieces(3)
        return stream, await anext(stream), ids.new()

    stream, *first = await asyncio.create_task(begin())
    return [*first, ids.new(), await drained(stream, ids), ids.new()]


async def beside_it(ids: Ids) -> list[Any]:
    """Who began it goes on reading its clock while another task reads the stream."""
    stream, own = pieces(4), Ids()
    seen: list[Any] = [await anext(stream), ids.new()]
    task = asyncio.create_task(drained(stream, own))
    while not task.done():
        seen.append(ids.new())
        await asyncio.sleep(0)
    return [*seen, ids.new(), task.result()]


async def left_open(ids: Ids) -> list[Any]:
    """Streams that nobody reads to the end: the loop closes them when it ends, one after another."""
    kept: list[Any] = [pieces(3) for _ in range(3)]
    seen: list[Any] = [await anext(stream) for stream in kept]

    async def watched(n: int) -> AsyncIterator[str]:
        try:
            yield ids.new()
        finally:
            seen.append([n, ids.new()])

    for n in range(8):
        kept.append(watched(n))
        seen.append(await anext(kept[-1]))
    asyncio.get_running_loop().kept = kept  # type: ignore[attr-defined]
    seen.append(ids.new())
    return seen


async def one_call(ids: Ids) -> list[Any]:
    return [ids.new(), [one async for one in pieces(2)], ids.new()]


async def in_a_thread(ids: Ids) -> list[Any]:
    stream = parts(3)
    seen: list[Any] = [next(stream), ids.new()]
    seen.append(await asyncio.to_thread(lambda: [[one, time.time_ns()] for one in stream]))
    return [*seen, ids.new(), ids.new()]


async def beside_a_thread(ids: Ids) -> list[Any]:
    """Who began it reads its clock while a thread reads the stream: which of them is faster nobody knows."""
    stream, own, seen = parts(4), Ids(), []
    thread = threading.Thread(target=lambda: seen.extend([one, own.new()] for one in stream))
    first = [next(stream), ids.new()]
    thread.start()
    first += [ids.new() for _ in range(5)]
    thread.join()
    return [*first, ids.new(), seen]


PROGRAMS = [
    read_to_its_end_elsewhere,
    a_task_a_piece,
    begun_in_a_task,
    beside_it,
    left_open,
    in_a_thread,
    beside_a_thread,
]


def whole(program: Callable[[Ids], Any]) -> list[Any]:
    """The program in three event loops, one after another, and reads around them."""
    ids = Ids()
    seen = [ids.new(), asyncio.run(program(ids)), ids.new()]
    return [*seen, asyncio.run(one_call(ids)), asyncio.run(program(ids)), ids.new()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_stream_that_one_begins_and_another_reads(program: Callable[[Ids], Any]) -> None:
    """Each gets the readings that it had, in the loop, in the loops after it, and where no loop runs."""
    with record("read elsewhere") as recorded:
        expected = whole(program)
    for _ in range(2):
        with replay(recorded.id) as session:
            assert whole(program) == expected
        assert session.report.exact
        assert not session.report.verdict.remarks
