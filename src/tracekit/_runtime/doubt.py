"""Which failures leave it open whether an effect has happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["lost", "never_sent"]

#: Exceptions of HTTP clients after which nothing can have been sent.
_NEVER_SENT: Final = frozenset(
    ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError", "LocalProtocolError")
)
#: Types of failures in which the answer to a call was lost.
_LOST: Final = frozenset(("timeout", "network"))
#: Kinds of failures (``details``) in which a call was broken off from outside, wherever it was: by Ctrl-C, by a cancelled
#: task, by an exit (which a signal handler may have raised).
_BROKEN_OFF: Final = frozenset(("cancelled", "exit", "interrupted"))


def never_sent(output: object) -> bool:
    """Return whether the result recorded instead of an HTTP response means that nothing can have been sent."""
    return isinstance(output, Mapping) and output.get("raised") in _NEVER_SENT


def lost(meta: Mapping[str, Any], output: object) -> bool:
    """Return whether a failure says nothing about the call's effect: it timed out, its response was lost, or it was broken
    off from outside.

    ``output`` is what was recorded besides the error.
    """
    failure, info = meta.get("failure"), meta.get("info")
    if meta.get("in_doubt") or (isinstance(info, dict) and info.get("in_doubt")):
        return True
    if never_sent(output):
        return False
    while isinstance(failure, dict):
        details = failure.get("details")
        if failure.get("type") in _LOST or (isinstance(details, dict) and details.get("kind") in _BROKEN_OFF):
            return True
        failure = failure.get("caused_by")
    return False
