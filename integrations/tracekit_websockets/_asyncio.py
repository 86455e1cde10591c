"""The client of ``websockets`` on asyncio: a connection that is recorded, and one that the log answers."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial, wraps
from typing import Any, Final

from tracekit.integration import (
    PASSING,
    Conversation,
    Exchange,
    ObservedTransport,
    ReplayedConversation,
    ReplayedTransport,
    current,
    opened,
    passes_untouched,
    passing,
)

from ._requests import begun, raised, report

__all__ = ["legacy_connect", "opening"]


def opening(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method of ``connect`` that opens the connection, before the handshake."""

    @wraps(original)
    async def opening(self: Any) -> Any:
        if passes_untouched(current.get()):
            return await original(self)
        headers = self.handshake_args[0] if hasattr(self, "handshake_args") else self.additional_headers
        found = begun(self.uri, headers)
        if found == PASSING:
            with passing():
                return await original(self)
        if not isinstance(found, Exchange):
            return await original(self)
        if found.step.live or await found.go_async():
            connection, _ = await opened(found, original(self), report)
            observed, messages = Observed(connection, found), connection.recv_messages
            messages.pause, messages.resume = observed.pause_reading, observed.resume_reading
            return connection
        if found.early() == "open":
            raise raised(await found.first_async())
        connection = _made(self)
        connection.connection_made(Replayed(connection, found))
        return connection

    return opening


def legacy_connect(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Connect.__init__`` of ``websockets.legacy``: replace the function with which it opens connections,
    including redirects."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made = self._create_connection
        self._create_connection = partial(_legacy_opening(self, made.func), *made.args, **made.keywords)

    return __init__


def _legacy_opening(connect: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of ``loop.create_connection`` for this library's protocol, its ``factory``."""

    async def create_connection(factory: Any, *args: Any, **options: Any) -> Any:
        if passes_untouched(current.get()):
            return await original(factory, *args, **options)
        begins = begun(connect._uri, factory.keywords.get("extra_headers"))
        if begins == PASSING:
            with passing():
                return await original(factory, *args, **options)
        if not isinstance(begins, Exchange):
            return await original(factory, *args, **options)
        if begins.step.live or await begins.go_async():
            (_, protocol), _ = await opened(begins, original(factory, *args, **options), report)
            observed = Observed(protocol, begins)
            protocol.reader._transport = observed  # the reader pauses it
            return observed, protocol
        if begins.early() == "open":
            raise raised(await begins.first_async())
        protocol = factory()
        replayed = Replayed(protocol, begins)
        protocol.connection_made(replayed)
        return replayed, protocol

    return create_connection


def _made(connect: Any) -> Any:
    """Return a connection like the one that the library creates after opening it."""
    from websockets.uri import parse_uri

    uri = parse_uri(connect.uri)
    make = getattr(connect, "factory", None) or connect.protocol_factory
    return make(uri)


class Observed(ObservedTransport):
    """The transport of a recorded connection, for its whole duration."""

    def __init__(self, connection: Any, exchange: Exchange) -> None:
        self._conversation: Final = Conversation(exchange, brought=True)
        super().__init__(connection, exchange, self._conversation, exchange.scope)

    def sent(self, data: bytes) -> None:
        self._conversation.sent(data)

    def eof_received(self) -> None:
        self._conversation.half_closed()

    def abandoned(self) -> None:
        """Note that the program has abandoned the connection.

        Before the end of the handshake, nobody notices the end of the connection; after it, the end is awaited, and is
        an event.
        """
        if not self._conversation.open:
            super().abandoned()


class Replayed(ReplayedTransport):
    """The transport of a connection in a replay."""

    def __init__(self, connection: Any, exchange: Exchange) -> None:
        super().__init__(connection, connection.loop, exchange.scope)
        self._gone = False
        self.arrivals: ReplayedConversation = ReplayedConversation(
            exchange, connection.data_received, self._lost, connection.eof_received
        )
        self.arrivals.flow = self.flow

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._end()  # the older client then waits until the server closes the connection

    def close(self) -> None:
        self._closing = True
        self._end()

    def _end(self) -> None:
        """End the connection, if the log has no more about how it ended."""
        if not self.arrivals.open or self.arrivals.over:
            self.arrivals.close()
            self.loop.call_soon(self._lost, "closed", None, context=Context())

    def _lost(self, kind: str, error: BaseException | None) -> None:
        if self._gone:
            return
        self._gone = self._closing = True
        # The code that waits for the connection gets the replay's failure, if there is one.
        self.protocol.connection_lost(error)
