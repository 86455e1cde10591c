"""Makes each request of httpx's ``Client`` a step; ``_async`` does the same for ``AsyncClient``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import wraps
from typing import Any

from tracekit.integration import AMBIENT, PASSING, Exchange, current, here, passes_untouched, passing

from ._library import Library, library_of, streamed

__all__ = ["wrap", "wrap_send"]


def wrap_send(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Client.send``, which knows whether its caller reads the answer piece by piece."""

    @wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = streamed.set(bool(kwargs.get("stream")))
        try:
            return original(self, *args, **kwargs)
        finally:
            streamed.reset(token)

    return send


def wrap(original: Callable[..., Any], library: Library | None = None) -> Callable[..., Any]:
    """Wrap ``Client._send_single_request`` so that each request is a step.

    What the client does around it (authentication, redirects, event hooks) runs as part of the program, also in a
    replay.
    """
    return _shell(original, library or library_of(original))


def _shell(original: Callable[..., Any], library: Library) -> Callable[..., Any]:
    reading, answering = _streams(library)
    sending = _sending(library)

    @wraps(original)
    def send(self: Any, request: Any) -> Any:
        if passes_untouched(current.get()) or library.is_served_here(self, request):
            return original(self, request)
        scope = here()
        content = library.loaded(request) if scope is None else _content(library, request)
        exchange = library.begin(scope, self, request, content)
        if exchange is None:
            return original(self, request)
        if exchange == PASSING:
            with passing():
                return original(self, request)
        if exchange == AMBIENT:
            return library.nothing(request)
        assert isinstance(exchange, Exchange)
        form = library.form(request)
        if exchange.step.live or exchange.go():
            upload = sending(exchange, request) if content is None else form
            return _live(exchange, original, self, request, upload)
        if form is not None:
            form.again(exchange)
        return _recorded(exchange, self, request, _send_again if content is None else None)

    def _live(exchange: Exchange, original: Any, client: Any, request: Any, upload: Any) -> Any:
        whole = not streamed.get()
        tokens = exchange.enter()
        try:
            response = _read(original, client, request) if whole else original(client, request)
        except BaseException as error:
            exchange.leave(tokens)
            library.broke(exchange, error, early=None if upload is None else upload.end())
            raise
        exchange.leave(tokens)
        early = None if upload is None else upload.end()
        if response.status_code == 101:
            response.close()
            exchange.refuse("an upgraded connection (101)")
        if whole or response.is_stream_consumed:
            library.whole(exchange, response, early=early)
        else:
            library.head(exchange, response, early=early)
            response.stream = reading(response, exchange)
        return response

    def _recorded(exchange: Exchange, client: Any, request: Any, send_again: Any) -> Any:
        own = None if send_again is None else send_again(exchange, request)
        answer = exchange.first()
        if own is not None:
            raise own
        error = library.raised(answer, request)
        if error is not None:
            raise error
        if answer.content is None:
            stream = answering(exchange, request)
        else:
            stream = library.ByteStream(answer.content)
        response = library.response(answer, request, stream, client)
        if answer.content is None:
            stream.response = response
        else:
            response.elapsed = timedelta(seconds=answer.elapsed)
            response.read()
            library.was_read(response, answer)
        return response

    return send


def _read(original: Any, client: Any, request: Any) -> Any:
    """Return a response, read to its end; an upgraded connection has no body."""
    response = original(client, request)
    if response.status_code != 101:
        try:
            response.read()
        except BaseException:
            response.close()
            raise
    return response


def _content(library: Library, request: Any) -> bytes | None:
    """Return the body of a request; ``None`` if it is sent as it is produced. A body for the other kind of client is
    left alone."""
    content: bytes
    stream = request.stream
    if isinstance(stream, library.ByteStream):
        content = request.read()
        return content
    if not isinstance(stream, library.SyncByteStream):
        return b""
    if not request.headers.get("content-type", "").startswith("multipart/"):
        return None
    form = library.Form(stream)  # read into memory: its parts are compared
    content = request.read()
    return form.instead(request, content)  # type: ignore[no-any-return]


