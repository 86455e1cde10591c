"""The child processes of a recording, seen from the process that starts them; and what a replay of them shares."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import ref

from .. import _reality
from .._capture import commands, instrumentation
from .._journal.entry import ENDS, meta_of
from .._journal.store import Store, beside, file_beside, first_entry, last_entry, segment_in, segment_of
from .._lazy import NamedTuple
from .._native import sha256_hex
from .._policy.policies import share
from .._runtime.lane import Lane
from .._runtime.process import process
from .._runtime.recorder import Recording
from .._runtime.session import Refused, Scope
from ..errors import (
    LogWriteError,
    TraceError,
)

if TYPE_CHECKING:
    from .._runtime.replayer import Replay
    from .._runtime.spending import Spending

__all__ = [
    "NOT_STARTED",
    "HandedCalls",
    "RecordedChildren",
    "SegmentFile",
    "becomes",
    "is_itself",
    "is_open",
    "patterns",
    "segments_of",
    "shown_arguments",
    "take_off",
]

#: The name under which the reason is recorded why a process could not be started, followed by its path.
NOT_STARTED: Final = "process.failed"


def is_open(segment: str) -> bool:
    """Return whether a segment has no end: its process was killed, or outlived the run."""
    return last_entry(segment).get("type") not in ENDS


# -- budget shares of the calls of a pool ------------------------------------------------------------------------------
#
# A call submitted to a pool gets what is left of the budget at that time, minus what earlier calls have spent since.
#
# The process that submits it lists the earlier calls of the same budget that are not counted yet; the worker reads
# their segments when the call begins. Concurrent calls may therefore still exceed the budget.


class HandedCalls:
    """The calls submitted to a pool under one budget and not counted yet.

    For each name the first and the last number, and the numbers in between that do not belong to it.
    """

    def __init__(self) -> None:
        self._ranges: Final[dict[str, tuple[int, int, set[int]]]] = {}

    def as_dict(self) -> dict[str, Any]:
        return {name: [first, last, sorted(but)] for name, (first, last, but) in self._ranges.items() if first <= last}

    def add(self, path: str) -> None:
        name, number = _split(path)
        first, last, but = self._ranges.get(name, (number, number - 1, set()))
        but.update(range(last + 1, number))  # calls of another budget
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


def take_off(
    spending: Spending, store: Store, run_id: str, place: Mapping[str, Any], known: dict[str, Spending]
) -> None:
    """Deduct from the budget of a pool's call what earlier calls have spent since it was submitted.

    ``known`` caches the spending of the calls that have ended, by lane.
    """
    for name, (first, last, but) in place["beside"].items():
        for number in range(first, last + 1):
            if number not in but:
                lane = f"{name}#{number}"
                found = known.get(lane) or _taken(spending, lane, store.path(run_id, segment_of(lane)), known)
                if found is not None:
                    spending.add(found)


@_reality.off_loop()
def _taken(spending: Spending, lane: str, path: str, known: dict[str, Spending]) -> Spending | None:
    from .._journal.reader import Trace
    from .._runtime.spending import Spending

    found = None
    if os.path.exists(path):
        with suppress(TraceError, OSError):
            ended = not is_open(path)
            found = Spending(spending.budget, name=spending.name, prices=spending.prices)
            with Trace(path) as trace:
                found.read(islice(trace.entries(), trace.status.count))
            if ended:
                known[lane] = found
    return found


# -- recognising a started process -------------------------------------------------------------------------------------
#
# A process may have been started by the run's program itself, or by something in between: a shell, a launcher, a
# script.
#
# Whatever that does besides starting a Python program could not be answered in a replay.


def started_as(words: list[str]) -> list[list[str]]:
    """Return the command lines that the process may see as its own: each the program's name and a hash of its
    arguments.

    An empty item means that there may be a shell in between, which does nothing else.
    """
    found = [_command(words)]
    if os.path.basename(words[0]) in commands.BECOMING:
        found += [_command(words[first:]) for first in range(1, min(len(words), 8))]
    if getattr(words, "simple", False):
        found.append([])
    return found


def is_itself(by: Any, started: Any) -> bool:
    """Return whether process ``by`` itself started this process, by a command that looks like one of ``started``."""
    if started is None:  # the ticket came with the process's data, not in its environment
        return True
    starters = {os.getppid(), os.getpid()}  # the same pid: the process became this program by exec
    if [] in started:
        starters.add(_parent(os.getppid()))
    if by not in starters:
        return False
    argv = sys.orig_argv
    inside = [_command(["python", *argv[1:]]), *(_command(argv[first:]) for first in range(1, len(argv)))]
    return any([_python(command[0]), command[1]] in inside for command in started if command)


@_reality.off_loop()
def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _command(words: list[str]) -> list[str]:
    arguments = "\0".join(words[1:]).encode("utf-8", "surrogateescape")
    return [os.path.basename(words[0]), sha256_hex(arguments)]


def _python(name: str) -> str:
    python = name.startswith("python") or name == os.path.basename(sys.executable)
    return "python" if python else name


# -- child processes of a recording ------------------------------------------------------------------------------------
#
# The processes that a recorded run starts: each gets a ticket to join the run, counts against its budgets, and causes a
# warning if it did not join.

#: Longer arguments (in characters) are kept as a hash.
_LONG: Final = 2048


class RecordedChild:
    """A child process that a recorded run starts, and the ticket by which it joins the run."""

    live: Final = True
    #: Whether it is a step as well: what it does besides what joins the run is captured.
    is_step = False
    becomes: Final = False

    @_reality.off_loop()
    def __init__(
        self, started: RecordedChildren, scope: Scope, lane: Lane, words: list[str] | None, pool: bool
    ) -> None:
        session = started.session
        session.starts(lane)
        cause = _cause(session)
        journal = session.log.journal
        _below(scope, session, lane)
        self.session: Final = session
        self.path: Final = lane.path
        self._started: Final = started
        # A pool's worker does nothing by itself, and what a tool's body starts is not started in a replay.
        self._lane: Final = "" if pool or "@" in lane.path else lane.path
        #: Whether it runs this very program, and joins the run before anything else: by a fork, or ``multiprocessing``.
        self._is_copy: Final = words is None
        self.ticket: Final = json.dumps(
            {
                "mode": "record",
                "run_id": journal.run_id,
                "store": journal.root,
                "file": file_beside(journal.path, None),
                "lane": lane.path,
                "pool": pool,
                "arguments": shown_arguments(session, (words or [])[1:]),
                "by": os.getpid(),
                "as": None if words is None else started_as(words),
                "cause": cause,
                "durability": journal.durability,
                "agent": scope.agent,
                "budget": _left_of(scope),
                "program": process.role.program,
                "redact": patterns(session),
                "instrument": instrumentation.instrumented(),
            }
        )
        if scope.spending is not None:
            started.expect(lane.path, scope.spending)

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def started(self, pid: int) -> None:
        if self._lane and (self._is_copy or not self.is_step):
            self._started.invited[self._lane] = self._is_copy

    def not_started(self, scope: Scope, error: OSError) -> None:
        if not scope.live and error.errno is not None:
            name = error.filename if isinstance(error.filename, str) else None
            failure = [error.errno, error.strerror, name and self.session.redactor.redact_text(name)[0]]
            if self.session.state.boundary is not None:
                self.session.state.boundary.captured(self.path)
            self.session.clock_read(scope, f"{NOT_STARTED} {self.path}", lambda: failure)

    def note(self, scope: Scope, status: Any) -> None:
        commands.note_status(self.session, scope, self.path, status)
        if isinstance(status, int):
            self.heard()

    def heard(self) -> None:
        """Count what the process has spent: the program has learned of its end."""
        self._started.count(self.path)

    def recall(self, scope: Scope) -> Any:
        raise AssertionError("a recording recalls nothing")


def _left_of(scope: Scope) -> dict[str, Any] | None:
    """Return what a process started in this scope may spend; ``None`` without a budget."""
    return None if scope.spending is None else scope.spending.remainder().as_dict()


class RecordedChildren:
    """The child processes of one recording: what they spend, and whether they joined the run."""

    def __init__(self, session: Recording) -> None:
        self.session: Final = session
        #: The lanes of the processes that were started with a ticket, and whether each runs this very program.
        self.invited: Final[dict[str, bool]] = {}
        #: The lanes of those that run this program and were gone before they had written anything.
        self.without_segment: Final[list[str]] = []
        #: The budget under which each process was started, by its path.
        self._budgets: Final[dict[str, Spending]] = {}
        #: The paths of processes that are not counted yet.
        self._awaited: Final[dict[str, None]] = {}
        #: The lanes of segments that are counted.
        self._counted: Final[set[str]] = set()
        #: The calls of pools that share a budget.
        self._handed: Final[dict[Spending, HandedCalls]] = {}
        #: Held while segments are counted, so that each counts once.
        self._counting: Final = _reality.OwnLock()

    def admit(self, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> RecordedChild | None:
        """Return the child process that is about to start, with its ticket; ``None`` if the run has ended."""
        return RecordedChild(self, scope, lane, words, pool) if self._open else None

    def place(self, scope: Scope, lane: Lane) -> dict[str, Any] | None:
        """Return the place of a call submitted to a process pool: its lane, cause, agent and budget."""
        if not self._open:
            return None
        session = self.session
        _below(scope, session, lane)
        place = {"lane": lane.path, "cause": _cause(session), "agent": scope.agent}
        if scope.spending is None:
            return {**place, "budget": None}
        with self._counting:
            left = _left_of(scope)
            beside = self._handed.setdefault(scope.spending, HandedCalls()).as_dict()
            for level in scope.spending.levels():
                self._handed.setdefault(level, HandedCalls()).add(lane.path)
            self.expect(lane.path, scope.spending)
        return {**place, "budget": left, "beside": beside}

    @property
    def _open(self) -> bool:
        session = self.session
        return not session.state.ended and session.log.trace is None

    def before_signal(self, pid: int) -> None:
        """Do nothing: a recording lets every signal through at once."""

    def needs_signal(self, pid: int, number: int) -> bool:
        """Return True: in a recording a signal is what has the effect."""
        return True

    def poll(self) -> None:
        """Do nothing: in a recording, a process's failure is its own."""

    def stuck(self, waiting: list[str]) -> NoReturn:
        raise AssertionError("a recording is never stuck")

    def abandon(self) -> None:
        """Do nothing: the processes of a recording go on."""

    def conclude(self) -> None:
        self.count()
        self._find_joined()
        self._report_refused()

    def as_dict(self) -> dict[str, Any]:
        """Return what the last entry of the run says about them."""
        return {"without_segment": self.without_segment} if self.without_segment else {}

    # -- what they spend -------------------------------------------------------------------------------------------------

    def expect(self, path: str, spending: Spending) -> None:
        """Count the process at ``path`` in ``spending`` once it has ended and the program is about to spend more."""
        self._budgets[path] = spending
        self._awaited[path] = None
        found = ref(self)

        def look() -> None:
            children = found()
            if children is not None and not children.session.state.ended:
                children._count_ended()

        for level in spending.levels():
            if level.look is None:
                level.look = look

    @_reality.off_loop()
    def _count_ended(self) -> None:
        if not self._awaited:
            return
        session = self.session
        with self._counting:
            ended = set()
            for path in list(self._awaited):
                file = file_beside(session.log.journal.path, segment_of(path))
                if os.path.exists(file) and not is_open(file):
                    ended.add(path)
            if ended:
                self._count(ended)

    def count(self, path: str = "") -> None:
        """Add the spending of the process at ``path`` and its descendants (or of all) to the budgets under which they
        were started.

        Each segment counts once: when its process has ended it, or at the end of the run.
        """
        if not self._budgets and (self.session.state.spending is None or path):
            return
        with self._counting:
            self._count({path} if path else set())
        if not path:
            self._warn_of_overruns()

    def _warn_of_overruns(self) -> None:
        """Warn at the end of budgets that concurrent processes exceeded together; the run reports its own budget
        itself."""
        session = self.session
        levels = {level for spending in self._budgets.values() for level in spending.levels()}
        for ledger in levels - {session.state.spending}:
            if ledger.refused is None and ledger.exceeded:
                session.report.warn(
                    f"the processes that were started under a budget took more than it allows ({ledger.name}: {', '.join(ledger.exceeded)})"
                )

    @_reality.off_loop()
    def _count(self, paths: set[str]) -> None:
        """Count the processes at ``paths`` with their descendants, or all of them."""
        from .._journal.reader import Trace

        session = self.session
        file = os.path.abspath(session.log.journal.path)
        for path in paths:
            self._awaited.pop(path, None)
        above = paths or {meta_of(first_entry(file)).get("lane") or ""}
        for lane, segment in segments_of(file).items():
            if lane in self._counted or segment.path == file or above.isdisjoint(_from(lane)):
                continue
            if paths and lane not in paths and is_open(segment.path):
                continue
            self._counted.add(lane)
            for handed in self._handed.values():
                handed.counted(lane)
            spending = self._budget_of(lane) or session.state.spending
            if spending is not None:
                with Trace(segment.path) as trace, suppress(TraceError):
                    spending.include(islice(trace.entries(), trace.status.count))

    def _budget_of(self, lane: str) -> Spending | None:
        """Return the budget under which the process of a lane, or its nearest ancestor, was started."""
        return next((self._budgets[path] for path in _from(lane) if path in self._budgets), None)

    # -- which of them joined --------------------------------------------------------------------------------------------

    @_reality.off_loop()
    def _find_joined(self) -> None:
        """Tell the boundary of the run which processes started by its program have joined it.

        A copy of this process writes a segment before its first step, or when it ends: one without a segment was killed
        before, and has done nothing.
        """
        boundary = self.session.state.boundary
        if not self.invited or boundary is None:
            return
        joined = segments_of(self.session.log.journal.path)
        for lane, is_copy in self.invited.items():
            if lane not in joined and is_copy:
                self.without_segment.append(lane)
            if (lane not in joined and is_copy) or (lane in joined and not joined[lane].indirect):
                boundary.captured(lane)
                below = next((one for one in joined if one.startswith(lane + "/")), None)
                if is_copy and below is not None and meta_of(last_entry(joined[lane].path)).get("becomes"):
                    self.session.report.warn(
                        f"the process {below} joined the run on the terminal of the fork {lane}, which became it or had started it: a "
                        "replay will refuse that. Start the Python program by subprocess, on a terminal of os.openpty",
                        uncaptured=True,
                    )
            elif lane in joined:
                self.session.report.warn(
                    f"the process {lane} did not join the run, only what it has started: a replay will refuse to start it, since what "
                    "else it does would be real. Start the Python program itself, or put the process into a @traced_tool",
                    quiet=True,
                )

    @_reality.off_loop()
    def _report_refused(self) -> None:
        says = self.session.state.extras.of(Refused).says
        joined = segments_of(self.session.log.journal.path) if says else {}

        def runs(path: str) -> bool:
            return path in joined and not (joined[path].indirect or becomes(joined, path))

        for say in says:
            if (sentence := say(runs)) is not None:
                self.session.report.warn(sentence, uncaptured=True)


