"""The program's progress in event loops, and the place of each event in it.

An *event* is something decided outside: the outcome of a call, a chunk of a stream, a timer that fires, a result that a
thread hands to the loop. Its *place* says how far the program had come when it happened: for each lane in that loop,
how many of its callbacks had run since the lane's own last event. Nothing else counts: not time, not rounds of a loop
that others share, not what a live call does inside. A loop runs the callbacks of one program in the order in which they
were scheduled. So a replay that holds each lane at its place until the event has come shows the program the recorded
state, whatever the speed, and whatever else runs.

While recording, callbacks are counted as they run. In a replay, and on loops whose internals are inaccessible (uvloop),
the callbacks of the run wait in a queue of ours, a ``LoopQueue``, in order; the loop itself is never blocked.
"""

from __future__ import annotations

from _thread import get_ident
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from .._reality import monotonic_ns, running_loop
from .lane import NOBODY, UNLIMITED, Lane

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["Callback", "Deliverer", "LoopQueue", "PlaceIndex", "Progress"]

#: After how many callbacks more than any lane of the recording a lane counts as polling. A wrong guess does no harm:
#: the lane is let look again as long as anything else moves.
_FAR: Final = 1000


class Callback(Protocol):
    """A callback of a run in an event loop, with the interface of a handle. ``lane`` is the lane whose progress it is,
    ``None`` inside a live call. One that is not ``counted`` is no progress and is never held: the recording may or may
    not have it. One of tracekit's ``own`` moves nothing in the program."""

    counted: bool
    lane: Lane | None
    own: bool
    _args: Any
    _cancelled: bool

    def call(self) -> None:
        """Run it; its holder has counted it."""
        ...


class _Moves:
    """An event loop of a run: its number, once it has delivered an event, and the lanes that have moved since its last
    one."""

    __slots__ = ("moved", "number")

    def __init__(self) -> None:
        self.number = -1
        self.moved: Final[list[Lane]] = []

    @property
    def most(self) -> int:
        """The most callbacks, since its own last event, of any lane that moved after the loop's last event."""
        return max((lane.since for lane in [*self.moved]), default=0)


class Deliverer(Protocol):
    """The schedule, which has the events of a replay."""

    def deliver(self, queue: LoopQueue) -> bool:
        """Deliver what is due in this loop, which has only held callbacks left to run. Return whether something was."""
        ...

    def is_done(self, seq: int) -> bool:
        """Return whether event ``seq`` has been delivered or skipped."""
        ...

    def is_coming(self, seq: int) -> bool:
        """Return whether event ``seq`` needs nothing more from its lane: it is asked for, or a thread delivers it."""
        ...

    def is_made(self, step: int) -> bool:
        """Return whether the program has reached a step."""
        ...

    def due_in(self, loop: AbstractEventLoop) -> int | None:
        """Return the next event, if it is asked for in ``loop``."""
        ...

    def is_due_in(self, loop: AbstractEventLoop) -> bool:
        """Return whether the next event is asked for in ``loop``, and nothing has to happen before it."""
        ...


