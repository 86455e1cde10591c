"""A trace of a million entries, 10,000 of them model calls: recorded, verified and replayed, each in a process of its own.

Run ``python -m benchmarks.large_trace`` (``--entries`` and ``--calls`` for another size). Each phase prints its speed at the
beginning and at the end of the trace, and the most memory that its process held. To reach: 300 MB resident, and as fast at
the end as at the beginning (within 10 %).
"""

from __future__ import annotations

import argparse
import os
import resource
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
    parser.add_argument("--phase", choices=list(PHASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = max(0, options.entries // 2 // options.calls - 1)
    if options.phase:
        phase(options.phase, options.calls, steps)
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        environment = {**os.environ, "TRACEKIT_DIR": directory}
        for name in PHASES:
            size = ["--entries", str(options.entries), "--calls", str(options.calls)]
            command = [sys.executable, "-m", "benchmarks.large_trace", "--phase", name, *size]
            subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
