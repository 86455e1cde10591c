"""The dialects of Gemini, Bedrock, Ollama, Cohere and Mistral, on the shapes that the services document and send."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.wires import binary_event
from tracekit.integration import Claim, Dialect, Reading, discover, stream_events
from tracekit_anthropic._messages import Messages
from tracekit_bedrock._bedrock import Converse, Invoke
from tracekit_cohere._cohere import Chat as CohereChat
from tracekit_cohere._cohere import Embed as CohereEmbed
from tracekit_cohere._cohere import FirstChat, Rerank
from tracekit_cohere._cohere import Generate as CohereGenerate
from tracekit_google._gemini import Embed as GeminiEmbed
from tracekit_google._gemini import Generate as Gemini
from tracekit_google._gemini import Predict
from tracekit_mistral._mistral import Agents, Fim
from tracekit_mistral._mistral import Chat as MistralChat
from tracekit_ollama._ollama import Chat as OllamaChat
from tracekit_ollama._ollama import Embed as OllamaEmbed
from tracekit_ollama._ollama import Generate as OllamaGenerate

NEW = ("google", "bedrock", "ollama", "cohere", "mistral")
DIALECTS: list[Dialect] = [dialect for name in NEW for dialect in discover()[name].dialects]
EVERY: list[Dialect] = [dialect for integration in discover().values() for dialect in integration.dialects]
MESSAGES = [{"role": "user", "content": "hello"}]
CONTENTS = [{"role": "user", "parts": [{"text": "hello"}]}]
VERTEX = "/v1beta1/projects/p/locations/us-central1/publishers"


def sse(*values: Any, named: bool = False) -> bytes:
    lines = [f"event: {value['type']}\n" if named else "" for value in values]
    return "".join(f"{line}data: {json.dumps(v)}\r\n\r\n" for line, v in zip(lines, values, strict=True)).encode()


def ndjson(*values: Any) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


def binary(*values: Mapping[str, Any]) -> bytes:
    """Events of Bedrock: each value has the event's name as its only key."""
    return b"".join(binary_event(name, json.dumps(data).encode()) for value in values for name, data in value.items())


def wrapped(*values: Any) -> bytes:
    """Pieces of a model's own stream inside events of Bedrock."""
    return binary(
        *(
            {"chunk": {"bytes": b64encode(json.dumps(v, separators=(",", ":")).encode()).decode(), "p": "abc"}}
            for v in values
        )
    )


