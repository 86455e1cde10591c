"""AgentScope: agents side by side, some streamed, and the events of one."""

import asyncio
import os

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel


def model(stream):
    credential = OpenAICredential(api_key="key", base_url=os.environ["OPENAI_BASE_URL"])
    return OpenAIChatModel(credential, "gpt-4o", stream=stream)


async def main():
    async def one(n):
        agent = Agent(f"scout {n}", "Be brief.", model(n % 2 == 0))
        return await agent.reply(UserMsg("user", f"How deep is lake {n}?"))

    for said in await asyncio.gather(*(one(n) for n in range(4))):
        print(said.get_text_content(), said.id, said.created_at)
    agent = Agent("chief", "Be brief.", model(True))
    async for event in agent.reply_stream(UserMsg("user", "And the sea?")):
        print(type(event).__name__, end="|")
    print()


asyncio.run(main())
