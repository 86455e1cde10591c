"""The schedule: the order in which a replay hands out recorded events to threads, coroutines and callbacks."""

from __future__ import annotations

from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from .._lazy import NamedTuple
from .._reality import acquire, locked, monotonic_ns, off_loop, process_time_ns, running_loop, running_task
from .lane import UNLIMITED, Lane
from .loop_queue import LoopQueue
from .places import PlaceIndex
from .process import process
from .progress import Progress
from .session import Uncounted, current, enter
from .threads import MonitoredThread, ThreadMonitor, Waiting

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from .signal_calls import SignalCalls

__all__ = ["Schedule", "Ticket", "can_run_other_tasks", "run_other_tasks"]

# -- schedule ----------------------------------------------------------------------------------------------------------
#
# A discrete-event simulation. An *event* is an outcome, a chunk of a stream, or a timer that fired. Code that asks for
# an event is held until the event is next: all events recorded before it have been handed out, all steps recorded
# before it have begun, and the program has reached the event's place (in an event loop: see ``progress``). However long
# the program computes on the way to an earlier event, or sleeps in native code, the schedule waits. Only when nothing
# in the process can move any more (see ``threads``), lanes held at their places go on, and then the earliest event
# asked for is handed out nevertheless, and listed in ``reordered``: the program's own locks forbid the recorded order.
# If no event was asked for, the program is stuck.
#
# A lane that has run more callbacks since its own last event than any lane of the recording is polling for something
# that will not come as it did then. It can move, but causes nothing: it is held, and looks again whenever something
# else has moved.

#: State shared between threads without a queue or a future is not recorded, so accesses have no place. Most programs
#: behave the same if running threads may reach their next wait before an event that is due is handed out: they are
#: given this much time (ns of processor time). No recorded order depends on it, since a thread owes its steps before
#: the event anyway. Without a bound, a thread that polls a variable until the event has come would block forever.
_COURTESY: Final = 100_000_000
#: A program may make calls in threads, in which nothing is captured, that the recorded one did not make: a cache is
#: empty, say. After this many in a row, with nothing else between them, it is polling with them.
_UNHEARD_OF: Final = 10_000
#: Instead of an event's number: nothing can be handed out any more.
_NONE: Final = 0
#: After this time (ns), the replay reports what everybody is waiting for.
_LONG_WAIT: Final = 10_000_000_000
#: For this time (ns) after its failure, a wait for another thread of a replay goes on, however long that thread takes.
_PATIENCE: Final = 10_000_000_000
#: How long the observer sleeps between two looks (s): at first, at most while events are asked for, and at most
#: otherwise.
_SHORT, _LONG, _IDLE = 0.0001, 0.002, 0.05


class Ticket:
    """A request for event ``seq`` (``None``: for one that was never recorded, and never comes)."""

    __slots__ = (
        "act",
        "at_rest",
        "by_itself",
        "future",
        "gate",
        "lane",
        "looks",
        "loop",
        "member",
        "patient",
        "seq",
        "thread",
        "where",
    )

    def __init__(self, seq: int | None, thread: int) -> None:
        self.seq = seq
        #: The thread that asked.
        self.thread: Final = thread
        self.member: MonitoredThread | None = None
        #: The lane whose event it is, if an event loop delivers it.
        self.lane: Lane | None = None
        self.loop: AbstractEventLoop | None = None
        #: What to do when the event is next: release a lock, set a future, or make a call; one of the three is set.
        self.gate: Any = None
        self.future: Future[None] | None = None
        self.act: Callable[[], object] | None = None
        #: Whether to wait until the thread is asleep, or held, however long it computes; and, if this is given, until it
        #: is so where this returns true, or nothing else can go on.
        self.at_rest = False
        self.where: Callable[[], bool] | None = None
        #: Whether it only waits until the event is next, which is handed out to another request.
        self.looks = False
        #: Whether it is let go on when nothing else can, although it was never recorded.
        self.patient = False
        #: Whether ``act`` leads to the event, which has come only once somebody says so (``Schedule.take``).
        self.by_itself = False

    @property
    def is_there(self) -> bool:
        """Whether its thread, which is at rest, is where it has to be."""
        return self.where is None or self.where()

    def call(self) -> None:
        """Call ``act``, and drop the reference to it, so that a ticket does not keep the program's objects alive."""
        act, self.act = self.act, None
        assert act is not None
        act()


class _Found(NamedTuple):
    """What a look at a replay has found."""

    #: Whether tasks that poll may look again.
    again: bool = False
    #: The event to hand out.
    due: Ticket | None = None
    #: What waits in vain.
    stuck: list[Waiting] | None = None
    #: Whether only threads that do not belong to the run may go on.
    left: bool = False


