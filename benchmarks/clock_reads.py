"""What a clock or random read costs: bare, with the hooks in but no run, from a library inside a run, and recorded.

    python benchmarks/clock_reads.py [--json]

The session is trivial (it calls the real function and returns), so the figures are the price of capture alone. Each is the
median of the rounds, in nanoseconds over the bare read, which is measured in the same round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
import timeit
import uuid
from collections.abc import Callable
from typing import Any

from tracekit._capture import callers, clock, randomness
from tracekit._runtime.lane import Lane
from tracekit._runtime.session import Scope, current, owner

ROUNDS, READS = 15, 20_000


class Trivial:
    """A session that answers with the real value."""

    run_id, recording = "benchmark", True

    def clock_read(self, scope: Scope, function: str, real: Callable[[], Any]) -> Any:
        return real()

    random_read = clock_read


def reads() -> dict[str, tuple[str, dict[str, Any]]]:
    """What is measured: a statement and its names. References are taken before any patch."""
    return {
        "time.time()": ("f()", {"f": time.time}),
        "time.perf_counter_ns()": ("f()", {"f": time.perf_counter_ns}),
        "datetime.now()": ("D.now()", {"D": datetime.datetime}),
        "datetime.now(UTC)": ("D.now(z)", {"D": datetime.datetime, "z": datetime.UTC}),
        "datetime.now taken earlier": ("f()", {"f": datetime.datetime.now}),
        "date.today()": ("D.today()", {"D": datetime.date}),
        "random.random()": ("f()", {"f": random.random}),
        "random.getrandbits(32)": ("f(32)", {"f": random.getrandbits}),
        "random.randint(1, 6)": ("f(1, 6)", {"f": random.randint}),
        "os.urandom(16)": ("f(16)", {"f": os.urandom}),
        "uuid.uuid4()": ("f()", {"f": uuid.uuid4}),
    }


def price(statement: str, names: dict[str, Any], file: str) -> float:
    """Nanoseconds of one read, made by code of ``file``."""
    scope = dict(names, __name__="measured")
    loop = compile(f"def loop(n):\n    for _ in range(n):\n        {statement}\n", file, "exec")
    exec(loop, scope)
    start = timeit.default_timer()
    scope["loop"](READS)
    return (timeit.default_timer() - start) / READS * 1e9


def measure() -> dict[str, dict[str, float]]:
    mine, library = os.path.abspath("agent.py"), os.path.join(os.path.dirname(os.__file__), "library.py")
    inside = Scope(Trivial(), Lane("", 0, None, id=0, owner=owner()), 1)  # type: ignore[arg-type]
    callers.include(mine)
    found: dict[str, dict[str, float]] = {}
    for name, (statement, names) in reads().items():
        rounds: list[tuple[float, float, float, float]] = []
        for _ in range(ROUNDS):
            bare = price(statement, names, mine)
            clock.activate()
            randomness.activate()
            try:
                outside = price(statement, names, mine)
                token = current.set(inside)
                foreign = price(statement, names, library)
                recorded = price(statement, names, mine)
                current.reset(token)
            finally:
                randomness.deactivate()
                clock.deactivate()
            rounds.append((bare, outside - bare, foreign - bare, recorded - bare))
        columns = zip(*rounds, strict=True)
        labels = ("bare", "no run", "library in a run", "recorded")
        found[name] = {
            label: round(statistics.median(column), 1) for label, column in zip(labels, columns, strict=True)
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = measure()
    about = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "degraded": clock.degraded() + randomness.degraded(),
    }
    if as_json:
        sys.stdout.write(json.dumps({"about": about, "ns": found}) + "\n")
        return
    sys.stdout.write(f"Python {about['python']} on {about['machine']}; nanoseconds over the bare read\n")
    sys.stdout.write(f"{'':28}{'bare':>9}{'no run':>9}{'library':>9}{'recorded':>10}\n")
    for name, row in found.items():
        bare, outside, foreign, recorded = row.values()
        sys.stdout.write(f"{name:28}{bare:9.0f}{outside:+9.0f}{foreign:+9.0f}{recorded:+10.0f}\n")


if __name__ == "__main__":
    main()
