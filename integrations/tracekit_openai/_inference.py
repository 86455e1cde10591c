"""OpenAI's endpoints that run a model on something other than text: images, speech, moderation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tracekit.integration import Claim, Reading, answer_meta, completion_usage

__all__ = ["Inference"]

#: The end of the path, and the field that the body must have besides a model.
_PATHS: Final = {
    "/images/generations": "prompt",
    "/images/edits": "image",
    "/images/variations": "image",
    "/audio/transcriptions": "file",
    "/audio/translations": "file",
    "/audio/speech": "input",
    "/moderations": "input",
}


class Inference:
    """``POST`` to one of these, as JSON or as a form."""

    name = "openai.inference"
    provider = "openai"
    operation = "generate_content"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "POST" and path.endswith(tuple(_PATHS))

    def request(self, path: str, body: object) -> Claim | None:
        needed = next(needed for end, needed in _PATHS.items() if path.endswith(end))
        fields = _form(body) if isinstance(body, list) else body
        if not isinstance(fields, dict) or not any(name in fields for name in (needed, f"{needed}[]")):
            return None
        model = fields.get("model") or (
            "default" if needed in ("image", "prompt") or path.endswith("/moderations") else None
        )
        return Claim(model) if isinstance(model, str) else None

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body, dict):
            return {}
        model, id = (body[name] if isinstance(body.get(name), str) else None for name in ("model", "id"))
        return answer_meta(model=model, id=id, usage=completion_usage(body.get("usage")))

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return {}

    def finished(self, tail: bytes) -> bool:
        return False

    def read(self, body: object) -> Reading:
        text = body.get("text") if isinstance(body, dict) else None
        return Reading(text=text if isinstance(text, str) else "", meta=self.response(body, {}))


def _form(parts: list[Any]) -> dict[str, Any]:
    return {part["name"]: part.get("body") for part in parts if isinstance(part, dict) and "name" in part}
