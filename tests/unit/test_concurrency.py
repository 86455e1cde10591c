"""Lanes in practice: whoever starts it and however a library runs it, each line of execution has its own."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import os
import random
import signal
import threading
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
import uvloop
from langchain_core.runnables.config import ContextThreadPoolExecutor

import tracekit
from tests.support.simulation import Recording, Replay
from tests.support.tracing import of_type
from tracekit._capture import prompts, world
from tracekit._runtime.lane import Lane
from tracekit.integration import current, here


@pytest.fixture
def run() -> Iterator[Recording]:
    with Recording() as session:
        yield session
    assert session.state.root is not None
    assert session.state.root.owned == {}


def path(*_: object) -> str:
    """A step: which lane it is in."""
    scope = here()
    assert scope is not None
    return scope.lane.path


async def lane(*_: object) -> str:
    return path()


async def two_steps(*_: object) -> tuple[str, str]:
    before = path()
    await asyncio.sleep(0)
    return before, path()


def test_the_callbacks_of_a_task_in_a_given_context_are_its_own(run: Recording) -> None:
    """From its first piece on, and where the context is a copy that was made in a task with a context of its own (as LangChain does for
    each chunk of a stream): a replay holds the lane whose callbacks they are."""

    def counted() -> int:
        scope = here()
        assert scope is not None
        return scope.lane.since

    async def inner() -> tuple[str, int, int]:
        first = counted()
        await asyncio.sleep(0)
        return path(), first, counted()

    async def outer() -> list[Any]:
        contexts = [contextvars.copy_context(), contextvars.copy_context()]
        return [await asyncio.create_task(inner(), context=context) for context in contexts]

    async def main() -> Any:
        return await asyncio.create_task(outer(), context=contextvars.copy_context())

    outer_name, inner_name = outer.__qualname__, inner.__qualname__
    assert asyncio.run(main()) == [(f"/{outer_name}#1/{inner_name}#{n}", 1, 2) for n in (1, 2)]


def test_a_task_has_ended_before_the_next_in_its_context_begins() -> None:
    """In a replay, too, also where the ended task has started another one in its last piece: what the next task in that context leaves to
    be called counts for its own lane, as in the recording."""

    async def beside() -> None:
        pass

    async def first() -> asyncio.Task[None]:
        return asyncio.create_task(beside())

    async def second() -> tuple[str, int]:
        scope = here()
        assert scope is not None
        return scope.lane.path, scope.lane.since

    async def main() -> Any:
        context = contextvars.copy_context()
        await asyncio.create_task(first(), context=context)
        return await asyncio.create_task(second(), context=context)

    with Recording() as recording:
        recorded = asyncio.run(main())
    with Replay(recording.log):
        assert asyncio.run(main()) == recorded == (f"/{second.__qualname__}#1", 1)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_task_has_left_its_context_as_soon_as_it_is_done(run: Recording, rounds: int) -> None:
    """Whether its callbacks have run by then or not: a callback of the next task in that context is that task's."""

    async def first() -> None:
        pass

    async def second() -> str:
        called: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: called.set_result(path()))
        return await called

    async def main() -> str:
        context = contextvars.copy_context()
        ended = asyncio.create_task(first(), context=context)
        for _ in range(rounds):
            await asyncio.sleep(0)
        assert ended.done()
        return await asyncio.create_task(second(), context=context)

    assert asyncio.run(main()) == f"/{second.__qualname__}#1/callback#1"


def test_tasks_have_lanes_by_name_and_order_of_their_start(run: Recording) -> None:
    """gather, TaskGroup, create_task and ensure_future: the n-th of its name that its parent started."""

    async def main() -> list[Any]:
        a = await asyncio.gather(lane(), two_steps(), lane())
        async with asyncio.TaskGroup() as group:
            b = [group.create_task(lane()), group.create_task(two_steps())]
        return [
            *a,
            *(task.result() for task in b),
            await asyncio.ensure_future(lane()),
            await asyncio.create_task(lane()),
        ]

    a, b, c, d, e, f, g = asyncio.run(main())
    assert (a, c, d, f, g) == tuple(f"/lane#{n}" for n in range(1, 6))
    assert b == ("/two_steps#1",) * 2
    assert e == ("/two_steps#2",) * 2


def test_uvloop_and_eager_tasks(run: Recording) -> None:
    """Another loop, tasks that begin at once, and a context that is handed in: the same lanes."""

    async def main() -> list[Any]:
        context = contextvars.copy_context()
        return [
            await asyncio.create_task(lane()),
            await asyncio.create_task(lane(), context=context),
            await asyncio.create_task(two_steps(), context=context),
            path(),
        ]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == ["/lane#1", "/lane#2", ("/two_steps#1",) * 2, ""]
    if hasattr(asyncio, "eager_task_factory"):
        with asyncio.Runner() as runner:
            runner.get_loop().set_task_factory(asyncio.eager_task_factory)
            assert runner.run(main())[0] == "/lane#3"


