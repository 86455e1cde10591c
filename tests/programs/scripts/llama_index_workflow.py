"""LlamaIndex: a workflow whose step has several workers, and a team of agents."""

import asyncio

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai import OpenAI

llm = OpenAI(model="gpt-4o")


class Ask(Event):
    number: int


class Answer(Event):
    text: str


class Survey(Workflow):
    @step
    async def start(self, ctx: Context, ev: StartEvent) -> Ask | None:
        for number in range(8):
            ctx.send_event(Ask(number=number))

    @step(num_workers=4)
    async def ask(self, ctx: Context, ev: Ask) -> Answer:
        found = await llm.acomplete(f"How deep is lake {ev.number}?")
        async with ctx.store.edit_state() as state:
            state["order"] = [*state.get("order", []), ev.number]
        ctx.write_event_to_stream(Answer(text=f"{ev.number} done"))
        return Answer(text=str(found))

    @step
    async def collect(self, ctx: Context, ev: Answer) -> StopEvent | None:
        found = ctx.collect_events(ev, [Answer] * 8)
        if found is None:
            return None
        return StopEvent(result=([one.text for one in found], await ctx.store.get("order")))


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


async def main():
    handler = Survey(timeout=60).run()
    async for event in handler.stream_events():
        if isinstance(event, Answer):
            print(event.text)
    print(await handler)
    scout = FunctionAgent(name="scout", description="Looks.", tools=[depth], llm=llm, can_handoff_to=["clerk"])
    clerk = FunctionAgent(name="clerk", description="Writes.", llm=llm, system_prompt="Be brief.")
    team = AgentWorkflow(agents=[scout, clerk], root_agent="scout")
    print(await team.run("How deep is the fjord?"))


asyncio.run(main())
