"""Pure Python versions of all functions of ``tracekit._native``.

They are used without a compiler, and are the reference for those in C.
"""

from __future__ import annotations

import re
import sys
from _thread import allocate_lock
from hashlib import sha256
from itertools import compress, count, groupby
from operator import itemgetter, methodcaller
from sys import _getframe
from sys import modules as _modules
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn

import orjson

from .. import _reality
from .._lazy import expression
from ..errors import LogWriteError
from .common import (
    CONTAINERS,
    IN_ORDER,
    LEVELS,
    PENDING,
    PIECE,
    Place,
    encodable,
    is_short,
    is_worth,
    take,
)

if TYPE_CHECKING:
    from array import array
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from threading import Lock, RLock
    from types import FrameType
    from typing import Self

__all__ = [
    "Chain",
    "Pieces",
    "answered",
    "as_it_is",
    "collected",
    "columns",
    "copied",
    "decoded",
    "digest",
    "elements",
    "fields",
    "grouped",
    "header_values",
    "line",
    "nearest",
    "noted",
    "numbered",
    "of_text",
    "owner",
    "parts",
    "picked",
    "plain",
    "quick_look",
    "read_json",
    "repeated",
    "sha256_hex",
    "shallow",
    "siblings",
    "spaced",
    "survey",
    "unknown",
]

_time_ns: Final = _reality.time_ns
_join: Final = b"".join


# -- the journal's lines -----------------------------------------------------------------------------------------------


def line(head: bytes, seq: int, middle: bytes, ts: int, lane: int, parent: int, tail: bytes) -> tuple[bytes, bytes]:
    """Return the line of an entry, and its hash; ``head`` is the hash of the previous entry.

    ``middle`` is the text between ``seq`` and the time, ``tail`` the rest of the object, from its leading comma. With
    ``parent`` 0 that key is omitted.
    """
    if parent:
        body = b'{"v":1,"seq":%d%b%d,"lane":%d,"parent":%d%b' % (seq, middle, ts, lane, parent, tail)
    else:
        body = b'{"v":1,"seq":%d%b%d,"lane":%d%b' % (seq, middle, ts, lane, tail)
    head = sha256(head + body).hexdigest().encode()
    return _join((body, b',"hash":"', head, b'"}\n')), head


_of_read: Final = itemgetter(0, 1, 2, 3)


def grouped(
    reads: list[tuple[str, int, int, str, Any]], encode: Callable[[list[Any]], bytes]
) -> list[tuple[str, int, int, bytes]]:
    """Return the entries of reads of clocks and random numbers, each read given as kind, lane, parent, function and
    value.

    Consecutive reads of one function and lane share an entry. ``encode`` makes JSON of their values.
    """
    entries = []
    for (kind, lane, parent, name), group in groupby(reads, _of_read):
        tail = b',"name":%b,"values":%b' % (_orjson_dumps(name), encode([read[4] for read in group]))
        entries.append((kind, lane, parent, tail))
    return entries


def of_text(step: int, text: str) -> bytes | None:
    """Return ``,"step":…,"output":…`` for a text piece of a stream; ``None`` if the text has half a surrogate pair."""
    try:
        return b',"step":%d,"output":%b' % (step, _orjson_dumps(text, None, IN_ORDER))
    except TypeError:
        return None


def columns(
    block: bytes,
    start: int,
    before: Place,
    limits: tuple[int, int],
    types: tuple[tuple[bytes, int], ...],
    keys: tuple[tuple[bytes, int], ...],
    /,
) -> tuple[int, tuple[Any, ...], bytes, bytes, bytes, bytes, bytes, bytes] | None:
    """Return the entries of ``block`` from ``start`` on, up to the first line that is not plainly valid: ``None`` if
    there is none.

    The result is where they end in the block, and the ``Place``; then, for each entry, as packed numbers: where its
    line ends in the file (8 bytes), the number of its type in ``types``, from 1 (0: another one, or it lacks what that
    needs), its marks (1 byte each), lane, parent and step (4 each; 0: none). ``keys`` are those in ``meta`` that are
    marked, with their bits. ``limits`` are the bytes and the levels of a line.

    Any line that is wrong, longer, or just unusual is left to the caller to examine. In Python that would gain nothing
    over examining each line, so nothing is returned here.
    """
    return None


def _array(kind: str, numbers: Iterable[int] = ()) -> array[int]:
    from array import array  # which a program that only records has no need of

    return array(kind, numbers)


