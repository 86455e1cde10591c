"""OpenAI's Agents SDK with the tools of an MCP server that it starts, two agents side by side, one as a tool of the other."""

import asyncio
import sys

from agents import Agent, Runner, set_default_openai_api
from agents.mcp import MCPServerStdio

set_default_openai_api("chat_completions")


async def main():
    params = {"command": sys.executable, "args": ["depths_server.py"]}
    async with MCPServerStdio(name="depths", params=params, cache_tools_list=True) as server:
        scout = Agent(name="scout", model="gpt-4o", mcp_servers=[server])
        print([tool.name for tool in await server.list_tools()])
        found = await asyncio.gather(*(Runner.run(scout, f"How deep is lake {n}?") for n in range(3)))
        for result in found:
            print(result.final_output, [type(item).__name__ for item in result.new_items])
        chief = Agent(name="chief", model="gpt-4o", tools=[scout.as_tool("ask_scout", "Ask the scout.")])
        streamed = Runner.run_streamed(chief, "How deep is the fjord?")
        async for event in streamed.stream_events():
            print(event.type, end="|")
        print()
        print(streamed.final_output)


asyncio.run(main())
