"""``instrument()``, ``uninstrument()`` and ``wrap()``: what is replaced, when, and that it is put back."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

import tracekit
import tracekit_anthropic
import tracekit_cohere
import tracekit_google
import tracekit_mistral
import tracekit_ollama
import tracekit_openai
from tests.integrations import scenarios
from tests.support.stub_provider import StubProvider, stub_provider
from tests.support.tracing import of_type
from tracekit.integration import Trace

ASK: Any = [{"role": "user", "content": "Hello"}]


def steps(run: tracekit.Run) -> list[str]:
    return [
        entry["type"] for entry in Trace(run.path).entries() if "." in entry["type"] and "run." not in entry["type"]
    ]


def fresh(code: str) -> str:
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, env={"PYTHONPATH": ":".join(p for p in sys.path if p)}, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_restores_exactly() -> None:
    """Whatever was there before is there again, the very same objects."""
    owners = [httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient]
    before = [dict(vars(owner)) for owner in owners]
    tracekit.instrument()
    assert all(vars(owner)["send"] is not was["send"] for owner, was in zip(owners, before, strict=True))
    tracekit.uninstrument()
    assert [dict(vars(owner)) for owner in owners] == before


def test_idempotent() -> None:
    """Asking twice replaces once, restoring twice restores once."""
    tracekit.instrument()
    send = httpx2.Client.send
    tracekit.instrument("openai")
    assert httpx2.Client.send is send
    tracekit.uninstrument()
    bare = httpx2.Client.send
    tracekit.uninstrument()
    assert httpx2.Client.send is bare
    assert bare is not send


def test_looks_the_same(instrumented: None) -> None:
    """The replaced methods keep name, signature, documentation and kind."""
    import inspect

    assert inspect.iscoroutinefunction(httpx2.AsyncClient.send)
    assert not inspect.iscoroutinefunction(httpx2.Client.send)
    assert list(inspect.signature(httpx2.Client.send).parameters) == [
        "self",
        "request",
        "stream",
        "auth",
        "follow_redirects",
    ]
    assert "request" in (httpx2.Client.send.__doc__ or "")


def test_imports_nothing() -> None:
    """Capturing an SDK imports neither it nor its HTTP client, and reaches it when it is imported later."""
    told = fresh("""
        import sys, tracekit
        tracekit.instrument()
        print([name for name in ("openai", "anthropic", "httpx", "httpx2", "websockets") if name in sys.modules])
        import httpx2, websockets.asyncio.connection as connection
        print(hasattr(httpx2.Client.send, "__wrapped__"), hasattr(connection.Connection.data_received, "__wrapped__"))
        tracekit.uninstrument()
        print(hasattr(httpx2.Client.send, "__wrapped__"), hasattr(connection.Connection.data_received, "__wrapped__"))
    """)
    assert told.splitlines() == ["[]", "True True", "False False"]


def test_after_uninstrument_imports_stay_bare() -> None:
    """A library that is imported after ``uninstrument()`` is left as it is."""
    told = fresh("""
        import tracekit
        tracekit.instrument()
        tracekit.uninstrument()
        import httpx2
        print(hasattr(httpx2.Client.send, "__wrapped__"))
    """)
    assert told == "False"


def test_one_library_by_two_names() -> None:
    """Where httpx is made a name of httpx2, each call is recorded once."""
    told = fresh("""
        import sys, tracekit
        tracekit.instrument()
        import httpx2
        httpx2.alias_httpx()
        import httpx
        assert httpx.Client is httpx2.Client
        print(hasattr(httpx.Client.send, "__wrapped__"), hasattr(httpx.Client.send.__wrapped__, "__wrapped__"))
    """)
    assert told == "True False"


def test_unknown_name() -> None:
    """A name that no integration has is refused, with those that there are."""
    with pytest.raises(
        ValueError, match=r"no integration 'opnai' is installed; there are: .*anthropic, .*httpx, .*openai"
    ):
        tracekit.instrument("opnai")


def test_earlier_clients(provider: StubProvider) -> None:
    """Clients that were made before ``instrument()`` are captured."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k") as client:
        tracekit.instrument()
        try:
            with tracekit.record() as run:
                client.chat.completions.create(model="m", messages=ASK)
        finally:
            tracekit.uninstrument()
    assert steps(run) == ["llm.request", "llm.response"]


