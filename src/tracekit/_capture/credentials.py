"""Placeholders for the credentials without which SDKs refuse to start: a replay needs none, since nothing is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from .plugins import discover

__all__ = ["PLACEHOLDER", "supply"]

#: Says what it is wherever it turns up.
PLACEHOLDER: Final = "tracekit-replay-no-key"


def supply() -> Callable[[], None]:
    """Set a placeholder for each credential variable that is absent or empty; the returned function takes them away again.

    A variable that the program has changed in the meantime is left as the program made it.
    """
    before: dict[str, str | None] = {}
    for name in _variables():
        present = os.environ.get(name)
        if not present:
            before[name] = present
            os.environ[name] = _value(name)

    def restore() -> None:
        for name, value in before.items():
            if os.environ.get(name) != _value(name):
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        before.clear()

    return restore


def _variables() -> list[str]:
    return [name for integration in discover().values() for name in integration.credentials]


def _value(name: str) -> str:
    return "true" if name.endswith("_DISABLED") else PLACEHOLDER
