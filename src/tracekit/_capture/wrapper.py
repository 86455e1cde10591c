"""Any callable around the gate: functions, coroutines, generators and async generators, as methods or not.

Each shape has a thin shell that awaits or not; what a call means is decided by the session.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import wrapt

from .._engine import gate
from .._engine.effects import Begun, open_calls, outside_run
from .._engine.gate import here, settled
from .._engine.scope import Scope, current
from .._engine.step import Request, Spec
from ..errors import ContractViolationError
from .binding import Binder, binder, loose, tells
from .driving import drive, resumed
from .items import failed, given, live_async_items, live_items, recorded_async_items, recorded_items
from .proxy import Tool

if TYPE_CHECKING:
    from .terms import Terms

__all__ = ["LAZY", "Captured", "answered", "captured_of", "shape_of", "tool", "wrap"]


class Captured:
    """A callable and what is the same at each of its calls."""

    __slots__ = (
        "bind", "bind_bound", "inner", "require_run", "shape", "spec", "sure", "terms", "wrapped", "wrapped_as",
    )  # fmt: skip

    def __init__(
        self, wrapped: Callable[..., Any], spec: Spec, *, require_run: bool = False, terms: Terms | None = None
    ) -> None:
        function = wrapped.__func__ if isinstance(wrapped, classmethod | staticmethod) else wrapped
        inner = inspect.unwrap(function)
        self.wrapped: Final = wrapped
        #: What the decorator was given: it may be a class or static method around ``wrapped``.
        self.wrapped_as: Any = wrapped
        self.inner: Final = inner
        #: What holds for each call beyond the side-effect class, where anything does.
        self.terms: Final = terms
        self.spec: Final = spec
        self.require_run: Final = require_run
        self.bind: Final[Binder] = binder(inner)
        #: How it is called with its object; what has it already (``desk.write``) does not show it.
        self.bind_bound: Final[Binder] = binder(inner, skip_first=getattr(inner, "__self__", None) is None)
        #: Whether a call that can't be bound is certain to be refused by Python.
        self.sure: Final = tells(function)
        self.shape: Final = shape_of(function)

    def outside(self) -> Begun | None:
        """A call with no run active begins, if that is allowed; whoever makes it says when it has ended, where anybody asks."""
        self.checked_outside()
        return outside_run(self.spec.name, self.spec.side_effect) if open_calls else None

    def checked_outside(self) -> None:
        """A call with no run active: allowed, unless this tool or a whole-process replay says otherwise."""
        if gate.outside is not None:
            gate.outside(self.spec.family, self.spec.name)
        if gate.strayed is not None:
            gate.strayed[self.spec.name] = gate.strayed.get(self.spec.name, 0) + 1
        if self.require_run and self.spec.effect:
            raise ContractViolationError(
                f"{self.spec.name!r} ({self.spec.side_effect}) was called outside a run; it was not executed",
                next_action="call it inside `with tracekit.record():`, or drop require_run",
            )

    def arguments(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments by name, ``self`` left out; ``None`` for a wrong call, which Python itself refuses."""
        try:
            return self.bind(*args, **kwargs) if instance is None else self.bind_bound(*args, **kwargs)
        except TypeError:
            return None if self.sure else loose(*args, **kwargs)


def captured_of(tool: Any) -> Captured | None:
    """What is known of a decorated callable, a bound method too; ``None`` for anything else."""
    if not isinstance(tool, Tool | wrapt.BoundFunctionWrapper):
        return None
    found = getattr(tool._self_wrapper, "captured", None)
    return found if isinstance(found, Captured) else None


def wrap(captured: Captured, wrapped: Any) -> Any:
    """``wrapped`` with each call passing the gate; a descriptor that keeps identity, signature and binding."""
    captured.wrapped_as = wrapped
    if captured.shape == "function":
        wrapper = _function_wrapper(captured)
    elif captured.shape == "coroutine":
        wrapper = _coroutine_wrapper(captured)
    else:
        wrapper = _generator_wrapper(captured)
    return tool(wrapped, wrapper, captured)


