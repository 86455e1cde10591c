"""Two AutoGen agents in a round, one with a tool."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


async def main():
    model = OpenAIChatCompletionClient(model="gpt-4o")
    scout = AssistantAgent("scout", model_client=model, tools=[depth], reflect_on_tool_use=True)
    writer = AssistantAgent("writer", model_client=model, system_message="Write it down.")
    team = RoundRobinGroupChat([scout, writer], termination_condition=MaxMessageTermination(7))
    async for message in team.run_stream(task="How deep is the fjord?"):
        print(type(message).__name__, getattr(message, "id", ""), getattr(message, "content", ""))
    await model.close()


asyncio.run(main())
