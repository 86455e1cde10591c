"""An operator's decisions about a run that died: settling a step in doubt, or aborting the run."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

from .. import _reality
from .._capture.http import answer_problem
from .._journal.entry import DEFAULT, FAMILIES, family_of
from .._journal.keys import Keys
from .._journal.reader import Trace, Verdict
from .._journal.store import Store, beside, file_name, segment_state, shown_as
from .._policy.policies import under_policies
from .._runtime.lane import ROOT
from .._runtime.recorder import Recording, encode_reads
from .._runtime.recovered import RecoveredLog, RecoveredStep, steps_in_doubt
from .._runtime.redaction import Redactor, below
from .._values import dumps, dumps_in_order, not_serialisable, to_json
from .._values.decoding import from_json
from ..errors import LogWriteError, NotReplayableError, RecoveryRefusedError, RunStateError
from . import block
from .children import RecordedChildren
from .recovery import (
    HTTP_FORM,
    Decision,
    decided,
    held,
    inside_of,
    keep_settlement,
    key_of,
    named,
    owner_of,
    refused,
    settlements,
)
from .undoing import Tools, compensate, to_run, tools_of, uncompensated, unknown

__all__ = [
    "Aborted",
    "abort",
    "completed",
    "operator",
    "reopened",
    "segments",
    "settle",
    "settle_as",
]

# -- opening a dead run ------------------------------------------------------------------------------------------------
#
# Reopening the log of a dead run to add an operator's decision.


@contextmanager
def reopened(
    run: str | os.PathLike[str],
    store: str | os.PathLike[str] | None,
    what: str,
    final: Collection[str],
    *,
    accept_lost_tail: bool = False,
    look: Callable[[Trace, Decision], None] | None = None,
) -> Iterator[tuple[Recording, Decision]]:
    """Yield a session that appends to the log of ``run``, and the decision on it; meanwhile, nothing else can write it.

    A torn tail is cut off and kept. ``what`` is refused for the reasons in ``final``, if another process has the run
    open, and if ``look`` raises: then nothing is changed.
    """
    path = Store.at(store).find(run)
    found: list[Decision] = []

    def check(trace: Trace, verdict: Verdict) -> None:
        decision = decided(trace, verdict, accept_lost_tail=accept_lost_tail, original_is_dead=None)
        if reasons := [reason for reason in decision.reasons if reason["code"] in final]:
            raise refused(decision, what, reasons, f"`tracekit show {shown_as(path)}` shows the run as it is")
        if look is not None:
            look(trace, decision)
        found.append(decision)

    try:
        journal, _ = Store.of(path).reopen(
            path, encode_read=encode_reads, accept_lost_tail=accept_lost_tail, check=check
        )
    except RunStateError as error:
        raise _held(path, what, error) from error
    session = Recording(journal, Redactor.of_process((), trace=path, create=True))
    session.state.children = RecordedChildren(session)
    under_policies(session)
    try:
        yield session, found[0]
    finally:
        session.state.ended = True
        journal.close()


def _held(path: str, what: str, error: RunStateError) -> RecoveryRefusedError:
    reason = held(error.__dict__.get("pid"))
    decision = Decision(file_name(path).stem, "incomplete", "abort", (reason,))
    return refused(decision, what, (reason,), "wait until that run has ended, or end that process")


def operator() -> str:
    """Return the default name of the operator: the user of the operating system."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def who_and_why(session: Recording, by: str | None, reason: str) -> dict[str, Any]:
    """Return ``by``, ``reason`` and ``at``, for the log."""
    return said_by(session.redactor, by, reason)


def said_by(redactor: Redactor, by: str | None, reason: str) -> dict[str, Any]:
    """Return ``by``, ``reason`` and ``at``, redacted, when no session is open."""
    clean = redactor.redact_text
    return {"by": clean(by or operator())[0], "reason": clean(reason)[0], "at": _reality.time_ns()}


