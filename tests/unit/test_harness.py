"""The injectable primitives: the same agent code, handed clients that record or clients that replay."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracekit import record, replay
from tracekit.errors import (
    DivergenceError,
    LogWriteError,
    RunNotFoundError,
    RunStateError,
    TraceExhaustedError,
    TraceIntegrityError,
    UnconsumedStepsError,
)
from tracekit.harness import (
    ReplayLLMClient,
    ReplayToolClient,
    ReplayTraceWriter,
    TracedLLMClient,
    TracedToolClient,
    TraceIndex,
    TraceWriter,
    load_trace,
)
from tracekit.integration import Store, Trace

TRACEKIT = [sys.executable, "-c", "from tracekit.cli import main; main()"]


class Model:
    """A model that never says the same twice, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def generate(self, prompt: Any, **parameters: Any) -> str:
        self.calls += 1
        return f"answer {self.calls} {os.urandom(4).hex()} to {prompt}"

    async def agenerate(self, prompt: Any, **parameters: Any) -> str:
        await asyncio.sleep(0)
        return self.generate(prompt, **parameters)

    def stream(self, prompt: Any, **parameters: Any) -> Iterator[str]:
        self.calls += 1
        for number in range(3):
            yield f"{number}:{os.urandom(2).hex()}"

    async def astream(self, prompt: Any, **parameters: Any) -> Any:
        for piece in self.stream(prompt, **parameters):
            yield piece


@dataclasses.dataclass(frozen=True)
class Receipt:
    number: int
    total: bytes


class Shop:
    def __init__(self) -> None:
        self.orders: list[str] = []

    def execute(self, plan: str, *, copies: int = 1) -> Receipt:
        self.orders.append(plan)
        if "forbidden" in plan:
            raise PermissionError(13, "not for sale")
        return Receipt(len(self.orders) * copies, os.urandom(4))


SHOP = {"tool_id": "shop", "side_effect": "irreversible", "version": "2.1", "config": {"region": "eu"}}
MODEL = {"model_id": "m-1", "parameters": {"temperature": 0.7}, "version": "2026-01"}


def agent(llm: Any, tool: Any, trace: Any, query: str = "two pens") -> list[Any]:
    """Three steps, their clients handed in: it does not know which mode it is in."""
    plan = llm.generate(f"plan: {query}", max_tokens=20)
    trace.record("decision", {"query": query}, {"plan": plan}, {"policy": "p-1"}, name="plan")
    receipt = tool.execute(plan, copies=2)
    return [plan, receipt, "".join(llm.stream([{"role": "user", "content": f"summary of {receipt.number}"}]))]


def recorded(target: Any = None, **options: Any) -> tuple[TraceWriter, list[Any], Model, Shop]:
    model, shop = Model(), Shop()
    with TraceWriter(target, **options) as writer:
        result = agent(TracedLLMClient(model, writer, **MODEL), TracedToolClient(shop, writer, **SHOP), writer)
        writer.set_result(result)
    return writer, result, model, shop


def replayed(index: TraceIndex, query: str = "two pens", **changes: Any) -> list[Any]:
    return agent(
        ReplayLLMClient(index, **{**MODEL, **changes.get("model", {})}),
        ReplayToolClient(index, **{**SHOP, **changes.get("tool", {})}),
        ReplayTraceWriter(index),
        query,
    )


def test_the_same_agent_replays_exactly_with_nothing_live() -> None:
    """Recorded with traced clients and replayed with replay clients, an unchanged agent comes to the same values and types."""
    writer, result, model, shop = recorded()
    calls, orders = model.calls, list(shop.orders)
    with TraceIndex(load_trace(writer.run_id)) as index:
        assert replayed(index) == result
    assert index.report.exact
    assert index.report.consumed == 4
    assert (model.calls, shop.orders) == (calls, orders)


def test_a_model_is_given_what_is_recorded_of_it(tmp_path: Path) -> None:
    """The client's own parameters go to the model with each call, as a call's own do, which come first; in every shape of call."""
    given: list[dict[str, Any]] = []

    class Told(Model):
        def generate(self, prompt: Any, **parameters: Any) -> str:
            given.append(parameters)
            return "yes"

        def stream(self, prompt: Any, **parameters: Any) -> Iterator[str]:
            given.append(parameters)
            yield "yes"

    with TraceWriter(tmp_path / "one.jsonl") as writer:
        client = TracedLLMClient(Told(), writer, model_id="m", parameters={"temperature": 0.7, "top_p": 1})
        client.generate("a", max_tokens=2)
        [*client.stream("a", temperature=0)]
        asyncio.run(client.agenerate("a"))

        async def read() -> list[str]:
            return [piece async for piece in client.astream("a")]

        asyncio.run(read())
    own = {"temperature": 0.7, "top_p": 1}
    assert given == [{**own, "max_tokens": 2}, {**own, "temperature": 0}, own, own]


