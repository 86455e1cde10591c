"""A trace: its verdict, its entries, its values.

Missing, torn and damaged are three answers: ``RunNotFoundError``, a last line without its newline (reported and left out),
and ``TraceIntegrityError`` with the number of the first line that does not verify.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import orjson

from ..errors import TraceIntegrityError
from .blobs import Blobs
from .chain import GENESIS
from .limits import DEFAULT, Limits
from .scan import ENDS, TAIL, RawEntry, Scan, not_found, open_trace, scan, unreadable

__all__ = ["ENDS", "Limits", "RawEntry", "Reading", "Trace", "Verdict", "scan"]

#: What tells an effect, or an end, among bytes that don't verify: each of these is synced as soon as it is written.
_EFFECTS: Final = (b'"side_effect":"irreversible"', b'"side_effect":"reversible"')
_MAY_BE_EFFECTS: Final = (b'"type":"tool.call"', b'"type":"http.request"')
_HARMLESS: Final = b'"side_effect":"read_only"'
_END_MARKS: Final = tuple(b'"type":"%b"' % end.encode() for end in sorted(ENDS))


class Verdict(NamedTuple):
    """What verifying a trace told.

    ``count``, ``head`` and ``last_good_seq`` speak of the entries that verify. ``problem`` and ``line`` say what is wrong and
    where, ``torn_bytes`` how much of a torn last line was left out. ``lost_tail`` marks damage of the kind that a power
    loss leaves: nothing among it was an effect. ``end`` is the type of the last entry of a sealed run; ``segments`` what that
    entry says of the run's other files, and ``lost`` how many entries of it could not be written while it was recorded.
    """

    state: Literal["sealed", "unsealed", "broken"]
    count: int  # type: ignore[assignment]  # hides tuple.count
    head: str
    problem: str | None = None
    line: int | None = None
    torn_bytes: int = 0
    lost_tail: bool = False
    last_good_seq: int = 0
    segments: tuple[dict[str, Any], ...] = ()
    end: str | None = None
    run_id: str | None = None
    size: int = 0
    lost: int = 0


class Reading(NamedTuple):
    """What was found out by reading a trace through: its verdict, and where its entries end."""

    verdict: Verdict
    offsets: array[int]


class Trace:
    """A trace file, verified in one pass that also indexes it (8 bytes an entry).

    What ``entries`` and ``entry`` return is new each time; what ``expand`` puts in is shared and not to be changed.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits = DEFAULT) -> None:
        self.path: Final = os.fspath(path)
        self.limits: Final = limits
        self._offsets = array("Q")
        #: The line that was read last.
        self._last: tuple[int, bytes] = (0, b"")
        self._verdict: Verdict | None = None
        self._error: TraceIntegrityError | None = None
        self._blobs: Final = Blobs(self.entry, self.path, limits)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(self.path) from None
        except OSError as error:
            raise unreadable(self.path, error) from error

    # -- verdict ---------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Verdict:
        """What verifying the whole file tells; the first use reads it through. ``TraceVersionError`` for a newer format."""
        if self._verdict is None:
            self._verdict = self._verify()
        return self._verdict

    @property
    def file(self) -> tuple[int, ...]:
        """What tells the file from others, and from itself before a change."""
        facts = os.fstat(self._fd)
        return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns

    @property
    def reading(self) -> Reading:
        """What reading it through has told, of one that verifies; to be handed to another trace of the same :attr:`file`."""
        return Reading(self.check(), self._offsets)

    @reading.setter
    def reading(self, known: Reading) -> None:
        self._verdict, self._offsets = known

    def check(self) -> Verdict:
        """The verdict on a trace that verifies, sealed or not; ``TraceIntegrityError`` on a broken one."""
        verdict = self.status
        if self._error is not None:
            raise self._error.fresh()
        return verdict

    def _verify(self) -> Verdict:
        offsets = self._offsets = array("Q", [0])
        scanned = Scan(self.path, self.limits)
        first: dict[str, Any] = {}
        last: RawEntry | None = None
        try:
            for last in scanned:
                if last.line == 1:
                    first = last.data
                offsets.append(last.offset + last.length)
        except TraceIntegrityError as error:
            self._error = error
        good = RawEntry(0, 0, 0, {}, GENESIS) if last is None else last
        return self._judge(scanned, first, good)

    def _judge(self, scanned: Scan, first: dict[str, Any], last: RawEntry) -> Verdict:
        error, count, kind = self._error, last.line, last.data.get("type")
        base = Verdict(
            "unsealed", count, last.head.decode(), last_good_seq=count, run_id=first.get("run_id"), torn_bytes=scanned.torn,
            size=os.fstat(self._fd).st_size,
        )  # fmt: skip
        if error is not None:
            facts = error.__dict__
            lost = count > 0 and _durable(first) and self._lost(scanned.good_end)
            return base._replace(state="broken", problem=facts["problem"], line=facts["line"], lost_tail=lost)
        if scanned.torn:
            return base._replace(problem=f"the last line is torn: {scanned.torn} bytes were left out", line=count + 1)
        if kind not in ENDS:
            return base._replace(problem="the run has no end" if count else "the file holds no entry")
        return self._sealed(base._replace(end=kind), last)

    def _sealed(self, base: Verdict, last: RawEntry) -> Verdict:
        said, segments = _summary(last.data)
        if type(said) is int and said != base.count:
            problem = f"says that the run has {said} entries; there are {base.count}"
            self._error = Scan(self.path, self.limits).bad(last.line, problem)
            return base._replace(state="broken", problem=problem, line=last.line)
        if type(said) is not int:
            return base._replace(problem="the run's end does not say how many entries there are", line=last.line)
        return base._replace(state="sealed", segments=segments, lost=_missing(last.data))

    def _lost(self, offset: int) -> bool:
        """Whether no effect and no end stands among the bytes from ``offset`` on, so that they may be cut off."""
        with open_trace(self.path) as file:
            file.seek(offset)
            while line := file.readline(self.limits.line):
                if len(line) == self.limits.line or _may_be_effect(line):
                    return False
        return True

    # -- entries ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many entries verify."""
        return self.status.count

    def entries(self, *, first: int = 1, damaged: bool = False) -> Iterator[dict[str, Any]]:
        """The entries from ``first`` on, verified while they are read.

        Where the trace is broken this raises ``TraceIntegrityError`` at the first wrong line; with ``damaged`` it stops there.
        """
        try:
            for raw in Scan(self.path, self.limits):
                if raw.line >= first:
                    yield raw.data
        except TraceIntegrityError:
            if not damaged:
                raise

    def entry(self, seq: int) -> dict[str, Any]:
        """The entry ``seq``, read from its place and checked against its hash. ``IndexError`` if there is none."""
        data: dict[str, Any] = orjson.loads(self.line(seq))
        return data

    def line(self, seq: int) -> bytes:
        """The line of the entry ``seq``, newline and all, checked against its hash. ``IndexError`` if there is none."""
        last, line = self._last
        if last == seq:
            return line
        if not 0 < seq <= self.status.count:
            raise IndexError(f"{self.path} has no entry {seq}")
        line, head = self._read(seq)
        if sha256(head + line[:-TAIL]).hexdigest().encode() != line[-67:-3]:
            raise Scan(self.path, self.limits).bad(seq, "was changed while the trace was being read")
        self._last = (seq, line)
        return line

    def hash_of(self, seq: int) -> str:
        """The hash of the entry ``seq``; of 0: what the first entry is chained to."""
        if seq == 0:
            return GENESIS.decode()
        return os.pread(self._fd, 64, self._offsets[seq] - 67).decode() if self.status.count >= seq else ""

    def end_of(self, seq: int) -> int:
        """Where the line of entry ``seq`` ends, in bytes from the start of the file."""
        if not 0 <= seq <= self.status.count:
            raise IndexError(f"{self.path} has no entry {seq}")
        return self._offsets[seq]

    def _read(self, seq: int) -> tuple[bytes, bytes]:
        start, end = self._offsets[seq - 1], self._offsets[seq]
        if seq == 1:
            return os.pread(self._fd, end, 0), GENESIS
        both = os.pread(self._fd, end - start + 67, start - 67)
        return both[67:], both[:64]

    def expand(self, value: Any, *, before: int | None = None) -> Any:
        """``value`` with every reference in it replaced by what it stands for. ``value`` itself is changed in place.

        What stands for one reference is one object wherever it appears, so that a long conversation costs its messages
        once; don't change it. ``before`` is the ``seq`` of the entry that holds the value: it may refer to earlier ones only.
        """
        return self._blobs.expand(value, self.status.count + 1 if before is None else before)

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        return f"<Trace {self.path}>"


def _durable(first: dict[str, Any]) -> bool:
    """Whether the run promised to sync its effects: without that nothing is known of what a power loss took."""
    meta = first.get("meta")
    return not (isinstance(meta, dict) and meta.get("durability") == "none")


def _may_be_effect(line: bytes) -> bool:
    if any(mark in line for mark in _EFFECTS) or any(mark in line for mark in _END_MARKS):
        return True
    return any(mark in line for mark in _MAY_BE_EFFECTS) and _HARMLESS not in line


def _missing(last: Mapping[str, Any]) -> int:
    meta = last.get("meta")
    said = meta.get("lost") if isinstance(meta, dict) else None
    return said if type(said) is int and said > 0 else 0


def _summary(end: dict[str, Any]) -> tuple[Any, tuple[dict[str, Any], ...]]:
    """What the last entry says: how many entries there are, and which other segments."""
    meta = end.get("meta")
    if not isinstance(meta, dict):
        return None, ()
    segments = meta.get("segments")
    listed = segments if isinstance(segments, list) else []
    return meta.get("count"), tuple(segment for segment in listed if isinstance(segment, dict))
