"""Finds the line of the user's code that made a call, and prints messages and warnings."""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Final

from .. import _reality
from .._sources import ASYNCIO, TRACEKIT, is_user_code
from ..errors import LiveCallBlockedError
from .session import current

__all__ = [
    "at_prompt",
    "caller",
    "is_user_frame",
    "not_made",
    "prompt",
    "raised_at",
    "say",
    "warn",
    "warn_of_replay",
]


def is_user_frame(frame: FrameType) -> bool:
    """Return whether a frame is of the user's own code: in a file of theirs, or typed at a prompt, after ``-c``, piped
    in or run by ``exec``."""
    name = frame.f_code.co_filename
    return is_user_code(name) or (name.startswith("<") and _is_typed(name, frame.f_globals))


#: The module names of code without a file: the interpreter, and a console in it.
_PROMPTS: Final = ("__main__", "__console__")


def _is_typed(name: str, names: dict[str, object]) -> bool:
    if names.get("__file__", name) != name or name.startswith("<frozen "):
        return False  # generated for a module that has a file: its caller has the line
    module = names.get("__name__")
    return module in _PROMPTS or (module in (None, "builtins") and name == "<string>")


#: The file in which an event loop calls its callbacks: below that frame is whatever runs the loop.
_EVENTS: Final = os.path.join(ASYNCIO, "events.py")


def raised_at(error: BaseException) -> str | None:
    """Return the innermost line of user code, ``file:line``, of an exception's traceback."""
    trace, place = error.__traceback__, None
    while trace is not None:
        if is_user_frame(trace.tb_frame):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def caller() -> str | None:
    """Return ``file:line`` of the innermost frame of the user's code, or ``None``. In a task or thread that runs none
    (``create_task(client.get(url))``), it is the line that created it, if a replay knows that."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_frame(frame):
        code = frame.f_code
        if code.co_name == "_run" and code.co_filename == _EVENTS and (found := _made_at()) is not None:
            return found
        frame = frame.f_back
    return _made_at() if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _made_at() -> str | None:
    scope = current.get()
    return None if scope is None else scope.lane.made_at


def not_made(
    family: str, name: str, where: str, next_action: str | None = None, *, run_id: str | None = None
) -> LiveCallBlockedError:
    """Return the error of a captured call that would be live because it is outside every run; ``where`` says how it
    was made."""
    return LiveCallBlockedError(
        f"{family} {name!r} was called {where}; it was not executed",
        run_id=run_id,
        location=caller(),
        operation=f"{family} {name}",
        next_action=next_action,
    )


def say(sentence: str) -> None:
    """Print a line on standard error immediately; do nothing if there is none."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError), _reality.off_loop():  # it is closed
            sys.stderr.write(f"tracekit: {sentence}\n")
            sys.stderr.flush()


def warn(sentence: str, *, error: BaseException | None = None) -> None:
    """Issue a ``RuntimeWarning`` of a recording, at the line that called tracekit. Never raises: if a filter turns it
    into an error, or it can't be shown, it becomes a line on standard error, and a note on ``error``, with which the
    program leaves the block."""
    try:
        _warn(f"tracekit: {sentence}", RuntimeWarning)
    except Exception:
        _say_instead(sentence, error)


def warn_of_replay(sentence: str, category: type[Warning], error: BaseException | None) -> None:
    """Issue a warning of a replay. If a filter turns it into an error, this raises, unless ``error`` is the error with
    which the program leaves the block."""
    try:
        _warn(f"tracekit: {sentence}", category)
    except Exception:
        if error is None:
            raise
        _say_instead(sentence, error)


def _warn(text: str, category: type[Warning]) -> None:
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(TRACEKIT):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _say_instead(sentence: str, error: BaseException | None) -> None:
    text = f"tracekit: {sentence}"
    if error is not None and text not in getattr(error, "__notes__", ()):
        error.add_note(text)
    say(sentence)


# -- prompts -----------------------------------------------------------------------------------------------------------
#
# Code typed at the prompt of a debugger is not part of the run.

_at_prompt: Final[ContextVar[bool]] = ContextVar("tracekit_at_prompt", default=False)


def at_prompt() -> bool:
    """Return whether the running code was typed at a debugger's prompt: what it may not do is refused, without failing
    the program."""
    return _at_prompt.get()


@contextmanager
def prompt() -> Iterator[None]:
    """A block in which somebody types at a debugger's prompt: outside the run's context, with the real standard input."""
    before, run, marked = (builtins.input, sys.stdin), current.set(None), _at_prompt.set(True)
    builtins.input, sys.stdin = inspect.unwrap(builtins.input), sys.__stdin__ or sys.stdin
    try:
        yield
    finally:
        builtins.input, sys.stdin = before
        _at_prompt.reset(marked)
        current.reset(run)
