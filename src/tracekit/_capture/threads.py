"""Capture of threads, pools and queues: lanes, and what threads hand to one another, which is an event.

Each thread and submitted call is a lane. Other schedulers (gevent, trio) are refused.
"""

from __future__ import annotations

import inspect
import os
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context
from functools import cache, partial, wraps
from itertools import count
from sys import _getframe
from types import CoroutineType, FrameType, FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from .._reality import OwnLock, gate, monotonic_ns, running_loop, running_task, this_thread
from .._runtime.callsite import caller
from .._runtime.lane import NOBODY, Lane, started
from .._runtime.session import Scope, current, enter, outside_the_run, owner
from .._sources import ASYNCIO, STDLIB, is_user_code
from ..errors import ReplayError, RunStateError
from . import guard, handed
from .callers import in_a_librarys_import, is_telemetry, mover, pass_through, walk
from .in_place import CodeExchange, MethodEntry, Unsupported
from .locks import follow_locks
from .patch import AttributePatch, ReversiblePatch, Switch, loaded, owner_of
from .plugins import QueueClass, Scheduler, every, movers_by_file, schedulers
from .waits import armed, await_place

__all__ = [
    "Entered",
    "InOrder",
    "begin",
    "enclose",
    "entered",
    "handed_over_in",
    "handover_patches",
    "hooks",
    "in_order",
    "kept_to_itself",
    "name_of",
    "numbered",
    "parent_lane",
    "refuse_uncovered",
    "started_by_user",
    "submitted",
]

# -- launch ------------------------------------------------------------------------------------------------------------
#
# What is started in a run: its name, its parent lane, and the callable that enters its lane innermost.

_RUN: Final = Context.run


def parent_lane(scope: Scope) -> Lane:
    """Return the lane that starts something here: the scope's, or that of the task or the call in a thread that runs here
    in a context with the scope of somebody else (one that tasks share, or a copy of that of whoever made the call)."""
    lane = scope.lane
    if lane.owned and lane.owner != (me := owner()) and (running_task() is not None or running_loop() is None):
        return lane.owned.get(me, lane)
    return lane


def name_of(started_: Any) -> str:
    """Return the ``__qualname__`` of an unwrapped callable or a coroutine, else its type's."""
    while type(started_) is Entered:
        started_ = started_._call
    if type(started_) is CoroutineType and started_.__qualname__ == "TaskHandle._run_coro" and started_.cr_frame:
        # anyio's wrapper around a task's coroutine
        started_ = getattr(started_.cr_frame.f_locals.get("self"), "_coro", started_)
    name = getattr(started_, "__qualname__", None)
    return name if isinstance(name, str) else type(started_).__qualname__


class Entered:
    """A callable that runs in ``scope``'s lane, in whatever context it is called."""

    __slots__ = ("_call", "_gate", "_scope", "begun", "beside", "by_user", "queue", "turn")

    def __init__(self, call: Callable[..., Any], scope: Scope) -> None:
        self._call: Final = call
        self._scope: Final = scope
        #: Its place among the events of the run, if it is one; see ``handover_patches``.
        self.turn: Any = None
        #: Whether user code started it. What a library does by itself is not an event if nothing is captured in it.
        self.by_user = True
        #: Whether it is a thread that a library keeps for itself.
        self.beside = False
        self.begun = False
        #: In a replay, the calls of its pool.
        self.queue: _PoolQueue | None = None
        self._gate = gate()

    @property
    def lane(self) -> Lane:
        return self._scope.lane

    @property
    def number(self) -> int:
        """The number of the call's lane; 0 if a library started it, which then has none."""
        return self.lane.id if self.by_user else 0

    @property
    def function(self) -> Callable[..., Any]:
        return self._call

    def taken_up(self) -> None:
        """A worker has taken it up."""
        threads = self._scope.session.threads
        if threads is not None:
            threads.begun(self.lane, beside=self.beside or not self.by_user)

    def hold(self) -> None:
        """Hold the worker of a call that never began in the recording, until it is cancelled, the replay ends, or
        nothing else can go on.

        The recorded program may have cancelled it in time, or not have needed it.
        """
        self.turn.on_fire(self.let_go, anywhere=True)
        self.turn.hold(self.let_go)
        self._gate.acquire()
        self.turn.unhold(self.let_go)
        self.turn.cancel()

    def let_go(self) -> None:
        """Release the held worker, now or later."""
        try:
            self._gate.release()
        except RuntimeError:  # somebody else has released it
            pass

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self.taken_up()
        self.begun = True
        lane, me = self._scope.lane, owner()
        before = lane.owned.get(me)
        # Also registered by owner: the callable may itself run the program's code in yet another copied context.
        lane.owned[me] = lane
        lane.owner = me
        token = enter(self._scope)
        try:
            if self.turn is not None and self.turn.live:
                self.turn.fired()
            return handed.call(self._call, args, kwargs) if self.by_user else self._call(*args, **kwargs)
        finally:
            current.reset(token)
            lane.owner = NOBODY
            if before is None:
                lane.owned.pop(me, None)
            else:
                lane.owned[me] = before


