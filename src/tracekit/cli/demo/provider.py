"""Who answers the demo's agent: the embedded model server, or a real provider."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ["Provider", "embedded", "real"]


class Provider:
    """``settings`` is the environment that leads the agent there, ``secrets`` what a replay has to do without."""

    def __init__(self, name: str, settings: Mapping[str, str], secrets: Mapping[str, str], timeout: float) -> None:
        self.name: Final = name
        self.settings: Final = settings
        self.secrets: Final = secrets
        self.timeout: Final = timeout
        self.asks_anthropic: Final = "DEMO_CLAUDE" in settings


def embedded(url: str) -> Provider:
    """The embedded server at ``url``, for both SDKs. The keys are no secrets, but SDKs do not start without one."""
    return Provider(
        "the embedded model server",
        {
            "DEMO_MODEL": "tiny-ngram",
            "DEMO_CLAUDE": "tiny-ngram",
            "OPENAI_BASE_URL": url + "/v1",
            "ANTHROPIC_BASE_URL": url,
        },
        {"OPENAI_API_KEY": "not-needed", "ANTHROPIC_API_KEY": "not-needed"},
        60.0,
    )


def real(base_url: str | None, model: str | None, claude: str | None) -> Provider:
    """The provider that environment and options name; Anthropic too, where a key or an address of it is given."""
    url = base_url or os.environ.get("OPENAI_BASE_URL")
    settings = {"DEMO_MODEL": model or "gpt-5-mini"}
    if url:
        settings["OPENAI_BASE_URL"] = url
    secrets = {"OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY") or "not-needed"}
    if os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_BASE_URL"):
        settings["DEMO_CLAUDE"] = claude or "claude-haiku-4-5"
        secrets["ANTHROPIC_API_KEY"] = os.environ.get("ANTHROPIC_API_KEY") or "not-needed"
        if address := os.environ.get("ANTHROPIC_BASE_URL"):
            settings["ANTHROPIC_BASE_URL"] = address
    return Provider(url or "the OpenAI API", settings, secrets, 300.0)
