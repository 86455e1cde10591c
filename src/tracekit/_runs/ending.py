"""The end of a run: open threads and tasks are drained, and its last entry is written, or compared."""

from __future__ import annotations

import atexit
import json
import operator
import os
import signal
import sys
from _thread import get_native_id, start_new_thread
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._capture import guard
from .._journal import store as files
from .._journal.entry import ENDS, meta_of
from .._journal.store import Store, segment_in
from .._journal.writer import making_room
from .._lazy import NamedTuple, expression
from .._runtime.boundary import BY_CHANCE, Crossing, by_chance, crossings_of, reaches_the_network, sentences, uncaptured
from .._runtime.inputs import OwnFiles
from .._runtime.lane import ROOT, Lane
from .._runtime.process import process
from .._runtime.recorder import Recording, of_run
from .._runtime.redaction import Redactor
from .._runtime.session import Leaving, Session, current
from .._runtime.signals import in_live_step, undivided
from .._values import exception_to_json
from ..errors import BudgetExceededError, DivergenceError, LogWriteError, ReplayError, TracekitError

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .._runtime.spending import Spending

__all__ = [
    "DRAIN_S",
    "End",
    "IdleReporter",
    "IdleState",
    "account",
    "another_abort",
    "another_end",
    "ask_file",
    "at_hard_exit",
    "at_process_end",
    "drain",
    "drain_async",
    "end_log",
    "failed",
    "hash_seed_hint",
    "keep_as_failure",
    "leave_threads",
    "on_os_exit",
    "on_process_end",
    "same_error",
    "state_file",
    "swallowed",
    "text_of",
    "warn",
]

# -- the last entry ----------------------------------------------------------------------------------------------------
#
# The end of every run and segment that a program has written: its last entry is written, its log closed, its tip hash
# kept.

#: The result of a run or segment that has none.
NO_RESULT: Final[Any] = object()


class End(NamedTuple):
    """How a run ends: with ``error``, or else with ``result``.

    ``meta`` is additional data for its last entry; ``aborted``: the run was given up; ``segments`` are the files of its
    other processes.
    """

    meta: dict[str, Any]
    error: BaseException | None = None
    result: Any = NO_RESULT
    aborted: bool = False
    segments: Sequence[str] = ()


#: The most lines that a run prints at its end about uncaptured operations.
_LINES: Final = 5


def end_log(
    session: Recording, store: Store | None, end: Callable[[], End], error: BaseException | None = None
) -> None:
    """Write the last entry of a run or segment, close its log, and keep its tip hash in ``store``. The run has ended
    then even if that fails.

    ``end`` is called when nothing else can write. ``error`` is what the program itself ends with: a ``LogWriteError``
    that it already got and did not catch is not raised again.
    """
    undivided(lambda: _end_log(session, store, end, error))  # Ctrl-C would leave the run without an end


def _end_log(session: Recording, store: Store | None, end: Callable[[], End], error: BaseException | None) -> None:
    journal = session.log.journal
    try:
        journal.flush()
        with journal.held():
            session.state.ended = True
            kind, fields, meta = _last_entry(session, end())
            journal.append_last(kind, 0, ROOT, lambda count: fields + session.meta(meta | {"count": count}))
        journal.close()
    except LogWriteError as unwritten:
        if not isinstance(error, LogWriteError):
            lost = f"; {journal.lost} calls or readings are missing from it" if journal.lost else ""
            unwritten.reword(f"run {journal.run_id} has no end: {unwritten.what}{lost}")
            unwritten.next_action = (
                f"{making_room(unwritten.__cause__)} before the next run: what was written before is intact. `tracekit in-doubt` lists the "
                "effects whose outcome is not in the log"
            )
            raise
        return
    finally:
        session.state.ended = True
        with suppress(LogWriteError, OSError):  # raised above, if it was the first
            journal.close()
    if store is not None:
        _keep_tip(session, store)


