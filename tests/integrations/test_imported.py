"""Imported runs: cassettes of vcrpy answer HTTP by content, the rest of the program is live, and nobody calls that exact."""

from __future__ import annotations

import asyncio
import base64
import builtins
import ctypes.util
import gzip
import json
import random
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import requests
import vcr
import zstandard
from click.testing import CliRunner

import tracekit
from tests.support.processes import python
from tracekit.cli import main
from tracekit.errors import (
    DivergenceError,
    LiveCallBlockedError,
    RecoveryRefusedError,
    ReplayError,
    RunStateError,
    TraceError,
    TraceExhaustedError,
    UnconsumedStepsError,
)
from tracekit.harness import import_cassette
from tracekit.integration import Trace, lend

URL = "http://api.example.org"
BINARY = bytes(range(256))
STREAM = 'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n'


@pytest.fixture(autouse=True)
def instrumented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEKIT_DIR", raising=False)
    tracekit.instrument()
    yield
    tracekit.uninstrument()


def interaction(
    method: str = "GET",
    uri: str = f"{URL}/a",
    body: Any = None,
    answer: Any = "answer",
    status: int = 200,
    **headers: Any,
) -> dict[str, Any]:
    """An interaction as vcrpy writes it."""
    request = {"method": method, "uri": uri, "body": body, "headers": {"Accept": ["*/*"]}}
    shown = {"Content-Type": ["text/plain"], **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = {"status": {"code": status, "message": "OK"}, "headers": shown, "body": {"string": answer}}
    return {"request": request, "response": response}


def imported(*interactions: dict[str, Any]) -> str:
    """The path of the run that a cassette with these interactions is imported as."""
    Path("cassette.json").write_text(json.dumps({"version": 1, "interactions": list(interactions)}))
    return import_cassette("cassette.json").path


def get(path: str = "/a", **options: Any) -> str:
    return httpx.get(URL + path, **options).text


# -- what vcrpy writes -------------------------------------------------------------------------------------------------


class Served(BaseHTTPRequestHandler):
    """One answer of each kind; ``/count`` has another one each time."""

    count = 0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/count":
            Served.count += 1
        body, kind, more = {
            "/json": (b'{"b": 1,  "a": [2]}', "application/json", ()),
            "/binary": (BINARY, "image/png", ()),
            "/gzip": (gzip.compress(b"squeezed"), "text/plain", (("Content-Encoding", "gzip"),)),
            "/headers": (b"", "text/plain", (("X-One", "1"), ("X-One", "2"))),
            "/stream": (STREAM.encode(), "text/event-stream", ()),
            "/count": (str(Served.count).encode(), "text/plain", ()),
        }.get(path, (self.path.encode(), "text/plain", ()))
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_address[1]}"
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


@pytest.mark.parametrize("client", [requests, httpx], ids=["requests", "httpx"])
def test_a_cassette_of_vcrpy_gives_the_same_client_the_same_answers(client: Any, server: str) -> None:
    """JSON, bytes, a compressed body, headers that come twice, a stream, forms, queries, and equal requests with unequal answers."""

    def program() -> list[Any]:
        found: list[Any] = [
            client.get(server + path) for path in ("/json", "/binary", "/gzip", "/headers", "/stream", "/q?a=1&b=%20x")
        ]
        found += [client.get(server + "/count") for _ in range(3)]
        found += [client.post(server, json={"a": [1, 2]}), client.post(server, data={"f": "ü", "g": "1"})]
        return [
            (one.status_code, one.content, one.headers.get("x-one"), one.headers.get("content-type")) for one in found
        ]

    tracekit.uninstrument()
    with vcr.use_cassette("made.yaml"):
        recorded = program()
    tracekit.instrument()
    found = import_cassette("made.yaml", "traces.jsonl")
    with tracekit.replay(found.path) as session:
        assert program() == recorded
    assert (found.exchanges, found.left_out) == (len(recorded), 0)
    assert session.report.verdict.line == "exact but for 1 imported run"


