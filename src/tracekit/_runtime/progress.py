"""Where in a program's own progress the events that an event loop brings belong.

An *event* is what the outside decides: the answer of a call, a piece of a stream, a timer that fires, a result that a thread hands to
the loop. Its *place* says how far the program had come by then: for each lane in that loop, how many of its callbacks had run since
the lane's own last event. Nothing else counts: not time, not rounds of a loop that others share, not
what a live call does inside. A loop runs the callbacks of one program in the order in which they were asked for. So a replay that
holds each lane at its place until the event has come sees the program in the recorded state, whatever the speed, and whatever else
runs.

While recording a callback is counted where it runs. In a replay, and on loops that can't be looked into (uvloop), the callbacks of
the run wait in a queue of ours, a ``LoopQueue``, in their order; the loop itself is never held up.
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

#: How many callbacks past any that was recorded a lane counts as one that polls. Nothing is wrong by that: it is left to look again
#: as long as anything else moves.
_FAR: Final = 1000


class Callback(Protocol):
    """A callback of a run in an event loop, as a handle of that; ``lane`` is whose progress it is, ``None`` inside a live call. One that
    is not ``counted`` is no progress, and is not held: the recording has nothing like it, or may have. By one of our ``own`` nothing of the
    program moves."""

    counted: bool
    lane: Lane | None
    own: bool
    _args: Any
    _cancelled: bool

    def call(self) -> None:
        """Run it; whoever holds it has counted it."""
        ...


class _Moves:
    """An event loop of a run: its number, once it has brought an event, and the lanes that have moved since its last one."""

    __slots__ = ("moved", "number")

    def __init__(self) -> None:
        self.number = -1
        self.moved: Final[list[Lane]] = []

    @property
    def most(self) -> int:
        """The most callbacks, since its own last event, that a lane has run which moved after the loop's last one."""
        return max((lane.since for lane in [*self.moved]), default=0)


class Deliverer(Protocol):
    """Who has the events of a replay: its schedule."""

    def deliver(self, queue: LoopQueue) -> bool:
        """Nothing but held lanes is left to run in this loop: deliver what is due there. Whether something was."""
        ...

    def is_done(self, seq: int) -> bool:
        """Whether event ``seq`` has been delivered or skipped."""
        ...

    def is_coming(self, seq: int) -> bool:
        """Whether event ``seq`` needs nothing more of its lane: it is asked for, or a thread brings it."""
        ...

    def is_made(self, step: int) -> bool:
        """Whether the program has come to a step."""
        ...

    def due_in(self, loop: AbstractEventLoop) -> int | None:
        """The next event, if it is asked for in ``loop``."""
        ...

    def is_due_in(self, loop: AbstractEventLoop) -> bool:
        """Whether the next event is asked for in ``loop``, and nothing has to come about before."""
        ...


