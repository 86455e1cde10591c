"""All hooks that are in place while any run is active, and the order in which they are applied.

Clock, random numbers, timers, tasks, threads, processes, effects outside, and reads from outside.

Counted: the first run installs them, the last one removes them.
"""

from __future__ import annotations

import importlib.machinery
from types import FunctionType
from typing import Any, Final

from .._lazy import imported
from .._reality import OwnLock
from .._runtime.lane import NOBODY
from .._runtime.session import current, owner
from .._sources import in_packages
from . import (
    clock,
    commands,
    contexts,
    guard,
    inputs,
    locks,
    popen,
    processes,
    prompts,
    randomness,
    signals,
    threads,
    timers,
)
from .leftovers import collecting
from .patch import AtRestore, LatePatch, ReversiblePatch, Switch, loaded

__all__ = ["active", "enter", "event_loops", "leave"]


def _of_event_loops() -> list[ReversiblePatch]:
    if loaded("asyncio") is None:
        return []
    from . import loops

    return loops.patches(event_loops)


def _of_subprocesses() -> list[ReversiblePatch]:
    return [*subprocesses.of(popen.PATCHES), _without_process] if any(map(loaded, _STARTING)) else []


#: At the end of the last run, in which some may have been left running.
_without_process: Final = AtRestore("processes that do not exist", lambda: popen.end_without_process())


#: The modules that start processes, or learn of their end.
_STARTING: Final = (
    "subprocess",
    "multiprocessing.process",
    "multiprocessing.spawn",
    "multiprocessing.pool",
    "multiprocessing.queues",
    "multiprocessing.connection",
    "concurrent.futures.process",
    "asyncio.base_subprocess",
    "asyncio.unix_events",
)
#: Their hooks: a program that imports none of them does not import these either.
subprocesses: Final = Switch(_of_subprocesses, _STARTING)


#: The hooks of asyncio and libraries built on it: a program without event loops imports none of them.
event_loops: Final = Switch(_of_event_loops, ("asyncio", "uvloop", "anyio._backends._asyncio"))


def _executing(original: Any) -> Any:
    """Run the bodies of installed modules in lanes of their own while they are imported, since chance decides which
    code imports a module first."""

    def exec_module(self: Any, module: Any) -> Any:
        scope = current.get()
        if scope is None or scope.live or not in_packages(getattr(module, "__file__", None) or ""):
            return original(self, module)
        own = scope.session.importing(scope, module.__name__)
        if own is None:
            return original(self, module)
        own.lane.owner = owner()  # inlined from ``entered``: a program imports thousands of modules
        token = current.set(own)
        try:
            return original(self, module)
        finally:
            current.reset(token)
            own.lane.owner = NOBODY

    # The interpreter removes the import system's frames from the traceback of a module's exception.
    found = original.__code__.co_filename if type(original) is FunctionType else exec_module.__code__.co_filename
    exec_module.__code__ = exec_module.__code__.replace(co_filename=found)
    return exec_module


def _of_imports() -> list[ReversiblePatch]:
    # The class from which both loaders of Python modules, of sources and of compiled files, inherit it.
    loader = next(one for one in importlib.machinery.SourceFileLoader.__mro__ if "exec_module" in vars(one))
    return [LatePatch(loader, "exec_module", _executing)]


def _release_descriptors() -> None:
    """Restore the functions that take descriptors, which were replaced if a program asked for that of a captured
    process's pipe."""
    if imported(commands):
        commands.deactivate()


#: What is exchanged while a run is active, in the order of installation, since two of them may patch the same function.
_HOOKS: Final = (
    Switch(lambda: [collecting]),  # which thread is collecting garbage
    clock.hooks,  # readings of clocks
    randomness.hooks,  # random numbers and ids
    randomness.package_hooks,  # ids that packages make from what they remember
    threads.hooks,  # threads that start, and calls that pools run
    contexts.hooks,  # empty contexts that code runs in
    processes.hooks,  # child processes that start and end
    subprocesses,  # the same, by subprocess and multiprocessing
    locks.hooks,  # which thread takes a lock first, once there are several
    timers.hooks,  # sleeps, deadlines, and what threads wait for
    signals.hooks,  # signals, and the program's handlers
    event_loops,  # tasks and callbacks
    guard.hooks,  # calls that reach outside the process
    inputs.hooks,  # environment variables and files
    Switch(_of_imports),  # installed modules that are imported
    Switch(lambda: [AtRestore("descriptors of pipes", _release_descriptors)]),
    prompts.hooks,  # debuggers that ask
)


class _Hooks:
    """The number of active runs, and the hooks installed for them."""

    def __init__(self) -> None:
        self._lock: Final = OwnLock()
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
                    for hooks in _HOOKS:
                        hooks.activate()
        except BaseException:
            if counted:
                self.leave()
            raise

    def leave(self) -> None:
        """Count an ending run; the last one removes the hooks: all of them, even if one fails."""
        with self._lock:
            self._runs -= 1
            if self._runs == 0:
                self._remove()
                begun, self._runs = self._runs, 0
                for _ in range(begun):  # by a signal handler or a finalizer meanwhile
                    self.enter()

    def _remove(self) -> None:
        failure: BaseException | None = None
        for hooks in reversed(_HOOKS):
            try:
                hooks.deactivate()
            except BaseException as error:  # the others must be removed all the same
                failure = failure or error
        if failure is not None:
            raise failure


_hooks: Final = _Hooks()
enter, leave, active = _hooks.enter, _hooks.leave, _hooks.active
