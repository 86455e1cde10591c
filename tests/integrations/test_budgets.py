"""Budgets with the real SDKs, against a server that counts what reaches it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.support.stub_provider import StubProvider
from tests.support.tracing import of_type
from tracekit import Budget, BudgetExceededError, Price, Run, UnknownPriceError, record, replay

# The SDK warns of a model that is to be retired; the price list knows it.
pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    pytest.mark.filterwarnings("ignore:The model:DeprecationWarning"),
]

PRICES = {"claude-sonnet-4-5": Price(3, 15, cache_read_per_mtok=0.3, cache_write_per_mtok=3.75)}


def openai_chat(url: str, **more: Any) -> str:
    with openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=3) as client:
        answer = client.chat.completions.create(
            model="gpt-4o-mini", max_tokens=50, messages=[{"role": "user", "content": "hello"}], **more
        )
        if more.get("stream"):
            return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        return str(answer.choices[0].message.content)


def openai_stream(url: str) -> str:
    return openai_chat(url, stream=True, stream_options={"include_usage": True})


def openai_async(url: str) -> str:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k", max_retries=3) as client:
            answer = await client.responses.create(model="gpt-4o-mini", max_output_tokens=50, input="hello")
            return answer.output_text

    return asyncio.run(ask())


def anthropic_message(url: str) -> str:
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=3) as client:
        answer = client.messages.create(
            model="claude-sonnet-4-5", max_tokens=50, messages=[{"role": "user", "content": "hello"}]
        )
        return str(answer.content[0].text)  # type: ignore[union-attr]


def anthropic_stream(url: str) -> str:
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=3) as client:
        asked: Any = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "hello"}],
        }
        with client.messages.stream(**asked) as stream:
            return "".join(stream.text_stream)


def anthropic_async(url: str) -> str:
    async def ask() -> str:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=3) as client:
            asked: Any = {
                "model": "claude-sonnet-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}],
            }  # fmt: skip
            async with client.messages.stream(**asked) as stream:
                return "".join([text async for text in stream.text_stream])

    return asyncio.run(ask())


WAYS = [openai_chat, openai_stream, openai_async, anthropic_message, anthropic_stream, anthropic_async]


def reached(provider: StubProvider) -> int:
    return sum(provider.requests.values())


@pytest.mark.parametrize("ask", WAYS)
def test_the_refusal_reaches_the_caller_as_it_is(provider: StubProvider, ask: Callable[[str], str]) -> None:
    """No SDK, synchronous or not, streamed or not, wraps or retries the refusal: one request was allowed, and one is
    sent; a replay refuses the same."""

    def program() -> str:
        said = ask(provider.url)
        ask(provider.url)
        return said

    with pytest.raises(BudgetExceededError) as raised, record("x", budget=Budget(llm_calls=1)) as run:
        program()
    assert reached(provider) == 1
    assert len(of_type(run, "budget.exceeded")) == 1
    with pytest.raises(BudgetExceededError) as again, replay(run) as session:
        program()
    assert session.report.exact, session.report.as_dict()
    assert str(again.value) == str(raised.value)
    assert reached(provider) == 1


@pytest.mark.parametrize("ask", WAYS)
def test_what_was_used_counts(provider: StubProvider, ask: Callable[[str], str]) -> None:
    """The usage that a provider reports replaces the estimate, streamed or not, and the outcome has its price."""
    with record("x", budget=Budget(usd=1, output_tokens=80, prices=None)) as run:
        for _ in range(3):  # foreseen: 50 each, which two of them would be too much of
            ask(provider.url)
    assert reached(provider) == 3
    answers = of_type(run, "llm.response")
    spent = of_type(run, "run.completed")[0]["meta"]["budget"]["spent"]
    assert spent["output_tokens"] == sum(answer["meta"]["usage"]["output_tokens"] for answer in answers)
    assert spent["usd"] == pytest.approx(sum(answer["meta"]["cost_usd"] for answer in answers))
    assert all(answer["meta"]["cost_usd"] > 0 for answer in answers)


HELLO: Any = [{"role": "user", "content": "hello"}]
CONTENTS: Any = {
    "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
    "generationConfig": {"maxOutputTokens": 50},
}
CONVERSE: Any = {"messages": [{"role": "user", "content": [{"text": "hello"}]}], "inferenceConfig": {"maxTokens": 50}}
OTHERS: dict[str, tuple[str, str, Any]] = {
    "gemini": ("/v1beta/models/gemini-2.5-flash:generateContent", "", CONTENTS),
    "gemini, streamed": ("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", "", CONTENTS),
    "converse": ("/model/amazon.nova-lite-v1%3A0/converse", "", CONVERSE),
    "converse, streamed": ("/model/amazon.nova-lite-v1%3A0/converse-stream", "", CONVERSE),
    "invoke": ("/model/meta.llama3-8b-instruct-v1%3A0/invoke", "", {"prompt": "hello", "max_gen_len": 50}),
    "invoke, streamed": (
        "/model/meta.llama3-8b-instruct-v1%3A0/invoke-with-response-stream", "", {"prompt": "hello", "max_gen_len": 50},
    ),
    "cohere": ("/v2/chat", "cohere/7.3.1", {"model": "command-r", "messages": HELLO, "max_tokens": 50}),
    "cohere, streamed": ("/v2/chat", "cohere/7.3.1", {"model": "command-r", "messages": HELLO, "max_tokens": 50, "stream": True}),
    "mistral": ("/v1/fim/completions", "mistral-client-python/3.7.0", {"model": "codestral-latest", "prompt": "x", "max_tokens": 50}),
    "ollama": ("/api/chat", "ollama-python/0.6.3", {"model": "llama3.2", "messages": HELLO, "options": {"num_predict": 50}}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_every_provider_counts(provider: StubProvider, name: str) -> None:
    """Gemini, Bedrock, Cohere, Mistral and Ollama count by the usage that they report, streamed or not, and have a
    price."""
    path, agent, body = OTHERS[name]
    budget = Budget(usd=1, output_tokens=80, prices={"llama3.2": Price(1, 1)})
    with record("x", budget=budget) as run, httpx2.Client(headers={"user-agent": agent}) as client:
        for _ in range(3):  # foreseen: 50 each, which two of them would be too much of
            client.post(provider.url + path, json=body).raise_for_status()
    answers = of_type(run, "llm.response")
    spent = of_type(run, "run.completed")[0]["meta"]["budget"]["spent"]
    assert (len(answers), spent["llm_calls"]) == (3, 3)
    assert {answer["meta"]["usage"]["output_tokens"] for answer in answers} < {7, 10}
    assert spent["output_tokens"] == sum(answer["meta"]["usage"]["output_tokens"] for answer in answers)
    assert all(answer["meta"]["cost_usd"] > 0 for answer in answers)


def test_cached_tokens_have_their_own_price(provider: StubProvider) -> None:
    """Tokens read from a cache, written to it, or neither have their prices from the price list, be it the package's or
    the user's."""
    with record("package", budget=Budget(usd=1)) as first:
        anthropic_message(provider.url)
    with record("own", budget=Budget(usd=1, prices=PRICES)) as second:
        anthropic_message(provider.url)
    costs = [of_type(run, "llm.response")[0]["meta"]["cost_usd"] for run in (first, second)]
    assert costs == [pytest.approx((12 * 3 + 5 * 0.3 + 2 * 3.75 + 6 * 15) / 1e6)] * 2


