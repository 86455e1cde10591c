"""The other processes of a recorded run, in their own view: each writes a segment, a file of its own.

A forked child creates one at its first step; a started process joins the run when it imports tracekit.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._capture import handed, instrumentation, processes, world, zones
from .._capture.guard import Attempt, observe
from .._capture.processes import forking, left_by_fork, within
from .._journal.store import Store, segment_of, summary, valid_run_id, writer
from .._journal.vault import Vault
from .._journal.writer import Durability, Journal
from .._policy.policies import inherit_keys, share, under_policies
from .._runtime.boundary import OBSERVED
from .._runtime.callsite import say
from .._runtime.lane import ROOT, Lane, Root, started
from .._runtime.process import ProcessRole, process
from .._runtime.recorder import Recording, encode_reads
from .._runtime.redaction import Redactor
from .._runtime.session import Scope, current, enter
from .._values import dumps
from ..errors import RunStateError
from . import ending
from .children import RecordedChildren, is_itself, take_off
from .run import JoinedProcess, Run, register

if TYPE_CHECKING:
    from .._runtime.spending import Spending

__all__ = ["Segment", "end_part", "follow", "join", "leave", "successor"]


class _Forks:
    """What a fork of the process must know about a recording."""

    def __init__(self) -> None:
        #: The store of its file; ``None`` if a fork does not concern it.
        self.store: Store | None = None
        #: The lane of the child that is about to be forked.
        self.lane: Lane | None = None
        #: In a forked child: the recording that has replaced it.
        self.successor: Recording | None = None


def follow(session: Recording, store: Store) -> None:
    """Register ``session`` as open in this process; a fork leaves its file to the parent."""
    _watch_forks()
    session.state.extras.of(_Forks).store = store
    process.opened(session)


def successor(session: Recording) -> Recording | None:
    """Return the recording that replaces ``session`` in this process, if this is a fork of the process that began it."""
    return session.state.extras.of(_Forks).successor


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_in_child)


def _followed() -> list[tuple[Any, Store]]:
    """Return the recordings of this process that a fork concerns."""
    found = [(session, session.state.extras.of(_Forks).store) for session in process.sessions]
    return [(session, store) for session, store in found if store is not None]


def _before() -> None:
    """Before a fork, in the parent: number the child like any lane when it is started, unless the run has admitted it."""
    scope = current.get()
    admitted = forking.get() is not None
    if scope is not None and not admitted:
        session = scope.session
        session.state.extras.of(_Forks).lane = lane = started(scope.lane, "fork", scope.live)
        session.starts(lane)
    if not (within.get() or admitted):
        # If it is unknown who forks, the work of the copy is not observed either.
        copied = Attempt("process", "os.fork", "a copy of this process")
        observe(copied if scope is None else Attempt("fork", "os.fork", "this process"))
    for session, _ in _followed():
        share(session)
        with suppress(Exception):  # the child names its entry
            session.log.journal.open()


def _in_child() -> None:
    scope, found = current.get(), forking.get()
    ticket = json.loads(found.ticket) if found is not None and found.live else None
    followed = [(session, store) for session, store in _followed() if not session.state.ended]
    for session, _ in _followed():
        process.closed(session)
    for session, _ in followed:  # whatever else fails, nothing may be written to a file of the parent
        session.state.ended = session.state.discarded = True
        session.log.journal.abandon()
    if ticket is not None:
        left_by_fork()
    for session, store in followed:
        here = scope is not None and scope.session.state is session.state
        try:
            if here and ticket is not None:
                child = _joined(session, store, ticket)
                process.after_exec.append(partial(_joined, session, store, ticket))
            else:
                child = _forked(session, store, scope)
        except Exception as error:  # the program goes on nevertheless
            say(f"a forked child of run {session.run_id} is not recorded: {error}")
            continue
        session.state.extras.of(_Forks).successor = child
    if followed:
        ending.at_hard_exit(_end_all)


def _joined(parent: Recording, store: Store, ticket: Mapping[str, Any]) -> Recording:
    """Make this process, a forked child, a part of its parent's run like a started one."""
    segment = Segment(
        store,
        parent.run_id,
        ticket["durability"],
        ticket["lane"],
        ticket["cause"],
        parent.redactor,
        ticket["program"],
        ticket["arguments"],
    )
    inherit_keys(parent, segment.session)
    opened = process.role.ordinal
    process.role = RecordedProcess(segment, ticket)
    process.role.ordinal = opened  # its next run is not one of its parent's
    return segment.session


