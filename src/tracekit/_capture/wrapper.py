"""Any callable around the gate: functions, coroutines, generators and async generators, as methods or not.

Each shape has a thin shell that awaits or not; what a call means is decided by the session.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import wrapt

from .._canonical import canonical
from .._engine import gate
from .._engine.gate import Outcome, here
from .._engine.scope import Scope, current
from .._engine.step import Spec
from ..errors import ContractViolationError, DivergenceError, ReplayError, TraceExhaustedError
from .binding import Binder, binder
from .driving import drive

__all__ = ["Captured", "wrap"]


class Captured:
    """A callable and what is the same at each of its calls."""

    __slots__ = ("bind", "bind_bound", "require_run", "shape", "spec", "wrapped")

    def __init__(self, wrapped: Callable[..., Any], spec: Spec, *, require_run: bool = False) -> None:
        function = inspect.unwrap(wrapped)
        if isinstance(function, classmethod | staticmethod):
            function = function.__func__
        self.wrapped: Final = wrapped
        self.spec: Final = spec
        self.require_run: Final = require_run
        self.bind: Final[Binder] = binder(function)
        self.bind_bound: Final[Binder] = binder(function, skip_first=True)
        self.shape: Final = _shape(function)

    def outside(self) -> None:
        """A call with no run active: allowed, unless this tool or a whole-process replay says otherwise."""
        if gate.outside is not None:
            gate.outside(self.spec.family, self.spec.name)
        if self.require_run and self.spec.effect:
            raise ContractViolationError(
                f"{self.spec.name!r} ({self.spec.side_effect}) was called outside a run; it was not executed",
                next_action="call it inside `with tracekit.record():`, or drop require_run",
            )


def wrap(captured: Captured, wrapped: Any) -> Any:
    """``wrapped`` with each call passing the gate; a descriptor that keeps identity, signature and binding."""
    shell = _SHELLS[captured.shape]

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return shell(captured, function, instance, args, kwargs)

    if captured.shape == "function":
        wrapper = _function_wrapper(captured)
    return wrapt.FunctionWrapper(wrapped, wrapper)


def _shape(function: Any) -> str:
    if inspect.isasyncgenfunction(function):
        return "async generator"
    if inspect.isgeneratorfunction(function):
        return "generator"
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    return "function"


def _arguments(captured: Captured, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    if instance is None:
        return captured.bind(*args, **kwargs)
    return captured.bind_bound(*args, **kwargs)


def _function_wrapper(captured: Captured) -> Any:
    """The shell of plain functions, with everything that does not change between calls in its closure."""
    spec, bind, bind_bound = captured.spec, captured.bind, captured.bind_bound
    enter, leave = current.set, current.reset

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = here()
        if scope is None:
            captured.outside()
            return function(*args, **kwargs)
        try:
            bound = bind(*args, **kwargs) if instance is None else bind_bound(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # a wrong call: Python's own words, and nothing happened
        step = scope.session.begin(scope, spec, bound)
        if not step.live:
            return _given(step.answer())
        token = enter(step.body())
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            leave(token)
            _failed(step, error)
            raise
        leave(token)
        step.done(result)
        return result

    return wrapper


def _call_coroutine(
    captured: Captured, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    coroutine: Any = _run_coroutine(captured, function, instance, args, kwargs)
    # What becomes of it is named after the tool: tasks, their lanes, their "never awaited" warnings.
    coroutine.__qualname__ = function.__qualname__
    coroutine.__name__ = function.__name__
    return coroutine


async def _run_coroutine(
    captured: Captured, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = here()
    if scope is None:
        captured.outside()
        return await function(*args, **kwargs)
    try:
        bound = _arguments(captured, instance, args, kwargs)
    except TypeError:
        return await function(*args, **kwargs)
    step = scope.session.begin(scope, captured.spec, bound)
    if not step.live:
        return _given(await step.answer_async())
    driven = drive(function(*args, **kwargs))
    token = current.set(step.body())
    try:
        result = await driven
    except BaseException as error:
        current.reset(token)
        _failed(step, error, driven.suspended)
        raise
    current.reset(token)
    if driven.suspended:
        step.done(result, info=_SUSPENDED)
    else:
        step.done(result)
    return result


_SUSPENDED: Final = {"suspended": True}


def _failed(step: Any, error: BaseException, suspended: bool = False) -> None:
    if not isinstance(error, ReplayError):
        step.failed(error, info=_SUSPENDED if suspended else None)


def _given(outcome: Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.output


# -- generators: the intention at the first ``next``, a chunk an item ----------------------------------------------------


def _call_generator(
    captured: Captured, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    generator = _run_generator(captured, function, instance, args, kwargs)
    generator.__qualname__ = function.__qualname__
    generator.__name__ = function.__name__
    return generator


def _run_generator(
    captured: Captured, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = here()
    if scope is None:
        captured.outside()
        return (yield from function(*args, **kwargs))
    step = scope.session.begin(scope, captured.spec, _arguments(captured, instance, args, kwargs))
    if step.live:
        return (yield from _live_items(step, function(*args, **kwargs)))
    return (yield from _recorded_items(step))


def _live_items(step: Any, generator: Any) -> Any:
    body: Scope = step.body()
    resume: Callable[[], Any] = generator.__next__
    told: dict[str, Any] | None = None
    while True:
        token = current.set(body)
        try:
            item = resume()
        except StopIteration as stop:
            current.reset(token)
            step.done(stop.value, info=told)
            return stop.value
        except BaseException as error:
            current.reset(token)
            _failed(step, error)
            raise
        current.reset(token)
        step.chunk(item, info=told)
        resume, told = generator.__next__, None
        try:
            sent = yield item
        except GeneratorExit:
            token = current.set(body)
            try:
                generator.close()
            finally:
                current.reset(token)
                step.done(None, info={"abandoned": True})
            raise
        except BaseException as thrown:
            resume, told = partial(generator.throw, thrown), {"thrown": _shown(thrown)}
        else:
            if sent is not None:
                resume, told = partial(generator.send, sent), {"sent": sent}


def _recorded_items(step: Any) -> Any:
    told: dict[str, Any] | None = None
    while True:
        chunk = step.next_chunk()
        if chunk is None:
            outcome = step.answer()
            _same(step, told, outcome)
            return _given(_finished(step, outcome))
        _same(step, told, chunk)
        told = None
        try:
            sent = yield chunk.output
        except GeneratorExit:
            raise
        except BaseException as thrown:
            told = {"thrown": _shown(thrown)}
        else:
            if sent is not None:
                told = {"sent": sent}


def _call_async_generator(
    captured: Captured, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    generator = _run_async_generator(captured, function, instance, args, kwargs)
    generator.__qualname__ = function.__qualname__
    generator.__name__ = function.__name__
    return generator


async def _run_async_generator(
    captured: Captured, function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = here()
    if scope is None:
        captured.outside()
        items = function(*args, **kwargs)
    else:
        step = scope.session.begin(scope, captured.spec, _arguments(captured, instance, args, kwargs))
        items = _live_async_items(step, function(*args, **kwargs)) if step.live else _recorded_async_items(step)
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


async def _live_async_items(step: Any, generator: Any) -> Any:
    body: Scope = step.body()
    resume = generator.__anext__()
    told: dict[str, Any] = {}
    while True:
        driven = drive(resume)
        token = current.set(body)
        try:
            item = await driven
        except StopAsyncIteration:
            current.reset(token)
            step.done(None, info={**told, **(_SUSPENDED if driven.suspended else {})})
            return
        except BaseException as error:
            current.reset(token)
            _failed(step, error, driven.suspended)
            raise
        current.reset(token)
        step.chunk(item, info={**told, **(_SUSPENDED if driven.suspended else {})})
        told = {}
        try:
            sent = yield item
        except GeneratorExit:
            try:
                await generator.aclose()
            finally:
                step.done(None, info={"abandoned": True})
            raise
        except BaseException as thrown:
            resume, told = generator.athrow(thrown), {"thrown": _shown(thrown)}
        else:
            resume = generator.asend(sent)
            if sent is not None:
                told = {"sent": sent}


async def _recorded_async_items(step: Any) -> Any:
    told: dict[str, Any] | None = None
    while True:
        chunk = await step.next_chunk_async()
        if chunk is None:
            outcome = await step.answer_async()
            _same(step, told, outcome)
            _given(_finished(step, outcome))
            return
        _same(step, told, chunk)
        told = None
        try:
            sent = yield chunk.output
        except GeneratorExit:
            raise
        except BaseException as thrown:
            told = {"thrown": _shown(thrown)}
        else:
            if sent is not None:
                told = {"sent": sent}


def _shown(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}"


def _same(step: Any, told: dict[str, Any] | None, outcome: Outcome) -> None:
    """What was sent or thrown into the generator must be what was then."""
    for key in ("sent", "thrown"):
        recorded, actual = outcome.meta.get(key), (told or {}).get(key)
        if canonical(recorded) != canonical(actual):
            raise step.session.fail(
                DivergenceError(
                    f"the program put something else into the generator ({key}): recorded {recorded!r}, now {actual!r}",
                    run_id=step.session.run_id,
                    step=step.seq,
                    recorded=recorded,
                    actual=actual,
                )
            )


def _finished(step: Any, outcome: Outcome) -> Outcome:
    if outcome.abandoned:
        raise step.session.fail(
            TraceExhaustedError(
                "the program asks for more of a generator than it took in the recording, where it was left at this point",
                run_id=step.session.run_id,
                step=step.seq,
                next_action="take no more items than then, or record again",
            )
        )
    return outcome


_SHELLS: Final[dict[str, Any]] = {
    "coroutine": _call_coroutine,
    "generator": _call_generator,
    "async generator": _call_async_generator,
    "function": None,
}