class Progress:
    """The callbacks of one run in its event loops. With ``deliverer`` and ``places`` they are held at the recorded
    places."""

    __slots__ = (
        "_at",
        "_deliverer",
        "_ended",
        "_event",
        "_far",
        "_lanes",
        "_loops",
        "_made",
        "_now",
        "_number",
        "_numbered",
        "_places",
        "_queues",
        "_strangers",
        "_tail",
        "_uncounted",
        "_unplaced",
        "elapsed",
        "follow",
        "news",
    )

    def __init__(
        self, deliverer: Deliverer | None = None, places: PlaceIndex | None = None, patience: int = UNLIMITED
    ) -> None:
        self._deliverer: Final = deliverer
        self._places: Final = places
        #: After how many callbacks since its own last event a lane that is not held counts as polling; and the same
        #: after its last place.
        self._far = UNLIMITED if places is None else places.most + _FAR
        self._tail = self._far if places is not None and places.ends else patience
        #: In a replay, the lanes that have no place in the recording.
        self._strangers: Final[set[Lane]] = set()
        #: How often something recorded has happened.
        self.news = 0
        #: The most callbacks of any lane after the last event of a loop that is closed; -1 if no loop is.
        self._unplaced = -1
        self._queues: dict[AbstractEventLoop, LoopQueue] = {}
        #: What has to be recorded about each loop at its next event, and how many loops have a number.
        self._loops: dict[AbstractEventLoop, _Moves] = {}
        self._numbered = 0
        #: Whether nothing is held any more.
        self._ended = False
        self._lanes: dict[int, Lane] = {}
        self._number: dict[Lane, int] = {}
        self._at: dict[int, int] = {}
        #: How many of its recorded steps each lane of a replay has made.
        self._made: dict[int, int] = {}
        #: In a replay, how long the recording had taken up to the last event handed out (ns).
        self.elapsed: Callable[[], int] = lambda: 0
        #: That time at the last event, and the real clock when it was first noticed; and the latest instant given out.
        self._event = 0, monotonic_ns()
        self._now = 0
        #: The loop in which what is being scheduled counts for no lane.
        self._uncounted: AbstractEventLoop | None = None
        #: Called once for each lane of a replay, to determine its number in the recording.
        self.follow: Callable[[Lane], object] = lambda _: None

    # -- running callbacks ---------------------------------------------------------------------------------------------

    def soon(self, loop: Any, lane: Lane | None, handle: Callback) -> None:
        """Schedule a callback like ``loop.call_soon``, in ``lane`` or inside a live call (``None``)."""
        ready = None
        try:
            closed, ready = loop._closed, loop._ready
        except AttributeError:  # uvloop
            closed = loop.is_closed()
        if closed:
            raise RuntimeError("Event loop is closed")
        handle.counted = self._uncounted is not loop
        handle.lane = lane
        if lane is not None and lane.loop is not loop:
            lane.loop = loop
            self._of(loop).moved.append(lane)
            lane.moved = None
        if self._deliverer is None:
            if ready is not None:
                ready.append(handle)
                return
        elif lane is not None and lane.state is None:
            self.follow(lane)
        self.queue(loop).add(handle)

    def _of(self, loop: AbstractEventLoop) -> _Moves:
        known = self._loops.get(loop)
        if known is None:
            self._forget()
            known = self._loops[loop] = _Moves()
        return known

    def _forget(self) -> None:
        """Drop loops and queues that were closed outside the run, where no hook is called."""
        for old in [one for one in {**self._loops, **self._queues} if one.is_closed()]:
            self.closed(old)

    def closed(self, loop: AbstractEventLoop, lane: Lane | None = None) -> None:
        """Forget ``loop``, which ``lane`` has closed: it will deliver no more events."""
        known = self._loops.pop(loop, None)
        if known is not None:
            self._unplaced = max(self._unplaced, known.most)
            for one in [lane, *known.moved]:
                if one is not None and one.loop is loop:
                    one.loop = one.moved = None
        self._queues.pop(loop, None)

    def now(self) -> int:
        """Return how long (ns) the replayed run has taken by its own clock.

        A replay skips the time that passed in the recording: its clock shows the recording's time at the last event,
        and goes on from there.
        """
        elapsed, real = self.elapsed(), monotonic_ns()
        if elapsed > self._event[0]:
            self._event = elapsed, real
        self._now = max(self._now, elapsed + real - self._event[1])
        return self._now

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A block in which what is scheduled in the running loop counts for no lane: it may or may not be in the
        recording."""
        before, self._uncounted = self._uncounted, running_loop()
        try:
            yield
        finally:
            self._uncounted = before

    def count(self, lane: Lane) -> None:
        """Count the next callback of ``lane``, which was scheduled as uncounted, after all."""
        lane.runs()

    def queue(self, loop: AbstractEventLoop) -> LoopQueue:
        """Return the queue of the run's callbacks in ``loop``; to be called in the loop's thread."""
        found = self._queues.get(loop)
        if found is None:
            self._forget()
            found = self._queues[loop] = LoopQueue(loop, self._deliverer, self._places, self._far)
        return found

    @property
    def queues(self) -> list[LoopQueue]:
        return list(self._queues.values())

    def let_go(self, *, over: bool) -> None:
        """Stop holding lanes at their places: the replay has failed, or is ``over``. Until it is over, polling lanes
        are still detected."""
        self._ended = True
        if over:
            self._far = self._tail = UNLIMITED
        for lane in [*self._lanes.values(), *self._strangers]:
            self._stranger(lane)
        self._lanes.clear()
        for queue in self.queues:
            queue.let_go()

    def let_poll(self) -> None:
        """Let lanes poll without limit: things that were never recorded may happen now."""
        self._far = self._tail = UNLIMITED
        for lane in [*self._strangers]:
            self._stranger(lane)
        for number in [*self._lanes]:
            self._limit(number)
        for queue in self.queues:
            queue.stir()

    # -- recording: the place of an event ------------------------------------------------------------------------------

    def place(self, lane: Lane, number: Callable[[Lane], int], *, hop: bool = False) -> bytes:
        """Return ``,"place":{…}`` for an event of ``lane`` that happens now, or nothing if the loop's last place still
        holds; ``number`` numbers lanes.

        Call it in the event loop, once per event: it restarts the count of the lane's callbacks. As a replay may lack a
        ``hop``, its place includes the lane itself.
        """
        loop: Any = running_loop()
        if loop is None:
            return b""
        known = self._of(loop)
        if known.number < 0:
            known.number = self._numbered
            self._numbered += 1
        lanes: dict[str, int] = {}
        ended: dict[str, int] = {}
        for one in known.moved:
            over = one.owner == NOBODY and one is not lane
            (ended if over else lanes)[str(number(one))] = max(0, one.since)
            one.moved = known.moved
        known.moved.clear()
        if hop:
            lanes.setdefault(str(number(lane)), lane.since)
        lane.since = 0
        about: dict[str, Any] = {"loop": known.number} if known.number else {}
        if lanes:
            about["lanes"] = lanes
        if ended:
            about["ended"] = ended
        return b',"place":' + orjson.dumps(about) if about else b""

    @property
    def unplaced(self) -> int | None:
        """Return the most callbacks, since its own last event, of any lane that moved after its loop's last event;
        ``None`` if there is no loop."""
        most = max((known.most for known in [*self._loops.values()]), default=-1)
        return None if most < 0 and self._unplaced < 0 else max(most, self._unplaced)

    # -- replay: holding lanes -----------------------------------------------------------------------------------------

    def known_as(self, lane: Lane, number: int | None) -> None:
        """In a replay, set the recorded number of ``lane`` from now on; ``None``: it has none."""
        former = None if number is None else self._number.get(lane)
        if former is not None and former != number and self._lanes.get(former) is lane:
            del self._lanes[former]
        if number is not None:
            self._number[lane] = number
        if number is not None and self._places is not None and number in self._places and not self._ended:
            before = self._lanes.get(number)
            if before is not None and before is not lane:
                self._stranger(before)
            self._strangers.discard(lane)
            self._lanes[number] = lane
            self._limit(number)
        else:
            self._stranger(lane)

    def _stranger(self, lane: Lane) -> None:
        """Set the limit of a lane for which no place says how far it may go."""
        lane.limit = self._far + lane.since if self._ended else self._tail
        if lane.limit >= UNLIMITED:
            lane.limit = UNLIMITED
            self._strangers.discard(lane)
            return
        parent = lane.parent
        if lane.id < 0 and parent is not None and parent.since > self._far:
            # Started by a lane that polls, and will start others: it is part of the polling.
            lane.since, lane.limit = parent.since, max(parent.limit, parent.since + 1)
        self._strangers.add(lane)

    def delivered(self, seq: int) -> None:
        """Release what was held for event ``seq``, which has been delivered or skipped."""
        self.news += 1
        if self._places is not None:
            for number in self._places.held_for(seq):
                self._limit(number)

    def skipped(self, seq: int, number: int) -> None:
        """The program has gone on without the hop ``seq`` of a lane, in the callback that would have waited for it."""
        lane, places = self._lanes.get(number), self._places
        if lane is not None and places is not None:
            # as if it had come, and the callback that it leads to were the running one
            lane.since = max(0, lane.since - places.before(seq)) + 1
            self._limit(number)

    def made(self, number: int) -> None:
        """The lane has made a recorded step."""
        self.news += 1
        if number in self._lanes:
            self._limit(number)

    def asked(self, lane: Lane) -> None:
        """``lane`` asks for an event of its own, or no longer does, or waits for what a thread delivers."""
        if lane.id in self._lanes:
            self._limit(lane.id)

    def is_lane_of(self, number: int, queue: LoopQueue) -> bool:
        """Return whether the recorded lane ``number`` is known to run in the loop of ``queue``."""
        lane = self._lanes.get(number)
        return lane is not None and lane.loop is queue.loop

    def let_pass(self, queue: LoopQueue) -> bool:
        """Let the lanes held in ``queue`` go on without the event that they are held for; return whether there are any."""
        held = [lane for lane in queue.held_lanes if lane.limit <= self._most]
        for lane in held:
            number = self._number[lane]
            self._at[number] += 1
            self._limit(number)
        if held:
            queue.stir()
        return bool(held)

    def let_look(self, queue: LoopQueue) -> None:
        """Let the polling lanes in ``queue`` look again, a little more often than any lane did in the recording."""
        for lane in queue.held_lanes:
            if lane.limit > self._most:
                lane.limit = lane.since + self._far
        queue.stir()

    @property
    def _most(self) -> int:
        return 0 if self._places is None else self._places.most

    def _limit(self, number: int) -> None:
        lane, places, deliverer = self._lanes.get(number), self._places, self._deliverer
        if lane is None or places is None or deliverer is None or self._ended:
            return
        until, counts = places.of(number)
        i = self._at.get(number, 0)
        while i < len(until) and deliverer.is_done(until[i]):
            i += 1
        self._at[number] = i
        if i == len(until):
            lane.limit = self._tail
        elif (
            places.is_own(number, until[i]) and not (places.is_hop(until[i]) or deliverer.is_coming(until[i]))
        ) or self._owes(number, until[i]):
            lane.limit = self._far
        else:
            lane.limit = counts[i]
        for queue in self._queues.values():
            queue.look_again = True

    def _owes(self, number: int, seq: int) -> bool:
        """Return whether a lane has yet to make a step that was recorded before event ``seq``; until then it is not
        held."""
        places, deliverer = self._places, self._deliverer
        assert places is not None
        assert deliverer is not None
        steps = places.steps_of(number)
        made = self._made.get(number, 0)
        while made < len(steps) and deliverer.is_made(steps[made]):
            made += 1
        self._made[number] = made
        return made < len(steps) and steps[made] < seq


class LoopQueue:
    """The callbacks of a run that wait in ``loop``, in order. Those of a lane that has reached its place are set aside."""

    __slots__ = (
        "_cancelled",
        "_deliverer",
        "_expected",
        "_far",
        "_kicked",
        "_parked",
        "_places",
        "_queue",
        "look_again",
        "loop",
        "moved",
        "out",
        "resting",
        "thread",
    )

    def __init__(
        self, loop: AbstractEventLoop, deliverer: Deliverer | None, places: PlaceIndex | None, far: int
    ) -> None:
        self.loop: Final = loop
        self.thread: Final = get_ident()
        self._deliverer: Final = deliverer
        self._places: Final = places
        self._far: Final = far
        #: How many callbacks have run here, except for those of polling lanes.
        self.moved = 0
        self._queue: Final[deque[Callback]] = deque()
        self._parked: Final[deque[Callback]] = deque()
        #: The futures with which recorded events are awaited, and the callbacks to run first if one was cancelled.
        self._expected: Final[set[Any]] = set()
        self._cancelled: Final[dict[Any, Callback]] = {}
        self._kicked = False
        #: How many calls in threads that are not in the recording are pending: what they lead to is unpredictable.
        self.out = 0
        #: Whether a held lane may go on.
        self.look_again = False
        #: Whether the run has nothing to run here but held callbacks.
        self.resting = True

    def add(self, handle: Callback) -> None:
        args: Any = handle._args
        if (handle.lane is None or not handle.counted) and args and args[0] in self._expected and args[0].cancelled():
            self._cancelled[args[0]] = handle
        else:
            self._queue.append(handle)
        if not self._kicked:
            self.kick()

    def expect(self, future: Any) -> None:
        """Register ``future``, with which an event is awaited: if it is cancelled, the waiter goes on only when the
        event is next."""
        self._expected.add(future)

    def deliver(self, future: Any) -> None:
        """Deliver the event of ``future``: first its immediate consequence, then what was held meanwhile."""
        self._expected.discard(future)
        self.unpark()
        first = self._cancelled.pop(future, None)
        if first is not None:
            self._queue.appendleft(first)
        elif not future.done():
            rest = list(self._queue)
            self._queue.clear()
            future.set_result(None)
            self._queue.extend(rest)
        self.kick()

    def back(self) -> None:
        """A call in a thread that is not in the recording has returned."""
        self.out -= 1
        self.kick()

    def let_go(self) -> None:
        """Stop holding anything here."""
        self._expected.clear()
        self._queue.extend(self._cancelled.values())
        self._cancelled.clear()
        self.stir()

    @property
    def held_lanes(self) -> set[Lane]:
        """The lanes with a held callback here."""
        parked = [handle for handle in list(self._parked) if handle.counted and not handle._cancelled]
        return {handle.lane for handle in parked if handle.lane is not None}

    @property
    def polls(self) -> bool:
        """Whether a polling lane is held here."""
        most = 0 if self._places is None else self._places.most
        return any(lane.limit > most for lane in self.held_lanes)

    @property
    def may_go_on(self) -> bool:
        """Whether a lane held here has been allowed to go on since."""
        return any(lane.since < lane.limit for lane in self.held_lanes)

    def stir(self) -> None:
        """Have held callbacks reconsidered; may be called from any thread."""
        self.look_again = True
        self.kick_from_anywhere()

    def kick(self) -> None:
        """Schedule a look at the queue; called in the loop's thread."""
        if not self._kicked:
            self._kicked = True
            self.resting = False
            self.loop.call_soon(self._run, context=Context())  # outside every run; a nested loop enters it again

    def kick_from_anywhere(self) -> None:
        if self.thread == get_ident() and running_loop() is self.loop:
            self.kick()
            return
        try:
            self.loop.call_soon_threadsafe(self.kick, context=Context())
        except RuntimeError:  # the loop is closed
            pass

    def unpark(self) -> None:
        """Queue what was held again, in order and before later callbacks."""
        self.look_again = False
        self._queue.extendleft(reversed(self._parked))
        self._parked.clear()

    def nested(self) -> None:
        """The loop is about to be run inside one of these callbacks."""
        self._kicked = False
        self.kick()

    def _run(self) -> None:
        self._kicked = False
        queue = self._queue
        try:
            for _ in range(len(queue)):
                if not queue:
                    break  # a nested loop has run them
                handle = queue.popleft()
                if handle._cancelled:
                    continue
                lane = handle.lane
                if lane is not None and handle.counted:
                    if lane.since >= lane.limit:
                        self._parked.append(handle)
                        continue
                    lane.runs()
                    if lane.since <= self._far:
                        self.moved += 1
                else:
                    if lane is not None and self._parked and self._is_due():
                        self._parked.append(handle)  # it comes after what waits for that event
                        continue
                    if not handle.own:
                        self.moved += 1
                handle.call()
                del handle  # it refers to values given to the program, which alone should own them
            if self.look_again:
                self.unpark()
            if self._deliverer is not None:
                self._rest(self._deliverer)
        finally:
            if queue:
                self.kick()
            else:
                self.resting = not self._kicked

    def _is_due(self) -> bool:
        return self._deliverer is not None and self._deliverer.is_due_in(self.loop)

    def _rest(self, deliverer: Deliverer) -> None:
        if self._queue and self._leads_to(deliverer.due_in(self.loop)):
            return
        while deliverer.deliver(self) and not self._queue:
            pass

    def _leads_to(self, due: int | None) -> bool:
        """Return whether what is left to run here may be on its way to the place of event ``due``; a polling lane is
        not."""
        if due is None:
            return True
        before = () if self._places is None else self._places.ended_before(due)
        most = 0 if self._places is None else self._places.most
        # Callbacks inside a call lead into it, or out of it: to a thread, or to an awaited event.
        return any(
            one.lane is None or (one.counted and (one.lane.limit <= most or one.lane.id in before))
            for one in self._queue
        )


