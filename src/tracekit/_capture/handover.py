"""What threads hand to one another through futures and queues: events of the run, so that a replay sees the same ones come first.

Which of several calls a worker had begun, which futures were done when somebody looked, which worker took which item: the
operating system decides. Each is an entry, written as it happens; in a replay its turn is waited for.
"""

from __future__ import annotations

import queue
from _thread import get_ident
from asyncio import futures, isfuture
from collections.abc import Callable, Iterator
from concurrent.futures import Future as CallFuture
from concurrent.futures import _base
from concurrent.futures import thread as pool
from itertools import count
from sys import _getframe
from types import FunctionType
from typing import Any, Final

from .._engine.arrivals import current_burst
from .._engine.scope import Scope, current
from .callers import by_user, pass_through, walk
from .launch import Entered
from .ordered import InOrder
from .patch import Patch

__all__ = ["begin", "entered", "patches", "submitted"]

_Once = Callable[[Any, str, Callable[[Any], Any]], Patch]
_ScopeOf = Callable[[], "Scope | None"]
#: ``get_nowait`` and ``put_nowait``: whoever calls them counts.
pass_through(queue.__file__)


#: What is exchanged in place, made once.
_made: Final[list[Patch]] = []
_numbers: Final = count(1)


def patches(once: _Once, scope_of: _ScopeOf) -> list[Patch]:
    """What to replace; ``scope_of`` says in which scope a hand-over is the run's own."""

    def scope() -> Scope | None:
        found = scope_of()
        return found if found is not None and getattr(found.session, "ordered", False) else None

    found = [
        once(pool._WorkItem, "run", _run),
        once(futures, "_chain_future", lambda original: _chain(original, scope)),
        once(queue.Queue, "get", lambda original: _moved(original, "queue.get", queue.Empty, scope)),
        once(queue.Queue, "put", lambda original: _moved(original, "queue.put", queue.Full, scope)),
    ]
    for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
        found += [once(kind, "_get", _taken), once(kind, "_put", _taken)]
    if not _made:
        _made.extend(_waiting(scope))
    return found + _made


# -- calls that pools run --------------------------------------------------------------------------------------------------


def begin(scope: Scope) -> Any:
    """The turn of a call that is submitted in ``scope``, its own lane's: it comes when a worker begins it. ``None``: no turn."""
    session = scope.session
    if scope.live or getattr(session, "ended", False) or not getattr(session, "ordered", False):
        return None
    return session.arm(scope, "future.begin", 0)


def submitted(future: Any, call: Entered) -> None:
    """``future`` is what the caller of ``submit`` gets for ``call``."""
    future._tracekit_call = call
    future._tracekit_n = next(_numbers)
    turn = call.turn
    if turn is None or turn.live:
        return
    cancel = future.cancel

    def cancelled() -> bool:
        if turn.comes and not call.begun:  # in the recording it had begun, or it would not have later
            return bool(future.cancelled())
        done = bool(cancel())
        if done:
            call.let_go()
        return done

    future.cancel = cancelled


def _run(original: Any) -> Any:
    def run(self: Any) -> Any:
        call = entered(self.fn, self.args)
        if call is not None and call.turn is not None and not call.turn.live:
            call.taken_up()
            if call.turn.comes:
                try:
                    call.turn.wait()
                except BaseException:  # the replay has failed: the first step of the call says so
                    pass
            else:
                call.hold()
        return original(self)

    run.__qualname__ = "_WorkItem.run"
    return run


def entered(call: Any, args: tuple[Any, ...]) -> Any:
    """The program's callable below the contexts that it is run in."""
    for found in (call, *args[:3]):
        if type(found) is Entered:
            return found
    return None


# -- from a thread to a loop -----------------------------------------------------------------------------------------------


