"""What an agent that failed had done: whether anything in it can't be undone, as the log says.

Its steps have classes of their own. Where one of them was irreversible, nobody may stand in for the agent, whatever its class is.
What undid another (a resumption undoes a step that was cut off inside it) is no reason, whatever its own class is, unless it failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from .._engine.scope import Scope
from .._journal.entry import family_of
from .._journal.reader import Trace

__all__ = ["Inside", "Place", "past"]


class Inside:
    """What was found: the name of the first irreversible step, and the first that may take effect yet.

    That is one that was given up though its thread goes on, or one that has begun and not ended.
    """

    __slots__ = ("in_doubt", "irreversible")

    def __init__(self) -> None:
        self.irreversible: str | None = None
        self.in_doubt: str | None = None


def past(session: Any) -> Trace | None:
    """The log that answers in a session, or did before it was followed to its end; ``None`` where everything is new."""
    for holder in (session, getattr(session, "log", None), getattr(session, "replay", None)):
        trace: Trace | None = getattr(holder, "trace", None)
        if trace is not None:
            return trace
    return None


class Place:
    """Where in the log an attempt of the agent ``name`` is: between the entry ``seq`` and its end."""

    __slots__ = ("_found", "_lane", "_name", "_offset", "_parent", "_path")

    def __init__(self, scope: Scope, seq: int, name: str) -> None:
        self._lane: Final = scope.lane.id
        self._parent: Final = scope.parent
        self._name: Final = name
        self._found: Inside | None = None
        session: Any = scope.session
        trace = past(session)
        if trace is not None and seq <= len(trace):
            self._path, self._offset = trace.path, trace.end_of(seq)
        else:
            self._path = session.journal.path
            self._offset = os.path.getsize(self._path)

    def inside(self) -> Inside:
        """What the log says of the attempt, up to its end."""
        if self._found is None:
            self._found = self._look()
        return self._found

    def _look(self) -> Inside:
        found = Inside()
        lanes, inside = {self._lane}, set[int]()
        under_way: dict[int, str] = {}
        undoing: dict[int, int] = {}  # of a step that undoes another, and of each inside it: that one
        not_undone: dict[int, str] = {}
        for entry in self._entries():
            kind, parent = entry.get("type", ""), entry.get("parent")
            if kind == "lane" and parent == self._parent and entry["lane"] in lanes:
                lanes.add(entry["input"]["id"])
            role = family_of(kind)
            begins = role is not None and role[1] == "intention"
            under_way.pop(
                entry.get("step", 0), None
            )  # a first piece counts: between two of them nothing goes on by itself
            if entry.get("step") in inside and _is_in_doubt(entry):
                found.in_doubt = found.in_doubt or str(entry.get("step"))
            if role is not None and role[1] == "outcome":
                not_undone.pop(entry.get("step", 0), None)
            if parent in inside:
                inside.add(entry["seq"])
                if parent in undoing or (begins and _undoes(entry)):
                    undoing[entry["seq"]] = undoing.get(parent, entry["seq"])
                if begins and _stays(entry) and entry["seq"] in undoing:
                    not_undone.setdefault(undoing[entry["seq"]], str(entry.get("name")))
                elif begins and _stays(entry):
                    found.irreversible = found.irreversible or str(entry.get("name"))
                elif begins and (entry.get("meta") or {}).get("side_effect") in ("reversible", "irreversible"):
                    under_way[entry["seq"]] = str(entry.get("name"))
            elif parent == self._parent and entry.get("lane") in lanes:
                if kind == "agent.attempt.end" and entry["lane"] == self._lane:
                    break
                if begins and entry.get("name") == self._name and not _undoes(entry):
                    inside.add(entry["seq"])
        found.irreversible = found.irreversible or next(iter(not_undone.values()), None)
        found.in_doubt = found.in_doubt or next(iter(under_way.values()), None)
        return found

    def _entries(self) -> Iterator[dict[str, Any]]:
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if line.endswith(b"\n"):
                    yield orjson.loads(line)


def _stays(entry: Mapping[str, Any]) -> bool:
    """Whether a step does something that a second call would do again."""
    meta = entry.get("meta") or {}
    return meta.get("side_effect") == "irreversible" and not (meta.get("contract") or {}).get("exactly_once")


def _is_in_doubt(entry: Mapping[str, Any]) -> bool:
    """Whether an outcome says that the call goes on, and may take effect yet."""
    info = (entry.get("meta") or {}).get("info") or {}
    return bool(info.get("in_doubt") and info.get("final"))


def _undoes(entry: Mapping[str, Any]) -> bool:
    return "compensates" in ((entry.get("meta") or {}).get("info") or {})
