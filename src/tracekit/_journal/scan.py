"""One pass over a trace: every line verified, in memory bounded by the longest line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from ..errors import RunNotFoundError, TraceError, TraceIntegrityError, TraceVersionError
from .chain import GENESIS, SUFFIX
from .entry import FORMAT_VERSION
from .limits import DEFAULT, Limits, too_costly, too_deep

__all__ = ["ENDS", "TAIL", "RawEntry", "Scan", "not_found", "open_trace", "scan"]

#: The entry types that end a run in order.
ENDS: Final = frozenset({"run.completed", "run.failed", "run.aborted"})

_BUFFER: Final = 1 << 20
TAIL: Final = SUFFIX + 1
_KEY: Final = b',"hash":"'


class RawEntry(NamedTuple):
    """A verified line: where it is (bytes; lines from 1), its object, and its hash (64 ASCII characters)."""

    offset: int
    length: int
    line: int
    data: dict[str, Any]
    head: bytes


class Scan:
    """One pass over a file. After it, ``torn`` says how many bytes of a torn last line were left out."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.torn = 0
        self.good_end = 0

    def __iter__(self) -> Iterator[RawEntry]:
        with open_trace(self.path) as file:
            yield from self._lines(file)

    def _lines(self, file: BinaryIO) -> Iterator[RawEntry]:
        readline, loads, limits = file.readline, orjson.loads, self.limits
        depth, most, costly = limits.depth, limits.line + 1, limits.expanded // 48
        head, seq, offset, last_ts = GENESIS, 0, 0, 0
        run_id: str | None = None
        while line := readline(most):
            if line[-1] != 10:
                self._torn(file, line, seq + 1)
                return
            seq += 1
            hashed = sha256(head + line[:-TAIL]).hexdigest().encode()
            # The whole ending in one comparison: a flipped bit in the punctuation is damage as well.
            if line[-TAIL:] != b'%b%b"}\n' % (_KEY, hashed):
                raise self._damage(line, seq)
            if line.count(b"[") + line.count(b"{") > depth and too_deep(line, depth):
                raise self.bad(
                    seq, f"nests deeper than {depth}", next_action="raise the reader's limit, if you trust the file"
                )
            if len(line) > costly and too_costly(line, limits.expanded):
                raise self.bad(
                    seq, "would take too much memory", next_action="raise the reader's limit, if you trust the file"
                )
            try:
                data = loads(line)
                get = data.get
                stamp, own, parent, step, lane = get("ts_ns"), get("seq"), get("parent"), get("step"), get("lane")
                if run_id is None:
                    run_id = data["run_id"]
                if not (
                    get("v") == 1
                    and own == seq
                    and get("run_id") == run_id
                    and type(own) is type(stamp) is type(lane) is int
                    and stamp >= last_ts
                    and lane >= 0
                    and type(get("type")) is str
                    and (parent is None or (type(parent) is int and 0 < parent < seq))
                    and (step is None or (type(step) is int and 0 < step < seq))
                    and type(run_id) is str
                    and type(data["v"]) is int
                ):
                    raise self._wrong(data, seq, run_id, last_ts)
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise self.bad(seq, f"is not an entry: {error}") from None
            last_ts, head = stamp, hashed
            length = len(line)
            self.good_end = offset + length
            yield RawEntry(offset, length, seq, data, hashed)
            offset += length

    def _torn(self, file: BinaryIO, line: bytes, number: int) -> None:
        """A last line without newline is torn, however long; a long one *with* a newline is over the limit."""
        torn = len(line)
        while chunk := file.read(_BUFFER):
            if b"\n" in chunk:
                raise self.bad(
                    number,
                    f"is longer than {self.limits.line} bytes",
                    next_action="raise the reader's limit, if you trust the file",
                )
            torn += len(chunk)
        self.torn = torn

    def _damage(self, line: bytes, number: int) -> TraceIntegrityError | TraceVersionError:
        """Say as well as can be what is wrong with a line whose hash does not match."""
        try:
            found = {} if too_deep(line, self.limits.depth) else orjson.loads(line)
            seq, version = found.get("seq"), found.get("v")
        except (ValueError, AttributeError):
            return self.bad(number, "is not an entry: it is no JSON object, or was overwritten")
        if number == 1 and _newer(version):
            return self._version(version)
        if seq != number:
            return self.bad(number, f"should be entry {number} and says {seq!r}: lines were removed, doubled or moved")
        return self.bad(number, "does not match its hash: it, or the link to the line before it, was changed")

    def _wrong(
        self, data: dict[str, Any], seq: int, run_id: str, last_ts: int
    ) -> TraceIntegrityError | TraceVersionError:
        version = data.get("v")
        if seq == 1 and _newer(version):
            return self._version(version)
        stamp = data.get("ts_ns")
        if version != 1 or type(version) is not int:
            what = f"says format version {version!r} in a file of version {FORMAT_VERSION}"
        elif data.get("seq") != seq:
            what = f"should be entry {seq} and says {data.get('seq')!r}"
        elif data.get("run_id") != run_id:
            what = f"belongs to run {data.get('run_id')!r}, the file to {run_id!r}"
        elif type(stamp) is int and stamp < last_ts:
            what = "is dated before the entry above it"
        else:
            what = "has a key of the wrong type, or refers to no earlier entry (seq, type, ts_ns, lane, parent, step)"
        return self.bad(seq, what)

    def bad(self, line: int, what: str, *, next_action: str | None = None) -> TraceIntegrityError:
        return TraceIntegrityError(
            f"{self.path}, line {line} {what}",
            path=self.path,
            line=line,
            problem=what,
            next_action=next_action or "don't trust this trace; take a copy that verifies (`tracekit verify`)",
        )

    def _version(self, version: object) -> TraceVersionError:
        return TraceVersionError(
            f"{self.path} is of format version {version}; this tracekit reads up to {FORMAT_VERSION}",
            path=self.path,
            version=version,
            line=1,
            next_action="upgrade tracekit",
        )


def _newer(version: object) -> bool:
    return type(version) is int and version > FORMAT_VERSION


def open_trace(path: str) -> BinaryIO:
    try:
        return open(path, "rb", buffering=_BUFFER)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise not_found(path) from None
    except OSError as error:
        raise unreadable(path, error) from error


def not_found(path: str) -> RunNotFoundError:
    return RunNotFoundError(
        f"there is no trace {path}",
        store=os.path.dirname(path),
        next_action="`tracekit list` shows the runs of a store",
    )


def unreadable(path: str, error: OSError) -> TraceError:
    return TraceError(
        f"{path} can't be read: {error}", path=path, next_action="let this user read the file, or ask as one who may"
    )


def scan(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Iterator[RawEntry]:
    """The entries of a trace in order, each verified, in memory bounded by the longest line.

    A torn last line is left out. ``TraceIntegrityError`` at the first line that does not verify, ``TraceVersionError`` for a
    newer format, ``RunNotFoundError`` where there is no file.
    """
    return iter(Scan(os.fspath(path), limits))