def segments(path: str) -> list[dict[str, Any]]:
    """Return the files of a run's other processes, each with entry count and tip hash, or as open."""
    return [segment_state(segment) for segment in beside(path)]


def completed(session: Recording) -> None:
    """Store the tip hash of a run that is complete now, and seal it if there is a key; for a file outside of every
    store, only seal it."""
    path = os.path.abspath(session.log.journal.path)
    where = Store.of(path)
    if where.path(session.run_id) != path:
        where = Store(file=path)
    where.keep_tip(session.run_id, session.log.journal.seq, session.log.journal.head.decode())


# -- resolving a step of an ended run ----------------------------------------------------------------------------------
#
# Nothing can be added to the log of an ended run, so the settlement of its step is kept beside the runs, in
# ``settled/<run>.<step>``.
#
# A call that happens once in the whole store is settled beside its key, which answers other runs.


def settle_ended(path: str, step: int, tree: Any, *, done: bool, reason: str, by: str | None) -> Settled | None:
    """Settle ``step`` of the run at ``path``, which has ended; return ``None`` if it has not, or if it was
    aborted and the step is not in doubt."""
    where = Store.of(path)
    with Trace(path) as trace:
        verdict = where.judge(trace)
        if verdict.state != "complete":
            return None
        entry = trace.entry(step) if 0 < step <= verdict.count else {}
        digest = key_of(entry)

        def no(text: str, code: str = "not_settleable") -> RecoveryRefusedError:
            about: dict[str, object] = {"code": code, "text": text}
            decision = decided(trace, verdict, original_is_dead=None)
            return refused(
                decision, "settling it", (about,), f"`tracekit show {shown_as(path)}` shows the run as it is"
            )

        log = RecoveredLog(trace.entries())
        found = log.steps.get(step)
        in_doubt = found is not None and (found.left_in_doubt if digest is None else _open(found))
        if not in_doubt and verdict.end == "run.aborted":
            return None
        if found is None:
            raise no(
                f"the run has ended, and its entry {step} is not a step: `tracekit in-doubt` lists what can be settled"
            )
        if not in_doubt:
            raise no(
                f"the run has ended, and its step {step}, {found.family} {found.name!r}, is not in doubt", "finished"
            )
        settled = settlements(trace)
        if digest is None and (around := [one for one in log.settled_with(found) if settled(one.seq) is not None]):
            raise no(f"step {step}, {found.family} {found.name!r}, was settled with {named(around[:1])}, around it")
        _check_form(found, done, tree)
        along = tuple(
            one
            for one in log.steps.values()
            if one.left_in_doubt
            and settled(one.seq) is None
            and any(around is found for around in log.settled_with(one))
        )
        redactor = Redactor.of_process((), where.root, create=True)
        tree, secret = redactor.redact(tree)
        if secret and digest is not None:
            raise no(
                "this output contains a secret, which is not written down: the other runs could not be answered with it"
            )
        statement = {
            "hash": entry["hash"],
            "done": done,
            **({"output": tree} if done else {}),
            **said_by(redactor, by, reason),
        }
        if digest is None and not keep_settlement(path, step, statement):
            raise no(f"step {step}, {found.family} {found.name!r}, was settled before")
        if digest is not None and not Keys(where.root).settle(digest, owner_of(path, step), statement):
            raise no(f"the key of step {step}, tool {found.name!r}, was settled before, or belongs to another run now")
    return Settled(0, along)


class Settled(NamedTuple):
    """A settlement: its entry (0: it is kept beside the log), and the steps inside that were settled with it.

    ``corrects`` is what an earlier settlement said that this one replaces: whether the step was done. ``None`` if there was none.
    """

    seq: int
    along: tuple[RecoveredStep, ...] = ()
    corrects: bool | None = None


def _open(step: RecoveredStep) -> bool:
    """Return whether nothing says what the outcome of the step was."""
    return step.state == "pending" or (step.state == "failed" and step.effect and not step.settled)


