"""The child processes of a run, seen from the process that starts them: recorded, or replayed from their segments."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from itertools import islice
from threading import RLock
from typing import Any, Final, NamedTuple, NoReturn
from weakref import ref

from .. import _reality, errors
from .._capture import guard, instrumentation, processes
from .._journal.reader import ENDS, Trace
from .._journal.store import SEGMENT, SUFFIX, Store, first_entry, last_entry, segment_of
from .._policy.budget import Spending
from .._runtime.callsite import caller
from .._runtime.context import Lane, Scope
from .._runtime.recorder import Recording
from .._runtime.replayer import Replay
from .._values import from_json, to_json
from ..errors import (
    DivergenceError,
    LiveCallBlockedError,
    LogWriteError,
    NotReplayableError,
    ReplayError,
    TraceError,
    UnconsumedStepsError,
)
from . import forks, role
from .ending import Answer, ask_file, still_file
from .forks import Segment

__all__ = [
    "NOT_STARTED",
    "STATUS",
    "Child",
    "Family",
    "Handed",
    "Invitation",
    "Report",
    "Segmented",
    "below",
    "call_for_pool",
    "count_spending",
    "follow",
    "forget",
    "is_itself",
    "is_open",
    "patterns",
    "remark_unjoined",
    "said_to_fail",
    "segments_of",
    "shown_arguments",
    "started_as",
    "take_off",
]

# -- child -------------------------------------------------------------------------------------------------------------
#
# A process of a replay, as the process sees it that has started it.

#: For how long a process may be busy (s) where the program goes on when it has ended, and may wait for nothing that comes.
_PATIENCE: Final = 30.0
_STUCK: Final = 10.0
_LOOK: Final = 0.005
#: The name of what a program was told of a process, with the process's path.
STATUS: Final = "process.status"
#: The same of why one could not be started.
NOT_STARTED: Final = "process.failed"

Report = dict[str, Any]


class Child:
    """One process; ``segment`` is the file that it is answered from, ``None`` where it has none (a pool's worker)."""

    live: Final = False

    def __init__(
        self, session: Replay, path: str, segment: str | None, pool: bool, reports: str, ticket: dict[str, Any]
    ) -> None:
        self.session: Final = session
        self.path: Final = path
        self.pool: Final = pool
        self.pid = 0
        self.remarks: list[str] = []
        #: The verdict on it, as it said it at its end.
        self.verdict: dict[str, Any] = {}
        #: How it stood when the program sent it a signal, or when it was ended here.
        self._stood: Answer | None = None
        #: Whether it came to the recorded end, by its exit status.
        self._confirmed = False
        #: Whether it was ended here, and all is said of it.
        self._over = False
        self._questions = 0
        self._segment: Final = segment
        self._report: Final = os.path.join(reports, f"{segment_of(path)}.json")
        self.ticket: Final = json.dumps({**ticket, "reports": reports, "pool": pool})

    # -- its start -------------------------------------------------------------------------------------------------------

    def admitted(self) -> AbstractContextManager[None]:
        return guard.allow()

    def started(self, pid: int) -> None:
        self.pid = pid

    def not_started(self, scope: Scope, error: OSError) -> None:
        self._fail(self._error("ReplayError", f"the process {self.path} could not be started: {error}", None, None))

    # -- how it stands ---------------------------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """What it said at its end."""
        return _read(self._report)

    def runs(self) -> bool:
        if not self.pid:
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # awaited by the program, or another's child (a fork server's)
            try:
                with open(f"/proc/{self.pid}/stat", "rb") as file:
                    return file.read().rpartition(b")")[2].split()[0] != b"Z"
            except OSError:
                return False

    def rest(self, until: float, meanwhile: Callable[[], bool] | None = None) -> Answer | None:
        """How it stands when everything in it waits; ``None`` where it has come to its end, or was not heard of in time.

        ``meanwhile`` is called again and again; once it says so, the process has ended.
        """
        asked = False
        while self.report() is None and self.runs() and _reality.monotonic() < until:
            asked = asked or self._ask()
            told = _read(still_file(self._report)) if asked else None
            if told is not None and told["question"] == self._questions:
                return told
            if meanwhile is None:
                _reality.sleep(_LOOK)
            elif meanwhile():
                return None
        return None

    def _ask(self) -> bool:
        """Ask how it stands; false where it can't be asked yet."""
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

    def come_so_far(self) -> None:
        """The program ends it by a signal: let it come to where it waits, perhaps for that."""
        self._stood = self.rest(_reality.monotonic() + _PATIENCE) or self._stood

    def note(self, scope: Scope, told: Any) -> None:
        raise AssertionError("a replay notes nothing")

    def heard(self) -> None:
        raise AssertionError("a replay counts nothing")

    def recall(self, scope: Scope) -> Any:
        told = self.session.status_read(scope, f"{STATUS} {self.path}", self.path)
        if isinstance(told, dict) and "too_much" in told:
            raise self.session.fail(
                NotReplayableError(
                    f"the process {self.path} had written too much when its time ran out: that is not in the trace",
                    run_id=self.session.run_id,
                    reason="an output of more than 16 MiB",
                    next_action="put the process and its time limit into a @traced_tool",
                )
            )
        return told

    def let_run(self, step: Callable[[], bool]) -> None:
        self.rest(_reality.monotonic() + _PATIENCE, step)

    def let_end(self) -> None:
        """The recorded one has ended here: let it come to its end, or end it where its log does."""
        look, since = None, 0.0
        while self.runs():
            told = self.rest(_reality.monotonic() + _PATIENCE)
            if told is None:
                _reality.sleep(_LOOK)
            elif self.open and told["count"] == 0:
                self.kill()
                self._stood = told
            elif told["busy"] or told["look"] != look:
                look, since = told["look"], _reality.monotonic()
            elif _reality.monotonic() - since > _STUCK:
                self.kill()
                self._over = True
                self._fail(self._waits(told))

    def ended(self, status: int | None, recorded: int) -> None:
        told = self.report()
        failure = None if told is None else self._failed(told, remark=False)
        if failure is not None:
            self._fail(failure)
        self._confirmed |= status == recorded
        # The end of a log that is open is a kill, whatever the recorded one died of.
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

    def leaving(self, until: float) -> None:
        """It has said how it went, or was told to end: let it be gone."""
        while self.runs() and _reality.monotonic() < until:
            _reality.sleep(_LOOK)

    def outlives(self, end: int) -> bool:
        """Whether the recorded process went on when the one that started it ended, at ``end`` by the wall clock."""
        return self.open or last_entry(self._segment or "").get("ts_ns", 0) >= end

    def conclude(self, told: Answer | None, end: int) -> ReplayError | None:
        """The run is over, and the process is not, nor does it come to its end by itself: here it does."""
        self._over = True
        self.kill()
        if told is not None and told["count"] and told["left"][0]["ts_ns"] < end:
            return self._waits(told)
        what = "had not ended when the run did" if told is not None else "did not come to where it waits"
        if self.outlives(end):
            self._remark(f"{what}, and is ended")
            return None
        return self._error("ReplayError", f"the process {self.path} {what}", "look at what it waits for", None)

    def failure(self) -> ReplayError | None:
        """What there is to say of a process that is gone."""
        told = self.report()
        if told is not None:
            return self._failed(told)
        if self.pool or self._over or not self.pid:
            return None
        stood = self._stood
        if stood is not None and self.open:
            if stood["count"]:
                return self._waits(stood)
            self._remark("was ended by a signal, where its log ends")
            return None
        if self._confirmed and self.open:
            self._remark("ended, with the recorded exit status, without having said how it went")
            return None
        what = f"the process {self.path} ended without having been replayed to its end"
        return self._error("ReplayError", what, "look at what it wrote to stderr", None)

    def kill(self) -> None:
        """End it, where it still runs."""
        with suppress(OSError):
            if self.pid and self.runs():
                os.kill(self.pid, signal.SIGKILL)

    def _remark(self, what: str) -> None:
        self.remarks.append(f"the process {self.path} {what}")

    def _waits(self, told: Answer) -> ReplayError:
        first = f", the first: {told['left'][0]['type']} {told['left'][0]['name']!r}" if told["left"] else ""
        return UnconsumedStepsError(
            f"the process {self.path} waits for what does not come, and {told['count']} recorded step(s) of it were never "
            f"asked for{first}",
            run_id=self.session.run_id,
            steps=told["left"],
            child=self.path,
            next_action="look at what it waits for: a message, a file, or a signal that the recorded process got",
        )

    def _failed(self, told: Report, *, remark: bool = True) -> ReplayError | None:
        if remark:
            self.remarks += [str(one) for one in told.get("remarks") or ()]
            self.verdict = told.get("verdict") or {}
        failure = told.get("failure")
        if failure is None:
            return None
        what = f"in the process {self.path}: {failure['text']}"
        return self._error(failure["type"], what, failure.get("next_action"), failure.get("step"))

    def _error(self, kind: str, what: str, next_action: str | None, step: int | None) -> ReplayError:
        return _error(self.path, kind, what, next_action, step)

    def died(self) -> ReplayError | None:
        """That it is gone without a word, and the recorded one was not."""
        gone = bool(self.pid) and not self.runs()
        return self.failure() if gone and not (self.open or self.pool or self._over) and self.report() is None else None


def said_to_fail(reports: str, lanes: Mapping[str, str]) -> ReplayError | None:
    """What a process of this replay, or one that it has started, said at its end that it failed of; ``lanes`` by the name of a segment."""
    for name in sorted(os.listdir(reports)):
        stem, _, ending = name.partition(".")
        told = _read(os.path.join(reports, name)) if ending == "json" else None
        failure = None if told is None else told.get("failure")
        if failure is not None:
            path = lanes.get(stem, f"of segment {stem}")
            what = f"in the process {path}: {failure['text']}"
            return _error(path, failure["type"], what, failure.get("next_action"), failure.get("step"))
    return None


def _error(path: str, kind: str, what: str, next_action: str | None, step: int | None) -> ReplayError:
    found = getattr(errors, kind, None)
    family = found if isinstance(found, type) and issubclass(found, ReplayError) else ReplayError
    return family(what, next_action=next_action, child=path, child_step=step)


def is_open(segment: str) -> bool:
    """Whether the process of this segment did not end it: it was killed, or outlived the run."""
    return last_entry(segment).get("type") not in ENDS


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            told: dict[str, Any] = json.load(file)
        return told
    except (OSError, ValueError):
        return None


# -- shares ------------------------------------------------------------------------------------------------------------
#
# What the calls of a pool share: each is handed what was left when it was handed over, and the ones before it have spent of that since.
#
# Whoever hands a call over says which calls of the same budget went before it and are not counted yet; the worker that makes it looks
# into
# their segments. Calls that are made side by side may overshoot all the same: a worker looks when its call begins.

#: In a worker, which is of one run: what the calls that have ended took, by their lanes.
_known: Final[dict[str, Spending]] = {}


class Handed:
    """The calls that were handed over under one ledger and are not counted yet: of each name, from which number to which, and
    those between that are none of them."""

    def __init__(self) -> None:
        self._ranges: Final[dict[str, tuple[int, int, set[int]]]] = {}

    def as_dict(self) -> dict[str, Any]:
        return {name: [first, last, sorted(but)] for name, (first, last, but) in self._ranges.items() if first <= last}

    def add(self, path: str) -> None:
        name, number = _split(path)
        first, last, but = self._ranges.get(name, (number, number - 1, set()))
        but.update(range(last + 1, number))  # of another ledger
        self._ranges[name] = first, number, but

    def counted(self, path: str) -> None:
        name, number = _split(path)
        first, last, but = self._ranges.get(name, (0, -1, set()))
        if first <= number <= last:
            but.add(number)
            while first in but:
                but.remove(first)
                first += 1
            self._ranges[name] = first, last, but


def _split(path: str) -> tuple[str, int]:
    name, _, number = path.rpartition("#")
    return (name, int(number)) if number.isdigit() else (path, 0)


def take_off(spending: Spending, store: Store, run_id: str, place: Mapping[str, Any]) -> None:
    """Take from what a call was handed what the calls before it have spent since."""
    for name, (first, last, but) in place["beside"].items():
        for number in range(first, last + 1):
            if number not in but:
                lane = f"{name}#{number}"
                found = _known.get(lane) or _taken(spending, lane, store.path(run_id, segment_of(lane)))
                if found is not None:
                    spending.add(found)


def _taken(spending: Spending, lane: str, path: str) -> Spending | None:
    found = None
    if os.path.exists(path):
        with suppress(TraceError, OSError):
            ended = not is_open(path)
            found = Spending(spending.budget, name=spending.name, prices=spending.prices)
            with Trace(path) as trace:
                found.read(islice(trace.entries(), trace.status.count))
            if ended:
                _known[lane] = found
    return found


# -- started -----------------------------------------------------------------------------------------------------------
#
# Whether a process is the one that a run's program has started, or something that this one has started in turn.
#
# A shell, a launcher or a script does other things beside starting a Python program, and nothing of that is answered in a replay.

#: Programs that set something and then become the one that they are given.
_BECOMING: Final = frozenset(("env", "nice", "nohup", "stdbuf", "setsid", "ionice", "taskset", "chrt", "exec"))


def started_as(words: list[str]) -> list[list[str]]:
    """What the command of a process may look like from inside: its program's name, and what follows, as a hash.

    An empty one says that there may be a shell between, which does nothing else.
    """
    found = [_command(words)]
    if os.path.basename(words[0]) in _BECOMING:
        found += [_command(words[first:]) for first in range(1, min(len(words), 8))]
    if getattr(words, "simple", False):
        found.append([])
    return found


def is_itself(by: Any, started: Any) -> bool:
    """Whether this process was started by process ``by`` itself, by a command that looks like one of ``started``."""
    if started is None:  # told in it, not in its environment
        return True
    starters = {os.getppid(), os.getpid()}  # that itself: it has become this program
    if [] in started:
        starters.add(_parent(os.getppid()))
    if by not in starters:
        return False
    argv = sys.orig_argv
    inside = [_command(["python", *argv[1:]]), *(_command(argv[first:]) for first in range(1, len(argv)))]
    return any([_python(command[0]), command[1]] in inside for command in started if command)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _command(words: list[str]) -> list[str]:
    rest = "\0".join(words[1:]).encode("utf-8", "surrogateescape")
    return [os.path.basename(words[0]), sha256(rest).hexdigest()]


def _python(name: str) -> str:
    python = name.startswith("python") or name == os.path.basename(sys.executable)
    return "python" if python else name


# -- invitations -------------------------------------------------------------------------------------------------------
#
# The processes that a recorded run starts: invited to it, counted in its budgets, and told of where they did not come.

#: Arguments of more characters than this are told apart by their hash.
_LONG: Final = 2048
#: What is in a segment counts once, whichever thread comes by it.
_counting = RLock()


class _Spent:
    """What the processes of a run spend."""

    def __init__(self) -> None:
        #: The budgets in which processes were started, by the paths of these.
        self.budgets: Final[dict[str, Spending]] = {}
        #: The paths of those that are not counted yet.
        self.awaited: Final[dict[str, None]] = {}
        #: The segments that are counted.
        self.counted: Final[set[str]] = set()
        #: The calls of pools that a budget is shared by.
        self.handed: Final[dict[Spending, Handed]] = {}


def _afresh() -> None:
    """In a forked process: nobody holds it there."""
    global _counting
    _counting = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_afresh)


