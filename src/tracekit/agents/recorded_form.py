"""A request as a trace keeps it: without secrets. The recorded hashes are of this form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from re import Pattern
from typing import Any

from .._canonical import dumps_in_order, from_json, to_json
from .._engine.redaction import Redactor
from .envelope import IntentEnvelope

__all__ = ["recorded_form", "without_secrets"]

Patterns = str | Pattern[str] | Iterable[str | Pattern[str]]


def recorded_form(envelope: IntentEnvelope | Mapping[str, Any], *, redact: Patterns = ()) -> dict[str, Any]:
    """``envelope`` as JSON values, as a run keeps it that is recorded here and now.

    ``redact`` are the patterns that the run is recorded with, where it is with any.
    """
    asked = envelope if isinstance(envelope, IntentEnvelope) else IntentEnvelope.from_dict(envelope)
    return without_secrets(Redactor.of_process(redact), asked.as_dict())


def without_secrets(redactor: Redactor, tree: dict[str, Any]) -> dict[str, Any]:
    """An envelope's dictionary as ``redactor`` leaves it: itself where there is nothing to be taken out."""
    told = to_json(tree)
    if not redactor.suspicious(dumps_in_order(told)):
        return tree
    found: dict[str, Any] = from_json(redactor.redact(told)[0])
    return found
