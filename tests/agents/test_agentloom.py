"""Recordings of agentloom: read, replayed as they are, written; a miss is an error."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.agents.drawn import event, graphs
from tests.agents.flat import PROGRAMS
from tests.support.tracing import of_type, recorded
from tracekit.agents import agentloom, events
from tracekit.cli import main
from tracekit.errors import (
    EventCycleError,
    InvalidEventError,
    MissingParentError,
    RunNotFoundError,
    TraceError,
    TraceExhaustedError,
    TraceVersionError,
    UnconsumedStepsError,
)
from tracekit.harness import TracedLLMClient, TraceWriter, import_agentloom, load_trace
from tracekit.integration import Store

MESSAGES = [{"role": "user", "content": "plan it"}]


def answer(text: str, **more: Any) -> dict[str, Any]:
    """An answer as agentloom's recorder writes it."""
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "reasoning_tokens": 0}
    return {
        "content": text, "model": "m-1", "usage": usage, "cost_usd": 0.01, "latency_ms": 12.5, "finish_reason": "stop", **more
    }  # fmt: skip


#: The hash of the request below as agentloom works it out, written down here so that ours is held to it.
WHOLE = {"messages": MESSAGES, "model": "m-1", "temperature": 0.5, "max_tokens": None, "extra": {"top_p": 1}}
BY_HASH = hashlib.sha256(json.dumps(WHOLE, sort_keys=True).encode()).hexdigest()
BY_MESSAGES = hashlib.sha256(json.dumps(MESSAGES, sort_keys=True).encode()).hexdigest()

LOOP = [
    answer("", provider="mock", tool_calls=[{"id": "c1", "name": "search", "arguments": {"q": "flats"}}]),
    answer("", provider="mock", tool_calls=[{"id": "c2", "name": "book", "arguments": {"n": 1}}]),
    answer("booked", provider="mock"),
]
V2 = {"_version": 2, "plan": answer("a plan"), "loop": LOOP, BY_HASH: answer("by hash"), "_meta": {"kept": True}}
V1 = {"plan": answer("a plan"), "loop": LOOP, BY_MESSAGES: answer("by messages")}


def with_events(tree: dict[str, Any]) -> dict[str, Any]:
    found = events(recorded(PROGRAMS[0])[0].path)
    return {**tree, "_inter_agent_events": agentloom.Recording({}, events=found).events}


@pytest.mark.parametrize("tree", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("spoken", [False, True])
def test_inter_agent_events_extend_recordings_without_breaking_v2_format(tree: dict[str, Any], spoken: bool) -> None:
    """Recordings of versions 1 and 2 load, replay unchanged and come out as they were, with and without the events of agents."""
    tree = with_events(tree) if spoken else tree
    recording = agentloom.loads(json.dumps(tree))
    assert json.loads(recording.dumps()) == tree
    assert (recording.events is None) == (not spoken)
    with recording.replay() as model:
        assert model.complete(MESSAGES, "other", step_id="plan") == tree["plan"]
        assert [model.complete([], "m", step_id="loop") for _ in LOOP] == LOOP
        last = model.complete(MESSAGES, "m-1", 0.5, top_p=1, step_id="unheard of")
        assert last["content"] == ("by hash" if "_version" in tree else "by messages")
    # What agentloom's own reader looks at (keys that do not begin with "_") is untouched by the events.
    plain = {key: value for key, value in json.loads(recording.dumps()).items() if not key.startswith("_")}
    assert plain == {key: value for key, value in tree.items() if not key.startswith("_")}


def test_hashes_are_agentlooms() -> None:
    """The key of a request without a step id is the one that agentloom's recorder computes, in both versions."""
    assert agentloom.request_hash(MESSAGES, "m-1", 0.5, None, {"top_p": 1}) == BY_HASH
    assert agentloom.request_hash(MESSAGES, "x", version=1) == BY_MESSAGES
    assert agentloom.request_hash(MESSAGES, "x") != agentloom.request_hash(MESSAGES, "y")

    class Like:
        def model_dump(self) -> dict[str, Any]:
            return MESSAGES[0]

    assert agentloom.request_hash([Like()], "m-1", 0.5, None, {"top_p": 1}) == BY_HASH


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "user", "content": "plan it "}]},
        {"model": "m-2"},
        {"temperature": 0.6},
        {"max_tokens": 1},
        {"top_p": 0.9},
        {"step_id": "gone", "model": "m-2"},
    ],
    ids=str,
)
def test_a_miss_is_an_error_and_never_a_default_answer(request_: dict[str, Any]) -> None:
    """One space more in a prompt, another model or parameter, a step that is not there: TraceExhaustedError, past `except Exception`."""
    asked = {"messages": MESSAGES, "model": "m-1", "temperature": 0.5, "top_p": 1, **request_}
    with pytest.raises(TraceExhaustedError) as failure:
        agentloom.loads(json.dumps(V2)).replay().complete(**asked)
    assert not isinstance(failure.value, Exception)
    with pytest.raises(TraceExhaustedError):
        agentloom.loads("{}").replay().complete(MESSAGES)


