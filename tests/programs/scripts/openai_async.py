"""Questions side by side, with streams among them."""

import asyncio

from openai import AsyncOpenAI


async def ask(client, number):
    chat = await client.chat.completions.create(
        model="gpt-5.2", messages=[{"role": "user", "content": f"Number {number}"}]
    )
    return chat.choices[0].message.content


async def listen(client, number):
    said = []
    stream = await client.chat.completions.create(
        model="gpt-5.2", messages=[{"role": "user", "content": f"Stream {number}"}], stream=True
    )
    async for chunk in stream:
        said.append(chunk.choices[0].delta.content or "")
    return "".join(said)


async def respond(client, number):
    async with client.responses.stream(model="gpt-5.2", input=f"Respond {number}") as stream:
        async for _ in stream:
            pass
        return (await stream.get_final_response()).output_text


async def main():
    async with AsyncOpenAI() as client:
        asked = [call(client, number) for number in range(6) for call in (ask, listen, respond)]
        for done in asyncio.as_completed(asked):
            print(await done)
        async with asyncio.timeout(20):
            print(await asyncio.gather(*(ask(client, number) for number in range(20, 30))))


asyncio.run(main())
