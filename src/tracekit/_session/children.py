"""The processes that a run starts, as the process that starts them sees them: invited to the run, or to its replay."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from hashlib import sha256
from typing import Any, Final, NamedTuple

from .. import _reality, errors
from .._capture import guard, guard_attempts, instrumentation, process_pools, processes
from .._engine.lanes import Lane
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import Scope
from .._journal.names import SEGMENT, SUFFIX, segment_of
from .._journal.scan import ENDS
from .._journal.summary import first_entry, last_entry
from ..errors import LogWriteError, ReplayError, UnconsumedStepsError
from . import takeover
from .forks import Segment

__all__ = ["Family", "Report", "follow", "forget", "is_open", "remark_unjoined", "segments_of"]

#: How long a replay waits at its end for the processes that it has started, in seconds; one that has failed waits less.
_PATIENCE: Final = 30.0
_IMPATIENCE: Final = 2.0
_LOOK: Final = 0.005
#: A process that sleeps, and has used no processor time for so long, waits for something.
_QUIET: Final = 0.75
#: Arguments of more characters than this are told apart by their hash.
_LONG: Final = 2048

Report = dict[str, Any]

_families: Final[dict[Replay, Family]] = {}


def _welcome(scope: Scope, lane: Lane, arguments: list[str], pool: bool) -> Any:
    session: Any = scope.session
    if type(session) is Recording and not session.ended:
        return _Invitation(session, scope, lane, arguments, pool)
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.ended else family.admit(scope, lane, arguments, pool)


def _place(scope: Scope, lane: Lane) -> dict[str, Any] | None:
    """Where a call belongs that goes to a pool's process."""
    session: Any = scope.session
    if type(session) is Recording and not session.ended:
        return {"lane": lane.path, "cause": _cause(session), "agent": scope.agent}
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.ended else family.place(scope, lane)


processes.welcome(_welcome)
process_pools.carry_by(_place)


# -- recording -----------------------------------------------------------------------------------------------------------


class _Invitation:
    """To a process that a recorded run starts."""

    def __init__(self, session: Recording, scope: Scope, lane: Lane, arguments: list[str], pool: bool) -> None:
        cause = _cause(session)
        journal = session.journal
        self._session: Final = session
        # A pool's worker does nothing by itself, and what a tool's body starts is not started in a replay.
        self._lane: Final = "" if pool or "@" in lane.path else lane.path
        self.ticket: Final = json.dumps(
            {
                "mode": "record",
                "run_id": journal.run_id,
                "store": os.path.dirname(os.path.dirname(os.path.abspath(journal.path))),
                "lane": lane.path,
                "pool": pool,
                "arguments": _told(session, arguments),
                "cause": cause,
                "durability": journal.durability,
                "agent": scope.agent,
                "program": takeover.program(),
                "redact": _patterns(session),
                "instrument": instrumentation.instrumented(),
            }
        )

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def started(self, pid: int) -> None:
        if self._lane:
            self._session.invited.append(self._lane)


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
    guard_attempts.on_signal.append(family.before_signal)


def forget(session: Replay) -> None:
    """The end of a replay: its processes come to their ends, and what they failed of is its failure. Idempotent."""
    family = _families.pop(session, None)
    if family is not None:
        guard_attempts.on_signal.remove(family.before_signal)
        family.settle()


