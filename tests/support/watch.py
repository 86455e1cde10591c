"""What holds for every trace that any test wrote: no secret of the environment in it, each line as the schema says."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import orjson

__all__ = ["CANARY", "NAME", "problems"]

#: In the environment of every test.
NAME = "SUITE_CANARY_TOKEN"
CANARY = "sk-proj-SuiteCanary8Yp2Lm5Qw9Zr3Tx7Vb1Nc"
#: So many lines of one type are looked at in one file, and so many of one shape in all.
_EACH, _ALIKE = 2, 1


def problems(base: Path) -> list[str]:
    """What is wrong with the files of stores below ``base``: those that hold the canary, and what does not satisfy the schema, of traces
    that tracekit itself wrote and no test has damaged since."""
    import jsonschema

    from tracekit._journal.entry import load_schema

    schema = load_schema()
    validators = cache(lambda kind: jsonschema.Draft202012Validator(_of_type(schema, kind)))
    found: list[str] = []
    seen: Counter[str] = Counter()
    for path in _files(base):
        with open(path, "rb") as file:
            text = file.read()
        if CANARY.encode() in text:
            found.append(f"{path}: holds the canary")
        if not _own(text):
            continue
        new = [entry for entry in _sampled(text) if seen[_shape(entry)] < _ALIKE]
        if not new or not _whole(path):
            continue
        for entry in new:
            seen[_shape(entry)] += 1
            validator = validators(entry["type"])
            if not validator.is_valid(entry):
                problem = next(validator.iter_errors(entry))
                found.append(f"{path}: line {entry['seq']} ({entry['type']}): {problem.message[:300]}")
    return found


def _shape(entry: dict[str, Any]) -> str:
    """What the schema speaks of: type, keys, and of what type their values are."""
    keys = [f"{key}:{type(value).__name__}" for key, value in entry.items()]
    meta = entry.get("meta")
    if isinstance(meta, dict):
        keys += [f"{key}:{type(value).__name__}" for key, value in meta.items()]
    return f"{entry['type']} {' '.join(sorted(keys))}"


def _files(base: Path) -> Iterator[str]:
    for directory, _, names in os.walk(base):
        for name in names:
            if name.endswith(".jsonl") and os.path.isfile(path := f"{directory}/{name}"):
                yield path


def _sampled(text: bytes) -> Iterator[dict[str, Any]]:
    seen: Counter[bytes] = Counter()
    for line in text.split(b"\n"):
        kind = line[line.find(b'"type":') :][:30]
        seen[kind] += 1
        if line.endswith(b"}") and seen[kind] <= _EACH:
            with suppress(ValueError, RecursionError):  # of a file that a test has damaged
                entry = orjson.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("type"), str):
                    yield entry


def _own(text: bytes) -> bool:
    """Whether tracekit wrote the file: a log that a test writes says nothing of where it was written."""
    try:
        return "environment" in orjson.loads(text[: text.find(b"\n")])["meta"]
    except (ValueError, LookupError, TypeError):
        return False


def _whole(path: str) -> bool:
    """Whether no test has damaged the file."""
    from tracekit.errors import TraceError
    from tracekit.integration import Trace

    try:
        with Trace(path) as trace:
            return trace.status.state != "broken"
    except TraceError:
        return False


def _of_type(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """The schema for entries of one type, without what it says of each other type, which is most of it."""

    def applies(part: dict[str, Any]) -> bool:
        condition = part.get("if", {}).get("properties", {})
        if condition.keys() != {"type"} or "else" in part:
            return True
        types = condition["type"].get("enum") or [condition["type"].get("const", kind)]
        return kind in types

    return {**schema, "allOf": [part for part in schema["allOf"] if applies(part)]}
