"""``OpenRun`` and ``OpenReplay``: runs that are opened and closed by hand, without patches.

Their steps are those made in the run's scope.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from .. import _reality
from .._journal.durable import sync_directory
from .._journal.reader import Trace
from .._journal.store import Store, lock, new_run_id, valid_run_id
from .._journal.writer import Durability, Journal
from .._policy.policies import under_policies
from .._runtime.callsite import caller, warn
from .._runtime.divergence import describe
from .._runtime.lane import ROOT, Lane
from .._runtime.matching import differences
from .._runtime.recorder import Recording, encode_reads
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay
from .._runtime.session import Scope, Session, innermost
from .._runtime.verdict import Report
from .._values import to_json
from ..errors import DivergenceError, LogWriteError, ReplayError, RunStateError
from .children import RecordedChildren
from .ending import End, end_log
from .environment import begin_log

__all__ = ["OpenReplay", "OpenRun"]


class OpenRun:
    """A run that is being recorded; ``close`` ends it.

    ``target`` is a store, its directory, or a new ``….jsonl`` file; ``about`` is stored with the first entry. The other
    parameters are those of ``tracekit.record``. Raises ``RunStateError`` if the file exists, and ``LogWriteError`` if
    it can't be written.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Store | None = None,
        *,
        run_id: str | None = None,
        name: str = "run",
        input: Any = None,
        agent: str | None = None,
        identity: Mapping[str, Any] | None = None,
        durability: Durability = "effects",
        redact: Iterable[Any] = (),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self._store: Final = _store(target)
        run_id = new_run_id() if run_id is None else run_id
        if self._store is not None:
            journal = self._store.create(run_id, durability=durability, encode_read=encode_reads)
        else:
            journal = _journal_at(os.fspath(target), run_id, durability)  # type: ignore[arg-type]
        session = self._recording = Recording(
            journal, Redactor.of_process(redact, self._store.root if self._store else None, create=True)
        )
        session.state.children = RecordedChildren(session)
        self._session: Final = under_policies(session)
        #: The run's file.
        self.path: Final = journal.path
        #: The scope of the main lane.
        self.scope: Final = _root(self._session, agent)
        begin_log(session, name, input, about or {}, {"durability": durability})
        if agent is not None or identity is not None:
            self._recording.identify(agent or "agent", identity)

    @property
    def session(self) -> Session:
        """The session, for making steps in scopes of the run."""
        return self._session

    @property
    def warnings(self) -> list[str]:
        """Warnings about gaps and values that could not be recorded."""
        return self._recording.warnings

    def observe(self, written: Callable[[], object]) -> None:
        """Call ``written`` after each entry from now on, once the entry is in the file."""
        self._recording.log.journal.observe(written)

    def close(self, error: BaseException | None = None, *, result: Any = None) -> None:
        """End the run: ``run.completed`` with ``result``, or ``run.failed`` with ``error``. Idempotent."""
        session = self._recording
        if session.state.ended:
            return
        end_log(session, self._store, lambda: End({"steps": session.steps, "segments": []}, error, result), error)
        for sentence in session.report.warnings:
            warn(f"run {session.run_id}: {sentence}", error=error)


class OpenReplay:
    """A run that is being replayed from ``trace``; ended by ``finish``, or by ``close`` if the program failed.

    ``on_divergence`` and ``redact`` are those of ``tracekit.replay``.
    """

    def __init__(
        self, trace: Trace, *, on_divergence: Literal["raise", "warn"] = "raise", redact: Iterable[Any] = ()
    ) -> None:
        self._replay: Final = Replay(
            trace, Redactor.of_process(redact, trace=trace.path), on_divergence=on_divergence, hooked=False
        )
        #: The scope of the main lane.
        self.scope: Final = _root(self._replay, trace.entry(1).get("agent_id"))

    @property
    def session(self) -> Session:
        """The session, for making steps in scopes of the run."""
        return self._replay

    @property
    def report(self) -> Report:
        """The report of the replay; complete after ``finish``."""
        return self._replay.report

    @property
    def failure(self) -> ReplayError | None:
        """The error that made the replay fail, or ``None``."""
        return self._replay.failure

    def used(self, seq: int) -> bool:
        """Return whether the program has passed a recorded step."""
        return self._replay.used(seq)

    def take(self, seq: int) -> None:
        """Mark a recorded step and its sub-steps as passed without comparing them; the caller does that."""
        self._replay.take(seq)

    def fail(self, error: ReplayError) -> ReplayError:
        """Make ``error`` the failure of the replay, located at the caller's line; return what to raise."""
        error.location = caller()
        return self._replay.fail(error)

    def agree(self, what: str, step: int, recorded: Any, actual: Any) -> None:
        """Raise ``DivergenceError`` unless an outcome reported by the program equals the recorded one."""
        found = differences(to_json(recorded), to_json(actual))
        if found:
            raise self.fail(
                DivergenceError(
                    f"the outcome of {what} is not the recorded one\n" + describe(found),
                    run_id=self._replay.run_id,
                    step=step,
                    recorded=recorded,
                    actual=actual,
                    differences=found,
                    next_action="look at what changed in the code before this event; record again if the change is meant",
                )
            )

    def finish(self) -> Report:
        """End the replay and return its report.

        Raises the first failure, ``UnconsumedStepsError`` if recorded steps were not made, or ``InexactReplayError``.
        """
        self.close()
        self._replay.finish()
        self._replay.conclude()
        return self.report

    def close(self) -> None:
        """End the replay without a verdict. Idempotent."""
        self._replay.state.ended = True
        self._replay.schedule.end()
        self._replay.account()


def _root(session: Session, agent: str | None) -> Scope:
    return Scope(session, Lane("", 1, None, id=0), ROOT, agent, call=innermost())


def _store(target: str | os.PathLike[str] | Store | None) -> Store | None:
    if isinstance(target, Store):
        return target
    return None if target is not None and os.fspath(target).endswith(".jsonl") else _store_at(target)


@_reality.off_loop()
def _store_at(target: str | os.PathLike[str] | None) -> Store:
    if target is not None and os.path.exists(target) and not os.path.isdir(target):
        raise RunStateError(
            f"{os.fspath(target)} is neither a directory of runs nor a .jsonl file to make",
            next_action="name a directory, or a file that does not exist yet",
        )
    return Store(target)


@_reality.off_loop()
def _journal_at(path: str, run_id: str, durability: Durability) -> Journal:
    """Create the journal of a new file outside every store, whose tip hash is not kept."""
    path = os.path.abspath(path)
    if not valid_run_id(run_id):
        raise RunStateError(f"{run_id!r} can't be a run id", next_action="use letters, digits, '.', '_' and '-'")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise RunStateError(f"there is a file {path} already", run_id=run_id, next_action="name a new file") from None
    except OSError as error:
        raise LogWriteError(
            f"{path} can't be written: {error}",
            run_id=run_id,
            path=path,
            next_action="name a new file, in a directory that is there and that this user may write to",
        ) from error
    try:
        lock(fd, path)
        if durability != "none":
            sync_directory(os.path.dirname(path))
    except BaseException:
        os.close(fd)
        raise
    return Journal(fd, path, run_id, durability=durability, encode_read=encode_reads)
