"""Encodes Python values as tagged JSON trees, and decodes them: one recursive encoder and one recursive decoder.

JSON values represent themselves; everything else is ``{"$t": tag, "v": …}``. A value that can't be serialised becomes
an ``opaque`` value with its ``repr``. The decoder never imports what a trace names.
"""

from __future__ import annotations

import collections
import datetime as _datetime_module
import os
import re
import sys
from binascii import a2b_base64, b2a_base64
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from math import prod
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, Final, NoReturn

import orjson

from .._lazy import expression
from .._native import noted, plain, repeated, repeats
from .._native.pure import IN_ORDER, LEVELS, MAX_DEPTH, encodable
from .._reality import off_loop
from ..errors import NotReplayableError, RecordedError, ReplayError, TracekitError
from .exceptions import RECIPES
from .registry import codecs_by_tag, codecs_by_type, is_heap, loaded_class, name_of, set_state, state_of

__all__ = [
    "BASES",
    "DTYPE",
    "MAX_DEPTH",
    "MAX_ITEMS",
    "MAX_NESTING",
    "MUST_BE",
    "REBUILD",
    "Decoder",
    "Made",
    "Structure",
    "TooLarge",
    "Unnamed",
    "Walk",
    "add_structure",
    "attributes_of",
    "canonical",
    "classes_in",
    "classify",
    "dumps",
    "dumps_in_order",
    "exception_from_json",
    "exception_to_json",
    "exception_with_structure",
    "fingerprint",
    "fingerprint_encoded",
    "from_json",
    "hinted",
    "not_serialisable",
    "noted",
    "quick",
    "refuse",
    "repeated",
    "shortfalls",
    "snapshot",
    "structure_of",
    "structured",
    "to_json",
    "with_structure",
]

# -- encode ------------------------------------------------------------------------------------------------------------
#
# Values to trees, and trees to bytes.
#
# The rule of the hot path: a value that is entirely plain JSON is returned as it is, after checking exact types. orjson
# alone would write tuples as lists, NaN as null, and UUIDs, enums, dataclasses and dates as something else.

#: The maximum of items visited in one value (shared parts count each time, since they are written each time).
MAX_ITEMS: Final = 2_000_000
#: Larger integers are not serialised: arithmetic on values from a trace must not take forever.
MAX_BITS: Final = 400_000
_PLAIN_WIDTH: Final = 50_000
_REPR: Final = 200
_LEAST, _MOST = -(2**63), 2**64 - 1

Tree = Any
Handler = Callable[["Walk", Any, int], Tree]

_SORTED: Final = orjson.OPT_SORT_KEYS | IN_ORDER
_orjson_dumps: Final = orjson.dumps


def dumps(tree: Tree) -> bytes:
    """Return the canonical bytes of a tree: sorted keys, no spaces. This is what is hashed; fixed for format version 1."""
    return _orjson_dumps(tree, None, _SORTED)


def dumps_in_order(tree: Tree) -> bytes:
    """Return the bytes of a tree with keys in order. This is what is stored, since programs see the order of a
    dictionary."""
    return _orjson_dumps(tree, None, IN_ORDER)


def canonical(value: object) -> bytes:
    """Return the canonical bytes of any value."""
    return dumps(to_json(value))


def fingerprint(name: str, tree: Tree) -> str:
    """Return ``sha256:`` and the hex digest of the canonical form of ``{"input": tree, "name": name}``."""
    return fingerprint_encoded(name, dumps(tree))


def fingerprint_encoded(name: str, encoded: bytes) -> str:
    """Like ``fingerprint``, for an input whose canonical bytes are available."""
    return "sha256:" + sha256(b'{"input":' + encoded + b',"name":' + dumps(to_json(name)) + b"}").hexdigest()


def fingerprint_continued(name: str, hashed: Any) -> str:
    """Like ``fingerprint``, for a hash object that has been fed the canonical form up to the end of the input."""
    whole = hashed.copy()
    whole.update(b',"name":' + dumps(to_json(name)) + b"}")
    return f"sha256:{whole.hexdigest()}"


def to_json(value: object, notes: list[str] | None = None) -> Tree:
    """Return the tree of ``value``: the value itself if it is plain JSON, else a tagged copy.

    Never raises: what can't be encoded becomes an ``opaque`` value, and a sentence about it is appended to ``notes``.
    Encode the tree before the program continues: parts of it may be the program's own objects.
    """
    kind = type(value)
    if kind is dict or kind is list:
        if plain(value, LEVELS, _PLAIN_WIDTH):  # type: ignore[arg-type]
            return value
    elif value is None or kind is bool or (kind is str and value.isascii()):  # type: ignore[attr-defined]
        return value
    return snapshot(value, notes)


def snapshot(value: object, notes: list[str] | None = None) -> Tree:
    """Like ``to_json``, but always return a copy: the tree stays valid whatever another thread does to ``value``."""
    return _walked(Walk(notes), value)


def _walked(walk: Walk, value: object) -> Tree:
    try:
        return walk.value(value, 0)
    except TooLarge:
        return walk.opaque(value, "it is too large")
    except RecursionError:
        return {"$t": "opaque", "type": "?", "repr": "<not shown: the stack was exhausted>"}


def quick(value: object) -> bytes | None:
    """Return the stored bytes of a small value of JSON types, tuples and floats; ``None`` if it needs ``to_json``."""
    return noted(value, [])


#: A place in a tree: the steps to it from the top, by index.
Place = tuple[int, ...]


#: The places of each object that occurs more than once in a value: what a program sees of it that its tree does not say.
Structure = list[list[Place]]
#: What a walk has made, by the ``id`` of the tree: the tree and the object of each changeable part. It holds both, so
#: that no ``id`` is used twice.
Made = dict[int, tuple[Tree, Any]]


def with_structure(value: object, notes: list[str] | None = None) -> tuple[Tree, Structure]:
    """Like ``to_json``; also return what a replay needs to make the value again in all that a program can see."""
    kind = type(value)
    if kind is dict or kind is list:
        if plain(value, LEVELS, _PLAIN_WIDTH) and not repeats(value):  # type: ignore[arg-type]
            return value, []
    elif value is None or kind is bool or (kind is str and value.isascii()):  # type: ignore[attr-defined]
        return value, []
    walk = Walk(notes)
    made: Made = {}
    walk.made = made
    tree = _walked(walk, value)
    return tree, structure_of(tree, made)


class Unnamed(str):
    """A note about a value whose class can't be found by name, because it was created while the program ran."""

    __slots__ = ("name",)

    name: str


class TooLarge(Exception):
    """A value has too many items."""


class Walk:
    """The state of encoding one value: enclosing objects (cycles), remaining items, notes.

    ``made`` collects, if it is not ``None``, what is needed for the ``Structure`` of a value that a replay makes again.
    """

    __slots__ = ("above", "left", "made", "notes")

    def __init__(self, notes: list[str] | None = None) -> None:
        self.above: set[int] = set()
        self.left = MAX_ITEMS
        self.made: Made | None = None
        self.notes = notes

    def value(self, value: Any, depth: int) -> Tree:
        kind = type(value)
        if kind is str:
            return value if value.isascii() or encodable(value) else _surrogates(value)
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
        if depth >= LEVELS:
            return self.opaque(value, "it is nested too deep")
        self.above.add(me)
        tree: Tree
        try:
            if kind is list:  # without a handler: the stack must have room for all levels
                tree = self.items(value, depth)
            else:
                tree = handler_of(kind)(self, value, depth)
            if self.made is not None and (type(tree) is list or tree.get("$t") not in _UNCHANGEABLE):
                self.made[id(tree)] = tree, value
            return tree
        except (KeyboardInterrupt, TooLarge):
            raise
        except BaseException as error:  # whatever the value's own code does, the program goes on
            return self.opaque(value, f"encoding it raised {type(error).__name__}")
        finally:
            self.above.discard(me)

    def items(self, values: Any, depth: int) -> list[Tree]:
        """Return the trees of several values that are in a list at ``depth``."""
        values = list(values)
        self.spend(len(values))
        visit = self.value
        trees = []
        for item in values:  # a comprehension would cost a frame
            trees.append(visit(item, depth + 1))  # noqa: PERF401
        return trees

    def mapping(self, pairs: Any, depth: int) -> Tree:
        """Encode a dictionary, as pairs if JSON has no such keys (or a key could be taken for a tag)."""
        pairs = list(pairs)
        self.spend(len(pairs))
        visit = self.value
        for key, _ in pairs:
            if type(key) is not str or key[:1] == "$" or not (key.isascii() or encodable(key)):
                return {"$t": "dict", "v": [[visit(key, depth + 3), visit(item, depth + 3)] for key, item in pairs]}
        trees = {}
        for key, item in pairs:
            trees[key] = visit(item, depth + 1)
        return trees

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooLarge

    def unnamed(self, kind: type) -> None:
        """Note that a class can't be found in any module under its name."""
        if self.notes is not None:
            name = name_of(kind)
            note = Unnamed(
                f"A value of type {name} can't be made again: its class was made while the program ran, and is found under that name in no "
                "module. Define it at the top of a module, or name it in the return annotation."
            )
            note.name = name
            if note not in self.notes:
                self.notes.append(note)

    def opaque(self, value: object, reason: str) -> Tree:
        """Return the tree that replaces a value that can't be encoded."""
        try:
            name = name_of(type(value))
        except Exception:
            name = "?:?"
        if self.notes is not None:
            self.notes.append(f"A value of type {name} can't be recorded: {reason}. It is not serialised in the trace.")
        return {"$t": "opaque", "type": name[:_REPR], "repr": _described(value)}


#: The tags of values that no program can change.
_UNCHANGEABLE: Final = frozenset(
    (
        *("opaque", "str", "int", "float", "complex", "const", "bytes", "tuple", "frozenset", "range", "slice"),
        *("datetime", "date", "time", "timedelta", "timezone", "zoneinfo", "struct_time", "decimal", "fraction"),
        *(
            "uuid",
            "uuid_utils",
            "path",
            "pattern",
            "ip",
            "npscalar",
            "npstr",
            "npbytes",
            "enum",
            "namedtuple",
            "structseq",
            "sqlite_row",
            "url",
            "secret",
        ),
    )
)


