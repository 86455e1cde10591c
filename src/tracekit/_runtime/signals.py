"""Calls of signal handlers as events of a run: where in the program one was made, and how a replay repeats it there.

The interpreter calls a handler in the main thread, between two instructions of whatever runs there. Such a call is an
event of the run, in a lane of its own, with its place:

- ``sent``: the main thread has sent itself the signal; the handler runs before that call returns;
- ``step``: inside a live step, whose body a replay does not run; an exception from the handler is in the step's
  outcome;
- ``wait``: while the main thread waited in something that a replay waits in, too;
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
from _thread import get_ident, start_new_thread
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Token
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .._reality import pthread_kill
from .callsite import is_own, is_python, is_user_frame
from .session import Scope, current

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .verdict import Report

__all__ = [
    "LOOP_SIGNAL",
    "SIGNAL",
    "SignalCalls",
    "at_next",
    "in_loop",
    "interrupted",
    "is_at_work",
    "line_of",
    "name_of",
    "place_of",
]

#: The names of the entries of handlers' calls, outside event loops and in them.
SIGNAL: Final = "signal"
LOOP_SIGNAL: Final = "loop.signal"


#: The scopes of what the running signal handlers have interrupted; only the main thread runs any.
interrupted: Final[list[Scope]] = []


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

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Our own bookkeeping code, which finishes soon, except in `pause`.
_BOOKS: Final = (
    *(
        os.path.join(_PACKAGE, room, "")
        for room in ("_journal", "_native", "_policy", "_runtime", "_values", "failures")
    ),
    *(os.path.join(_PACKAGE, name) for name in (os.path.join("_capture", "leftovers.py"), "_lazy.py", "errors.py")),
)
#: Our own code around calls of the program.
_AT_WORK: Final = frozenset(
    os.path.join(_PACKAGE, "_capture", name)
    for name in (
        *("callers.py", "calls.py", "clock.py", "contracted.py", "decorated.py", "decorators.py", "exchange.py"),
        *("randomness.py", "signals.py"),
    )
)
#: Our own code in which the program waits.
_WAITS: Final = frozenset(
    os.path.join(_PACKAGE, room, name)
    for room, names in (
        ("_capture", ("commands.py", "processes.py", "threads.py", "timers.py")),
        ("_runtime", ("progress.py", "resumer.py", "schedule.py", "signals.py", "threads.py")),
    )
    for name in names
)
_ASYNCIO: Final = os.path.dirname(os.__file__) + os.sep + "asyncio" + os.sep


def _is_library(frame: FrameType) -> bool:
    """Return whether a frame is of the standard library, or of code that a library generated (the ``__new__`` of a named
    tuple)."""
    file = frame.f_code.co_filename
    return is_python(file) or (file[:1] == "<" and not is_user_frame(frame))


def _own(frame: FrameType | None) -> FrameType | None:
    """Return ``frame``, or the caller of its library code, if that is tracekit's."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        if not _is_library(frame):
            return None
        frame = frame.f_back
    return frame


def is_at_work(frame: FrameType | None, scope: Scope | None) -> bool:
    """Return whether tracekit itself was working where ``frame`` was interrupted, before or after a call of the
    program, not during it.

    ``scope`` is that of the interrupted code: ``None`` outside every run, and in bookkeeping that runs code of the
    program (encoding a value may).
    """
    first = own = _own(frame)
    keeps_books = False
    while own is not None and is_own(file := own.f_code.co_filename):
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


def _waits(frame: FrameType | None) -> bool:
    own = _own(frame)
    while own is not None and is_own(file := own.f_code.co_filename):
        if file in _WAITS or own.f_code.co_name == "pause":
            return True
        own = own.f_back
    return False


def in_loop(frame: FrameType | None) -> bool:
    """Return whether the event loop of this thread itself was interrupted, not one of its callbacks."""
    from asyncio import current_task, events

    if events._get_running_loop() is None or current_task() is not None:
        return False
    while frame is not None and frame.f_code.co_filename.startswith(_ASYNCIO):
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
    return "wait" if _waits(frame) else "between"


def line_of(frame: FrameType | None) -> str | None:
    """Return the interrupted line, by its file's and function's names: its directory may differ in a replay."""
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_qualname}"


