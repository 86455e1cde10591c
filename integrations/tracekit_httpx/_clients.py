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
    for name, wrap in shells.items():
        if name not in vars(client):
            setattr(client, name, wrap(getattr(type(client), name)).__get__(client))
    return bool(shells)


def detach(client: Any) -> bool:
    shells = _shells(client)
    for name in shells:
        vars(client).pop(name, None)
    return bool(shells)


def _shells(client: Any) -> dict[str, Any]:
    from . import _async, _sync

    for name in ("httpx2", "httpx"):
        module = sys.modules.get(name)
        for kind, shell in (("Client", _sync), ("AsyncClient", _async)):
            if module is not None and isinstance(client, getattr(module, kind)):
                library = library_of(getattr(module, kind).send)
                return {"_send_single_request": partial(shell.wrap, library=library), "send": shell.wrap_send}
    return {}
