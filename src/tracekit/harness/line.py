"""A line of execution of a harness run: where the calls of one client, or of one worker, stand in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from .._journal.entry import SINGLES
from .._runtime.context import Lane, Scope, current, enter, started
from .._runtime.effects import innermost
from .._runtime.recorder import ROOT, Recording
from .._runtime.session import Session, owner
from .._runtime.step import Request, Spec
from ..errors import RunStateError

__all__ = ["Line", "family_of_kind"]

#: The kinds that have an intention and an outcome, and the families of entries that they are.
_FAMILIES: Final[dict[str, Any]] = {"llm_call": "llm", "tool_call": "tool", "http_call": "http"}
#: The kinds of one entry: ``policy_check`` is an entry of type ``policy.check``.
_SINGLES: Final = {kind.replace(".", "_"): kind for kind in SINGLES}


def family_of_kind(kind: str) -> tuple[str | None, str]:
    """``("llm", "llm_call")`` for a kind with an outcome, ``(None, "policy.check")`` for one of a single entry."""
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
    """One line of execution in a run that is recorded or replayed. Calls in one line come one after the other.

    What runs at once (threads, tasks) has no order of its own: give each a line, ``writer.lane("worker")`` while recording and
    ``index.lane("worker")`` in the replay, made in the same order. Calls that overlap in one line are told at the end of the run.
    """

    def __init__(self, session: Session, scope: Scope) -> None:
        self.session: Final = session
        self._scope: Final = scope
        self._open = 0
        self._who = 0

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.session.run_id

    def lane(self, name: str) -> Line:
        """Another line, for one thread or task: the next one of this name that this line starts."""
        return Line(self.session, self._scope.in_lane(started(self._scope.lane, name)))

    def scope(self) -> Scope:
        """Where a step of this line stands now: under the step whose live call is running, if one of this run is."""
        scope, around = self._scope, current.get()
        call = innermost() or scope.call
        if around is None or around.session is not self.session:
            return scope.within_call(call)
        return Scope(self.session, scope.lane, around.parent, around.agent or scope.agent, around.live, call=call)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is captured inside belongs to this line."""
        me = owner()
        if self._open and self._who != me and isinstance(self.session, Recording):
            name = self._scope.lane.path or "/"
            self.session.report.warn(
                f"calls of two threads or tasks overlapped in lane {name}: give each a lane() of its own"
            )
        scope = self.scope()
        self._open += 1
        self._who = scope.lane.owner = me
        token = enter(scope)
        try:
            yield
        finally:
            current.reset(token)
            self._open -= 1

    def note(self, kind: str, name: str, input: Any, output: Any, metadata: Mapping[str, Any]) -> int:
        """A step of one entry."""
        return self.session.note(self.scope(), kind, name, input=input, output=output, signature=metadata)

    def begin(self, family: Any, name: str, input: Any, metadata: Mapping[str, Any]) -> Any:
        """A step with an outcome; the side-effect class stands in ``metadata``."""
        signature = dict(metadata)
        side_effect = signature.pop("side_effect", "read_only" if family == "tool" else None)
        spec = Spec(family, name, side_effect=side_effect, signature=signature, lists=family == "llm")
        return self.session.begin(self.scope(), Request(spec, input))


def root(session: Session, agent: str | None = None) -> Scope:
    """The scope of a run's own line."""
    return Scope(session, Lane("", 1, None, id=0), ROOT, agent, call=innermost())


def name_of(kind: str, name: str | None, metadata: Mapping[str, Any]) -> str:
    """What a step is called: ``name``, else the model or tool that ``metadata`` tells, else its kind."""
    return name or str(metadata.get("tool_id") or metadata.get("model_id") or metadata.get("name") or kind)
