"""The embedded model server: the real SDKs can't tell it from a provider."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from random import Random
from typing import Any

import anthropic
import openai
import pytest

from tracekit.cli.demo.server import Conversation, ModelServer, NgramModel, Tripwire, count_tokens, plan, tokens

ORDER = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
CHARGE = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}, "amount_cents": {"type": "integer"}},
    "required": ["order_id", "amount_cents"],
}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "look_up", "parameters": ORDER}},
    {"type": "function", "function": {"name": "charge", "parameters": CHARGE}},
]


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def gpt(server: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.openai_url, api_key="not-needed", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(server: ModelServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="not-needed", max_retries=0) as client:
        yield client


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


# -- the model ------------------------------------------------------------------------------------------


def test_it_really_samples() -> None:
    """The same prompt gives many different answers."""
    model = NgramModel()
    assert len({model.text("How is the weather?") for _ in range(50)}) > 25


def test_a_seeded_model_repeats_itself() -> None:
    """Its only source of chance is the generator that it is given."""
    first, second = (NgramModel(random=Random(7)).text("the order") for _ in range(2))
    assert first == second


def test_it_respects_the_token_limit() -> None:
    """No answer is longer than asked for, and the pieces are the text."""
    model = NgramModel(random=Random(3))
    for limit in range(1, 30):
        pieces = list(model.pieces("the invoice", max_tokens=limit))
        assert len(pieces) <= limit
        assert tokens("".join(pieces)) == [piece.strip() for piece in pieces]


def test_a_cold_model_does_not_sample() -> None:
    """At temperature 0 the most likely word follows, each time the same, for one to three sentences."""
    model = NgramModel()
    assert len({model.text("the rain", temperature=0) for _ in range(40)}) <= 3


def test_tokens_are_words_and_marks() -> None:
    """Counting is by words and punctuation marks."""
    assert tokens("It can't rain: not A-1!") == ["It", "can't", "rain", ":", "not", "A-1", "!"]
    assert count_tokens("") == 0


# -- the planner ------------------------------------------------------------------------------------------


def test_a_tool_is_called_when_its_arguments_are_known() -> None:
    """What can't be filled yet waits; what an earlier tool answered fills the next; then there is nothing to call."""
    tools = {"look_up": ORDER, "charge": CHARGE}
    first = Conversation("", "Settle order A-1042 at gate 4", tools, [], [])
    assert plan(first, str) == [("look_up", {"order_id": "A-1042"})]
    second = Conversation("", first.user, tools, ["look_up"], [json.dumps({"order_id": "A-1042", "amount_cents": 500})])
    assert plan(second, str) == [("charge", {"order_id": "A-1042", "amount_cents": 500})]
    third = Conversation("", first.user, tools, ["look_up", "charge"], second.results)
    assert plan(third, str) == []


def test_the_choice_of_the_caller_counts() -> None:
    """``none`` calls nothing, a name calls that one, ``any`` calls something even if its arguments must be made up."""
    tools = {"look_up": ORDER, "charge": CHARGE}
    assert plan(Conversation("", "hello", tools, [], [], "none"), str) == []
    assert plan(Conversation("", "order 1234567", tools, [], [], "charge"), lambda: "x") == [
        ("charge", {"order_id": "1234567", "amount_cents": 1})
    ]
    assert plan(Conversation("", "hello", tools, ["look_up"], [], "any"), lambda: "x")[0][0] == "charge"


# -- OpenAI ------------------------------------------------------------------------------------------


def test_openai_chat(gpt: openai.OpenAI) -> None:
    """A chat completion has text, a reason to stop and a usage that adds up."""
    answer = gpt.chat.completions.create(model="tiny", messages=said("How is the weather?"), max_tokens=2000)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    short = gpt.chat.completions.create(model="tiny", messages=said("hello"), max_tokens=2)
    assert short.choices[0].finish_reason == "length"


