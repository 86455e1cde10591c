"""Agents of CAMEL: one with a tool and a memory, others side by side."""

import asyncio
import os

import tiktoken
from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType


class Letters:
    """An encoding that needs no download."""

    def encode(self, text: str, **options: object) -> list[int]:
        return list(text.encode())


tiktoken.get_encoding = tiktoken.encoding_for_model = lambda name: Letters()


def depth(place: str) -> str:
    """Say how deep a place is.

    Args:
        place: its name
    """
    return f"{len(place)} metres"


model = ModelFactory.create(
    model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
    model_type="gpt-4o",
    url=os.environ["OPENAI_BASE_URL"],
    api_key="stub",
)
agent = ChatAgent("You know depths.", model=model, tools=[FunctionTool(depth)])
for question in ("How deep is the fjord?", "And the sea?"):
    answer = agent.step(question)
    print(answer.msgs[0].content, answer.info["id"], [call.result for call in answer.info["tool_calls"]])


async def main() -> None:
    asked = [ChatAgent("You are brief.", model=model).astep(str(number)) for number in range(4)]
    for done in asyncio.as_completed(asked):
        print((await done).msgs[0].content)


asyncio.run(main())