def _keep_tip(session: Recording, store: Store) -> None:
    """Keep the tip hash of a log that has its end. The run is complete without it, but a seal that was asked for is not
    left out in silence."""
    journal = session.log.journal
    try:
        store.keep_tip(
            journal.run_id, journal.seq, journal.head.decode(),
            segment=segment_in(journal.path), durable=journal.durability != "none",
        )  # fmt: skip
    except LogWriteError as unwritten:
        if store.seals_runs():
            unwritten.reword(f"run {journal.run_id} is complete, but has no seal: {unwritten.what}")
            raise
        session.report.warn(
            f"its tip hash was not kept: {unwritten.what}. The run is complete; if lines are cut off its end later, nothing shows it"
        )


def _last_entry(session: Recording, end: End) -> tuple[str, bytes, dict[str, Any]]:
    """Return the type of the entry, its result or error as JSON, and its ``meta``."""
    meta, fields = end.meta, b""
    kind = "run.aborted" if end.aborted else "run.completed" if end.error is None else "run.failed"
    if end.error is not None:
        meta["failure"] = of_run(end.error, session)
        fields = session.error(end.error, meta)
    elif end.result is not NO_RESULT:
        fields = session.result(end.result, meta)
    if session.in_doubt:
        meta.setdefault("in_doubt", sorted(session.in_doubt))
    boundary = session.state.boundary
    if boundary is not None:
        if boundary.as_dict():
            meta["boundary"] = boundary.as_dict()
        meta["wrote"] = session.state.extras.of(OwnFiles).lasting
        crossed = [boundary.crossings, *_crossed_in(end.segments)]
        lacking = [*uncaptured(chain(*crossed)), *by_chance(crossed)]
        session.report.note(
            sentences(lacking, _LINES),
            reached_out=any(reaches_the_network(one) for one in lacking),
            only_chance=all(one.kind in BY_CHANCE for one in lacking),
        )
    if session.warnings:
        meta["warnings"] = session.warnings
    if session.log.journal.lost:
        meta["lost"] = session.log.journal.lost
    if (callbacks := session.progress.unplaced) is not None:
        meta["callbacks"] = callbacks
        if session.progress.goes_on:
            meta["loop_goes_on"] = True
    if lanes := _still_running(session):
        meta["open_lanes"] = lanes
    return kind, fields, meta


def _still_running(session: Recording) -> list[int]:
    """Return the numbers of the lanes that go on while the calling thread or task ends the run."""
    here = {get_ident()}
    if (task := _reality.running_task()) is not None:
        here.add(id(task))
    root = session.state.root
    lanes = session.open_lanes() if root is None else [root, *session.open_lanes()]
    return sorted({lane.id for lane in lanes if lane.open and lane.owner not in here})


@_reality.off_loop()
def _crossed_in(segments: Iterable[str]) -> list[list[Crossing]]:
    """Return what each of the run's other processes has noted at its boundary."""
    found: list[list[Crossing]] = []
    for path in segments:
        with suppress(OSError, TracekitError):
            last = files.last_entry(path)
            if last.get("type") not in ENDS or "boundary" in meta_of(last):
                from .._journal.reader import Trace

                with Trace(path) as trace:
                    found.append(crossings_of(trace.entries(damaged=True)))
    return found


# -- budgets at the end of a run ---------------------------------------------------------------------------------------
#
# What the last entry of a run says about its budget, and which runs of the process exceeded theirs.


def warn(session: Recording, error: BaseException | None) -> None:
    """Warn about an exceeded budget if no exception has reported it to the caller of the block."""
    if not isinstance(error, BudgetExceededError):
        for whose, resource in session.state.overruns.items():
            session.report.warn(f"a budget was exceeded ({whose}: {resource}); calls were refused, and not made")
        spending = session.state.spending
        if spending is not None and spending.refused is None and spending.exceeded:
            session.report.warn(f"the run took more than its budget allows: {', '.join(spending.exceeded)}")


