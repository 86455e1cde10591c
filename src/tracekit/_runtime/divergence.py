"""The divergences of a replay: their error messages, and what follows from each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from orjson import loads

from .._journal.entry import FAMILIES
from .._journal.reader import Trace
from .._journal.store import shown_as
from .._lazy import expression
from .._values import dumps, to_json
from ..errors import (
    DivergenceError,
    InexactReplayError,
    LiveCallBlockedError,
    NotReplayableError,
    ReplayError,
    RunEndedError,
    TraceExhaustedError,
    TracekitError,
    UnconsumedStepsError,
)
from .boundary import Crossing, crossings_of, reaches_the_network, uncaptured
from .callsite import at_prompt, caller, say
from .index import Index
from .matching import Comparison, differences, signature, steady
from .process import process
from .redaction import Redactor

if TYPE_CHECKING:
    from .lane import Lane
    from .session import RunState, Scope
    from .step import Request, Spec
    from .threads import ThreadMonitor, Waiting
    from .verdict import Report

__all__ = [
    "MADE_BY_A_PACKAGE",
    "Divergences",
    "FirstFailure",
    "after_the_end",
    "another_identity",
    "asked_too_often",
    "asks_for_more",
    "changed_lines",
    "clock_never_read",
    "clock_stands_still",
    "describe",
    "draw_of_another_size",
    "draw_too_many",
    "draws_left",
    "everything_waits",
    "headline",
    "in_common",
    "left_over",
    "looks_like_a_read",
    "nearest",
    "never_asked_for",
    "no_more",
    "nothing_recorded",
    "out_of_order",
    "sleeps_too_often",
    "without_outcome",
]

#: Steps made by network clients, which are captured if an integration patches the client.
_BY_A_CLIENT: Final = ("llm", "http")
#: How many differing fields, and lines of a text, a message shows at most.
_FIELDS: Final = 12
_LINES: Final = 24
_WIDTH: Final = 160
#: How much of a long line is shown on each side of the part that differs.
_AROUND: Final = 40
#: How many recorded steps are examined to find the nearest one for a message.
_NEIGHBOURS: Final = 50
_MISSING: Final = object()


def describe(found: list[dict[str, Any]]) -> str:
    """Describe the differences field by field; texts as a unified diff, equal parts left out."""
    lines: list[str] = []
    for one in found[:_FIELDS]:
        recorded, actual = one.get("recorded", _MISSING), one.get("actual", _MISSING)
        lines.append(f"  {one['path'] or 'value'}:")
        if isinstance(recorded, str) and isinstance(actual, str) and _is_long(recorded, actual):
            lines += _text_diff(recorded, actual)
        else:
            lines.append(f"    recorded  {_short(recorded)}")
            lines.append(f"    now       {_short(actual)}")
    if len(found) > _FIELDS:
        lines.append(f"  … and {len(found) - _FIELDS} more fields")
    return "\n".join(lines)


def _is_long(recorded: str, actual: str) -> bool:
    return max(len(recorded), len(actual)) > 60 or "\n" in recorded or "\n" in actual


def _text_diff(recorded: str, actual: str) -> list[str]:
    """Return a unified diff; of long lines, only the part in which they differ."""
    lines = ["--- recorded", "+++ now", *_of_both_sides(changed_lines(recorded, actual, 1), _LINES - 2)]
    return [f"    {_clip(line, _WIDTH)}" for line in lines]


def _of_both_sides(diff: list[str], most: int) -> list[str]:
    """Return the beginning of a diff, in about ``most`` lines; where the recorded lines alone would fill them, a part of
    these and of the present ones."""
    if len(diff) <= most:
        return diff
    first = next((at for at, line in enumerate(diff) if line.startswith("-")), len(diff))
    out = _block(diff, first, "-")
    into = _block(diff, first + len(out), "+")
    half = max(1, (most - first) // 2)
    if not into or first + len(out) + 1 < most - half or first >= most:
        return [*diff[:most], f"… and {len(diff) - most} more lines"]
    rest = len(diff) - first - half - min(half, len(into))
    hidden = len(out) - half
    shown = [*diff[:first], *out[:half], f"… {hidden} more lines", *into[:half]]
    return [*shown, f"… and {rest - hidden} more lines"] if rest > hidden else shown


def changed_lines(recorded: str, actual: str, context: int) -> list[str]:
    """Return the lines in which two texts differ, as a unified diff without its head, with ``context`` lines around them.

    If as many are removed as added, each long pair is cut to the part in which it differs; a long line around them is cut.
    """
    import difflib

    diff = list(difflib.unified_diff(recorded.splitlines(), actual.splitlines(), lineterm="", n=context))[2:]
    if not diff and recorded != actual:  # they differ only in line ends
        return [f"-{recorded[-_AROUND:]!r}", f"+{actual[-_AROUND:]!r}"]
    lines: list[str] = []
    i = 0
    while i < len(diff):
        out = _block(diff, i, "-")
        into = _block(diff, i + len(out), "+")
        if not out or len(out) != len(into):
            lines.append(_clip(diff[i], _WIDTH) if diff[i].startswith(" ") else diff[i])
            i += 1
            continue
        pairs = [_window(one[1:], other[1:]) for one, other in zip(out, into, strict=True)]
        lines += ["-" + one for one, _ in pairs] + ["+" + other for _, other in pairs]
        i += 2 * len(out)
    return lines


def _block(diff: list[str], start: int, sign: str) -> list[str]:
    end = start
    while end < len(diff) and diff[end].startswith(sign):
        end += 1
    return diff[start:end]


def in_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items two sequences have in common at their beginnings."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _window(one: str, other: str) -> tuple[str, str]:
    """Return the part in which two long lines differ, with a little of what is around it."""
    if max(len(one), len(other)) < _WIDTH:
        return one, other
    same = in_common(one, other)
    start = max(0, same - _AROUND)
    end = max(0, in_common(one[same:][::-1], other[same:][::-1]) - _AROUND)
    before, after = "…" if start > 1 else one[:start], "…" if end > 1 else one[len(one) - end :]
    return before + one[start : len(one) - end] + after, before + other[start : len(other) - end] + after


def _short(value: Any) -> str:
    return "(nothing)" if value is _MISSING else _clip(repr(value), _WIDTH)


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def nearest(actual: bytes, candidates: Iterable[tuple[int, Mapping[str, Any], bytes]]) -> tuple[int, bool] | None:
    """Return the recorded step ``(seq, entry, input)`` most like ``actual``, and whether it is equal."""
    import difflib

    best: tuple[float, int] | None = None
    text = actual[:4000].decode("utf-8", "replace")
    for seq, _entry, data in candidates:
        if data == actual:
            return seq, True
        ratio = difflib.SequenceMatcher(
            None, text, data[:4000].decode("utf-8", "replace"), autojunk=False
        ).quick_ratio()
        if best is None or ratio > best[0]:
            best = ratio, seq
    return (best[1], False) if best is not None and best[0] > 0.5 else None


def looks_like_a_read(found: list[dict[str, Any]]) -> bool:
    """Return whether a difference looks like a time, an id or a random number that was not captured."""
    return any(_volatile(one.get("recorded"), one.get("actual")) for one in found)


#: Text as produced by clocks, id generators and random number generators.
_MADE: Final = expression(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"  # a UUID
    r"|[0-9a-f]{24,64}"  # hex of urandom
    r"|\d{4}-\d\d-\d\d|\d\d:\d\d(:\d\d(\.\d+)?)?|\d{4}-\d\d-\d\d[T ]\S+"  # dates and times
    r"|\d{10,19}(\.\d+)?|0\.\d{9,}"  # seconds to nanoseconds since the epoch, a random float
)


def _volatile(recorded: Any, actual: Any) -> bool:
    if isinstance(recorded, str) and isinstance(actual, str):
        one, other = set(recorded.split()), set(actual.split())
        return _made(one - other) and _made(other - one)
    return _is_made(recorded) and _is_made(actual)


def _made(words: set[str]) -> bool:
    return any(_MADE.fullmatch(word.strip(".,;:!?()[]{}<>\"'")) for word in words)


def _is_made(value: Any) -> bool:
    if isinstance(value, float):
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        return value > 1_000_000_000
    return isinstance(value, dict) and value.get("$t") in ("datetime", "uuid", "date")


# -- failures ----------------------------------------------------------------------------------------------------------
#
# The failures of a replay: what happened, where, and what to do next.

#: Added to a difference that ``looks_like_a_read``.
MADE_BY_A_PACKAGE = (
    "the difference looks like an instant, an id or a draw: if a package made it, "
    "name it in instrument(user_modules=[…]) and record again"
)

#: Added to a difference that may be due to the order of threads.
THREAD_ORDER = (
    "\n  thread order may differ: threads of the program ran at the same time, and what they share without a lock, a "
    "future or a queue (a list, a flag) is not recorded"
)
_CHANGED = (
    "check what changed in the code since the previous step; record again if the change is meant. If nothing changed, something decides "
    "here that is not recorded: what threads or tasks share, or what the process had done before the run"
)


_ONCE: Final = "record and replay alike: each in a new process (`tracekit run` and `tracekit replay` are), or each after a first call"


#: The advice for a failure at the end of an incomplete log.
_LOG_ENDS: Final = "this is where the log ends: its process had died, or still runs; what came after is not known"


def headline(failure: BaseException) -> str:
    """Return what a failure means for the replay: it failed, or reached the end of what is known."""
    ended = isinstance(failure, ReplayError) and failure.at_log_end
    return "the replay has reached the end of the log, and the run has no end" if ended else "the replay has failed"


def asks_for_more(error: ReplayError) -> bool:
    """Return whether the program only goes beyond what is recorded, without contradicting it."""
    if isinstance(error, DivergenceError):
        facts = error.__dict__
        return error.step is None and facts.get("recorded") is None and not facts.get("differences")
    return isinstance(error, (TraceExhaustedError, LiveCallBlockedError))


def _cut_off(skipped: str | None) -> str:
    """Return a note for the case that the recorded program was cut off in a call that a library makes once per process."""
    if skipped is None:
        return ""
    return (
        f"\n  a time limit or a cancellation cut the recorded program off here, in {skipped!r}, which a library called in a thread; "
        "it has not done so in this replay: libraries do some things once in a process"
    )


# -- steps -------------------------------------------------------------------------------------------------------------


def another_step(
    run_id: str,
    named: str,
    seq: int,
    recorded: dict[str, Any],
    actual: dict[str, Any],
    found: list[dict[str, Any]],
    near: str,
    skipped: str | None = None,
) -> DivergenceError:
    """The program's step differs from the recorded step ``seq``; ``near`` names the one most like it, ``named`` the
    run.

    ``skipped`` names the library's call in a thread in which the recorded program was cut off, and which this one has
    not made.
    """
    text = (
        f"the program's {actual['kind']} {actual['name']!r} is not the recorded step {seq} "
        f"({recorded['type']} {recorded['name']!r})\n{describe(found)}{near}{_cut_off(skipped)}"
    )
    if looks_like_a_read(found):
        text += f"\n  {MADE_BY_A_PACKAGE}"
    next_action = f"`tracekit show {named}` shows the recorded steps; record again if the change is meant"
    if actual["kind"] == "llm":
        next_action += '; `--live llm` (in Python live={"llm"}) asks the model, to see where the change leads'
    left = _left_behind(found)
    if left is not None:
        text += f"\n  {left} is still there, from the recorded run or another: the program's temporary file got another name"
        next_action = (
            f"move {left} away, and replay again; a program that removes what it makes "
            "(`with tempfile.TemporaryDirectory()`) can be replayed at any time"
        )
    return DivergenceError(
        text,
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action=next_action if skipped is None else _ONCE,
        recorded=recorded,
        actual=actual,
        differences=found,
    )


def _left_behind(found: list[dict[str, Any]]) -> str | None:
    """Return a path that only the recorded values have, in the directory for temporary files, and that exists."""
    directory = getattr(sys.modules.get("tempfile"), "tempdir", None)  # where the program has not asked for it, none
    if not isinstance(directory, str):
        return None
    for one in found:
        recorded, now = one.get("recorded"), one.get("actual")
        if isinstance(recorded, str) and isinstance(now, str) and directory in now:
            for path in re.findall(rf"{re.escape(directory)}/[^/\s'\"]+", recorded):
                if path not in now and os.path.lexists(path):
                    return str(path)
    return None


def another_result(
    run_id: str, what: str, seq: int, recorded: Any, actual: Any, found: list[dict[str, Any]], where: str | None = None
) -> DivergenceError:
    """The program's result differs from the recorded one although all steps are equal; ``where`` is the line that ended
    it, if any."""
    look = "look for what decides the result and is not captured (`tracekit docs not-captured`)"
    if where is not None:
        look = f"look at what ends the program there; record again if the change is meant; else {look.removeprefix('look ')}"
    return DivergenceError(
        f"{what}\n{describe(found)}",
        run_id=run_id,
        step=seq,
        location=where,
        recorded=recorded,
        actual=actual,
        differences=found,
        next_action=f"every step matched: {look}",
    )


def now_refused(run_id: str, seq: int, kind: str, name: str, error: TracekitError) -> DivergenceError:
    return DivergenceError(
        f"{kind} {name!r} was made in the recording and is refused now: {error.what}",
        run_id=run_id,
        step=seq,
        location=caller(),
        recorded=name,
        actual=error.what,
        differences=[{"path": "refused", "recorded": None, "actual": error.what}],
        next_action="look at what changed in its contract or arguments; record again if the change is meant",
    )


def after_the_end(run_id: str, family: str, name: str, effect: bool) -> TraceExhaustedError | RunEndedError:
    """A thread, task or handler of the program makes a step after the replay's block has ended."""
    kind = RunEndedError if effect else TraceExhaustedError
    return kind(
        f"{family} {name!r} was called after the end of the replayed run; it was not executed",
        run_id=run_id,
        location=caller(),
        next_action="wait for the task or thread that calls it before the block ends",
    )


