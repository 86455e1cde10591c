"""What tracekit costs, against floors measured in the same run.

Run ``python -m benchmarks.overhead`` (``--json FILE`` for the figures, ``--quick`` for a look). The floor is
what any recorder of this format must do for one call: two lines of some 400 bytes built, encoded with ``orjson``, hashed
into the chain and appended with ``os.write``, in a tight loop. Each figure is the median of rounds; a recorded call and
what it is compared with take turns, so that a slow spell of the machine hits both. Before any figure is printed, the
benchmark reads its own traces and checks that they hold what they must: a tuple, a NaN, a default, no planted key.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import hashlib
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import orjson

import tracekit
from tracekit import _reality, record, replay, traced_tool
from tracekit._journal.reader import Trace
from tracekit._native import FORM

PACKAGES = (
    "tracekit",
    "tracekit-sdk",
    "orjson",
    "openai",
    "httpx2",
    "httpx",
    "pydantic",
    "requests",
    "urllib3",
    "aiohttp",
)
PLANTED = "sk-proj-" + "A1b2C3d4" * 6
TEXT = "The invoice of October for ACME, three items, to be paid within thirty days. " * 2


#: What was to be reached, and aimed at, with the C extension and without it (``TRACEKIT_PURE=1``).
LIMITS = {
    "C": {"recorded tool": (1.8, 1.2), "recorded async tool": (2.0, 1.2), "call": (12.0, 7.0), "stream": (9.0, 6.0)},
    "Python": {
        "recorded tool": (2.5, 2.2),
        "recorded async tool": (2.6, 2.2),
        "call": (20.0, 7.0),
        "stream": (15.0, 6.0),
    },
}


class Figure(NamedTuple):
    """One result: ``value`` in ``unit``, and what was to be reached and aimed at (``None`` where nothing was set)."""

    name: str
    value: float
    unit: str
    reach: float | None = None
    aim: float | None = None
    more_is_better: bool = False
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.reach is None or self.aim is None:
            return ""
        sign = -1 if self.more_is_better else 1
        if sign * self.value <= sign * self.aim:
            return "aim"
        return "reached" if sign * self.value <= sign * self.reach else "MISSED"


# -- what is measured -------------------------------------------------------------------------------------------------


def plain(customer: str, amount: float, text: str, urgent: bool = False) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, "lines": (1, 2, 3), "note": text, "urgent": urgent}


tool = traced_tool(side_effect="read_only", name="invoice")(plain)


async def plain_async(customer: str, amount: float, text: str, urgent: bool = False) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, "lines": (1, 2, 3), "note": text, "urgent": urgent}


tool_async = traced_tool(side_effect="read_only", name="invoice_async")(plain_async)


@traced_tool(side_effect="read_only")
def checked(value: object, rate: float = 0.25) -> Any:
    return value, float("nan")


def cpu_ns() -> int:
    """This process's CPU time; ``time.process_time`` is one of the clocks that a run records."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def each(calls: int, call: Callable[[int], object], clock: Callable[[], int] = _reality.perf_counter_ns) -> float:
    """Nanoseconds a call."""
    gc.collect()
    begun = clock()
    for number in range(calls):
        call(number)
    return (clock() - begun) / calls


def each_async(calls: int, call: Callable[[int], Any], clock: Callable[[], int] = _reality.perf_counter_ns) -> float:
    async def loop() -> float:
        gc.collect()
        begun = clock()
        for number in range(calls):
            await call(number)
        return (clock() - begun) / calls

    return asyncio.run(loop())