def account(spending: Spending) -> dict[str, Any]:
    """Return the budget account for the last entry of a run: limits, spending, and exceeded limits."""
    if spending.refused is not None:
        process.overspent += 1
    return {"limits": spending.budget.limits, "spent": spending.spent, "exceeded": spending.exceeded}


def keep_as_failure(error: BudgetExceededError, about: dict[str, Any]) -> BudgetExceededError:
    """Return the failure of a run whose program caught ``error`` and went on to its end; ``about`` is its account."""
    about["swallowed"] = True
    return error


def swallowed(last: Mapping[str, Any]) -> bool:
    """Return whether a run failed only by its budget, according to its last entry: its program ended without an
    exception."""
    return bool((meta_of(last).get("budget") or {}).get("swallowed"))


# -- comparing ends ----------------------------------------------------------------------------------------------------
#
# How a recorded run ended, and whether its replay ends in the same way.

#: Returns whether a recorded and a current tree are equal; placeholders match their values.
Equal = Callable[[Any, Any], bool]
_ADDRESS: Final = expression(r"0x[0-9a-fA-F]{6,}")


def failed(trace: Trace) -> bool:
    """Return whether the recorded run ended with an exception, except for the closing of a generator that held the
    block."""
    last = trace.last
    if not _with_error(last):
        return False
    return bool(last["error"]["type"] != "builtins:GeneratorExit")


def same_error(trace: Trace, redactor: Redactor, equal: Equal, error: BaseException) -> bool:
    """Return whether the recorded run failed with an exception of this type and text, memory addresses aside."""
    last = trace.last
    if not _with_error(last):
        return False
    actual = redactor.redact(exception_to_json(error, []))[0]
    recorded = last["error"]
    return bool(recorded["type"] == actual["type"] and equal(text_of(recorded), text_of(actual)))


def _with_error(last: Mapping[str, Any]) -> bool:
    """Return whether an exception left the block; an aborted run may have ended with one as well."""
    return last["type"] in ("run.failed", "run.aborted") and "error" in last and not swallowed(last)


def another_abort(trace: Trace, redactor: Redactor, equal: Equal, reason: str | None) -> DivergenceError | None:
    """Return how the abort of a replay differs from the recorded one: only one was aborted, or for another reason; else
    ``None``.

    A run without an end, or with an end written by an operator, says nothing about what its program would have done.
    """
    last = trace.last
    meta = meta_of(last)
    own = last["type"] == "run.aborted" and bool(meta.get("by_program"))
    if not own and last["type"] not in ("run.completed", "run.failed"):
        return None
    recorded = meta.get("reason") if own else None
    actual = None if reason is None else redactor.redact_text(reason)[0]
    if recorded == actual or (recorded is not None and actual is not None and equal(recorded, actual)):
        return None
    return DivergenceError(
        f"the program ended differently\n  recorded  {_abort_of(recorded)}\n  now       {_abort_of(actual)}",
        run_id=last["run_id"],
        step=last["seq"],
        recorded=recorded,
        actual=actual,
        differences=[{"path": "abort", "recorded": recorded, "actual": actual}],
        next_action="look at what decides whether the run is aborted; record again if the change is meant",
    )


def _abort_of(reason: str | None) -> str:
    return "not aborted" if reason is None else f"aborted: {reason}"


def another_end(trace: Trace, error: BaseException | None, ended_as: str | None, where: str | None) -> DivergenceError:
    """Return how the end of a replay differs from that of a failed run: another ``error``, or none (``ended_as`` says
    how).

    ``where`` is the line in the code.
    """
    last = trace.last
    recorded = _error_text(last["error"])
    actual = ended_as or "no exception" if error is None else _error_text(exception_to_json(error, []))
    return DivergenceError(
        f"the program ended differently\n  recorded  {recorded}\n  now       {actual}",
        run_id=last["run_id"],
        step=last["seq"],
        location=where,
        recorded=recorded,
        actual=actual,
        differences=[{"path": "end", "recorded": recorded, "actual": actual}],
        next_action="every step until here matched: check what changed after the last of them, or for what is not captured "
        "(`tracekit docs not-captured`); record again if the change is meant",
    )


