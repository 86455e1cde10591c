"""``regress``: replays a corpus of recorded runs against today's code, each in a process of its own.

The corpus is a list of names (ids, paths, patterns, URLs) and a query. Each run is replayed by a fork of a warm server
process (:mod:`tracekit.cli.forkserver`); several servers work in parallel, here or wherever an executor puts them. The
replies are judged in this process, from facts alone, so that results don't depend on the order in which runs are
replayed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from glob import escape, glob
from importlib import import_module
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final, Literal, NamedTuple, get_args
from xml.etree import ElementTree

import orjson

from .. import _reality
from .._capture.plugins import recorded_credentials
from .._journal.entry import meta_of
from .._journal.store import SUFFIX, Store, entries_of, file_name, first_entry, is_segment, store_named, summary
from .._runtime.redaction import Redactor
from ..errors import RunNotFoundError, RunStateError, TracekitError
from .comparing import changes
from .environment import cores_here
from .failures import recorded_failures
from .page import badge, safe, whole_page
from .reading import read_run, taken_in
from .remote import fetched_run, fetched_store, is_url, runs_at
from .replay import kinds_that_go_live
from .wording import both_sides, dollars, plural, short

__all__ = ["CorpusReport", "Group", "JudgedRun", "Query", "State", "asks_models", "regress", "state_count"]

State = Literal["same", "differs", "not replayable", "crashed", "timed out"]
#: The order in which states are reported.
_STATES: Final[tuple[State, ...]] = ("crashed", "timed out", "differs", "not replayable", "same")

# -- which runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """Selects runs of a store, or among those that are named. Fields left empty select everything.

    - ``names``, ``agents``, ``models``: patterns (``nightly*``), one of which must match.
    - ``ended``: ``"complete"``, ``"failed"``, ``"aborted"`` or ``"open"`` (without an end).
    - ``failure``: a failure type that occurs in the run, or ``"any"``.
    - Costs are in US dollars; a run of unknown cost matches no limit.
    """

    names: tuple[str, ...] = ()
    since: datetime | None = None
    before: datetime | None = None
    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    failure: str | None = None
    min_cost: float | None = None
    max_cost: float | None = None

    @property
    def everything(self) -> bool:
        """Whether the query selects everything."""
        return self == Query()

    def matches(self, path: str) -> bool:
        """Return whether the run in this file is selected; nothing is known of what is no file (a pipe)."""
        if not os.path.isfile(path):
            return False
        run = summary(path)
        ended = "open" if run.end is None else run.end.removeprefix("run.").replace("completed", "complete")
        if not (
            _fits(run.name or "", self.names)
            and (not self.ended or ended in self.ended)
            and (self.since is None or run.started_ns >= self.since.timestamp() * 1e9)
            and (self.before is None or run.started_ns < self.before.timestamp() * 1e9)
        ):
            return False
        if self.agents and not any(_fits(one, self.agents) for one in _agents_in(path)):
            return False
        if self.models and not any(_fits(one, self.models) for one in _models_in(path)):
            return False
        return self._failed(path) and self._paid(path)

    def _failed(self, path: str) -> bool:
        if self.failure is None:
            return True
        kind = None if self.failure == "any" else self.failure
        return next(recorded_failures(path, type=kind, on_damage=lambda error: None), None) is not None

    def _paid(self, path: str) -> bool:
        if self.min_cost is None and self.max_cost is None:
            return True
        cost = taken_in(path).cost_usd
        if cost is None:  # the price of a model is unknown
            return False
        return (self.min_cost is None or cost >= self.min_cost) and (self.max_cost is None or cost <= self.max_cost)


def _fits(text: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


def _agents_in(path: str) -> set[str]:
    with suppress(OSError, TracekitError):
        return {str(entry["agent_id"]) for entry in entries_of(path, marked=b'"agent_id":') if "agent_id" in entry}
    return set()


def _models_in(path: str) -> set[str]:
    found = set()
    with suppress(OSError, TracekitError):
        for entry in entries_of(path, marked=b'"type":"llm.request"'):
            found.add(str(meta_of(entry).get("model") or entry.get("name")))
    return found


class _Source(NamedTuple):
    """One run of the corpus: its name in the report, and its path or URL."""

    run: str
    place: str


def _sources(runs: Sequence[str], store: Store, query: Query) -> list[_Source]:
    """Return the selected runs, each once, in the order in which they are named; those of a store oldest first."""
    places: dict[str, str] = {}
    for one in runs:
        for place in _places(one, store):
            places.setdefault(place if is_url(place) else os.path.realpath(place), place)
    if not runs:
        places = {place: place for place in store.paths()}
    found = [*places.values()]
    if not query.everything:
        found = [place for place in found if query.matches(fetched_run(place) if is_url(place) else place)]
    return [_Source(file_name(place).stem, place) for place in found]


def _places(run: str, store: Store) -> list[str]:
    if is_url(run):
        found = runs_at(run)
    elif os.path.isdir(run):
        below = os.path.join(run, "runs")
        found = sorted(glob(os.path.join(escape(below if os.path.isdir(below) else run), f"*{SUFFIX}")))
    elif any(sign in run for sign in "*?["):
        found = sorted(glob(run, recursive=True))
    elif run == "last":
        found = [one.path for one in store.list()[:1]]
    else:
        return [os.path.abspath(run) if os.path.isfile(run) else store.find(run)]
    found = [one for one in found if not is_segment(one)]
    if not found:
        raise RunNotFoundError(
            f"there is no run at {run}", run=run, next_action="`tracekit list` shows those of a store"
        )
    return [one if is_url(one) else os.path.abspath(one) for one in found]


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedRun:
    """The result of one run: its ``state`` and, unless that is ``"same"``, the reason.

    ``text`` is the first difference (or the reason) as a sentence; ``step`` and ``location`` (``file:line`` in today's
    code) say where it is; ``kind`` and ``name`` are those of the step; ``differences`` lists its fields, each with
    ``path``, ``recorded`` and ``actual``. ``group`` is equal for runs with the same cause. ``verdict`` is the replay's
    verdict as one line, ``output`` the end of the program's output. With live steps, ``changes`` lists what differs:
    ``calls``, ``decisions``, ``result``, and the models' usage then and now.
    """

    run: str
    place: str
    state: State
    text: str = ""
    code: str | None = None
    step: int | None = None
    location: str | None = None
    kind: str | None = None
    name: str | None = None
    differences: tuple[Mapping[str, Any], ...] = ()
    group: str = ""
    verdict: str = ""
    steps: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    output: str = ""
    changes: Mapping[str, Any] | None = None

    @property
    def beside(self) -> tuple[Mapping[str, Any], ...]:
        """Those ``differences`` that ``text`` doesn't show itself: the text of a divergence has a line for each field."""
        own = {line.strip() for line in self.text.splitlines()[1:]}
        return () if any(f"{one.get('path') or 'value'}:" in own for one in self.differences) else self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        found = asdict(self)
        found["differences"] = [dict(one) for one in self.differences]
        return found