def old_httpx(content: str) -> dict[str, Any]:
    one = interaction()
    one["response"] = {
        "http_version": "HTTP/1.1",
        "status_code": 200,
        "headers": {"Content-Type": ["text/plain"]},
        "content": content,
    }
    return one


def with_body(body: Any, **headers: Any) -> dict[str, Any]:
    one = interaction(**headers)
    one["response"]["body"] = body
    return one


def parsed(value: Any) -> dict[str, Any]:
    one = interaction(Content_Type=["application/json"])
    del one["response"]["body"]
    one["response"]["parsed_body"] = value
    return one


SQUEEZED = {
    "gzip": gzip.compress(b"hello") + gzip.compress(b"!"),
    "deflate": zlib.compress(b"hello!"),
    "zstd": zstandard.compress(b"hello!"),
}


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (interaction(answer="ü"), "ü"),
        (interaction(answer=None), ""),
        (with_body({"base64_string": base64.b64encode(b"bytes").decode()}), "bytes"),
        (with_body("plain"), "plain"),
        (old_httpx("of old"), "of old"),
        (parsed({"a": 1}), '{"a":1}'),
        (interaction(answer="decoded already", Content_Encoding=["gzip"]), "decoded already"),
        *(
            (with_body({"base64_string": base64.b64encode(data).decode()}, Content_Encoding=[name]), "hello!")
            for name, data in SQUEEZED.items()
        ),
    ],
)
def test_each_form_of_a_body_is_read(one: dict[str, Any], text: str) -> None:
    """As vcrpy, older versions of it, and serializers that others have put in its place write them."""
    with tracekit.replay(imported(one)):
        assert get() == text