def tool(wrapped: Any, wrapper: Any, captured: Captured) -> Any:
    """The object that stands in for ``wrapped``, its calls going to ``wrapper``."""
    wrapper.captured = captured
    return Tool(wrapped, wrapper)


def _generator_wrapper(captured: Captured) -> Any:
    run = _RUNS[captured.shape]

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = captured.arguments(instance, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        return _named(run(captured, function, bound, args, kwargs), function)

    return wrapper


def _named(made: Any, function: Any) -> Any:
    """What becomes of it is named after the tool: tasks, their lanes, "never awaited" warnings."""
    name = getattr(function, "__name__", None)
    if name is not None:
        made.__name__, made.__qualname__ = name, getattr(function, "__qualname__", name)
    return made


def shape_of(function: Any) -> str:
    """What a callable is called as."""
    for one in (function, getattr(type(function), "__call__", None)):  # noqa: B004 - it may be a coroutine function
        if inspect.isasyncgenfunction(one):
            return "async generator"
        if inspect.isgeneratorfunction(one):
            return "generator"
        if inspect.iscoroutinefunction(one):
            return "coroutine"
    return "function"


# -- plain functions ---------------------------------------------------------------------------------------------------------


def _function_wrapper(captured: Captured) -> Any:
    """The shell of plain functions, with everything that does not change between calls in its closure."""
    spec, bind, bind_bound = captured.spec, captured.bind, captured.bind_bound
    get, enter, leave = current.get, current.set, current.reset
    free = not (captured.require_run and spec.effect)
    calm = not spec.effect

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = get()
        if scope is None:
            if free and gate.outside is None and gate.strayed is None and (calm or not open_calls):
                return function(*args, **kwargs)  # out of the way, at once
            begun = captured.outside()
            return function(*args, **kwargs) if begun is None else begun.around(function, args, kwargs)
        scope = settled(scope)
        try:
            bound = bind(*args, **kwargs) if instance is None else bind_bound(*args, **kwargs)
        except TypeError:
            if captured.sure:
                return function(*args, **kwargs)  # a wrong call: Python's own words, and nothing happened
            bound = loose(*args, **kwargs)
        step = scope.session.begin(scope, Request(spec, bound, None, None, None, None))
        if not step.live:
            if not step.deferred:
                return answered(step)
            step = step.go()
            if not step.live:
                return answered(step)
        token = enter(step.body())
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            leave(token)
            failed(step, error)
            raise
        leave(token)
        if type(result) in LAZY:
            return LAZY[type(result)](step, result)
        step.done(result)
        return result

    return wrapper


#: What a plain function may return unfinished: the step goes on until that has come to its end.
LAZY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    types.CoroutineType: lambda step, result: _awaited(step, result, {"lazy": "coroutine"}),
    types.GeneratorType: lambda step, result: live_items(step, result, {"lazy": "generator"}),
    types.AsyncGeneratorType: lambda step, result: live_async_items(step, result, {"lazy": "async generator"}),
}


def answered(step: Any) -> Any:
    lazy = step.lazy()
    if lazy is None:
        return given(step.answer())
    if lazy == "coroutine":
        return _answered_later(step)
    return recorded_items(step) if lazy == "generator" else recorded_async_items(step)


#: What is told of a coroutine that gave control away.
_SUSPENDED: Final = {"suspended": True}


async def _answered_later(step: Any) -> Any:
    return given(await step.answer_async())


# -- coroutines and generators: their arguments are bound when they are called, the step begins when they start --------------


