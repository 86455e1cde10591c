"""Pools of processes: each call that is handed to one is a line of execution, with a segment of its own whichever worker makes it.

A pool's workers take what comes next, so that nothing that depends on who did what may be in the trace: not a worker's segment, but the
call's. Pools whose workers are forks, or were there before the run, are left alone, and the run says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from .._engine.lanes import Lane, started
from .._engine.scope import Scope, current
from ..errors import LiveCallBlockedError
from .launch import name_of, parent_lane

__all__ = ["Carried", "Place", "carry_by", "perform_by", "pools", "workers"]

#: Where a call belongs: what the worker needs to know of it.
Place = dict[str, Any]

#: The workers that know which run they belong to, by process id.
workers: Final[set[int]] = set()
_place: Callable[[Scope, Lane], Place | None] | None = None
_perform: Callable[[Place, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None


def carry_by(place: Callable[[Scope, Lane], Place | None]) -> None:
    """From now on ``place`` says where each call belongs that a run hands to a pool; ``None``: nowhere."""
    global _place
    _place = place


def perform_by(perform: Callable[[Place, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """In a worker: ``perform`` makes the calls that belong somewhere."""
    global _perform
    _perform = perform


class Carried:
    """A call on its way to a worker. ``spread``: its arguments begin with its place, or are a pair of place and argument."""

    def __init__(self, call: Callable[..., Any], place: Place | None, spread: str = "") -> None:
        self.call: Final = call
        self.place: Final = place
        self.spread: Final = spread

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self.call, self.place, self.spread)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        place = self.place
        if self.spread == "pair":
            place, args = args[0][0], (args[0][1],)
        elif self.spread:
            place, args = args[0], args[1:]
        if _perform is None or place is None:
            return self.call(*args, **kwargs)
        return _perform(place, self.call, args, kwargs)


def _carries(scope: Scope | None, method: str, pids: Iterable[int | None], call: Any) -> bool:
    """Whether calls go to workers that belong to the run of ``scope``; it says so if not."""
    if scope is None or _place is None:
        return False
    strangers = [pid for pid in pids if pid not in workers]
    if method != "fork" and not strangers:
        return True
    session: Any = scope.session
    if strangers and not session.recording:
        raise session.fail(
            LiveCallBlockedError(
                f"{name_of(call)!r} was handed to processes that were there before the replay, where it would be live",
                run_id=session.run_id,
                operation="a process pool",
                next_action="make the pool inside the block",
            )
        )
    warn = getattr(session, "warn", None)
    if warn is not None:
        warn(f"{name_of(call)} was handed to a process pool: what it does there is not in the trace")
    return False


def _next_place(scope: Scope, call: Any) -> Place | None:
    assert _place is not None
    return _place(scope, started(parent_lane(scope), name_of(call), scope.live))


# -- concurrent.futures ----------------------------------------------------------------------------------------------------


def _submit(original: Any) -> Any:
    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        context = getattr(self, "_mp_context", None)
        method = "fork" if context is None else str(context.get_start_method())
        if _carries(scope, method, list(getattr(self, "_processes", None) or ()), fn):
            assert scope is not None
            fn = Carried(fn, _next_place(scope, fn))
        return original(self, fn, *args, **kwargs)

    return submit


# -- multiprocessing.Pool --------------------------------------------------------------------------------------------------


def _within(pool: Any, scope: Scope | None, call: Any) -> bool:
    context = getattr(pool, "_ctx", None)
    if type(pool).__name__ != "Pool" or context is None:  # a pool of threads
        return False
    return _carries(scope, str(context.get_start_method()), [one.pid for one in pool._pool], call)


def _apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            func = Carried(func, _next_place(scope, func))
        return original(self, func, *args, **kwargs)

    return apply_async


def _map(original: Any) -> Any:
    @functools.wraps(original)
    def _map_async(self: Any, func: Any, iterable: Any, mapper: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            spread = "first" if mapper.__name__ == "starmapstar" else "pair"
            iterable = list(_placed(scope, func, iterable, spread))
            func = Carried(func, None, spread)
        return original(self, func, iterable, mapper, *args, **kwargs)

    return _map_async


def _imap(original: Any) -> Any:
    @functools.wraps(original)
    def imap(self: Any, func: Any, iterable: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            # The program's iterable is asked by the pool's thread, as without us.
            iterable, func = _placed(scope, func, iterable, "pair"), Carried(func, None, "pair")
        return original(self, func, iterable, *args, **kwargs)

    return imap


def _placed(scope: Scope, call: Any, items: Iterable[Any], spread: str) -> Iterator[Any]:
    for item in items:
        place = _next_place(scope, call)
        yield (place, item) if spread == "pair" else (place, *item)


#: Module, class, method, and what goes around it.
pools: Final = (
    ("concurrent.futures.process", "ProcessPoolExecutor", "submit", _submit),
    ("multiprocessing.pool", "Pool", "apply_async", _apply),
    ("multiprocessing.pool", "Pool", "_map_async", _map),
    ("multiprocessing.pool", "Pool", "imap", _imap),
    ("multiprocessing.pool", "Pool", "imap_unordered", _imap),
)
