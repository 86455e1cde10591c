"""Reads trace files: checks lines against the hash chain, resolves interned values, and reports damage.

Missing, torn and tampered files are three different results. Reading never imports, unpickles or evaluates anything
from a file.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from errno import EBADF
from functools import lru_cache, partial
from io import BufferedReader
from itertools import islice
from operator import and_
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, Literal, NamedTuple, Protocol, TypeVar

import orjson

from .. import _reality
from .._native import FORM, columns, sha256_hex, survey
from .._native.common import NEEDS_STEP, NEEDS_VALUES, OPAQUE, REFERS, Place
from .._reality import open_file, system
from ..errors import RunNotFoundError, TraceError, TraceIntegrityError, TraceVersionError
from . import indexes
from .durable import is_past
from .entry import (
    DEFAULT,
    ENDS,
    FAMILIES,
    FORMAT_VERSION,
    GENESIS,
    READS,
    SINGLES,
    SUFFIX,
    Limits,
    imported_from,
    meta_of,
    too_costly,
    too_deep,
)
from .packing import is_packed, nameless, unpacked

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "TAIL",
    "BlockCollector",
    "Collector",
    "EntryBlock",
    "Follower",
    "Limits",
    "RawEntry",
    "Scan",
    "Trace",
    "TraceReading",
    "Verdict",
    "not_found",
    "open_trace",
    "scan",
]

# -- scan --------------------------------------------------------------------------------------------------------------
#
# One pass over a trace that verifies every line, in memory bounded by the longest line.

_BUFFER: Final = 1 << 18
#: Added to the buffer for a small file.
_SMALL: Final = 1 << 12
TAIL: Final = SUFFIX + 1
_KEY: Final = b',"hash":"'
#: No index is kept of a smaller file (bytes), which is read in a few hundredths of a second.
_INDEXED: Final = 8 << 20


class RawEntry(NamedTuple):
    """A verified line: its position (bytes; lines count from 1), its object, and its hash (64 ASCII characters)."""

    offset: int
    length: int
    line: int
    data: dict[str, Any]
    head: bytes


#: The types whose entries can be used without parsing them, with the fields that such an entry must have.
_CODES: Final = (
    *((types.intent.encode(), 0) for types in FAMILIES.values()),
    *(
        (kind.encode(), NEEDS_STEP)
        for kind in dict.fromkeys(kind for one in FAMILIES.values() for kind in (one.outcome, one.error, one.chunk))
    ),
    *((kind.encode(), NEEDS_VALUES) for kind in sorted(READS)),
    *((kind.encode(), 0) for kind in sorted(SINGLES)),
    (b"blob", 0),
)


class EntryBlock:
    """Consecutive verified entries as columns, without parsing them. ``parents`` and ``steps`` are 0 if there is none."""

    __slots__ = ("_begin", "_codes", "_data", "_marks", "ends", "first", "lanes", "parents", "place", "steps")

    #: Marks of entries in which a value refers to another entry, and of entries with a value that could not be
    #: recorded.
    REFERS: Final = REFERS
    OPAQUE: Final = OPAQUE

    def __init__(self, data: bytes, begin: int, found: tuple[Any, ...]) -> None:
        _, place, ends, self._codes, self._marks, lanes, parents, steps = found
        self._data: Final = data
        #: The offset of the data in the file.
        self._begin: Final = begin
        self.place: Final = Place(*place)
        #: The ``seq`` of its first entry.
        self.first: Final[int] = self.place.seq - len(self._codes) + 1
        #: The offsets in the file at which the lines end.
        self.ends: Final = _numbers("Q", ends)
        self.lanes: Final = _numbers("I", lanes)
        self.parents: Final = _numbers("I", parents)
        self.steps: Final = _numbers("I", steps)

    def __len__(self) -> int:
        return len(self._codes)

    def raw(self, at: int) -> RawEntry:
        """Return one of its entries, parsed."""
        end = self.ends[at] - self._begin
        start = self._data.rfind(b"\n", 0, end - 1) + 1
        line = self._data[start:end]
        return RawEntry(self._begin + start, len(line), self.first + at, orjson.loads(line), line[-67:-3])

    def entry(self, at: int) -> dict[str, Any]:
        data: dict[str, Any] = self.raw(at).data
        return data

    def kinds(self, numbers: tuple[tuple[str, int], ...]) -> bytes:
        """Return the number of each entry's type; 0 for a type not in ``numbers``, and for an entry that lacks its
        type's usual fields."""
        found: bytes = self._codes.translate(_numbered(numbers))
        return found

    def has(self, marks: int) -> bool:
        """Return whether an entry has one of these marks."""
        return 0 in self._marks.translate(_without(marks))

    def stretches(self, kinds: bytes, marks: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of entries that are not of kind 0 and have none of these marks. Between two ranges, some of
        which are empty, lies one other entry."""
        marked = self._marks.translate(_without(marks))
        if 0 in marked:
            kinds = bytes(map(and_, kinds, marked))
        start = 0
        while (end := kinds.find(0, start)) >= 0:
            yield start, end
            start = end + 1
        yield start, len(kinds)


def _numbers(kind: str, data: bytes) -> array[int]:
    found = array(kind)
    found.frombytes(data)
    return found


@lru_cache(16)
def _numbered(numbers: tuple[tuple[str, int], ...]) -> bytes:
    known = dict(numbers)
    return bytes([0, *(known.get(kind.decode(), 0) for kind, _ in _CODES)]).ljust(256, b"\0")


@lru_cache(64)
def _without(marks: int) -> bytes:
    """Return a table that translates marks to 0 if they include one of these, else to 255."""
    return bytes(0 if number & marks else 255 for number in range(256))


class _Pieces:
    """A file that is read in pieces, and the position in the current piece."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file: Final = file
        #: How much is read at first.
        self._size = min(_BUFFER, size + 1)
        self.data = b""
        self.at = 0

    def more(self, most: int) -> bool:
        """Read a longer piece if a line of at most ``most`` bytes may continue past the current one; return whether it
        did."""
        rest = self.data[self.at :]
        if len(rest) >= most or b"\n" in rest:
            return False
        with _reality.off_loop():
            found = self._file.read(max(self._size, len(rest)))
        self._size = _BUFFER
        self.data, self.at = rest + found if rest else found, 0
        return bool(found)

    def readline(self, most: int) -> bytes:
        """Like a file's ``readline``, to be used once ``more`` has returned false."""
        start = self.at
        self.at = self.data.find(b"\n", start, start + most) + 1 or min(len(self.data), start + most)
        return self.data[start : self.at]

    def read(self, size: int) -> bytes:
        rest = self.data[self.at :]
        self.at = len(self.data)
        return rest or self._file.read(size)


class _Lines(Protocol):
    def readline(self, most: int, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...


class Scan:
    """One pass over a file, from its beginning or from behind an entry that was verified earlier.

    Afterwards ``torn`` is the number of bytes of a torn last line that were left out, and ``content`` the SHA-256 of
    the whole file if requested.
    """

    def __init__(self, path: str, limits: Limits, after: RawEntry | None = None, *, hashed: bool = False) -> None:
        self.path = path
        self.limits = limits
        self.torn = 0
        self.content: str | None = None
        self._hashed: Final = hashed
        #: The size of the file when the pass began.
        self._size = 0
        self._after: Final = after
        self.good_end = 0 if after is None else after.offset + after.length

    def __iter__(self) -> Iterator[RawEntry]:
        with self._open() as file:
            yield from self._lines(file, None if self._after is None else _place(self._after))

    def blocks(self, keys: tuple[tuple[bytes, int], ...]) -> Iterator[RawEntry | EntryBlock]:
        """Yield the same entries, in blocks where they have the form that a journal writes; these ``keys`` in ``meta``
        are marked with the given bits."""
        with self._open() as file:
            place = None if self._after is None else _place(self._after)
            yield from self._lines(file, place) if FORM == "Python" else self._blocks(file, place, keys)

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with open_trace(self.path) as file:
            self._size = system.fstat(file.fileno()).st_size
            if self._after is not None:
                file.seek(self.good_end)
            if not self._hashed:
                yield file
                return
            content = indexes.ContentReader(file)
            with BufferedReader(content, _BUFFER) as buffered:
                yield buffered
                self.content = content.digest()

    def _blocks(
        self, file: BinaryIO, place: Place | None, keys: tuple[tuple[bytes, int], ...]
    ) -> Iterator[RawEntry | EntryBlock]:
        pieces, limits = _Pieces(file, self._size), self.limits
        most = limits.line + 1
        within = min(most, limits.expanded // 48), limits.depth
        while True:
            start = pieces.at
            found = None if place is None else columns(pieces.data, start, place, within, _CODES, keys)
            if found is not None:
                assert place is not None
                block = EntryBlock(pieces.data, place.offset - start, found)
                pieces.at, place = found[0], block.place
                self.good_end = place.offset
                yield block
            elif not pieces.more(most):
                # the first line, the end, and any line that is unusual or wrong
                last = next(self._lines(pieces, place), None)
                if last is None:
                    return
                yield last
                place = _place(last)

    def _lines(self, file: _Lines, after: Place | None) -> Iterator[RawEntry]:
        readline, loads, limits, new = file.readline, orjson.loads, self.limits, tuple.__new__
        depth, most, costly = limits.depth, limits.line + 1, limits.expanded // 48
        shallow = 2 * depth  # every bracket opened is closed
        head, seq, offset, last_ts = GENESIS, 0, 0, 0
        run_id: str | None = None
        if after is not None:
            seq, offset, head, last_ts, encoded = after
            run_id = encoded.decode()
        while line := readline(most):
            if line[-1] != 10:
                self._torn(file, line, seq + 1)
                return
            seq += 1
            hashed = sha256_hex(head + line[:-TAIL]).encode()
            # The whole ending in one comparison: a flipped bit in the punctuation is damage as well.
            if line[-TAIL:] != b'%b%b"}\n' % (_KEY, hashed):
                raise self._damage(line, seq)
            length = len(line)
            if length > shallow and line.count(b"[") + line.count(b"{") > depth and too_deep(line, depth):
                raise self.bad(
                    seq, f"nests deeper than {depth}", next_action="raise the reader's limit, if you trust the file"
                )
            if length > costly and too_costly(line, limits.expanded):
                raise self.bad(
                    seq, "would take too much memory", next_action="raise the reader's limit, if you trust the file"
                )
            try:
                data = loads(line)
                get = data.get
                version, stamp, own, lane = get("v"), get("ts_ns"), get("seq"), get("lane")
                parent, step, run = get("parent"), get("step"), get("run_id")
                if run_id is None:
                    run_id = data["run_id"]
                if not (
                    type(own) is type(stamp) is type(lane) is type(version) is int
                    and own == seq
                    and version == 1
                    and run == run_id
                    and stamp >= last_ts
                    and lane >= 0
                    and type(get("type")) is type(run) is str
                    and (parent is None or (type(parent) is int and 0 < parent < seq))
                    and (step is None or (type(step) is int and 0 < step < seq))
                ):
                    raise self._wrong(data, seq, run_id, last_ts)
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise self.bad(seq, f"is not an entry: {error}") from None
            last_ts, head = stamp, hashed
            self.good_end = offset + length
            yield new(RawEntry, (offset, length, seq, data, hashed))
            offset += length

    def _torn(self, file: _Lines, line: bytes, number: int) -> None:
        """A last line without newline is torn, whatever its length; a line *with* newline that is too long exceeds the
        limit."""
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
        """Describe as precisely as possible what is wrong with a line whose hash does not match."""
        try:
            found = {} if too_deep(line, self.limits.depth) else orjson.loads(line)
            seq, version = found.get("seq"), found.get("v")
        except (ValueError, AttributeError):
            found, seq, version = {}, None, None
        if number == 1 and seq is None:
            return self.bad(
                1, "is not the first entry of a trace: this is another file, or its beginning was overwritten"
            )
        if not found:
            return self.bad(number, "is not an entry: it is not a JSON object, or was overwritten")
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


def _place(entry: RawEntry) -> Place:
    """Return the position after an entry."""
    data = entry.data
    return Place(entry.line, entry.offset + entry.length, entry.head, data["ts_ns"], data["run_id"].encode())


def _newer(version: object) -> bool:
    return type(version) is int and version > FORMAT_VERSION


def open_trace(path: str) -> BinaryIO:
    """Open the content of a trace file, decompressed if necessary."""
    try:
        fd = system.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = unpacked(fd, path) if is_packed(fd) else fd
        except BaseException:
            system.close(fd)
            raise
        if content != fd:
            system.close(fd)
        try:
            # A small file is read at once, without a large buffer.
            return open_file(content, "rb", buffering=min(_BUFFER, system.fstat(content).st_size + _SMALL))
        except BaseException:
            system.close(content)
            raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise not_found(path) from None
    except OSError as error:
        raise unreadable(path, error) from error


def _content(fd: int, path: str) -> int:
    """Return the decompressed content of a compressed file; empty if it is damaged, since reading it then reports the
    damage."""
    try:
        return unpacked(fd, path)
    except TraceIntegrityError:
        return nameless()
    finally:
        system.close(fd)


def not_found(path: str) -> RunNotFoundError:
    return RunNotFoundError(
        f"there is no trace {path}",
        store=os.path.dirname(path),
        next_action="`tracekit list` shows the runs of a store",
    )


def unreadable(path: str, error: OSError) -> TraceError:
    return TraceError(
        f"{path} can't be read: {error}", path=path, next_action="let this user read the file, or be a user who may"
    )


def scan(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Iterator[RawEntry]:
    """Yield the entries of a trace in order, each verified, in memory bounded by the longest line.

    A torn last line is left out. Raises ``TraceIntegrityError`` at the first line that does not verify,
    ``TraceVersionError`` for a newer format, and ``RunNotFoundError`` if there is no file.
    """
    return iter(Scan(os.fspath(path), limits))


# -- blobs -------------------------------------------------------------------------------------------------------------
#
# Resolves references to values in earlier entries:
#
# - ``{"$ref": seq}``: the value of a ``blob`` entry.
# - ``{"$ref": seq, "at": ["input", key …]}``: a string, or a list, at that path in an entry; with a number behind the
#   path of a list, one of its elements.
# - ``{"$extend": seq, "at": …, "n": …, "v": […]}``: the first ``n`` elements (default: all) of the list at that path, and
#   more. In a path, numbers are places in the ``v`` that is written there.
#
# References only point backwards, so there are no cycles. Nothing here recurses, and what they refer to is shared.

#: How much of what was resolved is cached, in bytes of its lines, and how many elements of assembled lists (but always
#: the last list).
_KEEP: Final = 32 << 20
_KEEP_ITEMS: Final = 1 << 20
#: How much is read at once where the entries from one on are that small: most are read in order.
_AHEAD: Final = 1 << 14
_NODE: Final = 8

#: A path in an entry. What is at a path in an entry; without a path, the value of a blob.
_Path = tuple["int | str", ...]
_Target = tuple[int, _Path]


class _Slot(NamedTuple):
    """A place that holds a reference: ``container[key]`` at nesting ``depth``, in the element ``top`` of a list."""

    container: Any
    key: Any
    node: dict[str, Any]
    seq: int
    at: _Path
    depth: int
    top: int


class _Source:
    """The input and output of an entry that is referred to, as read.

    ``nodes`` are the references in it, by the identity of the container and the key there: once a list in it is
    resolved, they stand there no longer. ``units`` are what is resolved, by path.
    """

    __slots__ = ("cost", "held", "nodes", "type", "units")

    def __init__(self, entry: dict[str, Any]) -> None:
        self.type: Final = entry.get("type")
        self.held: Final = {key: entry[key] for key in ("input", "output") if key in entry}
        self.nodes: Final[dict[tuple[int, Any], dict[str, Any]]] = {}
        self.units: Final[dict[_Path, _Unit]] = {}
        self.cost, _, found = survey([self.held], 0, 0, _NODE)
        for container, key, node, _ in found:
            self.nodes[id(container), key] = node
            if "$extend" in node and "v" in node:
                size, _, more = survey(node, "v", 0, _NODE)
                self.cost += size
                found += more

    def at(self, path: _Path) -> Any:
        """Return what is written at ``path``; ``None`` if there is nothing, or a reference on the way or there."""
        at: Any = self.held
        if not self.nodes:  # most have no reference: nothing on the way can be one
            try:
                for key in path:
                    at = at[key] if type(at) in _CONTAINERS else None
            except (LookupError, TypeError):
                return None
            return at
        for key in path:
            if type(at) is dict and "$extend" in at:
                at = at.get("v")
            node = self.nodes.get((id(at), key))
            if node is None:
                try:
                    node = at[key] if type(at) in _CONTAINERS else None
                except (LookupError, TypeError):
                    node = None
            elif "$ref" in node:
                node = None
            if node is None:
                return None
            at = node
        return at


_CONTAINERS: Final = (dict, list)


class _Opened(NamedTuple):
    """A list as read, or a blob with a single value: its own elements, and the list that it extends, if any, up to
    ``cut``."""

    held: list[Any]
    is_list: bool
    base: _Target | None
    cut: int
    slots: list[_Slot]
    sizes: list[tuple[int, int]]


class _Unit:
    """The resolved elements of one list, or the value of a blob. ``size`` and ``depth`` include what the list extends."""

    __slots__ = (
        "base", "cut", "depth", "depths", "is_list", "jump", "length", "rank", "size", "sizes", "target", "value",
    )  # fmt: skip

    def __init__(self, target: _Target, opened: _Opened, base: _Unit | None, cut: int) -> None:
        base = None if base is None else base.with_all(cut)
        self.target: Final = target
        self.value: Any = opened.held
        self.is_list: Final = opened.is_list
        self.base: Final[_Unit | None] = base
        self.cut: Final[int] = cut
        #: Its number in the chain of lists that extend one another, and a list some way down: every second one reaches
        #: further, so that any list is found in a number of jumps that grows with the logarithm of the chain.
        self.rank: Final[int] = 0 if base is None else base.rank + 1
        self.jump: Final[_Unit] = self if base is None else base.far()
        self.length: Final = cut + len(opened.held)
        self.sizes: Final = [size for size, _ in opened.sizes]
        self.depths: Final = [depth for _, depth in opened.sizes]
        self.size: int = _NODE if base is None else base.size_of(cut)
        self.depth: int = 1 if base is None else base.depth

    def with_all(self, count: int) -> _Unit:
        """Return the last list in its chain whose first ``count`` elements are those of this one, and which has some of
        them itself."""
        at = self
        while at.base is not None and count <= at.cut:
            at = at.jump if at.jump.base is not None and count <= at.jump.cut else at.base
        return at

    def far(self) -> _Unit:
        """Return the list to which one that extends this one can jump."""
        there = self.jump
        return there.jump if self.rank - there.rank == there.rank - there.jump.rank else self

    def size_of(self, count: int) -> int:
        """Return the size of its first ``count`` elements, which are more than those of the list that it extends."""
        own = count - self.cut
        return self.size - sum(self.sizes[own:])


class Blobs:
    """The values that the entries of one trace refer to. ``load`` reads an entry; ``path`` is for messages."""

    def __init__(self, load: Callable[[int], dict[str, Any]], path: str, limits: Limits) -> None:
        self._load: Final = load
        self._path: Final = path
        self._limits: Final = limits
        self._sources: Final[dict[int, _Source]] = {}
        #: The bytes of all sources, and of what has been read for the value that is being expanded.
        self._kept = self._spent = 0
        #: Assembled lists, and the number of their elements.
        self._lists: Final[dict[_Target, list[Any]]] = {}
        self._items = 0
        self._lock: Final = _reality.OwnLock()
        self._at_work = False

    def expand(self, value: Any, before: int) -> Any:
        """Resolve the references in ``value`` of the entry ``before``, in place."""
        if not isinstance(value, (dict, list)):
            return value
        holder = [value]
        slots: list[_Slot] = []
        size, _ = self._survey(holder, 0, slots, before)
        if not slots:  # the common case, which needs nothing that is shared
            return value
        with self._lock:
            if self._at_work:  # a finalizer or a signal handler has interrupted this thread right here
                return Blobs(self._load, self._path, self._limits).expand(holder[0], before)
            self._at_work = True
            try:
                self._trim()
                self._spent = 0
                self._resolve(self._needs(slots, before))
                for slot in reversed(slots):  # what is in an extension comes after it
                    size += self._fill(slot, before)[0]
                    self._within(size, 0, before)
            finally:
                self._at_work = False
        return holder[0]

    # -- one value -----------------------------------------------------------------------------------------------------

    def _survey(
        self, container: Any, key: Any, slots: list[_Slot], before: int, depth: int = 0, top: int = 0
    ) -> tuple[int, int]:
        """Collect every reference below ``container[key]``; return the size of the rest and its depth."""
        size, deepest, found = survey(container, key, depth, _NODE)
        for holder, at, node, level in found:
            slots.append(self._slot(holder, at, node, level, before, top))
            if "$extend" in node:
                more, deep, inner = survey(node, "v", level, _NODE)
                size, deepest = size + more, max(deepest, deep)
                found += inner
        return size, deepest

    def _slot(self, container: Any, key: Any, node: dict[str, Any], depth: int, before: int, top: int) -> _Slot:
        if "$extend" in node:
            seq, at, _, _ = self._extension(node, before)
        else:
            path = _path(node["at"]) if "at" in node else ()
            seq, at = node["$ref"], path or ()
            if type(seq) is not int or path is None or len(node) != (2 if path else 1):
                raise self._bad(before, f"contains something that is not a reference: {_short(node)}")
            if not 0 < seq < before:
                raise self._bad(before, f"refers to entry {seq}, which is not an earlier one")
        return _Slot(container, key, node, seq, at, depth, top)

    def _extension(self, node: dict[str, Any], before: int) -> tuple[int, _Path, int, list[Any]]:
        """Return what a list extends, up to which element (-1: all of it), and its own elements."""
        seq, at, cut, own = node["$extend"], _path(node.get("at")), node.get("n", -1), node.get("v")
        right = type(seq) is type(cut) is int and node.keys() <= _EXTENSION and (cut >= 0 or "n" not in node)
        if not right or not isinstance(own, list) or at is None or int in map(type, at):
            raise self._bad(before, f"extends a list in an invalid way: {_short(node)}")
        if not 0 < seq < before:
            raise self._bad(before, f"extends entry {seq}, which is not an earlier one")
        return seq, at, cut, own

    def _fill(self, slot: _Slot, line: int) -> tuple[int, int]:
        """Replace a reference by its value; return the value's size, and the resulting depth."""
        if "$extend" in slot.node:
            value, size, depth = self._extended(slot, line)
        elif not slot.at:
            unit = self._units(slot.seq)[()]
            value, size, depth = unit.value if unit.is_list else unit.value[0], unit.size, unit.depth
        else:
            value, size, depth = self._part(slot.seq, slot.at, line)
        self._within(size, slot.depth + depth, line)
        slot.container[slot.key] = value
        return size, slot.depth + depth

    def _part(self, seq: int, at: _Path, line: int) -> tuple[Any, int, int]:
        found = self._source(seq).at(at)
        if isinstance(found, str):
            return found, len(found), 0
        units = self._units(seq)
        if at in units:
            return self._whole(units[at]), units[at].size, units[at].depth
        unit, place = units[at[:-1]], at[-1]
        assert type(place) is int
        return unit.value[place], unit.sizes[place], max(0, unit.depths[place] - 1)

    def _extended(self, slot: _Slot, line: int) -> tuple[list[Any], int, int]:
        """Return a list that extends another one, as its own object; its own elements are counted where they are."""
        _, _, cut, own = self._extension(slot.node, line)
        unit = self._units(slot.seq)[slot.at]
        cut = self._cut(slot.seq, unit, cut, line)
        size = unit.with_all(cut).size_of(cut)
        self._within(size, slot.depth + unit.depth, line)
        return self._whole(unit)[:cut] + own, size, unit.depth

    def _cut(self, seq: int, unit: _Unit, cut: int, line: int) -> int:
        if cut > unit.length:
            raise self._bad(line, f"extends entry {seq}, which holds no list of that length")
        return unit.length if cut < 0 else cut

    def _whole(self, unit: _Unit) -> Any:
        """Return a list; those that extend others are assembled without recursion and without copying copies."""
        if unit.base is None:
            return unit.value
        found = self._lists.pop(unit.target, None)
        if found is None:
            found = self._assemble(unit)
            self._items += len(found)
            self._spend(len(found) * _NODE, unit.target[0])
        self._lists[unit.target] = found
        while self._items > _KEEP_ITEMS and len(self._lists) > 1:
            self._items -= len(self._lists.pop(next(iter(self._lists))))
        return found

    def _assemble(self, unit: _Unit) -> list[Any]:
        chain: list[_Unit] = []
        whole: list[Any] = []
        at: _Unit | None = unit
        while at is not None:
            if at.target in self._lists:
                whole = list(self._lists[at.target])
                break
            chain.append(at)
            at = at.base
        for link in reversed(chain):
            del whole[link.cut :]
            whole += link.value
        return whole

    # -- what they need ------------------------------------------------------------------------------------------------

    def _needs(self, slots: Iterable[_Slot], line: int) -> list[_Target]:
        """Return the lists and blobs that references need; strings need none."""
        found: dict[_Target, None] = {}
        for slot in slots:
            at = slot.at
            if at:
                target = (slot.seq, at) if "$extend" in slot.node else self._list_at(slot.seq, at, line)
                if target is not None:
                    found[target] = None
            else:
                found[slot.seq, ()] = None
        return [*found]

    def _list_at(self, seq: int, at: _Path, line: int) -> _Target | None:
        """Return the list that is at a path, or has its element there; ``None`` for a string."""
        node = self._source(seq).at(at)
        if isinstance(node, str):
            return None
        if node is not None:
            if type(at[-1]) is int:
                at = at[:-1]
            if int not in map(type, at) and (at[:1] == ("output",) or at[:1] == ("input",)):
                return seq, at
        raise self._bad(line, f"refers to a part {_short([*at])} of entry {seq}, which does not have it")

    def _source(self, seq: int) -> _Source:
        """Return an entry as read, which is kept until the value that is being expanded is complete."""
        found = self._sources.pop(seq, None)
        if found is None:
            found = _Source(self._load(seq))
            self._kept += found.cost
            self._spend(found.cost, seq)
        self._sources[seq] = found
        return found

    def _units(self, seq: int) -> dict[_Path, _Unit]:
        """Return what is resolved of an entry."""
        source = self._sources.get(seq)
        return {} if source is None else source.units

    def _resolve(self, wanted: Iterable[_Target]) -> None:
        """Load what is ``wanted``, and all that it refers to, dependencies first."""
        pending = list(wanted)
        opened: dict[_Target, _Opened] = {}
        while pending:
            target = pending[-1]
            if target[1] in self._units(target[0]):
                pending.pop()
                continue
            if target not in opened:
                opened[target] = found = self._open(*target)
                needs = self._needs(found.slots, target[0]) + ([] if found.base is None else [found.base])
                missing = [need for need in needs if need[1] not in self._units(need[0])]
                if missing:
                    pending.extend(missing)
                    continue
            self._units(target[0])[target[1]] = self._close(target, opened.pop(target))
            pending.pop()

    def _open(self, seq: int, path: _Path) -> _Opened:
        source = self._source(seq)
        base: _Target | None = None
        cut, slots = -1, list[_Slot]()
        if path:
            value = None if source.type == "blob" else source.at(path)
            if isinstance(value, dict) and "$extend" in value:
                of, at, cut, value = self._extension(value, seq)
                base = (of, at)
            if not isinstance(value, list):
                raise self._bad(seq, f"is referred to as having a list at {_short([*path])}, and has none")
        elif source.type != "blob":
            raise self._bad(seq, f"is referred to as a blob and is a {_short(source.type)}")
        elif "output" not in source.held:
            raise self._bad(seq, "is referred to as a blob and holds nothing")
        else:
            value = source.held["output"]
        is_list = isinstance(value, list)
        held = value if is_list else [value]
        sizes = [self._survey(held, i, slots, seq, 1 if is_list else 0, i) for i in range(len(held))]
        return _Opened(held, is_list, base, cut, slots, sizes)

    def _close(self, target: _Target, opened: _Opened) -> _Unit:
        """Resolve a list or blob whose dependencies are loaded."""
        seq, below, cut = target[0], None, 0
        if opened.base is not None:
            below = self._units(opened.base[0])[opened.base[1]]
            cut = self._cut(opened.base[0], below, opened.cut, seq)
        unit = _Unit(target, opened, below, cut)
        for slot in reversed(opened.slots):
            size, depth = self._fill(slot, seq)
            unit.sizes[slot.top] += size
            unit.depths[slot.top] = max(unit.depths[slot.top], depth)
            self._within(unit.sizes[slot.top], 0, seq)
        unit.depth = max([unit.depth, *unit.depths])
        unit.size += sum(unit.sizes)
        self._within(unit.size, unit.depth, seq)
        return unit

    def _trim(self) -> None:
        """Forget the entries that were not used for longest, with what was resolved in them."""
        while self._kept > _KEEP and self._sources:
            self._kept -= self._sources.pop(next(iter(self._sources))).cost

    # -- limits --------------------------------------------------------------------------------------------------------

    def _spend(self, size: int, line: int) -> None:
        self._spent += size
        self._within(self._spent, 0, line)

    def _within(self, size: int, depth: int, line: int) -> None:
        if size > self._limits.expanded:
            raise self._bad(line, f"expands to more than {self._limits.expanded} bytes")
        if depth > self._limits.depth:
            raise self._bad(line, f"expands to more than {self._limits.depth} levels")

    def _bad(self, line: int, what: str) -> TraceIntegrityError:
        return TraceIntegrityError(
            f"{self._path}, line {line} {what}",
            path=self._path,
            line=line,
            step=line,
            problem=what,
            next_action="don't trust this trace; the reader's limits can be raised if you do",
        )


_EXTENSION: Final = frozenset({"$extend", "at", "n", "v"})


def _path(at: Any) -> _Path | None:
    """Return a path as written, or ``None`` if it is none."""
    if isinstance(at, list) and at and all(type(key) is str or (type(key) is int and key >= 0) for key in at):
        return tuple(at)
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


# -- reader ------------------------------------------------------------------------------------------------------------
#
# A trace: its verdict, its entries, its values.
#
# A missing file raises ``RunNotFoundError``, a last line without newline is reported and left out, and damage raises
# ``TraceIntegrityError`` with the number of the first line that does not verify.

#: What marks an effect, or an end, in bytes that don't verify: both are synced as soon as they are written.
_EFFECTS: Final = (b'"side_effect":"irreversible"', b'"side_effect":"reversible"')
_MAY_BE_EFFECTS: Final = (b'"type":"tool.call"', b'"type":"http.request"', b'"type":"process.start"')
_HARMLESS: Final = b'"side_effect":"read_only"'
_END_MARKS: Final = tuple(b'"type":"%b"' % end.encode() for end in sorted(ENDS))


class Verdict(NamedTuple):
    """The result of verifying a trace.

    - ``count``, ``head``, ``last_good_seq``: the entries that verify.
    - ``problem``, ``line``: what is wrong, and where. ``torn_bytes``: how much of a torn last line was left out.
    - ``lost_tail``: the damage is of the kind that a power loss causes, and contains no effect.
    - ``end``: the type of the last entry of a complete run. ``segments``: what that entry says about the run's other
      files; ``lost``: how many entries could not be written while recording.
    - ``seal``: the result of checking the seal, if there is one or one was required: its ``state``, and ``text``.
    - ``unread``: the file beside the trace that caused the problem, although the trace itself verifies.
    """

    state: Literal["complete", "incomplete", "broken"]
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
    seal: Mapping[str, Any] | None = None
    unread: str | None = None


class TraceReading(NamedTuple):
    """The results of reading a trace: its verdict, the offsets of its entries, and what collectors made of them."""

    verdict: Verdict
    offsets: array[int]
    collected: Mapping[Any, Any]


class Collector(Protocol):
    """Computes something from the entries of a trace, which it takes in order."""

    @classmethod
    def begin(cls, path: str) -> Self:
        """Create a collector, before the first entry of the trace at ``path``."""
        ...

    def add(self, entry: Mapping[str, Any]) -> None: ...


class BlockCollector(Collector, Protocol):
    """A collector that takes entries without parsing them."""

    #: The keys in an entry's ``meta``, at any depth, that it needs to see.
    watched: ClassVar[tuple[bytes, ...]]

    def take(self, block: EntryBlock, marks: int, load: Callable[[int], dict[str, Any]]) -> None:
        """Take the entries of a block; an entry with one of these ``marks`` may have a watched key.

        ``load`` returns any entry up to the last one of the block, now or later.
        """
        ...


class KeptCollector(Collector, Protocol):
    """A collector whose state may be stored in the index of a trace."""

    #: The modules whose code determines the state.
    made_by: ClassVar[tuple[str, ...]]

    def state(self) -> Any:
        """Return the complete state: numbers, text, arrays of numbers, and lists, tuples, sets and dicts of these."""
        ...

    @classmethod
    def of_state(cls, state: Any) -> Self: ...


#: How many collectors can have marks of their own.
_MARKS: Final = 6

#: The modules whose code determines where the entries of a trace end, and whether it verifies.
_MADE_BY: Final = (
    __name__,
    "tracekit._journal.entry",
    "tracekit._journal.indexes",
    *(["tracekit._native._compiled"] if FORM == "C" else []),
)


def _kept_as(kind: type[Any]) -> str:
    """Return the name of a collector's state in an index: the collector's, with a fingerprint of its code."""
    return f"{kind.__name__} {indexes.fingerprint_of(*kind.made_by)}"


def _add_each(add: Callable[[Mapping[str, Any]], object], block: EntryBlock) -> None:
    for at in range(len(block)):
        add(block.entry(at))


C = TypeVar("C", bound=Collector)


class Trace:
    """A trace file, verified and indexed (8 bytes per entry) in one pass.

    ``entries`` and ``entry`` return new objects; ``first`` and what ``expand`` inserts are shared and must not be
    modified. The pass feeds the entries to the collectors in ``collect``. With ``indexed``, an index kept by the store
    may replace the pass (see ``indexes``): for showing or replaying a run, not for verifying it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        limits: Limits = DEFAULT,
        *,
        collect: Sequence[type[Collector]] = (),
        indexed: bool = False,
    ) -> None:
        self.path: Final = os.fspath(path)
        self.limits: Final = limits
        self._collect: Final = collect
        self._collected: dict[type[Collector], Any] = {}
        self._indexed: Final = indexed and limits == DEFAULT
        self._offsets = array("Q")
        #: The line read last.
        self._last: tuple[int, bytes] = (0, b"")
        #: What was read last, from which offset on. Every entry taken from it is checked against its hash.
        self._ahead: tuple[int, bytes] = (0, b"")
        #: The first and the last entry, once they have been read.
        self._first_entry: dict[str, Any] | None = None
        self._last_entry: dict[str, Any] | None = None
        self._verdict: Verdict | None = None
        self._error: TraceIntegrityError | None = None
        self._blobs: Final = Blobs(self.entry, self.path, limits)
        #: Identifies the file once it is not kept open any more.
        self._released: tuple[int, int] | None = None
        #: Identifies the file, and what the descriptor was opened for, while a program in the same process may close it.
        self._aside: tuple[tuple[int, int], tuple[int, int]] | None = None
        #: For a compressed file, its state on disk; ``_fd`` is its decompressed content.
        self._packed: os.stat_result | None = None
        try:
            self._fd = system.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if is_packed(self._fd):
                self._packed = system.fstat(self._fd)
                self._fd = _content(self._fd, self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(self.path) from None
        except OSError as error:
            raise unreadable(self.path, error) from error

    # -- verdict -------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> Verdict:
        """The result of verifying the whole file, which is read on first use. Raises ``TraceVersionError`` for a newer
        format."""
        if self._verdict is None:
            code = self._code()
            self._verdict = (None if code is None else self._by_index(code)) or self._verify(code)
        return self._verdict

    @property
    def file(self) -> tuple[int, ...]:
        """Identifies the file and its current state."""
        facts = self._packed or system.fstat(self._fd)
        return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns

    @property
    def unchanging(self) -> bool:
        """Whether the file has not changed for so long that any further change will show in ``file``: time stamps are
        coarse."""
        return is_past((self._packed or system.fstat(self._fd)).st_ctime_ns)

    @property
    def reading(self) -> TraceReading:
        """The results of reading the file, which must verify; may be assigned to another trace of the same ``file``."""
        return TraceReading(self.check(), self._offsets, self._collected)

    @reading.setter
    def reading(self, known: TraceReading) -> None:
        self._verdict, self._offsets, collected = known
        self._collected = {**collected}

    def check(self) -> Verdict:
        """Return the verdict on a trace that verifies, complete or not; raise ``TraceIntegrityError`` for a broken one."""
        verdict = self.status
        if self._error is not None:
            raise self._error.fresh()
        return verdict

    def collected(self, kind: type[C]) -> C:
        """Return what the collector ``kind`` makes of the entries that verify."""
        self.status  # noqa: B018  # reads the file
        found = self._collected.get(kind)
        if found is None:
            found = kind.begin(self.path)
            for entry in islice(self.entries(damaged=True), self.status.count):
                found.add(entry)
            self._collected[kind] = found
        made: C = found
        return made

    def _verify(self, code: str | None) -> Verdict:
        """Read the whole file; keep an index of it under ``code``, if there is one."""
        offsets = self._offsets = array("Q", [0])
        scanned = Scan(self.path, self.limits, hashed=code is not None)
        collectors: dict[type[Collector], Collector] = {}
        adds: list[Callable[[dict[str, Any]], object]] = []
        takes: list[Callable[[EntryBlock], object]] = []
        watched: dict[bytes, int] = {}
        for number, kind in enumerate(self._collect):
            collector = collectors[kind] = kind.begin(self.path)
            adds.append(collector.add)
            take = getattr(collector, "take", None)
            if take is None or number >= _MARKS:
                takes.append(partial(_add_each, collector.add))
                continue
            for key in kind.watched:  # type: ignore[attr-defined]
                watched[key] = watched.get(key, 0) | 1 << number
            takes.append(partial(take, marks=1 << number, load=self._load))
        first: dict[str, Any] = {}
        last: RawEntry | EntryBlock | None = None
        taken: Any
        try:
            for last in scanned.blocks(tuple(watched.items())):
                calls: Sequence[Callable[[Any], object]]
                if isinstance(last, EntryBlock):
                    offsets.extend(last.ends)
                    calls, taken = takes, last
                else:
                    if last.line == 1:
                        first = last.data
                    offsets.append(last.offset + last.length)
                    calls, taken = adds, last.data
                for call in calls:
                    try:
                        call(taken)
                    except Exception:  # the entries verify but make no sense: left to whoever uses the collector
                        adds, takes, collectors = [], [], {}
                        break
        except TraceIntegrityError as error:
            self._error = error
        if isinstance(last, EntryBlock):
            last = last.raw(len(last) - 1)
        self._collected.update(collectors)
        good = RawEntry(0, 0, 0, {}, GENESIS) if last is None else last
        verdict = self._judge(scanned, first, good)
        if code is not None and verdict.state == "complete" and collectors and scanned.content is not None:
            found = {_kept_as(kind): collector.state() for kind, collector in collectors.items()}  # type: ignore[attr-defined]
            indexes.write_index(
                self.path, indexes.KeptIndex(verdict.count, verdict.head, offsets, found), scanned.content, code
            )
        return verdict

    def _load(self, seq: int) -> dict[str, Any]:
        """Return an entry; also while the trace is being read."""
        data: dict[str, Any] = orjson.loads(self._checked(seq))
        return data

    def _code(self) -> str | None:
        """Return the fingerprint that the index of this trace must have, or ``None`` if no index may be kept and used."""
        if not self._indexed or system.fstat(self._fd).st_size < _INDEXED or indexes.index_of(self.path) is None:
            return None
        return indexes.fingerprint_of(*_MADE_BY)

    def _by_index(self, code: str) -> Verdict | None:
        """Return the verdict from a valid index of this content, and load what else it holds."""
        found = indexes.read_index(self.path, self._fd, code, [_kept_as(kind) for kind in self._collect])
        if found is None:
            return None
        self._offsets = found.offsets
        start, first = found.offsets[found.entries - 1], self._pread(found.offsets[1], 0)
        line = self._pread(found.offsets[found.entries] - start, start)
        if line[-67:-3] != found.head.encode():
            return None
        self._collected = {kind: kind.of_state(found.found[_kept_as(kind)]) for kind in self._collect}  # type: ignore[attr-defined]
        last = RawEntry(start, len(line), found.entries, orjson.loads(line), found.head.encode())
        return self._judge(Scan(self.path, self.limits), orjson.loads(first), last)

    def _judge(self, scanned: Scan, first: dict[str, Any], last: RawEntry) -> Verdict:
        error, count, kind = self._error, last.line, last.data.get("type")
        base = Verdict(
            "incomplete", count, last.head.decode(), last_good_seq=count, run_id=first.get("run_id"), torn_bytes=scanned.torn,
            size=system.fstat(self._fd).st_size,
        )  # fmt: skip
        if error is not None:
            facts = error.__dict__
            lost = count > 0 and _durable(first) and self._lost(scanned.good_end)
            return base._replace(state="broken", problem=facts["problem"], line=facts["line"], lost_tail=lost)
        if scanned.torn:
            return base._replace(problem=f"the last line is torn: {scanned.torn} bytes were left out", line=count + 1)
        if kind not in ENDS:
            return base._replace(problem="the run has no end" if count else "the file has no entries")
        return self._complete(base._replace(end=kind), last)

    def _complete(self, base: Verdict, last: RawEntry) -> Verdict:
        stated, segments = _summary(last.data)
        if type(stated) is int and stated != base.count:
            problem = f"says that the run has {stated} entries; there are {base.count}"
            self._error = Scan(self.path, self.limits).bad(last.line, problem)
            return base._replace(state="broken", problem=problem, line=last.line)
        if type(stated) is not int:
            return base._replace(problem="the run's end does not say how many entries there are", line=last.line)
        return base._replace(state="complete", segments=segments, lost=_missing(last.data))

    def _lost(self, offset: int) -> bool:
        """Return whether the bytes from ``offset`` on contain neither an effect nor an end, so that they may be cut
        off."""
        with open_trace(self.path) as file:
            file.seek(offset)
            while line := file.readline(self.limits.line):
                if len(line) == self.limits.line or _may_be_effect(line):
                    return False
        return True

    # -- entries -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of entries that verify."""
        return self.status.count

    def entries(self, *, first: int = 1, damaged: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the entries from ``first`` on, verified while they are read.

        In a broken trace, ``TraceIntegrityError`` is raised at the first bad line; with ``damaged`` the iteration ends
        there.
        """
        try:
            for raw in Scan(self.path, self.limits):
                if raw.line >= first:
                    yield raw.data
        except TraceIntegrityError:
            if not damaged:
                raise

    @property
    def imported_from(self) -> str | None:
        """The tool whose recording was imported; ``None`` for a run that tracekit recorded.

        Of an imported run nothing is known but its HTTP exchanges.
        """
        return imported_from(self.first)

    @property
    def first(self) -> dict[str, Any]:
        """The first entry, which describes the run; a shared object, not to be modified. Raises ``IndexError`` if there
        is none."""
        if self._first_entry is None:
            self._first_entry = self.entry(1)
        return self._first_entry

    @property
    def last(self) -> dict[str, Any]:
        """The last entry, which is an end unless the run is incomplete; a shared object, as ``first`` is."""
        if self._last_entry is None:
            self._last_entry = self.entry(len(self))
        return self._last_entry

    @property
    def has_result(self) -> bool:
        """Whether the run completed with a result: the ``output`` of its last entry."""
        return self.last["type"] == "run.completed" and "output" in self.last

    @property
    def ended(self) -> bool:
        """Whether the last entry is an end, so that the log has everything that the run did."""
        return self.last["type"] in ENDS

    def entry(self, seq: int) -> dict[str, Any]:
        """Return the entry ``seq``, checked against its hash. Raises ``IndexError`` if there is none."""
        data: dict[str, Any] = orjson.loads(self.line(seq))
        return data

    def line(self, seq: int) -> bytes:
        """Return the line of the entry ``seq`` with its newline, checked against its hash. Raises ``IndexError`` if
        there is none."""
        last, line = self._last
        if last == seq:
            return line
        if not 0 < seq <= self.status.count:
            raise IndexError(f"{self.path} has no entry {seq}")
        line = self._checked(seq)
        self._last = (seq, line)
        return line

    def _checked(self, seq: int) -> bytes:
        line, head = self._read(seq)
        if sha256_hex(head + line[:-TAIL]).encode() != line[-67:-3]:
            raise Scan(self.path, self.limits).bad(seq, "was changed while the trace was being read")
        return line

    def hash_of(self, seq: int) -> str:
        """Return the hash of the entry ``seq``; for 0, the hash that the first entry is chained to."""
        if seq == 0:
            return GENESIS.decode()
        return self._pread(64, self._offsets[seq] - 67).decode() if self.status.count >= seq else ""

    def end_of(self, seq: int) -> int:
        """Return the offset in the file at which the line of entry ``seq`` ends."""
        if not 0 <= seq <= self.status.count:
            raise IndexError(f"{self.path} has no entry {seq}")
        return self._offsets[seq]

    def _read(self, seq: int) -> tuple[bytes, bytes]:
        start, end = self._offsets[seq - 1], self._offsets[seq]
        if seq == 1:
            return self._pread(end, 0), GENESIS
        begin, data = self._ahead
        at, size = start - 67 - begin, end - start + 67
        if at < 0 or at + size > len(data):
            begin, at = start - 67, 0
            data = self._pread(max(size, min(_AHEAD, self._offsets[-1] - begin)), begin)
            self._ahead = begin, data
        return data[at + 67 : at + size], data[at : at + 64]

    def _pread(self, size: int, at: int) -> bytes:
        if self._released is None:
            try:
                return system.pread(self._fd, size, at)
            except OSError as error:
                if error.errno != EBADF or self._aside is None:
                    raise
                self._released, self._fd = self._aside[0], -1  # the program has closed it
        try:
            with open_file(self.path, "rb", buffering=0) as file:
                same = _identity(system.fstat(file.fileno())) == self._released
                if same and self._packed is None:
                    return system.pread(file.fileno(), size, at)
                if same:
                    with open_file(unpacked(file.fileno(), self.path), "rb", buffering=0) as content:
                        return system.pread(content.fileno(), size, at)
        except (FileNotFoundError, NotADirectoryError):
            pass
        raise not_found(self.path)

    def expand(self, value: Any, *, before: int | None = None) -> Any:
        """Replace every reference in ``value`` by its value, in place, and return it.

        A referenced value is one object wherever it appears, so that the messages of a long conversation exist once;
        don't modify it. ``before`` is the ``seq`` of the entry that holds ``value``: references may only point to
        earlier ones.
        """
        return self._blobs.expand(value, self.status.count + 1 if before is None else before)

    @property
    def descriptor(self) -> int:
        """The descriptor that the file is read through; ``-1`` if it is opened for each read."""
        return self._fd

    def set_aside(self) -> None:
        """Move the file to a descriptor that programs don't close, and tolerate it if one is closed nevertheless."""
        if self._released is None:
            self._fd = _reality.aside(self._fd)
            self._aside = self._identity(), _identity(system.fstat(self._fd))

    def release(self) -> None:
        """Close the file, and open it for each later read. For users that are done but may still be asked something."""
        if self._released is None:
            self._released = self._identity() if self._aside is None else self._aside[0]
            self.close()

    def close(self) -> None:
        """Close the file, unless the program has. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._is_ours(fd):
            system.close(fd)

    def _identity(self) -> tuple[int, int]:
        return _identity(self._packed or system.fstat(self._fd))

    def _is_ours(self, fd: int) -> bool:
        """Return whether a descriptor is the one that was moved aside: the program may have closed it, and its next file
        may have got the number."""
        if self._aside is None:
            return True
        try:
            return _identity(system.fstat(fd)) == self._aside[1]
        except OSError:
            return False

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __repr__(self) -> str:
        return f"<Trace {self.path}>"


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


class Follower:
    """Follows a trace that is being written: passes each entry to ``read`` once, in order. Nothing is verified.

    A reader never breaks what it follows: ``read`` must not raise.
    """

    def __init__(self, path: str, read: Callable[[dict[str, Any]], object]) -> None:
        self._fd = system.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if is_packed(self._fd):  # it has ended, and is read to its end
            self._fd = _content(self._fd, path)
        self._read: Final = read
        self._ends: Final = array("Q", [0])
        self._blobs: Final = Blobs(self.entry, path, DEFAULT)
        self._lock: Final = threading.Lock()

    def poll(self) -> None:
        """Pass on new entries. Entries that ``read`` itself writes are passed on after it has returned."""
        while _reality.acquire(self._lock, blocking=False):
            try:
                self._pass_on()
            finally:
                self._lock.release()
            # A concurrent writer found the lock taken and left its entries to this call.
            if self._fd < 0 or system.fstat(self._fd).st_size <= self._ends[-1]:
                return

    def expand(self, value: Any, before: int) -> Any:
        """Resolve the references in ``value`` of the entry ``before``, in place."""
        return self._blobs.expand(value, before)

    def close(self) -> None:
        """Pass on the rest, and close the file. Idempotent."""
        self.poll()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            system.close(fd)

    def _pass_on(self) -> None:
        if self._fd < 0:
            return
        start = self._ends[-1]
        data = system.pread(self._fd, system.fstat(self._fd).st_size - start, start)
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._ends.append(self._ends[-1] + len(line))
            self._read(orjson.loads(line))

    def entry(self, seq: int) -> dict[str, Any]:
        """Return the entry ``seq``, which was passed on earlier."""
        start, end = self._ends[seq - 1], self._ends[seq]
        entry: dict[str, Any] = orjson.loads(system.pread(self._fd, end - start, start))
        return entry


def _durable(first: dict[str, Any]) -> bool:
    """Return whether the run synced its effects; otherwise it is unknown what a power loss took."""
    meta = first.get("meta")
    return not (isinstance(meta, dict) and meta.get("durability") == "none")


def _may_be_effect(line: bytes) -> bool:
    if any(mark in line for mark in _EFFECTS) or any(mark in line for mark in _END_MARKS):
        return True
    return any(mark in line for mark in _MAY_BE_EFFECTS) and _HARMLESS not in line


def _missing(last: Mapping[str, Any]) -> int:
    stated = meta_of(last).get("lost")
    return stated if type(stated) is int and stated > 0 else 0


def _summary(end: dict[str, Any]) -> tuple[Any, tuple[dict[str, Any], ...]]:
    """Return what the last entry says about the number of entries and the other segments."""
    meta = meta_of(end)
    segments = meta.get("segments")
    listed = segments if isinstance(segments, list) else []
    return meta.get("count"), tuple(segment for segment in listed if isinstance(segment, dict))
