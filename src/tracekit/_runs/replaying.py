"""The block of a replay: replays a recorded run, from opening the trace to the verdict."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .. import _reality
from .._capture import callers, handed, inputs, instrumentation, plugins, processes, randomness, stdio, world, zones
from .._capture import guard as guards
from .._capture.guard import Attempt
from .._journal.entry import ENDS, meta_of
from .._journal.store import Store, file_beside, is_segment, segment_of
from .._runtime.callsite import caller, not_made, raised_at, say, warn_of_replay
from .._runtime.inputs import Disk
from .._runtime.lane import ROOT, Lane, Root
from .._runtime.process import process
from .._runtime.redaction import Redactor
from .._runtime.session import Scope, Session, current, enter, owner
from .._runtime.verdict import Report
from .._values import exception_text, to_json
from .._values.decoding import from_json
from ..errors import (
    DivergenceError,
    LiveCallBlockedError,
    ReplayError,
    RunStateError,
    TraceExhaustedError,
    TracekitError,
    UnconsumedStepsError,
)
from .block import Block, hand_out_tasks
from .children import is_open
from .ending import (
    NO_RESULT,
    IdleReporter,
    another_abort,
    another_end,
    at_process_end,
    drain,
    drain_async,
    failed,
    hash_seed_hint,
    on_process_end,
    same_error,
)
from .environment import drift, environment
from .replayed_children import ReplayedChildren
from .run import UNSET, JoinedProcess, Run, identify, register, unregister

if TYPE_CHECKING:
    from .._journal.reader import Trace, Verdict
    from .._runtime.replayer import Replay, StepDebugger
    from .._runtime.spending import Spending
    from .debugging import RemoteDebugger
    from .determinism import TranscriptWriter
    from .imported import ImportedReplay
    from .partial import PartialReplay
    from .undoing import Undoing

__all__ = ["ReplayBlock", "TranscribedReplayBlock", "join_replay"]


class ReplayBlock(Block["ReplayBlock"]):
    """The block that ``replay`` returns. ``report`` is complete when the block has ended; ``result`` is that of the
    recorded run."""

    verb = "replay"

    def __init__(self, run: str | os.PathLike[str] | Run, options: dict[str, Any], called_from: str | None) -> None:
        self._which = run
        self.options: Final = options
        self.called_from: Final = called_from
        self._taken = ExitStack()
        self._session: Replay | None = None
        self._partial: PartialReplay | None = None
        self._imported: ImportedReplay | None = None
        #: The debugger that stops the program at its steps, if any; and the step from which on the ``live`` kinds go
        #: live.
        self.debugger: StepDebugger | None = None
        self.live_from = 0
        #: The program's files: restored to their recorded state at the start, and changed as the recorded steps changed
        #: them.
        self.disk: Disk | None = None
        #: How the program ended, if without an exception but not simply by reaching its end.
        self.ended_as: str | None = None
        self.ended_at: str | None = None
        #: Whether the process ends with the block.
        self.ends_process = False
        self._run: Run | None = None
        self._children: ReplayedChildren | None = None
        #: Whether child processes of the recorded run had joined it.
        self._had_children = True
        self._pid: Final = os.getpid()

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

    @property
    def _seen(self) -> Session:
        """The session that the program sees."""
        return self._partial or self._imported or self.session

    def set_result(self, value: Any) -> None:
        """Set the program's result; at the end of the block it is compared with the recorded one."""
        if self._run is None:
            raise RunStateError("the replay has not begun", next_action="use it as `with replay(run) as session:`")
        self._run.set_result(value)

    def abort(self, reason: str) -> None:
        """Abort the run like ``Run.abort``: the recorded compensations answer, and the end is compared."""
        self._of_block().abort(reason)

    async def abort_async(self, reason: str) -> None:
        await self._of_block().abort_async(reason)

    def _of_block(self) -> Run:
        if self._run is None:
            raise RunStateError("the replay has not begun", next_action="use it as `with replay(run) as session:`")
        return self._run

    def aborted_as(self, undoing: Undoing | None) -> None:
        """Note how the program's own run was aborted, if it was."""
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
        """The result of the recorded run; ``None`` if it has no end or no result."""
        trace = self.session.trace
        last = trace.last
        if not trace.has_result:
            return None
        return from_json(trace.expand(self.session.originals.of(last, trace.expand, "output")["output"]))

    @property
    def input(self) -> Any:
        """The input of the recorded run."""
        trace = self.session.trace
        return from_json(trace.expand(self.session.originals.first(trace).get("input")))

    def _enter(self) -> ReplayBlock:
        outer = current.get()
        if outer is not None:
            raise self._inside(outer, "end that block first")
        options = self.options
        if self.called_from is not None:
            callers.include(self.called_from)
        _watch_forks()
        self._session = session = self._open(options)
        include_user_modules(session.trace)
        try:
            with ExitStack() as taken:
                if options["guard"] != "context":  # beside live traffic, which has the process's own zone
                    taken.callback(zones.take_on(meta_of(session.trace.first).get("environment") or {}))
                self._check_environment(session, options)
                self._acquire(session, options, taken)
                self._taken = taken.pop_all()
        except BaseException:
            session.trace.release()
            raise
        return self

    def _acquire(self, session: Replay, options: dict[str, Any], taken: ExitStack) -> None:
        """Engage the guard and the hooks; ``taken`` releases everything in reverse order."""
        if session.trace.imported_from is not None:
            self._import(session, options, taken)
        elif options["live"]:
            from .partial import BranchedReplay, Live, branch

            assert isinstance(session, BranchedReplay)  # because the options contain ``live``
            self._partial = branch(session, _branches(options), Live(options["live"]), self.input, self.live_from)
        if self.disk is not None:
            session.inputs.lay(self.disk)
        elif not options["dry_run"]:
            session.inputs.lay(inputs.OwnDisk())
        if self.called_from is not None:  # otherwise the caller handles the end of the process
            taken.callback(on_process_end(self._cut_off))
        # A process that joins has been given the credentials of the whole run.
        of_run = plugins.replayed_credentials(session.trace.first["meta"], session.trace.last.get("meta"))
        recorded = options.setdefault("credentials", of_run)
        taken.callback(plugins.supply_placeholders(recorded))
        world.enter()
        taken.callback(world.leave)
        from .._capture import leftovers

        taken.enter_context(leftovers.kept())
        if options["guard"] == "off":
            session.report.allow("guard", "the guard was off, so what the program reached was not watched")
        guard = guards.Guard(
            options["guard"],
            options["allow_hosts"],
            options["dry_run"],
            failed=self._blocked,
            permitted=self._permitted,
            writes=options["writes"],
            wrote=self._wrote,
        )
        guard.engage()
        taken.callback(guard.release)
        if options["guard"] == "process":
            process.refuse_outside(self._outside)
            taken.callback(process.allow_outside, self._outside)
        session.schedule.cut_off = session.trace.last["type"] not in ENDS
        self._scope_in(self._seen, session.trace.first.get("agent_id"))
        taken.callback(self._scope_out)
        session.schedule.begin()
        reached = options["guard"] != "process" or options["allow_hosts"] or self._partial is not None
        session.threads.closed_off = not reached and not self._lineage()[0]
        if self._partial is None and self._imported is None:
            session.state.children = self._children = ReplayedChildren(
                session, options, *self._lineage(), had_children=self._had_children
            )
            taken.callback(self._children.conclude)
        process.opened(session)
        taken.callback(process.closed, session)
        self._run = Run(self._imported or session, session.trace.path, session.trace.first.get("name"))
        register(self._seen, self._run)
        taken.callback(unregister, self._seen)
        randomness.align_numpy(session)
        inputs.follow_directory(session)

    def _import(self, session: Replay, options: dict[str, Any], taken: ExitStack) -> None:
        """Let an imported run answer what it can; everything else is live."""
        if options["live"]:
            raise RunStateError(
                f"{session.trace.path} is imported: all but its HTTP is live anyway, and that can't be",
                run_id=session.run_id,
                next_action="leave out live=, or record the program with tracekit",
            )
        from .imported import ImportedReplay

        self._imported = ImportedReplay(session, guarded=options["guard"] != "off")
        taken.callback(self._imported.close)

    def _lineage(self) -> tuple[str, str | None]:
        """Return the lane path of this process, and the directory in which its children report how they ended."""
        return "", None

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        """Begin in place of a ``record()`` with these options."""
        self.__enter__()
        run = Run(self._imported or self.session, self.session.trace.path, options["name"])
        register(self._seen, run)
        identify(self._seen, options)
        return run

    def as_run(self) -> Run:
        """Return the program's view of the replayed run, once the block has begun."""
        assert self._run is not None
        return self._run

    async def drain_for(self, run: Run) -> None:
        await self._drain()

    def end_for(self, run: Run, error: BaseException | None) -> None:
        """End as the ``record()`` block of ``run`` would."""
        unregister(self._seen)
        if error is None and run.result is not UNSET:
            self.set_result(run.result)
        self.aborted_as(run.undoing)
        self._exit(error)

    @property
    def new_run_id(self) -> str | None:
        """The id of the new run that was written, if steps went live."""
        return None if self._partial is None else self._partial.new.run_id

    def _open(self, options: dict[str, Any]) -> Replay:
        which = self._which
        store = Store.at(options["store"])
        path = which.path if isinstance(which, Run) else store.find(which)
        from .._runtime.replayer import for_replay

        trace = for_replay(path)
        try:
            verdict = store.check_replayable(trace)
            self._had_children = bool(verdict.segments) or is_segment(path)
            return self._opened(trace, verdict, options)
        except BaseException:
            trace.close()
            raise

    def _opened(self, trace: Trace, verdict: Verdict, options: dict[str, Any]) -> Replay:
        session = self._session_of(trace, Redactor.of_process(options["redact"], trace=trace.path), options)
        session.divergences.settings_changed = partial(
            _changed_settings, trace, session.redactor, plugins.facts_to_record().get("settings", {})
        )
        files = options["live_files"]
        session.inputs.today = {"environment": options["live_env"], "file": files, "listing": files, "scan": files}
        if verdict.state == "incomplete":
            sentence = f"the run is incomplete: {verdict.problem}; the replay ends where the log ends"
            session.report.unknown("incomplete", sentence)
            session.report.warn(sentence)
        return session

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        from .._runtime.matching import Ignored
        from .._runtime.replayer import Replay

        kind = Replay
        if options["live"]:
            from .partial import BranchedReplay as kind
        return kind(
            trace,
            redactor,
            on_divergence=options["on_divergence"],
            strict=frozenset(options["strict"]),
            ignored=Ignored(options["ignore"]),
            debugger=self.debugger,
        )

    def _check_environment(self, session: Replay, options: dict[str, Any]) -> None:
        if session.trace.imported_from is not None:
            return  # it is unknown where the run was recorded
        recorded = meta_of(session.trace.first).get("environment") or {}
        found = drift(recorded, environment())
        verdict = session.report.verdict
        for sentence in found:
            session.report.remark("environment", sentence)
        if verdict.reasons:  # the caller refuses to replay in another environment
            verdict.ended = True
            raise session.fail(verdict.error(session.run_id, "the environment is not that of the recording"))
        for sentence in found:
            session.report.warn(sentence)
            warn_of_replay(f"replay of {session.run_id}: {sentence}", RuntimeWarning, None)

    def compare_result(self, value: Any) -> None:
        """Compare the program's result with the recorded one; a difference fails the replay."""
        session = self.session
        trace = session.trace
        last = trace.last
        if not trace.has_result:
            return
        if self.ended_as is None:
            session.divergences.end("result", "the program gave another result", last["seq"], value)
        else:
            what = "the program ended with another exit status"
            session.divergences.end("exit_status", what, last["seq"], value, self.ended_at)

    @property
    def _is_parents(self) -> bool:
        """Return whether this is a forked child at the end of its parent's block; its own replay ends with the process."""
        return os.getpid() != self._pid

    def _exit(self, error: BaseException | None) -> None:
        if self._is_parents:
            return
        session = self.session
        try:
            try:
                if error is None or isinstance(error, Exception):
                    session.program_ended()
                    drain(self._seen)
            finally:
                self._stop(session, error)
            self._conclude(session, error)
        finally:
            session.trace.release()

    def _stop(self, session: Replay, error: BaseException | None) -> None:
        """Stop answering, and give everything back, whatever interrupts that."""
        try:
            if self._children is not None:
                self._children.conclude()
        finally:
            session.ended_with = error
            session.state.ended = True
            try:
                session.schedule.end(with_process=self.ends_process)
            finally:
                self._taken.close()
        if self._partial is not None:
            from .partial import end_branch

            result = NO_RESULT if self._run is None or self._run.result is UNSET else self._run.result
            end_branch(self._partial, _branches(self.options), error, result)

    def _cut_off(self, status: int) -> int:
        """Print the verdict: the process ends inside the block, which therefore can't raise. It becomes the exit status
        unless there is one."""
        session = self.session
        trace = session.trace
        with suppress(ReplayError):  # kept by the session
            if self._partial is None and trace.first.get("meta", {}).get("whole_program"):
                self.ended_as, self.ends_process = f"exit status {status}", True
                self.set_result({"status": status})
                self._exit(None)
            else:
                session.finish()
                if trace.ended and self._imported is None:
                    session.report.inexact(
                        "exit_status", "the process ended inside the block, and the recorded one did not"
                    )
        if self._imported is not None:
            self._imported.close()
        verdict = session.report.verdict
        verdict.ended = True
        session.close_verdict()
        say(f"replay of {session.run_id}: {verdict.line}; the process ended inside its block")
        for reason in verdict.reasons:
            say(f"  {reason.code}: {reason.text}")
        return status or verdict.exit_code

    def _blocked(self, error: LiveCallBlockedError) -> None:
        """Handle a refusal of the guard: a failure of this replay, unless it is known to belong to another."""
        if error.run_id in (None, self.run_id):
            self.session.fail(error)

    def _wrote(self, path: str, where: str | None) -> None:
        self.session.report.remark("written", f"{path} was written, and stays", name=path, where=where)

    def _permitted(self, attempt: Attempt) -> None:
        """Note that one of the hosts allowed by the caller was reached."""
        self.session.report.allow(
            "hosts", f"{attempt.operation} to {attempt.text}", operation=attempt.operation, target=attempt.text
        )

    def _outside(self, family: str, name: str) -> None:
        """Fail: a captured call in a thread or callback that has lost the run would be live."""
        raise self.session.fail(
            not_made(
                family,
                name,
                "outside the replayed run, where it would be live",
                "start what calls it inside the block; with other live work in parallel: replay(..., guard='context')",
                run_id=self.run_id,
            )
        )

    async def _drain(self) -> None:
        if not self._is_parents:
            self.session.program_ended()
            await drain_async(self._seen)

    def _conclude(self, session: Replay, error: BaseException | None) -> None:
        """End the replay: raise the first failure if there is one, else report leftover steps, a different end, or the
        verdict."""
        try:
            if session.report.verdict.interrupted and error is not None:
                return  # by Ctrl-C, which passes through
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
        """Compare the program's output, if both the recording and this process kept it."""
        meta = meta_of(session.trace.last)
        recorded = meta.get("printed")
        report = session.report
        if not isinstance(recorded, dict) or not stdio.observed():
            if "output" in report.verdict.strict:
                report.unknown("output_not_kept", "what the program printed was not kept, then or now")
            return
        if not (stdio.all_observed() and stdio.keeps_all(recorded)):
            what = "the program wrote to a copy of its standard output, or an older recording has no more than its first lines"
            (report.unknown if "output" in report.verdict.strict else report.remark)("output_not_kept", what)
        printed = session.state.extras.of(stdio.PrintedLines)
        now = printed.as_dict(session.redactor.redact_text)
        found = stdio.differences(recorded, now)
        for one in found:
            from .._runtime.divergence import MADE_BY_A_PACKAGE, looks_like_a_read

            made = looks_like_a_read([{"recorded": one.recorded, "actual": one.actual}])
            text = f"{one}; {MADE_BY_A_PACKAGE}" if made else str(one)
            session.report.remark("output", text, lane=one.lane, line=one.number)
        if not found and (other := stdio.other_order(recorded, meta.get("printed_order"), now, printed.order())):
            session.report.remark("output", str(other), line=other.number)

    def _compare_end(self, session: Replay, error: BaseException | None) -> None:
        """Compare how the program ended with how the recorded one did, if that has an end."""
        if self._imported is not None:
            return
        undoing = None if self._run is None else self._run.undoing
        otherwise = another_abort(
            session.trace, session.redactor, session.comparison.equal, None if undoing is None else undoing.reason
        )
        if otherwise is not None:
            self._ended_otherwise("abort", otherwise, error)
        recorded = failed(session.trace)
        if recorded if error is None else not self.recorded_failure(error):
            if recorded:
                self._ended_otherwise(
                    "error", another_end(session.trace, error, self.ended_as, self._ended_at(error)), error
                )
            elif session.trace.ended:
                say = session.report.inexact if self._partial is None else session.report.allow
                text = f"the program ended with {error!r}, and the recorded one did not"
                say("error", text, step=len(session.trace), where=self._ended_at(error))
        elif error is None and self._run is not None and self._run.result is not UNSET and self._partial is None:
            self.compare_result(self._run.result)

    def _ended_at(self, error: BaseException | None) -> str | None:
        """Return the line that ended the program, unless it ran to its last one."""
        return self.ended_at if error is None else raised_at(error)

    def _ended_otherwise(self, code: str, found: DivergenceError, error: BaseException | None) -> None:
        """Report a different end. If steps went live, that may be a consequence of theirs."""
        if self._partial is None:
            self.session.divergences.another_end(code, found, error)
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
        """Return a hint to add to a failure of the replay, or ``None``."""
        return hash_seed_hint(session.trace.first, environment()["hash_seed"])

    def recorded_failure(self, error: BaseException) -> bool:
        """Return whether the recorded run ended with the same error; then the replay is judged as usual."""
        return same_error(self.session.trace, self.session.redactor, self.session.comparison.equal, error)