def no_more(run_id: str, kind: str, name: str, used: str, skipped: str | None = None) -> TraceExhaustedError:
    """The program makes a step beyond the last recorded one of its kind and lane; ``skipped`` as in ``another_step``."""
    changed = "look at what changed in the code before this call; record again if the change is meant"
    return TraceExhaustedError(
        f"the program asks for {kind} {name!r}, and the recording has no more: {used}{_cut_off(skipped)}",
        run_id=run_id,
        location=caller(),
        kind=kind,
        name=name,
        next_action=changed if skipped is None else _ONCE,
    )


def not_captured(run_id: str, kind: str, name: str, crossing: Crossing) -> TraceExhaustedError:
    """The program makes a request that the recorded one made at the same line, but that was not captured."""
    return TraceExhaustedError(
        f"the program asks for {kind} {name!r}, which was not captured when it was recorded: entry {crossing.entry} is {crossing.text}",
        run_id=run_id,
        location=caller(),
        kind=kind,
        name=name,
        next_action="record again, with tracekit.instrument() called before the run: what asks here is captured now, and was not then",
    )


def not_answered(
    run_id: str,
    kind: str,
    actual: Mapping[str, Any],
    near: int | None,
    found: list[dict[str, Any]],
    side_effect: str | None,
) -> TraceExhaustedError:
    """After something live, the program makes a call that is not in the recording, so that nothing answers it.

    ``near`` is the recorded step of the same name that it has not made, if there is one, and ``found`` the differences
    to it.
    """
    name = actual["name"]
    named = f"live={{{f'{kind}:{name}'!r}}}"
    may = "it is never made in a replay" if side_effect == "irreversible" else f"let it go live, if it may: {named}"
    other = "" if near is None else f" (step {near} differs in {', '.join(one['path'] for one in found[:3])})"
    return TraceExhaustedError(
        f"the program takes another path than the recorded one, and its {kind} {name!r} "
        f"is not in the recording{other}: it was not executed",
        run_id=run_id,
        step=near,
        location=caller(),
        kind=kind,
        name=name,
        actual={"type": FAMILIES[kind].intent if kind in FAMILIES else kind, **actual},
        differences=found,
        next_action=f"what this leads to is not known; {may}",
    )


