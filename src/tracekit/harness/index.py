"""The index of a recorded run, which answers replay clients: a cursor for each kind of event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Literal

from tracekit import Report

from ..errors import ReplayError, RunStateError, TraceExhaustedError
from ..integration import OpenReplay
from .events import TraceEvent
from .line import Line, family_of_kind, name_of

__all__ = ["ReplayTraceWriter", "TraceIndex"]


class TraceIndex(Line):
    """Answers a replay from ``events`` (as ``load_trace`` gives them). Each kind has its own cursor; nothing is ever written.

    As a block it ends with ``finish``: recorded steps that were not made are an error too. ``on_divergence="warn"`` goes on with a step
    of equal kind and name where that is harmless; ``redact`` repeats the patterns of the recording. Raises ``RunStateError`` if
    there is no event to replay.
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
            raise RunStateError("the trace holds no event: there is nothing to replay")
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
        """The next unconsumed event of ``kind``, which is then consumed. ``TraceExhaustedError`` after the last one.

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
        """How many events of ``kind`` are left."""
        events = self._kinds.get(kind, [])
        return sum(not self._replay.used(event.step_id) for event in events[self._position(kind, events) :])

    def _position(self, kind: str, events: list[TraceEvent]) -> int:
        position = self._cursors.get(kind, 0)
        while position < len(events) and self._replay.used(events[position].step_id):
            position += 1
        self._cursors[kind] = position
        return position

    def finish(self) -> Report:
        """End the replay. Raises its first failure, or ``UnconsumedStepsError`` if recorded steps were never asked for."""
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
        """Compare an event with the next recorded one of its kind; returns that one's ``seq``. ``DivergenceError`` if it differs."""
        family, entry_type = family_of_kind(kind)
        about = dict(metadata or {})
        called = name_of(kind, name, about)
        if family is None:
            return self._line.note(entry_type, called, input, output, about)
        step = self._line.begin(family, called, input, about)
        recorded = step.answer()
        now = output if error is None else _shown(error)
        then = recorded.output if recorded.error is None else _shown(recorded.error)
        assert isinstance(self._line.run, OpenReplay)
        self._line.run.agree(f"{kind} {called!r}", step.seq, then, now)
        return int(step.seq)

    def set_result(self, value: Any) -> None:
        """Does nothing: the recorded run has its result."""

    def close(self, error: BaseException | None = None) -> None:
        """Does nothing: ``TraceIndex.finish`` ends a replay."""


def _shown(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}"


def replaying(line: Any) -> Line:
    """``line``, if it belongs to a replay: else ``RunStateError``."""
    if not isinstance(line, Line) or line.session.recording:
        raise RunStateError(
            f"a replay client answers from a TraceIndex, not from {line!r}",
            next_action="make one with TraceIndex(load_trace(run))",
        )
    return line
