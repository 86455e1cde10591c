"""BeeAI: models side by side, a workflow that repeats a step, streamed."""

import asyncio

from beeai_framework.backend import ChatModel, UserMessage
from beeai_framework.workflows.workflow import Workflow
from pydantic import BaseModel


class State(BaseModel):
    place: str
    said: str = ""
    count: int = 0


async def main():
    llm = ChatModel.from_name("openai:gpt-4o")
    for output in await asyncio.gather(*(llm.run([UserMessage(f"lake {n}")]) for n in range(3))):
        print(output.get_text_content())

    async def measure(state: State) -> str:
        output = await llm.run([UserMessage(f"How deep is the {state.place}?")], stream=True)
        state.said = output.get_text_content()
        state.count += 1
        return Workflow.SELF if state.count < 3 else Workflow.END

    flow = Workflow(State)
    flow.add_step("measure", measure)
    run = await flow.run(State(place="fjord"))
    print(run.state)


asyncio.run(main())
