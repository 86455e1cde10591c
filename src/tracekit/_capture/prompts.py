"""Debugger prompts inside a run: what is typed there is no part of it.

Leaving a replay at ``pdb``'s prompt ends the replay.

``pydevd`` is the debugger of ``debugpy`` and PyCharm.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from .._reality import off_loop
from .._runtime.callsite import caller, prompt
from .._runtime.process import process
from ..errors import ReplayError
from .patch import Patch, Switch

__all__ = ["hooks"]


def _outside_the_run(original: Any) -> Any:
    @wraps(original)
    def interaction(self: Any, *args: Any, **options: Any) -> Any:
        try:
            with prompt():
                found = original(self, *args, **options)
        except SystemExit:  # q, from Python 3.14 on
            _leave_replays()
            raise
        if getattr(self, "quitting", False):
            _leave_replays()
        return found

    return interaction


def _suspended(original: Any) -> Any:
    @wraps(original)
    def do_wait_suspend(*args: Any, **options: Any) -> Any:
        with prompt(), off_loop():
            return original(*args, **options)

    return do_wait_suspend


def _leave_replays() -> None:
    """Fail the active replays when the user quits the debugger: the error with which ``pdb`` ends a program is one that
    agents catch."""
    for session in process.sessions:
        if not session.recording and not session.state.ended:
            raise session.fail(
                ReplayError(
                    "the replay was left in the debugger",
                    run_id=session.run_id,
                    location=caller(),
                    next_action=f"leave it with c, or go back and forth with `tracekit debug {session.run_id}`",
                )
            )


hooks: Final = Switch(
    (
        Patch("pdb", "Pdb.interaction", _outside_the_run),
        Patch("pydevd", "PyDB.do_wait_suspend", _suspended),
    )
)
