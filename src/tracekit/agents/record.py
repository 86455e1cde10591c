"""The record of one execution: a view of the trace, from the request to the final response."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from .._canonical import dumps_in_order, from_json, to_json
from .._engine.redaction import PLACEHOLDER
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import InvalidRecordError, NotReplayableError, RunNotFoundError
from ..failures import StructuredFailure
from .executions import Execution, executions

__all__ = ["ExecutionEvent", "ExecutionHeader", "ExecutionRecord", "HasPath", "schema"]


class HasPath(Protocol):
    """A run, as ``record()`` gives it."""

    @property
    def path(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHeader:
    """Which execution it is, and whether its record can stand for it.

    ``execution_id`` is the run's id and the number of the entry that the request is in. A partial execution is not ``replayable``;
    ``replayable_reason`` says why. ``redacted``: placeholders stand for secrets in the answer, which the log does not keep.
    """

    execution_id: str
    run_id: str
    created_utc_iso: str
    envelope_hash: str
    identity_hash: str
    replayable: bool
    replayable_reason: str | None = None
    redacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionEvent:
    """One event. ``seq`` (1, 2, 3 …) is the order, ``timestamp_ns`` information, ``entry`` its place in the trace."""

    seq: int
    type: str
    payload: Mapping[str, Any]
    timestamp_ns: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """A request, what was decided about it, each event, and the response: everything as the trace has it.

    ``router_decision`` and ``final_response`` are ``None`` where the execution did not come so far.
    """

    header: ExecutionHeader
    envelope: Mapping[str, Any]
    router_decision: Mapping[str, Any] | None
    events: tuple[ExecutionEvent, ...]
    final_response: Mapping[str, Any] | None

    @classmethod
    def all(
        cls, run: str | os.PathLike[str] | HasPath, *, store: str | os.PathLike[str] | None = None
    ) -> list[ExecutionRecord]:
        """The record of every execution in a run, in the order in which the requests came; those of its child processes after."""
        return [record for path in _paths(run, store) for record in _read(path)]

    @classmethod
    def of(
        cls,
        run: str | os.PathLike[str] | HasPath,
        execution: str | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
    ) -> ExecutionRecord:
        """The record of the one execution in a run, or of the one with this ``execution_id``."""
        found = cls.all(run, store=store)
        chosen = found if execution is None else [one for one in found if one.header.execution_id == execution]
        if len(chosen) == 1:
            return chosen[0]
        ids = [one.header.execution_id for one in found]
        if not found:
            what, next_action = f"no intent was routed in run {_shown(run)}", "`tracekit show` says what happened in it"
        elif execution is not None:
            what, next_action = (
                f"there is no execution {execution!r} in run {_shown(run)}",
                f"say which: {_some(ids)}",
            )
        else:
            what, next_action = (
                f"{len(ids)} intents were routed in run {_shown(run)}",
                f"say which: {_some(ids)}",
            )
        raise RunNotFoundError(what, next_action=next_action, executions=ids)

    @property
    def failure(self) -> StructuredFailure | None:
        """Why there is no answer, where there is none."""
        told = None if self.final_response is None else self.final_response["error"]
        return None if told is None else StructuredFailure.from_dict(told)

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON values, under the names that other systems use. What is no JSON is tagged, as in a trace."""
        return {
            "header": {key: getattr(self.header, name) for name, key in _HEADER},
            "envelope": to_json(dict(self.envelope)),
            "routerDecision": None if self.router_decision is None else to_json(dict(self.router_decision)),
            "events": [{key: to_json(getattr(event, name)) for name, key in _EVENT} for event in self.events],
            "finalResponse": None if self.final_response is None else to_json(dict(self.final_response)),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> ExecutionRecord:
        """The record that :meth:`as_dict` told. ``InvalidRecordError``, a ``ValueError``, for what is none."""
        try:
            header = _header(tree["header"])
            return cls(
                header=header,
                envelope=from_json(tree["envelope"]),
                router_decision=from_json(tree["routerDecision"]),
                events=tuple(
                    ExecutionEvent(**{name: from_json(event[key]) for name, key in _EVENT}) for event in tree["events"]
                ),
                final_response=_readable(tree["finalResponse"])[0],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise _none(f"{type(error).__name__}: {error}") from None

    def to_json(self) -> str:
        """One line of JSON."""
        return dumps_in_order(self.as_dict()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> ExecutionRecord:
        """The record that :meth:`to_json` told. ``InvalidRecordError``, a ``ValueError``, for what is none."""
        try:
            tree = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise _none(str(error)) from None
        return cls.from_dict(tree)


def _none(problem: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"this is no record of an execution: {problem}",
        next_action="`tracekit schema execution` prints what one looks like; ExecutionRecord.of(run) makes it from a trace",
    )


def _header(tree: Mapping[str, Any]) -> ExecutionHeader:
    told = {"redacted": False, **tree}
    header = ExecutionHeader(**{name: told[key] for name, key in _HEADER})
    for name, key in _HEADER:
        value = getattr(header, name)
        kind = bool if name in ("replayable", "redacted") else str
        if not isinstance(value, kind) and not (name == "replayable_reason" and value is None):
            raise TypeError(f"header.{key} is {value!r:.80}")
    return header


def _keys(kind: Any, names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((one.name, names.get(one.name, one.name)) for one in fields(kind))


#: Field -> its name in JSON.
_HEADER: Final = _keys(
    ExecutionHeader,
    {
        "execution_id": "executionId",
        "run_id": "runId",
        "created_utc_iso": "createdUtcIso",
        "envelope_hash": "envelopeHash",
        "identity_hash": "identityHash",
        "replayable_reason": "replayableReason",
    },
)
_EVENT: Final = _keys(ExecutionEvent, {"timestamp_ns": "timestampNs"})


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a record as JSON, new each time."""
    with open(os.path.join(os.path.dirname(__file__), "execution.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _some(ids: list[str]) -> str:
    """The first few."""
    return ", ".join(ids[:5]) + (f", … ({len(ids)} in all)" if len(ids) > 5 else "")


# -- reading -------------------------------------------------------------------------------------------------------------------


def _shown(run: object) -> str:
    return str(getattr(run, "id", run))


def _paths(run: Any, store: str | os.PathLike[str] | None) -> Iterator[str]:
    path = getattr(run, "path", None)
    where = Store(store)
    if path is None:
        path = where.find(run)
    yield path
    if os.path.dirname(path) == where.runs:
        yield from where.segments(os.path.splitext(os.path.basename(path))[0])


def _read(path: str) -> Iterator[ExecutionRecord]:
    with Trace(path) as trace:
        trace.check()
        for execution in executions(trace):
            yield _record(trace, execution)


def _record(trace: Trace, execution: Execution) -> ExecutionRecord:
    received = execution.events[0]
    info = (received.get("meta") or {}).get("info") or {}
    decision, response = execution.last("router.decision"), execution.last("final.response")
    told, unreadable = (None, None) if response is None else _response(trace, response)
    reason = execution.reason if response is None else unreadable
    name = os.path.splitext(os.path.basename(trace.path))[0]
    header = ExecutionHeader(
        execution_id=f"{name}:{received['seq']}",
        run_id=received["run_id"],
        created_utc_iso=_iso(received["ts_ns"]),
        envelope_hash=info.get("envelope_hash", ""),
        identity_hash=info.get("identity_hash", ""),
        replayable=reason is None,
        replayable_reason=reason,
        redacted=told is not None and _redacted(response, told),
    )
    return ExecutionRecord(
        header=header,
        envelope=_value(trace, received["input"])[0],
        router_decision=None if decision is None else _decision(trace, decision),
        events=tuple(_event(trace, n, entry) for n, entry in enumerate(execution.events, 1)),
        final_response=told,
    )


def _decision(trace: Trace, entry: Mapping[str, Any]) -> dict[str, Any]:
    asked, chosen = _value(trace, entry["input"])[0], _value(trace, entry["output"])[0]
    return {"agent": chosen["agent"], "intent": entry["name"], "reason": chosen["reason"], **asked}


def _response(trace: Trace, entry: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    told, unreadable = _value(trace, entry["output"])
    return {**told, "error": _failure(trace, entry)}, unreadable


def _redacted(entry: Mapping[str, Any] | None, told: Mapping[str, Any]) -> bool:
    """Whether a secret was taken out of the answer: here, or before, where a placeholder was handed on."""
    info = ((entry or {}).get("meta") or {}).get("info") or {}
    return "redacted" in info or PLACEHOLDER.search(dumps_in_order(to_json(told["payload"])).decode()) is not None


def _failure(trace: Trace, entry: Mapping[str, Any]) -> Any:
    found = ((entry.get("meta") or {}).get("info") or {}).get("failure")
    return None if found is None else trace.expand(found)


def _event(trace: Trace, number: int, entry: Mapping[str, Any]) -> ExecutionEvent:
    payload: dict[str, Any] = {"name": entry["name"]}
    if entry["type"] == "intent.received":  # the envelope stands beside the events
        payload |= _value(trace, entry["output"])[0]
    elif entry["type"] == "final.response":
        payload["status"] = (
            entry["output"]["status"] if "$ref" not in entry["output"] else trace.expand(entry["output"])["status"]
        )
    else:
        for part in ("input", "output"):
            payload |= _value(trace, entry[part])[0] or {}
    info = (entry.get("meta") or {}).get("info") or {}
    payload |= {key: trace.expand(info[key]) for key in ("failure", "exception") if key in info}
    kind = _EVENTS[entry["type"]]
    return ExecutionEvent(seq=number, type=kind, payload=payload, timestamp_ns=entry["ts_ns"], entry=entry["seq"])


#: Entry type -> type of the event.
_EVENTS: Final = {
    kind: kind.upper().replace(".", "_")
    for kind in (
        "intent.received", "agent.attempt.start", "agent.attempt.end", "fallback.triggered", "fallback.exhausted",
        "router.decision", "final.response",
    )
}  # fmt: skip


def _value(trace: Trace, tree: Any) -> tuple[Any, str | None]:
    """A recorded value, or as much as can be told of it and why that is not all."""
    return _readable(trace.expand(tree))


def _readable(tree: Any) -> tuple[Any, str | None]:
    try:
        return from_json(tree), None
    except NotReplayableError as error:
        return tree, error.what


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat()
