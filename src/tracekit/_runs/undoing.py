"""Undoing what a run did: compensations in reverse order, each a recorded step, each run once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from threading import get_ident
from types import ModuleType
from typing import Any, Final, NamedTuple, Never

import orjson

from .. import _reality
from .._capture import guard as guards
from .._capture.calls import captured_of
from .._capture.contracted import (
    Compensation,
    Completed,
    Done,
    UndoableSteps,
    call_plan,
    run_plan,
    run_plan_async,
    undoable_steps,
)
from .._capture.guard import Attempt
from .._journal.reader import Trace
from .._runtime.lane import ROOT, Lane
from .._runtime.process import process
from .._runtime.recovered import RecoveredLog, RecoveredStep, steps_in_doubt
from .._runtime.redaction import Originals
from .._runtime.session import Closing, Scope, Session, UndoLog, current, enter, here, owner, undoing
from .._runtime.step import Spec
from .._values import exception_text
from .._values.decoding import from_json
from ..errors import (
    LiveCallBlockedError,
    LogWriteError,
    NotReplayableError,
    RecoveryRefusedError,
    ReplayError,
    RunStateError,
    TraceError,
)

__all__ = [
    "PATIENCE",
    "Tools",
    "Undoing",
    "compensate",
    "definitions",
    "facts",
    "inherit",
    "to_run",
    "tools_of",
    "uncompensated",
    "undo",
    "undo_async",
    "unknown",
]

# -- importing tools ---------------------------------------------------------------------------------------------------
#
# Modules that an operator names for their tools are imported with nothing live, since one of them may be a whole
# program.

_importing: Final = _reality.OwnLock()


def definitions(name: str) -> ModuleType:
    """Import a module for its tools; nothing that its import begins is live: no run, no traced call, no connection, no
    process.

    Raises ``RecoveryRefusedError`` if it tries anything live, even if it catches the error; ``RunStateError`` if it
    can't be imported.
    """
    tried: list[str] = []
    try:
        with _importing, _nothing_live(tried):
            module = import_module(name)
    except (Exception, LiveCallBlockedError, SystemExit) as error:
        if not tried:
            raise RunStateError(
                f"the module {name} can't be imported: {_error_text(error)}",
                next_action="name it as Python imports it, from the directory that contains it",
            ) from error
    if tried:
        raise RecoveryRefusedError(
            f"{name} runs the program when it is imported ({tried[0]}); nothing of that was done",
            reasons=[{"code": "tools_run", "text": tried[0], "module": name}],
            next_action="put the program under `if __name__ == '__main__':`, or name a module that only defines the tools",
        )
    return module


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError) else exception_text(error)


@contextmanager
def _nothing_live(tried: list[str]) -> Iterator[None]:
    """Refuse everything live in this thread and in threads that start meanwhile; ``tried`` receives what was refused."""
    # By the system's numbers: a thread that is started when one of these has ended may have the ident of that one.
    others = frozenset(one.native_id for one in threading.enumerate()) - {threading.get_native_id()}
    watch = _ImportWatch(others, tried, process.outside)
    guard = _ImportGuard(watch)
    token = current.set(None)
    guard.engage()
    process.refuse_outside(watch.call)
    try:
        with process.nothing_begins(watch.block):
            yield
    finally:
        process.allow_outside(watch.call)
        guard.release()
        current.reset(token)


class _ImportWatch:
    """Refuses live operations during an import in all threads but ``others``, which have nothing to do with it."""

    def __init__(
        self, others: frozenset[int | None], tried: list[str], before: Callable[[str, str], None] | None
    ) -> None:
        self._others: Final = others
        self._tried: Final = tried
        self._before: Final = before

    def concerns(self) -> bool:
        return threading.get_native_id() not in self._others

    def call(self, family: str, name: str) -> None:
        if self.concerns():
            self._refuse(f"it calls {family} {name!r}")
        if self._before is not None:
            self._before(family, name)

    def block(self, kind: str) -> None:
        if self.concerns():
            self._refuse(f"it opens a {kind}() block")

    def blocked(self, error: LiveCallBlockedError) -> None:
        self._tried.append(f"it reaches out: {error.__dict__.get('operation')} {error.__dict__.get('target')}")

    def _refuse(self, what: str) -> Never:
        self._tried.append(what)
        raise LiveCallBlockedError(
            f"{what} while it is imported for its tools; it was not executed",
            operation=what,
            next_action="put the program under `if __name__ == '__main__':`",
        )


class _ImportGuard(guards.Guard):
    """The process's guard for the threads that the import concerns."""

    def __init__(self, watch: _ImportWatch) -> None:
        super().__init__("process", (), False, failed=watch.blocked)
        self._watch: Final = watch

    def blocks(self, attempt: Attempt) -> bool:
        return self._watch.concerns() and super().blocks(attempt)


