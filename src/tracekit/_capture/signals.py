"""Capture of signals: each call of a handler is an event of the run.

A replay has no signals but those that repeat these calls.

Timers that send signals (``signal.setitimer``, ``signal.alarm``) are not live in a replay, which is faster or slower
than the recording; what the replayed program sets is only remembered. Signals it sends itself are not sent. When the
recorded position of a call is reached, tracekit sends the signal to the main thread; see ``_runtime.signals``.
"""

from __future__ import annotations

import os
import signal
import threading
from _signal import getsignal as _found  # type: ignore[import-not-found]
from _signal import signal as _put
from collections.abc import Callable
from functools import partial
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .._lazy import NamedTuple
from .._reality import monotonic
from .._runtime.lane import ROOT, started
from .._runtime.process import process
from .._runtime.session import Scope, current, entered
from .._runtime.signals import (
    LOOP_SIGNAL,
    SIGNAL,
    at_next,
    interrupted,
    is_at_work,
    line_of,
    line_of_user,
    name_of,
    place_of,
    postponed,
    scope_of,
    waits,
)
from .._sources import is_tracekit
from ..errors import ReplayError
from .in_place import CodeExchange, FunctionExchange, Unsupported, genuine
from .leftovers import LeftHandler, WrappedHandler, collecting
from .patch import AttributePatch, ReversiblePatch, Switch
from .waits import scope_of_timers

if TYPE_CHECKING:
    from .._runtime.session import SignalHooks

__all__ = ["before_death", "called_in_loop", "hooks", "send"]

#: All valid signals, as numbers.
_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))

#: The signal of each timer, where the system has it.
_SIGNALS: Final[dict[int, int]] = (
    {
        signal.ITIMER_REAL: signal.SIGALRM,
        signal.ITIMER_VIRTUAL: signal.SIGVTALRM,
        signal.ITIMER_PROF: signal.SIGPROF,
    }
    if hasattr(signal, "setitimer")
    else {}
)


class _Alarm(NamedTuple):
    """A timer that a replay only remembers."""

    #: When it would fire, and its interval from then on (s).
    until: float
    interval: float


_remembered: Final[dict[int, _Alarm]] = {}


def _left(which: int) -> tuple[float, float]:
    """Return what ``getitimer`` returns for a timer that is only remembered."""
    alarm = _remembered.get(which)
    return (0.0, 0.0) if alarm is None else (max(alarm.until - monotonic(), 1e-6), alarm.interval)


def _of_replay() -> Scope | None:
    """Return the scope of the running code, if a replay answers it."""
    scope = scope_of_timers()
    return scope if scope is not None and not scope.session.recording and not scope.session.state.partial else None


def _setting(real: Callable[..., Any]) -> Callable[..., Any]:
    def setitimer(which: int, seconds: float, interval: float = 0.0, /) -> tuple[float, float]:
        if which not in _SIGNALS or _of_replay() is None:
            return real(which, seconds, interval)  # type: ignore[no-any-return]
        if seconds < 0 or interval < 0:
            return real(which, seconds, interval)  # type: ignore[no-any-return]  # says what is wrong with it
        found = _left(which)
        _remembered.pop(which, None)
        if seconds:
            _remembered[which] = _Alarm(monotonic() + seconds, interval)
        return found

    return setitimer


def _alarm(_proxy: object, seconds: int) -> int:
    left, _ = signal.setitimer(signal.ITIMER_REAL, int(seconds) if seconds > 0 else 0)
    return int(left) + (left > int(left))


def _asking(real: Callable[..., Any]) -> Callable[..., Any]:
    def getitimer(_proxy: object, which: int) -> Any:
        return _left(which) if which in _SIGNALS and _of_replay() is not None else real(which)

    return getitimer


# -- handlers ----------------------------------------------------------------------------------------------------------


class _Heard(WrappedHandler):
    """A handler whose calls are events of the interrupted run."""

    __slots__ = ()

    def __call__(self, signum: int, frame: Any) -> Any:
        try:
            return _called(signum, frame, self.handler)
        except BaseException as error:
            shown = error.__traceback__
            while shown is not None and is_tracekit(shown.tb_frame.f_code.co_filename):
                shown = shown.tb_next
            error.__traceback__ = shown
            raise


def _own(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Heard) else handler


#: The signals that the main thread is sending itself now.
_sending: Final[list[int]] = []


