"""Bedrock by aioboto3: Converse and its stream, side by side."""

import asyncio

import aioboto3

asked = {"modelId": "amazon.nova-pro-v1:0", "messages": [{"role": "user", "content": [{"text": "Hello"}]}]}


async def ask(client):
    return (await client.converse(**asked))["output"]["message"]["content"][0]["text"]


async def main():
    async with aioboto3.Session().client("bedrock-runtime") as client:
        print(await ask(client))
        async for event in (await client.converse_stream(**asked))["stream"]:
            if "contentBlockDelta" in event:
                print(event["contentBlockDelta"]["delta"]["text"], end="|")
        print()
        for done in asyncio.as_completed([ask(client) for _ in range(5)]):
            print(await done)


asyncio.run(main())
