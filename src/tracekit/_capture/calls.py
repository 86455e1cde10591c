"""Plain calls as steps: the wrappers of traced functions, the binding of arguments, and generators."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from inspect import Parameter
from types import FunctionType, MethodType
from typing import Any, Final, Protocol, TypeVar

from .._runtime.callsite import caller
from .._runtime.effects import Begun
from .._runtime.process import process
from .._runtime.session import Outcome, Scope, Uncounted, current, enter, here, in_own_lane
from .._runtime.step import Request, Spec
from .._values import exception_text, to_json
from ..errors import ContractViolationError, DivergenceError, NotReplayableError, ReplayError, TraceExhaustedError

__all__ = [
    "LAZY",
    "Binder",
    "CallTerms",
    "Captured",
    "Point",
    "answered",
    "binder",
    "called",
    "capture",
    "captured_of",
    "closing",
    "drive",
    "failed",
    "is_method",
    "live_async",
    "loose",
    "names_of",
    "parameters_of",
    "perform",
    "perform_async",
    "recorded_items",
    "resumed",
    "shape_of",
    "shell_of",
    "shows_real_signature",
    "signature_of",
    "tool",
    "wrap",
]

T = TypeVar("T")

# -- binding arguments -------------------------------------------------------------------------------------------------
#
# The arguments of a call by parameter name, with defaults filled in, so that positional and keyword calls are equal.
# ``inspect.Signature.bind`` takes about 4 microseconds; a function generated from the signature takes 0.2.

Binder = Callable[..., dict[str, Any]]


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Like ``inspect.signature``, but no annotation is evaluated: from Python 3.14 on, one may name what is defined later."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING)
    return inspect.signature(function)


def binder(function: Callable[..., Any], *, skip_first: bool = False) -> Binder:
    """Return a function with the parameters of ``function`` that returns them as a dictionary.

    ``skip_first`` binds without the first parameter (``self``, ``cls``), as a bound method is called; if a method is
    called with its object (by a ``property``, a ``classmethod``), the object is left out of the dictionary. The
    returned function raises ``TypeError`` where the call would. Without a readable signature, arguments are bound as
    ``{"args": …, "kwargs": …}``.
    """
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):
        return loose
    if skip_first and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    first = parameters[0].name if parameters and not skip_first and _is_in_class(function) else None
    shown = parameters[1:] if first in _OBJECTS else parameters
    defaults = {f"_default_{p.name}": p.default for p in parameters if p.default is not p.empty}
    source = f"def bind({_parameter_list(parameters)}):\n    return {{{_items(shown)}}}\n"
    namespace: dict[str, Any] = {"__name__": __name__, **defaults}
    exec(source, namespace)  # the source contains only parameter names, which are identifiers
    bind: Binder = namespace["bind"]
    return bind


def is_method(function: Any) -> bool:
    """Return whether the function was defined in a class, so that its first parameter is the object or the class."""
    return first_parameter_in_class(function) in _OBJECTS


#: What the first parameter of a method is called.
_OBJECTS: Final = ("self", "cls")


def _is_in_class(function: Any) -> bool:
    owner, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    return bool(owner) and not owner.endswith("<locals>")


def first_parameter_in_class(function: Any) -> str | None:
    """Return the name of the first parameter of a function defined in a class; ``None`` for any other function."""
    if not _is_in_class(function):
        return None
    try:
        return next(iter(signature_of(function).parameters), None)
    except (TypeError, ValueError):
        return None


def _parameter_list(parameters: list[inspect.Parameter]) -> str:
    parts: list[str] = []
    last: inspect._ParameterKind | None = None
    for p in parameters:
        if last is p.POSITIONAL_ONLY and p.kind is not last:
            parts.append("/")
        if p.kind is p.KEYWORD_ONLY and last not in (p.VAR_POSITIONAL, p.KEYWORD_ONLY):
            parts.append("*")
        star = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        default = f"=_default_{p.name}" if p.default is not p.empty else ""
        parts.append(star + p.name + default)
        last = p.kind
    if last is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def _items(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(f"{p.name!r}: {p.name}" for p in parameters)


def loose(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call to a callable without a known signature: ``args`` and ``kwargs``."""
    return {"args": args, "kwargs": kwargs}


