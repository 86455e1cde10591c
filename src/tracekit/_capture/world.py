"""What is exchanged while any run is recorded or replayed: clock, dice, timers, tasks and threads.

Counted: the first run puts the hooks in, the last one takes them out.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from . import clock, processes, randomness, threads, timers

__all__ = ["enter", "leave"]

_lock: Final = threading.Lock()
_runs = 0


def enter() -> None:
    """One more run is active."""
    global _runs
    with _lock:
        if _runs == 0:
            for part in _parts():
                part.activate()
        _runs += 1


def leave() -> None:
    """One run less is active."""
    global _runs
    with _lock:
        _runs -= 1
        if _runs == 0:
            for part in reversed(_parts()):
                part.deactivate()


def _parts() -> list[Any]:
    """In the order in which they are put in."""
    return [clock, randomness, threads, processes, timers]
