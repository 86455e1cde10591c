"""A world is what the log says of it: events are checked, written, applied; and read back from the trace alone."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cut import cut, lines
from tests.support.tracing import both, entries, of_type, recorded, replayed
from tracekit import DivergenceError, LogWriteError, RunStateError, TraceIntegrityError, record, replay, traced_tool
from tracekit.agents import IntentionEvent, Ref, World, create, merge_patch, patch
from tracekit.errors import DanglingCauseError, IntentionError, UnknownObjectError

#: The examples of RFC 7396, appendix A: target, patch, result.
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "change", "result"), EXAMPLES)
def test_the_examples_of_rfc_7396(target: Any, change: Any, result: Any) -> None:
    """A patch is the merge patch of RFC 7396, and changes neither what it is applied to nor itself."""
    before = copy.deepcopy((target, change))
    assert merge_patch(target, change) == result
    assert (target, change) == before


def test_a_patch_of_an_unknown_object_is_refused_and_not_logged() -> None:
    """The error names the object and those that there are; log, world and hash are as they were."""

    def program() -> Any:
        world = World()
        world.create("page", {"n": 1})
        before = world.hash
        with pytest.raises(UnknownObjectError, match="no such object") as caught:
            world.patch("pgae", {"n": 2})
        assert caught.value.object == "pgae"
        assert "'page'" in str(caught.value)
        return world.hash == before and world.as_dict()

    run, first, second = both(program)
    assert first == second == {"page": {"n": 1}}
    assert [one["name"] for one in of_type(run, "object.patched")] == ["page"]


def test_an_object_is_made_once() -> None:
    """A second creation under one id is refused and not logged; the first stays."""

    def program() -> Any:
        world = World()
        world.create("page", {"n": 1})
        with pytest.raises(IntentionError, match="there already"):
            world.create("page", {"n": 2})
        return world["page"]

    run, first, _ = both(program)
    assert first == {"n": 1}
    assert len(of_type(run, "object.patched")) == 1


@pytest.mark.parametrize(
    "value", [{"a": (1,)}, {"a": {1}}, {"a": float("nan")}, {"a": [b"x"]}, {1: "a"}, {"a": object()}, [1], "text", None]
)
def test_objects_and_patches_are_json(value: Any) -> None:
    """What is not a JSON object is refused where it is made, and by the world; nothing of it is on the log."""

    def program() -> None:
        world = World()
        world.create("page", {})
        for attempt in (
            lambda: create("new", value), lambda: patch("page", value),
            lambda: world.create("new", value), lambda: world.patch("page", value),
        ):  # fmt: skip
            with pytest.raises(IntentionError, match=r"JSON|key that is not a text"):
                attempt()

    run, _, _ = both(program)
    assert len(of_type(run, "object.patched")) == 1


def test_json_nested_without_end_is_refused() -> None:
    """A hundred levels are enough."""
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    with pytest.raises(IntentionError, match="nested deeper"):
        create("page", deep)


def test_nobody_changes_an_object_but_by_an_event() -> None:
    """What goes in and what comes out are copies."""
    world = World()
    value = {"list": [1]}
    event = world.create("page", value)
    value["list"].append(2)
    world["page"]["list"].append(3)
    world.as_dict()["page"]["list"].append(4)
    found = world.get("page")
    assert found is not None
    found["list"].append(5)
    event.data["value"]["list"].append(6)
    assert world["page"] == {"list": [1]}
    assert world.get("other") is None
    assert list(world) == ["page"]
    assert "page" in world


# -- causes ------------------------------------------------------------------------------------------------------------------


def test_a_dangling_cause_is_an_error_when_it_is_written() -> None:
    """No such event, another run's event, another kind than the reference says: an error at once, and nothing is written."""

    def program() -> Any:
        world, other = World(), World("other")
        page = world.create("page", {})
        elsewhere = other.create("page", {})
        wrong = [
            Ref("object.created", page.ref.seq + 1000, page.ref.run_id),
            Ref("object.created", page.ref.seq, "another-run"),
            Ref("object.patched", page.ref.seq, page.ref.run_id, page.ref.segment),
            elsewhere.ref,
        ]
        for cause in wrong:
            with pytest.raises(DanglingCauseError) as caught:
                world.patch("page", {"n": 1}, cause=cause)
            assert caught.value.cause == cause
        return world.patch("page", {"n": 1}, cause=page).cause == page.ref

    run, first, _ = both(program)
    assert first is True
    assert len(of_type(run, "object.patched")) == 3
    assert program()  # outside every run, too


def test_an_event_names_its_cause_in_the_trace() -> None:
    """By a typed reference, and by place."""

    def program() -> None:
        world = World()
        world.patch("page", {"n": 1}, cause=world.create("page", {}))

    run, _, _ = both(program)
    made, changed = of_type(run, "object.patched")
    assert changed["meta"]["on"] == {"type": "object.created", "seq": made["seq"]}
    assert changed["cause"] == [{"run_id": run.id, "segment": None, "seq": made["seq"]}]
    assert "on" not in made["meta"]


