"""Decodes tagged JSON trees.

A tree is untrusted: nothing is imported, evaluated or initialised because of it. Classes come from the return
annotation, from a registered codec, or from a module that is already loaded; instances get their fields without
``__init__``, ``__post_init__`` or validators.
"""

from __future__ import annotations

import collections
import datetime as _datetime_module
import re
import sys
from binascii import a2b_base64
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any, Final, NoReturn

from .._lazy import expression
from .._native import copied
from .._reality import off_loop
from ..errors import NotReplayableError, RecordedError, ReplayError, TracekitError
from .codec import (
    BASES,
    DTYPE,
    FACTORIES,
    GAPS,
    MUST_BE,
    SLOTS,
    SPAN,
    Tree,
    added,
    classes_in,
    field_names,
    hinted,
    native_slots,
    not_serialisable,
    span_of,
    text_of_exception,
)
from .exceptions import RECIPES
from .registry import codecs_by_tag, is_heap, loaded_class, name_of, set_state

__all__ = [
    "REBUILD",
    "Decoder",
    "exception_from_json",
    "from_json",
    "refuse",
    "shortfalls",
    "structured",
]
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
        return copied(tree, depth, MAX_NESTING, self._special)

    def _special(self, tree: Tree, depth: int) -> Any:
        """Return the value of a tree that is no plain JSON, or nested too deep."""
        if depth > MAX_NESTING:
            refuse(f"it is nested deeper than {MAX_NESTING} levels")
        if type(tree) is not dict:
            return tree if type(tree) is not _Shared else self._once(tree, depth)
        tag = tree.get("$t")
        if tag is None:
            key = next(key for key in tree if key[:1] == "$")
            refuse(f"the key {key[:40]!r} means nothing here")
        return self._tagged(tag, tree, depth)

    def _once(self, mark: _Shared, depth: int) -> Any:
        if not mark.built:
            mark.value = self.value(mark.tree, depth)
            mark.built = True
        return mark.value

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


def _decode_moment(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value = _REAL["time" if tree["$t"] == "time" else "datetime"].fromisoformat(_text(tree["v"]))
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


def _decode_memory_file(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    import io

    value: Any = io.BytesIO() if tree["$t"] == "BytesIO" else io.StringIO()
    attributes = decoder.mapping(tree["s"], depth) if "s" in tree else None
    value.__setstate__((*decoder.items(tree["v"], depth + 1), tree["at"], attributes))
    return value


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
    if type(slots) is not int or slots > SLOTS * max(8, len(members)) or sorted(order) != [*range(len(members))]:
        refuse("it is not the order of a set")
    return added(base, [members[number] for number in order], slots)


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
    factory = None if tree["f"] is None else FACTORIES[tree["f"]]
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
        first, span = span_of(plain.shape, strides, size)
        if span > max(SPAN, plain.nbytes * GAPS):
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
    data, dtype = _data(tree), _dtype(numpy, decoder.value(tree["dtype"], depth + 1))
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
    data, dtype = _data(tree), _dtype(numpy, _text(tree["dtype"]))
    if dtype.itemsize != len(data) or not data:
        refuse("a NumPy scalar does not fit its data")
    return numpy.frombuffer(data, dtype)[0]


def _dtype(numpy: Any, logged: Any) -> Any:
    """Return the dtype: of a text, or of the name and the text of each field."""
    if type(logged) is list and logged and all(type(field) is list and len(field) == 2 for field in logged):
        names = [_text(name) for name, _ in logged]
        if len({*names}) == len(names) and all(names):
            return numpy.dtype([(name, _dtype(numpy, _text(text))) for name, text in logged])
        refuse("the fields of an array have no names of their own")
    if not DTYPE.fullmatch(_text(logged)):
        refuse("it is not a dtype")
    return numpy.dtype(logged)


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
    if len(items) != len(field_names(cls)):
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
    "datetime": _decode_moment,
    "date": lambda decoder, tree, depth: _REAL["date"].fromisoformat(_text(tree["v"])),
    "time": _decode_moment,
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
    "BytesIO": _decode_memory_file,
    "StringIO": _decode_memory_file,
    "url": _decode_url,
    "secret": _decode_secret,
}


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
        native = dict(native_slots(cls))
        for name, item in state.items():
            if name in native:
                _set_native(native[name], exc, item)
            else:
                set_state(exc, {name: item})
        return exc if text_of_exception(exc) == text or _says_its_args(cls) else None
    except (NotReplayableError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _by_recipe(decoder: Decoder, cls: type, tree: dict[str, Tree], text: str, depth: int) -> BaseException | None:
    recipe = RECIPES.get(tree["type"])
    try:
        exc = recipe and recipe.make(cls, decoder.value(tree["made_of"], depth + 1), text)
        return exc if exc is not None and text_of_exception(exc) == text else None
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
