"""The order in which a replay hands out events."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from _thread import RLock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracekit import InexactReplayError, _reality, record, replay, traced_tool
from tracekit._runtime import signal_calls
from tracekit._runtime.schedule import Schedule

usleep = ctypes.CDLL(None).usleep


class Failed(BaseException):
    pass


_made: list[Schedule] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """One that a test leaves open looks at the threads of all that come after it."""
    yield
    while _made:
        _made.pop().close()


def schedule(*events: int, stuck: Callable[[], object] = lambda: None) -> Schedule:
    made = Schedule(events, failure=Failed, stuck=lambda waiting: stuck())
    _made.append(made)
    return made


def in_threads(*works: Callable[[], object]) -> None:
    """Run all at once; each has taken part before any of them waits, as the hooks see to."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_lone_thread_is_never_held() -> None:
    """A program with one line of execution gets each event at once, whatever its place."""
    order = schedule(3, 5, 9)
    for seq in (3, 5, 9):
        order.wait(seq)
    assert order.reordered == []


def test_skipped_events_are_not_waited_for() -> None:
    """A replay does not wait for events inside a recorded tool, whose body does not run: they count as past."""
    order = schedule(2, 3, 4, 7)
    order.skip(3)
    order.skip(4)
    order.wait(2)
    order.wait(7)
    assert order.reordered == []


def test_what_can_never_come_is_passed_over_and_listed() -> None:
    """A lone thread that leaves an event out goes on, and the report says what came before its time."""
    order = schedule(2, 3, 4)
    order.wait(3)
    order.wait(4)
    assert order.reordered == [3]


def test_threads_get_their_events_in_recorded_order() -> None:
    """Whoever asks first: the earliest recorded event is handed out first."""
    order = schedule(1, 2, 3, 4)
    came: list[int] = []
    ready = threading.Barrier(4)

    def ask(seq: int) -> None:
        with order.threads.lock:
            order.threads.join()
        ready.wait()
        order.wait(seq)
        came.append(seq)

    in_threads(*(lambda seq=seq: ask(seq) for seq in (4, 2, 3, 1)))  # type: ignore[misc]
    assert came == [1, 2, 3, 4]
    assert order.reordered == []


def test_an_event_that_is_only_brought_about_has_not_come() -> None:
    """A signal that a replay sends is an event once its handler is called: what waits for that, and what loops hold for it, does
    not go on in between."""
    order = schedule(1, 2)
    came: list[str] = []
    asked, sent, began = threading.Event(), threading.Event(), threading.Event()

    def handler() -> None:
        with order.threads.lock:
            order.threads.join()
        order.callback(1, sent.set, anywhere=True, by_itself=True)
        asked.set()
        sent.wait()
        assert not order.is_done(1)
        began.wait()
        came.append("handler")
        order.take(1)
        order.take(1)  # it has come once

    def ask() -> None:
        with order.threads.lock:
            order.threads.join()
        asked.wait()
        began.set()
        order.wait(2)
        came.append("after it")

    in_threads(handler, ask)
    assert came == ["handler", "after it"]
    assert order.reordered == []


