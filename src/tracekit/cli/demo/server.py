"""The scripted provider of the demonstration: OpenAI's and Anthropic's wire formats on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random, SystemRandom
from time import sleep
from types import TracebackType
from typing import Any, Final

from ..._reality import time_ns

__all__ = [
    "Answer",
    "Conversation",
    "ModelServer",
    "NgramModel",
    "Reply",
    "ToolUse",
    "Tripwire",
    "answer",
    "chat_completions",
    "count_tokens",
    "embeddings",
    "event",
    "messages",
    "new_id",
    "plan",
    "responses",
    "text_of",
    "tokens",
]

# -- planner -----------------------------------------------------------------------------------------------------------
#
# Which tools the model calls next, and with what: a few rules that read the conversation.
#
# A tool is called once, as soon as each of its required arguments is found in the user's text or in an earlier
# tool's answer. That is enough for a real loop: look up first, act on the result, then report.

_CODE: Final = re.compile(r"\b[A-Z][A-Z0-9]*-\d+\b|\b\d{6,}\b")
_NUMBER: Final = re.compile(r"(?<![\w-])\d+(?:\.\d+)?(?![\w-])")
_QUOTED: Final = re.compile(r"[\"“']([^\"”']+)[\"”']")

#: A tool's name and the arguments it is called with.
ToolUse = tuple[str, dict[str, Any]]


class Conversation:
    """A conversation as both wire protocols express it.

    ``prompt`` is all text that was sent, ``user`` the last user text, ``tools`` the JSON Schema of the arguments by
    tool name, ``called`` the tools called since that text, ``results`` their answers as text. ``choice`` is ``"auto"``,
    ``"none"``, ``"any"`` or a tool's name.
    """

    def __init__(
        self,
        prompt: str,
        user: str,
        tools: Mapping[str, Mapping[str, Any]],
        called: list[str],
        results: list[str],
        choice: str = "auto",
    ) -> None:
        self.prompt: Final = prompt
        self.user: Final = user
        self.tools: Final = tools
        self.called: Final = called
        self.results: Final = results
        self.choice: Final = choice


def plan(talk: Conversation, words: Callable[[], str]) -> list[ToolUse]:
    """The tools to call now, or none: then the model answers in text. ``words`` supplies text where none is found."""
    if talk.choice == "none":
        return []
    if talk.choice in talk.tools:
        return [(talk.choice, _arguments(talk, talk.choice, words))]
    waiting = [name for name in talk.tools if name not in talk.called]
    grounded = [name for name in waiting if _missing(talk, name) == 0]
    if not grounded and waiting and (talk.choice == "any" or not talk.called):
        grounded = [min(waiting, key=lambda name: _missing(talk, name))]
    return [(name, _arguments(talk, name, words)) for name in grounded]


def _arguments(talk: Conversation, tool: str, words: Callable[[], str]) -> dict[str, Any]:
    schema = talk.tools[tool]
    required = set(schema.get("required", ()))
    filled: dict[str, Any] = {}
    for name, kind in schema.get("properties", {}).items():
        value = _find(talk, name, kind)
        if value is None and name in required:
            value = _invent(kind, words)
        if value is not None:
            filled[name] = value
    return filled


def _missing(talk: Conversation, tool: str) -> int:
    schema = talk.tools[tool]
    properties = schema.get("properties", {})
    return sum(_find(talk, name, properties.get(name, {})) is None for name in schema.get("required", ()))


def _find(talk: Conversation, name: str, kind: Mapping[str, Any]) -> Any:
    """The value of argument ``name`` in the tools' answers, newest first, or in the user's text, or ``None``."""
    for result in reversed(talk.results):
        for key, value in _members(result):
            if key == name and _fits(value, kind):
                return value
    if "enum" in kind:
        return next((item for item in kind["enum"] if str(item).lower() in talk.user.lower()), None)
    return _in_text(talk.user, name, kind.get("type"))


def _in_text(text: str, name: str, type_: object) -> Any:
    if type_ in ("integer", "number"):
        found = _NUMBER.findall(_CODE.sub(" ", text)) if _named(text, name) else []
        if not found:
            return None
        return int(float(found[0])) if type_ == "integer" else float(found[0])
    if type_ == "string":
        codes = _CODE.findall(text) if name.endswith(("id", "number", "no")) else []
        return next(iter(codes or _QUOTED.findall(text)), None)
    return None


def _named(text: str, name: str) -> bool:
    """Whether the text mentions this argument; else a number in it may mean anything."""
    return any(part in text.lower() for part in name.lower().split("_"))


def _members(text: str) -> Iterator[tuple[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, dict):
        yield from value.items()


def _fits(value: object, kind: Mapping[str, Any]) -> bool:
    python: tuple[type, ...] | None = {
        "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
        "object": (dict,),
    }.get(kind.get("type", ""))  # fmt: skip
    return python is None or (isinstance(value, python) and (isinstance(value, bool) == (python == (bool,))))


def _invent(kind: Mapping[str, Any], words: Callable[[], str]) -> Any:
    if kind.get("enum"):
        return kind["enum"][0]
    simple: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    type_ = kind.get("type", "string")
    return simple[type_] if type_ in simple else words()


# -- model -------------------------------------------------------------------------------------------------------------
#
# A small language model: word trigrams over a short text, sampled with a temperature.
#
# Like a large one it samples, so that the same prompt gives two different answers; a recording has to cope with that.

_TOKEN: Final = re.compile(r"\w+(?:['-]\w+)*|[^\w\s]")
_START: Final = "<s>"
_END: Final = "</s>"
_CORPUS: Final = Path(__file__).with_name("corpus.txt")


def tokens(text: str) -> list[str]:
    """The words and punctuation marks of ``text``."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    return len(tokens(text))


