"""Where a lane of a replay is, and the reads of clock and dice that belong between two of its steps."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["LaneState"]

_NONE: Final = array("I")


class LaneState:
    """A lane's position among its recorded ``items`` and its cursors by kind of step.

    Between two steps the reads form a window, matched by function; passing the next step closes it.
    """

    __slots__ = ("_at", "_items", "_last", "_taken", "_window", "cursors", "lane")

    def __init__(self, lane: int, items: array[int] | None) -> None:
        self.lane: Final = lane
        self.cursors: dict[str, int] = {}
        self._items: Final = _NONE if items is None else items
        self._at = 0
        self._window: dict[str, list[tuple[int, Any]]] | None = None
        self._taken: dict[int, int] = {}
        self._last: dict[str, Any] = {}

    def advance(self, seq: int) -> list[int]:
        """Move past ``seq``; returns the items between, which were not consumed in their place."""
        at, items = self._at, self._items
        if at < len(items) and items[at] == seq:
            self._at = at + 1
            return []
        to = bisect_left(items, seq, at)
        if to >= len(items) or items[to] != seq:
            return []  # it lies behind: passed out of order before
        between = list(items[at:to])
        self._at = to + 1
        return between

    def close(self) -> None:
        self._window = None
        if self._taken:
            self._taken = {}

    def ahead(self) -> Iterator[int]:
        """The items from here on."""
        items = self._items
        for i in range(self._at, len(items)):
            yield items[i]

    def rest(self) -> list[int]:
        return list(self._items[self._at :])

    def taken(self, seq: int) -> int:
        """How many values of the read entry ``seq`` the program has had."""
        return self._taken.get(seq, 0)

    def take(self, function: str, window: Callable[[LaneState], list[tuple[int, str, list[Any]]]]) -> tuple[bool, Any]:
        """The next value of ``function`` in the present window: ``(True, value)``, or ``(False, None)``."""
        if self._window is None:
            self._window = _by_function(window(self))
        values = self._window.get(function)
        if not values:
            return False, None
        seq, value = values.pop()
        self._taken[seq] = self._taken.get(seq, 0) + 1
        self._last[function] = value
        return True, value

    def last(self, function: str) -> Any:
        """The last value of ``function`` that this lane was given, or ``None``."""
        return self._last.get(function)


def _by_function(window: list[tuple[int, str, list[Any]]]) -> dict[str, list[tuple[int, Any]]]:
    found: dict[str, list[tuple[int, Any]]] = {}
    for seq, name, values in reversed(window):
        found.setdefault(name, []).extend((seq, value) for value in reversed(values))
    return found
