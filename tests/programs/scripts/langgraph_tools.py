"""A graph with a `ToolNode`: the tools of one answer run in threads, and keep a log together under a lock."""

import os
import threading
from typing import Annotated, TypedDict

import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition

log: list[str] = []
log_lock = threading.Lock()
client = httpx.Client()


def ask(what: str, place: str) -> str:
    said = client.get(f"{os.environ['STUB_URL']}/{what}/{place}").json()["said"]
    with log_lock:
        log.append(what)
        return f"{len(log)}. {place}: {said}"


@tool
def depth(place: str) -> str:
    """How deep a place is."""
    return ask("depths", place)


@tool
def warmth(place: str) -> str:
    """How warm a place is."""
    return ask("warmths", place)


@tool
def width(place: str) -> str:
    """How wide a place is."""
    return ask("widths", place)


class State(TypedDict):
    messages: Annotated[list, add_messages]


tools = [depth, warmth, width]
model = ChatOpenAI(model="gpt-4o").bind_tools(tools)


def think(state: State) -> dict:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(State)
graph.add_node("think", think)
graph.add_node("tools", ToolNode(tools))
graph.add_edge(START, "think")
graph.add_conditional_edges("think", tools_condition)
graph.add_edge("tools", "think")
app = graph.compile()

for question in ("How is the fjord?", "And the sea?"):
    for message in app.invoke({"messages": [("user", question)]})["messages"]:
        print(message.type, message.content, message.id)
for results in app.batch([{"messages": [("user", f"How is lake {n}?")]} for n in range(3)]):
    print([message.content for message in results["messages"] if message.type == "tool"])
print(log)
