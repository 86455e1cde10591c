"""trio is not covered, and a run says so before anything of it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from trio import run as taken_earlier

from tracekit import record, replay, traced_tool
from tracekit.errors import RunStateError
from tracekit.integration import Store

done: list[str] = []


@traced_tool(side_effect="irreversible")
def pay(who: str) -> str:
    done.append(who)
    return who


async def main() -> None:
    await trio.lowlevel.checkpoint()
    pay("ann")


def guest() -> None:
    trio.lowlevel.start_guest_run(main, run_sync_soon_threadsafe=print, done_callback=print)


STARTED: dict[str, Callable[[], Any]] = {
    "trio.run": lambda: trio.run(main),
    "a reference that was taken earlier": lambda: taken_earlier(main),
    "anyio": lambda: anyio.run(main, backend="trio"),
    "as a guest": guest,
}


@pytest.mark.parametrize("how", STARTED)
def test_trio_is_refused_in_a_run(how: str) -> None:
    """Nothing of it runs, and the one error says what to do; outside of runs trio is as it was."""
    done.clear()
    with pytest.raises(RunStateError, match="trio is not covered") as caught, record("job"):
        STARTED[how]()
    assert "asyncio" in str(caught.value.next_action)
    assert done == []
    trio.run(main)
    assert done == ["ann"]


def test_a_run_that_begins_inside_trio_is_refused() -> None:
    """Of record(), async too, and of replay(), before there is a file."""

    async def plain() -> None:
        with record("job"):
            pay("ann")

    async def later() -> None:
        async with record("job"):
            pay("ann")

    done.clear()
    for program in (plain, later):
        with pytest.raises(RunStateError, match="trio is not covered"):
            trio.run(program)
    assert (done, Store().list()) == ([], ())
    with record("job") as run:
        pay("bob")

    async def again() -> None:
        with replay(run):
            pay("bob")

    with pytest.raises(RunStateError, match="trio is not covered"):
        trio.run(again)
    assert done == ["bob"]


def test_a_tool_may_use_trio_inside(tmp_path: Path) -> None:
    """What a tool does is answered as a whole, so its body may run what it wants."""

    @traced_tool(side_effect="read_only")
    def fetch() -> int:
        async def body() -> int:
            await trio.sleep(0)
            return 7

        return trio.run(body)

    with record("job") as run:
        assert fetch() == 7
    with replay(run) as session:
        assert fetch() == 7
    assert session.report.exact
