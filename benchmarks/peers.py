"""The same calls through tracekit and through tools of its kind: overhead, what survives a kill, replay, size, import.

Run ``python -m benchmarks.peers`` after ``pip install -r benchmarks/peers.txt`` (``--only NAME``, ``--quick``; ``--write`` renews
``docs/reference/peers.md`` and its plot). Each tool is set up as its documentation says for production, with content captured where it
can be, in a process of its own; the model is an HTTP server on loopback, and so is whatever a tool sends its data to, which takes
it at once. So what a tool would wait for in a network is left out, in its favour. The bare program runs first in the same process.
What is counted is CPU time, that of flushing at the end included.
"""

from __future__ import annotations

import argparse
import base64
import gc
import gzip
import json
import os
import platform
import re
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PLOT = DOCS / "reference/peers.md", DOCS / "images/peers.svg"
TEXT = "The invoice of October for ACME, three items, to be paid within thirty days. "
ASKED, ANSWERED = TEXT * 13, TEXT * 18
TURNS, MARKS = 200, 20
Tool = Callable[..., Any]


# -- the model, and where tools send their data -------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Answers chats, and takes whatever else is posted; ``received`` is that, decompressed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked = 0
        self.received: list[bytes] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.endswith("/chat/completions"):
            self.server.received.append(
                gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            )
            self._answer(b"{}")
            return
        self.server.asked += 1
        message = {"role": "assistant", "content": f"{self.server.asked}. {ANSWERED}"}
        usage = {"prompt_tokens": 230, "completion_tokens": 310, "total_tokens": 540}
        answer = {
            "id": f"chatcmpl-{self.server.asked}", "object": "chat.completion", "created": 1, "model": json.loads(body)["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage,
        }  # fmt: skip
        self._answer(json.dumps(answer).encode())

    def do_GET(self) -> None:
        self._answer(b"{}")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


# -- the tools ----------------------------------------------------------------------------------------------------------


class Peer:
    """One tool, set up in ``directory`` to record what goes to the model at ``url``."""

    #: What is named in the table, the distributions whose versions are shown, and what a program imports of it.
    title, packages, imports = "", (), ""
    #: Whether it can answer the program from its record.
    replays = False
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url

    def client(self) -> Any:
        from openai import OpenAI

        return OpenAI(api_key="none", base_url=f"{self.url}/v1", max_retries=0)

    @contextmanager
    def recording(self) -> Iterator[None]:
        yield

    def replaying(self) -> Any:
        raise NotImplementedError

    def tool(self, function: Tool) -> Tool | None:
        """The function as a recorded tool; ``None`` where the tool has no such thing."""
        return None

    def step(self, call: Tool) -> Tool:
        """A call of the model, as the program has to write it."""
        return call

    def run(self, program: Callable[[], Any]) -> Any:
        return program()


class Tracekit(Peer):
    title, packages, imports = "tracekit", ("tracekit-replay",), "from tracekit import record, replay, traced_tool"
    replays = True

    @contextmanager
    def recording(self) -> Iterator[None]:
        import tracekit

        tracekit.instrument()
        with tracekit.record("peers", store=self.directory):
            yield

    def replaying(self) -> Any:
        import tracekit

        tracekit.instrument()
        return tracekit.replay("last", store=self.directory)

    def tool(self, function: Tool) -> Tool | None:
        import tracekit

        return tracekit.traced_tool(side_effect="read_only")(function)


class OpenTelemetry(Peer):
    """The SDK with its exporter for OTLP over HTTP, and the contributed instrumentation of openai."""

    packages = ("opentelemetry-sdk", "opentelemetry-instrumentation-openai-v2")
    imports = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter; "
        "from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor"
    )
    environment = MappingProxyType({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"})
    processor = ""

    @contextmanager
    def recording(self) -> Iterator[None]:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider, export

        provider = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=f"{self.url}/v1/traces")
        provider.add_span_processor(getattr(export, self.processor)(exporter))
        trace.set_tracer_provider(provider)
        self.instrument(provider)
        with trace.get_tracer("peers").start_as_current_span("run"):
            yield
        provider.shutdown()

    def instrument(self, provider: Any) -> None:
        from opentelemetry._logs import set_logger_provider
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
        from opentelemetry.sdk import _logs
        from opentelemetry.sdk._logs import export

        # Prompts and answers are events of the log.
        logs = _logs.LoggerProvider()
        processor = getattr(export, self.processor.replace("Span", "LogRecord"))
        logs.add_log_record_processor(processor(OTLPLogExporter(endpoint=f"{self.url}/v1/logs")))
        set_logger_provider(logs)
        OpenAIInstrumentor().instrument(tracer_provider=provider, logger_provider=logs)

    def tool(self, function: Tool) -> Tool | None:
        from opentelemetry import trace

        tracer = trace.get_tracer("peers")

        def recorded(**arguments: Any) -> Any:
            with tracer.start_as_current_span(f"execute_tool {function.__name__}") as span:
                span.set_attribute("gen_ai.tool.call.arguments", json.dumps(arguments))
                result = function(**arguments)
                span.set_attribute("gen_ai.tool.call.result", json.dumps(result))
                return result

        return recorded


class OpenTelemetryBatch(OpenTelemetry):
    title, processor = "OpenTelemetry, batches", "BatchSpanProcessor"


class OpenTelemetrySync(OpenTelemetry):
    title, processor = "OpenTelemetry, each span", "SimpleSpanProcessor"


class OpenInference(OpenTelemetryBatch):
    title, packages = "OpenInference", ("openinference-instrumentation-openai",)
    imports = OpenTelemetry.imports.replace(
        "opentelemetry.instrumentation.openai_v2", "openinference.instrumentation.openai"
    )

    def instrument(self, provider: Any) -> None:
        from openinference.instrumentation.openai import OpenAIInstrumentor

        OpenAIInstrumentor().instrument(tracer_provider=provider)


class Langfuse(Peer):
    title, packages = "Langfuse", ("langfuse",)
    imports = "from langfuse import observe; from langfuse.openai import OpenAI"
    observed = False

    def client(self) -> Any:
        if not self.observed:
            return super().client()
        from langfuse.openai import OpenAI

        return OpenAI(api_key="none", base_url=f"{self.url}/v1", max_retries=0)

    @contextmanager
    def recording(self) -> Iterator[None]:
        import langfuse

        self.observed = True
        client = langfuse.Langfuse(public_key="pk-lf-1", secret_key="sk-lf-1", base_url=self.url)
        with client.start_as_current_observation(name="run"):
            yield
        client.shutdown()

    def tool(self, function: Tool) -> Tool | None:
        from langfuse import observe

        return observe(as_type="tool")(function)  # type: ignore[no-any-return]


class MLflow(Peer):
    """Traces go to a collector, as its documentation has it for production beside a tracking server."""

    title, packages, imports = "MLflow, to a collector", ("mlflow",), "import mlflow"

    @contextmanager
    def recording(self) -> Iterator[None]:
        os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{self.url}/v1/traces"
        os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{self.directory}/mlflow.db")
        mlflow.openai.autolog()
        yield
        from opentelemetry import trace

        mlflow.flush_trace_async_logging()
        provider = trace.get_tracer_provider()
        if hasattr(provider, "force_flush"):
            provider.force_flush()

    def tool(self, function: Tool) -> Tool | None:
        import mlflow

        return mlflow.trace(span_type="TOOL")(function)  # type: ignore[no-any-return]


class VCR(Peer):
    title, packages, imports = "vcrpy", ("vcrpy",), "import vcr"
    replays = True

    def _cassette(self, mode: str) -> Any:
        import vcr

        match_on = ["method", "scheme", "host", "port", "path", "query", "body"]
        return vcr.VCR(match_on=match_on, record_mode=mode).use_cassette(f"{self.directory}/cassette.yaml")

    @contextmanager
    def recording(self) -> Iterator[None]:
        with self._cassette("once"):
            yield

    def replaying(self) -> Any:
        return self._cassette("none")


class DBOS(Peer):
    """Steps of a workflow, in SQLite; it goes on after a crash and answers finished steps."""

    title, packages, imports = "DBOS", ("dbos",), "from dbos import DBOS"

    @contextmanager
    def recording(self) -> Iterator[None]:
        from dbos import DBOS

        DBOS(
            config={
                "name": "peers",
                "system_database_url": f"sqlite:///{self.directory}/dbos.sqlite",
                "log_level": "ERROR",
            }
        )
        self._workflow = DBOS.workflow(name="run")(lambda: self._program())
        DBOS.launch()
        yield
        DBOS.destroy()

    def run(self, program: Callable[[], Any]) -> Any:
        self._program = program
        return self._workflow()

    def tool(self, function: Tool) -> Tool | None:
        from dbos import DBOS

        return DBOS.step()(function)  # type: ignore[no-any-return]

    def step(self, call: Tool) -> Tool:
        from dbos import DBOS

        # A step's result is kept by pickle; what the SDK returns holds locks.
        def model(**arguments: Any) -> Any:
            return call(**arguments).model_dump()

        return DBOS.step(name="model")(model)  # type: ignore[no-any-return]


class Reeltime(Peer):
    title, packages, imports = "reeltime", ("reeltime",), "import reeltime"
    replays = True

    @contextmanager
    def recording(self) -> Iterator[None]:
        import reeltime

        with reeltime.session(tape_dir=self.directory, run_id="peers"):
            yield

    def replaying(self) -> Any:
        import reeltime

        return reeltime.session("replay", tape_dir=self.directory, replay="peers")

    def tool(self, function: Tool) -> Tool | None:
        import reeltime

        return reeltime.tool(function)  # type: ignore[no-any-return]


class AgentTape(Peer):
    title, packages, imports = "AgentTape", ("agenttape",), "import agenttape"
    replays = True

    @contextmanager
    def recording(self) -> Iterator[None]:
        import agenttape

        with agenttape.use_cassette("peers", mode="record", cassette_dir=self.directory):
            yield

    def replaying(self) -> Any:
        import agenttape

        return agenttape.use_cassette("peers", mode="none", cassette_dir=self.directory)

    def tool(self, function: Tool) -> Tool | None:
        import agenttape

        return agenttape.tool(function)  # type: ignore[no-any-return]


PEERS: dict[str, type[Peer]] = {
    peer.__name__: peer
    for peer in (
        Tracekit, OpenTelemetryBatch, OpenTelemetrySync, OpenInference, Langfuse, MLflow, DBOS, VCR, Reeltime, AgentTape,
    )
}  # fmt: skip


# -- in the process of one tool -----------------------------------------------------------------------------------------


def cpu() -> float:
    """CPU time (s) of this process; ``time.process_time`` is one of the clocks that a recorder may replace."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def invoice(customer: str, amount: float, text: str) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, "lines": [1, 2, 3], "note": text}


def asked(number: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": f"{number}. {ASKED}"}]}


def overhead(peer: Peer, of: str, count: int) -> dict[str, float]:
    """CPU (s) of one call, bare and recorded."""
    found: dict[str, float] = {}

    def measure(kind: str, call: Tool, arguments: Callable[[int], dict[str, Any]]) -> float:
        for number in range(60):  # connections, caches, what is compiled at first use
            call(**arguments(-number))
        gc.collect()
        begun = cpu()
        for number in range(count):
            call(**arguments(number))
        found[kind] = cpu() - begun
        return begun

    def of_tool(number: int) -> dict[str, Any]:
        return {"customer": f"c{number}", "amount": 3.5, "text": TEXT}

    create = peer.client().chat.completions.create
    bare, arguments = (create, asked) if of == "call" else (invoice, of_tool)
    measure("bare", bare, arguments)
    begun = [0.0]
    with peer.recording():

        def program() -> None:
            if of == "call":
                recorded: Tool | None = peer.step(peer.client().chat.completions.create)
            else:
                recorded = peer.tool(invoice)
            if recorded is not None:
                begun[0] = measure("recorded", recorded, arguments)

        peer.run(program)
    if begun[0]:
        found["recorded"] = cpu() - begun[0]  # with what it left to do at the end
    return {kind: seconds / count for kind, seconds in found.items()}


def killed(peer: Peer) -> None:
    """Calls and tools, each of which returns; then the process dies."""
    with peer.recording():

        def program() -> None:
            create, tool = peer.step(peer.client().chat.completions.create), peer.tool(invoice)
            for number in range(MARKS):
                create(model=f"mark-{number}-call", messages=asked(number)["messages"])
                if tool is not None:
                    tool(customer=f"mark-{number}-tool", amount=1.0, text=TEXT)
            os.kill(os.getpid(), signal.SIGKILL)

        peer.run(program)


def conversation(peer: Peer) -> int:
    """A conversation that sends its whole history each time; the bytes of what was said."""
    said: list[dict[str, str]] = []
    with peer.recording():

        def program() -> None:
            create = peer.step(peer.client().chat.completions.create)
            for turn in range(TURNS):
                said.append({"role": "user", "content": f"{turn}. {ASKED}"})
                create(model="m", messages=said)
                said.append({"role": "assistant", "content": f"{turn}. {ANSWERED}"})

        peer.run(program)
    return len(json.dumps(said))


def replayed(peer: Peer, count: int, replaying: bool) -> dict[str, float]:
    """CPU (s) of one call that is answered from the record, and of one that the server answers in the same process."""
    create = peer.client().chat.completions.create
    for number in range(20):
        create(**asked(-number))
    begun = cpu()
    for number in range(count):
        create(**asked(-number))
    bare = cpu() - begun
    with peer.replaying() if replaying else peer.recording():
        create = peer.client().chat.completions.create
        begun = cpu()
        for number in range(count):
            create(**asked(number))
        answered = cpu() - begun
    return {"bare": bare / count, "replayed": answered / count}


def child(name: str, what: str, directory: str, url: str, count: int) -> None:
    peer = PEERS[name](Path(directory), url)
    os.chdir(directory)
    if what in ("call", "tool"):
        found: Any = overhead(peer, what, count)
    elif what == "kill":
        found = killed(peer)
    elif what == "conversation":
        found = conversation(peer)
    else:
        found = replayed(peer, count, what == "replay")
    print("\n" + json.dumps(found))


# -- all of them ---------------------------------------------------------------------------------------------------------


def in_process(name: str, what: str, directory: Path, server: Server, count: int) -> Any:
    """What a process of its own finds."""
    quiet = {
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "NO_COLOR": "1",
        "GIT_PYTHON_REFRESH": "quiet", "TRACEKIT_DIR": str(directory),
    }  # fmt: skip
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.peers",
        "--child",
        name,
        what,
        str(directory),
        server.url,
        str(count),
    ]
    root = Path(__file__).parents[1]
    environment = {**os.environ, **quiet, **PEERS[name].environment, "PYTHONPATH": str(root), "HOME": str(directory)}
    ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=900, check=False)
    if what == "kill" and ended.returncode == -signal.SIGKILL:
        return None
    if ended.returncode:
        raise RuntimeError(f"{name}, {what}: {ended.stderr[-1500:] or ended.stdout[-1500:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def left_behind(directory: Path, server: Server) -> bytes:
    """All that a tool has kept or sent, as bytes."""
    files = [path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()]
    return b"\n".join([*files, *server.received])


def size_of(directory: Path, server: Server) -> int:
    for database in [*directory.glob("*.db"), *directory.glob("*.sqlite")]:  # what waits in its write-ahead log
        connection = sqlite3.connect(database)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    return len(left_behind(directory, server))


def survived(kept: bytes, kind: str) -> int:
    """How many calls of a kind can be found in what is left."""
    texts = [kept]
    for blob in re.findall(
        rb"[A-Za-z0-9+/]{80,}", kept
    ):  # what a database keeps by pickle; the column before it may touch it
        for skipped in range(4):
            whole = blob[skipped : len(blob) - (len(blob) - skipped) % 4]
            texts.append(base64.b64decode(whole))
    return sum(any(f"mark-{number}-{kind}".encode() in text for text in texts) for number in range(MARKS))


@contextmanager
def place() -> Iterator[tuple[Path, Server]]:
    server = Server()
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory), server
    server.shutdown()
    server.server_close()


def import_cost(statement: str, rounds: int) -> float:
    """CPU (s) that a statement takes over a bare interpreter."""

    def of(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return max(0.0, min(of(statement) for _ in range(rounds)) - min(of("pass") for _ in range(rounds)))


def measured(name: str, quick: bool) -> dict[str, Any]:
    peer = PEERS[name]
    rounds, count = (1, 40) if quick else (3, 200)
    found: dict[str, Any] = {"title": peer.title, "versions": {one: version(one) for one in peer.packages}}

    def median(what: str) -> dict[str, float]:
        taken = []
        for _ in range(rounds):
            with place() as (directory, server):
                taken.append(in_process(name, what, directory, server, count))
        return {kind: statistics.median(one[kind] for one in taken) for kind in taken[0]}

    found["call"], found["tool"] = median("call"), median("tool")
    with place() as (directory, server):
        in_process(name, "kill", directory, server, 0)
        time.sleep(0.2)  # what is in the sockets arrives
        kept = left_behind(directory, server)
        found["survived"] = {kind: survived(kept, kind) for kind in ("call", "tool")}
    with place() as (directory, server):
        content = in_process(name, "conversation", directory, server, 0)
        found["bytes"] = size_of(directory, server) / content
    if peer.replays:
        with place() as (directory, server):
            in_process(name, "record", directory, server, count)
            before = server.asked
            answers = [in_process(name, "replay", directory, server, count) for _ in range(rounds)]
            bare = rounds * (count + 20)
            found["replay"] = {kind: statistics.median(one[kind] for one in answers) for kind in answers[0]}
            found["live"] = server.asked - before - bare
    found["import"] = import_cost(peer.imports, 2 if quick else 7)
    return found


def row(found: dict[str, Any]) -> list[str]:
    def more(of: str) -> str:
        cost = found[of]
        return f"{(cost['recorded'] - cost['bare']) * 1e6:,.0f} µs" if "recorded" in cost else "–"

    share = found["call"]["recorded"] / found["call"]["bare"] - 1
    tools = f", {found['survived']['tool']}/{MARKS}" if "recorded" in found["tool"] else ""
    if "replay" in found:
        live = f", {found['live']} live" if found["live"] else ""
        replay = f"{1 / found['replay']['replayed']:,.0f} calls a second{live}"
    else:
        replay = "–"
    return [
        f"{found['title']} ({', '.join(found['versions'].values())})", f"{more('call')} (+{share:.0%})", more("tool"),
        f"{found['survived']['call']}/{MARKS}{tools}", replay, f"{found['bytes']:.1f}", f"{found['import'] * 1e3:,.0f} ms",
    ]  # fmt: skip


HEAD = (
    "tool", "a model call takes more", "a tool call takes more", f"calls, tools that survive `kill -9`, of {MARKS}",
    "replay", f"{TURNS} turns: bytes kept or sent, to the content's", "import, CPU",
)  # fmt: skip


def table(all_found: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(row(found)) + " |" for found in all_found])


def plot(all_found: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 0.42 * len(all_found) + 1.2), sharey=True, layout="constrained")
    names = [found["title"] for found in all_found][::-1]
    for axis, of, title in zip(axes, ("call", "tool"), ("a model call", "a tool call"), strict=True):
        costs = [found[of] for found in all_found][::-1]
        values = [(cost["recorded"] - cost["bare"]) * 1e6 if "recorded" in cost else 0 for cost in costs]
        bars = axis.barh(names, values, color=["#3f51b5" if name == "tracekit" else "#9e9e9e" for name in names])
        axis.bar_label(bars, [f"{value:,.0f}" if value else "" for value in values], padding=3, fontsize=8)
        axis.set_xscale("log")
        axis.set_xlim(10, max(values) * 4)
        axis.set_title(f"{title}: µs of CPU more than bare (log)", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def write(all_found: list[dict[str, Any]], conditions: str) -> None:
    plot(all_found, PLOT)
    page = PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- written by python -m benchmarks.peers --write -->", "<!-- to here -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{begin}\n\n{table(all_found)}\n\n{conditions}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PEERS, action="append", help="this one (again for more)")
    parser.add_argument("--quick", action="store_true", help="one round of few calls")
    parser.add_argument("--write", action="store_true", help="renew the page in the documentation")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, what, directory, url, count = options.child
        child(name, what, directory, url, int(count))
        return
    all_found = []
    for name in options.only or PEERS:
        all_found.append(measured(name, options.quick))
        print(" | ".join(row(all_found[-1])), flush=True)
    load = os.getloadavg()[0]
    conditions = (
        f"Python {platform.python_version()}, openai {version('openai')}, {os.cpu_count()} cores (load {load:.1f}), "
        f"{time.strftime('%Y-%m-%d')}; `python -m benchmarks.peers`."
    )
    print(conditions)
    if options.json:
        options.json.write_text(json.dumps(all_found, indent=1))
    if options.write:
        write(all_found, conditions)


if __name__ == "__main__":
    main()
