"""The trace writer: one run, written event by event."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final

from .._capture import instrumentation
from .._journal.store import Store, lock, new_run_id, valid_run_id
from .._journal.tip import sync_directory
from .._journal.writer import Durability, Journal
from .._policy.once import policies
from .._runs.environment import environment
from .._runtime.recorder import ROOT, Recording, encode_reads
from .._runtime.redaction import Redactor
from .._values import canonical
from ..agents.view import Observed
from ..errors import LogWriteError, RunStateError
from .line import Line, family_of_kind, name_of, root

__all__ = ["TraceWriter"]


class TraceWriter(Line):
    """Writes one run, into a store or into a single file.

    ``target`` is a store or its directory (by default ``TRACEKIT_DIR`` or ``.tracekit``), or a ``….jsonl`` file to make. ``run_id``
    defaults to a new one. ``durability`` is that of ``tracekit.record``: ``"effects"``, ``"always"`` or ``"none"``; ``redact`` adds
    patterns to the built-in ones; ``agent`` and ``identity`` say who acts; ``input`` is the run's input. ``observer`` is called with
    each inter-agent event (a dictionary, see ``tracekit.agents``) once it is in the file; if it raises, it is not called again. Use it
    as a block, or call ``close``: a run without its end reads as unsealed. Raises ``RunStateError`` if the file is there already,
    ``LogWriteError`` if it can't be written.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | Store | None = None,
        *,
        run_id: str | None = None,
        name: str = "harness",
        input: Any = None,
        agent: str | None = None,
        identity: Mapping[str, Any] | None = None,
        durability: Durability = "effects",
        redact: Iterable[Any] = (),
        observer: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        if observer is not None and not callable(observer):
            raise TypeError(f"an observer is called with each event: {observer!r:.80} can't be")
        self._store: Final = _store(target)
        run_id = new_run_id() if run_id is None else run_id
        if self._store is not None:
            journal = self._store.create(run_id, durability=durability, encode_read=encode_reads)
        else:
            journal = _journal_at(os.fspath(target), run_id, durability)  # type: ignore[arg-type]
        session = Recording(journal, Redactor.of_process(redact), policies)
        super().__init__(session, root(session, agent))
        self._recording: Final = session
        #: The run's file.
        self.path: Final = journal.path
        self._result: Any = None
        self._follower: Final = None if observer is None else _followed(session, observer)
        self._begin(name, input, agent, identity)

    def _begin(self, name: str, input: Any, agent: str | None, identity: Mapping[str, Any] | None) -> None:
        session = self._recording
        place = environment(instrumentation.packages())
        place["argv"] = session.redactor.redact_argv(place["argv"])
        about = {"environment": place, "durability": session.log.journal.durability, "harness": True}
        tail = b',"name":%b,"input":%b' % (canonical(name), session.encoder.encode_whole(input).data)
        session.log.journal.append("run.started", 0, 0, tail + session.meta(about))
        if agent is not None or identity is not None:
            session.identify(agent or "agent", identity)

    @property
    def warnings(self) -> list[str]:
        """The run's warnings: gaps, and values that could not be recorded."""
        return [*self._recording.report.warnings, *self._recording.report.remarks]

    def record(
        self,
        kind: str,
        input: Any,
        output: Any,
        metadata: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        error: BaseException | None = None,
    ) -> int:
        """Write an event that has happened, and return its ``seq``; it is in the file when this returns.

        ``kind`` is ``"llm_call"``, ``"tool_call"``, ``"http_call"`` (an intent record and an outcome each) or one of the steps of a single
        entry: ``"decision"``, ``"data"``, ``"state_transition"``, ``"policy_check"``, ``"breaker"``, ``"detection"`` … ``metadata`` (model,
        decoding parameters, tool version, ``side_effect``) is the event's signature, compared in a replay. ``name`` defaults to the
        ``model_id`` or ``tool_id`` in it. ``error`` takes the place of ``output``. For a call with effects use ``TracedToolClient``,
        which has the intent record on disk *before* the call. Raises ``RunStateError`` for an unknown kind, ``LogWriteError``.
        """
        family, entry_type = family_of_kind(kind)
        about = dict(metadata or {})
        called = name_of(kind, name, about)
        if family is None:
            return self.note(entry_type, called, input, output, about)
        step = self.begin(family, called, input, about)
        if error is None:
            step.done(output)
        else:
            step.failed(error)
        return int(step.seq)

    def set_result(self, value: Any) -> None:
        """Set the run's result; it is written at its end."""
        self._result = value

    def close(self, error: BaseException | None = None) -> None:
        """End the run: ``run.completed``, or ``run.failed`` with ``error``. Does nothing the second time."""
        session = self._recording
        if session.state.ended:
            return
        journal = session.log.journal
        try:
            journal.flush()
            with journal.held():
                session.state.ended = True
                self._last_entry(error)
            journal.close()
            if self._store is not None:
                self._store.sealed(
                    journal.run_id, journal.seq, journal.head.decode(), durable=journal.durability != "none"
                )
        finally:
            session.state.ended = True
            journal.close()
            if self._follower is not None:
                self._follower.close()
        for sentence in session.report.warnings:
            warnings.warn(f"tracekit: run {session.run_id}: {sentence}", RuntimeWarning, stacklevel=2)

    def _last_entry(self, error: BaseException | None) -> None:
        session = self._recording
        meta: dict[str, Any] = {"steps": session.steps, "segments": []}
        if session.in_doubt:
            meta["in_doubt"] = sorted(session.in_doubt)
        kind = "run.completed" if error is None else "run.failed"
        fields = session.result(self._result, meta) if error is None else session.error(error, meta)
        if session.report.warnings or session.report.remarks:
            meta["warnings"] = [*session.report.warnings, *session.report.remarks]
        if session.log.journal.lost:
            meta["lost"] = session.log.journal.lost
        session.log.journal.append_last(kind, 0, ROOT, lambda count: fields + session.meta(meta | {"count": count}))

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def _followed(session: Recording, observer: Callable[[dict[str, Any]], object]) -> Observed:
    """Pass the inter-agent events of a run to ``observer`` as they are written."""
    journal = session.log.journal
    follower = Observed(journal.path, journal.run_id, observer, session.report.warn)
    append = journal.append

    def observed(kind: str, lane: int, parent: int, tail: bytes, sync: bool = False) -> int:
        seq = append(kind, lane, parent, tail, sync)
        follower.poll()
        return seq

    journal.append = observed  # type: ignore[method-assign]  # of this journal alone: others have no overhead
    return follower


