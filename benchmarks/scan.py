"""How long a scan of a store takes: by default 10,000 runs, one in fifty of which died.

    python benchmarks/scan.py [--runs N] [--all] [--json]

The runs are those of a small agent (three tools and a model call, some twenty entries), recorded once and written under as many ids.
The figure is the median of the rounds, after a first one that warms the disk's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tracekit
from tracekit import record, recovery, traced_model, traced_tool
from tracekit._journal.reader import Trace
from tracekit._journal.store import Store
from tracekit._journal.writer import GENESIS, Journal

ROUNDS = 3
#: One run in so many has died.
DEAD = 50


@traced_tool(side_effect="read_only")
def look(order: str) -> dict[str, str]:
    return {"order": order, "state": "open"}


@traced_tool(side_effect="reversible")
def reserve(order: str) -> str:
    return order


@traced_tool(side_effect="irreversible")
def charge(cents: int) -> int:
    return cents


@traced_model(model="small")
def ask(prompt: str) -> str:
    return prompt.upper()


def agent() -> None:
    for order in ("a", "b"):
        look(order)
        ask(f"what of {order}?")
        reserve(order)
        charge(5)


def filled(store: Store, runs: int) -> None:
    """Write ``runs`` runs, all whole but each fiftieth, which lacks its end."""
    with record("agent", store=store.root) as run:
        agent()
    with Trace(run.path) as trace:
        entries = [*trace.entries()]
    tails = [tail_of(entry) for entry in entries]
    for number in range(runs - 1):
        run_id = f"run-{number:06}"
        fd = os.open(store.path(run_id), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        journal = Journal(fd, store.path(run_id), run_id, durability="none", head=GENESIS)
        dead = number % DEAD == 0
        for entry, tail in zip(entries[: -1 if dead else None], tails, strict=False):
            journal.append(entry["type"], entry["lane"], entry.get("parent", 0), tail)
        journal.close()
        if not dead:
            store.keep_tip(run_id, journal.seq, journal.head.decode(), durable=False)


def tail_of(entry: dict[str, Any]) -> bytes:
    """What an entry holds beside what the journal writes itself."""
    own = ("v", "seq", "run_id", "type", "ts_ns", "lane", "parent", "hash")
    rest = {key: value for key, value in entry.items() if key not in own}
    return b"," + json.dumps(rest, separators=(",", ":")).encode()[1:-1] if rest else b""


def measured(store: Store, every: bool) -> tuple[float, int]:
    """Seconds of a scan, and how many decisions it gave."""
    took, found = [], 0
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        found = sum(1 for _ in recovery.scan(store.root, all=every))
        if number:
            took.append(time.perf_counter() - start)
    return statistics.median(took), found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--all", action="store_true", help="verify finished runs, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / ".tracekit")
        filled(store, options.runs)
        seconds, found = measured(store, options.all)
    result = {
        "runs": options.runs,
        "all": options.all,
        "decisions": found,
        "seconds": round(seconds, 3),
        "tracekit": tracekit.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{options.runs} runs, {found} decisions: {seconds:.2f} s", file=sys.stdout)
    print(f"tracekit {result['tracekit']}, Python {result['python']}, {result['platform']}, {result['cpus']} CPUs")


if __name__ == "__main__":
    main()
