"""Has a replay call signal handlers where the recorded run called them; ``signals`` says how that place is found."""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import get_ident, start_new_thread
from collections import deque
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .._reality import pthread_kill
from .signals import FrameWatch, line_of, name_of, number_of

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .verdict import Report

__all__ = ["SignalCalls"]

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
        self._watch: FrameWatch | None = None
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
            # If a loop calls the handler, it has come only then: what the loop holds for it stays where it is until then.
            self._ticket = self._schedule.callback(
                call.seq, lambda: self._due(call), anywhere=True, at_rest=True, by_itself=call.at == "loop"
            )

    def _due(self, call: _Call) -> None:
        """``call`` is next: called in whatever thread, while the main thread waits."""
        self._ticket = None
        if self._schedule.has_failed or self._schedule.is_closed or not self._left or self._left[0] is not call:
            return
        self._left.popleft()
        self._send(call, woken=True)

    def passed(self) -> None:
        """Something recorded has happened in this thread: a handler that was called in the code that follows may be
        called now."""
        if self._watch is not None or self._sent is not None or get_ident() != self._main or not self._left:
            return
        call = self._left[0]
        if call.at not in _AT_LINES or not self._schedule.is_next(call.seq):
            return
        self._watch = FrameWatch(call.is_at, lambda _: self._at_line(call), call.is_in)
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

    def _send(self, call: _Call, *, woken: bool = False) -> None:
        """Send the signal of ``call``. ``woken``: the caller counts as being woken."""
        if not callable(signal.getsignal(call.number)):
            self._report.inexact(
                "other_signal", f"{call.name} was handled in the recording (entry {call.seq}), and has no handler here"
            )
            self._schedule.take(call.seq)
            self._next()
            return
        threads = self._schedule.threads
        here = get_ident() == self._main
        with threads.lock:  # without a gap: from now on the main thread is interrupted, whatever it waits for
            self._sent = call
            if not here:
                threads.waking(None)
                self._waited_for = True
            elif woken:
                threads.woken()
        try:
            _kill(self._main, call.number)
        finally:
            if here and woken:
                with threads.lock:
                    threads.waking(None)

    @property
    def under_way(self) -> bool:
        """Return whether a signal has been sent whose handler has yet to be called: the main thread goes on, whatever it
        waits for."""
        return self._sent is not None

    def taken(self, number: int) -> _Call | None:
        """The handler is called, in the main thread. Return the recorded call it belongs to, or ``None`` if the signal
        comes from elsewhere."""
        call = self._sent
        if call is None or call.number != number or get_ident() != self._main:
            return None
        threads = self._schedule.threads
        with threads.lock:
            self._sent = None
            if self._waited_for:
                self._waited_for = False
                threads.woken()
            main = threads.join()
            call.held = main.held
            main.moved()
        self._schedule.take(call.seq)
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
        if number == signal.SIGINT:
            return True  # it interrupts the replay
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