class Schedule:
    """Hands out the recorded events, given by ``seq`` in ascending order, to threads, coroutines and callbacks.

    - ``places``: the places of events that an event loop delivered. ``hops``: events that the program may go on
      without, with their lanes; ``skip_hop`` skips one with what belongs to it.
    - ``steps``: the recorded intent records (ascending); ``made`` says of each whether the program has reached it, or
      never will.
    - ``thread_of``: returns the thread that runs the lane of a step or an event, or 0.
    - ``patience``: after this many callbacks a lane counts as polling, if the recording does not say how far it went.
    - ``failure``: creates the exception for waiting code when ``fail`` is called.
    - ``stuck``: called without any lock held, with a line for each task and thread, when nothing in the process can
      move and nothing is left to be handed out; if it returns ``None``, the replay goes on. ``slow``: called with the
      awaited event and such lines when that takes long.

    ``threads`` learns from the hooks, if there are any (``hooked``), which threads take part; ``progress`` learns what
    event loops have to run.
    """

    def __init__(
        self,
        events: Sequence[int],
        *,
        failure: Callable[[], BaseException],
        stuck: Callable[[list[Waiting]], object],
        slow: Callable[[int | None, list[Waiting]], object] = lambda seq, waiting: None,
        steps: Sequence[int] = (),
        made: Sequence[int] = (),
        places: PlaceIndex | None = None,
        hops: Mapping[int, int] | None = None,
        skip_hop: Callable[[int], object] = lambda seq: None,
        thread_of: Callable[[int], int] = lambda seq: 0,
        hooked: bool = True,
        patience: int = UNLIMITED,
    ) -> None:
        self._events: Final = events if isinstance(events, array) else array("Q", events)
        self._count: Final = len(self._events)
        #: 1: handed out or skipped. ``_next`` is the index of the first event that is neither, and was not overtaken.
        self._done: Final = bytearray(self._count + 1)
        self._next = 0
        self._failure: Final = failure
        self._stuck: Final = stuck
        self._slow: Final = slow
        self._steps: Final = steps
        self._made: Final = made
        #: The index of the first step that the program has not reached.
        self._step = 0
        #: The event that its loop need not hold back for other threads.
        self._granted: int | None = None
        self._hops: Final = hops or {}
        self._skip_hop: Final = skip_hop
        self._thread_of: Final = thread_of
        #: The event that was awaited when something was let go on early, the event to which that leads, and in which sleep
        #: the thread was that was waited for when that event had come.
        self._let_early: tuple[int | None, int, object] = None, 0, None
        #: The hops that the program has made, which are waited for.
        self.made_hops: Final[set[int]] = set()
        self.progress: Final = Progress(self, places or PlaceIndex(), patience)
        #: How many unrecorded calls in threads went on since the recorded progress reached its n-th event, and n.
        self._let = 0, 0
        #: What had been seen to move when polling lanes last looked, and the threads in which they poll, since
        #: something recorded happened.
        self._looked: tuple[int, int, object] | None = None
        self._looking: Final[set[int]] = set()
        self._failed = False
        self._failed_at = 0
        self._closed = False
        #: Whether the replay has ended. Waits that have not ended are left to the real world from then on: a time limit
        #: continues in real time, and does not expire because the replay is over.
        self.over = False
        #: Whether waits for things that were never recorded end at once.
        self._released = False
        #: Whether the recording has no end: its process died, perhaps in a wait that does not end here either.
        self.cut_off = False
        self.threads: Final = ThreadMonitor(self._observe, failure, hooked=hooked)
        self._lock: Final = self.threads.lock
        self._asked: dict[int, Ticket] = {}
        self._order: list[int] = []
        self._never: set[Ticket] = set()
        #: Those of them that are let go on now, since nothing else can, for the observer to release without the lock.
        self._let_on: list[Ticket] = []
        self._observing = False
        self._still_since = 0
        #: The process's processor time when the observer first looked since an event was handed out, or none was asked
        #: for; or 0.
        self._since = 0
        self._reported = False
        #: The native id of the observer thread, if there was one.
        self.observer = 0
        #: Events that need nothing more from their lane: a thread delivers them to its caller's loop, or another
        #: process causes them.
        self._brought: Final[set[int]] = set()
        #: Those that another process causes, in its own time.
        self._outside: Final[set[int]] = set()
        #: Returns whether no other process could make this one go on.
        self.alone: Callable[[], bool] = lambda: True
        #: Returns whether those other processes can't move either, as far as known, nor could while this process was in
        #: the given state.
        self.others_rest: Callable[[object], bool] = lambda look: False
        #: The native id of the thread in which the end of a block waits for what lanes owe, or 0.
        self.drains_in = 0
        self._poke: Final = allocate_lock()
        #: The events that were handed out before an earlier recorded one.
        self.reordered: list[int] = []
        #: The event that somebody has brought about and that has not come, and who takes part in that; see ``Ticket.by_itself``.
        self._coming: tuple[int, int] | None = None
        #: The calls of signal handlers in the recording, if there are any.
        self.signals: SignalCalls | None = None
        #: Calls in threads, or their results, that are not in the recording: they go on when nothing else can.
        self.held_calls: list[Callable[[], object]] = []
        #: What has another worker take up a call that waits in a pool, by the event with which the call begins. Returns
        #: whether that is possible.
        self.queued_calls: Final[dict[int, Callable[[], bool]]] = {}
        #: The events before which lanes went on that should have been held, because nothing else could.
        self.passed: list[int] = []

    def begin(self) -> None:
        """Begin the replay; a task that it begins in belongs to the run."""
        if (task := running_task()) is not None:
            self.threads.created(task)
        if self.signals is not None:
            self.signals.begin()

    @property
    def last(self) -> int:
        """The last event that was handed out in order, or 0."""
        return self._events[self._next - 1] if self._next else 0

    @property
    def exhausted(self) -> bool:
        """Whether every recorded event has been handed out, skipped or overtaken."""
        return self._next >= self._count

    # -- asking --------------------------------------------------------------------------------------------------------

    def wait(self, seq: int | None, *, patient: bool = False) -> None:
        """Hold the calling thread until ``seq`` is next; ``patient``: without an event, until nothing else can go on."""
        if self._failed:
            raise self._failure()
        if self.signals is not None:
            self.signals.comes_to(seq)
        i = self._next
        if seq is not None and i < self._count and self._events[i] == seq and self.threads.solo == get_ident():
            done = self._done
            done[i] = 1
            while done[i]:
                i += 1
            self._next = i
            if self._asked:
                with self._lock:
                    self._notify_loop()
        elif seq is None or not self._is_due_here(seq):
            self._wait(seq, patient=patient)
        if self.signals is not None:
            self.signals.passed()

    def until_next(self, seq: int) -> None:
        """Hold the calling thread, which does something that leads to event ``seq``, until that is next."""
        if not (self._failed or self.is_done(seq)):
            self._wait(seq, looks=True)

    def until_past(self, seq: int) -> None:
        """Hold the calling thread until what was recorded before entry ``seq``, which is no event, has happened, or nothing
        else can go on."""
        if not (self._failed or self._closed or self.exhausted or self._events[self._next] > seq):
            self._wait(seq, looks=True)

    def _is_due_here(self, seq: int) -> bool:
        """Hand out event ``seq`` to the calling thread at once if ``_wait`` would find it due; return whether it did."""
        with self._lock:
            i = self._next
            if self._closed or self._failed or i >= self._count or self._events[i] != seq or self._owing(seq):
                return False
            if self._order and (first := self._first()) is not None and first < seq:
                return False
            if not self.threads.asleep(self.threads.join()):
                return False
            self._since = 0
            self._set_done(i)
            return True

    async def wait_async(self, seq: int | None, suspended: bool = True, lane: Lane | None = None) -> None:
        """Suspend the calling task, of ``lane``, until ``seq`` is next; don't suspend it if it did not (``suspended``)
        in the recording."""
        if self._failed:
            raise self._failure()
        if self.signals is not None:
            self.signals.comes_to(seq)
        if not suspended and seq is not None:
            with self._lock:
                self._overtakes(seq)
                i = self._next
                at_once = i >= self._count or seq <= self._events[i] or self._is_alone_before(seq)
                if at_once:
                    self._skip_absent_before(seq)
                    self._hand_out(seq, overtake=False)
            if not at_once:
                self._wait(seq)  # what another thread has to do first; nothing of this loop was done in between
            if self.signals is not None:
                self.signals.passed()
            return
        loop = running_loop()
        ticket = Ticket(seq, get_ident())
        ticket.loop, future = loop, loop.create_future()
        ticket.future, ticket.lane = future, lane
        scope = current.get()
        # Waiting for an event is inside the live call: the callback that wakes the task counts for no lane.
        token = None if scope is None else enter(scope.inside(scope.parent or 1, live=True))
        with Uncounted(scope):
            if seq is not None:
                self.progress.queue(loop).expect(future)
            self._ask(ticket)
            try:
                await future
            except BaseException:
                if ticket.seq is None or not self._taken(ticket):
                    self._withdraw(ticket, delivered=True)
                    raise
                # the consequences of a cancellation were recorded
            finally:
                if token is not None:
                    current.reset(token)
        if self._failed:
            raise self._failure()
        if self.signals is not None:
            self.signals.passed()

    def callback(
        self,
        seq: int | None,
        act: Callable[[], object],
        *,
        anywhere: bool = False,
        lane: Lane | None = None,
        at_rest: bool = False,
        where: Callable[[], bool] | None = None,
        patient: bool = False,
        by_itself: bool = False,
    ) -> Ticket:
        """Call ``act`` when ``seq`` is next: in the running loop; without one, or with ``anywhere``, from any thread.

        ``lane`` is the lane whose event it is in a loop. ``at_rest``: not before the calling thread is asleep, or held;
        ``where`` says if it is so in the right place. ``patient``: without an event, when nothing else can go on.
        ``by_itself``: the event comes later than ``act``, with ``take``.
        """
        ticket = Ticket(seq, get_ident())
        ticket.at_rest, ticket.where, ticket.patient, ticket.by_itself = at_rest, where, patient, by_itself
        ticket.loop, ticket.act, ticket.lane = None if anywhere else running_loop(), act, lane
        if self._failed or self._closed or (ticket.seq is None and self._released):
            self._let_go(ticket)
        else:
            self._ask(ticket)
        return ticket

    def cancel(self, ticket: Ticket | int) -> None:
        """Cancel a request made with ``callback``."""
        found = ticket if isinstance(ticket, Ticket) else self._asked.get(ticket)
        if found is not None:
            self._withdraw(found, delivered=False)

    def hold(self, let_go: Callable[[], object]) -> None:
        """Call ``let_go`` when nothing else can go on, or nothing is held any more; for things that never happened in
        the recording."""
        with self._lock:
            at_once = self._failed or self._closed or self._released
            if not at_once:
                self.held_calls.append(let_go)
        if at_once:
            let_go()
        else:
            self._observe()

    def unhold(self, let_go: Callable[[], object]) -> None:
        """What was held has gone on by itself."""
        with self._lock, suppress(ValueError):
            self.held_calls.remove(let_go)

    # -- other events --------------------------------------------------------------------------------------------------

    def skip(self, seq: int) -> None:
        """Skip event ``seq``: it belongs to something that the replay does not run."""
        events = self._events
        with self._lock:
            i = self._next
            if not (i < self._count and events[i] == seq):
                i = bisect_left(events, seq)
            if i < self._count and events[i] == seq:
                self._done[i] = 1
                self.progress.delivered(seq, skipped=True)
                self._advance(self._next)

    def fail(self) -> None:
        """Wake everything that is held: the replay has failed. Requests for recorded events raise, timers fire; waits
        for other threads go on as long as a thread of the run can move (``ThreadMonitor.failed``)."""
        self._failed_at = monotonic_ns()
        self.threads.failed = True
        self._failed = True
        self._wake_all()

    def end(self, *, with_process: bool = False) -> None:
        """End the replay: nothing is handed out any more, and timed waits continue in the real world.

        ``with_process``: the process ends with the replay, as the recorded one did, and waits last until then.
        """
        self.over = True
        if not with_process:
            self.close()
            return
        with self._lock:
            self._closed = True
            self.threads.disband(wake=False)
        self._nudge()

    def close(self) -> None:
        """Stop holding anything."""
        self._closed = True
        self._wake_all()
        with self._lock:
            self.threads.disband()
        self._nudge()

    def release(self) -> None:
        """Let things happen that were never recorded: requests for them, present and future, end."""
        with self._lock:
            self._released = True
            self.progress.let_poll()
        self._let_calls_go()
        self._wake(self._never)

    def _wake_all(self) -> None:
        self.progress.let_go(over=self._closed)
        self._let_calls_go()
        with self._lock:
            self._never.update(self._asked.values())
            self._asked.clear()
            self._order.clear()
        self._wake(self._never)

    def _let_calls_go(self) -> None:
        with self._lock:
            calls, self.held_calls = self.held_calls, []
        for let_go in calls:
            let_go()

    def _wake(self, held: set[Ticket]) -> None:
        with self._lock:
            tickets = [*held]
            held.clear()
            for ticket in tickets:
                self.threads.waking(ticket.member)
        for ticket in tickets:
            self._release(ticket)
        self._nudge()

    # -- threads -------------------------------------------------------------------------------------------------------

    def _wait(self, seq: int | None, *, looks: bool = False, patient: bool = False) -> None:
        gate = allocate_lock()
        with self._lock:
            if self._closed or (seq is None and self._released):
                return
            self._overtakes(seq)
            member = self.threads.join()
            if seq is not None and self._is_alone_before(seq):
                self._skip_absent_before(seq)
                if not looks:
                    self._hand_out(seq, overtake=running_loop() is None)
                return
            ticket = Ticket(seq, get_ident())
            ticket.gate, ticket.member, ticket.looks, ticket.patient = gate, member, looks, patient
            gate.acquire()
            member.held = True
            self._enter(ticket)
            due = self._due_now()
        try:
            self._settle(due, ticket)
            if self._failed:  # just now: what has been asked for since is not woken otherwise
                self._wake_all()
            with off_loop():
                gate.acquire()
        except BaseException:  # a signal handler raised
            self._withdraw(ticket, delivered=False)
            raise
        if self._failed:
            raise self._failure()

    def _is_alone_before(self, seq: int) -> bool:
        """Return whether nobody could cause an event before ``seq``: there is only one thread, and it asks for that."""
        first = self._first()
        return bool(self.threads.solo) and (first is None or first > seq or not self._asked[first].at_rest)

    def _settle(self, due: Ticket | None, ticket: Ticket) -> None:
        """After a request: hand out what is due, or have the observer look."""
        while due is not None:
            self._release(due)
            if due is ticket:
                return
            with self._lock:  # a signal handler called in this thread may have come first
                due = self._due_now() if due.at_rest and self._asked.get(ticket.seq or 0) is ticket else None
        self._observe()

    def _due_now(self) -> Ticket | None:
        """Take out the next recorded event if it is asked for and all other threads are known to be asleep."""
        first = self._first()
        if first is None or self._asked[first].loop is not None or not self._asked[first].is_there:
            return None
        return self._take() if self._in_order() and not self._owing(first) and self.threads.asleep(None) else None

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _ask(self, ticket: Ticket) -> None:
        with self._lock:
            self.threads.join()
            self._enter(ticket)
        if self._failed or self._closed:  # just now
            self._wake_all()
        elif ticket.seq is None and self._released:
            self._wake(self._never)
        elif ticket.loop is not None:
            if ticket.lane is not None:
                self.progress.asked(ticket.lane)
            self.progress.queue(ticket.loop).kick()
        else:
            self._observe()

    def deliver(self, queue: LoopQueue) -> bool:
        """See ``loop_queue.Deliverer``."""
        due: Ticket | None = None
        with self._lock:
            if self._closed:
                return False
            me = self.threads.join()
            # A lane that was held for a hop goes on, and may make the next one.
            while not (goes_on := queue.look_again and queue.may_go_on) and (absent := self._absent_hop()) is not None:
                if not self._leaves_out(absent, queue):
                    break
                self._skip_hop(absent)
            if goes_on:
                queue.stir()
                return False
            ticket = self._next_asked()
            here = ticket is not None and ticket.loop is queue.loop and not self._owing(ticket.seq)
            # What other threads do at once comes first, as far as can be seen.
            if (
                ticket is not None
                and here
                and not (self.signals is not None and self.signals.under_way)
                and (self.threads.solo or ticket.seq == self._granted or self.threads.asleep(me))
            ):
                due = self._take(ticket.seq)
            rest = bool(self._asked or self._never or self.held_calls)
        if due is not None:
            if due.future is None:  # it runs a callback of the program, which may wait
                with self._lock:
                    self.threads.woken()
                self._deliver(queue, due)
            else:
                try:
                    self._deliver(queue, due)
                finally:
                    with self._lock:
                        self.threads.woken()
            if self.signals is not None:
                self.signals.passed()
        elif rest:
            self._observe()
        return due is not None

    def is_next(self, seq: int) -> bool:
        """Return whether event ``seq`` is the next one, and all steps before it have begun."""
        with self._lock:
            return self._awaited() == seq and not self._owing(seq)

    def take(self, seq: int) -> None:
        """Hand out event ``seq`` here and now, unless it has been."""
        with self._lock:
            if self._coming is not None and self._coming[0] == seq:
                self._coming = None
            if not self.is_done(seq):
                self._hand_out(seq)

    def _overtakes(self, seq: int | None) -> None:
        """If the thread in which an earlier event is coming asks for ``seq`` before that has come, it counts as come: nothing
        else would let this thread go on to it. With the lock held."""
        coming = self._coming
        if coming is not None and seq is not None and coming[0] < seq and coming[1] == get_ident():
            self._coming = None
            self._hand_out(coming[0])

    def look_again(self) -> None:
        """Reconsider what comes next: the call of a signal handler has happened."""
        with self._lock:
            self._notify_loop()
            for queue in self.progress.queues:
                if queue.look_again and queue.may_go_on:
                    queue.stir()
        self._nudge()

    @property
    def has_failed(self) -> bool:
        return self._failed

    @property
    def is_closed(self) -> bool:
        return self._closed

    def is_done(self, seq: int) -> bool:
        i = bisect_left(self._events, seq)
        return i >= self._count or self._events[i] != seq or bool(self._done[i])

    def is_made(self, step: int) -> bool:
        return bool(self._made[step])

    @property
    def has_next(self) -> bool:
        """Return whether the next event is asked for, so that it will be handed out."""
        with self._lock:
            return self._next_asked() is not None

    @property
    def may_hand_out(self) -> bool:
        """Whether an event that is asked for may be handed out: nobody has looked since the request, or it has become
        next since."""
        with self._lock:
            first = self._first()
            if first is None or not self._still_since:
                return first is not None
            if not self._in_order() or self._owing(first):
                return False
            ticket = self._asked[first]
            return ticket.loop is None or not self.threads.holds(ticket.thread)

    @property
    def undelivered(self) -> list[int]:
        """The events that were neither handed out nor skipped."""
        return [seq for seq, done in zip(self._events, self._done, strict=False) if not done]

    def is_coming(self, seq: int) -> bool:
        return seq in self._asked or seq in self._brought

    def brings(self, seq: int, lane: Lane, *, outside: bool = False) -> None:
        """Note that a thread, or (``outside``) another process, will cause event ``seq`` of ``lane``, which does
        nothing more for it."""
        self._brought.add(seq)
        if outside:
            self._outside.add(seq)
        self.progress.asked(lane)

    def due_in(self, loop: AbstractEventLoop) -> int | None:
        with self._lock:
            ticket = self._next_asked()
            return ticket.seq if ticket is not None and ticket.loop is loop else None

    def is_due_in(self, loop: AbstractEventLoop) -> bool:
        with self._lock:
            ticket = self._next_asked()
            return ticket is not None and ticket.loop is loop and not self._owing(ticket.seq)

    def _let_held_go(self, *, past_places: bool = True) -> bool:
        """Nothing can go on: release things that were never recorded, and lanes held at their places. Return whether
        there were any."""
        if (absent := self._absent_hop()) is not None:
            self._skip_hop(absent)
            # One at a time: what was held for it goes on, and may make the next one.
            self._notify_loop()
            for queue in self.progress.queues:
                queue.stir()
            self._nudge()
            return True
        take_up = self.queued_calls.get(self._awaited() or 0)
        if take_up is not None and take_up():
            return True
        news = self.progress.news
        self._let = (news, self._let[1] if self._let[0] == news else 0)
        patient = [ticket for ticket in self._never if ticket.patient]
        if (self.held_calls or patient) and self._let[1] < _UNHEARD_OF:
            calls, self.held_calls = self.held_calls, []
            self._let = news, self._let[1] + len(calls) + len(patient)
            for let_go in calls:
                let_go()
            for ticket in patient:
                self._never.remove(ticket)
                self.threads.waking(ticket.member)
            self._let_on += patient
            return True
        queues = [queue for queue in self.progress.queues if not self.threads.holds(queue.thread)]
        freed = [queue for queue in queues if queue.may_go_on]
        for queue in freed:
            queue.stir()
        if freed or not past_places:
            return bool(freed)
        passed = [queue for queue in queues if self.progress.let_pass(queue)]
        if passed and self._next < self._count:
            self.passed.append(self._events[self._next])
        return bool(passed)

    def _let_look(self) -> bool:
        """Let polling lanes look again if anything else has moved since they last did; return whether one does."""
        polling = [queue for queue in self.progress.queues if queue.polls and not self.threads.holds(queue.thread)]
        if not polling:
            return False
        news = self.progress.news
        if self._looked is None or self._looked[0] != news:
            self._looking.clear()
        self._looking.update(queue.thread for queue in polling)
        seen = news, sum(queue.moved for queue in self.progress.queues), self.threads.seen(self._looking)
        if seen == self._looked and seen[2] is not None:
            return False
        self._looked = seen
        for queue in polling:
            self.progress.let_look(queue)
        return True

    def _is_locked_out(self) -> bool:
        """When nothing moves: return whether what comes next has to be done by a thread that waits for another one.

        A lane held at its place in a loop can't help: in the recording it acted before whatever that thread waits for.
        """
        self._owing(None)
        steps, i = self._steps, self._step
        owed = steps[i] if i < len(steps) else None
        awaited = self._awaited()
        found = [seq for seq in (owed, awaited) if seq is not None]
        ident = self._thread_of(min(found)) if found else 0
        return self.threads.waits(ident) and not any(queue.thread == ident for queue in self.progress.queues)

    def _absent_hop(self) -> int | None:
        """Return the next recorded event if it is a hop that the program has not made so far."""
        seq = self._awaited()
        absent = seq in self._hops and seq not in self.made_hops and seq not in self._asked
        return seq if absent else None

    def _skip_absent_before(self, seq: int) -> None:
        """Skip the hops before ``seq`` that nobody has made: there is one thread, it waits for ``seq``, and so nobody
        will."""
        while (absent := self._absent_hop()) is not None and absent < seq:
            self._skip_hop(absent)

    def _leaves_out(self, hop: int, queue: LoopQueue) -> bool:
        """Return whether the lane of a hop, in a loop that has nothing to run but held callbacks, can't make it any
        more."""
        return not queue.out and self.progress.is_lane_of(self._hops[hop], queue)

    def _deliver(self, queue: LoopQueue, ticket: Ticket) -> None:
        """Hand out an event in its loop."""
        if ticket.lane is not None:
            ticket.lane.since = 0
        if ticket.future is not None:
            queue.deliver(ticket.future)
        else:
            queue.unpark()
            ticket.call()

    def _notify_loop(self) -> None:
        """Notify the loop that waits for the next event, if it is at rest."""
        ticket = self._next_asked()
        if ticket is not None and ticket.loop is not None:
            for queue in self.progress.queues:
                if queue.loop is ticket.loop and queue.resting:
                    queue.kick_from_anywhere()

    # -- the observer: a thread that watches the others, from when something may wait to the end of the replay ---------

    def _observe(self) -> None:
        with self._lock:
            if self._observing:
                self._nudge()
                return
            if self._closed:
                return
            self._observing = True
        try:
            start_new_thread(self._look_on, ())
        except BaseException:  # there are too many threads: the next request tries again
            self._observing = False
            raise

    def _nudge(self) -> None:
        if locked(self._poke):
            try:
                self._poke.release()
            except RuntimeError:  # somebody else did
                pass

    def _look_on(self) -> None:
        self.observer = get_native_id()
        process.observers[self.observer] = self._lock
        try:
            self._observe_all()
        finally:
            del process.observers[self.observer]

    def _observe_all(self) -> None:
        pause = _SHORT
        last = monotonic_ns()
        drained: object = None
        while True:
            acquire(self._poke, False)
            sent = self.signals is not None and self.signals.look()
            asked = sent or bool(self._asked or self._never or self.held_calls)
            if acquire(self._poke, True, pause if asked else _IDLE):
                pause = _SHORT
            else:
                pause = min(pause * 1.2, _LONG)
            slow: tuple[int | None, list[Waiting]] | None = None
            with self._lock:
                if self._closed:
                    self._observing = False
                    self._still_since = 0
                    return
                quiet = self.threads.none_runs(but=self.drains_in)
                if drained != (drained := self._drained()):
                    quiet = False
                found = self._look_around(quiet)
                if found.again:
                    pause = _SHORT
                waits = found.left or drained is not None or (found.due is None and self._first() is not None)
                # If nothing waits for us, all may be asleep in native code, which may or may not end.
                asleep = quiet and not self._released and (self.cut_off or self._ahead() is not None)
                if not (quiet and (waits or (asleep and self.threads.closed_off and self.alone()))):
                    self._still_since = 0
                elif not self._still_since:
                    self._still_since = monotonic_ns()
                if not (waits or asleep):
                    last, self._reported = monotonic_ns(), False
                elif not self._reported and monotonic_ns() - last > _LONG_WAIT:
                    last, slow = monotonic_ns(), self._waited_for(found.left)
            if self._failed and monotonic_ns() - self._failed_at > _PATIENCE:
                self.threads.end_waits()
            if slow is not None:
                self._slow(*slow)
                self._reported = True
            if found.stuck is not None:
                self._give_up(found.stuck)
                pause = _SHORT
            for ticket in self._to_release(found.due):
                self._release(ticket)
                pause = _SHORT

    def _look_around(self, quiet: bool) -> _Found:
        """Return what can be done now, under the lock; ``quiet``: no thread of the run seems to run."""
        now = process_time_ns()
        self._since = self._since or now
        if self._let_look():
            return _Found(again=True)
        if self._first() is None:
            self._since = now
            if self._released:
                return _Found()
            if not self._nothing_moves():
                return _Found(left=quiet and self.threads.left_to_others())
            return _Found() if self._let_held_go() else _Found(stuck=self.threads.waiting())
        choice = self._choice(quiet, quiet or now - self._since > _COURTESY)
        if choice == _NONE:
            return _Found(stuck=self.threads.waiting())
        return _Found() if choice is None else _Found(due=self._take(choice))

    def _to_release(self, due: Ticket | None) -> list[Ticket]:
        found, self._let_on = self._let_on, []
        return found if due is None else [due, *found]

    def _waited_for(self, left: bool) -> tuple[int | None, list[Waiting]] | None:
        """Return the event that a long wait is for, and what waits; ``None`` if somebody debugs the program, who may
        take any time."""
        if self.threads.debugged():
            return None
        return self._ahead(), self.threads.waiting() + (self.threads.others() if left else [])

    @property
    def stalled(self) -> float:
        """Return for how long (s) a recorded event has been awaited while nothing ran, in native code or outside, for
        reasons unknown.

        0 until the wait has been reported.
        """
        since = self._still_since
        return (monotonic_ns() - since) / 1e9 if since and self._reported else 0.0

    def _nothing_moves(self, *, here: bool = False) -> bool:
        """Return whether nothing in this process can move by itself and no other process can make it go on (ignored
        with ``here``)."""
        if self.signals is not None and self.signals.under_way:
            return False
        # In this order: the end of a process wakes its waiters before the process is seen to be gone.
        if (here or self.alone()) and self.threads.blocked():
            return True
        look = self.threads.at_rest(by_processes=True)
        # Check again: a process that has ended meanwhile is not among the resting others, and has woken a thread here.
        if look is not None and self.others_rest(look) and self.threads.at_rest(by_processes=True) == look:
            self.threads.wakes += 1  # by what follows from this
            return True
        return False

    def _choice(self, asleep: bool, quiet: bool) -> int | None:
        """Return the event to hand out now, of those asked for; ``_NONE`` if none of them ever can be.

        ``asleep``: no thread runs. ``quiet``: a short wait would gain nothing.
        """
        first = self._first()
        assert first is not None
        ticket = self._asked[first]
        # A loop whose thread is held runs nothing: it is inside a call that does not await.
        inside = ticket.loop is not None and self.threads.holds(ticket.thread)
        due = self._in_order() and not self._owing(first) and not inside
        if due and not quiet:
            return None
        if due and ticket.loop is None:
            rests = not ticket.at_rest or self.threads.is_at_rest(ticket.thread)
            if not rests or ticket.is_there:
                return first if rests else None
        elif due:
            self._granted = first
            self._notify_loop()  # which knows when the program has reached its place
        elif asleep and (early := self._early()) is not None:
            return early
        if not self._nothing_moves(here=self._in_order() or not self._abroad()):
            return None
        if self._let_held_go(past_places=not self._is_locked_out()):
            return None
        if due and ticket.loop is not None:  # it has not taken it: it waits for a thread, in a call that does not await
            return min((seq for seq, other in self._asked.items() if other.loop is None), default=_NONE)
        if not inside:
            return first
        threads = (
            seq for seq, other in self._asked.items() if other.member is not None and other.thread == ticket.thread
        )
        return min(threads, default=_NONE)

    def _early(self) -> int | None:
        """Return the event to which something that is held until then (``until_next``) is let go on early, if any.

        The thread that causes the next event sleeps in native code, perhaps until another one has done something there
        (a database's lock). In the recording that had begun as well, and ended at the same time. So one of them is let
        go on, in the order of their events, and another one when the sleeper has looked since, and sleeps again.
        """
        looks = min((seq for seq, other in self._asked.items() if other.looks), default=None)
        awaited = self._awaited()
        ident = 0 if looks is None or awaited is None else self._thread_of(awaited)
        if not ident or self.threads.holds(ident):
            return None
        before, let_go, asleep = self._let_early
        if before == awaited:
            if let_go not in self._asked and not self.is_done(let_go):
                return None  # it has not ended
            now = self.threads.seen_of(ident)
            if asleep is None or now is None or now == asleep:
                self._let_early = awaited, let_go, asleep or now
                return None
        assert looks is not None
        self._let_early = awaited, looks, None
        return looks

    def _give_up(self, waiting: list[Waiting]) -> None:
        if self._failed:
            self.threads.interrupt()
            self._looked = None
        elif self._stuck(waiting) is not None:
            self.fail()

    # -- the events; all with the lock held ----------------------------------------------------------------------------

    def _enter(self, ticket: Ticket) -> None:
        seq = ticket.seq
        if seq is None:
            self._never.add(ticket)
        else:
            self._asked[seq] = ticket
            self._still_since = 0
            heappush(self._order, seq)

    def _first(self) -> int | None:
        order, asked = self._order, self._asked
        while order and order[0] not in asked:
            heappop(order)
        return order[0] if order else None

    def _in_order(self) -> bool:
        first = self._first()
        return first is not None and (self._next >= self._count or first <= self._events[self._next])

    def _owing(self, seq: int | None) -> bool:
        """Return whether the program has yet to begin a step that was recorded before event ``seq``."""
        steps, made, i = self._steps, self._made, self._step
        while i < len(steps) and made[steps[i]]:
            i += 1
        self._step = i
        return i < len(steps) and seq is not None and steps[i] < seq

    def _next_asked(self) -> Ticket | None:
        """Return the request for the next recorded event, or for one that was overtaken."""
        first = self._first()
        return self._asked[first] if first is not None and self._in_order() else None

    def _awaited(self) -> int | None:
        """Return the next recorded event."""
        return self._events[self._next] if self._next < self._count else None

    def _ahead(self) -> int | None:
        """Return what comes next in the recording: an event, or a step."""
        self._owing(None)
        return min((seq for seq in (self._awaited(), *self._steps[self._step : self._step + 1]) if seq), default=None)

    def _drained(self) -> object:
        """Return the program's progress while the end of its block waits for what lanes owe, else ``None``."""
        moved = sum(queue.moved for queue in self.progress.queues)
        return (self.progress.news, moved) if self.drains_in else None

    def _abroad(self) -> bool:
        """Return whether another process causes the next recorded event."""
        return self._next < self._count and self._events[self._next] in self._outside

    def _take(self, seq: int | None = None) -> Ticket:
        """Take out the request for event ``seq``, by default the first one."""
        if seq is None:
            seq = self._first()
            assert seq is not None
        ticket = self._asked.pop(seq)
        self._still_since = 0
        self._since = 0
        if ticket.by_itself:
            self._coming = seq, ticket.thread
        elif not ticket.looks:
            self._hand_out(seq)
        self.threads.waking(ticket.member)
        return ticket

    def _hand_out(self, seq: int, *, overtake: bool = True, reported: bool = True) -> None:
        i = self._next
        if i >= self._count or seq < self._events[i]:  # overtaken earlier
            i = bisect_left(self._events, seq)
            if i < self._count and self._events[i] == seq:
                self._done[i] = 1
                self.progress.delivered(seq)
            return
        if seq != self._events[i]:
            i = bisect_left(self._events, seq, i)
            if reported:
                self.reordered.append(seq)
        if i < self._count and self._events[i] == seq:
            self._set_done(i, overtake=overtake)

    def _set_done(self, i: int, *, overtake: bool = True) -> None:
        """Note that the event at ``i`` is handed out, which is next or overtakes those before it."""
        self._done[i] = 1
        self._advance(i if overtake else self._next)
        self.progress.delivered(self._events[i])

    def _advance(self, i: int) -> None:
        done = self._done
        while done[i]:
            i += 1
        self._next = i
        if self._asked:
            self._notify_loop()
        if self._hops and self._absent_hop() is not None:
            for queue in self.progress.queues:
                if queue.resting:
                    queue.kick_from_anywhere()

    def exchange(self, seq: int, other: int) -> bool:
        """Have the thread that is held until event ``seq`` be held until ``other``; return whether one is. With the lock held."""
        ticket = self._asked.get(seq)
        if ticket is None or ticket.gate is None or other in self._asked:
            return False
        del self._asked[seq]
        ticket.seq = other
        self._enter(ticket)
        return True

    def _withdraw(self, ticket: Ticket, *, delivered: bool) -> None:
        with self._lock:
            seq = ticket.seq
            if seq is None:
                if ticket in self._never:
                    self._never.remove(ticket)
                    ticket.act = None
            elif self._asked.get(seq) is ticket:
                del self._asked[seq]
                ticket.act = None
                if delivered:
                    self._hand_out(seq, overtake=False, reported=False)
                    if ticket.lane is not None:
                        ticket.lane.since = 0
                elif ticket.lane is not None:
                    self.progress.asked(ticket.lane)
            if ticket.member is not None:
                ticket.member.moved()

    def _release(self, ticket: Ticket) -> None:
        """Grant a ticket that has been taken out; without the lock, since that may run the program's code."""
        try:
            self._let_go(ticket)
        finally:
            with self._lock:
                self.threads.woken()

    def _let_go(self, ticket: Ticket) -> None:
        if ticket.gate is not None:
            ticket.gate.release()
        elif ticket.loop is None:
            ticket.call()
        elif not ticket.loop.is_closed():
            try:
                ticket.loop.call_soon_threadsafe(self._deliver_in, ticket, context=Context())
            except RuntimeError:  # the loop is closed
                pass

    def _deliver_in(self, ticket: Ticket) -> None:
        assert ticket.loop is not None
        self._deliver(self.progress.queue(ticket.loop), ticket)

    def _taken(self, ticket: Ticket) -> bool:
        """Return whether its event has been handed out to ``ticket``."""
        with self._lock:
            return ticket.seq is not None and ticket.seq not in self._asked and not self._failed


# -- beside ------------------------------------------------------------------------------------------------------------
#
# Running the other tasks of an event loop from inside a call that does not await.


def can_run_other_tasks(loop: AbstractEventLoop) -> bool:
    """Return whether ``run_other_tasks`` supports this loop: those of the standard library."""
    return hasattr(loop, "_run_once") and hasattr(loop, "_ready")


def run_other_tasks(loop: Any, until: Callable[[], bool]) -> None:
    """Run the loop's other tasks until ``until()``; the calling task stays where it is.

    A round of the loop counts the ready callbacks first and then takes them one by one; this function is called inside
    such a round. So it leaves as many ready callbacks as there were.
    """
    from asyncio import tasks

    task = tasks.current_task(loop)
    counted = len(loop._ready)
    if task is not None:
        tasks._leave_task(loop, task)
    try:
        while not until():
            loop._run_once()
    finally:
        if task is not None:
            tasks._enter_task(loop, task)
        for _ in range(counted):
            loop.call_soon(_nothing, context=Context())


def _nothing() -> None:
    pass
