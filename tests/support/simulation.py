"""A recording and a replay as small as can be: a list of events, the real lanes, timers and schedule."""

from __future__ import annotations

import asyncio
import itertools
import json
import selectors
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tracekit._capture import threads as concurrency
from tracekit._capture import timers
from tracekit._capture.world import event_loops
from tracekit._journal.entry import LOCK_TAKEN
from tracekit._runtime.lane import Lane
from tracekit._runtime.places import PlaceIndex
from tracekit._runtime.progress import Progress
from tracekit._runtime.schedule import Schedule
from tracekit._runtime.session import RunState, Timer, owner
from tracekit.integration import Scope, current, drive, here


class Differs(BaseException):
    """The replayed program did something else."""


class _Base:
    run_id = "r"
    threads: Any = None

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.state = RunState(live=True, ordered=False)

    def __enter__(self) -> Any:
        concurrency.hooks.activate()
        timers.hooks.activate()
        event_loops.activate()
        self.state.root = lane = Lane("", 0, None, id=0, owner=owner())
        self._token = current.set(Scope(self, lane, 1))  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)
        self.state.ended = True
        assert event_loops.deactivate() == []
        assert timers.hooks.deactivate() == []
        assert concurrency.hooks.deactivate() == []

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], Any]) -> Any:
        return real()

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], Any]) -> Any:
        return real()

    def question(self, scope: Scope, function: str, real: Callable[[], Any], agree: Callable[[Any], object]) -> Any:
        return real()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Recording(_Base):
    """Appends ``(kind, lane path, name, value, place)``; kinds: call, return, error, timer."""

    recording = True

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, ...]] = [("start",)]
        self.progress = Progress()
        self._lock = threading.Lock()

    def place(self, lane: Lane) -> bytes:
        def number(one: Lane) -> int:
            if not one.number and one.parent is not None:
                one.number = self.append("lane", one.path)
            return one.number

        return self.progress.place(lane, number)

    def append(self, *entry: Any) -> int:
        with self._lock:
            self.log.append(entry)
            return len(self.log)

    async def call(self, name: str, value: Any, body: Callable[[], Awaitable[Any]]) -> Any:
        scope = here()
        assert scope is not None
        seq = self.append("call", scope.lane.path, name, value)
        driven = drive(body())
        token = current.set(scope.inside(seq, live=True))
        try:
            result = await driven
        except BaseException as error:
            self.append(
                "error", seq, type(error), driven.suspended, self.place(scope.lane) if driven.suspended else None
            )
            raise
        finally:
            current.reset(token)
        self.append("return", seq, result, driven.suspended, self.place(scope.lane) if driven.suspended else None)
        return result

    def call_sync(self, name: str, value: Any, body: Callable[[], Any]) -> Any:
        scope = here()
        assert scope is not None
        seq = self.append("call", scope.lane.path, name, value)
        token = current.set(scope.inside(seq, live=True))
        try:
            result = body()
        finally:
            current.reset(token)
        self.append("return", seq, result, False, None)
        return result

    def arm(self, scope: Scope, function: str, seconds: float) -> Any:
        if function.startswith(LOCK_TAKEN):
            return _Lock()
        return _Armed(self, scope.lane, scope.lane.count("timer", scope.live), function)


class _Lock(Timer):
    """A lock of the program that is taken: whose turn it is, these sessions do not decide."""

    live = True
    comes = pending = False


class _Armed:
    live = True
    comes = pending = False

    def __init__(self, session: Recording, lane: Lane, n: int, function: str) -> None:
        self._session, self._lane, self._n, self._function = session, lane, n, function

    def fired(self) -> None:
        place = self._session.place(self._lane) if self._function == "asyncio.timer" else None
        self._session.append("timer", self._lane.path, self._n, self._function, place)


