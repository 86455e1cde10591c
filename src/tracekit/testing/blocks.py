"""Blocks for tests: in a store of its own, with a clock that ticks, and with nothing over a network or live."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from .. import _reality
from .._capture import clock as capture
from .._capture.guard import NoNetwork
from .._journal.store import Store
from .._runs.block import strings
from .._runtime.callsite import caller
from .._runtime.process import process
from ..errors import LiveCallBlockedError

__all__ = ["TickingClock", "no_network", "nothing_live", "temporary_store", "ticking_clock"]

#: A file system in memory, where the system has one: a sync costs nothing there.
_MEMORY = "/dev/shm"


@contextmanager
def temporary_store(*, memory: bool = True) -> Iterator[Store]:
    """A new store that ``record`` and ``replay`` use inside the block (``TRACEKIT_DIR``), removed at its end.

    It lies in memory where the system has a file system for that, unless ``memory`` is false. ``store.root`` is its directory.

    Examples:
        >>> from tracekit import record
        >>> from tracekit.testing import temporary_store
        >>> with temporary_store() as store:
        ...     with record("test"):
        ...         pass
        ...     [run.name for run in store.list()]
        ['test']
    """
    place = _MEMORY if memory and os.path.isdir(_MEMORY) and os.access(_MEMORY, os.W_OK) else None
    directory = tempfile.mkdtemp(prefix="tracekit-", dir=place)
    before = os.environ.get("TRACEKIT_DIR")
    os.environ["TRACEKIT_DIR"] = os.path.join(directory, ".tracekit")
    try:
        yield Store()
    finally:
        if before is None:
            os.environ.pop("TRACEKIT_DIR", None)
        else:
            os.environ["TRACEKIT_DIR"] = before
        shutil.rmtree(directory, ignore_errors=True)


# -- the clock ---------------------------------------------------------------------------------------------------------
#
# A clock for tests that advances by one step at each read.


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


# -- what is not live --------------------------------------------------------------------------------------------------
#
# Blocks in which nothing goes over a network, and in which nothing is live.


@contextmanager
def no_network(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """Inside the block no thread of the process connects, looks up a name or sends: that raises ``LiveCallBlockedError``.

    No ``except Exception`` catches it. ``allow_hosts`` (``"localhost:5432"``) lets a server of the test's own be reached. Processes, files
    and listening are free. In a replay that is so anyway.
    """
    with NoNetwork(strings("allow_hosts", allow_hosts)):
        yield


@contextmanager
def nothing_live(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """As ``no_network``, and no traced tool and no model call is made outside a run either: what follows a replay in its process.

    Each raises ``LiveCallBlockedError``, which no ``except Exception`` catches.
    """
    with no_network(allow_hosts=allow_hosts):
        process.refuse_outside(_refuse)
        try:
            yield
        finally:
            process.allow_outside(_refuse)


def _refuse(family: str, name: str) -> None:
    raise LiveCallBlockedError(
        f"{family} {name!r} was called after the end of a replay, where it would be live; it was not executed",
        location=caller(),
        operation=f"{family} {name}",
        next_action="call it inside the run; or, where it cleans up after a recording, only then (`if tracekit_run.recording:`)",
    )
