"""A trace of a million entries, 10,000 of them model calls: recorded, verified, replayed, shown and compared, each in a process of its own.

Run ``python -m benchmarks.large_trace`` (``--entries`` and ``--calls`` for another size). Each phase prints its speed at the
beginning and at the end of the trace, and the most memory that its process held. To reach: 300 MB resident, and as fast at
the end as at the beginning (within 10 %).

Then how long it takes until a program has its first recorded answer, of a trace of 100,000 calls of a tool (``--opening``: only that;
``--steps`` for another number): in a first replay, in one that finds the index of an earlier one, and in a resumption after a kill.
To reach: 0.3 seconds of CPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

PARTS = 20
REACH_MB = 300
REACH_SLOWER = 10.0
REACH_OPENING = 0.3


def record(calls: int, steps: int) -> Iterator[float]:
    from tracekit import record

    with record("large"):
        yield from _agent(calls, steps)


def replay(calls: int, steps: int) -> Iterator[float]:
    from tracekit import replay

    with replay(_trace().stem):
        yield from _agent(calls, steps)


def verify(calls: int, steps: int) -> Iterator[float]:
    """Entries come one by one, so that each part of the file is timed; then the whole verdict."""
    from tracekit._journal.reader import Trace

    with Trace(_trace()) as trace:
        size = max(1, len(trace) // PARTS)
        begun = _cpu()
        for number, _ in enumerate(trace.entries(), 1):
            if number % size == 0:
                yield (_cpu() - begun) / size
                begun = _cpu()
        verdict = trace.check()
        print(f"  {len(trace):,} entries, {os.path.getsize(_trace()) >> 20} MB: {verdict.state}", flush=True)


def _agent(calls: int, steps: int) -> Iterator[float]:
    """The program: between two model calls so many tool calls; seconds of CPU for a model call with its tools, part by part."""
    import tracekit
    from benchmarks.overhead import TEXT, Model, tool

    tracekit.instrument()
    model, part, number = Model(), max(1, calls // PARTS), 0
    for first in range(0, calls, part):
        begun = _cpu()
        for call in range(first, min(first + part, calls)):
            model.ask(call)
            for _ in range(steps):
                number += 1
                tool("ACME", float(number), TEXT)
        yield (_cpu() - begun) / part
    model.client.close()


def _cpu() -> float:
    """Seconds of CPU of this process; ``time.process_time`` is one of the clocks that a run records."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _trace() -> Path:
    (path,) = Path(os.environ["TRACEKIT_DIR"]).rglob("*-*.jsonl")
    return path


# -- shown and compared ------------------------------------------------------------------------------------------------


def run_command(name: str, *arguments: str) -> None:
    """One command on the trace, its output thrown away: its table line."""
    run = _trace().stem
    whole = [sys.executable, "-m", "tracekit", name, run, *arguments]
    done = subprocess.run(whole, stdout=subprocess.DEVNULL, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    held = used.ru_maxrss >> 10
    verdict = "reached" if held <= REACH_MB and done.returncode == 0 else "MISSED"
    print(f"{name:<8}{used.ru_utime + used.ru_stime:8.1f} s of CPU  {held} MB resident  {verdict}", flush=True)


# -- the first step ----------------------------------------------------------------------------------------------------


def opening(how: str, steps: int) -> None:
    """One way to come to the first recorded answer, in this process: its table line."""
    import tracekit
    from benchmarks.overhead import TEXT, tool

    if how in ("complete", "killed"):
        with tracekit.record(how, run_id=how):
            for number in range(steps):
                tool("ACME", float(number), TEXT)
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        return
    run, way = ("killed", tracekit.resume) if how == "resume" else ("complete", tracekit.replay)
    # What a process does once is none of it: the first run of all is a small one.
    with tracekit.record("small"):
        tool("ACME", 0.0, TEXT)
    begun = _cpu()
    with way(run):
        tool("ACME", 0.0, TEXT)
        took = _cpu() - begun
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        verdict = "reached" if took <= REACH_OPENING else "MISSED"
        print(
            f"{how:<14}{took:6.2f} s of CPU to the first step of {steps:,}  {held} MB resident  {verdict}", flush=True
        )
        os.kill(os.getpid(), signal.SIGKILL)  # nothing of its end is part of it


def openings(steps: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        environment = {**os.environ, "TRACEKIT_DIR": directory}
        for how in ("complete", "killed", "first replay", "later replay", "resume"):
            command = [sys.executable, "-m", "benchmarks.large_trace", "--phase", how, "--steps", str(steps)]
            subprocess.run(command, check=False, env=environment)


PHASES: dict[str, Callable[[int, int], Iterator[float]]] = {"record": record, "verify": verify, "replay": replay}


def phase(name: str, calls: int, steps: int) -> None:
    """One phase in this process: its table line."""
    warnings.simplefilter("ignore", RuntimeWarning)
    begun = time.perf_counter()
    parts = list(PHASES[name](calls, steps))
    quarter = max(1, len(parts) // 4)
    first, last = statistics.median(parts[:quarter]), statistics.median(parts[-quarter:])
    slower, held = (last / first - 1) * 100, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    verdict = "reached" if slower <= REACH_SLOWER and (name == "record" or held <= REACH_MB) else "MISSED"
    print(
        f"{name:<8}{time.perf_counter() - begun:8.1f} s  {first * 1e6:10.1f} µs at the beginning  {last * 1e6:10.1f} at the end"
        f"  ({slower:+.1f} %)  {held} MB resident  {verdict}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries of the trace (about)")
    parser.add_argument("--calls", type=int, default=10_000, help="model calls among them")
    parser.add_argument("--steps", type=int, default=100_000, help="calls of the trace that is opened")
    parser.add_argument("--opening", action="store_true", help="only how long it takes until the first step")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = max(0, options.entries // 2 // options.calls - 1)
    if options.phase in PHASES:
        phase(options.phase, options.calls, steps)
        return
    if options.phase in ("show", "diff"):
        run_command(options.phase, *([_trace().stem] if options.phase == "diff" else []))
        return
    if options.phase:
        opening(options.phase, options.steps)
        return
    if options.opening:
        openings(options.steps)
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        environment = {**os.environ, "TRACEKIT_DIR": directory}
        for name in (*PHASES, "show", "diff"):
            size = ["--entries", str(options.entries), "--calls", str(options.calls)]
            command = [sys.executable, "-m", "benchmarks.large_trace", "--phase", name, *size]
            subprocess.run(command, check=True, env=environment)
    openings(options.steps)


if __name__ == "__main__":
    main()
