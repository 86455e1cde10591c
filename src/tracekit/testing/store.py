"""A store for the length of a test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from .._journal.store import Store

__all__ = ["temporary_store"]

#: A file system in memory, where the system has one: a sync costs nothing there.
_MEMORY = "/dev/shm"


@contextmanager
def temporary_store(*, memory: bool = True) -> Iterator[Store]:
    """A new store that ``record`` and ``replay`` use inside the block (``TRACEKIT_DIR``), removed at its end.

    It lies in memory where the system has a file system for that, unless ``memory`` is false. ``store.root`` is its directory.

    Examples:
        >>> from tracekit import record
        >>> from tracekit.testing import temporary_store
        >>> with temporary_store() as store:
        ...     with record("test"):
        ...         pass
        ...     [run.name for run in store.list()]
        ['test']
    """
    place = _MEMORY if memory and os.path.isdir(_MEMORY) and os.access(_MEMORY, os.W_OK) else None
    directory = tempfile.mkdtemp(prefix="tracekit-", dir=place)
    before = os.environ.get("TRACEKIT_DIR")
    os.environ["TRACEKIT_DIR"] = os.path.join(directory, ".tracekit")
    try:
        yield Store()
    finally:
        if before is None:
            os.environ.pop("TRACEKIT_DIR", None)
        else:
            os.environ["TRACEKIT_DIR"] = before
        shutil.rmtree(directory, ignore_errors=True)
