"""One function per tag, each from a node of a tree to its value."""

from __future__ import annotations

import collections
import datetime as _datetime_module
import re
import sys
from binascii import a2b_base64
from collections.abc import Callable
from math import prod
from typing import Any, Final

from .decode import Decoder, Tree, refuse
from .kinds import BASES, DTYPE
from .registry import set_state

__all__ = ["REBUILD"]

Rebuild = Callable[[Decoder, dict[str, Tree], int], Any]


def _real(name: str) -> Any:
    """The class itself: tools that freeze time put another in the module's names, and change ours too if it stands alone."""
    return next(base for base in vars(_datetime_module)[name].__mro__ if base.__module__ in ("datetime", "_datetime"))


_REAL: Final = {name: _real(name) for name in ("datetime", "date", "time", "timedelta", "timezone")}
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]{1,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}")
_INT: Final = re.compile(r"-?0x[0-9a-f]{1,100000}")
_CONSTANTS: Final = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}
_FLOATS: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_FACTORIES: Final = {"list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str, "tuple": tuple}
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


def _opaque(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    refuse(f"a value of type {str(tree.get('type'))[:200]} could not be recorded: {str(tree.get('repr'))[:200]}")


def _int(decoder: Decoder, tree: dict[str, Tree], depth: int) -> int:
    text = _text(tree["v"])
    if not _INT.fullmatch(text):
        refuse("it is no integer")
    return int(text, 16)


def _zoned(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value = _REAL["datetime"].fromisoformat(_text(tree["v"]))
    if "zone" in tree:
        value = value.replace(tzinfo=_zone(tree["zone"]))
    return value.replace(fold=1) if tree.get("fold") == 1 else value


def _zone(name: Any) -> Any:
    from zoneinfo import ZoneInfo

    if not _ZONE.fullmatch(_text(name)):
        refuse("it is no time zone")
    return ZoneInfo(name)


def _time(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value = _REAL["time"].fromisoformat(_text(tree["v"]))
    return value.replace(fold=1) if tree.get("fold") == 1 else value


def _timezone(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
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
        refuse("it is no fraction")
    value = object.__new__(Fraction)  # no common divisor is looked for: that takes long for large numbers
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


def _path(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    import pathlib

    name = _text(tree.get("c"))
    if name not in ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath", "PurePath", "Path"):
        refuse("it is no path")
    cls = getattr(pathlib, name)
    foreign = name in ("PosixPath", "WindowsPath") and cls is not type(pathlib.Path())
    return (pathlib.Path if foreign else cls)(_text(decoder.value(tree["v"], depth + 1)))


def _namespace(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from types import SimpleNamespace

    value = SimpleNamespace()
    vars(value).update(decoder.mapping(tree["v"], depth))
    return value


def _counter(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    value: collections.Counter[Any] = collections.Counter()
    dict.update(value, decoder.pairs(tree["v"], depth + 1))
    return value


def _defaultdict(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    factory = None if tree["f"] is None else _FACTORIES[tree["f"]]
    return collections.defaultdict(factory, decoder.pairs(tree["v"], depth + 1))


def _deque(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
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
        refuse("it is no pattern")
    return re.compile(source, flags & ~re.DEBUG)


def _ip(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    import ipaddress

    name = _text(tree.get("c"))
    if name not in ("IPv4Address", "IPv4Network", "IPv4Interface", "IPv6Address", "IPv6Network", "IPv6Interface"):
        refuse("it is no address")
    return getattr(ipaddress, name)(_text(decoder.value(tree["v"], depth + 1)))


def _typed_array(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from array import array

    return array(_text(tree["c"]), decoder.items(tree["v"], depth + 1))


def _objects(numpy: Any, decoder: Decoder, shape: list[Any], tree: dict[str, Tree], depth: int) -> Any:
    items = decoder.items(tree["v"], depth + 1)
    if any(type(size) is not int or size < 0 for size in shape) or prod(shape) != len(items):
        refuse("the shape of an array does not fit its data")
    value = numpy.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        value[i] = item
    return value.reshape(shape)


def _array(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    numpy = _loaded("numpy", "an array")
    shape = decoder.items(tree["shape"], depth + 1)
    if tree["dtype"] == "|O" and len(shape) <= 32:
        return _objects(numpy, decoder, shape, tree, depth)
    data, dtype = _data(tree), _dtype(numpy, tree)
    if len(shape) > 32 or any(type(size) is not int or size < 0 for size in shape):
        refuse("it is no shape of an array")
    if prod(shape) * dtype.itemsize != len(data):
        refuse("the shape of an array does not fit its data")
    if not data:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(bytearray(data), dtype).reshape(shape)


def _npscalar(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    numpy = _loaded("numpy", "a NumPy scalar")
    data, dtype = _data(tree), _dtype(numpy, tree)
    if dtype.itemsize != len(data) or not data:
        refuse("a NumPy scalar does not fit its data")
    return numpy.frombuffer(data, dtype)[0]


def _dtype(numpy: Any, tree: dict[str, Tree]) -> Any:
    if not DTYPE.fullmatch(_text(tree["dtype"])):
        refuse("it is no dtype")
    return numpy.dtype(tree["dtype"])


def _enum(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
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
    """A combination of flags that has no name; only where the class has no code of its own for it."""
    from enum import Flag

    plain = issubclass(cls, Flag) and cls._missing_.__func__ is Flag._missing_.__func__  # type: ignore[attr-defined]
    if not plain or type(value) is not int:
        refuse(f"{tree['c']} has no member {str(tree['n'])[:100]!r}", "Replay with the code that recorded the run.")
    return cls(value)


def _namedtuple(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    cls: Any = decoder.class_of(tree)
    items = decoder.items(tree["v"], depth + 1)
    fields = next(vars(base)["_fields"] for base in cls.__mro__ if "_fields" in vars(base))
    if len(items) != len(fields):
        refuse(f"{tree['c']} has other fields now", "Replay with the code that recorded the run.")
    return tuple.__new__(cls, items)


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
    """A dataclass or attrs instance."""
    value: object = object.__new__(decoder.class_of(tree))
    set_state(value, decoder.mapping(tree["v"], depth))
    return value


def _pydantic(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
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
    """An instance whose ``__post_init__`` did not run: msgspec has no way to make one but by its own constructor."""
    if hasattr(cls, "__post_init__"):
        refuse(
            f"the msgspec class {cls.__qualname__} has a __post_init__, without which msgspec makes no instance",
            "Register a codec for it (tracekit.integration.register_codec) and record again, or replay that record.",
        )
    return cls(**dict.fromkeys(cls.__struct_fields__))


def _exception(decoder: Decoder, tree: dict[str, Tree], depth: int) -> Any:
    from .exceptions import rebuilt

    return rebuilt(decoder, tree["v"], depth + 1)


def _surrogates(decoder: Decoder, tree: dict[str, Tree], depth: int) -> str:
    return _data(tree).decode("utf-8", "surrogatepass")


REBUILD: Final[dict[str, Rebuild]] = {
    "opaque": _opaque,
    "str": _surrogates,
    "int": _int,
    "float": lambda decoder, tree, depth: _FLOATS[tree["v"]],
    "complex": _complex,
    "const": lambda decoder, tree, depth: _CONSTANTS[tree["v"]],
    "bytes": lambda decoder, tree, depth: _data(tree),
    "bytearray": lambda decoder, tree, depth: bytearray(_data(tree)),
    "memoryview": lambda decoder, tree, depth: memoryview(_data(tree)),
    "tuple": lambda decoder, tree, depth: tuple(decoder.items(tree["v"], depth + 1)),
    "set": lambda decoder, tree, depth: set(decoder.items(tree["v"], depth + 1)),
    "frozenset": lambda decoder, tree, depth: frozenset(decoder.items(tree["v"], depth + 1)),
    "dict": lambda decoder, tree, depth: dict(decoder.pairs(tree["v"], depth + 1)),
    "OrderedDict": lambda decoder, tree, depth: collections.OrderedDict(decoder.pairs(tree["v"], depth + 1)),
    "Counter": _counter,
    "defaultdict": _defaultdict,
    "deque": _deque,
    "range": lambda decoder, tree, depth: range(*_ints(decoder, tree["v"], 3, depth)),
    "slice": lambda decoder, tree, depth: slice(*decoder.items(tree["v"], depth + 1)),
    "datetime": _zoned,
    "date": lambda decoder, tree, depth: _REAL["date"].fromisoformat(_text(tree["v"])),
    "time": _time,
    "timedelta": lambda decoder, tree, depth: _REAL["timedelta"](*_ints(decoder, tree["v"], 3, depth)),
    "timezone": _timezone,
    "zoneinfo": lambda decoder, tree, depth: _zone(tree["v"]),
    "struct_time": _struct_time,
    "decimal": _decimal,
    "fraction": _fraction,
    "uuid": _uuid,
    "uuid_utils": _uuid_utils,
    "path": _path,
    "namespace": _namespace,
    "pattern": _pattern,
    "ip": _ip,
    "array": _typed_array,
    "ChainMap": lambda decoder, tree, depth: collections.ChainMap(*decoder.items(tree["v"], depth + 1)),
    "ndarray": _array,
    "npscalar": _npscalar,
    "npstr": lambda decoder, tree, depth: _loaded("numpy", "a text").str_(_text(decoder.value(tree["v"], depth + 1))),
    "npbytes": lambda decoder, tree, depth: _loaded("numpy", "a value").bytes_(_data(tree)),
    "enum": _enum,
    "namedtuple": _namedtuple,
    "sub": _sub,
    "dataclass": _object,
    "attrs": _object,
    "pydantic": _pydantic,
    "msgspec": _msgspec,
    "exception": _exception,
}