#: How calls can differ, in the order in which they are counted.
_OPS: Final = ("added", "dropped", "changed", "moved", "not reached")


def _summed(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    calls = Counter(one["op"] for changes in found for one in changes["calls"])
    return {
        "compared": len(found),
        "calls": {op: calls[op] for op in _OPS},
        "cut_off": sum(any(one.get("answered") is False for one in changes["calls"]) for changes in found),
        "decisions": sum(len(changes["decisions"]) for changes in found),
        "results": sum(bool(changes["result"]) for changes in found),
        "recorded": _taken([changes["recorded"] for changes in found]),
        "now": _taken([changes["now"] for changes in found]),
    }


def _taken(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    costs = [one["cost_usd"] for one in found]
    return {
        **{name: sum(one[name] for one in found) for name in ("calls", "input_tokens", "output_tokens")},
        "cost_usd": None if None in costs else sum(costs),
        "unpriced": sorted({model for one in found for model in one["unpriced"]}),
    }


class Group(NamedTuple):
    """Runs with the same state and the same first difference."""

    state: State
    text: str
    runs: tuple[JudgedRun, ...]


@dataclass(frozen=True)
class CorpusReport:
    """The results of a corpus: its ``runs`` in the order of the corpus, in whatever order they were replayed."""

    runs: tuple[JudgedRun, ...]
    #: Today's code, as it was specified; neither if each run's own program was replayed.
    entry: str | None = None
    command: tuple[str, ...] = ()
    seconds: float = 0.0
    workers: int = 1
    #: The kinds of steps that went live, and what replaced each, as text.
    live: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def against(self) -> str:
        """What the runs were replayed against, in words."""
        code = self.entry or " ".join(self.command) or "the recorded programs"
        kinds: dict[str | None, list[str]] = {}
        for kind, instead in self.live.items():
            kinds.setdefault(instead, []).append(kind)
        tried = [f"{'/'.join(some)} {'live' if to is None else f'= {to}'}" for to, some in kinds.items()]
        return f"{code} with {', '.join(tried)}" if tried else code

    @property
    def changes(self) -> dict[str, Any] | None:
        """With live steps, the sum of all runs' changes: how many calls were ``added``, ``dropped``, ``changed`` …, how
        many results and decisions differ, and the models' usage then and now."""
        return _summed([run.changes for run in self.runs if run.changes is not None]) if self.live else None

    @property
    def counts(self) -> dict[State, int]:
        """The number of runs in each state."""
        return {state: sum(run.state == state for run in self.runs) for state in get_args(State)}

    @property
    def same(self) -> bool:
        """Whether every run was replayed exactly."""
        return all(run.state == "same" for run in self.runs)

    @property
    def exit_code(self) -> int:
        """0: all same; 1: some differ, crashed or timed out; 3: some could not be replayed."""
        counts = self.counts
        if counts["differs"] or counts["crashed"] or counts["timed out"]:
            return 1
        return 3 if counts["not replayable"] else 0

    @property
    def groups(self) -> tuple[Group, ...]:
        """The runs that are not the same, grouped by first difference: the largest groups of each state first."""
        found: dict[tuple[State, str], list[JudgedRun]] = {}
        for run in self.runs:
            if run.state != "same":
                found.setdefault((run.state, run.group), []).append(run)
        groups = [Group(state, text, tuple(runs)) for (state, text), runs in found.items()]
        return tuple(sorted(groups, key=lambda one: (_STATES.index(one.state), -len(one.runs), one.text)))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "against": self.against,
            "counts": self.counts,
            "groups": [
                {"state": one.state, "text": one.text, "runs": [run.run for run in one.runs]} for one in self.groups
            ],
            "seconds": round(self.seconds, 3),
            **({} if self.changes is None else {"live": dict(self.live), "changes": self.changes}),
            "runs": [run.as_dict() for run in self.runs],
        }

    def command_for(self, run: JudgedRun) -> str:
        """Return the command that shows more about a run."""
        place = shlex.quote(run.run if run.place.endswith(f"/runs/{run.run}.jsonl") else run.place)
        if run.state == "not replayable":
            return f"tracekit show {place} --why"
        how = "" if self.entry is None else f" --entry {self.entry}"
        tried = (kind if to is None else f"{kind}={to}" for kind, to in self.live.items())
        how += "".join(f" --live {shlex.quote(one)}" for one in tried)
        return f"tracekit replay {place}{how}" + (f" -- {shlex.join(self.command)}" if self.command else "")

    def html(self) -> str:
        """Return the report as a self-contained HTML file: the effects of what was tried, each group of runs with its
        difference, and each run."""
        return _page(self)

    def junit(self) -> str:
        """Return the report as JUnit XML: a difference is a failure, a crash or timeout an error, and a run that can't
        be replayed is skipped."""
        counts = self.counts
        suite = ElementTree.Element(
            "testsuite",
            name="tracekit regress",
            tests=str(len(self.runs)),
            failures=str(counts["differs"]),
            errors=str(counts["crashed"] + counts["timed out"]),
            skipped=str(counts["not replayable"]),
            time=f"{self.seconds:.3f}",
        )
        for run in self.runs:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(self.against), name=_xml(run.run), time=f"{run.seconds:.3f}"
            )
            if run.state != "same":
                kind = {"differs": "failure", "not replayable": "skipped"}.get(run.state, "error")
                about = ElementTree.SubElement(case, kind, message=_xml(run.text.partition("\n")[0]))
                if kind != "skipped":
                    about.set("type", run.code or run.state)
                about.text = _xml(f"{_explained(run)}\nnext: {self.command_for(run)}")
            if run.output and run.state in ("crashed", "timed out"):
                ElementTree.SubElement(case, "system-out").text = _xml(run.output)
        suites = ElementTree.Element("testsuites")
        suites.append(suite)
        ElementTree.indent(suites)
        return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