def asked(dialect: Dialect, path: str, body: Any) -> Claim:
    assert dialect.claims("POST", path, True)
    claim = dialect.request(path, body)
    assert claim is not None
    return claim


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", {"contents": CONTENTS}, ["gemini.generate_content"]),
        ("/v1beta/models/gemini-3-pro:streamGenerateContent", {"contents": CONTENTS}, ["gemini.generate_content"]),
        (f"{VERTEX}/google/models/gemini-3-pro:generateContent", {"contents": CONTENTS}, ["gemini.generate_content"]),
        ("/v1beta/models/gemini-3-pro:generateContent", {"text": "x"}, []),
        ("/v1beta/models/gemini-3-pro:countTokens", {"contents": CONTENTS}, []),
        ("/v1beta/models/gemini-3-pro:batchGenerateContent", {"batch": {}}, []),
        ("/v1beta/models/gemini-embedding-001:batchEmbedContents", {"requests": []}, ["gemini.embed_content"]),
        (f"{VERTEX}/google/models/text-embedding-005:predict", {"instances": [{"content": "x"}]}, ["gemini.predict"]),
        ("/v1/projects/p/locations/l/endpoints/7:predict", {"instances": [{"x": 1}]}, []),
        ("/model/amazon.nova-lite-v1%3A0/converse", {"messages": MESSAGES}, ["bedrock.converse"]),
        ("/model/amazon.nova-lite-v1%3A0/converse-stream", {"messages": MESSAGES}, ["bedrock.converse"]),
        ("/model/meta.llama3-8b/invoke", {"prompt": "x"}, ["bedrock.invoke"]),
        ("/model/anthropic.claude-v2/invoke", {"prompt": "x", "anthropic_version": "b"}, ["bedrock.invoke"]),
        ("/model/anthropic.claude-4/invoke", {"messages": MESSAGES, "anthropic_version": "b", "max_tokens": 1}, ["anthropic.messages"]),
        ("/model/openai.gpt-oss/invoke", {"model": "m", "messages": MESSAGES, "max_tokens": 1}, ["bedrock.invoke"]),
        ("/model/m/count-tokens", {"input": {}}, []),
        ("/api/chat", {"model": "llama3.2", "messages": MESSAGES}, ["ollama.chat"]),
        ("/api/generate", {"model": "llama3.2", "prompt": "x"}, ["ollama.generate"]),
        ("/api/generate", {"model": "llama3.2", "keep_alive": 0}, []),
        ("/api/embed", {"model": "all-minilm", "input": ["x"]}, ["ollama.embed"]),
        ("/api/pull", {"model": "llama3.2"}, []),
        ("/v2/chat", {"model": "command-a", "messages": MESSAGES}, ["cohere.chat"]),
        ("/v1/chat", {"message": "hello"}, ["cohere.chat_v1"]),
        ("/v1/generate", {"prompt": "hello"}, ["cohere.generate"]),
        ("/v2/embed", {"model": "embed-v4.0", "texts": ["x"]}, ["cohere.embed"]),
        ("/v2/rerank", {"model": "rerank-v3.5", "query": "q", "documents": ["x"]}, ["cohere.rerank"]),
        ("/v1/tokenize", {"text": "x", "model": "m"}, []),
        ("/v1/fim/completions", {"model": "codestral", "prompt": "def f("}, ["mistral.fim"]),
        ("/v1/agents/completions", {"agent_id": "ag_1", "messages": MESSAGES}, ["mistral.agents"]),
        (f"{VERTEX}/mistralai/models/mistral-small-2503:rawPredict", {"model": "mistral-small-2503", "messages": MESSAGES, "max_tokens": 3},
         ["mistral.chat"]),
    ],
)  # fmt: skip
def test_claims(path: str, body: Any, names: list[str]) -> None:
    """A request of a service's own is a model call only if path and body both say so; exactly one dialect takes it."""
    found = []
    for integration in discover().values():
        own = integration.name in NEW
        found += [d.name for d in integration.dialects if d.claims("POST", path, own) and d.request(path, body)]
    assert [name for name in found if name != "openai.completions"] == names


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "body",
    [None, "text", [], {}, {"choices": None}, 3, {"usage": 7}, {"candidates": [3]}, {"message": 3, "output": 4, "meta": 5},
     {"embeddings": 0, "predictions": [1, {"embeddings": 2}], "outputs": [3], "results": 0},
     b"", b"data: [DO", b"{\"event_ty", b"[{", b"\0\0\0\x20\0\0", b"\0\0\0\x10\0\0\0\0abcdefgh", b"\0\0\0\x14\0\0\0\x04abcd\x02xx\x63wxyz"],
)  # fmt: skip
def test_a_malformed_answer_is_read_without_an_error(dialect: Dialect, body: Any) -> None:
    """A body that no provider should send (cut off, damaged, of another kind) is read as having nothing in it."""
    assert isinstance(dialect.read(body), Reading)
    if isinstance(body, bytes):
        assert dialect.stream([body]) == {}
        assert not dialect.finished(body)
    else:
        assert isinstance(dialect.response(body, {}), dict)
    for path in (
        "/v1/models/m:predict",
        "/v1/models/m:generateContent",
        "/model/m/invoke",
        "/model/m/converse",
        "/v1/chat",
    ):
        claim = dialect.request(path, body)
        assert claim is None or isinstance(claim.model, str)


def test_names_differ() -> None:
    """Every dialect has a name of its own; a trace names it."""
    names = [dialect.name for dialect in EVERY]
    assert len({*names}) == len(names)


