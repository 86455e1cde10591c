"""Mirascope: calls with a tool, streamed, side by side."""

import asyncio

from mirascope import llm


@llm.tool
def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


@llm.call("openai/gpt-4o:completions", tools=[depth])
def ask(place: str):
    return f"How deep is {place}?"


@llm.call("openai/gpt-4o:completions")
async def aask(place: str):
    return f"How deep is {place}?"


response = ask("the fjord")
while response.tool_calls:
    response = response.resume(response.execute_tools())
print(response.text())
stream = ask.stream("the sea")
for chunk in stream.text_stream():
    print(chunk, end="|")
print()


async def main():
    for one in await asyncio.gather(*(aask(f"lake {n}") for n in range(4))):
        print(one.text())


asyncio.run(main())
