"""Joining the run of a parent process, or its replay, when a child process imports tracekit."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Token
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .._capture import guard, instrumentation, plugins, processes, world
from .._journal.reader import Trace
from .._journal.store import Store, segment_of, summary, valid_run_id
from .._runtime.lane import ROOT, Lane, Root
from .._runtime.process import ProcessRole, process
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay
from .._runtime.session import Scope, Session, current, enter, here, owner
from .._runtime.spending import Budget, Spending
from .._runtime.step import Request, Spec
from ..errors import (
    LiveCallBlockedError,
    ReplayError,
    TraceExhaustedError,
    TracekitError,
    UnconsumedStepsError,
)
from . import children, forks
from .block import hand_out_tasks
from .children import is_itself, is_open, take_off
from .ending import IdleReporter
from .replaying import ReplayBlock
from .run import UNSET, Run, register, registered, unregister

if TYPE_CHECKING:
    from .recording import RecordBlock

__all__ = ["Part", "at_process_end", "join", "join_replay", "leave"]

# -- record() in a joined process --------------------------------------------------------------------------------------
#
# A ``record()`` in a process that has joined a run: no run of its own, but a span of that one.


class Part:
    """A ``record()`` in a process that has joined a run: a span of that run in place of a run of its own."""

    def __init__(self, block: RecordBlock) -> None:
        self._block: Final = block
        self._step: Any = None
        self._token: Token[Scope | None] | None = None
        self._outer: Run | None = None

    def begin_for(self, options: Mapping[str, Any]) -> Run:
        scope = here()
        assert scope is not None
        session = scope.session
        if options["agent"] is not None or options["identity"] is not None:
            session.identify(options["agent"] or "agent", options["identity"])
        self._step = session.begin(scope, Request(Spec("span", options["name"] or "run"), {"input": self._block.given}))
        inside = self._step.body()
        self._token = enter(inside if options["agent"] is None else inside.acting(options["agent"]))
        run = Run(session, session.log.path, options["name"])
        self._outer = registered(session)
        register(session, run)
        return run

    def end_for(self, run: Run, error: BaseException | None) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                current.reset(token)
            except ValueError:  # left in another context than it was entered in
                current.set(None)
        session = run._session
        unregister(session)
        if self._outer is not None:
            register(session, self._outer)
        if error is not None:
            self._step.failed(error)
            return
        result = None if run.result is UNSET else run.result
        self._step.done(result)
        session.part_ended(self._step.seq, self._step.spec.name, result)


# -- joining a recorded run --------------------------------------------------------------------------------------------
#
# A process that a run's program has started joins the run, or its replay, when it imports tracekit and finds a ticket in its environment.
#
# While a run is recorded the whole process is one segment of it, a file of its own; in a replay the process is answered from that file,
# and is behind the guard from then on. Where it can't join a recorded run, it runs unrecorded, with a warning.


class _JoinedProcess(ProcessRole):
    """A process that has joined a run: a ``record()`` in it is a part of that run."""

    def part(self, block: RecordBlock) -> Part | None:
        """The span in place of a ``record()``; ``None`` for a linked run, which is one of its own."""
        scope = current.get()
        inside = scope is not None and scope.session.state.joined
        return Part(block) if inside and block.options["nested"] != "link" else None


def join() -> None:
    """Join the run or replay whose ticket is in the environment, and remove it: each child process gets its own."""
    variable = os.environ.pop(processes.VARIABLE, None)
    if variable is None:
        return
    try:
        ticket = json.loads(variable)
        replayed = ticket["mode"] == "replay"
    except (ValueError, TypeError, KeyError):
        _warn_not_joined(f"{processes.VARIABLE} is none of tracekit's")
        return
    if replayed:
        join_replay(ticket)
        return
    try:
        problem = _record(ticket)
    except Exception as error:
        problem = str(error)
    if problem is not None:
        _warn_not_joined(problem)


def _warn_not_joined(problem: str) -> None:
    from .._runtime.callsite import warn

    warn(f"this process was started by a recorded run and can't join it: {problem}; it is not recorded")


def leave() -> None:
    """Leave the run again: this process is a command of tracekit itself, not part of the run's program."""
    if isinstance(process.role, RecordedProcess):
        process.role.withdraw()


