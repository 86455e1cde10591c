"""Secrets whose text a run knows: variables of its environment, and credentials that it saw being sent."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support.tracing import entries
from tracekit import record, replay, state_transition, traced, traced_tool


@traced_tool(side_effect="read_only")
def ask(text: str) -> str:
    return f"said {text}"


@traced_tool(side_effect="read_only")
def refused(text: str) -> None:
    raise ValueError(f"refused {text}")


def program(secret: str) -> None:
    assert ask(f"the password is {secret}").startswith("said the password is ")
    with pytest.raises(ValueError, match="refused"):
        refused(secret)
    traced(f"span {secret}")(lambda: ask("plain"))()
    state_transition(f"state {secret}", from_=secret, to="done")


def stored(run: Any) -> bytes:
    return Path(run.path).read_bytes()


@pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")
@pytest.mark.parametrize("later", ["CANARYhunter", "CANARYanother", None])
def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str | None) -> None:
    """They are nowhere in the trace, not even in names of runs, spans and states; a replay matches whether the variable
    is the same, another or absent, and says which outputs were placeholders."""
    monkeypatch.setenv("MY_PASSWORD", "CANARYhunter")
    with record("run CANARYhunter", store=tmp_path) as run:
        program("CANARYhunter")
    assert b"CANARY" not in stored(run)
    assert b"the password is REDACTED_" in stored(run)
    if later is None:
        monkeypatch.delenv("MY_PASSWORD")
    else:
        monkeypatch.setenv("MY_PASSWORD", later)
    with replay(run.id, store=tmp_path) as session:
        program(later or "CANARYhunter")
    assert session.report.exact
    assert session.report.warnings[0].endswith("output was redacted: the program was given a placeholder")


def test_secrets_of_the_replay_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set only in the replay does not make a divergence of what was recorded in plain text."""
    with record("run", store=tmp_path) as run:
        ask("in production-one")
    monkeypatch.setenv("STAGE_TOKEN", "production-one")
    with replay(run.id, store=tmp_path) as session:
        ask("in production-one")
    assert session.report.exact


@pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")
def test_what_differs_beside_a_placeholder_is_a_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placeholder matches any value in its place, and nothing around it."""
    monkeypatch.setenv("MY_PASSWORD", "CANARYhunter")
    with record("run", store=tmp_path) as run:
        ask("use CANARYhunter now")
    monkeypatch.delenv("MY_PASSWORD")
    with replay(run.id, store=tmp_path):
        ask("use something now")
    with pytest.raises(tracekit.DivergenceError), replay(run.id, store=tmp_path):
        ask("use CANARYhunter later")


class _Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


@pytest.fixture
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
def test_credentials_that_are_sent(tmp_path: Path, provider: str, name: str) -> None:
    """A key that a client sends in a header is replaced in everything stored afterwards, and a replay matches."""
    import httpx

    def work() -> int:
        scheme = "Bearer " if name == "Authorization" else ""
        status = httpx.get(provider, headers={name: f"{scheme}custom-CANARY-key"}).status_code
        ask("my key is custom-CANARY-key")
        return status

    tracekit.instrument()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with record("sent", store=tmp_path) as run:
                work()
        with replay(run.id, store=tmp_path) as session:
            assert work() == 200
    finally:
        tracekit.uninstrument()
    assert b"CANARY" not in stored(run)
    assert session.report.exact
    (call,) = (entry for entry in entries(run) if entry["type"] == "tool.call")
    assert re.fullmatch(r"my key is REDACTED_\w{8,}", call["input"]["text"])
