"""``requests``, ``urllib3``, ``botocore`` and the standard library: recorded, and replayed by their own code from recorded bytes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import queue
import socket
import threading
import urllib.request
import warnings
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httplib2
import httpx
import pytest
import requests
import urllib3

import tracekit
from tests.integrations import web_programs
from tests.integrations.web_programs import PROGRAMS
from tests.support.cut import cut
from tests.support.place import Place
from tests.support.stub_provider import StubProvider
from tests.support.web import CODED, SECRET, Servers
from tracekit import recovery
from tracekit.errors import ContractViolationError, DivergenceError, LiveCallBlockedError
from tracekit.integration import Trace, forbidding, read_run


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    found = Servers(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def entries(run: tracekit.Run) -> list[dict[str, Any]]:
    trace = Trace(run.path)
    return [trace.expand(dict(entry)) for entry in trace.entries()]


def recorded(program: Callable[[], Any]) -> tuple[tracekit.Run, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with tracekit.record() as run:
            saw = plain(program())
    return run, saw


@pytest.mark.parametrize("name", PROGRAMS)
def test_libraries(name: str, servers: Servers, instrumented: None) -> None:
    """Every program sees the same bare, recorded, replayed beside the servers, which hear nothing, and replayed without them."""

    def program() -> Any:
        return PROGRAMS[name](servers.roots)

    bare = plain(program())
    run, saw = recorded(program)
    assert saw == bare
    servers.rest()
    before = servers.hits
    with tracekit.replay(run.id) as session:
        assert plain(program()) == bare
    assert session.report.verdict.answer == "exact"
    assert servers.hits == before
    servers.stop()
    with tracekit.replay(run.id):
        assert plain(program()) == bare


def test_a_fresh_process_reads_what_travelled(servers: Servers, place: Place) -> None:
    """With the server gone, another process gets each body byte for byte as it travelled, with its headers, however it is read."""
    file = place.program("""
        import sys, urllib.request
        import requests

        for path in sys.argv[2].split():
            with requests.get(sys.argv[1] + path, stream=True) as response:
                print(path, sorted(response.headers.items()), response.raw.read())
            with requests.get(sys.argv[1] + path, stream=True) as response:
                print(response.raw.read(decode_content=path[-1] == "e"))
            request = urllib.request.Request(sys.argv[1] + path, headers={"Accept-Encoding": "gzip, deflate"})
            with urllib.request.urlopen(request) as response:
                print(sorted(response.headers.items()), response.read())
    """)
    paths = " ".join(path for path in web_programs.CODED if "name=t" not in path)
    recorded = place.cli("run", file, servers.roots.http, paths)
    assert recorded.returncode == 0, recorded.stderr
    assert repr(CODED["members"][1]) in recorded.stdout
    servers.stop()
    replayed = place.cli("replay", place.run)
    assert replayed.stdout == recorded.stdout, replayed.stderr
    assert "exact" in replayed.stderr


@pytest.mark.parametrize("how", ["whole", "chunks"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_a_secret_in_a_compressed_body(coding: str, how: str, servers: Servers, instrumented: None) -> None:
    """It is found in a body that is read as it travels, too: the trace has neither it nor those bytes, and the replay says so; what
    travels there has the same coding, and whoever undoes it gets what the trace has."""
    if coding in ("br", "zstd"):
        pytest.importorskip({"br": "brotli", "zstd": "zstandard"}[coding])
    url = f"{servers.roots.http}/secret?coding={coding}&how={how}"

    def read(**how: bool) -> Any:
        with requests.get(url, headers={"Accept-Encoding": coding}, stream=True) as response:
            headers = [response.headers.get(name) for name in ("content-encoding", "content-length")]
            return headers, response.raw.read(**how)

    def program() -> Any:
        coded, (headers, body) = read(decode_content=False), read(decode_content=True)
        if body == coded[1]:  # not every version of the library knows zstd
            body = undone(coding, body)
        return coded, headers, body

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with tracekit.record() as run:
            (_, travelled), _, whole = program()
    assert SECRET in whole.decode()
    stored = Path(run.path).read_text()
    assert SECRET not in stored
    assert base64.b64encode(travelled).decode() not in stored
    with tracekit.replay(run.id) as session:
        ((said, length), coded), (again, _), whole = program()
    assert said == again == coding
    assert length in (None, str(len(coded)))
    for body in (undone(coding, coded), whole):
        key = json.loads(body)["api_key"]
        assert key != SECRET
        assert "REDACTED" in key
    assert {reason.code for reason in session.report.verdict.remarks} == {"redacted"}


def undone(coding: str, data: bytes) -> bytes:
    if coding == "br":
        return bytes(pytest.importorskip("brotli").decompress(data))
    if coding == "zstd":
        return bytes(pytest.importorskip("zstandard").ZstdDecompressor().decompressobj().decompress(data))
    return zlib.decompress(data, zlib.MAX_WBITS + 32)


def test_who_does_not_ask_for_a_coding(servers: Servers, instrumented: None) -> None:
    """A body that was recorded with a coding that the program asked for is none for one that does not ask for it, and may not know it."""

    def program(asks: str) -> None:
        requests.get(servers.roots.http + "/gzip", headers={"Accept-Encoding": asks})

    run, _ = recorded(lambda: program("gzip"))
    with pytest.raises(DivergenceError, match="content coding"), tracekit.replay(run.id):
        program("identity")


def test_the_queue_of_a_pool(servers: Servers, instrumented: None) -> None:
    """What a pool of connections keeps its connections in is a queue like before, of which nothing is recorded, by whom it may be used."""

    def program() -> Any:
        with urllib3.PoolManager(maxsize=2) as pool:
            found = pool.connection_from_url(servers.roots.http)
            statuses = [found.urlopen("GET", "/echo").status for _ in range(3)]
            kept = found.pool
            assert isinstance(kept, queue.LifoQueue)
            first, second = kept.get(), kept.get()
            with pytest.raises(queue.Empty):
                kept.get(timeout=0.001)
            kept.put(second)
            kept.put(first)
            with pytest.raises(queue.Full):
                kept.put(None, block=False)
            return statuses, kept.qsize(), found.num_connections

    run, saw = recorded(program)
    assert saw == [[200, 200, 200], 2, 1]
    assert "queue." not in Path(run.path).read_text().replace("queue.qsize", "")
    assert replayed(run, program) == saw


def types(run: tracekit.Run) -> list[str]:
    return [entry["type"] for entry in entries(run) if entry["type"].startswith(("http.", "llm.", "tool."))]


def replayed(run: tracekit.Run, program: Callable[[], Any]) -> Any:
    with tracekit.replay(run.id):
        return plain(program())


def test_nothing_is_opened(servers: Servers, instrumented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a replay no socket is made and no name looked up, plain or with TLS, direct or by a proxy, by whichever library."""
    proxies = {"http": servers.roots.proxy, "https": servers.roots.proxy}

    def program() -> Any:
        out: list[Any] = [requests.get(servers.roots.https + "/echo", verify=servers.roots.ca, proxies=proxies).json()]
        out.append(requests.get(servers.roots.http + "/echo", proxies=proxies).json())
        with urllib.request.urlopen(servers.roots.http + "/echo") as response:
            out.append(json.load(response))
        return out

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a socket was made")

    run, saw = recorded(program)
    monkeypatch.setattr(socket.socket, "__init__", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert replayed(run, program) == saw


@pytest.mark.parametrize("streamed", [False, True])
def test_model_calls(provider: StubProvider, instrumented: None, streamed: bool) -> None:
    """A POST to a model's endpoint is a model call, with its model and usage; a stream piece by piece."""

    def program() -> Any:
        body = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": streamed}
        body["stream_options"] = {"include_usage": True}
        with requests.post(provider.url + "/v1/chat/completions", json=body, stream=streamed) as response:
            return [line.decode() for line in response.iter_lines()] if streamed else response.json()

    run, saw = recorded(program)
    call = [entry for entry in entries(run) if entry["type"].startswith("llm.")]
    assert call[0]["type"] == "llm.request"
    assert call[0]["name"] == "m-1"
    assert call[-1]["type"] == "llm.response"
    assert call[-1]["meta"]["usage"]["output_tokens"] > 0
    assert (len(call) > 2) is streamed
    assert replayed(run, program) == saw
    assert sum(provider.requests.values()) == 1


def test_a_stream_that_is_read_whole(provider: StubProvider, instrumented: None) -> None:
    """A model's stream that the program takes as one text has its usage, too."""

    def program() -> Any:
        body = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        body["stream_options"] = {"include_usage": True}
        return requests.post(provider.url + "/v1/chat/completions", json=body).text

    run, saw = recorded(program)
    call = [entry for entry in entries(run) if entry["type"].startswith("llm.")]
    assert [entry["type"] for entry in call] == ["llm.request", "llm.response"]
    assert call[-1]["meta"]["usage"]["output_tokens"] > 0
    assert replayed(run, program) == saw


@pytest.mark.parametrize("headers", [{}, {"x-stub-pieces": "1"}], ids=["at once", "in pieces"])
def test_an_answer_in_pieces_has_its_usage(provider: StubProvider, instrumented: None, headers: dict[str, str]) -> None:
    """An answer that is no stream is read as the model call that it is, in whatever pieces it comes: usage, and text."""

    def program() -> Any:
        body = json.dumps({"model": "m-1", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        asked = urllib.request.Request(provider.url + "/v1/chat/completions", data=body, headers=headers)
        with urllib.request.urlopen(asked) as response:
            return json.load(response)

    run, saw = recorded(program)
    (answer,) = (entry for entry in entries(run) if entry["type"] == "llm.response")
    assert answer["meta"]["usage"]["output_tokens"] == saw["usage"]["completion_tokens"]
    with read_run(run.path) as found:
        (call,) = (step.call for step in found.own.steps.values() if step.call is not None)
        assert call.answer.text == saw["choices"][0]["message"]["content"]
    assert replayed(run, program) == saw


def test_pieces_are_on_the_log_before_the_program_has_them(servers: Servers, instrumented: None) -> None:
    """Whatever a program has of a stream is in the file already, and of an upload whatever has left."""
    seen: list[bool] = []

    def pieces(run: tracekit.Run) -> Iterator[bytes]:
        yield b"first of an upload"
        seen.append(b"first of an upload" in Path(run.path).read_bytes())
        yield b"second"

    with tracekit.record() as run:
        with requests.get(servers.roots.http + "/sse", stream=True) as response:
            seen.append(b'"status":200' in Path(run.path).read_bytes())
            for i, line in enumerate(filter(None, response.iter_lines(chunk_size=1))):
                seen.append(
                    line[-8:] in Path(run.path).read_bytes() or b'\\"i\\": %d' % i in Path(run.path).read_bytes()
                )
        requests.post(servers.roots.http + "/echo", data=pieces(run))
    assert seen == [True] * 8


@pytest.mark.parametrize("how", ["chunked", "late", "length"])
def test_pieces_that_are_received_at_once(servers: Servers, instrumented: None, how: str) -> None:
    """What a program does between the pieces of a stream, or where it leaves it, is exact whatever was received together: head and
    pieces, pieces and the end, or the end of a piece with the next one."""

    @tracekit.traced_tool(side_effect="read_only")
    def note(text: str) -> str:
        return text.upper()

    def program() -> Any:
        out: list[str] = []
        for count in (0, 1, 5):
            with requests.get(servers.roots.http + f"/together?how={how}", stream=True) as response:
                out.append(note("head"))
                lines = response.iter_lines(chunk_size=None if how != "length" else 4)
                out += [note(line.decode()) for line in islice(lines, count)]
            out.append(requests.get(servers.roots.http + "/headers").text)
        return out

    run, saw = recorded(program)
    assert saw.count("ONE") == 2
    assert saw.count("TWO") == 1
    with tracekit.replay(run.id) as session:
        assert plain(program()) == saw
    assert session.report.verdict.line == "exact"


def test_threads_without_the_run(servers: Servers, instrumented: None) -> None:
    """A request of a thread that knows of no run is none of its steps."""

    def program() -> None:
        thread = threading.Thread(target=Context().run, args=(requests.get, servers.roots.http + "/echo"))
        thread.start()
        thread.join()
        requests.get(servers.roots.http + "/headers")

    run, _ = recorded(program)
    assert types(run) == ["http.request", "http.response"]
    assert servers.plain.hits == {"/echo": 1, "/headers": 1}


def test_threads_of_the_run(servers: Servers, instrumented: None) -> None:
    """Requests of a pool of threads are answered each with its own."""

    def program() -> Any:
        with ThreadPoolExecutor(4) as pool, requests.Session() as session:
            return list(pool.map(lambda n: session.post(servers.roots.http + "/echo", json=n).json()["body"], range(8)))

    run, saw = recorded(program)
    assert saw == [str(n) for n in range(8)]
    servers.stop()
    assert replayed(run, program) == saw


def test_telemetry(servers: Servers, instrumented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Telemetry goes out while recording, is in no trace, and is answered with nothing in a replay, in threads without a run too;
    where nobody listens to it that is no step either."""
    monkeypatch.setenv("LANGSMITH_ENDPOINT", servers.roots.http + "/langsmith")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{servers.roots.closed}")
    statuses: list[int] = []

    def program() -> Any:
        def export() -> None:
            statuses.append(requests.post(servers.roots.http + "/langsmith/runs/batch", json={}).status_code)

        export()
        thread = threading.Thread(target=Context().run, args=(export,))
        thread.start()
        thread.join()
        with contextlib.suppress(requests.ConnectionError):
            requests.post(f"http://127.0.0.1:{servers.roots.closed}/v1/traces", data=iter([b"\n", b"\x00"]))
        return requests.get(servers.roots.http + "/echo").json()

    run, saw = recorded(program)
    assert types(run) == ["http.request", "http.response"]
    assert servers.plain.hits["/langsmith/runs/batch"] == 2
    servers.stop()
    assert replayed(run, program) == saw
    assert statuses == [200] * 4


@pytest.mark.parametrize("then", [True, False])
def test_telemetry_is_what_it_was_when_recorded(
    servers: Servers, instrumented: None, monkeypatch: pytest.MonkeyPatch, then: bool
) -> None:
    """Whether a variable makes a host one of telemetry's is an input of the run, whatever it says where the replay runs."""

    def set_to(mine: bool) -> None:
        monkeypatch.setenv("LANGSMITH_ENDPOINT", servers.roots.http + ("" if mine else "/other"))

    def program() -> Any:
        return [requests.post(servers.roots.http + path, json={}).text for path in ("/runs/batch", "/echo")]

    set_to(then)
    run, saw = recorded(program)
    assert types(run).count("http.request") == (1 if then else 2)
    for now in (not then, then):
        set_to(now)
        again = replayed(run, program)
        assert again[1] == saw[1]
        assert again[0] == ("{}" if then else saw[0])


def test_warm_and_cold_sessions(servers: Servers, instrumented: None) -> None:
    """A session that had its connections before the run, and one that has none, are recorded and replayed as one another; and a
    session that was replayed reaches its server again."""

    def program(session: requests.Session) -> Any:
        found = [session.get(servers.roots.https + "/echo").json(), session.get(servers.roots.http + "/echo").json()]
        return [*found, session.post(servers.roots.https + "/echo", json=1).json()]

    def session(warm: bool) -> requests.Session:
        made = requests.Session()
        made.verify = servers.roots.ca
        if warm:
            program(made)
        return made

    for recorded_warm in (False, True):
        with session(recorded_warm) as used:
            run, saw = recorded(lambda: program(used))
        for warm in (False, True):
            with session(warm) as used:
                before = servers.hits
                assert replayed(run, lambda: program(used)) == saw
                assert servers.hits == before
                assert plain(program(used)) == saw
                assert servers.hits > before


def test_another_upload_is_a_divergence(servers: Servers, instrumented: None) -> None:
    """What is sent piece by piece is compared as it is sent: more, less, or something else is a divergence."""

    def program(*pieces: bytes) -> Any:
        return requests.post(servers.roots.http + "/echo", data=iter(pieces)).json()["body"]

    run, saw = recorded(lambda: program(b"one", b"two"))
    assert replayed(run, lambda: program(b"on", b"etw", b"o")) == saw
    for pieces in ((b"one", b"too"), (b"one",), (b"one", b"two", b"three")):
        with pytest.raises(DivergenceError, match="sends another body"):
            replayed(run, lambda: program(*pieces))  # noqa: B023
    assert servers.plain.hits["/echo"] == 1


def test_another_request_is_a_divergence(servers: Servers, instrumented: None) -> None:
    """A request with another body is a divergence that no library takes for a failed request, and reaches nobody."""
    run, _ = recorded(lambda: requests.post(servers.roots.http + "/echo", json={"a": 1}).json())
    for call in (
        lambda: requests.post(servers.roots.http + "/echo", json={"a": 2}),
        lambda: urllib3.PoolManager().request("GET", servers.roots.http + "/echo", retries=3),
        lambda: urllib.request.urlopen(servers.roots.http + "/other"),
    ):
        with pytest.raises(DivergenceError), tracekit.replay(run.id):
            call()
    assert servers.plain.hits == {"/echo": 1}


def test_in_a_tool(servers: Servers, instrumented: None) -> None:
    """A request in the body of a tool is a step of its own below it, and is skipped with the tool in a replay."""

    @tracekit.traced_tool(side_effect="irreversible")
    def tool() -> Any:
        return requests.post(servers.roots.http + "/echo", json=1).json()["method"]

    run, saw = recorded(tool)
    assert types(run) == ["tool.call", "http.request", "http.response", "tool.return"]
    assert replayed(run, tool) == saw
    assert servers.plain.hits["/echo"] == 1


def test_a_request_made_by_the_transport_of_another_is_not_counted_twice(servers: Servers, instrumented: None) -> None:
    """When a transport of httpx sends its requests through urllib3, each request is one step, not two."""

    class Transport(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            with urllib3.PoolManager() as pool:
                answer = pool.request(request.method, str(request.url))
                return httpx.Response(answer.status, content=answer.data)

    def program() -> Any:
        with httpx.Client(transport=Transport()) as client:
            return client.get(servers.roots.http + "/headers").text

    run, saw = recorded(program)
    assert types(run) == ["http.request", "http.response"]
    assert replayed(run, program) == saw


def test_live_beside_the_log(servers: Servers, instrumented: None) -> None:
    """A replay in which model calls go live sends those, over TLS and plain, and answers the rest from the log."""

    def program() -> Any:
        found = requests.get(servers.roots.http + "/headers").text
        body = {"model": "m", "messages": [{"role": "user", "content": found}]}
        for root in (servers.roots.http, servers.roots.https):
            with contextlib.suppress(KeyError):
                requests.post(root + "/v1/chat/completions", json=body, verify=servers.roots.ca).json()
        return found

    run, _ = recorded(program)
    with tracekit.replay(run.id, live={"llm"}, allow_hosts=["localhost"]):
        program()
    assert servers.plain.hits == {"/headers": 1, "/v1/chat/completions": 2}
    assert servers.tls.hits == {"/v1/chat/completions": 2}


def test_cut_off_anywhere(servers: Servers, instrumented: None, tmp_path: Path) -> None:
    """A run that was cut off at any entry goes on: what has an answer is not asked for again, and what was left open is, where it
    only reads."""

    def program() -> Any:
        with requests.Session() as session:
            session.verify = servers.roots.ca
            out: list[Any] = [session.get(servers.roots.https + "/echo").json()]
            with contextlib.suppress(requests.ConnectionError):
                session.get(f"https://127.0.0.1:{servers.roots.closed}/")
            out.append(len(session.get(servers.roots.http + "/chunks").content))
            with session.get(servers.roots.http + "/sse", stream=True) as response:
                out.append([piece.decode() for piece in response.iter_content(None)])
            return [*out, session.post(servers.roots.http + "/echo", json=out[-1]).json()]

    with tracekit.record() as run:
        saw = program()
        run.set_result(saw)
    whole = entries(run)
    resumed = 0
    for count in range(2, len(whole)):
        path = cut(run, count, tmp_path / str(count))
        [decision] = recovery.scan(tmp_path / str(count))
        if decision.decision == "abort":
            assert any(e["type"] == "http.request" and e["input"]["method"] == "POST" for e in whole[:count])
            continue
        resumed += 1
        before = servers.plain.hits.total() + servers.tls.hits.total()
        with tracekit.resume(path, store=tmp_path / str(count)) as again:
            assert program() == saw
            again.set_result(saw)
        answered = sum(e["type"] == "http.response" for e in whole[:count])
        assert servers.plain.hits.total() + servers.tls.hits.total() - before == 4 - answered
        with tracekit.replay(path, store=tmp_path / str(count)) as session:
            session.set_result(program())
    assert resumed > 10


def test_a_library_of_the_same_names_is_refused(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3-future takes the place of urllib3, and speaks HTTP without ``http.client``: a recording names its connections, and a replay
    refuses them like those of any other client."""

    class HTTPConnection:
        default_port = 80
        port = urlsplit(servers.roots.http).port
        host = "127.0.0.1"

        def connect(self) -> None:
            self.sock = socket.create_connection((self.host, self.port))

        def ask(self) -> str:
            self.connect()
            with self.sock:
                assert self.sock.type == socket.SOCK_STREAM  # it looks at its own socket
                self.sock.sendall(b"GET /echo HTTP/1.0\r\n\r\n")
                return self.sock.recv(9).decode()

    monkeypatch.setattr(urllib3.connection, "HTTPConnection", HTTPConnection)
    tracekit.instrument("http_client")
    try:
        run, saw = recorded(HTTPConnection().ask)
        assert saw.startswith("HTTP/1.")
        assert f"127.0.0.1:{HTTPConnection.port}" in str([one for one in entries(run) if one["type"] == "boundary"])
        with (
            pytest.raises(LiveCallBlockedError, match=f"connect to 127.0.0.1:{HTTPConnection.port}"),
            tracekit.replay(run),
        ):
            HTTPConnection().ask()
    finally:
        tracekit.uninstrument()


def test_a_refused_call_comes_out_of_botocore(servers: Servers, instrumented: None) -> None:
    """What tracekit refuses is raised as it is, not as an error of the library that was to send it."""

    def program() -> None:
        with (
            web_programs.client(servers.roots, "bedrock-runtime") as client,
            forbidding(lambda spec: ContractViolationError("not here")),
        ):
            client.converse(modelId="m-1", messages=[])

    with tracekit.record() as run, pytest.raises(ContractViolationError, match="not here"):
        program()
    assert servers.plain.hits.total() == 0
    with tracekit.replay(run.id), pytest.raises(ContractViolationError, match="not here"):
        program()


def test_repeated_tools(servers: Servers, instrumented: None) -> None:
    """A tool that may be made again is not, once it has sent something that can't be taken back: outside a run, too."""

    @tracekit.traced_tool(side_effect="reversible", max_retries=3)
    def tool() -> None:
        requests.post(servers.roots.http + "/status?code=500").raise_for_status()

    with pytest.raises(requests.HTTPError):
        tool()
    assert servers.plain.hits["/status"] == 1


def test_secrets_stay_out(servers: Servers, instrumented: None) -> None:
    """Credentials in headers, URLs and cookies, both ways, are in no trace."""
    secret = "Zx9" + "qT7mB2kL" * 4

    def program() -> Any:
        with requests.Session() as session:
            session.headers["X-API-Key"] = secret
            session.cookies.set("session", secret, domain="localhost.local")
            session.get(servers.roots.http + f"/echo?token={secret}", auth=("user", secret))
            return session.get(servers.roots.http + "/cookie").cookies["session"]

    run, saw = recorded(program)
    text = Path(run.path).read_bytes()
    assert secret.encode() not in text
    assert saw.encode() not in text
    with tracekit.replay(run.id):
        assert program().startswith("REDACTED_")


def uploaded(url: str, *pieces: str) -> Any:
    return requests.post(url, data=(piece.encode() for piece in pieces)).status_code


@pytest.mark.parametrize("library", ["requests", "aiohttp"])
def test_a_secret_in_an_upload(library: str, servers: Servers, instrumented: None) -> None:
    """A secret in a body that is sent in pieces, whole or cut in two, is in no trace, and no divergence: not where a replay has another one
    in its place either, as long as it is that one everywhere."""
    one, other = "sk-proj-" + "A1b2C3d4" * 6, "sk-proj-" + "Zy9Xw8Vu7" * 7

    def program(secret: str, later: str = "") -> list[Any]:
        later = later or secret
        bodies = [
            [f'{{"api_key": "{secret}", "n": ', "1}"],
            ["before ", f"{later} after", " the end"],
            ["token=", later[:20], later[20:], "&more=é"],
        ]
        if library == "requests":
            return [uploaded(servers.roots.http + "/echo", *pieces) for pieces in bodies]
        return asyncio.run(uploaded_by_aiohttp(servers.roots.http + "/echo", bodies))

    run, saw = recorded(lambda: program(one))
    text = Path(run.path).read_text()
    assert one not in text
    assert one[20:] not in text
    assert replayed(run, lambda: program(one)) == saw
    assert replayed(run, lambda: program(other)) == saw
    with pytest.raises(DivergenceError, match="sends another body"):
        replayed(run, lambda: program(one, other))
    with pytest.raises(DivergenceError, match="sends another body"):
        replayed(run, lambda: program("no secret at all"))


async def uploaded_by_aiohttp(url: str, bodies: list[list[str]]) -> list[Any]:
    async def sent(pieces: list[str]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece.encode()

    seen = []
    async with aiohttp.ClientSession() as session:
        for pieces in bodies:
            async with session.post(url, data=sent(pieces)) as response:
                await response.read()
                seen.append(response.status)
    return seen


@pytest.mark.parametrize("streamed", [False, True])
def test_a_redacted_body_is_read_whole(streamed: bool, servers: Servers, instrumented: None) -> None:
    """A body in which something was redacted, and is longer or shorter for it, is read to its end, in pieces too."""
    body = json.dumps({"password": "hunter2hunter2hunter2", "x": "y" * 50})

    def program() -> Any:
        with requests.post(servers.roots.http + "/echo?later=1", data=body, stream=streamed) as response:
            return json.loads(response.json()["body"])["x"]

    run, saw = recorded(program)
    assert replayed(run, program) == saw


def test_left_unanswered(servers: Servers, instrumented: None) -> None:
    """A POST whose answer was never read is in doubt."""

    def program() -> None:
        connection = http.client.HTTPConnection(urlsplit(servers.roots.http).netloc)
        connection.request("POST", "/echo", body=b"x")
        connection.close()

    run, _ = recorded(program)
    assert entries(run)[-2]["type"] == "http.error"
    servers.plain.rest(after="/echo")
    with tracekit.replay(run.id):
        program()


def test_a_replaced_stand_in(servers: Servers, instrumented: None) -> None:
    """A connection of ``http.client`` that was used in a replay opens a real one after it."""
    connection = http.client.HTTPConnection(urlsplit(servers.roots.http).netloc)

    def program() -> str:
        connection.request("GET", "/headers")
        return connection.getresponse().read().decode()

    run, saw = recorded(program)
    connection.close()
    assert replayed(run, program) == saw
    assert servers.plain.hits["/headers"] == 1
    assert program() == saw
    assert servers.plain.hits["/headers"] == 2
    connection.close()


def test_what_looks_at_the_socket(servers: Servers, instrumented: None) -> None:
    """What programs ask of a connection's socket has an answer while a request is under way, in a replay too."""

    def program() -> Any:
        connection = http.client.HTTPConnection(urlsplit(servers.roots.http).netloc, timeout=7)
        connection.request("GET", "/until-close")
        sock = connection.sock
        out = [isinstance(sock, socket.socket), sock.gettimeout(), sock.fileno() > 0, len(sock.getpeername())]
        sock.settimeout(3)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        response = connection.getresponse()
        return [*out, sock.gettimeout(), response.readline().decode(), response.read().decode()]

    run, saw = recorded(program)
    assert saw[:2] == [True, 7]
    replay = replayed(run, program)
    assert replay[2:] == saw[2:]
    assert replay[0] is True


def test_httplib2(servers: Servers, instrumented: None) -> None:
    """A library with a ``connect()`` of its own, which it calls itself."""

    def program() -> Any:
        with contextlib.closing(httplib2.Http(ca_certs=servers.roots.ca)) as client:
            return [client.request(root + "/headers")[1].decode() for root in servers.roots[:2]]

    run, saw = recorded(program)
    assert types(run).count("http.request") == 2
    servers.stop()
    assert replayed(run, program) == saw


def test_outside_runs_nothing_changes(servers: Servers, instrumented: None) -> None:
    """Outside runs a connection has its own socket, and keeps it."""
    connection = http.client.HTTPConnection(urlsplit(servers.roots.http).netloc)
    connection.request("GET", "/headers")
    assert type(connection.sock) is socket.socket
    assert connection.getresponse().read() == b"ok"
    connection.close()
