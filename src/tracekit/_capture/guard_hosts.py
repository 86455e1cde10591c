"""The hosts that a replay may reach: what ``allow_hosts`` names, and the addresses that looking those names up gave."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["Hosts", "numeric"]


class Hosts:
    """``allow_hosts``: ``"db.test"``, ``"db.test:5432"``, ``"127.0.0.1"``, ``"[::1]:80"``, or the path of a socket.

    An entry without a port stands for every port. Looking up a named host is allowed, and so are the addresses that the
    look-up gave, on the entry's ports.
    """

    __slots__ = ("_allowed",)

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._allowed: Final[set[tuple[str, int | None]]] = set()
        for entry in entries:
            host, port = _parse(entry)
            self._allowed.add((host, port))
            if host == "localhost":
                self._allowed.update({("127.0.0.1", port), ("::1", port)})

    def permits(self, address: object) -> bool:
        """Whether a connection to this socket address (a ``(host, port, …)`` tuple, or a path) is allowed."""
        if not self._allowed:
            return False
        host, port = _split(address)
        return (host, None) in self._allowed or (host, port) in self._allowed

    def looks_up(self, name: object) -> bool:
        """Whether this name may be looked up: an entry names it, whatever the port."""
        host = _plain(name)
        return any(host == allowed for allowed, _ in self._allowed)

    def note(self, name: object, addresses: Iterable[object]) -> None:
        """A look-up of ``name`` gave these socket addresses; they are allowed as the name is."""
        host = _plain(name)
        ports = [port for allowed, port in self._allowed if allowed == host]
        for address in addresses:
            self._allowed.update((_split(address)[0], port) for port in ports)


def numeric(host: object) -> bool:
    """Whether this is no name: nothing, or an address in digits, which no server is asked about."""
    if host is None or host in ("", b"", "<broadcast>"):
        return True
    return _canonical(_text(host)) is not None


def _parse(entry: str) -> tuple[str, int | None]:
    if entry.startswith("[") and "]" in entry:
        host, _, rest = entry[1:].partition("]")
        return _plain(host), int(rest[1:]) if rest.startswith(":") else None
    host, colon, port = entry.rpartition(":")
    if colon and ":" not in host and port.isdigit() and not entry.startswith("/"):
        return _plain(host), int(port)
    return _plain(entry), None


def _split(address: object) -> tuple[str, int | None]:
    if isinstance(address, tuple) and address:
        port = address[1] if len(address) > 1 and isinstance(address[1], int) else None
        return _plain(address[0]), port
    return _plain(address), None


def _plain(host: object) -> str:
    text = _text(host)
    if text.startswith("/"):
        return text
    return _canonical(text) or text.rstrip(".").lower()


def _text(host: object) -> str:
    if isinstance(host, bytes | bytearray):
        return bytes(host).decode("utf-8", "surrogateescape")
    return str(host)


def _canonical(host: str) -> str | None:
    """An address in digits in its shortest form, an IPv4 one out of IPv6, or ``None`` for a name."""
    from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton  # light: no selectors, no enums

    bare = host.partition("%")[0]
    for family in (AF_INET, AF_INET6):
        try:
            address = inet_ntop(family, inet_pton(family, bare))
        except (OSError, ValueError):
            continue
        return address.removeprefix("::ffff:") if "." in address else address
    return None