def test_as_completed_starts_its_coroutines_in_order(run: Recording) -> None:
    """asyncio goes through a set, whose order follows addresses; the first coroutine is the first lane all the same."""

    async def main() -> list[tuple[int, str]]:
        async def numbered(i: int) -> tuple[int, str]:
            return i, path()

        return [await each for each in asyncio.as_completed([numbered(i) for i in range(20)])]

    for i, where in asyncio.run(main()):
        assert where.endswith(f"numbered#{i + 1}")


def test_what_is_done_is_met_in_the_order_of_asking(run: Recording) -> None:
    """A program that loops over the ``done`` of ``asyncio.wait`` meets the tasks in the same order each time."""

    async def main() -> list[int]:
        async def value(i: int) -> int:
            return i

        done, pending = await asyncio.wait([asyncio.ensure_future(value(i)) for i in range(20)])
        assert isinstance(done, set)
        assert not pending
        return [task.result() for task in done]

    assert asyncio.run(main()) == list(range(20))


def test_threads_and_timers(run: Recording) -> None:
    """A thread, a subclass of Thread and a Timer each have a lane named after what they run."""
    seen: list[str] = []

    def work() -> None:
        seen.append(path())

    class Worker(threading.Thread):
        def run(self) -> None:
            seen.append(path())

    for thread in (threading.Thread(target=partial(work)), Worker(), threading.Timer(0.001, work)):
        thread.start()
        thread.join()
        assert "run" not in vars(thread)
    name = "/test_threads_and_timers.<locals>"
    assert seen == [f"{name}.work#1", f"{name}.Worker#1", f"{name}.work#2"]


def test_submitted_calls_have_the_lane_not_the_workers(run: Recording) -> None:
    """Twenty calls on two workers have twenty lanes; partials and copied contexts are seen through."""
    with ThreadPoolExecutor(2) as pool:
        a = [future.result() for future in [pool.submit(path, i) for i in range(10)]]
        b = list(pool.map(path, range(5)))
        c = pool.submit(partial(contextvars.copy_context().run, partial(path, 1))).result()
    assert [*a, *b, c] == [f"/path#{n}" for n in range(1, 17)]


def test_langchains_executor(run: Recording) -> None:
    """It runs each call in a copy of the caller's context, which would undo a lane that was set outside."""
    with ContextThreadPoolExecutor(2) as pool:
        assert [pool.submit(path, i).result() for i in range(3)] == ["/path#1", "/path#2", "/path#3"]
        assert len(set(pool.map(path, range(4)))) == 4


def test_what_a_call_in_a_copied_context_starts_is_its_own(run: Recording) -> None:
    """The executor above runs a call in a copy of the caller's context: the threads, calls and tasks that this call starts are
    children of its lane, not of the caller's, for whom they would be counted in the order in which several calls got so far."""

    def nested(_: object) -> tuple[str, list[str]]:
        seen: list[str] = []
        with ContextThreadPoolExecutor(1) as inner:
            seen += inner.map(path, range(2))
        thread = threading.Thread(target=lambda: seen.append(path()))
        thread.start()
        thread.join()
        seen.append(asyncio.run(alone()))
        return path(), seen

    async def alone() -> str:
        return await asyncio.create_task(lane())

    with ContextThreadPoolExecutor(2) as pool:
        found = list(pool.map(nested, range(2)))
    assert len({outer for outer, _ in found}) == 2
    for outer, inner in found:
        assert [where.startswith(f"{outer}/") for where in inner] == [True] * 4, (outer, inner)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_calls_handed_to_threads_by_loops(run: Recording, factory: Callable[[], Any]) -> None:
    """to_thread, run_in_executor and anyio's to_thread: a lane for each call, entered inside the copied context."""

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        return [
            *await asyncio.gather(*(asyncio.to_thread(path, i) for i in range(3))),
            await loop.run_in_executor(None, path, 1),
            await anyio.to_thread.run_sync(path),
            await anyio.to_thread.run_sync(partial(path, 1)),
        ]

    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(main())
    assert [where.rpartition("/")[2] for where in found] == ["path#1"] * 3 + [f"path#{n}" for n in (1, 2, 3)]
    assert len(set(found)) == 6


