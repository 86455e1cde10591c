"""Magentic: prompts as functions, streamed, with a tool, side by side."""

import asyncio

from magentic import FunctionCall, StreamedStr, prompt, prompt_chain


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


@prompt("How deep is {place}?")
def plain(place: str) -> str: ...


@prompt("How deep is {place}?")
def streamed(place: str) -> StreamedStr: ...


@prompt("How deep is {place}?")
async def aplain(place: str) -> str: ...


@prompt_chain("How deep is {place}?", functions=[depth])
def chained(place: str) -> str: ...


@prompt("How deep is {place}?", functions=[depth])
def called(place: str) -> FunctionCall[str]: ...


print(plain("the fjord"))
for part in streamed("the sea"):
    print(part, end="|")
print()
print(called("the lake")())
print(chained("the pond"))


async def main():
    print(await asyncio.gather(*(aplain(f"lake {n}") for n in range(4))))


asyncio.run(main())
