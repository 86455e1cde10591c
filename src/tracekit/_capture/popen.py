"""Capture of the processes that ``subprocess`` and ``multiprocessing`` start, and of process pools."""

from __future__ import annotations

import functools
import os
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, Final

from .._runtime.lane import started
from .._runtime.process import process
from .._runtime.session import (
    Scope,
    below_seam,
    current,
    enter,
    here,
    in_own_lane,
    outside_the_run,
    passing,
)
from ..errors import LiveCallBlockedError, ReplayError
from . import commands, guard, inputs
from .callers import by_user, telemetry
from .commands import STATUS, CapturedProcess, ProcessSteps, output_not_kept
from .guard import Attempt
from .leftovers import by_finalizer
from .patch import Patch
from .processes import (
    VARIABLE,
    Admission,
    Numbers,
    ProcessObserver,
    admission_of,
    apart,
    begun,
    forked,
    joining_environment,
    program_name,
    starting,
    steps_of_joined,
    within,
    words_of,
)
from .threads import name_of, parent_lane
from .waits import armed, await_place

__all__ = ["PATCHES", "Place", "end_without_process", "expect", "follow"]

# -- process pools -----------------------------------------------------------------------------------------------------
#
# Each call submitted to a process pool is a lane with a segment of its own, whichever worker executes it.
#
# Which worker takes a call is a matter of chance, so the trace has segments of calls, not of workers. Pools whose
# workers existed before the run are left alone, with a warning.

#: The place of a call in the run, as the worker needs it.
Place = dict[str, Any]


class PoolWorkers:
    """The workers of pools that belong to a run, by process id."""

    def __init__(self) -> None:
        self.pids: Final[set[int]] = set()


class PoolCall:
    """A call on its way to a pool's worker. ``spread``: its arguments begin with its place, or are a pair of place and
    argument."""

    def __init__(self, call: Callable[..., Any], place: Place | None, spread: str = "") -> None:
        self.call: Final = call
        self.place: Final = place
        self.spread: Final = spread

    def __reduce__(self) -> tuple[Any, ...]:
        return PoolCall, (self.call, self.place, self.spread)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        place = self.place
        if self.spread == "pair":
            place, args = args[0][0], (args[0][1],)
        elif self.spread:
            place, args = args[0], args[1:]
        if place is None:
            return self.call(*args, **kwargs)
        return process.role.perform(place, self.call, args, kwargs)


def _is_carried(scope: Scope | None, pids: Iterable[int | None], call: Any) -> bool:
    """Return whether a pool's workers belong to the run of ``scope``; if not, the run warns, and a replay fails."""
    if scope is None or scope.session.state.children is None:
        return False
    session = scope.session
    own = session.state.extras.of(PoolWorkers).pids
    strangers = [pid for pid in pids if pid not in own]
    if not strangers:
        return True
    if not session.recording:
        raise session.fail(
            LiveCallBlockedError(
                f"{name_of(call)!r} was handed to processes that were there before the replay, where it would be live",
                run_id=session.run_id,
                operation="a process pool",
                next_action="make the pool inside the block",
            )
        )
    if session.state.live:
        session.report.warn(f"{name_of(call)} was passed to a process pool: what it does there is not in the trace")
    return False


def _next_place(scope: Scope, call: Any) -> Place | None:
    children = scope.session.state.children
    assert children is not None
    return children.place(scope, started(parent_lane(scope), name_of(call), scope.live))


# -- concurrent.futures ----------------------------------------------------------------------------------------------------


def _submit(original: Any) -> Any:
    @functools.wraps(original)
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _is_carried(scope, list(getattr(self, "_processes", None) or ()), fn):
            assert scope is not None
            fn = PoolCall(fn, _next_place(scope, fn))
        return original(self, fn, *args, **kwargs)

    return submit


# -- multiprocessing.Pool --------------------------------------------------------------------------------------------------


def _within(pool: Any, scope: Scope | None, call: Any) -> bool:
    if isinstance(pool, sys.modules["multiprocessing.pool"].ThreadPool) or getattr(pool, "_ctx", None) is None:
        return False
    if type(pool).__name__ != "Pool":  # another package's pool, which may pass its calls on differently
        if scope is not None and scope.session.recording and not scope.live:
            what = f"{name_of(call)} was handed to a pool of processes of another kind ({type(pool).__qualname__})"
            scope.session.report.warn(
                f"{what}: a replay may hand it to another process, and fails then", uncaptured=True
            )
        return False
    return _is_carried(scope, [one.pid for one in pool._pool], call)


def _apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            func = PoolCall(func, _next_place(scope, func))
        return original(self, func, *args, **kwargs)

    return apply_async