def _forked(parent: Recording, store: Store, scope: Scope | None) -> Recording:
    """Return the recording of a forked child whose origin the run does not know."""
    mine = scope is not None and scope.session.state is parent.state
    lane = parent.state.extras.of(_Forks).lane if mine else None
    journal = parent.log.journal
    cause = {"run_id": journal.run_id, "seq": journal.seq, "hash": journal.head.decode()}
    # A child that finds the file of an earlier one with its path (a fork outside the run's own lanes) takes another.
    path = lane.path if lane is not None else f"/fork@{os.getpid()}"
    segment = Segment(store, journal.run_id, journal.durability, path, cause, parent.redactor)
    child = segment.session
    if parent.state.children is not None:
        child.state.children = RecordedChildren(child)
    inherit_keys(parent, child)
    if mine and scope is not None:
        spending = None if scope.spending is None else scope.spending.copy()
        current.set(Scope(segment.seen, Root(path, get_ident()), ROOT, scope.agent, spending=spending))
    return child


def end_part(session: Recording) -> None:
    """End, in a forked child, the block that was open in the parent: the child may end only its own segment."""
    role = process.role
    if isinstance(role, RecordedProcess) and role.session is session:
        role.end()
    else:
        end_segment(session)


class Segment:
    """The journal of a forked child, whose file is created when the child first writes something."""

    seq = 0
    lost = 0
    closed = False
    #: Nothing is kept for a file that can't be created.
    keeps = 0
    room = False

    def __init__(
        self,
        store: Store,
        run_id: str,
        durability: Durability,
        lane: str,
        cause: Mapping[str, Any],
        redactor: Redactor,
        program: str | None = None,
        arguments: list[str] | None = None,
        *,
        indirect: bool = False,
    ) -> None:
        self.run_id: Final = run_id
        self.durability: Final = durability
        self.store: Final = store
        self.lane = lane
        self._cause: Final = cause
        self._program: Final = program
        self._arguments: Final = arguments
        self._indirect: Final = indirect
        #: The process's own lane, if it joined the run by a ticket in its environment.
        self.own_line: Root | None = None
        self._opened: Journal | None = None
        self._opening: Final = _reality.OwnLock()
        #: The vault of the journal, once it exists.
        self.vault: Vault | None = None
        self.session: Final = Recording(self, redactor)  # type: ignore[arg-type]
        #: The session that the program of the process sees.
        self.seen: Final = under_policies(self.session)
        share(self.session)

    @property
    def segment(self) -> str:
        return segment_of(self.lane)

    @property
    def path(self) -> str:
        return self.store.path(self.run_id, self.segment)

    @property
    def root(self) -> str:
        return self.store.root

    def append(self, kind: str, lane: int, parent: int, tail: bytes, sync: bool | dict[int, None] = False) -> int:
        return self.open().append(kind, lane, parent, tail, sync)

    def keep(self, kind: str, lane: int, parent: int, tail: bytes, sync: bool = False) -> int:
        return self.open().keep(kind, lane, parent, tail, sync)

    def read(self, kind: str, lane: int, parent: int, name: str, value: Any) -> None:
        self.open().read(kind, lane, parent, name, value)

    def held(self) -> Any:
        return self.open().held()

    def flush(self) -> None:
        """Do nothing: nothing has been written."""

    def close(self) -> None:
        self.closed = True

    def abandon(self) -> None:
        self.closed = True

    def open(self) -> Journal:
        """Return the journal itself, created now if necessary."""
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Journal:
        journal = self._create()
        journal.vault = self.vault
        program = self._program or process.role.program
        own: dict[str, Any] = {"program": program, "segment": self.segment, "pid": os.getpid(), "ordered": True}
        own.update(clocks=_reality.clocks(), writer=writer(journal.path), boundary=list(OBSERVED))
        own["environment"] = zones.local_zone()
        about: dict[str, Any] = {"lane": self.lane}
        if self._arguments is not None:
            about["arguments"] = self._arguments
        if self._indirect:
            about["indirect"] = True
        tail = b',"cause":%b,"name":%b,"input":null' % (dumps([self._cause]), dumps(self.lane.strip("/")))
        journal.append("run.started", 0, 0, tail + self.session.meta(about, own))
        self.session.log.journal = journal
        follow(self.session, self.store)
        if self.own_line is None:
            at_end(lambda: end_segment(self.session))
        return journal

    def _create(self) -> Journal:
        lane, n = self.lane, 1
        while True:
            try:
                return self.store.create(
                    self.run_id, segment=self.segment, durability=self.durability, encode_read=encode_reads
                )
            except RunStateError:
                # Another process has the same place: two were started by one that did not join, such as a shell's two
                # commands.
                if self.own_line is None:
                    raise
                n += 1
                self.lane = self.own_line.path = f"{lane}+{n}"


