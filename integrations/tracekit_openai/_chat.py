"""OpenAI's chat completions, and the older text completions: also the protocol of most OpenAI-compatible servers."""

from __future__ import annotations

from tracekit.integration import ChatCompletions, EmbeddingVectors

__all__ = ["Chat", "Completions", "Embeddings"]


class Chat(ChatCompletions):
    """``POST …/chat/completions`` with ``messages``."""


class Completions(ChatCompletions):
    """``POST …/completions`` with a ``prompt``."""

    name = "openai.completions"
    operation = "text_completion"
    paths = ("/completions",)
    content = "prompt"


class Embeddings(EmbeddingVectors):
    """``POST …/embeddings`` with ``input``."""
