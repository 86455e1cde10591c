"""The inter-agent view of a trace: every line keeps to its schema, names its causes, and hashes what was said."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.agents.drawn import event
from tests.agents.flat import PROGRAMS
from tests.support.tracing import entries, of_type, recorded
from tracekit import traced, traced_tool
from tracekit.agents import (
    EVENT_SCHEMA_URI,
    Message,
    agent,
    compare,
    events,
    experimental,
    ordered,
    parse,
    receive_task,
    respond,
    send_task,
    serialize,
)
from tracekit.agents.view import EVENT_TYPES, check, dump, load
from tracekit.errors import InvalidEventError, TraceIntegrityError
from tracekit.harness import TracedToolClient, TraceWriter

SCHEMA = Draft202012Validator(load())


def valid(one: Any) -> bool:
    return SCHEMA.is_valid(one)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("payloads", [False, True])
def test_every_line_that_is_written_keeps_to_the_schema(program: Callable[[], Any], payloads: bool) -> None:
    """Against the published schema, by an independent validator; and the plain check agrees."""
    run, _ = recorded(program)
    lines = serialize(events(run.path, payloads=payloads)).splitlines()
    assert len(lines) == 14
    for one in map(json.loads, lines):
        SCHEMA.validate(one)
        assert check(one) is None
        assert ("payload" in one) == payloads
    assert {json.loads(one)["event_type"] for one in lines} == set(EVENT_TYPES)


GOOD = [
    event("a", []),
    event("b", ["a"], event_type="task_received", sender_agent_id=None, task="t"),
    event("c", ["a", "b"], event_type="response_sent", recipient_agent_id=None),
    event("d", [], event_type="tool_call", tool="x", side_effect="read_only", payload={"any": [1]}),
    event("e", ["d"], event_type="tool_return", tool="x", call_event_id=event("d", [])["event_id"], outcome="error"),
    event("f", [], event_type="state_transition", name="order"),
]
CHANGES: list[dict[str, Any]] = [
    {"event_id": "x"},
    {"event_id": "00000000-0000-1000-8000-000000000000"},
    {"event_type": "other"},
    {"event_type": 1},
    {"agent_id": None},
    {"timestamp_ns": -1},
    {"timestamp_ns": "1"},
    {"parent_event_id": 1},
    {"parent_event_ids": None},
    {"parent_event_ids": ["x"]},
    {"payload_hash": "0" * 15},
    {"payload_hash": "A" * 16},
    {"payload_sha256": "0" * 63},
    {"payload_ref": 1},
]


def test_jsonl_schema_validates() -> None:
    """Known-good events of every type pass, known-bad ones don't; the schema and the plain check say the same."""
    assert load()["$id"] == EVENT_SCHEMA_URI
    Draft202012Validator.check_schema(load())
    for good in GOOD:
        assert valid(good), good
        assert check(good) is None
        for change in CHANGES:
            bad = {**good, **change}
            assert (valid(bad), check(bad) is None) == (False, False), change
        for key in good:
            if key not in ("task", "side_effect", "payload"):
                less = {name: value for name, value in good.items() if name != key}
                assert valid(less) == (check(less) is None), key
    for other in (None, 1, "x", [], {}):
        assert not valid(other)
        assert check(other) is not None
    for change in ({"parent_event_id": None}, {"payload_hash": "f" * 16}):
        assert check({**GOOD[1], **change}) is not None


@given(st.sampled_from(GOOD), st.data())
def test_the_plain_check_is_at_least_as_strict_as_the_schema(good: dict[str, Any], data: st.DataObject) -> None:
    """Whatever stands in whatever field: what the check lets pass, the schema lets pass."""
    key = data.draw(st.sampled_from([*good, "outcome", "tool", "task", "side_effect", "name"]))
    scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
    changed = {**good, key: data.draw(scalars | st.lists(scalars, max_size=2))}
    if check(changed) is None:
        assert valid(changed)


def test_what_is_hashed_is_the_canonical_payload() -> None:
    """SHA-256 over the payload's JSON with sorted keys and no spaces; 16 digits of it beside the whole."""
    payload = {"b": [1, "ü"], "a": {"d": None, "c": 1.5}}
    run, _ = recorded(lambda: send_task("x", payload))
    (told,) = events(run.path, payloads=True)
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert told["payload_sha256"] == hashlib.sha256(canonical).hexdigest()
    assert told["payload_hash"] == told["payload_sha256"][:16]
    assert told["payload"] == payload
    seq = of_type(run, "task_sent")[0]["seq"]
    assert told["payload_ref"] == f"{run.id}#{seq}/output"


