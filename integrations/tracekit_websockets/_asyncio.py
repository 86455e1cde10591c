"""The client on asyncio: the transport of a connection that is recorded, and of one that the log answers for."""

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
    """The method of ``connect`` that opens the connection, before the handshake."""

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
    """``Connect.__init__`` of ``websockets.legacy``: what it will open its connections with, redirects included."""

    @wraps(original)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made = self._create_connection
        self._create_connection = partial(_legacy_opening(self, made.func), *made.args, **made.keywords)

    return __init__


def _legacy_opening(connect: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """``loop.create_connection``, for this library's protocol: its ``factory``."""

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
            protocol.reader._transport = observed  # which it pauses
            return observed, protocol
        if begins.early() == "open":
            raise raised(await begins.first_async())
        protocol = factory()
        replayed = Replayed(protocol, begins)
        protocol.connection_made(replayed)
        return replayed, protocol

    return create_connection


def _made(connect: Any) -> Any:
    """A connection as the library makes it when it has opened one."""
    from websockets.uri import parse_uri

    uri = parse_uri(connect.uri)
    make = getattr(connect, "factory", None) or connect.protocol_factory
    return make(uri)


class Observed(ObservedTransport):
    """The transport of a connection that is recorded, as long as it lasts."""

    def __init__(self, connection: Any, exchange: Exchange) -> None:
        self._conversation: Final = Conversation(exchange, brought=True)
        super().__init__(connection, exchange, self._conversation, exchange.scope)

    def sent(self, data: bytes) -> None:
        self._conversation.sent(data)

    def eof_received(self) -> None:
        self._conversation.half_closed()

    def abandoned(self) -> None:
        """Before the handshake is over nobody hears of the end; after it, it is waited for, and is an event."""
        if not self._conversation.open:
            super().abandoned()


class Replayed(ReplayedTransport):
    """The transport of a connection of a replay."""

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
        self._end()  # the older client waits then until the other side closes the connection

    def close(self) -> None:
        self._closing = True
        self._end()

    def _end(self) -> None:
        """Where the log says no more of how the connection ended, it has ended."""
        if not self.arrivals.open or self.arrivals.over:
            self.arrivals.close()
            self.loop.call_soon(self._lost, "closed", None, context=Context())

    def _lost(self, kind: str, error: BaseException | None) -> None:
        if self._gone:
            return
        self._gone = self._closing = True
        # Whoever waits for the connection gets the failure of the replay, where it is one.
        self.protocol.connection_lost(error)
