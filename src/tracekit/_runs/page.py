"""Runs as one self-contained HTML file: a summary as text, and every step as data for the script that displays it.

Recorded content is data in the page, never markup and never code: it is in one JSON block without any ``<``, the script
inserts it only as text, and the page's content security policy allows no other script, no style and no address. Each
text is stored once, however often it occurs; a prompt is stored as its changes since the previous turn.

The data, for :func:`page` and its script (``page.js``)::

    {"runs": [{"id", "name", "lanes": [label, …], "steps": [step, …]}, …],
     "texts": [text or [its beginning, its length], …], "messages": [message, …],
     "diffs": {"old:new": [unit, [sign, count], …]}, "comparison": null or {"same", "steps", "ends"}}

* a *value* is JSON in which ``"\\u0001N"`` is the text number N, and ``"\\u0002…"`` a number that JavaScript could not
  represent; an object with ``"\\u0001N"`` as its only key is an instance of the class named by text N, and
  ``"\\u0002"`` before a key escapes it;
* *edits* turn one list of messages into the next: ``["=", count]``, ``["-", count]``, ``["+", message, …]``, ``["~",
  message, …]`` (replacing as many others).
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import orjson

from .. import _reality
from .._runtime.prices import why_unpriced
from .._runtime.verdict import Judgement
from .._version import __version__
from .reading import (
    Edit,
    FileView,
    ModelCall,
    PromptMessage,
    RunView,
    StepView,
    alignment,
    alike,
    class_of,
    count_of,
    error_text,
    plain,
    turn_before,
)
from .wording import (
    FRAME,
    asked_text,
    brief,
    dollars,
    duration,
    facts_of,
    local_time,
    plural,
    printable,
    raised_lines,
    result_text,
    short,
    usage_text,
)

if TYPE_CHECKING:
    from .comparing import RunComparison, StepDifference

__all__ = ["GENERATOR", "badge", "head", "page", "safe", "summary", "whole_page"]

#: The beginning of tracekit's pages, by which code that is about to overwrite one recognises it.
GENERATOR: Final = '<!doctype html>\n<html lang="en"><head><meta name="generator" content="tracekit'

#: A longer text (in characters) is stored as its beginning, with its length; and the length from which a text in a
#: value is stored once.
_LONGEST: Final = 100_000
_SHARED: Final = 64
#: The most pieces stored of one stream.
_PIECES: Final = 1000
#: Texts with more lines, or words, are not compared line by line.
_COMPARED: Final = 4000
#: The width of a step's line, for each of its two halves.
_ROOM: Final = 110
#: JavaScript can't represent integers beyond this exactly.
_SAFE: Final = 2**53


def page(
    runs: Sequence[RunView],
    comparison: RunComparison | None = None,
    *,
    answers: Sequence[Mapping[str, Any]] = (),
    whole: bool = False,
    walked: Callable[[Sequence[StepView]], Iterable[StepView]] = iter,
) -> str:
    """Return the HTML of these runs, and of the ``comparison`` of two of them. ``whole`` cuts no text and omits no
    piece of a stream.

    ``answers`` explain, for each run, what happened and why (``tracekit show --why``). ``walked`` iterates over the
    steps of a file, for a caller that shows the progress.
    """
    data = _Data(whole)
    found = [data.run(one, walked) for one in runs]
    content: dict[str, Any] = {
        "tracekit": __version__,
        "runs": found,
        "comparison": None if comparison is None else data.comparison(comparison, runs),
        "texts": data.texts,
        "messages": data.messages,
        "diffs": data.diffs,
    }
    heads = [head(one, answers[number] if number < len(answers) else {}) for number, one in enumerate(runs)]
    names = " · ".join(dict.fromkeys(one.name for one in runs))
    return _document(f"{names} – tracekit", heads, content)


def _document(title: str, heads: Sequence[str], content: Mapping[str, Any]) -> str:
    script = _resource("page.js")
    sections = "".join(f'<section class="run" id="run-{number}">{text}</section>' for number, text in enumerate(heads))
    body = (
        f'<header>{sections}</header>\n<main id="app"><noscript><p>The steps are shown by a script in this page; without scripts, '
        "<code>tracekit show RUN</code> prints them.</p></noscript></main>\n"
    )
    data = f'<script type="application/json" id="data">{_inert(content)}</script>\n<script>{script}</script>'
    return whole_page(title, body, f"script-src {_hash(script)}; ", data)


def whole_page(title: str, body: str, allowed: str = "", scripts: str = "") -> str:
    """Return a page that loads nothing, and runs no scripts except the ``allowed`` ones."""
    style = _resource("page.css")
    policy = (
        f"default-src 'none'; {allowed}style-src {_hash(style)}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return "".join(
        (
            f'{GENERATOR} {__version__}"><meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">\n',
            '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">\n',
            f"<title>{safe(title)}</title>\n<style>{style}</style></head>\n<body>{body}",
            f"<footer>tracekit {safe(__version__)}, {safe(local_time(_reality.time_ns()))}</footer>\n",
            f"{scripts}</body></html>\n",
        )
    )


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"


_SPECIAL: Final = re.compile("[<>&\u2028\u2029\x7f-\x9f]")


def _inert(content: Mapping[str, Any]) -> str:
    """Return JSON that contains nothing to end a script element or begin a comment or tag, whatever its texts are."""
    found = orjson.dumps(content).decode()
    return _SPECIAL.sub(lambda match: f"\\u{ord(match[0]):04x}", found)


def safe(text: object) -> str:
    """Return a text escaped for an element or an attribute."""
    return escape(printable(_encodable(str(text))))


def _encodable(text: str) -> str:
    """Return ``text`` without lone surrogates, which a UTF-8 file can't hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


