"""Compensation: what reversible tools did is undone in reverse order when the run is aborted, and before another attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cut import cut
from tests.support.effects import Effects, entries
from tracekit import _reality, current_run, record, replay, resume, traced_tool
from tracekit._capture import contracted
from tracekit._capture import contracted as attempts
from tracekit.errors import (
    ContractViolationError,
    DivergenceError,
    RecoveryRefusedError,
    RunStateError,
    UnconsumedStepsError,
)


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_reality", SimpleNamespace(**{**vars(_reality), "sleep": lambda seconds: None}))
    monkeypatch.setattr(contracted, "_FIRST_WAIT", 0.001)


def travel(effects: Effects) -> SimpleNamespace:
    """Tools that book, each with its own way back."""

    def unbook(seat: int, output: str | None) -> None:
        effects.happen(f"unbook {seat} ({output})")

    @traced_tool(side_effect="reversible", name="unrent", max_retries=1)
    def unrent(output: str | None = None) -> None:
        effects.happen(f"unrent ({output})")
        if effects.count(f"unrent ({output})") < 2:
            raise ConnectionError("no")

    def close(**arguments: Any) -> None:
        effects.happen(f"close {arguments}")

    @traced_tool(side_effect="reversible", name="book", compensate=unbook)
    def book(seat: int, row: str = "a") -> str:
        effects.happen(f"book {seat}")
        return f"b{seat}{row}"

    @traced_tool(side_effect="reversible", name="rent", compensate=unrent)
    def rent(days: int) -> str:
        effects.happen("rent")
        return f"r{days}"

    @traced_tool(side_effect="reversible", name="open", compensate=close)
    def open_(account: str, kind: int = 1) -> None:
        effects.happen("open")

    @traced_tool(side_effect="reversible", name="plain")
    def plain(x: int) -> None:
        effects.happen("plain")

    @traced_tool(side_effect="reversible", name="breaks", compensate=unbook)
    def breaks(seat: int) -> str:
        effects.happen("breaks")
        raise ConnectionError("no seats")

    return SimpleNamespace(book=book, rent=rent, open=open_, plain=plain, breaks=breaks)


def abort(reason: str = "no seats") -> None:
    run = current_run()
    assert run is not None
    run.abort(reason)


def test_an_abort_undoes_what_was_done_the_last_first(tmp_path: Path) -> None:
    """Every reversible step is undone once, a failed one too, each by a recorded step that names it; the run ends as run.aborted."""
    effects = Effects(tmp_path)
    tools = travel(effects)

    def program() -> None:
        tools.book(1)
        tools.rent(days=3)
        tools.plain(1)
        tools.open("acme")
        with pytest.raises(ConnectionError):
            tools.breaks(9)
        abort()
        abort("again: there is nothing left")

    with record("trip") as run:
        program()
    done = ["book 1", "rent", "plain", "open", "breaks"]
    undone = ["unbook 9 (None)", "close {'account': 'acme', 'kind': 1}", "unrent (r3)", "unrent (r3)", "unbook 1 (b1a)"]
    assert effects.all() == done + undone
    calls = entries(run.path, "tool.call")
    names = {call["seq"]: call["name"] for call in calls}
    compensations = [call for call in calls if "compensates" in call["meta"].get("info", {})]
    assert [names[call["meta"]["info"]["compensates"]] for call in compensations] == [
        "breaks",
        "open",
        "rent",
        "rent",
        "book",
    ]
    assert [call["meta"]["side_effect"] for call in compensations] == [
        "irreversible",
        "irreversible",
        "reversible",
        "reversible",
        "irreversible",
    ]
    last = entries(run.path)[-1]
    assert last["type"] == "run.aborted"
    assert last["meta"]["reason"] == "no seats"
    assert last["meta"]["compensated"] == sorted(
        seq for seq, name in names.items() if name in ("breaks", "open", "rent", "book")
    )
    assert last["meta"]["uncompensated"] == []
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert effects.all() == done + undone


def test_an_exception_that_leaves_the_block_is_kept_beside_the_abort(tmp_path: Path) -> None:
    """The usual form, abort and raise, ends as run.aborted with the error; a replay must end so too."""
    effects = Effects(tmp_path)
    tools = travel(effects)

    def program(reason: str | None = "down", error: Exception | None = None) -> None:
        tools.book(1)
        if reason is not None:
            abort(reason)
        raise error or LookupError("x")

    with pytest.raises(LookupError), record("trip") as run:
        program()
    last = entries(run.path)[-1]
    assert (last["type"], last["error"]["type"]) == ("run.aborted", "builtins:LookupError")
    with pytest.raises(LookupError), replay(run.id) as session:
        program()
    assert session.report.exact
    for other in (lambda: program("another reason"), lambda: program(error=KeyError("y"))):
        with pytest.raises(DivergenceError), replay(run.id):
            other()
    with pytest.raises((DivergenceError, UnconsumedStepsError)), replay(run.id):
        program(None)
    assert effects.all() == ["book 1", "unbook 1 (b1a)"]


def test_an_abort_of_now_is_a_divergence_from_a_run_that_completed(tmp_path: Path) -> None:
    """And so is its absence: with nothing to undo, only the end differs."""
    tools = travel(Effects(tmp_path))

    def program(given_up: bool) -> None:
        tools.plain(1)
        if given_up:
            abort()

    for then in (False, True):
        with record("end") as run:
            program(then)
        with pytest.raises(DivergenceError, match="ended differently"), replay(run.id):
            program(not then)


def test_coroutines_are_undone_by_awaiting(tmp_path: Path) -> None:
    """abort_async awaits what must be awaited, and calls the rest; abort says what to call instead, before anything is undone."""
    effects = Effects(tmp_path)
    tools = travel(effects)

    async def unsend(to: str) -> None:
        await asyncio.sleep(0)
        effects.happen(f"unsend {to}")

    @traced_tool(side_effect="reversible", compensate=unsend, timeout_ms=60_000)
    async def send(to: str) -> str:
        await asyncio.sleep(0)
        return effects.happen("send")

    async def program() -> None:
        run = current_run()
        assert run is not None
        await asyncio.gather(send("a"), send("b"))
        tools.book(1)
        with pytest.raises(RunStateError, match="unsend"):
            run.abort("no")
        await run.abort_async("no")

    with record("async") as run:
        asyncio.run(program())
    made = ["send", "send", "book 1", "unbook 1 (b1a)", "unsend b", "unsend a"]
    assert effects.all() == made
    with replay(run.id) as session:
        asyncio.run(program())
    assert session.report.exact
    assert effects.all() == made


def test_a_compensation_that_fails_keeps_none_of_the_others(tmp_path: Path) -> None:
    """All are run, none twice; what failed is raised at the end and named in the last entry."""
    effects = Effects(tmp_path)

    def undo(x: int) -> None:
        effects.happen(f"undo {x}")
        if x == 2:
            raise OSError("stuck")

    @traced_tool(side_effect="reversible", compensate=undo)
    def do(x: int) -> None:
        effects.happen(f"do {x}")

    def program() -> None:
        for x in (1, 2, 3):
            do(x)
        with pytest.raises(ExceptionGroup) as caught:
            abort()
        assert [str(error) for error in caught.value.exceptions] == ["stuck"]
        abort("again")

    with record("stuck") as run:
        program()
    assert effects.all()[3:] == ["undo 3", "undo 2", "undo 1"]
    last = entries(run.path)[-1]
    calls = [call["seq"] for call in entries(run.path, "tool.call")]
    assert last["meta"]["uncompensated"] == [calls[1]]
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert len(effects.all()) == 6


def test_methods_undo_for_their_own_object(tmp_path: Path) -> None:
    """A compensation in the class has the object of the call; a bound method of another has its own."""
    effects = Effects(tmp_path)

    class Ledger:
        def strike(self, x: int) -> None:
            effects.happen(f"strike {x}")

    class Desk:
        def __init__(self, name: str) -> None:
            self.name = name

        def undo(self, x: int) -> None:
            effects.happen(f"{self.name} undoes {x}")

        @traced_tool(side_effect="irreversible", name="undo_traced")
        def undo_traced(self, x: int, output: int) -> None:
            effects.happen(f"{self.name} undoes {output}, traced")

        @traced_tool(side_effect="reversible", compensate=undo)
        def book(self, x: int) -> int:
            return -x

        @traced_tool(side_effect="reversible", compensate=undo_traced)
        def rent(self, x: int) -> int:
            return -x

        @traced_tool(side_effect="reversible", compensate=Ledger().strike)
        def note(self, x: int) -> None: ...

    def program() -> None:
        first, second = Desk("first"), Desk("second")
        first.book(1)
        second.rent(2)
        second.note(3)
        abort()

    with record("methods") as run:
        program()
    made = ["strike 3", "second undoes -2, traced", "first undoes 1"]
    assert effects.all() == made
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert effects.all() == made


def test_what_happened_inside_a_tool_is_undone_with_it_or_by_itself(tmp_path: Path) -> None:
    """A tool's own compensation answers for what it did inside; a failed one too. Without one, the inner steps are undone."""
    effects = Effects(tmp_path)
    tools = travel(effects)

    def whole(x: int) -> None:
        effects.happen("undo whole")

    @traced_tool(side_effect="reversible", compensate=whole)
    def covered(x: int) -> None:
        tools.book(x)
        if x > 5:
            raise ConnectionError("no")

    @traced_tool(side_effect="reversible")
    def bare(x: int) -> None:
        tools.book(x)

    def program() -> None:
        covered(1)
        bare(2)
        with pytest.raises(ConnectionError):
            covered(6)
        tools.book(3)
        abort()

    with record("inside") as run:
        program()
    made = ["book 1", "book 2", "book 6", "book 3"]
    undone = ["unbook 3 (b3a)", "undo whole", "unbook 2 (b2a)", "undo whole"]
    assert effects.all() == made + undone
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert effects.all() == made + undone


