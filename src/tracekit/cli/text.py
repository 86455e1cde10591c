"""``tracekit text``: a trace as text for a review, the same for two recordings of a program that did the same."""

from __future__ import annotations

import json
import re
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from .._journal.entry import READS
from .._runs.reading import FileView, ModelCall, PromptMessage, RunView, StepView, plain, plain_bytes
from . import output
from .options import READ_STORE
from .output import located, printable

__all__ = ["text"]

#: Kinds of steps that describe how a run was recorded, or how its tasks and threads took turns: these differ between
#: recordings.
_LEFT_OUT: Final = READS | {"timer", "lane", "identity", "blob", "input", "boundary", "run.started"}


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@READ_STORE
def text(runs: tuple[str, ...], store: str | None) -> None:
    """Print a trace as text for a review: what was asked and what was answered, lane by lane.

    RUN is an id, the beginning of one, "last", or a path. Two recordings of a program that did the same give the same text: ids,
    hashes, times and durations are left out; clock reads and random numbers have names (<datetime.date.today 1>), and so have
    placeholders, UUIDs, addresses and loopback ports; the paths of a home directory and of temporary files begin with ~ and <tmp>.

    To use it in git's differences:

    \b
      git config diff.tracekit.textconv "tracekit text"
      echo "*.jsonl diff=tracekit" >> .gitattributes

    Exit code: 0, 2 if there is no such run.

    \b
    Examples:
      tracekit text last
      tracekit text tests/traces/test_agent/test_refund.jsonl
    """
    with output.reported():
        where = output.readable(store, *runs)
        for run in runs:
            with output.read(located(run, where)) as view:
                with output.working("writing it as text"):
                    lines = [printable(line) for line in _text(view)]
                click.echo("\n".join(lines))
        sys.exit(output.RIGHT)


def _text(view: RunView) -> Iterator[str]:
    names = _Names(view)
    if view.found.state != "complete":
        yield f"{view.found.state}: {view.found.problem}" + (f" (line {view.found.line})" if view.found.line else "")
    yield f"run {names.steady(view.name)}"
    input = view.own.first.get("input")
    if input is not None:
        yield from _named("given", names.steady(plain(view.own.source.expand(input))), 1)
    for file in sorted(view.files, key=lambda one: one.process):
        yield from _file(file, names)
    yield from _end(view, names)


def _file(file: FileView, names: _Names) -> Iterator[str]:
    """Yield the steps of one file, lane by lane: concurrent lanes begin in another order each time."""
    lanes: dict[str, list[StepView]] = {}
    for step in file.steps.values():
        if (
            step.kind not in _LEFT_OUT
            and not step.bookkeeping
            and step.type not in ("run.completed", "run.failed", "run.aborted")
        ):
            lanes.setdefault(step.lane.path, []).append(step)
    for path, steps in sorted(lanes.items()):
        where = " ".join(
            one for one in (f"process {file.process}" if file.process else "", f"in {path}" if path else "") if one
        )
        if where:
            yield ""
            yield names.steady(where)
        for step in steps:
            yield ""
            yield from _step(step, names)


def _step(step: StepView, names: _Names) -> Iterator[str]:
    about = [step.kind, names.steady(step.name)]
    for fact in ("version", "side_effect"):
        value = step.meta.get(fact)
        if isinstance(value, str) and step.kind != "llm":
            about.append(value)
    if step.agent is not None:
        about.append(f"by {step.agent}")
    if step.attempt > 1:
        about.append(f"attempt {step.attempt}")
    yield " ".join(about)
    call = step.call
    if call is not None and call.prompt.messages:
        yield from _model_call(call, names)
    else:
        yield from _value("", names.steady(_input_of(step)), 1)
        if step.chunks and step.kind != "http":
            for piece in step.pieces():
                yield from _named("piece", names.steady(plain(piece)), 1)
        if step.error is None and step.calls and step.has_output:
            yield from _named("=", names.steady(_outcome_of(step)), 1)
        elif step.error is None and not step.calls and step.output is not None:
            yield from _named("=", names.steady(plain(step.output)), 1)
    if step.error is not None:
        yield from _named("failed", names.steady(step.error), 1)
    elif step.calls and step.outcome is None:
        yield "  without an outcome"


