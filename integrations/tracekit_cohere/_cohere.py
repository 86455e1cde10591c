"""Cohere's protocol in both versions: the second streams events, the first JSON lines (or events, on request)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tracekit.integration import (
    Claim,
    Dialect,
    Reading,
    answer_meta,
    json_lines,
    json_value,
    parameters,
    stream_events,
    token_usage,
    tool_arguments,
)

__all__ = ["Chat", "Embed", "FirstChat", "Generate", "Rerank"]

#: Parameters for decoding or safety that are single values, ``k`` and ``p`` under their usual names.
_PARAMETERS: Final = {
    "stream": "stream",
    "temperature": "temperature",
    "k": "top_k",
    "p": "top_p",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "safety_mode": "safety_mode",
    "tool_choice": "tool_choice",
    "num_generations": "n",
    "input_type": "input_type",
    "output_dimension": "dimensions",
    "top_n": "top_n",
    "max_tokens_per_doc": "max_tokens_per_doc",
}


class _Cohere(Dialect):
    """The common part of all endpoints."""

    provider = "cohere"
    paths: tuple[str, ...] = ()
    #: The content of the body: one of these besides a model.
    content: tuple[str, ...] = ()

    def claims(self, method: str, path: str, own: bool) -> bool:
        return own and method == "POST" and path.endswith(self.paths)

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or not any(name in body for name in self.content):
            return None
        model = body.get("model") or "default"
        return Claim(model, parameters(body, _PARAMETERS)) if isinstance(model, str) else None

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        return _meta(body)


class Chat(_Cohere):
    """``POST /v2/chat`` with ``messages``."""

    name = "cohere.chat"
    operation = "chat"
    paths = ("/v2/chat",)
    content = ("messages",)

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        found = _events_in(b"".join(pieces), b'"message-start"', b'"message-end"')
        first, last = (_of_type(found, name) for name in ("message-start", "message-end"))
        delta = last.get("delta")
        return _meta({**(delta if isinstance(delta, dict) else {}), "id": first.get("id") or last.get("id")})

    def finished(self, tail: bytes) -> bool:
        return b'"message-end"' in tail

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            return _reading(_message(_events_in(body)), self.stream([body]))
        message = body.get("message") if isinstance(body, dict) else None
        return _reading(message if isinstance(message, dict) else {}, self.response(body, {}))


class FirstChat(_Cohere):
    """``POST /v1/chat`` with a ``message``."""

    name = "cohere.chat_v1"
    operation = "chat"
    paths = ("/v1/chat",)
    content = ("message",)

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return _meta(_whole(b"".join(pieces)))

    def finished(self, tail: bytes) -> bool:
        return b'"stream-end"' in tail

    def read(self, body: object) -> Reading:
        answer = _whole(body) if isinstance(body, bytes) else body
        if not isinstance(answer, dict):
            return Reading()
        calls = [call for call in answer.get("tool_calls") or () if isinstance(call, dict)]
        text = answer.get("text") or ""
        return Reading(
            text=text,
            tool_calls=[{"id": None, "name": call.get("name"), "arguments": call.get("parameters")} for call in calls],
            refusal=_refusal(text, answer),
            meta=_meta(answer),
        )


class Generate(_Cohere):
    """``POST /v1/generate`` with a ``prompt``."""

    name = "cohere.generate"
    operation = "text_completion"
    paths = ("/v1/generate",)
    content = ("prompt",)

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return _meta(_whole(b"".join(pieces)))

    def finished(self, tail: bytes) -> bool:
        return b'"is_finished":true' in tail.replace(b" ", b"")

    def read(self, body: object) -> Reading:
        answer = _whole(body) if isinstance(body, bytes) else body
        generations = answer.get("generations") if isinstance(answer, dict) else None
        texts = [one.get("text") or "" for one in generations or () if isinstance(one, dict)]
        return Reading(text="".join(texts), meta=_meta(answer))


class Embed(_Cohere):
    """``POST /v1/embed`` and ``/v2/embed`` with ``texts``, ``images`` or ``inputs``."""

    name = "cohere.embed"
    operation = "embeddings"
    paths = ("/v1/embed", "/v2/embed")
    content = ("texts", "images", "inputs")


class Rerank(_Cohere):
    """``POST /v1/rerank`` and ``/v2/rerank`` with ``documents``; counted in searches, not in tokens."""

    name = "cohere.rerank"
    operation = "rerank"
    paths = ("/v1/rerank", "/v2/rerank")
    content = ("documents",)


def _events_in(stream: bytes, *wanted: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream; with ``wanted`` only those that contain one of these texts."""
    found = (
        json_value(data) for _, data in stream_events(stream) if not wanted or any(text in data for text in wanted)
    )
    return [event for event in found if isinstance(event, dict)]


