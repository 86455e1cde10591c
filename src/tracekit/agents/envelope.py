"""Envelopes of intents and responses, with identity hashes, and their canonical form."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from re import Pattern
from typing import Any, Final, Literal, TypeVar, get_args

from ..errors import EnvelopeError
from ..integration import Redactor, Store

__all__ = [
    "IDS_AND_TIMES",
    "DoubledKeyError",
    "IntentContext",
    "IntentEnvelope",
    "IntentMetadata",
    "IntentRef",
    "RoutingOptions",
    "Strategy",
    "identity_hash",
    "identity_of",
    "once",
    "recorded_form",
    "stable_hash",
]

# -- doubled keys -----------------------------------------------------------------------------------------------------------
#
# JSON with a duplicate key in an object is refused: readers differ in which value they take.


class DoubledKeyError(Exception):
    """A JSON object has ``key`` twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of a JSON text, for ``json.loads(object_pairs_hook=…)``. Raises ``DoubledKeyError`` for a
    duplicate key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise DoubledKeyError(next(key for key in counts if counts[key] > 1))
    return found


# -- hashing -----------------------------------------------------------------------------------------------------------
#
# Hashes of requests: one of the whole request, one without the ids and times that differ each time.

#: Keys of an envelope's ``context`` and ``metadata`` that identify the request and its time, not its content; in both
#: spellings.
IDS_AND_TIMES: Final = frozenset(
    {
        "timestamp", "createdAt", "requestId", "traceId", "spanId", "parentSpanId", "correlationId", "traceparent",
        "created_at", "request_id", "trace_id", "span_id", "parent_span_id", "correlation_id",
    }
)  # fmt: skip

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def stable_hash(obj: Any) -> str:
    """Return ``sha256:`` and the hex digest of ``json.dumps(obj, sort_keys=True, separators=(",", ":"))``, text as
    ASCII.

    Raises ``TypeError`` or ``ValueError`` if ``obj`` is not JSON.
    """
    return "sha256:" + hashlib.sha256(_encode(obj).encode()).hexdigest()


def identity_hash(envelope: IntentEnvelope | Mapping[str, Any]) -> str:
    """Return the hash of a request's content and sender: two requests that differ only in ids and times have the same
    one.

    The keys ``IDS_AND_TIMES`` of ``context`` and ``metadata`` are left out; everything else in them counts, and so do
    version, intent, payload and routing. A dictionary is read like ``IntentEnvelope.from_dict``. Raises
    ``EnvelopeError`` if it is invalid.
    """

    if isinstance(envelope, Mapping):
        envelope = IntentEnvelope.from_dict(envelope)
    if not isinstance(envelope, IntentEnvelope):
        raise TypeError(f"identity_hash takes an IntentEnvelope or its dictionary, not {type(envelope).__name__}")
    return stable_hash(identity_of(envelope.as_dict()))


def identity_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return an envelope's dictionary without ids and times."""
    return {**tree, "context": _timeless(tree.get("context")), "metadata": _timeless(tree.get("metadata"))}


def _timeless(part: Any) -> dict[str, Any]:
    return {key: value for key, value in (part or {}).items() if key not in IDS_AND_TIMES}


# -- envelope ----------------------------------------------------------------------------------------------------------
#
# The envelope of a request: what is requested, by whom, and how it is to be routed.
#
# In JSON the keys are in camel case (``sourceAgent``), as other systems write them; both spellings are read. Unset
# fields are omitted, so that a new key does not change existing hashes.

#: How an intent is assigned to agents.
Strategy = Literal["direct", "fallback", "broadcast", "parallel"]

_STRATEGIES: Final = get_args(Strategy)
_strictly: Final = json.JSONEncoder(allow_nan=False, sort_keys=True).encode
_NEXT: Final = "`tracekit docs routing` describes every key of an envelope"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IntentRef:
    """The requested intent: its name and version."""

    name: str
    version: str = "1.0"

    def __post_init__(self) -> None:
        _text("intent.name", self.name)
        _text("intent.version", self.version)


@dataclass(frozen=True, slots=True)
class IntentContext:
    """The context of a request. ``extra`` holds your own keys, JSON values; in JSON they are next to the others."""

    source_agent: str | None = None
    timestamp: str | None = None
    priority: str | int | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _optional("context.sourceAgent", self.source_agent)
        _optional("context.timestamp", self.timestamp)
        if self.priority is not None and (isinstance(self.priority, bool) or not isinstance(self.priority, (str, int))):
            raise _wrong("context.priority", "a word or a number", self.priority)
        object.__setattr__(self, "tags", _texts("context.tags", self.tags))
        object.__setattr__(self, "extra", _extra("context", self))


