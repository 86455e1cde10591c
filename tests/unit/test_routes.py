"""Whose request it is, what it does, and how its URL is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tracekit_anthropic
import tracekit_httpx
import tracekit_openai
from tracekit._capture import plugins as routes

SDK = b"OpenAI/Python 3.54.0"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    routes.unregister()
    for integration in (tracekit_httpx.integration, tracekit_openai.integration, tracekit_anthropic.integration):
        routes.register(integration)
    yield
    routes.unregister()


def route(method: str, url: str, agent: bytes = b"") -> routes.Route:
    scheme, _, rest = url.encode().partition(b"://")
    netloc, slash, path = rest.partition(b"/")
    return routes.resolve(method, scheme, netloc, slash + path, agent)


@pytest.mark.parametrize(
    ("method", "path", "agent", "side_effect"),
    [
        ("GET", "/v1/files/file-1", SDK, "read_only"),
        ("POST", "/v1/files", SDK, "irreversible"),
        ("DELETE", "/v1/files/file-1", SDK, "irreversible"),
        ("POST", "/v1/moderations", SDK, "read_only"),
        ("POST", "/v1/moderations", b"python-httpx/0.28", "irreversible"),
        ("POST", "/v1/vector_stores/vs_1/search", SDK, "read_only"),
        ("POST", "/v1/vector_stores/vs_1/files", SDK, "irreversible"),
        ("POST", "/v1/responses/resp_1/cancel", SDK, "irreversible"),
        ("POST", "/v1/messages/count_tokens", b"AsyncAnthropic/Python 2.12.0", "read_only"),
        ("POST", "/v1/messages/batches", b"Anthropic/Python 2.12.0", "irreversible"),
        ("POST", "/v1/unheard/of", SDK, "irreversible"),
        ("OPTIONS", "/", b"", "read_only"),
        ("QUERY", "/", b"", "irreversible"),
    ],
)
def test_side_effect(method: str, path: str, agent: bytes, side_effect: str) -> None:
    """Inference and reading are read-only, whatever else an SDK does is irreversible unless it is listed."""
    assert route(method, f"https://api.example.com{path}", agent).side_effect == side_effect


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/traces/ingest",
        "https://api.smith.langchain.com/runs/batch",
        "https://eu.api.smith.langchain.com/runs/batch",
        "https://us.cloud.langfuse.com/api/public/ingestion",
        "http://localhost:4318/v1/traces",
        "https://o1.ingest.sentry.io/api/1/envelope/",
    ],
)
def test_ambient(url: str) -> None:
    """The telemetry of the usual frameworks is not the program's."""
    assert route("POST", url).ambient


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/chat/completions",
        "https://huggingface.co/a/resolve/main/x",
        "https://example.com/v1/trace",
    ],
)
def test_not_ambient(url: str) -> None:
    """Model calls, downloads and whatever is not known are the program's."""
    assert not route("POST", url).ambient


def test_ambient_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A telemetry service under another address is known by the variable that names it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.internal:9999/in")
    assert route("POST", "http://collector.internal:9999/in/v1/anything").ambient
    assert not route("POST", "http://collector.internal:9999/elsewhere").ambient


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://u:p@h.example/a?key=1&keyword=2", "https://h.example/a?key=[REDACTED:query]&keyword=2"),
        (
            "https://h.example/a?X-Amz-Signature=1&page_token=2",
            "https://h.example/a?X-Amz-Signature=[REDACTED:query]&page_token=2",
        ),
        ("https://h.example/a?client_secret=1&flag", "https://h.example/a?client_secret=[REDACTED:query]&flag"),
        ("https://h.example/a?max_tokens=1", "https://h.example/a?max_tokens=1"),
    ],
)
def test_told(url: str, told: str) -> None:
    """A URL is told without user names, passwords and secrets in its query; what merely sounds alike stays."""
    assert route("GET", url).url == told
    assert routes.shown(url) == told


def test_relative_location() -> None:
    """A relative redirect keeps its form."""
    assert routes.shown("/next?token=1") == "/next?token=[REDACTED:query]"


def test_classes_in_order() -> None:
    """The user's classes come before everything else, and of those the first that fits."""
    routes.classify({"POST api.example.com/v1/*": "reversible", "*.example.com": "read_only"})
    assert route("POST", "https://api.example.com/v1/x").side_effect == "reversible"
    assert route("PUT", "https://api.example.com:8443/v1/x").side_effect == "read_only"
    assert route("PUT", "https://api.example.org/v1/x").side_effect == "irreversible"


def test_bounded() -> None:
    """However many URLs there are, what is remembered of them stays bounded."""
    for number in range(5000):
        route("GET", f"https://h.example/{number}")
    assert len(routes._routes) <= 4096
