"""An abort while calls are under way: nothing new begins, what has begun is waited for and undone, what can't be is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.effects import Effects, entries
from tests.support.processes import python
from tracekit import current_run, decision, record, replay, traced_tool
from tracekit._capture.contracted import UndoableSteps
from tracekit._runs import ending, undoing
from tracekit.errors import RunEndedError, StepTimeoutError


def the_run() -> Any:
    run = current_run()
    assert run is not None
    return run


def last_of(path: str) -> dict[str, Any]:
    return entries(path)[-1]


def test_tasks_under_way_are_awaited_and_undone(tmp_path: Path) -> None:
    """abort_async waits for the bookings that gather has left behind and undoes them; those that have not begun never do."""
    effects = Effects(tmp_path)

    def unbook(i: int, output: str | None) -> None:
        effects.happen(f"unbook {i} ({output})")

    @traced_tool(side_effect="reversible", name="book", compensate=unbook)
    async def book(i: int) -> str:
        await asyncio.sleep(0)
        if i == 1:
            raise ValueError("no seat")
        if i > 1:
            await full[-1].wait()
            await asyncio.sleep(0.001)
        effects.happen(f"book {i}")
        return f"B{i}"

    refused: list[str] = []
    full: list[asyncio.Event] = []

    async def late() -> None:
        await full[-1].wait()
        try:
            await book(9)
        except RunEndedError as error:
            refused.append(type(error).__name__)

    async def program() -> None:
        full.append(asyncio.Event())
        straggler = asyncio.create_task(late())
        try:
            await asyncio.gather(*[book(i) for i in range(4)])
        except ValueError:
            full[-1].set()  # the others go on while the abort waits
            await the_run().abort_async("full")
        await straggler

    async def recorded() -> Any:
        async with record("trip") as run:
            await program()
        return run

    run = asyncio.run(recorded())
    made = effects.all()
    assert made == [
        "book 0",
        "book 2",
        "book 3",
        "unbook 3 (B3)",
        "unbook 2 (B2)",
        "unbook 1 (None)",
        "unbook 0 (B0)",
    ]
    assert refused == ["RunEndedError"]
    meta = last_of(run.path)["meta"]
    assert (len(meta["compensated"]), meta["uncompensated"]) == (4, [])

    async def replayed() -> Any:
        async with replay(run.id) as session:
            await program()
        return session

    assert asyncio.run(replayed()).report.exact
    assert effects.all() == made
    assert refused == ["RunEndedError"] * 2


def while_it_waits(monkeypatch: pytest.MonkeyPatch, go_on: threading.Event) -> None:
    """Let the others go on when the abort has begun to wait, and not before."""
    wait = UndoableSteps.wait

    def waits(self: UndoableSteps, over: Any, until: Any) -> None:
        go_on.set()
        wait(self, over, until)

    monkeypatch.setattr(UndoableSteps, "wait", waits)


def test_a_thread_under_way_is_waited_for_and_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A booking of another thread that is under way when the run is aborted is undone, and the thread's next one is refused."""
    effects = Effects(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    while_it_waits(monkeypatch, go_on)

    @traced_tool(side_effect="reversible", name="book", compensate=lambda i: effects.happen(f"unbook {i}"))
    def book(i: int) -> str:
        if i == 2:
            begun.set()
            assert go_on.wait(10)
        return effects.happen(f"book {i}")

    @traced_tool(side_effect="irreversible", name="pay")
    def pay() -> None:
        effects.happen("pay")

    said: list[str] = []

    def other() -> None:
        book(2)
        for tool in (lambda: book(3), pay):
            try:
                tool()
            except RunEndedError as error:
                said.append(str(error))

    def program(abort: Any) -> None:
        book(1)
        thread = threading.Thread(target=other)
        thread.start()
        abort()
        thread.join()

    def abort() -> None:
        assert begun.wait(10)
        the_run().abort("full")

    with record("threads") as run:
        program(abort)
    made = effects.all()
    assert made == ["book 1", "book 2", "unbook 2", "unbook 1"]
    assert len(said) == 2
    assert last_of(run.path)["meta"]["uncompensated"] == []
    monkeypatch.setattr(undoing, "PATIENCE", 0.0)  # a replay does not wait by the clock
    for _ in range(3):
        with replay(run.id) as session:
            program(lambda: the_run().abort("full"))
        assert session.report.exact
    assert effects.all() == made
    assert len(said) == 8


def test_what_can_not_be_waited_for_is_told(tmp_path: Path) -> None:
    """A plain abort can't wait for tasks of its own loop: their steps are named in the last entry and in a warning."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="reversible", name="book", compensate=lambda i: effects.happen(f"unbook {i}"))
    async def book(i: int) -> str:
        await asyncio.sleep(0.01)
        return effects.happen(f"book {i}")

    async def program() -> None:
        await book(1)
        task = asyncio.create_task(book(2))
        await asyncio.sleep(0)
        the_run().abort("full")
        await task

    with pytest.warns(RuntimeWarning, match="were under way, and they were not undone"), record("plain") as run:
        asyncio.run(program())
    made = effects.all()
    assert made == ["book 1", "unbook 1", "book 2"]
    second = [
        call["seq"] for call in entries(run.path, "tool.call") if call["input"] == {"i": 2} and call["name"] == "book"
    ]
    assert last_of(run.path)["meta"]["uncompensated"] == second
    with replay(run.id) as session:
        asyncio.run(program())
    assert session.report.exact
    assert effects.all() == made


@pytest.mark.parametrize("ends", [True, False])
def test_a_function_that_took_too_long_is_undone_when_its_thread_has_ended(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread books later: the abort waits for that, and undoes it then; where it does not end, its step is told."""
    effects = Effects(tmp_path)
    go_on, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(undoing, "PATIENCE", 10.0 if ends else 0.05)
    if ends:
        while_it_waits(monkeypatch, go_on)

    @traced_tool(
        side_effect="reversible",
        compensate=lambda x, output: effects.happen(f"unbook {output}"),
        timeout_ms=30,
        timeout_in="thread",
        max_retries=3,
    )
    def book(x: int) -> str:
        assert go_on.wait(10)
        effects.happen("book")
        ended.set()
        return "B"

    def program(aborts: Any) -> None:
        with pytest.raises(StepTimeoutError) as caught:
            book(1)
        assert caught.value.in_doubt
        aborts()

    def abort() -> None:
        the_run().abort("full")
        go_on.set()
        assert ended.wait(10)

    if ends:
        with record("slow") as run:
            program(abort)
    else:
        with pytest.warns(RuntimeWarning, match="not undone: 3"), record("slow") as run:
            program(abort)
    made = effects.all()
    assert made == (["book", "unbook None"] if ends else ["book"])
    meta = last_of(run.path)["meta"]
    assert (meta["compensated"], meta["uncompensated"]) == (([3], []) if ends else ([], [3]))
    with replay(run.id) as session:
        program(lambda: the_run().abort("full"))
    assert session.report.exact
    assert effects.all() == made


def steps_of(path: str, name: str) -> list[int]:
    return [call["seq"] for call in entries(path, "tool.call") if call["name"] == name]


@pytest.mark.parametrize("side_effect", ["reversible", "irreversible"])
def test_what_can_not_be_undone_is_waited_for(
    side_effect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort goes on when the payment of another thread has come to its end, in the replay too, and what was booked is undone then."""
    effects = Effects(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    while_it_waits(monkeypatch, go_on)

    @traced_tool(side_effect="reversible", name="book", compensate=lambda i: effects.happen(f"unbook {i}"))
    def book(i: int) -> str:
        return effects.happen(f"book {i}")

    @traced_tool(side_effect=side_effect, name="pay")
    def pay() -> str:
        begun.set()
        assert go_on.wait(60)
        time.sleep(0.05)  # an abort that does not wait comes first
        return effects.happen("pay")

    def program(aborts: Any) -> list[str]:
        receipts: list[str] = []
        book(1)
        thread = threading.Thread(target=lambda: receipts.append(pay()))
        thread.start()
        aborts()
        thread.join()
        decision("paid", input=None, output=receipts)
        return receipts

    def abort() -> None:
        assert begun.wait(60)
        the_run().abort("full")

    with record("threads") as run:
        receipts = program(abort)
    made = effects.all()
    assert made == ["book 1", "pay", "unbook 1"]
    assert last_of(run.path)["meta"]["in_doubt"] == []
    for _ in range(3):
        with replay(run.id) as session:
            assert program(lambda: the_run().abort("full")) == receipts
        assert session.report.exact, session.report.as_dict()
    assert effects.all() == made


def test_tasks_that_nothing_undoes_are_awaited(tmp_path: Path) -> None:
    """``abort_async`` lets payments of other tasks come to their end: what comes after it sees them, recorded and replayed."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="irreversible", name="pay")
    async def pay(i: int) -> str:
        for _ in range(3 * i):
            await asyncio.sleep(0.001)
        return effects.happen(f"pay {i}")

    async def program() -> list[str]:
        tasks = [asyncio.create_task(pay(i)) for i in (1, 2)]
        await asyncio.sleep(0)
        await the_run().abort_async("enough")
        done = [task.result() for task in tasks]
        decision("paid", input=None, output=done)
        return done

    async def recorded() -> Any:
        async with record("tasks") as run:
            done = await program()
        return run, done

    run, done = asyncio.run(recorded())
    assert (effects.all(), last_of(run.path)["meta"]["in_doubt"]) == (["pay 1", "pay 2"], [])

    async def replayed() -> Any:
        async with replay(run.id) as session:
            assert await program() == done
        return session.report

    for _ in range(3):
        assert asyncio.run(replayed()).exact
    assert effects.all() == ["pay 1", "pay 2"]


def test_what_does_not_end_is_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payment that does not end in time is in doubt: the last entry and a warning name it. A replay holds it there."""
    effects = Effects(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(undoing, "PATIENCE", 0.05)
    monkeypatch.setattr(ending, "DRAIN_S", 0.0)

    @traced_tool(side_effect="irreversible", name="pay")
    def pay() -> str:
        begun.set()
        assert go_on.wait(60)
        return effects.happen("pay")

    @traced_tool(side_effect="irreversible", name="refund")
    def refund() -> None:
        raise OSError("the line is dead")

    threads: list[threading.Thread] = []

    def program(aborts: Any) -> None:
        with contextlib.suppress(OSError):
            refund()
        threads.append(threading.Thread(target=pay))
        threads[-1].start()
        aborts()

    def abort() -> None:
        assert begun.wait(60)
        the_run().abort("full")

    with pytest.warns(RuntimeWarning, match="nothing says whether they took effect: 5"), record("threads") as run:
        program(abort)
    (refunded,), (paid,) = steps_of(run.path, "refund"), steps_of(run.path, "pay")
    meta = last_of(run.path)["meta"]
    assert (meta["in_doubt"], meta["uncompensated"]) == ([refunded, paid], [])

    def ends() -> None:
        go_on.set()
        threads[0].join()

    with pytest.warns(RuntimeWarning, match="after run .* had ended"):
        ends()
    made = effects.all()
    with replay(run.id) as session:  # the log does not say how the payment ended
        program(lambda: the_run().abort("full"))
    threads[1].join()
    assert session.report.exact
    assert effects.all() == made == ["pay"]


def test_what_goes_on_with_the_abort_itself_is_not_waited_for(tmp_path: Path) -> None:
    """A generator that the aborting line has not read to its end, and tasks of its own loop, can't end meanwhile: they are named."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="reversible")
    def pages() -> Any:
        for i in range(3):
            yield effects.happen(f"page {i}")

    @traced_tool(side_effect="irreversible", name="pay")
    async def pay() -> str:
        await asyncio.sleep(0.001)
        return effects.happen("pay")

    async def program() -> None:
        reading = pages()
        next(reading)
        task = asyncio.create_task(pay())
        await asyncio.sleep(0)
        the_run().abort("full")
        await task
        reading.close()

    with record("own") as run:
        asyncio.run(program())
    assert not [one for one in entries(run.path, "clock") if one["name"] == "tracekit.abort"]
    assert last_of(run.path)["meta"]["in_doubt"] == []  # both have ended since
    made = effects.all()
    with replay(run.id) as session:
        asyncio.run(program())
    assert session.report.exact
    assert effects.all() == made == ["page 0", "pay"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_thread_that_never_began_is_waited_for_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit for which the system has no thread left: the call fails, and an abort undoes it at once."""
    effects = Effects(tmp_path)

    def unbook(seat: int) -> None:
        effects.happen(f"unbook {seat}")

    @traced_tool(side_effect="reversible", name="book", compensate=unbook, timeout_ms=60_000, timeout_in="thread")
    def book(seat: int) -> None:
        effects.happen(f"book {seat}")

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with record("job") as run:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                book(3)
        run.abort("full")
    assert effects.all() == ["unbook 3"]
    meta = last_of(run.path)["meta"]
    assert (len(meta["compensated"]), meta["uncompensated"]) == (1, [])


HANDLER_ANYWHERE = """
import sys
from tracekit import record, traced_tool

made = []

@traced_tool(side_effect="reversible", name="book", compensate=lambda n: made.append(-n))
def book(n):
    made.append(n)

class Handler:  # it comes at the first line of the module that was not seen before
    seen = set()

    def __init__(self):
        self.called = False

    def __call__(self, frame, event, arg):
        return self.at if frame.f_code.co_filename.endswith("/_capture/contracted.py") else None

    def at(self, frame, event, arg):
        place = frame.f_code, frame.f_lineno
        if event == "line" and not self.called and place not in self.seen:
            self.called = True
            self.seen.add(place)
            sys.settrace(None)
            book(1)
        return self.at

def program():
    book(2)
    while True:
        handler = Handler()
        sys.settrace(handler)
        try:
            book(3)
        finally:
            sys.settrace(None)
        if not handler.called:
            break

with record("job") as run:
    program()
print(made.count(1) > 50, made.count(1) == made.count(3) - 1)
"""


def test_a_signal_handler_may_call_a_tool_at_any_instant(tmp_path: Path) -> None:
    """Wherever it comes in the bookkeeping of what can be undone, neither call waits for the other."""
    done = python("-c", HANDLER_ANYWHERE, cwd=tmp_path, timeout=120, fresh=True)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
