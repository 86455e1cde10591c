"""A local model: chats, a stream, a tool, embeddings, sync and async."""

import asyncio

import ollama


def depth(place: str) -> str:
    """How deep a place is.

    Args:
        place: its name
    """
    return f"{place}: {len(place)} m"


question = [{"role": "user", "content": "How deep is the fjord?"}]
reply = ollama.chat(model="qwen3", messages=question, tools=[depth])
print(reply.message.content, reply.eval_count)
for call in reply.message.tool_calls or ():
    print(depth(**call.function.arguments))
for part in ollama.chat(model="qwen3", messages=question, stream=True):
    print(part.message.content, end="")
print()
print(ollama.generate(model="qwen3", prompt="Once upon a time").response)
print(ollama.embed(model="nomic-embed-text", input="fjord").embeddings)


async def main():
    client = ollama.AsyncClient()
    for done in asyncio.as_completed([client.chat(model="qwen3", messages=question) for _ in range(5)]):
        print((await done).message.content)
    async for part in await client.generate(model="qwen3", prompt="Then", stream=True):
        print(part.response, end="")
    print()


asyncio.run(main())