def _from(lane: str) -> Iterator[str]:
    """Yield the paths that a lane may belong to: its own, that of a process with the same ticket, and those of its
    ancestors."""
    yield lane
    yield from (lane[:at] for at in range(len(lane) - 1, -1, -1) if lane[at] in "/+")


def _cause(session: Recording) -> dict[str, Any]:
    """Return a reference to the last entry of a recording, as the cause of a process that is started now."""
    share(session)
    journal: Any = session.log.journal
    with suppress(LogWriteError):
        journal = journal.open()
        journal.flush()
    with journal.held():
        cause = {"run_id": journal.run_id, "seq": journal.seq, "hash": journal.head.decode()}
    segment = segment_in(journal.path)
    if segment is not None:
        cause["segment"] = segment
    return cause


def shown_arguments(session: Recording | Replay, arguments: list[str]) -> list[str]:
    """Return a program's arguments in the form that may be kept: redacted, and very long ones as a hash."""
    shown = session.redactor.redact_argv(arguments)
    length = sum(map(len, shown))
    return shown if length <= _LONG else ["sha256:" + sha256_hex("\0".join(shown).encode("utf-8", "replace"))]


def patterns(session: Recording | Replay) -> list[list[Any]]:
    return [[pattern.pattern, pattern.flags] for pattern in session.redactor.patterns]


