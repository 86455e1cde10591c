"""Calls with a contract: time limits, retries, fallbacks and compensation, decided between attempts."""

from __future__ import annotations

import inspect
import threading
from _thread import LockType, get_ident
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, ContextVar, copy_context
from inspect import Parameter
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import WeakSet

from .. import _reality
from .._policy.contract import ExecutionContract, check_transition, impossible, is_number, shown
from .._runtime.callsite import caller
from .._runtime.effects import Begun, Below, OpenCall
from .._runtime.lane import NOBODY, Lane, started
from .._runtime.process import process
from .._runtime.session import Scope, Session, body_of, current, here, in_call, innermost, outside_the_run
from .._runtime.step import Note, Request, Spec
from .._values import dumps, exception_text, not_serialisable, to_json, without_order
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    LogWriteError,
    RecoveryRefusedError,
    ReplayError,
    RunEndedError,
    RunStateError,
    StepTimeoutError,
)
from .calls import (
    LAZY,
    Captured,
    Point,
    answered,
    called,
    captured_of,
    drive,
    failed,
    is_method,
    names_of,
    parameters_of,
    tool,
)
from .threads import Entered, name_of, parent_lane

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from ..failures import StructuredFailure

__all__ = [
    "REFUSALS",
    "BlockBody",
    "Compensation",
    "Completed",
    "Done",
    "Invocation",
    "Plan",
    "ReplaceableCall",
    "Terms",
    "UndoableSteps",
    "acting",
    "call_plan",
    "run_plan",
    "run_plan_async",
    "undoable_steps",
    "wrap_contracted",
]

# -- fallbacks ---------------------------------------------------------------------------------------------------------
#
# Tools that are called in place of a failed one, and how its arguments are passed on to them.

#: Placeholder for an argument when only the way of passing it matters.
_ANY: Final = object()


class Fallback:
    """A tool that is called in place of a failed one, and how to call it."""

    __slots__ = ("captured", "escalation", "instance", "needs_object", "tool")

    def __init__(self, tool: Any, captured: Captured, instance: Any, needs_object: bool) -> None:
        self.tool: Final = tool
        self.captured: Final = captured
        #: The object of an already bound method.
        self.instance: Final = instance
        self.needs_object: Final = needs_object
        self.escalation = False

    @classmethod
    def of(cls, tool: str, declared: Any) -> Fallback:
        captured = captured_of(declared)
        if captured is None or captured.spec.side_effect is None:
            raise impossible(
                tool,
                "fallback",
                f"{declared!r} is not a traced tool, so its side-effect class is not known",
                "decorate it with @traced_tool(side_effect=…)",
            )
        instance = getattr(declared, "_self_instance", None)
        plain = not isinstance(captured.wrapped_as, staticmethod | classmethod)
        return cls(declared, captured, instance, instance is None and plain and is_method(captured.inner))

    def reached(self) -> list[tuple[str, str]]:
        """Return name and side-effect class of this fallback and of all its own fallbacks."""
        found = [(self.captured.spec.name, str(self.captured.spec.side_effect))]
        terms = terms_of(self.captured)
        for one in () if terms is None else terms.fallback:
            found += one.reached()
        return found

    def bound(self, instance: Any) -> tuple[Any, Any]:
        """Return the function to call and its object: ``instance`` if the fallback is a method of the same object."""
        if self.needs_object:
            tool = self.tool.__get__(instance, type(instance))
            return tool.__wrapped__, instance
        return self.tool.__wrapped__, self.instance