#: The most differences of a run that are in JUnit XML.
_IN_JUNIT: Final = 20

#: Characters that XML 1.0 can't represent.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    return _NOT_XML.sub(" ", text)


def _explained(run: JudgedRun) -> str:
    where = [f"step {run.step}"] if run.step is not None else []
    where += [f"at {run.location}"] if run.location else []
    fields = []
    for one in run.beside[:_IN_JUNIT]:
        recorded, actual = both_sides(one, 200)
        fields.append(f"  {one.get('path')}: {recorded} -> {actual}")
    return "\n".join(filter(None, (run.text, *fields, ", ".join(where), f"run {run.place}")))


def state_count(state: State, count: int) -> str:
    """Return ``"1 differs"``, ``"2 differ"``, ``"3 same"``."""
    return f"{count} {'differ' if state == 'differs' and count > 1 else state}"


def asks_models(report: CorpusReport) -> bool:
    """Return whether model calls are live: only then does their usage say something."""
    return any(kind.partition(":")[0] == "llm" for kind in report.live)


# -- as HTML -----------------------------------------------------------------------------------------------------------

_BADGES: Final = {"same": "good", "differs": "bad", "crashed": "bad", "timed out": "warn", "not replayable": "warn"}
#: How many fields of a difference and runs of a group are shown; the rest are only counted.
_FIELDS_OF_GROUP: Final = 50
_RUNS_OF_GROUP: Final = 1000


def _page(report: CorpusReport) -> str:
    """Render the report of a corpus as HTML without scripts: what was tried and its effects, each group of runs, each
    run."""
    counts = "".join(
        f"{badge(state_count(state, count), _BADGES[state])} " for state, count in report.counts.items() if count
    )
    many = plural(len(report.runs), "run")
    head = f'<h1>{many}</h1><p class="figures">against <code>{safe(report.against)}</code> {counts}</p>'
    groups = "".join(_group_html(report, one) for one in report.groups)
    every = f"<details><summary>Each run</summary>{_table(report, report.runs)}</details>"
    body = f'<header>{head}</header>\n<main class="corpus details">{_led_to(report)}{groups}{every}</main>\n'
    return whole_page(f"{many} against {report.against} – tracekit", body)


