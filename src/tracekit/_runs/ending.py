"""The end of a block: what still runs is waited for, and how the run ended is compared with the recording."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from _thread import get_native_id, start_new_thread
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import get_ident
from typing import Any, Final

from .. import _reality
from .._capture import guard
from .._journal.reader import Trace
from .._policy.budget import Spending
from .._runtime.context import Lane, current
from .._runtime.recorder import Recording
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay, alike
from .._values import exception_to_json
from ..errors import BudgetExceededError, DivergenceError
from . import role

__all__ = [
    "LINGER",
    "Answer",
    "Teller",
    "account",
    "another_abort",
    "another_end",
    "ask_file",
    "drain",
    "drain_async",
    "failed",
    "hash_seed_hint",
    "keep_as_failure",
    "last_entry",
    "refused_runs",
    "same_error",
    "still_file",
    "swallowed",
    "warn",
]

# -- overspending ------------------------------------------------------------------------------------------------------
#
# What a run says at its end of its budget, and how the process ends that has gone over one.

#: How many runs of this process ended over their budget, by the program's word or not.
_refused: Final[list[BudgetExceededError]] = []


def warn(session: Recording, error: BaseException | None) -> None:
    """Say what went over a budget, where no exception has said so to whoever holds the block."""
    if not isinstance(error, BudgetExceededError):
        for whose, resource in session.state.overruns.items():
            session.report.warn(f"a budget was exceeded ({whose}: {resource}); calls were refused, and not made")
        spending = session.state.spending
        if spending is not None and spending.refused is None and spending.exceeded:
            session.report.warn(f"the run took more than its budget allows: {', '.join(spending.exceeded)}")


def account(spending: Spending) -> dict[str, Any]:
    """What the last entry of a run says: the limits, what was spent, which limits were gone over."""
    if spending.refused is not None:
        _refused.append(spending.refused)
    return {"limits": spending.budget.limits, "spent": spending.spent, "exceeded": spending.exceeded}


def keep_as_failure(error: BudgetExceededError, about: dict[str, Any]) -> BudgetExceededError:
    """The failure of a run whose program caught ``error`` and went on to its end; ``about`` is its account."""
    about["swallowed"] = True
    return error


def swallowed(last: Mapping[str, Any]) -> bool:
    """Whether a run that failed, by its last entry, did so by its budget alone: its program ended without an exception."""
    return bool(((last.get("meta") or {}).get("budget") or {}).get("swallowed"))


def refused_runs() -> int:
    """How many runs of this process ended over their budget."""
    return len(_refused)


# -- ends --------------------------------------------------------------------------------------------------------------
#
# How a recorded run ended, and whether its replay ends in the same way.

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")


def last_entry(trace: Trace) -> dict[str, Any]:
    """The last entry of a run; it is an end unless the run is unsealed."""
    return trace.entry(len(trace))


def failed(trace: Trace) -> bool:
    """Whether the recorded run ended with an exception. A generator that held the block and was closed is none."""
    last = last_entry(trace)
    if not _with_error(last):
        return False
    return bool(last["error"]["type"] != "builtins:GeneratorExit")


def same_error(trace: Trace, redactor: Redactor, error: BaseException) -> bool:
    """Whether the recorded run failed with an exception of this type and text (addresses in it aside)."""
    last = last_entry(trace)
    if not _with_error(last):
        return False
    actual = redactor.redact(exception_to_json(error, []))[0]
    recorded = redactor.redact(last["error"])[0]
    return bool(recorded["type"] == actual["type"] and alike(_text(recorded), _text(actual)))


def _with_error(last: Mapping[str, Any]) -> bool:
    """Whether an exception left the block; one that the run had aborted ended with it all the same."""
    return last["type"] in ("run.failed", "run.aborted") and "error" in last and not swallowed(last)


def another_abort(trace: Trace, redactor: Redactor, reason: str | None) -> DivergenceError | None:
    """The program gave its run up now (``reason``) or then, and not both, or for another reason. ``None`` where it is the same.

    A run without an end, or whose end an operator wrote, says nothing of what its program would have done.
    """
    last = last_entry(trace)
    meta = last.get("meta") or {}
    own = last["type"] == "run.aborted" and bool(meta.get("by_program"))
    if not own and last["type"] not in ("run.completed", "run.failed"):
        return None
    recorded = meta.get("reason") if own else None
    actual = None if reason is None else redactor.redact_text(reason)[0]
    if recorded == actual or (recorded is not None and actual is not None and alike(recorded, actual)):
        return None
    return DivergenceError(
        f"the program ended otherwise\n  recorded  {_abort_said(recorded)}\n  now       {_abort_said(actual)}",
        run_id=last["run_id"],
        step=last["seq"],
        recorded=recorded,
        actual=actual,
        differences=[{"path": "abort", "recorded": recorded, "actual": actual}],
        next_action="look at what decides whether the run is aborted; record again if the change is meant",
    )


def _abort_said(reason: str | None) -> str:
    return "not aborted" if reason is None else f"aborted: {reason}"


def another_end(trace: Trace, error: BaseException | None, ended_as: str | None) -> DivergenceError:
    """The recorded run failed, and the replay ended otherwise: with ``error``, or without one (``ended_as`` says how)."""
    last = last_entry(trace)
    recorded = _said(last["error"])
    actual = ended_as or "no exception" if error is None else _said(exception_to_json(error, []))
    return DivergenceError(
        f"the program ended otherwise\n  recorded  {recorded}\n  now       {actual}",
        run_id=last["run_id"],
        step=last["seq"],
        recorded=recorded,
        actual=actual,
        differences=[{"path": "end", "recorded": recorded, "actual": actual}],
        next_action="every step until here matched: look at what changed after the last of them, or for what is not captured "
        "(docs/not-captured.md); record again if the change is meant",
    )


def hash_seed_hint(first: Mapping[str, Any], here: Any) -> str | None:
    """What to think of where the recording's hash seed is not ours: the order of sets; ``first`` is the run's first entry."""
    meta = first.get("meta") or {}
    seed = (meta.get("environment") or {}).get("hash_seed")
    if seed is None or meta.get("program") == role.program() or (seed == here and seed != "random"):
        return None
    return (
        f"the hash seed was {seed} in the recording and is {here} here, so that sets of strings come in another order: "
        "if one reaches this step, sort it, or record with PYTHONHASHSEED set (`tracekit run` sets it)"
    )


def _text(error: Mapping[str, Any]) -> Any:
    text = error.get("text")
    return _ADDRESS.sub("0x", text) if isinstance(text, str) else text


def _said(error: Mapping[str, Any]) -> str:
    name = str(error.get("type")).removeprefix("builtins:").replace(":", ".")
    text = error.get("text")
    return f"{name}: {text}" if text else name


# -- drain -------------------------------------------------------------------------------------------------------------
#
# The end of a block, at which what the run has started may come to its end.

#: How long the block of a recording waits at most for the open lanes of its run, in seconds.
LINGER: Final = 1.0
_LOOK: Final = 0.002


def drain(session: Recording | Replay) -> None:
    """Wait for the threads of the run; its tasks can't go on while this thread waits."""
    end = _reality.monotonic() + LINGER
    token = current.set(None)  # these waits are none of the run's own
    try:
        while (lanes := [lane for lane in session.open_lanes() if _runs_elsewhere(lane)]) and _waits(
            session, lanes, end
        ):
            _reality.sleep(_LOOK)
    finally:
        current.reset(token)


