"""Cohere: the dialects of its API, and ``wrap(client)`` for one client. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import TypeVar

from tracekit.integration import Dialect, Endpoint, Integration, attach, detach, register

__all__ = ["integration", "unwrap", "wrap"]

ClientT = TypeVar("ClientT")

#: The side effects of the endpoints; those not listed are irreversible unless the method is safe.
_ENDPOINTS = tuple(
    Endpoint("POST", f"{version}/{path}", "read_only")
    for version, paths in {
        "v1": (
            "chat",
            "generate",
            "embed",
            "rerank",
            "classify",
            "summarize",
            "tokenize",
            "detokenize",
            "check-api-key",
        ),
        "v2": ("chat", "embed", "rerank", "parse"),
    }.items()
    for path in paths
)


def _dialects() -> tuple[Dialect, ...]:
    from ._cohere import Chat, Embed, FirstChat, Generate, Rerank

    return (Chat(), FirstChat(), Generate(), Embed(), Rerank())


integration = Integration(
    "cohere",
    modules=("cohere",),
    dialects=_dialects,
    agents=("cohere/",),
    hosts=("api.cohere.com", "api.cohere.ai", "production.api.cohere.com"),
    endpoints=_ENDPOINTS,
    credentials=(("CO_API_KEY", "COHERE_API_KEY"),),
    settings=("CO_API_URL",),
    frameworks=("langchain_cohere",),
)


def wrap(client: ClientT) -> ClientT:
    """Capture the calls of this one client (``Client``, ``AsyncClient``, ``ClientV2`` …); return it. Nothing is patched
    globally."""
    register(integration)
    attach(client._client_wrapper.httpx_client.httpx_client)  # type: ignore[attr-defined]
    return client


def unwrap(client: ClientT) -> ClientT:
    """Undo ``wrap``; return the client."""
    detach(client._client_wrapper.httpx_client.httpx_client)  # type: ignore[attr-defined]
    return client
