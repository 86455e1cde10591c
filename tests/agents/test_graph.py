"""The graph of events: one order whatever came first, errors that name ids, and comparison that ids and times don't disturb."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agents.drawn import event, graphs, identity, recorded_again
from tests.agents.flat import PROGRAMS
from tests.support.depth import examples
from tests.support.tracing import recorded
from tracekit.agents import compare, events, ordered, parse, serialize
from tracekit.agents import graph as likeness
from tracekit.agents.view import check
from tracekit.errors import (
    DuplicateEventError,
    EventCycleError,
    GraphError,
    MissingParentError,
    UndecidedComparisonError,
)


@given(graphs(), st.integers(0, 2**32))
def test_dep_graph_ordering_deterministic(found: list[dict[str, Any]], seed: int) -> None:
    """The same graph written in any order comes out in the same order, as the same bytes; parents before children, ties by id."""
    expected = serialize(found)
    shuffled = Random(seed).sample(found, len(found))
    assert serialize(shuffled) == expected
    assert parse(expected) == ordered(found)
    seen: set[str] = set()
    left = {one["event_id"]: set(one["parent_event_ids"]) for one in found}
    for one in ordered(shuffled):
        ready = [key for key, parents in left.items() if parents <= seen]
        assert one["event_id"] == min(ready)
        del left[one["event_id"]]
        seen.add(one["event_id"])


def test_time_plays_no_part() -> None:
    """An effect that is dated before its cause comes after it."""
    cause, effect = event("cause", [], timestamp_ns=99), event("effect", ["cause"], timestamp_ns=1)
    assert ordered([effect, cause]) == [cause, effect]


@given(graphs(), st.integers(0, 2**32))
def test_two_recordings_of_one_workflow_are_equal(found: list[dict[str, Any]], seed: int) -> None:
    """Other ids, times, places, and orders of lines and of parents make no difference."""
    assert compare(found, recorded_again(found, seed)) is None


@given(graphs(), st.data())
def test_a_changed_event_is_found(found: list[dict[str, Any]], data: st.DataObject) -> None:
    """One event that says something else, or has another cause, makes two recordings different, and is told."""
    if not found:
        return
    place = data.draw(st.integers(0, len(found) - 1))
    again = [dict(one) for one in found]
    again[place]["payload_sha256"] = "f" * 64
    difference = compare(found, recorded_again(again, 7))
    assert difference is not None
    assert difference.second is not None
    assert difference.second["payload_sha256"] == "f" * 64
    assert "first:" in str(difference)


@settings(max_examples=examples(300))
@given(graphs(most=6), graphs(most=6))
def test_equal_means_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Against an oracle that tries every assignment of events: the comparison is right both ways on every small graph."""
    assert (compare(one, other) is None) == _isomorphic(one, other)


def _isomorphic(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    if len(one) != len(other):
        return False
    there = {e["event_id"]: (e["payload_sha256"], set(e["parent_event_ids"])) for e in other}
    ids = [e["event_id"] for e in one]
    for chosen in itertools.permutations(there):
        assigned = dict(zip(ids, chosen, strict=True))
        if all(
            there[assigned[e["event_id"]]] == (e["payload_sha256"], {assigned[p] for p in e["parent_event_ids"]})
            for e in one
        ):
            return True
    return False


def test_shared_and_separate_causes_are_told_apart() -> None:
    """Two events with one cause are not two events with a cause each, though each of them has the same past."""
    shared = [event("a", []), event("b", []), event("c", ["a"], 1), event("d", ["a"], 1)]
    apart = [event("a", []), event("b", []), event("c", ["a"], 1), event("d", ["b"], 1)]
    difference = compare(shared, apart)
    assert difference is not None
    assert "hanging together in another way" in str(difference)
    assert compare(apart, recorded_again(apart, 3)) is None


def ring(n: int, prefix: str = "", around: int = 1) -> list[dict[str, Any]]:
    """Drafts, then reviews of two drafts each, in a ring: all alike."""
    drafts = [event(f"{prefix}d{i}", []) for i in range(n)]
    reviews = [event(f"{prefix}r{i}", [f"{prefix}d{i}", f"{prefix}d{(i + around) % n}"], 1) for i in range(n)]
    return drafts + reviews


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 50])
def test_workflows_in_which_all_look_alike_are_equal(n: int) -> None:
    """A ring of equal drafts and reviews, one or several of them, with something in common or not: equal, whatever the ids."""
    for seed in range(10):
        assert compare(ring(n), recorded_again(ring(n), seed)) is None
    several = [*ring(n), *ring(n, "x"), *ring(n, "y", around=n - 1)]
    assert compare(several, recorded_again(several, 1)) is None
    joined = [*several, event("end", [f"{p}r{i}" for p in "xy" for i in range(n)], 2)]
    assert compare(joined, recorded_again(joined, 2)) is None


