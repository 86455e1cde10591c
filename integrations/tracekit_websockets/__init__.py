"""The seam of the ``websockets`` package: a client's connection is a step, and the messages over it are its pieces.

See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


_REPORTED = ("data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing")

integration = Integration(
    "websockets",
    modules=("websockets",),
    patches=[
        # The method has different names in the supported versions.
        *(
            Patch("websockets.asyncio.client", f"connect.{name}", "tracekit_websockets._asyncio:opening")
            for name in ("create_connection", "open_tcp_connection")
        ),
        *(
            Patch("websockets.asyncio.connection", f"Connection.{name}", "tracekit.integration:reported")
            for name in _REPORTED
        ),
        Patch("websockets.legacy.client", "Connect.__init__", "tracekit_websockets._asyncio:legacy_connect"),
        *(
            Patch("websockets.legacy.protocol", f"WebSocketCommonProtocol.{name}", "tracekit.integration:reported")
            for name in _REPORTED
        ),
        Patch("websockets.sync.client", "connect", "tracekit_websockets._threads:connect"),
        Patch("websockets.sync.client", "reconnect.open_connection", "tracekit_websockets._threads:open_connection"),
        Patch("websockets.sync.client", "ClientConnection.__init__", "tracekit_websockets._threads:made"),
    ],
)