def numbered(first: int, flags: bytes, width: int) -> bytes:
    """Return the numbers from ``first`` on, one for each flag, whose flag is not 0, in so many bytes each (4 or 8)."""
    return _array({4: "I", 8: "Q"}[width], compress(count(first), flags)).tobytes()


def siblings(first_child: array[int], first: int, parents: array[int]) -> bytes:
    """Return, for the entries from ``first`` on, which have these ``parents`` (0: none), the first child of the parent up to
    then (0: none), in 4 bytes each; ``first_child``, by parent, is kept up to date. All are numbers of 32 bits."""
    found = _array("I")
    for seq, parent in enumerate(parents, first):
        found.append(first_child[parent] if parent else 0)
        if parent:
            first_child[parent] = seq
    return found.tobytes()


def answered(answer: array[int], first: int, steps: array[int], flags: bytes) -> list[int]:
    """Have those entries from ``first`` on whose flag is not 0 answer their ``steps``: ``answer`` leads from each to the
    other. Return the former answers of these steps."""
    former = []
    for seq, step in compress(enumerate(steps, first), flags):
        if answer[step]:
            former.append(answer[step])
        answer[step] = seq
        answer[seq] = step
    return former


class Chain:
    """The end of a log, and how an entry is appended. Its subclass, the journal, handles failures."""

    _fd: int
    #: ``seq``, hash and time of the last entry, and the size of the file. Always replaced as a whole.
    _end: tuple[int, bytes, int, int]
    #: The end of the file after the entry that is being written.
    _in_flight: tuple[int, bytes, int, int] | None
    #: The text between ``seq`` and the time in entries of each kind.
    _middles: dict[str, bytes]
    #: Whether an entry can't be written directly: writing has stopped, or something kept must come first.
    _stopped: bool
    #: The function that writes to the file.
    _os_write: Callable[[int, bytes], int]
    #: Reentrant: a signal handler or a finalizer may append while its own thread holds it.
    _lock: RLock
    #: What must be written before the next entry, and what encodes the values as JSON.
    _reads: deque[tuple[str, int, int, str, Any]]
    _encode_read: Callable[[list[Any]], bytes]
    #: Whether each entry is synced; else whether the background thread does it, and whether it must be woken.
    _always: bool
    _lazy: bool
    _asleep: bool
    #: Held unless the background thread has been woken.
    _roused: Lock

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._roused = allocate_lock()
        made._roused.acquire()
        return made

    def _rest(self, pause: float, longest: float) -> None:
        """Wait ``pause`` seconds; in C as long as entries arrive in each interval, at most ``longest`` altogether.

        The wait does not hold the interpreter's lock: a thread that acquired it every few milliseconds would each time
        delay a program that writes much, and leave it with cold caches.
        """
        _reality.acquire(self._roused, timeout=pause)

    def _rouse(self) -> None:
        """Wake the resting thread, or let its next rest end at once. Once."""
        self._roused.release()

    def append(self, kind: str, lane: int, parent: int, tail: bytes, sync: bool | dict[int, None] = False) -> int:
        """Write one entry and return its ``seq``.

        ``tail`` is the rest of the object as JSON, from its leading comma up to, not including, ``,"hash"``. With
        ``parent`` 0 that key is omitted. With ``sync`` the entry and all before it are on the device when this returns
        (unless durability is ``none``); a dictionary means the same, and has ``seq`` as a key before anything else is written.
        Raises ``LogWriteError``; the entry is then not in the file.
        """
        listed = sync if type(sync) is dict else None
        synced = listed is not None or bool(sync)
        with self._lock:
            if synced:
                self._look()
            if self._reads:
                seq = self._write_with_reads((kind, lane, parent, tail))
            else:
                seq = self._write(kind, lane, parent, tail)
            if listed is not None:
                listed[seq] = None
        if synced or self._always:
            self.sync(seq)
        elif self._asleep and self._lazy:
            self._wake()
        return seq

    def _write(self, kind: str, lane: int, parent: int, tail: bytes) -> int:
        """Write one entry and return its ``seq``; raise ``LogWriteError`` if it did not go into the file."""
        # The hottest lines of tracekit: only what seq, chain and write need.
        middle = self._middles.get(kind) or self._middle(kind)
        while True:
            if self._in_flight is not None or self._stopped:
                self._settle()
            end = self._end
            before, head, last, size = end
            seq, ts = before + 1, _time_ns()
            if ts < last:
                ts = last
            # ``line``, inlined
            if parent:
                body = b'{"v":1,"seq":%d%b%d,"lane":%d,"parent":%d%b' % (seq, middle, ts, lane, parent, tail)
            else:
                body = b'{"v":1,"seq":%d%b%d,"lane":%d%b' % (seq, middle, ts, lane, tail)
            head = sha256(head + body).hexdigest().encode()
            data = _join((body, b',"hash":"', head, b'"}\n'))
            if self._put(end, data, (seq, head, ts, size + len(data))):
                return seq

    def _put(self, end: tuple[int, bytes, int, int], data: bytes, after: tuple[int, bytes, int, int]) -> bool:
        """Write lines made to follow ``end``, after which the log ends at ``after``. Return ``False`` without doing
        anything if it no longer ends at ``end``: a signal handler has written an entry meanwhile."""
        fd = self._fd
        if self._end is not end:
            return False
        # The interpreter runs no handler between these two lines, so an entry in flight is always in the file.
        self._in_flight = after
        try:
            written = self._os_write(fd, data)
        except OSError as error:
            self._give_up(0, error)
        if written != len(data):
            self._complete(data, written)
        if self._in_flight is after:  # otherwise a signal handler has written after it
            self._end = after
            self._in_flight = None
        return True

    def read(self, kind: str, lane: int, parent: int, name: str, value: Any) -> None:
        """Keep one read of the clock or of random numbers; it is written before the next entry, in order."""
        reads = self._reads
        reads.append((kind, lane, parent, name, value))
        if self._asleep:
            self._wake()
        elif len(reads) > PENDING:
            self._crowded()

    def _lines(
        self, end: tuple[int, bytes, int, int], entries: list[tuple[str, int, int, bytes]]
    ) -> tuple[bytes, tuple[int, bytes, int, int]]:
        """Return the lines of entries after ``end``, and the end of the log with them."""
        lines: list[bytes] = []
        seq, head, last, size = end
        ts = max(_time_ns(), last)
        for kind, lane, parent, tail in entries:
            seq += 1
            made, head = line(head, seq, self._middles.get(kind) or self._middle(kind), ts, lane, parent, tail)
            lines.append(made)
        data = _join(lines)
        return data, (seq, head, ts, size + len(data))

    def _write_with_reads(self, *after: tuple[str, int, int, bytes]) -> int:
        """Write the pending reads of all lanes and the entries after them in one call; return the ``seq`` of the last
        entry of the log."""
        taken = take(self._reads)
        entry = None
        try:
            entries = [*grouped(taken, self._encode_read), *after]
            if self._stopped:
                self._settle()
            while entries:
                if self._in_flight is not None or self._stopped:
                    self._settle()
                end = self._end
                data, entry = self._lines(end, entries)
                if self._put(end, data, entry):
                    return entry[0]
            return self._end[0]
        except BaseException:
            there = entry is not None and (entry is self._end or entry is self._in_flight)
            if not there:
                self._give_back(taken)
            raise

    def _crowded(self) -> None:
        """Handle that more reads wait than permitted."""
        raise NotImplementedError

    def _give_back(self, reads: list[tuple[str, int, int, str, Any]]) -> None:
        """Let reads wait again that could not be written."""
        raise NotImplementedError

    def _look(self) -> None:
        """Raise unless the file exists as it was written."""
        raise NotImplementedError

    def sync(self, seq: int) -> None:
        raise NotImplementedError

    def _wake(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        """Resolve what blocks writing, or raise."""
        raise NotImplementedError

    def _middle(self, kind: str) -> bytes:
        raise NotImplementedError

    def _complete(self, line: bytes, written: int) -> None:
        """Complete a short write, or raise."""
        raise NotImplementedError

    def _give_up(self, written: int, error: OSError) -> NoReturn:
        raise NotImplementedError


class Pieces:
    """Writes the plain pieces of a stream, each as an entry: short texts without secrets or beginnings of one, in the
    scope in which the stream began.

    ``stream`` looks for secrets: ``look`` is called with its ``tail``, ``keep``, and the ``starts`` of what its ``run``
    knows. ``scope`` is where the stream began, ``get`` returns the scope in the running code's context. ``state`` says
    whether the run has ended. ``log`` has the journal; ``kind`` and ``step`` are those of the entries. ``undo`` is called
    if the entry of a piece can't be written to which something was added (``after``).
    """

    __slots__ = ("_get", "_kind", "_lane", "_log", "_scope", "_state", "_step", "_stream", "_undo")

    def __init__(
        self,
        stream: Any,
        scope: Any,
        get: Callable[[], Any],
        state: Any,
        log: Any,
        kind: str,
        step: int,
        undo: Callable[[], object] | None,
    ) -> None:
        self._stream: Final = stream
        self._scope: Final = scope
        self._lane: Final = scope.lane
        self._get: Final = get
        self._state: Final = state
        self._log: Final = log
        self._kind: Final = kind
        self._step: Final = step
        self._undo: Final = undo

    def add(self, text: object, after: Callable[[], bytes] | None = None) -> bool:
        """Write a piece; return ``False`` without doing anything if it is not plain, or can't be written.

        ``after``, which is called only for a plain piece, returns what follows the text in its entry.
        """
        lane, scope = self._lane, self._scope
        if self._state.ended or type(text) is not str or not is_short(text) or lane.id < 0:
            return False
        if self._get() is not scope or lane.owner != owner():
            return False
        stream, data = self._stream, of_text(self._step, text)
        before = stream.tail
        tail = stream.look(before, text, stream.keep, stream.run.known.starts)
        if tail is None or data is None:
            return False
        try:
            if after is not None:
                data += after()
        except LogWriteError:
            return False
        stream.tail = tail
        try:
            self._log.journal.append(self._kind, lane.id, self._step, data)
        except LogWriteError:
            stream.tail = before
            if after is not None and self._undo is not None:
                self._undo()
            return False
        return True

    def receive(
        self,
        kept: list[bytes] | None,
        otherwise: Callable[[bytes], object],
        after: Callable[[], bytes] | None,
        data: bytes,
    ) -> None:
        """Write a piece that was received as bytes, and add it to ``kept``; if ``add`` does nothing, or it is no text,
        ``otherwise`` gets it."""
        try:
            text = data.decode() if type(data) is bytes and len(data) < PIECE else None
        except UnicodeDecodeError:
            text = None
        if text is None or not self.add(text, after):
            otherwise(data)
        elif kept is not None:
            kept.append(data)


# -- values ------------------------------------------------------------------------------------------------------------

_orjson_dumps: Final = orjson.dumps
_orjson_loads: Final = orjson.loads


def plain(value: dict[str, Any] | list[Any], levels: int, width: int, once: bool = False, /) -> bool:
    """Return whether orjson writes a dictionary or list of JSON's own types faithfully as it is.

    It has at most ``levels`` levels of containers, and no level but the first more than ``width`` of them; with ``once``,
    each of them occurs once. Works level by level, so that cycles and depth end the search.
    """
    level: list[Any] = [value]
    left = levels - 1
    met: set[int] = set()
    try:
        while True:
            below: list[Any] = []
            for node in level:
                if type(node) is dict:
                    for key in node:
                        if type(key) is not str or "$" in key or not key.isascii():
                            return False
                    node = node.values()
                for leaf in node:
                    kind = type(leaf)
                    if kind is str:
                        if not leaf.isascii() and not encodable(leaf):
                            return False
                    elif kind is int:
                        if not -9223372036854775808 <= leaf <= 18446744073709551615:
                            return False
                    elif kind is dict or kind is list:
                        below.append(leaf)
                    elif leaf is not None and kind is not bool and (kind is not float or leaf - leaf != 0.0):
                        return False
            if not below:
                return True
            left -= 1
            if left < 0 or len(below) > width:
                return False
            if once:
                before = len(met)
                met.update(map(id, below))
                if len(met) < before + len(below):
                    return False
            level = below
    except RuntimeError:  # changed by another thread meanwhile
        return False


def noted(value: object, seen: list[Any]) -> bytes | None:
    """Return the stored bytes of a small value of JSON's types, tuples and floats; ``None`` if it needs the general
    path.

    The lists, dictionaries and tuples in it are appended to ``seen``, which must be empty before. Key types,
    surrogates, large integers and concurrent changes are left to orjson, which refuses them.
    """
    try:
        tree = _tagged(value, seen, _LEAVES)
        data = _orjson_dumps(tree, None, IN_ORDER)
        if b"null" in data and _has_odd(value, seen):
            seen.clear()
            data = _orjson_dumps(_tagged(value, seen, _ATOMS), None, IN_ORDER)
    except (TypeError, RuntimeError, _Involved):
        return None
    if 36 in data:  # a dollar: in a tag of tracekit, in a text, or in a key that might be taken for a tag
        for node in seen:
            if type(node) is dict and "$" in "".join(node):
                return None
    if len(seen) > LEVELS // 2 and data.count(b"[") + data.count(b"{") > LEVELS:
        return None  # it may be nested too deep
    return data


def repeated(seen: list[Any]) -> bool:
    """Return whether a list or dictionary occurs more than once in ``seen``, the containers of a value from ``noted``."""
    if len(seen) < 3 or len(set(map(id, seen))) == len(seen):
        return False
    ids = [id(node) for node in seen if type(node) is not tuple]
    return len(set(ids)) < len(ids)


class _Involved(Exception):
    """A value does not qualify for the quick path."""


_ATOMS: Final[frozenset[type]] = frozenset((str, int, bool, type(None)))
#: The same, assuming that floats are finite: orjson writes ``null`` for others.
_LEAVES: Final[frozenset[type]] = _ATOMS | {float}


def _tagged(value: Any, seen: list[Any], leaves: frozenset[type]) -> Any:
    """Return ``value`` in a form that orjson writes faithfully: itself, or a copy if a tuple or a float in it needs a
    tag."""
    kind = type(value)
    if kind is dict:
        seen.append(value)
        if len(seen) > CONTAINERS:
            raise _Involved
        return value if leaves.issuperset(map(type, value.values())) else _tagged_mapping(value, seen, leaves)
    if kind is list or kind is tuple:
        seen.append(value)
        if len(seen) > CONTAINERS:
            raise _Involved
        items = value if leaves.issuperset(map(type, value)) else [_tagged(item, seen, leaves) for item in value]
        return items if kind is list else {"$t": "tuple", "v": items}
    if kind in leaves:
        return value
    if kind is float:
        return value if value - value == 0.0 else {"$t": "float", "v": repr(value)}
    raise _Involved


def _tagged_mapping(value: dict[str, Any], seen: list[Any], leaves: frozenset[type]) -> dict[str, Any]:
    changed: dict[str, Any] | None = None
    for key, item in value.items():
        if type(item) in leaves:
            continue
        tree = _tagged(item, seen, leaves)
        if tree is not item:
            if changed is None:
                changed = value.copy()
            changed[key] = tree
    return value if changed is None else changed


def _has_odd(value: Any, seen: list[Any]) -> bool:
    """Return whether a float is not finite: ``value``, or one in the containers that were seen."""
    for node in (*seen, (value,)):
        for item in node.values() if type(node) is dict else node:
            if type(item) is float and item - item != 0.0:
                return True
    return False


#: Decodes the file system's names and the environment.
_decode: Final = methodcaller("decode", sys.getfilesystemencoding(), "surrogateescape")


def decoded(variables: dict[bytes, bytes]) -> list[tuple[str, str]]:
    """Return the environment variables of ``os.environ`` from its internal form."""
    pairs = [*variables.items()]
    return [*zip(map(_decode, map(itemgetter(0), pairs)), map(_decode, map(itemgetter(1), pairs)), strict=True)]


# -- parts that are stored separately ----------------------------------------------------------------------------------


def parts(value: dict[str, Any] | list[Any], least: int, element: int) -> list[tuple[tuple[int | str, ...], Any]]:
    """Return the texts of at least ``least`` characters in a container, in order: the path to each, and the text.

    If ``element`` is not 0, each list with a dictionary or a text of at least that many characters in it is included,
    too, but not its contents.
    """
    found: list[tuple[tuple[int | str, ...], Any]] = []
    _look_for_parts(value, least, element, None, found)
    return found


def _look_for_parts(value: Any, least: int, element: int, way: Any, found: list[Any]) -> None:
    for key, item in value.items() if type(value) is dict else enumerate(value):
        kind = type(item)
        if kind is str:
            if len(item) >= least:
                found.append((_steps((way, key)), item))
        elif kind is list and element and is_worth(item, element):
            found.append((_steps((way, key)), item))
        elif kind is dict or kind is list:
            _look_for_parts(item, least, element, (way, key), found)


def _steps(way: Any) -> tuple[int | str, ...]:
    """Return a path built during the walk, the last step outermost, as a tuple: few of the paths through a tree lead to
    a result."""
    steps: list[int | str] = []
    while way is not None:
        way, step = way
        steps.append(step)
    return tuple(reversed(steps))


def digest(kind: bytes, text: str | bytes) -> bytes:
    """Return the identity of a text among those of a ``kind``: 16 bytes, valid in this process.

    In C, that of a long text has a random key in it, and takes a fifth of the time: see ``condense.c``.
    """
    return sha256(kind + (text.encode() if isinstance(text, str) else text)).digest()[:16]


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hex digits. In C this needs no ``hashlib``, whose import loads OpenSSL, where the
    processor has instructions for it."""
    return sha256(data).hexdigest()


def elements(
    items: list[Any], least: int, running: bytes, digests: dict[int, bytes]
) -> tuple[list[bytes], list[int], list[bytes]]:
    """Return the identities of a list's elements, their sizes (rough, beyond every limit), and the identities of the
    list's beginnings, starting from ``running``.

    A message is identified by the digest of its text, if that has at least ``least`` characters, and by its other
    fields. That digest is cached in ``digests``, by the text's identity.
    """
    keys, sizes, beginnings = [], [], []
    for child in items:
        text = child.get("content") if type(child) is dict else None
        if type(text) is str and len(text) >= least:
            rest = _orjson_dumps({**child, "content": None})
            found = digests[id(text)] = digest(b"s", text)
            key, size = digest(b"c" + found, rest), len(rest) + (len(text) if text.isascii() else len(text.encode()))
        else:
            data = _orjson_dumps(child)
            key, size = digest(b"e", data), len(data)
        running = digest(running, key)
        keys.append(key)
        sizes.append(size)
        beginnings.append(running)
    return keys, sizes, beginnings


def unknown(
    tree: dict[str, Any],
    way: tuple[int | str, ...],
    sizes: tuple[int, int, int, int],
    digests: dict[int, Any],
    young: dict[bytes, Any],
    old: dict[bytes, Any],
) -> list[tuple[bytes, Any]] | None:
    """Return what can be referred to in a tree: the digest of each text among its ``parts``, and the way to it, which begins with
    ``way``; ``None`` if a text is too large to stay in the tree.

    Lists are looked into, too, except for lists inside them: ``None`` as well if a digest in the tree is a key of ``young`` or ``old``.
    The large elements of a list, and its beginnings (the way to the list, the number of elements, and whether these are all), can be
    referred to if the list has a size of ``least`` and is not inside another one.

    ``sizes`` are the characters of a text that is included, the size of an element that is large (0: no list is looked at), the
    ``least`` of ``elements``, and the bytes of a text that is too large. ``digests`` keeps, by identity, the digest of each text, and of
    each list what ``elements`` returns.
    """
    places: list[tuple[bytes, Any]] = []
    every: list[bytes] = []
    if not _known_in(tree, way, sizes, digests, places, every):
        return None
    if sizes[1] and not (young.keys().isdisjoint(every) and old.keys().isdisjoint(every)):
        return None
    return places


def _known_in(
    tree: Any,
    way: tuple[int | str, ...],
    sizes: tuple[int, int, int, int],
    digests: dict[int, Any],
    places: list[tuple[bytes, Any]],
    every: list[bytes],
) -> bool:
    shortest, element, least, most = sizes
    for steps, part in parts(tree, shortest, element):
        there = way + steps
        if type(part) is str:
            if (len(part) if part.isascii() else len(part.encode())) >= most:
                return False
            key = digests.get(id(part))
            if key is None:
                key = digests[id(part)] = digest(b"s", part)
            places.append((key, there))
            every.append(key)
            continue
        keys, lengths, beginnings = digests[id(part)] = elements(part, least, b"", digests)
        for both in zip(keys, beginnings, strict=True):
            every += both
        if sum(lengths) >= least and int not in map(type, steps):
            places += [(key, (*there, i)) for i, key in enumerate(keys) if lengths[i] >= element]
            places += [(key, (there, i, i == len(keys))) for i, key in enumerate(beginnings, 1)]
        if not _known_in(part, there, (shortest, 0, least, most), digests, places, every):
            return False
    return True


def is_table(value: Any, least: int) -> bool:
    """Return whether it is a dictionary of scalars or a list of pairs, of at least ``least`` items."""
    if type(value) is dict:
        return len(value) >= least and all(type(item) not in _NESTED for item in value.values())
    return type(value) is list and len(value) >= least and all(type(pair) is list and len(pair) == 2 for pair in value)


_NESTED: Final = frozenset((dict, list))


def as_it_is(
    data: bytes,
    tree: Any,
    look: Callable[[bytes], bool],
    way: tuple[int | str, ...],
    sizes: tuple[int, int, int, int, int],
    least: int,
    digests: dict[int, Any],
    young: dict[bytes, Any],
    old: dict[bytes, Any],
) -> list[tuple[bytes, Any]] | None:
    """Return what can be referred to in a tree, as ``unknown`` does, if its JSON, ``data``, goes into the log as it is, but for texts
    that are there already: without a secret, and without lists that are there. ``None`` if that has to be examined.

    ``look`` finds secrets, except in base64 (which has a key that begins with a dollar sign). A tree of less than ``least``
    bytes is not looked into. The last one of ``sizes`` is that of a table, as a value of the tree, which may be known (0: none is).
    ``digests`` is as in ``unknown``; it stays empty if it is for another reason that the tree has to be examined.
    """
    if type(tree) is not dict or may_be_tagged(data) or look(data):
        return None
    if len(data) < least:
        return []
    *others, tables = sizes
    if tables and any(is_table(item, tables) for item in tree.values()):
        return None
    return unknown(tree, way, tuple(others), digests, young, old)  # type: ignore[arg-type]


def may_be_tagged(data: bytes) -> bool:
    """Return whether a text in JSON may begin with a dollar sign, as the keys of tags and references do."""
    return b"$" in data and b'"$' in data  # the search for a single byte takes a fraction of the time


def shallow(value: Any, levels: int) -> bool:
    """Return whether the dictionaries and lists of decoded JSON are nested at most ``levels`` deep."""
    level: list[Any] = [[value]]
    for _ in range(levels + 1):
        level = [
            item
            for node in level
            for item in (node.values() if type(node) is dict else node)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return True
    return False


def read_json(content: bytes, otherwise: Any, levels: int, longest: int) -> tuple[Any, bytes | None]:
    """Return the value of encoded JSON, ``otherwise`` if ``content`` is something else; and ``content`` itself if the log
    writes that value as exactly these bytes, else ``None``.

    A ``None`` may be wrong: the whole value decides if the content has ``longest`` bytes, more than ``levels`` levels, or
    a text that begins with a dollar sign, as a key does that looks like a tag.
    """
    if not content or content[:1] not in b'{["':
        return otherwise, None
    try:
        value = _orjson_loads(content)
    except ValueError:
        return otherwise, None
    if (
        len(content) >= longest
        or may_be_tagged(content)
        or not shallow(value, levels)
        or _orjson_dumps(value) != content
    ):
        return value, None
    return value, content


def survey(container: Any, key: Any, depth: int, each: int) -> tuple[int, int, list[tuple[Any, Any, Any, int]]]:
    """Return the size of the decoded JSON ``container[key]``, its depth, and the references in it.

    Each value counts as ``each``, texts and names as their lengths. A reference is a dictionary with the key ``$ref`` or
    ``$extend``, with the container that has it, its key there, and its depth; it has no part in the size and the depth.
    """
    size = deepest = 0
    found: list[tuple[Any, Any, Any, int]] = []
    pending = [(container, key, container[key], depth)]
    while pending:
        container, key, node, depth = pending.pop()
        size += each
        if isinstance(node, str):
            size += len(node)
        elif isinstance(node, dict):
            if "$ref" in node or "$extend" in node:
                found.append((container, key, node, depth))
                continue
            deepest = max(deepest, depth + 1)
            pending.extend((node, name, child, depth + 1) for name, child in node.items())
            size += sum(map(len, node))
        elif isinstance(node, list):
            deepest = max(deepest, depth + 1)
            pending.extend((node, i, child, depth + 1) for i, child in enumerate(node))
    return size, deepest, found


def copied(tree: Any, depth: int, most: int, other: Callable[[Any, int], Any]) -> Any:
    """Return a copy of decoded JSON, with new containers throughout.

    ``other`` is called with what is something else, and its depth, and returns its value: a dictionary with a key that
    begins with a dollar sign, an object of another type, anything deeper than ``most`` levels.
    """
    if depth > most:
        return other(tree, depth)
    kind = type(tree)
    if kind is list:
        return [copied(item, depth + 1, most, other) for item in tree]
    if kind is dict:
        if "$t" in tree:
            return other(tree, depth)
        value = {}
        for key, item in tree.items():
            if key[:1] == "$":
                return other(tree, depth)
            value[key] = copied(item, depth + 1, most, other)
        return value
    return tree if kind in _LEAVES else other(tree, depth)


def picked(headers: Iterable[Sequence[bytes]], names: Mapping[bytes, str]) -> list[tuple[str, bytes]]:
    """The values of the headers that ``names`` has a name for, each with that; an empty name leaves a header out.

    The first item of a header is its name, the last one its value.
    """
    return [(name, value) for raw, *_, value in headers if (name := names[raw])]


def collected(headers: Iterable[Sequence[bytes]], names: Mapping[bytes, str]) -> dict[str, str | list[str]]:
    """The same by name, as texts; a list of them where a name comes more than once."""
    found: dict[str, str | list[str]] = {}
    for name, value in picked(headers, names):
        text = value.decode("latin-1")
        before = found.get(name)
        if before is None:
            found[name] = text
        elif isinstance(before, list):
            before.append(text)
        else:
            found[name] = [before, text]
    return found


#: A text in encoded JSON, the first key of an object, and a number that Python may write differently than orjson: with
#: an exponent.
_TEXT: Final = expression(rb'("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
_FIRST: Final = expression(rb'\{"[^"\\]*":')
_OTHER_NUMBER: Final = expression(rb"[0-9][eE]|[0-9]{16}\.|0\.0000")


def spaced(content: bytes, data: bytes) -> bool:
    """Return whether ``content`` is ``data``, JSON written by orjson, in the form that Python's ``json`` writes with
    ``ensure_ascii=False``.

    That has a space after each comma and colon. False may be wrong if there are numbers that the two may write
    differently.
    """
    first = _FIRST.match(data)
    if len(content) <= len(data) or (first and content[first.end() : first.end() + 1] != b" "):
        return False
    pieces = _TEXT.split(data)
    for at in range(0, len(pieces), 2):
        piece = pieces[at]
        if _OTHER_NUMBER.search(piece):
            return False
        pieces[at] = piece.replace(b",", b", ").replace(b":", b": ")
    return _join(pieces) == content


# -- the running task or thread ----------------------------------------------------------------------------------------


def owner() -> int:
    """Return the running code's owner: the ``id`` of the current task, or the ident of the thread outside of any task."""
    # ``running_task``, inlined: called for each step and each piece of a stream.
    ask = getattr(_modules.get("asyncio.events"), "_get_running_loop", None)
    loop = None if ask is None else ask()
    task = None if loop is None else _modules["asyncio.tasks"].current_task(loop)
    return get_ident() if task is None else id(task)


def nearest(known: dict[str, Any], through: object, depth: int) -> Any:
    """Return the entry of ``known`` for the file of the code ``depth`` frames above the caller of this function.

    If that is ``through``, the frame above it decides. Returns ``through``, too, if nothing is known about a file, or
    no frame is left.
    """
    try:
        frame: FrameType | None = _getframe(depth + 1)
    except ValueError:  # called by C, with no Python caller
        return through
    while frame is not None:
        who = known.get(frame.f_code.co_filename, _UNKNOWN)
        if who is not through:
            return through if who is _UNKNOWN else who
        frame = frame.f_back
    return through


_UNKNOWN: Final = object()


# -- heads of HTTP messages --------------------------------------------------------------------------------------------


def fields(head: bytes, separator: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Return the first line of the head of an HTTP message, and its headers unchanged; a value continued on the next
    line is joined."""
    first, *lines = head.split(separator)
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if line[:1] in (b" ", b"\t") and headers:
            before, begun = headers[-1]
            headers[-1] = (before, b"%b\r\n%b" % (begun, line))
        elif colon:
            headers.append((name, value.strip(b" \t")))
    return first, headers


def header_values(headers: list[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> tuple[bytes | None, ...]:
    """Return the values of the headers with these names (in lower case), each the last one of its name."""
    found = {name.lower(): value for name, value in headers}
    return tuple([found.get(name) for name in names])


# -- secrets -----------------------------------------------------------------------------------------------------------


def quick_look(
    made_from: str,
) -> (
    tuple[
        Callable[[bytes], bool],
        Callable[[str], bool | None],
        Callable[[str], list[tuple[int, int]] | None],
        Callable[[str, str, int, tuple[str, ...]], str | None],
    ]
    | None
):
    """Return the quick searches for secrets, in bytes and in texts, that were compiled from these expressions.

    Also: where to look closer in a text, by expression; and ``secrets.passing``. ``None`` if there are none. Searches
    in a text return ``None`` if it is not ASCII. In Python, ``tracekit._runtime.secrets`` itself is used.
    """
    return None
