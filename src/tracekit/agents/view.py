"""The inter-agent view of a trace: what agents said to one another and what they did between, one event a line.

It is worked out from the entries and adds nothing to them: messages, changes of state, tool calls and what came of them, each with
the events that it waited for. Those are, in this order: what the entry names as its causes; for a tool's return its call; for a
call inside a call the outer one; and the event before it in its line of execution (its lane). A receipt has no event before it: which of
several workers took a task, and after which other one, is chance, and what follows it in the lane follows from it. Nothing else is taken
for a cause: not time, and not that a task or thread was started, which no entry says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

import orjson

from .._canonical import dumps
from .._journal.reader import Trace
from ..errors import InvalidEventError
from .doubled import DoubledKeyError, once
from .ids import event_id, segment_of_path
from .mentions import Mentions
from .messages import OUTSIDE
from .schema import check

__all__ = ["Event", "View", "dump", "events", "line", "parse"]

#: One event: an object of the inter-agent schema.
Event: TypeAlias = dict[str, Any]

_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent"})
_OUTCOMES: Final = {"tool.return": "ok", "tool.error": "error", "tool.skipped": "skipped"}


class View:
    """The events of one file, entry by entry. ``expand`` puts what references in a value stand for in their place."""

    def __init__(
        self, expand: Callable[[Any, int], Any], segment: str | None = None, *, payloads: bool = False
    ) -> None:
        self._expand: Final = expand
        self._segment: Final = segment
        self._payloads: Final = payloads
        self._run_id = ""
        self._acting = ""
        #: Whether the acting agent is called as the run is, for want of a name of its own.
        self._nameless = False
        self._mentions: Final = Mentions()
        #: Lane → its last event.
        self._last: dict[int, str] = {}
        #: Tool calls by ``seq``: name, agent if one is named.
        self._calls: dict[int, tuple[str, str | None]] = {}
        #: Every entry that may enclose another → the innermost tool call around it (itself, if it is one).
        self._around: dict[int, int] = {}

    def feed(self, entry: Mapping[str, Any]) -> Event | None:
        """The event that ``entry`` is, if it is one. Entries come in order, each once."""
        kind = entry["type"]
        if kind == "run.started":
            self._run_id = entry["run_id"]
            self._mentions.run(self._run_id)
            self._nameless = not entry.get("agent_id")
            self._acting = entry.get("agent_id") or entry.get("name") or self._run_id
        elif kind in _MESSAGES:
            return self._message(entry, kind)
        elif kind == "state_transition":
            states = {"from": entry.get("input"), "to": entry.get("output")}
            return self._event(entry, kind, states, "", self._causes(entry), name=entry["name"])
        elif kind == "tool.call":
            return self._call(entry)
        elif kind in _OUTCOMES:
            return self._return(entry, _OUTCOMES[kind])
        elif kind.endswith((".start", ".request")) and self._calls:
            self._around[entry["seq"]] = self._around.get(entry.get("parent", 0), 0)
        return None

    def _message(self, entry: Mapping[str, Any], kind: str) -> Event:
        other = None if entry["name"] == OUTSIDE else entry["name"]
        side = "sender_agent_id" if kind == "task_received" else "recipient_agent_id"
        if kind == "task_sent" and other is None:
            other = OUTSIDE
        about = {side: other, "task": (entry.get("meta") or {}).get("task")}
        if not isinstance(about["task"], str):
            about["task"] = None
        return self._event(entry, kind, entry.get("output"), "output", self._causes(entry), **about)

    def _call(self, entry: Mapping[str, Any]) -> Event:
        seq = entry["seq"]
        outer = self._around.get(entry.get("parent", 0), 0)
        self._calls[seq] = entry["name"], entry.get("agent_id")
        self._around[seq] = seq
        causes = [*self._causes(entry), *([self._id(outer)] if outer else [])]
        side_effect = (entry.get("meta") or {}).get("side_effect")
        return self._event(
            entry, "tool_call", entry.get("input"), "input", causes, tool=entry["name"], side_effect=side_effect
        )

    def _return(self, entry: Mapping[str, Any], outcome: str) -> Event | None:
        call = self._calls.get(entry["step"])
        if call is None:
            return None
        tool, agent = call
        if "error" in entry:
            error = entry["error"]
            # Not the traceback: lines and places of files differ where the program is the same.
            payload: Any = {"type": error.get("type"), "text": error.get("text")}
            key = "error"
        else:
            payload, key = entry.get("output"), "output"
        called = self._id(entry["step"])
        return self._event(
            entry, "tool_return", payload, key, [called], agent, tool=tool, call_event_id=called, outcome=outcome
        )

    def _event(
        self,
        entry: Mapping[str, Any],
        kind: str,
        payload: Any,
        key: str,
        causes: list[str],
        agent: str | None = None,
        **about: Any,
    ) -> Event:
        seq, lane = entry["seq"], entry["lane"]
        before = None if kind == "task_received" else self._last.get(lane)
        parents = list(dict.fromkeys([*causes, before] if before is not None else causes))
        itself = self._last[lane] = self._id(seq)
        payload = self._expand(payload, seq)
        data = dumps(payload)
        digest = sha256(data).hexdigest()
        agent = entry.get("agent_id") or agent
        event: Event = {
            "event_id": itself,
            "event_type": kind,
            "agent_id": agent or self._acting,
            "timestamp_ns": entry["ts_ns"],
            "parent_event_id": parents[0] if parents else None,
            "parent_event_ids": parents,
            "payload_hash": digest[:16],
            "payload_sha256": digest,
            "payload_ref": self._place(seq, key),
            **about,
        }
        if agent is None and self._nameless:
            event["agent_is_run"] = True
        self._mentions.event(itself)
        told = self._mentions.found(data)
        if told is not None:
            event["comparison_sha256"], event["mentions"] = told
        if self._payloads:
            event["payload"] = payload
        return event

    def _id(self, seq: int) -> str:
        return event_id(self._run_id, self._segment, seq)

    def _place(self, seq: int, key: str) -> str:
        file = self._run_id if self._segment is None else f"{self._run_id}.{self._segment}"
        return f"{file}#{seq}/{key}" if key else f"{file}#{seq}"

    def _causes(self, entry: Mapping[str, Any]) -> list[str]:
        return self._mentions.causes(entry.get("cause"))


def events(*traces: Trace, payloads: bool = False) -> Iterator[Event]:
    """The events of traces (a run's own file, its segments, runs that exchanged messages), file by file in recorded order.

    Broken files raise ``TraceIntegrityError``. ``payloads`` adds each event's payload.
    """
    for trace in traces:
        verdict = trace.check()
        segment = segment_of_path(trace.path, verdict.run_id or "")

        def expand(value: Any, before: int, trace: Trace = trace) -> Any:
            return trace.expand(value, before=before)

        view = View(expand, segment, payloads=payloads)
        for entry in trace.entries():
            event = view.feed(entry)
            if event is not None:
                yield event


def line(event: Mapping[str, Any]) -> bytes:
    """The line of an event: keys sorted, so that one event has one form."""
    return orjson.dumps(event, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def dump(found: Iterable[Mapping[str, Any]]) -> bytes:
    """Events as a file, in the order given; ``graph.ordered`` gives the one that belongs to them."""
    return b"".join(map(line, found))


def parse(data: bytes | str | Iterable[bytes | str]) -> list[Event]:
    """The events of a file (its bytes, its text, or its lines), in its order. ``InvalidEventError`` names the first line that is none."""
    found: list[Event] = []
    if isinstance(data, (bytes, str)):
        # Not str.splitlines: that cuts at characters that may stand inside JSON.
        data = data.split(b"\n") if isinstance(data, bytes) else data.split("\n")
    for number, raw in enumerate(data, 1):
        if number == 1:
            raw = raw.removeprefix("\ufeff") if isinstance(raw, str) else raw.removeprefix(b"\xef\xbb\xbf")
        if not raw.strip():
            continue
        try:
            event = orjson.loads(raw)
            problem = check(event)
            if problem is None:
                json.loads(raw, object_pairs_hook=once)
        except ValueError as error:
            raise _invalid(number, f"it is no JSON: {error}") from None
        except DoubledKeyError as doubled:
            problem = f"the key {doubled.key!r:.80} is there twice"
        if (
            problem is None
            and "payload" in event
            and sha256(dumps(event["payload"])).hexdigest() != event["payload_sha256"]
        ):
            problem = "payload is not what payload_sha256 is the hash of"
        if problem is not None:
            raise _invalid(number, problem, event)
        found.append(event)
    return found


def _invalid(number: int, problem: str, event: Any = None) -> InvalidEventError:
    told = event.get("event_id") if isinstance(event, dict) else None
    ids = (told,) if isinstance(told, str) else ()
    return InvalidEventError(
        f"line {number} is no inter-agent event: {problem}" + "".join(f" (event {one[:80]})" for one in ids),
        line=number,
        problem=problem,
        ids=ids,
        next_action="`tracekit schema inter-agent` prints what a line has to be",
    )