def test_a_failure_wakes_a_thread_that_is_just_about_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that fails after a thread has looked whether it has, and before the thread is held, does not leave it held."""
    order = schedule(2, 4)
    join, came = order.threads.join, []
    with order.threads.lock:
        join()

    def fail_first() -> Any:
        order.fail()
        return join()

    def ask() -> None:
        with order.threads.lock:
            join()
        monkeypatch.setattr(order.threads, "join", fail_first)
        try:
            order.wait(4)
        except Failed:
            came.append("failed")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    deadline = time.monotonic() + 20
    while asking.is_alive() and time.monotonic() < deadline:
        pass  # busy: nothing is handed out because all others wait
    assert came == ["failed"]


def test_a_lock_around_the_tools_does_not_deadlock() -> None:
    """The thread that had the lock second in the recording has it first now: its event is handed out, and listed."""
    order = schedule(2, 4)
    lock = threading.Lock()
    taken, came = threading.Event(), []
    both = threading.Barrier(2)

    def second() -> None:
        with order.threads.lock:
            order.threads.join()
        both.wait()
        with lock:
            taken.set()
            order.wait(4)
            came.append(4)

    def first() -> None:
        with order.threads.lock:
            order.threads.join()
        both.wait()
        taken.wait()
        with lock:
            order.wait(2)
            came.append(2)

    in_threads(second, first)
    assert came == [4, 2]
    assert order.reordered == [4]


def test_an_earlier_event_is_waited_for_while_its_thread_works() -> None:
    """A later event is held while another thread can still come to an earlier one."""
    order = schedule(1, 2)
    came: list[int] = []
    both = threading.Barrier(2)

    def busy() -> None:
        with order.threads.lock:
            order.threads.join()
        both.wait()
        sum(range(400_000))
        order.wait(1)
        came.append(1)

    def early() -> None:
        with order.threads.lock:
            order.threads.join()
        both.wait()
        order.wait(2)
        came.append(2)

    in_threads(busy, early)
    assert came == [1, 2]


def test_a_later_event_is_not_handed_out_while_an_earlier_one_may_come() -> None:
    """A thread that sleeps in native code may still come to an earlier event, however long it sleeps: a later one waits for it."""
    order = schedule(1, 2)
    came: list[int] = []
    both = threading.Barrier(2)
    pause = ctypes.CDLL(None).usleep

    def slow() -> None:
        with order.threads.lock:
            order.threads.join()
        both.wait()
        pause(300_000)
        order.wait(1)
        came.append(1)

    def early() -> None:
        with order.threads.lock:
            order.threads.join()
        both.wait()
        order.wait(2)
        came.append(2)

    in_threads(slow, early)
    assert came == [1, 2]
    assert order.reordered == []


async def _ask(order: Schedule, seq: int, came: list[int]) -> int:
    await order.wait_async(seq)
    came.append(seq)
    return seq


def test_coroutines_get_their_events_in_recorded_order() -> None:
    """Fifty gathered calls come back in the order of the recording, one at a time."""
    order = schedule(*range(1, 51))
    came: list[int] = []

    async def main() -> Any:
        return await asyncio.gather(*(_ask(order, seq, came) for seq in reversed(range(1, 51))))

    assert asyncio.run(main()) == list(reversed(range(1, 51)))
    assert came == list(range(1, 51))


def test_what_did_not_suspend_does_not_suspend() -> None:
    """An answer that came without the loop running in between is given the same way."""
    order = schedule(1, 2)

    async def main() -> list[str]:
        seen: list[str] = []

        async def other() -> None:
            seen.append("other")

        task = asyncio.create_task(other())
        await order.wait_async(1, False)
        seen.append("first")
        await order.wait_async(2, True)
        await task
        return seen

    assert asyncio.run(main()) == ["first", "other"]


def test_a_cancelled_waiter_no_longer_asks() -> None:
    """After a cancelled step the rest goes on, and its event is not waited for."""
    order = schedule(1, 2)

    async def main() -> None:
        came: list[int] = []
        task = asyncio.ensure_future(_ask(order, 1, came))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await order.wait_async(2)

    asyncio.run(main())
    assert order.reordered == []


def test_an_asyncio_lock_around_the_steps_does_not_deadlock() -> None:
    """The same as with threads: the order that the lock forces is taken, and listed."""
    order = schedule(1, 2)

    async def main() -> None:
        lock = asyncio.Lock()

        async def work(seq: int) -> None:
            async with lock:
                await order.wait_async(seq)

        await asyncio.gather(work(2), work(1))

    asyncio.run(main())
    assert order.reordered == [2]


def test_a_loop_that_is_polled_still_moves_on() -> None:
    """A task that spins with ``sleep(0)`` until another is done does not hold that one back for ever."""
    order = schedule(1)

    async def main() -> None:
        came: list[int] = []
        task = asyncio.ensure_future(_ask(order, 1, came))
        while not task.done():
            await asyncio.sleep(0)

    asyncio.run(main())


def test_loops_in_two_threads_share_one_order() -> None:
    """Events of two loops are handed out as recorded."""
    order = schedule(1, 2, 3, 4)
    came: list[int] = []
    both = threading.Barrier(2)

    def run(*seqs: int) -> None:
        async def main() -> None:
            with order.threads.lock:
                order.threads.join()
            both.wait()
            for seq in seqs:
                await _ask(order, seq, came)

        asyncio.run(main())

    in_threads(lambda: run(2, 3), lambda: run(1, 4))
    assert came == [1, 2, 3, 4]
    assert order.reordered == []


def test_a_callback_fires_once_in_its_loop() -> None:
    """A timer's callback runs in its loop; one taken back never does, nor one that was never recorded."""
    order = schedule(1, 2, 3, 4)

    async def main() -> list[Any]:
        seen: list[Any] = []
        order.callback(2, lambda: seen.append("timer"))
        order.cancel(order.callback(3, lambda: seen.append("cancelled")))
        order.callback(None, lambda: seen.append("never recorded"))
        await asyncio.gather(_ask(order, 4, seen), _ask(order, 1, seen))
        return seen

    assert sorted(map(str, asyncio.run(main()))) == ["1", "4", "timer"]
    order.close()