def test_json_needs_no_yaml_and_yaml_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only cassettes in YAML need PyYAML; the error names the extra that brings it."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert Trace(imported(interaction())).imported_from == "vcr"
    Path("cassette.yaml").write_text("interactions: []\nversion: 1\n")
    with pytest.raises(TraceError, match="PyYAML") as caught:
        import_cassette("cassette.yaml")
    assert "pip install PyYAML" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", "{", "not JSON"),
        ("a.yaml", "a: [", "no YAML"),
        ("a.yaml", "!!python/object/apply:os.system ['touch harm']", "no YAML that holds plain data"),
        ("a.json", '{"openapi": "3.1"}', "no list of interactions"),
        ("a.json", '[{"request": {}}]', "before 1.0"),
        ("a.json", '{"version": 2, "interactions": []}', "version is 2"),
        ("a.json", json.dumps({"interactions": [interaction(), {"request": {}}]}), "interaction 2: it has no response"),
        ("a.json", json.dumps({"interactions": [interaction(uri="/a")]}), "no uri"),
        ("a.json", json.dumps({"interactions": [interaction(status=None)]}), "no status"),  # type: ignore[arg-type]
        ("a.json", json.dumps({"interactions": [interaction(answer="?", Content_Encoding=["lzma"])]}), "'lzma'"),
        ("a.txt", "", "neither a .yaml nor a .json"),
        ("gone.json", None, "does not exist"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_with_what_is_wrong(name: str, content: str | None, says: str) -> None:
    """The error has the file, the place in it, and what to do; nothing is written, and nothing that the file names is executed."""
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(TraceError, match=r"next:") as caught:
        import_cassette(name)
    assert name in str(caught.value)
    assert says in str(caught.value)
    assert not Path(".tracekit").exists()
    assert not Path("harm").exists()


# -- answers by content --------------------------------------------------------------------------------------------------


def test_requests_are_answered_by_content_and_equal_ones_in_order() -> None:
    """Other requests in another order, other threads, another order of keys and parameters: content decides."""
    path = imported(
        interaction(uri=f"{URL}/a?x=1&y=2", answer="query"),
        interaction("POST", body='{"a": 1, "b": 2}', answer="one"),
        interaction("POST", body='{"a": 1, "b": 2}', answer="two"),
        interaction(uri=f"{URL}/s%3A1?key=DUMMY", answer="escaped"),
        *(interaction(uri=f"{URL}/many", answer=str(n)) for n in range(8)),
    )
    with tracekit.replay(path) as session:
        assert requests.post(f"{URL}/a", json={"b": 2, "a": 1}).text == "one"
        assert get("/a?y=2&x=1") == "query"
        assert httpx.post(f"{URL}/a", json={"b": 2, "a": 1}).text == "two"
        assert get("/s:1?key=AIza-of-today") == "escaped"
        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(get, ["/many"] * 8)) == [str(n) for n in range(8)]
    assert session.report.consumed == 12


def test_a_request_that_differs_shows_how_the_nearest_one_does() -> None:
    """The first difference is the failure of the replay, whatever the program catches, and nothing goes out."""
    path = imported(
        interaction("POST", body='{"model": "m", "prompt": "Hi"}'), interaction("POST", body='{"other": true, "x": 1}')
    )

    def program() -> None:
        with tracekit.replay(path):
            try:
                httpx.post(f"{URL}/a", json={"model": "m", "prompt": "Hello"})
            except Exception:
                pytest.fail("an agent could swallow it")

    with pytest.raises(DivergenceError) as caught:
        program()
    assert caught.value.differences == [{"path": "input.body.prompt", "recorded": "Hi", "actual": "Hello"}]  # type: ignore[attr-defined]
    assert "the nearest of 2 unused" in str(caught.value)
    assert Path(__file__).name in str(caught.value)


def test_what_is_not_there_or_not_asked_for_fails() -> None:
    """A request to another address, one too many, and interactions that are left over."""
    path = imported(interaction(), interaction(uri=f"{URL}/b"))
    with (
        pytest.raises(TraceExhaustedError, match=r"no exchange with GET http://api.example.org/c; unused are GET .*/a"),
        tracekit.replay(path),
    ):
        get("/c")
    with pytest.raises(TraceExhaustedError, match=r"1 exchange\(s\) with .*/a are all used"), tracekit.replay(path):
        [get() for _ in range(2)]
    with pytest.raises(UnconsumedStepsError, match="1 recorded step"), tracekit.replay(path):
        get()


def test_a_redirect_is_followed_hop_by_hop() -> None:
    """A cassette has each hop as an exchange; whoever does not follow gets the first one."""
    hop = interaction(answer="moved", status=302, Location=["/b"])
    path = imported(
        hop, interaction(uri=f"{URL}/b"), hop, interaction(uri=f"{URL}/b"), hop, interaction(uri=f"{URL}/b"), hop
    )

    async def asynchronous() -> httpx.Response:
        async with httpx.AsyncClient(follow_redirects=True) as client:
            return await client.get(f"{URL}/a")

    with tracekit.replay(path):
        found: list[Any] = [
            httpx.get(f"{URL}/a", follow_redirects=True),
            asyncio.run(asynchronous()),
            requests.get(f"{URL}/a"),
        ]
        unfollowed = httpx.get(f"{URL}/a")
    assert [(one.text, str(one.url), [past.status_code for past in one.history]) for one in found] == [
        ("answer", f"{URL}/b", [302])
    ] * 3
    assert (unfollowed.status_code, unfollowed.has_redirect_location) == (302, True)


def test_a_field_can_be_left_out_of_the_comparison() -> None:
    """As in every replay: what matchers of vcrpy were for."""
    path = imported(interaction("POST", body='{"user": "u-1", "n": 1}'))
    with tracekit.replay(path, ignore={"http": ["input.body.user"]}) as session:
        assert httpx.post(f"{URL}/a", json={"user": "u-2", "n": 1}).text == "answer"
    assert (
        session.report.verdict.line
        == "exact but for 1 imported run, 1 step inside what is excluded from the comparison"
    )


def test_a_body_that_is_sent_piece_by_piece_is_compared() -> None:
    """A request body that is produced in pieces is compared with the imported one as a whole: equal is answered, other
    text diverges."""
    path = imported(interaction("POST", body="one two"), interaction("POST", body="one two"))

    def pieces(*texts: bytes) -> Iterator[bytes]:
        yield from texts

    with tracekit.replay(path):
        assert httpx.post(f"{URL}/a", content=pieces(b"on", b"e two")).text == "answer"
        assert requests.post(f"{URL}/a", data=b"one two").text == "answer"
    with pytest.raises(DivergenceError, match="another body"), tracekit.replay(path):
        httpx.post(f"{URL}/a", content=pieces(b"one three"))


def test_a_model_call_that_was_streamed_is_streamed() -> None:
    """The SDK's own code reads the recorded events; the trace has the call as a recording has it, with its tokens."""

    def chunk(text: str | None, **more: Any) -> str:
        choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
        value = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": choices, **more}
        return f"data: {json.dumps(value)}\n\n"

    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    events = chunk("Good") + chunk(" day") + chunk(None, usage=usage) + "data: [DONE]\n\n"
    asked = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    one = interaction(
        "POST",
        "https://api.openai.com/v1/chat/completions",
        json.dumps(asked),
        events,
        Content_Type=["text/event-stream"],
    )
    path = imported(one)
    with tracekit.replay(path):
        client = openai.OpenAI()
        stream = client.chat.completions.create(**asked)
        pieces = [one.choices[0].delta.content for one in stream if one.choices]
        client.close()
    assert pieces == ["Good", " day"]
    shown = CliRunner().invoke(main, ["show", path])
    assert "“Good day”  3 + 2 tokens" in shown.output


# -- the rest is live ----------------------------------------------------------------------------------------------------


@tracekit.traced_tool(side_effect="irreversible")
def send(to: str) -> str:
    """Makes a request, and does something in this process."""
    return f"{to}: {get()}"


def test_clock_random_numbers_and_tools_are_live_and_the_verdict_says_imported() -> None:
    """Nothing of them is in a cassette; a tool's requests are answered like all others."""
    path = imported(interaction())
    with tracekit.replay(path) as session:
        before = time.time()
        drawn = {random.random() for _ in range(5)}
        assert send("acme") == "acme: answer"
        run = tracekit.current_run()
        assert run is not None
        assert (run.id, run.path) == (session.run_id, path)
        session.set_result("any")
    assert abs(time.time() - before) < 60
    assert len(drawn) == 5
    verdict = session.report.verdict
    assert (verdict.answer, verdict.exit_code) == ("exact but for", 0)
    assert [one.code for one in verdict.allowed] == ["imported"]
    assert "imported from vcr" in verdict.allowed[0].text
    assert not session.report.exact


def test_the_programs_own_end_is_its_own() -> None:
    """How the recorded program ended is not known: an exception of today's comes out as it is."""
    path = imported(interaction())

    def program() -> None:
        with tracekit.replay(path):
            get()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()


def test_a_process_that_ends_inside_the_block_says_the_verdict() -> None:
    """As in every replay; nothing is left behind, and nothing warns."""
    path = imported(interaction())
    Path("ends.py").write_text(
        "import tracekit, httpx\ntracekit.instrument()\n"
        f"tracekit.replay({path!r}).__enter__()\nprint(httpx.get('{URL}/a').text)\n"
    )
    done = python("-W", "error", "ends.py")
    assert (done.returncode, done.stdout) == (0, "answer\n"), done.stderr
    assert "exact but for 1 imported run; the process ended inside its block" in done.stderr
    assert "Traceback" not in done.stderr


@tracekit.traced_tool(side_effect="reversible", compensate=lambda to: unsent.append(to))
def book(to: str) -> str:
    return to


unsent: list[str] = []


def test_what_programs_do_beside_requests_works_as_it_does_live() -> None:
    """Tasks, threads, time limits, calls that happen once, blocks of effects, the program's own `record()`, and giving the run up."""
    path = imported(*(interaction(uri=f"{URL}/{n}", answer=str(n)) for n in range(6)))

    @tracekit.traced_tool(side_effect="read_only", timeout_ms=60_000, max_retries=1)
    async def ask(client: httpx.AsyncClient, n: int) -> str:
        return (await client.get(f"{URL}/{n}")).text

    @tracekit.traced_tool(side_effect="irreversible", exactly_once=True)
    def once(n: int) -> int:
        called.append(n)
        return n

    async def tasks() -> list[str]:
        async with httpx.AsyncClient() as client:
            found = await asyncio.gather(ask(client, 0), ask(client, 1))
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                found.append(await asyncio.wait_for(ask(client, 2), 60))
        return [*found, await asyncio.to_thread(get, "/3")]

    @tracekit.record
    def program() -> None:
        with tracekit.effect("print", side_effect="irreversible"):
            assert get("/4") == "4"
        tracekit.decision("go on", input=None, output=True)
        assert [once(7), once(7), book("seat")] == [7, 7, "seat"]
        assert get("/5") == "5"

    called: list[int] = []
    block = tracekit.replay(path)
    with block as session:
        assert asyncio.run(tasks()) == ["0", "1", "2", "3"]
        lend(block.as_run())
        program()
        run = tracekit.current_run()
        assert run is not None
        run.abort("changed our minds")
    assert session.report.verdict.line == "exact but for 1 imported run"
    assert (called, unsent) == ([7], ["seat"])


def dial() -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=1).close()


