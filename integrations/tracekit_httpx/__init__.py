"""The transport seam of httpx and httpx2: every request that a client sends, sync and async, is a step.

Covers each SDK that is built on either library (OpenAI, Anthropic, Mistral, Cohere, Groq, Together, Ollama, LiteLLM …)
with retries, streaming, raw responses and helpers. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import Any

from tracekit.integration import Integration, Patch

__all__ = ["integration"]


def _attach(client: Any) -> bool:
    from ._clients import attach

    return attach(client)


def _detach(client: Any) -> bool:
    from ._clients import detach

    return detach(client)


integration = Integration(
    "httpx",
    modules=("httpx", "httpx2"),
    patches=[
        patch
        for library in ("httpx2", "httpx")
        for patch in (
            Patch(library, "Client._send_single_request", "tracekit_httpx._sync:wrap"),
            Patch(library, "Client.send", "tracekit_httpx._sync:wrap_send"),
            Patch(library, "AsyncClient._send_single_request", "tracekit_httpx._async:wrap"),
            Patch(library, "AsyncClient.send", "tracekit_httpx._async:wrap_send"),
            Patch(library, "AsyncHTTPTransport.aclose", "tracekit_httpx._async:wrap_close"),
            Patch(library, "AsyncHTTPTransport.__aexit__", "tracekit_httpx._async:wrap_close"),
        )
    ],
    attach=_attach,
    detach=_detach,
)
