"""Calls of signal handlers as events of a run: where in the program one was made, and how a replay repeats it there.

The interpreter calls a handler in the main thread, between two instructions of whatever runs there. Such a call is an
event of the run, in a lane of its own, with its place:

- ``sent``: the main thread has sent itself the signal; the handler runs before that call returns;
- ``step``: inside a live step, whose body a replay does not run; an exception from the handler is in the step's
  outcome;
- ``wait``: while the main thread waited, at a line of user code, in something that a replay waits in, too;
- ``loop``: by its event loop, or while that waited;
- ``after``: right after a captured call, in the line that made it. A signal that arrives while tracekit itself is
  working, before or after such a call, is kept until that is over, so that the handler finds no half-made entry, and
  its exception leaves none;
- ``between``: anywhere else, at a line of the program.

A replay sets no timer that sends a signal, and suppresses signals that the program sends itself: when a recorded call
is next, tracekit sends the signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextvars import Token
from types import FrameType
from typing import Any, Final

from .._sources import ASYNCIO, TRACEKIT, is_python, is_tracekit
from .callsite import is_user_frame
from .session import Scope, current

__all__ = [
    "LOOP_SIGNAL",
    "SIGNAL",
    "at_next",
    "in_loop",
    "interrupted",
    "is_at_work",
    "line_of",
    "line_of_user",
    "name_of",
    "place_of",
    "postponed",
    "scope_of",
    "undivided",
    "waits",
]

#: The names of the entries of handlers' calls, outside event loops and in them.
SIGNAL: Final = "signal"
LOOP_SIGNAL: Final = "loop.signal"


#: The scopes of what the running signal handlers have interrupted; only the main thread runs any.
interrupted: Final[list[Scope]] = []


#: The calls of handlers that come at the end of what runs ``undivided``; only the main thread runs any.
_postponed: Final[list[list[Callable[[], object]]]] = []


def undivided(work: Callable[[], object]) -> None:
    """Do ``work``, which is short and can't be taken up again, as a whole: a handler that is called in its course is called at its
    end, with the exception that it raises."""
    here = threading.current_thread() is threading.main_thread()
    mine: list[Callable[[], object]] = []
    try:
        if here:
            _postponed.append(mine)
    finally:  # a handler has raised just before
        try:
            work()
        finally:
            _postponed[:] = [calls for calls in _postponed if calls is not mine]
            _call_each(mine)


def postponed(call: Callable[[], object]) -> bool:
    """Keep the call of a handler, if something is just done ``undivided``; return whether it is."""
    if not _postponed:
        return False
    _postponed[0].append(call)
    return True


def _call_each(calls: list[Callable[[], object]]) -> None:
    if calls:
        try:
            calls.pop(0)()
        finally:
            _call_each(calls)


def in_live_step() -> bool:
    """Return whether the running code is inside a live step, or is of a signal handler that has interrupted one."""
    return any(scope is not None and scope.live for scope in (current.get(), *interrupted))


def name_of(number: int) -> str:
    """Return ``SIGTERM`` for 15, say."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(int(number))


def number_of(name: str) -> int:
    return int(name) if name.isdigit() else int(signal.Signals[name])


# -- where a handler is called -----------------------------------------------------------------------------------------

#: Our own bookkeeping code, which finishes soon, except in `pause`.
_BOOKS: Final = (
    *(
        os.path.join(TRACEKIT, room, "")
        for room in ("_journal", "_native", "_policy", "_runtime", "_values", "failures")
    ),
    *(os.path.join(TRACEKIT, name) for name in (os.path.join("_capture", "leftovers.py"), "_lazy.py", "errors.py")),
)
#: Our own code around calls of the program.
_AT_WORK: Final = frozenset(
    os.path.join(TRACEKIT, "_capture", name)
    for name in (
        *("callers.py", "calls.py", "clock.py", "contracted.py", "decorated.py", "decorators.py", "in_place.py"),
        *("randomness.py", "signals.py"),
    )
)
#: Our own code in which the program waits.
_WAITS: Final = frozenset(
    os.path.join(TRACEKIT, room, name)
    for room, names in (
        ("_capture", ("commands.py", "popen.py", "processes.py", "threads.py", "timers.py")),
        (
            "_runtime",
            (
                "loop_queue.py",
                "progress.py",
                "resumer.py",
                "schedule.py",
                "signal_calls.py",
                "signals.py",
                "threads.py",
            ),
        ),
    )
    for name in names
)


#: The file of the functions that import a module.
_IMPORTING: Final = "<frozen importlib._bootstrap>"


def _is_library(frame: FrameType) -> bool:
    """Return whether a frame is of the standard library, or of code that a library generated (the ``__new__`` of a named
    tuple)."""
    file = frame.f_code.co_filename
    return is_python(file) or (file[:1] == "<" and not is_user_frame(frame))


def _own(frame: FrameType | None) -> FrameType | None:
    """Return ``frame``, or the caller of its library code, if that is tracekit's; for a module that is being imported, of
    whatever package, the code of tracekit that needs it."""
    below_an_import = True
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _IMPORTING:
            below_an_import = True
        elif is_tracekit(file) and frame.f_code.co_name != "<module>":
            return frame if below_an_import else None
        elif is_user_frame(frame):
            return None
        elif not is_tracekit(file) and not _is_library(frame):
            below_an_import = False  # unless it turns out to be
        frame = frame.f_back
    return None


