"""LangGraph: a supervisor with two agents, and a swarm of two."""

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm


def depth(place: str) -> str:
    """How deep a place is."""
    return f"{place} is {len(place)} m deep"


model = ChatOpenAI(model="gpt-4o")
scout = create_react_agent(model, [depth], name="scout")
clerk = create_react_agent(model, [], name="clerk")
app = create_supervisor([scout, clerk], model=model).compile(checkpointer=InMemorySaver())
found = app.invoke({"messages": [("user", "How deep is the fjord?")]}, {"configurable": {"thread_id": "1"}})
for message in found["messages"]:
    print(message.name, message.content, message.id)
one = create_react_agent(model, [create_handoff_tool(agent_name="two")], name="one")
two = create_react_agent(model, [depth], name="two")
swarm = create_swarm([one, two], default_active_agent="one").compile(checkpointer=InMemorySaver())
found = swarm.invoke({"messages": [("user", "How deep is the sea?")]}, {"configurable": {"thread_id": "2"}})
for message in found["messages"]:
    print(message.name, message.content, message.id)
