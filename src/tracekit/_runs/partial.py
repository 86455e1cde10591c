"""Partial replays: selected kinds of steps are live, and a new run is written that names the one it branches from."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, timedelta
from pkgutil import resolve_name
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from .._capture.http import names_model
from .._journal.entry import CHECKS, LOCK_TAKEN, TIMERS, meta_of
from .._journal.store import Store
from .._journal.writer import Journal
from .._policy.policies import under_policies
from .._runtime.around import AroundStep
from .._runtime.callsite import caller
from .._runtime.lane import ROOT, Lane
from .._runtime.matching import differences, steady
from .._runtime.process import process
from .._runtime.progress import Progress
from .._runtime.recorder import Recording, encode_reads
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay, ReplayedStep
from .._runtime.session import Log, Outcome, Refusal, Scope, Step, Timer, UndoLog, outside_the_run
from .._runtime.step import Note, Request, Spec
from .._values import to_json
from ..errors import LiveCallBlockedError, RunStateError, TracekitError
from .children import RecordedChildren
from .ending import End, end_log
from .environment import begin_log, this_program
from .wording import time_span

__all__ = ["BranchedReplay", "Live", "PartialReplay", "branch", "end_branch"]

# -- partial replays ----------------------------------------------------------------------------------------------------
#
# A partial replay executes some steps live, and is written as a new run that names its origin.
#
# Every other step is answered from the recorded run and copied into the new one. A step declared irreversible is never
# live.

T = TypeVar("T")

#: Entries that follow from outcomes: a live step with another outcome changes them, which is reported like the outcome.
_OUTCOMES: Final = frozenset(("final.response",))


#: Clocks that only measure durations: they are the same at any time of day.
_STEADY: Final = ("time.monotonic", "time.perf_counter", "time.process_time", "time.thread_time", "loop.time")
_FUNCTION: Final = re.compile(r"[\w.]+:[\w.]+")


class Live:
    """What is live in a partial replay, by kind, with what replaces the recorded one, or ``None``.

    ``{"llm": "gpt-5"}`` calls that model instead of any other, ``{"llm:gpt-4o": "gpt-5"}`` instead of that one;
    ``{"policy.check": decide}`` has a function decide; ``{"clock": timedelta(days=30)}`` shifts the time of day,
    ``{"clock": datetime(2026, 1, 31)}`` makes the run begin then. Functions are given directly or by name
    (``"module:function"``), times may be texts (``"30d"``, ``"2026-01-31"``). Raises ``ValueError`` for anything else.
    """

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self.kinds: Final = dict(kinds)
        #: The model to call, by the model that the program calls; ``"llm"`` is any.
        self._models: Final[dict[str, str]] = {}
        self._deciders: Final[dict[str, Any]] = {}
        self.clock = "clock" in kinds
        self._moment: timedelta | datetime | date | None = None
        for kind, instead in kinds.items():
            family, _, name = kind.partition(":")
            if family not in ("llm", "tool", "http") and (kind not in CHECKS and kind != "clock"):
                checks = ", ".join(f'"{one}"' for one in CHECKS)
                raise ValueError(
                    f'live takes "llm", "tool" and "http", or one name as in "tool:search", and {checks} and "clock", not {kind!r}'
                )
            if instead is None:
                continue
            if family == "llm":
                if not isinstance(instead, str) or not instead.strip():
                    raise ValueError(f"live[{kind!r}] must be the name of a model, not {instead!r}")
                self._models[name or "llm"] = instead
            elif kind == "clock":
                self._moment = _moment(instead)
            elif kind in CHECKS:
                if not callable(instead) and not (isinstance(instead, str) and _FUNCTION.fullmatch(instead)):
                    raise ValueError(
                        f"live[{kind!r}] must be a function or its name, 'module:function', not {instead!r}"
                    )
                self._deciders[kind] = instead
            else:
                raise ValueError(f"nothing can replace {kind}: live={{{kind!r}}}")

    def load(self) -> None:
        """Import the functions given by name. Raises ``RunStateError`` if one does not exist."""
        for kind, decide in self._deciders.items():
            if isinstance(decide, str):
                self._deciders[kind] = _function(kind, decide)

    def takes(self, spec: Spec) -> bool:
        """Return whether a step is live, by its kind, or its kind and name. An irreversible step never is."""
        if spec.side_effect == "irreversible":
            return False
        if spec.family in self.kinds or f"{spec.family}:{spec.name}" in self.kinds:
            return True
        return spec.family == "llm" and spec.name in self._models.values()

    def model(self, name: str) -> str:
        """Return the model to call instead of this one."""
        return self._models.get(name) or self._models.get("llm") or name

    def is_asked(self, spec: Spec) -> bool:
        """Return whether a call can be made as it is: a model that is to be replaced must not be called."""
        return spec.family != "llm" or spec.name in self._models.values() or self.model(spec.name) == spec.name

    def decides(self, kind: str) -> bool:
        """Return whether a policy check, breaker or detection is decided again."""
        return kind in self.kinds

    def decided(self, kind: str, name: str, input: object, output: object) -> Any:
        """Return the decision that replaces ``output``. Its execution is not part of the run, and nothing live can be
        reached."""
        decide = self._deciders.get(kind)
        if decide is None:
            return output
        return outside_the_run(decide, kind, name, input, output)

    def hour(self, begun_ns: int) -> timedelta | None:
        """Return the shift of the time of day in a run that began then; ``None``: it has the present time."""
        moment = self._moment
        if moment is None or isinstance(moment, timedelta):
            return moment
        begun = datetime.fromtimestamp(begun_ns / 1e9).astimezone()
        if not isinstance(moment, datetime):
            moment = datetime.combine(moment, begun.time())
        return moment.astimezone() - begun

    def named(self) -> dict[str, str]:
        """Return what is live, with functions by name, for another process.

        Raises ``ValueError`` for a function without a name that can be imported.
        """
        named = self.as_dict()
        for kind in self._deciders:
            if not _FUNCTION.fullmatch(named[kind]):
                raise ValueError(
                    f"live[{kind!r}] is called in other processes: name it, 'module:function', not {named[kind]!r}"
                )
        return named

    def as_dict(self) -> dict[str, str]:
        """Return what replaces what, as texts, for the new run's log."""
        return {kind: _named(instead) for kind, instead in sorted(self.kinds.items()) if instead is not None}


