"""Captures the requests of one client object, instead of those of all clients: what ``wrap(client)`` of SDKs uses."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from ._library import library_of

__all__ = ["attach", "detach"]


def attach(client: Any) -> bool:
    """Put the seam on this client; return False if it is no client of httpx or httpx2."""
    shells = _shells(client)
    for one, name, wrap in shells:
        if name not in vars(one):
            setattr(one, name, wrap(getattr(type(one), name)).__get__(one))
    return bool(shells)


def detach(client: Any) -> bool:
    shells = _shells(client)
    for one, name, _ in shells:
        vars(one).pop(name, None)
    return bool(shells)


def _shells(client: Any) -> list[tuple[Any, str, Any]]:
    """Return what to wrap, and with what: methods of the client, and those with which it closes connections."""
    from . import _async, _sync

    for name in ("httpx2", "httpx"):
        module = sys.modules.get(name)
        for kind, shell in (("Client", _sync), ("AsyncClient", _async)):
            if module is not None and isinstance(client, getattr(module, kind)):
                library = library_of(getattr(module, kind).send)
                found = [
                    (client, "_send_single_request", partial(shell.wrap, library=library)),
                    (client, "send", shell.wrap_send),
                ]
                if shell is _async:
                    ways = (client._transport, *client._mounts.values())
                    closed = (way for way in ways if isinstance(way, module.AsyncHTTPTransport))
                    found += [(way, "aclose", _async.wrap_close) for way in closed]
                return found
    return []
