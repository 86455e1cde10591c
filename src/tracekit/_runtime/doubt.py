"""Which failures leave it open whether an effect has happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["lost", "never_sent"]

#: Exceptions of HTTP clients after which nothing can have been sent.
_NEVER_SENT: Final = frozenset(
    ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError", "LocalProtocolError")
)


def never_sent(output: object) -> bool:
    """Return whether the result recorded instead of an HTTP response means that nothing can have been sent."""
    return isinstance(output, Mapping) and output.get("raised") in _NEVER_SENT


def lost(meta: Mapping[str, Any], output: object) -> bool:
    """Return whether a failure says nothing about the call's effect: it timed out, or its response was lost.

    ``output`` is what was recorded besides the error.
    """
    failure, info = meta.get("failure"), meta.get("info")
    if meta.get("in_doubt") or (isinstance(info, dict) and info.get("in_doubt")):
        return True
    if never_sent(output):
        return False
    while isinstance(failure, dict):
        if failure.get("type") in ("timeout", "network"):
            return True
        failure = failure.get("caused_by")
    return False