def _store(target: str | os.PathLike[str] | Store | None) -> Store | None:
    if isinstance(target, Store):
        return target
    return None if target is not None and os.fspath(target).endswith(".jsonl") else _store_at(target)


def _store_at(target: str | os.PathLike[str] | None) -> Store:
    if target is not None and os.path.exists(target) and not os.path.isdir(target):
        raise RunStateError(
            f"{os.fspath(target)} is neither a directory of runs nor a .jsonl file to make",
            next_action="in a replay, which writes nothing, use ReplayTraceWriter(index)",
        )
    return Store(target)


def _journal_at(path: str, run_id: str, durability: Durability) -> Journal:
    """The journal of a single new file outside every store: its tip hash is not kept."""
    path = os.path.abspath(path)
    if not valid_run_id(run_id):
        raise RunStateError(f"{run_id!r} can't be a run id", next_action="use letters, digits, '.', '_' and '-'")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise RunStateError(f"there is a file {path} already", run_id=run_id, next_action="name a new file") from None
    except OSError as error:
        raise LogWriteError(f"{path} can't be written: {error}", run_id=run_id, path=path) from error
    try:
        lock(fd, path)
        if durability != "none":
            sync_directory(os.path.dirname(path))
    except BaseException:
        os.close(fd)
        raise
    return Journal(fd, path, run_id, durability=durability, encode_read=encode_reads)