def _led_to(report: CorpusReport) -> str:
    found = report.changes
    if found is None:
        return ""
    counted = {**found["calls"], "decisions flipped": found["decisions"], "results changed": found["results"]}
    counted["runs cut off"] = found["cut_off"]
    rows = "".join(f'<tr><td>{safe(what)}</td><td class="n">{count:,}</td></tr>' for what, count in counted.items())
    took = "".join(
        f'<tr><td>{side}</td><td class="n">{one["calls"]:,}</td><td class="n">{one["input_tokens"]:,} + {one["output_tokens"]:,}</td>'
        f'<td class="n">{safe("not known" if one["cost_usd"] is None else dollars(one["cost_usd"]))}</td></tr>'
        for side, one in (("recorded", found["recorded"]), ("now", found["now"]))
    )
    heads = "".join(f"<th>{one}</th>" for one in ("", "calls", "tokens", "cost"))
    models = f"<h3>Models</h3><table><tr>{heads}</tr>{took}</table>" if asks_models(report) else ""
    return f"<h3>What it led to</h3><table>{rows}</table>{models}"


def _group_html(report: CorpusReport, group: Group) -> str:
    first = group.runs[0]
    fields = "".join(map(_field_row, first.differences[:_FIELDS_OF_GROUP]))
    table = f"<table><tr><th>field</th><th>recorded</th><th>now</th></tr>{fields}</table>" if fields else ""
    flips = first.changes["decisions"] if first.changes is not None else ()
    behind = [f"{one['name']} (step {one['step']})" for flip in flips for one in flip["behind"]]
    ran = f"<p>Behind it ran: {safe(', '.join(behind))}</p>" if behind else ""
    many = plural(len(group.runs), "run")
    return (
        f'<h2>{badge(group.state, _BADGES[group.state])} {safe(group.text)}</h2><pre class="box">{safe(short(first.text, 2000))}</pre>'
        f"{table}{ran}<details><summary>{many}</summary>{_table(report, group.runs)}</details>"
    )


def _field_row(one: Mapping[str, Any]) -> str:
    recorded, now = map(safe, both_sides(one, 400))
    return f"<tr><td>{safe(one.get('path'))}</td><td><del>{recorded}</del></td><td><ins>{now}</ins></td></tr>"


def _table(report: CorpusReport, runs: Sequence[JudgedRun]) -> str:
    rows = "".join(_run_row(report, one) for one in runs[:_RUNS_OF_GROUP])
    more = f"<p>… {len(runs) - _RUNS_OF_GROUP:,} more: --json has all</p>" if len(runs) > _RUNS_OF_GROUP else ""
    heads = "".join(f"<th>{one}</th>" for one in ("run", "state", "step", "what", "where", "took", "more"))
    return f"<table><tr>{heads}</tr>{rows}</table>{more}"


def _run_row(report: CorpusReport, run: JudgedRun) -> str:
    counts = Counter(one["op"] for one in run.changes["calls"]) if run.changes is not None else {}
    calls = ", ".join(f"{many} {op}" for op, many in counts.items())
    cells = (
        f"<code>{safe(run.run)}</code>",
        badge(run.state, _BADGES[run.state]),
        "" if run.step is None else str(run.step),
        safe(short(run.text, 300)) + (f"<br><small>{safe(calls)}</small>" if calls else ""),
        safe(run.location or ""),
        f"{run.seconds:.2f} s",
        f"<code>{safe(report.command_for(run))}</code>",
    )
    return f"<tr>{''.join(f'<td>{one}</td>' for one in cells)}</tr>"


# -- judging -----------------------------------------------------------------------------------------------------------

#: Errors that blame the recording, or the way in which the replay was requested, rather than today's code.
_NOT_THE_CODE: Final = frozenset(
    ("run-state", "run-not-found", "trace", "trace-integrity", "trace-version", "not-replayable")
)
#: Errors with which a replay fails beyond the end of an incomplete log.
_AFTER_THE_END: Final = frozenset(("TraceExhaustedError", "LiveCallBlockedError"))
#: The group of all traces with such an error, whatever the details.
_GROUPS: Final = {
    "trace-integrity": "the trace does not verify",
    "trace-version": "the trace is of a newer version of the format",
    "run-not-found": "there is no such trace",
}
_NUMBER: Final = re.compile(r"\[\d+\]")
#: How many differing fields the name of a group lists.
_NAMED: Final = 3


def _judged(source: _Source, reply: Mapping[str, Any]) -> JudgedRun:
    """Judge a run by the reply of a server."""
    outcome = reply["outcome"] or {}
    verdicts: list[Mapping[str, Any]] = outcome.get("verdicts") or []
    facts: dict[str, Any] = {
        "verdict": "; ".join(one["line"] for one in verdicts),
        "steps": outcome.get("steps") or 0,
        "seconds": round(reply["seconds"], 6),
        "cpu": round(reply["cpu"], 6),
        "output": reply["output"],
        "changes": reply.get("changes"),
    }
    found = _found(source, reply, outcome, verdicts)
    return JudgedRun(source.run, source.place, **{**facts, **found})


