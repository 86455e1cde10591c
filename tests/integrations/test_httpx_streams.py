"""Streams of httpx and httpx2 that are read side by side: what a program does at their end comes in the recorded order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
import httpx2
import pytest

import tracekit
from tracekit.integration import Trace, attach

STREAMS: Final = 4
LINES: Final = 6


class Rounds:
    """A server that answers several requests side by side: each line goes to all of them before the next one does, and so does the end."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._waiting: list[asyncio.StreamWriter] = []
        self._open: list[asyncio.StreamWriter] = []
        self._started = threading.Event()
        #: That a round has been sent, to those that had left before its end, too.
        self.sent = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Rounds:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._started.set()
        await self._over.wait()
        server.close()
        for writer in self._open:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self._waiting.append(writer)
            if len(self._waiting) == STREAMS:
                round_, self._waiting = self._waiting, []
                head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
                for data in [head, *(b"7\r\nline %d\n\r\n" % number for number in range(LINES)), b"0\r\n\r\n"]:
                    for one in round_:
                        with suppress(ConnectionError):
                            one.write(data)
                            await one.drain()
                self.sent.set()


@pytest.fixture
def server() -> Iterator[Rounds]:
    with Rounds() as server:
        yield server


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("leaves", [False, True], ids=["read", "left"])
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_the_ends_of_streams_side_by_side(server: Rounds, library: Any, leaves: bool) -> None:
    """A stream that is closed lets other tasks go first, whether it has been read to its end or is left in the middle."""

    async def program() -> list[object]:
        seen: list[object] = []

        async def reader(name: int) -> None:
            async with client.stream("GET", server.url) as response:
                count = 0
                async for line in response.aiter_lines():
                    seen.append((name, line))
                    count += 1
                    if leaves and count == 2 + name % 2:
                        break
            seen.append((name, "end"))

        async with library.AsyncClient(timeout=None) as client, asyncio.TaskGroup() as group:
            for name in range(STREAMS):
                group.create_task(reader(name))
        return seen

    for _ in range(5):  # which of them ends first is chance
        with tracekit.record("streams") as run:
            recorded = asyncio.run(program())
        assert server.sent.wait(30)  # the guard of the replay is the whole process's
        server.sent.clear()
        with tracekit.replay(run.id) as session:
            assert asyncio.run(program()) == recorded
        assert session.report.exact


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_which_pieces_were_waited_for(library: Any) -> None:
    """A piece before which other tasks ran says so, with its place; so these run before it in a replay, and before no other."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for number in range(6):
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                yield b"piece %d\n" % number

    async def program() -> list[tuple[str, int]]:
        turns, seen = 0, list[tuple[str, int]]()

        async def turn() -> None:
            nonlocal turns
            while len(seen) < 6:
                turns += 1
                await asyncio.sleep(0)

        async with library.AsyncClient(
            transport=library.MockTransport(lambda _: library.Response(200, stream=Body()))
        ) as client:
            beside = asyncio.create_task(turn())
            async with client.stream("GET", "http://service.test/") as response:
                async for piece in response.aiter_text():
                    seen.append((piece, turns))
            await beside
        return seen

    with tracekit.record("pieces") as run:
        recorded = asyncio.run(program())
    with Trace(run.path) as trace:
        pieces = [
            entry for entry in trace.entries() if entry["type"] == "http.chunk" and isinstance(entry["output"], str)
        ]
    assert [entry["output"] for entry in pieces] == [piece for piece, _ in recorded]
    assert [entry.get("meta") for entry in pieces] == [
        {"suspended": True} if number % 3 else None for number in range(6)
    ]
    assert ["place" in entry for entry in pieces] == [bool(number % 3) for number in range(6)]
    with tracekit.replay(run.id) as session:
        assert asyncio.run(program()) == recorded
    assert session.report.exact


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_stream_that_is_left_by_a_generator(library: Any) -> None:
    """A generator that reads a stream and is dropped in the middle closes it at its place: before what its program gets next."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for number in range(4):
                for _ in range(6):
                    await asyncio.sleep(0)
                yield b"piece %d\n" % number

        async def aclose(self) -> None:
            await asyncio.sleep(0)

    async def program() -> list[str]:
        seen: list[str] = []

        async def pieces(client: Any) -> AsyncIterator[str]:
            async with client.stream("GET", "http://service.test/") as response:
                try:
                    async for piece in response.aiter_text():
                        yield piece
                finally:
                    seen.append("left")
            seen.append("closed")

        async with library.AsyncClient(
            transport=library.MockTransport(lambda _: library.Response(200, stream=Body()))
        ) as client:
            for _ in range(3):
                async for piece in pieces(client):
                    seen.append(piece)
                    if piece == "piece 1\n":
                        break
                seen.append("next")
                async for piece in pieces(client):
                    seen.append(piece)
        return seen

    with tracekit.record("left") as run:
        recorded = asyncio.run(program())
    with tracekit.replay(run.id) as session:
        assert asyncio.run(program()) == recorded
    assert session.report.exact


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("how", ["instrumented", "attached"])
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_tasks_run_while_a_client_is_closed(library: Any, how: str, request: pytest.FixtureRequest) -> None:
    """A client that closes its connections lets other tasks go first; in a replay, which has none, they go first, too, also where only
    this client is captured."""
    if how == "instrumented":
        request.getfixturevalue(how)

    async def program() -> list[object]:
        seen: list[object] = []

        async def one(name: int) -> None:
            client = library.AsyncClient(verify=False)
            if how == "attached":
                attach(client)
            async with aclosing(client) if how == "attached" else client:
                seen.append((await client.get(url)).text)
            seen.append(name)
            await asyncio.sleep(0)
            seen.append((name, len(seen)))

        async def beside() -> None:
            while len(seen) < 15:
                seen.append("beside")
                await asyncio.sleep(0.0005)

        await asyncio.gather(*map(one, range(5)), beside())
        return seen

    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        runs = []
        try:
            for _ in range(3):
                with tracekit.record("closing") as run:
                    runs.append((run.id, asyncio.run(program())))
        finally:
            server.shutdown()
            thread.join()
    for run_id, recorded in runs:
        with tracekit.replay(run_id) as session:
            assert asyncio.run(program()) == recorded
        assert session.report.exact
