"""Anthropic: the dialect of its Messages API, and ``wrap(client)`` for one client. See README.md in this directory.

PYTEST_DONT_REWRITE: it may be imported before pytest starts.
"""

from __future__ import annotations

from typing import TypeVar

from tracekit.integration import Dialect, Endpoint, Integration, attach, detach, register

__all__ = ["integration", "unwrap", "wrap"]

ClientT = TypeVar("ClientT")

#: The side effects of the endpoints; those not listed are irreversible unless the method is safe.
_ENDPOINTS = (
    Endpoint("POST", "v1/messages", "read_only"),
    Endpoint("POST", "v1/messages/count_tokens", "read_only"),
    Endpoint("POST", "v1/complete", "read_only"),
)


def _dialects() -> tuple[Dialect, ...]:
    from ._messages import Messages

    return (Messages(),)


integration = Integration(
    "anthropic",
    modules=("anthropic",),
    dialects=_dialects,
    agents=("Anthropic/Python", "AsyncAnthropic/Python", "AnthropicBedrock/Python", "AsyncAnthropicBedrock/Python",
            "AnthropicVertex/Python", "AsyncAnthropicVertex/Python"),
    endpoints=_ENDPOINTS,
    credentials=(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        "ANTHROPIC_FOUNDRY_API_KEY",
        ("AWS_ACCESS_KEY_ID", "AWS_BEARER_TOKEN_BEDROCK"),
        "AWS_SECRET_ACCESS_KEY",
        "AWS_EC2_METADATA_DISABLED",
    ),
    settings=(
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_BEDROCK_BASE_URL",
        "ANTHROPIC_VERTEX_BASE_URL",
        "ANTHROPIC_VERTEX_PROJECT_ID",
        "CLOUD_ML_REGION",
    ),
    frameworks=("langchain_anthropic",),
    request_ids=("anthropic._base_client:BaseClient._idempotency_key",),
)  # fmt: skip


def wrap(client: ClientT) -> ClientT:
    """Capture the calls of this one client (``Anthropic``, ``AsyncAnthropic`` …), and of those derived from it; return
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
