"""Execution records: one routed request of a run as a document, from the request to its response."""

from __future__ import annotations

import json
import os
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from ..errors import (
    DivergenceError,
    EnvelopeError,
    InvalidRecordError,
    NotReplayableError,
    RunNotFoundError,
    TraceIntegrityError,
)
from ..failures import StructuredFailure
from ..integration import (
    HasPath,
    Redactor,
    Store,
    Trace,
    exception_text,
    from_json,
    info_of,
    meta_of,
    not_serialisable,
    to_json,
)
from .envelope import IntentEnvelope, Patterns, stable_hash
from .result import ReplayResult

__all__ = [
    "Execution",
    "ExecutionEvent",
    "ExecutionHeader",
    "ExecutionRecord",
    "Places",
    "id_of",
    "indexed",
    "parts",
    "place_of",
    "readable",
    "record_at",
    "replay_execution",
    "schema",
    "wrong",
]

# -- schema checks -------------------------------------------------------------------------------------------------------------
#
# The part of JSON Schema that the schemas of this package use, in plain code, so that reading a record needs no
# validator.


def wrong(value: Any, schema: Mapping[str, Any], where: str = "", root: Mapping[str, Any] | None = None) -> str | None:
    """Return how and where a value violates the schema; ``None`` if it does not."""
    root = schema if root is None else root
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        problem = wrong(value, root["$defs"][name], where, root)
        if problem is not None:
            return problem
    for check in (_kind, _text, _number, _either, _members, _items, _condition):
        problem = check(value, schema, where, root)
        if problem is not None:
            return problem
    return None


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "object": Mapping,
    "array": (list, tuple),
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def _violation(value: Any, where: str, instead: str) -> str:
    return f"{where or 'it'} is {value!r:.80}, not {instead}"