def aborted_here(run_id: str, named: str, kind: str, name: str) -> TraceExhaustedError:
    """The program makes a step before which the recorded run was aborted."""
    return TraceExhaustedError(
        f"the program asks for {kind} {name!r}, and the recorded run was aborted before that",
        run_id=run_id,
        location=caller(),
        kind=kind,
        name=name,
        next_action=f"that is where the recording ends; `tracekit show {named}` shows who aborted it, and why",
    )


def without_outcome(trace: Trace, run_id: str, seq: int, kind: str, name: str) -> TraceExhaustedError:
    """A step has only an intent record: the recorded process died there, or went on without an outcome."""
    return (_left if trace.ended else _ends_inside)(run_id, seq, kind, name)


def _left(run_id: str, seq: int, kind: str, name: str) -> TraceExhaustedError:
    return TraceExhaustedError(
        f"the recorded run ended without an outcome of this step: {kind} {name!r}",
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action="it was still running then, in a thread or task: wait for it before the run ends; or a signal handler raised an "
        "exception (sys.exit) just before its outcome was written: have the handler set a flag, and look at that between two steps",
    )


def past_end(run_id: str, kind: str, name: str) -> TraceExhaustedError:
    """A thread that was still running when the recorded run ended begins a step after that."""
    return TraceExhaustedError(
        f"the recorded run ended before its thread reached this step: {kind} {name!r}",
        run_id=run_id,
        location=caller(),
        next_action="it was not executed: wait for the thread before the run ends, so that the recording has what it does",
    )


