"""What a run has done that can be undone: what is completed, what failed and may have been done, and what is under way."""

from __future__ import annotations

from _thread import LockType, allocate_lock, get_ident
from asyncio import AbstractEventLoop, Future, get_running_loop
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from .. import _reality
from .._engine.scope import current

if TYPE_CHECKING:
    from .compensation import Completed

__all__ = ["Ledger", "UnderWay", "ledger"]


#: How long (s) a thread waits at most before it looks again: not all that it waits for is told.
_LOOK: Final = 0.05


class UnderWay:
    """A call that can be undone, with all its attempts, until it has come to its end. ``seq`` is its last attempt."""

    __slots__ = ("loop", "seq", "thread")

    def __init__(self) -> None:
        self.thread: Final = get_ident()
        self.loop: Final[AbstractEventLoop | None] = _get_running_loop()
        self.seq = 0

    @property
    def here(self) -> bool:
        """Whether it is this very thread's, which can't wait for it without awaiting."""
        return self.thread == get_ident()


class Ledger:
    """The steps of one run by ``seq``. Every change wakes whoever waits for one."""

    def __init__(self) -> None:
        self._lock: Final = allocate_lock()
        self._steps: dict[int, Completed] = {}
        self._under_way: set[UnderWay] = set()
        #: Steps whose compensation has failed: it is not run again.
        self.stuck: Final[set[int]] = set()
        #: Steps that are waited for, or undo others, while their bodies run.
        self.open: Final[set[int]] = set()
        self._gates: list[LockType] = []
        self._futures: list[tuple[AbstractEventLoop, Future[None]]] = []

    # -- writing ---------------------------------------------------------------------------------------------------------

    def begin(self) -> UnderWay:
        one = UnderWay()
        with self._lock:
            self._under_way.add(one)
        return one

    def end(self, one: UnderWay) -> None:
        with self._lock:
            self._under_way.discard(one)
        self.changed()

    def add(self, one: Completed) -> None:
        """``one`` can be undone from now on, and with it what it did inside."""
        with self._lock:
            self._forget_inside(one.seq)
            self._steps[one.seq] = one
        self.changed()

    def undone(self, seq: int, *, failed: bool = False) -> None:
        """Step ``seq`` has been undone as a whole, or that has failed."""
        with self._lock:
            self._steps.pop(seq, None)
            if failed:
                self.stuck.add(seq)
            else:
                self._forget_inside(seq)

    def forget_inside(self, seq: int) -> None:
        with self._lock:
            self._forget_inside(seq)

    def _forget_inside(self, seq: int) -> None:
        for inner in [other.seq for other in self._steps.values() if seq in other.within]:
            del self._steps[inner]

    # -- reading ---------------------------------------------------------------------------------------------------------

    def take(self, seq: int | None = None, *, but: Iterable[int] = ()) -> Completed | None:
        """Step ``seq``, or the last one that nothing goes on of; each is given out once."""
        with self._lock:
            if seq is not None:
                return self._steps.pop(seq, None)
            left = set(but)
            found = [one for one, step in self._steps.items() if one not in left and not step.goes_on]
            return self._steps.pop(max(found)) if found else None

    def has(self, seq: int) -> bool:
        return seq in self._steps

    def waits(self, *, elsewhere: bool) -> bool:
        """Whether something is under way (``elsewhere``: in other threads), or goes on though it was given up."""
        with self._lock:
            return any(not (elsewhere and one.here) for one in self._under_way) or any(
                step.goes_on for step in self._steps.values()
            )

    def any_under_way(self, of: Callable[[int], bool]) -> bool:
        """Whether a step is under way of which this holds."""
        with self._lock:
            return any(one.seq and of(one.seq) for one in self._under_way)

    @property
    def standing(self) -> set[int]:
        """What nobody has tried to undo."""
        with self._lock:
            return {*self._steps, *(one.seq for one in self._under_way if one.seq)}

    def asynchronous(self) -> list[str]:
        """The names of compensations that must be awaited."""
        with self._lock:
            compensations = [one.compensation for one in self._steps.values()]
        return [one.captured.spec.name for one in compensations if one.asynchronous]

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        with self._lock:
            gates, self._gates = self._gates, []
            futures, self._futures = self._futures, []
        for gate in gates:
            gate.release()
        for loop, future in futures:
            with suppress(RuntimeError):  # a loop that is closed has nobody waiting
                loop.call_soon_threadsafe(_wake, future, context=Context())

    def wait(self, over: Callable[[], bool], seconds: float) -> None:
        """Hold this thread until ``over``, for ``seconds`` at most."""
        end = _reality.monotonic() + seconds
        while True:
            gate = allocate_lock()
            gate.acquire()
            with self._lock:
                self._gates.append(gate)
            rest = end - _reality.monotonic()
            if over() or rest <= 0:
                return
            gate.acquire(timeout=min(rest, _LOOK))

    async def wait_async(self, over: Callable[[], bool], seconds: float) -> None:
        """Suspend this task until ``over``, for ``seconds`` at most."""
        loop = get_running_loop()
        late: list[bool] = []

        def enough() -> None:
            late.append(True)
            self.changed()

        timer = _timer(loop, seconds, enough)
        try:
            while not (over() or late):
                future = loop.create_future()
                with self._lock:
                    self._futures.append((loop, future))
                if over() or late:  # just now
                    return
                await future
        finally:
            timer.cancel()


def _timer(loop: AbstractEventLoop, seconds: float, act: Callable[[], object]) -> Any:
    token = current.set(None)  # this timer is none of the run's own
    try:
        return loop.call_later(seconds, act)
    finally:
        current.reset(token)


def _wake(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_ledgers: Final[WeakKeyDictionary[Any, Ledger]] = WeakKeyDictionary()
_lock: Final = allocate_lock()


def ledger(session: Any) -> Ledger:
    """The ledger of a run."""
    found = _ledgers.get(session)
    if found is None:
        with _lock:
            found = _ledgers.get(session) or _ledgers.setdefault(session, Ledger())
    return found
