"""OpenAI's Agents SDK: a tool, a handoff, a guardrail, a session in SQLite, streamed; its tracing as it comes."""

import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    input_guardrail,
    set_default_openai_api,
)

set_default_openai_api("chat_completions")


@function_tool
async def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


@input_guardrail
async def polite(context, agent, message):
    found = await Runner.run(Agent(name="judge", model="gpt-4o"), "Is this polite?", context=context.context)
    return GuardrailFunctionOutput(output_info=found.final_output, tripwire_triggered=False)


scout = Agent(
    name="scout",
    model="gpt-4o",
    tools=[depth],
    input_guardrails=[polite],
    handoffs=[Agent(name="other", model="gpt-4o")],
)


async def main():
    session = SQLiteSession("fjords", "agents.db")
    first = await Runner.run(
        scout, "How deep is the fjord?", session=session, run_config=RunConfig(workflow_name="fjords")
    )
    print(first.final_output, [item.type for item in first.new_items])
    streamed = Runner.run_streamed(scout, "And the sea?", session=session)
    async for event in streamed.stream_events():
        print(event.type, end="|")
    print()
    print(streamed.final_output, len(await session.get_items()))
    print(await asyncio.gather(*(said(number) for number in range(4))))
    session.close()


async def said(number):
    return (await Runner.run(scout, f"Number {number}")).final_output


asyncio.run(main())
