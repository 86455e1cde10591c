"""The vocabulary of the trace format: entry types and families, the hash chain, and how large a line may be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from .._lazy import NamedTuple, expression

__all__ = [
    "CUT_OFF",
    "DEFAULT",
    "ENDS",
    "FAMILIES",
    "FORMAT_VERSION",
    "GENESIS",
    "IN_LOOP",
    "QUEUES",
    "READS",
    "REFUSALS",
    "SCHEMA_URI",
    "SIGNALS",
    "SINGLES",
    "SUFFIX",
    "EntryFamily",
    "Limits",
    "event_id",
    "family_of",
    "imported_from",
    "link",
    "load_schema",
    "read_by_library",
    "span_id",
    "split",
    "too_costly",
    "too_deep",
    "trace_id",
]

# -- entry -------------------------------------------------------------------------------------------------------------
#
# The entries of a trace: their types, families and fixed keys.
#
# Format history (``v`` of every line):
#
# 1. 2026-11: the first.

FORMAT_VERSION: Final = 1


class EntryFamily(NamedTuple):
    """The entry types of one kind of step: its intent record, then pieces, then exactly one outcome."""

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

#: The entry types that end a run cleanly.
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

#: A call that was not made, in the place of its intent record: ``meta.info.family`` says of which kind, ``error`` why.
REFUSALS: Final = frozenset({"contract.violated", "budget.exceeded"})

#: Reads of the world that have no content to check, aligned between the steps of their lane.
READS: Final = frozenset({"clock", "random"})


def read_by_library(entry: Mapping[str, Any]) -> bool:
    """Whether an entry has readings of a clock, or draws, by an installed package: not the program's own, there may be more or fewer."""
    return "values" in entry and ":" in entry["name"]


#: What fires in an event loop, by the names of its entries.
IN_LOOP: Final = frozenset(
    ("asyncio.timer", "future.arrival", "loop.call", "loop.signal", "process.eof", "process.exit")
)
#: That a signal handler of the program was called: by an event loop or while that waited, or elsewhere.
SIGNALS: Final = frozenset(("signal", "loop.signal"))
#: What moves an item of a queue between threads. Where a package did that, ``input.call`` has its name: a replay may have more or fewer.
QUEUES: Final = frozenset(("queue.get", "queue.put", "queue.miss", "queue.wait"))
#: That a call which a library made in a thread was cancelled before its result came: nobody waits for that.
CUT_OFF: Final = "future.cut_off"

_FAMILY_OF: Final = {
    kind: (family, role) for family, types in FAMILIES.items() for role, kind in zip(types._fields, types, strict=True)
}
_FAMILY_OF["span.end"] = ("span", "outcome")


def imported_from(first: Mapping[str, Any]) -> str | None:
    """The tool whose recording a run was imported from, by its first entry; ``None`` of a run that tracekit recorded."""
    meta = first.get("meta")
    found = meta.get("imported") if isinstance(meta, dict) else None
    return str(found.get("from")) if isinstance(found, dict) else None


def family_of(kind: str) -> tuple[str, str] | None:
    """``("tool", "intent")`` for ``tool.call``; ``None`` for a type that is not part of a step."""
    return _FAMILY_OF.get(kind)


# -- ids ---------------------------------------------------------------------------------------------------------------
#
# Ids of entries for other systems, computed from their place: they take no room in the trace, any reader can compute them, and whoever
# writes a run twice writes the same ids.

#: The digit of the variant, by what the hash had in its place.
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def event_id(run_id: str, segment: str | None, seq: int) -> str:
    """The id of entry ``seq`` of a run (or of a segment of one), in the form of a random UUID."""
    text = sha256(f"tracekit event\n{run_id}\n{segment or ''}\n{seq}".encode()).hexdigest()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


def span_id(run_id: str, segment: str | None, seq: int) -> str:
    """The W3C span id of an entry: the beginning of its ``event_id``, 16 hex digits, never all zeros."""
    return event_id(run_id, segment, seq).replace("-", "")[:16]


def trace_id(run_id: str) -> str:
    """The W3C trace id that stands for a run: 32 hex digits, never all zeros."""
    return sha256(b"tracekit run\n" + run_id.encode()).hexdigest()[:31] + "1"


# -- limits ------------------------------------------------------------------------------------------------------------
#
# What a trace may ask of its reader. A trace is untrusted input: the reader sets these limits, the file can't.


class Limits(NamedTuple):
    """``line``: bytes of one line. ``depth``: nesting of a value. ``expanded``: bytes of a value with all references resolved."""

    line: int = 64 << 20
    depth: int = 300
    expanded: int = 256 << 20


DEFAULT: Final = Limits()

_STRING: Final = expression(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ALL_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
#: About what an empty container, and what a number in a list, costs in memory, in bytes.
_CONTAINER: Final = 96
_ITEM: Final = 40


def too_deep(line: bytes, depth: int) -> bool:
    """Whether the JSON in ``line`` nests deeper than ``depth``, without parsing it."""
    if line.count(b"[") + line.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", line).translate(_ALL_SQUARE, _NOT_BRACKETS)
    for _ in range(depth):
        if not brackets:
            return False
        # Each round takes away the innermost level everywhere.
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def too_costly(line: bytes, allowed: int) -> bool:
    """Whether parsing ``line`` could take much more memory than ``allowed``: sixty million empty lists fit in one line."""
    if len(line) * (_CONTAINER // 2) <= allowed:
        return False
    bare = _STRING.sub(b"", line)
    cost = len(line) + _CONTAINER * (bare.count(b"[") + bare.count(b"{")) + _ITEM * bare.count(b",")
    return cost > allowed


# -- chain -------------------------------------------------------------------------------------------------------------
#
# The hash chain: each line carries the SHA-256 of the hash before it and of its own bytes.
#
# A line ends in ``,"hash":"<64 lower-case hex digits>"}``; what stands before that is its *body*.

#: What the first entry is chained to.
GENESIS: Final = b"0" * 64
#: The length of ``,"hash":"…"}``.
SUFFIX: Final = 75

_KEY: Final = b',"hash":"'


def link(prev_hash: bytes, body: bytes) -> str:
    """The hash of the entry with this ``body`` after the entry with ``prev_hash`` (64 ASCII characters)."""
    return sha256(prev_hash + body).hexdigest()


def split(line: bytes) -> tuple[bytes, bytes]:
    """The body and the hash of a line (with or without its newline). ``ValueError`` where it doesn't end as a line must."""
    if line[-1:] == b"\n":
        line = line[:-1]
    if line[-SUFFIX : -SUFFIX + 9] != _KEY or line[-2:] != b'"}':
        raise ValueError('the line does not end in ,"hash":"…"}')
    return line[:-SUFFIX], line[-SUFFIX + 9 : -2]


# -- schema ------------------------------------------------------------------------------------------------------------
#
# The published JSON Schema (draft 2020-12) of one line of a trace; ``schema.json`` beside this file is it.

#: The ``$id`` of the schema of the format version that this tracekit writes.
SCHEMA_URI: Final = "urn:tracekit:trace:1"


def load_schema() -> dict[str, Any]:
    """The schema as a dictionary, new each time."""
    import orjson

    with open(os.path.join(os.path.dirname(__file__), "schema.json"), "rb") as file:
        schema: dict[str, Any] = orjson.loads(file.read())
    return schema
