"""Threads and pools: each started thread and each submitted call is a lane; a pool's own workers are none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import thread as pool
from contextvars import Context
from typing import Any, Final

from .._engine.lanes import started
from .._engine.scope import Scope, current
from . import guard, handover
from .callers import is_background
from .launch import Entered, enclose, name_of, parent_lane
from .patch import Patch

__all__ = ["patches"]

#: The threads that pools start for themselves, by module and name of target or class.
_WORKERS: Final = frozenset(
    {
        ("concurrent.futures.thread", "_worker"),
        ("anyio._backends._asyncio", "WorkerThread"),
        ("concurrent.futures.process", "_ExecutorManagerThread"),
        ("multiprocessing.queues", "Queue._feed"),
    }
)


def patches(once: Callable[[Any, str, Callable[[Any], Any]], Patch]) -> list[Patch]:
    """What to replace, of the modules that are loaded."""
    found = [
        once(threading.Thread, "start", _start),
        once(pool.ThreadPoolExecutor, "submit", _submit),
    ]
    backend = getattr(sys.modules.get("anyio._backends._asyncio"), "AsyncIOBackend", None)
    if backend is not None:
        found.append(once(backend, "run_sync_in_worker_thread", _run_sync))
        found.append(once(backend, "run_sync_from_thread", _run_from_thread))
    return found


# -- threads ---------------------------------------------------------------------------------------------------------------


def _start(original: Any) -> Any:
    def start(self: threading.Thread) -> None:
        scope = current.get()
        if scope is None:
            return original(self)  # type: ignore[no-any-return]
        if is_background(_work(self)):
            return Context().run(_apart, original, self)
        threads = scope.session.threads
        if not _is_worker(self):
            lane = started(parent_lane(scope), _thread_name(self), scope.live)
            _enter_at_run(self, scope.in_lane(lane))
        if threads is None:
            return original(self)  # type: ignore[no-any-return]
        threads.launching()
        try:
            original(self)
        finally:
            threads.launched(self.native_id, self.ident)
        return None

    start.__qualname__ = "Thread.start"
    return start


def _apart(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
    """What a library keeps going beside the program is no act of whoever happened to need it first."""
    with guard.allow():
        original(thread)


def _enter_at_run(thread: Any, scope: Scope) -> None:
    """Shadow ``thread.run`` until the thread has begun."""

    def run() -> None:
        del thread.run
        Entered(thread.run, scope)()

    thread.run = run


def _is_worker(thread: Any) -> bool:
    target = getattr(thread, "_target", None)
    names = (
        (getattr(what, "__module__", None), getattr(what, "__qualname__", None)) for what in (target, type(thread))
    )
    return any(name in _WORKERS for name in names)


def _thread_name(thread: Any) -> str:
    plain = not isinstance(thread, threading.Timer) and getattr(thread, "_target", None) is None
    return type(thread).__qualname__ if plain else name_of(_work(thread))


def _work(thread: Any) -> Any:
    """What a thread runs."""
    if isinstance(thread, threading.Timer):
        return _bare(thread.function)
    target = getattr(thread, "_target", None)
    return type(thread).run if target is None else _bare(target)


def _bare(call: Any) -> Any:
    while hasattr(call, "func") and hasattr(call, "keywords"):
        call = call.func
    return call


# -- pools -----------------------------------------------------------------------------------------------------------------


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if scope is None:
            return original(self, fn, *args, **kwargs)
        fn, args, kwargs = enclose(scope, fn, args, kwargs)
        call = handover.entered(fn, args)
        call.turn = handover.begin(scope.in_lane(call.lane))
        future = original(self, fn, *args, **kwargs)
        handover.submitted(future, call)
        return future

    submit.__qualname__ = "ThreadPoolExecutor.submit"
    return submit


# -- anyio -----------------------------------------------------------------------------------------------------------------


def _run_sync(original: Any) -> Any:
    def run_sync_in_worker_thread(cls: Any, func: Any, args: Any, *rest: Any, **options: Any) -> Any:
        scope = current.get()
        if scope is not None:
            func, args, kwargs = enclose(scope, func, tuple(args), {})
            if kwargs:
                func = _with(func, kwargs)
        return original(cls, func, args, *rest, **options)

    return run_sync_in_worker_thread


def _run_from_thread(original: Any) -> Any:
    def run_sync_from_thread(cls: Any, func: Any, args: Any, *rest: Any, **options: Any) -> Any:
        scope = current.get()
        if scope is not None:
            func, args, kwargs = enclose(scope, func, tuple(args), {})
            if kwargs:
                func = _with(func, kwargs)
        return original(cls, func, args, *rest, **options)

    return run_sync_from_thread


def _with(func: Any, kwargs: dict[str, Any]) -> Any:
    def call(*args: Any) -> Any:
        return func(*args, **kwargs)

    return call