class NgramModel:
    """Word trigrams with back-off to bigrams; ``random`` draws from the operating system's entropy unless given."""

    def __init__(self, sentences: Iterable[str] | None = None, *, random: Random | None = None) -> None:
        if sentences is None:
            sentences = _CORPUS.read_text(encoding="utf-8").splitlines()
        self._random: Final = random or SystemRandom()
        self._after: Final[dict[tuple[str, ...], Counter[str]]] = defaultdict(Counter)
        for sentence in sentences:
            self._learn([_START, _START, *tokens(sentence), _END])

    def _learn(self, words: list[str]) -> None:
        for first, second, third in zip(words, words[1:], words[2:], strict=False):
            self._after[first, second][third] += 1
            self._after[second,][third] += 1

    def pieces(self, prompt: str, *, max_tokens: int = 60, temperature: float = 1.0) -> Iterator[str]:
        """The answer to ``prompt``, one token at a time, spaces included; joined they are the text.

        Words of the prompt are more likely than others. It ends after one to three sentences or ``max_tokens``.
        """
        topic = {word.lower() for word in tokens(prompt) if len(word) > 3}
        sentences, written = self._random.choice((1, 2, 2, 3)), 0
        context = (_START, _START)
        while written < max_tokens:
            word = self._next(context, topic, temperature)
            if word == _END:
                sentences -= 1
                if not sentences:
                    return
                context = (_START, _START)
                continue
            yield word if not written or _hugs(word) else " " + word
            written += 1
            context = (context[1], word)

    def text(self, prompt: str, *, max_tokens: int = 60, temperature: float = 1.0) -> str:
        return "".join(self.pieces(prompt, max_tokens=max_tokens, temperature=temperature))

    def _next(self, context: tuple[str, str], topic: set[str], temperature: float) -> str:
        known = self._after[context]
        if temperature > 0 and len(known) == 1 and context[0] != _START:
            known = known + self._after[context[1],]  # a lone continuation would only recite the text
        weights = {word: count * (4.0 if word.lower() in topic else 1.0) for word, count in known.items()}
        if temperature <= 0:
            return max(weights, key=lambda word: weights[word])
        scaled = [weight ** (1.0 / temperature) for weight in weights.values()]
        return self._random.choices(list(weights), scaled)[0]


