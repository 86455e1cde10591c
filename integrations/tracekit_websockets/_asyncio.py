"""The client on asyncio: what stands in the place of a connection's transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import wraps
from typing import Any, Final

from tracekit.errors import ReplayError
from tracekit.integration import (
    PASSING,
    Conversation,
    Exchange,
    ReplayedConversation,
    Scope,
    current,
    drive,
    passes_untouched,
    passing,
)

from ._requests import begun, raised, report

__all__ = ["connection_lost", "data_received", "eof_received", "opening"]

#: The attribute of a connection in which the stand-in of its transport is kept.
_PLACE: Final = "_tracekit_line"


@contextmanager
def _nobodys(scope: Scope | None = None) -> Iterator[None]:
    """A block in which what is asked of the event loop is nobody's progress: it serves the connection. With ``scope`` it is the run's."""
    token = current.set(scope)
    try:
        yield
    finally:
        current.reset(token)


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
            return await _live(found, original(self))
        if found.early() == "open":
            raise raised(await found.first_async())
        connection = _made(self)
        connection.connection_made(Absent(connection, found))
        return connection

    return opening


def _made(connect: Any) -> Any:
    """A connection as the library makes it when it has opened one."""
    from websockets.uri import parse_uri

    uri = parse_uri(connect.uri)
    make = getattr(connect, "factory", None) or connect.protocol_factory
    return make(uri)


async def _live(exchange: Exchange, connecting: Any) -> Any:
    driven = drive(connecting)
    tokens = exchange.enter()
    try:
        connection = await driven
    except BaseException as error:
        exchange.leave(tokens)
        report(exchange, error, suspended=driven.suspended)
        raise
    exchange.leave(tokens)
    Watched(connection, exchange)
    return connection


# -- the transport while it is recorded --------------------------------------------------------------------------------------


class Watched:
    """The transport of a connection that is recorded."""

    # No slots: a transport has attributes that somebody may set.

    def __init__(self, connection: Any, exchange: Exchange) -> None:
        self._connection: Final = connection
        self._exchange: Final = exchange
        self.real: Final = connection.transport
        self.scope: Final = exchange.scope
        self.talk: Final = Conversation(exchange, brought=True)
        vars(connection)[_PLACE] = self
        connection.transport = self
        messages = connection.recv_messages
        messages.pause, messages.resume = self.pause_reading, self.resume_reading

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what asks whether it is a transport is told what it is
        return self.real.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    def write(self, data: Any) -> None:
        self.talk.sent(bytes(data))
        self._exchange.inside(self.real.write, data)

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        with _nobodys():
            self.real.write_eof()

    def close(self) -> None:
        self._given_up()
        with _nobodys():
            self.real.close()

    def abort(self) -> None:
        self._given_up()
        with _nobodys():
            self.real.abort()

    def _given_up(self) -> None:
        """Before the handshake is over nobody hears of the end; after it, it is waited for, and is an event."""
        if not self.talk.open:
            self.talk.left()

    def pause_reading(self) -> None:
        with _nobodys():
            self.real.pause_reading()

    def resume_reading(self) -> None:
        with _nobodys():
            self.real.resume_reading()


# -- the transport in a replay -----------------------------------------------------------------------------------------------


class Absent(asyncio.Transport):
    """The transport of a connection of a replay: what the library writes is compared, what it reads comes from the log."""

    def __init__(self, connection: Any, exchange: Exchange) -> None:
        super().__init__()
        self._connection: Final = connection
        self._closing = False
        self._gone = False
        self.scope: Final = exchange.scope
        vars(connection)[_PLACE] = self
        self.talk: Final = ReplayedConversation(exchange, connection.data_received, self._lost, connection.eof_received)

    def write(self, data: Any) -> None:
        self.talk.sent(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._closing = True
        if not self.talk.open or self.talk.over:
            self.talk.close()
            self._connection.loop.call_soon(self._lost, "closed", None, context=Context())

    abort = close

    def _lost(self, kind: str, error: BaseException | None) -> None:
        if self._gone:
            return
        self._gone = self._closing = True
        if isinstance(error, ReplayError):
            _fail(self._connection, error)
        else:
            self._connection.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def is_reading(self) -> bool:
        return not self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_protocol(self) -> Any:
        return self._connection

    def set_protocol(self, protocol: Any) -> None:
        pass


def _fail(connection: Any, error: BaseException) -> None:
    """Whoever waits for the connection gets the failure of the replay."""
    connection.connection_lost(error)


# -- the connection ----------------------------------------------------------------------------------------------------------


def _heard(original: Callable[..., Any], tell: Callable[..., object]) -> Callable[..., Any]:
    @wraps(original)
    def heard(self: Any, *args: Any) -> Any:
        line = vars(self).get(_PLACE)
        if line is None:
            return original(self, *args)
        if type(line) is Watched:
            with _nobodys():
                tell(line.talk, *args)
        with _nobodys(line.scope):  # the library goes by the run's clock
            return original(self, *args)

    return heard


def data_received(original: Callable[..., Any]) -> Callable[..., Any]:
    return _heard(original, lambda talk, data: talk.feed(data))


def eof_received(original: Callable[..., Any]) -> Callable[..., Any]:
    return _heard(original, lambda talk: talk.half_closed())


def connection_lost(original: Callable[..., Any]) -> Callable[..., Any]:
    def tell(talk: Any, error: BaseException | None) -> None:
        if error is None:
            talk.closed()
        else:
            talk.broke(error)

    return _heard(original, tell)
