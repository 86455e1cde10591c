"""The Anthropic wire protocol: messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .model import NgramModel
from .planner import Conversation
from .wire import Answer, Reply, answer, event, new_id, slices, text_of

__all__ = ["messages"]

Body = Mapping[str, Any]


def messages(body: Body, model: NgramModel) -> Reply:
    """``POST /v1/messages``, whole or streamed: text and tool use."""
    temperature = body.get("temperature")
    said = answer(
        model,
        _conversation(body),
        prefix="toolu_",
        limit=body["max_tokens"],
        temperature=1.0 if temperature is None else float(temperature),
    )
    head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": body["model"]}
    if body.get("stream"):
        return Reply(events=_events(head, said))
    content: list[dict[str, Any]] = [{"type": "text", "text": said.text}]
    content += [
        {"type": "tool_use", "id": id_, "name": name, "input": json.loads(text)} for id_, name, text in said.tools
    ]
    usage = _usage(said, said.output_tokens)
    return Reply({**head, "content": content, "stop_reason": _stop(said), "stop_sequence": None, "usage": usage})


def _conversation(body: Body) -> Conversation:
    sent = [(each["role"], _blocks(each["content"])) for each in body["messages"]]
    last = max((at for at, (role, blocks) in enumerate(sent) if role == "user" and _speaks(blocks)), default=0)
    since = [block for _, blocks in sent[last:] for block in blocks]
    called = [block["name"] for block in since if block["type"] == "tool_use"]
    results = [text_of(block.get("content")) for block in since if block["type"] == "tool_result"]
    tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools") or () if "input_schema" in tool}
    prompt = " ".join([text_of(body.get("system")), *(text_of(blocks) for _, blocks in sent)])
    choice = body.get("tool_choice") or {"type": "auto"}
    user = text_of(sent[last][1]) if sent else ""
    return Conversation(prompt, user, tools, called, results, choice.get("name") or choice["type"])


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _speaks(blocks: list[Any]) -> bool:
    return any(block["type"] == "text" for block in blocks)


def _events(head: Body, said: Answer) -> Iterator[bytes]:
    def send(name: str, /, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(said, 1)}
    yield send("message_start", message=begun)
    yield send("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield send("ping")
    for piece in said.pieces:
        yield send("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield send("content_block_stop", index=0)
    for index, (id_, name, text) in enumerate(said.tools, 1):
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        yield send("content_block_start", index=index, content_block=block)
        for piece in slices(text):
            yield send("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
        yield send("content_block_stop", index=index)
    delta = {"stop_reason": _stop(said), "stop_sequence": None}
    yield send("message_delta", delta=delta, usage={"output_tokens": said.output_tokens})
    yield send("message_stop")


def _stop(said: Answer) -> str:
    return "tool_use" if said.tools else "max_tokens" if said.cut else "end_turn"


def _usage(said: Answer, output: int) -> dict[str, int]:
    return {
        "input_tokens": said.prompt_tokens,
        "output_tokens": output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
