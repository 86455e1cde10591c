"""Wrappers around sessions and steps, which delegate everything that they do not decide themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..errors import ReplayError, TracekitError
from .lane import Lane
from .redaction import Redactor
from .session import Log, Refusal, Reporting, RunState, Scope, Session, Step, ThreadHooks, Timer, UndoLog
from .step import Note, Request, Spec

if TYPE_CHECKING:
    from .progress import Progress

__all__ = ["Around", "AroundStep"]

T = TypeVar("T")


class Around:
    """A session around the session ``inner``; a subclass adds a rule."""

    reach: Callable[[Any, str | None], BaseException] | None = None
    decides: bool = False

    def __init__(self, inner: Session) -> None:
        self.inner: Final = inner
        self.run_id: Final = inner.run_id
        self.log: Final[Log] = inner.log
        self.state: Final[RunState] = inner.state
        self.report: Final[Reporting] = inner.report
        self.redactor: Final[Redactor] = inner.redactor
        self.progress: Final[Progress | None] = inner.progress  # asked for each callback of an event loop

    @property
    def threads(self) -> ThreadHooks | None:
        return self.inner.threads

    @property
    def recording(self) -> bool:
        return self.inner.recording

    @property
    def warnings(self) -> list[str]:
        return self.inner.warnings

    def begin(self, scope: Scope, request: Request) -> Step:
        return self.inner.begin(scope, request)

    def model(self, name: str) -> str:
        return self.inner.model(name)

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        return self.inner.decided(type, name, input, output)

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        return self.inner.comes_next(scope, family, name)

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        return self.inner.refuse(scope, request, error)

    def validated(self, scope: Scope, spec: Spec) -> None:
        self.inner.validated(scope, spec)

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        self.inner.identify(agent, identity)

    def fail(self, error: ReplayError) -> ReplayError:
        return self.inner.fail(error)

    def note(self, scope: Scope, note: Note) -> int:
        return self.inner.note(scope, note)

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        return self.inner.clock_read(scope, function, real)

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        return self.inner.library_clock(scope, function, library, real)

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        return self.inner.question(scope, function, real, agree)

    def asked_again(self, scope: Scope, function: str) -> None:
        self.inner.asked_again(scope, function)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        return self.inner.random_read(scope, function, real)

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        return self.inner.library_draw(scope, function, library, real)

    def snapshot(self, name: str, state: Any) -> Any:
        return self.inner.snapshot(name, state)

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        return self.inner.input_read(scope, kind, name, value, own=own)

    def arm(self, scope: Scope, function: str, seconds: float) -> Timer:
        return self.inner.arm(scope, function, seconds)

    def open_lanes(self) -> list[Lane]:
        return self.inner.open_lanes()

    def owed_by(self, lanes: list[Lane]) -> bool:
        return self.inner.owed_by(lanes)

    def part_ended(self, step: int, name: str, result: object) -> None:
        self.inner.part_ended(step, name, result)

    @property
    def undo_log(self) -> UndoLog | None:
        return self.inner.undo_log

    def starts(self, lane: Lane) -> None:
        self.inner.starts(lane)

    def importing(self, scope: Scope, module: str) -> Scope | None:
        return self.inner.importing(scope, module)

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        self.inner.skip_deliveries(here, tasks)


class AroundStep(Step):
    """A step around the live step ``inner``; a subclass adds to its outcome."""

    __slots__ = ("inner", "seq")

    live: Final = True
    deferred: Final = False

    def __init__(self, inner: Step) -> None:
        self.inner: Final = inner
        self.seq: Final = inner.seq

    def holds(self, instance: object) -> None:
        self.inner.holds(instance)

    def body(self) -> Scope:
        return self.inner.body()

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        self.inner.chunk(output, info=info)

    def resumed(self) -> None:
        self.inner.resumed()

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self.inner.done(output, info=info, data=data)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self.inner.failed(error, output=output, info=info)