class Progress:
    """The callbacks of one run in its event loops. With ``deliverer`` and ``places`` they are held at the recorded places."""

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
        #: How many callbacks, since its own last event, a lane runs before it counts as one that polls, where nobody holds it; the same
        #: after its last place.
        self._far = UNLIMITED if places is None else places.most + _FAR
        self._tail = self._far if places is not None and places.ends else patience
        #: In a replay: lanes that have no place in the recording.
        self._strangers: Final[set[Lane]] = set()
        #: How often something came about that was recorded.
        self.news = 0
        #: The most callbacks that a lane ran after the last event of a loop that is closed; -1 where none is.
        self._unplaced = -1
        self._queues: dict[AbstractEventLoop, LoopQueue] = {}
        #: What there is to say of each loop at its next event, and how many have a number.
        self._loops: dict[AbstractEventLoop, _Moves] = {}
        self._numbered = 0
        #: Whether nobody is held any more.
        self._ended = False
        self._lanes: dict[int, Lane] = {}
        self._number: dict[Lane, int] = {}
        self._at: dict[int, int] = {}
        #: How many of its recorded steps each lane of a replay has made.
        self._made: dict[int, int] = {}
        #: In a replay: how long the recording had taken up to the last event that was handed out (ns).
        self.elapsed: Callable[[], int] = lambda: 0
        #: That of the last event, and the real clock when it was first noticed; the latest instant that was given out.
        self._event = 0, monotonic_ns()
        self._now = 0
        #: The loop in which what is asked for now counts for nobody.
        self._uncounted: AbstractEventLoop | None = None
        #: Asked once for each lane of a replay, for the number that it has in the recording.
        self.follow: Callable[[Lane], object] = lambda _: None

    # -- what runs -------------------------------------------------------------------------------------------------------

    def soon(self, loop: Any, lane: Lane | None, handle: Callback) -> None:
        """``loop.call_soon`` for a callback in ``lane``, or inside a live call (``None``)."""
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
        """Drop the loops and queues that were closed from outside the run, where no hook is called."""
        for old in [one for one in {**self._loops, **self._queues} if one.is_closed()]:
            self.closed(old)

    def closed(self, loop: AbstractEventLoop, lane: Lane | None = None) -> None:
        """``loop`` has been closed, by ``lane``: it brings no event any more, and is not kept."""
        known = self._loops.pop(loop, None)
        if known is not None:
            self._unplaced = max(self._unplaced, known.most)
            for one in [lane, *known.moved]:
                if one is not None and one.loop is loop:
                    one.loop = one.moved = None
        self._queues.pop(loop, None)

    def now(self) -> int:
        """How long (ns) the replayed run has taken by its own clock.

        A replay takes no time for what took time in the recording: its clock is where the recording's was at the last event, and goes
        on from there.
        """
        elapsed, real = self.elapsed(), monotonic_ns()
        if elapsed > self._event[0]:
            self._event = elapsed, real
        self._now = max(self._now, elapsed + real - self._event[1])
        return self._now

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is asked for inside, in the running loop, counts for nobody: it may be there or not."""
        before, self._uncounted = self._uncounted, running_loop()
        try:
            yield
        finally:
            self._uncounted = before

    def count(self, lane: Lane) -> None:
        """The callback of ``lane`` that comes next was asked for as if it counted for nobody, and counts."""
        lane.runs()

    def queue(self, loop: AbstractEventLoop) -> LoopQueue:
        """The callbacks of the run that wait in ``loop``; asked for in its thread."""
        found = self._queues.get(loop)
        if found is None:
            self._forget()
            found = self._queues[loop] = LoopQueue(loop, self._deliverer, self._places, self._far)
        return found

    @property
    def queues(self) -> list[LoopQueue]:
        return list(self._queues.values())

    def let_go(self, *, over: bool) -> None:
        """Nobody is held at his place any more: the replay has failed, or is ``over``; until then it is noticed who only polls."""
        self._ended = True
        if over:
            self._far = self._tail = UNLIMITED
        for lane in [*self._lanes.values(), *self._strangers]:
            self._stranger(lane)
        self._lanes.clear()
        for queue in self.queues:
            queue.let_go()

    def let_poll(self) -> None:
        """What was never recorded may come now: it is polled for as long as that takes."""
        self._far = self._tail = UNLIMITED
        for lane in [*self._strangers]:
            self._stranger(lane)
        for number in [*self._lanes]:
            self._limit(number)
        for queue in self.queues:
            queue.stir()

    # -- recording: the place of an event --------------------------------------------------------------------------------

    def place(self, lane: Lane, number: Callable[[Lane], int], *, hop: bool = False) -> bytes:
        """``,"place":{…}`` for an event of ``lane`` that comes now, or nothing where the loop's last place holds; ``number`` numbers lanes.

        Called in the event loop, once an event: the callbacks of the lane count from here on. A replay may lack a ``hop``: how far
        the lane itself was is said of that.
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
        """The most callbacks, since its own last event, that a lane has run which moved after its loop's last; ``None``: no loop has."""
        most = max((known.most for known in [*self._loops.values()]), default=-1)
        return None if most < 0 and self._unplaced < 0 else max(most, self._unplaced)

    # -- replay: who is held ---------------------------------------------------------------------------------------------

    def known_as(self, lane: Lane, number: int | None) -> None:
        """In a replay: the number of ``lane`` in the recording, from now on; ``None``: it has none."""
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
        """A lane of which no place says how far it may go."""
        lane.limit = self._far + lane.since if self._ended else self._tail
        if lane.limit >= UNLIMITED:
            lane.limit = UNLIMITED
            self._strangers.discard(lane)
            return
        parent = lane.parent
        if lane.id < 0 and parent is not None and parent.since > self._far:
            # Somebody who polls has started it, and will start others: it is no more than a part of that.
            lane.since, lane.limit = parent.since, max(parent.limit, parent.since + 1)
        self._strangers.add(lane)

    def delivered(self, seq: int) -> None:
        """Event ``seq`` has been delivered or skipped: whoever was held for it goes on."""
        self.news += 1
        if self._places is not None:
            for number in self._places.held_for(seq):
                self._limit(number)

    def skipped(self, seq: int, number: int) -> None:
        """The program has gone on without the hop ``seq`` of a lane: in the callback that would have waited for it."""
        lane, places = self._lanes.get(number), self._places
        if lane is not None and places is not None:
            # As if it had come, and the callback that it leads to were the running one.
            lane.since = max(0, lane.since - places.before(seq)) + 1
            self._limit(number)

    def made(self, number: int) -> None:
        """The lane has made a recorded step."""
        self.news += 1
        if number in self._lanes:
            self._limit(number)

    def asked(self, lane: Lane) -> None:
        """``lane`` asks for an event of its own, or does so no longer, or waits for what a thread brings."""
        if lane.id in self._lanes:
            self._limit(lane.id)

    def is_lane_of(self, number: int, queue: LoopQueue) -> bool:
        """Whether the lane ``number`` of the recording is known to run in the loop of ``queue``."""
        lane = self._lanes.get(number)
        return lane is not None and lane.loop is queue.loop

    def let_pass(self, queue: LoopQueue) -> bool:
        """The lanes that are held in ``queue`` go on without the event that they are held for. Whether there are some."""
        held = [lane for lane in queue.held_lanes if lane.limit <= self._most]
        for lane in held:
            number = self._number[lane]
            self._at[number] += 1
            self._limit(number)
        if held:
            queue.stir()
        return bool(held)

    def let_look(self, queue: LoopQueue) -> None:
        """The lanes in ``queue`` that poll look again, as often as anybody ever did in the recording, and some more."""
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
        """Whether a lane has yet to make a step that was recorded before event ``seq``: it goes on until it has, held by nobody."""
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
    """The callbacks of a run that wait in ``loop``, in their order. Those of a lane that has reached its place are set aside."""

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
        #: How many callbacks have run here, but for those of lanes that poll.
        self.moved = 0
        self._queue: Final[deque[Callback]] = deque()
        self._parked: Final[deque[Callback]] = deque()
        #: What events of a recording are waited for with, and what leads on where somebody has cancelled that.
        self._expected: Final[set[Any]] = set()
        self._cancelled: Final[dict[Any, Callback]] = {}
        self._kicked = False
        #: How many calls in threads are out that the recording does not have: what they lead to is nobody's to foretell.
        self.out = 0
        #: Whether some lane may go on that was held.
        self.look_again = False
        #: Whether the run has nothing to run here but what is held.
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
        """``future`` is what an event is waited for with: if it is cancelled, whoever waits goes on when that event has its turn."""
        self._expected.add(future)

    def deliver(self, future: Any) -> None:
        """The event of ``future`` has its turn: first of all comes what it leads to at once, then what was held meanwhile."""
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
        """A call in a thread that the recording does not have has come back."""
        self.out -= 1
        self.kick()

    def let_go(self) -> None:
        """Nobody is held here any more."""
        self._expected.clear()
        self._queue.extend(self._cancelled.values())
        self._cancelled.clear()
        self.stir()

    @property
    def held_lanes(self) -> set[Lane]:
        """The lanes that have a callback here that is held."""
        parked = [handle for handle in list(self._parked) if handle.counted and not handle._cancelled]
        return {handle.lane for handle in parked if handle.lane is not None}

    @property
    def polls(self) -> bool:
        """Whether a lane is held here that polls."""
        most = 0 if self._places is None else self._places.most
        return any(lane.limit > most for lane in self.held_lanes)

    @property
    def may_go_on(self) -> bool:
        """Whether a lane is held here that was let go on since."""
        return any(lane.since < lane.limit for lane in self.held_lanes)

    def stir(self) -> None:
        """From anywhere: what is held is looked at again."""
        self.look_again = True
        self.kick_from_anywhere()

    def kick(self) -> None:
        """From the loop's thread: look what there is to do."""
        if not self._kicked:
            self._kicked = True
            self.resting = False
            self.loop.call_soon(self._run, context=Context())  # no run in it; a loop inside the loop enters it again

    def kick_from_anywhere(self) -> None:
        if self.thread == get_ident() and running_loop() is self.loop:
            self.kick()
            return
        try:
            self.loop.call_soon_threadsafe(self.kick, context=Context())
        except RuntimeError:  # the loop is closed
            pass

    def unpark(self) -> None:
        """What was held is looked at again, in its order and before what came later."""
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
                    break  # a loop inside the loop has had them
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
                del handle  # it has what the program was given: that is the program's alone
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
        """Whether what is left to run here may be on its way to the place of event ``due``. Who is not polls, and has no part in it."""
        if due is None:
            return True
        before = () if self._places is None else self._places.ended_before(due)
        most = 0 if self._places is None else self._places.most
        # What is inside a call is on its way into it, or out of it: to a thread, or to an event that is waited for.
        return any(
            one.lane is None or (one.counted and (one.lane.limit <= most or one.lane.id in before))
            for one in self._queue
        )


