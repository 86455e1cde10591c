"""Mistral: where its protocol differs from OpenAI's, and ``wrap(client)`` for one client. See README.md in this
directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import TypeVar

from tracekit.integration import Dialect, Endpoint, Integration, attach, detach, register

__all__ = ["integration", "unwrap", "wrap"]

ClientT = TypeVar("ClientT")

#: The side effects of the endpoints; those not listed are irreversible unless the method is safe.
_ENDPOINTS = (
    Endpoint("POST", "chat/completions", "read_only"),
    Endpoint("POST", "fim/completions", "read_only"),
    Endpoint("POST", "agents/completions", "read_only"),
    Endpoint("POST", "embeddings", "read_only"),
    Endpoint("POST", "moderations", "read_only"),
    Endpoint("POST", "classifications", "read_only"),
    Endpoint("POST", "responses/input_tokens", "read_only"),
    Endpoint("POST", "ocr", "read_only"),
    Endpoint("POST", "audio/transcriptions", "read_only"),
    Endpoint("POST", "audio/speech", "read_only"),
)


def _dialects() -> tuple[Dialect, ...]:
    from ._mistral import Agents, Chat, Embeddings, Fim

    return (Chat(), Agents(), Fim(), Embeddings())


integration = Integration(
    "mistral",
    modules=("mistralai",),
    dialects=_dialects,
    agents=("mistral-client-python/",),
    hosts=("api.mistral.ai", "codestral.mistral.ai"),
    endpoints=_ENDPOINTS,
    credentials=("MISTRAL_API_KEY",),
    frameworks=("langchain_mistralai",),
)


def wrap(client: ClientT) -> ClientT:
    """Capture the calls of this one ``Mistral`` client, including its ``…_async`` methods; return it. Nothing is
    patched globally."""
    register(integration)
    for transport in _transports(client):
        attach(transport)
    return client


def unwrap(client: ClientT) -> ClientT:
    """Undo ``wrap``; return the client."""
    for transport in _transports(client):
        detach(transport)
    return client


def _transports(client: object) -> list[object]:
    configuration = client.sdk_configuration  # type: ignore[attr-defined]
    return [one for one in (configuration.client, configuration.async_client) if one is not None]