# -- resolving a step --------------------------------------------------------------------------------------------------
#
# A person states the outcome of a step in doubt, and the log keeps who and why.

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
    """Resolve a step that is in doubt, pending or failed: it was done and returned ``output``, or it was ``not_done``.

    When the run is resumed, a step that was done answers with ``output`` (for a generator: the list of all its items,
    beginning with those in the log); one that was not done is repeated. Both apply to what is in doubt inside the step
    as well. If the program has already gone on with its error, it keeps the error: then this only records that somebody
    has checked. Until the run is resumed, another settlement can correct this one. ``reason`` and ``by`` (default: the
    user of the operating system) go into the log.

    Returns the ``seq`` of the new entry. A step that a run left in doubt when it ended can be settled, too, and so can
    a call that happens once in the whole store (``exactly_once="store"``), for the runs that will request it. That is
    kept beside the log, which is unchanged, and 0 is returned.

    Raises ``RecoveryRefusedError`` for a run that another process has open, and for a step that has nothing to settle;
    ``ValueError`` unless exactly one of ``output`` and ``not_done`` is given, and for an output that can't be recorded.
    """
    if (output is _MISSING) == (not not_done):
        raise ValueError("a step was done, with output=…, or not_done=True")
    tree = None if not_done else to_json(output)
    if not_serialisable(tree) is not None:
        raise ValueError(f"this output can't be recorded: {not_serialisable(tree)}")
    return settle_as(run, step, tree, done=not not_done, reason=reason, by=by, store=store).seq


