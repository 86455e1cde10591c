"""The hooks in place while any run is active: clock, random numbers, timers, tasks, threads, processes, effects
outside, and reads from outside.

Counted: the first run installs them, the last one removes them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
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


#: The hooks, in the order of installation, since two of them may patch the same function. Each part has ``activate()``, and
#: ``deactivate()``, which also removes what an interrupted ``activate()`` has installed, and otherwise does nothing.
_PARTS: Final[tuple[Any, ...]] = (
    collecting,  # which thread is collecting garbage
    clock,  # readings of clocks
    randomness,  # random numbers and ids
    threads,  # threads that start, and calls that pools run
    processes,  # child processes that start and end
    timers,  # sleeps, deadlines, and what threads wait for
    signals,  # signals, and the program's handlers
    event_loops,  # tasks and callbacks
    guard,  # calls that reach outside the process
    inputs,  # environment variables and files
    modules,  # installed modules that are imported
    commands,  # descriptors of a captured process's pipes
    prompts,  # debuggers that ask
)


class _Hooks:
    """The number of active runs, and the hooks installed for them."""

    def __init__(self) -> None:
        self._lock: Final = free_in_forks(threading.Lock())
        self._runs = 0

    def active(self) -> bool:
        """Whether the hooks are installed."""
        return self._runs > 0

    def enter(self) -> None:
        """Count a starting run; the first one installs the hooks: all of them, or none if one fails, or if a signal handler
        raises meanwhile."""
        counted = False
        try:
            with self._lock:
                self._runs, counted = self._runs + 1, True  # first: a signal handler may raise after any call
                if self._runs == 1:
                    for part in _PARTS:
                        part.activate()
        except BaseException:
            if counted:
                self.leave()
            raise

    def leave(self) -> None:
        """Count an ending run; the last one removes the hooks: all of them, even if one fails."""
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                _remove(_PARTS)


def _remove(parts: Sequence[Any]) -> None:
    failure: BaseException | None = None
    for part in reversed(parts):
        try:
            part.deactivate()
        except BaseException as error:  # the others must be removed all the same
            failure = failure or error
    if failure is not None:
        raise failure


_hooks: Final = _Hooks()
enter, leave, active = _hooks.enter, _hooks.leave, _hooks.active