def test_a_large_payload_is_hashed_whole_though_the_trace_refers_to_it() -> None:
    """The hash of what was said does not depend on how the trace stores it."""
    long = "word " * 1000

    def program() -> None:
        send_task("x", {"text": long})
        send_task("x", {"text": long})

    run, _ = recorded(program)
    assert "$ref" in json.dumps(of_type(run, "task_sent")[1])
    hashes = {one["payload_sha256"] for one in events(run.path)}
    assert hashes == {hashlib.sha256(json.dumps({"text": long}, separators=(",", ":")).encode()).hexdigest()}


def test_a_secret_is_in_no_view() -> None:
    """What is hashed and shown is what the trace holds: redacted."""
    secret = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2
    run, _ = recorded(lambda: send_task("x", {"key": secret}))
    found = events(run.path, payloads=True)
    assert secret not in str(found)
    assert found[0]["payload_sha256"] != hashlib.sha256(json.dumps({"key": secret}).encode()).hexdigest()


def test_parents_are_causes_then_calls_then_the_one_before() -> None:
    """A response: its receipt first, then what its agent did before it. A tool's return: its call. A nested call: the outer one."""

    @traced_tool(side_effect="read_only", name="inner")
    def inner() -> int:
        return 1

    @traced_tool(side_effect="read_only", name="outer")
    def outer() -> int:
        thread = threading.Thread(target=with_span)
        thread.start()
        thread.join()
        return inner()

    @traced
    def with_span() -> None:
        inner()

    def program() -> None:
        with agent("a"):
            message = send_task("b", 1)
        with agent("b"):
            task = receive_task(message)
            respond(task, outer())

    run, _ = recorded(program)
    found = {one["event_id"]: one for one in events(run.path)}
    (sent,) = (one for one in found.values() if one["event_type"] == "task_sent")
    (received,) = (one for one in found.values() if one["event_type"] == "task_received")
    (answer,) = (one for one in found.values() if one["event_type"] == "response_sent")
    calls = [one for one in found.values() if one["event_type"] == "tool_call"]
    (around,) = (one for one in calls if one["tool"] == "outer")
    assert received["parent_event_ids"] == [sent["event_id"]]
    assert around["parent_event_ids"] == [received["event_id"]]
    assert answer["parent_event_ids"][0] == received["event_id"]
    assert found[answer["parent_event_ids"][1]]["tool"] == "outer"
    nested = [one for one in calls if one["tool"] == "inner"]
    assert [one["parent_event_id"] for one in nested] == [around["event_id"]] * 2
    for one in found.values():
        if one["event_type"] == "tool_return":
            assert one["parent_event_id"] == one["call_event_id"]


def test_outcomes_of_tools() -> None:
    """A return, an error (its type and text, not its traceback), by the agent that called."""

    @traced_tool(side_effect="read_only")
    def fail() -> None:
        raise ValueError("no")

    def program() -> None:
        with agent("a"), pytest.raises(ValueError):
            fail()

    run, _ = recorded(program, agent="nobody")
    call, back = events(run.path, payloads=True)
    assert (back["outcome"], back["agent_id"], back["call_event_id"]) == ("error", "a", call["event_id"])
    assert back["payload"]["text"] == "no"
    assert back["payload"].keys() == {"type", "text"}
    assert call["side_effect"] == "read_only"


def test_agents_have_the_name_of_the_run_where_none_is_said() -> None:
    """Every event has an agent: the acting one, the run's, or the run itself."""
    for options, name in (({}, "test"), ({"agent": "me"}, "me")):
        run, _ = recorded(lambda: send_task("x"), **options)
        assert [one["agent_id"] for one in events(run.path)] == [name]


def test_a_file_of_events_reads_back_and_bad_lines_are_named() -> None:
    """parse is the way back; what is no event is an error with its line."""
    run, _ = recorded(PROGRAMS[0])
    found = events(run.path)
    assert parse(dump(found)) == found
    lines = dump(found).splitlines()
    for bad in (b"{", b"[]", b'{"event_id": 1}', b"\xff"):
        with pytest.raises(InvalidEventError) as failure:
            parse([*lines[:3], bad, *lines[3:]])
        assert failure.value.line == 4


def test_a_file_of_events_may_be_text_and_begin_with_a_mark() -> None:
    """The bytes, the text or the lines of a file, with a byte order mark or Windows line ends or without, are the same events."""
    found = events(recorded(lambda: send_task("x", "a\u2028b\x85c"))[0], payloads=True)
    data = dump(found) + dump([event("other", [])])
    for form in (data, data.decode(), b"\xef\xbb\xbf" + data, "\ufeff" + data.decode(), data.replace(b"\n", b"\r\n")):
        assert parse(form) == [*found, event("other", [])]
    assert parse(data.decode().split("\n")) == parse(data)
    with pytest.raises(InvalidEventError) as failure:
        parse(data.decode() + "{}")
    assert failure.value.line == 3


