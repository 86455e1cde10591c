"""Concurrent programs with real tools, recorded under one scheduler and replayed under another."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.drawn import Attentive, compute, drawn_programs, fetch, play, recorded_and_replayed
from tests.support.simulation import Shuffled

SEEDS = st.integers(0, 2**20)
COMMON: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    "phases": [Phase.explicit, Phase.generate, Phase.shrink],
}


def same_twice(program: list[Any], seed: int, *, threads: bool) -> None:
    loop = Attentive if threads else Shuffled
    recorded_and_replayed(
        lambda: play(program, strict=not threads),
        lambda: loop(seed),
        lambda: loop(seed + 1),
        contended="'tlock'" in repr(program),
    )


@settings(max_examples=25, **COMMON)
@given(drawn_programs(threads=False), SEEDS)
def test_tasks(program: list[Any], seed: int) -> None:
    """What tasks, groups, locks, queues, time-outs and cancellation came to is what they come to in a replay."""
    same_twice(program, seed, threads=False)


@settings(max_examples=15, **COMMON)
@given(drawn_programs(threads=True), SEEDS)
def test_tasks_and_threads(program: list[Any], seed: int) -> None:
    """The same where threads and pools take part: their answers, events, queues and time-outs."""
    same_twice(program, seed, threads=True)


@pytest.mark.programs_full
@pytest.mark.timeout(1800)
@settings(max_examples=400, **COMMON)
@given(drawn_programs(threads=False), SEEDS)
def test_hundreds_of_tasks(program: list[Any], seed: int) -> None:
    """The same, hundreds of times."""
    same_twice(program, seed, threads=False)


@pytest.mark.programs_full
@pytest.mark.timeout(1800)
@settings(max_examples=200, **COMMON)
@given(drawn_programs(threads=True), SEEDS)
def test_hundreds_of_tasks_and_threads(program: list[Any], seed: int) -> None:
    """The same, hundreds of times."""
    same_twice(program, seed, threads=True)


# -- by hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loop", [Attentive, asyncio.SelectorEventLoop, uvloop.Loop], ids=["shuffled", "asyncio", "uvloop"]
)
def test_fifty_at_once(loop: Any) -> None:
    """Fifty equal calls at once, answered in another order than they were made: each gets its own answer, in that order."""
    delays = [7 * i % 50 for i in range(50)]

    async def main() -> Any:
        order: list[int] = []

        async def ask(i: int) -> int:
            answer = await fetch(delays[i])
            order.append(i)
            return answer

        answers = await asyncio.gather(*(ask(i) for i in range(50)))
        return answers, order

    (answers, order), report = recorded_and_replayed(main, *(two(loop)))
    assert len(set(answers)) == 50
    assert order != sorted(order)
    assert report.exact


@pytest.mark.parametrize(
    "loop", [Attentive, asyncio.SelectorEventLoop, uvloop.Loop], ids=["shuffled", "asyncio", "uvloop"]
)
def test_first_completed_as_completed_and_time_out(loop: Any) -> None:
    """Who was first, in which order the others came, and who was too late, is as it was."""

    async def main() -> Any:
        tasks = [asyncio.create_task(fetch(ms)) for ms in (60, 20, 100)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = [task in done for task in tasks]
        later = [await task for task in asyncio.as_completed([fetch(ms) for ms in (60, 20, 100)])]
        try:
            late = await asyncio.wait_for(fetch(200), 0.01)
        except TimeoutError:
            late = "late"
        async with asyncio.timeout(5):
            in_time = await fetch(1)
        return first, later, late, in_time, await asyncio.gather(*tasks), time.time(), random.random()

    seen, report = recorded_and_replayed(main, *two(loop))
    assert seen[0] == [False, True, False]
    assert seen[1] == sorted(seen[1])
    assert seen[2] == "late"
    assert report.exact


def test_twenty_threads() -> None:
    """Twenty threads that take turns at one lock, a semaphore and a queue, started together: each gets its own answers."""

    async def main() -> Any:
        return await asyncio.to_thread(crowd)

    def crowd() -> Any:
        lock, few, start = threading.Lock(), threading.Semaphore(3), threading.Barrier(20)
        seen: dict[int, Any] = {}

        def work(i: int) -> None:
            start.wait()
            own = [compute(0), time.time(), random.random()]
            with lock:
                own.append(compute(i % 3))
            with few:
                own.append(compute(0))
            seen[i] = own

        threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [seen[i] for i in range(20)]

    seen, _ = recorded_and_replayed(main, *two(asyncio.SelectorEventLoop), contended=True)
    assert len({value for own in seen for value in own if isinstance(value, int)}) == 60


def two(loop: Any) -> tuple[Any, Any]:
    """Two makers of loops that schedule differently where they can."""
    return (lambda: Attentive(1), lambda: Attentive(2)) if loop is Attentive else (loop, loop)
