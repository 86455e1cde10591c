"""A run that its own program gives up: what it did is undone, the last first, and its end says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .._capture.attempts import Done
from .._capture.compensation import Completed, to_undo, waits
from .._capture.contracted import settle, settle_async
from .._engine.gate import here
from .._engine.scope import Scope
from ..errors import ReplayError, RunStateError

__all__ = ["Undoing", "undo", "undo_async"]


class Undoing:
    """How a run was aborted: why, what was undone (by ``seq``), and what could not be."""

    def __init__(self, reason: str) -> None:
        self.reason: Final = reason
        self.compensated: list[int] = []
        self.uncompensated: list[int] = []
        self._errors: list[Exception] = []

    def as_dict(self) -> dict[str, Any]:
        return {
            "by_program": True,
            "reason": self.reason,
            "compensated": sorted(self.compensated),
            "uncompensated": sorted(self.uncompensated),
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


def undo(run: Any, reason: str) -> None:
    scope = _scope(run, reason)
    names = waits(scope.session)
    if names:
        raise RunStateError(
            f"compensations are coroutine functions: {', '.join(sorted(set(names)))}",
            run_id=run.id,
            next_action="say `await run.abort_async(reason)`",
        )
    undoing = _aborted(run, reason)
    for one in _each(scope):
        try:
            done = settle(one.invocation(scope))
        except Exception as refused:  # a budget, a log that can't be written: it was not run
            done = Done(one.invocation(scope), one.seq, error=refused)
        undoing.came(one, done)
    undoing.finish()


async def undo_async(run: Any, reason: str) -> None:
    scope = _scope(run, reason)
    undoing = _aborted(run, reason)
    for one in _each(scope):
        try:
            done = await settle_async(one.invocation(scope))
        except Exception as refused:
            done = Done(one.invocation(scope), one.seq, error=refused)
        undoing.came(one, done)
    undoing.finish()


def _aborted(run: Any, reason: str) -> Undoing:
    """The run is aborted from now on; the first reason counts."""
    if run.undoing is None:
        run.undoing = Undoing(reason)
    undoing: Undoing = run.undoing
    return undoing


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


def _each(scope: Scope) -> Iterator[Completed]:
    passing: Any = getattr(scope.session, "pass_compensations", None)
    for one in to_undo(scope.session):
        if passing is not None:
            passing(scope)
        yield one
    if passing is not None:
        passing(scope)
