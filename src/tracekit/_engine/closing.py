"""A run that is being aborted: from then on no effect of it begins but those that undo others."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from ..errors import RunEndedError

if TYPE_CHECKING:
    from .lanes import Lane
    from .scope import Scope
    from .step import Request, Spec

__all__ = ["Closing", "undoing"]

#: Whether a compensation is called here.
undoing: Final[ContextVar[bool]] = ContextVar("tracekit.undoing", default=False)


class Closing:
    """What may still begin in a run that is aborted for ``reason``.

    When the abort is ``over``, the line of execution that asked for it, ``lane``, goes on with what it likes. Others don't.
    """

    def __init__(self, run_id: str, reason: str, lane: Lane, at: int, within: Callable[[Scope], bool]) -> None:
        self._run_id: Final = run_id
        self._reason: Final = reason
        self.lane = lane
        self.over = False
        #: The last entry before.
        self.at = at
        #: Whether it is inside a step that is waited for, or that undoes something.
        self._within: Final = within

    def admits(self, scope: Scope, request: Request) -> bool:
        """What has no effect, what undoes something, and what happens inside a step that is waited for, or inside one of those."""
        info = request.info
        if not request.spec.effect or undoing.get() or (info is not None and "compensates" in info):
            return True
        return self._within(scope) or (self.over and self._is_askers(scope.lane))

    def _is_askers(self, lane: Lane) -> bool:
        line: Lane | None = self.lane
        while line is not None and line is not lane:
            line = line.parent
        return line is not None

    def refusal(self, spec: Spec) -> RunEndedError:
        return RunEndedError(
            f"{spec.family} {spec.name!r} ({spec.side_effect}) was called when run {self._run_id} was being aborted ({self._reason}); "
            "it was not executed",
            run_id=self._run_id,
            next_action="let the tasks and threads of the run end before it is aborted, or let them see this error",
        )