@tracekit.traced_tool(side_effect="read_only")
def dialling() -> None:
    dial()


def started() -> None:
    subprocess.run([sys.executable, "-c", "open('harm', 'w')"])


@tracekit.traced_tool(side_effect="irreversible")
def starting() -> None:
    started()


@pytest.mark.parametrize("reach", [dial, dialling, started, starting])
def test_nothing_live_is_reached(reach: Callable[[], None]) -> None:
    """The guard stands, around the bodies of tools too: no connection, no process."""
    with pytest.raises(LiveCallBlockedError), tracekit.replay(imported(interaction())):
        reach()
    assert not Path("harm").exists()


def test_what_the_interpreter_asks_of_programs_is_no_harm() -> None:
    """As in every replay: a library's first use of `ctypes.util` runs `ldconfig`, and the first look at the platform `uname`."""
    with tracekit.replay(imported(interaction())):
        ctypes.util.find_library("c")
        get()


def test_an_irreversible_tool_runs_behind_the_guard_only() -> None:
    """Without the guard its effect could be a real one."""
    path = imported(interaction())
    with pytest.raises(LiveCallBlockedError, match="irreversible"), tracekit.replay(path, guard="off"):
        send("acme")


def test_nothing_is_left_behind_and_nothing_runs_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay writes nothing into the store; a thread that comes late gets no answer."""
    path = imported(interaction(), interaction(uri=f"{URL}/b"))
    places = tmp_path / "temporary"
    places.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(places))
    stored = sorted(Path(".tracekit").rglob("*"))
    late: list[BaseException] = []
    go = threading.Event()

    def comes_late() -> None:
        go.wait()
        try:
            get("/b")
        except BaseException as error:
            late.append(error)

    thread = threading.Thread(target=comes_late)
    try:
        with tracekit.replay(path):
            thread.start()
            get()
    except UnconsumedStepsError:
        pass
    finally:
        go.set()
        thread.join()
    assert isinstance(late[0], ReplayError)
    assert sorted(Path(".tracekit").rglob("*")) == stored
    assert not [*places.iterdir()]


def test_live_steps_can_not_be_chosen() -> None:
    """``replay(live=…)`` is refused where the recording was imported."""
    with pytest.raises(RunStateError, match="imported"), tracekit.replay(imported(interaction()), live={"llm"}):
        pass


# -- secrets -------------------------------------------------------------------------------------------------------------


def test_secrets_are_redacted_as_in_a_recording() -> None:
    """In headers, URLs, bodies and answers; today's own key stands where the recorded one stood."""
    key, token = "sk-proj-" + "aB3dE5fG7hI9" * 4, "ghp_" + "R4nd0mT0k3n9" * 3
    one = interaction(
        "POST",
        f"{URL}/a?api_key={key}",
        json.dumps({"password": "hunter2-Xy9", "text": f"use {token}"}),
        f"your key is {key}",
    )
    one["request"]["headers"]["Authorization"] = [f"Bearer {key}"]
    one["response"]["headers"]["Set-Cookie"] = ["session=abc123def456; Path=/"]
    path = imported(one)
    text = Path(path).read_text()
    assert not [secret for secret in (key, token, "hunter2-Xy9", "abc123def456") if secret in text]
    body = {"password": "another-Zq7", "text": f"use ghp_{'0th3rT0k3n5x' * 3}"}
    with tracekit.replay(path) as session:
        answer = httpx.post(f"{URL}/a?api_key=mine", json=body)
        assert key not in answer.text
    assert "redacted" in session.report.verdict.line


