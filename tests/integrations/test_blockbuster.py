"""Programs that are watched for what blocks their event loop are recorded and replayed like any other."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from blockbuster import BlockingError, blockbuster_ctx

from tracekit import record, replay, traced_tool


@traced_tool(side_effect="irreversible")
async def pay(cents: int) -> int:
    await asyncio.sleep(0.001)
    return cents


@traced_tool(side_effect="read_only")
def look(what: str) -> str:
    return what * 2


async def agent() -> list[object]:
    found: list[object] = [look("a"), time.time(), random.random()]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pay(cents)) for cents in range(3)]
    found += [task.result() for task in tasks]
    found.append(await asyncio.to_thread(look, "b"))
    try:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)
    except TimeoutError:
        found.append("too late")
    return found


def test_no_step_does_what_blockbuster_takes_for_blocking() -> None:
    """Steps of every kind, recorded and replayed in a watched loop whose run was begun outside of it."""
    with blockbuster_ctx():
        with record("watched") as run:
            recorded = asyncio.run(agent())
        with replay(run) as session:
            assert asyncio.run(agent()) == recorded
        assert session.report.exact

        async def blocks() -> None:
            time.sleep(0)

        with pytest.raises(BlockingError):  # it is watching
            asyncio.run(blocks())
