"""The hooks in place while any run is active: clock, random numbers, timers, tasks, threads, processes, effects
outside, and reads from outside.

Counted: the first run installs them, the last one removes them.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from .._reality import free_in_forks
from . import clock, commands, guard, inputs, modules, processes, prompts, randomness, signals, threads, timers
from .leftovers import collecting
from .patch import Patch, Switch, loaded

__all__ = ["active", "enter", "event_loops", "leave"]


def _of_event_loops() -> list[Patch]:
    if loaded("asyncio") is None:
        return []
    from . import loops

    return loops.patches(event_loops)


#: The hooks of asyncio and libraries built on it: a program without event loops imports none of them.
event_loops: Final = Switch(_of_event_loops, ("asyncio", "uvloop", "anyio._backends._asyncio"))


class _Hooks:
    """The number of active runs, and the hooks installed for them."""

    def __init__(self) -> None:
        self._lock: Final = free_in_forks(threading.Lock())
        self._runs = 0

    def active(self) -> bool:
        """Whether the hooks are installed."""
        return self._runs > 0

    def enter(self) -> None:
        """Count a starting run; the first one installs the hooks."""
        with self._lock:
            if self._runs == 0:
                for part in _parts():
                    part.activate()
            self._runs += 1

    def leave(self) -> None:
        """Count an ending run; the last one removes the hooks."""
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                for part in reversed(_parts()):
                    part.deactivate()


def _parts() -> list[Any]:
    """Return the hooks, in the order of installation: two of them may patch the same function."""
    return [
        collecting,
        clock,
        randomness,
        threads,
        processes,
        timers,
        signals,
        event_loops,
        guard,
        inputs,
        modules,
        commands,
        prompts,
    ]


_hooks: Final = _Hooks()
enter, leave, active = _hooks.enter, _hooks.leave, _hooks.active