# -- running compensations ---------------------------------------------------------------------------------------------
#
# Undoing what a run has done, on abort: compensations in reverse order, each a recorded step, each run once.


class Tools(NamedTuple):
    """What modules define: the tools with a compensation, by name, and the names of all their tools."""

    specs: Mapping[str, Spec]
    names: frozenset[str]


def uncompensated(log: RecoveredLog) -> list[RecoveredStep]:
    """Return the reversible steps that may have done something and were not undone, the last one first.

    A compensation must tolerate that nothing had happened, so failed and pending steps are included.
    """
    undone = {step.undoes for step in log.steps.values() if step.state == "done"}
    return [
        step
        for step in reversed(log.steps.values())
        if step.side_effect == "reversible"
        and step.state != "given_up"
        and not (step.duplicate or step.undoes or step.seq in undone)
        and not any(outer.seq in undone for outer in log.enclosing(step))
    ]


def to_run(log: RecoveredLog, specs: Mapping[str, Spec]) -> list[RecoveredStep]:
    """Return the steps whose compensations are to be run, the last step first.

    What was done inside a step that is undone as a whole is undone with it. A compensation that is itself irreversible,
    and was begun before, is not run again unless a person said that it was not done.
    """
    begun = _begun(log)
    left = uncompensated(log)
    whole = {step.seq for step in left if _compensation(specs, step) is not None}
    return [
        step
        for step in left
        if step.seq in whole
        and step.seq not in begun
        and not any(outer.seq in whole or outer.seq in begun for outer in log.enclosing(step))
    ]


def unknown(log: RecoveredLog, tools: Tools) -> list[RecoveredStep]:
    """Return the steps to be undone for which no module has the tool, so that nothing says how, the last step first."""
    known = _begun(log) | {step.seq for step in uncompensated(log) if _compensation(tools.specs, step) is not None}
    return [
        step
        for step in uncompensated(log)
        if step.family == "tool"
        and step.name not in tools.names
        and step.seq not in known
        and not any(outer.seq in known for outer in log.enclosing(step))
    ]


def _begun(log: RecoveredLog) -> set[int]:
    return {step.undoes for step in log.steps.values() if step.undoes and step.effect and step.state != "given_up"}


def compensate(session: Session, trace: Trace, steps: Iterable[RecoveredStep], specs: Mapping[str, Spec]) -> None:
    """Run the compensations of these steps. One that raises is in the log; the others go on."""
    scope = Scope(session.state.session or session, Lane("", 1, None, id=0, owner=owner()), ROOT)
    for step in steps:
        _undo(scope, trace, step, specs[str(step.name)])


def _compensation(specs: Mapping[str, Spec], step: RecoveredStep) -> Any:
    """Return how to undo a step; ``None`` if nothing says so, or if the object of the method is gone."""
    spec = specs.get(str(step.name))
    compensation = None if spec is None else spec.compensation
    return None if compensation is None or compensation._needs_object else compensation