def floor(calls: int, directory: Path) -> float:
    """The two lines of a tool call, and nothing else, in nanoseconds."""
    path = directory / "floor.jsonl"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
    head = b"0" * 64
    run_id, clock, encode, digest, write = "0" * 36, _reality.time_ns, orjson.dumps, hashlib.sha256, os.write

    def append(entry: dict[str, Any]) -> None:
        nonlocal head
        line = encode(entry)[:-1]
        head = digest(head + line).hexdigest().encode()
        write(file, line + b',"hash":"' + head + b'"}\n')

    def call(number: int) -> None:
        append(
            {
                "v": 1, "seq": 2 * number + 1, "run_id": run_id, "type": "tool.call", "ts_ns": clock(), "lane": 0,
                "parent": 1, "name": "invoice", "meta": {"side_effect": "read_only"},
                "input": {"customer": "ACME", "amount": 12.5, "text": TEXT, "urgent": False},
            }
        )  # fmt: skip
        append(
            {
                "v": 1, "seq": 2 * number + 2, "run_id": run_id, "type": "tool.return", "ts_ns": clock(), "lane": 0,
                "parent": 1, "step": 2 * number + 1,
                "output": {"customer": "ACME", "amount": 12.5, "lines": [1, 2, 3], "note": TEXT, "urgent": False},
            }
        )  # fmt: skip

    try:
        return each(calls, call)
    finally:
        os.close(file)
        path.unlink()


