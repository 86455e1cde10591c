"""What stands in for each ``record()`` of a program that goes on after a crash."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from .._canonical import to_json
from .._engine.redaction import PLACEHOLDER
from .._journal.keys import Keys
from .._journal.runs import Store
from .._session import Record, Replaying, Resuming
from .._session.given import is_input
from ..errors import LiveCallBlockedError, RecoveryRefusedError, RunStateError
from .siblings import Sibling, first_meta, recorded_input, siblings

__all__ = ["Resumers", "check_siblings"]


def check_siblings(store: Store, path: str) -> dict[int, Sibling]:
    """The runs of the program of ``path``; ``RecoveryRefusedError`` where running it again can't be told to be safe.

    The runs that it had finished before are replayed, so each must be there and have an end; runs that it had open at once (a
    server) can't be told apart when it runs again.
    """
    found = siblings(store, path)
    target = next((sibling for sibling in found.values() if sibling.path == path), None)
    if target is None:
        return {}
    line = sorted(found.values())
    for one, next_ in pairwise(line):
        if (one.about.ended_ns or 0) > next_.about.started_ns or one.about.end is None:
            _refuse(
                target, "concurrent_runs", f"the program had {one.about.run_id} and {next_.about.run_id} open at once"
            )
    for ordinal in range(1, target.ordinal):
        before = found.get(ordinal)
        if before is None:
            _refuse(target, "sibling_missing", f"run number {ordinal} of the same program is not in the store")
        elif before.about.end == "run.aborted":
            _refuse(target, "sibling_aborted", f"{before.about.run_id}, an earlier run of the program, was aborted")
    return found


def _refuse(target: Sibling, code: str, text: str) -> None:
    raise RecoveryRefusedError(
        f"resuming run {target.about.run_id} by running its program again is refused: {text}",
        run_id=target.about.run_id,
        reasons=[{"code": code, "text": text}],
        next_action="resume this run alone: tracekit recovery resume RUN --entry module:function",
    )


class Resumers:
    """The finished runs of a program replayed, the one that crashed resumed, later ones recorded."""

    def __init__(self, store: Store, path: str, options: dict[str, Any], resumption: dict[str, Any]) -> None:
        self.resumed: Resuming | None = None
        self.played: list[Replaying] = []
        self._store = store
        self._path = path
        self._replay = options
        self._resumption = resumption
        self._siblings = siblings(store, path)
        self._blocked: LiveCallBlockedError | None = None

    def resume(self, options: dict[str, Any]) -> Resuming:
        """The resumption of the run that crashed, for a ``record()`` with these options."""
        given = {**options, "store": self._store}
        self.resumed = Resuming(self._path, given, None, **self._resumption)
        return self.resumed

    def find(self, block: Record) -> Replaying | Resuming | None:
        """What stands in for this ``record()`` of the program: its ``n``-th."""
        if self.resumed is not None:
            return None
        ordinal = block.ordinal
        sibling = self._siblings.get(ordinal)
        if sibling is None:
            raise RunStateError(
                f"the program opens its record() number {ordinal}, and the store has no run of it",
                next_action="resume in the store where the program was recorded, or with --entry module:function",
            )
        if sibling.path == self._path:
            return self.resume(block.options)
        player = Replaying(sibling.path, self._replay, None)
        self.played.append(player)
        return player

    def input_of(self, ordinal: int) -> Any:
        """What the ``n``-th run of the program was given, as it was: ``None`` where the log does not keep all of it.

        What goes live with a placeholder in the place of a secret would do something else.
        """
        sibling = self._siblings.get(ordinal)
        if self.resumed is not None or sibling is None:
            return None
        given = recorded_input(sibling.path)
        return None if PLACEHOLDER.search(json.dumps(to_json(given))) else given

    def is_input(self, ordinal: int, value: Any) -> bool | None:
        """Whether the ``n``-th run of the program was given this; ``None`` where that can't be told."""
        sibling = self._siblings.get(ordinal)
        if sibling is None:
            return None
        return is_input(Keys(self._store.root), first_meta(sibling.path).get("input_key"), value)

    def outside(self, family: str, name: str) -> None:
        """A captured call before the run has come to the end of its log would be repeated."""
        error = LiveCallBlockedError(
            f"{family} {name!r} was called outside the resumed run, before that had come to the end of its log",
            operation=f"{family} {name}",
            next_action="move the call inside the record() block; or resume with --entry module:function",
        )
        self.blocked(error)
        raise error

    def blocked(self, error: LiveCallBlockedError) -> None:
        for player in self.played:
            if player.active:
                player.session.fail(error)
        if self._blocked is None:
            self._blocked = error

    @property
    def failure(self) -> BaseException | None:
        """What went wrong before anything was live."""
        for player in self.played:
            if player.started and player.session.failure is not None:
                return player.session.failure
        if self.resumed is not None and self.resumed.begun and self.resumed.session.log.failure is not None:
            return self.resumed.session.log.failure
        return self._blocked
