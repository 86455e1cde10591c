"""Replaying recorded runs: the ``replay()`` block, from opening the trace to the verdict."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, Literal

from .._capture import callers, instrumentation, leftovers, plugins, randomness, stdout, world
from .._capture import guard as guards
from .._capture.guard import Attempt
from .._journal.reader import ENDS, Trace, Verdict
from .._journal.store import Store
from .._runtime.callsite import caller, say
from .._runtime.process import process
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay
from .._runtime.session import current
from .._runtime.verdict import CAN_BE_INEXACT, Report
from .._values import from_json
from ..errors import DivergenceError, LiveCallBlockedError, ReplayError, RunStateError
from . import block, children
from .block import Block, called_from
from .ending import (
    another_abort,
    another_end,
    drain,
    drain_async,
    failed,
    hash_seed_hint,
    last_entry,
    on_process_end,
    same_error,
)
from .environment import drift, environment
from .partial import PartialReplay, branch, seal_branch
from .run import UNSET, Run, register, unregister
from .undoing import Undoing

__all__ = ["ReplayBlock", "replay"]


class ReplayBlock(Block["ReplayBlock"]):
    """The block that ``replay`` returns. ``report`` is complete when it has ended; ``result`` is the recorded run's."""

    verb = "replay"

    def __init__(self, run: str | os.PathLike[str] | Run, options: dict[str, Any], called_from: str | None) -> None:
        self._which = run
        self.options: Final = options
        self.called_from: Final = called_from
        self._taken = ExitStack()
        self._session: Replay | None = None
        self._partial: PartialReplay | None = None
        #: The step at which to stop in the debugger.
        self.break_at: int | None = None
        #: How the program ended without an exception, where there is more to say of it than that.
        self.ended_as: str | None = None
        self._run: Run | None = None
        self._children: children.ReplayedChildren | None = None

    @property
    def started(self) -> bool:
        return self._session is not None

    @property
    def active(self) -> bool:
        """Whether the block is open."""
        return self._session is not None and not self._session.state.ended

    def _again(self) -> ReplayBlock:
        return ReplayBlock(self._which, self.options, self.called_from)

    def _returned(self, value: Any) -> None:
        if self._run is not None and self._run.result is UNSET and self.result is not None:
            self._run.set_result(value)

    @property
    def session(self) -> Replay:
        if self._session is None:
            raise RunStateError("the replay has not begun", next_action="use it as `with replay(run) as session:`")
        return self._session

    def set_result(self, value: Any) -> None:
        """Set the result of the program; at the end of the block it is compared with the recorded one."""
        if self._run is None:
            raise RunStateError("the replay has not begun", next_action="use it as `with replay(run) as session:`")
        self._run.set_result(value)

    def abort(self, reason: str) -> None:
        """As ``Run.abort``: the recorded compensations answer, and the end is compared."""
        self._of_block().abort(reason)

    async def abort_async(self, reason: str) -> None:
        await self._of_block().abort_async(reason)

    def _of_block(self) -> Run:
        if self._run is None:
            raise RunStateError("the replay has not begun", next_action="use it as `with replay(run) as session:`")
        return self._run

    def aborted_as(self, undoing: Undoing | None) -> None:
        """How the program's own run was aborted, if it was."""
        if self._run is not None and self._run.undoing is None:
            self._run.undoing = undoing

    @property
    def report(self) -> Report:
        """The report of the replay: warnings, and the verdict with its reasons."""
        return self.session.report

    @property
    def run_id(self) -> str:
        return self.session.run_id

    @property
    def result(self) -> Any:
        """The result of the recorded run; ``None`` where it has no end or no result."""
        trace = self.session.trace
        last = last_entry(trace)
        if last["type"] != "run.completed" or "output" not in last:
            return None
        return from_json(trace.expand(self.session.originals.of(last, trace.expand, "output")["output"]))

    @property
    def input(self) -> Any:
        """What the recorded run was given."""
        trace = self.session.trace
        return from_json(trace.expand(self.session.originals.first(trace).get("input")))

    def _enter(self) -> ReplayBlock:
        outer = current.get()
        if outer is not None:
            raise RunStateError(
                f"replay() inside the open run {outer.session.run_id}",
                run_id=outer.session.run_id,
                location=caller(),
                next_action="end that block first",
            )
        options = self.options
        if self.called_from is not None:
            callers.include(self.called_from)
        self._session = session = self._open(options)
        session.break_at = self.break_at
        try:
            self._check_environment(session, options)
            with ExitStack() as taken:
                self._acquire(session, options, taken)
                self._taken = taken.pop_all()
        except BaseException:
            session.trace.release()
            raise
        return self

    def _acquire(self, session: Replay, options: dict[str, Any], taken: ExitStack) -> None:
        """Engage the guard and the hooks; ``taken`` releases everything in reverse order."""
        if options["live"]:
            self._partial = branch(session, _store(options), options["live"], self.input)
        if self.called_from is not None:  # else somebody stands around it who ends the process
            taken.callback(on_process_end(self._cut_off))
        taken.callback(plugins.supply_placeholders())
        world.enter()
        taken.callback(world.leave)
        taken.enter_context(leftovers.kept())
        if options["guard"] == "off":
            session.report.allow("guard", "the guard was off, and nobody watched what the program reached")
        guard = guards.Guard(
            options["guard"],
            options["allow_hosts"],
            options["dry_run"],
            failed=self._blocked,
            permitted=self._permitted,
        )
        guard.engage()
        taken.callback(guard.release)
        if options["guard"] == "process":
            process.refuse_outside(self._outside)
            taken.callback(process.allow_outside, self._outside)
        self._scope_in(self._partial or session, session.trace.entry(1).get("agent_id"))
        taken.callback(self._scope_out)
        session.schedule.begin()
        if self._partial is None:
            session.state.children = self._children = children.ReplayedChildren(session, options, *self._lineage())
            taken.callback(self._children.conclude)
        process.opened(session)
        taken.callback(process.closed, session)
        self._run = Run(session, session.trace.path, session.trace.entry(1).get("name"))
        register(self._partial or session, self._run)
        taken.callback(unregister, self._partial or session)
        randomness.align_numpy(session)

    def _lineage(self) -> tuple[str, str | None]:
        """The path of the process's own line, and where its children say how they ended."""
        return "", None

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        """Begin in place of a ``record()`` with these options."""
        self._start()
        run = Run(self.session, self.session.trace.path, options["name"])
        register(self.session, run)
        if options["agent"] is not None or options["identity"] is not None:
            self.session.identify(options["agent"] or "agent", options["identity"])
        return run

    def as_run(self) -> Run:
        """The replayed run, as its program sees it, once the block has begun."""
        assert self._run is not None
        return self._run

    def end_for(self, run: Run, error: BaseException | None) -> None:
        """End as the ``record()`` block of ``run`` ends."""
        unregister(self.session)
        if error is None and run.result is not UNSET:
            self.set_result(run.result)
        self.aborted_as(run.undoing)
        self._end(error)

    @property
    def new_run_id(self) -> str | None:
        """Where steps went live: the id of the run that was written."""
        return None if self._partial is None else self._partial.new.run_id

    def _open(self, options: dict[str, Any]) -> Replay:
        which = self._which
        store = _store(options)
        path = which.path if isinstance(which, Run) else store.find(which)
        trace = Trace(path)
        try:
            return self._opened(trace, store.check(trace), options)
        except BaseException:
            trace.close()
            raise

    def _opened(self, trace: Trace, verdict: Verdict, options: dict[str, Any]) -> Replay:
        if verdict.count == 0:
            raise RunStateError(f"{trace.path} holds no entry: there is nothing to replay")
        session = self._session_of(trace, Redactor.of_process(options["redact"], trace=trace.path), options)
        files = options["live_files"]
        session.inputs.today = {"environment": options["live_env"], "file": files, "listing": files, "scan": files}
        if verdict.state == "incomplete":
            sentence = f"the run is incomplete: {verdict.problem}; the replay ends where the log ends"
            session.report.unknown("incomplete", sentence)
            session.report.warn(sentence)
        return session

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        return Replay(trace, redactor, on_divergence=options["on_divergence"], strict=frozenset(options["strict"]))

    def _check_environment(self, session: Replay, options: dict[str, Any]) -> None:
        recorded = session.trace.entry(1).get("meta", {}).get("environment", {})
        found = drift(recorded, environment(instrumentation.packages()))
        verdict = session.report.verdict
        for sentence in found:
            session.report.remark("environment", sentence)
        if verdict.reasons:  # the caller does not want to replay in another environment: nothing begins
            verdict.ended = True
            raise session.fail(verdict.error(session.run_id, "the environment is not that of the recording"))
        for sentence in found:
            session.report.warn(sentence)
            warnings.warn(f"tracekit: replay of {session.run_id}: {sentence}", RuntimeWarning, stacklevel=6)

    def came_to(self, step: int) -> bool:
        """Whether the program made the recorded step itself, not only one that it happened inside."""
        return self.session._used[step] == 1

    def compare_result(self, value: Any) -> None:
        """The program's result against the recorded one; a difference is a failure of the replay."""
        session = self.session
        trace = session.trace
        last = last_entry(trace)
        if last["type"] != "run.completed" or "output" not in last:
            return
        code = "result" if self.ended_as is None else "exit_status"
        session.compare_end(code, "the program came to another result", last["seq"], value)

    def _exit(self, error: BaseException | None) -> None:
        session = self.session
        try:
            if error is None or isinstance(error, Exception):
                drain(session)
        finally:
            if self._children is not None:
                self._children.conclude()
            session.state.ended = True
            session.schedule.close()
            self._taken.close()
            if self._partial is not None:
                seal_branch(self._partial, _store(self.options), error)
        try:
            self._conclude(session, error)
        finally:
            session.trace.release()

    def _cut_off(self, status: int) -> int:
        """The process ends inside the block, which so can't raise: the verdict is printed, and is the exit status unless that has one."""
        session = self.session
        trace = session.trace
        with suppress(ReplayError):  # the session keeps it
            if self._partial is None and trace.entry(1).get("meta", {}).get("whole_program"):
                self.ended_as = f"exit status {status}"
                self.set_result({"status": status})
                self._exit(None)
            else:
                session.finish()
                if last_entry(trace)["type"] in ENDS:
                    session.report.inexact(
                        "exit_status", "the process ended inside the block, and the recorded one did not"
                    )
        verdict = session.report.verdict
        verdict.ended = True
        session.close_verdict()
        say(f"replay of {session.run_id}: {verdict.line}; the process ended inside its block")
        for reason in verdict.reasons:
            say(f"  {reason.code}: {reason.text}")
        return status or verdict.exit_code

    def _blocked(self, error: LiveCallBlockedError) -> None:
        """The guard has refused something: this replay's failure, unless it is known to be another's."""
        if error.run_id in (None, self.run_id):
            self.session.fail(error)

    def _permitted(self, attempt: Attempt) -> None:
        """Something has reached one of the hosts that the caller allowed."""
        self.session.report.allow(
            "hosts", f"{attempt.operation} to {attempt.text}", operation=attempt.operation, target=attempt.text
        )

    def _outside(self, family: str, name: str) -> None:
        """A captured call in a thread or callback that has lost the run would be live."""
        raise self.session.fail(
            LiveCallBlockedError(
                f"{family} {name!r} was called outside the replayed run, where it would be live; it was not executed",
                run_id=self.run_id,
                location=caller(),
                operation=f"{family} {name}",
                next_action="start what calls it inside the block; beside other live work, replay(..., guard='context')",
            )
        )

    async def _settle(self) -> None:
        await drain_async(self.session)

    def _conclude(self, session: Replay, error: BaseException | None) -> None:
        """The first failure itself ends the block, whatever else is in flight; else leftovers do, another end, or the verdict."""
        try:
            if session.failure is not None:
                self._refuse(session, error)
                return
            if error is None or self.recorded_failure(error):
                session.finish()
            self._compare_end(session, error)
            self._compare_output(session)
            session.conclude(error)
        finally:
            session.account()
            session.report.verdict.ended = True

    def _compare_output(self, session: Replay) -> None:
        """What the program printed, where both the recording and this process kept it."""
        recorded = (last_entry(session.trace).get("meta") or {}).get("printed")
        if not isinstance(recorded, dict) or not stdout.observed():
            if "output" in session.report.verdict.strict:
                session.report.unknown("output_not_kept", "what the program printed was not kept, then or now")
            return
        now = session.state.extras.of(stdout.PrintedLines).as_dict(session.redactor.redact_text)
        for one in stdout.differences(recorded, now):
            session.report.remark("output", str(one), lane=one.lane, line=one.number)

    def _compare_end(self, session: Replay, error: BaseException | None) -> None:
        """Compare how the program ended with how the recorded one did, where it has an end."""
        undoing = None if self._run is None else self._run.undoing
        otherwise = another_abort(
            session.trace, session.redactor, session.equal, None if undoing is None else undoing.reason
        )
        if otherwise is not None:
            self._ended_otherwise("abort", otherwise, error)
        recorded = failed(session.trace)
        if recorded if error is None else not self.recorded_failure(error):
            if recorded:
                self._ended_otherwise("error", another_end(session.trace, error, self.ended_as), error)
            elif last_entry(session.trace)["type"] in ENDS:
                say = session.report.inexact if self._partial is None else session.report.allow
                say("error", f"the program ended with {error!r}, and the recorded one did not", step=len(session.trace))
        elif error is None and self._run is not None and self._run.result is not UNSET and self._partial is None:
            self.compare_result(self._run.result)

    def _ended_otherwise(self, code: str, found: DivergenceError, error: BaseException | None) -> None:
        """Where steps went live, another end may follow from that."""
        if self._partial is None:
            self.session.ended_otherwise(code, found, error)
        else:
            differences = found.differences  # type: ignore[attr-defined]
            self.session.report.allow(
                "live_differs", found.what.partition("\n")[0], step=found.step, differences=differences
            )

    def _refuse(self, session: Replay, error: BaseException | None) -> None:
        session.account()
        failure = session.failure
        assert failure is not None
        if isinstance(failure, DivergenceError):
            hint = self._hint(session)
            if hint is not None:
                failure.next_action = f"{failure.next_action}; {hint}" if failure.next_action else hint
        if error is failure:
            return
        raise failure from (None if isinstance(error, ReplayError) else error)

    def _hint(self, session: Replay) -> str | None:
        """A hint to add to a failure of the replay, or ``None``."""
        return hash_seed_hint(session.trace.entry(1), environment()["hash_seed"])

    def recorded_failure(self, error: BaseException) -> bool:
        """Whether the recorded run ended with this error as well: then the replay is judged as any other."""
        return same_error(self.session.trace, self.session.redactor, self.session.equal, error)


