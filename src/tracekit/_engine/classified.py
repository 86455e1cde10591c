"""What the log says of a failure beside the exception itself: ``meta.failure``, small and without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .redaction import Redactor

if TYPE_CHECKING:
    from ..failures import StructuredFailure
    from .recorded import RecordedStep
    from .recording import Recording

__all__ = ["Raised", "of_run", "of_step"]

#: How much of a text, and how many causes, an entry repeats: the exception itself stands beside it.
MAX_REASON: Final = 300
MAX_CAUSES: Final = 3
#: Steps of which it is remembered what they raised.
_KEPT: Final = 256
#: How far from the run's own exception the one of a step is looked for.
_REACH: Final = 64


class _Raised(NamedTuple):
    seq: int
    name: str
    agent: str | None
    side_effect: str | None
    looks: tuple[type, str]


class Raised:
    """Which steps raised what, so that the run's end can name the one that it ended by.

    The exceptions are not held on to, which would keep alive what their frames hold; an equal one at the same address is taken for
    the same, and of several the one of the latest step.
    """

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, _Raised] = {}

    def remember(self, error: BaseException, raised: _Raised) -> None:
        """A step raised ``error``, which may have come out of a step inside it."""
        known = self._by_id.get(id(error))
        if known is not None and known.looks == raised.looks and known.seq > raised.seq:
            if raised.side_effect == "irreversible":  # around the one that raised first
                self._by_id[id(error)] = known._replace(side_effect=raised.side_effect)
            return
        if len(self._by_id) >= _KEPT:
            self._by_id.pop(next(iter(self._by_id)), None)
        self._by_id[id(error)] = raised

    def behind(self, error: BaseException) -> list[_Raised]:
        """The steps that raised ``error``, or one of the exceptions behind it."""
        known = ((self._by_id.get(id(behind)), behind) for behind in _behind(error))
        return [found for found, behind in known if found is not None and found.looks == _looks(behind)]


def of_step(error: BaseException, session: Recording, step: RecordedStep) -> dict[str, Any]:
    """``meta.failure`` of a step that was started and raised."""
    spec, agent = step.spec, step.scope.agent
    try:
        from ..failures import classify

        failure = classify(error, side_effect=spec.side_effect, name=spec.name)
        session.raised.remember(error, _Raised(step.seq, spec.name, agent, spec.side_effect, _looks(error)))
        return _small(replace(failure, name=None), session.redactor)
    except Exception as unclear:  # at the recursion limit, say: observing never breaks the program
        return _unclear(unclear)


def of_run(error: BaseException, session: Recording) -> dict[str, Any]:
    """``meta.failure`` of a run that ends with an exception, and the innermost step that it came from, where that is known."""
    try:
        from ..failures import classify

        steps = session.raised.behind(error)
        if not steps:
            return _small(classify(error), session.redactor)
        inner = max(steps, key=lambda step: step.seq)
        side_effect = "irreversible" if any(step.side_effect == "irreversible" for step in steps) else None
        failure = classify(error, side_effect=side_effect, step=inner.seq, name=inner.name, agent=inner.agent)
        return _small(failure, session.redactor)
    except Exception as unclear:
        return _unclear(unclear)


def _unclear(error: Exception) -> dict[str, Any]:
    return {
        "type": "unknown",
        "reason": f"not classified: {type(error).__name__}",
        "recoverable": False,
        "recovery_strategy": "abort",
    }


def _small(failure: StructuredFailure, redactor: Redactor) -> dict[str, Any]:
    tree: dict[str, Any] = redactor.redact(failure.as_dict())[0]
    tree.pop("run_id", None)
    level, depth = tree, 0
    while True:
        if len(level["reason"]) > MAX_REASON:
            level["reason"] = level["reason"][: MAX_REASON - 1] + "…"
        depth += 1
        if depth > MAX_CAUSES:
            level.pop("caused_by", None)
        if "caused_by" not in level:
            return tree
        level = level["caused_by"]


def _looks(error: BaseException) -> tuple[type, str]:
    try:
        return type(error), str(error)[:MAX_REASON]
    except Exception:
        return type(error), ""


def _behind(error: BaseException) -> Iterator[BaseException]:
    """``error``, its causes and contexts, the members of groups: the nearest first."""
    queue, seen = [error], {id(error)}
    while queue and len(seen) < _REACH:
        found = queue.pop(0)
        yield found
        members = found.exceptions if isinstance(found, BaseExceptionGroup) else ()
        for other in (*members, found.__cause__, None if found.__suppress_context__ else found.__context__):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                queue.append(other)
