"""One-line texts on steps: what was requested, and the result; and values, durations and amounts as text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import orjson

from .._lazy import expression

if TYPE_CHECKING:
    from .reading import ModelCall, RunView, StepView, ToolRequest

__all__ = [
    "FRAME",
    "arguments_text",
    "asked_text",
    "both_sides",
    "brief",
    "dollars",
    "duration",
    "facts_of",
    "local_time",
    "plural",
    "printable",
    "raised_lines",
    "related_text",
    "request_text",
    "result_text",
    "short",
    "time_span",
    "usage_text",
]

# -- values ------------------------------------------------------------------------------------------------------------

_SPACE: Final = expression(r"\s+")
#: The most characters of a value that are examined for the place where it differs.
_LONGEST: Final = 100_000


def short(value: object, most: int = 96) -> str:
    """Return ``value`` as compact JSON or, if it is a string, unchanged, in one line of at most ``most`` characters."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=repr).decode()
    text = _SPACE.sub(" ", printable(text)).strip()
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str) -> str:
    """Return ``text`` without the control characters with which a hostile trace could control a terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def brief(value: object, most: int = 96) -> str:
    """Return a recorded value in one line of at most ``most`` characters, in Python's notation; a text unchanged."""
    text = value if isinstance(value, str) else _written(value, [2 * most + 8])
    return short(text, most)