def shows_real_signature(function: Any) -> bool:
    """Return whether the signature that ``function`` shows is the one by which Python binds a call.

    A decorator that changes the arguments may show the signature of the wrapped function: a call that does not match
    may succeed.
    """
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - the function itself is wanted
    return type(function) is FunctionType and not {"__wrapped__", "__signature__"} & vars(function).keys()


# -- noticing whether a coroutine suspends -----------------------------------------------------------------------------
#
# Runs a coroutine by hand to learn whether it ever suspended. If not, the event loop ran nothing in between, and a
# replay must answer the same way; otherwise the replay must let the loop run.


class drive:
    """An awaitable that runs ``awaitable``; ``suspended`` then says whether it yielded to the event loop."""

    __slots__ = ("_iterator", "suspended")

    def __init__(self, awaitable: Any) -> None:
        self._iterator = awaitable.__await__()
        self.suspended = False

    def __await__(self) -> Generator[Any, Any, Any]:
        iterator, scope = self._iterator, current.get()
        try:
            waits_for = next(iterator)
        except StopIteration as stop:
            return stop.value
        self.suspended = True
        return (yield from resumed(iterator, waits_for, scope))


@types.coroutine
def resumed(iterator: Any, first: Any, scope: Scope | None) -> Generator[Any, Any, Any]:
    """The rest of an iterator (or coroutine) whose first item has been taken, preceded by that item. Can be awaited.

    ``scope`` is the one in which it began (by now it may be inside another call). Until it has ended, the running lane is
    inside the live call of that scope, if it has one.
    """
    with Uncounted(scope if scope is not None and scope.live else None):
        while True:
            try:
                sent = yield first
            except GeneratorExit:
                iterator.close()
                raise
            except BaseException as thrown:
                resume = partial(iterator.throw, thrown)
            else:
                if sent is None:
                    return (yield from iterator)
                resume = partial(iterator.send, sent)
            try:  # outside the handler: what this raises has not been raised while handling the other
                first = resume()
            except StopIteration as stop:
                return stop.value
            finally:
                del resume  # it has the exception, whose traceback has this frame


async def closing(scope: Scope | None, closes: Awaitable[T], event: str | None = "loop.call:close") -> T:
    """Await ``closes``, with which a library closes its own connections outside every step; ``scope`` is what ``here()``
    returns.

    Other tasks of the program may run meanwhile: then the end of it is an ``event``, because a replay has no connections
    to close. It may be missing in a replay, since a finalizer may have closed them. ``None``: a replay has nothing that
    is closed there, and so no event either.
    """
    if scope is None or scope.live or scope.session.state.ended:
        return await closes
    turn: Any = None
    try:
        if event is not None:
            turn = scope.session.arm(scope, event, 0)
    except ReplayError:
        await closes
        raise
    driven = drive(closes)
    token = enter(scope.inside(scope.parent or 1, live=True))
    try:
        result: T = await driven
    finally:
        current.reset(token)
        if turn is not None and turn.live and driven.suspended:
            turn.fired({"hop": 0})
            scope.lane.since += 1  # what goes on from here is the callback in which it ends
    if turn is not None and turn.comes:
        await turn.wait_async()
        scope.lane.since += 1
    return result


# -- generators --------------------------------------------------------------------------------------------------------
#
# Generators and async generators as steps: one chunk per item, live or from the log. What the caller sends or throws in
# is recorded with the chunk that answers it, and compared in a replay. Closing or discarding a generator is not a step:
# the delivered items are kept, and the recording says that it was left there.

_SUSPENDED: Final = {"suspended": True}


def failed(step: Any, error: BaseException, suspended: bool = False, info: Mapping[str, Any] | None = None) -> None:
    """Record that the live call raised, unless the error is a replay's own failure passing through."""
    if not isinstance(error, ReplayError):
        step.failed(error, info={**(info or {}), **_SUSPENDED} if suspended else info)


