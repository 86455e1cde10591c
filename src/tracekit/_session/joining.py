"""A process that a run's program has started joins the run, or its replay: when it imports tracekit.

Its environment says so. While a run is recorded the whole process is one segment of it, a file of its own; in a replay the process is
answered from that file, and behind the guard from here on. What it can't join it leaves alone: it then runs as if nothing had been said.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from .._capture import instrumentation, process_pools, processes, world
from .._engine.budget import Budget
from .._engine.lanes import Root
from .._engine.recording import ROOT
from .._engine.redaction import Redactor
from .._engine.scope import Scope, current, enter
from .._engine.spending import Spending
from .._journal.names import valid_run_id
from .._journal.runs import Store, segment_of
from .._journal.summary import summary
from ..errors import ReplayError
from . import forks, takeover
from .parts import Part
from .runs import Run, register
from .shares import take_off
from .started import is_itself

if TYPE_CHECKING:
    from .recorded import Record

__all__ = ["at_process_end", "join", "leave", "mine", "part_of"]

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
        from .rejoining import rejoin

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
        session.spending = _spending(ticket)
        enter(Scope(session, root, ROOT, ticket["agent"], spending=session.spending))
        self.run: Final = Run(session, self.segment.path, lane.strip("/"))
        register(session, self.run)
        takeover.go_on_as(ticket["program"])
        takeover.joined_as(part_of)
        mine.add(session)
        process_pools.perform_by(self.perform)
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
            takeover.program(),
        )
        session, root = segment.session, Root(place["lane"], get_ident())
        segment.root = session.root = root
        mine.add(session)
        session.spending = _spending(place)
        if session.spending is not None:
            take_off(session.spending, own.store, own.run_id, place)
        token = enter(Scope(session, root, ROOT, place["agent"], spending=session.spending))
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
            session.ended = True
            mine.discard(session)

    def failed(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        """The process ends in order: so does its segment, which is there even if nothing happened in it."""
        session = self.session
        if session.ended or os.getpid() != self.pid:
            return
        error = self.error if isinstance(self.error, Exception) else None
        with suppress(Exception):  # a disk that is full keeps nobody from leaving
            if not self._pool:  # those are ended as soon as they have nothing to do, perhaps in the middle of this
                self.segment.open()
            forks.seal(session, error)

    def withdraw(self) -> None:
        session = self.session
        session.ended = session.discarded = True
        forks.forget(session)
        current.set(None)
        takeover.joined_as(lambda block: None)
        world.leave()


def _spending(told: Mapping[str, Any]) -> Spending | None:
    """The ledger of what the run has left for what is done here."""
    budget = told.get("budget")
    return None if budget is None else Spending(Budget.of_dict(budget), name="process")


def part_of(block: Record) -> Part | None:
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
