"""A clock for tests that advances by one step at each read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from .. import _reality
from .._capture import clock as capture

__all__ = ["TickingClock", "ticking_clock"]


class TickingClock:
    """A thread-safe clock that advances ``step`` seconds at each read, beginning at ``start`` (seconds since the epoch)."""

    def __init__(self, start: float = 1_700_000_000.0, step: float = 0.001) -> None:
        self._lock = threading.Lock()
        self._step = round(step * 1e9)
        self._now = round(start * 1e9) - self._step

    def time_ns(self) -> int:
        """The next instant, in nanoseconds since the epoch."""
        with self._lock:
            self._now += self._step
            return self._now

    def time(self) -> float:
        """The next instant, in seconds since the epoch."""
        return self.time_ns() / 1e9

    def advance(self, seconds: float) -> None:
        """Let time pass between two reads."""
        with self._lock:
            self._now += round(seconds * 1e9)


@contextmanager
def ticking_clock(start: float = 1_700_000_000.0, step: float = 0.001) -> Iterator[TickingClock]:
    """Date entries and run ids by a ticking clock inside the block, so that a program writes the same trace each time.

    Only tracekit's own clock is replaced. The program's clock readings are recorded as usual: pass it ``clock.time``, or use a
    library that fakes the clock (freezegun, time-machine), which works with tracekit.
    """
    clock = TickingClock(start, step)
    # The first capture in a process replaces tracekit's clock by an unpatched copy: let that happen first.
    capture.activate()
    capture.deactivate()
    before = cast("partial[int]", _reality.time_ns).func
    _reality.repoint("time_ns", clock.time_ns)
    try:
        yield clock
    finally:
        _reality.repoint("time_ns", before)
