"""Building blocks for reading requests and answers of model services, of which dialects are made.

JSON and events in bodies, tool arguments, token counts, and formats that many services share. A *dialect* recognises model
calls.

Pure functions on bytes and parsed JSON. Malformed input yields nothing, never an error.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from struct import unpack_from
from typing import Any, Final

import orjson

from .._lazy import expression
from .plugins import Claim, Dialect, Reading

__all__ = [
    "ChatCompletions",
    "EmbeddingVectors",
    "answer_meta",
    "completion_reading",
    "completion_usage",
    "event_data",
    "json_lines",
    "json_value",
    "parameters",
    "stream_events",
    "token_usage",
    "tool_arguments",
]

# -- bodies ------------------------------------------------------------------------------------------------------------


def json_value(data: bytes | str) -> Any:
    """Parse JSON; return ``None`` if it is invalid (``[DONE]``, a truncated event)."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def json_lines(stream: bytes) -> Iterator[Any]:
    """Yield the values of a stream with one JSON value per line; invalid lines (such as a truncated one) are skipped."""
    for line in stream.splitlines():
        value = json_value(line) if line else None
        if value is not None:
            yield value


def stream_events(stream: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of the events of a complete stream, server-sent or in the binary format of AWS.

    A server-sent event without a name is a ``"message"``; its data lines are joined by ``\\n``. The name of a binary
    event is its type, or that of its exception. A truncated last event is skipped.
    """
    if stream[:1] == b"\0":  # the high byte of a length: no text begins with it
        yield from _binary_events(stream)
        return
    for block in stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        name, data = "message", []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"event":
                name = value.decode("utf-8", "replace")
            elif field == b"data":
                data.append(value)
        if data:
            yield name, b"\n".join(data)


def event_data(stream: bytes) -> Iterator[bytes]:
    """Yield the data of a stream's events; if binary events wrap another service's data (``{"bytes": …}``, as base64),
    yield that."""
    for _, data in stream_events(stream):
        if stream[:1] == b"\0" and b'"bytes"' in data:
            wrapped = json_value(data)
            if isinstance(wrapped, dict) and isinstance(wrapped.get("bytes"), str):
                data = b64decode(wrapped["bytes"])
        yield data


#: ``application/vnd.amazon.eventstream``: lengths of the message and of its headers, with a checksum; headers; data; a
#: checksum.
_PRELUDE: Final = 12
_CHECKSUM: Final = 4
#: The length of a header's value, by its type; ``None`` if two bytes specify it.
_LENGTHS: Final[tuple[int | None, ...]] = (0, 0, 1, 2, 4, 8, None, None, 8, 16)
_NAMES: Final = (b":event-type", b":exception-type", b":error-code")


def _binary_events(stream: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at + _PRELUDE <= len(stream):
        whole, headers = unpack_from(">II", stream, at)
        start = at + _PRELUDE
        if whole < _PRELUDE + headers + _CHECKSUM or at + whole > len(stream):
            return
        name = _event_name(stream, start, start + headers)
        yield name, stream[start + headers : at + whole - _CHECKSUM]
        at += whole


def _event_name(stream: bytes, at: int, end: int) -> str:
    while at < end:
        size = stream[at]
        header, kind = stream[at + 1 : at + 1 + size], stream[at + 1 + size]
        at += size + 2
        length = _LENGTHS[kind] if kind < len(_LENGTHS) else 0
        if length is None:
            (length,) = unpack_from(">H", stream, at)
            at += 2
        if header in _NAMES:
            return stream[at : at + length].decode("utf-8", "replace")
        at += length
    return "message"


# -- fields ------------------------------------------------------------------------------------------------------------


def parameters(body: object, names: Mapping[str, str] | Collection[str]) -> dict[str, Any]:
    """Return the scalar parameters of these names that a request sets; a mapping translates the names."""
    if not isinstance(body, _OBJECT):
        return {}
    there = [name for name in body if name in names and not isinstance(body[name], _HOLDING)]
    if isinstance(names, _OBJECT):
        return {names[name]: body[name] for name in there}
    return {name: body[name] for name in there}


#: Not scalar.
_HOLDING: Final = (list, dict)
#: An object of JSON: a ``dict`` is recognised at once.
_OBJECT: Final = (dict, Mapping)


def tool_arguments(text: object) -> Any:
    """Return the arguments of a tool call: parsed if they are JSON, otherwise unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


_NUMBERS: Final = (int, float)


def token_usage(
    *,
    input: object = None,
    output: object = None,
    cache_read: object = None,
    cache_creation: object = None,
    reasoning: object = None,
) -> dict[str, int]:
    """Return token counts under the names used in traces: ``input_tokens`` and ``output_tokens`` include cached and
    reasoning tokens.

    Values that are not numbers are left out.
    """
    counts: dict[str, int] = {}
    if isinstance(input, _NUMBERS):
        counts["input_tokens"] = int(input)
    if isinstance(output, _NUMBERS):
        counts["output_tokens"] = int(output)
    if cache_read is not None or cache_creation is not None or reasoning is not None:
        if isinstance(cache_read, _NUMBERS):
            counts["cache_read_input_tokens"] = int(cache_read)
        if isinstance(cache_creation, _NUMBERS):
            counts["cache_creation_input_tokens"] = int(cache_creation)
        if isinstance(reasoning, _NUMBERS):
            counts["reasoning_output_tokens"] = int(reasoning)
    return counts


def completion_usage(given: object) -> dict[str, int]:
    """Return the token counts of OpenAI and similar services, in either naming (``prompt_tokens``, ``input_tokens``)."""
    if not isinstance(given, _OBJECT):
        return {}
    input = given.get("input_tokens", given.get("prompt_tokens"))
    output = given.get("output_tokens", given.get("completion_tokens"))
    if _IN_DETAIL.isdisjoint(given):
        return token_usage(input=input, output=output)
    inside, outside = _details(given, _OF_INPUT), _details(given, _OF_OUTPUT)
    return token_usage(
        input=input,
        output=output,
        cache_read=inside.get("cached_tokens"),
        cache_creation=inside.get("cache_write_tokens"),
        reasoning=outside.get("reasoning_tokens"),
    )


#: The details of a count; the Realtime API uses names of its own.
_OF_INPUT: Final = ("input_tokens_details", "input_token_details", "prompt_tokens_details", "prompt_token_details")
_OF_OUTPUT: Final = (
    "output_tokens_details", "output_token_details", "completion_tokens_details", "completion_token_details",
)  # fmt: skip
_IN_DETAIL: Final = frozenset(_OF_INPUT + _OF_OUTPUT)


def _details(given: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    for name in filter(given.__contains__, names):
        found: object = given[name]
        if isinstance(found, Mapping):
            return found
    return {}


def answer_meta(
    *,
    model: object = None,
    id: object = None,
    finish_reasons: Iterable[object] = (),
    usage: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return ``meta`` of a response, without absent fields."""
    reasons = [reason for reason in finish_reasons if isinstance(reason, str) and reason]
    meta: dict[str, Any] = {}
    if model:
        meta["model"] = model
    if id:
        meta["id"] = id
    if reasons:
        meta["finish_reasons"] = reasons
    if usage:
        meta["usage"] = dict(usage)
    return meta


# -- formats that many services share ----------------------------------------------------------------------------------

_PARAMETERS: Final = frozenset((
    "stream", "temperature", "top_p", "top_k", "seed", "random_seed", "max_tokens", "max_completion_tokens", "max_output_tokens", "n",
    "presence_penalty", "frequency_penalty", "reasoning_effort", "verbosity", "service_tier", "parallel_tool_calls",
    "truncation", "safety_identifier", "safe_prompt", "prompt_mode", "dimensions", "output_dimension", "output_dtype", "encoding_format",
))  # fmt: skip
_FINISH: Final = expression(rb'"finish_reason"\s*:\s*"([^"]*)"')


_IS_DATA: Final = methodcaller("startswith", b"data:")


class ChatCompletions:
    """The protocol of OpenAI's chat completions, which most services support: ``POST …/chat/completions`` with
    ``messages``.

    A subclass defines the provider, and where that service differs.
    """

    name = "openai.chat"
    provider = "openai"
    operation = "chat"
    #: The ends of the paths, and the body's key besides the model.
    paths: tuple[str, ...] = ("/chat/completions",)
    content = "messages"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and path.endswith(self.paths)

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or self.content not in body:
            return None
        model = self.model(path, body)
        return Claim(model, parameters(body, _PARAMETERS)) if isinstance(model, str) else None

    def model(self, path: str, body: Mapping[str, Any]) -> object:
        """Return the requested model."""
        return body.get("model") or deployment(path)

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body, dict):
            return {}
        reasons = [choice.get("finish_reason") for choice in body.get("choices") or ()]
        return _completion_meta(body, reasons, body.get("usage"))

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        whole = b"".join(pieces)
        lines = [*filter(_IS_DATA, (*whole[:4096].split(b"\n")[:8], *whole[-4096:].split(b"\n")))]
        values = [json_value(line[5:]) for line in (*lines[:1], *lines[-4:]) if line[5:].strip() != b"[DONE]"]
        found = [chunk for chunk in values if isinstance(chunk, dict)]
        counted = [chunk["usage"] for chunk in found if chunk.get("usage")]
        reasons = [reason.decode() for reason in _FINISH.findall(whole)]
        return _completion_meta(found[0] if found else {}, reasons, counted[-1] if counted else None)

    def finished(self, tail: bytes) -> bool:
        return b"data: [DONE]" in tail

    def read(self, body: object) -> Reading:
        if not isinstance(body, bytes):
            return completion_reading([body], self.response(body, {}))
        return completion_reading((json_value(data) for _, data in stream_events(body)), self.stream([body]))


class EmbeddingVectors(Dialect):
    """The protocol of OpenAI's embeddings, which most services support: ``POST …/embeddings`` with ``input``."""

    name = "openai.embeddings"
    provider = "openai"
    operation = "embeddings"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and path.endswith("/embeddings")

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or "input" not in body:
            return None
        model = body.get("model") or deployment(path)
        return Claim(model, parameters(body, _PARAMETERS)) if isinstance(model, str) else None

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body, dict):
            return {}
        return answer_meta(model=body.get("model"), usage=completion_usage(body.get("usage")))


def deployment(path: str) -> str | None:
    """Return the model that Azure names in the path: ``…/deployments/NAME/chat/completions``."""
    _, found, rest = path.partition("/deployments/")
    return rest.partition("/")[0] if found else None


def _completion_meta(body: Mapping[str, Any], reasons: Iterable[object], counts: object) -> dict[str, Any]:
    return answer_meta(
        model=body.get("model"), id=body.get("id"), finish_reasons=reasons, usage=completion_usage(counts)
    )


def completion_reading(bodies: Iterable[object], meta: Mapping[str, Any]) -> Reading:
    """Read a chat completion in full: a single body, or those of a stream."""
    texts: list[str] = []
    thoughts: list[str] = []
    refusals: list[str] = []
    calls: list[dict[str, Any]] = []
    for choice in _choices(bodies):
        message = choice.get("message") or {}
        text, thought = _content(message.get("content"))
        texts.append(text or choice.get("text") or "")
        thoughts.append(thought or message.get("reasoning_content") or "")
        refusals.append(message.get("refusal") or "")
        calls += [_call(call) for call in message.get("tool_calls") or ()]
    return Reading(
        text="".join(texts),
        tool_calls=calls,
        refusal="".join(refusals) or None,
        reasoning="".join(thoughts) or None,
        meta=meta,
    )


def _choices(bodies: Iterable[object]) -> list[Mapping[str, Any]]:
    """Return the choices in order, with streamed ones joined."""
    found = [choice for body in bodies if isinstance(body, dict) for choice in body.get("choices") or ()]
    deltas: dict[int, list[Mapping[str, Any]]] = {}
    for choice in found:
        if "delta" in choice:
            deltas.setdefault(choice.get("index") or 0, []).append(choice["delta"] or {})
    whole = [choice for choice in found if "delta" not in choice]
    return [*whole, *({"message": _joined(deltas[index])} for index in sorted(deltas))]


def _content(content: object) -> tuple[str, str]:
    """Return text and visible reasoning of a message's content, which is a text or a list of parts."""
    if isinstance(content, str):
        return content, ""
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    thoughts = [part.get("thinking") for part in parts if part.get("type") == "thinking"]
    return (
        "".join(part.get("text") or "" for part in parts if part.get("type", "text") == "text"),
        "".join(_content(thought)[0] for thought in thoughts),
    )


def _joined(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the message that these deltas form."""
    texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning_content": []}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        text, thought = _content(delta.get("content"))
        texts["content"].append(text)
        texts["refusal"].append(delta.get("refusal") or "")
        texts["reasoning_content"].append(thought or delta.get("reasoning_content") or "")
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part.get("index", 0), {"id": None, "function": {"name": "", "arguments": ""}})
            call["id"] = part.get("id") or call["id"]
            function, made = part.get("function") or {}, call["function"]
            made["name"] += function.get("name") or ""
            given = function.get("arguments") or ""
            made["arguments"] = made["arguments"] + given if isinstance(given, str) else given
    return {**{name: "".join(parts) for name, parts in texts.items()}, "tool_calls": [calls[i] for i in sorted(calls)]}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call.get("custom") or {}
    return {
        "id": call.get("id"),
        "name": function.get("name"),
        "arguments": tool_arguments(function.get("arguments", function.get("input"))),
    }
