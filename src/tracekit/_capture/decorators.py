"""The decorators and blocks by which a program marks its steps: ``traced_tool``, ``traced``, ``effect`` …"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from .._policy import contract as contracts
from .._reality import pause
from .._runtime.callsite import caller
from .._runtime.redaction import patterns_of
from .._runtime.session import Scope, here
from .._runtime.step import Spec
from ..errors import NotReplayableError, ReplayError, RunStateError
from . import callers, contracted
from .calls import Captured, Point, called, first_parameter_in_class, parameters_of, shape_of, wrap

if TYPE_CHECKING:
    from .._policy.contract import ExecutionContract, SideEffectClass
    from .._runtime.spending import Budget

__all__ = ["Effect", "SideEffect", "effect", "traced", "traced_model", "traced_tool"]

F = TypeVar("F", bound=Callable[..., Any])

P = ParamSpec("P")
R = TypeVar("R")

SideEffect = Literal["read_only", "reversible", "irreversible"]


def _written(form: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a decorator whose misuse (``@traced_tool`` alone) is answered with the ``form`` in which it is written."""

    def decorate(decorator: Callable[P, R]) -> Callable[P, R]:
        @wraps(decorator)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return decorator(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
                raise TypeError(f"{error}: write {form}") from None  # the arguments do not fit

        return explained

    return decorate


@_written('@traced_tool(side_effect="read_only"), or "reversible", or "irreversible": what a call does to the world')
def traced_tool(
    *,
    side_effect: SideEffect | SideEffectClass,
    name: str | None = None,
    version: str | None = None,
    config: Mapping[str, Any] | None = None,
    redact: str | re.Pattern[str] | Iterable[str | re.Pattern[str]] = (),
    compensate: Callable[..., Any] | None = None,
    fallback: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    idempotency_key: str | Callable[..., Any] | None = None,
    cost_units: float | Callable[..., float] | None = None,
    contract: ExecutionContract | Mapping[str, Any] | None = None,
    require_run: bool = False,
    exactly_once: bool | Literal["store"] | None = None,
    no_retry: bool | None = None,
    max_retries: int | None = None,
    idempotent_required: bool | None = None,
    timeout_ms: float | None = None,
    timeout_in: Literal["thread"] | None = None,
    max_cost_units: float | None = None,
    mutates: str | Iterable[str] = (),
) -> Callable[[F], F]:
    """Make a function, method, coroutine, generator or async generator a captured tool.

    - ``side_effect`` (required): ``"read_only"`` (safe to repeat), ``"reversible"`` (can be undone) or
      ``"irreversible"`` (never repeated by tracekit; its intent record is on the device before the call starts).
    - ``name``: defaults to the function's qualified name. ``version`` and ``config`` are recorded, and compared in a
      replay.
    - ``require_run`` (or ``TRACEKIT_REQUIRE_RUN=1``): refuse to run outside ``record()`` if the tool has effects.
    - ``contract``, or its fields as keywords: how the tool may be called, see ``ExecutionContract``. A plain function
      with ``timeout_ms`` needs ``timeout_in="thread"``.
    - ``idempotency_key``: what identifies a call: the name of a parameter, or a function of the arguments that it
      names.
    - ``cost_units``: what a call costs: a number (default 1), or a function of the arguments that it names.
    - ``fallback``: traced tools to call instead if this one fails, in this order, with the same arguments.
    - ``compensate``: undoes a call of a reversible tool; it receives the arguments that it names, and ``output``.
    - ``redact``: regular expressions for what is removed from this tool's stored values.
    - ``mutates``: names of parameters whose changes are recorded whatever their size, ``"self"`` for a method's own
      object. Without it, changes to arguments (lists, dictionaries, sets, dataclasses, pydantic models …) of up to 64
      KiB are recorded. A replay makes the same changes in place.

    The decorated callable keeps its signature, its type and its behaviour as a method. Outside a run it is called
    directly, under its contract if it has one. Raises ``ContractViolationError`` (a ``ValueError``), ``ValueError`` or
    ``TypeError`` for an invalid declaration.

    Examples:
        >>> from tracekit import record, traced_tool
        >>> @traced_tool(side_effect="irreversible", exactly_once=True, idempotency_key="order")
        ... def refund(order, cents):
        ...     print("(money goes back)")
        ...     return f"refunded {order}"
        >>> with record("support"):
        ...     refund("A-1042", 4200)
        ...     refund("A-1042", 4200)  # answered with the first result
        (money goes back)
        'refunded A-1042'
        'refunded A-1042'
    """
    side_effect = contracts.SideEffectClass.of(side_effect).value
    if name is not None and not name:
        raise ValueError("a tool's name can't be empty")
    signature: dict[str, Any] = {}
    if version is not None:
        signature["version"] = str(version)
    if config is not None:
        signature["config"] = dict(config)
    patterns = patterns_of(redact)
    changes = (mutates,) if isinstance(mutates, str) else _names(mutates)
    agreed = contracts.merged(
        contract,
        {
            "exactly_once": exactly_once,
            "no_retry": no_retry,
            "max_retries": max_retries,
            "idempotent_required": idempotent_required,
            "timeout_ms": timeout_ms,
            "timeout_in": timeout_in,
            "max_cost_units": max_cost_units,
        },
    )
    if agreed:
        signature["contract"] = agreed.as_dict()
    rest = (compensate, idempotency_key, cost_units)
    plain = not (agreed or patterns or fallback or any(one is not None for one in rest))

    def decorate(function: F) -> F:
        if plain:
            captured: F = _captured("tool", function, name, side_effect, signature, require_run, mutates=changes)
            return captured

        def terms(inner: Any, called: str, shape: str) -> Any:
            return contracted.Terms(
                called,
                inner,
                side_effect,
                agreed,
                compensate=compensate,
                fallback=fallback,
                idempotency_key=idempotency_key,
                cost_units=cost_units,
                shape=shape,
            )

        budget = _body_budget(agreed.max_cost_units)
        made: F = _captured(
            "tool", function, name, side_effect, signature, require_run, budget, terms, patterns, changes
        )
        return made

    return decorate


def _body_budget(max_cost_units: float | None) -> Budget | None:
    """Return the budget for the calls that a tool makes itself; ``None`` if it has none."""
    if max_cost_units is None:
        return None
    from .._runtime.spending import Budget

    return Budget(cost_units=max_cost_units)


@_written('@traced_model(model="NAME")')
def traced_model(
    *, model: str, parameters: Mapping[str, Any] | None = None, version: str | None = None
) -> Callable[[F], F]:
    """Make a callable that runs a local model a captured model call.

    ``model``, ``parameters`` (decoding parameters, safety settings) and ``version`` (of the weights) form the call's
    signature, which a replay compares. The bound arguments are recorded as the request, the return value as the
    response; a generator is recorded as a stream.
    """
    signature: dict[str, Any] = {"model": model, **(parameters or {})}
    if version is not None:
        signature["version"] = version

    def decorate(function: F) -> F:
        captured: F = _captured("llm", function, model, "read_only", signature, False, mutates=())
        return captured

    return decorate


@overload
def traced(name: F, /) -> F: ...
@overload
def traced(name: str | None = None, *, budget: Budget | None = None) -> Callable[[F], F]: ...
def traced(name: Any = None, *, budget: Budget | None = None) -> Any:
    """Make a function a span, for a phase or an agent: its body also runs in a replay, and the steps inside it are
    answered.

    Use ``@traced`` or ``@traced("plan")``. ``budget`` limits what each call of the function may spend, in addition to
    the run's budget.
    """
    if callable(name):
        return _captured("span", name, None, None, {}, False)
    if budget is not None:
        from .._runtime.spending import budget_or_none

        budget = budget_or_none(budget)

    def decorate(function: F) -> F:
        captured: F = _captured("span", function, name, None, {}, False, budget)
        return captured

    return decorate


def _captured(
    family: Any,
    function: Any,
    name: str | None,
    side_effect: str | None,
    signature: Mapping[str, Any],
    require_run: bool,
    budget: Budget | None = None,
    terms: Callable[[Any, str, str], Any] | None = None,
    patterns: tuple[re.Pattern[str], ...] = (),
    mutates: tuple[str, ...] | None = None,
) -> Any:
    inner = function.__func__ if isinstance(function, classmethod | staticmethod) else function
    if inspect.isclass(inner) or not callable(inner):
        raise TypeError(f"a tool must be a function, a method or another callable, not {function!r}")
    named = name or called(inner)
    if mutates:
        mutates = _with_object(named, inner, mutates)
    spec = Spec(
        family,
        named,
        side_effect=side_effect,
        signature=signature,
        resolve=lambda: _returned(inner),
        budget=budget,
        mutates=mutates,
        lists=family == "llm",
    )
    code = getattr(inspect.unwrap(inner), "__code__", None)
    if code is not None:
        callers.include(code.co_filename)
    if terms is None:
        plain = Captured(inner, spec, require_run=_required(require_run))
        if plain.own and "generator" not in plain.shape:
            return contracted.wrap_contracted(plain, function)
        return wrap(plain, function)
    return _with_terms(inner, function, spec, _required(require_run), terms, patterns)


def _names(mutates: Any) -> tuple[str, ...]:
    found = tuple(mutates) if isinstance(mutates, Iterable) and not isinstance(mutates, bytes | Mapping) else None
    if found is None or any(type(name) is not str for name in found):
        raise TypeError(f"mutates must be a list of parameter names, not {mutates!r}")
    return found


def _with_object(tool: str, function: Any, mutates: tuple[str, ...]) -> tuple[str, ...]:
    """``mutates``, with ``"self"`` for the object of a method, whatever its parameter is called.

    Raises ``TypeError`` unless each name is a parameter of the function, or ``"self"`` in a method.
    """
    parameters = parameters_of(function)
    known = ["args", "kwargs"] if parameters is None else [one.name for one in parameters]
    first = first_parameter_in_class(function)
    if first == "self":
        known.append("self")
    for name in mutates:
        if name not in known:
            raise TypeError(f"mutates of {tool!r}: it has no parameter {name!r} ({', '.join(known) or 'it has none'})")
    return mutates if first not in mutates or "self" in known else (*mutates, "self")


def _with_terms(
    inner: Any,
    function: Any,
    spec: Spec,
    require_run: bool,
    terms: Callable[[Any, str, str], Any],
    patterns: tuple[re.Pattern[str], ...],
) -> Any:
    agreed = terms(inspect.unwrap(inner), spec.name, shape_of(inner))
    spec.compensation = agreed.compensation
    if patterns:
        spec.patterns = patterns
    captured = Captured(inner, spec, require_run=require_run, terms=agreed)
    return (wrap if "generator" in captured.shape else contracted.wrap_contracted)(captured, function)


def _returned(function: Any) -> Any:
    """Return the declared return type of a function; for a generator, the type of its items."""
    function = inspect.unwrap(function)
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return")
    except (
        Exception
    ):  # the annotation uses a name that exists only for the type checker: the value is rebuilt without it
        return None
    return _item(hint) if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) else hint


