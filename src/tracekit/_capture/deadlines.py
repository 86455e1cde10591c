"""A limit on how long a call may take: coroutines are interrupted, functions are no longer waited for.

A thread can't be stopped from outside. So a function with a limit runs in a thread of its own, and goes on there when its
time is over: what it comes to is dropped, and no effect of it begins any more (see ``_engine.effects``).
"""

from __future__ import annotations

import asyncio
import threading
from _thread import allocate_lock
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, Final

from .._engine.lanes import NOBODY, Lane, started
from .._engine.scope import Scope, current
from .launch import Entered, name_of, parent_lane

__all__ = ["Overdue", "Work", "in_time", "in_time_async"]


class Overdue(Exception):
    """The time is over. ``goes_on`` says whether the call does."""

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__("the time is over")
        self.goes_on: Final = goes_on


class Work:
    """One call in a thread of its own and a copy of this context. Inside a run its lane is one that the step of ``body`` starts."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], body: Scope | None
    ) -> None:
        call: Callable[..., Any] = function
        self.lane: Lane | None = None
        if body is not None:
            self.lane = started(parent_lane(body), name_of(function), body.live)
            call = Entered(function, body.in_lane(self.lane))
        context = copy_context()
        self._call: Final[Callable[[], Any]] = lambda: context.run(call, *args, **kwargs)
        self._name: Final = name_of(function)
        self._over: Callable[[], object] = lambda: None
        self._result: Any = None
        self._error: BaseException | None = None
        self._guard: Final = allocate_lock()
        #: Whether the call has come to its end.
        self.ended = False
        self._late = False
        self._gate: Final = allocate_lock()
        self._gate.acquire()

    def start(self, over: Callable[[], object]) -> None:
        self._over = over
        thread = threading.Thread(target=self._run, name=f"tracekit-{self._name}", daemon=True)
        Context().run(thread.start)  # a thread of ours, not of the run's

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        with self._guard:
            self.ended, late = True, self._late
        self._gate.release()
        if late:
            self._over()

    def leave(self) -> bool:
        """Nobody waits any longer; false if it has just ended."""
        with self._guard:
            self._late = not self.ended
            return self._late

    def wait(self, seconds: float) -> Any:
        try:
            in_time = self._gate.acquire(timeout=seconds)
        except BaseException:  # Ctrl-C
            self.leave()
            raise
        if not in_time and self.leave():
            raise Overdue(goes_on=True)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        return self._result


def in_time(work: Work, seconds: float, over: Callable[[], object]) -> Any:
    """What ``work`` comes to in ``seconds`` at most; else ``Overdue``. ``over`` is called when work that was given up ends."""
    work.start(over)
    try:
        return work.wait(seconds)
    except Overdue:
        if work.lane is not None:
            work.lane.owner = NOBODY  # the run does not wait for it at its end
        raise


async def in_time_async(made: Awaitable[Any], seconds: float) -> Any:
    """Await ``made`` for ``seconds`` at most, then cancel what it does; ``Overdue`` where that ended it.

    A cancellation that is swallowed makes no success of it: what ``made`` returns after its time was over is dropped.
    """
    limit = asyncio.timeout(seconds)
    token = current.set(None)  # this deadline is none of the run's own
    try:
        await limit.__aenter__()
    finally:
        current.reset(token)
    try:
        result = await made
    except BaseException as error:
        try:
            await limit.__aexit__(type(error), error, error.__traceback__)
        except TimeoutError:
            raise Overdue(goes_on=False) from error
        raise
    await limit.__aexit__(None, None, None)
    if limit.expired():
        raise Overdue(goes_on=False)
    return result
