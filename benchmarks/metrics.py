"""How long a scrape of `/metrics` takes: by default over 10,000 runs, one in fifty of which died, while one more goes on.

    python -m benchmarks.metrics [--runs N] [--json]

The runs are those of benchmarks/scan.py. *first* reads all of them; *idle* is the median of the scrapes in which nothing has changed,
*live* of those between which a run has made a step. The time of the processor stands beside that of the clock: on a busy machine
only that one means something.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

import tracekit
from benchmarks.scan import filled, look
from tracekit import record
from tracekit.integration import Store
from tracekit.monitoring import RunCollector

ROUNDS = 20


def timed(registry: CollectorRegistry) -> tuple[float, float]:
    """Milliseconds of one scrape: by the clock, and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    generate_latest(registry)
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def median(found: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "ms": round(statistics.median(wall for wall, _ in found), 1),
        "cpu_ms": round(statistics.median(cpu for _, cpu in found), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / ".tracekit")
        filled(store, options.runs)
        registry = CollectorRegistry()
        registry.register(RunCollector(store.root))
        first = [timed(registry)]
        idle = [timed(registry) for _ in range(ROUNDS)]
        live = []
        with record("live", store=store.root):
            for _ in range(ROUNDS):
                look("a")
                live.append(timed(registry))
    result = {
        "runs": options.runs,
        "first": median(first),
        "idle": median(idle),
        "live": median(live),
        "tracekit": tracekit.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.runs} runs")
    for name in ("first", "idle", "live"):
        print(f"  {name:<6} {result[name]['ms']:>10.1f} ms {result[name]['cpu_ms']:>10.1f} ms of the processor")
    print(f"tracekit {result['tracekit']}, Python {result['python']}, {result['platform']}, {result['cpus']} CPUs")


if __name__ == "__main__":
    main()