# -- binary events -------------------------------------------------------------------------------------------------------


def test_binary_events() -> None:
    """Events in AWS's binary form are read whatever other headers they have; a cut one, and what follows damage, is left out."""
    odd = {":date": (8, b"\0" * 8), "flag": (0, b""), "n": (4, b"\0" * 4), ":event-type": "late", "raw": (6, b"xy")}
    stream = binary_event("first", b"{}") + binary_event("", b"two", headers=odd)
    exception = binary_event(
        "", b"{}", headers={":message-type": "exception", ":exception-type": "throttlingException"}
    )
    assert list(stream_events(stream + exception)) == [
        ("first", b"{}"),
        ("late", b"two"),
        ("throttlingException", b"{}"),
    ]
    assert list(stream_events(stream[:-1])) == [("first", b"{}")]
    assert list(stream_events(stream[:40] + b"\xff" * 60))[1:] == []


# -- Gemini --------------------------------------------------------------------------------------------------------------

GEMINI_USAGE = {
    "promptTokenCount": 100, "cachedContentTokenCount": 64, "candidatesTokenCount": 20, "thoughtsTokenCount": 30,
    "toolUsePromptTokenCount": 5, "totalTokenCount": 155,
}  # fmt: skip
COUNTED = {"input_tokens": 105, "output_tokens": 50, "cache_read_input_tokens": 64, "reasoning_output_tokens": 30}


