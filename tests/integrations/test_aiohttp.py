"""``aiohttp``'s client: recorded, and replayed by the library's own code from recorded bytes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import uvloop
import websockets

import tracekit
from tests.integrations.aiohttp_programs import PROGRAMS, trusting
from tests.support.cut import cut
from tests.support.place import Place
from tests.support.stub_provider import StubProvider
from tests.support.web import Servers
from tracekit import recovery
from tracekit.errors import ContractViolationError, DivergenceError, ReplayError
from tracekit.integration import Trace, forbidding


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    found = Servers(tmp_path)
    yield found
    found.stop()


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def run_of(program: Callable[[], Any]) -> Any:
    return plain(asyncio.run(program()))


def entries(run: tracekit.Run) -> list[dict[str, Any]]:
    trace = Trace(run.path)
    return [trace.expand(dict(entry)) for entry in trace.entries()]


def types(run: tracekit.Run) -> list[str]:
    """The steps of a run: what opens and what ends them."""
    found = [entry["type"] for entry in entries(run) if entry["type"].startswith(("http.", "llm.", "tool."))]
    return [kind for kind in found if not kind.endswith(".chunk")]


def recorded(program: Callable[[], Any]) -> tuple[tracekit.Run, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with tracekit.record() as run:
            saw = run_of(program)
    return run, saw


def replayed(run: tracekit.Run, program: Callable[[], Any]) -> Any:
    with tracekit.replay(run.id):
        return run_of(program)


#: What they see is another thing each time: by when what came.
UNSTEADY = (
    "looked_at",
    "beside_one_another",
    "streams",
    "codings",
    "as_it_travels",
    "time_limits",
    "uploads_that_are_cut",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_library(name: str, servers: Servers, instrumented: None) -> None:
    """Each program sees the same without tracekit, recorded, and replayed with and without the servers, which receive
    nothing."""

    def program() -> Any:
        return PROGRAMS[name](servers.roots)

    bare = run_of(program)
    run, saw = recorded(program)
    if name not in UNSTEADY:
        assert saw == bare
    servers.rest()
    before = servers.hits
    with tracekit.replay(run.id) as session:
        assert run_of(program) == saw
    assert session.report.verdict.answer == "exact"
    assert servers.hits == before
    servers.stop()
    assert replayed(run, program) == saw


async def got(root: str, path: str = "/echo", **how: Any) -> Any:
    async with aiohttp.ClientSession() as session, session.get(root + path, **how) as response:
        return await response.text()


async def posted(root: str, data: Any, path: str = "/echo") -> Any:
    async with aiohttp.ClientSession() as session, session.post(root + path, data=data) as response:
        return (await response.json())["body"]


def test_nothing_is_opened(servers: Servers, instrumented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay makes no socket and looks up no name, for plain and TLS connections, direct and by a proxy."""

    async def program() -> Any:
        found = [await got(servers.roots.https, ssl=trusting(servers.roots)), await got(servers.roots.http)]
        return [*found, await got(servers.roots.https, proxy=servers.roots.proxy, ssl=trusting(servers.roots))]

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a connection was made")

    run, saw = recorded(program)
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert replayed(run, program) == saw


@pytest.mark.parametrize("streamed", [False, True])
def test_model_calls(provider: StubProvider, instrumented: None, streamed: bool) -> None:
    """A POST to a model's endpoint is recorded as a model call with model and usage, a stream piece by piece."""

    async def program() -> Any:
        body = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": streamed}
        body["stream_options"] = {"include_usage": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(provider.url + "/v1/chat/completions", json=body) as response,
        ):
            return [line.decode() async for line in response.content] if streamed else await response.json()

    run, saw = recorded(program)
    call = [entry for entry in entries(run) if entry["type"].startswith("llm.")]
    assert call[0]["type"] == "llm.request"
    assert call[0]["name"] == "m-1"
    assert call[-1]["type"] == "llm.response"
    assert call[-1]["meta"]["usage"]["output_tokens"] > 0
    assert len(call) > 2 or not streamed
    assert replayed(run, program) == saw
    assert sum(provider.requests.values()) == 1