def structure_of(tree: Tree, made: Made) -> Structure:
    """Return the structure of the value that ``tree`` represents, in order; ``made`` is that of the walk.

    The contents of an object are looked at where it occurs first.
    """
    once: set[int] = set()
    again: set[int] = set()
    for _, value in made.values():
        (again if id(value) in once else once).add(id(value))
    if not again:
        return []
    wanted = {id(node): id(value) for node, value in made.values() if id(value) in again}
    found: dict[int, list[Place]] = {}
    stack: list[tuple[Place, Tree]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        which = wanted.get(id(node))
        if which is not None:
            places = found.setdefault(which, [])
            places.append(path)
            if len(places) > 1:
                continue
        inside = [
            ((*path, i), item)
            for i, item in enumerate(node.values() if type(node) is dict else node)
            if type(item) is dict or type(item) is list
        ]
        stack.extend(reversed(inside))
    return [places for places in found.values() if len(places) > 1]


def add_structure(meta: dict[str, Any], structure: Structure, tree: Tree, at: str) -> None:
    """Add the structure of ``tree`` to the ``meta`` of its entry, with JSON pointers that begin with ``at``.

    The tree may have been redacted since: what a placeholder has replaced is left out.
    """
    groups = [[pointer for path in places if (pointer := _pointer(tree, path, at))] for places in structure]
    shared = [group for group in groups if len(group) > 1]
    if shared:
        meta["shared"] = [*shared, *meta.get("shared", ())]


def _pointer(tree: Tree, path: Place, pointer: str) -> str | None:
    for step in path:
        if type(tree) is dict and step < len(tree):
            key = [*tree][step]
            tree = tree[key]
            pointer += "/" + key.replace("~", "~0").replace("/", "~1")
        elif type(tree) is list and step < len(tree):
            tree = tree[step]
            pointer += f"/{step}"
        else:  # a placeholder is in its place
            return None
    return pointer


_ADDRESS: Final = expression(r" at 0x[0-9a-fA-F]+")


def _described(value: object) -> str:
    """Describe a value in at most 200 characters, without addresses, which would differ in a replay."""
    try:
        for base in (list, dict, tuple, set, frozenset):  # their repr may take forever
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


#: A cache of handlers, by type only; emptied when it is full.
_known: Final[dict[type, Handler]] = {}
_MANY_TYPES: Final = 4096


def handler_of(kind: type) -> Handler:
    """Return the handler that encodes values of exactly this type."""
    handler = _known.get(kind)
    if handler is not None and not codecs_by_type:
        return handler
    codec = codecs_by_type.get(kind)
    if codec is not None:
        return lambda walk, value, depth: {"$t": codec.tag, "v": walk.value(codec.encode(value), depth + 1)}
    if handler is None:
        handler = classify(kind)
        if is_heap(kind) and len(_known) > _MANY_TYPES:  # classes created dynamically must not be kept alive forever
            _known.clear()
        _known[kind] = handler
    return handler


# -- kinds -------------------------------------------------------------------------------------------------------------
#
# How each kind of type is encoded: a table by name for the standard library, and checks of the bases for the rest.
# Types of modules that are not loaded need no handling, so nothing is imported here: a type's own module is loaded if
# there are values of it.

#: The NumPy types that are fully described by their bytes.
DTYPE: Final = expression(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[SUV]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)"
)
#: Built-in types whose subclasses are rebuilt from the base's value and the instance's attributes.
BASES: Final[tuple[type, ...]] = (str, int, float, complex, bytes, bytearray, list, dict, set, frozenset, tuple)


def base64(data: Any) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _simple(tag: str, plain: Callable[[Any], Any]) -> Handler:
    """Return the handler of a type whose value is represented by ``plain(value)``, a value of simpler types."""

    def handler(walk: Walk, value: Any, depth: int) -> Tree:
        return {"$t": tag, "v": walk.value(plain(value), depth + 1)}

    return handler


def _list(walk: Walk, value: Any, depth: int) -> Tree:
    return walk.items(list.__iter__(value), depth)


def _dict(walk: Walk, value: Any, depth: int) -> Tree:
    return walk.mapping(_pairs(value), depth)


