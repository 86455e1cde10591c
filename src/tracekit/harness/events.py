"""A recorded run as a list of events: each call once, with its outcome."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, SupportsIndex

from ..errors import RunNotFoundError
from ..integration import READS, SINGLES, Store, Trace, Verdict, exception_from_json, family_of, from_json

__all__ = ["TraceEvent", "TraceEvents", "load_trace"]


class TraceEvent:
    """One recorded event, read from the file when it is asked for.

    ``kind`` is ``"llm_call"``, ``"tool_call"``, ``"http_call"``, ``"span_call"``, or a step of one entry (``"decision"``,
    ``"policy_check"`` …, ``"clock"`` and ``"random"`` for reads). ``step_id`` is the ``seq`` of its intent record: the only order.
    ``timestamp`` is in seconds since the epoch, and information only.
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
        """Whether its outcome is recorded: false where the process died inside the call."""
        return self._outcome != 0

    @property
    def input(self) -> Any:
        """The input of the call. ``NotReplayableError`` where it could not be recorded."""
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
        """The recorded exception of a call that failed."""
        entry = self.trace.entry(self._outcome) if self._outcome else {}
        return exception_from_json(self.trace.expand(entry["error"])) if "error" in entry else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Model, decoding parameters, tool version, side-effect class …; and the outcome's usage and cost."""
        meta = dict(self.trace.entry(self.step_id).get("meta") or {})
        if self._outcome and self._outcome != self.step_id:
            meta.update(self.trace.entry(self._outcome).get("meta") or {})
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
    """The events of a run, by id (in ``store``) or by path, every line verified first.

    Raises ``RunNotFoundError`` (also where the file holds another run than ``run_id``), ``TraceIntegrityError`` for a damaged
    file, ``TraceVersionError``. Values are read from the file when they are asked for, so a long trace costs little memory.
    """
    where = store if isinstance(store, Store) else Store(store)
    trace = Trace(where.find(run))
    verdict = where.check(trace)
    if run_id is not None and verdict.run_id != run_id:
        raise RunNotFoundError(f"{trace.path} holds run {verdict.run_id}, not {run_id}", store=where.root, run=run_id)
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
