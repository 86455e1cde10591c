"""The seam of the ``websockets`` package: a client's connection is a step, and the messages over it are its pieces.

See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import Any

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


def _wrapped(module: str, name: str) -> Any:
    def wrap(original: Any) -> Any:
        from . import _asyncio, _threads

        return getattr({"asyncio": _asyncio, "threads": _threads}[module], name)(original)

    return wrap


def _reported(original: Any) -> Any:
    from tracekit.integration import reported

    return reported(original)


_REPORTED = ("data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing")

integration = Integration(
    "websockets",
    modules=("websockets",),
    patches=[
        # The method has different names in the supported versions.
        *(
            Patch("websockets.asyncio.client", f"connect.{name}", _wrapped("asyncio", "opening"))
            for name in ("create_connection", "open_tcp_connection")
        ),
        *(Patch("websockets.asyncio.connection", f"Connection.{name}", _reported) for name in _REPORTED),
        Patch("websockets.legacy.client", "Connect.__init__", _wrapped("asyncio", "legacy_connect")),
        *(Patch("websockets.legacy.protocol", f"WebSocketCommonProtocol.{name}", _reported) for name in _REPORTED),
        Patch("websockets.sync.client", "connect", _wrapped("threads", "connect")),
        Patch("websockets.sync.client", "reconnect.open_connection", _wrapped("threads", "open_connection")),
        Patch("websockets.sync.client", "ClientConnection.__init__", _wrapped("threads", "made")),
    ],
)