class _Watch:
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
        """Begin tracing, from ``frame`` outwards. Does nothing if a debugger or a coverage tool traces the program
        itself."""
        if sys.gettrace() is not None:
            return False
        while frame is not None:
            if not is_own(frame.f_code.co_filename) and self._follows(frame):
                self._marked.append((frame, frame.f_trace, frame.f_trace_opcodes))
                frame.f_trace = self._line
                if precisely:
                    frame.f_trace_opcodes = True
                    if not _is_library(frame):
                        break
            frame = frame.f_back
        sys.settrace(self._called)
        return True

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.over or is_own(frame.f_code.co_filename) or not self._follows(frame):
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


def at_next(frame: FrameType | None, act: Callable[[FrameType], object]) -> bool:
    """Call ``act`` as soon as tracekit has finished its work and the program's code goes on; return whether that is
    possible."""
    if _outside(frame) is None:
        return False
    watch = _Watch(lambda found: not is_at_work(found, current.get()), act, lambda found: True)
    return watch.begin(frame, precisely=True)


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (is_own(frame.f_code.co_filename) or _is_library(frame)):
        frame = frame.f_back
    return frame


# -- in a replay -------------------------------------------------------------------------------------------------------

#: Places that are lines of the program.
_AT_LINES: Final = ("after", "between")


def _kill(thread: int, number: int) -> None:
    assert pthread_kill is not None
    pthread_kill(thread, number)


class _Call:
    """One recorded call."""

    __slots__ = ("at", "held", "line", "name", "number", "seq")

    def __init__(self, seq: int, about: Mapping[str, Any]) -> None:
        self.seq: Final = seq
        self.name: Final = str(about.get("call"))
        self.number: Final = number_of(self.name)
        self.at: Final = str(about.get("at"))
        self.line: Final = about.get("line")
        #: Whether the schedule held the main thread when the handler was called.
        self.held = False

    def is_at(self, frame: FrameType) -> bool:
        return line_of(frame) == self.line

    def is_in(self, frame: FrameType) -> bool:
        """Return whether the line is in the function of this frame."""
        if self.line is None:
            return False
        file, _, function = self.line.split(":", 2)
        code = frame.f_code
        return bool(code.co_qualname == function and os.path.basename(code.co_filename) == file)


