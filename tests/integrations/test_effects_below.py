"""A POST made somewhere below a tool decides on what follows the tool: nothing makes it a second time, in a run or outside."""

from __future__ import annotations

import asyncio
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
from tracekit import record, replay, traced_tool
from tracekit.agents import AgentRegistry, BaseAgent, IntentRouter

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
    """One POST, whatever the tool says of itself: wherever in its body it was made, nobody makes it again or stands in."""
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
    """The same with an asynchronous client, in a task of its own."""

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
    """A GET, and a POST that asks a model, are no reason against another attempt."""

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
    """Neither for one with a class nor for one without; and so in the replay, where nothing is sent."""

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
