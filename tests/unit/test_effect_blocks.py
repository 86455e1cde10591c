"""Blocks of effects that never ask: told while they are recorded, and never run again by a replay or a resumption."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.cut import cut
from tests.support.effects import Effects, entries
from tracekit import effect, record, replay, resume, traced_tool
from tracekit.errors import ContractViolationError, NotReplayableError


def wipe(effects: Effects, shape: str) -> None:
    """An effect whose block does it without asking."""

    async def body() -> None:
        async with effect("disk", side_effect="irreversible"):
            effects.happen("wipe")

    if shape == "async":
        asyncio.run(body())
    else:
        with effect("disk", side_effect="irreversible"):
            effects.happen("wipe")


@pytest.mark.parametrize("shape", ["plain", "async"])
def test_a_block_that_never_asks_is_not_run_again(shape: str, tmp_path: Path) -> None:
    """It happens while it is recorded, with one warning; a replay and a resumption stop before its body."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only", name="look")
    def look() -> None: ...

    def program() -> None:
        wipe(effects, shape)
        wipe(effects, shape)
        look()

    with pytest.warns(RuntimeWarning, match="'disk' used neither") as told, record("wipe") as run:
        program()
    assert len(told) == 1
    done = entries(run.path, "tool.return")
    assert [one["meta"]["info"] for one in done[:2]] == [{"unasked": True}] * 2
    with pytest.raises(NotReplayableError, match=r"e\.perform"), replay(run.id):
        program()
    path = cut(run, done[1]["seq"], tmp_path / "store")
    with pytest.raises(NotReplayableError), resume(path):
        program()
    assert effects.all() == ["wipe", "wipe"]


def test_a_block_that_asks_no_more_is_no_match(tmp_path: Path) -> None:
    """Recorded as one that asked, replayed by code that does not: the replay fails."""

    def program(asks: bool) -> None:
        with effect("disk", side_effect="reversible") as e:
            if asks:
                e.perform(int)

    with record("wipe") as run:
        program(True)
    with pytest.raises(NotReplayableError), replay(run.id):
        program(False)


@pytest.mark.parametrize("how", ["perform", "live"])
def test_a_block_that_asks_is_replayed(how: str, tmp_path: Path) -> None:
    """By ``perform`` or by reading ``live``: once in the recording, not again, without a warning."""
    effects = Effects(tmp_path)

    def program() -> Any:
        with effect("disk", side_effect="irreversible") as e:
            if how == "perform":
                e.perform(effects.happen, "wipe")
            elif e.live:
                e.output = effects.happen("wipe")
        return e.output

    with record("wipe") as run:
        assert program() == "wipe 1"
    with replay(run.id) as session:
        assert program() == "wipe 1"
    assert session.report.exact
    assert effects.all() == ["wipe"]


def test_a_block_outside_a_run_is_refused_like_any_other_effect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where effects have to be inside runs, a block's has to be; one that only reads goes on."""
    effects = Effects(tmp_path)
    monkeypatch.setenv("TRACEKIT_REQUIRE_RUN", "1")
    with pytest.raises(ContractViolationError, match="outside a run"), effect("pay", side_effect="irreversible") as one:
        one.perform(effects.happen, "pay")
    with effect("look", side_effect="read_only") as two:
        two.perform(effects.happen, "look")
    assert effects.count() == 1


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize("shape", ["plain", "async"])
def test_a_payment_in_a_block_is_not_repeated_with_the_call_around_it(where: str, shape: str, tmp_path: Path) -> None:
    """A tool that may be made again is not, once a block in its body has done what can't be undone; so in a run, so outside."""
    effects = Effects(tmp_path)

    @traced_tool(side_effect="read_only", max_retries=3)
    def buy() -> None:
        with effect("pay", side_effect="irreversible") as block:
            block.perform(effects.happen, "pay")
        raise ConnectionError("no answer")

    @traced_tool(side_effect="read_only", max_retries=3)
    async def buy_later() -> None:
        async with effect("pay", side_effect="irreversible") as block:
            block.perform(effects.happen, "pay")
        raise ConnectionError("no answer")

    def program() -> None:
        with pytest.raises(ConnectionError):
            asyncio.run(buy_later()) if shape == "async" else buy()

    if where == "run":
        with record("shop"):
            program()
    else:
        program()
    assert effects.count() == 1


def test_a_block_that_raises_says_so(tmp_path: Path) -> None:
    """Its exception is on the log, reaches the program, and a replay raises it where the block is entered."""

    def program() -> str:
        try:
            with effect("pay", side_effect="read_only", n=1) as block:
                block.perform(int, "no number")
        except ValueError as error:
            return str(error)
        return "no error"

    with record("shop") as run:
        first = program()
    assert [one["type"] for one in entries(run.path, "tool.call", "tool.error", "tool.return")] == [
        "tool.call",
        "tool.error",
    ]
    with replay(run):
        assert program() == first


def test_blocks_in_one_another_leave_in_order(tmp_path: Path) -> None:
    """What comes after a block belongs to where the block stands, however it was left."""

    @traced_tool(side_effect="read_only", name="look")
    def look() -> int:
        return 1

    def program() -> int:
        with effect("outer", side_effect="read_only") as outer:
            if outer.live:
                with pytest.raises(KeyError), effect("inner", side_effect="read_only") as inner:
                    inner.perform({}.__getitem__, "x")
                outer.output = look()
        return look() + int(outer.output)

    with record("nested") as run:
        assert program() == 2
    calls = {one["seq"]: one for one in entries(run.path, "tool.call")}
    found = [(one["name"], calls[one["parent"]]["name"] if one["parent"] in calls else None) for one in calls.values()]
    assert found == [("outer", None), ("inner", "outer"), ("look", "outer"), ("look", None)]
    with replay(run):
        assert program() == 2
