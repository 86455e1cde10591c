"""A service that fills a cache once in each process: its first request there is *cold*, each later one *warm*.

Three agents do the same in their own ways: ``plain`` with a pool of threads, ``awaited`` with tasks, ``threaded`` with threads and queues.

::

    python cold_and_warm.py          a cold request to each agent; what it saw on stdout, its run on stderr
    python cold_and_warm.py warm     a warm one
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import queue
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tracekit import current_run, record, traced_tool

#: What each agent loads once.
CACHE: dict[str, str] = {}
_usleep = ctypes.CDLL(None).usleep


@traced_tool(side_effect="read_only")
async def fetch(what: str, ms: int) -> str:
    await asyncio.sleep(ms / 1000)
    return f"{what}:{secrets.token_hex(4)}"


@traced_tool(side_effect="read_only")
def look(what: str, ms: int) -> str:
    _usleep(ms * 1000)
    return f"{what}:{secrets.token_hex(4)}"


def load(agent: str) -> None:
    """Takes a while, below Python; no step is made."""
    _usleep(15_000)
    CACHE[agent] = "loaded"


def plain(question: str) -> Any:
    with ThreadPoolExecutor(3) as pool:
        if "plain" not in CACHE:
            pool.submit(load, "plain").result()
        seen: list[Any] = [CACHE["plain"], look(question, 2)]
        futures = [pool.submit(look, f"{question} {ms}", ms) for ms in (30, 5, 15)]
        seen += [future.result() for future in as_completed(futures)]
    return seen


async def awaited(question: str) -> Any:
    seen: list[Any] = []

    async def part(n: int) -> None:
        if n == 0 and "awaited" not in CACHE:
            await asyncio.to_thread(load, "awaited")
        seen.append(await fetch(f"{question} {n}", 8 - 3 * n))
        seen.append(await asyncio.to_thread(look, f"{question} {n}", n))

    tasks = [asyncio.create_task(part(n)) for n in range(3)]
    polls = 0
    while not all(task.done() for task in tasks):
        polls += 1
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        seen.append(await fetch("in time", 1))
    try:
        await asyncio.wait_for(fetch("late", 400), 0.005)
    except TimeoutError:
        seen.append("late")
    return [seen, polls]


def threaded(question: str) -> Any:
    jobs: queue.Queue[Any] = queue.Queue()
    answers: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            answers.put(look(*job))

    if "threaded" not in CACHE:
        loader = threading.Thread(target=load, args=("threaded",))
        loader.start()
        loader.join()
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for ms in (20, 2, 9):
        jobs.put((f"{question} {ms}", ms))
    for _ in workers:
        jobs.put(None)
    seen = [answers.get() for _ in range(3)]
    for worker in workers:
        worker.join()
    return seen


#: What serves a request to each agent, in a run of its own; its value begins with the run's id.
REQUESTS: dict[str, Callable[[str], Any]] = {}


def request(function: Callable[[str], Any]) -> Callable[[str], Any]:
    REQUESTS[function.__name__.removeprefix("ask_")] = function
    return function


def said(seen: Any) -> str:
    print(line := json.dumps(seen), flush=True)
    return line


@request
@record("plain")
def ask_plain(question: str) -> Any:
    return current_run().id, said(plain(question))  # type: ignore[union-attr]


@record("awaited")
async def ask_awaited(question: str) -> Any:
    return current_run().id, said(await awaited(question))  # type: ignore[union-attr]


REQUESTS["awaited"] = lambda question: asyncio.run(ask_awaited(question))


@request
@record("threaded")
def ask_threaded(question: str) -> Any:
    return current_run().id, said(threaded(question))  # type: ignore[union-attr]


def warmed() -> None:
    for agent in REQUESTS:
        load(agent)


def main(*words: str) -> None:
    if words == ("warm",):
        warmed()
    for agent, ask in REQUESTS.items():
        print(ask(f"what of {agent}?")[0], file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
