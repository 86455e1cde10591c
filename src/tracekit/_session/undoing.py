"""A run that its own program gives up: what it did is undone, the last first, and its end says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .. import _reality
from .._capture.attempts import Done
from .._capture.compensation import Completed
from .._capture.contracted import settle, settle_async
from .._capture.ledger import Ledger, ledger
from .._engine.closing import Closing, undoing
from .._engine.gate import here
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import Scope
from ..errors import ReplayError, RunStateError
from .inherited import inherit
from .standstill import Standstill, doubtful

__all__ = ["PATIENCE", "Undoing", "undo", "undo_async"]

#: How long an abort waits for calls that are under way, in seconds.
PATIENCE: Final = 30.0


class Undoing:
    """How a run was aborted: why, what was undone (by ``seq``), and what could not be."""

    def __init__(self, reason: str, session: Any) -> None:
        self.reason: Final = reason
        self._session: Final = session
        self.compensated: list[int] = []
        self.uncompensated: list[int] = []
        self._errors: list[Exception] = []

    def as_dict(self) -> dict[str, Any]:
        """For the last entry, when nothing more can be undone. What stands is warned of."""
        book, session = ledger(self._session), self._session
        left = {*book.standing, *book.stuck, *self.uncompensated}
        doubts: list[int] = []
        if isinstance(session, Recording) and session.closing is not None:
            doubts, pending = doubtful(session)
            _tell(session, (seq for seq in book.standing if seq <= session.closing.at), "they were not undone")
            _tell(session, {*pending} - left, "nothing says whether they took effect")
        return {
            "by_program": True,
            "reason": self.reason,
            "in_doubt": doubts,
            "compensated": sorted(self.compensated),
            "uncompensated": sorted(left),
        }

    def came(self, one: Completed, done: Done) -> None:
        """One compensation has come to its end."""
        if done.error is None:
            self.compensated.append(one.seq)
            return
        self.uncompensated.append(one.seq)
        if not isinstance(done.error, Exception) or isinstance(done.error, ReplayError):
            raise done.error
        self._errors.append(done.error)

    def finish(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise ExceptionGroup("compensations failed; the others were run", errors)


def _tell(session: Recording, steps: Iterable[int], what: str) -> None:
    listed = ", ".join(map(str, sorted(steps)))
    if listed:
        session.warn(f"it was aborted while these steps were under way, and {what}: {listed}. Look what stands of them")


def undo(run: Any, reason: str) -> None:
    scope = _scope(run, reason)
    book = ledger(scope.session)
    inherit(scope.session, book)
    names = book.asynchronous()
    if names:
        raise RunStateError(
            f"compensations are coroutine functions: {', '.join(sorted(set(names)))}",
            run_id=run.id,
            next_action="say `await run.abort_async(reason)`",
        )
    aborted = _aborted(run, scope, reason)
    end = _reality.monotonic() + PATIENCE
    with _closed(scope):
        Standstill(scope, book, end).wait()
        for one in _plan(scope, book, elsewhere=True):
            if not isinstance(one, Completed):
                book.wait(one, end - _reality.monotonic())
                continue
            with _let_through():
                try:
                    done = settle(one.invocation(scope))
                except Exception as refused:  # a log that can't be written: it was not run
                    done = Done(one.invocation(scope), one.seq, error=refused)
            aborted.came(one, done)
    aborted.finish()


async def undo_async(run: Any, reason: str) -> None:
    scope = _scope(run, reason)
    book = ledger(scope.session)
    inherit(scope.session, book)
    aborted = _aborted(run, scope, reason)
    end = _reality.monotonic() + PATIENCE
    with _closed(scope):
        await Standstill(scope, book, end).wait_async()
        for one in _plan(scope, book, elsewhere=False):
            if not isinstance(one, Completed):
                await book.wait_async(one, end - _reality.monotonic())
                continue
            with _let_through():
                try:
                    done = await settle_async(one.invocation(scope))
                except Exception as refused:
                    done = Done(one.invocation(scope), one.seq, error=refused)
            aborted.came(one, done)
    aborted.finish()


def _plan(scope: Scope, book: Ledger, *, elsewhere: bool) -> Iterator[Completed | Callable[[], bool]]:
    """What is to be undone, the last first, and between, what is to be waited for: ``elsewhere``, only what other threads do.

    Which calls an abort found under way, and which it waited for in vain, a log says by what was undone in it, and in which order.
    """
    session: Any = scope.session
    log = _log(session)
    while log is not None:
        of = log.next_undone(scope)
        if of is None:
            break
        yield _there(log, scope, book, of)
        one = book.take(of)
        if one is None:
            break
        yield one
    if isinstance(session, Replay):
        left = session.left_standing()
    else:
        yield lambda: not book.waits(elsewhere=elsewhere)
        left = set()
    while (last := book.take(but=left)) is not None:
        yield last


def _there(log: Replay, scope: Scope, book: Ledger, of: int) -> Callable[[], bool]:
    """Whether step ``of`` has come to its end, it may be another thread's, and so have those that had when it was undone."""
    by = log.index.compensations.get(of, 0)

    def had_ended(seq: int) -> bool:
        return 0 < log.index.answer[seq] < by if seq < len(log.index.answer) else False

    return lambda: (book.has(of) and not book.any_under_way(had_ended)) or log.next_undone(scope) != of


def _log(session: Any) -> Replay | None:
    """What says what was undone, where that is on the log."""
    if getattr(session, "followed", False):
        return None
    log = getattr(session, "log", session)
    return log if isinstance(log, Replay) else None


@contextmanager
def _let_through() -> Iterator[None]:
    """What begins here undoes something."""
    token = undoing.set(True)
    try:
        yield
    finally:
        undoing.reset(token)


def _aborted(run: Any, scope: Scope, reason: str) -> Undoing:
    """The run is aborted from now on; the first reason counts."""
    session: Any = scope.session
    if run.undoing is None:
        run.undoing = Undoing(reason, session)
    if isinstance(session, Recording):
        said = session.redactor.redact_text(run.undoing.reason)[0]
        session.closing = Closing(session.run_id, said, scope.lane, session.journal.seq, _inside(session))
    aborted: Undoing = run.undoing
    return aborted


@contextmanager
def _closed(scope: Scope) -> Iterator[None]:
    """While it lasts, nothing else begins."""
    try:
        yield
    finally:
        closing = getattr(scope.session, "closing", None)
        if closing is not None:
            closing.over = True


def _inside(session: Recording) -> Callable[[Scope], bool]:
    """Whether something happens inside a step that an abort waits for, or inside a compensation."""
    book, run_id = ledger(session), session.run_id
    return lambda scope: scope.call is not None and any(seq in book.open for seq in scope.call.steps(run_id))


def _scope(run: Any, reason: str) -> Scope:
    if not reason.strip():
        raise ValueError(f"an abort needs a reason, and {reason!r} is none")
    scope = here()
    session = None if scope is None else scope.session
    if scope is None or session.run_id != run.id or scope.live:  # type: ignore[union-attr]
        raise RunStateError(
            f"run {run.id} can be aborted in its own block only, and not inside a tool",
            run_id=run.id,
            next_action="let the tool raise, and call run.abort() where the run's code catches it",
        )
    return scope
