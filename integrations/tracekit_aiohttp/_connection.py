"""A connection of aiohttp during a request of a run: observed in a recording, answered from the log in a replay.

A session gets a connection for each request from ``BaseConnector.connect``: there the step of the request begins,
before anything is opened. While recording, the protocol of the connection gets received data once that is in the log
(``Observed``). In a replay there is no connection: the protocol gets the recorded bytes at their recorded places
(``Replayed``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import Context
from functools import wraps
from typing import Any, Final

from tracekit.errors import ReplayError
from tracekit.integration import (
    AMBIENT,
    NOTHING,
    PASSING,
    Arrivals,
    Chunks,
    Conversation,
    Exchange,
    Incoming,
    ObservedTransport,
    ReplayedConversation,
    ReplayedTransport,
    begin,
    below_seam,
    closing,
    current,
    here,
    keeping,
    opened,
    outside,
    passes_untouched,
    passing,
    serving,
    transport_of,
)

from ._requests import Asked, raised, report, rewrite
from ._values import teach

__all__ = ["close", "connect", "release", "set_parser", "set_response_params"]


# -- a request begins --------------------------------------------------------------------------------------------------------


#: Marks a connector that has only carried requests captured by a seam above.
_ONLY_BELOW = "_tracekit_only_below"


def connect(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``BaseConnector.connect``."""
    teach(sys.modules["yarl"], sys.modules["multidict"])

    @wraps(original)
    async def connect(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if passes_untouched(current.get()):
            if below_seam() and not hasattr(self, _ONLY_BELOW):
                setattr(self, _ONLY_BELOW, True)
            return await original(self, req, *args, **kwargs)
        scope, asked = here(), await Asked.of(req)
        found: Exchange | str | None
        if scope is None:
            found = outside(*asked.parts)
        else:
            begins = {"streamed": asked.streamed, "websocket": asked.websocket, "rewrites": not asked.streamed}
            found = begin(scope, *asked.parts, **begins)
            if isinstance(found, Exchange) and found.sends is not None:
                await rewrite(req, found.sends)
        setattr(self, _ONLY_BELOW, found is None and below_seam() and getattr(self, _ONLY_BELOW, True))
        if found == AMBIENT:
            return _replaced(self, req, Nothing)
        if not isinstance(found, Exchange):
            return await _passed(found, original(self, req, *args, **kwargs))
        if found.step.live or await found.go_async():
            return await _live(found, asked, req, original(self, req, *args, **kwargs))
        if found.early() == "open":
            answer = await found.first_async()
            raise raised(answer, req)
        entry = found.step.upcoming()
        output = None if entry is None else entry.get("output")
        if isinstance(output, dict) and output.get("moment") == "opened":
            await found.step.next_chunk_async()
        return _replaced(self, req, lambda proto: Replayed(proto, found, asked))

    return connect


async def _passed(found: str | None, connecting: Any) -> Any:
    if found == PASSING:
        with passing():
            return await connecting
    return await connecting


async def _live(exchange: Exchange, asked: Asked, req: Any, connecting: Any) -> Any:
    connection, suspended = await opened(exchange, connecting, report)
    if suspended and (asked.streamed or req._traces):  # the program's own code runs before there is an answer
        exchange.mark("opened", suspended=True)
    Observed(connection.protocol, exchange, asked)
    return connection


def _replaced(connector: Any, req: Any, transport: Callable[[Any], Any]) -> Any:
    """Return a connection to nowhere; ``transport`` creates the transport of its protocol."""
    library: Any = sys.modules["aiohttp.connector"]
    proto = connector._factory()
    proto.connection_made(transport(proto))
    proto.force_close()  # no other request may reuse it
    return library.Connection(connector, req.connection_key, proto, connector._loop)


# -- the transport while it is recorded --------------------------------------------------------------------------------------


class Observed(ObservedTransport):
    """The transport of a connection, for one request and its answer."""

    def __init__(self, proto: Any, exchange: Exchange, asked: Asked) -> None:
        self._conversation: Final = Conversation(exchange, brought=True, parts=True) if asked.websocket else None
        answer = self._conversation or Incoming(exchange, asked.method, asked.codings, quiet=False, brought=True)
        super().__init__(proto, exchange, answer, exchange.scope if asked.websocket else None)
        self._upload: Final = Upload(asked) if asked.streamed else None
        self.program_sends = asked.streamed or asked.websocket

    def sent(self, data: bytes) -> None:
        if self._upload is not None:
            body, _ = self._upload.feed(data)
            if body:
                self.exchange.sent(body)
        elif self._conversation is not None:
            self._conversation.sent(data)

    def data_received(self, data: bytes) -> None:
        if data:  # otherwise the protocol processes what it has
            super().data_received(data)
            self._look()

    def connection_lost(self, error: BaseException | None) -> None:
        super().connection_lost(error)
        self._look()

    def timed_out(self) -> None:
        self.incoming.broke(TimeoutError("Timeout on reading data from socket"), "timeout")
        self._look()

    def _look(self) -> None:
        if self.incoming.complete:  # the answer has been received
            self.release()

    def abandoned(self) -> None:
        super().abandoned()
        self.release()


class Upload:
    """Reads the body of a request from what is sent: the pieces, and whether that is all of it."""

    __slots__ = ("_asked", "_chunks", "_head", "_left")

    def __init__(self, asked: Asked) -> None:
        self._asked: Final = asked
        self._head: bytes | None = b""
        self._chunks: Chunks | None = None
        self._left: int | None = None

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        if self._head is not None:
            self._head += data
            end = self._head.find(b"\r\n\r\n") + 4
            if end < 4:
                return b"", False
            data, head, self._head = self._head[end:], self._head[:end].lower(), None
            if b"\r\ntransfer-encoding: chunked\r\n" in head:
                self._chunks = Chunks()
            else:
                length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0].strip()
                self._left = int(length) if length.isdigit() else 0
        if self._chunks is not None:
            body = b"".join([piece for piece, _ in self._chunks.feed(data)])
            return self._asked.masked(body), self._chunks.done
        assert self._left is not None
        self._left -= len(data)
        return self._asked.masked(data), self._left <= 0


