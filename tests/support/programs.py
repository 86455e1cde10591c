"""Programs of a library that are recorded by one process and replayed by another: the half of those processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

__all__ = ["main", "ran"]


def ran(program: Callable[[Any], Any], *arguments: Any) -> Any:
    """What a program returns, or the coroutine that it is."""
    found = program(*arguments)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


def main(programs: Mapping[str, Callable[[Any], Any]], given: Callable[[str], Any], *packages: str) -> None:
    """``STORE record|replay ARGUMENT [RUNS]``: record or replay every program, and print what they saw; ``given(ARGUMENT)`` is what a
    program gets."""
    import tracekit

    store, act, argument = sys.argv[1], sys.argv[2], given(sys.argv[3])
    runs: dict[str, str] = json.loads(sys.argv[4]) if act == "replay" else {}
    saw: dict[str, Any] = {}
    tracekit.instrument()
    for name, program in programs.items():
        if act == "record":
            with tracekit.record(name, store=store) as recorded:
                saw[name] = ran(program, argument)
            runs[name] = recorded.id
        else:
            with tracekit.replay(runs[name], store=store):
                saw[name] = ran(program, argument)
    json.dump({"versions": {name: version(name) for name in packages}, "runs": runs, "saw": saw}, sys.stdout)
