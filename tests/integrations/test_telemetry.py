"""Telemetry, by the code that sends it: it goes out while a run is recorded, is no part of that, and is not sent in a replay."""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import requests
import sentry_sdk
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult

import tracekit
from tests.support.place import PACKAGES, Place
from tests.support.stub_provider import StubProvider
from tests.support.terminal import on_a_terminal
from tests.support.web import Roots, Servers
from tracekit.integration import Integration, Telemetry, register

#: An installed package: what sends, what asks for something, what wraps calls of the program.
MODULES = {
    "sender": """
import asyncio, http.client, os, queue, socket, subprocess, sys, threading, time, urllib.request

def by_requests(roots):
    import requests
    requests.post(roots.http + "/telemetry", json=[1], timeout=60)

def by_requests_with_tls(roots):
    import requests
    requests.post(roots.https + "/telemetry", json=[1], verify=roots.ca, timeout=60)

def by_urllib3_with_tls(roots):
    import urllib3
    with urllib3.PoolManager(ca_certs=roots.ca) as pool:
        pool.request("POST", roots.https + "/telemetry", body=b"x", retries=False)

def by_urllib(roots):
    urllib.request.urlopen(roots.http + "/telemetry", b"x", timeout=60).read()

def by_http_client(roots):
    connection = http.client.HTTPConnection("localhost", int(roots.http.rpartition(":")[2]), timeout=60)
    connection.connect()
    connection.request("POST", "/telemetry", b"x")
    connection.getresponse().read()
    connection.close()

def by_httpx(roots):
    import httpx
    httpx.post(roots.http + "/telemetry", json=[1])

def by_httpx_in_a_loop(roots):
    import httpx
    async def send():
        async with httpx.AsyncClient() as client:
            await client.post(roots.http + "/telemetry", json=[1])
    asyncio.run(send())

def by_aiohttp(roots):
    import aiohttp
    async def send():
        async with aiohttp.ClientSession() as session, session.post(roots.http + "/telemetry", json=[1]) as response:
            await response.read()
    asyncio.run(send())

def by_websockets(roots):
    from websockets.sync.client import connect
    with connect(roots.http.replace("http", "ws") + "/telemetry", open_timeout=60) as found:
        found.send("x")

def by_a_socket(roots):
    with socket.create_connection(("localhost", int(roots.http.rpartition(":")[2])), 5) as found:
        found.sendall(b"POST /telemetry HTTP/1.1\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        while found.recv(4096):
            pass

def by_a_stream(roots):
    async def send():
        reader, writer = await asyncio.open_connection("localhost", int(roots.http.rpartition(":")[2]))
        writer.write(b"POST /telemetry HTTP/1.1\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
    asyncio.run(send())

def by_a_datagram(roots):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.sendto(b"x", ("127.0.0.1", int(roots.http.rpartition(":")[2])))

def by_grpc(roots):
    import grpc
    with grpc.insecure_channel(f"127.0.0.1:{roots.closed}") as channel:
        channel.unary_unary("/a.B/C", response_deserializer=len)(b"x", timeout=0.2)

def by_a_process(roots):
    subprocess.run([sys.executable, "-Sc", "import sys; open(sys.argv[1], 'a').write('x')", roots.ca + ".sent"], check=True)

def by_a_shell(roots):
    os.system(f"echo x >> {roots.ca}.sent")

class Worker:
    def __init__(self, send):
        self.send, self.items, self.errors = send, queue.Queue(), []
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        while (roots := self.items.get()) is not None:
            try:
                self.send(roots)
            except Exception as error:
                self.errors.append(error)
            self.items.task_done()

def after_the_main_thread(roots):
    by_urllib(roots)
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    threading.Event().wait(0.5)

def guarded(send, roots):
    try:
        send(roots)
    except Exception as error:
        return error

def export(exporter, roots):
    return guarded(exporter, roots)
""",
    "reader": """
import requests

def prompt(roots):
    return requests.get(roots.http + "/echo", timeout=60).json()["path"]
""",
    "wrapper": """
def observed(call):
    def observing(*args, **options):
        return call(*args, **options)
    return observing
""",
    "client": """
import queue, threading, time
from . import sender

class Client:
    # What is handed to it is sent a moment later, by a thread that is named in the table.
    def __init__(self, roots):
        self.roots, self.items, self.sent = roots, queue.Queue(), threading.Event()
        self.thread = threading.Thread(target=sender.Worker(self.send).work, daemon=True)
        self.worker = self.thread._target.__self__
        self.thread.start()

    def send(self, roots):
        time.sleep(0.02)
        sender.by_requests(roots)
        self.sent.set()

    def capture(self):
        self.sent.clear()
        self.worker.items.put(self.roots)

    def flush(self, how):
        if how == "join":
            self.worker.items.join()
        elif how == "wait":
            self.sent.wait()
        elif how == "wait a while":
            assert self.sent.wait(30)
        elif how == "sleep":
            while not self.sent.is_set():
                time.sleep(0.003)
        elif how == "poll":
            until = time.monotonic() + 30
            while not self.sent.wait(0.003) and time.monotonic() < until:
                pass

    def close(self, timeout):
        self.worker.items.put(None)
        self.thread.join(timeout)
""",
}
TRANSPORTS = [name for line in MODULES["sender"].splitlines() if (name := line[4:].partition("(")[0]).startswith("by_")]
INTEGRATION = Integration(
    "beacon",
    telemetry=[Telemetry("Beacon", ["beacon.sender"], packages=["beacon"], exporting=["beacon.sender:export"])],
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instrumented: None) -> Iterator[Any]:
    """The package, and its integration."""
    directory = tmp_path / "site-packages" / "beacon"
    directory.mkdir(parents=True)
    (directory / "__init__.py").touch()
    for name, text in MODULES.items():
        (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(directory.parent)
    register(INTEGRATION)
    found = importlib.import_module("beacon")
    for name in MODULES:
        importlib.import_module(f"beacon.{name}")
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "beacon"]:
        del sys.modules[name]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers(tmp_path)
    yield found
    found.stop()


