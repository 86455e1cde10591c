"""A run at a glance: what its first and its last line say, unverified."""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

import orjson

from .limits import DEFAULT, too_deep
from .names import SUFFIX
from .scan import ENDS

__all__ = ["RunSummary", "first_entry", "last_entry", "summary"]

#: How much of the end of a file is read at first, and at most.
_EDGE: Final = 64 << 10
_MOST: Final = 8 << 20


class RunSummary(NamedTuple):
    """What a run's first and last line say; nothing is verified. Times in ns since the epoch, ``size`` in bytes.

    ``end`` is ``run.completed``, ``run.failed``, ``run.aborted``, or ``None`` for a run without an end.
    """

    run_id: str
    path: str
    name: str | None
    started_ns: int
    ended_ns: int | None
    end: str | None
    count: int | None  # type: ignore[assignment]  # hides tuple.count
    size: int


def summary(path: str) -> RunSummary:
    """What the first and the last whole line of a trace file say. Never raises for what the file holds."""
    run_id = os.path.basename(path)[: -len(SUFFIX)]
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, last = _parsed(_first_line(file)), _parsed(_last_line(file, size))
    except OSError:
        size, first, last = 0, {}, {}
    end = last.get("type") if last.get("type") in ENDS else None
    return RunSummary(
        run_id,
        path,
        first.get("name"),
        _whole_number(first.get("ts_ns")) or 0,
        _whole_number(last.get("ts_ns")) if end else None,
        end,
        _whole_number(last.get("seq")),
        size,
    )


def first_entry(path: str) -> dict[str, Any]:
    """What the first line of a trace file says, unverified; empty where there is none."""
    with open(path, "rb") as file:
        return _parsed(_first_line(file))


def last_entry(path: str) -> dict[str, Any]:
    """What the last whole line of a trace file says, unverified; empty where there is none, or a torn line behind it."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0 or os.pread(file.fileno(), 1, size - 1) != b"\n":
            return {}
        return _parsed(_last_line(file, size))


def _first_line(file: Any) -> bytes:
    line: bytes = file.readline(_MOST)
    return line if line.endswith(b"\n") else b""


def _last_line(file: Any, size: int) -> bytes:
    """The last whole line; empty where it is too long for a summary."""
    edge = _EDGE
    while True:
        file.seek(max(0, size - edge))
        tail: bytes = file.read(edge)
        end = tail.rfind(b"\n")
        start = tail.rfind(b"\n", 0, max(end, 0)) + 1
        if end >= 0 and (start > 0 or edge >= size):
            return tail[start : end + 1]
        if edge >= min(size, _MOST):
            return b""
        edge *= 8


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        data = {} if too_deep(line, DEFAULT.depth) else orjson.loads(line or b"{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None
