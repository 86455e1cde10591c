"""Bedrock's runtime: Converse, which is the same for every model, and InvokeModel, whose bodies are model-specific."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from tracekit.integration import (
    Claim,
    Reading,
    answer_meta,
    completion_reading,
    completion_usage,
    event_data,
    json_value,
    parameters,
    stream_events,
    token_usage,
    tool_arguments,
)

__all__ = ["Converse", "Invoke"]

_CONVERSE: Final = r"/model/([^/]+)/converse(-stream)?$"
_INVOKE: Final = r"/model/([^/]+)/invoke(-with-response-stream)?$"
#: Parameters that are single values, by the vendors' names.
_PARAMETERS: Final = {
    "temperature": "temperature",
    "topP": "top_p",
    "top_p": "top_p",
    "p": "top_p",
    "topK": "top_k",
    "top_k": "top_k",
    "k": "top_k",
    "seed": "seed",
    "maxTokens": "max_tokens",
    "max_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "maxTokenCount": "max_tokens",
    "max_gen_len": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "reasoning_effort": "reasoning_effort",
    "dimensions": "dimensions",
    "input_type": "input_type",
}
#: The objects in a body that may contain the parameters.
_INSIDE: Final = ("inferenceConfig", "textGenerationConfig", "generationConfig")


class Converse:
    """``POST /model/NAME/converse`` and ``/model/NAME/converse-stream``."""

    name = "bedrock.converse"
    provider = "aws.bedrock"
    operation = "chat"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and re.search(_CONVERSE, path) is not None

    def request(self, path: str, body: object) -> Claim | None:
        found = re.search(_CONVERSE, path)
        if found is None or not isinstance(body, dict) or not ("messages" in body or "promptVariables" in body):
            return None
        signature: dict[str, Any] = {"stream": True} if found[2] else {}
        signature |= parameters(body.get("inferenceConfig"), _PARAMETERS)
        guardrail = body.get("guardrailConfig")
        if isinstance(guardrail, dict):
            signature["guardrail"] = f"{guardrail.get('guardrailIdentifier')}:{guardrail.get('guardrailVersion')}"
        return Claim(unquote(found[1]), signature)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        return _converse_meta(body, body) if isinstance(body, dict) else {}

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        found = {
            name: json_value(data)
            for name, data in stream_events(b"".join(pieces))
            if name in ("messageStop", "metadata")
        }
        return _converse_meta(found.get("messageStop"), found.get("metadata"))

    def finished(self, tail: bytes) -> bool:
        return b"metadata" in tail and b'"usage"' in tail

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            pieces = [{name: json_value(data)} for name, data in stream_events(body)]
            return _blocks_reading(_streamed_blocks(pieces), self.stream([body]))
        return _blocks_reading(_blocks(body), self.response(body, {}))


class Invoke:
    """``POST /model/NAME/invoke`` and ``/model/NAME/invoke-with-response-stream``; Anthropic's messages have a dialect
    of their own."""

    name = "bedrock.invoke"
    provider = "aws.bedrock"
    operation = "text_completion"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and re.search(_INVOKE, path) is not None

    def request(self, path: str, body: object) -> Claim | None:
        found = re.search(_INVOKE, path)
        if found is None or not isinstance(body, dict):
            return None
        if "anthropic_version" in body and isinstance(body.get("messages"), list) and "max_tokens" in body:
            return None
        signature: dict[str, Any] = {"operation": _operation(unquote(found[1]), body)}
        if found[2]:
            signature["stream"] = True
        for part in (body, *(body.get(name) for name in _INSIDE)):
            signature |= parameters(part, _PARAMETERS)
        return Claim(unquote(found[1]), signature)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        chunks = [body] if isinstance(body, dict) else []
        counted = {
            name: int(value)
            for name, value in ((n, headers.get(f"x-amzn-bedrock-{n}-token-count")) for n in _COUNTED)
            if isinstance(value, str) and value.isdigit()
        }
        return _invoke_meta(chunks, _sums(counted) if counted else _usage(chunks))

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return self._stream_meta(_chunks(b"".join(pieces)))

    def _stream_meta(self, chunks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return _invoke_meta(chunks, _metrics(chunks) or _usage(chunks))

    def finished(self, tail: bytes) -> bool:
        last = _chunks(tail[max(tail.rfind(_FRAME) - _TO_FRAME, 0) :]) if _FRAME in tail else []
        return any("amazon-bedrock-invocationMetrics" in chunk for chunk in last)

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            chunks = _chunks(body)
            meta = self._stream_meta(chunks)
        else:
            chunks = [body] if isinstance(body, dict) else []
            meta = self.response(body, {})
        if any("contentBlockDelta" in chunk or "output" in chunk for chunk in chunks):  # Nova, like Converse
            blocks = _streamed_blocks(chunks) or [block for chunk in chunks for block in _blocks(chunk)]
            return _blocks_reading(blocks, meta)
        if any("choices" in chunk for chunk in chunks):  # like OpenAI's chat completions
            return completion_reading(chunks, meta)
        return Reading(text="".join(text for chunk in chunks for text in _texts(chunk)), meta=meta)


# -- Converse ----------------------------------------------------------------------------------------------------------


def _converse_meta(stopped: object, counted: object) -> dict[str, Any]:
    reason = stopped.get("stopReason") if isinstance(stopped, dict) else None
    return answer_meta(
        finish_reasons=[reason], usage=_converse_usage(counted.get("usage") if isinstance(counted, dict) else None)
    )


def _converse_usage(usage: object) -> dict[str, int]:
    """Return the usage; ``inputTokens`` excludes what was read from a cache or written to it."""
    if not isinstance(usage, dict):
        return {}
    read, written = (
        usage.get(name, usage.get(f"{name[:-1]}Count")) for name in ("cacheReadInputTokens", "cacheWriteInputTokens")
    )
    return _sums(
        {
            "input": usage.get("inputTokens"),
            "output": usage.get("outputTokens"),
            "cache-read-input": read,
            "cache-write-input": written,
        }
    )


#: The counts, as named in headers.
_COUNTED: Final = ("input", "output", "cache-read-input", "cache-write-input")


def _sums(counted: Mapping[str, Any]) -> dict[str, int]:
    read, written = counted.get("cache-read-input"), counted.get("cache-write-input")
    asked = counted.get("input")
    return token_usage(
        input=asked + (read or 0) + (written or 0) if isinstance(asked, int) else None,
        output=counted.get("output"),
        cache_read=read,
        cache_creation=written,
    )


def _blocks(body: object) -> list[dict[str, Any]]:
    output = body.get("output") if isinstance(body, dict) else None
    message = output.get("message") if isinstance(output, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content or () if isinstance(block, dict)]


def _streamed_blocks(pieces: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks assembled from the events of a stream, each event under its name."""
    blocks: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        start, delta = piece.get("contentBlockStart"), piece.get("contentBlockDelta")
        event = start or delta
        if not isinstance(event, dict):
            continue
        block = blocks.setdefault(event.get("contentBlockIndex") or 0, {})
        part = event.get("start") or event.get("delta") or {}
        if "text" in part:
            block["text"] = block.get("text", "") + part["text"]
        if isinstance(part.get("toolUse"), dict):
            call = block.setdefault("toolUse", {"input": ""})
            call.update({name: part["toolUse"][name] for name in ("toolUseId", "name") if name in part["toolUse"]})
            fragment = part["toolUse"].get("input") or ""
            call["input"] = call["input"] + fragment if isinstance(fragment, str) else fragment
        if isinstance(part.get("reasoningContent"), dict):
            reasoning = block.setdefault("reasoningContent", {"reasoningText": {"text": ""}})
            reasoning["reasoningText"]["text"] += part["reasoningContent"].get("text") or ""
    return [blocks[index] for index in sorted(blocks)]


