"""What a tool is declared with beyond its name: contract, key, cost, stand-ins, compensation. Checked where it is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from .._canonical import contains_opaque, dumps, to_json
from .._engine.callsite import caller
from .._engine.contract import ExecutionContract, check_transition, impossible, is_number, shown
from .._engine.scope import Scope
from .._engine.step import Request, Spec
from ..errors import ContractViolationError
from .compensation import Compensation
from .stand_ins import Passing, StandIn
from .taking import is_method, names_of, parameters_of

__all__ = ["Terms", "merged"]

#: Fields that a call which comes piece by piece can't keep.
_NOT_PIECEWISE: Final = ("exactly_once", "max_retries", "timeout_ms")


def merged(contract: object, given: Mapping[str, Any]) -> ExecutionContract:
    """``contract`` with the fields that are ``given`` as keywords (``None``: not given)."""
    if isinstance(contract, ExecutionContract):
        found = contract.as_dict()
    elif contract is None or isinstance(contract, Mapping):
        found = dict(contract or {})
    else:
        raise impossible(None, "contract", f"contract is an ExecutionContract, not {contract!r}")
    for name, value in given.items():
        if value is None:
            continue
        if name in found and found[name] != value:
            raise impossible(
                None, name, f"{name} is {found[name]!r} in contract= and {value!r} beside it", actual=value
            )
        found[name] = value
    try:
        return ExecutionContract(**found)
    except TypeError:
        unknown = sorted(set(found) - set(ExecutionContract.__dataclass_fields__))
        raise impossible(None, "contract", f"it has no field {', '.join(map(repr, unknown))}") from None


class Terms:
    """What holds for each call of one tool."""

    __slots__ = ("compensation", "contract", "cost", "fallback", "key", "parameters", "passing", "told", "tool")

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
        self.key: Final = self._from_arguments("idempotency_key", idempotency_key)
        self.cost: Final = self._cost(cost_units)
        stand_ins = _listed(fallback)
        self._check_shape(shape, compensate, stand_ins)
        if contract.idempotent_required and self.key is None:
            raise impossible(
                tool, "idempotent_required", "idempotent_required without an idempotency_key", "say idempotency_key="
            )
        self.compensation: Final = self._compensation(compensate, side_effect, function, shape)
        #: How this tool's arguments are passed on.
        self.passing: Final = Passing(self.parameters)
        self.fallback: Final = self._fallback(stand_ins, side_effect, function, shape)
        self.told: Final = contract.as_dict()

    @property
    def checks_only(self) -> bool:
        """Whether all that it asks for is over when the call begins."""
        contract = self.contract
        return not (
            self.fallback or self.compensation or contract.exactly_once or contract.max_retries or contract.timeout_ms
        )

    # -- where it is written ---------------------------------------------------------------------------------------------

    def _check_shape(self, shape: str, compensate: object, stand_ins: Sequence[Any]) -> None:
        if shape == "function" and self.contract.timeout_ms is not None and self.contract.timeout_in != "thread":
            raise TypeError(
                f"{self.tool!r} has timeout_ms={self.contract.timeout_ms!r} and is a plain function, which nothing can interrupt: make it "
                'a coroutine function (`async def`), which is cancelled when its time is over; or say timeout_in="thread", and it runs '
                "in a thread of its own, where it goes on after that"
            )
        if "generator" not in shape:
            return
        asked = [name for name in _NOT_PIECEWISE if getattr(self.contract, name)]
        asked += ["fallback"] if stand_ins else []
        asked += ["compensate"] if compensate is not None else []
        if asked:
            raise impossible(
                self.tool,
                asked[0],
                f"it is a generator, and its caller has had some of its items when it fails: {', '.join(asked)} can't be kept",
                "leave it out, or let the tool return a list",
            )

    def _from_arguments(self, field: str, given: Any) -> Callable[[Mapping[str, Any]], Any] | None:
        if given is None:
            return None
        if isinstance(given, str):
            self._known(field, (given,))
            return lambda bound: bound.get(given)
        if not callable(given):
            raise impossible(self.tool, field, f"{field} is a parameter's name or a function, not {given!r}")
        return self._by_name(field, given)

    def _by_name(self, field: str, function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
        """``function`` over the bound arguments, given those that it names."""
        taken, every = names_of(self.tool, field, function, self._names())
        return lambda bound: function(**(bound if every else {name: bound[name] for name in taken if name in bound}))

    def _known(self, field: str, names: Sequence[str]) -> None:
        known = self._names()
        for name in names:
            if name not in known:
                raise impossible(
                    self.tool,
                    field,
                    f"{name!r} is no parameter of it ({', '.join(known) or 'it has none'})",
                    actual=name,
                )

    def _names(self) -> list[str]:
        return ["args", "kwargs"] if self.parameters is None else [one.name for one in self.parameters]

    def _cost(self, given: Any) -> Callable[[Mapping[str, Any]], Any] | None:
        limit = self.contract.max_cost_units
        if given is None:
            if limit is not None and limit < 1:
                raise impossible(
                    self.tool,
                    "max_cost_units",
                    f"a call costs 1 unit where nothing else is said, and max_cost_units is {limit}",
                    "say cost_units=",
                )
            return None if limit is None else lambda bound: 1
        if callable(given):
            return self._by_name("cost_units", given)
        if not is_number(given) or given < 0:
            raise impossible(
                self.tool,
                "cost_units",
                f"cost_units is a number from 0, or a function, not {shown(given)}",
                actual=given,
            )
        if limit is not None and given > limit:
            raise impossible(
                self.tool, "max_cost_units", f"every call costs {given}, and max_cost_units is {limit}", actual=given
            )
        return lambda bound: given

    def _compensation(
        self, compensate: Any, side_effect: str, function: Callable[..., Any], shape: str
    ) -> Compensation | None:
        if compensate is None:
            return None
        if side_effect != "reversible":
            raise impossible(
                self.tool,
                "compensate",
                f"it is {side_effect}, and only what is reversible is compensated",
                "say side_effect='reversible', or leave compensate out",
            )
        return Compensation.of(
            self.tool, compensate, self._names(), asynchronous=shape == "coroutine", method=is_method(function)
        )

    def _fallback(
        self, stand_ins: Sequence[Any], side_effect: str, function: Callable[..., Any], shape: str
    ) -> tuple[StandIn, ...]:
        found: list[StandIn] = []
        before = (self.tool, side_effect)
        for given in stand_ins:
            one = StandIn.of(self.tool, given)
            spec = one.captured.spec
            self._check_stand_in(one, found, function, shape)
            for name, reached in one.reached():
                check_transition(self.tool, side_effect, name, reached)
            one.escalation = check_transition(self.tool, side_effect, spec.name, str(spec.side_effect))
            check_transition(before[0], before[1], spec.name, str(spec.side_effect))
            found.append(one)
            before = (spec.name, str(spec.side_effect))
        return tuple(found)

    def _check_stand_in(self, one: StandIn, found: list[StandIn], function: Callable[..., Any], shape: str) -> None:
        captured = one.captured
        problem = None
        if captured.inner is inspect.unwrap(function):
            problem = "it is the tool itself"
        elif any(captured is other.captured for other in found):
            problem = "it is there twice"
        elif "generator" in captured.shape:
            problem = "it is a generator"
        elif captured.shape == "coroutine" and shape != "coroutine":
            problem = "it is a coroutine function, and the tool is none"
        elif one.needs_object and not is_method(function):
            problem = "it is a method, and the tool is none"
        else:
            problem = self.passing.misfit(captured, one.instance)
        if problem is not None:
            raise impossible(self.tool, "fallback", f"{captured.spec.name!r} can't stand in: {problem}")

    # -- at each call ----------------------------------------------------------------------------------------------------

    def opening(self, scope: Scope | None, spec: Spec, bound: Mapping[str, Any]) -> Request:
        """The request of a call with arguments ``bound``, its key in it if it happens once. Raises if it must not be made."""
        info: dict[str, Any] | None = None if spec.redactor is None else {}
        once = None
        error = self.violation(bound)
        if error is None:
            try:
                once = None if scope is None else self.once(bound)
            except ContractViolationError as found:
                error = found
        if error is not None:
            if scope is None:
                raise error
            error.run_id, error.location = scope.session.run_id, caller()
            raise scope.session.refuse(scope, Request(spec, bound), error)
        if self.cost is not None:
            info = {**(info or {}), "cost_units": self.units(bound)}
        if scope is not None and self.told:
            scope.session.validated(scope, spec)
        return Request(spec, bound, info, once_key=once)

    def violation(self, bound: Mapping[str, Any]) -> ContractViolationError | None:
        """Why a call with these arguments must not be made."""
        try:
            if self.contract.idempotent_required and self.keyed(bound) is None:
                return self._broken("idempotent_required", "it has no idempotency key", True, None)
            if self.contract.max_cost_units is not None or self.cost is not None:
                return self._too_dear(bound)
        except ContractViolationError as error:
            return error
        return None

    def _too_dear(self, bound: Mapping[str, Any]) -> ContractViolationError | None:
        cost, limit = self.units(bound), self.contract.max_cost_units
        if limit is None or cost <= limit:  # type: ignore[operator]
            return None
        return self._broken("max_cost_units", f"it costs {cost} units, and {limit} are allowed", limit, cost)

    def units(self, bound: Mapping[str, Any]) -> float | None:
        """What the call costs, where that is declared."""
        if self.cost is None:
            return None
        cost = self._asked("cost_units", self.cost, bound)
        if not is_number(cost) or cost < 0:
            raise self._broken("cost_units", f"cost_units came to {shown(cost)}, which is no number from 0", None, cost)
        return cost  # type: ignore[no-any-return]

    def keyed(self, bound: Mapping[str, Any]) -> Any:
        """The idempotency key of the call, ``None`` where it has none."""
        if self.key is None:
            return None
        key = self._asked("idempotency_key", self.key, bound)
        return None if _is_none(key) else key

    def _asked(self, field: str, function: Callable[[Mapping[str, Any]], Any], bound: Mapping[str, Any]) -> Any:
        try:
            return function(bound)
        except Exception as error:
            raise self._broken(field, f"{field} raised {type(error).__name__}: {error}", None, repr(error)) from error

    def once(self, bound: Mapping[str, Any]) -> bytes | None:
        """What an ``exactly_once`` contract tells this call from others by: its key, or its arguments before redaction."""
        if not self.contract.exactly_once:
            return None
        key = self.keyed(bound)
        what = "input" if key is None else "key"
        tree = to_json(bound if key is None else key)
        if contains_opaque(tree) is not None:
            raise self._broken(
                "exactly_once",
                "its arguments can't all be encoded, so two calls can't be told apart: say idempotency_key="
                if key is None
                else "its idempotency key can't be encoded",
                None,
                repr(key) if key is not None else None,
            )
        return dumps({"tool": self.tool, what: tree})

    def _broken(self, field: str, problem: str, limit: Any, actual: Any) -> ContractViolationError:
        return ContractViolationError(
            f"the call of {self.tool!r} breaks its contract: {problem}; it was not executed",
            tool=self.tool,
            contract=field,
            limit=limit,
            actual=actual,
            next_action="call it otherwise, or change the contract where the tool is declared",
        )


def _is_none(key: Any) -> bool:
    """Whether a key is none: nothing, a blank text, an empty container."""
    if isinstance(key, str | bytes):
        return not key.strip()
    return key is None or (isinstance(key, Collection) and not key)


def _listed(fallback: Any) -> tuple[Any, ...]:
    if fallback is None:
        return ()
    return tuple(fallback) if isinstance(fallback, list | tuple) else (fallback,)
