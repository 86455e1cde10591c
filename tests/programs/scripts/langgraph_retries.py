"""Nodes sent to side by side that are tried again, the functional API with tasks, and a thread that is gone back to."""

import operator
import random
from typing import Annotated, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, Send, interrupt

model = ChatOpenAI(model="gpt-4o")


class State(TypedDict):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


def subjects(state: State) -> dict:
    return {"subjects": random.sample(["cats", "fjords", "lakes", "trolls", "moose"], 4)}


def joke(state: dict, config: RunnableConfig) -> dict:
    if random.random() < 0.4:
        raise ConnectionError("try again")
    get_stream_writer()({"about": state["subject"]})
    return {"jokes": [model.invoke(f"A joke about {state['subject']}").content]}


def best(state: State) -> dict:
    return {"best": max(state["jokes"])}


builder = StateGraph(State)
builder.add_node("subjects", subjects)
builder.add_node("joke", joke, retry_policy=RetryPolicy(initial_interval=0.01, max_attempts=10))
builder.add_node("best", best)
builder.add_edge(START, "subjects")
builder.add_conditional_edges("subjects", lambda s: [Send("joke", {"subject": one}) for one in s["subjects"]], ["joke"])
builder.add_edge("joke", "best")
builder.add_edge("best", END)
graph = builder.compile(checkpointer=InMemorySaver(), store=InMemoryStore())

config = {"configurable": {"thread_id": str(uuid4())}, "max_concurrency": 3}
for mode, chunk in graph.stream({"subjects": [], "jokes": [], "best": ""}, config, stream_mode=["updates", "custom"]):
    print(mode, chunk)

history = list(graph.get_state_history(config))
print([(one.next, one.config["configurable"]["checkpoint_id"], one.created_at) for one in history])
before = next(one for one in history if one.next == ("best",))
forked = graph.update_state(before.config, {"jokes": ["a better one"]})
print(graph.invoke(None, forked)["best"])


@task(retry_policy=RetryPolicy(initial_interval=0.01, max_attempts=10))
def essay(topic: str) -> str:
    if random.random() < 0.4:
        raise ConnectionError("try again")
    return model.invoke(f"An essay about {topic}").content


@entrypoint(checkpointer=InMemorySaver())
def review(topics: list[str]) -> dict:
    essays = [one.result() for one in [essay(topic) for topic in topics]]
    accepted = interrupt({"essays": essays, "question": "Good?"})
    return {"essays": essays, "accepted": accepted, "id": str(uuid4())}


thread = {"configurable": {"thread_id": str(uuid4())}}
for chunk in review.stream(["cats", "lakes", "moose"], thread):
    print(chunk)
for chunk in review.stream(Command(resume="yes"), thread):
    print(chunk)
