"""A failure as data: its type, the recovery strategy, and where it happened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

__all__ = ["DEFAULTS", "ORDER", "FailureType", "Outlook", "RecoveryStrategy", "StructuredFailure"]

# -- kinds -------------------------------------------------------------------------------------------------------------
#
# The closed list of failure types, and the default strategy of each.


class FailureType(StrEnum):
    """The type of a failure: ``timeout``, ``network``, ``agent_unavailable`` and fifteen more. The list is closed."""

    CONTRACT_VIOLATION = "contract_violation"
    TIMEOUT = "timeout"
    BUDGET_EXCEEDED = "budget_exceeded"
    NO_AGENT_FOUND = "no_agent_found"
    ROUTING_ERROR = "routing_error"
    FALLBACK_EXHAUSTED = "fallback_exhausted"
    AGENT_ERROR = "agent_error"
    AGENT_CRASHED = "agent_crashed"
    AGENT_UNAVAILABLE = "agent_unavailable"
    INVALID_INPUT = "invalid_input"
    SCHEMA_VALIDATION = "schema_validation"
    LOG_INTEGRITY = "log_integrity"
    RECOVERY_ERROR = "recovery_error"
    IRREVERSIBLE_STEP_FAILED = "irreversible_step_failed"
    SIDE_EFFECT_VIOLATION = "side_effect_violation"
    TRANSPORT = "transport"
    NETWORK = "network"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> FailureType | None:
        """Accept the names that other systems use for the same types."""
        return cls(_ALIASES[value]) if isinstance(value, str) and value in _ALIASES else None


_ALIASES: Final = {
    "wal_integrity_error": "log_integrity",
    "schema_validation_error": "schema_validation",
    "transport_error": "transport",
    "network_error": "network",
}


class RecoveryStrategy(StrEnum):
    """What to do about a failure: ``retry``, ``retry_after_delay``, ``fallback``, ``abort``, ``manual_intervention``."""

    RETRY = "retry"
    RETRY_AFTER_DELAY = "retry_after_delay"
    FALLBACK = "fallback"
    ABORT = "abort"
    MANUAL_INTERVENTION = "manual_intervention"


class Outlook(NamedTuple):
    """Whether a failure can be recovered from without a person, and how."""

    recoverable: bool
    strategy: RecoveryStrategy


_RETRY, _LATER, _FALLBACK, _ABORT, _PERSON = RecoveryStrategy

#: The outlook of each type, unless the failure itself says otherwise.
DEFAULTS: Final = {
    FailureType.CONTRACT_VIOLATION: Outlook(False, _ABORT),
    FailureType.TIMEOUT: Outlook(True, _RETRY),
    FailureType.BUDGET_EXCEEDED: Outlook(False, _ABORT),
    FailureType.NO_AGENT_FOUND: Outlook(False, _ABORT),
    FailureType.ROUTING_ERROR: Outlook(True, _FALLBACK),
    FailureType.FALLBACK_EXHAUSTED: Outlook(False, _ABORT),
    FailureType.AGENT_ERROR: Outlook(True, _FALLBACK),
    FailureType.AGENT_CRASHED: Outlook(False, _ABORT),
    FailureType.AGENT_UNAVAILABLE: Outlook(True, _LATER),
    FailureType.INVALID_INPUT: Outlook(False, _ABORT),
    FailureType.SCHEMA_VALIDATION: Outlook(False, _ABORT),
    FailureType.LOG_INTEGRITY: Outlook(False, _PERSON),
    FailureType.RECOVERY_ERROR: Outlook(False, _PERSON),
    FailureType.IRREVERSIBLE_STEP_FAILED: Outlook(False, _PERSON),
    FailureType.SIDE_EFFECT_VIOLATION: Outlook(False, _ABORT),
    FailureType.TRANSPORT: Outlook(True, _LATER),
    FailureType.NETWORK: Outlook(True, _LATER),
    FailureType.UNKNOWN: Outlook(False, _ABORT),
}

#: From mildest to gravest: the gravest member represents a group.
ORDER: Final = tuple(RecoveryStrategy)

# -- structured --------------------------------------------------------------------------------------------------------

#: How many nested causes are read.
MAX_CHAIN: Final = 64
#: Key -> the key that other systems use for it.
_OTHER_NAMES: Final = {"type": "failure_type", "run_id": "execution_id", "step": "step_id", "agent": "agent_name"}
_TEXTS: Final = ("run_id", "name", "agent", "exception")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredFailure:
    """What went wrong (``type``, ``reason``), where (``run_id``, ``step``, ``name`` of the tool or model, ``agent``),
    and what to do.

    ``recoverable`` and ``recovery_strategy`` default to those of the type. ``retry_after_s`` is how many seconds the
    server asked to wait. ``details`` is JSON; ``exception`` the exception's type (``module:name``); ``caused_by`` the
    underlying failure.
    """

    type: FailureType
    reason: str
    run_id: str | None = None
    step: int | str | None = None
    name: str | None = None
    agent: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    recoverable: bool = None  # type: ignore[assignment]  # filled in below
    recovery_strategy: RecoveryStrategy = None  # type: ignore[assignment]  # filled in below
    retry_after_s: float | None = None
    caused_by: StructuredFailure | None = None
    exception: str | None = None

    def __post_init__(self) -> None:
        kind = FailureType(self.type)
        usual, strategy, recoverable = _usual(kind, self.recovery_strategy, self.recoverable)
        for key, value in (
            ("type", kind),
            ("recovery_strategy", strategy),
            ("recoverable", usual if recoverable is None else recoverable),
            ("details", dict(self.details)),
        ):
            object.__setattr__(self, key, value)

    def __str__(self) -> str:
        where = [
            f"{label}={value}"
            for label, value in (("step", self.step), ("name", self.name), ("agent", self.agent))
            if value
        ]
        return " ".join((f"[{self.type}]", *where, self.reason))

    def chain(self) -> Iterator[StructuredFailure]:
        """Yield this failure, then its cause, and so on."""
        failure: StructuredFailure | None = self
        while failure is not None:
            yield failure
            failure = failure.caused_by

    # -- JSON ------------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return all that is known as JSON values; unknown fields are left out."""
        tree: dict[str, Any] = {"type": self.type.value, "reason": self.reason}
        for key in ("run_id", "step", "name", "agent", "exception"):
            if getattr(self, key) is not None:
                tree[key] = getattr(self, key)
        if self.details:
            tree["details"] = dict(self.details)
        tree["recoverable"] = self.recoverable
        tree["recovery_strategy"] = self.recovery_strategy.value
        if self.retry_after_s is not None:
            tree["retry_after_s"] = self.retry_after_s
        if self.caused_by is not None:
            tree["caused_by"] = self.caused_by.as_dict()
        return tree

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> StructuredFailure:
        """Build a failure from the result of ``as_dict``, or from another system's dictionary; unknown keys are
        ignored.

        Raises ``ValueError``, naming the key, if one is missing or invalid.
        """
        return _read(tree, MAX_CHAIN)

    def to_json(self) -> str:
        """Return the failure as one line of JSON. Raises ``ValueError`` if ``details`` is not JSON."""
        try:
            return orjson.dumps(self.as_dict()).decode()
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the details of a failure are JSON values: {error}") from None

    @classmethod
    def from_json(cls, text: str | bytes) -> StructuredFailure:
        """Build a failure from the output of ``to_json``. Raises ``ValueError`` for anything else."""
        try:
            tree = orjson.loads(text)
        except ValueError as error:
            raise ValueError(f"a failure is a JSON object: {error}") from None
        return cls.from_dict(tree)


