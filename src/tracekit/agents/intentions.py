"""Intentions and events: what a responder wants to happen, as data, and what did happen, with a typed reference to its cause.

::

    ask("Summarise this page", model="gpt-5-mini", object="page-1")     # a question to a model
    call("fetch", {"url": url}, object="page-1")                         # a tool's call
    create("page-1", {"url": url, "status": "new"})                      # an object of the world
    patch("page-1", {"status": "done"})                                  # a change of one: a JSON merge patch (RFC 7396)

Making one does nothing. A :class:`~tracekit.agents.Loop` writes it down, then has an executor do it, or changes the world.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .._canonical import contains_opaque, to_json
from ..errors import IntentionError

__all__ = [
    "ANSWERS",
    "EVENTS",
    "FAILURES",
    "Event",
    "Intention",
    "Ref",
    "ask",
    "call",
    "copied",
    "create",
    "json_object",
    "patch",
]

#: What answers a request, by its kind.
ANSWERS: Final = {"llm.request": "llm.response", "tool.call": "tool.return"}
#: What tells that a request failed, by its kind.
FAILURES: Final = {"llm.request": "llm.error", "tool.call": "tool.error"}
#: What a responder may respond to.
EVENTS: Final = frozenset({"object.created", "object.patched", *ANSWERS.values(), *FAILURES.values()})
#: JSON nested deeper than this is refused.
_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to an event: of which kind it is, and where it stands in which log. ``run_id`` is ``None`` outside every run."""

    type: str
    seq: int
    run_id: str | None = None
    segment: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """What an entry says of its cause."""
        return {"type": self.type, "seq": self.seq}

    def __str__(self) -> str:
        return f"{self.type} {self.seq}"


@dataclass(frozen=True, slots=True)
class Intention:
    """Something that is to happen. ``kind`` is ``"llm.request"``, ``"tool.call"``, ``"object.created"`` or ``"object.patched"``.

    ``name`` is the model (or ``"model"``), the tool or the object; ``object`` the object of the world that it is for; ``cause`` the event
    that it answers to, where that is not the one its responder was given. Make one with :func:`ask`, :func:`call`, :func:`create` or
    :func:`patch`.
    """

    kind: str
    name: str
    data: Mapping[str, Any]
    object: str | None = None
    cause: Ref | None = None

    def alone(self) -> Intention:
        """The same with data of its own, that nobody else can change."""
        return replace(self, data=copied(dict(self.data)))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, and what caused it: ``ref`` is its own place, ``cause`` that of what caused it.

    ``data`` is the same in a replay: of a ``"llm.response"`` ``text``, ``model``, ``usage``, ``cost_usd``, ``tool_calls``,
    ``finish_reason`` and ``message``; of a ``"tool.return"`` ``output``; of an error ``type`` and ``text``; of an object's event ``value``
    or ``patch``. ``object`` is the object that it is about. ``replayed`` says that the log answered.
    """

    kind: str
    ref: Ref
    cause: Ref | None
    data: Mapping[str, Any]
    object: str | None = None
    request: Intention | None = None
    replayed: bool = False
    error: BaseException | None = field(default=None, compare=False)

    def about(self) -> dict[str, Any]:
        """Its facts in short: ``seq``, ``kind``, ``name`` (of the model, the tool, the object) and ``object``."""
        name = self.object if self.request is None else self.request.name
        return {"seq": self.ref.seq, "kind": self.kind, "name": name, "object": self.object}

    def __str__(self) -> str:
        one = self.about()
        about = f" for object {self.object!r}" if self.request is not None and self.object is not None else ""
        return f"{self.kind} of {one['name']!r}{about} (entry {self.ref.seq})"

    @property
    def text(self) -> str:
        """What the model said; ``""`` where it said nothing."""
        found = self.data.get("text")
        return found if isinstance(found, str) else ""

    @property
    def output(self) -> Any:
        """What the tool returned."""
        return self.data.get("output")

    @property
    def cost_usd(self) -> float | None:
        """What it costs now: nothing where the log answered, ``None`` where nobody knows. ``data["cost_usd"]`` is what it cost when
        the call was made, in a replay, too."""
        return 0.0 if self.replayed else self.data.get("cost_usd")


# -- making intentions -----------------------------------------------------------------------------------------------------


def ask(
    messages: str | Iterable[Mapping[str, Any]],
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    object: str | None = None,
    cause: Ref | Event | None = None,
    **parameters: Any,
) -> Intention:
    """A question to a model. A text is one message of the user. ``parameters`` (``temperature``, ``tools``, ``system`` …) go to the
    executor's callable or client as they are. ``object`` is what the answer is for: it must be there when the question is asked."""
    told = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not told:
        raise IntentionError("a question needs a message", next_action="give `ask` a text, or a list of messages")
    data: dict[str, Any] = {"messages": told, **parameters}
    if model is not None:
        data["model"] = model
    if max_tokens is not None:
        data["max_tokens"] = max_tokens
    return Intention("llm.request", model or "model", _plain(data, "a question"), object, _ref(cause))


