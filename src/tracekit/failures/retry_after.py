"""How long the other side asks to wait: ``Retry-After`` in all its forms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .. import _reality

__all__ = ["header", "retry_after"]


def retry_after(headers: Any, attribute: Any = None) -> float | None:
    """Seconds from the headers ``retry-after-ms`` or ``retry-after`` (seconds or a date), else from an error's own attribute.

    A date counts from the answer's own ``Date``, so that a clock that is wrong here does no harm; from ours where it has none.
    """
    milliseconds = _number(header(headers, "retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    said = header(headers, "retry-after")
    if said is None:
        return _number(attribute.total_seconds() if isinstance(attribute, timedelta) else attribute)
    seconds = _number(said)
    return _until(said, header(headers, "date")) if seconds is None else seconds


def header(headers: Any, name: str) -> str | None:
    """A header, whatever the case of its name and the kind of mapping."""
    if headers is None:
        return None
    try:
        pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
        for key, value in pairs:
            if _text(key).lower() == name:
                return _text(value)
    except Exception:  # not headers after all
        return None
    return None


def _text(value: Any) -> str:
    if isinstance(value, list) and value:  # a header that came twice, as a trace has it
        value = value[0]
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return max(number, 0.0) if math.isfinite(number) else None


def _until(said: str, date: str | None) -> float | None:
    then, now = _instant(said), _instant(date)
    if then is None:
        return None
    since = _reality.time() if now is None else now.timestamp()
    return max(round(then.timestamp() - since, 3), 0.0)


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    from email.utils import parsedate_to_datetime

    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
