"""No silent gaps: what a run has to say at its end of what it could not capture.

A *remark* is kept in the trace and in ``run.warnings``; a *warning* is told as a Python warning too.
"""

from __future__ import annotations

import threading
from typing import Final

from .._capture import clock, instrumentation, randomness
from .._engine import gate
from .._engine.lanes import collisions
from .._engine.recording import Recording

__all__ = ["begin", "end"]

_lock: Final = threading.Lock()
#: The runs being recorded, with what had strayed when each began.
_open: Final[dict[Recording, dict[str, int]]] = {}


def begin(session: Recording) -> None:
    """From now on see what passes ``session`` by."""
    with _lock:
        if not _open:
            gate.strayed = {}
        _open[session] = dict(gate.strayed or ())
    instrumentation.run_started(session)


def end(session: Recording) -> None:
    """Let ``session`` say what passed it by."""
    instrumentation.run_ended(session)
    with _lock:
        before, after = _open.pop(session, {}), dict(gate.strayed or ())
        if not _open:
            gate.strayed = None
    for name in [name for name in after if after[name] != before.get(name, 0)][:10]:
        session.remark(
            f"{name!r} was called outside every run while this one was recorded: a thread or callback may have lost it"
        )
    for lane in collisions:
        if lane.root is session.root:
            session.warn(
                f"two threads met in lane {lane.path or 'of the run itself'}: their steps are in the order they came"
            )
    for say in gate.undone.pop(session, ()):
        left = say()
        if left is not None:
            session.warn(left)
    for sentence in (*clock.degraded(), *randomness.degraded()):
        session.warn(sentence)
