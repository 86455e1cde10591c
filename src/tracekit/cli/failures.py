"""``tracekit failures``: lists the failures of many runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import click

from .._runs.failures import RecordedFailure, recorded_failures
from ..errors import TraceError
from ..failures import FailureType, RecoveryStrategy
from . import output
from .options import JSON_LINES, READ_STORE
from .output import located, moment, named, printable, short

__all__ = ["failures"]

#: The columns, as ``_row`` fills them.
_HEADS: Final = ("run", "step", "name", "type", "strategy", "reason")


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=output.complete_run)
@click.option(
    "--type", "kind", metavar="TYPE", type=click.Choice([kind.value for kind in FailureType]), help="Of this type only."
)
@click.option("--tool", metavar="NAME", help="Of this tool or model only.")
@click.option("--agent", metavar="NAME", help="Of this agent only.")
@click.option("--recoverable/--not-recoverable", default=None, help="Only those that a program can(not) recover from.")
@click.option(
    "--strategy",
    metavar="S",
    type=click.Choice([how.value for how in RecoveryStrategy]),
    help="Only those with this strategy.",
)
@click.option(
    "--since", metavar="TIME", callback=moment, help="Only later ones: a date, a date and time, or 30m, 12h, 2d ago."
)
@click.option(
    "--settled/--not-settled", default=None, help="Only those of steps that a person has (not) settled since."
)
@READ_STORE
@JSON_LINES
def failures(
    runs: tuple[str, ...],
    kind: str | None,
    tool: str | None,
    agent: str | None,
    recoverable: bool | None,
    strategy: str | None,
    since: datetime | None,
    settled: bool | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List the failures of the named runs, by default of all runs in the store.

    Each has a type, and says whether and how a program can recover from it; for a step in doubt that a person has settled since,
    what they found out. A trace that does not verify is reported on stderr and read up to its first wrong line; the exit code is
    then 1.

    \b
    Examples:
      tracekit failures --since 1d
      tracekit failures --type timeout --tool search
      tracekit failures --not-settled --strategy manual_intervention
      tracekit failures last --json
    """
    damaged: list[TraceError] = []

    def report(error: TraceError) -> None:
        damaged.append(error)
        output.message(str(error))

    with output.reported():
        where = output.readable(store, *runs) if runs else named(store)
        found = recorded_failures(
            *(located(run, where) for run in runs), store=where.root, type=kind, tool=tool, agent=agent, recoverable=recoverable,
            strategy=strategy, since=since, settled=settled, on_damage=report,
        )  # fmt: skip
        if as_json:
            output.emit(each.as_dict() for each in found)
        else:
            _print(found, damaged, None if runs or os.path.isdir(where.runs) else where.root)
    if damaged:
        sys.exit(output.DIFFERENT)


def _print(found: Iterator[RecordedFailure], damaged: list[TraceError], nowhere: str | None) -> None:
    """Print a table without wrapping its lines: ids must stay copyable.

    On a narrow terminal reasons are in lines of their own, and columns are left out.
    """
    from rich.text import Text

    with output.working("reading the runs"):
        # A failure that ended its run is in the log twice.
        rows = [_HEADS, *dict.fromkeys(map(_row, found))]
    if len(rows) == 1:
        if nowhere is not None:  # a wrong directory must not look like one without failures
            output.message(f"There is no run in {nowhere}. TRACEKIT_DIR or --store names another store.")
        else:
            output.message("No failure in what could be read." if damaged else "No failure.")
        return
    widths = {head: max(map(len, column)) for head, column in zip(_HEADS[:-1], zip(*rows, strict=True), strict=False)}
    with output.paged() as console:
        left_out = output.without_room(console, widths, ("strategy", "name"))
        used = [head for head in widths if head not in left_out]
        longest = max(len(short(row[-1], output.LEAST_ROOM)) for row in rows)
        below = console.is_terminal and sum(widths[head] + 2 for head in used) + longest > console.width
        for number, row in enumerate(rows):
            cells = dict(zip(_HEADS, row, strict=True))
            line = Text("", style="" if number else "dim")
            for head in used:
                kind = "dim" if cells["strategy"].startswith("settled: ") else "red"
                line.append(cells[head].ljust(widths[head]) + "  ", style=kind if number and head == "type" else "")
            if below:
                line.rstrip()
                console.print(line, soft_wrap=True)
                line = Text("  ", style=line.style)
            line.append(short(row[-1], console.width - 2 if below else output.room(console, line.plain)))
            console.print(line, soft_wrap=True)
        output.print_left_out(console, left_out[::-1])


def _row(found: RecordedFailure) -> tuple[str, ...]:
    failure = found.failure
    wait = "" if failure.retry_after_s is None else f" {failure.retry_after_s:g} s"
    strategy = failure.recovery_strategy.value + wait
    if found.settled is not None:
        strategy = "settled: done" if found.settled.get("done") else "settled: not done"
    return (
        printable(found.run_id),
        "" if found.step is None else printable(str(found.step)),
        short(found.name or "", 24),
        failure.type.value,
        strategy,
        failure.reason,
    )
