"""Whose run a ``record()`` of the program is, where the command line runs the whole program."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .._engine.recording import Recording

if TYPE_CHECKING:
    from .recorded import Record
    from .replayed import Replaying

__all__ = [
    "PROGRAM",
    "gives_way",
    "is_whole_program",
    "next_ordinal",
    "ordinal",
    "replacement",
    "set_controller",
    "whole_program",
]

#: An id of this process start.
PROGRAM: Final = os.urandom(8).hex()  # noqa: TID251 - once, before anything is exchanged

_count = 0
_controller: Callable[[Record], Replaying | None] | None = None
_whole: Recording | None = None


def next_ordinal() -> int:
    """The number of the run that is being opened: the n-th of this process, from 1."""
    global _count
    _count += 1
    return _count


def ordinal() -> int:
    """The number of the latest run."""
    return _count


def set_controller(controller: Callable[[Record], Replaying | None]) -> None:
    """From now on ``controller`` is asked by each ``record()`` for the replay that stands in for it."""
    global _controller
    _controller = controller


def replacement(block: Record) -> Replaying | None:
    """The replay that stands in for this ``record()``, or ``None``."""
    return None if _controller is None else _controller(block)


def whole_program(session: Recording | None) -> None:
    """``session`` records the whole program, until it ends or gives way."""
    global _whole
    _whole = session


def is_whole_program(session: Any) -> bool:
    return session is not None and session is _whole


def gives_way(session: Any) -> bool:
    """Whether ``session`` is the run of a whole program that has done nothing yet: it makes room for the program's own."""
    global _count
    if _whole is None or session is not _whole or _whole.steps:
        return bool(session.recording and session.discarded)
    _whole.discard()
    whole_program(None)
    _count -= 1
    return True
