"""The failures of a replay, each in words that say what, where and what next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import DivergenceError, NotReplayableError, TraceExhaustedError, TracekitError, UnconsumedStepsError
from .callsite import caller
from .divergence import describe, looks_like_a_read

__all__ = [
    "THREAD_ORDER",
    "another_identity",
    "another_step",
    "asked_too_often",
    "clock_drift",
    "clock_never_read",
    "draw_too_many",
    "draws_left",
    "ends_inside",
    "everything_waits",
    "handed_out_of_order",
    "never_asked_for",
    "no_more",
    "nothing_recorded",
    "out_of_order",
]

#: Said beside a difference where several threads take part.
THREAD_ORDER = (
    "\n  thread order may differ: other threads take part, and what they share without a future or a queue "
    "(a list, a lock, a flag) is not recorded"
)
_CHANGED = "look at what changed in the code since the step before; record again if the change is meant"


# -- steps -------------------------------------------------------------------------------------------------------------------


def another_step(
    run_id: str, seq: int, recorded: dict[str, Any], actual: dict[str, Any], found: list[dict[str, Any]], near: str
) -> DivergenceError:
    """The program does something else than the recorded step ``seq``; ``near`` names the one most like it."""
    text = (
        f"the program's {actual['kind']} {actual['name']!r} is not the recorded step {seq} "
        f"({recorded['type']} {recorded['name']!r})\n{describe(found)}{near}"
    )
    if looks_like_a_read(found):
        text += (
            "\n  the difference looks like an instant, an id or a draw: if a package made it, "
            "name it in instrument(user_modules=[…]) and record again"
        )
    return DivergenceError(
        text,
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action=f"`tracekit show {run_id}` shows the recorded steps; record again if the change is meant",
        recorded=recorded,
        actual=actual,
        differences=found,
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


def no_more(run_id: str, kind: str, name: str, used: str) -> TraceExhaustedError:
    """The program asks for a step beyond the last recorded one of its kind and lane."""
    return TraceExhaustedError(
        f"the program asks for {kind} {name!r}, and the recording has no more: {used}",
        run_id=run_id,
        location=caller(),
        kind=kind,
        name=name,
        next_action="look at what changed in the code before this call; record again if the change is meant",
    )


def aborted_here(run_id: str, kind: str, name: str) -> TraceExhaustedError:
    """The program asks for a step, and the run was given up before it."""
    return TraceExhaustedError(
        f"the program asks for {kind} {name!r}, and the recorded run was aborted before that",
        run_id=run_id,
        location=caller(),
        kind=kind,
        name=name,
        next_action="that is where the recording ends; `tracekit show RUN` shows who aborted it, and why",
    )


def ends_inside(run_id: str, seq: int, kind: str, name: str) -> TraceExhaustedError:
    """The recorded process died between this step's intention and its outcome."""
    return TraceExhaustedError(
        f"the recording ends inside this step: {kind} {name!r} has no outcome in the log",
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action="this is where the recorded process died; nothing is known of what came after",
    )


def everything_waits(run_id: str, waiting: Iterable[str]) -> TraceExhaustedError:
    """Every task and thread of the program waits for something that was never recorded, at the lines ``waiting``."""
    return TraceExhaustedError(
        "everything in the program waits, and the recording has nothing more to deliver to it"
        + "".join(f"\n  {line}" for line in waiting),
        run_id=run_id,
        next_action="if the run was killed here, this is where its log ends; else look for what the program now waits for",
    )


def never_asked_for(run_id: str, steps: list[dict[str, Any]]) -> UnconsumedStepsError:
    """The program has ended, and recorded steps are left."""
    first = steps[0]
    return UnconsumedStepsError(
        f"{len(steps)} recorded step(s) were never asked for, the first: {first['type']} {first['name']!r}",
        run_id=run_id,
        step=first["seq"],
        steps=steps,
        next_action="the program now ends earlier or takes another way; record again if the change is meant",
    )