def _of_type(found: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((event for event in found if event.get("type") == kind), {})


def _message(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message assembled from the events of a stream."""
    contents: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[str, Any]] = {}
    for event in found:
        delta = event.get("delta")
        message = delta.get("message") if isinstance(delta, dict) else None
        index = event.get("index") or 0
        if not isinstance(message, dict):
            continue
        content, called = message.get("content"), message.get("tool_calls")
        if isinstance(content, dict):
            part = contents.setdefault(index, {"text": "", "thinking": ""})
            for name in ("text", "thinking"):
                part[name] += content.get(name) or ""
        if isinstance(called, dict):
            call = calls.setdefault(index, {"id": None, "function": {"name": "", "arguments": ""}})
            function = called.get("function") or {}
            call["id"] = called.get("id") or call["id"]
            for name in ("name", "arguments"):
                call["function"][name] += function.get(name) or ""
    return {"content": [contents[i] for i in sorted(contents)], "tool_calls": [calls[i] for i in sorted(calls)]}


def _reading(message: Mapping[str, Any], meta: Mapping[str, Any]) -> Reading:
    content = message.get("content")
    parts = [{"text": content}] if isinstance(content, str) else content or ()
    text = "".join(part.get("text") or "" for part in parts)
    calls = [(call.get("id"), call.get("function") or {}) for call in message.get("tool_calls") or ()]
    return Reading(
        text=text,
        tool_calls=[
            {"id": id, "name": function.get("name"), "arguments": tool_arguments(function.get("arguments"))}
            for id, function in calls
        ],
        refusal=_refusal(text, {"finish_reason": next(iter(meta.get("finish_reasons") or ()), None)}),
        reasoning="".join(part.get("thinking") or "" for part in parts) or None,
        meta=meta,
    )


def _refusal(text: str, answer: Mapping[str, Any]) -> str | None:
    """Return the refusal, if any: the service ends a harmful answer with a reason of its own."""
    return text or "ERROR_TOXIC" if answer.get("finish_reason") == "ERROR_TOXIC" else None


def _whole(stream: bytes) -> dict[str, Any]:
    """Return the final answer of a stream in the first version; before the end, the texts so far."""
    sse = stream.lstrip()[:1] != b"{"
    lines = [line for line in (_events_in(stream) if sse else json_lines(stream)) if isinstance(line, dict)]
    for line in lines[::-1]:
        if isinstance(line.get("response"), dict):
            return {**line["response"], "finish_reason": line.get("finish_reason")}
    return {"text": "".join(line.get("text") or "" for line in lines)}


def _meta(answer: object) -> dict[str, Any]:
    """Return the metadata: the billed counts, as OpenTelemetry's conventions require; the first version has them in
    ``meta``."""
    if not isinstance(answer, dict):
        return {}
    counts = answer.get("usage") or answer.get("meta")
    counts = counts if isinstance(counts, dict) else {}
    billed = counts.get("billed_units") or counts.get("tokens") or {}
    usage = token_usage(
        input=billed.get("input_tokens", billed.get("image_tokens")),
        output=billed.get("output_tokens"),
        cache_read=counts.get("cached_tokens"),
    )
    searches = billed.get("search_units")
    if isinstance(searches, int | float):
        usage["search_units"] = int(searches)
    return answer_meta(
        id=answer.get("id") or answer.get("response_id") or answer.get("generation_id"),
        finish_reasons=[answer.get("finish_reason")],
        usage=usage,
    )