# -- the head: without a script ----------------------------------------------------------------------------------------

_BADGES: Final = {
    "complete": "good",
    "running": "info",
    "failed": "bad",
    "aborted": "warn",
    "died": "warn",
    "broken": "bad",
}


def head(view: RunView, answers: Mapping[str, Any] = {}) -> str:
    """Return a description of a run as a whole, as HTML without a script: state, figures, verdict, boundary."""
    return "".join(
        (
            f"<h1>{safe(view.name)} {badge(view.state, _BADGES[view.state])}</h1>",
            f'<p class="figures"><code>{safe(view.run_id)}</code>{"".join(f"<span>{safe(one)}</span>" for one in _figures(view))}</p>',
            *_endings(view),
            '<div class="answers">',
            *_answers(answers, view.state != "complete"),
            _judged("Can it be replayed?", view.verdict.can_be_replayed),
            _judged("Is it safe to run again?", view.verdict.safe_to_run_again),
            _boundary(view),
            _doubts(view),
            "</div>",
        )
    )


def _figures(view: RunView) -> Iterator[str]:
    taken = view.taken
    if view.imported_from is not None:
        yield f"imported from {view.imported_from}"
    if view.branched_from is not None:
        yield view.branched_from
    yield f"{local_time(view.started_ns)}, {duration(view.took)}"
    if taken.calls:
        yield plural(taken.calls, "model call")
    if counted := sum(1 for _ in view.steps(kinds=("tool",))):
        yield plural(counted, "tool call")
    if taken.input_tokens or taken.output_tokens:
        yield f"{taken.input_tokens:,} + {taken.output_tokens:,} tokens"
        yield why_unpriced(taken.unpriced) if taken.cost_usd is None else dollars(taken.cost_usd)
    if len(view.files) > 1:
        yield plural(len(view.files) - 1, "child process", "es")


def badge(text: str, kind: str) -> str:
    """Return a framed word: ``kind`` is ``"good"``, ``"bad"``, ``"warn"`` or ``"info"``."""
    return f'<span class="badge {kind}">{safe(text)}</span>'


def _endings(view: RunView) -> Iterator[str]:
    """Yield how the run and its processes ended, unless that is unremarkable."""
    for file in view.files:
        of = f"process {file.process}: " if file.segment is not None else ""
        error = file.last.get("error") if file.ended is not None else None
        if error is not None:
            yield f'<p class="bad">{safe(of + short(error_text(error), 2000))}</p>'
        if file.found.state != "complete" and not (file.found.state == "incomplete" and file.live):
            kind = "bad" if file.found.state == "broken" else "warn"
            text = f"{of}{file.found.state}: {file.found.problem or 'no more is known'}"
            yield f'<p class="{kind}">{safe(text)}</p>'


def _answers(answers: Mapping[str, Any], shown: bool) -> Iterator[str]:
    """Yield the answers that are not those of the verdict, which has lines of its own; ``shown``: the first one open."""
    for key, answer in answers.items():
        if isinstance(answer, Mapping) and "answer" not in answer:
            is_open, question = " open" if shown else "", key.replace("_", " ").capitalize()
            shown = False
            yield f"<details{is_open}><summary>{safe(question)}?</summary><p>{safe(answer['text'])}</p></details>"


