"""The decision whether a run that died may be resumed.

It is a function of its log, and of the process that has its file open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import orjson

from .. import _reality
from .._journal.durable import make_directory, sync_directory
from .._journal.entry import ENDS, info_of, meta_of
from .._journal.keys import Keys, Owner, settlement_in
from .._journal.reader import Trace, Verdict
from .._journal.store import (
    Store,
    beside,
    fate,
    file_beside,
    file_name,
    first_entry,
    holder,
    holds_its_run,
    last_entry,
    segment_in,
    shown_as,
)
from .._journal.tip import read_tip
from .._runtime.boundary import crossing_of
from .._runtime.process import process
from .._runtime.recovered import RecoveredLog, RecoveredStep, steps_in_doubt
from ..errors import RecoveryRefusedError, RunNotFoundError, TraceError, TracekitError, TraceVersionError

__all__ = [
    "FOR",
    "HTTP_FORM",
    "IN_DOUBT",
    "Decision",
    "Examined",
    "InDoubt",
    "SegmentDecision",
    "UncertainStep",
    "advice",
    "decide",
    "decided",
    "decision_on",
    "examined",
    "held",
    "in_doubt",
    "inside_of",
    "keep_settlement",
    "key_of",
    "last_settled",
    "named",
    "needs_a_decision",
    "newer",
    "owner_of",
    "refused",
    "settlements",
    "standing",
    "uncertain_steps",
]

# -- the decision on a log ---------------------------------------------------------------------------------------------
#
# Whether a run that did not end may go on: a pure function of its log.
#
# The same log gives the same answer, with its reasons step by step; ``tracekit docs recovery`` explains each ``code``.
# A run is resumed only if its log is intact, everything pending may be repeated, and nothing is ambiguous. Everything
# else is refused.

#: Codes in favour of resuming, or only informative. Every other code refuses.
FOR: Final = frozenset(
    {"intact", "torn_tail", "lost_tail_accepted", "not_synced", "recovered_before", "pending_read_only"}
    | {"pending_reversible", "pending_inside", "settled", "supplied", "redacted_error", "elsewhere_accepted"}
)

#: Codes of steps that may or may not have happened, and of those that are being made right now.
IN_DOUBT: Final = frozenset(
    {"class_missing", "irreversible_pending", "irreversible_timed_out", "irreversible_lost", "irreversible_failed"}
    | {"unknown_effect", "running"}
)

Reason = dict[str, Any]


class Decision(NamedTuple):
    """What may be done with a run: ``resume`` or ``abort``, and why.

    ``reasons`` are dictionaries with ``code`` and ``text``, and for a step also ``step``, ``name``, ``side_effect``.
    ``in_doubt`` lists the steps whose effect may or may not have happened, those of a child process as
    ``"SEGMENT:STEP"``; ``pending`` the steps of the run's own file without an outcome; ``running`` the irreversible
    ones among them that are being made right now by the process that has the run open: they are not in doubt.
    ``undeclared`` are the steps in doubt whose effect nobody has declared: processes.
    """

    run_id: str
    state: str
    decision: Literal["resume", "abort"]
    reasons: tuple[Reason, ...] = ()
    in_doubt: tuple[int | str, ...] = ()
    pending: tuple[dict[str, Any], ...] = ()
    running: tuple[int | str, ...] = ()
    undeclared: tuple[int | str, ...] = ()
    #: The run's name, if its log has one.
    name: str | None = None

    @property
    def leaves_in_doubt(self) -> bool:
        """Whether an effect is in doubt that somebody should check: in an ended run, only a declared one."""
        return not set(self.in_doubt) <= (set(self.undeclared) if self.state == "complete" else set())

    @property
    def refusals(self) -> tuple[Reason, ...]:
        """The reasons against going on."""
        return tuple(reason for reason in self.reasons if reason["code"] not in FOR)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that ``tracekit recovery scan`` prints."""
        return {key: [*value] if isinstance(value, tuple) else value for key, value in self._asdict().items()}


class SegmentDecision(NamedTuple):
    """The file of a child process: its decision, and whether a tool of the run started it (which answers from the log)."""

    decision: Decision
    inside: bool