class Invitation:
    """To a process that a recorded run starts."""

    live: Final = True

    def __init__(self, session: Recording, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> None:
        session.starts(lane)
        cause = _cause(session)
        journal = session.log.journal
        _below(scope, session, lane)
        self.session: Final = session
        self.path: Final = lane.path
        # A pool's worker does nothing by itself, and what a tool's body starts is not started in a replay.
        self._lane: Final = "" if pool or "@" in lane.path else lane.path
        self.ticket: Final = json.dumps(
            {
                "mode": "record",
                "run_id": journal.run_id,
                "store": os.path.dirname(os.path.dirname(os.path.abspath(journal.path))),
                "lane": lane.path,
                "pool": pool,
                "arguments": shown_arguments(session, (words or [])[1:]),
                "by": os.getpid(),
                "as": None if words is None else started_as(words),
                "cause": cause,
                "durability": journal.durability,
                "agent": scope.agent,
                "budget": _left_of(scope),
                "program": role.program(),
                "redact": patterns(session),
                "instrument": instrumentation.instrumented(),
            }
        )
        if scope.spending is not None:
            _await(session, lane.path, scope.spending)

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def started(self, pid: int) -> None:
        if self._lane:
            self.session.invited.append(self._lane)

    def not_started(self, scope: Scope, error: OSError) -> None:
        if not scope.live and error.errno is not None:
            name = error.filename if isinstance(error.filename, str) else None
            told = [error.errno, error.strerror, name and self.session.redactor.redact_text(name)[0]]
            self.session.clock_read(scope, f"{NOT_STARTED} {self.path}", lambda: told)

    def note(self, scope: Scope, told: Any) -> None:
        if isinstance(told, dict):  # what it had written so far
            tree, redacted = self.session.redactor.redact(to_json(told))
            if redacted:
                told = from_json(tree)
                self.session.report.warn(
                    f"the output of the process {self.path} was redacted: a replay hands on the placeholder"
                )
        self.session.clock_read(scope, f"{STATUS} {self.path}", lambda: told)
        if isinstance(told, int):
            self.heard()

    def heard(self) -> None:
        """The program has heard of its end."""
        count_spending(self.session, self.path)

    def recall(self, scope: Scope) -> Any:
        raise AssertionError("a recording recalls nothing")


def _left_of(scope: Scope) -> dict[str, Any] | None:
    """What a process may spend that is started here."""
    return None if scope.spending is None else scope.spending.remainder().as_dict()


def _await(session: Recording, path: str, spending: Spending) -> None:
    """What the process at ``path`` spends counts in ``spending``: as soon as it has ended, and the program is about to spend more."""
    spent = session.state.extras.of(_Spent)
    spent.budgets[path] = spending
    spent.awaited[path] = None
    found = ref(session)

    def look() -> None:
        recording = found()
        if recording is not None and not recording.state.ended:
            _count_ended(recording)

    for level in spending.levels():
        if level.look is None:
            level.look = look


def _count_ended(session: Recording) -> None:
    awaited = session.state.extras.of(_Spent).awaited
    if not awaited:
        return
    directory = os.path.dirname(os.path.abspath(session.log.journal.path))
    with _counting:
        ended = set()
        for path in list(awaited):
            file = os.path.join(directory, f"{session.run_id}.{segment_of(path)}{SUFFIX}")
            if os.path.exists(file) and not is_open(file):
                ended.add(path)
        if ended:
            _count(session, ended)


def count_spending(session: Recording, path: str = "") -> None:
    """Add what the process at ``path`` and those below it have spent, or all of the run's, to the budgets in which they were started.

    Each segment counts once, when its process has ended it, or at the end of the run.
    """
    started = session.state.extras.of(_Spent).budgets
    if not started and (session.state.spending is None or path):
        return
    with _counting:
        _count(session, {path} if path else set())
    if not path:
        _tell_overruns(session, started)


def _tell_overruns(session: Recording, started: Mapping[str, Spending]) -> None:
    """At the end: processes side by side can't see what each other spends. The run tells of its own budget by itself."""
    for ledger in {level for spending in started.values() for level in spending.levels()} - {session.state.spending}:
        if ledger.refused is None and ledger.exceeded:
            session.report.warn(
                f"the processes that were started under a budget took more than it allows ({ledger.name}: {', '.join(ledger.exceeded)})"
            )


def _count(session: Recording, paths: set[str]) -> None:
    """Of the processes at ``paths``, or of all."""
    spent = session.state.extras.of(_Spent)
    file = os.path.abspath(session.log.journal.path)
    for path in paths:
        spent.awaited.pop(path, None)
    counted = spent.counted
    above = paths or {(first_entry(file).get("meta") or {}).get("lane") or ""}
    for lane, segment in segments_of(os.path.dirname(file), session.run_id).items():
        if lane in counted or segment.path == file or above.isdisjoint(_from(lane)):
            continue
        if paths and lane not in paths and is_open(segment.path):
            continue
        counted.add(lane)
        for handed in spent.handed.values():
            handed.counted(lane)
        spending = _spending_of(spent.budgets, lane) or session.state.spending
        if spending is not None:
            with Trace(segment.path) as trace, suppress(TraceError):
                spending.include(islice(trace.entries(), trace.status.count))


def _spending_of(started: Mapping[str, Spending], lane: str) -> Spending | None:
    """The budget in which the process of a lane was started, or the one that it comes from."""
    return next((started[path] for path in _from(lane) if path in started), None)


def _from(lane: str) -> Iterator[str]:
    """The paths that a lane may belong to: its own, that of a process that came with the same words, those of the ones above it."""
    yield lane
    yield from (lane[:at] for at in range(len(lane) - 1, -1, -1) if lane[at] in "/+")


def remark_unjoined(session: Recording) -> None:
    """At a run's end: say which of the processes that its program started did not join it."""
    if not session.invited:
        return
    path = os.path.abspath(session.log.journal.path)
    joined = segments_of(os.path.dirname(path), session.run_id)
    for lane in session.invited:
        if lane not in joined:
            session.report.warn(
                f"the process {lane} did not join the run: a replay will refuse to start it. Let it import tracekit, or start it "
                "in a @traced_tool",
                uncaptured=True,
                quiet=True,
            )
        elif joined[lane].indirect:
            session.report.warn(
                f"the process {lane} did not join the run, only what it has started: a replay will refuse to start it, since what "
                "else it does would be real. Start the Python program itself, or put the process into a @traced_tool",
                uncaptured=True,
                quiet=True,
            )


def _cause(session: Recording) -> dict[str, Any]:
    """The last entry of a recording, which what is started now comes after."""
    session.share()
    journal: Any = session.log.journal
    with suppress(LogWriteError):
        if isinstance(journal, Segment):
            journal = journal.open()
        journal.flush()
    with journal.held():
        cause = {"run_id": journal.run_id, "seq": journal.seq, "hash": journal.head.decode()}
    segment = SEGMENT.fullmatch(os.path.basename(journal.path)[: -len(SUFFIX)])
    if segment is not None:
        cause["segment"] = segment["segment"]
    return cause


def shown_arguments(session: Recording | Replay, arguments: list[str]) -> list[str]:
    """What of a program's arguments may be kept; of very long ones their hash, by which they are known again."""
    shown = session.redactor.redact_argv(arguments)
    length = sum(map(len, shown))
    return shown if length <= _LONG else ["sha256:" + sha256("\0".join(shown).encode("utf-8", "replace")).hexdigest()]


def patterns(session: Recording | Replay) -> list[list[Any]]:
    return [[pattern.pattern, pattern.flags] for pattern in session.redactor.patterns]


def _below(scope: Scope, session: Recording, lane: Lane) -> None:
    """What the process of ``lane`` does counts in the open call that starts it."""
    if scope.call is not None:
        journal = session.log.journal
        name = f"{journal.run_id}.{segment_of(lane.path)}{SUFFIX}"
        scope.call.started(os.path.join(os.path.dirname(journal.path), name))


def call_for_pool(session: Recording, scope: Scope, lane: Lane) -> dict[str, Any]:
    """Where a call belongs that goes to a pool's process."""
    _below(scope, session, lane)
    place = {"lane": lane.path, "cause": _cause(session), "agent": scope.agent}
    if scope.spending is None:
        return {**place, "budget": None}
    with _counting:
        left = _left_of(scope)
        ledgers = session.state.extras.of(_Spent).handed
        beside = ledgers.setdefault(scope.spending, Handed()).as_dict()
        for level in scope.spending.levels():
            ledgers.setdefault(level, Handed()).add(lane.path)
        _await(session, lane.path, scope.spending)
    return {**place, "budget": left, "beside": beside}


class Segmented(NamedTuple):
    """A segment's file, the arguments that its program was started with, and whether another program has started that (a shell)."""

    path: str
    arguments: Any
    indirect: bool


def segments_of(directory: str, run_id: str) -> dict[str, Segmented]:
    """The segments of a run by the path of their lane, as they say it themselves."""
    found: dict[str, Segmented] = {}
    with suppress(OSError):
        for name in sorted(os.listdir(directory)):
            match = SEGMENT.fullmatch(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
            if match is None or match["run"] != run_id:
                continue
            path = os.path.join(directory, name)
            meta = first_entry(path).get("meta") or {}
            lane = meta.get("lane")
            if isinstance(lane, str) and segment_of(lane) == match["segment"]:
                found[lane] = Segmented(path, meta.get("arguments"), bool(meta.get("indirect")))
    return found


# -- children ----------------------------------------------------------------------------------------------------------
#
# The processes that a run starts, as the process that starts them sees them: invited to the run, or to its replay.

#: For how long a process may be busy after the run, in seconds; less where the replay has failed.
_IMPATIENCE: Final = 2.0

_families: Final[dict[Replay, Family]] = {}


def _welcome(scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> Any:
    session = scope.session
    if type(session) is Recording and not session.state.ended:
        return Invitation(session, scope, lane, words, pool)
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.state.ended else family.admit(scope, lane, words, pool)


def _place(scope: Scope, lane: Lane) -> dict[str, Any] | None:
    """Where a call belongs that goes to a pool's process."""
    session = scope.session
    if type(session) is Recording and not session.state.ended:
        return call_for_pool(session, scope, lane)
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.state.ended else family.place(scope, lane)


processes.welcome(_welcome)
processes.carry_by(_place)
forks.before_seal.extend((count_spending, remark_unjoined))


# -- replaying -----------------------------------------------------------------------------------------------------------


def follow(session: Replay, options: Mapping[str, Any], path: str = "", reports: str | None = None) -> None:
    """From now on ``session``, whose own line has ``path``, starts the processes that the recorded run started."""
    family = _families[session] = Family(session, options, path, reports)
    # Others may send it something: those that it has started, and who has started it.
    session.schedule.alone = lambda: not path and not family.running()
    guard.on_signal.append(family.before_signal)


def forget(session: Replay) -> None:
    """The end of a replay: its processes come to their ends, and what they failed of is its failure. Idempotent."""
    family = _families.pop(session, None)
    if family is not None:
        guard.on_signal.remove(family.before_signal)
        family.settle()


class Family:
    """The processes of one replay."""

    def __init__(self, session: Replay, options: Mapping[str, Any], path: str, reports: str | None) -> None:
        self.session: Final = session
        self._options: Final = options
        self._path: Final = path
        self._directory: Final = os.path.dirname(os.path.abspath(session.trace.path))
        self._recorded: dict[str, Segmented] | None = None
        #: Where processes say how their replay went; one directory for the children of children too.
        self._reports = reports
        self._owns: bool = reports is None
        self._children: list[Child] = []

    @property
    def recorded(self) -> dict[str, Segmented]:
        if self._recorded is None:
            self._recorded = segments_of(self._directory, self.session.run_id)
        return self._recorded

    def _where(self) -> str:
        if self._reports is None:
            self._reports = tempfile.mkdtemp(prefix="tracekit-replay-")
        return self._reports

    def admit(self, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> Child | None:
        """A process of the replay; ``None`` where the recorded one did not join the run: the guard refuses it."""
        path = self._place(lane.path, shown_arguments(self.session, (words or [])[1:]))
        if path is None:
            failed = self.session.status_read(scope, f"{NOT_STARTED} {lane.path}", None)
            if failed is not None:
                raise OSError(*failed)
            if not pool or self._options["guard"] == "off":
                return None
            path = lane.path
        reports = self._where()
        segment = self.recorded.get(path)
        if segment is not None and segment.indirect and self._options["guard"] != "off":
            raise self.session.fail(self._indirect(path))
        child = Child(
            self.session, path, None if segment is None else segment.path, pool, reports, self._ticket(scope, path)
        )
        self._children.append(child)
        return child

    def _indirect(self, path: str) -> LiveCallBlockedError:
        return LiveCallBlockedError(
            f"the process {path} did not join the recorded run, only what it had started: whatever else it does would be real, so it "
            "was not started",
            run_id=self.session.run_id,
            location=caller(),
            operation="a process that starts others",
            target=path,
            kind="process",
            next_action="start the Python program itself, without a shell or a launcher, and record again; or put the process into a "
            "@traced_tool; or replay(..., guard='off') to let it run for real, and what it starts be answered",
        )

    def place(self, scope: Scope, lane: Lane) -> dict[str, Any]:
        """A call for a pool's process: whichever takes it."""
        path = lane.path
        segment = self.recorded.get(path)
        self._children.append(
            Child(self.session, path, None if segment is None else segment.path, True, self._where(), {}),
        )
        return {"lane": path, "agent": scope.agent}

    def _place(self, path: str, arguments: list[str]) -> str | None:
        """Which of the recorded processes this is: of those that this line started of the same program, the next with the same
        arguments, whatever order they are started in now; else the one of this number."""
        taken = {child.path for child in self._children}
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
            "directory": self._directory,
            "lane": path,
            "agent": scope.agent,
            "program": role.program(),
            "redact": patterns(self.session),
            "instrument": instrumentation.instrumented(),
            "options": {
                "on_divergence": options["on_divergence"],
                "strict": list(options["strict"]),
                "guard": options["guard"],
                "allow_hosts": list(options["allow_hosts"]),
                "dry_run": options["dry_run"],
                "witness": options.get("witness"),
            },
        }

    def before_signal(self, pid: int) -> None:
        """The program ends a process, which had come so far in the recording: let it come there now."""
        for child in self._children:
            if child.pid == pid and not child.pool:
                child.come_so_far()

    def running(self) -> list[Child]:
        """Those that have not come to their ends; a pool's workers are the pool's."""
        return [child for child in self._children if not child.pool and child.report() is None and child.runs()]

    def settle(self) -> None:
        session = self.session
        until = _reality.monotonic() + (_PATIENCE if session.failure is None else _IMPATIENCE)
        session.elsewhere = bool(self._path or self._children)
        end = session.trace.entry(len(session.trace))["ts_ns"]
        failed = [failure for child, told in self._resting(until) if (failure := child.conclude(told, end)) is not None]
        for child in self._children:
            if not child.pool:
                child.leaving(until)
            failure = child.failure()
            if failure is not None:
                failed.append(failure)
        self._say(failed)
        if session.failure is None:
            self._missed()
        if self._owns and self._reports is not None:
            shutil.rmtree(self._reports, ignore_errors=True)

    def heed(self) -> None:
        """Fail of what a process has failed of by now, though the program may wait for its answer for ever."""
        reports, session = self._reports, self.session
        if reports is None or session.failure is not None:
            return
        failure = said_to_fail(reports, {segment_of(path): path for path in self.recorded})
        failure = failure or next((died for child in [*self._children] if (died := child.died()) is not None), None)
        if failure is not None and not session.state.ended:
            session.fail(failure)

    def abandon(self) -> None:
        """The program is ended in the middle of it: so are its processes, and those that they have started."""
        for child in self._children:
            child.kill()
        if self._owns and self._reports is not None:
            with guard.allow():
                shutil.rmtree(self._reports, ignore_errors=True)

    def _resting(self, until: float) -> list[tuple[Child, Answer | None]]:
        """The processes that don't come to their ends by themselves: everything in all of them waits, or they take too long."""
        before: list[Any] = []
        while True:
            stood = [(child, child.rest(until)) for child in self.running()]
            left = [(child, told) for child, told in stood if child.report() is None and child.runs()]
            looks = [(child.path, told["look"]) for child, told in left if told is not None and not told["busy"]]
            if not left or _reality.monotonic() >= until or (len(looks) == len(left) and looks == before):
                return left
            before = looks

    def _say(self, failed: list[ReplayError]) -> None:
        session = self.session
        for child in self._children:
            session.report.warnings += child.remarks
            session.report.include(child.verdict, child.path)
        if not failed:
            return
        first, own = failed[0], session.failure
        if own is None:
            session.fail(first)
        elif not getattr(own, "child", None):  # what a process failed of may be why this one did
            own.what = f"{own.what}\n  and {first.what}"
            own.child = first.child  # type: ignore[attr-defined]

    def _missed(self) -> None:
        """Processes of the recording that nobody has started."""
        seen = [child.path for child in self._children]
        for path in self.recorded:
            own = path.startswith(self._path + "/") and "@" not in path[len(self._path) :]
            if own and not any(path == other or path.startswith((other + "/", other + "+")) for other in seen):
                self.session.fail(
                    UnconsumedStepsError(
                        f"the recorded run had a process {path} of its own, and the program has not started it",
                        run_id=self.session.run_id,
                        next_action="look at what decides whether it is started; record again if the change is meant",
                        steps=[],
                    )
                )
                return


def heed() -> None:
    """Let every replay of this process fail of what its processes have failed of by now."""
    for family in [*_families.values()]:
        with suppress(OSError):  # it is over, and its directory gone
            family.heed()


def abandon() -> None:
    """This process is ended at once: so are those of its replays."""
    for family in [*_families.values()]:
        family.abandon()


def below(session: Replay) -> list[Any] | None:
    """What the processes look like that this one has started in a replay; ``None``: one of them is busy."""
    family = _families.get(session)
    found: list[Any] = []
    for child in [] if family is None else family.running():
        told = child.rest(_reality.monotonic() + 1)
        if told is None or told["busy"]:
            return None
        found.append(told["look"])
    return found
