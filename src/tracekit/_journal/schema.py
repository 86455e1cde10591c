"""The published JSON Schema (draft 2020-12) of one line of a trace; ``schema.json`` beside this file is it."""

from __future__ import annotations

import os
from typing import Any, Final

__all__ = ["SCHEMA_URI", "load", "text"]

#: The ``$id`` of the schema of the format version that this tracekit writes.
SCHEMA_URI: Final = "urn:tracekit:trace:1"

_PATH: Final = os.path.join(os.path.dirname(__file__), "schema.json")


def text() -> str:
    """The schema as it is published."""
    with open(_PATH, encoding="utf-8") as file:
        return file.read()


def load() -> dict[str, Any]:
    """The schema as a dictionary, new each time."""
    import orjson

    schema: dict[str, Any] = orjson.loads(text())
    return schema
