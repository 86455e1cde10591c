"""The session that replays: matches each step with the recorded one, and answers it from the log."""

from __future__ import annotations

import sys
from _thread import get_native_id
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from orjson import loads

from .._journal.entry import CUT_OFF, ENDS, family_of, info_of, meta_of, read_by_library
from .._journal.reader import Trace
from .._journal.vault import KEY_VARIABLE
from .._reality import OwnLock, gate, running_loop, shown_by
from .._values import dumps, to_json
from .._values.decoding import exception_from_json, from_json, shortfalls, structured
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    InexactReplayWarning,
    NotReplayableError,
    ReplayError,
    RunEndedError,
    TracekitError,
)
from . import divergence
from .callsite import caller, say, warn_of_replay
from .divergence import Divergences, FirstFailure
from .index import EVENT, INTENT, READ, SINGLE, Index, LaneKey, module_lane
from .inputs import LeftStates, OwnFiles, ReplayedInputs
from .lane import Lane
from .matching import Bindings, Comparison, Ignored, RecordedPlaceholders, differences, placeholders_of, steady
from .mutations import ChangedArguments
from .redaction import Originals, Redactor
from .schedule import Schedule, can_run_other_tasks, run_other_tasks
from .session import STEADY, Log, Outcome, Refusal, RunClock, RunState, Scope, Step, Timer, here
from .signal_calls import SignalCalls
from .step import Note, Request, Spec
from .threads import Waiting, others_run_user_code
from .verdict import Report

if TYPE_CHECKING:
    from .progress import Progress
    from .schedule import Ticket
    from .spending import Budget, Spending

__all__ = ["NEEDED", "Replay", "ReplayedStep", "ReplayedTimer", "for_replay"]

_NOTHING: Final[Mapping[str, Any]] = {}
#: The function with which a thread sleeps.
_SLEEP: Final = "time.sleep"

#: What a replay needs from a trace: computed by the verifying pass, or loaded from an index.
NEEDED: Final = (Index, RecordedPlaceholders)


def for_replay(path: str) -> Trace:
    """Open a trace for a replay."""
    return Trace(path, collect=NEEDED, indexed=True)


# -- replayed steps ----------------------------------------------------------------------------------------------------
#
# Steps and timers that are answered by the log.


