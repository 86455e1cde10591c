"""Swarms: an agent with a tool, a workflow of agents one after another, one of agents side by side."""

import os

os.environ.setdefault("SWARMS_TELEMETRY_ON", "False")

from swarms import Agent, ConcurrentWorkflow, SequentialWorkflow


def sound(place: str) -> str:
    """Sound how deep a place is.

    Args:
        place (str): Which one.

    Returns:
        str: How deep it is.
    """
    return f"{place} is deep"


def agent(name: str, **given) -> Agent:
    return Agent(agent_name=name, system_prompt=f"You are {name}.", model_name="gpt-4o", max_loops=1, **given)


print(agent("scout", tools=[sound]).run("How deep is the fjord?"))
print(SequentialWorkflow(name="report", agents=[agent("writer"), agent("editor")], max_loops=1).run("Write of the sea"))
workflow = ConcurrentWorkflow(name="views", agents=[agent("diver"), agent("captain"), agent("cook")])
for one in workflow.run("What do you see?"):
    print(one)
