"""``tracekit show RUN``: a readable tree on a terminal, the entries as JSON lines when piped."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import click

from .._journal.reader import Trace, Verdict
from .._journal.runs import Store
from .._journal.segments import beside, name_of
from . import output
from .store import located
from .timeline import Step, Timeline, duration, error_text, printable, said, short, streamed

__all__ = ["show", "whole"]

_STATE: Final = {"sealed": output.RIGHT, "unsealed": output.UNSEALED, "broken": output.DIFFERENT}
_CLASS: Final = {"irreversible": "bold red", "reversible": "yellow", "read_only": "dim"}


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--store", metavar="DIR", help="The directory of runs (default: TRACEKIT_DIR, .tracekit).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on a terminal too.")
@click.option(
    "--why", "as_why", is_flag=True, help="Five answers: what, why, which fallback, safe to retry, replayable."
)
@click.option("--expand", is_flag=True, help="In JSON, put values in place of the references to them.")
@click.option("--from", "first", metavar="SEQ", type=click.IntRange(1), default=1, help="Begin at this entry.")
@click.option("--limit", metavar="N", type=click.IntRange(0), default=400, help="Lines of the tree; 0 for all (400).")
def show(run: str, store: str | None, as_json: bool, as_why: bool, expand: bool, first: int, limit: int) -> None:
    """Show a run: its id, the beginning of its id, "last", or the path of its file.

    What its child processes wrote follows, in JSON with the key "segment"; RUN.SEGMENT shows one of them alone. Exit code: 0 for a sealed
    run, 1 for a broken one, 3 for one without an end; what verifies is shown in any case.
    """
    with output.reported(), Trace(located(run, where := Store(store))) as trace, ExitStack() as stack:
        verdict = where.judge_run(trace)
        structured = output.structured(as_json)
        if as_why:
            from .why import explain, print_answers

            answers = explain(_timeline(trace, verdict, where, stack))
            output.emit(answers) if structured else print_answers(answers)
        elif structured:
            output.emit(whole(trace, verdict.run_id, first, expand))
        else:
            _print_tree(_timeline(trace, verdict, where, stack), first, limit)
        if verdict.problem and (structured or verdict.state == "broken"):
            output.message(
                f"{verdict.state}: {printable(verdict.problem)}" + (f" (line {verdict.line})" if verdict.line else "")
            )
        sys.exit(_STATE[verdict.state])


def _timeline(trace: Trace, verdict: Verdict, where: Store, stack: ExitStack) -> Timeline:
    files = [stack.enter_context(Trace(path)) for path in beside(trace.path, verdict.run_id)]
    processes = [Timeline(file, where.judge(file), name_of(file.path)) for file in files]
    return Timeline(trace, verdict, None, [one for one in processes if one.first or one.verdict.state == "broken"])


def whole(trace: Trace, run_id: str | None, first: int, expand: bool) -> Iterator[dict[str, Any]]:
    """The entries of a run from ``first`` on, then those of its child processes, with the name of their segment."""
    yield from entries_of(trace, first, expand)
    for path in beside(trace.path, run_id):
        with Trace(path) as file:
            for entry in entries_of(file, 1, expand):
                yield {"segment": name_of(path), **entry}


def entries_of(trace: Trace, first: int, expand: bool) -> Iterator[dict[str, Any]]:
    """The entries that verify from ``first`` on, values in place of references where asked for."""
    for entry in trace.entries(first=first, damaged=True):
        if expand and entry["type"] != "blob":
            for key in ("input", "output"):
                if key in entry:
                    entry[key] = trace.expand(entry[key], before=entry["seq"])
        yield entry


# -- the tree -----------------------------------------------------------------------------------------


def _print_tree(timeline: Timeline, first: int, limit: int) -> None:
    from rich.text import Text

    console = output.console()
    console.print(_heading(timeline))
    left = _print_rows(timeline, first, limit or sys.maxsize)
    for process in timeline.processes:
        head = Text(f"process {printable(process.lane)}", style="bold") + Text(
            f"  segment {process.segment}", style="dim"
        )
        console.print(head, soft_wrap=True)
        left = _print_rows(process, 1, left)
        if process.verdict.state != "sealed":
            console.print(_verdict(process), soft_wrap=True)
    console.print(_verdict(timeline), soft_wrap=True)


def _print_rows(timeline: Timeline, first: int, left: int) -> int:
    """Print the entries of one file, at most ``left`` lines; returns how many are left."""
    from rich.text import Text

    console = output.console()
    lanes: dict[int, str] = {0: ""}
    for depth, entry, step in timeline.rows(first):
        if entry["type"] == "lane":
            born = entry.get("input") or {}
            lanes[born.get("id", 0)] = f"{born.get('name', '?')}#{born.get('n', 1)}"
            continue
        if not left:
            file = timeline.run_id if timeline.segment is None else f"{timeline.run_id}.{timeline.segment}"
            console.print(Text(f"… more: tracekit show {file} --from {entry['seq']}", style="dim"), soft_wrap=True)
            break
        left -= 1
        line = Text(f"{entry['seq']:>6} ", style="dim") + Text("  " * depth)
        line += _step_text(timeline, entry, step) if step else _other_text(entry)
        if lane := lanes.get(entry["lane"], ""):
            line += Text(f"  [{printable(lane)}]", style="magenta")
        console.print(line, soft_wrap=True)
    return left


def _heading(timeline: Timeline) -> Any:
    from rich.text import Text

    count = timeline.verdict.count
    text = Text(printable(timeline.name), style="bold") + Text(f"  {printable(timeline.run_id)}", style="cyan")
    return text + Text(f"  {count} entries, {duration(timeline.took)}", style="dim")


def _step_text(timeline: Timeline, entry: Mapping[str, Any], step: Step) -> Any:
    from rich.text import Text

    text = Text(f"{step.family} ", style="blue") + Text(printable(step.name), style="bold")
    text += Text(_given(timeline, entry, step))
    if step.side_effect:
        text += Text(f"  {step.side_effect}", style=_CLASS.get(step.side_effect, ""))
    if circumstances := step.circumstances:
        text += Text(f"  {circumstances}", style="dim")
    if step.outcome is None:
        return text + Text(
            "  no outcome: in doubt" if step.side_effect != "read_only" else "  no outcome", style="bold red"
        )
    if step.failed:
        text += Text(f"  ✗ {short(step.error)}", style="red")
    elif step.skipped and "output" not in timeline.trace.entry(step.answer):
        text += Text("  given up", style="yellow")
    elif step.family != "span":
        text += Text("  → ", style="dim") + Text(_came(timeline, step), style="green")
    return text + Text(f"  {duration(step.took)}", style="dim")


def _given(timeline: Timeline, entry: Mapping[str, Any], step: Step) -> str:
    if "input" not in entry or step.family == "span":
        return ""
    value = timeline.trace.expand(entry["input"], before=step.seq)
    if step.family == "tool" and isinstance(value, dict):
        return "(" + ", ".join(f"{printable(name)}={short(each, 40)}" for name, each in value.items()) + ")"
    return f" “{short(text, 64)}”" if (text := said(value)) else f" {short(value, 64)}"


def _came(timeline: Timeline, step: Step) -> str:
    answer = timeline.trace.entry(step.answer)
    chunks = f"{step.chunks} chunks" if step.chunks else ""
    if step.family == "llm" and (text := streamed(timeline.trace, step)):
        return f"“{short(text, 64)}” ({chunks})"
    if "output" not in answer:
        return chunks or "done"
    value = timeline.trace.expand(answer["output"], before=step.answer)
    text = said(value) if step.family == "llm" else None
    whole = f"“{short(text, 64)}”" if text else short(value, 64)
    return chunks if chunks and not text else " ".join(filter(None, (whole, chunks and f"({chunks})")))


def _other_text(entry: Mapping[str, Any]) -> Any:
    from rich.text import Text

    text = Text(f"{printable(entry['type'])} ", style="blue")
    if "name" in entry and entry["type"] != "run.started":
        text += Text(short(entry["name"], 64), style="bold")
    if "values" in entry:
        text += Text(
            f" × {len(entry['values'])}" if len(entry["values"]) > 1 else f" = {short(entry['values'][0], 40)}"
        )
    for key in ("input", "output"):
        if entry.get(key) is not None:
            text += Text(("  → " if key == "output" else " ") + short(entry[key], 64))
    if "error" in entry:
        text += Text(f"  ✗ {short(error_text(entry['error']))}", style="red")
    return text


def _verdict(timeline: Timeline) -> Any:
    from rich.text import Text

    verdict = timeline.verdict
    if verdict.state == "sealed":
        return Text(f"sealed, head {verdict.head[:16]}…", style="green")
    style = "bold red" if verdict.state == "broken" else "bold yellow"
    return Text(f"{verdict.state}: {printable(verdict.problem or '')}", style=style)
