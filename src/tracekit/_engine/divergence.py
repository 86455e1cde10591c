"""How a step differs from the recorded one, in words that an engineer can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["OPAQUE", "describe", "differences", "looks_like_a_read", "nearest", "steady"]

#: A message shows at most this many differing fields and lines of a text.
_FIELDS: Final = 12
_LINES: Final = 24
_WIDTH: Final = 160
_MISSING: Final = object()

#: What is in the canonical bytes of every value that holds something opaque.
OPAQUE: Final = b'"$t":"opaque"'
#: What differs from process to process in the description of an object: addresses and ``id()``.
_IDENTITY: Final = re.compile(r"0x[0-9a-fA-F]{6,}|\b[0-9]{9,}\b|0x[0-9a-fA-F]*$|…$")


def steady(tree: Any) -> Any:
    """``tree`` with opaque values described by what is the same in every process."""
    if type(tree) is dict:
        if tree.get("$t") == "opaque" and type(tree.get("repr")) is str:
            return {**tree, "repr": _IDENTITY.sub("", tree["repr"])}
        return {key: steady(item) for key, item in tree.items()}
    if type(tree) is list:
        return [steady(item) for item in tree]
    return tree


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
    elif type(recorded) is not type(actual) or repr(recorded) != repr(actual):
        found.append({"path": path, "recorded": recorded, "actual": actual})


def describe(found: list[dict[str, Any]]) -> str:
    """The differences field by field, texts as a unified diff, equal parts left out."""
    lines: list[str] = []
    for one in found[:_FIELDS]:
        recorded, actual = one.get("recorded", _MISSING), one.get("actual", _MISSING)
        lines.append(f"  {one['path'] or 'value'}:")
        if isinstance(recorded, str) and isinstance(actual, str) and _is_long(recorded, actual):
            lines += _text_diff(recorded, actual)
        else:
            lines.append(f"    recorded  {_short(recorded)}")
            lines.append(f"    now       {_short(actual)}")
    if len(found) > _FIELDS:
        lines.append(f"  … and {len(found) - _FIELDS} more fields")
    return "\n".join(lines)


def _is_long(recorded: str, actual: str) -> bool:
    return max(len(recorded), len(actual)) > 60 or "\n" in recorded or "\n" in actual


def _text_diff(recorded: str, actual: str) -> list[str]:
    """A unified diff; of long lines only what is around their first difference."""
    diff = list(difflib.unified_diff(recorded.splitlines(), actual.splitlines(), "recorded", "now", lineterm="", n=1))
    lines = _narrowed(diff) or [f"- {recorded[-40:]!r}", f"+ {actual[-40:]!r}"]  # they differ in line ends only
    shown = [f"    {_clip(line, _WIDTH)}" for line in lines[:_LINES]]
    if len(lines) > _LINES:
        shown.append(f"    … and {len(lines) - _LINES} more lines")
    return shown


def _narrowed(diff: list[str]) -> list[str]:
    """The lines of a diff; where as many are taken out as put in, each pair is cut to where it differs."""
    lines: list[str] = []
    i = 0
    while i < len(diff):
        out = _block(diff, i, "-")
        into = _block(diff, i + len(out), "+")
        if i < 2 or not out or len(out) != len(into):
            lines.append(diff[i])
            i += 1
            continue
        pairs = [_window(one[1:], other[1:]) for one, other in zip(out, into, strict=True)]
        lines += ["-" + one for one, _ in pairs] + ["+" + other for _, other in pairs]
        i += 2 * len(out)
    return lines


def _block(diff: list[str], start: int, sign: str) -> list[str]:
    end = start
    while end < len(diff) and diff[end].startswith(sign):
        end += 1
    return diff[start:end]


def _window(one: str, other: str) -> tuple[str, str]:
    """Two long lines from shortly before their first difference on."""
    if max(len(one), len(other)) < _WIDTH:
        return one, other
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - 40)
    if start == 0:
        return one, other
    return "…" + one[start:], "…" + other[start:]


def _short(value: Any) -> str:
    return "(nothing)" if value is _MISSING else _clip(repr(value), _WIDTH)


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
    return any(_volatile(one.get("recorded"), one.get("actual")) for one in found)


#: Words that a clock, a generator of ids or of random numbers makes.
_MADE: Final = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"  # a UUID
    r"|[0-9a-f]{24,64}"  # hex of urandom
    r"|\d{4}-\d\d-\d\d|\d\d:\d\d(:\d\d(\.\d+)?)?|\d{4}-\d\d-\d\d[T ]\S+"  # dates and times
    r"|\d{10,19}(\.\d+)?|0\.\d{9,}"  # seconds to nanoseconds since the epoch, a random float
)


def _volatile(recorded: Any, actual: Any) -> bool:
    if isinstance(recorded, str) and isinstance(actual, str):
        one, other = set(recorded.split()), set(actual.split())
        return _made(one - other) and _made(other - one)
    return _is_made(recorded) and _is_made(actual)


def _made(words: set[str]) -> bool:
    return any(_MADE.fullmatch(word.strip(".,;:!?()[]{}<>\"'")) for word in words)


def _is_made(value: Any) -> bool:
    if isinstance(value, float):
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        return value > 1_000_000_000
    return isinstance(value, dict) and value.get("$t") in ("datetime", "uuid", "date")
