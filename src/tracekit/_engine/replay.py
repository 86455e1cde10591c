"""The session that replays: each step is matched with the recorded one and answered from the log."""

from __future__ import annotations

import threading
from asyncio.events import _get_running_loop
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from orjson import loads

from .._canonical import dumps, exception_from_json, fingerprint, from_json, quick, shortfalls, to_json
from .._journal.reader import Trace
from .._journal.scan import TAIL
from ..errors import (
    BudgetExceededError,
    ContractViolationError,
    NotReplayableError,
    ReplayError,
    RunEndedError,
    TracekitError,
)
from . import failures
from .beside import can_go_on, go_on
from .callsite import caller, say, stop_in_caller
from .divergence import OPAQUE, differences, nearest, steady
from .gate import Outcome, Refusal, here
from .index import EVENT, INTENTION, READ, SINGLE, Index, LaneKey
from .lanes import Lane
from .placeholders import alike
from .redaction import Redactor
from .replayed import ReplayedStep, ReplayedTimer
from .report import Report
from .schedule import Schedule
from .scope import Scope
from .step import Circumstances, Request, Spec, Told
from .values import oversized, stand_in
from .windows import LaneState

__all__ = ["Replay"]

T = TypeVar("T")

_DIGITS: Final = b"0123456789"
#: What the caller of a call that must not be made gets.
_REFUSALS: Final = (ContractViolationError, BudgetExceededError, RunEndedError)
#: How many recorded steps are looked at to find the nearest one for a message.
_NEIGHBOURS: Final = 50
#: One of these is in the canonical bytes of every value that holds something opaque, or a placeholder as text or bytes.
_MARKS: Final = (OPAQUE, b"[REDACTED:", b'"W1JFREFDVEVEO')


