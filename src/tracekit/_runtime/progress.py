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

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from .._reality import monotonic_ns, running_loop
from . import loop_queue
from .lane import CALLBACK, NOBODY, UNLIMITED, Lane

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .loop_queue import Callback, Deliverer, LoopQueue
    from .places import PlaceIndex

__all__ = ["Progress"]

#: After how many callbacks more than any lane of the recording a lane counts as polling. A wrong guess does no harm:
#: the lane is let look again as long as anything else moves.
_FAR: Final = 1000


class _Moves:
    """An event loop of a run: its number, once it has delivered an event, the lanes that have moved since its last one,
    what its latest place has reset, and, in a replay, all of its lanes."""

    __slots__ = ("lanes", "moved", "number", "reset")

    def __init__(self) -> None:
        self.number = -1
        self.moved: Final[list[Lane]] = []
        self.lanes: Final[list[Lane]] = []
        #: The lane of its latest event, how many of its callbacks had run before, and the lanes that had moved.
        self.reset: tuple[Lane, int, list[Lane]] | None = None

    @property
    def most(self) -> int:
        """The most callbacks, since its own last event, of any lane that moved after the loop's last event."""
        return max((lane.since for lane in [*self.moved]), default=0)


class Progress:
    """The callbacks of one run in its event loops. With ``deliverer`` and ``places`` they are held at the recorded
    places."""

    __slots__ = (
        "_after_last",
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
        "_parked",
        "_places",
        "_queues",
        "_strangers",
        "_tail",
        "_uncounted",
        "_unlike",
        "_unplaced",
        "calls_differ",
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
        #: In a replay, what it makes otherwise than the recorded program in a loop, with the queue and how often
        #: something had been held there by then; and how often something was held in loops that are closed.
        self._unlike: Final[list[tuple[LoopQueue | None, int, str]]] = []
        self._parked = 0
        #: Whether user code makes more or fewer calls in threads than in the recording.
        self.calls_differ = False
        #: Whether it is known how far the lanes of each loop went after its last recorded event.
        self._after_last = True
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
        comes = lane is not None and lane.loop is not loop
        if lane is not None and comes:
            lane.loop, known = loop, self._of(loop)
            known.moved.append(lane)
            lane.moved = None
            if self._deliverer is not None:
                known.lanes.append(lane)
        if self._deliverer is None:
            if ready is not None:
                ready.append(handle)
                return
        elif lane is not None and lane.state is None:
            self.follow(lane)
            if lane.task and lane.id < 0:
                self.unlike(lane)
        queue = self.queue(loop)
        if lane is not None and comes and lane in self._number:
            self._limit(self._number[lane])  # whether it is another thread's depends on the loop
        queue.add(handle)

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
            for one in [lane, *known.moved, *known.lanes]:
                if one is not None and one.loop is loop:
                    one.loop = one.moved = None
        queue = self._queues.pop(loop, None)
        if queue is not None:
            self._parked += queue.parked

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
    def uncounted(self, really: bool = True) -> Iterator[None]:
        """A block in which what is scheduled in the running loop counts for no lane: it may or may not be in the
        recording. Without ``really``, one in which it counts although such a block is around it."""
        before, self._uncounted = self._uncounted, running_loop() if really else None
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
            found = self._queues[loop] = loop_queue.LoopQueue(loop, self._deliverer, self._places, self._far)
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

    # -- replay: loops that do not run what they ran -------------------------------------------------------------------

    def unlike(self, lane: Lane) -> None:
        """Note that ``lane``, a task, is not in the recording. Callbacks of other lanes follow from it, so these may run
        more or fewer of their own before the next place at which they are held. What a finalizer starts is in a recording
        by chance."""
        if lane.by_chance:
            return
        loop: Any = lane.loop
        queue = self._queues.get(loop)
        self._unlike.append(
            (queue, 0 if queue is None else queue.parked, f"a task, {lane.name!r}, is not in the recording")
        )

    def unlike_call(self, name: str, queue: LoopQueue, parked: int) -> None:
        """The same for a call in a thread, when something had been held ``parked`` times."""
        self._unlike.append((queue, parked, f"a call in a thread, {name!r}, is not in the recording"))

    def polled_otherwise(self, wrapped: Collection[int], *, to_the_end: bool) -> str | None:
        """Return why lanes that were held may have come further, or less far, than in the recording, if so.

        What stands around a program, what a library does with a real connection, and its telemetry, are in no replay, so
        tasks and callbacks say something only where calls in threads differ, too. ``wrapped`` are lanes around the program, which
        a replay need not have; ``to_the_end``: what lanes did after the last event is compared as well.
        """
        if not self.calls_differ:
            return None
        for queue, parked, what in self._unlike:
            if queue is not None and queue.parked > parked:
                return what
        places = self._places
        if places is None:
            return None
        held = self._parked or any(queue.parked for queue in self.queues)
        if held and not places.moved <= {*self._number.values(), *wrapped}:
            return "a task of the recording was not started"
        now, then = self.unplaced, places.after
        if to_the_end and self._after_last and then is not None and then[1] == self.goes_on and then[0] != now:
            return f"after the last event of its loop, a task ran {now or 0} callbacks, and {then[0]} in the recording"
        return None

    # -- recording: the place of an event ------------------------------------------------------------------------------

    def place(self, lane: Lane, number: Callable[[Lane], int], *, hop: bool = False) -> bytes:
        """Return ``,"place":{…}`` for an event of ``lane`` that happens now, or nothing if the loop's last place still
        holds; ``number`` numbers lanes.

        Call it in the event loop, once per event: it restarts the count of the lane's callbacks. If the entry can't be
        written, call ``take_back``. As a replay may lack a ``hop``, its place includes the lane itself.
        """
        loop: Any = running_loop()
        if loop is None:
            return b""
        known = self._loops.get(loop) or self._of(loop)
        if not (known.number or known.moved or hop):  # the last place of the loop holds
            known.reset = lane, lane.since, []
            lane.since = 0
            return b""
        if known.number < 0:
            known.number = self._numbered
            self._numbered += 1
        lanes: dict[str, int] = {}
        ended: dict[str, int] = {}
        for one in known.moved:
            over = one.task and one.owner == NOBODY and one is not lane
            (ended if over else lanes)[str(number(one))] = max(0, one.since)
        if hop:
            lanes.setdefault(str(number(lane)), lane.since)
        known.reset = lane, lane.since, [*known.moved]
        for one in known.moved:
            one.moved = known.moved
        known.moved.clear()
        lane.since = 0
        about: dict[str, Any] = {"loop": known.number} if known.number else {}
        if lanes:
            about["lanes"] = lanes
        if ended:
            about["ended"] = ended
        return b',"place":' + orjson.dumps(about) if about else b""

    def take_back(self) -> None:
        """The entry with the latest place of the running loop could not be written: the entry that is kept in its stead
        has the same place. Call it before the loop runs anything else."""
        loop: Any = running_loop()
        known = None if loop is None else self._loops.get(loop)
        if known is None or known.reset is None:
            return
        (lane, since, moved), known.reset = known.reset, None
        lane.since += since
        for one in moved:
            one.moves()

    @property
    def unplaced(self) -> int | None:
        """Return the most callbacks, since its own last event, of any lane that moved after its loop's last event;
        ``None`` if there is no loop."""
        most = max((known.most for known in [*self._loops.values()]), default=-1)
        return None if most < 0 and self._unplaced < 0 else max(most, self._unplaced)

    @property
    def goes_on(self) -> bool:
        """Whether a loop has not been closed."""
        return any(not loop.is_closed() for loop in [*self._loops])

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

    def delivered(self, seq: int, *, skipped: bool = False) -> None:
        """Release what was held for event ``seq``, which has been delivered or skipped."""
        self.news += 1
        if self._places is not None:
            if self._places.is_placed(seq):
                self._delivered_in_loop(seq, skipped)
            for number in self._places.held_for(seq):
                self._limit(number)

    def _delivered_in_loop(self, seq: int, skipped: bool) -> None:
        places: Any = self._places
        known = None if skipped else self._loops.get(running_loop())
        if known is None:
            # A hop that is skipped leaves its lane as if it had come.
            self._after_last &= not places.is_last(seq) or (skipped and places.is_hop(seq))
            return
        for one in known.moved:
            one.moved = known.moved
        known.moved.clear()

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
        elif self._is_in_another_thread(lane):
            lane.limit = counts[i]  # whatever the thread does next, it does not depend on callbacks after the event
        elif (
            places.is_own(number, until[i]) and not (places.is_hop(until[i]) or deliverer.is_coming(until[i]))
        ) or self._owes(number, until[i]):
            lane.limit = self._far
        else:
            lane.limit = counts[i]
        for queue in self._queues.values():
            queue.look_again = True

    def _is_in_another_thread(self, lane: Lane) -> bool:
        """Return whether ``lane`` is that of a thread which hands calls to the loop, or did: it goes on by itself, not by the
        callbacks of its lane that the loop runs, such as those of futures that it has got for these calls."""
        queue = self._queues.get(lane.loop)  # type: ignore[call-overload]
        if queue is None or lane.task or lane.in_loop or lane.name == CALLBACK:
            return False
        return bool(lane.owner != queue.thread)

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
