"""The index of a recorded run: who answers whom, in which lane, inside what.

One pass over the file, a few dozen bytes an entry; the entries themselves stay on disk until they are asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from .._journal.entry import READS, REFUSALS, SINGLES, family_of

__all__ = ["EVENT", "INTENTION", "OTHER", "READ", "SINGLE", "Index", "LaneKey"]

#: What an entry is to a replay.
OTHER: Final = 0
INTENTION: Final = 1
EVENT: Final = 2
SINGLE: Final = 3
READ: Final = 4
#: What threads do to one another, by the names of its entries: none of a loop's events.
HAND_OVERS: Final = frozenset(("future.begin", "future.wait", "queue.get", "queue.put", "queue.miss"))

#: Those that move an item of a queue.
QUEUES: Final = frozenset(("queue.get", "queue.put", "queue.miss"))

_NOTHING: Final[Mapping[str, Any]] = {}


class LaneKey(NamedTuple):
    """A lane's identity: the parent lane's number, the name, the how-manieth of that name, the live step it is under."""

    parent: int
    name: str
    n: int
    under: int


class Index:
    """Built from all entries in order; every array is addressed by ``seq``.

    ``role`` says what an entry is; ``answer`` leads from an intention to its outcome (0 where there is none) and from a chunk
    or outcome to its intention; ``next_chunk`` from an intention to its first chunk and on; ``lane`` to the lane.
    ``intentions`` holds, by lane and kind, the steps in order; ``items`` everything that happened in a lane.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self.role: Final = bytearray(1)
        self.lane: Final = array("I", [0])
        self.answer: Final = array("I", [0])
        self.next_chunk: Final = array("I", [0])
        self.intentions: Final[dict[tuple[int, str], array[int]]] = {}
        self.items: Final[dict[int, array[int]]] = {}
        #: Timers that fired, by lane, function, the lane's step before, and number since; see ``Lane.armed``.
        self.timers: Final[dict[tuple[int, str, int, int], int]] = {}
        self.lanes: Final[dict[LaneKey, int]] = {}
        self.identities: Final[dict[str, int]] = {}
        #: States that the run started from, by name.
        self.snapshots: Final[dict[str, int]] = {}
        self.events: Final = array("I")
        #: Every intention and step of one entry, in order.
        self.steps: Final = array("I")
        #: How each event came, parallel to ``events``; see ``Schedule``.
        self.near: Final = bytearray()
        self.abandoned: Final[set[int]] = set()
        #: Intentions that a resumed run made again.
        self.repeated: Final[set[int]] = set()
        #: Outcomes that a later one took the place of: a person has settled the step.
        self.overruled: Final[set[int]] = set()
        #: Steps that began after others had gone on beside them; see ``Resumption.make``.
        self.waited: Final[set[int]] = set()
        #: The step that undid another, by that.
        self.compensations: Final[dict[int, int]] = {}
        #: Calls that were not made: an error stands in their intention's place.
        self.refused: Final[set[int]] = set()
        self._first_child: Final = array("I", [0])
        self._next_sibling: Final = array("I", [0])
        #: The places of events that are asked for earlier than they came; see ``_gather``.
        self.moved: Final[dict[int, int]] = {}
        self._arrived: list[tuple[int, int]] = []
        self._last_chunk: dict[int, int] = {}
        for entry in entries:
            self._add(entry)
        del self._last_chunk
        self._gather()

    def __len__(self) -> int:
        return len(self.role) - 1

    # -- building --------------------------------------------------------------------------------------------------------

    def _add(self, entry: Mapping[str, Any]) -> None:
        seq, kind, lane = entry["seq"], entry["type"], entry["lane"]
        self.lane.append(lane)
        self.answer.append(0)
        self.next_chunk.append(0)
        self._first_child.append(0)
        parent = entry.get("parent", 0)
        self._next_sibling.append(self._first_child[parent] if parent else 0)
        if parent:
            self._first_child[parent] = seq
        self.role.append(self._role(seq, kind, lane, entry))
        if self.role[seq] != OTHER:
            self._append(self.items, lane, seq)
        if self.role[seq] in (INTENTION, SINGLE):
            self.steps.append(seq)

    def _role(self, seq: int, kind: str, lane: int, entry: Mapping[str, Any]) -> int:
        family = family_of(kind)
        if family is not None:
            return self._step(seq, lane, family[0], family[1], entry)
        if kind in REFUSALS:
            refused = ((entry.get("meta") or {}).get("info") or {}).get("family")
            if refused is not None:
                self.refused.add(seq)
                self._append(self.intentions, (lane, refused), seq)
                return INTENTION
        if kind in SINGLES:
            self._append(self.intentions, (lane, kind), seq)
            return SINGLE
        if kind == "lane":
            about = entry["input"]
            self.lanes[LaneKey(about["parent"], about["name"], about["n"], about.get("under", 0))] = about["id"]
            return OTHER
        if kind == "identity":
            self.identities.setdefault(entry["agent_id"], seq)
            return OTHER
        if kind in READS:
            if "values" in entry:
                return READ
            if "output" in entry:
                self.snapshots.setdefault(entry["name"], seq)
                return OTHER
            about = entry["input"]
            self.timers[lane, entry["name"], about.get("after", 0), about["n"]] = seq
            if entry["name"] == "future.arrival":
                self._arrived.append((seq, about.get("of", -1)))
            return self._event(seq, 0 if entry["name"] in HAND_OVERS else _near(entry.get("meta") or {}))
        return OTHER

    def _step(self, seq: int, lane: int, family: str, role: str, entry: Mapping[str, Any]) -> int:
        if role == "intention":
            self._append(self.intentions, (lane, family), seq)
            info = (entry.get("meta") or _NOTHING).get("info")
            if info:
                if type(info.get("compensates")) is int:
                    self.compensations[info["compensates"]] = seq
                if info.get("waited"):
                    self.waited.add(seq)
            return INTENTION
        step = entry["step"]
        if role == "chunk":
            self.next_chunk[self._last_chunk.get(step, step)] = seq
            self._last_chunk[step] = seq
        else:
            if self.answer[step]:
                self.overruled.add(self.answer[step])
            self.answer[step] = seq
            self._last_chunk.pop(step, None)
            if role == "skipped" and "output" not in entry and "error" not in entry:
                self.repeated.add(step)
                return OTHER
            self.repeated.discard(step)  # a person had given it up, and then said what it gave
            meta = entry.get("meta")
            if meta and meta.get("abandoned"):
                # Nobody waits for it: the caller had left. It is no event of the simulation.
                self.abandoned.add(seq)
                self.answer[seq] = step
                return EVENT
        self.answer[seq] = step
        meta = entry.get("meta")
        return self._event(seq, _near(meta) if meta and "suspended" in meta else 0)

    def _event(self, seq: int, near: int) -> int:
        self.events.append(seq)
        self.near.append(near)
        return EVENT

    def _gather(self) -> None:
        """Put what a thread did for an arrival in a burst before the burst: a loop gets the whole burst before it goes on.

        The events keep the places that they have between them, and change them among themselves.
        """
        events, near, order = self.events, self.near, None
        for seq, lane in self._arrived:
            last = bisect_left(events, seq)
            if near[last] < 2:
                continue
            first = last - 1
            while first > 0 and near[first] != 1:
                first -= 1
            order = order or list(events)
            span = range(first, last)
            before = [i for i in span if near[i] == 0 and self.lane[order[i]] == lane]
            if before:
                chosen = set(before)
                places = before + [i for i in span if i not in chosen]
                order[first:last] = [order[i] for i in places]
                near[first:last] = bytes(near[i] for i in places)
        if order is not None:
            self.moved.update((seq, place) for seq, place in zip(order, events, strict=True) if seq != place)

    @staticmethod
    def _append(lists: dict[Any, array[int]], key: Any, seq: int) -> None:
        found = lists.get(key)
        if found is None:
            found = lists[key] = array("I")
        found.append(seq)

    # -- asking ----------------------------------------------------------------------------------------------------------

    def inside(self, step: int) -> Iterator[int]:
        """Every entry that happened inside ``step``, in any lane, its own chunks and outcome left out."""
        stack = [step]
        while stack:
            child = self._first_child[stack.pop()]
            while child:
                if self.answer[child] != step or self.role[child] != EVENT:
                    yield child
                    if self._first_child[child]:
                        stack.append(child)
                child = self._next_sibling[child]


def _near(meta: Mapping[str, Any]) -> int:
    """How an event that a loop brought came: 1 by itself, else 2 and its place among those it came with."""
    burst = meta.get("burst")
    return 1 if burst is None else min(255, 2 + int(burst))
