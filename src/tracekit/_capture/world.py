"""The hooks that are in place while any run is active: clock, random numbers, timers, tasks, threads and processes.

Counted: the first run puts them in, the last one removes them.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from . import clock, processes, randomness, threads, timers

__all__ = ["enter", "leave"]

_lock: Final = threading.Lock()
_runs = 0


def enter() -> None:
    """Count a run that begins; the first one puts the hooks in place."""
    global _runs
    with _lock:
        if _runs == 0:
            for part in _parts():
                part.activate()
        _runs += 1


def leave() -> None:
    """Count a run that ends; the last one removes the hooks."""
    global _runs
    with _lock:
        _runs -= 1
        if _runs == 0:
            for part in reversed(_parts()):
                part.deactivate()


def _parts() -> list[Any]:
    """The hooks, in the order in which they are put in place."""
    return [clock, randomness, threads, processes, timers]
