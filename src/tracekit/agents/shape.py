"""What of a JSON Schema the schemas of this package use, in plain code: whoever reads a record needs no validator installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["wrong"]


def wrong(value: Any, schema: Mapping[str, Any], where: str = "", root: Mapping[str, Any] | None = None) -> str | None:
    """What is wrong with a value, and where; ``None`` if it keeps to the schema."""
    root = schema if root is None else root
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        problem = wrong(value, root["$defs"][name], where, root)
        if problem is not None:
            return problem
    for check in (_kind, _text, _number, _either, _members, _items, _condition):
        problem = check(value, schema, where, root)
        if problem is not None:
            return problem
    return None


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "object": Mapping,
    "array": (list, tuple),
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def _told(value: Any, where: str, instead: str) -> str:
    return f"{where or 'it'} is {value!r:.80}, not {instead}"


def _kind(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return _told(value, where, " or ".join(_WORDS[kind] for kind in kinds))
    if "enum" in schema and value not in schema["enum"]:
        return _told(value, where, "one of " + ", ".join(schema["enum"]))
    if "const" in schema and value is not schema["const"]:
        return _told(value, where, repr(schema["const"]))
    return None


_WORDS: Final = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def _text(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if not isinstance(value, str):
        return None
    if len(value) < schema.get("minLength", 0):
        return f"{where} is empty"
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return _told(value, where, f"what {schema['pattern']} describes")
    return None


def _number(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        return _told(value, where, f"{schema['minimum']} or more")
    return None


def _either(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    problems = [wrong(value, one, where, root) for one in schema.get("anyOf", ())]
    return problems[-1] if problems and None not in problems else None


def _members(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if not isinstance(value, Mapping):
        return None
    before = f"{where}." if where else ""
    for key in schema.get("required", ()):
        if key not in value:
            return f"{before}{key} is missing"
    properties = schema.get("properties", {})
    for key, item in value.items():
        if key in properties:
            problem = wrong(item, properties[key], f"{before}{key}", root)
            if problem is not None:
                return problem
        elif schema.get("additionalProperties", True) is False:
            return f"{before}{key} is no part of it"
    return None


def _items(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if not isinstance(value, (list, tuple)):
        return None
    if len(value) < schema.get("minItems", 0):
        return f"{where} is empty"
    problems = (wrong(item, schema.get("items", {}), f"{where}[{n}]", root) for n, item in enumerate(value))
    return next((problem for problem in problems if problem is not None), None)


def _condition(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any]) -> str | None:
    if "if" not in schema:
        return None
    branch = "then" if wrong(value, schema["if"], where, root) is None else "else"
    return wrong(value, schema.get(branch, {}), where, root)
