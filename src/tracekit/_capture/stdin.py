"""Standard input as steps of a run, where a whole program is recorded or replayed."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterator
from functools import wraps
from typing import Any

from .._runtime.step import Spec
from .calls import Captured, shell_of

__all__ = ["capture"]


def capture() -> None:
    """Make ``input()`` and the reads of ``sys.stdin`` captured calls, for the rest of the process."""
    builtins.input = _prompting(builtins.input)
    sys.stdin = _Stdin(sys.stdin)


def _step(name: str, function: Any) -> Any:
    """The function with each call as a step. It needs no identity, as a tool does, so that a program without tools imports no wrapt."""
    shell = shell_of(Captured(function, Spec("tool", name, side_effect="read_only")))

    def step(*args: Any, **kwargs: Any) -> Any:
        return shell(function, None, args, kwargs)

    return step


def _prompting(original: Any) -> Any:
    """``input``, whose prompt is printed before the step, in a replay too: what is printed is the program's own.

    On a terminal the line editor shows it, while the step is made.
    """
    shown: Any = _step("input", lambda prompt="": original())
    edited: Any = _step("input", original)

    @wraps(original)
    def input(prompt: object = "", /) -> Any:
        if _edits():
            return edited(prompt)
        sys.stderr.flush()
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
        return shown(prompt)

    return input


def _edits() -> bool:
    try:
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return False


class _Stdin:
    """Standard input whose reads are steps; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        for name in ("read", "readline", "readlines"):
            setattr(self, name, _step(f"stdin.{name}", getattr(stream, name)))

    def __iter__(self) -> Iterator[str]:
        while line := self.readline():
            yield line

    def __next__(self) -> str:
        line: str = self.readline()
        if not line:
            raise StopIteration
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
