"""Ollama: the dialects of its own protocol, and ``wrap(client)`` for one client. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import TypeVar

from tracekit.integration import Dialect, Endpoint, Integration, attach, detach, register

__all__ = ["integration", "unwrap", "wrap"]

ClientT = TypeVar("ClientT")

#: The side effects of the endpoints; those not listed (pull, push, create, copy, delete) are irreversible unless the
#: method is safe.
_ENDPOINTS = (
    Endpoint("POST", "api/chat", "read_only"),
    Endpoint("POST", "api/generate", "read_only"),
    Endpoint("POST", "api/embed", "read_only"),
    Endpoint("POST", "api/embeddings", "read_only"),
    Endpoint("POST", "api/show", "read_only"),
    Endpoint("POST", "api/web_search", "read_only"),
    Endpoint("POST", "api/web_fetch", "read_only"),
)


def _dialects() -> tuple[Dialect, ...]:
    from ._ollama import Chat, Embed, Generate

    return (Chat(), Generate(), Embed())


integration = Integration(
    "ollama",
    modules=("ollama",),
    dialects=_dialects,
    agents=("ollama-python/",),
    hosts=("*:11434", "ollama.com"),
    endpoints=_ENDPOINTS,
    credentials=("OLLAMA_API_KEY",),
    settings=("OLLAMA_HOST",),
    frameworks=("langchain_ollama",),
)


def wrap(client: ClientT) -> ClientT:
    """Capture the calls of this one ``Client`` or ``AsyncClient``; return it. Nothing is patched globally."""
    register(integration)
    attach(client._client)  # type: ignore[attr-defined]
    return client


def unwrap(client: ClientT) -> ClientT:
    """Undo ``wrap``; return the client."""
    detach(client._client)  # type: ignore[attr-defined]
    return client
