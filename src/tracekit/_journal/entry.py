"""The vocabulary of the trace format: entry types and families, the hash chain, and size limits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .._lazy import NamedTuple, expression
from .._native import sha256_hex

__all__ = [
    "AT_ONCE",
    "BESIDE",
    "CHECKS",
    "CUT_OFF",
    "DEFAULT",
    "ENDS",
    "FAMILIES",
    "FORMAT_VERSION",
    "GENESIS",
    "IN_LOOP",
    "LOCK_TAKEN",
    "QUEUES",
    "READS",
    "REFUSALS",
    "SCHEMA_URI",
    "SIGNALS",
    "SINGLES",
    "SUFFIX",
    "TIMERS",
    "EntryFamily",
    "Limits",
    "branched_from",
    "event_id",
    "family_of",
    "imported_from",
    "info_of",
    "link",
    "load_schema",
    "meta_of",
    "read_by_library",
    "span_id",
    "split",
    "too_costly",
    "too_deep",
    "trace_id",
]

# -- entry -------------------------------------------------------------------------------------------------------------
#
# The types, families and fixed keys of entries.
#
# Format history (``v`` of every line):
#
# 1. 2026-11: the first.

FORMAT_VERSION: Final = 1


class EntryFamily(NamedTuple):
    """The entry types of one kind of step: its intent record, then chunks, then exactly one outcome."""

    intent: str
    chunk: str
    outcome: str
    error: str
    skipped: str


FAMILIES: Final = {
    "tool": EntryFamily("tool.call", "tool.chunk", "tool.return", "tool.error", "tool.skipped"),
    "llm": EntryFamily("llm.request", "llm.chunk", "llm.response", "llm.error", "llm.skipped"),
    "http": EntryFamily("http.request", "http.chunk", "http.response", "http.error", "http.skipped"),
    "process": EntryFamily("process.start", "process.chunk", "process.end", "process.error", "process.skipped"),
    "pipe": EntryFamily("pipe.open", "pipe.chunk", "pipe.end", "pipe.error", "pipe.skipped"),
    "span": EntryFamily("span.start", "span.chunk", "span.end", "span.end", "span.skipped"),
}

#: The entry types that end a run.
ENDS: Final = frozenset({"run.completed", "run.failed", "run.aborted"})

#: Steps of one entry, compared whole in a replay.
SINGLES: Final = frozenset(
    {"decision", "data", "state_transition", "policy.check", "breaker", "detection", "contract.violated"}
    | {"task_sent", "task_received", "response_sent", "object.patched", "fallback.triggered", "fallback.exhausted"}
    | {
        "process.signal",
        "intent.received",
        "agent.attempt.start",
        "agent.attempt.end",
        "router.decision",
        "final.response",
    }
)

#: Steps of one entry by which a program decides what it may do: a partial replay can have them decided again.
CHECKS: Final = ("policy.check", "breaker", "detection")

#: A call that was refused, in place of its intent record: ``meta.info.family`` says of which kind, ``error`` why.
REFUSALS: Final = frozenset({"contract.violated", "budget.exceeded"})

#: Reads without content to compare, aligned between the steps of their lane.
READS: Final = frozenset({"clock", "random"})


def read_by_library(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has clock readings or draws of an installed package. There may be more or fewer of these
    in a replay."""
    return "values" in entry and ":" in entry["name"]


# What the name of an event decides: the name of its ``clock`` entry.

#: It fires in an event loop, so that its entry has a place in the loop's progress.
IN_LOOP: Final = frozenset(
    ("asyncio.timer", "future.arrival", "loop.call", "loop.readable", "loop.signal", "process.eof", "process.exit")
)
#: Calls of the program's signal handlers: by an event loop or while it waited, or elsewhere.
SIGNALS: Final = frozenset(("signal", "loop.signal"))
#: Operations on a queue between threads. If a package made it, ``input.call`` has its name, and a replay may have more
#: or fewer.
QUEUES: Final = frozenset(("queue.get", "queue.put", "queue.miss", "queue.wait"))
#: A lock was taken that another thread had taken before: ``input.following`` says where. It is no event; a replay takes the
#: lock in that order if both threads still take it.
LOCK_TAKEN: Final = "lock.taken"
#: A call that a library made in a thread was cancelled before its result arrived: nobody waits for it.
CUT_OFF: Final = "future.cut_off"
#: A resumed run does not hold it back until the log has been followed to its end: it hands something over, and takes nothing
#: from another thread, as taking an item from a queue does.
AT_ONCE: Final = frozenset(("future.begin", "future.wait", "future.arrival", "loop.call", CUT_OFF))
#: It is a wait of some duration, however that is implemented.
TIMERS: Final = frozenset(("asyncio.timer", "time.sleep", "tracekit.backoff"))
#: By itself it does not make its lane one in which something is captured.
BESIDE: Final = frozenset(("future.begin", CUT_OFF, LOCK_TAKEN)) | IN_LOOP

_FAMILY_OF: Final = {
    kind: (family, role) for family, types in FAMILIES.items() for role, kind in zip(types._fields, types, strict=True)
}
_FAMILY_OF["span.end"] = ("span", "outcome")


def meta_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``meta`` of an entry; empty if it has none, or a malformed one."""
    meta = entry.get("meta")
    return meta if isinstance(meta, dict) else {}


def info_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``meta.info`` of an entry, what is recorded of a step but not compared; empty as in ``meta_of``."""
    info = meta_of(entry).get("info")
    return info if isinstance(info, dict) else {}


