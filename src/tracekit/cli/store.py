"""Which file a user means by RUN: an id, the beginning of one, ``last``, or a path."""

from __future__ import annotations

from .._journal.runs import Store
from ..errors import RunNotFoundError

__all__ = ["located"]


def located(run: str, store: Store) -> str:
    """The path of the trace file of ``run``; ``RunNotFoundError`` if there is none."""
    if run == "last":
        runs = store.list()
        if not runs:
            raise RunNotFoundError(
                f"there is no run in {store.root}",
                store=store.root,
                next_action="record one, or name another store with TRACEKIT_DIR",
            )
        return runs[0].path
    return store.find(run)
