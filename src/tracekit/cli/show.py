"""``tracekit show``: the entries of one run, or why it can or can't be replayed and resumed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import click

from .._journal.reader import Trace
from .._journal.store import Store, beside, name_of
from . import output
from .output import (
    Step,
    Timeline,
    body_text,
    duration,
    error_text,
    located,
    printable,
    short,
    streamed,
    timeline_of,
    verdict_of,
)

__all__ = ["explain", "print_answers", "show", "whole"]

# -- show --------------------------------------------------------------------------------------------------------------
#
# ``tracekit show RUN``: a readable tree on a terminal, the entries as JSON lines when piped.

_STATE: Final = {"complete": output.RIGHT, "incomplete": output.INCOMPLETE, "broken": output.DIFFERENT}
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

    What its child processes wrote follows, in JSON with the key "segment"; RUN.SEGMENT shows one of them alone. Exit code: 0 for a complete
    run, 1 for a broken one, 3 for one without an end; what verifies is shown in any case.
    """
    with output.reported(), Trace(located(run, where := Store(store))) as trace, ExitStack() as stack:
        verdict = where.judge_run(trace)
        structured = output.structured(as_json)
        if as_why:
            answers = explain(timeline_of(trace, verdict, where, stack))
            output.emit(answers) if structured else print_answers(answers)
        elif structured:
            output.emit(whole(trace, verdict.run_id, first, expand))
        else:
            _print_tree(timeline_of(trace, verdict, where, stack), first, limit)
        if verdict.problem and (structured or verdict.state == "broken"):
            output.message(
                f"{verdict.state}: {printable(verdict.problem)}" + (f" (line {verdict.line})" if verdict.line else "")
            )
        sys.exit(_STATE[verdict.state])


def whole(trace: Trace, run_id: str | None, first: int, expand: bool) -> Iterator[dict[str, Any]]:
    """The entries of a run from ``first`` on, then those of its child processes with the names of their segments."""
    yield from entries_of(trace, first, expand)
    for path in beside(trace.path, run_id):
        with Trace(path) as file:
            for entry in entries_of(file, 1, expand):
                yield {"segment": name_of(path), **entry}


def entries_of(trace: Trace, first: int, expand: bool) -> Iterator[dict[str, Any]]:
    """The entries that verify, from ``first`` on; ``expand`` puts values in place of references."""
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
        if process.verdict.state != "complete":
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
        line += _step_text(timeline, entry, step) if step else _other_text(timeline, entry)
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
    text += Text(_input_text(timeline, entry, step))
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
        text += Text("  → ", style="dim") + Text(_outcome_text(timeline, step), style="green")
    return text + Text(f"  {duration(step.took)}", style="dim")


def _input_text(timeline: Timeline, entry: Mapping[str, Any], step: Step) -> str:
    if "input" not in entry or step.family == "span":
        return ""
    value = timeline.trace.expand(entry["input"], before=step.seq)
    if step.family == "tool" and isinstance(value, dict):
        return "(" + ", ".join(f"{printable(name)}={short(each, 40)}" for name, each in value.items()) + ")"
    return f" “{short(text, 64)}”" if (text := body_text(value)) else f" {short(value, 64)}"


def _outcome_text(timeline: Timeline, step: Step) -> str:
    answer = timeline.trace.entry(step.answer)
    chunks = f"{step.chunks} chunks" if step.chunks else ""
    if step.family == "llm" and (text := streamed(timeline.trace, step)):
        return f"“{short(text, 64)}” ({chunks})"
    if "output" not in answer:
        return chunks or "done"
    value = timeline.trace.expand(answer["output"], before=step.answer)
    text = body_text(value) if step.family == "llm" else None
    whole = f"“{short(text, 64)}”" if text else short(value, 64)
    return chunks if chunks and not text else " ".join(filter(None, (whole, chunks and f"({chunks})")))


def _other_text(timeline: Timeline, entry: Mapping[str, Any]) -> Any:
    from rich.text import Text

    if entry["type"] == "boundary":
        one = timeline.crossing(entry["seq"])
        noted = one.status in ("noted", "refused") and one.times > one.captured
        what = Text("boundary ", style="blue") + Text(short(one.text, 160), style="bold" if noted else "")
        status = "captured" if not noted and one.status == "noted" else one.status
        unattributed = ", unattributed" if one.unattributed else ""
        advice = f": {printable(one.advice)}" if one.advice else ""
        return what + Text(f"  {printable(status)}{unattributed}{advice}", style="bold red" if noted else "dim")
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
    if verdict.state == "complete":
        return Text(f"complete, tip hash {verdict.head[:16]}…", style="green")
    style = "bold red" if verdict.state == "broken" else "bold yellow"
    return Text(f"{verdict.state}: {printable(verdict.problem or '')}", style=style)


