"""What to do with runs that did not end: ``scan`` them, ``resume`` them, ``settle`` what is in doubt, ``abort`` them.

::

    from tracekit import recovery

    for decision in recovery.scan():
        print(decision.run_id, decision.decision, [reason["code"] for reason in decision.reasons])

Each decision is a pure function of the run's log: ``docs/reference/recovery.md`` lists every reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ._runs.operator import Aborted, abort, settle
from ._runs.recovery import Decision, candidates, decision_on, store_at
from ._runs.resuming import resume

__all__ = ["Aborted", "Decision", "abort", "resume", "scan", "settle"]


def scan(store: str | os.PathLike[str] | None = None, *, all: bool = False) -> Iterator[Decision]:
    """The decisions on the runs of a store that did not end, or are broken, in the order of their ids. Reads only.

    A run whose last line is an end, and the one of which the head was kept, has ended and is left out; with ``all`` each run
    is verified whole, and those that have ended are among the decisions.
    """
    for path, segments in candidates(store_at(store), all=all):
        yield decision_on(path, segments=segments)