def test_pieces_are_on_the_log_before_the_program_has_them(servers: Servers, instrumented: None) -> None:
    """Each piece of a stream is in the file before the program gets it, and each piece of an upload before it is sent."""
    seen: list[bool] = []

    async def pieces(run: tracekit.Run) -> AsyncIterator[bytes]:
        yield b"first of an upload"
        seen.append(b"first of an upload" in Path(run.path).read_bytes())
        yield b"second"

    async def program(run: tracekit.Run) -> None:
        async with aiohttp.ClientSession() as session:
            async with session.get(servers.roots.http + "/sse") as response:
                seen.append(b'"status":200' in Path(run.path).read_bytes())
                i = 0
                async for piece in response.content.iter_any():
                    for _ in range(piece.count(b'i"')):
                        seen.append(b'\\"i\\": %d' % i in Path(run.path).read_bytes())
                        i += 1
            await (await session.post(servers.roots.http + "/echo", data=pieces(run))).read()

    with tracekit.record() as run:
        asyncio.run(program(run))
    assert seen == [True] * 7


def test_warm_and_cold_sessions(servers: Servers, instrumented: None) -> None:
    """A run recorded with a connected session replays with a new one, and the other way round; a replayed session can
    reach its servers again."""
    roots = servers.roots

    async def ask(session: Any) -> Any:
        found = []
        for url in (roots.https, roots.http, roots.https):
            async with session.post(url + "/echo", json=1, ssl=trusted) as response:
                found.append(await response.json())
        return found

    trusted = trusting(roots)

    async def recording(warm: bool) -> tuple[tracekit.Run, Any]:
        async with aiohttp.ClientSession() as session:
            if warm:
                await ask(session)
            with tracekit.record() as run:
                return run, await ask(session)

    async def replaying(run: tracekit.Run, warm: bool) -> Any:
        async with aiohttp.ClientSession() as session:
            if warm:
                await ask(session)
            before = servers.hits
            with tracekit.replay(run.id):
                found = await ask(session)
            assert servers.hits == before
            assert await ask(session) == found
            assert servers.hits > before
            return found

    for recorded_warm in (False, True):
        run, saw = asyncio.run(recording(recorded_warm))
        for warm in (False, True):
            assert asyncio.run(replaying(run, warm)) == saw


def test_connections_outlive_their_run(servers: Servers, instrumented: None) -> None:
    """Successive runs share the connections of a session, and each replays alone."""

    async def ask(session: Any, n: int) -> Any:
        async with session.get(f"{servers.roots.http}/sse?n={n}") as response:
            return [piece.decode() async for piece in response.content]

    async def recording() -> list[tuple[tracekit.Run, Any]]:
        found = []
        async with aiohttp.ClientSession() as session:
            for n in range(3):
                with tracekit.record() as run:
                    found.append((run, await ask(session, n)))
        return found

    runs = asyncio.run(recording())
    assert servers.plain.connections == 1
    servers.stop()

    async def again(n: int) -> Any:
        async with aiohttp.ClientSession() as session:
            return await ask(session, n)

    for n, (run, saw) in reversed([*enumerate(runs)]):
        assert replayed(run, lambda: again(n)) == saw  # noqa: B023


def test_side_by_side_on_a_busy_loop(servers: Servers, instrumented: None) -> None:
    """Runs recorded side by side over one session replay alone, and each one's watchdog looks as often as it did."""

    async def agent(session: Any, n: int) -> Any:
        asking = asyncio.create_task(session.get(f"{servers.roots.http}/sse?n={n}"))
        looks = 0
        while not asking.done():
            looks += 1
            await asyncio.sleep(0)
        async with asking.result() as response:
            return looks, [piece.decode() async for piece in response.content.iter_any()]

    async def one(session: Any, n: int) -> tuple[tracekit.Run, Any]:
        with tracekit.record() as run:
            return run, await agent(session, n)

    async def recording() -> Any:
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(one(session, n) for n in range(6)))

    async def again(n: int) -> Any:
        async with aiohttp.ClientSession() as session:
            return await agent(session, n)

    runs = asyncio.run(recording())
    servers.stop()
    for n, (run, saw) in enumerate(runs):
        with tracekit.replay(run.id) as session:
            assert run_of(lambda: again(n)) == plain(saw)  # noqa: B023
        assert session.report.verdict.answer == "exact"


