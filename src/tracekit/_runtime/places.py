"""How far each lane of a recording had come when an event happened, as a replay looks it up.

``progress`` says what such a *place* is.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["STEP_WIDTH", "PlaceIndex"]

#: The bytes of a step's number.
STEP_WIDTH: Final = 8


class PlaceIndex:
    """The places of a recording, by lane: how far it may go until which event."""

    __slots__ = (
        "_before",
        "_counts",
        "_ended",
        "_ends",
        "_lane",
        "_lasts",
        "_loops",
        "_stands",
        "_steps",
        "_until",
        "after",
        "ends",
        "most",
        "moved",
    )

    def __init__(self) -> None:
        self._until: Final[dict[int, array[int]]] = {}
        self._counts: Final[dict[int, array[int]]] = {}
        #: The lane of an event, and the other lanes that are held until it has come.
        self._lane: Final[dict[int, int]] = {}
        self._ends: Final[dict[int, list[int]]] = {}
        #: The lanes that ended, or ran something after their end, between the loop's previous event and this one.
        self._ended: Final[dict[int, list[int]]] = {}
        #: The steps of each lane.
        self._steps: Final[dict[int, array[int]]] = {}
        #: How many callbacks of its lane had run before a hop.
        self._before: Final[dict[int, int]] = {}
        self._loops: Final[dict[int, _Reading]] = {}
        #: The lanes that moved before an event of their loop.
        self.moved: Final[set[int]] = set()
        #: How far a lane went after its loop's last event, if known, and whether that loop went on after the end.
        self.after: tuple[int, bool] | None = None
        #: The last event of each loop.
        self._lasts: Final[set[int]] = set()
        #: While places are read, the loop in which each lane was last seen.
        self._stands: Final[dict[int, _Reading]] = {}
        #: The most callbacks that a lane ran since its own last event.
        self.most = 0
        #: Whether the recording says how far the lanes went after the last event.
        self.ends = False

    def __contains__(self, lane: int) -> bool:
        return lane in self._until

    def state(self) -> dict[str, Any]:
        """Return the finished state; ``of_state`` restores it."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> PlaceIndex:
        found = cls()
        for name, value in state.items():
            setattr(found, name, value)
        return found

    def add(self, seq: int, lane: int, place: Mapping[str, Any] | None, *, hop: bool = False) -> None:
        """Add the next event that a loop delivered, in file order. The program may lack a ``hop``."""
        loop = self._moved(place or {})
        if loop.ending:
            self._ended[seq], loop.ending = loop.ending, []
        own, _ = loop.ready.get(lane, (0, 0))
        loop.more.pop(lane, None)
        if lane not in loop.ended:  # otherwise a timer that has outlived its task, whose progress is unknown
            self._enter(loop, lane)
            self._append(lane, seq, own)
            loop.ready[lane] = 0, loop.number + 1
        if hop:
            self._before[seq] = own
            # It may be skipped before its turn, so no earlier event may depend on it.
            for other, (others_own, _) in [item for item in loop.ready.items() if item[0] != lane]:
                self._close(loop, other)
                self._append(other, seq, others_own)
                self._ends.setdefault(seq, []).append(other)
                loop.ready[other] = others_own, loop.number + 1
        self._lane[seq] = lane
        loop.last, loop.number = seq, loop.number + 1

    def left(self, lane: int, place: Mapping[str, Any] | None) -> None:
        """Add the end of a call of ``lane`` that it has left: no event, but the loop's lanes had come as far as its place
        says, and the counts of ``lane`` start again."""
        loop = self._moved(place or {})
        own, _ = loop.ready.get(lane, (0, 0))
        if own:
            loop.more[lane] = own

    def _moved(self, place: Mapping[str, Any]) -> _Reading:
        """Take how far lanes have come, and return the loop in which they have."""
        loop = self._loops.setdefault(place.get("loop", 0), _Reading())
        for key, count in (place.get("lanes") or {}).items():
            other = int(key)
            self._enter(loop, other)
            loop.ended.discard(other)
            count += loop.more.get(other, 0)
            loop.ready[other] = count, loop.number
            self.most = max(self.most, count)
        for key, count in (place.get("ended") or {}).items():
            other = int(key)
            self._enter(loop, other)
            loop.ended.add(other)
            loop.ending.append(other)
            self.most = max(self.most, count + loop.more.get(other, 0))
        return loop

    def finish(self, most: object = None, *, goes_on: bool = False) -> None:
        """Finish: there are no more events. ``most`` is how many callbacks a lane ran after its loop's last event, if
        known; ``goes_on``: a loop was not closed by the end."""
        if type(most) is int:
            self.ends, self.after, self.most = True, (most, goes_on), max(self.most, most)
        for loop in self._loops.values():
            for lane in list(loop.ready):
                self._close(loop, lane)
            self._lasts.add(loop.last)
        self._loops.clear()
        self._stands.clear()

    def _enter(self, loop: _Reading, lane: int) -> None:
        """``lane`` has gone on in ``loop``: since its last event, or that of the loop in which it was before."""
        self.moved.add(lane)
        self._close(self._stands.get(lane, loop), lane)
        self._stands[lane] = loop

    def _close(self, loop: _Reading, lane: int) -> None:
        """``lane`` has gone on since the loop's last event."""
        count, first = loop.ready.pop(lane, (0, loop.number))
        if first < loop.number:
            self._append(lane, loop.last, count)
            self._ends.setdefault(loop.last, []).append(lane)

    def _append(self, lane: int, seq: int, count: int) -> None:
        if lane not in self._until:
            self._until[lane], self._counts[lane] = array("Q"), array("Q")
        self._until[lane].append(seq)
        self._counts[lane].append(count)

    def is_placed(self, seq: int) -> bool:
        """Return whether an event loop delivered event ``seq``."""
        return seq in self._lane

    def is_last(self, seq: int) -> bool:
        """Return whether no later event of its loop is in the recording."""
        return seq in self._lasts

    def of(self, lane: int) -> tuple[array[int], array[int]]:
        """Return events in order, and how many callbacks ``lane`` may run since its own last event before each."""
        return self._until[lane], self._counts[lane]

    def ended_before(self, seq: int) -> Sequence[int]:
        """Return the lanes whose last callbacks ran between the loop's previous event and ``seq``; how many is unknown."""
        return self._ended.get(seq, ())

    def is_own(self, lane: int, seq: int) -> bool:
        return self._lane.get(seq) == lane

    def step(self, seq: int, lane: int) -> None:
        """Add the next step of a lane."""
        self._steps.setdefault(lane, array("Q")).append(seq)

    def all_steps(self, seqs: bytes, lane: int) -> None:
        """Add the next steps of a lane, in ``STEP_WIDTH`` bytes each."""
        self._steps.setdefault(lane, array("Q")).frombytes(seqs)

    def steps_of(self, lane: int) -> Sequence[int]:
        return self._steps.get(lane, ())

    def is_hop(self, seq: int) -> bool:
        return seq in self._before

    def before(self, hop: int) -> int:
        """Return how many callbacks of its lane had run before ``hop``, since the lane's own last event."""
        return self._before.get(hop, 0)

    def held_for(self, seq: int) -> list[int]:
        """Return the lanes that may go on when ``seq`` has come."""
        own = self._lane.get(seq)
        others = self._ends.get(seq, [])
        return others if own is None else [own, *others]


class _Reading:
    """A loop of a recording while its places are read: how far its lanes are, since which of its events, whose task has
    ended, and which of those ended since its latest event; and what lanes had done, since their own latest event, when
    their counts started again."""

    __slots__ = ("ended", "ending", "last", "more", "number", "ready")

    def __init__(self) -> None:
        self.ready: dict[int, tuple[int, int]] = {}
        self.ended: set[int] = set()
        self.ending: list[int] = []
        self.more: dict[int, int] = {}
        self.last = 0
        self.number = 0
