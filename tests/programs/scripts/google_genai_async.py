"""Gemini's asynchronous client: side by side, and streamed."""

import asyncio

from google import genai


async def main():
    client = genai.Client()
    asked = (client.aio.models.generate_content(model="gemini-3-flash", contents=f"Number {n}") for n in range(6))
    for done in asyncio.as_completed(list(asked)):
        print((await done).text)
    async for chunk in await client.aio.models.generate_content_stream(model="gemini-3-flash", contents="Go on"):
        print(chunk.text, end="|")
    print()
    chat = client.aio.chats.create(model="gemini-3-flash")
    print((await chat.send_message("One")).text)
    await client.aio.aclose()


asyncio.run(main())
