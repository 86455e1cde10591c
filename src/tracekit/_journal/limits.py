"""What a trace may ask of its reader. A trace is untrusted input: the reader sets these limits, the file can't."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["DEFAULT", "Limits", "too_costly", "too_deep"]


class Limits(NamedTuple):
    """``line``: bytes of one line. ``depth``: nesting of a value. ``expanded``: bytes of a value with all references resolved."""

    line: int = 64 << 20
    depth: int = 300
    expanded: int = 256 << 20


DEFAULT: Final = Limits()

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ALL_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
#: About what an empty container, and what a number in a list, costs in memory, in bytes.
_CONTAINER: Final = 96
_ITEM: Final = 40


def too_deep(line: bytes, depth: int) -> bool:
    """Whether the JSON in ``line`` nests deeper than ``depth``, told without parsing it."""
    if line.count(b"[") + line.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", line).translate(_ALL_SQUARE, _NOT_BRACKETS)
    for _ in range(depth):
        if not brackets:
            return False
        # Each round takes away the innermost level everywhere.
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def too_costly(line: bytes, allowed: int) -> bool:
    """Whether parsing ``line`` could take much more memory than ``allowed``: sixty million empty lists fit in one line."""
    if len(line) * (_CONTAINER // 2) <= allowed:
        return False
    bare = _STRING.sub(b"", line)
    cost = len(line) + _CONTAINER * (bare.count(b"[") + bare.count(b"{")) + _ITEM * bare.count(b",")
    return cost > allowed