def _found(
    source: _Source, reply: Mapping[str, Any], outcome: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    if reply["timed_out"]:
        return _state(
            "timed out",
            f"it had not ended after {reply['seconds']:.0f} s, and was killed",
            group="it had not ended in time",
        )
    if not outcome:
        return _died(reply)
    if "cannot" in outcome:
        return _not_replayable(source, outcome["cannot"])
    unknown = [reason for one in verdicts for reason in one["unknown"]]
    failure, raised = outcome["failure"], outcome["raised"]
    if failure is not None:
        return _failed(source, failure, unknown)
    if raised is not None:
        if raised["code"] in _NOT_THE_CODE:
            return _not_replayable(source, raised)
        text, where = f"{raised['type']}: {raised['text']}", raised["location"]
        return _state("crashed", text, code=raised["type"], location=where, group=f"{raised['type']}{_at(where)}")
    reasons = [reason for one in verdicts for reason in one["reasons"]]
    if reasons:
        return _reason("differs", reasons[0])
    if not outcome["opened"]:
        return _state("differs", "the program never opened the run", group="the program never opened the run")
    if unknown:
        return _reason("not replayable", unknown[0])
    if outcome["code"] is None:
        text = "nothing in it moved any more, and it was ended"
        return _state("timed out", text, group=text)
    if outcome["code"] == 0 and reply.get("changes") is not None:
        return _changed(reply["changes"])
    return _state("same", "") if outcome["code"] == 0 else _died(reply)


def _changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Judge a run with live steps that reached its end: other actions of the program are differences, other words of a
    model are not."""
    flips, calls, result = changes["decisions"], changes["calls"], changes["result"]
    if flips:
        one, how = flips[0], "decided otherwise"
    elif calls:
        one, how = calls[0], calls[0]["op"]
    elif result:
        one, how = {"kind": "result", "name": None, "differences": result}, "another one"
    elif changes["plans"]:
        one, how = {"kind": "decisions", "name": None}, "others"
    else:
        return _state("same", "")
    named = " ".join(filter(None, (one["kind"], one["name"])))
    fields = one.get("differences") or ()
    paths = list(dict.fromkeys(_NUMBER.sub("[]", str(field.get("path"))) for field in fields))
    shown = f" in {', '.join(paths[:_NAMED])}" if any(paths) else ""
    more = len(flips) + len(calls) - 1
    text = f"{named}: {how}{shown}" + (f", and {more} more" if more > 0 else "")
    step = one.get("step")
    return _state(
        "differs",
        text,
        code="changed",
        step=step if type(step) is int else None,
        kind=one["kind"],
        name=one["name"],
        differences=tuple(fields) or _both(one),
        group=f"{named}: {how}{shown}",
    )


def _both(one: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return the recorded and the actual decision as a difference; nothing for a call that exists on one side only."""
    return ({"path": "output", "recorded": one["recorded"], "actual": one["actual"]},) if "actual" in one else ()


def _not_replayable(source: _Source, why: Mapping[str, Any]) -> dict[str, Any]:
    group = _GROUPS.get(why["code"]) or _without_names(source, why["text"])
    return _state("not replayable", why["text"], code=why["code"], location=why.get("location"), group=group)


def _state(state: State, text: str, **facts: Any) -> dict[str, Any]:
    return {"state": state, "text": text, **facts}


def _reason(state: State, reason: Mapping[str, Any]) -> dict[str, Any]:
    where, step = reason.get("where"), reason.get("step")
    found = reason.get("differences")
    return _state(
        state,
        reason["text"],
        code=reason["code"],
        step=step if type(step) is int else None,
        location=where,
        differences=tuple(found) if isinstance(found, list) else (),
        group=f"{reason['code'].replace('_', ' ')}{_at(where)}",
    )


def _died(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Judge a run whose process ended without reporting on the replay."""
    how = f"signal {-reply['exit']}" if reply["exit"] < 0 else f"exit code {reply['exit']}"
    last = next((line.strip() for line in reversed(reply["output"].splitlines()) if line.strip()), "")
    text = f"its process ended with {how}" + (f": {last}" if last else "")
    return _state("crashed", text, code="died", group=f"its process ended with {how}")


def _failed(source: _Source, failure: Mapping[str, Any], unknown: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    text, code = str(failure["text"]), failure["code"]
    if code in _NOT_THE_CODE:
        return _state("not replayable", text, code=code, step=failure["step"], group=_without_names(source, text))
    open_end = next((one for one in unknown if one["code"] == "incomplete"), None)
    if open_end is not None and failure["type"] in _AFTER_THE_END:
        return _reason("not replayable", open_end)
    step = " ".join(filter(None, (failure["kind"], failure["name"])))
    # A difference at a step is one of the code, whatever else the recording lacks.
    if (failure["type"] == "LiveCallBlockedError" or not step) and (why := _lacks(source)) is not None:
        return _state("not replayable", why, code=code, location=failure["location"], group=why)
    paths = list(dict.fromkeys(_NUMBER.sub("[]", str(one.get("path"))) for one in failure["differences"] or ()))
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    what = {
        "TraceExhaustedError": "not in the recording",
        "UnconsumedStepsError": "never asked for",
        "LiveCallBlockedError": "would be live",
    }.get(failure["type"], f"{', '.join(paths[:_NAMED])}{more}")
    if step and (what or paths):
        group = f"{step}: {what}"
    else:
        group = _without_names(source, text.partition("\n")[0])
    return _state(
        "differs",
        text,
        code=code,
        step=failure["step"],
        location=failure["location"],
        kind=failure["kind"],
        name=failure["name"],
        differences=tuple(failure["differences"] or ()),
        group=f"{group}{_at(failure['location'])}",
    )


def _lacks(source: _Source) -> str | None:
    """Return why the recording can't be replayed at all, if it says so itself."""
    if is_url(source.place):
        return None
    with suppress(TracekitError, OSError), read_run(source.place, Store.of(source.place)) as run:
        answer = run.verdict.can_be_replayed
        return answer.text if answer.answer is False else None
    return None


def _at(location: str | None) -> str:
    if not location:
        return ""
    file, _, line = location.rpartition(":")
    return f" (at {os.path.relpath(file) if os.path.isabs(file) else file}:{line})"


def _without_names(source: _Source, text: str) -> str:
    """Remove what differs from run to run from a reason, so that equal reasons form one group."""
    return text.replace(source.place, "the trace").replace(source.run, "the run")


# -- servers -----------------------------------------------------------------------------------------------------------


class _Gone(Exception):
    """A server ended without an answer."""


class _Server:
    """A warm process that replays one run at a time, each in a fork of itself."""

    def __init__(self, how: Mapping[str, Any], seed: str | None) -> None:
        self.seed: Final = seed
        try:
            self._process = self._started(how, warm=True)
        except _Gone:
            self._process = self._started(how, warm=False)

    def _started(self, how: Mapping[str, Any], *, warm: bool) -> subprocess.Popen[bytes]:
        variables = {**os.environ, "TRACEKIT_LAUNCH": orjson.dumps({**how, "warm": warm}).decode()}
        if self.seed is not None:
            variables["PYTHONHASHSEED"] = self.seed
        options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        process = subprocess.Popen(
            [sys.executable, *options, "-m", "tracekit.cli.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if warm else None,
            env=variables,
            cwd=how["cwd"],
            start_new_session=True,  # an interrupt from the terminal is for the caller alone
        )
        self._process = process
        if not self._line():
            self.close()
            raise _Gone
        return process

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Have a run replayed. Raises ``_Gone`` if the server ends meanwhile."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(orjson.dumps(job) + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise _Gone from None
        line = self._line()
        if not line.endswith(b"\n"):
            raise _Gone
        found: dict[str, Any] = orjson.loads(line)
        return found

    def close(self) -> None:
        """End the server and the replay it is running. Idempotent."""
        with suppress(OSError, ValueError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()
        self._process.stdout.close()  # type: ignore[union-attr]


class _Judge:
    """Replays runs one after the other, each with a server that has the hash seed under which the run was recorded."""

    def __init__(self, how: Mapping[str, Any]) -> None:
        self._how: Final = how
        self._server: _Server | None = None
        self._lock: Final = _reality.OwnLock()
        self._closed = False
        #: The store for the new runs that are written if steps go live.
        self._branches: Final = TemporaryDirectory(prefix="tracekit-") if how["options"]["live"] else None

    def __enter__(self) -> _Judge:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, whatever it is doing. Idempotent."""
        with self._lock:
            self._closed, server, self._server = True, self._server, None
        if server is not None:
            server.close()
        if self._branches is not None:
            self._branches.cleanup()

    def judge(self, place: str) -> dict[str, Any]:
        """Return the reply for the run at this place."""
        try:
            path = fetched_run(place) if is_url(place) else Store(self._how["store"]).find(place)
            run = file_name(path).stem
            job = {"path": path, "run": run, "store": self._how["store"], "timeout": self._how["timeout"]}
            job["branches"] = None if self._branches is None else self._branches.name
            seed = _seed_of(path)
        except (OSError, TracekitError) as error:
            code, text = getattr(error, "code", "trace"), getattr(error, "what", str(error))
            return {**_NO_REPLY, "outcome": {"cannot": {"code": code, "text": text}}}
        for _ in range(2):
            server = self._of_seed(seed)
            try:
                reply = server.ask(job)
                return reply if self._branches is None else {**reply, "changes": self._changes(path, reply)}
            except _Gone:  # nothing is known about this run yet: try once more, with another server
                with self._lock:
                    if self._closed:
                        raise
                    self._server = None
                server.close()
        return {**_NO_REPLY, "output": "twice, the process that replays runs has ended with it"}

    def _changes(self, path: str, reply: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what differs in the new run; ``None`` if there is none, or it was cut off."""
        assert self._branches is not None
        made = Store(self._branches.name)
        outcome = reply["outcome"] or {}
        new, failure = outcome.get("new_run"), outcome.get("failure")
        if new is None or reply["timed_out"]:
            return None
        ended = None
        if failure is not None:
            about = {"kind": failure["kind"], "name": failure["name"], "step": failure["step"]}
            ended = {**about, "differences": failure["differences"] or [], "input": failure["input"]}
        try:
            with read_run(path, Store.of(path)) as before, read_run(made.find(new), made) as now:
                return changes(before, now, ended, crashed=outcome.get("raised") is not None)
        except (OSError, TracekitError):  # it was cut off while being written
            return None
        finally:
            for file in (made.path(new), *made.segments(new)):
                with suppress(OSError):
                    os.unlink(file)

    def _of_seed(self, seed: str | None) -> _Server:
        server = self._server
        if server is None or server.seed != seed:
            if server is not None:
                server.close()
            try:
                server = _Server(self._how, seed)
            except _Gone:
                raise RunStateError(
                    "no process could be started to replay runs in",
                    next_action="see what it printed, above; `tracekit replay RUN` shows more",
                ) from None
            with self._lock:
                self._server = server
                if not self._closed:
                    return server
            server.close()
            raise _Gone
        return server


_NO_REPLY: Final = {"outcome": None, "exit": 1, "timed_out": False, "seconds": 0.0, "cpu": 0.0, "output": ""}


def _seed_of(path: str) -> str | None:
    """Return ``PYTHONHASHSEED`` as recorded."""
    about = meta_of(first_entry(path)).get("environment")
    seed = about.get("hash_seed") if isinstance(about, Mapping) else None
    return str(seed) if isinstance(seed, int) else None


def _judge_all(how: Mapping[str, Any], places: Sequence[str]) -> list[dict[str, Any]]:
    """Return the replies for these runs; runs in an executor's worker process."""
    if not os.path.isdir(how["cwd"]):
        how = {**how, "cwd": os.getcwd()}
    with _Judge(how) as judge:
        return [judge.judge(place) for place in places]


_Replies = Iterator[tuple[int, dict[str, Any]]]


def _here(how: Mapping[str, Any], places: Sequence[str], workers: int) -> _Replies:
    """Yield the replies for the runs, with their numbers, as they arrive; ``workers`` runs are replayed at a time."""
    left = deque(enumerate(places))
    replies: SimpleQueue[tuple[int, dict[str, Any]] | BaseException] = SimpleQueue()
    judges = [_Judge(how) for _ in range(min(workers, len(places)))]

    def work(judge: _Judge) -> None:
        try:
            while True:
                number, place = left.popleft()
                replies.put((number, judge.judge(place)))
        except IndexError:
            judge.close()
        except BaseException as error:
            replies.put(error)

    threads = [Thread(target=work, args=(judge,), name="tracekit-regress", daemon=True) for judge in judges]
    for thread in threads:
        thread.start()
    try:
        for _ in places:
            reply = replies.get()
            if isinstance(reply, BaseException):
                raise reply
            yield reply
    finally:
        left.clear()
        for judge in judges:
            judge.close()
        for thread in threads:
            thread.join()


def _by(executor: Executor, how: Mapping[str, Any], places: Sequence[str], workers: int) -> _Replies:
    """Yield the replies for runs that an executor replays in parts, each part with its own server.

    A part lost together with its worker is submitted again; if the executor accepts no more work, it is done here.
    """
    size = max(1, min(_PART, -(-len(places) // (4 * workers))))
    parts = {start: places[start : start + size] for start in range(0, len(places), size)}
    lost: list[int] = []
    waiting: dict[Future[list[dict[str, Any]]], int] = {}
    tries: Counter[int] = Counter()

    def submit(start: int) -> None:
        tries[start] += 1
        try:
            waiting[executor.submit(_judge_all, how, parts[start])] = start
        except RuntimeError:  # the executor is broken, or shut down
            lost.append(start)

    try:
        for start in parts:
            submit(start)
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                start = waiting.pop(future)
                error = CancelledError() if future.cancelled() else future.exception()
                if error is None:
                    yield from enumerate(future.result(), start)
                elif isinstance(error, TracekitError):
                    raise error
                elif tries[start] < _TRIES:
                    submit(start)
                else:
                    lost.append(start)
    finally:
        for future in waiting:
            future.cancel()
    numbers = [start + offset for start in lost for offset in range(len(parts[start]))]
    if numbers:
        for at, reply in _here(how, [places[number] for number in numbers], workers):
            yield numbers[at], reply


#: How many times a lost part is given to an executor.
_TRIES: Final = 3


class _OnRay(Executor):
    """The workers of a Ray cluster: the one named by ``RAY_ADDRESS``, or a new one on this machine."""

    def __init__(self, workers: int | None) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise RunStateError(
                "runs are replayed on Ray by its package, which is not there",
                next_action="pip install ray",
            ) from None
        self._started = not self._ray.is_initialized()
        if self._started:
            cores = None if os.environ.get("RAY_ADDRESS") else workers
            self._ray.init(num_cpus=cores, log_to_driver=False, include_dashboard=False, logging_level="error")

    @property
    def workers(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # A task lost with its worker or machine is repeated by another one; judging a run twice does no harm.
        found: Future[Any] = self._ray.remote(max_retries=-1)(call).remote(*args, **kwargs).future()
        return found

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self._started:
            self._ray.shutdown()


#: The largest number of runs given to an executor as one piece of work.
_PART: Final = 64

# -- regress -----------------------------------------------------------------------------------------------------------


def regress(
    *runs: str | os.PathLike[str],
    entry: str | None = None,
    command: Sequence[str] = (),
    store: str | os.PathLike[str] | None = None,
    query: Query | None = None,
    live: Iterable[str] | Mapping[str, Any] = (),
    ignore: Mapping[str, Iterable[str]] | None = None,
    strict: Iterable[str] = (),
    allow_hosts: Iterable[str] = (),
    live_env: Iterable[str] = (),
    live_files: Iterable[str] = (),
    isolate: Literal["auto", "on", "off"] = "auto",
    timeout: float = 300.0,
    workers: int | None = None,
    executor: Executor | Literal["ray"] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> CorpusReport:
    """Replay every run of a corpus against today's code, each in a process of its own, and report the result of each.

    ``runs`` are ids, paths, patterns (``"traces/**/*.jsonl"``), directories or URLs; by default, every run of
    ``store``. ``query`` selects among them. Today's code is ``entry`` (``"module:function"``, called with each run's
    recorded input), ``command`` (``["agent.py", "--fast"]``), or else the program named by each run, if it belongs to
    the user.

    A run is ``same`` if its replay is exact; otherwise it ``differs`` (with the first difference), is ``not
    replayable`` (with the reason), ``crashed`` although the recorded program had not, or ``timed out`` after
    ``timeout`` seconds and was killed with all its child processes. As in ``tracekit replay``, whose options the others
    are, no run is live or changes the user's files.

    ``live`` tries a change: ``{"llm": "gpt-5"}`` another model, ``{"llm"}`` a changed prompt, ``{"policy.check":
    "module:function"}`` another policy, ``{"clock": "30d"}`` another time, as in ``replay(live=…)``. Then a run
    ``differs`` if the program makes other calls, decides otherwise or returns another result; its ``changes`` list that
    and the models' usage, and the report sums them up. ::

        report = regress(entry="shop.agent:main", live={"llm": "gpt-5"})
        print(report.changes)

    ``workers`` runs are replayed in parallel (default: one per core). An ``executor`` of ``concurrent.futures`` runs
    them in its own workers, ``"ray"`` on a Ray cluster; the code must be available there, and the runs under the same
    paths or URLs. Work lost with a worker is repeated; each run is judged once. ``progress`` is called with the number
    of finished runs and the total.

    Raises ``RunNotFoundError`` for a run that does not exist, and ``RunStateError`` if no run is selected.

    Examples:
        >>> from tracekit import regress
        >>> report = regress(entry="shop:main")  # every run of the store, against main() in shop.py
        >>> report.same
        True
    """
    if entry is not None and command:
        raise RunStateError("entry and command are both given", next_action="name one of them")
    kinds = kinds_that_go_live(live)
    tried: dict[str, str | None] = {}
    if kinds:
        from .partial import Live

        tried = {**dict.fromkeys(kinds), **Live(kinds).named()}
    url = store_named(store)
    where = fetched_store(url) if is_url(url) else Store(store)
    asked = Query() if query is None else query
    sources = _sources([os.fspath(one) for one in runs], where, asked)
    if not sources:
        raise RunStateError(
            f"there is no run to replay in {where.root}" if not runs else "the query selects none of these runs",
            next_action="`tracekit list` shows the runs of a store; go to the directory that your program runs in, or name its store with "
            "--store or TRACEKIT_DIR"
            if not runs
            else "`tracekit list` shows the runs of a store",
        )
    how = {
        "entry": entry,
        "command": list(command),
        "cwd": os.getcwd(),
        # A program named by a fetched run is not the user's own, and is not run.
        "store": os.path.abspath(".tracekit") if is_url(url) else os.path.abspath(where.root),
        "isolate": isolate,
        "timeout": timeout,
        "credentials": _credentials(sources) if entry is not None else None,
        "options": {
            "live": tried,
            "strict": list(strict),
            "ignore": [f"{kind}={field}" for kind, fields in (ignore or {}).items() for field in fields],
            "allow_hosts": list(allow_hosts),
            "live_env": list(live_env),
            "live_files": list(live_files),
        },
    }  # fmt: skip
    many = max(1, cores_here() if workers is None else workers)
    places = [one.place for one in sources]
    found: dict[int, JudgedRun] = {}
    redactor = Redactor.of_process([])
    progress(0, len(sources))
    since = _reality.monotonic()
    with ExitStack() as stack:
        if executor == "ray":
            executor = ray = stack.enter_context(_OnRay(workers))
            many = ray.workers
        replies = _here(how, places, many) if executor is None else _by(executor, how, places, many)
        for number, reply in replies:
            _check_options(reply)
            reply["output"] = redactor.redact_text(reply["output"])[0]
            found[number] = _judged(sources[number], reply)
            progress(len(found), len(sources))
    ordered = tuple(found[number] for number in range(len(sources)))
    return CorpusReport(ordered, entry, tuple(command), _reality.monotonic() - since, many, tried)


def _check_options(reply: Mapping[str, Any]) -> None:
    """Raise ``RunStateError`` if a run could not be replayed because of an option, which is the same for every run."""
    outcome = reply["outcome"] or {}
    why = outcome.get("cannot") or outcome.get("raised") or {}
    if why.get("option") is not None:
        raise RunStateError(why["text"], next_action=why["next"])


def _credentials(sources: Sequence[_Source]) -> list[str] | None:
    """Return the credential variables that the first recorded process had, for importing the module of ``entry``;
    ``None`` if that is unknown."""
    for one in sources:
        if not is_url(one.place) and os.path.isfile(one.place):
            with suppress(OSError):
                return recorded_credentials(one.place)
    return None
