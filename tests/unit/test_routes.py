"""Whose request it is, what it does, and how its URL is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tracekit_anthropic
import tracekit_bedrock
import tracekit_cohere
import tracekit_frameworks
import tracekit_google
import tracekit_httpx
import tracekit_mistral
import tracekit_ollama
import tracekit_openai
from tracekit._capture import plugins as routes

SDK = b"OpenAI/Python 3.54.0"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    routes.unregister()
    packages = (
        tracekit_httpx, tracekit_openai, tracekit_anthropic, tracekit_bedrock, tracekit_cohere, tracekit_google, tracekit_mistral,
        tracekit_ollama, tracekit_frameworks,
    )  # fmt: skip
    for package in packages:
        routes.register(package.integration)
    yield
    routes.unregister()


def route(method: str, url: str, agent: bytes = b"") -> routes.Route:
    scheme, _, rest = url.encode().partition(b"://")
    netloc, slash, path = rest.partition(b"/")
    return routes.resolve(method, scheme, netloc, slash + path, agent)


def is_ambient(method: str, url: str) -> bool:
    """Whether a request is telemetry by its address, with the variables as they are."""
    by = route(method, url).ambient
    return by is True or any(routes.base_url(variable) in bases for variable, bases in by.items())


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
        ("POST", "/v1beta/models/gemini-3-pro:countTokens", b"google-genai-sdk/3.4.0 gl-python/3.11", "read_only"),
        ("POST", "/v1beta/models/gemini-3-pro:batchGenerateContent", b"google-genai-sdk/3.4.0", "irreversible"),
        ("POST", "/upload/v1beta/files", b"google-genai-sdk/3.4.0", "irreversible"),
        ("DELETE", "/v1beta/cachedContents/1", b"google-genai-sdk/3.4.0", "irreversible"),
        ("POST", "/model/amazon.nova-lite-v1%3A0/count-tokens", b"Boto3/1.44.5 md/Botocore#1.44.5", "read_only"),
        ("POST", "/knowledgebases/kb/retrieve", b"Boto3/1.44.5", "read_only"),
        ("POST", "/agents/a/agentAliases/b/sessions/c/text", b"Boto3/1.44.5", "irreversible"),
        ("POST", "/async-invoke", b"Boto3/1.44.5", "irreversible"),
        ("POST", "/api/show", b"ollama-python/0.6.3 (x86_64 linux)", "read_only"),
        ("POST", "/api/pull", b"ollama-python/0.6.3", "irreversible"),
        ("DELETE", "/api/delete", b"ollama-python/0.6.3", "irreversible"),
        ("POST", "/v1/tokenize", b"cohere/7.3.1", "read_only"),
        ("POST", "/v1/datasets", b"cohere/7.3.1", "irreversible"),
        ("POST", "/v1/moderations", b"mistral-client-python/3.7.0", "read_only"),
        ("POST", "/v1/batch/jobs", b"mistral-client-python/3.7.0", "irreversible"),
        ("POST", "/v1/conversations", b"mistral-client-python/3.7.0", "irreversible"),
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
        "https://us.i.posthog.com/batch/",
        "https://o1.ingest.sentry.io/api/1/envelope/",
    ],
)
def test_ambient(url: str) -> None:
    """The telemetry of the usual frameworks is not the program's."""
    assert is_ambient("POST", url)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/chat/completions",
        "https://huggingface.co/a/resolve/main/x",
        "https://example.com/v1/trace",
        "https://shop.example/v1/logs",
        "https://us.i.posthog.com/flags/?v=2",
        "https://cloud.langfuse.com/api/public/v2/prompts/greeting",
        "https://api.smith.langchain.com/runs/query",
        "https://api.smith.langchain.com/commits/-/prompt/latest",
    ],
)
def test_not_ambient(url: str) -> None:
    """Model calls, downloads, whatever is not known, and what a telemetry service is asked for are the program's."""
    assert not is_ambient("POST", url)


@pytest.mark.parametrize("url", ["https://huggingface.co/api/models/a", "https://huggingface.co/api/whoami-v2"])
def test_what_a_hub_is_asked_for_is_not_ambient(url: str) -> None:
    """What a program asks a hub of models (``model_info``) is the program's: a replay answers it from the log."""
    assert not is_ambient("GET", url)
    assert is_ambient("GET", "https://huggingface.co/api/telemetry/x")


def test_ambient_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A telemetry service under another address is known by the variable that names it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.internal:9999/in")
    assert is_ambient("POST", "http://collector.internal:9999/in/v1/traces")
    assert not is_ambient("POST", "http://collector.internal:9999/in/v1/files")
    assert not is_ambient("POST", "http://collector.internal:9999/v1/traces")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://u:p@h.example/a?key=1&keyword=2", "https://h.example/a?key=1&keyword=2"),
        (
            "https://h.example/a?X-Amz-Signature=1&page_token=2",
            "https://h.example/a?X-Amz-Signature=1&page_token=2",
        ),
        ("https://h.example/a?client_secret=1&flag", "https://h.example/a?client_secret=1&flag"),
        ("https://h.example/a?max_tokens=1", "https://h.example/a?max_tokens=1"),
    ],
)
def test_told(url: str, told: str) -> None:
    """A URL is told without user names, passwords and secrets in its query; what merely sounds alike stays."""
    assert route("GET", url).url == told
    assert routes.shown(url) == told