def test_openai_chat_stream(gpt: openai.OpenAI) -> None:
    """A stream has many pieces, says why it stops, and tells its usage last if asked."""
    events = list(
        gpt.chat.completions.create(
            model="tiny",
            messages=said("the rain"),
            max_tokens=2000,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [event.choices[0].delta.content for event in events if event.choices and event.choices[0].delta.content]
    assert len(pieces) > 1
    assert [event.choices[0].finish_reason for event in events if event.choices][-1] == "stop"
    assert events[-1].usage
    assert events[-1].usage.completion_tokens == len(pieces)
    assert len({event.id for event in events}) == 1


def test_openai_tool_loop(gpt: openai.OpenAI) -> None:
    """Look up, charge, answer in words: a loop over real messages, streamed calls assembled by the SDK's own code."""
    messages = said("Please settle order A-1042")
    answers: dict[str, Any] = {"look_up": {"order_id": "A-1042", "amount_cents": 99}, "charge": {"charged": 99}}
    names = []
    for _ in range(3):
        with gpt.chat.completions.stream(model="tiny", messages=messages, tools=CHAT_TOOLS) as stream:
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            names.append((call.function.name, json.loads(call.function.arguments)))
            text = json.dumps(answers[call.function.name])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    assert names == [("look_up", {"order_id": "A-1042"}), ("charge", {"order_id": "A-1042", "amount_cents": 99})]
    assert message.content


def test_openai_responses(gpt: openai.OpenAI) -> None:
    """Responses, whole and streamed: the helper's final response is the text of the deltas, calls included."""
    tool: Any = {"type": "function", "name": "look_up", "parameters": ORDER, "strict": False}
    whole = gpt.responses.create(model="tiny", input="Find order A-1042", tools=[tool])
    assert whole.status == "completed"
    assert whole.usage
    assert whole.output_text
    assert [item.type for item in whole.output] == ["message", "function_call"]
    with gpt.responses.stream(model="tiny", input="Find order A-1042", tools=[tool]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text
    assert final.output[1].type == "function_call"
    assert final.output[1].arguments == '{"order_id": "A-1042"}'
    cut = gpt.responses.create(model="tiny", input="hello", max_output_tokens=2)
    assert cut.status == "incomplete"


def test_openai_embeddings(gpt: openai.OpenAI) -> None:
    """Embeddings are unit vectors; equal texts are equal, in both encodings."""
    answer = gpt.embeddings.create(model="tiny", input=["the rain", "the rain", "an invoice"], dimensions=32)
    first, second, third = (each.embedding for each in answer.data)
    assert first == second != third
    assert len(first) == 32
    assert sum(value * value for value in first) == pytest.approx(1.0, abs=1e-5)
    plain = gpt.embeddings.create(model="tiny", input="the rain", dimensions=32, encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(first, abs=1e-6)


def test_many_at_once(server: ModelServer) -> None:
    """Gathered calls of an async client are all answered, and the server counts each."""

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.openai_url, api_key="x", max_retries=0) as client:
            calls = (client.chat.completions.create(model="tiny", messages=said("rain")) for _ in range(25))
            return await asyncio.gather(*calls)

    before = server.requests
    assert all(answer.choices[0].message.content for answer in asyncio.run(ask()))
    assert server.requests - before == 25


# -- Anthropic ------------------------------------------------------------------------------------------


def test_anthropic_message(claude: anthropic.Anthropic) -> None:
    """A message has text, a reason to stop and a usage."""
    answer = claude.messages.create(
        model="tiny", max_tokens=50, system="Be short.", messages=said("How is the weather?")
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.input_tokens == count_tokens("Be short. How is the weather?")
    assert claude.messages.create(model="tiny", max_tokens=1, messages=said("hi")).stop_reason == "max_tokens"


def test_anthropic_stream_and_tools(claude: anthropic.Anthropic) -> None:
    """A streamed message with a tool call is assembled by the SDK; the answered call leads to words."""
    tools: Any = [{"name": "look_up", "input_schema": ORDER}]
    messages = said("Where is order A-1042?")
    with claude.messages.stream(model="tiny", max_tokens=50, messages=messages, tools=tools) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    use = final.content[1]
    assert use.type == "tool_use"
    assert use.input == {"order_id": "A-1042"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "on its way"}
    block = {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}
    messages += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(model="tiny", max_tokens=50, messages=messages, tools=tools)
    assert [block.type for block in answer.content] == ["text"]


# -- refusals and the end ------------------------------------------------------------------------------------------


def test_errors_are_the_sdks_own(gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """An unreadable request and an unknown address are the errors that the SDKs know."""
    with pytest.raises(openai.BadRequestError):
        gpt.chat.completions.create(model="tiny", messages=[])
    with pytest.raises(openai.NotFoundError):
        gpt.models.list()
    with pytest.raises(anthropic.NotFoundError):
        claude.models.list()


def test_a_reader_that_leaves_hurts_nobody(gpt: openai.OpenAI) -> None:
    """A stream left after one piece does not disturb the next request."""
    with gpt.chat.completions.create(model="tiny", messages=said("the order"), stream=True) as stream:
        next(iter(stream))
    assert gpt.chat.completions.create(model="tiny", messages=said("the order")).choices


def test_a_stopped_server_is_gone_and_knocks_are_counted() -> None:
    """After the block, kept connections are closed too, nobody answers at the address, and each attempt is seen."""
    with ModelServer() as server:
        client = openai.OpenAI(base_url=server.openai_url, api_key="x", max_retries=0)
        client.chat.completions.create(model="tiny", messages=said("hello"))
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(model="tiny", messages=said("hello"))
    client.close()
    with Tripwire(server.port) as tripwire:
        assert tripwire.touched == 0
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(server.url, timeout=0.2)
        assert tripwire.touched == 1
    assert server.requests == 1
    assert server.paths == ["/v1/chat/completions"]