def test_wrap_one_client(provider: StubProvider) -> None:
    """``wrap(client)`` captures that client and those derived from it, and no other; nothing is patched globally."""
    bare = httpx2.Client.send
    with (
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k") as client,
        anthropic.Anthropic(base_url=provider.url, api_key="k") as other,
    ):
        assert tracekit_openai.wrap(tracekit_openai.wrap(client)) is client
        with tracekit.record() as run:
            client.chat.completions.create(model="m", messages=ASK)
            client.with_options(timeout=9).chat.completions.create(model="m", messages=ASK)
            other.messages.create(model="m", max_tokens=5, messages=ASK)
        assert httpx2.Client.send is bare
        assert steps(run) == ["llm.request", "llm.response"] * 2
        tracekit_openai.unwrap(client)
        tracekit_anthropic.wrap(other)
        with tracekit.record() as run:
            client.chat.completions.create(model="m", messages=ASK)
            other.messages.create(model="m", max_tokens=5, messages=ASK)
        assert steps(run) == ["llm.request", "llm.response"]
        tracekit_anthropic.unwrap(other)


def test_wrap_clients_of_other_providers(provider: StubProvider) -> None:
    """``wrap(client)`` finds what the clients of Google, Ollama, Cohere and Mistral send through, and ``unwrap`` leaves it as it was."""
    import cohere
    import ollama

    clients: list[tuple[Any, Any, Any]] = [
        (tracekit_google, scenarios.gemini(provider.url), lambda c: c.models.generate_content(model="m", contents="x")),
        (tracekit_ollama, ollama.Client(host=provider.url), lambda c: c.chat("m", messages=ASK)),
        (tracekit_cohere, cohere.ClientV2("k", base_url=provider.url), lambda c: c.chat(model="m", messages=ASK)),
        (tracekit_mistral, scenarios.mistral(provider.url), lambda c: c.chat.complete(model="m", messages=ASK)),
    ]
    dialects = []
    for package, client, ask in clients:
        assert package.wrap(client) is client
        with tracekit.record() as run:
            ask(client)
        dialects += [entry["meta"]["dialect"] for entry in of_type(run, "llm.request")]
        package.unwrap(client)
        with tracekit.record() as run:
            ask(client)
        assert of_type(run, "llm.request") == []
    assert dialects == ["gemini.generate_content", "ollama.chat", "cohere.chat", "mistral.chat"]
    clients[1][1]._client.close()
    clients[2][1]._client_wrapper.httpx_client.httpx_client.close()
    scenarios.close()


