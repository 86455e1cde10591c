"""Which file a user means by RUN: an id, the beginning of one, ``last``, or a path."""

from __future__ import annotations

import os

import click

from .._journal.runs import Store
from ..errors import RunNotFoundError

__all__ = ["located", "named"]


def named(store: str | None, *, existing: bool = False) -> Store:
    """The store to list. One that somebody names, and that is not there, is a slip; the usual one may not be there yet,
    unless ``existing``: then a directory without runs is no store, since it would answer for runs that lie elsewhere."""
    found = Store(store)
    if existing and not os.path.isdir(found.runs):
        raise click.UsageError(
            f"there is no store in {found.root} (it has no directory 'runs'), so nothing was looked at: go to the directory that the "
            "program runs in, or name its store with --store or TRACEKIT_DIR"
        )
    if (store is not None or os.environ.get("TRACEKIT_DIR")) and not os.path.isdir(found.root):
        which = "--store" if store is not None else "TRACEKIT_DIR"
        raise click.UsageError(f"{which}: there is no directory {found.root}")
    return found


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
    try:
        return store.find(run)
    except RunNotFoundError:
        if os.path.isfile(run):  # whatever it is called, and whatever it is: that is told by who reads it
            return os.path.abspath(run)
        raise
