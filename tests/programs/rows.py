"""The programs, and the environments that they run in."""

from __future__ import annotations

from tests.programs.harness import Row

__all__ = ["ENVIRONMENTS", "ROWS"]

#: What is installed beside the wheel, for each environment.
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "providers": (
        "openai[realtime]",
        "anthropic[bedrock,vertex]",
        "google-genai",
        "boto3",
        "cohere",
        "ollama",
        "mistralai",
        "groq",
    ),
}

ROWS: tuple[Row, ...] = (
    Row("openai_endpoints", "every endpoint of the synchronous client", "providers", ("openai",)),
    Row("openai_async", "chats, streams and responses side by side", "providers", ("openai",)),
    Row("openai_module", "the client of the module itself", "providers", ("openai",)),
    Row("openai_azure", "`AzureOpenAI`", "providers", ("openai",)),
    Row("openai_realtime", "a Realtime session", "providers", ("openai", "websockets")),
    Row("anthropic_messages", "messages, streams, tools, batches, token counts", "providers", ("anthropic",)),
    Row("ollama_chat", "chats, a stream, a tool, embeddings", "providers", ("ollama",)),
)
