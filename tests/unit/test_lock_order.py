"""In which order threads take a lock, where it passes from one to another: a replay passes it on in that order."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import io
import itertools
import logging
import logging.handlers
import queue
import sched
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.effects import entries
from tests.support.processes import python
from tracekit import record, replay, traced_tool


@traced_tool(side_effect="read_only")
def ask(what: object) -> object:
    return what


def compute(n: int) -> None:
    sum(range(5000 + 7919 * n % 20000))


def times(repeated: int, store: Path, program: Callable[[], Any]) -> None:
    """Record and replay ``program``; what it saw must be the same each time, and the replay exact."""
    for _ in range(repeated):
        with record("locks", store=store) as run:
            seen = program()
        with replay(run) as session:
            assert program() == seen
        assert session.report.exact


def in_threads(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def shared_under(lock: Any, rounds: int) -> list[tuple[int, int]]:
    """What three threads put into one list under ``lock``; each asks how many it found there."""
    seen: list[tuple[int, int]] = []

    def work(me: int) -> None:
        for i in range(rounds):
            compute(me + i)
            with lock:
                seen.append((me, i))
                there = len(seen)
            ask(there)

    in_threads(*(partial(work, me) for me in range(3)))
    return seen


def taken(run: Any) -> list[dict[str, Any]]:
    return [entry for entry in entries(run.path, "clock") if entry["name"] == "lock.taken"]


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock, threading.Condition, threading.Semaphore])
def test_what_threads_share_under_a_lock(tmp_path: Path, kind: Callable[[], Any]) -> None:
    """Threads that add to one list under a lock find as much in it each time as they found when it was recorded."""

    def program() -> list[tuple[int, int]]:
        return shared_under(kind(), 8)

    times(4, tmp_path, program)


class _Kept(logging.Handler):
    """A log handler of the program, which keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_what_threads_log(tmp_path: Path) -> None:
    """The lines of several threads are in a handler, and in a stream, in the order in which they were when recorded."""

    def program() -> tuple[list[str], str]:
        log, kept, stream = logging.getLogger("tests.what_threads_log"), _Kept(), io.StringIO()
        log.setLevel(logging.INFO)
        log.handlers = [kept, logging.StreamHandler(stream)]

        def work(me: int) -> None:
            for i in range(8):
                compute(me + i)
                log.info("%s %s", me, i)
                ask(len(kept.lines) > 0)

        in_threads(*(partial(work, me) for me in range(3)))
        return kept.lines, stream.getvalue()

    times(4, tmp_path, program)


def test_what_a_thread_of_the_standard_library_logs(tmp_path: Path) -> None:
    """A handler writes what a ``QueueListener`` has from a queue, and what threads log to it by themselves, in the recorded
    order; a thread may do nothing but log."""

    def program() -> list[str]:
        handler = _Kept()
        log, direct = (logging.getLogger(f"tests.logs_{way}") for way in ("by_queue", "at_once"))
        waiting: queue.Queue[Any] = queue.Queue()
        log.handlers, direct.handlers = [logging.handlers.QueueHandler(waiting)], [handler]
        listener = logging.handlers.QueueListener(waiting, handler)
        listener.start()

        def work(me: int) -> None:
            for i in range(10):
                compute(me + i)
                log.warning("%d %d", me, i)
                direct.warning("%d %d", me, i)
                threads.append(threading.Thread(target=direct.warning, args=("%d %d alone", me, i)))
                threads[-1].start()
            ask(me)

        threads: list[threading.Thread] = []
        in_threads(*(partial(work, me) for me in range(3)))
        for thread in threads:
            thread.join()
        listener.stop()
        return handler.lines

    times(3, tmp_path, program)


def test_a_scheduler_that_is_what_threads_run(tmp_path: Path) -> None:
    """``threading.Thread(target=scheduler.run)``: what a thread is given reads the clock and takes locks for the program."""

    def program() -> list[int]:
        scheduler, lock, seen = sched.scheduler(), threading.Lock(), list[int]()

        def job(n: int) -> None:
            compute(n)
            with lock:
                seen.append(n)
            ask(n)

        for n in range(12):
            scheduler.enter(0.0001 * (n % 4), n, job, (n,))
        in_threads(scheduler.run, scheduler.run, scheduler.run)
        return seen

    times(3, tmp_path, program)


