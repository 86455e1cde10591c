"""The inter-agent events of runs, by id or by path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from .._journal.reader import Trace
from .._journal.runs import Store
from . import agentloom, view
from .view import Event

__all__ = ["Recorded", "events", "files_of"]


@runtime_checkable
class Recorded(Protocol):
    """What knows its file: a ``Run``, a ``TraceWriter``."""

    @property
    def path(self) -> str: ...


def events(
    *runs: str | os.PathLike[str] | Recorded,
    store: str | os.PathLike[str] | Store | None = None,
    payloads: bool = False,
) -> list[Event]:
    """The events of runs (ids, paths or ``Run``s; what their child processes wrote included), file by file in recorded order.

    Name all runs that exchanged messages, then ``ordered`` finds every parent. ``payloads`` adds what was said. Raises
    ``RunNotFoundError``, and ``TraceIntegrityError`` for a damaged file. A run without an end has the events that it has.
    """
    with files_of(*runs, store=store) as traces:
        return list(_told(traces, payloads))


def _told(traces: list[Trace], payloads: bool) -> Iterator[Event]:
    for trace in traces:
        imported = agentloom.origin(trace).get("events")
        yield from view.events(trace, payloads=payloads) if imported is None else imported


@contextmanager
def files_of(
    *runs: str | os.PathLike[str] | Recorded, store: str | os.PathLike[str] | Store | None = None
) -> Iterator[list[Trace]]:
    """Every file of runs, verified: each run's own, then its segments."""
    where = store if isinstance(store, Store) else Store(store)
    with ExitStack() as stack:
        found: dict[str, Trace] = {}

        def open_one(path: str) -> Trace:
            real = os.path.realpath(path)
            if real not in found:
                found[real] = stack.enter_context(Trace(path))
                where.check(found[real])
            return found[real]

        for run in runs:
            trace = open_one(where.find(run.path if isinstance(run, Recorded) else run))
            run_id: Any = trace.check().run_id
            if isinstance(run_id, str) and os.path.realpath(trace.path) == os.path.realpath(where.path(run_id)):
                for path in where.segments(run_id):
                    open_one(path)
        yield list(found.values())