class Replay(_Base):
    """Answers each lane's calls in recorded order, the outcomes in the order of the schedule."""

    recording = False

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.log = log
        self.calls: dict[str, list[int]] = defaultdict(list)
        self.outcome: dict[int, int] = {}
        self.timers: dict[tuple[str, int], int] = {}
        events, places = [], PlaceIndex()
        self._numbers = {entry[1]: seq for seq, entry in enumerate(log, 1) if entry[0] == "lane"}
        for seq, entry in enumerate(log, 1):
            if entry[0] == "call":
                self.calls[entry[1]].append(seq)
                continue
            if entry[0] in ("return", "error"):
                self.outcome[entry[1]] = seq
                lane = log[entry[1] - 1][1]
            elif entry[0] == "timer":
                self.timers[entry[1], entry[2]] = seq
                lane = entry[1]
            else:
                continue
            events.append(seq)
            if entry[4] is not None:
                about = json.loads(entry[4].partition(b":")[2]) if entry[4] else None
                places.add(seq, self._numbers.get(lane, -1) if lane else 0, about)
        places.finish()
        self.failure: BaseException | None = None
        self.schedule = Schedule(
            events,
            failure=lambda: Differs(*self.failure.args),  # type: ignore[union-attr]
            stuck=lambda waiting: self._stuck(),
            places=places,
        )
        self.progress = self.schedule.progress
        self.progress.follow = self._follow
        self.threads = self.schedule.threads
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.schedule.close()

    def _follow(self, lane: Lane) -> None:
        lane.state = self
        if lane.parent is not None:
            lane.id = self._numbers.get(lane.path, -1)
        if lane.id >= 0:
            self.progress.known_as(lane, lane.id)

    def _stuck(self) -> BaseException:
        self.failure = self.failure or Differs("stuck")
        return self.failure

    def fail(self, *what: Any) -> BaseException:
        self.failure = self.failure or Differs(*what)
        self.schedule.fail()
        return self.failure

    def _next(self, name: str, value: Any) -> tuple[int, tuple[Any, ...], Lane]:
        if self.failure is not None:
            raise Differs(*self.failure.args)
        scope = here()
        assert scope is not None
        with self._lock:
            left = self.calls[scope.lane.path]
            seq = left.pop(0) if left else 0
        if not seq or self.log[seq - 1][2:] != (name, value):
            raise self.fail(scope.lane.path, name, value, self.log[seq - 1] if seq else None)
        answer = self.outcome.get(seq, 0)
        if not answer:
            raise self.fail("no outcome", name, value)
        return answer, self.log[answer - 1], scope.lane

    async def call(self, name: str, value: Any, body: Callable[[], Awaitable[Any]]) -> Any:
        seq, entry, lane = self._next(name, value)
        await self.schedule.wait_async(seq, entry[3], lane)
        if entry[0] == "error":
            error: BaseException = entry[2]()
            raise error
        return entry[2]

    def call_sync(self, name: str, value: Any, body: Callable[[], Any]) -> Any:
        seq, entry, _ = self._next(name, value)
        self.schedule.wait(seq)
        return entry[2]

    def arm(self, scope: Scope, function: str, seconds: float) -> Any:
        if function.startswith(LOCK_TAKEN):
            return _Lock()
        seq = self.timers.get((scope.lane.path, scope.lane.count("timer", scope.live)))
        return _Held(self.schedule, seq, scope.lane)

    def leftovers(self) -> list[int]:
        return sorted(itertools.chain.from_iterable(self.calls.values()))


class _Held:
    live = pending = False

    def __init__(self, schedule: Schedule, seq: int | None, lane: Lane) -> None:
        self._schedule, self._seq, self._lane = schedule, seq, lane
        self.comes = seq is not None
        self._ticket: Any = None

    def wait(self) -> None:
        self._schedule.wait(self._seq)

    async def wait_async(self) -> None:
        await self._schedule.wait_async(self._seq, True, self._lane)

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        self._ticket = self._schedule.callback(self._seq, callback, anywhere=anywhere, lane=self._lane)

    def cancel(self) -> None:
        if self._ticket is not None:
            self._schedule.cancel(self._ticket)


class Shuffled(asyncio.SelectorEventLoop):
    """What the outside brings comes at another moment each time; the program's own callbacks keep their order, as in every loop.

    Its time is virtual: it goes on only when nothing is ready, to the next timer, and no two timers are for one instant. So
    the order of a program's events is all that there is to its schedule.
    """

    permutes = True

    def __init__(self, seed: int) -> None:
        super().__init__(_Skipping(self))
        self._seed = seed  # no generator: in a recorded run its draws would be the program's
        self._count = 0
        self._late: list[Any] = []
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self._count += 1
        return super().call_at(when + self._count * 1e-7, callback, *args, context=context)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()  # virtual time would run out before a real thread has ended

    def _draw(self, _: object) -> int:
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64
        return self._seed >> 33

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if self._late:
            for handle in self._late:
                ready.insert(self._draw(None) % (len(ready) + 1), handle)
            self._late = []
        elif any(map(_of_the_program, ready)):
            outside = [handle for handle in ready if not _of_the_program(handle)]
            self._late = [handle for handle in outside if self._draw(None) % 2]
            for handle in self._late:
                ready.remove(handle)
        super()._run_once()  # type: ignore[misc]


class _Skipping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait for a timer: puts the loop's clock forward."""

    def __init__(self, loop: Shuffled) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(timeout if timeout is None else 0)
        if timeout and not found:
            self._loop.now += timeout
        return found


def _of_the_program(handle: Any) -> bool:
    scope = handle._context.get(current)
    ours = (getattr(handle._callback, "__module__", None) or "").startswith("tracekit.")
    return ours or (scope is not None and not scope.live)


def misread_places(monkeypatch: pytest.MonkeyPatch, *, by: int) -> None:
    """A deliberate mistake: from now on replays read every place so many callbacks too late, or too early."""
    read: Any = PlaceIndex._append

    def misread(self: Any, lane: int, seq: int, count: int) -> None:
        read(self, lane, seq, max(0, count + by))

    monkeypatch.setattr(PlaceIndex, "_append", misread)
