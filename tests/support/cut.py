"""A run as a crash would have left it: its log up to an entry, or into the middle of one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.plain_writer import chained
from tracekit import Run


def lines(run: Run) -> list[bytes]:
    return Path(run.path).read_bytes().splitlines(keepends=True)


def cut(run: Run, count: int, store: Path, *, torn: int = 0) -> str:
    """The first ``count`` entries of ``run`` (and ``torn`` bytes of the next) as the unfinished run of another store; its path."""
    found = lines(run)
    runs = store / "runs"
    runs.mkdir(parents=True)
    path = runs / Path(run.path).name
    path.write_bytes(b"".join(found[:count]) + (found[count][:torn] if torn else b""))
    return str(path)


def elsewhere(path: str, seconds: float) -> None:
    """Let the steady clocks of the run in this file have begun so many ``seconds`` later, as if another machine had recorded it."""

    def later(function: str, value: float) -> float:
        if function in ("time.monotonic", "time.perf_counter", "loop.time"):
            return value + seconds
        return value + round(seconds * 1e9) if function in ("time.monotonic_ns", "time.perf_counter_ns") else value

    previous, changed = "0" * 64, []
    for line in Path(path).read_bytes().splitlines():
        entry = json.loads(line)
        del entry["hash"]
        if entry["type"] == "run.started":
            clocks = entry["meta"]["clocks"]
            entry["meta"]["clocks"] = {name: later(name, value) for name, value in clocks.items()}
        elif entry["type"] == "clock" and "values" in entry:
            function = entry["name"].partition(":")[0]
            entry["values"] = [later(function, value) for value in entry["values"]]
        line, previous = chained(entry, previous)
        changed.append(line)
    Path(path).write_bytes(b"".join(changed))


def down_longer(path: str, seconds: float) -> None:
    """Let the run in this file have been down for so many ``seconds`` more before it was last resumed."""
    previous, changed, since = "0" * 64, [], 0
    for line in Path(path).read_bytes().splitlines():
        entry = json.loads(line)
        del entry["hash"]
        if entry["type"] == "recovery.started":
            since = int(seconds * 1e9)
            entry["meta"]["gap_ns"] += since
        entry["ts_ns"] += since
        line, previous = chained(entry, previous)
        changed.append(line)
    Path(path).write_bytes(b"".join(changed))