def entries(run: tracekit.Run, *beginnings: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in Path(run.path).read_bytes().splitlines()]
    return [one for one in lines if one["type"].startswith(beginnings)]


STEPS = ("http.request", "llm.request", "process.", "websocket.")


def recorded(program: Callable[[], Any]) -> tuple[tracekit.Run, Any]:
    """Nothing is said to be lacking."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tracekit.record() as run:
            saw = program()
    return run, saw


def replayed(run: tracekit.Run, program: Callable[[], Any]) -> Any:
    with tracekit.replay(run.id) as session:
        saw = program()
    assert session.report.exact, session.report.verdict.line
    return saw


def sent(servers: Servers) -> int:
    """How much telemetry has come: requests, and what processes have written."""
    written = Path(servers.roots.ca + ".sent")
    return servers.hits + (written.stat().st_size if written.exists() else 0)


def in_line(
    beacon: Any, send: Callable[[Roots], None], roots: Roots
) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
    return lambda: [found] if (found := beacon.sender.guarded(send, roots)) is not None else [], lambda: None


def in_thread(
    beacon: Any, send: Callable[[Roots], None], roots: Roots, *, early: bool = True
) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
    worker = beacon.sender.Worker(send)
    if early:
        worker.thread.start()

    def flush() -> list[Any]:
        if not worker.thread.ident:
            worker.thread.start()
        worker.items.put(roots)
        worker.items.join()
        found, worker.errors[:] = [*worker.errors], []
        return found

    def end() -> None:
        worker.items.put(None)
        worker.thread.join()

    return flush, end


WHERE = {
    "in the run's own line": in_line,
    "in a thread from before the run": in_thread,
    "in a thread that the run starts": lambda *given: in_thread(*given, early=False),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_over_every_transport(transport: str, where: str, package: Any, servers: Servers) -> None:
    """It goes out while recording, makes no step, and is in the list as whose it is; a replay sends nothing, is exact, and the sender
    sees an empty answer or that nobody is there."""
    if "grpc" in transport:
        pytest.importorskip("grpc")
    flush, end = WHERE[where](package, getattr(package.sender, transport), servers.roots)

    def program() -> str:
        flush()
        return requests.get(servers.roots.http + "/echo", timeout=60).json()["path"]

    before = sent(servers)
    run, saw = recorded(program)
    if "datagram" not in transport and "grpc" not in transport:
        assert sent(servers) > before + 2  # the program's request, and its connection
    assert [one["name"].partition(" ")[0] for one in entries(run, *STEPS)] == ["GET"]
    crossed = [one["input"] for one in entries(run, "boundary") if one["name"] != "input"]
    assert {(one["status"], one.get("telemetry")) for one in crossed} == {("ambient", "Beacon")}
    reached = sent(servers)
    errors: list[Any] = []

    def again() -> str:
        errors.extend(flush())
        return requests.get(servers.roots.http + "/echo", timeout=60).json()["path"]

    assert replayed(run, again) == saw
    assert sent(servers) == reached
    assert all(isinstance(error, OSError) for error in errors), errors
    end()


def test_what_it_asks_for_belongs_to_the_run(package: Any, servers: Servers) -> None:
    """A prompt that a telemetry package fetches is an input of the program: a step, which a replay answers."""

    def program() -> Any:
        return package.reader.prompt(servers.roots)

    run, saw = recorded(program)
    assert [one["name"].partition(" ")[0] for one in entries(run, *STEPS)] == ["GET"]
    servers.stop()
    assert replayed(run, program) == saw == "/echo"


def test_when_it_asks_again_belongs_to_the_run(instrumented: None, servers: Servers) -> None:
    """LangSmith asks for a prompt again, in a thread of its own, when the one that it keeps is too old: a replay, in which no time passes
    in a sleep, has it ask as often, and at the same places."""
    from langsmith.prompt_cache import PromptCache

    def program() -> Any:
        asked: list[int] = []

        def ask() -> int:
            requests.get(servers.roots.http + "/echo", timeout=60).raise_for_status()
            asked.append(len(asked))
            return asked[-1]

        cache = PromptCache(ttl_seconds=0.05, refresh_interval_seconds=0.02)
        cache.set("prompt", ask(), ask)
        seen = [0]
        while seen[-1] < 3:
            time.sleep(0.03)
            seen.append(cache.get("prompt", ask))
        cache.shutdown()
        return seen

    run, saw = recorded(program)
    servers.stop()
    assert replayed(run, program) == saw


def test_ids_that_it_makes_belong_to_the_run(instrumented: None) -> None:
    """The program may print or send the id of its trace, so a replay returns the recorded one. If the telemetry makes no id
    in the replay, because it has been switched off, the replay is exact, too."""
    from langsmith import RunTree  # a third of a second: for the process that runs this test alone

    on = True

    def program() -> Any:
        return str(RunTree(name="turn", inputs={}).id) if on else "none", str(uuid.uuid4())

    run, saw = recorded(program)
    assert replayed(run, program) == saw
    on = False
    assert replayed(run, program) == ("none", saw[1])


def test_what_it_wraps_belongs_to_the_run(package: Any, servers: Servers) -> None:
    """Telemetry that stands around a call, of the program's own or of a library, makes none of that."""
    post = package.wrapper.observed(requests.post)

    def program() -> Any:
        found = post(servers.roots.http + "/echo", json=1, timeout=60).json()["body"]
        return found, package.wrapper.observed(lambda: httpx.get(servers.roots.http + "/echo").json()["path"])()

    run, saw = recorded(program)
    assert len(entries(run, *STEPS)) == 2
    servers.stop()
    assert replayed(run, program) == saw


