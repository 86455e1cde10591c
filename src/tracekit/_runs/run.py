"""``Run``, the program's view of a run, and ``current_run``."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final

from .._runtime.process import ProcessRole
from .._runtime.session import Scope, Session, current, enter, here
from .._runtime.step import Request, Spec
from ..errors import TracekitError

if TYPE_CHECKING:
    from .undoing import Undoing

__all__ = ["UNSET", "JoinedProcess", "Run", "current_run", "identify", "register", "registered", "unregister"]

UNSET: Final[Any] = object()


class Run:
    """A run that is being recorded, replayed or resumed: ``id`` names it, ``path`` is its file."""

    def __init__(self, session: Session, path: str, name: str | None) -> None:
        self._session: Final = session
        self.id: Final[str] = session.run_id
        self.path: Final = path
        self.name: Final = name
        #: The run's result; ``UNSET`` if none was set.
        self.result: Any = UNSET
        #: How the run was aborted, if it was.
        self.undoing: Undoing | None = None

    @property
    def warnings(self) -> list[str]:
        """Warnings about gaps and values that could not be recorded; after a replay, those of the recorded run.

        Findings about the replay itself are in its ``report``: they may differ between processes.
        """
        return self._session.warnings

    def set_result(self, value: Any) -> None:
        """Set the result of the run. It is recorded at the end of the block, and compared in a replay."""
        self.result = value

    def abort(self, reason: str) -> None:
        """Abort the run: undo what its reversible tools did by calling their ``compensate=``, last first, each once.

        Each compensation is a recorded step. The block continues and ends as ``run.aborted`` with ``reason``, whether
        or not an exception leaves it. Compensations that fail are raised together as an ``ExceptionGroup`` after all
        have been tried.
        """
        from .undoing import undo

        undo(self, reason)

    async def abort_async(self, reason: str) -> None:
        """Abort the run like ``abort``, awaiting compensations that are coroutine functions."""
        from .undoing import undo_async

        await undo_async(self, reason)

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def _repr_html_(self) -> str | None:
        """Return an HTML summary of the run so far, or of the whole run once it has ended, for notebooks; ``None`` if
        its file is gone."""
        from .page import summary
        from .reading import read_run

        try:
            with read_run(self.path) as view:
                return summary(view)
        except (OSError, TracekitError):
            return None


def current_run() -> Run | None:
    """Return the run, recorded or replayed, that the calling context belongs to; ``None`` outside every run."""
    scope = current.get()
    return None if scope is None else registered(scope.session)


class _Current:
    """The ``Run`` of a session."""

    run: Run | None = None


def identify(session: Session, options: Mapping[str, Any]) -> None:
    """Report who acts in a run, if the options of its ``record()`` say so."""
    if options["agent"] is not None or options["identity"] is not None:
        session.identify(options["agent"] or "agent", options["identity"])


def register(session: Session, run: Run) -> None:
    """Make ``run`` the current run inside ``session``."""
    session.state.extras.of(_Current).run = run


def registered(session: Session) -> Run | None:
    """Return the current run inside ``session``."""
    return session.state.extras.of(_Current).run


def unregister(session: Session) -> None:
    """Leave ``session`` without a current run."""
    session.state.extras.of(_Current).run = None


# -- record() in a joined process --------------------------------------------------------------------------------------


class _Part:
    """A ``record()`` in a process that has joined a run: a span of that run instead of a run of its own."""

    def __init__(self, block: Any) -> None:
        self._block: Final = block
        self._step: Any = None
        self._token: Token[Scope | None] | None = None
        self._outer: Run | None = None

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        scope = here()
        assert scope is not None
        session = scope.session
        identify(session, options)
        self._step = session.begin(scope, Request(Spec("span", options["name"] or "run"), {"input": self._block.input}))
        inside = self._step.body()
        self._token = enter(inside if options["agent"] is None else inside.acting(options["agent"]))
        run = Run(session, session.log.path, options["name"])
        self._outer = registered(session)
        register(session, run)
        return run

    async def drain_for(self, run: Run) -> None:
        """Do nothing: the run continues."""

    def end_for(self, run: Run, error: BaseException | None) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                current.reset(token)
            except ValueError:  # exited in another context than it was entered in
                current.set(None)
        session = run._session
        unregister(session)
        if self._outer is not None:
            register(session, self._outer)
        if error is not None:
            self._step.failed(error)
            return
        result = None if run.result is UNSET else run.result
        self._step.done(result)
        session.part_ended(self._step.seq, self._step.spec.name, result)


class JoinedProcess(ProcessRole):
    """The role of a process that has joined a run: a ``record()`` in it is a part of that run."""

    def part(self, block: Any) -> _Part | None:
        """Return the span that replaces a ``record()``; ``None`` for a linked run, which is a run of its own."""
        scope = current.get()
        inside = scope is not None and scope.session.state.joined
        return _Part(block) if inside and block.options["nested"] != "link" else None
