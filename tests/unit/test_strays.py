"""Calls that the run does not reach, and what is still running when its block ends."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import os
import random
import threading
from collections.abc import Iterator
from contextvars import Context
from typing import Any

import greenlet
import pytest

import tracekit
from tracekit import Run, current_run, record, replay, traced_tool

done: list[str] = []


@traced_tool(side_effect="irreversible")
def charge(name: str) -> str:
    done.append(name)
    return name


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


def stray(refused: list[BaseException]) -> None:
    """Charge in a thread that no hook knows of."""
    over = _thread.allocate_lock()
    over.acquire()

    def run() -> None:
        try:
            charge("stray")
        except BaseException as error:
            refused.append(error)
        finally:
            over.release()

    _thread.start_new_thread(run, ())
    over.acquire()


def test_a_recording_says_what_passed_it_by() -> None:
    """A traced call in a thread that lost the run is no silent gap: the run names it at its end."""
    with record() as run:
        charge("seen")
        stray([])
    assert any("charge" in sentence and "outside every run" in sentence for sentence in run.warnings)


def test_a_block_that_is_left_in_another_context_warns_of_what_it_missed() -> None:
    """A block in a generator that is resumed in another context, as in a synchronous dependency of FastAPI, does not cover what happens in
    between: an effect that it misses is not only in the run's warnings, but said."""

    def dependency() -> Iterator[Run]:
        with record() as run:
            yield run

    going = dependency()
    run = contextvars.copy_context().run(next, going)
    charge("missed")
    with pytest.warns(RuntimeWarning, match="'charge' was called outside every run .* left in another context"):
        contextvars.copy_context().run(next, going, None)
    assert any("left in another context" in sentence for sentence in run.warnings)


def test_what_runs_in_an_empty_context_belongs_to_the_run() -> None:
    """Libraries keep the values of one call from another by a context without any, as Guardrails does: what runs in one that was made
    within the run is recorded and replayed like everything else, and such a context is a context like any other."""

    async def later() -> str:
        return charge("task")

    async def tasks() -> str:
        return await asyncio.get_running_loop().create_task(later(), context=contextvars.Context())

    def program() -> tuple[object, ...]:
        context = contextvars.Context()
        assert isinstance(context, contextvars.Context)
        assert isinstance(contextvars.copy_context(), contextvars.Context)
        assert type(context) is Context
        assert contextvars.Context == Context
        with pytest.raises(TypeError):
            contextvars.Context("surplus")
        return context.run(charge, "below"), contextvars.Context.run(context, random.random), asyncio.run(tasks())

    with record() as run:
        recorded = program()
    assert done == ["below", "task"]
    assert not any("outside" in sentence for sentence in run.warnings)
    assert contextvars.Context is Context
    done.clear()
    with replay(run) as again:
        assert program() == recorded
    assert done == []
    assert again.report.exact


def test_what_a_greenlet_does_belongs_to_the_run() -> None:
    """A greenlet starts in an empty context. What one does that starts within the run, such as an event loop that it runs while the
    program waits for it (Playwright's plain API), is recorded and replayed like everything else; one that has a context of its own keeps
    it, and afterwards greenlets are as before."""
    switch = vars(greenlet.greenlet)["switch"]

    class Kept(greenlet.greenlet):
        pass

    async def served() -> str:
        return charge("in a loop")

    def loop() -> str:
        here = greenlet.getcurrent().parent
        assert here is not None
        here.switch(asyncio.run(served()))
        return charge("switched to again")

    def program() -> list[object]:
        def outside() -> object:
            return current_run()

        beside = Kept(loop)
        found: list[object] = [beside.switch(), charge("between"), beside.switch(), beside.dead, beside.switch("over")]
        tokens = Kept(outside)
        tokens.gr_context = none
        return [*found, tokens.switch(), Kept(lambda: random.random()).switch()]

    none = contextvars.copy_context()
    with record() as run:
        recorded = program()
    assert done == ["in a loop", "between", "switched to again"]
    assert recorded[-2] is None
    assert not any("outside" in sentence for sentence in run.warnings)
    assert vars(greenlet.greenlet)["switch"] is switch
    done.clear()
    with replay(run) as again:
        assert program() == recorded
    assert done == []
    assert again.report.exact


