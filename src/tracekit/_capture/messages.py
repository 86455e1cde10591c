"""HTTP messages as the log tells them: status, the headers that say what the body is, and the body.

``{"status", "headers", "body", "format"}``; headers are lower-case, a list where a name comes twice. Bodies are told with their
content coding undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from .bodies import NOT_JSON, decode, encode, is_plain
from .routes import secret, shown

__all__ = ["Headers", "body_of", "message", "pairs", "response_headers", "textual", "whole"]

#: Header names and values as they are sent.
Headers = Sequence[tuple[bytes, bytes]]

#: Response headers that say how the body travelled, not what it is; it is stored, and given back, without them.
_TRAVEL: Final = frozenset({"content-encoding", "transfer-encoding", "connection", "keep-alive"})
#: How many header names are remembered.
_NAMES: Final = 10_000
_KEPT: Final[dict[bytes, str]] = {}


def message(status: int, headers: Headers, content: bytes, value: Any = NOT_JSON) -> dict[str, Any]:
    """A whole answer as the log tells it."""
    told, content_type = response_headers(headers)
    body, format = encode(content, value, text=textual(content_type))
    return {"status": status, "headers": told, "body": body, "format": format}


def whole(
    status: int, headers: Headers, content: bytes, value: Any, also: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes | None]:
    """As :func:`message`, with ``also`` in it; and its JSON, where ``content`` can stand in it as it came."""
    told, content_type = response_headers(headers)
    body, format = encode(content, value, text=textual(content_type))
    output: dict[str, Any] = {"status": status, "headers": told, "body": body, "format": format}
    if also:
        output.update(also)
    elif format == "json" and is_plain(content, value):
        head = orjson.dumps(told)
        if 36 not in head:  # a dollar: it might be taken for a tag
            return output, b'{"status":%d,"headers":%b,"body":%b,"format":"json"}' % (status, head, content)
    return output, None


def body_of(message: Mapping[str, Any]) -> bytes:
    """The bytes of the body of a message that was told; nothing where it has none."""
    return decode(message["body"], message["format"]) if "format" in message else b""


def response_headers(headers: Headers) -> tuple[dict[str, Any], str]:
    """The headers that are kept, lower-case, a list where a name comes twice; and the content type."""
    told: dict[str, Any] = {}
    coded = False
    for raw, content in headers:
        name = _KEPT.get(raw)
        if name is None:
            name = _kept(raw)
        if not name:
            coded = coded or raw.lower() == b"content-encoding"
            continue
        value = content.decode("latin-1")
        if name == "location":
            value = shown(value)
        if name in told:
            before = told[name]
            told[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            told[name] = value
    if coded:
        told.pop("content-length", None)
    content_type = told.get("content-type", "")
    return told, content_type if isinstance(content_type, str) else content_type[0]


def _kept(raw: bytes) -> str:
    """A response header's name, or nothing where it only says how the body travelled, or may carry a credential."""
    name = raw.decode("latin-1").lower()
    dropped = name in _TRAVEL or secret(name) or name.endswith(("-token", "-cookie"))
    if len(_KEPT) < _NAMES:
        _KEPT[raw] = "" if dropped else name
    return "" if dropped else name


def pairs(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Told headers as pairs again."""
    found: list[tuple[str, str]] = []
    for name, value in headers.items():
        if type(value) is str:
            found.append((name, value))
        else:
            values: Iterable[str] = value if isinstance(value, list) else (value,)
            found.extend((name, item) for item in values)
    return found


@lru_cache(_NAMES)
def textual(content_type: str) -> bool:
    """Whether a body of this type is told as text where it can be."""
    kind = content_type.partition(";")[0].strip().lower()
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("json", "xml", "jsonl", "ndjson"))
        or kind == "application/x-www-form-urlencoded"
    )
