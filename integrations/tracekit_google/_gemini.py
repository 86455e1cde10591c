"""The Gemini API: the same bodies in AI Studio and on Vertex AI; the path names the model and the method."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from tracekit.integration import (
    Claim,
    Dialect,
    Reading,
    answer_meta,
    json_value,
    parameters,
    stream_events,
    token_usage,
)

__all__ = ["Embed", "Generate", "Predict"]

#: ``…/models/NAME:method``; a tuned model, or one on a private endpoint, keeps the word before its name.
_PATH: Final = r"/(?:models|(tunedModels|endpoints))/([^/:]+):(\w+)$"
#: The parameters of ``generationConfig`` that are single values, in both JSON spellings.
_CONFIG: Final = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "candidateCount": "n",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "responseMimeType": "response_mime_type",
    "mediaResolution": "media_resolution",
}
#: Reasons for which an answer ends that mean a refusal by the model, or by a filter.
_REFUSED: Final = frozenset(
    {
        "SAFETY",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "RECITATION",
        "MODEL_ARMOR",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    }
)


class _Gemini(Dialect):
    """The common part of all methods: where the model is named, and the service of a path."""

    provider = "gcp.gemini"
    methods: frozenset[str] = frozenset()

    def claims(self, method: str, path: str, own: bool) -> bool:
        found = re.search(_PATH, path) if method == "POST" else None
        return found is not None and found[3] in self.methods

    def claim(self, path: str, signature: Mapping[str, Any]) -> Claim | None:
        found = re.search(_PATH, path)
        if found is None:
            return None
        model = unquote(f"{found[1]}/{found[2]}" if found[1] else found[2])
        vertex = "/publishers/" in path or "/projects/" in path
        return Claim(model, signature, {"provider": "gcp.vertex_ai"} if vertex else None)


class Generate(_Gemini):
    """``POST …:generateContent`` and ``…:streamGenerateContent`` with ``contents``."""

    name = "gemini.generate_content"
    operation = "generate_content"
    methods = frozenset({"generateContent", "streamGenerateContent"})

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or "contents" not in body:
            return None
        config = _field(body, "generationConfig")
        signature: dict[str, Any] = {"stream": True} if path.endswith(":streamGenerateContent") else {}
        signature |= parameters(config, {_snake(name): shown for name, shown in _CONFIG.items()} | _CONFIG)
        signature |= _thinking(_field(config, "thinkingConfig"))
        safety = _field(body, "safetySettings")
        if isinstance(safety, list):
            signature["safety"] = ",".join(
                f"{one.get('category')}={one.get('threshold')}" for one in safety if isinstance(one, dict)
            )
        return self.claim(path, signature)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        return _meta(_chunks(body))

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return _meta(_chunks(b"".join(pieces)))

    def finished(self, tail: bytes) -> bool:
        return b'"finishReason"' in tail or b'"blockReason"' in tail

    def read(self, body: object) -> Reading:
        chunks = _chunks(body)
        parts = [part for candidate in _candidates(chunks) for part in _parts(candidate)]
        calls = [part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)]
        return Reading(
            text="".join(part.get("text") or "" for part in parts if not part.get("thought")),
            tool_calls=[{"id": c.get("id"), "name": c.get("name"), "arguments": c.get("args") or {}} for c in calls],
            refusal=_refusal(chunks),
            reasoning="".join(part.get("text") or "" for part in parts if part.get("thought")) or None,
            meta=_meta(chunks),
        )


class Embed(_Gemini):
    """``POST …:embedContent`` with ``content`` and ``…:batchEmbedContents`` with ``requests``."""

    name = "gemini.embed_content"
    operation = "embeddings"
    methods = frozenset({"embedContent", "batchEmbedContents"})

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or not ("content" in body or "requests" in body):
            return None
        names = {"taskType": "task_type", "outputDimensionality": "dimensions"}
        return self.claim(path, parameters(body, names))

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        return answer_meta(usage=_usage(body.get("usageMetadata"))) if isinstance(body, dict) else {}


class Predict(_Gemini):
    """``POST …:predict`` with ``instances``, for Google's own models: embeddings on Vertex AI, images."""

    name = "gemini.predict"
    operation = "generate_content"
    methods = frozenset({"predict"})

    def claims(self, method: str, path: str, own: bool) -> bool:
        return own and "/endpoints/" not in path and super().claims(method, path, own)

    def request(self, path: str, body: object) -> Claim | None:
        instances = body.get("instances") if isinstance(body, dict) else None
        if not isinstance(body, dict) or not isinstance(instances, list) or not instances:
            return None
        signature = parameters(body.get("parameters"), {"sampleCount": "n", "outputDimensionality": "dimensions"})
        if all(isinstance(one, dict) and "content" in one for one in instances):
            signature["operation"] = "embeddings"
        return self.claim(path, signature)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        predictions = body.get("predictions") if isinstance(body, dict) else None
        counts = [
            one["embeddings"].get("statistics", {}).get("token_count")
            for one in predictions or ()
            if isinstance(one, dict) and isinstance(one.get("embeddings"), dict)
        ]
        known = [count for count in counts if isinstance(count, int | float)]
        return answer_meta(usage=token_usage(input=sum(known))) if known else {}


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name)


