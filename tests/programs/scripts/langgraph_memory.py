"""A graph with branches side by side, kept in memory."""

import asyncio
import operator
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send


class State(TypedDict):
    topics: list[str]
    found: Annotated[list[str], operator.add]


async def look(state: dict) -> dict:
    return {"found": [(await ChatOpenAI(model="gpt-5.2").ainvoke(state["topic"])).content]}


graph = StateGraph(State)
graph.add_node("look", look)
graph.add_conditional_edges(START, lambda state: [Send("look", {"topic": topic}) for topic in state["topics"]])
graph.add_edge("look", END)
app = graph.compile(checkpointer=InMemorySaver())


async def main():
    config = {"configurable": {"thread_id": "one"}}
    async for event in app.astream({"topics": ["fjord", "sea", "lake", "well"], "found": []}, config):
        print(event)
    state = await app.aget_state(config)
    print(state.created_at, state.config["configurable"]["checkpoint_id"], len(state.values["found"]))


asyncio.run(main())
