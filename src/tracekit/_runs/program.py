"""The program that made a run, so that it can be run again.

It is recorded in ``run.started``, and never trusted from somebody else's file.

It is all that ``tracekit run`` and ``tracekit replay`` need before they hand over to the process of the program, so it
imports little.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._lazy import NamedTuple

__all__ = ["Program"]


class Program(NamedTuple):
    """A program: ``module`` or ``script`` with ``arguments``, started in ``cwd``.

    A script's path is absolute; ``called`` is its path as in ``sys.argv``, if that differs.
    """

    script: str | None
    module: str | None
    arguments: tuple[str, ...]
    cwd: str
    called: str | None = None

    def as_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"arguments": list(self.arguments), "cwd": self.cwd}
        facts["module" if self.module else "script"] = self.module or self.script
        if self.called not in (None, self.script):
            facts["called"] = self.called
        return facts

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Program | None:
        """Return the program that a trace names, or ``None`` if it names none that could be run."""
        script, module = facts.get("script"), facts.get("module")
        arguments, cwd, called = facts.get("arguments"), facts.get("cwd"), facts.get("called")
        if not isinstance(script or module, str) or not isinstance(arguments, list) or not isinstance(cwd, str):
            return None
        names_it = isinstance(called, str) and os.path.abspath(os.path.join(cwd, called)) == script
        return cls(script, module, tuple(str(argument) for argument in arguments), cwd, called if names_it else None)

    def __str__(self) -> str:
        import shlex

        what = ["-m", self.module] if self.module else [str(self.script)]
        return shlex.join(["python", *what, *self.arguments])