def _below(scope: Scope, session: Recording, lane: Lane) -> None:
    """Count the process of ``lane`` as part of the open call, and the step, that start it."""
    path = file_beside(session.log.journal.path, segment_of(lane.path))
    if scope.call is not None:
        scope.call.started(path)
    session.started_inside(scope, path)


class SegmentFile(NamedTuple):
    """A segment's file, its program's arguments, and whether an intermediate process (a shell) started it."""

    path: str
    arguments: Any
    indirect: bool


@_reality.off_loop()
def becomes(segments: Mapping[str, SegmentFile], path: str) -> bool:
    """Return whether the process at ``path``, a fork, became another program, of which nothing is in the run but its
    terminal: neither it nor anything that the fork had started joined the run."""
    found = segments.get(path)
    return (
        found is not None
        and bool(meta_of(last_entry(found.path)).get("becomes"))
        and not any(other.startswith((path + "/", path + "+")) for other in segments)
    )


@_reality.off_loop()
def segments_of(trace: str) -> dict[str, SegmentFile]:
    """Return the segments of the run that the file at ``trace`` belongs to, by the path of their lane."""
    found: dict[str, SegmentFile] = {}
    with suppress(OSError):
        for path in beside(file_beside(trace, None)):
            meta = meta_of(first_entry(path))
            lane = meta.get("lane")
            if isinstance(lane, str) and segment_of(lane) == segment_in(path):
                found[lane] = SegmentFile(path, meta.get("arguments"), bool(meta.get("indirect")))
    return found
