"""Values to trees, and trees to bytes.

The rule of the hot path: a value that is plain JSON all through is returned as it is, after one look at exact types. orjson
alone would write tuples as lists, NaN as null, and UUIDs, enums, dataclasses and dates as what they are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import orjson

from .registry import codecs_by_type, is_heap, name_of

__all__ = [
    "MAX_DEPTH",
    "MAX_ITEMS",
    "TooLarge",
    "Walk",
    "canonical",
    "dumps",
    "dumps_in_order",
    "fingerprint",
    "fingerprint_encoded",
    "quick",
    "snapshot",
    "to_json",
]

#: JSON levels of one value; what is nested deeper is opaque. (A reader takes 300 per line: the entry around it has some too.)
MAX_DEPTH: Final = 190
#: A list or dictionary may begin at so many levels, whatever way the value takes: its tag may need two more.
_LEVELS: Final = MAX_DEPTH - 2
#: Items visited in one value before it is called too large (shared parts count each time: they are written each time).
MAX_ITEMS: Final = 2_000_000
#: Larger integers are opaque: arithmetic on what a trace says must not take for ever.
MAX_BITS: Final = 400_000
_PLAIN_WIDTH: Final = 50_000
#: Containers that the quick way looks into; larger values (and cycles) take the others.
_QUICK_SIZE: Final = 200
_REPR: Final = 200
_LEAST, _MOST = -(2**63), 2**64 - 1

Tree = Any
Handler = Callable[["Walk", Any, int], Tree]

_SAFETY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_SORTED: Final = orjson.OPT_SORT_KEYS | _SAFETY
_IN_ORDER: Final = _SAFETY
_orjson_dumps: Final = orjson.dumps


def dumps(tree: Tree) -> bytes:
    """The canonical bytes of a tree: sorted keys, no spaces. Fixed for format version 1; what is hashed."""
    return _orjson_dumps(tree, None, _SORTED)


def dumps_in_order(tree: Tree) -> bytes:
    """The bytes of a tree with keys as they come: what is stored, since the program sees the order of a dictionary."""
    return _orjson_dumps(tree, None, _IN_ORDER)


def canonical(value: object) -> bytes:
    """The canonical bytes of any value."""
    return dumps(to_json(value))


def fingerprint(name: str, tree: Tree) -> str:
    """``sha256:`` and the hex digest of the canonical form of ``{"input": tree, "name": name}``."""
    return fingerprint_encoded(name, dumps(tree))


def fingerprint_encoded(name: str, encoded: bytes) -> str:
    """As :func:`fingerprint`, for an input whose canonical bytes are at hand."""
    return "sha256:" + sha256(b'{"input":' + encoded + b',"name":' + dumps(to_json(name)) + b"}").hexdigest()


def to_json(value: object, notes: list[str] | None = None) -> Tree:
    """The tree of ``value``: the value itself where it is plain JSON, else a copy with tags.

    Never raises: what can't be encoded is opaque, and a sentence about it is appended to ``notes``. Encode the tree before the
    program goes on: parts of it are the program's own objects.
    """
    kind = type(value)
    if kind is dict or kind is list:
        if _plain(value):  # type: ignore[arg-type]
            return value
    elif value is None or kind is bool or (kind is str and value.isascii()):  # type: ignore[attr-defined]
        return value
    return snapshot(value, notes)


def snapshot(value: object, notes: list[str] | None = None) -> Tree:
    """As :func:`to_json`, but always a copy: whatever another thread does to ``value`` afterwards, the tree can be written."""
    walk = Walk(notes)
    try:
        return walk.value(value, 0)
    except TooLarge:
        return walk.opaque(value, "it is too large")
    except RecursionError:
        return {"$t": "opaque", "type": "?", "repr": "<not shown: the stack was exhausted>"}


def quick(value: object) -> bytes | None:
    """The stored bytes of a small value of JSON's kinds, tuples and floats; ``None`` where it takes :func:`to_json`.

    Key types, surrogates, large integers and what another thread changes meanwhile are left to orjson, which refuses them.
    """
    seen: list[Any] = []
    try:
        tree = _tagged_mapping(value, seen) if type(value) is dict else _tagged(value, seen)
        data = _orjson_dumps(tree, None, _IN_ORDER)
    except (TypeError, RuntimeError, _Involved):
        return None
    if 36 in data:  # a dollar: in a tag of ours, in a text, or in a key that might be taken for a tag
        for node in seen:
            if type(node) is dict and "$" in "".join(node):
                return None
    if len(seen) > _LEVELS // 2 and data.count(b"[") + data.count(b"{") > _LEVELS:
        return None  # it may be nested too deep
    return data


class _Involved(Exception):
    """A value is not for the quick way."""


_ATOMS: Final = frozenset((str, int, bool, type(None)))


def _tagged(value: Any, seen: list[Any]) -> Tree:
    """``value`` as orjson writes it faithfully: itself, or a copy where a tuple or a float in it needs a tag."""
    kind = type(value)
    if kind is dict:
        return _tagged_mapping(value, seen)
    if kind is list or kind is tuple:
        seen.append(value)
        if len(seen) > _QUICK_SIZE:
            raise _Involved
        items = value if _ATOMS.issuperset(map(type, value)) else [_tagged(item, seen) for item in value]
        return items if kind is list else {"$t": "tuple", "v": items}
    if kind is float:
        return value if value - value == 0.0 else {"$t": "float", "v": repr(value)}
    if kind in _ATOMS:
        return value
    raise _Involved


def _tagged_mapping(value: dict[str, Any], seen: list[Any]) -> dict[str, Tree]:
    seen.append(value)
    if len(seen) > _QUICK_SIZE:
        raise _Involved
    changed: dict[str, Tree] | None = None
    for key, item in value.items():
        kind = type(item)
        if kind in _ATOMS or (kind is float and item - item == 0.0):
            continue
        tree = _tagged(item, seen)
        if tree is not item:
            if changed is None:
                changed = value.copy()
            changed[key] = tree
    return value if changed is None else changed


def _plain(value: dict[str, Any] | list[Any]) -> bool:
    """Whether orjson writes ``value`` faithfully as it is. Level by level: cycles and depth end in the slow walk."""
    level: list[Any] = [value]
    left = _LEVELS - 1
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
                        if not leaf.isascii() and not _encodable(leaf):
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
            if left < 0 or len(below) > _PLAIN_WIDTH:
                return False
            level = below
    except RuntimeError:  # changed by another thread meanwhile
        return False


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class TooLarge(Exception):
    """A value has more items than are followed."""


class Walk:
    """One value on its way to a tree: who is above (cycles), how much is left, what there is to say."""

    __slots__ = ("above", "left", "notes")

    def __init__(self, notes: list[str] | None = None) -> None:
        self.above: set[int] = set()
        self.left = MAX_ITEMS
        self.notes = notes

    def value(self, value: Any, depth: int) -> Tree:
        kind = type(value)
        if kind is str:
            return value if value.isascii() or _encodable(value) else _surrogates(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if _LEAST <= value <= _MOST else self._large(value)
        if kind is float:
            return value if value - value == 0.0 else {"$t": "float", "v": repr(value)}
        return self._compound(value, kind, depth)

    def _large(self, value: int) -> Tree:
        return (
            {"$t": "int", "v": hex(value)} if value.bit_length() <= MAX_BITS else self.opaque(value, "it is too large")
        )

    def _compound(self, value: Any, kind: type, depth: int) -> Tree:
        me = id(value)
        if me in self.above:
            return self.opaque(value, "it contains itself")
        if depth >= _LEVELS:
            return self.opaque(value, "it is nested too deep")
        self.above.add(me)
        try:
            if kind is list:  # without a handler: the stack has room for all the levels
                return self.items(value, depth)
            return handler_of(kind)(self, value, depth)
        except (KeyboardInterrupt, TooLarge):
            raise
        except BaseException as error:  # whatever the value's own code does, the program goes on
            return self.opaque(value, f"encoding it raised {type(error).__name__}")
        finally:
            self.above.discard(me)

    def items(self, values: Any, depth: int) -> list[Tree]:
        """The trees of several values that stand in a list at ``depth``."""
        values = list(values)
        self.spend(len(values))
        visit = self.value
        trees = []
        for item in values:  # a comprehension is a frame of its own
            trees.append(visit(item, depth + 1))  # noqa: PERF401
        return trees

    def mapping(self, pairs: Any, depth: int) -> Tree:
        """A dictionary, as pairs where JSON has no such keys (or a key might be taken for a tag)."""
        pairs = list(pairs)
        self.spend(len(pairs))
        visit = self.value
        for key, _ in pairs:
            if type(key) is not str or key[:1] == "$" or not (key.isascii() or _encodable(key)):
                return {"$t": "dict", "v": [[visit(key, depth + 3), visit(item, depth + 3)] for key, item in pairs]}
        trees = {}
        for key, item in pairs:
            trees[key] = visit(item, depth + 1)
        return trees

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooLarge

    def opaque(self, value: object, reason: str) -> Tree:
        """What stands for a value that can't be encoded."""
        try:
            name = name_of(type(value))
        except Exception:
            name = "?:?"
        if self.notes is not None:
            self.notes.append(f"A value of type {name} can't be recorded: {reason}. It is opaque in the trace.")
        return {"$t": "opaque", "type": name[:_REPR], "repr": _described(value)}