class TranscribedReplayBlock(ReplayBlock):
    """A ``replay()`` block that writes a transcript of its steps, result and failure."""

    def __init__(self, path: str, options: dict[str, Any], writer: TranscriptWriter) -> None:
        super().__init__(path, options, None)
        self._writer: Final = writer

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        from .determinism import transcribed_session

        return transcribed_session(self._writer, trace, redactor, options)

    def _hint(self, session: Replay) -> str | None:
        return None  # the hash seed differs on purpose, to find out whether it matters

    def compare_result(self, value: Any) -> None:
        from .._runtime.matching import steady

        tree = steady(self.session.redactor.redact(to_json(value))[0])
        self._writer.write({"kind": "result", "run": self.run_id, "result": tree}, caller())
        super().compare_result(value)


def include_user_modules(trace: Trace) -> None:
    """Count the modules as the program's own code that the recording did, by name, without importing them."""
    named = trace.first.get("meta", {}).get("user_modules")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str):
            callers.include(name)


def _changed_settings(trace: Trace, redactor: Redactor, now: Mapping[str, str]) -> list[str]:
    """Return which environment variables that configure SDKs differ from the recording: an SDK reads today's values."""
    then = trace.first["meta"].get("settings", {})
    found: list[str] = []
    for name in dict.fromkeys((*then, *now)):
        was, is_now = then.get(name), redactor.redact_text(now[name])[0] if name in now else None
        if was != is_now:
            before = "was not set" if was is None else f"was {was!r}"
            today = "is not set now" if is_now is None else f"is {is_now!r} now"
            found.append(
                f"{name} {before} when this was recorded, and {today}: set it as it was; a replay sends nothing there"
            )
    return found


