"""Answers in the wire formats of Gemini, Bedrock, Ollama, Cohere and Mistral, as the services send them, for a server on loopback."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from binascii import crc32
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["Wire", "answer", "binary_event"]


class Wire(NamedTuple):
    """What is sent: one body, or the pieces of a stream."""

    content_type: str
    body: bytes | list[bytes]
    headers: Mapping[str, str] = {}


def binary_event(name: str, data: bytes, *, headers: Mapping[str, str | tuple[int, bytes]] | None = None) -> bytes:
    """One event in the binary form of AWS; a header is a text, or its type's number and its bytes."""
    told = headers or {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    written = b"".join(_header(key, value) for key, value in told.items())
    prelude = struct.pack(">II", 16 + len(written) + len(data), len(written))
    message = prelude + struct.pack(">I", crc32(prelude)) + written + data
    return message + struct.pack(">I", crc32(message))


def _header(name: str, value: str | tuple[int, bytes]) -> bytes:
    kind, raw = (7, value.encode()) if isinstance(value, str) else value
    length = struct.pack(">H", len(raw)) if kind in (6, 7) else b""
    return bytes([len(name)]) + name.encode() + bytes([kind]) + length + raw


def answer(path: str, body: Any, words: Callable[[], str]) -> Wire | None:
    """What a service answers at this path; ``None`` where it is none of theirs. ``words`` makes new text each time."""
    if not isinstance(body, dict):
        return None
    last = path.rpartition("/")[2]
    if ":" in last and "/models/" in path:
        return _gemini(last, body, words)
    if path.startswith("/model/"):
        return _bedrock(path, body, words)
    if path.startswith("/api/"):
        return _ollama(path, body, words)
    if path.startswith(("/v2/", "/v1/")) and last in ("chat", "embed", "rerank"):
        return _cohere(path, body, words)
    if path.endswith(("/fim/completions", "/agents/completions")):
        return _completion(body, words)
    return None


def _json(value: Any, headers: Mapping[str, str] | None = None) -> Wire:
    return Wire("application/json", json.dumps(value, ensure_ascii=False).encode(), headers or {})


def _sse(values: list[Any], *, named: bool = False, end: bytes = b"") -> Wire:
    lines = [
        (f"event: {value['type']}\n" if named else "") + f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
        for value in values
    ]
    return Wire("text/event-stream", [*(line.encode() for line in lines), *([end] if end else [])])


def _split(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


# -- Gemini --------------------------------------------------------------------------------------------------------------


def _gemini(last: str, body: dict[str, Any], words: Callable[[], str]) -> Wire:
    model, _, method = last.partition(":")
    counts = {
        "promptTokenCount": 11,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 3,
        "cachedContentTokenCount": 4,
        "totalTokenCount": 21,
    }

    def said(*parts: Any, reason: str | None = None) -> dict[str, Any]:
        candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
        finish = {"finishReason": reason} if reason else {}
        return {
            "candidates": [candidate | finish],
            "usageMetadata": counts,
            "modelVersion": f"{model}-001",
            "responseId": "resp-1",
        }

    if method == "streamGenerateContent":
        pieces = [said({"text": part}) for part in _split(words())]
        return _sse([*pieces, said({"text": ""}, reason="STOP")])
    if method == "generateContent":
        last = body["contents"][-1]
        answers = any("functionResponse" in part or "function_response" in part for part in last["parts"])
        if body.get("tools") and last["role"] == "user" and not answers:
            name = body["tools"][0]["functionDeclarations"][0]["name"]
            return _json(said({"functionCall": {"name": name, "args": {"place": words()}}}, reason="STOP"))
        return _json(said({"text": "Hm.", "thought": True}, {"text": words()}, reason="STOP"))
    if method == "batchEmbedContents":
        return _json(
            {
                "embeddings": [{"values": [0.25, len(words()) / 64]} for _ in body["requests"]],
                "usageMetadata": {"promptTokenCount": 5},
            }
        )
    if method == "countTokens":
        return _json({"totalTokens": 11})
    return _json({"error": {"code": 404, "message": method, "status": "NOT_FOUND"}})


# -- Bedrock -------------------------------------------------------------------------------------------------------------


def _bedrock(path: str, body: dict[str, Any], words: Callable[[], str]) -> Wire:
    model, method = unquote(path.split("/")[2]), path.split("/")[3]
    text = words()
    usage = {
        "inputTokens": 11,
        "outputTokens": 7,
        "totalTokens": 22,
        "cacheReadInputTokens": 4,
        "cacheWriteInputTokens": 0,
    }
    if method == "converse":
        message = {"role": "assistant", "content": [{"text": text}]}
        return _json(
            {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 7}}
        )
    if method == "converse-stream":
        deltas = [{"contentBlockIndex": 0, "delta": {"text": part}} for part in _split(text)]
        told: list[tuple[str, Any]] = [
            ("messageStart", {"role": "assistant"}),
            *(("contentBlockDelta", delta) for delta in deltas),
            ("contentBlockStop", {"contentBlockIndex": 0}),
            ("messageStop", {"stopReason": "end_turn"}),
            ("metadata", {"usage": usage, "metrics": {"latencyMs": 7}}),
        ]
        return _binary([(name, json.dumps(data).encode()) for name, data in told])
    counted = {"x-amzn-bedrock-input-token-count": "11", "x-amzn-bedrock-output-token-count": "7"}
    metrics = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 11, "outputTokenCount": 7}}
    claude = _claude(model, text)
    if "anthropic_version" not in body:
        if method == "invoke":
            return _json({"outputs": [{"text": text, "stop_reason": "stop"}]}, counted)
        pieces: list[Any] = [{"outputs": [{"text": part, "stop_reason": None}]} for part in _split(text)]
        return _chunks([*pieces, {"outputs": [{"text": "", "stop_reason": "stop"}], **metrics}])
    if method == "invoke":
        return _json(claude, counted)
    return _chunks(
        [
            {"type": "message_start", "message": {**claude, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}} for part in _split(text)),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 7}},
            {"type": "message_stop", **metrics},
        ]
    )  # fmt: skip


