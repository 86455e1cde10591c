"""Graphs of events, drawn: any shape, any ids, in any order."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

from hypothesis import strategies as st

__all__ = ["event", "graphs", "recorded_again"]


def event(name: str, parents: list[str], label: int = 0, /, **changes: Any) -> dict[str, Any]:
    """A right event; ``name`` is any text that stands for its id, ``label`` what it says."""
    digest = f"{label:064x}"
    ids = [identity(parent) for parent in parents]
    return {
        "event_id": identity(name),
        "event_type": "task_sent",
        "agent_id": f"agent {label % 2}",
        "timestamp_ns": 0,
        "parent_event_id": ids[0] if ids else None,
        "parent_event_ids": ids,
        "payload_hash": digest[:16],
        "payload_sha256": digest,
        "payload_ref": None,
        "recipient_agent_id": "b",
        **changes,
    }


def identity(name: str) -> str:
    return str(uuid.UUID(int=Random(name).getrandbits(128), version=4))


@st.composite
def graphs(draw: st.DrawFn, most: int = 14, labels: int = 3) -> list[dict[str, Any]]:
    """A graph without circles; labels are few, so that many events say the same."""
    size = draw(st.integers(0, most))
    said = draw(st.lists(st.integers(0, labels - 1), min_size=size, max_size=size))
    salt = draw(st.integers(0, 1000))
    found = []
    for place in range(size):
        earlier = st.lists(st.integers(0, max(0, place - 1)), unique=True, max_size=3)
        parents = draw(earlier) if place else []
        found.append(event(f"{salt}/{place}", [f"{salt}/{parent}" for parent in parents], said[place]))
    return found


def recorded_again(found: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The same workflow in another recording: other ids, times, places, order of lines, and order of parents."""
    random = Random(seed)
    ids = {one["event_id"]: str(uuid.UUID(int=random.getrandbits(128), version=4)) for one in found}
    again = []
    for one in found:
        parents = [ids[parent] for parent in one["parent_event_ids"]]
        random.shuffle(parents)
        again.append(
            {
                **one,
                "event_id": ids[one["event_id"]],
                "parent_event_ids": parents,
                "parent_event_id": parents[0] if parents else None,
                "timestamp_ns": random.getrandbits(40),
                "payload_ref": f"other#{random.getrandbits(20)}/output",
            }
        )
    random.shuffle(again)
    return again
