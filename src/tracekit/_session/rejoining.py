"""A process that a replayed program has started: answered from its own segment, behind the guard from before its first line.

It says at its end, in a file of its parent's, how it went. A failure ends it with exit code 1, and is its parent's failure too. Where it
serves tasks (``@on_task``), those of the recording are given to its handlers when it would listen, or at the end of its program.
"""

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
from typing import Any, Final, NoReturn

from .._capture import credentials, guard, guard_attempts, instrumentation, process_pools, processes
from .._engine import gate
from .._engine.lanes import Lane, Root
from .._engine.recording import ROOT
from .._engine.redaction import Redactor
from .._engine.replay import Replay
from .._engine.scope import Scope, current, enter
from .._engine.spending import Spending
from .._journal.reader import Trace
from .._journal.runs import segment_of
from ..errors import LiveCallBlockedError, ReplayError, TraceExhaustedError, TracekitError, UnconsumedStepsError
from . import children, takeover
from .child import is_open
from .joining import at_process_end, mine, part_of
from .replayed import Replaying
from .stillness import Teller

__all__ = ["rejoin"]

_really_exit: Final = os._exit
#: What a process of a replay is told, at the least.
_NEEDED: Final = ("run_id", "directory", "lane", "pool", "program", "redact", "instrument", "options", "reports")


def rejoin(ticket: Mapping[str, Any]) -> None:
    """Be answered from the recorded segment, or end: what belongs to a replay never goes live."""
    try:
        missing = [key for key in _NEEDED if key not in ticket]
        if missing:
            raise ValueError(
                f"{processes.VARIABLE} is none of tracekit's: it names a replay, and has no {', '.join(missing)}"
            )
        if os.stat(ticket["reports"]).st_uid != os.getuid():
            raise OSError("another user's")
        _Rejoined(ticket)
    except BaseException as error:
        sys.stderr.write(f"tracekit: this process belongs to a replay and can't be part of it: {error}\n")
        sys.stderr.flush()
        with suppress(Exception):
            _tell(_claimed(ticket)[1], _about(error))
        _really_exit(1)


