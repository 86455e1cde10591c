"""A partial replay: chosen kinds of steps are live, and a new run is written that names the one it branches from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from .._capture import instrumentation
from .._journal.store import Store
from .._policy.once import under_policies
from .._runtime.around import AroundStep
from .._runtime.lane import ROOT, Lane
from .._runtime.progress import Progress
from .._runtime.recorder import Recording, encode_reads
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay, ReplayedStep, ReplayedTimer
from .._runtime.session import Log, Outcome, Refusal, Scope, Step, UndoLog
from .._runtime.step import Request, Spec
from .._values import canonical, to_json
from ..errors import TracekitError
from .children import RecordedChildren
from .ending import End, end_log
from .environment import environment

__all__ = ["PartialReplay", "branch", "goes_live", "seal_branch"]

# -- partial replays ----------------------------------------------------------------------------------------------------
#
# Partial replay: one in which some steps go live, written as a new run that names its origin.
#
# Every other step is answered from the recorded run and copied into the new one. A step declared irreversible never goes
# live.

T = TypeVar("T")

#: Entries that follow from outcomes: a live step with another outcome changes them, and they are reported like that one.
_OUTCOMES: Final = frozenset(("final.response",))


def goes_live(spec: Spec, live: frozenset[str]) -> bool:
    """Whether a step of this kind (``"llm"``, or ``"tool:search"`` for one name) is among those that go live."""
    if spec.side_effect == "irreversible":
        return False
    return spec.family in live or f"{spec.family}:{spec.name}" in live


class PartialReplay:
    """A session made of two: ``replay`` answers, ``recording`` (the new run) keeps what happened.

    Kinds of steps go ``live`` from the recorded step ``since`` on.
    """

    recording: Final = False
    reach: Final = None
    decides: Final = False

    def __init__(self, replay: Replay, recording: Recording, live: frozenset[str], since: int) -> None:
        self.replay: Final = replay
        self.new: Final = recording
        self.live: Final = live
        self._since: Final = since
        self.run_id: Final = replay.run_id
        self.log: Final = Log(replay.trace, live)
        self.state: Final = replay.state
        self.report: Final = replay.report
        self.threads: Final = replay.threads
        self.progress: Final = replay.progress
        recording.progress = _Mirrored(self)
        #: The new run as its live steps see it.
        self._seen: Final = under_policies(recording)
        self._lanes: dict[Lane, Lane] = {}
        #: The lanes of the recorded run, by those of the new one.
        self.originals: Final[dict[Lane, Lane]] = {}
        #: What a step of the recorded run is in the new one.
        self._seqs: dict[int, int] = {ROOT: ROOT}

    @property
    def redactor(self) -> Redactor:
        return self.replay.redactor

    @property
    def warnings(self) -> list[str]:
        return self.replay.warnings

    def validated(self, scope: Scope, spec: Spec) -> None:
        self.new.validated(self._mirrored(scope), spec)

    # -- steps -----------------------------------------------------------------------------------------------------------

    def begin(self, scope: Scope, request: Request) -> Step:
        mirrored = self._mirrored(scope)
        if goes_live(request.spec, self.live) and self._is_behind(scope, request.spec.family):
            seq = self.replay.pass_over(scope, request.spec)
            made = self._seen.begin(mirrored, request)
            if not made.live:
                return made  # an earlier call of the new run answers it
            self.replay.report.allow("live", f"{request.spec.family} {request.spec.name!r} went live", step=seq)
            return LiveStep(self, made, request.spec, seq)
        step = self.replay.begin(scope, request)
        copy = self.new.begin(mirrored, request.unkeyed())
        self._seqs[step.seq] = copy.seq
        return CopiedStep(step, copy)

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        live = family in self.live and self._is_behind(scope, family)
        return not live and self.replay.comes_next(scope, family, name)

    def _is_behind(self, scope: Scope, family: str) -> bool:
        """Whether the step from which on steps go live has been made, or is the next of this family here."""
        return not self._since or self.replay.upcoming(scope, family) >= self._since

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        recorded = self.replay.refuse(scope, request, error)
        if recorded is not self.replay.failure:
            self.new.refuse(self._mirrored(scope), request, error)
        return recorded

    def note(self, scope: Scope, type: str, name: str, **fields: Any) -> int:
        if type in _OUTCOMES and self.replay.report.differences:
            seq = self.replay.note_otherwise(scope, type, name, fields.get("output"))
        else:
            seq = self.replay.note(scope, type, name, **fields)
        self.new.note(self._mirrored(scope), type, name, **fields)
        return seq

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        self.replay.identify(agent, identity)
        self.new.identify(agent, identity)

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        value = self.replay.clock_read(scope, function, real)
        return self.new.clock_read(self._mirrored(scope), function, lambda: value)

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        value = self.replay.library_clock(scope, function, library, real)
        return self.new.library_clock(self._mirrored(scope), function, library, lambda: value)

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        value = self.replay.library_draw(scope, function, library, real)
        return self.new.library_draw(self._mirrored(scope), function, library, lambda: value)

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        value = self.replay.question(scope, function, real, agree)
        return self.new.clock_read(self._mirrored(scope), function, lambda: value)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        value = self.replay.random_read(scope, function, real)
        return self.new.random_read(self._mirrored(scope), function, lambda: value)

    def arm(self, scope: Scope, function: str, seconds: float) -> ReplayedTimer:
        timer = self.replay.arm(scope, function, seconds)
        copy = self.new.arm(self._mirrored(scope), function, seconds)
        about = {key: value for key, value in timer.about.items() if key in ("done", "error", "hop")}
        timer.on_delivery = lambda: copy.fired(about)
        return timer

    def snapshot(self, name: str, state: Any) -> Any:
        recorded = self.replay.snapshot(name, state)
        self.new.snapshot(name, state if recorded is None else recorded)
        return recorded

    def input_read(self, scope: Scope, kind: str, name: str, value: Any, *, own: bool) -> Any:
        served = self.replay.input_read(scope, kind, name, value, own=own)
        return self.new.input_read(self._mirrored(scope), kind, name, served, own=own)

    def open_lanes(self) -> list[Lane]:
        return self.replay.open_lanes()

    def owed_by(self, lanes: list[Lane]) -> bool:
        return self.replay.owed_by(lanes)

    def part_ended(self, step: int, name: str, result: object) -> None:
        pass

    @property
    def undo_log(self) -> UndoLog | None:
        return None  # what is undone follows from what went live

    def starts(self, lane: Lane) -> None:
        pass

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        self.replay.skip_deliveries(here, tasks)

    def fail(self, error: Any) -> Any:
        return self.replay.fail(error)

    def _mirrored(self, scope: Scope) -> Scope:
        """The scope in the new run that corresponds to a scope of the replay."""
        return Scope(
            self._seen, self.lane(scope.lane), self._seqs.get(scope.parent, ROOT), scope.agent, 0, call=scope.call
        )

    def lane(self, lane: Lane) -> Lane:
        """The lane of the new run that corresponds to ``lane`` of the replay."""
        found = self._lanes.get(lane)
        if found is None:
            if lane.parent is None:
                found = Lane("", 1, None, id=0, owner=lane.owner)
            else:
                found = Lane(lane.name, lane.n, self.lane(lane.parent), owner=lane.owner)
            self._lanes[lane] = found
            self.originals[found] = lane
        return found


class _Mirrored(Progress):
    """The places of events in a new run, whose callbacks are those of the replay."""

    __slots__ = ("_session",)

    def __init__(self, session: PartialReplay) -> None:
        super().__init__()
        self._session: Final = session

    def place(self, lane: Lane, number: Callable[[Lane], int], *, hop: bool = False) -> bytes:
        session = self._session
        return session.progress.place(session.originals[lane], lambda one: number(session.lane(one)), hop=hop)

    @property
    def unplaced(self) -> int | None:
        return self._session.progress.unplaced


class LiveStep(AroundStep):
    """A step that is made live in a replay; it is recorded in the new run and compared with the old one."""

    __slots__ = ("_out", "_recorded", "_session", "_spec")

    def __init__(self, session: PartialReplay, inner: Step, spec: Spec, recorded: int | None) -> None:
        super().__init__(inner)
        self._session: Final = session
        self._spec: Final = spec
        self._recorded: Final = recorded
        self._out = False

    def body(self) -> Scope:
        self._away(True)
        return self.inner.body()

    def _away(self, away: bool) -> None:
        """A block around a live call, during which nothing counts as stuck."""
        if away is not self._out:
            self._out = away
            threads = self._session.threads
            (threads.away if away else threads.back)()

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self._away(False)
        self.inner.done(output, info=info, data=data)
        self._compare(output)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._away(False)
        self.inner.failed(error, output=output, info=info)
        self._compare({"error": str(error)})

    def _compare(self, output: object) -> None:
        """Note how the live outcome differs from the recorded one."""
        self._session.replay.compare_outcome(self._recorded, self._spec, to_json(output))


class CopiedStep(Step):
    """A step answered from the recorded run, and copied into the new one as it is answered."""

    __slots__ = ("copy", "live", "seq", "session", "step")

    deferred: Final = False

    def __init__(self, step: ReplayedStep, copy: Step) -> None:
        self.step: Final = step
        self.copy: Final = copy
        self.seq: Final = step.seq
        self.live: Final = step.live
        self.session: Final = step.session

    def body(self) -> Scope:
        scope = self.step.scope
        return scope.inside(self.seq, live=False)

    def holds(self, instance: object) -> None:
        self.step.holds(instance)
        self.copy.holds(instance)

    def resumed(self) -> None:
        self.copy.resumed()

    def answer(self) -> Outcome:
        return self._answered(self.step.answer())

    async def answer_async(self) -> Outcome:
        return self._answered(await self.step.answer_async())

    def next_chunk(self) -> Outcome | None:
        self.copy.resumed()
        return self._given(self.step.next_chunk())

    async def next_chunk_async(self) -> Outcome | None:
        self.copy.resumed()
        return self._given(await self.step.next_chunk_async())

    def upcoming(self) -> Mapping[str, Any] | None:
        return self.step.upcoming()

    def rest(self) -> Iterator[Outcome]:
        return self.step.rest()

    def on_next(self, then: Callable[[Outcome], object]) -> Callable[[], object]:
        return self.step.on_next(lambda outcome: then(self._next(outcome)))

    def take_next(self) -> Outcome:
        return self._next(self.step.take_next())

    def _next(self, outcome: Outcome) -> Outcome:
        kind = outcome.entry.get("type")
        if kind == self.step.spec.types.chunk:
            self._given(outcome)
        elif kind is not None:  # else it is the failure of the replay
            self._answered(outcome)
        return outcome

    def alike(self, recorded: object, actual: object) -> bool:
        return self.step.alike(recorded, actual)

    def ahead(self, key: str) -> str | None:
        return self.step.ahead(key)

    def _answered(self, outcome: Outcome) -> Outcome:
        if outcome.error is not None:
            self.copy.failed(outcome.error, output=outcome.output, info=outcome.meta)
        else:
            self.copy.done(outcome.output, info=outcome.meta)
        return outcome

    def _given(self, chunk: Outcome | None) -> Outcome | None:
        if chunk is not None:
            self.copy.chunk(chunk.output, info=chunk.meta)
        return chunk

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        self.copy.chunk(output, info=info)

    def done(self, output: object, *, info: Mapping[str, Any] | None = None, data: bytes | None = None) -> None:
        self.step.done(output, info=info)
        self.copy.done(output, info=info, data=data)

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self.step.failed(error, output=output, info=info)
        self.copy.failed(error, output=output, info=info)


# -- the new run -------------------------------------------------------------------------------------------------------
#
# The new run that a partial replay writes: it names the run that it branches from.


def branch(session: Replay, store: Store, live: Iterable[str], given: Any, since: int) -> PartialReplay:
    """Open a run in ``store`` for a replay of ``session`` in which ``live`` steps go live, from step ``since`` on; ``given`` is the run's
    input."""
    new = Recording(store.create(encode_read=encode_reads), session.redactor)
    new.state.partial = True
    new.state.children = RecordedChildren(new)
    kinds = frozenset(live)
    about = {
        "origin": {"run_id": session.run_id, "head": session.trace.status.head},
        "live": sorted(kinds),
        "environment": environment(instrumentation.packages()),
    }
    cause = canonical([{"run_id": session.run_id, "seq": 1}])
    name = canonical(session.trace.entry(1).get("name"))
    tail = b',"cause":%b,"name":%b,"input":%b' % (cause, name, new.encoder.encode_whole(given).data)
    new.log.journal.append("run.started", 0, 0, tail + new.meta(about))
    return PartialReplay(session, new, kinds, since)


def seal_branch(partial: PartialReplay, store: Store, error: BaseException | None) -> None:
    """End the new run: completed, or failed with ``error``."""
    new, differences = partial.new, len(partial.replay.report.differences)
    end_log(new, store, lambda: End({"steps": new.steps, "differences": differences}, error))
