"""Ollama's own protocol: JSON, and JSON lines for a streamed answer (its default)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracekit.integration import Claim, Reading, answer_meta, json_lines, json_value, parameters, token_usage

__all__ = ["Chat", "Embed", "Generate"]

#: The ``options`` for decoding; ``num_predict`` is the limit of the answer.
_OPTIONS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "num_predict": "max_tokens",
    "num_ctx": "num_ctx",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


class Chat:
    """``POST /api/chat`` with ``messages``."""

    name = "ollama.chat"
    provider = "ollama"
    operation = "chat"
    paths: tuple[str, ...] = ("/api/chat",)
    content: tuple[str, ...] = ("messages",)

    def claims(self, method: str, path: str, own: bool) -> bool:
        return own and method == "POST" and path.endswith(self.paths)

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or not any(name in body for name in self.content):
            return None
        model = body.get("model")
        if not isinstance(model, str):
            return None
        options = parameters(body.get("options"), _OPTIONS)
        return Claim(model, {**parameters(body, ("stream", "think", "format", "raw", "dimensions")), **options})

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body, dict):
            return {}
        usage = token_usage(input=body.get("prompt_eval_count"), output=body.get("eval_count"))
        return answer_meta(model=body.get("model"), finish_reasons=[body.get("done_reason")], usage=usage)

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        """Return the last line's metadata: it has all counts."""
        lines = b"".join(pieces).rstrip().rsplit(b"\n", 1)
        last = json_value(lines[-1])
        return self.response(last, {}) if isinstance(last, dict) and last.get("done") else {}

    def finished(self, tail: bytes) -> bool:
        last = json_value(tail.rstrip().rsplit(b"\n", 1)[-1])
        return isinstance(last, dict) and bool(last.get("done"))

    def read(self, body: object) -> Reading:
        if isinstance(body, bytes):
            lines, meta = [line for line in json_lines(body) if isinstance(line, dict)], self.stream([body])
        else:
            lines, meta = [body] if isinstance(body, dict) else [], self.response(body, {})
        messages = [self.message(line) for line in lines]
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        functions = [call.get("function") or {} for call in calls]
        return Reading(
            text="".join(message.get("content") or "" for message in messages),
            tool_calls=[
                {"id": call.get("id"), "name": function.get("name"), "arguments": function.get("arguments")}
                for call, function in zip(calls, functions, strict=True)
            ],
            reasoning="".join(message.get("thinking") or "" for message in messages) or None,
            meta=meta,
        )

    def message(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the message in an answer, or in one line of it."""
        found = line.get("message")
        return found if isinstance(found, dict) else {}


class Generate(Chat):
    """``POST /api/generate`` with a ``prompt``."""

    name = "ollama.generate"
    operation = "text_completion"
    paths = ("/api/generate",)
    content = ("prompt",)

    def message(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"content": line.get("response"), "thinking": line.get("thinking")}


class Embed(Chat):
    """``POST /api/embed`` with ``input``, and the older ``/api/embeddings`` with a ``prompt``."""

    name = "ollama.embed"
    operation = "embeddings"
    paths = ("/api/embed", "/api/embeddings")
    content = ("input", "prompt")

    def message(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}
