"""Context managers for tests: a temporary store, a deterministic clock, blocks without network or live calls."""

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
from .._runtime.callsite import not_made
from .._runtime.process import process

__all__ = ["TickingClock", "no_network", "nothing_live", "temporary_store", "ticking_clock"]

#: A file system in memory (Linux), where syncing a file costs nothing.
_MEMORY = "/dev/shm"


@contextmanager
def temporary_store(*, memory: bool = True) -> Iterator[Store]:
    """Create a store for the block; ``record`` and ``replay`` use it (``TRACEKIT_DIR``). It is removed at the end.

    The store is in memory if the system has such a file system and ``memory`` is true. ``store.root`` is its directory.

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


class TickingClock:
    """A thread-safe clock that starts at ``start`` (seconds since the epoch) and advances ``step`` seconds at each
    read."""

    def __init__(self, start: float = 1_700_000_000.0, step: float = 0.001) -> None:
        self._lock = threading.RLock()  # a finalizer may read it while its thread does
        self._step = round(step * 1e9)
        self._now = round(start * 1e9) - self._step

    def time_ns(self) -> int:
        """Return the next instant, in nanoseconds since the epoch."""
        with self._lock:
            self._now += self._step
            return self._now

    def time(self) -> float:
        """Return the next instant, in seconds since the epoch."""
        return self.time_ns() / 1e9

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        with self._lock:
            self._now += round(seconds * 1e9)


@contextmanager
def ticking_clock(start: float = 1_700_000_000.0, step: float = 0.001) -> Iterator[TickingClock]:
    """Use a deterministic clock for entries and run ids inside the block, so that a program writes the same trace each
    time.

    Only tracekit's own clock is replaced; the program's clock readings are recorded as usual. To fake those too, pass
    the program ``clock.time``, or use freezegun or time-machine.
    """
    clock = TickingClock(start, step)
    # The first capture in a process replaces tracekit's clock with an unpatched copy, which would undo the change
    # below.
    capture.hooks.activate()
    capture.hooks.deactivate()
    before = cast("partial[int]", _reality.time_ns).func
    _reality.repoint("time_ns", clock.time_ns)
    try:
        yield clock
    finally:
        _reality.repoint("time_ns", before)


# -- no live calls -----------------------------------------------------------------------------------------------------


@contextmanager
def no_network(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """Raise ``LiveCallBlockedError`` if any thread of the process connects, resolves a name or sends inside the block.

    ``except Exception`` does not catch it. ``allow_hosts`` (``"localhost:5432"``) lists hosts that may be reached, such
    as the test's own servers. Processes, files and listening sockets are allowed. A replay forbids network access
    anyway.
    """
    with NoNetwork(strings("allow_hosts", allow_hosts)):
        yield


@contextmanager
def nothing_live(*, allow_hosts: Iterable[str] = ()) -> Iterator[None]:
    """Like ``no_network``, and also forbid traced tools and model calls outside a run: useful for code after a replay.

    Each such call raises ``LiveCallBlockedError``, which ``except Exception`` does not catch.
    """
    with no_network(allow_hosts=allow_hosts):
        process.refuse_outside(_refuse)
        try:
            yield
        finally:
            process.allow_outside(_refuse)


def _refuse(family: str, name: str) -> None:
    raise not_made(
        family,
        name,
        "after the end of a replay, where it would be live",
        "call it inside the run; or, where it cleans up after a recording, only then (`if tracekit_run.recording:`)",
    )
