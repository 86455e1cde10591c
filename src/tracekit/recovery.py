"""What to do with runs that did not end: ``scan`` them, ``resume`` them, ``settle`` what is in doubt, ``abort`` them.

::

    from tracekit import recovery

    for decision in recovery.scan():
        print(decision.run_id, decision.decision, [reason["code"] for reason in decision.reasons])

Each decision is a pure function of the run's log: ``tracekit docs recovery`` lists every reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ._runs.operator import Aborted, abort, settle
from ._runs.recovery import Decision, InDoubt, UncertainStep, candidates, decision_on, store_at
from ._runs.recovery import in_doubt as _in_doubt
from ._runs.resuming import resume

__all__ = ["Aborted", "Decision", "InDoubt", "UncertainStep", "abort", "in_doubt", "resume", "scan", "settle"]


def scan(store: str | os.PathLike[str] | None = None, *, all: bool = False) -> Iterator[Decision]:
    """The decisions on the runs of a store that did not end, or are broken, in the order of their ids. Reads only.

    A run whose last line is an end, and the one whose tip was kept, has ended and is left out; with ``all`` each run
    is verified whole, and those that have ended are among the decisions.
    """
    for path, segments in candidates(store_at(store), all=all):
        yield decision_on(path, segments=segments)


def in_doubt(store: str | os.PathLike[str] | None = None) -> InDoubt:
    """Every irreversible step that may or may not have happened, in all runs of a store. Reads only.

    Runs that have ended are among them: a time limit that was caught leaves a step in doubt as surely as a crash. What a live process
    is making right now is in ``running``; ``unreadable`` are the files that are damaged, so that there may be more.

    Examples:
        >>> from tracekit import recovery
        >>> for step in recovery.in_doubt().in_doubt:  # a process was killed while it paid bob
        ...     print(step.name, step.arguments, step.code)
        pay {'who': 'bob'} irreversible_pending
    """
    return _in_doubt(store_at(store))