def _named(instead: Any) -> str:
    if isinstance(instead, timedelta):
        return f"{instead.total_seconds():g}s"
    if isinstance(instead, date):
        return instead.isoformat()
    return instead if isinstance(instead, str) else f"{instead.__module__}:{instead.__qualname__}"


def _moment(instead: Any) -> timedelta | datetime | date:
    if isinstance(instead, timedelta | date):
        return instead
    text = instead.strip() if isinstance(instead, str) else ""
    try:
        if (shift := time_span(text)) is not None:
            return shift
        return date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            'live["clock"] is how far the hours are shifted ("30d", "-2h", a timedelta) or when the run begins ("2026-01-31", a datetime), '
            f"not {instead!r}"
        ) from None


def _shifted(function: str, then: Any, shift: timedelta) -> Any:
    """Return a shifted clock reading; ``None`` if it is a text with an unknown format."""
    if isinstance(then, datetime):
        if then.tzinfo is not None or function.endswith("utcnow"):
            return then + shift
        return datetime.fromtimestamp(then.timestamp() + shift.total_seconds())  # in local time
    if isinstance(then, int):
        return then + (shift // timedelta(microseconds=1)) * 1000
    if isinstance(then, float):
        return then + shift.total_seconds()
    if isinstance(then, list):  # time.localtime, time.gmtime
        seconds = calendar.timegm(tuple(then[:9])) if function == "time.gmtime" else time.mktime(tuple(then[:9]))
        read = time.gmtime if function == "time.gmtime" else time.localtime
        found = read(seconds + shift.total_seconds())
        return [*found[:9], found.tm_zone, found.tm_gmtoff]
    if isinstance(then, str) and function in ("time.ctime", "time.asctime"):
        return time.asctime(time.localtime(time.mktime(time.strptime(then)) + shift.total_seconds()))
    return None


def _function(kind: str, named: str) -> Callable[[str, str, Any, Any], Any]:
    try:
        found = resolve_name(named)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunStateError(
            f"there is no {named} to decide each {kind}: {error}",
            next_action="name a function that can be imported here, as module:function",
            option="live",
        ) from None
    if not callable(found):
        raise RunStateError(
            f"{named} is to decide each {kind}, and is not a function",
            next_action="name a function, as module:function",
            option="live",
        )
    return found  # type: ignore[no-any-return]


def _server(info: object, input: object) -> str | None:
    """Return the host and port to which a step sends a request; ``None`` for other steps."""
    origin = info.get("origin") if isinstance(info, Mapping) else None
    url = origin or (input.get("url") if isinstance(input, Mapping) else None)
    return urlsplit(url).netloc.rpartition("@")[2] if isinstance(url, str) else None


class BranchedReplay(Replay):
    """A replay in which steps are live, so that the program may take another path than the recorded one."""

    def leave(self) -> None:
        """Leave the recorded path: from now on nothing is held in the recorded order."""
        with self._lock:
            if self.left or self.failure is not None:
                return
            self.left = True
            seq = self.report.consumed and max((one for one in self.index.steps if self._used[one] == 1), default=0)
            self._another_path(seq or 1, caller())
        self.schedule.close()

    def _another_path(self, seq: int, where: str | None) -> None:
        text = f"after step {seq} the program took another path than the recorded one"
        self.report.allow("left", text, step=seq, where=where)

    def _reordered(self, seq: int, what: str) -> None:
        """Another order after a live step with another result follows from that, like a step that is not made: where
        the program starts fewer calls in threads than it did, those that it starts end without waiting for the
        others."""
        since = self._differs_since()
        if since is None or seq < since:
            super()._reordered(seq, what)
        elif not any(one.code == "left" for one in self.report.verdict.allowed):
            self._another_path(since, None)

    def _differs_since(self) -> int | None:
        """Return the first recorded step whose result differs since it was live, and 0 if the clock shows another hour."""
        codes = {"live_differs", "hour"}
        found = (one.facts.get("step") or 0 for one in self.report.verdict.allowed if one.code in codes)
        return min(found, default=None)

    def follows(self, scope: Scope, family: str, same: Callable[[int], bool]) -> bool:
        """Return whether the next step in the lane of ``scope`` is one of this family that is the ``same``, with
        nothing before it."""
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, family)
            return seq is not None and self._next_of_any(state) == seq and same(seq)

    def upcoming(self, scope: Scope, family: str) -> int:
        """Return the next recorded step of this family in the scope's lane; one past the last entry if there is none."""
        with self._lock:
            seq = self._next(self.lanes.of(scope.lane), family)
        return len(self.index) + 1 if seq is None else seq

    def is_same(self, scope: Scope, request: Request) -> Callable[[int], bool]:
        """Return a predicate for whether a recorded step is the requested one."""
        tail = self.comparison.tail(request, scope.agent)
        encoded: list[tuple[Any, bytes]] = []

        def same(seq: int) -> bool:
            if tail is not None and self.comparison.ends_so(seq, tail):
                return True
            if not encoded:
                encoded.append(self.comparison.input(request))
            return self.comparison.is_step(self.trace.entry(seq), request, scope.agent, *encoded[0])

        return same

    def is_same_note(self, scope: Scope, note: Note) -> Callable[[int], bool]:
        """Return a predicate for whether a recorded step with one entry is the requested one."""
        facts = self.comparison.note(scope.agent, note)
        return lambda seq: self.comparison.equal(steady(self.comparison.recorded_note(seq)), steady(facts))

    def pass_over(self, scope: Scope, spec: Spec) -> int | None:
        """Return the recorded step that a live one replaces, skipped with everything inside it; ``None`` if there is
        none."""
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None:
                return None
            self._consume(state, spec.family, seq)
            self._skip_inside(seq)
            scope.lane.last = seq
            self._pass_outcome(seq)
        if self._debugger is not None:
            self._debugger.reached(self, scope, seq)
        return seq

    def found(self, scope: Scope, request: Request) -> ReplayedStep:
        """Off the recorded path: return the recorded step that equals this one, wherever it is; else fail the replay,
        since it can't be answered.

        A read-only step may be repeated.
        """
        spec, same = request.spec, self.is_same(scope, request)
        if self.state.ended:
            raise self.late(spec.family, spec.name, spec.effect)
        with self._lock:
            self.failed.check()
            lane = self.lanes.enter(scope.lane).lane
            lists = [steps for (_, family), steps in self.index.intents.items() if family == spec.family]
            own = self.index.intents.get((lane, spec.family))
            every = [*(own or ()), *(seq for steps in lists if steps is not own for seq in steps)]
            seq = next((one for one in every if not self._used[one] and same(one)), None)
            if seq is None and spec.side_effect == "read_only":
                seq = next(
                    (one for one in every if self._used[one] == 1 and self.index.answer[one] and same(one)), None
                )
            if seq is None:
                raise self.divergences.unanswered(scope, request, (one for one in every if not self._used[one]))
            self.report.consumed += not self._used[seq]
            self._used[seq] = 1
            self._skip_inside(seq)
        return self._made(scope, request, seq)

    def note_otherwise(self, scope: Scope, note: Note) -> int:
        """Do the same as ``note`` for a decision that depends on live results, or is made again: the difference is
        noted, and the program goes on."""
        with self._lock:
            self.failed.check()
            state = self.lanes.enter(scope.lane)
            seq = self._next(state, note.type)
            if seq is None:
                output = self.comparison.encoded(note.output)[1]
                raise self.divergences.exhausted(scope.lane, note.type, note.name, output, state.lane)
            self._consume(state, note.type, seq)
        recorded, actual = self.trace.expand(self.trace.entry(seq)["output"]), self.comparison.encoded(note.output)[0]
        if not self.comparison.equal(recorded, actual):
            found = differences(recorded, actual)
            self._live_differs(seq, note.type, note.name, found)
        return seq

    def other_server(self, seq: int | None, request: Request) -> str:
        """Return which server a live request goes to, in words, if the recorded one went to another."""
        if seq is None:
            return ""
        entry = self.trace.entry(seq)
        then = _server(meta_of(entry).get("info"), self.trace.expand(entry.get("input")))
        now = _server(request.info, request.input)
        if not then or not now or then == now:
            return ""
        return f" at {self.redactor.redact_text(now)[0]}, and at {then} in the recording"

    def compare_outcome(self, seq: int | None, spec: Spec, actual: Any) -> None:
        """Note how the outcome of a live step differs from the recorded one's; headers always differ and are ignored."""
        answer = 0 if seq is None else self.index.answer[seq]
        recorded = self.trace.expand(self.trace.entry(answer).get("output")) if answer else None
        found = [one for one in differences(recorded, actual) if not one["path"].startswith("headers")]
        if found or not answer:
            self._live_differs(seq, spec.family, spec.name, found)

    def _live_differs(self, seq: int | None, family: str, name: str, found: list[dict[str, Any]]) -> None:
        text = f"{family} {name!r} gave a different result than the recorded step"
        self.report.allow("live_differs", text, step=seq, family=family, name=name, differences=found)


