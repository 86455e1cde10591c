"""The OpenAI wire protocol: chat completions, responses and embeddings."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from ..._reality import time_ns
from .model import NgramModel, count_tokens
from .planner import Conversation
from .wire import Answer, Reply, answer, event, new_id, slices, text_of

__all__ = ["chat_completions", "embeddings", "responses"]

Body = Mapping[str, Any]


# -- chat completions ------------------------------------------------------------------------------------------


def chat_completions(body: Body, model: NgramModel) -> Reply:
    """``POST /v1/chat/completions``, whole or streamed."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 1024
    said = answer(model, _chat(body), prefix="call_", limit=limit, temperature=_temperature(body))
    head = {
        "id": new_id("chatcmpl-"),
        "created": time_ns() // 1_000_000_000,
        "model": body["model"],
        "system_fingerprint": "fp_ngram",
    }
    if body.get("stream"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return Reply(events=_chat_events(head, said, usage))
    message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
    if said.tools:
        message["tool_calls"] = [_call(*tool) for tool in said.tools]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(said)}
    return Reply({**head, "object": "chat.completion", "choices": [choice], "usage": _chat_usage(said)})


def _chat(body: Body) -> Conversation:
    messages = body["messages"]
    last = max((at for at, each in enumerate(messages) if each["role"] == "user"), default=0)
    since = messages[last:]
    called = [call["function"]["name"] for each in since for call in each.get("tool_calls") or ()]
    results = [text_of(each.get("content")) for each in since if each["role"] == "tool"]
    tools = {
        tool["function"]["name"]: tool["function"].get("parameters") or {}
        for tool in body.get("tools") or ()
        if tool.get("type") == "function"
    }
    prompt = " ".join(text_of(each.get("content")) for each in messages)
    return Conversation(prompt, text_of(messages[last].get("content")), tools, called, results, _choice(body))


def _choice(body: Body) -> str:
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, Mapping):
        return str((choice.get("function") or choice).get("name", "auto"))
    return "any" if choice == "required" else str(choice)


def _chat_events(head: Body, said: Answer, usage: bool) -> Iterator[bytes]:
    def chunk(delta: Body, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(
            {**head, "object": "chat.completion.chunk", "choices": [choice], **({"usage": None} if usage else {})}
        )

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for piece in said.pieces:
        yield chunk({"content": piece})
    for index, (id_, name, arguments) in enumerate(said.tools):
        yield chunk({"tool_calls": [{"index": index, **_call(id_, name, "")}]})
        for piece in slices(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(said))
    if usage:
        yield event({**head, "object": "chat.completion.chunk", "choices": [], "usage": _chat_usage(said)})
    yield event("[DONE]")


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _finish(said: Answer) -> str:
    return "tool_calls" if said.tools else "length" if said.cut else "stop"


def _chat_usage(said: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": said.output_tokens,
        "total_tokens": said.prompt_tokens + said.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _temperature(body: Body) -> float:
    given = body.get("temperature")
    return 1.0 if given is None else float(given)


# -- responses ------------------------------------------------------------------------------------------


def responses(body: Body, model: NgramModel) -> Reply:
    """``POST /v1/responses``, whole or streamed: text and function calls."""
    limit = body.get("max_output_tokens") or 60
    said = answer(model, _input(body), prefix="call_", limit=limit, temperature=_temperature(body))
    items = _items(said)
    head = {
        "id": new_id("resp_"), "object": "response", "created_at": time_ns() // 1_000_000_000, "model": body["model"],
        "instructions": body.get("instructions"), "metadata": body.get("metadata") or {}, "error": None,
        "parallel_tool_calls": True, "tool_choice": body.get("tool_choice", "auto"), "tools": body.get("tools") or [],
        "temperature": _temperature(body), "top_p": 1.0, "incomplete_details": None,
    }  # fmt: skip
    done = {**head, "status": "completed", "output": items, "usage": _usage(said)}
    if said.cut:
        done |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    if body.get("stream"):
        return Reply(
            events=_response_events({**head, "status": "in_progress", "output": [], "usage": None}, done, said)
        )
    return Reply(done)


def _input(body: Body) -> Conversation:
    given = body.get("input") or ""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    last = max((at for at, each in enumerate(items) if each.get("role") == "user"), default=0)
    since = items[last:]
    called = [each["name"] for each in since if each.get("type") == "function_call"]
    results = [text_of(each.get("output")) for each in since if each.get("type") == "function_call_output"]
    tools = {
        tool["name"]: tool.get("parameters") or {} for tool in body.get("tools") or () if tool["type"] == "function"
    }
    prompt = " ".join([text_of(body.get("instructions")), *(text_of(each.get("content")) for each in items)])
    user = text_of(items[last].get("content")) if items else ""
    return Conversation(prompt, user, tools, called, results, _choice(body))


def _items(said: Answer) -> list[dict[str, Any]]:
    part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
    message = {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    calls = [
        {"id": new_id("fc_"), "type": "function_call", "status": "completed", "call_id": id_, "name": name,
         "arguments": arguments}
        for id_, name, arguments in said.tools
    ]  # fmt: skip
    return [message, *calls]


def _response_events(begun: Body, done: Body, said: Answer) -> Iterator[bytes]:
    number = iter(range(1_000_000))

    def send(name: str, /, **fields: Any) -> bytes:
        return event({"type": name, "sequence_number": next(number), **fields}, name)

    yield send("response.created", response=begun)
    yield send("response.in_progress", response=begun)
    for index, item in enumerate(done["output"]):
        open_item = {**item, "status": "in_progress", **({"content": []} if "content" in item else {"arguments": ""})}
        yield send("response.output_item.added", output_index=index, item=open_item)
        where: dict[str, Any] = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            where["content_index"] = 0
            part = item["content"][0]
            yield send("response.content_part.added", **where, part={**part, "text": ""})
            for piece in said.pieces:
                yield send("response.output_text.delta", **where, delta=piece, logprobs=[])
            yield send("response.output_text.done", **where, text=said.text, logprobs=[])
            yield send("response.content_part.done", **where, part=part)
        else:
            for piece in slices(item["arguments"]):
                yield send("response.function_call_arguments.delta", **where, delta=piece)
            yield send("response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
        yield send("response.output_item.done", output_index=index, item=item)
    yield send("response.incomplete" if said.cut else "response.completed", response=done)


def _usage(said: Answer) -> dict[str, Any]:
    return {
        "input_tokens": said.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": said.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": said.prompt_tokens + said.output_tokens,
    }


# -- embeddings ------------------------------------------------------------------------------------------


def embeddings(body: Body, model: NgramModel) -> Reply:
    """``POST /v1/embeddings``: hashed words, a unit vector; equal texts are equal, similar ones are near."""
    given = body["input"]
    texts = [given] if isinstance(given, str) else [item if isinstance(item, str) else str(item) for item in given]
    size = body.get("dimensions") or 64
    vectors = [_vector(text, size) for text in texts]
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _packed(v) if body.get("encoding_format") == "base64" else v,
        }
        for index, v in enumerate(vectors)
    ]
    used = sum(map(count_tokens, texts))
    usage = {"prompt_tokens": used, "total_tokens": used}
    return Reply({"object": "list", "model": body["model"], "data": data, "usage": usage})


def _vector(text: str, size: int) -> list[float]:
    vector = [0.0] * size
    for word in text.lower().split() or [""]:
        digest = hashlib.sha256(word.encode()).digest()
        vector[int.from_bytes(digest[:4], "big") % size] += 1.0 if digest[4] & 1 else -1.0
    length = sum(value * value for value in vector) ** 0.5 or 1.0
    return [value / length for value in vector]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
