"""What tracekit costs a program that has just been started: its imports, and the first ``record()`` block.

Run ``python -m benchmarks.imports`` (``--rounds N``, ``--json FILE``, ``--modules`` for what is imported). Each figure is the CPU time
(ms) of a fresh interpreter less that of another one that does less, taken in turns: the median of the rounds, and the quartiles. What is
compiled is kept in a directory of the benchmark's own, and written before the first round, as an installed package has it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

NAMES = "from tracekit import record, replay, traced_tool\n"
BLOCK = "with record('first'): pass\n"
TOOL = "@traced_tool(side_effect='read_only')\ndef look(order): return order\n"
#: What a program that talks to a model has imported anyway, long before it opens a run.
USUAL = "import asyncio, importlib.metadata, ssl, subprocess\n"


class Figure(NamedTuple):
    """What ``program`` costs over ``base``, and what is to be reached (ms)."""

    name: str
    base: str
    program: str
    reach: float | None = None


#: A child process, which joins the run of its parent when it imports tracekit.
PARENT = (
    "import subprocess, sys, tracekit\nwith tracekit.record('parent'): subprocess.run([sys.executable, '-c', {!r}])\n"
)
#: A program of one line, under ``tracekit run``.
UNDER_RUN = "import sys\nfrom tracekit.cli import main\nsys.argv = ['tracekit', 'run', '-m', 'keyword']\nmain()\n"

FIGURES = (
    Figure("import tracekit", "", "import tracekit\n"),
    Figure("record, replay and traced_tool", "", NAMES, 35),
    Figure("the first record() block", NAMES, NAMES + BLOCK, 5),
    Figure("the first tool", NAMES, NAMES + TOOL),
    Figure("a recorded call of it", NAMES, NAMES + TOOL + "with record('first'): look('a-17')\n"),
    Figure("the names, asyncio imported before", USUAL, USUAL + NAMES),
    Figure("the first block, asyncio imported before", USUAL + NAMES, USUAL + NAMES + BLOCK),
    Figure("the names, the first tool and block, the same", USUAL, USUAL + NAMES + TOOL + "with record('first'): look('a-17')\n"),
    Figure("the first block, instrumented", NAMES + "import tracekit; tracekit.instrument()\n",
           NAMES + "import tracekit; tracekit.instrument()\n" + BLOCK),
    Figure("a child process that joins a run", PARENT.format("pass"), PARENT.format("import tracekit")),
    Figure("tracekit run of an empty program", "", UNDER_RUN),
)  # fmt: skip


def cpu_of(program: str, variables: Mapping[str, str]) -> float:
    """Milliseconds of CPU of a fresh interpreter that runs ``program``."""
    process = subprocess.Popen([sys.executable, "-c", program], env=dict(variables), stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"this program failed:\n{program}")
    return (used.ru_utime + used.ru_stime) * 1e3


def modules_of(program: str, variables: Mapping[str, str]) -> list[str]:
    """The modules that ``program`` imports in a fresh interpreter, beside those of one that does nothing."""
    listing = "import sys\nbefore = set(sys.modules)\n{}\nprint(*sorted(set(sys.modules) - before))"
    found = subprocess.run(
        [sys.executable, "-c", listing.format(program)], env=dict(variables), capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def measure(rounds: int, variables: Mapping[str, str]) -> tuple[float, list[dict[str, Any]]]:
    """What bare Python takes (ms), and the figures."""
    programs = dict.fromkeys(text for figure in FIGURES for text in (figure.base, figure.program))
    for program in programs:  # what is compiled is there from here on
        cpu_of(program, variables)
    taken: dict[str, list[float]] = {program: [] for program in programs}
    for _ in range(rounds):
        for program in programs:
            taken[program].append(cpu_of(program, variables))
    bare = statistics.median(taken[""])
    results = []
    for figure in FIGURES:
        over = [a - b for a, b in zip(taken[figure.program], taken[figure.base], strict=True)]
        low, middle, high = statistics.quantiles(over, n=4)
        results.append(
            {
                "name": figure.name,
                "ms": round(middle, 1),
                "quartiles": [round(low, 1), round(high, 1)],
                "of bare Python": round(middle / bare, 2),
                "to reach": figure.reach,
                "modules": len(set(modules_of(figure.program, variables)) - set(modules_of(figure.base, variables))),
            }
        )
    return bare, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--modules", action="store_true", help="print what each program imports, and measure nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        variables = {**os.environ, "TRACEKIT_DIR": os.path.join(directory, "store")}
        variables.pop("PYTHONDONTWRITEBYTECODE", None)
        variables["PYTHONPYCACHEPREFIX"] = os.path.join(directory, "compiled")
        if options.modules:
            for figure in FIGURES:
                beside = set(modules_of(figure.base, variables))
                print(f"{figure.name}:", *(m for m in modules_of(figure.program, variables) if m not in beside))
            return
        bare, results = measure(options.rounds, variables)
    print(f"Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}; bare Python takes {bare:.0f} ms of CPU")
    for one in results:
        low, high = one["quartiles"]
        goal = "" if one["to reach"] is None else f"  (to reach {one['to reach']:g})"
        print(
            f"{one['name']:<48}{one['ms']:>8.1f} ms ({low:.1f} to {high:.1f}),"
            f" {one['of bare Python']:.2f} times bare Python, {one['modules']} modules{goal}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