def test_half_a_surrogate_pair_comes_back(tmp_path: Path) -> None:
    """What agentloom wrote of a text that was cut inside a character is imported, and exported as it was, by the command too."""
    tree = {"_version": 2, "plan": answer("half \ud83d"), "ü": answer("whole 😀")}
    assert agentloom.loads(agentloom.loads(json.dumps(tree)).dumps()).as_dict() == tree
    file, out = tmp_path / "in.json", tmp_path / "out.json"
    file.write_text(json.dumps(tree))
    writer = import_agentloom(file, tmp_path / "runs")
    done = CliRunner().invoke(main, ["export", writer.path, "--to", "agentloom", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_bytes()) == tree


@pytest.mark.parametrize(
    "text",
    [
        '{"_version": 2, "plan": {"content": "a"}, "plan": {"content": "b"}}',
        '{"x": [{"content": "a", "plan": 1, "plan": 2}]}',
    ],
)
def test_a_doubled_key_is_refused(text: str, tmp_path: Path) -> None:
    """Of two answers under one key none is dropped silently: the key is named."""
    with pytest.raises(TraceError, match="'plan' twice"):
        agentloom.loads(text)
    file = tmp_path / "recording.json"
    file.write_text(text)
    done = CliRunner().invoke(main, ["import", "agentloom", str(file)])
    assert done.exit_code == 2
    assert "'plan' twice" in done.output


def test_runs_are_exported_by_id_path_or_themselves(tmp_path: Path) -> None:
    """As everywhere else, a run is named by what is at hand."""
    run, _ = recorded(PROGRAMS[0])
    with Store().files(run) as traces:
        expected = agentloom.exported(*traces).dumps()
    assert [agentloom.exported(one).dumps() for one in (run, run.path, Path(run.path), run.id)] == [expected] * 4
    with pytest.raises(RunNotFoundError):
        agentloom.exported("gone", store=tmp_path)
    with pytest.raises(TypeError):
        agentloom.exported()


def test_every_turn_answers_once() -> None:
    """The fourth turn of a loop of three is an error, not the third again; so is a step's only answer asked for twice."""
    model = agentloom.loads(json.dumps(V2)).replay()
    for _ in LOOP:
        model.complete([], step_id="loop")
    model.complete([], step_id="plan")
    for step in ("loop", "plan"):
        with pytest.raises(TraceExhaustedError, match=step):
            model.complete([], step_id=step)


def test_the_same_request_has_the_same_answer_each_time() -> None:
    """One answer under a request's hash answers that request however often it is made; async, too; each caller has its own copy."""
    model = agentloom.loads(json.dumps(V2)).replay()
    first = model.complete(MESSAGES, "m-1", 0.5, top_p=1)
    first["content"] = "changed"
    second = asyncio.run(model.acomplete(MESSAGES, "m-1", temperature=0.5, top_p=1))
    assert second == V2[BY_HASH]


def test_answers_that_nobody_asked_for_are_an_error() -> None:
    """A replay that takes a shorter way says which turns are left."""
    model = agentloom.loads(json.dumps(V2)).replay()
    model.complete([], step_id="loop")
    with pytest.raises(UnconsumedStepsError) as failure:
        model.finish()
    left = [(step["name"], step["seq"]) for step in failure.value.steps]
    assert left == [("plan", 1), ("loop", 2), ("loop", 3), (BY_HASH, 1)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", TraceError),
        ("[]", TraceError),
        ('{"a": 1}', TraceError),
        ('{"a": []}', TraceError),
        ('{"a": [1]}', TraceError),
        ('{"_version": "2"}', TraceError),
        ('{"_version": 3}', TraceVersionError),
        ('{"_inter_agent_events": {}}', TraceError),
        ('{"_inter_agent_events": [{}]}', InvalidEventError),
        (json.dumps({"_inter_agent_events": [event("a", ["b"])]}), MissingParentError),
        (json.dumps({"_inter_agent_events": [event("a", ["a"])]}), EventCycleError),
    ],
)
def test_what_is_no_recording_is_refused(text: str, error: type[Exception], tmp_path: Path) -> None:
    """A damaged or foreign file is an error that names it, never an empty recording."""
    path = tmp_path / "recording.json"
    path.write_text(text)
    with pytest.raises(error):
        agentloom.load(path)
    with pytest.raises(TraceError, match="can't be read"):
        agentloom.load(tmp_path / "gone.json")


