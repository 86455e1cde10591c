"""A coroutine run by hand, to learn whether it ever suspended.

One that never did returned without the event loop running anything in between; a replay must answer it the same way, and
let the loop run for one that did.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

__all__ = ["drive", "resumed"]


class drive:
    """An awaitable that runs ``awaitable`` and tells in ``suspended`` whether it ever gave control away."""

    __slots__ = ("_iterator", "suspended")

    def __init__(self, awaitable: Any) -> None:
        self._iterator = awaitable.__await__()
        self.suspended = False

    def __await__(self) -> Generator[Any, Any, Any]:
        iterator = self._iterator
        try:
            waits_for = next(iterator)
        except StopIteration as stop:
            return stop.value
        self.suspended = True
        return (yield from resumed(iterator, waits_for))


class resumed:
    """The rest of an iterator (or coroutine) whose first item has been taken: it comes first again. Can be awaited."""

    __slots__ = ("_first", "_iterator", "_started")

    def __init__(self, iterator: Any, first: Any) -> None:
        self._iterator = iterator
        self._first = first
        self._started = False

    def __iter__(self) -> resumed:
        return self

    __await__ = __iter__

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        if not self._started:
            self._started = True
            return self._first
        return self._iterator.send(value)

    def throw(self, *error: Any) -> Any:
        self._started = True
        return self._iterator.throw(*error)

    def close(self) -> None:
        self._iterator.close()
