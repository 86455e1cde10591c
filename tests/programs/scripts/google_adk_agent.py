"""Google's agent development kit: a team with a tool, one after another, its session in memory, events as they come."""

import asyncio

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.runners import InMemoryRunner
from google.genai import types


def depth(place: str) -> dict:
    """How deep a place is."""
    return {"place": place, "metres": len(place)}


def scout(name):
    return LlmAgent(
        name=name,
        model="gemini-3-flash",
        instruction="Measure.",
        tools=[depth],
        output_key=name,
        generate_content_config=None,
    )


team = SequentialAgent(
    name="team",
    sub_agents=[
        scout("first"),
        scout("second"),
        LlmAgent(name="writer", model="gemini-3-flash", instruction="Write: {first} {second}"),
    ],
)


async def main():
    runner = InMemoryRunner(agent=team, app_name="fjords")
    session = await runner.session_service.create_session(app_name="fjords", user_id="me")
    print(session.id)
    for question in ("How deep is the fjord?", "And the sea?"):
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for event in runner.run_async(user_id="me", session_id=session.id, new_message=message):
            texts = [part.text for part in (event.content.parts if event.content else []) if part.text]
            print(event.author, event.id, event.timestamp, texts)
    session = await runner.session_service.get_session(app_name="fjords", user_id="me", session_id=session.id)
    print(sorted(session.state.items()))


asyncio.run(main())