def test_a_relative_redirect_is_shown_as_it_is() -> None:
    """The target of a redirect without a host is shown as it was sent, and gets none."""
    assert routes.shown("/next?token=1") == "/next?token=1"


def test_classes_in_order() -> None:
    """The user's classes come before everything else, and of those the first that fits."""
    routes.declare_endpoints({"POST api.example.com/v1/*": "reversible", "*.example.com": "read_only"})
    assert route("POST", "https://api.example.com/v1/x").side_effect == "reversible"
    assert route("PUT", "https://api.example.com:8443/v1/x").side_effect == "read_only"
    assert route("PUT", "https://api.example.org/v1/x").side_effect == "irreversible"


def test_bounded() -> None:
    """However many URLs there are, what is remembered of them stays bounded."""
    for number in range(5000):
        route("GET", f"https://h.example/{number}")
    assert len(routes._routes) <= 4096


@pytest.mark.parametrize(
    ("url", "agent", "first", "known"),
    [
        ("https://api.openai.com/v1/chat/completions", SDK, "openai.chat", ("openai", "3.54.0")),
        ("https://api.mistral.ai/v1/chat/completions", b"mistral-client-python/3.7.0", "mistral.chat", ("mistral", "3.7.0")),
        ("https://gateway.internal/v1/chat/completions", b"mistral-client-python/3.7.0", "mistral.chat", ("mistral", "3.7.0")),
        ("https://api.mistral.ai/v1/chat/completions", SDK, "mistral.chat", ("openai", "3.54.0")),
        ("https://api.mistral.ai/v1/embeddings", b"python-httpx/0.28", "mistral.embeddings", (None, None)),
        ("https://gateway.internal/v1/chat/completions", b"python-httpx/0.28", "openai.chat", (None, None)),
        ("https://api.cohere.com/v2/chat", b"litellm/1.109", "cohere.chat", (None, None)),
        ("https://gateway.internal/v2/chat", b"python-httpx/0.28", None, (None, None)),
        ("http://localhost:11434/api/chat", b"python-httpx/0.28", "ollama.chat", (None, None)),
        ("http://localhost:8000/api/chat", b"python-httpx/0.28", None, (None, None)),
        ("https://us-central1-aiplatform.googleapis.com/v1/publishers/google/models/imagen-4:predict", b"", "gemini.predict", (None, None)),
        ("https://models.internal/v1/models/churn:predict", b"", None, (None, None)),
        ("https://proxy.internal/v1beta/models/gemini-3-pro:generateContent", b"", "gemini.generate_content", (None, None)),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse", b"Botocore/1.44.5 ua/2.1", "bedrock.converse",
         ("bedrock", "1.44.5")),
        ("https://api.openai.com/v1/chat/completions", b"OpenAI/Python", "openai.chat", ("openai", None)),
    ],
)  # fmt: skip
def test_whose(url: str, agent: bytes, first: str | None, known: tuple[str | None, str | None]) -> None:
    """A service is known by its host and by its SDK, whichever there is; its own dialect comes first, and takes nothing of others."""
    found = route("POST", url, agent)
    assert next((dialect.name for dialect in found.dialects), None) == first
    assert (found.sdk, found.sdk_version) == known


def test_dialects_are_made_when_a_request_is_looked_at() -> None:
    """A function makes the dialects of an integration once, when the first request is looked at; one that fails is a warning."""
    made = []

    def make() -> list[routes.Dialect]:
        made.append(1)
        return [*tracekit_openai.integration.dialects]

    def fail() -> list[routes.Dialect]:
        raise ImportError("no such module")

    routes.register(routes.Integration("acme", dialects=make, hosts=("acme.example.com",)))
    routes.register(routes.Integration("broken", dialects=fail))
    assert not made
    with pytest.warns(RuntimeWarning, match="dialects of the integration 'broken' could not be loaded.*no such module"):
        assert route("POST", "https://acme.example.com/v1/chat/completions").dialects
    assert route("POST", "https://acme.example.com/v1/embeddings").dialects
    assert made == [1]


def test_an_endpoint_that_only_reads_does_so_at_its_own_host() -> None:
    """A POST that only reads at its provider's host is read-only whichever client sends it, and irreversible at any other host."""
    assert route("POST", "https://api.cohere.com/v1/tokenize", b"python-httpx/0.28").side_effect == "read_only"
    assert route("POST", "https://other.example.com/v1/tokenize", b"python-httpx/0.28").side_effect == "irreversible"