def _branches(options: dict[str, Any]) -> Store:
    """Return the store to which a partial replay writes its run."""
    return Store.at(options["store"]) if options["branches"] is None else Store(options["branches"])


# -- joining a replay --------------------------------------------------------------------------------------------------
#
# A process started by a replayed program: answered from its own segment, and guarded from before its first line.
#
# At its end it writes a report to a file for its parent. A failure ends it with exit code 1 and fails the parent, too.
# If it serves tasks (``@on_task``), its handlers get the recorded ones when it would start listening, or at the end of
# its program.

_really_exit: Final = os._exit
#: The keys that the ticket of a replay must have.
_NEEDED: Final = ("run_id", "trace", "lane", "pool", "program", "redact", "instrument", "options", "reports")


def join_replay(ticket: Mapping[str, Any]) -> None:
    """Replay this process from its recorded segment, or end it: a process of a replay never goes live."""
    try:
        missing = [key for key in _NEEDED if key not in ticket]
        if missing:
            raise ValueError(
                f"{processes.VARIABLE} is not tracekit's: it names a replay, and has no {', '.join(missing)}"
            )
        if os.stat(ticket["reports"]).st_uid != os.getuid():
            raise OSError("another user's")
        process.role = role = ReplayedProcess(ticket)
        role.begin(ticket)
    except BaseException as error:
        sys.stderr.write(f"tracekit: this process belongs to a replay and can't be part of it: {error}\n")
        sys.stderr.flush()
        with suppress(Exception):
            _write_report(_claim_lane(ticket)[1], _report_on(error))
        _really_exit(1)


