"""Mistral: chat, stream, completion, embeddings, sync and async."""

import asyncio
import os

from mistralai.client import Mistral

client = Mistral(os.environ["MISTRAL_API_KEY"], server_url=os.environ["STUB_URL"])
question = [{"role": "user", "content": "How deep is the fjord?"}]
print(client.chat.complete(model="mistral-large", messages=question).choices[0].message.content)
for event in client.chat.stream(model="mistral-large", messages=question):
    print(event.data.choices[0].delta.content or "", end="|")
print()
print(client.fim.complete(model="codestral", prompt="def f(", suffix="return 1").choices[0].message.content)
print(client.embeddings.create(model="mistral-embed", inputs=["one"]).data[0].embedding)


async def main():
    asked = (client.chat.complete_async(model="mistral-large", messages=question) for _ in range(4))
    for answer in await asyncio.gather(*asked):
        print(answer.choices[0].message.content)
    async for event in await client.chat.stream_async(model="mistral-large", messages=question):
        print(event.data.choices[0].delta.content or "", end="|")
    print()


asyncio.run(main())
