"""Tells which arguments a tool could change: a list, say, and no number. Only those are watched for changes."""

from __future__ import annotations

from collections import ChainMap, deque
from types import SimpleNamespace
from typing import Any, Final, TypeGuard

__all__ = ["FIXED", "changeable", "has_fields", "may_change"]

#: Types whose values contain nothing changeable.
FIXED: Final = frozenset((str, int, float, bool, type(None), bytes, complex))
_FIELDS: Final = ("__dataclass_fields__", "__attrs_attrs__", "__pydantic_fields__", "__struct_fields__")
_BUILT_IN: Final[tuple[type, ...]] = (
    *(list, dict, set, bytearray, tuple, deque, ChainMap, SimpleNamespace, memoryview, BaseException),
)
_USUAL: Final = frozenset((list, dict))
_kinds: Final[dict[type, bool]] = dict.fromkeys(_BUILT_IN, True)
_MANY_KINDS: Final = 4096


def changeable(input: object, mutates: tuple[str, ...]) -> TypeGuard[dict[str, Any]]:
    """Return whether a call's arguments include anything that it may change."""
    if type(input) is not dict:
        return False
    if not _USUAL.isdisjoint(map(type, input.values())):
        return True
    kinds = set(map(type, input.values()))
    return not FIXED.issuperset(kinds) and (any(map(may_change, kinds)) or not input.keys().isdisjoint(mutates))


def may_change(kind: type) -> bool:
    """Return whether a value of this type can be changed, or contain one that can."""
    found = _kinds.get(kind)
    if found is None:
        if len(_kinds) > _MANY_KINDS:  # classes created dynamically must not be kept alive forever
            _kinds.clear()
        numeric = kind.__name__ in ("ndarray", "array") and kind.__module__ in ("numpy", "array")
        found = _kinds[kind] = numeric or issubclass(kind, _BUILT_IN) or has_fields(kind)
    return found


def has_fields(kind: type) -> bool:
    return any(mark in vars(base) for base in kind.__mro__ for mark in _FIELDS)
