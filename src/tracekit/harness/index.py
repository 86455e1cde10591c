"""A recorded run as a list of events, and the index that answers replay clients from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal, SupportsIndex

from tracekit import Report

from ..errors import ReplayError, RunNotFoundError, RunStateError, TraceExhaustedError
from ..integration import (
    READS,
    SINGLES,
    OpenReplay,
    Store,
    Trace,
    Verdict,
    exception_from_json,
    exception_text,
    family_of,
    from_json,
    meta_of,
)
from .writer import Line

__all__ = ["ReplayTraceWriter", "TraceEvent", "TraceEvents", "TraceIndex", "load_trace"]

# -- events ------------------------------------------------------------------------------------------------------------
#
# Each call of a run once, with its outcome.


class TraceEvent:
    """One recorded event; its values are read from the file on demand.

    ``kind`` is ``"llm_call"``, ``"tool_call"``, ``"http_call"``, ``"span_call"``, or a step of one entry
    (``"decision"``, ``"policy_check"`` …, ``"clock"`` and ``"random"`` for reads). ``step_id`` is the ``seq`` of its
    intent record, and the only order. ``timestamp`` is in seconds since the epoch, and only informative.
    """

    __slots__ = ("_outcome", "_pieces", "kind", "name", "run_id", "step_id", "timestamp", "trace")

    def __init__(self, trace: Trace, entry: Mapping[str, Any], kind: str) -> None:
        self.trace: Final = trace
        self.kind: Final = kind
        self.run_id: Final[str] = entry["run_id"]
        self.step_id: Final[int] = entry["seq"]
        self.name: Final[str | None] = entry.get("name")
        self.timestamp: Final[float] = entry["ts_ns"] / 1e9
        self._outcome = self.step_id if family_of(entry["type"]) is None else 0
        self._pieces: list[int] = []

    def _answered(self, entry: Mapping[str, Any], role: str) -> None:
        if role == "chunk":
            self._pieces.append(entry["seq"])
        else:
            self._outcome = entry["seq"]

    def _value(self, seq: int, key: str) -> Any:
        return from_json(self.trace.expand(self.trace.entry(seq).get(key)))

    @property
    def finished(self) -> bool:
        """Whether its outcome is recorded: false if the process died inside the call."""
        return self._outcome != 0

    @property
    def input(self) -> Any:
        """The input of the call. Raises ``NotReplayableError`` if it could not be recorded."""
        return self._value(self.step_id, "input")

    @property
    def output(self) -> Any:
        """The output of the call (the list of ``values`` of a read); ``None`` if it failed or has no outcome."""
        if self.kind in READS:
            return self._value(self.step_id, "values")
        return self._value(self._outcome, "output") if self._outcome else None

    @property
    def chunks(self) -> list[Any]:
        """The pieces of a stream, in order."""
        return [self._value(seq, "output") for seq in self._pieces]

    @property
    def error(self) -> BaseException | None:
        """The recorded exception of a failed call, or ``None``."""
        entry = self.trace.entry(self._outcome) if self._outcome else {}
        return exception_from_json(self.trace.expand(entry["error"])) if "error" in entry else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Model, decoding parameters, tool version, side-effect class …; and the outcome's usage and cost."""
        meta = dict(meta_of(self.trace.entry(self.step_id)))
        if self._outcome and self._outcome != self.step_id:
            meta.update(meta_of(self.trace.entry(self._outcome)))
        return meta

    def __repr__(self) -> str:
        return f"<TraceEvent {self.step_id} {self.kind} {self.name!r}>"


class TraceEvents(list[TraceEvent]):
    """The events of one run in order. ``trace`` is the file they are read from, ``verdict`` the result of verifying it."""

    def __init__(self, trace: Trace, verdict: Verdict) -> None:
        super().__init__()
        self.trace: Final = trace
        self.verdict: Final = verdict
        self.run_id: Final = verdict.run_id

    @property
    def state(self) -> str:
        """``"complete"`` for a run with an end, ``"incomplete"`` for one without an end."""
        return self.verdict.state

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError("a list of events belongs to its open file; pass the path on, and load it there")


def load_trace(
    run: str | os.PathLike[str], run_id: str | None = None, *, store: str | os.PathLike[str] | Store | None = None
) -> TraceEvents:
    """Return the events of a run, by id (in ``store``) or by path; every line is verified first.

    Values are read from the file on demand, so a long trace costs little memory. Raises ``RunNotFoundError`` (also if
    the file contains another run than ``run_id``), ``TraceIntegrityError`` for a damaged file, ``TraceVersionError``.
    """
    where = Store.at(store)
    trace = Trace(where.find(run))
    verdict = where.check(trace)
    if run_id is not None and verdict.run_id != run_id:
        raise RunNotFoundError(
            f"{trace.path} holds run {verdict.run_id}, not {run_id}",
            store=where.root,
            run=run_id,
            next_action="name the file of that run, or leave run_id out",
        )
    events = TraceEvents(trace, verdict)
    open_calls: dict[int, TraceEvent] = {}
    for entry in trace.entries():
        family = family_of(entry["type"])
        if family is None:
            if entry["type"] in SINGLES or (entry["type"] in READS and "values" in entry):
                events.append(TraceEvent(trace, entry, entry["type"].replace(".", "_")))
        elif family[1] == "intent":
            event = open_calls[entry["seq"]] = TraceEvent(trace, entry, f"{family[0]}_call")
            events.append(event)
        elif entry["step"] in open_calls:
            open_calls[entry["step"]]._answered(entry, family[1])
    return events


