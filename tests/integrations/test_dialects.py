"""The dialects of model services, checked on the messages that the services document and send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracekit.integration import Dialect
from tracekit_anthropic._messages import Messages
from tracekit_openai._chat import Chat, Completions, Embeddings
from tracekit_openai._inference import Inference
from tracekit_openai._responses import Responses

DIALECTS: list[Dialect] = [Chat(), Completions(), Responses(), Embeddings(), Inference(), Messages()]


def sse(*events: Any, named: bool = False) -> bytes:
    lines = [f"event: {e['type']}\n" if named else "" for e in events]
    return "".join(f"{line}data: {json.dumps(e)}\n\n" for line, e in zip(lines, events, strict=True)).encode()


def chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-9", "model": "gpt-4o-2024-08-06", "object": "chat.completion.chunk", "choices": [choice]}


def claimed(path: str, body: Any) -> list[str]:
    return [dialect.name for dialect in DIALECTS if dialect.claims("POST", path, False) and dialect.request(path, body)]


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": []}, ["openai.chat"]),
        ("/openai/deployments/gpt4/chat/completions", {"messages": []}, ["openai.chat"]),
        ("/api/v3/chat/completions", {"query": "x"}, []),
        ("/v1/completions", {"model": "m", "prompt": "x"}, ["openai.completions"]),
        ("/v1/responses", {"model": "m", "input": "x"}, ["openai.responses"]),
        ("/v1/responses", {"status": "accepted"}, []),
        ("/v1/embeddings", {"model": "m", "input": "x"}, ["openai.embeddings"]),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": []}, ["anthropic.messages"]),
        ("/v1/messages", {"to": "ada", "text": "x"}, []),
        ("/model/anthropic.claude-v2/invoke", {"anthropic_version": "b", "max_tokens": 1, "messages": []}, ["anthropic.messages"]),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:streamRawPredict",
         {"anthropic_version": "v", "max_tokens": 1, "messages": []}, ["anthropic.messages"]),
        ("/v1/images/generations", {"prompt": "a cat"}, ["openai.inference"]),
        ("/v1/audio/transcriptions", [{"name": "model", "body": "w"}, {"name": "file", "body": b"x"}], ["openai.inference"]),
        ("/v1/audio/transcriptions", [{"name": "note", "body": "w"}], []),
    ],
)  # fmt: skip
def test_claims(path: str, body: Any, names: list[str]) -> None:
    """A request is a model call only if both its path and its body say so, and exactly one dialect takes it."""
    assert claimed(path, body) == names


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@pytest.mark.parametrize("body", [None, "text", [], {}, {"choices": None}, 3, {"usage": 7}, b"", b"data: [DO"])
def test_never_raises(dialect: Dialect, body: Any) -> None:
    """A malformed message is read as nothing, without an error."""
    dialect.read(body)
    if isinstance(body, bytes):
        assert dialect.stream([body]) == {}
        assert not dialect.finished(body)
    else:
        assert isinstance(dialect.response(body, {}), dict)
    assert dialect.request("/v1/models/m:rawPredict/audio/speech", body) is None


def test_azure_model() -> None:
    """Azure's model is taken from the path."""
    claim = Chat().request("/openai/deployments/gpt4/chat/completions", {"messages": [], "temperature": 0.5})
    assert claim is not None
    assert (claim.model, claim.signature) == ("gpt4", {"temperature": 0.5})


def test_vertex_and_bedrock_models() -> None:
    """The models of Bedrock and Vertex are taken from the path."""
    body = {"anthropic_version": "x", "max_tokens": 1, "messages": []}
    paths = ("/model/anthropic.claude-v2%3A1/invoke-with-response-stream", "/v1/x/models/claude@1:rawPredict")
    models = [claim.model for path in paths if (claim := Messages().request(path, body))]
    assert models == ["anthropic.claude-v2:1", "claude@1"]