# -- the transport in a replay -----------------------------------------------------------------------------------------------


class Replayed(ReplayedTransport):
    """The transport of a connection in a replay."""

    def __init__(self, proto: Any, exchange: Exchange, asked: Asked) -> None:
        super().__init__(proto, proto._loop, exchange.scope if asked.websocket else None)
        self._upload: Final = Upload(asked) if asked.streamed else None
        self._websocket: Final = asked.websocket
        self.arrivals: Arrivals = (
            ReplayedConversation(exchange, proto.data_received, self._lost, lambda: None)
            if asked.websocket
            else Arrivals(exchange, asked.method, proto.data_received, self._lost, asked.codings)
        )
        self.arrivals.flow = self.flow

    def ready(self) -> None:
        """Start the answer: the library has set how it wants it."""
        self.arrivals.ask()

    def write(self, data: Any) -> None:
        if self._upload is not None:
            body, complete = self._upload.feed(bytes(data))
            self.arrivals.sent(body, complete=complete)
        elif self._websocket:
            super().write(data)

    def _lost(self, kind: str, error: BaseException | None) -> None:
        proto = self.protocol
        if isinstance(error, ReplayError):
            _fail(proto, error)
        elif kind == "timeout":
            proto._on_read_timeout()
        else:
            self._closing = True
            proto.connection_lost(error)


def _fail(proto: Any, error: BaseException) -> None:
    """Raise ``error`` in the code that waits for data."""
    payload = proto._payload
    proto.set_exception(error)
    if payload is not None and not payload.is_eof():
        payload.set_exception(error)


class Nothing(ReplayedTransport):
    """The transport of a request that is answered with nothing."""

    def __init__(self, proto: Any) -> None:
        super().__init__(proto, proto._loop)

    def ready(self) -> None:
        self.loop.call_soon(self.protocol.data_received, NOTHING, context=Context())


# -- the protocol ------------------------------------------------------------------------------------------------------------


def set_response_params(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def set_response_params(self: Any, **how: Any) -> None:
        transport = transport_of(self)
        if transport is None:
            original(self, **how)
            return
        with keeping(transport):
            original(self, **how)
        if type(transport) is not Observed:
            transport.ready()

    return set_response_params


def set_parser(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``set_parser``: the new reader gets what the protocol has kept for it."""

    @wraps(original)
    def set_parser(self: Any, *args: Any, **kwargs: Any) -> Any:
        transport = transport_of(self)
        if transport is None:
            return original(self, *args, **kwargs)
        with keeping(transport):
            return original(self, *args, **kwargs)

    return set_parser


def _reschedule_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the read timeout: no timer of the program, and in a replay none at all."""

    @wraps(original)
    def _reschedule_timeout(self: Any) -> None:
        transport = transport_of(self)
        if transport is None:
            original(self)
        elif type(transport) is Observed:
            with serving():
                original(self)

    return _reschedule_timeout


def _on_read_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _on_read_timeout(self: Any) -> None:
        transport = transport_of(self)
        with serving():
            if type(transport) is Observed:
                transport.timed_out()
            original(self)

    return _on_read_timeout


# -- connections that are given back, and closed -----------------------------------------------------------------------------


def release(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``BaseConnector._release``: a connection returns to its pool, which manages it with timers of its own."""

    @wraps(original)
    def _release(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current.get() is None:
            return original(self, *args, **kwargs)
        with serving():
            return original(self, *args, **kwargs)

    return _release


def close(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``ClientSession.close``, which may wait until connections are closed; there are none in a replay.

    A session that has only carried requests captured by a seam above is not even created in a replay: its end is no
    event.
    """

    @wraps(original)
    async def close(self: Any) -> Any:
        scope = None if passes_untouched(current.get()) else here()
        only_below = getattr(self.connector, _ONLY_BELOW, False)
        return await closing(scope, original(self), None if only_below else "loop.call")

    return close