def enclose(
    scope: Scope, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a call that runs the program's callable in a lane of its own, counted now, inside whatever contexts
    surround it."""
    outer: list[Any] = []
    while True:
        if type(call) is partial:
            call, args, kwargs = call.func, call.args + args, {**call.keywords, **kwargs}
        elif args and isinstance(getattr(call, "__self__", None), Context) and call == call.__self__.run:
            outer.append(call)
            call, args = args[0], args[1:]
        else:
            break
    lane = started(parent_lane(scope), name_of(call), scope.live)
    follow_locks(scope)
    threads = scope.session.threads
    if threads is not None:
        threads.submitted(beside=in_a_librarys_import())
        lane.made_at = caller()
    call = Entered(call, scope.in_lane(lane))
    for run in reversed(outer):
        call, args = run, (call, *args)
    return call, args, kwargs


# -- ordered -----------------------------------------------------------------------------------------------------------
#
# Sets of tasks that keep their order. ``asyncio.as_completed``, ``asyncio.wait`` and ``TaskGroup`` use a ``set``, whose
# order depends on the objects' addresses: which of several equal coroutines becomes the first task, in which order a
# program sees the completed tasks, and in which order a group cancels its tasks, would vary from run to run.


class InOrder(set[Any]):
    """A set that is iterated in insertion order."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._order: dict[Any, None] = dict.fromkeys(elements)
        super().__init__(self._order)

    def add(self, element: Any) -> None:
        self._order.setdefault(element)
        super().add(element)

    def __iter__(self) -> Iterator[Any]:
        if len(self._order) != len(self) or not self._order.keys() >= set(super().__iter__()):
            self._order = dict.fromkeys([x for x in self._order if x in self] + list(super().__iter__()))
        return iter(list(self._order))

    def pop(self) -> Any:
        for element in self:
            self.remove(element)
            del self._order[element]
            return element
        raise KeyError("pop from an empty set")

    def __reduce__(self) -> Any:
        return set, (list(self),)

    def __repr__(self) -> str:
        return repr(set(super().__iter__()))


# -- handover ----------------------------------------------------------------------------------------------------------
#
# What threads hand to one another through futures and queues: events of the run, so that they happen in the same order
# in a replay. Which call a worker had begun, which futures were done when somebody looked, which worker took which
# item: the operating system decides. Each is an entry, logged as it happens; a replay waits for its turn.

_ScopeOf = Callable[[], "Scope | None"]
#: ``get_nowait`` and ``put_nowait``: their caller counts.
pass_through(os.path.join(STDLIB, "queue.py"))


_numbers: Final = count(1)


def handover_patches(switch: Switch, scope_of: _ScopeOf) -> list[ReversiblePatch]:
    """Return the patches for ``switch``; ``scope_of`` returns the scope in which a hand-over belongs to the run."""

    def scope() -> Scope | None:
        found = scope_of()
        return found if found is not None and found.session.state.ordered else None

    once, found, record = switch.once, list[ReversiblePatch](), partial(_record, switch)
    if (pool := loaded("concurrent.futures.thread")) is not None:
        found.append(once(pool._WorkItem, "run", _run))
    if (queue := loaded("queue")) is not None:
        found += [
            once(queue.Queue, "get", lambda original: _moved(original, "queue.get", queue.Empty, scope, record)),
            once(queue.Queue, "put", lambda original: _moved(original, "queue.put", queue.Full, scope, record)),
        ]
        for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
            found += [once(kind, "_get", _taken), once(kind, "_put", _taken)]
        found += switch.made("simple queues", lambda: _of_simple_queues(queue, scope))
    if (futures := loaded("concurrent.futures._base")) is not None:
        found += switch.made("waiting", lambda: _waiting(futures, scope))
    for library in _queues():
        kind = getattr(loaded(library.module), library.attribute, None)
        if kind is not None:
            found += _of_a_library(switch, kind, library, scope)
    return found


def _queues() -> list[QueueClass]:
    return [kind for integration in every() for kind in integration.queues]


def handed_over_in() -> list[str]:
    """Return the modules with classes by which threads hand things to one another."""
    standard = ("queue", "concurrent.futures._base", "concurrent.futures.thread", "multiprocessing.pool")
    return [*standard, *(library.module for library in _queues())]


# -- calls that pools run ----------------------------------------------------------------------------------------------


def begin(scope: Scope) -> Any:
    """Return the turn of a call submitted in ``scope``, its own lane's, which comes when a worker begins it; ``None``
    if it has none."""
    session = scope.session
    if scope.live or session.state.ended or not session.state.ordered:
        return None
    return session.arm(scope, "future.begin", 0)


def numbered(future: Any) -> None:
    """Give a future or task its place among those of a set."""
    try:
        future._tracekit_n = next(_numbers)
    except AttributeError:  # a task of another library's
        pass


@cache
def _placed_class() -> tuple[type, type]:
    """Return the class of a pool's futures, and the same with a place in sets that follows from the call's lane."""
    from concurrent.futures import Future

    class PlacedFuture(Future[Any]):
        _tracekit_call: Entered

        def __hash__(self) -> int:
            try:
                return self._tracekit_call.lane.hash
            except AttributeError:  # made by somebody who asked a future for its type
                return object.__hash__(self)

    PlacedFuture.__name__, PlacedFuture.__qualname__, PlacedFuture.__module__ = (
        Future.__name__, Future.__qualname__, Future.__module__,
    )  # fmt: skip
    return Future, PlacedFuture


def submitted(future: Any, call: Entered) -> None:
    """Connect ``future``, which the caller of ``submit`` gets, with ``call``."""
    future._tracekit_call = call
    plain, placed = _placed_class()
    if type(future) is plain:
        future.__class__ = placed
    numbered(future)
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
    def run(self: Any, *worker: Any) -> Any:  # from Python 3.14 on: the worker's context
        while (call := _call_of(self)) is not None and call.turn is not None and not call.turn.live:
            call.taken_up()
            if _until_begun(call, self):
                break
        return original(self, *worker)

    run.__qualname__ = "_WorkItem.run"
    return run


def _call_of(item: Any) -> Entered | None:
    """Return the program's callable in a work item of a pool."""
    found: Entered | None = entered(*(item.task if hasattr(item, "task") else (item.fn, item.args))[:2])
    return found


def _until_begun(call: Entered, item: Any) -> bool:
    """Hold a worker that has taken up ``call`` until that begins; return whether it does, and not another one in its place."""
    queue = call.queue
    if queue is not None:
        queue.holds(item)
    try:
        if call.turn.comes:
            call.turn.taken_up()
            try:
                call.turn.wait()
            except BaseException:  # the replay has failed: the first step of the call says so
                pass
            return True  # another one takes its turn, too, when it takes its place
        call.hold()
        return _call_of(item) is call
    finally:
        if queue is not None:
            queue.lets_go(item)


def entered(call: Any, args: tuple[Any, ...]) -> Any:
    """Return the program's callable below the contexts in which it is run."""
    for found in (call, *args[:3]):
        if type(found) is Entered:
            return found
    return None


# -- queues ------------------------------------------------------------------------------------------------------------


#: The turn to be notified while a queue's lock is held, by thread.
_moving: Final[dict[int, Any]] = {}
os.register_at_fork(after_in_child=_moving.clear)


def _taken(original: Any) -> Any:
    """Wrap ``_get`` and ``_put``: the moment of the move, inside the queue's lock."""

    def move(self: Any, *args: Any) -> Any:
        if _moving:
            turn = _moving.pop(get_ident(), None)
            if turn is not None:
                turn.fired()
        return original(self, *args)

    vars(move)[_UNRECORDED] = original
    return move


def _moved(
    original: Any,
    name: str,
    missed: type[Exception],
    scope_of: _ScopeOf,
    recorded: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    *,
    waits: bool = True,
) -> Any:
    def move(self: Any, *args: Any, **options: Any) -> Any:
        if arguments:
            args = arguments + args
        if not (waits or args):
            options.setdefault("block", False)
        if (
            current.get() is None
            or movers_by_file.get(_getframe(1).f_code.co_filename, True) is None
            or (who := mover()) is None
        ):
            return original(self, *args, **options)  # a connection pool moves dozens for one request
        scope = scope_of()
        if scope is None:
            return original(self, *args, **options)
        of = "" if who is True else f":{who}"
        turn: Any = armed(scope, name + of, 0)
        miss: Any = armed(scope, "queue.miss" + of, 0)
        threads = scope.session.threads
        if turn is None or miss is None:
            return original(self, *args, **options)
        users = _turns_of(self).users if of else None
        if users is not None and name == "queue.get" and _patience(args, options)[0]:
            users.add(_ANOTHER)
        token = current.set(None)  # the internals of the wait are not recorded
        try:
            if turn.comes and await_place(turn, threads):
                try:
                    item = original(self, *args, **options)
                finally:
                    turn.happened()
                if users is not None and name == "queue.get":
                    with suppress(ReplayError):  # it has failed: the first step of the call says so
                        turn.until_result()
                return item
            if miss.comes and await_place(miss, threads):
                miss.happened()
                raise _failures().get(miss.about.get("error"), missed)
            if not (turn.comes or miss.comes):
                if users is None:
                    if turn.live or turn.comes_yet():
                        return recorded(original, self, args, options, turn, miss)
                    if not _waits(name, args, options):
                        raise missed
                    if await_place(turn, threads):  # it never returned
                        return original(self, *args, **options)
                elif turn.live or (users - {this_thread()} and turn.comes_yet()):
                    users.add(this_thread())
                    return recorded(original, self, args, options, _IfShared(turn, users), _IfShared(miss, users))
                elif name == "queue.get" and users - {this_thread()}:
                    _hold_unrecorded(scope.lane, turn)
        finally:
            if users is not None:
                users.add(this_thread())
            current.reset(token)
        return original(self, *args, **options)

    move.__qualname__ = original.__qualname__
    vars(move)[_UNRECORDED] = original
    return move


#: Under this name, a recorded method of a queue has the original.
_UNRECORDED: Final = "_tracekit_unrecorded"


def kept_to_itself(kind: type[Any]) -> type[Any]:
    """Return a class of queues like ``kind``, for a library that hands nothing to the program through them: nothing is
    recorded. A class that is none of ``queue``'s is returned as it is.

    A connection pool moves dozens of items for one request, and each recorded method first has to find out who is
    calling.
    """
    from queue import Queue

    if not issubclass(kind, Queue):
        return kind
    methods = {name: getattr(kind, name) for name in ("get", "put", "_get", "_put")}
    methods = {name: vars(method).get(_UNRECORDED, method) for name, method in methods.items()}
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**methods, **about})


