"""What the promise of an effect costs: an irreversible tool call beside a bare append and ``fdatasync`` of the same bytes.

Run ``python -m benchmarks.durability`` (``--directory DIR`` on the disk that is meant, ``--json FILE``, ``--quick``). An irreversible call
puts two lines on the device: its intention before it starts, its outcome before the caller gets it. The floor is what any log
must do for that: the same lines, byte for byte as the run has just written them, appended with ``os.write`` to a file beside it,
each followed by its own ``os.fdatasync``. Both take turns within one process, so that a slow spell of the disk hits both.
To reach: 1.3 times the floor, in the default durability.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.overhead import TEXT, Figure, as_json, each, machine, plain, show, trace_of
from tracekit import _reality, record, traced_tool

#: File systems that keep files in memory, or hand a sync on to nobody: a figure from there says nothing.
NO_DISK = frozenset(("tmpfs", "ramfs", "devtmpfs"))
REACH = 1.3


def settle(customer: str, amount: float, reference: str) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, "receipt": f"R-{reference}", "settled": True}


pay = traced_tool(side_effect="irreversible", name="pay")(settle)
book = traced_tool(side_effect="reversible", name="book")(settle)
look = traced_tool(side_effect="read_only", name="look")(settle)
pay_at_length = traced_tool(side_effect="irreversible", name="pay_at_length")(plain)


class Bench:
    """Rounds in which a tool's calls and the floor of their bytes take turns."""

    def __init__(self, directory: Path, *, quick: bool) -> None:
        self.directory = directory
        self.rounds = 5 if quick else 15
        self.calls = 100 if quick else 400

    def figures(self) -> Iterator[Figure]:
        yield self.compared("irreversible call", pay, "effects", REACH)
        yield self.compared("reversible call", book, "effects", REACH)
        yield self.compared("irreversible call, long lines", pay_at_length, "effects")
        yield self.compared("read-only call, always", look, "always")
        yield Figure("read-only call, effects", self.recorded(look, "effects")[0] / 1e3, "µs")

    def compared(self, name: str, tool: Callable[..., Any], durability: Any, reach: float | None = None) -> Figure:
        ratios, calls, floors = [], [], []
        for _ in range(self.rounds):
            spent, lines = self.recorded(tool, durability)
            bare = self.bare(lines)
            ratios.append(spent / bare)
            calls.append(spent / 1e3)
            floors.append(bare / 1e3)
        size = sum(map(len, lines)) // self.calls
        detail = f"{statistics.median(calls):.0f} µs against {statistics.median(floors):.0f}, {size} bytes"
        return Figure(name, statistics.median(ratios), "bare appends", reach, 1.1 if reach else None, detail=detail)

    def recorded(self, tool: Callable[..., Any], durability: Any) -> tuple[float, list[bytes]]:
        """Nanoseconds a call, and the lines of the calls."""
        text = TEXT if tool is pay_at_length else "invoice 2026-10"
        with record("durability", durability=durability) as run:
            spent = each(self.calls, lambda n: tool("ACME", float(n), text))
        path = trace_of(run.id)
        with open(path, "rb") as file:
            lines = [line for line in file if json.loads(line)["type"].startswith("tool.")]
        assert len(lines) == 2 * self.calls, "an intention and an outcome for each call"
        path.unlink()
        return spent, lines

    def bare(self, lines: list[bytes]) -> float:
        """Nanoseconds for two lines, each appended and synced; whoever appends hashes what it appends, so it is given that."""
        path = self.directory / "bare.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)
        try:
            begun = _reality.perf_counter_ns()
            for line in lines:
                os.write(file, line)
                os.fdatasync(file)
            return (_reality.perf_counter_ns() - begun) * 2 / len(lines)
        finally:
            os.close(file)
            path.unlink()


def file_system(directory: Path) -> str:
    """The type of the file system that ``directory`` is on, as the system names it."""
    done = subprocess.run(["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


@contextmanager
def synced_store(directory: str | None) -> Iterator[Path]:
    """A store of its own on a file system on which a sync is real, or ``SystemExit``."""
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-", dir=directory) as made:
        kind = file_system(Path(made))
        if kind in NO_DISK:
            raise SystemExit(
                f"{made} is on {kind}, where a sync costs nothing: name a directory on a disk (--directory)"
            )
        before = os.environ.get("TRACEKIT_DIR")
        os.environ["TRACEKIT_DIR"] = os.path.join(made, "store")
        try:
            yield Path(made)
        finally:
            del os.environ["TRACEKIT_DIR"]
            if before is not None:
                os.environ["TRACEKIT_DIR"] = before


def run(figures: Callable[[Path, bool], Iterator[Figure]], about: str | None) -> None:
    """The command line that both benchmarks of the disk share."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--directory", metavar="DIR", help="measure there; the system's temporary directory otherwise")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as JSON ('-': standard output, alone)")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to compare")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    with synced_store(options.directory) as directory:
        facts = {**machine(), "file_system": file_system(directory)}
        if options.json != "-":
            header = (
                f"Python {facts['python']}",
                facts["cpu"],
                f"{facts['cores']} cores",
                f"load {facts['load']:.1f}",
            )
            print(", ".join(header) + f", {facts['file_system']}")
        found = []
        for figure in figures(directory, options.quick):
            found.append(figure)
            if options.json != "-":
                show(figure)
    report = json.dumps({"machine": facts, "figures": [as_json(figure) for figure in found]}, indent=2)
    if options.json == "-":
        print(report)
    elif options.json:
        Path(options.json).write_text(report + "\n")


if __name__ == "__main__":
    run(lambda directory, quick: Bench(directory, quick=quick).figures(), __doc__)
    sys.exit(0)
