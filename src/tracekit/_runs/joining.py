"""Joining the run of a parent process, or its replay, when a child process imports tracekit."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Token
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .._capture import guard, instrumentation, plugins, processes, world
from .._journal.reader import Trace
from .._journal.store import Store, segment_of, summary, valid_run_id
from .._policy.budget import Budget, Spending
from .._runtime import session as gate
from .._runtime.context import Lane, Root, Scope, current, enter
from .._runtime.recorder import ROOT
from .._runtime.redaction import Redactor
from .._runtime.replayer import Replay
from .._runtime.session import Session, here
from .._runtime.step import Request, Spec
from ..errors import (
    LiveCallBlockedError,
    ReplayError,
    TraceExhaustedError,
    TracekitError,
    UnconsumedStepsError,
)
from . import children, forks, role
from .children import is_itself, is_open, take_off
from .ending import Teller
from .replaying import ReplayBlock
from .run import UNSET, Run, register, registered, unregister

if TYPE_CHECKING:
    from .recording import RecordBlock

__all__ = ["Part", "at_process_end", "join", "leave", "mine", "part_of", "rejoin"]

# -- parts -------------------------------------------------------------------------------------------------------------
#
# A ``record()`` in a process that has joined a run: no run of its own, but a span of that one.


class Part:
    """The span that stands in for a ``record()``."""

    def __init__(self, block: RecordBlock) -> None:
        self._block: Final = block
        self._step: Any = None
        self._token: Token[Scope | None] | None = None
        self._outer: Run | None = None

    def stand_in(self, options: Mapping[str, Any]) -> Run:
        scope = here()
        assert scope is not None
        session = scope.session
        if options["agent"] is not None or options["identity"] is not None:
            session.identify(options["agent"] or "agent", options["identity"])
        self._step = session.begin(scope, Request(Spec("span", options["name"] or "run"), {"input": self._block.given}))
        inside = self._step.body()
        self._token = enter(inside if options["agent"] is None else inside.acting(options["agent"]))
        run = Run(session, session.log.path, options["name"])
        self._outer = registered(session)
        register(session, run)
        return run

    def end_for(self, run: Run, error: BaseException | None) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                current.reset(token)
            except ValueError:  # left in another context than it was entered in
                current.set(None)
        session = run._session
        unregister(session)
        if self._outer is not None:
            register(session, self._outer)
        if error is not None:
            self._step.failed(error)
            return
        result = None if run.result is UNSET else run.result
        self._step.done(result)
        if isinstance(session, Replay):
            self._compare(session, result)

    def _compare(self, session: Replay, result: Any) -> None:
        answer = session.index.answer[self._step.seq]
        if not answer:
            return
        what = f"the part {self._step.spec.name!r} of the run came to another result"
        session.compare_end("result", what, answer, result)


# -- joining -----------------------------------------------------------------------------------------------------------
#
# A process that a run's program has started joins the run, or its replay: when it imports tracekit.
#
# Its environment says so. While a run is recorded the whole process is one segment of it, a file of its own; in a replay the process is
# answered from that file, and behind the guard from here on. What it can't join it leaves alone: it then runs as if nothing had been
# said.

#: How this process takes part, once it does.
_joined: Final[list[Recorded]] = []
#: The sessions in which this process takes part.
mine: Final[set[Any]] = set()


def join() -> None:
    """Do what the environment says, and take it out of there: the program's own children get their own."""
    told = os.environ.pop(processes.VARIABLE, None)
    if told is None:
        return
    try:
        ticket = json.loads(told)
        replayed = ticket["mode"] == "replay"
    except (ValueError, TypeError, KeyError):
        _alone(f"{processes.VARIABLE} is none of tracekit's")
        return
    if replayed:
        rejoin(ticket)
        return
    try:
        problem = _record(ticket)
    except Exception as error:
        problem = str(error)
    if problem is not None:
        _alone(problem)


def _alone(problem: str) -> None:
    warnings.warn(
        f"tracekit: this process was started by a recorded run and can't join it: {problem}; it is not recorded",
        RuntimeWarning,
        stacklevel=2,
    )


def leave() -> None:
    """This process is none of the run's program: a command of tracekit itself."""
    if _joined:
        _joined.pop().withdraw()


def _record(ticket: Mapping[str, Any]) -> str | None:
    """Take part in a run that is being recorded; says why not."""
    run_id, root, lane = ticket["run_id"], ticket["store"], ticket["lane"]
    if not valid_run_id(run_id) or not isinstance(lane, str) or not isinstance(root, str):
        return f"{processes.VARIABLE} is none of tracekit's"
    store = Store(root)
    path = store.path(run_id)
    try:
        foreign = any(os.stat(place).st_uid != os.getuid() for place in (store.root, store.runs, path))
    except OSError:
        return f"run {run_id} is not in {store.root}"
    if foreign:
        return f"{store.root} is another user's"
    if summary(path).end is not None:
        return f"run {run_id} has ended"
    _joined.append(Recorded(store, ticket))
    return None


