"""Encodes Python values as tagged JSON trees: one recursive encoder; ``decoding`` has the decoder.

JSON values represent themselves; everything else is ``{"$t": tag, "v": …}``. A value that can't be serialised becomes
an ``opaque`` value with its ``repr``.
"""

from __future__ import annotations

import datetime as _datetime_module
import os
import sys
from binascii import b2a_base64
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final

import orjson

from .._lazy import expression
from .._native import noted, plain, repeated, sha256_hex
from .._native.common import IN_ORDER, LEVELS, MAX_DEPTH, encodable
from .._sources import TRACEKIT
from .exceptions import RECIPES
from .registry import codecs_by_type, is_heap, loaded_class, name_of, state_of

__all__ = [
    "BASES",
    "DTYPE",
    "MAX_DEPTH",
    "MUST_BE",
    "Made",
    "Structure",
    "Unnamed",
    "Walk",
    "add_structure",
    "attributes_of",
    "canonical",
    "classes_in",
    "dumps",
    "dumps_in_order",
    "exception_text",
    "exception_to_json",
    "exception_with_structure",
    "fingerprint",
    "hinted",
    "not_serialisable",
    "noted",
    "quick",
    "repeated",
    "snapshot",
    "structure_of",
    "to_json",
    "with_structure",
    "without_order",
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


#: The tags of dictionaries with pairs in their order, two of which are equal in whatever order.
_PAIRED: Final = frozenset(("dict", "Counter", "defaultdict"))


def without_order(tree: Tree) -> Tree:
    """Return a tree in which equal dictionaries are equal, whatever order they have their items in."""
    if type(tree) is list:
        return [*map(without_order, tree)]
    if type(tree) is not dict:
        return tree
    found = {key: without_order(item) for key, item in tree.items()}
    if found.get("$t") in _PAIRED:
        found["v"] = sorted(found["v"], key=dumps)
    return found


def fingerprint(name: str, tree: Tree) -> str:
    """Return ``sha256:`` and the hex digest of the canonical form of ``{"input": tree, "name": name}``."""
    return "sha256:" + sha256_hex(b'{"input":' + dumps(tree) + b',"name":' + dumps(to_json(name)) + b"}")


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
        if plain(value, LEVELS, _PLAIN_WIDTH, True):  # type: ignore[arg-type]
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
        *("uuid", "uuid_utils", "path", "pattern", "ip", "npscalar", "npstr", "npbytes", "enum", "namedtuple"),
        *("structseq", "sqlite_row", "url", "secret"),
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
        handler = _new_handler(kind)
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
SLOTS: Final = 16


def _iteration(base: Any, value: Any, members: list[Any], numbers: list[int]) -> dict[str, Tree]:
    """Return what makes a new set iterate as this one does, if its members in the order of ``numbers`` do not: an order in
    which to add them, and the number of slots. Nothing if that is not known, or hashes are others in a replay."""
    if not all(map(_hashes_alike, members)):
        return {}
    if [*map(id, base(members[number] for number in numbers))] == [*map(id, members)]:
        return {}
    slots = (base.__sizeof__(value) - base.__basicsize__) // 16 or 8
    if slots > SLOTS * max(8, len(members)):
        return {}
    at = {number: place for place, number in enumerate(numbers)}
    every = [*range(len(members))]
    for keys, order in (({}, every), ({"slots": slots}, every), ({"slots": slots}, _order(members, slots))):
        if [*map(id, added(base, [members[number] for number in order], **keys))] == [*map(id, members)]:
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


def added(base: Any, members: list[Any], slots: int = 0) -> Any:
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


#: The functions that may make the values of a ``defaultdict``, by name.
FACTORIES: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        *(list, dict, set, int, float, str, tuple, bool, bytes, frozenset),
        *(Counter, OrderedDict, deque),
    )
}


def _defaultdict(walk: Walk, value: Any, depth: int) -> Tree:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", None)
    if factory is not None and (type(name) is not str or FACTORIES.get(name) is not factory):
        return walk.opaque(value, "its default_factory is neither a built-in type nor one of collections")
    pairs = [walk.items(pair, depth + 2) for pair in dict.items(value)]
    return {"$t": "defaultdict", "f": name, "v": pairs}


def _deque(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "deque", "maxlen": value.maxlen, "v": walk.items(value, depth + 1)}


