"""Packages that send telemetry, beside a small agent, with the wheel: recorded, and replayed beside the servers and without them."""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.stub_provider import stub_provider
from tests.support.wheel import Installed, build, installed

pytestmark = [pytest.mark.sdk_matrix, pytest.mark.timeout(900)]

OTLP = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-exporter-otlp-proto-grpc")
#: By the package: what is installed beside the wheel and the OpenAI SDK, and which programs it has.
PACKAGES = {
    "langsmith": (("langsmith",), ("langsmith", "langsmith_at_once")),
    "langfuse": (("langfuse",), ("langfuse",)),
    "opentelemetry": (
        OTLP,
        ("otlp_http", "otlp_http_at_once", "otlp_grpc", "otlp_grpc_at_once", "otlp_metrics", "exporter_of_its_own"),
    ),
    "sentry": (("sentry-sdk",), ("sentry",)),
    "posthog": (("posthog",), ("posthog", "posthog_at_once", "posthog_flags")),
    "logfire": (("logfire",), ("logfire",)),
    "traceloop": (("traceloop-sdk", "httpx"), ("traceloop",)),  # which it imports, and does not ask for
    "openinference": ((*OTLP, "openinference-instrumentation-openai"), ("openinference",)),
}
#: What a program reads before its run is live in a replay of the program, and refused.
READING = ("posthog_flags",)


class Collector:
    """What telemetry is sent to, over HTTP and gRPC; ``hits`` counts the requests."""

    def __init__(self) -> None:
        import grpc

        outer, self.hits = self, Counter[str]()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                if "chunked" in self.headers.get("transfer-encoding", ""):
                    while int(self.rfile.readline().strip() or b"1", 16):
                        self.rfile.readline()
                    self.rfile.readline()
                path = self.path.partition("?")[0]
                outer.hits[path] += 1
                body = json.dumps(ANSWERS.get(path, {})).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PATCH = do_PUT = do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Calls(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
            def service(self, call: Any) -> Any:
                outer.hits[call.method] += 1
                return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self._grpc = grpc.server(ThreadPoolExecutor(2))
        self._grpc.add_generic_rpc_handlers((Calls(),))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.grpc = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._grpc.stop(None).wait()


#: What services answer that are asked for something.
ANSWERS: dict[str, Any] = {
    "/v1/info": {"project_name": "p", "project_url": "http://127.0.0.1/p"},
    "/flags/": {
        "flags": {"new-prompt": {"key": "new-prompt", "enabled": True, "variant": "b", "reason": {}, "metadata": {}}},
        "errorsWhileComputingFlags": False,
        "requestId": "1",
    },
}


@contextmanager
def collecting() -> Iterator[Collector]:
    found = Collector()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=PACKAGES)
def environment(request: Any, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Installed, str]:
    place = tmp_path_factory.mktemp(request.param)
    return installed(place / "env", wheel, "openai", "requests", *PACKAGES[request.param][0]), request.param


@pytest.mark.parametrize("before", [False, True], ids=["within the run", "before the run"])
def test_telemetry(before: bool, environment: tuple[Installed, str], tmp_path: Path) -> None:
    """Each program prints in a replay what it printed, beside its servers, which hear nothing, and without them; telemetry that was
    there before the run, threads and all, makes no difference."""
    python, package = environment
    for name in PACKAGES[package][1]:
        if before and name in READING:
            continue
        variables = {"TRACEKIT_DIR": str(tmp_path / name)}
        with stub_provider() as provider, collecting() as collector:
            arguments = [name, provider.url, collector.url, collector.grpc, *(["before"] if before else [])]
            program = ("-m", "tests.sdk_matrix.telemetry_programs", *arguments)
            recording = python.run("-m", "tracekit", "run", *program, env=variables)
            assert recording.returncode == 0, (name, recording.stderr[-3000:])
            assert "not captured" not in recording.stderr, name
            assert collector.hits, name
            reached = collector.hits.total(), provider.requests.total()
            replay = python.run("-m", "tracekit", "replay", "--isolate=off", "last", env=variables)
            assert (replay.returncode, replay.stdout) == (0, recording.stdout), (name, replay.stderr[-3000:])
            assert (collector.hits.total(), provider.requests.total()) == reached, name
        replay = python.run("-m", "tracekit", "replay", "last", env=variables)
        assert (replay.returncode, replay.stdout) == (0, recording.stdout), (name, replay.stderr[-3000:])
