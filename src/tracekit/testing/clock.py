"""A clock that goes on by one step a read, and stands still in between."""

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
    """Each read is ``step`` seconds after the one before; the first is ``start`` (seconds since the epoch). Any thread may read."""

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

    It is tracekit's own clock that is exchanged. What the program reads is recorded as ever: hand it ``clock.time``, or use a
    library that fakes the clock (freezegun, time-machine), below which tracekit works.
    """
    clock = TickingClock(start, step)
    # The first capture of a process points tracekit's clock to a copy that is out of its own reach: let that be done.
    capture.activate()
    capture.deactivate()
    before = cast("partial[int]", _reality.time_ns).func
    _reality.repoint("time_ns", clock.time_ns)
    try:
        yield clock
    finally:
        _reality.repoint("time_ns", before)
