"""The replacement of an ``HTTPConnection``'s socket during a request of a run.

Everything that ``requests``, ``urllib3``, ``botocore`` and ``urllib.request`` send goes through
``HTTPConnection.putrequest``, and then to the connection's ``sock``. ``Line`` replaces that: it reads the request as it
is sent, begins its step before the first byte leaves, and records the answer before the library gets it. In a replay it
answers from the log, and there is no socket.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from io import BufferedReader, RawIOBase
from typing import Any, Final

from tracekit.integration import (
    AMBIENT,
    NOTHING,
    PASSING,
    Answer,
    Chunks,
    Exchange,
    Incoming,
    RequestHead,
    begin,
    connection_failed,
    current,
    here,
    outside,
    passes_untouched,
    passing,
    served,
    unconnected,
    withheld,
)

__all__ = ["connect", "create_connection", "putrequest", "quiet"]

#: The answers of requests whose caller gets nothing before they are complete; ``None``: the caller gets received data
#: at once.
quiet: Final[ContextVar[list[Incoming] | None]] = ContextVar("tracekit.http_client.quiet", default=None)


# -- opening -----------------------------------------------------------------------------------------------------------------


class Attempt:
    """A connection being opened: ``raised`` is the error that urllib3 wrapped in its own, ``fails`` the one that it is
    to wrap."""

    __slots__ = ("fails", "raised")

    def __init__(self, fails: BaseException | None = None) -> None:
        self.fails: Final = fails
        self.raised: BaseException | None = None


_attempt: Final[ContextVar[Attempt | None]] = ContextVar("tracekit.http_client.attempt", default=None)


def create_connection(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap urllib3's ``create_connection``, whose errors urllib3 turns into its own."""

    @wraps(original)
    def create_connection(*args: Any, **kwargs: Any) -> Any:
        attempt = _attempt.get()
        if attempt is None:
            return original(*args, **kwargs)
        if attempt.fails is not None:
            raise attempt.fails
        try:
            return original(*args, **kwargs)
        except Exception as error:
            attempt.raised = error
            raise

    return create_connection


