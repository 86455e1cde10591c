"""The end of ``asyncio.run``: the loop waits for its own threads, and that wait is none of the run's."""

from __future__ import annotations

import asyncio
import select

from tracekit import record, replay, traced_tool


@traced_tool(side_effect="read_only")
def look() -> str:
    return "found"


def lingering() -> None:
    """Holds a worker of the loop's pool for a while after the program has its answer."""
    select.select([], [], [], 0.3)


async def program() -> str:
    asyncio.get_running_loop().run_in_executor(None, lingering)
    return look()


def test_the_loops_own_deadline_is_no_event_of_the_run() -> None:
    """A replay does not take the loop's wait for its pool (with a deadline of 300 s, from 3.12 on) for a program that is stuck."""
    with record("shutdown") as run:
        recorded = asyncio.run(program())
    for _ in range(3):
        with replay(run.id) as session:
            assert asyncio.run(program()) == recorded
        assert session.report.exact