class PlaceIndex:
    """The places of a recording, by lane: how far it may go until which event."""

    __slots__ = (
        "_before",
        "_counts",
        "_ended",
        "_ends",
        "_lane",
        "_loops",
        "_stands",
        "_steps",
        "_until",
        "ends",
        "most",
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
        place = place or {}
        loop = self._loops.setdefault(place.get("loop", 0), _Reading())
        for key, count in (place.get("lanes") or {}).items():
            other = int(key)
            self._enter(loop, other)
            loop.ended.discard(other)
            loop.ready[other] = count, loop.number
            self.most = max(self.most, count)
        for key, count in (place.get("ended") or {}).items():
            other = int(key)
            self._enter(loop, other)
            loop.ended.add(other)
            self._ended.setdefault(seq, []).append(other)
            self.most = max(self.most, count)
        own, _ = loop.ready.get(lane, (0, 0))
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

    def finish(self, most: object = None) -> None:
        """Finish: there are no more events. ``most`` is how many callbacks a lane ran after its loop's last event, if
        known."""
        if type(most) is int:
            self.ends, self.most = True, max(self.most, most)
        for loop in self._loops.values():
            for lane in list(loop.ready):
                self._close(loop, lane)
        self._loops.clear()
        self._stands.clear()

    def _enter(self, loop: _Reading, lane: int) -> None:
        """``lane`` has gone on in ``loop``: since its last event, or that of the loop in which it was before."""
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

    def all_steps(self, seqs: Iterable[int], lane: int) -> None:
        """Add the next steps of a lane."""
        self._steps.setdefault(lane, array("Q")).extend(seqs)

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
    """A loop of a recording while its places are read: how far its lanes are, since which of its events, and whose task
    has ended."""

    __slots__ = ("ended", "last", "number", "ready")

    def __init__(self) -> None:
        self.ready: dict[int, tuple[int, int]] = {}
        self.ended: set[int] = set()
        self.last = 0
        self.number = 0