def gemini(*parts: Any, reason: str | None = None, **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    finish = {"finishReason": reason} if reason else {}
    return {"candidates": [candidate | finish], "modelVersion": "gemini-3-pro", "responseId": "r1", **more}


def test_gemini() -> None:
    """Text, thoughts, function calls, usage and finish reason of Gemini, streamed (in either form) or not."""
    call = {"functionCall": {"name": "weather", "args": {"city": "Paris"}}, "thoughtSignature": "c2ln"}
    pieces = [
        gemini({"text": "Hm.", "thought": True}),
        gemini({"text": "Let me "}, usageMetadata={"promptTokenCount": 100, "candidatesTokenCount": 2}),
        gemini({"text": "look."}, call, reason="STOP", usageMetadata=GEMINI_USAGE),
    ]
    whole = gemini(
        {"text": "Hm.", "thought": True}, {"text": "Let me look."}, call, reason="STOP", usageMetadata=GEMINI_USAGE
    )
    meta = {"model": "gemini-3-pro", "id": "r1", "finish_reasons": ["STOP"], "usage": COUNTED}
    for body in (whole, sse(*pieces), json.dumps(pieces, indent=1).encode()):
        reading = Gemini().read(body)
        assert (reading.text, reading.reasoning, reading.refusal) == ("Let me look.", "Hm.", None)
        assert reading.tool_calls == [{"id": None, "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta == meta
    assert Gemini().stream([sse(*pieces)[:90], sse(*pieces)[90:]]) == meta
    assert Gemini().finished(sse(*pieces)[-600:])
    assert not Gemini().finished(sse(*pieces[:2]))


@pytest.mark.parametrize(
    ("body", "refusal", "reasons"),
    [
        ({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}, "SAFETY", ["SAFETY"]),
        (gemini({"text": "I"}, reason="PROHIBITED_CONTENT"), "PROHIBITED_CONTENT", ["PROHIBITED_CONTENT"]),
        ({"candidates": [{"finishReason": "RECITATION", "finishMessage": "too close"}]}, "too close", ["RECITATION"]),
        (gemini({"text": "long"}, reason="MAX_TOKENS"), None, ["MAX_TOKENS"]),
    ],
)
def test_gemini_refuses(body: Any, refusal: str | None, reasons: list[str]) -> None:
    """A prompt that was blocked and an answer that was withheld are refusals."""
    reading = Gemini().read(body)
    assert (reading.refusal, reading.meta["finish_reasons"]) == (refusal, reasons)


def test_gemini_request() -> None:
    """Model, parameters and safety settings of Gemini, in both spellings; Vertex AI is another provider."""
    config = {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 50, "candidateCount": 2, "stopSequences": ["x"],
              "thinkingConfig": {"thinkingBudget": 0}}  # fmt: skip
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    body = {"contents": CONTENTS, "generationConfig": config, "safetySettings": safety}
    claim = asked(Gemini(), "/v1beta/models/gemini-3-pro:streamGenerateContent", body)
    assert claim.model == "gemini-3-pro"
    assert claim.signature == {
        "stream": True, "temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "n": 2, "thinking": "0",
        "safety": "HARM_CATEGORY_HARASSMENT=BLOCK_NONE",
    }  # fmt: skip
    snake = {"contents": CONTENTS, "generation_config": {"max_output_tokens": 50}}
    assert asked(Gemini(), "/v1/models/m:generateContent", snake).signature == {"max_tokens": 50}
    vertex = asked(Gemini(), f"{VERTEX}/google/models/gemini-3-pro:generateContent", body)
    assert (vertex.model, vertex.info) == ("gemini-3-pro", {"provider": "gcp.vertex_ai"})
    tuned = asked(Gemini(), "/v1beta/tunedModels/mine-1:generateContent", {"contents": []})
    assert tuned.model == "tunedModels/mine-1"


def test_gemini_embeddings() -> None:
    """Embeddings of Gemini, and those of Vertex AI's ``predict``, with the tokens that are counted."""
    assert GeminiEmbed().response({"embeddings": [], "usageMetadata": {"promptTokenCount": 7}}, {}) == {
        "usage": {"input_tokens": 7}
    }
    assert GeminiEmbed().response({"embeddings": [{"values": [1]}]}, {}) == {}
    claim = asked(Predict(), f"{VERTEX}/google/models/text-embedding-005:predict", {"instances": [{"content": "x"}]})
    assert claim.signature == {"operation": "embeddings"}
    predictions = [{"embeddings": {"values": [], "statistics": {"token_count": count}}} for count in (3, 4)]
    assert Predict().response({"predictions": predictions}, {})["usage"] == {"input_tokens": 7}


# -- Bedrock -------------------------------------------------------------------------------------------------------------

CONVERSE_USAGE = {
    "inputTokens": 10,
    "outputTokens": 20,
    "totalTokens": 1130,
    "cacheReadInputTokens": 1000,
    "cacheWriteInputTokens": 100,
}
CONVERSE_COUNTED = {
    "input_tokens": 1110, "output_tokens": 20, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 100,
}  # fmt: skip


def converse_events() -> list[dict[str, Any]]:
    def delta(index: int, part: Any) -> dict[str, Any]:
        return {"contentBlockDelta": {"contentBlockIndex": index, "delta": part}}

    return [
        {"messageStart": {"role": "assistant"}},
        delta(0, {"reasoningContent": {"text": "Hm."}}),
        delta(0, {"reasoningContent": {"signature": "c2ln"}}),
        *(delta(1, {"text": part}) for part in ("Let me ", "look.")),
        {"contentBlockStart": {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "weather"}}}},
        *(delta(2, {"toolUse": {"input": part}}) for part in ('{"city": "P', 'aris"}')),
        {"contentBlockStop": {"contentBlockIndex": 2}},
        {"messageStop": {"stopReason": "tool_use"}},
    ]


def test_converse() -> None:
    """Text, reasoning, tool use, usage (cached tokens are part of the input) and stop reason of Converse, streamed or not."""
    content = [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"text": "Let me look."},
        {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Paris"}}},
    ]
    whole = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use",
        "usage": CONVERSE_USAGE,
    }
    stream = binary(*converse_events(), {"metadata": {"usage": CONVERSE_USAGE, "metrics": {"latencyMs": 7}}})
    for body in (whole, stream):
        reading = Converse().read(body)
        assert (reading.text, reading.reasoning, reading.refusal) == ("Let me look.", "Hm.", None)
        assert reading.tool_calls == [{"id": "t1", "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta == {"finish_reasons": ["tool_use"], "usage": CONVERSE_COUNTED}
    assert Converse().stream([stream[:33], stream[33:]]) == Converse().response(whole, {})
    assert Converse().finished(stream[-300:])
    assert not Converse().finished(binary(*converse_events()))
    cut = Converse().read(stream[: len(stream) // 2])
    assert cut.text == "Let me look."


def test_converse_request() -> None:
    """The path names the model, an inference profile's too; parameters and guardrail are compared."""
    profile = "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.amazon.nova-lite-v1%3A0"
    body = {
        "messages": MESSAGES, "inferenceConfig": {"maxTokens": 50, "temperature": 0.5, "topP": 0.9, "stopSequences": []},
        "guardrailConfig": {"guardrailIdentifier": "g1", "guardrailVersion": "2"},
    }  # fmt: skip
    claim = asked(Converse(), f"/model/{profile}/converse-stream", body)
    assert claim.model == "arn:aws:bedrock:us-east-1:1:inference-profile/us.amazon.nova-lite-v1:0"
    assert claim.signature == {"stream": True, "max_tokens": 50, "temperature": 0.5, "top_p": 0.9, "guardrail": "g1:2"}
    stopped = {"output": {"message": {"content": [{"text": "No."}]}}, "stopReason": "guardrail_intervened"}
    assert Converse().read(stopped).refusal == "No."


HEADERS = {"x-amzn-bedrock-input-token-count": "9", "x-amzn-bedrock-output-token-count": "4"}


@pytest.mark.parametrize(
    ("body", "headers", "text", "reasons", "usage"),
    [
        ({"generation": "Hi", "prompt_token_count": 9, "generation_token_count": 4, "stop_reason": "stop"}, {}, "Hi", ["stop"], (9, 4)),
        ({"inputTextTokenCount": 9, "results": [{"tokenCount": 4, "outputText": "Hi", "completionReason": "FINISH"}]}, {}, "Hi", ["FINISH"],
         (9, 4)),
        ({"outputs": [{"text": "Hi", "stop_reason": "length"}]}, HEADERS, "Hi", ["length"], (9, 4)),
        ({"text": "Hi", "finish_reason": "COMPLETE"}, HEADERS, "Hi", ["COMPLETE"], (9, 4)),
        ({"completion": "Hi", "stop_reason": "stop_sequence"}, HEADERS, "Hi", ["stop_sequence"], (9, 4)),
        ({"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn",
          "usage": {"inputTokens": 9, "outputTokens": 4}}, {}, "Hi", ["end_turn"], (9, 4)),
        ({"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
          "usage": {"prompt_tokens": 9, "completion_tokens": 4}}, {}, "Hi", ["stop"], (9, 4)),
        ({"embeddings": [[1.0]], "id": "e"}, {"x-amzn-bedrock-input-token-count": "9"}, "", None, (9, None)),
    ],
)  # fmt: skip
def test_invoke(body: Any, headers: Any, text: str, reasons: list[str] | None, usage: tuple[int, int | None]) -> None:
    """What the models on Bedrock answer in bodies of their own; who counts nothing is counted by the service's headers."""
    assert Invoke().read(body).text == text
    meta = Invoke().response(body, headers)
    assert meta.get("finish_reasons") == reasons
    assert (meta["usage"]["input_tokens"], meta["usage"].get("output_tokens")) == usage


def test_invoke_streams() -> None:
    """The binary stream of InvokeModel, in the pieces of several makers of models, with the tokens that the service counts."""
    metrics = {
        "amazon-bedrock-invocationMetrics": {"inputTokenCount": 9, "outputTokenCount": 4, "invocationLatency": 7}
    }
    nova = [*converse_events(), {"metadata": {"usage": {"inputTokens": 9, "outputTokens": 4}}}]
    deltas = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in ("Let me ", "look.")]
    streams: list[tuple[bytes, list[str]]] = [
        (wrapped({"generation": "Let me "}, {"generation": "look.", "stop_reason": "stop", **metrics}), ["stop"]),
        (wrapped({"outputText": "Let me look.", "completionReason": "FINISH", **metrics}), ["FINISH"]),
        (wrapped(*nova), ["tool_use"]),
        (wrapped(*deltas, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **metrics}), ["stop"]),
    ]
    for stream, reasons in streams:
        reading = Invoke().read(stream)
        assert (reading.text, reading.meta["finish_reasons"]) == ("Let me look.", reasons)
        assert reading.meta["usage"] == {"input_tokens": 9, "output_tokens": 4}
    assert [Invoke().finished(stream[-900:]) for stream, _ in streams[:2]] == [True, True]
    assert not Invoke().finished(wrapped({"generation": "Let me "}))


def test_invoke_request() -> None:
    """Parameters stand where the model's maker puts them, and what is asked for follows from model and body."""
    titan = {"inputText": "x", "textGenerationConfig": {"maxTokenCount": 50, "temperature": 0.5}}
    claim = asked(Invoke(), "/model/amazon.titan-text-express-v1/invoke", titan)
    assert claim.signature == {"operation": "text_completion", "max_tokens": 50, "temperature": 0.5}
    llama = asked(Invoke(), "/model/meta.llama3-8b/invoke-with-response-stream", {"prompt": "x", "max_gen_len": 50})
    assert llama.signature == {"operation": "text_completion", "stream": True, "max_tokens": 50}
    embed = asked(Invoke(), "/model/amazon.titan-embed-text-v2%3A0/invoke", {"inputText": "x", "dimensions": 256})
    assert (embed.model, embed.signature) == (
        "amazon.titan-embed-text-v2:0",
        {"operation": "embeddings", "dimensions": 256},
    )


def test_claude_on_bedrock() -> None:
    """Claude's stream in Bedrock's binary form reads as it does in events of its own; the service is the provider."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-4",
        "content": [],
        "usage": {"input_tokens": 9},
    }
    pieces = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": t}} for t in ("Hel", "lo")),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 9}},
    ]  # fmt: skip
    inside, plain = Messages().read(wrapped(*pieces)), Messages().read(sse(*pieces, named=True))
    assert (inside.text, inside.meta) == (plain.text, plain.meta)
    assert inside.text == "Hello"
    assert inside.meta["usage"] == {"input_tokens": 9, "output_tokens": 4}
    assert Messages().finished(wrapped(*pieces)[-300:])
    assert not Messages().finished(wrapped(*pieces[:-1]))
    body = {"anthropic_version": "b", "max_tokens": 1, "messages": MESSAGES}
    claim = asked(Messages(), "/model/us.anthropic.claude-4-v1%3A0/invoke", body)
    assert (claim.model, claim.info) == ("us.anthropic.claude-4-v1:0", {"provider": "aws.bedrock"})


# -- Ollama --------------------------------------------------------------------------------------------------------------

OLLAMA_END = {"done": True, "done_reason": "stop", "total_duration": 5, "prompt_eval_count": 9, "eval_count": 4}


def test_ollama() -> None:
    """Text, thinking, tool calls and counts of Ollama's chat, in lines or at once."""
    call = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    lines = [
        {"role": "assistant", "content": "", "thinking": "Hm."},
        {"role": "assistant", "content": "Let me "},
        {"role": "assistant", "content": "look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    stream = ndjson(
        *({"model": "llama3.2", "created_at": "t", "message": line, "done": False} for line in lines),
        {"model": "llama3.2", "created_at": "t", "message": {"role": "assistant", "content": ""}, **OLLAMA_END},
    )
    message = {"role": "assistant", "content": "Let me look.", "thinking": "Hm.", "tool_calls": [call]}
    meta = {"model": "llama3.2", "finish_reasons": ["stop"], "usage": {"input_tokens": 9, "output_tokens": 4}}
    for body in ({"model": "llama3.2", "message": message, **OLLAMA_END}, stream):
        reading = OllamaChat().read(body)
        assert (reading.text, reading.reasoning) == ("Let me look.", "Hm.")
        assert reading.tool_calls == [{"id": None, "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta == meta
    assert OllamaChat().finished(stream[-300:])
    assert not OllamaChat().finished(stream[: stream.rindex(b'{"model')])
    assert OllamaChat().stream([stream[:50]]) == {}
    generated = {"model": "llama3.2", "response": "Hi", "thinking": "Hm.", **OLLAMA_END}
    assert (OllamaGenerate().read(generated).text, OllamaGenerate().read(ndjson(generated)).meta) == ("Hi", meta)
    assert OllamaEmbed().response({"model": "m", "embeddings": [], "prompt_eval_count": 3}, {}) == {
        "model": "m",
        "usage": {"input_tokens": 3},
    }


def test_ollama_request() -> None:
    """Ollama's options are the parameters; the limit of the answer goes by the name that others give it."""
    options = {"temperature": 0.5, "num_predict": 50, "num_ctx": 4096, "stop": ["x"]}
    body = {"model": "llama3.2", "messages": MESSAGES, "stream": False, "think": "low", "options": options}
    assert asked(OllamaChat(), "/api/chat", body).signature == {
        "stream": False, "think": "low", "temperature": 0.5, "max_tokens": 50, "num_ctx": 4096,
    }  # fmt: skip
    assert not OllamaChat().claims("POST", "/api/chat", False)


# -- Cohere --------------------------------------------------------------------------------------------------------------

COHERE_USAGE = {
    "billed_units": {"input_tokens": 9, "output_tokens": 4},
    "tokens": {"input_tokens": 209, "output_tokens": 14},
    "cached_tokens": 5,
}
COHERE_COUNTED = {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 5}


def test_cohere() -> None:
    """Text, thinking, tool calls, what is billed and finish reason of Cohere's chat, streamed or not."""
    call = {"id": "weather_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Let me look."}]
    message = {"role": "assistant", "content": content, "tool_calls": [call]}
    whole = {"id": "c1", "finish_reason": "TOOL_CALL", "message": message, "usage": COHERE_USAGE}

    def delta(kind: str, index: int, part: Any) -> dict[str, Any]:
        return {"type": kind, "index": index, "delta": {"message": part}}

    started = {"id": "weather_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    stream = sse(
        {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant", "content": []}}},
        delta("content-start", 0, {"content": {"type": "thinking", "thinking": ""}}),
        delta("content-delta", 0, {"content": {"thinking": "Hm."}}),
        *(delta("content-delta", 1, {"content": {"text": part}}) for part in ("Let me ", "look.")),
        delta("tool-call-start", 0, {"tool_calls": started}),
        *(delta("tool-call-delta", 0, {"tool_calls": {"function": {"arguments": part}}}) for part in ('{"city":"P', 'aris"}')),
        {"type": "tool-call-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": COHERE_USAGE}},
        named=True,
    )  # fmt: skip
    for body in (whole, stream):
        reading = CohereChat().read(body)
        assert (reading.text, reading.reasoning, reading.refusal) == ("Let me look.", "Hm.", None)
        assert reading.tool_calls == [{"id": "weather_1", "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta == {"id": "c1", "finish_reasons": ["TOOL_CALL"], "usage": COHERE_COUNTED}
    assert CohereChat().finished(stream[-300:])
    refused = {"id": "c1", "finish_reason": "ERROR_TOXIC", "message": {"content": []}}
    assert CohereChat().read(refused).refusal == "ERROR_TOXIC"


def test_cohere_first_version() -> None:
    """The first version of Cohere's API, at once, in lines of JSON, and in events; the last line has the whole answer."""
    called = [{"name": "weather", "parameters": {"city": "Paris"}}]
    meta = {"api_version": {"version": "1"}, "billed_units": {"input_tokens": 9.0, "output_tokens": 4.0}}
    answer = {
        "response_id": "r1",
        "text": "Let me look.",
        "tool_calls": called,
        "finish_reason": "COMPLETE",
        "meta": meta,
    }
    lines = [
        {"event_type": "stream-start", "generation_id": "g1"},
        *({"event_type": "text-generation", "text": part} for part in ("Let me ", "look.")),
        {"event_type": "stream-end", "is_finished": True, "finish_reason": "COMPLETE", "response": answer},
    ]
    for body in (answer, ndjson(*lines), sse(*lines)):
        reading = FirstChat().read(body)
        assert (reading.text, reading.tool_calls[0]["arguments"]) == ("Let me look.", {"city": "Paris"})
        assert reading.meta == {
            "id": "r1",
            "finish_reasons": ["COMPLETE"],
            "usage": {"input_tokens": 9, "output_tokens": 4},
        }
    assert FirstChat().stream([ndjson(*lines)]) == FirstChat().response(answer, {})
    assert FirstChat().finished(ndjson(*lines)[-400:])
    assert FirstChat().read(ndjson(*lines[:3])).text == "Let me look."
    generated = {"id": "g", "generations": [{"id": "1", "text": "Hi"}], "meta": meta}
    assert CohereGenerate().read(generated).text == "Hi"


def test_cohere_counts() -> None:
    """Embeddings are billed in tokens, reranking in searches."""
    assert CohereEmbed().response({"id": "e", "embeddings": {}, "meta": {"billed_units": {"input_tokens": 7}}}, {}) == {
        "id": "e",
        "usage": {"input_tokens": 7},
    }
    reranked = {"id": "r", "results": [], "meta": {"billed_units": {"search_units": 1}}}
    assert Rerank().response(reranked, {}) == {"id": "r", "usage": {"search_units": 1}}
    body = {
        "model": "command-a",
        "messages": MESSAGES,
        "k": 3,
        "p": 0.5,
        "max_tokens": 50,
        "safety_mode": "STRICT",
        "stream": True,
    }
    assert asked(CohereChat(), "/v2/chat", body).signature == {
        "stream": True, "top_k": 3, "top_p": 0.5, "max_tokens": 50, "safety_mode": "STRICT",
    }  # fmt: skip


# -- Mistral -------------------------------------------------------------------------------------------------------------


def test_mistral() -> None:
    """Content in parts, thinking among them, is read as text and reasoning, streamed or not; an agent stands where a model does."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}, "index": 0}
    message = {
        "role": "assistant",
        "content": [thinking, {"type": "text", "text": "Let me look."}],
        "tool_calls": [call],
    }
    whole = {
        "id": "m1",
        "model": "magistral",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": usage,
    }

    def piece(delta: Any, reason: str | None = None, **more: Any) -> dict[str, Any]:
        return {
            "id": "m1",
            "model": "magistral",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
            **more,
        }

    stream = sse(
        piece({"role": "assistant", "content": [thinking]}),
        piece({"content": [{"type": "text", "text": "Let me "}]}), piece({"content": "look."}),
        piece({"content": "", "tool_calls": [call]}, "tool_calls", usage=usage),
    ) + b"data: [DONE]\n\n"  # fmt: skip
    for body in (whole, stream.replace(b"\r", b"")):
        reading = MistralChat().read(body)
        assert (reading.text, reading.reasoning) == ("Let me look.", "Hm.")
        assert reading.tool_calls == [{"id": "c1", "name": "weather", "arguments": {"city": "Paris"}}]
        assert reading.meta == {
            "model": "magistral", "id": "m1", "finish_reasons": ["tool_calls"],
            "usage": {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 5},
        }  # fmt: skip
    claim = asked(Agents(), "/v1/agents/completions", {"agent_id": "ag_1", "messages": MESSAGES, "random_seed": 7})
    assert (claim.model, claim.signature) == ("ag_1", {"random_seed": 7})
    fim = asked(Fim(), "/v1/fim/completions", {"model": "codestral", "prompt": "a", "suffix": "b", "max_tokens": 9})
    assert (fim.model, fim.signature) == ("codestral", {"max_tokens": 9})