def _hold_unrecorded(lane: Lane, turn: Any) -> None:
    """Hold a thread, once, that would take an item where the recorded one took none any more, until nothing else can go
    on.

    Such a thread is missing from the recording, in which a worker that got nothing left no trace.
    """
    if lane.let_go:
        return
    lane.let_go = True
    opened = gate()

    def let_go() -> None:
        with suppress(RuntimeError):  # somebody else has released it
            opened.release()

    turn.on_fire(let_go, anywhere=True)
    turn.hold(let_go)
    opened.acquire()
    turn.cancel()


#: Among the threads that use a queue: a waiting thread expects another one.
_ANOTHER: Final = object()


class _IfShared:
    """What a package moves is an event only if several threads use the queue: a connection pool used by one thread
    moves nothing."""

    def __init__(self, turn: Any, users: set[object]) -> None:
        self._turn: Final = turn
        self._users: Final = users

    def fired(self, about: Any = None) -> None:
        if len(self._users) > 1:
            self._turn.fired(about)


class _InTurn:
    """The threads that use a queue. A ``SimpleQueue``'s operations are made one at a time: C has no lock in which to
    note them."""

    def __init__(self) -> None:
        self.users: Final[set[object]] = set()
        self.taking: Final = allocate_lock()
        self.putting: Final = OwnLock()