def is_at_work(frame: FrameType | None, scope: Scope | None) -> bool:
    """Return whether tracekit itself was working where ``frame`` was interrupted, before or after a call of the
    program, not during it.

    ``scope`` is that of the interrupted code: ``None`` outside every run, and in bookkeeping that runs code of the
    program (encoding a value may).
    """
    first = own = _own(frame)
    keeps_books = False
    while own is not None and is_tracekit(file := own.f_code.co_filename):
        # Whoever has called the bookkeeping, it is not left in the middle.
        keeps_books = keeps_books or file.startswith(_BOOKS)
        names = own.f_locals
        if file in _WAITS or own.f_code.co_name == "pause":
            return bool(getattr(names.get("timer"), "is_over", False))
        if not keeps_books and file not in _AT_WORK:
            return False
        step = names.get("step")
        if step is not None and getattr(step, "live", False):
            entered = any(type(value) is Token and value.var is current for value in names.values())
            # Below other code of tracekit, the call of the program has not quite begun, or is over.
            return own is not first or not (entered and scope is not None and scope.parent == step.seq)
        own = own.f_back
    return first is not None and (keeps_books or scope is not None)


def waits(frame: FrameType | None) -> bool:
    """Return whether the program waits, at ``frame``, in something that a replay waits in, too."""
    own = _own(frame)
    while own is not None and is_tracekit(file := own.f_code.co_filename):
        if file in _WAITS or own.f_code.co_name == "pause":
            return True
        own = own.f_back
    return False


def scope_of(frame: FrameType | None) -> Scope | None:
    """Return the scope of the program that was interrupted at ``frame``: also of a wait, whose own steps are in none."""
    scope = current.get()
    while scope is None and frame is not None and not is_user_frame(frame):
        if is_tracekit(frame.f_code.co_filename):
            for value in frame.f_locals.values():
                if type(value) is Token and value.var is current and isinstance(value.old_value, Scope):
                    scope = value.old_value
        frame = frame.f_back
    return scope


def in_loop(frame: FrameType | None) -> bool:
    """Return whether the event loop of this thread itself was interrupted, not one of its callbacks."""
    from asyncio import current_task, events

    if events._get_running_loop() is None or current_task() is not None:
        return False
    while frame is not None and frame.f_code.co_filename.startswith(ASYNCIO):
        if frame.f_code.co_name == "_run" and frame.f_code.co_filename.endswith("events.py"):
            return False
        if frame.f_code.co_name in ("_run_once", "run_forever", "run_until_complete", "run"):
            return True
        frame = frame.f_back
    while frame is not None and is_python(frame.f_code.co_filename):
        if frame.f_code.co_name == "_run_once":
            return True
        frame = frame.f_back
    return False


def place_of(frame: FrameType | None, scope: Scope) -> str:
    """Return the place of a handler's call that interrupts ``frame``."""
    if "asyncio" in sys.modules and in_loop(frame):
        return "loop"
    if scope.live:
        return "step"
    return "wait" if waits(frame) else "between"


def line_of(frame: FrameType | None) -> str | None:
    """Return the interrupted line, by its file's and function's names: its directory may differ in a replay."""
    while frame is not None and is_tracekit(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else _shown(frame)


def line_of_user(frame: FrameType | None) -> str | None:
    """Return the line of user code from which the interrupted one was called, in the same form."""
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return None if frame is None else _shown(frame)


def _shown(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_qualname}"


class FrameWatch:
    """Calls ``act`` in this thread as soon as it reaches a frame for which ``meets`` returns true."""

    def __init__(
        self,
        meets: Callable[[FrameType], bool],
        act: Callable[[FrameType], object],
        follows: Callable[[FrameType], bool],
    ) -> None:
        self._meets: Final = meets
        self._act: Final = act
        #: Returns whether a function is traced line by line.
        self._follows: Final = follows
        self._marked: Final[list[tuple[FrameType, Any, bool]]] = []
        self.over = False

    def begin(self, frame: FrameType | None, *, precisely: bool) -> bool:
        """Begin tracing, from ``frame`` outwards; ``precisely``: up to the program's innermost frame, each instruction.
        Does nothing if a debugger or a coverage tool traces the program itself."""
        if sys.gettrace() is not None:
            return False
        outside, at_program = _outside(frame), False
        while frame is not None:
            at_program = at_program or frame is outside
            if not is_tracekit(frame.f_code.co_filename) and self._follows(frame):
                self._marked.append((frame, frame.f_trace, frame.f_trace_opcodes))
                frame.f_trace = self._line
                if precisely:
                    frame.f_trace_opcodes = True
                    if at_program:
                        break
            frame = frame.f_back
        sys.settrace(self._called)
        return True

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.over or is_tracekit(frame.f_code.co_filename) or not self._follows(frame):
            return None
        return self._line(frame, event, arg)

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self.over and self._meets(frame):
            self.end()
            self._act(frame)
        return None if self.over else self._line

    def end(self) -> None:
        """End tracing; to be called in the same thread."""
        if self.over:
            return
        self.over = True
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)
        for frame, trace, opcodes in self._marked:
            frame.f_trace, frame.f_trace_opcodes = trace, opcodes
        self._marked.clear()


def at_next(frame: FrameType | None, act: Callable[[FrameType], object], unless: Callable[[], bool]) -> bool:
    """Call ``act`` as soon as tracekit has finished its work and the program's code goes on, ``unless`` that is so where
    an exception would be lost; return whether that is possible."""
    if _outside(frame) is None:
        return False
    watch = FrameWatch(lambda found: not (is_at_work(found, scope_of(found)) or unless()), act, lambda found: True)
    return watch.begin(frame, precisely=True)


def _outside(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the program in which what ``frame`` does was begun."""
    frame = _own(frame) or frame
    while frame is not None and (is_tracekit(frame.f_code.co_filename) or _is_library(frame)):
        frame = frame.f_back
    return frame
