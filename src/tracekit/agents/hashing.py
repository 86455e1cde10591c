"""Hashes of requests: one of all that a request says, one that leaves out what is different each time it is made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .envelope import IntentEnvelope

__all__ = ["IDS_AND_TIMES", "identity_hash", "identity_of", "stable_hash"]

#: Keys of an envelope's ``context`` and ``metadata`` that say which request it is and when, not what is asked for; in both spellings.
IDS_AND_TIMES: Final = frozenset(
    {
        "timestamp", "createdAt", "requestId", "traceId", "spanId", "parentSpanId", "correlationId", "traceparent",
        "created_at", "request_id", "trace_id", "span_id", "parent_span_id", "correlation_id",
    }
)  # fmt: skip

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def stable_hash(obj: Any) -> str:
    """``sha256:`` and the hex digest of ``json.dumps(obj, sort_keys=True, separators=(",", ":"))``, text as ASCII.

    ``TypeError`` or ``ValueError`` for what is not JSON.
    """
    return "sha256:" + hashlib.sha256(_encode(obj).encode()).hexdigest()


def identity_hash(envelope: IntentEnvelope | Mapping[str, Any]) -> str:
    """The hash of what is asked for and by whom: two requests that differ only in ids and times have the same one.

    Left out are the keys :data:`IDS_AND_TIMES` of ``context`` and ``metadata``; whatever else is in there counts, and so do version,
    intent, payload and routing. A dictionary is read as :meth:`IntentEnvelope.from_dict` does; ``EnvelopeError`` where it is none.
    """
    from .envelope import IntentEnvelope

    if isinstance(envelope, Mapping):
        envelope = IntentEnvelope.from_dict(envelope)
    if not isinstance(envelope, IntentEnvelope):
        raise TypeError(f"identity_hash takes an IntentEnvelope or its dictionary, not {type(envelope).__name__}")
    return stable_hash(identity_of(envelope.as_dict()))


def identity_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """An envelope's dictionary without ids and times."""
    return {**tree, "context": _timeless(tree.get("context")), "metadata": _timeless(tree.get("metadata"))}


def _timeless(part: Any) -> dict[str, Any]:
    return {key: value for key, value in (part or {}).items() if key not in IDS_AND_TIMES}