#: How often (s) a thread that must not wait checks for an item while another thread is taking one.
_MOMENT: Final = 0.001

_in_turn: Final[WeakKeyDictionary[Any, _InTurn]] = WeakKeyDictionary()
# Threads waiting in one of them do so only in the parent of a fork.
os.register_at_fork(after_in_child=_in_turn.clear)


def _of_a_library(switch: Switch, kind: type[Any], library: QueueClass, scope: _ScopeOf) -> list[ReversiblePatch]:
    import queue

    def taken(original: Any) -> Any:
        waits = inspect.signature(original).parameters["block"].default is not False
        return _moved(original, "queue.get", queue.Empty, scope, _record_taking, waits=waits)

    found = [
        switch.once(kind, library.put, lambda put: _moved(put, "queue.put", queue.Full, scope, _record_putting)),
        switch.once(kind, library.get, taken),
    ]
    if library.wait is not None:
        found.append(switch.once(kind, library.wait, lambda wait: _looked_for(wait, scope)))
    return found


def _looked_for(original: Any, scope_of: _ScopeOf) -> Any:
    """Wrap a wait until something is in a queue, without removing it: its end is an event of the run."""

    def wait(self: Any, *args: Any, **options: Any) -> Any:
        scope = scope_of() if current.get() is not None and mover() is not None else None
        turn = None if scope is None else armed(scope, "queue.wait", 0)
        if scope is None or turn is None:
            return original(self, *args, **options)
        token = current.set(None)  # the internals of the wait are not recorded
        try:
            if turn.comes and await_place(turn, scope.session.threads):
                return turn.happened()  # what was there may be taken by now, as it was then
            result = original(self, *args, **options)
            if turn.live:
                turn.fired()
            return result
        finally:
            current.reset(token)

    wait.__qualname__ = original.__qualname__
    vars(wait)[_UNRECORDED] = original
    return wait


