"""OpenAI's Responses API: which requests are model calls, and what they asked for, answered and used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracekit.integration import (
    Claim,
    Reading,
    answer_meta,
    completion_usage,
    json_value,
    parameters,
    stream_events,
    tool_arguments,
)

__all__ = ["Responses"]

#: Parameters for decoding or safety that are single values; the rest is compared with the body.
_PARAMETERS: Final = frozenset((
    "stream", "temperature", "top_p", "max_output_tokens", "service_tier", "parallel_tool_calls", "truncation", "safety_identifier",
))  # fmt: skip
_LAST: Final = ("response.completed", "response.incomplete", "response.failed")


class Responses:
    """``POST …/responses``. Other methods, which store, cancel or delete, are no model calls."""

    name = "openai.responses"
    provider = "openai"
    operation = "chat"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and path.endswith("/responses")

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or not ("input" in body or "prompt" in body or "previous_response_id" in body):
            return None
        model = body.get("model", "")
        if not isinstance(model, str):
            return None
        signature = parameters(body, _PARAMETERS)
        reasoning = body.get("reasoning")
        if isinstance(reasoning, dict) and isinstance(reasoning.get("effort"), str):
            signature["reasoning_effort"] = reasoning["effort"]
        return Claim(model, signature)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body, dict) or "output" not in body:
            return {}
        reason = (body.get("incomplete_details") or {}).get("reason") or body.get("status")
        usage = completion_usage(body.get("usage"))
        return answer_meta(model=body.get("model"), id=body.get("id"), finish_reasons=[reason], usage=usage)

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        whole = b"".join(pieces)
        start = max(whole.rfind(f"event: {name}".encode()) for name in _LAST)
        return self.response(_final(whole[start:]), {}) if start >= 0 else {}

    def finished(self, tail: bytes) -> bool:
        return any(f"event: {name}".encode() in tail for name in _LAST)

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            body = _final(body) or {"output": _items(body)}
        output = body.get("output") or () if isinstance(body, dict) else ()
        parts = [part for item in output if item.get("type") == "message" for part in item.get("content") or ()]
        return Reading(
            text="".join(part.get("text") or "" for part in parts if part.get("type") == "output_text"),
            refusal="".join(part.get("refusal") or "" for part in parts if part.get("type") == "refusal") or None,
            reasoning=_reasoning(output),
            tool_calls=[_call(item) for item in output if item.get("type") in ("function_call", "custom_tool_call")],
            meta=self.response(body, {}),
        )


def _final(stream: bytes) -> dict[str, Any] | None:
    """Return the whole response that ends a stream."""
    for name, data in stream_events(stream):
        if name in _LAST:
            event = json_value(data)
            if isinstance(event, dict) and isinstance(event.get("response"), dict):
                found: dict[str, Any] = event["response"]
                return found
    return None


def _items(stream: bytes) -> list[dict[str, Any]]:
    """Return the items that were finished before a stream was cut off or abandoned."""
    done = (json_value(data) for name, data in stream_events(stream) if name == "response.output_item.done")
    return [event["item"] for event in done if isinstance(event, dict) and isinstance(event.get("item"), dict)]


def _reasoning(output: Sequence[Mapping[str, Any]]) -> str | None:
    summaries = [part for item in output if item.get("type") == "reasoning" for part in item.get("summary") or ()]
    return "\n".join(part.get("text") or "" for part in summaries) or None


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": item.get("call_id"),
        "name": item.get("name"),
        "arguments": tool_arguments(item.get("arguments", item.get("input"))),
    }
