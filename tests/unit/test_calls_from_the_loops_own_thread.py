"""What a program hands to its event loop with ``call_soon_threadsafe`` in the thread of that loop keeps its place in a replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.generated import loops
from tracekit import record, replay, traced_tool


@traced_tool(side_effect="read_only")
async def look(n: int) -> int:
    return n


@pytest.mark.parametrize("factory", loops().values(), ids=loops())
def test_a_callback_that_the_loops_own_thread_hands_over_keeps_its_order(factory: Any) -> None:
    """It comes before a timer that was armed before it, as it did."""

    async def program() -> list[str]:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        await look(1)
        loop.call_later(0.01, order.append, "timer")
        loop.call_soon_threadsafe(order.append, "soon")
        loop.call_soon(loop.call_soon_threadsafe, order.append, "sooner")
        await asyncio.sleep(0.05)
        await look(2)
        return order

    with asyncio.Runner(loop_factory=factory) as runner, record("own thread") as run:
        recorded = runner.run(program())
    assert sorted(recorded) == ["soon", "sooner", "timer"]
    with asyncio.Runner(loop_factory=factory) as runner, replay(run) as session:
        assert runner.run(program()) == recorded
    assert session.report.exact
