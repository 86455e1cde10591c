"""``Run``: a run as its program sees it, and which one is the current one."""

from __future__ import annotations

from typing import Any, Final

from .._runtime.session import Session, current
from .undoing import Undoing, undo, undo_async

__all__ = ["UNSET", "Run", "current_run", "register", "registered", "unregister"]

UNSET: Final[Any] = object()


class Run:
    """A run that is being recorded. ``id`` names it, ``path`` is its file."""

    def __init__(self, session: Session, path: str, name: str | None) -> None:
        self._session: Final = session
        self.id: Final[str] = session.run_id
        self.path: Final = path
        self.name: Final = name
        #: The result of the run; ``UNSET`` where none was set.
        self.result: Any = UNSET
        #: How it was aborted, if it was.
        self.undoing: Undoing | None = None

    @property
    def warnings(self) -> list[str]:
        """Warnings of gaps and of values that could not be kept; in a replay, at its end: those of the recorded run.

        What there is to say of a replay is in its ``report``: that differs from one process to the next.
        """
        return self._session.warnings

    def set_result(self, value: Any) -> None:
        """Set the result of the run. It is recorded at the end of the block, and compared in a replay."""
        self.result = value

    def abort(self, reason: str) -> None:
        """Give the run up: what its reversible tools did is undone by their ``compensate=``, the last first, each once.

        Each compensation is a recorded step. The block goes on and ends as ``run.aborted`` with ``reason``, whether an exception leaves
        it or not. Compensations that fail are raised together as an ``ExceptionGroup`` when the others have been run.
        """
        undo(self, reason)

    async def abort_async(self, reason: str) -> None:
        """The same, awaiting compensations that are coroutine functions."""
        await undo_async(self, reason)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"


def current_run() -> Run | None:
    """The run of the calling context, or ``None`` outside every run."""
    scope = current.get()
    return None if scope is None else registered(scope.session)


class _Current:
    """The run of a session, as its program sees it."""

    run: Run | None = None


def register(session: Session, run: Run) -> None:
    """Make ``run`` the current one of whoever is in ``session``."""
    session.state.extras.of(_Current).run = run


def registered(session: Session) -> Run | None:
    """The current run of whoever is in ``session``."""
    return session.state.extras.of(_Current).run


def unregister(session: Session) -> None:
    """Nobody who is in ``session`` has a current run any more."""
    session.state.extras.of(_Current).run = None