def _hugs(word: str) -> bool:
    """Whether this token follows the one before it without a space."""
    return not word[0].isalnum()


# -- wire --------------------------------------------------------------------------------------------------------------
#
# What the two wire protocols share: an answer to a conversation, and the ways a server can reply.


class Answer:
    """The model's answer: ``pieces`` of text, then ``tools`` to call (id, name, arguments as JSON text)."""

    def __init__(self, pieces: list[str], tools: list[tuple[str, str, str]], prompt_tokens: int, cut: bool) -> None:
        self.pieces: Final = pieces
        self.tools: Final = tools
        self.cut: Final = cut
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = len(pieces) + sum(count_tokens(name + text) for _, name, text in tools)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Reply:
    """A JSON ``body``, or server-sent ``events`` in wire form."""

    def __init__(
        self, body: Mapping[str, Any] | None = None, events: Iterator[bytes] | None = None, status: int = 200
    ) -> None:
        self.body: Final = body
        self.events: Final = events
        self.status: Final = status


def answer(model: NgramModel, talk: Conversation, *, prefix: str, limit: int, temperature: float) -> Answer:
    """Sample an answer; ``prefix`` begins the ids of tool calls, ``limit`` is the most tokens of text."""
    uses: list[ToolUse] = plan(talk, lambda: model.text(talk.user, max_tokens=6, temperature=temperature))
    limit = min(limit, 14) if uses else limit
    pieces = list(model.pieces(talk.user, max_tokens=limit, temperature=temperature))
    tools = [(new_id(prefix), name, json.dumps(arguments)) for name, arguments in uses]
    return Answer(pieces, tools, count_tokens(talk.prompt), cut=not uses and len(pieces) >= limit)


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def event(data: object, name: str | None = None) -> bytes:
    """One server-sent event; ``data`` as JSON, or as it is if it is a string."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode()


def text_of(content: object) -> str:
    """The text of a message's content: a string, or a list of parts that may have some."""
    if isinstance(content, str):
        return content
    if isinstance(content, Iterable) and not isinstance(content, Mapping):
        return " ".join(
            text_of(part.get("text") or part.get("content")) for part in content if isinstance(part, Mapping)
        )
    return ""


def slices(text: str, size: int = 12) -> Iterator[str]:
    """``text`` in short pieces, as arguments of a tool call are streamed."""
    for start in range(0, len(text), size):
        yield text[start : start + size]


# -- anthropic wire ----------------------------------------------------------------------------------------------------
#
# The Anthropic wire protocol: messages.

Body = Mapping[str, Any]


def messages(body: Body, model: NgramModel) -> Reply:
    """``POST /v1/messages``, whole or streamed: text and tool use."""
    temperature = body.get("temperature")
    answered = answer(
        model,
        _conversation(body),
        prefix="toolu_",
        limit=body["max_tokens"],
        temperature=1.0 if temperature is None else float(temperature),
    )
    head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": body["model"]}
    if body.get("stream"):
        return Reply(events=_events(head, answered))
    content: list[dict[str, Any]] = [{"type": "text", "text": answered.text}]
    content += [
        {"type": "tool_use", "id": id_, "name": name, "input": json.loads(text)} for id_, name, text in answered.tools
    ]
    usage = _anthropic_usage(answered, answered.output_tokens)
    return Reply({**head, "content": content, "stop_reason": _stop(answered), "stop_sequence": None, "usage": usage})


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


