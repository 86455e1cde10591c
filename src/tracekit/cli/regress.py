"""``tracekit regress``: every run of a corpus against today's code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from .._runs.corpus import CorpusReport, Group, JudgedRun, Query, State
from .._runs.corpus import regress as regress_runs
from .._runs.remote import is_url
from .._runs.replaying import ignored_fields
from .._runtime.verdict import CAN_BE_INEXACT
from ..failures import FailureType
from . import output
from .output import brief, moment, named, printable, short
from .replay import by_kind

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["regress"]

_STYLES: Final[dict[State, str]] = {
    "same": "green",
    "differs": "red",
    "crashed": "bold red",
    "timed out": "bold yellow",
    "not replayable": "yellow",
}
#: So many runs of a group, and fields of a difference, are shown; ``--json`` has all.
_SHOWN: Final = 3
_FIELDS: Final = 5


class _WithCommand(click.Command):
    """A command whose arguments after ``--`` are another program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["tracekit.command"] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@click.command(cls=_WithCommand)
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=output.complete_run)
@click.option("--store", metavar="DIR", help="The directory of runs, or its URL (default: TRACEKIT_DIR, .tracekit).")
@click.option("--entry", metavar="MODULE:FUNCTION", help="Call this function with what each run was given.")
@click.option("--name", "names", metavar="GLOB", multiple=True, help="Only runs of this name. Repeatable.")
@click.option(
    "--since", metavar="TIME", callback=moment, help="Only runs that began later: a date, or 30m, 12h, 2d ago."
)
@click.option("--before", metavar="TIME", callback=moment, help="Only runs that began earlier.")
@click.option(
    "--agent", "agents", metavar="GLOB", multiple=True, help="Only runs in which this agent acts. Repeatable."
)
@click.option("--model", "models", metavar="GLOB", multiple=True, help="Only runs that call this model. Repeatable.")
@click.option(
    "--state",
    "states",
    type=click.Choice(["complete", "failed", "aborted", "open"]),
    multiple=True,
    help="Only runs that ended so; open: without an end. Repeatable.",
)
@click.option(
    "--failure",
    type=click.Choice(["any", *(kind.value for kind in FailureType)]),
    help="Only runs with a failure of this type.",
)
@click.option("--min-cost", metavar="USD", type=float, help="Only runs whose model calls cost at least that.")
@click.option("--max-cost", metavar="USD", type=float, help="Only runs whose model calls cost at most that.")
@click.option(
    "-n",
    "workers",
    metavar="N",
    type=click.IntRange(1),
    help="How many are replayed at a time (default: one for each core).",
)
@click.option(
    "--timeout", metavar="S", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True,
    help="A run that takes longer is killed, with all that it has started.",
)  # fmt: skip
@click.option(
    "--strict", multiple=True, type=click.Choice(CAN_BE_INEXACT), help="Make this remark of the verdict inexact."
)
@click.option(
    "--ignore", multiple=True, metavar="KIND=FIELD", help="Leave a field out of the comparison (llm=input.body.user)."
)
@click.option(
    "--allow-host", "allow_hosts", multiple=True, metavar="HOST[:PORT]", help="A host that the program may reach."
)
@click.option(
    "--live-env", multiple=True, metavar="NAME", help="An environment variable of which today's value counts."
)
@click.option("--live-files", multiple=True, metavar="GLOB", help="Files of which today's content counts.")
@click.option(
    "--isolate",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Cut off the network below Python too.",
)
@click.option("--junit", metavar="FILE", type=click.Path(dir_okay=False), help="Write JUnit XML there, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def regress(
    runs: tuple[str, ...],
    store: str | None,
    entry: str | None,
    names: tuple[str, ...],
    since: datetime | None,
    before: datetime | None,
    agents: tuple[str, ...],
    models: tuple[str, ...],
    states: tuple[str, ...],
    failure: str | None,
    min_cost: float | None,
    max_cost: float | None,
    junit: str | None,
    as_json: bool,
    ignore: tuple[str, ...],
    **options: Any,
) -> None:
    """Replay every run of a corpus against today's code, each in a process of its own.

    RUN is an id, a path, a pattern ('traces/**/*.jsonl'), a directory or a URL; without any, every run of the store. Today's code is
    --entry, or a program after --, or else the one that each run names, where it is a run of your own store. Nothing is live, and
    no file of yours is changed.

    A run is the same, or it differs (from which step on is said), can't be replayed (why is said), crashed, or took too long. Runs with
    one first difference are shown together. Exit codes: 0 all are the same; 1 some differ, crashed or took too long; 2 usage error, or
    there is no such run; 3 some can't be replayed.
    """
    command: tuple[str, ...] = click.get_current_context().meta["tracekit.command"]
    if entry is not None and command:
        raise click.UsageError("--entry and a command after -- are both today's code: name one of them")
    try:
        ignored = ignored_fields(by_kind(ignore))
    except ValueError as error:
        raise click.UsageError(f"--{error}") from None
    query = Query(names, since, before, agents, models, states, failure, min_cost, max_cost)
    bar: list[Iterator[int]] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(output.progress(range(total), "replaying"))
        next(bar[0], None)

    with output.reported():
        if not is_url(store or os.environ.get("TRACEKIT_DIR")):
            named(store)  # it says so where there is none
        report = regress_runs(
            *runs,
            entry=entry,
            command=command,
            store=store,
            query=query,
            ignore=ignored,
            progress=progress,
            **options,
        )
        if junit is not None:
            with open(junit, "w", encoding="utf-8") as file:
                file.write(report.junit())
        if as_json:
            output.emit(report.as_dict())
        else:
            _print(report)
        sys.exit(report.exit_code)