class Bench:
    """The rounds, the store, and the runs that later figures read."""

    def __init__(self, *, quick: bool, directory: Path) -> None:
        self.rounds = 3 if quick else 9
        self.calls = 500 if quick else 3000
        self.model_calls = 20 if quick else 100
        self.steps = 2_000 if quick else 20_000
        self.directory = directory
        self.samples: dict[str, list[float]] = {}

    def add(self, name: str, sample: float) -> None:
        self.samples.setdefault(name, []).append(sample)

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def ratio(self, name: str, base: str) -> float:
        """The median of the rounds' own ratios: what slows both sides of a round cancels out."""
        return statistics.median(a / b for a, b in zip(self.samples[name], self.samples[base], strict=True))

    def over(self, name: str, base: str) -> float:
        return statistics.median(a - b for a, b in zip(self.samples[name], self.samples[base], strict=True))

    # -- tools -----------------------------------------------------------------------------------------------------------

    def tools(self) -> Iterator[Figure]:
        for _ in range(self.rounds):
            self.add("floor", floor(self.calls, self.directory))
            self.add("bare", each(self.calls * 10, lambda n: plain("ACME", 12.5, TEXT)))
            self.add("idle", each(self.calls * 10, lambda n: tool("ACME", 12.5, TEXT)))
            with record("tools"):
                self.add("tool", each(self.calls, lambda n: tool("ACME", 12.5, TEXT)))

            async def agent() -> None:
                async with record("tools"):
                    gc.collect()
                    begun = _reality.perf_counter_ns()
                    for _ in range(self.calls):
                        await tool_async("ACME", 12.5, TEXT)
                    self.add("async tool", (_reality.perf_counter_ns() - begun) / self.calls)

            asyncio.run(agent())
        yield Figure("floor: two lines", self.median("floor") / 1e3, "µs")
        limits = LIMITS[FORM]
        for name in ("tool", "async tool"):
            detail = f"{self.median(name) / 1e3:.2f} µs a call"
            reach, aim = limits["recorded " + name]
            yield Figure(f"recorded {name} call", self.ratio(name, "floor"), "floors", reach, aim, detail=detail)
        yield Figure("decorated call, no run", self.over("idle", "bare") / 1e3, "µs over", 1.0, 0.5)

    # -- clocks ----------------------------------------------------------------------------------------------------------

    def reads(self) -> Iterator[Figure]:
        functions: dict[str, Callable[[], object]] = {
            "time.time": lambda: time.time(),
            "random.random": lambda: random.random(),
        }
        calls, captured = self.calls * 5, set[str]()
        for _ in range(self.rounds):
            tracekit.uninstrument()
            for name, read in functions.items():
                self.add(f"{name} bare", each(calls, lambda n, read=read: read()))  # type: ignore[misc]
            tracekit.instrument()
            for name, read in functions.items():
                self.add(f"{name} outside", each(calls, lambda n, read=read: read()))  # type: ignore[misc]
                with record("reads") as run:
                    self.add(f"{name} recorded", each(calls, lambda n, read=read: read()))  # type: ignore[misc]
                if f'"name":"{name}"' in trace_of(run.id).read_text():
                    captured.add(name)
        for name in functions:
            if name not in captured:
                yield Figure(
                    f"{name}, recorded", float("nan"), "µs over", 1.5, 0.5, detail="not in the trace: no figure"
                )
                continue
            yield Figure(f"{name}, recorded", self.over(f"{name} recorded", f"{name} bare") / 1e3, "µs over", 1.5, 0.5)
            yield Figure(f"{name}, no run", self.over(f"{name} outside", f"{name} bare") / 1e3, "µs over", 0.15, 0.15)

    # -- models ----------------------------------------------------------------------------------------------------------

    def models(self) -> Iterator[Figure]:
        model = Model()
        with streaming_server() as path:
            streams = Streams(path)
            for _ in range(self.rounds):
                tracekit.uninstrument()
                self._model_round(model, streams, "bare")
                tracekit.instrument()
                with record("model"):
                    self._model_round(model, streams, "recorded")
            streams.client.close()
        model.client.close()
        for kind in ("call", "stream"):
            reach, aim = LIMITS[FORM][kind]
            recorded, bare = f"{kind} recorded", f"{kind} bare"
            detail = f"{self.median(recorded) / 1e3:.0f} against {self.median(bare) / 1e3:.0f} µs of CPU"
            label = "model call" if kind == "call" else "200-chunk stream"
            yield Figure(label, (self.ratio(recorded, bare) - 1) * 100, "% more CPU", reach, aim, detail=detail)
        more = (self.ratio("async stream recorded", "async stream bare") - 1) * 100
        yield Figure("the same, asynchronous client", more, "% more CPU")

    def _model_round(self, model: Model, streams: Streams, kind: str) -> None:
        model.ask(0)
        streams.stream(0)
        self.add(f"call {kind}", each(self.model_calls, model.ask, cpu_ns))
        self.add(f"stream {kind}", each(max(self.model_calls // 5, 5), streams.stream, cpu_ns))
        self.add(f"async stream {kind}", each_async(max(self.model_calls // 5, 5), streams.stream_async, cpu_ns))

    def requests(self) -> Iterator[Figure]:
        """What it costs that requests can be captured, where no run is active."""
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1")

        def begin(_: int) -> None:
            connection.putrequest("GET", "/")
            connection.close()
            connection._buffer.clear()  # type: ignore[attr-defined]

        for _ in range(self.rounds):
            tracekit.uninstrument()
            self.add("putrequest bare", each(self.calls, begin))
            tracekit.instrument()
            self.add("putrequest outside", each(self.calls, begin))
        tracekit.uninstrument()
        spent = self.over("putrequest outside", "putrequest bare") / 1e3
        yield Figure("a request of http.client, no run", spent, "µs over", 1.0, 0.5)

    # -- the way back ----------------------------------------------------------------------------------------------------

    def replays(self) -> Iterator[Figure]:
        for steps in (self.steps // 10, self.steps):
            with record("steps") as run:
                for number in range(steps):
                    tool("ACME", float(number), TEXT)
            with replay(run.id):
                spent = each(steps, lambda n: tool("ACME", float(n), TEXT))
            label = f"replayed tool steps, of {steps}"
            yield Figure(label, 1e9 / spent, "/s", 20_000, 20_000, more_is_better=True)
        yield self._verified(run.id)
        yield self._in_a_thread()
        model = Model()
        tracekit.instrument()
        for calls in (self.model_calls, self.model_calls * 10):
            with record("calls") as run:
                for number in range(calls):
                    model.ask(number)
            with replay(run.id):
                spent = each(calls, model.ask)
            yield Figure(f"replayed model calls, of {calls}", 1e9 / spent, "/s", 1000, 1000, more_is_better=True)
        model.client.close()

    def _in_a_thread(self) -> Figure:
        """The CPU of the same steps on the main line, and in a thread that it waits for."""

        def work() -> None:
            spent.append(each(self.steps, lambda n: tool("ACME", float(n), TEXT), _reality.process_time_ns))

        def thread() -> None:
            started = threading.Thread(target=work)
            started.start()
            started.join()

        spent: list[float] = []
        runs = {}
        for name, body in (("main line", work), ("thread", thread)):
            with record(name) as run:
                body()
            runs[name] = run.id, body
        for _ in range(self.rounds):
            for name, (run_id, body) in runs.items():
                with replay(run_id):
                    body()
                self.add(name, spent[-1])
        times = self.ratio("thread", "main line")
        return Figure("a replayed tool step in a thread", times, "× one on the main line", 1.5, 1.25)

    def _verified(self, run_id: str) -> Figure:
        path = trace_of(run_id)
        rates = []
        for _ in range(self.rounds):
            begun = _reality.perf_counter_ns()
            with Trace(path) as trace:
                trace.check()
                rates.append(len(trace) * 1e9 / (_reality.perf_counter_ns() - begun))
        return Figure("entries verified", statistics.median(rates), "/s", 100_000, 100_000, more_is_better=True)

    # -- size ------------------------------------------------------------------------------------------------------------

    def size(self) -> Iterator[Figure]:
        """A conversation of 200 turns sends its history 200 times; each message is to be on the disk once.

        Questions of 700 characters and answers of 1,400, text that people wrote (Python's manual), no piece of it twice.
        """
        from pydoc_data.topics import topics

        text, asked, both = "\n".join(topics.values()), 700, 2100
        starts = range(0, 200 * both, both)
        questions = [text[at : at + asked] for at in starts]
        tracekit.instrument()
        messages: list[dict[str, str]] = []
        model = Model([text[at + asked : at + both] for at in starts])
        with record("conversation") as run:
            for question in questions:
                messages.append({"role": "user", "content": question})
                answer = model.client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
                messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        model.client.close()
        plain = Path(trace_of(run.id)).read_bytes(), orjson.dumps(messages)
        for name, files, reach, aim in (
            ("200-turn conversation", plain, 1.9, 1.6),
            ("the same, both by gzip", tuple(map(gzip.compress, plain)), 1.6, 1.3),
        ):
            trace, content = map(len, files)
            yield Figure(name, trace / content, "× its content", reach, aim, detail=f"{trace:,} bytes for {content:,}")

    # -- import ----------------------------------------------------------------------------------------------------------

    def imports(self) -> Iterator[Figure]:
        for _ in range(self.rounds):
            self.add("python", cpu_of("pass"))
            self.add("import", cpu_of("import tracekit"))
        yield Figure("import tracekit", self.over("import", "python"), "ms of CPU over", 60, 35)


class Model:
    """The real OpenAI client on a transport that answers from memory: prompts of 10 KB, answers of 1 KB.

    ``answers`` are given one after another, where there are any.
    """

    def __init__(self, answers: Sequence[str] = ()) -> None:
        import httpx2
        from openai import OpenAI

        usage = {"prompt_tokens": 2500, "completion_tokens": 250, "total_tokens": 2750}
        base: dict[str, Any] = {"id": "c", "created": 1, "model": "m"}

        def answered(text: str) -> bytes:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            return orjson.dumps({**base, "object": "chat.completion", "choices": [choice], "usage": usage})

        whole = answered("An answer. " * 93)
        others = map(answered, answers)

        def answer(request: Any) -> Any:
            content = next(others, whole)
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=content)

        transport = httpx2.MockTransport(answer)
        http = httpx2.Client(transport=transport)
        self.client = OpenAI(api_key="none", base_url="http://model.test/v1", http_client=http, max_retries=0)

    def ask(self, number: int) -> None:
        self.client.chat.completions.create(model="m", temperature=0.1, messages=_prompt(number))


def _prompt(number: int) -> Any:
    """Another prompt each time, so that nothing is known from the call before."""
    return [{"role": "user", "content": f"{number} " + f"a word of a prompt, {number} " * (10_000 // 22)}]


class Streams:
    """The real OpenAI clients on a socket, from which they get 200 chunks, one after another: see ``streaming_server``."""

    def __init__(self, path: str) -> None:
        import httpx2
        from openai import AsyncOpenAI, OpenAI

        url = "http://model.test/v1"
        http = httpx2.Client(transport=httpx2.HTTPTransport(uds=path))
        self.client = OpenAI(api_key="none", base_url=url, http_client=http, max_retries=0)
        # No connection outlives the event loop that it was made in.
        transport = httpx2.AsyncHTTPTransport(uds=path, limits=httpx2.Limits(max_keepalive_connections=0))
        slow = httpx2.AsyncClient(transport=transport)
        self.async_client = AsyncOpenAI(api_key="none", base_url=url, http_client=slow, max_retries=0)

    def stream(self, number: int) -> None:
        for _ in self.client.chat.completions.create(model="m", stream=True, messages=_prompt(number)):
            pass

    async def stream_async(self, number: int) -> None:
        asked = _prompt(number)
        async for _ in await self.async_client.chat.completions.create(model="m", stream=True, messages=asked):
            pass


_SERVER = """
import socket, sys, threading
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
answer = b'{"answer": "' + b"An answer. " * 93 + b'"}'
head = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(answer)
def serve(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
        if data.endswith(b"}"):
            connection.sendall(head + answer)
            data = b""
threading.Thread(target=lambda: (sys.stdin.read(), __import__("os")._exit(0)), daemon=True).start()
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


_STREAMING_SERVER = """
import array, contextlib, fcntl, json, os, socket, sys, termios, threading, time
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print(flush=True)
about = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
deltas = [{"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None} for number in range(200)]
pieces = [json.dumps({**about, "choices": [delta]}, separators=(",", ":")) for delta in deltas] + ["[DONE]"]
chunks = [f"data: {piece}\\n\\n".encode() for piece in pieces]
head = b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n"
unread = array.array("i", [0])
def send(connection, data):
    connection.sendall(data)
    while fcntl.ioctl(connection, termios.TIOCOUTQ, unread) == 0 and unread[0]:
        time.sleep(0.0001)
def serve(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
        if data.endswith(b"}"):
            data = b""
            send(connection, head)
            for chunk in chunks:
                send(connection, b"%x\\r\\n%b\\r\\n" % (len(chunk), chunk))
            send(connection, b"0\\r\\n\\r\\n")
def until_left(connection):
    with contextlib.suppress(OSError):  # a client may leave when it has the last chunk
        serve(connection)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    threading.Thread(target=until_left, args=(listening.accept()[0],), daemon=True).start()
"""


@contextmanager
def streaming_server() -> Iterator[str]:
    """The path of a socket behind which a process of its own answers each request in 200 chunks.

    Each is sent once the one before has been taken from the socket: so each arrives by itself, as those of a model do,
    however slow the client is, and nobody sleeps until it comes.
    """
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        path = os.path.join(directory, "model")
        command = [sys.executable, "-c", _STREAMING_SERVER, path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdout.readline()
            yield path
            server.stdin.close()


@contextmanager
def web_server() -> Iterator[str]:
    """A server in a process of its own: its CPU time is not counted."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/answer"
        server.stdin.close()


# -- around it --------------------------------------------------------------------------------------------------------


def trace_of(run_id: str) -> Path:
    (path,) = Path(os.environ["TRACEKIT_DIR"]).rglob(f"{run_id}.jsonl")
    return path


def cpu_of(program: str) -> float:
    """Milliseconds of CPU of a fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def self_check() -> None:
    """No figure before the trace is right; raises ``SystemExit`` that says what is not."""
    warnings.simplefilter("ignore", RuntimeWarning)  # that an output was redacted, as is wanted here
    with record("check") as run:
        checked((1, (2, "x")), rate=0.25)
        checked({"note": f"the key is {PLANTED}"})
    text = trace_of(run.id).read_text()
    entries = [json.loads(line) for line in text.splitlines()]
    intents = [entry for entry in entries if entry["type"] == "tool.call"]
    outputs = json.dumps([entry["output"] for entry in entries if entry["type"] == "tool.return"])
    promises = {
        "a tuple is tagged": '"tuple"' in json.dumps(intents[0]["input"]),
        "a NaN is not null": "nan" in outputs.lower() and "null" not in outputs,
        "a default is in the input": intents[1]["input"].get("rate") == 0.25,
        "the planted key is not in the file": PLANTED not in text,
        "the chain holds": Trace(trace_of(run.id)).check() is not None,
    }
    with replay(run.id):
        first, nan = checked((1, (2, "x")))
        checked({"note": f"the key is {PLANTED}"})
    promises["a tuple comes back as one"] = first == (1, (2, "x")) and type(first) is tuple
    promises["a NaN comes back as one"] = isinstance(nan, float) and nan != nan
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        raise SystemExit("the trace is not right, so no figure is: not kept: " + "; ".join(broken))


def machine() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "form": FORM,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": versions,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


@contextmanager
def own_store() -> Iterator[Path]:
    """A store of its own, beside the working directory's, so that no run of the user's is touched."""
    with tempfile.TemporaryDirectory(prefix="tracekit-bench-") as directory:
        before = os.environ.get("TRACEKIT_DIR")
        os.environ["TRACEKIT_DIR"] = os.path.join(directory, "store")
        try:
            yield Path(directory)
        finally:
            os.environ.pop("TRACEKIT_DIR")
            if before is not None:
                os.environ["TRACEKIT_DIR"] = before


GROUPS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "tools": Bench.tools,
    "reads": Bench.reads,
    "models": Bench.models,
    "requests": Bench.requests,
    "size": Bench.size,
    "imports": Bench.imports,
    "replays": Bench.replays,
}


def as_json(figure: Figure) -> dict[str, Any]:
    value = None if figure.value != figure.value else round(figure.value, 4)
    return {**figure._asdict(), "value": value, "verdict": figure.verdict}


def show(figure: Figure) -> None:
    goal = "" if figure.reach is None else f"  {figure.verdict:<8} (to reach {figure.reach:g}, aim {figure.aim:g})"
    print(f"{figure.name:<36}{figure.value:>12,.2f} {figure.unit:<16}{goal}  {figure.detail}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", metavar="FILE", help="write the figures there as JSON ('-': standard output, alone)")
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs, not to compare")
    parser.add_argument("--only", action="append", choices=list(GROUPS), help="this group of figures (may be repeated)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    about, figures = machine(), []
    quiet = options.json == "-"
    with own_store() as directory:
        if not quiet:
            form = f"Python {about['python']}, tracekit's functions in {about['form']}"
            print(f"{form}, {about['cpu']}, {about['cores']} cores, load {about['load']:.1f}")
            print(", ".join(f"{name} {number}" for name, number in about["versions"].items()))
        subprocess.run([sys.executable, __file__, "--check"], check=True)
        bench = Bench(quick=options.quick, directory=directory)
        for name in options.only or GROUPS:
            for figure in GROUPS[name](bench):
                figures.append(figure)
                if not quiet:
                    show(figure)
    about["resident_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    report = {"machine": about, "figures": [as_json(figure) for figure in figures]}
    if quiet:
        print(json.dumps(report, indent=2))
    elif options.json:
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        self_check()
    else:
        main()