def _ends_inside(run_id: str, seq: int, kind: str, name: str) -> TraceExhaustedError:
    """The recorded process died between this step's intent record and its outcome."""
    return TraceExhaustedError(
        f"the recording ends inside this step: {kind} {name!r} has no outcome in the log",
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action=_LOG_ENDS,
    )


def sleeps_too_often(run_id: str, sleeping: Sequence[Waiting]) -> DivergenceError:
    """All that still runs in the program sleeps, and no such sleep ended in the recording."""
    one = sleeping[0]
    what = f"the program sleeps here ({one.sleep}), and the recording has no such sleep at this point"
    if len(sleeping) > 1:
        what = "everything in the program sleeps, and the recording does not have all of these sleeps" + _lines_of(
            sleeping
        )
    return DivergenceError(
        what,
        run_id=run_id,
        location=one.where,
        next_action=_CHANGED,
        recorded=None,
        actual=one.sleep,
        differences=[],
    )


def _lines_of(waiting: Sequence[Waiting]) -> str:
    return "".join(f"\n  {one}" for one in waiting)


def everything_waits(run_id: str, waiting: Sequence[Waiting], several: bool) -> TraceExhaustedError:
    """Every task and thread of the program waits, at the lines ``waiting``, for something that was never recorded.

    ``several``: threads take part, and may wait for one another.
    """
    here = "check what the program now waits for"
    if any(one.sleep for one in waiting):
        here = (
            "where a sleep was added, record again if that is meant; else look for what else the program now waits for"
        )
    unset = "what the body of a tool, or a transport of the program's own below a client, sets is not set in a replay"
    others = ", and threads may wait for one another: pass what they share by a queue or a future"
    return TraceExhaustedError(
        "everything in the program waits, and the recording has nothing more to deliver to it"
        + _lines_of(waiting)
        + (THREAD_ORDER if several else ""),
        run_id=run_id,
        next_action=f"{here}: {unset}{others if several else ''}",
    )