def decide(
    log: RecoveredLog,
    verdict: Verdict,
    *,
    by: Sequence[Reason] = (),
    segments: Sequence[SegmentDecision] = (),
    supplied: Collection[int] = (),
    accept_lost_tail: bool = False,
    secret: Callable[[], str | None] | None = None,
    settled: Callable[[int], object] | None = None,
    run_id: str | None = None,
) -> Decision:
    """Return the decision on a run: its log, as far as it verifies, and the verdict on that.

    ``by`` are the reasons for or against the process that wrote the log last, ``segments`` the files of its child
    processes, ``supplied`` the steps whose output the operator gives, ``accept_lost_tail`` the operator's permission to
    cut off what remains after a power loss. ``secret`` returns the secret under which the store makes the keys of calls
    that happen once, if that is to be checked, ``settled`` what a person has declared about a step after the end of its
    run, if anything. ``run_id`` is for a file without entries.
    """
    who, steps = verdict.run_id or run_id or "", [*log.steps.notable()]
    if log.imported_from is not None:
        text = f"the run was imported from {log.imported_from}: there is no program that could continue it"
        return Decision(who, verdict.state, "abort", ({"code": "imported", "text": text},), name=log.name)
    live = bool(by) and by[0]["code"] == "held"
    resume, pending, running = False, [], []
    if verdict.end is not None and verdict.state != "broken":
        # Its program knows what failed. But what was cut off, or failed in a way that says nothing, remains in doubt.
        left = [step for step in steps if step.left_in_doubt and not (settled and _settled(log, step, settled))]
        reasons = [*by, _ended(verdict), *map(_in_doubt, left), *_in_doubt_below(who, segments)]
        doubtful = [step.seq for step in left]
    else:
        below = [*_of_segments(segments)]
        reasons = [*by, *_of_the_log(log, steps, verdict, accept_lost_tail), *(below or _of_processes(log))]
        reasons += _of_the_boundary(log)
        for step in steps:
            reasons += _of_a_step(log, step, supplied, live)
            if step.state == "pending" and not step.duplicate:
                pending.append(step.about())
            if step.state == "pending" and step.effect and live:
                running.append(step.seq)
        reasons += [*_of_supplied(log, supplied), *map(_unknown, log.unknown), *_of_keys(steps, secret)]
        resume = all(reason["code"] in FOR for reason in reasons)
        doubtful = [*steps_in_doubt(log, live=live)]
    return Decision(
        who,
        verdict.state,
        "resume" if resume else "abort",
        tuple(reasons),
        (*doubtful, *_named_in(segments, "in_doubt")),
        tuple(pending),
        (*running, *_named_in(segments, "running")),
        (*filter(log.undeclared, doubtful), *_named_in(segments, "undeclared")),
        log.name,
    )


def _named_in(segments: Sequence[SegmentDecision], what: str) -> list[str]:
    """Return the steps of child processes that their decisions list there, by the name of their segment."""
    return [f"{one.run_id}:{seq}" for one, _ in segments for seq in getattr(one, what)] if segments else []


def _settled(log: RecoveredLog, step: RecoveredStep, settled: Callable[[int], object]) -> bool:
    """Return whether a person has settled a step of an ended run, or one around it."""
    return any(settled(one.seq) is not None for one in (step, *log.settled_with(step)))


def newer(run_id: str, version: object) -> Decision:
    """Return the decision on a run of a later format: nothing in it can be judged."""
    text = f"the log is of format version {version}, which this tracekit does not read: upgrade tracekit"
    return Decision(run_id, "broken", "abort", ({"code": "format_newer", "text": text, "version": version},))


# -- the log as a whole ------------------------------------------------------------------------------------------------------


def held(pid: int | None) -> Reason:
    """Return the reason against a run that process ``pid`` has open; ``None`` if the system does not name the process."""
    who = "another process" if pid is None else f"process {pid}"
    return {"code": "held", "text": f"{who} still runs it", "pid": pid}


def _of_the_process(
    trace: Trace, log: RecoveredLog, holder: int | bool | None, is_dead: bool | None
) -> Iterator[Reason]:
    """Yield reasons for or against the process that has a log open, or wrote it last: that one may be alive, and have
    another copy of it."""
    if holder:
        yield held(None if holder is True else holder)
        return
    if is_dead is None:
        return
    writer = log.writers[-1] if log.writers else {}
    became = fate(writer, trace.path)
    if became == "alive" and (writer["pid"] != os.getpid() or process.has_open(file_name(trace.path).stem)):
        text = f"this is a copy of the log of process {writer['pid']}, which lives, if only stopped"
        yield {"code": "held", "text": text, "pid": writer["pid"]}
    elif became == "unknown" and is_dead:
        yield {"code": "elsewhere_accepted", "text": "the operator says that the process that wrote it is dead"}
    elif became == "unknown":
        text = (
            f"process {writer.get('pid')} wrote it on another host, in another container, or before this host was started: "
            "whether it lives can't be known here"
        )
        yield {"code": "elsewhere", "text": text, "pid": writer.get("pid")}


def _ended(verdict: Verdict) -> Reason:
    if verdict.end == "run.aborted":
        return {"code": "aborted", "text": "the run was aborted"}
    return {"code": "finished", "text": f"the run has ended ({verdict.end})", "end": verdict.end}


def _of_the_log(
    log: RecoveredLog, steps: Sequence[RecoveredStep], verdict: Verdict, accept_lost_tail: bool
) -> Iterator[Reason]:
    if verdict.state == "broken":
        yield _damaged(verdict, accept_lost_tail)
    elif verdict.count == 0:
        yield {"code": "no_entries", "text": "the log is empty: nothing says what was run"}
    else:
        finished = len(log.steps) - [step.state for step in steps].count("pending")
        text = f"all {verdict.count} entries verify; {finished} of {len(log.steps)} steps have an outcome"
        yield {"code": "intact", "text": text}
    if verdict.torn_bytes:
        becomes = " will be cut off and kept"  # by the process that writes on; nothing writes to a damaged log
        if verdict.state == "broken" and not (verdict.lost_tail and accept_lost_tail):
            becomes = " stay as they are: nothing is written to a damaged log"
        text = f"the last line is torn: {verdict.torn_bytes} bytes, which no effect waited for,{becomes}"
        yield {"code": "torn_tail", "text": text, "bytes": verdict.torn_bytes}
    if log.durability == "none":
        yield {
            "code": "not_synced",
            "text": "nothing was synced: after a power loss the log may lack effects that happened",
        }
    if log.abort:
        text = (
            f"an abort was begun (entry {log.abort}) and not finished, and the program does not know what has been undone: "
            "finish it with `tracekit recovery abort`"
        )
        yield {"code": "abort_begun", "text": text, "entry": log.abort}
    if log.recoveries:
        times = "once" if log.recoveries == 1 else f"{log.recoveries} times"
        text = f"it was resumed {times} before and did not end"
        yield {"code": "recovered_before", "text": text, "count": log.recoveries}


