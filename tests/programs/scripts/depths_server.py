"""An MCP server by stdio: says how deep places are, each time something else."""

import random

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("depths")


@server.tool()
def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {random.randrange(10_000)} m deep"


if __name__ == "__main__":
    server.run()
