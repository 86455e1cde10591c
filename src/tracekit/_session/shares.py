"""What the calls of a pool share: each is handed what was left when it was handed over, and the ones before it have spent of that since.

Whoever hands a call over says which calls of the same budget went before it and are not counted yet; the worker that makes it looks into
their segments. Calls that are made side by side may overshoot all the same: a worker looks when its call begins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from .._engine.spending import Spending
from .._journal.names import segment_of
from .._journal.reader import Trace
from .._journal.runs import Store
from ..errors import TraceError
from .child import is_open

__all__ = ["Handed", "take_off"]

#: In a worker, which is of one run: what the calls that have ended took, by their lanes.
_known: Final[dict[str, Spending]] = {}


class Handed:
    """The calls that were handed over under one ledger and are not counted yet: of each name, from which number to which, and
    those between that are none of them."""

    def __init__(self) -> None:
        self._ranges: Final[dict[str, tuple[int, int, set[int]]]] = {}

    def as_dict(self) -> dict[str, Any]:
        return {name: [first, last, sorted(but)] for name, (first, last, but) in self._ranges.items() if first <= last}

    def add(self, path: str) -> None:
        name, number = _split(path)
        first, last, but = self._ranges.get(name, (number, number - 1, set()))
        but.update(range(last + 1, number))  # of another ledger
        self._ranges[name] = first, number, but

    def counted(self, path: str) -> None:
        name, number = _split(path)
        first, last, but = self._ranges.get(name, (0, -1, set()))
        if first <= number <= last:
            but.add(number)
            while first in but:
                but.remove(first)
                first += 1
            self._ranges[name] = first, last, but


def _split(path: str) -> tuple[str, int]:
    name, _, number = path.rpartition("#")
    return (name, int(number)) if number.isdigit() else (path, 0)


def take_off(spending: Spending, store: Store, run_id: str, place: Mapping[str, Any]) -> None:
    """Take from what a call was handed what the calls before it have spent since."""
    for name, (first, last, but) in place["beside"].items():
        for number in range(first, last + 1):
            if number not in but:
                lane = f"{name}#{number}"
                found = _known.get(lane) or _taken(spending, lane, store.path(run_id, segment_of(lane)))
                if found is not None:
                    spending.add(found)


def _taken(spending: Spending, lane: str, path: str) -> Spending | None:
    found = None
    if os.path.exists(path):
        with suppress(TraceError, OSError):
            ended = not is_open(path)
            found = Spending(spending.budget, name=spending.name, prices=spending.prices)
            with Trace(path) as trace:
                found.read(islice(trace.entries(), trace.status.count))
            if ended:
                _known[lane] = found
    return found