def _chain(original: Any, scope_of: _ScopeOf) -> Any:
    def _chain_future(source: Any, destination: Any) -> None:
        scope = scope_of() if isinstance(source, CallFuture) and isfuture(destination) else None
        if scope is None:
            return original(source, destination)  # type: ignore[no-any-return]
        call = getattr(source, "_tracekit_call", None)
        turn = scope.session.arm(scope, "future.arrival", 0)
        loop = destination.get_loop()
        led_here = _number()

        def cancelled(_: object) -> None:
            if destination.cancelled():
                source.cancel()

        def copy() -> None:
            if not destination.cancelled():
                futures._copy_future_state(source, destination)  # type: ignore[attr-defined]

        def arrived() -> None:
            if destination.cancelled():
                return
            if not turn.live:
                turn.on_fire(copy)
                return
            burst = current_burst()
            if burst is None:
                told()
                return
            if burst.number == led_here:
                burst.end()  # it led to this call: a replay hands the answer out when the loop is idle again
            burst.after(told)

        def told() -> None:
            if not destination.cancelled():
                turn.fired(None if call is None else {"of": call.lane.id})
                copy()

        def done(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived)

        destination.add_done_callback(cancelled)
        source.add_done_callback(done)
        return None

    return _chain_future


def _number() -> int | None:
    burst = current_burst()
    return None if burst is None else burst.number


# -- queues ----------------------------------------------------------------------------------------------------------------

#: Who is in a queue's lock right now, with the turn to be told of, by thread.
_moving: Final[dict[int, Any]] = {}


def _taken(original: Any) -> Any:
    """``_get`` and ``_put``: the moment itself, in the queue's lock."""

    def move(self: Any, *args: Any) -> Any:
        turn = _moving.pop(get_ident(), None)
        if turn is not None:
            turn.fired()
        return original(self, *args)

    return move


def _moved(original: Any, name: str, missed: type[Exception], scope_of: _ScopeOf) -> Any:
    def move(self: Any, *args: Any, **options: Any) -> Any:
        scope = scope_of()
        if scope is None or not by_user():
            return original(self, *args, **options)
        turn: Any = scope.session.arm(scope, name, 0)
        miss: Any = scope.session.arm(scope, "queue.miss", 0)
        token = current.set(None)  # how it waits is nothing to record
        try:
            if turn.comes:
                turn.wait()
                try:
                    return original(self, *args, **options)
                finally:
                    turn.happened()
            if miss.comes:
                miss.wait()
                miss.happened()
                raise _failures().get(miss.about.get("error"), missed)
            if turn.live or turn.comes_yet():
                return _record(original, self, args, options, turn, miss)
            if not _blocks(name, args, options):
                raise missed
            turn.wait()  # it never came back
            return original(self, *args, **options)
        finally:
            current.reset(token)

    move.__qualname__ = original.__qualname__
    return move


def _record(original: Any, items: Any, args: Any, options: Any, turn: Any, miss: Any) -> Any:
    me = get_ident()
    _moving[me] = turn
    try:
        return original(items, *args, **options)
    except tuple(_failures().values()) as error:
        miss.fired({"error": type(error).__name__})
        raise
    finally:
        _moving.pop(me, None)


def _failures() -> dict[str, Any]:
    names = ("Empty", "Full", "ShutDown")
    return {name: getattr(queue, name) for name in names if hasattr(queue, name)}


