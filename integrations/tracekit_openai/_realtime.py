"""OpenAI's conversations over a websocket: the Realtime API, and the Responses API over one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tracekit.integration import Claim, Reading, answer_meta, completion_usage, json_value

__all__ = ["Realtime"]

#: The URL parameters that name a model; with the Responses API each message names it.
_MODEL: Final = ("model", "deployment")
_RESPONSES: Final = "responses"


class Realtime:
    """A websocket to ``…/realtime?model=…``, or, from the SDK, to ``…/responses``: one call for all its responses.

    Their usage is added up when the connection has ended.
    """

    name = "openai.realtime"
    provider = "openai"
    operation = "chat"

    def claims(self, method: str, path: str, own: bool) -> bool:
        return method == "WEBSOCKET" and (path.endswith("/realtime") or (own and path.endswith(f"/{_RESPONSES}")))

    def request(self, path: str, body: object) -> Claim | None:
        if not isinstance(body, dict):
            return None
        for name in _MODEL:
            if body.get(name):
                return Claim(body[name])
        # The model, and so the price, is known only from the answer.
        return Claim(_RESPONSES, info={"own_price": True}) if path.endswith(f"/{_RESPONSES}") else None

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        return _meta([body])

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        return _meta(json_value(piece) for piece in pieces)

    def finished(self, tail: bytes) -> bool:
        return True

    def read(self, body: object) -> Reading:
        return Reading(text="", meta=_meta([body]))


def _meta(events: Iterable[object]) -> dict[str, Any]:
    """Return the metadata from the events that end a response: the last one's, with the tokens of all."""
    usage: dict[str, int] = {"input_tokens": 0, "output_tokens": 0}
    last: Mapping[str, Any] = {}
    for event in events:
        if not isinstance(event, dict):
            continue
        response = event.get("response")
        if isinstance(response, dict):
            last = response
        for name, count in completion_usage(
            response.get("usage") if isinstance(response, dict) else event.get("usage")
        ).items():
            usage[name] = usage.get(name, 0) + count
    return answer_meta(model=last.get("model"), id=last.get("id"), finish_reasons=[last.get("status")], usage=usage)
