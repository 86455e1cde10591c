"""Lanes in practice: task creation, thread start and executor submit carry the run on.

Hooks are in place while a session is active (:func:`activate`, counted) and do nothing where the context has no run. A
lane is counted when its task, thread or call is *started*; who runs it is entered innermost, around the program's own
callable, because libraries run that in a copy of an older context.
"""

from __future__ import annotations

import os
import sys
from asyncio import tasks
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final

from .._engine.gate import owned
from .._engine.lanes import NOBODY, Lane, started
from .._engine.scope import Scope, current
from . import pools
from .launch import name_of, parent_lane
from .ordered import set_of_tasks
from .patch import AttributePatch, Patch, Switch, when_imported

__all__ = ["activate", "after_fork", "deactivate"]

_made: Final[dict[tuple[int, str], Patch]] = {}
_switch: Final = Switch(lambda: _patches())
_forks: Final[list[Callable[[], object]]] = []
_forking = False


def activate() -> None:
    """Put the hooks in place; each call wants a :func:`deactivate`."""
    _switch.on()
    for module in ("uvloop", "anyio._backends._asyncio"):
        when_imported(module, _switch.refresh)


def deactivate() -> list[str]:
    """One holder less; the last one restores everything. Returns what somebody else has patched since."""
    return _switch.off()


def after_fork(call: Callable[[], object]) -> None:
    """Call ``call()`` in each forked child from now on, before its code goes on."""
    global _forking
    if not _forking:
        _forking = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forked)
    if call not in _forks:
        _forks.append(call)


def _forked() -> None:
    owned.clear()
    for call in _forks:
        call()


def _patches() -> list[Patch]:
    patches = [
        _once(BaseEventLoop, "create_task", _create_task),
        # The module has no name ``set`` of its own: this one comes before the built-in.
        _made.setdefault((id(tasks), "set"), AttributePatch(tasks, "set", set_of_tasks)),
    ]
    uvloop = sys.modules.get("uvloop")
    if uvloop is not None and hasattr(uvloop, "Loop"):
        patches.append(_once(uvloop.Loop, "create_task", _create_task))
    return patches + pools.patches(_once)


def _once(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
    """The patch of one place, the same each time that it is asked for."""
    key = (id(owner), name)
    patch = _made.get(key)
    if patch is None:
        found = owner.__dict__.get(name)
        if isinstance(found, classmethod):
            value: Any = classmethod(wrap(found.__func__))
        else:
            value = wrap(getattr(owner, name))
        patch = _made[key] = AttributePatch(owner, name, value)
    return patch


def _create_task(original: Any) -> Any:
    def create_task(self: Any, coro: Any, **options: Any) -> Any:
        scope = current.get()
        if scope is None:
            return original(self, coro, **options)
        lane = started(parent_lane(scope), name_of(coro), scope.live)
        context = options.get("context")
        if context is not None:
            return _in_given_context(original(self, coro, **options), scope, lane, context)
        # The task copies the context when it is made, and an eager one runs its first piece right there.
        token = current.set(scope.in_lane(lane))
        try:
            task = original(self, coro, **options)
        finally:
            current.reset(token)
        lane.owner = id(task)
        _created(scope, task)
        if hasattr(task, "add_done_callback"):
            task.add_done_callback(lambda _: _ended(lane), context=Context())
        return task

    create_task.__name__ = "create_task"
    create_task.__qualname__ = getattr(original, "__qualname__", "create_task")
    create_task.__doc__ = getattr(original, "__doc__", None)
    return create_task


def _created(scope: Scope, task: Any) -> None:
    threads = scope.session.threads
    if threads is not None:
        threads.created(task)


def _ended(lane: Lane) -> None:
    lane.owner = NOBODY


#: Set in a context that was given to a task which is not done yet.
_given: Final[ContextVar[bool]] = ContextVar("tracekit.given", default=False)


def _in_given_context(task: Any, scope: Scope, lane: Lane, context: Context) -> Any:
    """The first task of a given context has its lane set there; with several at once it is looked up by the task."""
    me = lane.owner = id(task)
    owned[me] = lane
    _created(scope, task)
    before, first = context.get(current), not context.get(_given, False)
    if first:
        try:
            context.run(_lend, scope.in_lane(lane), True)
        except RuntimeError:  # it is the one that is running
            first = False

    def ended(_: object) -> None:
        lane.owner = NOBODY
        if owned.get(me) is lane:
            del owned[me]
        if first:
            context.run(_lend, before, False)

    task.add_done_callback(ended, context=Context())
    return task


def _lend(scope: Scope | None, given: bool) -> None:
    current.set(scope)
    _given.set(given)
