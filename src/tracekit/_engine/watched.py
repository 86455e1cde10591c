"""What is done in calls of which no log tells: outside every run, or in a run of its own.

A call that may be made again, or that somebody may stand in for, is watched while its body runs: whether something that
can't be undone has begun in it, by name. In a run the log says that; see ``_engine.nested``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

from ..errors import RunEndedError

__all__ = ["Watch", "begins", "running", "watched"]

#: The attempts whose bodies are running, those included whose threads go on though they were given up.
running: Final[set[Watch]] = set()


class Watch:
    """One attempt at a call, from the beginning of its body to its end. Tasks that it starts see it too, and threads with its context."""

    __slots__ = ("_before", "in_doubt", "irreversible", "working")

    def __init__(self) -> None:
        self._before: Watch | None = None
        #: The first irreversible call that has begun in there.
        self.irreversible: str | None = None
        #: The first call in there that was given up, and may take effect yet.
        self.in_doubt: str | None = None
        #: Where nobody waits for it any longer: whether its thread still goes on.
        self.working: Callable[[], bool] | None = None

    def begin(self) -> None:
        """From here on this context is watched."""
        self._before = watched.get()
        watched.set(self)
        running.add(self)

    def end(self) -> None:
        if self.working is None or not self.working():  # else when its thread has come to its end
            running.discard(self)
        watched.set(self._before)  # no reset: see ``scope.enter``

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()

    def around(self) -> Iterator[Watch]:
        """This one and those around it, innermost first."""
        one: Watch | None = self
        while one is not None:
            yield one
            one = one._before

    def doubt(self, name: str) -> None:
        """A call in here was given up, and may take effect yet."""
        for one in self.around():
            one.in_doubt = one.in_doubt or name


def begins(watch: Watch | None, name: str, side_effect: str | None) -> None:
    """An effect is about to begin in there. ``RunEndedError`` if it comes too late.

    ``None``: nothing says in what. A thread or callback that has lost its context may be of any attempt that is running, and then none
    of them is made again: one time too few is better than one too many.
    """
    if watch is None:
        if side_effect == "irreversible":
            for one in [*running]:
                one.irreversible = one.irreversible or name
        return
    if any(one.working is not None and one.working() for one in watch.around()):
        raise RunEndedError(
            f"{name!r} ({side_effect}) was called inside a call that had been given up when its time was over; "
            "it was not executed",
            next_action="give the call more time, or make its function look at a deadline itself",
        )
    if side_effect == "irreversible":
        for one in watch.around():
            one.irreversible = one.irreversible or name


#: The innermost watch of the running code.
watched: Final[ContextVar[Watch | None]] = ContextVar("tracekit.watched", default=None)
