"""Makes each request of httpx's ``AsyncClient`` a step; ``_sync`` does the same for ``Client``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from tracekit.integration import AMBIENT, PASSING, Exchange, closing, current, drive, here, passes_untouched, passing

from ._library import Library, library_of, streamed

__all__ = ["wrap", "wrap_close", "wrap_send"]


def wrap_send(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``AsyncClient.send``, which knows whether its caller reads the answer piece by piece."""

    @wraps(original)
    async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = streamed.set(bool(kwargs.get("stream")))
        try:
            return await original(self, *args, **kwargs)
        finally:
            streamed.reset(token)

    return send


def wrap_close(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what closes the connections of an ``AsyncHTTPTransport``: ``aclose`` and ``__aexit__``."""

    @wraps(original)
    async def close(self: Any, *error: Any) -> Any:
        scope = None if passes_untouched(current.get()) else here()
        return await closing(scope, original(self, *error))

    return close


def wrap(original: Callable[..., Any], library: Library | None = None) -> Callable[..., Any]:
    """Wrap ``AsyncClient._send_single_request`` so that each request is a step.

    What the client does around it (authentication, redirects, event hooks) runs as part of the program, also in a
    replay.
    """
    return _shell(original, library or library_of(original))


def _shell(original: Callable[..., Any], library: Library) -> Callable[..., Any]:
    reading, answering = _reading(library), _answering(library)
    sending = _sending(library)

    @wraps(original)
    async def send(self: Any, request: Any) -> Any:
        if passes_untouched(current.get()) or library.is_served_here(self, request):
            return await original(self, request)
        scope = here()
        content = library.loaded(request) if scope is None else await _content(library, request)
        exchange = library.begin(scope, self, request, content)
        if exchange is None:
            return await original(self, request)
        if exchange == PASSING:
            with passing():
                return await original(self, request)
        if exchange == AMBIENT:
            return library.nothing(request)
        assert isinstance(exchange, Exchange)
        form = library.form(request)
        if exchange.step.live or await exchange.go_async():
            upload = sending(exchange, request) if content is None else form
            return await _live(exchange, original, self, request, upload)
        if form is not None:
            form.again(exchange)
        return await _recorded(exchange, self, request, _send_again if content is None else None)

    async def _live(exchange: Exchange, original: Any, client: Any, request: Any, upload: Any) -> Any:
        whole = not streamed.get()
        driven = drive(_read(original, client, request) if whole else original(client, request))
        tokens = exchange.enter()
        try:
            response = await driven
        except BaseException as error:
            exchange.leave(tokens)
            early = None if upload is None else upload.end()
            library.broke(exchange, error, suspended=driven.suspended, early=early)
            raise
        exchange.leave(tokens)
        early = None if upload is None else upload.end()
        if response.status_code == 101:
            await response.aclose()
            exchange.refuse("an upgraded connection (101)")
        if whole or response.is_stream_consumed:
            library.whole(exchange, response, suspended=driven.suspended, early=early)
        else:
            library.head(exchange, response, suspended=driven.suspended, early=early)
            response.stream = reading(response, exchange)
        return response

    async def _recorded(exchange: Exchange, client: Any, request: Any, send_again: Any) -> Any:
        own = None if send_again is None else await send_again(exchange, request)
        answer = await exchange.first_async()
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
            await response.aread()
            library.was_read(response, answer)
        return response

    return send


async def _read(original: Any, client: Any, request: Any) -> Any:
    """Return a response, read to its end; an upgraded connection has no body."""
    response = await original(client, request)
    if response.status_code != 101:
        try:
            await response.aread()
        except BaseException:
            await response.aclose()
            raise
    return response


async def _content(library: Library, request: Any) -> bytes | None:
    """Return the body of a request; ``None`` if it is sent as it is produced. A body for the other kind of client is
    left alone."""
    content: bytes
    stream = request.stream
    if isinstance(stream, library.ByteStream):
        content = await request.aread()
        return content
    if not isinstance(stream, library.AsyncByteStream):
        return b""
    if not request.headers.get("content-type", "").startswith("multipart/"):
        return None
    form = library.Form(stream)  # read into memory: its parts are compared
    content = await request.aread()
    return form.instead(request, content)  # type: ignore[no-any-return]


async def _send_again(exchange: Exchange, request: Any) -> Exception | None:
    """Have the program produce the body again, as far as the recorded one did; return the program's own exception, if
    any."""
    pieces = request.stream.__aiter__()
    while exchange.draws():
        try:
            data = await pieces.__anext__()
        except StopAsyncIteration:
            break
        except Exception as error:
            return error
        exchange.sent(data)
    return None


def _sending(library: Library) -> Any:
    """Return the stream class of a request's body, a subclass of the library's own: each piece is in the log before it
    is sent."""

    class Sending(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        # Not a generator: the event loop would close an unfinished one along with the program's own.

        def __init__(self, exchange: Exchange, request: Any) -> None:
            self._exchange = exchange
            self._request = request
            self._inner = request.stream
            self._pieces: Any = None
            self._early: str | None = "left"
            request.stream = self

        def __aiter__(self) -> Any:
            self._pieces = self._inner.__aiter__()
            return self

        async def __anext__(self) -> bytes:
            tokens = self._exchange.draw()
            try:
                data: bytes = await self._pieces.__anext__()
            except StopAsyncIteration:
                self._early = None
                raise
            except BaseException:
                self._early = "raised"
                raise
            finally:
                self._exchange.drawn(tokens)
            self._exchange.sent(data)
            return data

        def end(self) -> str | None:
            """Return how it ended early, if it did; give the request its own stream back."""
            self._request.stream = self._inner
            return self._early

    return Sending


def _reading(library: Library) -> Any:
    """Return the stream class of a response, a subclass of the library's own, which reports what it reads."""

    class Reading(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """The live stream of a response; each piece is in the log before the caller gets it."""

        def __init__(self, response: Any, exchange: Exchange) -> None:
            self._inner = response.stream
            self._response = response
            self._exchange = exchange
            self._decoder = library.decoder(response)
            self._ended = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            exchange, body, decoder = self._exchange, self._exchange.body, self._decoder
            undoes = library.undoes(self._response)
            pieces = self._inner.__aiter__()
            enter, leave, report = current.set, current.reset, exchange.piece
            at_once, after_others = exchange.receiver(), exchange.receiver(suspended=True)
            while True:
                driven = drive(pieces.__anext__())
                token = enter(body)
                try:
                    data = await driven
                except StopAsyncIteration:
                    leave(token)
                    if decoder is not None and undoes:
                        plain = library.decoded(exchange, decoder.flush)
                        if plain:
                            report(plain, size=0)
                    await self._end(driven.suspended)
                    return
                except BaseException as error:
                    leave(token)
                    library.broke(exchange, error, suspended=driven.suspended)
                    raise
                leave(token)
                if decoder is None:
                    (after_others if driven.suspended else at_once)(data)
                elif not undoes:
                    plain = library.understood(exchange, decoder, data)
                    report(data, suspended=driven.suspended, plain=plain)
                else:
                    plain = library.decoded(exchange, decoder.decode, data)
                    if plain is not None:
                        report(plain, suspended=driven.suspended, size=len(data))
                try:
                    yield data
                except GeneratorExit:
                    exchange.left()
                    if hasattr(pieces, "aclose"):
                        await pieces.aclose()
                    raise

        async def _end(self, suspended: bool) -> None:
            """Close what has been read to its end, as the library does next.

            Closing may let other tasks run first, and a replay has the end after that, too.
            """
            self._ended = True
            closing = drive(self._inner.aclose())
            try:
                await self._inside(closing)
            except BaseException as error:
                library.broke(self._exchange, error, suspended=suspended or closing.suspended)
                raise
            self._exchange.end(suspended=suspended or closing.suspended)

        async def aclose(self) -> None:
            if not self._ended:
                closing = drive(self._inner.aclose())
                try:
                    await self._inside(closing)
                except BaseException:
                    self._exchange.left()
                    raise
                self._exchange.left(suspended=closing.suspended)
            self._response.elapsed = timedelta(seconds=self._exchange.elapsed)

        async def _inside(self, closing: Awaitable[None]) -> None:
            """Await a part of the request."""
            token = current.set(self._exchange.body)
            try:
                await closing
            finally:
                current.reset(token)

    return Reading


def _answering(library: Library) -> Any:
    """Return the stream class of a response, a subclass of the library's own, which reads from the log."""

    class Answering(library.AsyncByteStream):  # type: ignore[misc, name-defined]
        """The stream of a response from the log."""

        def __init__(self, exchange: Exchange, request: Any) -> None:
            self.response: Any = None
            self._exchange = exchange
            self._request = request
            self._elapsed = 0.0
            self._ended = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            exchange = self._exchange
            while isinstance(piece := await exchange.next_piece_async(), bytes):
                if exchange.size is not None:
                    library.undone(self.response, exchange, piece)
                yield piece
            self._ended = True
            self._elapsed = piece.elapsed
            error = library.raised(piece, self._request)
            if error is not None:
                raise error

        async def aclose(self) -> None:
            if not self._ended:
                self._ended = True
                await self._exchange.left_async()
            self.response.elapsed = timedelta(seconds=self._elapsed)

    return Answering
