"""``tracekit list``: the runs of the store, the newest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from .._journal.runs import RunSummary, Store
from . import output
from .timeline import duration, printable

__all__ = ["list_"]


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, on a terminal too.")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
@click.option("--limit", metavar="N", type=click.IntRange(1), help="The newest N only.")
def list_(as_json: bool, store: str | None, limit: int | None) -> None:
    """List the runs of the store, the newest first.

    It reads the first and last line of each and verifies nothing: see `tracekit verify`.
    """
    with output.reported():
        where = Store(store)
        runs = where.list()[:limit]
        if output.structured(as_json):
            output.emit(map(_facts, runs))
        elif not runs:
            output.message(f"There is no run in {where.root}. TRACEKIT_DIR or --store names another store.")
        else:
            _print(runs)


def _facts(run: RunSummary) -> dict[str, Any]:
    return run._asdict()


def _print(runs: tuple[RunSummary, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("run", "name", "started", "took", "end"):
        table.add_column(title, no_wrap=title in ("run", "started"))
    table.add_column("entries", justify="right")
    for run in runs:
        took = "" if run.ended_ns is None else duration(run.ended_ns - run.started_ns)
        end = run.end.removeprefix("run.") if run.end else "no end"
        style = {"completed": "green", "failed": "red"}.get(end, "yellow")
        name = Text(printable(str(run.name or "")))
        entries = "" if run.count is None else str(run.count)
        table.add_row(run.run_id, name, _local(run.started_ns), took, Text(end, style=style), entries)
    console = output.console()
    console.width = max(console.width, 110)  # ids and times are for copying: the terminal may wrap them, not we
    console.print(table)


def _local(ns: int) -> str:
    try:
        return datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"  # a trace may say anything
