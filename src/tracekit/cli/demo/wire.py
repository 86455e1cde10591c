"""What the two wire protocols share: an answer to a conversation, and the ways a server can reply."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from .model import NgramModel, count_tokens
from .planner import Conversation, ToolUse, plan

__all__ = ["Answer", "Reply", "answer", "event", "new_id", "text_of"]


class Answer:
    """What the model says: ``pieces`` of text, then ``tools`` to call (id, name, arguments as JSON text)."""

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
