"""A run that is written event by event: the trace writer, and the lanes of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Literal

from ..agents.view import Observed
from ..errors import RunStateError
from ..integration import SINGLES, Note, OpenReplay, OpenRun, Request, Scope, Session, Spec, Store, entered, placed

__all__ = ["Line", "TraceWriter"]

# -- lanes -------------------------------------------------------------------------------------------------------------
#
# The calls of one client or worker, one after another, in a run that is recorded or replayed.

#: The kinds with an intent record and an outcome, and their families of entries.
_FAMILIES: Final[dict[str, Any]] = {"llm_call": "llm", "tool_call": "tool", "http_call": "http"}
#: The kinds with a single entry: ``policy_check`` is an entry of type ``policy.check``.
_SINGLES: Final = {kind.replace(".", "_"): kind for kind in SINGLES}


def family_of_kind(kind: str) -> tuple[str | None, str]:
    """Return ``("llm", "llm_call")`` for a kind with an outcome, ``(None, "policy.check")`` for one with a single
    entry.

    Raises ``RunStateError`` for an unknown kind.
    """
    if kind in _FAMILIES:
        return _FAMILIES[kind], kind
    single = kind if kind in SINGLES else _SINGLES.get(kind)
    if single is None:
        raise RunStateError(
            f"there is no kind of event {kind!r}",
            next_action=f"use one of {', '.join(sorted([*_FAMILIES, *_SINGLES]))}; a step of your own is a 'decision' with a name",
        )
    return None, single


class Line:
    """One lane of a run that is recorded or replayed. Calls in one lane are made one after the other.

    Concurrent threads or tasks have no order: give each a lane of its own, ``writer.lane("worker")`` while recording
    and ``index.lane("worker")`` in the replay, created in the same order. Calls that overlap in one lane are reported
    at the end of the run.
    """

    def __init__(self, run: OpenRun | OpenReplay, scope: Scope) -> None:
        self.run: Final = run
        self._scope: Final = scope
        self._open_calls = 0

    @property
    def session(self) -> Session:
        """The run's session."""
        return self._scope.session

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.session.run_id

    def lane(self, name: str) -> Line:
        """Return a new lane for one thread or task: the next one of this name that starts here."""
        return Line(self.run, self._scope.own_lane(name))

    def scope(self) -> Scope:
        """Return the scope of the next step here: inside the active live call, if it belongs to this run."""
        return placed(self._scope)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block whose captured calls belong to this lane."""
        lane = self._scope.lane
        before = lane.owner
        with entered(self.scope()):
            if self._open_calls and lane.owner != before and self.session.recording:
                self.session.report.warn(
                    f"calls of two threads or tasks overlapped in lane {lane.path or '/'}: give each a lane() of its own"
                )
            self._open_calls += 1
            try:
                yield
            finally:
                self._open_calls -= 1

    def note(self, kind: str, name: str, input: Any, output: Any, metadata: Mapping[str, Any]) -> int:
        """Write a step with a single entry; return its ``seq``."""
        return self.session.note(self.scope(), Note(kind, name, input, output, metadata))

    def begin(self, family: Any, name: str, input: Any, metadata: Mapping[str, Any]) -> Any:
        """Begin a step with an outcome; ``metadata`` has its side-effect class."""
        signature = dict(metadata)
        side_effect = signature.pop("side_effect", "read_only" if family == "tool" else None)
        spec = Spec(family, name, side_effect=side_effect, signature=signature, lists=family == "llm")
        return self.session.begin(self.scope(), Request(spec, input))

    def event(
        self, kind: str, input: Any, output: Any, metadata: Mapping[str, Any] | None, name: str | None
    ) -> tuple[int, Any]:
        """Write, or match, what says that an event of this kind has happened. Return its ``seq``, and the step whose outcome is
        still to be written or compared; ``None`` for a kind with a single entry."""
        family, entry_type = family_of_kind(kind)
        about = dict(metadata or {})
        called = name or str(about.get("tool_id") or about.get("model_id") or about.get("name") or kind)
        if family is None:
            return self.note(entry_type, called, input, output, about), None
        step = self.begin(family, called, input, about)
        return int(step.seq), step


# -- the writer --------------------------------------------------------------------------------------------------------


class TraceWriter(Line):
    """Writes one run, into a store or into a single file.

    ``target`` is a store or its directory (by default ``TRACEKIT_DIR`` or ``.tracekit``), or a new ``….jsonl`` file.
    ``run_id`` defaults to a new one. ``durability`` is that of ``tracekit.record``: ``"effects"``, ``"always"`` or
    ``"none"``; ``redact`` adds patterns to the built-in ones; ``agent`` and ``identity`` say who acts; ``input`` is the
    run's input. ``observer`` is called with each inter-agent event (a dictionary, see ``tracekit.agents``) once it is
    in the file; if it raises, it is not called again. Use it as a context manager, or call ``close``: a run without its
    end is incomplete.

    Raises ``RunStateError`` if the file exists already, ``LogWriteError`` if it can't be written.
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
        durability: Literal["none", "effects", "always"] = "effects",
        redact: Iterable[Any] = (),
        observer: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        if observer is not None and not callable(observer):
            raise TypeError(f"an observer is called with each event, and {observer!r:.80} is not callable")
        if _is_device(target):
            raise RunStateError(
                f"{target!s} is neither a directory of runs nor a .jsonl file to make",
                next_action="in a replay, which writes nothing, use ReplayTraceWriter(index)",
            )
        run = self._open = OpenRun(
            target,
            run_id=run_id,
            name=name,
            input=input,
            agent=agent,
            identity=identity,
            durability=durability,
            redact=redact,
            about={"harness": True},
        )
        super().__init__(run, run.scope)
        #: The run's file.
        self.path: Final = run.path
        self._result: Any = None
        self._observed: Observed | None = None
        if observer is not None:
            self._observed = Observed(run.path, self.run_id, observer, run.session.report.warn)
            run.observe(self._observed.poll)

    @property
    def warnings(self) -> list[str]:
        """The run's warnings: gaps, and values that could not be recorded."""
        return self._open.warnings

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

        ``kind`` is ``"llm_call"``, ``"tool_call"``, ``"http_call"`` (an intent record and an outcome each) or one of
        the steps with a single entry: ``"decision"``, ``"data"``, ``"state_transition"``, ``"policy_check"``,
        ``"breaker"``, ``"detection"`` … ``metadata`` (model, decoding parameters, tool version, ``side_effect``) is the
        event's signature, compared in a replay. ``name`` defaults to the ``model_id`` or ``tool_id`` in it. ``error``
        replaces ``output``. For a call with effects use ``TracedToolClient``, which has the intent record on disk
        *before* the call. Raises ``RunStateError`` for an unknown kind, ``LogWriteError``.
        """
        seq, step = self.event(kind, input, output, metadata, name)
        if step is not None and error is None:
            step.done(output)
        elif step is not None:
            step.failed(error)
        return seq

    def set_result(self, value: Any) -> None:
        """Set the run's result; it is written at its end."""
        self._result = value

    def close(self, error: BaseException | None = None) -> None:
        """End the run: ``run.completed``, or ``run.failed`` with ``error``. Does nothing the second time."""
        try:
            self._open.close(error, result=self._result)
        finally:
            if self._observed is not None:
                self._observed.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def _is_device(target: Any) -> bool:
    """Return whether it exists, and is neither a directory nor a file: ``/dev/null``, if nothing is to be written."""
    if not isinstance(target, str | os.PathLike):
        return False
    return os.path.exists(target) and not os.path.isdir(target) and not os.path.isfile(target)
