"""The session that replays: each step is matched with the recorded one, and answered from the log."""

from __future__ import annotations

import sys
import threading
from _thread import get_native_id
from array import array
from binascii import a2b_base64
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, NoReturn, Protocol, TypeVar

from orjson import loads

from .._journal.entry import CUT_OFF, IN_LOOP, QUEUES, READS, REFUSALS, SINGLES, family_of, read_by_library
from .._journal.reader import TAIL, Trace
from .._journal.store import beside, shown_as
from .._journal.vault import KEY_VARIABLE
from .._reality import running_loop
from .._values import dumps, exception_from_json, fingerprint, from_json, quick, shortfalls, to_json
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    InexactReplayError,
    InexactReplayWarning,
    NotReplayableError,
    ReplayError,
    RunEndedError,
    TracekitError,
)
from . import divergence
from .callsite import at_prompt, caller, say, warn_of_replay
from .divergence import OPAQUE, Ignored, differences, nearest, steady
from .encoding import oversized, stand_in
from .inputs import LeftStates, OwnFiles, ReplayedInputs
from .lane import CALLBACK, Lane
from .mutations import CalledWith, Linking, grafted, state_hash
from .process import process
from .progress import PlaceIndex
from .redaction import STAND_IN, Originals, Redactor, marks_of
from .schedule import Schedule, can_go_on, go_on
from .session import Log, Outcome, Refusal, RunState, Scope, Step, Timer, here
from .step import Circumstances, Patterns, RenderedSpec, Request, Spec
from .threads import others_run_user_code
from .verdict import Report

if TYPE_CHECKING:
    from .progress import Progress
    from .schedule import Ticket
    from .spending import Budget, Spending

__all__ = [
    "EVENT",
    "INTENT",
    "NEEDED",
    "OTHER",
    "READ",
    "SINGLE",
    "Bindings",
    "Index",
    "LaneKey",
    "LaneState",
    "Placeholders",
    "Replay",
    "ReplayedStep",
    "ReplayedTimer",
    "for_replay",
]

# -- replayed ----------------------------------------------------------------------------------------------------------
#
# Steps and timers that the log answers.


