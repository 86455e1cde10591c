"""What all captured waits and hand-overs of threads have in common.

The scope in which they belong to the run, and how they go on in a replay that has failed.

In such a replay, code that makes a step, sleeps or asks a question raises the failure. A wait for another thread does not:
the program relies on nobody using what it closes afterwards. So that wait goes on, without a limit, as long as a thread of
the run can move (its next step ends it), and raises when none can.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from .._runtime.session import Scope, current, here
from ..errors import ReplayError
from .leftovers import collecting

__all__ = ["armed", "await_place", "own", "scope_of_timers"]


class _Own(threading.local):
    """What is kept for each thread."""

    #: How far (s) its clock is put forward.
    ahead = 0.0
    #: The limit of its current wait.
    limit: Any = None
    #: Whether it takes something as a whole, so that no lock in between is a part of the run.
    taking = False
    #: The futures in whose callbacks it is.
    called_back_for: tuple[Any, ...] = ()
    #: Whether the innermost of these callbacks is one of the program's.
    calls_back: bool = False


own: Final = _Own()


def scope_of_timers() -> Scope | None:
    """Return the scope in which a timer armed now belongs to the run, or ``None``."""
    scope = current.get()
    if scope is None or scope.live or scope.session.state.ended or collecting.here():
        return None
    return here()


def armed(scope: Scope, function: str, seconds: float) -> Any:
    """Like ``Session.arm``, for a wait for other threads; ``None`` if the replay has failed."""
    threads = scope.session.threads
    try:
        return None if threads is not None and threads.failed else scope.session.arm(scope, function, seconds)
    except ReplayError:
        if threads is None or not threads.failed:
            raise
        return None  # just now


def await_place(timer: Any, threads: Any, condition: Any = None, retaking: Any = None) -> bool:
    """Wait until the recorded place of ``timer``; release ``condition`` meanwhile, if there is one, and take it again when
    it is the turn of ``retaking``. Return false if the replay has failed, or ended first."""
    saved = None if condition is None else condition._release_save()
    try:
        timer.wait()
        if retaking is not None:
            retaking.await_turn()
    except ReplayError:
        if not threads.failed:
            raise
        return False
    finally:
        if condition is not None:
            condition._acquire_restore(saved)
            if retaking is not None:
                retaking.taken()
    return not timer.live