def facts(trace: Trace, step: RecoveredStep, spec: Spec | None) -> tuple[Any, Any] | None:
    """Return a step's input and output; ``None`` if the log does not have all of it: a step is not undone with
    placeholders."""
    known = Originals(trace.path)
    entry = trace.entry(step.seq)
    if (step.hidden and step.state == "done") or known.lack(entry, "input"):
        return None
    try:
        entry = known.of(entry, lambda tree: trace.expand(tree, before=step.seq), "input")
        arguments = from_json(trace.expand(entry.get("input"), before=step.seq))
        if step.state != "done":
            return arguments, None
        outcome = known.of(trace.entry(step.outcome), lambda tree: trace.expand(tree, before=step.outcome), "output")
        output = trace.expand(outcome.get("output"), before=step.outcome)
        return arguments, from_json(output, None if spec is None else spec.hint())
    except NotReplayableError:
        return None


def _undo(scope: Scope, trace: Trace, step: RecoveredStep, spec: Spec) -> None:
    known = facts(trace, step, spec)
    if known is None:
        return  # it is among those that were not undone
    input, output = known
    compensation: Any = spec.compensation
    token = enter(scope)
    try:
        if compensation.asynchronous:
            import asyncio

            asyncio.run(compensation.run_async(scope, step.seq, input, output))
        else:
            compensation.run(scope, step.seq, input, output)
    except LogWriteError:
        raise
    except Exception:
        pass  # it is in the log, and the step is among those that were not undone
    finally:
        current.reset(token)


def tools_of(modules: Iterable[str]) -> Tools:
    """Return the tools of modules that the *operator* names; importing them must only define things.

    Raises ``RunStateError`` if two tools that can be undone have the same name.
    """
    found: dict[str, Spec] = {}
    names: set[str] = set()
    for name in modules:
        for spec in _specs(definitions(name)):
            names.add(spec.name)
            if spec.compensation is not None and found.setdefault(spec.name, spec) is not spec:
                raise RunStateError(
                    f"two tools that can be undone are called {spec.name!r}: which one the run called is not known",
                    next_action="name the module of the right one only, or give the tools names of their own",
                )
    return Tools(found, frozenset(names))


def _specs(module: ModuleType) -> Iterator[Spec]:
    for value in [*vars(module).values()]:
        if not isinstance(value, type) and hasattr(type(value), "tracekit_specs"):  # see HasSpecs
            yield from value.tracekit_specs()
        members = [*vars(value).values()] if isinstance(value, type) else ()
        for one in (value, *members):
            captured = captured_of(one)
            if captured is not None:
                yield captured.spec


# -- steps of an earlier process ---------------------------------------------------------------------------------------
#
# What a resumed run must undo although another process did it: steps inside others that the log answers.
#
# The program gets the outcome of the outer step, and its body does not run: nothing in this process has seen what was
# done inside.


def inherit(session: Session, undoable: UndoableSteps) -> None:
    """Add to ``undoable`` the steps inside others that an earlier process of this run made and nothing has undone.

    The tool says how to undo a step, if this process has it; a step of an unknown tool is ``stuck``.
    """
    past = session.log.trace
    if past is None or not session.state.live:
        return
    with Trace(session.log.path) as trace:
        log = RecoveredLog(Originals(trace.path).lacking(trace.entries(damaged=True)))
        for step in sorted(_left(len(past), log, undoable), key=lambda step: step.seq):
            if any(undoable.has(outer.seq) or outer.seq in undoable.stuck for outer in log.enclosing(step)):
                continue  # it is undone with that one, or that one remains
            if not _add(undoable, trace, log, step):
                undoable.stuck.add(step.seq)
                session.report.warn(
                    f"step {step.seq} ({step.name!r}), inside another, can't be undone by the resumed run: check whether it took effect"
                )


def _left(before: int, log: RecoveredLog, undoable: UndoableSteps) -> list[RecoveredStep]:
    return [step for step in uncompensated(log) if step.inner and step.seq <= before and not undoable.has(step.seq)]


