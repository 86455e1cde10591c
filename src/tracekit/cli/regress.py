"""``tracekit regress``: replays every run of a corpus against today's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from .._journal.entry import CHECKS, FAMILIES
from .._journal.store import store_named
from .._runs.corpus import CorpusReport, Group, JudgedRun, Query, State, asks_models, state_count
from .._runs.corpus import regress as regress_runs
from .._runs.remote import is_url
from .._runs.replay import ignored_fields, kinds_that_go_live
from .._runs.wording import dollars, plural
from ..failures import FailureType
from . import output
from .options import READ_STORE
from .output import both_sides, moment, named, printable
from .replay import ALLOW_HOST, IGNORE, ISOLATE, LIVE_ENV, LIVE_FILES, STRICT, by_kind, live_kinds
from .report import check_page, write_page
from .run import named_program

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
#: The most runs of a group, and fields of a difference, that are shown; ``--json`` has all.
_SHOWN: Final = 3
_FIELDS: Final = 5
#: The most lines of a difference that are shown, from its beginning and from its end, where the hints are.
_FIRST: Final = 16
_LAST: Final = 4
_WIDEST: Final = 300


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
@READ_STORE
@click.option(
    "--entry",
    metavar="MODULE:FUNCTION",
    callback=output.function_name,
    help="Call this function with the input of each run.",
)
@click.option(
    "--live",
    multiple=True,
    metavar="KIND[:NAME][=MODEL]",
    help="Let llm, tool or http calls go live, or those of one name; llm=MODEL: to that model. Repeatable.",
)
@click.option(
    "--policy",
    metavar="MODULE:FUNCTION",
    callback=output.function_name,
    help="Have this function decide each policy check, breaker and detection.",
)
@click.option("--shift-clock", "shift", metavar="TIME", help="Shift the clock of each run: 30d, -2h.")
@click.option("--at", metavar="DATE", help="Make each run begin at this time: 2026-01-31, 2026-01-31T09:00.")
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
    help="Only runs with this end; open: without an end. Repeatable.",
)
@click.option(
    "--failure",
    type=click.Choice(["any", *(kind.value for kind in FailureType)]),
    help="Only runs with a failure of this type.",
)
@click.option("--min-cost", metavar="USD", type=float, help="Only runs whose model calls cost at least this.")
@click.option("--max-cost", metavar="USD", type=float, help="Only runs whose model calls cost at most this.")
@click.option(
    "-n",
    "workers",
    metavar="N",
    type=click.IntRange(1),
    help="How many to replay at a time (default: one per core).",
)
@click.option(
    "--on",
    "executor",
    type=click.Choice(["ray"]),
    help="Replay on the workers of a Ray cluster (RAY_ADDRESS, or a local one).",
)
@click.option(
    "--timeout", metavar="S", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True,
    help="Kill a run that takes longer, with everything that it has started.",
)  # fmt: skip
@STRICT
@IGNORE
@ALLOW_HOST
@LIVE_ENV
@LIVE_FILES
@ISOLATE
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False), help="Also write the report as HTML to this file."
)
@click.option("--junit", metavar="FILE", type=click.Path(dir_okay=False), help="Also write JUnit XML to this file.")
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
    html: str | None,
    junit: str | None,
    as_json: bool,
    ignore: tuple[str, ...],
    live: tuple[str, ...],
    policy: str | None,
    shift: str | None,
    at: str | None,
    **options: Any,
) -> None:
    """Replay every run of a corpus against today's code, each in a process of its own.

    RUN is an id, a path, a pattern ('traces/**/*.jsonl'), a directory or a URL; without any, every run of the store. Today's code
    is --entry, or a program after --, otherwise the program that each run names, if the run is in your own store. Nothing is live,
    and none of your files is changed.

    With --live, --policy, --shift-clock or --at you try a change: whatever the program then does differently is a difference, and
    the report says which calls were added, dropped and changed, which results and decisions differ, and what models took, then and
    now. Nothing irreversible is ever executed.

    A run is the same, differs (with the first step that does), cannot be replayed (with the reason), crashed, or took too long.
    Runs with the same first difference are shown together. Exit codes: 0 all are the same; 1 some differ, crashed or took too long;
    2 usage error, or there is no such run; 3 some cannot be replayed.

    \b
    Examples:
      tracekit regress --since 1d -- agent.py  # the runs of the last day
      tracekit regress 'traces/**/*.jsonl' --entry agent:answer
      tracekit regress --model 'gpt-4*' --junit out.xml
    """
    command: tuple[str, ...] = click.get_current_context().meta["tracekit.command"]
    if entry is not None and command:
        raise click.UsageError("--entry and a command after -- are both today's code: name one of them")
    if command:
        named_program(command)
    try:
        ignored = ignored_fields(by_kind(ignore))
        tried = kinds_that_go_live(_tried(live, policy, shift, at))
    except ValueError as error:
        clock = "--shift-clock" if shift is not None else "--at" if at is not None else "--live clock"
        raise click.UsageError(f"--{error}".replace('--live["clock"]', clock)) from None
    if options["isolate"] == "on" and any(kind.partition(":")[0] in FAMILIES for kind in tried):
        raise click.UsageError("--live reaches the network, and --isolate=on cuts it off")
    query = Query(names, since, before, agents, models, states, failure, min_cost, max_cost)
    bar: list[Iterator[int]] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(output.progress(range(total), "replaying"))
        next(bar[0], None)

    with output.reported():
        if html is not None:
            check_page(html)
        if not is_url(store_named(store)):
            named(store)  # it reports a missing store
        report = regress_runs(
            *runs,
            entry=entry,
            command=command,
            store=store,
            query=query,
            live=tried,
            ignore=ignored,
            progress=progress,
            **options,
        )
        if html is not None:
            write_page(html, report.html())
        if junit is not None:
            with open(junit, "w", encoding="utf-8") as file:
                file.write(report.junit())
        if as_json:
            output.emit(report.as_dict())
        else:
            _print(report)
        sys.exit(report.exit_code)


def _tried(live: tuple[str, ...], policy: str | None, shift: str | None, at: str | None) -> dict[str, Any]:
    found = live_kinds(live)
    if policy is not None:
        found |= dict.fromkeys(CHECKS, policy)
    if shift is not None and at is not None:
        raise click.UsageError("--shift-clock and --at both say which hour it is: name one of them")
    if shift is not None or at is not None:
        found["clock"] = at if shift is None else shift
    return found


# -- for people --------------------------------------------------------------------------------------------------------


def _print(report: CorpusReport) -> None:
    from rich.text import Text

    with output.paged() as console:
        for group in report.groups:
            _print_group(console, report, group)
        counts = [state_count(state, count) for state, count in report.counts.items() if count]
        many = len(report.runs)
        rate = many / report.seconds if report.seconds else 0
        line = Text(f"{many} run{'' if many == 1 else 's'} against {printable(report.against)}: {', '.join(counts)}")
        line.stylize("green" if report.same else "bold")
        if report.changes is not None:
            _print_changes(console, report.changes, asks_models(report))
        console.print(line + Text(f"  ({report.seconds:.1f} s, {rate:.1f} a second)", style="dim"), soft_wrap=True)


def _print_changes(console: Console, changes: Mapping[str, Any], asked: bool) -> None:
    counted = [f"{count} {op}" for op, count in changes["calls"].items() if count]
    console.print(f"calls: {', '.join(counted) or 'the same'}", soft_wrap=True)
    if changes["cut_off"]:
        many = plural(changes["cut_off"], "run")
        console.print(f"cut off: {many}, at a call that is not in the recording", soft_wrap=True)
    if changes["decisions"]:
        console.print(f"decisions: {changes['decisions']} flipped")
    if changes["results"]:
        console.print(f"results: {changes['results']} changed")
    then, now = changes["recorded"], changes["now"]
    if asked:
        console.print(f"models: {_took(then)} → {_took(now)}", soft_wrap=True)


def _took(taken: Mapping[str, Any]) -> str:
    cost = "cost not known" if taken["cost_usd"] is None else dollars(taken["cost_usd"])
    tokens = f"{taken['input_tokens']:,} + {taken['output_tokens']:,} tokens"
    return f"{plural(taken['calls'], 'call')}, {tokens}, {cost}"


def _print_group(console: Console, report: CorpusReport, group: Group) -> None:
    from rich.text import Text

    many = len(group.runs)
    head = Text(f"{group.state}", style=_STYLES[group.state]) + Text(f": {printable(group.text)}", style="bold")
    console.print(head + Text(f"  {many} run{'' if many == 1 else 's'}", style="dim"), soft_wrap=True)
    first = group.runs[0]
    for line in _shortened(first.text.splitlines()):
        console.print(f"  {line}", soft_wrap=True)
    fields = first.beside
    for one in fields[:_FIELDS]:
        sides = both_sides(one, 60)
        console.print(f"    {printable(str(one.get('path')))}: {sides[0]} → {sides[1]}", soft_wrap=True)
    if len(fields) > _FIELDS:
        console.print(f"    … {len(fields) - _FIELDS} more fields (--json)")
    for behind in _effects_of_decisions(first)[:_SHOWN]:
        console.print(f"    behind it: {behind}", soft_wrap=True)
    for run in group.runs[:_SHOWN]:
        step = "" if run.step is None else f"  step {run.step}"
        console.print(Text(f"  {printable(run.run)}", style="cyan") + Text(step, style="dim"), soft_wrap=True)
    if many > _SHOWN:
        console.print(f"  … {many - _SHOWN} more (--json)")
    console.print(Text(f"  next: {printable(report.command_for(first))}", style="dim"), soft_wrap=True)
    console.print()


def _shortened(lines: Sequence[str]) -> list[str]:
    """Return the lines of a difference, of a long one without those in the middle."""
    left_out = len(lines) - _FIRST - _LAST
    middle = [f"  … {left_out} more lines (--json)"]
    kept = [*lines] if left_out <= 1 else [*lines[:_FIRST], *middle, *lines[-_LAST:]]
    return [printable(line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…") for line in kept]


def _effects_of_decisions(run: JudgedRun) -> list[str]:
    """Return the effects of those decisions of a run that are different now."""
    flips = run.changes["decisions"] if run.changes is not None else ()
    return [f"{one['name']} (step {one['step']})" for flip in flips for one in flip["behind"]]
