"""The parts of a record, as the trace of its execution has them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from .._canonical import dumps_in_order, from_json, to_json
from .._engine.redaction import PLACEHOLDER
from .._journal.reader import Trace
from ..errors import NotReplayableError
from .executions import Execution

__all__ = ["id_of", "parts", "readable"]


def id_of(path: str, seq: int) -> str:
    """The id of the execution whose request is in entry ``seq`` of this file."""
    return f"{os.path.splitext(os.path.basename(path))[0]}:{seq}"


def parts(trace: Trace, execution: Execution) -> dict[str, Any]:
    """The fields of its record; ``header`` and each of ``events`` by their fields, too."""
    received = execution.events[0]
    info = _info(received)
    decision, response = execution.last("router.decision"), execution.last("final.response")
    told, unreadable = (None, None) if response is None else _response(trace, response)
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
            "redacted": response is not None and told is not None and _redacted(response, told),
        },
        "envelope": _value(trace, received["input"])[0],
        "router_decision": None if decision is None else _decision(trace, decision),
        "events": [_event(trace, number, entry) for number, entry in enumerate(execution.events, 1)],
        "final_response": told,
    }


def readable(tree: Any) -> tuple[Any, str | None]:
    """The value that a tree stands for, or the tree itself and why that is not all."""
    try:
        return from_json(tree), None
    except NotReplayableError as error:
        return tree, error.what


def _value(trace: Trace, tree: Any) -> tuple[Any, str | None]:
    return readable(trace.expand(tree))


def _info(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return (entry.get("meta") or {}).get("info") or {}


def _decision(trace: Trace, entry: Mapping[str, Any]) -> dict[str, Any]:
    asked, chosen = _value(trace, entry["input"])[0], _value(trace, entry["output"])[0]
    return {"agent": chosen["agent"], "intent": entry["name"], "reason": chosen["reason"], **asked}


def _response(trace: Trace, entry: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    told, unreadable = _value(trace, entry["output"])
    if "status" not in told:  # all of it was too much
        return None, unreadable
    return {**told, "error": _failure(trace, entry)}, unreadable


def _redacted(entry: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a secret was taken out of what came of it: here, or before, where a placeholder was handed on."""
    return "redacted" in _info(entry) or PLACEHOLDER.search(dumps_in_order(to_json(told)).decode()) is not None


def _failure(trace: Trace, entry: Mapping[str, Any]) -> Any:
    found = _info(entry).get("failure")
    return None if found is None else trace.expand(found)


def _event(trace: Trace, number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    payload: dict[str, Any] = {"name": entry["name"]}
    if entry["type"] == "intent.received":  # the envelope stands beside the events
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


#: Entry type -> type of the event.
_EVENTS: Final = {
    kind: kind.upper().replace(".", "_")
    for kind in (
        "intent.received", "agent.attempt.start", "agent.attempt.end", "fallback.triggered", "fallback.exhausted",
        "router.decision", "final.response",
    )
}  # fmt: skip


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat()