class PartialReplay:
    """A session that combines two: ``replay`` answers, ``recording`` (the new run) keeps what happened.

    Kinds of steps are ``live`` from the recorded step ``since`` on. Once something was live, the program may take
    another path than the recorded one. From then on a call is answered by the recorded one that equals it, wherever
    that is; a call that is not in the recording ends the replay, since its result is unknown. Everything else is as in
    a recording.
    """

    recording: Final = False
    reach: Final = None
    decides: Final = False

    def __init__(self, replay: BranchedReplay, recording: Recording, live: Live, since: int) -> None:
        self.replay: Final = replay
        self.new: Final = recording
        self.live: Final = live
        self._since: Final = since
        self._shift: Final = live.hour(replay.trace.entry(1)["ts_ns"])
        replay.may_leave = live.clock
        if live.clock:
            replay.report.allow("hour", f"its clocks showed another hour: {live.as_dict().get('clock', 'today')}")
        self.run_id: Final = replay.run_id
        self.log: Final = Log(replay.trace, frozenset(live.kinds))
        self.state: Final = replay.state
        self.report: Final = replay.report
        self.threads: Final = replay.threads
        self.progress: Final = replay.progress
        recording.progress = _Mirrored(self)
        recording.state.clock = replay.state.clock
        self._clock: Final[Any] = replay.state.clock
        #: The new run as its live steps see it.
        self._seen: Final = under_policies(recording)
        self._lanes: dict[Lane, Lane] = {}
        #: The lanes of the recorded run, by those of the new one.
        self.originals: Final[dict[Lane, Lane]] = {}
        #: The number in the new run of each step of the recorded run.
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
        mirrored, replay, spec = self._mirrored(scope), self.replay, request.spec
        if self.live.takes(spec) and self._is_behind(scope, spec.family):
            if not self.live.is_asked(spec):
                raise replay.fail(_not_another_model(self.run_id, request))
            seq = None if self._leaves(scope, spec.family, lambda seq: True) else replay.pass_over(scope, spec)
            made = self._seen.begin(mirrored, request)
            if not made.live:
                return made  # an earlier call of the new run answers it
            replay.may_leave = True
            where = replay.other_server(seq, request)
            replay.report.allow("live", f"{spec.family} {spec.name!r} went live{where}", step=seq)
            return LiveStep(self, made, spec, seq)
        if not self._leaves(scope, spec.family, replay.is_same(scope, request)):
            step = replay.begin(scope, request)
        elif spec.structural:
            block = self._seen.begin(mirrored, request)
            self._seqs[-block.seq] = block.seq
            return BlockBeside(block, scope)
        else:
            step = replay.found(scope, request)
        copy = self.new.begin(mirrored, request.unkeyed())
        self._seqs[step.seq] = copy.seq
        return CopiedStep(step, copy)

    def _leaves(self, scope: Scope, family: str, same: Callable[[int], bool]) -> bool:
        """Return whether the program leaves the recorded path with a step of this family, or did so before."""
        replay = self.replay
        if replay.may_leave and not replay.left and not replay.follows(scope, family, same):
            replay.leave()
        return replay.left

    def model(self, name: str) -> str:
        return self.live.model(name)

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        return self.live.decided(type, name, input, output)

    def comes_next(self, scope: Scope, family: str, name: str) -> bool:
        live = family in self.live.kinds and self._is_behind(scope, family)
        return not live and not self.replay.left and self.replay.comes_next(scope, family, name)

    def _is_behind(self, scope: Scope, family: str) -> bool:
        """Return whether the step from which on steps are live has been made, or is the next of this family here."""
        return not self._since or self.replay.left or self.replay.upcoming(scope, family) >= self._since

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        if self._leaves(scope, request.spec.family, self.replay.is_same(scope, request)):
            return self.new.refuse(self._mirrored(scope), request, error)
        recorded = self.replay.refuse(scope, request, error)
        if recorded is not self.replay.failure:
            self.new.refuse(self._mirrored(scope), request, error)
        return recorded

    def note(self, scope: Scope, note: Note) -> int:
        replay, kind = self.replay, note.type
        redecided = self.live.decides(kind) and self._is_behind(scope, kind)
        if redecided:
            replay.may_leave = True
            replay.report.allow("live", f"{kind} {note.name!r} was decided again")
        other = redecided or (kind in _OUTCOMES and bool(replay.report.differences))
        same = (lambda seq: True) if other else replay.is_same_note(scope, note)
        if self._leaves(scope, kind, same):
            return self.new.note(self._mirrored(scope), note)
        seq = replay.note_otherwise(scope, note) if other else replay.note(scope, note)
        self.new.note(self._mirrored(scope), note)
        return seq

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        if not self.replay.may_leave or agent in self.replay.index.identities:
            self.replay.identify(agent, identity)
        self.new.identify(agent, identity)

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        replay = self.replay
        then = replay.now(function, real) if replay.left else replay.clock_read(scope, function, real)
        value: T = self._hour(function, then, real)
        self._clock.shown(function, value, real)
        return self.new.clock_read(self._mirrored(scope), function, lambda: value)

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], T]) -> T:
        replay = self.replay
        then = replay.now(function, real) if replay.left else replay.library_clock(scope, function, library, real)
        value: T = self._hour(function, then, real)
        self._clock.shown(function, value, real)
        return self.new.library_clock(self._mirrored(scope), function, library, lambda: value)

    def _hour(self, function: str, then: Any, real: Callable[[], Any]) -> Any:
        """Return what a clock shows instead of ``then``."""
        if not self.live.clock or function.startswith(_STEADY):
            return then
        if self._shift is None:
            return real()
        if type(then) is date:
            now = self.replay.now("datetime.datetime.now", lambda: datetime.combine(then, datetime.min.time()))
            return _shifted(function, now, self._shift).date()
        value = _shifted(function, then, self._shift)
        if value is None:
            text = f"{function} returns a text in an unknown format: it shows the recorded hour"
            self.replay.report.inexact("hour", text, name=function, where=caller())
            return then
        return value

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], T]) -> T:
        value = real() if self.replay.left else self.replay.library_draw(scope, function, library, real)
        return self.new.library_draw(self._mirrored(scope), function, library, lambda: value)

    def question(self, scope: Scope, function: str, real: Callable[[], T], agree: Callable[[T], object]) -> T:
        value = real() if self.replay.left else self.replay.question(scope, function, real, agree)
        return self.new.clock_read(self._mirrored(scope), function, lambda: value)

    def asked_again(self, scope: Scope, function: str) -> None:
        if not self.replay.left:
            self.replay.asked_again(scope, function)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        replay = self.replay
        if replay.left:
            value = real()
        elif replay.may_leave:  # more draws than recorded may be a consequence of a live step
            drawn = real()
            found, recorded = replay.recorded_read(scope, function)
            value = recorded if found else drawn
        else:
            value = replay.random_read(scope, function, real)
        return self.new.random_read(self._mirrored(scope), function, lambda: value)

    def arm(self, scope: Scope, function: str, seconds: float) -> Timer:
        replay = self.replay
        if replay.left:
            return self.new.arm(self._mirrored(scope), function, seconds)
        timer = replay.arm(scope, function, seconds)
        if replay.may_leave and function in TIMERS and not timer.comes:
            return self.new.arm(self._mirrored(scope), function, seconds)  # it may belong to another path
        copy = self.new.arm(self._mirrored(scope), function, seconds)
        if function.startswith(LOCK_TAKEN):
            return _TakenLock(timer, copy)
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
        return None  # what is undone depends on what was live

    def starts(self, lane: Lane) -> None:
        pass

    def importing(self, scope: Scope, module: str) -> Scope | None:
        return self.replay.importing(scope, module)

    def skip_deliveries(self, here: Lane, tasks: Collection[str]) -> None:
        self.replay.skip_deliveries(here, tasks)

    def fail(self, error: Any) -> Any:
        return self.replay.fail(error)

    def _mirrored(self, scope: Scope) -> Scope:
        """Return the scope in the new run that corresponds to a scope of the replay."""
        return Scope(
            self._seen, self.lane(scope.lane), self._seqs.get(scope.parent, ROOT), scope.agent, 0, call=scope.call
        )

    def lane(self, lane: Lane) -> Lane:
        """Return the lane of the new run that corresponds to ``lane`` of the replay."""
        found = self._lanes.get(lane)
        if found is None:
            if lane.parent is None:
                found = Lane("", 1, None, id=0, owner=lane.owner)
            else:
                found = Lane(lane.name, lane.n, self.lane(lane.parent), owner=lane.owner)
            self._lanes[lane] = found
            self.originals[found] = lane
        return found