def live_items(step: Any, generator: Any, info: dict[str, Any] | None = None) -> Any:
    """Yield the items of a live generator; ``info`` goes into the ``meta`` of the first."""
    body: Scope = step.body()
    resume: Callable[[], Any] = generator.__next__
    if info is not None:  # its step began some time ago
        step.resumed()
    while True:
        token = current.set(body)
        try:
            item = resume()
        except StopIteration as stop:
            current.reset(token)
            step.done(stop.value, info=info)
            return stop.value
        except BaseException as error:
            current.reset(token)
            failed(step, error, info=info)
            raise
        current.reset(token)
        del token  # the call is over (see ``is_at_work``)
        step.chunk(item, info=info)
        resume, info = generator.__next__, None
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
            resume, info = partial(generator.throw, thrown), {"thrown": exception_text(thrown)}
        else:
            if sent is not None:
                resume, info = partial(generator.send, sent), {"sent": sent}
        step.resumed()


class _RecordedItems:
    """The items that a generator has yielded in the recording, for the replay of its step ``step``.

    What the program puts into the generator is compared. In a ``with`` block around a ``yield``, what it throws in is
    taken like what it sends.
    """

    __slots__ = ("_count", "_put_in", "_step")

    def __init__(self, step: Any) -> None:
        self._step: Final = step
        self._count = 0
        #: What the program has put in since the last item.
        self._put_in: dict[str, Any] = {}

    def item(self, chunk: Outcome) -> Any:
        """Return the next item."""
        _check_sent(self._step, self._put_in, chunk)
        self._put_in = {}
        self._count += 1
        return chunk.output

    def sent(self, value: Any) -> None:
        if value is not None:
            self._put_in = {"sent": value}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, thrown: BaseException | None, trace: object) -> bool:
        if thrown is None or isinstance(thrown, GeneratorExit):
            return False
        self._put_in = {"thrown": exception_text(thrown)}
        return True

    def rest(self, outcome: Outcome) -> Any:
        """Yield the items that only an outcome entered by hand has, and return what the generator returned."""
        _check_sent(self._step, self._put_in, outcome)
        finished = _finished(self._step, outcome).result()
        if "settled" not in ((outcome.meta or {}).get("info") or {}):  # by ``tracekit recovery settle``
            return finished
        if type(finished) is not list or len(finished) < self._count:
            raise self._step.session.fail(
                NotReplayableError(
                    "the output that was supplied for a generator is not a list of its items",
                    run_id=self._step.session.run_id,
                    step=self._step.seq,
                    location=caller(),
                    next_action="settle the step again: `--done` takes a JSON list of all its items, those that the log has first",
                )
            )
        yield from finished[self._count :]
        return None


def recorded_items(step: Any) -> Any:
    """Yield the recorded items of a generator; what the caller sends or throws in is compared."""
    items = _RecordedItems(step)
    while (chunk := step.next_chunk()) is not None:
        item = items.item(chunk)
        with items:
            items.sent((yield item))
    return (yield from items.rest(step.answer()))


async def live_async_items(step: Any, generator: Any, info: dict[str, Any] | None = None) -> Any:
    """Yield the items of a live async generator; each is recorded with whether the event loop ran meanwhile."""
    body: Scope = step.body()
    resume = generator.__anext__()
    if info is not None:
        step.resumed()
    while True:
        driven = drive(resume)
        token = current.set(body)
        try:
            item = await driven
        except StopAsyncIteration:
            current.reset(token)
            step.done(None, info=_about(driven, info))
            return
        except BaseException as error:
            current.reset(token)
            failed(step, error, driven.suspended, info)
            raise
        current.reset(token)
        del token  # the call is over (see ``is_at_work``)
        step.chunk(item, info=_about(driven, info))
        info = None
        try:
            sent = yield item
        except GeneratorExit:
            token = current.set(body)
            try:
                await generator.aclose()
            finally:
                _back(token)
                step.done(None, info={"abandoned": True})
            raise
        except BaseException as thrown:
            resume, info = generator.athrow(thrown), {"thrown": exception_text(thrown)}
        else:
            resume = generator.asend(sent)
            if sent is not None:
                info = {"sent": sent}
        step.resumed()


def _back(token: Any) -> None:
    try:
        current.reset(token)
    except ValueError:  # closed by the event loop at its end, in another context
        pass