_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def _described(value: object) -> str:
    """At most 200 characters; without addresses, which differ between a recording and its replay."""
    try:
        for base in (list, dict, tuple, set, frozenset):  # their repr may be endless work
            if base in type(value).__mro__:
                return f"<{base.__name__} of {base.__len__(value)} items>"  # type: ignore[arg-type]
        text = str.__str__(repr(value))[: _REPR * 2]
        text = _ADDRESS.sub("", text)[:_REPR]
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()[:_REPR]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<its repr raised {type(error).__name__}>"[:_REPR]


def _surrogates(text: str) -> Tree:
    from binascii import b2a_base64

    return {"$t": "str", "v": b2a_base64(text.encode("utf-8", "surrogatepass"), newline=False).decode()}


_known: Final[dict[type, Handler]] = {}
_MANY_TYPES: Final = 4096


def handler_of(kind: type) -> Handler:
    """How values of exactly this type are encoded."""
    handler = _known.get(kind)
    if handler is not None and not codecs_by_type:
        return handler
    codec = codecs_by_type.get(kind)
    if codec is not None:
        return lambda walk, value, depth: {"$t": codec.tag, "v": walk.value(codec.encode(value), depth + 1)}
    if handler is None:
        from .kinds import classify

        handler = classify(kind)
        if is_heap(kind) and len(_known) > _MANY_TYPES:  # classes made on the fly are not kept alive for ever
            _known.clear()
        _known[kind] = handler
    return handler
