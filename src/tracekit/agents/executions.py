"""The executions in a trace: which entries belong to which request."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from .._journal.reader import Trace

__all__ = ["Execution", "executions", "received"]

#: What routing writes. An execution's entries are in one lane, inside one step, from ``intent.received`` to ``final.response``.
_TYPES: Final = frozenset(
    (
        "agent.attempt.start", "agent.attempt.end", "fallback.triggered", "fallback.exhausted", "router.decision",
        "final.response",
    )
)  # fmt: skip


class Execution:
    """The entries of one execution, in order."""

    __slots__ = ("events",)

    def __init__(self, received: dict[str, Any]) -> None:
        self.events: Final = [received]

    def last(self, kind: str) -> dict[str, Any] | None:
        """Its last entry of a type."""
        return next((entry for entry in reversed(self.events) if entry["type"] == kind), None)

    @property
    def reason(self) -> str:
        """Why it has no final response."""
        ended = {entry["input"]["attempt"] for entry in self.events if entry["type"] == "agent.attempt.end"}
        for entry in self.events:
            if entry["type"] == "agent.attempt.start" and entry["input"]["attempt"] not in ended:
                return f"it is partial: agent {entry['name']!r} had not finished when the run ended"
        for entry in self.events:
            if entry["type"] == "agent.attempt.end" and entry["output"]["status"] == "interrupted":
                by = ((entry.get("meta") or {}).get("info") or {}).get("exception", "it is not known by what")
                return f"it is partial: agent {entry['name']!r} was interrupted ({by})"
        return "it is partial: the run ended before the final response"


def executions(trace: Trace) -> list[Execution]:
    """Every execution, by the order of their requests."""
    found: list[Execution] = []
    under_way: dict[tuple[int, int], Execution] = {}
    for entry in trace.entries():
        kind = entry["type"]
        place = entry["lane"], entry.get("parent", 0)
        if kind == "intent.received":
            execution = under_way[place] = Execution(entry)
            found.append(execution)
        elif kind in _TYPES and place in under_way:
            under_way[place].events.append(entry)
            if kind == "final.response":
                del under_way[place]
    return found


def received(path: str, digest: str) -> bool:
    """Whether an intent in this file has a hash (its own, or that of its identity) that begins with these hex digits."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return False
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return any(_is_one(line, digest) for line in _lines(data, b'_hash":"sha256:' + digest.encode()))
    except OSError:
        return False


def _lines(data: mmap.mmap, wanted: bytes) -> Iterator[bytes]:
    at = data.find(wanted)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        yield data[start : end if end >= 0 else len(data)]
        at = data.find(wanted, end) if end >= 0 else -1


def _is_one(line: bytes, digest: str) -> bool:
    try:
        entry = orjson.loads(line)
    except ValueError:
        return False
    if not isinstance(entry, Mapping) or entry.get("type") != "intent.received":
        return False
    info = (entry.get("meta") or {}).get("info") or {}
    return any(str(info.get(key, "")).startswith(f"sha256:{digest}") for key in ("envelope_hash", "identity_hash"))
