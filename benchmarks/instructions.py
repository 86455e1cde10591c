"""How many instructions a call takes, bare and recorded, counted by Valgrind: what other programs do meanwhile doesn't matter.

Run ``python -m benchmarks.instructions`` (``--only requests.post``, ``--json FILE``). Each figure comes from two processes that make few
and many requests to a server in another process: their difference is what a request costs, without what a process does once. The kernel's
own work (the socket, the file) is not counted, so that the share of a recording is greater here than in CPU time
(``benchmarks.boundary``). So is the hash of each entry: Valgrind has no processor with instructions for SHA-256, and OpenSSL's takes ten
times as many without them (16,000 of a chunk of a stream, 100,000 of a call with 10 KB).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.conversations import TEXTS, text_of
from benchmarks.overhead import TEXT, Model, Streams, floor, streaming_server, tool, tool_async, web_server

BODY = {"note": TEXT, "lines": [1, 2, 3]}
#: What is made after some use (the expressions of the search for secrets) is made in the few already.
FEW, MANY = 40, 90
#: So many times fewer of those that are dear to count, and so many times more of the cheap ones.
DEAR, TOOLS = 5, 20


def requests_post(url: str, count: int) -> None:
    import requests

    for _ in range(count):
        requests.post(url, json=BODY).json()


def session_post(url: str, count: int) -> None:
    import requests

    with requests.Session() as session:
        for _ in range(count):
            session.post(url, json=BODY).json()


def aiohttp_post(url: str, count: int) -> None:
    import aiohttp

    async def post() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(count):
                async with session.post(url, json=BODY) as response:
                    await response.json()

    asyncio.run(post())


def conversation(turns: int) -> Callable[[str, int], None]:
    """Calls of the OpenAI SDK, answered in this process, each with the whole history before it.

    Those of ten turns are counted, with turn ``turns`` in their middle, or the first ones.
    """
    first = max(turns - (FEW + MANY) // DEAR // 2, 0)

    def talk(_url: str, count: int) -> None:
        model, history = Model(), list[dict[str, str]]()
        for number in range(first):
            history += said(number)
        for number in range(first, first + count // DEAR):
            history.append(said(number)[0])
            model.client.chat.completions.create(model="m", temperature=0.1, messages=history)  # type: ignore[arg-type]
            history.append(said(number)[1])

    return talk


def said(number: int) -> list[dict[str, str]]:
    """What is said in one turn: as much as people and models say, never the same."""
    asked = f"Question {number}: " + f"what do we know of case {number * 7}, and who has to be asked? " * 4
    answered = f"Answer {number}: " + f"the case {number * 7} was closed by clerk {number * 13} in the meantime. " * 20
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def first_call(name: str) -> Callable[[str, int], None]:
    """Calls of the OpenAI SDK, answered in this process, each with another 10 KB of such a text and nothing before it."""

    def ask(_url: str, count: int) -> None:
        model, text = Model(), text_of(name)[:10_000]
        for number in range(count):
            asked: Any = [{"role": "user", "content": f"{number} {text}"}]
            model.client.chat.completions.create(model="m", temperature=0.1, messages=asked)

    return ask


def stream(_url: str, count: int) -> None:
    """Calls of 10 KB of prose, answered in 200 chunks that arrive one by one."""
    with streaming_server() as path:
        streams = Streams(path)
        for number in range(count // DEAR):
            streams.stream(number)


def async_stream(_url: str, count: int) -> None:
    """The same of the asynchronous client."""

    async def agent(streams: Streams) -> None:
        for number in range(count // DEAR):
            await streams.stream_async(number)

    with streaming_server() as path:
        asyncio.run(agent(Streams(path)))


def tool_call(_url: str, count: int) -> None:
    for _ in range(count * TOOLS):
        tool("ACME", 12.5, TEXT)


def async_tool_call(_url: str, count: int) -> None:
    async def agent() -> None:
        for _ in range(count * TOOLS):
            await tool_async("ACME", 12.5, TEXT)

    asyncio.run(agent())


def two_lines(_url: str, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        floor(count * TOOLS, Path(directory))


#: How many calls one of ``count`` is, where it is not one.
CALLS = {
    "turn 1": 1 / DEAR, "turn 40": 1 / DEAR, "turn 200": 1 / DEAR,
    "200-chunk stream": 1 / DEAR, "200-chunk async stream": 1 / DEAR,
    "tool call": TOOLS, "async tool call": TOOLS,
}  # fmt: skip
#: What is bare where it is not the same program: the floor of ``benchmarks.overhead``.
BARE: dict[str, Callable[[str, int], None]] = {"tool call": two_lines, "async tool call": two_lines}
PROGRAMS: dict[str, Callable[[str, int], None]] = {
    "requests.post": requests_post,
    "Session.post": session_post,
    "aiohttp post": aiohttp_post,
    "200-chunk stream": stream,
    "200-chunk async stream": async_stream,
    "tool call": tool_call,
    "async tool call": async_tool_call,
    "turn 1": conversation(0),
    "turn 40": conversation(40),
    "turn 200": conversation(200),
    **{f"10 KB: {name}": first_call(name) for name in TEXTS},
}


def program(name: str, kind: str, url: str, count: int) -> None:
    """What is counted."""
    import tracekit

    warnings.simplefilter("ignore", RuntimeWarning)
    if kind != "bare":
        tracekit.instrument(http_classes={"POST 127.0.0.1": "read_only"})
    with tracekit.record("requests") if kind == "recorded" else nullcontext():
        (BARE if kind == "bare" and name in BARE else PROGRAMS)[name](url, count)


def counted(name: str, kind: str, url: str, count: int) -> int:
    """The instructions of a process."""
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        command = [
            "valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={directory}/out",
            sys.executable, "-m", "benchmarks.instructions", "--program", name, kind, url, str(count),
        ]  # fmt: skip
        variables = {
            **os.environ,
            "TRACEKIT_DIR": f"{directory}/store",
            "PYTHONHASHSEED": "0",
            "PYTHONMALLOC": "pymalloc",
        }
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


def measured(name: str) -> dict[str, int]:
    """Instructions for each call, by kind."""
    calls = (MANY - FEW) * CALLS.get(name, 1)
    with web_server() as url:
        return {
            kind: int((counted(name, kind, url, MANY) - counted(name, kind, url, FEW)) / calls)
            for kind in ("bare", "recorded")
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--only", action="append", choices=list(PROGRAMS), help="this one (may be repeated)")
    parser.add_argument("--program", nargs=4, metavar=("NAME", "KIND", "URL", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        name, kind, url, count = options.program
        program(name, kind, url, int(count))
        return
    if shutil.which("valgrind") is None:
        parser.error("this needs valgrind")
    figures = {}
    for name in options.only or PROGRAMS:
        found = figures[name] = measured(name)
        more = found["recorded"] / found["bare"] - 1
        print(f"{name:<36}{found['bare']:>12,} bare {found['recorded']:>12,} recorded  {more:+.0%}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