class ReplayedStep(Step):
    """A step answered from the log; see ``session.Step``. The body of a structural one runs, and only its end is matched."""

    __slots__ = ("_chunk", "_inside", "called", "given", "live", "request", "scope", "seq", "session", "spec")

    deferred: Final = False

    def __init__(self, session: Replay, scope: Scope, request: Request, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq: Final = seq
        #: Its arguments, and how they were when it was called, where the recorded call changed them.
        self.given: Any = None if request.spec.mutates is None else request.input
        self.called: CalledWith | None = None
        self.live: Final = request.spec.structural
        self._chunk = session.index.next_chunk[seq]
        self._inside: Spending | None = None

    def body(self) -> Scope:
        inside = self.scope.inside(self.seq, live=not self.spec.structural)
        if self.spec.budget is None or not inside.session.state.live:
            return inside
        return inside.within(self._budget(self.spec.budget))

    def _budget(self, budget: Budget) -> Spending:
        """In a run that is resumed the body may go live: it starts with what the log says was spent in it."""
        if self._inside is None:
            self._inside = budget.opened(self.spec.name, self.scope.spending)
        return self._inside

    def holds(self, instance: object) -> None:
        if isinstance(self.given, dict):
            self.given = {**self.given, "self": instance}

    def resumed(self) -> None:
        pass

    def _look(self, seq: int) -> None:
        """Keep how the arguments are, where the recorded call goes on to change them or return them."""
        if isinstance(self.given, dict) and b'"arguments":' in self.session.trace.line(seq):
            self.session.called(self, CalledWith(self.given, self.spec.mutates or ()))

    def answer(self) -> Outcome:
        seq = self._outcome()
        self._look(seq)
        if self.seq in self.session.index.waited:
            self.session.let_others_go_on(seq)
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def answer_async(self) -> Outcome:
        seq = self._outcome()
        self._look(seq)
        lane = self._reader() if self.session.index.next_chunk[self.seq] else self.scope.lane
        await self.session.schedule.wait_async(seq, self._suspended(seq), lane)
        return self.session.outcome(self, seq)

    def _reader(self) -> Lane:
        """The lane of who takes a piece of it, or finds its end."""
        scope = here()
        return self.scope.lane if scope is None or scope.session.state is not self.session.face.state else scope.lane

    def next_chunk(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        self._look(seq)
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def next_chunk_async(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        self._look(seq)
        await self.session.schedule.wait_async(seq, self._suspended(seq), self._reader())
        return self.session.outcome(self, seq)

    def upcoming(self) -> Mapping[str, Any] | None:
        seq = self._chunk or self.session.index.answer[self.seq]
        if not seq:
            return None
        return self.session._whole(self.session.trace.entry(seq))

    def rest(self) -> Iterator[Outcome]:
        session, seq = self.session, self._chunk
        while seq:
            yield session.decoded(self.spec, seq)
            seq = session.index.next_chunk[seq]
        if session.index.answer[self.seq]:
            yield session.decoded(self.spec, session.index.answer[self.seq])

    def on_next(self, then: Callable[[Outcome], object]) -> Callable[[], object]:
        session = self.session
        seq = self._advance()

        def arrive() -> None:
            try:
                session.going()
                found = session.outcome(self, seq)
            except ReplayError as failure:
                found = Outcome(None, failure, _NOTHING, _NOTHING)
            then(found)

        ticket = session.schedule.callback(seq, arrive, lane=self.scope.lane)
        return lambda: session.schedule.cancel(ticket)

    def take_next(self) -> Outcome:
        seq = self._advance()
        self.session.schedule.skip(seq)
        return self.session.outcome(self, seq)

    def _advance(self) -> int:
        """The next chunk, else the outcome."""
        seq = self._chunk
        if seq:
            self._chunk = self.session.index.next_chunk[seq]
        else:
            seq = self._outcome()
        self._look(seq)
        return seq

    def alike(self, recorded: object, actual: object) -> bool:
        return self.session.alike(recorded, actual)

    def ahead(self, key: str) -> str | None:
        session = self.session
        seq = self._chunk or session.index.answer[self.seq]
        if not seq or b'"%b":' % key.encode() not in session.trace.line(seq):
            return None
        found = (session.trace.entry(seq).get("meta") or {}).get(key)
        return found if isinstance(found, str) else None

    def _outcome(self) -> int:
        session = self.session
        seq = session.index.answer[self.seq]
        if seq == 0:
            raise session.fail(divergence.ends_inside(session.run_id, self.seq, self.spec.family, self.spec.name))
        return seq

    def _suspended(self, seq: int) -> bool:
        trace = self.session.trace
        line = trace.line(seq)
        if b'"suspended":' in line and bool((trace.entry(seq).get("meta") or {}).get("suspended")):
            return True
        if b'"settled":' in line and "settled" in ((trace.entry(seq).get("meta") or {}).get("info") or {}):
            return True  # by a person, after everything that went on beside it
        return self.seq in self.session.index.waited

    # -- structural steps ------------------------------------------------------------------------------------------------

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        seq = self._chunk
        if seq and self.session.failure is None:
            self._chunk = self.session.index.next_chunk[seq]
            self.session.schedule.skip(seq)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self._end()

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._end()

    def _end(self) -> None:
        session = self.session
        seq = session.index.answer[self.seq]
        if seq and session.failure is None:
            session.schedule.skip(seq)
            session.passed(self._reader() if session.index.next_chunk[self.seq] else self.scope.lane, seq)


class ReplayedTimer(Timer):
    """A sleep or deadline that fires at its recorded place, or never; see ``session.Timer``."""

    __slots__ = ("_lane", "_seq", "_session", "_ticket", "on_delivery")

    live: Final = False
    pending: Final = False

    def __init__(self, session: Replay, seq: int | None, lane: Lane) -> None:
        self._session = session
        self._seq = seq
        self._lane = lane
        self._ticket: Ticket | None = None
        #: Called when it fires, before whoever waits for it goes on.
        self.on_delivery: Callable[[], object] | None = None

    @property
    def comes(self) -> bool:
        """Whether it fired in the recording."""
        return self._seq is not None

    @property
    def about(self) -> Mapping[str, Any]:
        """What was recorded beside it."""
        return {} if self._seq is None else self._session.trace.entry(self._seq)["input"]

    def from_outside(self) -> None:
        """Another process brings it about: it is waited for."""
        if self._seq is not None:
            self._session.schedule.brings(self._seq, self._lane, outside=True)

    def from_thread(self) -> None:
        """A thread brings it about: its lane need do nothing more for it."""
        if self._seq is not None:
            self._session.schedule.brings(self._seq, self._lane)

    def comes_yet(self) -> bool:
        """Whether it may come after all: past the end of the log of a run that goes on, and only there."""
        return False

    def unrecorded(self, name: str) -> None:
        """Report that this is the result of a call in a thread, ``name``, that the recording lacks: it comes when it is done."""
        self._session.report.remark(
            "hops", f"a call in a thread, {name!r}, of which nothing is captured, is not recorded"
        )

    def happened(self) -> None:
        """What threads hand to one another has been handed over, as it was in the recording."""
        if self._seq is not None:
            self._session.handed_over(self._seq)

    def wait(self) -> None:
        if self._seq is not None and b'"waited":true' in self._session.trace.line(self._seq):
            self._session.let_others_go_on(self._seq)
        self._session.schedule.wait(self._seq)
        self._delivered()

    async def wait_async(self) -> None:
        await self._session.schedule.wait_async(self._seq, True, self._lane)
        self._delivered()

    def noted(self) -> None:
        """What nobody waits for, and the log only notes, has come about here too."""
        self._delivered()

    def hold(self, let_go: Callable[[], object]) -> None:
        """``let_go`` is called when nothing else can go on: what was never recorded happens all the same."""
        self._session.schedule.hold(let_go)

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        def fire() -> None:
            self._delivered()
            callback()

        act = callback if self.on_delivery is None else fire
        self._ticket = self._session.schedule.callback(self._seq, act, anywhere=anywhere, lane=self._lane)

    def _delivered(self) -> None:
        if self.on_delivery is not None:
            self.on_delivery()

    def cancel(self) -> None:
        if self._ticket is not None:
            self._session.schedule.cancel(self._ticket)


# -- index -------------------------------------------------------------------------------------------------------------
#
# The index of a recorded run: who answers whom, in which lane, inside what.
#
# One pass over the file, a few dozen bytes an entry; the entries themselves stay on disk until they are asked for.

#: What an entry is to a replay.
OTHER: Final = 0
INTENT: Final = 1
EVENT: Final = 2
SINGLE: Final = 3
READ: Final = 4
#: What threads do to one another, by the names of its entries.
HAND_OVERS: Final = QUEUES | {"future.begin", "future.wait"}

_NOTHING: Final[Mapping[str, Any]] = {}


class LaneKey(NamedTuple):
    """A lane's identity: the parent lane's number, the name, the how-manieth of that name, the live step it is under."""

    parent: int
    name: str
    n: int
    under: int


class Index:
    """Built from all entries in order; every array is addressed by ``seq``.

    ``role`` says what an entry is; ``answer`` leads from an intent record to its outcome (0 where there is none) and from a chunk
    or outcome to its intent record; ``next_chunk`` from an intent record to its first chunk and on; ``lane`` to the lane.
    ``intents`` holds, by lane and kind, the steps in order; ``items`` everything that happened in a lane.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self.role: Final = bytearray(1)
        self.lane: Final = array("I", [0])
        self.answer: Final = array("I", [0])
        self.next_chunk: Final = array("I", [0])
        self.intents: Final[dict[tuple[int, str], array[int]]] = {}
        self.items: Final[dict[int, array[int]]] = {}
        #: Timers that fired, by lane, function, the lane's step before, and number since; see ``Lane.armed``.
        self.timers: Final[dict[tuple[int, str, int, int], int]] = {}
        #: That a call in a thread in which nothing was captured began, and its result, with the lane that made the call, and what packages
        #: moved in queues: the program may have none of them.
        self.hops: Final[dict[int, int]] = {}
        #: What belongs to a hop, by its result or its beginning, and the hops of a lane.
        self.hop_calls: Final[dict[int, int]] = {}
        #: The calls in threads that a library made and a cancellation cut off, with their names, by lane and the step before.
        self.cut_off: Final[dict[tuple[int, int], dict[int, str]]] = {}
        self.hops_of: Final[dict[int, list[int]]] = {}
        self.lanes: Final[dict[LaneKey, int]] = {}
        #: The lane in which the program itself ran, and those around it that have started the next one and done nothing else:
        #: a middleware's task, a test runner's.
        self.line = 0
        self.around: Final[set[int]] = set()
        self._parents: Final[set[int]] = set()
        #: What packages have moved in queues.
        self._beside: Final[set[int]] = set()
        self.identities: Final[dict[str, int]] = {}
        #: States that the run started from, by name.
        self.snapshots: Final[dict[str, int]] = {}
        #: What was read from outside, by kind and name.
        self.inputs: Final[dict[tuple[str, str], list[int]]] = {}
        self.events: Final = array("I")
        #: Every intent record and step of one entry, in order.
        self.steps: Final = array("I")
        #: Where in the program's progress the events belong that an event loop brought.
        self.places: Final = PlaceIndex()
        self.abandoned: Final[set[int]] = set()
        #: Whether something came from another thread or task than the one whose context it had.
        self.has_callbacks = False
        #: Intentions that a resumed run made again.
        self.repeated: Final[set[int]] = set()
        #: Outcomes that a later one took the place of: a person has settled the step.
        self.overruled: Final[set[int]] = set()
        #: Steps that began after others had gone on beside them; see ``Resumption.make``.
        self.waited: Final[set[int]] = set()
        #: The step that undid another, by that.
        self.compensations: Final[dict[int, int]] = {}
        #: Calls that were not made: an error stands in their intent record's place.
        self.refused: Final[set[int]] = set()
        self._first_child: Final = array("I", [0])
        self._next_sibling: Final = array("I", [0])
        self._last_chunk: dict[int, int] = {}
        self._last: Mapping[str, Any] = _NOTHING
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self.role) - 1

    # -- building --------------------------------------------------------------------------------------------------------

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
        self._next_sibling.append(self._first_child[parent] if parent else 0)
        if parent:
            self._first_child[parent] = seq
        self.role.append(self._role(seq, kind, lane, entry))
        if self.role[seq] != OTHER:
            self._append(self.items, lane, seq)
        if self.role[seq] in (INTENT, SINGLE):
            self.steps.append(seq)
            self.places.step(seq, lane)

    def _role(self, seq: int, kind: str, lane: int, entry: Mapping[str, Any]) -> int:
        family = family_of(kind)
        if family is not None:
            return self._step(seq, lane, family[0], family[1], entry)
        if kind in REFUSALS:
            refused = ((entry.get("meta") or {}).get("info") or {}).get("family")
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
            return OTHER
        if kind == "input":
            self.inputs.setdefault((str(entry.get("name")), str(entry["input"].get("name"))), []).append(seq)
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
            name, call = entry["name"], about.get("call")
            self.timers[lane, name if call is None else f"{name}:{call}", about.get("after", 0), about["n"]] = seq
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
                self.places.add(seq, lane, entry.get("place"), hop=hop is not None)
            return self._event(seq)
        return OTHER

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
                self.overruled.add(self.answer[step])
            self.answer[step] = seq
            self._last_chunk.pop(step, None)
            if role == "skipped" and "output" not in entry and "error" not in entry:
                self.repeated.add(step)
                return OTHER
            self.repeated.discard(step)  # a person had given it up, and then said what it gave
            meta = entry.get("meta")
            if meta and (meta.get("abandoned") or meta.get("collected")):
                # Nobody waits for it: the caller had left, or it was a finalizer, which comes when the interpreter likes. It is no event
                # of the simulation.
                self.abandoned.add(seq)
                self.answer[seq] = step
                return EVENT
        self.answer[seq] = step
        meta = entry.get("meta")
        if meta and "suspended" in meta and family != "span":
            self.places.add(seq, lane, entry.get("place"))
        return self._event(seq)

    def _event(self, seq: int) -> int:
        self.events.append(seq)
        return EVENT

    def _find_line(self) -> None:
        children: dict[int, list[tuple[int, int]]] = {}
        for key, lane in self.lanes.items():
            children.setdefault(key.parent, []).append((lane, key.under))
        while self.line not in self.items and len(found := children.get(self.line, [])) == 1 and not found[0][1]:
            self.around.add(self.line)
            self.line = found[0][0]

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
        """There are no more. It is finished once."""
        if self._last is not _NOTHING:
            meta = self._last.get("meta") or _NOTHING
            self._last = _NOTHING
            self._last_chunk.clear()
            self.places.finish(meta.get("callbacks"))
            self._find_hops()
            self._find_line()
        return self

    # -- keeping ---------------------------------------------------------------------------------------------------------

    #: See ``reader.KeptCollector``.
    made_by: ClassVar = (__name__, "tracekit._runtime.progress", "tracekit._journal.entry")

    def state(self) -> dict[str, Any]:
        self.finish()
        return {**vars(self), "places": self.places.state(), "_last": None}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Index:
        found = cls.__new__(cls)
        vars(found).update(state, places=PlaceIndex.of_state(state["places"]), _last=_NOTHING)
        vars(found)["lanes"] = {LaneKey(*key): lane for key, lane in state["lanes"].items()}
        return found

    # -- asking ----------------------------------------------------------------------------------------------------------

    def captured(self, lane: int) -> bool:
        """Whether anything was captured in a lane, or in one that it started, but what libraries read of their clocks or move in queues."""
        items = self.items.get(lane, ())
        return lane in self._parents or any(self.role[seq] != READ and seq not in self._beside for seq in items)

    @property
    def supplies(self) -> bool:
        """Whether there is anything that a replay gives the program: a step, a read, an input or a state that it started from."""
        return any(self.role) or bool(self.inputs) or bool(self.snapshots)

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


def gives_anything(path: str) -> bool:
    """Whether a replay of the run in this file has anything to give to the program: a step, a read or an input, or a child process.

    Where it has not, nothing was captured, and the replay fails.
    """
    if beside(path):
        return True
    with Trace(path) as trace:
        trace.check()
        return trace.collected(Index).finish().supplies


# -- placeholders ------------------------------------------------------------------------------------------------------
#
# Recorded and actual values compared where one of them holds placeholders for secrets that the other shows.


class Bindings:
    """What the placeholders of a trace stand for in this process.

    One that the replay handed to the program, or that the program's own values have come to before, stands for itself. Any other is
    bound to the program's value where they first meet, and is that value from then on; two never are one value. One that is among the
    ``originals`` stands for that value.
    """

    def __init__(
        self,
        redactor: Redactor,
        places: Mapping[str, Sequence[int]],
        used: Callable[[int], bool],
        originals: Mapping[str, str] | None = None,
    ) -> None:
        self._redactor: Final = redactor
        self._originals: Final = originals or {}
        #: By placeholder: the entries that can have given it to the program.
        self._places: Final = places
        self._used: Final = used
        self._bound: Final[dict[str, str]] = {}
        self._lock: Final = threading.Lock()
        redactor.keep(places)

    def __bool__(self) -> bool:
        return bool(self._places)

    def equal(self, recorded: Any, actual: Any) -> bool:
        """Whether two JSON trees are equal, a placeholder in the recorded one standing for its value."""
        met: dict[str, str] = {}
        with self._lock:
            if not self._trees(recorded, actual, met):
                return False
            self._bound.update(met)
        for placeholder, value in met.items():
            if value != placeholder:
                self._redactor.stand_for(value, placeholder)
        return True

    def _trees(self, one: Any, other: Any, met: dict[str, str]) -> bool:
        if type(one) is dict and type(other) is dict:
            data = _data(one), _data(other)
            if None not in data and one["$t"] == other["$t"]:
                return self._texts(*data, met)  # type: ignore[arg-type]
            return self._mappings(one, other, met)
        if type(one) is list and type(other) is list:
            return len(one) == len(other) and all(
                self._trees(item, thing, met) for item, thing in zip(one, other, strict=True)
            )
        if type(one) is str and type(other) is str:
            return self._texts(one, other, met)
        return type(one) is type(other) and repr(one) == repr(other)

    def _mappings(self, one: dict[str, Any], other: dict[str, Any], met: dict[str, str]) -> bool:
        if len(one) != len(other):
            return False
        if one.keys() == other.keys():
            return all(self._trees(item, other[key], met) for key, item in one.items())
        # A key was replaced: its place in the order is left to say which one.
        return all(
            self._texts(key, name, met) and self._trees(item, thing, met)
            for (key, item), (name, thing) in zip(one.items(), other.items(), strict=True)
        )

    def _texts(self, recorded: str, actual: str, met: dict[str, str]) -> bool:
        """Whether ``actual`` is ``recorded`` with the values of its placeholders; each ends where what follows it first comes."""
        if recorded == actual:
            for _, text in self._redactor.placeholders.within(recorded):
                if not self._places.get(text, (text,)):
                    met.setdefault(text, self._bound.get(text, text))
            return True
        last = at = 0
        placeholder = ""
        for start, text in [*self._redactor.placeholders.within(recorded), (len(recorded), "")]:
            if text and text not in self._places:
                continue
            literal = recorded[last:start]
            if not placeholder:
                found = 0 if actual.startswith(literal) else -1
            elif not text:
                found = len(actual) - len(literal) if actual.endswith(literal) else -1
            else:
                found = self._end(placeholder, actual, at, literal, met)
            if found < at or (placeholder and (found == at or not self._stands(placeholder, actual[at:found], met))):
                return False
            last, at, placeholder = start + len(text), found + len(literal), text
        return last == len(recorded) and at == len(actual)

    def _end(self, placeholder: str, actual: str, at: int, literal: str, met: dict[str, str]) -> int:
        """Where the value that begins at ``at`` ends, with ``literal`` behind it."""
        bound = self._bound.get(placeholder, met.get(placeholder))
        for known in (placeholder, bound, self._originals.get(placeholder)):
            if known and literal and actual.startswith(known + literal, at):
                return at + len(known)
        return actual.find(literal, at + 1) if literal else -1

    def _stands(self, placeholder: str, value: str, met: dict[str, str]) -> bool:
        if value in (placeholder, self._originals.get(placeholder)):
            return True
        bound = self._bound.get(placeholder, met.get(placeholder))
        if bound is not None:
            return bound == value
        if value in self._places or value in self._bound.values() or value in met.values():
            return value == STAND_IN  # the replay sets that one for every key that it needs
        if any(map(self._used, self._places[placeholder])):
            return False
        met[placeholder] = value
        return True


class Placeholders:
    """The placeholders of a trace, and the entries that can have given them to the program: a piece that it has sent is none."""

    def __init__(self) -> None:
        self.places: Final[dict[str, list[int]]] = {}

    @classmethod
    def begin(cls, path: str) -> Placeholders:
        return cls()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry."""
        meta = entry.get("meta")
        if type(meta) is not dict or ("redacted" not in meta and "redacted" not in (meta.get("info") or _NOTHING)):
            return
        for pointer, _, text in marks_of(entry):
            places = self.places.setdefault(text, [])
            if not (entry["type"].endswith(".chunk") and pointer.startswith("/output/sent")):
                places.append(entry["seq"])

    #: See ``reader.KeptCollector``.
    made_by: ClassVar = (__name__, "tracekit._runtime.redaction")

    def state(self) -> dict[str, Any]:
        return {"places": self.places}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Placeholders:
        found = cls()
        found.places.update(state["places"])
        return found


def placeholders_of(trace: Trace) -> dict[str, list[int]]:
    """The placeholders of a trace, which is verified first, and the entries that can have given them to the program."""
    trace.check()
    return trace.collected(Placeholders).places


#: What a replay has to know of a trace: found in the pass that verifies it, or kept from an earlier one.
NEEDED: Final = (Index, Placeholders)


def for_replay(path: str) -> Trace:
    """A trace that is to be replayed."""
    return Trace(path, collect=NEEDED, indexed=True)


def _data(tree: Any) -> str | None:
    """What base64 data say, or ``None``."""
    if type(tree) is not dict or tree.get("$t") not in ("bytes", "bytearray", "memoryview", "str", "npbytes"):
        return None
    try:
        return a2b_base64(tree["v"]).decode("latin-1")
    except (ValueError, KeyError, TypeError):
        return None


# -- windows -----------------------------------------------------------------------------------------------------------
#
# Where a lane of a replay is, and the readings of clocks and random numbers that belong between two of its steps.

_NONE: Final = array("I")
#: Gives the readings that a window goes on with, of which entry and function.
_More = Callable[["LaneState"], Iterable[tuple[int, str, list[Any]]]]


class LaneState:
    """A lane's position among its recorded ``items`` and its cursors by kind of step.

    Between two steps the reads form a window, matched by function; passing the next step closes it. It ends before the first item that
    the program has yet to come to, and goes on as soon as it has: what was recorded in this lane may come to another one.
    """

    __slots__ = ("_at", "_items", "_last", "_seen", "_taken", "_window", "cursors", "entered", "lane", "surplus")

    def __init__(self, lane: int, items: array[int] | None) -> None:
        self.lane = lane
        #: How many readings of clocks the program has had in the present window that the recording does not have.
        self.surplus = 0
        #: Whether the program has done anything in it that was recorded.
        self.entered = False
        self.cursors: dict[str, int] = {}
        self._items = _NONE if items is None else items
        self._at = 0
        #: The readings of the present window that are left, by function, and up to where they were looked for.
        self._window: dict[str, deque[tuple[int, Any]]] = {}
        self._seen = 0
        self._taken: dict[int, int] = {}
        self._last: dict[str, Any] = {}

    def stand_for(self, lane: int, items: array[int] | None) -> None:
        """Let this stand for another lane of the recording: nothing has been done in it so far."""
        self.lane, self._items = lane, _NONE if items is None else items
        self.close()

    def advance(self, seq: int) -> list[int] | None:
        """Move past ``seq``; returns the items between, which were not consumed in their place. ``None``: it lies behind, passed out of
        order before."""
        at, items = self._at, self._items
        if at < len(items) and items[at] == seq:
            self._at = at + 1
            return []
        to = bisect_left(items, seq, at)
        if to >= len(items) or items[to] != seq:
            return None
        between = list(items[at:to])
        self._at = to + 1
        return between

    def close(self) -> None:
        self._seen = self._at
        self.surplus = 0
        if self._window:
            self._window = {}
        if self._taken:
            self._taken = {}

    def ahead(self) -> Iterator[int]:
        """The items from here on."""
        items = self._items
        for i in range(self._at, len(items)):
            yield items[i]

    def unseen(self) -> Iterator[int]:
        """The items that the present window has not been filled from. The last one that is asked for is given again the next time."""
        items = self._items
        while self._seen < len(items):
            yield items[self._seen]
            self._seen += 1

    def rest(self) -> list[int]:
        return list(self._items[self._at :])

    def taken(self, seq: int) -> int:
        """How many values of the read entry ``seq`` the program has had."""
        return self._taken.get(seq, 0)

    def take(self, function: str, more: _More) -> tuple[bool, Any]:
        """The next value of ``function`` in the present window, with ``more`` of it if need be: ``(True, value)``, or ``(False, None)``."""
        values = self._window.get(function) or self._filled(function, more)
        if not values:
            return False, None
        seq, value = values.popleft()
        self._taken[seq] = self._taken.get(seq, 0) + 1
        self._last[function] = value
        return True, value

    def has(self, function: str, more: _More) -> bool:
        """Whether ``take`` would find one."""
        return bool(self._window.get(function) or self._filled(function, more))

    def _filled(self, function: str, more: _More) -> deque[tuple[int, Any]] | None:
        for seq, name, read in more(self):
            self._window.setdefault(name, deque()).extend((seq, value) for value in read)
        return self._window.get(function)

    def last(self, function: str) -> Any:
        """The last value of ``function`` that this lane was given, or ``None``."""
        return self._last.get(function)


class RecordedLanes:
    """Which recorded lane each lane of the program is, and how far it has come in that.

    With ``unwraps`` a lane is the same one whatever tasks and threads stand around the program: those share the lane of what they start.
    """

    def __init__(self, index: Index, progress: Progress, lock: threading.RLock, *, unwraps: bool) -> None:
        self._index: Final = index
        self._progress: Final = progress
        self._lock: Final = lock
        self._unwraps: Final = unwraps
        self.states: Final[list[LaneState]] = []
        #: Those in which something recorded is or was done, and for which the end of the run waits, in their order.
        self.captured: Final[dict[Lane, None]] = {}
        #: The state of the program's own lane until something is done in it, and the lanes that share it.
        self._line: LaneState | None = None
        self._in_line: list[Lane] = []

    def enter(self, lane: Lane) -> LaneState:
        """The state of a lane in which something recorded is done now."""
        state = lane.state if type(lane.state) is LaneState else self.follow(lane)
        if not state.entered:
            if state is self._line:
                self._enter_line(lane)
            state.entered = True
            lane.captured = True
            if lane.parent is not None:
                self.captured[lane] = None
        return state

    def of(self, lane: Lane) -> LaneState:
        """The state of a lane, whether or not something is done in it."""
        return lane.state if type(lane.state) is LaneState else self.follow(lane)

    def follow(self, lane: Lane) -> LaneState:
        """The state of a lane that has done nothing yet but be started."""
        with self._lock:
            if lane.parent is None:
                number: int | None = 0
            else:
                parent = self.of(lane.parent)
                number = self._number(lane, lane.parent, parent)
                if number is None and (parent is self._line or self._stood_around(lane, parent)):
                    self._share_line(lane, parent)
                    return parent
            lane.id = -1 if number is None else number
            index = self._index
            state = lane.state = LaneState(lane.id, index.items.get(lane.id))
            if self._unwraps and (lane.parent is None or number in index.around or number == index.line):
                self._line, self._in_line = state, [lane]
            self.states.append(state)
        if number and lane.parent is not None and self._index.captured(number):
            # Also before it has done anything: the recording waited for it, too.
            self.captured[lane] = None
        self._progress.known_as(lane, number)
        return state

    def _number(self, lane: Lane, parent: Lane, state: LaneState) -> int | None:
        """The recorded lane that ``lane`` is, started in ``parent``; ``None``: the recording has no such lane."""
        lanes, line = self._index.lanes, self._index.line
        number = lanes.get(LaneKey(state.lane, lane.name, lane.n, lane.under))
        if number is None and state is self._line:
            number = lanes.get(LaneKey(line, lane.name, lane.n, lane.under))
        if number is not None and state is self._line and number != line and number not in self._index.around:
            self._enter_line(parent)
        return number

    def _stood_around(self, lane: Lane, parent: LaneState) -> bool:
        """Whether the recording had ``lane`` around the program, or as the program's own, and this time something came before it."""
        if lane.parent not in self._in_line or parent.lane != self._index.line:
            return False
        keys = (LaneKey(number, lane.name, lane.n, lane.under) for number in self._index.around)
        return not self._index.lanes.keys().isdisjoint(keys)

    def _share_line(self, lane: Lane, state: LaneState) -> None:
        """``lane`` is a task or thread around the program: what happens in it happens in the program's own lane."""
        lane.id, lane.state = state.lane, state
        self._in_line.append(lane)
        if self._index.line == 0:
            lane.since -= 1  # for the first piece of a task, which what runs in the run's own line does not have
        self._progress.known_as(lane, self._index.line)

    def _enter_line(self, lane: Lane) -> None:
        """``lane`` does what the recorded program did in its own lane, with more or fewer tasks and threads around it."""
        state, line = self._line, self._index.line
        assert state is not None
        self._line = None
        if state.lane != line:
            state.stand_for(line, self._index.items.get(line))
            for one in self._in_line:
                one.id = line
            if lane.parent is None:
                lane.since += 1
        self._progress.known_as(lane, line)


# -- replay ------------------------------------------------------------------------------------------------------------
#
# The session that replays: each step is matched with the recorded one and answered from the log.

T = TypeVar("T")

_DIGITS: Final = b"0123456789"
#: A clock of days, by the one that it is read from.
_SAME_CLOCK: Final = {"datetime.date.today": "datetime.datetime.now"}
#: What the caller of a call that must not be made gets.
_REFUSALS: Final = (ContractViolationError, BudgetExceededError, RunEndedError)
#: A clock that is read more often than in the recording stands still. Who reads it that much oftener between two steps waits for it to
#: go on.
_STANDS_STILL: Final = 100_000
#: How many recorded steps are looked at to find the nearest one for a message.
_NEIGHBOURS: Final = 50
#: One of these is in the canonical bytes of every value that holds something opaque.
_MARKS: Final = (OPAQUE,)


class StepDebugger(Protocol):
    """Who is called in the thread that makes a step, when it has been matched and before it is answered."""

    def came_to(self, replay: Replay, scope: Scope, seq: int) -> None: ...


class Replay:
    """One recorded run being replayed from ``trace``.

    ``on_divergence="warn"`` goes on with a step of equal kind and name where that can do no harm; ``strict`` makes
    remarks of the verdict reasons, ``ignored`` leaves fields out of the comparison.
    ``hooked``: whether hooks are in place that report which threads the program starts. ``debugger`` is called at each step.
    """

    recording: Final = False
    reach: Final = None
    decides: Final = False
    #: Whether a lane is the same one whatever tasks and threads stand around the program.
    _unwraps = True
    #: After how many callbacks a lane counts as one that polls, where the log was cut off after that many or fewer: nobody knows.
    _patience = 1_000_000

    def __init__(
        self,
        trace: Trace,
        redactor: Redactor,
        *,
        on_divergence: str = "raise",
        strict: frozenset[str] = frozenset(),
        ignored: Ignored | None = None,
        hooked: bool = True,
        debugger: StepDebugger | None = None,
    ) -> None:
        self.trace: Final = trace
        trace.set_aside()
        self.log: Final = Log(trace)
        self.redactor: Final = redactor
        #: What stood in the place of the trace's placeholders, where its vault says so.
        self.originals: Final = Originals(trace.path)
        places = placeholders_of(trace)
        known = self.originals.values if places else {}
        redactor.placeholders.bring(known)
        #: What they stand for here.
        self.bindings: Final = Bindings(redactor, places, self._had, known)
        trace.check()
        self.index: Final = trace.collected(Index).finish()
        self.run_id: Final[str] = trace.entry(1)["run_id"]
        self.report: Final = Report(self.run_id, trace.path, strict)
        #: What the caller leaves out of the comparison.
        self.ignored: Final = ignored or Ignored({})
        #: 1 consumed, 2 skipped, by seq.
        self._used = bytearray(len(self.index) + 1)
        self.schedule: Final = Schedule(
            self.index.events,
            failure=self._again,
            stuck=self._stuck,
            slow=self._slow,
            steps=self.index.steps,
            made=self._used,
            places=self.index.places,
            hops=self.index.hops,
            skip_hop=self.skip_hop,
            thread_of=self._thread_of,
            # What came from another thread in a context of the run may come again from one that was there before.
            hooked=hooked and not (self.index.has_callbacks and others_run_user_code()),
            patience=self._patience,
        )
        about = trace.entry(1).get("meta", {})
        #: The clocks when the run began.
        self._clocks: Final[Mapping[str, Any]] = about.get("clocks", {})
        ordered = bool(about.get("ordered"))
        self.state: Final = RunState(live=False, ordered=ordered)
        #: The callbacks of the program in its event loops.
        self.progress: Final = self.schedule.progress
        self._lock = threading.RLock()
        #: Which recorded lane each lane of the program is.
        self.lanes: Final = RecordedLanes(self.index, self.progress, self._lock, unwraps=self._unwraps)
        self.progress.follow = self.lanes.follow
        self.progress.elapsed = self._elapsed
        #: Which threads take part, as far as hooks say so.
        self.threads: Final = self.schedule.threads
        #: Which variables by which SDKs decide what they ask have changed since the recording.
        self.settings_changed: Sequence[str] = ()
        self.on_divergence: Final = on_divergence
        self.failure: ReplayError | None = None
        #: The error that the program itself has left its block with.
        self.ended_with: BaseException | None = None
        self.inputs: Final = ReplayedInputs(
            self.index.inputs,
            self._input_of,
            self._original_input,
            self._step_between,
            self._answered_within,
            about.get("boundary", ()),
            self.bindings.equal,
            self.report,
            redactor,
            self.state.extras.of(OwnFiles),
            self.state.extras.of(LeftStates),
        )
        #: The steps whose output was given with a placeholder in it.
        self._handed_on: Final[set[int]] = set()
        #: Whether other processes have steps of the run: then it shows something, even if this file has none.
        self.others_have_steps = False
        #: The session that scopes point to.
        self.face: Any = self
        self._debugger: Final = debugger
        #: Whether the program may go another way than the recorded one, since something in it is live, and whether it has.
        self.may_leave = False
        self.left = False
        #: The steps of processes and of their pipes, by the path of the process.
        self._processes: dict[str, list[int]] | None = None
        #: The lanes of calls in threads, without a captured step, that the program has not made.
        self._missing_hops: Final[set[int]] = set()
        #: The calls of libraries in threads that were cut off in the recording, and that the program has made here too.
        self._made_again: Final[set[int]] = set()
        #: Whether the report says which events never came.
        self._accounted = False
        #: The calls under way that change their arguments.
        self._called: list[CalledWith] = []
        # An attempt that a resumed run made again is no step of the replay.
        for seq in self.index.repeated:
            self._give_up(seq)
            undone = self.index.compensations.get(seq)
            if undone is not None:
                self._give_up(undone)
        for seq in self.index.overruled:
            self.schedule.skip(seq)
            self._used[seq] = 2

    def _give_up(self, seq: int) -> None:
        """A recorded step of which the program knows nothing: nobody asks for it, nor for what belongs to it."""
        self._used[seq] = 2
        self._skip_inside(seq)
        self._skip_outcome(seq)

    def _skip_outcome(self, seq: int) -> None:
        """Nobody asks for the pieces and the outcome of this step."""
        piece = self.index.next_chunk[seq]
        while piece:
            self.schedule.skip(piece)
            self._used[piece] = 2
            piece = self.index.next_chunk[piece]
        if self.index.answer[seq]:
            self.schedule.skip(self.index.answer[seq])
            self._used[self.index.answer[seq]] = 2

    # -- processes -------------------------------------------------------------------------------------------------------

    def has_process(self, path: str) -> bool:
        """Whether the recording has the process at this path as a step."""
        return bool(self._steps_of(path))

    def leave_process(self, scope: Scope, path: str, joined: Collection[str]) -> bool:
        """The process at this path, one of those that ``joined`` the run, is started and answers for itself: its step is passed over, and
        nothing of what went through its pipes is given. Whether the recording has it as a step."""
        with self._lock:
            self._check()
            if not self._steps_of(path):
                return False
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, "process")
            if seq is None or self._process_of(self.trace.entry(seq)) not in joined:
                self._out_of_order(self._steps_of(path)[0])
                return False
            self._consume(state, "process", seq)
            scope.lane.last = seq
            for one in self._steps_of(path):
                self._skip_outcome(one)
        if self._debugger is not None:
            self._debugger.came_to(self, scope, seq)
        return True

    @staticmethod
    def _process_of(entry: Mapping[str, Any]) -> str:
        """The path of the process whose step, or whose pipe's step, this is."""
        if entry["type"] == "process.start":
            return str(((entry.get("meta") or {}).get("info") or {}).get("process"))
        return str(entry.get("name")).partition(" ")[0]

    def _steps_of(self, path: str) -> list[int]:
        if self._processes is None:
            self._processes = {}
            for (_, kind), steps in self.index.intents.items():
                for seq in steps if kind in ("process", "pipe", "process.signal") else ():
                    self._processes.setdefault(self._process_of(self.trace.entry(seq)), []).append(seq)
        return self._processes.get(path, [])

    # -- steps -----------------------------------------------------------------------------------------------------------

    def begin(self, scope: Scope, request: Request) -> ReplayedStep:
        """Match a step with the next recorded one of its family in its lane, or fail."""
        spec = request.spec
        if self.state.ended:
            raise self.late(spec.family, spec.name, spec.effect)
        tail = self._tail(scope, request)
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, spec.family)
            same = seq is not None and tail is not None and self._ends_so(seq, tail)
        if not same:
            seq = self._compared(scope, request, *self.encode_input(request))
        assert seq is not None
        with self._lock:
            self._consume(state, spec.family, seq)
            if not spec.structural:
                self._skip_inside(seq)
            scope.lane.last = seq
        if self._debugger is not None:
            self._debugger.came_to(self, scope, seq)
        if seq in self.index.refused:
            raise exception_from_json(self.trace.expand(self._whole(self.trace.entry(seq))["error"]))
        return ReplayedStep(self, scope, request, seq)

    def model(self, name: str) -> str:
        return name

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        return output

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        with self._lock:
            state = self.lanes.of(scope.lane)
            for seq in state.ahead():
                if self.index.role[seq] in (INTENT, SINGLE) and not self._used[seq]:
                    entry = self.trace.entry(seq)
                    kind = family_of(entry["type"])
                    return kind is not None and kind[0] == family and entry.get("name") == name
        return False

    # -- another way than the recorded one ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """The program goes another way than the recorded one from here on: nobody is held in the recorded order any more."""
        with self._lock:
            if self.left or self.failure is not None:
                return
            self.left = True
            seq = self.report.consumed and max((one for one in self.index.steps if self._used[one] == 1), default=0)
            text = f"after step {seq or 1} the program went another way than the recorded one"
            self.report.allow("left", text, step=seq or 1, where=caller())
        self.schedule.close()

    def follows(self, scope: Scope, family: str, same: Callable[[int], bool]) -> bool:
        """Whether the lane of ``scope`` goes on with a step of this family that is the ``same``, and with nothing before it."""
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, family)
            steps = (one for one in state.ahead() if self.index.role[one] in (INTENT, SINGLE) and not self._used[one])
            return seq is not None and next(steps, None) == seq and same(seq)

    def is_same(self, scope: Scope, request: Request) -> Callable[[int], bool]:
        """Whether a recorded step is the one that is asked for."""
        tail = self._tail(scope, request)
        encoded: list[tuple[Any, bytes]] = []

        def same(seq: int) -> bool:
            if tail is not None and self._ends_so(seq, tail):
                return True
            if not encoded:
                encoded.append(self.encode_input(request))
            return self._matches(self.trace.entry(seq), request.spec, scope.agent, *encoded[0], request.key)

        return same

    def is_same_note(self, scope: Scope, type: str, name: str, fields: Mapping[str, Any]) -> Callable[[int], bool]:
        """Whether a recorded step of one entry is the one that is asked for, given as to ``note``."""
        facts = self._facts_of_note(scope, name, fields.get("input"), fields.get("output"), fields.get("signature"))
        return lambda seq: self.equal(steady(self._recorded_note(seq)), steady(facts))

    def found(self, scope: Scope, request: Request) -> ReplayedStep:
        """Off the recorded way: the recorded step that is just this one, wherever it stands; else the replay's failure, for it can't
        be answered. What only reads may be asked for again."""
        spec, same = request.spec, self.is_same(scope, request)
        if self.state.ended:
            raise self.late(spec.family, spec.name, spec.effect)
        with self._lock:
            self._check()
            lane = self.lanes.enter(scope.lane).lane
            lists = [steps for (_, family), steps in self.index.intents.items() if family == spec.family]
            own = self.index.intents.get((lane, spec.family))
            every = [*(own or ()), *(seq for steps in lists if steps is not own for seq in steps)]
            seq = next((one for one in every if not self._used[one] and same(one)), None)
            if seq is None and spec.side_effect == "read_only":
                seq = next(
                    (one for one in every if self._used[one] == 1 and self.index.answer[one] and same(one)), None
                )
            if seq is None:
                raise self.fail(self._not_answered(scope, request, [one for one in every if not self._used[one]]))
            self.report.consumed += not self._used[seq]
            self._used[seq] = 1
            self._skip_inside(seq)
        if self._debugger is not None:
            self._debugger.came_to(self, scope, seq)
        if seq in self.index.refused:
            raise exception_from_json(self.trace.expand(self._whole(self.trace.entry(seq))["error"]))
        return ReplayedStep(self, scope, request, seq)

    def _not_answered(self, scope: Scope, request: Request, left: Iterable[int]) -> ReplayError:
        spec = request.spec
        rendered, tree = spec.render(self.redactor), self.encode_input(request)[0]
        near = next((one for one in left if self.trace.entry(one).get("name") == rendered.name), None)
        entry = {} if near is None else self.trace.entry(near)
        found = []
        if near is not None:
            recorded = {
                "agent_id": entry.get("agent_id"),
                "input": self.trace.expand(entry.get("input")),
                "meta": _signature(entry),
            }
            found = differences(
                steady(recorded), steady({"agent_id": scope.agent, "input": tree, "meta": rendered.meta})
            )
        actual = {"name": rendered.name, "input": tree}
        return divergence.not_answered(self.run_id, spec.family, actual, near, found, spec.side_effect)

    def late(self, family: str, name: str, effect: bool) -> BaseException:
        """A step after the end: it is not executed. An effect is refused as while recording, when nothing of it came into the log."""
        found = divergence.after_the_end(self.run_id, family, name, effect)
        if not isinstance(found, ReplayError):
            return found
        with self._lock:
            if self.ended_with is None:
                return self.fail(found, "late")
            # The program's own error is what the caller is to hear of: that others come too late may follow from it.
            if not self.report.verdict.final:
                self.report.inexact("late", found.what)
        return found

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        """A call that is not to be made now: neither was it then, or that is a divergence. Returns what to raise."""
        spec = request.spec
        try:
            step = self.begin(scope, Request(spec, request.input))
        except _REFUSALS as recorded:
            return recorded
        return self.fail(divergence.now_refused(self.run_id, step.seq, spec.family, spec.name, error))

    def _compared(self, scope: Scope, request: Request, tree: Any, data: bytes) -> int:
        """The next recorded step of the family, compared part by part."""
        spec = request.spec
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None:
                raise self._exhausted(scope, spec.family, spec.name, data, state)
            entry = self.trace.entry(seq)
            if not self._matches(entry, spec, scope.agent, tree, data, request.key):
                self._diverged(scope, spec, tree, data, seq, entry)
        return seq

    def _tail(self, scope: Scope, request: Request) -> bytes | None:
        """How the line of this very step ends in a recording, where that is quickly said: the short way to an exact match."""
        if request.key is not None or scope.agent is not None:
            return None
        spec, info, data = request.spec, request.info, request.data
        rendered = spec.render(self.redactor)
        if info is None:
            suffix = rendered.suffix
        elif type(info) is Circumstances:
            suffix = info.render(spec, self.redactor)
        else:
            return None
        if data is None:
            data = quick(request.input)
        return None if data is None else rendered.prefix + data + suffix

    def _ends_so(self, seq: int, tail: bytes) -> bool:
        """Whether the entry ``seq`` ends in ``tail``, right after the numbers that every entry begins with.

        Equal bytes are an equal step, redacted or not: redaction makes of what stands in the log the same again.
        """
        line = self.trace.line(seq)
        end = len(line) - TAIL
        return line.endswith(tail, 0, end) and line[end - len(tail) - 1] in _DIGITS

    def pass_over(self, scope: Scope, spec: Spec) -> int | None:
        """The recorded step in whose place one goes live: passed with all that happened in it. ``None`` where there is none."""
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None:
                return None
            self._consume(state, spec.family, seq)
            self._skip_inside(seq)
            scope.lane.last = seq
            answer = self.index.answer[seq]
            chunk = self.index.next_chunk[seq]
            while chunk:
                self.schedule.skip(chunk)
                self._used[chunk] = 2
                chunk = self.index.next_chunk[chunk]
            if answer:
                self.schedule.skip(answer)
                self._used[answer] = 2
        if self._debugger is not None:
            self._debugger.came_to(self, scope, seq)
        return seq

    def note_otherwise(self, scope: Scope, type: str, name: str, *, output: object = None, **fields: Any) -> int:
        """``note`` of what came of something live, or is decided anew: how it differs is noted, and the program goes on."""
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, type)
            if seq is None:
                raise self._exhausted(scope, type, name, self._encode(output)[1], state)
            self._consume(state, type, seq)
        recorded, actual = self.trace.expand(self.trace.entry(seq)["output"]), self._encode(output)[0]
        if not self.equal(recorded, actual):
            found = differences(recorded, actual)
            self._live_differs(seq, type, name, found)
        return seq

    def compare_outcome(self, seq: int | None, spec: Spec, actual: Any) -> None:
        """Note how the outcome of a step that went live differs from the one recorded in its place; headers always do."""
        answer = 0 if seq is None else self.index.answer[seq]
        recorded = self.trace.expand(self.trace.entry(answer).get("output")) if answer else None
        found = [one for one in differences(recorded, actual) if not one["path"].startswith("headers")]
        if found or not answer:
            self._live_differs(seq, spec.family, spec.name, found)

    def _live_differs(self, seq: int | None, family: str, name: str, found: list[dict[str, Any]]) -> None:
        text = f"{family} {name!r} came to something else than the recorded step"
        self.report.allow("live_differs", text, step=seq, family=family, name=name, differences=found)

    def _had(self, seq: int) -> bool:
        """Whether the program has come past the entry ``seq``, or been given it."""
        return seq > 1 and self._used[seq] == 1

    def alike(self, recorded: object, actual: object) -> bool:
        """Whether ``actual``, of the program, is what was recorded: placeholders stand for their secrets."""
        return self.equal(to_json(recorded), self.redactor.redact(to_json(actual))[0])

    def encode_input(self, request: Request) -> tuple[Any, bytes]:
        """The input of a request as the log would have it, as a tree and as JSON."""
        return self._encode(request.input, owned=request.data is not None, own=request.spec.patterns)

    def _encode(self, value: object, *, owned: bool = False, own: Patterns | None = None) -> tuple[Any, bytes]:
        tree = value if owned else to_json(value)
        data = dumps(tree)
        if oversized(tree, data):
            tree = stand_in(value, data)
            return tree, dumps(tree)
        if own is not None or self.redactor.suspicious(data):
            tree, redacted = self.redactor.also(own).redact(tree)
            if redacted:
                data = dumps(tree)
        return tree, data

    def _matches(
        self, entry: Mapping[str, Any], spec: Spec, agent: str | None, tree: Any, data: bytes, key: object
    ) -> bool:
        rendered = spec.render(self.redactor)
        if entry.get("agent_id") != agent:
            return False
        if entry.get("name") == rendered.name and _signature(entry) == rendered.meta:
            recorded = entry.get("input_hash")
            if recorded is not None:
                equal = bool(recorded == fingerprint(rendered.name, tree if key is None else self._encode(key)[0]))
            else:
                equal = dumps(entry["input"]) == data
            if equal or key is not None:
                return equal
        return key is None and self._resembles(entry, spec, rendered, tree)

    def _resembles(self, entry: Mapping[str, Any], spec: Spec, rendered: RenderedSpec, tree: Any) -> bool:
        """Whether a step is the recorded one but for addresses, and for secrets: each process knows other ones by their text."""
        facts = {"name": entry.get("name"), "meta": _signature(entry), "input": self.trace.expand(entry["input"])}
        recorded, secrets = self.redactor.also(spec.patterns).redact(facts)
        actual = {"name": rendered.name, "meta": rendered.meta, "input": tree}
        if not secrets and not any(mark in one for one in (dumps(recorded), dumps(actual)) for mark in _MARKS):
            return False
        return self.bindings.equal(steady(recorded), steady(actual))

    def _next(self, state: LaneState, kind: str) -> int | None:
        """The first step of a kind in a lane that has neither been consumed nor skipped."""
        steps = self.index.intents.get((state.lane, kind))
        if steps is None:
            return None
        i, used = state.cursors.get(kind, 0), self._used
        while i < len(steps) and used[steps[i]]:
            i += 1
        state.cursors[kind] = i
        return steps[i] if i < len(steps) else None

    def _consume(self, state: LaneState, kind: str, seq: int) -> None:
        self._used[seq] = 1
        self.report.consumed += 1
        state.cursors[kind] = state.cursors.get(kind, 0) + 1
        self._pass(state, seq)
        self.progress.made(state.lane)

    def _skip_inside(self, step: int) -> None:
        role, used = self.index.role, self._used
        for seq in self.index.inside(step):
            if role[seq] == EVENT:
                self.schedule.skip(seq)
                used[seq] = 2
            elif not used[seq]:
                if role[seq] in (INTENT, SINGLE):
                    self.report.skipped += 1
                used[seq] = 2

    # -- lanes and their windows -----------------------------------------------------------------------------------------

    def open_lanes(self) -> list[Lane]:
        """The lanes whose task, thread or call has not ended."""
        with self._lock:
            for lane in self.threads.lanes.copy():
                self.lanes.of(lane)
            return [lane for lane in self.lanes.captured if lane.open]

    def owed_by(self, lanes: Iterable[Lane]) -> bool:
        """Whether one of the ``lanes`` has recorded steps to make yet, or to end, and something in the process can still move."""
        if self.failure is not None or self.left:
            return False
        with self._lock:
            role, used, is_done = self.index.role, self._used, self.schedule.is_done
            left = any(
                not is_done(seq) if role[seq] == EVENT else role[seq] in (INTENT, SINGLE) and not used[seq]
                for lane in lanes
                for seq in self.lanes.of(lane).ahead()
            )
        with self.threads.lock:
            goes_on = left and (self.schedule.has_next or not self.threads.blocked())
            self.schedule.drains_in = get_native_id() if goes_on else 0
        return goes_on

    def _pass(self, state: LaneState, seq: int) -> None:
        """The lane has come to ``seq``: the window of reads before it closes."""
        between = state.advance(seq)
        if between is None:
            return
        for missed in between:
            role = self.index.role[missed]
            if role == READ:
                self._unread(state, missed)
            elif role in (INTENT, SINGLE) and not self._used[missed]:
                self._out_of_order(missed)
        hops = self.index.hops_of.get(state.lane)
        if hops is not None:
            self._pass_hops(hops, seq)
        state.close()

    def _pass_hops(self, hops: list[int], seq: int) -> None:
        """The lane of these hops has come to ``seq`` without those before it that it has not made."""
        schedule = self.schedule
        for hop in hops[: bisect_left(hops, seq)]:
            if hop not in schedule.made_hops:
                self.skip_hop(hop)

    def _elapsed(self) -> int:
        """How long the recording had taken up to the last event that was handed out (ns)."""
        last = self.schedule.last
        return ts_of(self.trace.line(last)) - ts_of(self.trace.line(1)) if last else 0

    def skip_hop(self, seq: int) -> None:
        """The program has gone on without a call in a thread in which nothing was captured. One of a library is not worth a remark."""
        if self.schedule.is_done(seq):
            return
        call = self.index.hop_calls.get(seq)
        if (
            call is not None and call not in self._missing_hops
        ):  # it has a beginning and, where a loop waits for it, a result
            self._missing_hops.add(call)
            about = f"a call in a thread, of which nothing was captured, was not made here (entry {seq})"
            self.report.remark("hops", about, step=seq)
        self.schedule.skip(seq)
        for inside in () if call is None else self.index.items.get(call, ()):
            self.schedule.skip(inside)
        if self.index.places.is_hop(seq):
            self.progress.skipped(seq, self.index.lane[seq])

    def _thread_of(self, seq: int) -> int:
        """The thread that runs the lane of an entry, where that is a thread's or that of a call in one; else 0."""
        number = self.index.lane[seq]
        lanes = [lane for lane in self.threads.lanes.copy() if lane.open]
        return next((lane.owner for lane in lanes if self.lanes.of(lane).lane == number), 0)

    def _unread(self, state: LaneState, seq: int) -> None:
        if self._used[seq] or self.may_leave:
            return
        entry = self.trace.entry(seq)
        left = len(entry["values"]) - state.taken(seq)
        if left <= 0:
            return
        if read_by_library(entry):
            return
        if entry["type"] == "random":
            self._fail(divergence.draws_left(entry, left))
        else:
            self._drift("missing", entry["name"], left, None)

    def _drift(self, kind: str, function: str, count: int, where: str | None) -> None:
        text = f"{count} read(s) of {function} {'too many' if kind == 'surplus' else 'too few'}"
        self.report.remark("clock", text, kind=kind, function=function, count=count, where=where)

    def _last_surplus(self) -> Mapping[str, Any] | None:
        """The last reading of a clock that the recording does not have."""
        clocks = (one.facts for one in reversed(self.report.verdict.remarks) if one.code == "clock")
        return next((facts for facts in clocks if facts.get("kind") == "surplus"), None)

    def _out_of_order(self, seq: int) -> None:
        if self.left:
            return
        if self.on_divergence != "warn":
            self._fail(divergence.out_of_order(self.trace.entry(seq)))
        self._reordered(seq, "was asked for")

    def _reordered(self, seq: int, what: str) -> None:
        entry = self.trace.entry(seq)
        name = f" {entry['name']!r}" if "name" in entry else ""
        self.report.inexact("reordered", f"entry {seq} ({entry['type']}{name}) {what} in another order", step=seq)

    # -- reads -----------------------------------------------------------------------------------------------------------

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            found, value = state.take(function, self._window)
            if not found:
                where = caller()
                if not self.state.ended:
                    self._drift("surplus", function, 1, where)
                    state.surplus += 1
                    if state.surplus > _STANDS_STILL:
                        self._fail(divergence.clock_stands_still(self.run_id, function))
                value = state.last(function)
                if value is None:
                    value = self._instant(function)
        return from_json(value)  # type: ignore[no-any-return]

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        if library is not None:
            found, value = self.recorded_read(scope, f"{function}:{library}")
            if found:
                return value  # type: ignore[no-any-return]
        return self.now(function, real)

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        drawn = real()
        found, value = self.recorded_read(scope, f"{function}:{library}")
        return value if found else drawn

    def recorded_read(self, scope: Scope, name: str) -> tuple[bool, Any]:
        """What a library read here of its clock, or drew, where the recording has it."""
        with self._lock:
            found, value = self.lanes.of(scope.lane).take(name, self._window)
        return found, from_json(value)

    def now(self, function: str, real: Callable[[], T]) -> T:
        """The instant that the run has come to on its own clock, for whom the recording has none."""
        begun: Any = from_json(self._clocks.get(_SAME_CLOCK.get(function, function)))
        if begun is None:
            return real()
        if function in _SAME_CLOCK:
            return (begun + self._since_start()).date()  # type: ignore[no-any-return]
        if isinstance(begun, int):
            return begun + self.progress.now()  # type: ignore[return-value]
        if isinstance(begun, float):
            return begun + self.progress.now() / 1e9  # type: ignore[return-value]
        return begun + self._since_start()  # type: ignore[no-any-return]

    def _since_start(self) -> timedelta:
        return timedelta(microseconds=self.progress.now() // 1000)

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        if self.failure is not None and _unwinds():
            return real()  # it asks for whom it has to wait before it closes what they use
        with self._lock:
            self._check()
            found, value = self.lanes.enter(scope.lane).take(function, self._window)
            if not found and not self.state.ended:
                self._drift("surplus", function, 1, caller())
        if not found:
            return real()
        agree(value)
        return value  # type: ignore[no-any-return]

    def asked_again(self, scope: Scope, function: str) -> None:
        self.recorded_read(scope, function)

    def status_read(self, scope: Scope, function: str, process: str | None) -> Any:
        """What the recorded program learnt of ``process`` here; one question more than it asked is a divergence. ``None``: nothing
        need be known of one."""
        with self._lock:
            self._check()
            found, value = self.lanes.enter(scope.lane).take(function, self._window)
            if not found and process is not None:
                self._fail(divergence.asked_too_often(self.run_id, process))
        return from_json(value)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        drawn = real()  # so that the state of a generator that the program seeded follows
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            found, value = state.take(function, self._window)
            if not found and self.state.ended:
                return drawn
            if not found:
                surplus = self._last_surplus() if state.surplus else None
                self._fail(divergence.draw_too_many(self.run_id, function, surplus, self._beside()))
            given = from_json(value)
            if isinstance(given, bytes) and isinstance(drawn, bytes) and len(given) != len(drawn):
                self._fail(divergence.draw_of_another_size(self.run_id, function, len(given), len(drawn)))
        return given  # type: ignore[no-any-return]

    def _window(self, state: LaneState) -> Iterator[tuple[int, str, list[Any]]]:
        """The reads between the lane's position and its next step that the lane has not been given yet."""
        for seq in state.unseen():
            role = self.index.role[seq]
            if role == READ:
                if not self._used[seq]:
                    entry = self.trace.entry(seq)
                    yield seq, entry["name"], self.trace.expand(entry["values"])
            elif not (self._used[seq] or seq in self.index.abandoned or (role == EVENT and not self.index.answer[seq])):
                break

    def _instant(self, function: str) -> Any:
        """Where a clock was never read in the recording: its reading when the run started."""
        if function not in self._clocks:
            self._fail(divergence.clock_never_read(self.run_id, function))
        return self._clocks[function]

    # -- one-entry steps and timers --------------------------------------------------------------------------------------

    def note(
        self,
        scope: Scope,
        type: str,
        name: str,
        *,
        input: object = None,
        output: object = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
        must: bool = False,
    ) -> int:
        if self.state.ended:
            raise self.late(type, name, False)
        actual = self._facts_of_note(scope, name, input, output, signature)
        with self._lock:
            self._check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, type)
            if seq is None:
                tree = {key: actual[key] for key in ("input", "output")}
                raise self._exhausted(scope, type, name, dumps(tree), state)
            facts = self._recorded_note(seq)
            if not self.equal(steady(facts), steady(actual)) and not self.differs_where_ignored(
                type, seq, facts, actual
            ):
                self.report_divergence(type, seq, facts, actual, "", harmless=facts["name"] == actual["name"])
            self._consume(state, type, seq)
        if self._debugger is not None:
            self._debugger.came_to(self, scope, seq)
        return seq

    def _facts_of_note(self, scope: Scope, name: str, input: object, output: object, signature: Any) -> dict[str, Any]:
        about = dict(signature or {})
        about.pop("info", None)
        return {
            "name": self.redactor.redact_text(name)[0],
            "agent_id": scope.agent,
            "input": self._encode(input)[0],  # apart from the output, as it was recorded
            "output": self._encode(output)[0],
            "meta": self._encode(about)[0],
        }

    def _recorded_note(self, seq: int) -> dict[str, Any]:
        entry = self.trace.entry(seq)
        return {
            "name": entry.get("name"),
            "agent_id": entry.get("agent_id"),
            "input": self.trace.expand(entry["input"]),
            "output": self.trace.expand(entry["output"]),
            "meta": _signature(entry),
        }

    def equal(self, recorded: Any, actual: Any) -> bool:
        """Whether a recorded tree and one of now, redacted, are equal, placeholders standing for their values."""
        data = dumps(recorded)
        if data == dumps(actual) and not (self.bindings and b"REDACTED" in data):
            return True
        return self.bindings.equal(self.redactor.redact(recorded)[0], actual)

    @property
    def warnings(self) -> list[str]:
        if not self.state.ended:
            return []
        meta = self.trace.entry(len(self.trace)).get("meta")
        recorded = self.trace.expand(meta.get("warnings")) if isinstance(meta, dict) else None
        return [str(sentence) for sentence in recorded] if isinstance(recorded, list) else []

    def part_ended(self, step: int, name: str, result: object) -> None:
        answer = self.index.answer[step]
        if answer:
            self.compare_end("result", f"the part {name!r} of the run came to another result", answer, result)

    @property
    def undo_log(self) -> Replay | None:
        return self

    def starts(self, lane: Lane) -> None:
        pass

    def validated(self, scope: Scope, spec: Spec) -> None:
        pass

    def next_undone(self, scope: Scope) -> int | None:
        """What the next recorded step of the scope's lane undoes, or ``None``.

        Compensations of steps that happened inside others are passed: a replay has none of those steps.
        """
        while True:
            with self._lock:
                self._check()
                seq = self._next(self.lanes.enter(scope.lane), "tool")
            about = {} if seq is None else (self.trace.entry(seq).get("meta") or {}).get("info") or {}
            of = about.get("compensates")
            if seq is None or type(of) is not int or not 0 < of < len(self._used):
                return None
            if self._used[of] != 2:
                return of
            self.take(seq)
            scope.lane.last = seq

    def ended_before_undoing(self, seq: int, of: int) -> bool:
        """Whether step ``seq`` had come to its end when step ``of`` was undone."""
        answer = self.index.answer
        return seq < len(answer) and 0 < answer[seq] < self.index.compensations.get(of, 0)

    def left_standing(self) -> set[int]:
        """The steps that the recorded run has undone at some time, or says it has not: none that an abort now would undo too."""
        last = self.trace.entry(len(self.trace))
        named = (last.get("meta") or {}).get("uncompensated") if last["type"] == "run.aborted" else None
        return {*self.index.compensations, *(one for one in named or () if type(one) is int)}

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """The identity that ``agent`` has now must be the recorded one."""
        with self._lock:
            self._check()
        seq = self.index.identities.get(agent)
        recorded = None if seq is None else self.trace.expand(self.trace.entry(seq)["input"])
        actual = self.redactor.redact(to_json(dict(identity or {})))[0]
        found = differences(recorded, actual)
        if found and not self.equal(recorded, actual):
            self._fail(divergence.another_identity(self.run_id, seq, agent, recorded, actual, found))

    def snapshot(self, name: str, state: Any) -> Any:
        at_start = self.trace.entry(1).get("meta", {}).get("snapshots", {})
        if name in at_start:
            return at_start[name]
        seq = self.index.snapshots.get(name)
        return None if seq is None else self.trace.expand(self._whole(self.trace.entry(seq))["output"])

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        return self.inputs.read(kind, name, value, own, lambda: self._next_in(scope.lane))

    def _next_in(self, lane: Lane) -> int:
        """The next recorded step of a lane; one past the last entry where it has none left."""
        with self._lock:
            left = (seq for seq in self.lanes.of(lane).ahead() if self.index.role[seq] != READ and not self._used[seq])
            return next(left, len(self.index) + 1)

    def _input_of(self, seq: int) -> tuple[Any, str | None]:
        entry = self.trace.entry(seq)
        about = entry["input"]
        return from_json(self.trace.expand(entry["output"])).get(about["name"]), about.get("where")

    def _step_between(self, first: int, last: int) -> bool:
        return any(self.index.role[seq] in (INTENT, EVENT, SINGLE) for seq in range(first + 1, last))

    def _answered_within(self, seq: int) -> int:
        """The step that a replay answers without its body, in whose course entry ``seq`` was written; 0 where there is none."""
        found, above = 0, self.trace.entry(seq).get("parent", 0)
        while above:
            entry = self.trace.entry(above)
            if self.index.role[above] == INTENT and entry["type"] != "span.start":
                found = above
            above = entry.get("parent", 0)
        return found

    def _original_input(self, seq: int) -> Any:
        """The recorded value of an input, its secrets in their places, where all are known; else ``None``."""
        entry = self.trace.entry(seq)
        if self.originals.lack(entry, "output"):
            return None
        return from_json(self.trace.expand(self._whole(entry)["output"])).get(entry["input"]["name"])

    def _whole(self, entry: dict[str, Any]) -> dict[str, Any]:
        """An entry with what was taken out of its outcome, where that is known."""
        return self.originals.of(entry, self.trace.expand, "output", "error", "arguments")

    def arm(self, scope: Scope, function: str, seconds: float) -> ReplayedTimer:
        lane = scope.lane
        with self._lock:
            self._check()
            state = self.lanes.of(lane) if function == "future.begin" else self.lanes.enter(lane)
            seq = self.index.timers.get((state.lane, function, *lane.armed(function)))
            if seq in self.index.hops:
                self.schedule.made_hops.add(seq)
            if seq is not None and function.startswith(CUT_OFF):
                self._made_again.add(seq)
        return ReplayedTimer(self, seq, lane)

    def handed_over(self, seq: int) -> None:
        """What threads hand to one another has been handed over where the log has it, at ``seq``."""

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        index = self.index
        busy = {lane for lane, _ in index.intents}
        ours: set[int] = set()
        for key, lane in index.lanes.items():  # a lane comes after its parent
            if key.parent in ours or key.name in tasks:
                ours.add(lane)
        for (lane, _, after, _), seq in index.timers.items():
            if lane not in ours and (lane not in busy if lane != here.id else after == here.last):
                self.schedule.skip(seq)

    # -- outcomes --------------------------------------------------------------------------------------------------------

    def outcome(self, step: ReplayedStep, seq: int) -> Outcome:
        """The entry ``seq`` decoded, delivered now."""
        with self._lock:
            self._used[seq] = 1
            scope = here()
            lane = scope.lane if scope is not None and scope.session.state is self.face.state else step.scope.lane
            state = self.lanes.enter(lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)
            line = self.trace.line(seq)
        if seq == self.index.answer[step.seq]:
            self.inputs.answered(step.seq)
        entry = loads(line)
        meta = entry.get("meta", {})
        if "redacted" in meta:
            if self.originals.lack(entry, "output", "error", "arguments"):
                self.report_placeholder(step.seq)
            entry = self._whole(entry)
        if "arguments" in entry:
            return self._changing(step, seq, entry)
        if 36 not in line and "error" not in entry:  # no dollar: neither a tag nor a reference
            return Outcome(entry.get("output"), None, meta, entry)
        try:
            output = self._decode(entry.get("output"), step.spec.hint())
            error = self._error(step, entry["error"]) if "error" in entry else None
        except NotReplayableError as failure:
            raise self.fail(self._located(failure, step)) from None
        return Outcome(output, error, meta, entry)

    # -- what a call changed in its arguments ----------------------------------------------------------------------------

    def called(self, step: ReplayedStep, called: CalledWith) -> None:
        """A call begins, or a generator goes on, that changed its arguments in the recording."""
        with self._lock:
            self._called = [one for one in self._called if one is not step.called]
            self._called.append(called)
            step.called = called

    def _changing(self, step: ReplayedStep, seq: int, entry: Mapping[str, Any]) -> Outcome:
        """An outcome that says what the call changed in its arguments, and which of them it returned: done again in place."""
        about = self.trace.expand(entry["arguments"])
        called, hint = step.called, step.spec.hint()
        output = self.trace.expand(entry.get("output"))
        try:
            with self._lock:
                if called is not None and not self._same_arguments(step, seq, called, about):
                    about = {"output": {at: to for at, to in about.get("output", {}).items() if called.knows(to)}}
                if called is not None:
                    after = called.after(about["was"]) if "output_after" in about else {}
                    value = Linking(hint, called, after).whole(grafted(output, about))
                else:
                    value = self._decode(entry.get("output"), hint)
                    self._leave_arguments(
                        step, "changed its arguments in the recording, and they are not looked at here"
                    )
                self._called = [one for one in self._called if one is not called]
            error = self._error(step, entry["error"]) if "error" in entry else None
        except NotReplayableError as failure:
            raise self.fail(self._located(failure, step)) from None
        except Exception as malformed:  # a trace is untrusted
            reason = f"what it changed is malformed ({type(malformed).__name__}: {str(malformed)[:200]})"
            raise self.fail(self._located(NotReplayableError(reason, reason=reason), step)) from malformed
        return Outcome(value, error, entry.get("meta", {}), entry)

    def _same_arguments(self, step: ReplayedStep, seq: int, called: CalledWith, about: Mapping[str, Any]) -> bool:
        """Change the arguments as the recorded call did; false, and said, where they are not as they were then."""
        was: Mapping[str, str] = about.get("was", {})
        names = ", ".join(was)
        other = [name for name, digest in was.items() if not self._as_then(step, called, name, digest)]
        if other:
            names = ", ".join(other)
            self._leave_arguments(step, f"changed {names} in the recording, which was another one when it was called")
            return False
        if all(called.untouched(name) for name in was):
            changed = called.apply(about.get("patch", []))
            for one in self._called:
                one.also(changed)
            return True
        if all(self._digest(step, name, called.tree(name)) == digest for name, digest in about["is"].items()):
            return True  # what went on beside it has changed them in just that way
        if self._beside_others(step.seq, seq):
            text = f"{self._call_of(step)} changed {names} in the recording while others went on, who change it here: left as it is"
            self.report.remark("shared_argument", text, step=step.seq)
        else:
            self._leave_arguments(
                step, f"changed {names} in the recording, which has been changed here since it was called"
            )
        return False

    def _leave_arguments(self, step: ReplayedStep, how: str) -> None:
        self.report.inexact("shared_argument", f"{self._call_of(step)} {how}: left as it is", step=step.seq)

    def _call_of(self, step: ReplayedStep) -> str:
        return f"{step.spec.family} {step.spec.render(self.redactor).name!r} (step {step.seq})"

    def _as_then(self, step: ReplayedStep, called: CalledWith, name: str, digest: str) -> bool:
        tree = called.state(name)
        if self._digest(step, name, tree) == digest:
            return True
        recorded = self.trace.expand(self.trace.entry(step.seq)["input"])
        if name not in recorded:
            return False
        recorded, actual = self.redactor.redact({name: recorded[name]})[0], self.redactor.redact({name: tree})[0]
        return self.bindings.equal(steady(recorded), steady(actual))

    def _digest(self, step: ReplayedStep, name: str, tree: Any) -> str:
        return state_hash(self._encode({name: tree}, owned=True, own=step.spec.patterns)[1])

    def _beside_others(self, start: int, end: int) -> bool:
        """Whether another lane made steps between two entries of one."""
        lane, inside = self.index.lane[start], set(self.index.inside(start))
        return any(
            self.index.lane[seq] != lane and seq not in inside and self.index.role[seq] in (INTENT, EVENT, SINGLE)
            for seq in range(start + 1, end)
        )

    def let_others_go_on(self, seq: int) -> None:
        """In an event loop: the other tasks go on until the turn of ``seq``, for a call that does not await."""
        loop = running_loop()
        if loop is None or not can_go_on(loop):
            return
        came: list[bool] = []
        self.schedule.callback(seq, lambda: came.append(True))
        self.progress.queue(loop).nested()
        go_on(loop, lambda: bool(came) or self.failure is not None)
        self._check()

    def report_placeholder(self, seq: int) -> None:
        """The program was given a placeholder in the output of the step ``seq``: remarked once."""
        sentence = f"step {seq}'s output was redacted: the program was given a placeholder"
        if self.originals.locked:
            sentence += f" (name the key of the run's vault in {KEY_VARIABLE} for what it stands for)"
        if seq not in self._handed_on:
            self._handed_on.add(seq)
            self.report.remark("redacted", sentence, step=seq)
            self.report.warn(sentence)

    def _error(self, step: ReplayedStep, error: Any) -> BaseException:
        tree = self.trace.expand(error)
        exception = exception_from_json(tree)
        for code, sentence in shortfalls(tree, exception):
            name = step.spec.render(self.redactor).name
            said = f"step {step.seq} ({step.spec.family} {name!r}) {sentence}"
            say = self.report.inexact if code == "exception" else self.report.remark
            say(code, said, step=step.seq)
            self.report.warn(said)
        return exception

    def decoded(self, spec: Spec, seq: int) -> Outcome:
        """The entry ``seq`` before its turn, without its error."""
        entry = self._whole(self.trace.entry(seq))
        return Outcome(self._decode(entry.get("output"), spec.hint()), None, entry.get("meta") or {}, entry)

    def _decode(self, output: Any, returns: Any) -> Any:
        return from_json(self.trace.expand(output), returns)

    def _located(self, failure: NotReplayableError, step: ReplayedStep) -> NotReplayableError:
        name = step.spec.render(self.redactor).name
        return NotReplayableError(
            f"what {step.spec.family} {name!r} (step {step.seq}) came to can't be rebuilt: {failure.reason}.",
            run_id=self.run_id,
            step=step.seq,
            location=caller(),
            reason=failure.reason,
            next_action=failure.next_action,
        )

    # -- failures --------------------------------------------------------------------------------------------------------

    def fail(self, error: ReplayError, code: str | None = None) -> ReplayError:
        """Make ``error`` the replay's failure (the first one stays) and return what to raise here; ``code`` is for the verdict."""
        if at_prompt():
            return error
        with self._lock:
            if self.failure is None and self.report.verdict.final:
                return error
            if self.failure is None:
                self.failure = error
                self.report.failure = error
                if not isinstance(error, InexactReplayError):  # that is the verdict's own
                    self._blame(error, code)
                # The program still has to unwind, and need not come out of that alive; at the end, the block raises it.
                if not self.state.ended or code == "late":
                    brief = error.fresh()
                    brief.next_action = None  # that comes at the end, in the words of whoever reports it
                    if process.role.reports_failures:
                        brief.what = error.what.partition("\n")[0]
                    say(f"the replay has failed: {brief}")
                self.schedule.fail()
                return error
        return self._again()

    def _blame(self, error: ReplayError, code: str | None = None) -> None:
        """A failure is a reason of the verdict; ``code`` where its own class does not say enough."""
        code = code or error.code.replace("-", "_")
        self.report.inexact(code, error.what.partition("\n")[0], step=error.step, where=error.location)

    def compare_end(self, code: str, what: str, seq: int, value: object) -> None:
        """What the program came to, compared with the output of the entry ``seq``."""
        recorded = self.trace.expand(self.trace.entry(seq).get("output"))
        actual = self.redactor.redact(to_json(value))[0]
        found = differences(recorded, actual)
        if found and not self.equal(recorded, actual):
            self.ended_otherwise(code, divergence.another_result(self.run_id, what, seq, recorded, actual, found))

    def ended_otherwise(self, code: str, error: ReplayError, cause: BaseException | None = None) -> None:
        """The program came to another end than the recorded one. Raises that, unless the caller asked to go on."""
        if self.on_divergence == "warn":
            self._blame(error, code)
            return
        raise self.fail(error, code) from cause

    def _fail(self, error: ReplayError) -> NoReturn:
        raise self.fail(error)

    def _again(self) -> ReplayError:
        assert self.failure is not None
        copy = self.failure.fresh()
        assert isinstance(copy, ReplayError)
        return copy

    def going(self) -> None:
        """Raise the failure, if there is one."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise self._again()

    def _stuck(self, waiting: list[str]) -> ReplayError | None:
        children = self.state.children
        failure, moves = (None, False) if children is None else children.stuck(waiting)
        if moves:
            return None
        if failure is not None:
            return self.fail(failure)
        return self.fail(divergence.everything_waits(self.run_id, waiting, self.threads.several), "everything_waits")

    def _slow(self, seq: int | None, waiting: list[str]) -> None:
        """The next event has been waited for for long."""
        what = "something that was never recorded"
        if seq is not None:
            entry = self.trace.entry(seq)
            step = self.index.answer[seq] if self.index.role[self.index.answer[seq]] == INTENT else seq
            what = (
                f"step {step} ({self.trace.entry(step)['type']} {self.trace.entry(step).get('name', entry['type'])!r})"
            )
        said = "".join(f"\n  {line}" for line in waiting)
        say(f"the replay of {self.run_id} waits for {what}; these may lead to it:{said}")

    def _exhausted(self, scope: Scope, kind: str, name: str, data: bytes, state: LaneState) -> ReplayError:
        near = self._nearest_text(self._nearest(kind, data, None))
        steps = self.index.intents.get((state.lane, kind))
        count = len(steps) if steps is not None else 0
        lane = scope.lane.path or "the run's own line"
        used = f"{count} in lane {lane}, all used{near}"
        if self.trace.entry(len(self.trace))["type"] == "run.aborted":
            return self.fail(divergence.aborted_here(self.run_id, shown_as(self.trace.path), kind, name))
        skipped = self._not_made_here(scope)
        used += self._beside() if skipped is None else ""
        return self.fail(divergence.no_more(self.run_id, kind, name, used, skipped))

    def _not_made_here(self, scope: Scope) -> str | None:
        """The name of the call of a library in a thread in which the recorded program was cut off here, where this one has made none."""
        found = self.index.cut_off.get((scope.lane.id, scope.lane.last), {})
        return next((name for seq, name in found.items() if seq not in self._made_again), None)

    def _diverged(self, scope: Scope, spec: Spec, tree: Any, data: bytes, seq: int, entry: Mapping[str, Any]) -> None:
        recorded = {
            "name": entry.get("name"),
            "agent_id": entry.get("agent_id"),
            "input": self.trace.expand(entry["input"]),
            "meta": _signature(entry),
        }
        rendered = spec.render(self.redactor)
        actual = {"name": rendered.name, "agent_id": scope.agent, "input": loads(data), "meta": rendered.meta}
        if self.differs_where_ignored(spec.family, seq, recorded, actual):
            return
        # Another model is another parameter of the same call: the name of a model call is its model.
        same_kind = recorded["name"] == rendered.name or spec.family == "llm"
        same_kind = same_kind and recorded["meta"].get("side_effect") == spec.side_effect
        skipped = self._not_made_here(scope)
        found = self._nearest(spec.family, data, seq)
        another = recorded["name"] != rendered.name and spec.family != "llm"
        near = ""
        # The same step with another field is what changed there: no other step has to do with it, and no order of steps.
        if another or (found is not None and found[1]):
            near = self._nearest_text(found)
        if skipped is None and (near or another or _is_reordered(dumps(recorded["input"]), data)):
            near += self._beside()
        if spec.family in ("llm", "http"):
            near += "".join(f"\n  {sentence}" for sentence in self.settings_changed)
        harmless = same_kind and spec.side_effect != "irreversible"
        self.report_divergence(spec.family, seq, recorded, actual, near, harmless=harmless, skipped=skipped)

    def differs_where_ignored(
        self, kind: str, seq: int, recorded: Mapping[str, Any], actual: Mapping[str, Any]
    ) -> bool:
        """Whether a step is the recorded one ``seq`` but for the fields that the caller left out of the comparison; that is noted."""
        ignored = self.ignored.fields(kind, recorded["name"])
        if not ignored:
            return False
        left = [self.redactor.redact(divergence.without(steady(facts), ignored))[0] for facts in (recorded, actual)]
        if not self.bindings.equal(*left):
            return False
        found = [one for one in differences(steady(recorded), steady(actual)) if ignored.fullmatch(one["path"])]
        names = ", ".join(dict.fromkeys(one["path"] for one in found))
        self.report.allow(
            "ignored", f"{kind} {recorded['name']!r} differs in {names}, which is left out", step=seq, differences=found
        )
        return True

    def report_divergence(
        self,
        kind: str,
        seq: int,
        recorded: dict[str, Any],
        actual: dict[str, Any],
        near: str,
        *,
        harmless: bool,
        skipped: str | None = None,
    ) -> None:
        """A step of ``kind`` is not the recorded step ``seq``: fail, or note it where the replay may go on."""
        found = differences(steady(recorded), steady(actual)) or [{"path": "input (fingerprint)"}]
        if self.on_divergence == "warn" and harmless:
            text = (
                f"the program's {kind} {actual['name']!r} is not the recorded step {seq}, and was answered all the same"
            )
            self.report.inexact("passed_over", text, step=seq, where=caller(), differences=found)
            return
        recorded = {"type": self.trace.entry(seq)["type"], **recorded}
        self._fail(
            divergence.another_step(
                self.run_id, shown_as(self.trace.path), seq, recorded, {"kind": kind, **actual}, found, near, skipped
            )
        )

    def _nearest(self, kind: str, data: bytes, mismatched: int | None) -> tuple[int, bool] | None:
        candidates: list[tuple[int, Mapping[str, Any], bytes]] = []
        for (_lane, family), steps in self.index.intents.items():
            if family == kind:
                for seq in steps[:]:
                    if seq != mismatched and self._used[seq] != 2 and len(candidates) < _NEIGHBOURS:
                        entry = self.trace.entry(seq)
                        candidates.append((seq, entry, dumps(self.trace.expand(entry.get("input")))))
        return nearest(data, candidates)

    def _nearest_text(self, near: tuple[int, bool] | None) -> str:
        if near is None:
            return ""
        seq, equal = near
        used = " (already answered)" if self._used[seq] else ""
        return f"\n  nearest recorded step: {seq}{used}, " + ("with equal input" if equal else "with other input")

    def _beside(self) -> str:
        """What to think of where several threads take part."""
        return divergence.THREAD_ORDER if self.threads.several else ""

    def made(self, seq: int) -> bool:
        """Whether the program has made the recorded step ``seq`` itself, not only one that it happened inside."""
        return self._used[seq] == 1

    def upcoming(self, scope: Scope, family: str) -> int:
        """The recorded step of this family that the scope's lane makes next; one past the last entry where it has none left."""
        with self._lock:
            seq = self._next(self.lanes.of(scope.lane), family)
        return len(self.index) + 1 if seq is None else seq

    def used(self, seq: int) -> bool:
        """Whether a recorded step has been consumed, or skipped with the one that it happened inside."""
        return bool(self._used[seq])

    def take(self, seq: int) -> None:
        """Consume the recorded step ``seq`` with all that belongs to it: for who reads the recording and compares it himself."""
        with self._lock:
            self._check()
            self._used[seq] = 1
            self.report.consumed += 1
            self._skip_inside(seq)
            piece = self.index.next_chunk[seq]
            while piece:
                self._deliver(piece)
                piece = self.index.next_chunk[piece]
            if self.index.role[seq] == INTENT and self.index.answer[seq]:
                self._deliver(self.index.answer[seq])

    def _deliver(self, seq: int) -> None:
        self._used[seq] = 1
        self.schedule.skip(seq)

    def passed(self, lane: Lane, seq: int) -> None:
        """A structural step has ended: its end is behind the lane now."""
        with self._lock:
            self._used[seq] = 1
            state = self.lanes.enter(lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def account(self) -> None:
        """Bring the report up to date."""
        with self._lock:
            known = set(self.report.reordered)
            for seq in self.schedule.reordered:
                if seq not in known:
                    self._reordered(seq, "was delivered")
            self.report.unconsumed = [] if self.may_leave else self._unconsumed()
            if self.state.ended and self.failure is None and not self._accounted:
                self._accounted = True
                if self.may_leave:
                    self._account_for_dropped()
                    return
                self._account_for_events()

    def _account_for_dropped(self) -> None:
        """Something was live: what the program has not made since is part of what came of that."""
        for step in self._unconsumed():
            text = f"step {step['seq']} ({step['type']} {step['name']!r}) was not made"
            self.report.allow("not_made", text, step=step["seq"], name=step["name"])

    def _account_for_events(self) -> None:
        """What the recording was brought from outside and the replay was not, however that came about, and where lanes were let go."""
        for seq in self.schedule.undelivered:
            if seq in self.index.hops:
                self.skip_hop(seq)
        for seq in self.schedule.undelivered:
            step = self.index.answer[seq]
            if step and not self._used[step]:
                continue  # nobody asked for the step
            if step and self.index.answer[step] == seq and self.index.next_chunk[step]:
                continue  # to close a stream, or leave it to be collected, is no step
            entry = self.trace.entry(seq)
            if step:
                named = self.trace.entry(step).get("name")
                what = f"entry {seq} ({entry['type']} of {named!r}) was never asked for"
            else:
                what = f"entry {seq} ({entry.get('name')!r}) came in the recording, and never did in the replay"
            self.report.inexact("undelivered", what, step=seq)
        for seq in self.schedule.passed:
            what = f"nothing else could go on before entry {seq}: what should have waited for it went past its place"
            self.report.remark("place", what, step=seq)

    def finish(self) -> None:
        """The program has ended: whatever was recorded and not asked for is reported. Raises the first failure."""
        self.account()
        with self._lock:
            if self.failure is None:
                self._leftovers()
            self._check()

    def close_verdict(self) -> None:
        """The verdict is about to be reported, and the process to end: nothing that is asked for from now on changes it."""
        with self._lock:
            self.report.verdict.final = True

    def conclude(self, error: BaseException | None = None) -> None:
        """The replay is over, and so is its verdict: raises ``InexactReplayError`` where it was not exact and nobody says so yet.

        ``error`` is what the program itself ends with. It comes out as it is, with a note; and where the caller asked to go on, that is
        a warning too.
        """
        self.account()
        verdict = self.report.verdict
        verdict.ended = True
        if error is not None and self.report.unconsumed and self.failure is None:
            text = divergence.left_over(len(self.report.unconsumed))
            self.report.inexact("unconsumed_steps", text, step=self.report.unconsumed[0]["seq"])
        if verdict.answer != "inexact" or self.failure is not None:
            return
        found = verdict.error(self.run_id)
        if error is None and self.on_divergence != "warn":
            self._fail(found)
        sentence = f"replay of {self.run_id}: {found.what}"
        if error is not None:
            error.add_note(f"tracekit: {sentence}")
        warn_of_replay(sentence, InexactReplayWarning, error)

    def _leftovers(self) -> None:
        if not self.index.supplies and not self.others_have_steps:
            self._fail(divergence.nothing_recorded(self.run_id))
        if self.report.unconsumed:
            self._fail(divergence.never_asked_for(self.run_id, self.report.unconsumed))
        entered = {state.lane for state in self.lanes.states}
        unopened = [LaneState(lane, items) for lane, items in self.index.items.items() if lane not in entered]
        for state in [*self.lanes.states, *unopened]:
            for seq in state.rest():
                if self.index.role[seq] == READ:
                    self._unread(state, seq)

    def _unconsumed(self) -> list[dict[str, Any]]:
        left: list[dict[str, Any]] = []
        for seq in range(1, len(self.index) + 1):
            if self.index.role[seq] in (INTENT, SINGLE) and not self._used[seq]:
                entry = self.trace.entry(seq)
                left.append({"seq": seq, "type": entry["type"], "name": entry.get("name")})
        return left


def _is_reordered(one: bytes, other: bytes) -> bool:
    """Whether two inputs are made of the same in another order, as of a list that threads share."""
    return len(one) == len(other) and sorted(one) == sorted(other)


def _unwinds() -> bool:
    """Whether the calling thread is on its way out of the program because of the failure of a replay."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, ReplayError):
        error = error.__context__
    return error is not None


def ts_of(line: bytes) -> int:
    """The instant in a line of a trace."""
    return int(line[line.index(b'"ts_ns":') + 8 :].partition(b",")[0])


def _signature(entry: Mapping[str, Any]) -> dict[str, Any]:
    meta = dict(entry.get("meta") or {})
    meta.pop("info", None)
    return meta