# -- the index ---------------------------------------------------------------------------------------------------------


class TraceIndex(Line):
    """Answers a replay from ``events`` (the result of ``load_trace``). Each kind has its own cursor; nothing is ever
    written.

    As a context manager it ends with ``finish``: recorded steps that were not made are an error, too.
    ``on_divergence="warn"`` goes on with a step of equal kind and name if that is harmless; ``redact`` repeats the
    patterns of the recording. Raises ``RunStateError`` if there is no event to replay.
    """

    def __init__(
        self,
        events: Iterable[TraceEvent],
        *,
        on_divergence: Literal["raise", "warn"] = "raise",
        redact: Iterable[Any] = (),
    ) -> None:
        self.events: Final = list(events)
        if not self.events:
            raise RunStateError(
                "the trace contains no event: there is nothing to replay",
                next_action="record again, and make the calls through the traced clients",
            )
        replay = self._replay = OpenReplay(self.events[0].trace, on_divergence=on_divergence, redact=redact)
        super().__init__(replay, replay.scope)
        self._kinds: Final[dict[str, list[TraceEvent]]] = {}
        self._cursors: Final[dict[str, int]] = {}
        for event in self.events:
            self._kinds.setdefault(event.kind, []).append(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of event in the run."""
        return list(self._kinds)

    @property
    def report(self) -> Report:
        """The report of the replay, complete after ``finish``."""
        return self._replay.report

    def next_event(self, kind: str) -> TraceEvent:
        """Consume and return the next event of ``kind``. Raises ``TraceExhaustedError`` after the last one.

        The caller compares its content; the replay clients do that themselves.
        """
        events = self._kinds.get(kind, [])
        position = self._position(kind, events)
        if position == len(events):
            raise self._replay.fail(
                TraceExhaustedError(
                    f"the program asks for another {kind!r} event, and the recording has no more: {len(events)}, all used",
                    run_id=self.run_id,
                    kind=kind,
                    name=None,
                    next_action=f"the recording holds {', '.join(self._kinds)}; record again if the change is meant",
                )
            )
        self._cursors[kind] = position + 1
        self._replay.take(events[position].step_id)
        return events[position]

    def remaining(self, kind: str) -> int:
        """Return how many events of ``kind`` are left."""
        events = self._kinds.get(kind, [])
        return sum(not self._replay.used(event.step_id) for event in events[self._position(kind, events) :])

    def _position(self, kind: str, events: list[TraceEvent]) -> int:
        position = self._cursors.get(kind, 0)
        while position < len(events) and self._replay.used(events[position].step_id):
            position += 1
        self._cursors[kind] = position
        return position

    def finish(self) -> Report:
        """End the replay, and return its report. Raises its first failure, or ``UnconsumedStepsError`` if recorded
        steps were never made."""
        return self._replay.finish()

    def __enter__(self) -> TraceIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = self._replay.failure
        if failure is not None and error is not failure:
            self._replay.close()
            raise failure from (None if isinstance(error, ReplayError) else error)
        if error is None:
            self.finish()
        else:
            self._replay.close()


class ReplayTraceWriter:
    """Replaces the agent's ``TraceWriter`` in a replay: compares events with the recording, and writes nothing."""

    def __init__(self, line: Line) -> None:
        self._line: Final = replaying(line)

    @property
    def run_id(self) -> str:
        """The id of the recorded run."""
        return self._line.run_id

    def record(
        self,
        kind: str,
        input: Any,
        output: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        error: BaseException | None = None,
    ) -> int:
        """Compare an event with the next recorded one of its kind; return the ``seq`` of that one. Raises
        ``DivergenceError`` if it differs."""
        seq, step = self._line.event(kind, input, output, metadata, name)
        if step is None:
            return seq
        recorded = step.answer()
        now = output if error is None else exception_text(error)
        then = recorded.output if recorded.error is None else exception_text(recorded.error)
        assert isinstance(self._line.run, OpenReplay)
        self._line.run.agree(f"{kind} {step.spec.name!r}", seq, then, now)
        return seq

    def set_result(self, value: Any) -> None:
        """Do nothing: the recorded run has its result."""

    def close(self, error: BaseException | None = None) -> None:
        """Do nothing: ``TraceIndex.finish`` ends a replay."""


def replaying(line: Any) -> Line:
    """Return ``line`` if it belongs to a replay; else raise ``RunStateError``."""
    if not isinstance(line, Line) or line.session.recording:
        raise RunStateError(
            f"a replay client answers from a TraceIndex, not from {line!r}",
            next_action="make one with TraceIndex(load_trace(run))",
        )
    return line
