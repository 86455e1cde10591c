"""Requests that are no model calls: side-effect classes, ambient traffic, and ways out that are refused."""

from __future__ import annotations

import asyncio
import http.server
import io
import re
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

import tracekit
from tests.support.stub_provider import StubProvider
from tests.support.tracing import entries
from tracekit._runtime.process import process
from tracekit.errors import DivergenceError, LiveCallBlockedError, TraceExhaustedError
from tracekit.integration import Trace, current

ASK: Any = [{"role": "user", "content": "Hello"}]


def requests(run: tracekit.Run) -> list[dict[str, Any]]:
    trace = Trace(run.path)
    found = [e for e in trace.entries() if e["type"] in ("http.request", "llm.request")]
    return [{**entry, "input": trace.expand(entry["input"])} for entry in found]


def test_side_effects(provider: StubProvider) -> None:
    """GET is read-only and POST irreversible, unless the user says what this POST does."""
    host = provider.url.removeprefix("http://")
    tracekit.instrument(http_classes={f"POST {host}/search*": "read_only", f"{host}/seats/*": "reversible"})
    try:
        with tracekit.record() as run, httpx2.Client() as client:
            for method, path in (
                ("GET", "/a"),
                ("POST", "/a"),
                ("POST", "/search?q=1"),
                ("PUT", "/seats/12"),
                ("HEAD", "/a"),
            ):
                client.request(method, provider.url + path)
    finally:
        tracekit.uninstrument()
    classes = [entry["meta"]["side_effect"] for entry in requests(run)]
    assert classes == ["read_only", "irreversible", "read_only", "reversible", "read_only"]


def test_wrong_class() -> None:
    """A class that does not exist is refused at once."""
    with pytest.raises(ValueError, match="'harmless' is not one of read_only, reversible, irreversible"):
        tracekit.instrument(http_classes={"example.com": "harmless"})
    tracekit.uninstrument()


def test_path_alone_is_no_model_call(provider: StubProvider, instrumented: None) -> None:
    """A service that happens to have an endpoint ``/messages`` keeps its irreversible class."""
    with tracekit.record() as run, httpx2.Client() as client:
        client.get(f"{provider.url}/warm")
        client.post(f"{provider.url}/api/responses", json={"text": "a letter", "to": "ada"})
    letter = requests(run)[1]
    assert (letter["type"], letter["meta"]["side_effect"]) == ("http.request", "irreversible")


