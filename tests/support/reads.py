"""A session that only answers reads: it records them in a list, or serves a list. And programs to read in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tracekit._capture import clock, randomness
from tracekit._runtime.lane import Lane
from tracekit._runtime.session import RunState, enter, owner
from tracekit.integration import Scope, current

NUMPY = randomness.NUMPY


class Reads:
    """Records what is read as ``(function, value)``; with ``served``, answers from there and calls the real one for rng."""

    run_id = "reads"
    progress = None

    def __init__(self, served: list[tuple[str, Any]] | None = None) -> None:
        self.log: list[tuple[str, Any]] = []
        self.left = None if served is None else [read for read in served if read[0] != NUMPY]
        self.kept = dict(served or ())
        self.state = RunState(live=served is None)

    @property
    def recording(self) -> bool:
        return self.left is None

    def clock_read(self, scope: Scope, function: str, real: Callable[[], Any]) -> Any:
        return self._answer(function, real, rng=False)

    def library_clock(self, scope: Scope, function: str, library: str | None, real: Callable[[], Any]) -> Any:
        """What a library reads for a time limit is no read of the program."""
        return real()

    def library_draw(self, scope: Scope, function: str, library: str, real: Callable[[], Any]) -> Any:
        return real()

    def random_read(self, scope: Scope, function: str, real: Callable[[], Any]) -> Any:
        return self._answer(function, real, rng=True)

    def snapshot(self, name: str, state: Any) -> Any:
        if self.left is None:
            self.log.append((name, state))
            return None
        return self.kept.get(name)

    def _answer(self, function: str, real: Callable[[], Any], *, rng: bool) -> Any:
        if self.left is None:
            value = real()
        else:
            if rng:
                real()
            recorded, value = self.left.pop(0)
            assert recorded == function, f"recorded {recorded}, read {function}"
        self.log.append((function, value))
        return value

    @property
    def names(self) -> list[str]:
        return [name for name, _value in self.log]


def scope_of(session: Any, *, live: int = 0) -> Scope:
    return Scope(session, Lane("", 0, None, id=0, owner=owner()), 1, None, live)


@contextmanager
def reading(served: list[tuple[str, Any]] | None = None, *, live: int = 0) -> Iterator[Reads]:
    """The hooks in and a session active for the block; everything restored after it, whatever happens."""
    session = Reads(served)
    clock.hooks.activate()
    randomness.hooks.activate()
    token = enter(scope_of(session, live=live))
    try:
        yield session
    finally:
        current.reset(token)
        randomness.hooks.deactivate()
        clock.hooks.deactivate()
