"""``recorded_failures``: finds the failures of recorded runs, in one pass over each file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from .._journal.entry import ENDS, REFUSALS, family_of, info_of, meta_of
from .._journal.reader import Trace, scan
from .._journal.store import Store, beside, file_name, first_entry, holder, holds_its_run, last_entry
from .._runtime.recovered import declared_settlement
from ..errors import TraceError, TraceIntegrityError
from ..failures import FailureType, RecoveryStrategy, StructuredFailure
from ..failures.classify import classify_answer, classify_recorded

__all__ = ["FailureReader", "RecordedFailure", "recorded_failures"]

#: The families of steps that call something.
_CALLS: Final = ("tool", "llm", "http")
#: Arguments of a ``SystemExit`` with which a program ends successfully.
_IN_ORDER: Final[tuple[list[object], ...]] = ([], [0], [None])
#: Types that only the entry of a request to agents reports.
_OF_ROUTING: Final = (FailureType.NO_AGENT_FOUND, FailureType.ROUTING_ERROR, FailureType.SIDE_EFFECT_VIOLATION)


class RecordedFailure(NamedTuple):
    """A recorded failure and where it was found: ``entry`` is the ``seq`` of the entry of type ``at``, in the file
    ``path``.

    ``family`` is what failed: ``"tool"``, ``"llm"``, ``"http"``, ``"span"``, ``"step"`` for anything else inside a run,
    or ``"run"``. For a file without entries, ``entry`` is 0. ``ts_ns`` is the time in nanoseconds since the epoch.
    ``settled`` is what a person has stated about the step since (``tracekit recovery settle``): ``{"done", "by",
    "reason", "at"}``; ``None`` if nobody has.
    """

    run_id: str
    step: int | str | None
    name: str | None
    agent: str | None
    family: str
    at: str
    entry: int
    ts_ns: int
    path: str
    failure: StructuredFailure
    settled: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the failure as JSON values."""
        return {**self._asdict(), "failure": self.failure.as_dict()}


def recorded_failures(
    *runs: str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    type: FailureType | str | None = None,
    tool: str | None = None,
    agent: str | None = None,
    recoverable: bool | None = None,
    strategy: RecoveryStrategy | str | None = None,
    since: datetime | None = None,
    settled: bool | None = None,
    on_damage: Callable[[TraceError], object] | None = None,
) -> Iterator[RecordedFailure]:
    """Yield the failures of ``runs`` (ids, prefixes of ids, paths), or of every run of the store, newest run first.

    Filters: ``type`` matches the failure or, for an irreversible step, its cause; ``tool`` is the name of the tool or
    model that was called; ``agent``, ``recoverable``, ``strategy`` and ``since`` match the failure's fields and time;
    ``settled`` is whether a person has settled the step.

    A damaged trace is read up to its first bad line. ``on_damage`` is called with the error; without it, the first
    error is raised after everything readable has been yielded.

    Examples:
        >>> from tracekit import record, recorded_failures, traced_tool
        >>> @traced_tool(side_effect="read_only")
        ... def search(words):
        ...     raise TimeoutError("no answer")
        >>> with record("research"):
        ...     search("bees")
        Traceback (most recent call last):
        ...
        TimeoutError: no answer
        >>> found = next(recorded_failures(tool="search"))
        >>> found.failure.type.value, found.failure.reason
        ('timeout', 'no answer')
    """
    wanted = None if type is None else FailureType(type)
    how = None if strategy is None else RecoveryStrategy(strategy)
    after = 0 if since is None else int(since.timestamp() * 1e9)
    damage: list[TraceError] = []
    where = Store(store)

    def report(error: TraceError) -> None:
        damage.append(error)
        if on_damage is not None:
            on_damage(error)

    for path in _paths(where, runs):
        known = len(damage)
        for found in _of_run(path, report):
            failure = found.failure
            if (
                (wanted is None or _is(failure, wanted))
                and (tool is None or (found.family in _CALLS and found.name == tool))
                and (agent is None or found.agent == agent)
                and (recoverable is None or failure.recoverable is recoverable)
                and (how is None or failure.recovery_strategy is how)
                and found.ts_ns >= after
                and (settled is None or (found.settled is not None) is settled)
            ):
                yield found
        if len(damage) == known and (problem := _of_segments(where, path)) is not None:
            report(problem)
    if damage and on_damage is None:
        raise damage[0]


def _of_run(path: str, report: Callable[[TraceError], None]) -> Iterator[RecordedFailure]:
    """Yield the failures in the files of a run, as far as each verifies."""
    for file in (path, *beside(path)):
        try:
            yield from failures_in(file)
        except TraceError as error:
            report(error)


def _of_segments(store: Store, path: str) -> TraceError | None:
    """Return what is wrong with the files of a run's child processes, if it has any: a missing part may contain a
    failure."""
    try:
        meta = last_entry(path).get("meta")
        if not beside(path) and not (isinstance(meta, dict) and meta.get("segments")):
            return None
        with Trace(path) as trace:
            store.check(trace)
    except TraceError as error:
        return error
    except OSError:  # deleted meanwhile
        return None
    return None