def test_ambient_is_let_through(provider: StubProvider, instrumented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Telemetry reaches its service while recording, is no part of the trace, and is answered with nothing in a replay."""
    monkeypatch.setenv("LANGFUSE_HOST", f"{provider.url}/telemetry")

    def program() -> int:
        with httpx2.Client() as client:
            client.get(f"{provider.url}/x")
            return client.post(f"{provider.url}/telemetry/api/public/ingestion", json={"batch": []}).status_code

    with tracekit.record() as run:
        assert program() == 200
    assert [entry["type"] for entry in requests(run)] == ["http.request"]
    assert provider.requests["/telemetry/api/public/ingestion"] == 1
    with tracekit.replay(run.id):
        assert program() == 200
    assert provider.requests["/telemetry/api/public/ingestion"] == 1


def test_ambient_threads(provider: StubProvider, instrumented: None) -> None:
    """Telemetry of a background thread, which knows of no run, is answered with nothing while a replay is on, and does not fail it."""

    def export() -> None:
        with httpx.Client() as client:
            statuses.append(client.post("https://api.smith.langchain.com/runs/batch", json={}).status_code)

    statuses: list[int] = []
    with tracekit.record() as run, httpx2.Client() as client:
        client.get(f"{provider.url}/x")
    with tracekit.replay(run.id), httpx2.Client() as client:
        client.get(f"{provider.url}/x")
        thread = threading.Thread(target=Context().run, args=(export,))
        thread.start()
        thread.join()
    assert statuses == [200]


def test_model_calls_outside_a_replayed_run(instrumented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a whole program is under replay, a model call outside its runs is refused before it is sent."""

    def outside(family: str, name: str) -> None:
        raise LiveCallBlockedError(f"{family} {name}")

    monkeypatch.setattr(process, "outside", outside)
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(LiveCallBlockedError, match=r"llm POST 127\.0\.0\.1:9/v1/chat/completions"):
            client.chat.completions.create(model="m", messages=ASK)
        with pytest.raises(LiveCallBlockedError, match="http GET"):
            client.models.list()


def test_hooks_and_cookies_of_a_client(provider: StubProvider, instrumented: None) -> None:
    """What a client's own hooks do to requests is done in a replay, too, whatever they read; the cookies of plain answers are in its jar,
    their values hidden, after redirects and for asynchronous clients as well."""
    pages: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        pages[request.url.path] = request.headers.get("cookie", "")
        if request.url.path == "/in":
            return httpx.Response(
                302, headers={"location": "/home", "set-cookie": "session=s3cr3ts3cr3ts3cr3t; Path=/"}
            )
        return httpx.Response(200, headers={"set-cookie": "theme=dark-and-long-enough; Path=/"}, text="home")

    hooked: list[tuple[str, bool]] = []

    def stamp(request: httpx.Request) -> None:
        request.headers["x-id"] = str(uuid.uuid4())
        hooked.append((request.url.path, "cookie" in request.headers))

    async def stamp_later(request: httpx.Request) -> None:
        stamp(request)

    def program() -> list[Any]:
        hooked.clear()
        options: dict[str, Any] = {"transport": httpx.MockTransport(answer), "follow_redirects": True}
        with httpx.Client(event_hooks={"request": [stamp]}, **options) as client:
            response = client.get("http://shop/in")
            seen: list[Any] = [
                response.text,
                sorted(client.cookies),
                sorted(response.cookies),
                len(response.request.headers["x-id"]),
            ]
            seen.append(["cookie" in client.build_request("GET", "http://shop/").headers, *hooked])

        async def later() -> list[str]:
            async with httpx.AsyncClient(event_hooks={"request": [stamp_later]}, **options) as client:
                await client.get("http://shop/in")
                return sorted(client.cookies)

        return [*seen, asyncio.run(later()), [*hooked]]

    with pytest.warns(RuntimeWarning, match="redacted"), tracekit.record() as run:
        saw = program()
    assert saw[:4] == ["home", ["session", "theme"], ["theme"], 36]
    assert b"s3cr3t" not in Path(run.path).read_bytes()
    pages.clear()
    with tracekit.replay(run) as session:
        assert program() == saw
    assert session.report.exact, session.report.as_dict()
    assert pages == {}


def asked_for(run: tracekit.Run, provider: StubProvider) -> list[str]:
    requests = [entry["input"]["url"] for entry in entries(run) if entry["type"] == "http.request"]
    return [url.removeprefix(provider.url) for url in requests]


def test_what_a_client_calls_of_the_program_are_steps(provider: StubProvider, instrumented: None) -> None:
    """Event hooks, authentication and transports of the program's own run in its run: what they do is on the log before it is done, comes
    back in a replay, and nothing live is reached."""
    token: list[str] = []

    @tracekit.traced_tool(side_effect="irreversible")
    def bill(what: str) -> str:
        return f"billed {what} {uuid.uuid4()}"

    class Login(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            if not token:
                answer = yield httpx.Request("POST", f"{provider.url}/login", json={})
                token.append(str(answer.status_code))
            request.headers["x-token"] = token[0]
            yield request

    class Twice(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            httpx2.post(f"{provider.url}/before", json={"path": request.url.path})
            return super().handle_request(request)

    def program() -> list[Any]:
        token.clear()
        seen: list[Any] = []

        def asked(request: httpx.Request) -> None:
            seen.append(bill(request.url.path))

        def answered(response: httpx.Response) -> None:
            seen.append(httpx2.post(f"{provider.url}/usage", json={"status": response.status_code}).status_code)

        async def asked_later(request: httpx.Request) -> None:
            asked(request)

        async def answered_later(response: httpx.Response) -> None:
            await response.aread()
            answered(response)

        async def later() -> int:
            hooks: Any = {"request": [asked_later], "response": [answered_later]}
            async with httpx.AsyncClient(event_hooks=hooks) as client:
                return (await client.get(f"{provider.url}/later")).status_code

        with httpx.Client(auth=Login(), event_hooks={"request": [asked], "response": [answered]}) as client:
            for path in ("/one", "/two"):
                seen.append(client.get(provider.url + path).status_code)
            with client.stream("GET", f"{provider.url}/three") as response:
                seen.append(b"".join(response.iter_bytes()))
        with httpx.Client(transport=Twice()) as client:
            seen.append(client.get(f"{provider.url}/four").status_code)
        return [*seen, *token, asyncio.run(later())]

    with tracekit.record() as run:
        saw = program()
    assert asked_for(run, provider) == [
        *("/login", "/usage", "/one", "/usage", "/two", "/usage", "/three", "/usage"),
        *("/four", "/before", "/later", "/usage"),
    ]
    assert sum(entry["type"] == "tool.call" for entry in entries(run)) == 5
    before = provider.requests.total()
    with tracekit.replay(run) as session:
        assert program() == saw
    assert session.report.exact, session.report.as_dict()
    assert provider.requests.total() == before


class App:
    """An application that asks a model's server, and keeps what it was asked."""

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, list[str]()

    def answer(self, path: str) -> bytes:
        said = httpx2.post(f"{self.url}/say{path}", json={}).status_code
        self.asked.append(path)
        return f"{path} {said} {uuid.uuid4()}".encode()

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer(scope["path"])})

    def wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [self.answer(environ["PATH_INFO"])]

    async def in_a_task(self) -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.asgi), base_url="http://app") as client:
            return (await client.get("/a")).text


