"""Processes that a run starts: each is counted as a line of execution, and told by its environment how to join the run.

What stands on ``subprocess.Popen`` (asyncio's processes too) gets an environment variable; what ``multiprocessing`` starts afresh
(``spawn``, ``forkserver``) gets it with the data that it is prepared by. Who is told what is the session's affair (:func:`welcome`).
"""

from __future__ import annotations

import functools
import sys
from contextvars import ContextVar
from typing import Any, Final

from .._engine.scope import current
from . import guard_caller, process_pools, process_status, processes_os
from .patch import AttributePatch, Patch, Switch, when_imported
from .processes_asking import VARIABLE, Welcome, asked, named, starting, told, welcome, within, words_of

__all__ = ["VARIABLE", "Welcome", "activate", "deactivate", "welcome"]

#: Where ``env`` is among the arguments of ``Popen``, if it is given by its place.
_ENV: Final = 10
#: Set in a process that is made ready by multiprocessing, before its program's first line.
_PREPARED: Final = """\
import os, sys
os.environ[{variable!r}] = {ticket!r}
if "tracekit" in sys.modules:
    from tracekit._session import joining
    joining.join()
"""
#: Modules in which an event loop has a process of its own, and hears of its end by itself.
_LOOPS: Final = frozenset({"asyncio.unix_events", "asyncio.windows_events"})
_POOLS: Final = frozenset({("multiprocessing.pool", "worker"), ("concurrent.futures.process", "_process_worker")})


#: What the process that multiprocessing is starting here is told.
_starting: Final[ContextVar[str | None]] = ContextVar("tracekit.process", default=None)


# -- subprocess ------------------------------------------------------------------------------------------------------------


def _popen(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        scope = current.get()
        # The commands by which the standard library asks the host what it is are none of the program's.
        if scope is None or not (args or "args" in kwargs) or guard_caller.find().passes("process"):
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        words = words_of(args[0] if args else kwargs["args"])
        found = None if within.get() else asked(scope, named(words), words)
        if found is None:
            return original(self, *args, **kwargs)  # type: ignore[no-any-return]
        env = told(found, args[_ENV] if len(args) > _ENV else kwargs.get("env"))
        if len(args) > _ENV:
            args = (*args[:_ENV], env, *args[_ENV + 1 :])
        else:
            kwargs["env"] = env
        try:
            with starting(found):
                original(self, *args, **kwargs)
        except OSError as error:  # there is no such program, or it may not be run
            found.not_started(scope, error)
            raise
        found.started(self.pid)
        loops = sys._getframe(1).f_globals.get("__name__") in _LOOPS
        (process_status.expect if loops else process_status.follow)(self, found)
        return None

    return __init__


# -- multiprocessing -------------------------------------------------------------------------------------------------------


def _start(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        scope = current.get()
        if scope is None or _method(self) == "fork":
            return original(self)
        target = getattr(self, "_target", None)
        name = getattr(target, "__qualname__", None) or type(self).__qualname__
        pool = (getattr(target, "__module__", None), name) in _POOLS
        found = asked(scope, name.replace("/", "_"), None, pool)
        if found is None:
            return original(self)
        token = _starting.set(found.ticket)
        try:
            with starting(found):
                original(self)
        finally:
            _starting.reset(token)
        if pool:
            process_pools.workers.add(self.pid)
        else:
            process_status.follow(self, found)
        found.started(self.pid)
        return None

    return start


def _method(process: Any) -> str:
    own = getattr(process, "_start_method", None)
    if own is None:
        context = sys.modules["multiprocessing.context"]
        own = context._default_context.get_start_method()
    return str(own)


class _Ready:
    """Unpickled in the new process, before the program's modules: by what any Python has."""

    def __init__(self, ticket: str) -> None:
        self.ticket: Final = ticket

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_PREPARED.format(variable=VARIABLE, ticket=self.ticket),)


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def get_preparation_data(*args: Any, **kwargs: Any) -> Any:
        data = original(*args, **kwargs)
        ticket = _starting.get()
        # First of all: what follows in it may import the program's modules when it is unpickled.
        return data if ticket is None else {VARIABLE: _Ready(ticket), **data}

    return get_preparation_data


# -- in place --------------------------------------------------------------------------------------------------------------

_made: Final[dict[tuple[str, str], Patch]] = {}


def _patches() -> list[Patch]:
    found = []
    for module, owner, name, wrap in (
        ("subprocess", "Popen", "__init__", _popen),
        ("multiprocessing.process", "BaseProcess", "start", _start),
        ("multiprocessing.spawn", None, "get_preparation_data", _prepare),
        *process_status.places,
        *processes_os.places,
        *process_pools.pools,
    ):
        loaded: Any = sys.modules.get(module)
        if loaded is not None:
            place: Any = loaded if owner is None else getattr(loaded, owner, None)
            if place is not None and (module, name) not in _made:
                _made[module, name] = AttributePatch(place, name, wrap(getattr(place, name)))
            if (module, name) in _made:
                found.append(_made[module, name])
    return found


_switch: Final = Switch(_patches)


def activate() -> None:
    """Put the hooks in place; each call wants a :func:`deactivate`."""
    _switch.on()
    for module in (
        "multiprocessing.process",
        "multiprocessing.spawn",
        "multiprocessing.pool",
        "concurrent.futures.process",
        "asyncio.base_subprocess",
        "uvloop",
    ):
        when_imported(module, _switch.refresh)


def deactivate() -> list[str]:
    """One holder less; the last one restores everything. Returns what somebody else has patched since."""
    return _switch.off()
