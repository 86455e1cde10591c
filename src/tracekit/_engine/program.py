"""Which program made a run, so that it can be run again: recorded in ``run.started``, never trusted from another's file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

__all__ = ["Program", "file_hash", "set_program", "this_program", "told"]


class Program(NamedTuple):
    """``module`` or ``script`` with ``arguments``, started in ``cwd``. A script's path is absolute."""

    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    cwd: str

    def as_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"arguments": list(self.arguments), "cwd": self.cwd}
        facts["module" if self.module else "script"] = self.module or self.script
        return facts

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Program | None:
        """The program that a trace names, or ``None`` where it names none that could be run."""
        script, module = facts.get("script"), facts.get("module")
        arguments, cwd = facts.get("arguments"), facts.get("cwd")
        if not isinstance(script or module, str) or not isinstance(arguments, list) or not isinstance(cwd, str):
            return None
        return cls(script, module, tuple(str(argument) for argument in arguments), cwd)

    def __str__(self) -> str:
        what = f"-m {self.module}" if self.module else str(self.script)
        return " ".join(["python", what, *self.arguments])


def file_hash(program: Program) -> dict[str, str]:
    """``sha256`` of the program's file, under that key; empty where it can't be read."""
    path = program.script or getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        about = os.stat(path)  # type: ignore[arg-type]
        return {"sha256": _hash(str(path), about.st_mtime_ns, about.st_size)}
    except (OSError, TypeError):
        return {}


@lru_cache(maxsize=4)
def _hash(path: str, changed_ns: int, size: int) -> str:
    with open(path, "rb") as file:
        return sha256(file.read()).hexdigest()


_told: Program | None = None


def set_program(program: Program) -> None:
    """The program of this process is ``program``, whatever module began it."""
    global _told
    _told = program


def told() -> Program | None:
    """The program that ``set_program`` named."""
    return _told


def this_program() -> Program | None:
    """The program of this process, or ``None`` where it is a prompt, ``-c`` or an embedded interpreter."""
    if _told is not None:
        return _told
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    arguments = tuple(sys.argv[1:])
    try:
        cwd = os.getcwd()
    except OSError:
        return None
    if spec is not None and spec.name:
        name = spec.name.removesuffix(".__main__")
        return Program(None, name, arguments, cwd)
    file = getattr(main, "__file__", None)
    return Program(os.path.abspath(file), None, arguments, cwd) if file else None