def test_an_unknown_model_is_refused_before_the_call(provider: StubProvider) -> None:
    """With a limit in dollars, a request to a model without a known price is not sent, not even by the SDK's retries."""

    def program() -> None:
        with openai.OpenAI(base_url=provider.url + "/v1", api_key="k") as client:
            client.chat.completions.create(model="house-model", messages=[{"role": "user", "content": "hello"}])

    with pytest.raises(UnknownPriceError, match="house-model"), record("x", budget=Budget(usd=1)) as run:
        program()
    assert reached(provider) == 0
    with pytest.raises(UnknownPriceError), replay(run):
        program()


def test_thirty_two_threads_can_not_overshoot(provider: StubProvider) -> None:
    """Of 32 simultaneous requests with 5 allowed, 5 reach the server."""

    def one(_: int) -> int:
        try:
            openai_chat(provider.url)
        except BudgetExceededError:
            return 0
        return 1

    def program() -> int:
        with ThreadPoolExecutor(32) as pool:
            return sum(pool.map(one, range(32)))

    with pytest.warns(RuntimeWarning, match="exceeded"), record("x", budget=Budget(llm_calls=5)) as run:
        assert program() == 5
    assert reached(provider) == 5
    with replay(run):
        assert program() == 5
    assert reached(provider) == 5