def hash_seed_hint(first: Mapping[str, Any], here: Any) -> str | None:
    """Return a hint that sets may have another order if the recording's hash seed differs; ``first`` is the run's first
    entry."""
    meta = meta_of(first)
    seed = (meta.get("environment") or {}).get("hash_seed")
    if seed is None or meta.get("program") == process.role.program or (seed == here and seed != "random"):
        return None
    return (
        f"the hash seed was {seed} in the recording and is {here} here, so that sets of strings come in another order: "
        "if one reaches this step, sort it, or record with PYTHONHASHSEED set (`tracekit run` sets it)"
    )


def text_of(error: Mapping[str, Any]) -> Any:
    """Return the text of a recorded exception without memory addresses."""
    text = error.get("text")
    return _ADDRESS.sub("0x", text) if isinstance(text, str) else text


def _error_text(error: Mapping[str, Any]) -> str:
    name = str(error.get("type")).removeprefix("builtins:").replace(":", ".")
    text = error.get("text")
    return f"{name}: {text}" if text else name


# -- draining ----------------------------------------------------------------------------------------------------------
#
# At the end of a block, what the run has started gets some time to end.

#: How long (s) a block waits at its end for open lanes of its run without pending recorded steps. What such a lane does
#: afterwards is in no trace, which is reported: an effect of a recorded program is refused, a step of a replayed one
#: makes the replay inexact, as before.
DRAIN_S: Final = 1.0
#: The polling interval (s).
_POLL_S: Final = 0.002


def drain(session: Session) -> None:
    """Wait for the run's threads to end; its tasks can't run while this thread waits."""
    end = _reality.monotonic() + DRAIN_S
    token = current.set(None)  # these waits are not part of the run
    try:
        while (lanes := [lane for lane in session.open_lanes() if _runs_in_another_thread(lane)]) and _may_wait(
            session, lanes, end
        ):
            _reality.sleep(_POLL_S)
    finally:
        current.reset(token)


async def drain_async(session: Session) -> None:
    """Wait for the run's threads and tasks to end."""
    import asyncio

    end = _reality.monotonic() + DRAIN_S
    token = current.set(None)
    try:
        me = id(asyncio.current_task())
        while (lanes := [lane for lane in session.open_lanes() if lane.owner != me]) and _may_wait(session, lanes, end):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
    finally:
        current.reset(token)


def leave_threads(session: Recording) -> None:
    """At the end of a process, leave its daemon threads where they are: they end with it. Nothing that they ask for begins
    any more; an irreversible step that has begun gets some time to end, since nobody could say whether it was done."""
    here = current.get()
    if session.state.closing is None and here is not None:
        session.state.closing = Leaving(session.run_id, here.lane, session.log.position)
    begun = {*session.in_doubt}
    end = _reality.monotonic() + DRAIN_S
    while (
        not begun.isdisjoint(session.in_doubt)
        and any(map(_runs_in_another_thread, session.open_lanes()))
        and _reality.monotonic() < end
    ):
        _reality.sleep(_POLL_S)


def _may_wait(session: Session, lanes: list[Lane], end: float) -> bool:
    """Return whether to wait longer: until ``end``, and in a replay until each lane has made its recorded steps,
    however slow the machine."""
    if _reality.monotonic() < end:
        return True
    return session.owed_by(lanes)


def _runs_in_another_thread(lane: Lane) -> bool:
    return lane.owner != get_ident() and lane.owner in sys._current_frames()


# -- the end of the process --------------------------------------------------------------------------------------------
#
# A process that ends while a run is open, by ``os._exit`` or with the interpreter.

