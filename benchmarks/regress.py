"""How many runs of a corpus ``tracekit regress`` replays a second and core: tool-only traces, each in a forked process of its own.

Run ``python -m benchmarks.regress`` (``--runs N``, ``--calls N``, ``--workers N``, ``--json FILE``). The corpus is recorded first: an agent
that makes so many tool calls, with clock and random reads between them. *A second and core* is by the CPU time of the replays, that of
the process which forks them included, so that another load of the machine matters less; the
second figure is by the clock, with the start of the warm processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import tracekit

AGENT = """
import random, time
from tracekit import record, traced_tool

@traced_tool(side_effect="read_only")
def look(order: int) -> dict:
    return {"order": order, "text": "x" * 200}

@traced_tool(side_effect="irreversible")
def pay(cents: int) -> str:
    return "paid"

@record("shop")
def agent(orders: int) -> int:
    cents = 0
    for order in range(orders):
        cents += look(order)["order"] + random.randrange(100)
        time.time()
    pay(cents)
    return cents
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--calls", type=int, default=20, help="tool calls of each run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("shop.py").write_text(AGENT)
        record = f"import shop\nfor _ in range({options.runs}): shop.agent({options.calls - 1})\n"
        store = os.path.join(directory, ".tracekit")
        variables = {**os.environ, "TRACEKIT_DIR": store}
        subprocess.run([sys.executable, "-c", record], env=variables, check=True)
        report = tracekit.regress(entry="shop:agent", store=store, workers=options.workers)
        if not report.same:
            raise SystemExit(f"not all are the same: {report.groups}")
        cpu = median(run.cpu for run in report.runs)
        figures = {
            "tracekit": tracekit.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "runs": options.runs,
            "calls": options.calls,
            "ms CPU a run (median)": round(cpu * 1e3, 2),
            "runs a second and core": round(1 / cpu, 1),
            "runs a second by the clock": round(len(report.runs) / report.seconds, 1),
            "workers": options.workers,
        }
    for name, value in figures.items():
        print(f"{name:28} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
