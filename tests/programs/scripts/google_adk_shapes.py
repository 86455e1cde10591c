"""Google ADK: agents side by side, in a loop, one after another, by LiteLLM."""

import asyncio

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


def depth(place: str) -> dict:
    """How deep a place is."""
    return {"metres": len(place)}


def agent(name, **more):
    model = LiteLlm(model="openai/gpt-4o")
    return LlmAgent(name=name, model=model, instruction="Be brief.", output_key=f"said_{name}", **more)


async def main():
    parallel = ParallelAgent(name="parallel", sub_agents=[agent(f"scout_{n}") for n in range(3)])
    loop = LoopAgent(name="loop", sub_agents=[agent("again")], max_iterations=2)
    root = SequentialAgent(name="root", sub_agents=[parallel, loop, agent("last", tools=[depth])])
    runner = InMemoryRunner(agent=root, app_name="fjords")
    session = await runner.session_service.create_session(app_name="fjords", user_id="ada")
    asked = types.Content(role="user", parts=[types.Part(text="How deep is the fjord?")])
    async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=asked):
        text = event.content.parts[0].text if event.content and event.content.parts else None
        print(event.author, text, event.id, event.timestamp)
    session = await runner.session_service.get_session(app_name="fjords", user_id="ada", session_id=session.id)
    print(session.state)


asyncio.run(main())