class Recorded:
    """This process as a segment of a run that is being recorded."""

    def __init__(self, store: Store, ticket: Mapping[str, Any]) -> None:
        patterns = [re.compile(pattern, flags) for pattern, flags in ticket["redact"]]
        base, n, lane = ticket["lane"], 1, ticket["lane"]
        while os.path.exists(store.path(ticket["run_id"], segment_of(lane))):  # of an earlier process with this place
            n += 1
            lane = f"{base}+{n}"
        self.segment: Final = forks.Segment(
            store,
            ticket["run_id"],
            ticket["durability"],
            lane,
            ticket["cause"],
            Redactor.of_process(patterns),
            ticket["program"],
            ticket["arguments"],
            indirect=not is_itself(ticket["by"], ticket["as"]),
        )
        session = self.session = self.segment.session
        self.pid: Final = os.getpid()
        self._pool: Final = bool(ticket["pool"])
        self.error: BaseException | None = None
        root = self.segment.root = session.root = Root(lane, get_ident())
        if ticket["instrument"]:
            instrumentation.instrument()
        world.enter()
        forks.follow(session, store)
        session.state.spending = _spending(ticket)
        enter(Scope(session, root, ROOT, ticket["agent"], spending=session.state.spending))
        self.run: Final = Run(session, self.segment.path, lane.strip("/"))
        register(session, self.run)
        role.go_on_as(ticket["program"])
        role.joined_as(part_of)
        mine.add(session)
        processes.perform_by(self.perform)
        at_process_end(self.end, self.failed)

    def perform(self, place: Mapping[str, Any], call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that this process was given as a pool's worker: a segment of its own."""
        own = self.segment
        segment = forks.Segment(
            own.store,
            own.run_id,
            own.durability,
            place["lane"],
            place["cause"],
            self.session.redactor,
            role.program(),
        )
        session, root = segment.session, Root(place["lane"], get_ident())
        segment.root = session.root = root
        mine.add(session)
        session.state.spending = _spending(place)
        if session.state.spending is not None:
            take_off(session.state.spending, own.store, own.run_id, place)
        token = enter(Scope(session, root, ROOT, place["agent"], spending=session.state.spending))
        try:
            value = call(*args, **kwargs)
        except BaseException as error:
            forks.seal(session, error if isinstance(error, Exception) else None)
            raise
        else:
            forks.seal(session)
            return value
        finally:
            current.reset(token)
            session.state.ended = True
            mine.discard(session)

    def failed(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        """The process ends in order: so does its segment, which is there even if nothing happened in it."""
        session = self.session
        if session.state.ended or os.getpid() != self.pid:
            return
        error = self.error if isinstance(self.error, Exception) else None
        with suppress(Exception):  # a disk that is full keeps nobody from leaving
            if not self._pool:  # those are ended as soon as they have nothing to do, perhaps in the middle of this
                self.segment.open()
            forks.seal(session, error)

    def withdraw(self) -> None:
        session = self.session
        session.state.ended = session.state.discarded = True
        forks.forget(session)
        current.set(None)
        role.joined_as(lambda block: None)
        world.leave()


def _spending(told: Mapping[str, Any]) -> Spending | None:
    """The ledger of what the run has left for what is done here."""
    budget = told.get("budget")
    return None if budget is None else Spending(Budget.of_dict(budget), name="process")


def part_of(block: RecordBlock) -> Part | None:
    """What a ``record()`` of this process is. A linked run is one of its own, here as anywhere."""
    scope = current.get()
    inside = scope is not None and scope.session in mine
    return Part(block) if inside and block.options["nested"] != "link" else None


def at_process_end(end: Any, failed: Any) -> None:
    """``end()`` when this process comes to its end, however: its last line, an exception (``failed`` hears of it), ``os._exit``."""
    before = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        failed(error)
        if not isinstance(error, ReplayError):  # told once, at the end of it all
            before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(end)
    forks.at_hard_exit(end)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Its processes forget what was to be done at their end when they begin, and end past ``atexit``.
        def finish() -> None:
            error = sys.exception()
            if isinstance(error, Exception):
                failed(error)
            end()

        def begin(_: Any) -> None:
            util.Finalize(None, finish, exitpriority=0)

        util.register_after_fork(begin, begin)
        _kept.append(begin)


_kept: Final[list[Any]] = []

# -- rejoining ---------------------------------------------------------------------------------------------------------
#
# A process that a replayed program has started: answered from its own segment, behind the guard from before its first line.
#
# It says at its end, in a file of its parent's, how it went. A failure ends it with exit code 1, and is its parent's failure too. Where
# it
# serves tasks (``@on_task``), those of the recording are given to its handlers when it would listen, or at the end of its program.

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


class _Player(ReplayBlock):
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
        from .determinism import Witness, witnessed

        with guard.allow():
            witness = Witness(f"{options['witness']}.{segment_of(self._lane)}")
        return witnessed(witness, trace, redactor, options)

    def _scope_in(self, session: Session, agent: str | None, spending: Spending | None = None) -> Lane:
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
        plugins.supply()
        if ticket["instrument"]:
            instrumentation.instrument()
        role.go_on_as(ticket["program"])
        if os.path.exists(path):
            self._play(path, options, ticket)
        else:
            self._watch(options, ticket)
        role.joined_as(part_of)
        processes.perform_by(lambda place, call, args, kwargs: self._perform(place, call, args, kwargs, options))
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
        guard.on_signal.append(self._before_signal)
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
        tasks: Any = sys.modules.get("tracekit.agents.messages")
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
        _tell(self._report, {**_about(failure, tuple(self._remarks())), "verdict": self._verdict()})
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

    def _verdict(self) -> dict[str, Any]:
        """What the process has to say for the verdict on the run."""
        if self._player is None:
            return {}
        told = self._player.report.verdict.as_dict()
        return {kind: told[kind][:100] for kind in ("reasons", "allowed", "remarks")}

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
