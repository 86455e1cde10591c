"""The Model Context Protocol by the official SDK (``mcp``): what a client session asks of its server, each request a step.

A connection is opened, and its server process started, while recording alone: a replay answers every request from the log, and gives
the program what the server sent of itself (progress, log messages, questions to the user or the model) where it came then.
"""

from __future__ import annotations

from tracekit.integration import Integration, Patch

from ._session import request_of_dispatcher, request_of_session
from ._transport import transport

__all__ = ["integration"]

integration = Integration(
    "mcp",
    modules=("mcp",),
    # The high-level client keeps answers for as long as the server says: its clock decides which requests are made.
    frameworks=("mcp.client.caching",),
    patches=(
        Patch("mcp.client.stdio", "stdio_client", transport("stdio"), decorated=True),
        Patch("mcp.client.sse", "sse_client", transport("sse"), decorated=True),
        Patch("mcp.client.streamable_http", "streamablehttp_client", transport("http"), decorated=True),
        Patch("mcp.client.streamable_http", "streamable_http_client", transport("http"), decorated=True),
        Patch("mcp.client.websocket", "websocket_client", transport("websocket"), decorated=True),
        Patch("mcp.shared.session", "BaseSession.send_request", request_of_session),
        Patch("mcp.shared.jsonrpc_dispatcher", "JSONRPCDispatcher.send_raw_request", request_of_dispatcher),
    ),
)
