"""An abort while calls are under way: nothing new begins, what has begun is waited for and undone, what can't be is told."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.effects import Effects, entries
from tracekit import current_run, record, replay, traced_tool
from tracekit._capture.ledger import Ledger
from tracekit._session import undoing
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
    wait = Ledger.wait

    def waits(self: Ledger, over: Any, seconds: float) -> None:
        go_on.set()
        wait(self, over, seconds)

    monkeypatch.setattr(Ledger, "wait", waits)


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
