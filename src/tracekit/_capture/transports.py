"""The transport of a connection in an event loop while a step accounts for it: the real one, observed, or one that the log answers for.

asyncio has two halves of a connection: the *protocol* is the library's, its *transport* the loop's. A seam puts one of the two classes
here in the place of the transport: ``ObservedTransport`` records what passes before the other half gets it,
``ReplayedTransport`` has no connection below it. What the loop calls on the protocol is reported to them (``reported``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from functools import wraps
from typing import Any, Final

from .._runtime.session import Scope, current
from .calls import drive
from .http import Exchange
from .http1 import Arrivals, Incoming

__all__ = [
    "ObservedTransport",
    "ReplayedTransport",
    "StandIn",
    "keeping",
    "opened",
    "reported",
    "serving",
    "transport_of",
]

#: The attribute of a protocol in which its transport is kept, while that is one of these.
_KEY: Final = "_tracekit_transport"


class serving:
    """A block in which what is asked of the event loop serves a connection, and is no progress of the program. With ``scope`` it is the
    run's."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = current.set(self._scope)

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)


async def opened(exchange: Exchange, connecting: Awaitable[Any], failed: Callable[..., object]) -> tuple[Any, bool]:
    """Open a connection as a part of ``exchange``: the connection, and whether the caller was suspended for it.

    ``failed(exchange, error, suspended=…)`` records that it raised.
    """
    driven = drive(connecting)
    tokens = exchange.enter()
    try:
        connection = await driven
    except BaseException as error:
        exchange.leave(tokens)
        failed(exchange, error, suspended=driven.suspended)
        raise
    exchange.leave(tokens)
    return connection, driven.suspended


class StandIn:
    """An object in the place of a library's own, which it passes for: its class and all that it doesn't define itself are that one's."""

    # No slots: transports and sockets have attributes that somebody may set.

    def __init__(self, real: Any) -> None:
        self.real = real

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.real.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)


def transport_of(protocol: Any) -> Any:
    """The ``ObservedTransport`` or ``ReplayedTransport`` of a protocol; ``None`` where it has another."""
    attributes = getattr(protocol, "__dict__", None)  # a server's protocol may have slots alone
    return None if attributes is None else attributes.get(_KEY)


def reported(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what an event loop calls on a protocol (``data_received``, ``connection_lost``, ``pause_writing`` …): its transport is the first
    to know."""
    name = original.__name__
    if name == "data_received":
        return _reported_data(original)

    @wraps(original)
    def method(self: Any, *args: Any) -> Any:
        transport = transport_of(self)
        if transport is None:
            return original(self, *args)
        with serving():
            getattr(transport, name)(*args)
        with serving(transport.scope):
            return original(self, *args)

    return method


def _reported_data(original: Callable[..., Any]) -> Callable[..., Any]:
    """``data_received``, which a library calls itself, too, with what it has kept of data that it could not read yet."""

    @wraps(original)
    def data_received(self: Any, data: bytes) -> Any:
        transport = transport_of(self)
        if transport is None:
            return original(self, data)
        if not transport.kept:
            with serving():
                transport.data_received(data)
        with keeping(transport), serving(transport.scope):
            return original(self, data)

    return data_received


class keeping:
    """A block in which ``data_received`` is called by the library itself, with what has been received, and recorded, before."""

    __slots__ = ("_before", "_transport")

    def __init__(self, transport: ObservedTransport | ReplayedTransport) -> None:
        self._transport = transport

    def __enter__(self) -> None:
        transport = self._transport
        self._before, transport.kept = transport.kept, True

    def __exit__(self, *_: object) -> None:
        self._transport.kept = self._before


class ObservedTransport(StandIn):
    """The transport of a connection that is recorded: what goes out is reported to ``sent``, what is received to ``incoming``.

    ``scope``: in which the library reads what is received, where it goes by the run's clock and has timers of the run's there.
    """

    #: Whether what is sent is produced meanwhile, by code of the program that waits where sending is paused.
    program_sends = True
    #: Whether the library is reading what it has kept: see ``keeping``.
    kept = False

    def __init__(self, protocol: Any, exchange: Exchange, incoming: Incoming, scope: Scope | None) -> None:
        super().__init__(protocol.transport)
        self.protocol: Final = protocol
        self.exchange: Final = exchange
        self.incoming: Final = incoming
        self.scope: Final = scope
        vars(protocol)[_KEY] = self
        protocol.transport = self

    def release(self) -> None:
        """Give the protocol its own transport again: the exchange is over, the connection goes on."""
        vars(self.protocol).pop(_KEY, None)
        if self.protocol.transport is self:
            self.protocol.transport = self.real

    # -- what the library asks of it -------------------------------------------------------------------------------------

    def sent(self, data: bytes) -> None:
        """Record what is about to be sent."""
        raise NotImplementedError

    def write(self, data: Any) -> None:
        self.sent(bytes(data))
        self.exchange.inside(self.real.write, data)

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        with serving():
            self.real.write_eof()

    def abandoned(self) -> None:
        """Record that the library closes the connection."""
        self.incoming.left()

    def close(self) -> None:
        self.abandoned()
        with serving():
            self.real.close()

    def abort(self) -> None:
        self.abandoned()
        with serving():
            self.real.abort()

    def pause_reading(self) -> None:
        with serving():
            self.real.pause_reading()

    def resume_reading(self) -> None:
        with serving():
            self.real.resume_reading()

    # -- what the event loop reports -------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The peer takes less than is sent: whoever sends waits, where that is the program's own code (``program_sends``)."""
        if self.program_sends and not self.incoming.complete:
            self.exchange.mark("paused")

    def resume_writing(self) -> None:
        if self.program_sends and not self.incoming.complete:
            self.exchange.mark("resumed", suspended=True)

    def data_received(self, data: bytes) -> None:
        self.incoming.feed(data)

    def connection_lost(self, error: BaseException | None) -> None:
        if error is None:
            self.incoming.closed()
        else:
            self.incoming.broke(error)


class ReplayedTransport(asyncio.Transport):
    """The transport of a connection that is not there: ``arrivals`` compares what the library writes, and brings the recorded answer.

    ``scope`` as that of ``ObservedTransport``.
    """

    kept = False

    def __init__(self, protocol: Any, loop: asyncio.AbstractEventLoop, scope: Scope | None = None) -> None:
        super().__init__()
        self.protocol: Final = protocol
        self.loop: Final = loop
        self.scope: Final = scope
        self.arrivals: Arrivals | None = None
        self._closing = False
        vars(protocol)[_KEY] = self

    def write(self, data: Any) -> None:
        if self.arrivals is not None:
            self.arrivals.sent(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self.arrivals is not None:
            self.arrivals.close()
        self.lost_soon()

    def lost_soon(self) -> None:
        """The loop calls ``connection_lost`` of the protocol, as it does with a real transport that is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon(self.protocol.connection_lost, None, context=Context())

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_reading(self) -> bool:
        return not self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        pass

    def flow(self, paused: bool) -> None:
        """Sending is paused, or goes on, where it did."""
        if paused:
            self.protocol.pause_writing()
        else:
            self.protocol.resume_writing()

    # -- what `reported` says: the log has it ----------------------------------------------------------------------------

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        pass

    def eof_received(self) -> None:
        pass

    def connection_lost(self, error: BaseException | None) -> None:
        pass