ExitStatus = Callable[[int], int]


class _OsExit:
    """Replaces ``os._exit`` while a function wants to decide about the status."""

    def __init__(self) -> None:
        #: The functions to ask, the last one first, each with its process id.
        self._asked: Final[list[tuple[int, ExitStatus]]] = []
        self._lock: Final = _reality.OwnLock()
        self.really: Callable[[int], Any] = os._exit
        #: A single bound method, so that it is recognised when found again.
        self._mine: Final = self._exit

    def ask(self, exit_status: ExitStatus) -> Callable[[], None]:
        """Ask ``exit_status`` from now on, until the returned function is called."""
        asked = (os.getpid(), exit_status)
        with self._lock:
            if not self._asked:
                self.really = os._exit
                _exchange(self._mine)
            self._asked.append(asked)

        def forget() -> None:
            with self._lock:
                if asked in self._asked:
                    self._asked.remove(asked)
                    if not self._asked and os._exit is self._mine:
                        _exchange(self.really)

        return forget

    def _exit(self, status: int) -> None:
        status = operator.index(status)
        asked = [call for pid, call in reversed(self._asked) if pid == os.getpid()]
        for call in asked:
            status = call(status)
        if asked and sys.stderr is not None:
            with suppress(OSError, ValueError):  # it is closed
                sys.stderr.flush()
        self.really(status)


_os_exit: Final = _OsExit()


def on_os_exit(exit_status: ExitStatus) -> Callable[[], None]:
    """Make ``os._exit(status)`` exit with ``exit_status(status)``, not in a forked child, until the returned function
    is called."""
    return _os_exit.ask(exit_status)


