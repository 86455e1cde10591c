"""A model server on loopback that speaks the OpenAI and Anthropic wire protocols over the small model.

Real HTTP/1.1 with keep-alive and chunked server-sent events, so that the real SDKs talk to it as to any provider.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from types import TracebackType
from typing import Any, Final

from . import anthropic_wire, openai_wire
from .model import NgramModel
from .wire import Reply, new_id

__all__ = ["ModelServer", "Tripwire"]

_ROUTES: Final[dict[str, Callable[[Mapping[str, Any], NgramModel], Reply]]] = {
    "/v1/chat/completions": openai_wire.chat_completions,
    "/v1/responses": openai_wire.responses,
    "/v1/embeddings": openai_wire.embeddings,
    "/v1/messages": anthropic_wire.messages,
}


class ModelServer:
    """Serve ``model`` on 127.0.0.1 until the ``with`` block ends.

    ``url`` is the root (what ``ANTHROPIC_BASE_URL`` wants), ``openai_url`` the root with ``/v1`` (what
    ``OPENAI_BASE_URL`` wants); ``requests`` counts what was asked; ``pace`` is the pause between two events of a
    stream, in seconds.
    """

    def __init__(self, model: NgramModel | None = None, *, pace: float = 0.0, port: int = 0) -> None:
        self.model: Final = model or NgramModel()
        self.pace: Final = pace
        self._requests: Final[list[str]] = []
        self._server: Final = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self._thread: Final = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        return self.url + "/v1"

    @property
    def requests(self) -> int:
        """How many requests have come in so far."""
        return len(self._requests)

    @property
    def paths(self) -> list[str]:
        """The path of each request so far, in order."""
        return list(self._requests)

    def seen(self, path: str) -> None:
        self._requests.append(path)

    def start(self) -> ModelServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening and close every connection, idle ones included."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: ModelServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: Final[set[socket.socket]] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in list(self._open):
            self.shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; whatever else broke has been answered with a 500."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.owner.seen(path)
        reply = self._reply(path, raw)
        if reply.events is None:
            self._send(reply)
        else:
            self._stream(reply)

    def do_GET(self) -> None:
        self.server.owner.seen(self.path)
        self._send(_error(404, "not_found_error", f"There is nothing at GET {self.path}."))

    def _reply(self, path: str, raw: bytes) -> Reply:
        route = _ROUTES.get(path)
        if route is None:
            return _error(404, "not_found_error", f"There is nothing at POST {path}.")
        try:
            body = json.loads(raw)
            if not isinstance(body, dict):
                raise TypeError("the body is not an object")
            return route(body, self.server.owner.model)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            return _error(400, "invalid_request_error", f"The request can't be read: {error!r}.")

    def _head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        request = new_id("req_")
        for name, value in {"request-id": request, "x-request-id": request, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send(self, reply: Reply) -> None:
        data = json.dumps(reply.body, ensure_ascii=False).encode()
        self._head(reply.status, content_type="application/json", content_length=str(len(data)))
        self.wfile.write(data)

    def _stream(self, reply: Reply) -> None:
        assert reply.events is not None
        self._head(200, content_type="text/event-stream; charset=utf-8", transfer_encoding="chunked")
        try:
            for data in reply.events:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                if self.server.owner.pace:
                    sleep(self.server.owner.pace)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the caller left the stream

    def version_string(self) -> str:
        return "tracekit-demo"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed for a request."""


def _error(status: int, kind: str, message: str) -> Reply:
    return Reply(
        {"type": "error", "error": {"type": kind, "code": kind, "message": message, "param": None}}, status=status
    )


class Tripwire:
    """Listen where a stopped server was, answer nothing, and count who knocks (``touched``)."""

    def __init__(self, port: int) -> None:
        self._socket: Final = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen(16)
        self._socket.setblocking(False)
        self._touched = 0

    @property
    def touched(self) -> int:
        """How many connections were made since the start; the system has queued them, so none is missed."""
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return self._touched
            self._touched += 1

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Tripwire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