# -- commands ------------------------------------------------------------------------------------------------------------


def test_commands_say_that_a_run_is_imported() -> None:
    """`show`, `verify`, `diff` and `report` name it; what would run a program from it refuses, and says why."""
    Path("cassette.json").write_text(json.dumps({"version": 1, "interactions": [interaction()]}))
    made = CliRunner().invoke(main, ["import", "vcr", "cassette.json", "--run-id", "moved"])
    assert (made.exit_code, Path(".tracekit/runs/moved.jsonl").exists()) == (0, True)
    for command in (["show", "moved"], ["show", "moved", "--why"], ["verify", "moved"], ["diff", "moved", "moved"]):
        shown = CliRunner().invoke(main, command)
        assert shown.exit_code == 0
        assert "imported from vcr" in " ".join(shown.output.split()), command
    assert json.loads(CliRunner().invoke(main, ["verify", "moved", "--json"]).stdout)["imported_from"] == "vcr"
    assert CliRunner().invoke(main, ["verify", "moved", "--schema"]).exit_code == 0
    assert CliRunner().invoke(main, ["report", "moved", "-o", "report.html"]).exit_code == 0
    assert "imported from vcr" in Path("report.html").read_text()
    for command, code in (("replay", 2), ("verify-determinism", 2), ("recovery resume", 4)):
        refused = CliRunner().invoke(main, [*command.split(), "moved"])
        assert refused.exit_code == code
        assert "imported" in refused.output, command
    with pytest.raises(RecoveryRefusedError, match="imported from vcr"), tracekit.resume("moved"):
        pass


