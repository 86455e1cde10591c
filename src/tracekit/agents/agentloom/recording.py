"""A recording of agentloom in memory, and its files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...errors import InvalidEventError, TraceError, TraceVersionError
from ..doubled import DoubledKeyError, once
from ..graph import ordered
from ..schema import check
from ..view import Event

if TYPE_CHECKING:
    from .replaying import Replay

__all__ = ["EVENTS", "NEWEST", "Recording", "Turn", "load", "loads", "request_hash"]

#: The key that holds the inter-agent events.
EVENTS: Final = "_inter_agent_events"
_VERSION: Final = "_version"
#: The newest version that is known; the one that is written.
NEWEST: Final = 2

#: One answer, as the file has it.
Turn: TypeAlias = dict[str, Any]


def request_hash(
    messages: Any,
    model: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    version: int = NEWEST,
) -> str:
    """The key of a request without a step id: SHA-256 over its JSON; in version 1 over its messages alone."""
    whole = {
        "messages": messages,
        "model": model,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "extra": dict(extra or {}),
    }
    told = json.dumps(messages if version < 2 else whole, sort_keys=True, default=_plain)
    return hashlib.sha256(told.encode()).hexdigest()


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)


class Recording:
    """A recording in memory. ``answers`` holds, by key, an object or a list of turns, as in the file; ``events`` the inter-agent ones
    (``None``: the file has no such key); ``others`` what else begins with ``_``."""

    def __init__(
        self,
        answers: Mapping[str, Turn | list[Turn]],
        *,
        version: int = NEWEST,
        events: Iterable[Event] | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.version: Final = version
        self.answers: Final = dict(answers)
        self.events: Final = None if events is None else ordered(events)
        self.others: Final = dict(others or {})

    def turns(self, key: str) -> list[Turn]:
        """The turns under a key, one or many."""
        found = self.answers[key]
        return found if isinstance(found, list) else [found]

    def as_dict(self) -> dict[str, Any]:
        """The object that the file is."""
        head: dict[str, Any] = {} if self.version < 2 else {_VERSION: self.version}
        tail: dict[str, Any] = {} if self.events is None else {EVENTS: self.events}
        return {**head, **self.others, **self.answers, **tail}

    def dumps(self) -> str:
        """The file's text, in ASCII as agentloom writes it: half of a surrogate pair has no other form."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def replay(self) -> Replay:
        """Something that answers as this recording, from its beginning."""
        from .replaying import Replay

        return Replay(self)


# -- files ---------------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file. ``TraceError`` if it can't be read or is none, ``TraceVersionError`` if it is newer."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise _unusable(os.fspath(path), f"can't be read: {error.strerror}") from None
    return loads(data, os.fspath(path))


def loads(data: bytes | str, path: str = "the recording") -> Recording:
    """The recording in ``data``; ``path`` is for messages."""
    try:
        tree = json.loads(data, object_pairs_hook=once)
    except DoubledKeyError as doubled:
        # Readers take the last of them: an answer would be gone without a word.
        raise _unusable(path, f"has the key {doubled.key!r:.80} twice in one object") from None
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"is no JSON: {error}") from None
    if not isinstance(tree, dict):
        raise _unusable(path, "is no JSON object")
    version = tree.pop(_VERSION, 1)
    if type(version) is not int or version < 1:
        raise _unusable(path, f"says that its version is {version!r:.80}")
    if version > NEWEST:
        raise TraceVersionError(
            f"{path} is an agentloom recording of version {version}; {NEWEST} is the newest known here",
            next_action="update tracekit, or record with an older agentloom",
        )
    found = tree.pop(EVENTS, None)
    others = {key: tree.pop(key) for key in list(tree) if key.startswith("_")}
    for key, answer in tree.items():
        if not isinstance(answer, dict) and not _are_turns(answer):
            raise _unusable(path, f"has neither an answer nor a list of turns under {key!r:.80}")
    return Recording(tree, version=version, events=None if found is None else _checked(found, path), others=others)


def _are_turns(answer: Any) -> bool:
    return isinstance(answer, list) and bool(answer) and all(isinstance(turn, dict) for turn in answer)


def _checked(found: Any, path: str) -> list[Event]:
    if not isinstance(found, list):
        raise _unusable(path, f"{EVENTS} is no list")
    for number, event in enumerate(found, 1):
        problem = check(event)
        if problem is not None:
            raise InvalidEventError(
                f"{path}: event {number} of {EVENTS}: {problem}",
                line=number,
                problem=problem,
                ids=(),
                next_action="`tracekit schema inter-agent` prints what an event has to be",
            )
    return found


def _unusable(path: str, problem: str) -> TraceError:
    return TraceError(f"{path} {problem}", path=path, next_action="name a recording that agentloom or tracekit wrote")
