"""Whose run a ``record()`` of the program is, where the command line runs the whole program."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from .._runtime.recorder import Recording
from .._runtime.session import Session

if TYPE_CHECKING:
    from .recording import RecordBlock
    from .run import Run

__all__ = [
    "StandIn",
    "borrowed",
    "gives_way",
    "go_on_as",
    "goes_on",
    "is_whole_program",
    "joined_as",
    "lend",
    "next_input",
    "next_ordinal",
    "part",
    "program",
    "replacement",
    "set_controller",
    "stands_in",
    "was_given",
    "whole_program",
]

#: An id of this process start.
_PROGRAM: Final = os.urandom(8).hex()  # noqa: TID251 - once, before anything is exchanged

_program = _PROGRAM
_count = 0
_counting: Final = threading.Lock()
_controller: Callable[[RecordBlock], StandIn | None] | None = None
_input_of: Callable[[int], Any] | None = None
_is_input: Callable[[int, Any], bool | None] | None = None
_joined: Callable[[RecordBlock], StandIn | None] | None = None
_whole: Recording | None = None
_lent: Final[list[tuple[Any, StandIn]]] = []


class StandIn(Protocol):
    """A block that takes the place of a ``record()``: the replay of the run, or its resumption."""

    def stand_in(self, options: Mapping[str, Any]) -> Run:
        """Begin, for a ``record()`` with these options."""
        ...

    def end_for(self, run: Run, error: BaseException | None) -> None:
        """End as the block of ``run`` ends."""
        ...


def next_ordinal() -> int:
    """The number of the run that is being opened: the n-th of this process, from 1."""
    global _count
    with _counting:
        _count += 1
        return _count


def program() -> str:
    """Whose runs these are: an id of the start of the process, or of one that has died and is gone on with."""
    return _program


def go_on_as(program: str) -> None:
    """The runs of this process belong to those of a process that has died."""
    global _program
    _program = program


def set_controller(
    controller: Callable[[RecordBlock], StandIn | None],
    input_of: Callable[[int], Any] | None = None,
    is_input: Callable[[int, Any], bool | None] | None = None,
) -> None:
    """From now on ``controller`` is asked by each ``record()`` for what stands in for it.

    ``input_of`` says what the n-th run of the program was given, for :func:`next_input`, ``is_input`` whether it was given that, for
    :func:`was_given`: only where runs are gone on with.
    """
    global _controller, _input_of, _is_input
    _controller, _input_of, _is_input = controller, input_of, is_input


def stands_in() -> bool:
    """Whether recorded runs stand in for those of this process."""
    return _controller is not None


def next_input() -> Any:
    """What the run was given that stands in for the next ``record()``; ``None`` where nothing does."""
    return None if _input_of is None else _input_of(_count + 1)


def goes_on() -> bool:
    """Whether a run is gone on with: what it is given then reaches the live world."""
    return _is_input is not None


def was_given(value: Any) -> bool | None:
    """Whether the run that is gone on with was given ``value``; ``None`` where that can't be told."""
    return None if _is_input is None else _is_input(_count + 1, value)


def replacement(block: RecordBlock) -> StandIn | None:
    """What stands in for this ``record()``, or ``None``."""
    return None if _controller is None else _controller(block)


def joined_as(stand_in: Callable[[RecordBlock], StandIn | None]) -> None:
    """This process has joined a run: each ``record()`` of it is a part of that, by what ``stand_in`` gives."""
    global _joined
    _joined = stand_in


def part(block: RecordBlock) -> StandIn | None:
    """What stands in for a ``record()`` in a process that has joined a run, or ``None``."""
    return None if _joined is None else _joined(block)


def lend(session: Session, stand_in: StandIn) -> None:
    """The first ``record()`` inside ``session`` is that run itself: ``stand_in`` gives it."""
    _lent[:] = [(session, stand_in)]


def borrowed(session: Session) -> StandIn | None:
    """What ``lend`` has for a ``record()`` inside ``session``, once."""
    if not _lent or _lent[0][0] is not session:
        return None
    return _lent.pop()[1]


def whole_program(session: Recording | None) -> None:
    """``session`` records the whole program, until it ends or gives way."""
    global _whole
    _whole = session


def is_whole_program(session: Session) -> bool:
    return session is _whole


def gives_way(session: Session) -> bool:
    """Whether ``session`` is the run of a whole program that has done nothing yet: it makes room for the program's own."""
    global _count
    if _whole is None or session is not _whole or _whole.steps:
        return bool(session.recording and session.state.discarded)
    _whole.discard()
    whole_program(None)
    with _counting:
        _count -= 1
    return True
