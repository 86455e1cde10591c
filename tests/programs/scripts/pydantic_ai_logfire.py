"""A Pydantic AI agent with a tool and a typed answer, watched by Logfire."""

import asyncio
import os
from dataclasses import dataclass

import logfire
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext

logfire.configure(console=False, advanced=logfire.AdvancedOptions(base_url=os.environ["LOGFIRE_BASE_URL"]))
logfire.instrument_pydantic_ai()


class Weather(BaseModel):
    city: str
    degrees: int


@dataclass
class Ship:
    name: str


agent = Agent("openai-chat:gpt-4o", deps_type=Ship, instructions="Be brief.")


@agent.tool
def depth(context: RunContext[Ship], place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep, {context.deps.name} says"


first = agent.run_sync("How deep is the fjord?", deps=Ship("Fram"))
print(first.output, first.usage)
for message in first.all_messages():
    print(message.kind, message.timestamp, [part.part_kind for part in message.parts])


async def main():
    async with agent.run_stream("And the sea?", deps=Ship("Gjøa"), message_history=first.all_messages()) as stream:
        async for text in stream.stream_text(delta=True):
            print(text, end="|")
    print()


asyncio.run(main())
