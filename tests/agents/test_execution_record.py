"""The record of an execution: a view of the trace, whole or partial, and what is given back from it without asking anybody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import tracekit
from tests.support.depth import examples
from tests.support.ids import shown
from tests.support.processes import python
from tests.support.tracing import entries, recorded
from tracekit import DivergenceError, NotReplayableError, RunNotFoundError, TraceIntegrityError, traced_tool
from tracekit.agents import (
    AgentRegistry,
    BaseAgent,
    ExecutionRecord,
    IntentEnvelope,
    IntentRouter,
    recorded_form,
    replay_execution,
    stable_hash,
)
from tracekit.agents.record import schema
from tracekit.errors import EnvelopeError, InvalidRecordError
from tracekit.integration import Trace

VALID = Draft202012Validator(schema())
registry = AgentRegistry()
router = IntentRouter(registry)
calls: list[str] = []


@registry.agent(intent="greet", priority=1, side_effect="read_only")
def moody(envelope: IntentEnvelope) -> dict[str, Any]:
    calls.append("moody")
    if envelope.payload.get("mood") == "bad":
        raise ConnectionError("not today")
    return {"hello": envelope.payload["who"]}


@registry.agent(intent="greet", priority=2, side_effect="read_only")
def polite(payload: dict[str, Any]) -> dict[str, Any]:
    calls.append("polite")
    if payload["who"] == "nobody":
        raise ValueError("nobody to greet")
    return {"good day": payload["who"]}


@registry.agent(intent="odd")
def odd(payload: dict[str, Any]) -> Any:
    return Path("/tmp") if payload else (line for line in "ab")


def ask(strategy: str = "fallback", intent: str = "greet", **payload: Any) -> Any:
    envelope = {"intent": intent, "payload": payload, "routing": {"strategy": strategy}}
    return router.route(envelope)


def events(record: ExecutionRecord) -> list[str]:
    return [event.type for event in record.events]


def test_a_record_has_the_request_the_decision_the_events_and_the_response() -> None:
    """Six types of event, numbered from 1; ids, hashes and instants in the header."""
    run, response = recorded(lambda: ask(who="you", mood="bad"))
    record = ExecutionRecord.of(run)
    assert events(record) == [
        "INTENT_RECEIVED", "AGENT_ATTEMPT_START", "AGENT_ATTEMPT_END", "FALLBACK_TRIGGERED", "AGENT_ATTEMPT_START",
        "AGENT_ATTEMPT_END", "ROUTER_DECISION", "FINAL_RESPONSE",
    ]  # fmt: skip
    assert [event.seq for event in record.events] == list(range(1, 9))
    assert [event.entry for event in record.events] == sorted(event.entry for event in record.events)
    assert record.router_decision == {
        "agent": "polite",
        "intent": "greet",
        "reason": "the one before it failed",
        "strategy": "fallback",
        "asked": ["moody", "polite"],
    }
    assert record.final_response == response.as_dict()
    assert record.envelope == IntentEnvelope.from_dict(record.envelope).as_dict()
    header = record.header
    assert (header.replayable, header.replayable_reason, header.run_id) == (True, None, run.id)
    assert header.execution_id == f"{run.id}:{record.events[0].entry}"
    assert header.envelope_hash == stable_hash(record.envelope)
    assert header.created_utc_iso.endswith("+00:00")


PROGRAMS = st.lists(
    st.tuples(
        st.sampled_from(["direct", "fallback", "broadcast", "parallel"]),
        st.sampled_from(["greet", "odd", "nothing"]),
        st.fixed_dictionaries(
            {"who": st.sampled_from(["you", "nobody", "x" * 2000]), "mood": st.sampled_from(["good", "bad"])}
        ),
    ),
    min_size=1,
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(PROGRAMS)
def test_every_execution_has_a_record_that_keeps_to_the_schema(program: list[Any]) -> None:
    """Trace → view → schema → JSON → view: nothing is lost, and each answers as the agents did."""
    run, responses = recorded(lambda: [ask(strategy, intent, **payload) for strategy, intent, payload in program])
    records = ExecutionRecord.all(run)
    assert len(records) == len(program)
    for record, response in zip(records, responses, strict=True):
        VALID.validate(json.loads(record.to_json()))
        assert ExecutionRecord.from_json(record.to_json()) == record
        assert ExecutionRecord.from_dict(record.as_dict()) == record
        before = len(calls)
        result = replay_execution(run, record.header.execution_id, verify_envelope=True)
        assert (result.payload, result.status, result.error) == (response.payload, response.status, response.error)
        assert (result.from_replay, result.agent, len(calls)) == (True, response.agent, before)


def test_the_schema_is_one_and_refuses_what_is_no_record() -> None:
    """It is a valid schema; a record with a key less does not keep to it."""
    Draft202012Validator.check_schema(schema())
    run, _ = recorded(lambda: ask(who="you"))
    tree = ExecutionRecord.of(run).as_dict()
    for key in tree:
        assert not VALID.is_valid({name: value for name, value in tree.items() if name != key})
        with pytest.raises(ValueError, match="not a record"):
            ExecutionRecord.from_dict({name: value for name, value in tree.items() if name != key})
    for wrong in ([], None, {"header": 5}):
        with pytest.raises(ValueError, match="not a record"):
            ExecutionRecord.from_dict(wrong)  # type: ignore[arg-type]


def test_several_executions_are_told_apart() -> None:
    """One of several must be named; what there is is told."""
    run, _ = recorded(lambda: [ask(who="a"), ask(who="b")])
    one, other = ExecutionRecord.all(run.id)
    assert ExecutionRecord.of(run.path, other.header.execution_id) == other
    with pytest.raises(RunNotFoundError, match="2 intents were routed") as caught:
        ExecutionRecord.of(run)
    assert one.header.execution_id in str(caught.value)
    with pytest.raises(RunNotFoundError, match="no execution"):
        replay_execution(run, "nonsense")


def test_a_run_without_an_intent_has_no_record() -> None:
    """Nothing is invented."""
    run, _ = recorded(lambda: None)
    assert ExecutionRecord.all(run) == []
    with pytest.raises(RunNotFoundError, match="no intent was routed"):
        ExecutionRecord.of(run)
    with pytest.raises(RunNotFoundError):
        ExecutionRecord.all("no such run")


def test_requests_inside_requests_and_at_once_have_records_of_their_own() -> None:
    """Each has its own events, however they are mixed in the file."""
    town = AgentRegistry()
    inner = IntentRouter(town)

    @town.agent(intent="inner", side_effect="read_only")
    async def leaf(payload: dict[str, int]) -> int:
        await asyncio.sleep(0)
        return payload["n"]

    @town.agent(intent="outer", side_effect="read_only")
    async def node(payload: dict[str, int]) -> int:
        made = [inner.route_async({"intent": "inner", "payload": {"n": payload["n"] * 10 + i}}) for i in range(3)]
        return sum(one.payload for one in await asyncio.gather(*made))

    async def program() -> list[Any]:
        made = [inner.route_async({"intent": "outer", "payload": {"n": n}}) for n in range(4)]
        return await asyncio.gather(*made)

    run, responses = recorded(lambda: asyncio.run(program()))
    records = ExecutionRecord.all(run)
    assert len(records) == 16
    assert all(events(record)[-1] == "FINAL_RESPONSE" and len(record.events) == 5 for record in records)
    outer = [record for record in records if record.envelope["intent"]["name"] == "outer"]
    assert [record.final_response["payload"] for record in outer] == [one.payload for one in responses]  # type: ignore[index]
    for record in records:
        result = replay_execution(run, record.header.execution_id)
        if record.envelope["intent"]["name"] == "inner":
            assert result.payload == record.envelope["payload"]["n"]


# -- partial executions --------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from tracekit import record
from tracekit.agents import AgentRegistry, IntentRouter

registry = AgentRegistry()

@registry.agent(intent="work", side_effect="reversible")
def worker(payload):
    os.kill(os.getpid(), signal.SIGKILL)

with record("killed"):
    IntentRouter(registry).route({"intent": "work", "payload": {"n": 1}})
"""


