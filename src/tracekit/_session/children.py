"""The processes that a run starts, as the process that starts them sees them: invited to the run, or to its replay."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from .. import _reality
from .._capture import guard, guard_attempts, instrumentation, process_pools, processes
from .._engine.callsite import caller
from .._engine.lanes import Lane
from .._engine.recording import Recording
from .._engine.replay import Replay
from .._engine.scope import Scope
from .._journal.names import segment_of
from ..errors import LiveCallBlockedError, ReplayError, UnconsumedStepsError
from . import forks, takeover
from .child import NOT_STARTED, Child, said_to_fail
from .invitations import (
    Invitation,
    Segmented,
    call_for_pool,
    count_spending,
    patterns,
    remark_unjoined,
    segments_of,
    shown_arguments,
)
from .stillness import Answer

__all__ = ["Family", "below", "count_spending", "follow", "forget", "remark_unjoined", "segments_of"]

#: For how long a process may be busy after the run, in seconds; less where the replay has failed.
_PATIENCE: Final = 30.0
_IMPATIENCE: Final = 2.0

_families: Final[dict[Replay, Family]] = {}


def _welcome(scope: Scope, lane: Lane, words: list[str] | None, pool: bool) -> Any:
    session: Any = scope.session
    if type(session) is Recording and not session.ended:
        return Invitation(session, scope, lane, words, pool)
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.ended else family.admit(scope, lane, words, pool)


def _place(scope: Scope, lane: Lane) -> dict[str, Any] | None:
    """Where a call belongs that goes to a pool's process."""
    session: Any = scope.session
    if type(session) is Recording and not session.ended:
        return call_for_pool(session, scope, lane)
    family = _families.get(session) if isinstance(session, Replay) else None
    return None if family is None or session.ended else family.place(scope, lane)


processes.welcome(_welcome)
process_pools.carry_by(_place)
forks.before_seal.extend((count_spending, remark_unjoined))


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
            "program": takeover.program(),
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
