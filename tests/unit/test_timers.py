"""Sleeps and deadlines: events of the run, and no waiting in a replay."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from time import sleep as sleep_taken_earlier
from typing import Any

import pytest
import uvloop

from tests.support.simulation import Recording, Replay
from tracekit._capture import world

Program = Callable[[Any], Any]


def fired(recording: Recording) -> list[tuple[str, int]]:
    """Function and number of the timers that fired."""
    return [(entry[3], entry[2]) for entry in recording.log if entry[0] == "timer"]


def both(program: Program) -> tuple[Recording, Replay, Any]:
    """Record and replay; what the program returns must be the same."""
    with Recording() as recording:
        seen = program(recording)
    with Replay(recording.log) as replay:
        again = program(replay)
    assert replay.failure is None
    assert again == seen
    return recording, replay, seen


def at_once(program: Program, *entries: tuple[str, int]) -> Any:
    """Replay ``program`` from a recording made up of these timers, with limits that nobody would wait for."""
    log: list[tuple[Any, ...]] = [("start",), *(("timer", "", n, function, None) for function, n in entries)]
    with Replay(log) as replay:
        result = program(replay)
    assert replay.failure is None
    return result


def test_time_sleep_is_an_event_however_it_was_imported() -> None:
    """``time.sleep`` is recorded when it is over; in a replay an hour is nothing."""

    def program(hour: float) -> None:
        time.sleep(hour)
        sleep_taken_earlier(hour)

    with Recording() as recording:
        program(0.001)
    assert fired(recording) == [("time.sleep", 1), ("time.sleep", 2)]
    at_once(lambda _: program(3600), ("time.sleep", 1), ("time.sleep", 2))


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_loop_timers_that_fire_and_that_do_not(factory: Callable[[], Any]) -> None:
    """sleep, timeout, wait_for and wait: those that ran out do so again, the others never, on any loop."""

    def program(_: Any) -> Any:
        async def main() -> list[Any]:
            seen: list[Any] = []
            never = asyncio.Event()
            async with asyncio.timeout(30):
                await asyncio.sleep(0.001)
            for _attempt in range(2):
                try:
                    async with asyncio.timeout(0.001):
                        await never.wait()
                except TimeoutError:
                    seen.append("timeout")
            try:
                await asyncio.wait_for(never.wait(), 0.001)
            except TimeoutError:
                seen.append("wait_for")
            task = asyncio.ensure_future(never.wait())
            _done, pending = await asyncio.wait([task], timeout=0.001)
            seen.append(len(pending))
            task.cancel()
            return seen

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    recording, _, seen = both(program)
    assert seen == ["timeout", "timeout", "wait_for", 1]
    assert len(fired(recording)) == 5


def test_a_deadline_that_has_passed_already() -> None:
    """``timeout_at`` of a moment gone by runs out in the replay too, whatever its clock says."""

    def program(_: Any) -> str:
        async def main() -> str:
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() - 1):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "late"
            return "in time"

        return asyncio.run(main())

    assert both(program)[2] == "late"


def test_a_cancelled_timer_shifts_none() -> None:
    """Timers are numbered when they are armed: one that was taken back leaves a gap."""

    def program(_: Any) -> list[int]:
        async def main() -> list[int]:
            loop, seen = asyncio.get_running_loop(), list[int]()
            loop.call_later(0.001, seen.append, 1)
            loop.call_later(0.001, seen.append, 2).cancel()
            loop.call_later(0.002, seen.append, 3)
            await asyncio.sleep(0.01)
            return seen

        return asyncio.run(main())

    recording, _, seen = both(program)
    assert seen == [1, 3]
    assert [n for _, n in fired(recording)] == [1, 3, 4]


def test_a_tools_own_waiting_is_none_of_the_runs() -> None:
    """What is armed inside a live step is neither recorded nor numbered."""
    with Recording() as session:
        session.call_sync("tool", None, lambda: time.sleep(0.001))
        time.sleep(0.001)
    assert fired(session) == [("time.sleep", 1)]


def _empty(limit: float) -> str:
    try:
        queue.Queue().get(timeout=limit)
    except queue.Empty:
        return "empty"
    return ""


def _unfinished(limit: float) -> str:
    try:
        concurrent.futures.Future().result(limit)
    except concurrent.futures.TimeoutError:
        return "late"
    return ""


def _none_completed(limit: float) -> str:
    try:
        list(concurrent.futures.as_completed([concurrent.futures.Future()], limit))
    except concurrent.futures.TimeoutError:
        return "late"
    return ""


@pytest.mark.parametrize(
    ("event", "wait"),
    [
        ("Event.wait", lambda limit: threading.Event().wait(limit)),
        ("Semaphore.acquire", lambda limit: threading.Semaphore(0).acquire(timeout=limit)),
        ("Event.wait", lambda limit: len(concurrent.futures.wait([concurrent.futures.Future()], limit).done)),
        ("threading.wait", _empty),
        ("Future.result", _unfinished),
        ("Event.wait", _none_completed),
    ],
    ids=["event", "semaphore", "futures", "queue", "result", "as_completed"],
)
def test_limits_on_waiting_in_threads(event: str, wait: Callable[[float], Any]) -> None:
    """One time-out is one event, and an hour of it is nothing in a replay: whatever computes the time left sees it gone."""
    with Recording() as recording:
        seen = wait(0.1)  # on a busy machine a shorter one may be over before anything has waited
    assert fired(recording) == [(event, 1)]
    assert at_once(lambda _: wait(3600), (event, 1)) == seen


def test_a_limit_that_did_not_run_out() -> None:
    """Whoever was notified in the recording waits for that in the replay, however long it takes."""

    def program(session: Any) -> Any:
        items: queue.Queue[Any] = queue.Queue()
        thread = threading.Thread(target=lambda: items.put(session.call_sync("tool", None, lambda: "answer")))
        thread.start()
        seen = items.get(timeout=10)
        thread.join(10)
        return seen, thread.is_alive()

    recording, _, seen = both(program)
    assert seen == ("answer", False)
    assert fired(recording) == []


def test_a_thread_that_is_asked_before_it_is_started() -> None:
    """It is not alive, in a replay as in the recording: nobody waits for its end."""

    def program(session: Any) -> list[bool]:
        thread = threading.Thread(target=lambda: session.call_sync("tool", None, lambda: "answer"))
        seen = [thread.is_alive()]
        thread.start()
        thread.join()
        return [*seen, thread.is_alive()]

    assert both(program)[2] == [False, False]


def test_join_with_a_limit() -> None:
    """``Thread.join(timeout)`` that gave up gives up again, at its place."""

    def program(session: Any) -> bool:
        release = threading.Event()
        thread = threading.Thread(target=release.wait)
        thread.start()
        thread.join(0.001)
        alive = thread.is_alive()
        release.set()
        thread.join()
        return alive

    recording, _, seen = both(program)
    assert seen is True
    assert fired(recording) == [("threading.join", 1)]


def test_wrong_arguments_are_refused_as_ever() -> None:
    """The hooks leave the words to those who know them."""
    with Recording():
        with pytest.raises(ValueError, match="non-negative"):
            time.sleep(-1)
        with pytest.raises(TypeError):
            time.sleep("1")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError):
            threading.Condition().wait(1)


def test_everything_is_restored() -> None:
    """After the last holder all is exactly as found, names of modules included."""

    def state() -> list[Any]:
        places = [BaseEventLoop, asyncio.Timeout, threading.Condition, threading.Thread, threading, queue, uvloop.Loop]
        return [dict(vars(place)) for place in places] + [concurrent.futures._base.time, time.sleep.__self__]

    before = state()
    world.enter()
    assert state() != before
    world.leave()
    assert state() == before
