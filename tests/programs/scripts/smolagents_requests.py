"""A smolagents agent that writes code; its tool asks a web service with requests."""

import os

import requests
from smolagents import CodeAgent, OpenAIServerModel, tool


@tool
def depth(place: str) -> str:
    """How deep a place is.

    Args:
        place: its name
    """
    return requests.get(f"{os.environ['STUB_URL']}/depths/{place}", timeout=10).json()["said"]


model = OpenAIServerModel(model_id="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key="key")
agent = CodeAgent(tools=[depth], model=model, max_steps=3)
print("answer:", agent.run("How deep is the fjord?"))