def test_nothing_strays_into_the_live_world_in_a_replay() -> None:
    """A traced call in a thread that lost the run is refused in a replay, and the replay fails."""
    with record() as run:
        charge("seen")
    done.clear()
    refused: list[BaseException] = []

    def program() -> None:
        charge("seen")
        stray(refused)

    with pytest.raises(tracekit.LiveCallBlockedError, match="charge"), replay(run):
        program()
    assert done == []
    assert [type(error) for error in refused] == [tracekit.LiveCallBlockedError]


def test_beside_live_traffic_other_contexts_are_left_alone() -> None:
    """``guard="context"`` concerns the replay's own context only."""
    with record() as run:
        charge("seen")
    done.clear()
    with replay(run, guard="context"):
        charge("seen")
        stray([])
    assert done == ["stray"]


def test_a_run_waits_for_its_threads() -> None:
    """What a thread of the run does just after the block's last line is in the run, and in its replay."""

    def program(results: list[str]) -> None:
        go, begun = threading.Event(), threading.Event()

        def work() -> None:
            results.append(charge("first"))
            begun.set()
            go.wait()
            results.append(charge("second"))

        threading.Thread(target=work).start()
        begun.wait()
        go.set()

    with record() as run:
        program([])
    assert done == ["first", "second"]
    results: list[str] = []
    with replay(run) as session:
        program(results)
    assert results == ["first", "second"]
    assert session.report.exact


def test_an_async_block_waits_for_its_tasks() -> None:
    """What a task of the run does just after the block's last line is in the run, and in its replay."""

    async def work(gate: asyncio.Event, results: list[str]) -> None:
        results.append(charge("first"))
        await gate.wait()
        results.append(charge("second"))

    async def program(results: list[str]) -> asyncio.Task[None]:
        gate = asyncio.Event()
        task = asyncio.create_task(work(gate, results))
        await asyncio.sleep(0)
        gate.set()
        return task

    async def recorded() -> str:
        async with record() as run:
            task = await program([])
        await task
        return str(run.id)

    run_id = asyncio.run(recorded())
    assert done == ["first", "second"]

    async def replayed() -> list[str]:
        results: list[str] = []
        async with replay(run_id):
            task = await program(results)
        await task
        return results

    assert asyncio.run(replayed()) == ["first", "second"]


@pytest.mark.parametrize(("then", "now"), [(True, False), (False, True), (True, True)])
def test_threads_that_no_hook_knows_of_are_told_apart_for_good(then: bool, now: bool) -> None:
    """Calls in threads that were started below Python, in copies of the run's context, are in a lane for each thread, whether
    the system gives a later one the number of one that is gone (``True``) or not."""

    @traced_tool(side_effect="read_only")
    def look(number: int) -> int:
        return number

    def program(gone: bool) -> list[int]:
        held, answers, begun = list[_thread.LockType](), list[int](), list[int]()
        for number in range(3):
            over, may_end = _thread.allocate_lock(), _thread.allocate_lock()
            over.acquire()
            may_end.acquire()

            def run(number: int = number, over: Any = over, may_end: Any = may_end) -> None:
                answers.append(look(number))
                begun.append(_thread.get_native_id())
                over.release()
                may_end.acquire()

            _thread.start_new_thread(contextvars.copy_context().run, (run,))
            over.acquire()
            if gone:
                may_end.release()
                while os.path.exists(f"/proc/self/task/{begun[-1]}"):
                    pass
            else:
                held.append(may_end)
        for one in held:
            one.release()
        return answers

    with pytest.warns(RuntimeWarning, match="two threads met"), record() as run:
        assert program(then) == [0, 1, 2]
    with replay(run.id) as session:
        assert program(now) == [0, 1, 2]
    assert session.report.exact
