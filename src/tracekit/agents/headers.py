"""Messages over any transport that has headers: W3C ``traceparent`` and ``baggage``.

``baggage`` says where the message stands (run, segment, entry) and who sent what to whom; the payload is the body's affair. A
``traceparent`` is set where there is none, so that other tools see one trace; one that is there already stays as it is. What other
members ``baggage`` has stay, too.

What comes in is untrusted. Headers that say nothing of tracekit are a message from outside every run; headers that do, and are malformed,
are an ``InvalidMessageError``: they were cut or made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from ..errors import InvalidMessageError
from .ids import Origin, trace_id
from .messages import Message, MessageType, as_message, origin_of

__all__ = ["Headers", "extract", "inject"]

#: What frameworks have for headers: something with ``items()``, or pairs; names and values are text or bytes.
Headers: TypeAlias = Any

_PREFIX: Final = "tracekit."
_FIELDS: Final = ("run", "segment", "seq", "type", "sender", "recipient", "task")
#: What may stand unquoted in a baggage value, beyond what ``quote`` leaves alone.
_SAFE: Final = "!#$&'()*+/:<=>?@[]^`{|}"
_VALUE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*", re.ASCII)
_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
#: The limits of the W3C recommendation: what a receiver need not take.
_LONGEST: Final = 8192
_TYPES: Final[dict[str, MessageType]] = {
    "sent": "task_sent",
    "received": "task_received",
    "response": "response_sent",
    "transition": "state_transition",
}
_WORDS: Final = {kind: word for word, kind in _TYPES.items()}


def inject(headers: MutableMapping[str, str], message: Message) -> MutableMapping[str, str]:
    """Put ``message``, but for its payload, into the headers of a request or answer; returns ``headers``.

    Raises ``InvalidMessageError`` where ``baggage`` would be longer than the 8,192 bytes that receivers must take.
    """
    message = as_message(message, "inject()")
    name, others = _present(headers)
    members = [*others, *(f"{_PREFIX}{key}={quote(value, safe=_SAFE)}" for key, value in _told(message))]
    baggage = ",".join(members)
    if len(baggage) > _LONGEST:
        raise InvalidMessageError(
            f"the baggage of this message is {len(baggage)} bytes long; {_LONGEST} may be sent",
            next_action="use shorter names of agents and tasks, or send Message.as_dict() in the body",
        )
    headers[name] = baggage
    origin = message.origin
    if origin is not None:
        there = next((key for key in headers if key.lower() == "traceparent"), "traceparent")
        ours = f"00-{trace_id(origin.run_id)}-"
        if there not in headers or headers[there].startswith(ours):
            headers[there] = f"{ours}{_span(origin)}-01"
    return headers


def extract(headers: Headers, payload: Any = None) -> Message:
    """The message that headers brought, with ``payload`` as what the body said.

    Where they say nothing of tracekit this is a message from outside: its ``origin`` is ``None``. ``InvalidMessageError`` where what they
    say can't be.
    """
    found = _collected(headers)
    members = _members(found.get("baggage", []))
    if not members:
        return Message("task_sent", None, None, payload)
    origin = _origin(members)
    _agree(found.get("traceparent", []))
    kind = _TYPES.get(members.get("type", "sent"))
    if kind is None:
        raise _malformed(f"{members['type']!r:.80} is no type of message")
    return Message(kind, members.get("sender"), members.get("recipient"), payload, members.get("task"), origin)


def _told(message: Message) -> Iterable[tuple[str, str]]:
    origin = message.origin
    if origin is not None:
        yield "run", origin.run_id
        if origin.segment is not None:
            yield "segment", origin.segment
        yield "seq", str(origin.seq)
    yield "type", _WORDS[message.type]
    for key, value in (("sender", message.sender), ("recipient", message.recipient), ("task", message.task)):
        if value is not None:
            yield key, value


def _present(headers: Mapping[str, str]) -> tuple[str, list[str]]:
    """What the baggage header is called here, and the members of others in it."""
    for name, value in headers.items():
        if name.lower() == "baggage":
            members = [member.strip() for member in value.split(",")]
            return name, [member for member in members if member and not member.startswith(_PREFIX)]
    return "baggage", []


def _span(origin: Origin) -> str:
    return origin.event_id.replace("-", "")[:16]


# -- coming in -----------------------------------------------------------------------------------------------------------


def _collected(headers: Headers) -> dict[str, list[str]]:
    """``traceparent`` and ``baggage``, however they are spelled, each as often as it is there."""
    try:
        pairs = [(raw, value) for raw, value in (headers.items() if hasattr(headers, "items") else headers)]
    except (TypeError, ValueError):
        raise InvalidMessageError(
            f"extract() needs headers, a mapping or pairs of name and value, not {headers!r:.80}",
            next_action="give the headers of the request, {} where there are none",
        ) from None
    found: dict[str, list[str]] = {}
    for raw, value in pairs:
        name = _text(raw).lower()
        if name in ("traceparent", "baggage"):
            values = value if isinstance(value, (list, tuple)) else (value,)
            found.setdefault(name, []).extend(_text(item).strip() for item in values)
    return found


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _members(lines: Iterable[str]) -> dict[str, str]:
    """Our members of the baggage, decoded. Those of others are not looked at."""
    found: dict[str, str] = {}
    for line in lines:
        for member in line.split(","):
            key, equals, rest = member.strip().partition("=")
            key = key.rstrip()
            if not key.startswith(_PREFIX):
                continue
            key, value = key[len(_PREFIX) :], rest.partition(";")[0].strip()
            if key not in _FIELDS:
                continue  # of a later version
            if not equals or key in found:
                raise _malformed(f"baggage has {_PREFIX}{key} {'twice' if key in found else 'without a value'}")
            found[key] = _decoded(key, value)
    return found


def _decoded(key: str, value: str) -> str:
    if len(value) > _LONGEST or not _VALUE.fullmatch(value) or _PERCENT.search(value):
        raise _malformed(f"the value of {_PREFIX}{key} in baggage is malformed: {value!r:.80}")
    try:
        return unquote_to_bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed(f"the value of {_PREFIX}{key} in baggage is no UTF-8: {value!r:.80}") from None


def _origin(members: Mapping[str, str]) -> Origin | None:
    run_id, seq = members.get("run"), members.get("seq")
    if run_id is None and seq is None and "segment" not in members:
        return None
    if run_id is None or seq is None or not _NUMBER.fullmatch(seq):
        raise _malformed(f"baggage needs {_PREFIX}run and {_PREFIX}seq together, not {run_id!r:.80} and {seq!r:.80}")
    return origin_of({"run_id": run_id, "segment": members.get("segment"), "seq": int(seq)})


def _agree(lines: list[str]) -> None:
    """A ``traceparent`` beside our baggage is well-formed. Which event is the cause, baggage says alone: a hop on the way that keeps to
    the standard puts its own span into ``traceparent``, or begins a trace of its own."""
    if len(lines) > 1:
        raise _malformed("there are two traceparent headers")
    for line in lines:
        found = _TRACEPARENT.fullmatch(line)
        if (
            found is None
            or found[1] == "ff"
            or (found[1] == "00" and found[5] is not None)
            or not found[2].strip("0")
            or not found[3].strip("0")
        ):
            raise _malformed(f"traceparent is malformed: {line!r:.80}")


def _malformed(what: str) -> InvalidMessageError:
    return InvalidMessageError(
        what, next_action="refuse the request (HTTP status 400): its headers were cut or made up"
    )