@pytest.mark.parametrize(
    "change",
    [
        {"parent_event_id": None},
        {"parent_event_id": "x"},
        {"parent_event_ids": []},
        {"parent_event_ids": None},
        {"event_id": 1},
    ],
    ids=str,
)
def test_what_is_no_event_has_no_order(change: dict[str, Any]) -> None:
    """Events that are put in order or compared need their fields, and their first parent is the one that they say: else it is an error."""
    good = [event("a", []), event("b", ["a"])]
    for bad in ({**good[1], **change}, {"event_id": "x"}, {}, None, "text"):
        for use in (ordered, serialize, lambda found: compare(good, found)):
            with pytest.raises(InvalidEventError) as failure:
                use([good[0], bad])
            assert failure.value.line == 2
        with pytest.raises(InvalidEventError):
            parse(json.dumps(bad))
    del good[1]["agent_id"]
    with pytest.raises(InvalidEventError, match="agent_id is missing"):
        compare(good, good)


def test_a_damaged_trace_has_no_view() -> None:
    """Events are told of a file that verifies, or not at all."""
    run, _ = recorded(PROGRAMS[0])
    with open(run.path, "r+b") as file:
        data = file.read().replace(b"north", b"norht")
        file.seek(0)
        file.write(data)
    with pytest.raises(TraceIntegrityError):
        events(run.path)


def test_the_types_are_those_of_the_schema() -> None:
    """tracekit.agents.experimental has a type for each of the six, with the schema's fields."""
    types = [getattr(experimental, name) for name in experimental.__all__ if name != "InterAgentEvent"]
    assert len(types) == 6
    common = set(load()["properties"])
    for one in load()["allOf"]:
        kind = one["if"]["properties"]["event_type"]["const"]
        (type_,) = (t for t in types if kind in str(t.__annotations__["event_type"]))
        assert set(type_.__annotations__) == common | set(one["then"]["properties"])


# -- observers -----------------------------------------------------------------------------------------------------------


def _harness(**options: Any) -> tuple[TraceWriter, list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    with TraceWriter(observer=options.pop("observer", seen.append), agent="planner", **options) as writer:
        tool = TracedToolClient(lambda plan: "x" * 5000, writer, tool_id="t", side_effect="reversible")
        with writer.entered():
            message = send_task("worker", {"n": 1})
            with agent("worker"):
                task = receive_task(message)
                tool.execute({"p": 1})
                respond(task, tool.execute({"p": 2}))
        writer.record("state_transition", "a", "b", name="order")
        threads = [threading.Thread(target=_threaded, args=(writer.lane("w"), n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return writer, seen


def _threaded(line: Any, n: int) -> None:
    with line.entered():
        for _ in range(10):
            send_task("x", n)


def test_an_observer_has_to_be_callable(tmp_path: Any) -> None:
    """Anything else is refused before there is a file."""
    with pytest.raises(TypeError, match="observer"):
        TraceWriter(tmp_path, observer=5)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_observer_gets_each_event_as_it_is_written() -> None:
    """The harness hands every inter-agent event to its observer, in recorded order: the very ones that the view has later."""
    writer, seen = _harness()
    assert seen == events(writer.path)
    assert len(seen) == 8 + 40


def test_an_observer_is_told_before_the_call_goes_on() -> None:
    """In a single thread, an event has been told when its call returns."""
    seen: list[str] = []
    with TraceWriter(observer=lambda one: seen.append(one["event_type"])) as writer, writer.entered():
        send_task("x")
        assert seen == ["task_sent"]
        receive_task(Message("task_sent", None, None))
        assert seen == ["task_sent", "task_received"]


def test_an_observer_never_breaks_the_run() -> None:
    """One that raises is dropped with a warning; the run is whole, and so is one whose observer writes to the run itself."""

    def bad(one: dict[str, Any]) -> None:
        raise RuntimeError("broken")

    with pytest.warns(RuntimeWarning, match="observer of inter-agent events failed"):
        writer, _ = _harness(observer=bad)
    assert len(events(writer.path)) == 48
    with TraceWriter(observer=lambda one: writer2.record("decision", one["event_id"], 1)) as writer2:
        writer2.record("task_sent", None, 1, name="x")
    assert [one["type"] for one in entries(writer2.path)].count("decision") == 1
