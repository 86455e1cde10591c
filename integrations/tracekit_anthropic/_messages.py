"""The Messages API, as Anthropic, Bedrock and Vertex serve it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tracekit.integration import Claim, Reading, events

__all__ = ["Messages"]

#: Parameters that steer decoding or safety and are single values; the rest is compared with the body.
_PARAMETERS: Final = ("stream", "max_tokens", "temperature", "top_p", "top_k", "service_tier")
#: Where the path names the model: Bedrock and Vertex.
_ELSEWHERE: Final = re.compile(
    r"/model/([^/]+)/invoke(?:-with-response-stream)?$|/models/([^/:]+):(?:stream)?[rR]awPredict$"
)
_DELTA: Final = b"event: message_delta"


class Messages:
    """``POST …/v1/messages`` with ``messages`` and ``max_tokens``, or the same body on Bedrock and Vertex."""

    name = "anthropic.messages"
    provider = "anthropic"
    operation = "chat"

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and (path.endswith("/messages") or _ELSEWHERE.search(path) is not None)

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or "max_tokens" not in body:
            return None
        model = body.get("model")
        found = _ELSEWHERE.search(path)
        if model is None and found is not None and "anthropic_version" in body:
            model = found[1] or found[2]
        if not isinstance(model, str):
            return None
        signature = {
            name: body[name] for name in _PARAMETERS if name in body and not isinstance(body[name], list | dict)
        }
        thinking = body.get("thinking")
        if isinstance(thinking, dict):
            signature["thinking"] = str(thinking.get("budget_tokens", thinking.get("type")))
        return Claim(model, signature)

    def response(self, body: object) -> Mapping[str, Any]:
        if not isinstance(body, dict) or body.get("type") != "message":
            return {}
        return _meta(body, body.get("stop_reason"), body.get("usage") or {})

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        whole = b"".join(pieces)
        end = whole.rfind(_DELTA)
        start = _first(whole[: whole.find(b"\n\n") + 2], "message_start").get("message") or {}
        last = _first(whole[end:], "message_delta") if end >= 0 else {}
        counts = {**(start.get("usage") or {}), **(last.get("usage") or {})}
        return _meta(start, (last.get("delta") or {}).get("stop_reason"), counts)

    def finished(self, tail: bytes) -> bool:
        return b"event: message_stop" in tail

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            return _reading(_blocks(body), self.stream([body]))
        return _reading(body.get("content") or [] if isinstance(body, dict) else [], self.response(body))


def _meta(message: Mapping[str, Any], reason: object, counts: Mapping[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = {name: message[name] for name in ("model", "id") if message.get(name)}
    if reason:
        meta["finish_reasons"] = [reason]
    used = _usage(counts)
    if used:
        meta["usage"] = used
    return meta


def _usage(counts: Mapping[str, Any]) -> dict[str, int]:
    """Token counts under OpenTelemetry's names: ``input_tokens`` includes what was read from or written to the cache."""
    read, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
    used: dict[str, int] = {}
    if isinstance(counts.get("input_tokens"), int):
        used["input_tokens"] = counts["input_tokens"] + (read or 0) + (written or 0)
    if isinstance(counts.get("output_tokens"), int):
        used["output_tokens"] = counts["output_tokens"]
    if isinstance(read, int):
        used["cache_read_input_tokens"] = read
    if isinstance(written, int):
        used["cache_creation_input_tokens"] = written
    return used


def _loads(data: bytes | str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _first(stream: bytes, name: str) -> dict[str, Any]:
    """The first event of that name, or nothing."""
    for found, data in events(stream):
        if found == name:
            event = _loads(data)
            return event if isinstance(event, dict) else {}
    return {}


def _blocks(stream: bytes) -> list[dict[str, Any]]:
    """The content blocks of a streamed message, put together."""
    blocks: dict[int, dict[str, Any]] = {}
    for name, data in events(stream):
        event = _loads(data)
        if name == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif name == "content_block_delta":
            _grow(blocks.setdefault(event["index"], {"json": ""}), event["delta"])
    for block in blocks.values():
        if block["json"]:
            whole = _loads(block["json"])
            block["input"] = block["json"] if whole is None else whole
    return [blocks[index] for index in sorted(blocks)]


def _grow(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name in ("text", "thinking"):
        if name in delta:
            block[name] = block.get(name, "") + delta[name]
    block["json"] += delta.get("partial_json") or ""


def _reading(blocks: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Reading:
    text = "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")
    return Reading(
        text=text,
        tool_calls=[
            {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
            for block in blocks
            if block.get("type") in ("tool_use", "server_tool_use")
        ],
        refusal=text if meta.get("finish_reasons") == ["refusal"] else None,
        reasoning="".join(block.get("thinking") or "" for block in blocks if block.get("type") == "thinking") or None,
        meta=meta,
    )
