"""What stands in the place of a connection's transport while a request of a run is under way.

A session gets a connection for each request from ``BaseConnector.connect``: there the step of the request begins, before anything is
opened. While it is recorded, the protocol of the connection is told what came only when that is in the log (:class:`Watched`). In a replay
there is no connection: the protocol gets the recorded bytes where they came (:class:`Absent`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
    ReplayedConversation,
    Scope,
    begin,
    current,
    drive,
    here,
    outside,
    passes_untouched,
    passing,
)

from ._requests import Asked, raised, report, undecoded

__all__ = ["close", "connect", "connection_lost", "data_received", "release", "set_response_params"]

#: The attribute of a protocol in which the stand-in of its transport is kept.
_PLACE: Final = "_tracekit_line"


@contextmanager
def _nobodys(scope: Scope | None = None) -> Iterator[None]:
    """A block in which what is asked of the event loop is nobody's progress: it serves the connection. With ``scope`` it is the run's."""
    token = current.set(scope)
    try:
        yield
    finally:
        current.reset(token)


# -- a request begins --------------------------------------------------------------------------------------------------------


def connect(original: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseConnector.connect``."""

    @wraps(original)
    async def connect(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if passes_untouched(current.get()):
            return await original(self, req, *args, **kwargs)
        scope, asked = here(), await Asked.of(req)
        found: Exchange | str | None
        if scope is None:
            found = outside(*asked.parts)
        else:
            found = begin(scope, *asked.parts, streamed=asked.streamed, websocket=asked.websocket)
        if found == AMBIENT:
            return _opened(self, req, Nothing)
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
        made = Talking if asked.websocket else Absent
        return _opened(self, req, lambda proto: made(proto, found, asked))

    return connect


async def _passed(found: str | None, connecting: Any) -> Any:
    if found == PASSING:
        with passing():
            return await connecting
    return await connecting


async def _live(exchange: Exchange, asked: Asked, req: Any, connecting: Any) -> Any:
    driven = drive(connecting)
    tokens = exchange.enter()
    try:
        connection = await driven
    except BaseException as error:
        exchange.leave(tokens)
        report(exchange, error, suspended=driven.suspended)
        raise
    exchange.leave(tokens)
    if driven.suspended and (asked.streamed or req._traces):  # the program's own code runs before there is an answer
        exchange.mark("opened", suspended=True)
    Watched(connection.protocol, exchange, asked)
    return connection


def _opened(connector: Any, req: Any, transport: Callable[[Any], Any]) -> Any:
    """A connection that is none: ``transport`` makes the stand-in for the transport of a protocol."""
    library: Any = sys.modules["aiohttp.connector"]
    proto = connector._factory()
    stand_in = transport(proto)
    proto.connection_made(stand_in)
    proto.force_close()  # nobody else is to have it
    return library.Connection(connector, req.connection_key, proto, connector._loop)


# -- the transport while it is recorded --------------------------------------------------------------------------------------


class Watched:
    """The transport of a connection, as long as one request and its answer take."""

    # No slots: a transport has attributes that somebody may set.

    def __init__(self, proto: Any, exchange: Exchange, asked: Asked) -> None:
        self._proto: Final = proto
        self._exchange: Final = exchange
        self._asked: Final = asked
        self.real: Final = proto.transport
        self._talk: Final = Conversation(exchange, brought=True, parts=True) if asked.websocket else None
        #: In which the library reads what comes: over a websocket it goes by the run's clock and has timers of the run's there.
        self.scope: Final = exchange.scope if asked.websocket else None
        self.incoming: Final = self._talk or Incoming(exchange, asked.method, asked.codings, quiet=False, brought=True)
        self._upload: Final = Upload(asked) if asked.streamed else None
        vars(proto)[_PLACE] = self
        proto.transport = self

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what asks whether it is a transport is told what it is
        return self.real.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)

    # -- what goes out ---------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._upload is not None:
            body, _ = self._upload.feed(bytes(data))
            if body:
                self._exchange.sent(body)
        elif self._talk is not None:
            self._talk.sent(bytes(data))
        self._exchange.inside(self.real.write, data)

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    # -- what comes back -------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        self.incoming.feed(data)
        self._look()

    def lost(self, error: BaseException | None) -> None:
        """The connection has ended."""
        if error is None:
            self.incoming.closed()
        else:
            self.incoming.broke(error)
        self._look()

    def timed_out(self) -> None:
        self.incoming.broke(TimeoutError("Timeout on reading data from socket"), "timeout")
        self._look()

    def _look(self) -> None:
        if self.incoming.complete:
            self._over()

    def _over(self) -> None:
        """The answer has been received: the protocol has its transport again."""
        vars(self._proto).pop(_PLACE, None)
        if self._proto.transport is self:
            self._proto.transport = self.real

    # -- its end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.incoming.left()
        self._over()
        with _nobodys():
            self.real.close()

    def abort(self) -> None:
        self.incoming.left()
        self._over()
        with _nobodys():
            self.real.abort()

    def pause_reading(self) -> None:
        with _nobodys():
            self.real.pause_reading()

    def resume_reading(self) -> None:
        with _nobodys():
            self.real.resume_reading()


class Upload:
    """Reads the body of a request out of what is sent: the pieces, and whether that is all of it."""

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


