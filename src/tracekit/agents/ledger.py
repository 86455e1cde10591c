"""The ledger of a world: every event with its cause, checked when it is written.

An event is an entry of the run's trace (outside every run: a number in memory). What it names as its cause must be an event that is in
the ledger, of the kind that the reference says, and of a kind that can cause it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from itertools import count
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from .._engine.gate import Session, here
from ..errors import DanglingCauseError, IntentionError, LogWriteError, RunStateError
from .ids import Origin, segment_of_path
from .intentions import ANSWERS, FAILURES, Ref, copied

__all__ = ["CAUSES", "Ledger", "check_cause", "deciding", "trace_of"]

#: The responder that is deciding: it must change nothing.
deciding: Final[ContextVar[str | None]] = ContextVar("tracekit.deciding", default=None)

#: The numbers of events outside every run.
_numbers: Final = count(1)

#: Whose each name of a world is, by session: in a trace a world is known by its name.
_taken: Final[WeakKeyDictionary[Any, dict[str, Ledger]]] = WeakKeyDictionary()
_taking: Final = Lock()

#: What alone can cause an event, where that is one kind: an answer answers a request.
CAUSES: Final = {
    **{answer: request for request, answer in ANSWERS.items()},
    **{failure: request for request, failure in FAILURES.items()},
}


def check_cause(kind: str, cause: Ref | None, known: str | None) -> None:
    """``DanglingCauseError`` unless ``cause``, of which the log says that it is of the kind ``known``, can cause a ``kind``."""
    needs = CAUSES.get(kind)
    if cause is None:
        if needs is not None:
            raise _dangling(f"a {kind} answers a {needs}, and none is named", None)
        return
    if known is None:
        raise _dangling(f"a {kind} names {cause} as its cause, and there is no such event", cause)
    if known != cause.type:
        raise _dangling(f"a {kind} names {cause} as its cause, and {cause.seq} is of another kind: {known}", cause)
    if needs is None and known in ANSWERS:
        raise _dangling(f"a {kind} names {cause} as its cause: a request causes its answer, and that the rest", cause)
    if needs is not None and known != needs:
        raise _dangling(f"a {kind} answers a {needs}, and {cause} is none", cause)


class Ledger:
    """The events of the world of this ``name``. In one run, in one line of execution: the order of the log is the order of events."""

    def __init__(self, name: str = "world") -> None:
        self.name: Final = name
        self._kinds: Final[dict[tuple[str | None, str | None, int], str]] = {}
        #: The run that its first event was in, in a tuple of its own: ``None`` is no run.
        self._run: tuple[str | None] | None = None
        #: The last conversation about each object: the request's ``seq``, its messages.
        self._said: Final[dict[str | None, tuple[int, list[Any]]]] = {}

    def kind_of(self, ref: Ref) -> str | None:
        """Of which kind the event is that stands there."""
        return self._kinds.get((ref.run_id, ref.segment, ref.seq))

    def ask(self, by: str, kind: str, name: str, data: Mapping[str, Any], object: str | None, cause: Ref | None) -> Ref:
        """Write a request. Messages that the last one about this object had already are told as its number (``after``): a long
        conversation is on the log once."""
        told: dict[str, Any] = {"kind": kind, "name": name, "object": object, "data": dict(data)}
        messages = data.get("messages") if kind == "llm.request" else None
        before = self._said.get(object)
        if before is not None and messages is not None and messages[: len(before[1])] == before[1]:
            told["data"]["messages"] = messages[len(before[1]) :]
            told["after"] = before[0]
        on = None if cause is None else cause.as_dict()
        ref = self.write("decision", by, kind, input=on, output=told, cause=cause)
        if messages is not None:
            self._said[object] = ref.seq, copied(messages)
        return ref

    def write(
        self,
        entry: str,
        name: str,
        kind: str,
        *,
        input: Any,
        output: Any = None,
        cause: Ref | None = None,
        about: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> Ref:
        """Write an event as an entry of this type, once its cause is checked; returns where it stands.

        ``about`` is compared in a replay, ``info`` is not. ``LogWriteError`` where there is a log and it can't be written.
        """
        self._nobody_decides()
        check_cause(kind, cause, None if cause is None else self.kind_of(cause))
        self._in_one_run(kind)
        ref = self._written(entry, name, kind, input, output, cause, about, dict(info or {}))
        self._kinds[ref.run_id, ref.segment, ref.seq] = kind
        return ref

    def _nobody_decides(self) -> None:
        scope = here()
        who = deciding.get()
        if who is not None or getattr(None if scope is None else scope.session, "decides", False):
            raise IntentionError(
                f"{'a responder' if who is None else f'responder {who!r}'} changed the world by itself",
                next_action="let it return `create(…)` or `patch(…)`",
            )

    def _in_one_run(self, kind: str) -> None:
        scope = here()
        run = (None if scope is None else scope.session.run_id,)
        if self._run not in (None, run):
            raise IntentionError(
                f"a {kind} in another run than the world's first event: its trace would not say how the world began",
                run_id=run[0],
                next_action="make the world inside the run; `World.of(run).as_dict()` has the objects of an earlier one",
            )
        if scope is not None and not scope.live:
            self._take_name(scope.session)
        self._run = run

    def _take_name(self, session: Any) -> None:
        with _taking:
            owner = _taken.setdefault(session, {}).setdefault(self.name, self)
        if owner is not self:
            raise RunStateError(
                f"this run has another world of the name {self.name!r}: its trace could not tell them apart; nothing was written",
                run_id=session.run_id,
                next_action="give it a name of its own, `World('…')`, or let the loops share one world",
            )

    def _written(
        self,
        entry: str,
        name: str,
        kind: str,
        input: Any,
        output: Any,
        cause: Ref | None,
        about: Mapping[str, Any] | None,
        info: dict[str, Any],
    ) -> Ref:
        scope = here()
        if scope is None:
            return Ref(kind, next(_numbers))
        if scope.live:
            raise IntentionError(
                f"a {kind} inside a step that a replay does not run: there it would be missing",
                run_id=scope.session.run_id,
                step=scope.parent,
                next_action="let the tool return what it found, and a responder patch the world",
            )
        meta: dict[str, Any] = {"event": kind, **(about or {})}
        if cause is not None:
            meta["on"] = cause.as_dict()
            if cause.run_id is not None:
                info["cause"] = [Origin(cause.run_id, cause.segment, cause.seq).as_dict()]
        session = scope.session
        seq = session.note(scope, entry, name, input=input, output=output, signature=meta, info=info)
        if not seq:
            raise LogWriteError(
                f"the {kind} of {name!r} could not be written; it did not happen",
                run_id=session.run_id,
                next_action="see why the log can't be written, or why the run had ended",
            )
        return Ref(kind, seq, session.run_id, segment_of_path(_path(session), session.run_id))


def trace_of(session: Any) -> Any:
    """The log that a session answers from, wholly or up to its end; ``None`` while there is none."""
    past = getattr(session, "past", None)
    return past() if past is not None else getattr(getattr(session, "replay", session), "trace", None)


def _path(session: Session) -> str:
    journal = getattr(session, "journal", None)
    return str((trace_of(session) if journal is None else journal).path)


def _dangling(what: str, cause: Ref | None) -> DanglingCauseError:
    return DanglingCauseError(
        what,
        cause=cause,
        next_action="name the event that the responder was given (`event.ref`), or one that came before",
    )
