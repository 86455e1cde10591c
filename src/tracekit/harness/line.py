"""A lane of a harness run: the calls of one client or worker, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ..errors import RunStateError
from ..integration import SINGLES, OpenReplay, OpenRun, Request, Scope, Session, Spec, entered, placed

__all__ = ["Line", "family_of_kind"]

#: The kinds with an intent record and an outcome, and their families of entries.
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
    """One lane of a run that is recorded or replayed. Calls in one lane are made one after the other.

    Concurrent threads or tasks have no order: give each a lane of its own, ``writer.lane("worker")`` while recording and
    ``index.lane("worker")`` in the replay, made in the same order. Calls that overlap in one lane are reported at the end of the run.
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
        """A new lane for one thread or task: the next one of this name that starts here."""
        return Line(self.run, self._scope.own_lane(name))

    def scope(self) -> Scope:
        """The scope of the next step here: inside the live call that is running, if it belongs to this run."""
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
        """Write a step of one entry; returns its ``seq``."""
        return self.session.note(self.scope(), kind, name, input=input, output=output, signature=metadata)

    def begin(self, family: Any, name: str, input: Any, metadata: Mapping[str, Any]) -> Any:
        """Begin a step with an outcome; ``metadata`` has its side-effect class."""
        signature = dict(metadata)
        side_effect = signature.pop("side_effect", "read_only" if family == "tool" else None)
        spec = Spec(family, name, side_effect=side_effect, signature=signature, lists=family == "llm")
        return self.session.begin(self.scope(), Request(spec, input))


def name_of(kind: str, name: str | None, metadata: Mapping[str, Any]) -> str:
    """The name of a step: ``name``, else the model or tool in ``metadata``, else its kind."""
    return name or str(metadata.get("tool_id") or metadata.get("model_id") or metadata.get("name") or kind)
