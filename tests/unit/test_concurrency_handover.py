"""What threads hand to one another: a replay sees the same calls done, the same items taken, the same calls never begun."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

from tracekit import DivergenceError, record, replay, traced_tool

REPEATED = 20


@traced_tool(side_effect="read_only")
def ask(what: object) -> object:
    time.sleep(random.random() / 500)
    return what


def twenty_times(tmp_path: Path, program: Callable[[], Any]) -> None:
    """Record and replay ``program``; what it saw must be the same each time, and the report exact."""
    for _ in range(REPEATED):
        with record("handover", store=tmp_path) as run:
            seen = program()
        with replay(run) as session:
            assert program() == seen
        assert session.report.failure is None
        assert session.report.unconsumed == []


def test_the_first_completed_of_threaded_calls(tmp_path: Path) -> None:
    """``asyncio.wait(FIRST_COMPLETED)`` over ``to_thread`` gives the set that was recorded, of one or of several."""

    async def main() -> list[Any]:
        seen = []
        for _ in range(5):
            tasks = [asyncio.create_task(asyncio.to_thread(ask, i)) for i in range(4)]
            done, left = await asyncio.wait(tasks, return_when=FIRST_COMPLETED)
            seen.append(sorted(task.result() for task in done))
            await asyncio.gather(*left)
        return seen

    twenty_times(tmp_path, lambda: asyncio.run(main()))


def test_a_group_that_fails_with_calls_in_threads(tmp_path: Path) -> None:
    """One task fails and its siblings are cancelled, asleep or in a thread: begun calls go on, the others never begin."""

    async def child(i: int) -> object:
        await asyncio.sleep(random.random() / 200)
        if i == 3:
            raise ValueError("boom")
        return await asyncio.to_thread(ask, f"b{i}")

    async def main() -> None:
        for _ in range(3):
            try:
                async with asyncio.TaskGroup() as group:
                    for i in range(5):
                        group.create_task(child(i))
            except* ValueError:
                pass

    twenty_times(tmp_path, lambda: asyncio.run(main()))


def test_a_deadline_on_a_threaded_call(tmp_path: Path) -> None:
    """Whether the answer or the deadline reached the loop first is as it was."""

    async def main() -> list[Any]:
        seen: list[Any] = []
        for i in range(5):
            try:
                seen.append(await asyncio.wait_for(asyncio.to_thread(ask, i), random.random() / 250))
            except TimeoutError:
                seen.append("late")
        return seen

    twenty_times(tmp_path, lambda: asyncio.run(main()))


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue])
def test_workers_that_share_a_queue(tmp_path: Path, kind: type[queue.Queue[Any]]) -> None:
    """Each worker takes the items that it took."""

    def program() -> Any:
        items: queue.Queue[Any] = kind()
        results: queue.Queue[Any] = queue.Queue(maxsize=2)
        by: dict[int, int] = {}

        def work(me: int) -> None:
            while (i := items.get()) < 99:
                by[i] = me
                results.put(ask(i))

        workers = [threading.Thread(target=work, args=(me,)) for me in range(3)]
        for worker in workers:
            worker.start()
        for i in range(9):
            items.put(i)
        got = [results.get(timeout=30) for _ in range(9)]
        for _ in workers:
            items.put(99)
        for worker in workers:
            worker.join()
        return by, got

    twenty_times(tmp_path, program)


def test_a_queue_that_is_looked_into(tmp_path: Path) -> None:
    """``get_nowait`` and ``get(timeout=)`` find an item, or none, where they did."""

    def program() -> list[Any]:
        items: queue.Queue[Any] = queue.Queue()
        thread = threading.Thread(target=lambda: [items.put(ask(i)) for i in range(3)])
        thread.start()
        seen: list[Any] = []
        while len([item for item in seen if item is not None]) < 3:
            for look in (items.get_nowait, lambda: items.get(timeout=0.001)):
                try:
                    seen.append(look())
                except queue.Empty:
                    seen.append(None)
        thread.join()
        return seen

    twenty_times(tmp_path, program)


def test_futures_that_are_waited_for(tmp_path: Path) -> None:
    """``wait`` and ``as_completed`` give what they gave, and a call that was cancelled in time never begins."""

    def program() -> list[Any]:
        seen: list[Any] = []
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(ask, i) for i in range(4)]
            done, left = wait(set(calls), return_when=FIRST_COMPLETED)
            seen.append(([call.result() for call in done], [call.cancel() for call in left]))
            calls = [pool.submit(ask, i) for i in range(6)]
            for call in as_completed(calls):
                seen.append(call.result())
                seen.append([other.cancel() for other in calls])
                break
            seen.append([call.cancelled() for call in calls])
        return seen

    twenty_times(tmp_path, program)


def test_the_functions_of_the_standard_library_are_as_before(tmp_path: Path) -> None:
    """After the last run ``wait``, ``as_completed`` and the queues are what they were."""
    before = [wait.__code__, as_completed.__code__, queue.Queue.get, queue.Queue._get, queue.Queue.put]
    with record("handover", store=tmp_path):
        assert wait.__code__ is not before[0]
    assert [wait.__code__, as_completed.__code__, queue.Queue.get, queue.Queue._get, queue.Queue.put] == before
    with ThreadPoolExecutor(1) as pool:
        assert [call.result() for call in as_completed([pool.submit(int, "4")])] == [4]


def test_threads_that_race_are_named_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where threads share something that is not recorded the message says so, once, and only the block raises the failure."""
    first = ["a"]

    def program() -> None:
        threads = [threading.Thread(target=lambda: ask(first[0])) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    before = threading.excepthook
    with record("race", store=tmp_path) as run:
        program()
    first[0] = "b"
    with pytest.raises(DivergenceError, match="thread order may differ"), replay(run):
        program()
    said = capsys.readouterr().err
    assert said.startswith("tracekit: the replay has failed: [divergence]")
    assert said.count("[divergence]") == 1
    assert "Traceback" not in said
    assert threading.excepthook is before
