"""Blocks of effects that never ask: told while they are recorded, and never run again by a replay or a resumption."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.cut import cut
from tests.support.effects import Effects, entries
from tracekit import effect, record, replay, resume, traced_tool
from tracekit.errors import NotReplayableError


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

    with pytest.warns(RuntimeWarning, match="'disk' never asked") as told, record("wipe") as run:
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
