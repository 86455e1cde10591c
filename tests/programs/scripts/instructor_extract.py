"""Instructor: an answer of a type, one that is asked for again since it is wrong, a list as it comes."""

import asyncio

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, field_validator


class Depth(BaseModel):
    place: str
    metres: int

    @field_validator("metres")
    @classmethod
    def deep(cls, metres: int) -> int:
        if metres < 3:
            raise ValueError("that is not deep")
        return metres


client = instructor.from_openai(OpenAI())
asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": "How deep is the fjord?"}]}
depth, completion = client.chat.completions.create_with_completion(response_model=Depth, max_retries=5, **asked)
print(depth, completion.id, completion.usage.total_tokens)
for part in client.chat.completions.create_partial(response_model=Depth, **asked):
    print(part.place, part.metres, end="|")
print()


async def main():
    async with AsyncOpenAI() as openai:
        patched = instructor.from_openai(openai)
        found = [patched.chat.completions.create(response_model=Depth, max_retries=5, **asked) for _ in range(4)]
        for done in asyncio.as_completed(found):
            print(await done)


asyncio.run(main())
