"""Outlines: answers of a type, streamed, side by side."""

import asyncio

import openai
import outlines
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


model = outlines.from_openai(openai.OpenAI(), "gpt-4o")
print(model("How deep is the fjord?"))
print(model("How warm is the fjord?", Weather))
for part in model.stream("How deep is the sea?"):
    print(part, end="|")
print()
amodel = outlines.from_openai(openai.AsyncOpenAI(), "gpt-4o")


async def main():
    print(await asyncio.gather(*(amodel(f"How deep is lake {n}?") for n in range(4))))


asyncio.run(main())
