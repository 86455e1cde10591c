"""Capture of event loops: their tasks are lanes, what arrives or fires in them is an event of the run.

Imported once asyncio has been imported.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import current_task, futures, isfuture, taskgroups, tasks
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterable
from concurrent.futures import Future as CallFuture
from contextlib import nullcontext, suppress
from contextvars import Context, ContextVar
from functools import partial
from inspect import iscoroutinefunction
from sys import _getframe
from types import CodeType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from .._reality import wake
from .._runtime.callsite import caller
from .._runtime.lane import NOBODY, Lane, started
from .._runtime.loop_queue import LoopQueue
from .._runtime.session import Scope, Uncounted, current, enter, outside_the_run
from .callers import by_asyncio, by_tracekit
from .leftovers import by_finalizer, collecting, for_finalizer
from .patch import AttributePatch, Patch, ReversiblePatch, Switch
from .signals import called_in_loop
from .threads import (
    Entered,
    InOrder,
    enclose,
    entered,
    in_order,
    name_of,
    numbered,
    parent_lane,
    started_by_user,
)
from .waits import own, scope_of_timers

__all__ = ["patches"]


# -- tasks -------------------------------------------------------------------------------------------------------------


def _set_of_tasks(*elements: Iterable[Any]) -> set[Any]:
    """Replacement of ``set`` in ``asyncio.tasks``: ordered inside a run."""
    if current.get() is None:
        return set(*elements)
    ordered = InOrder(*map(in_order, elements))
    return _done_in_order(ordered) if _getframe(1).f_code is _MAKES_THE_SET else ordered


#: The iterator that ``asyncio.as_completed`` returns from Python 3.13 on, and the code that makes its set of futures.
_AS_COMPLETED: Final[Any] = getattr(tasks, "_AsCompletedIterator", None)
_MAKES_THE_SET: Final = (tasks.as_completed if _AS_COMPLETED is None else _AS_COMPLETED.__init__).__code__


class _Done(asyncio.Future[Any]):
    """Replaces ``future``, which is done already, in ``asyncio.as_completed``.

    ``as_completed`` puts its futures into a set of its own before it asks each to report: those that are done would report
    in the order of their addresses. These report in the order of ``group``, once ``unasked`` has none of them left.
    """

    def __init__(self, future: Any, group: list[_Done], unasked: set[_Done]) -> None:
        super().__init__(loop=future.get_loop())
        self.future: Final = future
        self._group: Final = group
        self._unasked: Final = unasked
        group.append(self)
        unasked.add(self)

    def add_done_callback(self, callback: Any, *, context: Context | None = None) -> None:
        super().add_done_callback(callback, context=context)
        self._unasked.discard(self)
        if not self._unasked:
            for one in self._group:
                if not one.done():
                    one.set_result(None)

    def result(self) -> Any:
        return self.future.result()


def _done_in_order(ordered: InOrder) -> InOrder:
    """Return the futures with each that is done replaced, if there are several of those."""
    done = {one for one in ordered if isfuture(one) and one.done()}
    if len(done) < 2:
        return ordered
    group: list[_Done] = []
    unasked: set[_Done] = set()
    return InOrder([_Done(one, group, unasked) if one in done else one for one in ordered])


def _iterator_of_done(original: Any) -> Any:
    """Return the iterator of ``asyncio.as_completed`` such that it yields the program's own futures."""

    async def _wait_for_one(self: Any, resolve: bool = False) -> Any:
        found = await original(self)
        found = found.future if type(found) is _Done else found
        return found.result() if resolve else found

    return _wait_for_one


class _Task(asyncio.Task[Any]):
    """A task of a run: its place in a set follows from its lane, not from its address.

    A program, or a package, that keeps its tasks in a set and iterates over it meets them in the same order each time.
    """

    __slots__ = ()
    _tracekit_hash: int

    def __hash__(self) -> int:
        try:
            return self._tracekit_hash
        except AttributeError:  # made by somebody who asked a task for its type
            return object.__hash__(self)


#: Of which class a loop's tasks are, if nobody has replaced that, and the same with a place in sets.
_TASK: Final = tasks.Task
_Task.__name__, _Task.__qualname__, _Task.__module__ = _TASK.__name__, _TASK.__qualname__, _TASK.__module__


