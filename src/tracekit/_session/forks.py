"""What becomes of a run in a forked child: it never writes into its parent's file, but opens a segment at its first step."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, Final

from .._canonical import dumps
from .._capture import concurrency
from .._engine.lanes import Lane, started
from .._engine.recording import ROOT, Recording, encode_reads
from .._engine.scope import Scope, current
from .._journal.runs import Store, segment_of
from .._journal.writer import Journal
from . import takeover

__all__ = ["follow", "forget", "seal", "successor"]

#: The recordings of this process that a fork concerns, with the store that each is in.
_followed: Final[dict[Recording, Store]] = {}
#: In a forked child: the recording that took the place of the parent's.
_successors: Final[dict[Recording, Recording]] = {}
#: The lane of the child that is about to be forked, by the session of whoever forks.
_pending: Final[list[Lane | None]] = [None]


def follow(session: Recording, store: Store) -> None:
    """See to it that a fork of this process leaves the file of ``session`` to the parent."""
    if not _registered:
        _registered.append(True)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before)
        concurrency.after_fork(_in_child)
    _followed[session] = store


def forget(session: Recording) -> None:
    _followed.pop(session, None)


def successor(session: Recording) -> Recording | None:
    """The recording that stands for ``session`` in this process, if it is a fork of the one that began it."""
    return _successors.get(session)


_registered: Final[list[bool]] = []


def _before() -> None:
    """In the parent: number the child, as any line of execution, when it is started."""
    scope = current.get()
    _pending[0] = None if scope is None else started(scope.lane, "fork", scope.live)
    for session in list(_followed):
        session.share()


def _in_child() -> None:
    scope, lane = current.get(), _pending[0]
    followed = dict(_followed)
    _followed.clear()
    if followed:
        _seal_at_hard_exit()
    for session, store in followed.items():
        if session.ended:
            continue
        child = _Segment(session, store, lane).session
        _successors[session] = child
        session.ended = session.discarded = True
        session.journal.abandon()
        if scope is not None and scope.session is session:
            spending = None if scope.spending is None else scope.spending.copy()
            own = Lane("", 1, None, id=0, owner=get_ident())
            current.set(Scope(child, own, ROOT, scope.agent, spending=spending))


class _Segment:
    """A journal that is made when the child has something to write: stands in for it until then."""

    lost = 0
    closed = False

    def __init__(self, parent: Recording, store: Store, lane: Lane | None) -> None:
        journal = parent.journal
        self.run_id: Final = journal.run_id
        self.durability: Final = journal.durability
        self._store: Final = store
        self._cause: Final = {"run_id": journal.run_id, "seq": journal.seq, "hash": journal.head.decode()}
        self._lane = lane.path if lane is not None else f"/fork@{os.getpid()}"
        # A child that finds the file of an earlier one with its path (a fork outside the run's own lines) takes another.
        self.segment = segment_of(self._lane)
        self.path: Final = store.path(self.run_id, self.segment)
        self.session: Final = Recording(self, parent.redactor)  # type: ignore[arg-type]
        self.session.share()
        if parent._once is not None:
            parent._once.forked(self.session)

    def append(self, kind: str, lane: int, parent: int, tail: bytes, sync: bool = False) -> int:
        return self._journal().append(kind, lane, parent, tail, sync)

    def read(self, kind: str, lane: int, parent: int, name: str, value: Any) -> None:
        self._journal().read(kind, lane, parent, name, value)

    def held(self) -> Any:
        return self._journal().held()

    def flush(self) -> None:
        """Nothing has been written."""

    def close(self) -> None:
        self.closed = True

    def abandon(self) -> None:
        self.closed = True

    def _journal(self) -> Journal:
        journal = self._store.create(
            self.run_id, segment=self.segment, durability=self.durability, encode_read=encode_reads
        )
        about = {"program": takeover.program(), "segment": self.segment, "lane": self._lane, "pid": os.getpid()}
        tail = b',"cause":%b,"name":%b,"input":null' % (dumps([self._cause]), dumps(self._lane.strip("/")))
        journal.append("run.started", 0, 0, tail + self.session.meta(about))
        self.session.journal = journal
        follow(self.session, self._store)
        _at_end(lambda: seal(self.session))
        return journal


def _seal_at_hard_exit() -> None:
    """``os._exit`` is how a forked child leaves in order: its segment gets its end first."""
    really, pid = os._exit, os.getpid()

    def _exit(status: int) -> None:
        if os.getpid() == pid:
            scope = current.get()
            inside = scope is not None and scope.live  # in the middle of a tool: that stays in doubt
            for session in [] if inside else list(_followed):
                with suppress(Exception):  # a disk that is full keeps nobody from leaving
                    seal(session)
        really(status)

    os._exit = _exit  # type: ignore[assignment]


def _at_end(call: Callable[[], None]) -> None:
    """Call it when the child ends in order; multiprocessing ends its children past ``atexit``."""
    atexit.register(call)
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, call, exitpriority=0)


def seal(session: Recording) -> None:
    """End the segment of a child in order. Idempotent; where nothing was written, nothing is sealed."""
    journal, store = session.journal, _followed.get(session)
    if session.ended or store is None:
        return
    forget(session)
    journal.flush()
    with journal.held():
        session.ended = True
        meta = {"steps": session.steps, "segments": [], "count": journal.seq + 1}
        journal.append("run.completed", 0, ROOT, session.meta(meta))
    journal.close()
    segment = journal.path[-len(".jsonl") - 16 : -len(".jsonl")]
    durable = journal.durability != "none"
    store.sealed(session.run_id, journal.seq, journal.head.decode(), segment=segment, durable=durable)
