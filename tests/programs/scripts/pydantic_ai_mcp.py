"""A Pydantic AI agent with the tools of an MCP server that it starts, and one of its own; agents side by side."""

import asyncio
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

server = MCPToolset(Path("depths_server.py"), init_timeout=60)
agent = Agent("openai-chat:gpt-4o", toolsets=[server], instructions="Be brief.")


@agent.tool_plain
def warmth(place: str) -> str:
    """How warm a place is."""
    return f"{place} is {len(place)} degrees warm"


async def main():
    async with agent:
        for result in await asyncio.gather(*(agent.run(f"How deep is lake {n}?") for n in range(3))):
            print(result.output)
            for message in result.all_messages():
                print(message.kind, [part.part_kind for part in message.parts])
        async with agent.iter("And the sea?") as run:
            async for node in run:
                print(type(node).__name__, end="|")
        print()
        print(run.result.output)


asyncio.run(main())
