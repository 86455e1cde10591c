"""Voyage: embeddings and ranking, sync (requests) and async (aiohttp)."""

import asyncio
import os

import voyageai

client = voyageai.Client(base_url=os.environ["STUB_URL"] + "/v1")
print(client.embed(["one", "two"], model="voyage-4", input_type="document").embeddings)


async def main():
    client = voyageai.AsyncClient(base_url=os.environ["STUB_URL"] + "/v1")
    for found in await asyncio.gather(*(client.embed([f"text {n}"], model="voyage-4") for n in range(3))):
        print(found.embeddings, found.total_tokens)


asyncio.run(main())