def imported_from(first: Mapping[str, Any]) -> str | None:
    """Return the tool whose recording was imported as this run, given its first entry; ``None`` for a run that tracekit
    recorded."""
    found = meta_of(first).get("imported")
    return str(found.get("from")) if isinstance(found, dict) else None


def branched_from(first: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Return the run whose replay wrote this one, and the kinds of steps that were live in it, given its first entry;
    ``None`` for a recorded run. Every other step was answered from that run, and not executed."""
    meta = meta_of(first)
    origin, live = meta.get("origin"), meta.get("live")
    if not isinstance(origin, dict) or not isinstance(live, list):
        return None
    return str(origin.get("run_id")), [str(kind) for kind in live]


def causes_of(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries that caused this one, each named by ``seq`` and what else is known of it."""
    causes = entry.get("cause")
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, Mapping) and type(cause.get("seq")) is int:
            yield cause


def family_of(kind: str) -> tuple[str, str] | None:
    """Return ``("tool", "intent")`` for ``tool.call``, say; ``None`` for a type that is not part of a step."""
    return _FAMILY_OF.get(kind)


# -- ids ---------------------------------------------------------------------------------------------------------------
#
# Ids of entries for other systems, computed from their position: they take no space in the trace, every reader can
# compute them, and exporting a run twice gives the same ids.

#: The variant digit, by the hash's digit in its place.
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def event_id(run_id: str, segment: str | None, seq: int) -> str:
    """Return the id of entry ``seq`` of a run (or of a segment), in the form of a random UUID."""
    text = sha256_hex(f"tracekit event\n{run_id}\n{segment or ''}\n{seq}".encode())
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


def span_id(run_id: str, segment: str | None, seq: int) -> str:
    """Return the W3C span id of an entry: the first 16 hex digits of its ``event_id``, never all zeros."""
    return event_id(run_id, segment, seq).replace("-", "")[:16]


def trace_id(run_id: str) -> str:
    """Return the W3C trace id of a run: 32 hex digits, never all zeros."""
    return sha256_hex(b"tracekit run\n" + run_id.encode())[:31] + "1"


# -- limits ------------------------------------------------------------------------------------------------------------
#
# Resource limits of a reader. A trace is untrusted input: the reader sets these limits, the file can't.


class Limits(NamedTuple):
    """``line``: bytes of one line. ``depth``: nesting of a value. ``expanded``: bytes of a value with all references resolved."""

    line: int = 64 << 20
    depth: int = 300
    expanded: int = 256 << 20


DEFAULT: Final = Limits()

_STRING: Final = expression(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ALL_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
#: The approximate memory of an empty container, and of a number in a list, in bytes.
_CONTAINER: Final = 96
_ITEM: Final = 40


def too_deep(line: bytes, depth: int) -> bool:
    """Return whether the JSON in ``line`` is nested deeper than ``depth``, without parsing it."""
    if line.count(b"[") + line.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", line).translate(_ALL_SQUARE, _NOT_BRACKETS)
    for _ in range(depth):
        if not brackets:
            return False
        # each round removes the innermost level everywhere
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def too_costly(line: bytes, allowed: int) -> bool:
    """Return whether parsing ``line`` could take much more memory than ``allowed``: sixty million empty lists fit in
    one line."""
    if len(line) * (_CONTAINER // 2) <= allowed:
        return False
    bare = _STRING.sub(b"", line)
    cost = len(line) + _CONTAINER * (bare.count(b"[") + bare.count(b"{")) + _ITEM * bare.count(b",")
    return cost > allowed


# -- chain -------------------------------------------------------------------------------------------------------------
#
# The hash chain: each line carries the SHA-256 of the previous hash and of its own bytes. A line ends in ``,"hash":"<64
# lower-case hex digits>"}``; the bytes before that are its *body*.

#: The hash that the first entry is chained to.
GENESIS: Final = b"0" * 64
#: The length of ``,"hash":"…"}``.
SUFFIX: Final = 75

_KEY: Final = b',"hash":"'


def link(prev_hash: bytes, body: bytes) -> str:
    """Return the hash of the entry with this ``body`` that follows the entry with ``prev_hash`` (64 ASCII characters)."""
    return sha256_hex(prev_hash + body)


def split(line: bytes) -> tuple[bytes, bytes]:
    """Return the body and the hash of a line (with or without newline). Raises ``ValueError`` if its end is malformed."""
    if line[-1:] == b"\n":
        line = line[:-1]
    if line[-SUFFIX : -SUFFIX + 9] != _KEY or line[-2:] != b'"}':
        raise ValueError('the line does not end in ,"hash":"…"}')
    return line[:-SUFFIX], line[-SUFFIX + 9 : -2]


# -- schema ------------------------------------------------------------------------------------------------------------
#
# The published JSON Schema (draft 2020-12) of one line of a trace, ``schema.json`` beside this file.

#: The ``$id`` of the schema of the format version that this tracekit writes.
SCHEMA_URI: Final = "urn:tracekit:trace:1"


def load_schema() -> dict[str, Any]:
    """Return the schema as a new dictionary."""
    import orjson

    with open(os.path.join(os.path.dirname(__file__), "schema.json"), "rb") as file:
        schema: dict[str, Any] = orjson.loads(file.read())
    return schema