def _made(original: Any, loop: Any, lane: Lane, coro: Any, options: dict[str, Any]) -> Any:
    """Call ``original``, the loop's method, such that the task has the place of ``lane`` in sets.

    If the program creates its tasks in a way of its own, they are as it makes them.
    """
    if tasks.Task is not _TASK or loop.get_task_factory() is not None:
        return original(loop, coro, **options)

    def make(loop: Any, coro: Any, **options: Any) -> Any:
        loop.set_task_factory(None)  # the first piece of an eager task runs here, and may create tasks or set a factory
        task = _new_task(_Task)
        task._tracekit_hash = lane.hash  # before the task enters the set of all tasks
        _begin_task(task, coro, loop=loop, **options)
        if task._source_traceback:
            del task._source_traceback[-3:]  # the loop's own method, and what is around it
        return task

    loop.set_task_factory(make)
    try:
        return original(loop, coro, **options)
    finally:
        if loop.get_task_factory() is make:
            loop.set_task_factory(None)


_new_task: Final[Any] = _Task.__new__
_begin_task: Final[Any] = _Task.__init__


def _create_task(original: Any) -> Any:
    def create_task(self: Any, coro: Any, **options: Any) -> Any:
        scope = current.get()
        if scope is None:
            return original(self, coro, **options)
        context = options.get("context")
        if _get_running_loop() is None and by_asyncio():
            # A function that runs a loop until a coroutine is done waits for it: this is no other line of execution.
            lane = parent_lane(scope)
            before = lane.owner
            lane.since -= 1  # for its first piece, which an awaited coroutine does not have
        else:
            lane, before = started(parent_lane(scope), name_of(coro), scope.live), NOBODY
            lane.task = True
            if scope.session.threads is not None:  # a replay
                lane.made_at = caller()
                lane.by_chance = (lane.parent is not None and lane.parent.by_chance) or by_finalizer(look_into=False)
        if context is not None:
            make = partial(_made, original, self, lane, coro, options)
            return _in_given_context(make, scope, lane, context, before)
        # The task copies the context when it is created, and an eager task runs its first piece right there.
        token = current.set(scope.in_lane(lane))
        try:
            task = _made(original, self, lane, coro, options)
        finally:
            current.reset(token)
        lane.owner, lane.in_loop = id(task), True
        numbered(task)
        _created(scope, task)
        if hasattr(task, "add_done_callback"):
            task.add_done_callback(_AtEnd(scope, lambda _: _ended(lane, before)), context=Context())
        return task

    create_task.__name__ = "create_task"
    create_task.__qualname__ = getattr(original, "__qualname__", "create_task")
    create_task.__doc__ = getattr(original, "__doc__", None)
    return create_task


def _created(scope: Scope, task: Any) -> None:
    threads = scope.session.threads
    if threads is not None:
        threads.created(task)


def _ended(lane: Lane, before: int) -> None:
    lane.owner, lane.in_loop = before, False


class _AtEnd:
    """Bookkeeping at the end of a run's task: its first callback, so that it precedes whatever waits for the task."""

    __slots__ = ("_callback", "progress")

    def __init__(self, scope: Scope, callback: Callable[[Any], object]) -> None:
        self._callback: Final = callback
        self.progress: Final = scope.session.progress

    def __call__(self, task: Any) -> None:
        self._callback(task)


class _Lent:
    """A context that was passed to a task, and the tasks in it that have not ended.

    While one of them runs, the context has the lane of the first; a task that is done no longer counts, whenever its
    callbacks run.
    """

    __slots__ = ("before", "context", "tasks")

    def __init__(self, context: Context, before: Scope | None) -> None:
        self.context: Final = context
        #: What the context has when no task is in it.
        self.before: Final = before
        self.tasks: Final[list[Any]] = []

    @property
    def free(self) -> bool:
        return all(task.done() for task in self.tasks)

    def end(self, task: Any) -> None:
        """``task`` has ended; if no other is in the context, that gets what it had before."""
        if task in self.tasks:
            self.tasks.remove(task)
            self.give_back()

    def give_back(self) -> None:
        if self.free and self.context.get(_given) is self:
            self.tasks.clear()
            self.context.run(_lend, self.before, None)


#: In a context that was passed to a task: who is in it. A copy of it, which a task may create and pass on, has this
#: value as well, but is another context.
_given: Final[ContextVar[_Lent | None]] = ContextVar("tracekit.given", default=None)


