"""Embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.integration import Claim, Reading

from ._wire import parameters, usage

__all__ = ["Embeddings"]


class Embeddings:
    """``POST …/embeddings``."""

    name = "openai.embeddings"
    provider = "openai"
    operation = "embeddings"

    def claims(self, method: str, path: str) -> bool:
        return method == "POST" and path.endswith("/embeddings")

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict) or "input" not in body:
            return None
        _, found, rest = path.partition("/deployments/")
        model = body.get("model") or (rest.partition("/")[0] if found else None)
        return Claim(model, parameters(body)) if isinstance(model, str) else None

    def response(self, body: object) -> Mapping[str, Any]:
        if not isinstance(body, dict):
            return {}
        meta: dict[str, Any] = {"model": body["model"]} if body.get("model") else {}
        used = usage(body.get("usage"))
        if used:
            meta["usage"] = used
        return meta

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return {}

    def finished(self, tail: bytes) -> bool:
        return False

    def read(self, body: object) -> Reading:
        return Reading(meta=self.response(body))