def _moment(tag: str) -> Handler:
    """Return the handler of times, with a date or without."""

    def handler(walk: Walk, value: Any, depth: int) -> Tree:
        tree = {"$t": tag, "v": value.isoformat()}
        if value.fold:
            tree["fold"] = 1
        zone = value.tzinfo
        if zone is not None and type(zone).__module__ == "zoneinfo" and isinstance(zone.key, str):
            tree["v"] = value.replace(tzinfo=None).isoformat()
            tree["zone"] = zone.key
            return tree
        if tag == "time" and zone is not None and value.utcoffset() is None:
            return walk.opaque(value, "its time zone has no fixed offset")
        tree.update(_zone_name(value))
        return tree

    return handler


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


def _memory_file(walk: Walk, value: Any, depth: int) -> Tree:
    """Encode a file in memory (``io.BytesIO``, ``io.StringIO``): what is in it, where it is read next, attributes such as
    a name."""
    if value.closed:
        return walk.opaque(value, "it is closed")
    *state, at, attributes = value.__getstate__()
    tree: dict[str, Any] = {"$t": type(value).__name__, "v": walk.items(state, depth + 1), "at": at}
    if attributes:
        tree["s"] = walk.mapping(attributes.items(), depth + 1)
    return tree


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
    "datetime:datetime": _moment("datetime"),
    "freezegun.api:FakeDatetime": _moment("datetime"),  # replaces datetime while time is frozen
    "datetime:date": _simple("date", lambda value: value.isoformat()),
    "freezegun.api:FakeDate": _simple("date", lambda value: value.isoformat()),
    "datetime:time": _moment("time"),
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
    "_io:BytesIO": _when_made_again(_memory_file),
    "_io:StringIO": _when_made_again(_memory_file),
    "pydantic_core._pydantic_core:Url": _when_made_again(_url),
    "pydantic_core._pydantic_core:MultiHostUrl": _when_made_again(_url),
    "pydantic.types:SecretStr": _when_made_again(_secret),
    **_addresses,
    **_plain_path,
}


def _new_handler(kind: type) -> Handler:
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
    if len(field_names(type(value))) != tuple.__len__(value):
        return walk.opaque(value, "it has other items than its fields")
    return {"$t": "namedtuple", "c": name_of(type(value)), "v": walk.items(tuple.__iter__(value), depth + 1)}


#: The attributes of every class made by ``collections.namedtuple`` or ``typing.NamedTuple``, besides its fields.
_OF_NAMEDTUPLES: Final = frozenset(vars(namedtuple("_OF_NAMEDTUPLES", ()))) | {
    "__annotations__", "__annotate_func__", "__annotations_cache__", "__classdictcell__", "__orig_bases__", "__static_attributes__",
    "__firstlineno__",
}  # fmt: skip


def field_names(kind: type) -> tuple[str, ...]:
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
    dtype = _dtype(value.dtype)
    tree: dict[str, Any] = {"$t": "ndarray", "dtype": dtype, "shape": list(value.shape)}
    if value.dtype.str == "|O":
        tree["v"] = walk.items(value.ravel(), depth + 1)
    elif dtype is None:
        return walk.opaque(
            value, "only arrays of plain numbers, dates, texts, bytes and objects, or with fields of those, can be"
        )
    else:
        tree["v"] = base64(value.tobytes())
    if walk.made is not None:  # a replay makes it again
        tree.update(_layout(value))
    return tree


def _dtype(dtype: Any) -> Any:
    """Return what an array is of as it is logged: a text, or the name and the text of each field; ``None`` if that does not
    describe it fully."""
    if dtype.names is None:
        return dtype.str if dtype.str == "|O" or (DTYPE.fullmatch(dtype.str) and not dtype.subdtype) else None
    fields = [(name, dtype[name].str) for name in dtype.names]
    if any(dtype[name].names or not DTYPE.fullmatch(text) for name, text in fields):
        return None
    # Not so if there are gaps between fields, which would be logged, and compared, with whatever is in them.
    return [[*field] for field in fields] if sys.modules["numpy"].dtype(fields) == dtype else None


#: An array with gaps is made again with them if it spans at most this many bytes, or this many times its own.
SPAN: Final = 1 << 16
GAPS: Final = 16


