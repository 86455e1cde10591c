"""A process of a replay, as the process sees it that has started it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NoReturn

from .. import _reality, errors
from .._capture import guard
from .._engine.replay import Replay
from .._engine.scope import Scope
from .._journal.names import segment_of
from .._journal.scan import ENDS
from .._journal.summary import last_entry
from ..errors import DivergenceError, NotReplayableError, ReplayError, UnconsumedStepsError
from .stillness import Answer, ask_file, still_file

__all__ = ["NOT_STARTED", "STATUS", "Child", "Report", "is_open", "said_to_fail"]

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
        self.differences: list[dict[str, Any]] = []
        self.clock_drift: list[dict[str, Any]] = []
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
                next_action="look at what decides its status, and is not recorded (docs/not-captured.md)",
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
            for key, into in (("differences", self.differences), ("clock_drift", self.clock_drift)):
                into += [{**one, "process": self.path} for one in told.get(key) or ()]
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