def both_sides(difference: Mapping[str, Any], most: int = 96) -> tuple[str, str]:
    """Return the two values of a ``difference`` in the form of ``brief``; for long ones the part around the first
    difference."""
    from .._runtime.divergence import in_common

    one, other = (
        brief(difference[side], _LONGEST) if side in difference else "(not there)" for side in ("recorded", "actual")
    )
    same = in_common(one, other)
    start = min(same - most // 3, max(len(one), len(other)) - most)
    if start > 1:
        one, other = f"…{one[start + 1 :]}", f"…{other[start + 1 :]}"
    return short(one, most), short(other, most)


def _written(value: object, left: list[int]) -> str:
    """Return a recorded value in Python's notation; ``left[0]`` characters, or a few more."""
    from .reading import class_of, plain

    if left[0] <= 0:
        return "…"
    if isinstance(value, Mapping):
        name = class_of(value)
        if name is not None and isinstance(value.get("v"), Mapping):
            fields = ((f"{key}=", item) for key, item in value["v"].items())
            return f"{name}({_joined(fields, left)})"
        if "$t" not in value:
            return "{" + _joined(((f"{key}: ", item) for key, item in value.items()), left) + "}"
        found = plain(value)
        return found if isinstance(found, str) else _written(found, left)
    if isinstance(value, list):
        return "[" + _joined((("", item) for item in value), left) + "]"
    text = value if isinstance(value, str) else "None" if value is None else repr(value)
    left[0] -= len(text)
    return text[: left[0] + len(text) + 1] if left[0] < 0 else text


def _joined(items: Iterable[tuple[str, object]], left: list[int]) -> str:
    found = []
    for key, item in items:
        left[0] -= len(key) + 2
        found.append(key + _written(item, left))
        if left[0] <= 0:
            break
    return ", ".join(found)


def duration(ns: int) -> str:
    """Return a duration for people: ``"340 µs"``, ``"12 ms"``, ``"3.1 s"``, ``"4 min"``, ``"2 h"``, ``"3 d"``."""
    if ns < 1_000_000:
        return f"{ns // 1000} µs"
    if ns < 1_000_000_000:
        return f"{ns // 1_000_000} ms"
    seconds = ns / 1e9
    if seconds < 100:
        return f"{seconds:.1f} s"
    return next(f"{seconds / size:.0f} {unit}" for size, unit in _UNITS if seconds >= 2 * size or size == 60)


_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_SPAN: Final = expression(r"([+-]?\d{1,9}(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_SPANS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def time_span(text: str) -> timedelta | None:
    """Parse a time span such as ``"30m"``, ``"12h"`` or ``"-1.5d"``; return ``None`` for any other text."""
    found = _SPAN.fullmatch(text.strip())
    return None if found is None else timedelta(**{_SPANS[found[2]]: float(found[1])})


def local_time(ns: int) -> str:
    """Return a moment in the reader's own time zone."""
    try:
        return datetime.fromtimestamp(ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"  # a trace may contain any number


def dollars(amount: float | None) -> str:
    """Return an amount of US dollars, small ones with their significant digits."""
    if amount is None:
        return "$?"
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.4f}" if amount >= 0.0005 else f"${amount:.2g}"


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return ``"1 step"``, ``"2 steps"``."""
    return f"{count:,} {word}{'' if count == 1 else ending}"


# -- steps -------------------------------------------------------------------------------------------------------------


def asked_text(step: StepView, room: int, call: ModelCall | None = None) -> str:
    """Return what a step requested, in ``room`` characters: a tool's arguments, the last message to a model, the body
    of a request."""
    from .reading import body_text, plain

    if step.kind == "span":
        return ""
    call = call or step.call
    if call is not None:
        return _quoted(_last_said(call), room)
    input = step.input
    if step.kind == "tool":
        return f"({short(arguments_text(_by_name(input), room + 8), room)})"
    if step.kind == "http" and isinstance(input, Mapping):
        return _quoted(body_text(plain(input.get("body"))), room)
    if input is None or step.kind in ("clock", "random"):
        return ""
    return brief(input, room)


def result_text(step: StepView, room: int, call: ModelCall | None = None) -> str:
    """Return the result of a step in one line."""
    from .reading import body_text, plain

    call = call or step.call
    if call is not None:
        answer = call.answer
        parts = [_requests_text(call.requested, room)] if call.requested else []
        parts += [_quoted(answer.text, max(24, room - len("".join(parts))))] if answer.text else []
        parts += [f"refuses: {answer.refusal}"] if answer.refusal else []
        if parts:
            return short(", ".join(parts), room)
    value = step.output
    chunks = plural(len(step.chunks), "piece") if step.chunks else ""
    if step.kind == "http" and isinstance(value, Mapping):
        body = body_text(plain(value.get("body")))
        status = f"{step.status} " if step.status else ""
        return f"{status}{_quoted(body, room - 4) if body else chunks}".strip()
    if step.chunks and (value is None or isinstance(value, Mapping)):
        texts = [piece for piece in map(plain, step.pieces(40)) if isinstance(piece, str)]
        return f"{_quoted(''.join(texts), room)} ({chunks})" if texts else chunks
    return brief(value, room)


def _requests_text(requests: Sequence[ToolRequest], room: int) -> str:
    """Return a model's requests as calls; several that don't fit by their names, so that none is cut off."""
    text = f"asks for {', '.join(map(request_text, requests))}"
    if len(text) <= room or len(requests) == 1:
        return text
    names = Counter(request.name for request in requests).items()
    return f"asks for {', '.join(name if count == 1 else f'{name} ({count} times)' for name, count in names)}"


def _by_name(input: Any) -> Mapping[str, Any]:
    """Return the arguments of a tool by name."""
    return input if isinstance(input, Mapping) and "$t" not in input else {} if input is None else {"": input}


def arguments_text(arguments: Mapping[str, Any], most: int = 200) -> str:
    """Return arguments by name, in one line, each of at most ``most`` characters."""
    return ", ".join(
        f"{name}={brief(value, most)}" if name else brief(value, most) for name, value in arguments.items()
    )


def request_text(request: ToolRequest) -> str:
    """Return a model's tool request as a call."""
    arguments = request.arguments
    return (
        f"{request.name}({arguments_text(arguments, 60) if isinstance(arguments, Mapping) else brief(arguments, 60)})"
    )


def _last_said(call: ModelCall) -> str:
    """Return the last message to a model."""
    for message in reversed(call.prompt.messages):
        if text := message.text or ", ".join((*map(request_text, message.requests), *message.others)):
            return text
    return ""


def _quoted(text: str | None, most: int) -> str:
    return f"“{short(text, max(8, most - 2))}”" if text else ""


def related_text(step: StepView) -> str:
    """Return how a call relates to others: its attempt, the step that it undoes, the step that answered it."""
    facts, found = step.facts, []
    if step.attempt > 1:
        found.append(f"attempt {step.attempt}")
    if type(facts.get("compensates")) is int:
        found.append(f"undoes {facts['compensates']}")
    if "duplicate_of" in facts:
        found.append(f"answered by {brief(facts['duplicate_of'], 60)}")
    return ", ".join(found)


def usage_text(call: ModelCall) -> str:
    """Return a model call's usage, its cost, and why the answer ended."""
    counts = [
        f"{name.removesuffix('_tokens').replace('_', ' ')} {count:,}"
        for name, count in call.usage.items()
        if type(count) is int and count
    ]
    reasons = call.step.ended_with.get("finish_reasons")
    parts = [f"{', '.join(counts)} tokens"] if counts else []
    parts += [] if call.cost_usd is None else [dollars(call.cost_usd)]
    parts += [f"ended with {', '.join(map(str, reasons))}"] if isinstance(reasons, list) and reasons else []
    parts += [plural(len(call.step.chunks), "piece")] if call.step.chunks else []
    return "; ".join(map(printable, parts))


#: Entries with which a run, or a process of it, begins and ends, and what is kept besides its steps.
FRAME: Final = frozenset(("run.started", "run.completed", "run.failed", "run.aborted", "blob"))


#: At most this many frames of a traceback are shown, the innermost.
_FRAMES: Final = 8


def raised_lines(step: StepView) -> list[str]:
    """The innermost frames of the recorded traceback of a failed step, a line each, the innermost last."""
    lines = []
    for frame in step.raised_at[-_FRAMES:]:
        code = f": {frame['code']}" if frame.get("code") else ""
        lines.append(printable(f"{frame.get('file')}:{frame.get('line')} in {frame.get('function')}{code}"))
    return lines


def facts_of(view: RunView, step: StepView) -> Iterator[tuple[str, str]]:
    """Yield the facts on a step besides its input and result, each with its name."""
    name = view.run_id
    yield "run", f"{view.name} {name}" + (f", process {step.file.process}" if step.file.segment else "")
    yield "state", step.state + (f" (attempt {step.attempt})" if step.attempt > 1 else "")
    began = f"{local_time(step.ts_ns)}"
    yield "began", began + (f", took {duration(step.took)}" if step.took else "")
    if step.side_effect and step.kind != "llm":
        yield "class", step.side_effect
    if step.lane.path:
        yield "lane", f"{step.lane.number}: {step.lane.path}"
    if step.agent:
        yield "agent", step.agent
    around = step.file.step_at(step.parent)
    if around is not None and around.type not in FRAME:
        yield "inside", f"{around.place} {around.kind} {around.name}"
    if (key := step.facts.get("idempotency_key")) is not None:
        yield "key", brief(key, 200)
    if isinstance(contract := step.meta.get("contract"), Mapping):
        yield "contract", arguments_text(contract)
    if (settlement := step.settled) is not None:
        when = f" on {local_time(settlement['at'])}" if type(settlement.get("at")) is int else ""
        done = "it was done" if settlement.get("done") else "it was not done"
        yield "settled", f"{done}, says {settlement.get('by')}{when}: {settlement.get('reason')}"
    if step.state == "in doubt":
        from .recovery import uncertain_steps

        yield from (
            ("what to do", one.what_to_do) for one in uncertain_steps(step.file.trace.path)[0] if one.step == step.seq
        )
    entries = [str(step.seq)] + ([f"{step.chunks[0]} to {step.chunks[-1]}"] if step.chunks else [])
    yield "entries", ", ".join([*entries, *([str(step.answer)] if step.answer else [])])
