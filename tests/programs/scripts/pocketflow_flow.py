"""PocketFlow: places measured side by side, then one sum."""

import asyncio

from openai import AsyncOpenAI
from pocketflow import AsyncFlow, AsyncNode, AsyncParallelBatchNode

client = AsyncOpenAI()


async def ask(text):
    chat = await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": text}])
    return chat.choices[0].message.content


class Measure(AsyncParallelBatchNode):
    async def prep_async(self, shared):
        return shared["places"]

    async def exec_async(self, place):
        return await ask(f"How deep is the {place}?")

    async def post_async(self, shared, prep, found):
        shared["found"] = found
        return "default"


class Sum(AsyncNode):
    async def prep_async(self, shared):
        return shared["found"]

    async def exec_async(self, found):
        return await ask("; ".join(found))

    async def post_async(self, shared, prep, found):
        shared["sum"] = found


measure, total = Measure(), Sum()
measure >> total
shared = {"places": ["fjord", "sea", "lake"]}
asyncio.run(AsyncFlow(start=measure).run_async(shared))
print(shared)
