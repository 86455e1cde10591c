"""The session that resumes: it answers from the log while that lasts, and records from there on.

Nothing goes live before the program has made every recorded step: a program that no longer follows its log is noticed while
that is harmless. Then the log is *open*: what was never recorded may happen.
"""

from __future__ import annotations

import threading
from asyncio.events import _get_running_loop
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from .._canonical import dumps_in_order, from_json
from .._journal.reader import Trace
from .._journal.writer import Journal
from ..errors import ReplayError, TracekitError
from . import failures
from .beside import can_go_on, go_on
from .deferred import DeferredStep, HeldTimer, LateTimer, ResumedSpan, ResumedTimer
from .followed import Followed
from .gate import Refusal
from .index import HAND_OVERS, QUEUES
from .lanes import Lane
from .recorded import RecordedTimer
from .recording import ROOT, Recording
from .redaction import Redactor
from .scope import Scope
from .step import Request
from .threads import ThreadMonitor

__all__ = ["Resumption"]

T = TypeVar("T")

#: Clocks that begin anywhere, and must not go back.
_STEADY: Final = frozenset(
    ("time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "loop.time")
)
#: What threads hand to one another waits for nobody, except in queues: who takes an item takes it from another.
_AT_ONCE: Final = (HAND_OVERS - QUEUES) | {"future.arrival"}


class Resumption(Recording):
    """One run that goes on in ``journal``, where ``log`` ends.

    ``opened`` is called when the log has been followed to its end; ``about`` goes into ``recovery.started``.
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
        super().__init__(journal, redactor)
        self.log: Final = log
        log.face = self
        self.recording = False
        self.ordered = log.ordered
        self.followed = False
        self._about: Final = dict(about)
        self._opened: Final = opened
        self._opening: Final = threading.RLock()
        self._begun = False
        #: What is to be written once the log is open, in order.
        self._late_entries: list[Callable[[], object]] = []
        self._steady: dict[str, Any] = {}
        #: The lanes that have made a step past the end of the log.
        self._left: set[Lane] = set()
        self._last_lane = max(log.index.lanes.values(), default=0)
        self._identities.update(log.index.identities)
        self.steps = sum(len(steps) for steps in log.index.intentions.values())

    # -- coming to the end of the log ------------------------------------------------------------------------------------

    @property
    def threads(self) -> ThreadMonitor | None:  # type: ignore[override]
        """Whom the hooks tell which threads take part, while the log decides who goes first."""
        return None if self.followed else self.log.threads

    def look(self) -> bool:
        """Whether the program has followed the log to its end; the first time, what is past it may come from now on."""
        if not self.followed and self.log.failure is None and self.log.complete:
            self._open()
        return self.followed

    def open_now(self) -> bool:
        """Open the log, whoever holds it up. Whether that may be: it has been followed without a difference."""
        if self.log.failure is None and not self.followed:
            self._open()
        return self.followed

    def _open(self) -> None:
        with self._opening:
            self.begin_recovery()
            first, self.recording, self.followed = not self.followed, True, True
        if first:
            self._opened()
            self.log.schedule.release()

    def begin_recovery(self) -> None:
        """Write ``recovery.started``, and what happened past the end of the log meanwhile. Idempotent."""
        with self._opening:
            if self._begun:
                return
            meta = dumps_in_order(self._about)
            self.journal.append("recovery.started", 0, ROOT, b',"meta":%b' % meta, True)
            self._begun = True
            late, self._late_entries = self._late_entries, []
            for write in late:
                write()

    def late(self, write: Callable[[], object]) -> None:
        """Write something past the end of the log, as soon as that may be."""
        with self._opening:
            if not self._begun:
                self._late_entries.append(write)
                return
        write()

    def wait_open(self, family: str, name: str) -> bool:
        """Return when the log is open. Whether the other tasks of an event loop have gone on meanwhile."""
        if self.followed:
            return False
        loop = _get_running_loop()
        if loop is None:
            self.log.schedule.wait(None)
        elif can_go_on(loop):
            # That nobody else can go on is seen only while somebody waits.
            waits = self.log.schedule.callback(None, lambda: None)
            go_on(loop, lambda: self.followed or self.log.failure is not None)
            self.log.schedule.cancel(waits)
            self.log.going()
            return True
        else:
            raise self.log.fail(failures.not_yet_followed(self.run_id, family, name))
        return False

    async def wait_open_async(self) -> None:
        if not self.followed:
            await self.log.schedule.wait_async(None)

    # -- steps -----------------------------------------------------------------------------------------------------------

    @property
    def supplied(self) -> Mapping[int, Any]:
        return self.log.supplied

    def past(self) -> Trace:
        return self.log.trace

    def begin(self, scope: Scope, request: Request) -> Any:
        spec = request.spec
        if self.followed:
            self._leave_log(scope, spec.family)
            return super().begin(scope, request)
        if self.log.next_step(scope, spec.family) is None:
            if self.look():
                self._left.add(scope.lane)
                return super().begin(scope, request)
            return DeferredStep(self, scope, request, None)
        try:
            step = self.log.begin(scope, request)
        finally:
            self.look()
        if scope.spending is not None and not spec.structural:
            scope.spending.recall(self.log.told_of(step.seq))
        if self.log.answered(step.seq):
            if scope.call is not None:
                scope.call.recall(self.log.told_of(step.seq), self.run_id)
            return step
        if spec.structural:
            return ResumedSpan(self, scope, request, step.seq)
        return DeferredStep(self, scope, request, step.seq)

    def make(self, step: DeferredStep, *, waited: bool = False) -> Any:
        """The live step of one that the log does not answer; an attempt that was cut off is given up for it."""
        request = step.request.saying({"waited": True}) if waited else step.request
        self._left.add(step.scope.lane)
        if step.given_up is not None:
            seq = step.given_up
            entry = self.log.trace.entry(seq)
            before = ((entry.get("meta") or {}).get("info") or {}).get("attempt", 1)
            meta = b',"step":%d,"meta":{"info":{"reason":"superseded"}}' % seq
            self.journal.append(step.spec.types.skipped, step.scope.lane.id, seq, meta)
            request = request.saying({"attempt": before + 1, "again": seq})
        return super().begin(step.scope, request)

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        if self._past_end(scope, request.spec.family):
            return super().refuse(scope, request, error)
        try:
            return self.log.refuse(scope, request, error)
        finally:
            self.look()

    def note(self, scope: Scope, type: str, name: str, **fields: Any) -> int:
        if self._past_end(scope, type):
            return super().note(scope, type, name, **fields)
        try:
            return self.log.note(scope, type, name, **fields)
        finally:
            self.look()

    def _past_end(self, scope: Scope, kind: str) -> bool:
        """Whether a step of one entry is to be written: then it may be now. Nothing but the log changes by it."""
        if self.followed:
            self._leave_log(scope, kind)
            return True
        if self.log.next_step(scope, kind) is not None:
            return False
        if not self.look() and _get_running_loop() is None:
            self.log.schedule.wait(None)
        self.begin_recovery()
        return True

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        if agent in self.log.index.identities:
            self.log.identify(agent, identity)
        else:
            self.late(lambda: super(Resumption, self).identify(agent, identity))

    def snapshot(self, name: str, state: Any) -> Any:
        recorded = self.log.snapshot(name, state)
        if recorded is None:
            self.late(lambda: super(Resumption, self).snapshot(name, state))
        return None if self.followed else recorded

    def fail(self, error: ReplayError) -> ReplayError:
        return error if self.followed else self.log.fail(error)

    # -- clock, dice and timers ------------------------------------------------------------------------------------------

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        if self._read_in_log(scope, function):
            return self.log.clock_read(scope, function, real)
        value: T = self._going_on(function, real())
        self.late(lambda: self._read("clock", scope, function, value))
        return value

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        if self._read_in_log(scope, function):
            return self.log.random_read(scope, function, real)
        value = real()
        self.late(lambda: self._read("random", scope, function, value))
        return value

    def _read_in_log(self, scope: Scope, function: str) -> bool:
        return scope.lane not in self._left and not self.log.read_past_end(scope, function)

    def _leave_log(self, scope: Scope, kind: str) -> None:
        """The scope's lane makes its first step past the end of the log: it must have nothing left there."""
        if scope.lane not in self._left:
            self.log.next_step(scope, kind)
            self._left.add(scope.lane)

    def _going_on(self, function: str, value: Any) -> Any:
        """A clock that began at another instant than in the log goes on from the last value there."""
        if function not in _STEADY:
            return value
        if function not in self._steady:
            last = self.log.last_read(function)
            self._steady[function] = 0 if last is None else from_json(last) - value
        return value + self._steady[function]

    def arm(self, scope: Scope, function: str, seconds: float) -> Any:
        if scope.lane in self._left:
            return super().arm(scope, function, seconds)
        after, n = scope.lane.armed(function)
        seq = self.log.timer_at(scope, function, after, n)
        if seq is not None:
            return self.log.timer(seq)
        real = RecordedTimer(self, scope, function, after, n)
        if self.followed:
            return real
        if function in QUEUES:
            return HeldTimer(self, real, function)
        return LateTimer(self, real) if function in _AT_ONCE else ResumedTimer(self, real)

    # -- lanes -----------------------------------------------------------------------------------------------------------

    def _number(self, lane: Lane, parent: Lane) -> int:
        return self.log.number_of(parent.id, lane.name, lane.n, lane.under)

    def open_lanes(self) -> list[Lane]:
        return [*self.log.open_lanes(), *super().open_lanes()]
