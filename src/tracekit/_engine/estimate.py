"""How many tokens a call will take, before it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .step import Spec

__all__ = ["answer_tokens", "request_tokens"]

#: Of English text and JSON a token takes four bytes and more; other scripts take more bytes and more tokens alike.
_BYTES_PER_TOKEN: Final = 4
#: What stands around a message or a part of one.
_PER_ITEM: Final = 3
#: A picture or another file sent inside a request, whatever its size.
_PER_FILE: Final = 1600
_LONG: Final = 1024
#: Where requests hold files as base64.
_FILES: Final = frozenset(("data", "file_data", "b64_json"))
#: How requests limit the answer.
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def request_tokens(input: object) -> int:
    """The tokens of a request, by its size: a quarter of the bytes of its texts, and a little around each message."""
    body = input.get("body", input) if isinstance(input, Mapping) else input
    size = 0
    stack: list[tuple[str, Any]] = [("", body)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, str):
            size += _text(key, value)
        elif isinstance(value, Mapping):
            size += _PER_ITEM * _BYTES_PER_TOKEN
            for name, item in value.items():
                size += len(str(name))
                stack.append((str(name), item))
        elif isinstance(value, (list, tuple)):
            stack.extend((key, item) for item in value)
        elif isinstance(value, (bytes, bytearray)):
            size += _PER_FILE * _BYTES_PER_TOKEN if len(value) > _LONG else len(value)
        elif value is not None:
            size += 4
    return -(-size // _BYTES_PER_TOKEN)


def answer_tokens(spec: Spec, input: object, assumed: int) -> int:
    """The most tokens that a request lets the model answer; ``assumed`` where it sets no limit."""
    signature = spec.signature
    if signature.get("operation") == "embeddings":
        return 0
    given = input if isinstance(input, Mapping) else {}
    limit = next((found for found in (_limit(signature), _limit(given)) if found is not None), assumed)
    several = signature.get("n")
    return limit * several if type(several) is int and several > 1 else limit


def _limit(given: Mapping[str, Any]) -> int | None:
    for name in _LIMITS:
        value = given.get(name)
        if type(value) is int and value >= 0:
            return value
    return None


def _text(key: str, value: str) -> int:
    """The bytes of a text; a file that is written as text counts as a file."""
    if len(value) > _LONG and (key in _FILES or value.startswith("data:")):
        return _PER_FILE * _BYTES_PER_TOKEN
    return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