def _called(number: int, frame: FrameType | None, handler: Callable[..., Any]) -> Any:
    """Handle the interpreter's call of a handler, which has interrupted ``frame``."""
    if postponed(lambda: _called(number, _getframe(), handler)):
        return None
    scope = scope_of(frame)
    threads = None if scope is None else scope.session.threads
    ended = scope is not None and scope.session.state.ended
    at_work = threads is None and not ended and number not in _sending and is_at_work(frame, scope)
    # Whatever a finalizer raises, the interpreter drops.
    if at_work and at_next(frame, partial(_called_later, number, handler), unless=collecting.here):
        return None
    if scope is None or ended:
        _came_from_outside(number)
        return handler(number, frame)
    if threads is not None:
        return _called_in_replay(scope, threads.signals, number, lambda: handler(number, _of_program(frame)))
    if number in _sending:
        return _recorded(scope, number, "sent", None, lambda: handler(number, _of_program(frame)))
    at = "between" if at_work else place_of(frame, scope)
    line = line_of_user(frame) if at == "wait" else line_of(frame)
    return _recorded(scope, number, at, line, lambda: handler(number, frame))


def _called_later(number: int, handler: Callable[..., Any], frame: FrameType) -> None:
    """Call a handler late: tracekit was running when the signal came, and now the program's own code, ``frame``, goes
    on."""
    scope = scope_of(frame)
    if scope is None or scope.session.state.ended:
        _came_from_outside(number)
        handler(number, frame)
        return
    if scope.session.threads is not None:
        _called_in_replay(scope, scope.session.threads.signals, number, lambda: handler(number, frame))
        return
    at = "step" if scope.live else "wait" if waits(frame) else "after"
    line = line_of_user(frame) if at == "wait" else line_of(frame)
    _recorded(scope, number, at, line, lambda: handler(number, frame))


def _recorded(scope: Scope, number: int, at: str, line: str | None, call: Callable[[], Any]) -> Any:
    """Call a handler in a lane of its own, after writing where it was called."""
    name = name_of(number)
    own = Scope(scope.session, started(scope.lane.root, f"signal {name}"), ROOT)
    kind = LOOP_SIGNAL if at == "loop" else SIGNAL
    with entered(own, ends=True):
        about = {"at": at} if line is None else {"at": at, "line": line}
        scope.session.arm(own, f"{kind}:{name}", 0).fired(about)
        interrupted.append(scope)
        try:
            return call()
        finally:
            interrupted.remove(scope)


def _came_from_outside(number: int) -> None:
    """Note in each replay of this process that it is interrupted, if the signal is Ctrl-C, and not sent by the program
    itself."""
    if number != signal.SIGINT or number in _sending:
        return
    for session in process.sessions:
        session.report.interrupted()


def _called_in_replay(scope: Scope, calls: SignalHooks | None, number: int, call: Callable[[], Any]) -> Any:
    if calls is None:  # no calls are recorded: a signal that the program sends itself is real
        _came_from_outside(number)
        return call()
    if calls.comes_again(number):
        return None
    recorded = calls.taken(number)
    if recorded is None:
        if not calls.came(number):
            return None
        _came_from_outside(number)
        return call()
    with entered(Scope(scope.session, started(scope.lane.root, f"signal {name_of(number)}"), ROOT), ends=True):
        try:
            return call()
        except ReplayError:
            raise
        except BaseException:
            if recorded.at != "step":
                raise
            return None  # the outcome of the step includes it
        finally:
            calls.returned(recorded)


