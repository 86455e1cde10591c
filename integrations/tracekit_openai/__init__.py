"""OpenAI: the dialects of its wire protocol, and ``wrap(client)`` for one client. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import TypeVar

from tracekit.integration import Ambient, Dialect, Endpoint, Integration, attach, detach, register

__all__ = ["integration", "unwrap", "wrap"]

ClientT = TypeVar("ClientT")

#: The side effects of the endpoints; those not listed are irreversible unless the method is safe.
_ENDPOINTS = (
    Endpoint("POST", "chat/completions", "read_only"),
    Endpoint("POST", "completions", "read_only"),
    Endpoint("POST", "embeddings", "read_only"),
    Endpoint("POST", "moderations", "read_only"),
    Endpoint("POST", "responses/input_tokens", "read_only"),
    Endpoint("POST", "audio/transcriptions", "read_only"),
    Endpoint("POST", "audio/translations", "read_only"),
    Endpoint("POST", "audio/speech", "read_only"),
    Endpoint("POST", "images/generations", "read_only"),
    Endpoint("POST", "images/edits", "read_only"),
    Endpoint("POST", "images/variations", "read_only"),
    Endpoint("POST", "vector_stores/*/search", "read_only"),
    Endpoint("WEBSOCKET", "realtime", "read_only"),
    Endpoint("WEBSOCKET", "realtime/translations", "read_only"),
    Endpoint("WEBSOCKET", "responses", "read_only"),
    Endpoint("WEBSOCKET", "live", "read_only"),
)


def _dialects() -> tuple[Dialect, ...]:
    from ._chat import Chat, Completions, Embeddings
    from ._inference import Inference
    from ._realtime import Realtime
    from ._responses import Responses

    return (Chat(), Responses(), Completions(), Embeddings(), Inference(), Realtime())


integration = Integration(
    "openai",
    modules=("openai",),
    dialects=_dialects,
    agents=("OpenAI/Python", "AsyncOpenAI/Python", "AzureOpenAI/Python", "AsyncAzureOpenAI/Python"),
    endpoints=_ENDPOINTS,
    ambient=(Ambient("api.openai.com", "/v1/traces/ingest"),),
    credentials=(("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"), ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN")),
    settings=("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_VERSION", "AZURE_OPENAI_ENDPOINT"),
    frameworks=("agents", "langchain_openai", "instructor"),
    request_ids=("openai._base_client:BaseClient._idempotency_key",),
)


def wrap(client: ClientT) -> ClientT:
    """Capture the calls of this one client (``OpenAI``, ``AsyncOpenAI``, Azure …), and of those derived from it; return
    it.

    Nothing is patched globally. Clients that share its HTTP client (``with_options``) are captured, too.
    """
    register(integration)
    attach(client._client)  # type: ignore[attr-defined]
    return client


def unwrap(client: ClientT) -> ClientT:
    """Undo ``wrap``; return the client."""
    detach(client._client)  # type: ignore[attr-defined]
    return client
