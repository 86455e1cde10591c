"""The Claude Agent SDK: its command line as a process, spoken to by pipes, with a tool of the program's own."""

import asyncio
import random

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    TextBlock,
    create_sdk_mcp_server,
    query,
    tool,
)


@tool("depth", "How deep a place is", {"place": str})
async def depth(arguments):
    return {"content": [{"type": "text", "text": f"{arguments['place']}: {random.randrange(9000)} m"}]}


async def said(messages):
    async for message in messages:
        if isinstance(message, AssistantMessage):
            print([block.text if isinstance(block, TextBlock) else type(block).__name__ for block in message.content])
        elif isinstance(message, ResultMessage):
            print(message.subtype, message.num_turns, message.result)


async def main():
    plain = ClaudeAgentOptions(max_turns=1, tools=[], system_prompt="Be short.")
    await said(query(prompt="How deep is the fjord?", options=plain))
    server = create_sdk_mcp_server("depths", tools=[depth])
    options = ClaudeAgentOptions(
        mcp_servers={"depths": server}, allowed_tools=["mcp__depths__depth"], max_turns=4, system_prompt="Be short."
    )
    async with ClaudeSDKClient(options=options) as client:
        for question in ("How deep is the lake?", "And the sea?"):
            await client.query(question)
            await said(client.receive_response())


asyncio.run(main())
