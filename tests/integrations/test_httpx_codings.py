"""Bodies with a content coding, read as they travel or with the coding undone, by httpx and httpx2."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
import httpx2
import pytest

import tracekit
from tests.support.stub_provider import StubProvider
from tests.support.tracing import entries
from tracekit.errors import DivergenceError
from tracekit.integration import Trace

TEXT: Final = b"".join(b"line %d of the body\n" % number for number in range(200))
#: The coding that an answer names, and its body.
BODIES: Final[dict[str, tuple[str | None, bytes]]] = {
    "plain": (None, TEXT),
    "identity": ("identity", TEXT),
    "gzip": ("gzip", gzip.compress(TEXT, mtime=0)),
    "members": ("gzip", gzip.compress(TEXT, mtime=0) + gzip.compress(b"a second member", mtime=0)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "twice": ("gzip, deflate", zlib.compress(gzip.compress(TEXT, mtime=0))),
    "unknown": ("x-gzip", gzip.compress(TEXT, mtime=0)),
    "broken": ("gzip", gzip.compress(TEXT, mtime=0)[:-8] + bytes(8)),
}
WAYS: Final = ("get", "read", "iter_bytes", "iter_lines", "iter_raw")


class Handler(BaseHTTPRequestHandler):
    """Answers with a body of ``BODIES``, at once or in chunks."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        _, name, how = self.path.split("/")
        coding, body = BODIES[name]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        if coding is not None:
            self.send_header("Content-Encoding", coding)
        if how == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
            size = 50
            pieces = [body[at : at + size] for at in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}"
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def _head(response: Any) -> Any:
    return response.status_code, [
        (name, response.headers.get(name)) for name in ("content-encoding", "content-length", "content-type")
    ]


def asked(library: Any, url: str, way: str) -> Any:
    """What a program sees of an answer that it reads in this way: head, pieces, and how many bytes were said to have travelled by then."""
    out: list[Any] = []
    with library.Client() as client:
        try:
            if way == "get":
                response = client.get(url)
                return [_head(response), response.content, response.num_bytes_downloaded]
            with client.stream("GET", url) as response:
                out.append(_head(response))
                for piece in [response.read()] if way == "read" else getattr(response, way)():
                    out.append((piece, response.num_bytes_downloaded))
                out.append(response.num_bytes_downloaded)
        except library.DecodingError as error:
            out.append(str(error))
    return out


def asked_async(library: Any, url: str, way: str) -> Any:
    async def main() -> Any:
        out: list[Any] = []
        async with library.AsyncClient() as client:
            try:
                if way == "get":
                    response = await client.get(url)
                    return [_head(response), response.content, response.num_bytes_downloaded]
                async with client.stream("GET", url) as response:
                    out.append(_head(response))
                    if way == "read":
                        out.append((await response.aread(), response.num_bytes_downloaded))
                    else:
                        async for piece in getattr(response, f"a{way}")():
                            out.append((piece, response.num_bytes_downloaded))
                    out.append(response.num_bytes_downloaded)
            except library.DecodingError as error:
                out.append(str(error))
        return out

    return asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@pytest.mark.parametrize("ask", [asked, asked_async])
def test_a_replay_reads_what_was_read(
    ask: Callable[[Any, str, str], Any], library: Any, way: str, server: str, instrumented: None
) -> None:
    """Whichever way a body is read, a replay gives the same headers, the same pieces and the same progress, to the last byte."""
    bodies = [(name, how) for name in BODIES for how in ("whole", "chunks")]
    if ask is asked_async and way not in ("get", "iter_raw"):
        # Where decoding fails is another place in a replay, which says that it is not exact.
        bodies = [(name, how) for name, how in bodies if name != "broken"]
    with tracekit.record() as run:
        recorded = [ask(library, f"{server}/{name}/{how}", way) for name, how in bodies]
    with tracekit.replay(run.id) as session:
        replayed = [ask(library, f"{server}/{name}/{how}", way) for name, how in bodies]
    assert dict(zip(bodies, replayed, strict=True)) == dict(zip(bodies, recorded, strict=True))
    assert session.report.exact, session.report
    if way == "iter_raw":
        for (name, _), answer in zip(bodies, recorded, strict=True):
            assert b"".join(piece for piece, _ in answer[1:-1]) == BODIES[name][1]


@pytest.mark.parametrize("ask", [asked, asked_async])
def test_a_body_that_is_read_otherwise(ask: Callable[..., Any], server: str, instrumented: None) -> None:
    """A replay that reads a body with its coding, which was recorded without, is told so; the other way round it is decoded."""
    url = f"{server}/gzip/chunks"
    with tracekit.record() as run:
        ask(httpx, url, "read")
    with pytest.raises(DivergenceError, match="as it travelled, with its content coding"), tracekit.replay(run.id):
        ask(httpx, url, "iter_raw")
    with tracekit.record() as run:
        ask(httpx, url, "iter_raw")
    with tracekit.replay(run.id):
        assert ask(httpx, url, "read")[1][0] == TEXT


def test_what_is_read_decoded_is_readable(server: str, instrumented: None) -> None:
    """The log has a body as text where the library undid its coding, and as it travelled where the program read it so."""
    with tracekit.record() as run:
        asked(httpx, f"{server}/gzip/whole", "get")
        asked(httpx, f"{server}/gzip/whole", "iter_lines")
        asked(httpx, f"{server}/gzip/whole", "iter_raw")
    trace = Trace(run.path)
    outputs = [
        trace.expand(one["output"]) for one in entries(run.path) if one["type"] in ("http.response", "http.chunk")
    ]
    whole, _, piece, _, _, coded, _ = outputs
    assert whole["body"] == piece == TEXT.decode()
    assert coded["$t"] == "bytes"


def test_a_model_call_that_is_passed_on_coded(provider: StubProvider, instrumented: None) -> None:
    """What a model call used is known, too, where a program passes its answer on as it travels."""

    def program() -> bytes:
        body = {"model": "gpt-stub", "messages": [{"role": "user", "content": "Hello"}]}
        headers = {"x-stub-gzip": "1", "authorization": "Bearer k"}
        with (
            httpx.Client(headers=headers) as client,
            client.stream("POST", f"{provider.url}/v1/chat/completions", json=body) as response,
        ):
            return b"".join(response.iter_raw())

    with tracekit.record() as run:
        recorded = program()
    with tracekit.replay(run.id):
        assert program() == recorded
    answered = next(entry for entry in entries(run.path) if entry["type"] == "llm.response")
    assert answered["meta"]["usage"]
