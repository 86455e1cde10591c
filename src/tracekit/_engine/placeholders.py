"""Recorded and actual values compared where one of them holds placeholders for secrets that the other shows."""

from __future__ import annotations

import re
from binascii import a2b_base64
from typing import Any, Final

from .redaction import PLACEHOLDER

__all__ = ["alike"]

#: How placeholders begin.
_MARK: Final = "[REDACTED:"


def alike(one: Any, other: Any) -> bool:
    """Whether two JSON trees are equal, a placeholder on either side standing for any text in its place."""
    if type(one) is dict and type(other) is dict:
        data = _data(one), _data(other)
        if None not in data and one["$t"] == other["$t"]:
            return _texts(*data)  # type: ignore[arg-type]
        return _mappings(one, other)
    if type(one) is list and type(other) is list:
        return len(one) == len(other) and all(map(alike, one, other))
    if type(one) is str and type(other) is str:
        return _texts(one, other)
    if type(one) is str or type(other) is str:  # a text with surrogates is stored as data, its placeholder is not
        return _is_one(one, other) or _is_one(other, one)
    return type(one) is type(other) and repr(one) == repr(other)


def _mappings(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if len(one) != len(other):
        return False
    if one.keys() == other.keys():
        return all(alike(item, other[key]) for key, item in one.items())
    # A key was replaced: its place in the order is left to tell which one.
    return all(
        _texts(key, name) and alike(item, thing)
        for (key, item), (name, thing) in zip(one.items(), other.items(), strict=True)
    )


def _texts(one: str, other: str) -> bool:
    return one == other or _fits(one, other) or _fits(other, one)


def _fits(pattern: str, text: str) -> bool:
    """Whether ``text`` is ``pattern`` with something in the place of each placeholder."""
    if _MARK not in pattern:
        return False
    parts = [re.escape(part) for part in PLACEHOLDER.split(pattern)]
    return re.fullmatch("(?s:.+?)".join(parts), text) is not None


def _is_one(placeholder: Any, data: Any) -> bool:
    return type(placeholder) is str and PLACEHOLDER.fullmatch(placeholder) is not None and _data(data) is not None


def _data(tree: Any) -> str | None:
    """What base64 data say, or ``None``."""
    if type(tree) is not dict or tree.get("$t") not in ("bytes", "bytearray", "memoryview", "str", "npbytes"):
        return None
    try:
        return a2b_base64(tree["v"]).decode("latin-1")
    except (ValueError, KeyError, TypeError):
        return None
