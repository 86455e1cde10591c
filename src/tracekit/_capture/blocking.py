"""Threads that wait with a time limit: conditions and what stands on them, and ``Thread.join``.

``Event``, ``Queue``, ``Semaphore``, ``Barrier`` and ``Future`` all wait on a ``Condition``, in a loop that computes the
time left. When a limit fires at once in a replay, the clock that they compute with is put forward in that thread, so that
they see it passed.
"""

from __future__ import annotations

import queue
import threading
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from concurrent.futures import _base
from types import SimpleNamespace
from typing import Any, Final

from .._engine.scope import Scope
from .._reality import monotonic_ns
from ..errors import ReplayError
from .patch import AttributePatch

__all__ = ["patches", "quiet_threads"]

_ahead: Final = threading.local()
_Scope = Callable[[], "Scope | None"]


def patches(scope_of_timers: _Scope) -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Owner, name and wrapper of each place."""
    # ``concurrent.futures`` reads the clock through its module; no other name of that is used there.
    clock = SimpleNamespace(**{**vars(time), "monotonic": _now})
    return [
        (threading.Condition, "wait", lambda original: _wait(original, scope_of_timers)),
        (threading.Thread, "join", lambda original: _join(original, scope_of_timers)),
        (threading, "_time", lambda _: _now),
        (queue, "time", lambda _: _now),
        (_base, "time", lambda _: clock),
    ]


def _excepthook(args: Any) -> None:
    """A thread that ends because the replay has failed prints nothing: the end of the replay raises that failure."""
    if not (isinstance(args.exc_value, ReplayError) and args.exc_value.run_id is not None):
        found = quiet_threads.original
        (found if callable(found) else threading.__excepthook__)(args)


#: Whatever hook is in place when it is applied is called for everything else.
quiet_threads: Final = AttributePatch(threading, "excepthook", _excepthook)


def _now() -> float:
    """The monotonic clock (s) as far as it is put forward in this thread."""
    return monotonic_ns() / 1e9 + getattr(_ahead, "by", 0.0)


def _put_forward(to: float) -> None:
    left = to - _now()
    if left > 0:
        _ahead.by = getattr(_ahead, "by", 0.0) + left


def _wait(original: Any, scope_of_timers: _Scope) -> Any:
    def wait(self: Any, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0:
            return original(self, timeout)  # type: ignore[no-any-return]
        scope = scope_of_timers()
        if scope is None:
            return original(self, timeout)  # type: ignore[no-any-return]
        if timeout is None:
            threads = scope.session.threads
            return original(self) if threads is None else _wait_in_a_gate(self, threads.wait_in)
        until = _now() + timeout
        timer = scope.session.arm(scope, "threading.wait", timeout)
        notified = False if timer.live else _wait_in_a_gate(self, lambda gate: _hold(gate, timer))
        if not notified and timer.live:
            notified = original(self, timeout)
            if not notified:
                timer.fired()
        if not notified:
            # Else a limit that ran out a little early would be armed again, for the rest.
            _put_forward(until)
        return notified

    wait.__qualname__ = "Condition.wait"
    return wait


def _wait_in_a_gate(condition: Any, hold: Callable[[Any], object]) -> bool:
    """Wait until notified, or until ``hold``, which waits for the lock that it is given, returns without. Whether it was notified."""
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = allocate_lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    notified = True
    try:
        hold(waiter)
    finally:
        condition._acquire_restore(saved)
        if waiter in condition._waiters:  # nobody has notified it
            condition._waiters.remove(waiter)
            notified = False
    return notified


def _hold(gate: Any, timer: Any) -> None:
    """Block until somebody releases ``gate``, the timer's fire being one of them."""

    def fire() -> None:
        try:
            gate.release()
        except RuntimeError:  # notified at the same moment
            pass

    timer.on_fire(fire, anywhere=True)
    try:
        gate.acquire()
    finally:
        timer.cancel()


def _join(original: Any, scope_of_timers: _Scope) -> Any:
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        if timeout is None or timeout <= 0:
            return original(self, timeout)  # type: ignore[no-any-return]
        scope = scope_of_timers()
        if scope is None:
            return original(self, timeout)  # type: ignore[no-any-return]
        original(self, 0)  # wrong uses fail here
        timer = scope.session.arm(scope, "threading.join", timeout)
        if not timer.live and self.is_alive():
            ended = allocate_lock()
            ended.acquire()
            start_new_thread(_tell, (original, self, ended))
            _hold(ended, timer)
        if timer.live:
            original(self, timeout)
            if self.is_alive():
                timer.fired()
        return None

    join.__qualname__ = "Thread.join"
    return join


def _tell(join: Any, thread: threading.Thread, ended: Any) -> None:
    join(thread)
    try:
        ended.release()
    except RuntimeError:  # the time-out came first
        pass