def test_calls_from_a_thread_into_the_loop(run: Recording) -> None:
    """anyio.from_thread: what the thread starts in the loop is a child of the thread's call."""

    def work() -> tuple[str, str, str]:
        return path(), anyio.from_thread.run_sync(path), anyio.from_thread.run(lane)

    async def main() -> tuple[str, str, str]:
        return await anyio.to_thread.run_sync(work)

    here_, sync, task = asyncio.run(main())
    assert here_.endswith("work#1")
    assert sync == f"{here_}/path#1"
    assert task.startswith(f"{here_}/")


def test_anyio_groups(run: Recording) -> None:
    """Tasks of an anyio group are named after their own coroutines."""
    seen: list[str] = []

    async def note() -> None:
        seen.append(path())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(note)
            group.start_soon(note)

    anyio.run(main)
    assert [where.rpartition(">.")[2] for where in seen] == ["note#1", "note#2"]


def test_a_step_from_elsewhere_opens_a_callback_lane(run: Recording) -> None:
    """``call_soon`` and done callbacks run in somebody's context without being that somebody."""

    async def main() -> list[str]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(lambda: seen.append(path()))
        asyncio.create_task(lane()).add_done_callback(lambda _: seen.append(path()))
        await asyncio.sleep(0.001)
        return [*seen, path()]

    first, second, own = asyncio.run(main())
    assert first == second == f"{own}/callback#1"


def test_what_is_started_inside_a_live_step_shifts_nothing(run: Recording) -> None:
    """A replay does not start it at all: it is numbered under that step."""

    async def main() -> tuple[str, str]:
        async def body() -> str:
            return await asyncio.create_task(lane())

        return await run.call("tool", None, body), await asyncio.create_task(lane())

    inside, after = asyncio.run(main())
    assert "/lane#1@" in inside
    assert after.endswith("/lane#1")


def test_an_ended_lane_belongs_to_nobody(run: Recording) -> None:
    """An ident or address that is given again leads no step into the lane of who had it before."""
    lanes: list[Lane] = []

    async def keep() -> None:
        scope = here()
        assert scope is not None
        lanes.append(scope.lane)

    def keep_in_thread() -> None:
        asyncio.run(keep())
        scope = here()
        assert scope is not None
        lanes.append(scope.lane)

    thread = threading.Thread(target=keep_in_thread)
    thread.start()
    thread.join()
    assert [each.owner for each in lanes] == [-1, -1]


def test_everything_is_restored() -> None:
    """After the last holder the classes are exactly what they were, what was not there included."""

    def state() -> list[Any]:
        places = [BaseEventLoop, threading.Thread, ThreadPoolExecutor, uvloop.Loop, asyncio.tasks]
        return [dict(vars(place)) for place in places]

    before = state()
    world.enter()
    world.enter()
    world.leave()
    assert state() != before
    world.leave()
    assert state() == before


def _places() -> list[Any]:
    return [dict(vars(place)) for place in (os, threading.Thread, ThreadPoolExecutor, signal, datetime.datetime)]


def test_hooks_that_cannot_all_be_installed_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one hook cannot be installed, the run does not begin and everything is as it was; the next run records as usual."""
    before = _places()
    with monkeypatch.context() as patch:
        patch.setattr(prompts.hooks, "activate", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError), tracekit.record():
            pass
    assert not world.active()
    assert _places() == before
    with tracekit.record() as run:
        random.random()
    assert len(of_type(run, "random")) == 1
    assert _places() == before


def test_a_hook_that_cannot_be_removed_keeps_no_other_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """If removing one hook fails, the others are removed all the same, and the error is raised."""
    before = _places()
    removed = prompts.hooks.deactivate

    def deactivate() -> None:
        removed()
        raise ZeroDivisionError

    world.enter()
    with monkeypatch.context() as patch:
        patch.setattr(prompts.hooks, "deactivate", deactivate)
        with pytest.raises(ZeroDivisionError):
            world.leave()
    assert not world.active()
    assert _places() == before


def test_outside_a_run_nothing_happens() -> None:
    """With the hooks in place, tasks and threads without a run get no lane."""
    world.enter()
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(current.get).result() is None

        async def main() -> Any:
            return await asyncio.create_task(asyncio.to_thread(current.get))

        assert asyncio.run(main()) is None
    finally:
        world.leave()


def test_a_forked_child_leaves_the_run_before_its_code_goes_on() -> None:
    """What it captures at once goes into a file of its own: that of the run is the parent's."""
    with tracekit.record() as run:
        child = os.fork()
        if not child:
            random.random()
            os._exit(0)
        os.waitpid(child, 0)
    segments = [*Path(run.path).parent.glob(f"{run.id}.*.jsonl")]
    assert len(segments) == 1
    assert b'"random.random"' in segments[0].read_bytes()
    assert b'"random.random"' not in Path(run.path).read_bytes()