def _in_given_context(make: Callable[[], Any], scope: Scope, lane: Lane, context: Context, owner: int) -> Any:
    """Create a task with a caller-supplied context.

    The first task of such a context has its lane set in the context from its first piece on; with several tasks at
    once, the lane is looked up by task.
    """
    lent = context.get(_given)
    if lent is None or lent.context is not context or lent.free:
        before = context.get(current) if lent is None or lent.context is not context else lent.before
        lent = _Lent(context, before)
        with suppress(RuntimeError):  # the context is the running one
            context.run(_lend, scope.in_lane(lane), lent)
    try:
        task = make()
    except BaseException:
        lent.give_back()
        raise
    numbered(task)
    me = lane.owner = id(task)
    lane.in_loop = True
    lane.owned[me] = lane
    lent.tasks.append(task)
    _created(scope, task)

    def ended(_: object) -> None:
        _ended(lane, owner)
        if lane.owned.get(me) is lane:
            del lane.owned[me]
        lent.end(task)

    task.add_done_callback(_AtEnd(scope, ended), context=Context())
    return task


def _lend(scope: Scope | None, lent: _Lent | None) -> None:
    current.set(scope)
    _given.set(lent)


# -- timers and callbacks ----------------------------------------------------------------------------------------------


_run_bare: Final = asyncio.Handle._run
#: Of which class a call is that another thread hands to a loop. From Python 3.14 on, any thread may cancel it.
_FROM_THREAD: Final[type[asyncio.Handle]] = getattr(asyncio.events, "_ThreadSafeHandle", asyncio.Handle)


class _Counted(asyncio.Handle):
    """A callback of a run; while recording, it is counted where it runs."""

    __slots__ = ("counted", "lane")

    counted: bool
    lane: Lane | None
    own = False
    call = _run_bare

    def _run(self) -> None:
        lane = self.lane
        if lane is not None and self.counted:  # ``lane.runs()``, inlined
            lane.since += 1
            if lane.moved is not None:
                lane.moves()
        _run_bare(self)


class _Own(_Counted):
    """A callback of tracekit itself, placed among the run's callbacks."""

    __slots__ = ()

    own = True


def _call_soon(original: Any) -> Any:
    def call_soon(self: Any, callback: Any, *args: Any, context: Context | None = None) -> Any:
        scope = current.get() if context is None else context.get(current)
        if scope is None:
            if type(callback) is not _AtEnd or callback.progress is None:
                return original(self, callback, *args, context=context)
            own = _Own(callback, args, self, context)
            callback.progress.soon(self, None, own)
            return own
        progress = scope.session.progress
        if progress is None:
            return original(self, callback, *args, context=context)
        handle = _Counted(callback, args, self, context)
        lane = scope.lane
        progress.soon(self, None if scope.live or (lane.inside and _resumes(callback, lane)) else lane, handle)
        return handle

    call_soon.__qualname__ = getattr(original, "__qualname__", "call_soon")
    return call_soon


def _resumes(callback: Any, lane: Lane) -> bool:
    """Return whether ``callback`` resumes the task of ``lane``, which is inside a live call: that is no progress of the
    program.

    The context of the callback says so by itself, unless somebody runs a part of the task in another one
    (``context.run(coroutine.send, None)``).
    """
    return id(getattr(callback, "__self__", None)) == lane.owner


def _call_soon_threadsafe(original: Any) -> Any:
    """Capture what a thread hands to a loop: an event of the run, which a replay delivers at the same place."""

    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, context: Context | None = None) -> Any:
        running: Any = _get_running_loop()
        if _is_finalizer(args):
            inside = current.get()
            if running is not self or inside is None or inside.session.progress is None:
                return original(self, callback, *args, context=context)
            # In its place among the callbacks of the program: whether the loop stops before the generator is closed depends on it.
            lane = _closes_generator(inside)
            closing = (_Own if lane is None else _Counted)(for_finalizer, (callback, *args), self, context)
            inside.session.progress.soon(self, lane, closing)
            original(self, _nothing, context=Context())
            return closing
        # Inside a callback of a thread's future it is chance whether this is the thread with the result, or the loop's own,
        # which added the callback a moment later: an event of the run, too.
        if running is self and not own.calls_back:
            inside = current.get() if context is None else context.get(current)
            if inside is None or inside.session.progress is None:
                return original(self, callback, *args, context=context)
            # It takes its place among the program's callbacks, like those of ``call_soon``; and the loop wakes up if it
            # is waiting.
            handle = running.call_soon(callback, *args, context=context)
            original(self, _nothing, context=Context())
            return handle
        scope = scope_of_timers() if context is None or context.get(current) is not None else None
        if scope is None or not scope.session.state.ordered:
            return original(self, callback, *args, context=context)
        turn: Any = scope.session.arm(scope, "loop.call", 0)
        if (future := _result_of(callback)) is not None:
            future._tracekit_handed = turn
        handle = _FROM_THREAD(callback, args, self, context)

        def run() -> None:
            if not handle.cancelled():
                handle._run()

        def arrived() -> None:
            if handle.cancelled():
                return
            if turn.comes:
                turn.on_fire(run)
                return
            # A thread gives it up before or after it has begun as a whole.
            with nullcontext() if future is None or self.get_task_factory() is not None else future._condition:
                if turn.live:
                    turn.fired()
                run()

        original(self, arrived, context=Context())
        return handle

    call_soon_threadsafe.__qualname__ = getattr(original, "__qualname__", "call_soon_threadsafe")
    return call_soon_threadsafe


