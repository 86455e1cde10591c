"""Has a replay call signal handlers where the recorded run called them; ``signals`` says how that place is found."""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import get_ident, start_new_thread
from collections import deque
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .._reality import pthread_kill
from .signals import FrameWatch, line_of, line_of_user, name_of, number_of

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

    @property
    def by_loop(self) -> bool:
        """Whether an event loop called it, which the interpreter tells of a signal through a pipe."""
        return self.at == "loop" and self.line is None

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
        #: The call whose signal has been sent, and whether others wait for it; and the same call if another thread than the
        #: main one has sent it, so that it may have to be sent again.
        self._sent: _Call | None = None
        self._waited_for = False
        self._unheard: _Call | None = None
        #: The last seen state of the main thread.
        self._seen: object = None
        #: The signal that comes now only if it was sent more than once, or 0.
        self._surplus = 0

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
            where = partial(self._waits_at, call.line) if call.at == "wait" else None
            self._ticket = self._schedule.callback(
                call.seq, lambda: self._due(call), anywhere=True, at_rest=True, where=where, by_itself=call.at == "loop"
            )

    def _waits_at(self, line: str | None) -> bool:
        """Return whether the main thread waits at this line of the program: it may wait for several things in turn, each of
        which ends by itself."""
        return line_of_user(sys._current_frames().get(self._main)) == line

    def _due(self, call: _Call) -> None:
        """``call`` is next: called in whatever thread, while the main thread waits."""
        self._ticket = None
        if not (self._schedule.has_failed or self._schedule.is_closed) and self._claims(call):
            self._send(call, woken=True)

    def _claims(self, call: _Call) -> bool:
        """Return whether the handler of ``call`` has yet to be called; the caller does that. Two threads may notice at once
        that it is time."""
        with self._schedule.threads.lock:
            found = bool(self._left) and self._left[0] is call
            if found:
                self._left.popleft()
        return found

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

    def begins(self, seq: int) -> None:
        """The program begins the step that was recorded at ``seq`` in this thread. A call that interrupted a wait before it
        comes now at the latest: the wait ended by itself, without an event."""
        self.comes_to(seq)
        if get_ident() == self._main and self._left and self._sent is None:
            call = self._left[0]
            if call.at == "wait" and call.seq < seq:
                self._remark_late(call)
                self._drop_ticket()
                self._schedule.wait(call.seq)
                if self._claims(call):
                    self._send(call)

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
            self._remark_late(call)
            self._take(call)

    def _remark_late(self, call: _Call) -> None:
        self._report.remark(
            "signal",
            f"the handler of {call.name} (entry {call.seq}) was called later than in the recording: not at {call.line}",
            step=call.seq,
        )

    def _take(self, call: _Call) -> None:
        """Call the handler here and now."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        self._drop_ticket()
        if self._claims(call):
            self._schedule.take(call.seq)
            self._send(call)

    def _drop_ticket(self) -> None:
        if self._ticket is not None:
            self._schedule.cancel(self._ticket)
            self._ticket = None

    def sent(self, number: int) -> bool:
        """The program sends itself the signal. Return whether to suppress it, because its result is in the recording."""
        if name_of(number) not in self.names:
            return False
        if get_ident() == self._main and self._left and self._sent is None:
            call = self._left[0]
            if call.at == "sent" and call.number == number:
                self._schedule.wait(call.seq)
                if self._claims(call):
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
            if not here:
                self._unheard = call
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
        try:
            self._take_surplus(number)
        finally:
            self._schedule.take(call.seq)
            self._next()
        return call

    def _take_surplus(self, number: int) -> None:
        """A signal may have been sent more than once. Nobody sends it any more (see ``look``), so that what has been sent comes
        here, and not when the program, or whatever follows the replay, goes on."""
        self._surplus = number
        try:
            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a system call, after which pending handlers are called
        finally:
            self._surplus = 0

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
        threads = self._schedule.threads
        before, self._seen = self._seen, threads.seen_of(self._main)
        if self._seen is not None and self._seen == before and self._unheard is call and not call.by_loop:
            self._send_again(call.number, call)
        return True

    def _send_again(self, number: int, call: _Call | None) -> None:
        """Send a signal again; that of ``call`` only if its handler has yet to be called, so that none is left when it is."""
        with self._schedule.threads.lock:
            if call is None or self._sent is call:
                _kill(self._main, number)

    def came(self, number: int) -> bool:
        """The signal came from outside the program. Return whether to call its handler."""
        if number == self._surplus:
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
        call = self._sent
        start_new_thread(self._send_again, (number, call if call is not None and call.number == number else None))
        return True
