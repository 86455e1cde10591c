"""The line of the user's code that made a call."""

from __future__ import annotations

import builtins
import inspect
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from types import FrameType
from typing import Final

from .. import _reality
from .session import current

__all__ = [
    "at_prompt",
    "caller",
    "is_own",
    "is_package",
    "is_python",
    "is_user_code",
    "is_user_frame",
    "prompt",
    "raised_at",
    "say",
    "warn",
    "warn_of_replay",
]

# -- callsite ----------------------------------------------------------------------------------------------------------
#
# Which files are the user's own, for messages: neither the standard library, nor installed, nor tracekit.

_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# What ``sysconfig`` says, without all that it reads to say it: the second is another one on some systems (``lib64``).
_STDLIB: Final = (
    os.path.dirname(os.__file__) + os.sep,
    os.path.join(sys.exec_prefix, sys.platlibdir, f"python{sys.version_info[0]}.{sys.version_info[1]}", ""),
)


@lru_cache(maxsize=4096)
@_reality.off_loop()
def is_user_code(filename: str) -> bool:
    """Whether a file is the user's own: neither the standard library's, nor installed, nor tracekit's."""
    if filename.startswith("<"):
        return False
    path = os.path.abspath(filename)
    if _is_own(path) or "/site-packages/" in path or "/dist-packages/" in path:
        return False
    return not _is_of_python(path)


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame is of the user's own code: of a file of his, or typed at a prompt, after ``-c``, piped in or run by ``exec``."""
    name = frame.f_code.co_filename
    return is_user_code(name) or (name.startswith("<") and _is_typed(name, frame.f_globals))


#: What runs code that has no file names its module so: the interpreter, and a console in it.
_PROMPTS: Final = ("__main__", "__console__")


def _is_typed(name: str, names: dict[str, object]) -> bool:
    if names.get("__file__", name) != name or name.startswith("<frozen "):
        return False  # generated for a module that has a file: whoever calls it has the line
    module = names.get("__name__")
    return module in _PROMPTS or (module in (None, "builtins") and name == "<string>")


@lru_cache(maxsize=4096)
@_reality.off_loop()
def is_package(filename: str) -> bool:
    """Whether a file is of an installed package: neither the user's own, nor the standard library's, nor tracekit's."""
    path = os.path.abspath(filename)
    return ("/site-packages/" in path or "/dist-packages/" in path) and not _is_own(path)


@lru_cache(maxsize=4096)
@_reality.off_loop()
def is_python(filename: str) -> bool:
    """Whether a file is of the standard library."""
    if filename.startswith("<frozen "):
        return True
    path = os.path.abspath(filename)
    return not (_is_own(path) or "/site-packages/" in path or "/dist-packages/" in path) and _is_of_python(path)


@lru_cache(maxsize=4096)
@_reality.off_loop()
def is_own(filename: str) -> bool:
    """Whether a file is tracekit's, or one of its integrations'."""
    return _is_own(os.path.abspath(filename))


def _is_own(path: str) -> bool:
    if path.startswith(_HERE):
        return True
    place = (f"{os.sep}integrations{os.sep}", f"{os.sep}site-packages{os.sep}tracekit_")
    return f"{os.sep}tracekit_" in path and any(one in path for one in place)


def _is_of_python(path: str) -> bool:
    return path.startswith((*_STDLIB, sys.prefix + os.sep + "lib"))


#: Where an event loop calls what it has to run: who runs the loop is below.
_EVENTS: Final = os.path.join(os.path.dirname(os.__file__), "asyncio", "events.py")


def raised_at(error: BaseException) -> str | None:
    """The line of user code, ``file:line``, that an exception comes from: the innermost one."""
    trace, place = error.__traceback__, None
    while trace is not None:
        if is_user_frame(trace.tb_frame):
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def caller() -> str | None:
    """``file:line`` of the innermost frame of the user's code; in a task or thread that runs none (``create_task(client.get(url))``), of
    the line that made it, where a replay knows that. ``None``: there is none."""
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


def say(sentence: str) -> None:
    """A line on standard error, now; where there is none, nothing."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError), _reality.off_loop():  # it is closed
            sys.stderr.write(f"tracekit: {sentence}\n")
            sys.stderr.flush()


def warn(sentence: str, *, error: BaseException | None = None) -> None:
    """A ``RuntimeWarning`` of a recording, of the line of code that called tracekit. It never raises: where a filter makes an error of it,
    or it can't be shown, it is a line on standard error, and a note of ``error``, which the program leaves the block with."""
    try:
        _warn(f"tracekit: {sentence}", RuntimeWarning)
    except Exception:
        _say_instead(sentence, error)


def warn_of_replay(sentence: str, category: type[Warning], error: BaseException | None) -> None:
    """A warning of a replay, where a filter may make an error of it: it raises, unless ``error`` is what the program leaves the block
    with."""
    try:
        _warn(f"tracekit: {sentence}", category)
    except Exception:
        if error is None:
            raise
        _say_instead(sentence, error)


def _warn(text: str, category: type[Warning]) -> None:
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _say_instead(sentence: str, error: BaseException | None) -> None:
    text = f"tracekit: {sentence}"
    if error is not None and text not in getattr(error, "__notes__", ()):
        error.add_note(text)
    say(sentence)


# -- prompts -----------------------------------------------------------------------------------------------------------
#
# What is typed at the prompt of a debugger is no part of the run.

_at_prompt: Final[ContextVar[bool]] = ContextVar("tracekit_at_prompt", default=False)


def at_prompt() -> bool:
    """Whether the running code was typed at the prompt of a debugger: what it may not do is refused, and no failure of the program."""
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
