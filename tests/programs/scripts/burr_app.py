"""Burr: an application of two actions, with its tracker."""

from burr.core import ApplicationBuilder, State, action
from burr.tracking import LocalTrackingClient
from openai import OpenAI


@action(reads=["history"], writes=["history", "answer"])
def ask(state: State, text: str) -> State:
    history = [*state["history"], {"role": "user", "content": text}]
    chat = OpenAI().chat.completions.create(model="gpt-4o", messages=history)
    said = chat.choices[0].message.content
    return state.update(history=[*history, {"role": "assistant", "content": said}], answer=said)


@action(reads=["answer", "count"], writes=["count"])
def count(state: State) -> State:
    return state.update(count=state["count"] + len(state["answer"]))


app = (
    ApplicationBuilder()
    .with_actions(ask, count)
    .with_transitions(("ask", "count"), ("count", "ask"))
    .with_state(history=[], count=0, answer="")
    .with_entrypoint("ask")
    .with_tracker(LocalTrackingClient("fjords", storage_dir="./burr"))
    .build()
)
for text in ("How deep is the fjord?", "And the sea?"):
    action_, result, state = app.run(halt_after=["count"], inputs={"text": text})
    print(action_.name, state["answer"], state["count"])
print(app.uid)
