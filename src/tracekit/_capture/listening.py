"""Listening sockets of a replay: the program listens as it did, and nobody reaches it.

A replay lets a program listen where the recording says that nobody connected: then there is nothing for a replay to
answer. The socket is a real one, so that everything that waits for it waits as it did, but it is closed to everybody. The
kernel drops each packet to it (TCP), or it has no name by which it could be found (Unix).

What is done here, the guard must let through.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from contextlib import suppress
from errno import ENETUNREACH
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from .. import _reality
from .._runtime.boundary import listeners
from .._runtime.session import Session

if TYPE_CHECKING:
    from .._journal.reader import Trace

__all__ = ["close_to_others", "is_closed", "name_of", "nobody_connected", "show_as", "take_name"]

#: The listening sockets that nobody reaches.
_closed: Final[WeakSet[Any]] = WeakSet()
#: The addresses that the program sees of sockets that are bound elsewhere.
_shown: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()

#: Options of a Linux socket: a filter of its packets, and that nobody may take it off again.
_ATTACH_FILTER: Final = 26
_LOCK_FILTER: Final = 44
#: The filter, a program of one instruction (return 0): keep nothing of any packet.
_DROP_ALL: Final = struct.pack("=HBBI", 6, 0, 0, 0)


class _Recorded:
    """The listening sockets of a recording: those to which nobody connected, and whether somebody connected to any."""

    def __init__(self) -> None:
        self.quiet: frozenset[str] | None = None
        self.none_accepted = False

    @_reality.off_loop()
    def read(self, trace: Trace) -> None:
        self.quiet, self.none_accepted = listeners(trace.entries(damaged=True))


def nobody_connected(session: Session, target: str) -> bool:
    """Return whether the log of a replay says that nobody connected to the socket with this address.

    An address may differ (it has the number of the process): then nobody may have connected to any.
    """
    if session.log.trace is None:
        return False
    recorded = session.state.extras.of(_Recorded)
    if recorded.quiet is None:
        recorded.read(session.log.trace)
    quiet = recorded.quiet or frozenset()
    return target in quiet or (recorded.none_accepted and any(_is_path(one) == _is_path(target) for one in quiet))


def _is_path(target: str) -> bool:
    return not target.rpartition(":")[2].isdigit()


def is_closed(sock: Any) -> bool:
    return sock in _closed


def close_to_others(sock: Any) -> bool:
    """Make a socket that is about to listen unreachable. Return false if that is not possible here."""
    if sock in _closed:
        return True
    done = _drops_packets() and _drop_packets(sock)
    if done:
        _closed.add(sock)
    return done


def _drop_packets(sock: Any) -> bool:
    import socket

    try:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return False
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) != socket.IPPROTO_TCP:
            return False
        program = array("B", _DROP_ALL)
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", 1, program.buffer_info()[0]))
        sock.setsockopt(socket.SOL_SOCKET, _LOCK_FILTER, 1)
        return bool(sock.getsockopt(socket.SOL_SOCKET, _LOCK_FILTER) == 1)
    except OSError:
        return False


@cache
def _drops_packets() -> bool:
    """Return whether this system does as it says: a socket with the filter does not take the connection that it took
    without it. (Other kernels that pass for Linux may accept the filter, and ignore it.)

    A namespace of the replay's own has no loopback interface to try it on, and nobody to connect.
    """
    import socket
    from _socket import socket as plain

    if sys.platform != "linux" or not hasattr(socket, "SO_PROTOCOL"):
        return False

    def connects(listener: Any) -> bool | None:
        with socket.socket() as client:
            client.setblocking(False)
            if client.connect_ex(listener.getsockname()) == ENETUNREACH:
                return None
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                return False
            return True

    with suppress(OSError), socket.socket() as listener:
        plain.bind(listener, ("127.0.0.1", 0))  # not the replaced one, which asks the recording for a port
        listener.listen()
        listener.setblocking(False)
        before = connects(listener)
        after = connects(listener) if _drop_packets(listener) else True
        return (before, after) in ((True, False), (None, None))
    return False


@_reality.off_loop()
def take_name(sock: Any, path: Any) -> None:
    """Take the name of a Unix socket that is bound and does not listen yet, so that nobody finds it.

    At ``path`` there is another socket then, as the program expects it (it may set its permissions, and delete it). It
    does not listen, so connecting to it is refused.
    """
    from _socket import AF_UNIX, SOCK_STREAM
    from _socket import socket as plain

    mode = os.lstat(path).st_mode
    os.unlink(path)
    node = plain(AF_UNIX, SOCK_STREAM)
    try:
        node.bind(path)
    finally:
        node.close()
    os.chmod(path, mode & 0o7777)
    _closed.add(sock)


def show_as(sock: Any, address: Any) -> None:
    """Show the program this address of a socket, wherever it is bound."""
    _shown[sock] = address


def name_of(original: Any) -> Any:
    """Make the replacement of ``socket.getsockname``."""

    def getsockname(self: Any) -> Any:
        found = _shown.get(self) if _shown else None
        return original(self) if found is None else found

    return getsockname
