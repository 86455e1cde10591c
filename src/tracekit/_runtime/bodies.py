"""Request bodies that begin like an earlier one of the run: a conversation sends its history again with each turn.

Only the new part of such a body is parsed. The result equals that of parsing all of it, and says which elements of
which list an earlier body had already.

A body is split at the list in which it first differed from another: what precedes the list's first element, the
elements, and the rest. A body with the same bytes up to the end of an element is parsed without them. JSON has only one
reading, so this is exact if the remainder, without the known elements, is JSON exactly as orjson writes it; otherwise
all of it is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

__all__ = ["Bodies", "Continuation", "SentBody"]

#: The minimum common beginning of two bodies. A shorter body is parsed faster than looked up.
_START: Final = 512
_LEAST: Final = 1024
#: A longer body is not remembered.
_LARGEST: Final = 4 << 20
#: How many beginnings are remembered, how many bodies, and how many bytes of them.
_BEGINNINGS: Final = 1024
_MOST: Final = 16
_BYTES: Final = 8 << 20
#: The maximum of objects and arrays in a list's elements; with more of them the log may not treat a value as plain
#: JSON.
_CONTAINERS: Final = 40_000


class SentBody:
    """A body that was sent. ``key`` names the list at which it is split; empty until another body begins like it.

    ``known`` are its bytes up to the end of the list's last element, ``head`` is the offset of the first element,
    ``ends`` the offsets of their ends, ``tail`` the bytes after them, ``items`` the elements. ``worked`` is for the
    results of processing them.
    """

    # The state before it is split; afterwards it also has ``items`` and ``ends``.
    key = ""
    head = 0
    containers = 0
    tail = b""
    worked: Any = None
    items: list[Any]
    ends: list[int]

    def __init__(self, content: bytes, value: dict[str, Any]) -> None:
        self.start: Final = content[:_START]
        self.size: Final = len(content)
        self.value: Final = value
        self.known = content

    @classmethod
    def in_parts(
        cls,
        content: bytes,
        value: dict[str, Any],
        key: str,
        items: list[Any],
        head: int,
        ends: list[int],
        containers: int,
    ) -> SentBody:
        made = cls(content, value)
        made.key, made.items, made.head, made.ends, made.containers = key, items, head, ends, containers
        if ends:
            made.known, made.tail = content[: ends[-1]], content[ends[-1] :]
        return made

    def apart(self, content: bytes) -> SentBody | None:
        """Return this body split where ``content`` first differs; ``None`` if there is no list of objects at that
        place."""
        whole = self.known
        common = _common(whole, content)
        if common == len(whole):
            return None
        found, at = None, 0
        for key, item in self.value.items():
            start = at + 2 + len(orjson.dumps(key))  # after a brace or a comma; the value follows a colon
            if start > common:
                break
            if type(item) is list and item and key.isidentifier() and all(type(one) is dict for one in item):
                found = key, start, item
            at = start + len(orjson.dumps(item))
        if found is None:
            return None
        key, start, items = found
        ends = _ends(items, start)
        if ends[0] > common:
            return None
        return SentBody.in_parts(whole, self.value, key, items, start + 1, ends, _containers(whole, start, ends[-1]))

    def shared(self, content: bytes) -> int:
        """Return with how many of the elements ``content`` begins."""
        known, ends = self.known, self.ends
        if content.startswith(known):
            return len(ends)
        if content[: ends[0]] != known[: ends[0]]:
            return 0
        low, high, at = 1, len(ends) - 1, ends[0]  # minimum and maximum
        while low < high:
            middle = (low + high + 1) // 2
            end = ends[middle - 1]
            if content[at:end] == known[at:end]:
                low, at = middle, end
            else:
                high = middle - 1
        return low


class Continuation:
    """A body that begins like an earlier one, ``base``, up to the end of the first ``count`` elements of the list
    ``body.key``."""

    __slots__ = ("base", "body", "count", "value")

    def __init__(self, base: SentBody, body: SentBody, count: int) -> None:
        self.base: Final = base
        self.body: Final = body
        self.count: Final = count
        #: The whole body's value. It shares parts with ``base``: don't modify it.
        self.value: Final = body.value


class Bodies:
    """The bodies that a run sent last. Thread-safe: a race at worst forgets one.

    A body is remembered once another one has begun like it: many are never continued, and to keep them would have each
    call work in memory that is in no cache.
    """

    def __init__(self) -> None:
        #: Beginnings of bodies, by their hashes.
        self._begun: set[int] = set()
        self._recent: list[SentBody] = []
        #: Their beginnings.
        self._starts: list[bytes] = []
        #: Whether one of them exceeds its share.
        self._large = False

    def remember(self, content: bytes, value: Any) -> None:
        """Remember a body that was sent, and its parsed ``value``; orjson, and the log, write ``value`` as exactly
        these bytes."""
        if _LEAST <= len(content) <= _LARGEST and type(value) is dict:
            start, begun = hash(content[:_START]), self._begun
            if start in begun:
                self._keep([SentBody(content, value)], None)
                return
            if len(begun) >= _BEGINNINGS:
                begun.clear()
            begun.add(start)

    def continued(self, content: bytes, plain: Callable[[bytes, Any], bool]) -> Continuation | None:
        """Return what ``content`` continues; ``None`` if all of it has to be parsed.

        ``plain`` returns whether the log writes a parsed part as exactly these bytes.
        """
        if not self._starts or not _LEAST <= len(content) <= _LARGEST:
            return None
        start = content[:_START]
        if start not in self._starts:
            return None
        base: SentBody | None = None
        former: SentBody | None = None
        count = 0
        for body in self._recent:
            if body.start == start:
                apart = body if body.key else body.apart(content)
                shared = 0 if apart is None else apart.shared(content)
                if shared > count:
                    base, count, former = apart, shared, body
        if base is None:
            return None
        made = _continue(base, count, content, plain)
        if made is None:
            return None
        if count == len(base.ends):  # whatever begins like the one begins like the other
            self._keep([made], former)
        else:
            self._keep([made, base], former)
        return Continuation(base, made, count)

    def _keep(self, bodies: list[SentBody], instead: SentBody | None) -> None:
        bodies += self._recent if instead is None else [other for other in self._recent if other is not instead]
        del bodies[_MOST:]
        if bodies[0].size > _BYTES // _MOST:
            self._large = True
        if self._large:  # else they are few enough
            size, number = 0, 0
            for number, body in enumerate(bodies):
                size += body.size
                if size > _BYTES:
                    del bodies[max(number, 1) :]
                    break
            self._large = any(body.size > _BYTES // _MOST for body in bodies)
        if instead is None and not self._large:
            self._starts = [bodies[0].start, *self._starts[: _MOST - 1]]
        else:
            self._starts = [body.start for body in bodies]
        self._recent = bodies


def _continue(base: SentBody, count: int, content: bytes, plain: Callable[[bytes, Any], bool]) -> SentBody | None:
    at = base.ends[count - 1]
    key, end = base.key, len(content) - len(base.tail)
    after = content[at : at + 1]
    value: dict[str, Any]
    if end >= at and content.endswith(base.tail):
        middle = content[at:end]
        new: list[Any] = []
        if middle:
            part = b"[%b]" % middle[1:]
            found = _parsed(part)
            if after != b"," or type(found) is not list or not plain(part, found):
                return None
            new = found
        value = dict(base.value)
    else:
        part = base.known[: base.head] + (content[at + 1 :] if after == b"," else content[at:])
        found = _parsed(part)
        if after not in (b",", b"]") or type(found) is not dict or not plain(part, found):
            return None
        value, new = found, found[key]
        if type(new) is not list:
            return None
    if not all(type(one) is dict for one in new) or (after == b",") is not bool(new):
        return None
    ends = _ends(new, at) if new else []
    last = ends[-1] if ends else at
    containers = base.containers + _containers(content, at, last)
    if containers > _CONTAINERS:
        return None
    value[key] = items = [*base.items[:count], *new]
    return SentBody.in_parts(content, value, key, items, base.head, [*base.ends[:count], *ends], containers)


def _parsed(part: bytes) -> Any:
    """The value that orjson writes as ``part``, else ``None``."""
    try:
        found = orjson.loads(part)
    except orjson.JSONDecodeError:
        return None
    return found if orjson.dumps(found) == part else None


def _containers(content: bytes, start: int, end: int) -> int:
    """How many objects and arrays there may be at most in a part of encoded JSON."""
    return content.count(b"{", start, end) + content.count(b"[", start, end)


def _ends(items: list[Any], at: int) -> list[int]:
    """Where the elements of a list end, each after a bracket or a comma at ``at``."""
    found = []
    for item in items:
        at += 1 + len(orjson.dumps(item))
        found.append(at)
    return found


def _common(one: bytes, other: bytes) -> int:
    """With how many equal bytes both begin."""
    at, step = 0, 4096
    while one[at : at + step] == other[at : at + step]:
        at += step
        if at >= len(one) or at >= len(other):
            return min(len(one), len(other))
        step *= 2
    low, high = at, min(at + step, len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
