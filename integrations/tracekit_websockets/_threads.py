"""The client of ``websockets`` on threads: a connection that is recorded, and one that the log answers."""

from __future__ import annotations

import os
import queue
import socket
import sys
from _thread import RLock, allocate_lock
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

from tracekit.errors import ReplayError
from tracekit.integration import (
    PASSING,
    Conversation,
    Exchange,
    ReplayedConversation,
    StandIn,
    current,
    here,
    passes_untouched,
    passing,
)

from ._requests import begun, raised, report

__all__ = ["connect", "made", "open_connection"]


class _Opening:
    """A connection being opened, up to the point where the library creates its own object for it."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange: Final = exchange
        self._tokens: Any = exchange.enter()

    def over(self) -> bool:
        """Note that the connection is open: from here on the library's own code runs, in a replay, too. Return False if
        it was open before."""
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            self.exchange.leave(tokens)
        return tokens is not None


_opening: Final[ContextVar[_Opening | None]] = ContextVar("tracekit.websockets.opening", default=None)


def connect(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function, in versions in which it opens the connection itself."""

    @wraps(original)
    def connect(uri: str, *args: Any, **options: Any) -> Any:
        if hasattr(sys.modules["websockets.sync.client"], "reconnect") or passes_untouched(current.get()):
            return original(uri, *args, **options)

        def replay(sock: Replayed) -> Any:
            changed = {"sock": sock, "proxy": None}
            if "proxy" not in (getattr(original, "__kwdefaults__", None) or {}):
                del changed["proxy"]
            secure = {"ssl": _NoTls()} if uri.startswith("wss:") else {}
            return original(uri, *args, **{**options, **changed, **secure})

        return _opened(uri, options.get("additional_headers"), lambda: original(uri, *args, **options), replay)

    return connect


def open_connection(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method, in newer versions."""

    @wraps(original)
    def open_connection(self: Any, deadline: Any) -> Any:
        if passes_untouched(current.get()):
            return original(self, deadline)

        def replay(sock: Replayed) -> Any:
            before = self.sock, self.ssl
            self.sock, self.ssl = sock, _NoTls() if self.ws_uri.secure else before[1]
            try:
                return original(self, deadline)
            finally:
                self.sock, self.ssl = before

        return _opened(self.uri, self.additional_headers, lambda: original(self, deadline), replay)

    return open_connection


def _opened(uri: str, headers: Any, real: Callable[[], Any], replay: Callable[[Replayed], Any]) -> Any:
    found = begun(uri, headers)
    if found == PASSING:
        with passing():
            return real()
    if not isinstance(found, Exchange):
        return real()
    if not (found.step.live or found.go()):
        if found.early() == "open":
            raise raised(found.first())
        return replay(Replayed(found))
    opening = _Opening(found)
    token = _opening.set(opening)
    try:
        return real()
    except BaseException as error:
        if opening.over():
            report(found, error)
        raise
    finally:
        _opening.reset(token)


def made(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``ClientConnection.__init__``: the socket is open, the handshake comes next."""

    @wraps(original)
    def __init__(self: Any, sock: Any, *args: Any, **options: Any) -> None:
        opening = _opening.get()
        if opening is not None and opening.over():
            sock = Observed(sock, opening.exchange)
        original(self, sock, *args, **options)
        if type(sock) in (Observed, Replayed):
            # The program may wait for a message with a timeout, or poll for one: use a queue whose waits are captured.
            self.recv_messages.frames = queue.Queue()

    return __init__


class Observed(StandIn):
    """The socket of a recorded connection."""

    def __init__(self, real: Any, exchange: Exchange) -> None:
        super().__init__(real)
        self._exchange: Final = exchange
        self._conversation: Final = Conversation(exchange, brought=False)
        self._lock: Final = RLock()  # a finalizer may close it while its thread is at it

    def sendall(self, data: Any, *flags: Any) -> None:
        with self._lock:
            self._conversation.sent(bytes(data))
        self._exchange.inside(self.real.sendall, data)

    def recv(self, size: int, *flags: Any) -> bytes:
        try:
            data: bytes = self._exchange.inside(self.real.recv, size)
        except BaseException as error:
            with self._lock:
                self._conversation.broke(error)
            raise
        with self._lock:
            if data:
                self._conversation.feed(data)
            else:
                self._conversation.closed()
        return data

    def close(self) -> None:
        with self._lock:
            self._conversation.left()
        self.real.close()


class Replayed:
    """The socket of a connection in a replay: what the library sends is compared, what it receives comes from the log."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, exchange: Exchange) -> None:
        scope = here()
        assert scope is not None
        self._threads: Final = scope.session.threads
        self._conversation: Final = ReplayedConversation(
            exchange, lambda data: None, lambda kind, error: None, lambda: None
        )
        self._lock: Final = RLock()  # a finalizer may close it while its thread is at it
        self._rest = b""
        self._error: BaseException | None = None
        #: Released when the program sends something, or closes the connection.
        self._gates: list[Any] = []
        self._is_closed = False
        # Always readable: code that polls for data proceeds to ``recv`` and waits there.
        self._readable, writable = os.pipe()
        os.close(writable)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return socket.socket

    def sendall(self, data: Any, *flags: Any) -> None:
        with self._lock:
            if self._error is None:
                self._conversation.say(bytes(data))
            self._open_gates()

    def recv(self, size: int, *flags: Any) -> bytes:
        while not self._rest:
            if self._is_closed or self._error is not None:
                return b""
            with self._lock:
                comes = self._conversation.comes()
            try:
                if not comes:  # the program must send something first, or close it
                    self._wait(until_said=comes is None)
                    continue
                self._rest, end = self._conversation.next()
                with self._lock:
                    self._conversation.delivered(end)
            except ReplayError as failure:  # also raised by the code that waits for a message
                self._error = failure
                return b""
            if end is not None:
                self._error = end[1] or ConnectionAbortedError(end[0])
                if end[1] is not None:
                    raise end[1]
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _wait(self, *, until_said: bool) -> None:
        """Wait until the program sends something, or closes the connection."""
        gate = allocate_lock()
        gate.acquire()
        with self._lock:
            if self._is_closed or (until_said and self._conversation.comes() is not None):
                return
            self._gates.append(gate)
        if self._threads is None:
            gate.acquire()
        else:
            self._threads.wait_in(gate)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with self._lock:
            self._conversation.close()
            self._open_gates()
        os.close(self._readable)

    def _open_gates(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.release()

    def shutdown(self, how: int) -> None:
        if how == socket.SHUT_RDWR:
            self.close()

    def fileno(self) -> int:
        return -1 if self._is_closed else self._readable

    def setsockopt(self, *_: Any) -> None:
        pass

    settimeout = setblocking = setsockopt

    def gettimeout(self) -> None:
        return None

    def getsockname(self) -> tuple[str, int]:
        return "0.0.0.0", 0

    getpeername = getsockname


class _NoTls:
    """Replaces a TLS context: there is no connection."""

    def wrap_socket(self, sock: Any, **_: Any) -> Any:
        return sock