@pytest.mark.parametrize("way", ["asgi", "wsgi", "a test client"])
def test_an_application_in_this_process_is_the_program(provider: StubProvider, instrumented: None, way: str) -> None:
    """A request that an application of this process answers is no step: what that does are the steps, and a replay runs it, as its tests
    need; code that has changed is noticed."""

    def program(app: App) -> Any:
        if way == "asgi":
            return asyncio.run(app.in_a_task())
        if way == "wsgi":
            with httpx.Client(transport=httpx.WSGITransport(app.wsgi), base_url="http://app") as client:
                return client.get("/a").text
        from starlette.testclient import TestClient

        return TestClient(app.asgi).get("/a").text

    first, again = App(provider.url), App(provider.url)
    with tracekit.record() as run:
        saw = program(first)
    assert asked_for(run, provider) == ["/say/a"]
    before = provider.requests.total()
    with tracekit.replay(run) as session:
        assert program(again) == saw
    assert session.report.exact, session.report.as_dict()
    assert again.asked == first.asked == ["/a"]

    class Changed(App):
        def answer(self, path: str) -> bytes:
            return super().answer("/other")

    with pytest.raises(DivergenceError, match="/say/other"), tracekit.replay(run):
        program(Changed(provider.url))
    assert provider.requests.total() == before


@pytest.mark.parametrize(("protocol", "named"), [("websocket", "a websocket"), ("tcp", "an upgraded connection (tcp)")])
def test_upgrades_pass_and_are_named(provider: StubProvider, instrumented: None, protocol: str, named: str) -> None:
    """A request that asks to become something else than HTTP is none of the run's: it passes, the recording names it before it is sent,
    and a replay refuses it."""

    def ask() -> int:
        with httpx2.Client() as client:
            return client.get(provider.url, headers={"upgrade": protocol, "connection": "upgrade"}).status_code

    with pytest.warns(RuntimeWarning, match=re.escape(f"{named} to 127")), tracekit.record() as run:
        status = ask()
    assert (status, provider.requests.total(), requests(run)) == (200, 1, [])
    with pytest.raises(LiveCallBlockedError, match=re.escape(named)), tracekit.replay(run):
        ask()
    assert provider.requests.total() == 1


