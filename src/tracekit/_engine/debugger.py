"""The debugger that ``tracekit replay --break`` opens."""

from __future__ import annotations

import builtins
import inspect
import sys
from pdb import Pdb
from typing import Any

from .scope import current

__all__ = ["Debugger"]


class Debugger(Pdb):
    """What is typed at its prompt is no part of the run: it comes from the real standard input, outside the run's context."""

    def interaction(self, *args: Any, **options: Any) -> None:
        before, token = (builtins.input, sys.stdin), current.set(None)
        builtins.input, sys.stdin = inspect.unwrap(builtins.input), sys.__stdin__ or sys.stdin
        try:
            super().interaction(*args, **options)
        finally:
            builtins.input, sys.stdin = before
            current.reset(token)
