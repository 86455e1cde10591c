"""A set of a run's tasks, or of its pools' futures, is iterated in the recorded order in a replay."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.support.place import Place
from tracekit import record, replay

_KEPT: list[Any] = []


def _elsewhere() -> None:
    """Take a random amount of memory of many sizes, so that what is created next is at an address that nobody can foretell."""
    for byte in os.urandom(4):
        _KEPT.append([bytearray(size) for size in range(16, 16 + 16 * (byte % 16), 16)])


async def _value(n: int) -> int:
    await asyncio.sleep(0)
    return n


async def _other(n: int) -> int:
    return await _value(100 + n)


async def _tasks() -> list[int]:
    asked: set[asyncio.Task[int]] = set()
    for n in range(24):
        _elsewhere()
        asked.add(asyncio.create_task(_value(n)))
        if n % 3 == 0:
            _elsewhere()
            asked.add(asyncio.create_task(_other(n)))
    first = [await task for task in asked]
    _elsewhere()
    more = {asyncio.create_task(_value(n)) for n in range(200, 208)}
    return first + list(await asyncio.gather(*(asked | more)))


def _futures() -> list[int]:
    with ThreadPoolExecutor(3) as pool:
        asked = set()
        for n in range(24):
            _elsewhere()
            asked.add(pool.submit(pow, n, 2))
        return [future.result() for future in asked]


@pytest.mark.parametrize(
    "program",
    [
        lambda: asyncio.run(_tasks()),
        lambda: asyncio.run(_tasks(), debug=True),
        lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_tasks()),
        _futures,
    ],
    ids=["asyncio", "debug", "uvloop", "pool"],
)
def test_a_replay_meets_a_set_in_the_recorded_order(program: Callable[[], list[int]]) -> None:
    """Wherever its members are in memory."""
    with record("sets") as run:
        recorded = program()
    for _ in range(3):
        _elsewhere()
        with replay(run.id) as session:
            assert program() == recorded
        assert session.report.exact


def test_what_stands_around_a_program_does_not_change_its_sets() -> None:
    """A middleware's task around it, say."""

    async def wrapped() -> list[int]:
        return await asyncio.create_task(_tasks())

    with record("sets") as run:
        recorded = asyncio.run(_tasks())
    with replay(run.id):
        assert asyncio.run(wrapped()) == recorded


def test_a_task_is_found_in_its_set_after_its_run() -> None:
    """One that outlives the run, in a set that the program keeps, and in asyncio's own."""

    async def main() -> None:
        go_on = asyncio.Event()

        async def outlasting() -> None:
            await go_on.wait()

        background: set[asyncio.Task[None]] = set()
        with record("sets"):
            task = asyncio.create_task(outlasting())
            background.add(task)
            task.add_done_callback(background.discard)
            within = hash(task)
        assert hash(task) == within
        assert task in background
        assert task in asyncio.all_tasks()
        go_on.set()
        await task
        assert background == set()

    asyncio.run(main())


def test_a_task_of_a_run_looks_as_any_other() -> None:
    """To whoever asks what it is; its loop makes other tasks as before."""

    async def main() -> None:
        plain = asyncio.create_task(_value(1), name="it")
        shown = repr(plain).partition(" coro=")[0]
        with record("sets"):
            task = asyncio.create_task(_value(1), name="it")
            assert isinstance(task, asyncio.Task)
            assert asyncio.isfuture(task)
            assert repr(task).partition(" coro=")[0] == shown
            kinds = type(task), asyncio.Task
            assert kinds[0].__module__ == kinds[1].__module__
            assert kinds[0].__qualname__ == kinds[1].__qualname__
            again: Any = type(task)(_value(2), loop=asyncio.get_running_loop())
            assert await asyncio.gather(task, again) == [1, 2]
            with pytest.raises(TypeError):
                await asyncio.create_task(3)  # type: ignore[arg-type]
            assert asyncio.get_running_loop().get_task_factory() is None
        assert type(asyncio.create_task(_value(3))) is asyncio.Task
        await plain

    asyncio.run(main())


#: The method that event loops have from Python 3.13.3 on, which passes on what it does not know.
EAGER = """
import asyncio, inspect

def create_task(self, coro, **options):
    if self._task_factory is not None:
        return self._task_factory(self, coro, **options)
    return asyncio.Task(coro, loop=self, **options)

if "context" in inspect.signature(asyncio.BaseEventLoop.create_task).parameters:
    asyncio.BaseEventLoop.create_task = create_task

from tracekit import record

def factory(loop, coro, **options):
    return asyncio.Task(coro, loop=loop, **options)

async def value(n):
    await asyncio.sleep(0)
    return n

async def first():
    loop = asyncio.get_running_loop()
    print(loop.get_task_factory())
    within = loop.create_task(value(1))
    loop.set_task_factory(factory)
    return within

async def main():
    loop = asyncio.get_running_loop()
    with record("sets"):
        task = loop.create_task(first(), eager_start=True)
        print(loop.get_task_factory() is factory)
        within = task.result()
        print(hash(within) != hash(task), await within)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no task is eager")
def test_a_task_that_begins_where_it_is_created(tmp_path: Path) -> None:
    """With ``create_task(eager_start=True)`` the first piece of a task finds its loop as it is, what it changes there stays, and
    the tasks that it creates are others than itself."""
    place = Place(tmp_path)
    done = place.python(place.program(EAGER))
    assert (done.stdout, done.stderr) == ("None\nTrue\nTrue 1\n", "")


def test_a_task_is_what_the_program_makes_of_it() -> None:
    """A factory, or a class that somebody has put in the place of asyncio's, is used as it is."""

    class Mine(asyncio.Task[Any]):
        pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, coro, **options: Mine(coro, loop=loop, **options))
        with record("sets"):
            task = loop.create_task(_value(1))
            assert type(task) is Mine
            await task
        loop.set_task_factory(None)
        asyncio.tasks.Task, found = Mine, asyncio.tasks.Task  # type: ignore[misc,attr-defined]
        try:
            with record("sets"):
                task = loop.create_task(_value(1))
                assert type(task) is Mine
                await task
        finally:
            asyncio.tasks.Task = found  # type: ignore[misc,attr-defined]

    asyncio.run(main())
