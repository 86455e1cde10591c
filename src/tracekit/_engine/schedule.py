"""The order in which a replay hands out what was recorded: a discrete-event simulation.

An *event* is an outcome, a chunk of a stream, or a timer that fired. Whoever asks for one is held until its turn has
come: all events that were recorded before it have been handed out, all steps that were recorded before it have begun, and
nothing else has something to run. However long the program computes on the way to an earlier event, or sleeps in native code,
it is waited for. Only where nothing in the process can move any more (see ``threads``) is the earliest of those that were
asked for handed out all the same, and listed in ``reordered``: an order that the program's own locks forbid. If there is none,
the program is stuck.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from array import array
from asyncio import AbstractEventLoop, Future, current_task, get_running_loop
from asyncio.events import _get_running_loop
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from heapq import heappop, heappush
from time import CLOCK_PROCESS_CPUTIME_ID, clock_gettime_ns  # noqa: TID251
from typing import Any, Final

from .._reality import monotonic_ns
from .arrivals import Burst
from .idle import LoopWatch
from .threads import MonitoredThread, ThreadMonitor

__all__ = ["Schedule", "Ticket"]

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