def test_what_it_calls_of_the_users(package: Any, servers: Servers) -> None:
    """A function of the user's own: in the thread of the package it is telemetry, in the run's own line it is the program's, unless it is
    called as an exporter: then it is telemetry in both."""

    def export(roots: Roots) -> None:
        requests.post(roots.http + "/mine", json=1, timeout=60)

    flush, end = in_thread(package, export, servers.roots)
    run, errors = recorded(flush)
    assert (errors, servers.plain.hits["/mine"], entries(run, *STEPS)) == ([], 1, [])
    assert (replayed(run, flush), servers.plain.hits["/mine"]) == ([], 1)
    end()
    run, errors = recorded(lambda: package.sender.guarded(export, servers.roots))
    assert len(entries(run, *STEPS)) == 1
    assert replayed(run, lambda: package.sender.guarded(export, servers.roots)) is errors is None
    assert servers.plain.hits["/mine"] == 2

    def in_its_line() -> list[Any]:
        return [package.sender.export(lambda roots: wrapped(export, roots), servers.roots), *in_a_wrapper()]

    def in_a_wrapper() -> list[Any]:
        return [package.wrapper.observed(package.reader.prompt)(servers.roots)]

    def wrapped(call: Callable[[Roots], None], roots: Roots) -> None:
        package.wrapper.observed(call)(roots)

    run, saw = recorded(in_its_line)
    assert (saw, servers.plain.hits["/mine"]) == ([None, "/echo"], 3)
    assert [one["name"].partition(" ")[0] for one in entries(run, *STEPS)] == ["GET"]
    assert replayed(run, in_its_line) == saw
    assert servers.plain.hits["/mine"] == 3


