"""A run as a crash would have left it: its log up to an entry, or into the middle of one."""

from __future__ import annotations

from pathlib import Path

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
