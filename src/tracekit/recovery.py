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
from ._runs.recovery import Decision, InDoubt, UncertainStep, candidates, decision_on
from ._runs.recovery import in_doubt as _in_doubt
from ._runs.resuming import resume

__all__ = ["Aborted", "Decision", "InDoubt", "UncertainStep", "abort", "in_doubt", "resume", "scan", "settle"]


def scan(store: str | os.PathLike[str] | None = None, *, all: bool = False) -> Iterator[Decision]:
    """Yield a decision for each run of a store that did not end or is damaged, ordered by run id. Nothing is written.

    A run counts as ended if its last line is an end entry or its tip hash has been kept; such runs are skipped without
    reading them whole. With ``all``, every run is verified completely, and ended runs are included.
    """
    for path, segments in candidates(Store.at(store), all=all):
        yield decision_on(path, segments=segments)


def in_doubt(store: str | os.PathLike[str] | None = None) -> InDoubt:
    """List every irreversible step that may or may not have happened, in all runs of a store. Nothing is written.

    This includes runs that have ended: a time limit that the program caught leaves a step in doubt just as a crash
    does. Steps that a live process is executing right now are in ``running``. ``unreadable`` lists damaged files, which
    may hide further steps.

    Examples:
        >>> from tracekit import recovery
        >>> for step in recovery.in_doubt().in_doubt:  # a process was killed while it paid bob
        ...     print(step.name, step.arguments, step.code)
        pay {'who': 'bob'} irreversible_pending
    """
    return _in_doubt(Store.at(store))