def _about(driven: drive, info: dict[str, Any] | None) -> dict[str, Any] | None:
    return {**(info or {}), **_SUSPENDED} if driven.suspended else info


async def recorded_async_items(step: Any) -> Any:
    """Yield the recorded items of an async generator."""
    items = _RecordedItems(step)
    while (chunk := await step.next_chunk_async()) is not None:
        item = items.item(chunk)
        with items:
            items.sent((yield item))
    for left in items.rest(await step.answer_async()):
        yield left


def _check_sent(step: Any, given_now: dict[str, Any], outcome: Outcome) -> None:
    """Fail the replay unless the same was sent or thrown into the generator as in the recording."""
    for key in ("sent", "thrown"):
        recorded = outcome.meta.get(key)
        if recorded is None and key not in given_now:
            continue
        actual = step.session.redactor.redact(to_json(given_now.get(key)))[0]
        if not step.session.comparison.equal(recorded, actual):
            raise step.session.fail(
                DivergenceError(
                    f"the program put something else into the generator ({key}): recorded {recorded!r}, now {actual!r}",
                    run_id=step.session.run_id,
                    step=step.seq,
                    location=caller(),
                    next_action="look at what changed in the code that drives this generator",
                    recorded=recorded,
                    actual=actual,
                    differences=[{"path": key, "recorded": recorded, "actual": actual}],
                )
            )


def _finished(step: Any, outcome: Outcome) -> Outcome:
    if outcome.abandoned:
        raise step.session.fail(
            TraceExhaustedError(
                "the program asks for more of a generator than it took in the recording, where it was left at this point",
                run_id=step.session.run_id,
                step=step.seq,
                location=caller(),
                next_action="take no more items than then, or record again",
            )
        )
    return outcome


# -- wrappers ----------------------------------------------------------------------------------------------------------
#
# A thin wrapper for each kind of callable: functions, coroutines, generators and async generators, as methods or not.
# The session decides what a call means.


class CallTerms(Protocol):
    """The conditions for calls of a tool beyond its side-effect class."""

    def opening(self, scope: Scope | None, spec: Spec, bound: Mapping[str, Any]) -> Request:
        """Return the request of a call with arguments ``bound``. Raises if the call is not allowed."""
        ...

    def units(self, bound: Mapping[str, Any]) -> float | None:
        """Return the declared cost of the call, if any."""
        ...


class Point:
    """What all calls of a decorated callable, or an ``effect`` block, share."""

    __slots__ = ("own", "require_run", "shape", "spec", "terms")

    def __init__(
        self, spec: Spec, shape: str, *, require_run: bool = False, terms: CallTerms | None = None, own: bool = False
    ) -> None:
        self.spec: Final = spec
        #: How it is called: ``"function"``, ``"coroutine"``, ``"generator"`` or ``"async generator"``.
        self.shape: Final = shape
        self.require_run: Final = require_run
        #: The conditions for each call beyond the side-effect class, if any.
        self.terms: Final = terms
        #: Whether it changes the attributes of its own object.
        self.own: Final = own

    def outside(self) -> Begun | None:
        """Begin a call with no active run, if that is allowed; if the result is not ``None``, the caller has to end it."""
        self.checked_outside()
        effects = process.effects
        return effects.begins_outside(self.spec.name, self.spec.side_effect) if effects.open else None

    def object_of(self, instance: Any, args: tuple[Any, ...]) -> Any:
        """Return the object that a method was called on, however Python passes it; ``None`` if the call has none."""
        return instance

    def checked_outside(self) -> None:
        """Check a call with no active run: allowed, unless this tool or a whole-process replay forbids it."""
        if process.outside is not None:
            process.outside(self.spec.family, self.spec.name)
        if process.outside_calls is not None:
            process.outside_calls[self.spec.name] = process.outside_calls.get(self.spec.name, 0) + 1
        if self.require_run and self.spec.effect:
            raise ContractViolationError(
                f"{self.spec.name!r} ({self.spec.side_effect}) was called outside a run; it was not executed",
                next_action="call it inside `with tracekit.record():`, or drop require_run",
            )