def test_a_replay_writes_nothing() -> None:
    """Replaying changes no byte and no name in the store."""
    writer, *_ = recorded()
    store = Store()
    before = {path: path.read_bytes() for path in Path(store.root).rglob("*") if path.is_file()}
    with TraceIndex(load_trace(writer.run_id)) as index:
        replayed(index)
        ReplayTraceWriter(index).close()
    assert {path: path.read_bytes() for path in Path(store.root).rglob("*") if path.is_file()} == before


def test_the_command_line_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    """A harness run is complete, satisfies the schema, and `verify` and `show` read it, in a store and as a single file."""
    writer, *_ = recorded()
    single, *_ = recorded(tmp_path / "one.jsonl", run_id="one")
    for target in (writer.run_id, str(tmp_path / "one.jsonl")):
        done = subprocess.run([*TRACEKIT, "verify", "--schema", "--json", target], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        assert (told["state"], told["schema"]) == ("complete", [])
        assert subprocess.run([*TRACEKIT, "show", target], capture_output=True).returncode == 0
    assert single.path == str(tmp_path / "one.jsonl")
    assert os.stat(single.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {"model_id": "m-2"}}, "m-2"),
        ({"model": {"parameters": {"temperature": 0.0}}}, "temperature"),
        ({"model": {"version": "2026-02"}}, "2026-02"),
        ({"tool": {"version": "2.2"}}, "2.2"),
        ({"tool": {"config": {"region": "us"}}}, "region"),
        ({"tool": {"tool_id": "market"}}, "market"),
        ({"tool": {"side_effect": "read_only"}}, "side_effect"),
    ],
)
def test_another_signature_is_a_divergence(changes: dict[str, Any], told: str) -> None:
    """Model, decoding parameters, versions, configuration and side-effect class must be those of the recording."""
    writer, *_ = recorded()
    index = TraceIndex(load_trace(writer.run_id))
    with pytest.raises(DivergenceError, match=told):
        replayed(index, **changes)


def test_another_prompt_is_a_divergence_that_no_handler_swallows() -> None:
    """A changed prompt is told with its difference, through `except Exception`, and ends the block whatever the agent does."""
    writer, *_ = recorded()

    def program() -> None:
        with TraceIndex(load_trace(writer.run_id)) as index:
            try:
                replayed(index, "three pens")
            except BaseException:
                pass

    with pytest.raises(DivergenceError, match="three pens") as caught:
        program()
    assert caught.value.step == 2
    assert caught.value.location is not None
    assert caught.value.location.startswith(__file__)


def test_another_decision_is_a_divergence() -> None:
    """What the agent tells its trace writer is compared too: input, output and metadata."""
    with TraceWriter() as writer:
        writer.record("decision", {"query": 1}, {"plan": "a"}, {"policy": "p-1"})
    for input, output, metadata in [
        ({"query": 2}, {"plan": "a"}, {"policy": "p-1"}),
        ({"query": 1}, {"plan": "b"}, {"policy": "p-1"}),
        ({"query": 1}, {"plan": "a"}, {"policy": "p-2"}),
    ]:
        trace = ReplayTraceWriter(TraceIndex(load_trace(writer.run_id)))
        with pytest.raises(DivergenceError):
            trace.record("decision", input, output, metadata)


def test_a_call_too_many_is_exhaustion_and_one_too_few_is_told() -> None:
    """Exhaustion and leftovers both fail, never a default answer."""
    writer, *_ = recorded()

    def one_too_many() -> None:
        with TraceIndex(load_trace(writer.run_id)) as index:
            replayed(index)
            ReplayLLMClient(index, **MODEL).generate("one more")

    def one_only() -> None:
        with TraceIndex(load_trace(writer.run_id)) as index:
            ReplayLLMClient(index, **MODEL).generate("plan: two pens", max_tokens=20)

    with pytest.raises(TraceExhaustedError):
        one_too_many()
    with pytest.raises(UnconsumedStepsError) as caught:
        one_only()
    assert [step["type"] for step in caught.value.steps] == ["decision", "tool.call", "llm.request"]  # type: ignore[attr-defined]


def test_recorded_errors_come_back_as_errors() -> None:
    """A tool that failed fails in the replay with the same exception, and is not called."""
    shop = Shop()
    with TraceWriter() as writer, pytest.raises(PermissionError):
        TracedToolClient(shop, writer, **SHOP).execute("forbidden")
    with TraceIndex(load_trace(writer.run_id)) as index, pytest.raises(PermissionError) as caught:
        ReplayToolClient(index, **SHOP).execute("forbidden")
    assert caught.value.args == (13, "not for sale")
    assert len(shop.orders) == 1
    [event] = load_trace(writer.run_id)
    assert isinstance(event.error, PermissionError)
    assert event.output is None


