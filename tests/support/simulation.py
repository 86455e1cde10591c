"""A recording and a replay as small as can be: a list of events, the real lanes, timers and schedule."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from tracekit._capture import threads as concurrency
from tracekit._capture import timers
from tracekit._capture.calls import drive
from tracekit._runtime.context import Lane, Scope, current
from tracekit._runtime.schedule import Schedule, place
from tracekit._runtime.session import RunState, here, owner


class Differs(BaseException):
    """The replayed program did something else."""


class _Base:
    run_id = "r"
    threads: Any = None

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.state = RunState(live=True, ordered=False)

    def __enter__(self) -> Any:
        concurrency.activate()
        timers.activate()
        self._token = current.set(Scope(self, Lane("", 0, None, id=0, owner=owner()), 1))  # type: ignore[arg-type]
        return self

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)
        self.state.ended = True
        assert timers.deactivate() == []
        assert concurrency.deactivate() == []

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
        self._lock = threading.Lock()

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
            self.append("error", seq, type(error), driven.suspended, place() if driven.suspended else None)
            raise
        finally:
            current.reset(token)
        self.append("return", seq, result, driven.suspended, place() if driven.suspended else None)
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
        return _Armed(self, scope.lane.path, scope.lane.count("timer", scope.live), function)


class _Armed:
    live = True
    comes = pending = False

    def __init__(self, session: Recording, lane: str, n: int, function: str) -> None:
        self._session, self._lane, self._n, self._function = session, lane, n, function

    def fired(self) -> None:
        near = place() if self._function == "asyncio.timer" else None
        self._session.append("timer", self._lane, self._n, self._function, near)


class Replay(_Base):
    """Answers each lane's calls in recorded order, the outcomes in the order of the schedule."""

    recording = False

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.log = log
        self.calls: dict[str, list[int]] = defaultdict(list)
        self.outcome: dict[int, int] = {}
        self.timers: dict[tuple[str, int], int] = {}
        events, near = [], []
        for seq, entry in enumerate(log, 1):
            if entry[0] == "call":
                self.calls[entry[1]].append(seq)
                continue
            if entry[0] in ("return", "error"):
                self.outcome[entry[1]] = seq
            elif entry[0] == "timer":
                self.timers[entry[1], entry[2]] = seq
            else:
                continue
            events.append(seq)
            suspended = entry[0] == "timer" or entry[3]
            near.append(0 if not suspended else 1 if entry[4] is None else 2 + entry[4])
        self.failure: BaseException | None = None
        self.schedule = Schedule(
            events, failure=lambda: Differs(*self.failure.args), stuck=lambda waiting: self._stuck(), near=near
        )  # type: ignore[union-attr]
        self.threads = self.schedule.threads
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.schedule.close()

    def _stuck(self) -> BaseException:
        self.failure = self.failure or Differs("stuck")
        return self.failure

    def fail(self, *what: Any) -> BaseException:
        self.failure = self.failure or Differs(*what)
        self.schedule.fail()
        return self.failure

    def _next(self, name: str, value: Any) -> tuple[int, tuple[Any, ...]]:
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
        return answer, self.log[answer - 1]

    async def call(self, name: str, value: Any, body: Callable[[], Awaitable[Any]]) -> Any:
        seq, entry = self._next(name, value)
        await self.schedule.wait_async(seq, entry[3])
        if entry[0] == "error":
            error: BaseException = entry[2]()
            raise error
        return entry[2]

    def call_sync(self, name: str, value: Any, body: Callable[[], Any]) -> Any:
        seq, entry = self._next(name, value)
        self.schedule.wait(seq)
        return entry[2]

    def arm(self, scope: Scope, function: str, seconds: float) -> Any:
        return _Held(self.schedule, self.timers.get((scope.lane.path, scope.lane.count("timer", scope.live))))

    def leftovers(self) -> list[int]:
        return sorted(itertools.chain.from_iterable(self.calls.values()))


class _Held:
    live = pending = False

    def __init__(self, schedule: Schedule, seq: int | None) -> None:
        self._schedule, self._seq = schedule, seq
        self.comes = seq is not None
        self._ticket: Any = None

    def wait(self) -> None:
        self._schedule.wait(self._seq)

    async def wait_async(self) -> None:
        await self._schedule.wait_async(self._seq)

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        self._ticket = self._schedule.callback(self._seq, callback, anywhere=anywhere)

    def cancel(self) -> None:
        if self._ticket is not None:
            self._schedule.cancel(self._ticket)


class Shuffled(asyncio.SelectorEventLoop):
    """Runs what is ready in another order each round; tracekit's own callbacks keep their place at the front.

    Its time is virtual: it goes on only when nothing is ready, to the next timer, and no two timers are for one instant. So
    the order of a program's events is all that there is to its schedule.
    """

    permutes = True

    def __init__(self, seed: int) -> None:
        super().__init__(_Skipping(self))
        self._seed = seed  # no generator: in a recorded run its draws would be the program's
        self._count = 0
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self._count += 1
        return super().call_at(when + self._count * 1e-7, callback, *args, context=context)

    def _draw(self, _: object) -> int:
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64
        return self._seed >> 33

    def _run_once(self) -> None:
        ready = list(self._ready)  # type: ignore[attr-defined]
        own = [handle for handle in ready if _ours(handle)]
        others = [handle for handle in ready if handle not in own]
        others.sort(key=self._draw)
        self._ready.clear()  # type: ignore[attr-defined]
        self._ready.extend(own + others)  # type: ignore[attr-defined]
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


def _ours(handle: Any) -> bool:
    return (getattr(handle._callback, "__module__", None) or "").startswith("tracekit.")
