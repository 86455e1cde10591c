"""A client session with a server that it starts."""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main():
    server = StdioServerParameters(command=sys.executable, args=["depths_server.py"])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        print([tool.name for tool in (await session.list_tools()).tools])
        for place in ("fjord", "sea"):
            print((await session.call_tool("depth", {"place": place})).content[0].text)
        many = await asyncio.gather(*(session.call_tool("depth", {"place": f"lake {n}"}) for n in range(5)))
        print([one.content[0].text for one in many])


asyncio.run(main())
