"""No secret reaches the store: canaries planted wherever a run takes something from its surroundings, then every byte is searched."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.support.processes import python
from tests.support.tracing import entries
from tracekit import decision, record, replay, traced_tool

TAIL = "Zx9Kq3Lm7Rt2Vb8Nc4Pw6"


def key(where: str) -> str:
    """A canary in the format of an OpenAI key, which says where it was planted."""
    return f"sk-proj-CANARY{where}{TAIL}"


def stored(place: Path) -> bytes:
    """Everything in the store: the names of its files and every byte of them."""
    return b"\n".join(
        str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in sorted(place.rglob("*"))
    )


def no_canary(place: Path) -> None:
    data = stored(place)
    at = data.find(b"CANARY")
    assert at < 0, data[max(0, at - 200) : at + 100]
    assert base64.b64encode(TAIL.encode())[:-4] not in data
    assert b"run.started" in data


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@traced_tool(side_effect="irreversible")
def login(token: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"session": token.replace("ARG", "RESULT"), "raw": token.encode(), "ok": True}


@traced_tool(side_effect="read_only")
def failing(token: str) -> None:
    raise ValueError(f"401: {token} is not valid") from KeyError(token)


@traced_tool(side_effect="read_only")
def streamed(parts: int) -> Iterator[str]:
    whole = f"the key is {key('STREAM')} as you know"
    size = len(whole) // parts + 1
    for i in range(0, len(whole), size):
        yield whole[i : i + size]


def agent() -> list[Any]:
    seen: list[Any] = [login(key("ARG"), {"deep": [key("DEEP"), {key("NAME"): 1}]})["ok"]]
    try:
        failing(key("RAISED"))
    except ValueError as error:
        seen.append(type(error).__name__)
    decision("choose", input={"with": key("DECISION")}, output=key("DECIDED"))
    seen.append([len(list(streamed(parts))) for parts in (1, 2, 3, 7, 40)])
    return seen


@pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")
def test_values(store: Path) -> None:
    """Arguments, results, exception texts and causes, decisions, streams cut anywhere, metadata, input, identity, run result."""
    with record(
        "values", store=store, metadata={"note": key("METADATA")}, input={"q": key("INPUT")}, agent="a",
        identity={"token": key("IDENTITY")},
    ) as run:  # fmt: skip
        seen = agent()
        run.set_result([seen, key("OUTCOME")])
    no_canary(store)
    with replay(run.id, store=store) as session:
        assert agent() == seen
    assert session.report.exact
    no_canary(store)


def test_what_was_redacted_is_marked(store: Path) -> None:
    """A step whose output was redacted says so in its entry, and the run warns that a replay passes on the placeholder."""

    @record("marked", store=store)
    def program() -> None:
        login("plain", None)
        login(key("ARG"))

    with pytest.warns(RuntimeWarning, match="output of tool 'login' was redacted"):
        program()
    (run,) = map(str, store.rglob("*.jsonl"))
    marks = [entry.get("meta", {}).get("redacted") for entry in entries(run) if entry["type"] == "tool.return"]
    assert marks[0] is None
    placeholder = marks[1][0][2]
    assert {mark[0] for mark in marks[1]} == {"/output/session", "/output/raw"}
    with replay(run, store=store):
        login("plain", None)
        assert login(key("ARG"))["session"] == placeholder


@pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")
def test_matching_stays_right(store: Path) -> None:
    """A replay that passes the same secret, or the placeholder, matches; another argument beside it is still a divergence."""
    with record("match", store=store) as run:
        login(key("ARG"), {"amount": 1})
    for token in (key("ARG"), key("OTHER")):  # of another process, where no variable says it
        with replay(run.id, store=store) as session:
            login(token, {"amount": 1})
        assert session.report.exact
    with pytest.raises(tracekit.DivergenceError), replay(run.id, store=store):
        login(key("ARG"), {"amount": 2})


@pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")
@pytest.mark.parametrize("cut", [7, 9, 14, 20, 33])
def test_bytes_and_patterns_of_the_user(store: Path, cut: int) -> None:
    """Chunks of bytes are one text as well, and the user's own patterns hold for both."""
    whole = f"pin=4711-0815 key={key('BYTES')}.".encode()

    @traced_tool(side_effect="read_only")
    def download() -> Iterator[bytes]:
        yield whole[:cut]
        yield whole[cut:]

    with record("bytes", store=store, redact=[r"\d{4}-\d{4}"]) as run:
        assert b"".join(download()) == whole
    no_canary(store)
    raw = b"".join(base64.b64decode(e["output"]["v"]) for e in entries(run) if e["type"] == "tool.chunk")
    assert b"4711-0815" not in raw
    assert b"CANARY" not in raw