def test_a_world_read_from_a_trace_checks_the_causes() -> None:
    """A trace whose chain verifies, written by somebody who made a cause up, gives no world."""

    def program() -> None:
        world = World()
        page = world.create("page", {})
        world.ledger._kinds[None, None, 7] = "object.created"  # breaks what is checked when it is written
        world.patch("page", {"n": 1}, cause=Ref("object.created", 7, page.ref.run_id))

    with pytest.raises(DanglingCauseError):
        recorded(program)

    def forged() -> None:
        world = World()
        page = world.create("page", {})
        world.ledger._kinds[page.ref.run_id, None, 999] = "object.created"
        world.patch("page", {"n": 1}, cause=Ref("object.created", 999, page.ref.run_id))

    run, _ = recorded(forged)
    with pytest.raises(DanglingCauseError, match="no such event"):
        World.of(run)


def test_the_world_is_not_changed_inside_a_tool() -> None:
    """A replay does not run the tool: what it did to the world would be missing there. So it is refused while recording."""
    world = World()

    @traced_tool(side_effect="read_only")
    def fetch() -> None:
        world.patch("page", {"n": 1})

    with record() as run:
        world.create("page", {"n": 0})
        with pytest.raises(IntentionError, match="does not run"):
            fetch()
    assert len(of_type(run, "object.patched")) == 1
    assert world["page"] == {"n": 0}


def test_a_world_belongs_to_one_run() -> None:
    """A world that began elsewhere is not changed in a run: its trace would not say how it came about."""
    world = World()
    world.create("page", {})
    with record() as run, pytest.raises(IntentionError, match="another run"):
        world.patch("page", {"n": 1})
    assert of_type(run, "object.patched") == []
    assert world["page"] == {}
    with record() as run:
        world = World()
        world.create("page", {})
    with record(), pytest.raises(IntentionError, match="another run"):
        world.patch("page", {"n": 1})


def test_what_is_not_on_the_log_did_not_happen() -> None:
    """After the end of its run a patch is refused, and the world is as it was."""
    world = World()
    with record():
        world.create("page", {})
        from tracekit.integration import current

        scope = current.get()
    token = current.set(scope)
    try:
        with pytest.raises(LogWriteError), pytest.warns(RuntimeWarning, match="had ended"):
            world.patch("page", {"n": 1})
    finally:
        current.reset(token)
    assert world["page"] == {}
    assert world.changes == 1


# -- the projection ------------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab$._é", max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text("ab$._é", max_size=3), VALUES, max_size=4)
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "patch"]), st.sampled_from(["a", "b", "$c"]), OBJECTS), max_size=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_the_projection_is_the_live_world(steps: list[tuple[str, str, dict[str, Any]]]) -> None:
    """Whatever is created and patched, refused ones included: the trace gives the same objects and hash, and so does a replay."""

    def program() -> Any:
        world = World()
        refused = 0
        for what, id, value in steps:
            try:
                getattr(world, what)(id, value)
            except IntentionError:
                refused += 1
        world.end()
        return world.as_dict(), world.hash, refused

    run, first, second = both(program)
    projected = World.of(run)
    assert first == second
    assert (projected.as_dict(), projected.hash) == first[:2]
    assert len(of_type(run, "object.patched")) == len(steps) - first[2]
    model: dict[str, Any] = {}
    for what, id, value in steps:  # an oracle that knows nothing of worlds
        if what == "create":
            model.setdefault(id, value)
        elif id in model:
            model[id] = merge_patch(model[id], value)
    assert model == first[0]


def test_the_world_at_any_point_of_a_run_that_was_cut() -> None:
    """A run that was killed has the world of the events that it had written."""

    def program() -> None:
        world = World()
        world.create("page", {"n": 0})
        for n in range(1, 5):
            world.patch("page", {"n": n})

    run, _ = recorded(program)
    store = Path(run.path).parent / "elsewhere"
    for count in range(2, len(lines(run))):
        path = cut(run, count, store / str(count))
        done = [one for one in entries(path) if one["type"] == "object.patched"]
        assert [value["n"] for value in World.of(path).as_dict().values()] == [len(done) - 1][: len(done)]


def test_two_worlds_of_one_run() -> None:
    """Each has its own objects, told apart by the name."""

    def program() -> None:
        World("one").create("page", {"n": 1})
        World("two").create("page", {"n": 2})

    run, _, _ = both(program)
    assert (World.of(run, name="one")["page"], World.of(run, name="two")["page"]) == ({"n": 1}, {"n": 2})
    with pytest.raises(RunStateError, match=r"(?s)2 worlds.*'one', 'two'"):
        World.of(run)
    with pytest.raises(RunStateError, match=r"(?s)no world 'tow'.*'one', 'two'"):
        World.of(run, name="tow")