def test_chat_tool_calls() -> None:
    """Tool calls have parsed arguments, and cached and reasoning tokens are counted."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    body = {
        "id": "chatcmpl-1", "model": "gpt-4o-2024-08-06",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 20, "total_tokens": 110, "prompt_tokens_details": {"cached_tokens": 64},
                  "completion_tokens_details": {"reasoning_tokens": 8}},
    }  # fmt: skip
    reading = Chat().read(body)
    assert reading.tool_calls == [{"id": "call_1", "name": "weather", "arguments": {"city": "Paris"}}]
    assert reading.meta == {
        "model": "gpt-4o-2024-08-06",
        "id": "chatcmpl-1",
        "finish_reasons": ["tool_calls"],
        "usage": {"input_tokens": 90, "output_tokens": 20, "cache_read_input_tokens": 64, "reasoning_output_tokens": 8},
    }


def test_chat_stream() -> None:
    """A stream reads as the message that it adds up to: text, refusal, tool calls in pieces, several choices, and usage
    at the end."""
    start = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "weather", "arguments": ""}}
    stream = sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}), chunk({"content": "W"}, 1), chunk({"content": "lo"}), chunk({"content": "orld"}, 1),
        chunk({"tool_calls": [start]}),
        *(chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}) for part in ('{"ci', 'ty":"P"}')),
        chunk({"refusal": "no"}),
        chunk({}, 0, "tool_calls"), chunk({}, 1, "stop"),
        {**chunk({}), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    ) + b"data: [DONE]\n\n"  # fmt: skip
    reading = Chat().read(stream)
    assert (reading.text, reading.refusal) == ("HelloWorld", "no")
    assert reading.tool_calls == [{"id": "call_1", "name": "weather", "arguments": {"city": "P"}}]
    assert reading.meta["finish_reasons"] == ["tool_calls", "stop"]
    assert reading.meta["usage"] == {"input_tokens": 1, "output_tokens": 2}
    assert Chat().finished(stream[-40:])
    assert Chat().read(stream[:300]).text == "Hel"[: len(Chat().read(stream[:300]).text)]


def test_completions() -> None:
    """The text and finish reasons of the older text completions are read."""
    body = {
        "id": "cmpl-1",
        "model": "gpt-3.5-turbo-instruct",
        "choices": [{"text": "ab", "index": 0, "finish_reason": "length"}],
    }
    reading = Completions().read(body)
    assert (reading.text, reading.meta["finish_reasons"]) == ("ab", ["length"])


RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "status": "completed", "model": "o4-mini-2025-04-16", "incomplete_details": None,
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Think."}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "Hello", "annotations": []}, {"type": "refusal", "refusal": "not that"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Paris"}'},
    ],
    "usage": {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 10}, "output_tokens": 12,
              "output_tokens_details": {"reasoning_tokens": 6}, "total_tokens": 42},
}  # fmt: skip


def test_responses() -> None:
    """Text, refusal, reasoning, tool calls and usage of a response are read, streamed or not."""
    stream = sse({"type": "response.created", "response": {**RESPONSE, "output": []}},
                 {"type": "response.output_item.done", "item": RESPONSE["output"][1]},
                 {"type": "response.completed", "response": RESPONSE}, named=True)  # fmt: skip
    for body in (RESPONSE, stream):
        reading = Responses().read(body)
        assert (reading.text, reading.refusal, reading.reasoning) == ("Hello", "not that", "Think.")
        assert reading.tool_calls == [{"id": "call_1", "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta["usage"] == {
            "input_tokens": 30, "output_tokens": 12, "cache_read_input_tokens": 10, "reasoning_output_tokens": 6
        }  # fmt: skip
    assert Responses().stream([stream[:100], stream[100:]]) == Responses().response(RESPONSE, {})
    assert Responses().finished(stream[-3000:])


def test_cut_response() -> None:
    """A stream that was cut off reads as the items that were complete."""
    stream = sse({"type": "response.output_item.done", "item": RESPONSE["output"][1]}, named=True)
    assert Responses().read(stream).text == "Hello"
    assert Responses().stream([stream]) == {}


def test_incomplete_response() -> None:
    """Why a response is incomplete is its finish reason."""
    body = {**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert Responses().response(body, {})["finish_reasons"] == ["max_output_tokens"]


MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_reason": "tool_use", "stop_sequence": None,
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
    ],
    "usage": {"input_tokens": 10, "output_tokens": 20, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 1000},
}  # fmt: skip


def test_messages() -> None:
    """Text, thinking, tool use and usage of a message are read, streamed or not; cached tokens count as input."""
    start = {**MESSAGE, "content": [], "stop_reason": None, "usage": {**MESSAGE["usage"], "output_tokens": 1}}
    events: list[Any] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    empty = [{"type": "thinking", "thinking": ""}, {"type": "text", "text": ""}, {**MESSAGE["content"][2], "input": {}}]
    deltas: list[Any] = [
        [{"type": "thinking_delta", "thinking": "Hm."}],
        [{"type": "text_delta", "text": text} for text in ("Let me ", "look.")],
        [{"type": "input_json_delta", "partial_json": part} for part in ("", '{"city": "P', 'aris"}')],
    ]
    for index, (block, parts) in enumerate(zip(empty, deltas, strict=True)):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": part} for part in parts]
        events.append({"type": "content_block_stop", "index": index})
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 20},
        }
    )
    stream = sse(*events, {"type": "message_stop"}, named=True)
    for body in (MESSAGE, stream):
        reading = Messages().read(body)
        assert (reading.text, reading.reasoning) == ("Let me look.", "Hm.")
        assert reading.tool_calls == [{"id": "toolu_1", "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta["finish_reasons"] == ["tool_use"]
        assert reading.meta["usage"] == {
            "input_tokens": 1110, "output_tokens": 20, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 100
        }  # fmt: skip
    assert Messages().finished(stream[-200:])


def test_a_model_that_refuses_is_recorded_as_refusing() -> None:
    """A message in which a model refuses is recognised as a refusal."""
    body = {**MESSAGE, "stop_reason": "refusal", "content": [{"type": "text", "text": "I can't."}]}
    assert Messages().read(body).refusal == "I can't."


def test_error_bodies() -> None:
    """An error of a service yields no metadata."""
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert all(not dialect.response(error, {}) for dialect in DIALECTS)
