"""Answers to requests, from a recording of agentloom."""

from __future__ import annotations

import json
import threading
from typing import Any, Final

from ...errors import TraceExhaustedError, UnconsumedStepsError
from .recording import Recording, Turn, request_hash

__all__ = ["Replay"]


class Replay:
    """Answers requests from a recording; thread-safe. As a block it ends with :meth:`finish`."""

    def __init__(self, recording: Recording) -> None:
        self.recording: Final = recording
        self._used: Final[dict[str, int]] = {}
        self._lock: Final = threading.Lock()

    def complete(
        self,
        messages: Any,
        model: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        *,
        step_id: str | None = None,
        **extra: Any,
    ) -> Turn:
        """The recorded answer to a request: by ``step_id`` where there is such a key, else by the request's hash.

        ``TraceExhaustedError`` where the recording has none, or has no further turn.
        """
        key = step_id if step_id is not None and step_id in self.recording.answers else None
        by_hash = key is None
        if key is None:
            key = request_hash(messages, model, temperature, max_tokens, extra, version=self.recording.version)
            if key not in self.recording.answers:
                raise self._miss(step_id, key)
        return self._turn(key, again=by_hash and not isinstance(self.recording.answers[key], list))

    async def acomplete(self, messages: Any, model: str | None = None, **rest: Any) -> Turn:
        """The same for ``await``."""
        return self.complete(messages, model, **rest)

    def finish(self) -> None:
        """End the replay: ``UnconsumedStepsError`` if recorded answers were never asked for."""
        left = [
            {"seq": turn + 1, "type": "llm.response", "name": key}
            for key in self.recording.answers
            for turn in range(self._used.get(key, 0), len(self.recording.turns(key)))
        ]
        if left:
            raise UnconsumedStepsError(
                f"{len(left)} recorded answers were never asked for, the first under {left[0]['name']!r}",
                steps=left,
                next_action="see which step no longer asks; record again if the change is meant",
            )

    def _turn(self, key: str, *, again: bool) -> Turn:
        turns = self.recording.turns(key)
        with self._lock:
            place = 0 if again else self._used.get(key, 0)
            if place == len(turns):
                raise TraceExhaustedError(
                    f"the recording has {len(turns)} answers under {key!r}, and all of them are used",
                    kind="llm",
                    name=key,
                    next_action="the program asks once more than it did: see why, or record again",
                )
            self._used[key] = place + 1
        return json.loads(json.dumps(turns[place]))  # type: ignore[no-any-return]  # the caller's own copy

    def _miss(self, step_id: str | None, key: str) -> TraceExhaustedError:
        sought = f"neither step {step_id!r} nor" if step_id is not None else "no"
        return TraceExhaustedError(
            f"the recording has {sought} answer to this request ({key})",
            kind="llm",
            name=step_id or key,
            next_action="an argument of the request is not the recorded one; record again if that is meant",
        )

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
