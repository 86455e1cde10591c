"""Settling a doubtful step by hand: a person says what became of it, and the log keeps who and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from .._canonical import contains_opaque, dumps, dumps_in_order, from_json, to_json
from .._engine.doubt import Doubt, Steps
from .._engine.recovery import Decision
from .._journal.entry import FAMILIES, family_of
from .._journal.limits import DEFAULT
from .._journal.reader import Trace
from ..errors import NotReplayableError, RecoveryRefusedError
from . import reopening
from .decisions import refused, store_at
from .settling_ended import settle_ended

__all__ = ["FINAL", "settle", "settle_as"]

#: Reasons for which nothing in a run can be settled.
FINAL: Final = frozenset(("finished", "aborted", "no_entries"))
_MISSING: Final = object()


def settle(
    run: str | os.PathLike[str],
    step: int,
    *,
    output: Any = _MISSING,
    not_done: bool = False,
    reason: str,
    by: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> int:
    """Say of a step in doubt, pending or failed that it was done and gave ``output``, or that it was ``not_done``.

    A step that was done answers with ``output`` when the run is resumed (a generator: with the list of all its items, those that the
    log has first); one that was not done is made again. Where the program has gone on with its error, it keeps the error: then this
    only says that somebody has looked. As long as nothing was done since, a settlement can be corrected by another. ``reason`` and
    ``by`` (the user of the operating system) go into the log. Returns the ``seq`` of the new entry. ``RecoveryRefusedError`` for a run
    that has ended or that another process runs, and for a step that has nothing to settle.

    One more can be settled when its run has ended: a call that happens once in the whole store (``exactly_once="store"``), for the
    runs that will ask for it. That stands beside its key, the log stays as it is, and 0 is returned.
    """
    if (output is _MISSING) == (not not_done):
        raise ValueError("a step was done, with output=…, or not_done=True")
    tree = None if not_done else to_json(output)
    if contains_opaque(tree) is not None:
        raise ValueError(f"this output can't be recorded: {contains_opaque(tree)}")
    return settle_as(run, step, tree, done=not not_done, reason=reason, by=by, store=store)


def settle_as(
    run: str | os.PathLike[str],
    step: int,
    tree: Any,
    *,
    done: bool,
    reason: str,
    by: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> int:
    """The same with the output as a trace writes it."""
    if not reason.strip():
        raise ValueError("a settlement needs a reason")
    if type(step) is not int or step < 1:
        raise ValueError(f"a step is the number of an entry, from 1, not {step!r}")
    run = store_at(store).find(run)
    if settle_ended(run, step, tree, done=done, reason=reason, by=by):
        return 0
    if done:
        _rebuildable(tree)
    looked: list[Doubt] = []

    def look(trace: Trace, decision: Decision) -> None:
        found = _settleable(Steps(trace.entries(damaged=True)), step, done, decision)
        if done and found.chunks:
            _all_items(trace, found, tree)
        looked.append(found)

    with reopening.reopened(run, None, "settling a step", FINAL, look=look) as (session, _):
        found = looked[0]
        about = {"reason": "settled", "settled": {**reopening.who_and_why(session, by, reason), "done": done}}
        tail = b',"step":%d' % step
        if done:
            tree, redacted = session.redactor.redact(tree)
            data = dumps_in_order(tree)
            if len(data) > DEFAULT.line // 2:
                raise ValueError(f"this output is too large for a line of a trace: {len(data) >> 20} MiB")
            tail += b',"output":%b' % data
            meta: dict[str, Any] = {"info": about} | ({"redacted": redacted} if redacted else {})
        else:
            meta = {"info": about}
        tail += b',"meta":%b' % dumps_in_order(meta)
        return session.journal.append(_kind(found, done), found.lane, found.seq, tail, True)


def _kind(step: Doubt, done: bool) -> str:
    """An outcome; where the program has gone on with the recorded one, only a note."""
    if step.state == "failed" and step.passed:
        return "recovery.settled"
    types = FAMILIES[step.family]
    return types.outcome if done else types.skipped


def _settleable(log: Steps, seq: int, done: bool, decision: Decision) -> Doubt:
    step = log.steps.get(seq)
    if step is None:
        raise _refused(decision, f"entry {seq} is not the intention of a tool, a model call or an exchange")
    what = f"step {seq}, {step.family} {step.name!r},"
    if (step.state in ("done", "given_up") or step.settled) and not _unread(log, step):
        raise _refused(decision, f"{what} has its outcome (entry {step.outcome})")
    if step.state == "failed" and not step.effect:
        raise _refused(
            decision, f"{what} is {step.side_effect} and failed: the program has its error, nothing is in doubt"
        )
    if step.chunks and step.family != "tool":
        raise _refused(
            decision, f"{what} gave pieces of a model's answer, which nobody can give by hand: abort the run"
        )
    if step.went_on and not done:
        raise _refused(decision, f"{what} gave pieces that the program has gone on with: it can't be made again")
    if not done and not (step.state == "failed" and step.passed) and (inside := _stands_inside(log, step)):
        listed = ", ".join(map(str, inside))
        raise _refused(
            decision,
            f"inside {what} something was begun that can't be taken back (step {listed}), and making it again would do that again: "
            "say what it gave, with --done",
        )
    return step


def _stands_inside(log: Steps, step: Doubt) -> list[int]:
    """What was done inside a step and would be done again with it; a call that happens once is answered by its key."""
    return [
        inner.seq
        for inner in log.steps.values()
        if inner.effect
        and inner.state != "given_up"
        and inner.undoes != step.seq
        and not (inner.key_by is not None and inner.state == "done" and inner.hidden is None)
        and any(outer.seq == step.seq for outer in log.enclosing(inner))
    ]


def _unread(log: Steps, step: Doubt) -> bool:
    """Whether a person has settled it, and nothing was done since: then he may correct himself."""
    return step.settled and step.state in ("done", "given_up") and max(log.steps) < step.outcome


def _rebuildable(tree: Any) -> None:
    """``ValueError`` unless a program can be given it: a codec of the program's own is not known here."""
    try:
        from_json(tree)
    except NotReplayableError as error:
        why = str(getattr(error, "reason", error))
        if not why.startswith("no codec"):
            raise ValueError(f"this output can't be given to a program: {why}") from None


def _all_items(trace: Trace, step: Doubt, tree: Any) -> None:
    """``ValueError`` unless ``tree`` lists all items of a generator, first those that the log has."""
    recorded = [
        trace.expand(entry["output"])
        for entry in trace.entries(damaged=True)
        if entry.get("step") == step.seq and family_of(entry["type"]) == ("tool", "chunk")
    ]
    if type(tree) is not list or dumps(tree[: len(recorded)]) != dumps(recorded):
        raise ValueError(
            f"step {step.seq} is a generator: its output is a list of all its items, and begins with the {len(recorded)} of the log"
        )


def _refused(decision: Decision, text: str) -> RecoveryRefusedError:
    reason: Mapping[str, Any] = {"code": "not_settleable", "text": text}
    return refused(decision, "settling it", (dict(reason),), "`tracekit recovery scan` lists the steps in doubt")
