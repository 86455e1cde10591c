"""The end of a run: open threads and tasks are drained, its last entry is written, or compared with the recorded one."""

from __future__ import annotations

import atexit
import json
import operator
import os
import select
import signal
import sys
from _thread import allocate_lock, get_native_id, start_new_thread
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._capture import guard
from .._journal import store as files
from .._journal.entry import ENDS
from .._journal.store import Store, segment_in
from .._lazy import NamedTuple, expression
from .._runtime.boundary import Crossing, crossings_of, reaches_the_network, sentences, uncaptured
from .._runtime.inputs import OwnFiles
from .._runtime.lane import ROOT, Lane
from .._runtime.process import process
from .._runtime.recorder import Recording, of_run
from .._runtime.redaction import Redactor
from .._runtime.session import Session, current
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
    "last_entry",
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
# The end of every run and segment that a program has written: its last entry, its log closed, its tip kept.

#: The result of a run or segment that has none.
NO_RESULT: Final[Any] = object()


class End(NamedTuple):
    """How a run ends: with ``error``, or else with ``result``. ``meta`` is what its last entry says besides; ``aborted``: given up.

    ``segments`` are the files of its other processes.
    """

    meta: dict[str, Any]
    error: BaseException | None = None
    result: Any = NO_RESULT
    aborted: bool = False
    segments: Sequence[str] = ()


#: How many lines on what crossed the boundary uncaptured a run says at its end.
_LINES: Final = 5


def end_log(
    session: Recording, store: Store | None, end: Callable[[], End], error: BaseException | None = None
) -> None:
    """Write the last entry of a run or segment, close its log, and keep its tip in ``store``. Whatever fails, it has ended then.

    ``end`` is called when nobody else can write. ``error`` is what the program itself ends with: a ``LogWriteError`` that it has got
    already, and has not caught, is not raised once more.
    """
    journal = session.log.journal
    try:
        journal.flush()
        with journal.held():
            session.state.ended = True
            kind, fields, meta = _last_entry(session, end())
            journal.append_last(kind, 0, ROOT, lambda count: fields + session.meta(meta | {"count": count}))
        journal.close()
        if store is not None:
            store.keep_tip(
                journal.run_id, journal.seq, journal.head.decode(),
                segment=segment_in(journal.path), durable=journal.durability != "none",
            )  # fmt: skip
    except LogWriteError as unwritten:
        if not isinstance(error, LogWriteError):
            unwritten.reword(f"run {journal.run_id} has no end: {unwritten.what}")
            unwritten.next_action = (
                "free space or mend the device before the next run: what had been written is intact. `tracekit in-doubt` lists the effects "
                "of which the log does not say what became of them"
            )
            raise
    finally:
        session.state.ended = True
        with suppress(LogWriteError, OSError):  # raised above, where it was the first
            journal.close()


def _last_entry(session: Recording, end: End) -> tuple[str, bytes, dict[str, Any]]:
    """The type of the entry, its result or error as JSON, and its ``meta``."""
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
        crossed = [*boundary.crossings, *_crossed_in(end.segments)]
        lacking = uncaptured(crossed)
        session.report.note(sentences(lacking, _LINES), reached_out=any(reaches_the_network(one) for one in lacking))
    if session.warnings:
        meta["warnings"] = session.warnings
    if session.log.journal.lost:
        meta["lost"] = session.log.journal.lost
    if (callbacks := session.progress.unplaced) is not None:
        meta["callbacks"] = callbacks
    return kind, fields, meta


@_reality.off_loop()
def _crossed_in(segments: Iterable[str]) -> list[Crossing]:
    """What the run's other processes have noted of their boundaries."""
    found: list[Crossing] = []
    for path in segments:
        with suppress(OSError, TracekitError):
            last = files.last_entry(path)
            if last.get("type") not in ENDS or "boundary" in (last.get("meta") or {}):
                from .._journal.reader import Trace

                with Trace(path) as trace:
                    found += crossings_of(trace.entries(damaged=True))
    return found