def test_an_exporter_of_the_programs_own(servers: Servers, instrumented: None) -> None:
    """Whoever calls it, the thread that sends what has gathered or the line of the program that flushes it or ends a span, what it sends
    is telemetry: which of them does is by chance."""

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            requests.post(servers.roots.http + "/mine", json=[span.name for span in spans], timeout=60)
            return SpanExportResult.SUCCESS

    def program() -> str:
        with traces.get_tracer("t").start_as_current_span("work"):
            found = requests.get(servers.roots.http + "/echo", timeout=60).json()["path"]
        assert traces.force_flush()
        return str(found)

    for processor in (SimpleSpanProcessor(Exporter()), BatchSpanProcessor(Exporter())):
        traces = TracerProvider()
        traces.add_span_processor(processor)
        before = servers.plain.hits["/mine"]
        run, saw = recorded(program)
        assert servers.plain.hits["/mine"] == before + 1
        assert [one["name"].partition(" ")[0] for one in entries(run, *STEPS)] == ["GET"]
        assert replayed(run, program) == saw
        assert servers.plain.hits["/mine"] == before + 1
        traces.shutdown()


@pytest.mark.parametrize("how", ["join", "wait", "wait a while", "poll", "sleep"])
def test_it_may_wait_for_its_threads(how: str, package: Any, servers: Servers) -> None:
    """A flush in the run's own line waits for a thread that is no part of the run: that is no event, and a replay that has nothing else
    to do is not taken for one that can't go on."""
    clients: list[Any] = []

    def program() -> Any:
        client = package.client.Client(servers.roots)
        clients.append(client)
        seen = []
        for number in range(3):
            client.capture()
            client.flush(how)
            seen.append(requests.post(servers.roots.http + "/echo", data=str(number), timeout=60).json()["body"])
        client.close(30 if how == "wait" else None)
        return seen

    run, saw = recorded(program)
    assert servers.plain.hits["/telemetry"] == 3
    assert replayed(run, program) == saw == ["0", "1", "2"]
    assert (servers.plain.hits["/telemetry"], [one.worker.errors for one in clients]) == (3, [[], []])


