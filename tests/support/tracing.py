"""Record a program, read what the file says, and replay it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracekit import Report, Run, record, replay


def entries(run: Run | str) -> list[dict[str, Any]]:
    """Every entry of a run's file."""
    path = run if isinstance(run, str) else run.path
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def of_type(run: Run | str, *types: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(run) if entry["type"] in types]


def recorded(program: Callable[[], Any], **options: Any) -> tuple[Run, Any]:
    """The run of ``program``, and what it returned."""
    with record("test", **options) as run:
        value = program()
    return run, value


def replayed(run: Run | str, program: Callable[[], Any], **options: Any) -> tuple[Report, Any]:
    """The report of a replay of ``program``, and what it returned."""
    with replay(run, **options) as session:
        value = program()
    return session.report, value


def both(program: Callable[[], Any]) -> tuple[Run, Any, Any]:
    """The run, what the program returned, and what it returned in an exact replay."""
    run, first = recorded(program)
    report, second = replayed(run, program)
    assert report.exact, report.as_dict()
    return run, first, second
