"""What a request or a process costs that a run captures, against the bare one.

Run ``python -m benchmarks.boundary`` (``--only requests.post``, ``--json FILE``, ``--quick``). Of each program there are two processes, a
bare one and one with a run; they take turns, a few calls each, against one server, so that what slows the machine down slows both. A
figure is the median of the turns' own ratios, with the middle half of them beside it. CPU is the process's own time, the kernel's for it
included; wall time counts for processes, whose own work is another's. ``syncs`` says how often one call waits for the device. On a busy
machine ``benchmarks.instructions`` says more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tracekit
from benchmarks.overhead import TEXT, Model, cpu_ns, machine, web_server
from tracekit import _reality

BODY = {"note": TEXT, "lines": [1, 2, 3]}
#: A turn is so many calls.
CALLS = 10

Call = Callable[[], object]


def requests_post(url: str, _: ExitStack) -> Call:
    import requests

    return lambda: requests.post(url, json=BODY).json()


def session_post(url: str, stack: ExitStack) -> Call:
    import requests

    session = stack.enter_context(requests.Session())
    return lambda: session.post(url, json=BODY).json()


def httpx_post(url: str, stack: ExitStack) -> Call:
    import httpx

    client = stack.enter_context(httpx.Client())
    return lambda: client.post(url, json=BODY).json()


def aiohttp_post(url: str, stack: ExitStack) -> Call:
    import aiohttp

    runner = stack.enter_context(asyncio.Runner())

    async def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    async def post() -> None:
        async with client.post(url, json=BODY) as response:
            await response.json()

    client = runner.run(session())
    stack.callback(lambda: runner.run(client.close()))
    return lambda: runner.run(post())


def chat(_url: str, stack: ExitStack) -> Call:
    model, number = Model(), 0
    stack.callback(model.client.close)

    def ask() -> None:
        nonlocal number
        number += 1
        model.ask(number)

    return ask


def git_status(_url: str, _: ExitStack) -> Call:
    return lambda: subprocess.run(["git", "status"], capture_output=True, check=True)


def git_commit(_url: str, _: ExitStack) -> Call:
    command = ["git", "commit", "-q", "--allow-empty", "-m", "x"]
    return lambda: subprocess.run(command, capture_output=True, check=True)


class Program(NamedTuple):
    """``make`` gives the call that is measured, by ``clock``; ``most``: what is to be reached, in per cent over the bare one;
    ``files``: how many the repository has in which it runs."""

    make: Callable[[str, ExitStack], Call]
    clock: Literal["cpu", "wall"]
    most: float | None = None
    files: int = 20


PROGRAMS = {
    "requests.post": Program(requests_post, "cpu", 20),
    "Session.post": Program(session_post, "cpu"),
    "httpx post": Program(httpx_post, "cpu"),
    "aiohttp post": Program(aiohttp_post, "cpu"),
    "chat of 10 KB": Program(chat, "cpu", 20),
    "git status": Program(git_status, "wall", 5),
    "git status 1000": Program(git_status, "wall", 5, files=1000),
    "git commit": Program(git_commit, "wall"),
}


def worker(name: str, kind: str, url: str) -> None:
    """A process that is measured: a line that it reads is a turn of so many calls, and it answers with the nanoseconds of each."""
    program = PROGRAMS[name]
    clock = cpu_ns if program.clock == "cpu" else _reality.perf_counter_ns
    warnings.simplefilter("ignore", RuntimeWarning)
    turns = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115
    with ExitStack() as stack:
        if kind == "recorded":
            tracekit.instrument(http_classes={"POST 127.0.0.1": "read_only"})
            stack.enter_context(tracekit.record("benchmark"))
        call = program.make(url, stack)
        for _ in range(3):
            call()
        os.write(1, b"\n")
        while line := turns.readline():
            calls = int(line)
            begun = clock()
            for _ in range(calls):
                call()
            os.write(1, b"%d\n" % ((clock() - begun) // calls))


@contextmanager
def started(name: str, kind: str, url: str, store: Path) -> Iterator[Callable[[int], int]]:
    """A worker; what is given makes so many calls and returns the nanoseconds of one."""
    command = [sys.executable, "-m", "benchmarks.boundary", "--worker", name, kind, url]
    where = repository(store.parent, PROGRAMS[name].files)
    variables = {**os.environ, "TRACEKIT_DIR": str(store), "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, cwd=where, bufsize=0
    ) as process:
        to, back = process.stdin, process.stdout
        assert to is not None
        assert back is not None

        def turn(calls: int) -> int:
            to.write(b"%d\n" % calls)
            return int(back.readline())

        back.readline()  # it is ready
        yield turn
        to.close()


def repository(directory: Path, files: int) -> Path:
    """A git repository with so many files, twenty in a directory, one of them staged; made where it is not there. More than
    twenty are committed, as in a repository in use."""
    place = directory / "repository"
    if not place.exists():
        place.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=place, check=True)
        for name in ("user.name", "user.email"):
            subprocess.run(["git", "config", name, "nobody"], cwd=place, check=True)
        for number in range(files):
            file = place / f"{number // 20 or '.'}" / f"file{number}"
            file.parent.mkdir(exist_ok=True)
            file.write_text("x" * 1000)
        if files > 20:
            subprocess.run(["git", "add", "."], cwd=place, check=True)
            subprocess.run(["git", "commit", "-q", "-m", "x"], cwd=place, check=True)
            (place / "file0").write_text("y")
        subprocess.run(["git", "add", "file0"], cwd=place, check=True)
    return place


def syncs(store: Path) -> float:
    """How often a step had to be on the device: before an effect, and after it."""
    (path,) = store.glob("runs/*.jsonl")
    entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    steps = {one["seq"]: one["meta"]["side_effect"] for one in entries if "side_effect" in (one.get("meta") or {})}
    synced = sum(
        steps.get(one["seq"]) == "irreversible" or steps.get(one.get("step")) == "irreversible" for one in entries
    )
    return synced / max(len(steps), 1)


def measured(name: str, rounds: int, url: str) -> dict[str, Any]:
    program = PROGRAMS[name]
    calls = CALLS if program.clock == "cpu" else 1
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        store = Path(directory) / "store"
        with started(name, "bare", url, store) as bare, started(name, "recorded", url, store) as recorded:
            turns = [(bare(calls), recorded(calls)) for _ in range(rounds)]
        synced = syncs(store)
    low, middle, high = statistics.quantiles([(after / before - 1) * 100 for before, after in turns], n=4)
    return {
        "clock": program.clock,
        "bare_us": round(statistics.median(before for before, _ in turns) / 1e3, 1),
        "recorded_us": round(statistics.median(after for _, after in turns) / 1e3, 1),
        "added_us": round(statistics.median(after - before for before, after in turns) / 1e3, 1),
        "more_percent": round(middle, 1),
        "half_of_them_percent": [round(low, 1), round(high, 1)],
        "to_reach_percent": program.most,
        "syncs_a_call": round(synced, 2),
    }


def shown(name: str, found: dict[str, Any]) -> str:
    most = found["to_reach_percent"]
    low, high = found["half_of_them_percent"]
    line = (
        f"{name:<16}{found['bare_us']:>10,.0f} -> {found['recorded_us']:>8,.0f} µs of {found['clock']:<5}"
        f"{found['more_percent']:>+7.1f} %  ({low:+.1f} to {high:+.1f})  {found['syncs_a_call']:g} syncs"
    )
    return (
        line
        if most is None
        else f"{line}  {'reached' if found['more_percent'] <= most else 'MISSED'} (to reach {most:g} %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--quick", action="store_true", help="few turns: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(PROGRAMS), help="this one (may be repeated)")
    parser.add_argument("--worker", nargs=3, metavar=("NAME", "KIND", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    about, figures = machine(), {}
    print(f"Python {about['python']}, {about['cpu']}, {about['cores']} cores, load {about['load']:.1f}")
    with web_server() as url:
        for name in options.only or PROGRAMS:
            figures[name] = measured(name, 20 if options.quick else 200, url)
            print(shown(name, figures[name]), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