def test_a_thread_that_is_woken_by_an_event(tmp_path: Path) -> None:
    """Whether an event that is set twice wakes a thread twice depends on when that clears it; a replay does not differ."""

    def program() -> list[object]:
        event, over, lock = threading.Event(), threading.Event(), threading.Lock()
        jobs, seen = list[int](), list[object]()

        def look() -> None:
            while not over.is_set():
                event.wait(60)
                event.clear()
                with lock:
                    there = len(jobs)
                seen.append(ask(there))

        def give() -> None:
            for i in range(10):
                with lock:
                    jobs.append(i)
                event.set()
                compute(i)
            over.set()
            event.set()

        in_threads(look, give)
        return seen

    times(5, tmp_path, program)


def test_a_lock_is_taken_after_what_was_recorded_before(tmp_path: Path) -> None:
    """A thread that got a lock late gets it as late in a replay: what it writes next is not seen earlier by a third one."""

    def program(slowness: int) -> int:
        lock, ready, ends, items, misses = threading.Lock(), threading.Event(), [False], queue.Queue[int](), 0

        def works() -> None:
            with lock:
                ask("answer")
            ready.set()

        def looks() -> None:
            nonlocal misses
            while not ends[0]:
                try:
                    items.get(timeout=0.005)
                except queue.Empty:
                    misses += 1

        threads = [threading.Thread(target=one) for one in (works, looks)]
        for thread in threads:
            thread.start()
        ready.wait()
        hashlib.pbkdf2_hmac("sha256", b"", b"", slowness)
        with lock:
            ends[0] = True
        for thread in threads:
            thread.join()
        return misses

    with record("late", store=tmp_path) as run:
        seen = program(60_000)
    for _ in range(3):
        with replay(run) as session:
            assert program(1) == seen
        assert session.report.exact


def test_a_queue_of_the_programs_own(tmp_path: Path) -> None:
    """Of several threads that wait at a condition, the one that was notified when it was recorded gets the item."""

    def program() -> list[Any]:
        items, lock, got = deque[int](), threading.Lock(), list[Any]()
        filled, emptied = threading.Condition(lock), threading.Condition(lock)

        def take(me: str) -> None:
            while True:
                with filled:
                    while not items:
                        filled.wait()
                    item = items.popleft()
                    emptied.notify()
                if item < 0:
                    return
                compute(item)
                answer = ask((me, item))
                with lock:
                    got.append(answer)

        def give() -> None:
            for item in [*range(12), -1, -1]:
                with emptied:
                    while len(items) > 1:
                        emptied.wait()
                    items.append(item)
                    filled.notify()

        in_threads(lambda: take("a"), lambda: take("b"), give)
        return got

    times(5, tmp_path, program)


# -- ways to take a lock ---------------------------------------------------------------------------------------------------

_usleep = ctypes.CDLL(None).usleep


class _Native:
    """Sleeps below Python, of other lengths each time."""

    def __init__(self, seed: int) -> None:
        self._seed, self._asked = seed, itertools.count()

    def __call__(self) -> None:
        drawn = hashlib.sha256(b"%d %d" % (self._seed, next(self._asked))).digest()
        _usleep(drawn[0] * 20)


def _polling(acquire: Callable[..., bool]) -> None:
    while not acquire(blocking=False):
        _usleep(200)


#: How it is made, and how it is taken.
WAYS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "Lock.acquire": (threading.Lock, lambda lock: lock.acquire()),
    "Lock.acquire(timeout=)": (threading.Lock, lambda lock: lock.acquire(timeout=60)),
    "Lock.acquire(False)": (threading.Lock, lambda lock: _polling(lock.acquire)),
    "RLock.acquire(timeout=)": (threading.RLock, lambda lock: lock.acquire(timeout=60)),
    "RLock.acquire(False)": (threading.RLock, lambda lock: _polling(lock.acquire)),
    "Condition.acquire(timeout=)": (threading.Condition, lambda lock: lock.acquire(timeout=60)),
    "Semaphore.acquire(timeout=)": (threading.Semaphore, lambda lock: lock.acquire(timeout=60)),
    "Semaphore.acquire(False)": (threading.Semaphore, lambda lock: _polling(lock.acquire)),
    "BoundedSemaphore.acquire(timeout=)": (threading.BoundedSemaphore, lambda lock: lock.acquire(timeout=60)),
}


