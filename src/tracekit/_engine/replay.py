"""The session that replays: each step is matched with the recorded one and answered from the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from orjson import loads

from .._canonical import dumps, exception_from_json, fingerprint, from_json, to_json
from .._journal.reader import Trace
from ..errors import (
    DivergenceError,
    NotReplayableError,
    ReplayError,
    TraceExhaustedError,
    UnconsumedStepsError,
)
from .callsite import caller, stop_in_caller
from .divergence import OPAQUE, describe, differences, looks_like_a_read, nearest, steady
from .gate import Call, Outcome, here
from .index import EVENT, INTENTION, READ, SINGLE, Index, LaneKey
from .lanes import Lane
from .redaction import Redactor
from .report import Report
from .schedule import Schedule, Ticket
from .scope import Scope
from .step import Spec
from .windows import LaneState

__all__ = ["Replay"]

T = TypeVar("T")

#: How many recorded steps are looked at to find the nearest one for a message.
_NEIGHBOURS: Final = 50


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
        self.report: Final = Report(self.run_id)
        self.schedule: Final = Schedule(self.index.events, failure=self._again, stuck=self._stuck, near=self.index.near)
        #: The hooks tell it which threads take part.
        self.crew: Final = self.schedule.crew
        self.on_divergence: Final = on_divergence
        self.strict: Final = strict
        self.failure: ReplayError | None = None
        self.ended = False
        #: The step at which to stop in the debugger.
        self.break_at: int | None = None
        self._lock = threading.RLock()
        #: 1 consumed, 2 skipped, by seq.
        self._used = bytearray(len(self.index) + 1)
        self._states: list[LaneState] = []
        self._lanes: list[Lane] = []
        # An attempt that a resumed run made again is no step of the replay.
        for seq in self.index.repeated:
            self._used[seq] = 2

    # -- steps -----------------------------------------------------------------------------------------------------------

    def open(self, scope: Scope, call: Call) -> ReplayedStep:
        return self.begin(scope, Spec.of(call), call.input, info=call.info, key=call.key)

    def begin(
        self, scope: Scope, spec: Spec, input: object, *, info: Mapping[str, Any] | None = None, key: object = None
    ) -> ReplayedStep:
        """Match a step with the next recorded one of its family in its lane, or fail."""
        tree, data = self._encode(input)
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, spec.family)
            if seq is None:
                raise self._exhausted(scope, spec.family, spec.name, data, state)
            entry = self.trace.entry(seq)
            if not self._matches(entry, spec, scope.agent, tree, data, key):
                self._diverged(scope, spec, data, seq, entry)
            self._consume(state, spec.family, seq)
            if not spec.structural:
                self._skip_inside(seq)
            scope.lane.last = seq
        if seq == self.break_at:
            stop_in_caller()
        return ReplayedStep(self, scope, spec, seq)

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

    def compare_outcome(self, seq: int | None, spec: Spec, actual: Any) -> None:
        """Note how the outcome of a step that went live differs from the one recorded in its place."""
        answer = 0 if seq is None else self.index.answer[seq]
        recorded = self.trace.expand(self.trace.entry(answer).get("output")) if answer else None
        found = differences(recorded, actual)
        if found or not answer:
            place = {"step": seq, "family": spec.family, "name": spec.name}
            self.report.differences.append({**place, "differences": found})

    def _encode(self, value: object) -> tuple[Any, bytes]:
        tree = to_json(value)
        data = dumps(tree)
        if self.redactor.suspicious(data):
            tree, redacted = self.redactor.redact(tree)
            if redacted:
                data = dumps(tree)
        return tree, data

    def _matches(
        self, entry: Mapping[str, Any], spec: Spec, agent: str | None, tree: Any, data: bytes, key: object
    ) -> bool:
        if entry.get("name") != spec.name or entry.get("agent_id") != agent or _signature(entry) != self._meta(spec):
            return False
        recorded = entry.get("input_hash")
        if recorded is not None:
            equal = bool(recorded == fingerprint(spec.name, tree if key is None else self._encode(key)[0]))
        else:
            equal = dumps(entry["input"]) == data
        if equal or key is not None or OPAQUE not in data:
            return equal
        return dumps(steady(self.trace.expand(entry["input"]))) == dumps(steady(tree))

    def _meta(self, spec: Spec) -> dict[str, Any]:
        """The signature as the recording has it: redacted."""
        if spec.bare or not self.redactor.suspicious(spec.suffix):
            return spec.meta
        meta: dict[str, Any] = self.redactor.redact(spec.meta)[0]
        return meta

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
            self._fail(
                DivergenceError(
                    f"the recording draws {entry['name']} {left} more time(s) here than the program does now",
                    run_id=self.run_id,
                    step=seq,
                    location=caller(),
                    next_action="look at what changed in the code between the two steps",
                    recorded=entry,
                    actual=None,
                    differences=[],
                )
            )
        self._drift("missing", entry["name"], left, None)

    def _drift(self, kind: str, function: str, count: int, where: str | None) -> None:
        self.report.clock_drift.append({"kind": kind, "function": function, "count": count, "where": where})
        if "clock" in self.strict:
            self._fail(
                DivergenceError(
                    f"{count} read(s) of {function} {'too many' if kind == 'surplus' else 'too few'} (strict clock)",
                    run_id=self.run_id,
                    location=where,
                )
            )

    def _out_of_order(self, seq: int) -> None:
        self.report.reordered.append(seq)
        if "order" in self.strict:
            self._fail(
                DivergenceError(
                    f"step {seq} has not come yet when a later step of its lane was asked for (strict order)",
                    run_id=self.run_id,
                    step=seq,
                    location=caller(),
                )
            )

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

    def random_read(self, scope: Scope, function: str, real: Callable[[], T]) -> T:
        real()  # so that the state of a generator that the program seeded follows
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            found, value = state.take(function, self._window)
            if not found:
                raise self.fail(
                    DivergenceError(
                        f"the program draws {function} here, and the recording has no such draw left before the next step",
                        run_id=self.run_id,
                        location=caller(),
                        next_action="look at what changed in the code since the step before",
                        recorded=None,
                        actual=function,
                        differences=[],
                    )
                )
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
        if function in clocks:
            return clocks[function]
        raise self.fail(
            DivergenceError(
                f"the program reads {function} here, and the recording has no read of it at all",
                run_id=self.run_id,
                location=caller(),
            )
        )

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
        tree, data = self._encode({"input": input, "output": output})
        with self._lock:
            self._check()
            state = self._state(scope.lane)
            seq = self._next(state, type)
            if seq is None:
                raise self._exhausted(scope, type, name, data, state)
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
            actual = {"name": name, "agent_id": scope.agent, **tree, "meta": self._encode(about)[0]}
            if dumps(steady(facts)) != dumps(steady(actual)):
                self._report_divergence(type, seq, facts, actual, "", harmless=facts["name"] == name)
            self._consume(state, type, seq)
        return seq

    def identify(self, agent: str, identity: Mapping[str, Any] | None) -> None:
        """The identity that ``agent`` has now must be the recorded one."""
        with self._lock:
            self._check()
        seq = self.index.identities.get(agent)
        recorded = None if seq is None else self.trace.expand(self.trace.entry(seq)["input"])
        actual = self.redactor.redact(to_json(dict(identity or {})))[0]
        found = differences(recorded, actual)
        if found:
            self._fail(
                DivergenceError(
                    f"the agent {agent!r} is not who it was in the recording\n" + describe(found),
                    run_id=self.run_id,
                    step=seq,
                    location=caller(),
                    next_action="replay as the agent that was recorded; record again if the change is meant",
                    recorded=recorded,
                    actual=actual,
                    differences=found,
                )
            )

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

    # -- outcomes --------------------------------------------------------------------------------------------------------

    def outcome(self, step: ReplayedStep, seq: int) -> Outcome:
        """The entry ``seq`` decoded, delivered now."""
        with self._lock:
            self._used[seq] = 1
            scope = here()
            lane = scope.lane if scope is not None and scope.session is self else step.scope.lane
            state = self._state(lane)
            if self.index.lane[seq] == state.lane:
                self._pass(state, seq)
            entry = self.trace.entry(seq)
        meta = entry.get("meta", {})
        try:
            output = self._decode(entry.get("output"), step.spec.hint())
            error = exception_from_json(self.trace.expand(entry["error"])) if "error" in entry else None
        except NotReplayableError as failure:
            raise self.fail(self._located(failure, seq)) from None
        return Outcome(output, error, meta, entry)

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

    def _stuck(self) -> ReplayError:
        return self.fail(
            TraceExhaustedError(
                "everything in the program waits, and the recording has nothing more to deliver to it",
                run_id=self.run_id,
                next_action="if the run was killed here, this is where its log ends; else look for what the program now waits for",
            )
        )

    def _exhausted(self, scope: Scope, kind: str, name: str, data: bytes, state: LaneState) -> ReplayError:
        near = self._nearest(kind, data, None)
        steps = self.index.intentions.get((state.lane, kind))
        count = len(steps) if steps is not None else 0
        lane = scope.lane.path or "the run's own line"
        return self.fail(
            TraceExhaustedError(
                f"the program asks for {kind} {name!r}, and the recording has no more: {count} in lane {lane}, all used{near}",
                run_id=self.run_id,
                location=caller(),
                kind=kind,
                name=name,
                next_action="look at what changed in the code before this call; record again if the change is meant",
            )
        )

    def _diverged(self, scope: Scope, spec: Spec, data: bytes, seq: int, entry: Mapping[str, Any]) -> None:
        recorded = {
            "name": entry.get("name"),
            "agent_id": entry.get("agent_id"),
            "input": self.trace.expand(entry["input"]),
            "meta": _signature(entry),
        }
        actual = {"name": spec.name, "agent_id": scope.agent, "input": loads(data), "meta": self._meta(spec)}
        same_kind = recorded["name"] == spec.name and recorded["meta"].get("side_effect") == spec.side_effect
        near = self._nearest(spec.family, data, seq)
        self._report_divergence(
            spec.family, seq, recorded, actual, near, harmless=same_kind and spec.side_effect != "irreversible"
        )

    def _report_divergence(
        self, kind: str, seq: int, recorded: dict[str, Any], actual: dict[str, Any], near: str, *, harmless: bool
    ) -> None:
        """A step of ``kind`` is not the recorded step ``seq``: fail, or note it where the replay may go on."""
        where, name = caller(), actual["name"]
        found = differences(steady(recorded), steady(actual)) or [{"path": "input (fingerprint)"}]
        if self.on_divergence == "warn" and harmless:
            self.report.differences.append({"step": seq, "where": where, "differences": found})
            return
        type = self.trace.entry(seq)["type"]
        text = f"the program's {kind} {name!r} is not the recorded step {seq} ({type} {recorded['name']!r})"
        text += "\n" + describe(found) + near
        if looks_like_a_read(found):
            text += (
                "\n  the difference looks like an instant, an id or a draw: if a package made it, "
                "name it in instrument(user_modules=[…]) and record again"
            )
        self._fail(
            DivergenceError(
                text,
                run_id=self.run_id,
                step=seq,
                location=where,
                next_action=f"`tracekit show {self.run_id}` shows the recorded steps; record again if the change is meant",
                recorded={"type": type, **recorded},
                actual={"kind": kind, **actual},
                differences=found,
            )
        )

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
        if not any(self.index.role):
            self._fail(
                NotReplayableError(
                    "the recording holds no step and no read: a replay of it shows nothing",
                    run_id=self.run_id,
                    reason="nothing was captured",
                    next_action="call tracekit.instrument() before the agent runs, and decorate its tools with @traced_tool",
                )
            )
        if self.report.unconsumed:
            first = self.report.unconsumed[0]
            self._fail(
                UnconsumedStepsError(
                    f"{len(self.report.unconsumed)} recorded step(s) were never asked for, the first: "
                    f"{first['type']} {first['name']!r}",
                    run_id=self.run_id,
                    step=first["seq"],
                    steps=self.report.unconsumed,
                    next_action="the program now ends earlier or takes another way; record again if the change is meant",
                )
            )
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


class ReplayedStep:
    """A step answered from the log; see ``gate.Step``. The body of a structural one runs, and only its end is matched."""

    __slots__ = ("_chunk", "live", "scope", "seq", "session", "spec")

    def __init__(self, session: Replay, scope: Scope, spec: Spec, seq: int) -> None:
        self.session: Final = session
        self.scope: Final = scope
        self.spec: Final = spec
        self.seq: Final = seq
        self.live: Final = spec.structural
        self._chunk = session.index.next_chunk[seq]

    def body(self) -> Scope:
        return self.scope.inside(self.seq, live=not self.spec.structural)

    def answer(self) -> Outcome:
        seq = self._outcome()
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def answer_async(self) -> Outcome:
        seq = self._outcome()
        await self.session.schedule.wait_async(seq, self._suspended(seq))
        return self.session.outcome(self, seq)

    def next_chunk(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        self.session.schedule.wait(seq)
        return self.session.outcome(self, seq)

    async def next_chunk_async(self) -> Outcome | None:
        seq = self._chunk
        if not seq:
            return None
        self._chunk = self.session.index.next_chunk[seq]
        await self.session.schedule.wait_async(seq, self._suspended(seq))
        return self.session.outcome(self, seq)

    def lazy(self) -> str | None:
        session = self.session
        seq = self._chunk or session.index.answer[self.seq]
        found = (session.trace.entry(seq).get("meta") or {}).get("lazy") if seq else None
        return found if isinstance(found, str) else None

    def _outcome(self) -> int:
        session = self.session
        seq = session.index.answer[self.seq]
        if seq == 0:
            raise session.fail(
                TraceExhaustedError(
                    f"the recording ends inside this step: {self.spec.family} {self.spec.name!r} has no outcome in the log",
                    run_id=session.run_id,
                    step=self.seq,
                    location=caller(),
                    next_action="this is where the recorded process died; nothing is known of what came after",
                )
            )
        return seq

    def _suspended(self, seq: int) -> bool:
        return bool((self.session.trace.entry(seq).get("meta") or {}).get("suspended"))

    # -- structural steps ------------------------------------------------------------------------------------------------

    def chunk(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        pass

    def done(self, output: object, *, info: Mapping[str, Any] | None = None) -> None:
        self._end()

    def failed(self, error: BaseException, *, output: object = None, info: Mapping[str, Any] | None = None) -> None:
        self._end()

    def _end(self) -> None:
        session = self.session
        seq = session.index.answer[self.seq]
        if seq and session.failure is None:
            session.schedule.skip(seq)
            session.passed(self.scope, seq)


class ReplayedTimer:
    """A sleep or deadline that fires at its recorded place, or never; see ``gate.Timer``."""

    __slots__ = ("_seq", "_session", "_ticket", "on_delivery")

    live: Final = False

    def __init__(self, session: Replay, seq: int | None) -> None:
        self._session = session
        self._seq = seq
        self._ticket: Ticket | None = None
        #: Told that it fires, before whoever waits for it goes on.
        self.on_delivery: Callable[[], object] | None = None

    def fired(self) -> None:
        raise AssertionError("a replayed timer fires at its recorded place")

    def wait(self) -> None:
        self._session.schedule.wait(self._seq)
        self._delivered()

    async def wait_async(self) -> None:
        await self._session.schedule.wait_async(self._seq, True)
        self._delivered()

    def on_fire(self, callback: Callable[[], object], *, anywhere: bool = False) -> None:
        def fire() -> None:
            self._delivered()
            callback()

        act = callback if self.on_delivery is None else fire
        self._ticket = self._session.schedule.callback(self._seq, act, anywhere=anywhere)

    def _delivered(self) -> None:
        if self.on_delivery is not None:
            self.on_delivery()

    def cancel(self) -> None:
        if self._ticket is not None:
            self._session.schedule.cancel(self._ticket)
