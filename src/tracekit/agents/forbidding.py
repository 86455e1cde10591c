"""A session in which some calls may not be made: each is refused before it happens, and is on the log as refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .._engine.gate import Call, here
from .._engine.scope import Scope, current, enter
from .._engine.step import Spec
from ..errors import ContractViolationError

__all__ = ["Forbidding", "forbidding"]

#: Says why a call may not be made here; ``None`` where it may.
Rule = Callable[[Spec], ContractViolationError | None]


class Forbidding:
    """``session``, but for the calls that ``rule`` forbids."""

    def __init__(self, session: Any, rule: Rule) -> None:
        self._session: Final = session
        self._rule: Final = rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def open(self, scope: Scope, call: Call) -> Any:
        self._check(scope, Spec.of(call), call.input)
        return self._session.open(scope, call)

    def begin(self, scope: Scope, spec: Spec, input: object, **how: Any) -> Any:
        self._check(scope, spec, input)
        return self._session.begin(scope, spec, input, **how)

    def _check(self, scope: Scope, spec: Spec, input: object) -> None:
        error = self._rule(spec)
        if error is not None:
            raise self._session.refuse(scope, spec, input, error)


@contextmanager
def forbidding(rule: Rule, scope: Scope | None = None) -> Iterator[None]:
    """A block in ``scope`` (or where the caller is) in which ``rule`` holds. Outside every run nothing is caught, and all is allowed."""
    scope = here() if scope is None else scope
    if scope is None:
        yield
        return
    session: Any = Forbidding(scope.session, rule)
    token = enter(Scope(session, scope.lane, scope.parent, scope.agent, scope.live, scope.spending))
    try:
        yield
    finally:
        current.reset(token)
