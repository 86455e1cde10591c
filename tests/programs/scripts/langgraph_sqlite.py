"""A graph whose conversation is kept in a file: each start of the program goes on with it."""

import operator
from datetime import datetime
from typing import Annotated, TypedDict
from uuid import uuid4

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict):
    notes: Annotated[list[str], operator.add]
    approved: bool


def write(state: State) -> dict:
    said = ChatOpenAI(model="gpt-5.2").invoke(f"Note {len(state['notes'])}").content
    return {"notes": [f"{said} ({datetime.now():%H:%M:%S.%f}, {uuid4()})"]}


def check(state: State) -> dict:
    return {"approved": interrupt({"notes": len(state["notes"])})}


graph = StateGraph(State)
graph.add_node("write", write)
graph.add_node("check", check)
graph.add_edge(START, "write")
graph.add_edge("write", "check")
graph.add_edge("check", END)
with SqliteSaver.from_conn_string("conversation.sqlite") as saver:
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "lasting"}}
    print("kept:", len(list(app.get_state_history(config))))
    asked = app.invoke({"notes": ["start"]}, config)
    print(asked["__interrupt__"][0].value)
    done = app.invoke(Command(resume=True), config)
    print(done["approved"], done["notes"])
