"""Requests of aiohttp in the form that a step needs, and the exceptions of opening a connection."""

from __future__ import annotations

import sys
from typing import Any, Final

from tracekit.integration import Answer, Exchange

__all__ = ["Asked", "raised", "report", "rewrite"]

#: The boundary between the parts of a body that is sent as it is produced; always this one in the log.
_BOUNDARY: Final = b"boundary"


class Asked:
    """A request: ``parts`` are the arguments of ``begin``. ``streamed``: its body is sent as it is produced."""

    __slots__ = ("_boundary", "codings", "method", "parts", "streamed", "websocket")

    def __init__(self, req: Any, content: bytes | None) -> None:
        self.method: Final[str] = req.method
        self.streamed: Final = content is None
        self._boundary: Final = _boundary(req.headers.get("content-type", "")) if content is None else b""
        self.codings: Final[str] = req.headers.get("accept-encoding", "").lower()
        #: Whether it requests a websocket.
        self.websocket: Final = req.headers.get("upgrade", "").lower() == "websocket"
        url = req.url
        headers = [(name.encode(), value.encode()) for name, value in req.headers.items()]
        if self._boundary:
            headers = [(name, self.masked(value)) for name, value in headers]
        self.parts: Final = (
            "WEBSOCKET" if self.websocket else req.method,
            _scheme(url, self.websocket),
            _netloc(url),
            url.raw_path_qs.encode(),
            headers,
            content or b"",
        )

    @classmethod
    async def of(cls, req: Any) -> Asked:
        return cls(req, await _content(req))

    def masked(self, data: bytes) -> bytes:
        """Return ``data`` with the log's boundary: the library generates another one each time."""
        return data.replace(self._boundary, _BOUNDARY) if self._boundary else data


_OF_WEBSOCKETS: Final = {"http": "ws", "https": "wss"}
_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def _scheme(url: Any, websocket: bool) -> bytes:
    scheme: str = url.scheme
    return (_OF_WEBSOCKETS.get(scheme, scheme) if websocket else scheme).encode()


def _netloc(url: Any) -> bytes:
    host: str = url.raw_host or ""
    if ":" in host:
        host = f"[{host}]"
    port = url.port
    return (host if port is None or port == _PORTS.get(url.scheme) else f"{host}:{port}").encode("ascii", "replace")


def _boundary(content_type: str) -> bytes:
    if not content_type.lower().startswith("multipart/"):
        return b""
    return content_type.partition("boundary=")[2].partition(";")[0].strip().strip('"').encode()


async def _content(req: Any) -> bytes | None:
    """Return the body if it is in memory; else ``None``."""
    body = req.body
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    library: Any = sys.modules["aiohttp.payload"]
    if req.compress:
        return None
    if isinstance(body, library.BytesPayload):
        return bytes(body._value)
    multipart: Any = sys.modules["aiohttp.multipart"]
    if isinstance(body, multipart.MultipartWriter) and all(
        isinstance(part, library.BytesPayload) and not encoding and not transfer
        for part, encoding, transfer in body._parts
    ):
        memory = _Memory()
        await body.write(memory)
        return bytes(memory.content)
    return None


async def rewrite(req: Any, content: bytes) -> None:
    """Give an unsent request another body."""
    if hasattr(req, "update_body"):  # from 3.12 on
        await req.update_body(content)
    else:
        req.headers.pop("content-length", None)
        req.update_body_from_data(content)


class _Memory:
    """A writer for a body that is in memory, to read it."""

    def __init__(self) -> None:
        self.content: Final = bytearray()

    async def write(self, data: Any) -> None:
        self.content.extend(data)


# -- connections that fail -----------------------------------------------------------------------------------------------------


def report(exchange: Exchange, error: BaseException, *, suspended: bool) -> None:
    """Record that no connection could be opened.

    The attributes of a library's exception (the connection's key, with credentials of a proxy; the request with its
    headers) are kept out of the log.
    """
    library: Any = sys.modules["aiohttp.client_exceptions"]
    kind = type(error).__name__
    if getattr(library, kind, None) is not type(error):
        exchange.broke(error, "raised", suspended=suspended, early="open")
    elif isinstance(error, library.ClientConnectorCertificateError):
        exchange.broke(error.certificate_error, kind, suspended=suspended, early="open")
    elif isinstance(error, library.ClientConnectorError):
        exchange.broke(error.os_error, f"{kind} {error.host}", suspended=suspended, early="open")
    elif isinstance(error, library.ClientResponseError):
        headers = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
        exchange.broke(
            ConnectionError(error.message),
            kind,
            response=(error.status, headers, b""),
            suspended=suspended,
            early="open",
        )
    else:
        exchange.broke(error, "raised", suspended=suspended, early="open")


def raised(answer: Answer, req: Any) -> BaseException:
    """Return the library's exception for the recorded failure."""
    error = answer.error or ConnectionError(answer.text)
    kind, _, host = (answer.raised or "").partition(" ")
    library: Any = sys.modules["aiohttp.client_exceptions"]
    found: Any = getattr(library, kind, None)
    if found is None:
        return error
    made: BaseException
    if issubclass(found, library.ClientResponseError):
        made = found(_asked_of_proxy(req), (), status=answer.status, message=answer.text, headers=_headers(answer))
    else:
        made = found(_key(req, host), error)
        made.__cause__ = error
    return made


def _asked_of_proxy(req: Any) -> Any:
    """Return the library's description of the request for a tunnel."""
    library: Any = sys.modules["aiohttp.client_reqrep"]
    asked = req.request_info
    return library.RequestInfo(asked.url, "CONNECT", asked.headers, req.proxy)


def _headers(answer: Answer) -> Any:
    multidict: Any = sys.modules["multidict"]
    return multidict.CIMultiDict(answer.headers)


def _key(req: Any, host: str) -> Any:
    """Return the key of the connection that failed: the proxy's, if the proxy failed."""
    key = req.connection_key
    if not host or host == key.host or req.proxy is None:
        return key
    changes = {"host": req.proxy.raw_host, "port": req.proxy.port, "is_ssl": req.proxy.scheme == "https"}
    if hasattr(key, "_replace"):
        return key._replace(**changes)
    attr: Any = sys.modules["attr"]
    return attr.evolve(key, **changes)