def _damaged(verdict: Verdict, accept_lost_tail: bool) -> Reason:
    where = f"line {verdict.line}: " if verdict.line else ""
    about: Reason = {"line": verdict.line, "last_good_seq": verdict.last_good_seq}
    if not verdict.lost_tail:
        return {"code": "damaged", "text": f"the log is damaged: {where}{verdict.problem}", **about}
    kept = f"the log's tail was lost, as in a power loss ({where}{verdict.problem}); up to entry {verdict.last_good_seq} it verifies"
    if accept_lost_tail:
        return {"code": "lost_tail_accepted", "text": f"{kept}, and the rest may be cut off", **about}
    text = f"{kept}: if the machine lost power then, `--accept-lost-tail` cuts off the rest"
    return {"code": "lost_tail", "text": text, **about}


def _of_segments(segments: Iterable[SegmentDecision]) -> Iterator[Reason]:
    """Yield the reasons of child processes, which can't be resumed: one without a clean end leaves its work undone, and
    none is started again."""
    for segment, inside in segments:
        if segment.state != "complete":
            open_steps = [*segment.in_doubt] or [step["step"] for step in segment.pending]
            what = f"steps {', '.join(map(str, open_steps))} have no certain end" if open_steps else "it has no end"
            text = f"the child process of segment {segment.run_id} did not end cleanly: {what}; child processes can't be resumed"
        elif not inside:
            text = f"the program started the process of segment {segment.run_id}: a run with child processes can't be resumed"
        else:
            continue
        yield _segment(segment, text)


def _in_doubt_below(run_id: str, segments: Iterable[SegmentDecision]) -> Iterator[Reason]:
    """Yield reasons for child processes of an ended run that have an effect in doubt."""
    for segment, _ in segments:
        if segment.in_doubt:
            texts = [str(reason["text"]) for reason in segment.reasons if reason.get("step") in segment.in_doubt]
            how = "" if segment.state == "complete" else " did not end cleanly"
            text = (
                f"the child process of segment {segment.run_id}{how}: {'; '.join(texts)}; find out, then "
                f"`tracekit recovery settle {run_id}.{segment.run_id} STEP`"
            )
            yield _segment(segment, text)


def _segment(segment: Decision, text: str) -> Reason:
    about = {"code": "segments", "text": text, "segment": segment.run_id, "state": segment.state}
    return about | ({"in_doubt": [*segment.in_doubt]} if segment.in_doubt else {})


def _of_processes(log: RecoveredLog) -> Iterator[Reason]:
    """Yield reasons for processes that were about to be started: they may have begun, though they have written nothing
    yet."""
    for name, lane, inside in log.processes:
        if lane in log.captured:
            continue
        around = log.steps.get(inside)
        again = [] if around is None else [one for one in (around, *log.enclosing(around)) if one.state == "pending"]
        if around is None or again:
            where = f" in step {again[0].seq}, which has no outcome" if again else ""
            text = f"the program started the process {name!r}{where}: a run with child processes can't be resumed"
            yield {"code": "process_started", "text": text, "process": name}


def _of_the_boundary(log: RecoveredLog) -> Iterator[Reason]:
    """Yield reasons for uncaptured operations that may have had an effect: the program would repeat them.

    (A process of the run's own is judged separately.)
    """
    for one in map(crossing_of, log.crossed):
        if one.effect and one.lane is None:
            text = f"{one.text} was not captured: it may have had an effect, and the program would do it again"
            yield {"code": "uncaptured_effect", "text": text, "entry": one.entry, "kind": one.kind, "where": one.where}


def _of_keys(steps: Sequence[RecoveredStep], secret: Callable[[], str | None] | None) -> Iterator[Reason]:
    """Refuse a run whose keys were made under another secret: its exactly-once calls could not be recognised."""
    if secret is None:
        return
    keyed = [step for step in steps if step.key_by is not None and step.state != "given_up"]
    if not keyed:
        return
    undone = {step.undoes for step in steps if step.state == "done"}
    keyed = [step for step in keyed if step.seq not in undone]
    if keyed and {step.key_by for step in keyed} != {(known := secret())}:
        what = "is missing or can't be read" if known is None else "is another one"
        text = (
            f"the secret of the store, under which the keys of {len(keyed)} calls that happen once were made, {what}: "
            "no such call could be made or answered"
        )
        yield {"code": "secret_missing", "text": text, "steps": [step.seq for step in keyed]}


# -- step by step ------------------------------------------------------------------------------------------------------------