def _blocks(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    rest = args if name == "queue.get" else args[1:]
    block = rest[0] if rest else options.get("block", True)
    timeout = rest[1] if len(rest) > 1 else options.get("timeout")
    return bool(block) and timeout is None


# -- waiting for futures ---------------------------------------------------------------------------------------------------


def _waiting(scope_of: _ScopeOf) -> list[Patch]:
    """``wait`` and ``as_completed``: exchanged in place, for they are imported by name."""
    return [
        _Exchanged(_base.wait, _call_wait, _wait, scope_of),
        _Exchanged(_base.as_completed, _call_as_completed, _as_completed, scope_of),
    ]


class _Exchanged:
    """A function of ``concurrent.futures`` whose code calls ``instead(original, scope_of, …)``."""

    def __init__(self, function: Any, forward: Any, instead: Any, scope_of: _ScopeOf) -> None:
        self._function = function
        self._found = function.__code__
        original = FunctionType(self._found, function.__globals__, function.__name__, function.__defaults__)
        self._name = f"_tracekit_{function.__name__}"
        self._call = lambda *args, **options: instead(original, scope_of, *args, **options)
        self._code = forward.__code__
        self._applied = False

    @property
    def target(self) -> str:
        return f"concurrent.futures.{self._function.__name__}"

    def apply(self) -> None:
        if not self._applied:
            self._function.__globals__[self._name] = self._call
            self._function.__code__ = self._code
            self._applied = True

    def restore(self) -> bool:
        if self._applied:
            self._applied = False
            if self._function.__code__ is not self._code:
                return False
            self._function.__code__ = self._found
            del self._function.__globals__[self._name]
        return True


def _call_wait(*args: Any, **options: Any) -> Any:
    return _tracekit_wait(*args, **options)  # type: ignore[name-defined]  # noqa: F821


def _call_as_completed(*args: Any, **options: Any) -> Any:
    yield from _tracekit_as_completed(*args, **options)  # type: ignore[name-defined]  # noqa: F821


def _by_user() -> bool:
    """Whether the caller of the exchanged function is user code."""
    return walk(_getframe(4))


def _wait(original: Any, scope_of: _ScopeOf, fs: Any, timeout: Any = None, return_when: str = "ALL_COMPLETED") -> Any:
    scope = scope_of()
    if scope is None or not _by_user():
        return original(fs, timeout, return_when)
    given = _in_order(fs)
    turn: Any = scope.session.arm(scope, "future.wait", 0)
    token = current.set(None)  # how it waits is nothing to record
    try:
        if turn.live:
            done = original(given, timeout, return_when).done
            turn.fired({"done": [i for i, future in enumerate(given) if future in done]})
        else:
            turn.wait()
            done = {given[i] for i in turn.about.get("done", ()) if i < len(given)}
            original(done)
        return _base.DoneAndNotDoneFutures(
            InOrder(future for future in given if future in done),
            InOrder(future for future in given if future not in done),
        )
    finally:
        current.reset(token)


def _as_completed(original: Any, scope_of: _ScopeOf, fs: Any, timeout: Any = None) -> Any:
    scope = scope_of()
    if scope is None or not _by_user():
        return original(fs, timeout)
    given = _in_order(fs)
    token = current.set(None)
    try:
        found = original(given, timeout)
    finally:
        current.reset(token)
    return _each(scope, given, found)


def _each(scope: Scope, given: list[Any], found: Iterator[Any]) -> Iterator[Any]:
    left = dict(enumerate(given))
    while left:
        turn: Any = scope.session.arm(scope, "future.wait", 0)
        token = current.set(None)
        try:
            chosen = _next_recorded(turn, given, left, found) if turn.live else _next_replayed(turn, left)
        finally:
            current.reset(token)
        yield left.pop(chosen)


def _next_recorded(turn: Any, given: list[Any], left: dict[int, Any], found: Iterator[Any]) -> int:
    try:
        chosen = given.index(next(found))
        while chosen not in left:  # a run that is resumed has had it from the log
            chosen = given.index(next(found))
    except TimeoutError as error:
        turn.fired({"done": [], "error": str(error)})
        raise
    turn.fired({"done": [chosen]})
    return chosen


def _next_replayed(turn: Any, left: dict[int, Any]) -> int:
    turn.wait()
    done = turn.about.get("done")
    if not done:
        raise TimeoutError(turn.about.get("error", ""))
    chosen: int = done[0]
    _base.wait([left[chosen]])
    return chosen


def _in_order(fs: Any) -> list[Any]:
    """The futures once each: as they were given, or those of a set as they were submitted."""
    futures_ = list(dict.fromkeys(fs))
    if isinstance(fs, (set, frozenset)) and not isinstance(fs, InOrder):
        futures_.sort(key=lambda future: getattr(future, "_tracekit_n", 0))
    return futures_
