"""Anthropic's tool runner, plain, streamed and asynchronous."""

import asyncio

from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool


@beta_tool
def depth(place: str = "here") -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


@beta_async_tool
async def height(place: str = "here") -> str:
    """How high a place is."""
    await asyncio.sleep(0.01)
    return f"{place} is {len(place)} m high"


ask = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "How deep?"}],
    "max_iterations": 3,
}
with Anthropic() as client:
    for message in client.beta.messages.tool_runner(tools=[depth], **ask):
        print(message.id, message.stop_reason, [block.type for block in message.content])
    for stream in client.beta.messages.tool_runner(tools=[depth], stream=True, **ask):
        for event in stream:
            print(event.type, end="|")
        print()


async def main():
    async with AsyncAnthropic() as client:
        async for message in client.beta.messages.tool_runner(tools=[height], **ask):
            print(message.id, message.usage.output_tokens)


asyncio.run(main())
