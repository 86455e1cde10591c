"""The seam on one client object instead of on its class."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from ._library import library_of

__all__ = ["attach", "detach"]


def attach(client: Any) -> bool:
    """Put the seam on this client; false if it is no client of httpx or httpx2."""
    wrap = _shell(client)
    if wrap is None:
        return False
    if "send" not in vars(client):
        send = wrap(type(client).send)
        client.send = send.__get__(client)
    return True


def detach(client: Any) -> bool:
    if _shell(client) is None:
        return False
    vars(client).pop("send", None)
    return True


def _shell(client: Any) -> Any:
    from . import _async, _sync

    for name in ("httpx2", "httpx"):
        module = sys.modules.get(name)
        if module is not None and isinstance(client, module.Client):
            return partial(_sync.wrap, library=library_of(module.Client.send))
        if module is not None and isinstance(client, module.AsyncClient):
            return partial(_async.wrap, library=library_of(module.AsyncClient.send))
    return None
