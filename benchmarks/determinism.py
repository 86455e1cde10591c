"""What ``tracekit verify-determinism`` takes for a run of many events: ``python -m benchmarks.determinism`` (``--json FILE``, ``--quick``).

A program whose agents hand one another tasks, call tools and decide; every event counts that the inter-agent view or the trace's steps
have. The floor is what two plain ``tracekit replay`` of the same run take, measured in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Seconds for ten thousand events that are to be reached.
TARGET = 10.0

PROGRAM = """
import random, sys
from tracekit import decision, traced_tool
from tracekit.agents import agent, receive_task, respond, send_task

@traced_tool(side_effect="read_only")
def search(query, limit=3):
    return {"query": query, "hits": [random.random() for _ in range(limit)]}

for n in range(int(sys.argv[1])):
    with agent("planner"):
        message = send_task("worker", {"find": f"flat {n}", "budget": random.randint(500, 900)})
    with agent("worker"):
        task = receive_task(message)
        answer = respond(task, search(task.payload["find"]))
print("done", n)
"""
#: Sent, received, called, returned, answered.
EACH = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count, rounds = (500, 1) if options.quick else (10_000 // EACH, 3)
    with tempfile.TemporaryDirectory() as directory:
        found = measured(Path(directory), count, rounds)
    print(json.dumps(found, indent=2))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")


def measured(directory: Path, count: int, rounds: int) -> dict[str, Any]:
    (directory / "agents.py").write_text(PROGRAM)
    run(directory, "run", "agents.py", str(count))
    verified, replayed = [], []
    for _ in range(rounds):
        verified.append(run(directory, "verify-determinism", "last"))
        replayed.append(run(directory, "replay", "last") + run(directory, "replay", "last"))
    seconds = statistics.median(verified)
    events = count * EACH
    return {
        "events": events,
        "seconds": round(seconds, 2),
        "seconds for 10,000 events": round(seconds * 10_000 / events, 2),
        "two plain replays, seconds": round(statistics.median(replayed), 2),
        "target, seconds for 10,000 events": TARGET,
        "reached": seconds * 10_000 / events <= TARGET,
        "rounds": [round(one, 2) for one in verified],
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def run(directory: Path, *arguments: str) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *arguments], cwd=directory, capture_output=True, text=True, check=False
    )
    taken = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"tracekit {' '.join(arguments)} left with {done.returncode}\n{done.stderr}")
    return taken


if __name__ == "__main__":
    main()