# -- budgets at the end of a run ---------------------------------------------------------------------------------------
#
# What the last entry of a run says of its budget, and which runs of the process exceeded theirs.


def warn(session: Recording, error: BaseException | None) -> None:
    """Warn of an exceeded budget where no exception has reported it to the caller of the block."""
    if not isinstance(error, BudgetExceededError):
        for whose, resource in session.state.overruns.items():
            session.report.warn(f"a budget was exceeded ({whose}: {resource}); calls were refused, and not made")
        spending = session.state.spending
        if spending is not None and spending.refused is None and spending.exceeded:
            session.report.warn(f"the run took more than its budget allows: {', '.join(spending.exceeded)}")


def account(spending: Spending) -> dict[str, Any]:
    """The budget account in the last entry of a run: the limits, what was spent, which limits were exceeded."""
    if spending.refused is not None:
        process.overspent += 1
    return {"limits": spending.budget.limits, "spent": spending.spent, "exceeded": spending.exceeded}


def keep_as_failure(error: BudgetExceededError, about: dict[str, Any]) -> BudgetExceededError:
    """The failure of a run whose program caught ``error`` and went on to its end; ``about`` is its account."""
    about["swallowed"] = True
    return error


def swallowed(last: Mapping[str, Any]) -> bool:
    """Whether a run that failed, by its last entry, did so by its budget alone: its program ended without an exception."""
    return bool(((last.get("meta") or {}).get("budget") or {}).get("swallowed"))


# -- comparing ends ----------------------------------------------------------------------------------------------------
#
# How a recorded run ended, and whether its replay ends in the same way.

#: Whether a recorded tree and one of now are equal, placeholders standing for their values.
Equal = Callable[[Any, Any], bool]
_ADDRESS: Final = expression(r"0x[0-9a-fA-F]{6,}")


def last_entry(trace: Trace) -> dict[str, Any]:
    """The last entry of a run; it is an end unless the run is incomplete."""
    return trace.entry(len(trace))


def failed(trace: Trace) -> bool:
    """Whether the recorded run ended with an exception. A generator that held the block and was closed is none."""
    last = last_entry(trace)
    if not _with_error(last):
        return False
    return bool(last["error"]["type"] != "builtins:GeneratorExit")


def same_error(trace: Trace, redactor: Redactor, equal: Equal, error: BaseException) -> bool:
    """Whether the recorded run failed with an exception of this type and text, memory addresses aside."""
    last = last_entry(trace)
    if not _with_error(last):
        return False
    actual = redactor.redact(exception_to_json(error, []))[0]
    recorded = last["error"]
    return bool(recorded["type"] == actual["type"] and equal(text_of(recorded), text_of(actual)))


def _with_error(last: Mapping[str, Any]) -> bool:
    """Whether an exception left the block; one that the run had aborted ended with it all the same."""
    return last["type"] in ("run.failed", "run.aborted") and "error" in last and not swallowed(last)


