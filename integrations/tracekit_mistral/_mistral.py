"""Mistral's protocol: OpenAI's chat completions and embeddings, and Mistral's additions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from tracekit.integration import ChatCompletions, Claim, EmbeddingVectors

__all__ = ["Agents", "Chat", "Embeddings", "Fim"]

#: On Vertex AI the path names the model.
_VERTEX: Final = r"/publishers/mistralai/models/([^/:]+):(?:stream)?[rR]awPredict$"


class _Own(ChatCompletions):
    """Requests of Mistral's SDK or to its host, and the same bodies on Vertex AI."""

    provider = "mistral_ai"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return (own and super().claims(method, path, own)) or (
            method == "POST" and re.search(_VERTEX, path) is not None
        )

    def request(self, path: str, body: object) -> Claim | None:
        claim = super().request(path, body)
        if claim is None or re.search(_VERTEX, path) is None:
            return claim
        return Claim(claim.model, claim.signature, {"provider": "gcp.vertex_ai"})

    def model(self, path: str, body: Mapping[str, Any]) -> object:
        found = re.search(_VERTEX, path)
        return super().model(path, body) or (unquote(found[1]) if found else None)


class Chat(_Own):
    """``POST …/chat/completions`` with ``messages``."""

    name = "mistral.chat"


class Agents(ChatCompletions):
    """``POST …/agents/completions`` with ``messages``: the agent replaces the model."""

    name = "mistral.agents"
    provider = "mistral_ai"
    paths = ("/agents/completions",)

    def model(self, path: str, body: Mapping[str, Any]) -> object:
        return body.get("agent_id")


class Fim(_Own):
    """``POST …/fim/completions`` with a ``prompt``, and perhaps a ``suffix``: the model fills in what is between them."""

    name = "mistral.fim"
    operation = "text_completion"
    paths = ("/fim/completions",)
    content = "prompt"


class Embeddings(EmbeddingVectors):
    """``POST …/embeddings`` with ``input``."""

    name = "mistral.embeddings"
    provider = "mistral_ai"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return own and super().claims(method, path, own)
