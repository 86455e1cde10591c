"""A ledger outside the process's memory: what a tool really did is one synced line in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Effects", "entries"]


class Effects:
    """Effects that really happened, in order."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "effects"

    def happen(self, name: str) -> str:
        """``name`` happens now; returns it with its number."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{name}\n".encode())
            os.fdatasync(file)
        finally:
            os.close(file)
        return f"{name} {self.count(name)}"

    def all(self) -> list[str]:
        return self._path.read_text().split("\n")[:-1] if self._path.exists() else []

    def count(self, name: str | None = None) -> int:
        return len([one for one in self.all() if name in (None, one)])


def entries(path: str, *types: str) -> list[dict[str, Any]]:
    """The entries of a trace, of the given types."""
    with open(path, "rb") as file:
        found = [json.loads(line) for line in file]
    return [one for one in found if not types or one["type"] in types]