def test_a_failed_attempt_is_undone_before_the_next(tmp_path: Path) -> None:
    """Before it is made again, and before another tool stands in; an undo that fails ends it there."""
    effects = Effects(tmp_path)

    def undo(x: int, output: str | None) -> None:
        effects.happen(f"undo {output}")
        if x < 0:
            raise OSError("stuck")

    @traced_tool(side_effect="reversible", name="other", compensate=undo)
    def other(x: int) -> str:
        return effects.happen("other")

    @traced_tool(side_effect="reversible", name="do", compensate=undo, max_retries=1, fallback=other)
    def do(x: int) -> str:
        effects.happen("do")
        raise ConnectionError("no")

    def program() -> None:
        assert do(1) == "other 1"
        with pytest.raises(ConnectionError) as caught:
            do(-1)
        assert "stuck" in caught.value.__notes__[0]
        abort()

    with record("again") as run:
        program()
    made = [
        "do",
        "undo None",
        "do",
        "undo None",
        "other",
        "do",
        "undo None",
        "undo other 1",
    ]  # what failed to undo is not undone again
    assert effects.all() == made
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert effects.all() == made


def test_coroutines_are_undone_before_the_next_attempt(tmp_path: Path) -> None:
    """An attempt of an asynchronous tool that timed out is undone before the next attempt begins."""
    effects = Effects(tmp_path)

    async def undo(x: int) -> None:
        effects.happen("undo")

    @traced_tool(side_effect="reversible", compensate=undo, max_retries=2, timeout_ms=20)
    async def do(x: int) -> str:
        said = effects.happen("do")
        if said != "do 3":
            await asyncio.Event().wait()
        return said

    with record("again") as run:
        assert asyncio.run(do(1)) == "do 3"
    with replay(run.id) as session:
        assert asyncio.run(do(1)) == "do 3"
    assert session.report.exact
    assert effects.all() == ["do", "undo", "do", "undo", "do"]


