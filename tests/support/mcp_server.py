"""An MCP server made with the official SDK, of either major version.

``python -m tests.support.mcp_server LEDGER [sse|streamable-http PORT]`` runs it. Each thing that it is asked for is a line of the ledger.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
from pydantic import BaseModel

try:
    _server: Any = importlib.import_module("mcp.server.mcpserver")
    make = _server.MCPServer
except ModuleNotFoundError:
    _server = importlib.import_module("mcp.server.fastmcp")
    make = _server.FastMCP
Context: Any = _server.Context
types: Any = importlib.import_module("mcp.types")

ledger = Path(sys.argv[1])
app: Any = make("desk")


def note(line: str) -> None:
    with ledger.open("a") as file:
        file.write(f"{line}\n")


class Confirmation(BaseModel):
    sure: bool


@app.tool(annotations=types.ToolAnnotations(readOnlyHint=True))
def look_up(word: str) -> str:
    note(f"look_up {word}")
    return f"{word} is in process {os.getpid()}"


@app.tool(annotations=types.ToolAnnotations(destructiveHint=False))
def draft(text: str) -> str:
    note(f"draft {text}")
    return f"{text} {os.getpid()}"


@app.tool()
def book(seat: str) -> str:
    note(f"book {seat}")
    if seat == "fatal":  # the client dies with the booking made, and its answer not written
        os.kill(os.getppid(), signal.SIGKILL)
    return f"{seat} booked by {os.getpid()}"


@app.tool()
def refuse(why: str) -> str:
    note(f"refuse {why}")
    raise ValueError(why)


@app.tool()
async def travel(seconds: float, ctx: Context) -> str:
    note("travel")
    await ctx.report_progress(1, 2)
    await ctx.info(f"on the way with {os.getpid()}")
    await anyio.sleep(seconds)
    await ctx.report_progress(2, 2)
    return "there"


@app.tool()
async def think(about: str, ctx: Context) -> str:
    note(f"think {about}")
    asked = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=f"{about} {os.getpid()}"))
    answer = await ctx.session.create_message(messages=[asked], max_tokens=9)
    return f"thought: {answer.content.text}"


@app.tool()
async def confirm(ctx: Context) -> str:
    note("confirm")
    answer = await ctx.elicit(f"sure of {os.getpid()}?", Confirmation)
    return f"{answer.action} {answer.data.sure if answer.action == 'accept' else None}"


@app.resource("desk://rules")
def rules() -> str:
    note("rules")
    return f"the rules of {os.getpid()}"


@app.prompt()
def greeting(name: str) -> str:
    note(f"greeting {name}")
    return f"Greet {name} from {os.getpid()}"


if __name__ == "__main__":
    logging.disable()
    note("started")
    if len(sys.argv) == 2:
        app.run()
    elif hasattr(app.settings, "port"):
        app.settings.port = int(sys.argv[3])
        app.settings.log_level = "CRITICAL"
        app.run(transport=sys.argv[2])
    else:
        app.run(transport=sys.argv[2], port=int(sys.argv[3]))
