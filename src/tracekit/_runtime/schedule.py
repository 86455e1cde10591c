"""The order in which a replay hands out recorded events to threads, coroutines and callbacks."""

from __future__ import annotations

import asyncio
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from array import array
from asyncio import AbstractEventLoop, Future, current_task, get_running_loop
from asyncio.events import _get_running_loop
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from heapq import heappop, heappush
from time import CLOCK_PROCESS_CPUTIME_ID, clock_gettime_ns
from typing import Any, Final

from .._reality import monotonic_ns
from .threads import MonitoredThread, ThreadMonitor

__all__ = ["Burst", "LoopWatch", "Schedule", "Ticket", "can_go_on", "current_burst", "go_on", "place"]

# -- idle --------------------------------------------------------------------------------------------------------------
#
# When an event loop has nothing left to run.
#
# The stdlib's loops keep what is ready in a queue that can be looked at. Others (uvloop) can't be looked into: there, what
# is asked of ``call_soon`` is counted, and a few quiet rounds in a row count as idle.

#: After so many rounds a loop that is never idle (somebody polls with ``sleep(0)``) counts as idle all the same.
_PATIENCE: Final = 1000


class LoopWatch:
    """Calls ``idle`` in the loop's thread when the loop has nothing to run but to wait; once for each ``start``."""

    __slots__ = (
        "_calls",
        "_calm",
        "_context",
        "_idle",
        "_own",
        "_ready",
        "_rounds",
        "loop",
        "running",
        "spare",
        "thread",
    )

    def __init__(self, loop: AbstractEventLoop, idle: Callable[[LoopWatch], None]) -> None:
        self.loop: Final = loop
        self.thread: Final = get_ident()
        self._idle: Final = idle
        #: Of our own callbacks: no run in it. Each loop has its own, for two threads can't be in one context.
        self._context: Final = Context()
        self._ready: Final[Any] = getattr(loop, "_ready", None)
        self.running = False
        #: How many handles of ours, which do nothing, may be ready in an idle loop.
        self.spare: Callable[[], int] = int
        self._calm = 0
        self._rounds = 0
        self._calls = 0
        self._own = 0
        if self._ready is None:
            self._count_calls()

    def start(self) -> None:
        """From the loop's thread: look from now on, until it is idle."""
        if not self.running:
            self.running = True
            self._calm = self._rounds = 0
            self._again()

    def _again(self) -> None:
        self._own = self._calls + 1
        self.loop.call_soon(self._look, context=self._context)

    def _look(self) -> None:
        self._rounds += 1
        if self._rounds < _PATIENCE and self.busy:
            self._calm = 0
            self._again()
        elif self._calm < (1 if self._ready is not None else 3):
            self._calm += 1  # one more round, in which the loop asks the selector
            self._again()
        else:
            self.running = False
            self._idle(self)

    @property
    def busy(self) -> bool:
        """Whether the loop has something to run."""
        if self._ready is not None:
            return len(self._ready) > self.spare()
        return self._calls != self._own

    @property
    def sealed(self) -> bool:
        """Whether nothing from outside can wake the idle loop: no timer of others, no file but its own pipe."""
        loop: Any = self.loop
        try:
            if any(not handle._cancelled for handle in loop._scheduled):
                return False
            return len(loop._selector.get_map()) <= 1
        except AttributeError:
            return False

    def _count_calls(self) -> None:
        loop: Any = self.loop
        original = loop.call_soon

        def call_soon(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return original(*args, **kwargs)

        loop.call_soon = call_soon

    def close(self) -> None:
        if self._ready is None:
            vars(self.loop).pop("call_soon", None)


# -- arrivals ----------------------------------------------------------------------------------------------------------
#
# How close upon one another the events of a loop come.
#
# A program can tell: ``wait(FIRST_COMPLETED)`` sees both done where the second answer came before it was woken for the first.
# A replay hands out one event when nothing is left to run, so the recording notes which events came before that, and where.
#
# Places are counted in *ticks*. Each event of a burst puts a marker into the loop's queue, ahead of what the event leads to; in each
# round of the loop the markers run in their order, each is a tick, and each goes back into the queue. Between two ticks lies
# what one event led to in one round. A replay that puts the events at the same ticks has the same markers, and so the same ticks.
#
# What a thread puts into the loop comes anywhere, in the middle of what an event leads to even. It waits for the next marker
# (``after``), in a recording as in a replay.

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


# -- schedule ----------------------------------------------------------------------------------------------------------
#
# The order in which a replay hands out what was recorded: a discrete-event simulation.
#
# An *event* is an outcome, a chunk of a stream, or a timer that fired. Whoever asks for one is held until its turn has
# come: all events that were recorded before it have been handed out, all steps that were recorded before it have begun, and
# nothing else has something to run. However long the program computes on the way to an earlier event, or sleeps in native code,
# it is waited for. Only where nothing in the process can move any more (see ``threads``) is the earliest of those that were
# asked for handed out all the same, and listed in ``reordered``: an order that the program's own locks forbid. If there is none,
# the program is stuck.

#: What threads share without a queue or a future is not recorded, so it has no place. Most programs come out the same if those
#: that run get to their next wait before an event that is due is handed out. For so long (ns of processor time) it is left to them.
_COURTESY: Final = 100_000_000
#: After so long (ns) it is reported whom everybody waits for.
_LONG_WAIT: Final = 10_000_000_000
#: How long the observer sleeps between two looks (s): at first, at most while events are asked for, at most else.
_SHORT, _LONG, _IDLE = 0.0001, 0.002, 0.05


class Ticket:
    """Somebody who asked for event ``seq`` (``None``: for one that was never recorded, and never comes)."""

    __slots__ = ("act", "future", "gate", "loop", "member", "place", "seq", "thread")

    def __init__(self, seq: int | None, thread: int) -> None:
        self.seq: Final = seq
        #: The thread that asked.
        self.thread: Final = thread
        self.member: MonitoredThread | None = None
        #: Its recorded place in its burst, in ticks.
        self.place = 0
        self.loop: AbstractEventLoop | None = None
        #: What to do when its turn has come: one of a lock to release, a future to set, a callback.
        self.gate: Any = None
        self.future: Future[None] | None = None
        self.act: Callable[[], object] | None = None


class Schedule:
    """The recorded events by their ``seq`` (ascending), handed out to threads, coroutines and callbacks.

    ``moved`` gives some the places of others.

    ``steps`` are the recorded intentions (ascending), ``made`` says of each whether the program has come to it, or never will.

    ``failure`` makes the exception for those who wait when ``fail`` is called; ``stuck`` is called with a line on each task and thread,
    without any lock held, when nothing in the process can move and nothing is left that could be handed out (``None`` from
    it: it goes on all the same); ``slow`` with the event that is waited for, and such lines, when that takes long.
    ``near`` says of each event how it came: 0 without giving up control, 1 after the loop had been idle, 2 + its
    place in ticks where not (see ``arrivals``). ``threads`` hears from the hooks which threads take part.
    """

    def __init__(
        self,
        events: Sequence[int],
        *,
        failure: Callable[[], BaseException],
        stuck: Callable[[list[str]], object],
        slow: Callable[[int | None, list[str]], object] = lambda seq, waiting: None,
        steps: Sequence[int] = (),
        made: Sequence[int] = (),
        near: Sequence[int] | None = None,
        moved: Mapping[int, int] | None = None,
    ) -> None:
        self._events: Final = events if isinstance(events, array) else array("Q", events)
        self._count: Final = len(self._events)
        #: 1: handed out or skipped. ``_next`` is the index of the first that is neither, and was not overtaken.
        self._done: Final = bytearray(self._count + 1)
        self._next = 0
        self._failure: Final = failure
        self._stuck: Final = stuck
        self._slow: Final = slow
        self._steps: Final = steps
        self._made: Final = made
        #: The index of the first step that the program has not come to.
        self._step = 0
        self._near: Final = near or b""
        #: From here on an event goes by its place where it has another than its own; see ``Index.moved``.
        self._moved: Final = moved or {}
        self._from_place: Final = {place: seq for seq, place in self._moved.items()}
        self._bursts: dict[int, Burst] = {}
        self._failed = False
        self._closed = False
        #: Whether what was never recorded comes at once.
        self._released = False
        self.threads: Final = ThreadMonitor(self._observe, failure)
        self._lock: Final = self.threads.lock
        self._asked: dict[int, Ticket] = {}
        self._order: list[int] = []
        self._never: set[Ticket] = set()
        self._watches: dict[int, LoopWatch] = {}
        self._observing = False
        #: The native id of the thread that looks at the others, where there was one.
        self.observer = 0
        #: Events that another process brings about, which comes to them in its own time.
        self.outside: Final[set[int]] = set()
        #: Whether no other process could make this one go on.
        self.alone: Callable[[], bool] = lambda: True
        self._poke: Final = allocate_lock()
        #: The events that were handed out before an earlier recorded one.
        self.reordered: list[int] = []

    def begin(self) -> None:
        """The replay begins here: a task that it begins in is the run's."""
        loop = _get_running_loop()
        if loop is not None and (task := current_task(loop)) is not None:
            self.threads.created(task)

    # -- asking ----------------------------------------------------------------------------------------------------------

    def wait(self, seq: int | None) -> None:
        """Hold the calling thread until the turn of ``seq`` has come."""
        if self._failed:
            raise self._failure()
        if seq is not None and seq in self._moved:
            seq = self._moved[seq]
        i = self._next
        if seq is not None and i < self._count and self._events[i] == seq and self.threads.solo == get_ident():
            i += 1
            done = self._done
            while done[i]:
                i += 1
            self._next = i
        else:
            self._wait(seq)

    async def wait_async(self, seq: int | None, suspended: bool = True) -> None:
        """Suspend the calling task until the turn of ``seq`` has come; not at all if it did not ``suspended`` then."""
        if self._failed:
            raise self._failure()
        if seq is not None and seq in self._moved:
            seq = self._moved[seq]
        if not suspended and seq is not None:
            with self._lock:
                self._hand_out(seq, overtake=False)
            return
        loop = get_running_loop()
        ticket = Ticket(seq, get_ident())
        ticket.loop, future = loop, loop.create_future()
        ticket.future = future
        self._ask(ticket)
        try:
            await future
        except BaseException:  # cancelled: that is how this event came about, or it never comes
            self._withdraw(ticket, came=True)
            raise
        if self._failed:
            raise self._failure()
        if self._near and seq is not None:
            self._came(loop, ticket.place)

    def callback(self, seq: int | None, act: Callable[[], object], *, anywhere: bool = False) -> Ticket:
        """Call ``act`` when the turn of ``seq`` has come: in the running loop; without one, or ``anywhere``, from any thread."""
        ticket = Ticket(None if seq is None else self._moved.get(seq, seq), get_ident())
        ticket.loop, ticket.act = None if anywhere else _get_running_loop(), act
        if self._failed or self._closed or (ticket.seq is None and self._released):
            self._let_go(ticket)
        else:
            self._ask(ticket)
        return ticket

    def cancel(self, ticket: Ticket | int) -> None:
        """Take back what ``callback`` asked for."""
        found = ticket if isinstance(ticket, Ticket) else self._asked.get(self._moved.get(ticket, ticket))
        if found is not None:
            self._withdraw(found, came=False)

    # -- what else happens -----------------------------------------------------------------------------------------------

    def skip(self, seq: int) -> None:
        """Event ``seq`` will not be asked for: it belongs to what replay does not run."""
        events = self._events
        seq = self._moved.get(seq, seq)
        with self._lock:
            i = self._next
            if not (i < self._count and events[i] == seq):
                i = bisect_left(events, seq)
            if i < self._count and events[i] == seq:
                self._done[i] = 1
                self._advance(self._next)

    def fail(self) -> None:
        """The replay has failed: wake everybody who is held; those that wait raise, timers fire."""
        self._failed = True
        self._wake_all()

    def close(self) -> None:
        """The replay is over: nobody is held any more."""
        self._closed = True
        self._wake_all()
        with self._lock:
            for watch in self._watches.values():
                watch.close()
            self._watches.clear()
            self.threads.disband()
        self._nudge()

    def release(self) -> None:
        """What was never recorded may come now: whoever asked for it goes on, and whoever asks for it later."""
        with self._lock:
            self._released = True
        self._wake(self._never)

    def _wake_all(self) -> None:
        with self._lock:
            self._never.update(self._asked.values())
            self._asked.clear()
            self._order.clear()
        self._wake(self._never)

    def _wake(self, held: set[Ticket]) -> None:
        with self._lock:
            tickets = [*held]
            held.clear()
            for ticket in tickets:
                self.threads.waking(ticket.member)
        for ticket in tickets:
            self._release(ticket)
        self._nudge()

    # -- threads ---------------------------------------------------------------------------------------------------------

    def _wait(self, seq: int | None) -> None:
        gate = allocate_lock()
        with self._lock:
            if self._closed or (seq is None and self._released):
                return
            member = self.threads.join()
            if self.threads.solo and seq is not None:  # nobody else could bring an earlier one
                self._hand_out(seq, overtake=_get_running_loop() is None)
                return
            ticket = Ticket(seq, get_ident())
            ticket.gate, ticket.member = gate, member
            gate.acquire()
            member.held = True
            self._enter(ticket)
            due = self._due_now()
        self._settle(due, ticket)
        try:
            gate.acquire()
        except BaseException:  # a signal's handler raised
            self._withdraw(ticket, came=False)
            raise
        if self._failed:
            raise self._failure()

    def _settle(self, due: Ticket | None, ticket: Ticket) -> None:
        """After somebody asked: hand out what is due, or have the observer look."""
        if due is not None:
            self._release(due)
        if due is not ticket:
            self._observe()

    def _due_now(self) -> Ticket | None:
        """Taken out: the next recorded event, if it is asked for and all others are known to be asleep."""
        if self._in_order() and not self._owing() and self.threads.asleep(None):
            return self._take()
        return None

    # -- loops -----------------------------------------------------------------------------------------------------------

    def _ask(self, ticket: Ticket) -> None:
        with self._lock:
            self.threads.join()
            self._enter(ticket)
        if self._failed or self._closed:  # just now
            self._wake_all()
        elif ticket.seq is None and self._released:
            self._wake(self._never)
        elif ticket.loop is not None:
            self._watch(ticket.loop).start()
        else:
            self._observe()

    def _watch(self, loop: AbstractEventLoop) -> LoopWatch:
        watch = self._watches.get(id(loop))
        if watch is None or watch.loop is not loop or watch.thread != get_ident():
            watch = self._watches[id(loop)] = LoopWatch(loop, self._idle)
        return watch

    def _idle(self, watch: LoopWatch) -> None:
        """The loop has nothing to run: hand out what is due. Called in its thread."""
        due: Ticket | None = None
        again = False
        with self._lock:
            me = self.threads.join()
            if self._in_order():
                if self.threads.solo:
                    due = self._take()
                elif not self._owing() and self.threads.asleep(me):
                    # What a thread has put into the loop before it was blocked comes first.
                    again = watch.busy
                    due = None if again else self._take()
            rest = bool(self._asked or self._never)
        if again:
            watch.start()
        elif due is not None:
            self._release(due)
            if self._near and due.loop is watch.loop:
                self._follow(due.place)
            if rest and not (due.loop is None or due.loop is watch.loop):
                self._observe()
            elif rest:
                watch.start()
        elif rest:
            self._observe()

    def _came(self, loop: AbstractEventLoop, place: int) -> None:
        """An event has just come in ``loop``: those that came close upon it follow."""
        burst = self._bursts.get(id(loop))
        if burst is None:
            watch = self._watch(loop)
            burst = fresh = Burst(loop, self._follow, lambda: watch.running)
            self._bursts[id(loop)] = burst
            watch.spare = lambda: fresh.markers
        burst.event(place)

    def _follow(self, limit: int) -> None:
        """Hand out the next events, as far as they came ``limit`` ticks after the first of their burst, or sooner."""
        loop = _get_running_loop()
        due = []
        with self._lock:
            near, asked, i = self._near, self._asked, self._next
            while i < self._count and (near[i] == 0 or 2 <= near[i] <= limit + 2):
                seq = self._events[i]
                if near[i] and not self._done[i]:
                    ticket = asked.get(seq)
                    if ticket is None or ticket.loop is not loop:
                        break
                    del asked[seq]
                    self._hand_out(seq, overtake=False, told=False)
                    self.threads.waking(None)
                    due.append(ticket)
                i += 1
        for ticket in due:
            self._release(ticket)

    # -- the observer: a thread that looks at the others, from when somebody may wait to the end of the replay -------------

    def _observe(self) -> None:
        with self._lock:
            if self._observing:
                self._nudge()
                return
            if self._closed:
                return
            self._observing = True
        start_new_thread(self._observer, ())

    def _nudge(self) -> None:
        if self._poke.locked():
            try:
                self._poke.release()
            except RuntimeError:  # somebody else did
                pass

    def _observer(self) -> None:
        self.observer = get_native_id()
        pause = _SHORT
        since, last, told = clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID), monotonic_ns(), False
        while True:
            self._poke.acquire(False)
            asked = bool(self._asked or self._never)
            if self._poke.acquire(True, pause if asked else _IDLE):
                pause = _SHORT
            else:
                pause = min(pause * 1.2, _LONG)
            due: Ticket | None = None
            stuck: list[str] | None = None
            slow: tuple[int | None, list[str]] | None = None
            with self._lock:
                if self._closed:
                    self._observing = False
                    return
                now = clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID)
                if self._first() is None:
                    since = now
                    if not self._released and self.threads.blocked() and self.alone():
                        stuck = self.threads.waiting()
                elif self._may_go(now - since > _COURTESY):
                    due = self._take()
                if due is None and asked and not told and monotonic_ns() - last > _LONG_WAIT:
                    told, slow = True, (self._awaited(), self.threads.waiting())
                elif not asked:
                    last, told = monotonic_ns(), False
            if slow is not None:
                self._slow(*slow)
            if stuck is not None:
                self._give_up(stuck)
            if due is not None:
                self._release(due)
                pause, since = _SHORT, clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID)
                last, told = monotonic_ns(), False

    def _may_go(self, busy: bool) -> bool:
        """Whether the earliest event that was asked for is to be handed out. ``busy``: somebody has computed beside it for long."""
        if self._in_order() and not self._owing():
            return self.threads.settled() or busy
        return self.threads.blocked() and (self._in_order() or not self._abroad() or self.alone())

    def _give_up(self, waiting: list[str]) -> None:
        if self._failed:
            self.threads.interrupt()
        elif self._stuck(waiting) is not None:
            self.fail()

    # -- the events; all with the lock held ------------------------------------------------------------------------------

    def _enter(self, ticket: Ticket) -> None:
        seq = ticket.seq
        if seq is None:
            self._never.add(ticket)
        else:
            self._asked[seq] = ticket
            heappush(self._order, seq)

    def _first(self) -> int | None:
        order, asked = self._order, self._asked
        while order and order[0] not in asked:
            heappop(order)
        return order[0] if order else None

    def _in_order(self) -> bool:
        first = self._first()
        return first is not None and (self._next >= self._count or first <= self._events[self._next])

    def _owing(self) -> bool:
        """Whether the program has yet to begin a step that was recorded before the event that is next."""
        steps, made, i = self._steps, self._made, self._step
        seq = self._order[0]
        while i < len(steps) and made[steps[i]]:
            i += 1
        self._step = i
        return i < len(steps) and steps[i] < seq

    def _awaited(self) -> int | None:
        """The event that is waited for: the next recorded one."""
        return self._events[self._next] if self._next < self._count else None

    def _abroad(self) -> bool:
        """Whether the next recorded event is another process's to bring about."""
        return self._next < self._count and self._events[self._next] in self.outside

    def _take(self) -> Ticket:
        seq = heappop(self._order)
        ticket = self._asked.pop(seq)
        i = bisect_left(self._events, seq)
        if i < len(self._near):
            ticket.place = max(0, self._near[i] - 2)
        self._hand_out(seq)
        self.threads.waking(ticket.member)
        return ticket

    def _hand_out(self, seq: int, *, overtake: bool = True, told: bool = True) -> None:
        i = self._next
        if i >= self._count or seq < self._events[i]:
            return  # overtaken before
        if seq != self._events[i]:
            i = bisect_left(self._events, seq, i)
            if told:
                self.reordered.append(self._from_place.get(seq, seq))
        if i < self._count and self._events[i] == seq:
            self._done[i] = 1
            self._advance(i if overtake else self._next)

    def _advance(self, i: int) -> None:
        done = self._done
        while done[i]:
            i += 1
        self._next = i

    def _withdraw(self, ticket: Ticket, *, came: bool) -> None:
        with self._lock:
            seq = ticket.seq
            if seq is None:
                self._never.discard(ticket)
            elif self._asked.get(seq) is ticket:
                del self._asked[seq]
                if came:
                    self._hand_out(seq, overtake=False, told=False)
            if ticket.member is not None:
                ticket.member.moved()

    def _release(self, ticket: Ticket) -> None:
        """Let go of a ticket that has been taken out; without the lock, for it may run the program's code."""
        try:
            self._let_go(ticket)
        finally:
            with self._lock:
                self.threads.woken()

    def _let_go(self, ticket: Ticket) -> None:
        if ticket.gate is not None:
            ticket.gate.release()
        elif ticket.loop is None:
            assert ticket.act is not None
            ticket.act()
        elif not ticket.loop.is_closed():
            act = ticket.act if ticket.future is None else _setter(ticket.future)
            assert act is not None
            if ticket.thread != get_ident():
                try:
                    if ticket.future is not None:
                        ticket.loop.call_soon_threadsafe(act, context=Context())
                    else:
                        ticket.loop.call_soon_threadsafe(self._run, act, ticket.place, context=Context())
                except RuntimeError:  # the loop is closed
                    pass
            elif ticket.future is not None:
                act()
            else:
                ticket.loop.call_soon(self._run, act, ticket.place, context=Context())

    def _run(self, act: Callable[[], object], place: int) -> None:
        if self._near:
            self._came(get_running_loop(), place)
        act()


def _setter(future: Future[None]) -> Callable[[], object]:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    return wake


# -- beside ------------------------------------------------------------------------------------------------------------
#
# Letting the other tasks of an event loop go on from inside a call that does not await.


def can_go_on(loop: AbstractEventLoop) -> bool:
    """Whether ``go_on`` works with this loop: those of the standard library."""
    return hasattr(loop, "_run_once") and hasattr(loop, "_ready")


def go_on(loop: Any, until: Callable[[], bool]) -> None:
    """Run the loop's other tasks until ``until()``; the calling task stays where it is.

    A round of the loop takes what is ready one by one, and counts it first: it is inside such a round that this is called. So it
    finds as much to take, when that round goes on, as there was.
    """
    task = asyncio.current_task(loop)
    counted = len(loop._ready)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    try:
        while not until():
            loop._run_once()
    finally:
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
        for _ in range(counted):
            loop.call_soon(_nothing, context=Context())


def _nothing() -> None:
    pass