def _of_simple_queues(queue: Any, scope: _ScopeOf) -> list[ReversiblePatch]:
    kind, empty = queue.SimpleQueue, queue.Empty
    try:
        get, put = vars(kind)["get"], vars(kind)["put"]
        return [
            MethodEntry(kind, "get", lambda _: _moved(get, "queue.get", empty, scope, _record_taking)),
            MethodEntry(kind, "put", lambda _: _moved(put, "queue.put", empty, scope, _record_putting)),
            MethodEntry(
                kind, "get_nowait", lambda _: _moved(get, "queue.get", empty, scope, _record_taking, arguments=(False,))
            ),
            MethodEntry(kind, "put_nowait", lambda _: _moved(put, "queue.put", empty, scope, _record_putting)),
        ]
    except (Unsupported, KeyError):  # an interpreter that implements it differently
        return []


def _record_putting(original: Any, items: Any, args: Any, options: Any, turn: Any, miss: Any) -> Any:
    with _turns_of(items).putting:
        turn.fired()
        return original(items, *args, **options)


def _record_taking(original: Any, items: Any, args: Any, options: Any, turn: Any, miss: Any) -> Any:
    taking = _turns_of(items).taking
    block, timeout = _patience(args, options)
    if not block or timeout is None or timeout < 0:
        until = None
    else:
        until = monotonic_ns() / 1e9 + timeout
    mine = taking.acquire(block, timeout if until is not None else -1)
    try:
        # Another thread waits for an item, so there is none; or it is just taking one, and there may be more.
        while not mine and not items.empty():
            mine = taking.acquire(True, _MOMENT)
        if mine:
            left = timeout if until is None else max(until - monotonic_ns() / 1e9, 0)
            item = original(items, block, left)
            turn.fired()
            return item
    except tuple(_failures().values()) as error:
        miss.fired({"error": type(error).__name__})
        raise
    finally:
        if mine:
            taking.release()
    miss.fired({"error": "Empty"})
    raise _failures()["Empty"]


def _turns_of(items: Any) -> _InTurn:
    try:
        return _in_turn.get(items) or _in_turn.setdefault(items, _InTurn())
    except TypeError:  # a subclass that can't be hashed
        return _InTurn()


def _record(switch: Switch, original: Any, items: Any, args: Any, options: Any, turn: Any, miss: Any) -> Any:
    _follow_own_moves(switch, type(items))
    me = get_ident()
    _moving[me] = turn
    try:
        moved = original(items, *args, **options)
        if _moving.pop(me, None) is not None:  # it moves by something that can't be replaced
            turn.fired()
        return moved
    except tuple(_failures().values()) as error:
        miss.fired({"error": type(error).__name__})
        raise
    finally:
        _moving.pop(me, None)


def _follow_own_moves(switch: Switch, kind: type[Any]) -> None:
    """Wrap ``_get`` and ``_put`` of a class of queues of the program's own, which may have others than the library's."""
    for name in ("_get", "_put"):
        if hasattr(getattr(kind, name), _UNRECORDED):  # mostly: this is asked at each move
            continue
        owner = next(base for base in kind.__mro__ if name in vars(base))
        method = vars(owner)[name]
        if type(method) is FunctionType:
            switch.extend(partial(_own_move, switch, owner, name))


def _own_move(switch: Switch, owner: type[Any], name: str) -> list[ReversiblePatch]:
    return [switch.once(owner, name, _taken)]


def _failures() -> dict[str, Any]:
    import queue

    names = ("Empty", "Full", "ShutDown")
    return {name: getattr(queue, name) for name in names if hasattr(queue, name)}