def _of_a_step(log: RecoveredLog, step: RecoveredStep, supplied: Collection[int], live: bool) -> Iterator[Reason]:
    if live and step.state == "pending" and not step.duplicate:
        yield _reason("running", step, "is being made right now")
    elif step.may_have_happened:
        yield _in_doubt(step)
    elif step.state == "pending" and not step.duplicate:
        if step.covered:
            text = f"was settled with step {step.covered} around it: it is not made again"
            yield _reason("settled", step, text) | {"with": step.covered}
        else:
            yield _again(log, step)
    elif step.settled:
        yield _reason("settled", step, f"was settled by hand: {_how_settled(log, step)}")
    if step.stands and not live:
        pending = (outer for outer in log.enclosing(step) if outer.state == "pending" and not outer.covered)
        around = [outer for outer in pending if outer.seq != step.undoes]
        for outer in around:
            text = f"would be made again with {_named(step)} inside it, which can't be taken back"
            yield _reason("irreversible_inside", outer, text) | {"inside": step.seq}
    if step.state == "pending" and step.continued_at and not step.inner:
        state = "running, and the program had continued in parallel"
        if step.family != "process":
            state = "being read, and the program had already used its first pieces"
        text = f"was {state} (at entry {step.continued_at})"
        yield _reason("stream_in_progress", step, text)
    if step.hidden and not step.inner:
        if step.state == "done":
            yield _hidden(step, supplied)
        elif step.state == "failed":
            yield _reason("redacted_error", step, "failed, and the program is given the error with a placeholder in it")


def _how_settled(log: RecoveredLog, step: RecoveredStep) -> str:
    if step.inner and all(outer.state in ("done", "failed") for outer in log.enclosing(step)):
        done = "it was done" if step.declared_done else "it was not done"
        return f"{done}; the step around it has ended, so it is not made again"
    if step.state == "given_up":
        return f"it is made again{f' with step {step.inner} around it' if step.inner else ''}"
    return "its output is what was supplied" if step.state == "done" else "the program keeps its error"


def _in_doubt(step: RecoveredStep) -> Reason:
    if step.side_effect is None:
        what = "has no outcome" if step.state == "pending" else "failed"
        return _reason("class_missing", step, f"{what}, and nothing says which kind of side effect it has")
    if step.state == "pending":
        return _reason("irreversible_pending", step, "was started and has no outcome: it may have happened")
    if step.in_doubt:
        return _reason("irreversible_timed_out", step, "timed out: it may have happened after that")
    if step.lost:
        return _reason("irreversible_lost", step, "ended without an answer: it may have happened")
    return _reason("irreversible_failed", step, "failed: what it did before that is not known")


def _again(log: RecoveredLog, step: RecoveredStep) -> Reason:
    """Return the reason for a step without an outcome that may be repeated, if the program requests it."""
    if step.inner and all(outer.state in ("done", "failed") for outer in log.enclosing(step)):
        # The step around it answers from the log: this step is never requested again.
        if step.side_effect == "reversible":
            return _reason(
                "pending_orphaned", step, "has no outcome, and the step around it has ended: it will not be made again"
            )
        return _reason("pending_inside", step, "has no outcome; the step around it has ended, so it is not needed")
    if step.inner:
        return _reason("pending_inside", step, f"has no outcome and is made again with step {step.inner} around it")
    level = "read_only" if step.side_effect == "read_only" else "reversible"
    return _reason(f"pending_{level}", step, "has no outcome and may be made again")


def _hidden(step: RecoveredStep, supplied: Collection[int]) -> Reason:
    if step.seq in supplied and not step.chunks:
        return _reason("supplied", step, "is answered by what the operator supplies")
    what = "gave pieces, which can't be supplied" if step.chunks else "supply its output"
    if step.hidden == "redacted":
        return _reason("redacted_output", step, f"gave a secret that is not in the log: {what}")
    return _reason("opaque_output", step, f"gave a value that could not be recorded: {what}")


def _of_supplied(log: RecoveredLog, supplied: Collection[int]) -> Iterator[Reason]:
    """Refuse supplied values for steps whose value the log has: the log is never overridden."""
    for seq in sorted(supplied):
        step = log.steps.get(seq)
        if step is None:
            text = f"step {seq} is supplied an output, and entry {seq} of the log begins no step"
            yield {"code": "not_to_supply", "text": text, "step": seq}
        elif step.state != "done":
            yield _reason("not_to_supply", step, "is supplied an output, and it did not give one: `settle` is for that")
        elif step.inner and step.hidden:
            yield _reason("not_to_supply", step, f"is supplied an output that is not needed, inside step {step.inner}")
        elif not step.hidden:
            yield _reason("not_to_supply", step, "is supplied an output, and the log has it: is it another step's?")


def _unknown(entry: Mapping[str, Any]) -> Reason:
    text = f"entry {entry['seq']} is an effect of a type that this tracekit does not know: {entry['type']}"
    return {"code": "unknown_effect", "text": text, "step": entry["seq"], "name": entry.get("name")}


def _reason(code: str, step: RecoveredStep, text: str) -> Reason:
    return {
        "code": code,
        "text": f"{_named(step)} {text}",
        "step": step.seq,
        "name": step.name,
        "side_effect": step.side_effect,
    }


def _named(step: RecoveredStep) -> str:
    return f"step {step.seq}, {step.family} {step.name!r} ({step.side_effect or 'no class'}),"


# -- the decision on a run in a store ----------------------------------------------------------------------------------
#
# The decision on a run of a store: its file, the process that has it open, and its child processes.