def _replayed_at_other_speeds(store: Path, program: Callable[[_Native], Any]) -> None:
    for seed in range(3):
        with record("locks", store=store) as run:
            seen = program(_Native(seed))
        with replay(run) as session:
            assert program(_Native(seed + 10)) == seen
        assert session.report.exact


@pytest.mark.parametrize("way", WAYS)
def test_a_lock_that_is_taken_in_any_way(tmp_path: Path, way: str) -> None:
    """However threads take the lock under which they share something, also with a time limit or by trying again and again, they find
    what they found."""
    made, take = WAYS[way]

    def program(native: _Native) -> list[Any]:
        lock, seen = made(), list[Any]()

        def work(me: int) -> None:
            for i in range(4):
                native()
                ask((me, i))
                take(lock)
                try:
                    seen.append((me, i, len(seen)))
                    native()
                finally:
                    lock.release()

        in_threads(*(partial(work, me) for me in range(4)))
        return seen

    _replayed_at_other_speeds(tmp_path, program)


def test_a_condition_that_holds_when_the_limit_has_run_out(tmp_path: Path) -> None:
    """A thread waits with a time limit for what nobody notifies it of, and finds it when the limit has run out; so it does in a replay."""

    def program(native: _Native) -> list[Any]:
        changed, seen = threading.Condition(), list[Any]()

        def change() -> None:
            for i in range(3):
                ask(i)
                native()
                with changed:
                    seen.append(i)

        def wait() -> None:
            for i in range(3):
                with changed:
                    while not (found := changed.wait_for(lambda i=i: i in seen and seen, 0.003)):
                        pass
                    seen.append((i, found.copy()))

        in_threads(change, wait)
        return seen

    _replayed_at_other_speeds(tmp_path, program)


@pytest.mark.parametrize("limit", [60, 0.002])
@pytest.mark.parametrize("bare", [False, True])
def test_a_condition_that_is_waited_for_with_a_limit(tmp_path: Path, limit: float, bare: bool) -> None:
    """Threads that wait at a condition with a time limit get what they got, in the order in which they had its lock again, whether
    the limit ran out or not."""

    def program(native: _Native) -> list[Any]:
        changed, items, seen = threading.Condition(), deque[int](), list[Any]()

        def take(me: str) -> None:
            for _ in range(4):
                with changed:
                    if bare:
                        found = [items or changed.wait(limit) for _ in range(2)]
                    else:
                        found = changed.wait_for(lambda: items, limit)
                    seen.append((me, str(found), items.popleft() if items else None))
                native()

        def give(me: int) -> None:
            for i in range(4):
                native()
                item = ask(10 * me + i)
                with changed:
                    items.append(item)  # type: ignore[arg-type]
                    changed.notify()

        in_threads(
            partial(take, "a"),
            partial(take, "b"),
            partial(take, "c"),
            partial(give, 1),
            partial(give, 2),
            partial(give, 3),
        )
        ask(seen)
        return seen

    _replayed_at_other_speeds(tmp_path, program)


def test_a_done_callback_of_a_pool(tmp_path: Path) -> None:
    """What a call's done callback does belongs to the run, in a lane of its own: its steps, and the locks that it takes."""

    def program() -> list[Any]:
        lock, busy, seen = threading.Lock(), [0], list[Any]()

        def call(i: int) -> object:
            compute(i)
            return ask(("call", i))

        def done(future: Any) -> None:
            compute(3)
            answer = ask(("done", future.result()))
            with lock:
                busy[0] -= 1
                seen.append(answer)

        with ThreadPoolExecutor(3) as pool:
            for i in range(8):
                with lock:
                    busy[0] += 1
                    there = busy[0]
                answer = ask(there)
                with lock:
                    seen.append(answer)
                pool.submit(call, i).add_done_callback(done)
        return seen

    times(4, tmp_path, program)


