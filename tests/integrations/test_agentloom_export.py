"""Recorded calls of the real SDKs, exported as a recording of agentloom, which finds each answer by its request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integrations.scenarios import ASK, anthropic, openai
from tests.support.stub_provider import StubProvider
from tracekit import record
from tracekit.agents import agentloom
from tracekit.integration import Store

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "search", "description": "find", "parameters": {"type": "object"}}}
]


def exported(run: Any) -> agentloom.Recording:
    with Store().files(run) as traces:
        return agentloom.loads(agentloom.exported(*traces).dumps())


@pytest.mark.usefixtures("instrumented")
def test_answers_of_the_sdks_are_found_by_their_request(provider: StubProvider) -> None:
    """The export has the text, model and tokens that the program saw from OpenAI and Anthropic, whole and streamed."""
    with record("sdks") as run:
        chat = openai(provider.url).chat.completions.create(model="gpt-test", messages=ASK, temperature=0)
        pieces = openai(provider.url).chat.completions.create(model="gpt-test", messages=ASK, stream=True)
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        claude = anthropic(provider.url).messages.create(model="claude-test", max_tokens=50, messages=ASK)
    with exported(run).replay() as model:
        first = model.complete(ASK, "gpt-test", 0)
        assert first["content"] == chat.choices[0].message.content
        assert first["usage"]["prompt_tokens"] == chat.usage.prompt_tokens
        assert first["model"] == chat.model
        assert model.complete(ASK, "gpt-test", stream=True)["content"] == streamed
        told = "".join(block.text for block in claude.content if block.type == "text")
        assert model.complete(ASK, "claude-test", None, 50)["content"] == told


@pytest.mark.usefixtures("instrumented")
def test_calls_of_tools_are_kept(provider: StubProvider) -> None:
    """An answer that calls tools keeps these calls with their arguments."""
    with record("tools") as run:
        client = openai(provider.url)
        chat = client.chat.completions.create(model="gpt-test", messages=ASK, tools=TOOLS)
    made = chat.choices[0].message.tool_calls or []
    turn = exported(run).replay().complete(ASK, "gpt-test", tools=TOOLS)
    told = [(call["id"], call["name"], call["arguments"]) for call in turn.get("tool_calls", [])]
    assert told == [(call.id, call.function.name, json.loads(call.function.arguments)) for call in made]
    assert told