def _pairs(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    for _ in range(8):
        try:
            return list(dict.items(value))
        except RuntimeError:  # another thread is writing to it
            continue
    return list(dict.items(dict.copy(value)))


def _tuple(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "tuple", "v": walk.items(tuple.__iter__(value), depth + 1)}


def _set(tag: str) -> Handler:
    base: Any = {"set": set, "frozenset": frozenset}[tag]

    def handler(walk: Walk, value: Any, depth: int) -> Tree:
        members = list(base.__iter__(value))
        trees = walk.items(members, depth + 1)
        if walk.made is None:
            return {"$t": tag, "v": sorted(trees, key=dumps)}
        numbers = sorted(range(len(members)), key=lambda number: dumps(trees[number]))
        return {"$t": tag, "v": [trees[number] for number in numbers], **_iteration(base, value, members, numbers)}

    return handler


#: The types whose hashes are the same in every process; those of texts are if the environment says so.
_SAME_HASHES: Final = {int, float, bool, complex} | (
    {str, bytes} if os.environ.get("PYTHONHASHSEED", "random").isdigit() else set()
)
#: A set has at most this many slots for each of its members, and for eight.
_SLOTS: Final = 16


def _iteration(base: Any, value: Any, members: list[Any], numbers: list[int]) -> dict[str, Tree]:
    """Return what makes a new set iterate as this one does, if its members in the order of ``numbers`` do not: an order in
    which to add them, and the number of slots. Nothing if that is not known, or hashes are others in a replay."""
    if not all(map(_hashes_alike, members)):
        return {}
    if [*map(id, base(members[number] for number in numbers))] == [*map(id, members)]:
        return {}
    slots = (base.__sizeof__(value) - base.__basicsize__) // 16 or 8
    if slots > _SLOTS * max(8, len(members)):
        return {}
    at = {number: place for place, number in enumerate(numbers)}
    every = [*range(len(members))]
    for keys, order in (({}, every), ({"slots": slots}, every), ({"slots": slots}, _order(members, slots))):
        if [*map(id, _added(base, [members[number] for number in order], **keys))] == [*map(id, members)]:
            return {"order": [at[number] for number in order], **keys}
    return {}


#: Larger sets are not tried for long.
_MOST_TRIED: Final = 500


def _order(members: list[Any], slots: int) -> list[int]:
    """Return an order in which to add members to a set of so many slots, so that it iterates over them as they are
    here."""
    order = [*range(len(members))]
    for _ in range(2 if len(members) <= _MOST_TRIED else 0):
        # which slots are taken hardly depends on the order
        taken: set[int] = set()
        for number in order:
            taken.add(_free_slot(hash(members[number]), slots, taken))
        wanted = sorted(taken)
        order, left, before = [], [*range(len(members))], 0
        taken = set()
        while len(left) != before:  # add each one as soon as that leads to its slot
            before, rest = len(left), []
            for number in left:
                if _free_slot(hash(members[number]), slots, taken) == wanted[number]:
                    taken.add(wanted[number])
                    order.append(number)
                else:
                    rest.append(number)
            left = rest
        order += left
        if not left:
            break
    return order


def _free_slot(value: int, slots: int, taken: set[int]) -> int:
    """Return the slot in which CPython puts a new member of a set: the first free one of those that its hash leads to."""
    mask, rest = slots - 1, value & (2**64 - 1)
    slot = value & mask
    while True:
        for one in range(slot, slot + (10 if slot + 9 <= mask else 1)):
            if one not in taken:
                return one
        rest >>= 5
        slot = (slot * 5 + 1 + rest) & mask


def _hashes_alike(value: Any) -> bool:
    kind = type(value)
    return kind in _SAME_HASHES or (kind is tuple and all(map(_hashes_alike, value)))


def _added(base: Any, members: list[Any], slots: int = 0) -> Any:
    """Return a set to which the members were added in this order; with ``slots``, when it already had that many."""
    if not slots:
        return base(members)
    # A set makes room for twice the length of a dictionary before it adds the first key.
    first, rest = members[: (slots - 1) // 2], members[(slots - 1) // 2 :]
    others = [object() for _ in range(slots // 4 - len(first))]
    made = set(dict.fromkeys([*first, *others]))
    for other in others:
        made.discard(other)
    for one in rest:
        made.add(one)
    return made if base is set else base(made)


def _ordered(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "OrderedDict", "v": [walk.items(pair, depth + 2) for pair in value.items()]}


def _counter(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "Counter", "v": [walk.items(pair, depth + 2) for pair in dict.items(value)]}


_FACTORIES: Final = {list: "list", dict: "dict", set: "set", int: "int", float: "float", str: "str", tuple: "tuple"}


def _defaultdict(walk: Walk, value: Any, depth: int) -> Tree:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES:
        return walk.opaque(value, "its default_factory is not a built-in type")
    pairs = [walk.items(pair, depth + 2) for pair in dict.items(value)]
    return {"$t": "defaultdict", "f": None if factory is None else _FACTORIES[factory], "v": pairs}


def _deque(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "deque", "maxlen": value.maxlen, "v": walk.items(value, depth + 1)}


def _datetime(walk: Walk, value: Any, depth: int) -> Tree:
    tree = {"$t": "datetime", "v": value.isoformat()}
    if value.fold:
        tree["fold"] = 1
    zone = value.tzinfo
    if zone is not None and type(zone).__module__ == "zoneinfo" and isinstance(zone.key, str):
        tree["v"] = value.replace(tzinfo=None).isoformat()
        tree["zone"] = zone.key
        return tree
    tree.update(_zone_name(value))
    return tree


def _time(walk: Walk, value: Any, depth: int) -> Tree:
    if value.tzinfo is not None and value.utcoffset() is None:
        return walk.opaque(value, "its time zone has no fixed offset")
    named = _zone_name(value)
    return {"$t": "time", "v": value.isoformat(), **({"fold": 1} if value.fold else {}), **named}


def _zone_name(value: Any) -> dict[str, Tree]:
    """Return the name of the time zone of a time, unless it is the usual one of its offset from UTC."""
    if value.tzinfo is None or value.tzinfo is _UTC:
        return {}
    try:
        name, offset = value.tzname(), value.utcoffset()
        usual = None if offset is None else _datetime_module.timezone(offset).tzname(None)
    except Exception:  # a class of the program's own
        return {}
    return {} if type(name) is not str or name == usual else {"name": to_json(name)}


def _memoryview(walk: Walk, value: Any, depth: int) -> Tree:
    if len(value.format) != 1:
        return walk.opaque(value, "its items have no native format")
    tree: dict[str, Any] = {"$t": "memoryview", "v": base64(value.tobytes())}
    if not value.readonly:
        tree["writable"] = True
    if value.format != "B" or value.ndim != 1:
        tree["format"], tree["shape"] = value.format, list(value.shape)
    return tree


def _timezone(walk: Walk, value: Any, depth: int) -> Tree:
    offset, *name = value.__getinitargs__()
    return {
        "$t": "timezone",
        "v": [offset.days, offset.seconds, offset.microseconds],
        "name": name[0] if name else None,
    }


def _path(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "path", "c": type(value).__name__, "v": walk.value(str(value), depth + 1)}


def _address(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "ip", "c": type(value).__name__, "v": walk.value(str(value), depth + 1)}


def _namespace(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "namespace", "v": walk.mapping(vars(value).items(), depth + 1)}


def _opaque(reason: str) -> Handler:
    return lambda walk, value, depth: walk.opaque(value, reason)


def _when_made_again(handler: Handler) -> Handler:
    """Return the handler of a type that only values have which a replay makes again: in an input, type and description are
    compared."""

    def encode(walk: Walk, value: Any, depth: int) -> Tree:
        return walk.opaque(value, _UNKNOWN) if walk.made is None else handler(walk, value, depth)

    return encode


_UNKNOWN: Final = "no codec knows its type"


def _view(name: str) -> Handler:
    """Return the handler of the view of a dictionary that its method ``name`` returns."""
    return _when_made_again(
        lambda walk, value, depth: {"$t": "view", "c": name, "v": walk.value(value.mapping.copy(), depth + 1)}
    )


def _row(walk: Walk, value: Any, depth: int) -> Tree:
    names = value.keys()
    if any(type(name) is not str or "\0" in name for name in names):
        return walk.opaque(value, "its columns have no names")
    return {"$t": "sqlite_row", "c": walk.items(names, depth + 1), "v": walk.items(tuple(value), depth + 1)}


def _url(walk: Walk, value: Any, depth: int) -> Tree:
    """Encode a URL of pydantic, if the same comes from its text."""
    inner, text = state_of(value).get("_url", value), str(value)
    if type(inner)(text) != inner:
        return walk.opaque(value, "its text makes another")
    return {"$t": "url", "c": name_of(type(value)), "of": type(inner).__name__, "v": text}


def _secret(walk: Walk, value: Any, depth: int) -> Tree:
    """Encode a secret text of pydantic. Redaction replaces it, whatever it looks like."""
    kept = state_of(value).get("_secret_value")
    if type(kept) is not str or not encodable(kept):
        return walk.opaque(value, "it is no text")
    return {"$t": "secret", "c": name_of(type(value)), "v": kept}


def _by_attributes(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "object", "c": name_of(type(value)), "v": walk.mapping(state_of(value).items(), depth + 1)}


_UTC: Final = _datetime_module.UTC
_plain_path: Final = {
    f"{module}:{name}": _path
    for module in ("pathlib", "pathlib._local")
    for name in ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath", "PurePath", "Path")
}
_addresses: Final = {
    f"ipaddress:IPv{version}{kind}": _address for version in (4, 6) for kind in ("Address", "Network", "Interface")
}
_days: Final = _simple("timedelta", lambda value: [value.days, value.seconds, value.microseconds])

#: By ``module:qualname``; a type of that name that is not the one in its module does not count.
_BY_NAME: Final[dict[str, Handler]] = {
    "builtins:list": _list,
    "builtins:dict": _dict,
    "builtins:tuple": _tuple,
    "builtins:set": _set("set"),
    "builtins:frozenset": _set("frozenset"),
    "builtins:bytes": lambda walk, value, depth: {"$t": "bytes", "v": base64(value)},
    "builtins:bytearray": lambda walk, value, depth: {"$t": "bytearray", "v": base64(value)},
    "builtins:memoryview": _memoryview,
    "builtins:complex": _simple("complex", lambda value: [value.real, value.imag]),
    "builtins:range": _simple("range", lambda value: [value.start, value.stop, value.step]),
    "builtins:slice": _simple("slice", lambda value: [value.start, value.stop, value.step]),
    "builtins:ellipsis": lambda walk, value, depth: {"$t": "const", "v": "Ellipsis"},
    "builtins:NotImplementedType": lambda walk, value, depth: {"$t": "const", "v": "NotImplemented"},
    "datetime:datetime": _datetime,
    "freezegun.api:FakeDatetime": _datetime,  # replaces datetime while time is frozen
    "datetime:date": _simple("date", lambda value: value.isoformat()),
    "freezegun.api:FakeDate": _simple("date", lambda value: value.isoformat()),
    "datetime:time": _time,
    "datetime:timedelta": _days,
    "datetime:timezone": _timezone,
    "zoneinfo:ZoneInfo": _simple("zoneinfo", lambda value: value.key),
    "decimal:Decimal": _simple("decimal", str),
    "fractions:Fraction": _simple("fraction", lambda value: [value.numerator, value.denominator]),
    "uuid:UUID": _simple("uuid", lambda value: f"{value.int:032x}"),
    "uuid_utils:UUID": _simple("uuid_utils", lambda value: f"{value.int:032x}"),
    "collections:OrderedDict": _ordered,
    "collections:Counter": _counter,
    "collections:defaultdict": _defaultdict,
    "collections:deque": _deque,
    "time:struct_time": _simple("struct_time", lambda value: [*value[:9], value.tm_zone, value.tm_gmtoff]),
    "types:SimpleNamespace": _namespace,
    "re:Pattern": _simple("pattern", lambda value: [value.pattern, value.flags]),
    "array:array": lambda walk, value, depth: {"$t": "array", "c": value.typecode, "v": walk.items(value, depth + 1)},
    "collections:ChainMap": _simple("ChainMap", lambda value: list(value.maps)),
    **{f"builtins:{kind}_{name}": _view(name) for kind in ("dict", "odict") for name in ("keys", "values", "items")},
    "builtins:mappingproxy": _when_made_again(_simple("mappingproxy", lambda value: value.copy())),
    "sqlite3:Row": _when_made_again(_row),
    "pydantic_core._pydantic_core:Url": _when_made_again(_url),
    "pydantic_core._pydantic_core:MultiHostUrl": _when_made_again(_url),
    "pydantic.types:SecretStr": _when_made_again(_secret),
    **_addresses,
    **_plain_path,
}


def classify(kind: type) -> Handler:
    """Return the handler for a type not seen before."""
    handler = _BY_NAME.get(name_of(kind))
    if handler is not None and (is_heap(kind) is False or loaded_class(name_of(kind)) is kind):
        return handler
    bases = kind.__mro__
    for applies, handler in _FAMILIES:
        if applies(kind, bases):
            if handler in _BY_CLASS and loaded_class(name_of(kind)) is None:
                return _plain_namedtuple if handler is _namedtuple and _is_plain(kind) else _unnamed(handler)
            return handler
    return _opaque(_UNKNOWN)


def _unnamed(handler: Handler) -> Handler:
    def encode(walk: Walk, value: Any, depth: int) -> Tree:
        walk.unnamed(type(value))
        return handler(walk, value, depth)

    return encode


def _from(module: str, name: str) -> Callable[[type, tuple[type, ...]], bool]:
    """Return a check whether a type derives from a class of a module, which is then loaded."""

    def applies(kind: type, bases: tuple[type, ...]) -> bool:
        found = sys.modules.get(module)
        base = found.__dict__.get(name) if isinstance(found, ModuleType) else None
        return base is not None and any(item is base for item in bases)

    return applies


def _marked(mark: str) -> Callable[[type, tuple[type, ...]], bool]:
    def applies(kind: type, bases: tuple[type, ...]) -> bool:
        return any(mark in vars(base) for base in bases) and all(base is object or is_heap(base) for base in bases)

    return applies


def _is_enum(kind: type, bases: tuple[type, ...]) -> bool:
    enum = sys.modules.get("enum")
    return enum is not None and issubclass(type(kind), enum.EnumMeta)


def _is_namedtuple(kind: type, bases: tuple[type, ...]) -> bool:
    return tuple in bases and is_heap(kind) and any("_fields" in vars(base) for base in bases)


def _is_structseq(kind: type, bases: tuple[type, ...]) -> bool:
    return bases == (kind, tuple, object) and type(vars(kind).get("n_sequence_fields")) is int


def _is_subclass(kind: type, bases: tuple[type, ...]) -> bool:
    native = [base for base in bases if base is not object and not is_heap(base)]
    return is_heap(kind) and len(native) == 1 and native[0] in BASES


def _enum(walk: Walk, value: Any, depth: int) -> Tree:
    state = state_of(value)
    plain = walk.value(state["_value_"], depth + 1)
    return {"$t": "enum", "c": name_of(type(value)), "n": state.get("_name_"), "v": plain}


def _structseq(walk: Walk, value: Any, depth: int) -> Tree:
    """Encode ``os.stat_result`` and the like, which have more fields than items."""
    kind: Any = type(value)
    items, fields = kind.__reduce__(value)[1]
    return {
        "$t": "structseq",
        "c": name_of(type(value)),
        "v": walk.items(items, depth + 1),
        "f": walk.mapping(fields.items(), depth + 1),
    }


def _namedtuple(walk: Walk, value: Any, depth: int) -> Tree:
    if len(_field_names(type(value))) != tuple.__len__(value):
        return walk.opaque(value, "it has other items than its fields")
    return {"$t": "namedtuple", "c": name_of(type(value)), "v": walk.items(tuple.__iter__(value), depth + 1)}


#: The attributes of every class made by ``collections.namedtuple`` or ``typing.NamedTuple``, besides its fields.
_OF_NAMEDTUPLES: Final = frozenset(vars(namedtuple("_OF_NAMEDTUPLES", ()))) | {
    "__annotations__", "__annotate_func__", "__annotations_cache__", "__orig_bases__", "__static_attributes__", "__firstlineno__",
}  # fmt: skip


def _field_names(kind: type) -> tuple[str, ...]:
    found: tuple[str, ...] = next(vars(base)["_fields"] for base in kind.__mro__ if "_fields" in vars(base))
    return found


def _is_plain(kind: type) -> bool:
    """Return whether a named tuple has nothing but its fields."""
    return kind.__bases__ == (tuple,) and vars(kind).keys() <= _OF_NAMEDTUPLES | set(vars(kind)["_fields"])


def _plain_namedtuple(walk: Walk, value: Any, depth: int) -> Tree:
    """Encode a named tuple of a dynamically created class, which can be recreated from its field names."""
    return {**_namedtuple(walk, value, depth), "f": [*vars(type(value))["_fields"]]}


def _subclass(walk: Walk, value: Any, depth: int) -> Tree:
    kind = type(value)
    base = next(base for base in kind.__mro__ if base in BASES)
    tree = {"$t": "sub", "c": name_of(kind), "b": base.__name__, "v": walk.value(_base_value(base, value), depth + 1)}
    state = {name: item for name, item in state_of(value).items() if not name.startswith("__")}
    if state:
        tree["a"] = walk.mapping(state.items(), depth + 1)
    return tree


def _base_value(base: type, value: Any) -> Any:
    """Convert to exactly ``base``, without calling methods that a subclass may override."""
    if base in (str, int, float):
        return {str: str.__str__, int: int.__int__, float: float.__float__}[base](value)
    if base is complex:
        return complex(*complex.__getnewargs__(value))  # type: ignore[attr-defined]
    if base is dict:
        return dict(_pairs(value))
    return base(base.__iter__(value))  # type: ignore[attr-defined]


def _fields(tag: str) -> Handler:
    """Return the handler for classes with declared fields. Other attributes (caches, locks) are included if they can be
    encoded."""

    def handler(walk: Walk, value: Any, depth: int) -> Tree:
        return {"$t": tag, "c": name_of(type(value)), "v": _attributes(walk, value, tag, depth)}

    return handler


def _attributes(walk: Walk, value: Any, tag: str, depth: int) -> Tree:
    declared = _declared(type(value), tag)
    kept = {}
    for name, item in state_of(value).items():
        if name.startswith("__") and name.endswith("__"):
            continue
        if name in declared or _can_be_encoded(walk, item, depth):
            kept[name] = item
    return walk.mapping(kept.items(), depth + 1)


def attributes_of(walk: Walk, value: object) -> Tree:
    """Encode an object of an unknown type by its attributes, as far as possible. It is never decoded."""
    kept = {
        name: item
        for name, item in state_of(value).items()
        if not (name.startswith("__") and name.endswith("__")) and _can_be_encoded(walk, item, 0)
    }
    return {"$t": "object", "c": name_of(type(value)), "v": walk.mapping(kept.items(), 1)}


def _declared(kind: type, tag: str) -> Any:
    mark = {"dataclass": "__dataclass_fields__", "pydantic": "__pydantic_fields__"}.get(tag)
    if mark is not None:
        return next((vars(base)[mark] for base in kind.__mro__ if mark in vars(base)), ())
    if tag == "attrs":
        return {item.name for item in next(vars(base)[_ATTRS] for base in kind.__mro__ if _ATTRS in vars(base))}
    return kind.__struct_fields__  # type: ignore[attr-defined]


def _can_be_encoded(walk: Walk, item: object, depth: int) -> bool:
    notes: list[str] = []
    trial = Walk(notes)
    trial.above, trial.left = set(walk.above), walk.left
    trial.value(item, depth + 2)
    return not notes


def _pydantic(walk: Walk, value: Any, depth: int) -> Tree:
    tree = {"$t": "pydantic", "c": name_of(type(value)), "v": _attributes(walk, value, "pydantic", depth)}
    read = object.__getattribute__
    tree["set"] = sorted(read(value, "__pydantic_fields_set__"))
    for key, slot in (("extra", "__pydantic_extra__"), ("private", "__pydantic_private__")):
        part = read(value, slot)
        if part is not None:
            undefined = sys.modules["pydantic_core"].PydanticUndefined
            tree[key] = walk.mapping([(k, v) for k, v in part.items() if v is not undefined], depth + 1)
    return tree


def _exception(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "exception", "v": describe(walk, value, depth + 1)}


def _array(walk: Walk, value: Any, depth: int) -> Tree:
    dtype = value.dtype.str
    tree: dict[str, Any] = {"$t": "ndarray", "dtype": dtype, "shape": list(value.shape)}
    if dtype == "|O":
        tree["v"] = walk.items(value.ravel(), depth + 1)
    elif not DTYPE.fullmatch(dtype) or value.dtype.names or value.dtype.subdtype:
        return walk.opaque(value, "only arrays of plain numbers, dates, texts, bytes and objects can be")
    else:
        tree["v"] = base64(value.tobytes())
    if walk.made is not None:  # a replay makes it again
        tree.update(_layout(value))
    return tree


#: An array with gaps is made again with them if it spans at most this many bytes, or this many times its own.
_SPAN: Final = 1 << 16
_GAPS: Final = 16


def _layout(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what distinguishes an array from a new one with the same contents: memory order, and flags."""
    if not value.flags.c_contiguous:  # an empty array is
        strides, span = value.strides, _span(value.shape, value.strides, value.itemsize)[1]
        if value.dtype.hasobject or span > max(_SPAN, value.nbytes * _GAPS):
            strides = value.copy(order="K").strides
        yield "strides", list(strides)
    if not value.flags.owndata:
        yield "view", True
    if not value.flags.writeable:
        yield "readonly", True


def _span(shape: Any, strides: Any, size: int) -> tuple[int, int]:
    """Return where the first element of an array is in its memory, and how many bytes that has."""
    ends = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
    first = -sum(end for end in ends if end < 0)
    return first, first + sum(end for end in ends if end > 0) + size


def _scalar(walk: Walk, value: Any, depth: int) -> Tree:
    name, dtype = type(value).__name__, value.dtype.str
    if name == "str_":
        return {"$t": "npstr", "v": walk.value(str.__str__(value), depth + 1)}
    if name == "bytes_":
        return {"$t": "npbytes", "v": base64(value)}
    if not DTYPE.fullmatch(dtype) or value.dtype.names or value.dtype.subdtype:
        return walk.opaque(value, "only plain NumPy scalars can be")
    return {"$t": "npscalar", "dtype": dtype, "v": base64(value.tobytes())}


def _is_array(kind: type, bases: tuple[type, ...]) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.__dict__.get("ndarray")


def _is_scalar(kind: type, bases: tuple[type, ...]) -> bool:
    return not is_heap(kind) and kind.__module__ == "numpy" and _from("numpy", "generic")(kind, bases)


#: Classes of the standard library whose instances, also those of subclasses, are what their attributes are.
_PLAIN_CLASSES: Final = frozenset(
    (
        *("argparse:Namespace", "subprocess:CompletedProcess", "string:Template", "email.headerregistry:Address"),
        *("collections:UserDict", "collections:UserList", "collections:UserString"),
    )
)


def _is_plain_object(kind: type, bases: tuple[type, ...]) -> bool:
    return (
        any(name_of(base) in _PLAIN_CLASSES for base in bases)
        and all(base is object or is_heap(base) for base in bases)
        and not hasattr(kind, "__del__")
    )


def _is_url(kind: type, bases: tuple[type, ...]) -> bool:
    return any(_from("pydantic.networks", name)(kind, bases) for name in ("_BaseUrl", "_BaseMultiHostUrl"))


_ATTRS: Final = "__attrs_attrs__"
_is_pydantic: Final = _from("pydantic.main", "BaseModel")
_is_msgspec: Final = _from("msgspec", "Struct")
_is_attrs: Final = _marked(_ATTRS)
_is_dataclass: Final = _marked("__dataclass_fields__")
#: In order of precedence: the first that applies wins.
_FAMILIES: Final[list[tuple[Callable[[type, tuple[type, ...]], bool], Handler]]] = [
    (_is_enum, _enum),
    (_is_pydantic, _pydantic),
    (_is_msgspec, _fields("msgspec")),
    (lambda kind, bases: BaseException in bases, _exception),
    (_is_attrs, _fields("attrs")),
    (_is_dataclass, _fields("dataclass")),
    (_is_array, _array),
    (_is_scalar, _scalar),
    (_is_structseq, _structseq),
    (_is_namedtuple, _namedtuple),
    (_is_subclass, _subclass),
    (_is_url, _when_made_again(_url)),
    (_is_plain_object, _when_made_again(_by_attributes)),
]
#: The handlers of trees from whose class an instance is made.
_BY_CLASS: Final = frozenset(handler for applies, handler in _FAMILIES if handler not in (_exception, _array, _scalar))
#: By tag, what a class named in a trace must really be before an instance of it is made.
MUST_BE: Final[dict[str, Callable[[type, tuple[type, ...]], bool]]] = {
    "enum": _is_enum,
    "pydantic": _is_pydantic,
    "msgspec": _is_msgspec,
    "attrs": _is_attrs,
    "dataclass": _is_dataclass,
    "structseq": _is_structseq,
    "namedtuple": _is_namedtuple,
    "sub": _is_subclass,
    "object": _is_plain_object,
    "url": _is_url,
    "secret": _from("pydantic.types", "SecretStr"),
}

# -- hints -------------------------------------------------------------------------------------------------------------
#
# The classes in an annotation, and in the annotations of their fields.

_MOST_HINTS: Final = 2000


def classes_in(hint: Any) -> dict[str, type]:
    """Return every class reachable from ``hint``, by ``module:qualname``: through unions, containers, aliases, and
    fields of classes."""
    found: dict[str, type] = {}
    stack: list[Any] = [hint]
    seen: set[int] = set()
    while stack and len(seen) < _MOST_HINTS:
        item = stack.pop()
        if item is None or isinstance(item, str) or id(item) in seen:
            continue
        seen.add(id(item))
        try:
            if isinstance(item, type):
                found.setdefault(name_of(item), item)
            stack.extend(_inside(item))
        except Exception:  # an unreadable annotation names no class
            continue
    return found


def _inside(item: Any) -> Iterator[Any]:
    for name in ("__origin__", "__supertype__", "__value__", "__bound__"):
        yield getattr(item, name, None)
    if isinstance(item, (list, tuple)):
        yield from item
    yield from getattr(item, "__args__", None) or ()
    if isinstance(item, type) and item.__module__ != "builtins":
        yield from _annotated_fields(item)


def _annotated_fields(cls: type) -> Iterator[Any]:
    for field in (getattr(cls, "__pydantic_fields__", None) or {}).values():
        yield getattr(field, "annotation", None)
    if "__annotations__" in vars(cls) or hasattr(cls, "__dataclass_fields__"):
        yield from _annotations(cls)


def _annotations(cls: type) -> list[Any]:
    from typing import get_type_hints

    try:
        return list(get_type_hints(cls).values())
    except Exception:  # a name that exists only for the type checker; annotations that are not strings are still usable
        return list(vars(cls).get("__annotations__", {}).values())


# -- decode ------------------------------------------------------------------------------------------------------------
#
# Trees back to values. A tree is untrusted: nothing is imported, evaluated or initialised because of it. Classes come
# from the return annotation, from a registered codec, or from a module that is already loaded; instances get their
# fields without ``__init__``, ``__post_init__`` or validators.

#: The maximum JSON nesting that is decoded: more than is ever written.
MAX_NESTING: Final = 300


class _Shared:
    """A node of a tree that occurs more than once: the same object wherever it is decoded."""

    __slots__ = ("built", "tree", "value")

    def __init__(self) -> None:
        self.tree: Tree = None
        self.built = False
        self.value: Any = None


def structured(tree: Tree, meta: Mapping[str, Any], at: str) -> Tree:
    """Return ``tree``, which is at the pointer ``at`` of an entry with this ``meta``, as a decoder needs it to make a
    value with its recorded structure.

    ``tree`` itself is not modified. Raises ``NotReplayableError`` if the structure is malformed.
    """
    if "shared" not in meta:
        return tree
    marks: dict[Any, Any] = {}
    try:
        for group in meta["shared"]:
            mark = _Shared()
            for pointer in group:
                if pointer == at or pointer.startswith(at + "/"):
                    place = marks
                    for step in pointer[len(at) :].split("/")[1:]:
                        place = place.setdefault(step.replace("~1", "/").replace("~0", "~"), {})
                    place[None] = mark
        return _with_marks(tree, marks) if marks else tree
    except (TypeError, AttributeError):
        refuse("the structure in meta of its entry is malformed")


def _with_marks(tree: Tree, marks: dict[Any, Any]) -> Tree:
    mark = marks.get(None)
    if mark is not None and mark.tree is not None:
        return mark
    if type(tree) is dict:
        if tree.get("$t") == "argument":
            return tree
        copy: Any = {key: _with_marks(item, marks[key]) if key in marks else item for key, item in tree.items()}
    elif type(tree) is list:
        copy = [_with_marks(item, marks[str(i)]) if str(i) in marks else item for i, item in enumerate(tree)]
    else:  # a placeholder
        return tree
    if mark is None:
        return copy
    mark.tree = copy
    return mark


def from_json(tree: Tree, hint: Any = None) -> Any:
    """Return the value that ``tree`` represents, with new containers throughout.

    ``hint`` is the declared type (a return annotation), if any: classes in it are found whatever module they are in.
    Raises ``NotReplayableError`` if the tree is opaque, malformed, or names a class that is not loaded.
    """
    return Decoder(hint).whole(tree)


def not_serialisable(tree: Tree) -> str | None:
    """Return a description of the first opaque value in ``tree`` (``"module:Type: repr"``), or ``None``."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if type(node) is dict:
            if node.get("$t") == "opaque":
                return f"{node.get('type')}: {node.get('repr')}"
            stack.extend(reversed(node.values()))
        elif type(node) is list:
            stack.extend(reversed(node))
    return None


def refuse(reason: str, next_action: str | None = None) -> NoReturn:
    raise NotReplayableError(
        f"A recorded value can't be rebuilt: {reason}.",
        reason=reason,
        next_action=next_action or "Return a type that can be recorded, or register a codec for it, and record again.",
    )


class Decoder:
    """Decodes one tree; caches the classes in the hint once they are needed."""

    __slots__ = ("_classes", "_hint")

    def __init__(self, hint: Any = None) -> None:
        self._hint = hint
        self._classes: dict[str, type] | None = None

    def whole(self, tree: Tree) -> Any:
        """Like ``value`` from the top, with every failure raised as ``NotReplayableError``."""
        try:
            return self.value(tree, 0)
        except NotReplayableError:
            raise
        except RecursionError as error:
            raise NotReplayableError(
                "A recorded value can't be rebuilt: the stack is exhausted.", reason="stack"
            ) from error
        except Exception as error:
            reason = f"it is malformed ({type(error).__name__}: {str(error)[:200]})"
            raise NotReplayableError(f"A recorded value can't be rebuilt: {reason}.", reason=reason) from error

    def value(self, tree: Tree, depth: int) -> Any:
        if depth > MAX_NESTING:
            refuse(f"it is nested deeper than {MAX_NESTING} levels")
        kind = type(tree)
        if kind is list:
            return [self.value(item, depth + 1) for item in tree]
        if kind is not dict:
            return tree if kind is not _Shared else self._once(tree, depth)
        tag = tree.get("$t")
        if tag is None:
            return self._plain(tree, depth)
        return self._tagged(tag, tree, depth)

    def _once(self, mark: _Shared, depth: int) -> Any:
        if not mark.built:
            mark.value = self.value(mark.tree, depth)
            mark.built = True
        return mark.value

    def _plain(self, tree: dict[str, Tree], depth: int) -> dict[str, Any]:
        value = {}
        for key, item in tree.items():
            if key[:1] == "$":
                refuse(f"the key {key[:40]!r} means nothing here")
            value[key] = self.value(item, depth + 1)
        return value

    def _tagged(self, tag: Any, tree: dict[str, Tree], depth: int) -> Any:

        if type(tag) is not str:
            refuse("a tag is not a text")
        rebuild = REBUILD.get(tag)
        if rebuild is not None:
            return rebuild(self, tree, depth)
        codec = codecs_by_tag.get(tag)
        if codec is not None:
            return codec.decode(self.value(tree["v"], depth + 1))
        refuse(f"no codec is registered for {tag[:100]!r}", "Register the codec before the replay, or update tracekit.")

    def items(self, tree: Tree, depth: int) -> list[Any]:
        if type(tree) is not list:
            refuse("a list was expected")
        return [self.value(item, depth + 1) for item in tree]

    def pairs(self, tree: Tree, depth: int) -> list[tuple[Any, Any]]:
        if type(tree) is not list:
            refuse("pairs were expected")
        return [(self.value(key, depth + 2), self.value(item, depth + 2)) for key, item in tree]

    def mapping(self, tree: Tree, depth: int) -> dict[Any, Any]:
        value = self.value(tree, depth + 1)
        if type(value) is not dict:
            refuse("a dictionary was expected")
        return value

    def class_of(self, tree: dict[str, Tree]) -> type:
        """Return the class named by a node, checked to be of the kind that its tag requires."""
        name, tag = tree["c"], tree["$t"]
        if type(name) is not str or len(name) > 1000:
            refuse("a class name is not a text")
        cls = self.class_named(name)
        if cls is None:
            module = name.partition(":")[0]
            if module in sys.modules:
                refuse(
                    f"the class {name} is not there, though its module is loaded: it was made while the recorded program ran",
                    "Define it at the top of a module, or name it in the return annotation; then record again.",
                )
            refuse(
                f"the class {name} is not loaded",
                f"Import {module!r} before the replay (a trace never imports anything), or name the class in the return annotation.",
            )
        if not MUST_BE[tag](cls, cls.__mro__):
            refuse(f"the loaded {name} is no {tag} class", "Replay with the code that recorded the run.")
        return cls

    def class_named(self, name: str) -> type | None:
        """Return the class of this name: from a loaded module, or from the return annotation."""
        found = loaded_class(name)
        if found is not None:
            return found
        if self._classes is None:
            self._classes = classes_in(self._hint)
        return hinted(name, self._classes)


def hinted(name: str, classes: Mapping[str, type]) -> type | None:
    """Return a class of an annotation: by full name, else by its name within its module (the ``__main__`` of a script
    varies)."""
    exact = classes.get(name)
    if exact is not None:
        return exact
    qualname = name.partition(":")[2]
    alike = [cls for known, cls in classes.items() if known.partition(":")[2] == qualname]
    return alike[0] if len(alike) == 1 else None


@lru_cache(1024)
def _namedtuple_of(name: str, fields: tuple[str, ...]) -> type:
    made: type = namedtuple(name.rpartition(":")[2].rpartition(".")[2], fields, rename=True)  # type: ignore[misc]
    made.__module__, made.__qualname__ = name.partition(":")[0], name.partition(":")[2]
    return made


def _made_again(tree: dict[str, Tree]) -> type:
    """Return the class of a named tuple that was created while the recorded program ran."""
    name, fields = tree["c"], tree["f"]
    if (
        type(name) is not str
        or type(fields) is not list
        or not all(type(one) is str and one.isidentifier() for one in fields)
    ):
        refuse("a named tuple has fields of no name")
    try:
        return _namedtuple_of(name, tuple(fields))
    except ValueError:
        refuse("a named tuple has fields of no name")


# -- rebuild -----------------------------------------------------------------------------------------------------------
#
# One function per tag, from a node of a tree to its value.

Rebuild = Callable[[Decoder, dict[str, Tree], int], Any]


def _real(name: str) -> Any:
    """Return the class itself: tools that freeze time replace the module's names, and module-level references of ours,
    too."""
    return next(base for base in vars(_datetime_module)[name].__mro__ if base.__module__ in ("datetime", "_datetime"))


_REAL: Final = {name: _real(name) for name in ("datetime", "date", "time", "timedelta", "timezone")}
_ZONE: Final = expression(r"[A-Za-z0-9_+-]{1,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}")
_INT: Final = expression(r"-?0x[0-9a-f]{1,100000}")
_CONSTANTS: Final = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
_FLOATS: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_FACTORY_OF: Final = {"list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str, "tuple": tuple}
_LONGEST_PATTERN: Final = 20_000
_BASES: Final = {base.__name__: base for base in BASES}


def _text(tree: Any) -> str:
    if type(tree) is not str:
        refuse("a text was expected")
    return tree


def _data(tree: dict[str, Tree]) -> bytes:
    return a2b_base64(_text(tree["v"]), strict_mode=True) if tree["v"] else b""


def _ints(decoder: Decoder, tree: Any, count: int, depth: int) -> list[int]:
    values = decoder.items(tree, depth + 1)
    if len(values) != count or any(type(value) is not int for value in values):
        refuse(f"{count} integers were expected")
    return values


def _decode_opaque(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    refuse(f"a value of type {str(tree.get('type'))[:200]} could not be recorded: {str(tree.get('repr'))[:200]}")


def _int(decoder: Decoder, tree: dict[str, Tree], depth: int) -> int:
    text = _text(tree["v"])
    if not _INT.fullmatch(text):
        refuse("it is not an integer")
    return int(text, 16)


def _zoned(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value = _REAL["datetime"].fromisoformat(_text(tree["v"]))
    if "zone" in tree:
        value = value.replace(tzinfo=_zone(tree["zone"]))
    value = _with_zone_name(decoder, value, tree, depth)
    return value.replace(fold=1) if tree.get("fold") == 1 else value


@off_loop()
def _zone(name: Any) -> Any:
    from zoneinfo import ZoneInfo

    if not _ZONE.fullmatch(_text(name)):
        refuse("it is not a time zone")
    return ZoneInfo(name)


def _decode_time(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value = _with_zone_name(decoder, _REAL["time"].fromisoformat(_text(tree["v"])), tree, depth)
    return value.replace(fold=1) if tree.get("fold") == 1 else value


def _with_zone_name(decoder: Decoder, value: Any, tree: dict[str, Tree], depth: int) -> Any:
    if "name" not in tree:
        return value
    name = _text(decoder.value(tree["name"], depth + 1))
    return value.replace(tzinfo=_REAL["timezone"](value.utcoffset(), name))


def _decode_memoryview(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    data = _data(tree)
    value = memoryview(bytearray(data) if tree.get("writable") is True else data)
    if "format" not in tree:
        return value
    form: Any = _text(tree["format"])
    shape = decoder.items(tree["shape"], depth + 1)
    if any(type(size) is not int or size < 0 for size in shape) or prod(shape) != len(value.cast(form)):
        refuse("the shape of a memoryview does not fit its data")
    return value.cast(form, shape) if data else value.cast(form)


def _decode_timezone(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    offset = _REAL["timedelta"](*_ints(decoder, tree["v"], 3, depth))
    if tree.get("name") is not None:
        return _REAL["timezone"](offset, _text(tree["name"]))
    return _REAL["timezone"](offset)


def _decimal(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from decimal import Decimal

    return Decimal(_text(tree["v"]))


def _fraction(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from fractions import Fraction

    numerator, denominator = _ints(decoder, tree["v"], 2, depth)
    if denominator <= 0:
        refuse("it is not a fraction")
    value = object.__new__(Fraction)  # without normalising: finding the common divisor of large numbers takes long
    set_state(value, {"_numerator": numerator, "_denominator": denominator})
    return value


def _uuid(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from uuid import UUID

    return UUID(hex=_text(tree["v"]))


def _loaded(module: str, what: str) -> Any:
    found = sys.modules.get(module)
    if found is None:
        refuse(f"{what} needs {module}, which is not loaded", f"Import {module!r} before the replay.")
    return found


def _uuid_utils(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    return _loaded("uuid_utils", "an id").UUID(hex=_text(tree["v"]))


def _decode_path(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    import pathlib

    name = _text(tree.get("c"))
    if name not in ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath", "PurePath", "Path"):
        refuse("it is not a path")
    cls = getattr(pathlib, name)
    foreign = name in ("PosixPath", "WindowsPath") and cls is not type(pathlib.Path())
    return (pathlib.Path if foreign else cls)(_text(decoder.value(tree["v"], depth + 1)))


def _decode_set(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    base: Any = set if tree["$t"] == "set" else frozenset
    members = decoder.items(tree["v"], depth + 1)
    if "order" not in tree:
        return base(members)
    order, slots = tree["order"], tree.get("slots", 0)
    if type(slots) is not int or slots > _SLOTS * max(8, len(members)) or sorted(order) != [*range(len(members))]:
        refuse("it is not the order of a set")
    return _added(base, [members[number] for number in order], slots)


def _decode_namespace(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from types import SimpleNamespace

    value = SimpleNamespace()
    vars(value).update(decoder.mapping(tree["v"], depth))
    return value


def _decode_counter(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value: collections.Counter[Any] = collections.Counter()
    dict.update(value, decoder.pairs(tree["v"], depth + 1))
    return value


def _decode_defaultdict(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    factory = None if tree["f"] is None else _FACTORY_OF[tree["f"]]
    return collections.defaultdict(factory, decoder.pairs(tree["v"], depth + 1))


def _decode_deque(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    return collections.deque(decoder.items(tree["v"], depth + 1), tree["maxlen"])


def _struct_time(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from time import struct_time

    return struct_time(decoder.items(tree["v"], depth + 1))


def _complex(decoder: Decoder, tree: dict[str, Tree], depth: int) -> complex:
    real, imag = decoder.items(tree["v"], depth + 1)
    if type(real) is not float or type(imag) is not float:
        refuse("two floats were expected")
    return complex(real, imag)


def _pattern(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    source, flags = decoder.items(tree["v"], depth + 1)
    if type(source) not in (str, bytes) or type(flags) is not int or len(source) > _LONGEST_PATTERN:
        refuse("it is not a pattern")
    return re.compile(source, flags & ~re.DEBUG)


def _ip(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    import ipaddress

    name = _text(tree.get("c"))
    if name not in ("IPv4Address", "IPv4Network", "IPv4Interface", "IPv6Address", "IPv6Network", "IPv6Interface"):
        refuse("it is not an address")
    return getattr(ipaddress, name)(_text(decoder.value(tree["v"], depth + 1)))


def _typed_array(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from array import array

    return array(_text(tree["c"]), decoder.items(tree["v"], depth + 1))


def _objects(numpy: Any, decoder: Decoder, shape: list[Any], tree: dict[str, Tree], depth: int) -> Any:
    items = decoder.items(tree["v"], depth + 1)
    if any(type(size) is not int or size < 0 for size in shape) or prod(shape) != len(items):
        refuse("the shape of an array does not fit its data")
    value = numpy.empty(shape, dtype=object)
    flat = value.reshape(-1)
    for i, item in enumerate(items):
        flat[i] = item
    return _laid_out(numpy, value, tree)


def _laid_out(numpy: Any, plain: Any, tree: dict[str, Tree]) -> Any:
    """Return a new array with the contents of ``plain``, and the memory order and flags that ``tree`` says."""
    strides = tree.get("strides")
    if strides is None:
        value = plain
    else:
        size = plain.itemsize
        if (
            type(strides) is not list
            or len(strides) != plain.ndim
            or not all(type(one) is int for one in strides)
            or not plain.size
        ):
            refuse("it is not the layout of an array")
        first, span = _span(plain.shape, strides, size)
        if span > max(_SPAN, plain.nbytes * _GAPS):
            refuse("an array spans more than its data")
        if plain.dtype.hasobject:  # its memory must hold objects, and nothing else
            value = _permuted(numpy, plain, strides)
        else:
            value = numpy.ndarray(plain.shape, plain.dtype, bytearray(span), first, strides)
        value[...] = plain
        if "view" not in tree:
            value = value.copy(order="K")
    if "view" in tree and value.flags.owndata:
        value = value[...]
    if tree.get("readonly"):
        value.flags.writeable = False
    return value


def _permuted(numpy: Any, plain: Any, strides: list[int]) -> Any:
    """Return an empty array like ``plain`` whose axes are in memory as these strides say."""
    order = sorted(range(plain.ndim), key=lambda axis: -abs(strides[axis]))
    made = numpy.empty([plain.shape[axis] for axis in order], plain.dtype)
    return made.transpose([order.index(axis) for axis in range(plain.ndim)])


def _decode_array(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    numpy = _loaded("numpy", "an array")
    shape = decoder.items(tree["shape"], depth + 1)
    if tree["dtype"] == "|O" and len(shape) <= 32:
        return _objects(numpy, decoder, shape, tree, depth)
    data, dtype = _data(tree), _dtype(numpy, tree)
    if len(shape) > 32 or any(type(size) is not int or size < 0 for size in shape):
        refuse("it is not the shape of an array")
    if prod(shape) * dtype.itemsize != len(data):
        refuse("the shape of an array does not fit its data")
    if not data:
        return _laid_out(numpy, numpy.empty(shape, dtype), {key: tree[key] for key in tree if key != "strides"})
    plain = numpy.frombuffer(data, dtype).reshape(shape)
    return _laid_out(numpy, plain if "strides" in tree else plain.copy(), tree)


def _npscalar(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    numpy = _loaded("numpy", "a NumPy scalar")
    data, dtype = _data(tree), _dtype(numpy, tree)
    if dtype.itemsize != len(data) or not data:
        refuse("a NumPy scalar does not fit its data")
    return numpy.frombuffer(data, dtype)[0]


def _dtype(numpy: Any, tree: dict[str, Tree]) -> Any:
    if not DTYPE.fullmatch(_text(tree["dtype"])):
        refuse("it is not a dtype")
    return numpy.dtype(tree["dtype"])


def _decode_enum(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls: Any = decoder.class_of(tree)
    member = vars(cls)["_member_map_"].get(tree["n"])
    if member is not None:
        return member
    value = decoder.value(tree["v"], depth + 1)
    try:
        member = vars(cls)["_value2member_map_"].get(value)
    except TypeError:
        member = None
    return member if member is not None else _flag(cls, value, tree)


def _flag(cls: Any, value: Any, tree: dict[str, Tree]) -> Any:
    """Return an unnamed combination of flags, only if the class has no code of its own for that."""
    from enum import Flag

    plain = issubclass(cls, Flag) and cls._missing_.__func__ is Flag._missing_.__func__  # type: ignore[attr-defined]
    if not plain or type(value) is not int:
        refuse(f"{tree['c']} has no member {str(tree['n'])[:100]!r}", "Replay with the code that recorded the run.")
    return cls(value)


def _decode_namedtuple(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls: Any = (
        decoder.class_of(tree) if "f" not in tree or decoder.class_named(tree["c"]) is not None else _made_again(tree)
    )
    items = decoder.items(tree["v"], depth + 1)
    if len(items) != len(_field_names(cls)):
        refuse(f"{tree['c']} has other fields now", "Replay with the code that recorded the run.")
    return tuple.__new__(cls, items)


def _decode_structseq(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls: Any = decoder.class_of(tree)
    return cls(decoder.items(tree["v"], depth + 1), decoder.mapping(tree["f"], depth))


_FILL: Final[dict[Any, Callable[[Any, Any], None]]] = {
    list: list.extend,
    dict: dict.update,
    set: set.update,
    bytearray: bytearray.extend,
}


def _sub(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls: Any = decoder.class_of(tree)
    base: Any = _BASES[_text(tree["b"])]
    new: Any = base.__new__
    plain = decoder.value(tree["v"], depth + 1)
    if base not in cls.__mro__ or type(plain) is not base:
        refuse(f"{tree['c']} is no {base.__name__}", "Replay with the code that recorded the run.")
    fill = _FILL.get(base)
    if fill is not None:
        value = new(cls)
        fill(value, plain)
    elif base is complex:
        value = new(cls, plain.real, plain.imag)
    else:
        value = new(cls, plain)
    if "a" in tree:
        set_state(value, decoder.mapping(tree["a"], depth))
    return value


def _object(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    """Decode an instance that is what its attributes are."""
    value: object = object.__new__(decoder.class_of(tree))
    set_state(value, decoder.mapping(tree["v"], depth))
    return value


def _decode_pydantic(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls = decoder.class_of(tree)
    value: object = object.__new__(cls)
    put = object.__setattr__
    put(value, "__dict__", {})
    set_state(value, decoder.mapping(tree["v"], depth))
    put(value, "__pydantic_fields_set__", {_text(name) for name in tree["set"]})
    for key, slot in (("extra", "__pydantic_extra__"), ("private", "__pydantic_private__")):
        put(value, slot, decoder.mapping(tree[key], depth) if tree.get(key) is not None else None)
    return value


def _msgspec(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls = decoder.class_of(tree)
    state = decoder.mapping(tree["v"], depth)
    value = _empty_struct(cls)
    for name, item in state.items():
        if name in cls.__struct_fields__:  # type: ignore[attr-defined]
            sys.modules["msgspec"].structs.force_setattr(value, name, item)
        else:
            set_state(value, {name: item})
    return value


def _empty_struct(cls: Any) -> Any:
    """Return an instance whose ``__post_init__`` did not run: msgspec can create one only through its own constructor."""
    if hasattr(cls, "__post_init__"):
        refuse(
            f"the msgspec class {cls.__qualname__} has a __post_init__, without which msgspec makes no instance",
            "Register a codec for it (tracekit.integration.register_codec) and record again, or replay that record.",
        )
    return cls(**dict.fromkeys(cls.__struct_fields__))


def _decode_view(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    mapping = decoder.value(tree["v"], depth + 1)
    base: Any = collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict
    if tree.get("c") not in ("keys", "values", "items") or not isinstance(mapping, dict):
        refuse("it is not a view of a dictionary")
    return getattr(base, tree["c"])(mapping)


def _decode_proxy(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    mapping = decoder.value(tree["v"], depth + 1)
    if not isinstance(mapping, dict):
        refuse("a dictionary was expected")
    return MappingProxyType(mapping)


@lru_cache(64)
@off_loop()
def _columns(sqlite3: Any, names: tuple[str, ...]) -> Any:
    """Return a cursor that describes these columns."""
    quoted = ", ".join('NULL AS "{}"'.format(name.replace('"', '""')) for name in names)
    connection = sqlite3.connect(":memory:")
    try:
        return connection.execute(f"SELECT {quoted}")
    finally:
        connection.close()


def _decode_row(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    sqlite3 = _loaded("sqlite3", "a row")
    names, values = decoder.items(tree["c"], depth + 1), decoder.items(tree["v"], depth + 1)
    if len(names) != len(values) or not names:
        refuse("a row has other columns than values")
    return sqlite3.Row(_columns(sqlite3, tuple(map(_text, names))), tuple(values))


def _decode_url(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    if tree.get("of") not in ("Url", "MultiHostUrl"):
        refuse("it is not a URL")
    inner = getattr(_loaded("pydantic_core", "a URL"), tree["of"])(_text(tree["v"]))
    if tree["c"] == name_of(type(inner)):
        return inner
    value: object = object.__new__(decoder.class_of(tree))
    set_state(value, {"_url": inner})
    return value


def _decode_secret(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value: object = object.__new__(decoder.class_of(tree))
    set_state(value, {"_secret_value": _text(tree["v"])})
    return value


def _decode_exception(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    return rebuilt(decoder, tree["v"], depth + 1)


def _decode_surrogates(decoder: Decoder, tree: dict[str, Tree], depth: int) -> str:
    return _data(tree).decode("utf-8", "surrogatepass")


REBUILD: Final[dict[str, Rebuild]] = {
    "opaque": _decode_opaque,
    "str": _decode_surrogates,
    "int": _int,
    "float": lambda decoder, tree, depth: _FLOATS[tree["v"]],
    "complex": _complex,
    "const": lambda decoder, tree, depth: _CONSTANTS[tree["v"]],
    "bytes": lambda decoder, tree, depth: _data(tree),
    "bytearray": lambda decoder, tree, depth: bytearray(_data(tree)),
    "memoryview": _decode_memoryview,
    "tuple": lambda decoder, tree, depth: tuple(decoder.items(tree["v"], depth + 1)),
    "set": _decode_set,
    "frozenset": _decode_set,
    "dict": lambda decoder, tree, depth: dict(decoder.pairs(tree["v"], depth + 1)),
    "OrderedDict": lambda decoder, tree, depth: collections.OrderedDict(decoder.pairs(tree["v"], depth + 1)),
    "Counter": _decode_counter,
    "defaultdict": _decode_defaultdict,
    "deque": _decode_deque,
    "range": lambda decoder, tree, depth: range(*_ints(decoder, tree["v"], 3, depth)),
    "slice": lambda decoder, tree, depth: slice(*decoder.items(tree["v"], depth + 1)),
    "datetime": _zoned,
    "date": lambda decoder, tree, depth: _REAL["date"].fromisoformat(_text(tree["v"])),
    "time": _decode_time,
    "timedelta": lambda decoder, tree, depth: _REAL["timedelta"](*_ints(decoder, tree["v"], 3, depth)),
    "timezone": _decode_timezone,
    "zoneinfo": lambda decoder, tree, depth: _zone(tree["v"]),
    "struct_time": _struct_time,
    "decimal": _decimal,
    "fraction": _fraction,
    "uuid": _uuid,
    "uuid_utils": _uuid_utils,
    "path": _decode_path,
    "namespace": _decode_namespace,
    "pattern": _pattern,
    "ip": _ip,
    "array": _typed_array,
    "ChainMap": lambda decoder, tree, depth: collections.ChainMap(*decoder.items(tree["v"], depth + 1)),
    "ndarray": _decode_array,
    "npscalar": _npscalar,
    "npstr": lambda decoder, tree, depth: _loaded("numpy", "a text").str_(_text(decoder.value(tree["v"], depth + 1))),
    "npbytes": lambda decoder, tree, depth: _loaded("numpy", "a value").bytes_(_data(tree)),
    "enum": _decode_enum,
    "structseq": _decode_structseq,
    "namedtuple": _decode_namedtuple,
    "sub": _sub,
    "dataclass": _object,
    "attrs": _object,
    "pydantic": _decode_pydantic,
    "msgspec": _msgspec,
    "exception": _decode_exception,
    "object": _object,
    "view": _decode_view,
    "mappingproxy": _decode_proxy,
    "sqlite_row": _decode_row,
    "url": _decode_url,
    "secret": _decode_secret,
}


# -- exceptions --------------------------------------------------------------------------------------------------------
#
# Exceptions as trees, and back: type, ``args``, text, attributes, traceback, cause, notes, members of a group. Special
# cases are in ``exceptions.py``.

#: How far causes, contexts and groups are followed.
MAX_CHAIN: Final = 16
MAX_MEMBERS: Final = 256
MAX_FRAMES: Final = 64
MAX_TEXT: Final = 1 << 20
#: The maximum of items in one argument or attribute.
MAX_PART: Final = 100_000
_SKIPPED: Final = {"obj", "__notes__", "__traceback__", "args", "with_traceback"}


def exception_to_json(exc: BaseException, notes: list[str] | None = None) -> dict[str, Tree]:
    """Return the tree of an exception. Never raises.

    Keys: ``type``, ``text``, ``args``, and if present ``attrs``, ``traceback`` (``file``, ``line``, ``function``,
    ``code``), ``notes``, ``cause``, ``context``, ``suppress``, ``members``; ``made_of`` for a class with a recipe;
    ``lost``: names of attributes that can't be recorded.
    """
    return _exception_tree(Walk(notes), exc)


def exception_with_structure(exc: BaseException, notes: list[str] | None = None) -> tuple[dict[str, Tree], Structure]:
    """Like ``exception_to_json``; also return the structure of what the exception carries."""
    walk = Walk(notes)
    made: Made = {}
    walk.made = made
    tree = _exception_tree(walk, exc)
    return tree, structure_of(tree, made)


def _exception_tree(walk: Walk, exc: BaseException) -> dict[str, Tree]:
    try:
        walk.above.add(id(exc))
        return describe(walk, exc, 0)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return {
            "type": name_of(type(exc)),
            "text": to_json(_text_of_exception(exc)),
            "args": [],
            "cut": type(error).__name__,
        }


def describe(walk: Walk, exc: BaseException, depth: int, chain: int = 0) -> dict[str, Tree]:
    tree: dict[str, Tree] = {"type": name_of(type(exc)), "text": to_json(_text_of_exception(exc))}
    members = exc.exceptions if isinstance(exc, BaseExceptionGroup) else None
    tree["args"] = _args(walk, exc, depth) if members is None else [walk.value(exc.message, depth + 2)]  # type: ignore[attr-defined]
    recipe = RECIPES.get(tree["type"])
    made_of = _NOT if recipe is None else _ingredients(walk, recipe, exc, depth + 1)
    if made_of is not _NOT:
        tree["made_of"] = made_of
    else:
        _state(walk, exc, depth, tree)
    frames = _frames(exc)
    if frames:
        tree["traceback"] = frames
    notes = getattr(exc, "__notes__", None)
    if type(notes) is list and all(type(note) is str for note in notes):
        tree["notes"] = [to_json(note) for note in notes[:MAX_MEMBERS]]
    _chain(walk, exc, depth, chain, tree)
    if members is not None:
        tree["members"] = [_linked(walk, member, depth + 2, chain + 1) for member in members[:MAX_MEMBERS]]
    return tree


def _state(walk: Walk, exc: BaseException, depth: int, tree: dict[str, Tree]) -> None:
    """Encode ``attrs``, and list in ``lost`` the attributes that matter but can't be recorded."""
    kept: dict[str, Tree] = {}
    lost: list[str] = []
    for name, item in _instance_attributes(exc):
        encoded = _whole(walk, item, depth + 2)
        if encoded is not _NOT:
            kept[name] = encoded
        elif not isinstance(item, type):
            lost.append(name)
    if kept:
        tree["attrs"] = kept
    if lost:
        tree["lost"] = lost


def _ingredients(walk: Walk, recipe: Any, exc: BaseException, depth: int) -> Tree:
    try:
        return _whole(walk, recipe.keep(exc), depth)
    except Exception:  # another release of the library: keep what any exception keeps
        return _NOT


def _chain(walk: Walk, exc: BaseException, depth: int, chain: int, tree: dict[str, Tree]) -> None:
    cause, context = exc.__cause__, exc.__context__
    if cause is not None:
        tree["cause"] = _linked(walk, cause, depth + 1, chain + 1)
    if context is not None and context is not cause:
        tree["context"] = _linked(walk, context, depth + 1, chain + 1)
    if exc.__suppress_context__:
        tree["suppress"] = True


def _linked(walk: Walk, exc: BaseException, depth: int, chain: int) -> Tree:
    me = id(exc)
    walk.left -= 1000  # a chain may fork at each link
    if chain > MAX_CHAIN or me in walk.above or walk.left < MAX_ITEMS // 2:
        return {"type": name_of(type(exc)), "text": to_json(_text_of_exception(exc)), "args": [], "cut": True}
    walk.above.add(me)
    try:
        return describe(walk, exc, depth, chain)
    finally:
        walk.above.discard(me)


def _text_of_exception(exc: BaseException) -> str:
    try:
        return str.__str__(str(exc))[:MAX_TEXT]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<its text raised {type(error).__name__}>"


def _args(walk: Walk, exc: BaseException, depth: int) -> list[Tree]:
    args: Any = BaseException.args.__get__(exc)  # type: ignore[attr-defined]
    return [_bounded(walk, item, depth + 2) for item in args]


def _bounded(walk: Walk, item: object, depth: int) -> Tree:
    trial = Walk(walk.notes)
    trial.above, trial.left, trial.made = walk.above, MAX_PART, walk.made
    try:
        return trial.value(item, depth)
    except TooLarge:
        return walk.opaque(item, "it is too large")


_NOT: Final = object()


def _whole(walk: Walk, item: object, depth: int) -> Tree:
    """Return the tree of an attribute, or ``_NOT`` if any part of it can't be recorded: dropping clients and sockets is
    fine."""
    notes: list[str] = []
    trial = Walk(notes)
    trial.above, trial.left, trial.made = walk.above, MAX_PART, walk.made
    try:
        tree = trial.value(item, depth)
    except Exception:
        return _NOT
    return _NOT if notes else tree


def _native(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the C-level attributes of built-in exceptions (``errno``, ``filename``, ``reason`` …)."""
    for base in cls.__mro__:
        if not is_heap(base) and base not in (BaseException, object):
            for name, item in vars(base).items():
                if type(item) in (MemberDescriptorType, GetSetDescriptorType) and not name.startswith("__"):
                    yield name, item


def _instance_attributes(exc: BaseException) -> Iterator[tuple[str, Any]]:
    for name, slot in _native(type(exc)):
        try:
            item = slot.__get__(exc)
        except Exception:
            continue
        if item is not None and name not in _SKIPPED and name not in ("exceptions", "message"):
            yield name, item
    for name, item in state_of(exc).items():
        if (
            type(name) is str
            and name not in _SKIPPED
            and not name.startswith("__")
            and name[:1] != "$"
            and to_json(name) == name
        ):
            yield name, item


def _frames(exc: BaseException) -> list[Tree]:
    """Return the frames from outermost to innermost; of a long traceback, both ends."""
    frames: list[tuple[Any, int | None, dict[str, Any]]] = []
    traceback = exc.__traceback__
    while traceback is not None and len(frames) < 10_000:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_frame.f_globals))
        traceback = traceback.tb_next
    if len(frames) > MAX_FRAMES:
        frames = frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    return [_frame(code, line, names) for code, line, names in frames]


def _frame(code: Any, line: int | None, names: dict[str, Any]) -> dict[str, Tree]:
    from linecache import getline

    tree = {"file": to_json(code.co_filename), "line": line, "function": to_json(code.co_qualname)}
    try:
        source = getline(code.co_filename, line or 0, names).strip()
    except Exception:
        source = ""
    if source:
        tree["code"] = to_json(source[:300])
    return tree


def exception_from_json(tree: dict[str, Tree]) -> BaseException:
    """Return the exception that ``tree`` represents, to be raised.

    It has its own type if that is loaded and is an ``Exception``, ``CancelledError``, ``KeyboardInterrupt``,
    ``SystemExit`` or a class of the program: created without ``__init__``, with the recorded arguments and attributes,
    and only if its text then equals the recorded one. Otherwise it is a ``RecordedError`` with that text. Raises
    ``NotReplayableError`` if the tree is malformed.
    """
    built = Decoder().whole({"$t": "exception", "v": tree})
    assert isinstance(built, BaseException)
    return built


def shortfalls(tree: Tree, exc: BaseException) -> list[tuple[str, str]]:
    """Return what of a recorded exception could not be restored, each with a code: its type (``exception``), or
    ``attributes``."""
    if type(exc) is RecordedError and tree.get("type") != name_of(RecordedError):
        text = f"raised {tree.get('type')}, which comes back as RecordedError: no `except` for its own type catches it"
        held = not_serialisable([tree.get("args"), tree.get("made_of")])
        return [("exception", text if held is None else f"{text} (it holds what can't be recorded: {held})")]
    found: list[tuple[str, str]] = []
    if tree.get("lost"):
        names = ", ".join(str(name) for name in tree["lost"])
        found.append(("attributes", f"raised {tree['type']}, whose attributes are not in the trace: {names}"))
    if isinstance(exc, BaseExceptionGroup):
        for member, inner in zip(tree.get("members", ()), exc.exceptions, strict=False):
            found += shortfalls(member, inner)
    return found


def rebuilt(decoder: Decoder, tree: Any, depth: int) -> BaseException:
    text, name = decoder.value(tree["text"], depth + 1), tree["type"]
    if type(text) is not str or type(name) is not str:
        raise TypeError("an exception has a type and a text")
    members = [rebuilt(decoder, member, depth + 2) for member in tree.get("members", ())]
    exc = _original(decoder, tree, text, members, depth) or _stand_in(decoder, tree, text, depth)
    for note in tree.get("notes", ()):
        exc.add_note(decoder.value(note, depth + 2))
    if tree.get("context") is not None:
        exc.__context__ = rebuilt(decoder, tree["context"], depth + 1)
    if tree.get("cause") is not None:
        exc.__cause__ = rebuilt(decoder, tree["cause"], depth + 1)
        exc.__context__ = exc.__context__ or exc.__cause__
    exc.__suppress_context__ = tree.get("suppress") is True
    return exc


def _stand_in(decoder: Decoder, tree: dict[str, Tree], text: str, depth: int) -> RecordedError:
    try:
        args = tuple(decoder.items(tree.get("args", []), depth + 1))
    except NotReplayableError:
        args = ()
    return RecordedError(text, type_name=tree["type"], recorded_args=args)


def _original(
    decoder: Decoder, tree: dict[str, Tree], text: str, members: list[BaseException], depth: int
) -> BaseException | None:
    """Return the exception as one of its own type, or ``None`` if it can't be restored faithfully."""
    cls = loaded_class(tree["type"]) or _local_class(tree["type"])
    if cls is None or not _may_be_made(cls) or tree.get("cut"):
        return None
    if "made_of" in tree:
        return _by_recipe(decoder, cls, tree, text, depth)
    try:
        args = tuple(decoder.items(tree.get("args", []), depth + 1))
        exc = _made(cls, args, members)
        state = {name: decoder.value(item, depth + 2) for name, item in tree.get("attrs", {}).items()}
        native = dict(_native(cls))
        for name, item in state.items():
            if name in native:
                _set_native(native[name], exc, item)
            else:
                set_state(exc, {name: item})
        return exc if _text_of_exception(exc) == text or _says_its_args(cls) else None
    except (NotReplayableError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _by_recipe(decoder: Decoder, cls: type, tree: dict[str, Tree], text: str, depth: int) -> BaseException | None:
    recipe = RECIPES.get(tree["type"])
    try:
        exc = recipe and recipe.make(cls, decoder.value(tree["made_of"], depth + 1), text)
        return exc if exc is not None and _text_of_exception(exc) == text else None
    except (NotReplayableError, Exception):  # a library may reject its own values; that is not a failure
        return None


def _local_class(name: str) -> type | None:
    """Return the exception class of a name that no module has: created inside a function, and found among the existing
    classes.

    The function may have created it again at each call; the last one is the one that the program can refer to now.
    """
    if "<locals>" not in name:
        return None
    found: list[type] = []
    seen: set[type] = set()
    level: list[type] = [BaseException]
    while level:
        below: list[type] = []
        for base in level:
            below += type.__subclasses__(base)
        level = [cls for cls in below if cls not in seen]
        seen.update(level)
        found += [cls for cls in level if is_heap(cls) and name_of(cls) == name]
    return found[-1] if found else None


def _says_its_args(cls: type) -> bool:
    """Return whether the text consists only of the arguments: that of a set may change its order."""
    untyped: Any = cls
    return untyped.__str__ in (BaseException.__str__, KeyError.__str__) and untyped.__repr__ is BaseException.__repr__


def _may_be_made(cls: type) -> bool:
    from asyncio import CancelledError

    if issubclass(cls, TracekitError):  # errors that tracekit raises in this program never come from a trace
        return not issubclass(cls, ReplayError) and cls is not TracekitError
    own = is_heap(cls) and issubclass(cls, BaseException) and not issubclass(cls, GeneratorExit)
    return (
        own or issubclass(cls, Exception) or cls in (CancelledError, KeyboardInterrupt, SystemExit, BaseExceptionGroup)
    )


def _made(cls: Any, args: tuple[Any, ...], members: list[BaseException]) -> BaseException:
    """Return an instance made by the built-in base's own ``__new__`` and ``__init__``, which are C code without
    effects."""
    base: Any = next(base for base in cls.__mro__ if not is_heap(base) and issubclass(base, BaseException))
    if issubclass(cls, BaseExceptionGroup):
        group: BaseException = BaseExceptionGroup.__new__(cls, args[0], members)
        group.args = (args[0], members)
        return group
    exc: BaseException = base.__new__(cls, *args)
    try:
        base.__init__(exc, *args)
    except TypeError:  # the subclass takes other arguments than its base
        pass
    exc.args = args
    return exc


def _set_native(slot: Any, exc: BaseException, item: Any) -> None:
    try:
        slot.__set__(exc, item)
    except (AttributeError, TypeError):  # read-only: set by the arguments
        pass