def test_uvloop(servers: Servers, instrumented: None) -> None:
    """A run over uvloop's transports replays there and on asyncio's own loop."""

    async def program() -> Any:
        async with aiohttp.ClientSession() as session:
            out: list[Any] = []
            async with session.get(servers.roots.https + "/sse", ssl=trusting(servers.roots)) as response:
                out += [piece.decode() async for piece in response.content]
            async with session.post(servers.roots.http + "/echo", data=iter_of(b"a", b"b")) as response:
                out.append((await response.json())["body"])
            try:
                async with session.get(servers.roots.http + "/cut") as response:
                    await response.read()
            except aiohttp.ClientPayloadError as error:
                out.append(str(error))
            return out

    with tracekit.record() as run:
        saw = plain(uvloop.run(program()))
    servers.stop()
    with tracekit.replay(run.id):
        assert plain(uvloop.run(program())) == saw
    assert replayed(run, program) == saw


async def iter_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def test_another_upload_is_a_divergence(servers: Servers, instrumented: None) -> None:
    """An upload is compared piece by piece as it is sent: more, less or other data is a divergence."""
    run, saw = recorded(lambda: posted(servers.roots.http, iter_of(b"one", b"two")))
    assert replayed(run, lambda: posted(servers.roots.http, iter_of(b"on", b"etw", b"o"))) == saw
    for pieces in ((b"one", b"too"), (b"one",), (b"one", b"two", b"three"), ()):
        with pytest.raises(DivergenceError, match="sends another body"):
            replayed(run, lambda: posted(servers.roots.http, iter_of(*pieces)))  # noqa: B023
    assert servers.plain.hits["/echo"] == 1


def test_another_request_is_a_divergence(servers: Servers, instrumented: None) -> None:
    """A request with another body is a divergence that the library does not take for a failed request, and reaches
    nobody."""
    run, _ = recorded(lambda: posted(servers.roots.http, b"1"))

    async def swallowing() -> None:
        try:
            await posted(servers.roots.http, b"2")
        except Exception:
            await got(servers.roots.http)

    for call in (lambda: posted(servers.roots.http, b"2"), lambda: got(servers.roots.http), swallowing):
        with pytest.raises(DivergenceError), tracekit.replay(run.id):
            asyncio.run(call())
    assert servers.plain.hits == {"/echo": 1}


def test_who_waits_when_a_replay_fails_is_woken(servers: Servers, instrumented: None) -> None:
    """A task that waits for an answer, or the rest of one, gets the failure of the replay there."""

    async def program(also: bool) -> Any:
        ended: list[str] = []

        async def ask(path: str) -> None:
            try:
                await got(servers.roots.http, path)
            except ReplayError as error:
                ended.append(type(error).__name__)
                raise

        async def other() -> None:
            await asyncio.sleep(0.05)
            if also:
                tracekit.decision("another", input={}, output={})

        await asyncio.gather(ask("/slow"), ask("/stalls"), other(), return_exceptions=True)
        return ended

    run, _ = recorded(lambda: program(False))
    with pytest.raises(ReplayError), tracekit.replay(run.id):
        assert asyncio.run(program(True)) == ["TraceExhaustedError"] * 2


def test_in_a_tool(servers: Servers, instrumented: None) -> None:
    """A request in a tool's body is a step below the tool, and is skipped with it in a replay."""

    @tracekit.traced_tool(side_effect="irreversible")
    async def tool() -> Any:
        return await posted(servers.roots.http, b"1")

    run, saw = recorded(tool)
    assert types(run) == ["tool.call", "http.request", "http.response", "tool.return"]
    assert replayed(run, tool) == saw
    assert servers.plain.hits["/echo"] == 1


def test_part_of_another_request(servers: Servers, instrumented: None) -> None:
    """What a higher transport sends through this one is part of that one step, also as a stream."""

    class Stream(httpx.AsyncByteStream):
        def __init__(self, session: Any, response: Any) -> None:
            self.session, self.response = session, response

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self.response.content.iter_any():
                yield piece

        async def aclose(self) -> None:
            await self.session.close()

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            session = aiohttp.ClientSession()
            response = await session.request(request.method, str(request.url))
            return httpx.Response(response.status, stream=Stream(session, response))

    async def program() -> Any:
        async with httpx.AsyncClient(transport=Transport()) as client:
            out = [(await client.get(servers.roots.http + "/headers")).text]
            async with client.stream("GET", servers.roots.http + "/sse") as response:
                return out + [line async for line in response.aiter_lines()]

    run, saw = recorded(program)
    assert types(run).count("http.request") == 2
    assert replayed(run, program) == saw