def test_a_websocket_of_an_application_in_this_process(instrumented: None) -> None:
    """Starlette's test client answers by the program's own code: recorded and replayed it runs, and its tools are steps."""
    made: list[str] = []

    @tracekit.traced_tool(side_effect="irreversible")
    def shout(text: str) -> str:
        made.append(text)
        return text.upper()

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(shout(text))

    def program() -> list[str]:
        client = TestClient(Starlette(routes=[WebSocketRoute("/talk", talk)]))
        with client.websocket_connect("/talk") as session:
            session.send_text("one")
            session.send_text("two")
            return [session.receive_text(), session.receive_text()]

    with tracekit.record() as run:
        assert program() == ["ONE", "TWO"]
    with tracekit.replay(run) as session:
        assert program() == ["ONE", "TWO"]
    assert session.report.exact, session.report.as_dict()
    assert made == ["one", "two"]


def test_changed_prompt(provider: StubProvider, instrumented: None) -> None:
    """One changed message is a divergence that names what differs; nothing is sent."""

    def agent(prompt: str) -> None:
        with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k", max_retries=0) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}], temperature=0)

    with tracekit.record() as run:
        agent("Book Lisbon")
    with pytest.raises(DivergenceError, match="Book Porto") as caught, tracekit.replay(run.id):
        agent("Book Porto")
    assert "Book Lisbon" in str(caught.value)
    assert provider.requests.total() == 1


def test_gateway_may_differ(provider: StubProvider, instrumented: None) -> None:
    """A model call is known by what is asked, not by the host that it went through."""

    def agent(base: str) -> str:
        with openai.OpenAI(base_url=f"{base}/v1", api_key="k") as client:
            return client.chat.completions.create(model="m", messages=ASK).id

    with tracekit.record() as run:
        first = agent(provider.url)
    with tracekit.replay(run.id):
        assert agent("https://gateway.invalid") == first


def test_base_url_secrets(provider: StubProvider, instrumented: None) -> None:
    """Passwords and keys in a URL stay out of the trace, what is asked for stays in."""
    url = provider.url.replace("://", "://ada:pw-canary@")
    with tracekit.record() as run, httpx.Client() as client:
        client.get(f"{url}/x?keyword=trains&api-key=key-canary&page_token=2")
    assert re.search(r"/x\?keyword=trains&api-key=REDACTED_\w{16}&page_token=2$", requests(run)[0]["input"]["url"])
    with open(run.path, "rb") as file:
        assert b"canary" not in file.read()


