"""Steps and timers that the log answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from . import failures
from .gate import Outcome
from .scope import Scope
from .spending import Spending
from .step import Request

if TYPE_CHECKING:
    from .budget import Budget
    from .replay import Replay
    from .schedule import Ticket

__all__ = ["ReplayedStep", "ReplayedTimer"]


class ReplayedStep:
    """A step answered from the log; see ``gate.Step``. The body of a structural one runs, and only its end is matched."""

    __slots__ = ("_chunk", "_inside", "live", "request", "scope", "seq", "session", "spec")

    deferred: Final = False

    def __init__(self, session: Replay, scope: Scope, request: Request, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq: Final = seq
        self.live: Final = request.spec.structural
        self._chunk = session.index.next_chunk[seq]
        self._inside: Spending | None = None

    def body(self) -> Scope:
        inside = self.scope.inside(self.seq, live=not self.spec.structural)
        if self.spec.budget is None or not getattr(inside.session, "meters", False):
            return inside
        return inside.within(self._budget(self.spec.budget))

    def _budget(self, budget: Budget) -> Spending:
        """In a run that is resumed the body may go live: it starts with what the log says was spent in it."""
        if self._inside is None:
            self._inside = Spending(budget, name=self.spec.name, outer=self.scope.spending)
        return self._inside

    def go(self) -> ReplayedStep:
        raise AssertionError("the log answers this step")

    async def go_async(self) -> ReplayedStep:
        raise AssertionError("the log answers this step")

    def answer(self) -> Outcome:
        seq = self._outcome()
        if self.seq in self.session.index.waited:
            self.session.let_others_go_on(seq)
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def answer_async(self) -> Outcome:
        seq = self._outcome()
        await self.session.schedule.wait_async(seq, self._suspended(seq))
        return self.session.outcome(self, seq)

    def next_chunk(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def next_chunk_async(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        await self.session.schedule.wait_async(seq, self._suspended(seq))
        return self.session.outcome(self, seq)

    def lazy(self) -> str | None:
        session = self.session
        seq = self._chunk or session.index.answer[self.seq]
        if not seq or b'"lazy":' not in session.trace.line(seq):
            return None
        found = (session.trace.entry(seq).get("meta") or {}).get("lazy")
        return found if isinstance(found, str) else None

    def _outcome(self) -> int:
        session = self.session
        seq = session.index.answer[self.seq]
        if seq == 0:
            raise session.fail(failures.ends_inside(session.run_id, self.seq, self.spec.family, self.spec.name))
        return seq

    def _suspended(self, seq: int) -> bool:
        trace = self.session.trace
        line = trace.line(seq)
        if b'"suspended":' in line and bool((trace.entry(seq).get("meta") or {}).get("suspended")):
            return True
        if b'"settled":' in line and "settled" in ((trace.entry(seq).get("meta") or {}).get("info") or {}):
            return True  # by a person, after everything that went on beside it
        return self.seq in self.session.index.waited

    # -- structural steps ------------------------------------------------------------------------------------------------

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        seq = self._chunk
        if seq and self.session.failure is None:
            self._chunk = self.session.index.next_chunk[seq]
            self.session.schedule.skip(seq)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self._end()

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._end()

    def _end(self) -> None:
        session = self.session
        seq = session.index.answer[self.seq]
        if seq and session.failure is None:
            session.schedule.skip(seq)
            session.passed(self.scope, seq)


class ReplayedTimer:
    """A sleep or deadline that fires at its recorded place, or never; see ``gate.Timer``."""

    __slots__ = ("_seq", "_session", "_ticket", "on_delivery")

    live: Final = False

    def __init__(self, session: Replay, seq: int | None) -> None:
        self._session = session
        self._seq = seq
        self._ticket: Ticket | None = None
        #: Told that it fires, before whoever waits for it goes on.
        self.on_delivery: Callable[[], object] | None = None

    @property
    def comes(self) -> bool:
        """Whether it fired in the recording."""
        return self._seq is not None

    @property
    def about(self) -> Mapping[str, Any]:
        """What was recorded beside it."""
        return {} if self._seq is None else self._session.trace.entry(self._seq)["input"]

    def from_outside(self) -> None:
        """Another process brings it about: it is waited for."""
        if self._seq is not None:
            self._session.schedule.outside.add(self._seq)

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("a replayed timer fires at its recorded place")

    def comes_yet(self) -> bool:
        """Whether it may come after all: past the end of the log of a run that goes on, and only there."""
        return False

    def happened(self) -> None:
        """What threads hand to one another has been handed over, as it was in the recording."""
        if self._seq is not None:
            self._session.handed_over(self._seq)

    def wait(self) -> None:
        if self._seq is not None and b'"waited":true' in self._session.trace.line(self._seq):
            self._session.let_others_go_on(self._seq)
        self._session.schedule.wait(self._seq)
        self._delivered()

    async def wait_async(self) -> None:
        await self._session.schedule.wait_async(self._seq, True)
        self._delivered()

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        def fire() -> None:
            self._delivered()
            callback()

        act = callback if self.on_delivery is None else fire
        self._ticket = self._session.schedule.callback(self._seq, act, anywhere=anywhere)

    def _delivered(self) -> None:
        if self.on_delivery is not None:
            self.on_delivery()

    def cancel(self) -> None:
        if self._ticket is not None:
            self._session.schedule.cancel(self._ticket)