def called_in_loop(number: int, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Handle an event loop's call of the callback that the program registered for this signal."""
    scope = current.get()
    if scope is None or scope.session.state.ended:
        _came_from_outside(number)
        callback(*args)
        return
    threads = scope.session.threads
    if threads is None:
        _recorded(scope, number, "loop", None, lambda: callback(*args))
    else:
        _called_in_replay(scope, threads.signals, number, lambda: callback(*args))


def _of_program(frame: FrameType | None) -> FrameType | None:
    """Return the interrupted frame of the program, above the frames of tracekit that caused the interruption."""
    while frame is not None and is_tracekit(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


#: The modules whose handlers event loops install for the signals that they watch themselves.
_OF_LOOPS: Final = ("asyncio.unix_events", "uvloop", "uvloop.loop", "uvloop._noop")


def _heard(handler: Any) -> Any:
    if not callable(handler) or isinstance(handler, (signal.Handlers, _Heard)):
        return handler
    own = handler.handler if isinstance(handler, LeftHandler) else handler
    return handler if getattr(own, "__module__", None) in _OF_LOOPS else _Heard(handler)


def _handling(original: Any) -> Any:
    def set_one(_exchange: object, signalnum: Any, handler: Any) -> Any:
        return _own(original(signalnum, _heard(handler)))

    return set_one


# -- what the program sends itself ---------------------------------------------------------------------------------------


def send(number: int, real: Callable[[], Any]) -> Any:
    """Handle a signal that the program sends to its own process: real in a recording. In a replay the handler is called
    where it was recorded."""
    scope = current.get()
    if number:
        before_death(number)
    if scope is None or not number or scope.session.state.ended:
        return real()
    threads = scope.session.threads
    calls = None if threads is None else threads.signals
    if calls is not None and calls.sent(number):
        return None
    if threading.current_thread() is not threading.main_thread():
        return real()
    _sending.append(number)
    try:
        result = real()
        _now()
        return result
    finally:
        _sending.remove(number)


#: The signals that by default don't end a process.
_HARMLESS: Final = frozenset(
    getattr(signal, name, 0)
    for name in ["SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH"]
)


def before_death(number: int) -> None:
    """Tell the role of this process, if this signal, which the program is about to send to it, ends it."""
    if number in _HARMLESS or number not in _NUMBERS or _found(number) not in (signal.SIG_DFL, None):
        return
    if number != getattr(signal, "SIGKILL", None) and number in _blocked():
        return
    process.role.before_death(number)


def _blocked() -> set[int]:
    return {*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))} if hasattr(signal, "pthread_sigmask") else set()


def _now() -> None:
    """Do nothing: pending signals are handled at the latest when a function is called."""


def _raise_signal(real: Callable[[int], Any]) -> Callable[..., Any]:
    return lambda _proxy, number: send(int(number), lambda: real(number))


def _pthread_kill(real: Callable[[int, int], Any]) -> Callable[..., Any]:
    def pthread_kill(thread_id: int, signalnum: int, /) -> Any:
        return send(int(signalnum), lambda: real(thread_id, signalnum))

    return pthread_kill


def _abort(real: Callable[[], Any]) -> Callable[..., Any]:
    def abort(_proxy: object) -> Any:
        process.role.before_death(signal.SIGABRT)
        return real()

    return abort


def _pause(real: Callable[[], Any]) -> Callable[..., Any]:
    def pause(_proxy: object) -> Any:
        return real()  # called from here, so that it is recognised as waiting

    return pause


def _patches() -> list[ReversiblePatch]:
    found: list[ReversiblePatch] = [
        CodeExchange(signal.signal, _handling),  # type: ignore[arg-type]
        CodeExchange(signal.getsignal, lambda original: lambda _, number: _own(original(number))),  # type: ignore[arg-type]
        *_exchanged(signal, "raise_signal", _raise_signal),
        *_exchanged(signal, "pause", _pause),
        *_exchanged(os, "abort", _abort),
    ]
    if hasattr(signal, "pthread_kill"):
        found.append(AttributePatch(signal, "pthread_kill", _pthread_kill(signal.pthread_kill)))
    if not _SIGNALS:
        return found
    found.append(AttributePatch(signal, "setitimer", _setting(signal.setitimer)))
    try:
        found.append(FunctionExchange(signal.alarm, _alarm))
        found.append(FunctionExchange(signal.getitimer, _asking(genuine(signal.getitimer))))
    except Unsupported:
        ask = _asking(signal.getitimer)
        found.append(AttributePatch(signal, "alarm", lambda seconds: _alarm(None, seconds)))
        found.append(AttributePatch(signal, "getitimer", lambda which: ask(None, which)))
    return found


def _exchanged(module: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> list[ReversiblePatch]:
    """Return the patch of a function: in place if possible, else of the module's attribute."""
    function = getattr(module, name, None)
    if function is None:
        return []
    try:
        return [FunctionExchange(function, make(genuine(function)))]
    except Unsupported:
        hook = make(function)
        return [AttributePatch(module, name, lambda *args: hook(None, *args))]


class _EarlierHandlers:
    """The handlers that the program has installed before the first run: their calls are events, too.

    At the end of the last run, those that it leaves installed are its own again.
    """

    target = "the program's signal handlers"

    def apply(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                handler = _found(number)
                if callable(handler) and (heard := _heard(handler)) is not handler:
                    _put(number, heard)

    def restore(self) -> bool:
        _remembered.clear()
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                handler = _found(number)
                if isinstance(handler, _Heard):
                    _put(number, handler.handler)
        return True


hooks: Final = Switch(lambda: [*_patches(), _EarlierHandlers()])