async def drain_async(session: Recording | Replay) -> None:
    """Wait for the threads and tasks of the run."""
    import asyncio

    end = _reality.monotonic() + LINGER
    token = current.set(None)
    try:
        me = id(asyncio.current_task())
        while (lanes := [lane for lane in session.open_lanes() if lane.owner != me]) and _waits(session, lanes, end):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
    finally:
        current.reset(token)


def _waits(session: Recording | Replay, lanes: list[Lane], end: float) -> bool:
    """How much a slow machine has done in that time decides nothing in a replay: a lane has the steps that it had."""
    if _reality.monotonic() < end:
        return True
    return isinstance(session, Replay) and session.owed_by(lanes)


def _runs_elsewhere(lane: Lane) -> bool:
    return lane.owner != get_ident() and lane.owner in sys._current_frames()


# -- stillness ---------------------------------------------------------------------------------------------------------
#
# Whether everything in a process of a replay waits: told to the process that started it, each time that this one asks.
#
# Nobody knows by the clock whether a process has come so far as the recorded one had. But where every thread of it sleeps, and has not
# run for a while, it waits for something from outside: a message, a signal. With it goes what of its log it has not come to.

Answer = dict[str, Any]

#: For how long nothing must have run, and for how long that is waited for before the process is called busy, in seconds.
_QUIET: Final = 0.25
_PATIENCE: Final = 20.0
_LOOK_AT_ALL: Final = 0.01
_TASKS: Final = "/proc/self/task"


