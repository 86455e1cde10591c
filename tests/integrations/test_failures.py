"""Errors that the real SDKs raise are classified in the same way live, from the trace, and after a replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.support.stub_provider import StubProvider
from tests.support.tracing import of_type
from tracekit import record, recorded_failures, replay
from tracekit.failures import FailureType, RecoveryStrategy, classify

T, S = FailureType, RecoveryStrategy
MESSAGES: Final[Any] = [{"role": "user", "content": "hello"}]

#: What the provider does, the type, the strategy, and the wait that is asked for.
TABLE: Final = [
    ("429", T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, 0.001),
    ("503", T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, 0.001),
    ("529", T.AGENT_UNAVAILABLE, S.RETRY_AFTER_DELAY, None),
    ("500", T.TRANSPORT, S.RETRY_AFTER_DELAY, None),
    ("400", T.INVALID_INPUT, S.ABORT, None),
    ("422", T.INVALID_INPUT, S.ABORT, None),
    ("404", T.INVALID_INPUT, S.ABORT, None),
    ("401", T.AGENT_UNAVAILABLE, S.MANUAL_INTERVENTION, None),
    ("403", T.AGENT_UNAVAILABLE, S.MANUAL_INTERVENTION, None),
    ("408", T.TIMEOUT, S.RETRY_AFTER_DELAY, None),
    ("reset", T.NETWORK, S.RETRY_AFTER_DELAY, None),
    ("timeout", T.TIMEOUT, S.RETRY, None),
]


def patience(trouble: str) -> float:
    """Seconds: short only where the server never answers."""
    return 0.2 if trouble == "timeout" else 30


def ask_openai(url: str, trouble: str) -> Any:
    client = openai.OpenAI(
        base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=openai.Timeout(30, read=patience(trouble))
    )
    with client:
        return client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={"x-stub": trouble})


def ask_openai_async(url: str, trouble: str) -> Any:
    async def ask() -> Any:
        timeout = openai.Timeout(30, read=patience(trouble))
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=timeout) as client:
            return await client.responses.create(model="m", input="hello", extra_headers={"x-stub": trouble})

    return asyncio.run(ask())


def ask_anthropic(url: str, trouble: str) -> Any:
    with anthropic.Anthropic(
        base_url=url, api_key="k", max_retries=0, timeout=anthropic.Timeout(30, read=patience(trouble))
    ) as client:
        return client.messages.create(model="m", max_tokens=9, messages=MESSAGES, extra_headers={"x-stub": trouble})


def ask_plainly(url: str, trouble: str) -> Any:
    with httpx.Client(timeout=httpx.Timeout(30, read=patience(trouble))) as client:
        return client.get(f"{url}/plain", headers={"x-stub": trouble}).raise_for_status()


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("ask", [ask_openai, ask_openai_async, ask_anthropic, ask_plainly])
@pytest.mark.parametrize(("trouble", "kind", "strategy", "wait"), TABLE, ids=[row[0] for row in TABLE])
def test_an_sdk_error_is_classified_live_and_from_the_trace(
    provider: StubProvider,
    ask: Callable[[str, str], Any],
    trouble: str,
    kind: FailureType,
    strategy: RecoveryStrategy,
    wait: float | None,
) -> None:
    """Type, strategy and wait are the same for the exception, the recorded step, the run's end, and the replayed
    exception."""
    with pytest.raises(Exception) as raised, record("live") as run:
        ask(provider.url, trouble)
    live = classify(raised.value)
    assert (live.type, live.recovery_strategy, live.retry_after_s) == (kind, strategy, wait)
    found = list(recorded_failures(run.id))
    assert [each.family for each in found] == ["http" if ask is ask_plainly else "llm", "run"]
    for each in found:
        told = each.failure
        assert (told.type, told.recovery_strategy, told.retry_after_s) == (kind, strategy, wait), each
        assert each.step == of_type(run, "llm.request", "http.request")[0]["seq"]
    made = sum(provider.requests.values())
    with pytest.raises(type(raised.value)) as again, replay(run.id) as session:
        ask(provider.url, trouble)
    assert session.report.exact
    assert classify(again.value).as_dict() == live.as_dict()
    assert sum(provider.requests.values()) == made


@pytest.mark.usefixtures("instrumented")
def test_every_attempt_of_an_sdk_is_listed(provider: StubProvider) -> None:
    """If an SDK retries by itself and succeeds, its failed attempts are in the trace as failures of the model."""
    with record("retried") as run:
        client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k", max_retries=3)
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, extra_headers={"x-stub": "429,503,ok"})
    found = list(recorded_failures(run.id, tool="gpt-4o"))
    assert [each.failure.details["kind"] for each in found] == ["rate_limit", "overloaded"]


@pytest.mark.usefixtures("instrumented")
def test_a_stream_that_is_refused_is_a_failure(provider: StubProvider) -> None:
    """The status of a refused stream is read from its first piece."""
    with pytest.raises(openai.InternalServerError), record("streamed") as run:  # noqa: PT012
        client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="k", max_retries=0)
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True, extra_headers={"x-stub": "500"})
    assert [each.failure.type for each in recorded_failures(run.id)] == [T.TRANSPORT, T.TRANSPORT]


@pytest.mark.parametrize(
    ("said", "kind", "word"),
    [
        ("overloaded_error", T.AGENT_UNAVAILABLE, "overloaded"),
        ("rate_limit_error", T.AGENT_UNAVAILABLE, "rate_limit"),
        ("api_error", T.TRANSPORT, "server_error"),
        ("invalid_request_error", T.INVALID_INPUT, None),
    ],
)
def test_an_error_in_the_middle_of_a_stream(said: str, kind: FailureType, word: str | None) -> None:
    """For an error in the middle of a stream, whose status is 200, the provider's own error code decides."""
    event = f'event: error\ndata: {{"type":"error","error":{{"type":"{said}","message":"no"}}}}\n\n'

    def answer(request: Any) -> Any:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=event)

    client = anthropic.Anthropic(
        api_key="k", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    )
    with pytest.raises(anthropic.APIStatusError) as raised:
        list(client.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=True))
    failure = classify(raised.value)
    assert (failure.type, failure.details.get("kind")) == (kind, word)


def test_a_quota_that_is_used_up_needs_a_person() -> None:
    """A used-up quota has status 429, too, but waiting does not help: it needs a person."""
    answer = {"error": {"message": "no", "type": "insufficient_quota", "code": "insufficient_quota"}}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(429, json=answer))
    client = openai.OpenAI(api_key="k", max_retries=0, http_client=httpx2.Client(transport=transport))
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(model="m", messages=MESSAGES)
    failure = classify(raised.value)
    assert (failure.details["kind"], failure.recovery_strategy) == ("quota", S.MANUAL_INTERVENTION)
