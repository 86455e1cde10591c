"""What a program did to the world outside: one line an effect, on its device before the effect is over.

The standard library only: it is the witness, and must owe nothing to what it is witness of.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "effects", "marks"]


class Ledger:
    """A file that lines are appended to, each with one write and one sync."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def mark(self, effect: str, **facts: Any) -> None:
        """``effect`` has happened: it can't be forgotten once this returns."""
        os.write(self._fd, json.dumps({"effect": effect, "pid": os.getpid(), **facts}).encode() + b"\n")
        os.fsync(self._fd)

    def note(self, **facts: Any) -> None:
        """The same without a sync: for what only the death of the process can take."""
        os.write(self._fd, json.dumps(facts).encode() + b"\n")


def marks(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a ledger that were written to their end."""
    file = Path(path)
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def effects(path: str | os.PathLike[str]) -> Counter[str]:
    """How often each effect happened."""
    return Counter(mark["effect"] for mark in marks(path))