def call(
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    object: str | None = None,
    cause: Ref | Event | None = None,
) -> Intention:
    """A call of the tool of this name, with these arguments by name."""
    if not tool:
        raise IntentionError("a call needs the name of its tool")
    return Intention("tool.call", tool, _plain(dict(arguments or {}), f"the call of {tool!r}"), object, _ref(cause))


def create(id: str, value: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Intention:
    """A new object of the world. ``value`` is a JSON object. An object that is there already is not made again: that is an error."""
    return Intention("object.created", _id(id), json_object(value, f"object {id!r}"), id, _ref(cause))


def patch(id: str, patch: Mapping[str, Any], *, cause: Ref | Event | None = None) -> Intention:
    """A change of an object: a JSON merge patch (RFC 7396), in which ``None`` takes a member away."""
    return Intention("object.patched", _id(id), json_object(patch, f"the patch of {id!r}"), id, _ref(cause))


def _id(id: Any) -> str:
    if not isinstance(id, str) or not id:
        raise IntentionError(f"an object's id is a text that is not empty, not {id!r}")
    return str(id)


def _ref(cause: Ref | Event | None) -> Ref | None:
    return cause.ref if isinstance(cause, Event) else cause


def _plain(data: dict[str, Any], what: str) -> dict[str, Any]:
    found = contains_opaque(to_json(data))
    if found is not None:
        raise IntentionError(
            f"{what} holds what is no data: {found}",
            next_action="an intention is written down before it is done: give it values, not handles, clients or functions",
        )
    made: dict[str, Any] = copied(data)
    return made


def copied(value: Any) -> Any:
    """A copy of a value's dictionaries and lists, so that whoever made it can't change it any more."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def json_object(value: Any, what: str) -> dict[str, Any]:
    """A copy of ``value``, which must be a JSON object; ``IntentionError`` names the place of what is none."""
    if not isinstance(value, Mapping):
        raise IntentionError(f"{what} is a JSON object, not {value!r:.80}")
    made: dict[str, Any] = _json(dict(value), what, "", 0)
    return made


def _json(value: Any, what: str, path: str, depth: int) -> Any:
    if depth > _DEPTH:
        raise IntentionError(f"{what} is nested deeper than {_DEPTH}")
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise IntentionError(f"{what} has a key that is no text{_at(path)}: {key!r:.80}")
        return {key: _json(item, what, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if type(value) is list:
        return [_json(item, what, f"{path}[{place}]", depth + 1) for place, item in enumerate(value)]
    if value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    raise IntentionError(
        f"{what} holds what is no JSON{_at(path)}: {value!r:.80}",
        next_action="objects of the world are JSON: texts, finite numbers, booleans, null, lists and objects",
    )


def _at(path: str) -> str:
    return f" at {path.removeprefix('.')}" if path else ""