class _StandIn(asyncio.Transport):
    """What all have that stand in for a connection which is not there."""

    #: As that of :class:`Watched`.
    scope: Scope | None = None

    def __init__(self, proto: Any) -> None:
        super().__init__()
        self._proto: Final = proto
        self._closing = False
        vars(proto)[_PLACE] = self

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        loop = self._proto._loop
        if not loop.is_closed():
            loop.call_soon(self._proto.connection_lost, None, context=Context())

    abort = close

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

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
        return self._proto

    def set_protocol(self, protocol: Any) -> None:
        pass


class Absent(_StandIn):
    """The transport of a connection of a replay: what the library writes is compared, what it reads comes from the log."""

    def __init__(self, proto: Any, exchange: Exchange, asked: Asked) -> None:
        super().__init__(proto)
        self._upload: Final = Upload(asked) if asked.streamed else None
        self._arrivals: Arrivals = Arrivals(exchange, asked.method, proto.data_received, self._lost)

    def ready(self) -> None:
        """The library has said how it wants the answer."""
        self._arrivals.ask()

    def write(self, data: Any) -> None:
        if self._upload is not None:
            body, complete = self._upload.feed(bytes(data))
            self._arrivals.sent(body, complete=complete)

    def _lost(self, kind: str, error: BaseException | None) -> None:
        proto = self._proto
        if isinstance(error, ReplayError):
            _fail(proto, error)
        elif kind == "timeout":
            proto._on_read_timeout()
        elif kind.startswith("coding "):
            _fail(proto, undecoded(kind.partition(" ")[2]), rest_only=True)
        else:
            self._closing = True
            proto.connection_lost(error)

    def close(self) -> None:
        self._arrivals.close()
        super().close()

    abort = close


class Talking(Absent):
    """That of a websocket."""

    def __init__(self, proto: Any, exchange: Exchange, asked: Asked) -> None:
        super().__init__(proto, exchange, asked)
        self.scope = exchange.scope
        self._arrivals: Arrivals = ReplayedConversation(exchange, proto.data_received, self._lost, lambda: None)

    def write(self, data: Any) -> None:
        self._arrivals.sent(bytes(data))


def _fail(proto: Any, error: BaseException, *, rest_only: bool = False) -> None:
    """Whoever waits for something to come gets ``error``; ``rest_only``: the head of the answer is none of that."""
    payload = proto._payload
    if not rest_only:
        proto.set_exception(error)
    if payload is not None and not payload.is_eof():
        payload.set_exception(error)


class Nothing(_StandIn):
    """The transport of a request that is answered with nothing."""

    def ready(self) -> None:
        self._proto._loop.call_soon(self._proto.data_received, NOTHING, context=Context())

    def write(self, data: Any) -> None:
        pass


# -- the protocol ------------------------------------------------------------------------------------------------------------


def data_received(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def data_received(self: Any, data: bytes) -> None:
        line = vars(self).get(_PLACE)
        if line is None:
            original(self, data)
            return
        if data and type(line) is Watched:
            with _nobodys():
                line.feed(data)
        with _nobodys(line.scope):
            original(self, data)

    return data_received


def connection_lost(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def connection_lost(self: Any, exc: BaseException | None) -> None:
        line = vars(self).get(_PLACE)
        if line is None:
            original(self, exc)
            return
        if type(line) is Watched:
            with _nobodys():
                line.lost(exc)
        with _nobodys(line.scope):
            original(self, exc)

    return connection_lost


def set_response_params(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def set_response_params(self: Any, **how: Any) -> None:
        line = vars(self).get(_PLACE)
        original(self, **how)
        if type(line) is Watched:
            if not how.get("auto_decompress", True):
                line.incoming.asked = ""
        elif line is not None:
            line.ready()

    return set_response_params


def _reschedule_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    """How long nothing may come: no timer of the program's, and in a replay none at all."""

    @wraps(original)
    def _reschedule_timeout(self: Any) -> None:
        line = vars(self).get(_PLACE)
        if line is None:
            original(self)
        elif type(line) is Watched:
            with _nobodys():
                original(self)

    return _reschedule_timeout


def _on_read_timeout(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def _on_read_timeout(self: Any) -> None:
        line = vars(self).get(_PLACE)
        with _nobodys():
            if type(line) is Watched:
                line.timed_out()
            original(self)

    return _on_read_timeout


# -- connections that are given back, and closed -----------------------------------------------------------------------------


def release(original: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseConnector._release``: a connection goes back to its pool, which looks after it with timers of its own."""

    @wraps(original)
    def _release(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current.get() is None:
            return original(self, *args, **kwargs)
        with _nobodys():
            return original(self, *args, **kwargs)

    return _release


def close(original: Callable[..., Any]) -> Callable[..., Any]:
    """``ClientSession.close``, which may wait until connections are closed; there is none in a replay."""

    @wraps(original)
    async def close(self: Any) -> Any:
        scope = None if passes_untouched(current.get()) else here()
        if scope is None or scope.live or scope.session.state.ended:
            return await original(self)
        try:
            turn: Any = scope.session.arm(scope, "loop.call", 0)
        except ReplayError:
            await original(self)
            raise
        driven = drive(original(self))
        token = current.set(scope.inside(scope.parent or 1, live=True))
        try:
            await driven
        finally:
            current.reset(token)
        if turn.comes:
            await turn.wait_async()
        elif turn.live and driven.suspended:
            turn.fired()
        return None

    return close
