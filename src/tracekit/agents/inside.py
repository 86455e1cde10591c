"""What an agent without a side-effect class did: whether anything in it can't be undone, as its log says.

Its steps have classes of their own. Where one of them was irreversible, nobody may stand in for the agent that failed after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import orjson

from .._engine.scope import Scope
from .._journal.entry import family_of

__all__ = ["Place"]


class Place:
    """Where in the log an attempt begins: right after the entry ``seq``."""

    __slots__ = ("_lane", "_offset", "_parent", "_path")

    def __init__(self, scope: Scope, seq: int) -> None:
        self._lane: Final = scope.lane.id
        self._parent: Final = scope.parent
        session: Any = scope.session
        trace = getattr(session, "trace", None)
        if trace is not None and seq <= len(trace):  # a replay, or what it goes on from
            self._path, self._offset = trace.path, trace.end_of(seq)
        else:
            self._path = session.journal.path
            self._offset = os.path.getsize(self._path)

    def irreversible(self) -> str | None:
        """The name of the first irreversible step in the span that begins here; ``None`` where there is none."""
        inside: set[int] = set()
        span = 0
        for entry in self._entries():
            kind, parent = entry.get("type", ""), entry.get("parent")
            if not span:
                if kind == "span.start" and parent == self._parent and entry.get("lane") == self._lane:
                    span = entry["seq"]
                    inside.add(span)
                continue
            if kind == "span.end" and entry.get("step") == span:
                return None
            if parent not in inside:
                continue
            inside.add(entry["seq"])
            role = family_of(kind)
            if role is not None and role[1] == "intention" and _class(entry) == "irreversible":
                return str(entry.get("name"))
        return None

    def _entries(self) -> Iterator[dict[str, Any]]:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if line.endswith(b"\n"):
                    yield orjson.loads(line)


def _class(entry: dict[str, Any]) -> Any:
    return (entry.get("meta") or {}).get("side_effect")
