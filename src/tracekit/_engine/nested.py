"""What is started inside steps that are watched: whether it can't be undone, and whether it may still begin.

A tool whose body has started something irreversible is not called again and has nobody stand in for it: that would do it
twice. And what a tool does after it was given up (its thread goes on) begins no effect any more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from ..errors import RunEndedError
from .step import Spec

__all__ = ["Nested"]


class Nested:
    """The watched steps of one recording, by ``seq``. ``active`` is read at each nested step; all else is rare."""

    __slots__ = ("_given_up", "_in_doubt", "_inside", "_lock", "_stained", "_watched", "active")

    def __init__(self) -> None:
        self.active = False
        self._lock: Final = threading.Lock()
        self._watched: Final[set[int]] = set()
        #: Steps that were given up, though their thread goes on.
        self._given_up: Final[set[int]] = set()
        self._stained: Final[set[int]] = set()
        #: Steps in which something was given up that may take effect yet.
        self._in_doubt: Final[set[int]] = set()
        #: Of each step inside a live one, that one.
        self._inside: Final[dict[int, int]] = {}

    def watch(self, seq: int) -> None:
        with self._lock:
            self._watched.add(seq)
            self.active = True

    def unwatch(self, seq: int, *, given_up: bool = False) -> bool:
        """Whether something irreversible was started inside ``seq``. ``given_up``: it may still be going on."""
        with self._lock:
            stained = seq in self._stained
            if given_up:
                self._given_up.add(seq)
            else:
                self._forget(seq)
            return stained

    def doubt(self, around: Iterable[int]) -> None:
        """A step inside these was given up, and may take effect yet."""
        with self._lock:
            self._in_doubt.update(self._watched.intersection(around))

    def in_doubt(self, seq: int) -> bool:
        """Whether something inside ``seq`` was given up that may take effect yet."""
        return seq in self._in_doubt

    def over(self, seq: int) -> None:
        """What was given up has come to its end."""
        with self._lock:
            self._given_up.discard(seq)
            self._forget(seq)

    def _forget(self, seq: int) -> None:
        self._watched.discard(seq)
        self._stained.discard(seq)
        self._in_doubt.discard(seq)
        if not self._watched:
            self._inside.clear()
            self.active = False

    def begins(self, spec: Spec, live: int) -> None:
        """A step of ``spec`` is about to begin inside the live step ``live``. ``RunEndedError`` if it comes too late."""
        if not spec.effect:
            return
        with self._lock:
            around = self._around(live)
            late = next((seq for seq in around if seq in self._given_up), None)
            if late is None and spec.side_effect == "irreversible" and not _once(spec):
                self._stained.update(around)
        if late is not None:
            raise RunEndedError(
                f"{spec.name!r} ({spec.side_effect}) was called inside step {late}, which had been given up when its time was over; "
                "it was not executed",
                step=late,
                next_action="give the step more time, or make its function look at a deadline itself",
            )

    def began(self, seq: int, live: int) -> None:
        with self._lock:
            if self.active:
                self._inside[seq] = live

    def around(self, live: int) -> list[int]:
        """The watched steps that enclose what happens inside the live step ``live``."""
        with self._lock:
            return self._around(live)

    def _around(self, live: int) -> list[int]:
        found = []
        while live:
            if live in self._watched:
                found.append(live)
            live = self._inside.get(live, 0)
        return found


def _once(spec: Spec) -> bool:
    """Whether a second call is answered by the first."""
    return bool((spec.signature.get("contract") or {}).get("exactly_once"))
