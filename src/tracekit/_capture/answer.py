"""A recorded answer taken apart: what a seam builds its library's response from, so that the SDK's own code parses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._engine.gate import Outcome
from .messages import body_of, pairs

__all__ = ["Answer", "piece_of"]


class Answer:
    """A recorded answer, or the head of one, taken apart: what a seam builds its library's response from.

    ``content`` is ``None`` for the head of a stream, ``read`` says whether a body was recorded. ``error`` is what to raise,
    ``raised`` its name among the library's own. ``history`` holds the answers that were redirects.
    """

    __slots__ = (
        "content", "elapsed", "error", "headers", "history", "http_version", "raised", "read", "reason", "status", "text", "url",
    )  # fmt: skip

    def __init__(self, outcome: Outcome) -> None:
        self._read(outcome.output if isinstance(outcome.output, dict) else {}, outcome.error, outcome.meta)

    def _read(self, output: Mapping[str, Any], error: BaseException | None, meta: Mapping[str, Any]) -> None:
        self.error = error
        self.raised: str | None = output.get("raised")
        self.text: str = output.get("text", "")
        told = output.get("head", output)
        self.status: int = told.get("status", 200)
        self.headers = pairs(told.get("headers", {}))
        self.http_version: str = told.get("http_version", "HTTP/1.1")
        self.reason: str | None = told.get("reason")
        self.url: str | None = told.get("url")
        past = told.get("history")
        self.history = [Answer._past(hop) for hop in past] if past else []
        self.elapsed: float = meta.get("elapsed", 0.0)
        self.read = "format" in told
        self.content = None if "head" in output else body_of(told)

    @classmethod
    def _past(cls, message: Mapping[str, Any]) -> Answer:
        answer = cls.__new__(cls)
        answer._read(message, None, {})
        return answer


def piece_of(chunk: Outcome) -> bytes:
    """The bytes of a recorded piece of a stream."""
    return chunk.output.encode() if isinstance(chunk.output, str) else bytes(chunk.output)