def _item(hint: Any) -> Any:
    arguments = typing.get_args(hint)
    return arguments[0] if arguments else None


def _required(require_run: bool) -> bool:
    import os

    return require_run or os.environ.get("TRACEKIT_REQUIRE_RUN", "") not in ("", "0")


class Effect:
    """The block that ``effect`` returns: a step around code that is not a function."""

    def __init__(self, spec: Spec, input: Mapping[str, Any]) -> None:
        self._spec = spec
        self._input = input
        self._scope: Scope | None = None
        #: The call, suspended at its body while the block runs; and the step of the log that answers it, if one does.
        self._plan: contracted.Plan | None = None
        self._block: contracted.BlockBody | None = None
        self._answered = 0
        #: The effect's result: set by the block if ``live``, taken from the recording in a replay.
        self.output: Any = None
        self._asked = False

    @property
    def live(self) -> bool:
        """Whether the block should perform the effect: true outside a run and while recording, false in a replay."""
        self._asked = True
        return not self._answered

    def perform(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """If the effect is live, call ``function`` and store its result as ``output``; return ``output``."""
        if self.live:
            self.output = pause(function, *args, **kwargs)
        return self.output

    def __enter__(self) -> Effect:
        return self._entered(contracted.run_plan(self._call("function")))

    async def __aenter__(self) -> Effect:
        return self._entered(await contracted.run_plan_async(self._call("coroutine")))

    def _call(self, shape: str) -> contracted.Plan:
        self._scope = here()
        point = Point(self._spec, shape, require_run=_required(False))
        self._plan = contracted.call_plan(
            contracted.Invocation(point, None, None, dict(self._input), (), {}, self._scope)
        )
        return self._plan

    def _entered(self, reached: Any) -> Effect:
        if isinstance(reached, contracted.BlockBody):
            self._block = reached
            return self
        self._answered = reached.seq
        self.output = reached.result()
        if reached.about.get("unasked"):
            raise self._unasked(
                "its block used neither `perform()` nor `live`, so a replay would perform the effect again"
            )
        return self

    def _unasked(self, problem: str) -> ReplayError:
        assert self._scope is not None
        session = self._scope.session
        return session.fail(
            NotReplayableError(
                f"effect {self._spec.name!r} (step {self._answered}): {problem}",
                run_id=session.run_id,
                step=self._answered,
                location=caller(),
                reason="the block used neither `perform()` nor `live`",
                next_action="call `e.perform(function, …)` or test `if e.live: …` in the block, and record again",
            )
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        plan, block = self._plan, self._block
        self._plan = self._block = None
        if block is None or plan is None:
            if error is None and self._answered and not self._asked:
                raise self._unasked("the log has answered it, and its block has been run all the same")
            return
        block.end()
        if error is None and not self._asked and self._scope is not None:
            self._scope.session.report.warn(
                f"the block of effect {self._spec.name!r} used neither `perform()` nor `live`, and can't be replayed: "
                "call `e.perform(function, …)` or test `if e.live: …` in it"
            )
            block.outcome_info = {"info": {"unasked": True}}
        contracted.run_plan(plan, self.output, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def effect(name: str, *, side_effect: SideEffect | SideEffectClass, version: str | None = None, **input: Any) -> Effect:
    """A captured step around a block of code: ``with effect("mail.send", side_effect="irreversible", to=to) as e:``.

    Python can't skip the body of a ``with`` block, so the block itself has to: ``e.perform(send, message)`` calls ``send``
    if the effect is live and returns the recorded output in a replay; or test ``e.live`` and set ``e.output``. Keyword
    arguments are the step's input. A recorded exception is raised on entering the block.

    A block that does neither causes a warning while recording; its replay raises ``NotReplayableError`` on entry, before
    the body can repeat the effect.

    Examples:
        >>> from tracekit import effect, record
        >>> def send(text):
        ...     return f"sent: {text}"
        >>> with record("mail"):
        ...     with effect("mail.send", side_effect="irreversible", to="ann") as step:
        ...         step.perform(send, "hello")
        'sent: hello'
    """
    from .._policy.contract import SideEffectClass

    side_effect = SideEffectClass.of(side_effect).value
    if not name:
        raise RunStateError("an effect needs a name", next_action="say what is done: effect('send mail', …)")
    signature = {} if version is None else {"version": version}
    return Effect(Spec("tool", name, side_effect=side_effect, signature=signature), input)