#: What ``asyncio.run_coroutine_threadsafe`` hands to a loop.
_SUBMITTED: Final = next(
    code for code in asyncio.run_coroutine_threadsafe.__code__.co_consts if isinstance(code, CodeType)
)


def _result_of(callback: Any) -> Any:
    """Return the future by which a thread gets the result of what it has a loop run; ``None`` for another callback."""
    if getattr(callback, "__code__", None) is not _SUBMITTED:
        return None
    return callback.__closure__[_SUBMITTED.co_freevars.index("future")].cell_contents


def _set_result(original: Any) -> Any:
    def _set_concurrent_future_state(concurrent: Any, source: Any) -> None:
        handed = getattr(concurrent, "_tracekit_handed", None)
        if handed is not None and handed.given_up and not concurrent.cancelled():
            concurrent._tracekit_withheld = True  # the recorded program had cancelled it by then, and this one will
            return None
        return original(concurrent, source)  # type: ignore[no-any-return]

    return _set_concurrent_future_state


def _call_exception_handler(original: Any) -> Any:
    """An exception in a callback is handled in the run and the lane of the callback.

    Before Python 3.12 the handler runs in whatever context the loop is in, which in a replay, and with uvloop, is in no run.
    """

    def call_exception_handler(self: Any, context: Any) -> Any:
        handle = context.get("handle") if isinstance(context, dict) else None
        inside = getattr(handle, "_context", None)
        scope = None if inside is None else inside.get(current)
        if scope is None:
            return original(self, context)
        token = current.set(scope)
        try:
            return original(self, context)
        finally:
            current.reset(token)

    call_exception_handler.__qualname__ = getattr(original, "__qualname__", "call_exception_handler")
    return call_exception_handler


def _nothing() -> None:
    """Do nothing; scheduled only to wake the loop."""


def _is_finalizer(args: tuple[Any, ...]) -> bool:
    """Return whether the loop is asked to close an abandoned asynchronous generator: when that is noticed is a matter
    of chance."""
    return (
        len(args) == 1 and type(args[0]).__name__ == "async_generator_athrow"
    )  # a type of C that can't be recognised otherwise


def _closes_generator(scope: Scope) -> Lane | None:
    """Return the lane in which a loop begins to close a generator that the code of ``scope`` has let go of; ``None`` if
    that was done inside a live step, or by a garbage collection.

    What the generator does then (it may cancel what another lane waits for) is held until what came before it has come;
    since it is a lane of its own, the program's lanes are not affected if it is closed at another time.
    """
    if scope.live or collecting.here():
        return None
    return started(parent_lane(scope), "aclose")


