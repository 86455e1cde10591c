"""The runs of one program, each replayed from its own file, and the watch over a program that does not end."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from .._journal.runs import Store
from .._session import Record, Replaying, children
from ..errors import LiveCallBlockedError, RunStateError
from .siblings import recorded_input, siblings

__all__ = ["Players", "Watchdog", "spelled"]

_really_exit: Final = os._exit


class Players:
    """The runs of one program, each replayed from its own file when the program opens it."""

    def __init__(
        self,
        store: Store,
        path: str,
        options: dict[str, Any],
        break_at: int | None,
        make: Callable[[str, dict[str, Any]], Replaying] | None = None,
    ) -> None:
        self.played: list[Replaying] = []
        self._store = store
        self._options = options
        self._break_at = break_at
        self._path = path
        self._make = make or (lambda path, options: Replaying(path, options, None))
        self._siblings = {ordinal: one.path for ordinal, one in siblings(store, path).items()}
        self._blocked: LiveCallBlockedError | None = None

    def of(self, path: str) -> Replaying:
        player = self._make(path, self._options)
        player.break_at = self._break_at if path == self._path else None
        self.played.append(player)
        return player

    def find(self, block: Record) -> Replaying:
        """The replay that stands in for this ``record()`` of the program: its ``n``-th."""
        ordinal = block.ordinal
        path = self._siblings.get(ordinal)
        if path is None:
            raise RunStateError(
                f"the program opens its record() number {ordinal}, and the store has no run of it",
                next_action="replay in the store where the program was recorded, or name one run with --entry",
            )
        return self.of(path)

    def input_of(self, ordinal: int) -> Any:
        """What the ``n``-th run of the program was given, where the store has it."""
        path = self._siblings.get(ordinal)
        return None if path is None else recorded_input(path)

    def outside(self, family: str, name: str) -> None:
        """A captured call outside every replayed run would be live."""
        error = LiveCallBlockedError(
            f"{family} {name!r} was called outside the replayed run",
            operation=f"{family} {name}",
            next_action="move the call inside the record() block; under a replay nothing is called live",
        )
        self.blocked(error)
        raise error

    def blocked(self, error: LiveCallBlockedError) -> None:
        open_ones = [player for player in self.played if player.active]
        for player in open_ones:
            player.session.fail(error)
        if not open_ones and self._blocked is None:
            self._blocked = error

    @property
    def started(self) -> list[Replaying]:
        return [player for player in self.played if player.started]

    @property
    def failure(self) -> BaseException | None:
        for player in self.started:
            if player.session.failure is not None:
                return player.session.failure
        return self._blocked

    def expected(self, error: BaseException) -> bool:
        """Whether the recorded run ended with this error too."""
        return any(player.recorded_failure(error) for player in self.started)


class Watched(Protocol):
    """What may fail while its program goes on: the first failure, if there is one."""

    @property
    def failure(self) -> BaseException | None: ...


class Watchdog:
    """Ends a program that has not ended ``grace`` seconds after the replay's first failure, one in a process that it has started
    included: its stacks on stderr, its processes with it.
    """

    def __init__(self, players: Watched, grace: float) -> None:
        self._players = players
        self._grace = grace
        self._over = threading.Lock()
        self._over.acquire()
        threading.Thread(target=self._watch, name="tracekit-watchdog", daemon=True).start()

    def _watch(self) -> None:
        waited = 0.0
        while not self._over.acquire(timeout=0.25):
            children.heed()
            failure = self._players.failure
            waited = waited + 0.25 if failure is not None else 0.0
            if waited >= self._grace:
                print(spelled(failure), file=sys.stderr)
                print(f"tracekit: the program has not ended {self._grace:g} s after that; it is ended", file=sys.stderr)
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                sys.stderr.flush()
                children.abandon()
                _really_exit(1)

    def stop(self) -> None:
        if self._over.locked():
            self._over.release()


def spelled(failure: BaseException | None) -> str:
    """A failure's text, with what it advises in the words of the command line."""
    text = str(failure)
    for library, here in (
        ("replay(..., guard='off')", "`tracekit replay --guard off`"),
        ("replay(..., guard='context')", "`tracekit replay --guard context`"),
        ("replay without dry_run", "replay without --no-writes"),
        ('leave "environment" out of strict', "leave out --strict environment"),
        ('leave "order" out of strict', "leave out --strict order"),
        ('leave "clock" out of strict', "leave out --strict clock"),
    ):
        text = text.replace(library, here)
    head, found, rest = text.partition("replay(..., allow_hosts=[")
    if found:
        host, _, tail = rest.partition("])")
        text = f"{head}`tracekit replay --allow-host {host.strip(chr(39) + chr(34))}`{tail}"
    return text