class _Branch(Recording):
    """The new run. What a live step does inside belongs to it, and uses the same model and policy as the steps around
    it."""

    def __init__(self, journal: Journal, redactor: Redactor, live: Live) -> None:
        super().__init__(journal, redactor)
        self._tried: Final = live

    def begin(self, scope: Scope, request: Request) -> Step:
        if scope.live and not self._tried.is_asked(request.spec):
            raise _not_another_model(self.run_id, request)
        return super().begin(scope, request)

    def model(self, name: str) -> str:
        return self._tried.model(name)

    def decided(self, type: str, name: str, input: object, output: object) -> Any:
        return self._tried.decided(type, name, input, output)


def _not_another_model(run_id: str, request: Request) -> LiveCallBlockedError:
    name = request.spec.name
    url = request.input.get("url") if isinstance(request.input, Mapping) else None
    if isinstance(url, str) and names_model(url.partition("?")[0], name):
        why = f"its URL names the model ({url.partition('?')[0]})"
    else:
        why = "its body does not name the model in JSON, is sent as it is produced, or is signed"
    return LiveCallBlockedError(
        f"another model was to be called in place of {name!r}, but this call can't be redirected: it was not made; {why}",
        run_id=run_id,
        location=caller(),
        operation=f"llm {name}",
        next_action="change the model in the program, and let `llm` go live as it is (--live llm)",
    )


