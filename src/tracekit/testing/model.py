"""``ScriptedModel``: a model for tests that gives scripted answers, as an object or over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final, NamedTuple

from .._reality import sleep

__all__ = ["Failure", "ScriptedModel", "ToolUse"]


class ToolUse(NamedTuple):
    """A reply that requests a tool call with these arguments, after ``text``."""

    name: str
    arguments: Mapping[str, Any]
    text: str = ""


class Failure(NamedTuple):
    """A reply that is a provider error with this HTTP status."""

    status: int
    message: str = "scripted failure"


class ScriptedModel:
    """A model that answers each request with the next of ``replies``: a text, a ``ToolUse``, or a ``Failure``.

    ``requests`` lists the requests received (prompts, or request bodies), so ``len(model.requests)`` is the number of
    live calls. A request after the last reply fails with ``AssertionError`` (over HTTP: status 400).

    Examples:
        >>> from openai import OpenAI
        >>> from tracekit.testing import ScriptedModel, ToolUse
        >>> model = ScriptedModel(ToolUse("look_up", {"order": "A-1042"}), "It is lost.")
        >>> with model.served() as url:  # a real HTTP server on this machine
        ...     client = OpenAI(base_url=f"{url}/v1", api_key="none")
        ...     question = [{"role": "user", "content": "Where is A-1042?"}]
        ...     answer = client.chat.completions.create(model="any", messages=question)
        >>> answer.choices[0].message.tool_calls[0].function.name
        'look_up'
    """

    def __init__(self, *replies: str | ToolUse | Failure) -> None:
        self.requests: list[Any] = []
        self._replies: Final = list(replies)
        self._lock: Final = threading.Lock()

    def _next(self, request: Any) -> tuple[int, str | ToolUse | Failure]:
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
        if number >= len(self._replies):
            raise AssertionError(f"request {number + 1}, and the script has {len(self._replies)} replies")
        return number, self._replies[number]

    # -- as an object ----------------------------------------------------------------------------------------------------

    def generate(self, prompt: Any, **parameters: Any) -> Any:
        """Return the next reply: a text, or a ``ToolUse``. A ``Failure`` is raised as ``RuntimeError``."""
        _, reply = self._next({"prompt": prompt, **parameters} if parameters else prompt)
        if isinstance(reply, Failure):
            raise RuntimeError(f"{reply.status}: {reply.message}")
        return reply

    def stream(self, prompt: Any, **parameters: Any) -> Iterator[str]:
        """Yield the words of the next reply, one by one."""
        reply = self.generate(prompt, **parameters)
        yield from _words(reply.text if isinstance(reply, ToolUse) else reply)

    # -- over HTTP -------------------------------------------------------------------------------------------------------

    @contextmanager
    def served(self, *, pace: float = 0.0) -> Iterator[str]:
        """Serve the replies on a loopback port, and yield the URL: ``OpenAI(base_url=url + "/v1")``,
        ``Anthropic(base_url=url)``.

        The server answers ``/v1/chat/completions`` and ``/v1/messages``, and streams if the request asks for it.
        ``pace`` is the pause between two events of a stream, in seconds.
        """
        from http.server import ThreadingHTTPServer

        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, pace))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="scripted-model", daemon=True)
        # In an empty context, so that the server is not part of a run that is active here.
        Context().run(thread.start)
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(model: ScriptedModel, pace: float) -> Any:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            shape = _SHAPES.get(self.path.partition("?")[0])
            if shape is None:
                return self._send(404, _error(404, f"no {self.path} here"))
            try:
                number, reply = model._next(request)
            except AssertionError as error:
                number, reply = 0, Failure(400, str(error))
            if isinstance(reply, Failure):
                return self._send(reply.status, _error(*reply))
            whole, events = shape(number, reply, str(request.get("model")))
            return self._stream(events) if request.get("stream") else self._send(200, whole)

        def _send(self, status: int, body: Mapping[str, Any]) -> None:
            data = json.dumps(body).encode()
            self._head(status, "application/json", len(data))
            self.wfile.write(data)

        def _stream(self, events: list[str]) -> None:
            self._head(200, "text/event-stream", sum(len(event.encode()) for event in events))
            for event in events:
                self.wfile.write(event.encode())
                if pace:
                    sleep(pace)

        def _head(self, status: int, kind: str, size: int) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(size))
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if i == len(words) - 1 else word + " " for i, word in enumerate(words)]


def _error(status: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": f"scripted_{status}", "message": message, "code": None, "param": None}}


def _openai(number: int, reply: Any, model: str) -> tuple[dict[str, Any], list[str]]:
    """Build a chat completion: the whole response, and the server-sent events."""
    common: dict[str, Any] = {"id": f"chatcmpl-{number}", "created": 1_700_000_000, "model": model}
    text, finish, calls = reply, "stop", None
    if isinstance(reply, ToolUse):
        text, finish = reply.text or None, "tool_calls"
        function = {"name": reply.name, "arguments": json.dumps(dict(reply.arguments))}
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    message: dict[str, Any] = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    whole: dict[str, Any] = {
        **common,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _words(text or "") if word]
    deltas += [{"tool_calls": [{"index": 0, **call}]} for call in calls or ()]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events = [
        f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
        for choice in choices
    ]
    return whole, [*events, "data: [DONE]\n\n"]


def _anthropic(number: int, reply: Any, model: str) -> tuple[dict[str, Any], list[str]]:
    """Build a message: the whole response, and the server-sent events."""
    text = reply.text if isinstance(reply, ToolUse) else reply
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    if isinstance(reply, ToolUse):
        content.append(
            {"type": "tool_use", "id": f"toolu_{number}", "name": reply.name, "input": dict(reply.arguments)}
        )
    reason = "tool_use" if isinstance(reply, ToolUse) else "end_turn"
    whole: dict[str, Any] = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
    ]
    for index, block in enumerate(content):
        events += _block(index, block)
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 1},
        }
    )
    events.append({"type": "message_stop"})
    return whole, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _block(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "text":
        empty: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": word} for word in _words(block["text"])]
    else:
        empty = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


_SHAPES: Final = {"/v1/chat/completions": _openai, "/v1/messages": _anthropic}