def _layout(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what distinguishes an array from a new one with the same contents: memory order, and flags."""
    if not value.flags.c_contiguous:  # an empty array is
        strides, span = value.strides, span_of(value.shape, value.strides, value.itemsize)[1]
        if value.dtype.hasobject or span > max(SPAN, value.nbytes * GAPS):
            strides = value.copy(order="K").strides
        yield "strides", list(strides)
    if not value.flags.owndata:
        yield "view", True
    if not value.flags.writeable:
        yield "readonly", True


def span_of(shape: Any, strides: Any, size: int) -> tuple[int, int]:
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


#: The attributes of a class that has annotations: the last two from Python 3.14 on, which evaluates them when they are read.
_ANNOTATED: Final = frozenset(("__annotations__", "__annotate__", "__annotate_func__"))


def _annotated_fields(cls: type) -> Iterator[Any]:
    for field in (getattr(cls, "__pydantic_fields__", None) or {}).values():
        yield getattr(field, "annotation", None)
    if not _ANNOTATED.isdisjoint(vars(cls)) or hasattr(cls, "__dataclass_fields__"):
        yield from _annotations(cls)


def _annotations(cls: type) -> list[Any]:
    from typing import get_type_hints

    try:
        return list(get_type_hints(cls).values())
    except Exception:  # a name that exists only for the type checker; annotations that are not strings are still usable
        if sys.version_info >= (3, 14):
            from annotationlib import Format, get_annotations

            return list(get_annotations(cls, format=Format.FORWARDREF).values())
        return list(vars(cls).get("__annotations__", {}).values())


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


def hinted(name: str, classes: Mapping[str, type]) -> type | None:
    """Return a class of an annotation: by full name, else by its name within its module (the ``__main__`` of a script
    varies)."""
    exact = classes.get(name)
    if exact is not None:
        return exact
    qualname = name.partition(":")[2]
    alike = [cls for known, cls in classes.items() if known.partition(":")[2] == qualname]
    return alike[0] if len(alike) == 1 else None


# -- exceptions --------------------------------------------------------------------------------------------------------
#
# Exceptions as trees: type, ``args``, text, attributes, traceback, cause, notes, members of a group. Special
# cases are in ``exceptions.py``.

#: How far causes, contexts and groups are followed.
MAX_CHAIN: Final = 16
MAX_MEMBERS: Final = 256
MAX_FRAMES: Final = 64
MAX_TEXT: Final = 1 << 20
#: The maximum of items in one argument or attribute.
MAX_PART: Final = 100_000
_SKIPPED: Final = {"__notes__", "__traceback__", "args", "with_traceback"}
#: C-level attributes that have a place of their own in the tree, or (``obj``) are whatever object lacked a name.
_SKIPPED_SLOTS: Final = {"args", "exceptions", "message", "obj"}


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
            "text": to_json(text_of_exception(exc)),
            "args": [],
            "cut": type(error).__name__,
        }


def describe(walk: Walk, exc: BaseException, depth: int, chain: int = 0) -> dict[str, Tree]:
    tree: dict[str, Tree] = {"type": name_of(type(exc)), "text": to_json(text_of_exception(exc))}
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
        else:
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
        return {"type": name_of(type(exc)), "text": to_json(text_of_exception(exc)), "args": [], "cut": True}
    walk.above.add(me)
    try:
        return describe(walk, exc, depth, chain)
    finally:
        walk.above.discard(me)


def exception_text(exc: BaseException) -> str:
    """Return an exception as ``"ValueError: no such order"``. Never raises, whatever code of its own it has."""
    return f"{type(exc).__qualname__}: {text_of_exception(exc)}"


def text_of_exception(exc: BaseException) -> str:
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


def native_slots(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the C-level attributes of built-in exceptions (``errno``, ``filename``, ``reason`` …)."""
    for base in cls.__mro__:
        if not is_heap(base) and base not in (BaseException, object):
            for name, item in vars(base).items():
                if type(item) in (MemberDescriptorType, GetSetDescriptorType) and not name.startswith("__"):
                    yield name, item


def _instance_attributes(exc: BaseException) -> Iterator[tuple[str, Any]]:
    for name, slot in native_slots(type(exc)):
        try:
            item = slot.__get__(exc)
        except Exception:
            continue
        if item is not None and name not in _SKIPPED_SLOTS:
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
    """Return the frames from outermost to innermost, without those of tracekit between them; of a long traceback, both
    ends."""
    frames: list[tuple[Any, int | None, dict[str, Any]]] = []
    traceback = exc.__traceback__
    while traceback is not None and len(frames) < 10_000:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_frame.f_globals))
        traceback = traceback.tb_next
    # Two for each tool that the exception has passed, in the error of each tool around it.
    frames = [frame for frame in frames if not frame[0].co_filename.startswith(TRACEKIT)] or frames
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