class UncertainStep(NamedTuple):
    """An irreversible step without a known outcome: ``state`` is ``in_doubt``, or ``running`` while its process is
    making it.

    ``arguments`` and ``idempotency_key`` are those in the log, placeholders included; ``host`` is the machine, ``time``
    the begin. ``segment`` names the child process of the step; ``declared`` is false for a process whose effect nobody
    has declared. ``code`` and ``text`` say why it is listed, ``what_to_do`` how to resolve it. ``inside`` is the step
    in doubt around it, which is settled with it, or ``None``. ``run_name`` is the name of the run.
    """

    run_id: str
    step: int
    segment: str | None
    name: str | None
    state: Literal["in_doubt", "running"]
    arguments: Any
    idempotency_key: Any
    host: str | None
    time: datetime
    age: timedelta
    code: str
    text: str
    what_to_do: str
    declared: bool = True
    inside: int | None = None
    run_name: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the time in ISO 8601, the age in seconds."""
        return {**self._asdict(), "time": self.time.isoformat(), "age": self.age.total_seconds()}


#: Passes on the runs of a store, each with the files of its child processes.
Progress = Callable[[Sequence[tuple[str, Sequence[str]]]], Iterable[tuple[str, Sequence[str]]]]


class InDoubt(NamedTuple):
    """What is in doubt in a store, the oldest run first.

    Also: what is being made right now; the files that can't be read, and what only has the name of a file (a dangling
    link, a directory); and, separately, processes in doubt whose effect nobody has declared.
    """

    in_doubt: tuple[UncertainStep, ...] = ()
    running: tuple[UncertainStep, ...] = ()
    unreadable: tuple[str, ...] = ()
    undeclared: tuple[UncertainStep, ...] = ()


@_reality.off_loop()
def in_doubt(store: Store, runs: Iterable[Examined]) -> InDoubt:
    """Return every irreversible step without a known outcome in these runs of a store, including ended runs. Only
    reads."""
    found: list[UncertainStep] = []
    unreadable = [*store.no_files()]
    for run in runs:
        for file in (run.path, *run.segments):
            try:
                if run.over and _silent(last_entry(file)):
                    continue
                steps, whole = uncertain_steps(file)
            except FileNotFoundError:
                continue  # pruned meanwhile
            except (OSError, TracekitError):
                steps, whole = [], False
            found += steps
            if not whole:
                unreadable.append(file)
    return InDoubt(
        tuple(one for one in found if one.state == "in_doubt" and one.declared),
        tuple(one for one in found if one.state == "running"),
        tuple(unreadable),
        tuple(one for one in found if one.state == "in_doubt" and not one.declared),
    )


def uncertain_steps(path: str) -> tuple[list[UncertainStep], bool]:
    """Return the uncertain steps of one file, and whether the whole file can be read."""
    decision = decision_on(path, segments=())
    reasons = {reason.get("step"): reason for reason in decision.reasons if reason["code"] in IN_DOUBT}
    steps = [step for step in (*decision.in_doubt, *decision.running) if isinstance(step, int)]
    if not steps:
        return [], decision.state != "broken"
    run_id, segment, _ = owner_of(path, 0)
    now = _reality.time_ns()
    found: list[UncertainStep] = []
    with Trace(path) as trace:
        verdict = Store.judge_run(trace)
        log = RecoveredLog(islice(trace.entries(damaged=True), verdict.count))
        host, run_name = _host(trace, path), first_entry(file_beside(path, None)).get("name")
        for step in steps:
            entry, running = trace.entry(step), step in decision.running
            began = entry["ts_ns"]
            reason = reasons.get(step) or {
                "code": "unknown_effect",
                "text": f"entry {step} is an effect of an unknown type",
            }
            found.append(
                UncertainStep(
                    run_id,
                    step,
                    segment,
                    entry.get("name"),
                    "running" if running else "in_doubt",
                    trace.expand(entry.get("input"), before=step),
                    info_of(entry).get("idempotency_key"),
                    host,
                    datetime.fromtimestamp(began / 1e9, UTC),
                    timedelta(microseconds=max(0, now - began) // 1000),
                    str(reason["code"]),
                    str(reason["text"]),
                    "wait until it has ended" if running else _what_to_do(path, step, log, verdict, steps),
                    step not in decision.undeclared,
                    None if running else next(_in_doubt_around(log, step, steps), None),
                    run_name if isinstance(run_name, str) else None,
                )
            )
    return found, decision.state != "broken"


def _host(trace: Trace, path: str) -> str | None:
    """Return the machine on which a file was written; a child process's may be recorded only in its run."""
    for entry in (trace.entry(1), first_entry(file_beside(path, None))):
        environment = meta_of(entry).get("environment")
        if isinstance(environment, dict) and environment.get("host"):
            return str(environment["host"])
    return None


#: What ``settle --done`` accepts for an HTTP exchange: an answer in the form of a trace.
HTTP_FORM: Final = (
    '{"status": 200, "headers": {"content-type": "application/json"}, "body": {"id": "p-1"}, "format": "json"}'
)


def inside_of(log: RecoveredLog, step: RecoveredStep) -> tuple[list[RecoveredStep], list[RecoveredStep]]:
    """Return what was begun inside a step and can't be undone: what is settled as not done together with it, and what
    rules that out.

    A call that happens once, and has its outcome, is answered by its key when the body runs again.
    """
    along: list[RecoveredStep] = []
    against: list[RecoveredStep] = []
    for inner in log.below(step):
        if inner.key_by is not None and inner.state == "done" and inner.hidden is None:
            continue
        # Open, or checked by a person who says that it was not done: saying so of the step says it of the inner step,
        # too.
        undecided = inner.state == "pending" or (inner.state == "failed" and inner.declared_done is not True)
        together = undecided and any(around is step for around in log.settled_with(inner))
        (along if together else against).append(inner)
    return along, against