def left_over(steps: int, of: str = "") -> str:
    """Return a sentence about the number of recorded steps that are left, ``of`` a process, say (``" of it"``)."""
    return (
        f"1 recorded step{of} was never requested" if steps == 1 else f"{steps} recorded steps{of} were never requested"
    )


def never_asked_for(run_id: str, steps: list[dict[str, Any]]) -> UnconsumedStepsError:
    """The program has ended, and recorded steps are left."""
    first = steps[0]
    return UnconsumedStepsError(
        f"{left_over(len(steps))}{', the first' if len(steps) > 1 else ''}: {first['type']} {first['name']!r}",
        run_id=run_id,
        step=first["seq"],
        steps=steps,
        next_action="the program now ends earlier or takes another path; record again if the change is meant",
    )


def not_followed(run_id: str, named: str, steps: list[dict[str, Any]]) -> UnconsumedStepsError:
    first = f", the first is {steps[0]['type']} {steps[0]['name']!r} (step {steps[0]['seq']})" if steps else ""
    return UnconsumedStepsError(
        f"the program does not follow the log of the run any more: {len(steps)} recorded steps were not made{first}; nothing went live",
        run_id=run_id,
        steps=steps,
        next_action=f"resume with the code that made the run (`tracekit replay {named}` shows the difference), or abort it",
    )


def not_yet_followed(run_id: str, kind: str, name: str) -> NotReplayableError:
    return NotReplayableError(
        f"{kind} {name!r} would go live in an event loop while other tasks have recorded steps to make; it was not executed",
        run_id=run_id,
        location=caller(),
        reason="a call that does not await can't wait for them",
        next_action="make the tool a coroutine, or resume under an event loop of the standard library",
    )


def nothing_recorded(run_id: str) -> NotReplayableError:
    """The recording has nothing to give to the program."""
    return NotReplayableError(
        "the recording has no steps, reads or inputs: a replay of it shows nothing",
        run_id=run_id,
        reason="nothing was captured",
        next_action="call tracekit.instrument() before the agent runs, and decorate its tools with @traced_tool",
    )


def out_of_order(entry: Mapping[str, Any]) -> DivergenceError:
    """The program makes a step although an earlier recorded one of its lane has not been made."""
    return DivergenceError(
        f"the program reaches a later step, and {entry['type']} {entry.get('name')!r} (step {entry['seq']}) "
        "was recorded before it",
        run_id=entry["run_id"],
        step=entry["seq"],
        location=caller(),
        next_action="look at what changed the order of the two; record again if the change is meant",
        recorded=entry,
        actual=None,
        differences=[],
    )


# -- clock, random numbers, identity -----------------------------------------------------------------------------------


def draws_left(entry: Mapping[str, Any], left: int) -> DivergenceError:
    """The program makes a step before it has drawn all random numbers recorded before it."""
    return DivergenceError(
        f"the recording draws {entry['name']} {left} more time(s) here than the program does now",
        run_id=entry["run_id"],
        step=entry["seq"],
        location=caller(),
        next_action="look at what changed in the code between the two steps",
        recorded=entry,
        actual=None,
        differences=[],
    )


def draw_too_many(run_id: str, function: str, surplus: Mapping[str, Any] | None, beside: str) -> DivergenceError:
    """The program draws a random number not recorded at this place. ``surplus``: a clock read here that is not in the
    recording."""
    what = f"the program draws {function} here, and the recording has no such draw left before the next step"
    if surplus is not None:
        at = f" at {surplus['where']}" if surplus.get("where") else ""
        read = f"{surplus['function']} was read{at}"
        what += f"\n  before it {read}, and the recording has no such reading left here: it gave an earlier time, which may lead here"
    return _one_too_many(run_id, what + beside, function)


