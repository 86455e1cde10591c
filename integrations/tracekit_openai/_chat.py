"""Chat completions, and the older text completions: also the protocol of most OpenAI-compatible servers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracekit.integration import Claim, Reading, events

from ._wire import arguments, loads, parameters, usage

__all__ = ["Chat", "Completions"]

_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"([^"]*)"')


class Completions:
    """``POST …/completions`` with a ``prompt``."""

    name = "openai.completions"
    provider = "openai"
    operation = "text_completion"
    _path = "/completions"
    _content = "prompt"

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and path.endswith(self._path)

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or self._content not in body:
            return None
        model = body.get("model") or _deployment(path)
        return Claim(model, parameters(body)) if isinstance(model, str) else None

    def response(self, body: object) -> Mapping[str, Any]:
        if not isinstance(body, dict):
            return {}
        reasons = [c["finish_reason"] for c in body.get("choices") or () if c.get("finish_reason")]
        return _meta(body, reasons, body.get("usage"))

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        whole = b"".join(pieces)
        lines = [
            line[5:]
            for line in (*whole[:4096].split(b"\n")[:8], *whole[-4096:].split(b"\n"))
            if line.startswith(b"data:")
        ]
        found = [chunk for chunk in map(loads, (*lines[:1], *lines[-4:])) if isinstance(chunk, dict)]
        counted = [chunk["usage"] for chunk in found if chunk.get("usage")]
        reasons = [reason.decode() for reason in _FINISH.findall(whole)]
        return _meta(found[0] if found else {}, reasons, counted[-1] if counted else None)

    def finished(self, tail: bytes) -> bool:
        return b"data: [DONE]" in tail

    def read(self, body: object) -> Reading:
        choices, meta = _choices(body), self.stream([body]) if isinstance(body, bytes) else self.response(body)
        return Reading(text="".join(choice.get("text") or "" for choice in choices), meta=meta)


class Chat(Completions):
    """``POST …/chat/completions`` with ``messages``."""

    name = "openai.chat"
    operation = "chat"
    _path = "/chat/completions"
    _content = "messages"

    def read(self, body: object) -> Reading:
        if not isinstance(body, bytes):
            messages = [choice.get("message") or {} for choice in _choices(body)]
            return self._reading(messages, self.response(body))
        messages = [_joined(chunk.get("delta") or {} for chunk in deltas) for deltas in _by_index(_choices(body))]
        return self._reading(messages, self.stream([body]))

    def _reading(self, messages: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Reading:
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        return Reading(
            text="".join(message.get("content") or "" for message in messages),
            tool_calls=[_call(call) for call in calls],
            refusal="".join(message.get("refusal") or "" for message in messages) or None,
            reasoning="".join(message.get("reasoning_content") or "" for message in messages) or None,
            meta=meta,
        )


def _deployment(path: str) -> str | None:
    """Azure names the model in the path: ``…/deployments/NAME/chat/completions``."""
    _, found, rest = path.partition("/deployments/")
    return rest.partition("/")[0] if found else None


def _meta(body: Mapping[str, Any], reasons: list[str], counts: object) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if "model" in body:
        meta["model"] = body["model"]
    if body.get("id"):
        meta["id"] = body["id"]
    if reasons:
        meta["finish_reasons"] = reasons
    used = usage(counts)
    if used:
        meta["usage"] = used
    return meta


def _choices(body: object) -> list[dict[str, Any]]:
    """The choices of an answer, or the pieces of choices of a stream, in order."""
    if isinstance(body, dict):
        return list(body.get("choices") or ())
    if not isinstance(body, bytes):
        return []
    chunks = (loads(data) for _, data in events(body))
    return [choice for chunk in chunks if isinstance(chunk, dict) for choice in chunk.get("choices") or ()]


def _by_index(pieces: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for piece in pieces:
        found.setdefault(piece.get("index", 0), []).append(piece)
    return [found[index] for index in sorted(found)]


def _joined(deltas: Any) -> dict[str, Any]:
    """One message out of its deltas."""
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name, parts in texts.items():
            parts.append(delta.get(name) or "")
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part.get("index", 0), {"id": None, "function": {"name": "", "arguments": ""}})
            call["id"] = part.get("id") or call["id"]
            function = part.get("function") or {}
            call["function"]["name"] += function.get("name") or ""
            call["function"]["arguments"] += function.get("arguments") or ""
    return {**{name: "".join(parts) for name, parts in texts.items()}, "tool_calls": [calls[i] for i in sorted(calls)]}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call.get("custom") or {}
    return {
        "id": call.get("id"),
        "name": function.get("name"),
        "arguments": arguments(function.get("arguments", function.get("input"))),
    }