def test_cursors_are_independent_and_loud() -> None:
    """Each kind has its own cursor; a kind at its end, or that is not there at all, raises; a replay client moves it too."""
    writer, result, *_ = recorded()
    index = TraceIndex(load_trace(writer.run_id))
    assert index.kinds == ["llm_call", "decision", "tool_call"]
    assert index.next_event("tool_call").name == "shop"
    assert ReplayLLMClient(index, **MODEL).generate("plan: two pens", max_tokens=20) == result[0]
    assert index.remaining("llm_call") == 1
    summary = index.next_event("llm_call")
    assert "".join(summary.chunks) == result[2]
    assert index.next_event("decision").input == {"query": "two pens"}
    assert index.finish().exact
    for kind in ("tool_call", "policy_check"):
        again = TraceIndex(load_trace(writer.run_id))
        for _ in range(again.remaining(kind)):
            again.next_event(kind)
        with pytest.raises(TraceExhaustedError, match=kind):
            again.next_event(kind)


def test_events_tell_everything_that_was_recorded() -> None:
    """A loaded event has run, order, kind, name, input, output, metadata and whether it finished, in the types that went in."""
    writer, result, *_ = recorded()
    events = load_trace(writer.run_id)
    assert events.state == "complete"
    assert [event.kind for event in events] == ["llm_call", "decision", "tool_call", "llm_call"]
    assert [event.step_id for event in events] == sorted(event.step_id for event in events)
    plan, decision, order, _ = events
    assert plan.input == {"prompt": "plan: two pens", "parameters": {"max_tokens": 20}}
    assert plan.output == result[0]
    assert plan.metadata["model"] == "m-1"
    assert plan.metadata["temperature"] == 0.7
    assert decision.output == {"plan": result[0]}
    assert order.output == result[1]
    assert order.metadata["side_effect"] == "irreversible"
    assert all(event.finished and event.run_id == writer.run_id and event.timestamp > 1.7e9 for event in events)


def test_async_calls_and_streams_replay() -> None:
    """Coroutines and async generators record and replay as the plain ones do."""

    async def program(llm: Any, tool: Any) -> list[Any]:
        pieces = [piece async for piece in llm.astream("s")]
        return [await llm.agenerate("p"), pieces, await tool.aexecute("t")]

    class AsyncShop(Shop):
        async def aexecute(self, plan: str) -> Receipt:
            await asyncio.sleep(0)
            return self.execute(plan)

    with TraceWriter() as writer:
        result = asyncio.run(
            program(TracedLLMClient(Model(), writer, **MODEL), TracedToolClient(AsyncShop(), writer, **SHOP))
        )
    with TraceIndex(load_trace(writer.run_id)) as index:
        assert asyncio.run(program(ReplayLLMClient(index, **MODEL), ReplayToolClient(index, **SHOP))) == result


def test_threads_with_lanes_of_their_own_keep_their_answers() -> None:
    """Workers that each have a lane get their own answers back, however they are scheduled."""

    def program(line: Any, client: Any) -> list[Any]:
        answers: list[Any] = [None] * 6
        lanes = [line.lane("worker") for _ in answers]

        def work(number: int) -> None:
            llm = client(lanes[number])
            answers[number] = [llm.generate("the same"), llm.generate(f"own {number}")]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    model = Model()
    with TraceWriter() as writer:
        result = program(writer, lambda line: TracedLLMClient(model, line, **MODEL))
    assert writer.warnings == []
    with TraceIndex(load_trace(writer.run_id)) as index:
        assert program(index, lambda line: ReplayLLMClient(line, **MODEL)) == result


def test_a_thread_that_is_earlier_than_in_the_recording_waits() -> None:
    """Whose answer came second waits for the first, also where the first one's thread has not been started yet."""

    def worker(line: Any, client: Any, name: str) -> threading.Thread:
        thread = threading.Thread(target=client(line.lane(name)).generate, args=(name,))
        thread.start()
        return thread

    model = Model()
    with TraceWriter() as writer:
        for name in ("first", "second"):
            worker(writer, lambda line: TracedLLMClient(model, line, **MODEL), name).join()
    with TraceIndex(load_trace(writer.run_id)) as index:
        threads = []
        for left, name in ((1, "second"), (0, "first")):
            threads.append(worker(index, lambda line: ReplayLLMClient(line, **MODEL), name))
            while index.remaining("llm_call") > left:  # until it has asked
                time.sleep(0.001)
        for thread in threads:
            thread.join()
    assert index.report.reordered == []


