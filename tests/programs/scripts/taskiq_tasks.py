"""Taskiq: a broker in memory, tasks in the loop and in threads."""

import asyncio

from openai import AsyncOpenAI
from taskiq import InMemoryBroker

broker = InMemoryBroker(await_inplace=False)
client = AsyncOpenAI()


@broker.task
async def ask(text: str) -> str:
    chat = await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


@broker.task
def length(text: str) -> int:
    return len(text)


async def main():
    await broker.startup()
    asked = [await ask.kiq(f"lake {n}") for n in range(6)]
    for one in asked:
        result = await one.wait_result(timeout=30)
        print(result.return_value, one.task_id, result.execution_time)
    lengths = [await length.kiq("x" * n) for n in range(4)]
    print([(await one.wait_result(timeout=30)).return_value for one in lengths])
    await broker.shutdown()


asyncio.run(main())
