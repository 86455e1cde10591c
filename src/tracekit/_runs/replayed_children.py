"""The child processes of a replay, seen from the process that starts them: answered from their segments."""

from __future__ import annotations

import json
import os
import signal
from _thread import get_native_id
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .. import _reality, errors
from .._capture import guard, instrumentation
from .._capture.commands import STATUS, output_not_kept
from .._journal.entry import SIGNALS, meta_of
from .._journal.store import last_entry, segment_of
from .._runtime.callsite import caller, say
from .._runtime.lane import Lane
from .._runtime.process import process
from .._runtime.session import Scope
from .._runtime.signals import name_of
from ..errors import (
    DivergenceError,
    LiveCallBlockedError,
    ReplayError,
    TraceError,
    UnconsumedStepsError,
)
from .children import NOT_STARTED, SegmentFile, becomes, is_open, patterns, segments_of, shown_arguments
from .ending import IdleState, ask_file, state_file

if TYPE_CHECKING:
    from .._runtime.replayer import Replay

__all__ = ["ReplayedChildren", "Report"]

# -- one child process -------------------------------------------------------------------------------------------------
#
# As its parent process sees it: what it reports, whether it is idle, and how it ended.

#: The interval for polling a process (s), and the time after which stderr says which process is waited for.
_POLL_S: Final = 0.005
_REPORT_WAIT_AFTER: Final = 10.0
Report = dict[str, Any]