class Sink:
    """A transport that takes as much of a body as ``wants`` says, then answers, or raises."""

    def __init__(self, library: Any, wants: int | None, error: bool) -> None:
        self.library, self.wants, self.error = library, wants, error
        self.calls = 0

    def answer(self, taken: list[bytes]) -> Any:
        self.calls += 1
        if self.error:
            raise self.library.ConnectError("nobody there")
        return self.library.Response(200, content=b"+".join(taken))


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(
    ("wants", "error", "raises"),
    [(None, False, False), (None, False, True), (1, False, False), (0, False, False), (1, True, False)],
)
def test_a_body_is_sent_as_it_is_produced(
    library: Any, wants: int | None, error: bool, raises: bool, instrumented: None
) -> None:
    """A body that comes from a generator is on the log piece by piece as it is sent, never read ahead; in a replay the program produces
    as much of it as it did, and gets what it got: the answer, the library's exception, its own."""

    class Plain(Sink, library.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            taken: list[bytes] = []
            pieces = iter(request.stream)
            while self.wants != len(taken) and (piece := next(pieces, None)) is not None:
                taken.append(piece)
            return self.answer(taken)

    class Awaited(Sink, library.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            taken: list[bytes] = []
            pieces = request.stream.__aiter__()
            while self.wants != len(taken) and (piece := await anext(pieces, None)) is not None:
                taken.append(piece)
            return self.answer(taken)

    def program(sink: Any) -> list[Any]:
        seen: list[Any] = []

        def body() -> Iterator[bytes]:
            for piece in (b"one", b"two", b"three"):
                seen.append(time.time_ns())
                yield piece
                if raises and piece == b"two":
                    raise KeyError("mine")

        async def awaited() -> Any:
            async def later() -> AsyncIterator[bytes]:
                for piece in body():
                    await asyncio.sleep(0)
                    yield piece

            async with library.AsyncClient(transport=sink) as client:
                return (await client.post("http://a.test/x", content=later())).content

        try:
            if isinstance(sink, Awaited):
                seen.append(asyncio.run(awaited()))
            else:
                with library.Client(transport=sink) as client:
                    seen.append(client.post("http://a.test/x", content=body()).content)
        except (library.ConnectError, KeyError) as problem:
            seen.append(repr(problem))
        return seen

    for kind in (Plain, Awaited):
        sink = kind(library, wants, error)
        with tracekit.record() as run:
            seen = program(sink)
        drawn = 2 if raises else 3 if wants is None else wants
        assert len(seen) == drawn + 1
        assert [entry["output"]["sent"] for entry in Trace(run.path).entries() if "sent" in str(entry.get("output"))] == [
            "one", "two", "three",
        ][:drawn]  # fmt: skip
        calls = sink.calls
        with tracekit.replay(run):
            assert program(sink) == seen
        assert sink.calls == calls


def test_another_body_piece_by_piece_is_a_divergence(provider: StubProvider, instrumented: None) -> None:
    """More, less, or something else; where the pieces begin and end makes no difference."""

    def program(*pieces: bytes) -> bytes:
        with httpx2.Client() as client:
            return client.post(f"{provider.url}/x", content=iter(pieces)).content

    with tracekit.record() as run:
        seen = program(b"one ", b"two")
    assert provider.seen[0]["body"] == b"one two"
    with tracekit.replay(run):
        assert program(b"on", b"e tw", b"o") == seen
    for other in ((b"one ", b"too"), (b"one ",), (b"one ", b"two", b"three"), ()):
        with pytest.raises(DivergenceError, match="sends another body"), tracekit.replay(run):
            program(*other)
    assert len(provider.seen) == 1


class _Once(io.BytesIO):
    """A file that is read once, as a pipe."""

    def seek(self, *_: Any) -> int:
        raise io.UnsupportedOperation("seek")


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("takes", ["read", "stream", "nothing"])
def test_the_files_of_a_form_are_where_its_reader_leaves_them(library: Any, takes: str, instrumented: None) -> None:
    """A form is on the log before it is sent. The transport finds its files where the program left them, as without a recording, and the
    program then finds them where the transport left them, in a replay, too; a request that is sent again reads them again.
    A pipe is read once, ahead, and is sent again where the request is."""

    class Plain(library.BaseTransport):
        def handle_request(self, request: Any) -> Any:
            found.append([file.tell() for file in files[:2]])
            if takes == "nothing":
                raise library.ConnectError("nobody there")
            body = request.read() if takes == "read" else b"".join(request.stream)
            found.append(
                [body.count(b"x" * 6), b"once" in body or len(found) > 1, *(file.tell() for file in files[:2])]
            )
            if len(found) == 2:
                return library.Response(307, headers={"location": "/again"})
            return library.Response(200)

    class Awaited(Plain, library.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            if takes == "stream":
                request.stream = library.ByteStream(b"".join([piece async for piece in request.stream]))
            elif takes == "read":
                await request.aread()
            return self.handle_request(request)

    def program(kind: type[Plain]) -> list[Any]:
        found.clear()
        files[:] = [io.BytesIO(b"x" * 6), io.BytesIO(b"x" * 6), _Once(b"once")]
        files[0].seek(2)
        form = {"a": ("a", files[0]), "b": files[1], "c": ("c", files[2]), "d": b"text"}

        async def awaited() -> Any:
            async with library.AsyncClient(transport=kind(), follow_redirects=True) as client:
                return await client.post("http://a.test/x", files=form)

        try:
            if issubclass(kind, Awaited):
                response = asyncio.run(awaited())
            else:
                with library.Client(transport=kind(), follow_redirects=True) as client:
                    response = client.post("http://a.test/x", files=form)
        except library.ConnectError as problem:
            return [str(problem), [file.tell() for file in files[:2]]]
        return [response.status_code, response.history, [file.tell() for file in files]]

    found: list[Any] = []
    files: list[io.BytesIO] = []
    for kind in (Plain, Awaited):
        bare = repr(program(kind)), list(found)
        with tracekit.record() as run:
            recorded = repr(program(kind)), list(found)
        assert recorded == bare
        with tracekit.replay(run):
            assert repr(program(kind)) == bare[0]
        assert found == []


def test_unread_stream(provider: StubProvider, instrumented: None) -> None:
    """A response that is closed without being read is recorded as left, and replayed so."""

    def program() -> list[Any]:
        with httpx2.Client() as client, client.stream("GET", f"{provider.url}/x") as response:
            return [response.status_code, response.headers["x-request-id"]]

    with tracekit.record() as run:
        seen = program()
    with tracekit.replay(run.id):
        assert program() == seen
    assert [e["meta"]["abandoned"] for e in Trace(run.path).entries() if e["type"] == "http.response"] == [True]


def test_wrong_client_kind(provider: StubProvider, instrumented: None) -> None:
    """The library's own complaint about a misuse is what the program gets, recorded and replayed."""

    def program() -> str:
        async def body() -> Any:
            yield b"x"

        with httpx2.Client() as client, pytest.raises(RuntimeError) as caught:
            client.post(f"{provider.url}/x", content=body())
        return str(caught.value)

    with tracekit.record() as run:
        seen = program()
    with tracekit.replay(run.id):
        assert program() == seen
    assert "async request with a sync Client" in seen


def test_context_is_restored(provider: StubProvider, instrumented: None) -> None:
    """After a call, and between the pieces of a stream, the program is where it was."""
    with tracekit.record(), httpx2.Client() as client:
        before = current.get()
        client.get(f"{provider.url}/x")
        assert current.get() is before
        with client.stream("GET", f"{provider.url}/x") as response:
            for _ in response.iter_bytes():
                assert current.get() is before
        with pytest.raises(httpx2.ConnectError):
            client.get("http://127.0.0.1:9/")
        assert current.get() is before


class _Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it got, and counts."""

    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def test_deep_bodies(instrumented: None) -> None:
    """A body of JSON comes back byte for byte however deep it is nested, as it was sent and as it was answered."""

    def program() -> list[bytes]:
        with httpx2.Client() as client:
            bodies = [b'{"echo":' + b"[" * depth + b"]" * depth + b"}" for depth in depths]
            found = [client.post(url, content=body, headers={"content-type": "application/json"}) for body in bodies]
        return [answer.content for answer in found]

    depths = [140, 148, 149, 150, 151, 186, 187, 188, 189, 190, 200, 252, 253, 254, 255, 300, 1023, 1500]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/echo"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with tracekit.record() as run:
                found = program()
        finally:
            server.shutdown()
            thread.join()
    assert not run.warnings
    assert _Echo.asked == len(depths)
    with tracekit.replay(run) as session:
        assert program() == found
    assert session.report.exact
    assert _Echo.asked == len(depths)


def test_what_the_aws_sdk_says_in_headers(provider: StubProvider, instrumented: None) -> None:
    """The attempt that botocore counts is in the log; a session token is not, nor where it turns up in what is asked later."""
    token = "IQoJb3JpZ2luX2VjEGQaCXVzLWVhc3QtMSJHMEUCIQDcanary7f3a9c2e5b8d1046"
    headers = {
        "amz-sdk-request": "attempt=2; max=5",
        "x-amz-security-token": token,
        "user-agent": "Botocore/1.44.5 ua/2.1",
    }
    with tracekit.record() as run, httpx2.Client(headers=headers) as client:
        for text in ("hello", token):
            body = {"messages": [{"role": "user", "content": [{"text": text}]}]}
            client.post(f"{provider.url}/model/amazon.nova-stub/converse", json=body).raise_for_status()
    assert [entry["meta"]["info"]["attempt"] for entry in requests(run)] == [2, 2]
    assert token not in Path(run.path).read_text()


def test_nothing_comes_of_a_request(tmp_path: Path, instrumented: None) -> None:
    """What a server in the same process sets when it is asked, below the client, is not set in a replay, which names who waits."""

    class Sets(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            loop.call_soon_threadsafe(event.set)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    async def main() -> None:
        nonlocal loop, event
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        async with httpx.AsyncClient() as client, asyncio.TaskGroup() as group:
            group.create_task(client.get(f"http://127.0.0.1:{server.server_port}/"))
            await event.wait()  # asked

    loop: Any = None
    event = asyncio.Event()
    with http.server.HTTPServer(("127.0.0.1", 0), Sets) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            with tracekit.record("asked", store=tmp_path) as run:
                asyncio.run(main())
            with (
                pytest.raises(TraceExhaustedError, match="everything in the program waits") as failed,
                tracekit.replay(run),
            ):
                asyncio.run(main())
        finally:
            server.shutdown()
            serving.join()
    source = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(source, 1) if text.endswith("# asked"))
    assert f"{__file__}:{line}" in str(failed.value)


def test_an_exception_with_an_answer_of_another_kind(instrumented: None) -> None:
    """The stand-in that a test has put on an error of httpx is no answer to be recorded: the error is raised as it was."""

    class Answer:
        status_code = 500

    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.HTTPStatusError("Server error", request=request, response=Answer())  # type: ignore[arg-type]

    with (
        tracekit.record(),
        httpx2.Client(transport=httpx2.MockTransport(refuse)) as client,
        pytest.raises(httpx2.HTTPStatusError, match="Server error") as caught,
    ):
        client.get("https://example.test/")
    assert isinstance(caught.value.response, Answer)


def test_a_setting_of_an_sdk_that_has_changed_is_named(
    provider: StubProvider, instrumented: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A divergence in the URL of a model call names the changed variable that the base URL comes from; another divergence does not."""

    def ask(model: str = "m-1") -> str | None:
        with openai.OpenAI() as client:
            return client.chat.completions.create(model=model, messages=ASK).choices[0].message.content

    gateway = f"{provider.url}/gateway/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", gateway)
    with tracekit.record() as run:
        ask()
    with Trace(run.path) as trace:
        assert trace.entry(1)["meta"]["settings"] == {"OPENAI_BASE_URL": gateway}
    with tracekit.replay(run):
        ask()
    named = f"OPENAI_BASE_URL was {gateway!r} when this was recorded, and "
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example/v2")
    with (
        pytest.raises(DivergenceError, match=re.escape(f"{named}is 'https://elsewhere.example/v2' now")),
        tracekit.replay(run),
    ):
        ask()
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(DivergenceError, match=re.escape(f"{named}is not set now")), tracekit.replay(run):
        ask()
    monkeypatch.setenv("OPENAI_BASE_URL", gateway)
    monkeypatch.setenv("OPENAI_API_VERSION", "2026-01-01")
    with pytest.raises(DivergenceError) as caught, tracekit.replay(run):
        ask("m-2")
    assert "OPENAI_API_VERSION" not in str(caught.value)
