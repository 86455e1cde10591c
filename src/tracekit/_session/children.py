"""The processes that a run starts, as the process that starts them sees them: invited to the run, or to its replay."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from .. import _reality
from .._canonical import from_json, to_json
from .._capture import guard, guard_attempts, instrumentation, process_pools, processes
from .._engine.callsite import caller
from .._engine.lanes import Lane
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import Scope
from .._engine.spending import Spending
from .._journal.names import SEGMENT, SUFFIX, segment_of
from .._journal.reader import Trace
from .._journal.summary import first_entry
from ..errors import LiveCallBlockedError, LogWriteError, ReplayError, TraceError, UnconsumedStepsError
from . import forks, takeover
from .child import NOT_STARTED, STATUS, Child, is_open, said_to_fail
from .forks import Segment
from .started import started_as
from .stillness import Answer

__all__ = ["Family", "below", "count_spending", "follow", "forget", "remark_unjoined", "segments_of"]

#: For how long a process may be busy after the run, in seconds; less where the replay has failed.
_PATIENCE: Final = 30.0
_IMPATIENCE: Final = 2.0
#: Arguments of more characters than this are told apart by their hash.
_LONG: Final = 2048

_families: Final[dict[Replay, Family]] = {}
#: The budgets in which processes were started, by the paths of these, and the segments that are counted in them.
_spent: Final[WeakKeyDictionary[Recording, dict[str, Spending]]] = WeakKeyDictionary()
_counted: Final[WeakKeyDictionary[Recording, set[str]]] = WeakKeyDictionary()


def _welcome(scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> Any:
    session: Any = scope.session
    if type(session) is Recording and not session.ended:
        return _Invitation(session, scope, lane, words, pool)
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.ended else family.admit(scope, lane, words, pool)


def _place(scope: Scope, lane: Lane) -> dict[str, Any] | None:
    """Where a call belongs that goes to a pool's process."""
    session: Any = scope.session
    if type(session) is Recording and not session.ended:
        if scope.spending is not None:
            _spent.setdefault(session, {})[lane.path] = scope.spending
        return {"lane": lane.path, "cause": _cause(session), "agent": scope.agent, "budget": _left_of(scope)}
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.ended else family.place(scope, lane)


processes.welcome(_welcome)
process_pools.carry_by(_place)
forks.before_seal.extend((lambda session: count_spending(session), lambda session: remark_unjoined(session)))


# -- recording -----------------------------------------------------------------------------------------------------------


class _Invitation:
    """To a process that a recorded run starts."""

    live: Final = True

    def __init__(self, session: Recording, scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> None:
        session.starts(lane)
        cause = _cause(session)
        journal = session.journal
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
                "arguments": _told(session, (words or [])[1:]),
                "by": os.getpid(),
                "as": None if words is None else started_as(words),
                "cause": cause,
                "durability": journal.durability,
                "agent": scope.agent,
                "budget": _left_of(scope),
                "program": takeover.program(),
                "redact": _patterns(session),
                "instrument": instrumentation.instrumented(),
            }
        )
        if scope.spending is not None:
            _spent.setdefault(session, {})[lane.path] = scope.spending

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
                self.session.warn(
                    f"the output of the process {self.path} was redacted: a replay hands on the placeholder"
                )
        self.session.clock_read(scope, f"{STATUS} {self.path}", lambda: told)
        if isinstance(told, int):
            count_spending(self.session, self.path)

    def recall(self, scope: Scope) -> Any:
        raise AssertionError("a recording recalls nothing")


def _left_of(scope: Scope) -> dict[str, Any] | None:
    """What a process may spend that is started here."""
    return None if scope.spending is None else scope.spending.remainder().as_dict()


def count_spending(session: Recording, path: str = "") -> None:
    """Add what the process at ``path`` and those below it have spent, or all of the run's, to the budgets in which they were started.

    Each segment counts once, when its process has ended it, or at the end of the run.
    """
    started = _spent.get(session)
    if started is None and (session.spending is None or path):
        return
    file = os.path.abspath(session.journal.path)
    counted = _counted.setdefault(session, set())
    above = path or (first_entry(file).get("meta") or {}).get("lane") or ""
    for lane, segment in segments_of(os.path.dirname(file), session.run_id).items():
        if lane in counted or segment.path == file or not _below(lane, above):
            continue
        if path and lane != path and is_open(segment.path):
            continue
        counted.add(lane)
        spending = _spending_of(started or {}, lane) or session.spending
        if spending is not None:
            with Trace(segment.path) as trace, suppress(TraceError):
                spending.include(islice(trace.entries(), trace.status.count))


def _spending_of(started: Mapping[str, Spending], lane: str) -> Spending | None:
    """The budget in which the process of a lane was started, or the one that it comes from."""
    found = [path for path in started if _below(lane, path)]
    return started[max(found, key=len)] if found else None


def _below(lane: str, path: str) -> bool:
    """Whether a lane is that of the process at ``path``, of one that came with the same words, or of one below."""
    return lane == path or lane.startswith((f"{path}/", f"{path}+"))


def remark_unjoined(session: Recording) -> None:
    """At a run's end: say which of the processes that its program started did not join it."""
    if not session.invited:
        return
    path = os.path.abspath(session.journal.path)
    joined = segments_of(os.path.dirname(path), session.run_id)
    for lane in session.invited:
        if lane not in joined:
            session.remark(
                f"the process {lane} did not join the run: a replay will refuse to start it. Let it import tracekit, or start it "
                "in a @traced_tool"
            )
        elif joined[lane].indirect:
            session.remark(
                f"the process {lane} did not join the run, only what it has started: a replay will refuse to start it, since what "
                "else it does would be real. Start the Python program itself, or put the process into a @traced_tool"
            )


def _cause(session: Recording) -> dict[str, Any]:
    """The last entry of a recording, which what is started now comes after."""
    session.share()
    journal: Any = session.journal
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


def _told(session: Recording | Replay, arguments: list[str]) -> list[str]:
    """What of a program's arguments may be kept; of very long ones their hash, by which they are known again."""
    shown = session.redactor.redact_argv(arguments)
    length = sum(map(len, shown))
    return shown if length <= _LONG else ["sha256:" + sha256("\0".join(shown).encode("utf-8", "replace")).hexdigest()]


def _patterns(session: Recording | Replay) -> list[list[Any]]:
    return [[pattern.pattern, pattern.flags] for pattern in session.redactor.patterns]


# -- replaying -----------------------------------------------------------------------------------------------------------


def follow(session: Replay, options: Mapping[str, Any], path: str = "", reports: str | None = None) -> None:
    """From now on ``session``, whose own line has ``path``, starts the processes that the recorded run started."""
    family = _families[session] = Family(session, options, path, reports)
    # Others may send it something: those that it has started, and who has started it.
    session.schedule.alone = lambda: not path and not family.running()
    guard_attempts.on_signal.append(family.before_signal)


def forget(session: Replay) -> None:
    """The end of a replay: its processes come to their ends, and what they failed of is its failure. Idempotent."""
    family = _families.pop(session, None)
    if family is not None:
        guard_attempts.on_signal.remove(family.before_signal)
        family.settle()


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
        path = self._place(lane.path, _told(self.session, (words or [])[1:]))
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
            "program": takeover.program(),
            "redact": _patterns(self.session),
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
        if failure is not None and not session.ended:
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
            session.report.differences += child.differences
            session.report.clock_drift += child.clock_drift
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