def _kinds(live: Iterable[str]) -> tuple[str, ...]:
    kinds = (live,) if isinstance(live, str) else tuple(live)
    for kind in kinds:
        if kind.partition(":")[0] not in ("llm", "tool", "http"):
            raise ValueError(f'live takes "llm", "tool" and "http", or one name as in "tool:search", not {kind!r}')
    return kinds


def _store(options: dict[str, Any]) -> Store:
    store = options["store"]
    return store if isinstance(store, Store) else Store(store)


def replay(
    run: str | os.PathLike[str] | Run,
    *,
    store: str | os.PathLike[str] | None = None,
    live: Iterable[str] = (),
    on_divergence: Literal["raise", "warn"] = "raise",
    strict: Iterable[Literal["environment", "clock", "output", "redacted"]] = (),
    guard: Literal["process", "context", "off"] = "process",
    allow_hosts: Iterable[str] = (),
    dry_run: bool = False,
    live_env: Iterable[str] = (),
    live_files: Iterable[str] = (),
    redact: Iterable[Any] = (),
) -> ReplayBlock:
    """Replay a recorded run: ``with replay(run.id) as session:`` around the same code.

    ``run`` is an id, a path or a ``Run``. Inside, every captured step is answered from the file; nothing reaches the live
    world (``guard``), and the first difference raises ``DivergenceError``, ``TraceExhaustedError`` or ``LiveCallBlockedError``, none
    of which an ``except Exception`` catches. Steps that nobody asked for raise ``UnconsumedStepsError`` at the end, and a replay that
    came to its end and was not exact (outcomes in another order, say) ``InexactReplayError``; ``session.report.verdict`` says why.

    ``on_divergence="warn"`` goes on where that can do no harm, with an ``InexactReplayWarning`` at the end. ``strict`` makes the verdict's
    remarks of ``"environment"``, ``"clock"``, ``"output"`` or ``"redacted"`` inexact. ``dry_run`` blocks file writes too, ``allow_hosts``
    lets a test's own server be reached, ``redact`` repeats the patterns of the recording. Of the environment variables that ``live_env``
    names (``"LOG_LEVEL"``, ``"MY_*"``), and of the files that ``live_files`` does (``"prompts/*.txt"``), the program is given today's, not
    the recorded ones.

    ``live={"llm"}`` (or ``"tool:search"`` for one name) lets these steps go live: a partial replay, written as a new run that names its
    origin (``session.new_run_id``), with the differences in the report. What is irreversible never goes live.

    Raises ``RunNotFoundError``, ``TraceIntegrityError`` or ``TraceVersionError`` before anything is run.
    """
    block.run_to_replay(run, Run)
    block.taken_as("store", store, (str, os.PathLike, Store), "a directory")
    wanted = block.strings("strict", strict)
    wrong = set(wanted) - {*CAN_BE_INEXACT}
    if wrong:
        raise ValueError(f"strict takes {', '.join(CAN_BE_INEXACT)}, not {sorted(wrong)!r}")
    if on_divergence not in ("raise", "warn"):
        raise ValueError(f'on_divergence is "raise" or "warn", not {on_divergence!r}')
    if guard not in ("process", "context", "off"):
        raise ValueError(f'guard is "process", "context" or "off", not {guard!r}')
    options = {
        "store": store,
        "live": _kinds(live),
        "on_divergence": on_divergence,
        "strict": wanted,
        "guard": guard,
        "allow_hosts": block.strings("allow_hosts", allow_hosts),
        "dry_run": dry_run,
        "live_env": block.strings("live_env", live_env),
        "live_files": block.strings("live_files", live_files),
        "redact": block.patterns(redact),
    }
    return ReplayBlock(run, options, called_from())