def settle_as(
    run: str | os.PathLike[str],
    step: int,
    tree: Any,
    *,
    done: bool,
    reason: str,
    by: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Settled:
    """Settle a step like ``settle``, with the output in the form of a trace; also return what was settled with the
    step."""
    if not reason.strip():
        raise ValueError("a settlement needs a reason")
    if type(step) is not int or step < 1:
        raise ValueError(f"a step must be the number of an entry (>= 1), not {step!r}")
    run = Store.at(store).find(run)
    if (ended := settle_ended(run, step, tree, done=done, reason=reason, by=by)) is not None:
        return ended
    if done:
        _rebuildable(tree)
    looked: list[RecoveredStep] = []
    along: list[RecoveredStep] = []

    def look(trace: Trace, decision: Decision) -> None:
        log = RecoveredLog(trace.entries(damaged=True))
        found = _settleable(log, step, done, decision)
        _check_form(found, done, tree)
        if done and found.chunks:
            _all_items(trace, found, tree)
        looked.append(found)
        along.extend(_along(log, found, done))

    with reopened(run, None, "settling a step", FINAL, look=look) as (session, _):
        found = looked[0]
        corrects = found.state == "done" if found.settled and not found.passed else None
        statement = {**who_and_why(session, by, reason), "done": done}
        about = {"reason": "settled", "settled": statement | ({"inside": [one.seq for one in along]} if along else {})}
        tail = b',"step":%d' % step
        if done:
            tree, redacted = session.redactor.redact(tree)
            data = dumps_in_order(tree)
            if len(data) > DEFAULT.line // 2:
                raise ValueError(f"this output is too large for a line of a trace: {len(data) >> 20} MiB")
            tail += b',"output":%b' % data
            meta: dict[str, Any] = {"info": about} | ({"redacted": below(redacted, "/output")} if redacted else {})
        else:
            meta = {"info": about}
        tail += b',"meta":%b' % dumps_in_order(meta)
        if not done and not (found.state == "failed" and found.passed):
            # The steps inside first, each as if settled alone: after an interruption, the step itself is still in
            # doubt.
            one_of = dumps_in_order({"info": {"reason": "settled", "settled": {**statement, "with": step}}})
            for one in reversed(along):
                rest = b',"step":%d,"meta":%b' % (one.seq, one_of)
                session.log.journal.append(FAMILIES[one.family].skipped, one.lane, one.seq, rest, True)
        seq = session.log.journal.append(_kind(found, done), found.lane, found.seq, tail, True)
        return Settled(seq, tuple(along), corrects)


def _along(log: RecoveredLog, step: RecoveredStep, done: bool) -> list[RecoveredStep]:
    """Return the steps that are settled along with ``step``: done with it, and not repeated; or not done, and repeated
    with it."""
    if not done and not (step.state == "failed" and step.passed):
        return inside_of(log, step)[0]
    return [
        one
        for one in log.steps.values()
        if one.effect
        and (one.open or one.covered == step.seq)
        and any(around is step for around in log.settled_with(one))
    ]


def _check_form(step: RecoveredStep, done: bool, tree: Any) -> None:
    """Raise ``ValueError`` unless the output of an HTTP exchange is an answer in the form of a trace."""
    if done and step.family == "http" and (problem := answer_problem(tree)):
        raise ValueError(
            f"step {step.seq}, http {step.name!r}, was answered with a message, but this is not one: {problem}. "
            f"It looks like this: {HTTP_FORM}; "
            'a body that is not JSON is a text, with the format "text"'
        )


def _kind(step: RecoveredStep, done: bool) -> str:
    """Return the type of the entry to write: an outcome, or only a note if the program has used the recorded outcome
    already."""
    if step.state == "failed" and step.passed:
        return "recovery.settled"
    types = FAMILIES[step.family]
    return types.outcome if done else types.skipped


def _settleable(log: RecoveredLog, seq: int, done: bool, decision: Decision) -> RecoveredStep:
    step = log.steps.get(seq)
    if step is None:
        raise _refused(decision, f"entry {seq} is not the intent record of a tool, a model call or an exchange")
    what = f"step {seq}, {step.family} {step.name!r},"
    if (step.state in ("done", "given_up") or step.settled) and not _unread(log, step):
        raise _refused(decision, f"{what} has its outcome (entry {step.outcome})")
    if step.state == "failed" and not step.effect:
        raise _refused(
            decision, f"{what} is {step.side_effect} and failed: the program has its error, nothing is in doubt"
        )
    if step.chunks and step.family != "tool":
        raise _refused(
            decision, f"{what} gave pieces of a model's answer, which cannot be supplied by hand: abort the run"
        )
    if step.continued_at and not done:
        raise _refused(decision, f"{what} gave pieces that the program has gone on with: it can't be made again")
    if step.covered:
        around = log.steps[step.covered]
        raise _refused(
            decision,
            f"{what} was settled with {named([around])}, around it, which answers for it: nothing about it is in doubt. If that was wrong, "
            "settle the step around it again",
        )
    if not done and not (step.state == "failed" and step.passed):
        _check_inside(log, step, decision, what)
    return step


def _check_inside(log: RecoveredLog, step: RecoveredStep, decision: Decision, what: str) -> None:
    """Refuse to have a step repeated if something was done inside it that would be done again."""
    against = inside_of(log, step)[1]
    if over := [one for one in against if not one.open]:
        raise _refused(
            decision,
            f"inside {what} something was done that can't be taken back ({named(over)}), and making the step again would do that again. "
            f"State with --done what the step returned, or abandon the run: `tracekit recovery abort {decision.run_id} --reason TEXT`",
        )
    if against:
        first = ", ".join(
            f"`tracekit recovery settle {decision.run_id} {one.seq} --done OUTPUT.json | --not-done`" for one in against
        )
        raise _refused(
            decision,
            f"inside {what} there are steps in doubt that must be settled separately ({named(against)}), and making "
            f"the step again might do that again. Find out, and settle it first: {first}",
        )


def _unread(log: RecoveredLog, step: RecoveredStep) -> bool:
    """Return whether a person has settled the step, and nothing was done since: then the settlement may be corrected."""
    return step.settled and step.state in ("done", "given_up") and max(log.steps) < step.outcome


def _rebuildable(tree: Any) -> None:
    """Raise ``ValueError`` unless a program can receive the value: codecs of the program itself are unknown here."""
    try:
        from_json(tree)
    except NotReplayableError as error:
        why = str(getattr(error, "reason", error))
        if not why.startswith("no codec"):
            raise ValueError(f"this output can't be given to a program: {why}") from None


def _all_items(trace: Trace, step: RecoveredStep, tree: Any) -> None:
    """Raise ``ValueError`` unless ``tree`` lists all items of a generator, beginning with those in the log."""
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
    return refused(decision, "settling it", (dict(reason),), "`tracekit in-doubt` lists the steps in doubt")


# -- aborting a dead run -----------------------------------------------------------------------------------------------
#
# Giving up a run after a crash: what can be undone is undone if requested, and the log gets its end.

#: Reasons for which a run can't be aborted.


class Aborted(NamedTuple):
    """The result of an abort: the steps whose effect is in doubt (those of a child process as ``"SEGMENT:STEP"``), and
    the reversible steps that were undone, and that were not."""

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
    """End a run that did not end: ``run.aborted``, with who and why, becomes its last entry, and it can't be resumed
    any more.

    ``tools`` names modules, which are imported for the ``compensate=`` of their tools, and must not do anything else
    when imported: these are called for the reversible steps of the run, the last one first, each as a step of its own
    in the log, and only once, however often an abort is interrupted and repeated. What was not undone is in the result
    and in the entry. If no module has the tool of a step, the abort is refused before anything is undone, unless
    ``partial``. ``accept_lost_tail`` cuts off what a power loss left.

    Raises ``RecoveryRefusedError`` for a run that has ended, that another process has open, or that has no entries;
    ``TraceIntegrityError`` for a damaged one.
    """
    if not reason.strip():
        raise ValueError("an abort needs a reason")
    defined = tools_of(named := tuple(block.strings("tools", tools)))

    def look(trace: Trace, decision: Decision) -> None:
        if named and not partial:
            _check(RecoveredLog(islice(trace.entries(damaged=True), trace.status.count)), defined, decision)

    with reopened(run, store, "the abort", FINAL, accept_lost_tail=accept_lost_tail, look=look) as (
        session,
        decision,
    ):
        path = session.log.journal.path
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
        in_segments = [step for step in decision.in_doubt if isinstance(step, str)]
        in_doubt: tuple[int | str, ...] = (*steps_in_doubt(after), *in_segments)
        end = {
            **who_and_why(session, by, reason),
            "in_doubt": [*in_doubt],
            "compensated": [*undone],
            "uncompensated": [*left],
        }
        _end(session, end)
    completed(session)
    return Aborted(session.run_id, path, in_doubt, undone, left)


def _log(path: str) -> RecoveredLog:
    with Trace(path) as trace:
        return RecoveredLog(trace.entries())


def _check(log: RecoveredLog, tools: Tools, decision: Decision) -> None:
    """Refuse if the modules are not those of the run: its effects would remain, and nothing could undo them any more."""
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
    """Mark the run as being aborted, before anything is undone: from then on it can't be resumed."""
    meta = {"abort": who_and_why(session, by, reason)}
    session.log.journal.append("recovery.started", 0, ROOT, b',"meta":%b' % dumps_in_order(meta), True)


def _end(session: Recording, end: dict[str, Any]) -> None:
    journal = session.log.journal
    journal.flush()
    with journal.held():
        session.state.ended = True
        end["segments"] = segments(journal.path)
        journal.append_last(
            "run.aborted", 0, ROOT, lambda count: b',"meta":%b' % dumps_in_order(end | {"count": count}), True
        )
    if journal.lost:  # entries of the compensations
        raise LogWriteError(
            f"entries of the abort are missing from {journal.path}",
            run_id=session.run_id,
            path=journal.path,
            next_action="make room on the device; find out by hand what the compensations did, which is not in the trace",
        )