def draw_of_another_size(run_id: str, function: str, recorded: int, now: int) -> DivergenceError:
    """The program draws more or fewer bytes than recorded."""
    found = [{"path": "bytes", "recorded": recorded, "actual": now}]
    what = f"the program draws {now} bytes by {function} here, and the recorded one drew {recorded}"
    return _one_too_many(run_id, what, function, found)


def asked_too_often(run_id: str, process: str) -> DivergenceError:
    """The program checks a process's status where the recorded one did not."""
    what = f"the program asks here for the state of the process {process}, and the recorded one did not ask (again)"
    return _one_too_many(run_id, what, process)


def clock_stands_still(run_id: str, function: str) -> TraceExhaustedError:
    """The program waits for a clock to advance of which the recording has no more reads here."""
    return TraceExhaustedError(
        f"the program keeps reading {function} here, and the recording has no more reads of it before the next step",
        run_id=run_id,
        location=caller(),
        next_action=_CHANGED,
    )


def _one_too_many(
    run_id: str, what: str, actual: str, differences: Sequence[Mapping[str, Any]] = ()
) -> DivergenceError:
    return DivergenceError(
        what,
        run_id=run_id,
        location=caller(),
        next_action=_CHANGED,
        recorded=None,
        actual=actual,
        differences=[*differences],
    )


def clock_never_read(run_id: str, function: str) -> DivergenceError:
    """The recording has no reading at all of a clock."""
    return DivergenceError(
        f"the program reads {function} here, and the recording has no read of it at all",
        run_id=run_id,
        location=caller(),
        next_action=_CHANGED,
    )


def another_identity(
    run_id: str, seq: int | None, agent: str, recorded: Any, actual: Any, found: list[dict[str, Any]]
) -> DivergenceError:
    """An agent acts under another identity than recorded."""
    return DivergenceError(
        f"the agent {agent!r} has another identity than in the recording\n" + describe(found),
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action="replay as the agent that was recorded; record again if the change is meant",
        recorded=recorded,
        actual=actual,
        differences=found,
    )


# -- consequences ------------------------------------------------------------------------------------------------------


class FirstFailure:
    """The first failure of a replay, which every later request of the program raises again.

    ``stop`` is called once, with that failure. ``log_ended`` returns whether it only means that an incomplete log has
    been followed to its end, so that it is unknown whether the replay is exact.
    """

    def __init__(
        self,
        report: Report,
        state: RunState,
        lock: RLock,
        stop: Callable[[ReplayError], object],
        log_ended: Callable[[ReplayError], bool],
    ) -> None:
        self.error: ReplayError | None = None
        self._report: Final = report
        self._state: Final = state
        self._lock: Final = lock
        self._stop: Final = stop
        self._log_ended: Final = log_ended

    def by(self, error: ReplayError, code: str | None = None) -> ReplayError:
        """Make ``error`` the failure, unless there is one; return the error to raise here. ``code`` is for the verdict."""
        if at_prompt():
            return error
        with self._lock:
            if self.error is not None:
                return self.again()
            if self._report.verdict.final:
                return error
            self.error = self._report.failure = error
            if self._log_ended(error):
                error.at_log_end, error.next_action = True, _LOG_ENDS
            elif not isinstance(error, InexactReplayError):  # an inexact replay has its reasons already
                self.blame(error, code)
            # The program still has to unwind, and may not survive that; at its end, the block raises the error.
            early = (not self._state.ended or code == "late") and not self._report.verdict.interrupted
            if early and not process.role.print_failure(error):
                brief = error.fresh()
                brief.next_action = None  # that comes with the exception
                say(f"{headline(error)}: {brief}")
            self._stop(error)
        return error

    def blame(self, error: ReplayError, code: str | None = None) -> None:
        """Add a failure to the verdict's reasons; ``code`` if the error's own code is not specific enough."""
        steps = error.__dict__.get("steps")
        if isinstance(error, UnconsumedStepsError) and steps and "child" not in error.__dict__:
            self._report.never_asked_for(steps)
            return
        code = code or error.code.replace("-", "_")
        self._report.inexact(code, error.what.partition("\n")[0], step=error.step, where=error.location)

    def again(self) -> ReplayError:
        """Return a copy of the failure, to be raised again."""
        assert self.error is not None
        copy = self.error.fresh()
        assert isinstance(copy, ReplayError)
        return copy

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.error is not None:
            raise self.again()