def _map(original: Any) -> Any:
    @functools.wraps(original)
    def _map_async(self: Any, func: Any, iterable: Any, mapper: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            spread = "first" if mapper.__name__ == "starmapstar" else "pair"
            iterable = list(_placed(scope, func, iterable, spread))
            func = PoolCall(func, None, spread)
        return original(self, func, iterable, mapper, *args, **kwargs)

    return _map_async


def _imap(original: Any) -> Any:
    @functools.wraps(original)
    def imap(self: Any, func: Any, iterable: Any, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if _within(self, scope, func):
            assert scope is not None
            # The pool's thread iterates over the program's iterable, as without tracekit.
            iterable, func = _placed(scope, func, iterable, "pair"), PoolCall(func, None, "pair")
            results: Any = original(self, func, iterable, *args, **kwargs)
            in_chunks = isinstance(results, GeneratorType)
            _unordered.add(results.gi_frame.f_locals[".0"] if in_chunks else results)
            return results
        return original(self, func, iterable, *args, **kwargs)

    return imap


# Results of ``imap_unordered`` come in the order in which the processes are done. Each that the program takes is an event
# with its number; a replay waits for that one.

#: The results of calls in processes of a run.
_unordered: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def _came(original: Any) -> Any:
    @functools.wraps(original)
    def _set(self: Any, i: int, result: Any) -> None:
        vars(self).setdefault("_tracekit_came", deque()).append(i)  # by one thread, the pool's; like its own items
        original(self, i, result)

    return _set


def _taken(original: Any) -> Any:
    @functools.wraps(original)
    def next(self: Any, timeout: float | None = None) -> Any:
        scope = current.get() if self in _unordered else None
        if scope is None or scope.live or scope.session.state.ended or not scope.session.state.ordered:
            return original(self, timeout)
        scope = in_own_lane(scope)
        turn = armed(scope, "future.wait", 0)
        came = vars(self).setdefault("_tracekit_came", deque())
        token = current.set(None)  # the internals of the wait are not recorded
        try:
            if turn is not None and turn.comes and await_place(turn, scope.session.threads):
                return _numbered(self, came, turn.about.get("done") or [])
            failure: Exception | None = None
            try:
                value = original(self, timeout)
            except StopIteration:
                raise
            except Exception as error:
                value, failure = None, error
            late = type(failure) is sys.modules["multiprocessing"].TimeoutError and not came
            number = [] if late else [came.popleft()]
            if turn is not None and turn.live:
                turn.fired({"done": number})
        finally:
            current.reset(token)
        if failure is not None:
            raise failure
        return value

    return next


def _numbered(results: Any, came: deque[int], done: list[int]) -> Any:
    """Return the result with the recorded number, or raise, as soon as it is there; without one the time was up."""
    if not done:
        raise sys.modules["multiprocessing"].TimeoutError
    with results._cond:
        while done[0] not in came or len(results._items) < len(came):
            results._cond.wait()
        at = came.index(done[0])
        del came[at]
        success, value = results._items[at]
        del results._items[at]
    if success:
        return value
    raise value


def _placed(scope: Scope, call: Any, items: Iterable[Any], spread: str) -> Iterator[Any]:
    for item in items:
        place = _next_place(scope, call)
        yield (place, item) if spread == "pair" else (place, *item)


_POOL_PATCHES: Final = (
    Patch("concurrent.futures.process", "ProcessPoolExecutor.submit", _submit),
    Patch("multiprocessing.pool", "Pool.apply_async", _apply),
    Patch("multiprocessing.pool", "Pool._map_async", _map),
    Patch("multiprocessing.pool", "Pool.imap", _imap),
    Patch("multiprocessing.pool", "Pool.imap_unordered", _imap),
    Patch("multiprocessing.pool", "IMapUnorderedIterator._set", _came),
    Patch("multiprocessing.pool", "IMapUnorderedIterator.next", _taken),
    Patch("multiprocessing.pool", "IMapUnorderedIterator.__next__", _taken),
)

# -- the status of a process -------------------------------------------------------------------------------------------
#
# What a program learns about the status of a process that it started, each time that it asks.
#
# Covers ``poll``, ``wait`` and ``communicate`` of ``subprocess.Popen`` (hence ``subprocess.run``), ``is_alive``,
# ``join``, ``exitcode`` and ``close`` of ``multiprocessing``'s processes, and the moment when an asyncio loop notices
# the end of a process: how long a process takes is a matter of chance. A recording keeps each result; a replay returns
# it, and if it was the end of the process, first waits until the replayed process has ended, too.

#: The longest output kept of a process that timed out, in bytes.
_MAX_OUTPUT: Final = 16 << 20


#: Attributes of a started process: its observer, the steps of its pipes, and the lane that has learned of its end.
_OBSERVER: Final = "_tracekit_observer"
_STEPS: Final = "_tracekit_steps"
_LEARNT: Final = "_tracekit_learnt"


def follow(started: Any, observer: ProcessObserver | CapturedProcess) -> None:
    """Make every later query of this process's status a part of the run."""
    vars(started)[_OBSERVER] = observer


def _observer_of(started: Any) -> tuple[Any, Scope] | None:
    """Return a process's observer and the scope of the query; ``None`` if the query is not part of the run."""
    scope = current.get()
    if scope is None or scope.live:
        return None
    observer = vars(started).get(_OBSERVER)
    session = scope.session
    if observer is None or observer.session.state is not session.state or session.state.ended:
        return None
    return observer, in_own_lane(scope)


def _learnt(process: Any, scope: Scope) -> None:
    """Remember that the program learned of the end of ``process`` in this lane."""
    vars(process)[_LEARNT] = scope.lane


def _is_known(process: Any, observer: Any, scope: Scope) -> bool:
    """Return whether this lane has already learned how the process ended: its object has the status, in a replay as
    well.

    Another lane may not have: which of two threads comes first is an event of the run.
    """
    if vars(process).get(_LEARNT) is not scope.lane:
        return False
    observer.session.asked_again(scope, f"{STATUS} {observer.path}")
    return True


# -- subprocess ------------------------------------------------------------------------------------------------------------


def _poll(original: Any) -> Any:
    @functools.wraps(original)
    def poll(self: Any) -> Any:
        at = _observer_of(self)
        if at is None:
            steps = vars(self).get(_STEPS)
            return original(self) if steps is None or steps.real else self.returncode
        observer, scope = at
        if _is_known(self, observer, scope):
            return self.returncode
        if isinstance(observer, CapturedProcess) and by_finalizer():
            return _collected(original, self, observer)
        if observer.live:
            status = outside_the_run(original, self)
            observer.note(scope, status)
        else:
            status = _confirmed_status(self, observer, observer.recall(scope))
        if status is not None:
            _learnt(self, scope)
        return status

    return poll


def _wait(original: Any) -> Any:
    from subprocess import TimeoutExpired

    @functools.wraps(original)
    def wait(self: Any, timeout: float | None = None) -> Any:
        at = _observer_of(self)
        if at is None:
            steps = vars(self).get(_STEPS)
            return original(self, timeout) if steps is None or steps.real else self.returncode
        observer, scope = at
        if _is_known(self, observer, scope):
            return self.returncode
        if isinstance(observer, CapturedProcess) and by_finalizer():
            return _collected(original, self, observer, timeout)
        if not observer.live:
            recorded = observer.recall(scope)
            if recorded is None:
                raise TimeoutExpired(self.args, timeout or 0)
            status = _confirmed_status(self, observer, recorded)
            _learnt(self, scope)
            return status
        try:
            status = outside_the_run(original, self, timeout)
        except TimeoutExpired:
            observer.note(scope, None)
            raise
        observer.note(scope, status)
        _learnt(self, scope)
        return status

    return wait


def _collected(ask: Any, process: Any, captured: CapturedProcess, *args: Any) -> Any:
    """Handle a finalizer that queries a process's end: that happens when its object is collected, so it is no event of
    the run."""
    if not captured.live:
        process.returncode = captured.recall_collected()
        return process.returncode
    status = outside_the_run(ask, process, *args)
    if status is not None:
        captured.ended_with(status, collected=True)
    return status


def _communicate(original: Any) -> Any:
    from subprocess import TimeoutExpired

    @functools.wraps(original)
    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        at = _observer_of(self)
        if at is None:
            return original(self, input, timeout)
        observer, scope = at
        captured = observer if isinstance(observer, CapturedProcess) else None
        if not observer.live:
            if captured is not None:
                return _communicate_from_log(self, captured, scope, input, timeout)
            return _communicate_again(original, self, observer, scope, input, timeout)
        sent = captured.send(scope, input) if captured is not None and input else None
        try:
            found = outside_the_run(original, self, input, timeout)
        except TimeoutExpired as error:
            if sent is not None:
                sent()
            parts = {"output": error.output, "stderr": error.stderr}
            whole = sum(len(part or b"") for part in parts.values()) <= _MAX_OUTPUT
            # Without pipes the error names the rest of the timeout, which depends on the clock.
            left = {} if error.timeout == timeout else {"timeout": error.timeout}
            observer.note(scope, parts | left if whole else {"too_much": True})
            raise
        except Exception as error:  # not the text that the program expects
            if captured is not None:
                captured.failed(scope, self.returncode, error)
            raise
        if captured is None:
            observer.note(scope, self.returncode)
        else:
            if sent is not None:
                sent()
            captured.communicated(scope, self.returncode, found)
        _learnt(self, scope)
        return found

    return communicate


def _communicate_again(
    original: Any, self: Any, observer: ProcessObserver, scope: Scope, input: Any, timeout: float | None
) -> Any:
    from subprocess import TimeoutExpired

    steps: ProcessSteps | None = vars(self).get(_STEPS)
    if steps is not None and input:
        steps.send(scope, input)
    again = steps is not None and steps.over
    recorded = observer.recall(scope)
    if not isinstance(recorded, dict):
        found = outside_the_run(original, self, input)
        _confirmed_status(self, observer, recorded)
        _learnt(self, scope)
        if steps is not None and again and found != (None, None):
            steps.begin(scope, "output", {})
        return found
    pending_input = [input]

    def feed() -> bool:  # what the process was sent and wrote until then went through its pipes
        try:
            original(self, pending_input.pop() if pending_input else None, 0.02)
        except TimeoutExpired:
            return False
        return True

    outside_the_run(observer.let_run, feed)
    raise _timed_out(self, timeout, recorded)


def _timed_out(self: Any, timeout: float | None, recorded: dict[str, Any]) -> Exception:
    from subprocess import TimeoutExpired

    limit = recorded.get("timeout", timeout or 0)
    return TimeoutExpired(self.args, limit, output=recorded.get("output"), stderr=recorded.get("stderr"))


def _communicate_from_log(
    self: Any, captured: CapturedProcess, scope: Scope, input: Any, timeout: float | None
) -> tuple[Any, Any]:
    if input:
        captured.send(scope, input)
    first = not captured.over
    status = captured.recall(scope)
    if isinstance(status, dict):
        if "too_much" in status:
            raise output_not_kept(captured.session, captured.path)
        raise _timed_out(self, timeout, status)
    if status is None:
        captured.recall_output(scope, False, False)  # which raises
    self.returncode = status
    _learnt(self, scope)
    for pipe in (self.stdin, self.stdout, self.stderr):
        if pipe is not None:
            outside_the_run(pipe.close)
    return captured.recall_output(scope, first, bool(self.text_mode))


def _send_signal(original: Any) -> Any:
    @functools.wraps(original)
    def send_signal(self: Any, sig: int) -> None:
        steps: ProcessSteps | None = vars(self).get(_STEPS)
        if steps is None:
            original(self, sig)
            return
        scope = steps.here()
        if scope is not None:
            # What the program knows about a process of an event loop is what the loop has delivered: whether it has
            # really ended by now is a matter of chance.
            by_loop = isinstance(steps, CapturedProcess) and _observer_of(self) is None
            if steps.over if by_loop else self.poll() is not None:
                return
            if not (isinstance(steps, CapturedProcess) and by_finalizer()):
                steps.signal(scope, sig)
        if steps.real:
            outside_the_run(original, self, sig)

    return send_signal


def _confirmed_status(process: Any, observer: Any, status: Any) -> Any:
    """Return the recorded status; if it is the end, wait for the replayed process to end and compare."""
    if status is None:
        return None
    steps: ProcessSteps | None = vars(process).get(_STEPS)
    if steps is not None:
        steps.recalled()
    if isinstance(observer, CapturedProcess):
        process.returncode = status
        return status
    if process.returncode is None:
        outside_the_run(observer.let_end)
        outside_the_run(type(process).wait, process)
    observer.ended(process.returncode, status)
    process.returncode = status
    return status


# -- asyncio -----------------------------------------------------------------------------------------------------------
#
# An event loop notices the end of a process, and the end of its output on each pipe. Each is an event of the run with
# its place, and what it triggers is progress of the code that started the process. What goes through a pipe before its
# end arrives at any time: how a process's input and output are split is a matter of chance. So what that triggers is
# counted for nobody, and neither is what the loop does last for a process with an input, after the end of the process
# or of the input.

#: Attribute of a started process: its observer, and the turns at which its end and those of its pipes are due.
_EXPECTED: Final = "_tracekit_expected"
#: Attribute of a transport that is being connected to its process's pipes: what has arrived meanwhile, which the protocol
#: gets, in one callback however much it is, after ``connection_made``.
_ARRIVED: Final = "_tracekit_arrived"
#: The descriptors of a process's output pipes.
_OUTPUTS: Final = (1, 2)


def expect(started: Any, observer: ProcessObserver | CapturedProcess) -> None:
    """Make the moments when an event loop notices the end of this process, and of its output, events of the run."""
    real = not isinstance(observer, CapturedProcess) or observer.real
    scope = current.get()
    scope = None if scope is None or scope.live else here()
    if scope is not None and not observer.session.state.ended:
        turns: dict[int | None, Any] = {None: observer.session.arm(scope, "process.exit", 0)}
        for fd, pipe in zip(_OUTPUTS, (started.stdout, started.stderr), strict=True):
            if pipe is not None:
                turns[fd] = observer.session.arm(scope, "process.eof", 0)
        for turn in turns.values():
            if not turn.live and real:
                turn.from_outside()
        vars(started)[_EXPECTED] = observer, scope, turns


def _steps_of(transport: Any) -> ProcessSteps | None:
    """Return the steps of a transport's process."""
    found: ProcessSteps | None = getattr(getattr(transport, "_proc", None), "__dict__", {}).get(_STEPS)
    return found


def _is_answered(transport: Any) -> bool:
    """Return whether a transport's process does not exist, so that everything about it comes from the log."""
    steps = _steps_of(transport)
    return steps is not None and not steps.real


def _followed(transport: Any) -> tuple[Any, Scope, dict[int | None, Any]] | None:
    """Return what ``expect`` has noted about a transport's process, if that is part of a run."""
    found: Any = getattr(getattr(transport, "_proc", None), "__dict__", {}).get(_EXPECTED)
    return found  # type: ignore[no-any-return]


def _expected(transport: Any, fd: int | None) -> tuple[Any, Scope, Any] | None:
    """Return the observer of a transport's process, its scope, and the turn at which its end, or its pipe's, is due.

    ``None`` outside a run.
    """
    found = _followed(transport)
    turn = None if found is None else found[2].pop(fd, None)
    return None if found is None or turn is None or found[0].session.state.ended else (*found[:2], turn)


def _arrived(scope: Scope, counted: Any, call: Callable[..., Any], *args: Any) -> None:
    """Let the loop notice something: what it then schedules comes after what the run has scheduled, and is nobody's
    progress unless ``counted``."""
    token = enter(scope)
    try:
        with _uncounted(scope, not counted):
            call(*args)
    finally:
        current.reset(token)


def _uncounted(scope: Scope, really: bool = True) -> AbstractContextManager[None]:
    progress = scope.session.progress
    return nullcontext() if progress is None else progress.uncounted(really)


def _exited(original: Any) -> Any:
    @functools.wraps(original)
    def _process_exited(self: Any, returncode: int) -> None:
        if _is_answered(self):
            return
        expected = _expected(self, None)
        if expected is None:
            original(self, returncode)
            return
        observer, scope, turn = expected
        if turn.live:
            turn.fired({"process": observer.path, "status": returncode, "counted": True})
            if isinstance(observer, CapturedProcess):
                observer.ended_with(returncode)
            else:
                observer.heard()
            _arrived(scope, True, original, self, returncode)
        elif turn.comes:  # otherwise the recorded loop never noticed it

            def heard() -> None:
                about = turn.about
                with suppress(ReplayError):  # the replay fails with it
                    observer.ended(returncode, about["status"])
                _arrived(scope, about.get("counted"), original, self, about["status"])

            turn.on_fire(heard)

    return _process_exited


def _by_chance(transport: Any) -> AbstractContextManager[None]:
    """Return the context for what a pipe of this process triggers by itself."""
    found = _followed(transport)
    return nullcontext() if found is None or found[0].session.state.ended else _uncounted(found[1])


def _noticing(original: Any) -> Any:
    """Wrap what a loop does with a pipe when something has arrived, or is gone: that is no progress of the program."""

    @functools.wraps(original)
    def notice(self: Any) -> None:
        with _by_chance(getattr(self._protocol, "proc", None)):
            original(self)

    return notice


def _received(original: Any) -> Any:
    @functools.wraps(original)
    def data_received(self: Any, data: bytes) -> None:
        steps = _steps_of(self.proc)
        if isinstance(steps, CapturedProcess) and steps.live:
            outside_the_run(steps.received, self.fd, data)
            if steps.counted:
                _arrived(vars(self.proc._proc)[_EXPECTED][1], True, original, self, data)
                return
        outside_the_run(original, self, data)

    return data_received


def _handed_on(original: Any) -> Any:
    @functools.wraps(original)
    def _call(self: Any, call: Any, *data: Any) -> None:
        def bring(*data: Any) -> None:
            with _by_chance(self):
                call(*data)

        steps = _steps_of(self)
        known = steps is not None and steps.counted
        last = 0 in self._pipes and not known and call == self._call_connection_lost
        by_chance = last or (not known and call == self._protocol.pipe_data_received)
        arrived = vars(self).get(_ARRIVED)
        if arrived is not None:
            arrived.append((bring if by_chance else call, data))
        elif last:
            with _by_chance(self):
                original(self, call, *data)
        else:
            original(self, bring if by_chance else call, *data)

    return _call


def _resumed(original: Any) -> Any:
    @functools.wraps(original)
    def resume_writing(self: Any) -> None:
        with _by_chance(self.proc):
            original(self)

    return resume_writing


def _lost(original: Any) -> Any:
    @functools.wraps(original)
    def connection_lost(self: Any, exc: BaseException | None) -> None:
        if self.fd in _OUTPUTS and _is_answered(self.proc):
            steps, scope, _ = vars(self.proc._proc)[_EXPECTED]
            if steps.connected.setdefault(self.fd, self) is None:  # its end came before it existed
                _arrived(scope, False, original, self, None)
            return
        expected = _expected(self.proc, self.fd)
        if expected is None:
            with _by_chance(self.proc):
                outside_the_run(original, self, exc)
            return
        observer, scope, turn = expected
        if turn.live:
            turn.fired({"process": observer.path, "fd": self.fd, "counted": True})
            if isinstance(observer, CapturedProcess):
                observer.closed(self.fd)
            _arrived(scope, True, original, self, exc)
        elif turn.comes:
            turn.on_fire(lambda: _arrived(scope, turn.about.get("counted"), original, self, exc))

    return connection_lost


def _connecting(original: Any) -> Any:
    async def connected(self: Any, waiter: Any) -> None:
        await original(self, waiter)
        self._loop.call_soon(heard, self)

    def heard(self: Any) -> None:
        calls = vars(self).pop(_ARRIVED)
        try:
            while calls:
                call, data = calls.popleft()
                call(*data)
        finally:  # if one fails, the loop reports it, and the others come nevertheless
            for call, data in calls:
                self._loop.call_soon(call, *data)

    connected.__qualname__ = original.__qualname__

    @functools.wraps(original)
    def _connect_pipes(self: Any, waiter: Any) -> Any:
        if _followed(self) is None:
            return original(self, waiter)
        vars(self)[_ARRIVED] = deque()
        if _is_answered(self):
            _without_process.add(self)
            _deliver(self)
        return connected(self, waiter)

    return _connect_pipes


def _deliver(transport: Any) -> None:
    """Deliver to a transport what the recorded process wrote, and its end, each at its place."""
    captured, scope, turns = vars(transport._proc)[_EXPECTED]
    ends = dict(turns)
    exited = type(transport)._process_exited.__wrapped__

    def end() -> None:
        captured.take_end()
        captured.let_go()
        about = ends[None].about
        _arrived(scope, about.get("counted"), exited, transport, about["status"])

    def lose(fd: int) -> None:
        captured.take_eof(fd)
        proto = transport._pipes[fd] or captured.connected.setdefault(fd, None)
        if proto is not None:
            _arrived(scope, ends[fd].about.get("counted"), type(proto).connection_lost.__wrapped__, proto, None)

    def deliver(fd: int, data: bytes) -> None:
        _arrived(scope, captured.counted, transport._pipe_data_received, fd, data)

    for fd, turn in turns.items():
        if turn.comes:
            turn.on_fire(end if fd is None else functools.partial(lose, fd))
    for fd in captured.outputs:
        captured.next_piece(fd, functools.partial(deliver, fd))


#: Processes that do not exist, and transports of such ones.
_without_process: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def end_without_process() -> None:
    """End the processes that do not exist and have not ended in the replay, which is over: as if they had been killed,
    since whatever waits for one would wait for ever."""
    for one in [*_without_process]:
        if not hasattr(one, "_loop"):
            one.returncode = -signal.SIGKILL if one.returncode is None else one.returncode
        elif one._returncode is None:
            with suppress(RuntimeError):  # its loop is closed
                outside_the_run(one._loop.call_soon_threadsafe, _end_without_process, one)
    _without_process.clear()


def _end_without_process(transport: Any) -> None:
    if transport._returncode is None:
        for fd, end in transport._pipes.items():
            if fd in _OUTPUTS and end is not None and not end.disconnected:
                end.connection_lost(None)
        transport._process_exited(-signal.SIGKILL)


def _watching(original: Any) -> Any:
    @functools.wraps(original)
    def add_child_handler(self: Any, pid: int, callback: Any, *args: Any) -> None:
        if not args or not isinstance(_steps_of(args[0]), ProcessSteps):
            original(self, pid, callback, *args)
        # The thread that waits for it belongs to nobody: the end is an event of its own.
        elif not _is_answered(args[0]):
            outside_the_run(original, self, pid, callback, *args)

    return add_child_handler


def _writing(original: Any) -> Any:
    @functools.wraps(original)
    def write(self: Any, data: Any) -> None:
        steps = _steps_of(getattr(self._protocol, "proc", None))
        scope = None if steps is None or not data else steps.here()
        if steps is not None and scope is not None:
            steps.send(scope, data)()
        if steps is None or steps.real:
            original(self, data)

    return write


# -- multiprocessing -------------------------------------------------------------------------------------------------------


def _status_method(original: Any, unfinished: Any = None) -> Any:
    """Wrap a method that asks for the status of a process; it returns ``unfinished`` while the process runs, or raises it
    if it is an exception."""

    @functools.wraps(original)
    def ask(self: Any, *args: Any, **options: Any) -> Any:
        at = _observer_of(self)
        if at is None or getattr(self, "_popen", None) is None:
            return original(self, *args, **options)
        observer, scope = at
        if observer.live:
            popen = self._popen
            try:
                found = outside_the_run(original, self, *args, **options)
            except ValueError:  # it runs, and can't be closed
                observer.note(scope, None)
                raise
            observer.note(scope, popen.returncode)
            return found
        status = observer.recall(scope)
        if status is None:
            if isinstance(unfinished, Exception):
                raise type(unfinished)(*unfinished.args)
            return unfinished
        popen = self._popen
        if popen.returncode is None:
            outside_the_run(observer.let_end)
            popen.wait()
        observer.ended(popen.returncode, status)
        popen.returncode = status
        return outside_the_run(original, self)

    return ask


#: What ``close`` raises while the process runs, as the standard library words it.
_CANT_CLOSE: Final = ValueError(
    "Cannot close a process while it is still running. You should first call join() or terminate()."
)


def _exitcode(original: Any) -> Any:
    return property(_status_method(original.fget), doc=original.__doc__)


#: The classes by which an event loop learns that a process has ended.
_WATCHERS: Final = (
    "PidfdChildWatcher", "SafeChildWatcher", "FastChildWatcher", "MultiLoopChildWatcher", "ThreadedChildWatcher",
    "_PidfdChildWatcher", "_ThreadedChildWatcher",
)  # fmt: skip
_STATUS_PATCHES: Final = (
    Patch("subprocess", "Popen.poll", _poll),
    Patch("subprocess", "Popen.wait", _wait),
    Patch("subprocess", "Popen.communicate", _communicate),
    Patch("subprocess", "Popen.send_signal", _send_signal),
    Patch("asyncio.base_subprocess", "BaseSubprocessTransport._process_exited", _exited),
    Patch("asyncio.base_subprocess", "BaseSubprocessTransport._connect_pipes", _connecting),
    Patch("asyncio.unix_events", "_UnixWritePipeTransport.write", _writing),
    Patch("asyncio.unix_events", "_UnixWritePipeTransport.write_eof", _noticing),
    Patch("asyncio.unix_events", "_UnixWritePipeTransport._read_ready", _noticing),
    Patch("asyncio.unix_events", "_UnixReadPipeTransport._read_ready", _noticing),
    *(Patch("asyncio.unix_events", f"{name}.add_child_handler", _watching) for name in _WATCHERS),
    Patch("asyncio.base_subprocess", "ReadSubprocessPipeProto.data_received", _received),
    Patch("asyncio.base_subprocess", "BaseSubprocessTransport._call", _handed_on),
    Patch("asyncio.base_subprocess", "WriteSubprocessPipeProto.resume_writing", _resumed),
    Patch("asyncio.base_subprocess", "WriteSubprocessPipeProto.connection_lost", _lost),
    Patch("multiprocessing.process", "BaseProcess.is_alive", lambda original: _status_method(original, True)),
    Patch("multiprocessing.process", "BaseProcess.join", _status_method),
    Patch("multiprocessing.process", "BaseProcess.close", lambda original: _status_method(original, _CANT_CLOSE)),
    Patch("multiprocessing.process", "BaseProcess.exitcode", _exitcode),
)

# -- processes started by subprocess and multiprocessing ---------------------------------------------------------------
#
# Whatever uses ``subprocess.Popen`` (including asyncio's processes) gets its ticket in an environment variable; a
# process that ``multiprocessing`` starts afresh (``spawn``, ``forkserver``) gets it with its preparation data; a forked
# one inherits it. The run decides about the ticket.

#: The positions of ``cwd`` and ``env`` among the arguments of ``Popen``.
_CWD: Final = 9
_ENV: Final = 10
#: Executed in a process that multiprocessing prepares, before the program's first line: it joins, whatever the program
#: imports. The path is the one that multiprocessing sets next.
_PREPARED: Final = """\
import os, sys
os.environ[{variable!r}] = {ticket!r}
sys.path[:] = {path!r} or sys.path
from tracekit._runs import segments
segments.join()
"""
#: Modules in which an event loop starts processes and watches for their end by itself.
_LOOPS: Final = frozenset({"asyncio.unix_events", "asyncio.windows_events"})
_POOLS: Final = frozenset({("multiprocessing.pool", "worker"), ("concurrent.futures.process", "_process_worker")})


#: The ticket for the process that multiprocessing is starting here.
_starting: Final[ContextVar[str | None]] = ContextVar("tracekit.process", default=None)


# -- subprocess ------------------------------------------------------------------------------------------------------------


#: The arguments of ``Popen`` that may be positional.
_ARGUMENTS: Final = (
    "args", "bufsize", "executable", "stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env",
)  # fmt: skip
#: The positions of the pipes among the arguments of ``Popen._execute_child``.
_PIPES: Final = slice(10, 16)


def _popen(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        scope = current.get()
        # The commands by which the standard library identifies the host don't belong to the program.
        command = args[0] if args else kwargs.get("args")
        if command is None or within.get():
            original(self, *args, **kwargs)
        elif (caller := guard.Caller()).passes("process"):
            _let_start(original, self, args, kwargs)
        elif scope is None or telemetry() is not None:
            apart(command)
            _let_start(original, self, args, kwargs)
        else:
            loops = sys._getframe(1).f_globals.get("__name__") in _LOOPS
            start = _joining if scope.live or below_seam() or caller.probes else _captured
            if scope.live and start is _joining and not caller.probes:
                cwd = args[_CWD] if len(args) > _CWD else kwargs.get("cwd")
                inputs.about_to_start(scope, scope.live, cwd)
            start(original, self, scope, command, args, kwargs, loops)

    return __init__


def _captured(original: Any, self: Any, scope: Scope, command: Any, args: Any, kwargs: Any, loops: bool) -> None:
    """Start a process as a step."""
    scope = here() or scope
    session = scope.session
    words, options = words_of(command), commands.one_of(_ARGUMENTS, args, kwargs)
    text = type(command) is not list and isinstance(command, commands.TEXTS)
    one_program = getattr(words, "simple", False) if text else not options.get("shell")
    found = begun(scope, command, words, options, one_program=one_program)
    size = options.get("bufsize", -1)
    size = -1 if size is None else size
    if found is None:
        original(self, *args, **kwargs)  # which the guard refuses
        return
    if not isinstance(found, CapturedProcess):
        _really_start(original, self, found, args, kwargs, scope)
        if found.is_step:
            _has_steps(self, scope, steps_of_joined(session, found, options), size, loops)
        (expect if loops else follow)(self, found)
        return
    if found.live:
        found.counted = loops and not commands.may_join(words)
        try:
            _really_start(original, self, found.joining, args, kwargs, None)
        except BaseException as error:
            found.not_started(error)
            raise
        found.started(self.pid)
    else:
        _answer(original, self, found, args, kwargs)
    _has_steps(self, scope, found, size, loops)
    (expect if loops else follow)(self, found)
    if options.get("start_new_session") or options.get("process_group") == 0:
        session.state.extras.of(Numbers).groups[self.pid] = found


def _has_steps(self: Any, scope: Scope, steps: ProcessSteps, size: int, loops: bool) -> None:
    """Make what goes through the pipes of a process steps."""
    vars(self)[_STEPS] = steps
    if loops:  # which reads and writes by itself
        steps.open_outputs(scope, self)
    else:
        steps.wrap_pipes(self, size)
    scope.session.state.extras.of(Numbers).steps[self.pid] = steps


def _let_start(original: Any, self: Any, args: Any, kwargs: Any) -> None:
    """Start a process that has been decided about: ``os.posix_spawn``, which ``Popen`` may use for it, is no second
    start."""
    token = within.set(True)
    try:
        original(self, *args, **kwargs)
    finally:
        within.reset(token)


def _really_start(
    original: Any, self: Any, found: Admission | None, args: Any, kwargs: Any, scope: Scope | None
) -> None:
    """Really start a process, with its ticket if it may join. For ``scope`` see ``starting``."""
    if found is None:
        with passing():
            _let_start(original, self, args, kwargs)
        return
    env = joining_environment(found, args[_ENV] if len(args) > _ENV else kwargs.get("env"))
    if len(args) > _ENV:
        args = (*args[:_ENV], env, *args[_ENV + 1 :])
    else:
        kwargs = {**kwargs, "env": env}
    with starting(found, scope):
        original(self, *args, **kwargs)
    found.started(self.pid)


def _answer(original: Any, self: Any, captured: CapturedProcess, args: Any, kwargs: Any) -> None:
    """Create the object of a process that is not started: everything that ``Popen`` does except for the start."""

    def not_executed(*given: Any, **_: Any) -> None:
        captured.start()
        self.pid = captured.pid
        theirs, *others = given[_PIPES]
        if theirs != -1 and others[0] != -1:  # while it runs, what is written to it has a reader
            captured.let_go = weakref.finalize(self, os.close, theirs)
        self._close_pipe_fds(-1, *others)
        _without_process.add(self)

    vars(self)["_execute_child"] = not_executed
    try:
        original(self, *args, **kwargs)
    finally:
        del vars(self)["_execute_child"]


def _joining(original: Any, self: Any, scope: Scope, command: Any, args: Any, kwargs: Any, loops: bool) -> None:
    """Start a process that may join and is no step: one in the body of a tool, or one of an event loop."""
    words = words_of(command)
    found = admission_of(scope, program_name(words), words)
    if found is None:
        original(self, *args, **kwargs)
        return
    _really_start(original, self, found, args, kwargs, scope)
    (expect if loops else follow)(self, found)


# -- multiprocessing -------------------------------------------------------------------------------------------------------


def _start(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any) -> Any:
        scope = current.get()
        target = getattr(self, "_target", None)
        name = getattr(target, "__qualname__", None) or type(self).__qualname__
        if scope is None:
            guard.observe(Attempt("process", "process.start", name))
            return original(self)
        pool = (getattr(target, "__module__", None), name) in _POOLS
        method = _method(self)
        joins = _joins_first(method)
        found = admission_of(scope, name.replace("/", "_"), None if joins else [name], pool)
        if found is None:
            return original(self)
        if method == "fork":
            with forked(found, scope):
                original(self)
        else:
            token = _starting.set(found.ticket if joins else None)
            try:
                with starting(found, scope):
                    original(self)
            finally:
                _starting.reset(token)
        if pool:
            scope.session.state.extras.of(PoolWorkers).pids.add(self.pid)
        else:
            follow(self, found)
        found.started(self.pid)
        return None

    return start


def _method(process: Any) -> str:
    own = getattr(process, "_start_method", None)
    if own is None:
        context = sys.modules["multiprocessing.context"]
        own = context._default_context.get_start_method()
    return str(own)


def _joins_first(method: str) -> bool:
    """Return whether a process started in this way joins before its first line: not one that another package prepares
    (joblib's) or that another interpreter runs."""
    if method not in ("spawn", "forkserver"):
        return method == "fork"
    from multiprocessing.spawn import get_executable

    return os.fsdecode(get_executable() or "") == sys.executable


class _Ready:
    """Joins the run when it is unpickled in the new process, before the program's modules; needs only builtins."""

    def __init__(self, ticket: str, path: list[str]) -> None:
        self.ticket: Final = ticket
        self.path: Final = path

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_PREPARED.format(variable=VARIABLE, ticket=self.ticket, path=self.path),)


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def get_preparation_data(*args: Any, **kwargs: Any) -> Any:
        data = original(*args, **kwargs)
        ticket = _starting.get()
        # First: unpickling what follows may import the program's modules.
        return data if ticket is None else {VARIABLE: _Ready(ticket, data.get("sys_path", [])), **data}

    return get_preparation_data


def _shared(operation: str) -> Callable[[Any], Any]:
    """Return a wrapper that notes that this process uses a queue between processes: if two take items from it, or put
    some into it, their order is a matter of chance."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **options: Any) -> Any:
            if current.get() is not None and by_user():
                with suppress(OSError, AttributeError):  # it is closed, or one of another kind
                    about = os.fstat(self._reader.fileno())
                    pipe = f"the queue with pipe {about.st_ino}"
                    guard.observe(
                        Attempt("queue", operation, pipe), by=_uses.setdefault(self, {}).setdefault(operation, _Use())
                    )
            return original(self, *args, **options)

        return move

    return make


def _waiting(original: Any) -> Any:
    """Note that the program waits for whichever of several connections, or ends of processes, comes first."""

    @functools.wraps(original)
    def wait(object_list: Any, timeout: Any = None) -> Any:
        if current.get() is not None and by_user():
            with suppress(TypeError):  # it has no length
                if len(object_list) > 1:
                    guard.observe(Attempt("wait", "connection.wait", "the first of several connections"))
        return original(object_list, timeout)

    return wait


class _Use:
    """One way in which this process uses a queue, which is noted once."""


#: These, by queue and operation.
_uses: Final[weakref.WeakKeyDictionary[Any, dict[str, _Use]]] = weakref.WeakKeyDictionary()


# -- patches -----------------------------------------------------------------------------------------------------------

PATCHES: Final = (
    Patch("subprocess", "Popen.__init__", _popen),
    Patch("multiprocessing.process", "BaseProcess.start", _start),
    Patch("multiprocessing.spawn", "get_preparation_data", _prepare),
    *(
        Patch("multiprocessing.queues", f"{queue}.{name}", _shared(f"Queue.{name}"))
        for queue, names in (("Queue", ("get", "put")), ("JoinableQueue", ("put",)), ("SimpleQueue", ("get", "put")))
        for name in names
    ),
    Patch("multiprocessing.connection", "wait", _waiting),
    *_STATUS_PATCHES,
    *_POOL_PATCHES,
)
