"""The published JSON Schema (draft 2020-12) of one inter-agent event; ``schema.json`` beside this file is it.

:func:`check` tells whether an event keeps to it, in plain code: whoever reads events needs no validator installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["EVENT_TYPES", "SCHEMA_URI", "check", "check_links", "load", "text"]

#: The ``$id`` of the schema of the version that this tracekit writes.
SCHEMA_URI: Final = "urn:tracekit:inter-agent:1"
#: The six types of event.
EVENT_TYPES: Final = ("task_sent", "task_received", "response_sent", "tool_call", "tool_return", "state_transition")

_PATH: Final = os.path.join(os.path.dirname(__file__), "schema.json")
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)
_SHORT: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


def text() -> str:
    """The schema as it is published."""
    with open(_PATH, encoding="utf-8") as file:
        return file.read()


def load() -> dict[str, Any]:
    """The schema as a dictionary, new each time."""
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

#: Field, whether it must be there, and what it may be.
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
    """What is wrong with an event, or ``None``. Beyond the schema: the short forms must agree with the whole ones."""
    if not isinstance(event, Mapping):
        return "it is no JSON object"
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
    """What is wrong with an event as a node of a graph, or ``None``: quicker than :func:`check`, for what it says is not looked at."""
    if not isinstance(event, Mapping):
        return f"it is no event but {type(event).__name__}"
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