#: Strategies with which the program itself can do nothing.
_HOPELESS: Final = (RecoveryStrategy.ABORT, RecoveryStrategy.MANUAL_INTERVENTION)


def _usual(kind: FailureType, strategy: Any, recoverable: Any) -> tuple[bool, RecoveryStrategy, bool | None]:
    """Return whether such a failure is usually recoverable, its strategy, and ``recoverable`` as passed."""
    outlook = DEFAULTS[kind]
    chosen = outlook.strategy if strategy is None else RecoveryStrategy(strategy)
    usual = outlook.recoverable if chosen is outlook.strategy else chosen not in _HOPELESS
    return usual, chosen, recoverable


def _read(tree: Any, left: int) -> StructuredFailure:
    if not isinstance(tree, Mapping):
        raise ValueError(f"a failure must be an object with `type` and `reason`, not {tree!r:.80}")
    found = {key: tree.get(key, tree.get(_OTHER_NAMES.get(key, key))) for key in _KEYS}
    if found["type"] is None:
        raise ValueError("a failure has a `type`")
    fields = {key: value for key, value in found.items() if value is not None and key != "caused_by"}
    fields["type"] = _one_of(FailureType, "type", found["type"])
    if found["recovery_strategy"] is not None:
        fields["recovery_strategy"] = _one_of(RecoveryStrategy, "recovery_strategy", found["recovery_strategy"])
    if found["reason"] is None:
        raise ValueError("a failure has a `reason`")
    for key in ("reason", *_TEXTS):
        _check(key, found[key], str, "a string")
    _check("details", found["details"], Mapping, "an object")
    _check("recoverable", found["recoverable"], bool, "true or false")
    _check("step", found["step"], (int, str), "an entry's number")
    delay = found["retry_after_s"]
    if delay is not None and (type(delay) not in (int, float) or not math.isfinite(delay) or delay < 0):
        raise ValueError(f"`retry_after_s` of a failure must be a number of seconds, not {delay!r:.80}")
    if found["caused_by"] is not None:
        if left <= 0:
            raise ValueError(f"a failure has at most {MAX_CHAIN} causes, one inside the other")
        fields["caused_by"] = _read(found["caused_by"], left - 1)
    return StructuredFailure(**fields)


_KEYS: Final = tuple(StructuredFailure.__dataclass_fields__)


def _one_of(kind: Any, key: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"`{key}` of a failure must be one of {', '.join(kind)}, not {value!r:.80}") from None


def _check(key: str, value: object, kind: Any, what: str) -> None:
    if (value is not None and not isinstance(value, kind)) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"`{key}` of a failure is {what}, not {value!r:.80}")
