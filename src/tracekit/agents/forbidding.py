"""A session in which some calls may not be made: each is refused before it happens, and is on the log as refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from .._capture import guard
from .._capture.guard_attempts import Attempt
from .._engine.gate import here
from .._engine.scope import Scope, current, enter
from .._engine.step import Request, Spec
from ..errors import ContractViolationError

__all__ = ["Forbidding", "forbidding"]

#: Says why a call may not be made here; ``None`` where it may.
Rule = Callable[[Spec], ContractViolationError | None]
#: Says why this may not be reached: the operation, and ``file:line`` of the caller.
Reach = Callable[[Attempt, str | None], ContractViolationError]


class Forbidding:
    """``session``, but for the calls that ``rule`` forbids. ``decides``: nothing may be done in it at all."""

    def __init__(self, session: Any, rule: Rule, reach: guard.Refuse | None = None) -> None:
        self._session: Final = session
        self._rule: Final = rule
        self.decides: Final = reach is not None
        if reach is not None:
            self.reach: Final = reach

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def begin(self, scope: Scope, request: Request) -> Any:
        error = self._rule(request.spec)
        if error is not None:
            raise self._session.refuse(scope, request, error)
        return self._session.begin(scope, request)


@contextmanager
def forbidding(rule: Rule, scope: Scope | None = None, reach: Reach | None = None) -> Iterator[None]:
    """A block in ``scope`` (or where the caller is) in which ``rule`` holds. Outside every run nothing is caught, and all is allowed.

    With ``reach`` nothing outside the process is reached either, captured or not: connections, look-ups, listening, processes, files;
    and nothing is started that could do it later: threads, another run.
    """
    scope = here() if scope is None else scope
    if scope is None:
        yield
        return
    say = None if reach is None else _noted(reach, scope)
    token = enter(
        Scope(
            Forbidding(scope.session, rule, say),
            scope.lane,
            scope.parent,
            scope.agent,
            scope.live,
            scope.spending,
            scope.call,
        )
    )
    try:
        with nullcontext() if say is None else guard.Watch(say):
            yield
    finally:
        current.reset(token)


def _noted(reach: Reach, forbidden: Scope) -> guard.Refuse:
    """What ``reach`` says, once it is on the log. The target is told only: ports and paths differ between runs that are the same."""

    def refused(attempt: Attempt, location: str | None) -> BaseException:
        error = reach(attempt, location)
        scope = here()
        if scope is None or not isinstance(scope.session, Forbidding):  # a context of its own changes nothing
            scope = forbidden
        spec = Spec("tool", attempt.operation, side_effect="irreversible")
        return scope.session.refuse(scope, Request(spec, {}), error)

    return refused