def test_a_wrapped_probe_is_still_one(package: Any, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where telemetry wraps the start of processes, the interpreter's own questions are no steps, and what the program starts is one."""
    monkeypatch.setattr(subprocess.Popen, "__init__", package.wrapper.observed(subprocess.Popen.__init__))

    def program() -> str:
        platform._uname_cache = None  # type: ignore[attr-defined]
        assert platform.uname().processor is not None
        return subprocess.run(["echo", "said"], capture_output=True, text=True, check=True).stdout

    run, saw = recorded(program)
    assert [one["name"] for one in entries(run, "process.start")] == ["echo"]
    assert replayed(run, program) == saw == "said\n"


def test_a_model_call_is_none(package: Any, provider: StubProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a telemetry variable points to the gateway's own origin, nor by who makes it; nor is anything else that is asked
    of the gateway."""
    for name in ("LANGSMITH_ENDPOINT", "LANGFUSE_HOST", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.setenv(name, provider.url)
    ask: Any = {"model": "gpt-5", "messages": [{"role": "user", "content": "say"}]}

    def program() -> Any:
        with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k") as client:
            said = client.chat.completions.create(**ask).choices[0].message.content
            models = [one.id for one in client.models.list()]
        judged: list[Any] = []
        package.sender.guarded(lambda _: judged.append(client_of(provider).chat.completions.create(**ask).id), None)
        requests.post(f"{provider.url}/v1/traces", json=[], timeout=60)
        return said, models, judged

    run, saw = recorded(program)
    kinds = [one["type"] for one in entries(run, *STEPS)]
    assert kinds == ["llm.request", "http.request", "llm.request"]
    assert provider.requests["/v1/traces"] == 1
    assert replayed(run, program) == saw
    assert provider.requests["/v1/traces"] == 1


def client_of(provider: StubProvider) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k")


def test_without_instrument(tmp_path: Path, package: Any, servers: Servers) -> None:
    """Where no library is captured, its connections are known for telemetry as well."""
    tracekit.uninstrument()
    register(INTEGRATION)
    flush, end = in_thread(package, package.sender.by_requests_with_tls, servers.roots)
    run, errors = recorded(flush)
    crossed = [one["input"] for one in entries(run, "boundary")]
    assert crossed
    assert {(one["status"], one.get("telemetry")) for one in crossed} == {("ambient", "Beacon")}
    reached = servers.hits
    (error,) = replayed(run, flush)
    assert isinstance(error, requests.ConnectionError)
    assert (errors, servers.hits) == ([], reached)
    end()


def test_real_packages(servers: Servers, instrumented: None) -> None:
    """LangSmith's client, OTLP exporters with and without a thread, and Sentry's, from before the run: they send while it is recorded, and
    in a replay their flushes return with nothing sent."""
    from langsmith import Client, RunTree

    smith = Client(api_url=servers.roots.http, api_key="k")
    traces = TracerProvider()
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(servers.roots.http + "/batch")))
    traces.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(servers.roots.http + "/at-once")))
    sentry = sentry_sdk.Client(servers.roots.http.replace("://", "://key@") + "/1", default_integrations=False)

    def program() -> Any:
        with traces.get_tracer("t").start_as_current_span("work"):
            RunTree(name="work", inputs={"n": 1}, ls_client=smith).post()
            saw = requests.get(servers.roots.http + "/echo", timeout=60).json()["path"]
        sentry.capture_event({"message": "done"})
        for flush in (smith.flush, traces.force_flush, sentry.flush):
            flush()
        return saw

    run, saw = recorded(program)
    hits = servers.plain.hits
    assert min(hits[path] for path in ("/runs/multipart", "/batch", "/at-once", "/api/1/envelope/")) > 0
    assert len(entries(run, *STEPS)) == 1
    named = {one["input"]["telemetry"] for one in entries(run, "boundary") if one["input"]["status"] == "ambient"}
    assert named == {"LangSmith", "OpenTelemetry", "Sentry"}
    reached = servers.hits
    assert replayed(run, program) == saw
    assert servers.hits == reached
    traces.shutdown()
    sentry.close()
    smith.cleanup()


#: A program whose telemetry goes on when its main thread has ended.
PROGRAM = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from beacon import sender
from tracekit import traced_tool
from tracekit.integration import Integration, Telemetry, register

register(Integration("beacon", telemetry=[Telemetry("Beacon", ["beacon.sender"], packages=["beacon"])]))

@traced_tool(side_effect="read_only")
def look():
    return "seen"

class Roots:
    http = sys.argv[1]

worker = threading.Thread(target=sender.after_the_main_thread, args=(Roots,))
worker.start()
with ThreadPoolExecutor(1) as pool:
    pool.submit(look).result()
print(look())
"""


def test_after_the_main_thread(tmp_path: Path, package: Any, servers: Servers) -> None:
    """A thread that sends what is left when the program has ended: a replay waits until it is done, and sends nothing; ``show`` says whose
    telemetry is left out."""
    place = Place(tmp_path)
    place.program(PROGRAM)
    path = os.pathsep.join([*PACKAGES, str(tmp_path / "site-packages")])
    done = place.cli("run", "agent.py", servers.roots.http, PYTHONPATH=path)
    assert (done.returncode, done.stdout, servers.plain.hits["/telemetry"]) == (0, "seen\n", 1), done.stderr
    shown, _ = on_a_terminal("show", "last", "--store", str(place.store))
    assert "ambient: this is telemetry of Beacon; it is left out" in shown
    again = place.cli("replay", "--isolate=off", "last", PYTHONPATH=path)
    assert (again.returncode, again.stdout, servers.plain.hits["/telemetry"]) == (0, "seen\n", 1), again.stderr
