"""A client session with a server over streamable HTTP."""

import asyncio
import os

from mcp import ClientSession

try:
    from mcp.client.streamable_http import streamable_http_client
except ImportError:
    from mcp.client.streamable_http import streamablehttp_client as streamable_http_client


async def main():
    async with (
        streamable_http_client(os.environ["SERVER_URL"] + "/mcp") as streams,
        ClientSession(*streams[:2]) as session,
    ):
        await session.initialize()
        print([tool.name for tool in (await session.list_tools()).tools])
        many = await asyncio.gather(*(session.call_tool("depth", {"place": f"lake {n}"}) for n in range(5)))
        print([one.content[0].text for one in many])


asyncio.run(main())