def _blocks_reading(blocks: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> Reading:
    text = "".join(block.get("text") or "" for block in blocks)
    calls = [block["toolUse"] for block in blocks if isinstance(block.get("toolUse"), dict)]
    thoughts = [(block.get("reasoningContent") or {}).get("reasoningText") or {} for block in blocks]
    stopped = next(iter(meta.get("finish_reasons") or ()), None)
    return Reading(
        text=text,
        tool_calls=[
            {"id": c.get("toolUseId"), "name": c.get("name"), "arguments": tool_arguments(c.get("input"))}
            for c in calls
        ],
        refusal=text or stopped if stopped in ("guardrail_intervened", "content_filtered") else None,
        reasoning="".join(thought.get("text") or "" for thought in thoughts) or None,
        meta=meta,
    )


# -- InvokeModel -------------------------------------------------------------------------------------------------------


def _operation(model: str, body: Mapping[str, Any]) -> str:
    if "embed" in model:
        return "embeddings"
    if "rerank" in model:
        return "rerank"
    return "chat" if "messages" in body else "text_completion"


#: The begin of the header that names a binary event, and its distance from the begin of that event.
_FRAME: Final = b"\x0b:event-type"
_TO_FRAME: Final = 12


def _chunks(stream: bytes) -> list[dict[str, Any]]:
    return [chunk for data in event_data(stream) if isinstance(chunk := json_value(data), dict)]


def _texts(chunk: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of an answer, or of a piece of one, by the vendors' names."""
    for name in ("generation", "completion", "outputText", "text"):  # Llama, Claude 2, Titan, Cohere
        if isinstance(chunk.get(name), str):
            yield chunk[name]
    for name, inner in (
        ("results", "outputText"),
        ("outputs", "text"),
        ("generations", "text"),
    ):  # Titan, Mistral, Cohere
        for item in chunk.get(name) or ():
            if isinstance(item, dict) and isinstance(item.get(inner), str):
                yield item[inner]


def _reasons(chunk: Mapping[str, Any]) -> Iterator[str]:
    for place in (
        chunk,
        *(item for name in ("results", "outputs", "choices", "generations") for item in chunk.get(name) or ()),
    ):
        if isinstance(place, dict):
            for name in ("stop_reason", "stopReason", "finish_reason", "completionReason"):
                if isinstance(place.get(name), str):
                    yield place[name]
    stopped = chunk.get("messageStop")
    if isinstance(stopped, dict) and isinstance(stopped.get("stopReason"), str):
        yield stopped["stopReason"]


def _metrics(chunks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the metrics that the service adds to the last chunk of a stream."""
    for chunk in chunks[::-1]:
        found = chunk.get("amazon-bedrock-invocationMetrics")
        if isinstance(found, dict):
            return _sums(
                {
                    "input": found.get("inputTokenCount"),
                    "output": found.get("outputTokenCount"),
                    "cache-read-input": found.get("cacheReadInputTokenCount"),
                    "cache-write-input": found.get("cacheWriteInputTokenCount"),
                }
            )
    return {}


def _usage(chunks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the model's own counts, by the vendors' names."""
    for chunk in chunks[::-1]:
        usage = chunk.get("usage") or (chunk.get("metadata") or {}).get("usage")
        if isinstance(usage, dict):
            return _converse_usage(usage) or completion_usage(usage)
        results = [one.get("tokenCount") for one in chunk.get("results") or () if isinstance(one, dict)]
        found = token_usage(
            input=chunk.get("prompt_token_count", chunk.get("inputTextTokenCount")),
            output=chunk.get("generation_token_count", chunk.get("totalOutputTextTokenCount"))
            or sum(count for count in results if isinstance(count, int))
            or None,
        )
        if found:
            return found
    return {}


def _invoke_meta(chunks: Sequence[Mapping[str, Any]], usage: Mapping[str, int]) -> dict[str, Any]:
    named = next((chunk for chunk in chunks if isinstance(chunk.get("model"), str)), {})
    reasons = [reason for chunk in chunks for reason in _reasons(chunk)]
    return answer_meta(model=named.get("model"), id=named.get("id"), finish_reasons=reasons, usage=usage)