def named(steps: Iterable[RecoveredStep]) -> str:
    """Return steps as a message lists them: ``step 33, http 'POST …'``."""
    return "; ".join(f"step {step.seq}, {step.family} {step.name!r}" for step in steps)


def _in_doubt_around(log: RecoveredLog, step: int, in_doubt: Collection[int]) -> Iterator[int]:
    if step in log.steps:
        yield from (around.seq for around in log.settled_with(log.steps[step]) if around.seq in in_doubt)


def _what_to_do(path: str, seq: int, log: RecoveredLog, verdict: Verdict, in_doubt: Collection[int]) -> str:
    run = shown_as(path)
    if verdict.state == "broken":
        return _of_a_damaged_trace(run, verdict)
    step = log.steps.get(seq)
    if step is None:
        return "upgrade tracekit, which does not know this effect"
    if around := [*_in_doubt_around(log, seq, in_doubt)]:
        return f"settle step {around[-1]} around it, which settles this one, too"
    settle = "tracekit recovery settle " + run
    # A step around it that would run again is settled as done instead, since it would repeat this one.
    again = [] if verdict.end else [outer for outer in log.settled_with(step) if outer.state == "pending"]
    target = again[-1] if again else step
    what = "it" if target is step else f"{named([target])}, around it"
    returned = f"with what {what} returned, as JSON"
    form = "" if target.family != "http" else f" (OUTPUT.json is the answer: {HTTP_FORM})"
    done = f"`{settle} {target.seq} --done OUTPUT.json --reason TEXT`{form}"
    against = [] if verdict.end or step.passed else inside_of(log, step)[1]
    if over := [one for one in against if not one.open]:
        give_up = f"`tracekit recovery abort {run} --reason TEXT`"
        return (
            f"find out whether it happened. Inside it there was done what would be done again with it ({named(over)}), so it can't "
            f"be settled as not done: {returned}: {done}, or abandon the run: {give_up}"
        )
    if against:
        return (
            f"find out whether it happened; first settle the steps inside it that are settled separately ({named(against)}). Then "
            f"`{settle} {seq} --not-done --reason TEXT`, or, {returned}: {done}"
        )
    inner = [log.steps[one] for one in in_doubt if seq in _in_doubt_around(log, one, in_doubt)]
    along = f"; both also settle what is inside it ({named(inner)})" if inner else ""
    return f"find out whether it happened, then say so: `{settle} {seq} --not-done --reason TEXT`, or, {returned}: {done}{along}"


_ABORT: Final = "abandon the run: `tracekit recovery abort RUN --reason TEXT`"
_SETTLE: Final = "find out whether it happened, then `tracekit recovery settle RUN STEP --done OUTPUT.json | --not-done --reason TEXT`"
_SUPPLY: Final = "`tracekit recovery resume RUN --supply STEP=FILE.json` passes the program what the log does not have"
_GIVE: Final = (
    "`tracekit recovery settle RUN STEP --done OUTPUT.json --reason TEXT` states what it returned (of a generator: the list of all its "
    f"items); or {_ABORT}"
)
_BELOW: Final = f"`tracekit in-doubt` says whether a process of it has left something in doubt; then {_ABORT}"
#: What to do about a reason against resuming, by its code. Steps in doubt have their own texts (``_what_to_do``).
_ADVICE: Final[dict[str, str]] = {
    "running": "wait until it has ended",
    "irreversible_inside": _GIVE,
    "stream_in_progress": _GIVE,
    "pending_orphaned": _SETTLE,
    "secret_missing": "bring the file `secret` of the store back as it was when that run was made, then resume it",
    "redacted_output": _SUPPLY,
    "not_to_supply": "supply only what `tracekit recovery resume RUN --check` says is missing",
    "opaque_output": _SUPPLY,
    "unknown_effect": "upgrade tracekit, which does not know this effect",
    "abort_begun": "finish it: `tracekit recovery abort RUN --reason TEXT`",
    "damaged": "put an undamaged copy of the file in its place, if there is one; `tracekit verify RUN` says what is wrong with this one",
    "lost_tail": "`tracekit recovery resume RUN --accept-lost-tail`, if the machine lost power then",
    "format_newer": "upgrade tracekit",
    "no_entries": "the program had not begun yet: start it again, and delete the file",
    "held": "wait until that process has ended",
    "elsewhere": "see that the process is dead, where it ran; then `tracekit recovery resume RUN --original-is-dead`",
    "segments": _BELOW,
    "process_started": f"check what became of that process; {_BELOW}",
    "uncaptured_effect": f"check what became of it; then {_ABORT}",
    "finished": "there is nothing to resume; `tracekit show RUN` shows it",
    "imported": "record the program: `tracekit run`, or `pytest --tracekit-update` of a test",
    "aborted": "start a new run",
}