def _waits(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    block, timeout = _patience(args if name == "queue.get" else args[1:], options)
    return bool(block) and (timeout is None or timeout > 0)


def _patience(args: tuple[Any, ...], options: Any) -> tuple[Any, Any]:
    """Return whether a call may wait, and for how long."""
    return args[0] if args else options.get("block", True), args[1] if len(args) > 1 else options.get("timeout")


# -- waiting for futures -----------------------------------------------------------------------------------------------


def _waiting(futures: Any, scope_of: _ScopeOf) -> list[ReversiblePatch]:
    """Return patches for ``wait`` and ``as_completed``, in place, since they are imported by name."""
    return [
        _Exchanged(futures.wait, _call_wait, _wait, scope_of),
        _Exchanged(futures.as_completed, _call_as_completed, _as_completed, scope_of),
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
    """Return whether the caller of the replaced function is user code."""
    return walk(_getframe(4))


def _wait(original: Any, scope_of: _ScopeOf, fs: Any, timeout: Any = None, return_when: str = "ALL_COMPLETED") -> Any:
    scope = scope_of()
    if scope is None or not _by_user():
        return original(fs, timeout, return_when)
    futures = in_order(fs)
    from concurrent.futures._base import DoneAndNotDoneFutures

    # Waiting until all are done always gives the same result: not an event, so the program may wait here or find them
    # done.
    whole = return_when == "ALL_COMPLETED" or len(futures) == 1
    turn: Any = armed(scope, "future.wait", 0)
    done: Any = None
    if turn is not None and (turn.live or turn.comes or (turn.pending and not whole)):
        token = current.set(None)  # the internals of the wait are not recorded
        try:
            if turn.live:
                done = original(futures, timeout, return_when).done
                if not whole or len(done) < len(futures):
                    turn.fired({"done": [i for i, future in enumerate(futures) if future in done]})
            elif await_place(turn, scope.session.threads):
                done = {futures[i] for i in turn.about.get("done", ()) if i < len(futures)}
                original(done)
        finally:
            current.reset(token)
    if done is None:  # the recorded program did not wait here, so this must not last forever; or the replay has failed
        return original(futures, None, return_when)
    return DoneAndNotDoneFutures(
        InOrder(future for future in futures if future in done),
        InOrder(future for future in futures if future not in done),
    )


def _as_completed(original: Any, scope_of: _ScopeOf, fs: Any, timeout: Any = None) -> Any:
    scope = scope_of()
    if scope is None or not _by_user():
        return original(fs, timeout)
    futures = in_order(fs)
    return _each(scope, futures, outside_the_run(original, futures, timeout))


def _each(scope: Scope, futures: list[Any], found: Iterator[Any]) -> Iterator[Any]:
    from concurrent.futures import FIRST_COMPLETED, wait

    left = dict(enumerate(futures))
    while left:
        turn: Any = armed(scope, "future.wait", 0)
        chosen: int | None = None
        if turn is not None:
            token = current.set(None)
            try:
                if turn.live:
                    chosen = _next_recorded(turn, futures, left, found)
                elif turn.comes or turn.pending:
                    chosen = _next_replayed(turn, scope.session.threads, left)
            finally:
                current.reset(token)
        if chosen is None:  # not recorded, or the replay has failed
            wait(left.values(), return_when=FIRST_COMPLETED)
            chosen = next(i for i, future in left.items() if future.done())
        yield left.pop(chosen)


def _next_recorded(turn: Any, futures: list[Any], left: dict[int, Any], found: Iterator[Any]) -> int:
    try:
        chosen = futures.index(next(found))
        while chosen not in left:  # a resumed run has had it from the log
            chosen = futures.index(next(found))
    except TimeoutError as error:
        turn.fired({"done": [], "error": str(error)})
        raise
    turn.fired({"done": [chosen]})
    return chosen


def _next_replayed(turn: Any, threads: Any, left: dict[int, Any]) -> int | None:
    from concurrent.futures import wait

    if not await_place(turn, threads):
        return None
    done = turn.about.get("done")
    if not done:
        raise TimeoutError(turn.about.get("error", ""))
    chosen: int = done[0]
    wait([left[chosen]])
    return chosen


def in_order(fs: Any) -> list[Any]:
    """Return the futures or tasks once each: as given, or those of a set in the order in which they were made."""
    futures_ = list(dict.fromkeys(fs))
    if isinstance(fs, (set, frozenset)) and not isinstance(fs, InOrder):
        futures_.sort(key=lambda future: getattr(future, "_tracekit_n", 0))
    return futures_


# -- threads and pools -------------------------------------------------------------------------------------------------
#
# Each started thread and each submitted call is a lane; a pool's own workers are not.

#: The threads that pools start for themselves, by module and name of target or class.
_WORKERS: Final = frozenset(
    {
        ("concurrent.futures.thread", "_worker"),
        ("anyio._backends._asyncio", "WorkerThread"),
        ("concurrent.futures.process", "_ExecutorManagerThread"),
        ("multiprocessing.queues", "Queue._feed"),
    }
)


def _pool_patches() -> list[ReversiblePatch]:
    """Return the patches for the modules that are loaded."""
    found = [hooks.once(threading.Thread, "start", _start)]
    pool = loaded("concurrent.futures.thread")
    return found if pool is None else [*found, hooks.once(pool.ThreadPoolExecutor, "submit", _submit)]


# -- threads -----------------------------------------------------------------------------------------------------------


def _start(original: Any) -> Any:
    def start(self: threading.Thread) -> None:
        scope = current.get()
        if scope is None:
            return original(self)  # type: ignore[no-any-return]
        if is_telemetry(_work(self)):
            return Context().run(_apart, original, self)
        threads = scope.session.threads
        beside = threads is not None and not walk(_getframe(1))
        if not _is_worker(self):
            lane = started(parent_lane(scope), _thread_name(self), scope.live)
            _enter_at_run(self, scope.in_lane(lane), beside)
            follow_locks(scope)
        if threads is None:
            return original(self)  # type: ignore[no-any-return]
        threads.launching()
        try:
            original(self)
        finally:
            threads.launched(self.native_id, self.ident, beside=beside)
        return None

    start.__qualname__ = "Thread.start"
    return start


def _apart(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
    """Start a thread that a library keeps running by itself: not an act of the code that happened to need it first."""
    with guard.allow():
        original(thread)


def _enter_at_run(thread: Any, scope: Scope, beside: bool) -> None:
    """Shadow ``thread.run`` until the thread has begun.

    A thread that ends because the replay has failed prints nothing: the replay has reported it, and raises that failure
    at its end.
    """

    def run() -> None:
        del thread.run
        current.set(scope)  # and leave it: `threading.excepthook` is called after `run`
        try:
            if type(thread).run is _RUN_OF_THREAD and getattr(thread, "_target", None) is not None:
                thread._target = partial(_for_the_program, thread._target)  # which `run` forgets in the end
            call = Entered(thread.run, scope)
            call.beside = beside
            call()
        except ReplayError as error:
            if error.run_id is None:
                raise

    thread.run = run


#: Calls what the thread was given, from a file that does not count as the program's.
_RUN_OF_THREAD: Final = threading.Thread.run


def _for_the_program(target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return handed.call(target, args, kwargs)


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
    """Return what a thread runs."""
    if isinstance(thread, threading.Timer):
        return _bare(thread.function)
    target = getattr(thread, "_target", None)
    return type(thread).run if target is None else _bare(target)


def _bare(call: Any) -> Any:
    while hasattr(call, "func") and hasattr(call, "keywords"):
        call = call.func
    return call


# -- pools -------------------------------------------------------------------------------------------------------------


#: Code that passes a call on to a thread for another caller.
_HANDING_ON: Final = (ASYNCIO, os.path.join(STDLIB, "concurrent", "futures", ""))
#: The file in which an event loop runs callbacks.
_EVENTS: Final = os.path.join(ASYNCIO, "events.py")


def started_by_user(frame: FrameType | None, call: Any) -> bool:
    """Return whether user code caused a call in a thread; if a task was created for it alone, the function's own file
    decides."""
    while frame is not None and frame.f_code.co_filename.startswith(_HANDING_ON):
        if frame.f_code.co_name == "_run" and frame.f_code.co_filename == _EVENTS:
            code = getattr(inspect.unwrap(call.function), "__code__", None)
            return code is None or is_user_code(code.co_filename)
        frame = frame.f_back
    return frame is None or walk(frame)


def _runs_in_other_interpreters(pool: Any) -> bool:
    """Whether it is a pool of interpreters (Python 3.14), which pickles its calls; no run reaches into another interpreter."""
    made_by = getattr(pool, "prepare_context", None)
    return made_by is not None and made_by.__module__ != "concurrent.futures.thread"


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if scope is None or _runs_in_other_interpreters(self):
            return original(self, fn, *args, **kwargs)
        fn, args, kwargs = enclose(scope, fn, args, kwargs)
        call = entered(fn, args)
        call.by_user = started_by_user(_getframe(1), call)
        if call.by_user:
            call.turn = begin(scope.in_lane(call.lane))
        threads = scope.session.threads
        if call.turn is not None and threads is not None and not call.turn.live:
            call.queue = scope.session.state.extras.of(_PoolQueues).of(self, threads)  # before a worker can take it up
            if call.turn.comes:
                call.turn.queued(partial(call.queue.take_up, call))
        future = original(self, fn, *args, **kwargs)
        submitted(future, call)
        return future

    submit.__qualname__ = "ThreadPoolExecutor.submit"
    return submit


# In a replay a worker may take up a call that begins later than one that is still in the queue: several threads submit
# calls, in another order than in the recording, or a worker was slow to begin. If all workers wait like that, one of them
# takes up the other call, and its own goes into the queue instead.


class _PoolQueue:
    """The calls of a pool in a replay: in which of its work items workers wait for the turn of a call."""

    def __init__(self, pool: Any, threads: Any) -> None:
        self._pool: Final = ref(pool)
        self._threads: Final = threads
        self._held: Final[list[Any]] = []

    def holds(self, item: Any) -> None:
        self._held.append(item)

    def lets_go(self, item: Any) -> None:
        self._held.remove(item)

    def take_up(self, call: Entered) -> bool:
        """Have a worker take up ``call``, which is in the queue, and begins next, when nothing can move; return whether one
        does."""
        pool = self._pool()
        if pool is None:
            return False
        queued = self._queued(pool, call)
        if queued is None:
            return False
        for held in self._held:
            waiting = _call_of(held)
            if waiting is not None and self._exchange(queued, held, call, waiting):
                return True
        if _has_initializer(pool) or len(pool._threads) >= pool._max_workers:
            return False
        with self._threads.lock:
            self._threads.waking(None)
        start_new_thread(_grow, (pool, self._threads))
        return True

    def _queued(self, pool: Any, call: Entered) -> Any:
        """Return the work item of ``call``, if it is in the queue, which nobody uses now."""
        items = []
        with suppress(_empty()):
            while True:
                items.append(pool._work_queue.get_nowait())
        for item in items:
            pool._work_queue.put(item)
        return next((item for item in items if item is not None and _call_of(item) is call), None)

    def _exchange(self, queued: Any, held: Any, call: Entered, waiting: Entered) -> bool:
        """Have the worker that waits with ``waiting`` begin ``call`` instead."""
        if waiting.turn.comes and not waiting.turn.takes_turn_of(call.turn):
            return False
        found = {**vars(queued)}
        vars(queued).update(vars(held))
        vars(held).update(found)
        if waiting.turn.comes:
            waiting.turn.queued(partial(self.take_up, waiting))
        else:
            waiting.let_go()
        return True


class _PoolQueues:
    """Those of a replay's pools."""

    def __init__(self) -> None:
        self._found: Final[WeakKeyDictionary[Any, _PoolQueue]] = WeakKeyDictionary()

    def of(self, pool: Any, threads: Any) -> _PoolQueue:
        found = self._found.get(pool)
        if found is None:
            if type(pool._threads) is set:
                pool._threads = _Workers(pool._threads)
            found = self._found[pool] = _PoolQueue(pool, threads)
        return found


def _empty() -> type[Exception]:
    from queue import Empty

    return Empty


def _has_initializer(pool: Any) -> bool:
    """Whether each worker begins with the program's own code. From Python 3.14 on the worker's context has it."""
    context = getattr(pool, "_create_worker_context", None)
    if context is None:
        return getattr(pool, "_initializer", None) is not None
    return getattr(context(), "initializer", None) is not None


def _grow(pool: Any, threads: Any) -> None:
    """Start another worker, as many as the pool may have: each worker that was once idle is counted as idle."""
    try:
        with pool._shutdown_lock:
            before = len(pool._threads)
            while len(pool._threads) == before < pool._max_workers:
                pool._adjust_thread_count()
    finally:
        with threads.lock:
            threads.woken()


class _Workers(set[Any]):
    """The threads of a pool; one that is added while they are joined is joined as well."""

    def __iter__(self) -> Iterator[Any]:
        seen: set[Any] = set()
        while rest := set.difference(self, seen):
            yield from set.__iter__(rest)
            seen |= rest


# -- other schedulers --------------------------------------------------------------------------------------------------
#
# Libraries that schedule tasks or greenlets themselves, without lanes, so that a recording could not be replayed. This
# is reported before there is a recording. Integrations declare them.


def refuse_uncovered() -> None:
    """Raise if a run would begin inside a scheduler whose tasks open no lanes."""
    for scheduler in schedulers():
        if loaded(scheduler.package) is not None and scheduler.running():
            raise _not_covered(scheduler)


def _not_covered(scheduler: Scheduler) -> RunStateError:
    return RunStateError(
        f"{scheduler.name} is not covered: what it runs concurrently could not be distinguished in a replay",
        location=caller(),
        next_action=scheduler.instead,
    )


def _uncovered_patches() -> list[ReversiblePatch]:
    found: list[ReversiblePatch] = []
    for scheduler in schedulers():
        for module, attribute in scheduler.starts:
            owner, name = owner_of(loaded(module), attribute)
            if owner is not None and name in vars(owner):
                refusing = partial(_refusing, owner, name, scheduler)
                found += hooks.made((module, attribute), refusing)
    return found


def _refusing(owner: Any, name: str, scheduler: Scheduler) -> list[ReversiblePatch]:
    """Return the patch of a function that starts something: in place for Python functions, which are imported by name."""
    start = vars(owner)[name]

    def unless_recorded(original: Any) -> Any:
        @wraps(start)
        def call(*args: Any, **kwargs: Any) -> Any:
            scope = current.get()
            if scope is not None and not scope.live:  # what a tool does inside is answered as a whole
                raise _not_covered(scheduler)
            return original(*args, **kwargs)

        return call

    if type(start) is FunctionType and not start.__closure__:
        return [
            CodeExchange(
                start, lambda original: lambda _, /, *args, **kwargs: unless_recorded(original)(*args, **kwargs)
            )
        ]
    if isinstance(owner, type) and not owner.__flags__ & _TAKES_ASSIGNMENT:
        with suppress(Unsupported):
            return [MethodEntry(owner, name, unless_recorded)]
        return []
    return [AttributePatch(owner, name, unless_recorded(start))]


#: The flag of a type whose attributes can be set from Python.
_TAKES_ASSIGNMENT: Final = 1 << 9


# -- concurrency -------------------------------------------------------------------------------------------------------
#
# Lanes in practice: task creation, thread start and executor submit carry the run on. The hooks are in place while a
# session is active (``hooks``) and do nothing if the context has no run. A lane is counted when its task,
# thread or call is *started*; it is entered innermost, around the program's own callable, because libraries run that in
# a copy of an older context.


def _modules() -> list[str]:
    return ["concurrent.futures.thread", *(module for scheduler in schedulers() for module, _ in scheduler.starts)]


hooks: Final = Switch(lambda: _patches(), _modules)


def _patches() -> list[ReversiblePatch]:
    return _uncovered_patches() + _pool_patches()
