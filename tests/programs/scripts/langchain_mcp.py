"""LangChain's adapters of MCP: an agent with the tools of a server that it starts and of one over streamable HTTP."""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.checkpoint.memory import InMemorySaver


async def main():
    client = MultiServerMCPClient(
        {
            "near": {"transport": "stdio", "command": sys.executable, "args": ["depths_server.py"]},
            "far": {"transport": "streamable_http", "url": os.environ["SERVER_URL"] + "/mcp"},
        }
    )
    tools = await client.get_tools()
    print([tool.name for tool in tools])
    print(await asyncio.gather(*(tool.ainvoke({"place": f"lake {n}"}) for n in range(3) for tool in tools)))
    agent = create_agent("openai:gpt-4o", tools[:1], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "fjords"}}
    for question in ("How deep is the fjord?", "And the sea?"):
        for message in (await agent.ainvoke({"messages": question}, config))["messages"][-3:]:
            print(message.type, message.content)
    async for kind, _ in agent.astream({"messages": "And the lake?"}, config, stream_mode=["updates", "messages"]):
        print(kind, end="|")
    print()


asyncio.run(main())