def test_wrapped_and_instrumented(provider: StubProvider, instrumented: None) -> None:
    """A client that is wrapped while its class is patched too records each call once."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k") as client:
        tracekit_openai.wrap(client)
        with tracekit.record() as run:
            client.chat.completions.create(model="m", messages=ASK)
    assert steps(run) == ["llm.request", "llm.response"]


def test_a_send_inside_a_send(provider: StubProvider, instrumented: None) -> None:
    """A client that delegates to another makes one request; what its hooks ask for are requests of the program."""

    class Delegating(httpx2.Client):
        def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
            return inner.send(request, **kwargs)

    def fetch_token(request: httpx2.Request) -> None:
        request.headers["authorization"] = (
            inner.get(f"{provider.url}/token").json()["said"].encode("ascii", "ignore").decode()
        )

    with (
        httpx2.Client() as inner,
        Delegating() as outer,
        httpx2.Client(event_hooks={"request": [fetch_token]}) as hooked,
        tracekit.record() as run,
    ):
        outer.get(f"{provider.url}/a")
        hooked.get(f"{provider.url}/b")
    assert provider.requests.total() == 3
    assert steps(run) == ["http.request", "http.response"] * 3


def test_outside_a_run(provider: StubProvider, instrumented: None) -> None:
    """With no run active a call goes through untouched."""
    with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k") as client:
        answer = client.chat.completions.create(model="m", messages=ASK)
    assert answer.choices[0].message.content
    assert provider.requests["/v1/chat/completions"] == 1


WAYS = ["tracekit_openai.wrap(client)", "LLMExecutor(client)"]
AGENTS = ["", "of my own"]


@pytest.fixture(scope="module")
def told_of_gaps() -> dict[tuple[str, str], list[str]]:
    """Which SDKs runs told as not captured: for each way and user agent that of a run with a call, and that of one without."""
    with stub_provider() as provider:
        told = fresh(f"""
            import tracekit, tempfile, warnings
            with warnings.catch_warnings(record=True) as caught, tempfile.TemporaryDirectory() as store:
                warnings.simplefilter("always")
                with tracekit.record(store=store):
                    import openai
            told = [str(one.message).partition(" was imported") for one in caught]
            print(*(before.split()[-1] for before, found, _ in told if found))
            warnings.simplefilter("ignore")
            def runs(way, agent):
                for count in (1, 0):
                    with tracekit.record(store=store) as run:
                        import openai, anthropic, tracekit_openai
                        from tracekit.agents import LLMExecutor
                        headers = {{"user-agent": agent}} if agent else None
                        with openai.OpenAI(base_url="{provider.url}/v1", api_key="k", default_headers=headers) as client:
                            eval(way)
                            for _ in range(count):
                                client.chat.completions.create(model="m", messages=[{{"role": "user", "content": "a"}}])
                    print(*sorted(one.split()[0] for one in run.warnings if "was imported" in one))
            with tempfile.TemporaryDirectory() as store:
                for way in {WAYS!r}:
                    for agent in {AGENTS!r}:
                        runs(way, agent)
        """)
    warned, *rest = told.splitlines()
    lines = iter(rest)
    return {
        ("a warning", ""): [warned],
        **{(way, agent): [next(lines), next(lines)] for way in WAYS for agent in AGENTS},
    }


def test_gap_is_told(told_of_gaps: dict[tuple[str, str], list[str]]) -> None:
    """A run in which an SDK was imported and could not be captured says so at its end, by a warning."""
    assert told_of_gaps["a warning", ""] == ["openai"]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_is_captured_by_itself_is_no_gap(
    told_of_gaps: dict[tuple[str, str], list[str]], way: str, agent: str
) -> None:
    """What `wrap` or an executor captures is captured: nothing is said of it, under another user agent neither. Another SDK, and
    one that made no call, are still told."""
    assert told_of_gaps[way, agent] == ["anthropic", "anthropic openai"]


def test_a_library_of_another_shape() -> None:
    """A version of a library that is not as its integration expects is imported as without tracekit, and the run says what it
    can't capture; a pool of connections whose queue is no queue (niquests' urllib3) is left as it is."""
    printed = fresh(
        """
        import sys, types, warnings
        import tracekit

        class Session:
            def send(self): return "sent"
        class TrafficPolice:
            def get(self): return "got"
            def put(self, item): ...
        class ConnectionPool:
            QueueCls = TrafficPolice
        for name, kind in (("requests.sessions", Session), ("urllib3.connectionpool", ConnectionPool)):
            sys.modules[name] = types.ModuleType(name)
            setattr(sys.modules[name], kind.__name__, kind)
        tracekit.instrument()
        warnings.simplefilter("ignore")
        with tracekit.record() as run:
            print(Session().send(), ConnectionPool.QueueCls().get())
        print(*run.warnings, sep="|")
        """
    )
    lines = printed.splitlines()
    assert lines[0] == "sent got"
    assert "requests.sessions.Session.send of this version is not as tracekit expects (KeyError" in lines[1]
    assert "urllib3" not in lines[1]
