"""Record the scenarios of ``tests.integrations`` with whatever SDKs are installed: ``python -m tests.sdk_matrix.record STORE``.

Prints ``{"versions": …, "url": …, "runs": …, "saw": …, "left_out": …}``; the server is gone when it ends.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import tracekit
from tests.integrations import scenarios
from tests.support.stub_provider import stub_provider

PACKAGES = (
    "openai", "anthropic", "httpx", "httpx2", "google-genai", "ollama", "cohere", "mistralai", "boto3",
)  # fmt: skip
#: What a scenario uses beside its SDK.
NEEDS = {"plain_http": "httpx2", "plain_http_async": "httpx", "openai_over_httpx": "httpx", "raising_hook": "httpx"}


def needed(name: str) -> str | None:
    """The package that a scenario needs beside OpenAI's and Anthropic's."""
    return NEEDS.get(name) or scenarios.sdk_of(name)


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def main() -> None:
    (store,) = sys.argv[1:]
    there = versions()
    left_out = [name for name in scenarios.SCENARIOS if needed(name) not in (None, *there)]
    runs: dict[str, str] = {}
    saw: dict[str, Any] = {}
    tracekit.instrument()
    with stub_provider() as provider:
        for name in scenarios.SCENARIOS:
            if name in left_out:
                continue
            with tracekit.record(name, store=store) as run:
                saw[name] = scenarios.run(name, provider.url)
            runs[name] = run.id
        url = provider.url
    json.dump({"versions": there, "url": url, "runs": runs, "saw": saw, "left_out": left_out}, sys.stdout)


if __name__ == "__main__":
    main()
