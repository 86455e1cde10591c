"""Any workflow of messages: its events have the causes that were named, a replay is the same, a second recording equal."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.tracing import recorded, replayed
from tracekit.agents import (
    Message,
    agent,
    change_state,
    compare,
    events,
    ordered,
    receive_task,
    respond,
    send_task,
    serialize,
)
from tracekit.agents.view import load

SCHEMA = Draft202012Validator(load())
PAYLOADS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
#: One step: what, by whom, with what, caused by which earlier steps (counted from the end).
STEPS = st.tuples(
    st.sampled_from(["send", "receive", "respond", "change"]),
    st.sampled_from(["a", "b", "c"]),
    PAYLOADS,
    st.lists(st.integers(0, 5), max_size=3),
)


def play(steps: list[Any]) -> list[Message]:
    """Do the steps one after the other, every other one in a thread of its own."""
    done: list[Message] = []

    def step(kind: str, who: str, payload: Any, back: list[int]) -> None:
        causes = [done[-1 - n] for n in back if n < len(done)]
        with agent(who):
            if kind == "send" or not causes:
                done.append(send_task("x", payload, causes=causes))
            elif kind == "receive":
                done.append(receive_task(causes[0]))
            elif kind == "respond":
                done.append(respond(causes[0], payload, causes=causes[1:]))
            else:
                done.append(change_state(kind, payload, causes=causes))

    for place, one in enumerate(steps):
        if place % 2:
            thread = threading.Thread(target=step, args=one)
            thread.start()
            thread.join()
        else:
            step(*one)
    return done


@settings(max_examples=30, deadline=None)
@given(st.lists(STEPS, max_size=8))
def test_any_workflow_is_recorded_replayed_and_recognised(steps: list[Any]) -> None:
    """Ids of the program and of the view agree, lines keep to the schema, causes are all there, bytes are the same after a replay."""
    run, first = recorded(lambda: play(steps))
    found = events(run)
    assert {one["event_id"] for one in found} == {message.event_id for message in first}
    by_id = {one["event_id"]: one for one in found}
    for (kind, who, _, back), message, place in zip(steps, first, range(len(steps)), strict=True):
        one = by_id[message.event_id]
        SCHEMA.validate(one)
        assert one["agent_id"] == who
        causes = list(dict.fromkeys(str(first[place - 1 - n].event_id) for n in back if n < place))
        named = causes[:1] if kind == "receive" else causes
        assert one["parent_event_ids"][: len(named)] == named
    if not steps:
        return
    report, second = replayed(run, lambda: play(steps))
    assert report.exact
    assert [message.event_id for message in second] == [message.event_id for message in first]
    assert serialize(reversed(found)) == serialize(found)
    assert len(ordered(found)) == len(steps)
    again, _ = recorded(lambda: play(steps))
    assert compare(found, events(again)) is None
