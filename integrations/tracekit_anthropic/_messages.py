"""Anthropic's Messages API, as served by Anthropic, Bedrock and Vertex."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from tracekit.integration import Claim, Reading, answer_meta, event_data, json_value, parameters, token_usage

__all__ = ["Messages"]

#: Parameters for decoding or safety that are single values; the rest is compared with the body.
_PARAMETERS: Final = frozenset(("stream", "max_tokens", "temperature", "top_p", "top_k", "service_tier"))
#: Paths that name the model: Bedrock and Vertex.
_BEDROCK: Final = r"/model/([^/]+)/invoke(?:-with-response-stream)?$"
_VERTEX: Final = r"/models/([^/:]+):(?:stream)?[rR]awPredict$"
_DELTA: Final = b"event: message_delta"
#: The begin of the last event inside a binary one.
_STOP: Final = b64encode(b'{"type":"message_stop')


class Messages:
    """``POST …/v1/messages`` with ``messages`` and ``max_tokens``, or the same body on Bedrock and Vertex."""

    name = "anthropic.messages"
    provider = "anthropic"
    operation = "chat"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and (path.endswith("/messages") or _place(path) is not None)

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or "max_tokens" not in body:
            return None
        place = _place(path)
        if place is None:
            model, info = body.get("model"), None
        elif "anthropic_version" in body:
            model, info = body.get("model") or place[0], {"provider": place[1]}
        else:  # another vendor's model
            return None
        if not isinstance(model, str):
            return None
        signature = parameters(body, _PARAMETERS)
        thinking = body.get("thinking")
        if isinstance(thinking, dict):
            signature["thinking"] = str(thinking.get("budget_tokens", thinking.get("type")))
        return Claim(model, signature, info)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body, dict) or body.get("type") != "message":
            return {}
        return _meta(body, body.get("stop_reason"), body.get("usage") or {})

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        whole = b"".join(pieces)
        if whole[:1] == b"\0":
            found = list(_events(whole))
        else:  # the first and the last are enough
            end = whole.rfind(_DELTA)
            found = [*islice(_events(whole), 1), *(_events(whole[end:]) if end >= 0 else ())]
        start = _first(found, "message_start").get("message") or {}
        last = _first(found, "message_delta")
        counts = {**(start.get("usage") or {}), **(last.get("usage") or {})}
        return _meta(start, (last.get("delta") or {}).get("stop_reason"), counts)

    def finished(self, tail: bytes) -> bool:
        return b"event: message_stop" in tail or _STOP in tail

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            return _reading(_blocks(body), self.stream([body]))
        return _reading(body.get("content") or [] if isinstance(body, dict) else [], self.response(body, {}))


def _place(path: str) -> tuple[str, str] | None:
    """Return the model that a path names, and the service that it belongs to."""
    for form, provider in ((_BEDROCK, "aws.bedrock"), (_VERTEX, "gcp.vertex_ai")):
        found = re.search(form, path)
        if found is not None:
            return unquote(found[1]), provider
    return None


def _meta(message: Mapping[str, Any], reason: object, counts: Mapping[str, Any]) -> dict[str, Any]:
    read, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens")
    asked = counts.get("input_tokens")  # excludes what was read from the cache or written to it
    usage = token_usage(
        input=asked + (read or 0) + (written or 0) if isinstance(asked, int) else None,
        output=counts.get("output_tokens"),
        cache_read=read,
        cache_creation=written,
    )
    return answer_meta(model=message.get("model"), id=message.get("id"), finish_reasons=[reason], usage=usage)


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream; each contains its type."""
    for data in event_data(stream):
        event = json_value(data)
        if isinstance(event, dict):
            yield event


def _first(found: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the first event of that type, or an empty dictionary."""
    return next((event for event in found if event.get("type") == kind), {})


def _blocks(stream: bytes) -> list[dict[str, Any]]:
    """Return the content blocks of a streamed message, assembled."""
    blocks: dict[int, dict[str, Any]] = {}
    for event in _events(stream):
        if event.get("type") == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event.get("type") == "content_block_delta":
            _grow(blocks.setdefault(event["index"], {"json": ""}), event["delta"])
    for block in blocks.values():
        if block["json"]:
            whole = json_value(block["json"])
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
