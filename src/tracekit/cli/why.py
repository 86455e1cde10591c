"""``tracekit show RUN --why``: five questions, each answered in a line, with the entries that the answer rests on."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import output
from .timeline import Step, Timeline, duration, error_text, printable, short

__all__ = ["explain", "print_answers"]

_CHOICES: Final = ("decision", "router.decision", "policy.check", "breaker", "state_transition", "intent.received")
_FALLBACKS: Final = ("fallback.triggered", "fallback.exhausted", "breaker")
_REFUSALS: Final = ("contract.violated", "budget.exceeded")
_EFFECTS: Final = ("irreversible", "reversible")
#: What is in every file, whatever was captured; and the lists of entries that are not as they were.
_FRAME: Final = {"run.started", "run.completed", "run.failed", "run.aborted"}
_FLAWS: Final = ("noted", "redacted")
#: Entries named in one answer.
_MOST: Final = 12

Answer = tuple[str, list[int | str]]


def explain(timeline: Timeline) -> dict[str, Any]:
    """``{"run_id", "what_happened", "why_this_path", "which_fallback", "safe_to_retry", "can_be_replayed"}``.

    Each answer is ``{"text", "entries"}``, the last two with an ``"answer"``: ``true``, ``false``, or ``null`` for "with care". An entry
    of a child process is ``"SEGMENT:SEQ"``.
    """
    retry, retry_answer = _retry(timeline)
    replayed, replay_answer = _replay(timeline)
    return {
        "run_id": timeline.run_id,
        "what_happened": _shape(_happened(timeline)),
        "why_this_path": _shape(_path(timeline)),
        "which_fallback": _shape(_fallback(timeline)),
        "safe_to_retry": {"answer": retry, **_shape(retry_answer)},
        "can_be_replayed": {"answer": replayed, **_shape(replay_answer)},
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


def _happened(timeline: Timeline) -> Answer:
    counted = Counter(step.family for step in timeline.every_step())
    words = {"llm": "model call", "tool": "tool call", "http": "HTTP request", "span": "span"}
    parts = [_plural(counted[family], word) for family, word in words.items() if counted[family]]
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
    told, cut_off = _processes(timeline)
    shown = [step.place for step in (*open_[-1:], *failed[-1:])] + places[-1:]
    named: list[int | str] = [first, last, *shown, *cut_off]
    return head + told, _in_order(named)


def _processes(timeline: Timeline) -> Answer:
    """The processes that the program started, and which of them did not end."""
    if not timeline.processes:
        return "", []
    told, entries = f" It had {_plural(len(timeline.processes), 'child process', 'es')} that joined it.", []
    for process in timeline.processes:
        if process.ended is None:
            steps = [step for step in process.steps.values() if step.outcome is None]
            last = process.last.get("seq", 0)
            where = f" inside {_name(steps[-1])}" if steps else ""
            told += (
                f" The process {printable(process.lane)} has no end; its last entry is {process.place(last)}{where}."
            )
            entries += [process.place(last), *(step.place for step in steps[-1:])]
    return told, entries


# -- why this path ------------------------------------------------------------------------------------


def _path(timeline: Timeline) -> Answer:
    chosen, places = _found(timeline, _CHOICES)
    if chosen:
        told = [f"{entry.get('name', entry['type'])} → {short(entry.get('output'), 40)}" for entry in chosen[:4]]
        more = f" and {len(chosen) - 4} more" if len(chosen) > 4 else ""
        return f"It decided {'; '.join(told)}{more}.", places
    asked = {place: tools for one in timeline.whole for place, tools in _asked_for_tools(one).items()}
    if asked:
        told = [f"{seq} asked for {', '.join(_counted(tools))}" for seq, tools in list(asked.items())[:4]]
        more = f" and {len(asked) - 4} more did" if len(asked) > 4 else ""
        return f"The model chose the tools: entry {'; '.join(told)}{more}.", list(asked)
    if timeline.every_step():
        return "No decision is recorded, and no model asked for a tool: the code alone chose the path.", []
    return "Nothing is recorded to have been done, so there was nothing to choose.", []


def _found(timeline: Timeline, kinds: Sequence[str]) -> tuple[list[dict[str, Any]], list[int | str]]:
    """The entries of these types in all of the run, and where they stand."""
    found = [(one, entry) for one in timeline.whole for entry in one.entries_of(*kinds)]
    return [entry for _, entry in found], [one.place(entry["seq"]) for one, entry in found]


def _asked_for_tools(timeline: Timeline) -> dict[int | str, list[str]]:
    """Model calls that ended with a wish for tools, and the tools called between them and the next model call."""
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


def _fallback(timeline: Timeline) -> Answer:
    found, places = _found(timeline, _FALLBACKS)
    retried = [step for step in timeline.every_step() if _attempt(step) > 1]
    told = [_instead(entry) for entry in found[:4]]
    if len(found) > 4:
        told.append(f"{len(found) - 4} more")
    if retried:
        told.append(
            f"{_plural(len(retried), 'call')} repeated after a failed attempt ({', '.join(_counted(map(_name, retried)))})"
        )
    if not told:
        return "None: nothing was retried, and no fallback was triggered.", []
    return f"{'; '.join(told)}.", _in_order(places + [step.place for step in retried])


def _instead(entry: Mapping[str, Any]) -> str:
    """Who was asked in the place of whom, and why; or that nobody was left."""
    about = entry.get("input")
    if not isinstance(about, Mapping) or not entry["type"].startswith("fallback."):
        return f"{entry['type']} {short(entry.get('name') or entry.get('output') or '', 40)}".strip()
    first, reason = short(about.get("from"), 40), short(about.get("reason"), 40)
    if entry["type"] == "fallback.exhausted":
        tried = about.get("tried")
        others = [short(one, 40) for one in tried] if isinstance(tried, list) else []
        return f"nobody was left after {', '.join([first, *others])} ({reason})"
    told = f"{first} failed ({reason}), and {short(about.get('to'), 40)} was asked instead"
    if about.get("escalation") is True:
        told += f", an escalation from {short(about.get('from_side_effect'), 40)} to {short(about.get('to_side_effect'), 40)}"
    return told


def _attempt(step: Step) -> int:
    attempt = (step.facts.get("info") or {}).get("attempt", step.facts.get("attempt", 1))
    return attempt if isinstance(attempt, int) else 1


# -- is it safe to retry ------------------------------------------------------------------------------


def _retry(timeline: Timeline) -> tuple[bool | None, Answer]:
    if not timeline.first:
        return None, ("Unknown: the file holds no entry, so nobody knows what its process did.", [])
    steps = timeline.every_step()
    effects = [step for step in steps if step.side_effect in _EFFECTS and not step.skipped]
    final = [step for step in effects if step.side_effect == "irreversible"]
    doubtful = [step for step in final if step.outcome is None]
    failed = [step for step in final if step.failed]
    unknown = [step for step in steps if step.family == "tool" and step.side_effect is None]
    if timeline.verdict.state == "broken":
        return False, ("No: the trace is damaged, so nobody knows what was done after its last good entry.", [])
    if doubtful:
        return False, (
            f"No: {_names(doubtful)} may or may not have happened; find out before anything else.",
            _seqs(doubtful),
        )
    if failed:
        return False, (f"No: {_names(failed)} failed and is irreversible; it may have happened in part.", _seqs(failed))
    if final:
        return False, (
            f"No, not from the start: {_names(final)} was done and can't be undone; a new run would do it again.",
            _seqs(final),
        )
    if unknown:
        return None, (f"Unknown: {_names(unknown)} has no side-effect class.", _seqs(unknown))
    if effects:
        return None, (f"With care: {_names(effects)} would be made again; it can be undone.", _seqs(effects))
    return True, ("Yes: everything in it only reads; model calls would be paid again.", [])


# -- can it be replayed -------------------------------------------------------------------------------


def _replay(timeline: Timeline) -> tuple[bool | None, Answer]:
    verdict = timeline.verdict
    if verdict.state == "broken":
        where = f" at line {verdict.line}" if verdict.line else ""
        return False, (f"No: the trace is broken{where}: {verdict.problem}.", [])
    if not timeline.first:
        return False, ("No: the file holds no entry.", [])
    if all(not one.steps and set(one.others) <= _FRAME for one in timeline.whole):
        return False, ("No: nothing was captured in it.", [])
    noted, redacted = ([one.place(seq) for one in timeline.whole for seq in getattr(one, what)] for what in _FLAWS)
    if noted:
        return None, (
            "In part: a value in it could not be recorded whole, and a replay stops where it is needed.",
            noted,
        )
    drift = _drift(timeline)
    lost = sum(one.verdict.lost for one in timeline.whole)
    if lost:
        return None, (
            f"In part: {lost} entries of it could not be written, and a replay stops where the first is missing.{drift}",
            [verdict.count],
        )
    if verdict.state == "unsealed":
        return None, (f"Up to entry {verdict.count}, where it stops: {verdict.problem}.{drift}", [verdict.count])
    if redacted:
        return None, (f"Yes, with placeholders where values were redacted.{drift}", redacted)
    return True, (f"Yes: it is sealed with {verdict.count} entries.{drift}", [verdict.count])


def _drift(timeline: Timeline) -> str:
    recorded = ((timeline.first.get("meta") or {}).get("environment") or {}).get("python")
    here = platform.python_version()
    if not isinstance(recorded, str) or recorded.split(".")[:2] == here.split(".")[:2]:
        return ""
    return f" It was recorded on Python {recorded}; this is {here}."


# -- words --------------------------------------------------------------------------------------------


def _plural(count: int, word: str, ending: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else ending}"


def _name(step: Step) -> str:
    return f"{step.family} {step.name}"


def _names(steps: list[Step]) -> str:
    return ", ".join(_counted(step.name for step in steps))


def _counted(names: Any) -> list[str]:
    return [name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()]


def _seqs(steps: list[Step]) -> list[int | str]:
    return [step.place for step in steps]


def _in_order(places: list[int | str]) -> list[int | str]:
    """Each once, those of the run's own file first."""
    own = sorted({place for place in places if isinstance(place, int)} - {0})
    return [*own, *dict.fromkeys(place for place in places if isinstance(place, str))]
