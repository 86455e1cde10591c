"""Interning: what is large and comes again is written once, as a ``blob`` entry, and referred to from then on.

Any string of 1 KiB or more is a blob of its own. Where ``lists`` is asked for (model calls, which send their history each
time), a list that shares anything with an earlier one is a blob that extends the longest beginning of it that was written
before, and its new elements can be referred to one by one. So a conversation costs its messages once, however it is cut,
edited or branched; a prompt that shares nothing stays where it is. Where the caller remembers ``places``, so does any string:
an answer is referred to where it came in, by the request that sends it back. The forms are described in ``blobs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from .._native import digest, elements, parts
from .._native.pure import is_worth

__all__ = ["Interner", "KnownList", "Places"]

#: A string at least this long (bytes of UTF-8) is a blob of its own.
_TEXT: Final = 1024
#: A string that can be referred to where it is stays there up to this length: an entry more costs more than it saves.
_INLINE: Final = 1 << 18
#: A shorter string is not worth a reference, nor is an element whose encoding is shorter than ``_ELEMENT``.
_SHORT: Final = 256
_ELEMENT: Final = 64
#: A list that extends none and is shorter than this stays where it is (the pieces of a stream, a short answer).
_LIST: Final = 512
#: Containers.
_NESTED: Final = frozenset((dict, list))
#: How many digests are remembered, twice over.
_REMEMBERED: Final = 50_000

Path = tuple["int | str", ...]
#: Strings that stand in an entry, by digest: where in it.
Places = list[tuple[bytes, Path]]


class KnownList:
    """What is known of the first elements of a list in a tree: their digests and sizes, and the digests of its beginnings.

    Interning the tree adds what it works out for the others.
    """

    __slots__ = ("beginnings", "items", "keys", "sizes")

    def __init__(self, items: list[Any], before: KnownList | None = None, count: int = 0) -> None:
        """``before`` knows a list with the same first ``count`` elements."""
        self.items: Final = items
        self.keys: list[bytes] = [] if before is None else before.keys[:count]
        self.sizes: list[int] = [] if before is None else before.sizes[:count]
        self.beginnings: list[bytes] = [] if before is None else before.beginnings[:count]

    def complete(self, job: _Pass) -> None:
        before = self.beginnings
        new = self.items[len(before) :]
        keys, sizes, beginnings = elements(new, _LIST, before[-1] if before else b"", job.digests)
        self.keys += keys
        self.sizes += sizes
        self.beginnings += beginnings


class _Pass:
    """One tree on its way: what was asked for, and the digests of the long texts in it (by identity: the tree holds them)."""

    __slots__ = ("digests", "known", "lists", "places")

    def __init__(self, lists: bool, places: Places | None, known: Iterable[KnownList]) -> None:
        self.lists: Final = lists
        self.places: Final = places
        #: By the identity of the list.
        self.known: Final = {id(one.items): one for one in known}
        self.digests: Final[dict[int, bytes]] = {}

    def digest(self, text: str) -> bytes:
        """The digest of ``text``; long ones are worked out once."""
        if len(text) < _LIST:
            return digest(b"s", text)
        key = self.digests.get(id(text))
        if key is None:
            key = self.digests[id(text)] = digest(b"s", text)
        return key


class Interner:
    """Replaces large parts of encoded values by references. Thread-safe: a race writes a part twice, no more.

    ``write_blob`` appends one blob entry with this ``output`` (JSON bytes) and returns its ``seq``.
    """

    def __init__(self, write_blob: Callable[[bytes], int]) -> None:
        self._write: Final = write_blob
        # Two generations: when the young one is full it becomes the old one, which bounds both without any order to keep.
        self._young: dict[bytes, Any] = {}
        self._old: dict[bytes, Any] = {}

    def intern(
        self,
        tree: Any,
        *,
        lists: bool = False,
        places: Places | None = None,
        at: str = "input",
        known: Iterable[KnownList] = (),
    ) -> Any:
        """``tree`` with references in place of what is large; ``tree`` itself, never changed, where nothing is.

        ``places`` is filled with the strings that can be referred to in the entry whose key ``at`` is going to hold the tree;
        give them to ``remember`` when it is written. ``known`` know lists in ``tree``.
        """
        job = _Pass(lists, places, known)
        if lists and type(tree) is dict:
            rest = tree
            for key, child in tree.items():
                if type(child) in _NESTED:
                    new = self._again(child)
                    if new is not child:
                        rest = {**rest, key: new}
            return self._inside(rest, job, (at,))
        return self._node(tree, job, (at,))

    def remember(self, places: Places, seq: int) -> None:
        """The entry ``seq`` is written, ``places`` in it."""
        for key, path in places:
            self._keep(key, (seq, list(path)))

    def _again(self, node: Any) -> Any:
        """Headers and the like, equal in every call: a blob when they come the second time, so what comes once costs nothing."""
        if not _flat(node):
            return node
        data = orjson.dumps(node)
        if len(data) < _SHORT:
            return node
        key = digest(b"f", data)
        found = self._find(key)
        if found is None:
            self._keep(key, 0)
        elif found == 0:
            found = self._write(data)
            self._keep(key, found)
        return {"$ref": found} if found else node

    def _node(self, node: Any, job: _Pass, path: Path) -> Any:
        kind = type(node)
        if kind is str:
            return self._text(node, job, path) if len(node) >= _SHORT else node
        if kind is list and job.lists and is_worth(node, _ELEMENT):
            return self._list(node, job, path)
        return self._inside(node, job, path) if kind in _NESTED else node

    def _inside(self, node: Any, job: _Pass, path: Path) -> Any:
        """A container, with references in place of what is large in it."""
        new = node
        for way, part in parts(node, _SHORT, _ELEMENT if job.lists else 0):
            interned = (self._text if type(part) is str else self._list)(part, job, path + way)
            if interned is not part:
                new = _with(new, node, way, interned)
        return new

    def _text(self, text: str, job: _Pass, path: Path) -> Any:
        """A string: a reference if it is known, a blob if it is large and can't be referred to where it is."""
        size = _size(text)
        places = job.places
        if size < _TEXT and not job.lists and places is None:
            return text
        key = job.digest(text)
        found = self._find(key)
        if found is not None:
            return _reference(found)
        if places is not None and size < _INLINE:
            places.append((key, path))
            return text
        return text if size < _TEXT else self._blob(key, text)

    def _blob(self, key: bytes, text: str) -> dict[str, Any]:
        seq = self._write(orjson.dumps(text))
        self._keep(key, seq)
        return {"$ref": seq}

    # -- lists -----------------------------------------------------------------------------------------------------------

    def _list(self, node: list[Any], job: _Pass, path: Path) -> Any:
        """A list of a model call: a reference to a blob that extends the longest beginning of it that is known.

        The list itself where no element of it was met before.
        """
        about = job.known.get(id(node))
        if about is None:
            about = KnownList(node)
        about.complete(job)
        keys, sizes, beginnings = about.keys, about.sizes, about.beginnings
        known, place = (0, None) if self._all_new(beginnings) else self._longest(beginnings)
        if known == len(node) and place is not None and place[2]:
            return {"$ref": place[0]}
        if place is None and (sum(sizes) < _LIST or not self._met(keys, sizes)):
            return self._inside(node, job, path)
        new: list[Any] = []
        texts: Places = []
        held: list[tuple[bytes, int]] = []
        for i in range(known, len(node)):
            large = sizes[i] >= _ELEMENT
            found = self._find(keys[i]) if large else None
            if found:
                new.append(_reference(found))
            else:
                if large:
                    held.append((keys[i], len(new)))
                new.append(self._inline(node[i], (len(new),), texts, job) if sizes[i] >= _SHORT else node[i])
        return {"$ref": self._write_list(place, known, new, beginnings, held, texts)}

    def _met(self, keys: list[bytes], sizes: list[int]) -> bool:
        """Whether an element of a list was met before; from now on they all were."""
        large = [key for key, size in zip(keys, sizes, strict=True) if size >= _ELEMENT]
        new = large if self._all_new(large) else [key for key in large if self._find(key) is None]
        for key in new:
            self._keep(key, 0)
        return len(new) < len(large)

    def _write_list(
        self,
        place: tuple[int, int, bool] | None,
        known: int,
        new: list[Any],
        beginnings: list[bytes],
        held: list[tuple[bytes, int]],
        texts: Places,
    ) -> int:
        output: Any = new
        if place is not None:
            output = {"$extend": place[0], "v": new} if place[2] else {"$extend": place[0], "n": known, "v": new}
        seq = self._write(orjson.dumps(output))
        self.remember(texts, seq)
        for key, at in held:
            self._keep(key, (seq, at))
        last = len(beginnings) - 1
        for i in range(min(known, last), last + 1):
            self._keep(beginnings[i], (seq, i + 1, i == last))
        return seq

    def _longest(self, beginnings: list[bytes]) -> tuple[int, tuple[int, int, bool] | None]:
        """How many first elements stand in a list written before, and where."""
        for i in range(len(beginnings), 0, -1):
            place = self._find(beginnings[i - 1])
            if place is not None:
                return i, place
        return 0, None

    def _inline(self, node: Any, path: Path, texts: Places, job: _Pass) -> Any:
        """A new list element, as it is written in the list's blob: known strings referred to, the others noted."""
        kind = type(node)
        if kind is str:
            if len(node) < _SHORT:
                return node
            key = job.digest(node)
            found = self._find(key)
            if found is not None:
                return _reference(found)
            if _size(node) >= _INLINE:
                return self._blob(key, node)
            texts.append((key, path))
            return node
        if kind is dict:
            return {name: self._inline(child, (*path, name), texts, job) for name, child in node.items()}
        if kind is list:
            return [self._inline(child, (*path, i), texts, job) for i, child in enumerate(node)]
        return node

    # -- memory ----------------------------------------------------------------------------------------------------------

    def _find(self, key: bytes) -> Any:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._keep(key, found)
        return found

    def _all_new(self, keys: list[bytes]) -> bool:
        """Whether nothing is known by any of these."""
        return self._young.keys().isdisjoint(keys) and self._old.keys().isdisjoint(keys)

    def _keep(self, key: bytes, place: Any) -> None:
        if len(self._young) >= _REMEMBERED:
            self._old, self._young = self._young, {}
        self._young[key] = place


def _with(tree: Any, before: Any, way: Path, item: Any) -> Any:
    """``tree``, which is ``before``, or that with some of its parts exchanged, with ``item`` at ``way``; ``before`` stays as it is."""
    new = node = tree.copy() if tree is before else tree
    *through, last = way
    for step in through:
        child, before = node[step], before[step]
        if child is before:
            child = node[step] = child.copy()
        node = child
    node[last] = item
    return new


def _size(text: str) -> int:
    """The bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _reference(found: Any) -> dict[str, Any]:
    return {"$ref": found} if type(found) is int else {"$ref": found[0], "at": found[1]}


def _flat(node: Any) -> bool:
    """A dict of scalars or a list of pairs, more than a few of them."""
    kind = type(node)
    if kind is dict:
        return len(node) > 3 and _NESTED.isdisjoint(map(type, node.values()))
    return kind is list and len(node) > 3 and all(type(pair) is list and len(pair) == 2 for pair in node)
