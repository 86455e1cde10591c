"""Syncs of one log by many threads: shared where they wait at once, never taken for done before they are, and never a standstill."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import of_type
from tracekit import _reality, record, traced_tool
from tracekit._journal import writer
from tracekit._journal.writer import Journal
from tracekit.errors import LogWriteError
from tracekit.integration import Store

THREADS = 8


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Store(tmp_path).create(durability="always")
    made.append("run.started", 0, 0, b',"input":null')
    yield made
    try:
        made.close()
    except LogWriteError:
        pass


def append(journal: Journal) -> int:
    return journal.append("decision", 0, 1, b',"name":"d","input":null,"output":1')


class Disk:
    """Syncs that are held until they are let through; counted, each with what the file held when it began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.entered = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.error: OSError | None = None
        monkeypatch.setattr(writer, "_fdatasync", self.sync)

    def sync(self, fd: int) -> None:
        self.sizes.append(os.fstat(fd).st_size)
        self.entered.release()
        assert self.let.acquire(timeout=30)
        if self.error is not None:
            raise self.error


def all_waiting(journal: Journal, count: int) -> None:
    """Until so many threads wait for the sync that is under way."""
    pause = threading.Event()
    while len(journal._followers) < count:
        pause.wait(0.001)


def started(call: Callable[[], Any], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_threads_that_wait_at_once_share_one_sync(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread syncs the others append and wait; the next sync is for all of them, and no append returns before its own."""
    disk = Disk(monkeypatch)
    done: list[tuple[int, int]] = []

    def work() -> None:
        seq = append(journal)
        done.append((seq, len(disk.sizes)))

    threads = started(work, THREADS)
    assert disk.entered.acquire(timeout=30)
    all_waiting(journal, THREADS - 1)
    assert done == []
    disk.let.release()
    assert disk.entered.acquire(timeout=30)
    disk.let.release()
    for thread in threads:
        thread.join(30)
    assert len(disk.sizes) == 2
    assert sorted(seq for seq, _ in done) == list(range(2, THREADS + 2))
    assert all(syncs == 2 for seq, syncs in done if seq > 2)
    assert disk.sizes[1] == os.path.getsize(journal.path)


def test_a_failed_sync_is_everybodys(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a sync that fails is told so, and so is everybody after: nobody takes the entry for safe."""
    disk = Disk(monkeypatch)
    disk.error = OSError(5, "Input/output error")
    failures: list[LogWriteError] = []

    def work() -> None:
        try:
            append(journal)
        except LogWriteError as error:
            failures.append(error)

    threads = started(work, THREADS)
    assert disk.entered.acquire(timeout=30)
    all_waiting(journal, THREADS - 1)
    for _ in range(THREADS):
        disk.let.release()
    for thread in threads:
        thread.join(30)
    assert len(failures) == THREADS
    assert all("a sync failed" in str(error) and error.path == journal.path for error in failures)
    with pytest.raises(LogWriteError, match="a sync failed"):
        append(journal)
    assert len(disk.sizes) == 1


def test_a_signal_handler_may_write_during_its_own_threads_sync(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that runs within a sync appends and syncs an entry of its own: the thread does not wait for itself."""
    handled: list[int] = []

    def sync(fd: int) -> None:
        if not handled:
            handled.append(0)
            signal.raise_signal(signal.SIGUSR1)
        os.fsync(fd)

    monkeypatch.setattr(writer, "_fdatasync", sync)
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(append(journal)))
    try:
        seq = append(journal)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [0, seq + 1]


def test_a_leader_that_was_interrupted_leaves_nobody_waiting(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is thrown out of its sync (Ctrl-C) passes the disk on: those that waited for it sync themselves."""
    disk = Disk(monkeypatch)
    disk.error = KeyboardInterrupt()  # type: ignore[assignment]
    interrupted: list[BaseException] = []
    done: list[int] = []

    def first() -> None:
        try:
            append(journal)
        except KeyboardInterrupt as error:
            disk.error = None
            interrupted.append(error)

    leader = started(first, 1)
    assert disk.entered.acquire(timeout=30)
    others = started(lambda: done.append(append(journal)), THREADS)
    all_waiting(journal, THREADS)
    monkeypatch.setattr(writer, "_fdatasync", os.fdatasync)
    disk.let.release()
    for thread in leader + others:
        thread.join(30)
    assert len(interrupted) == 1
    assert sorted(done) == list(range(3, THREADS + 3))


def test_where_no_thread_can_be_started_each_entry_is_synced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 starts no thread once the interpreter is ending, and a program's exit handlers have steps, too: they are on the log,
    and what they read of a clock."""
    synced: list[int] = []
    monkeypatch.setattr("tracekit._reality.start_new_thread", _no_more)
    monkeypatch.setattr(writer, "_fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    made = Store(tmp_path).create()
    made.append("run.started", 0, 0, b',"input":null')
    append(made)
    assert synced[-1] == Path(made.path).stat().st_size
    made.read("clock", 0, 1, "time.time", 1.5)
    assert Path(made.path).read_bytes().count(b"\n") == 3
    made.close()


def _no_more(*args: Any) -> int:
    raise RuntimeError("can't create new thread at interpreter shutdown")


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("look", ["fstat", "pread"])
@pytest.mark.parametrize("durability", ["effects", "always"])
def test_a_signal_handler_that_calls_a_tool_is_nobody_else(
    look: str, before: bool, durability: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that runs while the log is looked at, and writes into it, through the same journal: the log is found as it is then."""
    paid: list[int] = []
    beats: list[int] = []
    within = False

    @traced_tool(side_effect="irreversible")
    def pay(amount: int) -> int:
        paid.append(amount)
        return amount

    @traced_tool(side_effect="read_only")
    def heartbeat(number: int) -> int:
        return number

    def beat(*_: object) -> None:
        nonlocal within
        if not within:
            within = True
            beats.append(heartbeat(len(beats)))
            within = False

    real = getattr(writer.system, look)

    def interrupted(*arguments: Any) -> Any:
        ours = threading.current_thread() is threading.main_thread()  # the journal's own looks at it, too
        if ours and before:
            signal.raise_signal(signal.SIGUSR1)
        found = real(*arguments)
        if ours and not before:
            signal.raise_signal(signal.SIGUSR1)
        return found

    former = signal.signal(signal.SIGUSR1, beat)
    try:
        with record("job", store=tmp_path, durability=durability) as run:
            with monkeypatch.context() as patched:
                patched.setattr(writer, "system", _Instead(writer.system, look, interrupted))
                # A handler comes at each look, so that the next one is of another end: it is over when three have come.
                patched.setattr(signal, "raise_signal", _times(3, signal.raise_signal))
                pay(1)
            pay(2)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert beats == [0, 1, 2]
    assert paid == [1, 2]
    assert [entry["output"] for entry in of_type(run, "tool.return")].count(1) == 2
    assert not any("log" in warning for warning in run.warnings)  # an SDK that another test has imported is said, too


@pytest.mark.filterwarnings("ignore:tracekit. tool")
def test_nothing_comes_after_the_last_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that begin a step at the moment in which the run ends: the effect is refused, what reads goes on, as a moment later, and the
    run has its end."""
    paid: list[int] = []
    came: list[str] = []
    over, on_their_way = threading.Event(), threading.Semaphore(0)
    append, append_last = Journal.append, Journal.append_last

    @traced_tool(side_effect="irreversible")
    def pay() -> None:
        paid.append(1)

    @traced_tool(side_effect="read_only")
    def look() -> None: ...

    def late(self: Journal, kind: str, *rest: Any) -> int:
        if kind == "tool.call":
            on_their_way.release()
            over.wait()
        return append(self, kind, *rest)

    def last(self: Journal, *rest: Any) -> int:
        with self.held():
            seq = append_last(self, *rest)
            over.set()
        return seq

    def call(tool: Callable[[], None]) -> None:
        try:
            tool()
        except Exception as error:
            came.append(type(error).__name__)
        else:
            came.append("passed")

    monkeypatch.setattr(Journal, "append", late)
    monkeypatch.setattr(Journal, "append_last", last)
    threads = [threading.Thread(target=call, args=(tool,)) for tool in (pay, look)]
    with record("job", store=tmp_path) as run:
        for thread in threads:
            thread.start()
            on_their_way.acquire()
    for thread in threads:
        thread.join()
    assert sorted(came) == ["RunEndedError", "passed"]
    assert paid == []
    assert Path(run.path).read_text("utf-8").splitlines()[-1].count('"run.completed"') == 1


class _Instead:
    """A namespace in which one name is another thing."""

    def __init__(self, namespace: Any, name: str, instead: Any) -> None:
        self._namespace = namespace
        setattr(self, name, instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._namespace, name)


def _times(count: int, call: Callable[[int], None]) -> Callable[[int], None]:
    left = [None] * count

    def limited(number: int) -> None:
        if left:
            left.pop()
            call(number)

    return limited


def test_the_directories_of_a_store_are_synced_once_by_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run of a process brings the directories above its file to the device, whoever has made them; each later run syncs only
    the two that get a new entry, its own and its tip hash's. A directory that was removed and made anew is synced again."""
    (tmp_path / "store").mkdir()  # made by somebody who has not synced it
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real(fd)

    monkeypatch.setattr(_reality.system, "fsync", fsync)

    def run() -> list[str]:
        synced.clear()
        with record("one", store=tmp_path / "store"):
            pass
        return [*synced]

    assert run()[:2] == [".", "store"]
    assert run() == ["store/runs", "store/heads"]
    shutil.rmtree(tmp_path / "store")
    assert run()[:2] == [".", "store"]


def test_nothing_runs_while_a_program_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is synced in the second round of the background thread after it, which then sleeps until the next entry: a program that
    waits for a model or a person for seconds is not woken meanwhile."""
    rounds: list[int] = []
    tick = Journal._tick

    def counted(self: Journal) -> None:
        tick(self)
        rounds.append(self._synced)

    monkeypatch.setattr(Journal, "_tick", counted)
    journal = Store(tmp_path).create(durability="effects")
    journal.append("run.started", 0, 0, b',"input":null')
    for seq in range(1, 4):
        while not (journal._synced == seq and journal._asleep):
            threading.Event().wait(0.001)
        assert rounds == [*(number for one in range(1, seq + 1) for number in (one - 1, one))]
        append(journal)
    journal.close()