def ask_file(report: str) -> str:
    """The pipe by which the process is asked whose report this is; each byte is a question."""
    return f"{report}.ask"


def still_file(report: str) -> str:
    """Where it answers: the number of the question, the steps that are left, and what it looks like."""
    return f"{report}.still"


class Teller:
    """Answers in a thread of its own. ``left`` gives the recorded steps that the program has not come to, ``watcher`` the thread
    that hands out what was recorded, ``below`` what the processes look like that this one has started, ``None``: one is busy."""

    def __init__(
        self,
        report: str,
        left: Callable[[], list[dict[str, Any]]],
        watcher: Callable[[], int],
        below: Callable[[], list[Any] | None],
    ) -> None:
        self._report: Final = report
        self._left: Final = left
        self._watcher: Final = watcher
        self._below: Final = below
        self._parent: Final = os.getppid()
        self._questions = 0
        with guard.allow():
            os.mkfifo(ask_file(report), 0o600)
            self._fd: Final = os.open(ask_file(report), os.O_RDWR | os.O_CLOEXEC)
        start_new_thread(self._listen, ())

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._me: int = get_native_id()
        with guard.allow(), suppress(OSError):  # the replay is over, and its directory gone
            while True:
                if select.select([self._fd], [], [], 1.0)[0]:
                    self._questions += len(os.read(self._fd, 4096))
                    self._answer()
                elif os.getppid() != self._parent and not os.path.exists(ask_file(self._report)):
                    os.kill(os.getpid(), signal.SIGKILL)  # what belongs to a replay does not outlive it

    def _answer(self) -> None:
        until = _reality.monotonic() + _PATIENCE
        look, since = self._look(), _reality.monotonic()
        while look is None or _reality.monotonic() - since < _QUIET:
            if _reality.monotonic() > until:
                look = None
                break
            _reality.sleep(_LOOK_AT_ALL)
            now = self._look()
            if now is None or now != look:
                look, since = now, _reality.monotonic()
        left = self._left()
        told = {"question": self._questions, "busy": look is None, "count": len(left), "left": left[:3], "look": look}
        path = still_file(self._report)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(f"{path}.new", path)

    def _look(self) -> list[Any] | None:
        """Equal looks mean that nothing has run in between; ``None``: something runs."""
        try:
            tasks = sorted(os.listdir(_TASKS))
        except OSError:  # no such system: as far as it came is what can be seen
            return [len(self._left())]
        found: list[Any] = []
        for task in tasks:
            if int(task) in (self._me, self._watcher()):
                continue
            try:
                with open(f"{_TASKS}/{task}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
                with open(f"{_TASKS}/{task}/schedstat", "rb") as file:
                    found.append([task, file.read().decode()])
            except OSError:  # it has just ended
                return None
            if state not in (b"S", b"Z"):
                return None
        below = self._below()
        return None if below is None else [found, below]