class PlaceIndex:
    """The places of a recording, by lane: how far it may go until which event has come."""

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
        #: The lane of an event, and which others are held until it has come.
        self._lane: Final[dict[int, int]] = {}
        self._ends: Final[dict[int, list[int]]] = {}
        #: The lanes that came to their end, or ran something after it, between the loop's event before and this one.
        self._ended: Final[dict[int, list[int]]] = {}
        #: The steps of each lane.
        self._steps: Final[dict[int, array[int]]] = {}
        #: How many callbacks of its lane had run before a hop.
        self._before: Final[dict[int, int]] = {}
        self._loops: Final[dict[int, _Reading]] = {}
        #: While the places are read: the loop in which a lane was seen last.
        self._stands: Final[dict[int, _Reading]] = {}
        #: The most callbacks that a lane ran since its own last event.
        self.most = 0
        #: Whether the recording says how far the lanes came after the last event.
        self.ends = False

    def __contains__(self, lane: int) -> bool:
        return lane in self._until

    def state(self) -> dict[str, Any]:
        """What it has found, once it is finished; ``of_state`` makes it again."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> PlaceIndex:
        found = cls()
        for name, value in state.items():
            setattr(found, name, value)
        return found

    def add(self, seq: int, lane: int, place: Mapping[str, Any] | None, *, hop: bool = False) -> None:
        """The next event that a loop brought, in the order of the file. The program may lack a ``hop``."""
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
        if lane not in loop.ended:  # else a timer that has outlived its task: nothing is known of how far that was
            self._enter(loop, lane)
            self._append(lane, seq, own)
            loop.ready[lane] = 0, loop.number + 1
        if hop:
            self._before[seq] = own
            # It may be left out before its turn: nobody goes by it for an earlier event.
            for other, (stood, _) in [item for item in loop.ready.items() if item[0] != lane]:
                self._close(loop, other)
                self._append(other, seq, stood)
                self._ends.setdefault(seq, []).append(other)
                loop.ready[other] = stood, loop.number + 1
        self._lane[seq] = lane
        loop.last, loop.number = seq, loop.number + 1

    def finish(self, most: object = None) -> None:
        """There are no more events; ``most`` callbacks is how far a lane went after the last one of its loop, where that is known."""
        if type(most) is int:
            self.ends, self.most = True, max(self.most, most)
        for loop in self._loops.values():
            for lane in list(loop.ready):
                self._close(loop, lane)
        self._loops.clear()
        self._stands.clear()

    def _enter(self, loop: _Reading, lane: int) -> None:
        """``lane`` has gone on in ``loop``: since the last event of that, or of the loop that it was in before."""
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
        """Events in their order, and how many callbacks of ``lane`` may run since its own last event before each."""
        return self._until[lane], self._counts[lane]

    def ended_before(self, seq: int) -> Sequence[int]:
        """The lanes whose last callbacks ran between the loop's event before and ``seq``: nothing says how many."""
        return self._ended.get(seq, ())

    def is_own(self, lane: int, seq: int) -> bool:
        return self._lane.get(seq) == lane

    def step(self, seq: int, lane: int) -> None:
        """The next step of a lane."""
        self._steps.setdefault(lane, array("Q")).append(seq)

    def all_steps(self, seqs: Iterable[int], lane: int) -> None:
        """The next steps of a lane."""
        self._steps.setdefault(lane, array("Q")).extend(seqs)

    def steps_of(self, lane: int) -> Sequence[int]:
        return self._steps.get(lane, ())

    def is_hop(self, seq: int) -> bool:
        return seq in self._before

    def before(self, hop: int) -> int:
        """How many callbacks of its lane had run before ``hop``, since the lane's own last event."""
        return self._before.get(hop, 0)

    def held_for(self, seq: int) -> list[int]:
        """The lanes that may go on when ``seq`` has come."""
        own = self._lane.get(seq)
        others = self._ends.get(seq, [])
        return others if own is None else [own, *others]


class _Reading:
    """A loop of a recording while its places are read: how far its lanes are, and since which of its events; whose task has ended."""

    __slots__ = ("ended", "last", "number", "ready")

    def __init__(self) -> None:
        self.ready: dict[int, tuple[int, int]] = {}
        self.ended: set[int] = set()
        self.last = 0
        self.number = 0
