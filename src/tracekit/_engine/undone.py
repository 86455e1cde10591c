"""Steps that undo others: a call that happens once and was undone may be made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .recorded import RecordedStep
from .scope import Scope
from .step import Request

if TYPE_CHECKING:
    from .recording import Recording

__all__ = ["UndoingStep"]


class UndoingStep(RecordedStep):
    """The compensation of step ``of``. Until it has returned, nobody knows whether that step is undone."""

    __slots__ = ("_of",)

    def __init__(self, session: Recording, scope: Scope, request: Request, seq: int, of: int) -> None:
        super().__init__(session, scope, request, seq)
        self._of: Final = of
        session.undone[of] = seq

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        super().done(output, info=info, data=data)
        self.session.undone[self._of] = 0
