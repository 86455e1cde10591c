"""Enforces budgets in a run: refuses steps that are too expensive, and limits blocks of code (``limit``)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .._runtime.around import AroundStep
from .._runtime.session import Scope, Step, current, here
from .._runtime.step import Request, Spec
from ..errors import BudgetExceededError, RunStateError, UnknownPriceError

if TYPE_CHECKING:
    from .._runtime.recorder import Recording
    from .._runtime.spending import Budget, Reservation

__all__ = ["begin", "cost_usd", "limit"]

# -- steps under a budget ----------------------------------------------------------------------------------------------
#
# A step under a budget: its maximum cost is reserved before it is made, its actual cost is entered afterwards.


def begin(recorder: Recording, scope: Scope, request: Request) -> Step:
    """Begin a step in a scope that may have a budget. A refusal is logged before it is raised.

    Steps that the log answers cost nothing.
    """
    spending, info = scope.spending, request.info
    if spending is None or request.spec.structural or not recorder.recording:
        return recorder.begin(scope, request)
    late = recorder.refused(scope, request)
    if late is not None:
        return late
    free = scope.within(None)
    if info is not None and "compensates" in info:  # compensation is never refused
        return recorder.begin(free, request)
    try:
        held = spending.reserve(request)
    except BudgetExceededError as error:
        raise recorder.refuse(free, request, error) from None
    if held.estimate is not None:
        price = {} if held.price is None else {"price": held.price}
        request = request.saying({"estimate": held.estimate, **price})
    try:
        step = recorder.begin(free, request)
    except BaseException:
        held.give_back()
        raise
    return MeteredStep(step, request.spec, scope, held)


class MeteredStep(AroundStep):
    """A live step whose cost counts against a budget."""

    __slots__ = ("_held", "_refused", "_scope", "_spending")

    def __init__(self, inner: Step, spec: Spec, scope: Scope, held: Reservation) -> None:
        super().__init__(inner)
        self._held: Final = held
        self._refused = False
        self._scope: Final = scope
        self._spending: Final = scope.spending if spec.budget is None else spec.budget.opened(spec.name, scope.spending)

    def body(self) -> Scope:
        scope, seq = self._scope, self.seq
        return Scope(scope.session, scope.lane, seq, scope.agent, seq, self._spending, scope.call)

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        if isinstance(output, Mapping) and self._held.is_refused(output.get("head")):
            self._refused = True
        self.inner.chunk(output, info=info)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self.inner.done(output, info=self._settled(info, self._held.is_refused(output)), data=data)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self.inner.failed(error, output=output, info=self._settled(info, self._held.is_refused(output)))

    def _settled(self, info: Mapping[str, Any] | None, free: bool) -> Mapping[str, Any] | None:
        about = info or {}
        usd = about.get("cost_usd")
        price = self._held.settle(about.get("usage"), about.get("model"), free=free or self._refused, usd=usd)
        if price is None:
            return info
        priced = self._held.price_of(about.get("model"))
        return {**about, "cost_usd": price} if priced is None else {**about, "cost_usd": price, "price": priced}


# -- limits ------------------------------------------------------------------------------------------------------------


def cost_usd(answered: str, asked: str, usage: Mapping[str, Any]) -> float | None:
    """Return the cost of these tokens in US dollars, by the current budget's prices; ``None`` if the model has no known
    price.

    ``answered`` is the model that answered (often a dated name), ``asked`` the one requested.
    """
    from .._runtime.prices import Prices

    scope = current.get()
    spending = None if scope is None else scope.spending
    prices = Prices() if spending is None else spending.prices
    try:
        return round(prices.of_answer(answered, asked, None, None, usage), 9)
    except (UnknownPriceError, RunStateError):
        return None


class Limit:
    """The block that ``limit`` returns. It does not expose the remaining amount: a replay does not know it, so a
    program that read it would take another path there."""

    def __init__(self, budget: Budget, name: str) -> None:
        self._budget = budget
        self._name = name
        self._token: Token[Scope | None] | None = None

    def __enter__(self) -> Limit:
        scope = here()
        if scope is not None and scope.session.state.live:
            spending = self._budget.opened(self._name, scope.spending)
            self._token = current.set(scope.within(spending))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is not None:
            current.reset(token)

    async def __aenter__(self) -> Limit:
        return self.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self.__exit__(*error)


def limit(budget: Budget, *, name: str = "limit") -> Limit:
    """Limit what the calls inside a block may spend: ``with limit(Budget(usd=0.10)):``, or ``async with``.

    A call that would exceed the budget is not made and raises ``BudgetExceededError``, as does every later one in the
    block. Budgets around the block apply as well. Outside a run it limits nothing, and in a replay the log answers,
    refusals included.
    """
    from .._runtime.spending import budget_or_none

    checked = budget_or_none(budget)
    if checked is None:
        raise TypeError("limit() takes a Budget, not None")
    return Limit(checked, name)