class Captured(Point):
    """A callable, with what all its calls share."""

    __slots__ = ("bind", "bind_bound", "inner", "sure", "wrapped", "wrapped_as")

    def __init__(
        self, wrapped: Callable[..., Any], spec: Spec, *, require_run: bool = False, terms: CallTerms | None = None
    ) -> None:
        function = wrapped.__func__ if isinstance(wrapped, classmethod | staticmethod) else wrapped
        inner = inspect.unwrap(function)
        own = "self" in (spec.mutates or ()) and first_parameter_in_class(inner) is not None
        super().__init__(spec, shape_of(function), require_run=require_run, terms=terms, own=own)
        self.wrapped: Final = wrapped
        #: What the decorator received: possibly a class or static method around ``wrapped``.
        self.wrapped_as: Any = wrapped
        self.inner: Final = inner
        self.bind: Final[Binder] = binder(inner)
        bound = getattr(inner, "__self__", None) is not None
        #: For calls with its object; a bound method (``desk.write``) does not show it.
        self.bind_bound: Final[Binder] = self.bind if bound else binder(inner, skip_first=True)
        #: Whether Python certainly refuses a call that can't be bound.
        self.sure: Final = shows_real_signature(function)

    @property
    def lacks_object(self) -> bool:
        """Whether it is a method taken from its class, so that each call needs the object."""
        return is_method(self.inner)

    def object_of(self, instance: Any, args: tuple[Any, ...]) -> Any:
        return args[0] if instance is None and args and is_method(self.inner) else instance

    def units(self, *args: Any, **kwargs: Any) -> float:
        """Return the cost of a call with these arguments in cost units: 1 if nothing is declared."""
        cost = None if self.terms is None else self.terms.units(self.bind(*args, **kwargs))
        return 1 if cost is None else cost

    def arguments(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the arguments by name, without ``self``; ``None`` for an invalid call, which Python itself refuses."""
        try:
            return self.bind(*args, **kwargs) if instance is None else self.bind_bound(*args, **kwargs)
        except TypeError:
            return None if self.sure else loose(*args, **kwargs)


def capture(function: Any, spec: Spec) -> Any:
    """Return ``function`` with each call captured as a step of ``spec``: a function, coroutine function, generator or
    async generator.

    Its arguments, by name, are the step's input; what it returns, raises or yields is the outcome, with which a replay
    answers.
    """
    return wrap(Captured(function, spec), function)


def perform(request: Request, function: Callable[[], T], info: Callable[[T], Mapping[str, Any]] | None = None) -> T:
    """Make the call described by ``request`` as a step: return ``function()`` if it is live, else the recorded result.

    ``info`` returns, given the result, what the outcome's ``meta`` also gets (``usage``, ``cost_usd`` …). Outside every
    run the function is called, unless a whole process is being replayed.
    """
    scope = here()
    if scope is None:
        begun = Point(request.spec, "function").outside()
        return function() if begun is None else begun.around(function, (), {})
    step: Any = scope.session.begin(scope, request)
    if step.deferred:
        step = step.go()
    if not step.live:
        return step.answer().result()  # type: ignore[no-any-return]
    token = enter(step.body())
    try:
        result = function()
    except BaseException as error:
        current.reset(token)
        failed(step, error)
        raise
    current.reset(token)
    step.done(result, info=None if info is None else info(result))
    return result


async def perform_async(
    request: Request, function: Callable[[], Awaitable[T]], info: Callable[[T], Mapping[str, Any]] | None = None
) -> T:
    """Like ``perform``, for a call that is awaited."""
    scope = here()
    if scope is None:
        begun = Point(request.spec, "coroutine").outside()
        made = function()
        return await (made if begun is None else begun.around_async(made))
    step: Any = scope.session.begin(scope, request)
    if step.deferred:
        step = await step.go_async()
    if not step.live:
        return (await step.answer_async()).result()  # type: ignore[no-any-return]
    token = enter(step.body())
    try:
        made = function()
    except BaseException as error:
        current.reset(token)
        failed(step, error)
        raise
    current.reset(token)
    return await live_async(step, made, of_result=info)  # type: ignore[no-any-return]


def captured_of(tool: Any) -> Captured | None:
    """Return the ``Captured`` of a decorated callable or bound method; ``None`` for anything else."""
    from .decorated import BoundTool, Tool

    if not isinstance(tool, Tool | BoundTool):
        return None
    found = getattr(tool._self_wrapper, "captured", None)
    return found if isinstance(found, Captured) else None


def wrap(captured: Captured, wrapped: Any) -> Any:
    """Return ``wrapped`` with each call captured as a step; a descriptor that keeps identity, signature and binding."""
    captured.wrapped_as = wrapped
    return tool(wrapped, shell_of(captured), captured)


def shell_of(captured: Captured) -> Any:
    """Return the wrapper that turns a call into a step; it receives the function, the object it is bound to (or
    ``None``), and the arguments."""
    if captured.shape == "function":
        return _function_wrapper(captured)
    if captured.shape == "coroutine":
        return _coroutine_wrapper(captured)
    return _generator_wrapper(captured)


def tool(wrapped: Any, wrapper: Any, captured: Captured) -> Any:
    """Return the object that replaces ``wrapped``; its calls go to ``wrapper``."""
    from .decorated import Tool

    wrapper.captured = captured
    return Tool(wrapped, wrapper)


def _generator_wrapper(captured: Captured) -> Any:
    run = _RUNS[captured.shape]

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = captured.arguments(instance, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        return _like(run(captured, function, instance, bound, args, kwargs), function)

    return wrapper


def _like(made: Any, function: Any) -> Any:
    """Name a coroutine or generator after its tool, for tasks, their lanes and "never awaited" warnings."""
    name = getattr(function, "__name__", None)
    if name is not None:
        made.__name__, made.__qualname__ = name, getattr(function, "__qualname__", name)
    return made


def shape_of(function: Any) -> str:
    """Return the kind of a callable: function, coroutine function, generator or async generator function."""
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
    """Return the wrapper for plain functions; everything constant is in its closure."""
    spec, bind, bind_bound = captured.spec, captured.bind, captured.bind_bound
    get, enter, leave = current.get, current.set, current.reset
    free = not (captured.require_run and spec.effect)
    calm, open_calls = not spec.effect, process.effects.open

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = get()
        if scope is None:
            if free and process.outside is None and process.outside_calls is None and (calm or not open_calls):
                return function(*args, **kwargs)  # the fast path
            begun = captured.outside()
            return function(*args, **kwargs) if begun is None else begun.around(function, args, kwargs)
        scope = in_own_lane(scope)
        bound: dict[str, Any] | None
        try:
            bound = bind(*args, **kwargs) if instance is None else bind_bound(*args, **kwargs)
        except TypeError:
            bound = None if captured.sure else loose(*args, **kwargs)
        if bound is None:
            return function(*args, **kwargs)  # an invalid call: raises Python's own error, without any effect
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


#: Results that a plain function may return unfinished: the step goes on until they end.
LAZY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    types.CoroutineType: lambda step, result: live_async(step, result, {"lazy": "coroutine"}),
    types.GeneratorType: lambda step, result: live_items(step, result, {"lazy": "generator"}),
    types.AsyncGeneratorType: lambda step, result: live_async_items(step, result, {"lazy": "async generator"}),
}


def answered(step: Any) -> Any:
    lazy = step.ahead("lazy")
    if lazy is None:
        return step.answer().result()
    if lazy == "coroutine":
        return _answered_later(step)
    return recorded_items(step) if lazy == "generator" else recorded_async_items(step)


async def _answered_later(step: Any) -> Any:
    return (await step.answer_async()).result()


# -- coroutines and generators: arguments are bound at the call, the step begins at the start --------------------------


def _coroutine_wrapper(captured: Captured) -> Any:
    """Return the wrapper for coroutine functions; everything constant is in its closure."""
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
                return (await step.answer_async()).result()
            step = await step.go_async()
            if not step.live:
                return (await step.answer_async()).result()
        body = step.body()
        token = enter(body)
        suspended = False
        try:
            made = function(*args, **kwargs)
            iterator: Any = made if type(made) is types.CoroutineType else made.__await__()
            try:
                waits_for = iterator.send(None) if iterator is made else next(iterator)
            except StopIteration as stop:  # without the event loop having run
                result = stop.value
            else:
                suspended = True
                result = await resumed(iterator, waits_for, body)
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
        bound: dict[str, Any] | None
        try:
            bound = bind(*args, **kwargs) if instance is None else bind_bound(*args, **kwargs)
        except TypeError:
            bound = None if captured.sure else loose(*args, **kwargs)
        if bound is None:
            return function(*args, **kwargs)  # an invalid call: raises Python's own error, without any effect
        made: Any = run(function, bound, args, kwargs)
        if name is not None:
            made.__name__, made.__qualname__ = name, qualname
        return made

    return wrapper


async def live_async(
    step: Any,
    awaitable: Any,
    info: dict[str, Any] | None = None,
    of_result: Callable[[Any], Mapping[str, Any]] | None = None,
    of_error: Callable[[BaseException], Mapping[str, Any]] | None = None,
) -> Any:
    """Await the live call of a step and record its outcome, and whether the event loop ran meanwhile.

    ``info`` goes into the outcome's ``meta``, with what ``of_result`` returns for the result, or ``of_error`` for the
    error.
    """
    if info is not None:  # its step began some time ago
        step.resumed()
    driven: drive | None = None
    token = current.set(step.body())
    try:
        driven = drive(awaitable)
        result = await driven
    except BaseException as error:
        current.reset(token)
        if of_error is not None and not isinstance(error, ReplayError):
            info = {**(info or {}), **of_error(error)}
        failed(step, error, driven is not None and driven.suspended, info)
        raise
    current.reset(token)
    if of_result is not None:
        info = {**(info or {}), **of_result(result)}
    if driven.suspended:
        info = {**(info or {}), **_SUSPENDED}
    step.done(result, info=info or None)
    return result


def _opening(captured: Captured, scope: Scope | None, bound: dict[str, Any]) -> Request:
    """Return the request of a generator's step. Raises if its contract forbids the call."""
    if captured.terms is None:
        return Request(captured.spec, bound)
    return captured.terms.opening(scope, captured.spec, bound)


def _begins_outside(captured: Captured) -> None:
    """Begin a generator's call outside every run; nothing of it goes on between items."""
    begun = captured.outside()
    if begun is not None:
        begun.end()


def _run_generator(
    captured: Captured,
    function: Any,
    instance: Any,
    bound: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    scope = here()
    if scope is None:
        _begins_outside(captured)
        _opening(captured, None, bound)
        return (yield from function(*args, **kwargs))
    step = scope.session.begin(scope, _opening(captured, scope, bound))
    if step.deferred:
        step = step.go()
    if captured.own:
        step.holds(captured.object_of(instance, args))
    if step.live:
        return (yield from live_items(step, function(*args, **kwargs)))
    return (yield from recorded_items(step))


async def _run_async_generator(
    captured: Captured,
    function: Any,
    instance: Any,
    bound: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
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
        if captured.own:
            step.holds(captured.object_of(instance, args))
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

# -- parameters --------------------------------------------------------------------------------------------------------
#
# The parameters of callables, for functions that are called with some of a tool's arguments.


def called(function: Any) -> str:
    """Return the qualified name of a callable."""
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.replace("<locals>.", "")


def names_of(tool: str, field: str, function: Callable[..., Any], known: Sequence[str]) -> tuple[list[str], bool]:
    """Return which of the ``known`` names ``function`` accepts, and whether it accepts all."""
    from .._policy.contract import impossible  # it creates a dataclass, which not every tool needs

    parameters = parameters_of(function)
    if parameters is None:
        raise impossible(tool, field, f"what {function!r} takes is not known", "give a function with named parameters")
    taken, every = [], False
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            every = True
        elif one.kind is not one.VAR_POSITIONAL:
            if one.name in known and one.kind is not one.POSITIONAL_ONLY:
                taken.append(one.name)
            elif one.default is one.empty:
                raise impossible(
                    tool,
                    field,
                    f"its function takes {one.name!r}, which is not a parameter of the tool ({', '.join(known)})",
                    actual=one.name,
                )
    return taken, every


def parameters_of(function: Any, *, skip_first: bool = False) -> list[Parameter] | None:
    """Return the parameters of a tool, without its own object; ``None`` if they are unknown."""
    try:
        found = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return found[1:] if found and (skip_first or is_method(function)) else found