def test_schedules_beside_one_another_do_not_take_each_other_for_the_program() -> None:
    """Replays side by side in one process: that one looks at its threads keeps no other from finding that nothing can move."""
    beside = [schedule(1, 2) for _ in range(4)]
    for one in beside:
        one.callback(2, lambda: None, anywhere=True)
    order = schedule(1, 2)

    async def main() -> list[Any]:
        seen: list[Any] = []
        await _ask(order, 2, seen)
        return seen

    assert asyncio.run(main()) == [2]
    assert order.reordered == [2]
    for one in [order, *beside]:
        one.close()


def test_failure_wakes_everybody() -> None:
    """After ``fail`` those who wait raise, in loops and threads alike, and so does whoever asks later."""
    order = schedule(1, 2, 3)
    caught: list[str] = []
    waiting = threading.Barrier(2)

    def in_thread() -> None:
        with order.threads.lock:
            order.threads.join()
        waiting.wait()
        try:
            order.wait(None)
        except Failed:
            caught.append("thread")

    def in_loop() -> None:
        async def main() -> None:
            with order.threads.lock:
                order.threads.join()
            waiting.wait()
            asyncio.get_running_loop().call_later(0.02, order.fail)
            try:
                await order.wait_async(None)
            except Failed:
                caught.append("loop")

        asyncio.run(main())

    in_threads(in_thread, in_loop)
    assert sorted(caught) == ["loop", "thread"]
    with pytest.raises(Failed):
        order.wait(3)


def test_nothing_left_to_hand_out_is_stuck() -> None:
    """Everybody waits, nothing was recorded for them: the replayer is told, and they raise."""
    told: list[str] = []
    order = schedule(1, stuck=lambda: told.append("stuck") or Failed())

    async def main() -> None:
        await order.wait_async(1)
        await order.wait_async(None)

    with pytest.raises(Failed):
        asyncio.run(main())
    assert told == ["stuck"]


def test_a_million_events_are_an_array() -> None:
    """A schedule of a million events holds no object per event."""
    order = Schedule(range(1, 1_000_001), failure=Failed, stuck=lambda waiting: None)
    assert order._events.itemsize * len(order._events) <= 8_000_000
    order.skip(999_999)
    for seq in range(1, 999_999):
        order.wait(seq)
    order.wait(1_000_000)
    assert order.reordered == []


def test_a_thread_that_was_woken_comes_to_its_next_wait_first() -> None:
    """What threads share without a queue has no place in the recording: who runs, or is about to, gets to do it before the next event."""
    order = schedule(*range(1, 100))
    did: list[int] = []
    woken, done = threading.Lock(), threading.Lock()
    woken.acquire()
    done.acquire()

    def beside() -> None:
        order.wait(1)
        for number in range(20):
            woken.acquire()
            did.append(number)
            done.release()
        order.wait(50)

    thread = threading.Thread(target=beside, daemon=True)
    thread.start()
    order.wait(2)
    for number in range(20):
        order.wait(2 * number + 3)  # by now the other one is known to sleep
        woken.release()
        order.wait(2 * number + 4)
        assert did == [*range(number + 1)]
        done.acquire()
    for seq in range(43, 50):
        order.wait(seq)
    thread.join()
    assert order.reordered == []


def test_an_event_waits_for_the_steps_before_it() -> None:
    """Also where the thread that is to make one sleeps meanwhile in native code, as everybody else does."""
    made = bytearray(10)
    order = Schedule((1, 2, 3, 5), failure=Failed, stuck=lambda waiting: None, steps=(4,), made=made)
    _made.append(order)

    def beside() -> None:
        order.wait(1)
        time.sleep(0.3)
        made[4] = 1

    thread = threading.Thread(target=beside, daemon=True)
    thread.start()
    order.wait(2)
    order.wait(3)  # by now the other one is known to sleep, unless it is past that
    order.wait(5)
    assert made[4]
    assert order.reordered == []
    thread.join()