class ReplayedStep(Step):
    """A step answered from the log; see ``session.Step``. The body of a structural step runs, and only its end is
    matched."""

    __slots__ = ("_chunk", "_inside", "arguments", "live", "request", "scope", "seq", "session", "spec")

    deferred: Final = False

    def __init__(self, session: Replay, scope: Scope, request: Request, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.seq: Final = seq
        #: Its arguments, if the recorded call may have changed them.
        self.arguments: Any = None if request.spec.mutates is None else request.input
        self.live: Final = request.spec.structural
        self._chunk = session.index.next_chunk[seq]
        self._inside: Spending | None = None

    def body(self) -> Scope:
        inside = self.scope.inside(self.seq, live=not self.spec.structural)
        if self.spec.budget is None or not inside.session.state.live:
            return inside
        return inside.within(self._budget(self.spec.budget))

    def _budget(self, budget: Budget) -> Spending:
        """Return the ledger of the body. In a resumed run the body may go live: the ledger starts with what the log
        says was spent."""
        if self._inside is None:
            self._inside = budget.opened(self.spec.name, self.scope.spending)
        return self._inside

    def holds(self, instance: object) -> None:
        if instance is not None and isinstance(self.arguments, dict):
            self.arguments = {**self.arguments, "self": instance}

    def resumed(self) -> None:
        pass

    def _note_arguments(self, seq: int) -> None:
        """Note the state of the arguments if the recorded call later changes or returns them."""
        if isinstance(self.arguments, dict) and b'"arguments":' in self.session.trace.line(seq):
            self.session.arguments.begins(self, self.arguments, self.spec.mutates or ())

    def answer(self) -> Outcome:
        seq = self._outcome()
        if seq is None:
            self.session.schedule.wait(None)
            raise self._left_running()
        self._note_arguments(seq)
        if self.seq in self.session.index.waited:
            self.session.let_others_go_on(seq)
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def answer_async(self) -> Outcome:
        seq = self._outcome()
        if seq is None:
            await self.session.schedule.wait_async(None)
            raise self._left_running()
        self._note_arguments(seq)
        lane: Lane | None = self._reader() if self.session.index.next_chunk[self.seq] else self.scope.lane
        if seq in self.session.index.abandoned:
            lane = None  # no event, after which the lane's callbacks would be counted anew
        await self.session.schedule.wait_async(seq, self._suspended(seq), lane)
        return self.session.outcome(self, seq)

    def _reader(self) -> Lane:
        """Return the lane of the code that takes a piece, or finds the end."""
        scope = here()
        return self.scope.lane if scope is None or scope.session.state is not self.session.face.state else scope.lane

    def next_chunk(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        self._note_arguments(seq)
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def next_chunk_async(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        self._note_arguments(seq)
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
                session.failed.check()
                if seq is None:
                    raise self._left_running()
                found = session.outcome(self, seq)
            except ReplayError as failure:
                found = Outcome(None, failure, _NOTHING, _NOTHING)
            then(found)

        ticket = session.schedule.callback(seq, arrive, lane=self.scope.lane)
        return lambda: session.schedule.cancel(ticket)

    def take_next(self) -> Outcome:
        seq = self._advance()
        if seq is None:
            self.session.schedule.wait(None)
            raise self._left_running()
        self.session.schedule.skip(seq)
        return self.session.outcome(self, seq)

    def _advance(self) -> int | None:
        """Return the next chunk, else what ``_outcome`` returns."""
        seq: int | None = self._chunk
        if seq:
            self._chunk = self.session.index.next_chunk[seq]
        else:
            seq = self._outcome()
        if seq is not None:
            self._note_arguments(seq)
        return seq

    def alike(self, recorded: object, actual: object) -> bool:
        return self.session.comparison.alike(recorded, actual)

    def comes_in_pieces(self) -> bool:
        return bool(self._chunk)

    def ahead(self, key: str) -> str | None:
        session = self.session
        seq = self._chunk or session.index.answer[self.seq]
        if not seq or b'"%b":' % key.encode() not in session.trace.line(seq):
            return None
        found = meta_of(session.trace.entry(seq)).get(key)
        return found if isinstance(found, str) else None

    def _outcome(self) -> int | None:
        """Return the entry with the outcome; ``None`` if the recorded run ended while the lane was inside this step."""
        session = self.session
        seq = session.index.answer[self.seq]
        if seq:
            return seq
        lane = self._reader() if session.index.next_chunk[self.seq] else self.scope.lane
        if not session.holds_past_end(lane):
            raise session.failed.by(self._without_outcome())
        return None

    def _without_outcome(self) -> ReplayError:
        session, spec = self.session, self.spec
        return divergence.without_outcome(session.trace, session.run_id, self.seq, spec.family, spec.name)

    def _left_running(self) -> ReplayError:
        """Return the error for a lane that was held inside this step to the end of the replay: no failure of it."""
        return self.session.failure or self._without_outcome()

    def _suspended(self, seq: int) -> bool:
        trace = self.session.trace
        line = trace.line(seq)
        if b'"suspended":' in line and bool(meta_of(trace.entry(seq)).get("suspended")):
            return True
        if b'"settled":' in line and "settled" in info_of(trace.entry(seq)):
            return True  # by a person, after everything else
        return self.seq in self.session.index.waited

    # -- structural steps ----------------------------------------------------------------------------------------------

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


#: What a thread that has taken a call from a queue hands its result over by.
_RESULTS: Final = ("loop.call", "queue.put")


class ReplayedTimer(Timer):
    """A sleep, a deadline or another event that comes at its recorded place; see ``session.Timer``.

    One that has not fired by the end of the replay is ``live`` from then on: it runs on the real clock, as in the
    recorded program.
    """

    __slots__ = ("_key", "_lane", "_patient", "_seq", "_session", "_sleep", "_ticket", "on_delivery")

    pending: Final = False

    def __init__(
        self,
        session: Replay,
        key: tuple[int, str, int, int],
        seq: int | None,
        lane: Lane,
        sleep: str | None = None,
        *,
        patient: bool = False,
    ) -> None:
        self._session = session
        #: What identifies it among the timers of the recording.
        self._key = key
        self._seq = seq
        self._lane = lane
        #: Whether it happens when nothing else can go on, although it was never recorded.
        self._patient = patient
        #: The function with which a thread sleeps, if its end is not in the recording.
        self._sleep = sleep
        self._ticket: Ticket | None = None
        #: Called when it fires, before its waiters continue.
        self.on_delivery: Callable[[], object] | None = None

    @property
    def live(self) -> bool:
        schedule = self._session.schedule
        return schedule.over and (self._seq is None or not schedule.is_done(self._seq))

    @property
    def comes(self) -> bool:
        """Whether it fired in the recording."""
        return self._seq is not None

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        """Do nothing: it ran out after the end of the replay, which is in no log."""

    @property
    def given_up(self) -> bool:
        session = self._session
        return self._key in session.index.given_up and session.failure is None and not session.schedule.over

    @property
    def about(self) -> Mapping[str, Any]:
        """Return what was recorded with it."""
        return {} if self._seq is None else self._session.trace.entry(self._seq)["input"]

    def identity(self) -> list[Any]:
        return [*self._key]

    def from_outside(self) -> None:
        """Note that another process causes it, so that it is waited for."""
        if self._seq is not None:
            self._session.schedule.brings(self._seq, self._lane, outside=True)

    def from_thread(self) -> None:
        """Note that a thread causes it: its lane need not do anything more for it."""
        if self._seq is not None:
            self._session.schedule.brings(self._seq, self._lane)

    def queued(self, take_up: Callable[[], bool]) -> None:
        """Note that it is the beginning of a call that waits in a pool; ``take_up`` has another worker take that up."""
        if self._seq is not None:
            self._session.schedule.queued_calls[self._seq] = take_up

    def taken_up(self) -> None:
        """Note that a worker has taken up the call."""
        self._session.schedule.queued_calls.pop(self._seq or 0, None)

    def takes_turn_of(self, other: ReplayedTimer) -> bool:
        """Have the thread that waits for this event wait for ``other`` in its place, as it does what leads to that. Return
        whether one waits. Called by the observer, with the schedule's lock."""
        if self._seq is None or other._seq is None or not self._session.schedule.exchange(self._seq, other._seq):
            return False
        other.taken_up()
        return True

    def comes_yet(self) -> bool:
        """Return whether it may still fire: only past the end of the log of a resumed run."""
        return False

    def unrecorded(self, name: str) -> None:
        """Remark that this is the result of a call in a thread, ``name``, that the recording lacks; it arrives when it
        is done."""
        self._session.progress.calls_differ = True
        self._session.report.remark(
            "hops", f"a call in a thread, {name!r}, of which nothing is captured, is not in the recording"
        )

    def happened(self) -> None:
        """Note that threads have handed something over, as in the recording."""
        if self._seq is not None:
            self._session.handed_over(self._seq)

    def until_result(self) -> None:
        """Wait, in a thread that has taken a call from a queue, until the result that it hands over is the next event.

        What such calls share, a database for example, they then use in the order of their results.
        """
        items = self._session.index.items.get(self._lane.id, ())
        i = bisect_left(items, self._seq or 0) + 1
        entry = self._session.trace.entry(items[i]) if i < len(items) else {}
        if entry.get("type") == "clock" and entry.get("name") in _RESULTS:
            self._session.schedule.until_next(items[i])

    def wait(self) -> None:
        if self._seq is not None and b'"waited":true' in self._session.trace.line(self._seq):
            self._session.let_others_go_on(self._seq)
        if self._sleep is None:
            self._session.schedule.wait(self._seq, patient=self._patient)
        else:
            with self._session.threads.sleeping(self._sleep):
                self._session.schedule.wait(self._seq)
        self._delivered()

    async def wait_async(self) -> None:
        await self._session.schedule.wait_async(self._seq, True, self._lane)
        self._delivered()

    def noted(self) -> None:
        """Note that an event that nobody waits for, and the log only notes, has happened here, too."""
        self._delivered()

    def hold(self, let_go: Callable[[], object]) -> None:
        """Have ``let_go`` called when nothing else can go on: what was never recorded happens nevertheless."""
        self._session.schedule.hold(let_go)

    def unhold(self, let_go: Callable[[], object]) -> None:
        """What was held has gone on."""
        self._session.schedule.unhold(let_go)

    def await_lock(self) -> None:
        """Wait, before taking a lock, until the thread has taken it that had it before in the recording, or nothing else
        can go on."""
        seq = self._seq or 0
        before = self._session.index.following.get(seq)
        if before is not None:
            if running_loop() is None:  # what an event loop runs has its place already
                self._session.schedule.until_past(seq)
            self._session.lock_order.wait(before)

    def took_lock(self) -> None:
        """Note that the lock is taken."""
        self._session.lock_order.taken(self._key)

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        def fire() -> None:
            self._delivered()
            callback()

        act = callback if self.on_delivery is None else fire
        self._ticket = self._session.schedule.callback(
            self._seq, act, anywhere=anywhere, lane=self._lane, patient=self._patient
        )

    def _delivered(self) -> None:
        if self.on_delivery is not None:
            self.on_delivery()

    def cancel(self) -> None:
        if self._ticket is not None:
            self._session.schedule.cancel(self._ticket)


class LockOrder:
    """Has the threads of a replay take a lock in the recorded order, where it passed from one to another.

    A thread that takes one waits until another one has taken it (``Index.following``). That is no event, since only the
    two are concerned.
    """

    def __init__(self, index: Index, schedule: Schedule) -> None:
        self._schedule: Final = schedule
        self._awaited: Final = index.followed
        self._taken: Final[set[tuple[int, str, int, int]]] = set()
        self._waiting: Final[dict[tuple[int, str, int, int], list[Callable[[], None]]]] = {}
        #: The lanes that have ended: what they have not taken, they never will.
        self._ended: Final[set[int]] = set()
        self._lock: Final = OwnLock()

    def taken(self, key: tuple[int, str, int, int]) -> None:
        if key in self._awaited:
            with self._lock:
                self._taken.add(key)
                waiting = self._waiting.pop(key, ())
            for let_go in waiting:
                let_go()

    def ended(self, lanes: set[int]) -> None:
        """Let the threads go on that wait for one of these lanes: they have ended."""
        with self._lock:
            self._ended.update(lanes)
            waiting = [self._waiting.pop(key) for key in [*self._waiting] if key[0] in lanes]
        for let_go in chain.from_iterable(waiting):
            let_go()

    def wait(self, key: tuple[int, str, int, int]) -> None:
        """Wait until the lock has been taken there, or never will be, or nothing else can go on."""
        opened = gate()

        def let_go() -> None:
            with suppress(RuntimeError):  # somebody else has released it
                opened.release()

        with self._lock:
            if key in self._taken or key[0] in self._ended:
                return
            self._waiting.setdefault(key, []).append(let_go)
        self._schedule.hold(let_go)
        try:
            self._schedule.threads.wait_in(opened)
        finally:
            self._schedule.unhold(let_go)


# -- the lanes of the recording ----------------------------------------------------------------------------------------
#
# The position of a replay's lane, and the clock and random reads between two of its steps.

_NONE: Final = array("I")
#: Returns the reads that continue a window: entry, function, values.
_More = Callable[["LaneCursor"], Iterable[tuple[int, str, list[Any]]]]


class LaneCursor:
    """A lane's position among its recorded ``items``, and its cursors by kind of step.

    The reads between two steps form a window, matched by function; passing the next step closes it. It ends before the
    first item that the program has not reached, and continues once it has: a result recorded in this lane may go to
    another one.
    """

    __slots__ = (
        "_at", "_items", "_last", "_left", "_more", "_seen", "_window", "cursors", "entered", "lane", "surplus",
    )  # fmt: skip

    def __init__(self, lane: int, items: array[int] | None, more: _More) -> None:
        self.lane = lane
        self._more: Final = more
        #: How many clock reads in the present window are not in the recording.
        self.surplus = 0
        #: Whether the program has done anything recorded in it.
        self.entered = False
        self.cursors: dict[str, int] = {}
        self._items = _NONE if items is None else items
        self._at = 0
        #: The remaining reads of the present window, by function, and the position up to which they were collected.
        self._window: dict[str, deque[tuple[int, Any]]] = {}
        self._seen = 0
        #: How many values of the entries in it are left.
        self._left: dict[int, int] = {}
        self._last: dict[str, Any] = {}

    def stand_for(self, lane: int, items: array[int] | None) -> None:
        """Make this the cursor of another recorded lane; nothing has been done in it so far."""
        self.lane, self._items = lane, _NONE if items is None else items
        self.close()

    def advance(self, seq: int) -> list[int] | None:
        """Move past ``seq``; return the items skipped, which were not consumed in their place, or ``None`` if ``seq``
        was passed earlier, out of order."""
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
        if self._left:
            self._left = {}

    def ahead(self) -> Iterator[int]:
        """Yield the items from here on."""
        items = self._items
        for i in range(self._at, len(items)):
            yield items[i]

    def unseen(self) -> Iterator[int]:
        """Yield the items from which the present window has not been filled. The last one yielded is yielded again the
        next time."""
        items = self._items
        while self._seen < len(items):
            yield items[self._seen]
            self._seen += 1

    def rest(self) -> list[int]:
        return list(self._items[self._at :])

    def left(self, seq: int) -> int | None:
        """Return how many values of the read entry ``seq`` the program has not been given; ``None`` if it was given none
        and the entry has not been read."""
        return self._left.get(seq)

    def take(self, function: str) -> tuple[bool, Any]:
        """Take the next value of ``function`` in the present window: return ``(True, value)``, or ``(False, None)``."""
        values = self._window.get(function) or self._filled(function)
        if not values:
            return False, None
        seq, value = values.popleft()
        self._left[seq] -= 1
        self._last[function] = value
        return True, value

    def has(self, function: str) -> bool:
        """Return whether ``take`` would find a value."""
        return bool(self._window.get(function) or self._filled(function))

    def _filled(self, function: str) -> deque[tuple[int, Any]] | None:
        for seq, name, read in self._more(self):
            self._left[seq] = len(read)
            self._window.setdefault(name, deque()).extend([(seq, value) for value in read])
        return self._window.get(function)

    def last(self, function: str) -> Any:
        """Return the last value of ``function`` given to this lane, or ``None``."""
        return self._last.get(function)


def lane_and_above(lane: Lane) -> Iterator[Lane]:
    above: Lane | None = lane
    while above is not None:
        yield above
        above = above.parent


class RecordedLanes:
    """Maps each lane of the program to its recorded lane, with its position there.

    With ``unwraps``, tasks and threads wrapped around the program make no difference: they share the lane of what they
    start.
    """

    def __init__(
        self, trace: Trace, index: Index, used: bytearray, progress: Progress, lock: OwnLock, *, unwraps: bool
    ) -> None:
        self._trace: Final = trace
        self._index: Final = index
        self._used: Final = used
        self._progress: Final = progress
        self._lock: Final = lock
        self._unwraps: Final = unwraps
        self.states: Final[list[LaneCursor]] = []
        #: The lanes in which something recorded is or was done, and for which the end of the run waits, in order.
        self.captured: Final[dict[Lane, None]] = {}
        #: The cursor of the program's own lane until something is done in it, and the lanes that share it.
        self._line: LaneCursor | None = None
        self._in_line: list[Lane] = []
        #: Whether it is known that there are other tasks and threads around the program than in the recording.
        self.wrapped_otherwise = False
        #: The program's own lane, once something has been done in it.
        self._line_in: Lane | None = None
        #: The calls in threads that the recording lacks, unless the program's own lane is below them.
        self._other_calls: Final[set[Lane]] = set()

    def timer(self, lane: Lane, function: str) -> tuple[int, str, int, int]:
        """Return what identifies the event, or the taking of a lock, that is armed in ``lane`` now."""
        state, (after, n) = self.of(lane), lane.armed(function)
        key = state.lane, function, after, n
        if state is self._line and not self._is_recorded(key):  # if it is the program's own lane
            own = self._index.line, function, after, n
            return own if self._is_recorded(own) else key
        return key

    def _is_recorded(self, key: tuple[int, str, int, int]) -> bool:
        return key in self._index.timers or key in self._index.followed

    def is_another_call(self, lane: Lane) -> None:
        """Note that the recording lacks the call in a thread that is ``lane``; the program's own lane may yet turn out to
        be below it."""
        if self.of(lane).lane < 0 or lane.state is self._line:
            self._other_calls.add(lane)

    def is_in_another_call(self, lane: Lane) -> bool:
        """Return whether ``lane`` is that of a call in a thread that the recording lacks, or is below one."""
        return bool(self._other_calls) and any(
            one in self._other_calls and not self._is_around_line(one) for one in lane_and_above(lane)
        )

    def _is_around_line(self, lane: Lane) -> bool:
        return self._line_in is not None and lane in lane_and_above(self._line_in)

    def _take_line(self, lane: Lane) -> None:
        """``lane`` does something: if the call in a thread that passed for the program's own lane was made there, it was
        only a call, which has read a clock, say."""
        if self._line_in is not None and lane is not self._line_in and self._is_around_line(lane):
            self._line_in = lane
            self._progress.known_as(lane, self._index.line)

    def enter(self, lane: Lane) -> LaneCursor:
        """Return the cursor of a lane in which something recorded is done now."""
        state = lane.state if type(lane.state) is LaneCursor else self.follow(lane)
        if self._other_calls:
            self._take_line(lane)
        if not state.entered:
            if state is self._line:
                self._enter_line(lane)
            state.entered = True
            lane.captured = lane not in self._other_calls and not self.is_in_another_call(lane)
            if lane.parent is not None:
                self.captured[lane] = None
        return state

    def read_in(self, lane: Lane) -> LaneCursor:
        """Return the cursor of a lane in which a clock is read, which a call that the recording lacks may do, too."""
        if self.is_in_another_call(lane):
            line = self._index.items.get(self._index.line)
            if line is None or self._index.role[line[0]] != READ:
                return self.of(lane)
        return self.enter(lane)

    def of(self, lane: Lane) -> LaneCursor:
        """Return the cursor of a lane, whether or not something is done in it."""
        return lane.state if type(lane.state) is LaneCursor else self.follow(lane)

    def follow(self, lane: Lane) -> LaneCursor:
        """Return the cursor of a lane that has only been started so far."""
        with self._lock:
            if lane.parent is None:
                number: int | None = 0
            else:
                parent = self.of(lane.parent)
                number = self._number(lane, lane.parent, parent)
                if number is not None and self._other_calls:
                    self._take_line(lane.parent)
                if number is None and (parent is self._line or self._wraps_program(lane, parent)):
                    self._share_line(lane, parent)
                    return parent
            lane.id = -1 if number is None else number
            index = self._index
            state = lane.state = self._state(lane.id)
            if self._unwraps and (lane.parent is None or number in index.around or number == index.line):
                self._line, self._in_line = state, [lane]
            self.states.append(state)
        if number and lane.parent is not None and self._index.captured(number):
            # even before it has done anything: the recording waited for it, too
            self.captured[lane] = None
        self._progress.known_as(lane, number)
        return state

    def all(self) -> list[LaneCursor]:
        """Return the cursors of all lanes, including recorded lanes that the program never reached."""
        entered = {state.lane for state in self.states}
        return [*self.states, *(self._state(number) for number in self._index.items if number not in entered)]

    def _state(self, number: int) -> LaneCursor:
        return LaneCursor(number, self._index.items.get(number), self._reads)

    def _reads(self, state: LaneCursor) -> Iterator[tuple[int, str, list[Any]]]:
        """Yield the reads between the lane's position and its next step that are not in its window yet."""
        role, used = self._index.role, self._used
        for seq in state.unseen():
            if role[seq] == READ:
                if not used[seq]:
                    line = self._trace.line(seq)
                    entry = loads(line)
                    values = entry["values"]
                    yield seq, entry["name"], self._trace.expand(values) if 36 in line else values
            elif not (
                used[seq] or seq in self._index.abandoned or (role[seq] == EVENT and not self._index.answer[seq])
            ):
                break

    def _number(self, lane: Lane, parent: Lane, state: LaneCursor) -> int | None:
        """Return the recorded lane of ``lane``, which was started in ``parent``; ``None`` if the recording has no such
        lane."""
        lanes, line = self._index.lanes, self._index.line
        if lane.imports:  # the same whatever is wrapped around the program
            return lanes.get(module_lane(lane))
        number = lanes.get(LaneKey(state.lane, lane.name, lane.n, lane.under))
        if number is None and state is self._line:
            number = lanes.get(LaneKey(line, lane.name, lane.n, lane.under))
        if number is not None and state is self._line and number != line and number not in self._index.around:
            self._enter_line(parent)
        return number

    def _wraps_program(self, lane: Lane, parent: LaneCursor) -> bool:
        """Return whether ``lane`` is wrapped around the program in the recording, or is its own lane there, but
        something precedes it now."""
        if lane.parent not in self._in_line or parent.lane != self._index.line:
            return False
        keys = (LaneKey(number, lane.name, lane.n, lane.under) for number in self._index.around)
        return not self._index.lanes.keys().isdisjoint(keys)

    def _share_line(self, lane: Lane, state: LaneCursor) -> None:
        """Let ``lane``, a task or thread around the program, share the program's own lane."""
        lane.id, lane.state = state.lane, state
        self._in_line.append(lane)
        self.wrapped_otherwise = True
        if lane.task and not self._index.line_is_task:
            lane.since -= 1  # for the first callback of a task, which a coroutine that a loop is run for does not have
        self._progress.known_as(lane, self._index.line)

    def _enter_line(self, lane: Lane) -> None:
        """Make ``lane`` the recorded program's own lane, which has more or fewer tasks and threads around it."""
        state, line = self._line, self._index.line
        assert state is not None
        self._line, self._line_in = None, lane
        around = {*lane_and_above(lane)}
        for one in self._in_line:
            if one.task and one not in around:
                self._progress.unlike(one)
        if state.lane != line:
            self.wrapped_otherwise = True
            state.stand_for(line, self._index.items.get(line))
            for one in self._in_line:
                one.id = line
            if self._index.line_is_task and not lane.task:
                lane.since += 1
        self._progress.known_as(lane, line)


# -- the session -------------------------------------------------------------------------------------------------------

T = TypeVar("T")

#: The errors with which calls are refused.
_REFUSALS: Final = (ContractViolationError, BudgetExceededError, RunEndedError)
#: A clock that is read more often than in the recording stands still. After this many extra reads between two steps,
#: the caller is waiting for it to advance.
_STANDS_STILL: Final = 100_000


class StepDebugger(Protocol):
    """Called in the thread that makes a step, once the step has been matched and before it is answered."""

    def reached(self, replay: Replay, scope: Scope, seq: int) -> None: ...


class Replay:
    """The session of one recorded run that is being replayed from ``trace``.

    ``on_divergence="warn"`` continues with a step of equal kind and name where that is harmless; ``strict`` turns
    remarks of the verdict into reasons, ``ignored`` leaves fields out of the comparison. ``hooked``: hooks report the
    threads that the program starts. ``debugger`` is called at each step.
    """

    recording: Final = False
    reach: Final = None
    decides: Final = False
    #: Whether tasks and threads wrapped around the program make no difference to lanes.
    _unwraps = True
    #: After how many callbacks a lane counts as polling, if the log ends after no more than that, so that the recording
    #: does not say.
    _patience = 1_000_000
    #: Whether the replay ends where an incomplete log ends.
    _ends_with_log = True
    #: Whether the program may depart from the recording, since something in it is live, and whether it has.
    may_leave = False
    left = False

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
        #: The values behind the trace's placeholders, if its vault has them.
        self.originals: Final = Originals(trace.path)
        places = placeholders_of(trace)
        known = self.originals.values if places else {}
        redactor.placeholders.bring(known)
        #: The values that they stand for in this process.
        bindings = Bindings(redactor, places, self._had, known)
        trace.check()
        self.index: Final = trace.collected(Index).finish()
        self.run_id: Final[str] = trace.first["run_id"]
        self.report: Final = Report(self.run_id, trace.path, strict)
        self.comparison: Final = Comparison(trace, redactor, bindings, ignored or Ignored({}))
        about = trace.first.get("meta", {})
        self.state: Final = RunState(live=False, ordered=bool(about.get("ordered")))
        self.state.clock = RunClock(self.now)
        self._lock = OwnLock()
        #: The failure of the replay, if it has one.
        self.failed: Final = FirstFailure(self.report, self.state, self._lock, self._stopped, self._log_ended)
        #: By seq: 1 consumed, 2 skipped.
        self._used = bytearray(len(self.index) + 1)
        self.schedule: Final = self._scheduled(hooked)
        #: The clocks' readings when the run began.
        self._clocks: Final[Mapping[str, Any]] = about.get("clocks", {})
        #: Counts the program's callbacks in event loops.
        self.progress: Final = self.schedule.progress
        self.lock_order: Final = LockOrder(self.index, self.schedule)
        #: Maps the program's lanes to recorded ones.
        self.lanes: Final = RecordedLanes(
            trace, self.index, self._used, self.progress, self._lock, unwraps=self._unwraps
        )
        self.progress.follow = self.lanes.follow
        self.progress.elapsed = self._elapsed
        #: The threads that take part, as far as hooks report them.
        self.threads: Final = self.schedule.threads
        if self.index.signals:
            self.threads.signals = self.schedule.signals = SignalCalls(
                trace, self.index.signals, self.schedule, self.report
            )
        #: Library calls in threads that were cut off in the recording, and that the program has made here, too.
        self._made_again: Final[set[int]] = set()
        self.divergences: Final = Divergences(
            trace,
            self.index,
            self.comparison,
            redactor,
            self.report,
            self.failed,
            self.threads,
            self._used,
            self._made_again,
            warns=on_divergence == "warn",
        )
        #: What calls changed in their arguments.
        self.arguments: Final = ChangedArguments(self.index, self.comparison, redactor, self.report, self._lock)
        self.on_divergence: Final = on_divergence
        #: The error with which the program itself left its block.
        self.ended_with: BaseException | None = None
        self.inputs: Final = ReplayedInputs(
            trace,
            self.index,
            self.originals,
            bindings,
            self.report,
            redactor,
            self.state.extras.of(OwnFiles),
            self.state.extras.of(LeftStates),
        )
        #: The steps whose output was given with a placeholder in it.
        self._handed_on: Final[set[int]] = set()
        #: Whether other processes have steps of the run, so that it shows something even if this file has none.
        self.others_have_steps = False
        #: The session that scopes point to.
        self.face: Any = self
        self._debugger: Final = debugger
        #: The steps of processes and of their pipes, by the path of the process.
        self._processes: dict[str, list[int]] | None = None
        #: The lanes of calls in threads, without a captured step, that the program has not made.
        self._missing_hops: Final[set[int]] = set()
        #: The lanes that are held until the end, as they had not ended when the recorded run did.
        self._held: Final[set[Lane]] = set()
        #: Whether the report says which events never happened.
        self._accounted = False
        self._skip_repeated()

    def _scheduled(self, hooked: bool) -> Schedule:
        """Return the schedule of the recorded events."""
        return Schedule(
            self.index.events,
            failure=self.failed.again,
            stuck=self._stuck,
            slow=self._slow,
            steps=self.index.steps,
            made=self._used,
            places=self.index.places,
            hops=self.index.hops,
            skip_hop=self.skip_hop,
            thread_of=self._thread_of,
            # A callback from another thread in a context of the run may come again from a thread that existed before.
            hooked=hooked and not (self.index.has_callbacks and others_run_user_code()),
            patience=self._patience,
        )

    def _skip_repeated(self) -> None:
        """Skip what a resumed run made again, or a person decided otherwise: it is no step of the replay."""
        for seq in self.index.repeated:
            self._give_up(seq)
            undone = self.index.compensations.get(seq)
            if undone is not None:
                self._give_up(undone)
        for seq in self.index.overridden:
            self.schedule.skip(seq)
            self._used[seq] = 2

    def _give_up(self, seq: int) -> None:
        """Skip a recorded step that the program does not know about, with everything inside."""
        self._used[seq] = 2
        self._skip_inside(seq)
        self._pass_outcome(seq)

    def _pass_outcome(self, seq: int, *, consumed: bool = False) -> None:
        """Skip the chunks and the outcome of this step, which nobody asks for."""
        for one in self.index.outcomes(seq):
            self.schedule.skip(one)
            self._used[one] = 1 if consumed else 2

    # -- processes -----------------------------------------------------------------------------------------------------

    def has_process(self, path: str) -> bool:
        """Return whether the recording has the process at this path as a step."""
        return bool(self._steps_of(path))

    def leave_process(self, scope: Scope, path: str, joined: Collection[str]) -> bool:
        """Skip the step of the process at this path, which has ``joined`` the run and answers for itself; nothing of
        its pipes is replayed. Return whether the recording has it as a step."""
        with self._lock:
            self.failed.check()
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
                self._pass_outcome(one)
        if self._debugger is not None:
            self._debugger.reached(self, scope, seq)
        return True

    @staticmethod
    def _process_of(entry: Mapping[str, Any]) -> str:
        """Return the path of the process whose step, or whose pipe's step, this is."""
        if entry["type"] == "process.start":
            return str(info_of(entry).get("process"))
        return str(entry.get("name")).partition(" ")[0]

    def _steps_of(self, path: str) -> list[int]:
        if self._processes is None:
            self._processes = {}
            for (_, kind), steps in self.index.intents.items():
                for seq in steps if kind in ("process", "pipe", "process.signal") else ():
                    self._processes.setdefault(self._process_of(self.trace.entry(seq)), []).append(seq)
        return self._processes.get(path, [])

    # -- steps ---------------------------------------------------------------------------------------------------------

    def begin(self, scope: Scope, request: Request) -> ReplayedStep:
        """Match a step with the next recorded one of its family in its lane, or fail."""
        spec = request.spec
        if self.state.ended:
            if self._goes_past_end(scope.lane):
                self._hold_past_end(spec)
            raise self.late(spec.family, spec.name, spec.effect)
        tail = self.comparison.tail(request, scope.agent)
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            if self.threads.running:
                self.threads.acts(scope.lane)
            seq = self._next(state, spec.family)
            same = seq is not None and tail is not None and self.comparison.ends_so(seq, tail)
        if self.schedule.signals is not None and seq is not None:
            self.schedule.signals.begins(seq)  # a handler may raise, so that this is another step
        if not same:
            seq = self._compared(scope, request, *self.comparison.input(request))
        assert seq is not None
        with self._lock:
            self._consume(state, spec.family, seq)
            if not spec.structural:
                self._skip_inside(seq)
            scope.lane.last = seq
        return self._made(scope, request, seq)

    def _made(self, scope: Scope, request: Request, seq: int) -> ReplayedStep:
        """The program has made the recorded step ``seq``."""
        if self._debugger is not None:
            self._debugger.reached(self, scope, seq)
        if seq in self.index.refused:
            entry = self._whole(self.trace.entry(seq))
            raise exception_from_json(structured(self.trace.expand(entry["error"]), entry.get("meta", {}), "/error"))
        return ReplayedStep(self, scope, request, seq)

    def model(self, name: str) -> str:
        return name

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        return output

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        with self._lock:
            seq = self._next_of_any(self.lanes.of(scope.lane))
        if seq is None:
            return False
        entry = self.trace.entry(seq)
        kind = family_of(entry["type"])
        return kind is not None and kind[0] == family and entry.get("name") == name

    def late(self, family: str, name: str, effect: bool) -> BaseException:
        """Return the error for a step after the end, which is not executed. An effect is refused as it is while
        recording."""
        found = divergence.after_the_end(self.run_id, family, name, effect)
        if not isinstance(found, ReplayError):
            return found
        with self._lock:
            if self.ended_with is None:
                return self.failed.by(found, "late")
            # Let the caller see the program's own error, of which further late steps may be a consequence.
            if not self.report.verdict.final:
                self.report.inexact("late", found.what)
        return found

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        """Match a refused call with the recorded refusal, else diverge. Return the error to raise."""
        spec = request.spec
        try:
            step = self.begin(scope, Request(spec, request.input))
        except _REFUSALS as recorded:
            return recorded
        return self.failed.by(divergence.now_refused(self.run_id, step.seq, spec.family, spec.name, error))

    def _compared(self, scope: Scope, request: Request, tree: Any, data: bytes) -> int:
        """Compare the next recorded step of the family part by part."""
        spec = request.spec
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None and not self._goes_past_end(scope.lane):
                raise self.divergences.exhausted(scope.lane, spec.family, spec.name, data, state.lane)
        if seq is None:
            self._hold_past_end(spec)
        with self._lock:
            entry = self.trace.entry(seq)
            if not self.comparison.is_step(entry, request, scope.agent, tree, data):
                self.divergences.step(scope, spec, data, seq, entry)
        return seq

    def _goes_past_end(self, lane: Lane) -> bool:
        """Return whether ``lane``, which makes a step that the log lacks, has a thread of its own and has made all of its
        recorded steps, but had not ended when the recorded run did."""
        return (
            not self.may_leave
            and running_loop() is None
            and self._next_of_any(self.lanes.of(lane)) is None
            and self.holds_past_end(lane)
        )

    def _hold_past_end(self, spec: Spec) -> NoReturn:
        name = spec.render(self.redactor).name
        if not self.state.ended:
            what = f"{spec.family} {name!r}, which the recorded thread had not reached when the run ended, was held"
            self.report.remark("past_end", what, name=name, where=caller())
            self.schedule.wait(None)
        raise self.failure or divergence.past_end(self.run_id, spec.family, name)

    def _had(self, seq: int) -> bool:
        """Return whether the program has passed the entry ``seq``, or been given it."""
        return seq > 1 and self._used[seq] == 1

    def _next(self, state: LaneCursor, kind: str) -> int | None:
        """Return the first step of a kind in a lane that has been neither consumed nor skipped."""
        steps = self.index.intents.get((state.lane, kind))
        if steps is None:
            return None
        i, used = state.cursors.get(kind, 0), self._used
        while i < len(steps) and used[steps[i]]:
            i += 1
        state.cursors[kind] = i
        return steps[i] if i < len(steps) else None

    def _next_of_any(self, state: LaneCursor) -> int | None:
        """The same for any kind."""
        role, used = self.index.role, self._used
        return next((seq for seq in state.ahead() if role[seq] in (INTENT, SINGLE) and not used[seq]), None)

    def _consume(self, state: LaneCursor, kind: str, seq: int) -> None:
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

    # -- lanes and their windows ---------------------------------------------------------------------------------------

    def open_lanes(self) -> list[Lane]:
        """Return the lanes whose task, thread or call has not ended, except for those that are held until the end."""
        with self._lock:
            for lane in self.threads.lanes.copy():
                self.lanes.of(lane)
            return [lane for lane in self.lanes.captured if lane.open and lane not in self._held]

    def holds_past_end(self, lane: Lane) -> bool:
        """Return whether ``lane``, for which the log has nothing more, is to be held until the replay ends: it was still
        running when the recorded run ended."""
        last = self.trace.last
        open_lanes = meta_of(last).get("open_lanes") if last["type"] in ENDS else None
        with self._lock:
            if not isinstance(open_lanes, list) or self.lanes.of(lane).lane not in open_lanes:
                return False
            self._held.add(lane)
            return True

    def program_ended(self) -> None:
        """Note that the program's own lane has ended: other threads may go on."""
        self.lock_order.ended({0, self.index.line})

    def owed_by(self, lanes: Iterable[Lane]) -> bool:
        """Return whether one of the ``lanes`` still has recorded steps to make or end, and something in the process can
        move."""
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

    def _pass(self, state: LaneCursor, seq: int) -> None:
        """Move a lane to ``seq``, and close the window of reads before it."""
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
        """The lane of these hops has reached ``seq`` without making some of the hops before it."""
        schedule = self.schedule
        for hop in hops[: bisect_left(hops, seq)]:
            if hop not in schedule.made_hops:
                self.skip_hop(hop)

    def _elapsed(self) -> int:
        """Return how long the recording had taken up to the last event handed out (ns), excluding the time before it
        was resumed."""
        last = self.schedule.last
        if not last:
            return 0
        return ts_of(self.trace.line(last)) - ts_of(self.trace.line(1)) - self._down_before(last)

    def _down_before(self, seq: int) -> int:
        """Return for how long (ns) no process had run the program before entry ``seq``."""
        return sum(gap for resumed, gap in self.index.gaps if resumed < seq)

    def skip_hop(self, seq: int) -> None:
        """Note that the program went on without a call in a thread in which nothing was captured. A library's call
        needs no remark."""
        if self.schedule.is_done(seq):
            return
        call = self.index.hop_calls.get(seq)
        if (
            call is not None and call not in self._missing_hops
        ):  # it has a beginning and, if a loop waits for it, a result
            self._missing_hops.add(call)
            self.progress.calls_differ = True
            about = f"a call in a thread, of which nothing was captured, was not made here (entry {seq})"
            self.report.remark("hops", about, step=seq)
        self.schedule.skip(seq)
        for inside in () if call is None else self.index.items.get(call, ()):
            self.schedule.skip(inside)
        if self.index.places.is_hop(seq):
            self.progress.skipped(seq, self.index.lane[seq])

    def _thread_of(self, seq: int) -> int:
        """Return the thread that runs the lane of an entry, if that is a thread's or that of a call in one; else 0."""
        number = self.index.lane[seq]
        lanes = [lane for lane in self.threads.lanes.copy() if lane.open]
        return next((lane.owner for lane in lanes if self.lanes.of(lane).lane == number), 0)

    def _unread(self, state: LaneCursor, seq: int) -> None:
        left = state.left(seq)
        if left == 0 or self._used[seq] or self.may_leave:
            return
        entry = self.trace.entry(seq)
        if left is None:
            left = len(entry["values"])
        if read_by_library(entry):
            return
        if entry["type"] == "random":
            raise self.failed.by(divergence.draws_left(entry, left))
        self._drift("missing", entry["name"], left, None)

    def _drift(self, kind: str, function: str, count: int, where: str | None) -> None:
        text = f"{count} read(s) of {function} {'too many' if kind == 'surplus' else 'too few'}"
        self.report.remark("clock", text, kind=kind, function=function, count=count, where=where)

    def _last_surplus(self) -> Mapping[str, Any] | None:
        """Return the last clock read that is not in the recording."""
        clocks = (one.facts for one in reversed(self.report.verdict.remarks) if one.code == "clock")
        return next((facts for facts in clocks if facts.get("kind") == "surplus"), None)

    def _out_of_order(self, seq: int) -> None:
        if self.left:
            return
        if self.on_divergence != "warn":
            raise self.failed.by(divergence.out_of_order(self.trace.entry(seq)))
        self._reordered(seq, "was asked for")

    def _reordered(self, seq: int, what: str) -> None:
        entry = self.trace.entry(seq)
        name = f" {entry['name']!r}" if "name" in entry else ""
        self.report.inexact("reordered", f"entry {seq} ({entry['type']}{name}) {what} in another order", step=seq)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        with self._lock:
            self.failed.check()
            state = self.lanes.read_in(scope.lane)
            found, value = state.take(function)
            if not found:
                where = caller()
                if not self.state.ended:
                    self._drift("surplus", function, 1, where)
                    state.surplus += 1
                    if state.surplus > _STANDS_STILL:
                        raise self.failed.by(divergence.clock_stands_still(self.run_id, function))
                value = state.last(function)
        shown = self.begun(function) if value is None else from_json(value)
        if shown is None:  # it was never read in the recording
            raise self.failed.by(divergence.clock_never_read(self.run_id, function))
        return self.state.shown(function, shown, real)  # type: ignore[no-any-return]

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        if library is not None:
            found, value = self.recorded_read(scope, f"{function}:{library}")
            if found:
                return self.state.shown(function, value, real)  # type: ignore[no-any-return]
        return self.state.shown(function, self.now(function, real), real)

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        drawn = real()
        found, value = self.recorded_read(scope, f"{function}:{library}")
        return value if found else drawn

    def recorded_read(self, scope: Scope, name: str) -> tuple[bool, Any]:
        """Return what a library read of its clock, or drew, at this place in the recording, if it did."""
        with self._lock:
            found, value = self.lanes.of(scope.lane).take(name)
        return found, from_json(value)

    def now(self, function: str, real: Callable[[], T], at_least: int = 0) -> T:
        """Return the run's current instant on its own clock, for readers without a recorded reading: at least
        ``at_least`` (ns) after its start."""
        since = max(self.progress.now(), at_least)
        if function not in STEADY:
            since += self._down_before(self.schedule.last)
        shown = shown_by(function, self._clocks, since)
        return real() if shown is None else shown

    def begun(self, function: str) -> Any:
        """Return what a clock showed when the run began; ``None`` if the recording does not say."""
        return shown_by(function, self._clocks)

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        if self.failure is not None and _unwinds():
            return real()  # it asks whom it has to wait for before closing what they use
        with self._lock:
            self.failed.check()
            found, value = self.lanes.enter(scope.lane).take(function)
            if not found and not self.state.ended:
                self._drift("surplus", function, 1, caller())
        if not found:
            return real()
        agree(value)
        return value  # type: ignore[no-any-return]

    def asked_again(self, scope: Scope, function: str) -> None:
        self.recorded_read(scope, function)

    def status_read(self, scope: Scope, function: str, process: str | None) -> Any:
        """Return what the recorded program learnt about ``process`` here; an extra question is a divergence. ``None``:
        nothing needs to be known."""
        with self._lock:
            self.failed.check()
            found, value = self.lanes.enter(scope.lane).take(function)
            if not found and process is not None:
                raise self.failed.by(divergence.asked_too_often(self.run_id, process))
        return from_json(value)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        drawn = real()  # so that the state of a generator seeded by the program follows
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            found, value = state.take(function)
            if not found and self.state.ended:
                return drawn
            if not found:
                surplus = self._last_surplus() if state.surplus else None
                raise self.failed.by(
                    divergence.draw_too_many(self.run_id, function, surplus, self.divergences.thread_order)
                )
            recorded = from_json(value)
            if isinstance(recorded, bytes) and isinstance(drawn, bytes) and len(recorded) != len(drawn):
                raise self.failed.by(divergence.draw_of_another_size(self.run_id, function, len(recorded), len(drawn)))
        return recorded  # type: ignore[no-any-return]

    # -- one-entry steps and timers ------------------------------------------------------------------------------------

    def note(self, scope: Scope, note: Note) -> int:
        kind = note.type
        if self.state.ended:
            raise self.late(kind, note.name, False)
        actual = self.comparison.note(scope.agent, note)
        if self.schedule.signals is not None:
            with self._lock:
                before = self._next(self.lanes.enter(scope.lane), kind)
            if before is not None:
                self.schedule.signals.comes_to(before)
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, kind)
            if seq is None:
                tree = {key: actual[key] for key in ("input", "output")}
                raise self.divergences.exhausted(scope.lane, kind, note.name, dumps(tree), state.lane)
            facts = self.comparison.recorded_note(seq)
            if not self.comparison.equal(steady(facts), steady(actual)):
                self.divergences.note(kind, seq, facts, actual)
            self._consume(state, kind, seq)
        if self._debugger is not None:
            self._debugger.reached(self, scope, seq)
        if self.schedule.signals is not None:
            self.schedule.signals.passed()
        return seq

    @property
    def warnings(self) -> list[str]:
        if not self.state.ended:
            return []
        recorded = self.trace.expand(meta_of(self.trace.last).get("warnings"))
        return [str(sentence) for sentence in recorded] if isinstance(recorded, list) else []

    def part_ended(self, step: int, name: str, result: object) -> None:
        answer = self.index.answer[step]
        if answer:
            self.divergences.end("result", f"the part {name!r} of the run had another result", answer, result)

    @property
    def undo_log(self) -> Replay | None:
        return self

    def starts(self, lane: Lane) -> None:
        pass

    def validated(self, scope: Scope, spec: Spec) -> None:
        pass

    def next_undone(self, scope: Scope) -> int | None:
        """Return the step that the next recorded step of the scope's lane undoes, or ``None``.

        Compensations of steps inside others are skipped: a replay does not have those steps.
        """
        while True:
            with self._lock:
                self.failed.check()
                seq = self._next(self.lanes.enter(scope.lane), "tool")
            about = {} if seq is None else info_of(self.trace.entry(seq))
            of = about.get("compensates")
            if seq is None or type(of) is not int or not 0 < of < len(self._used):
                return None
            if self._used[of] != 2:
                return of
            self.take(seq)
            scope.lane.last = seq

    def ended_before_undoing(self, seq: int, of: int) -> bool:
        """Return whether step ``seq`` had ended when step ``of`` was undone."""
        answer = self.index.answer
        return seq < len(answer) and 0 < answer[seq] < self.index.compensations.get(of, 0)

    def left_standing(self) -> set[int]:
        """Return the steps that the recorded run undid at some time, or reports as not undone: an abort now must not
        undo them."""
        last = self.trace.last
        named = meta_of(last).get("uncompensated") if last["type"] == "run.aborted" else None
        return {*self.index.compensations, *(one for one in named or () if type(one) is int)}

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """Fail unless the present identity of ``agent`` is the recorded one."""
        with self._lock:
            self.failed.check()
        seq = self.index.identities.get(agent)
        recorded = None if seq is None else self.trace.expand(self.trace.entry(seq)["input"])
        actual = self.redactor.redact(to_json(dict(identity or {})))[0]
        found = differences(recorded, actual)
        if found and not self.comparison.equal(recorded, actual):
            raise self.failed.by(divergence.another_identity(self.run_id, seq, agent, recorded, actual, found))

    def snapshot(self, name: str, state: Any) -> Any:
        at_start = self.trace.entry(1).get("meta", {}).get("snapshots", {})
        if name in at_start:
            return at_start[name]
        seq = self.index.snapshots.get(name)
        return None if seq is None else self.trace.expand(self._whole(self.trace.entry(seq))["output"])

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        lane = self.lanes.of(scope.lane).lane
        return self.inputs.read(kind, name, value, own, lane, lambda: self._next_in(scope.lane))

    def _next_in(self, lane: Lane) -> int:
        """Return the next recorded step of a lane; one past the last entry if there is none."""
        with self._lock:
            left = (seq for seq in self.lanes.of(lane).ahead() if self.index.role[seq] != READ and not self._used[seq])
            return next(left, len(self.index) + 1)

    def _whole(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return an entry with the redacted parts of its outcome restored, if known."""
        return self.originals.of(entry, self.trace.expand, "output", "error", "arguments")

    def arm(self, scope: Scope, function: str, seconds: float) -> ReplayedTimer:
        lane = scope.lane
        with self._lock:
            self.failed.check()
            begins = function == "future.begin"
            key = self.lanes.timer(lane, function)
            seq = self.index.timers.get(key)
            if begins and seq is None:
                self.lanes.is_another_call(lane)
            # A call in a thread that the recording lacks takes its time, for whatever it does inside.
            patient = seq is None and not begins and self.lanes.is_in_another_call(lane)
            if seq is not None and not begins and self.index.lane[seq] not in self.index.around:
                self.lanes.enter(lane)
            if seq in self.index.hops:
                self.schedule.made_hops.add(seq)
            if seq is not None and function.startswith(CUT_OFF):
                self._made_again.add(seq)
        sleep = f"{function}({seconds:g})" if seq is None and function == _SLEEP and not patient else None
        return ReplayedTimer(self, key, seq, lane, sleep, patient=patient)

    def handed_over(self, seq: int) -> None:
        """Note that threads have handed something over where the log has it, at ``seq``."""

    def importing(self, scope: Scope, module: str) -> Scope | None:
        own = scope.of_module(module)
        known = module_lane(own.lane) in self.index.lanes or own.lane.path in self.index.printing
        return own if known else None

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

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def outcome(self, step: ReplayedStep, seq: int) -> Outcome:
        """Return the entry ``seq`` decoded, and count it as delivered."""
        with self._lock:
            self._used[seq] = 1
            scope = here()
            lane = scope.lane if scope is not None and scope.session.state is self.face.state else step.scope.lane
            state = self.lanes.enter(lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)
            line = self.trace.line(seq)
        self.inputs.answered(step.seq, seq)
        entry = loads(line)
        meta = entry.get("meta", {})
        if "redacted" in meta:
            if self.originals.lack(entry, "output", "error", "arguments"):
                self.report_placeholder(step.seq)
            entry = self._whole(entry)
        changes = entry.get("arguments")
        plain = 36 not in line and changes is None  # no dollar sign: neither a tag nor a reference
        if plain and "shared" not in meta and "error" not in entry:
            return Outcome(entry.get("output"), None, meta, entry)
        try:
            output, hint = self.trace.expand(entry.get("output")), step.spec.hint()
            if changes is None:
                output = from_json(structured(output, meta, "/output"), hint)
            else:
                output = self.arguments.output(step, step.spec, seq, output, meta, self.trace.expand(changes))
            error = self._error(step, entry["error"], meta) if "error" in entry else None
        except NotReplayableError as failure:
            raise self.failed.by(self._located(failure, step)) from failure.__cause__
        return Outcome(output, error, meta, entry)

    def let_others_go_on(self, seq: int) -> None:
        """In an event loop, run the other tasks until ``seq`` is next, for a call that does not await."""
        loop = running_loop()
        if loop is None or not can_run_other_tasks(loop):
            return
        reached: list[bool] = []
        self.schedule.callback(seq, lambda: reached.append(True))
        self.progress.queue(loop).nested()
        run_other_tasks(loop, lambda: bool(reached) or self.failure is not None)
        self.failed.check()

    def report_placeholder(self, seq: int) -> None:
        """Remark, once, that the program was given a placeholder in the output of the step ``seq``."""
        sentence = f"step {seq}'s output was redacted: the program was given a placeholder"
        if self.originals.locked:
            sentence += f" (name the key of the run's vault in {KEY_VARIABLE} for the original value)"
        if seq not in self._handed_on:
            self._handed_on.add(seq)
            self.report.remark("redacted", sentence, step=seq)
            self.report.warn(sentence)

    def _error(self, step: ReplayedStep, error: Any, meta: Mapping[str, Any]) -> BaseException:
        tree = self.trace.expand(error)
        exception = exception_from_json(structured(tree, meta, "/error"))
        for code, sentence in shortfalls(tree, exception):
            name = step.spec.render(self.redactor).name
            text = f"step {step.seq} ({step.spec.family} {name!r}) {sentence}"
            say = self.report.inexact if code == "exception" else self.report.remark
            say(code, text, step=step.seq)
            self.report.warn(text)
        return exception

    def decoded(self, spec: Spec, seq: int) -> Outcome:
        """Return the entry ``seq`` decoded before its turn, without its error."""
        entry = self._whole(self.trace.entry(seq))
        meta = meta_of(entry)
        tree = structured(self.trace.expand(entry.get("output")), meta, "/output")
        return Outcome(from_json(tree, spec.hint()), None, meta, entry)

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

    # -- failures ------------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> ReplayError | None:
        """The failure of the replay, or ``None``."""
        return self.failed.error

    def fail(self, error: ReplayError) -> ReplayError:
        return self.failed.by(error)

    def _stopped(self, error: ReplayError) -> None:
        """Stop all waits: the replay has failed."""
        self.schedule.fail()

    def _log_ended(self, error: ReplayError) -> bool:
        """Return whether the recorded process died here: its log is incomplete, the program has followed it to its end,
        and ``error`` only says that it continues."""
        if not self._ends_with_log or self.may_leave or self.report.verdict.reasons:
            return False
        if self.trace.ended:
            return False
        if getattr(error, "child", None) is not None:
            return error.at_log_end
        if not divergence.asks_for_more(error):
            return False
        step = error.step
        if step is not None and self.index.role[step] == INTENT and not self.index.answer[step]:
            return True  # the very step in which it died; the steps of others were not asked for
        return not self._unconsumed() and not any(self._undelivered(one) for one in self.schedule.undelivered)

    def _undelivered(self, seq: int) -> bool:
        """Return whether the program lacks the event ``seq``, which was never handed out: not a hop, and not an outcome
        that nobody asked for."""
        step = self.index.answer[seq]
        if seq in self.index.hops or (step and not self._used[step]):
            return False
        # Closing a stream, or leaving it to be collected, is not a step.
        return not (step and self.index.answer[step] == seq and self.index.next_chunk[step])

    def _stuck(self, waiting: list[Waiting]) -> ReplayError | None:
        children = self.state.children
        failure, moves = (None, False) if children is None else children.stuck([*map(str, waiting)])
        if moves:
            return None
        if failure is not None:
            return self.failed.by(failure)
        if waiting and all(one.sleep for one in waiting):
            return self.failed.by(divergence.sleeps_too_often(self.run_id, waiting))
        return self.failed.by(
            divergence.everything_waits(self.run_id, waiting, self.threads.overlapping), "everything_waits"
        )

    def _slow(self, seq: int | None, waiting: list[Waiting]) -> None:
        """Report that the replay has been waiting for the next event for a long time."""
        what = "something that was never recorded"
        if seq is not None:
            entry = self.trace.entry(seq)
            step = self.index.answer[seq] if self.index.role[self.index.answer[seq]] == INTENT else seq
            what = (
                f"step {step} ({self.trace.entry(step)['type']} {self.trace.entry(step).get('name', entry['type'])!r})"
            )
        lines = "".join(f"\n  {line}" for line in waiting)
        say(f"the replay of {self.run_id} waits for {what}; these may lead to it:{lines}")

    def made(self, seq: int) -> bool:
        """Return whether the program itself has made the recorded step ``seq``, not only a step around it."""
        return self._used[seq] == 1

    def used(self, seq: int) -> bool:
        """Return whether a recorded step has been consumed, or skipped with the step around it."""
        return bool(self._used[seq])

    def take(self, seq: int) -> None:
        """Consume the recorded step ``seq`` with everything inside, for callers that compare it themselves."""
        with self._lock:
            self.failed.check()
            self._used[seq] = 1
            self.report.consumed += 1
            self._skip_inside(seq)
            self._pass_outcome(seq, consumed=True)

    def passed(self, lane: Lane, seq: int) -> None:
        """Note that a structural step has ended: the lane has passed its end."""
        with self._lock:
            self._used[seq] = 1
            state = self.lanes.enter(lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)

    # -- the end -------------------------------------------------------------------------------------------------------

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
        """Note the steps that the program has not made since something went live, which may be a consequence."""
        for step in self._unconsumed():
            text = f"step {step['seq']} ({step['type']} {step['name']!r}) was not made"
            self.report.allow("not_made", text, step=step["seq"], name=step["name"])

    def _account_for_events(self) -> None:
        """Report recorded events that never happened in the replay, whatever the reason, and lanes that were let go."""
        for seq in self.schedule.undelivered:
            if seq in self.index.hops:
                self.skip_hop(seq)
        for seq in self.schedule.undelivered:
            if not self._undelivered(seq):
                continue
            step, entry = self.index.answer[seq], self.trace.entry(seq)
            if step:
                named = self.trace.entry(step).get("name")
                what = f"entry {seq} ({entry['type']} of {named!r}) was never requested"
            else:
                what = f"entry {seq} ({entry.get('name')!r}) came in the recording, and never did in the replay"
            self.report.inexact("undelivered", what, step=seq)
        around = (0, self.index.line, *self.index.around)
        polled = self.progress.polled_otherwise(around, to_the_end=not self.lanes.wrapped_otherwise)
        if polled is not None:
            self.report.inexact("polled", f"{polled}: a task that polls may have looked more or fewer times")
        for seq in self.schedule.passed:
            what = f"nothing else could move before entry {seq}: what should have waited for it went beyond its place"
            self.report.remark("place", what, step=seq)

    def finish(self) -> None:
        """Report whatever was recorded but not requested: the program has ended. Raises the first failure."""
        self.account()
        with self._lock:
            if self.failure is None:
                self._leftovers()
            self.failed.check()

    def close_verdict(self) -> None:
        """Freeze the verdict: it is about to be reported, and the process to end."""
        with self._lock:
            self.report.verdict.final = True

    def conclude(self, error: BaseException | None = None) -> None:
        """End the replay and its verdict. Raises ``InexactReplayError`` if it was not exact and no other error says so.

        ``error`` is the error with which the program itself ends. It is left as it is, with a note added; if the caller
        asked to continue (``on_divergence="warn"``), a warning is issued as well.
        """
        self.account()
        verdict = self.report.verdict
        verdict.ended = True
        if error is not None and self.report.unconsumed and self.failure is None:
            self.report.never_asked_for(self.report.unconsumed)
        if verdict.answer != "inexact" or self.failure is not None:
            return
        found = verdict.error(self.run_id)
        if error is None and self.on_divergence != "warn":
            raise self.failed.by(found)
        sentence = f"replay of {self.run_id}: {found.what}"
        if error is not None:
            error.add_note(f"tracekit: {sentence}")
        warn_of_replay(sentence, InexactReplayWarning, error)

    def _leftovers(self) -> None:
        if not self.index.supplies and not self.others_have_steps:
            raise self.failed.by(divergence.nothing_recorded(self.run_id))
        if self.report.unconsumed:
            raise self.failed.by(divergence.never_asked_for(self.run_id, self.report.unconsumed))
        for state in self.lanes.all():
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


def _unwinds() -> bool:
    """Return whether the calling thread is leaving the program because a replay has failed."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, ReplayError):
        error = error.__context__
    return error is not None


def ts_of(line: bytes) -> int:
    """Return the time stamp in a line of a trace."""
    return int(line[line.index(b'"ts_ns":') + 8 :].partition(b",")[0])
