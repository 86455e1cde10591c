"""Servers on this machine that the examples of a page need: ``python -m tests.support.page_servers NAME``.

Each prints a line with the variables that name it, as a shell takes them, and goes on until it is killed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _asked(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _served(handler: type[_Handler]) -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def collector() -> dict[str, str]:
    """What takes spans by OTLP over HTTP, as an OpenTelemetry collector does."""

    class Collector(_Handler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            assert self._asked()
            self._answer(b"", "application/x-protobuf")

    return {"OTEL_EXPORTER_OTLP_ENDPOINT": _served(Collector)}


def models() -> dict[str, str]:
    """Two models of one provider: the small one wants more for a complaint that is not about a book."""

    class Models(_Handler):
        def do_POST(self) -> None:
            asked = json.loads(self._asked())
            text = asked["messages"][-1]["content"]
            cents = 4200 if "book" in text or asked["model"] == "gpt-4o" else 4900
            answer = {"role": "assistant", "content": str(cents)}
            body = {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": asked["model"],
                "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 410, "completion_tokens": 12, "total_tokens": 422},
            }
            self._answer(json.dumps(body).encode(), "application/json")

    return {"OPENAI_BASE_URL": f"{_served(Models)}/v1", "OPENAI_API_KEY": "none"}


def bucket() -> dict[str, str]:
    """An S3 server with the runs of the store here in ``s3://agents/traces``; without its packages, nothing."""
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError:
        return {}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    found = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ.update(found)
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="agents")
    for path in Path(".tracekit/runs").glob("*.jsonl"):
        s3.upload_file(str(path), "agents", f"traces/{path.name}")
    return found


SERVERS: dict[str, Callable[[], dict[str, str]]] = {"collector": collector, "models": models, "bucket": bucket}


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # what a server says of itself
        variables = SERVERS[sys.argv[1]]()
    print("export", *(f"{name}={shlex.quote(value)}" for name, value in variables.items()), flush=True)
    time.sleep(600)
