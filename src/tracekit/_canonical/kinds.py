"""How each kind of type is encoded: a table for the standard library by name, and a look at the bases of the rest.

Types of modules that are not loaded need no case, so nothing is imported here: a type's own module is there when its values are.
"""

from __future__ import annotations

import re
import sys
from binascii import b2a_base64
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from .encode import Handler, Tree, Walk
from .registry import is_heap, loaded_class, name_of, state_of

__all__ = ["BASES", "DTYPE", "MUST_BE", "classify"]

#: The NumPy types whose bytes say everything.
DTYPE: Final = re.compile(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|[SUV]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)"
)
#: Built-in types whose subclasses are rebuilt from the base's value and the instance's attributes.
BASES: Final[tuple[type, ...]] = (str, int, float, complex, bytes, bytearray, list, dict, set, frozenset, tuple)


def base64(data: Any) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _simple(tag: str, plain: Callable[[Any], Any]) -> Handler:
    """A type whose value is told by ``plain(value)``, itself a value of simpler types."""

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
        except RuntimeError:  # another thread writes to it
            continue
    return list(dict.items(dict.copy(value)))


def _sequence(tag: str) -> Handler:
    def handler(walk: Walk, value: Any, depth: int) -> Tree:
        return {"$t": tag, "v": walk.items(value, depth + 1)}

    return handler


def _tuple(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "tuple", "v": walk.items(tuple.__iter__(value), depth + 1)}


def _set(tag: str) -> Handler:
    def handler(walk: Walk, value: Any, depth: int) -> Tree:
        from .encode import dumps

        base = set if issubclass(type(value), set) else frozenset
        return {"$t": tag, "v": sorted(walk.items(base.__iter__(value), depth + 1), key=dumps)}

    return handler


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


def _time(walk: Walk, value: Any, depth: int) -> Tree:
    if value.tzinfo is not None and value.utcoffset() is None:
        return walk.opaque(value, "its time zone has no fixed offset")
    return {"$t": "time", "v": value.isoformat(), **({"fold": 1} if value.fold else {})}


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
    "builtins:memoryview": lambda walk, value, depth: {"$t": "memoryview", "v": base64(bytes(value))},
    "builtins:complex": _simple("complex", lambda value: [value.real, value.imag]),
    "builtins:range": _simple("range", lambda value: [value.start, value.stop, value.step]),
    "builtins:slice": _simple("slice", lambda value: [value.start, value.stop, value.step]),
    "builtins:ellipsis": lambda walk, value, depth: {"$t": "const", "v": "Ellipsis"},
    "builtins:NotImplementedType": lambda walk, value, depth: {"$t": "const", "v": "NotImplemented"},
    "datetime:datetime": _datetime,
    "freezegun.api:FakeDatetime": _datetime,  # stands for datetime itself while time is frozen
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
    **_addresses,
    **_plain_path,
}


def classify(kind: type) -> Handler:
    """The handler for a type that was not met before."""
    handler = _BY_NAME.get(name_of(kind))
    if handler is not None and (is_heap(kind) is False or loaded_class(name_of(kind)) is kind):
        return handler
    bases = kind.__mro__
    for applies, handler in _FAMILIES:
        if applies(kind, bases):
            return handler
    return _opaque("no codec knows its type")


def _from(module: str, name: str) -> Callable[[type, tuple[type, ...]], bool]:
    """Whether a type derives from a class of a module, which is then loaded."""

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


def _is_subclass(kind: type, bases: tuple[type, ...]) -> bool:
    native = [base for base in bases if base is not object and not is_heap(base)]
    return is_heap(kind) and len(native) == 1 and native[0] in BASES


def _enum(walk: Walk, value: Any, depth: int) -> Tree:
    state = state_of(value)
    plain = walk.value(state["_value_"], depth + 1)
    return {"$t": "enum", "c": name_of(type(value)), "n": state.get("_name_"), "v": plain}


def _namedtuple(walk: Walk, value: Any, depth: int) -> Tree:
    return {"$t": "namedtuple", "c": name_of(type(value)), "v": walk.items(tuple.__iter__(value), depth + 1)}


def _subclass(walk: Walk, value: Any, depth: int) -> Tree:
    kind = type(value)
    base = next(base for base in kind.__mro__ if base in BASES)
    tree = {"$t": "sub", "c": name_of(kind), "b": base.__name__, "v": walk.value(_base_value(base, value), depth + 1)}
    state = {name: item for name, item in state_of(value).items() if not name.startswith("__")}
    if state:
        tree["a"] = walk.mapping(state.items(), depth + 1)
    return tree


def _base_value(base: type, value: Any) -> Any:
    """The value as one of exactly ``base``, made without methods that a subclass may have replaced."""
    if base in (str, int, float):
        return {str: str.__str__, int: int.__int__, float: float.__float__}[base](value)
    if base is complex:
        return complex(*complex.__getnewargs__(value))  # type: ignore[attr-defined]
    if base is dict:
        return dict(_pairs(value))
    return base(base.__iter__(value))  # type: ignore[attr-defined]


def _fields(tag: str) -> Handler:
    """A class with declared fields. Other attributes (caches, locks) come along where they can be encoded."""

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
    from .exceptions import describe

    return {"$t": "exception", "v": describe(walk, value, depth + 1)}


def _array(walk: Walk, value: Any, depth: int) -> Tree:
    dtype = value.dtype.str
    if dtype == "|O":
        return {"$t": "ndarray", "dtype": "|O", "shape": list(value.shape), "v": walk.items(value.ravel(), depth + 1)}
    if not DTYPE.fullmatch(dtype) or value.dtype.names or value.dtype.subdtype:
        return walk.opaque(value, "only arrays of plain numbers, dates, texts, bytes and objects can be")
    return {"$t": "ndarray", "dtype": dtype, "shape": list(value.shape), "v": base64(value.tobytes())}


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


_ATTRS: Final = "__attrs_attrs__"
_is_pydantic: Final = _from("pydantic.main", "BaseModel")
_is_msgspec: Final = _from("msgspec", "Struct")
_is_attrs: Final = _marked(_ATTRS)
_is_dataclass: Final = _marked("__dataclass_fields__")
#: In the order that they are asked; the first that applies wins.
_FAMILIES: Final[list[tuple[Callable[[type, tuple[type, ...]], bool], Handler]]] = [
    (_is_enum, _enum),
    (_is_pydantic, _pydantic),
    (_is_msgspec, _fields("msgspec")),
    (lambda kind, bases: BaseException in bases, _exception),
    (_is_attrs, _fields("attrs")),
    (_is_dataclass, _fields("dataclass")),
    (_is_array, _array),
    (_is_scalar, _scalar),
    (_is_namedtuple, _namedtuple),
    (_is_subclass, _subclass),
]
#: What a class named in a trace must really be, by tag, before an instance of it is made.
MUST_BE: Final[dict[str, Callable[[type, tuple[type, ...]], bool]]] = {
    "enum": _is_enum,
    "pydantic": _is_pydantic,
    "msgspec": _is_msgspec,
    "attrs": _is_attrs,
    "dataclass": _is_dataclass,
    "namedtuple": _is_namedtuple,
    "sub": _is_subclass,
}