class Replay:
    """One recorded run being replayed from ``trace``.

    ``on_divergence="warn"`` goes on with a step of equal kind and name where that can do no harm; ``strict`` makes more
    things failures: ``"clock"``, ``"order"``.
    """

    recording: Final = False

    def __init__(
        self,
        trace: Trace,
        redactor: Redactor,
        *,
        on_divergence: str = "raise",
        strict: frozenset[str] = frozenset(),
    ) -> None:
        self.trace: Final = trace
        self.redactor: Final = redactor
        self.index: Final = Index(trace.entries())
        self.run_id: Final[str] = trace.entry(1)["run_id"]
        self.report: Final = Report(self.run_id, trace.path)
        #: 1 consumed, 2 skipped, by seq.
        self._used = bytearray(len(self.index) + 1)
        self.schedule: Final = Schedule(
            self.index.events,
            failure=self._again,
            stuck=self._stuck,
            slow=self._slow,
            steps=self.index.steps,
            made=self._used,
            near=self.index.near,
            moved=self.index.moved,
        )
        #: Whether the trace says in which order threads handed things to one another.
        self.ordered: Final = bool(trace.entry(1).get("meta", {}).get("ordered"))
        #: The hooks tell it which threads take part.
        self.threads: Final = self.schedule.threads
        self.on_divergence: Final = on_divergence
        self.strict: Final = strict
        self.failure: ReplayError | None = None
        self.ended = False
        #: Whether other processes have steps of the run: then it shows something, even if this file has none.
        self.elsewhere = False
        #: The session that scopes point to.
        self.face: Any = self
        #: The step at which to stop in the debugger.
        self.break_at: int | None = None
        self._lock = threading.RLock()
        self._states: list[LaneState] = []
        self._lanes: list[Lane] = []
        # An attempt that a resumed run made again is no step of the replay.
        for seq in self.index.repeated:
            self._give_up(seq)
            undone = self.index.compensations.get(seq)
            if undone is not None:
                self._give_up(undone)
        for seq in self.index.overruled:
            self.schedule.skip(seq)
            self._used[seq] = 2

    def _give_up(self, seq: int) -> None:
        """A recorded step of which the program knows nothing: nobody asks for it, nor for what belongs to it."""
        self._used[seq] = 2
        self._skip_inside(seq)
        piece = self.index.next_chunk[seq]
        while piece:
            self.schedule.skip(piece)
            self._used[piece] = 2
            piece = self.index.next_chunk[piece]
        if self.index.answer[seq]:
            self.schedule.skip(self.index.answer[seq])
            self._used[self.index.answer[seq]] = 2

    # -- steps -----------------------------------------------------------------------------------------------------------

    def begin(self, scope: Scope, request: Request) -> ReplayedStep:
        """Match a step with the next recorded one of its family in its lane, or fail."""
        spec = request.spec
        tail = self._tail(scope, request)
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, spec.family)
            same = seq is not None and tail is not None and self._ends_so(seq, tail)
        if not same:
            seq = self._compared(scope, request, *self._encode_input(request))
        assert seq is not None
        with self._lock:
            self._consume(state, spec.family, seq)
            if not spec.structural:
                self._skip_inside(seq)
            scope.lane.last = seq
        if seq == self.break_at:
            stop_in_caller()
        if seq in self.index.refused:
            raise exception_from_json(self.trace.expand(self.trace.entry(seq)["error"]))
        return ReplayedStep(self, scope, request, seq)

    def refuse(self, scope: Scope, request: Request, error: Refusal) -> TracekitError:
        """A call that is not to be made now: neither was it then, or that is a divergence. Returns what to raise."""
        spec = request.spec
        try:
            step = self.begin(scope, Request(spec, request.input))
        except _REFUSALS as recorded:
            return recorded
        return self.fail(failures.now_refused(self.run_id, step.seq, spec.family, spec.name, error))

    def _compared(self, scope: Scope, request: Request, tree: Any, data: bytes) -> int:
        """The next recorded step of the family, compared part by part."""
        spec = request.spec
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None:
                raise self._exhausted(scope, spec.family, spec.name, data, state)
            entry = self.trace.entry(seq)
            if not self._matches(entry, spec, scope.agent, tree, data, request.key):
                self._diverged(scope, spec, data, seq, entry)
        return seq

    def _tail(self, scope: Scope, request: Request) -> bytes | None:
        """How the line of this very step ends in a recording, where that is quickly told: the short way to an exact match."""
        if request.key is not None or scope.agent is not None:
            return None
        spec, info, data = request.spec, request.info, request.data
        told = spec.tell(self.redactor)
        if info is None:
            suffix = told.suffix
        elif type(info) is Circumstances:
            suffix = info.tell(spec, self.redactor)
        else:
            return None
        if data is None:
            data = quick(request.input)
        return None if data is None else told.prefix + data + suffix

    def _ends_so(self, seq: int, tail: bytes) -> bool:
        """Whether the entry ``seq`` ends in ``tail``, right after the numbers that every entry begins with.

        Equal bytes are an equal step, redacted or not: redaction makes of what stands in the log the same again.
        """
        line = self.trace.line(seq)
        end = len(line) - TAIL
        return line.endswith(tail, 0, end) and line[end - len(tail) - 1] in _DIGITS

    def pass_over(self, scope: Scope, spec: Spec) -> int | None:
        """The recorded step in whose place one goes live: passed with all that happened in it. ``None`` where there is none."""
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None:
                return None
            self._consume(state, spec.family, seq)
            self._skip_inside(seq)
            scope.lane.last = seq
            answer = self.index.answer[seq]
            chunk = self.index.next_chunk[seq]
            while chunk:
                self.schedule.skip(chunk)
                self._used[chunk] = 2
                chunk = self.index.next_chunk[chunk]
            if answer:
                self.schedule.skip(answer)
                self._used[answer] = 2
        return seq

    def note_otherwise(self, scope: Scope, type: str, name: str, output: object) -> int:
        """:meth:`note` of what came of steps that went live: how it differs is noted, and the program goes on."""
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, type)
            if seq is None:
                raise self._exhausted(scope, type, name, self._encode(output)[1], state)
            self._consume(state, type, seq)
        recorded, actual = self.trace.expand(self.trace.entry(seq)["output"]), self._encode(output)[0]
        if not self.equal(recorded, actual):
            found = differences(recorded, actual)
            self.report.differences.append({"step": seq, "family": type, "name": name, "differences": found})
        return seq

    def compare_outcome(self, seq: int | None, spec: Spec, actual: Any) -> None:
        """Note how the outcome of a step that went live differs from the one recorded in its place; headers always do."""
        answer = 0 if seq is None else self.index.answer[seq]
        recorded = self.trace.expand(self.trace.entry(answer).get("output")) if answer else None
        found = [one for one in differences(recorded, actual) if not one["path"].startswith("headers")]
        if found or not answer:
            place = {"step": seq, "family": spec.family, "name": spec.name}
            self.report.differences.append({**place, "differences": found})

    def _encode_input(self, request: Request) -> tuple[Any, bytes]:
        return self._encode(request.input, owned=request.data is not None, own=request.spec.redactor)

    def _encode(self, value: object, *, owned: bool = False, own: Redactor | None = None) -> tuple[Any, bytes]:
        tree = value if owned else to_json(value)
        data = dumps(tree)
        if oversized(tree, data):
            tree = stand_in(value, data)
            return tree, dumps(tree)
        if self.redactor.suspicious(data):
            tree, redacted = self.redactor.redact(tree)
            if redacted:
                data = dumps(tree)
        if own is not None:
            tree, redacted = own.redact(tree)
            if redacted:
                data = dumps(tree)
        return tree, data

    def _matches(
        self, entry: Mapping[str, Any], spec: Spec, agent: str | None, tree: Any, data: bytes, key: object
    ) -> bool:
        told = spec.tell(self.redactor)
        if entry.get("agent_id") != agent:
            return False
        if entry.get("name") == told.name and _signature(entry) == told.meta:
            recorded = entry.get("input_hash")
            if recorded is not None:
                equal = bool(recorded == fingerprint(told.name, tree if key is None else self._encode(key)[0]))
            else:
                equal = dumps(entry["input"]) == data
            if equal or key is not None:
                return equal
        return key is None and self._resembles(entry, told, tree, data)

    def _resembles(self, entry: Mapping[str, Any], told: Told, tree: Any, data: bytes) -> bool:
        """Whether a step is the recorded one but for addresses, and for secrets: each process knows other ones by their text."""
        facts = {"name": entry.get("name"), "meta": _signature(entry), "input": self.trace.expand(entry["input"])}
        recorded = self.redactor.redact(facts)[0]
        actual = {"name": told.name, "meta": told.meta, "input": tree}
        if not any(mark in one for one in (dumps(recorded), dumps(actual)) for mark in _MARKS):
            return False
        return alike(steady(recorded), steady(actual))

    def _next(self, state: LaneState, kind: str) -> int | None:
        """The first step of a kind in a lane that has neither been consumed nor skipped."""
        steps = self.index.intentions.get((state.lane, kind))
        if steps is None:
            return None
        i, used = state.cursors.get(kind, 0), self._used
        while i < len(steps) and used[steps[i]]:
            i += 1
        state.cursors[kind] = i
        return steps[i] if i < len(steps) else None

    def _consume(self, state: LaneState, kind: str, seq: int) -> None:
        self._used[seq] = 1
        self.report.consumed += 1
        state.cursors[kind] = state.cursors.get(kind, 0) + 1
        self._pass(state, seq)

    def _skip_inside(self, step: int) -> None:
        role, used = self.index.role, self._used
        for seq in self.index.inside(step):
            if role[seq] == EVENT:
                self.schedule.skip(seq)
                used[seq] = 2
            elif not used[seq]:
                if role[seq] in (INTENTION, SINGLE):
                    self.report.skipped += 1
                used[seq] = 2

    # -- lanes and their windows -----------------------------------------------------------------------------------------

    def _state(self, lane: Lane) -> LaneState:
        state = lane.state
        if type(state) is LaneState:
            return state
        if lane.parent is None:
            number: int | None = 0
        else:
            parent = self._state(lane.parent)
            number = self.index.lanes.get(LaneKey(parent.lane, lane.name, lane.n, lane.under))
        lane.id = -1 if number is None else number
        state = LaneState(lane.id, self.index.items.get(lane.id))
        lane.state = state
        self._states.append(state)
        if lane.parent is not None:
            self._lanes.append(lane)
        return state

    def open_lanes(self) -> list[Lane]:
        """The lanes whose task, thread or call has not ended."""
        return [lane for lane in self._lanes if lane.open]

    def _pass(self, state: LaneState, seq: int) -> None:
        """The lane has come to ``seq``: the window of reads before it closes."""
        for missed in state.advance(seq):
            role = self.index.role[missed]
            if role == READ:
                self._unread(state, missed)
            elif role in (INTENTION, SINGLE) and not self._used[missed]:
                self._out_of_order(missed)
        state.close()

    def _unread(self, state: LaneState, seq: int) -> None:
        if self._used[seq]:
            return
        entry = self.trace.entry(seq)
        left = len(entry["values"]) - state.taken(seq)
        if left <= 0:
            return
        if entry["type"] == "random":
            self._fail(failures.draws_left(entry, left))
        self._drift("missing", entry["name"], left, None)

    def _drift(self, kind: str, function: str, count: int, where: str | None) -> None:
        self.report.clock_drift.append({"kind": kind, "function": function, "count": count, "where": where})
        if "clock" in self.strict:
            self._fail(failures.clock_drift(self.run_id, kind, function, count, where))

    def _out_of_order(self, seq: int) -> None:
        self.report.reordered.append(seq)
        if self.on_divergence != "warn":
            self._fail(failures.out_of_order(self.trace.entry(seq)))

    # -- reads -----------------------------------------------------------------------------------------------------------

    def clock_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            found, value = state.take(function, self._window)
            if not found:
                where = caller()
                self._drift("surplus", function, 1, where)
                value = state.last(function)
                if value is None:
                    value = self._instant(function)
        return from_json(value)  # type: ignore[no-any-return]

    def status_read(self, scope: Scope, function: str, process: str | None) -> Any:
        """What the recorded program was told of ``process`` here; one question more than it asked is a divergence. ``None``: there
        may be nothing to tell."""
        with self._lock:
            self._check()
            found, value = self._state(scope.lane).take(function, self._window)
            if not found and process is not None:
                self._fail(failures.asked_too_often(self.run_id, process))
        return from_json(value)

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        real()  # so that the state of a generator that the program seeded follows
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            found, value = state.take(function, self._window)
            if not found:
                self._fail(failures.draw_too_many(self.run_id, function))
        return from_json(value)  # type: ignore[no-any-return]

    def _window(self, state: LaneState) -> list[tuple[int, str, list[Any]]]:
        """The reads between the lane's position and its next step."""
        window: list[tuple[int, str, list[Any]]] = []
        for seq in state.ahead():
            role = self.index.role[seq]
            if role == READ:
                if not self._used[seq]:
                    entry = self.trace.entry(seq)
                    window.append((seq, entry["name"], self.trace.expand(entry["values"])))
            elif not (self._used[seq] or seq in self.index.abandoned or (role == EVENT and not self.index.answer[seq])):
                break
        return window

    def _instant(self, function: str) -> Any:
        """Where a clock was never read in the recording: its reading when the run started."""
        clocks = self.trace.entry(1).get("meta", {}).get("clocks", {})
        if function not in clocks:
            self._fail(failures.clock_never_read(self.run_id, function))
        return clocks[function]

    # -- one-entry steps and timers --------------------------------------------------------------------------------------

    def note(
        self,
        scope: Scope,
        type: str,
        name: str,
        *,
        input: object = None,
        output: object = None,
        signature: Mapping[str, Any] | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> int:
        tree = {"input": self._encode(input)[0], "output": self._encode(output)[0]}  # apart, as they were recorded
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, type)
            if seq is None:
                raise self._exhausted(scope, type, name, dumps(tree), state)
            entry = self.trace.entry(seq)
            recorded = {"input": self.trace.expand(entry["input"]), "output": self.trace.expand(entry["output"])}
            about = dict(signature or {})
            about.pop("info", None)
            facts = {
                "name": entry.get("name"),
                "agent_id": entry.get("agent_id"),
                **recorded,
                "meta": _signature(entry),
            }
            name = self.redactor.redact_text(name)[0]
            actual = {"name": name, "agent_id": scope.agent, **tree, "meta": self._encode(about)[0]}
            if not self.equal(steady(facts), steady(actual)):
                self._report_divergence(type, seq, facts, actual, "", harmless=facts["name"] == name)
            self._consume(state, type, seq)
        return seq

    def equal(self, recorded: Any, actual: Any) -> bool:
        """Whether a recorded tree and one of now, redacted, are equal, placeholders standing for any text."""
        return dumps(recorded) == dumps(actual) or alike(self.redactor.redact(recorded)[0], actual)

    def validated(self, scope: Scope, spec: Spec) -> None:
        pass

    def next_undone(self, scope: Scope) -> int | None:
        """What the next recorded step of the scope's lane undoes, or ``None``.

        Compensations of steps that happened inside others are passed: a replay has none of those steps.
        """
        while True:
            with self._lock:
                self._check()
                seq = self._next(self._state(scope.lane), "tool")
            about = {} if seq is None else (self.trace.entry(seq).get("meta") or {}).get("info") or {}
            of = about.get("compensates")
            if seq is None or type(of) is not int or not 0 < of < len(self._used):
                return None
            if self._used[of] != 2:
                return of
            self.take(seq)
            scope.lane.last = seq

    def left_standing(self) -> set[int]:
        """The steps that the recorded run has undone at some time, or says it has not: none that an abort now would undo too."""
        last = self.trace.entry(len(self.trace))
        named = (last.get("meta") or {}).get("uncompensated") if last["type"] == "run.aborted" else None
        return {*self.index.compensations, *(one for one in named or () if type(one) is int)}

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """The identity that ``agent`` has now must be the recorded one."""
        with self._lock:
            self._check()
        seq = self.index.identities.get(agent)
        recorded = None if seq is None else self.trace.expand(self.trace.entry(seq)["input"])
        actual = self.redactor.redact(to_json(dict(identity or {})))[0]
        found = differences(recorded, actual)
        if found and not self.equal(recorded, actual):
            self._fail(failures.another_identity(self.run_id, seq, agent, recorded, actual, found))

    def snapshot(self, name: str, state: Any) -> Any:
        at_start = self.trace.entry(1).get("meta", {}).get("snapshots", {})
        if name in at_start:
            return at_start[name]
        seq = self.index.snapshots.get(name)
        return None if seq is None else self.trace.expand(self.trace.entry(seq)["output"])

    def arm(self, scope: Scope, function: str, seconds: float) -> ReplayedTimer:
        lane = scope.lane
        with self._lock:
            self._check()
            state = self._state(lane)
            seq = self.index.timers.get((state.lane, function, *lane.armed(function)))
        return ReplayedTimer(self, seq)

    def handed_over(self, seq: int) -> None:
        """What threads hand to one another has been handed over where the log has it, at ``seq``."""

    # -- outcomes --------------------------------------------------------------------------------------------------------

    def outcome(self, step: ReplayedStep, seq: int) -> Outcome:
        """The entry ``seq`` decoded, delivered now."""
        with self._lock:
            self._used[seq] = 1
            scope = here()
            lane = scope.lane if scope is not None and scope.session is self.face else step.scope.lane
            state = self._state(lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)
            line = self.trace.line(seq)
        entry = loads(line)
        meta = entry.get("meta", {})
        if "redacted" in meta:
            self._tell_placeholder(step)
        if 36 not in line and "error" not in entry:  # no dollar: neither a tag nor a reference
            return Outcome(entry.get("output"), None, meta, entry)
        try:
            output = self._decode(entry.get("output"), step.spec.hint())
            error = self._error(step, entry["error"]) if "error" in entry else None
        except NotReplayableError as failure:
            raise self.fail(self._located(failure, seq)) from None
        return Outcome(output, error, meta, entry)

    def let_others_go_on(self, seq: int) -> None:
        """In an event loop: the other tasks go on until the turn of ``seq``, for a call that does not await."""
        loop = _get_running_loop()
        if loop is None or not can_go_on(loop):
            return
        came: list[bool] = []
        self.schedule.callback(seq, lambda: came.append(True))
        go_on(loop, lambda: bool(came) or self.failure is not None)
        self._check()

    def _tell_placeholder(self, step: ReplayedStep) -> None:
        sentence = f"step {step.seq}'s output was redacted: the program was given a placeholder"
        if sentence not in self.report.warnings and len(self.report.warnings) < 100:
            self.report.warnings.append(sentence)

    def _error(self, step: ReplayedStep, error: Any) -> BaseException:
        tree = self.trace.expand(error)
        exception = exception_from_json(tree)
        for sentence in shortfalls(tree, exception):
            name = step.spec.tell(self.redactor).name
            said = f"step {step.seq} ({step.spec.family} {name!r}) {sentence}"
            if len(self.report.warnings) < 100:
                self.report.warnings.append(said)
        return exception

    def _decode(self, output: Any, returns: Any) -> Any:
        return from_json(self.trace.expand(output), returns)

    def _located(self, failure: NotReplayableError, seq: int) -> NotReplayableError:
        failure.run_id, failure.step, failure.location = self.run_id, seq, caller()
        return failure

    # -- failures --------------------------------------------------------------------------------------------------------

    def fail(self, error: ReplayError) -> ReplayError:
        """Make ``error`` the replay's failure (the first one stays) and return what to raise here."""
        with self._lock:
            if self.failure is None:
                self.failure = error
                self.report.failure = error
                if not self.ended:  # the program still has to unwind, and need not come out of that alive
                    say(f"the replay has failed: {error}")
                self.schedule.fail()
                return error
        return self._again()

    def _fail(self, error: ReplayError) -> NoReturn:
        raise self.fail(error)

    def _again(self) -> ReplayError:
        assert self.failure is not None
        copy = self.failure.fresh()
        assert isinstance(copy, ReplayError)
        return copy

    def _check(self) -> None:
        if self.failure is not None:
            raise self._again()

    def _stuck(self, waiting: list[str]) -> ReplayError | None:
        return self.fail(failures.everything_waits(self.run_id, waiting))

    def _slow(self, seq: int | None, waiting: list[str]) -> None:
        """The next event has been waited for for long."""
        what = "something that was never recorded"
        if seq is not None:
            entry = self.trace.entry(seq)
            step = self.index.answer[seq] if self.index.role[self.index.answer[seq]] == INTENTION else seq
            what = (
                f"step {step} ({self.trace.entry(step)['type']} {self.trace.entry(step).get('name', entry['type'])!r})"
            )
        said = "".join(f"\n  {line}" for line in waiting)
        say(f"the replay of {self.run_id} waits for {what}; these may lead to it:{said}")

    def _exhausted(self, scope: Scope, kind: str, name: str, data: bytes, state: LaneState) -> ReplayError:
        near = self._nearest(kind, data, None) + self._beside()
        steps = self.index.intentions.get((state.lane, kind))
        count = len(steps) if steps is not None else 0
        lane = scope.lane.path or "the run's own line"
        used = f"{count} in lane {lane}, all used{near}"
        if self.trace.entry(len(self.trace))["type"] == "run.aborted":
            return self.fail(failures.aborted_here(self.run_id, kind, name))
        return self.fail(failures.no_more(self.run_id, kind, name, used))

    def _diverged(self, scope: Scope, spec: Spec, data: bytes, seq: int, entry: Mapping[str, Any]) -> None:
        recorded = {
            "name": entry.get("name"),
            "agent_id": entry.get("agent_id"),
            "input": self.trace.expand(entry["input"]),
            "meta": _signature(entry),
        }
        told = spec.tell(self.redactor)
        actual = {"name": told.name, "agent_id": scope.agent, "input": loads(data), "meta": told.meta}
        same_kind = recorded["name"] == told.name and recorded["meta"].get("side_effect") == spec.side_effect
        near = self._nearest(spec.family, data, seq) + self._beside()
        self._report_divergence(
            spec.family, seq, recorded, actual, near, harmless=same_kind and spec.side_effect != "irreversible"
        )

    def _report_divergence(
        self, kind: str, seq: int, recorded: dict[str, Any], actual: dict[str, Any], near: str, *, harmless: bool
    ) -> None:
        """A step of ``kind`` is not the recorded step ``seq``: fail, or note it where the replay may go on."""
        found = differences(steady(recorded), steady(actual)) or [{"path": "input (fingerprint)"}]
        if self.on_divergence == "warn" and harmless:
            self.report.differences.append({"step": seq, "where": caller(), "differences": found})
            return
        recorded = {"type": self.trace.entry(seq)["type"], **recorded}
        self._fail(failures.another_step(self.run_id, seq, recorded, {"kind": kind, **actual}, found, near))

    def _nearest(self, kind: str, data: bytes, mismatched: int | None) -> str:
        candidates: list[tuple[int, Mapping[str, Any], bytes]] = []
        for (_lane, family), steps in self.index.intentions.items():
            if family == kind:
                for seq in steps[:]:
                    if seq != mismatched and self._used[seq] != 2 and len(candidates) < _NEIGHBOURS:
                        entry = self.trace.entry(seq)
                        candidates.append((seq, entry, dumps(self.trace.expand(entry.get("input")))))
        near = nearest(data, candidates)
        if near is None:
            return ""
        seq, equal = near
        used = " (already answered)" if self._used[seq] else ""
        return f"\n  nearest recorded step: {seq}{used}, " + ("with equal input" if equal else "with other input")

    def _beside(self) -> str:
        """What to think of where several threads take part."""
        return failures.THREAD_ORDER if self.threads.several else ""

    def used(self, seq: int) -> bool:
        """Whether a recorded step has been consumed, or skipped with the one that it happened inside."""
        return bool(self._used[seq])

    def take(self, seq: int) -> None:
        """Consume the recorded step ``seq`` with all that belongs to it: for who reads the recording and compares it himself."""
        with self._lock:
            self._check()
            self._used[seq] = 1
            self.report.consumed += 1
            self._skip_inside(seq)
            piece = self.index.next_chunk[seq]
            while piece:
                self._deliver(piece)
                piece = self.index.next_chunk[piece]
            if self.index.role[seq] == INTENTION and self.index.answer[seq]:
                self._deliver(self.index.answer[seq])

    def _deliver(self, seq: int) -> None:
        self._used[seq] = 1
        self.schedule.skip(seq)

    def passed(self, scope: Scope, seq: int) -> None:
        """A structural step has ended: its end is behind the lane now."""
        with self._lock:
            self._used[seq] = 1
            self._pass(self._state(scope.lane), seq)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def account(self) -> None:
        """Bring the report up to date."""
        with self._lock:
            self.report.reordered += [seq for seq in self.schedule.reordered if seq not in self.report.reordered]
            self.report.unconsumed = self._unconsumed()

    def finish(self) -> None:
        """The program has ended: whatever was recorded and not asked for is told. Raises the first failure."""
        self.account()
        with self._lock:
            if self.failure is None:
                self._leftovers()
            self._check()

    def _leftovers(self) -> None:
        if not any(self.index.role) and not self.elsewhere:
            self._fail(failures.nothing_recorded(self.run_id))
        if "order" in self.strict and self.report.reordered:
            self._fail(failures.handed_out_of_order(self.run_id, self.report.reordered))
        if self.report.unconsumed:
            self._fail(failures.never_asked_for(self.run_id, self.report.unconsumed))
        entered = {state.lane for state in self._states}
        unopened = [LaneState(lane, items) for lane, items in self.index.items.items() if lane not in entered]
        for state in [*self._states, *unopened]:
            for seq in state.rest():
                if self.index.role[seq] == READ:
                    self._unread(state, seq)

    def _unconsumed(self) -> list[dict[str, Any]]:
        left: list[dict[str, Any]] = []
        for seq in range(1, len(self.index) + 1):
            if self.index.role[seq] in (INTENTION, SINGLE) and not self._used[seq]:
                entry = self.trace.entry(seq)
                left.append({"seq": seq, "type": entry["type"], "name": entry.get("name")})
        return left


def _signature(entry: Mapping[str, Any]) -> dict[str, Any]:
    meta = dict(entry.get("meta") or {})
    meta.pop("info", None)
    return meta
