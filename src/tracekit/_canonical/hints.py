"""The classes that an annotation holds, and those that their fields hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .registry import name_of

__all__ = ["classes_in"]

_MOST: Final = 2000


def classes_in(hint: Any) -> dict[str, type]:
    """Every class reachable from ``hint``, by ``module:qualname``: through unions, containers, aliases, and fields of classes."""
    found: dict[str, type] = {}
    stack: list[Any] = [hint]
    seen: set[int] = set()
    while stack and len(seen) < _MOST:
        item = stack.pop()
        if item is None or isinstance(item, str) or id(item) in seen:
            continue
        seen.add(id(item))
        try:
            if isinstance(item, type):
                found.setdefault(name_of(item), item)
            stack.extend(_inside(item))
        except Exception:  # an annotation that can't be read names no class
            continue
    return found


def _inside(item: Any) -> Iterator[Any]:
    for name in ("__origin__", "__supertype__", "__value__", "__bound__"):
        yield getattr(item, name, None)
    if isinstance(item, (list, tuple)):
        yield from item
    yield from getattr(item, "__args__", None) or ()
    if isinstance(item, type) and item.__module__ != "builtins":
        yield from _fields(item)


def _fields(cls: type) -> Iterator[Any]:
    for field in (getattr(cls, "__pydantic_fields__", None) or {}).values():
        yield getattr(field, "annotation", None)
    if "__annotations__" in vars(cls) or hasattr(cls, "__dataclass_fields__"):
        yield from _annotations(cls)


def _annotations(cls: type) -> list[Any]:
    from typing import get_type_hints

    try:
        return list(get_type_hints(cls).values())
    except Exception:  # a name that only the type checker knows; those that are no text serve all the same
        return list(vars(cls).get("__annotations__", {}).values())