def _kind(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return _violation(value, where, " or ".join(_WORDS[kind] for kind in kinds))
    if "enum" in schema and value not in schema["enum"]:
        return _violation(value, where, "one of " + ", ".join(schema["enum"]))
    if "const" in schema and value is not schema["const"]:
        return _violation(value, where, repr(schema["const"]))
    return None


_WORDS: Final = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def _text(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return None
    if len(value) < schema.get("minLength", 0):
        return f"{where} is empty"
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return _violation(value, where, f"what {schema['pattern']} describes")
    return None


def _number(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        return _violation(value, where, f"{schema['minimum']} or more")
    return None


def _either(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    problems = [wrong(value, one, where, root) for one in schema.get("anyOf", ())]
    return problems[-1] if problems and None not in problems else None


def _members(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if not isinstance(value, Mapping):
        return None
    before = f"{where}." if where else ""
    for key in schema.get("required", ()):
        if key not in value:
            return f"{before}{key} is missing"
    properties = schema.get("properties", {})
    for key, item in value.items():
        if key in properties:
            problem = wrong(item, properties[key], f"{before}{key}", root)
            if problem is not None:
                return problem
        elif schema.get("additionalProperties", True) is False:
            return f"{before}{key} is not a part of it"
    return None


def _items(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if not isinstance(value, (list, tuple)):
        return None
    if len(value) < schema.get("minItems", 0):
        return f"{where} is empty"
    problems = (wrong(item, schema.get("items", {}), f"{where}[{n}]", root) for n, item in enumerate(value))
    return next((problem for problem in problems if problem is not None), None)


def _condition(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if "if" not in schema:
        return None
    branch = "then" if wrong(value, schema["if"], where, root) is None else "else"
    return wrong(value, schema.get(branch, {}), where, root)


# -- executions --------------------------------------------------------------------------------------------------------
#
# Which entries of a trace belong to which request.

#: For each execution the ``seq`` of its entries.
Places = Sequence[Sequence[int]]

#: The entries that routing writes. An execution's are in one lane, inside one step, from ``intent.received`` to
#: ``final.response``.
_TYPES: Final = frozenset(
    (
        "agent.attempt.start", "agent.attempt.end", "fallback.triggered", "fallback.exhausted", "router.decision",
        "final.response",
    )
)  # fmt: skip


class Execution:
    """The entries of one execution, in order."""

    __slots__ = ("events",)

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.events: Final = list(events)

    def last(self, kind: str) -> dict[str, Any] | None:
        """Return its last entry of a type."""
        return next((entry for entry in reversed(self.events) if entry["type"] == kind), None)

    @property
    def reason(self) -> str:
        """Return why it has no final response."""
        ended = {entry["input"]["attempt"] for entry in self.events if entry["type"] == "agent.attempt.end"}
        for entry in self.events:
            if entry["type"] == "agent.attempt.start" and entry["input"]["attempt"] not in ended:
                return f"it is partial: agent {entry['name']!r} had not finished when the run ended"
        for entry in self.events:
            if entry["type"] == "agent.attempt.end" and entry["output"]["status"] == "interrupted":
                by = info_of(entry).get("exception", "it is not known by what")
                return f"it is partial: agent {entry['name']!r} was interrupted ({by})"
        return "it is partial: the run ended before the final response"


def _places(trace: Trace) -> Places:
    """Return the entries of each execution, in the order of the requests."""
    found: list[array[int]] = []
    under_way: dict[tuple[int, int], array[int]] = {}
    for entry in trace.entries():
        kind = entry["type"]
        place = entry["lane"], entry.get("parent", 0)
        if kind == "intent.received":
            under_way[place] = array("Q", [entry["seq"]])
            found.append(under_way[place])
        elif kind in _TYPES and place in under_way:
            under_way[place].append(entry["seq"])
            if kind == "final.response":
                del under_way[place]
    return found


#: A cache of files by identity and modification state, in the order of their last use.
_cache: Final[OrderedDict[tuple[int, ...], tuple[Any, Places]]] = OrderedDict()
_cache_lock: Final = threading.RLock()
_MOST_FILES: Final = 8
_MOST_ENTRIES: Final = 1_000_000


@contextmanager
def indexed(path: str) -> Iterator[tuple[Trace, Places]]:
    """Yield the trace in a file that verifies, and the entries of each of its executions. An unchanged file is not read
    again."""
    with Trace(path) as trace:
        file = trace.file
        with _cache_lock:
            known = _cache.get(file)
            if known is not None:
                _cache.move_to_end(file)
        if known is not None:
            trace.reading = known[0]
            yield trace, known[1]
            return
        trace.check()
        places = _places(trace)
        unchanging = trace.unchanging and trace.file == file  # otherwise it may be being written
        if unchanging and len(trace) <= _MOST_ENTRIES:
            with _cache_lock:
                _cache[file] = trace.reading, places
                while len(_cache) > _MOST_FILES:
                    _cache.popitem(last=False)
        yield trace, places


# -- recorded ----------------------------------------------------------------------------------------------------------
#
# The parts of a record, read from the trace.


def id_of(path: str, seq: int) -> str:
    """Return the id of the execution whose request is entry ``seq`` of this file."""
    return f"{os.path.splitext(os.path.basename(path))[0]}:{seq}"


def parts(trace: Trace, execution: Execution) -> dict[str, Any]:
    """Return the fields of its record; ``header`` and each of ``events`` by their fields, too."""
    received = execution.events[0]
    info = _info(received)
    decision, response = execution.last("router.decision"), execution.last("final.response")
    content, unreadable = (None, None) if response is None else _response(trace, response)
    reason = execution.reason if response is None else unreadable
    return {
        "header": {
            "execution_id": id_of(trace.path, received["seq"]),
            "run_id": received["run_id"],
            "created_utc_iso": _iso(received["ts_ns"]),
            "envelope_hash": info.get("envelope_hash", ""),
            "identity_hash": info.get("identity_hash", ""),
            "replayable": reason is None,
            "replayable_reason": reason,
            "redacted": response is not None and content is not None and _redacted(response, content),
        },
        "envelope": _value(trace, received["input"])[0],
        "router_decision": None if decision is None else _decision(trace, decision),
        "events": [_event(trace, number, entry) for number, entry in enumerate(execution.events, 1)],
        "final_response": content,
    }


def readable(tree: Any) -> tuple[Any, str | None]:
    """Return the value of a tree, or the tree itself and why its value is not complete."""
    try:
        return from_json(tree), None
    except NotReplayableError as error:
        return tree, error.what


def _value(trace: Trace, tree: Any) -> tuple[Any, str | None]:
    return readable(trace.expand(tree))


def _info(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return info_of(entry)


def _decision(trace: Trace, entry: Mapping[str, Any]) -> dict[str, Any]:
    asked, chosen = _value(trace, entry["input"])[0], _value(trace, entry["output"])[0]
    return {"agent": chosen["agent"], "intent": entry["name"], "reason": chosen["reason"], **asked}


def _response(trace: Trace, entry: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    content, unreadable = _value(trace, entry["output"])
    if "status" not in content:  # the whole response was too large to be recorded
        return None, unreadable
    return {**content, "error": _failure(trace, entry)}, unreadable


def _redacted(entry: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Return whether a secret is missing in the response: redacted here, or replaced by a placeholder before."""
    meta = meta_of(entry)
    return bool(meta.get("redacted") or _info(entry).get("redacted"))


def _failure(trace: Trace, entry: Mapping[str, Any]) -> Any:
    found = _info(entry).get("failure")
    return None if found is None else trace.expand(found)


def _event(trace: Trace, number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    payload: dict[str, Any] = {"name": entry["name"]}
    if entry["type"] == "intent.received":  # the envelope is a field of its own
        payload |= _value(trace, entry["output"])[0]
    elif entry["type"] == "final.response":
        output = trace.expand(entry["output"])
        payload |= {"status": output["status"]} if "status" in output else {}
    else:
        for part in ("input", "output"):
            payload |= _value(trace, entry[part])[0] or {}
    info = _info(entry)
    payload |= {key: trace.expand(info[key]) for key in ("failure", "exception") if key in info}
    kind = _EVENTS[entry["type"]]
    return {"seq": number, "type": kind, "payload": payload, "timestamp_ns": entry["ts_ns"], "entry": entry["seq"]}


#: The type of the event, by the type of the entry.
_EVENTS: Final = {
    kind: kind.upper().replace(".", "_")
    for kind in (
        "intent.received", "agent.attempt.start", "agent.attempt.end", "fallback.triggered", "fallback.exhausted",
        "router.decision", "final.response",
    )
}  # fmt: skip


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat()


# -- record ------------------------------------------------------------------------------------------------------------
#
# The record of one execution: a view of the trace, from the request to the final response.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHeader:
    """The header of a record: which execution it is, and whether it can be replayed from the record.

    ``execution_id`` is the run's id and the number of the request's entry. A partial execution is not ``replayable``;
    ``replayable_reason`` says why. ``redacted``: placeholders replace secrets, which the log does not keep, in the
    answer or in the reason for its absence.
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
    """One event of a record. ``seq`` (1, 2, 3 …) is the order, ``timestamp_ns`` informative, ``entry`` its place in the
    trace."""

    seq: int
    type: str
    payload: Mapping[str, Any]
    timestamp_ns: int
    entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """A request, the decisions about it, each event, and the response: everything as in the trace.

    ``router_decision`` and ``final_response`` are ``None`` if the execution did not get that far, and the latter if it
    could not be recorded; an envelope that could not be recorded is replaced by a marker (``{"$t": "opaque", …}``).
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
        """Return the record of every execution in a run, in the order of the requests; those of its child processes
        follow."""
        found = []
        for path in _paths(run, store):
            with indexed(path) as (trace, places):
                found += [_record(trace, place) for place in places]
        return found

    @classmethod
    def of(
        cls,
        run: str | os.PathLike[str] | HasPath,
        execution: str | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
    ) -> ExecutionRecord:
        """Return the record of the only execution in a run, or of the one with this ``execution_id``."""
        return record_at(*place_of(run, execution, store))

    @property
    def failure(self) -> StructuredFailure | None:
        """Why there is no answer, or ``None``."""
        error = None if self.final_response is None else self.final_response["error"]
        return None if error is None else StructuredFailure.from_dict(error)

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, under the names that other systems use. Values that are not JSON are
        tagged, as in a trace."""
        return {
            "header": {key: getattr(self.header, name) for name, key in _HEADER},
            "envelope": to_json(dict(self.envelope)),
            "routerDecision": None if self.router_decision is None else to_json(dict(self.router_decision)),
            "events": [{key: to_json(getattr(event, name)) for name, key in _EVENT} for event in self.events],
            "finalResponse": None if self.final_response is None else to_json(dict(self.final_response)),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> ExecutionRecord:
        """Create the record from the result of ``as_dict``. Raises ``InvalidRecordError``, a ``ValueError``, for
        anything else."""
        if not isinstance(tree, Mapping):
            raise _none(f"it is not an object but {tree!r:.80}")
        try:
            content = {key: readable(value)[0] for key, value in tree.items()}
        except (TypeError, ValueError, RecursionError) as error:
            raise _none(exception_text(error)) from None
        problem = wrong(content, schema())
        if problem is not None:
            raise _none(problem)
        header = {"redacted": False, **content["header"]}
        return cls(
            header=ExecutionHeader(**{name: header[key] for name, key in _HEADER}),
            envelope=content["envelope"],
            router_decision=content["routerDecision"],
            events=tuple(ExecutionEvent(**{name: event[key] for name, key in _EVENT}) for event in content["events"]),
            final_response=content["finalResponse"],
        )

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return orjson.dumps(self.as_dict()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> ExecutionRecord:
        """Create the record from the result of ``to_json``. Raises ``InvalidRecordError``, a ``ValueError``, for
        anything else."""
        try:
            tree = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise _none(str(error)) from None
        return cls.from_dict(tree)


def _none(problem: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"this is not a record of an execution: {problem}",
        next_action="`tracekit schema execution` prints what one looks like; ExecutionRecord.of(run) makes it from a trace",
    )


def _keys(kind: Any, names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((one.name, names.get(one.name, one.name)) for one in fields(kind))


#: The name in JSON of each field.
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
    """Return the JSON Schema (2020-12) of a record as JSON, a new object each time."""
    with open(os.path.join(os.path.dirname(__file__), "execution.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _some(ids: list[str]) -> str:
    """Return the first few as text."""
    return ", ".join(ids[:5]) + (f", … ({len(ids)} in all)" if len(ids) > 5 else "")


# -- reading -------------------------------------------------------------------------------------------------------------------


def _shown(run: object) -> str:
    return str(getattr(run, "id", run))


def _paths(run: Any, store: str | os.PathLike[str] | None) -> Iterator[str]:
    path = getattr(run, "path", None)
    if path is None:
        path = Store(store).find(run)
    yield path
    directory = os.path.dirname(os.path.abspath(path))
    where = Store(os.path.dirname(directory))
    if where.runs == directory:
        yield from where.segments(os.path.splitext(os.path.basename(path))[0])


def place_of(
    run: str | os.PathLike[str] | HasPath, execution: str | None, store: str | os.PathLike[str] | None
) -> tuple[str, int]:
    """Return the file of an execution, and its number there; see ``ExecutionRecord.of``."""
    found = [one for path in _paths(run, store) for one in _executions(path)]
    chosen = found if execution is None else [one for one in found if one[0] == execution]
    if len(chosen) == 1:
        return chosen[0][1:]
    ids = [one[0] for one in found]
    if not found:
        what, next_action = (
            f"no intent was routed in run {_shown(run)}",
            f"`tracekit show {_shown(run)}` says what happened in it",
        )
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


def record_at(path: str, number: int) -> ExecutionRecord:
    """Return the record of an execution by its file and number."""
    with indexed(path) as (trace, places):
        return _record(trace, places[number])


def _executions(path: str) -> list[tuple[str, str, int]]:
    """Return id, file and number of each execution in a file."""
    with indexed(path) as (_, places):
        return [(id_of(path, place[0]), path, number) for number, place in enumerate(places)]


def _record(trace: Trace, place: Sequence[int]) -> ExecutionRecord:
    content = parts(trace, Execution(trace.entry(seq) for seq in place))
    events = tuple(ExecutionEvent(**event) for event in content.pop("events"))
    return ExecutionRecord(header=ExecutionHeader(**content.pop("header")), events=events, **content)


# -- replay ---------------------------------------------------------------------------------------------------------
#
# The response of a recorded execution, from its record alone.

#: A hash, or a prefix long enough to identify one request.
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-fA-F]{12,64})")


def replay_execution(
    run: str | os.PathLike[str] | HasPath,
    execution: str | None = None,
    *,
    verify_envelope: bool | str | bytes | IntentEnvelope | Mapping[str, Any] = False,
    redact: Patterns = (),
    store: str | os.PathLike[str] | None = None,
) -> ReplayResult:
    """Return the response of a recorded execution. No agent is called; nothing is imported or run.

    ``verify_envelope=True`` hashes the recorded request again and compares it with the recorded hash. An envelope (also
    as dictionary or JSON), one of its two hashes, or at least the first 12 digits of one is compared with the record;
    an envelope in the form that the log keeps: ``redact`` are the patterns with which the run was recorded.

    Raises ``TraceIntegrityError`` or ``DivergenceError`` if they differ, ``EnvelopeError`` or ``TypeError`` for an
    invalid request, ``NotReplayableError`` for a partial execution.
    """
    path, number = place_of(run, execution, store)
    record = record_at(path, number)
    header = record.header
    if verify_envelope is True:
        _verify(record)
    elif verify_envelope is not False:
        _compare(record, verify_envelope, redact, path)
    response = record.final_response
    if not header.replayable or response is None:
        raise NotReplayableError(
            f"execution {header.execution_id} can't be replayed: {header.replayable_reason}",
            run_id=header.run_id,
            reason=header.replayable_reason,
            next_action=_advice(record, path),
        )
    return ReplayResult(
        payload=response["payload"],
        status=response["status"],
        error=record.failure,
        agent=response["metadata"]["agent"],
        run_id=header.run_id,
        redacted=header.redacted,
    )


def _advice(record: ExecutionRecord, path: str) -> str | None:
    """Return advice for an execution without an answer, or with an incomplete one."""
    if record.events[-1].type == "FINAL_RESPONSE":
        return _unrecorded(record.final_response)
    with indexed(path) as (trace, _):
        if trace.status.state == "complete":
            return "its run has ended, so nothing continues it: route the request again"
    return "`tracekit recovery scan` says whether its run may be resumed"


def _unrecorded(response: Mapping[str, Any] | None) -> str | None:
    try:
        from_json({**(response or {"$t": "opaque"}), "error": None})
    except NotReplayableError as error:
        return error.next_action
    return None


def _verify(record: ExecutionRecord) -> None:
    header = record.header
    actual = stable_hash(record.envelope)
    if actual != header.envelope_hash:
        if not_serialisable(record.envelope) is not None:
            raise NotReplayableError(
                f"the request of execution {header.execution_id} could not be recorded completely, so it can't be hashed again",
                run_id=header.run_id,
                reason="the request was too large, or nested too deep",
                next_action="compare an envelope, or its hash: verify_envelope=ENVELOPE",
            )
        raise TraceIntegrityError(
            f"the request of execution {header.execution_id} is not the one that was hashed: {actual}",
            run_id=header.run_id,
            recorded=header.envelope_hash,
            next_action="the trace was made by another program, or changed with its hashes; don't rely on it",
        )


def _compare(record: ExecutionRecord, value: object, redact: Patterns, path: str) -> None:
    header = record.header
    digest = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if digest is not None:
        wanted = f"sha256:{digest[1].lower()}"
        same = any(one.startswith(wanted) for one in (header.envelope_hash, header.identity_hash))
    else:
        hashes = _hashes(_envelope(value), redact, path)
        wanted, same = hashes[0], header.envelope_hash in hashes
    if not same:
        raise DivergenceError(
            f"execution {header.execution_id} is about another request",
            run_id=header.run_id,
            recorded=header.envelope_hash,
            actual=wanted,
            differences=[{"path": "envelope_hash", "recorded": header.envelope_hash, "actual": wanted}],
            next_action="`tracekit list --envelope-hash HASH` finds the runs of a request; "
            "where its run was recorded with redact=, say the same here",
        )


def _envelope(value: object) -> IntentEnvelope:
    if isinstance(value, IntentEnvelope):
        return value
    if isinstance(value, Mapping):
        return IntentEnvelope.from_dict(value)
    if isinstance(value, (str, bytes)):
        if isinstance(value, str) and not value.lstrip().startswith("{"):
            raise EnvelopeError(
                f"{value!r:.80} is neither an envelope in JSON nor a hash of one",
                key=None,
                next_action="a hash is `sha256:` and 64 hex digits, or the first 12 of them or more",
            )
        return IntentEnvelope.from_json(value)
    raise TypeError(
        f"verify_envelope is True, an IntentEnvelope, its dictionary, its JSON or its hash, not {type(value).__name__}"
    )


def _hashes(envelope: IntentEnvelope, redact: Patterns, path: str) -> list[str]:
    """Return the hashes that the log may have of a request: which secrets the recording process redacted is unknown
    here."""
    tree = envelope.as_dict()
    known = Redactor.of_process(redact, trace=path)
    redactors = (known, Redactor(redact, None, known.placeholders))
    return list(dict.fromkeys(stable_hash(one) for one in (*(r.without_secrets(tree) for r in redactors), tree)))
