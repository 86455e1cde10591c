"""A recorded program replayed in a process of its own, watched from here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._session.did import Did
from .launching import follow

__all__ = ["replayed"]


def replayed(
    number: int, hash_seed: int, told: Mapping[str, Any], directory: str, cwd: str | None, *, stdout: bool
) -> Did:
    """Replay once, in a fresh process with this hash seed; ``told`` are the instructions for ``launch``."""
    files = {name: os.path.join(directory, f"{number}.{name}") for name in ("did", "out", "err")}
    witness = {"path": files["did"], "number": number, "stdout": stdout}
    environment = {"PYTHONHASHSEED": str(hash_seed)}
    with open(files["out"], "wb") as out, open(files["err"], "wb") as err:
        status = follow({**told, "witness": witness}, environment, cwd, out, err)
    with open(files["out"], "rb") as out, open(files["err"], "rb") as err:
        return Did.read(files["did"], f"replay {number}", hash_seed, status, out.read(), err.read())
