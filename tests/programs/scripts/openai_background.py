"""Responses in the background, polled until they are done: one after another, side by side, one that is cancelled."""

import asyncio
import os
import time

from openai import AsyncOpenAI, OpenAI

BASE = f"{os.environ['SERVER_URL']}/v1"


def research(client: OpenAI, question: str) -> None:
    response = client.responses.create(model="o3-deep-research", input=question, background=True)
    started = time.monotonic()
    while response.status in {"queued", "in_progress"}:
        print(f"{response.id}: {response.status}")
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    print(f"{response.id}: {response.status} after {time.monotonic() - started:.3f} s\n{response.output_text}")


async def side_by_side(questions: list[str]) -> None:
    async with AsyncOpenAI(base_url=BASE) as client:

        async def one(question: str, semaphore: asyncio.Semaphore) -> str:
            async with semaphore:
                response = await client.responses.create(model="o3", input=question, background=True)
                async with asyncio.timeout(30):
                    while response.status in {"queued", "in_progress"}:
                        await asyncio.sleep(0.02)
                        response = await client.responses.retrieve(response.id)
                print(f"done: {response.id}")
                return response.output_text

        semaphore = asyncio.Semaphore(3)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(question, semaphore)) for question in questions]
        for task in tasks:
            print(task.result())

        response = await client.responses.create(model="o3", input="Everything", background=True)
        response = await client.responses.cancel(response.id)
        print(response.id, response.status)


client = OpenAI(base_url=BASE)
for question in ("How deep is the fjord?", "And the sea?"):
    research(client, question)
asyncio.run(side_by_side([f"How deep is lake {n}?" for n in range(6)]))
