"""What the dialects of OpenAI share: parameters, usage, the JSON inside events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

__all__ = ["arguments", "loads", "parameters", "usage"]

#: Parameters that steer decoding or safety and are single values; the rest is compared with the body.
_PARAMETERS: Final = (
    "stream", "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens", "n",
    "presence_penalty", "frequency_penalty", "reasoning_effort", "verbosity", "service_tier", "parallel_tool_calls",
    "truncation", "safety_identifier", "dimensions", "encoding_format",
)  # fmt: skip


def parameters(body: Mapping[str, Any], names: Sequence[str] = _PARAMETERS) -> dict[str, Any]:
    """The decoding parameters that a request sets."""
    return {name: body[name] for name in names if name in body and not isinstance(body[name], list | dict)}


def usage(given: object) -> dict[str, int]:
    """Token counts under OpenTelemetry's names: ``input_tokens`` and ``output_tokens`` include what was cached or thought.

    Reads both ways in which OpenAI counts (``prompt_tokens`` and ``input_tokens``).
    """
    if not isinstance(given, Mapping):
        return {}
    inside = given.get("input_tokens_details") or given.get("prompt_tokens_details") or {}
    outside = given.get("output_tokens_details") or given.get("completion_tokens_details") or {}
    counts = {
        "input_tokens": given.get("input_tokens", given.get("prompt_tokens")),
        "output_tokens": given.get("output_tokens", given.get("completion_tokens")),
        "cache_read_input_tokens": inside.get("cached_tokens"),
        "cache_creation_input_tokens": inside.get("cache_write_tokens"),
        "reasoning_output_tokens": outside.get("reasoning_tokens"),
    }
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def loads(data: bytes) -> Any:
    """JSON, or ``None`` where it is none (``[DONE]``, a cut event)."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def arguments(text: object) -> Any:
    """The arguments of a tool call: parsed where they are JSON, as they came otherwise."""
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
