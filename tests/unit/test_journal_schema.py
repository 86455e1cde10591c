"""The published schema describes every line."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.support.plain_writer import entry, lines, small_run
from tracekit._journal.entry import ENDS, FAMILIES, SCHEMA_URI, load_schema
from tracekit.integration import READS, SINGLES

VALIDATOR = jsonschema.Draft202012Validator(load_schema())

#: Every type that the design names.
TYPES = {
    "run.started", "run.completed", "run.failed", "run.aborted", "lane", "identity", "blob", "boundary",
    "llm.request", "llm.chunk", "llm.response", "llm.error", "http.request", "http.chunk", "http.response", "http.error",
    "tool.call", "tool.chunk", "tool.return", "tool.error", "tool.skipped", "span.start", "span.end",
    "decision", "data", "state_transition", "policy.check", "breaker", "detection", "clock", "random",
    "task_sent", "task_received", "response_sent", "contract.validated", "contract.violated",
    "fallback.triggered", "fallback.exhausted", "budget.estimated", "budget.exceeded",
    "recovery.started", "recovery.settled", "recovery.completed",
    "intent.received", "agent.attempt.start", "agent.attempt.end", "router.decision", "final.response", "object.patched",
}  # fmt: skip


def _problems(line: bytes) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(json.loads(line))]


def _described() -> set[str]:
    found: set[str] = set()
    for rule in load_schema()["allOf"]:
        kind = rule["if"]["properties"].get("type", {})
        found |= set(kind.get("enum", [kind["const"]] if "const" in kind else []))
    return found


def test_the_schema_is_one() -> None:
    """The schema is valid itself, and SCHEMA_URI is its name."""
    jsonschema.Draft202012Validator.check_schema(load_schema())
    assert load_schema()["$id"] == SCHEMA_URI


def test_every_type_is_described() -> None:
    """Each type that the design names, and each that the code knows, is described by the schema."""
    known = {kind for family in FAMILIES.values() for kind in family} | SINGLES | READS | ENDS
    assert (TYPES | known) <= _described()


def test_a_run_validates() -> None:
    """Each line of a run satisfies the schema, and so does one of a later minor version."""
    later = entry("future.thing", colour="blue")
    assert [_problems(line) for line in lines([*small_run(), later])] == [[]] * 9


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Tool Call"},
        {"lane": "0"},
        {"parent": 0},
        {"ts_ns": 1.5},
        {"input_hash": "md5:1"},
        {"type": "tool.call", "name": "t"},
        {"type": "tool.call", "name": "t", "input": {}, "meta": {"side_effect": "maybe"}},
        {"type": "tool.return", "output": 1},
        {"type": "clock", "name": "time.time"},
        {"type": "run.completed", "meta": {}},
        {"type": "lane", "input": {"id": 1}},
        {"type": "blob"},
        {"type": "blob", "output": {"$extend": 2}},
        {"type": "blob", "output": {"$extend": 2, "v": []}},
        {
            "type": "tool.call",
            "name": "t",
            "input": {"$extend": 2, "at": [0], "v": []},
            "meta": {"side_effect": "read_only"},
        },
        {"type": "decision", "name": "d", "output": {"$ref": 1, "at": 1}},
        {"type": "blob", "output": {"$ref": 0}},
        {"type": "decision", "name": "d", "output": {"$ref": 1, "x": 1}},
        {"type": "decision", "name": "d", "output": {"$odd": 1}},
    ],
)
def test_what_is_no_entry_does_not_validate(fields: dict[str, Any]) -> None:
    """Missing keys, wrong types, references that are none: the schema says no."""
    line = lines([small_run()[0], {"type": "decision", "name": "d", **fields}])[1]
    assert _problems(line)


@pytest.mark.parametrize(
    "output",
    [
        {"$ref": 2},
        {"$ref": 2, "at": ["input"]},
        {"$ref": 2, "at": ["input", "messages", 0, "content"]},
        {"a": {"$extend": 2, "at": ["input", "messages"], "n": 1, "v": [{"$ref": 2, "at": ["input", "x"]}]}},
        {"$t": "bytes", "v": "AA=="},
        {"": 1},
        [{"a": {"$ref": 2}}],
    ],
)
def test_references_and_tags_validate(output: Any) -> None:
    """Each form of reference and a tagged value satisfy the schema."""
    assert not _problems(lines([small_run()[0], entry("blob", output=output)])[1])
