"""Takes the requests of httpx apart and makes its responses; the same for httpx2, which has the same interface."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

from tracekit.integration import Answer, Exchange, Headers, Scope, begin, outside

from ._values import teach

__all__ = ["Library", "library_of", "streamed"]

_libraries: dict[str, Library] = {}
#: How long the name ``content-encoding`` is, and what takes the name of a header.
_CODING: Final = len(b"content-encoding")
_NAME: Final = itemgetter(0)
#: Whether the caller of ``send`` reads the answer piece by piece.
streamed: Final[ContextVar[bool]] = ContextVar("tracekit_httpx_streamed", default=False)
#: The transports of clients that call an application in this process, as its tests do.
_APPLICATIONS: Final = frozenset(
    (
        "httpx.ASGITransport",
        "httpx.WSGITransport",
        "httpx2.ASGITransport",
        "httpx2.WSGITransport",
        "litestar.testing.transport.TestClientTransport",
        "starlette.testclient._TestClientTransport",
    )
)
#: A cache by the type of transport.
_served_here: Final[WeakKeyDictionary[type, bool]] = WeakKeyDictionary()


def library_of(function: Any) -> Library:
    """Return the library in which ``function`` (an original ``send``) is defined."""
    name = str(function.__module__).partition(".")[0]
    found = _libraries.get(name)
    if found is None:
        found = _libraries[name] = Library(sys.modules[name])
        teach(found, name)
    return found


class Library:
    """One of the two modules, and the conversion between exchanges and its objects."""

    __slots__ = (
        "AsyncByteStream",
        "ByteStream",
        "Form",
        "HTTPStatusError",
        "Request",
        "RequestError",
        "Response",
        "SyncByteStream",
        "identity",
        "module",
    )

    def __init__(self, module: Any) -> None:
        self.module: Final = module
        self.Request: Final = module.Request
        self.Response: Final = module.Response
        self.ByteStream: Final = module.ByteStream
        self.SyncByteStream: Final = module.SyncByteStream
        self.AsyncByteStream: Final = module.AsyncByteStream
        self.RequestError: Final = module.RequestError
        self.HTTPStatusError: Final = module.HTTPStatusError
        self.Form: Final = _form(module)
        #: The decoder of a body without content coding.
        self.identity: Final = module.Response(200, stream=module.ByteStream(b""))._get_content_decoder()

    # -- what goes out ---------------------------------------------------------------------------------------------------

    def begin(self, scope: Scope | None, client: Any, request: Any, content: bytes | None) -> Exchange | str | None:
        """Begin the step of a request of ``client``; without ``content`` its body is sent as it is produced."""
        url = request.url
        parts = (request.method, url.raw_scheme, url.netloc, url.raw_path, _headers(request), content or b"")
        if scope is None:
            return outside(*parts)
        streamed = content is None
        inside = partial(self._stays_inside, client, request)
        exchange = begin(scope, *parts, streamed=streamed, within=inside, rewrites=not streamed)
        if isinstance(exchange, Exchange) and exchange.sends is not None:
            form = self.form(request)
            if form is None:
                request.stream = self.ByteStream(exchange.sends)
                request._content = exchange.sends
            else:
                form.content = exchange.sends
            request.headers["content-length"] = str(len(exchange.sends))
        return exchange

    def _stays_inside(self, client: Any, request: Any) -> bool:
        """Return whether a request goes to an application in this process, and not over a network by the library's own
        transports."""
        transport = client._transport_for_url(request.url)
        return not isinstance(transport, (self.module.HTTPTransport, self.module.AsyncHTTPTransport))

    def is_served_here(self, client: Any, request: Any) -> bool:
        """Return whether an application of the program answers a request in this process: its actions are steps of
        their own."""
        kind = type(client._transport_for_url(request.url) if client._mounts else client._transport)
        found = _served_here.get(kind)
        if found is None:
            names = {f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__}
            found = _served_here[kind] = not names.isdisjoint(_APPLICATIONS)
        return found

    def form(self, request: Any) -> Any:
        """Return the form that was read from a request, until it is sent."""
        stream = request.stream
        return stream if isinstance(stream, self.Form) else None

    def loaded(self, request: Any) -> bytes:
        """Return the body of a request if it is in memory already: outside of any run none is read ahead."""
        try:
            content: bytes = request.content
        except self.module.RequestNotRead:
            return b""
        return content

    # -- what comes back, live -------------------------------------------------------------------------------------------

    def also(self, response: Any, headers: Headers) -> dict[str, Any]:
        """Return what to keep of a response with these ``headers`` besides status, headers and body."""
        also: dict[str, Any] = {}
        say = response.extensions.get
        version, reason = say("http_version"), say("reason_phrase")
        if version is not None and version != b"HTTP/1.1":
            also["http_version"] = version.decode("ascii", "ignore")
        if reason is not None and reason != b"OK":
            also["reason"] = reason.decode("ascii", "ignore")
        if _CODING in map(len, map(_NAME, headers)):  # most responses have no coding, and many headers
            coded = _coded(headers)
            if coded:
                also["wire"] = {"coded": coded}
                if hasattr(response, "_content"):
                    also["wire"]["size"] = response.num_bytes_downloaded
        return also

    @staticmethod
    def elapsed(response: Any) -> float | None:
        """Return how many seconds a response took; ``None`` while it is open, or if nobody has timed it (a mock's)."""
        try:
            seconds: float = response.elapsed.total_seconds()
        except RuntimeError:
            return None
        return seconds

    def _also(self, exchange: Exchange, response: Any, headers: Headers) -> dict[str, Any]:
        also = self.also(response, headers)
        jar = exchange.jar(headers)
        if jar:
            also["wire"] = {**also.get("wire", {}), "jar": jar}
        return also

    def whole(self, exchange: Exchange, response: Any, *, suspended: bool = False, early: str | None = None) -> None:
        """Report a response whose body has been read."""
        headers = _headers(response)
        exchange.whole(
            response.status_code,
            headers,
            response.content,
            also=self._also(exchange, response, headers),
            elapsed=self.elapsed(response),
            suspended=suspended,
            early=early,
        )

    def head(self, exchange: Exchange, response: Any, *, suspended: bool = False, early: str | None = None) -> None:
        """Report a response whose body is still to come."""
        headers = _headers(response)
        also = self._also(exchange, response, headers)
        exchange.head(response.status_code, headers, also=also, suspended=suspended, early=early)

    def decoder(self, response: Any) -> Any:
        """Return a separate content decoder for the log, or ``None`` if the library decodes no coding of the body."""
        coding = response.headers.get("content-encoding")
        if coding is None:
            return None
        decoder = self.Response(
            200, headers={"content-encoding": coding}, stream=self.ByteStream(b"")
        )._get_content_decoder()
        return None if type(decoder) is type(self.identity) else decoder

    @staticmethod
    def undoes(response: Any) -> bool:
        """Return whether the reader of ``response`` has the library decode it, and does not read the raw body."""
        return hasattr(response, "_decoder")

    def understood(self, exchange: Exchange, decoder: Any, data: bytes) -> bytes:
        """Return the decoded form of a piece that the program reads raw, if a dialect reads it, too."""
        if not exchange.has_dialect:
            return b""
        try:
            plain = decoder.decode(data)
            return plain if isinstance(plain, bytes) else b"".join(plain)
        except self.RequestError:
            return b""

    def decoded(self, exchange: Exchange, decode: Any, *data: bytes) -> bytes | None:
        """Return a decoded piece, or the decoder's rest; ``None`` if it fails, as the library's own decoder will: that
        is reported."""
        try:
            plain = decode(*data)
            return plain if isinstance(plain, bytes) else b"".join(plain)
        except self.RequestError as error:
            self.broke(exchange, error)
            return None

    def broke(
        self, exchange: Exchange, error: BaseException, *, suspended: bool = False, early: str | None = None
    ) -> None:
        """Report an exception; its attributes (the request with its headers) are kept out of the log."""
        kind = type(error).__name__
        own = getattr(self.module, kind, None) is type(error)
        held: dict[str, Any] = {
            key: error.__dict__.pop(key) for key in ("_request", "response") if key in error.__dict__
        }
        try:
            held_response = held.get("response")
            answered = _read_already(held_response) if isinstance(held_response, self.Response) else None
            exchange.broke(error, kind if own else None, response=answered, suspended=suspended, early=early)
        finally:
            error.__dict__.update(held)

    # -- what comes back, from the log -----------------------------------------------------------------------------------

    def raised(self, answer: Answer, request: Any) -> BaseException | None:
        """Return the exception to raise, of the library's own type and with its request, like the recorded one;
        ``None`` if there is none."""
        error = answer.error
        kind = getattr(self.module, answer.raised, None) if answer.raised else None
        if kind is None:
            return error
        if issubclass(kind, self.HTTPStatusError):
            response = self.response(answer, request, self.ByteStream(answer.content or b""))
            if answer.read:
                response.read()
                self.was_read(response, answer)
            made: BaseException = kind(answer.text, request=request, response=response)
            return made
        if not isinstance(error, kind):
            error = kind(answer.text)
        if isinstance(error, self.RequestError):
            error.request = request
        return error  # type: ignore[no-any-return]

    def response(self, answer: Answer, request: Any, stream: Any, client: Any = None) -> Any:
        """Return the library's own response; its body comes from ``stream``."""
        extensions = {"http_version": answer.http_version.encode("ascii")}
        if answer.reason is not None:
            extensions["reason_phrase"] = answer.reason.encode("ascii")
        jar = [("set-cookie", cookie) for cookie in answer.wire.get("jar", ())]
        coded = answer.wire.get("coded", {})
        response = self.Response(
            answer.status,
            headers=[*answer.headers, *coded.items(), *jar],
            stream=stream,
            request=request,
            extensions=extensions,
            default_encoding=getattr(client, "_default_encoding", "utf-8"),
        )
        if coded and answer.content is not None:
            response._decoder = self.identity
        if client is not None and jar:
            client.cookies.extract_cookies(response)
        return response

    def was_read(self, response: Any, answer: Answer) -> None:
        """Set how many bytes were transferred, for a response that was recorded whole and has been read."""
        size = answer.wire.get("size")
        if size is not None:
            response._num_bytes_downloaded = size

    def undone(self, response: Any, exchange: Exchange, piece: bytes) -> None:
        """Prepare for the next piece of ``response`` from the log, which is decoded: a reader that has the library
        decode gets it as it is."""
        if not self.undoes(response):
            raise exchange.reads_coded()
        decoder = response._decoder
        decoder.decode, decoder.flush = self.identity.decode, self.identity.flush
        response._num_bytes_downloaded += (exchange.size or 0) - len(piece)

    def nothing(self, request: Any) -> Any:
        """Return the answer to traffic that is not the program's."""
        response = self.Response(200, json={}, request=request)
        response.elapsed = timedelta()
        return response


def _form(module: Any) -> Any:
    """Return the stream class of a form that was read before it is sent, a subclass of the library's own."""

    class Form(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc]
        """Until it is sent, the files in it are at the positions where the program left them; then at those after
        reading."""

        def __init__(self, own: Any) -> None:
            self.content = b""
            self.fields = getattr(own, "fields", ())
            self._files = [field.file for field in self.fields if hasattr(field, "file")]
            self._begin = [_position(file) for file in self._files]
            self._end: list[tuple[Any, int]] = []
            self._sent = False

        def instead(self, request: Any, content: bytes) -> bytes:
            """Become the stream of a request that has been read; it behaves like an unread one."""
            self.content = content
            ends = [_position(file) for file in self._files]
            for file, at, end in zip(self._files, self._begin, ends, strict=True):
                if at is not None and end is not None and _moved(file, at):
                    self._end.append((file, end))
            del request._content
            request.stream = self
            return content

        def __iter__(self) -> Iterator[bytes]:
            self._send()
            yield self.content

        async def __aiter__(self) -> AsyncIterator[bytes]:
            self._send()
            yield self.content

        def _send(self) -> None:
            self._sent = True
            for file, end in self._end:
                _moved(file, end)

        def again(self, exchange: Exchange) -> None:
            """Send what the recorded program sent."""
            if exchange.early() is None:
                self._send()

        def end(self) -> str | None:
            """Return how it ended early, if it did."""
            return None if self._sent else "left"

    return Form


def _position(file: Any) -> int | None:
    """Return the position of a file; a text or a pipe has none."""
    try:
        position: int = file.tell()
    except Exception:  # whatever a file of the program's own raises
        return None
    return position


def _moved(file: Any, position: int) -> bool:
    """Move a file to a position; return whether that is possible."""
    try:
        file.seek(position)
    except Exception:  # as above
        return False
    return True


def _headers(message: Any) -> Headers:
    """The headers of a request or response: the list in which the library has them, where it does, with lower-case names between. Its own
    ``raw`` makes a new one each time that it is asked."""
    headers = message.headers
    found: Headers = getattr(headers, "_list", None) or headers.raw
    return found


def _coded(headers: Headers) -> dict[str, str]:
    """Return the headers of a coded body that its form in the log lacks; empty if it has no coding."""
    codings = [one[-1] for one in headers if len(one[0]) == _CODING and one[0].lower() == b"content-encoding"]
    if not codings:
        return {}
    coded = {"content-encoding": b", ".join(codings).decode("latin-1")}
    for name, *_, value in headers:
        if name.lower() == b"content-length":
            coded["content-length"] = value.decode("latin-1")
    return coded


def _read_already(response: Any) -> tuple[int, Any, bytes] | None:
    if not response.is_stream_consumed:
        return None
    try:
        return response.status_code, response.headers.raw, response.content
    except RuntimeError:
        return None
