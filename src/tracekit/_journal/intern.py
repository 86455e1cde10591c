"""Interning: large values that recur are written once, and referred to from then on.

A string of 1 KiB or more becomes a ``blob`` entry. If the caller remembers ``places``, strings are referred to in the
entry in which they first appeared instead: a request that sends an answer back refers to the answer. With ``lists``
(for model calls, which send their history each time), lists are remembered in the same way: one that begins as an
earlier one is written as an extension of it, in its own entry, and its other elements are referred to one by one. So
the messages of a conversation are stored once, however it is cut, edited or branched, and a turn costs no entry but
its own. ``blobs`` describes the forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from .._native import as_it_is, digest, elements, parts, unknown
from .._native.common import is_worth

__all__ = ["WORTH_A_LIST", "WORTH_A_LOOK", "Interner", "KnownList", "Places"]

#: A shorter encoding contains nothing worth interning; and the same for conversations.
WORTH_A_LOOK: Final = 1024
WORTH_A_LIST: Final = 64

#: A string of at least this many bytes (UTF-8) becomes a blob.
_TEXT: Final = 1024
#: A string that can be referred to in place stays inline up to this length: another entry costs more than it saves.
_INLINE: Final = 1 << 18
#: Shorter strings, and elements (or beginnings of lists) with an encoding shorter than ``_ELEMENT``, are not worth a
#: reference.
_SHORT: Final = 256
_ELEMENT: Final = 64
#: A shorter list that extends no other is not remembered (pieces of a stream, a short answer).
_LIST: Final = 512
#: Headers and the like with fewer items stay inline.
_ITEMS: Final = 4
#: All of them for ``as_it_is``, for lists and texts, and for texts alone; and without the last one for ``unknown``.
_SIZES: Final = (_SHORT, _ELEMENT, _LIST, _INLINE, _ITEMS)
_SIZES_OF_TEXTS: Final = (_SHORT, 0, _LIST, _INLINE, 0)
#: Containers.
_NESTED: Final = frozenset((dict, list))
#: How many digests are remembered in each of two generations.
_REMEMBERED: Final = 50_000

Path = tuple["int | str", ...]
#: Values inside an entry: digest, and path within the entry. For the beginning of a list: the list's path, the number of
#: elements, and whether these are all.
Places = list[tuple[bytes, Any]]


class KnownList:
    """The digests and sizes of the first elements of a list in a tree, and the digests of its prefixes.

    Interning the tree computes them for the remaining elements.
    """

    __slots__ = ("beginnings", "items", "keys", "sizes")

    def __init__(self, items: list[Any], before: KnownList | None = None, count: int = 0) -> None:
        """``before`` describes a list with the same first ``count`` elements."""
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
    """State of interning one tree: the options, and the digests of its long texts (by identity, as the tree keeps them
    alive)."""

    __slots__ = ("digests", "known", "lists", "places")

    def __init__(
        self, lists: bool, places: Places | None, known: Iterable[KnownList], digests: dict[int, Any] | None = None
    ) -> None:
        self.lists: Final = lists
        self.places: Final = places
        #: By the identity of the list.
        self.known: Final = {id(one.items): one for one in known} if known else {}
        #: Of lists that nothing was known of, what ``elements`` says.
        self.digests: Final[dict[int, Any]] = {} if digests is None else digests

    def placed(self, place: tuple[bytes, Any]) -> None:
        """Note something that can be referred to in the entry that will hold the tree."""
        if self.places is not None:
            self.places.append(place)

    def digest(self, text: str) -> bytes:
        """Return the digest of ``text``; that of a long text is computed once."""
        key: bytes | None = self.digests.get(id(text))
        if key is None:
            key = digest(b"s", text)
            if len(text) >= _LIST:
                self.digests[id(text)] = key
        return key


class Interner:
    """Replaces large parts of encoded values by references. Thread-safe: a race at worst writes a part twice.

    ``write_blob`` appends a blob entry with this ``output`` (JSON bytes) and returns its ``seq``.
    """

    def __init__(self, write_blob: Callable[[bytes], int]) -> None:
        self._write: Final = write_blob
        # Two generations: a full young one becomes the old one, which bounds memory without keeping an order.
        self._young: dict[bytes, Any] = {}
        self._old: dict[bytes, Any] = {}

    def at_once(
        self,
        tree: Any,
        data: bytes,
        look: Callable[[bytes], bool],
        lists: bool,
        places: Places,
        at: str,
        digests: dict[int, Any],
    ) -> Any:
        """Return what ``intern`` returns, if ``look`` finds no secret in the tree's JSON, ``data``, and lists share
        nothing. Most trees are so: all of it in one call. ``None``: that has to be examined, with these ``digests``."""
        if len(self._young) >= _REMEMBERED:
            self._make_room()
        sizes, least = (_SIZES, WORTH_A_LIST) if lists else (_SIZES_OF_TEXTS, WORTH_A_LOOK)
        found = as_it_is(data, tree, look, (at,), sizes, least, digests, self._young, self._old)
        return None if found is None else self._placed(tree, found, lists, places)

    def _placed(self, tree: Any, found: Places, lists: bool, places: Places) -> Any:
        """Return ``tree`` with references for those texts ``found`` in it that are known; what is new is added to ``places``.
        Of a tree with lists nothing is known."""
        if lists:
            places += found
            return tree
        new = tree
        for key, path in found:
            known = self._find(key)
            if known is None:
                places.append((key, path))
            else:
                new = _with(new, tree, path[1:], _reference(known))
        return new

    def intern(
        self,
        tree: Any,
        lists: bool = False,
        places: Places | None = None,
        at: str = "input",
        known: Iterable[KnownList] = (),
        digests: dict[int, Any] | None = None,
    ) -> Any:
        """Return ``tree`` with its large parts replaced by references; ``tree`` itself, unmodified, if it has none.

        ``places`` is filled with what can be referred to in the entry that will hold the tree under its key ``at``;
        pass them to ``remember`` once it is written. ``known`` describes lists in ``tree``, and ``digests`` what
        ``at_once`` has found in it, which then shares something.
        """
        if type(tree) is not dict:
            return self._node(tree, _Pass(lists, places, known), (at,))
        rest = tree
        digests = {} if digests is None else digests
        if lists:
            for key, child in tree.items():
                if type(child) in _NESTED and len(child) >= _ITEMS:
                    new = self._again(child)
                    if new is not child:
                        rest = {**rest, key: new}
        if not (known or digests) and places is not None:  # the same of most trees that have to be examined
            if len(self._young) >= _REMEMBERED:
                self._make_room()
            sizes = _SIZES[:-1] if lists else _SIZES_OF_TEXTS[:-1]
            found = unknown(rest, (at,), sizes, digests, self._young, self._old)
            if found is not None:
                return self._placed(rest, found, lists, places)
        return self._inside(rest, _Pass(lists, places, known, digests), (at,))

    def remember(self, places: Places, seq: int) -> None:
        """Remember what is at ``places`` of the entry ``seq``, which has been written."""
        if len(self._young) >= _REMEMBERED:
            self._make_room()
        for key, path in places:
            self._young[key] = seq, path

    def _again(self, node: Any) -> Any:
        """Intern headers and the like, which are equal in every call: as a blob at their second occurrence, so that
        unique ones cost nothing."""
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
        """Return a container with its large parts replaced by references."""
        new = node
        for way, part in parts(node, _SHORT, _ELEMENT if job.lists else 0):
            interned = (self._text if type(part) is str else self._list)(part, job, path + way)
            if interned is not part:
                new = _with(new, node, way, interned)
        return new

    def _texts(self, node: Any, job: _Pass, path: Path) -> Any:
        """Return an element of a list with its large strings replaced by references."""
        kind = type(node)
        if kind is str:
            return self._text(node, job, path) if len(node) >= _SHORT else node
        if kind not in _NESTED:
            return node
        new = node
        for way, text in parts(node, _SHORT, 0):
            interned = self._text(text, job, path + way)
            if interned is not text:
                new = _with(new, node, way, interned)
        return new

    def _text(self, text: str, job: _Pass, path: Path) -> Any:
        """Intern a string: return a reference if it is known, or write a blob if it is large and can't be referred to
        in place."""
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
        """Intern a list of a model call: return a reference to it, an extension of the longest known beginning, or the
        list with references for the elements that are known.

        A list inside another one is neither extended nor remembered: it belongs to its element.
        """
        about = job.known.get(id(node))
        if about is None:
            keys, sizes, beginnings = job.digests.get(id(node)) or elements(node, _LIST, b"", job.digests)
        else:
            about.complete(job)
            keys, sizes, beginnings = about.keys, about.sizes, about.beginnings
        own = job.places is not None and int not in map(type, path)
        known, place = self._longest(beginnings) if own else (0, None)
        if place is not None and known < _ITEMS and sum(sizes[:known]) < _ELEMENT:
            known, place = 0, None
        if known == len(node) and place is not None and place[1][2]:
            return _reference((place[0], place[1][0]))
        if place is None and sum(sizes) < _LIST:
            own = False
        new: list[Any] = []
        changed = False
        for i in range(known, len(node)):
            item, there = node[i], (*path, i - known)
            found = self._find(keys[i]) if sizes[i] >= _ELEMENT else None
            if found is not None:
                written: Any = _reference(found)
            else:
                written = self._texts(item, job, there) if sizes[i] >= _SHORT else item
                if own and sizes[i] >= _ELEMENT and (written is item or type(item) is not str):
                    job.placed((keys[i], there))
            changed = changed or written is not item
            new.append(written)
        if own:
            last = len(node) - 1
            for i in range(min(known, last), last + 1):
                job.placed((beginnings[i], (path, i + 1, i == last)))
        if place is None:
            return new if changed else node
        seq, (at, _, all_of_it) = place
        return {"$extend": seq, "at": [*at], **({} if all_of_it else {"n": known}), "v": new}

    def _longest(self, beginnings: list[bytes]) -> tuple[int, Any]:
        """Return how many first elements are in a list written earlier, and where."""
        if not self._all_new(beginnings):
            for i in range(len(beginnings), 0, -1):
                place = self._find(beginnings[i - 1])
                if place is not None:
                    return i, place
        return 0, None

    # -- memory ----------------------------------------------------------------------------------------------------------

    def _find(self, key: bytes) -> Any:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self._keep(key, found)
        return found

    def _all_new(self, keys: list[bytes]) -> bool:
        """Return whether none of these keys is known."""
        return self._young.keys().isdisjoint(keys) and self._old.keys().isdisjoint(keys)

    def _keep(self, key: bytes, place: Any) -> None:
        if len(self._young) >= _REMEMBERED:
            self._make_room()
        self._young[key] = place

    def _make_room(self) -> None:
        self._old, self._young = self._young, {}


def _with(tree: Any, before: Any, way: Path, item: Any) -> Any:
    """Return ``tree`` (``before``, or a copy of it with some parts replaced) with ``item`` at ``way``; ``before`` is
    not modified."""
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
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _reference(found: Any) -> dict[str, Any]:
    if type(found) is int:
        return {"$ref": found}
    seq, at = found
    return {"$ref": seq, "at": [*at]}


def _flat(node: Any) -> bool:
    """Return whether it is a dict of scalars or a list of pairs."""
    if type(node) is dict:
        return _NESTED.isdisjoint(map(type, node.values()))
    return all(type(pair) is list and len(pair) == 2 for pair in node)
