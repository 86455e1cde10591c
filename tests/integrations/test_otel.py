"""Runs as spans of OpenTelemetry: what a collector gets, afterwards and while they are recorded."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tracekit
from tests.support.cut import cut
from tests.support.place import Place
from tests.support.stub_provider import StubProvider
from tests.support.tracing import entries, of_type
from tracekit import RunStateError, record, traced, traced_tool
from tracekit.agents import agent, receive_task, respond, send_task
from tracekit.cli import main
from tracekit.errors import StepTimeoutError
from tracekit.integration import span_id, trace_id
from tracekit.otel import SpanEmitter, emit_spans, export_spans


class Collector(ThreadingHTTPServer):
    """A collector on loopback: decodes what comes by OTLP over HTTP, as a collector does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.hold.wait(60)
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.headers["content-type"] == "application/x-protobuf"
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.paths.add(self.path)
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *about: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.hold.set()
            server.shutdown()
            thread.join()


@traced_tool(side_effect="irreversible")
def pay(order: str) -> str:
    if order == "bad":
        raise ConnectionResetError("the answer was lost")
    return f"paid {order}"


@traced("shopping")
def shopping(order: str) -> str:
    return pay(order)


def spans_of(*runs: Any, **options: Any) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    count = export_spans(*runs, exporter=exporter, **options)
    found = [*exporter.get_finished_spans()]
    assert len(found) == count
    return found