def _field(body: object, name: str) -> Any:
    """Return a field by its name in JSON, or by the one in the API's definition, which is also accepted."""
    if not isinstance(body, dict):
        return None
    return body[name] if name in body else body.get(_snake(name))


def _thinking(config: object) -> dict[str, str]:
    budget = _field(config, "thinkingBudget")
    asked = budget if budget is not None else _field(config, "thinkingLevel")
    return {} if asked is None else {"thinking": str(asked)}


def _chunks(body: object) -> list[dict[str, Any]]:
    """Return the parts of an answer: one, or each part of a stream (events, or without ``alt=sse`` one JSON list)."""
    if isinstance(body, bytes):
        listed = body.lstrip()[:1] == b"["
        found = json_value(body) if listed else [json_value(data) for _, data in stream_events(body)]
    else:
        found = body if isinstance(body, list) else [body]
    return [chunk for chunk in found or () if isinstance(chunk, dict)]


def _candidates(chunks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return every candidate, or piece of one, the first candidate's pieces first."""
    found = [one for chunk in chunks for one in chunk.get("candidates") or () if isinstance(one, dict)]
    return sorted(found, key=lambda one: one.get("index") or 0)


def _parts(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    return [part for part in parts or () if isinstance(part, dict)]


def _blocked(chunks: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the feedback on a blocked prompt, or an empty mapping."""
    for chunk in chunks:
        feedback = chunk.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason"):
            return feedback
    return {}


def _refusal(chunks: Sequence[Mapping[str, Any]]) -> str | None:
    blocked = _blocked(chunks)
    if blocked:
        return str(blocked.get("blockReasonMessage") or blocked["blockReason"])
    for candidate in _candidates(chunks):
        if candidate.get("finishReason") in _REFUSED:
            return str(candidate.get("finishMessage") or candidate["finishReason"])
    return None


def _meta(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    for chunk in chunks:  # each has the counts so far
        fields.update({name: chunk[name] for name in ("modelVersion", "responseId") if chunk.get(name)})
        if isinstance(chunk.get("usageMetadata"), dict):
            counts.update(chunk["usageMetadata"])
    reasons = [one["finishReason"] for one in _candidates(chunks) if one.get("finishReason")]
    return answer_meta(
        model=fields.get("modelVersion"),
        id=fields.get("responseId"),
        finish_reasons=reasons or [_blocked(chunks).get("blockReason")],
        usage=_usage(counts),
    )


def _usage(counts: object) -> dict[str, int]:
    """Return the usage: the service counts tokens of tool results in the prompt, and of thoughts, separately."""
    if not isinstance(counts, dict):
        return {}
    return token_usage(
        input=_sum(counts, "promptTokenCount", "toolUsePromptTokenCount"),
        output=_sum(counts, "candidatesTokenCount", "thoughtsTokenCount"),
        cache_read=counts.get("cachedContentTokenCount"),
        reasoning=counts.get("thoughtsTokenCount"),
    )


def _sum(counts: Mapping[str, Any], *names: str) -> int | None:
    known = [counts[name] for name in names if isinstance(counts.get(name), int)]
    return sum(known) if known else None