def test_overlapping_calls_in_one_lane_are_told() -> None:
    """Two threads in one lane have no order: the run says so."""
    inside = threading.Barrier(2, timeout=30)

    def slow(prompt: Any, **parameters: Any) -> str:
        inside.wait()
        return str(prompt)

    writer = TraceWriter()
    llm = TracedLLMClient(slow, writer, **MODEL)
    threads = [threading.Thread(target=llm.generate, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.warns(RuntimeWarning, match="overlapped"):
        writer.close()
    assert any("overlapped" in warning for warning in writer.warnings)


def test_a_call_inside_a_call_belongs_to_it() -> None:
    """A tool that asks the model itself is replayed as one step, what it did inside skipped with it."""
    model = Model()

    def program(llm: Any, tool: Any) -> Any:
        return [tool.execute("outer"), llm.generate("after")]

    with TraceWriter() as writer:
        llm = TracedLLMClient(model, writer, **MODEL)
        result = program(llm, TracedToolClient(lambda plan: llm.generate(plan), writer, **SHOP))
    with TraceIndex(load_trace(writer.run_id)) as index:
        assert program(ReplayLLMClient(index, **MODEL), ReplayToolClient(index, **SHOP)) == result
    assert index.report.skipped == 1


def test_without_a_line_the_active_run_is_used() -> None:
    """Clients without a line record into the run around them, and are answered by the replay around them."""
    model = Model()
    llm = TracedLLMClient(model, **MODEL)
    with record("around") as run:
        answer = llm.generate("hello")
    with replay(run.id):
        assert llm.generate("hello") == answer
    assert model.calls == 1
    llm.generate("outside")
    assert model.calls == 2


def test_an_effect_that_cannot_be_logged_does_not_happen() -> None:
    """If the log can't be written, an irreversible call is not made and the caller gets LogWriteError."""
    shop = Shop()
    writer = TraceWriter()
    os.close(writer.session.log.journal._fd)
    full = os.open("/dev/full", os.O_WRONLY)
    writer.session.log.journal._fd = full
    with pytest.raises(LogWriteError, match=r"\.jsonl"):
        TracedToolClient(shop, writer, **SHOP).execute("pens")
    assert shop.orders == []
    with pytest.raises(LogWriteError):
        writer.close()


def test_wrong_use_is_refused_with_a_next_step(tmp_path: Path) -> None:
    """Unknown kinds, a device instead of a file, a replay client on a writer, an empty trace, another run: each says what to do."""
    with pytest.raises(RunStateError, match="ReplayTraceWriter"):
        TraceWriter("/dev/null")
    TraceWriter(tmp_path / "one.jsonl").close()
    with pytest.raises(RunStateError, match="already"):
        TraceWriter(tmp_path / "one.jsonl")
    with TraceWriter(run_id="empty") as writer:
        with pytest.raises(RunStateError, match="decision"):
            writer.record("thought", 1, 2)
        with pytest.raises(RunStateError, match="TraceIndex"):
            ReplayLLMClient(writer, **MODEL)
        with pytest.raises(ValueError, match="irreversible"):
            TracedToolClient(print, writer, tool_id="t", side_effect="some")  # type: ignore[arg-type]
    with pytest.raises(RunStateError, match="nothing to replay"):
        TraceIndex(load_trace("empty"))
    with pytest.raises(RunNotFoundError, match="not other"):
        load_trace(writer.path, "other")


def test_a_damaged_trace_is_refused() -> None:
    """One changed byte, and nothing of the trace is loaded."""
    writer, *_ = recorded()
    path = Path(writer.path)
    path.write_bytes(path.read_bytes().replace(b"two pens", b"six pens", 1))
    with pytest.raises(TraceIntegrityError):
        load_trace(writer.run_id)


def test_a_writer_that_failed_or_died_reads_as_what_it_is() -> None:
    """A block left by an exception ends in run.failed; one that was never closed is incomplete, its events readable."""
    writer = TraceWriter()
    writer.record("tool_call", {"x": 1}, 2, {"tool_id": "t"})
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    assert load_trace(writer.run_id).verdict.end == "run.failed"
    with Trace(writer.path) as trace:
        assert trace.last["meta"]["failure"]["exception"].endswith("ZeroDivisionError")
    unfinished = TraceWriter()
    unfinished.record("tool_call", {"x": 1}, 2, {"tool_id": "t"})
    events = load_trace(unfinished.run_id)
    assert (events.state, [event.output for event in events]) == ("incomplete", [2])
    unfinished.close()


def test_secrets_do_not_enter_the_file() -> None:
    """Prompts and results pass the same redaction as everywhere, and the redacted prompt still matches."""
    secret = "sk-" + "proj-" + "A1b2C3d4" * 6
    with TraceWriter() as writer:
        TracedLLMClient(lambda prompt, **_: "fine", writer, **MODEL).generate(f"my key is {secret}")
    assert secret.encode() not in Path(writer.path).read_bytes()
    with TraceIndex(load_trace(writer.run_id)) as index:
        assert ReplayLLMClient(index, **MODEL).generate(f"my key is {secret}") == "fine"