def _claim_lane(ticket: Mapping[str, Any]) -> tuple[str, str]:
    """Claim a lane and its report file; if another process with the same ticket has claimed it already, take the next."""
    base, n, lane = ticket["lane"], 1, ticket["lane"]
    while True:
        report = os.path.join(ticket["reports"], f"{segment_of(lane)}.json")
        try:
            os.close(os.open(f"{report}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return lane, report
        except FileExistsError:
            n += 1
            lane = f"{base}+{n}"


def _write_report(path: str, report: Mapping[str, Any]) -> None:
    with guards.allow():
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(report, file, default=repr)
        os.replace(f"{path}.new", path)


def _report_on(error: BaseException | None, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    failure: dict[str, Any] | None = None
    if error is not None:
        text = error.what if isinstance(error, TracekitError) else exception_text(error)
        where = getattr(error, "location", None)
        failure = {
            "type": type(error).__name__,
            "text": f"{text} (at {where})" if where else text,
            "next_action": getattr(error, "next_action", None),
            "at_log_end": getattr(error, "at_log_end", False),
            "step": getattr(error, "step", None),
        }
    return {"pid": os.getpid(), "failure": failure, "warnings": list(warnings)}


def _verdict(block: ReplayBlock | None) -> dict[str, Any]:
    """Return what the replay of a segment contributes to the verdict on the run."""
    if block is None or not block.started:
        return {}
    verdict = block.report.verdict.as_dict()
    kinds = {kind: verdict[kind][:100] for kind in ("reasons", "allowed", "remarks")}
    return {**kinds, "matched": block.report.matched}


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    """In a forked child of a replayed program, discard the parent's replay except the guard, which stays until the
    child has its own."""
    found = processes.forking.get()
    if found is None or found.live:
        return
    try:
        before = guards.engaged()
        for session in process.sessions:
            session.state.ended = True
            process.closed(session)
        current.set(None)
        join_replay({**json.loads(found.ticket), "instrument": False})
        for guard in before:
            guard.release()
        processes.left_by_fork()
    except BaseException as error:
        with suppress(Exception):
            sys.stderr.write(f"tracekit: this forked process belongs to a replay and can't be part of it: {error!r}\n")
            sys.stderr.flush()
        _really_exit(1)


def _never_return(family: str, name: str) -> NoReturn:
    """Hold the calling thread until the process is killed."""
    while True:
        _reality.sleep(60)


class _SegmentReplay(ReplayBlock):
    """The replay of one segment, in its process."""

    def __init__(self, path: str, options: dict[str, Any], lane: str, reports: str, agent: str | None) -> None:
        super().__init__(path, options, None)
        self._lane: Final = lane
        self._reports: Final = reports
        self._agent: Final = agent

    def _lineage(self) -> tuple[str, str | None]:
        return self._lane, self._reports

    def idle_children(self) -> list[Any] | None:
        """Return the idle states of the running descendant processes; ``None`` if one of them is busy, or this one may
        continue by itself."""
        if self.session.schedule.may_hand_out:
            return None
        return [] if self._children is None else self._children.idle()

    def waiting_for_children(self) -> set[int]:
        """Return the threads that wait for the end of a descendant process."""
        return set() if self._children is None else self._children.waiting

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        if options.get("transcript") is None:
            return super()._session_of(trace, redactor, options)
        from .determinism import TranscriptWriter, transcribed_session

        with guards.allow():
            transcript = TranscriptWriter(f"{options['transcript']}.{segment_of(self._lane)}")
        return transcribed_session(transcript, trace, redactor, options)

    def _scope_in(self, session: Session, agent: str | None, spending: Spending | None = None) -> Lane:
        lane = Root(self._lane, owner())
        self._token = enter(Scope(session, lane, ROOT, self._agent))
        self.scope = Scope(session, lane, ROOT, self._agent)
        return lane


class ReplayedProcess(JoinedProcess):
    """The role of this process as a child process of a replay."""

    def __init__(self, ticket: Mapping[str, Any]) -> None:
        super().__init__(ticket["program"])
        with guards.allow():
            self._lane, self._report = _claim_lane(ticket)
        self._pid: Final = os.getpid()
        self._pool: Final[bool] = ticket["pool"]
        self._error: BaseException | None = None
        self._blocked: LiveCallBlockedError | None = None
        self._over = False
        self._open = False
        self._block: _SegmentReplay | None = None
        patterns = tuple(re.compile(pattern, flags) for pattern, flags in ticket["redact"])
        self._options: Final = {**ticket["options"], "store": None, "live": (), "redact": patterns}
        self._debugger: RemoteDebugger | None = None
        self._trace: Final = ticket["trace"]
        self._run_id: Final = ticket["run_id"]
        self._reports: Final = ticket["reports"]

    def begin(self, ticket: Mapping[str, Any]) -> None:
        """Answer this process from its segment from now on, or only guard it if it has none."""
        segment = segment_of(self._lane)
        path = file_beside(self._trace, segment)
        if (address := self._options.get("debugger")) is not None:
            from .debugging import joined

            self._debugger = joined(address, segment)
        plugins.supply_placeholders(ticket["options"]["credentials"])
        if ticket["instrument"]:
            instrumentation.instrument()
        if os.path.exists(path):
            self._play(path, ticket["agent"])
        elif ticket.get("without_segment"):
            self._stop_before_first_step()
        else:
            self._watch(ticket["pool"])
        at_process_end(self.end, self.failed)

    def _play(self, path: str, agent: str | None) -> None:
        self._open = is_open(path)
        block = self._block = _SegmentReplay(path, self._options, self._lane, self._reports, agent)
        block.debugger, block.ends_process = self._debugger, True
        block.__enter__()
        block.session.state.joined = True
        debugger = self._debugger
        IdleReporter(
            self._report,
            self._left,
            block.waiting_for_children,
            block.idle_children,
            lambda: debugger is not None and debugger.stands,
            block.session.trace,
        )

    def _left(self) -> list[dict[str, Any]]:
        """Return the recorded steps that the program has not reached."""
        assert self._block is not None
        session = self._block.session
        return [{**step, "ts_ns": session.trace.entry(step["seq"])["ts_ns"]} for step in session._unconsumed()]

    def before_signal(self, pid: int) -> None:
        """Write the report now if the signal may kill this very process, which could not write it afterwards."""
        if pid == self._pid and self._block is not None and self._open and not self._left():
            _write_report(
                self._report,
                _report_on(None, (f"the process {self._lane} ended itself by a signal, where its log ends",)),
            )

    def _stop_before_first_step(self) -> None:
        """Let this process get no further than its first step: the recorded one was killed before it had made any."""
        self._engage_guard()
        process.refuse_outside(_never_return)
        IdleReporter(self._report, list, set, list, lambda: False)

    def _watch(self, pool: bool) -> None:
        """Guard a pool's worker. It has no segment itself: each call it receives is answered from that call's own
        segment."""
        if not pool:
            raise LiveCallBlockedError(
                f"the recorded run has no process {self._lane}",
                next_action="look at what decides whether it is started; record again if the change is meant",
            )
        self._engage_guard()
        process.refuse_outside(self._outside)

    def _engage_guard(self) -> None:
        options = self._options
        guards.Guard(
            options["guard"],
            options["allow_hosts"],
            options["dry_run"],
            failed=self._refused,
            writes=options["writes"],
        ).engage()

    def _refused(self, error: LiveCallBlockedError) -> None:
        if self._blocked is None:
            self._blocked = error
            self._report_now(error)

    def _report_now(self, failure: BaseException) -> None:
        """Write the report of a pool's worker when it is refused something: the pool may end it by a signal.

        What differs in a call of the pool is in the call's own report.
        """
        if self._pool and isinstance(failure, LiveCallBlockedError):
            _write_report(self._report, {**_report_on(failure), "verdict": _verdict(self._block)})

    def _outside(self, family: str, name: str) -> None:
        error = not_made(
            family,
            name,
            "in a process of the replay, outside what was recorded",
            "look at what changed in the code; record again if the change is meant",
        )
        self._refused(error)
        raise error

    # -- calls from a pool ---------------------------------------------------------------------------------------------

    def perform(self, place: Mapping[str, Any], call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        lane = place["lane"]
        path = file_beside(self._trace, segment_of(lane))
        token = current.set(None)
        block = _SegmentReplay(path, self._options, lane, self._reports, place["agent"])
        block.debugger = self._debugger
        report = _report_on(None)
        try:
            if not os.path.exists(path):  # the recorded call made no steps, so this one may not make any
                return handed.call(call, args, kwargs)
            with block:
                block.session.state.joined = True
                return handed.call(call, args, kwargs)
        except ReplayError as failure:
            if is_open(path) and isinstance(failure, TraceExhaustedError):
                os.kill(os.getpid(), signal.SIGKILL)
            report = _report_on(failure)
            # If a pool's worker died of it, the program would wait forever.
            raise RuntimeError(f"tracekit: the replay has failed {self._in_words(failure, lane)}") from None
        finally:
            if block.started or report["failure"] is not None:
                written = {**report, "verdict": _verdict(block)}
                _write_report(os.path.join(self._reports, f"{segment_of(lane)}.json"), written)
            current.reset(token)

    # -- tasks from outside ------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Give the recorded tasks to their handlers where the program would start listening, then exit as if its server
        had been stopped."""
        if self._over or not self._give_tasks():
            return
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        atexit._run_exitfuncs()
        self._leave(0)

    def _give_tasks(self) -> bool:
        """Give each recorded task to its handler; return false if there are no handlers."""
        return self._block is not None and hand_out_tasks(self._block.scope)

    # -- the end -------------------------------------------------------------------------------------------------------

    def print_failure(self, failure: BaseException) -> bool:
        """Print the failure, in case the parent does not reach its end, where it would report it."""
        say(f"the replay has failed {self._in_words(failure, self._lane)}")
        self._report_now(failure)
        return True

    @staticmethod
    def _in_words(failure: BaseException, lane: str) -> str:
        where = getattr(failure, "location", None)
        code = failure.code if isinstance(failure, TracekitError) else type(failure).__name__
        return f"in the process {lane} ({code}{f' at {where}' if where else ''})"

    def failed(self, error: BaseException) -> None:
        self._error = error

    def end(self) -> None:
        """End the replay at the end of the process: compare, and write the report."""
        if self._over or os.getpid() != self._pid:
            return
        self._over = True
        if self._debugger is not None:
            self._debugger.ended()
        failure = self._failure_at_end()
        if failure is not None and self._open and isinstance(failure, TraceExhaustedError | UnconsumedStepsError):
            self._end_unfinished(failure)
        _write_report(self._report, {**_report_on(failure, tuple(self._warnings())), "verdict": _verdict(self._block)})
        if failure is not None:  # the parent reports it
            self._leave(1)

    def _failure_at_end(self) -> BaseException | None:
        block = self._block
        if block is None:
            return self._blocked
        error = self._error
        try:
            if block.session.failure is None and error is None:
                self._give_tasks()
            kept = error if isinstance(error, Exception | ReplayError) else None
            block.__exit__(type(kept) if kept else None, kept, kept.__traceback__ if kept else None)
        except ReplayError as failure:
            return failure
        except BaseException as other:  # for example, before exec the program closed files that its replay reads
            return block.session.failure or other
        if block.session.failure is not None:
            return block.session.failure
        return error if isinstance(error, Exception) and not block.recorded_failure(error) else None

    def _warnings(self) -> list[str]:
        block = self._block
        if block is None:
            return []
        sentences = [f"the process {self._lane}: {sentence}" for sentence in block.report.warnings]
        return sentences[:20]

    def _end_unfinished(self, failure: ReplayError) -> NoReturn:
        """Write the report and kill this process: the recorded one was killed here, or outlived the run."""
        assert self._block is not None
        where = len(self._block.session.trace)
        sentence = f"the process {self._lane} did not end its segment: it was replayed up to its entry {where}, where its log ends"
        _write_report(
            self._report, {**_report_on(None, (sentence,)), "verdict": {"matched": self._block.report.matched}}
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        raise failure

    def _leave(self, status: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        _really_exit(status)