def _exchange(function: Callable[[int], Any]) -> None:
    for name in ("os", "posix"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module._exit = function


def on_process_end(exit_status: ExitStatus) -> Callable[[], None]:
    """Ask ``exit_status`` when this process ends, and end with the status it returns; until the returned function is
    called.

    It is asked with the status of ``os._exit``, or with 0 when the interpreter ends, since its status is unknown.
    """
    pid = os.getpid()

    def at_exit() -> None:
        if os.getpid() == pid:
            status = exit_status(0)
            if status:
                _end_with(status)

    forget = on_os_exit(exit_status)
    atexit.register(at_exit)

    def forget_both() -> None:
        forget()
        atexit.unregister(at_exit)

    return forget_both


def _end_with(status: int) -> None:
    """While the interpreter ends: let it run all other exit handlers, and the process then exit with ``status``."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        kept = libc.__cxa_atexit(ctypes.cast(libc._exit, ctypes.c_void_p), ctypes.c_void_p(status), None) == 0
    except (ImportError, OSError, AttributeError):
        kept = False
    if not kept:  # the previously registered handlers are lost
        sys.stdout.flush()
        _os_exit.really(status)


def at_hard_exit(call: Callable[[], object]) -> None:
    """Call ``call`` before ``os._exit`` and ``os.exec*``, except inside a tool, whose step stays in doubt, or in a signal
    handler that has interrupted one.

    With ``os._exit`` a forked child ends cleanly, and with ``os.exec*`` a process continues as another program.
    """
    pid = os.getpid()

    def leave() -> None:
        if os.getpid() == pid and not in_live_step():
            with suppress(Exception):  # a full disk must not prevent the exit
                call()

    def exit_status(status: int) -> int:
        leave()
        return status

    on_os_exit(exit_status)
    process.before_exec.append(leave)


def at_process_end(end: Any, failed: Any) -> None:
    """Call ``end()`` when this process ends, also by an exception (then ``failed(error)`` first) or by ``os._exit``."""
    before = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        failed(error)
        if not isinstance(error, ReplayError):  # reported once, at the very end
            before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(end)
    at_hard_exit(end)
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


# -- the idle state of a process ---------------------------------------------------------------------------------------
#
# A child process of a replay reports to its parent, when asked, whether it is idle.
#
# The clock can't show whether a process has got as far as the recorded one. It is idle if all its threads sleep, none
# has run between two looks, and none sleeps with a timeout: then only something from outside can wake it, a message or
# a signal. For a process without any recorded step left, timeouts don't matter: it polls for something that does not
# come. The report includes the recorded steps that it has not reached.

IdleState = dict[str, Any]

#: How often (s) a process checks whether its parent still exists.
_PARENT_CHECK_INTERVAL: Final = 1.0


def ask_file(report: str) -> str:
    """Return the named pipe on which the process with this report is asked for its idle state; each byte is a question."""
    return f"{report}.ask"


def state_file(report: str) -> str:
    """Return the file in which it answers: the number of the question, the remaining steps, and the state of its
    threads."""
    return f"{report}.still"


class IdleReporter:
    """A thread that reports the idle state of this process to its parent.

    ``left`` returns the recorded steps that the program has not reached, ``waiting`` the threads that wait for the end
    of a child process, ``below`` the states of its child processes (``None``: one is busy, or this process's replay may
    hand out an event), ``debugged`` whether this process is stopped in the debugger. ``trace`` is what ``left`` reads.
    """

    def __init__(
        self,
        report: str,
        left: Callable[[], list[dict[str, Any]]],
        waiting: Callable[[], Collection[int]],
        below: Callable[[], list[Any] | None],
        debugged: Callable[[], bool],
        trace: Trace | None = None,
    ) -> None:
        # Only a process that is replayed as a child needs these: a recorded one starts without.
        import selectors

        from .._capture.isolation import separate_descriptors

        self._report: Final = report
        self._left: Final = left
        self._waiting: Final = waiting
        self._below: Final = below
        self._debugged: Final = debugged
        self._trace: Final = trace
        self._parent: Final = os.getppid()
        self._questions = 0
        # select() takes no descriptor past 1023, and a forked server may have one there.
        self._asked: Final = selectors.PollSelector()
        with guard.allow():
            os.mkfifo(ask_file(report), 0o600)
            self._separate: Final = separate_descriptors()
        start_new_thread(self._listen, ())

    def _listen(self) -> None:
        from selectors import EVENT_READ

        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        process.observers[get_native_id()] = None
        with guard.allow(), suppress(OSError):  # the replay is over, and its directory gone
            self._separate(-1 if self._trace is None else self._trace.descriptor)
            questions = _reality.aside(os.open(ask_file(self._report), os.O_RDWR | os.O_CLOEXEC))
            self._asked.register(questions, EVENT_READ)
            while True:
                if self._asked.select(_PARENT_CHECK_INTERVAL):
                    self._questions += len(os.read(questions, 4096))
                    self._write_state()
                elif os.getppid() != self._parent and not os.path.exists(ask_file(self._report)):
                    os.kill(os.getpid(), signal.SIGKILL)  # a process of a replay must not outlive it

    def _write_state(self) -> None:
        look, endless = self._look()
        left = self._left()  # between two looks: what a running process has left is unknown
        debugged = self._debugged()  # it has not reached its end, and moves when the user wants
        if debugged or look is None or look != self._look()[0]:
            look, endless = None, False
        busy = look is None or not (endless or not left)
        state = {
            "question": self._questions, "busy": busy, "endless": endless, "count": len(left) or int(debugged), "left": left[:3],
            "look": look,
        }  # fmt: skip
        path = state_file(self._report)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(f"{path}.new", path)

    def _look(self) -> tuple[list[Any] | None, bool]:
        """Return the state of this process and those below it, and whether only something from outside can wake it.

        If two states are equal, nothing has run in between; ``None``: something is running.
        """
        below = self._below()
        try:
            from .._runtime.threads import asleep

            found = asleep(self._waiting())
        except OSError:  # not supported by this system: how far it got is all that is known
            return [below], False
        if below is None or found is None:
            return None, False
        return [found[0], below], found[1]
