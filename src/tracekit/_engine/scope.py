"""Where a step happens: the session, the lane and the enclosing step that the context variable points to.

A scope is immutable. Who enters a step, a lane or an agent sets a new one and restores the old one after; tasks and
threads get theirs from the hooks in ``_capture.concurrency``.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .effects import OpenCall
    from .gate import Session
    from .lanes import Lane
    from .spending import Spending

__all__ = ["Scope", "current", "enter"]


class Scope:
    """One point in a run: ``session``, ``lane``, the ``seq`` of the enclosing step, the acting agent.

    ``live`` is the ``seq`` of the innermost enclosing step whose body replay does not run (a tool, a model call, an HTTP
    exchange), or 0: what is started in there is numbered under that step, and is not there in a replay. ``spending`` is the
    innermost budget that calls made here are counted in, ``call`` the innermost open call in which their effects are.
    """

    __slots__ = ("agent", "call", "lane", "live", "parent", "session", "spending")

    def __init__(
        self,
        session: Session,
        lane: Lane,
        parent: int,
        agent: str | None = None,
        live: int = 0,
        spending: Spending | None = None,
        call: OpenCall | None = None,
    ) -> None:
        self.session: Final = session
        self.lane: Final = lane
        self.parent: Final = parent
        self.agent: Final = agent
        self.live: Final = live
        self.spending: Final = spending
        self.call: Final = call

    def inside(self, seq: int, *, live: bool) -> Scope:
        """The scope of the body of step ``seq``."""
        return Scope(self.session, self.lane, seq, self.agent, seq if live else self.live, self.spending, self.call)

    def in_lane(self, lane: Lane) -> Scope:
        """The same enclosing step, another line of execution."""
        return Scope(self.session, lane, self.parent, self.agent, self.live, self.spending, self.call)

    def acting(self, agent: str | None) -> Scope:
        return Scope(self.session, self.lane, self.parent, agent, self.live, self.spending, self.call)

    def within(self, spending: Spending | None) -> Scope:
        """The same place, its calls counted in ``spending``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, spending, self.call)

    def within_call(self, call: OpenCall | None) -> Scope:
        """The same place, the effects of its calls counted in ``call``."""
        return Scope(self.session, self.lane, self.parent, self.agent, self.live, self.spending, call)


#: The scope of the running code, or ``None`` outside every run. Read it with ``current.get()``.
current: Final[ContextVar[Scope | None]] = ContextVar("tracekit.scope", default=None)


def enter(scope: Scope) -> Token[Scope | None]:
    """Set ``scope`` where there may be none yet; ``current.reset`` takes it back.

    Resetting to "no value" deletes the entry, and Python 3.11 may collect garbage in the middle of that: a collection's
    callback or finalizer that reads the variable just then (any read of a clock does) leaves a dangling pointer in its
    cache. So there is always a value to go back to.
    """
    token = current.set(scope)
    if token.old_value is Token.MISSING:
        current.set(None)
        token = current.set(scope)
    return token