def another_abort(trace: Trace, redactor: Redactor, equal: Equal, reason: str | None) -> DivergenceError | None:
    """How the abort of a replay differs from the recorded one: only one of both was aborted, or for another reason; else ``None``.

    A run without an end, or whose end an operator wrote, says nothing of what its program would have done.
    """
    last = last_entry(trace)
    meta = last.get("meta") or {}
    own = last["type"] == "run.aborted" and bool(meta.get("by_program"))
    if not own and last["type"] not in ("run.completed", "run.failed"):
        return None
    recorded = meta.get("reason") if own else None
    actual = None if reason is None else redactor.redact_text(reason)[0]
    if recorded == actual or (recorded is not None and actual is not None and equal(recorded, actual)):
        return None
    return DivergenceError(
        f"the program ended otherwise\n  recorded  {_abort_of(recorded)}\n  now       {_abort_of(actual)}",
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
    """How the end of a replay differs from that of a run that failed: another ``error``, or none (``ended_as`` says how); at the line
    ``where``."""
    last = last_entry(trace)
    recorded = _said(last["error"])
    actual = ended_as or "no exception" if error is None else _said(exception_to_json(error, []))
    return DivergenceError(
        f"the program ended otherwise\n  recorded  {recorded}\n  now       {actual}",
        run_id=last["run_id"],
        step=last["seq"],
        location=where,
        recorded=recorded,
        actual=actual,
        differences=[{"path": "end", "recorded": recorded, "actual": actual}],
        next_action="every step until here matched: look at what changed after the last of them, or for what is not captured "
        "(`tracekit docs not-captured`); record again if the change is meant",
    )


def hash_seed_hint(first: Mapping[str, Any], here: Any) -> str | None:
    """A hint that sets may be in another order where the recording's hash seed differs; ``first`` is the run's first entry."""
    meta = first.get("meta") or {}
    seed = (meta.get("environment") or {}).get("hash_seed")
    if seed is None or meta.get("program") == process.role.program or (seed == here and seed != "random"):
        return None
    return (
        f"the hash seed was {seed} in the recording and is {here} here, so that sets of strings come in another order: "
        "if one reaches this step, sort it, or record with PYTHONHASHSEED set (`tracekit run` sets it)"
    )


def text_of(error: Mapping[str, Any]) -> Any:
    """The text of a recorded exception, without the addresses in it."""
    text = error.get("text")
    return _ADDRESS.sub("0x", text) if isinstance(text, str) else text


def _said(error: Mapping[str, Any]) -> str:
    name = str(error.get("type")).removeprefix("builtins:").replace(":", ".")
    text = error.get("text")
    return f"{name}: {text}" if text else name


# -- draining ----------------------------------------------------------------------------------------------------------
#
# At the end of a block, what the run has started gets some time to end.

#: How long a block waits at its end for the open lanes of its run that owe nothing (s). What one does after that is in no trace, and is
#: said: an effect of a recorded program is refused, a step of a replayed one makes the replay inexact, as it would have before.
DRAIN_S: Final = 1.0
#: The pause between two looks at them (s).
_LOOK: Final = 0.002


def drain(session: Session) -> None:
    """Wait for the run's threads to end; its tasks can't run while this thread waits."""
    end = _reality.monotonic() + DRAIN_S
    token = current.set(None)  # these waits are not part of the run
    try:
        while (lanes := [lane for lane in session.open_lanes() if _runs_in_another_thread(lane)]) and _may_wait(
            session, lanes, end
        ):
            _reality.sleep(_LOOK)
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
            await asyncio.sleep(_LOOK)
    finally:
        current.reset(token)


def _may_wait(session: Session, lanes: list[Lane], end: float) -> bool:
    """Whether to wait longer: until ``end``, and in a replay until each lane has made its recorded steps, however slow the machine."""
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
    """What replaces ``os._exit`` while somebody is asked for the status."""

    def __init__(self) -> None:
        #: Who is asked, the last one first, each with the process that it is for.
        self._asked: Final[list[tuple[int, ExitStatus]]] = []
        self._lock: Final = _reality.free_in_forks(allocate_lock())
        self.really: Callable[[int], Any] = os._exit
        #: The one function of it, so that it is known when it is found again.
        self._mine: Final = self._exit

    def ask(self, exit_status: ExitStatus) -> Callable[[], None]:
        """Ask ``exit_status`` from now on, until the function that is returned is called."""
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
    """Make ``os._exit(status)`` exit with ``exit_status(status)``, not in a forked child, until the function that is returned is called."""
    return _os_exit.ask(exit_status)


def _exchange(function: Callable[[int], Any]) -> None:
    for name in ("os", "posix"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module._exit = function


def on_process_end(exit_status: ExitStatus) -> Callable[[], None]:
    """Ask ``exit_status`` when this process ends by ``os._exit``, or with its interpreter (then by 0, for nobody knows the status),
    and end with what it says; until the function that is returned is called."""
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
    """The interpreter is ending: let it go on, all other exit handlers included, and the process then exit with ``status``."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        kept = libc.__cxa_atexit(ctypes.cast(libc._exit, ctypes.c_void_p), ctypes.c_void_p(status), None) == 0
    except (ImportError, OSError, AttributeError):
        kept = False
    if not kept:  # the handlers that were registered before are lost
        sys.stdout.flush()
        _os_exit.really(status)


def at_hard_exit(call: Callable[[], object]) -> None:
    """``os._exit`` is how a forked child ends cleanly, and ``os.exec*`` how a process goes on as another program: ``call`` comes
    first, but for the middle of a tool, which stays in doubt."""
    pid = os.getpid()

    def leave() -> None:
        if os.getpid() == pid:
            scope = current.get()
            if scope is None or not scope.live:
                with suppress(Exception):  # a disk that is full keeps nobody from leaving
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
# The clock can't show whether a process has come as far as the recorded one. It is idle if all its threads sleep, none has run between
# two looks, and none sleeps with a time limit: then only something from outside can wake it, a message or a signal. Of one that has no
# recorded step left to make, a time limit does not matter: it looks now and then for what does not come. The report includes the recorded
# steps that it has not reached.

IdleState = dict[str, Any]

#: How often a process looks whether its parent is still there, in seconds.
_PARENT_LOOK: Final = 1.0


def ask_file(report: str) -> str:
    """The named pipe on which the process with this report is asked for its idle state; each byte is a question."""
    return f"{report}.ask"


def state_file(report: str) -> str:
    """The file in which it answers: the number of the question, the steps that are left, and the state of its threads."""
    return f"{report}.still"


class IdleReporter:
    """A thread that reports the idle state of this process to its parent. ``left`` gives the recorded steps that the program has not
    reached, ``waiting`` the threads that wait for the end of a child process, ``below`` the states of its child processes (``None``: one
    is busy, or the replay of this one may hand out an event), ``debugged`` whether this one stands still in the debugger."""

    def __init__(
        self,
        report: str,
        left: Callable[[], list[dict[str, Any]]],
        waiting: Callable[[], Collection[int]],
        below: Callable[[], list[Any] | None],
        debugged: Callable[[], bool],
    ) -> None:
        self._report: Final = report
        self._left: Final = left
        self._waiting: Final = waiting
        self._below: Final = below
        self._debugged: Final = debugged
        self._parent: Final = os.getppid()
        self._questions = 0
        with guard.allow():
            os.mkfifo(ask_file(report), 0o600)
            self._fd: Final = os.open(ask_file(report), os.O_RDWR | os.O_CLOEXEC)
        start_new_thread(self._listen, ())

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        process.observers[get_native_id()] = None
        with guard.allow(), suppress(OSError):  # the replay is over, and its directory gone
            while True:
                if select.select([self._fd], [], [], _PARENT_LOOK)[0]:
                    self._questions += len(os.read(self._fd, 4096))
                    self._write_state()
                elif os.getppid() != self._parent and not os.path.exists(ask_file(self._report)):
                    os.kill(os.getpid(), signal.SIGKILL)  # what belongs to a replay does not outlive it

    def _write_state(self) -> None:
        look, endless = self._look()
        left = self._left()  # as it is between two looks: what is left of a process that runs is not known
        debugged = self._debugged()  # it has not come to its end, and moves when somebody wants
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
        """The state of this process and those below it: two equal ones mean that nothing has run in between (``None``: something runs);
        and whether only something from outside can wake it."""
        below = self._below()
        try:
            from .._runtime.threads import asleep

            found = asleep(self._waiting())
        except OSError:  # no such system: as far as it came is what can be seen
            return [below], False
        if below is None or found is None:
            return None, False
        return [found[0], below], found[1]
