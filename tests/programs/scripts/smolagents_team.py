"""A smolagents agent that calls its tools in threads, and a manager who asks it."""

import os
import threading
import time

import requests
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

seen: list[str] = []
seen_lock = threading.Lock()


@tool
def depth(place: str) -> str:
    """How deep a place is.

    Args:
        place: its name
    """
    return ask("depths", place)


@tool
def warmth(place: str) -> str:
    """How warm a place is.

    Args:
        place: its name
    """
    return ask("warmths", place)


def ask(what: str, place: str) -> str:
    said = requests.get(f"{os.environ['STUB_URL']}/{what}/{place}", timeout=10).json()["said"]
    with seen_lock:
        seen.append(what)
        return f"{len(seen)}. {said} at {time.time()}"


model = OpenAIServerModel(model_id="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key="key")
scout = ToolCallingAgent(
    tools=[depth, warmth], model=model, max_steps=3, name="scout", description="Looks at places.", max_tool_threads=4
)
chief = CodeAgent(tools=[], model=model, managed_agents=[scout], max_steps=3)
print("answer:", chief.run("How is the fjord?"))
print(seen)