def test_the_only_world_of_a_run_needs_no_name() -> None:
    """However it is called."""
    run, _, _ = both(lambda: World("mine").create("page", {"n": 1}) and None)
    assert (World.of(run).name, World.of(run)["page"]) == ("mine", {"n": 1})


@pytest.mark.parametrize("threaded", [False, True])
def test_a_second_world_of_a_name_is_refused(threaded: bool) -> None:
    """Nothing of it is written, in a thread either, and the first one is what the trace says; the next run has the name again."""

    def second() -> str:
        world = World()
        with pytest.raises(RunStateError, match=r"(?s)another world of the name 'world'.*name of its own") as caught:
            world.create("page", {"n": 2})
        with pytest.raises(RunStateError):
            world.end()
        assert len(world) == 0
        return str(caught.value)

    def program() -> Any:
        World().create("page", {"n": 1})
        if not threaded:
            return second()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(second).result()

    run, first, again = both(program)
    assert first == again
    assert World.of(run).as_dict() == {"page": {"n": 1}}
    recorded(program)


def test_large_values_come_back_from_the_trace() -> None:
    """A value that the log keeps elsewhere is in the projection, too."""

    def program() -> str:
        world = World()
        world.create("page", {"text": "x" * 5000, "again": "x" * 5000})
        world.patch("page", {"more": "x" * 5000})
        return world.end()

    run, digest, _ = both(program)
    assert World.of(run).hash == digest
    assert World.of(run)["page"]["more"] == "x" * 5000
    assert of_type(run, "blob")


def test_a_secret_is_in_the_world_and_not_in_the_log() -> None:
    """The program has what it put in; log, projection and hash have the placeholder, so that replay and hash agree."""
    key = "sk-" + "a1B2c3D4e5F6g7H8i9J0" * 2

    def program() -> Any:
        world = World()
        world.create("page", {"key": key, "n": 1})
        world.patch("page", {"other": {"key": key}, "n": 2})
        return world["page"]["key"] == key, world.end()

    run, first, second = both(program)
    assert first == second
    assert first[0] is True
    assert key.encode() not in Path(run.path).read_bytes()
    assert World.of(run).hash == first[1]
    assert World.of(run)["page"]["key"] != key


def test_another_hash_in_a_replay_is_a_divergence() -> None:
    """The world's hash is recorded at the end and compared: a world that an uncaptured change got into is noticed."""
    leak: list[str] = []

    def program() -> str:
        world = World()
        world.create("page", {"n": 1})
        for change in leak:
            world._objects["page"] = world._stored["page"] = {"n": change}  # past the events
        return world.end()

    run, _ = recorded(program)
    leak.append("changed")
    with pytest.raises(DivergenceError, match="world"):
        replayed(run, program)


def test_a_world_whose_hash_is_wrong_is_not_given_out() -> None:
    """A trace that verifies, and whose objects do not give the hash that it says."""

    def program() -> None:
        world = World()
        world.create("page", {"n": 1})
        world._stored["page"] = {"n": 2}
        world.end()

    run, _ = recorded(program)
    with pytest.raises(TraceIntegrityError, match="not the one whose hash"):
        World.of(run)


def test_a_damaged_trace_gives_no_world() -> None:
    """Damage is told, not skipped."""
    run, _ = recorded(lambda: World().create("page", {"n": 1}) and None)
    path = Path(run.path)
    path.write_bytes(path.read_bytes().replace(b'{"n":1}', b'{"n":2}'))
    with pytest.raises(TraceIntegrityError):
        World.of(run)


def test_another_patch_in_a_replay_is_a_divergence() -> None:
    """It names the object and shows the difference."""
    values = iter([1, 2])

    def program() -> None:
        World().create("page", {"n": next(values)})

    run, _ = recorded(program)
    with pytest.raises(DivergenceError, match="page"), replay(run):
        program()


def test_the_hash_is_canonical() -> None:
    """Neither the order of objects nor that of members counts; the values do."""
    one, other = World(), World()
    one.create("a", {"x": 1, "y": 2})
    one.create("b", {})
    other.create("b", {})
    other.create("a", {"y": 2})
    assert one.hash != other.hash
    other.patch("a", {"x": 1})
    assert one.hash == other.hash
    assert one.hash.startswith("sha256:")
    assert orjson.loads(orjson.dumps(one.as_dict())) == one.as_dict()


def test_an_event_of_the_world() -> None:
    """It says what happened to which object."""
    event = World().create("page", {"n": 1})
    assert isinstance(event, IntentionEvent)
    assert (event.kind, event.object, event.data, event.cause) == ("object.created", "page", {"value": {"n": 1}}, None)
