"""What a run was given, told from something else where the log keeps only a part of it: by a hash under the store's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._canonical import canonical
from .._journal.keys import Keys
from ..errors import TracekitError

__all__ = ["input_key", "is_input"]


def input_key(keys: Keys, given: Any) -> dict[str, str] | None:
    """The hash of an input, and of which secret; ``None`` where the store can't keep one: that ends no run."""
    try:
        return {"digest": _digest(keys, given), "by": keys.fingerprint()}
    except (OSError, TracekitError):
        return None


def is_input(keys: Keys, key: object, given: Any) -> bool | None:
    """Whether ``given`` is what ``key`` was made of; ``None`` where that can't be told."""
    if not isinstance(key, Mapping):
        return None
    try:
        if keys.known_by() != key.get("by"):
            return None
        return _digest(keys, given) == key.get("digest")
    except (OSError, TracekitError):
        return None


def _digest(keys: Keys, given: Any) -> str:
    return keys.digest(b"input", canonical(given))
