"""Websockets, of ``websockets`` and ``aiohttp``: recorded, and replayed by the libraries' own code from recorded messages."""

from __future__ import annotations

import asyncio
import json
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import uvloop
from openai import AsyncOpenAI, OpenAI
from websockets.asyncio.client import connect

import tracekit
from tests.integrations.websocket_programs import PROGRAMS, UNSTEADY, opened
from tests.support.cut import cut
from tests.support.programs import ran
from tests.support.talker import Talker
from tracekit import recovery
from tracekit.errors import BudgetExceededError, DivergenceError, ReplayError
from tracekit.integration import Trace


@pytest.fixture
def talker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Talker]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    found = Talker()
    yield found
    found.stop()


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def entries(run: tracekit.Run) -> list[dict[str, Any]]:
    trace = Trace(run.path)
    return [trace.expand(dict(entry)) for entry in trace.entries()]


def run_of(program: Callable[[], Any]) -> Any:
    found = program()
    return plain(asyncio.run(found) if asyncio.iscoroutine(found) else found)


def recorded(program: Callable[[], Any]) -> tuple[tracekit.Run, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with tracekit.record() as run:
            saw = run_of(program)
    return run, saw


def replayed(run: tracekit.Run, program: Callable[[], Any]) -> Any:
    with tracekit.replay(run.id) as session:
        found = run_of(program)
    assert session.report.verdict.answer == "exact"
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_library(name: str, talker: Talker, instrumented: None) -> None:
    """Every program sees the same bare, recorded, replayed beside the server, which hears nothing, and replayed without it."""

    def program() -> Any:
        return ran(PROGRAMS[name], talker.url)

    bare = plain(program())
    run, saw = recorded(program)
    if name not in UNSTEADY:
        assert saw == bare
    hits = talker.hits.copy()
    assert replayed(run, program) == saw
    assert talker.hits == hits
    talker.stop()
    assert replayed(run, program) == saw


async def with_aiohttp(root: str) -> Any:
    out: list[Any] = []
    async with aiohttp.ClientSession() as session:
        for compress in (0, 15):
            async with session.ws_connect(root + "/talk", compress=compress, heartbeat=0.25) as talk:
                for message in ("hello", "ü" * 400, "hello"):
                    await talk.send_str(message)
                    out.append(await talk.receive_str())
                await talk.send_bytes(b"\x00\xff")
                out.append((await talk.receive_bytes()).hex())
                await talk.send_json({"a": [1, None]})
                out.append(await talk.receive_json())
                for message, count in (("burst", 5), ("split", 1), ("big", 1), ("ping", 1), ("drip", 5)):
                    await talk.send_str(message)
                    out += [len(await talk.receive_str()) for _ in range(count)]
                await talk.ping(b"own")
                try:
                    await talk.send_str("slow")
                    await talk.receive(timeout=0.05)
                except TimeoutError:
                    out.append("not yet")
                out.append(await talk.receive_str())
            out.append(talk.close_code)
        for message in ("close", "kill", "nonsense"):
            async with session.ws_connect(root + "/talk") as talk:
                await talk.send_str(message)
                last = await talk.receive()
                out.append((message, last.type.name, last.extra, talk.close_code))
        try:
            await session.ws_connect(root + "/forbidden")
        except aiohttp.WSServerHandshakeError as error:
            out.append((error.status, error.message))
        async with session.ws_connect(root + "/moved") as talk:
            await talk.send_str("here")
            out.append(await talk.receive_str())
    return out


def test_aiohttp(talker: Talker, instrumented: None) -> None:
    """aiohttp's client sees the same bare, recorded, and replayed without the server."""
    bare = run_of(lambda: with_aiohttp(talker.url))
    run, saw = recorded(lambda: with_aiohttp(talker.url))
    assert saw == bare
    talker.stop()
    assert replayed(run, lambda: with_aiohttp(talker.url)) == saw


def update() -> Any:
    return {"type": "realtime", "instructions": "be brief", "output_modalities": ["text"]}


async def realtime(root: str) -> Any:
    out = []
    async with (
        AsyncOpenAI(api_key="sk-none", base_url=root.replace("ws", "http", 1) + "/v1") as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        await connection.session.update(session=update())
        await connection.response.create()
        async for event in connection:
            out.append((type(event).__name__, getattr(event, "delta", None)))
            if event.type == "response.done":
                break
    return out


def realtime_on_threads(root: str) -> Any:
    out = []
    with (
        OpenAI(api_key="sk-none", base_url=root.replace("ws", "http", 1) + "/v1") as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        connection.session.update(session=update())
        connection.response.create()
        for event in connection:
            out.append((type(event).__name__, getattr(event, "delta", None)))
            if event.type == "response.done":
                break
    return out


@pytest.mark.filterwarnings("ignore:.*context manager:DeprecationWarning")
@pytest.mark.parametrize("program", [realtime, realtime_on_threads])
def test_openai_realtime(program: Any, talker: Talker, instrumented: None) -> None:
    """A conversation over OpenAI's Realtime API replays with the SDK's own events; it only reads."""
    run, saw = recorded(lambda: program(talker.url))
    assert [word for _, word in saw if word] == ["Hel", "lo ", "world"]
    assert "http.request" not in {entry["type"] for entry in entries(run)}
    (request,) = [entry for entry in entries(run) if entry["type"] == "llm.request"]
    assert request["name"] == "gpt-realtime"
    talker.stop()
    assert replayed(run, lambda: program(talker.url)) == saw


async def twice(root: str, path: str) -> None:
    """Two responses over one connection."""
    headers = {"User-Agent": "AsyncOpenAI/Python 3.0"}
    async with connect(root + path, additional_headers=headers) as connection:
        await connection.recv()
        for _ in range(2):
            await connection.send(json.dumps({"type": "response.create"}))
            while json.loads(await connection.recv())["type"] not in ("response.done", "response.completed"):
                pass


@pytest.mark.parametrize(
    ("path", "name", "model"),
    [("/v1/realtime?model=gpt-realtime", "gpt-realtime", None), ("/v1/responses", "responses", "gpt-5-mini")],
)
def test_what_a_conversation_takes(path: str, name: str, model: str, talker: Talker, instrumented: None) -> None:
    """A conversation with a model is one model call: it has the tokens of all its responses, and counts against the budget."""
    prices = {name: tracekit.Price(1.0, 2.0) for name in ("gpt-realtime", "gpt-5-mini")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with tracekit.record(budget=tracekit.Budget(usd=1.0, prices=prices)) as run:
            asyncio.run(twice(talker.url, path))
    (request,) = [entry for entry in entries(run) if entry["type"] == "llm.request"]
    (answer,) = [entry for entry in entries(run) if entry["type"] == "llm.response"]
    assert request["name"] == name
    assert answer["meta"].get("model") == model
    assert answer["meta"]["usage"] == {"input_tokens": 20, "output_tokens": 10, "cache_read_input_tokens": 8}
    assert answer["meta"]["cost_usd"] == pytest.approx(20 * 1e-6 + 10 * 2e-6)
    talker.stop()
    with tracekit.replay(run.id):
        asyncio.run(twice(talker.url, path))


def test_a_conversation_that_a_budget_does_not_allow(talker: Talker, instrumented: None) -> None:
    """After a conversation that has used up the budget none is begun."""

    async def program() -> None:
        await twice(talker.url, "/v1/realtime?model=gpt-realtime")
        await twice(talker.url, "/v1/realtime?model=gpt-realtime")

    with (
        pytest.raises(BudgetExceededError),
        tracekit.record(budget=tracekit.Budget(output_tokens=8, assumed_output_tokens=1)),
    ):
        asyncio.run(program())
    assert talker.hits["/v1/realtime"] == 1


def test_another_service_with_such_a_path(talker: Talker, instrumented: None) -> None:
    """A websocket of another service is no model call, whatever its path is."""

    async def program() -> None:
        for path in ("/v1/realtime", "/v1/responses"):
            async with connect(talker.url + path) as connection:
                await connection.recv()

    run, _ = recorded(program)
    assert [entry["type"] for entry in entries(run)].count("http.request") == 2


def test_the_log(talker: Talker, instrumented: None) -> None:
    """Messages of both directions are readable, each on the log before the other side has it."""
    seen: list[bool] = []

    async def program(run: tracekit.Run) -> None:
        async with connect(talker.url + "/talk") as talk:
            await talk.send("a message")
            seen.append(b"a message" in Path(run.path).read_bytes())
            await talk.recv()
            seen.append('"received"' in Path(run.path).read_text())
            await talk.send("ping")
            await talk.recv()

    with tracekit.record() as run:
        asyncio.run(program(run))
    assert all(seen)
    outputs = [entry["output"] for entry in entries(run) if entry["type"] == "http.chunk"]
    frames = [next(iter(output.items())) for output in outputs if "sent" in output or "received" in output]
    assert ("sent", {"type": "text", "data": "a message"}) in frames
    assert ("received", {"type": "text", "data": "ponged"}) in frames
    assert ("sent", {"type": "close", "code": 1000, "reason": ""}) in frames


def test_over_tls(instrumented: None, tmp_path: Path) -> None:
    """A conversation over TLS, of each client, is replayed with no connection and no certificate."""
    authority = trustme.CA()
    context, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(trusted)
    talker = Talker(context)

    async def asked(message: str) -> list[Any]:
        async with connect(talker.url + "/talk", ssl=trusted) as talk:
            await talk.send(message)
            out = [await talk.recv()]
        async with aiohttp.ClientSession() as session, session.ws_connect(talker.url + "/talk", ssl=trusted) as other:
            await other.send_str(message)
            return [*out, await other.receive_str()]

    def program() -> Any:
        with opened(talker.url + "/talk", ssl=trusted) as talk:
            talk.send("one")
            return [talk.recv(), *asyncio.run(asked("two"))]

    run, saw = recorded(program)
    talker.stop()
    assert replayed(run, program) == saw


def test_uvloop(talker: Talker, instrumented: None) -> None:
    """The same over the transports of uvloop, replayed there and on asyncio's own loop."""

    def program() -> Any:
        return PROGRAMS["iterated"](talker.url)

    with tracekit.record() as run:
        saw = plain(uvloop.run(program()))
    talker.stop()
    with tracekit.replay(run.id):
        assert plain(uvloop.run(program())) == saw
    assert replayed(run, program) == saw


@pytest.mark.parametrize("threads", [False, True], ids=["asyncio", "threads"])
def test_other_messages_are_a_divergence(threads: bool, talker: Talker, instrumented: None) -> None:
    """A program that says something else, less, or more, fails its replay, and nobody hears it."""

    async def on_asyncio(*messages: str) -> Any:
        async with connect(talker.url + "/talk") as talk:
            for message in messages:
                await talk.send(message)
                await talk.recv()

    def on_threads(*messages: str) -> Any:
        with opened(talker.url + "/talk") as talk:
            for message in messages:
                talk.send(message)
                talk.recv()

    program: Any = on_threads if threads else on_asyncio
    run, _ = recorded(lambda: program("one", "two"))
    assert replayed(run, lambda: program("one", "two")) is None
    for messages in (("one", "too"), ("one",), ("one", "two", "three")):
        with pytest.raises(ReplayError), tracekit.replay(run.id):
            run_of(lambda: program(*messages))  # noqa: B023
    with pytest.raises(DivergenceError, match="sends another"), tracekit.replay(run.id):
        run_of(lambda: program("two"))
    assert talker.heard == ["one", "two"]


def test_what_it_may_do(talker: Talker, instrumented: None, tmp_path: Path) -> None:
    """A websocket may do anything, unless somebody says what it does: a run that was cut off in one is not resumed into it."""

    async def program() -> Any:
        async with connect(talker.url + "/talk") as talk:
            await talk.send("pay")
            return await talk.recv()

    run, saw = recorded(program)
    (request,) = [entry for entry in entries(run) if entry["type"] == "http.request"]
    assert request["meta"]["side_effect"] == "irreversible"
    cut(run, request["seq"] + 3, tmp_path / "cut")
    [decision] = recovery.scan(tmp_path / "cut")
    assert decision.decision == "abort"
    tracekit.uninstrument()
    tracekit.instrument(http_classes={"WEBSOCKET localhost/talk": "read_only"})
    again, _ = recorded(program)
    (request,) = [entry for entry in entries(again) if entry["type"] == "http.request"]
    assert request["meta"]["side_effect"] == "read_only"
    path = cut(again, request["seq"] + 3, tmp_path / "again")
    with tracekit.resume(path, store=tmp_path / "again"):
        assert run_of(program) == saw


def test_in_a_tool(talker: Talker, instrumented: None) -> None:
    """A conversation in the body of a tool is a step of its own below it, and is skipped with the tool in a replay."""

    @tracekit.traced_tool(side_effect="irreversible")
    async def tool() -> Any:
        async with connect(talker.url + "/talk") as talk:
            await talk.send("hello")
            return await talk.recv()

    run, saw = recorded(tool)
    assert [entry["type"] for entry in entries(run) if entry["type"] in ("tool.call", "http.request")] == [
        "tool.call",
        "http.request",
    ]
    assert replayed(run, tool) == saw
    assert talker.hits["/talk"] == 1


def test_secrets_stay_out(talker: Talker, instrumented: None) -> None:
    """Credentials in headers, in the URL and in messages are in no trace."""
    secret = "sk-proj-" + "A1b2C3d4" * 6

    async def program() -> Any:
        headers = {"Authorization": f"Bearer {secret}"}
        async with connect(f"{talker.url}/talk?token={secret}", additional_headers=headers) as talk:
            await talk.send(json.dumps({"api_key": secret}))
            return len(await talk.recv()) > 10

    run, saw = recorded(program)
    assert secret.encode() not in Path(run.path).read_bytes()
    with tracekit.replay(run.id):
        assert run_of(program) == saw


def test_a_secret_in_a_message(talker: Talker, instrumented: None) -> None:
    """A replay may have another secret in the place of a redacted one, in messages too, and has it everywhere then."""
    one, other = "sk-proj-" + "A1b2C3d4" * 6, "sk-proj-" + "Zy9Xw8Vu7" * 7

    async def program(*secrets: str) -> Any:
        async with connect(f"{talker.url}/talk") as talk:
            for secret in secrets:
                await talk.send("first")
                await talk.recv()
                await talk.send(json.dumps({"api_key": secret}))
                await talk.recv()

    def threaded(*secrets: str) -> Any:
        with opened(talker.url + "/talk") as talk:
            for secret in secrets:
                talk.send("first")
                talk.recv()
                talk.send(json.dumps({"api_key": secret}))
                talk.recv()

    for act in (lambda *secrets: asyncio.run(program(*secrets)), threaded):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            with tracekit.record() as run:
                act(one, one)
        for secrets in ((one, one), (other, other)):
            with tracekit.replay(run.id):
                act(*secrets)
        for secrets in ((other, one), (one, other)):
            with pytest.raises(ReplayError), tracekit.replay(run.id):
                act(*secrets)


def test_outside_runs_nothing_changes(talker: Talker, instrumented: None) -> None:
    """Outside runs a connection has its own transport, and its own socket."""

    async def program() -> str:
        async with connect(talker.url + "/talk") as talk:
            return type(talk.transport).__name__

    assert asyncio.run(program()) == "_SelectorSocketTransport"
    with opened(talker.url + "/talk") as talk:
        assert type(talk.socket).__name__ == "socket"
