"""AG2: an agent with a tool that is asked twice, others streamed side by side."""

import asyncio

from ag2 import Agent
from ag2.config import OpenAIConfig


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


async def main():
    agent = Agent("scout", "Be brief.", config=OpenAIConfig("gpt-4o"), tools=[depth])
    reply = await agent.ask("How deep is the fjord?")
    print(reply.body)
    reply = await reply.ask("And the sea?")
    print(reply.body)
    streamed = Agent("two", config=OpenAIConfig("gpt-4o", streaming=True))
    for one in await asyncio.gather(*(streamed.ask(f"lake {n}") for n in range(4))):
        print(one.body)


asyncio.run(main())
