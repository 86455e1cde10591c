"""Says how deep places are, each time something else; a line of its ledger for each."""

import random
import sys
from pathlib import Path

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

ledger = Path(sys.argv[2])
server = MCPServer("depths")


@server.tool()
def depth(place: str) -> str:
    with ledger.open("a") as file:
        file.write(f"{place}\n")
    return f"{place} is {random.randrange(10_000)} m deep"


if __name__ == "__main__":
    import uvicorn

    app = server.streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
