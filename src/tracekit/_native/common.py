"""What the functions of ``tracekit._native`` and their callers must agree on: limits, and a few types.

It is the same whether the functions are compiled or not.
"""

from __future__ import annotations

from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Final

import orjson

from .._lazy import NamedTuple

if TYPE_CHECKING:
    from collections import deque

__all__ = [
    "CONTAINERS",
    "IN_ORDER",
    "LEVELS",
    "MAX_DEPTH",
    "NEEDS_STEP",
    "NEEDS_VALUES",
    "OPAQUE",
    "PENDING",
    "PIECE",
    "REFERS",
    "Place",
    "encodable",
    "is_short",
    "is_worth",
    "take",
]

#: A piece of a stream with fewer bytes needs no interning.
PIECE: Final = 1024


def is_short(text: str) -> bool:
    """Return whether a text has fewer than ``PIECE`` bytes in UTF-8."""
    return len(text) < PIECE and (text.isascii() or len(text.encode("utf-8", "surrogatepass")) < PIECE)


#: The most reads of clocks and random numbers that wait to be written; the thread that adds one more writes them.
PENDING: Final = 4096
#: Marks of ``columns`` besides those of the given keys: a reference in the entry, and something that could not be
#: recorded.
REFERS: Final = 64
OPAQUE: Final = 128
#: What entries of a type need for their ``code``: a step; values and a name, and no ``meta``.
NEEDS_STEP: Final = 1
NEEDS_VALUES: Final = 2
#: JSON levels of one value; a more deeply nested one is not serialisable. (A reader accepts 300 per line, including the
#: entry around the value.)
MAX_DEPTH: Final = 190
#: The levels at which a list or dictionary may begin in any case: its tag may need two more.
LEVELS: Final = MAX_DEPTH - 2
#: The most containers that are examined for a small value.
CONTAINERS: Final = 200
#: The options of orjson with which nothing is converted, and keys keep their order.
IN_ORDER: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


class Place(NamedTuple):
    """How far a trace has been read and verified: number and time of the last entry, its end in the file, and its hash."""

    seq: int
    offset: int
    head: bytes
    ts: int
    run_id: bytes


def take(reads: deque[tuple[str, int, int, str, Any]]) -> list[tuple[str, int, int, str, Any]]:
    """Take the reads that wait. What other threads add meanwhile waits on: a thread that reads without pause would keep
    this going forever."""
    taken: list[tuple[str, int, int, str, Any]] = []
    try:
        taken.extend(starmap(reads.popleft, repeat((), len(reads))))
    except IndexError:  # a signal handler has written them meanwhile
        pass
    return taken


def encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: half a surrogate pair can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_worth(items: list[Any], element: int) -> bool:
    """Return whether a list contains anything but numbers and texts shorter than ``element``."""
    for item in items:
        kind = type(item)
        if kind is dict or (kind is str and len(item) >= element):
            return True
    return False
