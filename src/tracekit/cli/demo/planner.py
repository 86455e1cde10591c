"""Which tools the model calls next, and with what: a few rules that read the conversation.

A tool is called once, as soon as each of its required arguments stands somewhere in the user's text or in an earlier
tool's answer. That is enough for a real loop: look up first, act on what was found, then tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["Conversation", "ToolUse", "plan"]

_CODE: Final = re.compile(r"\b[A-Z][A-Z0-9]*-\d+\b|\b\d{6,}\b")
_NUMBER: Final = re.compile(r"(?<![\w-])\d+(?:\.\d+)?(?![\w-])")
_QUOTED: Final = re.compile(r"[\"“']([^\"”']+)[\"”']")

#: A tool's name and the arguments it is called with.
ToolUse = tuple[str, dict[str, Any]]


class Conversation:
    """What both wire protocols come down to.

    ``prompt`` is all text that was sent, ``user`` the last user text, ``tools`` the JSON Schema of the arguments by
    tool name, ``called`` the tools called since that text, ``results`` their answers as text. ``choice`` is ``"auto"``,
    ``"none"``, ``"any"`` or a tool's name.
    """

    def __init__(
        self,
        prompt: str,
        user: str,
        tools: Mapping[str, Mapping[str, Any]],
        called: list[str],
        results: list[str],
        choice: str = "auto",
    ) -> None:
        self.prompt: Final = prompt
        self.user: Final = user
        self.tools: Final = tools
        self.called: Final = called
        self.results: Final = results
        self.choice: Final = choice


def plan(talk: Conversation, words: Callable[[], str]) -> list[ToolUse]:
    """The tools to call now, or none: then the model answers in text. ``words`` supplies text where none is found."""
    if talk.choice == "none":
        return []
    if talk.choice in talk.tools:
        return [(talk.choice, _arguments(talk, talk.choice, words))]
    waiting = [name for name in talk.tools if name not in talk.called]
    grounded = [name for name in waiting if _missing(talk, name) == 0]
    if not grounded and waiting and (talk.choice == "any" or not talk.called):
        grounded = [min(waiting, key=lambda name: _missing(talk, name))]
    return [(name, _arguments(talk, name, words)) for name in grounded]


def _arguments(talk: Conversation, tool: str, words: Callable[[], str]) -> dict[str, Any]:
    schema = talk.tools[tool]
    required = set(schema.get("required", ()))
    filled: dict[str, Any] = {}
    for name, kind in schema.get("properties", {}).items():
        value = _find(talk, name, kind)
        if value is None and name in required:
            value = _invent(kind, words)
        if value is not None:
            filled[name] = value
    return filled


def _missing(talk: Conversation, tool: str) -> int:
    schema = talk.tools[tool]
    properties = schema.get("properties", {})
    return sum(_find(talk, name, properties.get(name, {})) is None for name in schema.get("required", ()))


def _find(talk: Conversation, name: str, kind: Mapping[str, Any]) -> Any:
    """The value of argument ``name`` in the tools' answers, newest first, or in the user's text, or ``None``."""
    for result in reversed(talk.results):
        for key, value in _members(result):
            if key == name and _fits(value, kind):
                return value
    if "enum" in kind:
        return next((item for item in kind["enum"] if str(item).lower() in talk.user.lower()), None)
    return _in_text(talk.user, name, kind.get("type"))


def _in_text(text: str, name: str, type_: object) -> Any:
    if type_ in ("integer", "number"):
        found = _NUMBER.findall(_CODE.sub(" ", text)) if _named(text, name) else []
        if not found:
            return None
        return int(float(found[0])) if type_ == "integer" else float(found[0])
    if type_ == "string":
        codes = _CODE.findall(text) if name.endswith(("id", "number", "no")) else []
        return next(iter(codes or _QUOTED.findall(text)), None)
    return None


def _named(text: str, name: str) -> bool:
    """Whether the text speaks of this argument at all; else a number in it may mean anything."""
    return any(part in text.lower() for part in name.lower().split("_"))


def _members(text: str) -> Iterator[tuple[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, dict):
        yield from value.items()


def _fits(value: object, kind: Mapping[str, Any]) -> bool:
    python: tuple[type, ...] | None = {
        "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
        "object": (dict,),
    }.get(kind.get("type", ""))  # fmt: skip
    return python is None or (isinstance(value, python) and (isinstance(value, bool) == (python == (bool,))))


def _invent(kind: Mapping[str, Any], words: Callable[[], str]) -> Any:
    if kind.get("enum"):
        return kind["enum"][0]
    simple: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    type_ = kind.get("type", "string")
    return simple[type_] if type_ in simple else words()
