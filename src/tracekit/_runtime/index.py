"""The index of a recorded run: which entries belong together, in which lane, inside which step.

Built in one pass over the file, with a few dozen bytes per entry; the entries themselves stay on disk until they are
needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from typing import Any, ClassVar, Final, NamedTuple

from .._journal.entry import (
    CUT_OFF,
    FAMILIES,
    IN_LOOP,
    LOCK_TAKEN,
    QUEUES,
    READS,
    REFUSALS,
    SIGNALS,
    SINGLES,
    family_of,
    info_of,
)
from .._journal.reader import EntryBlock, Trace
from .._journal.store import beside
from .._native import answered, numbered, siblings
from .lane import CALLBACK, IMPORT, Lane
from .places import STEP_WIDTH, PlaceIndex

__all__ = [
    "EVENT",
    "INTENT",
    "OTHER",
    "READ",
    "SINGLE",
    "Index",
    "LaneKey",
    "gives_anything",
    "module_lane",
]

#: The role of an entry in a replay.
OTHER: Final = 0
INTENT: Final = 1
EVENT: Final = 2
SINGLE: Final = 3
READ: Final = 4

_NOTHING: Final[Mapping[str, Any]] = {}


#: The types that ``Index.take`` handles in blocks: role, the kind of step that it begins, and whether it is a part of
#: one.
_TAKEN: Final = {
    **{types.intent: (INTENT, family, "") for family, types in FAMILIES.items()},
    **{types.outcome: (EVENT, "", "outcome") for types in FAMILIES.values()},
    **{types.error: (EVENT, "", "outcome") for types in FAMILIES.values()},
    **{types.chunk: (EVENT, "", "chunk") for types in FAMILIES.values()},
    **{kind: (SINGLE, kind, "") for kind in SINGLES - REFUSALS},
    **dict.fromkeys(READS, (READ, "", "")),
    "blob": (OTHER, "", ""),
}
_NUMBERS: Final = tuple((kind, number) for number, kind in enumerate(_TAKEN, 1))
#: The same, by number.
_ROLES: Final = bytes([OTHER, *(role for role, _, _ in _TAKEN.values())]).ljust(256, b"\0")
_FAMILIES: Final = ("", *(family for _, family, _ in _TAKEN.values()))
_CHUNKS: Final = bytes([0, *(part == "chunk" for _, _, part in _TAKEN.values())]).ljust(256, b"\0")
_OF_STEP: Final = bytes([0, *(part != "" for _, _, part in _TAKEN.values())]).ljust(256, b"\0")
_IS_EVENT: Final = bytes(role == EVENT for role in range(256))
_IS_STEP: Final = bytes(role in (INTENT, SINGLE) for role in range(256))
_NOT_BEGINNING: Final = bytes(number for number in range(256) if not _IS_STEP[_ROLES[number]])
#: For each number, a table that translates that one to 1, and the others to 0.
_IS_NUMBER: Final = [bytes(number) + b"\1" + bytes(255 - number) for number in range(len(_FAMILIES))]
#: The bytes of a ``seq`` in an array.
_WIDTH: Final = array("I").itemsize
#: Shorter ranges of entries are handled one by one.
_MIN_RANGE: Final = 8


class LaneKey(NamedTuple):
    """A lane's identity: the parent lane's number, the name, the number among those of that name, the live step it is
    under."""

    parent: int
    name: str
    n: int
    under: int


def module_lane(lane: Lane) -> LaneKey:
    """Return the identity of the lane in which a module is executed."""
    return LaneKey(0, lane.name, lane.n, lane.under)


def _modules_of(printed: Any) -> Iterator[str]:
    """Yield the paths of the lanes of modules, of the paths of lanes that have printed; a trace may contain anything."""
    for path in printed if isinstance(printed, dict) else ():
        above, found, below = path.partition(f"/{IMPORT}")
        if found:
            yield above + found + below.partition("/")[0]


class Index:
    """Built from all entries in order; every array is indexed by ``seq``.

    ``role`` is an entry's role; ``answer`` maps an intent record to its outcome (0 if there is none) and a chunk or
    outcome to its intent record; ``next_chunk`` maps an intent record to its first chunk, and each chunk to the next;
    ``lane`` is the lane. ``intents`` has the steps in order, by lane and kind; ``items`` has everything that happened
    in a lane.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.role: Final = bytearray(1)
        self.lane: Final = array("I", [0])
        self.answer: Final = array("I", [0])
        self.next_chunk: Final = array("I", [0])
        self.intents: Final[dict[tuple[int, str], array[int]]] = {}
        #: The entries of each lane that has any.
        self.items: Final[dict[int, array[int]]] = {}
        #: Timers that fired, by lane, function, the lane's previous step, and number since; see ``Lane.armed``.
        self.timers: Final[dict[tuple[int, str, int, int], int]] = {}
        #: Events that a program may go on without, with their lanes: the beginning and the result of a call in a thread
        #: in which nothing was captured (with the calling lane), and what packages moved in queues.
        self.hops: Final[dict[int, int]] = {}
        #: What belongs to a hop, by its result or its beginning; and the hops of a lane.
        self.hop_calls: Final[dict[int, int]] = {}
        #: Library calls in threads that a cancellation cut off, with their names, by lane and previous step.
        self.cut_off: Final[dict[tuple[int, int], dict[int, str]]] = {}
        self.hops_of: Final[dict[int, list[int]]] = {}
        #: For each lock that was taken after another thread, where that had taken it: a key of a timer.
        self.following: Final[dict[int, tuple[int, str, int, int]]] = {}
        self.followed: Final[set[tuple[int, str, int, int]]] = set()
        #: The calls that threads handed to event loops, and whose results they no longer took: keys of timers.
        self.given_up: Final[set[tuple[int, str, int, int]]] = set()
        #: The calls of signal handlers, in order.
        self.signals: Final[list[int]] = []
        self.lanes: Final[dict[LaneKey, int]] = {}
        #: The paths of the lanes of modules in which something was printed: such a lane may have no entry.
        self.printing: Final[set[str]] = set()
        #: The lane in which the program itself ran, and the lanes around it that have started the next one and done
        #: nothing else: a middleware's task, a test runner's.
        self.line, self.line_is_task = 0, False
        self.around: Final[set[int]] = set()
        self._parents: Final[set[int]] = set()
        #: The lanes that have gone on while one that they had started was running, and so are not around it; what tells,
        #: by lane: the one that it started, and how far it had come then; and the lanes that have ended.
        self._busy: Final[set[int]] = set()
        self._begun: Final[dict[int, tuple[int, int]]] = {}
        self._over: Final[set[int]] = set()
        #: What packages have moved in queues.
        self._beside: Final[set[int]] = set()
        self.identities: Final[dict[str, int]] = {}
        #: Initial states of the run, by name.
        self.snapshots: Final[dict[str, int]] = {}
        #: Where the run was resumed, and for how long (ns) no process had run it before.
        self.gaps: Final[list[tuple[int, int]]] = []
        #: Inputs read from outside, by kind and name.
        self.inputs: Final[dict[tuple[str, str], list[int]]] = {}
        self.events: Final = array("I")
        #: All intent records and steps of one entry, in order.
        self.steps: Final = array("I")
        #: The places of events that an event loop delivered.
        self.places: Final = PlaceIndex()
        self.abandoned: Final[set[int]] = set()
        #: Whether something arrived from another thread or task than the one that owns its context.
        self.has_callbacks = False
        #: Intent records that a resumed run repeated.
        self.repeated: Final[set[int]] = set()
        #: Outcomes replaced by a later one: a person has settled the step.
        self.overridden: Final[set[int]] = set()
        #: Steps that began after others had gone on in parallel; see ``Resumption.make``.
        self.waited: Final[set[int]] = set()
        #: The step that undid another, by the latter.
        self.compensations: Final[dict[int, int]] = {}
        #: Calls that were refused: an error is in place of their intent record.
        self.refused: Final[set[int]] = set()
        self._parent: Final = array("I", [0])
        self._first_child: Final = array("I", [0])
        self._next_sibling: Final = array("I", [0])
        self._last_chunk: dict[int, int] = {}
        self._last: Mapping[str, Any] = _NOTHING
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self.role) - 1

    # -- building ------------------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, path: str) -> Index:
        return cls()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry."""
        self._last = entry
        seq, kind, lane = entry["seq"], entry["type"], entry["lane"]
        self.lane.append(lane)
        self.answer.append(0)
        self.next_chunk.append(0)
        self._first_child.append(0)
        parent = entry.get("parent", 0)
        self._parent.append(parent)
        self._next_sibling.append(self._first_child[parent] if parent else 0)
        if parent:
            self._first_child[parent] = seq
        self.role.append(self._role(seq, kind, lane, entry))
        if self.role[seq] != OTHER:
            self._append(self.items, lane, seq)
        if self.role[seq] in (INTENT, SINGLE):
            self.steps.append(seq)
            self.places.step(seq, lane)

    #: See ``reader.BlockCollector``; the keys that ``add`` looks for in the ``meta`` of the types handled in blocks.
    watched: ClassVar = (b"compensates", b"waited", b"abandoned", b"collected", b"suspended")

    def take(self, block: EntryBlock, marks: int, load: Callable[[int], dict[str, Any]]) -> None:
        """Take the entries of a block, the usual ones all at once: equivalent to ``add`` for each."""
        kinds = block.kinds(_NUMBERS)
        for start, end in block.stretches(kinds, marks):
            if start:
                self.add(block.entry(start - 1))
            if end - start > _MIN_RANGE:
                self._take(block, kinds, start, end)
            else:
                for at in range(start, end):
                    self.add(block.entry(at))
        self._last = block.entry(len(block) - 1)

    def _take(self, block: EntryBlock, kinds: bytes, start: int, end: int) -> None:
        kinds, lanes = kinds[start:end], block.lanes[start:end]
        roles, seqs = kinds.translate(_ROLES), range(block.first + start, block.first + end)
        nothing = array("I", bytes(self.lane.itemsize * len(kinds)))
        self.role.extend(roles)
        self.lane.extend(lanes)
        for column in (self.answer, self.next_chunk, self._first_child):
            column.extend(nothing)
        first = seqs.start
        self._parent.extend(block.parents[start:end])
        self._next_sibling.frombytes(siblings(self._first_child, first, block.parents[start:end]))
        self._take_ends(kinds, seqs, block.steps[start:end])
        self.events.frombytes(numbered(first, roles.translate(_IS_EVENT), _WIDTH))
        begun = roles.translate(_IS_STEP)
        self.steps.frombytes(numbered(first, begun, _WIDTH))
        if lanes.count(lanes[0]) == len(lanes):
            lane = lanes[0]
            if items := numbered(first, roles, _WIDTH):
                self.items.setdefault(lane, array("I")).frombytes(items)
            for number in {*kinds.translate(None, _NOT_BEGINNING)}:
                found = numbered(first, kinds.translate(_IS_NUMBER[number]), _WIDTH)
                self.intents.setdefault((lane, _FAMILIES[number]), array("I")).frombytes(found)
            if 1 in begun:
                self.places.all_steps(numbered(first, begun, STEP_WIDTH), lane)
            return
        for seq, lane, role, number in zip(seqs, lanes, roles, kinds, strict=True):
            if role != OTHER:
                self._append(self.items, lane, seq)
            if role in (INTENT, SINGLE):
                self._append(self.intents, (lane, _FAMILIES[number]), seq)
                self.places.step(seq, lane)

    def _take_ends(self, kinds: bytes, seqs: range, steps: array[int]) -> None:
        """Take chunks and outcomes, as ``_step`` does."""
        answer, last_chunk = self.answer, self._last_chunk
        of_step = kinds.translate(_OF_STEP)
        if not (last_chunk or self.repeated or 1 in kinds.translate(_CHUNKS)):  # mostly so
            self.overridden.update(answered(answer, seqs.start, steps, of_step))
            return
        for seq, step, is_chunk in compress(zip(seqs, steps, kinds.translate(_CHUNKS), strict=True), of_step):
            if is_chunk:
                self.next_chunk[last_chunk.get(step, step)] = seq
                last_chunk[step] = seq
            else:
                if answer[step]:
                    self.overridden.add(answer[step])
                answer[step] = seq
                if last_chunk:
                    last_chunk.pop(step, None)
                self.repeated.discard(step)
            answer[seq] = step

    def _role(self, seq: int, kind: str, lane: int, entry: Mapping[str, Any]) -> int:
        family = family_of(kind)
        if family is not None:
            return self._step(seq, lane, family[0], family[1], entry)
        if kind in REFUSALS:
            refused = info_of(entry).get("family")
            if refused is not None:
                self.refused.add(seq)
                self._append(self.intents, (lane, refused), seq)
                return INTENT
        if kind in SINGLES:
            self._append(self.intents, (lane, kind), seq)
            return SINGLE
        if kind == "lane":
            about = entry["input"]
            self.lanes[LaneKey(about["parent"], about["name"], about["n"], about.get("under", 0))] = about["id"]
            self.has_callbacks = self.has_callbacks or about["name"] == CALLBACK
            if type(about.get("since")) is int:
                self._begun.setdefault(about["parent"], (about["id"], about["since"]))
            return OTHER
        if kind == "input":
            self.inputs.setdefault((str(entry.get("name")), str(entry["input"].get("name"))), []).append(seq)
            return OTHER
        if kind == "recovery.started":
            self.gaps.append((seq, max(0, (entry.get("meta") or _NOTHING).get("gap_ns") or 0)))
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
            return self._timer(seq, lane, entry)
        return OTHER

    def _timer(self, seq: int, lane: int, entry: Mapping[str, Any]) -> int:
        """Take the entry of a timer, or of another event that was expected as one is."""
        about = entry["input"]
        name, call = entry["name"], about.get("call")
        self.timers[lane, name if call is None else f"{name}:{call}", about.get("after", 0), about["n"]] = seq
        if name == LOCK_TAKEN:
            lane_before, function, after, n = about["following"]
            before = self.following[seq] = lane_before, function, after, n
            self.followed.add(before)
            return OTHER
        if name in SIGNALS:
            self.signals.append(seq)
        elif "given_up" in about:
            lane_before, function, after, n = about["given_up"]
            self.given_up.add((lane_before, function, after, n))
        if name in QUEUES and call is not None:
            self.hops[seq] = lane
            self._beside.add(seq)
        if name == CUT_OFF:
            self.cut_off.setdefault((lane, about.get("after", 0)), {})[seq] = call
            return OTHER
        if name in IN_LOOP:
            hop = about.get("hop")
            if type(hop) is int:
                self.hops[seq] = lane
                if hop:
                    self.hop_calls[seq] = hop
            self._place(seq, lane, entry, hop=hop is not None)
        return self._event(seq)

    def _step(self, seq: int, lane: int, family: str, role: str, entry: Mapping[str, Any]) -> int:
        if role == "intent":
            self._append(self.intents, (lane, family), seq)
            info = (entry.get("meta") or _NOTHING).get("info")
            if info:
                if type(info.get("compensates")) is int:
                    self.compensations[info["compensates"]] = seq
                if info.get("waited"):
                    self.waited.add(seq)
            return INTENT
        step = entry["step"]
        if role == "chunk":
            self.next_chunk[self._last_chunk.get(step, step)] = seq
            self._last_chunk[step] = seq
        else:
            if self.answer[step]:
                self.overridden.add(self.answer[step])
            self.answer[step] = seq
            self._last_chunk.pop(step, None)
            if role == "skipped" and "output" not in entry and "error" not in entry:
                self.repeated.add(step)
                return OTHER
            self.repeated.discard(step)  # a person had given it up, and later supplied its output
            meta = entry.get("meta")
            if meta and (meta.get("abandoned") or meta.get("collected")):
                # Nothing waits for it: the caller had left, or it was collected by a finalizer, which runs at any time.
                # It is not an event of the simulation, but shows how far the lanes of its loop had come.
                self.abandoned.add(seq)
                self.answer[seq] = step
                if "suspended" in meta and family != "span":
                    self._place(seq, lane, entry, left=True)
                return EVENT
        self.answer[seq] = step
        meta = entry.get("meta")
        if meta and "suspended" in meta and family != "span":
            # Nothing can be held until an event that comes as soon as the step around it is answered.
            self._place(seq, lane, entry, left=self._is_inside(step))
        return self._event(seq)

    def _is_inside(self, step: int) -> bool:
        """Return whether a step was made inside another one that a replay answers, so that the replay does not make it."""
        above = self._parent[step]
        while above:
            if self.role[above] == INTENT and not self._is_span(above):
                return True
            above = self._parent[above]
        return False

    def _is_span(self, step: int) -> bool:
        spans = self.intents.get((self.lane[step], "span"), ())
        i = bisect_left(spans, step)
        return i < len(spans) and spans[i] == step

    def _place(self, seq: int, lane: int, entry: Mapping[str, Any], *, hop: bool = False, left: bool = False) -> None:
        place = entry.get("place")
        if left:
            self.places.left(lane, place)
        else:
            self.places.add(seq, lane, place, hop=hop)
        for key, count in ((place or _NOTHING).get("lanes") or _NOTHING).items():
            started, since = self._begun.get(int(key), (0, count))
            if count > since and started not in self._over:
                self._busy.add(int(key))
        self._over.update(int(key) for key in (place or _NOTHING).get("ended") or ())

    def _event(self, seq: int) -> int:
        self.events.append(seq)
        return EVENT

    def _find_line(self) -> None:
        children: dict[int, list[tuple[int, int]]] = {}
        for key, lane in self.lanes.items():
            if not key.name.startswith(IMPORT):
                children.setdefault(key.parent, []).append((lane, key.under))
        timers = {(lane, function): seq for (lane, function, _, _), seq in self.timers.items()}
        names = {lane: key.name for key, lane in self.lanes.items()}
        while self.line not in self._busy and len(found := children.get(self.line, [])) == 1 and not found[0][1]:
            inner, items = found[0][0], self.items.get(self.line, ())
            result = timers.get((self.line, f"future.arrival:{names[inner]}"))
            begins = timers.get((inner, "future.begin"))
            if [*items] != ([] if result is None else [result]):
                break
            self.around.add(self.line)
            self.line, self.line_is_task = inner, result is None and begins is None
            # A call in a thread is around the program like a task: a replay may do without its beginning and its result.
            self.hops.update((seq, self.lane[seq]) for seq in (begins, result) if seq is not None)

    def _find_hops(self) -> None:
        self._parents.update(key.parent for key in self.lanes)
        for (lane, function, _, _), seq in self.timers.items():
            if function == "future.begin" and all(item == seq or item in self._beside for item in self.items[lane]):
                self.hop_calls[seq] = lane
        called = {*self.hop_calls.values()}
        callers = {lane: key.parent for key, lane in self.lanes.items() if lane in called}
        for seq, lane in self.hop_calls.items():
            self.hops.setdefault(seq, callers.get(lane, 0))
        for seq in sorted(self.hops):
            self.hops_of.setdefault(self.hops[seq], []).append(seq)

    @staticmethod
    def _append(lists: dict[Any, array[int]], key: Any, seq: int) -> None:
        found = lists.get(key)
        if found is None:
            found = lists[key] = array("I")
        found.append(seq)

    def finish(self) -> Index:
        """Finish; called once, after the last entry."""
        if self._last is not _NOTHING:
            meta = self._last.get("meta") or _NOTHING
            self._last = _NOTHING
            self._last_chunk.clear()
            self.printing.update(_modules_of(meta.get("printed")))
            self.places.finish(meta.get("callbacks"), goes_on=bool(meta.get("loop_goes_on")))
            self._find_line()
            self._find_hops()
        return self

    # -- keeping -------------------------------------------------------------------------------------------------------

    #: See ``reader.KeptCollector``.
    made_by: ClassVar = (__name__, "tracekit._runtime.places", "tracekit._journal.entry")

    def state(self) -> dict[str, Any]:
        self.finish()
        return {**vars(self), "places": self.places.state(), "_last": None}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Index:
        found = cls.__new__(cls)
        vars(found).update(state, places=PlaceIndex.of_state(state["places"]), _last=_NOTHING)
        vars(found)["lanes"] = {LaneKey(*key): lane for key, lane in state["lanes"].items()}
        return found

    # -- asking --------------------------------------------------------------------------------------------------------

    def captured(self, lane: int) -> bool:
        """Return whether anything was captured in a lane, or in one that it started, other than clock reads of
        libraries and queue operations of packages."""
        items = self.items.get(lane, ())
        return lane in self._parents or any(self.role[seq] != READ and seq not in self._beside for seq in items)

    @property
    def supplies(self) -> bool:
        """Whether a replay has anything to give to the program: a step, a read, an input or an initial state."""
        return any(self.role) or bool(self.inputs) or bool(self.snapshots)

    def outcomes(self, step: int) -> Iterator[int]:
        """Yield the chunks and the outcome of a step, as far as logged."""
        piece = self.next_chunk[step]
        while piece:
            yield piece
            piece = self.next_chunk[piece]
        if self.answer[step]:
            yield self.answer[step]

    def answered_within(self, seq: int, trace: Trace) -> int:
        """Return the step, answered in a replay without running its body, during which entry ``seq`` was written; 0 if
        there is none."""
        found, above = 0, trace.entry(seq).get("parent", 0)
        while above:
            entry = trace.entry(above)
            if self.role[above] == INTENT and entry["type"] != "span.start":
                found = above
            above = entry.get("parent", 0)
        return found

    def step_between(self, first: int, last: int) -> bool:
        """Return whether there is a step, or an outcome, between two entries."""
        return any(self.role[seq] in (INTENT, EVENT, SINGLE) for seq in range(first + 1, last))

    def others_between(self, start: int, end: int) -> bool:
        """Return whether another lane made steps between two entries of one lane."""
        lane, inside = self.lane[start], set(self.inside(start))
        return any(
            self.lane[seq] != lane and seq not in inside and self.role[seq] in (INTENT, EVENT, SINGLE)
            for seq in range(start + 1, end)
        )

    def inside(self, step: int) -> Iterator[int]:
        """Yield every entry inside ``step``, in any lane, except its own chunks and outcome."""
        stack = [step]
        while stack:
            child = self._first_child[stack.pop()]
            while child:
                if self.answer[child] != step or self.role[child] != EVENT:
                    yield child
                    if self._first_child[child]:
                        stack.append(child)
                child = self._next_sibling[child]


def gives_anything(path: str) -> bool:
    """Return whether a replay of the run in this file has anything to give to the program: a step, a read, an input, or
    a child process.

    If not, nothing was captured, and the replay fails.
    """
    if beside(path):
        return True
    with Trace(path) as trace:
        trace.check()
        return trace.collected(Index).finish().supplies
