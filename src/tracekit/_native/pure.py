"""In Python, each function of ``tracekit._native``: what an installation without a compiler has, and what those in C are held to."""

from __future__ import annotations

import re
import sys
from _thread import allocate_lock
from hashlib import sha256
from itertools import groupby
from operator import itemgetter, methodcaller
from sys import _getframe
from sys import modules as _modules
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn

import orjson

from .. import _reality
from .._lazy import NamedTuple, expression

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from threading import Lock, RLock
    from types import FrameType
    from typing import Self

__all__ = [
    "Chain",
    "Pieces",
    "brackets",
    "collected",
    "columns",
    "decoded",
    "digest",
    "elements",
    "fields",
    "grouped",
    "known_by",
    "line",
    "nearest",
    "noted",
    "of_text",
    "owner",
    "parts",
    "picked",
    "plain",
    "quick_look",
    "read_json",
    "said",
    "spaced",
]

_time_ns: Final = _reality.time_ns
_join: Final = b"".join
#: A piece of a stream shorter than this needs no interning, however it is encoded.
PIECE: Final = 256

# -- the journal's lines -----------------------------------------------------------------------------------------------


def line(head: bytes, seq: int, middle: bytes, ts: int, lane: int, parent: int, tail: bytes) -> tuple[bytes, bytes]:
    """An entry as it is written, and its hash; ``head`` is that of the one before.

    ``middle`` stands between ``seq`` and the time, ``tail`` is the rest of the object, from its leading comma. ``parent`` 0 leaves that
    key out.
    """
    if parent:
        body = b'{"v":1,"seq":%d%b%d,"lane":%d,"parent":%d%b' % (seq, middle, ts, lane, parent, tail)
    else:
        body = b'{"v":1,"seq":%d%b%d,"lane":%d%b' % (seq, middle, ts, lane, tail)
    head = sha256(head + body).hexdigest().encode()
    return _join((body, b',"hash":"', head, b'"}\n')), head


#: How many reads of the clock and of random numbers wait to be written, at most, before whoever adds one writes them.
PENDING: Final = 4096
_of_read: Final = itemgetter(0, 1, 2, 3)


def grouped(
    reads: list[tuple[str, int, int, str, Any]], encode: Callable[[list[Any]], bytes]
) -> list[tuple[str, int, int, bytes]]:
    """The entries of reads of clocks and random numbers, each with kind, lane, parent, function and value: neighbours of one function and
    lane share one. ``encode`` makes JSON of their values."""
    entries = []
    for (kind, lane, parent, name), group in groupby(reads, _of_read):
        tail = b',"name":%b,"values":%b' % (_orjson_dumps(name), encode([read[4] for read in group]))
        entries.append((kind, lane, parent, tail))
    return entries


def of_text(step: int, text: str) -> bytes | None:
    """``,"step":…,"output":…`` for a piece of a stream that is a text; ``None`` of half a surrogate pair."""
    try:
        return b',"step":%d,"output":%b' % (step, _orjson_dumps(text, None, IN_ORDER))
    except TypeError:
        return None


#: What ``columns`` marks beside the keys it is given: a reference in the entry, and something that could not be recorded.
REFERS: Final = 64
OPAQUE: Final = 128
#: What entries of a type need so that their ``code`` is given: a step; values and a name, and no ``meta``.
NEEDS_STEP: Final = 1
NEEDS_VALUES: Final = 2


class Place(NamedTuple):
    """Where a trace that is read has been verified to: number and time of the last entry, its end in the file, and its hash."""

    seq: int
    offset: int
    head: bytes
    ts: int
    run_id: bytes


def columns(
    block: bytes,
    start: int,
    before: Place,
    limits: tuple[int, int],
    types: tuple[tuple[bytes, int], ...],
    keys: tuple[tuple[bytes, int], ...],
    /,
) -> tuple[int, tuple[Any, ...], bytes, bytes, bytes, bytes, bytes, bytes] | None:
    """The entries with which ``block`` goes on at ``start``, up to the first line that is not plainly right: ``None`` where there is none.

    Where it ends in the block, and the ``Place``; then, for each entry, as packed numbers: where its line ends in the file (8 bytes), the
    number of its type in ``types``, from 1 (0: another one, or it lacks what that needs), its marks (1 byte each), lane, parent and step (4
    each; 0: none). ``keys`` are those in ``meta`` that are marked, with their bits. ``limits`` are the bytes and the levels of a line.

    Any line that is wrong, longer, or just unusual is left to who calls: he looks at it himself. Who does that in Python with each line
    gains nothing here: there are none.
    """
    return None