class _Provider(BaseHTTPRequestHandler):
    """Answers with secrets in headers, bodies and one server-sent event that comes in two writes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("set-cookie", f"session={key('COOKIE')}")
        self.send_header("x-echo", key("ECHO"))
        if "stream" not in self.path:
            body = json.dumps({"answer": f"use {key('ANSWER')}"}).encode()
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        event = f'data: {{"text": "take {key("EVENT")} then"}}\n\n'.encode()
        for part in (event[:35], event[35:]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.filterwarnings("ignore:tracekit. run .* was redacted")
def test_http(store: Path, provider: str) -> None:
    """Headers, cookies, URL, query, user and password, body, answer, and one event of a stream that came in two pieces."""
    import httpx

    def ask() -> list[Any]:
        headers = {
            "authorization": f"Bearer {key('HEADER')}",
            "x-api-key": "CANARY-plain-header",
            "x-other": key("OTHER"),
        }
        with httpx.Client(headers=headers, cookies={"id": "CANARY-cookie"}, auth=("me", "CANARY-password")) as client:
            url = f"{provider}/ask?api_key=CANARY-query&q={key('QUERY')}"
            answer = client.post(url, json={"prompt": f"my key is {key('BODY')}", "password": key("FIELD")})
            with client.stream("POST", f"{provider}/stream", content=key("RAW").encode()) as response:
                pieces = list(response.iter_text())
        return [answer.status_code, "".join(pieces).startswith("data: ")]

    tracekit.instrument()
    try:
        with record("http", store=store) as run:
            seen = ask()
        no_canary(store)
        with replay(run.id, store=store) as session:
            assert ask() == seen
        assert session.report.exact
    finally:
        tracekit.uninstrument()
    kinds = [entry["type"] for entry in entries(run)]
    assert kinds.count("http.request") == 2
    assert kinds.count("http.chunk") >= 2
    no_canary(store)


PROGRAM = """
import os, sys
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def read(path):
    with open(path) as file:
        return file.read()

print(len(input()), sys.stdin.readline()[:3], os.environ["OPENAI_API_KEY"][:3])
print(len(read(sys.argv[1])))
sys.exit(sys.argv[2] != "--token")
"""


@pytest.mark.parametrize("token", ["--token", "--token="])
def test_the_whole_program(tmp_path: Path, token: str) -> None:
    """Arguments, environment, standard input, names and contents of files under ``tracekit run``."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "agent.py").write_text(PROGRAM)
    name = f"notes-{key('FILE')}.txt"
    (place / name).write_text(f"Bearer {key('CONTENT')}")
    packages = [str(Path(tracekit.__file__).parents[1]), str(Path(__file__).parents[2] / "integrations")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(packages),
        "TRACEKIT_DIR": str(tmp_path / "store"),
        "OPENAI_API_KEY": key("ENV"),
        "DB_PASSWORD": "CANARY-db",
    }
    rest = (
        ["--token", "CANARY-argument"] if token == "--token" else ["--token", "--secret=CANARY-argument", key("ARGV")]
    )
    told = f"{key('STDIN')}\n{key('LINE')}\n"
    done = python("-m", "tracekit", "run", "agent.py", name, *rest, input=told, cwd=place, env=environment)
    assert done.returncode == 0, done.stderr
    no_canary(tmp_path / "store")


def test_many_redacted_outputs_take_few_lines(tmp_path: Path) -> None:
    """A service that sets a cookie has one in every answer: `run` and `replay` name three of the outputs, and count the
    others."""
    (tmp_path / "agent.py").write_text(
        "from tracekit import traced_tool\n"
        "for n in range(9):\n"
        '    @traced_tool(side_effect="read_only", name=f"look{n}")\n'
        "    def look():\n"
        f"        return {key('LINE')!r}\n"
        "    look()\n"
    )
    for command in (("run", "agent.py"), ("replay", "last")):
        done = python("-m", "tracekit", *command, cwd=tmp_path, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("was redacted: ") == 3
        assert "  6 more outputs were redacted: `tracekit show " in done.stderr