class _Mirrored(Progress):
    """The places of events in a new run, whose callbacks are those of the replay."""

    __slots__ = ("_session",)

    def __init__(self, session: PartialReplay) -> None:
        super().__init__()
        self._session: Final = session

    def place(self, lane: Lane, number: Callable[[Lane], int], *, hop: bool = False) -> bytes:
        session = self._session
        return session.progress.place(session.originals[lane], lambda one: number(session.lane(one)), hop=hop)

    def take_back(self) -> None:
        self._session.progress.take_back()

    @property
    def unplaced(self) -> int | None:
        return self._session.progress.unplaced

    @property
    def goes_on(self) -> bool:
        return self._session.progress.goes_on


class _TakenLock(Timer):
    """A lock that is taken in the recorded order, and recorded anew."""

    __slots__ = ("_copy", "_replayed")

    live: Final = True
    comes: Final = False
    pending: Final = False

    def __init__(self, replayed: Timer, copy: Timer) -> None:
        self._replayed: Final = replayed
        self._copy: Final = copy

    def await_lock(self) -> None:
        self._replayed.await_lock()

    def took_lock(self) -> None:
        self._replayed.took_lock()

    def fired(self, about: Mapping[str, Any] | None = None) -> None:
        self._copy.fired(about)

    def identity(self) -> list[Any] | None:
        return self._copy.identity()


