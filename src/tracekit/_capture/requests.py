"""What a request says that matters to its step: a few of its headers, and its body as a value."""

from __future__ import annotations

from typing import Any, Final

from .bodies import encode, multipart
from .messages import Headers

__all__ = ["Facts", "request_body"]

#: Request headers that are looked at, and those that change what a model does.
_TOLD: Final = frozenset(
    {"user-agent", "content-type", "x-stainless-retry-count", "x-stainless-package-version", "upgrade"}
    | {"anthropic-beta", "anthropic-version", "openai-beta"}
)
#: Request headers whose value is a secret, which is looked for in all that is stored from then on.
_CREDENTIALS: Final = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-auth-token",
        "ocp-apim-subscription-key",
    }
)
#: How many header names are remembered.
_NAMES: Final = 10_000
_TELLING: Final[dict[bytes, str]] = {}


class Facts:
    """What the headers of a request say that matters here, in one pass over them.

    ``attempt`` counts from 1; ``told`` holds the headers that change what a model does, ``None`` where there are none.
    ``credentials`` are the values of credential headers.
    """

    __slots__ = ("agent", "attempt", "content_type", "credentials", "told", "upgrade", "version")

    def __init__(self, headers: Headers) -> None:
        self.agent = b""
        self.attempt = 1
        self.content_type = b""
        self.upgrade = False
        self.version = b""
        self.told: dict[str, str] | None = None
        self.credentials: list[bytes] = []
        telling = _TELLING
        for raw, value in headers:
            name = telling.get(raw)
            if name is None:
                name = _telling(raw)
            if not name:
                continue
            if name == "user-agent":
                self.agent = value
            elif name == "content-type":
                self.content_type = value
            elif name == "x-stainless-retry-count":
                self.attempt = int(value) + 1 if value.isdigit() else 1
            elif name == "x-stainless-package-version":
                self.version = value
            elif name == "upgrade":
                self.upgrade = value.lower() == b"websocket"
            elif name in _CREDENTIALS:
                self.credentials.append(value)
            else:
                self.told = {**(self.told or {}), name: value.decode("latin-1")}


def _telling(raw: bytes) -> str:
    """The name of a request header that matters, else nothing; remembered by how it is written."""
    name = raw.decode("latin-1").lower()
    found = name if name in _TOLD or name in _CREDENTIALS else ""
    if len(_TELLING) < _NAMES:
        _TELLING[raw] = found
    return found


def request_body(content: bytes, value: Any, content_type: bytes) -> tuple[Any, str]:
    """The body as it is told and its format; ``value`` is what ``bodies.parsed`` made of it."""
    if not content:
        return None, "none"
    if content_type.startswith(b"multipart/"):
        parts = multipart(content, content_type.decode("latin-1"))
        if parts is not None:
            return parts, "multipart"
    return encode(content, value)
