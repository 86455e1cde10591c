"""``tracekit diff``: what is different between two runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from .._runs.comparing import EndDifference, Op, RunComparison, StepDifference, compare
from .._runs.reading import RunView
from . import output
from .options import JSON_LINES, READ_STORE
from .output import both_sides, dollars, duration, located, printable
from .show import line_of, print_text, print_turn, unified

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["diff"]

_STYLES: Final[dict[Op, str]] = {"added": "green", "removed": "red", "changed": "yellow", "moved": "cyan"}
_MARKS: Final = {"added": "+", "removed": "-", "changed": "~", "moved": ">"}
#: The most values of one step that are shown; ``--json`` has all.
_MAX_VALUES: Final = 20


@click.command()
@click.argument("old", metavar="RUN", shell_complete=output.complete_run)
@click.argument("new", metavar="OTHER", shell_complete=output.complete_run)
@READ_STORE
@click.option(
    "--transport",
    is_flag=True,
    help="Also compare dates, ids of requests and of tool calls, rate limits and pieces of streams.",
)
@JSON_LINES
def diff(old: str, new: str, store: str | None, transport: bool, as_json: bool) -> None:
    """Show how OTHER differs: additional and missing steps, another order, another input or outcome.

    Steps are aligned by lane (task, thread, child process) and content. Prompts are compared message by message, arguments and
    results by field; tokens, cost and time in total. Clocks and random numbers are not compared.

    As JSON lines: change (removed, added, changed or moved), kind, name, the process if it is not the run's own, the step in each
    run (in a process: SEGMENT:STEP), the fields that differ, and for a model call the messages that do. Exit code: 0 if nothing
    differs, otherwise 1.

    \b
    Examples:
      tracekit diff last~1 last  # the newest run and the one before it
      tracekit diff monday.jsonl last --json
    """
    with output.reported():
        where = output.readable(store, old, new)
        with output.read(located(old, where), where) as before, output.read(located(new, where), where) as now:
            with output.working("comparing"):
                for view in (before, now):
                    where.check(view.own.trace)
                found = compare(before, now, transport=transport)
            if as_json:
                output.emit(_lines(found))
            else:
                _print(found)
            sys.exit(output.RIGHT if found.equal else output.DIFFERENT)


def _lines(found: RunComparison) -> Iterator[dict[str, Any]]:
    for one in found.steps:
        process = one.step.file.process
        line: dict[str, Any] = {"change": one.op, "kind": one.step.type, "name": one.step.name}
        line |= {"process": process} if process else {}
        line |= {"step": one.before and one.before.place, "other_step": one.now and one.now.place}
        if one.op == "changed":
            line["differences"] = list(one.fields)
        if one.prompt is not None:
            edits = [edit for edit in one.prompt.messages if edit.op != "same"]
            line["messages"] = [
                {"change": edit.op}
                | ({} if edit.before is None else {"recorded": edit.before._asdict()})
                | ({} if edit.now is None else {"actual": edit.now._asdict()})
                for edit in edits
            ]
        yield line
    for end in found.ends:
        process = _process(end)
        yield (
            {"change": "changed", "kind": "end", "name": None}
            | ({"process": process} if process else {})
            | {"differences": list(end.fields)}
        )


def _process(end: EndDifference) -> str:
    file = end.before or end.now
    return "" if file is None else file.process


# -- for people --------------------------------------------------------------------------------------------------------


def _print(found: RunComparison) -> None:
    from rich.text import Text

    with output.paged() as console:
        for mark, view in (("-", found.before), ("+", found.now)):
            name = Text(f"{mark} {printable(view.name)}", style="bold") + Text(
                f"  {printable(view.run_id)}", style="cyan"
            )
            imported = "" if view.imported_from is None else f"  imported from {printable(view.imported_from)}"
            console.print(name + Text(f"  {view.state}{imported}  {_taken(view)}", style="dim"), soft_wrap=True)
        process = ""
        shown: dict[str, int | str] = {}
        for one in found.steps:
            if one.step.file.process != process:
                process = one.step.file.process
                console.print(Text(f"process {printable(process)}" if process else "the run itself", style="bold"))
            _print_step(console, one, shown)
        for end in found.ends:
            of = f" of the process {printable(_process(end))}" if _process(end) else ""
            console.print(Text(f"~ end{of}", style="yellow"), soft_wrap=True)
            _print_fields(console, end.fields)
        console.print(_summary(found), soft_wrap=True)


def _print_step(console: Console, one: StepDifference, shown_before: dict[str, int | str]) -> None:
    """``shown_before``: each message shown so far, by the step where: a conversation has it in every later prompt."""
    from rich.text import Text

    mark = Text(f"{_MARKS[one.op]} ", style=_STYLES[one.op])
    if one.before is not None and one.now is not None:
        mark += Text(f"{one.before.place} → ", style="dim")
    shown = one.now if one.now is not None else one.step
    console.print(mark + line_of(shown, console.width - mark.cell_len), no_wrap=True, overflow="ellipsis")
    again: Counter[int | str] = Counter()
    for edit in () if one.prompt is None else one.prompt.messages:
        if edit.op == "same":
            continue
        first = shown_before.setdefault(repr(edit), one.step.place)
        if first == one.step.place:
            print_turn(console, edit)
        else:
            again[first] += 1
    for place, count in again.items():
        messages = f"{count} message{'' if count == 1 else 's'}"
        console.print(Text(f"  {messages} as in step {place}", style="dim"))
    _print_fields(console, one.fields)


def _print_fields(console: Console, fields: tuple[Mapping[str, Any], ...]) -> None:
    for one in fields[:_MAX_VALUES]:
        before, now = one.get("recorded"), one.get("actual")
        if isinstance(before, str) and isinstance(now, str) and "\n" in before + now:
            console.print(f"    {printable(one['path'])}:")
            print_text(console, unified(before, now))
            continue
        sides = both_sides(one, 120)
        console.print(f"    {printable(one['path'])}: {sides[0]} → {sides[1]}", soft_wrap=True)
    if len(fields) > _MAX_VALUES:
        console.print(f"    … {len(fields) - _MAX_VALUES} more (--json)")


def _summary(found: RunComparison) -> Text:
    from rich.text import Text

    same = f"{found.same} step{'' if found.same == 1 else 's'} the same"
    if found.equal:
        return Text(f"no difference: {same}", style="green")
    counted = Counter(one.op for one in found.steps)
    parts = [f"{counted[op]} {op}" for op in _STYLES if counted[op]]
    parts += ["another end"] if found.ends else []
    return Text(f"{', '.join(parts)}; {same}", style="bold")


def _taken(view: RunView) -> str:
    """Return how long the run took, and what its model calls used."""
    taken = view.taken
    parts = [duration(view.took)]
    if taken.calls:
        parts.append(f"{taken.calls} model call{'' if taken.calls == 1 else 's'}")
    if taken.input_tokens or taken.output_tokens:
        parts.append(f"{taken.input_tokens:,} + {taken.output_tokens:,} tokens")
        parts += [] if taken.cost_usd is None else [dollars(taken.cost_usd)]
    return "  ".join(parts)