def _record(ticket: Mapping[str, Any]) -> str | None:
    """Join a run that is being recorded; returns why that is not possible, else ``None``."""
    run_id, root, lane = ticket["run_id"], ticket["store"], ticket["lane"]
    if not valid_run_id(run_id) or not isinstance(lane, str) or not isinstance(root, str):
        return f"{processes.VARIABLE} is none of tracekit's"
    store = Store(root)
    path = store.path(run_id)
    try:
        foreign = any(os.stat(place).st_uid != os.getuid() for place in (store.root, store.runs, path))
    except OSError:
        return f"run {run_id} is not in {store.root}"
    if foreign:
        return f"{store.root} is another user's"
    if summary(path).end is not None:
        return f"run {run_id} has ended"
    process.role = RecordedProcess(store, ticket)
    return None


class RecordedProcess(_JoinedProcess):
    """This process as a segment of a run that is being recorded."""

    def __init__(self, store: Store, ticket: Mapping[str, Any]) -> None:
        super().__init__(ticket["program"])
        patterns = [re.compile(pattern, flags) for pattern, flags in ticket["redact"]]
        base, n, lane = ticket["lane"], 1, ticket["lane"]
        while os.path.exists(store.path(ticket["run_id"], segment_of(lane))):  # of an earlier process with this place
            n += 1
            lane = f"{base}+{n}"
        self.segment: Final = forks.Segment(
            store,
            ticket["run_id"],
            ticket["durability"],
            lane,
            ticket["cause"],
            Redactor.of_process(patterns, store.root, create=True),
            ticket["program"],
            ticket["arguments"],
            indirect=not is_itself(ticket["by"], ticket["as"]),
        )
        session = self.session = self.segment.session
        self.pid: Final = os.getpid()
        self._pool: Final = bool(ticket["pool"])
        self.error: BaseException | None = None
        root = self.segment.root = session.state.root = Root(lane, get_ident())
        if ticket["instrument"]:
            instrumentation.instrument()
        world.enter()
        forks.follow(session, store)
        session.state.spending = _spending(ticket)
        enter(Scope(self.segment.seen, root, ROOT, ticket["agent"], spending=session.state.spending))
        self.run: Final = Run(session, self.segment.path, lane.strip("/"))
        register(session, self.run)
        session.state.joined = True
        session.state.children = children.RecordedChildren(session)
        #: What the calls of a pool that have ended spent, by lane.
        self._spent: Final[dict[str, Spending]] = {}
        at_process_end(self.end, self.failed)

    def perform(self, place: Mapping[str, Any], call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that this process got as a pool's worker, recorded in a segment of its own."""
        own = self.segment
        segment = forks.Segment(
            own.store,
            own.run_id,
            own.durability,
            place["lane"],
            place["cause"],
            self.session.redactor,
            self.program,
        )
        session, root = segment.session, Root(place["lane"], get_ident())
        segment.root = session.state.root = root
        session.state.joined = True
        session.state.children = children.RecordedChildren(session)
        session.state.spending = _spending(place)
        if session.state.spending is not None:
            take_off(session.state.spending, own.store, own.run_id, place, self._spent)
        token = enter(Scope(segment.seen, root, ROOT, place["agent"], spending=session.state.spending))
        try:
            value = call(*args, **kwargs)
        except BaseException as error:
            forks.seal(session, error if isinstance(error, Exception) else None)
            raise
        else:
            forks.seal(session)
            return value
        finally:
            current.reset(token)
            session.state.ended = True

    def failed(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        """End the segment cleanly at the end of the process; it is written even if nothing happened in it."""
        session = self.session
        if session.state.ended or os.getpid() != self.pid:
            return
        error = self.error if isinstance(self.error, Exception) else None
        with suppress(Exception):  # a disk that is full keeps nobody from leaving
            if not self._pool:  # the pool ends those as soon as they are idle, perhaps in the middle of this
                self.segment.open()
            forks.seal(session, error)

    def withdraw(self) -> None:
        session = self.session
        session.state.ended = session.state.discarded = True
        process.closed(session)
        process.role = ProcessRole()
        current.set(None)
        world.leave()


def _spending(source: Mapping[str, Any]) -> Spending | None:
    """The budget left for this process or call, by its ticket or place; ``None`` without one."""
    budget = source.get("budget")
    return None if budget is None else Spending(Budget.of_dict(budget), name="process")


def at_process_end(end: Any, failed: Any) -> None:
    """Call ``end()`` when this process ends, also by an exception (then ``failed(error)`` first) or by ``os._exit``."""
    before = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        failed(error)
        if not isinstance(error, ReplayError):  # reported once, at the very end
            before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(end)
    forks.at_hard_exit(end)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Its processes drop registered exit handlers when they begin, and skip ``atexit`` when they end.
        def finish() -> None:
            error = sys.exception()
            if isinstance(error, Exception):
                failed(error)
            end()

        def begin(_: Any) -> None:
            util.Finalize(None, finish, exitpriority=0)

        util.register_after_fork(begin, begin)
        process.kept.append(begin)


# -- joining a replay --------------------------------------------------------------------------------------------------
#
# A process that a replayed program has started: answered from its own segment, behind the guard from before its first line.
#
# At its end it writes a report to a file of its parent's. A failure ends it with exit code 1, and is its parent's failure too. Where it
# serves tasks (``@on_task``), its handlers get the recorded ones when it would listen, or at the end of its program.

_really_exit: Final = os._exit
#: What the ticket of a replay must contain.
_NEEDED: Final = ("run_id", "directory", "lane", "pool", "program", "redact", "instrument", "options", "reports")


def join_replay(ticket: Mapping[str, Any]) -> None:
    """Replay this process from its recorded segment, or end it: a process of a replay never goes live."""
    try:
        missing = [key for key in _NEEDED if key not in ticket]
        if missing:
            raise ValueError(
                f"{processes.VARIABLE} is none of tracekit's: it names a replay, and has no {', '.join(missing)}"
            )
        if os.stat(ticket["reports"]).st_uid != os.getuid():
            raise OSError("another user's")
        process.role = role = _ReplayedProcess(ticket)
        role.begin(ticket)
    except BaseException as error:
        sys.stderr.write(f"tracekit: this process belongs to a replay and can't be part of it: {error}\n")
        sys.stderr.flush()
        with suppress(Exception):
            _write_report(_claim_lane(ticket)[1], _report_on(error))
        _really_exit(1)


def _claim_lane(ticket: Mapping[str, Any]) -> tuple[str, str]:
    """Claim a lane and its report file: another process may have come with the same ticket and taken the first one."""
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
    with guard.allow():
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(report, file, default=repr)
        os.replace(f"{path}.new", path)


def _report_on(error: BaseException | None, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    failure: dict[str, Any] | None = None
    if error is not None:
        text = error.what if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
        where = getattr(error, "location", None)
        failure = {
            "type": type(error).__name__,
            "text": f"{text} (at {where})" if where else text,
            "next_action": getattr(error, "next_action", None),
            "step": getattr(error, "step", None),
        }
    return {"pid": os.getpid(), "failure": failure, "warnings": list(warnings)}


def _verdict(block: ReplayBlock | None) -> dict[str, Any]:
    """What the replay of a segment contributes to the verdict on the run."""
    if block is None or not block.started:
        return {}
    verdict = block.report.verdict.as_dict()
    kinds = {kind: verdict[kind][:100] for kind in ("reasons", "allowed", "remarks")}
    return {**kinds, "matched": block.report.matched}


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
        """The idle states of the running processes below this one; ``None`` if one of them is busy, or this one may go on by itself."""
        if self.session.schedule.may_hand_out:
            return None
        return [] if self._children is None else self._children.idle()

    def waiting_for_children(self) -> set[int]:
        """The threads that wait for the end of a process below this one."""
        return set() if self._children is None else self._children.waiting

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        if options.get("transcript") is None:
            return super()._session_of(trace, redactor, options)
        from .determinism import TranscriptWriter, transcribed_session

        with guard.allow():
            transcript = TranscriptWriter(f"{options['transcript']}.{segment_of(self._lane)}")
        return transcribed_session(transcript, trace, redactor, options)

    def _scope_in(self, session: Session, agent: str | None, spending: Spending | None = None) -> Lane:
        lane = Root(self._lane, owner())
        self._token = enter(Scope(session, lane, ROOT, self._agent))
        self.scope = Scope(session, lane, ROOT, self._agent)
        return lane


class _ReplayedProcess(_JoinedProcess):
    """This process as a child process of a replay."""

    def __init__(self, ticket: Mapping[str, Any]) -> None:
        super().__init__(ticket["program"])
        with guard.allow():
            self._lane, self._report = _claim_lane(ticket)
        self._pid: Final = os.getpid()
        self._error: BaseException | None = None
        self._blocked: LiveCallBlockedError | None = None
        self._over = False
        self._open = False
        self._block: _SegmentReplay | None = None
        patterns = tuple(re.compile(pattern, flags) for pattern, flags in ticket["redact"])
        self._options: Final = {**ticket["options"], "store": None, "live": (), "redact": patterns}
        self._directory: Final = ticket["directory"]
        self._run_id: Final = ticket["run_id"]
        self._reports: Final = ticket["reports"]

    def begin(self, ticket: Mapping[str, Any]) -> None:
        """Answer this process from its segment from now on, or, where it has none, guard it."""
        path = os.path.join(self._directory, f"{self._run_id}.{segment_of(self._lane)}.jsonl")
        plugins.supply_placeholders()
        if ticket["instrument"]:
            instrumentation.instrument()
        if os.path.exists(path):
            self._play(path, ticket["agent"])
        else:
            self._watch(ticket["pool"])
        at_process_end(self.end, self.failed)

    def _play(self, path: str, agent: str | None) -> None:
        self._open = is_open(path)
        block = self._block = _SegmentReplay(path, self._options, self._lane, self._reports, agent)
        block.__enter__()
        block.session.state.joined = True
        IdleReporter(self._report, self._left, block.waiting_for_children, block.idle_children)

    def _left(self) -> list[dict[str, Any]]:
        """The recorded steps that the program has not come to."""
        assert self._block is not None
        session = self._block.session
        return [{**step, "ts_ns": session.trace.entry(step["seq"])["ts_ns"]} for step in session._unconsumed()]

    def before_signal(self, pid: int) -> None:
        """Write the report now if the signal may end this very process, which can't write it afterwards."""
        if pid == self._pid and self._block is not None and self._open and not self._left():
            _write_report(
                self._report,
                _report_on(None, (f"the process {self._lane} ended itself by a signal, where its log ends",)),
            )

    def _watch(self, pool: bool) -> None:
        """Guard a pool's worker, which has no segment itself: each call that it gets is answered from the call's own."""
        if not pool:
            raise LiveCallBlockedError(
                f"the recorded run has no process {self._lane}",
                next_action="look at what decides whether it is started; record again if the change is meant",
            )
        options = self._options
        guard.Guard(options["guard"], options["allow_hosts"], options["dry_run"], failed=self._refused).engage()
        process.refuse_outside(self._outside)

    def _refused(self, error: LiveCallBlockedError) -> None:
        self._blocked = self._blocked or error

    def _outside(self, family: str, name: str) -> None:
        error = LiveCallBlockedError(
            f"{family} {name!r} was called in a process of the replay, outside what was recorded; it was not executed",
            operation=f"{family} {name}",
            next_action="look at what changed in the code; record again if the change is meant",
        )
        self._refused(error)
        raise error

    # -- what a pool gives to this process ---------------------------------------------------------------------------

    def perform(self, place: Mapping[str, Any], call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        lane = place["lane"]
        path = os.path.join(self._directory, f"{self._run_id}.{segment_of(lane)}.jsonl")
        token = current.set(None)
        block = _SegmentReplay(path, self._options, lane, self._reports, place["agent"])
        report = _report_on(None)
        try:
            if not os.path.exists(path):  # the recorded call made no step, so it may make none now
                return call(*args, **kwargs)
            with block:
                block.session.state.joined = True
                return call(*args, **kwargs)
        except ReplayError as failure:
            if is_open(path) and isinstance(failure, TraceExhaustedError):
                os.kill(os.getpid(), signal.SIGKILL)
            report = _report_on(failure)
            # A pool's worker that dies of it would leave the program waiting for ever.
            raise RuntimeError(f"tracekit: {failure}") from None
        finally:
            if block.started or report["failure"] is not None:
                written = {**report, "verdict": _verdict(block)}
                _write_report(os.path.join(self._reports, f"{segment_of(lane)}.json"), written)
            current.reset(token)

    # -- tasks from outside ------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Give the handlers the recorded tasks where the program would listen, and end as if its server had been stopped."""
        if self._over or not self._give_tasks():
            return
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        atexit._run_exitfuncs()
        self._leave(0)

    def _give_tasks(self) -> bool:
        """Give each recorded task to its handler; false where there are no handlers."""
        return self._block is not None and hand_out_tasks(self._block.scope)

    # -- the end -------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        self._error = error

    def end(self) -> None:
        """End the replay at the end of the process: compare, and write the report."""
        if self._over or os.getpid() != self._pid:
            return
        self._over = True
        failure = self._failure_at_end()
        if failure is not None and self._open and isinstance(failure, TraceExhaustedError | UnconsumedStepsError):
            self._end_unfinished(failure)
        _write_report(self._report, {**_report_on(failure, tuple(self._warnings())), "verdict": _verdict(self._block)})
        if failure is not None:
            sys.stderr.write(f"tracekit: in the process {self._lane}: {failure}\n")
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
        except BaseException as other:
            return other
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
