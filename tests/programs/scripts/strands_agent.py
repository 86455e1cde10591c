"""Strands: an agent with tools that run side by side, its session in files, asked and streamed."""

import asyncio
import os

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager


@tool
def depth(place: str) -> str:
    """How deep a place is.

    Args:
        place: Where to measure.
    """
    return f"{place} is {len(place)} m deep"


model = OpenAIModel(client_args={"base_url": os.environ["OPENAI_BASE_URL"]}, model_id="gpt-4o")
session = FileSessionManager(session_id="fjords", storage_dir="sessions")
agent = Agent(model=model, tools=[depth], callback_handler=None, session_manager=session)
first = agent("How deep is the fjord?")
print(first, first.stop_reason, first.metrics.accumulated_usage["totalTokens"], first.metrics.cycle_count)


async def main():
    async for event in agent.stream_async("And the sea?"):
        if "data" in event:
            print(event["data"], end="|")
    print()
    print(await asyncio.gather(*(told(number) for number in range(3))))


async def told(number):
    return str(await Agent(model=model, tools=[depth], callback_handler=None).invoke_async(f"Number {number}"))


asyncio.run(main())
print(len(agent.messages), sorted(os.listdir("sessions/session_fjords/agents")))
