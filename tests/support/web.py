"""A web server on loopback that behaves as its paths say, well or badly, plain or with TLS; and a proxy."""

from __future__ import annotations

import base64
import gzip
import json
import select
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

__all__ = ["CODED", "SECRET", "Roots", "Servers", "Web", "proxy", "web"]

_TEXT: Final = b"".join(b"line %d of the body\n" % number for number in range(200))
_GZIP: Final = gzip.compress(_TEXT, mtime=0)
#: The same text.
_BROTLI: Final = base64.b64decode(
    b"G/kPIIzUTnfiTNQIla5jw1QN0V0gFczeKGrn/LN4aGlkiYZfllUvKhyRg+/9dz/IywIgBCMoBotbUbABUZIVVaPFFb8gSrKiarS40hdESVZUjRZX/oIoyY"
    b"qq0eIqXxAlWVE1Wlz1C6IkK6pGi6v5gijJiqrR4mq/IEqyomq0uLoviJKsqBrtf4XrhyApmmE5XF3iEyRFMyyHq0t+gqRohuVwdalPkBTNsByuLv0JkqIZ"
    b"lsPVZT5BUjTDcri67CdIimZYDleX8wmSohmWw9XlfoKkaIblcHV5nyApmmE53Hk="
)
_ZSTD: Final = base64.b64decode(
    b"KLUv/WD6Ds0GAEKOIBTAZzl2aePSopRqKFJKmVJKrIrjsEUjd7moopG7XFDRyF0upmjkLhdSNHKXixeN3OXCRSN3uWjRyF0uWDRyl4sVjdzlIlZVVVVVRU"
    b"REREQ0MzMzMyMiIiIi8v///9u2bdtt27YtSZIkuW3btqKRuxxAgsAhoGAgQCgMHApRMBwUGASAyKgh7LV/BuClNREkBI8QDPF9HyuBiWU0LoRuAkwso3Eh"
    b"dBNgYhmNC6FbEDD2/vXv33///vv337/fL7MyJzMyH3NjLmZijoZZKCwMC8biWVkDdhU="
)
#: Bodies by name: the content coding that the answer says, and what travels.
CODED: Final[dict[str, tuple[str | None, bytes]]] = {
    "plain": (None, _TEXT),
    "gzip": ("gzip", _GZIP),
    "members": ("gzip", _GZIP + gzip.compress(b"a second member", mtime=0)),
    "deflate": ("deflate", zlib.compress(_TEXT)),
    "bare": ("deflate", zlib.compress(_TEXT)[2:-4]),
    "twice": ("gzip, deflate", zlib.compress(_GZIP)),
    "br": ("br", _BROTLI),
    "zstd": ("zstd", _ZSTD),
    "unknown": ("compress", _GZIP),
    "trailer": ("gzip", _GZIP[:-8] + bytes(8)),
    "short": ("gzip", _GZIP[: len(_GZIP) // 2]),
    "nothing": ("gzip", b""),
    "empty": ("gzip", gzip.compress(b"", mtime=0)),
}

SECRET: Final = "sk-proj-" + "a1B2c3D4e5F6" * 4


def _brotli(data: bytes) -> bytes:
    import brotli

    return bytes(brotli.compress(data))


def _zstd(data: bytes) -> bytes:
    import zstandard

    return bytes(zstandard.ZstdCompressor().compress(data))


_CODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "br": _brotli,
    "zstd": _zstd,
}


class Web(ThreadingHTTPServer):
    """``url`` is the root, ``hits`` counts the requests by path, ``bodies`` keeps what was sent, ``connections`` counts those."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, context: ssl.SSLContext | None = None, handler: Any = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or _Handler)
        self.scheme = "http"
        self.hits: Counter[str] = Counter()
        self.bodies: list[bytes] = []
        self.connections = 0
        self._answering = 0
        self._rests = threading.Condition()
        if context is not None:
            self.scheme = "https"
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    @contextmanager
    def answering(self) -> Iterator[None]:
        with self._rests:
            self._answering += 1
        try:
            yield
        finally:
            with self._rests:
                self._answering -= 1
                self._rests.notify_all()

    def rest(self, after: str = "") -> None:
        """Wait until it sends nothing any more: its threads would do so inside a replay, which is not theirs.

        Who has not waited for an answer names the path that he asked for ``after``: the server may not have read that yet.
        """
        with self._rests:
            asked = (lambda: not self._answering and self.hits[after]) if after else (lambda: not self._answering)
            assert self._rests.wait_for(asked, timeout=90)

    def get_request(self) -> Any:
        found = super().get_request()
        self.connections += 1
        return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests do."""


@contextmanager
def web(context: ssl.SSLContext | None = None, handler: Any = None) -> Iterator[Web]:
    """A server for the block; leaving it, or calling ``stop``, closes it with all its connections."""
    server = Web(context, handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@contextmanager
def proxy() -> Iterator[Web]:
    """A proxy that tunnels (CONNECT) and forwards; a user named ``nobody`` is refused."""
    with web(handler=_Proxy) as server:
        yield server


class Roots(NamedTuple):
    """``http`` and ``https`` servers, a ``proxy``, the file of the certificate that signs the second, and a port where nobody listens."""

    http: str
    https: str
    proxy: str
    ca: str
    closed: int


class Servers:
    """The servers of a test; ``stop`` closes them, ``hits`` is how many requests they had."""

    def __init__(self, directory: Path) -> None:
        import trustme

        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        self._stack = ExitStack()
        self.plain: Web = self._stack.enter_context(web())
        self.tls: Web = self._stack.enter_context(web(context))
        self.proxy: Web = self._stack.enter_context(proxy())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            closed = taken.getsockname()[1]
        self.roots = Roots(self.plain.url, self.tls.url, self.proxy.url, str(directory / "ca.pem"), closed)

    @property
    def hits(self) -> int:
        return sum(server.hits.total() + server.connections for server in (self.plain, self.tls, self.proxy))

    def rest(self) -> None:
        for server in (self.plain, self.tls, self.proxy):
            server.rest()

    def stop(self) -> None:
        self.rest()
        self._stack.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    query: Mapping[str, str] = {}
    disable_nagle_algorithm = True
    server: Web

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def version_string(self) -> str:
        return "web/1"

    def date_time_string(self, timestamp: float | None = None) -> str:
        return "Thu, 01 Jan 2026 00:00:00 GMT"

    def do_GET(self) -> None:
        with self.server.answering():
            self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path)
        if path.path.startswith(("/model/", "/b/")):
            self.server.hits[path.path] += 1
            serve = self.bedrock if path.path.startswith("/model/") else self.storage
            serve(path.path)
            return
        self.query = {name: values[0] for name, values in parse_qs(path.query).items()}
        self.server.hits[path.path] += 1
        getattr(self, "serve_" + path.path.strip("/").replace("-", "_"), self.serve_echo)()

    do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = do_GET

    # -- helpers ---------------------------------------------------------------------------------------------------------

    def body(self) -> bytes:
        if (self.headers.get("transfer-encoding") or "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.bodies.append(data)
        return data

    def answer(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            if "later" in self.query:
                time.sleep(0.05)
            self.wfile.write(data)

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.answer(json.dumps(value).encode(), status, Content_Type="application/json", **headers)

    def chunked(self, pieces: list[bytes], pause: float = 0.0, **headers: str) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            time.sleep(pause)

    # -- what a path does ------------------------------------------------------------------------------------------------

    def serve_echo(self) -> None:
        data = self.body()
        sent = {name.lower() for name in self.headers}
        self.json(
            {
                "method": self.command,
                "path": self.path,
                "body": data.decode("latin-1"),
                "jar": sorted(part.partition("=")[0].strip() for part in self.headers.get("cookie", "").split(";")),
                "authorized": "authorization" in sent,
            },
            x_Request_id="r-1",
        )

    def serve_headers(self) -> None:
        self.send_response(200, "Fine")
        for name, value in (("X-One", "1"), ("x-two", "2"), ("X-One", "1b"), ("ETag", '"e"'), ("X-Latin", "caf\xe9")):
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def serve_redirect(self) -> None:
        self.body()
        status = int(self.query["status"])
        self.answer(
            b"over there",
            status,
            Location=self.query.get("to", "/echo?from=redirect"),
            Set_Cookie="hop=h0ph0ph0p; Path=/",
        )

    def serve_cookie(self) -> None:
        self.send_response(200)
        self.send_header("Set-Cookie", "session=s3cr3ts3cr3ts3cr3t; Path=/; HttpOnly")
        self.send_header("Set-Cookie", "theme=dark-and-long-enough; Path=/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def serve_gzip(self) -> None:
        text = b'{"text": "%b"}' % (b"packed " * 2000)
        self.answer(gzip.compress(text), Content_Encoding="gzip", Content_Type="application/json")

    def serve_deflate(self) -> None:
        self.answer(zlib.compress(b"deflated " * 100)[2:-4], Content_Encoding="deflate", Content_Type="text/plain")

    def serve_bad_gzip(self) -> None:
        self.answer(b"this is no gzip", Content_Encoding="gzip", Content_Type="text/plain")

    def serve_secret(self) -> None:
        """A secret in a body with a coding, at once or in chunks."""
        long = " ".join(str(number * 7919 % 100_003) for number in range(20_000))
        text = json.dumps({"before": long, "api_key": SECRET, "after": long}, indent=1).encode()
        body = _CODERS[self.query["coding"]](text)
        if self.query["how"] == "whole":
            self.answer(body, Content_Type="application/json", Content_Encoding=self.query["coding"])
            return
        pieces = [body[:40], body[40:70], body[70:]]
        self.chunked(pieces, 0.0, Content_Type="application/json", Content_Encoding=self.query["coding"])
        self.wfile.write(b"0\r\n\r\n")

    def serve_coded(self) -> None:
        """A body of ``CODED``, at once or in chunks that come one after the other."""
        coding, body = CODED[self.query["name"]]
        more = {} if coding is None else {"Content_Encoding": coding}
        if self.query["how"] == "whole":
            self.answer(body, Content_Type="text/plain", **more)
            return
        third = len(body) // 3 + 1
        pieces = [body[at : at + third] for at in range(0, len(body), third)]
        self.chunked(pieces, Content_Type="text/plain", **more)
        self.wfile.write(b"0\r\n\r\n")

    def serve_object(self) -> None:
        self.answer(gzip.compress(b"kept packed", mtime=0), Content_Encoding="gzip")

    def serve_gzip_stream(self) -> None:
        packer = zlib.compressobj(wbits=31)
        pieces = []
        for i in range(4):
            pieces.append(packer.compress(b"event %d\n" % i) + packer.flush(zlib.Z_SYNC_FLUSH))
        self.chunked([*pieces, packer.flush()], 0.01, Content_Encoding="gzip", Content_Type="text/plain")
        self.wfile.write(b"0\r\n\r\n")

    def serve_sse(self) -> None:
        self.body()
        pieces = [b'data: {"i": %d, "text": "\xc3\xa4"}\n\n' % i for i in range(5)]
        self.chunked([*pieces, b"data: [DONE]\n\n"], 0.01, Content_Type="text/event-stream")
        self.wfile.write(b"0\r\n\r\n")

    def serve_together(self) -> None:
        """Head, pieces and end in one packet; or what ends a piece with the next one."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        if self.query["how"] == "length":
            self.wfile.write(head + b"Content-Length: 10\r\n\r\none\n" + b"two\nx\n")
            return
        pieces = [head + b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\none\n", b"\r\n4\r\ntwo\n", b"\r\n0\r\n\r\n"]
        for packet in pieces if self.query["how"] == "late" else [b"".join(pieces)]:
            self.wfile.write(packet)
            time.sleep(0.02)

    def serve_chunks(self) -> None:
        self.chunked([b"a" * 70_000, b"b", b"c" * 20_000, bytes(range(256))], Content_Type="application/octet-stream")
        self.wfile.write(b"0\r\nX-Trailer: t\r\n\r\n")

    def serve_cut_chunks(self) -> None:
        self.chunked([b"first"], Content_Type="text/plain")
        self.wfile.write(b"ff\r\nhalf")
        self.close_connection = True

    def serve_cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"only this")
        self.close_connection = True

    def serve_until_close(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for i in range(3):
            self.wfile.write(b"line %d\n" % i)
            time.sleep(0.01)
        self.close_connection = True

    def serve_old(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nold times")
        self.close_connection = True

    def serve_big(self) -> None:
        self.answer(b"0123456789abcdef" * 20_000, Content_Type="application/octet-stream")

    def serve_status(self) -> None:
        self.body()
        status = int(self.query["code"])
        if status in (204, 304):
            self.send_response(status)
            self.end_headers()
        else:
            self.json({"error": "no"}, status, Retry_After="0")

    def serve_flaky(self) -> None:
        """Fails as often as it is told to, by what has been asked under this name."""
        self.body()
        key = f"/flaky/{self.query['name']}"
        self.server.hits[key] += 1
        if (self.server.hits[key] - 1) % (int(self.query["times"]) + 1) < int(self.query["times"]):
            self.json({"error": "later"}, 503)
        else:
            self.json({"served": True})

    def serve_hang_up(self) -> None:
        self.body()
        self.close_connection = True

    def serve_reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def serve_slow(self) -> None:
        self.body()
        time.sleep(0.6)
        self.close_connection = True

    def serve_stalls(self) -> None:
        self.chunked([b"first", b"second"], Content_Type="text/plain")
        time.sleep(0.6)
        self.close_connection = True

    def serve_garbage(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH_9.0\r\n")
        self.close_connection = True

    # -- services of Amazon ------------------------------------------------------------------------------------------------

    def bedrock(self, path: str) -> None:
        _, _, model, operation = path.split("/")
        self.body()
        if model == "throttled":
            self.json({"message": "slow down"}, 429, x_amzn_ErrorType="ThrottlingException")
        elif model == "hangs-up":
            self.close_connection = True
        elif operation == "converse":
            message = {"role": "assistant", "content": [{"text": "Hello, naïve world"}]}
            usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
            self.json(
                {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
            )
        elif operation == "invoke":
            self.json({"completion": "Hello"})
        else:
            self.chunked(_events(operation, model), 0.01, Content_Type="application/vnd.amazon.eventstream")
            self.wfile.write(b"0\r\n\r\n")

    def storage(self, path: str) -> None:
        if self.command == "PUT":
            self.body()
            self.answer(b"", ETag='"e1"')
        elif path == "/b/packed":
            self.answer(gzip.compress(b"kept packed", mtime=0), Content_Encoding="gzip")
        else:
            self.answer(b"content of one", Content_Type="text/plain", ETag='"e1"')

    def handle_expect_100(self) -> bool:
        if self.path.startswith("/b/refused"):
            self.close_connection = True
            self.answer(b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", 403, Connection="close")
            return False
        return super().handle_expect_100()


def _events(operation: str, model: str) -> list[bytes]:
    """The pieces of an answer as an event stream."""
    if operation == "invoke-with-response-stream":
        pieces = [base64.b64encode(json.dumps({"completion": word}).encode()).decode() for word in ("Hel", "lo")]
        return [_event("chunk", {"bytes": piece}) for piece in pieces]
    found = [_event("messageStart", {"role": "assistant"})]
    for word in ("Hel", "lo, naïve ", "world"):
        found.append(_event("contentBlockDelta", {"delta": {"text": word}, "contentBlockIndex": 0}))
    if model == "breaks":
        return [*found, _event("throttlingException", {"message": "slow down"}, kind="exception")]
    found.append(_event("messageStop", {"stopReason": "end_turn"}))
    return [
        *found,
        _event(
            "metadata", {"usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}, "metrics": {"latencyMs": 1}}
        ),
    ]


def _event(name: str, value: Any, kind: str = "event") -> bytes:
    headers = b""
    for key, text in ((":message-type", kind), (f":{kind}-type", name), (":content-type", "application/json")):
        headers += struct.pack("!B", len(key)) + key.encode() + struct.pack("!BH", 7, len(text)) + text.encode()
    payload = json.dumps(value).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_CONNECT(self) -> None:
        self.server.hits["CONNECT"] += 1
        if "nobody" in self.headers.get("x-user", ""):
            self.send_error(407)
            return
        host, _, port = self.path.rpartition(":")
        try:
            far = socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            self.send_error(502)
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        with far:
            ends = {self.connection: far, far: self.connection}
            while True:
                for end in select.select([*ends], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        self.close_connection = True
                        return
                    ends[end].sendall(data)

    def do_GET(self) -> None:
        with self.server.answering():
            self._forward()

    def _forward(self) -> None:
        self.server.hits[self.command] += 1
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as far:
            path = parts.path + ("?" + parts.query if parts.query else "")
            lines = [
                f"{self.command} {path} HTTP/1.1",
                *(f"{n}: {v}" for n, v in self.headers.items()),
                "Connection: close",
            ]
            far.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            while data := far.recv(65536):
                self.wfile.write(data)
        self.close_connection = True

    do_POST = do_GET