class ReplayedChild:
    """A child process of a replay, one of ``all``. ``segment`` is the file that answers it, ``None`` for a pool's worker
    and for a process that was gone before it had written anything."""

    live: Final = False

    def __init__(
        self, all: ReplayedChildren, path: str, segment: str | None, pool: bool, reports: str, ticket: dict[str, Any]
    ) -> None:
        self._all: Final = all
        self.session: Final = all.session
        self.path: Final = path
        self.pool: Final = pool
        self.pid = 0
        #: The process that forked it, if not this one: a fork server, which learns of its end and reports it.
        self._server = 0
        #: Whether the recording also has it as a step.
        self.is_step = False
        #: Whether the recorded one, a fork, became another program, of which nothing is in the run but its terminal.
        self.becomes: Final = segment is not None and becomes(all.recorded, path)
        self.warnings: list[str] = []
        #: The verdict that it reported at its end.
        self.verdict: dict[str, Any] = {}
        self._reported_wait = False
        #: How often the recorded process called a handler for a signal from outside, by name; read when first needed.
        self._handler_calls: Counter[str] | None = None
        #: How often the program has sent it each signal.
        self._signals_sent: Final[Counter[int]] = Counter()
        #: Its idle state when the program sent it a signal, or when it was killed here.
        self._last_state: IdleState | None = None
        #: Whether it ended with the recorded exit status.
        self._confirmed = False
        #: Whether it was killed here and everything about it has been reported.
        self._over = False
        self._questions = 0
        self._segment: Final = segment
        self._report: Final = os.path.join(reports, f"{segment_of(path)}.json")
        self.ticket: Final = json.dumps({**ticket, "reports": reports, "pool": pool})

    # -- its start -------------------------------------------------------------------------------------------------------

    def admitted(self) -> AbstractContextManager[None]:
        return guard.allow()

    @_reality.off_loop()
    def started(self, pid: int) -> None:
        self.pid = pid
        _, parent = _state_of(pid)
        self._server = 0 if parent == os.getpid() else parent

    def not_started(self, scope: Scope, error: OSError) -> None:
        self._fail(self._error("ReplayError", f"the process {self.path} could not be started: {error}", None, None))

    # -- its status ------------------------------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """Return the report that it wrote at its end; ``None`` if it has not written one."""
        return _read(self._report)

    @_reality.off_loop()
    def runs(self) -> bool:
        """Return whether it is running, or has ended and a fork server has not reported it yet."""
        if not self.pid:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # reaped by the program, or another process's child
            state, parent = _state_of(self.pid)
            if state == "Z":
                return parent == self._server != 0
            return bool(state) or _state_of(self._server)[0] not in ("", "S", "Z")

    def state(self) -> IdleState | None:
        """Return its present idle state; ``None`` if it has ended, or does not listen yet."""
        asked = self.report() is None and self.runs() and self.ask()
        while asked and self.report() is None and self.runs():
            state = _read(state_file(self._report))
            if state is not None and state["question"] >= self._questions:
                return state
            _reality.sleep(_POLL_S)
        return None

    @property
    def last_answer(self) -> IdleState | None:
        """Its answer to the last question; ``None`` until it has answered."""
        state = _read(state_file(self._report)) if self._questions else None
        return state if state is not None and state["question"] >= self._questions else None

    @property
    def owes_answer(self) -> bool:
        """Whether it has been asked and has not answered."""
        return bool(self._questions) and self.last_answer is None

    def idle_state(self, meanwhile: Callable[[], bool] | None = None) -> IdleState | None:
        """Return its state once it is idle or has no recorded step left; ``None`` if it has ended.

        Waits for however long it computes. ``meanwhile`` is called repeatedly; once it returns true, the process has
        ended.
        """
        begun = _reality.monotonic()
        while self.report() is None and self.runs():
            state = self.state()
            if state is not None and not (state["busy"] and state["count"]):
                return state
            self.report_long_wait(begun)
            if meanwhile is None:
                _reality.sleep(_POLL_S)
            elif meanwhile():
                return None
        return None

    def report_long_wait(self, begun: float) -> None:
        """Say on stderr that the process is waited for, if that takes long."""
        if not self._reported_wait and _reality.monotonic() - begun > _REPORT_WAIT_AFTER:
            self._reported_wait = True
            say(f"the replay of {self.session.run_id} waits for the process {self.path} (pid {self.pid})")

    @_reality.off_loop()
    def ask(self) -> bool:
        """Ask the process for its idle state; return False if it can't be asked yet, or any more."""
        try:
            with guard.allow():
                fd = os.open(ask_file(self._report), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.write(fd, b"?")
        except OSError:
            return False
        finally:
            os.close(fd)
        self._questions += 1
        return True

    # -- what the program does with it -----------------------------------------------------------------------------------

    def wait_until_idle(self) -> None:
        """Let the process run until it is idle, before the program ends it by a signal (which it may wait for)."""
        self._last_state = self.idle_state() or self._last_state

    def needs_signal(self, number: int) -> bool:
        """Count a signal that the program sends; return whether it has to be sent for its recorded effect.

        A recorded call of a handler is made by the process itself, at its place in the process's own log. If that log
        has no end, a signal sent beyond these calls may have ended the process. If it has one, no signal ended the
        process, and only SIGINT can have had an effect: Python's own handler, whose calls are not recorded.
        """
        if self._handler_calls is None:
            self._handler_calls = Counter(() if self._segment is None else _handler_calls(self._segment))
        self._signals_sent[number] += 1
        recorded = self._handler_calls[name_of(number)]
        return self._signals_sent[number] > recorded if self.open else not recorded and number == signal.SIGINT

    def note(self, scope: Scope, status: Any) -> None:
        raise AssertionError("a replay notes nothing")

    def heard(self) -> None:
        raise AssertionError("a replay counts nothing")

    def recall(self, scope: Scope) -> Any:
        status = self.session.status_read(scope, f"{STATUS} {self.path}", self.path)
        if isinstance(status, dict) and "too_much" in status:
            raise output_not_kept(self.session, self.path)
        return status

    def let_run(self, step: Callable[[], bool]) -> None:
        self.idle_state(step)

    def let_end(self) -> None:
        """Wait for the process to end, as the recorded one did here; kill it if its log stops without an end.

        If nothing can move any more, neither in it nor in this process, it never ends.
        """
        before: object = None
        begun = _reality.monotonic()
        with self._all.waited_for(self):
            while self.runs():
                state = self.state()
                if state is None or state["busy"]:
                    before = None
                elif self.open and not state["count"]:
                    self.cut_off(state)
                else:
                    others = self._all.at_rest(self)
                    now = None if others is None else [state["look"], others]
                    if now is not None and now == before:
                        self.give_up()
                        self._fail(self.stuck_error(state))
                    before = now
                self.report_long_wait(begun)
                _reality.sleep(_POLL_S)

    def cut_off(self, state: IdleState) -> None:
        """Kill the process where the log of the recorded one, which was killed, ends."""
        self.kill()
        self._last_state = state

    def give_up(self) -> None:
        """Kill the process: it waits for something that does not come, which is reported."""
        self.kill()
        self._over = True

    def ended(self, status: int | None, recorded: int) -> None:
        report = self.report()
        failure = None if report is None else self._failure_in(report, warn=False)
        if failure is not None:
            self._fail(failure)
        self._confirmed |= status == recorded
        # A log without an end means that the process was killed, whatever the recorded one died of.
        if status == recorded or self.open or (status or 0) < 0 > recorded:
            return
        self._fail(
            DivergenceError(
                f"the process {self.path} ended with exit status {status}, the recorded one with {recorded}",
                run_id=self.session.run_id,
                next_action="look at what decides its status, and is not recorded (in the documentation: What is not captured)",
            )
        )

    def _fail(self, error: ReplayError) -> NoReturn:
        raise self.session.fail(error)

    # -- the end of the replay -------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether the recorded process did not end its segment."""
        return self._segment is None or is_open(self._segment)

    def wait_for_exit(self, until: float | None) -> None:
        """Wait until the process is gone: it has written its report, or was told to end."""
        begun = _reality.monotonic()
        while self.runs() and (until is None or _reality.monotonic() < until):
            self.report_long_wait(begun)
            _reality.sleep(_POLL_S)

    def outlives(self, end: int) -> bool:
        """Return whether the recorded process was still running when its parent ended, at ``end`` by the wall clock."""
        return self.open or last_entry(self._segment or "").get("ts_ns", 0) >= end

    def conclude(self, state: IdleState | None, end: int) -> ReplayError | None:
        """Kill a process that still runs after the end of the run; return the resulting failure, if any."""
        self._over = True
        self.kill()
        if state is not None and state["count"] and state["left"][0]["ts_ns"] < end:
            return self.stuck_error(state)
        what = "had not ended when the run did" if state is not None else "did not reach the point where it waits"
        if self.outlives(end):
            self._warn(f"{what}, and is ended")
            return None
        return self._error("ReplayError", f"the process {self.path} {what}", "check what it waits for", None)

    def failure(self) -> ReplayError | None:
        """Return the failure of a process that is gone, or ``None``; warnings and verdict of its report are kept."""
        report = self.report()
        if report is not None:
            return self._failure_in(report)
        if self.pool or self._over or not self.pid:
            return None
        state = self._last_state
        if state is not None and self.open:
            if state["count"]:
                return self.stuck_error(state)
            self._warn("was ended by a signal, where its log ends")
            return None
        if self._confirmed and self.open:
            self._warn("ended, with the recorded exit status, without reporting its result")
            return None
        what = f"the process {self.path} ended without having been replayed to its end"
        return self._error("ReplayError", what, "check what it wrote to stderr", None)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        with suppress(OSError):
            if self.pid and self.runs():
                _reality.kill(self.pid, signal.SIGKILL)

    def _warn(self, what: str) -> None:
        self.warnings.append(f"the process {self.path} {what}")

    def stuck_error(self, state: IdleState, waiting: Sequence[str] = ()) -> ReplayError:
        from .._runtime.divergence import left_over

        many = ", the first" if state["count"] > 1 else ""
        first = f"{many}: {state['left'][0]['type']} {state['left'][0]['name']!r}" if state["left"] else ""
        return UnconsumedStepsError(
            f"the process {self.path} waits for something that does not come, and {left_over(state['count'], ' of it')}{first}"
            f"{''.join(f'{chr(10)}  while here waits {one}' for one in waiting)}",
            run_id=self.session.run_id,
            steps=state["left"],
            child=self.path,
            next_action="check what it waits for: a message, a file, or a signal that the recorded process got",
        )

    def _failure_in(self, report: Report, *, warn: bool = True) -> ReplayError | None:
        if warn:
            self.warnings += [str(one) for one in report.get("warnings") or ()]
            self.verdict = report.get("verdict") or {}
        failure = report.get("failure")
        if failure is None:
            return None
        what = f"in the process {self.path}: {failure['text']}"
        error = self._error(failure["type"], what, failure.get("next_action"), failure.get("step"))
        error.at_log_end = failure.get("at_log_end") is True
        return error

    def _error(self, kind: str, what: str, next_action: str | None, step: int | None) -> ReplayError:
        return _error(self.path, kind, what, next_action, step)

    def died(self) -> ReplayError | None:
        """Return the failure of a process that is gone without a report although the recorded one ended its log; else
        ``None``."""
        gone = bool(self.pid) and not self.runs()
        return self.failure() if gone and not (self.open or self.pool or self._over) and self.report() is None else None


@_reality.off_loop()
def reported_failure(reports: str, lanes: Mapping[str, str]) -> ReplayError | None:
    """Return the first failure that a process of this replay has reported, descendants included. ``lanes`` maps segment
    names to paths."""
    for name in sorted(os.listdir(reports)):
        stem, _, ending = name.partition(".")
        report = _read(os.path.join(reports, name)) if ending == "json" else None
        failure = None if report is None else report.get("failure")
        if failure is not None:
            path = lanes.get(stem, f"of segment {stem}")
            what = f"in the process {path}: {failure['text']}"
            error = _error(path, failure["type"], what, failure.get("next_action"), failure.get("step"))
            error.at_log_end = failure.get("at_log_end") is True
            return error
    return None


def _error(path: str, kind: str, what: str, next_action: str | None, step: int | None) -> ReplayError:
    found = getattr(errors, kind, None)
    kind_of_error = found if isinstance(found, type) and issubclass(found, ReplayError) else ReplayError
    return kind_of_error(what, next_action=next_action, child=path, child_step=step)


@_reality.off_loop()
def _handler_calls(segment: str) -> Iterator[str]:
    """Yield the signals for which the process of a segment called a handler, except those that it sent itself."""
    from .._journal.reader import Trace

    with suppress(TraceError), Trace(segment) as trace:  # the process itself reports a damaged segment
        for entry in trace.entries():
            about = entry.get("input", {}) if entry["type"] == "clock" and entry["name"] in SIGNALS else {}
            if "call" in about and about.get("at") != "sent":
                yield str(about["call"])


@_reality.off_loop()
def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            content: dict[str, Any] = json.load(file)
        return content
    except (OSError, ValueError):
        return None


def _state_of(pid: int) -> tuple[str, int]:
    """Return a process's state as the kernel names it (``"S"``: sleeping), empty if it does not exist, and its parent."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
            return state, int(parent)
    except OSError:
        return "", 0


# -- all of them -------------------------------------------------------------------------------------------------------

#: How long (s) a failed replay waits for its processes: their reports may explain the failure, and decide nothing.
_AFTER_A_FAILURE: Final = 2.0


class ReplayedChildren:
    """The child processes of one replay: admitted as recorded ones, polled for failures, ended with it.

    ``path`` is that of the process's own lane, ``reports`` the directory for its children's final reports, if it
    exists. If no process has joined the recorded run, no files are searched.
    """

    @_reality.off_loop()
    def __init__(
        self,
        session: Replay,
        options: Mapping[str, Any],
        path: str = "",
        reports: str | None = None,
        *,
        had_children: bool = True,
    ) -> None:
        self.session: Final = session
        # Its children and its parent may send it something; the last event of a child is its end, after its report. For
        # one being started, a fork server may be waited for, which existed before.
        session.schedule.alone = lambda: not path and not any(not child.pid or child.runs() for child in self.started())
        session.schedule.others_rest = self.rest
        self._options: Final = options
        self._path: Final = path
        self._trace: Final = os.path.abspath(session.trace.path)
        self._recorded: dict[str, SegmentFile] | None = None if had_children else {}
        #: The directory for the reports of all processes of the replay, grandchildren included.
        self._reports = reports
        self._owns: bool = reports is None
        self._children: list[ReplayedChild] = []
        #: The paths of processes that are answered from the log although something that they started had joined.
        self._answered: Final[list[str]] = []
        last = session.trace.last
        #: The paths of recorded processes that were gone before they had written anything.
        self._without_segment: Final = frozenset(meta_of(last).get("without_segment") or ())
        self._concluded = False
        #: How this process is seen to rest, and since when (s) it waits for others.
        self._look: object = None
        self._waited_since = 0.0
        #: How it was seen when all processes were last asked for their states, and their previous answers.
        self._asked_at: object = None
        self._rested: list[Any] | None = None
        #: The process for whose end each thread waits.
        self._waiting: Final[dict[int, ReplayedChild]] = {}

    @property
    def recorded(self) -> dict[str, SegmentFile]:
        if self._recorded is None:
            self._recorded = segments_of(self._trace)
        return self._recorded

    @_reality.off_loop()
    def _where(self) -> str:
        if self._reports is None:
            import tempfile

            self._reports = tempfile.mkdtemp(prefix="tracekit-replay-")
        return self._reports

    def admit(self, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> ReplayedChild | None:
        """Return the child process that is about to start; ``None`` if no recorded one joined the run, so that the
        guard refuses it."""
        if self.session.state.ended or self._concluded:
            return None
        path = self._recorded_path(lane.path, shown_arguments(self.session, (words or [])[1:]))
        if path is None:
            failed = self.session.status_read(scope, f"{NOT_STARTED} {lane.path}", None)
            if failed is not None:
                raise OSError(*(one for one in failed if one is not None))
            if not pool or self._options["guard"] == "off":
                return None
            path = lane.path
        reports = self._where()
        segment = self.recorded.get(path)
        if segment is not None and segment.indirect and self._options["guard"] != "off":
            if self.session.has_process(path):  # what it started is answered with it
                self._answered.append(path)
                return None
            raise self.session.fail(self._indirect(path))
        ticket = self._ticket(scope, path) | {"without_segment": path in self._without_segment}
        child = ReplayedChild(self, path, None if segment is None else segment.path, pool, reports, ticket)
        if not (pool or child.becomes or scope.live):
            answering = self.recorded.keys() | self._without_segment
            child.is_step = self.session.leave_process(scope, path, answering)
        self._children.append(child)
        self.session.threads.processes()
        return child

    def _indirect(self, path: str) -> LiveCallBlockedError:
        return LiveCallBlockedError(
            f"the process {path} did not join the recorded run, only processes that it started did: anything else it does would "
            "be real, so it was not started",
            run_id=self.session.run_id,
            location=caller(),
            operation="a process that starts others",
            target=path,
            kind="process",
            next_action="start the Python program itself, without a shell or a launcher, and record again; or put the process into a "
            "@traced_tool; or replay(..., guard='off') to let it run for real, and what it starts be answered",
        )

    def place(self, scope: Scope, lane: Lane) -> dict[str, Any] | None:
        """Return the place of a call submitted to a process pool, whichever worker takes it."""
        if self.session.state.ended or self._concluded:
            return None
        path = lane.path
        segment = self.recorded.get(path)
        self._children.append(
            ReplayedChild(self, path, None if segment is None else segment.path, True, self._where(), {}),
        )
        return {"lane": path, "agent": scope.agent}

    def _recorded_path(self, path: str, arguments: list[str]) -> str | None:
        """Return the path of the recorded process that this one replays; ``None`` if there is none.

        That is the one with this number; if it has another program or arguments, or is not known, the next one of this
        lane with the same ones, whatever the present order.
        """
        taken = {*(child.path for child in self._children), *self._answered}
        known = self.recorded.get(path)
        if path not in taken and (path in self._without_segment or (known and known.arguments == arguments)):
            return path
        same = path.rpartition("#")[0] + "#"
        alike = [
            other
            for other, one in self.recorded.items()
            if other.startswith(same) and other[len(same) :].isdigit() and one.arguments == arguments
        ]
        free = sorted((other for other in alike if other not in taken), key=lambda other: int(other[len(same) :]))
        if free:
            return free[0]
        return path if path in self.recorded and path not in taken else None

    def _ticket(self, scope: Scope, path: str) -> dict[str, Any]:
        options = self._options
        return {
            "mode": "replay",
            "run_id": self.session.run_id,
            "trace": self._trace,
            "lane": path,
            "agent": scope.agent,
            "program": process.role.program,
            "redact": patterns(self.session),
            "instrument": instrumentation.instrumented(),
            "options": {
                "on_divergence": options["on_divergence"],
                "strict": list(options["strict"]),
                "ignore": dict(options["ignore"]),
                "guard": options["guard"],
                "allow_hosts": list(options["allow_hosts"]),
                "dry_run": options["dry_run"],
                "writes": options["writes"],
                "live_env": list(options["live_env"]),
                "live_files": list(options["live_files"]),
                "credentials": list(options["credentials"]),
                "transcript": options.get("transcript"),
                "debugger": options.get("debugger"),
            },
        }

    def before_signal(self, pid: int) -> None:
        """Let a process run until it is idle, before the program sends it a signal that ends it."""
        for child in () if self._concluded else self._children:
            if child.pid == pid and not child.pool:
                child.wait_until_idle()

    def needs_signal(self, pid: int, number: int) -> bool:
        """Return whether a signal to process ``pid`` has to be sent for its recorded effect."""
        children = [] if self._concluded else self.started()
        return all(child.needs_signal(number) for child in children if child.pid == pid)

    def started(self) -> list[ReplayedChild]:
        """Return the processes without the workers of pools."""
        return [child for child in self._children if not child.pool]

    def running(self) -> list[ReplayedChild]:
        """Return the processes that have not ended yet, without the workers of pools."""
        return [child for child in self.started() if child.report() is None and child.runs()]

    def as_dict(self) -> dict[str, Any]:
        return {}

    @_reality.off_loop()
    def conclude(self) -> None:
        """End all processes at the end of the replay; their failures, warnings and verdicts become its own. Idempotent."""
        if self._concluded:
            return
        self._concluded = True
        session = self.session
        until = None if session.failure is None else _reality.monotonic() + _AFTER_A_FAILURE
        session.others_have_steps = bool(self._path or self._children)
        end = session.trace.last["ts_ns"]
        failed = [failure for child, state in self._idle(until) if (failure := child.conclude(state, end)) is not None]
        for child in self._children:
            if not child.pool:
                child.wait_for_exit(until)
            failure = child.failure()
            if failure is not None:
                failed.append(failure)
        self._report_failures(failed)
        if session.failure is None:
            self._check_all_started()
        if self._owns and self._reports is not None:
            _remove(self._reports)

    def poll(self) -> None:
        """Fail the replay if a process has failed by now: the program may otherwise wait for that process for ever."""
        reports, session = self._reports, self.session
        if reports is None or self._concluded or session.failure is not None:
            return
        try:
            failure = reported_failure(reports, {segment_of(path): path for path in self.recorded})
        except OSError:  # the replay is over, and its directory gone
            return
        failure = failure or next((died for child in [*self._children] if (died := child.died()) is not None), None)
        if failure is not None and not session.state.ended:
            session.fail(failure)

    @_reality.off_loop()
    def abandon(self) -> None:
        """Kill the processes, and remove their reports: the program is being ended."""
        self._concluded = True
        for child in self._children:
            child.kill()
        if self._owns and self._reports is not None:
            with guard.allow():
                _remove(self._reports)

    def _idle(self, until: float | None) -> list[tuple[ReplayedChild, IdleState | None]]:
        """Return the processes that don't end by themselves.

        All of them are idle, or were still working, with no recorded step left, when the recorded run ended. If the
        replay has failed, also those that are left at the timeout.
        """
        before: list[Any] = []
        begun = _reality.monotonic()
        while True:
            states = [(child, child.state()) for child in self.running()]
            left = [(child, state) for child, state in states if child.report() is None and child.runs()]
            looks = [
                (child.path, state["look"])
                for child, state in left
                if state is not None and (not state["busy"] or (child.open and not state["count"]))
            ]
            late = until is not None and _reality.monotonic() >= until
            if not left or late or (len(looks) == len(left) and looks == before):
                return left
            before = looks
            for child, _ in left:
                child.report_long_wait(begun)
            _reality.sleep(_POLL_S)

    def _report_failures(self, failed: list[ReplayError]) -> None:
        session = self.session
        for child in self._children:
            session.report.warnings += child.warnings
            session.report.include(child.verdict, child.path)
        if not failed:
            return
        first, own = failed[0], session.failure
        if own is None:
            session.fail(first)
        elif not getattr(own, "child", None):  # the failure of a child may be the reason for this one
            own.what = f"{own.what}\n  and {first.what}"
            own.child = first.child  # type: ignore[attr-defined]

    def _check_all_started(self) -> None:
        """Fail the replay if a process of the recording was never started."""
        seen = [*(child.path for child in self._children), *self._answered]
        for path in self.recorded:
            own = path.startswith(self._path + "/") and "@" not in path[len(self._path) :]
            if own and not any(path == other or path.startswith((other + "/", other + "+")) for other in seen):
                self.session.fail(
                    UnconsumedStepsError(
                        f"the recorded run had a process {path} of its own, and the program did not start it",
                        run_id=self.session.run_id,
                        next_action="look at what decides whether it is started; record again if the change is meant",
                        steps=[],
                    )
                )
                return

    def idle(self, but: ReplayedChild | None = None) -> list[Any] | None:
        """Return the idle states of the running processes except one; ``None`` if one of them is busy."""
        found: list[Any] = []
        for child in () if self._concluded else self.started():
            if child is but or (child.pid and not child.runs()):
                continue
            # It is starting or ending, which wakes whatever waits for it.
            if not child.pid or child.report() is not None:
                return None
            state = child.state()
            if state is None or state["busy"]:
                return None
            found.append(state["look"])
        return found

    def at_rest(self, but: ReplayedChild) -> list[Any] | None:
        """Return the idle states of all processes except one, if this process can't move either, and nothing else could
        wake it.

        If two results are equal, neither the processes nor this one moved in between.
        """
        if self._path:  # its parent checks both
            return None
        with self.session.threads.lock:
            look = self.session.threads.at_rest()
        idle = None if look is None else self.idle(but)
        return None if idle is None else [look, idle]

    def rest(self, look: object) -> bool:
        """Return whether none of the processes can move, as far as is known by now; never wait for an answer.

        ``look`` is how this process is seen to rest. Call this repeatedly while it does. Two answers from each process
        prove it, to questions that were asked one after the other: all first answers had arrived when the second ones
        were requested. If no process has run between its own two answers, nor this one since it requested the second,
        all of them slept at the moment of that request.
        """
        # Workers of pools can't be asked. One that has reported ends, and so wakes whatever waits for it; so does one
        # that is being started.
        left = [child for child in self._children if child.pool or not child.pid or child.runs()]
        if look != self._look:
            self._look, self._waited_since = look, _reality.monotonic()
        for child in left:
            child.report_long_wait(self._waited_since)
        from .._runtime.threads import child_processes

        known = child_processes() <= {child.pid for child in self._children}  # other processes can't be asked
        if self._path or not left or not known or any(child.pool or not child.pid or child.report() for child in left):
            self._asked_at = None
            return False
        if any(child.owes_answer for child in left):
            return False
        answers = [child.last_answer for child in left] if self._asked_at == look else []
        before, self._rested = self._rested, None
        if answers and all(state is not None and state["endless"] for state in answers):
            self._rested = [(child.path, state["look"]) for child, state in zip(left, answers, strict=True) if state]
        # One that can't be asked any more is about to end.
        self._asked_at = look if all([child.ask() for child in left]) else None  # noqa: C419 - each of them is asked
        return self._rested is not None and self._rested == before

    def stuck(self, waiting: list[str]) -> tuple[ReplayError | None, bool]:
        """End the resting processes when nothing can move, neither here nor in the processes.

        Return the resulting failure, and whether the program goes on without one: the processes end where the recorded
        ones were killed.
        """
        resting = [(child, state) for child in self.running() if (state := child.state()) is not None]
        over = [(child, state) for child, state in resting if child.open and not state["count"]]
        for child, state in over:
            child.cut_off(state)
        if over or not resting:
            return None, bool(over)
        for child, _ in resting:
            child.give_up()
        child, state = max(resting, key=lambda one: bool(one[1]["count"]))
        return child.stuck_error(state, waiting), False

    @contextmanager
    def waited_for(self, child: ReplayedChild) -> Iterator[None]:
        """Register the calling thread as waiting for the end of a process."""
        me = get_native_id()
        self._waiting[me] = child
        try:
            yield
        finally:
            del self._waiting[me]

    @property
    def waiting(self) -> set[int]:
        """The threads that wait for the end of a process that still runs: any other goes on the next time it looks."""
        return {thread for thread, child in self._waiting.copy().items() if child.runs()}


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
