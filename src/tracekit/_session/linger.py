"""The moment at the end of a block in which what the run has started may come to its end."""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Final

from .. import _reality
from .._engine.lanes import Lane
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import current

__all__ = ["LINGER", "linger", "linger_async"]

#: How long a block waits at most for the open lanes of its run, in seconds.
LINGER: Final = 1.0
_LOOK: Final = 0.002


def linger(session: Recording | Replay) -> None:
    """Wait for the threads of the run; its tasks can't go on while this thread waits."""
    end = _reality.monotonic() + LINGER
    token = current.set(None)  # these waits are none of the run's own
    try:
        while any(_runs_elsewhere(lane) for lane in session.open_lanes()) and _reality.monotonic() < end:
            _reality.sleep(_LOOK)
    finally:
        current.reset(token)


async def linger_async(session: Recording | Replay) -> None:
    """Wait for the threads and tasks of the run."""
    import asyncio

    end = _reality.monotonic() + LINGER
    token = current.set(None)
    try:
        me = id(asyncio.current_task())
        while any(lane.owner != me for lane in session.open_lanes()) and _reality.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
    finally:
        current.reset(token)


def _runs_elsewhere(lane: Lane) -> bool:
    return lane.owner != get_ident() and lane.owner in sys._current_frames()
