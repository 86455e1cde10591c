"""FastMCP: a server in the process, with progress, a resource and a prompt, and one that its client starts."""

import asyncio
import random
from datetime import datetime
from pathlib import Path

from fastmcp import Client, Context, FastMCP

mcp = FastMCP("Depths")


@mcp.tool
async def depth(place: str, ctx: Context) -> str:
    """How deep a place is."""
    for part in range(3):
        await ctx.report_progress(part, 3)
        await asyncio.sleep(0.01)
    return f"{place} is {random.randrange(10_000)} m deep at {datetime.now().isoformat()}"


@mcp.resource("depths://{place}")
def chart(place: str) -> str:
    return f"chart of {place}: {random.random()}"


@mcp.prompt
def ask(place: str) -> str:
    return f"How deep is {place}?"


async def seen(progress, total, message):
    print(progress, "of", total)


async def main():
    async with Client(mcp) as client:
        print([tool.name for tool in await client.list_tools()])
        print((await client.call_tool("depth", {"place": "fjord"}, progress_handler=seen)).data)
        many = await asyncio.gather(*(client.call_tool("depth", {"place": f"lake {n}"}) for n in range(4)))
        print([one.data for one in many])
        print((await client.read_resource("depths://sea"))[0].text)
        print((await client.get_prompt("ask", {"place": "sea"})).messages[0].content.text)
    async with Client(Path("fastmcp_server_dice.py")) as client:
        many = await asyncio.gather(*(client.call_tool("roll", {"sides": 1000 + n}) for n in range(4)))
        print([one.data for one in many])


asyncio.run(main())
