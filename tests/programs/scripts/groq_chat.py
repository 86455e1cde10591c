"""Groq: chat, stream, tool, async."""

import asyncio

from groq import AsyncGroq, Groq

client = Groq()
question = [{"role": "user", "content": "How deep is the fjord?"}]
print(client.chat.completions.create(model="llama-4", messages=question).choices[0].message.content)
for chunk in client.chat.completions.create(model="llama-4", messages=question, stream=True):
    print(chunk.choices[0].delta.content or "", end="|")
print()
tool = {"type": "function", "function": {"name": "depth", "parameters": {"type": "object", "properties": {}}}}
print(
    client.chat.completions.create(model="llama-4", messages=question, tools=[tool])
    .choices[0]
    .message.tool_calls[0]
    .function
)


async def main():
    async with AsyncGroq() as client:
        asked = [client.chat.completions.create(model="llama-4", messages=question) for _ in range(5)]
        for done in asyncio.as_completed(asked):
            print((await done).choices[0].message.content)


asyncio.run(main())