@dataclass(frozen=True, slots=True)
class IntentMetadata:
    """The ids and times of a request. Nothing is filled in automatically: a generated id or time would differ in each
    replay.

    ``extra`` as in ``IntentContext``.
    """

    request_id: str | None = None
    source: str | None = None
    created_at: str | None = None
    trace_id: str | None = None
    identity_chain: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("request_id", "source", "created_at", "trace_id"):
            _optional(f"metadata.{_camel(name)}", getattr(self, name))
        object.__setattr__(self, "identity_chain", _texts("metadata.identityChain", self.identity_chain))
        object.__setattr__(self, "extra", _extra("metadata", self))


@dataclass(frozen=True, slots=True)
class RoutingOptions:
    """How to route a request.

    ``strategy``: ``direct`` (one agent), ``fallback`` (the next agent if one fails), ``broadcast`` (all, one after
    another), ``parallel`` (all at once). ``target_agent`` comes first, or is the only one (``direct``);
    ``fallback_agents`` are the next ones, in this order.
    """

    strategy: Strategy = "direct"
    target_agent: str | None = None
    fallback_agents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        chosen: Any = self.strategy
        strategy = chosen.lower() if isinstance(chosen, str) else chosen
        if strategy not in _STRATEGIES:
            raise _wrong("routing.strategy", f"one of {', '.join(_STRATEGIES)}", self.strategy)
        object.__setattr__(self, "strategy", strategy)
        _optional("routing.targetAgent", self.target_agent)
        object.__setattr__(self, "fallback_agents", _texts("routing.fallbackAgents", self.fallback_agents))
        if self.fallback_agents and strategy != "fallback":
            raise EnvelopeError(
                f"routing.fallbackAgents is set, and the strategy is {strategy!r}: they would never be called",
                key="routing.fallbackAgents",
                next_action="set routing.strategy to 'fallback', or leave the agents out",
            )


@dataclass(frozen=True, slots=True)
class IntentEnvelope:
    """One request. ``intent`` is required, and may be just its name; ``payload`` is a JSON object.

    Raises ``EnvelopeError``, which says which key is wrong, missing or unknown.
    """

    version: str = "1.0"
    intent: IntentRef = None  # type: ignore[assignment]  # a text is made one; without any it is refused
    payload: Mapping[str, Any] = field(default_factory=dict)
    context: IntentContext = field(default_factory=IntentContext)
    metadata: IntentMetadata = field(default_factory=IntentMetadata)
    routing: RoutingOptions = field(default_factory=RoutingOptions)

    def __post_init__(self) -> None:
        intent: Any = self.intent
        if isinstance(intent, str):
            object.__setattr__(self, "intent", IntentRef(intent))
        for name, kind in _PARTS.items():
            if not isinstance(getattr(self, name), kind):
                raise _wrong(name, f"an {kind.__name__}", getattr(self, name))
        object.__setattr__(self, "payload", _object("payload", self.payload))
        _text("version", self.version)
        for key, value in (
            ("payload", self.payload),
            ("context", self.context.extra),
            ("metadata", self.metadata.extra),
        ):
            _json(key, value)

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the envelope as JSON values, without unset fields."""
        return {
            "version": self.version,
            "intent": {"name": self.intent.name, "version": self.intent.version},
            "payload": self.payload,
            "context": _as_json(self.context),
            "metadata": _as_json(self.metadata),
            "routing": _as_json(self.routing),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> IntentEnvelope:
        """Create an envelope from a dictionary as returned by ``as_dict``. Only ``intent`` is required.

        Raises ``EnvelopeError`` if it is invalid.
        """
        fields = _known("", _object("an envelope", tree), _names(cls))
        if "intent" not in fields:
            raise EnvelopeError("an envelope has no `intent`", key="intent", next_action=_NEXT)
        intent = fields.pop("intent")
        parts = {name: _part(name, kind, fields.pop(name)) for name, kind in _PARTS.items() if name in fields}
        return cls(
            intent=IntentRef(intent) if isinstance(intent, str) else _part("intent", IntentRef, intent),
            **parts,
            **fields,
        )

    def to_json(self) -> str:
        """Return the envelope as one line of JSON."""
        try:
            return json.dumps(self.as_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise _not_json(error) from None

    @classmethod
    def from_json(cls, text: str | bytes) -> IntentEnvelope:
        """Create an envelope from JSON as returned by ``to_json``.

        Raises ``EnvelopeError`` if it is invalid, or ambiguous by a duplicate key.
        """
        try:
            tree = json.loads(text, object_pairs_hook=once, parse_constant=_no_number)
        except DoubledKeyError as doubled:
            key = doubled.key
            raise EnvelopeError(f"an envelope says `{key}` twice in one object", key=key, next_action=_NEXT) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvelopeError(f"an envelope must be a JSON object: {error}", key=None, next_action=_NEXT) from None
        return cls.from_dict(tree)

    # -- hashes ----------------------------------------------------------------------------------------------------------

    @property
    def envelope_hash(self) -> str:
        """``stable_hash`` of ``as_dict``: of the whole request."""
        try:
            return stable_hash(self.as_dict())
        except (TypeError, ValueError) as error:
            raise _not_json(error) from None

    @property
    def identity_hash(self) -> str:
        """``identity_hash`` of this envelope: without ids and times."""
        try:
            return identity_hash(self)
        except (TypeError, ValueError) as error:
            raise _not_json(error) from None


_PARTS: Final[dict[str, Any]] = {
    "intent": IntentRef,
    "context": IntentContext,
    "metadata": IntentMetadata,
    "routing": RoutingOptions,
}


# -- reading and writing the parts ---------------------------------------------------------------------------------------------


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def _names(kind: Any) -> dict[str, str]:
    """Return each spelling of a field's name, mapped to the field."""
    own = [one.name for one in fields(kind) if one.name != "extra"]
    return {spelling: name for name in own for spelling in (name, _camel(name))}