# -- why ---------------------------------------------------------------------------------------------------------------
#
# ``tracekit show RUN --why``: five questions, each answered in a line with the entries that support the answer.

_CHOICES: Final = ("decision", "router.decision", "policy.check", "breaker", "state_transition", "intent.received")
_FALLBACKS: Final = ("fallback.triggered", "fallback.exhausted", "breaker")
_REFUSALS: Final = ("contract.violated", "budget.exceeded")
#: At most this many entries are named in one answer.
_MOST: Final = 12

Answer = tuple[str, list[int | str]]


def explain(timeline: Timeline) -> dict[str, Any]:
    """Answers about a run: ``what_happened``, ``why_this_path``, ``which_fallback``, ``safe_to_retry``, ``can_be_replayed``.

    Each answer is ``{"text", "entries"}``; the last two are the verdict on the run, with an ``"answer"``, ``true``, ``false``, or ``null``
    for what is not known, and coded ``"reasons"``. An entry of a child process is ``"SEGMENT:SEQ"``.
    """
    verdict = verdict_of(timeline)
    return {
        "run_id": timeline.run_id,
        "what_happened": _shape(_what_happened(timeline)),
        "why_this_path": _shape(_why_this_path(timeline)),
        "which_fallback": _shape(_which_fallback(timeline)),
        "safe_to_retry": verdict.safe_to_run_again.as_dict(),
        "can_be_replayed": verdict.can_be_replayed.as_dict(),
    }