class SignalCalls:
    """The recorded calls of handlers, which a replay repeats in order by sending signals to the main thread."""

    def __init__(self, trace: Trace, calls: list[int], schedule: Any, report: Report) -> None:
        self._schedule: Final = schedule
        self._report: Final = report
        self._left: Final = deque(_Call(seq, trace.entry(seq)["input"]) for seq in calls)
        #: The signals for which the recorded program's handlers were called.
        self.names: Final = frozenset(call.name for call in self._left)
        self._main = 0
        self._ticket: Any = None
        self._watch: _Watch | None = None
        #: The call whose signal has been sent, and whether others wait for it.
        self._sent: _Call | None = None
        self._waited_for = False
        #: The last seen state of the main thread, and how many surplus signals were sent.
        self._seen: object = None
        self._too_many = 0

    def begin(self) -> None:
        """Begin the replay, in this thread."""
        if threading.main_thread().ident != get_ident():
            for call in self._left:
                self._report.inexact(
                    "other_signal",
                    f"the handler of {call.name} (entry {call.seq}) can't be called here: this is not the main thread",
                )
                self._schedule.skip(call.seq)
            self._left.clear()
            return
        self._main = get_ident()
        self._next()

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Ask for the next call, or check whether it is in the line that is about to go on."""
        if not self._left:
            return
        call = self._left[0]
        if call.at in _AT_LINES:
            self.passed()
        elif call.at != "sent":
            self._ticket = self._schedule.callback(call.seq, lambda: self._due(call), anywhere=True, at_rest=True)

    def _due(self, call: _Call) -> None:
        """``call`` is next: called in whatever thread, while the main thread waits."""
        self._ticket = None
        if self._schedule.has_failed or self._schedule.is_closed or not self._left or self._left[0] is not call:
            return
        self._left.popleft()
        if get_ident() != self._main:
            self._send(call)
            return
        threads = self._schedule.threads
        with threads.lock:  # the caller counts as being woken
            threads.woken()
        try:
            self._send(call)
        finally:
            with threads.lock:
                threads.waking(None)

    def passed(self) -> None:
        """Something recorded has happened in this thread: a handler that was called in the code that follows may be
        called now."""
        if self._watch is not None or self._sent is not None or get_ident() != self._main or not self._left:
            return
        call = self._left[0]
        if call.at not in _AT_LINES or not self._schedule.is_next(call.seq):
            return
        self._watch = _Watch(call.is_at, lambda _: self._at_line(call), call.is_in)
        if not self._watch.begin(sys._getframe(1), precisely=call.at == "after"):
            self._watch = None

    def _at_line(self, call: _Call) -> None:
        self._watch = None
        if self._schedule.has_failed or self._schedule.is_closed or not self._left or self._left[0] is not call:
            return
        if call.at == "between":
            self._report.remark(
                "signal",
                f"the handler of {call.name} (entry {call.seq}) was called when the program first reached {call.line} after what was "
                "recorded before: it may have reached that line more than once",
                step=call.seq,
            )
        self._take(call)

    def comes_to(self, seq: int | None) -> None:
        """The program reaches what was recorded at ``seq`` in this thread (``None``: something that never comes);
        earlier calls are late."""
        if get_ident() != self._main:
            return
        while self._left and self._sent is None:
            call = self._left[0]
            if (
                call.at not in _AT_LINES
                or (seq is not None and seq < call.seq)
                or (seq is None and self._watch is None)
            ):
                break
            self._report.remark(
                "signal",
                f"the handler of {call.name} (entry {call.seq}) was called later than in the recording: not at {call.line}",
                step=call.seq,
            )
            self._take(call)

    def _take(self, call: _Call) -> None:
        """Call the handler here and now."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        if self._ticket is not None:
            self._schedule.cancel(self._ticket)
            self._ticket = None
        self._left.popleft()
        self._schedule.take(call.seq)
        self._send(call)

    def sent(self, number: int) -> bool:
        """The program sends itself the signal. Return whether to suppress it, because its result is in the recording."""
        if name_of(number) not in self.names:
            return False
        if get_ident() == self._main and self._left and self._sent is None:
            call = self._left[0]
            if call.at == "sent" and call.number == number:
                self._schedule.wait(call.seq)
                self._left.popleft()
                self._send(call)
        return True

    # -- sending -------------------------------------------------------------------------------------------------------

    def _send(self, call: _Call) -> None:
        if not callable(signal.getsignal(call.number)):
            self._report.inexact(
                "other_signal", f"{call.name} was handled in the recording (entry {call.seq}), and has no handler here"
            )
            self._next()
            return
        self._sent = call
        if get_ident() == self._main:
            _kill(self._main, call.number)
            return
        with self._schedule.threads.lock:
            self._schedule.threads.waking(None)
            self._waited_for = True
        _kill(self._main, call.number)

    @property
    def under_way(self) -> bool:
        """Return whether a signal has been sent whose handler has yet to be called."""
        return self._sent is not None

    def taken(self, number: int) -> _Call | None:
        """The handler is called, in the main thread. Return the recorded call it belongs to, or ``None`` if the signal
        comes from elsewhere."""
        call = self._sent
        if call is None or call.number != number or get_ident() != self._main:
            return None
        self._sent = None
        threads = self._schedule.threads
        with threads.lock:
            if self._waited_for:
                self._waited_for = False
                threads.woken()
            main = threads.join()
            call.held = main.held
            main.moved()
        self._next()
        return call

    def returned(self, call: _Call) -> None:
        """The handler has returned, or raised; the interrupted code continues."""
        with self._schedule.threads.lock:
            self._schedule.threads.join().held = call.held
        self._schedule.look_again()

    def look(self) -> bool:
        """Check a sent signal from time to time; return whether one is pending.

        A signal that arrives just when the interpreter begins to wait does not prevent the wait. Then it is sent again.
        """
        call = self._sent
        if call is None or get_ident() == self._main:
            return False
        before, self._seen = self._seen, self._schedule.threads.seen_of(self._main)
        if self._seen is not None and self._seen == before and self._sent is call:
            self._too_many += 1
            _kill(self._main, call.number)
        return True

    def came(self, number: int) -> bool:
        """The signal came from outside the program. Return whether to call its handler."""
        if self._too_many:
            self._too_many -= 1
            return False
        if number == getattr(signal, "SIGCHLD", None):
            return False  # the end of a child process is reported where the recorded program noticed it
        self._report.inexact(
            "other_signal",
            f"{name_of(number)} came from outside, and its handler was called: the recording has no such call here",
        )
        return True

    def comes_again(self, number: int) -> bool:
        """Return whether the signal came while the main thread held the schedule's lock, so that it is sent again."""
        if not self._schedule.threads.lock._is_owned():
            return False
        start_new_thread(self._again, (number,))
        return True

    def _again(self, number: int) -> None:
        with self._schedule.threads.lock:
            pass
        _kill(self._main, number)