def test_a_call_that_was_answered_by_an_earlier_one_is_undone_once(tmp_path: Path) -> None:
    """exactly_once: three calls, one effect, one compensation."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="reversible", exactly_once=True, compensate=lambda x: effects.happen("undo"))
    def do(x: int) -> str:
        return effects.happen("do")

    def program() -> None:
        assert [do(1), do(1), do(1)] == ["do 1"] * 3
        abort()

    with record("once") as run:
        program()
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert effects.all() == ["do", "undo"]


def test_where_a_run_can_be_aborted(tmp_path: Path) -> None:
    """In its own block, with a reason, not inside a tool and not from outside."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only")
    def inside(x: int) -> None:
        abort()

    with record("where") as run:
        for reason in ("", "  "):
            with pytest.raises(ValueError, match="reason"):
                run.abort(reason)
        with pytest.raises(RunStateError):
            inside(1)
    assert entries(run.path)[-1]["type"] == "run.completed"
    with pytest.raises(RunStateError):
        run.abort("late")
    assert effects.count() == 0


@pytest.mark.parametrize(
    "compensate",
    [lambda x, output: None, lambda output: None],
)
def test_two_outputs_can_not_be_told_apart(compensate: Callable[..., Any]) -> None:
    """A tool with a parameter ``output`` and a compensation that takes one: which is meant is not guessed."""
    with pytest.raises(ContractViolationError, match="output"):
        traced_tool(side_effect="reversible", compensate=compensate)(lambda x, output: x)


