"""Timers that come as signals (``signal.setitimer``, ``signal.alarm``): none is live in a replay, and a recording says which has come.

A replay is faster than the recording, or slower, and a signal that nobody handles ends the process. So what the replayed program sets is
only remembered. Where such a signal has ended a call that was recorded, by an exception of its handler, the call's outcome has that.
What else a handler did when one came is not repeated.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .._reality import monotonic
from .._runtime.callsite import caller
from .._runtime.session import Scope, current
from .exchange import CodeExchange, FunctionExchange, Unsupported, genuine
from .patch import AttributePatch, Patch, Switch
from .timers import scope_of_timers

__all__ = ["activate", "deactivate"]

#: The signal of each timer, where the system has them.
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
    """A timer that the program of a run has set."""

    scope: Scope
    where: str | None
    #: Of a replay: when it would come, and how often then (s).
    until: float = 0.0
    interval: float = 0.0


#: By timer: what is set in a recording, and what a replay only remembers.
_set: Final[dict[int, _Alarm]] = {}
_remembered: Final[dict[int, _Alarm]] = {}


def _left(which: int) -> tuple[float, float]:
    """What ``getitimer`` says of a timer that is only remembered."""
    alarm = _remembered.get(which)
    return (0.0, 0.0) if alarm is None else (max(alarm.until - monotonic(), 1e-6), alarm.interval)


def _of_replay() -> Scope | None:
    """The scope of the running code, where a replay answers it."""
    scope = scope_of_timers()
    return scope if scope is not None and not scope.session.recording and not scope.session.state.partial else None


def _setting(real: Callable[..., Any]) -> Callable[..., Any]:
    def setitimer(which: int, seconds: float, interval: float = 0.0, /) -> tuple[float, float]:
        scope = scope_of_timers()
        if scope is None or which not in _SIGNALS:
            return real(which, seconds, interval)  # type: ignore[no-any-return]
        if _of_replay() is None:
            before = _set.pop(which, None)
            if seconds:
                _set[which] = _Alarm(scope, caller())
            try:
                return real(which, seconds, interval)  # type: ignore[no-any-return]
            except BaseException:
                _set.pop(which, None)
                if before is not None:
                    _set[which] = before
                raise
        if seconds < 0 or interval < 0:
            return real(which, seconds, interval)  # type: ignore[no-any-return]  # says what is wrong with it
        found = _left(which)
        _remembered.pop(which, None)
        if seconds:
            _remembered[which] = _Alarm(scope, None, monotonic() + seconds, interval)
        return found

    return setitimer


def _alarm(_proxy: object, seconds: int) -> int:
    left, _ = signal.setitimer(signal.ITIMER_REAL, int(seconds) if seconds > 0 else 0)
    return int(left) + (left > int(left))


def _asking(real: Callable[..., Any]) -> Callable[..., Any]:
    def getitimer(_proxy: object, which: int) -> Any:
        return _left(which) if which in _SIGNALS and _of_replay() is not None else real(which)

    return getitimer


class _Heard:
    """A handler of such a signal, equal to the program's own."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler: Final = handler

    def __call__(self, signum: int, frame: Any) -> Any:
        alarm = next((_set[which] for which, number in _SIGNALS.items() if number == signum and which in _set), None)
        if alarm is None:
            return self.handler(signum, frame)
        scope = current.get()
        inside, returned = scope is not None and scope.live, False
        try:
            result = self.handler(signum, frame)
            returned = True
        finally:
            state = alarm.scope.session.state
            if not state.ended and (returned or not inside):
                what = "the timer" if alarm.where is None else f"the timer that {alarm.where} set"
                name = signal.Signals(signum).name
                alarm.scope.session.report.warn(
                    f"{what} has come, as {name}: a replay sets no such timer, and does not call its handler"
                )
        return result

    def __eq__(self, other: object) -> bool:
        return self.handler == (other.handler if isinstance(other, _Heard) else other)

    def __hash__(self) -> int:
        return hash(self.handler)


def _own(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Heard) else handler


def _handling(original: Any) -> Any:
    def set_one(_exchange: object, signalnum: Any, handler: Any) -> Any:
        if signalnum in _SIGNALS.values() and current.get() is not None and callable(handler):
            handler = _Heard(handler) if not isinstance(handler, (signal.Handlers, _Heard)) else handler
        return _own(original(signalnum, handler))

    return set_one


def _patches() -> list[Patch]:
    if not _SIGNALS:
        return []
    found: list[Patch] = [
        CodeExchange(signal.signal, _handling),  # type: ignore[arg-type]
        CodeExchange(signal.getsignal, lambda original: lambda _, number: _own(original(number))),  # type: ignore[arg-type]
        AttributePatch(signal, "setitimer", _setting(signal.setitimer)),
    ]
    try:
        found.append(FunctionExchange(signal.alarm, _alarm))
        found.append(FunctionExchange(signal.getitimer, _asking(genuine(signal.getitimer))))
    except Unsupported:
        ask = _asking(signal.getitimer)
        found.append(AttributePatch(signal, "alarm", lambda seconds: _alarm(None, seconds)))
        found.append(AttributePatch(signal, "getitimer", lambda which: ask(None, which)))
    return found


_switch: Final = Switch(_patches)
activate = _switch.activate


def deactivate() -> list[str]:
    """Take the hooks away; handlers that the program leaves are its own again."""
    failed = _switch.deactivate()
    if not _switch.active:
        _set.clear()
        _remembered.clear()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS.values():
                handler = signal.getsignal(number)
                if isinstance(handler, _Heard):
                    signal.signal(number, handler.handler)
    return failed
