"""The policies of a run that is recorded: what they decide when a step begins.

Calls under a key, see ``once``, and budgets, see ``budget``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from .._runtime.around import Around
from .._runtime.session import Scope, Session, Step
from .._runtime.step import Request
from . import budget, once

if TYPE_CHECKING:
    from .._runtime.recorder import Recording
    from .once import Once

__all__ = ["ExactlyOnce", "inherit_keys", "share", "under_policies"]

#: The methods of a session that go straight to the recorder: all but ``begin``.
_STRAIGHT: Final = [
    name for name, member in vars(Around).items() if callable(member) and name[0] != "_" and name != "begin"
]
_methods_of: Final = attrgetter(*_STRAIGHT)


class ExactlyOnce(Around):
    """The session around ``recorder`` that makes a call under a key only once. Its keys are loaded with the first such
    call.

    Steps that the log answers don't concern it.
    """

    def __init__(self, recorder: Recording) -> None:
        super().__init__(recorder)
        self._recorder: Final = recorder
        self._write: Final = recorder.begin
        vars(self).update(zip(_STRAIGHT, _methods_of(recorder), strict=True))

    def begin(self, scope: Scope, request: Request) -> Step:
        if request.once_key is None:
            return (
                self._write(scope, request) if scope.spending is None else budget.begin(self._recorder, scope, request)
            )
        recorder = self._recorder
        if not recorder.recording:
            return recorder.begin(scope, request)
        late = recorder.refused(scope, request)
        return keys_of(recorder).begin(scope, request) if late is None else late


def keys_of(recorder: Recording) -> Once:
    """Return the keys of a run's exactly-once calls."""
    kept = recorder.state.extras.of(once.RunKeys)
    found = kept.once
    if found is None:
        make = once.Once  # imports it before the lock is held
        with recorder.log.journal.held():
            found = kept.once = kept.once or make(recorder, recorder.log.trace)
        found.shared |= recorder.state.shared
    return found


def share(recorder: Recording) -> None:
    """Note that other processes may write parts of the run from now on. Raises ``LogWriteError`` if that is impossible."""
    recorder.state.shared = True
    known = recorder.state.extras.of(once.RunKeys).once
    if known is not None:
        known.share()


def inherit_keys(recorder: Recording, child: Recording) -> None:
    """In a forked child, let its own recording ``child`` inherit the parent's keys."""
    known = recorder.state.extras.of(once.RunKeys).once
    if known is not None:
        child.state.extras.of(once.RunKeys).once = own = once.Once(child)  # without opening its segment
        known.forked(own)


def under_policies(recorder: Recording) -> Session:
    """Return the session that the program of a run sees. Calls answered by an earlier one cost nothing, whatever is
    left of a budget."""
    recorder.state.session = ExactlyOnce(recorder)
    return recorder.state.session