def test_what_the_provider_refuses_costs_nothing_but_a_call(provider: StubProvider) -> None:
    """Each retry of the SDK counts as a call; an error answer counts no tokens and no price."""
    with record("x", budget=Budget(usd=1, llm_calls=3, output_tokens=70)) as run:
        openai_chat(provider.url, extra_headers={"x-stub": "429,503"})
    spent = of_type(run, "run.completed")[0]["meta"]["budget"]["spent"]
    assert (spent["llm_calls"], spent["output_tokens"]) == (3, 7)
    assert [answer["meta"]["cost_usd"] > 0 for answer in of_type(run, "llm.response")] == [False, False, True]


def test_a_stream_that_tells_no_usage_counts_as_foreseen(provider: StubProvider) -> None:
    """A stream that reports no usage counts with what it was allowed to use."""
    with record("x", budget=Budget(output_tokens=120)) as run:
        openai_chat(provider.url, stream=True)
        openai_chat(provider.url, stream=True)
    assert of_type(run, "run.completed")[0]["meta"]["budget"]["spent"]["output_tokens"] == 100


def test_the_last_call_may_take_more_than_was_foreseen(provider: StubProvider) -> None:
    """A call may use more than was estimated, and the next one is then refused."""

    def program(count: int) -> None:
        with openai.OpenAI(base_url=provider.url + "/v1", api_key="k") as client:
            for _ in range(count):
                client.chat.completions.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hello"}])

    with pytest.raises(BudgetExceededError) as raised, record("x", budget=Budget(output_tokens=5)):
        program(2)
    assert (raised.value.spent, reached(provider)) == (7, 1)
    with pytest.warns(RuntimeWarning, match="took more"), record("y", budget=Budget(output_tokens=5)) as run:
        program(1)
    assert of_type(run, "run.completed")[0]["meta"]["budget"]["exceeded"] == ["output_tokens"]


def test_a_replay_says_what_the_run_cost(provider: StubProvider) -> None:
    """A replay reports the recorded usage and cost, with or without a limit in dollars, and costs nothing itself."""

    def recorded(**options: Any) -> Run:
        with record("x", **options) as run:
            openai_chat(provider.url)
        return run

    told = []
    for run in (recorded(), recorded(budget=Budget(usd=1))):
        with replay(run) as session:
            openai_chat(provider.url)
        assert session.report.cost == 0.0
        told.append(session.report.recorded)
    assert told[0]["cost_usd"] == pytest.approx((7 * 0.15 + 4 * 0.075 + 7 * 0.6) / 1e6)
    assert told[1]["cost_usd"] == told[0]["cost_usd"]
    assert (told[0]["llm_calls"], told[0]["input_tokens"], told[0]["output_tokens"]) == (1, 11, 7)
    assert json.dumps(told)


def test_a_stream_that_reports_nothing_is_not_free(provider: StubProvider) -> None:
    """Without `include_usage` the cost of a stream is unknown, unless a budget estimated it; a refused one cost
    nothing."""

    def taken(**options: Any) -> dict[str, Any]:
        with record("x", **options) as run:
            openai_chat(provider.url, stream=True)
        with replay(run) as session:
            openai_chat(provider.url, stream=True)
        assert session.report.exact
        return session.report.recorded

    told = taken()
    assert (told["unreported"], told["output_tokens"], told["cost_usd"]) == (1, None, None)
    told = taken(budget=Budget(usd=1))
    assert (told["unreported"], told["output_tokens"]) == (0, 50)
    assert told["cost_usd"] > 50 * 0.6 / 1e6