def named(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


# -- exported ----------------------------------------------------------------------------------------------------------


def test_a_collector_gets_the_run_as_spans(
    tmp_path: Path, collector: Collector, provider: StubProvider, instrumented: None
) -> None:
    """The run, its model calls, tools and spans, nested as they were, at the recorded times, with the conventions' names."""
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k")
    with record("shop", store=tmp_path, agent="clerk") as run:
        client.chat.completions.create(
            model="gpt-4o-mini", temperature=0.5, max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        )
        shopping("o-1")
        with pytest.raises(ConnectionResetError):
            pay("bad")
        tracekit.decision("route", input={"a": 1}, output="b")
    done = CliRunner().invoke(
        main, ["export", run.id, "--to", "otlp", "--endpoint", collector.url, "--store", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert collector.paths == {"/v1/traces"}
    spans = {(span.name, span.status.code): span for span in collector.spans}
    root, chat = spans["invoke_agent clerk", 0], spans["chat gpt-4o-mini", 0]
    phase, paid, failed = spans["shopping", 0], spans["execute_tool pay", 0], spans["execute_tool pay", 2]
    assert len(collector.spans) == 5
    assert "5 spans were sent" in done.stderr
    assert {span.trace_id.hex() for span in collector.spans} == {trace_id(run.id)}
    assert root.parent_span_id == b""
    assert {one.parent_span_id for one in (chat, phase, failed)} == {root.span_id}
    assert paid.parent_span_id == phase.span_id
    written = {entry["seq"]: entry for entry in entries(run)}
    (request,), (answer,) = of_type(run, "llm.request"), of_type(run, "llm.response")
    assert chat.span_id.hex() == span_id(run.id, None, request["seq"])
    assert (chat.start_time_unix_nano, chat.end_time_unix_nano) == (request["ts_ns"], answer["ts_ns"])
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (written[1]["ts_ns"], written[len(written)]["ts_ns"])
    said = attributes(chat)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "openai"
    assert (said["gen_ai.request.model"], said["gen_ai.request.max_tokens"]) == ("gpt-4o-mini", 9)
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.response.model"] == answer["meta"]["model"]
    assert said["gen_ai.response.id"] == answer["meta"]["id"]
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.usage.input_tokens"] == answer["meta"]["usage"]["input_tokens"]
    assert said["gen_ai.usage.output_tokens"] == answer["meta"]["usage"]["output_tokens"]
    assert (said["server.address"], said["server.port"]) == ("127.0.0.1", provider.server_port)
    assert said["tracekit.cost_usd"] > 0
    assert (chat.kind, paid.kind) == (3, 1)  # client, internal
    assert attributes(paid)["gen_ai.operation.name"] == "execute_tool"
    assert attributes(paid)["gen_ai.tool.name"] == "pay"
    assert attributes(paid)["tracekit.side_effect"] == "irreversible"
    assert attributes(failed)["error.type"] == "ConnectionResetError"
    assert "the answer was lost" in failed.status.message
    assert [event.name for event in root.events] == ["decision"]
    assert not [
        name
        for span in collector.spans
        for name in attributes(span)
        if name.endswith(("messages", "arguments", "result"))
    ]


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def test_exporting_twice_gives_the_same_spans(tmp_path: Path) -> None:
    """Ids, names, times and attributes are those of the log: a backend that has them has nothing new."""
    with record("shop", store=tmp_path) as run:
        shopping("o-1")
    first, second = (
        [(one.name, one.context.trace_id, one.context.span_id, parent_of(one), one.start_time, one.end_time, dict(one.attributes or {}))
         for one in spans_of(run, store=tmp_path)]
        for _ in range(2)
    )  # fmt: skip
    assert first == second
    assert len({one[2] for one in first}) == len(first)


def test_what_was_said_is_sent_on_request_only(tmp_path: Path, provider: StubProvider, instrumented: None) -> None:
    """Messages, arguments and results are left out; `content` adds them in the conventions' form, without what was redacted."""
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k")
    secret = "sk-" + "proj-4f8a2b" * 4
    with record("shop", store=tmp_path, input="the canary") as run:
        client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": f"canary {secret}"}],
        )
        pay("canary")
        run.set_result("canary")
    bare = spans_of(run, store=tmp_path)
    assert "canary" not in " ".join(one.to_json() for one in bare)
    whole = named(spans_of(run, store=tmp_path, content=True))
    chat = dict(whole["chat gpt-4o-mini"].attributes or {})
    assert json.loads(str(chat["gen_ai.system_instructions"])) == [{"type": "text", "content": "be kind"}]
    (asked,) = json.loads(str(chat["gen_ai.input.messages"]))
    assert asked["role"] == "user"
    assert asked["parts"][0]["content"].startswith("canary ")
    (answered,) = json.loads(str(chat["gen_ai.output.messages"]))
    assert (answered["role"], answered["finish_reason"]) == ("assistant", "stop")
    assert answered["parts"][0]["content"]
    tool = dict(whole["execute_tool pay"].attributes or {})
    assert json.loads(str(tool["gen_ai.tool.call.arguments"])) == {"order": "canary"}
    assert json.loads(str(tool["gen_ai.tool.call.result"])) == "paid canary"
    assert secret not in " ".join(one.to_json() for one in whole.values())


def test_a_run_that_died_is_exported_as_far_as_it_came(tmp_path: Path) -> None:
    """What has no outcome is an error that says so, and ends with the log; the run has no end."""
    with record("shop", store=tmp_path / "a") as run:
        shopping("o-1")
    (call,) = of_type(run, "tool.call")
    path = cut(run, call["seq"], tmp_path / "b")
    spans = named(spans_of(path, store=tmp_path / "b"))
    assert set(spans) == {"invoke_agent shop", "shopping", "execute_tool pay"}
    assert dict(spans["execute_tool pay"].attributes or {})["tracekit.state"] == "cut off"
    assert spans["execute_tool pay"].status.description == "it has no outcome"
    assert dict(spans["invoke_agent shop"].attributes or {})["tracekit.state"] == "no end"
    assert spans["invoke_agent shop"].end_time == call["ts_ns"]


def test_a_run_belongs_to_the_trace_in_which_it_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By OpenTelemetry's current span, else by the TRACEPARENT of the process (W3C); else it is a trace of its own."""
    exporter = InMemorySpanExporter()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with (
        tracers.get_tracer("service").start_as_current_span("POST /orders") as around,
        record("shop", store=tmp_path) as run,
    ):
        pay("o-1")
    root = named(spans_of(run, store=tmp_path))["invoke_agent shop"]
    assert root.context.trace_id == around.get_span_context().trace_id
    assert parent_of(root) == around.get_span_context().span_id
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    with record("shop", store=tmp_path) as run:
        pay("o-1")
    root = named(spans_of(run, store=tmp_path))["invoke_agent shop"]
    assert f"{root.context.trace_id:032x}" == "ab" * 16
    assert f"{parent_of(root):016x}" == "cd" * 8
    monkeypatch.setenv("TRACEPARENT", f"00-{'0' * 32}-{'cd' * 8}-01")
    with record("shop", store=tmp_path) as run:
        pay("o-1")
    root = named(spans_of(run, store=tmp_path))["invoke_agent shop"]
    assert f"{root.context.trace_id:032x}" == trace_id(run.id)
    assert root.parent is None


def test_messages_are_linked_to_what_caused_them(tmp_path: Path) -> None:
    """Across runs, too: a task that was received links to the span of its sending, whose id is in the message's `traceparent`."""
    from tracekit.agents import extract, inject

    with record("planner", store=tmp_path) as sender, agent("planner"):
        message = send_task("worker", {"do": 1}, task="t1")
        headers = inject({}, message)
    with record("worker", store=tmp_path) as worker, agent("worker"):
        task = receive_task(extract(headers, {"do": 1}))
        respond(task, "done")
    spans = named(spans_of(sender, worker, store=tmp_path))
    sent, received = spans["task sent worker"], spans["task received planner"]
    assert (sent.kind.name, received.kind.name) == ("PRODUCER", "CONSUMER")
    (link,) = received.links
    assert (link.context.trace_id, link.context.span_id) == (sent.context.trace_id, sent.context.span_id)
    assert headers["traceparent"] == f"00-{sent.context.trace_id:032x}-{sent.context.span_id:016x}-01"
    assert received.context.trace_id != sent.context.trace_id


def test_a_collector_that_is_away_is_an_error(tmp_path: Path, collector: Collector) -> None:
    """The command says so and exits with 2: nobody takes it for exported."""
    with record("shop", store=tmp_path) as run:
        pay("o-1")
    collector.status = 400
    done = CliRunner().invoke(
        main, ["export", run.id, "--to", "otlp", "--endpoint", collector.url, "--store", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "2 spans could not be delivered: " in done.stderr
    assert len(done.stderr.splitlines()) == 2  # what the exporter logs is not printed beside that
    done = CliRunner().invoke(main, ["export", run.id, "--to", "otlp", "-o", "file", "--store", str(tmp_path)])
    assert (done.exit_code, "is sent, not written" in done.stderr) == (2, True)


def test_without_the_sdk_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry installed, exporting a run fails with an error that names the extra to install."""
    with record("shop", store=tmp_path) as run:
        pay("o-1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(RunStateError, match=r"pip install opentelemetry-sdk"):
        emit_spans(store=tmp_path)
    assert run.id


# -- live --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[SpanEmitter, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    emitter = emit_spans(store=tmp_path, processor=SimpleSpanProcessor(exporter), content=True)
    yield emitter, exporter
    emitter.stop(60)


def canonical(spans: Any) -> list[str]:
    return sorted(one.to_json() for one in spans)


def test_what_is_emitted_live_is_what_is_exported(
    tmp_path: Path, live: tuple[SpanEmitter, InMemorySpanExporter], provider: StubProvider, instrumented: None
) -> None:
    """Each span as it ends, the same as afterwards, content included; the run's own when that has ended."""
    emitter, exporter = live
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k")
    with record("shop", store=tmp_path, agent="clerk") as run:
        client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hello " * 400}])
        shopping("o-1")
        with ThreadPoolExecutor(2) as pool:
            assert [*pool.map(pay, ["o-2", "o-3"])]
    assert emitter.flush(60)
    assert canonical(exporter.get_finished_spans()) == canonical(spans_of(run, store=tmp_path, content=True))
    with record("second", store=tmp_path) as run:
        pay("o-1")
        while not exporter.get_finished_spans()[-1].name.startswith("execute_tool"):
            time.sleep(0.01)  # the span is there while the run goes on
    assert emitter.flush(60)
    assert exporter.get_finished_spans()[-1].name == "invoke_agent second"


def test_a_run_that_was_open_before_is_emitted_and_others_are_not(tmp_path: Path) -> None:
    """Old runs, and those that another process records, are none of its business."""
    with record("old", store=tmp_path):
        pay("o-1")
    exporter = InMemorySpanExporter()
    with record("open", store=tmp_path):
        pay("o-1")
        emitter = emit_spans(store=tmp_path, processor=SimpleSpanProcessor(exporter))
    program = "from tracekit import record\nwith record('other'): pass"
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TRACEKIT_DIR": str(tmp_path)}, check=True, timeout=60
    )
    assert emitter.flush(60)
    emitter.stop(60)
    assert [one.name for one in exporter.get_finished_spans()] == ["execute_tool pay", "invoke_agent open"]


def test_a_child_process_that_was_killed_is_emitted_as_far_as_it_came(
    tmp_path: Path, live: tuple[SpanEmitter, InMemorySpanExporter]
) -> None:
    """Once its run has ended; the same as is exported afterwards."""
    emitter, exporter = live
    program = f"import os, signal\n{CHILD}\nos.kill(os.getpid(), signal.SIGKILL)"
    with record("shop", store=tmp_path) as run:
        subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert emitter.flush(60)
    spans = named([*exporter.get_finished_spans()])
    killed = next(span for name, span in spans.items() if name.startswith("process:"))
    assert dict(killed.attributes or {})["tracekit.state"] == "no end"
    assert parent_of(spans["execute_tool inside"]) == killed.context.span_id
    assert canonical(exporter.get_finished_spans()) == canonical(spans_of(run, store=tmp_path, content=True))


def test_a_replay_beside_it_sends_nothing_and_fails_as_soon(
    tmp_path: Path, live: tuple[SpanEmitter, InMemorySpanExporter]
) -> None:
    """A replay is no run: nothing of it is emitted; one that is stuck is known to be, though the emitter's thread goes on."""
    emitter, exporter = live
    ready = threading.Event()

    @traced_tool(side_effect="read_only")
    def tell() -> None:
        ready.set()

    def program() -> None:
        thread = threading.Thread(target=ready.wait)
        thread.start()
        tell()
        thread.join()

    with record("shop", store=tmp_path) as run:
        program()
    assert emitter.flush(60)
    count = len(exporter.get_finished_spans())
    ready.clear()
    with pytest.raises(tracekit.ReplayError), tracekit.replay(run, store=tmp_path):
        program()
    ready.set()
    assert emitter.flush(60)
    assert len(exporter.get_finished_spans()) == count == 2


def test_the_recording_is_the_same_with_it(tmp_path: Path, live: tuple[SpanEmitter, InMemorySpanExporter]) -> None:
    """No entry more and none less: what reads along is no part of the run."""

    def program() -> None:
        shopping("o-1")
        asyncio.run(asyncio.sleep(0))

    def kinds(store: Path) -> list[str]:
        with record("shop", store=store) as run:
            program()
        return [entry["type"] for entry in entries(run)]

    assert kinds(tmp_path) == kinds(tmp_path / "without")


class Slow(SpanProcessor):
    """A processor that never comes back, or fails."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.go = threading.Event()
        self.seen = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.seen += 1
        if self.fails:
            raise RuntimeError("no")
        self.go.wait(60)

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize("fails", [True, False])
def test_a_processor_that_fails_or_hangs_reaches_nobody(
    tmp_path: Path, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The program goes on, its trace is whole; a failure is logged once for a run, and the next run is emitted again."""
    slow = Slow(fails=fails)
    emitter = emit_spans(store=tmp_path, processor=slow)
    for _ in range(2):
        with record("shop", store=tmp_path) as run:
            shopping("o-1")
        assert of_type(run, "run.completed")
        assert emitter.flush(60 if fails else 0) is fails
    if fails:
        assert slow.seen == 2
        assert [one.name for one in caplog.records if one.name == "tracekit.otel"] == ["tracekit.otel"] * 2
    slow.go.set()
    emitter.stop(60)


def test_a_collector_that_does_not_answer_holds_nothing_up(tmp_path: Path, collector: Collector) -> None:
    """Neither a run nor the end of the process: what a collector has not taken in time is left, and the trace is there."""
    collector.hold.clear()
    program = """
import time
from tracekit import record, traced_tool
from tracekit.otel import emit_spans

@traced_tool(side_effect="read_only")
def look(): return 1

emitter = emit_spans()
with record("shop"):
    look()
print("recorded", flush=True)
emitter.stop(0.2)
"""
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (0, "recorded\n"), done.stderr
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    assert of_type(str(path), "run.completed")


PARENT = """
import subprocess, sys
from tracekit import record, traced_tool
from tracekit.otel import emit_spans

@traced_tool(side_effect="read_only")
def look(order): return order

emit_spans(exit_timeout=100)
with record("shop"):
    look("a")
    subprocess.run([sys.executable, "child.py"], check=True)
"""
CHILD = """
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def inside(order): return order

inside("b")
"""


def test_a_process_emits_what_it_has_at_its_end_with_its_children(tmp_path: Path, collector: Collector) -> None:
    """By the exporter of the SDK, at the address of its variables; a child process's spans lie below what started it."""
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "child.py").write_text("import tracekit\n" + CHILD)
    environment = {**os.environ, "TRACEKIT_DIR": str(tmp_path / "store"), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    environment["OTEL_SERVICE_NAME"] = "agents"
    done = subprocess.run(
        [sys.executable, "parent.py"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spans = {span.name: span for span in collector.spans}
    (resource,) = {
        one.value.string_value
        for request in collector.requests
        for found in request.resource_spans
        for one in found.resource.attributes
        if one.key == "service.name"
    }
    assert resource == "agents"
    process = spans["process:child.py#1"]
    assert spans["execute_tool inside"].parent_span_id == process.span_id
    assert process.trace_id == spans["invoke_agent shop"].trace_id
    assert process.parent_span_id == spans["process child.py"].span_id
    assert spans["process child.py"].parent_span_id == spans["invoke_agent shop"].span_id
    (own,) = [path for path in (tmp_path / "store" / "runs").glob("*.jsonl") if path.stem.count(".") == 0]
    exported = {
        (one.name, f"{one.context.span_id:016x}", f"{parent_of(one) or 0:016x}")
        for one in spans_of(own, store=tmp_path / "store")
    }
    assert {
        (span.name, span.span_id.hex(), span.parent_span_id.hex() or "0" * 16) for span in collector.spans
    } == exported


def test_an_unmodified_program_is_emitted_and_replays(tmp_path: Path, collector: Collector) -> None:
    """`tracekit run --spans`: the collector has what the program called when it has ended; its replay sends nothing, and is exact."""
    place = Place(tmp_path)
    program = "import random, time\nfrom tracekit import traced_tool\n" + CHILD.replace(
        "order\n\ninside", "order\n\nprint(random.random(), time.time())\ninside"
    )
    place.program(program)
    done = place.cli("run", "--spans", "--name", "agent", "agent.py", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert done.returncode == 0, done.stderr
    assert {span.name for span in collector.spans} == {"execute_tool inside", "invoke_agent agent"}
    count = len(collector.requests)
    again = place.cli("replay", place.run, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert len(collector.requests) == count


def test_the_batch_processor_of_the_sdk_takes_them(tmp_path: Path) -> None:
    """The usual processor, around any exporter."""
    exporter = InMemorySpanExporter()
    emitter = emit_spans(store=tmp_path, processor=BatchSpanProcessor(exporter))
    with record("shop", store=tmp_path):
        shopping("o-1")
    emitter.stop(60)
    assert {one.name for one in exporter.get_finished_spans()} == {"invoke_agent shop", "shopping", "execute_tool pay"}


@traced_tool(side_effect="irreversible", timeout_ms=20)
async def transfer(order: str) -> None:
    await asyncio.Event().wait()


def test_a_time_limit_is_an_error_of_its_span(tmp_path: Path) -> None:
    """The span of a tool that ran into its time limit has the status ERROR, and the full name of the exception as its error type."""
    with record("shop", store=tmp_path) as run, pytest.raises(StepTimeoutError):
        asyncio.run(transfer("o-17"))
    span = named(spans_of(run, store=tmp_path))["execute_tool transfer"]
    assert dict(span.attributes or {})["error.type"] == "tracekit.errors.StepTimeoutError"
    assert span.status.status_code.name == "ERROR"


def test_the_program_does_not_see_the_thread() -> None:
    """``threading`` lists what the program has started, also after an exporter has asked which thread it runs in."""
    asked: list[str] = []

    class Asks(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            asked.append(threading.current_thread().name)
            return super().export(spans)

    @traced_tool(side_effect="read_only")
    def look(x: int) -> int:
        return x

    emitter = emit_spans(processor=SimpleSpanProcessor(Asks()))
    try:
        before = threading.enumerate()
        with record():
            look(1)
        assert emitter.flush(60)
        assert asked
        assert {*threading.enumerate()} <= {*before}  # those of earlier tests may end meanwhile
        assert not any("tracekit" in thread.name for thread in before)
    finally:
        emitter.stop(60)
