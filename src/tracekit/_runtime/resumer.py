"""The session that resumes a run: it replays as long as the log lasts, then records past its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .._journal.entry import AT_ONCE, LOCK_TAKEN, QUEUES, info_of, meta_of
from .._journal.reader import Trace
from .._journal.store import shown_as
from .._journal.writer import Journal
from .._reality import OwnLock, running_loop
from .._values import dumps_in_order
from .._values.decoding import from_json
from ..errors import ReplayError, TracekitError
from . import divergence
from .index import INTENT, READ, SINGLE, LaneKey
from .lane import ROOT, UNLIMITED, Lane
from .recorder import RecordedStep, RecordedTimer, Recording
from .redaction import Redactor
from .replayer import Replay, ReplayedStep, ReplayedTimer
from .schedule import can_run_other_tasks, run_other_tasks
from .session import STEADY, Outcome, Refusal, RunClock, Scope, Step, Timer, UndoLog
from .step import Note, Request
from .threads import ThreadMonitor, Waiting

if TYPE_CHECKING:
    from .schedule import Ticket

__all__ = ["Followed", "Resumption"]

# -- deferred ----------------------------------------------------------------------------------------------------------
#
# What a resumed run does not find in its log: steps, ends of spans and timers, which happen once the log is open.


class DeferredStep(Step):
    """A step past the end of the log, or one whose outcome the log lacks (``given_up``: its ``seq``).

    ``go`` makes it, after the whole log has been followed, and after an interrupted attempt has been compensated if
    possible.
    """

    __slots__ = ("given_up", "request", "scope", "session", "spec")

    live: Final = False
    deferred: Final = True

    def __init__(self, session: Resumption, scope: Scope, request: Request, given_up: int | None) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.request: Final = request
        self.spec: Final = request.spec
        self.given_up: Final = given_up

    @property
    def seq(self) -> int:
        return self.given_up or 0

    def go(self) -> Step:
        waited = self.session.wait_open(self.spec.family, self.spec.name)
        compensation = self._compensation()
        if compensation is not None:
            compensation.run(self.scope, self.given_up, self.request.input, None)
        return self.session.make(self, waited=waited)

    async def go_async(self) -> Step:
        # Others may have gone on since it was requested or first made: a replay has to wait for its outcome, too.
        waited = self.given_up is not None or not self.session.followed
        await self.session.wait_open_async()
        compensation = self._compensation()
        if compensation is not None:
            await compensation.run_async(self.scope, self.given_up, self.request.input, None)
        return self.session.make(self, waited=waited)

    def _compensation(self) -> Any:
        """Return how to undo the interrupted attempt, unless an earlier recovery has done so."""
        if self.given_up is None or self.session.replay.undone(self.given_up):
            return None
        return self.spec.compensation


class ResumedSpan(ReplayedStep):
    """A span that was open when the log was cut off: it ends past the end of the log."""

    __slots__ = ("_run",)

    def __init__(self, run: Resumption, scope: Scope, request: Request, seq: int) -> None:
        super().__init__(run.replay, scope, request, seq)
        self._run: Final = run

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        recorded = RecordedStep(self._run, self.scope, self.request, self.seq)
        self._run.late(lambda: recorded.done(output, info=info, data=data))

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        if self._run.replay.failure is None:
            recorded = RecordedStep(self._run, self.scope, self.request, self.seq)
            self._run.late(lambda: recorded.failed(error, output=output, info=info))


class LateTimer(Timer):
    """A hand-over between threads past the end of the log: it happens at once, and is logged later, in order."""

    __slots__ = ("_real", "_run")

    comes: Final = False
    pending: Final = False
    about: Final[Mapping[str, Any]] = {}

    def __init__(self, run: Resumption, real: RecordedTimer) -> None:
        self._run: Final = run
        self._real: Final = real

    @property
    def live(self) -> bool:
        return True

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        self._run.late(lambda: self._real.fired(about))

    def identity(self) -> list[Any] | None:
        return self._real.identity()


class LateLock(LateTimer):
    """A lock that is taken, where the log does not say that another thread had it before; others may follow it in the log."""

    __slots__ = ("_timer",)

    def __init__(self, run: Resumption, real: RecordedTimer, timer: ReplayedTimer) -> None:
        super().__init__(run, real)
        self._timer: Final = timer

    def took_lock(self) -> None:
        self._timer.took_lock()


class HeldTimer(LateTimer):
    """A queue operation past the end of the log, which waits until the others have got their items from the queue."""

    __slots__ = ("_function", "_now", "_waited")

    def __init__(self, run: Resumption, real: RecordedTimer, function: str) -> None:
        super().__init__(run, real)
        self._function: Final = function
        self._now = False
        #: Whether the other tasks of the loop have gone on before it, as they then do in a replay.
        self._waited = False

    @property
    def live(self) -> bool:
        return self._now or self._run.followed

    def comes_yet(self) -> bool:
        loop = running_loop()
        if loop is None or can_run_other_tasks(loop):
            self._waited = self._run.wait_open("queue", self._function)
        else:  # it can't be held back
            self._now = True
        return self.live

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        super().fired({**(about or {}), "waited": True} if self._waited else about)


class ResumedTimer:
    """A sleep or deadline that had not fired when the log was cut off: ``live`` once the log is open, or the run is
    left.

    That is when ``wait`` returns and ``on_fire`` calls; the capture point checks ``live``, uses the real clock and
    reports.
    """

    __slots__ = ("_real", "_run", "_ticket")

    comes: Final = False
    pending: Final = True
    about: Final[Mapping[str, Any]] = {}

    def __init__(self, run: Resumption, real: RecordedTimer) -> None:
        self._run: Final = run
        self._real: Final = real
        self._ticket: Ticket | None = None

    @property
    def live(self) -> bool:
        return self._run.followed or self._run.replay.schedule.over

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        if self._run.followed:
            self._real.fired(about)

    def wait(self) -> None:
        self._run.replay.schedule.wait(None)

    async def wait_async(self) -> None:
        await self._run.replay.schedule.wait_async(None)

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        self._ticket = self._run.replay.schedule.callback(None, callback, anywhere=anywhere)

    def cancel(self) -> None:
        if self._ticket is not None:
            self._run.replay.schedule.cancel(self._ticket)


# -- followed ----------------------------------------------------------------------------------------------------------
#
# The log of a run to be resumed, which the program follows to its end before anything goes live.


class Followed(Replay):
    """A replay that may reach the end of its log, and knows where the program is past it.

    ``supplied`` has outputs that the log lacks, by step (an operator knows what was redacted).
    """

    # What follows its log is live.
    _ends_with_log = False
    # It continues in the same file, so lanes keep their identity.
    _unwraps = False
    # What its lanes did between their last event and the end of the log is unbounded, and what follows is live.
    _patience = UNLIMITED

    def __init__(self, trace: Trace, redactor: Redactor, supplied: Mapping[int, Any]) -> None:
        super().__init__(trace, redactor)
        self.supplied: Final = dict(supplied)
        self._cursor = 1
        #: The recorded queue operations that threads have yet to make.
        self._moves: Final = {seq for (_, name, _, _), seq in self.index.timers.items() if _moves(name)}

    @property
    def complete(self) -> bool:
        """Whether the program has made every recorded step and got every event, and its threads have made all recorded
        hand-overs.

        What goes live before an event of the log comes after it in the file, and so in a replay. If another thread took
        an item than did then, the program would take another path.
        """
        return self.stepped and self.schedule.exhausted and all(self._used[seq] for seq in self._moves.copy())

    def skip_hop(self, seq: int) -> None:
        super().skip_hop(seq)
        self._moves.discard(seq)

    def handed_over(self, seq: int) -> None:
        self._used[seq] = 1
        self._moves.discard(seq)
        self.face.look()

    @property
    def stepped(self) -> bool:
        """Whether the program has made every recorded step."""
        role, used, count = self.index.role, self._used, len(self.index)
        with self._lock:
            i = self._cursor
            while i <= count and (used[i] or role[i] not in (INTENT, SINGLE)):
                i += 1
            self._cursor = i
        return i > count

    def next_step(self, scope: Scope, kind: str) -> int | None:
        """Return the next recorded step of a kind in the scope's lane; ``None`` if the lane is past the end of the log.

        Then the lane must have no recorded steps left; otherwise the replay fails.
        """
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, kind)
            if seq is None:
                for left in state.rest():
                    if self.index.role[left] == READ:
                        self._unread(state, left)
                    elif self.index.role[left] in (INTENT, SINGLE) and not self._used[left]:
                        raise self.failed.by(divergence.out_of_order(self.trace.entry(left)))
        return seq

    def read_past_end(self, scope: Scope, function: str) -> bool:
        """Return whether a read of ``function`` now comes after all that was recorded in its lane."""
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            if state.has(function):
                return False
            return all(self.index.role[seq] not in (INTENT, SINGLE) or self._used[seq] for seq in state.rest())

    def timer_at(self, scope: Scope, function: str, after: int, n: int) -> ReplayedTimer:
        """Return the timer that the scope's lane arms now; see ``Lane.armed``."""
        with self._lock:
            self.failed.check()
            key = self.lanes.enter(scope.lane).lane, function, after, n
            return ReplayedTimer(self, key, self.index.timers.get(key), scope.lane)

    def undone(self, seq: int) -> bool:
        """Return whether an earlier recovery has undone a step."""
        compensation = self.index.compensations.get(seq)
        return compensation is not None and self.answered(compensation)

    def answered(self, seq: int) -> bool:
        """Return whether the log has the outcome of a step."""
        return bool(self.index.answer[seq])

    def entries_of(self, step: int) -> Iterator[dict[str, Any]]:
        """Yield the entries of a step: its intent record, everything inside, and its outcome, if there is one."""
        answer = self.index.answer[step]
        for seq in sorted({step, *self.index.inside(step), *((answer,) if answer else ())}):
            yield self.trace.entry(seq)

    def number_of(self, parent: int, name: str, n: int, under: int) -> int:
        """Return the number of a lane in the log, or 0."""
        return self.index.lanes.get(LaneKey(parent, name, n, under), 0)

    @cached_property
    def lasted(self) -> int:
        """Return how long (ns) the run had taken, by the last recorded readings of its steady clocks."""
        left, most = {function for function in STEADY if self.begun(function) is not None}, 0
        for seq in range(len(self.index), 0, -1):
            if not left:
                break
            if self.index.role[seq] != READ or b'"clock"' not in self.trace.line(seq):
                continue
            entry = self.trace.entry(seq)
            function = entry["name"].partition(":")[0]
            if function in left:
                left.remove(function)
                since = from_json(self.trace.expand(entry["values"])[-1]) - self.begun(function)
                most = max(most, since if isinstance(since, int) else int(since * 1e9) + 1)
        return most

    def outcome(self, step: ReplayedStep, seq: int) -> Outcome:
        if step.seq not in self.supplied:
            return super().outcome(step, seq)
        with self._lock:
            self._used[seq] = 1
            state = self.lanes.enter(step.scope.lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)
        entry = self.trace.entry(seq)
        return Outcome(
            from_json(self.trace.expand(self.supplied[step.seq]), step.spec.hint()),
            None,
            meta_of(entry),
            entry,
        )

    def _stuck(self, waiting: list[Waiting]) -> ReplayError | None:
        if self.stepped and self.face.open_now():  # nobody asks for what is left to hand over
            return None
        return self.fail(divergence.not_followed(self.run_id, shown_as(self.trace.path), self._unconsumed()))

    def unfollowed(self) -> ReplayError:
        """Return the failure of a program that has ended before the end of the log."""
        return self.fail(divergence.not_followed(self.run_id, shown_as(self.trace.path), self._unconsumed()))


