"""What a model said, read from whatever a callable or a client returned."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from ..errors import IntentionError
from .intentions import copied

__all__ = ["reply_of"]

#: The parts of a reply, and what they are where nothing is said.
_PARTS: Final[dict[str, Any]] = {
    "text": None,
    "model": None,
    "usage": None,
    "cost_usd": None,
    "tool_calls": [],
    "finish_reason": None,
    "message": None,
}


def reply_of(said: Any, whose: str) -> dict[str, Any]:
    """``text``, ``model``, ``usage``, ``cost_usd``, ``tool_calls``, ``finish_reason`` and ``message`` of an answer.

    It is a text; a mapping that has some of these; or an answer of the OpenAI or the Anthropic SDK. ``IntentionError`` for
    anything else, and for no answer at all.
    """
    if isinstance(said, str):
        return {**copied(_PARTS), "text": said}
    if isinstance(said, Mapping):
        return _checked(said, whose)
    if getattr(said, "choices", None):
        return {**copied(_PARTS), **_of_choices(said)}
    if isinstance(getattr(said, "content", None), list):
        return {**copied(_PARTS), **_of_blocks(said)}
    raise IntentionError(
        f"{whose} answered {said!r:.80}, and a request to a model needs an answer",
        next_action='return a text, a mapping such as {"text": …, "usage": …, "cost_usd": …}, or the SDK\'s own answer',
    )


def _checked(said: Mapping[str, Any], whose: str) -> dict[str, Any]:
    unknown = said.keys() - _PARTS.keys()
    if unknown or ("text" not in said and not said.get("tool_calls")):
        what = f"{min(unknown)!r}, which is no part of one" if unknown else "neither text nor tool calls"
        raise IntentionError(
            f"the answer of {whose} has {what}", next_action=f"an answer has some of {', '.join(_PARTS)}"
        )
    cost = said.get("cost_usd")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < math.inf):
        raise IntentionError(
            f"{whose} says that its answer cost {cost!r}", next_action="cost_usd is a number, 0 or more"
        )
    return {**copied(_PARTS), **copied(dict(said))}


def _of_choices(said: Any) -> dict[str, Any]:
    choice = said.choices[0]
    message, counted = choice.message, getattr(said, "usage", None)
    calls = getattr(message, "tool_calls", None) or []
    return {
        "text": message.content,
        "model": said.model,
        "usage": _numbers(
            input_tokens=_get(counted, "prompt_tokens"),
            output_tokens=_get(counted, "completion_tokens"),
            cache_read_input_tokens=_get(_get(counted, "prompt_tokens_details"), "cached_tokens"),
            reasoning_output_tokens=_get(_get(counted, "completion_tokens_details"), "reasoning_tokens"),
        ),
        "tool_calls": [
            {"id": one.id, "name": one.function.name, "arguments": _arguments(one.function.arguments)}
            for one in calls
            if getattr(one, "function", None) is not None
        ],
        "finish_reason": choice.finish_reason,
        "message": message.model_dump(exclude_none=True),
    }


def _of_blocks(said: Any) -> dict[str, Any]:
    counted = getattr(said, "usage", None)
    read, written = _get(counted, "cache_read_input_tokens"), _get(counted, "cache_creation_input_tokens")
    asked = _get(counted, "input_tokens")
    return {
        "text": "".join(block.text for block in said.content if block.type == "text"),
        "model": said.model,
        "usage": _numbers(
            input_tokens=None if asked is None else asked + (read or 0) + (written or 0),
            output_tokens=_get(counted, "output_tokens"),
            cache_read_input_tokens=read,
            cache_creation_input_tokens=written,
        ),
        "tool_calls": [
            {"id": block.id, "name": block.name, "arguments": copied(block.input)}
            for block in said.content
            if block.type == "tool_use"
        ],
        "finish_reason": said.stop_reason,
        "message": {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in said.content]},
    }


def _get(counted: Any, name: str) -> Any:
    return getattr(counted, name, None)


def _numbers(**counts: Any) -> dict[str, int] | None:
    """Token counts under the names of the trace: ``input_tokens`` includes what was cached."""
    return {name: count for name, count in counts.items() if isinstance(count, int)} or None


def _arguments(text: str) -> Any:
    """The arguments of a call; as text where the model wrote no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
