"""A Realtime session: text in, text out."""

import asyncio
import os

from openai import AsyncOpenAI


async def main():
    client = AsyncOpenAI(websocket_base_url=os.environ["STUB_WEBSOCKET"] + "/v1")
    async with client.realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        await connection.response.create()
        async for event in connection:
            print(event.type, getattr(event, "delta", ""))
            if event.type == "response.done":
                break


asyncio.run(main())