def _claude(model: str, text: str) -> dict[str, Any]:
    return {
        "id": "msg_bdrk_1", "type": "message", "role": "assistant", "model": model, "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 11, "output_tokens": 7},
    }  # fmt: skip


def _binary(told: list[tuple[str, bytes]]) -> Wire:
    stream = b"".join(binary_event(name, data) for name, data in told)
    pieces = [stream[at : at + 100] for at in range(0, len(stream), 100)]  # no event is a piece of its own
    return Wire("application/vnd.amazon.eventstream", pieces)


def _chunks(values: list[Any]) -> Wire:
    inner = [b64encode(json.dumps(value, separators=(",", ":")).encode()).decode() for value in values]
    return _binary([("chunk", json.dumps({"bytes": one}, separators=(",", ":")).encode()) for one in inner])


# -- Ollama --------------------------------------------------------------------------------------------------------------


def _ollama(path: str, body: dict[str, Any], words: Callable[[], str]) -> Wire | None:
    head = {"model": body.get("model"), "created_at": "2026-11-22T21:00:00Z"}
    end = {"done": True, "done_reason": "stop", "total_duration": 7, "prompt_eval_count": 11, "eval_count": 7}
    if path == "/api/embed":
        return _json({**head, "embeddings": [[0.25, len(words()) / 64]], "prompt_eval_count": 5})
    if path not in ("/api/chat", "/api/generate"):
        return _json({"status": "success"})

    def said(text: str, **more: Any) -> dict[str, Any]:
        spoken = (
            {"message": {"role": "assistant", "content": text, **more}} if path == "/api/chat" else {"response": text}
        )
        return {**head, **spoken}

    calls = (
        [{"function": {"name": body["tools"][0]["function"]["name"], "arguments": {"place": words()}}}]
        if body.get("tools")
        else []
    )
    if body.get("stream") is False:
        return _json({**said(words(), **({"tool_calls": calls} if calls else {})), **end})
    lines = [{**said(part), "done": False} for part in _split(words())] + [{**said(""), **end}]
    return Wire("application/x-ndjson", [f"{json.dumps(line)}\n".encode() for line in lines])


# -- Cohere --------------------------------------------------------------------------------------------------------------


def _cohere(path: str, body: dict[str, Any], words: Callable[[], str]) -> Wire | None:
    billed = {
        "billed_units": {"input_tokens": 11, "output_tokens": 7},
        "tokens": {"input_tokens": 211, "output_tokens": 9},
    }
    if path.endswith("/embed"):
        counted = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 5}}
        return _json(
            {
                "id": "e1",
                "response_type": "embeddings_by_type",
                "embeddings": {"float": [[0.25, len(words()) / 64]]},
                "texts": body["texts"],
                "meta": counted,
            }
        )
    if path.endswith("/rerank"):
        results = [{"index": index, "relevance_score": 0.5} for index in range(len(body["documents"]))]
        return _json({"id": "r1", "results": results, "meta": {"billed_units": {"search_units": 1}}})
    text = words()
    if path == "/v2/chat" and not body.get("stream"):
        message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        return _json({"id": "c1", "finish_reason": "COMPLETE", "message": message, "usage": billed})
    if path == "/v2/chat":

        def delta(kind: str, message: Any) -> dict[str, Any]:
            return {"type": kind, "index": 0, "delta": {"message": message}}

        return _sse(
            [
                {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant"}}},
                delta("content-start", {"content": {"type": "text", "text": ""}}),
                *(delta("content-delta", {"content": {"text": part}}) for part in _split(text)),
                {"type": "content-end", "index": 0},
                {"type": "message-end", "id": "c1", "delta": {"finish_reason": "COMPLETE", "usage": billed}},
            ],
            named=True,
        )
    whole = {"response_id": "r1", "generation_id": "g1", "text": text, "finish_reason": "COMPLETE", "meta": billed}
    if not body.get("stream"):
        return _json(whole)
    lines: list[Any] = [{"is_finished": False, "event_type": "text-generation", "text": part} for part in _split(text)]
    lines.append({"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE", "response": whole})
    return Wire("application/stream+json", [f"{json.dumps(line)}\n".encode() for line in lines])


# -- Mistral -------------------------------------------------------------------------------------------------------------


def _completion(body: dict[str, Any], words: Callable[[], str]) -> Wire:
    message = {"role": "assistant", "content": words(), "tool_calls": None}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {
        "id": "cmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model") or "mistral-large-2512",
    }
    return _json({**head, "choices": [choice], "usage": usage})
