"""When an event loop has nothing left to run.

The stdlib's loops keep what is ready in a queue that can be looked at. Others (uvloop) can't be looked into: there, what
is asked of ``call_soon`` is counted, and a few quiet rounds in a row count as idle.
"""

from __future__ import annotations

from _thread import get_ident
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

__all__ = ["LoopWatch"]

#: After so many rounds a loop that is never idle (somebody polls with ``sleep(0)``) counts as idle all the same.
_PATIENCE: Final = 1000


class LoopWatch:
    """Calls ``idle`` in the loop's thread when the loop has nothing to run but to wait; once for each ``start``."""

    __slots__ = (
        "_calls",
        "_calm",
        "_context",
        "_idle",
        "_own",
        "_ready",
        "_rounds",
        "loop",
        "running",
        "spare",
        "thread",
    )

    def __init__(self, loop: AbstractEventLoop, idle: Callable[[LoopWatch], None]) -> None:
        self.loop: Final = loop
        self.thread: Final = get_ident()
        self._idle: Final = idle
        #: Of our own callbacks: no run in it. Each loop has its own, for two threads can't be in one context.
        self._context: Final = Context()
        self._ready: Final[Any] = getattr(loop, "_ready", None)
        self.running = False
        #: How many handles of ours, which do nothing, may be ready in an idle loop.
        self.spare: Callable[[], int] = int
        self._calm = 0
        self._rounds = 0
        self._calls = 0
        self._own = 0
        if self._ready is None:
            self._count_calls()

    def start(self) -> None:
        """From the loop's thread: look from now on, until it is idle."""
        if not self.running:
            self.running = True
            self._calm = self._rounds = 0
            self._again()

    def _again(self) -> None:
        self._own = self._calls + 1
        self.loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        self._rounds += 1
        if self._rounds < _PATIENCE and self.busy:
            self._calm = 0
            self._again()
        elif self._calm < (1 if self._ready is not None else 3):
            self._calm += 1  # one more round, in which the loop asks the selector
            self._again()
        else:
            self.running = False
            self._idle(self)

    @property
    def busy(self) -> bool:
        """Whether the loop has something to run."""
        if self._ready is not None:
            return len(self._ready) > self.spare()
        return self._calls != self._own

    @property
    def sealed(self) -> bool:
        """Whether nothing from outside can wake the idle loop: no timer of others, no file but its own pipe."""
        loop: Any = self.loop
        try:
            if any(not handle._cancelled for handle in loop._scheduled):
                return False
            return len(loop._selector.get_map()) <= 1
        except AttributeError:
            return False

    def _count_calls(self) -> None:
        loop: Any = self.loop
        original = loop.call_soon

        def call_soon(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return original(*args, **kwargs)

        loop.call_soon = call_soon

    def close(self) -> None:
        if self._ready is None:
            vars(self.loop).pop("call_soon", None)