# -- for people --------------------------------------------------------------------------------------------------------


def _print(report: CorpusReport) -> None:
    from rich.text import Text

    with output.paged() as console:
        for group in report.groups:
            _print_group(console, report, group)
        counts = [f"{count} {_said(state, count)}" for state, count in report.counts.items() if count]
        many = len(report.runs)
        rate = many / report.seconds if report.seconds else 0
        line = Text(f"{many} run{'' if many == 1 else 's'} against {printable(report.against)}: {', '.join(counts)}")
        line.stylize("green" if report.same else "bold")
        console.print(line + Text(f"  ({report.seconds:.1f} s, {rate:.1f} a second)", style="dim"), soft_wrap=True)


def _said(state: State, count: int) -> str:
    if state == "differs":
        return "differs" if count == 1 else "differ"
    return state


def _print_group(console: Console, report: CorpusReport, group: Group) -> None:
    from rich.text import Text

    many = len(group.runs)
    head = Text(f"{group.state}", style=_STYLES[group.state]) + Text(f": {printable(group.text)}", style="bold")
    console.print(head + Text(f"  {many} run{'' if many == 1 else 's'}", style="dim"), soft_wrap=True)
    first = group.runs[0]
    console.print(f"  {short(first.text.partition(chr(10))[0], 300)}", markup=False, soft_wrap=True)
    for one in first.differences[:_FIELDS]:
        sides = [brief(one[side], 60) if side in one else "(not there)" for side in ("recorded", "actual")]
        console.print(f"    {printable(str(one.get('path')))}: {sides[0]} → {sides[1]}", markup=False, soft_wrap=True)
    if len(first.differences) > _FIELDS:
        console.print(f"    … {len(first.differences) - _FIELDS} more fields (--json)", markup=False)
    for run in group.runs[:_SHOWN]:
        step = "" if run.step is None else f"  step {run.step}"
        console.print(Text(f"  {printable(run.run)}", style="cyan") + Text(step, style="dim"), soft_wrap=True)
    if many > _SHOWN:
        console.print(f"  … {many - _SHOWN} more (--json)", markup=False)
    console.print(Text(f"  next: {_next(report, first)}", style="dim"), soft_wrap=True)
    console.print()


def _next(report: CorpusReport, run: JudgedRun) -> str:
    """The command that shows more of one run."""
    place = run.run if run.place.endswith(f"/runs/{run.run}.jsonl") else run.place
    if run.state == "not replayable":
        return f"tracekit show {printable(place)} --why"
    how = "" if report.entry is None else f" --entry {report.entry}"
    how += f" -- {' '.join(report.command)}" if report.command else ""
    return f"tracekit replay {printable(place)}{how}"
