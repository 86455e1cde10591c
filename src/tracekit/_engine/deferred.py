"""What a resumed run does not find in its log: steps, ends of spans and timers that come true once the log is open."""

from __future__ import annotations

from asyncio.events import _get_running_loop
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .beside import can_go_on
from .gate import Outcome
from .recorded import RecordedStep, RecordedTimer
from .replayed import ReplayedStep
from .scope import Scope
from .step import Request

if TYPE_CHECKING:
    from .resumption import Resumption
    from .schedule import Ticket

__all__ = ["DeferredStep", "HeldTimer", "LateTimer", "ResumedSpan", "ResumedTimer"]


class DeferredStep:
    """A step past the end of the log, or one whose outcome the log does not have (``given_up``: its ``seq``).

    ``go`` makes it: after the whole log has been followed, what was cut off is compensated where it can be.
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

    def go(self) -> Any:
        waited = self.session.wait_open(self.spec.family, self.spec.name)
        compensation = self._compensation()
        if compensation is not None:
            compensation.run(self.scope, self.given_up, self.request.input, None)
        return self.session.make(self, waited=waited)

    async def go_async(self) -> Any:
        # Others may have gone on since it was asked for, or since it was first made: its outcome was waited for, in a replay too.
        waited = self.given_up is not None or not self.session.followed
        await self.session.wait_open_async()
        compensation = self._compensation()
        if compensation is not None:
            await compensation.run_async(self.scope, self.given_up, self.request.input, None)
        return self.session.make(self, waited=waited)

    def _compensation(self) -> Any:
        """How to undo what the attempt that was cut off may have done, where no earlier recovery has."""
        if self.given_up is None or self.session.log.undone(self.given_up):
            return None
        return self.spec.compensation

    def body(self) -> Scope:
        raise AssertionError("a deferred step is made by go()")

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("a deferred step is made by go()")

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        raise AssertionError("a deferred step is made by go()")

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        raise AssertionError("a deferred step is made by go()")

    def answer(self) -> Outcome:
        raise AssertionError("a deferred step is made by go()")

    async def answer_async(self) -> Outcome:
        raise AssertionError("a deferred step is made by go()")

    def next_chunk(self) -> Outcome | None:
        raise AssertionError("a deferred step is made by go()")

    async def next_chunk_async(self) -> Outcome | None:
        raise AssertionError("a deferred step is made by go()")

    def lazy(self) -> str | None:
        raise AssertionError("a deferred step is made by go()")


class ResumedSpan(ReplayedStep):
    """A span that was open when the log was cut off: it ends past the end of the log."""

    __slots__ = ("_run",)

    def __init__(self, run: Resumption, scope: Scope, request: Request, seq: int) -> None:
        super().__init__(run.log, scope, request, seq)
        self._run: Final = run

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        recorded = RecordedStep(self._run, self.scope, self.request, self.seq)
        self._run.late(lambda: recorded.done(output, info=info, data=data))

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        if self._run.log.failure is None:
            recorded = RecordedStep(self._run, self.scope, self.request, self.seq)
            self._run.late(lambda: recorded.failed(error, output=output, info=info))


class LateTimer:
    """What one thread hands to another past the end of the log: it happens at once, and is written in its turn."""

    __slots__ = ("_real", "_run")

    comes: Final = False
    about: Final[Mapping[str, Any]] = {}

    def __init__(self, run: Resumption, real: RecordedTimer) -> None:
        self._run: Final = run
        self._real: Final = real

    @property
    def live(self) -> bool:
        return True

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        self._run.late(lambda: self._real.fired(about))

    def wait(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    async def wait_async(self) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        raise AssertionError("a live timer runs on the real clock")

    def cancel(self) -> None:
        pass


class HeldTimer(LateTimer):
    """An item put into a queue, or taken, past the end of the log: not before the others have had theirs from it."""

    __slots__ = ("_function", "_now", "_waited")

    def __init__(self, run: Resumption, real: RecordedTimer, function: str) -> None:
        super().__init__(run, real)
        self._function: Final = function
        self._now = False
        #: Whether the other tasks of the loop have gone on before it: in a replay they do too.
        self._waited = False

    @property
    def live(self) -> bool:
        return self._now or self._run.followed

    def comes_yet(self) -> bool:
        loop = _get_running_loop()
        if loop is None or can_go_on(loop):
            self._waited = self._run.wait_open("queue", self._function)
        else:  # it can't be kept from it
            self._now = True
        return self.live

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        super().fired({**(about or {}), "waited": True} if self._waited else about)


class ResumedTimer:
    """A sleep or deadline that had not come when the log was cut off: ``live`` once the log is open.

    ``wait`` and ``on_fire`` return and call then: the capture point looks at ``live``, runs it on the real clock and tells.
    """

    __slots__ = ("_real", "_run", "_ticket")

    comes: Final = False
    about: Final[Mapping[str, Any]] = {}

    def __init__(self, run: Resumption, real: RecordedTimer) -> None:
        self._run: Final = run
        self._real: Final = real
        self._ticket: Ticket | None = None

    @property
    def live(self) -> bool:
        return self._run.followed

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        self._real.fired(about)

    def wait(self) -> None:
        self._run.log.schedule.wait(None)

    async def wait_async(self) -> None:
        await self._run.log.schedule.wait_async(None)

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        self._ticket = self._run.log.schedule.callback(None, callback, anywhere=anywhere)

    def cancel(self) -> None:
        if self._ticket is not None:
            self._run.log.schedule.cancel(self._ticket)
