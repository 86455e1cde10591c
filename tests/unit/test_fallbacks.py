"""Fallbacks: another tool stands in when one has failed, never around something that can't be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.effects import Effects, entries
from tracekit import ContractViolationError, _reality, record, replay, traced_tool
from tracekit._capture import contracted as attempts
from tracekit.errors import DivergenceError
from tracekit.integration import check_transition


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_reality", SimpleNamespace(**{**vars(_reality), "sleep": lambda seconds: None}))


def tool(effects: Effects, name: str, side_effect: Any = "read_only", fails: bool = False, **how: Any) -> Any:
    @traced_tool(side_effect=side_effect, name=name, **how)
    def made(x: int, *, unit: str = "km") -> str:
        said = effects.happen(name)
        if fails:
            raise ConnectionError(f"{name} is down")
        return f"{said} {x}{unit}"

    return made


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("read_only", "read_only", True),
        ("read_only", "reversible", True),
        ("read_only", "irreversible", None),
        ("reversible", "read_only", None),
        ("reversible", "reversible", True),
        ("reversible", "irreversible", "escalation"),
        ("irreversible", "read_only", None),
        ("irreversible", "reversible", None),
        ("irreversible", "irreversible", None),
    ],
)
def test_every_transition(before: str, after: str, allowed: Any, tmp_path: Path) -> None:
    """Each pair of classes: allowed and recorded, allowed and recorded as an escalation, or refused where it is written."""
    effects = Effects(tmp_path)
    other = tool(effects, "other", after)
    if allowed is None:
        with pytest.raises(ContractViolationError, match="can't replace"):
            tool(effects, "first", before, fails=True, fallback=other)
        with pytest.raises(ContractViolationError):
            check_transition("first", before, "other", after)
        return
    first = tool(effects, "first", before, fails=True, fallback=other)
    with record("transition") as run:
        assert first(5, unit="m") == "other 1 5m"
    [note] = entries(run.path, "fallback.triggered")
    about = {
        "from": "first",
        "to": "other",
        "from_side_effect": before,
        "to_side_effect": after,
        "reason": note["input"]["reason"],
    }
    if allowed == "escalation":
        about["escalation"] = True
    assert note["input"] == about
    assert note["meta"]["info"]["step"] == entries(run.path, "tool.call")[0]["seq"]
    with replay(run.id) as session:
        assert first(5, unit="m") == "other 1 5m"
    assert session.report.exact
    assert effects.all() == ["first", "other"]


def test_they_stand_in_one_after_the_other_after_the_last_attempt(tmp_path: Path) -> None:
    """All attempts of the first come before the second; the first that answers ends it."""
    effects = Effects(tmp_path)
    third, second = tool(effects, "third"), tool(effects, "second", fails=True, max_retries=1)
    first = tool(effects, "first", fails=True, max_retries=1, fallback=(second, third, tool(effects, "fourth")))
    with record("chain") as run:
        assert first(1) == "third 1 1km"
    assert effects.all() == ["first", "first", "second", "second", "third"]
    notes = [(one["input"]["from"], one["input"]["to"]) for one in entries(run.path, "fallback.triggered")]
    assert notes == [("first", "second"), ("second", "third")]
    assert not entries(run.path, "fallback.exhausted")
    with replay(run.id) as session:
        assert first(1) == "third 1 1km"
    assert session.report.exact
    assert len(effects.all()) == 5


class UnprintableError(Exception):
    """An exception of the program whose text can't be had."""

    def __str__(self) -> str:
        raise AttributeError("no text")


def test_an_exception_without_a_text_is_the_programs_all_the_same() -> None:
    """What a fallback raised may be in a note; if it has no text, the caller gets the first failure nevertheless."""

    @traced_tool(side_effect="read_only", name="second")
    def second(x: int) -> str:
        raise UnprintableError

    @traced_tool(side_effect="read_only", fallback=second)
    def first(x: int) -> str:
        raise ConnectionError("first is down")

    with record("unprintable") as run, pytest.raises(ConnectionError, match="first is down") as caught:
        first(1)
    assert caught.value.__notes__ == [
        "fallback 'second' failed too: UnprintableError: <its text raised AttributeError>"
    ]
    assert entries(run.path, "fallback.exhausted")


def test_when_none_is_left_the_first_failure_is_told(tmp_path: Path) -> None:
    """fallback.exhausted is recorded; the caller gets the original exception, with the others in its notes."""
    effects = Effects(tmp_path)
    first = tool(
        effects, "first", fails=True, fallback=[tool(effects, "second", fails=True), tool(effects, "third", fails=True)]
    )

    def program() -> list[str]:
        with pytest.raises(ConnectionError, match="first is down") as caught:
            first(1)
        return caught.value.__notes__

    with record("exhausted") as run:
        notes = program()
    assert notes == [
        "fallback 'second' failed too: ConnectionError: second is down",
        "fallback 'third' failed too: ConnectionError: third is down",
    ]
    [exhausted] = entries(run.path, "fallback.exhausted")
    assert exhausted["input"]["from"] == "first"
    assert exhausted["input"]["tried"] == ["second", "third"]
    with replay(run.id) as session:
        assert program() == notes
    assert session.report.exact
    assert len(effects.all()) == 3