def _claimed(ticket: Mapping[str, Any]) -> tuple[str, str]:
    """The lane that this process has, and the file for its report: another process may have come with the same words."""
    base, n, lane = ticket["lane"], 1, ticket["lane"]
    while True:
        report = os.path.join(ticket["reports"], f"{segment_of(lane)}.json")
        try:
            os.close(os.open(f"{report}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return lane, report
        except FileExistsError:
            n += 1
            lane = f"{base}+{n}"


def _tell(path: str, report: Mapping[str, Any]) -> None:
    with guard.allow():
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(report, file, default=repr)
        os.replace(f"{path}.new", path)


def _about(error: BaseException | None, remarks: tuple[str, ...] = ()) -> dict[str, Any]:
    told: dict[str, Any] | None = None
    if error is not None:
        said = error.what if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
        where = getattr(error, "location", None)
        told = {
            "type": type(error).__name__,
            "text": f"{said} (at {where})" if where else said,
            "next_action": getattr(error, "next_action", None),
            "step": getattr(error, "step", None),
        }
    return {"pid": os.getpid(), "failure": told, "remarks": list(remarks)}


class _Player(Replaying):
    """The replay of a segment, in its process."""

    def __init__(self, path: str, options: dict[str, Any], lane: str, reports: str, agent: str | None) -> None:
        super().__init__(path, options, None)
        self._lane: Final = lane
        self._reports: Final = reports
        self._agent: Final = agent

    def _lineage(self) -> tuple[str, str | None]:
        return self._lane, self._reports

    def _session_of(self, trace: Trace, redactor: Redactor, options: Mapping[str, Any]) -> Replay:
        if options.get("witness") is None:
            return super()._session_of(trace, redactor, options)
        from .witness import Witness, witnessed

        with guard.allow():
            witness = Witness(f"{options['witness']}.{segment_of(self._lane)}")
        return witnessed(witness, trace, redactor, options)

    def _scope_in(self, session: Any, agent: str | None, spending: Spending | None = None) -> Lane:
        lane = Root(self._lane, gate.owner())
        self._token = enter(Scope(session, lane, ROOT, self._agent))
        self.scope = Scope(session, lane, ROOT, self._agent)
        return lane


class _Rejoined:
    """This process as a part of a replay."""

    def __init__(self, ticket: Mapping[str, Any]) -> None:
        with guard.allow():
            self._lane, self._report = _claimed(ticket)
        self._pid: Final = os.getpid()
        self._error: BaseException | None = None
        self._blocked: LiveCallBlockedError | None = None
        self._over = False
        self._drove = False
        self._open = False
        self._player: _Player | None = None
        path = os.path.join(ticket["directory"], f"{ticket['run_id']}.{segment_of(self._lane)}.jsonl")
        patterns = tuple(re.compile(pattern, flags) for pattern, flags in ticket["redact"])
        options = {**ticket["options"], "store": None, "live": (), "redact": patterns}
        credentials.supply()
        if ticket["instrument"]:
            instrumentation.instrument()
        takeover.go_on_as(ticket["program"])
        if os.path.exists(path):
            self._play(path, options, ticket)
        else:
            self._watch(options, ticket)
        takeover.joined_as(part_of)
        process_pools.perform_by(lambda place, call, args, kwargs: self._perform(place, call, args, kwargs, options))
        self._directory: Final = ticket["directory"]
        self._run_id: Final = ticket["run_id"]
        self._reports: Final = ticket["reports"]
        at_process_end(self.end, self.failed)

    def _play(self, path: str, options: dict[str, Any], ticket: Mapping[str, Any]) -> None:
        self._open = is_open(path)
        player = self._player = _Player(path, options, self._lane, ticket["reports"], ticket["agent"])
        player.__enter__()
        mine.add(player.session)
        Teller(
            self._report, self._left, lambda: player.session.schedule.observer, lambda: children.below(player.session)
        )
        guard_attempts.on_signal.append(self._before_signal)
        guard.instead_of_listening(self._listen)

    def _left(self) -> list[dict[str, Any]]:
        """The recorded steps that the program has not come to."""
        assert self._player is not None
        session = self._player.session
        return [{**step, "ts_ns": session.trace.entry(step["seq"])["ts_ns"]} for step in session._unconsumed()]

    def _before_signal(self, pid: int) -> None:
        """The process may end itself here, without a further word."""
        if pid == self._pid and self._open and not self._left():
            _tell(
                self._report, _about(None, (f"the process {self._lane} ended itself by a signal, where its log ends",))
            )

    def _watch(self, options: dict[str, Any], ticket: Mapping[str, Any]) -> None:
        """A pool's worker that has done nothing by itself: it does here what it is given, each from its own segment."""
        if not ticket["pool"]:
            raise LiveCallBlockedError(
                f"the recorded run has no process {self._lane}",
                next_action="look at what decides whether it is started; record again if the change is meant",
            )
        guard.Guard(options["guard"], options["allow_hosts"], options["dry_run"], failed=self._refused).engage()
        gate.refuse_outside(self._outside)

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

    def _perform(
        self,
        place: Mapping[str, Any],
        call: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: dict[str, Any],
    ) -> Any:
        lane = place["lane"]
        path = os.path.join(self._directory, f"{self._run_id}.{segment_of(lane)}.jsonl")
        token = current.set(None)
        try:
            if not os.path.exists(path):  # it did nothing of the run: nor may it now
                return call(*args, **kwargs)
            player = _Player(path, options, lane, self._reports, place["agent"])
            try:
                with player:
                    mine.add(player.session)
                    return call(*args, **kwargs)
            finally:
                if player.started:
                    mine.discard(player.session)
        except ReplayError as failure:
            if is_open(path) and isinstance(failure, TraceExhaustedError):
                os.kill(os.getpid(), signal.SIGKILL)
            _tell(os.path.join(self._reports, f"{segment_of(lane)}.json"), _about(failure))
            # A pool's worker that dies of it would leave the program waiting for ever.
            raise RuntimeError(f"tracekit: {failure}") from None
        finally:
            current.reset(token)

    # -- tasks from outside ------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Where the program would wait for work: it is given the recorded work, and ends as if its server had been stopped."""
        if not self._drive():
            return
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        atexit._run_exitfuncs()
        self._leave(0)

    def _drive(self) -> bool:
        """Whether there are handlers: then each recorded task has been given to its own."""
        tasks: Any = sys.modules.get("tracekit.agents.tasks")
        if tasks is None or not tasks.registered or self._player is None:
            return False
        if self._drove:
            return True
        self._drove = True
        token = current.set(self._player.scope)
        try:
            tasks.drive(*tasks.registered.values())
        finally:
            current.reset(token)
        return True

    # -- the end -------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        self._error = error

    def end(self) -> None:
        """The process comes to its end: so must its segment."""
        if self._over or os.getpid() != self._pid:
            return
        self._over = True
        guard.instead_of_listening(None)
        failure = self._judged()
        if failure is not None and self._open and isinstance(failure, TraceExhaustedError | UnconsumedStepsError):
            self._die(failure)
        _tell(self._report, {**_about(failure, tuple(self._remarks())), **self._inexact()})
        if failure is not None:
            sys.stderr.write(f"tracekit: in the process {self._lane}: {failure}\n")
            self._leave(1)

    def _judged(self) -> BaseException | None:
        player = self._player
        if player is None:
            return self._blocked
        error = self._error
        try:
            if player.session.failure is None and error is None:
                self._drive()
            kept = error if isinstance(error, Exception | ReplayError) else None
            player.__exit__(type(kept) if kept else None, kept, kept.__traceback__ if kept else None)
        except ReplayError as failure:
            return failure
        except BaseException as other:
            return other
        if player.session.failure is not None:
            return player.session.failure
        return error if isinstance(error, Exception) and not player.recorded_failure(error) else None

    def _remarks(self) -> list[str]:
        player = self._player
        if player is None:
            return []
        said = [f"the process {self._lane}: {sentence}" for sentence in player.report.warnings]
        return said[:20]

    def _inexact(self) -> dict[str, Any]:
        if self._player is None:
            return {}
        report = self._player.report
        return {"differences": report.differences[:100], "clock_drift": report.clock_drift[:100]}

    def _die(self, failure: ReplayError) -> NoReturn:
        """The recorded process was killed here, or went on when the run ended: neither does this one go on."""
        assert self._player is not None
        where = len(self._player.session.trace)
        sentence = f"the process {self._lane} did not end its segment: it was replayed up to its entry {where}, where its log ends"
        _tell(self._report, _about(None, (sentence,)))
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        raise failure

    def _leave(self, status: int) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        _really_exit(status)
