"""Inter-agent events while a run is being written: for an observer that can't wait for its end."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable
from typing import Any, Final

import orjson

from .._journal.blobs import Blobs
from .._journal.limits import DEFAULT
from .ids import segment_of_path
from .view import Event, View

__all__ = ["Follower"]


class Follower:
    """Reads a file as it grows, and hands each inter-agent event to ``observer`` once, in recorded order.

    An observer never breaks what it observes: the first exception that it raises is told to ``warn``, and it is not asked again.
    """

    def __init__(
        self, path: str, run_id: str, observer: Callable[[Event], object], warn: Callable[[str], object]
    ) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._observer: Callable[[Event], object] | None = observer
        self._warn: Final = warn
        self._ends: Final = array("Q", [0])
        self._blobs: Final = Blobs(self._entry, path, DEFAULT)
        self._view: Final = View(self._blobs.expand, segment_of_path(path, run_id))
        self._lock: Final = threading.Lock()

    def poll(self) -> None:
        """Look for new entries. An observer that writes to the run itself is told of that when it has returned."""
        while self._observer is not None and self._lock.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._lock.release()
            # Whoever wrote meanwhile found the lock taken, and left it to us.
            if self._fd < 0 or os.fstat(self._fd).st_size <= self._ends[-1]:
                return

    def close(self) -> None:
        """Tell the rest, and let go of the file. Idempotent."""
        self.poll()
        fd, self._fd = self._fd, -1
        self._observer = None
        if fd >= 0:
            os.close(fd)

    def _read(self) -> None:
        """Tell what whole lines there are."""
        start = self._ends[-1]
        data = os.pread(self._fd, os.fstat(self._fd).st_size - start, start)
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            self._ends.append(self._ends[-1] + len(line))
            self._tell(orjson.loads(line))

    def _tell(self, entry: dict[str, Any]) -> None:
        event = self._view.feed(entry)
        if event is None or self._observer is None:
            return
        try:
            self._observer(event)
        except Exception as error:
            self._observer = None
            self._warn(f"the observer of inter-agent events failed and is not asked again: {error!r}")

    def _entry(self, seq: int) -> dict[str, Any]:
        start, end = self._ends[seq - 1], self._ends[seq]
        entry: dict[str, Any] = orjson.loads(os.pread(self._fd, end - start, start))
        return entry