def _input_of(step: StepView) -> Any:
    """Return the input of a step; for a request its method, address and body: headers belong to the transport."""
    input = plain(step.input)
    if step.kind in ("llm", "http") and isinstance(input, Mapping):
        return {key: value for key, value in input.items() if key in ("method", "url", "body", "json", "text")} or input
    return input


def _outcome_of(step: StepView) -> Any:
    output = plain(step.output)
    if step.kind in ("llm", "http") and isinstance(output, Mapping):
        return {key: value for key, value in output.items() if key in ("status", "body", "json", "text")} or output
    return output


def _model_call(call: ModelCall, names: _Names) -> Iterator[str]:
    changes = call.changes
    parameters = (
        call.prompt.parameters
        if changes.previous is None
        else {name: now for name, (_, now) in changes.parameters.items()}
    )
    for name, value in sorted(parameters.items()):
        if name not in ("model", "stream"):
            yield from _named(name, names.steady(plain(value)), 1)
    offered = call.prompt.tools if changes.previous is None else changes.tools
    if offered:
        yield f"  tools: {', '.join(offered)}"
    for edit in changes.messages:
        if edit.op != "same":
            message = edit.now or edit.before
            assert message is not None
            yield from _message(message, names, {"added": "", "removed": "no more ", "changed": "instead "}[edit.op])
    if call.step.error is None:
        if call.answer.text:
            yield from _named("answer", names.steady(call.answer.text), 1)
        for one in call.requested:
            yield f"  asks for {one.name}"
            yield from _value("", names.steady(plain(one.arguments)), 2)


def _message(message: PromptMessage, names: _Names, how: str) -> Iterator[str]:
    if message.text or not message.requests:
        yield from _named(how + message.role, names.steady(message.text), 1)
    for one in message.others:
        yield f"  {how}{message.role}: ({one})"
    for request in message.requests:
        yield f"  {how}{message.role} asks for {request.name}"
        yield from _value("", names.steady(plain(request.arguments)), 2)


def _end(view: RunView, names: _Names) -> Iterator[str]:
    last = view.own.last
    yield ""
    yield view.state
    if last.get("output") is not None:
        yield from _named("result", names.steady(plain(view.own.source.expand(last["output"]))), 1)
    error = last.get("error")
    if isinstance(error, Mapping):
        yield from _named(
            str(error.get("type", "error")).removeprefix("builtins:"), names.steady(str(error.get("text") or "")), 1
        )


# -- values ------------------------------------------------------------------------------------------------------------


def _named(name: str, value: Any, depth: int) -> Iterator[str]:
    yield from _value(f"{name}:" if name != "=" else "=", value, depth)


def _value(name: str, value: Any, depth: int) -> Iterator[str]:
    """Yield a value, one line per leaf, so that a difference concerns one leaf; a multi-line text as its lines."""
    space = "  " * depth
    if isinstance(value, Mapping) and value:
        if name:
            yield space + name
        for key, inner in value.items():
            yield from _value(f"{key}:", inner, depth + bool(name))
    elif isinstance(value, list) and value and any(isinstance(one, Mapping | list) or _is_long(one) for one in value):
        if name:
            yield space + name
        for inner in value:
            yield from _value("-", inner, depth + bool(name))
    elif isinstance(value, str) and "\n" in value:
        yield f"{space}{name} |" if name else f"{space}|"
        yield from (f"{space}  {line}" for line in value.split("\n"))
    elif not (value is None and not name):
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{space}{name} {shown}" if name else f"{space}{shown}"


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and (len(value) > 60 or "\n" in value)


# -- what differs from one recording to the next -----------------------------------------------------------------------

