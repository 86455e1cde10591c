"""A model provider on loopback: real HTTP, scripted answers, fresh random text each time, requests counted.

The answers have the shapes that the real services send, so that the real SDKs parse them. What to do wrong is asked for in
the request itself (``metadata.stub`` or the ``x-stub`` header, a comma-separated list used up one attempt at a time), so that
concurrent calls do not disturb one another.
"""

from __future__ import annotations

import gzip
import json
import random
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support import wires

__all__ = ["StubProvider", "stub_provider"]


class StubProvider(ThreadingHTTPServer):
    """``url`` is the root; OpenAI clients want ``url + "/v1"``. ``requests`` counts by path, ``seen`` keeps each request."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.seen: list[dict[str, Any]] = []
        #: What the model of a chat says to a request, where that matters: a text, or tool calls as ``{name: arguments}``.
        self.says: Callable[[dict[str, Any]], str | dict[str, Any] | None] | None = None
        self._shufflers: dict[int, Shuffler] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def shuffler(self, count: int) -> Shuffler:
        """The one that holds back this many requests."""
        with self.lock:
            return self._shufflers.setdefault(count, Shuffler(count))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is what some tests do."""


class Shuffler:
    """Holds back the answers until ``count`` requests are in, then lets them go one by one in a shuffled order."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.order = random.Random(7).sample(range(count), count)
        self._condition = threading.Condition()
        self._arrived = 0
        self._turn = 0

    def wait(self, number: int) -> None:
        with self._condition:
            self._arrived += 1
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._arrived == self.count and self.order[self._turn] == number, timeout=30
            )

    def passed(self) -> None:
        with self._condition:
            self._turn += 1
            self._condition.notify_all()


@contextmanager
def stub_provider() -> Iterator[StubProvider]:
    """A provider that serves for the block."""
    server = StubProvider()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def words() -> str:
    """Text that no other answer has; not ASCII only."""
    return f"naïve {secrets.token_hex(8)} 🌱 {secrets.token_hex(4)}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    #: An answer is sent at once: a client that leaves its body unread leaves nothing to be sent, which the guard of a replay
    #: that begins then, in this process, would refuse.
    wbufsize = -1
    server: StubProvider

    def log_message(self, format: str, *args: Any) -> None:
        pass

    # -- dispatch --------------------------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_PUT = do_HEAD = do_GET

    def _serve(self) -> None:
        raw = self._read_body()
        path = self.path.partition("?")[0]
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        with self.server.lock:
            self.server.requests[path] += 1
            self.server.seen.append(
                {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": raw}
            )
        trouble = self._trouble(body)
        self.cut = trouble == "cut"
        if trouble and self._misbehave(trouble):
            return
        self._answer(path, body)

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _trouble(self, body: Any) -> str:
        script = self.headers.get("x-stub", "")
        if not script and isinstance(body, dict):
            script = str((body.get("metadata") or {}).get("stub", ""))
        if not script:
            return ""
        with self.server.lock:
            attempt = self.server.attempts[script]
            self.server.attempts[script] += 1
        steps = script.split(",")
        return steps[attempt] if attempt < len(steps) else ""

    def _misbehave(self, trouble: str) -> bool:
        kind, _, rest = trouble.partition(":")
        if kind.isdigit():
            error = {"error": {"message": f"scripted {words()}", "type": "stub_error", "code": f"stub_{kind}"}}
            self._json(int(kind), error, {"retry-after-ms": "1"} if kind in ("429", "503") else {})
        elif kind == "malformed":
            self._send(200, b'{"id": "broken", "choices": [' + words().encode(), {"content-type": "application/json"})
        elif kind == "timeout":
            self.connection.settimeout(10)
            try:
                self.connection.recv(1)  # until the client gives up
            except OSError:
                pass
            self.close_connection = True
        elif kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif kind == "redirect":
            self._send(307, b"", {"location": rest})
        elif kind == "upgrade":
            self._send(101, b"", {"upgrade": "something", "connection": "upgrade"})
        else:
            return False
        return True

    # -- answers ---------------------------------------------------------------------------------------------------------

    def _answer(self, path: str, body: Any) -> None:
        wire = wires.answer(path, body, words)
        if path.lower().endswith("rawpredict"):  # Claude on Vertex
            self._messages({"model": "claude", **body})
        elif wire is not None and isinstance(wire.body, bytes):
            self._send(200, wire.body, {"content-type": wire.content_type, **wire.headers})
        elif wire is not None and isinstance(wire.body, list):
            self._pieces(wire.body, wire.content_type)
        elif path.endswith("/chat/completions"):
            self._chat(body)
        elif path.endswith("/responses") and "model" in body:
            self._responses(body)
        elif path.endswith("/messages"):
            self._messages(body)
        elif path.endswith("/embeddings"):
            self._embeddings(body)
        elif path.endswith("/files"):
            self._json(200, {"id": f"file-{secrets.token_hex(4)}", "object": "file", "bytes": 3, "created_at": 1,
                             "filename": "notes.txt", "purpose": "assistants", "status": "processed"})  # fmt: skip
        elif path.endswith(("/content", "/speech")):
            self._send(200, secrets.token_bytes(5000), {"content-type": "application/octet-stream"})
        elif path.endswith("/models"):
            self._json(
                200, {"object": "list", "data": [{"id": words(), "object": "model", "created": 1, "owned_by": "stub"}]}
            )
        else:
            self._json(200, {"path": path, "said": words()})

    def _chat(self, body: dict[str, Any]) -> None:
        said = self.server.says(body) if self.server.says else None
        answer = said if isinstance(said, str) else f"{words()} / {_last(body['messages'])}"
        calls = _calls(body, said if isinstance(said, dict) else None) if not isinstance(said, str) else []
        base = {"id": f"chatcmpl-{secrets.token_hex(6)}", "created": int(time.time()), "model": f"{body['model']}-0613"}
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18, "prompt_tokens_details": {"cached_tokens": 4},
                 "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip
        if body.get("stream"):
            head = {**base, "object": "chat.completion.chunk"}
            pieces = [{"role": "assistant", "content": ""}]
            pieces += _called(calls) if calls else [{"content": part} for part in _split(answer)]
            events = [{**head, "choices": [{"index": 0, "delta": p, "finish_reason": None}]} for p in pieces]
            reason = "tool_calls" if calls else "stop"
            events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
            if (body.get("stream_options") or {}).get("include_usage"):
                events.append({**head, "choices": [], "usage": usage})
            return self._stream([f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"])
        if (body.get("response_format") or {}).get("type") == "json_schema":
            answer = json.dumps({"city": words(), "degrees": secrets.randbelow(40)})
        message: dict[str, Any] = {"role": "assistant", "content": answer, "refusal": None}
        finish = "stop"
        if calls:
            message, finish = (
                {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls},
                "tool_calls",
            )
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return self._json(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage}, indent=2)

    def _responses(self, body: dict[str, Any]) -> None:
        text = words()
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {
            "id": f"msg_{secrets.token_hex(4)}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }
        response = {
            "id": f"resp_{secrets.token_hex(6)}", "object": "response", "created_at": 1.0, "status": "completed",
            "model": body["model"], "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {
                "input_tokens": 9, "output_tokens": 5, "total_tokens": 14,
                "input_tokens_details": {"cached_tokens": 3}, "output_tokens_details": {"reasoning_tokens": 1},
            },
        }  # fmt: skip
        if not body.get("stream"):
            return self._json(200, response)
        started = {**response, "status": "in_progress", "output": [], "usage": None}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
        events.append(
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {**item, "status": "in_progress", "content": []},
            }
        )
        where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        events.append({"type": "response.content_part.added", **where, "part": {**part, "text": ""}})
        events += [{"type": "response.output_text.delta", **where, "delta": p, "logprobs": []} for p in _split(text)]
        events.append({"type": "response.output_text.done", **where, "text": text, "logprobs": []})
        events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
        events.append({"type": "response.completed", "response": response})
        return self._stream(_named(events, number=True))

    def _messages(self, body: dict[str, Any]) -> None:
        text = f"{words()} / {_last(body['messages'])}"
        usage = {"input_tokens": 12, "output_tokens": 6, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2}
        message = {
            "id": f"msg_{secrets.token_hex(6)}", "type": "message", "role": "assistant", "model": body["model"],
            "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        if not body.get("stream"):
            return self._json(200, message)
        start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
        events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        events += [
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": p}}
            for p in _split(text)
        ]
        events.append({"type": "content_block_stop", "index": 0})
        if body.get("tools"):
            block = {
                "type": "tool_use",
                "id": f"toolu_{secrets.token_hex(4)}",
                "name": body["tools"][0]["name"],
                "input": {},
            }
            events.append({"type": "content_block_start", "index": 1, "content_block": block})
            events += [{"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": p}}
                       for p in ('{"place": "', words(), '"}')]  # fmt: skip
            events.append({"type": "content_block_stop", "index": 1})
        reason = "tool_use" if body.get("tools") else "end_turn"
        events.append(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": {"output_tokens": 6},
            }
        )
        events.append({"type": "message_stop"})
        return self._stream(_named(events))

    def _embeddings(self, body: dict[str, Any]) -> None:
        count = len(body["input"]) if isinstance(body["input"], list) else 1
        data: list[dict[str, Any]] = []
        for index in range(count):
            vector: Any = [secrets.randbelow(1000) / 1000 for _ in range(4)]
            if body.get("encoding_format") == "base64":
                import base64

                vector = base64.b64encode(struct.pack("4f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        usage = {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
        id = f"emb_{secrets.token_hex(4)}"
        self._json(200, {"id": id, "object": "list", "data": data, "model": body["model"], "usage": usage})

    # -- writing ---------------------------------------------------------------------------------------------------------

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None, indent: int | None = None) -> None:
        content = json.dumps(
            value, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":")
        ).encode()
        self._send(status, content, {"content-type": "application/json", **(headers or {})})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        if self.headers.get("x-stub-gzip"):
            content = gzip.compress(content)
            headers = {**headers, "content-encoding": "gzip"}
        if self.headers.get("x-stub-pieces"):
            self._pieces([content[:40], content[40:]], headers["content-type"])
            return
        count, _, number = self.headers.get("x-gate", "").partition(":")
        if count:
            self.server.shuffler(int(count)).wait(int(number))
        self.send_response(status)
        for name, value in {
            "x-request-id": f"req_{secrets.token_hex(6)}",
            "set-cookie": f"sid=cookie-{secrets.token_hex(8)}",
            **headers,
        }.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        if count:
            self.wfile.flush()
            self.server.shuffler(int(count)).passed()

    def _stream(self, events: list[str]) -> None:
        self._pieces([event.encode() for event in events], "text/event-stream; charset=utf-8")

    def _pieces(self, pieces: list[bytes], content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("x-request-id", f"req_{secrets.token_hex(6)}")
        zipped = bool(self.headers.get("x-stub-gzip"))
        if zipped:
            self.send_header("content-encoding", "gzip")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if zipped:
            pieces = [gzip.compress(b"".join(pieces))]
        for data in pieces[: len(pieces) // 2] if self.cut else pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()
        if self.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(b"0\r\n\r\n")


def _named(events: list[dict[str, Any]], *, number: bool = False) -> list[str]:
    lines = []
    for index, event in enumerate(events):
        body = {**event, "sequence_number": index} if number else event
        lines.append(f"event: {event['type']}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n")
    return lines


def _calls(body: dict[str, Any], asked: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What a chat asks of its tools: what it is told to, or, of a user's question, the first tool with a place."""
    if asked is None and body.get("tools") and body["messages"][-1]["role"] == "user":
        asked = {body["tools"][0]["function"]["name"]: {"place": words()}}
    return [
        {
            "id": f"call_{secrets.token_hex(4)}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in (asked or {}).items()
    ]


def _called(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls as the pieces of a stream: who is called, then the arguments bit by bit."""
    pieces = []
    for index, call in enumerate(calls):
        function = call["function"]
        pieces.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        pieces += [
            {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
            for part in _split(function["arguments"])
        ]
    return pieces


def _split(text: str) -> list[str]:
    return [text[i : i + 4] for i in range(0, len(text), 4)]


def _last(messages: list[dict[str, Any]]) -> str:
    content = messages[-1]["content"]
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