class ArgumentPassing:
    """How a tool's bound arguments are passed on to another tool: by name wherever Python permits it."""

    __slots__ = ("_keyword", "_parameters", "_positional")

    def __init__(self, parameters: Sequence[Parameter] | None) -> None:
        self._parameters: Final = parameters
        spread = parameters is not None and any(one.kind is one.VAR_POSITIONAL for one in parameters)
        self._positional: Final = [
            one
            for one in parameters or ()
            if one.kind is one.POSITIONAL_ONLY or (spread and one.kind is one.POSITIONAL_OR_KEYWORD)
        ]
        self._keyword: Final = [
            one
            for one in parameters or ()
            if one not in self._positional and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]

    def arguments(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._parameters is None:
            return tuple(bound["args"]), dict(bound["kwargs"])
        args = [bound[one.name] for one in self._positional]
        kwargs = {one.name: bound[one.name] for one in self._keyword}
        for one in self._parameters:
            if one.kind is one.VAR_POSITIONAL:
                args += bound[one.name]
            elif one.kind is one.VAR_KEYWORD:
                kwargs |= bound[one.name]
        return tuple(args), kwargs

    def misfit(self, captured: Captured, instance: Any) -> str | None:
        """Return why a fallback can't take the tool's arguments, or ``None``."""
        if self._parameters is None:
            return None
        sample: dict[str, Any] = {}
        for one in self._parameters:
            spread, named = one.kind is one.VAR_POSITIONAL, one.kind is one.VAR_KEYWORD
            sample[one.name] = (_ANY,) if spread else {"anything": _ANY} if named else _ANY
        args, kwargs = self.arguments(sample)
        others = parameters_of(captured.inner, skip_first=instance is not None)
        if others is None:
            return None
        try:
            inspect.Signature(others).bind(*args, **kwargs)
        except TypeError as error:
            return f"it can't take the tool's arguments ({error})"
        return None


# -- compensation ------------------------------------------------------------------------------------------------------
#
# How the effect of a reversible tool is undone.

#: The object whose method is being called: a compensation that is a method, too, is called on it.
acting: Final[ContextVar[Any]] = ContextVar("tracekit.acting", default=None)


#: The compensations of this program's tools, as long as the tools exist: an operator selects them by the tool's name.
_known: Final[WeakSet[Compensation]] = WeakSet()


class Compensation:
    """A call that undoes another: a traced tool with its own class, or a function, which is then an irreversible step."""

    __slots__ = ("__weakref__", "_every", "_names", "_needs_object", "_tool", "asynchronous", "captured", "undoes")

    def __init__(
        self, undoes: str, tool: Any, captured: Captured, names: Sequence[str], *, every: bool, needs_object: bool
    ) -> None:
        #: The name of the tool whose calls it undoes.
        self.undoes: Final = undoes
        self._tool: Final = tool
        self.captured: Final = captured
        self._names: Final = names
        self._every: Final = every
        self._needs_object: Final = needs_object
        self.asynchronous: Final = captured.shape == "coroutine"
        _known.add(self)

    @property
    def needs_object(self) -> bool:
        """Whether it is a method of the object whose method it undoes."""
        return self._needs_object

    @staticmethod
    def named(tool: str) -> list[Compensation]:
        """Return the known compensations for tools of this name."""
        return [one for one in list(_known) if one.undoes == tool]

    @classmethod
    def of(cls, tool: str, declared: Any, names: Sequence[str], *, asynchronous: bool, method: bool) -> Compensation:
        """Create the compensation of ``tool``, whose arguments have these ``names``.

        Raises ``ContractViolationError`` if ``declared`` can't undo the tool.
        """
        captured = captured_of(declared) or _plain(tool, declared)
        if captured.spec.side_effect is None or "generator" in captured.shape:
            raise impossible(tool, "compensate", f"{declared!r} is neither a function nor a traced tool")
        if captured.shape == "coroutine" and not asynchronous:
            raise impossible(tool, "compensate", f"{captured.spec.name!r} is a coroutine function, and the tool is not")
        bound = isinstance(captured.wrapped_as, staticmethod | classmethod) or _object_of(declared) is not None
        needs_object = not bound and is_method(captured.inner)
        if needs_object and not method:
            raise impossible(tool, "compensate", f"{captured.spec.name!r} is a method, and the tool is not")
        taken, every = names_of(tool, "compensate", captured.inner if needs_object else declared, [*names, "output"])
        if "output" in names and "output" in taken:
            raise impossible(
                tool, "compensate", "both it and the tool have a parameter `output`: which one is meant is not known"
            )
        return cls(tool, declared, captured, taken, every=every, needs_object=needs_object)

    def invocation(
        self, scope: Scope | None, of: int, input: Mapping[str, Any], output: Any, instance: Any
    ) -> Invocation:
        """Return the call that undoes step ``of``."""

        kwargs: dict[str, Any] = dict(input) if self._every else {n: input[n] for n in self._names if n in input}
        if "output" in self._names:
            kwargs["output"] = output
        function, owner = self._function(instance)
        bound = self.captured.arguments(owner, (), kwargs) or dict(kwargs)
        return Invocation(self.captured, function, owner, bound, (), kwargs, scope, {"compensates": of})

    def _function(self, instance: Any) -> tuple[Callable[..., Any], Any]:
        traced = captured_of(self._tool) is not None
        if not self._needs_object:
            return (self._tool.__wrapped__, _object_of(self._tool)) if traced else (self.captured.wrapped, None)
        if traced:
            return self._tool.__get__(instance, type(instance)).__wrapped__, instance
        return MethodType(self.captured.wrapped, instance), instance

    # -- in a resumed run: a cut-off step is undone before it is repeated, inside the repetition -----------------------

    def run(self, scope: Scope, of: int, input: Mapping[str, Any], output: Any) -> None:
        """Undo step ``of``, which was given up; raise what the compensation raises."""
        run_plan(call_plan(self.invocation(scope.inside(of, live=True), of, input, output, acting.get()))).result()

    async def run_async(self, scope: Scope, of: int, input: Mapping[str, Any], output: Any) -> None:
        """Do the same as ``run``, awaited."""
        call = self.invocation(scope.inside(of, live=True), of, input, output, acting.get())
        (await run_plan_async(call_plan(call))).result()


def _plain(tool: str, declared: Any) -> Captured:
    function = declared.__func__ if isinstance(declared, classmethod | staticmethod) else declared
    if inspect.isclass(function) or not callable(function):
        raise impossible(tool, "compensate", f"{declared!r} is neither a function nor a traced tool")
    captured = Captured(function, Spec("tool", called(function), side_effect="irreversible", mutates=()))
    captured.wrapped_as = declared
    return captured


def _object_of(declared: Any) -> Any:
    """Return the object of a bound method, decorated or not."""
    if captured_of(declared) is not None:
        return getattr(declared, "_self_instance", None)
    return getattr(declared, "__self__", None)


class Completed:
    """A step that can be undone: completed, or failed and possibly done.

    ``within``: the steps around it that can be undone as a whole. ``working``: returns whether its function is still
    running although it was given up.
    """

    __slots__ = ("_working", "bound", "compensation", "instance", "output", "seq", "within")

    def __init__(
        self,
        compensation: Compensation,
        seq: int,
        bound: Mapping[str, Any],
        output: Any,
        instance: Any,
        within: list[int],
        working: Callable[[], bool] | None = None,
    ) -> None:
        self.compensation: Final = compensation
        self.seq: Final = seq
        self.bound: Final = bound
        self.output: Final = output
        self.instance: Final = instance
        self.within: Final = within
        self._working: Final = working

    @property
    def goes_on(self) -> bool:
        return self._working is not None and self._working()

    def invocation(self, scope: Scope) -> Invocation:
        return self.compensation.invocation(scope, self.seq, self.bound, self.output, self.instance)


# -- what a tool declares ----------------------------------------------------------------------------------------------
#
# What a tool declares beyond its name: contract, key, cost, fallbacks, compensation. Checked at the declaration.

#: Fields for which a call is one thing, from its beginning to its end. A generator can't have them: its caller has had some of
#: its items by then. With any other field nothing remains to be enforced once the call has begun.
_OF_THE_WHOLE_CALL: Final = ("exactly_once", "max_retries", "timeout_ms")


class Terms:
    """The contract, key, cost, fallbacks and compensation of one tool, checked once and applied at each call."""

    __slots__ = (
        "checks_only",
        "compensation",
        "contract",
        "contract_fields",
        "cost",
        "fallback",
        "key",
        "parameters",
        "passing",
        "tool",
    )

    def __init__(
        self,
        tool: str,
        function: Callable[..., Any],
        side_effect: str,
        contract: ExecutionContract,
        *,
        compensate: Callable[..., Any] | None = None,
        fallback: Any = (),
        idempotency_key: Any = None,
        cost_units: Any = None,
        shape: str = "function",
    ) -> None:
        self.tool: Final = tool
        self.contract: Final = contract
        self.parameters: Final = parameters_of(function)
        contract.check(tool, side_effect)
        self.key: Final = self._key_of(idempotency_key)
        self.cost: Final = self._cost(cost_units)
        fallbacks = _listed(fallback)
        self._check_shape(shape, compensate, fallbacks)
        if contract.idempotent_required and self.key is None:
            raise impossible(
                tool, "idempotent_required", "idempotent_required without an idempotency_key", "say idempotency_key="
            )
        self.compensation: Final = self._compensation(compensate, side_effect, function, shape)
        #: How this tool's arguments are passed on to others.
        self.passing: Final = ArgumentPassing(self.parameters)
        self.fallback: Final = self._fallback(fallbacks, side_effect, function, shape)
        self.contract_fields: Final = contract.as_dict()
        #: Whether nothing remains to be enforced once the call has begun.
        self.checks_only: Final = not (self.fallback or self.compensation or self._of_the_whole_call())

    # -- at the declaration --------------------------------------------------------------------------------------------

    def _check_shape(self, shape: str, compensate: object, fallbacks: Sequence[Any]) -> None:
        if shape == "function" and self.contract.timeout_ms is not None and self.contract.timeout_in != "thread":
            raise TypeError(
                f"{self.tool!r} has timeout_ms={self.contract.timeout_ms!r} and is a plain function, which can't be interrupted: make it "
                'a coroutine function (`async def`), which is cancelled when its time is over; or say timeout_in="thread": it then runs '
                "in a thread of its own, which continues after that"
            )
        if "generator" not in shape:
            return
        unsupported = self._of_the_whole_call()
        unsupported += ["fallback"] if fallbacks else []
        unsupported += ["compensate"] if compensate is not None else []
        if unsupported:
            raise impossible(
                self.tool,
                unsupported[0],
                f"it is a generator, and its caller has had some of its items when it fails: {', '.join(unsupported)} can't be kept",
                "leave it out, or let the tool return a list",
            )

    def _of_the_whole_call(self) -> list[str]:
        return [name for name in _OF_THE_WHOLE_CALL if getattr(self.contract, name)]

    def _key_of(self, declared: Any) -> Callable[[Mapping[str, Any]], Any] | None:
        """Return the function that takes the key from the bound arguments; ``None`` if none is declared."""
        field = "idempotency_key"
        if declared is None:
            return None
        if isinstance(declared, str):
            if declared not in (known := self._names()):
                raise impossible(
                    self.tool,
                    field,
                    f"{field} is {declared!r}, which is none of its parameters ({', '.join(known) or 'it has none'})",
                    "name a parameter, or give a function of parameters: lambda customer, month: f'{customer} {month}'",
                    actual=declared,
                )
            return lambda bound: bound.get(declared)
        if not callable(declared):
            raise impossible(self.tool, field, f"{field} must be a parameter's name or a function, not {declared!r}")
        return self._by_name(field, declared)

    def _by_name(self, field: str, function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
        """Return ``function`` as a function of the bound arguments that passes those it names."""
        taken, every = names_of(self.tool, field, function, self._names())
        return lambda bound: function(**(bound if every else {name: bound[name] for name in taken if name in bound}))

    def _names(self) -> list[str]:
        return ["args", "kwargs"] if self.parameters is None else [one.name for one in self.parameters]

    def _cost(self, declared: Any) -> Callable[[Mapping[str, Any]], Any] | None:
        limit = self.contract.max_cost_units
        if declared is None:
            if limit is not None and limit < 1:
                raise impossible(
                    self.tool,
                    "max_cost_units",
                    f"a call costs 1 unit by default, and max_cost_units is {limit}",
                    "say cost_units=",
                )
            return None if limit is None else lambda bound: 1
        if callable(declared):
            return self._by_name("cost_units", declared)
        if not is_number(declared) or declared < 0:
            raise impossible(
                self.tool,
                "cost_units",
                f"cost_units must be a number >= 0, or a function, not {shown(declared)}",
                actual=declared,
            )
        if limit is not None and declared > limit:
            raise impossible(
                self.tool,
                "max_cost_units",
                f"every call costs {declared}, and max_cost_units is {limit}",
                actual=declared,
            )
        return lambda bound: declared

    def _compensation(
        self, compensate: Any, side_effect: str, function: Callable[..., Any], shape: str
    ) -> Compensation | None:
        if compensate is None:
            return None
        if side_effect != "reversible":
            raise impossible(
                self.tool,
                "compensate",
                f"it is {side_effect}, and only reversible calls are compensated",
                "say side_effect='reversible', or leave compensate out",
            )
        return Compensation.of(
            self.tool, compensate, self._names(), asynchronous=shape == "coroutine", method=is_method(function)
        )

    def _fallback(
        self, fallbacks: Sequence[Any], side_effect: str, function: Callable[..., Any], shape: str
    ) -> tuple[Fallback, ...]:
        found: list[Fallback] = []
        before = (self.tool, side_effect)
        for declared in fallbacks:
            one = Fallback.of(self.tool, declared)
            spec = one.captured.spec
            self._check_fallback(one, found, function, shape)
            for name, reached in one.reached():
                check_transition(self.tool, side_effect, name, reached)
            one.escalation = check_transition(self.tool, side_effect, spec.name, str(spec.side_effect))
            check_transition(before[0], before[1], spec.name, str(spec.side_effect))
            found.append(one)
            before = (spec.name, str(spec.side_effect))
        return tuple(found)

    def _check_fallback(self, one: Fallback, found: list[Fallback], function: Callable[..., Any], shape: str) -> None:
        captured = one.captured
        problem = None
        if captured.inner is inspect.unwrap(function):
            problem = "it is the tool itself"
        elif any(captured is other.captured for other in found):
            problem = "it is there twice"
        elif "generator" in captured.shape:
            problem = "it is a generator"
        elif captured.shape == "coroutine" and shape != "coroutine":
            problem = "it is a coroutine function, and the tool is not"
        elif one.needs_object and not is_method(function):
            problem = "it is a method, and the tool is not"
        else:
            problem = self.passing.misfit(captured, one.instance)
        if problem is not None:
            raise impossible(self.tool, "fallback", f"{captured.spec.name!r} can't replace it: {problem}")

    # -- at each call ----------------------------------------------------------------------------------------------------

    def opening(self, scope: Scope | None, spec: Spec, bound: Mapping[str, Any]) -> Request:
        """Return the request of a call with arguments ``bound``, with its exactly-once key if it has one. Raise if the
        call is not allowed.

        Each of the tool's own functions of its arguments is called once.
        """
        contract, limit = self.contract, self.contract.max_cost_units
        key = cost = once = None
        error: ContractViolationError | None = None
        try:
            if contract.idempotent_required or (contract.exactly_once and scope is not None):
                key = self._keyed(bound)
            if contract.idempotent_required and key is None:
                raise self._broken("idempotent_required", "it has no idempotency key", True, None)
            cost = self.units(bound)
            if cost is not None and limit is not None and cost > limit:
                raise self._broken("max_cost_units", f"it costs {cost} units, and {limit} are allowed", limit, cost)
            if contract.exactly_once and scope is not None:
                once = self._once(bound, key)
        except ContractViolationError as found:
            error = found
        if error is not None:
            try:
                if scope is None:
                    raise error
                error.run_id, error.location = scope.session.run_id, caller()
                raise scope.session.refuse(scope, Request(spec, bound), error)
            finally:
                error = None  # no frame of its traceback may keep it alive
        info: dict[str, Any] | None = None if spec.patterns is None else {}
        if cost is not None:
            info = {**(info or {}), "cost_units": cost}
        if key is not None and scope is not None:
            info = {**(info or {}), "idempotency_key": key}
        if scope is not None and self.contract_fields:
            scope.session.validated(scope, spec)
        return Request(spec, bound, info, once_key=once)

    def units(self, bound: Mapping[str, Any]) -> float | None:
        """Return the call's declared cost, or ``None``."""
        if self.cost is None:
            return None
        cost = self._asked("cost_units", self.cost, bound)
        if not is_number(cost) or cost < 0:
            raise self._broken(
                "cost_units", f"cost_units came to {shown(cost)}, which is not a number of at least 0", None, cost
            )
        return cost  # type: ignore[no-any-return]

    def _keyed(self, bound: Mapping[str, Any]) -> Any:
        """Return the idempotency key of the call, or ``None`` if it has none."""
        if self.key is None:
            return None
        key = self._asked("idempotency_key", self.key, bound)
        return None if _is_none(key) else key

    def _asked(self, field: str, function: Callable[[Mapping[str, Any]], Any], bound: Mapping[str, Any]) -> Any:
        try:
            return function(bound)
        except Exception as error:
            raise self._broken(field, f"{field} raised {exception_text(error)}", None, repr(error)) from error

    def _once(self, bound: Mapping[str, Any], key: Any) -> bytes:
        """Return the identity of this call under an ``exactly_once`` contract: its key, or its arguments before
        redaction."""
        what = "input" if key is None else "key"
        tree = to_json(bound if key is None else key)
        if not_serialisable(tree) is not None:
            raise self._broken(
                "exactly_once",
                "its arguments can't all be encoded, so two calls can't be distinguished: say idempotency_key="
                if key is None
                else "its idempotency key can't be encoded",
                None,
                repr(key) if key is not None else None,
            )
        return dumps({"tool": self.tool, what: tree if tree is bound else without_order(tree)})

    def _broken(self, field: str, problem: str, limit: Any, actual: Any) -> ContractViolationError:
        return ContractViolationError(
            f"the call of {self.tool!r} breaks its contract: {problem}; it was not executed",
            tool=self.tool,
            contract=field,
            limit=limit,
            actual=actual,
            next_action="change the call, or change the contract where the tool is declared",
        )


def terms_of(point: Point) -> Terms | None:
    """Return what a tool declares, or ``None``."""
    terms = point.terms
    assert terms is None or isinstance(terms, Terms)
    return terms


def _is_none(key: Any) -> bool:
    """Return whether a key counts as missing: ``None``, blank text, an empty container."""
    if isinstance(key, str | bytes):
        return not key.strip()
    return key is None or (isinstance(key, Collection) and not key)


def _listed(fallback: Any) -> tuple[Any, ...]:
    if fallback is None:
        return ()
    return tuple(fallback) if isinstance(fallback, list | tuple) else (fallback,)


# -- time limits -------------------------------------------------------------------------------------------------------
#
# A coroutine is cancelled at its timeout. A function runs in a thread of its own, since a thread can't be stopped from
# outside: it keeps running there, but its result is dropped and it can begin no further effect (see
# ``_runtime.effects``).


class Overdue(Exception):
    """Raised when a call has exceeded its time limit. ``goes_on``: it is still running."""

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__("the time is over")
        self.goes_on: Final = goes_on


class ThreadedCall:
    """A call in a thread of its own, in a copy of this context. Inside a run its lane is started by the step of
    ``body``."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], body: Scope | None
    ) -> None:
        call: Callable[..., Any] = function
        self.lane: Lane | None = None
        if body is not None:
            self.lane = started(parent_lane(body), name_of(function), body.live)
            call = Entered(function, body.in_lane(self.lane))
        context = copy_context()
        self._call: Final[Callable[[], Any]] = lambda: context.run(call, *args, **kwargs)
        self._name: Final = name_of(function)
        self._over: Callable[[], object] = lambda: None
        self._result: Any = None
        self._error: BaseException | None = None
        self._guard: Final = _reality.OwnLock()
        #: Whether the call has ended.
        self.ended = False
        self._late = False
        self._gate: Final = _reality.gate()

    def result(self, seconds: float, over: Callable[[], object]) -> Any:
        """Return the result of the call within ``seconds``; else raise ``Overdue``, and call ``over`` once the call
        ends after all."""
        thread = threading.Thread(target=self._run, name=f"tracekit-{self._name}", daemon=True)
        try:
            try:
                Context().run(thread.start)  # a thread of tracekit, not of the run
            except Exception:
                self.ended = thread.ident is None  # the system has no room for one more
                raise
            with _reality.off_loop():
                in_time = _reality.pause(_reality.acquire, self._gate, timeout=seconds)
        except BaseException:  # Ctrl-C
            self._leave(over)
            raise
        if not in_time and self._leave(over):
            if self.lane is not None:
                self.lane.owner = NOBODY  # the run does not wait for it at its end
            raise Overdue(goes_on=True)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        with self._guard:
            self.ended, late = True, self._late
        self._gate.release()
        if late:
            self._over()

    def _leave(self, over: Callable[[], object]) -> bool:
        """Stop waiting for the call; return False if it has just ended."""
        with self._guard:
            self._over = over
            self._late = not self.ended
            return self._late


async def in_time_async(made: Awaitable[Any], seconds: float) -> Any:
    """Await ``made`` for at most ``seconds``, then cancel it; raise ``Overdue`` if that ended it.

    Swallowing the cancellation does not make it a success: what ``made`` returns after the time limit is dropped.
    """
    from asyncio import timeout

    limit = timeout(seconds)
    token = current.set(None)  # this deadline is not part of the run
    try:
        await limit.__aenter__()
    finally:
        current.reset(token)
    try:
        result = await made
    except BaseException as error:
        try:
            await limit.__aexit__(type(error), error, error.__traceback__)
        except TimeoutError:
            raise Overdue(goes_on=False) from error
        raise
    await limit.__aexit__(None, None, None)
    if limit.expired():
        raise Overdue(goes_on=False)
    return result


# -- steps that can be undone ------------------------------------------------------------------------------------------
#
# The steps of a run that can be undone: completed, failed but possibly done, and under way.

#: The longest time (s) that a thread waits before it checks again: not every change wakes it.
_POLL_S: Final = 0.05


class UnderWay:
    """A running call that can be undone, with all its attempts. ``seq`` is its last attempt."""

    __slots__ = ("loop", "seq", "thread")

    def __init__(self) -> None:
        self.thread: Final = get_ident()
        self.loop: Final[AbstractEventLoop | None] = _reality.running_loop()
        self.seq = 0

    @property
    def here(self) -> bool:
        """Whether it runs in this thread, which can't wait for it without awaiting."""
        return self.thread == get_ident()


class UndoableSteps:
    """The steps of one run that can be undone, by ``seq``. Every change wakes the threads and tasks that wait for one."""

    def __init__(self) -> None:
        self._lock: Final = _reality.OwnLock()
        self._steps: dict[int, Completed] = {}
        self._under_way: set[UnderWay] = set()
        #: Steps whose compensation has failed: it is not run again.
        self.stuck: Final[set[int]] = set()
        self._gates: list[LockType] = []
        self._futures: list[Future[None]] = []

    # -- writing -------------------------------------------------------------------------------------------------------

    def begin(self) -> UnderWay:
        one = UnderWay()
        with self._lock:
            self._under_way.add(one)
        return one

    def end(self, one: UnderWay) -> None:
        with self._lock:
            self._under_way.discard(one)
        self.changed()

    def add(self, one: Completed) -> None:
        """Register a step that can be undone from now on, including what it did inside."""
        with self._lock:
            self._forget_inside(one.seq)
            self._steps[one.seq] = one
        self.changed()

    def undone(self, seq: int, *, failed: bool = False) -> None:
        """Remove step ``seq``, which has been undone as a whole, or whose undoing ``failed``."""
        with self._lock:
            self._steps.pop(seq, None)
            if failed:
                self.stuck.add(seq)
            else:
                self._forget_inside(seq)

    def forget_inside(self, seq: int) -> None:
        with self._lock:
            self._forget_inside(seq)

    def _forget_inside(self, seq: int) -> None:
        for inner in [other.seq for other in [*self._steps.values()] if seq in other.within]:
            del self._steps[inner]

    # -- reading ---------------------------------------------------------------------------------------------------------

    def take(self, seq: int | None = None, *, but: Iterable[int] = ()) -> Completed | None:
        """Remove and return step ``seq``, or the last step that is not still running."""
        with self._lock:
            if seq is not None:
                return self._steps.pop(seq, None)
            left = set(but)
            found = [one for one, step in [*self._steps.items()] if one not in left and not step.goes_on]
            return self._steps.pop(max(found)) if found else None

    def has(self, seq: int) -> bool:
        return seq in self._steps

    def waits(self, *, other_threads: bool) -> bool:
        """Return whether a step is under way (``other_threads``: in another thread), or still running although it was
        given up."""
        with self._lock:
            return any(not (other_threads and one.here) for one in [*self._under_way]) or any(
                step.goes_on for step in [*self._steps.values()]
            )

    def any_under_way(self, of: Callable[[int], bool]) -> bool:
        """Return whether any step under way satisfies the predicate."""
        with self._lock:
            return any(one.seq and of(one.seq) for one in [*self._under_way])

    @property
    def standing(self) -> set[int]:
        """Return the steps that nothing has tried to undo."""
        with self._lock:
            return {*self._steps, *(one.seq for one in [*self._under_way] if one.seq)}

    def asynchronous(self) -> list[str]:
        """Return the names of compensations that must be awaited."""
        with self._lock:
            compensations = [one.compensation for one in [*self._steps.values()]]
        return [one.captured.spec.name for one in compensations if one.asynchronous]

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        with self._lock:
            gates, self._gates = self._gates, []
            futures, self._futures = self._futures, []
        for gate in gates:
            gate.release()
        for future in futures:
            _reality.wake(future)

    def wait(self, over: Callable[[], bool], until: float | Callable[[LockType], object]) -> None:
        """Block this thread until ``over`` is true, at most until an instant, or with a function that waits for the
        lock and knows when waiting is futile."""
        opened = True
        while True:
            if opened:
                gate = _reality.gate()
                with self._lock:
                    self._gates.append(gate)
            if over():
                return
            if callable(until):
                _reality.pause(until, gate)
                continue
            rest = until - _reality.monotonic()
            if rest <= 0:
                return
            with _reality.off_loop():
                opened = _reality.pause(_reality.acquire, gate, timeout=min(rest, _POLL_S))

    async def wait_async(self, over: Callable[[], bool], seconds: float | None) -> None:
        """Suspend this task until ``over`` is true, for at most ``seconds`` if that is a number."""
        loop = _reality.running_loop()
        late: list[bool] = []

        def enough() -> None:
            late.append(True)
            self.changed()

        timer = None if seconds is None else _timer(loop, seconds, enough)
        try:
            while not (over() or late):
                future = loop.create_future()
                with self._lock:
                    self._futures.append(future)
                if over() or late:  # it became true in the meantime
                    return
                await future
        finally:
            if timer is not None:
                timer.cancel()


def _timer(loop: AbstractEventLoop, seconds: float, act: Callable[[], object]) -> Any:
    return outside_the_run(loop.call_later, seconds, act)


def undoable_steps(session: Session) -> UndoableSteps:
    """Return the steps of a run that can be undone."""
    return session.state.extras.of(UndoableSteps)


# -- attempts ----------------------------------------------------------------------------------------------------------
#
# One attempt at a call, live or answered from the log, and the pause before the next.

#: Errors of calls that are not allowed: followed by neither a retry nor a fallback.
REFUSALS: Final = (
    ContractViolationError,
    BudgetExceededError,
    LogWriteError,
    RunEndedError,
    RunStateError,
    RecoveryRefusedError,
)
_NONE: Final[Mapping[str, Any]] = {}
_CHECK_FIRST: Final = "find out whether it happened before it is called again"


class Invocation:
    """One bound call of a tool; without a ``function`` its body is a block. ``info`` is recorded with each of its
    attempts."""

    __slots__ = (
        "args",
        "bound",
        "captured",
        "followed",
        "function",
        "info",
        "instance",
        "kwargs",
        "scope",
        "terms",
        "under_way",
        "undoes",
    )

    def __init__(
        self,
        captured: Point,
        function: Any,
        instance: Any,
        bound: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: Scope | None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self.captured: Final = captured
        self.terms: Final = terms_of(captured)
        self.function: Final = function
        self.instance: Final = instance
        self.bound: Final = bound
        self.args: Final = args
        self.kwargs: Final = kwargs
        self.scope: Final = scope
        self.info: Final = info
        #: Whether this call is a compensation.
        self.undoes: Final = info is not None and "compensates" in info
        #: Whether the caller may call another tool instead after a failure, so that the failed attempt is undone first.
        self.followed = False
        #: The entry that an abort of the run waits for, if the call can be undone.
        self.under_way: UnderWay | None = None


class Done:
    """The outcome of an attempt. ``about`` is what the log has on a failure besides the error itself."""

    __slots__ = ("about", "error", "irreversible", "output", "recorded", "seq", "side_effect", "stuck")

    def __init__(
        self,
        call: Invocation,
        seq: int,
        output: Any = None,
        error: BaseException | None = None,
        about: Mapping[str, Any] = _NONE,
        recorded: Any = None,
    ) -> None:
        self.seq: Final = seq
        self.output: Final = output
        self.error: Final = error
        self.about: Final = about
        self.recorded: Final = recorded
        self.side_effect: Final = call.captured.spec.side_effect
        #: Whether an effect that can't be undone has begun.
        self.irreversible = self.side_effect == "irreversible" or bool(about.get("irreversible"))
        #: Whether undoing it was tried and failed.
        self.stuck = False

    def result(self) -> Any:
        """Return the output, or raise the error."""
        if self.error is None:
            return self.output
        if isinstance(self.error, ReplayError):
            raise self.error
        try:
            raise self.error
        finally:
            del self  # this frame is in the traceback of the exception that it holds

    @property
    def final(self) -> bool:
        """Whether neither another attempt nor another tool may follow."""
        error = self.error
        return (
            not isinstance(error, Exception)
            or isinstance(error, REFUSALS)
            or "final" in self.about
            or self.irreversible
            or self.stuck
        )

    @property
    def failure(self) -> StructuredFailure:
        """The structured failure; in a replay as recorded, since the exception's type may not exist."""
        from ..failures import StructuredFailure, classify

        assert self.error is not None
        if isinstance(self.recorded, Mapping):
            try:
                return StructuredFailure.from_dict(self.recorded)
            except ValueError:
                pass
        return classify(self.error, side_effect=self.side_effect)


class _Unrecorded:
    """The step of a call outside of any run."""

    __slots__ = ("_begun",)

    live: Final = True
    deferred: Final = False
    seq: Final = 0

    def __init__(self, begun: Begun | None) -> None:
        self._begun: Final = begun

    def body(self) -> None:
        return None

    def holds(self, instance: object) -> None:
        pass

    def done(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        if self._begun is not None:
            self._begun.end()

    def failed(self, error: BaseException, *, info: Mapping[str, Any] | None = None) -> None:
        if self._begun is not None:
            self._begun.end(failed=True)


# What a call's plan yields and a driver carries out: in this thread (``take``), or awaited (``take_async``).


class Wait(NamedTuple):
    """Wait for the step: until it is live, if the log of a resumed run does not answer it, or for its recorded outcome."""

    take: Callable[[], Any]
    take_async: Callable[[], Awaitable[Any]]
    asynchronous: bool


class FunctionBody:
    """The live call of a function: the body of ``step``, in ``scope``."""

    __slots__ = ("_call", "_limit", "_open", "_scope", "_step", "asynchronous", "suspended", "working")

    #: Additional entries of the outcome's ``meta``.
    outcome_info: Final[Mapping[str, Any]] = _NONE
    ended: Final = True

    def __init__(
        self, call: Invocation, step: Any, scope: Scope | None, one: OpenCall | None, asynchronous: bool
    ) -> None:
        terms = call.terms
        limit = None if terms is None else terms.contract.timeout_ms
        self._call: Final = call
        self._step: Final = step
        self._scope: Final = scope
        self._open: Final = one
        self._limit: Final = None if limit is None else limit / 1000
        #: Whether the event loop ran in the meantime.
        self.suspended = False
        self.asynchronous: Final = asynchronous
        #: For a function with a time limit: returns whether its thread is still running.
        self.working: Callable[[], bool] | None = None

    def take(self) -> Any:
        call, step = self._call, self._step  # noqa: F841 - by ``step``, the call of a signal handler is found to be in its body
        token = current.set(self._scope)
        try:
            result = call.function(*call.args, **call.kwargs) if self._limit is None else self._in_time(self._limit)
        except BaseException:
            current.reset(token)
            raise
        current.reset(token)
        return result

    def _in_time(self, limit: float) -> Any:
        work = ThreadedCall(self._call.function, self._call.args, self._call.kwargs, self._scope)
        self.working = lambda: not work.ended
        try:
            return work.result(limit, self._over)
        except Overdue:
            if self._open is not None:
                self._open.given_up(self.working)
            raise

    def _over(self) -> None:
        """The thread that nobody waited for has ended."""
        if self._open is not None:
            self._open.over()
        if self._scope is not None:
            undoable_steps(self._scope.session).changed()

    async def take_async(self) -> Any:
        call, step = self._call, self._step  # noqa: F841 - as in ``take``
        token = current.set(self._scope)
        try:
            driven = drive(call.function(*call.args, **call.kwargs))
            try:
                result = await (driven if self._limit is None else in_time_async(driven, self._limit))
            finally:
                self.suspended = driven.suspended
        except BaseException:
            current.reset(token)
            raise
        current.reset(token)
        return result


class BlockBody:
    """A live body that is the program's own ``with`` block: the driver stops here, and continues once the block has
    ended."""

    __slots__ = ("_token", "ended", "outcome_info")

    suspended: Final = False
    working: Final = None

    def __init__(self, scope: Scope | None) -> None:
        self.outcome_info: Mapping[str, Any] = _NONE
        #: Whether the block has ended; a dropped one has no outcome.
        self.ended = False
        self._token: Final = current.set(scope)

    def end(self) -> None:
        """Leave the block."""
        self.ended = True
        current.reset(self._token)


class Pause:
    """The wait between two attempts: an event of the run, which a replay does not spend."""

    __slots__ = ("_scope", "_seconds")

    asynchronous: Final = True

    def __init__(self, scope: Scope | None, seconds: float) -> None:
        self._scope: Final = scope
        self._seconds: Final = seconds

    def _timer(self) -> Any:
        scope = self._scope
        if scope is None or scope.live or scope.session.state.ended:
            return None
        return scope.session.arm(scope, "tracekit.backoff", self._seconds)

    def take(self) -> None:
        timer = self._timer()
        if timer is not None and not timer.live:
            timer.wait()
        if timer is None or timer.live:
            _reality.pause(_reality.sleep, self._seconds)
            if timer is not None:
                timer.fired()

    async def take_async(self) -> None:
        timer = self._timer()
        if timer is not None and not timer.live:
            await timer.wait_async()
        if timer is None or timer.live:
            token = current.set(None)  # the sleep itself is not part of the run
            try:
                from asyncio import sleep

                await sleep(self._seconds)
            finally:
                current.reset(token)
            if timer is not None:
                timer.fired()


# -- calls with a contract ---------------------------------------------------------------------------------------------
#
# Calls of tools that declare more than a side-effect class: checked, limited in time, retried, replaced by fallbacks.
#
# The decisions between attempts are made in one place (``call_plan``), from what is in the log, so that a replay
# decides the same. Two drivers carry them out, synchronously or with ``await``.

#: The first wait before a retry, the longest (each is twice the previous), and the longest that a server may demand
#: (s).
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 30.0
_LONGEST_RETRY_AFTER: Final = 300.0
#: Failure types that a retry with the same arguments can't fix, when the strategy is to give up.
_NOT_RETRYABLE: Final = frozenset(
    ("invalid_input", "schema_validation", "contract_violation", "budget_exceeded", "side_effect_violation")
)


# -- the plan of a call ------------------------------------------------------------------------------------------------

Plan: TypeAlias = "Generator[Wait | FunctionBody | BlockBody | Pause, Any, Done]"


def call_plan(call: Invocation) -> Plan:
    """Return the plan of one call as a generator of attempts, pauses and fallbacks.

    The generator returns the outcome (a ``Done``), and raises if the call is not allowed.
    """
    terms, scope, undoable = call.terms, call.scope, None
    done: Done | None = None
    if call.captured.spec.compensation is not None and scope is not None and not call.undoes:
        undoable = undoable_steps(scope.session)
        # before its first step begins: an abort either waits for it or prevents it
        call.under_way = undoable.begin()
    try:
        if scope is None:
            call.captured.checked_outside()
        if terms is None:
            request = Request(call.captured.spec, call.bound, call.info)
        else:
            request = terms.opening(scope, call.captured.spec, call.bound)
            if call.info:
                request = request.saying(call.info)
        number = 0
        while True:
            number += 1
            done = yield from _attempt(call, request if number == 1 else request.saying({"attempt": number}))
            if done.error is None or terms is None or done.final:
                return done
            wait = _wait(terms, done, number)
            if wait is None and not (terms.fallback or call.followed):
                return done
            if not (yield from _undo_attempt(call, done)):
                done.stuck = True
                return done
            if wait is None:
                return (yield from _try_fallbacks(call, done)) if terms.fallback else done
            yield Pause(scope, wait)
    finally:
        done = None  # this frame is in the traceback of the exception that it holds
        if undoable is not None and call.under_way is not None:
            undoable.end(call.under_way)


def _attempt(call: Invocation, request: Request) -> Plan:
    """Return the plan of one attempt at a call, live or answered from the log."""
    captured, terms, scope = call.captured, call.terms, call.scope
    spec, asynchronous = captured.spec, captured.shape == "coroutine"
    lazily = terms is None or terms.checks_only  # the value it returns may complete later
    step: Any
    if scope is None:
        step = _Unrecorded(process.effects.begins_outside(spec.name, spec.side_effect, undoes=call.undoes))
    else:
        step = scope.session.begin(scope, request)
    if step.deferred:
        token = acting.set(call.instance)
        try:
            step = yield Wait(step.go, step.go_async, asynchronous)
        finally:
            acting.reset(token)
    if captured.own:
        step.holds(captured.object_of(call.instance, call.args))
    if not step.live and lazily and not asynchronous and step.ahead("lazy") is not None:
        return Done(call, step.seq, answered(step))
    if call.under_way is not None:  # an abort may ask which step is under way
        call.under_way.seq = step.seq
    if not step.live:
        outcome = yield Wait(step.answer, step.answer_async, asynchronous)
        about = outcome.meta.get("info") or _NONE
        if about.get("reason") != "exactly_once":  # that was an earlier step's effect
            _keep(call, step, outcome.output)
        output = outcome.output if outcome.error is None else None
        return Done(call, step.seq, output, outcome.error, about, outcome.meta.get("failure"))
    one, body, awaited = None, step.body(), call.under_way is not None
    if call.undoes or call.followed or not lazily:  # its contents decide about what follows
        outer, run_id = (innermost(), None) if body is None else (body.call, body.session.run_id)
        one = OpenCall(process.effects, outer, run_id=run_id, seq=step.seq, undoes=call.undoes, awaited=awaited)
        body = body_of(one, body)
    work = BlockBody(body) if call.function is None else FunctionBody(call, step, body, one, asynchronous)
    try:
        result = yield work
    except BaseException as error:
        if not work.ended:
            raise
        return _failed(call, step, error, work, one)
    if type(result) in LAZY and call.function is not None:
        if not lazily:
            return _failed(call, step, _unfinished(spec.name, result), work, one)
        _left(one)
        return Done(call, step.seq, result if scope is None else LAZY[type(result)](step, result))
    _, within = _left(one)
    outcome_info: Mapping[str, Any] | None = (
        None if spec.patterns is None else _NONE
    )  # tools with their own redaction patterns can't take the short path
    if work.outcome_info or work.suspended:
        outcome_info = {**work.outcome_info, "suspended": True} if work.suspended else work.outcome_info
    if outcome_info is None:
        step.done(result)
    else:
        step.done(result, info=outcome_info)
    _keep(call, step, result, within, work.working)
    return Done(call, step.seq, result)


def _left(one: OpenCall | None, *, failed: bool = False) -> tuple[Below, list[int]]:
    """Close a call whose body is over: return what happened in it, and the steps around it that can be undone or
    repeated as a whole."""
    if one is None:
        return Below(), []
    around = [] if one.outer is None or one.run_id is None else one.outer.steps(one.run_id)
    return one.end(failed=failed), around


def _keep(
    call: Invocation,
    step: Any,
    output: Any,
    within: list[int] | None = None,
    working: Callable[[], bool] | None = None,
) -> None:
    """Keep an attempt for an undo of the run: what it did, or what it may have done before it failed."""
    compensation = call.captured.spec.compensation
    if compensation is not None and call.scope is not None and not call.undoes:
        one = Completed(compensation, step.seq, call.bound, output, call.instance, within or [], working)
        undoable_steps(call.scope.session).add(one)


def _failed(
    call: Invocation,
    step: Any,
    error: BaseException,
    work: FunctionBody | BlockBody,
    one: OpenCall | None,
) -> Done:
    spec = call.captured.spec
    about: dict[str, Any] = {}
    goes_on = isinstance(error, Overdue) and error.goes_on
    if isinstance(error, Overdue):
        # whether it may still take effect, or has had an effect that can't be undone
        in_doubt = spec.side_effect == "irreversible" or (goes_on and spec.side_effect == "reversible")
        error = _overdue(call, step, error, in_doubt)
        about["timeout"] = True
        if in_doubt:
            about["in_doubt"] = True
        if in_doubt and goes_on:
            about["final"] = True  # if it were undone or repeated now, the later effects of its thread would remain
    below, within = _left(one, failed=True)
    if below.irreversible is not None:
        about["irreversible"] = below.irreversible
    if below.in_doubt is not None:
        about["final"] = True
    if about.get("in_doubt") and goes_on and one is not None:
        one.note_in_doubt(spec.name)
    if not isinstance(error, Exception):
        about["final"] = True
    outcome_info: Mapping[str, Any] | None = {"info": about} if about else None if spec.patterns is None else _NONE
    failed(step, error, work.suspended, outcome_info)
    _keep(call, step, None, within, work.working)
    return Done(call, step.seq, None, error, about)


def _overdue(call: Invocation, step: Any, overdue: Overdue, in_doubt: bool) -> StepTimeoutError:
    spec, terms, scope = call.captured.spec, call.terms, call.scope
    assert terms is not None
    limit = terms.contract.timeout_ms
    goes_on = overdue.goes_on
    error = StepTimeoutError(
        f"{spec.name!r} took longer than its {limit} ms, and "
        + ("is no longer waited for (its thread continues)" if goes_on else "was interrupted")
        + ("; whether it took effect is not known" if in_doubt else ""),
        run_id=None if scope is None else scope.session.run_id,
        step=step.seq or None,
        location=caller(),
        next_action=_CHECK_FIRST if in_doubt else "give it more time, or find out what it waits for",
        tool=spec.name,
        timeout_ms=limit,
        side_effect=spec.side_effect,
        in_doubt=in_doubt,
    )
    error.__cause__ = overdue.__cause__
    return error


def _unfinished(name: str, result: Any) -> ContractViolationError:
    """Return the error for a plain function that returned an unstarted coroutine or generator: its contract can't be
    kept."""
    close = getattr(result, "close", None)
    if close is not None:
        close()
    kind = type(result).__name__.replace("_", " ")
    return ContractViolationError(
        f"{name!r} returned a {kind}, for which its contract can't be kept; it was not started",
        tool=name,
        contract="shape",
        actual=kind,
        next_action="declare the tool with `async def`, or let it return a value",
    )


def _wait(terms: Terms, done: Done, number: int) -> float | None:
    """Return how long to wait before a retry (s); ``None``: no retry."""
    if number > terms.contract.max_retries:
        return None
    failure = done.failure
    strategy = str(failure.recovery_strategy)
    if strategy == "manual_intervention" or (strategy == "abort" and str(failure.type) in _NOT_RETRYABLE):
        return None
    wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(number - 1, 16))
    requested = failure.retry_after_s or 0.0
    return None if requested > _LONGEST_RETRY_AFTER else max(wait, requested)


def _undo_attempt(call: Invocation, done: Done) -> Generator[Wait | FunctionBody | BlockBody | Pause, Any, bool]:
    """Undo what a failed attempt may have done, before it is repeated; return False if that failed."""
    compensation = call.captured.spec.compensation
    if compensation is None:
        return True
    undoable = None if call.scope is None else undoable_steps(call.scope.session)
    if undoable is not None:
        undoable.forget_inside(done.seq)
    try:
        undone = yield from call_plan(compensation.invocation(call.scope, done.seq, call.bound, None, call.instance))
    except BaseException:
        if undoable is not None:
            undoable.undone(done.seq, failed=True)
        raise
    if undoable is not None:
        undoable.undone(done.seq, failed=undone.error is not None)
    if undone.error is None:
        return True
    if not isinstance(undone.error, Exception):
        raise undone.error
    assert done.error is not None
    done.error.add_note(f"compensation {compensation.captured.spec.name!r} failed: {exception_text(undone.error)}")
    return False


def _try_fallbacks(call: Invocation, done: Done) -> Plan:
    """Return the plan of calling a failed tool's fallbacks one after the other; the first failure is the one reported."""
    terms, last = call.terms, done
    assert terms is not None
    assert done.error is not None
    before: Point = call.captured
    tried: list[str] = []
    try:
        for one in terms.fallback:
            _note_fallback(call, before, one, last)
            before = one.captured
            tried.append(before.spec.name)
            try:
                last = yield from call_plan(_fallback_call(call, terms, one))
            except REFUSALS as refusal:
                raise refusal from done.error
            if last.error is None:
                return last
            if not isinstance(last.error, Exception) or isinstance(last.error, REFUSALS):
                return last
            done.error.add_note(f"fallback {before.spec.name!r} failed too: {exception_text(last.error)}")
            done.irreversible = done.irreversible or last.irreversible
            if last.irreversible:
                break
        about = {"from": call.captured.spec.name, "tried": tried, "reason": str(last.failure.type)}
        _note(call, "fallback.exhausted", about, last)
        return done
    finally:
        del done, last  # this frame is in the tracebacks of the exceptions that they hold


def _fallback_call(call: Invocation, terms: Terms, one: Fallback) -> Invocation:
    function, instance = one.bound(call.instance)
    args, kwargs = terms.passing.arguments(call.bound)
    bound = one.captured.arguments(instance, args, kwargs) or dict(kwargs)
    return Invocation(one.captured, function, instance, bound, args, kwargs, call.scope)


def _note_fallback(call: Invocation, before: Point, one: Fallback, last: Done) -> None:
    after = one.captured.spec
    about = {
        "from": before.spec.name,
        "to": after.name,
        "from_side_effect": str(before.spec.side_effect),
        "to_side_effect": str(after.side_effect),
        "reason": str(last.failure.type),
    }
    if before.spec.side_effect == "reversible" and after.side_effect == "irreversible":
        about["escalation"] = True  # type: ignore[assignment]
    _note(call, "fallback.triggered", about, last)


def _note(call: Invocation, kind: str, about: dict[str, Any], last: Done) -> None:
    if call.scope is not None:
        note = Note(kind, call.captured.spec.name, about, info={"step": last.seq})
        call.scope.session.note(call.scope, note)


# -- drivers: synchronous and asynchronous -----------------------------------------------------------------------------


def run_plan(plan: Plan, sent: Any = None, thrown: BaseException | None = None) -> Any:
    """Drive a plan to its outcome (a ``Done``), or to the ``BlockBody`` that is the body of the call."""
    while True:
        try:
            wait = plan.send(sent) if thrown is None else plan.throw(thrown)
        except StopIteration as stop:
            return stop.value
        finally:
            thrown = None  # no frame of its traceback may keep it alive
        if isinstance(wait, BlockBody):
            return wait
        try:
            sent = wait.take()
        except BaseException as error:
            sent, thrown = None, error


async def run_plan_async(plan: Plan) -> Any:
    """Drive a plan to its outcome with ``await``."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            wait = plan.send(sent) if thrown is None else plan.throw(thrown)
        except StopIteration as stop:
            return stop.value
        finally:
            thrown = None
        if isinstance(wait, BlockBody):
            return wait
        try:
            sent = await wait.take_async() if wait.asynchronous else wait.take()
        except BaseException as error:
            sent, thrown = None, error


_NOTHING: Final = Below()


class ReplaceableCall:
    """One call of a traced function that may be replaced by another call when it fails, and what rules that out.

    ``followed``: another call may follow, so that what its step did is undone first, where possible. ``counted``: what
    happens in it besides its step counts, too. ``final`` says afterwards that nothing may follow, ``stuck`` that
    undoing it failed.
    """

    __slots__ = ("_below", "_counted", "_followed", "_open", "final", "stuck")

    def __init__(self, *, followed: bool = True, counted: bool = True) -> None:
        self._followed: Final = followed
        self._counted: Final = counted
        self._open: OpenCall | None = None
        self._below = _NOTHING
        self.final = False
        self.stuck = False

    def entered(self) -> AbstractContextManager[None]:
        """Return a context manager around the call."""
        if not self._counted:
            return nullcontext()
        self._open = OpenCall(process.effects, innermost())
        return in_call(self._open)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function; return what it returns (for a coroutine function, a coroutine), and raise what it raises."""
        captured = captured_of(function)
        if captured is None or (captured.terms is None and not (self._followed and captured.spec.side_effect)):
            return function(*args, **kwargs)
        bound = captured.arguments(None, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        wrapped = function.__wrapped__  # type: ignore[attr-defined]
        call = Invocation(captured, wrapped, None, bound, args, kwargs, here())
        call.followed = self._followed
        return self._awaited(call) if captured.shape == "coroutine" else self._came(run_plan(call_plan(call)))

    async def _awaited(self, call: Invocation) -> Any:
        return self._came(await run_plan_async(call_plan(call)))

    def _came(self, done: Done) -> Any:
        self.final, self.stuck = "final" in done.about, done.stuck
        self._below = Below(done.about.get("irreversible"))
        return done.result()

    def end(self, *, failed: bool) -> Below:
        """End the call; return what happened in it that can't be undone, and, by name, what may still take effect."""
        if self._open is not None:
            below = self._open.end(failed=failed)
            self._below = Below(below.irreversible or self._below.irreversible, below.in_doubt)
        return self._below


def wrap_contracted(captured: Captured, wrapped: Any) -> Any:
    """Wrap ``wrapped``, a function or coroutine function with terms, so that each call goes through ``call_plan``."""
    captured.wrapped_as = wrapped
    wrapper = _coroutine(captured) if captured.shape == "coroutine" else _function(captured)
    return tool(wrapped, wrapper, captured)


def _function(captured: Captured) -> Any:
    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = captured.arguments(instance, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        return run_plan(call_plan(Invocation(captured, function, instance, bound, args, kwargs, here()))).result()

    return wrapper


def _coroutine(captured: Captured) -> Any:
    name = getattr(captured.wrapped, "__name__", None)

    async def run(function: Any, instance: Any, bound: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Invocation(captured, function, instance, bound, args, kwargs, here())
        return (await run_plan_async(call_plan(call))).result()

    def wrapper(function: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = captured.arguments(instance, args, kwargs)
        if bound is None:
            return function(*args, **kwargs)  # raises
        made: Any = run(function, instance, bound, args, kwargs)
        if name is not None:
            made.__name__, made.__qualname__ = name, getattr(captured.wrapped, "__qualname__", name)
        return made

    return wrapper