def test_one_ring_is_not_two() -> None:
    """What refinement alone can't tell apart, and what is different all the same: a ring of eight and two of four."""
    difference = compare(ring(8), [*ring(4), *ring(4, "x")])
    assert difference is not None
    assert "hanging together in another way" in str(difference)
    many = [one for k in range(10) for one in ring(4, f"{k} ")]
    assert compare([*ring(8), *many], [*ring(4, "x"), *ring(4, "y"), *many]) is not None


@settings(max_examples=examples(200))
@given(graphs(most=24, labels=1), st.integers(0, 2**32))
def test_equal_events_in_any_shape_are_recognised(found: list[dict[str, Any]], seed: int) -> None:
    """Where all events say the same, only how they hang together counts; any renaming is the same workflow."""
    assert compare(found, recorded_again(found, seed)) is None
    assert compare(recorded_again(found, seed), recorded_again(found, seed + 1)) is None


@settings(max_examples=examples(200))
@given(graphs(most=6, labels=1), graphs(most=6, labels=1))
def test_equal_events_are_told_apart_by_their_places(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """The same against the oracle, where labels tell nothing."""
    assert (compare(one, other) is None) == _isomorphic(one, other)


def test_giving_up_is_not_called_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where trying is bounded before an answer is found, that is said: neither equal nor different."""
    monkeypatch.setattr(likeness, "_FREE", 0)
    monkeypatch.setattr(likeness.alike, "__defaults__", (200,))
    with pytest.raises(UndecidedComparisonError, match="undecided"):
        compare(ring(50), recorded_again(ring(50), 1))


def test_missing_parents_are_named() -> None:
    """Who is missing, and who asks for it."""
    with pytest.raises(MissingParentError) as failure:
        ordered([event("a", ["gone"]), event("b", ["a", "lost"])])
    assert failure.value.ids == tuple(sorted([identity("gone"), identity("lost")]))
    assert set(failure.value.children) == {identity("a"), identity("b")}
    assert identity("gone") in str(failure.value)


def test_duplicate_ids_are_named() -> None:
    """Each id that is there twice, once; also where the two are equal."""
    with pytest.raises(DuplicateEventError) as failure:
        ordered([event("a", []), event("b", []), event("a", []), event("a", [], 1)])
    assert failure.value.ids == (identity("a"),)
    assert identity("a") in str(failure.value)


@given(graphs(), st.integers(1, 6), st.integers(0, 2**32))
def test_cycles_are_named(found: list[dict[str, Any]], length: int, seed: int) -> None:
    """A circle of any length in any graph is an error that names exactly its events, in order."""
    names = [f"circle {place}" for place in range(length)]
    circle = [event(name, [names[place - 1]]) for place, name in enumerate(names)]
    behind = event("behind", [names[0]])
    with pytest.raises(EventCycleError) as failure:
        ordered(Random(seed).sample([*found, *circle, behind], len(found) + length + 1))
    assert set(failure.value.ids) == set(map(identity, names))
    assert isinstance(failure.value, GraphError)
    parents = {one["event_id"]: one["parent_event_ids"][0] for one in circle}
    ids = failure.value.ids
    assert all(parents[ids[place]] == ids[place - 1] for place in range(length))


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_runs_of_a_program_tell_one_workflow(program: Any) -> None:
    """Recorded twice, with chance and scheduling as they come: equal but for what chance decided."""
    first, second = (events(recorded(program)[0].path) for _ in range(2))
    difference = compare(first, second)
    assert difference is not None  # the code that the tool drew
    assert difference.first is not None
    assert (difference.first["event_type"], difference.first["tool"]) == ("tool_return", "book")
    settled = [[_without_chance(one) for one in found] for found in (first, second)]
    assert compare(*settled) is None


def _without_chance(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "payload_sha256": "0" * 64, "payload_hash": "0" * 16} if "tool" not in one else {
        **one, "payload_sha256": "1" * 64, "payload_hash": "1" * 16}  # fmt: skip


@given(graphs())
def test_drawn_events_are_events(found: list[dict[str, Any]]) -> None:
    """What these tests draw keeps to the schema."""
    assert [check(one) for one in found] == [None] * len(found)


def test_a_large_workflow_of_equal_events_is_ordered_and_compared() -> None:
    """Thousands of events that all say the same, in equal strands, are put in order and compared."""
    found = [event("start", [])]
    for strand in range(100):
        found += [
            event(f"{strand}/{n}", [f"{strand}/{n - 1}" if n else "start"]) for n in range(30)
        ]  # fmt: skip
    assert len(ordered(found)) == 3001
    assert compare(found, recorded_again(found, 1)) is None
