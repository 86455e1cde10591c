"""The runs that one program made, in the order in which it opened them."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from .._canonical import from_json
from .._journal.reader import Trace
from .._journal.runs import RunSummary, Store
from .._journal.summary import summary

__all__ = ["Sibling", "first_meta", "recorded_input", "siblings"]

#: A first line longer than this is read to its end by nobody: its program is not looked for.
_MOST = 8 << 20


class Sibling(NamedTuple):
    """One run of a program: the how-manieth it opened, its file, and what its first and last line say."""

    ordinal: int
    path: str
    about: RunSummary


def first_meta(path: str) -> dict[str, Any]:
    """``meta`` of a file's first entry, unverified; empty where there is none."""
    try:
        with open(path, "rb") as file:
            meta = orjson.loads(file.readline(_MOST)).get("meta")
    except (OSError, ValueError, AttributeError):
        return {}
    return meta if isinstance(meta, dict) else {}


def recorded_input(path: str) -> Any:
    """What the run in this file was given."""
    with Trace(path) as trace:
        return from_json(trace.expand(trace.entry(1).get("input")))


def siblings(store: Store, path: str) -> dict[int, Sibling]:
    """The runs of the program that made the run at ``path``, by their ordinals, that run among them."""
    own = first_meta(path)
    program, target = own.get("program"), own.get("ordinal")
    found: dict[int, Sibling] = {}
    if type(target) is int:
        found[target] = Sibling(target, path, summary(path))
    for run in store.list() if program is not None else ():
        meta = first_meta(run.path)
        ordinal = meta.get("ordinal")
        if meta.get("program") == program and type(ordinal) is int and "segment" not in meta:
            found.setdefault(ordinal, Sibling(ordinal, run.path, run))
    return found
