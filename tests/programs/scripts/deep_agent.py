"""Deep Agents: an agent with files, a plan and another agent below it."""

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


agent = create_deep_agent(
    model=ChatOpenAI(model="gpt-4o"),
    tools=[depth],
    system_prompt="Be brief.",
    subagents=[{"name": "scout", "description": "looks", "system_prompt": "Look.", "tools": [depth]}],
)
found = agent.invoke({"messages": [{"role": "user", "content": "How deep is the fjord?"}]})
for message in found["messages"]:
    print(type(message).__name__, message.content, message.id)
print(found.get("files"), found.get("todos"))
for chunk in agent.stream({"messages": [{"role": "user", "content": "And the sea?"}]}, stream_mode="updates"):
    print(list(chunk))