def test_a_wait_without_room_for_another_thread_is_no_end_of_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no thread for who watches the others, the wait says so; the next one tries again."""
    order, said = schedule(1, 2), []
    alone = threading.Barrier(2)

    def first() -> None:
        alone.wait()
        with pytest.raises(RuntimeError, match="start new thread"):
            order.wait(2)
        said.append("refused")
        monkeypatch.undo()
        order.wait(2)
        said.append("came")

    def second() -> None:
        order.threads.join()
        alone.wait()
        while not said:
            time.sleep(0.001)
        order.wait(1)
        said.append("second")

    def refuses(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("tracekit._runtime.schedule.start_new_thread", refuses)
    in_threads(first, second)
    assert said[0] == "refused"
    assert {*said} == {"refused", "came", "second"}


def test_nothing_overtakes_a_signal_that_is_being_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes until the handler is called, the sleep that it interrupts ends after it."""

    @traced_tool(side_effect="read_only")
    def look(text: str) -> str:
        return text

    def program() -> list[str]:
        seen: list[str] = []
        before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(look("beat")))
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        try:
            while len(seen) < 5:
                time.sleep(0.05)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return seen

    def late(thread: int, number: int) -> None:
        _reality.sleep(0.2)
        kill(thread, number)

    with record("beats", store=tmp_path) as run:
        seen = program()
    kill = signal_calls._kill
    monkeypatch.setattr(signal_calls, "_kill", late)
    with replay(run) as session:
        assert program() == seen
    assert session.report.exact, session.report.as_dict()


def stopped_by_a_thread(after: Callable[[], object] = lambda: None) -> list[str]:
    """A program whose main thread waits until a handler has been called for a signal that another thread sends."""

    @traced_tool(side_effect="read_only")
    def look(text: str) -> str:
        return text

    seen, stop = [look("begins")], threading.Event()

    def handler(number: int, frame: object) -> None:
        seen.append("called")
        stop.set()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sender = threading.Thread(target=lambda: (usleep(50_000), os.kill(os.getpid(), signal.SIGUSR1)))
        sender.start()
        stop.wait()
        after()
        sender.join()
        return [*seen, look("ends")]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_was_to_be_sent_again_does_not_outlive_its_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came while the main thread was busy with the schedule, and before it was sent once more, its handler had been called."""
    again: list[Callable[[], object]] = []

    def is_owned(lock: Any) -> bool:
        asked = sys._getframe(1).f_code.co_name == "comes_again"
        return (asked and not again) or RLock._is_owned(lock)  # type: ignore[attr-defined]

    with record("stopped", store=tmp_path) as run:
        recorded = stopped_by_a_thread()
    with monkeypatch.context() as patched:
        patched.setattr(_reality.OwnLock, "_is_owned", is_owned)
        patched.setattr(signal_calls, "start_new_thread", lambda call, args: again.append(lambda: call(*args)))
        with replay(run) as session:
            assert stopped_by_a_thread() == recorded
    assert session.report.exact, session.report.as_dict()
    late: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: late.append(number))
    try:
        assert len(again) == 1
        again[0]()
        signal.pthread_sigmask(signal.SIG_BLOCK, ())  # calls the handlers of what has come
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert late == []


def test_a_signal_from_outside_is_not_taken_for_one_that_was_sent_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a signal was lost and sent again, the next one from outside is reported as ever."""
    lost: list[int] = []

    def kill(thread: int, number: int) -> None:
        if lost:
            genuine(thread, number)
        lost.append(number)

    genuine = signal_calls._kill
    with record("stopped", store=tmp_path) as run:
        recorded = stopped_by_a_thread()
    monkeypatch.setattr(signal_calls, "_kill", kill)
    with pytest.raises(InexactReplayError, match="came from outside"), replay(run):
        stopped_by_a_thread(after=lambda: ctypes.CDLL(None)["raise"](signal.SIGUSR1))
    assert len(lost) > 1
    assert recorded[1:-1] == ["called"]


def test_a_signal_that_interrupted_a_wait_comes_before_the_next_step(tmp_path: Path) -> None:
    """The wait, for what a thread does below Python, may be over before anybody sees that the main thread waits."""

    @traced_tool(side_effect="read_only")
    def look(text: str) -> str:
        return text

    class Stop(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    def program(pause: int) -> list[str]:
        seen = [look("begins")]
        before = signal.signal(signal.SIGUSR1, stop)
        try:
            sender = threading.Thread(
                target=lambda: (usleep(pause), os.kill(os.getpid(), signal.SIGUSR1), usleep(pause))
            )
            sender.start()
            try:
                sender.join()
                seen.append(look("never made"))
            except Stop:
                seen.append("stopped")
            sender.join()
            return [*seen, look("ends")]
        finally:
            signal.signal(signal.SIGUSR1, before)

    with record("stopped", store=tmp_path) as run:
        recorded = program(50_000)
    assert recorded[1] == "stopped"
    with replay(run) as session:
        assert program(0) == recorded
    assert session.report.exact, session.report.as_dict()
