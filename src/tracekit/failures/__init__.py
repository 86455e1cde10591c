"""Failures with a type: what went wrong, whether it can be recovered from, and how.

``classify`` turns an exception into a :class:`StructuredFailure`; ``classify_recorded`` does so for one that a trace holds.
"""

from __future__ import annotations

from .classify import classify, classify_recorded
from .kinds import DEFAULTS, FailureType, RecoveryStrategy
from .structured import StructuredFailure

__all__ = ["DEFAULTS", "FailureType", "RecoveryStrategy", "StructuredFailure", "classify", "classify_recorded"]