# -- runs ----------------------------------------------------------------------------------------------------------------

ANSWERS = st.dictionaries(st.sampled_from(["content", "model", "n"]), st.text(max_size=5) | st.integers(-9, 9))
TREES = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda key: not key.startswith("_")),
    ANSWERS | st.lists(ANSWERS, min_size=1, max_size=3),
    max_size=4,
)


@given(TREES, st.sampled_from([{}, {"_version": 2}]), st.none() | graphs(most=5))
def test_a_recording_goes_through_a_run_and_comes_out_as_it_was(
    tree: dict[str, Any], version: dict[str, Any], found: list[dict[str, Any]] | None
) -> None:
    """File → run of the store → file: every key, turn, other field and event."""
    whole = {**version, **tree, **({} if found is None else {"_inter_agent_events": found})}
    recording = agentloom.loads(json.dumps(whole))
    writer = import_agentloom(recording)
    with Store().files(writer.path) as traces:
        again = agentloom.exported(*traces)
    assert again.as_dict() == recording.as_dict()
    assert events(writer.path) == (recording.events or [])


def test_an_imported_recording_is_a_run_like_others(tmp_path: Path) -> None:
    """It verifies, is complete, and shows its model calls, every turn of a loop."""
    path = tmp_path / "flats.json"
    path.write_text(json.dumps(V2))
    writer = import_agentloom(path, tmp_path / "store")
    found = load_trace(writer.run_id, store=tmp_path / "store")
    assert found.state == "complete"
    assert [one.output["content"] for one in found] == ["a plan", "", "", "booked", "by hash"]
    assert of_type(writer.path, "run.started")[0]["name"] == "flats"


def test_a_run_is_written_as_a_recording_that_replays() -> None:
    """Calls of a model under tracekit, with and without a step id, become answers that the replay finds by the same request."""
    said = iter(["one", "two", "three", "four"])
    with TraceWriter(agent="planner") as writer:
        model = TracedLLMClient(lambda prompt, **_: next(said), writer, model_id="m-1")
        assert [model.generate(MESSAGES, temperature=0), model.generate(MESSAGES, temperature=0)] == ["one", "two"]
        assert model.generate("plain", top_p=1) == "three"
        step = TracedLLMClient(lambda prompt, **_: next(said), writer, model_id="m-1", parameters={"step_id": "plan"})
        assert step.generate("x") == "four"
    with Store().files(writer.path) as traces:
        recording = agentloom.loads(agentloom.exported(*traces).dumps())
    assert recording.version == 2
    assert recording.events is None
    with recording.replay() as again:
        twice = [again.complete(MESSAGES, "m-1", 0)["content"] for _ in range(2)]
        plain = again.complete([{"role": "user", "content": "plain"}], "m-1", top_p=1)["content"]
        assert [*twice, plain, again.complete([], step_id="plan")["content"]] == ["one", "two", "three", "four"]


def test_agents_that_spoke_are_in_the_recording() -> None:
    """A run with messages between agents carries their events, in causal order, under the key of their own."""
    run, _ = recorded(PROGRAMS[0])
    with Store().files(run.path) as traces:
        tree = json.loads(agentloom.exported(*traces).dumps())
    assert tree["_version"] == 2
    assert len(tree["_inter_agent_events"]) == 14
    assert agentloom.loads(json.dumps(tree)).events == tree["_inter_agent_events"]