class Segmented(NamedTuple):
    """A segment's file, and the arguments that its program was started with."""

    path: str
    arguments: Any


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
                found[lane] = Segmented(path, meta.get("arguments"))
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
        self._children: list[_Child] = []

    @property
    def recorded(self) -> dict[str, Segmented]:
        if self._recorded is None:
            self._recorded = segments_of(self._directory, self.session.run_id)
        return self._recorded

    def _where(self) -> str:
        if self._reports is None:
            self._reports = tempfile.mkdtemp(prefix="tracekit-replay-")
        return self._reports

    def admit(self, scope: Scope, lane: Lane, arguments: list[str], pool: bool) -> _Child | None:
        """A process of the replay; ``None`` where the recorded one did not join the run: the guard refuses it."""
        if self._options["guard"] == "off":
            return None
        path = self._place(lane.path, _told(self.session, arguments))
        if path is None:
            if not pool:
                return None
            path = lane.path
        reports = self._where()
        segment = self.recorded.get(path)
        child = _Child(path, None if segment is None else segment.path, pool, reports, self._ticket(scope, path))
        self._children.append(child)
        return child

    def place(self, scope: Scope, lane: Lane) -> dict[str, Any]:
        """A call for a pool's process: whichever takes it."""
        path = lane.path
        segment = self.recorded.get(path)
        self._children.append(
            _Child(path, None if segment is None else segment.path, True, self._where(), {}),
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

    def settle(self) -> None:
        session = self.session
        hurry = session.failure is not None
        until = _reality.monotonic() + (_IMPATIENCE if hurry else _PATIENCE)
        session.elsewhere = bool(self._path or self._children)
        failed = [failure for child in self._children if (failure := child.failure(until)) is not None]
        self._say(failed)
        if session.failure is None:
            self._missed()
        if self._owns and self._reports is not None:
            shutil.rmtree(self._reports, ignore_errors=True)

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


class _Child:
    """A process of a replay."""

    def __init__(self, path: str, segment: str | None, pool: bool, reports: str, ticket: dict[str, Any]) -> None:
        self.path: Final = path
        self.pool: Final = pool
        self.pid = 0
        self.remarks: list[str] = []
        self.differences: list[dict[str, Any]] = []
        self.clock_drift: list[dict[str, Any]] = []
        self._segment: Final = segment
        name = segment_of(path)
        self._report: Final = os.path.join(reports, f"{name}.json")
        self.ticket: Final = json.dumps({**ticket, "reports": reports, "pool": pool})

    def admitted(self) -> AbstractContextManager[None]:
        return _admitted()

    def started(self, pid: int) -> None:
        self.pid = pid

    def report(self) -> Report | None:
        try:
            with open(self._report, "rb") as file:
                told: Report = json.load(file)
            return told
        except (OSError, ValueError):
            return None

    def wait(self, until: float) -> Report | None:
        """What it says at its end; ``None`` where it ended without a word, or has not ended."""
        while self.report() is None and self._runs() and _reality.monotonic() < until:
            _reality.sleep(_LOOK)
        told = self.report()
        while told is not None and self._runs() and _reality.monotonic() < until:  # it has said it, and is leaving
            _reality.sleep(_LOOK)
        return told

    def come_so_far(self) -> None:
        """Wait until it has come to its end, or waits for something itself: perhaps for the signal."""
        until, since, before = _reality.monotonic() + _PATIENCE, _reality.monotonic(), None
        while self.report() is None and self._runs() and _reality.monotonic() < until:
            now = _doing(self.pid)
            if now != before or now is None:
                since, before = _reality.monotonic(), now
            elif _reality.monotonic() - since > _QUIET:
                return
            _reality.sleep(_LOOK)

    def _runs(self) -> bool:
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

    def failure(self, until: float) -> ReplayError | None:
        if self.pool:
            told = self.report()
            return None if told is None else self._failed(told)
        if not self.pid:
            return None
        told = self.wait(until)
        if told is not None:
            return self._failed(told)
        if self._runs():
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            what = f"the process {self.path} had not ended {_PATIENCE:g} s after the run, and is ended"
        else:
            what = f"the process {self.path} ended without having been replayed to its end"
        if self._segment is None or is_open(self._segment):
            self.remarks.append(what)
            return None
        return self._error("ReplayError", what, "look at what it wrote to stderr", None)

    def _failed(self, told: Report) -> ReplayError | None:
        self.remarks += [str(remark) for remark in told.get("remarks") or ()]
        for key, into in (("differences", self.differences), ("clock_drift", self.clock_drift)):
            into += [{**one, "process": self.path} for one in told.get(key) or ()]
        failure = told.get("failure")
        if failure is None:
            return None
        what = f"in the process {self.path}: {failure['text']}"
        return self._error(failure["type"], what, failure.get("next_action"), failure.get("step"))

    def _error(self, kind: str, what: str, next_action: str | None, step: int | None) -> ReplayError:
        found = getattr(errors, kind, None)
        family = found if isinstance(found, type) and issubclass(found, ReplayError) else ReplayError
        return family(what, next_action=next_action, child=self.path, child_step=step)


def _doing(pid: int) -> bytes | None:
    """How much processor time a process that sleeps has used; ``None`` where it runs, or nothing is known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return b" ".join(fields[11:13]) if fields[0] == b"S" else None


@contextmanager
def _admitted() -> Iterator[None]:
    with guard.allow():
        yield


def is_open(segment: str) -> bool:
    """Whether the process of this segment did not end it: it was killed, or outlived the run."""
    return last_entry(segment).get("type") not in ENDS