def _judged(question: str, found: Judgement) -> str:
    word, kind = {True: ("yes", "good"), False: ("no", "bad"), None: ("unknown", "warn")}[found.answer]
    items = "".join(f"<li>{safe(one.text)}{_references(one.facts.get('entries'))}</li>" for one in found.reasons)
    return f"<details><summary>{question} {badge(word, kind)}</summary><ul>{items}</ul></details>"


def _references(entries: object) -> str:
    named = [*entries][:20] if isinstance(entries, list | tuple) else []
    return "".join(f' <a class="ref" data-step="{safe(one)}">{safe(one)}</a>' for one in named)


def _boundary(view: RunView) -> str:
    found = [(one, crossing) for one in view.files for crossing in one.crossings.values()]
    if not found:
        return ""
    harmless = ("captured", "ambient")
    missing = sum(crossing.final_status not in harmless for _, crossing in found)
    mark = badge(f"{missing} not captured", "warn") if missing else badge("captured", "good")
    rows = "".join(
        f"<tr><td>{badge(one.final_status, 'good' if one.final_status in harmless else 'warn')}</td>"
        f"<td>{safe(one.text)}{f': {safe(one.advice)}' if one.advice else ''}"
        f"{_references([file.place(one.entry)])}</td></tr>"
        for file, one in found[:200]
    )
    more = f"<p>… {len(found) - 200} more</p>" if len(found) > 200 else ""
    return f"<details><summary>What crossed the boundary of the process {mark}</summary><table>{rows}</table>{more}</details>"


def _doubts(view: RunView) -> str:
    steps = [step for step in view.steps() if step.state == "in doubt"]
    if not steps:
        return ""
    items = "".join(
        f"<li>{safe(step.kind)} <b>{safe(step.name)}</b> {safe(asked_text(step, 200))}{_references([step.place])}</li>"
        for step in steps[:100]
    )
    return f"<details open><summary>In doubt {badge(str(len(steps)), 'bad')}</summary><ul>{items}</ul></details>"


# -- a summary for notebooks -------------------------------------------------------------------------------------------

_COLOURS: Final = {"good": "#1a7f37", "bad": "#cf222e", "warn": "#9a6700", "info": "#0969da"}


def summary(view: RunView, most: int = 200) -> str:
    """Return a run as HTML without a script, for a notebook: a summary, and a row for each of at most ``most`` steps."""
    steps = [step for step in view.steps() if step.type not in FRAME]
    rows = "".join(map(_row, steps[:most]))
    if len(steps) > most:
        rows += f'<tr><td></td><td colspan="4">… {len(steps) - most:,} more: <code>tracekit report {safe(view.run_id)}</code></td></tr>'
    verdict = view.verdict.can_be_replayed
    answer = {True: "can be replayed", False: "can't be replayed", None: "may be replayable"}[verdict.answer]
    reasons = "; ".join(one.text for one in verdict.reasons)
    figures = " · ".join(safe(one) for one in _figures(view))
    colour = _COLOURS[_BADGES[view.state]]
    return (
        f'<div><b>{safe(view.name)}</b> <span style="color:{colour}">{safe(view.state)}</span> <code>{safe(view.run_id)}</code><br>'
        f'{figures}<br><span title="{safe(reasons)}">{answer}</span>{"".join(_endings(view))}'
        f"<details{' open' if len(steps) <= 12 else ''}><summary>{plural(len(steps), 'step')}</summary>"
        f'<table><thead><tr><th>step</th><th>kind</th><th style="text-align:left">what</th><th>took</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></details></div>"
    )


def _row(step: StepView) -> str:
    call = step.call
    name = f"<b>{safe(step.name)}</b>" if step.name != step.kind else ""
    outcome = safe(_outcome_text(step, call))
    if step.failed or step.state in ("in doubt", "cut off"):
        outcome = f'<span style="color:{_COLOURS["bad"]}">{outcome}</span>'
    what = f"{name} {safe(_request_text(step, call))}{f' → {outcome}' if outcome else ''}"
    took = duration(step.took) if step.calls and step.outcome is not None else ""
    return f'<tr><td>{safe(step.place)}</td><td>{safe(step.kind)}</td><td style="text-align:left">{what}</td><td>{took}</td></tr>'