def advice(decision: Decision, path: str) -> str:
    """Return what to do first if a run can't be resumed: a text with the command for this run and step, if one helps."""
    first: Reason = next(iter(decision.refusals), {"code": "held"})
    in_doubt = [step for step in decision.in_doubt if isinstance(step, int)]
    if first["code"] in IN_DOUBT and first.get("step") in in_doubt:
        with Trace(path) as trace:
            verdict = Store.judge_run(trace)
            log = RecoveredLog(islice(trace.entries(damaged=True), verdict.count))
        outermost: int = [first["step"], *_in_doubt_around(log, first["step"], in_doubt)][-1]
        return _what_to_do(path, outermost, log, verdict, in_doubt)
    text = _ADVICE.get(first["code"], _ABORT).replace(" RUN", f" {shown_as(path)}")
    return text.replace(" STEP", f" {first['step']}") if "step" in first else text


def standing(path: str) -> tuple[str, str]:
    """Return how a run stands after a resumption that was cut off, and what to do next with the command: from its last
    entry alone."""
    name, last = shown_as(path), last_entry(path)
    end = last.get("type")
    if end not in ENDS:
        return (
            f"the run {name} has no end",
            f"`tracekit recovery resume {name} --check` says whether it may go on, and what to find out before",
        )
    text = f"the run {name} has ended ({end}), and is not resumed again"
    if meta_of(last).get("in_doubt"):
        return f"{text}; it left a step in doubt", "`tracekit in-doubt` says how to settle it"
    return text, f"`tracekit show {name}` shows what was done"


def _of_a_damaged_trace(run: str, verdict: Verdict) -> str:
    """Return what to do about a step in a damaged trace, in which nothing can be settled."""
    if verdict.lost_tail:
        return (
            "find out whether it happened. The end of this trace was lost, so nothing can be settled in it; if the machine lost power "
            f"then, `tracekit recovery abort {run} --accept-lost-tail --reason TEXT` ends the run, and after that "
            "`tracekit in-doubt` says how to settle this"
        )
    return (
        "find out whether it happened, and keep what you find: this trace is damaged, so nothing can be settled in it "
        f"(`tracekit verify {run}` says where). Put an undamaged copy of the file in its place, if there is one"
    )


class Examined(NamedTuple):
    """A run of a store: its file, those of its child processes, and whether it is over: it has ended and is intact."""

    path: str
    segments: Sequence[str]
    over: bool


def examined(store: Store, *, quick: bool = False, progress: Progress = iter) -> Iterator[Examined]:
    """Yield each run of a store, verified with the files of its child processes; with ``quick``, a run that has ended is
    taken to be intact if its last line is the one that was kept as its tip.

    ``progress`` passes the runs on, and may show how many are done. Raises ``RunNotFoundError`` if the store does not
    exist.
    """
    if not os.path.isdir(store.runs):
        raise RunNotFoundError(
            f"there is no store in {store.root} (it has no directory 'runs'), so nothing was examined",
            store=store.root,
            next_action="go to the directory that the program runs in, or name its store",
        )
    for path, segments in progress([*store.paths().items()]):
        try:
            over = _is_over(path, store.tips, quick)
        except (OSError, TracekitError):
            over = False  # the decision on it says what is wrong
        yield Examined(path, segments, over)


def _is_over(path: str, tips: str, quick: bool) -> bool:
    last = last_entry(path)
    if quick or last.get("type") not in ENDS:
        return _has_ended(path, last, tips)
    with Trace(path) as trace:
        return Store.judge_run(trace).state == "complete"


def needs_a_decision(run: Examined) -> bool:
    """Return whether a run has not ended, is damaged, or leaves an effect in doubt, also in a child process."""
    if not run.over:
        return True
    try:
        last = last_entry(run.path)
        if last["type"] == "run.aborted" and not meta_of(last).get("by_program"):
            return False  # the operator who gave it up has checked
        ends = [(run.path, last), *((segment, last_entry(segment)) for segment in run.segments)]
        return any(decision_on(file, segments=()).leaves_in_doubt for file, end in ends if not _silent(end))
    except (OSError, TracekitError):
        return True  # the decision on it says what is wrong


def _has_ended(path: str, last: Mapping[str, Any], tips: str) -> bool:
    """Return whether a run's last entry is the end that was kept as its tip, so that a truncation, or another end, is
    not taken for it."""
    if last.get("type") not in ENDS:
        return False
    try:
        kept = read_tip(os.path.join(tips, file_name(path).stem))
    except (OSError, ValueError):
        return False
    return kept is not None and (kept.count, kept.head) == (last.get("seq"), last.get("hash"))


def _silent(last: Mapping[str, Any]) -> bool:
    """Return whether the end of a file says that nothing in it is in doubt."""
    return last.get("type") in ENDS and not meta_of(last).get("in_doubt")


@_reality.off_loop()
def decision_on(
    path: str,
    *,
    supplied: Collection[int] = (),
    accept_lost_tail: bool = False,
    original_is_dead: bool = False,
    segments: Sequence[str] | None = None,
) -> Decision:
    """Return the decision on the run in the file at ``path``; see ``decide``. ``segments`` if they are known. Only
    reads."""
    run_id = file_name(path).stem
    held = holder(path)
    try:
        with Trace(path, collect=(RecoveredLog,)) as trace:
            verdict = Store.judge_run(trace)
            return decided(
                trace,
                verdict,
                holder=held,
                supplied=supplied,
                accept_lost_tail=accept_lost_tail,
                original_is_dead=original_is_dead,
                segments=segments,
            )
    except TraceVersionError as error:
        return newer(run_id, error.__dict__.get("version"))