def _add(undoable: UndoableSteps, trace: Trace, log: RecoveredLog, step: RecoveredStep) -> bool:
    """Add a step to ``undoable``; return False if it is unknown how to undo it."""
    found = Compensation.named(str(step.name))
    if not found:
        return True
    failed = any(one.undoes == step.seq and one.state == "failed" for one in log.steps.values())
    known = None if len(found) > 1 or found[0].needs_object or failed else facts(trace, step, None)
    if known is not None:
        undoable.add(Completed(found[0], step.seq, *known, None, [outer.seq for outer in log.enclosing(step)]))
    return known is not None


# -- waiting for running calls -----------------------------------------------------------------------------------------
#
# Calls that are running when a run is aborted, and that nothing undoes: the abort waits for them for a while, and warns
# of those that have not ended. They are found in the log. The end of the wait is an event of the run, so that a replay
# continues at the same place.

#: How often an abort checks whether a call has ended (s).
_POLL_S: Final = 0.02


class AbortWait:
    """The wait of an abort, at most until ``end``, for running calls that can't be undone: in other threads, and if
    awaited, in tasks."""

    def __init__(self, scope: Scope, undoable: UndoableSteps, end: float) -> None:
        self._session: Final = scope.session
        self._undoable: Final = undoable
        self._end: Final = end
        self._timer: Final[Any] = self._session.arm(scope, "tracekit.abort", end - _reality.monotonic())
        self._left: set[int] = set()
        self._read = 0

    def wait(self) -> None:
        timer = self._timer
        if not timer.live and timer.comes:
            timer.wait()
        if timer.live and self._finds(_in_another_thread):
            self._undoable.wait(self._over, self._end)
            timer.fired()

    async def wait_async(self) -> None:
        timer = self._timer
        if not timer.live and timer.comes:
            await timer.wait_async()
        if timer.live and self._finds(_of_another_task):
            while not self._over() and (rest := self._end - _reality.monotonic()) > 0:
                await self._undoable.wait_async(self._over, min(rest, _POLL_S))
            timer.fired()

    def _finds(self, may_end: Callable[[Lane], bool]) -> bool:
        """Return whether calls are running that may end while the abort waits."""
        session = self._session
        if not session.state.live:
            return False
        lanes = (lane for lane in (session.state.root, *session.open_lanes()) if lane is not None)
        running = {lane.id for lane in lanes if may_end(lane)}
        before = 0 if session.log.trace is None else len(session.log.trace)
        log, self._read = _log(session)
        awaited = process.effects.awaited(session.run_id)
        for step in _pending(log):
            # A generator goes on only when asked for more; what can be undone is waited for as such.
            here = step.seq > before and not step.chunks and step.seq not in awaited
            if here and step.lane in running:
                self._left.add(step.seq)
        return bool(self._left)

    def _over(self) -> bool:
        """Return whether all of these calls have ended, by what was added to the log since the last look."""
        with open(self._session.log.path, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # being written
                    break
                self._read += len(line)
                entry = orjson.loads(line) if b'"step":' in line else {}
                if not entry.get("type", "").endswith(".chunk"):
                    self._left.discard(entry.get("step"))
        return not self._left


def _in_doubt_and_pending(session: Session) -> tuple[list[int], list[int]]:
    """Return the steps whose effect may or may not have happened and was not undone, and those among them without an
    outcome."""
    log, _ = _log(session)
    standing = {step.seq for step in uncompensated(log)}
    pending = {step.seq for step in _pending(log) if step.side_effect != "reversible" or step.seq in standing}
    return sorted({*steps_in_doubt(log), *pending}), sorted(pending)


def _pending(log: RecoveredLog) -> Iterator[RecoveredStep]:
    return (
        step
        for step in log.steps.values()
        if step.state == "pending" and step.side_effect != "read_only" and not (step.duplicate or step.covered)
    )


def _log(session: Session) -> tuple[RecoveredLog, int]:
    """Return the present content of the log, and its length in the file."""
    try:
        with Trace(session.log.path) as trace:
            count = trace.status.count
            entries = islice(trace.entries(damaged=True), count)
            return RecoveredLog(Originals(trace.path).lacking(entries)), trace.end_of(count)
    except (TraceError, OSError):  # the segment of a forked process that has done nothing
        return RecoveredLog(()), 0


def _in_another_thread(lane: Lane) -> bool:
    """Return whether what happens in ``lane`` may end while this thread waits."""
    if lane.owner == get_ident() or not (lane.open or lane.parent is None):
        return False
    return lane.owner in sys._current_frames() or _reality.running_loop() is None


def _of_another_task(lane: Lane) -> bool:
    return lane.owner != id(_reality.running_task()) and (lane.open or lane.parent is None)


# -- aborting ----------------------------------------------------------------------------------------------------------
#
# A run that its own program aborts: what it did is undone, the last step first, and its last entry lists it.

#: How long an abort waits at most for live calls under way (s). For those that have not ended by then, the log says
#: that their outcome is unknown; a replay waits for what its log has, as long as anything can move.
PATIENCE: Final = 30.0


class Undoing:
    """The abort of a run by its program: the reason, the steps undone (by ``seq``), and those that could not be."""

    def __init__(self, reason: str, session: Session) -> None:
        self.reason: Final = reason
        self._session: Final = session
        self.compensated: list[int] = []
        self.uncompensated: list[int] = []
        self._errors: list[Exception] = []

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the run's last entry; warn of what was not undone."""
        undoable, session = undoable_steps(self._session), self._session
        left = {*undoable.standing, *undoable.stuck, *self.uncompensated}
        in_doubt: list[int] = []
        if session.state.closing is not None:
            in_doubt, pending = _in_doubt_and_pending(session)
            _warn_of(
                session, (seq for seq in undoable.standing if seq <= session.state.closing.at), "they were not undone"
            )
            _warn_of(session, {*pending} - left, "nothing says whether they took effect")
        return {
            "by_program": True,
            "reason": self.reason,
            "in_doubt": in_doubt,
            "compensated": sorted(self.compensated),
            "uncompensated": sorted(left),
        }

    def note_result(self, one: Completed, done: Done) -> None:
        """Note the outcome of one compensation."""
        if done.error is None:
            self.compensated.append(one.seq)
            return
        self.uncompensated.append(one.seq)
        if not isinstance(done.error, Exception) or isinstance(done.error, ReplayError):
            raise done.error
        self._errors.append(done.error)

    def finish(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise ExceptionGroup("compensations failed; the others were run", errors)


def _warn_of(session: Session, steps: Iterable[int], what: str) -> None:
    listed = ", ".join(map(str, sorted(steps)))
    if listed:
        session.report.warn(
            f"it was aborted while these steps were under way, and {what}: {listed}. Check which of them took effect"
        )


def undo(run: Any, reason: str) -> None:
    scope = _scope(run, reason)
    undoable = undoable_steps(scope.session)
    inherit(scope.session, undoable)
    names = undoable.asynchronous()
    if names:
        raise RunStateError(
            f"compensations are coroutine functions: {', '.join(sorted(set(names)))}",
            run_id=run.id,
            next_action="say `await run.abort_async(reason)`",
        )
    aborted = _aborted(run, scope, reason)
    end = _reality.monotonic() + PATIENCE
    with _closed(scope):
        AbortWait(scope, undoable, end).wait()
        for one in _plan(scope, undoable, other_threads=True):
            if not isinstance(one, Completed):
                log = scope.session.undo_log
                undoable.wait(one, end if log is None else log.threads.wait_in)
                continue
            with _let_through():
                try:
                    done = run_plan(call_plan(one.invocation(scope)))
                except Exception as refused:  # a log that can't be written: it was not run
                    done = Done(one.invocation(scope), one.seq, error=refused)
            aborted.note_result(one, done)
    aborted.finish()


async def undo_async(run: Any, reason: str) -> None:
    scope = _scope(run, reason)
    undoable = undoable_steps(scope.session)
    inherit(scope.session, undoable)
    aborted = _aborted(run, scope, reason)
    end = _reality.monotonic() + PATIENCE
    with _closed(scope):
        await AbortWait(scope, undoable, end).wait_async()
        for one in _plan(scope, undoable, other_threads=False):
            if not isinstance(one, Completed):
                live = scope.session.undo_log is None
                await undoable.wait_async(one, end - _reality.monotonic() if live else None)
                continue
            with _let_through():
                try:
                    done = await run_plan_async(call_plan(one.invocation(scope)))
                except Exception as refused:
                    done = Done(one.invocation(scope), one.seq, error=refused)
            aborted.note_result(one, done)
    aborted.finish()


def _plan(scope: Scope, undoable: UndoableSteps, *, other_threads: bool) -> Iterator[Completed | Callable[[], bool]]:
    """Yield what is to be undone, the last first, and in between, what to wait for: with ``other_threads``, only what
    other threads do.

    Which calls an abort found under way, and which it waited for in vain, follows in the log from what was undone in
    it, and in which order.
    """
    session = scope.session
    log = session.undo_log
    while log is not None:
        of = log.next_undone(scope)
        if of is None:
            break
        yield _has_ended(log, scope, undoable, of)
        one = undoable.take(of)
        if one is None:
            break
        yield one
    if log is not None and not session.state.live:
        left = log.left_standing()
    else:
        yield lambda: not undoable.waits(other_threads=other_threads)
        left = set()
    while (last := undoable.take(but=left)) is not None:
        yield last


def _has_ended(log: UndoLog, scope: Scope, undoable: UndoableSteps, of: int) -> Callable[[], bool]:
    """Return a predicate for whether step ``of``, perhaps another thread's, has ended, and also those that had ended
    when it was undone."""
    return lambda: (
        (undoable.has(of) and not undoable.any_under_way(lambda seq: log.ended_before_undoing(seq, of)))
        or log.next_undone(scope) != of
    )


@contextmanager
def _let_through() -> Iterator[None]:
    """A block in which calls may begin, since they undo something."""
    token = undoing.set(True)
    try:
        yield
    finally:
        undoing.reset(token)


def _aborted(run: Any, scope: Scope, reason: str) -> Undoing:
    """Mark the run as aborted; the first reason counts."""
    session = scope.session
    if run.undoing is None:
        run.undoing = Undoing(reason, session)
    if session.state.live:
        shown = session.redactor.redact_text(run.undoing.reason)[0]
        session.state.closing = Closing(session.run_id, shown, scope.lane, session.log.position, _inside(session))
    aborted: Undoing = run.undoing
    return aborted


@contextmanager
def _closed(scope: Scope) -> Iterator[None]:
    """A block during which no other call of the run begins."""
    try:
        yield
    finally:
        closing = scope.session.state.closing
        if closing is not None:
            closing.over = True


def _inside(session: Session) -> Callable[[Scope], bool]:
    """Return a predicate for whether something happens inside a step that an abort waits for, or inside a compensation."""
    run_id = session.run_id
    return lambda scope: (
        scope.call is not None and any(one.awaited and one.run_id == run_id for one in scope.call.around())
    )


def _scope(run: Any, reason: str) -> Scope:
    if not reason.strip():
        raise ValueError(f"an abort needs a reason, and {reason!r} is none")
    scope = here()
    session = None if scope is None else scope.session
    if scope is None or session.run_id != run.id or scope.live:  # type: ignore[union-attr]
        raise RunStateError(
            f"run {run.id} can be aborted in its own block only, and not inside a tool",
            run_id=run.id,
            next_action="let the tool raise, and call run.abort() where the run's code catches it",
        )
    return scope
