"""A step under a budget: what it may take is held back before it is made, what it took is written down after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..errors import BudgetExceededError
from .held import Held, refused
from .scope import Scope
from .spending import Spending

if TYPE_CHECKING:
    from .recording import Recording
    from .step import Request

__all__ = ["MeteredStep", "begin"]


def begin(session: Recording, scope: Scope, request: Request) -> Any:
    """Begin a step in a scope that has a budget; what refuses it is on the log when it is raised."""
    free = scope.within(None)
    spending, info = scope.spending, request.info
    if session.ended or spending is None or (info is not None and "compensates" in info):  # undoing is never too dear
        return session.begin(free, request)
    if request.once_key is not None:
        return _once(session, scope, free, request)
    try:
        held = spending.reserve(request)
    except BudgetExceededError as error:
        session.overspent(error)
        raise session.refuse(free, request, error) from None
    if held.estimate is not None:
        price = {} if held.price is None else {"price": held.price}
        request = request.saying({"estimate": held.estimate, **price})
    try:
        step: Any = session.begin(free, request)
    except BaseException:
        held.give_back()
        raise
    return MeteredStep(step, scope, held)


def _once(session: Recording, scope: Scope, free: Scope, request: Request) -> Any:
    """The same of a call that happens once: one that an earlier call answers takes nothing, whatever is left."""
    held: list[Held] = []

    def reserve() -> None:
        assert scope.spending is not None
        held.append(scope.spending.reserve(request))

    try:
        step: Any = session.begin_once(free, request, reserve)
    except BudgetExceededError as error:
        session.overspent(error)
        raise session.refuse(free, request, error) from None
    except BaseException:
        for one in held:
            one.give_back()
        raise
    return MeteredStep(step, scope, held[0]) if step.live else step


class MeteredStep:
    """A live step that pays for what it takes; see ``gate.Step``."""

    __slots__ = ("_held", "_refused", "_spending", "_step", "scope")

    live: Final = True
    deferred: Final = False

    def __init__(self, step: Any, scope: Scope, held: Held) -> None:
        self._step: Final = step
        self._held: Final = held
        self._refused = False
        self.scope: Final = scope
        budget = step.spec.budget
        self._spending: Final = (
            scope.spending if budget is None else Spending(budget, name=step.spec.name, outer=scope.spending)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def body(self) -> Scope:
        step, scope = self._step, self.scope
        return Scope(scope.session, scope.lane, step.seq, scope.agent, step.seq, self._spending, scope.call)

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        if isinstance(output, Mapping) and refused(output.get("head")):
            self._refused = True
        self._step.chunk(output, info=info)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self._step.done(output, info=self._settled(info, refused(output)), data=data)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._step.failed(error, output=output, info=self._settled(info, refused(output)))

    def _settled(self, info: Mapping[str, Any] | None, free: bool) -> Mapping[str, Any] | None:
        told = info or {}
        usd = told.get("cost_usd")
        price = self._held.settle(told.get("usage"), told.get("model"), free=free or self._refused, usd=usd)
        if price is None:
            return info
        priced = self._held.price_of(told.get("model"))
        return {**told, "cost_usd": price} if priced is None else {**told, "cost_usd": price, "price": priced}
