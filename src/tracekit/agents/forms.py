"""Additional forms of agents' runs for the command line.

Inter-agent events, recordings of agentloom, execution records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ..errors import GraphError, RunNotFoundError, TraceError
from ..integration import Form, Trace, segment_in
from . import agentloom, graph, record, view

__all__ = ["agentloom_form", "execution_form", "inter_agent_form"]

#: A longer first line is not an event.
_MAX_LINE: Final = 8 << 20
_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent", "state_transition"})


class InterAgent(Form):
    """The events of agents in causal order, JSON lines."""

    name = "inter-agent"
    summary = "the events of agents in causal order, JSON lines."
    payloads = True

    def export(self, traces: Sequence[Trace], *, payloads: bool = False) -> Iterable[bytes]:
        return [graph.serialize(agentloom.events_of(traces, payloads))]

    def schema(self) -> Mapping[str, Any]:
        return view.load()

    def compared(self, trace: Trace, entries: Iterable[Mapping[str, Any]]) -> bytes | None:
        def expand(value: Any, before: int) -> Any:
            return trace.expand(value, before=before)

        seen = view.View(expand, segment_in(trace.path))
        found, spoke = [], False
        for entry in entries:
            spoke = spoke or entry["type"] in _MESSAGES
            event = seen.feed(entry)
            if event is not None:
                found.append(event)
        if not spoke:
            return None
        try:
            return view.dump(graph.ordered(found))
        except GraphError:  # their causes are in runs that are not compared
            return view.dump(found)

    def recognises(self, path: str) -> bool:
        first = _first(path)
        return first is not None and "event_id" in first

    def recorded(self, path: str) -> list[bytes]:
        try:
            with open(path, "rb") as file:
                return [*map(view.line, graph.ordered(view.parse(file.read())))]
        except OSError as error:
            raise TraceError(
                f"{path} can't be read: {error.strerror}", path=path, next_action="name another file"
            ) from None


class Agentloom(Form):
    """A recording of agentloom; a run imported from one has the form, too."""

    name = "agentloom"
    summary = "a recording of agentloom."

    def export(self, traces: Sequence[Trace], *, payloads: bool = False) -> Iterable[bytes]:
        return [agentloom.exported(*traces).dumps().encode()]

    def recognises(self, path: str) -> bool:
        first = _first(path)
        if first is None:
            return _whole(path) is not None
        if "run_id" not in first or "seq" not in first:
            return "event_id" not in first and _whole(path) is not None
        try:
            with Trace(path) as trace:
                return bool(agentloom.origin(trace))
        except (IndexError, RunNotFoundError):
            return False

    def recorded(self, path: str) -> list[bytes]:
        recording = _recording(path)
        found = [
            _line(key, number, turn)
            for key in sorted(recording.answers)
            for number, turn in enumerate(recording.turns(key), 1)
        ]
        found += [view.line(event) for event in recording.events or ()]
        if not found:
            raise TraceError(
                f"{path} contains no answer and no event: nothing is recorded in it",
                path=path,
                next_action="name a trace, a recording of agentloom or a file of inter-agent events",
            )
        return found

    def served(self, path: str) -> list[bytes]:
        recording = _recording(path)
        with recording.replay() as replay:
            found = [
                _line(key, number, replay.complete(None, step_id=key))
                for key in sorted(recording.answers)
                for number in range(1, len(recording.turns(key)) + 1)
            ]
        return found + [view.line(event) for event in recording.events or ()]


class ExecutionRecords(Form):
    """Routed requests as documents; see ``tracekit.agents.ExecutionRecord``."""

    name = "execution"

    def schema(self) -> Mapping[str, Any]:
        return record.schema()


inter_agent_form: Final = InterAgent()
agentloom_form: Final = Agentloom()
execution_form: Final = ExecutionRecords()


def _first(path: str) -> dict[str, Any] | None:
    """Return the object in the first line of a file, or ``None``."""
    try:
        with open(path, "rb") as file:
            return _object(file.readline(_MAX_LINE))
    except OSError:
        return None


def _whole(path: str) -> dict[str, Any] | None:
    """Return the object that the whole file contains, or ``None``."""
    try:
        with open(path, "rb") as file:
            return _object(file.read())
    except OSError:
        return None


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _recording(path: str) -> agentloom.Recording:
    first = _first(path)
    if first is None or "run_id" not in first or "seq" not in first:
        return agentloom.load(path)
    with Trace(os.path.abspath(path)) as trace:
        return agentloom.exported(trace)


def _line(key: str, number: int, turn: dict[str, Any]) -> bytes:
    return json.dumps({"key": key, "turn": number, "answer": turn}, sort_keys=True).encode() + b"\n"