def _call_at(original: Any) -> Any:
    def call_at(self: Any, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        inside = current.get()
        if inside is None:
            return original(self, when, callback, *args, context=context)
        scope = scope_of_timers()
        if scope is None:
            if inside.session.state.clock is None:
                return original(self, when, callback, *args, context=context)
            handle = original(self, _on_machine(self, when, inside), callback, *args, context=context)
            return _shown_as(handle, when, None)
        timer = scope.session.arm(scope, "asyncio.timer", when - _now_in(self, scope))
        if timer.live:
            machine = _on_machine(self, when, scope)
            handle = original(self, machine, callback, *args, context=context)
            if type(handle) is asyncio.TimerHandle:
                return _shown_as(handle, when, timer)
            handle.cancel()
            return original(self, machine, _fired, timer, callback, args, context=context)
        return _Held(self, when, callback, args, context, timer)

    call_at.__qualname__ = "BaseEventLoop.call_at"
    return call_at


def _outside(original: Any) -> Any:
    """Wrap ``shutdown_default_executor``, with which ``asyncio.run`` waits for the loop's own threads: not a wait of
    the run.

    From Python 3.12 on it has a timeout.
    """

    async def shutdown_default_executor(self: Any, *args: Any, **options: Any) -> None:
        scope = current.get()
        if scope is not None and scope.session.threads is not None:
            args, options = (), {}  # a replay that is stuck here must not end by the clock
        token = current.set(None)
        try:
            await original(self, *args, **options)
        finally:
            current.reset(token)

    shutdown_default_executor.__qualname__ = "BaseEventLoop.shutdown_default_executor"
    return shutdown_default_executor


class _Opened(WeakKeyDictionary[Any, bool]):
    """The asynchronous generators that a loop has started and not finished, which it closes at its end.

    They are kept in the order in which they started, each with whether it started inside a live step or for tracekit
    itself: a replay has no such generators, or others.
    """

    def add(self, generator: Any) -> None:
        self.setdefault(generator, False)

    def discard(self, generator: Any) -> None:
        self.pop(generator, None)


def _first_iterated(original: Any) -> Any:
    def _asyncgen_firstiter_hook(self: Any, agen: Any) -> None:
        scope = current.get()
        if scope is not None and type(self._asyncgens) is WeakSet:
            self._asyncgens = _Opened(dict.fromkeys(self._asyncgens, False))
        original(self, agen)
        if scope is not None and (scope.live or by_tracekit()) and type(self._asyncgens) is _Opened:
            self._asyncgens[agen] = True

    _asyncgen_firstiter_hook.__qualname__ = "BaseEventLoop._asyncgen_firstiter_hook"
    return _asyncgen_firstiter_hook


def _shutdown_asyncgens(original: Any) -> Any:
    """Close the generators of live steps, and tracekit's, after the run's own and in no lane: they would be counted as
    the run's."""

    async def shutdown_asyncgens(self: Any) -> None:
        inside: list[Any] = []
        if type(self._asyncgens) is _Opened:
            inside = [generator for generator, live in self._asyncgens.items() if live]
        for generator in inside:
            self._asyncgens.discard(generator)
        await original(self)
        if inside:
            for generator in inside:
                self._asyncgens.add(generator)
            token = current.set(None)
            try:
                await original(self)
            finally:
                current.reset(token)

    shutdown_asyncgens.__qualname__ = "BaseEventLoop.shutdown_asyncgens"
    return shutdown_asyncgens


def _close(original: Any) -> Any:
    """Drop what is kept for a closed loop: a long run must not hold loops that are over."""

    def close(self: Any) -> None:
        original(self)
        scope = current.get()
        if scope is not None and scope.session.progress is not None and self.is_closed():
            scope.session.progress.closed(self, scope.lane)

    close.__qualname__ = getattr(original, "__qualname__", "close")
    return close


def _call_later(original: Any) -> Any:
    def call_later(self: Any, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        scope = scope_of_timers()
        if scope is None:
            return original(self, delay, callback, *args, context=context)
        timer = scope.session.arm(scope, "asyncio.timer", delay)
        if timer.live:
            return original(self, delay, _fired, timer, callback, args, context=context)
        return _Held(self, _now_in(self, scope) + delay, callback, args, context, timer)

    call_later.__qualname__ = "Loop.call_later"
    return call_later


def _now_in(loop: Any, scope: Scope | None) -> float:
    """Return the loop's time as the run has it, or the machine's; no read by the program or a library."""
    now: float = outside_the_run(loop.time)
    clock = None if scope is None else scope.session.state.clock
    return now if clock is None else clock.now("loop.time", lambda: now)


def _on_machine(loop: Any, when: float, scope: Scope) -> float:
    """Convert ``when`` from the run's clock to the machine's, if the code that armed the timer read the run's."""
    now = _now_in(loop, None)
    clock = scope.session.state.clock
    return when if clock is None else now + (when - clock.now("loop.time", lambda: now))


def _shown_as(handle: Any, when: float, timer: Any) -> Any:
    """Return ``handle`` so that it appears to be armed at ``when``."""
    if type(handle) is asyncio.TimerHandle:
        handle._args, handle.__class__ = _Arguments(handle._args), _Armed
        handle._args.when, handle._args.timer = when, timer
    return handle


def _fired(timer: Any, callback: Any, args: tuple[Any, ...]) -> None:
    timer.fired()
    callback(*args)


class _Armed(asyncio.TimerHandle):
    """A timer handle on the machine's clock that shows the program the time, callback and arguments it was armed with."""

    __slots__ = ()

    def when(self) -> float:
        return self._args.when  # type: ignore[attr-defined, no-any-return]

    def _run(self) -> None:
        timer = self._args.timer  # type: ignore[attr-defined]
        if timer is not None:
            timer.fired()
        super()._run()


class _Arguments(tuple[Any, ...]):  # noqa: SLOT001
    """The arguments of a callback, with the time it was armed for and its timer: a handle has no room for another
    field."""

    when: float
    timer: Any


class _Held(asyncio.TimerHandle):
    """A timer handle on no loop's clock: it runs when its recorded position is reached."""

    def __init__(
        self, loop: Any, when: float, callback: Any, args: tuple[Any, ...], context: Context | None, timer: Any
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._timer = timer
        self._real: asyncio.TimerHandle | None = None
        timer.on_fire(self._fire)

    def cancel(self) -> None:
        if not self._cancelled:
            self._timer.cancel()
            if self._real is not None:
                self._real.cancel()
        asyncio.Handle.cancel(self)  # the loop has no record of it

    def _fire(self) -> None:
        if self._cancelled:
            return
        if self._timer.live:  # not in the log, whose end has been reached: it runs for real
            self._real = self._armed_for_real()
            return
        self._run()

    def _armed_for_real(self) -> asyncio.TimerHandle:
        """Return a real timer, not armed by the run, for the time left on the run's clock."""
        loop: Any = self._loop  # type: ignore[attr-defined]
        scope = self._context.get(current)  # type: ignore[attr-defined]
        token = current.set(None)
        try:
            when: float = self._when  # type: ignore[attr-defined]
            armed: asyncio.TimerHandle = loop.call_at(
                when if scope is None else _on_machine(loop, when, scope), self._run_out
            )
            return armed
        finally:
            current.reset(token)

    def _run_out(self) -> None:
        self._timer.fired()
        self._run()


def _add_signal_handler(original: Any) -> Any:
    """Capture the calls of a loop's signal handler as events of the run."""

    def add_signal_handler(self: Any, sig: int, callback: Any, *args: Any) -> None:
        if current.get() is None or not callable(callback) or iscoroutinefunction(callback):
            return original(self, sig, callback, *args)  # type: ignore[no-any-return]
        return original(self, sig, called_in_loop, int(sig), callback, args)  # type: ignore[no-any-return]

    add_signal_handler.__qualname__ = getattr(original, "__qualname__", "add_signal_handler")
    return add_signal_handler


def _reschedule(original: Any) -> Any:
    def reschedule(self: Any, when: float | None) -> None:
        if when is None or self._state.name != "ENTERED" or scope_of_timers() is None:
            return original(self, when)  # type: ignore[no-any-return]
        # Even if the deadline has passed already: the recording decides about that, not the replay's clock.
        self._when = when
        if self._timeout_handler is not None:
            self._timeout_handler.cancel()
        self._timeout_handler = asyncio.get_running_loop().call_at(when, self._on_timeout)
        return None

    reschedule.__qualname__ = "Timeout.reschedule"
    return reschedule


# -- from a thread to a loop -------------------------------------------------------------------------------------------


def _ordered_scope() -> Scope | None:
    """Return the scope in which a hand-over belongs to the run, or ``None``."""
    scope = scope_of_timers()
    return scope if scope is not None and scope.session.state.ordered else None


def _chain(original: Any) -> Any:
    def _chain_future(source: Any, destination: Any) -> None:
        scope = _ordered_scope() if isinstance(source, CallFuture) and isfuture(destination) else None
        if scope is None:
            return original(source, destination)  # type: ignore[no-any-return]
        numbered(destination)
        _Arrival(source, destination, scope).expect()
        return None

    return _chain_future


class _Arrival:
    """The result of a call in a thread, ``source``, on its way to ``destination``, a future of an event loop."""

    __slots__ = (
        "_asked_for",
        "_call",
        "_came",
        "_cut_off",
        "_destination",
        "_lane",
        "_loop",
        "_made_at",
        "_progress",
        "_source",
        "_task",
        "_turn",
    )

    def __init__(self, source: Any, destination: Any, scope: Scope) -> None:
        self._source: Final = source
        self._destination: Final = destination
        self._loop: Final = destination.get_loop()
        self._progress: Final = scope.session.progress
        self._call: Final[Entered | None] = getattr(source, "_tracekit_call", None)
        name = "future.arrival" if self._call is None else f"future.arrival:{self._call.lane.name}"
        self._turn: Final[Any] = scope.session.arm(scope, name, 0)
        self._cut_off: Final[Any] = _cut_off(scope, self._call)
        self._came = False
        self._lane: Final = scope.lane
        #: The task that waits for it, and how often that task had been cancelled before.
        self._task: Final = current_task(self._loop) if _get_running_loop() is self._loop else None
        self._asked_for: Final = 0 if self._task is None else self._task.cancelling()
        #: For a call that the recording lacks: the queue of its loop, and how often something had been held there by then.
        self._made_at: tuple[LoopQueue, int] | None = None

    def expect(self) -> None:
        turn = self._turn
        if turn.comes:
            turn.from_thread()
        if self._progress is not None and not (turn.live or turn.comes or self._undelivered):
            queue_of_loop = self._progress.queue(self._loop)
            queue_of_loop.out += 1
            self._destination.add_done_callback(lambda _: queue_of_loop.back(), context=Context())
            self._made_at = queue_of_loop, queue_of_loop.parked
        # Not the program's own: it counts for no lane.
        self._destination.add_done_callback(self._ended, context=Context())
        self._source.add_done_callback(self._done)

    @property
    def _undelivered(self) -> bool:
        """Where the recording has no arrival: return whether the call had started, or was made by a library, and its
        result never arrived."""
        if self._cut_off is not None:
            return bool(self._cut_off.comes)
        return self._call is not None and self._call.turn is not None and bool(self._call.turn.comes)

    def _ended(self, _: object) -> None:
        cut_off = self._cut_off
        if self._came:
            if cut_off is not None and self._task is not None and self._task.cancelling() > self._asked_for:
                # Cancelled after the result arrived and before the task went on with it. A replay withholds the result:
                # the cancellation wakes the task, and that is counted.
                if cut_off.live and self._progress is not None:
                    self._progress.count(self._lane)
                _note(cut_off)
        elif self._destination.cancelled():
            if cut_off is not None:
                _note(cut_off)
            self._source.cancel()

    def _done(self, _: object) -> None:
        self._soon(self._arrived)

    def _soon(self, callback: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, context=Context())

    def _arrived(self) -> None:
        if self._destination.cancelled():
            return
        turn, call = self._turn, self._call
        hop = call is not None and not (call.lane.captured or call.lane.last)
        around = call is not None and _is_around(call, self._lane, turn)
        if turn.comes or not (turn.live or hop or around):
            turn.on_fire(self._copy)
        elif self._cut_off is not None and self._cut_off.comes:
            self._cut_off.hold(lambda: self._soon(self._copy_unseen))
        elif around and not hop:
            self._copy_unseen()
        elif not hop:
            turn.fired()
            self._copy()
        elif turn.live and call is not None:
            turn.fired({"hop": call.number})
            self._copy()
        elif not turn.live and self._undelivered:
            turn.hold(lambda: self._soon(self._copy_unseen))
        else:
            if call is not None and call.by_user and not (turn.live or turn.pending):
                turn.unrecorded(call.lane.name)
                # For its task, if that waits for it alone, it is as if it had taken no time.
                waits = getattr(self._task, "_fut_waiter", None) is self._destination
                if self._progress is not None and self._made_at is not None and not waits:
                    self._progress.unlike_call(call.lane.name, *self._made_at)
            self._copy_unseen()

    def _copy(self) -> None:
        self._came = True
        if not self._destination.done():
            futures._copy_future_state(self._source, self._destination)  # type: ignore[attr-defined]

    def _copy_unseen(self) -> None:
        """Copy without counting what it wakes: such a call may exist or not."""
        with nullcontext() if self._progress is None else self._progress.uncounted():
            self._copy()


def _is_around(call: Entered, caller: Lane, turn: Any) -> bool:
    """Return whether, in a replay, a call in a thread made in lane ``caller`` runs what the recording has in that lane:
    it is around the program."""
    state = call.lane.state
    return state is not None and state is caller.state and not (turn.live or turn.pending)


def _cut_off(scope: Scope, call: Entered | None) -> Any:
    """Arm the event that a library's call in a thread is cancelled before its result arrives; ``None`` for another
    call.

    Such a call is no event itself, since libraries make some of them once per process. But in a replay the program must
    not get further than the point where a timeout or a cancellation stopped it.
    """
    return None if call is None or call.by_user else scope.session.arm(scope, f"future.cut_off:{call.lane.name}", 0)


def _note(cut_off: Any) -> None:
    """A library's call in a thread was cancelled: a recording writes that, a replay notes it."""
    if cut_off.live:
        cut_off.fired()
    else:
        cut_off.noted()


# -- anyio -------------------------------------------------------------------------------------------------------------


def _run_sync(original: Any) -> Any:
    def run_sync_in_worker_thread(cls: Any, func: Any, args: Any, *rest: Any, **options: Any) -> Any:
        scope = current.get()
        if scope is None:
            return original(cls, func, args, *rest, **options)
        func, args, kwargs = enclose(scope, func, tuple(args), {})
        call = entered(func, args)
        call.by_user = started_by_user(_getframe(1), call)
        if kwargs:
            func = _with(func, kwargs)
        made = original(cls, func, args, *rest, **options)
        if scope.live or scope.session.state.ended or not scope.session.state.ordered:
            return made
        abandon = rest[0] if rest else options.get("abandon_on_cancel", False)
        return _arriving(scope, call, made, shielded=not abandon)

    return run_sync_in_worker_thread


async def _arriving(scope: Scope, call: Entered, made: Any, *, shielded: bool) -> Any:
    """Await the result of a call in a thread, ``shielded`` from cancelled scopes; its arrival is an event, as in
    ``_chain``."""
    turn: Any = scope.session.arm(scope, f"future.arrival:{call.lane.name}", 0)
    cut_off = _cut_off(scope, call)
    error: BaseException | None = None
    token = enter(scope.inside(scope.parent or 1, live=True))
    try:
        with Uncounted(scope):
            try:
                result = await made
            except asyncio.CancelledError:  # its result is dropped
                raise
            except BaseException as raised:
                error = raised
            if cut_off is not None and cut_off.comes:
                await _held(cut_off)
    except asyncio.CancelledError:
        if cut_off is not None:
            _note(cut_off)
        raise
    finally:
        current.reset(token)
    hop = not (call.lane.captured or call.lane.last)
    if turn.comes or not (turn.live or hop or _is_around(call, scope.lane, turn)):
        with sys.modules["anyio"].CancelScope(shield=shielded):
            await turn.wait_async()
    elif turn.live and not hop:
        turn.fired()
    elif turn.live:
        turn.fired({"hop": call.number})
    if hop and (turn.comes or turn.live):
        scope.lane.since += 1  # what goes on from here is the callback that the result triggers
    if error is not None:
        raise error
    return result


async def _held(cut_off: Any) -> None:
    """Wait where the recorded program was stopped, until it is stopped again or nothing else can go on."""
    goes_on = asyncio.get_running_loop().create_future()
    cut_off.hold(lambda: wake(goes_on))
    await goes_on


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


# -- patches -----------------------------------------------------------------------------------------------------------

_PATCHES: Final = (
    Patch("asyncio.base_events", "BaseEventLoop.create_task", _create_task),
    Patch("asyncio.base_events", "BaseEventLoop.call_soon", _call_soon),
    Patch("asyncio.base_events", "BaseEventLoop.call_soon_threadsafe", _call_soon_threadsafe),
    Patch("asyncio.base_events", "BaseEventLoop.call_at", _call_at),
    Patch("asyncio.base_events", "BaseEventLoop.shutdown_default_executor", _outside),
    Patch("asyncio.base_events", "BaseEventLoop.close", _close),
    Patch("asyncio.base_events", "BaseEventLoop._asyncgen_firstiter_hook", _first_iterated),
    Patch("asyncio.base_events", "BaseEventLoop.shutdown_asyncgens", _shutdown_asyncgens),
    Patch("asyncio.base_events", "BaseEventLoop.call_exception_handler", _call_exception_handler),
    Patch("asyncio.tasks", "_AsCompletedIterator._wait_for_one", _iterator_of_done),
    Patch("asyncio.timeouts", "Timeout.reschedule", _reschedule),
    Patch("asyncio.futures", "_chain_future", _chain),
    Patch("asyncio.futures", "_set_concurrent_future_state", _set_result),
    Patch("asyncio.unix_events", "_UnixSelectorEventLoop.add_signal_handler", _add_signal_handler),
    Patch("uvloop", "Loop.create_task", _create_task),
    Patch("uvloop", "Loop.call_soon", _call_soon),
    Patch("uvloop", "Loop.call_soon_threadsafe", _call_soon_threadsafe),
    Patch("uvloop", "Loop.call_later", _call_later),
    Patch("uvloop", "Loop.call_exception_handler", _call_exception_handler),
    Patch("uvloop", "Loop.close", _close),
    Patch("uvloop", "Loop.shutdown_default_executor", _outside),
    Patch("uvloop", "Loop.add_signal_handler", _add_signal_handler),
    Patch("anyio._backends._asyncio", "AsyncIOBackend.run_sync_in_worker_thread", _run_sync),
    Patch("anyio._backends._asyncio", "AsyncIOBackend.run_sync_from_thread", _run_from_thread),
)


def patches(switch: Switch) -> list[ReversiblePatch]:
    """Return the patches of ``switch`` for asyncio and for the loaded event loop libraries."""
    # The modules have no global named ``set``: this one shadows the built-in.
    sets = switch.made("set", lambda: [AttributePatch(module, "set", _set_of_tasks) for module in (tasks, taskgroups)])
    return [*switch.of(_PATCHES), *sets]
