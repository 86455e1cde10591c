"""The closed list of failure types, and what each calls for unless more is known."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["DEFAULTS", "ORDER", "FailureType", "Outlook", "RecoveryStrategy"]


class FailureType(StrEnum):
    """What went wrong."""

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
        """Other systems' names for the same."""
        return cls(_ALIASES[value]) if isinstance(value, str) and value in _ALIASES else None


_ALIASES: Final = {
    "wal_integrity_error": "log_integrity",
    "schema_validation_error": "schema_validation",
    "transport_error": "transport",
    "network_error": "network",
}


class RecoveryStrategy(StrEnum):
    """What to do about it."""

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

#: What each type calls for, where the failure itself says nothing else.
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

#: From the mildest to the gravest: the gravest member speaks for a group.
ORDER: Final = tuple(RecoveryStrategy)