def test_a_directory_is_imported_as_far_as_it_can_be() -> None:
    """One trace for each cassette at the same place; files that are none are named, and the exit code says so."""
    Path("cassettes/test_a").mkdir(parents=True)
    Path("cassettes/test_a/test_one[x y].json").write_text(json.dumps({"interactions": [interaction()]}))
    Path("cassettes/test_a/test_two.yaml").write_text("interactions: []\nversion: 1\n")
    Path("cassettes/other.json").write_text("[]")
    done = CliRunner().invoke(main, ["import", "vcr", "cassettes", "-o", "traces", "--json"])
    assert done.exit_code == 2
    assert "cassettes/other.json is" in done.stderr
    assert [json.loads(line)["exchanges"] for line in done.stdout.splitlines()] == [1, 0]
    assert sorted(map(str, Path("traces").rglob("*.jsonl"))) == [
        "traces/test_a/test_one[x y].jsonl",
        "traces/test_a/test_two.jsonl",
    ]
    again = CliRunner().invoke(main, ["import", "vcr", "cassettes", "-o", "traces"])
    assert again.exit_code == 2
    for name in ("test_one[x y]", "test_two"):
        assert f"was not imported: traces/test_a/{name}.jsonl exists" in again.stderr
    assert again.stderr.count("remove that trace to import the cassette again, or name another place with -o") == 2
    assert CliRunner().invoke(main, ["import", "vcr", "cassettes"]).exit_code == 2