def not_followed(run_id: str, steps: list[dict[str, Any]]) -> UnconsumedStepsError:
    first = f", the first is {steps[0]['type']} {steps[0]['name']!r} (step {steps[0]['seq']})" if steps else ""
    return UnconsumedStepsError(
        f"the program does not follow the log of the run any more: {len(steps)} recorded steps were not made{first}; nothing went live",
        run_id=run_id,
        steps=steps,
        next_action="resume with the code that made the run (`tracekit replay RUN` shows the difference), or abort it",
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
    """A recording without a step and without a read."""
    return NotReplayableError(
        "the recording holds no step and no read: a replay of it shows nothing",
        run_id=run_id,
        reason="nothing was captured",
        next_action="call tracekit.instrument() before the agent runs, and decorate its tools with @traced_tool",
    )


def out_of_order(entry: Mapping[str, Any]) -> DivergenceError:
    """A step comes that was recorded after another one of its line of execution, which has not come yet."""
    return DivergenceError(
        f"the program comes to a later step, and {entry['type']} {entry.get('name')!r} (step {entry['seq']}) "
        "was recorded before it",
        run_id=entry["run_id"],
        step=entry["seq"],
        location=caller(),
        next_action="look at what changed the order of the two; record again if the change is meant",
        recorded=entry,
        actual=None,
        differences=[],
    )


def handed_out_of_order(run_id: str, seqs: list[int]) -> DivergenceError:
    """Outcomes could not be handed out in their recorded order, under ``strict={"order"}``."""
    return DivergenceError(
        f"{len(seqs)} outcome(s) came in another order than recorded, the first: {seqs[0]} (strict order)",
        run_id=run_id,
        step=seqs[0],
        next_action='leave "order" out of strict, if what the program did all the same is enough',
    )


# -- clock, dice, identity ---------------------------------------------------------------------------------------------------


def draws_left(entry: Mapping[str, Any], left: int) -> DivergenceError:
    """A step comes before the program has made all draws that were made before it then."""
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


def draw_too_many(run_id: str, function: str) -> DivergenceError:
    """The program makes a draw that was not made at this place."""
    what = f"the program draws {function} here, and the recording has no such draw left before the next step"
    return _one_too_many(run_id, what, function)


def asked_too_often(run_id: str, process: str) -> DivergenceError:
    """The program asks how a process stands where the recorded one did not."""
    what = f"the program asks here how the process {process} stands, and the recorded one did not ask (again)"
    return _one_too_many(run_id, what, process)


def _one_too_many(run_id: str, what: str, actual: str) -> DivergenceError:
    return DivergenceError(
        what,
        run_id=run_id,
        location=caller(),
        next_action=_CHANGED,
        recorded=None,
        actual=actual,
        differences=[],
    )


def clock_never_read(run_id: str, function: str) -> DivergenceError:
    """A clock for which the recording has no instant at all."""
    return DivergenceError(
        f"the program reads {function} here, and the recording has no read of it at all",
        run_id=run_id,
        location=caller(),
        next_action=_CHANGED,
    )


def clock_drift(run_id: str, kind: str, function: str, count: int, where: str | None) -> DivergenceError:
    """Reads of a clock too many (``surplus``) or too few (``missing``), under ``strict={"clock"}``."""
    return DivergenceError(
        f"{count} read(s) of {function} {'too many' if kind == 'surplus' else 'too few'} (strict clock)",
        run_id=run_id,
        location=where,
        next_action='leave "clock" out of strict, if the program may read the clock as often as it likes',
    )


def another_identity(
    run_id: str, seq: int | None, agent: str, recorded: Any, actual: Any, found: list[dict[str, Any]]
) -> DivergenceError:
    """An agent acts under another identity than the recorded one."""
    return DivergenceError(
        f"the agent {agent!r} is not who it was in the recording\n" + describe(found),
        run_id=run_id,
        step=seq,
        location=caller(),
        next_action="replay as the agent that was recorded; record again if the change is meant",
        recorded=recorded,
        actual=actual,
        differences=found,
    )
