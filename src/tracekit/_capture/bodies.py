"""Bodies of HTTP messages: bytes on the wire <-> a readable value that gives the same bytes back.

A JSON body is kept as JSON where one of a few ways of writing JSON reproduces it byte for byte; the *format* says which.
Anything else is kept as text where it is UTF-8, else as bytes. Nothing is ever normalised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from .._canonical import to_json

__all__ = ["NOT_JSON", "decode", "encode", "is_plain", "multipart", "parsed"]

#: What ``parsed`` returns for a body that is not JSON; ``None`` is a JSON value.
NOT_JSON: Final = object()


def _python(**style: Any) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        import json

        return json.dumps(value, **style).encode()

    return write


#: How JSON is written, by the name of the format. The first is how both SDKs and most servers write it.
_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "json": orjson.dumps,
    "json:indent": lambda value: orjson.dumps(value, option=orjson.OPT_INDENT_2),
    "json:spaced": _python(ensure_ascii=False),
    "json:ascii": _python(separators=(",", ":")),
    "json:spaced-ascii": _python(),
    "json:indent-ascii": _python(indent=2),
}
_NEWLINE: Final = "+newline"


def parsed(content: bytes) -> Any:
    """The JSON value of ``content``, or ``NOT_JSON``."""
    if content[:1] not in b'{["' or not content:
        return NOT_JSON
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return NOT_JSON


#: A body longer than this, or with more containers, is looked at value by value.
_EASY: Final = 1 << 20
_CONTAINERS: Final = 150
#: So many are looked up one by one.
_FEW: Final = 40


def is_plain(content: bytes, value: Any) -> bool:
    """Whether ``content``, written by orjson from ``value``, is also how the log writes that value.

    It is where no key can be taken for a tag (a key with a dollar) and nothing is nested too deep.
    """
    if 36 not in content and len(content) < _EASY and _containers(content) < _CONTAINERS:
        return True
    return to_json(value) is value


def _containers(content: bytes) -> int:
    """How many there may be at most in encoded JSON.

    ``find`` jumps from one to the next, ``count`` looks at each byte: 0.8 and 7 microseconds for one message of 10 KB.
    """
    found = 0
    for bracket in b"{[":
        at = content.find(bracket)
        while at >= 0 and found < _FEW:
            found += 1
            at = content.find(bracket, at + 1)
    return found if found < _FEW else content.count(b"{") + content.count(b"[")


def encode(content: bytes, value: Any = NOT_JSON, *, text: bool = True) -> tuple[Any, str]:
    """A value for the log and its format: ``content`` again from :func:`decode`.

    ``value`` is what :func:`parsed` made of it, where that was asked before. ``text=False`` keeps what is not JSON as bytes.
    """
    if value is not NOT_JSON and _flat(content, value):
        format = _format(content, value)
        if format is not None:
            return value, format
    if text:
        try:
            return content.decode(), "text"
        except UnicodeDecodeError:
            pass
    return content, "bytes"


#: A body that is nested deeper is kept as text: as a value it might be opaque.
_LEVELS: Final = 150


def _flat(content: bytes, value: Any) -> bool:
    if _containers(content) <= _LEVELS:
        return True
    level = [value]
    for _ in range(_LEVELS):
        level = [
            item
            for node in level
            for item in (node.values() if type(node) is dict else node)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return True
    return False


def _format(content: bytes, value: Any) -> str | None:
    """The format that reproduces ``content`` from ``value``, the likely one tried first."""
    if orjson.dumps(value) == content:
        return "json"
    end = ""
    if content.endswith(b"\n"):
        content, end = content[:-1], _NEWLINE
    for format, write in _WRITERS.items():
        try:
            if write(value) == content:
                return format + end
        except (TypeError, ValueError):  # json.dumps and orjson differ in what they refuse
            continue
    return None


def decode(value: Any, format: str) -> bytes:
    """The bytes that :func:`encode` was given.

    A value that redaction replaced by a string comes back as that string in JSON.
    """
    if format == "bytes" or format == "text":
        return value.encode() if isinstance(value, str) else bytes(value)
    end = b""
    if format.endswith(_NEWLINE):
        format, end = format[: -len(_NEWLINE)], b"\n"
    return _WRITERS[format](value) + end


def multipart(content: bytes, content_type: str) -> list[dict[str, Any]] | None:
    """The parts of a multipart body, without its boundary (which is different each time); ``None`` if it is not one.

    Each part is ``{"name", "filename", "type", "body"}``, what is absent left out; ``body`` is text where it is UTF-8, else bytes.
    """
    boundary = _boundary(content_type)
    if not boundary:
        return None
    pieces = (b"\r\n" + content).split(b"\r\n--" + boundary)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        return None
    return [_part(piece) for piece in pieces[1:-1]]


def _boundary(content_type: str) -> bytes:
    for item in content_type.split(";")[1:]:
        key, _, value = item.strip().partition("=")
        if key.lower() == "boundary":
            return value.strip('"').encode()
    return b""


def _part(piece: bytes) -> dict[str, Any]:
    head, _, body = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    part: dict[str, Any] = {}
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-disposition":
            for item in value.split(";")[1:]:
                key, _, quoted = item.strip().partition("=")
                if key in ("name", "filename"):
                    part[key] = quoted.strip('"')
        elif name.lower() == "content-type":
            part["type"] = value.strip()
    part["body"] = encode(body)[0]
    return part
