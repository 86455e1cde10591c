"""JSON in which a key stands twice in one object: readers differ in which one they take, so it is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

__all__ = ["DoubledKeyError", "once"]


class DoubledKeyError(Exception):
    """``key`` is in an object twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON text, for ``json.loads(object_pairs_hook=…)``. ``DoubledKeyError`` where a key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise DoubledKeyError(next(key for key in counts if counts[key] > 1))
    return found