@_reality.off_loop()
def decided(
    trace: Trace,
    verdict: Verdict,
    *,
    holder: int | bool | None = None,
    supplied: Collection[int] = (),
    accept_lost_tail: bool = False,
    original_is_dead: bool | None = False,
    segments: Sequence[str] | None = None,
) -> Decision:
    """Return the decision on an open trace with a known verdict and holder (``None`` if the caller itself holds it).

    ``original_is_dead`` is the operator's statement; ``None`` for a caller that does not continue the run.
    """
    run_id, log = file_name(trace.path).stem, trace.collected(RecoveredLog)
    goes_on = verdict.end is None or verdict.state == "broken"
    decision = decide(
        log,
        verdict,
        by=[*_of_the_process(trace, log, holder, original_is_dead if goes_on else None)],
        segments=_segments(trace.path, segments),
        supplied=supplied,
        accept_lost_tail=accept_lost_tail,
        secret=partial(_secret, trace.path),
        settled=settlements(trace),
        run_id=run_id,
    )
    # A copy of a run under another name is not that run, and must not be taken for it.
    return decision if holds_its_run(trace.path, verdict.run_id) else decision._replace(run_id=run_id)


def _segments(path: str, segments: Sequence[str] | None) -> list[SegmentDecision]:
    if segments is None:
        segments = beside(path)
    found = []
    for segment in segments:
        name = str(segment_in(segment))
        lane = meta_of(first_entry(segment)).get("lane")
        inside = isinstance(lane, str) and "@" in lane  # in a tool's body, which is not entered again
        found.append(SegmentDecision(decision_on(segment, segments=())._replace(run_id=name), inside))
    return found


def _secret(path: str) -> str | None:
    """Return which secret the store of a trace uses for its keys; ``None`` if it has none that can be read."""
    try:
        return Keys(Store.of(path).root).known_by()
    except (TracekitError, OSError):
        return None


def settlements(trace: Trace) -> Callable[[int], Mapping[str, Any] | None]:
    """Return a function for a person's settlement of a step after the end of its run: ``{"done", "by", "reason", "at"
    …}``, or ``None``."""

    def settlement_of(step: int) -> Mapping[str, Any] | None:
        entry = trace.entry(step)
        digest = key_of(entry)
        try:
            if digest is None:
                with open(_settlement(trace.path, step), "rb") as file:
                    facts = settlement_in(file.read())
                return facts if facts["hash"] == entry["hash"] else None
            keys = Keys(Store.of(trace.path).root)
            return keys.settled(digest, owner_of(trace.path, step)) if os.path.isdir(keys.directory) else None
        except (TracekitError, OSError, ValueError):
            return None  # the step stays in doubt; settling it again reports the reason

    return settlement_of


def keep_settlement(path: str, step: int, statement: Mapping[str, Any]) -> bool:
    """Keep a person's settlement of a step after the end of its run, durably; return False if there is one already.

    Raises ``TraceError`` if the existing file is not a settlement.
    """
    target = _settlement(path, step)
    directory = os.path.dirname(target)
    make_directory(directory, sync=True)
    temporary = f"{target}.{_reality.urandom(8).hex()}.tmp"
    run_id, segment, seq = owner_of(path, step)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(orjson.dumps({"run_id": run_id, "segment": segment, "seq": seq, **statement}) + b"\n")
            file.flush()
            os.fsync(fd)
        os.link(temporary, target)
    except FileExistsError:
        _check_settlement(target)
        return False
    finally:
        os.unlink(temporary)
    sync_directory(directory)
    return True


def _check_settlement(path: str) -> None:
    try:
        with open(path, "rb") as file:
            settlement_in(file.read())
    except ValueError as error:
        raise TraceError(
            f"{path} is not a settlement ({error}): the step is still in doubt",
            path=path,
            next_action="remove that file, and settle the step again",
        ) from None


def _settlement(path: str, step: int) -> str:
    return os.path.join(Store.of(path).root, "settled", f"{file_name(path).stem}.{step}")


def last_settled(store: Store) -> tuple[int, ...]:
    """Return the times at which a settlement after the end of a run may last have been kept, by the modification times
    of the directories."""
    found = []
    for directory in (os.path.join(store.root, "settled"), Keys(store.root).directory):
        try:
            found.append(os.stat(directory).st_mtime_ns)
        except OSError:
            found.append(0)
    return tuple(found)


def key_of(entry: Mapping[str, Any]) -> str | None:
    """Return the key of a call that happens once in the whole store, or ``None``."""
    meta = meta_of(entry)
    info, contract = meta.get("info"), meta.get("contract")
    if not isinstance(info, dict) or not isinstance(contract, dict) or contract.get("exactly_once") != "store":
        return None
    digest = info.get("once")
    return digest if isinstance(digest, str) and "duplicate_of" not in info else None


def owner_of(path: str, step: int) -> Owner:
    """Return the owner of a key that a step of this file uses."""
    name = file_name(path)
    return Owner(name.run, name.segment, step)


def refused(
    decision: Decision, what: str, reasons: Collection[dict[str, object]], next_action: str
) -> RecoveryRefusedError:
    """Return the error for ``what`` being refused for ``reasons`` of ``decision``."""
    texts = "; ".join(str(reason["text"]) for reason in reasons)
    return RecoveryRefusedError(
        f"{what} is refused: {texts}",
        run_id=decision.run_id,
        reasons=[*reasons],
        decision=decision.as_dict(),
        next_action=next_action.replace(" RUN", f" {decision.run_id}"),
    )
