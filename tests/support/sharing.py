"""What a program can find out about a value: types, contents, order of keys, and which of its containers are one object."""

from __future__ import annotations

import collections
import math
from types import SimpleNamespace
from typing import Any

import pydantic

_PAIRS = (dict,)
_ITEMS = (list, tuple, collections.deque)


def structure(value: Any) -> Any:
    """The value as plain tuples, in which a changeable object that came before is its number."""
    return _of(value, {}, [])


def _of(value: Any, met: dict[int, int], alive: list[Any]) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, float):
        return (name, str(value), math.copysign(1, value), _state(value, met, alive))
    if not _is_container(value):
        return (name, repr(value), _state(value, met, alive) if kind.__module__ != "builtins" else ())
    if not isinstance(value, tuple | frozenset):
        if id(value) in met:
            return met[id(value)]
        met[id(value)] = len(met)
    alive.append(value)
    inside: Any = ()
    if isinstance(value, _PAIRS):
        inside = [(_of(key, met, alive), _of(item, met, alive)) for key, item in dict.items(value)]
    elif isinstance(value, _ITEMS):
        inside = [_of(item, met, alive) for item in value]
    elif isinstance(value, set | frozenset):
        inside = sorted(repr(_of(item, {}, alive)) for item in value)
    elif isinstance(value, bytearray):
        inside = bytes(value)
    elif isinstance(value, BaseException):
        inside = [_of(item, met, alive) for item in value.args]
    return (name, inside, _state(value, met, alive))


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an instance, in its dictionary or in slots."""
    slots = [name for base in type(value).__mro__ for name in vars(base).get("__slots__", ())]
    found = {name: getattr(value, name) for name in slots if isinstance(name, str) and hasattr(value, name)}
    return {name: item for name, item in (found | getattr(value, "__dict__", {})).items() if not name.startswith("__")}


def _is_container(value: Any) -> bool:
    if isinstance(value, (*_PAIRS, *_ITEMS, set, frozenset, bytearray, SimpleNamespace, pydantic.BaseModel)):
        return True
    return isinstance(value, BaseException) or hasattr(type(value), "__struct_fields__") or bool(_attributes(value))


def _state(value: Any, met: dict[int, int], alive: list[Any]) -> Any:
    if hasattr(type(value), "__struct_fields__"):
        return [(name, _of(getattr(value, name), met, alive)) for name in type(value).__struct_fields__]
    return [(name, _of(item, met, alive)) for name, item in _attributes(value).items()]