def test_an_execution_whose_process_was_killed_is_partial(tmp_path: Path) -> None:
    """Its record says with which agent it stopped; it is not replayed."""
    program = tmp_path / "killed.py"
    program.write_text(textwrap.dedent(KILLED))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = python(str(program), env=environment)
    assert done.returncode == -signal.SIGKILL
    (path,) = (tmp_path / ".tracekit" / "runs").glob("*.jsonl")
    record = ExecutionRecord.of(str(path))
    assert events(record) == ["INTENT_RECEIVED", "AGENT_ATTEMPT_START"]
    assert (record.header.replayable, record.router_decision, record.final_response) == (False, None, None)
    assert record.header.replayable_reason == "it is partial: agent 'worker' had not finished when the run ended"
    VALID.validate(record.as_dict())
    assert ExecutionRecord.from_json(record.to_json()) == record
    with pytest.raises(NotReplayableError, match="'worker' had not finished") as caught:
        replay_execution(str(path))
    assert caught.value.reason == record.header.replayable_reason  # type: ignore[attr-defined]


def test_an_execution_that_was_interrupted_is_partial() -> None:
    """The record says by what."""
    town = AgentRegistry()

    @town.agent(intent="work", side_effect="read_only")
    def worker(payload: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    def program() -> None:
        with pytest.raises(KeyboardInterrupt):
            IntentRouter(town).route({"intent": "work"})

    run, _ = recorded(program)
    record = ExecutionRecord.of(run)
    assert (
        record.header.replayable_reason == "it is partial: agent 'worker' was interrupted (builtins:KeyboardInterrupt)"
    )
    VALID.validate(record.as_dict())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_answer_that_could_not_be_recorded_is_not_made_up() -> None:
    """The record stays readable, and says why it can't stand for the execution."""
    town = AgentRegistry()

    @town.agent(intent="work", side_effect="read_only")
    def worker(payload: dict[str, Any]) -> Any:
        return {"handle": sys._getframe()}

    run, _ = recorded(lambda: IntentRouter(town).route({"intent": "work"}))
    record = ExecutionRecord.of(run)
    assert not record.header.replayable
    assert record.header.replayable_reason
    VALID.validate(json.loads(record.to_json()))
    with pytest.raises(NotReplayableError):
        replay_execution(run)


# -- verification --------------------------------------------------------------------------------------------------------------


def test_an_envelope_can_be_compared_with_the_recorded_one() -> None:
    """An envelope, or either of its hashes; another request is refused."""
    request = IntentEnvelope.from_dict({"intent": "greet", "payload": {"who": "you"}, "metadata": {"requestId": "1"}})
    later = IntentEnvelope.from_dict({**request.as_dict(), "metadata": {"requestId": "2"}})
    run, response = recorded(lambda: router.route(request))
    for given_ in (True, False, request, request.envelope_hash, later.identity_hash):
        assert replay_execution(run, verify_envelope=given_).payload == response.payload
    for other in (later, later.envelope_hash, "sha256:" + "0" * 64):
        with pytest.raises(DivergenceError, match="another request"):
            replay_execution(run, verify_envelope=other)


def test_a_trace_that_was_changed_gives_no_answer(tmp_path: Path) -> None:
    """Damage is told, whatever is asked for."""
    run, _ = recorded(lambda: ask(who="you"))
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(Path(run.path).read_bytes().replace(b'"hello":"you"', b'"hello":"him"'))
    for use in (ExecutionRecord.of, ExecutionRecord.all, replay_execution):
        with pytest.raises(TraceIntegrityError):
            use(str(changed))  # type: ignore[operator]


def test_a_hash_that_does_not_belong_to_the_request_is_told(tmp_path: Path) -> None:
    """A file whose chain was made anew over other content still has the old hash of the request."""
    from hashlib import sha256

    run, _ = recorded(lambda: ask(who="you"))
    head, lines = "0" * 64, []
    for line in Path(run.path).read_text().replace('"who":"you"', '"who":"him"').splitlines():
        body = line[: line.rindex(',"hash":"')]
        head = sha256((head + body).encode()).hexdigest()
        lines.append(f'{body},"hash":"{head}"}}\n')
    forged = tmp_path / "forged.jsonl"
    forged.write_text("".join(lines))
    assert replay_execution(str(forged)).payload == {"hello": "you"}
    with pytest.raises(TraceIntegrityError, match="not the one that was hashed"):
        replay_execution(str(forged), verify_envelope=True)


def test_steps_of_agents_are_no_events_of_the_execution() -> None:
    """The view has what routing decided; what agents did in between is in the trace."""
    town = AgentRegistry()

    @traced_tool(side_effect="read_only")
    def look(what: str) -> str:
        return what

    @town.agent(intent="work")
    def worker(payload: dict[str, Any]) -> str:
        return look("x")

    run, _ = recorded(lambda: IntentRouter(town).route({"intent": "work"}))
    assert len(ExecutionRecord.of(run).events) == 5
    assert len(entries(run)) > 7


SECRET = "sk-" + "a1B2" * 12


def test_a_request_is_compared_however_it_is_given() -> None:
    """An envelope, its dictionary in either spelling, its JSON, a hash or the beginning of one."""
    tree = {"intent": "greet", "payload": {"who": "you"}, "metadata": {"request_id": "1"}}
    request = IntentEnvelope.from_dict(tree)
    run, response = recorded(lambda: router.route(request))
    full, identity = request.envelope_hash, request.identity_hash
    for given_ in (
        tree, request.as_dict(), request.to_json(), json.dumps(tree), request.to_json().encode(), full, identity,
        full.removeprefix("sha256:"), full[:19], full.removeprefix("sha256:")[:12], identity.upper().removeprefix("SHA256:")[:20],
    ):  # fmt: skip
        assert replay_execution(run, verify_envelope=given_).payload == response.payload
    for other in ({**tree, "payload": {"who": "me"}}, '{"intent": "greet"}', "0" * 12):
        with pytest.raises(DivergenceError, match="another request"):
            replay_execution(run, verify_envelope=other)


@pytest.mark.parametrize("wrong", ["sha256:abc", "abc", "", "md5:" + "0" * 32, "[]", b"5", "{", {"payload": {}}])
def test_what_is_no_request_is_not_called_another_one(wrong: Any) -> None:
    """It is an error of the caller."""
    run, _ = recorded(lambda: ask(who="you"))
    with pytest.raises(EnvelopeError):
        replay_execution(run, verify_envelope=wrong)


@pytest.mark.parametrize("wrong", [None, 5, ["sha256"], object()], ids=shown)
def test_another_kind_of_value_can_not_be_compared(wrong: Any) -> None:
    """Nor is it passed over."""
    run, _ = recorded(lambda: ask(who="you"))
    with pytest.raises(TypeError, match="verify_envelope"):
        replay_execution(run, verify_envelope=wrong)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_request_with_a_secret_is_compared_as_the_log_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is built in, by the environment and by the run's own patterns; the program that asks has the secret."""
    monkeypatch.setenv("TOWN_TOKEN", "open-the-gate-7713")
    request = IntentEnvelope.from_dict(
        {"intent": "greet", "payload": {"who": f"{SECRET} open-the-gate-7713 member-42"}}
    )
    run, _ = recorded(lambda: router.route(request), redact=[r"member-\d+"])
    kept = recorded_form(request, redact=[r"member-\d+"])
    assert "member-42" not in json.dumps(kept)
    assert ExecutionRecord.of(run).header.envelope_hash == stable_hash(kept) != request.envelope_hash
    assert replay_execution(run, verify_envelope=request, redact=r"member-\d+").from_replay
    with pytest.raises(DivergenceError, match="redact="):
        replay_execution(run, verify_envelope=request)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_answer_without_its_secrets_says_so() -> None:
    """It is replayable, with a placeholder; nobody takes that for what the agent said."""
    town = AgentRegistry()

    @town.agent(intent="work", side_effect="read_only")
    def worker(payload: dict[str, Any]) -> Any:
        return {"key": SECRET} if payload["secret"] else {"key": "none"}

    for secret in (True, False):
        run, response = recorded(
            lambda secret=secret: IntentRouter(town).route({"intent": "work", "payload": {"secret": secret}})
        )
        record = ExecutionRecord.of(run)
        result = replay_execution(run)
        assert (record.header.replayable, record.header.redacted, result.redacted) == (True, secret, secret)
        assert (result.payload == response.payload) is not secret
        VALID.validate(record.as_dict())
        assert ExecutionRecord.from_json(record.to_json()) == record


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_answer_that_is_not_whole_has_the_advice_of_a_replay() -> None:
    """Its run has ended: there is nothing to be resumed."""
    town = AgentRegistry()
    town.register(BaseAgent(lambda payload: sys._getframe(), intent="work", name="a", side_effect="read_only"))
    run, _ = recorded(lambda: IntentRouter(town).route({"intent": "work"}))
    with pytest.raises(NotReplayableError) as caught:
        replay_execution(run)
    assert "recovery" not in str(caught.value)
    assert "Return a type that can be recorded" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", b"\xff", "{}", '{"header": {}}', None])
def test_a_text_that_is_no_record_is_a_typed_error(text: Any) -> None:
    """Whatever is wrong with it."""
    with pytest.raises(InvalidRecordError, match="not a record of an execution"):
        ExecutionRecord.from_json(text)


def test_a_header_of_other_values_is_no_record() -> None:
    """Each has its kind."""
    run, _ = recorded(lambda: ask(who="you"))
    tree = ExecutionRecord.of(run).as_dict()
    for key, value in (("executionId", 5), ("replayable", "yes"), ("replayableReason", 1), ("envelopeHash", None)):
        with pytest.raises(InvalidRecordError, match=key):
            ExecutionRecord.from_dict({**tree, "header": {**tree["header"], key: value}})


def test_only_the_first_of_many_executions_are_told() -> None:
    """And that there are more."""
    run, _ = recorded(lambda: [ask(who=str(n)) for n in range(7)])
    with pytest.raises(RunNotFoundError, match=r"… \(7 in all\)"):
        ExecutionRecord.of(run)


# -- what is no record ---------------------------------------------------------------------------------------------------------


def _at(tree: Any, path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of a tree with another value in one place."""
    changed: dict[str, Any] = json.loads(json.dumps(tree))
    node: Any = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


WRONG: list[tuple[tuple[Any, ...], Any]] = [
    (("finalResponse",), 5), (("finalResponse", "status"), "well"), (("finalResponse", "metadata"), []),
    (("finalResponse", "metadata", "attempts", 0, "agent"), 1), (("finalResponse", "error"), "x"), (("routerDecision",), "x"),
    (("routerDecision", "strategy"), "shout"), (("events",), {}), (("events",), []), (("events", 0), 5), (("events", 0, "seq"), "a"),
    (("events", 0, "seq"), True), (("events", 0, "entry"), 0), (("events", 0, "type"), "ZORK"), (("events", 0, "payload"), 5),
    (("events", 0, "more"), 5), (("events", 0, "timestampNs"), -1), (("envelope",), {"intent": 5}), (("envelope", "intent", "name"), ""),
    (("envelope", "more"), 1), (("header", "replayable"), 1), (("header", "replayableReason"), "because"),
    (("header", "envelopeHash"), "sha256:5"), (("more",), 1),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=str)
def test_what_does_not_keep_to_the_schema_is_no_record(path: tuple[Any, ...], value: Any) -> None:
    """The reader refuses what the published schema refuses, and says which part it is."""
    run, _ = recorded(lambda: ask(who="you", mood="bad"))
    tree = _at(ExecutionRecord.of(run).as_dict(), path, value)
    assert not VALID.is_valid(tree)
    with pytest.raises(InvalidRecordError, match=str(next(part for part in reversed(path) if isinstance(part, str)))):
        ExecutionRecord.from_dict(tree)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150), deadline=None)
def test_the_reader_and_the_schema_agree(data: st.DataObject) -> None:
    """Whatever is changed in a record: both take it, or neither does."""
    tree: Any = SOME_RECORD
    path: list[Any] = []
    while isinstance(tree, (dict, list)) and tree and (not path or data.draw(st.booleans())):
        path.append(data.draw(st.sampled_from(sorted(tree) if isinstance(tree, dict) else range(len(tree)))))
        tree = tree[path[-1]]
    odd = st.sampled_from([None, True, 0, 1, -1, "", "x", "direct", "success", [], ["x"], {}, {"name": "x"}])
    changed = _at(SOME_RECORD, tuple(path), data.draw(odd))
    if VALID.is_valid(changed):
        assert ExecutionRecord.from_dict(changed).as_dict() | {"header": 0} == changed | {"header": 0}
    else:
        with pytest.raises(InvalidRecordError):
            ExecutionRecord.from_dict(changed)


def _some_record() -> Any:
    with tempfile.TemporaryDirectory() as store:
        run, _ = recorded(lambda: ask(who="you", mood="bad"), store=store)
        return ExecutionRecord.of(run).as_dict()


SOME_RECORD = _some_record()


# -- secrets and what is too large -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("strategy", ["direct", "fallback", "broadcast"])
def test_an_error_without_its_secrets_says_so(strategy: str) -> None:
    """What is said of why there is no answer counts like an answer: a placeholder in it is told."""
    town = AgentRegistry()

    @town.agent(intent="work", side_effect="read_only")
    def worker(payload: dict[str, Any]) -> Any:
        raise ValueError(f"refused for {payload['who']}")

    for who in (SECRET, "you"):
        request = {"intent": "work", "payload": {"who": who}, "routing": {"strategy": strategy}}
        run, response = recorded(lambda request=request: IntentRouter(town).route(request))
        assert response.status == "error"
        result = replay_execution(run)
        assert result.redacted is ExecutionRecord.of(run).header.redacted is (who == SECRET)
        assert SECRET not in repr(result)


HUGE = {"text": "x" * (61 << 20)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("answer", ["same", "small"])
def test_a_request_that_is_too_large_has_a_record_all_the_same(answer: str) -> None:
    """With its hashes, and without what could not be recorded; an answer of that size is not made up."""
    town = AgentRegistry()

    @town.agent(intent="work", side_effect="read_only")
    def worker(payload: dict[str, Any]) -> Any:
        return payload if answer == "same" else 1

    request = IntentEnvelope.from_dict({"intent": "work", "payload": HUGE})
    run, _ = recorded(lambda: IntentRouter(town).route(request))
    record = ExecutionRecord.of(run)
    assert (record.header.envelope_hash, record.envelope["$t"]) == (request.envelope_hash, "opaque")
    assert (record.header.replayable, record.final_response is None) == (answer == "small", answer == "same")
    VALID.validate(json.loads(record.to_json()))
    assert ExecutionRecord.from_json(record.to_json()) == record
    if answer == "small":
        assert replay_execution(run, verify_envelope=request).payload == 1
    else:
        with pytest.raises(NotReplayableError, match="Return a type"):
            replay_execution(run)
    with pytest.raises(NotReplayableError, match="could not be recorded completely"):
        replay_execution(run, verify_envelope=True)


# -- advice ----------------------------------------------------------------------------------------------------------------------


def test_a_partial_execution_of_a_run_that_has_ended_is_not_sent_to_recovery() -> None:
    """Nothing resumes it. Of a run without an end recovery decides."""
    town = AgentRegistry()

    @town.agent(intent="work", side_effect="read_only")
    def worker(payload: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    def program() -> None:
        with pytest.raises(KeyboardInterrupt):
            IntentRouter(town).route({"intent": "work"})

    run, _ = recorded(program)
    with pytest.raises(NotReplayableError, match="its run has ended"):
        replay_execution(run)
    unended = Path(run.path).with_name("unended.jsonl")
    unended.write_bytes(b"".join(Path(run.path).read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(NotReplayableError, match="recovery scan"):
        replay_execution(str(unended))


# -- many executions -------------------------------------------------------------------------------------------------------------


def test_a_file_is_not_read_through_for_each_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of many requests is read once, whatever is asked of it; a file that has changed since is read again."""
    monkeypatch.setattr(Trace, "unchanging", True)
    read: list[str] = []
    verify = Trace._verify
    monkeypatch.setattr(Trace, "_verify", lambda self, *asked: read.append(self.path) or verify(self, *asked))  # type: ignore[func-returns-value]
    run, answers = recorded(lambda: [ask(who=str(n)).payload for n in range(20)])
    read.clear()
    records = ExecutionRecord.all(run)
    assert [replay_execution(run, one.header.execution_id).payload for one in records] == answers
    assert [ExecutionRecord.of(run, one.header.execution_id) for one in records] == records
    assert len(read) == 1
    path = Path(run.path)
    path.write_bytes(path.read_bytes().replace(b'"hello":"7"', b'"hello":"8"'))
    os.utime(path, ns=(0, 0))  # another instant, however quick we were
    with pytest.raises(TraceIntegrityError):
        replay_execution(run, records[0].header.execution_id)
    assert len(read) == 2


def test_a_run_that_goes_on_has_its_new_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of a file is what it was: while the run is being written each look sees what has come."""
    monkeypatch.setattr(Trace, "unchanging", True)
    with tracekit.record("town") as run:
        for n in range(3):
            ask(who=str(n))
            assert len(ExecutionRecord.all(run)) == n + 1
    assert len(ExecutionRecord.all(run)) == 3


def test_what_is_remembered_is_nobodys_to_change() -> None:
    """Each record is new."""
    run, _ = recorded(lambda: ask(who="you"))
    one = ExecutionRecord.of(run)
    one.final_response["payload"]["hello"] = "him"  # type: ignore[index]
    assert replay_execution(run).payload == {"hello": "you"}