def _as_json(part: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, key in _KEYS[type(part)]:
        value = getattr(part, name)
        if value is not None and value != ():
            tree[key] = list(value) if type(value) is tuple else value
    extra = getattr(part, "extra", None)
    return {**tree, **extra} if extra else tree


_KEYS: Final = {
    kind: tuple((one.name, _camel(one.name)) for one in fields(kind) if one.name != "extra") for kind in _PARTS.values()
}


def _part(name: str, kind: type[T], tree: Any) -> T:
    tree = _object(name, {} if tree is None else tree)
    names = _names(kind)
    if kind in (IntentContext, IntentMetadata):
        known = {key: value for key, value in tree.items() if key in names}
        extra = {key: value for key, value in tree.items() if key not in names}
        return kind(**_known(name, known, names) | {"extra": extra})
    if kind is IntentRef and "name" not in tree:
        raise EnvelopeError("an envelope's `intent` has no `name`", key="intent.name", next_action=_NEXT)
    return kind(**_known(name, tree, names))


def _known(part: str, tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that ``tree`` sets, in either spelling; none of them twice."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        where = f"{part}.{key}" if part else key
        name = names.get(key)
        if name is None:
            from difflib import get_close_matches

            near = get_close_matches(key, names, 1)
            raise EnvelopeError(
                f"an envelope has no key `{where}`",
                key=where,
                next_action=f"did you mean `{near[0]}`?" if near else _NEXT,
            )
        if name in found:
            raise EnvelopeError(f"an envelope says `{where}` twice, in two spellings", key=where, next_action=_NEXT)
        if value is not None:
            found[name] = value
    return found


# -- checks ------------------------------------------------------------------------------------------------------------------


def _wrong(key: str, what: str, value: object) -> EnvelopeError:
    return EnvelopeError(f"`{key}` of an envelope must be {what}, not {value!r:.80}", key=key, next_action=_NEXT)


def _not_json(error: BaseException) -> EnvelopeError:
    return EnvelopeError(f"an envelope contains JSON values only: {error}", key=None, next_action=_NEXT)


def _json(key: str, value: Any) -> None:
    if not value:
        return
    try:
        _strictly(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvelopeError(
            f"`{key}` of an envelope contains JSON values only: {error}", key=key, next_action=_NEXT
        ) from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _text(key: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(key, "a non-empty string", value)


def _optional(key: str, value: object) -> None:
    if value is not None:
        _text(key, value)


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise _wrong(key, "a list of strings", value)
    for item in value:
        _text(key, item)
    return tuple(value)


def _object(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong(key, "an object with string keys", value)
    return dict(value)


def _extra(part: str, holder: Any) -> dict[str, Any]:
    extra = _object(f"{part}.extra", holder.extra)
    taken = sorted(extra.keys() & _names(type(holder)).keys())
    if taken:
        raise EnvelopeError(
            f"`{part}` of an envelope has a key `{taken[0]}` of its own; it can't be in `extra`",
            key=f"{part}.{taken[0]}",
            next_action="set the field of that name",
        )
    return extra


# -- recorded form -----------------------------------------------------------------------------------------------------
#
# A request in the form that a trace keeps: without secrets. The recorded hashes are of this form.

Patterns = str | Pattern[str] | Iterable[str | Pattern[str]]


def recorded_form(envelope: IntentEnvelope | Mapping[str, Any], *, redact: Patterns = ()) -> dict[str, Any]:
    """Return ``envelope`` as JSON values, in the form that a run recorded here keeps.

    ``redact`` are the patterns with which the run is recorded, if any.
    """
    asked = envelope if isinstance(envelope, IntentEnvelope) else IntentEnvelope.from_dict(envelope)
    kept: dict[str, Any] = Redactor.of_process(redact, Store().root).without_secrets(asked.as_dict())
    return kept