def _request_text(step: StepView, call: ModelCall | None) -> str:
    if step.kind == "boundary":
        return short(step.file.crossings[step.seq].text, _ROOM)
    return asked_text(step, _ROOM, call)


def _outcome_text(step: StepView, call: ModelCall | None) -> str:
    if step.kind == "boundary":
        one = step.file.crossings[step.seq]
        return f"{one.final_status}{', unattributed' if one.unattributed else ''}"
    if step.kind in ("clock", "random") and (values := step.values):
        return brief(values[0], 40) if len(values) == 1 else f"× {len(values)}"
    state = step.state
    if state == "failed":
        return short(step.error, _ROOM)
    if state not in ("done", "answered before"):
        return state
    return "" if step.kind == "span" or not (step.has_output or step.chunks) else result_text(step, _ROOM, call)


# -- the data ----------------------------------------------------------------------------------------------------------


class _Data:
    """Collects the data of a page: texts and messages are stored once, and referred to by number."""

    def __init__(self, whole: bool) -> None:
        self.texts: Final[list[str | list[Any]]] = []
        self.messages: Final[list[dict[str, Any]]] = []
        self.diffs: Final[dict[str, list[Any] | None]] = {}
        self._whole: Final = whole
        self._numbers: Final[dict[str, int]] = {}
        self._known: Final[dict[str, int]] = {}
        self._originals: Final[list[PromptMessage]] = []
        #: The number of a step among the page's steps, by its place in its run.
        self._steps: Final[list[dict[int | str, int]]] = []

    # -- values --------------------------------------------------------------------------------------------------------

    def text(self, text: str) -> int:
        """Return the number of a text."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            encodable = _encodable(text)
            cut = len(encodable) > _LONGEST and not self._whole
            self.texts.append([encodable[:_LONGEST], len(encodable)] if cut else encodable)
        return found

    def value(self, value: Any) -> Any:
        """Return a readable value (see :func:`~tracekit._runs.reading.plain`) in the page's form."""
        if isinstance(value, str):
            return (
                f"\x01{self.text(value)}"
                if len(value) >= _SHARED or value[:1] in ("\x01", "\x02")
                else _encodable(value)
            )
        if isinstance(value, Mapping):
            return {self._key(str(key)): self.value(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        if isinstance(value, float):
            return value if math.isfinite(value) and value != int(value) else f"\x02{value!r}"
        if isinstance(value, int) and not isinstance(value, bool):
            return value if abs(value) < _SAFE else f"\x02{value}"
        return value if value is None or isinstance(value, bool) else self.value(repr(value))

    def _key(self, key: str) -> str:
        key = _encodable(key)
        return f"\x02{key}" if key[:1] in ("\x01", "\x02") else key

    def plain(self, tree: Any) -> Any:
        """Return a recorded value in the page's form, with the class of an object."""
        kind = class_of(tree)
        found = self.value(plain(tree))
        return {f"\x01{self.text(kind)}": found} if kind is not None and isinstance(found, dict) else found

    def message(self, message: PromptMessage) -> int:
        """Return the number of a message."""
        key = repr(message)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.messages)
            self._originals.append(message)
            about = {
                "role": _encodable(message.role),
                "text": self.text(message.text) if message.text else None,
                "asks": [self._request(one.name, one.arguments) for one in message.requests],
                "answers": message.answers and _encodable(message.answers),
                "others": [_encodable(one) for one in message.others],
            }
            self.messages.append({name: one for name, one in about.items() if one not in (None, [], "")})
        return found

    def _request(self, name: str, arguments: Any) -> list[Any]:
        return [_encodable(name), self.value(arguments)]

    def diff(self, before: str, now: str) -> str:
        """Return the name of the difference of two texts: the lines, or for single lines the words, that only one of
        them has."""
        key = f"{self.text(before)}:{self.text(now)}"
        if key not in self.diffs:
            self.diffs[key] = _differing(before, now)
        return key

    # -- prompts -------------------------------------------------------------------------------------------------------

    def _edits(self, old: Sequence[int], new: Sequence[int]) -> list[list[Any]]:
        same = lambda i, j: alike(self._originals[old[i]], self._originals[new[j]])  # noqa: E731
        found = _Edits()
        for op, i, j in alignment(old, new, same):
            found.add(op, None if j is None else new[j])
            if op == "changed" and i is not None and j is not None:
                self.diff(self._originals[old[i]].text, self._originals[new[j]].text)
        return found.found

    def _edits_of(self, edits: Iterable[Edit]) -> list[list[Any]]:
        """Return these edits in the page's form."""
        found = _Edits()
        for edit in edits:
            found.add(edit.op, None if edit.now is None else self.message(edit.now))
            if edit.op == "changed" and edit.before is not None and edit.now is not None:
                self.diff(edit.before.text, edit.now.text)
        return found.found

    # -- runs ----------------------------------------------------------------------------------------------------------

    def run(self, view: RunView, walked: Callable[[Sequence[StepView]], Iterable[StepView]]) -> dict[str, Any]:
        """Return one run in the page's form."""
        lanes: dict[tuple[str | None, int], int] = {}
        labels: list[str] = []
        steps: list[dict[str, Any]] = []
        places: dict[int | str, int] = {}
        self._steps.append(places)
        for file in view.files:
            numbers: dict[int, int] = {}
            turns = _Turns(self)
            for step in walked([*file.steps.values()]):
                if step.type in FRAME:
                    continue
                lane = lanes.get((file.segment, step.lane_number))
                if lane is None:
                    lane = lanes[file.segment, step.lane_number] = len(labels)
                    labels.append(_encodable(" ".join(filter(None, (file.process, step.lane.path))) or "main"))
                numbers[step.seq] = places[step.place] = len(steps)
                about = self._step(view, step, turns, len(steps))
                inside = numbers.get(getattr(file.step_at(step.parent), "seq", 0))
                steps.append({**about, "lane": lane, **({} if inside is None else {"in": inside})})
        return {
            "id": _encodable(view.run_id),
            "name": _encodable(view.name),
            "began": view.started_ns // 1000,
            "took": view.took,
            "lanes": labels,
            "steps": steps,
            **{
                name: self.plain(view.own.source.expand(entry[key], before=entry["seq"]))
                for name, entry, key in (("given", view.own.first, "input"), ("result", view.own.last, "output"))
                if key in entry and entry["type"].startswith("run.")
            },
        }

    def _step(self, view: RunView, step: StepView, turns: _Turns, number: int) -> dict[str, Any]:
        call = step.call
        state = step.state
        about: dict[str, Any] = {
            "at": step.place,
            "kind": _encodable(step.kind),
            "name": _encodable(step.name) if step.name != step.kind else "",
            "state": "" if state == "done" else state,
            "t": step.ts_ns - view.started_ns,
            "took": step.took if step.calls and step.outcome is not None else None,
            "asked": _encodable(_request_text(step, call)),
            "came": _encodable(_outcome_text(step, call)),
            "agent": _encodable(step.agent or ""),
            "class": step.side_effect if step.side_effect and step.kind in ("tool", "http", "process") else "",
            "quiet": int(step.bookkeeping),
            "facts": [[name, self.value(text)] for name, text in facts_of(view, step) if name not in ("run", "state")],
        }
        if step.failed:
            about["error"] = self.value(step.error or "")
            if isinstance(failure := step.ended_with.get("failure"), Mapping):
                about["facts"] += [[name, self.value(plain(failure[name]))] for name in _OF_FAILURES if name in failure]
            about["facts"] += [
                ["" if number else "raised at", self.value(line)] for number, line in enumerate(raised_lines(step))
            ]
        if call is not None:
            about["call"] = self._call(call, turns, number)
        elif step.input is not None:
            about["input"] = self.plain(step.input)
        if step.chunks:
            about["stream"] = self._stream(step)
        if step.has_output and (call is None or self._whole):
            about["output"] = self.plain(step.output)
            about["returned"] = 1
        if step.values:
            about["values"] = self.value([plain(one) for one in step.values])
        return {name: one for name, one in about.items() if one not in (None, "", [], 0) or name in ("t", "output")}

    def _stream(self, step: StepView) -> dict[str, Any]:
        """Return the pieces of a stream; for a model's answer only their number, since its text is assembled."""
        first = step.file.source.entry(step.chunks[0])
        about: dict[str, Any] = {"count": len(step.chunks), "first": first["ts_ns"] - step.ts_ns}
        if step.call is None or self._whole:
            about["pieces"] = [self.plain(one) for one in step.pieces(None if self._whole else _PIECES)]
        return about

    def _call(self, call: ModelCall, turns: _Turns, number: int) -> dict[str, Any]:
        prompt, answer = call.prompt, call.answer
        previous, edits = turns.take(call.step, number, [self.message(one) for one in prompt.messages])
        usage = call.usage
        about: dict[str, Any] = {
            "model": _encodable(call.model),
            "previous": previous,
            "edits": edits,
            "tools": [_encodable(one) for one in prompt.tools],
            "parameters": self.value(dict(prompt.parameters)),
            "text": self.text(answer.text) if answer.text else None,
            "reasoning": self.text(answer.reasoning) if answer.reasoning else None,
            "refusal": self.text(answer.refusal) if answer.refusal else None,
            "asks": [self._request(one.name, one.arguments) for one in call.requested],
            "tokens": [count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))] if usage else None,
            "cost": None if call.cost_usd is None else dollars(call.cost_usd),
            "usage": usage_text(call),
        }
        return {name: one for name, one in about.items() if one not in (None, [], {}, "")}

    # -- differences -----------------------------------------------------------------------------------------------------

    def comparison(self, found: RunComparison, runs: Sequence[RunView]) -> dict[str, Any]:
        """Return the differences between two of the runs in the page's form."""
        sides = [runs.index(found.before), runs.index(found.now)]
        ends = [
            {"process": _encodable(_process(one.before or one.now)), "fields": self._fields(one.fields)}
            for one in found.ends
        ]
        steps = [self._difference(one, sides) for one in found.steps]
        return {"runs": sides, "same": found.same, "steps": steps, "ends": ends}

    def _difference(self, one: StepDifference, sides: Sequence[int]) -> dict[str, Any]:
        about: dict[str, Any] = {"op": one.op, "fields": self._fields(one.fields)}
        for name, side, step in (("before", sides[0], one.before), ("now", sides[1], one.now)):
            if step is not None:
                about[name] = self._steps[side].get(step.place, -1)
        if one.prompt is not None:
            about["edits"] = self._edits_of(one.prompt.messages)
        return about

    def _fields(self, fields: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for one in fields:
            about = {"path": _encodable(str(one.get("path", "")))}
            about |= {side: self.value(plain(one[side])) for side in ("recorded", "actual") if side in one}
            before, now = one.get("recorded"), one.get("actual")
            if isinstance(before, str) and isinstance(now, str) and max(len(before), len(now)) >= _SHARED:
                about["diff"] = self.diff(before, now)
            found.append(about)
        return found


_OF_FAILURES: Final = ("type", "recoverable", "recovery_strategy")


class _Edits:
    """Edits, with consecutive ones of one kind merged."""

    def __init__(self) -> None:
        self.found: Final[list[list[Any]]] = []

    def add(self, op: str, message: int | None) -> None:
        sign = {"same": "=", "removed": "-", "added": "+", "changed": "~"}[op]
        if not self.found or self.found[-1][0] != sign:
            self.found.append([sign, 0] if sign in "=-" else [sign])
        if sign in "=-":
            self.found[-1][1] += 1
        else:
            self.found[-1].append(message)


class _Turns:
    """The model calls of one file, by lane; finds for each call the earlier one with which it shares most messages, and
    the changes."""

    def __init__(self, data: _Data) -> None:
        self._data: Final = data
        self._lanes: Final[dict[int, deque[tuple[int, list[int]]]]] = {}

    def take(self, step: StepView, number: int, messages: list[int]) -> tuple[int | None, list[list[Any]]]:
        """Return the number of the previous turn (``None``: a conversation begins) and the edits since then."""
        calls = self._lanes.setdefault(step.lane_number, deque(maxlen=32))
        earlier = (((there, former), Counter(former)) for there, former in reversed(calls))
        found = turn_before(Counter(messages), earlier)
        calls.append((number, messages))
        if found is None:
            return None, self._data._edits([], messages)
        return found[0], self._data._edits(found[1], messages)


def _process(file: FileView | None) -> str:
    return "" if file is None else file.process


_WORDS: Final = re.compile("[ \t\r\n]+|[^ \t\r\n]+")


def _differing(before: str, now: str) -> list[Any] | None:
    unit = "line" if "\n" in before or "\n" in now else "word"
    old, new = (one.split("\n") if unit == "line" else _WORDS.findall(one) for one in (before, now))
    if max(len(old), len(new)) > _COMPARED or max(len(before), len(now)) > _LONGEST:
        return None
    found: list[Any] = [unit]
    for op, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if op == "equal":
            found.append(["=", j - i])
            continue
        found += [["-", j - i]] if j > i else []
        found += [["+", m - k]] if m > k else []
    return found