def test_the_end_of_a_session_below_another_request(servers: Servers, instrumented: None) -> None:
    """A session that a higher transport makes when it first sends is closed at the program's end, though a replay never
    makes one."""
    sessions: list[Any] = []

    class Transport(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            sessions.append(aiohttp.ClientSession())
            async with sessions[-1].get(str(request.url)) as response:
                return httpx.Response(response.status, content=await response.read())

        async def aclose(self) -> None:
            while sessions:
                await sessions.pop().close()

    async def program() -> Any:
        async with httpx.AsyncClient(transport=Transport()) as client:
            return (await client.get(servers.roots.http + "/headers")).text

    run, saw = recorded(program)
    assert replayed(run, program) == saw


@pytest.mark.parametrize("_time", range(5))
def test_telemetry(servers: Servers, instrumented: None, monkeypatch: pytest.MonkeyPatch, _time: int) -> None:
    """Telemetry is sent while recording, is in no trace, and gets an empty answer in a replay, also in contexts without
    a run. What it did by itself there is missing one by one: what is next is not skipped before it can be made."""
    monkeypatch.setenv("LANGSMITH_ENDPOINT", servers.roots.http + "/langsmith")
    statuses: list[int] = []

    async def export() -> None:
        url = servers.roots.http + "/langsmith/runs/batch"
        async with aiohttp.ClientSession() as session, session.post(url, json={}) as response:
            await response.json()
            statuses.append(response.status)

    async def program() -> Any:
        await export()
        await asyncio.create_task(export(), context=Context())
        return await got(servers.roots.http)

    run, saw = recorded(program)
    assert types(run) == ["http.request", "http.response"]
    assert servers.plain.hits["/langsmith/runs/batch"] == 2
    servers.stop()
    assert replayed(run, program) == saw
    assert statuses == [200] * 4


def test_live_beside_the_log(servers: Servers, instrumented: None) -> None:
    """A replay in which model calls go live sends these, over TLS and plain, and answers the rest from the log."""

    async def program() -> Any:
        found = await got(servers.roots.http, "/headers")
        body = {"model": "m", "messages": [{"role": "user", "content": found}]}
        async with aiohttp.ClientSession() as session:
            for root in (servers.roots.http, servers.roots.https):
                async with session.post(
                    root + "/v1/chat/completions", json=body, ssl=trusting(servers.roots)
                ) as response:
                    await response.read()
            async with session.get(servers.roots.http + "/sse") as response:
                return [piece.decode() async for piece in response.content]

    run, saw = recorded(program)
    with tracekit.replay(run.id, live={"llm"}, allow_hosts=["localhost"]):
        assert run_of(program) == saw
    assert servers.plain.hits == {"/headers": 1, "/v1/chat/completions": 2, "/sse": 1}
    assert servers.tls.hits == {"/v1/chat/completions": 2}


def test_cut_off_anywhere(servers: Servers, instrumented: None, tmp_path: Path) -> None:
    """A run cut off at any entry can be resumed: an answered request is not sent again, and an open one is if it only
    reads."""

    async def program() -> Any:
        async with aiohttp.ClientSession() as session:
            out: list[Any] = []
            async with session.get(servers.roots.https + "/echo", ssl=trusting(servers.roots)) as response:
                out.append(await response.json())
            try:
                await session.get(f"http://127.0.0.1:{servers.roots.closed}/")
            except aiohttp.ClientConnectorError as error:
                out.append(str(error.os_error))
            async with session.get(servers.roots.http + "/sse") as response:
                out += [line.decode() async for line in response.content]
            return out

    run, saw = recorded(program)
    whole = entries(run)
    for count in range(2, len(whole)):
        store = tmp_path / str(count)
        path = cut(run, count, store)
        before = servers.plain.hits.total() + servers.tls.hits.total()
        with tracekit.resume(path, store=store):
            assert run_of(program) == saw
        answered = sum(entry["type"] == "http.response" for entry in whole[:count])
        assert servers.plain.hits.total() + servers.tls.hits.total() - before == 2 - answered
        with tracekit.replay(path, store=store):
            assert run_of(program) == saw


def test_what_is_refused_is_raised_as_it_is(servers: Servers, instrumented: None) -> None:
    """An error by which tracekit refuses a request is raised unchanged, before anything is sent."""

    async def program() -> None:
        with forbidding(lambda spec: ContractViolationError("not here")):
            await posted(servers.roots.http, b"1")

    for _ in range(2):
        with tracekit.record() as run, pytest.raises(ContractViolationError, match="not here"):
            asyncio.run(program())
    with tracekit.replay(run.id), pytest.raises(ContractViolationError, match="not here"):
        asyncio.run(program())
    assert servers.plain.hits.total() == 0


def test_repeated_tools(servers: Servers, instrumented: None) -> None:
    """A tool that may be repeated is not, once it has sent something irreversible, in a run or outside."""

    @tracekit.traced_tool(side_effect="reversible", max_retries=3)
    async def tool() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            await session.post(servers.roots.http + "/status?code=500")

    with pytest.raises(aiohttp.ClientResponseError):
        asyncio.run(tool())
    assert servers.plain.hits["/status"] == 1


def test_secrets_stay_out(servers: Servers, instrumented: None) -> None:
    """Credentials in headers, URLs, cookies, proxies, answers and exceptions are in no trace."""
    secret = "Zx9" + "qT7mB2kL" * 4

    async def program() -> Any:
        jar = aiohttp.CookieJar(unsafe=True)
        headers = {"X-API-Key": secret, "authorization": f"Bearer {secret}", "x-user": "nobody"}
        async with aiohttp.ClientSession(headers=headers, cookies={"session": secret}, cookie_jar=jar) as session:
            await (await session.get(servers.roots.http + f"/echo?token={secret}")).read()
            for proxy in (servers.roots.proxy, f"http://127.0.0.1:{servers.roots.closed}"):
                try:
                    await session.get(servers.roots.https + "/echo", proxy=proxy, proxy_headers=headers)
                except aiohttp.ClientError:
                    pass
            async with session.get(servers.roots.http + "/cookie") as response:
                return response.cookies["session"].value

    run, saw = recorded(program)
    text = Path(run.path).read_bytes()
    assert secret.encode() not in text
    assert saw.encode() not in text
    assert replayed(run, program).startswith("REDACTED_")


@pytest.mark.parametrize("path", ["/echo", "/echo?later=1"])
def test_a_redacted_body_is_read_whole(path: str, servers: Servers, instrumented: None) -> None:
    """A body that redaction made longer or shorter is read to its end, also in pieces."""
    body = json.dumps({"password": "hunter2hunter2hunter2", "x": "y" * 50})

    async def program() -> Any:
        return json.loads(await posted(servers.roots.http, body, path))["x"]

    run, saw = recorded(program)
    assert b"hunter2" not in Path(run.path).read_bytes()
    assert replayed(run, program) == saw


def test_left_unanswered(servers: Servers, instrumented: None) -> None:
    """A POST that is abandoned before its answer comes is in doubt."""

    async def program() -> None:
        async with aiohttp.ClientSession() as session:
            try:
                await asyncio.wait_for(session.post(servers.roots.http + "/slow", data=b"x"), 0.1)
            except TimeoutError:
                pass

    run, _ = recorded(program)
    (request, error) = [entry for entry in entries(run) if entry["type"].startswith("http.")]
    assert error["type"] == "http.error"
    assert [doubt.step for doubt in recovery.in_doubt().in_doubt] == [request["seq"]]
    replayed(run, program)


def test_nothing_uncaptured(servers: Servers, tmp_path: Path) -> None:
    """Requests over old and new connections leave nothing uncaptured, and replay in a process of their own."""
    place = Place(tmp_path)
    place.program(f"""
import asyncio, aiohttp, tracekit
tracekit.instrument()
ROOT = {servers.roots.http!r}

async def ask(session):
    async with session.get(ROOT + "/sse") as response:
        return await response.text()

async def main():
    async with aiohttp.ClientSession() as session:
        with tracekit.record():
            print(await ask(session))
        with tracekit.record():
            print(await ask(session))
            try:
                await session.post(ROOT + "/reset", data=b"x")
            except aiohttp.ClientOSError as error:
                print(error)

asyncio.run(main())
""")
    done = place.python("agent.py")
    assert done.returncode == 0, done.stderr
    assert "not captured" not in done.stderr
    servers.stop()
    for path in place.runs:
        assert b'"type":"boundary"' not in path.read_bytes()
        again = place.cli("replay", str(path), "--", "python", "agent.py")
        assert again.returncode == 0, again.stderr
        assert again.stdout == done.stdout


def test_outside_runs_nothing_changes(servers: Servers, instrumented: None) -> None:
    """Outside runs a connection has its own transport."""

    async def program() -> Any:
        async with aiohttp.ClientSession() as session, session.get(servers.roots.http + "/sse") as response:
            transport = response.connection.transport
            return type(transport).__name__, transport.get_extra_info("peername")[0]

    assert asyncio.run(program()) == ("_SelectorSocketTransport", "127.0.0.1")


class Hasty(threading.Thread):
    """A websocket server whose first messages come at once with its handshake."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._socket.getsockname()[1]}/"
        self.start()

    def run(self) -> None:
        client = self._socket.accept()[0]
        self._socket.close()
        with client, client.makefile("rb") as file:
            head = b"".join(iter(file.readline, b"\r\n"))
            client.sendall(agreed(head) + b"\x81\x05hello\x81\x02ok")
            file.read(2 + 4 + 3)
            client.sendall(b"\x88\x00")
            file.read(2 + 4 + 2)  # the client's close, which then waits for the end of the connection


def test_messages_that_come_with_the_handshake(instrumented: None) -> None:
    """Messages that arrive with the handshake are received once each, in the trace and in a replay."""
    server = Hasty()

    async def program() -> Any:
        async with aiohttp.ClientSession() as session, session.ws_connect(server.url) as talk:
            found = [await talk.receive_str(), await talk.receive_str()]
            await talk.send_str("bye")
            return [*found, (await talk.receive()).type.name]

    run, saw = recorded(program)
    assert saw == ["hello", "ok", "CLOSE"]
    outputs = [entry["output"] for entry in entries(run) if entry["type"] == "http.chunk"]
    assert [one["received"].get("data") for one in outputs if "received" in one] == ["hello", "ok", None]
    assert replayed(run, program) == saw


def agreed(head: bytes) -> bytes:
    """The answer to the request for a websocket."""
    key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
    accept = base64.b64encode(digest)
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n"
        % accept
    )


class Sluggish:
    """A server that takes what it is sent a little at a time, over a websocket, too."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.origin = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # else whoever accepts goes on waiting
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                with client, client.makefile("rb", buffering=1 << 16) as file:
                    self._answer(client, file)

    def _answer(self, client: socket.socket, file: Any) -> None:
        head = b"".join(iter(file.readline, b"\r\n"))
        if b"Upgrade: websocket" in head:
            client.sendall(agreed(head))
            while (start := file.read(2)) and start[0] & 15 == 2:
                size = int.from_bytes(file.read(8 if start[1] & 127 == 127 else 2), "big")
                file.read(size + 4)
                client.sendall(b"\x81\x02ok")
            client.sendall(b"\x88\x00")
            return
        while size := int(file.readline(), 16):
            file.read(size + 2)
        file.readline()
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def small(address: Any) -> socket.socket:
    """A socket that keeps little of what is sent."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return made


async def uploading(origin: str, seen: list[int], rounds: list[int]) -> Any:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            seen.append(rounds[0])
            yield b"x" * 300_000

    connector = aiohttp.TCPConnector(socket_factory=small)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"http://{origin}/", data=pieces()) as response,
    ):
        return await response.text()


async def sending(origin: str, seen: list[int], rounds: list[int]) -> Any:
    connector = aiohttp.TCPConnector(socket_factory=small)
    async with aiohttp.ClientSession(connector=connector) as session, session.ws_connect(f"ws://{origin}/") as talk:
        for _ in range(3):
            seen.append(rounds[0])
            await talk.send_bytes(b"x" * 300_000)
        return [await talk.receive_str() for _ in range(3)]


async def sending_by_websockets(origin: str, seen: list[int], rounds: list[int]) -> Any:
    async with websockets.connect(f"ws://{origin}/", compression=None) as talk:
        kept = talk.transport.get_extra_info("socket")
        if kept is not None:  # there is none in a replay
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        for _ in range(3):
            seen.append(rounds[0])
            await talk.send(b"x" * 300_000)
        return [await talk.recv() for _ in range(3)]


@pytest.mark.parametrize("send", [uploading, sending, sending_by_websockets])
def test_who_sends_more_than_is_taken(send: Any, instrumented: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has to wait while sending waits at the same place in a replay, as another task sees."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    server = Sluggish()

    async def program() -> Any:
        seen: list[int] = []
        rounds = [0]
        task = asyncio.create_task(send(server.origin, seen, rounds))
        while not task.done():
            rounds[0] += 1
            await asyncio.sleep(0)
        return [await task, seen]

    run, saw = recorded(program)
    moments = [
        entry["output"]["moment"]
        for entry in entries(run)
        if isinstance(entry.get("output"), dict) and "moment" in entry["output"]
    ]
    assert moments.count("paused") == moments.count("resumed") > 1
    server.stop()
    assert replayed(run, program) == saw
