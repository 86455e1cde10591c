"""Connections of an event loop while a captured request uses them: the real one observed, or one that the log answers.

asyncio splits a connection into two halves: the *protocol* belongs to the library, its *transport* to the loop. A seam
replaces the transport with one of two classes: ``ObservedTransport`` records what passes before the other half gets it,
``ReplayedTransport`` has no real connection. What the loop calls on the protocol is reported to them (``reported``).
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

#: The attribute of a protocol that holds its transport while that is one of these.
_KEY: Final = "_tracekit_transport"


class serving:
    """A block in which what is requested of the event loop serves a connection, and is not progress of the program;
    with ``scope``, it belongs to the run."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = current.set(self._scope)

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)


async def opened(exchange: Exchange, connecting: Awaitable[Any], failed: Callable[..., object]) -> tuple[Any, bool]:
    """Open a connection as part of ``exchange``; return it, and whether the caller was suspended meanwhile.

    ``failed(exchange, error, suspended=…)`` is called to record an error.
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
    """An object that replaces a library's own and passes for it: it has the other's class, and every attribute it does
    not define itself."""

    # No slots: programs may set attributes on transports and sockets.

    def __init__(self, real: Any) -> None:
        self.real = real

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.real.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)


def transport_of(protocol: Any) -> Any:
    """Return the ``ObservedTransport`` or ``ReplayedTransport`` of a protocol; ``None`` if it has another transport."""
    attributes = getattr(protocol, "__dict__", None)  # a server's protocol may have only slots
    return None if attributes is None else attributes.get(_KEY)


def reported(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that an event loop calls on a protocol (``data_received``, ``connection_lost``, ``pause_writing``
    …), so that the transport is notified first."""
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
    """Wrap ``data_received``, which a library also calls itself, with data that it has kept because it could not parse
    it yet."""

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
    """A block in which the library itself calls ``data_received`` with data that was received, and recorded, earlier."""

    __slots__ = ("_before", "_transport")

    def __init__(self, transport: ObservedTransport | ReplayedTransport) -> None:
        self._transport = transport

    def __enter__(self) -> None:
        transport = self._transport
        self._before, transport.kept = transport.kept, True

    def __exit__(self, *_: object) -> None:
        self._transport.kept = self._before


class ObservedTransport(StandIn):
    """The transport of a recorded connection: data going out is reported to ``sent``, received data to ``incoming``.

    ``scope``: where the library parses received data, if it reads the run's clock and arms the run's timers there.
    """

    #: Whether the program's own code produces what is sent, and waits while sending is paused.
    program_sends = True
    #: Whether the library is processing data that it has kept: see ``keeping``.
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
        """Give the protocol its own transport back: the exchange is over, the connection remains open."""
        vars(self.protocol).pop(_KEY, None)
        if self.protocol.transport is self:
            self.protocol.transport = self.real

    # -- called by the library -----------------------------------------------------------------------------------------

    def sent(self, data: bytes) -> None:
        """Record data that is about to be sent."""
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

    # -- reported by the event loop ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Record that the peer is slow to read, if the program's own code sends (``program_sends``) and so has to wait."""
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
    """The transport of a connection that does not exist: ``arrivals`` compares what the library writes, and delivers
    the recorded response.

    ``scope`` as for ``ObservedTransport``.
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
        """Have the loop call the protocol's ``connection_lost``, as with a real transport that is closed."""
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
        """Pause or resume sending where the recording did."""
        if paused:
            self.protocol.pause_writing()
        else:
            self.protocol.resume_writing()

    # -- called by `reported`: the log has it already ------------------------------------------------------------------

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