_UUID: Final = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\b[0-9a-f]{32}\b"
#: Patterns of what differs in the next recording, each with the name that replaces it.
_PATTERNS: Final = (
    ("secret", r"(?:[A-Za-z0-9_-]*REDACTED_?[A-Z2-7]{8}[A-Za-z0-9_-]*)"),
    ("uuid", _UUID),
    ("address", r"0x[0-9a-fA-F]{6,16}\b"),
    ("port", r"(?<=127\.0\.0\.1:)\d{2,5}\b|(?<=localhost:)\d{2,5}\b"),
    ("call", r"\b(?:call|toolu|chatcmpl|msg|resp|req)_[A-Za-z0-9]{8,}\b"),
)
#: The shortest text of a reading that is replaced: shorter ones occur in unrelated texts.
_SHORTEST: Final = 8
_PATHS: Final = (
    (re.compile(r"(?:/private)?(?:/tmp|/var/tmp|/var/folders/\w\w/\w+/T)/pytest-of-[^/\s\"']+/pytest-\d+"), "<tmp>"),
    (re.compile(r"(?:/private)?(?:/tmp|/var/tmp|/var/folders/\w\w/\w+/T)/tmp[a-z0-9_]{8}\b"), "<tmp>"),
    (re.compile(r"[^\s\"'=:,]*/(?:site|dist)-packages/"), "<site-packages>/"),
    (re.compile(r"(?:/home/[^/\s\"']+|/Users/[^/\s\"']+|/root)(?=[/\s\"']|$)"), "~"),
)


class _Names:
    """Names for what differs between recordings of the same, numbered by their first occurrence in the text."""

    def __init__(self, view: RunView) -> None:
        self._functions: Final[dict[str, str]] = {}
        self._numbers: Final[dict[str, str]] = {}
        self._counts: Final[dict[str, int]] = {}
        for file in view.files:
            for step in file.steps.values():
                if step.kind in ("clock", "random"):
                    for value in step.values:
                        for form in _forms(value):
                            self._functions.setdefault(form, step.name)
        alternatives = [re.escape(form) for form in sorted(self._functions, key=lambda form: (-len(form), form))]
        read = f"(?P<read>{'|'.join(alternatives)})|" if alternatives else ""
        self._volatile: Final = re.compile(read + "|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS))

    def steady(self, value: Any) -> Any:
        """Return a value with those names in it, also for recorded numbers."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(str(key)): self.steady(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.steady(one) for one in value]
        if type(value) in (int, float):
            shown = json.dumps(value)
            return self._text(shown) if shown in self._functions else value
        return value

    def _text(self, text: str) -> str:
        text = self._volatile.sub(self._name, text)
        for pattern, short in _PATHS:
            text = pattern.sub(short, text)
        return text

    def _name(self, match: re.Match[str]) -> str:
        found, kind = match[0], match.lastgroup or ""
        if kind == "read":
            kind = self._functions[found]
        key = f"{kind} {found}"
        if key not in self._numbers:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[key] = f"<{kind} {self._counts[kind]}>"
        return self._numbers[key]


def _forms(value: Any) -> Iterable[str]:
    """Return the texts by which a program may have put a reading into a prompt or an argument."""
    found: set[str] = set()
    if isinstance(value, Mapping):
        data = plain_bytes(value)
        data = data.encode() if isinstance(data, str) else data
        found.update(
            # These bytes may belong to a UUID generated from them, which is always named as such.
            (*(() if re.fullmatch(_UUID, data.hex()) else (data.hex(),)), urlsafe_b64encode(data).decode().rstrip("="))
            if isinstance(data, bytes)
            else _forms(plain(value))
        )
    elif isinstance(value, list):
        for one in value:
            found.update(_forms(one))
    elif isinstance(value, str):
        found.add(value)
        if re.fullmatch(_UUID, value):
            found.add(value.replace("-", ""))
        if re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", value):
            date, clock = value[:10], value[11:]
            found.update(
                (
                    f"{date} {clock}",
                    f"{date}T{clock}",
                    date,
                    value[:19],
                    f"{date} {clock[:8]}",
                    clock[:8],
                    f"{date} {clock[:5]}",
                )
            )
    elif type(value) in (int, float):
        found.add(json.dumps(value))
        found.add(str(int(value)))
    return {form for form in found if len(form) >= _SHORTEST}