def _events(head: Body, answered: Answer) -> Iterator[bytes]:
    def send(name: str, /, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    begun = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": _anthropic_usage(answered, 1)}
    yield send("message_start", message=begun)
    yield send("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield send("ping")
    for piece in answered.pieces:
        yield send("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield send("content_block_stop", index=0)
    for index, (id_, name, text) in enumerate(answered.tools, 1):
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        yield send("content_block_start", index=index, content_block=block)
        for piece in slices(text):
            yield send("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
        yield send("content_block_stop", index=index)
    delta = {"stop_reason": _stop(answered), "stop_sequence": None}
    yield send("message_delta", delta=delta, usage={"output_tokens": answered.output_tokens})
    yield send("message_stop")


def _stop(answered: Answer) -> str:
    return "tool_use" if answered.tools else "max_tokens" if answered.cut else "end_turn"


def _anthropic_usage(answered: Answer, output: int) -> dict[str, int]:
    return {
        "input_tokens": answered.prompt_tokens,
        "output_tokens": output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


# -- openai wire -------------------------------------------------------------------------------------------------------
#
# The OpenAI wire protocol: chat completions, responses and embeddings.

# -- chat completions ------------------------------------------------------------------------------------------


def chat_completions(body: Body, model: NgramModel) -> Reply:
    """``POST /v1/chat/completions``, whole or streamed."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 1024
    answered = answer(model, _chat(body), prefix="call_", limit=limit, temperature=_temperature(body))
    head = {
        "id": new_id("chatcmpl-"),
        "created": time_ns() // 1_000_000_000,
        "model": body["model"],
        "system_fingerprint": "fp_ngram",
    }
    if body.get("stream"):
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return Reply(events=_chat_events(head, answered, usage))
    message: dict[str, Any] = {"role": "assistant", "content": answered.text, "refusal": None}
    if answered.tools:
        message["tool_calls"] = [_call(*tool) for tool in answered.tools]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answered)}
    return Reply({**head, "object": "chat.completion", "choices": [choice], "usage": _chat_usage(answered)})


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


def _chat_events(head: Body, answered: Answer, usage: bool) -> Iterator[bytes]:
    def chunk(delta: Body, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(
            {**head, "object": "chat.completion.chunk", "choices": [choice], **({"usage": None} if usage else {})}
        )

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for piece in answered.pieces:
        yield chunk({"content": piece})
    for index, (id_, name, arguments) in enumerate(answered.tools):
        yield chunk({"tool_calls": [{"index": index, **_call(id_, name, "")}]})
        for piece in slices(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(answered))
    if usage:
        yield event({**head, "object": "chat.completion.chunk", "choices": [], "usage": _chat_usage(answered)})
    yield event("[DONE]")


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _finish(answered: Answer) -> str:
    return "tool_calls" if answered.tools else "length" if answered.cut else "stop"


def _chat_usage(answered: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answered.prompt_tokens,
        "completion_tokens": answered.output_tokens,
        "total_tokens": answered.prompt_tokens + answered.output_tokens,
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
    answered = answer(model, _input(body), prefix="call_", limit=limit, temperature=_temperature(body))
    items = _items(answered)
    head = {
        "id": new_id("resp_"), "object": "response", "created_at": time_ns() // 1_000_000_000, "model": body["model"],
        "instructions": body.get("instructions"), "metadata": body.get("metadata") or {}, "error": None,
        "parallel_tool_calls": True, "tool_choice": body.get("tool_choice", "auto"), "tools": body.get("tools") or [],
        "temperature": _temperature(body), "top_p": 1.0, "incomplete_details": None,
    }  # fmt: skip
    done = {**head, "status": "completed", "output": items, "usage": _openai_usage(answered)}
    if answered.cut:
        done |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    if body.get("stream"):
        return Reply(
            events=_response_events({**head, "status": "in_progress", "output": [], "usage": None}, done, answered)
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


def _items(answered: Answer) -> list[dict[str, Any]]:
    part = {"type": "output_text", "text": answered.text, "annotations": [], "logprobs": []}
    message = {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    calls = [
        {"id": new_id("fc_"), "type": "function_call", "status": "completed", "call_id": id_, "name": name,
         "arguments": arguments}
        for id_, name, arguments in answered.tools
    ]  # fmt: skip
    return [message, *calls]


def _response_events(begun: Body, done: Body, answered: Answer) -> Iterator[bytes]:
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
            for piece in answered.pieces:
                yield send("response.output_text.delta", **where, delta=piece, logprobs=[])
            yield send("response.output_text.done", **where, text=answered.text, logprobs=[])
            yield send("response.content_part.done", **where, part=part)
        else:
            for piece in slices(item["arguments"]):
                yield send("response.function_call_arguments.delta", **where, delta=piece)
            yield send("response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
        yield send("response.output_item.done", output_index=index, item=item)
    yield send("response.incomplete" if answered.cut else "response.completed", response=done)


def _openai_usage(answered: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answered.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answered.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answered.prompt_tokens + answered.output_tokens,
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


# -- server ------------------------------------------------------------------------------------------------------------
#
# A model server on loopback that speaks the OpenAI and Anthropic wire protocols over the small model.
#
# Real HTTP/1.1 with keep-alive and chunked server-sent events, so that the real SDKs talk to it as to any provider.

_ROUTES: Final[dict[str, Callable[[Mapping[str, Any], NgramModel], Reply]]] = {
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/embeddings": embeddings,
    "/v1/messages": messages,
}


class ModelServer:
    """Serve ``model`` on 127.0.0.1 until the ``with`` block ends.

    ``url`` is the root (what ``ANTHROPIC_BASE_URL`` wants), ``openai_url`` the root with ``/v1`` (what
    ``OPENAI_BASE_URL`` wants); ``requests`` counts what was asked; ``pace`` is the pause between two events of a
    stream, in seconds.
    """

    def __init__(self, model: NgramModel | None = None, *, pace: float = 0.0, port: int = 0) -> None:
        self.model: Final = model or NgramModel()
        self.pace: Final = pace
        self._requests: Final[list[str]] = []
        self._server: Final = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self._thread: Final = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        return self.url + "/v1"

    @property
    def requests(self) -> int:
        """How many requests have come in so far."""
        return len(self._requests)

    @property
    def paths(self) -> list[str]:
        """The path of each request so far, in order."""
        return list(self._requests)

    def seen(self, path: str) -> None:
        self._requests.append(path)

    def start(self) -> ModelServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening and close every connection, idle ones included."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.hang_up()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: ModelServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: Final[set[socket.socket]] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in list(self._open):
            self.shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client may disconnect, and any other error has been answered with a 500."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.owner.seen(path)
        reply = self._reply(path, raw)
        if reply.events is None:
            self._send(reply)
        else:
            self._stream(reply)

    def do_GET(self) -> None:
        self.server.owner.seen(self.path)
        self._send(_error(404, "not_found_error", f"There is nothing at GET {self.path}."))

    def _reply(self, path: str, raw: bytes) -> Reply:
        route = _ROUTES.get(path)
        if route is None:
            return _error(404, "not_found_error", f"There is nothing at POST {path}.")
        try:
            body = json.loads(raw)
            if not isinstance(body, dict):
                raise TypeError("the body is not an object")
            return route(body, self.server.owner.model)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            return _error(400, "invalid_request_error", f"The request can't be read: {error!r}.")

    def _head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        request = new_id("req_")
        for name, value in {"request-id": request, "x-request-id": request, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send(self, reply: Reply) -> None:
        data = json.dumps(reply.body, ensure_ascii=False).encode()
        self._head(reply.status, content_type="application/json", content_length=str(len(data)))
        self.wfile.write(data)

    def _stream(self, reply: Reply) -> None:
        assert reply.events is not None
        self._head(200, content_type="text/event-stream; charset=utf-8", transfer_encoding="chunked")
        try:
            for data in reply.events:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                if self.server.owner.pace:
                    sleep(self.server.owner.pace)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the client closed the stream

    def version_string(self) -> str:
        return "tracekit-demo"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed for a request."""


def _error(status: int, kind: str, message: str) -> Reply:
    return Reply(
        {"type": "error", "error": {"type": kind, "code": kind, "message": message, "param": None}}, status=status
    )


class Tripwire:
    """Listens on a stopped server's port, answers nothing, and counts connections (``touched``)."""

    def __init__(self, port: int) -> None:
        self._socket: Final = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen(16)
        self._socket.setblocking(False)
        self._touched = 0

    @property
    def touched(self) -> int:
        """How many connections were made since the start; the system has queued them, so none is missed."""
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return self._touched
            self._touched += 1

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Tripwire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
