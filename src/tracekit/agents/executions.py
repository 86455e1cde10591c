"""The executions in a trace: which entries belong to which request."""

from __future__ import annotations

import mmap
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson

from .. import _reality
from .._journal.reader import Reading, Trace

__all__ = ["Execution", "Places", "indexed", "received"]

#: Of each execution the ``seq`` of its entries.
Places = Sequence[Sequence[int]]

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

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.events: Final = list(events)

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


def _places(trace: Trace) -> Places:
    """Of each execution the entries that it consists of, by the order of the requests."""
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


#: Files are remembered by what tells them from others and from themselves before a change; the one that was asked for last comes last.
_known: Final[OrderedDict[tuple[int, ...], tuple[Reading, Places]]] = OrderedDict()
_knowing: Final = threading.Lock()
_MOST_FILES: Final = 8
_MOST_ENTRIES: Final = 1_000_000
#: Nanoseconds in which a file system may give two changes one instant.
_INSTANT: Final = 100_000_000


@contextmanager
def indexed(path: str) -> Iterator[tuple[Trace, Places]]:
    """The trace in a file that verifies, and the entries of each of its executions. A file that is as it was is not read through again."""
    with Trace(path) as trace:
        file = trace.file
        with _knowing:
            known = _known.get(file)
            if known is not None:
                _known.move_to_end(file)
        if known is not None:
            trace.reading = known[0]
            yield trace, known[1]
            return
        trace.check()
        places = _places(trace)
        settled = _reality.time_ns() - file[-1] > _INSTANT and trace.file == file  # else it may be being written
        if settled and len(trace) <= _MOST_ENTRIES:
            with _knowing:
                _known[file] = trace.reading, places
                while len(_known) > _MOST_FILES:
                    _known.popitem(last=False)
        yield trace, places


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