def _send_again(exchange: Exchange, request: Any) -> Exception | None:
    """Have the program produce the body again, as far as the recorded one did; return the program's own exception, if
    any."""
    pieces = iter(request.stream)
    while exchange.draws():
        try:
            data = next(pieces)
        except StopIteration:
            break
        except Exception as error:
            return error
        exchange.sent(data)
    return None


def _sending(library: Library) -> Any:
    """Return the stream class of a request's body, a subclass of the library's own: each piece is in the log before it
    is sent."""

    class Sending(library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, exchange: Exchange, request: Any) -> None:
            self._exchange = exchange
            self._request = request
            self._inner = request.stream
            self._early: str | None = "left"
            request.stream = self

        def __iter__(self) -> Iterator[bytes]:
            pieces = iter(self._inner)
            while True:
                tokens = self._exchange.draw()
                try:
                    data = next(pieces)
                except StopIteration:
                    self._early = None
                    return
                except BaseException:
                    self._early = "raised"
                    raise
                finally:
                    self._exchange.drawn(tokens)
                self._exchange.sent(data)
                yield data

        def end(self) -> str | None:
            """Return how it ended early, if it did; give the request its own stream back."""
            self._request.stream = self._inner
            return self._early

    return Sending


def _streams(library: Library) -> tuple[Any, Any]:
    """Return two subclasses of the library's own stream: one that reports what it reads, one that reads from the log."""

    class Reading(library.SyncByteStream):  # type: ignore[misc, name-defined]
        """The live stream of a response; each piece is in the log before the caller gets it."""

        def __init__(self, response: Any, exchange: Exchange) -> None:
            self._inner = response.stream
            self._response = response
            self._exchange = exchange
            self._decoder = library.decoder(response)

        def __iter__(self) -> Iterator[bytes]:
            exchange, body, decoder = self._exchange, self._exchange.body, self._decoder
            undoes = library.undoes(self._response)
            pieces = iter(self._inner)
            enter, leave, report, received = current.set, current.reset, exchange.piece, exchange.receiver()
            while True:
                token = enter(body)
                try:
                    data = next(pieces)
                except StopIteration:
                    leave(token)
                    if decoder is not None and undoes:
                        plain = library.decoded(exchange, decoder.flush)
                        if plain:
                            report(plain, size=0)
                    exchange.end()
                    return
                except BaseException as error:
                    leave(token)
                    library.broke(exchange, error)
                    raise
                leave(token)
                if decoder is None:
                    received(data)
                elif not undoes:
                    report(data, plain=library.understood(exchange, decoder, data))
                else:
                    plain = library.decoded(exchange, decoder.decode, data)
                    if plain is not None:
                        report(plain, size=len(data))
                try:
                    yield data
                except GeneratorExit:
                    exchange.left()
                    raise

        def close(self) -> None:
            self._exchange.left()
            token = current.set(self._exchange.body)
            try:
                self._inner.close()
            finally:
                current.reset(token)
            self._response.elapsed = timedelta(seconds=self._exchange.elapsed)

    class Answering(library.SyncByteStream):  # type: ignore[misc, name-defined]
        """The stream of a response from the log."""

        def __init__(self, exchange: Exchange, request: Any) -> None:
            self.response: Any = None
            self._exchange = exchange
            self._request = request
            self._elapsed = 0.0

        def __iter__(self) -> Iterator[bytes]:
            exchange = self._exchange
            while isinstance(piece := exchange.next_piece(), bytes):
                if exchange.size is not None:
                    library.undone(self.response, exchange, piece)
                yield piece
            self._elapsed = piece.elapsed
            error = library.raised(piece, self._request)
            if error is not None:
                raise error

        def close(self) -> None:
            self.response.elapsed = timedelta(seconds=self._elapsed)

    return Reading, Answering
