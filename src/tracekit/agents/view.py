"""The events of a run from the agents' point of view: messages, mentions, and their schema."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import orjson

from ..errors import InvalidEventError
from ..integration import Follower, Trace, canonical_json, meta_of, segment_in, valid_run_id
from .envelope import DoubledKeyError, once
from .ids import event_id, trace_id
from .messages import OUTSIDE

__all__ = [
    "EVENT_SCHEMA_URI",
    "EVENT_TYPES",
    "Event",
    "Mentions",
    "Observed",
    "View",
    "check",
    "check_links",
    "dump",
    "events",
    "line",
    "load",
    "parse",
    "text",
]

# -- mentions ----------------------------------------------------------------------------------------------------------
#
# References to recorded events in a payload: messages and headers that pass through a tool name runs and entries.
#
# They differ in each recording, so payloads can't be compared as they are. ``Mentions`` replaces each in the canonical
# payload by a placeholder, and lists the events separately.

_SEGMENT: Final = rb'(?:null|"([0-9a-f]{16})")'
#: The forms of a message's origin: in its dictionary, as a value of its own, in baggage.
_ORIGIN: Final = re.compile(
    rb'"run_id":"([^"\\]+)","segment":' + _SEGMENT + rb',"seq":([1-9][0-9]{0,15})(?=[,}])'
    rb'|"tracekit\.agents\.ids:Origin","v":\["([^"\\]+)",' + _SEGMENT + rb",([1-9][0-9]{0,15})\]"
    rb'|tracekit\.run=([^,;"\\\s]+)(?:,tracekit\.segment=([0-9a-f]{16}))?,tracekit\.seq=([1-9][0-9]{0,15})(?![0-9])'
)
_ID_IN_TEXT: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PARENT: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-")
#: JSON never contains this byte, so no payload can contain a placeholder.
_HOLE: Final = b"\0%d\0"
_RUN: Final = b"\0run\0"
#: A shorter text is not taken for a run's id: a run may be called "a".
_MIN_RUN_ID: Final = 16


class Mentions:
    """The runs and events of one file that later payloads in it may refer to."""

    def __init__(self) -> None:
        self._runs: Final[dict[bytes, bytes]] = {}
        #: Event ids, and the part of each in a ``traceparent``.
        self._ids: Final[set[str]] = set()
        self._spans: Final[dict[str, str]] = {}

    def run(self, run_id: str) -> None:
        """Register a participating run."""
        self._runs.setdefault(run_id.encode(), trace_id(run_id).encode())

    def event(self, id: str) -> None:
        """Register an event."""
        self._ids.add(id)
        self._spans[id.replace("-", "")[:16]] = id

    def found(self, data: bytes) -> tuple[str, list[str]] | None:
        """Return the hash of a canonical payload without its mentions, and the mentioned events, each once, in order.

        ``None`` if it mentions nothing of a recording.
        """
        named: list[str] = []

        def hole(id: str) -> bytes:
            if id not in named:
                named.append(id)
            return _HOLE % named.index(id)

        def origin(match: re.Match[bytes]) -> bytes:
            run, segment, seq = next(match.groups()[at : at + 3] for at in (0, 3, 6) if match.group(at + 1))
            run_id = unquote(run.decode(), errors="replace") if match.group(7) else run.decode()
            if not valid_run_id(run_id):
                return match.group()
            self.run(run_id)
            id = event_id(run_id, None if segment is None else segment.decode(), int(seq))
            self.event(id)
            return hole(id)

        def parent(match: re.Match[bytes]) -> bytes:
            id = self._spans.get(match[2].decode())
            if match[1] not in self._runs.values():
                return match.group()
            return b"00-" + _RUN + b"-" + (match[2] if id is None else hole(id)) + b"-"

        def known(match: re.Match[bytes]) -> bytes:
            id = match.group().decode()
            return hole(id) if id in self._ids else match.group()

        rest = _ORIGIN.sub(origin, data)
        rest = _ID_IN_TEXT.sub(known, _PARENT.sub(parent, rest))
        for run in self._runs:
            if len(run) >= _MIN_RUN_ID and run in rest:
                rest = re.sub(rb"(?<![\w-])" + re.escape(run) + rb"(?![\w-])", _RUN, rest)
        return None if rest == data else (sha256(rest).hexdigest(), named)

    def causes(self, named: Any) -> list[str]:
        """Return the ids of the events that an entry names as its causes, and register their runs."""
        found = []
        for cause in named or ():
            self.run(cause["run_id"])
            found.append(event_id(cause["run_id"], cause.get("segment"), cause["seq"]))
            self.event(found[-1])
        return found


# -- schema ------------------------------------------------------------------------------------------------------------
#
# The published JSON Schema (draft 2020-12) of one inter-agent event is ``schema.json`` next to this file.
#
# ``check`` checks an event against it in plain code, so that reading events needs no validator.

#: The ``$id`` of the schema of the version that this tracekit writes.
EVENT_SCHEMA_URI: Final = "urn:tracekit:inter-agent:1"
#: The six types of event.
EVENT_TYPES: Final = ("task_sent", "task_received", "response_sent", "tool_call", "tool_return", "state_transition")

_PATH: Final = os.path.join(os.path.dirname(__file__), "schema.json")
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_SHORT: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def text() -> str:
    """Return the schema as published."""
    with open(_PATH, encoding="utf-8") as file:
        return file.read()


def load() -> dict[str, Any]:
    """Return the schema as a dictionary, a new one each time."""
    import orjson

    schema: dict[str, Any] = orjson.loads(text())
    return schema


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _matches(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _instant(value: Any) -> bool:
    return type(value) is int and value >= 0


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_id, value)) and len(set(value)) == len(value)


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values and (value is None or isinstance(value, str))


_id: Final = _matches(_ID)
_Field = tuple[str, bool, Callable[[Any], bool]]

#: Field, whether it is required, and what it may be.
_ALWAYS: Final[tuple[_Field, ...]] = (
    ("event_id", True, _id),
    ("event_type", True, _one_of(*EVENT_TYPES)),
    ("agent_id", True, _text),
    ("timestamp_ns", True, _instant),
    ("parent_event_id", True, lambda value: value is None or _id(value)),
    ("parent_event_ids", True, _ids),
    ("payload_hash", True, _matches(_SHORT)),
    ("payload_sha256", True, _matches(_WHOLE)),
    ("payload_ref", True, _text_or_null),
    ("agent_is_run", False, lambda value: value is True),
    ("comparison_sha256", False, _matches(_WHOLE)),
    ("mentions", False, _ids),
)
_NEEDED: Final = frozenset(name for name, needed, _ in _ALWAYS if needed)
_OF_TYPE: Final[dict[str, tuple[_Field, ...]]] = {
    "task_sent": (("recipient_agent_id", True, _text), ("task", False, _text_or_null)),
    "task_received": (("sender_agent_id", True, _text_or_null), ("task", False, _text_or_null)),
    "response_sent": (("recipient_agent_id", True, _text_or_null), ("task", False, _text_or_null)),
    "tool_call": (
        ("tool", True, _text),
        ("side_effect", False, _one_of("read_only", "reversible", "irreversible", None)),
    ),
    "tool_return": (
        ("tool", True, _text),
        ("call_event_id", True, _id),
        ("outcome", True, _one_of("ok", "error", "skipped")),
    ),
    "state_transition": (("name", True, _text),),
}


def check(event: Any) -> str | None:
    """Return what is wrong with an event, or ``None``. In addition to the schema, the short forms must agree with the
    long ones."""
    if not isinstance(event, Mapping):
        return "it is not a JSON object"
    problem = _wrong(event, _ALWAYS) or _wrong(event, _OF_TYPE[event["event_type"]])
    if problem is not None:
        return problem
    problem = _first_parent(event)
    if problem is not None:
        return problem
    if event["payload_sha256"][:16] != event["payload_hash"]:
        return "payload_hash is not the beginning of payload_sha256"
    return None


def check_links(event: Any) -> str | None:
    """Return what is wrong with an event as a node of a graph, or ``None``: faster than ``check``, since the content is
    not checked."""
    if not isinstance(event, Mapping):
        return f"it is not an event but {type(event).__name__}"
    if not event.keys() >= _NEEDED:
        return f"{next(name for name, _, _ in _ALWAYS if name not in event and name in _NEEDED)} is missing"
    if not isinstance(event["event_id"], str):
        return f"event_id can't be {event['event_id']!r:.80}"
    parents = event["parent_event_ids"]
    if not isinstance(parents, (list, tuple)) or not all(isinstance(parent, str) for parent in parents):
        return f"parent_event_ids can't be {parents!r:.80}"
    return _first_parent(event)


def _first_parent(event: Mapping[str, Any]) -> str | None:
    parents = event["parent_event_ids"]
    if event["parent_event_id"] != (parents[0] if parents else None):
        return "parent_event_id is not the first of parent_event_ids"
    return None


def _wrong(event: Mapping[str, Any], fields: tuple[_Field, ...]) -> str | None:
    for name, needed, right in fields:
        if name not in event:
            if needed:
                return f"{name} is missing"
        elif not right(event[name]):
            return f"{name} can't be {event[name]!r:.80}"
    return None


# -- view --------------------------------------------------------------------------------------------------------------
#
# The inter-agent view of a trace: messages, changes of state, tool calls and their results, one event per line.
#
# It is computed from the entries and adds nothing to them. Each event has its parents, in this order: the causes that
# the entry names; for a tool's return its call; for a call inside a call the outer one; and the previous event in its
# lane. A receipt has no previous event: which of several workers took a task, and after which other one, is a matter of
# chance. Nothing else counts as a cause: not time, and not the start of a task or thread, which has no entry.

#: One event: an object of the inter-agent schema.
Event: TypeAlias = dict[str, Any]

_MESSAGES: Final = frozenset({"task_sent", "task_received", "response_sent"})
_OUTCOMES: Final = {"tool.return": "ok", "tool.error": "error", "tool.skipped": "skipped"}


class View:
    """The events of one file, entry by entry. ``expand`` resolves the references in a value."""

    def __init__(
        self, expand: Callable[[Any, int], Any], segment: str | None = None, *, payloads: bool = False
    ) -> None:
        self._expand: Final = expand
        self._segment: Final = segment
        self._payloads: Final = payloads
        self._run_id = ""
        self._acting = ""
        #: Whether the acting agent has the run's name because it has none of its own.
        self._nameless = False
        self._mentions: Final = Mentions()
        #: The last event of each lane.
        self._last: dict[int, str] = {}
        #: Tool calls by ``seq``: name, and agent if one is named.
        self._calls: dict[int, tuple[str, str | None]] = {}
        #: For every entry that may enclose another, the innermost tool call around it (itself, if it is one).
        self._around: dict[int, int] = {}

    def feed(self, entry: Mapping[str, Any]) -> Event | None:
        """Return the event that ``entry`` represents, or ``None``. Entries must come in order, each once."""
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
        about = {side: other, "task": meta_of(entry).get("task")}
        if not isinstance(about["task"], str):
            about["task"] = None
        return self._event(entry, kind, entry.get("output"), "output", self._causes(entry), **about)

    def _call(self, entry: Mapping[str, Any]) -> Event:
        seq = entry["seq"]
        outer = self._around.get(entry.get("parent", 0), 0)
        self._calls[seq] = entry["name"], entry.get("agent_id")
        self._around[seq] = seq
        causes = [*self._causes(entry), *([self._id(outer)] if outer else [])]
        side_effect = meta_of(entry).get("side_effect")
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
            # Without the traceback: lines and paths of files may differ for the same program.
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
        data = canonical_json(payload)
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
        mentioned = self._mentions.found(data)
        if mentioned is not None:
            event["comparison_sha256"], event["mentions"] = mentioned
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
    """Yield the events of traces (a run's own file, its segments, runs that exchanged messages), file by file in
    recorded order.

    Raises ``TraceIntegrityError`` for damaged files. ``payloads`` adds each event's payload.
    """
    for trace in traces:
        trace.check()
        segment = segment_in(trace.path)

        def expand(value: Any, before: int, trace: Trace = trace) -> Any:
            return trace.expand(value, before=before)

        view = View(expand, segment, payloads=payloads)
        for entry in trace.entries():
            event = view.feed(entry)
            if event is not None:
                yield event


def line(event: Mapping[str, Any]) -> bytes:
    """Return the line of an event: keys sorted, so that one event has one form."""
    return orjson.dumps(event, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def dump(found: Iterable[Mapping[str, Any]]) -> bytes:
    """Return events as a file, in the given order; ``graph.ordered`` returns the canonical one."""
    return b"".join(map(line, found))


def parse(data: bytes | str | Iterable[bytes | str]) -> list[Event]:
    """Return the events of a file (its bytes, its text, or its lines), in its order.

    Raises ``InvalidEventError`` with the first line that is invalid.
    """
    found: list[Event] = []
    if isinstance(data, (bytes, str)):
        # Not str.splitlines: that splits at characters that may be inside JSON.
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
            raise _invalid(number, f"it is not JSON: {error}") from None
        except DoubledKeyError as doubled:
            problem = f"the key {doubled.key!r:.80} is there twice"
        if (
            problem is None
            and "payload" in event
            and sha256(canonical_json(event["payload"])).hexdigest() != event["payload_sha256"]
        ):
            problem = "payload is not what payload_sha256 is the hash of"
        if problem is not None:
            raise _invalid(number, problem, event)
        found.append(event)
    return found


def _invalid(number: int, problem: str, event: Any = None) -> InvalidEventError:
    id = event.get("event_id") if isinstance(event, dict) else None
    ids = (id,) if isinstance(id, str) else ()
    return InvalidEventError(
        f"line {number} is not an inter-agent event: {problem}" + "".join(f" (event {one[:80]})" for one in ids),
        line=number,
        problem=problem,
        ids=ids,
        next_action="`tracekit schema inter-agent` prints the schema of a line",
    )


# -- following a run --------------------------------------------------------------------------------------------------------------
#
# Inter-agent events of a run that is still being written.


class Observed:
    """A run that is being written, its inter-agent events passed to ``observer`` one by one, once each is in the file.

    An observer never breaks what it observes: the first exception that it raises is passed to ``warn``, and it is not
    called again.
    """

    def __init__(
        self, path: str, run_id: str, observer: Callable[[Event], object], warn: Callable[[str], object]
    ) -> None:
        self._observer: Callable[[Event], object] | None = observer
        self._warn: Final = warn
        self._follower: Final = Follower(path, self._read)
        self._view: Final = View(self._follower.expand, segment_in(path))

    def poll(self) -> None:
        """Deliver new events."""
        if self._observer is not None:
            self._follower.poll()

    def close(self) -> None:
        """Deliver the rest. Idempotent."""
        self._follower.close()

    def _read(self, entry: dict[str, Any]) -> None:
        event = self._view.feed(entry)
        if event is None or self._observer is None:
            return
        try:
            self._observer(event)
        except Exception as error:
            self._observer = None
            self._warn(f"the observer of inter-agent events failed and is not called again: {error!r}")