def test_a_lock_that_stays_with_its_thread_costs_no_entry(tmp_path: Path) -> None:
    """Only where a lock passes to another thread is there an entry, which says where that one had taken it."""
    mine, shared = threading.Lock(), threading.Lock()

    def work() -> None:
        for _ in range(100):
            with mine:
                pass
        with shared:
            pass

    with record("locks", store=tmp_path) as run:
        ask(0)
        for _ in range(2):
            with shared:
                pass
            in_threads(work)
    function = test_a_lock_that_stays_with_its_thread_costs_no_entry.__name__
    thread = f"{function}.<locals>.work"
    following = [(entry["input"]["call"], entry["input"]["following"][1]) for entry in taken(run)]
    assert following == [
        (function, f"lock.taken:{thread}"),
        (thread, f"lock.taken:{thread}"),
        (thread, f"lock.taken:{function}"),
    ]


def test_a_lock_that_a_process_takes_once(tmp_path: Path) -> None:
    """A cache that threads fill under a lock may be empty or filled in a replay: it waits for nobody that does not come."""
    cache, lock = dict[str, int](), threading.Lock()

    def program() -> list[object]:
        seen = list[object]()

        def work(me: int) -> None:
            if "found" not in cache:
                with lock:
                    compute(me)
                    cache["found"] = 1
            seen.append(ask(1))

        in_threads(*(partial(work, me) for me in range(3)))
        return seen

    for cold in (True, False):
        cache.clear()
        with record("locks", store=tmp_path) as run:
            program()
        if not cold:
            cache.clear()
        with replay(run) as session:
            program()
        assert session.report.exact


def test_a_lock_that_modules_take_while_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which thread imports a package first, if any does, is chance: a lock that each of its modules takes (that of a hook around
    imports, say) passes from nobody to nobody."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "hooked.py").write_text("import threading\nlock = threading.Lock()\n")
    for name in ("one", "two", "three"):
        (packages / f"hooked_{name}.py").write_text("import hooked\nwith hooked.lock:\n    pass\n")
    monkeypatch.syspath_prepend(packages)

    def program() -> object:
        in_threads(partial(ask, 1))
        names = [importlib.import_module(f"hooked_{name}").__name__ for name in ("one", "two", "three")]
        return names, ask(2)

    with record("locks", store=tmp_path) as run:
        seen = program()
    assert taken(run) == []
    try:
        with replay(run) as session:  # they are imported by now
            assert program() == seen
        assert session.report.exact
    finally:
        for name in [name for name in sys.modules if name.startswith("hooked")]:
            del sys.modules[name]


def test_a_run_that_goes_on_elsewhere_keeps_the_order() -> None:
    """A partial replay takes locks in the recorded order, and the run that it writes has that order, too."""

    @traced_tool(side_effect="read_only")
    def other(what: object) -> object:
        return what

    def program() -> list[Any]:
        seen = shared_under(threading.Lock(), 6)
        other(len(seen))
        return seen

    with record("locks") as run:
        seen = program()
    with replay(run, live={"tool:other"}) as session:
        assert program() == seen
    assert session.new_run_id is not None
    with replay(session.new_run_id) as again:
        assert program() == seen
    assert again.report.exact


#: A handler that raises.
STOPS = """
import signal, threading
from tracekit import record

class Stop(Exception):
    pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGALRM, stop)
"""


INTERRUPTED = (
    STOPS
    + """
lock, plain = threading.Lock(), threading.RLock()
with record("locks"):
    threading.Thread(target=len, args=([],)).start()
    held = 0
    for _ in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            while True:
                with lock:
                    with plain:
                        pass
        except Stop:
            held += lock.locked()
            lock = threading.Lock()
print(held)
"""
)


DROPPED = (
    STOPS
    + """
with record("locks"):
    threading.Thread(target=len, args=([],)).start()
    stopped = 0
    for _ in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
            for _ in range(100_000):
                lock = threading.Lock()
                with lock:
                    pass
                del lock
        except Stop:
            stopped += 1
print(stopped)
"""
)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_a_signal_handler_that_raises_is_heard_where_locks_go(tmp_path: Path) -> None:
    """What a handler raises where the program lets go of a lock reaches the program."""
    done = python("-c", DROPPED, cwd=tmp_path)
    assert (done.stdout.split(), done.stderr) == (["300"], "")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_a_signal_handler_that_raises_leaves_no_lock_taken(tmp_path: Path) -> None:
    """A handler that raises where a lock is taken for a ``with`` block leaves it free, as without a run."""
    done = python("-c", INTERRUPTED, cwd=tmp_path)
    assert done.stdout.split() == ["0"], done.stderr
