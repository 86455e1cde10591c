"""What is started in a run: its name, its parent, and the callable that enters its lane innermost."""

from __future__ import annotations

from _thread import allocate_lock
from asyncio import current_task
from asyncio.events import _get_running_loop
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, Final

from .._engine.gate import owned, owner
from .._engine.lanes import NOBODY, Lane, started
from .._engine.scope import Scope, current, enter

__all__ = ["Entered", "enclose", "name_of", "parent_lane"]

_RUN: Final = Context.run


def parent_lane(scope: Scope) -> Lane:
    """The lane that starts something here: the scope's, or that of a task which shares its context with others."""
    lane = scope.lane
    loop = _get_running_loop()
    if loop is not None and owned:
        task = current_task(loop)
        if task is not None and id(task) != lane.owner:
            known = owned.get(id(task))
            if known is not None and known.root is lane.root:
                return known
    return lane


def name_of(started_: Any) -> str:
    """The ``__qualname__`` of an unwrapped callable or a coroutine, else its type's."""
    while type(started_) is Entered:
        started_ = started_._call
    inner = getattr(started_, "cr_frame", None)
    if inner is not None and started_.__qualname__ == "TaskHandle._run_coro":  # anyio's shell around a task's coroutine
        started_ = getattr(inner.f_locals.get("self"), "_coro", started_)
    name = getattr(started_, "__qualname__", None)
    return name if isinstance(name, str) else type(started_).__qualname__


class Entered:
    """A callable that runs in ``scope``'s lane, whoever's context it is called in."""

    __slots__ = ("_call", "_gate", "_scope", "begun", "turn")

    def __init__(self, call: Callable[..., Any], scope: Scope) -> None:
        self._call: Final = call
        self._scope: Final = scope
        #: Its place among the events of the run, where it is one; see ``handover``.
        self.turn: Any = None
        self.begun = False
        self._gate = allocate_lock()
        self._gate.acquire()

    @property
    def lane(self) -> Lane:
        return self._scope.lane

    def taken_up(self) -> None:
        """A worker has it now."""
        threads = self._scope.session.threads
        if threads is not None:
            threads.begun()

    def hold(self) -> None:
        """Hold the worker of a call that never began in the recording, until it is cancelled or the replay ends."""
        self.turn.on_fire(self.let_go, anywhere=True)
        self._gate.acquire()
        self.turn.cancel()

    def let_go(self) -> None:
        """Whoever is held, now or later, goes on."""
        try:
            self._gate.release()
        except RuntimeError:  # somebody else did
            pass

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self.taken_up()
        self.begun = True
        lane, me = self._scope.lane, owner()
        before = owned.get(me)
        # Known by its owner too: the callable may itself run the program's code in yet another copied context.
        owned[me] = lane
        lane.owner = me
        token = enter(self._scope)
        try:
            if self.turn is not None and self.turn.live:
                self.turn.fired()
            return self._call(*args, **kwargs)
        finally:
            current.reset(token)
            lane.owner = NOBODY
            if before is None:
                owned.pop(me, None)
            else:
                owned[me] = before


def enclose(
    scope: Scope, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call that runs the program's callable in a lane of its own, counted now, inside whatever contexts surround it."""
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
    threads = scope.session.threads
    if threads is not None:
        threads.submitted()
    call = Entered(call, scope.in_lane(lane))
    for run in reversed(outer):
        call, args = run, (call, *args)
    return call, args, kwargs
