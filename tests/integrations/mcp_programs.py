"""Programs that ask an MCP server by the official SDK, of either major version.

``python -m tests.integrations.mcp_programs NAME SERVER…`` runs one. ``SERVER…`` is a kind of transport and its URL, or
``stdio`` and the arguments of the server's process. What the program saw is printed as JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client

types: Any = importlib.import_module("mcp.types")
_http: Any = importlib.import_module("mcp.client.streamable_http")
http_client: Any = getattr(_http, "streamable_http_client", None) or _http.streamablehttp_client

Ask = Callable[[Any, list[Any]], Awaitable[None]]


def transport(server: list[str]) -> Any:
    kind, *rest = server
    if kind == "stdio":
        return stdio_client(StdioServerParameters(command=sys.executable, args=rest))
    return sse_client(*rest) if kind == "sse" else http_client(*rest)


@asynccontextmanager
async def session(server: list[str], **callbacks: Any) -> AsyncIterator[Any]:
    async with transport(server) as streams, ClientSession(*streams[:2], **callbacks) as found:
        await found.initialize()
        yield found


def text(result: Any) -> str:
    return str(result.content[0].text)


def failed(result: Any) -> bool:
    return bool(getattr(result, "is_error", None) or getattr(result, "isError", None))


async def everything(server: list[str], saw: list[Any]) -> None:
    """Each kind of request, calls at once, a tool's failure, a server's error, progress and log messages."""

    async def progress(done: float, total: float | None, _: str | None) -> None:
        saw.append(["progress", done, total])

    async def logged(params: Any) -> None:
        saw.append(["logged", params.data])

    async with session(server, logging_callback=logged) as desk:
        saw.append(sorted(tool.name for tool in (await desk.list_tools()).tools))
        saw.append([str(one.uri) for one in (await desk.list_resources()).resources])
        saw.append([one.name for one in (await desk.list_prompts()).prompts])
        saw.append(text(await desk.call_tool("look_up", {"word": "river"})))
        saw.extend(map(text, await asyncio.gather(*(desk.call_tool("book", {"seat": f"{n}A"}) for n in range(3)))))
        refused = await desk.call_tool("refuse", {"why": "full"})
        saw.append([failed(refused), text(refused)])
        saw.append(text(await desk.call_tool("travel", {"seconds": 0.05}, progress_callback=progress)))
        saw.append((await desk.read_resource("desk://rules")).contents[0].text)
        saw.append((await desk.get_prompt("greeting", {"name": "Ada"})).messages[0].content.text)
        try:
            await desk.get_prompt("none", {})
        except Exception as error:
            saw.append([type(error).__name__, str(error)])
        await desk.send_ping()


async def asked_back(server: list[str], saw: list[Any], thought: str = "done thinking") -> None:
    """Tools that ask the program's model, and its user."""

    async def sample(_: Any, params: Any) -> Any:
        saw.append(["asked", params.messages[0].content.text])
        said = types.TextContent(type="text", text=thought)
        return types.CreateMessageResult(role="assistant", content=said, model="m")

    async def elicit(_: Any, params: Any) -> Any:
        saw.append(["asked", params.message])
        return types.ElicitResult(action="accept", content={"sure": True})

    async with session(server, sampling_callback=sample, elicitation_callback=elicit) as desk:
        for tool, arguments in (("think", {"about": "rain"}), ("confirm", {}), ("think", {"about": "snow"})):
            saw.append(text(await desk.call_tool(tool, arguments)))


PROGRAMS: dict[str, Callable[[list[str], list[Any]], Awaitable[None]]] = {
    "everything": everything,
    "asked_back": asked_back,
}


def run(name: str, server: list[str], **options: Any) -> list[Any]:
    saw: list[Any] = []
    asyncio.run(PROGRAMS[name](server, saw, **options))  # type: ignore[arg-type]
    return saw


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2:])))