class Divergences:
    """Decides what follows from a step, or an end, that differs from the recording: the replay fails, or notes it if it
    may go on (``warns``).

    ``used`` says which recorded entries the program has reached, ``made_again`` which cut-off library calls it has
    made.
    """

    def __init__(
        self,
        trace: Trace,
        index: Index,
        comparison: Comparison,
        redactor: Redactor,
        report: Report,
        failed: FirstFailure,
        threads: ThreadMonitor,
        used: bytearray,
        made_again: Collection[int],
        *,
        warns: bool,
    ) -> None:
        self._trace: Final = trace
        self._index: Final = index
        self._comparison: Final = comparison
        self._redactor: Final = redactor
        self._report: Final = report
        self._failed: Final = failed
        self._threads: Final = threads
        self._used: Final = used
        self._made_again: Final = made_again
        self._warns: Final = warns
        self._run_id: Final = report.run_id
        #: Environment variables that configure SDKs and have changed since the recording.
        self.settings_changed: Callable[[], Sequence[str]] = list

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self, scope: Scope, spec: Spec, data: bytes, seq: int, entry: Mapping[str, Any]) -> None:
        """The next recorded step is ``seq``, and the program makes another one."""
        recorded = {
            "name": entry.get("name"),
            "agent_id": entry.get("agent_id"),
            "input": self._trace.expand(entry["input"]),
            "meta": signature(entry),
        }
        rendered = spec.render(self._redactor)
        actual = {"name": rendered.name, "agent_id": scope.agent, "input": loads(data), "meta": rendered.meta}
        if self.are_ignored(spec.family, seq, recorded, actual):
            return
        # Another model is another parameter of the same call: the name of a model call is its model.
        same_kind = recorded["name"] == rendered.name or spec.family == "llm"
        same_kind = same_kind and recorded["meta"].get("side_effect") == spec.side_effect
        skipped = self._not_made_here(scope.lane)
        found = self._nearest(spec.family, data, seq)
        another = recorded["name"] != rendered.name and spec.family != "llm"
        near = ""
        # The same step with another field: the change is in that field, and no other step or order of steps is
        # involved.
        equal = found is not None and found[1]
        if another or equal:
            near = self._nearest_text(found)
        if skipped is None and self._is_of_another_order(
            seq, found if equal else None, another, recorded["input"], data
        ):
            near += THREAD_ORDER
        harmless = same_kind and spec.side_effect != "irreversible"
        self.another(spec.family, seq, recorded, actual, near, harmless=harmless, skipped=skipped)

    def note(self, kind: str, seq: int, recorded: dict[str, Any], actual: dict[str, Any]) -> None:
        """The same for a step of one entry."""
        if not self.are_ignored(kind, seq, recorded, actual):
            self.another(kind, seq, recorded, actual, "", harmless=recorded["name"] == actual["name"])

    def another(
        self,
        kind: str,
        seq: int,
        recorded: dict[str, Any],
        actual: dict[str, Any],
        near: str,
        *,
        harmless: bool,
        skipped: str | None = None,
    ) -> None:
        """A step of ``kind`` is not the recorded step ``seq``: fail, or note it if the replay may go on."""
        found = differences(steady(recorded), steady(actual)) or [{"path": "input (fingerprint)"}]
        # These variables decide where a request goes, so they explain a different URL and nothing else.
        if kind in ("llm", "http") and any(one["path"].startswith(("input.url", "input.query")) for one in found):
            near += "".join(f"\n  {sentence}" for sentence in self.settings_changed())
        if self._warns and harmless:
            text = (
                f"the program's {kind} {actual['name']!r} is not the recorded step {seq}, and was answered nevertheless"
            )
            threads = {"threads": True} if THREAD_ORDER in near or self._threads.overlapping else {}
            self._report.inexact("passed_over", text, step=seq, where=caller(), differences=found, **threads)
            return
        recorded = {"type": self._trace.entry(seq)["type"], **recorded}
        named = shown_as(self._trace.path)
        raise self._failed.by(
            another_step(self._run_id, named, seq, recorded, {"kind": kind, **actual}, found, near, skipped)
        )

    def are_ignored(self, kind: str, seq: int, recorded: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
        """Return whether a step equals the recorded step ``seq`` except for excluded fields, and note it."""
        found = self._comparison.but_for_ignored(kind, recorded, actual)
        if found is None:
            return False
        names = ", ".join(dict.fromkeys(one["path"] for one in found))
        text = f"{kind} {recorded['name']!r} differs in {names}, which is left out"
        self._report.allow("ignored", text, step=seq, differences=found)
        return True

    def exhausted(self, lane: Lane, kind: str, name: str, data: bytes, number: int) -> ReplayError:
        """``lane`` (the recorded lane ``number``) makes more steps of a kind than recorded."""
        if self._trace.last["type"] == "run.aborted":
            return self._failed.by(aborted_here(self._run_id, shown_as(self._trace.path), kind, name))
        if kind in _BY_A_CLIENT and (crossing := self._crossed_here()) is not None:
            return self._failed.by(not_captured(self._run_id, kind, name, crossing))
        count = len(self._index.intents.get((number, kind), ()))
        near = self._nearest_text(self._nearest(kind, data, None))
        where = f"in lane {lane.path}" if lane.path else "in the main lane of the run"
        used = f"{count} {where}, all used{near}"
        skipped = self._not_made_here(lane)
        used += self.thread_order if skipped is None else ""
        return self._failed.by(no_more(self._run_id, kind, name, used, skipped))

    def _crossed_here(self) -> Crossing | None:
        """Return the recorded boundary crossing with which the program used the network at this line, outside every
        step."""
        where = caller()
        found = uncaptured(crossings_of(self._trace.entries(damaged=True)))
        return next((one for one in found if one.where == where and reaches_the_network(one)), None)

    def unanswered(self, scope: Scope, request: Request, left: Iterable[int]) -> ReplayError:
        """Off the recorded path, none of the steps that are ``left`` answers a request."""
        spec = request.spec
        rendered, tree = spec.render(self._redactor), self._comparison.input(request)[0]
        near = next((one for one in left if self._trace.entry(one).get("name") == rendered.name), None)
        found = []
        if near is not None:
            entry = self._trace.entry(near)
            recorded = {
                "agent_id": entry.get("agent_id"),
                "input": self._trace.expand(entry.get("input")),
                "meta": signature(entry),
            }
            actual = {"agent_id": scope.agent, "input": tree, "meta": rendered.meta}
            found = differences(steady(recorded), steady(actual))
        about = {"name": rendered.name, "input": tree}
        return self._failed.by(not_answered(self._run_id, spec.family, about, near, found, spec.side_effect))

    def _not_made_here(self, lane: Lane) -> str | None:
        """Return the name of the library call in a thread in which the recorded program was cut off here, if this
        program has not made it."""
        found = self._index.cut_off.get((lane.id, lane.last), {})
        return next((name for seq, name in found.items() if seq not in self._made_again), None)

    def _nearest(self, kind: str, data: bytes, mismatched: int | None) -> tuple[int, bool] | None:
        candidates: list[tuple[int, Mapping[str, Any], bytes]] = []
        for (_lane, family), steps in self._index.intents.items():
            if family == kind:
                for seq in steps[:]:
                    if seq != mismatched and self._used[seq] != 2 and len(candidates) < _NEIGHBOURS:
                        entry = self._trace.entry(seq)
                        candidates.append((seq, entry, dumps(self._trace.expand(entry.get("input")))))
        return nearest(data, candidates)

    def _nearest_text(self, near: tuple[int, bool] | None) -> str:
        if near is None:
            return ""
        seq, equal = near
        used = " (already answered)" if self._used[seq] else ""
        return f"\n  nearest recorded step: {seq}{used}, " + ("with equal input" if equal else "with other input")

    def _is_of_another_order(
        self, seq: int, equal: tuple[int, bool] | None, another: bool, recorded: Any, data: bytes
    ) -> bool:
        """Return whether a step in place of ``seq`` may be due to the order of threads: it has the same content in
        another order, or is the ``equal`` step of another lane; or is ``another`` one, and threads were overlapping."""
        if equal is not None:
            return self._threads.several and self._index.lane[equal[0]] != self._index.lane[seq]
        if _is_reordered(dumps(recorded), data):
            return self._threads.several
        return another and self._threads.overlapping

    @property
    def thread_order(self) -> str:
        """Return advice for the case that threads of the program have run at the same time."""
        return THREAD_ORDER if self._threads.overlapping else ""

    # -- ends ----------------------------------------------------------------------------------------------------------

    def end(self, code: str, what: str, seq: int, value: object, where: str | None = None) -> None:
        """Compare the program's result with the output of the entry ``seq``; ``where`` is the line that ended the
        program, if any."""
        recorded = self._trace.expand(self._trace.entry(seq).get("output"))
        actual = self._redactor.redact(to_json(value))[0]
        found = differences(recorded, actual)
        if found and not self._comparison.equal(recorded, actual):
            self.another_end(code, another_result(self._run_id, what, seq, recorded, actual, found, where))

    def another_end(self, code: str, error: ReplayError, cause: BaseException | None = None) -> None:
        """The program ended differently. Raises that, unless the caller asked to go on."""
        if self._warns:
            self._failed.blame(error, code)
            return
        raise self._failed.by(error, code) from cause


def _is_reordered(one: bytes, other: bytes) -> bool:
    """Return whether two inputs have the same content in another order, like a list shared by threads."""
    return len(one) == len(other) and sorted(one) == sorted(other)