class Chain:
    """Where a log ends, and how an entry gets there. Its subclass, the journal, has what to do when it fails."""

    _fd: int
    #: ``seq``, hash and time of the last entry, and the size of the file. Replaced whole, never in parts.
    _end: tuple[int, bytes, int, int]
    #: Where the file will end once the entry that is being written is.
    _in_flight: tuple[int, bytes, int, int] | None
    #: What stands between ``seq`` and the time in entries of each kind.
    _middles: dict[str, bytes]
    #: Whether an entry can't just be written: nothing is any more, or something is kept that comes first.
    _stopped: bool
    #: How bytes get into the file.
    _os_write: Callable[[int, bytes], int]
    #: Reentrant: a signal handler or a finalizer may append while its own thread is in here.
    _lock: RLock
    #: What comes before the next entry.
    _reads: deque[tuple[str, int, int, str, Any]]
    #: Whether each entry is synced; else whether the background does it, and whether it must be woken.
    _always: bool
    _lazy: bool
    _asleep: bool
    #: Held while nobody has been roused.
    _roused: Lock

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made._roused = allocate_lock()
        made._roused.acquire()
        return made

    def _rest(self, pause: float, longest: float) -> None:
        """Let ``pause`` seconds pass; in C that go on for as long as entries come in each of them, up to ``longest`` altogether.

        That is done without the interpreter's lock: a thread that took it every few milliseconds, to look, made a program that writes much
        wait for it each time, and go on beside cold caches.
        """
        self._roused.acquire(timeout=pause)

    def _rouse(self) -> None:
        """Whoever rests, now or next, goes on at once. Once."""
        self._roused.release()

    def append(self, kind: str, lane: int, parent: int, tail: bytes, sync: bool = False) -> int:
        """Write one entry and return its ``seq``.

        ``tail`` is the rest of the object as JSON, from its leading comma up to, not including, ``,"hash"``. ``parent`` 0
        leaves that key out. With ``sync`` the entry and all before it are on the device when this returns (unless
        durability is ``none``). Raises ``LogWriteError``; the entry is then not in the file.
        """
        with self._lock:
            if sync:
                self._look()
            if self._reads:
                seq = self._write_with_reads((kind, lane, parent, tail))
            else:
                seq = self._write(kind, lane, parent, tail)
        if sync or self._always:
            self.sync(seq)
        elif self._asleep and self._lazy:
            self._wake()
        return seq

    def _write(self, kind: str, lane: int, parent: int, tail: bytes) -> int:
        """Write one entry and return its ``seq``; what did not go into the file raises ``LogWriteError``."""
        # The hottest lines of tracekit: what is not needed for seq, chain and write stays out.
        middle = self._middles.get(kind) or self._middle(kind)
        while True:
            if self._in_flight is not None or self._stopped:
                self._settle()
            end = self._end
            before, head, last, size = end
            seq, ts = before + 1, _time_ns()
            if ts < last:
                ts = last
            # ``line``, without a call.
            if parent:
                body = b'{"v":1,"seq":%d%b%d,"lane":%d,"parent":%d%b' % (seq, middle, ts, lane, parent, tail)
            else:
                body = b'{"v":1,"seq":%d%b%d,"lane":%d%b' % (seq, middle, ts, lane, tail)
            head = sha256(head + body).hexdigest().encode()
            data = _join((body, b',"hash":"', head, b'"}\n'))
            length = len(data)
            entry = (seq, head, ts, size + length)
            fd = self._fd
            if self._end is not end:  # a signal handler wrote an entry meanwhile: this one comes after it
                continue
            # The interpreter runs no handler between these two lines, so an entry in flight is always in the file.
            self._in_flight = entry
            try:
                written = self._os_write(fd, data)
            except OSError as error:
                self._give_up(0, error)
            if written != length:
                self._complete(data, written)
            if self._in_flight is entry:
                self._end = entry
                self._in_flight = None
            return seq

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
        """The lines of entries that come after ``end``, and where the log ends with them."""
        lines: list[bytes] = []
        seq, head, last, size = end
        ts = max(_time_ns(), last)
        for kind, lane, parent, tail in entries:
            seq += 1
            made, head = line(head, seq, self._middles.get(kind) or self._middle(kind), ts, lane, parent, tail)
            lines.append(made)
        data = _join(lines)
        return data, (seq, head, ts, size + len(data))

    def _crowded(self) -> None:
        """More reads wait than may."""
        raise NotImplementedError

    def _look(self) -> None:
        """Raise unless the file is there as it was written."""
        raise NotImplementedError

    def _write_with_reads(self, entry: tuple[str, int, int, bytes]) -> int:
        raise NotImplementedError

    def sync(self, seq: int) -> None:
        raise NotImplementedError

    def _wake(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        """Make an end of what stands in the way, or raise."""
        raise NotImplementedError

    def _middle(self, kind: str) -> bytes:
        raise NotImplementedError

    def _complete(self, line: bytes, written: int) -> None:
        """Finish a short write, or raise."""
        raise NotImplementedError

    def _give_up(self, written: int, error: OSError) -> NoReturn:
        raise NotImplementedError


class Pieces:
    """Writes the pieces of a stream that are plain: short texts, of which nothing may be a secret or the beginning of one, that come where
    the stream was begun. Each is an entry.

    ``stream`` looks for secrets: ``look`` is told its ``tail``, ``keep``, and the ``starts`` of what its ``run`` knows. ``scope`` is where
    it was begun, ``get`` says which scope the running code's context has. ``log`` has the journal; ``kind`` and ``step`` are those of the
    entries.
    """

    __slots__ = ("_get", "_kind", "_lane", "_log", "_scope", "_step", "_stream")

    def __init__(self, stream: Any, scope: Any, get: Callable[[], Any], log: Any, kind: str, step: int) -> None:
        self._stream: Final = stream
        self._scope: Final = scope
        self._lane: Final = scope.lane
        self._get: Final = get
        self._log: Final = log
        self._kind: Final = kind
        self._step: Final = step

    def add(self, text: object) -> bool:
        """Write a piece; ``False`` where it is not plain: nothing was done. ``LogWriteError`` where it could not be written."""
        lane, scope = self._lane, self._scope
        if type(text) is not str or len(text) >= PIECE or lane.id < 0:
            return False
        if self._get() is not scope or lane.owner != owner():
            return False
        stream, data = self._stream, of_text(self._step, text)
        tail = stream.look(stream.tail, text, stream.keep, stream.run.known.starts)
        if tail is None or data is None:
            return False
        stream.tail = tail
        self._log.journal.append(self._kind, lane.id, self._step, data)
        return True


# -- values ------------------------------------------------------------------------------------------------------------

#: JSON levels of one value; what is nested deeper is not serialisable. (A reader takes 300 per line: the entry around it has some too.)
MAX_DEPTH: Final = 190
#: A list or dictionary may begin at so many levels, whatever way the value takes: its tag may need two more.
LEVELS: Final = MAX_DEPTH - 2
#: So many containers are looked into, at most, for a small value.
CONTAINERS: Final = 200
#: The options of orjson that write nothing as what it is not, and keys as they come.
IN_ORDER: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_orjson_dumps: Final = orjson.dumps
_orjson_loads: Final = orjson.loads


def plain(value: dict[str, Any] | list[Any], levels: int, width: int) -> bool:
    """Whether orjson writes a dictionary or list of JSON's own kinds faithfully as it is.

    It has at most so many ``levels`` of containers, and none but the first has more than ``width`` of them. Level by level: cycles
    and depth end there.
    """
    level: list[Any] = [value]
    left = levels - 1
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
            level = below
    except RuntimeError:  # changed by another thread meanwhile
        return False


def encodable(text: str) -> bool:
    """Whether a text has bytes in UTF-8: half a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def noted(value: object, seen: list[Any]) -> bytes | None:
    """The stored bytes of a small value of JSON's kinds, tuples and floats; ``None`` where it takes another way.

    The lists, dictionaries and tuples that it meets are appended to ``seen``, which is empty before.

    Key types, surrogates, large integers and what another thread changes meanwhile are left to orjson, which refuses them.
    """
    try:
        tree = _tagged(value, seen, _LEAVES)
        data = _orjson_dumps(tree, None, IN_ORDER)
        if b"null" in data and _has_odd(value, seen):
            seen.clear()
            data = _orjson_dumps(_tagged(value, seen, _ATOMS), None, IN_ORDER)
    except (TypeError, RuntimeError, _Involved):
        return None
    if 36 in data:  # a dollar: in a tag of ours, in a text, or in a key that might be taken for a tag
        for node in seen:
            if type(node) is dict and "$" in "".join(node):
                return None
    if len(seen) > LEVELS // 2 and data.count(b"[") + data.count(b"{") > LEVELS:
        return None  # it may be nested too deep
    return data


class _Involved(Exception):
    """A value is not for the quick way."""


_ATOMS: Final[frozenset[type]] = frozenset((str, int, bool, type(None)))
#: The same, where floats are taken for finite: orjson writes ``null`` for those that are not.
_LEAVES: Final[frozenset[type]] = _ATOMS | {float}


def _tagged(value: Any, seen: list[Any], leaves: frozenset[type]) -> Any:
    """``value`` as orjson writes it faithfully: itself, or a copy where a tuple or a float in it needs a tag."""
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
    """Whether a float is not finite: ``value``, or one in the containers that were met."""
    for node in (*seen, (value,)):
        for item in node.values() if type(node) is dict else node:
            if type(item) is float and item - item != 0.0:
                return True
    return False


#: What the file system's names and the environment are decoded by.
_decode: Final = methodcaller("decode", sys.getfilesystemencoding(), "surrogateescape")


def decoded(variables: dict[bytes, bytes]) -> list[tuple[str, str]]:
    """Environment variables as ``os.environ`` gives them, of what it keeps."""
    pairs = [*variables.items()]
    return [*zip(map(_decode, map(itemgetter(0), pairs)), map(_decode, map(itemgetter(1), pairs)), strict=True)]


# -- parts that are written apart ----------------------------------------------------------------------------------------


def parts(value: dict[str, Any] | list[Any], least: int, element: int) -> list[tuple[tuple[int | str, ...], Any]]:
    """The texts of ``least`` characters and more in a container, in order: the way to each, and itself.

    Where ``element`` is not 0, so is each list below with a dictionary or a text of so many characters in it, and not what is inside.
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


def is_worth(items: list[Any], element: int) -> bool:
    """Whether a list holds anything but numbers and texts shorter than ``element``."""
    for item in items:
        kind = type(item)
        if kind is dict or (kind is str and len(item) >= element):
            return True
    return False


def _steps(way: Any) -> tuple[int | str, ...]:
    """A way as it is walked, the last step outside, as a tuple: few of the ways through a tree lead to what is found."""
    steps: list[int | str] = []
    while way is not None:
        way, step = way
        steps.append(step)
    return tuple(reversed(steps))


def digest(kind: bytes, text: str | bytes) -> bytes:
    """What a text is known by among those of a ``kind``: 16 bytes."""
    return sha256(kind + (text.encode() if isinstance(text, str) else text)).digest()[:16]


def elements(
    items: list[Any], least: int, running: bytes, digests: dict[int, bytes]
) -> tuple[list[bytes], list[int], list[bytes]]:
    """What the elements of a list are known by, how large each is (roughly, where that is beyond every limit), and what the beginnings of
    the list are known by, after one that is known by ``running``.

    A message is known by the digest of its text, of ``least`` characters and more, and by what else it says. That digest is kept in
    ``digests``, by the text's identity.
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


def known_by(
    tree: dict[str, Any], way: tuple[int | str, ...], sizes: tuple[int, int, int, int], digests: dict[int, Any]
) -> tuple[list[tuple[bytes, tuple[int | str, ...]]], list[bytes], list[bytes]] | None:
    """What the ``parts`` of a tree are known by, and those of the lists among them: the digest of each text and the way to it, which
    begins with ``way``; the keys of the large elements of the lists; and all digests, those of the beginnings of lists included.

    ``sizes`` are the characters that make a text worth it, the size that makes an element worth it (0: no list is looked at), that of a
    list, and the bytes of a text that can't stay where it is: ``None`` where there is one. ``digests`` keeps, by identity, the digest of
    each text, and of each list what ``elements`` says.
    """
    texts: list[tuple[bytes, tuple[int | str, ...]]] = []
    large: list[bytes] = []
    every: list[bytes] = []
    return (texts, large, every) if _known_in(tree, way, sizes, digests, texts, large, every) else None


def _known_in(
    tree: Any,
    way: tuple[int | str, ...],
    sizes: tuple[int, int, int, int],
    digests: dict[int, Any],
    texts: list[tuple[bytes, tuple[int | str, ...]]],
    large: list[bytes],
    every: list[bytes],
) -> bool:
    least, element, list_size, most = sizes
    for steps, part in parts(tree, least, element):
        there = way + steps
        if type(part) is str:
            if (len(part) if part.isascii() else len(part.encode())) >= most:
                return False
            key = digests.get(id(part))
            if key is None:
                key = digests[id(part)] = digest(b"s", part)
            texts.append((key, there))
            every.append(key)
            continue
        keys, lengths, beginnings = digests[id(part)] = elements(part, list_size, b"", digests)
        for both in zip(keys, beginnings, strict=True):
            every += both
        if sum(lengths) >= list_size:
            large += [key for key, length in zip(keys, lengths, strict=True) if length >= element]
        if not _known_in(part, there, sizes, digests, texts, large, every):
            return False
    return True


def brackets(data: bytes, most: int) -> int:
    """How many brackets and braces are opened in encoded JSON, ``most`` at most."""
    found = 0
    for bracket in b"{[":
        at = data.find(bracket)
        while at >= 0 and found < most:
            found += 1
            at = data.find(bracket, at + 1)
    return found


def read_json(content: bytes, otherwise: Any, few: int, longest: int) -> tuple[Any, bytes | None]:
    """Return the value of encoded JSON, ``otherwise`` if ``content`` is something else; and ``content`` itself if the log
    writes that value as exactly these bytes, else ``None``.

    A ``None`` may be wrong: the whole value decides if the content has ``longest`` bytes, ``few`` containers, or a dollar
    sign, which a key that looks like a tag begins with.
    """
    if not content or content[:1] not in b'{["':
        return otherwise, None
    try:
        value = _orjson_loads(content)
    except ValueError:
        return otherwise, None
    if len(content) >= longest or 36 in content or brackets(content, few) >= few or _orjson_dumps(value) != content:
        return value, None
    return value, content


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


#: A text in encoded JSON, the first key of an object, and a number that Python may write in another way than orjson: with an exponent.
_TEXT: Final = expression(rb'("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
_FIRST: Final = expression(rb'\{"[^"\\]*":')
_OTHER_NUMBER: Final = expression(rb"[0-9][eE]|[0-9]{16}\.|0\.0000")


def spaced(content: bytes, data: bytes) -> bool:
    """Whether ``content`` is ``data``, JSON that orjson wrote, as Python's ``json`` writes it with ``ensure_ascii=False``.

    That has a space after each comma and colon. A no may be wrong, where there are numbers that the two may write in two ways.
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


# -- who is running ----------------------------------------------------------------------------------------------------


def owner() -> int:
    """Who is running: the ``id`` of the current task, or the ident of the thread outside any task."""
    # ``running_task``, without a call: each step and each piece of a stream asks.
    ask = getattr(_modules.get("asyncio.events"), "_get_running_loop", None)
    loop = None if ask is None else ask()
    task = None if loop is None else _modules["asyncio.tasks"].current_task(loop)
    return get_ident() if task is None else id(task)


def nearest(known: dict[str, Any], through: object, depth: int) -> Any:
    """What is ``known`` of the file of the code that runs ``depth`` frames above the function that calls this.

    Where that is ``through``, the frame above it decides. ``through`` too where nothing is known of a file, or no frame is left.
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
    """The first line of the head of an HTTP message, and its headers as they came; a value that goes on in the next line is whole."""
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


def said(headers: list[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> tuple[bytes | None, ...]:
    """What headers of these names (in lower case) say, each the last one of its name."""
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
    """The quick looks for secrets, at bytes and at texts, that were compiled from these expressions; where to look closer in a text, by
    expression; and ``secrets.passing``. ``None`` where there are none.

    Those at a text say ``None`` of one that is not ASCII. In Python they are ``tracekit._runtime.secrets`` itself.
    """
    return None
