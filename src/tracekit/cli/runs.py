"""``tracekit list``: the runs of the store, the newest first."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import click

from .._journal.runs import RunSummary, Store
from . import output
from .store import named
from .timeline import duration, printable, short

__all__ = ["list_"]

_DIGEST: Final = re.compile("[0-9a-f]{4,64}")
_STYLES: Final = {"completed": "green", "failed": "red", "end": "none"}


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, on a terminal too.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="The newest N only.")
@click.option(
    "--envelope-hash", metavar="HASH", help="Runs that routed this request; the beginning of either hash will do."
)
def list_(as_json: bool, store: str | None, limit: int | None, envelope_hash: str | None) -> None:
    """List the runs of the store, the newest first.

    It reads the first and last line of each and verifies nothing: see `tracekit verify`.
    """
    with output.reported():
        digest = None if envelope_hash is None else _digest(envelope_hash)
        where = named(store)
        runs = _chosen(where, digest)[:limit]
        if output.structured(as_json):
            output.emit(map(_facts, runs))
        elif not runs:
            which = "no run" if envelope_hash is None else f"no run of the request {envelope_hash}"
            output.message(f"There is {which} in {where.root}. TRACEKIT_DIR or --store names another store.")
        else:
            _print(runs)


def _digest(envelope_hash: str) -> str:
    digest = envelope_hash.removeprefix("sha256:").lower()
    if re.fullmatch("[0-9a-f]{1,3}", digest):
        raise click.UsageError(f"--envelope-hash is at least 4 hex digits, and {envelope_hash!r} is too short")
    if not _DIGEST.fullmatch(digest):
        raise click.UsageError(f"--envelope-hash is sha256: and 4 to 64 hex digits, not {envelope_hash!r}")
    return digest


def _chosen(where: Store, digest: str | None) -> tuple[RunSummary, ...]:
    runs = where.list()
    if digest is None:
        return runs
    from ..agents.executions import received

    return tuple(run for run in runs if any(received(path, digest) for path in (run.path, *where.segments(run.run_id))))


def _facts(run: RunSummary) -> dict[str, Any]:
    return run._asdict()


def _print(runs: tuple[RunSummary, ...]) -> None:
    """A table that the terminal may wrap and we do not: ids are for copying."""
    from rich.text import Text

    rows = [("run", "name", "started", "took", "end", "entries"), *map(_row, runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    console = output.console()
    for number, row in enumerate(rows):
        cells = [Text(cell.ljust(width) + "  ") for cell, width in zip(row, widths, strict=True)]
        cells[4].stylize(_STYLES.get(row[4], "yellow"))
        console.print(Text.assemble(*cells, style="dim" if number == 0 else ""), soft_wrap=True)


def _row(run: RunSummary) -> tuple[str, ...]:
    took = "" if run.ended_ns is None else duration(run.ended_ns - run.started_ns)
    end = run.end.removeprefix("run.") if run.end else "no end"
    entries = "" if run.count is None else str(run.count)
    return printable(run.run_id), short(run.name or "", 30), _local(run.started_ns), took, end, entries


def _local(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"  # a trace may say anything
