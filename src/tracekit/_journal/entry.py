"""The entries of a trace: their types, families and fixed keys.

Format history (``v`` of every line):

1. 2026-11: the first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["FAMILIES", "FORMAT_VERSION", "READS", "REFUSALS", "SINGLES", "EntryFamily", "family_of"]

FORMAT_VERSION: Final = 1


class EntryFamily(NamedTuple):
    """The entry types of one kind of step: its intention, then pieces, then exactly one outcome."""

    intention: str
    chunk: str
    outcome: str
    error: str
    skipped: str


FAMILIES: Final = {
    "tool": EntryFamily("tool.call", "tool.chunk", "tool.return", "tool.error", "tool.skipped"),
    "llm": EntryFamily("llm.request", "llm.chunk", "llm.response", "llm.error", "llm.skipped"),
    "http": EntryFamily("http.request", "http.chunk", "http.response", "http.error", "http.skipped"),
    "span": EntryFamily("span.start", "span.chunk", "span.end", "span.end", "span.skipped"),
}

#: Steps of one entry, compared whole in a replay.
SINGLES: Final = frozenset(
    {"decision", "data", "state_transition", "policy.check", "breaker", "detection", "contract.violated"}
    | {"task_sent", "task_received", "response_sent", "object.patched", "fallback.triggered", "fallback.exhausted"}
    | {"intent.received", "agent.attempt.start", "agent.attempt.end", "router.decision", "final.response"}
)

#: A call that was not made, in the place of its intention: ``meta.info.family`` says of which kind, ``error`` why.
REFUSALS: Final = frozenset({"contract.violated", "budget.exceeded"})

#: Reads of the world that have no content to check, aligned between the steps of their lane.
READS: Final = frozenset({"clock", "random"})

_FAMILY_OF: Final = {
    kind: (family, role) for family, types in FAMILIES.items() for role, kind in zip(types._fields, types, strict=True)
}
_FAMILY_OF["span.end"] = ("span", "outcome")


def family_of(kind: str) -> tuple[str, str] | None:
    """``("tool", "intention")`` for ``tool.call``; ``None`` for a type that is not part of a step."""
    return _FAMILY_OF.get(kind)
