"""Giving a run up after a crash: what can be undone is undone where asked for, and the log gets its end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from .._canonical import dumps_in_order
from .._engine.doubt import Steps
from .._engine.recording import ROOT, Recording
from .._engine.recovery import Decision, in_doubt
from .._journal.reader import Trace
from ..errors import LogWriteError
from . import arguments, reopening
from .compensating import Tools, compensate, to_run, tools_of, uncompensated, unknown
from .decisions import refused

__all__ = ["Aborted", "abort"]

#: Reasons for which a run can't be aborted.
FINAL: Final = frozenset(("finished", "aborted", "no_entries"))


class Aborted(NamedTuple):
    """What an abort came to: the steps whose effect is in doubt (one of a child process as ``"SEGMENT:STEP"``), and the reversible
    ones that were undone, and that were not."""

    run_id: str
    path: str
    in_doubt: tuple[int | str, ...]
    compensated: tuple[int, ...]
    uncompensated: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {key: [*value] if isinstance(value, tuple) else value for key, value in self._asdict().items()}


def abort(
    run: str | os.PathLike[str],
    *,
    reason: str,
    by: str | None = None,
    store: str | os.PathLike[str] | None = None,
    accept_lost_tail: bool = False,
    tools: Iterable[str] = (),
    partial: bool = False,
) -> Aborted:
    """End a run that did not end: ``run.aborted``, with who and why, is its last entry, and nothing resumes it any more.

    ``tools`` names modules that are imported for the ``compensate=`` of their tools, and may do nothing else then: these run for the
    reversible steps of the run, the last one first, each a step of its own in the log, and once, however often an abort is cut off
    and asked for again. What was not undone is in the result and in the entry. A step whose tool none of the modules has is refused,
    before anything is undone, unless ``partial``. ``accept_lost_tail`` cuts off what a power loss left. ``RecoveryRefusedError`` for
    a run that has ended, that another process runs, or that holds nothing; ``TraceIntegrityError`` for a damaged one.
    """
    if not reason.strip():
        raise ValueError("an abort needs a reason")
    defined = tools_of(named := tuple(arguments.strings("tools", tools)))

    def look(trace: Trace, decision: Decision) -> None:
        if named and not partial:
            _check(Steps(islice(trace.entries(damaged=True), trace.status.count)), defined, decision)

    with reopening.reopened(run, store, "the abort", FINAL, accept_lost_tail=accept_lost_tail, look=look) as (
        session,
        decision,
    ):
        path = session.journal.path
        before = _log(path)
        steps = to_run(before, defined.specs)
        if steps:
            session._last_lane = before.last_lane
            if not before.abort:
                _begin(session, by, reason)
            with Trace(path) as trace:
                compensate(session, trace, steps, defined.specs)
        after = _log(path) if steps else before
        left = tuple(step.seq for step in uncompensated(after))
        undone = tuple(sorted(step.undoes for step in after.steps.values() if step.undoes and step.state == "done"))
        elsewhere = [step for step in decision.in_doubt if isinstance(step, str)]
        doubt: tuple[int | str, ...] = (*in_doubt(after), *elsewhere)
        end = {
            **reopening.who_and_why(session, by, reason),
            "in_doubt": [*doubt],
            "compensated": [*undone],
            "uncompensated": [*left],
        }
        _end(session, end)
    reopening.sealed(session)
    return Aborted(session.run_id, path, doubt, undone, left)


def _log(path: str) -> Steps:
    with Trace(path) as trace:
        return Steps(trace.entries())


def _check(log: Steps, tools: Tools, decision: Decision) -> None:
    """Refuse where the modules are not those of the run: what it did would stay as it is, and nobody could undo it any more."""
    found = unknown(log, tools)
    if found:
        listed = ", ".join(f"{step.seq} ({step.name!r})" for step in sorted(found, key=lambda step: step.seq))
        text = f"no module named has the tools of reversible steps that were not undone: {listed}"
        reason: dict[str, object] = {"code": "tools_unknown", "text": text, "steps": sorted(step.seq for step in found)}
        next_action = (
            "name the modules that define them too (--tools), or say --partial to leave these steps as they are"
        )
        raise refused(decision, "the abort", (reason,), next_action)


def _begin(session: Recording, by: str | None, reason: str) -> None:
    """From now on the run is being given up: what is undone next, the program would know nothing of."""
    meta = {"abort": reopening.who_and_why(session, by, reason)}
    session.journal.append("recovery.started", 0, ROOT, b',"meta":%b' % dumps_in_order(meta), True)


def _end(session: Recording, end: dict[str, Any]) -> None:
    journal = session.journal
    journal.flush()
    with journal.held():
        session.ended = True
        end["segments"] = reopening.segments(journal.path, session.run_id)
        end["count"] = journal.seq + 1
        journal.append("run.aborted", 0, ROOT, b',"meta":%b' % dumps_in_order(end), True)
    if journal.lost:  # of the compensations
        raise LogWriteError(f"entries of the abort are missing from {journal.path}", run_id=session.run_id)
