"""A Semantic Kernel agent with a plugin, asked and streamed."""

import asyncio
from typing import Annotated

from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Depths:
    @kernel_function(description="How deep a place is")
    def depth(self, place: Annotated[str, "its name"]) -> str:
        return f"{place} is {len(place)} m deep"


async def main():
    agent = ChatCompletionAgent(service=OpenAIChatCompletion(ai_model_id="gpt-4o"), name="scout", plugins=[Depths()])
    thread = ChatHistoryAgentThread()
    for question in ("How deep is the fjord?", "And the sea?"):
        response = await agent.get_response(messages=question, thread=thread)
        print(response.content)
    async for piece in agent.invoke_stream(messages="And the lake?", thread=thread):
        print(piece.content, end="|")
    print()
    async for message in thread.get_messages():
        print(message.role, message.content)


asyncio.run(main())
