#!/usr/bin/env python
"""An MCP server on standard input and output, as a page shows one: it books seats."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("desk")


@server.tool()
def book(seat: str) -> str:
    """Book a seat."""
    return f"{seat} is booked"


if __name__ == "__main__":
    server.run()