def _end_all() -> None:
    for session, _ in _followed():
        with suppress(Exception):
            end_segment(session)


def at_end(call: Callable[[], object]) -> None:
    """Register a function to call when the child ends cleanly; multiprocessing ends its children without ``atexit``."""
    atexit.register(call)
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, call, exitpriority=0)


def end_segment(session: Recording, error: BaseException | None = None) -> None:
    """Write the end of a child's segment, completed or with ``error``. Idempotent; writes nothing if the child wrote
    nothing."""
    journal, store = session.log.journal, session.state.extras.of(_Forks).store
    if session.state.ended or store is None or session not in process.sessions or journal.seq == 0:
        return
    process.closed(session)
    ending.end_log(session, store, lambda: _how_it_ends(session, error))


def _how_it_ends(session: Recording, error: BaseException | None) -> ending.End:
    meta: dict[str, Any] = {"steps": session.steps, "segments": []}
    if session.state.children is not None:
        session.state.children.conclude()
        meta.update(session.state.children.as_dict())
    if session.state.spending is not None:
        meta["budget"] = ending.account(session.state.spending)
    if became := processes.becomes(session):
        meta["becomes"] = became
    return ending.End(meta, error)


# -- this process as a part of a run -------------------------------------------------------------------------------------
#
# A process that was started, or forked, by the program of a run that is being recorded.


