"""Sleeps and deadlines of the run's own code: events of the run, written when they fire.

While recording they run on the real clock. In a replay nothing is scheduled there: a timer fires at its recorded place
among the other events, at once, and one that did not fire in the recording never does. What is armed inside a live step
(a tool's own back-off) is none of the run's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.base_events import BaseEventLoop
from asyncio.timeouts import Timeout
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from .._engine.gate import here
from .._engine.scope import Scope, current
from .._reality import repoint
from . import handover
from .blocking import patches as blocking
from .blocking import quiet_threads
from .exchange import FunctionExchange, Unsupported, genuine
from .patch import AttributePatch, Patch, Switch, when_imported

__all__ = ["activate", "deactivate"]

#: A delay computed from an instant and added to another is a little less than the instant meant (s).
_ROUNDING: Final = 1e-6
_made: Final[dict[tuple[int, str], Patch]] = {}
_switch: Final = Switch(lambda: _patches())


def activate() -> None:
    """Put the hooks in place; each call wants a :func:`deactivate`."""
    _switch.on()
    when_imported("uvloop", _switch.refresh)


def deactivate() -> list[str]:
    """One holder less; the last one restores everything. Returns what somebody else has patched since."""
    return _switch.off()


def scope_of_timers() -> Scope | None:
    """The scope in which a timer that is armed now is the run's own, or ``None``."""
    scope = current.get()
    if scope is None or scope.live or getattr(scope.session, "ended", False):
        return None
    return here()


def _patches() -> list[Patch]:
    patches = [
        _once(BaseEventLoop, "call_at", _call_at),
        _once(Timeout, "reschedule", _reschedule),
        _once(BaseEventLoop, "shutdown_default_executor", _outside),
        *(_once(owner, name, wrap) for owner, name, wrap in blocking(scope_of_timers)),
        _sleep_patch(),
        quiet_threads,
        *handover.patches(_once, scope_of_timers),
    ]
    uvloop = sys.modules.get("uvloop")
    if uvloop is not None and hasattr(uvloop, "Loop"):
        patches.append(_once(uvloop.Loop, "call_later", _call_later))
    return patches


def _once(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
    key = (id(owner), name)
    if key not in _made:
        _made[key] = AttributePatch(owner, name, wrap(getattr(owner, name)))
    return _made[key]


# -- event loops -----------------------------------------------------------------------------------------------------------


def _call_at(original: Any) -> Any:
    def call_at(self: Any, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        scope = scope_of_timers()
        if scope is None:
            return original(self, when, callback, *args, context=context)
        timer = scope.session.arm(scope, "asyncio.timer", when - self.time())
        if timer.live:
            return original(self, when, _fired, timer, self, when, callback, args, context=context)
        return _Held(self, when, callback, args, context, timer)

    call_at.__qualname__ = "BaseEventLoop.call_at"
    return call_at


def _outside(original: Any) -> Any:
    """What ``asyncio.run`` does at its end waits for the loop's own threads, with a deadline of its own from 3.12 on: not the run's."""

    async def shutdown_default_executor(self: Any, *args: Any, **options: Any) -> None:
        token = current.set(None)
        try:
            await original(self, *args, **options)
        finally:
            current.reset(token)

    shutdown_default_executor.__qualname__ = "BaseEventLoop.shutdown_default_executor"
    return shutdown_default_executor


def _call_later(original: Any) -> Any:
    def call_later(self: Any, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        scope = scope_of_timers()
        if scope is None:
            return original(self, delay, callback, *args, context=context)
        timer = scope.session.arm(scope, "asyncio.timer", delay)
        if timer.live:
            return original(
                self, delay, _fired, timer, self, self.time() + delay + _ROUNDING, callback, args, context=context
            )
        return _Held(self, self.time() + delay + _ROUNDING, callback, args, context, timer)

    call_later.__qualname__ = "Loop.call_later"
    return call_later


def _fired(timer: Any, loop: Any, when: float, callback: Any, args: tuple[Any, ...]) -> None:
    timer.fired()
    with _not_before(loop, when):
        callback(*args)


class _not_before:
    """Inside, ``loop.time()`` is ``when`` at least.

    Whoever looks whether the deadline has really passed (anyio does) must see that it has, in a replay and where a loop's
    clock is coarse: else it arms a timer for the rest.
    """

    __slots__ = ("_loop", "_when")

    def __init__(self, loop: Any, when: float) -> None:
        self._loop = loop
        self._when = when

    def __enter__(self) -> None:
        real, when = self._loop.time, self._when
        self._loop.time = lambda: max(real(), when)

    def __exit__(self, *_: object) -> None:
        del self._loop.time


class _Held(asyncio.TimerHandle):
    """A timer handle that is on no loop's clock: it runs when its recorded place has come."""

    def __init__(
        self, loop: Any, when: float, callback: Any, args: tuple[Any, ...], context: Context | None, timer: Any
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._timer = timer
        self._real: asyncio.TimerHandle | None = None
        timer.on_fire(self._fire)

    def cancel(self) -> None:
        if not self._cancelled:
            self._timer.cancel()
            if self._real is not None:
                self._real.cancel()
        asyncio.Handle.cancel(self)  # the loop does not know of it

    def _fire(self) -> None:
        if self._cancelled:
            return
        if self._timer.live:  # it is not in the log, and that has been followed to its end: it runs for real
            loop = self._loop  # type: ignore[attr-defined]
            self._real = _outside_the_run(loop, self._when, self._run_out)  # type: ignore[attr-defined]
            return
        with _not_before(self._loop, self._when):  # type: ignore[attr-defined]
            self._run()

    def _run_out(self) -> None:
        self._timer.fired()
        self._run()


def _outside_the_run(loop: Any, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
    """A timer of ours: armed by nobody of the run."""
    token = current.set(None)
    try:
        armed: asyncio.TimerHandle = loop.call_at(when, callback)
        return armed
    finally:
        current.reset(token)


def _reschedule(original: Any) -> Any:
    def reschedule(self: Any, when: float | None) -> None:
        if when is None or self._state.name != "ENTERED" or scope_of_timers() is None:
            return original(self, when)  # type: ignore[no-any-return]
        # Also when the deadline has passed already: that is for the recording to say, not for the clock of a replay.
        self._when = when
        if self._timeout_handler is not None:
            self._timeout_handler.cancel()
        self._timeout_handler = asyncio.get_running_loop().call_at(when, self._on_timeout)
        return None

    reschedule.__qualname__ = "Timeout.reschedule"
    return reschedule


# -- time.sleep ------------------------------------------------------------------------------------------------------------


def _sleep_patch() -> Patch:
    """In place where that works, so that a ``sleep`` imported by name is covered too; else the module's attribute."""
    key = (id(time), "sleep")
    if key not in _made:
        bare = time.sleep  # noqa: TID251
        try:
            real = genuine(bare)
            repoint("sleep", real)
            _made[key] = FunctionExchange(bare, lambda _proxy, seconds: _sleep(real, seconds))
        except (Unsupported, AttributeError):
            _made[key] = AttributePatch(time, "sleep", lambda seconds: _sleep(bare, seconds))
    return _made[key]


def _sleep(real: Callable[[Any], None], seconds: Any) -> None:
    scope = scope_of_timers()
    if scope is None or not _positive(seconds):
        return real(seconds)
    timer = scope.session.arm(scope, "time.sleep", seconds)
    if not timer.live:
        timer.wait()
    if timer.live:
        real(seconds)
        timer.fired()
    return None


def _positive(seconds: Any) -> bool:
    try:
        return bool(seconds > 0)
    except TypeError:  # the real one says what is wrong with it
        return False
