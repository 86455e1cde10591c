"""Typed failures: what went wrong, whether it can be recovered from, and how.

::

    try:
        client.chat.completions.create(...)
    except Exception as error:
        failure = classify(error)
        failure.type, failure.recovery_strategy, failure.retry_after_s    # agent_unavailable, retry_after_delay, 20.0
"""

from __future__ import annotations

from .classify import classify
from .structured import DEFAULTS, FailureType, RecoveryStrategy, StructuredFailure

__all__ = ["DEFAULTS", "FailureType", "RecoveryStrategy", "StructuredFailure", "classify"]
