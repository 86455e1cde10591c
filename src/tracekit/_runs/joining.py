"""Joining the run of a parent process, or its replay, when a child process imports tracekit.

A process that a run's program has started joins the run, or its replay, when it imports tracekit and finds a ticket in its environment.

While a run is recorded the whole process is one segment of it, a file of its own; in a replay the process is answered from that file,
and is behind the guard from then on. Where it can't join a recorded run, it runs unrecorded, with a warning.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from .._capture import instrumentation, processes, world
from .._journal.store import Store, segment_of, summary, valid_run_id
from .._runtime.process import process
from .._runtime.redaction import Redactor
from .children import is_itself
from .forks import RecordedProcess, Segment

__all__ = ["join", "leave"]


def join() -> None:
    """Join the run or replay whose ticket is in the environment, and remove it: each child process gets its own."""
    variable = os.environ.pop(processes.VARIABLE, None)
    if variable is None:
        return
    try:
        ticket = json.loads(variable)
        replayed = ticket["mode"] == "replay"
    except (ValueError, TypeError, KeyError):
        _warn_not_joined(f"{processes.VARIABLE} is none of tracekit's")
        return
    if replayed:
        from .replaying import join_replay

        join_replay(ticket)
        return
    try:
        problem = _record(ticket)
    except Exception as error:
        problem = str(error)
    if problem is not None:
        _warn_not_joined(problem)


def _warn_not_joined(problem: str) -> None:
    from .._runtime.callsite import warn

    warn(f"this process was started by a recorded run and can't join it: {problem}; it is not recorded")


def leave() -> None:
    """Leave the run again: this process is a command of tracekit itself, not part of the run's program."""
    if isinstance(process.role, RecordedProcess):
        process.role.withdraw()


def _record(ticket: Mapping[str, Any]) -> str | None:
    """Join a run that is being recorded; returns why that is not possible, else ``None``."""
    run_id, root, lane, path = ticket["run_id"], ticket["store"], ticket["lane"], ticket["file"]
    if not valid_run_id(run_id) or not all(isinstance(one, str) for one in (lane, root, path)):
        return f"{processes.VARIABLE} is none of tracekit's"
    store = Store(root)
    if path != store.path(run_id):
        store = Store(root, file=path)
    places = (store.runs, path) if store.file is not None else (store.root, store.runs, path)
    try:
        foreign = any(os.stat(place).st_uid != os.getuid() for place in places)
    except OSError:
        return f"run {run_id} is not in {store.runs}"
    if foreign:
        return f"{store.runs} is another user's"
    if summary(path).end is not None:
        return f"run {run_id} has ended"
    process.role = _recorded(store, ticket)
    return None


def _recorded(store: Store, ticket: Mapping[str, Any]) -> RecordedProcess:
    patterns = [re.compile(pattern, flags) for pattern, flags in ticket["redact"]]
    base, n, lane = ticket["lane"], 1, ticket["lane"]
    while os.path.exists(store.path(ticket["run_id"], segment_of(lane))):  # of an earlier process with this place
        n += 1
        lane = f"{base}+{n}"
    segment = Segment(
        store,
        ticket["run_id"],
        ticket["durability"],
        lane,
        ticket["cause"],
        Redactor.of_process(patterns, store.root, create=True),
        ticket["program"],
        ticket["arguments"],
        indirect=not is_itself(ticket["by"], ticket["as"]),
    )
    if ticket["instrument"]:
        instrumentation.instrument()
    world.enter()
    return RecordedProcess(segment, ticket)
