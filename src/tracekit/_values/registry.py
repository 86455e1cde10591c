"""Registered codecs, names of types, and classes looked up without importing anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import MemberDescriptorType, ModuleType
from typing import Any, Final

from .._lazy import NamedTuple

__all__ = [
    "Codec",
    "codecs_by_tag",
    "codecs_by_type",
    "has_state",
    "is_heap",
    "loaded_class",
    "name_of",
    "register",
    "set_state",
    "state_of",
]

_HEAP_TYPE: Final = 1 << 9
_type_dict: Final = type.__dict__["__dict__"].__get__
_type_flags: Final = type.__dict__["__flags__"].__get__


class Codec(NamedTuple):
    """A pair of functions for one type: ``encode`` converts to a simpler value, ``decode`` converts back."""

    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


#: The codecs that this program has registered, for the whole process.
codecs_by_type: Final[dict[type, Codec]] = {}
codecs_by_tag: Final[dict[str, Codec]] = {}


def register(type: type, tag: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register a codec for ``type``: ``encode(value)`` returns any encodable value, ``decode`` converts it back.

    ``tag`` names it in the trace; it must contain a colon or a dot (``"acme.Money"``), which distinguishes it from
    built-in tags. Raises ``ValueError`` for another tag, or one that is taken.
    """
    if not {":", "."} & set(tag):
        raise ValueError(f"the tag {tag!r} needs a colon or a dot, such as 'acme.Money': plain words are built in")
    known = codecs_by_tag.get(tag)
    if known is not None and codecs_by_type.get(type) is not known:
        raise ValueError(f"the tag {tag!r} belongs to another type already")
    codec = Codec(tag, encode, decode)
    codecs_by_type[type] = codecs_by_tag[tag] = codec


def name_of(cls: type) -> str:
    """Return ``module:qualname`` as text, whatever the class declares."""
    module, qualname = getattr(cls, "__module__", None), getattr(cls, "__qualname__", None)
    text = f"{module if isinstance(module, str) else '?'}:{qualname if isinstance(qualname, str) else '?'}"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_heap(cls: type) -> bool:
    """Return whether a class was made by a ``class`` statement or the like, not in C."""
    return bool(_type_flags(cls) & _HEAP_TYPE)


def loaded_class(name: str) -> type | None:
    """Return the class of this name from a loaded module: only plain attributes, no import, no ``__getattr__``."""
    module_name, _, qualname = name.partition(":")
    parts = qualname.split(".")
    found: object = sys.modules.get(module_name)
    if found is None or len(parts) > 20 or any(part.startswith("__") for part in parts):
        return None
    for part in parts:
        found = _attributes(found).get(part)
        if not issubclass(type(found), type):
            return None
    return found  # type: ignore[return-value]


def _attributes(holder: object) -> Any:
    if issubclass(type(holder), ModuleType):
        return object.__getattribute__(holder, "__dict__")
    return _type_dict(holder) if issubclass(type(holder), type) else {}


def _slots(cls: type) -> Iterator[tuple[str, Any]]:
    for base in cls.__mro__:
        if is_heap(base):
            for name, item in _type_dict(base).items():
                if type(item) is MemberDescriptorType:
                    yield name, item


def state_of(value: object) -> dict[str, Any]:
    """Return the instance attributes from ``__dict__`` and slots, without running code of the class."""
    state = {}
    for name, slot in _slots(type(value)):
        try:
            state[name] = slot.__get__(value)
        except AttributeError:  # never set
            continue
    try:
        state.update(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        pass
    return state


def has_state(value: object) -> bool:
    """Whether an object can have instance attributes, set yet or not."""
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return next(_slots(type(value)), None) is not None
    return True


def set_state(value: object, state: dict[str, Any]) -> None:
    """Set instance attributes without running code of the class. Raises ``ValueError`` for a name that can't be set."""
    slots = dict(_slots(type(value)))
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    for name, item in state.items():
        if type(name) is not str or (name.startswith("__") and name.endswith("__")):
            raise ValueError(f"{name!r} is not an attribute that can be set")
        if name in slots:
            slots[name].__set__(value, item)
        elif own is not None:
            own[name] = item
        else:
            raise ValueError(f"{name_of(type(value))} has no attribute {name!r}")