def test_nobody_stands_in_after_something_irreversible(tmp_path: Path) -> None:
    """An irreversible stand-in is the last one, and a tool that failed after an irreversible step inside it has none."""
    effects = Effects(tmp_path)
    pay = tool(effects, "pay", "irreversible", fails=True)

    @traced_tool(side_effect="reversible", name="order", fallback=tool(effects, "other", "reversible"))
    def order(x: int, unit: str = "km") -> str:
        return str(pay(x))

    inner = tool(effects, "inner", "reversible", fails=True, fallback=pay)
    outer = tool(effects, "outer", "reversible", fails=True, fallback=(inner, tool(effects, "other", "reversible")))
    for program, made in ((order, ["pay"]), (outer, ["outer", "inner", "pay"])):
        before = len(effects.all())
        with record("started") as run, pytest.raises(ConnectionError):
            program(1)
        assert effects.all()[before:] == made
        with replay(run.id) as session, pytest.raises(ConnectionError):
            program(1)
        assert session.report.exact
        assert effects.all()[before:] == made


def test_a_refused_call_has_no_stand_in(tmp_path: Path) -> None:
    """A call that breaks its contract is not made by another tool either; a stand-in that is refused ends it."""
    effects = Effects(tmp_path)
    other = tool(effects, "other")
    dear = tool(effects, "dear", fallback=other, max_cost_units=1, cost_units=lambda x: x)
    first = tool(effects, "first", fails=True, fallback=(dear, other))

    def program() -> list[BaseException | None]:
        with pytest.raises(ContractViolationError):
            dear(2)
        with pytest.raises(ContractViolationError) as caught:
            first(2)
        return [caught.value.__cause__]

    with record("refused") as run:
        [cause] = program()
    assert isinstance(cause, ConnectionError)
    with replay(run.id) as session:
        program()
    assert session.report.exact
    assert effects.all() == ["first"]


def test_methods_stand_in_for_methods_and_functions_for_coroutines(tmp_path: Path) -> None:
    """The object goes with the call; arguments go by name, whatever their order; an async tool may fall back to any."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only")
    def plain(unit: str, x: int) -> str:
        return effects.happen(f"plain {x}{unit}")

    @traced_tool(side_effect="read_only")
    async def later(x: int, unit: str) -> str:
        await asyncio.sleep(0)
        effects.happen("later")
        raise ConnectionError("later is down")

    class Desk:
        def __init__(self, name: str) -> None:
            self.name = name

        @traced_tool(side_effect="read_only")
        def second(self, unit: str, x: int = 0, more: str = "") -> str:
            return effects.happen(f"{self.name} {x}{unit}")

        @traced_tool(side_effect="read_only")
        @staticmethod
        def static(x: int, unit: str) -> str:
            effects.happen("static")
            raise ConnectionError("static is down")

        @traced_tool(side_effect="read_only", fallback=(static, second))
        def first(self, x: int, unit: str = "km") -> str:
            raise ConnectionError("first is down")

        @traced_tool(side_effect="read_only", fallback=(later, plain))
        async def soon(self, x: int, unit: str = "km") -> str:
            await asyncio.sleep(0)
            raise ConnectionError("soon is down")

    def program() -> list[str]:
        desk = Desk("desk")
        return [desk.first(3), Desk.first(desk, 4, unit="m"), asyncio.run(desk.soon(5))]

    with record("shapes") as run:
        came = program()
    made = effects.all()
    assert made == ["static", "desk 3km", "static", "desk 4m", "later", "plain 5km"]
    with replay(run.id) as session:
        assert program() == came
    assert session.report.exact
    assert effects.all() == made


@pytest.mark.parametrize("gathered", [False, True])
def test_arguments_of_every_kind_reach_the_stand_in(gathered: bool, tmp_path: Path) -> None:
    """Positional-only, variable and keyword-only arguments are passed on as they came."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only")
    def second(a: int, /, *rest: int, unit: str, **more: int) -> str:
        return effects.happen(f"{a} {rest} {unit} {more}")

    @traced_tool(side_effect="read_only", fallback=second)
    def first(a: int, /, *rest: int, unit: str = "km", **more: int) -> str:
        raise ConnectionError("down")

    with record("passed") as run:
        came = first(1, 2, 3, n=4) if gathered else first(1)
    with replay(run.id):
        assert (first(1, 2, 3, n=4) if gathered else first(1)) == came
    assert effects.all() == ["1 (2, 3) km {'n': 4}" if gathered else "1 () km {}"]


def test_a_tool_as_written_by_another_decorator_is_known(tmp_path: Path) -> None:
    """A bound method of another object may stand in for a function."""
    effects = Effects(tmp_path)

    class Desk:
        @traced_tool(side_effect="read_only")
        def ask(self, x: int) -> str:
            return effects.happen("desk")

    @traced_tool(side_effect="read_only", fallback=Desk().ask)
    def first(x: int) -> str:
        raise ConnectionError("down")

    with pytest.raises(ContractViolationError, match="method"):
        traced_tool(side_effect="read_only", fallback=Desk.ask)(lambda x: x)
    with record("bound") as run:
        assert first(1) == "desk 1"
    with replay(run.id):
        assert first(1) == "desk 1"
    assert effects.count() == 1


def test_a_replay_that_falls_back_otherwise_diverges(tmp_path: Path) -> None:
    """A replay in which another tool stands in for a failed one than in the recording is a divergence, and calls nothing."""
    effects = Effects(tmp_path)

    def declared(other: Callable[..., Any]) -> Any:
        return tool(effects, "first", fails=True, fallback=other)

    with record("otherwise") as run:
        declared(tool(effects, "second"))(1)
    with pytest.raises(DivergenceError), replay(run.id):
        declared(tool(effects, "third"))(1)
    assert effects.all() == ["first", "second"]


def test_outside_a_run_somebody_stands_in_too(tmp_path: Path) -> None:
    """A fallback does not depend on being recorded."""
    effects = Effects(tmp_path)
    assert tool(effects, "first", fails=True, fallback=tool(effects, "second"))(1) == "second 1 1km"
