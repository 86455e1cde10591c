"""What has happened and can't be written is kept, and comes before any other entry."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle import Log
from tracekit import record, replay, traced_tool
from tracekit._journal import writer
from tracekit.errors import LogWriteError

LARGE = "x" * 900


@contextmanager
def no_room(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """What is longer than an intent record can't be written; half of it arrives before the error."""
    cut = False

    def write(fd: int, data: bytes) -> int:
        nonlocal cut
        if cut or len(data) > 900:
            cut = not cut
            if cut:
                return os.write(fd, data[:450])
            raise OSError(number, os.strerror(number))
        return os.write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(writer.Journal, "_os_write", staticmethod(write))
        yield


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO])
def test_an_outcome_that_has_no_room_comes_first_when_there_is(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full, over the quota, at its limit, read-only, failing: the line is cut back, kept, and written in its place, clock reads too."""
    made: list[str] = []

    @traced_tool(side_effect="irreversible")
    def pay(order: str) -> str:
        made.append(order)
        return LARGE

    with record("kept") as run:
        with no_room(monkeypatch, number):
            with pytest.raises(LogWriteError, match="was executed; its outcome could not be written yet") as first:
                pay("a")
            time.time()
            with pytest.raises(LogWriteError, match="was not executed") as second:
                pay("b")
        assert pay("c") == LARGE
    assert made == ["a", "c"]
    assert (first.value.executed, first.value.kept, first.value.step) == (True, True, 2)
    assert (second.value.executed, second.value.kept, second.value.step) == (False, False, None)
    log = Log(run.path)
    assert (log.broken, log.torn) == (None, 0)
    told = [(entry["type"], entry.get("step")) for entry in log.entries]
    assert told[:4] == [("run.started", None), ("tool.call", None), ("tool.return", 2), ("clock", None)]
    assert [kind for kind, _ in told[4:]] == ["tool.call", "tool.return", "run.completed"]


def test_a_failed_sync_says_that_the_effect_was_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is closed for good then: nothing is kept, the step is named, and no effect begins any more."""
    made: list[str] = []

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    @traced_tool(side_effect="irreversible")
    def pay(order: str) -> str:
        made.append(order)
        monkeypatch.setattr(writer, "_fdatasync", failing)
        return "paid"

    told: list[LogWriteError] = []

    def program() -> None:
        with record("sync"):
            for order in ("a", "b"):
                with pytest.raises(LogWriteError, match="a sync failed") as caught:
                    pay(order)
                told.append(caught.value)

    with pytest.raises(LogWriteError, match="has no end"):
        program()
    assert made == ["a"]
    assert [(error.executed, error.kept, error.step) for error in told] == [(True, False, 2), (False, False, None)]
    assert "in doubt" in str(told[0])


def test_the_end_of_a_run_says_what_the_log_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room up to the end, the run has none in the log, and its block raises."""

    @traced_tool(side_effect="read_only")
    def look() -> str:
        return LARGE

    def program(room: ExitStack) -> None:
        with record("end"):
            room.enter_context(no_room(monkeypatch, errno.ENOSPC))
            assert look() == LARGE

    with ExitStack() as room:
        with pytest.raises(LogWriteError, match=r"has no end: .* it lacks 1 entry of what happened") as caught:
            program(room)
        assert caught.value.executed is None


def test_what_no_effect_depends_on_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is read while nothing can be written does not fill the memory; what is given up is counted, and the run says so."""
    monkeypatch.setattr(writer, "_KEPT", 10_000)

    @traced_tool(side_effect="read_only")
    def pieces() -> Iterator[str]:
        for _ in range(100):
            yield LARGE

    def program() -> Any:
        with record("limit") as run:
            with no_room(monkeypatch, errno.ENOSPC):
                assert list(pieces()) == [LARGE] * 100
            session: Any = run._session
            assert 0 < session.log.journal.keeps < 20
        return run

    with pytest.warns(RuntimeWarning, match="outcomes are missing"):
        run = program()
    entries = Log(run.path).entries
    assert len([entry for entry in entries if entry["type"] == "tool.chunk"]) < 20
    assert entries[-1]["meta"]["lost"] > 80


def test_a_forked_child_keeps_what_happened_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own file lacks what has happened in it, and it makes no other effect before that is written."""
    ledger = tmp_path / "ledger"

    @traced_tool(side_effect="irreversible")
    def pay(order: str) -> str:
        with ledger.open("a") as file:
            file.write(f"{order}\n")
        return LARGE

    @traced_tool(side_effect="read_only")
    def look() -> int:
        return 1

    with record("fork"):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                look()  # which makes its file
                with no_room(monkeypatch, errno.ENOSPC):
                    told: list[bool | None] = []
                    for order in ("a", "b"):
                        try:
                            pay(order)
                        except LogWriteError as error:
                            told.append(error.executed)
                status = 0 if told == [True, False] and pay("c") == LARGE else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ledger.read_text().split() == ["a", "c"]


@traced_tool(side_effect="read_only")
async def _answer(number: int) -> int:
    await asyncio.sleep(0.003)
    return number


@traced_tool(side_effect="read_only")
async def _stream() -> AsyncIterator[str]:
    for word in ("one", "two", "three", "four"):
        await asyncio.sleep(0.003)
        yield word


@traced_tool(side_effect="irreversible", exactly_once=True, idempotency_key="number")
async def _once(number: int) -> int:
    await asyncio.sleep(0.003)
    return number


async def _calls() -> None:
    for number in range(3):
        await _answer(number)


async def _sleeps() -> None:
    for _ in range(3):
        await asyncio.sleep(0.003)


async def _pieces() -> None:
    async for _ in _stream():
        pass


async def _duplicates() -> None:
    await asyncio.gather(*(_once(7) for _ in range(3)))


async def _looked(ways: Callable[[], Awaitable[None]]) -> list[int]:
    """How often a task looks whether another one is done."""
    task, looks = asyncio.ensure_future(ways()), [0]
    task.add_done_callback(lambda _: looks.append(0))
    while not task.done():
        looks[-1] += 1
        await asyncio.sleep(0)
    await task
    return looks


@contextmanager
def _refused_once(monkeypatch: pytest.MonkeyPatch, chosen: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
    """The block in which there is no room for the chosen lines the first time that each is written; they are in the list."""
    refused: list[bytes] = []

    def write(fd: int, data: bytes) -> int:
        if chosen(data) and (not refused or refused[-1][:20] != data[:20]):
            refused.append(data)
            raise OSError(errno.ENOSPC, "no room")
        return os.write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(writer.Journal, "_os_write", staticmethod(write))
        yield refused


@pytest.mark.parametrize("ways", [_calls, _sleeps, _pieces, _duplicates])
def test_what_is_kept_has_its_place(ways: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can't be written at first: a replay counts as many looks of a task that polls until then as there were."""
    with _refused_once(monkeypatch, lambda line: b'"place":' in line) as refused, record("places") as run:
        looks = asyncio.run(_looked(ways))
    placed = [entry["seq"] for entry in Log(run.path).entries if "place" in entry]
    assert placed == [int(data.split(b'"seq":')[1].split(b",")[0]) for data in refused]
    assert len(placed) >= 3
    with replay(run) as session:
        assert asyncio.run(_looked(ways)) == looks
    assert session.report.exact


async def _sleeps_at_once() -> None:
    for _ in range(3):
        await asyncio.gather(*(asyncio.sleep(0.003) for _ in range(3)))


def test_what_is_kept_of_a_turn_of_the_loop_has_the_place_of_that_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what comes in one turn, only the first has a place in the log; another one that can't be written at first gets none."""
    with (
        _refused_once(monkeypatch, lambda line: b'"type":"clock"' in line and b'"place":' not in line) as refused,
        record("places") as run,
    ):
        looks = asyncio.run(_looked(_sleeps_at_once))
    timers = [entry for entry in Log(run.path).entries if entry["type"] == "clock"]
    assert [entry["seq"] for entry in timers if "place" not in entry] == [
        int(data.split(b'"seq":')[1].split(b",")[0]) for data in refused
    ]
    assert refused
    with replay(run) as session:
        assert asyncio.run(_looked(_sleeps_at_once)) == looks
    assert session.report.exact