def _is(failure: StructuredFailure, wanted: FailureType) -> bool:
    if failure.type is wanted:
        return True
    behind = failure.caused_by
    return failure.type is FailureType.IRREVERSIBLE_STEP_FAILED and behind is not None and behind.type is wanted


def _paths(store: Store, runs: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """Yield the files of the runs, without those of their child processes."""
    paths = [store.find(run) for run in runs] or [run.path for run in store.list()]
    yield from dict.fromkeys(paths)


def failures_in(path: str) -> Iterator[RecordedFailure]:
    """Yield the failures of one file, in order. Raises ``TraceIntegrityError`` at the first line that does not verify."""
    run_id = first_entry(path).get("run_id")
    if not holds_its_run(path, run_id):
        raise TraceIntegrityError(
            f"{path} holds run {run_id}: it is a copy, or was renamed",
            path=path,
            line=1,
            next_action="remove it, or name it after its run",
        )
    reading = FailureReader(path)
    found: list[RecordedFailure] = []
    settled: dict[int, Mapping[str, Any]] = {}
    damage: TraceError | None = None
    try:
        for raw in scan(path):
            one = reading.take(raw.data)
            if one is not None:
                found.append(one)
            elif (about := declared_settlement(raw.data)) is not None:
                settled[raw.data.get("step", 0)] = about
    except TraceError as error:
        damage = error
    crashed = None if damage is not None else reading.crashed()
    yield from _with_settlements(path, found if crashed is None else [*found, crashed], settled)
    if damage is not None:
        raise damage


def _with_settlements(
    path: str, found: Sequence[RecordedFailure], settled: Mapping[int, Mapping[str, Any]]
) -> Iterator[RecordedFailure]:
    """Add to each failure of a step what a person has stated about it: in the log, or beside it if the run had ended."""
    irreversible = FailureType.IRREVERSIBLE_STEP_FAILED
    steps = {one.step for one in found if one.failure.type is irreversible and type(one.step) is int}
    known = {**_settled_beside(path, steps - settled.keys()), **settled}
    for one in found:
        about = known.get(one.step) if one.failure.type is irreversible and type(one.step) is int else None
        if about is not None:
            one = one._replace(settled={name: about[name] for name in ("done", "by", "reason", "at") if name in about})
        yield one


def _settled_beside(path: str, steps: Collection[int]) -> dict[int, Mapping[str, Any]]:
    from .recovery import settlements

    found: dict[int, Mapping[str, Any]] = {}
    if steps:
        with suppress(TraceError, OSError), Trace(path) as trace:
            stated_about = settlements(trace)
            for step in steps:
                with suppress(TraceError, IndexError):
                    if (about := stated_about(step)) is not None:
                        found[step] = about
    return found


class _Step(NamedTuple):
    seq: int
    name: str | None
    agent: str | None
    family: str
    side_effect: str | None


class FailureReader:
    """One pass over a file: tracks the open steps and the last HTTP response."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: dict[int, _Step] = {}
        #: Heads of responses that arrive in pieces.
        self._heads: dict[int, Mapping[str, Any]] = {}
        self._agent: str | None = None
        self._last: dict[str, Any] = {}
        #: Status and step of the last HTTP response.
        self._answered: tuple[Any, _Step] | None = None

    def take(self, entry: dict[str, Any]) -> RecordedFailure | None:
        kind, seq, self._last = entry["type"], entry["seq"], entry
        known = family_of(kind)
        if known is not None:
            return self._of_step(entry, *known)
        if seq == 1:
            self._agent = _text(entry.get("agent_id"))
        if kind in REFUSALS:
            return self._refused(entry)
        if kind == "fallback.exhausted":
            return self._exhausted(entry)
        if kind == "final.response":
            return self._unanswered(entry)
        return self._of_run(entry) if kind == "run.failed" else None

    def crashed(self) -> RecordedFailure | None:
        """Return the failure of a run that has neither an end entry nor a living writer."""
        entry = self._last
        if (entry and entry["type"] in ENDS) or holder(self._path):
            return None
        if not entry:
            entry = {
                "run_id": file_name(self._path).stem,
                "type": "",
                "seq": 0,
                "ts_ns": os.stat(self._path).st_mtime_ns,
            }
        irreversible = [step for step in self._open.values() if step.side_effect == "irreversible"]
        inner = irreversible[-1] if irreversible else next(reversed(self._open.values()), None)
        reason = f"the run has no end; its last entry is {entry['seq']} ({entry['type']})"
        if not self._last:
            reason = "the file has no entries: the process died before the run began"
        if irreversible:
            reason = f"the run has no end, and step {irreversible[-1].seq} no outcome: it may have taken effect"
        failure = StructuredFailure(
            type=FailureType.AGENT_CRASHED,
            reason=reason,
            details={"pending": list(self._open)[-32:], "in_doubt": [step.seq for step in irreversible][-32:]},
            recovery_strategy=RecoveryStrategy.MANUAL_INTERVENTION if irreversible else None,  # type: ignore[arg-type]
        )
        step = _Step(inner.seq if inner else 0, inner and inner.name, self._agent, "run", None)
        return self._found(entry, step, failure)

    def _of_step(self, entry: dict[str, Any], family: str, role: str) -> RecordedFailure | None:
        if role == "intent":
            self._open[entry["seq"]] = self._step(entry, family)
            return None
        seq, output = entry.get("step", 0), entry.get("output")
        if role == "chunk":
            head = output.get("head") if isinstance(output, dict) else None
            if isinstance(head, dict):
                self._heads[seq] = head
            return None
        step = self._open.pop(seq, None) or _Step(seq, None, self._agent, family, None)
        head = self._heads.pop(seq, None)
        if role == "skipped":
            return None
        error = entry.get("error")
        if isinstance(error, dict):
            failure = _classified(entry) or classify_recorded(error, side_effect=step.side_effect, name=step.name)
            return self._found(entry, step, failure)
        if family not in ("llm", "http"):
            return None
        answer = head or (output if isinstance(output, dict) else {})
        status = answer.get("status")
        self._answered = status, step
        if type(status) is not int or status < 400:
            return None
        return self._found(entry, step, classify_answer(status, answer.get("headers"), answer.get("body")))

    def _refused(self, entry: dict[str, Any]) -> RecordedFailure:
        family = info_of(entry).get("family")
        kind = FailureType.BUDGET_EXCEEDED if entry["type"] == "budget.exceeded" else FailureType.CONTRACT_VIOLATION
        error = entry.get("error")
        failure = classify_recorded(error) if isinstance(error, dict) else None
        if failure is None or failure.type is not kind:
            reason = failure.reason if failure else f"{entry['type']}: {entry.get('name')!r}"
            failure = StructuredFailure(type=kind, reason=reason, caused_by=failure)
        return self._found(entry, self._step(entry, family if family in _CALLS else "step"), failure)

    def _exhausted(self, entry: dict[str, Any]) -> RecordedFailure:
        about = entry.get("input")
        tried = about.get("tried") if isinstance(about, dict) else None
        names = [entry.get("name"), *(tried if isinstance(tried, list) else ())]
        failure = StructuredFailure(
            type=FailureType.FALLBACK_EXHAUSTED,
            reason=f"{', '.join(map(repr, names[:32]))} failed, and there is nothing left to try",
            caused_by=_classified(entry),
        )
        return self._found(entry, self._step(entry, "step"), failure)

    def _unanswered(self, entry: dict[str, Any]) -> RecordedFailure | None:
        """Return the failure of an unanswered request to agents; failures of fallbacks and of the agents themselves are
        reported elsewhere."""
        failure = _classified(entry)
        if failure is None or failure.type not in _OF_ROUTING:
            return None
        return self._found(entry, self._step(entry, "step"), failure)

    def _of_run(self, entry: dict[str, Any]) -> RecordedFailure | None:
        error = entry.get("error")
        if isinstance(error, dict) and error.get("type") == "builtins:SystemExit" and error.get("args") in _IN_ORDER:
            return None
        failure = _classified(entry) or classify_recorded(error if isinstance(error, dict) else {})
        step = _Step(0, failure.name, failure.agent or self._agent, "run", None)
        status = failure.details.get("status")
        if failure.step is None and self._answered is not None and status is not None and status == self._answered[0]:
            step = self._answered[1]._replace(
                family="run"
            )  # no call followed the response that the run's error describes
        return self._found(entry, step, failure)

    def _step(self, entry: dict[str, Any], family: str) -> _Step:
        return _Step(
            entry["seq"],
            _text(entry.get("name")),
            _text(entry.get("agent_id")) or self._agent,
            family,
            _text(meta_of(entry).get("side_effect")),
        )

    def _found(self, entry: dict[str, Any], step: _Step, failure: StructuredFailure) -> RecordedFailure:
        where = failure.step if failure.step is not None else step.seq or None
        failure = replace(failure, run_id=entry["run_id"], step=where, name=step.name, agent=step.agent)
        return RecordedFailure(
            entry["run_id"], where, step.name, step.agent, step.family, entry["type"], entry["seq"], entry["ts_ns"],
            self._path, failure,
        )  # fmt: skip


def _classified(entry: Mapping[str, Any]) -> StructuredFailure | None:
    """Return the failure stored in the entry; ``None`` if there is none (older traces) or it is invalid."""
    found = meta_of(entry).get("failure", info_of(entry).get("failure"))
    try:
        return None if found is None else StructuredFailure.from_dict(found)
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