class RecordedProcess(JoinedProcess):
    """This process as a segment of a run that is being recorded."""

    def __init__(self, segment: Segment, ticket: Mapping[str, Any]) -> None:
        super().__init__(ticket["program"])
        self.segment: Final = segment
        session = self.session = segment.session
        self.pid: Final = os.getpid()
        self._pool: Final = bool(ticket["pool"])
        self.error: BaseException | None = None
        root = segment.own_line = session.state.root = Root(segment.lane, get_ident())
        follow(session, segment.store)
        session.state.spending = _spending(ticket)
        enter(Scope(segment.seen, root, ROOT, ticket["agent"], spending=session.state.spending))
        self.run: Final = Run(session, segment.path, segment.lane.strip("/"))
        register(session, self.run)
        session.state.joined = True
        session.state.children = RecordedChildren(session)
        #: What ended calls of a pool have spent, by lane.
        self._spent: Final[dict[str, Spending]] = {}
        ending.at_process_end(self.end, self.failed)

    def perform(self, place: Mapping[str, Any], call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a call that this process received as a pool's worker, recorded in a segment of its own."""
        own = self.segment
        segment = Segment(
            own.store,
            own.run_id,
            own.durability,
            place["lane"],
            place["cause"],
            self.session.redactor,
            self.program,
        )
        session, root = segment.session, Root(place["lane"], get_ident())
        segment.own_line = session.state.root = root
        session.state.joined = True
        session.state.children = RecordedChildren(session)
        session.state.spending = _spending(place)
        if session.state.spending is not None:
            take_off(session.state.spending, own.store, own.run_id, place, self._spent)
        token = enter(Scope(segment.seen, root, ROOT, place["agent"], spending=session.state.spending))
        try:
            value = handed.call(call, args, kwargs)
        except BaseException as error:
            end_segment(session, error if isinstance(error, Exception) else None)
            raise
        else:
            end_segment(session)
            return value
        finally:
            current.reset(token)
            session.state.ended = True

    def failed(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        """End the segment cleanly at the end of the process; it is written even if nothing happened in it."""
        session = self.session
        if session.state.ended or os.getpid() != self.pid:
            return
        error = self.error if isinstance(self.error, Exception) else None
        with suppress(Exception):  # a full disk must not prevent the exit
            if not self._pool:  # a pool kills idle workers, perhaps in the middle of this
                self.segment.open()
            end_segment(session, error)

    def withdraw(self) -> None:
        session = self.session
        session.state.ended = session.state.discarded = True
        process.closed(session)
        process.role = ProcessRole()
        current.set(None)
        world.leave()


def _spending(source: Mapping[str, Any]) -> Spending | None:
    """Return the budget left for this process or call, by its ticket or place; ``None`` without one."""
    budget = source.get("budget")
    if budget is None:
        return None
    from .._runtime.spending import Budget, Spending

    return Spending(Budget.of_dict(budget), name="process")


# -- joining -----------------------------------------------------------------------------------------------------------
#
# A process started by a run's program joins the run, or its replay, when it imports tracekit and finds a ticket in its
# environment.
#
# While a run is recorded the whole process is one segment of it, a file of its own; in a replay the process is answered
# from that file, and is guarded from then on. If it can't join a recorded run, it runs unrecorded, with a warning.


def join() -> None:
    """Join the run or replay whose ticket is in the environment, and remove the ticket: each child process gets its
    own."""
    variable = os.environ.pop(processes.VARIABLE, None)
    if variable is None:
        return
    try:
        ticket = json.loads(variable)
        replayed = ticket["mode"] == "replay"
    except (ValueError, TypeError, KeyError):
        _warn_not_joined(f"{processes.VARIABLE} was not set by tracekit")
        return
    if replayed:
        from .replaying import join_replay

        join_replay(ticket)
        return
    try:
        problem = _record(ticket)
    except Exception as error:
        problem = str(error)
    if problem is not None:
        _warn_not_joined(problem)


def _warn_not_joined(problem: str) -> None:
    from .._runtime.callsite import warn

    warn(f"this process was started by a recorded run and can't join it: {problem}; it is not recorded")


def leave() -> None:
    """Leave the run again: this process is a command of tracekit itself, not part of the run's program."""
    if isinstance(process.role, RecordedProcess):
        process.role.withdraw()


def _record(ticket: Mapping[str, Any]) -> str | None:
    """Join a run that is being recorded; return why that is not possible, else ``None``."""
    run_id, root, lane, path = ticket["run_id"], ticket["store"], ticket["lane"], ticket["file"]
    if not valid_run_id(run_id) or not all(isinstance(one, str) for one in (lane, root, path)):
        return f"{processes.VARIABLE} was not set by tracekit"
    store = Store(root)
    if path != store.path(run_id):
        store = Store(root, file=path)
    places = (store.runs, path) if store.file is not None else (store.root, store.runs, path)
    try:
        foreign = any(os.stat(place).st_uid != os.getuid() for place in places)
    except OSError:
        return f"run {run_id} is not in {store.runs}"
    if foreign:
        return f"{store.runs} is another user's"
    if summary(path).end is not None:
        return f"run {run_id} has ended"
    process.role = _recorded(store, ticket)
    return None


def _recorded(store: Store, ticket: Mapping[str, Any]) -> RecordedProcess:
    patterns = [re.compile(pattern, flags) for pattern, flags in ticket["redact"]]
    base, n, lane = ticket["lane"], 1, ticket["lane"]
    while os.path.exists(store.path(ticket["run_id"], segment_of(lane))):  # of an earlier process with this place
        n += 1
        lane = f"{base}+{n}"
    segment = Segment(
        store,
        ticket["run_id"],
        ticket["durability"],
        lane,
        ticket["cause"],
        Redactor.of_process(patterns, store.root, create=True),
        ticket["program"],
        ticket["arguments"],
        indirect=not is_itself(ticket["by"], ticket["as"]),
    )
    if ticket["instrument"]:
        instrumentation.instrument()
    world.enter()
    return RecordedProcess(segment, ticket)
