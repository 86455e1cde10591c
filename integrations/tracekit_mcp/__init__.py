"""The Model Context Protocol by the official SDK (``mcp``): a client session's requests to its server, each a step.

A connection is opened, and its server process started, only while recording: a replay answers every request from the
log, and delivers what the server sent unprompted (progress, log messages, questions to the user or the model) at its
recorded place.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


integration = Integration(
    "mcp",
    modules=("mcp",),
    # The high-level client caches answers for as long as the server says: its clock decides which requests are made.
    frameworks=("mcp.client.caching",),
    patches=(
        Patch("mcp.client.stdio", "stdio_client", "tracekit_mcp._transport:stdio", decorated=True),
        Patch("mcp.client.sse", "sse_client", "tracekit_mcp._transport:sse", decorated=True),
        Patch("mcp.client.streamable_http", "streamablehttp_client", "tracekit_mcp._transport:http", decorated=True),
        Patch("mcp.client.streamable_http", "streamable_http_client", "tracekit_mcp._transport:http", decorated=True),
        Patch("mcp.client.websocket", "websocket_client", "tracekit_mcp._transport:websocket", decorated=True),
        Patch("mcp.shared.session", "BaseSession.send_request", "tracekit_mcp._session:request_of_session"),
        Patch(
            "mcp.shared.jsonrpc_dispatcher",
            "JSONRPCDispatcher.send_raw_request",
            "tracekit_mcp._session:request_of_dispatcher",
        ),
    ),
)