def test_a_resumed_run_undoes_what_its_log_answered(tmp_path: Path) -> None:
    """A step from before the crash is undone as one from after it; one that was cut off is undone before it is made again."""
    effects = Effects(tmp_path)
    tools = travel(effects)

    def program() -> None:
        tools.book(1)
        tools.book(2)
        tools.open("acme")
        abort()

    with record("trip") as run:
        program()
    calls = entries(run.path, "tool.call")
    path = cut(run, calls[1]["seq"], tmp_path / "store")  # the second booking is pending
    before = len(effects.all())
    with resume(path):
        program()
    made = [
        "unbook 2 (None)",
        "book 2",
        "open",
        "close {'account': 'acme', 'kind': 1}",
        "unbook 2 (b2a)",
        "unbook 1 (b1a)",
    ]
    assert effects.all()[before:] == made
    assert entries(path)[-1]["type"] == "run.aborted"
    with replay(path) as session:
        program()
    assert session.report.exact
    assert effects.all()[before:] == made


def test_a_run_that_died_in_its_own_abort_goes_on_with_it(tmp_path: Path) -> None:
    """Killed between two of its compensations, or inside a reversible one: resumed, the program asks for the abort again, what the
    log has undone stays undone, the rest is undone once. Inside an irreversible one it is in doubt."""
    effects = Effects(tmp_path)
    tools = travel(effects)

    def program() -> None:
        tools.book(1)
        tools.rent(days=3)
        tools.open("acme")
        abort()

    with record("trip") as run:
        program()
    calls = entries(run.path, "tool.call")
    first = next(call["seq"] for call in calls if "compensates" in call["meta"].get("info", {}))
    last = entries(run.path)[-1]["seq"]
    whole = ["close {'account': 'acme', 'kind': 1}", "unrent (r3)", "unbook 1 (b1a)"]
    for kept in range(first - 1, last):
        path = cut(run, kept, tmp_path / f"store{kept}")
        log = entries(path)
        compensations = [entry for entry in log if "compensates" in entry.get("meta", {}).get("info", {})]
        ended = {entry["step"] for entry in log if entry["type"] in ("tool.return", "tool.error")}
        pending = [entry for entry in compensations if entry["seq"] not in ended]
        before = len(effects.all())
        if any(entry["meta"]["side_effect"] == "irreversible" for entry in pending):
            with pytest.raises(RecoveryRefusedError) as caught, resume(path):
                program()
            assert caught.value.reasons[0]["code"] == "irreversible_pending"
            assert effects.all()[before:] == []
            continue
        with resume(path):
            program()
        undone = sum(entry["type"] == "tool.return" and entry["seq"] > first for entry in log)
        assert effects.all()[before:] == whole[undone:]  # the one that failed once fails no more
        end = entries(path)[-1]
        assert (end["type"], len(end["meta"]["compensated"]), end["meta"]["uncompensated"]) == ("run.aborted", 3, [])
        before = len(effects.all())
        with replay(path) as session:
            program()
        assert session.report.exact
        assert effects.all()[before:] == []
