"""LlamaIndex's FunctionAgent with a tool and a memory."""

import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent, ToolCallResult
from llama_index.core.workflow import Context
from llama_index.llms.openai import OpenAI


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


async def main():
    agent = FunctionAgent(tools=[depth], llm=OpenAI(model="gpt-4o"), system_prompt="Be brief.")
    context = Context(agent)
    for question in ("How deep is the fjord?", "And the sea?"):
        handler = agent.run(question, ctx=context)
        async for event in handler.stream_events():
            if isinstance(event, ToolCallResult):
                print(event.tool_name, event.tool_output.content)
            elif isinstance(event, AgentStream):
                print(event.delta, end="|")
        print()
        print(str(await handler))


asyncio.run(main())
