"""A POST made anywhere inside a tool decides what may follow the tool: nothing sends it a second time, in a run or
outside."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.tracing import of_type
from tracekit import effect, record, recovery, replay, traced_tool
from tracekit.agents import AgentRegistry, BaseAgent, IntentRouter
from tracekit.errors import RunEndedError, StepTimeoutError

pytestmark = pytest.mark.usefixtures("instrumented")


class Shop(ThreadingHTTPServer):
    """A server on loopback that keeps which requests it got, and answers 503 to each."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[str] = []
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                shop.got.append(f"{self.command} {self.path}")
                self.send_response(503)
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url: Final = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def shop() -> Iterator[Shop]:
    server = Shop()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def asked(shop: Shop, method: str = "POST", path: str = "/orders", body: Any = None) -> int:
    with httpx.Client(trust_env=False) as client:
        return client.request(method, shop.url + path, json=body).raise_for_status().status_code


def in_a_thread(call: Callable[[], Any]) -> None:
    raised: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise raised[0]


def in_a_pool(call: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def on_a_loop(call: Callable[[], Any]) -> None:
    async def run() -> None:
        await asyncio.gather(asyncio.to_thread(call), asyncio.sleep(0))

    asyncio.run(run())


def directly(call: Callable[[], Any]) -> None:
    call()


WAYS: Final = [directly, in_a_thread, in_a_pool, on_a_loop]


def place(where: str, store: Path) -> AbstractContextManager[Any]:
    return record("shop", store=store) if where == "run" else nullcontext()


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_whose_body_has_posted_is_not_called_again(
    shop: Shop, tmp_path: Path, where: str, way: Callable[[Any], None]
) -> None:
    """There is one POST, whatever the tool declares and wherever in its body it was sent: the tool is neither repeated
    nor replaced by a fallback."""
    stood_in: list[str] = []

    @traced_tool(side_effect="irreversible")
    def other(order: str) -> None:
        stood_in.append(order)

    @traced_tool(side_effect="reversible", max_retries=2, fallback=other)
    def order(order: str) -> None:
        way(lambda: asked(shop))

    with place(where, tmp_path), pytest.raises(httpx.HTTPStatusError):
        order("book")
    assert shop.got == ["POST /orders"]
    assert stood_in == []


@pytest.mark.parametrize("where", ["run", "outside"])
def test_a_coroutine_whose_body_has_posted_is_not_awaited_again(shop: Shop, tmp_path: Path, where: str) -> None:
    """A tool with retries is not tried again after its body made an irreversible POST, even by an asynchronous client
    in a task of its own."""

    @traced_tool(side_effect="reversible", max_retries=2)
    async def order() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await asyncio.create_task(client.post(shop.url + "/orders", json={"n": 1}))
            answer.raise_for_status()

    with place(where, tmp_path), pytest.raises(httpx.HTTPStatusError):
        asyncio.run(order())
    assert shop.got == ["POST /orders"]


@pytest.mark.parametrize("where", ["run", "outside"])
@pytest.mark.parametrize("way", WAYS)
def test_what_only_looks_is_looked_at_again(shop: Shop, tmp_path: Path, where: str, way: Callable[[Any], None]) -> None:
    """A GET, and a POST that asks a model, do not prevent another attempt."""

    question = {"model": "m", "messages": [{"role": "user", "content": "how many?"}]}
    looks: list[tuple[Any, ...]] = [("GET", "/stock"), ("POST", "/v1/chat/completions", question)]

    @traced_tool(side_effect="read_only", max_retries=1)
    def look(number: int) -> None:
        way(lambda: asked(shop, *looks[number]))

    with place(where, tmp_path):
        for number in range(len(looks)):
            with pytest.raises(httpx.HTTPStatusError):
                look(number)
    assert shop.got == ["GET /stock"] * 2 + ["POST /v1/chat/completions"] * 2


@pytest.mark.parametrize("where", ["run", "outside"])
def test_nobody_stands_in_for_an_agent_that_has_posted(shop: Shop, tmp_path: Path, where: str) -> None:
    """An agent that has sent a POST gets no fallback, with a declared class or without; the same in the replay, where
    nothing is sent."""

    def first(payload: Any) -> None:
        in_a_pool(lambda: asked(shop))

    for side_effect in (None, "reversible"):
        shop.got.clear()
        registry = AgentRegistry(
            [
                BaseAgent(first, intent="buy", name="first", priority=1, side_effect=side_effect),
                BaseAgent(
                    lambda payload: asked(shop), intent="buy", name="second", priority=2, side_effect=side_effect
                ),
            ]
        )
        envelope = {"intent": "buy", "payload": {}, "routing": {"strategy": "fallback"}}

        def program(registry: AgentRegistry = registry, envelope: dict[str, Any] = envelope) -> Any:
            return IntentRouter(registry).route(envelope)

        with place(where, tmp_path) as run:
            response = program()
        assert response.error.type.value == "irreversible_step_failed"
        assert shop.got == ["POST /orders"]
        if where == "run":
            (end,) = of_type(run, "agent.attempt.end")
            assert end["meta"]["info"]["irreversible"].startswith("POST ")
            with replay(run):
                assert program() == response
            assert shop.got == ["POST /orders"]


@pytest.mark.parametrize("where", ["run", "outside"])
def test_what_was_given_up_posts_nothing_any_more(shop: Shop, tmp_path: Path, where: str) -> None:
    """If a function runs out of time and goes on in its thread, its POST is refused before it is sent, and its GET is
    not."""
    go, over = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    @traced_tool(side_effect="read_only", timeout_ms=20, timeout_in="thread", max_retries=1)
    def look(number: int) -> None:
        assert go.wait(60)
        for method in ("GET", "POST"):
            try:
                asked(shop, method)
            except httpx.HTTPStatusError:
                pass
            except BaseException as error:
                raised.append(error)
        if len(raised) == 2:
            over.set()

    with place(where, tmp_path):
        with pytest.raises(StepTimeoutError):
            look(1)
        go.set()
        assert over.wait(60)
    assert [type(error) for error in raised] == [RunEndedError] * 2
    assert shop.got == ["GET /orders"] * 2


@pytest.mark.parametrize("side_effect", ["reversible", "irreversible"])
@pytest.mark.parametrize("where", ["run", "outside"])
def test_an_effect_block_counts_like_a_tool(tmp_path: Path, where: str, side_effect: Any) -> None:
    """A tool is repeated around an effect block only if the block can be undone and has ended."""
    made: list[str] = []

    @traced_tool(side_effect="reversible", max_retries=1)
    def order() -> None:
        with effect("mail.send", side_effect=side_effect, to="ann") as mail:
            mail.perform(made.append, "sent")
        raise ConnectionError("the answer was lost")

    with place(where, tmp_path), pytest.raises(ConnectionError):
        order()
    assert made == ["sent"] * (2 if side_effect == "reversible" else 1)


@pytest.mark.parametrize("where", ["run", "outside"])
def test_what_goes_on_below_a_tool_is_not_begun_a_second_time(tmp_path: Path, where: str) -> None:
    """While a task left behind by a tool makes a reversible call, which may still take effect, the tool is not
    repeated."""
    made: list[str] = []
    going: list[asyncio.Event] = []
    tasks: list[asyncio.Task[None]] = []

    @traced_tool(side_effect="reversible")
    async def book(seat: int) -> None:
        made.append(f"book {seat}")
        await going[0].wait()

    @traced_tool(side_effect="reversible", max_retries=2)
    async def trip() -> None:
        tasks.append(asyncio.create_task(book(1)))
        await asyncio.sleep(0)
        raise ConnectionError("no hotel")

    async def program() -> None:
        going.append(asyncio.Event())
        with pytest.raises(ConnectionError):
            await trip()
        going[0].set()
        await asyncio.gather(*tasks)

    with place(where, tmp_path):
        asyncio.run(program())
    assert made == ["book 1"]


def test_a_post_whose_answer_was_lost_is_in_doubt(shop: Shop, tmp_path: Path) -> None:
    """A POST whose answer was lost is in doubt even in a run that ended well; one that was answered or never sent, and
    a GET, are not."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lost = f"http://127.0.0.1:{silent.getsockname()[1]}/pay"
        with socket.create_server(("127.0.0.1", 0)) as gone:
            closed = f"http://127.0.0.1:{gone.getsockname()[1]}/pay"
        with record("shop", store=tmp_path) as run, httpx.Client(trust_env=False, timeout=0.2) as client:
            for url, kind in ((lost, httpx.ReadTimeout), (closed, httpx.ConnectError)):
                for method in ("POST", "GET"):
                    with pytest.raises(kind):
                        client.request(method, url, json={"cents": 4200} if method == "POST" else None)
            assert client.post(shop.url + "/orders").status_code == 503
    (one,) = recovery.in_doubt(tmp_path).in_doubt
    assert (one.run_id, one.code, one.arguments["body"]) == (run.id, "irreversible_lost", {"cents": 4200})
    assert one.name is not None
    assert one.name.startswith("POST 127.0.0.1")
