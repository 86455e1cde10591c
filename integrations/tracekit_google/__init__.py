"""Google: the dialects of the Gemini API, in AI Studio and on Vertex AI, and ``wrap(client)`` for one client. See
README.md.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from tracekit.integration import Dialect, Endpoint, Integration, attach, detach, register

__all__ = ["integration", "unwrap", "wrap"]

ClientT = TypeVar("ClientT")

#: The side effects of the endpoints; those not listed are irreversible unless the method is safe.
_ENDPOINTS = (
    Endpoint("POST", "*:countTokens", "read_only"),
    Endpoint("POST", "*:computeTokens", "read_only"),
    Endpoint("POST", "*:generateContent", "read_only"),
    Endpoint("POST", "*:streamGenerateContent", "read_only"),
    Endpoint("POST", "*:embedContent", "read_only"),
    Endpoint("POST", "*:batchEmbedContents", "read_only"),
    Endpoint("POST", "*:fetchPredictOperation", "read_only"),
)


def _dialects() -> tuple[Dialect, ...]:
    from ._gemini import Embed, Generate, Predict

    return (Generate(), Embed(), Predict())


integration = Integration(
    "google",
    modules=("google.genai",),
    dialects=_dialects,
    agents=("google-genai-sdk/",),
    hosts=("generativelanguage.googleapis.com", "*aiplatform*.googleapis.com"),
    endpoints=_ENDPOINTS,
    credentials=(("GEMINI_API_KEY", "GOOGLE_API_KEY"),),
    settings=(
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
        "GOOGLE_GENAI_USE_VERTEXAI",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_CLOUD_LOCATION",
    ),
    frameworks=("langchain_google_genai", "langchain_google_vertexai"),
)


def wrap(client: ClientT) -> ClientT:
    """Capture the calls of this one ``google.genai.Client``, including its ``aio`` side if that sends through httpx;
    return it.

    Nothing is patched globally.
    """
    register(integration)
    for transport in _transports(client):
        attach(transport)
    return client


def unwrap(client: ClientT) -> ClientT:
    """Undo ``wrap``; return the client."""
    for transport in _transports(client):
        detach(transport)
    return client


def _transports(client: Any) -> list[Any]:
    api = client._api_client
    found = []
    for name in ("_httpx_client", "_async_httpx_client"):
        with suppress(AttributeError):
            found.append(getattr(api, name))
    return [transport for transport in found if transport is not None]