class BlockBeside(AroundStep):
    """A block of steps that the recording does not have: what happens in it belongs to the partial replay."""

    __slots__ = ("_scope",)

    def __init__(self, inner: Step, scope: Scope) -> None:
        super().__init__(inner)
        self._scope: Final = scope

    def body(self) -> Scope:
        return self._scope.inside(-self.seq, live=False)


class LiveStep(AroundStep):
    """A step that is live in a replay; it is recorded in the new run and compared with the old one."""

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
        """Suspend detection of stuck threads for a live call (``away``), or resume it."""
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
        if self._recorded is None and self._session.replay.left:
            return  # there is nothing to compare it with
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

    def comes_in_pieces(self) -> bool:
        return self.step.comes_in_pieces()

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
        elif kind is not None:  # otherwise it is the replay's failure
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


def branch(session: BranchedReplay, store: Store, live: Live, input: Any, since: int) -> PartialReplay:
    """Create a new run in ``store`` for a replay of ``session`` in which ``live`` steps are live, from step ``since``
    on.

    ``input`` is the run's input.
    """
    live.load()
    new = _Branch(store.create(encode_read=encode_reads), session.redactor, live)
    new.state.partial = True
    new.state.children = RecordedChildren(new)
    first = session.trace.entry(1)
    origin, program = meta_of(first), this_program()
    about: dict[str, Any] = {
        "origin": {"run_id": session.run_id, "head": session.trace.status.head},
        "live": sorted(live.kinds),
        **({"instead": instead} if (instead := live.as_dict()) else {}),
        "program": process.role.program,
        **{key: origin[key] for key in ("ordinal", "user_modules", "credentials") if key in origin},
    }
    if process.role.command is not None and origin.get("whole_program"):
        about["whole_program"] = True
    cause = {"run_id": session.run_id, "seq": 1}
    begin_log(new, first.get("name"), input, about, {}, program=program, cause=cause)
    return PartialReplay(session, new, live, since)


def end_branch(partial: PartialReplay, store: Store, error: BaseException | None, result: Any) -> None:
    """End the new run: completed with ``result``, or failed with ``error``."""
    new, differences = partial.new, len(partial.replay.report.differences)
    end_log(new, store, lambda: End({"steps": new.steps, "differences": differences}, error, result))
