"""How a step differs from the recorded one, in words that an engineer can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["describe", "differences", "looks_like_a_read", "nearest"]

#: A message shows at most this many differing fields and lines of a text.
_FIELDS: Final = 12
_LINES: Final = 24
_MISSING: Final = object()


def differences(recorded: Any, actual: Any, path: str = "") -> list[dict[str, Any]]:
    """The leaves in which two JSON trees differ: ``[{"path", "recorded", "actual"}]``; an absent side is left out."""
    found: list[dict[str, Any]] = []
    _compare(recorded, actual, path, found)
    return found


def _compare(recorded: Any, actual: Any, path: str, found: list[dict[str, Any]]) -> None:
    if isinstance(recorded, dict) and isinstance(actual, dict):
        for key in [*recorded, *(k for k in actual if k not in recorded)]:
            inner = f"{path}.{key}" if path else str(key)
            _compare(recorded.get(key, _MISSING), actual.get(key, _MISSING), inner, found)
    elif isinstance(recorded, list) and isinstance(actual, list):
        for i in range(max(len(recorded), len(actual))):
            one = recorded[i] if i < len(recorded) else _MISSING
            other = actual[i] if i < len(actual) else _MISSING
            _compare(one, other, f"{path}[{i}]", found)
    elif recorded is _MISSING:
        found.append({"path": path, "actual": actual})
    elif actual is _MISSING:
        found.append({"path": path, "recorded": recorded})
    elif type(recorded) is not type(actual) or recorded != actual:
        found.append({"path": path, "recorded": recorded, "actual": actual})


def describe(found: list[dict[str, Any]]) -> str:
    """The differences field by field, texts as a unified diff, equal parts left out."""
    lines: list[str] = []
    for one in found[:_FIELDS]:
        recorded, actual = one.get("recorded", _MISSING), one.get("actual", _MISSING)
        lines.append(f"  {one['path'] or 'value'}:")
        if isinstance(recorded, str) and isinstance(actual, str) and max(len(recorded), len(actual)) > 60:
            lines += _text_diff(recorded, actual)
        else:
            lines.append(f"    recorded  {_short(recorded)}")
            lines.append(f"    now       {_short(actual)}")
    if len(found) > _FIELDS:
        lines.append(f"  … and {len(found) - _FIELDS} more fields")
    return "\n".join(lines)


def _text_diff(recorded: str, actual: str) -> list[str]:
    diff = list(difflib.unified_diff(recorded.splitlines(), actual.splitlines(), "recorded", "now", lineterm="", n=1))
    shown = [f"    {_clip(line, 160)}" for line in diff[:_LINES]]
    if len(diff) > _LINES:
        shown.append(f"    … and {len(diff) - _LINES} more lines")
    return shown


def _short(value: Any) -> str:
    return "(nothing)" if value is _MISSING else _clip(repr(value), 160)


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def nearest(actual: bytes, candidates: Iterable[tuple[int, Mapping[str, Any], bytes]]) -> tuple[int, bool] | None:
    """Of recorded steps ``(seq, entry, input)`` the one most like ``actual``, and whether it is equal."""
    best: tuple[float, int] | None = None
    text = actual[:4000].decode("utf-8", "replace")
    for seq, _entry, data in candidates:
        if data == actual:
            return seq, True
        ratio = difflib.SequenceMatcher(
            None, text, data[:4000].decode("utf-8", "replace"), autojunk=False
        ).quick_ratio()
        if best is None or ratio > best[0]:
            best = ratio, seq
    return (best[1], False) if best is not None and best[0] > 0.5 else None


def looks_like_a_read(found: list[dict[str, Any]]) -> bool:
    """Whether a difference looks like an instant, an id or a draw that was not captured."""
    return any(_volatile(one.get("recorded")) and _volatile(one.get("actual")) for one in found)


def _volatile(value: Any) -> bool:
    if isinstance(value, float):
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        return value > 1_000_000_000
    if isinstance(value, str):
        digits = sum(c.isdigit() for c in value)
        return (len(value) >= 32 and value.count("-") >= 4) or ("T" in value and digits >= 12)
    return isinstance(value, dict) and value.get("$t") in ("datetime", "uuid", "date")
