"""A block whose calls are limited by a budget of its own."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType
from typing import Any

from .._engine.budget import Budget, budget_or_none
from .._engine.gate import here
from .._engine.scope import Scope, current
from .._engine.spending import Spending

__all__ = ["Limit", "limit"]


class Limit:
    """See ``limit``. What is left of it nobody can ask: a replay does not know, and the program would go another way there."""

    def __init__(self, budget: Budget, name: str) -> None:
        self._budget = budget
        self._name = name
        self._token: Token[Scope | None] | None = None

    def __enter__(self) -> Limit:
        scope = here()
        if scope is not None and getattr(scope.session, "meters", False):
            spending = Spending(self._budget, name=self._name, outer=scope.spending)
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
    """A block whose calls may spend ``budget`` at most: ``with limit(Budget(usd=0.10)):``, or ``async with``.

    A call that would go over is not made and raises ``BudgetExceededError``, and so does each later one in the block. The budgets
    around it hold as well. Outside a run, and in a replay, it limits nothing: there the log answers, refusals included.
    """
    checked = budget_or_none(budget)
    if checked is None:
        raise TypeError("limit() takes a Budget, not None")
    return Limit(checked, name)