def print_answers(answers: Mapping[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key, answer in answers.items():
        if isinstance(answer, dict):
            entries = Text("  " + _numbers(answer["entries"]), style="dim") if answer["entries"] else Text("")
            table.add_row(key.replace("_", " "), Text(printable(answer["text"])) + entries)
    output.console().print(table)


def _numbers(seqs: list[int | str]) -> str:
    shown = ", ".join(map(str, seqs[:_MOST]))
    return f"[{shown}{f' and {len(seqs) - _MOST} more' if len(seqs) > _MOST else ''}]"


def _shape(answer: Answer) -> dict[str, Any]:
    return {"text": answer[0], "entries": answer[1]}


# -- what happened ------------------------------------------------------------------------------------


def _what_happened(timeline: Timeline) -> Answer:
    counted = Counter(step.family for step in timeline.every_step())
    words = {"llm": "model call", "tool": "tool call", "http": "HTTP request", "process": "process", "span": "span"}
    parts = [
        _plural(counted[family], word, "es" if family == "process" else "s")
        for family, word in words.items()
        if counted[family]
    ]
    made = ", ".join(parts) or "no step"
    if not timeline.first:
        return "Unknown: the file holds no entry.", []
    head = f"Run {timeline.name!r} "
    first, last = timeline.first.get("seq", 0), timeline.last.get("seq", 0)
    open_ = [step for step in timeline.steps.values() if step.outcome is None]
    match timeline.ended:
        case "run.completed":
            head += f"completed after {duration(timeline.took)}: {made}."
        case "run.failed":
            head += f"failed after {duration(timeline.took)} with {short(error_text(timeline.last.get('error')), 160)}: {made}."
        case "run.aborted":
            head += f"was aborted after {duration(timeline.took)}: {made}."
        case _:
            where = f" inside {_name(open_[-1])}" if open_ else ""
            head += f"has no end; its last entry is {last}{where}: {made}."
    failed = [step for step in timeline.every_step() if step.failed]
    if failed:
        head += f" {_plural(len(failed), 'step')} failed, the last one {_name(failed[-1])}: {short(failed[-1].error)}."
    refused, places = _found(timeline, _REFUSALS)
    if refused:
        by = short(refused[-1].get("name") or "", 40)
        head += f" {_plural(len(refused), 'call')} refused, the last one {refused[-1]['type']} {by}".rstrip() + "."
    texts, cut_off = _processes(timeline)
    shown = [step.place for step in (*open_[-1:], *failed[-1:])] + places[-1:]
    named: list[int | str] = [first, last, *shown, *cut_off]
    return head + texts, _in_order(named)


def _processes(timeline: Timeline) -> Answer:
    """A sentence on the child processes of a run and on those without an end, and their entries."""
    if not timeline.processes:
        return "", []
    texts, entries = f" It had {_plural(len(timeline.processes), 'child process', 'es')} that joined it.", []
    for process in timeline.processes:
        if process.ended is None:
            steps = [step for step in process.steps.values() if step.outcome is None]
            last = process.last.get("seq", 0)
            where = f" inside {_name(steps[-1])}" if steps else ""
            texts += (
                f" The process {printable(process.lane)} has no end; its last entry is {process.place(last)}{where}."
            )
            entries += [process.place(last), *(step.place for step in steps[-1:])]
    return texts, entries


# -- why this path ------------------------------------------------------------------------------------


def _why_this_path(timeline: Timeline) -> Answer:
    chosen, places = _found(timeline, _CHOICES)
    if chosen:
        texts = [f"{entry.get('name', entry['type'])} → {short(entry.get('output'), 40)}" for entry in chosen[:4]]
        more = f" and {len(chosen) - 4} more" if len(chosen) > 4 else ""
        return f"It decided {'; '.join(texts)}{more}.", places
    asked = {place: tools for one in timeline.whole for place, tools in _asked_for_tools(one).items()}
    if asked:
        texts = [f"{seq} asked for {', '.join(_counted(tools))}" for seq, tools in list(asked.items())[:4]]
        more = f" and {len(asked) - 4} more did" if len(asked) > 4 else ""
        return f"The model chose the tools: entry {'; '.join(texts)}{more}.", list(asked)
    if timeline.every_step():
        return "No decision is recorded, and no model asked for a tool: the code alone chose the path.", []
    return "Nothing is recorded to have been done, so there was nothing to choose.", []


def _found(timeline: Timeline, kinds: Sequence[str]) -> tuple[list[dict[str, Any]], list[int | str]]:
    """The entries of these types in the whole run, and their places."""
    found = [(one, entry) for one in timeline.whole for entry in one.entries_of(*kinds)]
    return [entry for _, entry in found], [one.place(entry["seq"]) for one, entry in found]


def _asked_for_tools(timeline: Timeline) -> dict[int | str, list[str]]:
    """Model calls that asked for tools, and the tools called between each and the next model call."""
    asked: dict[int | str, list[str]] = {}
    current: list[str] | None = None
    for step in timeline.steps.values():
        if step.family == "llm":
            current = None
            if step.answer and _wants_tools(timeline.trace.entry(step.answer)):
                current = asked.setdefault(step.place, [])
        elif step.family == "tool" and current is not None:
            current.append(step.name)
    return {seq: tools for seq, tools in asked.items() if tools}


def _wants_tools(answer: Mapping[str, Any]) -> bool:
    reasons = (answer.get("meta") or {}).get("finish_reasons") or ()
    return any(reason in ("tool_calls", "tool_use", "function_call") for reason in reasons)


# -- which fallback -----------------------------------------------------------------------------------


def _which_fallback(timeline: Timeline) -> Answer:
    found, places = _found(timeline, _FALLBACKS)
    retried = [step for step in timeline.every_step() if _attempt(step) > 1]
    texts = [_fallback_text(entry) for entry in found[:4]]
    if len(found) > 4:
        texts.append(f"{len(found) - 4} more")
    if retried:
        texts.append(
            f"{_plural(len(retried), 'call')} repeated after a failed attempt ({', '.join(_counted(map(_name, retried)))})"
        )
    if not texts:
        return "None: nothing was retried, and no fallback was triggered.", []
    return f"{'; '.join(texts)}.", _in_order(places + [step.place for step in retried])


def _fallback_text(entry: Mapping[str, Any]) -> str:
    """A text for a fallback entry: which was called instead of which, and why; or that none was left."""
    about = entry.get("input")
    if not isinstance(about, Mapping) or not entry["type"].startswith("fallback."):
        return f"{entry['type']} {short(entry.get('name') or entry.get('output') or '', 40)}".strip()
    first, reason = short(about.get("from"), 40), short(about.get("reason"), 40)
    if entry["type"] == "fallback.exhausted":
        tried = about.get("tried")
        others = [short(one, 40) for one in tried] if isinstance(tried, list) else []
        return f"nobody was left after {', '.join([first, *others])} ({reason})"
    texts = f"{first} failed ({reason}), and {short(about.get('to'), 40)} was asked instead"
    if about.get("escalation") is True:
        texts += f", an escalation from {short(about.get('from_side_effect'), 40)} to {short(about.get('to_side_effect'), 40)}"
    return texts


def _attempt(step: Step) -> int:
    attempt = (step.facts.get("info") or {}).get("attempt", step.facts.get("attempt", 1))
    return attempt if isinstance(attempt, int) else 1


# -- text --------------------------------------------------------------------------------------------


def _plural(count: int, word: str, ending: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else ending}"


def _name(step: Step) -> str:
    return f"{step.family} {step.name}"


def _counted(names: Any) -> list[str]:
    return [name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()]


def _in_order(places: list[int | str]) -> list[int | str]:
    """Distinct places, those of the run's own file first."""
    own = sorted({place for place in places if isinstance(place, int)} - {0})
    return [*own, *dict.fromkeys(place for place in places if isinstance(place, str))]
