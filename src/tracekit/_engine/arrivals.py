"""How close upon one another the events of a loop come.

A program can tell: ``wait(FIRST_COMPLETED)`` sees both done where the second answer came before it was woken for the first.
A replay hands out one event when nothing is left to run, so the recording notes which events came before that, and where.

Places are counted in *ticks*. Each event of a burst puts a marker into the loop's queue, ahead of what the event leads to; in each
round of the loop the markers run in their order, each is a tick, and each goes back into the queue. Between two ticks lies
what one event led to in one round. A replay that puts the events at the same ticks has the same markers, and so the same ticks.

What a thread puts into the loop comes anywhere, in the middle of what an event leads to even. It waits for the next marker
(``after``), in a recording as in a replay.
"""

from __future__ import annotations

from asyncio.events import _get_running_loop
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

__all__ = ["Burst", "current_burst", "place"]

#: So many rounds a marker stays, so many markers there are at once.
_ROUNDS: Final = 12
_MARKERS: Final = 16
_NAME: Final = "_tracekit_burst"


class Burst:
    """The events of ``loop`` since it was idle last.

    ``before(limit)`` is called when a marker is put into the queue: what belongs before it, at ``limit`` or fewer ticks, is to
    be put there now. ``spare`` says how many handles of ours there may be in the queue of an idle loop.
    """

    __slots__ = ("_before", "_context", "_held", "_loop", "_number", "_ready", "_spare", "markers", "ticks")

    def __init__(
        self, loop: Any, before: Callable[[int], object] | None = None, spare: Callable[[], int] | None = None
    ) -> None:
        self._loop: Final = loop
        self._before: Final = before
        self._context: Final = Context()
        self._spare: Final = spare
        self._ready: Final = getattr(loop, "_ready", None)
        self._held: Final[deque[Callable[[], object]]] = deque()
        self._number = 0
        #: Markers in the queue: none, and the burst is over.
        self.markers = 0
        self.ticks = 0

    def event(self, start: int = 0) -> int | None:
        """An event comes now: its place in ticks, or ``None`` if it is the first since the loop was idle (``start``: its place)."""
        place = self.ticks if self.markers else None
        if place is None:
            self.ticks = start
            self._number += 1
        if self.markers < _MARKERS:
            self._mark(_ROUNDS, self._number)
        return place

    @property
    def number(self) -> int | None:
        """Which burst it is, ``None`` between two."""
        return self._number if self.markers else None

    def end(self) -> None:
        """What comes now is the first of another burst."""
        self.markers = 0

    def after(self, act: Callable[[], object]) -> None:
        """Call ``act``, which brings an event, where a marker is put into the queue next; now, if there is none."""
        if self.markers:
            self._held.append(act)
        else:
            act()

    def _mark(self, rounds: int, number: int) -> None:
        if self._before is not None:
            self._before(self.ticks + self.markers)
        while self._held:
            self._loop.call_soon(self._held.popleft(), context=self._context)
        self.markers += 1
        self._loop.call_soon(self._tick, rounds - 1, number, context=self._context)

    def _tick(self, rounds: int, number: int) -> None:
        if number != self._number:
            return
        self.markers -= 1
        self.ticks += 1
        if self._is_idle():
            self.markers = 0
            self._number += 1
        elif rounds:
            self._mark(rounds, number)
        if self._held and not self.markers:
            self._held.popleft()()  # the first of another burst, in which the others come

    def _is_idle(self) -> bool:
        if self._ready is None:
            return self.ticks >= 3 * (self.markers + 1)
        return len(self._ready) <= self.markers + (0 if self._spare is None else self._spare())


def place() -> int | None:
    """To be asked for each event of a recording that a loop brings (an answer that was awaited, a timer that fires).

    Its place among the events that came close upon one another, in ticks; ``None`` outside a loop and where the loop was idle
    before.
    """
    loop: Any = _get_running_loop()
    if loop is None:
        return None
    burst: Burst | None = getattr(loop, _NAME, None)
    if burst is None:
        burst = Burst(loop)
        setattr(loop, _NAME, burst)
    return burst.event()


def current_burst() -> Burst | None:
    """The burst of the running loop, as ``place`` counts; ``None`` outside any. Its ``number`` says which it is."""
    burst: Burst | None = getattr(_get_running_loop(), _NAME, None)
    return None if burst is None or burst.number is None else burst