def _coroutine_wrapper(captured: Captured) -> Any:
    """The shell of coroutine functions, with everything that does not change between calls in its closure."""
    spec, bind, bind_bound = captured.spec, captured.bind, captured.bind_bound
    enter, leave = current.set, current.reset
    name = getattr(captured.wrapped, "__name__", None)
    qualname = getattr(captured.wrapped, "__qualname__", name)

    async def run(function: Any, bound: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = here()
        if scope is None:
            begun = captured.outside()
            made = function(*args, **kwargs)
            return await (made if begun is None else begun.around_async(made))
        step = scope.session.begin(scope, Request(spec, bound, None, None, None, None))
        if not step.live:
            if not step.deferred:
                return given(await step.answer_async())
            step = await step.go_async()
            if not step.live:
                return given(await step.answer_async())
        made = function(*args, **kwargs)
        if type(made) is not types.CoroutineType:
            return await _awaited(step, made)
        token = enter(step.body())
        suspended = False
        try:
            try:
                waits_for = made.send(None)
            except StopIteration as stop:  # without the event loop having run
                result = stop.value
            else:
                suspended = True
                result = await resumed(made, waits_for)
        except BaseException as error:
            leave(token)
            failed(step, error, suspended)
            raise
        leave(token)
        if suspended:
            step.done(result, info=_SUSPENDED)
        else:
            step.done(result)
        return result

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            bound = bind(*args, **kwargs) if instance is None else bind_bound(*args, **kwargs)
        except TypeError:
            if captured.sure:
                return function(*args, **kwargs)  # a wrong call: Python's own words, and nothing happened
            bound = loose(*args, **kwargs)
        made: Any = run(function, bound, args, kwargs)
        if name is not None:
            made.__name__, made.__qualname__ = name, qualname
        return made

    return wrapper


async def _awaited(step: Any, coroutine: Any, info: dict[str, Any] | None = None) -> Any:
    """Await the live coroutine of a step and tell what came of it, and whether the event loop ran meanwhile."""
    driven = drive(coroutine)
    token = current.set(step.body())
    try:
        result = await driven
    except BaseException as error:
        current.reset(token)
        failed(step, error, driven.suspended, info)
        raise
    current.reset(token)
    if driven.suspended:
        info = {**(info or {}), "suspended": True}
    if info is None:
        step.done(result)
    else:
        step.done(result, info=info)
    return result


def _opening(captured: Captured, scope: Scope | None, bound: dict[str, Any]) -> Request:
    """The request of a generator's step; raises where its contract forbids the call."""
    if captured.terms is None:
        return Request(captured.spec, bound)
    return captured.terms.opening(scope, captured.spec, bound)


def _begins_outside(captured: Captured) -> None:
    """What is asked for its items goes on by itself in none of them."""
    begun = captured.outside()
    if begun is not None:
        begun.end()


def _run_generator(
    captured: Captured, function: Any, bound: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = here()
    if scope is None:
        _begins_outside(captured)
        _opening(captured, None, bound)
        return (yield from function(*args, **kwargs))
    step = scope.session.begin(scope, _opening(captured, scope, bound))
    if step.deferred:
        step = step.go()
    if step.live:
        return (yield from live_items(step, function(*args, **kwargs)))
    return (yield from recorded_items(step))


async def _run_async_generator(
    captured: Captured, function: Any, bound: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = here()
    if scope is None:
        _begins_outside(captured)
        _opening(captured, None, bound)
        items = function(*args, **kwargs)
    else:
        step = scope.session.begin(scope, _opening(captured, scope, bound))
        if step.deferred:
            step = await step.go_async()
        items = live_async_items(step, function(*args, **kwargs)) if step.live else recorded_async_items(step)
    resume = items.__anext__()
    try:
        while True:
            try:
                item = await resume
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                raise
            except BaseException as thrown:
                resume = items.athrow(thrown)
            else:
                resume = items.asend(sent)
    finally:
        await items.aclose()


_RUNS: Final[dict[str, Any]] = {
    "generator": _run_generator,
    "async generator": _run_async_generator,
}
