"""If a step runs in a task or a thread without a line of the program, the line that created the task or thread is
named."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import tracekit
from tests.support.stub_provider import StubProvider
from tracekit.errors import DivergenceError


async def in_a_group(client: httpx.AsyncClient, path: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(client.get("/a"))
        group.create_task(client.get(path))  # this one


async def gathered(client: httpx.AsyncClient, path: str) -> None:
    await asyncio.gather(client.get("/a"), client.get(path))  # this one


async def in_a_thread(client: httpx.AsyncClient, path: str) -> None:
    with httpx.Client(base_url=client.base_url) as plain, ThreadPoolExecutor() as pool:
        pool.submit(plain.get, path).result()  # this one


@pytest.mark.parametrize("program", [in_a_group, gathered, in_a_thread])
def test_a_divergence_names_the_line_that_made_the_task(
    program: Callable[[httpx.AsyncClient, str], Awaitable[None]], provider: StubProvider, instrumented: None
) -> None:
    """A divergence names that line, not the one that runs the event loop."""

    async def main(path: str) -> None:
        async with httpx.AsyncClient(base_url=provider.url) as client:
            await program(client, path)

    lines, first = inspect.getsourcelines(program)
    line = first + next(n for n, text in enumerate(lines) if "this one" in text)
    with tracekit.record() as run:
        asyncio.run(main("/b"))
    with pytest.raises(DivergenceError) as raised, tracekit.replay(run):
        asyncio.run(main("/c"))
    assert raised.value.location == f"{__file__}:{line}"
