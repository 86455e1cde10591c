"""The order in which a replay hands out what was recorded: a discrete-event simulation.

An *event* is an outcome, a chunk of a stream, or a timer that fired. Whoever asks for one is held until its turn has
come: nothing else can run any more, and it is the earliest recorded one among those asked for. If an earlier one has not
been asked for and somebody can still make progress, that is waited for; if nobody can, the earliest is handed out all the
same, and listed in ``reordered``. So a replay never hangs on an order that the program's own locks forbid.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from array import array
from asyncio import AbstractEventLoop, Future, get_running_loop
from asyncio.events import _get_running_loop
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from heapq import heappop, heappush
from time import CLOCK_PROCESS_CPUTIME_ID, clock_gettime_ns  # noqa: TID251
from typing import Any, Final

from .._reality import monotonic_ns
from .arrivals import Burst
from .crew import PATIENCE, QUICK, Crew, Member
from .idle import LoopWatch

__all__ = ["Schedule", "Ticket"]

#: For how long (ns) all must have been still, with nothing to hand out, before the program counts as stuck.
_STUCK: Final = 2_000_000_000
#: And where another process might still send it something.
_FORSAKEN: Final = 10_000_000_000
#: For how long (ns) all must have been still where the next event comes from another process, and that has not come.
_ABROAD: Final = 30_000_000_000
#: For how long (ns of processor time) somebody may be busy while the next event is held back, and while a later one is. Of
#: the time in which nobody had or wanted a processor, and yet somebody moves now and then (he polls), a quarter counts.
_BUSY: Final = 100_000_000
_VERY_BUSY: Final = 5_000_000_000
#: How long the observer sleeps between two looks (s): at first, at most while events are asked for, at most else.
_SHORT, _LONG, _IDLE = 0.0001, 0.002, 0.05


class Ticket:
    """Somebody who asked for event ``seq`` (``None``: for one that was never recorded, and never comes)."""

    __slots__ = ("act", "future", "gate", "loop", "member", "place", "seq", "thread")

    def __init__(self, seq: int | None, thread: int) -> None:
        self.seq: Final = seq
        #: The thread that asked.
        self.thread: Final = thread
        self.member: Member | None = None
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

    ``failure`` makes the exception for those who wait when ``fail`` is called; ``stuck`` is called, without any lock
    held, when everything waits and nothing is left that could be handed out (``None`` from it: it goes on all the same).
    ``near`` says of each event how it came: 0 without giving up control, 1 after the loop had been idle, 2 + its
    place in ticks where not (see ``arrivals``). ``crew`` hears from the hooks which threads take part.
    """

    def __init__(
        self,
        events: Sequence[int],
        *,
        failure: Callable[[], BaseException],
        stuck: Callable[[], object],
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
        self._near: Final = near or b""
        #: From here on an event goes by its place where it has another than its own; see ``Index.moved``.
        self._moved: Final = moved or {}
        self._from_place: Final = {place: seq for seq, place in self._moved.items()}
        self._bursts: dict[int, Burst] = {}
        self._failed = False
        self._closed = False
        #: Whether what was never recorded comes at once.
        self._released = False
        self.crew: Final = Crew()
        self._lock: Final = self.crew.lock
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

    # -- asking ----------------------------------------------------------------------------------------------------------

    def wait(self, seq: int | None) -> None:
        """Hold the calling thread until the turn of ``seq`` has come."""
        if self._failed:
            raise self._failure()
        if seq is not None and seq in self._moved:
            seq = self._moved[seq]
        i = self._next
        if seq is not None and i < self._count and self._events[i] == seq and self.crew.solo == get_ident():
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
            self._release(ticket)
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
            self.crew.disband()

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
                if ticket.member is not None:
                    ticket.member.moved()
        for ticket in tickets:
            self._release(ticket)
        self._nudge()

    # -- threads ---------------------------------------------------------------------------------------------------------

    def _wait(self, seq: int | None) -> None:
        gate = allocate_lock()
        with self._lock:
            if self._closed or (seq is None and self._released):
                return
            member = self.crew.join()
            if self.crew.solo and seq is not None:  # nobody else could bring an earlier one
                self._hand_out(seq, overtake=_get_running_loop() is None)
                return
            ticket = Ticket(seq, get_ident())
            ticket.gate, ticket.member = gate, member
            gate.acquire()
            member.waiting = True
            self._enter(ticket)
            due = self._due_now(None)
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

    def _due_now(self, me: Member | None) -> Ticket | None:
        """Taken out: the next recorded event, if it is asked for and all others are known to be blocked."""
        if self._in_order() and self.crew.blocked(me):
            return self._take()
        return None

    # -- loops -----------------------------------------------------------------------------------------------------------

    def _ask(self, ticket: Ticket) -> None:
        with self._lock:
            self.crew.join()
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
        stuck = again = False
        with self._lock:
            me = self.crew.join()
            solo = bool(self.crew.solo)
            if self._first() is not None:
                if solo and (self._in_order() or (watch.sealed and not self._abroad())):
                    due = self._take()
                elif not solo and self._in_order() and self.crew.blocked(me):
                    # What a thread has put into the loop before it was blocked comes first.
                    again = watch.busy
                    due = None if again else self._take()
            else:
                stuck = bool(self._never) and solo and watch.sealed and self.alone()
            rest = bool(self._asked or self._never)
        if stuck:
            self._give_up()
        elif again:
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
                    due.append(ticket)
                i += 1
        for ticket in due:
            self._release(ticket)

    # -- the observer: a thread that looks at the others, there only while somebody is held ------------------------------

    def _observe(self) -> None:
        with self._lock:
            if self._observing:
                self._nudge()
                return
            if self._closed or not (self._asked or self._never):
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
        since, last, polled = clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID), monotonic_ns(), 0
        while True:
            due: Ticket | None = None
            stuck = False
            with self._lock:
                if self._closed or not (self._asked or self._never):
                    self._observing = False
                    return
                wall = monotonic_ns()
                still = self.crew.stillness(wall)
                if not self.crew.runnable:  # on a loaded machine who waits for the processor is slow, not busy
                    polled += wall - last
                last = wall
                now = clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID)
                busy = max(now - since, polled // 4)
                waited_for = self._first() is not None
                if waited_for:
                    in_order = self._in_order()
                    if not in_order and self._abroad():
                        due = self._take() if still >= _ABROAD else None
                    elif still >= (QUICK if in_order else PATIENCE) or busy > (_BUSY if in_order else _VERY_BUSY):
                        due = self._take()
                else:
                    since, polled = now, 0
                    stuck = still >= _STUCK and (still >= _FORSAKEN or self.alone())
            if stuck:
                self._give_up()
                continue
            if due is not None:
                self._release(due)
                pause, since, polled = _SHORT, clock_gettime_ns(CLOCK_PROCESS_CPUTIME_ID), 0
                continue
            pause = min(pause * 1.2, _LONG if waited_for else _IDLE)
            self._poke.acquire(False)
            if self._poke.acquire(True, pause):
                pause = _SHORT

    def _give_up(self) -> None:
        if self._stuck() is not None:
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
        if ticket.member is not None:
            ticket.member.moved()
        elif ticket.thread != get_ident():
            self.crew.woken(ticket.thread)
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
