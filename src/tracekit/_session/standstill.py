"""What a run is in the middle of when it is aborted, and nothing undoes: waited for while it may end, and told where it has not.

Which calls these are, the log knows: nothing is kept of them while they go on. That the abort has waited is an event of the run,
so that a replay goes on at the same place.
"""

from __future__ import annotations

import sys
from asyncio import current_task
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterator
from itertools import islice
from threading import get_ident
from typing import Any, Final

import orjson

from .. import _reality
from .._capture.ledger import Ledger
from .._engine.doubt import Doubt, Steps
from .._engine.lanes import Lane
from .._engine.recording import Recording
from .._engine.recovery import in_doubt
from .._engine.scope import Scope
from .._journal.reader import Trace
from ..errors import TraceError
from .compensating import uncompensated

__all__ = ["Standstill", "doubtful"]

#: How often an abort looks whether a call has ended (s).
_LOOK: Final = 0.02


class Standstill:
    """One abort's wait for what can't be undone, until ``end`` at most: for other threads, and where it awaits, for tasks too."""

    def __init__(self, scope: Scope, book: Ledger, end: float) -> None:
        self._session: Final[Any] = scope.session
        self._book: Final = book
        self._end: Final = end
        self._timer: Final[Any] = self._session.arm(scope, "tracekit.abort", end - _reality.monotonic())
        self._left: set[int] = set()
        self._read = 0

    def wait(self) -> None:
        timer = self._timer
        if not timer.live and timer.comes:
            timer.wait()
        if timer.live and self._finds(_in_another_thread):
            self._book.wait(self._over, self._end - _reality.monotonic())
            timer.fired()

    async def wait_async(self) -> None:
        timer = self._timer
        if not timer.live and timer.comes:
            await timer.wait_async()
        if timer.live and self._finds(_of_another_task):
            while not self._over() and (rest := self._end - _reality.monotonic()) > 0:
                await self._book.wait_async(self._over, min(rest, _LOOK))
            timer.fired()

    def _finds(self, may_end: Callable[[Lane], bool]) -> bool:
        """Whether something is under way of which there is hope that it ends."""
        session = self._session
        if not isinstance(session, Recording):
            return False
        lanes = (lane for lane in (session.root, *session.open_lanes()) if lane is not None)
        going_on = {lane.id for lane in lanes if may_end(lane)}
        past = session.past()
        before = 0 if past is None else len(past)
        log, self._read = _log(session)
        for step in _pending(log):
            # A generator goes on with whoever asks it for more; what can be undone, the ledger waits for.
            here = step.seq > before and not step.chunks and step.seq not in self._book.open
            if here and step.lane in going_on:
                self._left.add(step.seq)
        return bool(self._left)

    def _over(self) -> bool:
        """Whether all of them have ended, by what was added to the log since the last look."""
        with open(self._session.journal.path, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # being written
                    break
                self._read += len(line)
                entry = orjson.loads(line) if b'"step":' in line else {}
                if not entry.get("type", "").endswith(".chunk"):
                    self._left.discard(entry.get("step"))
        return not self._left


def doubtful(session: Recording) -> tuple[list[int], list[int]]:
    """The steps whose effect may or may not have happened and was not undone, and those among them that have no outcome."""
    log, _ = _log(session)
    standing = {step.seq for step in uncompensated(log)}
    pending = {step.seq for step in _pending(log) if step.side_effect != "reversible" or step.seq in standing}
    return sorted({*in_doubt(log), *pending}), sorted(pending)


def _pending(log: Steps) -> Iterator[Doubt]:
    return (
        step
        for step in log.steps.values()
        if step.state == "pending" and step.side_effect != "read_only" and not step.duplicate
    )


def _log(session: Recording) -> tuple[Steps, int]:
    """What the log says by now, and how far into the file that is."""
    try:
        with Trace(session.journal.path) as trace:
            count = trace.status.count
            return Steps(islice(trace.entries(damaged=True), count)), trace.end_of(count)
    except (TraceError, OSError):  # the segment of a forked process that has done nothing
        return Steps(()), 0


def _in_another_thread(lane: Lane) -> bool:
    """Whether what happens in ``lane`` may come to its end while this thread waits."""
    if lane.owner == get_ident() or not (lane.open or lane.parent is None):
        return False
    return lane.owner in sys._current_frames() or _get_running_loop() is None


def _of_another_task(lane: Lane) -> bool:
    return lane.owner != id(current_task()) and (lane.open or lane.parent is None)
