"""What a ``record()`` of this process is: a run of its own, or a part or replacement of another (replay, resume, joined child)."""

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
    "NextRun",
    "Replacement",
    "borrowed",
    "gives_way",
    "go_on_as",
    "goes_on",
    "has_controller",
    "is_whole_program",
    "lend",
    "next_input",
    "next_ordinal",
    "next_run",
    "part",
    "program",
    "replace_by",
    "replacement",
    "set_controller",
    "was_given",
    "whole_program",
]

#: An id of this start of the process.
_PROGRAM: Final = os.urandom(8).hex()  # noqa: TID251 - once, before anything is exchanged

_program = _PROGRAM
_count = 0
_counting: Final = threading.Lock()
_controller: Callable[[RecordBlock], Replacement | None] | None = None
_input_of: Callable[[int], Any] | None = None
_is_input: Callable[[int, Any], bool | None] | None = None
_joined: Callable[[RecordBlock], Replacement | None] | None = None
_whole: Recording | None = None
_lent: Final[list[tuple[Any, Replacement]]] = []


class Replacement(Protocol):
    """A block that takes the place of a ``record()``: the replay of the run, or its resumption."""

    def begin_for(self, options: Mapping[str, Any]) -> Run:
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
    """The id of the program start that the runs of this process belong to: its own, or that of the one being resumed or joined."""
    return _program


def go_on_as(program: str) -> None:
    """Let the runs of this process belong to the program start with this id."""
    global _program
    _program = program


def set_controller(
    controller: Callable[[RecordBlock], Replacement | None],
    input_of: Callable[[int], Any] | None = None,
    is_input: Callable[[int, Any], bool | None] | None = None,
) -> None:
    """Set the function that each ``record()`` asks for its replacement, a replay or a resumption.

    ``input_of`` gives the input of the n-th run of the program, for :func:`next_input`; ``is_input`` whether a value was its input, for
    :func:`was_given`, only where runs are resumed.
    """
    global _controller, _input_of, _is_input
    _controller, _input_of, _is_input = controller, input_of, is_input


def has_controller() -> bool:
    """Whether the runs of this process are replaced by recorded ones."""
    return _controller is not None


def next_input() -> Any:
    """The input of the recorded run that replaces the next ``record()``; ``None`` where nothing does."""
    return None if _input_of is None else _input_of(_count + 1)


def goes_on() -> bool:
    """Whether runs are resumed, so that their input reaches the live world."""
    return _is_input is not None


def was_given(value: Any) -> bool | None:
    """Whether ``value`` was the input of the run that is resumed next; ``None`` if unknown."""
    return None if _is_input is None else _is_input(_count + 1, value)


class NextRun:
    """The recorded run that the next ``record()`` of this process stands for, since the process is replayed or resumed."""

    __slots__ = ("input", "resumed")

    def __init__(self, input: Any, resumed: bool) -> None:
        #: What it was given, as the log has it; ``None`` where it has nothing.
        self.input: Final = input
        #: Whether it is resumed, so that its input reaches the live world.
        self.resumed: Final = resumed

    def was_given(self, value: Any) -> bool | None:
        """Of one that is resumed: whether ``value`` was its input, secrets included; ``None`` if unknown."""
        return was_given(value)


def next_run() -> NextRun | None:
    """The run that the next ``record()`` stands for; ``None`` where it records a run of its own."""
    return NextRun(next_input(), goes_on()) if has_controller() else None


def replacement(block: RecordBlock) -> Replacement | None:
    """The replacement of this ``record()``, or ``None``."""
    return None if _controller is None else _controller(block)


def replace_by(part_for: Callable[[RecordBlock], Replacement | None]) -> None:
    """Let ``part_for`` replace each ``record()`` of this process, which has joined a run, by a part of that run."""
    global _joined
    _joined = part_for


def part(block: RecordBlock) -> Replacement | None:
    """The replacement of a ``record()`` in a process that has joined a run, or ``None``."""
    return None if _joined is None else _joined(block)


def lend(session: Session, replacement_block: Replacement) -> None:
    """The first ``record()`` inside ``session`` is that run itself, as ``replacement_block`` gives it."""
    _lent[:] = [(session, replacement_block)]


def borrowed(session: Session) -> Replacement | None:
    """The block that :func:`lend` left for a ``record()`` inside ``session``; given out once."""
    if not _lent or _lent[0][0] is not session:
        return None
    return _lent.pop()[1]


def whole_program(session: Recording | None) -> None:
    """Set the session that records the whole program; ``None`` when it has ended or given way."""
    global _whole
    _whole = session


def is_whole_program(session: Session) -> bool:
    return session is _whole


def gives_way(session: Session) -> bool:
    """Whether ``session`` records a whole program that has made no step yet: it is discarded in favour of the program's own run."""
    global _count
    if _whole is None or session is not _whole or _whole.steps:
        return bool(session.recording and session.state.discarded)
    _whole.discard()
    whole_program(None)
    with _counting:
        _count -= 1
    return True