def connect(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``connect()`` when called without a request, as pools do for TLS and proxies: only its failure becomes a
    step."""

    @wraps(original)
    def connect(self: Any) -> Any:
        if not _is_of_http_client(self) or _attempt.get() is not None or passes_untouched(current.get()):
            return original(self)
        scope, origin = here(), _origin(self)  # a tunnel that fails forgets its destination
        if withheld(scope):
            failure = None if scope is None else connection_failed(scope, *origin)
            if failure is not None:
                _fail(self, failure, lambda: original(self))
            self.sock = Line(self, None)
            _connected(self)
            return None
        if scope is None:
            return original(self)
        attempt = Attempt()
        token = _attempt.set(attempt)
        try:
            with passing():  # the step of the request that follows covers it
                return original(self)
        except Exception as error:
            kind = "raised" if attempt.raised is None else "open"
            unconnected(scope, *origin, attempt.raised or error, kind, str(error))
            raise
        finally:
            _attempt.reset(token)

    return connect


def _is_of_http_client(connection: Any) -> bool:
    """Return whether a connection is http.client's: urllib3-future has classes of the same names that bypass this seam."""
    client: Any = sys.modules.get("http.client")
    return client is not None and isinstance(connection, client.HTTPConnection)


def _fail(connection: Any, failure: Answer, original: Callable[[], Any]) -> None:
    """Raise the recorded error of opening the connection, through the library's own code if that had wrapped it."""
    error = failure.error or ConnectionError(failure.text)
    if failure.raised == "open":
        token = _attempt.set(Attempt(fails=error))
        try:
            original()
        finally:
            _attempt.reset(token)
    raise error


def _origin(connection: Any) -> tuple[bytes, bytes]:
    """Return scheme and ``host[:port]`` of the destination of a connection's requests."""
    tls = connection.default_port == 443
    tunnel = getattr(connection, "_tunnel_host", None)
    host, port = (tunnel, connection._tunnel_port) if tunnel else (connection.host, connection.port)
    host = host.encode("ascii", "replace")
    if b":" in host and not host.startswith(b"["):
        host = b"[%b]" % host
    if port is not None and port != connection.default_port:
        host = b"%b:%d" % (host, port)
    return (b"https" if tls else b"http"), host


def _connected(connection: Any) -> None:
    """Set the attributes that urllib3 sets on an opened connection."""
    if not hasattr(connection, "is_verified"):
        return
    proxy = getattr(connection, "proxy", None)
    if hasattr(connection, "_has_connected_to_proxy"):
        connection._has_connected_to_proxy = bool(proxy)
    if connection.default_port != 443:
        return
    verified = bool(getattr(connection, "assert_fingerprint", None))
    if not verified:
        util: Any = sys.modules["urllib3.util.ssl_"]
        verified = util.resolve_cert_reqs(connection.cert_reqs) == util.CERT_REQUIRED
    forwarding = bool(proxy) and not getattr(connection, "_tunnel_host", None)
    connection.is_verified = verified and not forwarding
    if proxy and getattr(connection, "proxy_is_verified", False) is None:
        connection.proxy_is_verified = verified if forwarding else False


# -- a request ---------------------------------------------------------------------------------------------------------------


def putrequest(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``HTTPConnection.putrequest``, where each request begins."""

    @wraps(original)
    def putrequest(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        if passes_untouched(current.get()):
            if type(self.sock) is Line:
                self.sock = self.sock.real
            return original(self, method, url, *args, **kwargs)
        result = original(self, method, url, *args, **kwargs)
        sock = self.sock
        if type(sock) is Line:
            if sock.fresh:
                return result
            sock = sock.real
        if sock is not None or self.auto_open:  # otherwise it may not be opened again, and raises that itself
            self.sock = Line(self, sock)
        return result

    return putrequest


_LENGTH: Final = re.compile(rb"(?im)^(content-length:)[^\r\n]*")


def _with_body(data: bytes, body: bytes) -> bytes:
    """Return a request with another body."""
    head, end, _ = data.partition(b"\r\n\r\n")
    return _LENGTH.sub(rb"\1 %d" % len(body), head, count=1) + end + body


class Line:
    """The socket of a connection, for one request and its answer.

    ``real`` is the socket itself, if there is one: in a replay, and before the request is known, there need not be.
    """

    # No slots: programs may set attributes of a socket.

    def __init__(self, connection: Any, real: Any) -> None:
        self.connection: Final = connection
        self.real = real
        self.exchange: Exchange | None = None
        #: Whether requests go to ``real``: without a step, or with a live one.
        self._passes = False
        self._head: RequestHead | None = None
        #: What has been sent and is held back until the request is known.
        self._held = b""
        self._chunks: Chunks | None = None
        self._streams = False
        #: Whether its body waits until the server asks for it.
        self._waits = False
        self._incoming: Incoming | None = None
        self._blocks: Iterator[bytes] | None = None
        self._block = b""
        self._transmitted = 0
        self._closed = False
        self._readers = 0
        self._timeout: Any = None
        self._readable: int | None = None

    @property
    def fresh(self) -> bool:
        """Whether nothing has been sent over it."""
        return self._head is None and not self._held and not self._passes

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # it passes for a socket
        return socket.socket if self.real is None else self.real.__class__

    def __getattr__(self, name: str) -> Any:
        real = self.__dict__.get("real")
        if real is not None:
            return getattr(real, name)
        if name in _QUESTIONS:
            return _QUESTIONS[name]
        raise AttributeError(f"there is no connection in a replay: {name!r} has no answer")

    def settimeout(self, timeout: Any) -> None:
        self._timeout = timeout
        if self.real is not None:
            self.real.settimeout(timeout)

    def gettimeout(self) -> Any:
        return self._timeout if self.real is None else self.real.gettimeout()

    def fileno(self) -> int:
        if self.real is not None:
            number: int = self.real.fileno()
            return number
        if self._closed:
            return -1
        if self._readable is None:  # an answer needs no waiting
            self._readable = os.open(os.devnull, os.O_RDONLY)
        return self._readable

    # -- what goes out ---------------------------------------------------------------------------------------------------

    def sendall(self, data: Any, *flags: Any) -> None:
        """Send a part of the request; the library sends its head first, then its body, in one or several pieces."""
        data = data if type(data) is bytes else memoryview(data).tobytes()
        if self._passes and self.exchange is None:
            self.real.sendall(data)
        elif self._head is None:
            self._first(data)
        elif self.exchange is not None:
            self._next(data)
        elif self._blocks is None:  # otherwise nobody receives it
            self._held += data
            self._enough()

    def send(self, data: Any, *flags: Any) -> int:
        self.sendall(data)
        return len(data)

    def _first(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        self._head = RequestHead(self._held[: end - 4])
        if self._head.chunked:
            self._chunks = Chunks()
        self._enough(end)

    def _enough(self, end: int = 0) -> None:
        """Begin the step if the request is known now: it is complete, or its body is sent as it is produced."""
        head = self._head
        assert head is not None
        end = end or self._held.find(b"\r\n\r\n") + 4
        body = self._held[end:]
        if head.chunked or (head.length > len(body) and (body or head.expects)):
            self._begin(body, streamed=True)
        elif head.length <= len(body):
            self._begin(body)

    def _begin(self, body: bytes, *, streamed: bool = False) -> None:
        head, connection = self._head, self.connection
        assert head is not None
        scheme, netloc = _origin(connection)
        target = head.target
        if target[:7] == b"http://" or target[:8] == b"https://":  # through a proxy
            scheme, _, rest = target.partition(b"://")
            netloc, slash, path = rest.partition(b"/")
            target = slash + path or b"/"
        scope = here()
        data, self._held = self._held, b""
        found: Exchange | str | None
        if scope is None:
            parts = (head.method, scheme, netloc, target, head.headers, b"" if streamed else body)
            found = outside(*parts)
        else:
            parts = (head.method, scheme, netloc, target, head.headers, body)
            found = begin(scope, *parts, streamed=streamed, rewrites=not streamed)
            if isinstance(found, Exchange) and found.sends is not None:
                data = _with_body(data, found.sends)
        if found == AMBIENT:
            self._blocks = iter((NOTHING,))
        elif found is None:
            self._pass(data)
        elif found == PASSING:
            with passing():
                self._pass(data)
        else:
            assert isinstance(found, Exchange)
            self.exchange = found
            self._streams = streamed
            self._waits = head.expects and not body
            self._passes = found.step.live or found.go()
            if self._passes:
                self._live(data)
            else:
                self._recorded()
            if streamed and body:
                self._uploaded(body)

    def _pass(self, data: bytes) -> None:
        """Send a request without a step: the real socket takes its place again."""
        token = _attempt.set(Attempt())
        try:
            self._open()
        finally:
            _attempt.reset(token)
        self._passes = True
        self.connection.sock = self.real
        self.real.sendall(data)

    def _open(self) -> None:
        if self.real is not None:
            return
        connection = self.connection
        connection.sock = None
        connection.connect()
        self.real, connection.sock = connection.sock, self
        if self._timeout is not None:
            self.real.settimeout(self._timeout)

    def _live(self, data: bytes) -> None:
        exchange, head = self.exchange, self._head
        assert exchange is not None
        assert head is not None
        held = quiet.get()
        self._incoming = Incoming(exchange, head.method, head.codings, quiet=held is not None)
        if held is not None:
            held.append(self._incoming)
        if self.real is None:
            self._opened(exchange)
        self._transmit(data)

    def _opened(self, exchange: Exchange) -> None:
        """Open the connection, as part of the request."""
        assert self._incoming is not None
        attempt = Attempt()
        token = _attempt.set(attempt)
        try:
            exchange.inside(self._open)
        except BaseException as error:
            kind = "raised" if attempt.raised is None else "open"
            self._incoming.complete = True
            exchange.broke(attempt.raised or error, kind, early="open")
            raise
        finally:
            _attempt.reset(token)

    def _transmit(self, data: bytes) -> None:
        assert self.exchange is not None
        assert self._incoming is not None
        self._transmitted += 1
        try:
            self.exchange.inside(self.real.sendall, data)
        except OSError as error:  # an answer may have arrived nevertheless, and the library may read it
            self._incoming.early = f"cut {self._transmitted} {error.errno or 0} {error.strerror or error}"
            raise

    def _recorded(self) -> None:
        """Apply the log's record of how the request was sent."""
        exchange = self.exchange
        assert exchange is not None
        early = exchange.early()
        if early == "open":
            answer = exchange.first()
            connection = self.connection
            connection.sock = None
            _fail(connection, answer, lambda: exchange.inside(connection.connect))
        _connected(self.connection)
        self._blocks = self._answered(early)
        self._cut(early)

    def _cut(self, early: str | None) -> None:
        self._transmitted += 1
        if early is not None and early.startswith("cut "):
            _, at, number, text = early.split(" ", 3)
            if self._transmitted >= int(at):
                raise OSError(int(number), text) if int(number) else TimeoutError(text)

    def _next(self, data: bytes) -> None:
        if not self._streams:  # more than announced
            if self._passes:
                self._transmit(data)
            return
        if self._waits:
            self._waits = False
            if self._incoming is not None:
                self._incoming.early = None
        self._uploaded(data)
        if self._passes:
            self._transmit(data)
        else:
            assert self.exchange is not None
            self._cut(self.exchange.early())

    def _uploaded(self, data: bytes) -> None:
        assert self.exchange is not None
        if self._chunks is not None:
            data = b"".join([piece for piece, _ in self._chunks.feed(data)])
        if data:
            self.exchange.sent(data)

    # -- what comes back -------------------------------------------------------------------------------------------------

    def makefile(self, mode: str = "r", buffering: int | None = None, **options: Any) -> Any:
        if "w" in mode or "b" not in mode:
            return self.real.makefile(mode, buffering, **options)
        if self._held and self.exchange is None and self._head is not None:  # less was sent than announced
            self._begin(self._held[self._held.find(b"\r\n\r\n") + 4 :])
        if self._passes and self.exchange is None:
            return self.real.makefile(mode, buffering, **options)
        self._readers += 1
        raw = _Reader(self, self.real.makefile("rb", buffering=0) if self._passes else None)
        return raw if buffering == 0 else BufferedReader(raw)

    def receive(self, raw: Any, buffer: Any) -> int | None:
        """Read into ``buffer`` what comes next: from the connection, or the log."""
        if raw is None:
            return self._replayed(buffer)
        exchange, incoming = self.exchange, self._incoming
        assert exchange is not None
        assert incoming is not None
        if self._waits and incoming.early is None:
            incoming.early = "answered"
        try:
            count: int | None = exchange.inside(raw.readinto, buffer)
        except BaseException as error:
            incoming.broke(error)
            raise
        if count is None:
            return None
        if count:
            incoming.feed(bytes(buffer[:count]))
        else:
            incoming.closed()
        if incoming.complete:
            self._over()
        return count

    def _replayed(self, buffer: Any) -> int:
        if not self._block:
            assert self._blocks is not None
            self._block = next(self._blocks, b"")
            if not self._block:
                self._over()
                return 0
        count = min(len(buffer), len(self._block))
        buffer[:count], self._block = self._block[:count], self._block[count:]
        return count

    def _answered(self, early: str | None) -> Iterator[bytes]:
        exchange, head = self.exchange, self._head
        assert exchange is not None
        assert head is not None
        if self._streams and head.expects and early != "answered":
            yield b"HTTP/1.1 100 Continue\r\n\r\n"
        yield from served(exchange, head.codings)

    def _over(self) -> None:
        """Give the connection its socket back: the answer has been read."""
        if self.connection.sock is self:
            self.connection.sock = self.real
        self._release()

    def _release(self) -> None:
        if self._readable is not None:
            os.close(self._readable)
            self._readable = None

    # -- its end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self._release()
        if self.real is not None:
            self.real.close()
        self._left()

    def reader_closed(self) -> None:
        self._readers -= 1
        self._left()

    def _left(self) -> None:
        incoming = self._incoming
        if incoming is not None and not incoming.complete and not self._readers and (self._closed or incoming.begun):
            incoming.left()

    def __del__(self) -> None:
        self._release()


class _Reader(RawIOBase):
    """The raw stream below the library's own reader."""

    def __init__(self, line: Line, raw: Any) -> None:
        super().__init__()
        self._line = line
        self._raw = raw

    @property
    def _sock(self) -> Line:  # some programs access the socket below a response
        return self._line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._line.receive(self._raw, buffer)

    def fileno(self) -> int:
        return self._line.fileno()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._raw is not None:
            self._raw.close()
        self._line.reader_closed()


def _nothing(*_: Any) -> None:
    return None


#: The answers of a nonexistent connection to queries.
_QUESTIONS: Final[dict[str, Callable[..., Any]]] = {
    "setsockopt": _nothing,
    "getsockopt": lambda *_: 0,
    "setblocking": _nothing,
    "shutdown": _nothing,
    "getpeername": lambda: ("0.0.0.0", 0),
    "getsockname": lambda: ("0.0.0.0", 0),
    "getpeercert": lambda *_, **__: {},
    "selected_alpn_protocol": _nothing,
    "version": lambda: "TLSv1.3",
    "cipher": _nothing,
    "unwrap": _nothing,
}
