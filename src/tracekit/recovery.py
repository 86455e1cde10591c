"""Decide what to do with runs that did not end, and do it: ``scan``, ``resume``, ``settle``, ``abort``.

::

    from tracekit import recovery

    for decision in recovery.scan():
        print(decision.run_id, decision.decision, [reason["code"] for reason in decision.reasons])

Each decision is a pure function of the run's log; ``tracekit docs recovery`` lists every reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ._journal.store import Store
from ._runs.operator import Aborted, abort, settle
from ._runs.recovery import Decision, InDoubt, UncertainStep, decision_on, examined, needs_a_decision
from ._runs.recovery import in_doubt as _in_doubt
from ._runs.resuming import resume

__all__ = ["Aborted", "Decision", "InDoubt", "UncertainStep", "abort", "in_doubt", "resume", "scan", "settle"]


def scan(store: str | os.PathLike[str] | None = None, *, all: bool = False, quick: bool = False) -> Iterator[Decision]:
    """Yield a decision for each run of a store that did not end, is damaged, or leaves something in doubt, ordered by
    run id. Nothing is written.

    Every run is verified. With ``quick``, only the last line of a run that has ended is read, so that damage before it
    is not seen. With ``all``, the runs that have ended are included.
    """
    for run in examined(Store.at(store), quick=quick):
        if all or needs_a_decision(run):
            yield decision_on(run.path, segments=run.segments)


def in_doubt(store: str | os.PathLike[str] | None = None, *, quick: bool = False) -> InDoubt:
    """List every irreversible step that may or may not have happened, in all runs of a store. Nothing is written.

    This includes runs that have ended: a time limit that the program caught leaves a step in doubt just as a crash
    does. Steps that a live process is executing right now are in ``running``. ``unreadable`` lists damaged files, which
    may hide further steps. Every run is verified; with ``quick``, only the last line of a run that has ended is read, so
    that damage before it is not seen.

    Examples:
        >>> from tracekit import recovery
        >>> for step in recovery.in_doubt().in_doubt:  # a process was killed while it paid bob
        ...     print(step.name, step.arguments, step.code)
        pay {'who': 'bob'} irreversible_pending
    """
    where = Store.at(store)
    return _in_doubt(where, examined(where, quick=quick))