# -- resumption --------------------------------------------------------------------------------------------------------
#
# The session that resumes: it answers from the log as long as that lasts, and records from there on. Nothing goes live
# before the program has followed the log to its end, so that a program that no longer follows its log is noticed while
# that is harmless. Then the log is *open*: what was never recorded may happen.

T = TypeVar("T")


def _moves(function: str) -> bool:
    """Return whether it is a queue operation, by user code or a package."""
    return function.partition(":")[0] in QUEUES


class Resumption(Recording):
    """A run that continues in ``journal`` where ``log`` ends.

    ``opened`` is called when the log has been followed to its end; ``about`` is the content of ``recovery.started``.
    """

    def __init__(
        self,
        journal: Journal,
        redactor: Redactor,
        log: Followed,
        *,
        about: Mapping[str, Any],
        opened: Callable[[], object],
    ) -> None:
        super().__init__(journal, redactor, past=log.trace, ordered=log.state.ordered)
        self.replay: Final = log
        log.face = self
        self.progress = log.progress
        self.recording = False
        self.followed = False
        self.state.clock = log.state.clock = RunClock(self._own)
        self._about: Final = dict(about)
        self._opened: Final = opened
        self._opening: Final = OwnLock()
        #: ``recovery.started``, once it is in the log; and whether what was late is, too.
        self._started: Final[dict[int, None]] = {}
        self._begun = False
        #: What has to be written once the log is open, in order.
        self._late_entries: Final[deque[Callable[[], object]]] = deque()
        self._steady: dict[str, Any] = {}
        #: The lanes that have made a step past the end of the log.
        self._left: set[Lane] = set()
        self._last_lane = max(log.index.lanes.values(), default=0)
        self._identities.update(log.index.identities)
        self.steps = sum(len(steps) for steps in log.index.intents.values())

    # -- reaching the end of the log -----------------------------------------------------------------------------------

    @property
    def threads(self) -> ThreadMonitor | None:  # type: ignore[override]
        """Notified by hooks of the threads that take part, as long as the log decides the order."""
        return None if self.followed else self.replay.threads

    def look(self) -> bool:
        """Return whether the program has followed the log to its end; the first time, open the log."""
        if not self.followed and self.replay.failure is None and self.replay.complete:
            self._open()
        return self.followed

    def open_now(self) -> bool:
        """Open the log, whatever holds it up; return whether that is allowed: it has been followed without a
        difference."""
        if self.replay.failure is None and not self.followed:
            self._open()
        return self.followed

    def _open(self) -> None:
        with self._opening:
            self.begin_recovery()
            first, self.recording, self.followed = not self.followed, True, True
        if first:
            self._opened()
            self.replay.schedule.release()

    def begin_recovery(self) -> None:
        """Write ``recovery.started``, and what happened past the end of the log meanwhile. Idempotent: once it has been
        interrupted, by Ctrl-C say, the next call completes it."""
        with self._opening:
            if not self._started:
                meta = dumps_in_order(self._about)
                self.log.journal.append("recovery.started", 0, ROOT, b',"meta":%b' % meta, self._started)
            while self._late_entries:
                self._late_entries.popleft()()
            self._begun = True

    def late(self, write: Callable[[], object]) -> None:
        """Write something past the end of the log, as soon as that is possible."""
        with self._opening:
            if not self._begun:
                self._late_entries.append(write)
                return
        write()

    def wait_open(self, family: str, name: str) -> bool:
        """Wait until the log is open. Return whether the other tasks of an event loop have run meanwhile."""
        if self.followed:
            return False
        loop = running_loop()
        if loop is None:
            self.replay.schedule.wait(None)
        elif can_run_other_tasks(loop):
            # Whether nothing else can go on is only determined while something waits.
            waits = self.replay.schedule.callback(None, lambda: None)
            self.progress.queue(loop).nested()
            run_other_tasks(loop, lambda: self.followed or self.replay.failure is not None)
            self.replay.schedule.cancel(waits)
            self.replay.failed.check()
            return True
        else:
            raise self.replay.fail(divergence.not_yet_followed(self.run_id, family, name))
        return False

    async def wait_open_async(self) -> None:
        if not self.followed:
            await self.replay.schedule.wait_async(None)

    # -- steps ---------------------------------------------------------------------------------------------------------

    @property
    def supplied(self) -> Mapping[int, Any]:
        return self.replay.supplied

    def begin(self, scope: Scope, request: Request) -> Step:
        spec = request.spec
        if self.followed:
            if request.once_key is not None or (scope.spending is not None and not spec.structural):
                return self._live(scope, request)  # the end of the log has just been reached
            self._leave_log(scope, spec.family)
            return super().begin(scope, request)
        if self.replay.next_step(scope, spec.family) is None:
            if self.look():
                self._left.add(scope.lane)
                return self._live(scope, request)
            return DeferredStep(self, scope, request, None)
        try:
            step = self.replay.begin(scope, request)
        finally:
            self.look()
        if scope.spending is not None and not spec.structural:
            scope.spending.recall(self.replay.entries_of(step.seq))
        if self.replay.answered(step.seq):
            if scope.call is not None:
                scope.call.recall(self.replay.entries_of(step.seq), self.run_id)
            return step
        if spec.structural:
            return ResumedSpan(self, scope, request, step.seq)
        return DeferredStep(self, scope, request, step.seq)

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        return not self.followed and self.replay.comes_next(scope, family, name)

    def make(self, step: DeferredStep, *, waited: bool = False) -> Step:
        """Make a step that the log does not answer, giving up an interrupted attempt; return the live step."""
        request = step.request.saying({"waited": True}) if waited else step.request
        self._left.add(step.scope.lane)
        if step.given_up is not None:
            seq = step.given_up
            entry = self.replay.trace.entry(seq)
            before = info_of(entry).get("attempt", 1)
            meta = b',"step":%d,"meta":{"info":{"reason":"superseded"}}' % seq
            self.log.journal.append(step.spec.types.skipped, step.scope.lane.id, seq, meta)
            request = request.saying({"attempt": before + 1, "again": seq})
        return self._live(step.scope, request)

    def _live(self, scope: Scope, request: Request) -> Step:
        """Begin a step past the end of the log, through the run's policies."""
        session = self.state.session
        return super().begin(scope, request) if session is None else session.begin(scope, request)

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        if self._past_end(scope, request.spec.family):
            return super().refuse(scope, request, error)
        self.state.overran(error)
        try:
            return self.replay.refuse(scope, request, error)
        finally:
            self.look()

    def note(self, scope: Scope, note: Note) -> int:
        if self._past_end(scope, note.type):
            return super().note(scope, note)
        try:
            return self.replay.note(scope, note)
        finally:
            self.look()

    def _past_end(self, scope: Scope, kind: str) -> bool:
        """Return whether a step of one entry has to be written, which is then allowed. Only the log is affected."""
        if self.followed:
            self._leave_log(scope, kind)
            return True
        if self.replay.next_step(scope, kind) is not None:
            return False
        if not self.look() and running_loop() is None:
            self.replay.schedule.wait(None)
        self.begin_recovery()
        return True

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        if agent in self.replay.index.identities:
            self.replay.identify(agent, identity)
        else:
            self.late(lambda: super(Resumption, self).identify(agent, identity))

    def snapshot(self, name: str, state: Any) -> Any:
        recorded = self.replay.snapshot(name, state)
        if recorded is None:
            self.late(lambda: super(Resumption, self).snapshot(name, state))
        return None if self.followed else recorded

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        if not self.followed and (kind, name) in self.replay.index.inputs:
            return self.replay.input_read(scope, kind, name, value, own=own)
        self.late(lambda: super(Resumption, self).input_read(scope, kind, name, value, own=own))
        return value

    def fail(self, error: ReplayError) -> ReplayError:
        return error if self.followed else self.replay.fail(error)

    # -- clock, random numbers and timers ------------------------------------------------------------------------------

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        if self._read_in_log(scope, function):
            return self.replay.clock_read(scope, function, real)
        value: T = self.state.shown(function, self._own(function, real) if function in STEADY else real(), real)
        self.late(lambda: self._read("clock", scope, function, value))
        return value

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        name = f"{function}:{library}"
        if not self.followed:
            found, recorded = self.replay.recorded_read(scope, name)
            if found:
                return self.state.shown(function, recorded, real)  # type: ignore[no-any-return]
        value: T = self.state.shown(function, self._own(function, real), real)
        if library is not None:
            self.late(lambda: self.library_read(scope, name, value))
        return value

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        name = f"{function}:{library}"
        value = real()
        if not self.followed:
            found, recorded = self.replay.recorded_read(scope, name)
            if found:
                return recorded  # type: ignore[no-any-return]
        self.late(lambda: self.library_read(scope, name, value, "random"))
        return value

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        if self._read_in_log(scope, function):
            return self.replay.question(scope, function, real, agree)
        value = real()
        self.late(lambda: self._read("clock", scope, function, value))
        return value

    def asked_again(self, scope: Scope, function: str) -> None:
        if not self.followed:
            self.replay.asked_again(scope, function)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        if self._read_in_log(scope, function):
            return self.replay.random_read(scope, function, real)
        value = real()
        self.late(lambda: self._read("random", scope, function, value))
        return value

    def _read_in_log(self, scope: Scope, function: str) -> bool:
        return scope.lane not in self._left and not self.replay.read_past_end(scope, function)

    def _leave_log(self, scope: Scope, kind: str) -> None:
        """The scope's lane makes its first step past the end of the log: it must have nothing left there."""
        if scope.lane not in self._left:
            self.replay.next_step(scope, kind)
            self._left.add(scope.lane)

    def _own(self, function: str, real: Callable[[], Any]) -> Any:
        """Return what a clock of the run shows, if the log has no reading.

        A clock that started at another instant than in the log goes on from where the log ends.
        """
        if function not in STEADY:
            return real() if self.followed else self.replay.now(function, real)
        if not self.followed:
            return self.replay.now(function, real, self.replay.lasted)
        value = real()
        ahead = self._steady.get(function)
        if ahead is None:
            then = self.replay.now(function, lambda: value, self.replay.lasted)
            ahead = self._steady.setdefault(function, then - value)
        return value + ahead

    def arm(self, scope: Scope, function: str, seconds: float) -> Any:
        if scope.lane in self._left:
            return super().arm(scope, function, seconds)
        after, n = scope.lane.armed(function)
        timer = self.replay.timer_at(scope, function, after, n)
        if timer.comes:
            return timer
        real = RecordedTimer(self, scope, function, after, n)
        if self.followed:
            return real
        if _moves(function):
            return HeldTimer(self, real, function)
        if function.startswith(LOCK_TAKEN):
            return LateLock(self, real, timer)
        return LateTimer(self, real) if function.partition(":")[0] in AT_ONCE else ResumedTimer(self, real)

    def importing(self, scope: Scope, module: str) -> Scope | None:
        return self.replay.importing(scope, module)

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        self.replay.skip_deliveries(here, tasks)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _number(self, lane: Lane, parent: Lane) -> int:
        return self.replay.number_of(parent.id, lane.name, lane.n, lane.under)

    @property
    def undo_log(self) -> UndoLog | None:
        return None if self.followed else self.replay

    def open_lanes(self) -> list[Lane]:
        return [*self.replay.open_lanes(), *super().open_lanes()]
