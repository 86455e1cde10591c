"""Capture of child processes: every start becomes a lane of the run and carries a ticket by which the process joins it."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from .._lazy import expression
from .._runtime.callsite import warn
from .._runtime.lane import Lane, started
from .._runtime.process import process
from .._runtime.session import (
    Scope,
    Session,
    below,
    below_seam,
    current,
    enter,
    here,
    in_own_lane,
    outside_the_run,
    passing,
)
from .._runtime.step import Request, Spec
from ..errors import LiveCallBlockedError, ReplayError
from . import commands, guard, inputs, signals
from .callers import telemetry
from .commands import STATUS, CapturedProcess, ProcessSteps, output_not_kept
from .guard import Attempt
from .leftovers import by_finalizer
from .patch import Patch, Switch
from .threads import name_of, parent_lane

if TYPE_CHECKING:
    from subprocess import Popen

__all__ = [
    "VARIABLE",
    "Admission",
    "Place",
    "PoolCall",
    "ProcessObserver",
    "activate",
    "admission_of",
    "deactivate",
    "expect",
    "follow",
    "forking",
    "joining_environment",
    "left_by_fork",
    "os_entrances",
    "pools",
    "program_name",
    "starting",
    "status_entrances",
    "within",
    "words_of",
]

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
        return original(self, func, iterable, *args, **kwargs)

    return imap


def _placed(scope: Scope, call: Any, items: Iterable[Any], spread: str) -> Iterator[Any]:
    for item in items:
        place = _next_place(scope, call)
        yield (place, item) if spread == "pair" else (place, *item)


#: Module, class, method, and its wrapper.
pools: Final = (
    ("concurrent.futures.process", "ProcessPoolExecutor", "submit", _submit),
    ("multiprocessing.pool", "Pool", "apply_async", _apply),
    ("multiprocessing.pool", "Pool", "_map_async", _map),
    ("multiprocessing.pool", "Pool", "imap", _imap),
    ("multiprocessing.pool", "Pool", "imap_unordered", _imap),
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


class ProcessObserver(Protocol):
    """The session's part in a process whose status the program asks for (a protocol)."""

    @property
    def session(self) -> Any: ...
    @property
    def path(self) -> str:
        """The path of its lane."""
        ...

    @property
    def live(self) -> bool:
        """Whether the process is being recorded."""
        ...

    def note(self, scope: Scope, status: Any) -> None:
        """Record what the program got: ``None`` (running), the exit status, or the output so far at a timeout."""
        ...

    def heard(self) -> None:
        """In a recording: the program has learned of the end of the process."""
        ...

    def recall(self, scope: Scope) -> Any:
        """Return what the recorded program got."""
        ...

    def let_end(self) -> None:
        """Wait until the process has ended."""
        ...

    def ended(self, status: int | None, recorded: int) -> None:
        """Compare the end of the replayed process, with ``status``, with that of the recorded one, with ``recorded``."""
        ...

    def let_run(self, step: Callable[[], bool]) -> None:
        """Call ``step`` until it returns true or the process is idle."""
        ...


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


def _expected(transport: Any, fd: int | None) -> tuple[Any, Scope, Any] | None:
    """Return the observer of a transport's process, its scope, and the turn at which its end, or its pipe's, is due.

    ``None`` outside a run.
    """
    observer, scope, turns = getattr(transport._proc, "__dict__", {}).get(_EXPECTED, (None, None, {}))
    turn = turns.pop(fd, None)
    return None if turn is None or observer.session.state.ended else (observer, scope, turn)


def _arrived(scope: Scope, counted: Any, call: Callable[..., Any], *args: Any) -> None:
    """Let the loop notice something: what it then schedules comes after what the run has scheduled, and is nobody's
    progress unless ``counted``."""
    token = enter(scope)
    try:
        with nullcontext() if counted else _uncounted(scope):
            call(*args)
    finally:
        current.reset(token)


def _uncounted(scope: Scope) -> AbstractContextManager[None]:
    progress = scope.session.progress
    return nullcontext() if progress is None else progress.uncounted()


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
    """Return the context for what data from a pipe of this process triggers, or the pipe taking data again."""
    observer, scope, _ = getattr(transport._proc, "__dict__", {}).get(_EXPECTED, (None, None, None))
    return nullcontext() if observer is None or observer.session.state.ended else _uncounted(scope)


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
        if 0 in self._pipes and not known and call == self._call_connection_lost:
            with _by_chance(self):
                original(self, call, *data)
            return
        original(self, call if known or call != self._protocol.pipe_data_received else bring, *data)

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
        if self._pending_calls is None:  # what has arrived waits until the protocol was told of the connection
            self._pending_calls = deque()
            self._loop.call_soon(heard, self)

    def heard(self: Any) -> None:
        calls, self._pending_calls = self._pending_calls, None
        for call, data in calls:
            call(*data)

    connected.__qualname__ = original.__qualname__

    @functools.wraps(original)
    def _connect_pipes(self: Any, waiter: Any) -> Any:
        if not _is_answered(self):
            return original(self, waiter)
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
    """Wrap a method that returns the status of a process; it returns ``unfinished`` while the process runs."""

    @functools.wraps(original)
    def ask(self: Any, *args: Any, **options: Any) -> Any:
        at = _observer_of(self)
        if at is None or getattr(self, "_popen", None) is None:
            return original(self, *args, **options)
        observer, scope = at
        if observer.live:
            popen = self._popen
            found = outside_the_run(original, self, *args, **options)
            observer.note(scope, popen.returncode)
            return found
        status = observer.recall(scope)
        if status is None:
            return unfinished
        popen = self._popen
        if popen.returncode is None:
            outside_the_run(observer.let_end)
            popen.wait()
        observer.ended(popen.returncode, status)
        popen.returncode = status
        return outside_the_run(original, self)

    return ask


def _exitcode(original: Any) -> Any:
    return property(_status_method(original.fget), doc=original.__doc__)


#: The classes by which an event loop learns that a process has ended.
_WATCHERS: Final = (
    "PidfdChildWatcher", "SafeChildWatcher", "FastChildWatcher", "MultiLoopChildWatcher", "ThreadedChildWatcher",
    "_PidfdChildWatcher", "_ThreadedChildWatcher",
)  # fmt: skip
#: Module, class, name, and its replacement.
status_entrances: Final = (
    ("subprocess", "Popen", "poll", _poll),
    ("subprocess", "Popen", "wait", _wait),
    ("subprocess", "Popen", "communicate", _communicate),
    ("subprocess", "Popen", "send_signal", _send_signal),
    ("asyncio.base_subprocess", "BaseSubprocessTransport", "_process_exited", _exited),
    ("asyncio.base_subprocess", "BaseSubprocessTransport", "_connect_pipes", _connecting),
    ("asyncio.unix_events", "_UnixWritePipeTransport", "write", _writing),
    *(("asyncio.unix_events", name, "add_child_handler", _watching) for name in _WATCHERS),
    ("asyncio.base_subprocess", "ReadSubprocessPipeProto", "data_received", _received),
    ("asyncio.base_subprocess", "BaseSubprocessTransport", "_call", _handed_on),
    ("asyncio.base_subprocess", "WriteSubprocessPipeProto", "resume_writing", _resumed),
    ("asyncio.base_subprocess", "WriteSubprocessPipeProto", "connection_lost", _lost),
    ("multiprocessing.process", "BaseProcess", "is_alive", lambda original: _status_method(original, True)),
    ("multiprocessing.process", "BaseProcess", "join", _status_method),
    ("multiprocessing.process", "BaseProcess", "close", _status_method),
    ("multiprocessing.process", "BaseProcess", "exitcode", _exitcode),
)

# -- the start of a process --------------------------------------------------------------------------------------------
#
# Before a program starts a process, the session is asked to admit it, by its lane and its command.

#: The environment variable with the ticket (JSON) by which a process joins a run.
VARIABLE: Final = "TRACEKIT_JOIN"
#: What a shell's command may begin with: ``NAME=value``.
_SETTING: Final = expression(r"[A-Za-z_]\w*=")
#: Characters with a meaning to a shell, except for quotes.
_OF_SHELLS: Final = frozenset(";&|<>()`$\n*?[]{}~#!\\")
_QUOTED: Final = expression(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


class Admission(ProcessObserver, Protocol):
    """A session's consent to starting a process, with its ticket (a protocol)."""

    @property
    def ticket(self) -> str:
        """The ticket by which the process joins the run, as JSON."""
        ...

    def admitted(self) -> AbstractContextManager[None]:
        """Return the context in which the process is started."""
        ...

    def started(self, pid: int) -> None:
        """The process runs, with this id."""
        ...

    def not_started(self, scope: Scope, error: OSError) -> None:
        """The process could not be started."""
        ...

    #: Whether it is a step as well; in a replay: whether the recorded one was.
    is_step: bool


#: Whether an admitted process is being started here.
within: Final[ContextVar[bool]] = ContextVar("tracekit.process.within", default=False)


#: The admitted process that is being forked here.
forking: Final[ContextVar[Admission | None]] = ContextVar("tracekit.process.forking", default=None)


def left_by_fork() -> None:
    """Reset the context in a forked child, which is a copy of the one that forked it: nothing is being started here."""
    forking.set(None)
    within.set(False)
    below.set(None)
    guard.left_by_fork()


def admission_of(scope: Scope, name: str, words: list[str] | None, pool: bool = False) -> Admission | None:
    """Ask the session to admit a process of which nothing is captured; return ``None`` if it is not part of the run."""
    guard.refuse(Attempt("process", "process.start", name))  # before it gets a lane
    if guard.Caller().probes:
        return None
    lane, found = _admit(scope, f"process:{name}", words, pool)
    if not pool:  # a pool's worker does nothing by itself
        guard.observe(Attempt("process", "process.start", name), lane=None if found is None else lane.path)
    return found


def _admit(scope: Scope, lane_name: str, words: list[str] | None, pool: bool = False) -> tuple[Lane, Admission | None]:
    lane, children = started(parent_lane(scope), lane_name, scope.live), scope.session.state.children
    return lane, None if children is None else children.admit(scope, lane, words, pool)


def _apart(command: Any) -> None:
    """Report the start of a process by code outside of any run, or by telemetry, which is part of none."""
    guard.observe(Attempt("process", "process.start", program_name(words_of(command))))


@contextmanager
def starting(found: Admission) -> Iterator[None]:
    """The block in which an admitted process is started: the calls inside that perform the start are not checked again."""
    token = within.set(True)
    try:
        with found.admitted(), passing():
            yield
    finally:
        within.reset(token)


def joining_environment(found: Admission, env: Any) -> dict[Any, Any]:
    """Return the environment for a process, ``env`` or this process's, with the ticket added."""
    own = getattr(os.environ, "_data", None)
    if env is None and type(own) is dict and os.name == "posix":
        # In the raw form in which it is passed on: reading it value by value takes 0.1 ms.
        return {**own, VARIABLE.encode(): os.fsencode(found.ticket)}
    return {**(os.environ if env is None else env), VARIABLE: found.ticket}


class Words(list[str]):
    """A command as words. ``simple``: it was one text that is to a shell just the words of one program."""

    simple = False


def _active(quoted: re.Match[str]) -> str:
    """Return the characters of a quoted text that a shell does not take literally."""
    text = quoted.group()
    return "" if text[0] == "'" else "".join(letter for letter in text if letter in "$`\\")


def words_of(command: Any) -> list[str]:
    """Return a command as a list of words, without the leading ``NAME=value`` settings of a shell command."""
    if type(command) is not list and isinstance(command, commands.TEXTS):
        import shlex

        text = os.fsdecode(command)
        try:
            words = Words(shlex.split(text))
        except ValueError:  # an open quote
            words = Words(text.split())
        words.simple = _OF_SHELLS.isdisjoint(_QUOTED.sub(_active, text))
        while len(words) > 1 and _SETTING.match(words[0]):
            del words[0]
        return words or [""]
    return [word if type(word) is str else _word(word) for word in command] or [""]


def _word(word: Any) -> str:
    return os.fsdecode(word) if isinstance(word, commands.TEXTS) else ""


def program_name(words: list[str]) -> str:
    """Return the name of a command's program; for a Python program that of its script or module, whatever the
    interpreter's name."""
    return _program_name(tuple(words))


@functools.lru_cache(1000)
def _program_name(words: tuple[str, ...]) -> str:
    name = os.path.basename(words[0])
    if name.startswith("python") or words[0] == sys.executable:
        name = _script(list(words[1:])) or "python"
    return name.translate(_IN_PATHS)


#: Characters with a meaning in a lane's path.
_IN_PATHS: Final = str.maketrans("/#@+", "____")


def _script(words: list[str]) -> str:
    rest = iter(words)
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if word in ("-c", "-"):
            return ""
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""


# -- processes started by os and uvloop --------------------------------------------------------------------------------
#
# They are admitted and get a ticket like those of ``subprocess``. With ``os.exec*`` the same process continues as
# another program: its segment of a run that it had joined ends there; a run of its own stays without an end, with a
# warning.


def _admission(command: Any, program: Any = None) -> tuple[Scope, Admission] | None:
    """Return the scope and admission of a process about to be started; ``None`` if it is not part of a run."""
    scope = current.get()
    if within.get():
        return None
    if scope is None or telemetry() is not None:
        _apart(command if program is None else [program])
        return None
    words = words_of(command)
    if program is not None:
        words[0] = words_of([program])[0]
    found = admission_of(scope, program_name(words), words)
    return None if found is None else (scope, found)


# -- os.system, os.spawn*, os.posix_spawn* ---------------------------------------------------------------------------------


def _system(original: Any) -> Any:
    @functools.wraps(original)
    def system(command: Any) -> Any:
        scope = current.get()
        if not isinstance(command, str | bytes | os.PathLike) or within.get():
            return original(command)
        if scope is None or telemetry() is not None:
            _apart(command)
            return original(command)
        from subprocess import Popen

        options: dict[str, Any] = {"close_fds": False, "restore_signals": False}  # as without tracekit
        status = _patiently(Popen(command, shell=True, **options))
        return -status if status < 0 else status << 8

    return system


def _patiently(process: Popen[Any]) -> int:
    """Wait for the process through Ctrl-C, which only the shell handles in ``os.system``."""
    while True:
        with suppress(KeyboardInterrupt):
            return process.wait()


def _spawn(original: Any) -> Any:
    @functools.wraps(original)
    def _spawnvef(mode: int, file: Any, args: Any, env: Any, func: Any) -> Any:
        def start(env: Any) -> int:
            guard.check(Attempt("process", "os.spawn", words_of([file])[0]))
            become = func if env is None else getattr(os, _WITH_ENVIRONMENT.get(func.__name__, func.__name__))
            pid: int = original(os.P_NOWAIT, file, args, env, become)
            return pid

        if within.get() or not (isinstance(args, list | tuple) and args):
            return original(mode, file, args, env, func)
        pid = _started(args, file, env, {}, start)
        return pid if mode == os.P_NOWAIT else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return _spawnvef


_WITH_ENVIRONMENT: Final = {"execv": "execve", "execvp": "execvpe"}


def _posix_spawn(original: Any) -> Any:
    @functools.wraps(original)
    def posix_spawn(path: Any, argv: Any, env: Any, /, **options: Any) -> Any:
        if within.get() or not (isinstance(argv, list | tuple) and argv):
            return original(path, argv, env, **options)
        return _started(argv, path, env, options, lambda env: original(path, argv, env, **options))

    return posix_spawn


def _started(argv: Any, program: Any, env: Any, options: Mapping[str, Any], start: Callable[[Any], int]) -> int:
    """Start a process that its program knows by its number, with ``start(environment)``; return the number."""
    scope = current.get()
    if scope is None or telemetry() is not None:
        _apart([program])
        return start(env)
    scope = here() or scope
    words = words_of(argv)
    words[0] = words_of([program])[0]
    if scope.live or below_seam():
        found: Any = admission_of(scope, program_name(words), words)
        return start(env) if found is None else _with_ticket(found, env, start)
    # Where its other descriptors go is not tracked.
    streams = {"stdout": 0} if options.get("file_actions") else {}
    found = _begun(scope, argv, words, streams, one_program=True)
    if found is None:
        return start(env)
    if not isinstance(found, CapturedProcess):
        pid = _with_ticket(found, env, start)
    elif found.live:
        try:
            pid = _with_ticket(found.joining, env, start)
        except BaseException as error:
            found.not_started(error)
            raise
        found.started(pid)
    else:
        found.start()
        pid = found.pid
    _is_known_by(scope, pid, found)
    if options.get("setsid") or options.get("setpgroup") == 0:
        scope.session.state.extras.of(_Numbers).groups[pid] = scope.session.state.extras.of(_Numbers).steps[pid]
    return pid


def _with_ticket(found: Admission | None, env: Any, start: Callable[[Any], int]) -> int:
    if found is None:
        token = within.set(True)
        try:
            with passing():
                return start(env)
        finally:
            within.reset(token)
    with starting(found):
        pid = start(joining_environment(found, env))
    found.started(pid)
    return pid


# -- os.fork, os.forkpty -----------------------------------------------------------------------------------------------
#
# The child is a copy that has its own part of the run from its first line: set up right after the fork (in a recording
# by ``_runs.segments``, in a replay by ``_runs.replaying``).


def _fork(original: Any) -> Any:
    @functools.wraps(original)
    def fork() -> Any:
        scope = current.get()
        if scope is None or within.get() or guard.Caller().passes("fork"):
            return original()
        guard.refuse(Attempt("process", f"os.{original.__name__}", "this process"))
        lane, found = _admit(scope, "fork", None)
        if found is None:
            return original()
        guard.observe(Attempt("fork", f"os.{original.__name__}", "this process"), lane=lane.path)
        with _forked(found):
            made = original()
        pid = made if isinstance(made, int) else made[0]
        if pid:
            found.started(pid)
            _is_known_by(scope, pid, found)
        return made

    return fork


@contextmanager
def _forked(found: Admission) -> Iterator[None]:
    """The block in which an admitted process is forked."""
    token = forking.set(found)
    try:
        with starting(found):
            yield
    finally:
        forking.reset(token)


# -- signals to processes ----------------------------------------------------------------------------------------------
#
# By a process's number, which during a replay may belong to any process.


class _Numbers:
    """The processes of a run that are steps, by their numbers and those of their groups."""

    def __init__(self) -> None:
        self.steps: Final[dict[int, ProcessSteps]] = {}
        self.groups: Final[dict[int, ProcessSteps]] = {}
        #: Those whose status the program queries by number.
        self.awaited: Final[dict[int, ProcessObserver | CapturedProcess]] = {}


def _is_known_by(scope: Scope, pid: int, found: Admission | CapturedProcess) -> None:
    """Register a process that the program knows by its number."""
    numbers = scope.session.state.extras.of(_Numbers)
    numbers.awaited[pid] = found
    if isinstance(found, CapturedProcess):
        numbers.steps[pid] = found
    elif found.is_step:
        numbers.steps[pid] = ProcessSteps(scope.session, found.path)


def _by_number(number: Any, *, group: bool = False) -> tuple[ProcessSteps, Scope] | None:
    scope = current.get()
    if scope is None:
        return None
    known = scope.session.state.extras.of(_Numbers)
    steps = (known.groups if group else known.steps).get(number)
    at = None if steps is None else steps.here()
    return None if steps is None or at is None else (steps, at)


def _kill(original: Any, group: bool) -> Any:
    @functools.wraps(original)
    def kill(number: Any, sig: Any, /) -> None:
        at = _by_number(number, group=group)
        if at is None:
            if not group and number == os.getpid():
                signals.send(int(sig), lambda: original(number, sig))
                return
            if process.sessions:
                guard.observe(guard.signal_to_other("os.killpg" if group else "os.kill", number, sig))
            if group or process.needs_signal(number, sig):
                original(number, sig)
            return
        steps, scope = at
        if not steps.over:
            steps.signal(scope, sig)
        elif not steps.real:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if steps.real and (group or process.needs_signal(number, sig)):
            original(number, sig)

    return kill


def _getpgid(original: Any) -> Any:
    @functools.wraps(original)
    def getpgid(number: Any, /) -> int:
        at = _by_number(number)
        if at is None:
            return int(original(number))
        steps, scope = at
        group = steps.group(scope, lambda: int(original(number)))
        scope.session.state.extras.of(_Numbers).groups[group] = steps
        return group

    return getpgid


# -- the status of a process by its number -----------------------------------------------------------------------------


def _waitpid(original: Any) -> Any:
    @functools.wraps(original)
    def waitpid(pid: Any, options: Any, /) -> tuple[int, int]:
        scope = current.get()
        scope = None if scope is None or scope.live or not isinstance(pid, int) else here()
        if scope is None or scope.session.state.ended or options & ~os.WNOHANG:
            return original(pid, options)  # type: ignore[no-any-return]
        awaited = scope.session.state.extras.of(_Numbers).awaited
        if pid == -1 and awaited:
            return _wait_for_any(original, scope, awaited, options)
        found = awaited.get(pid)
        if found is None:
            return original(pid, options)  # type: ignore[no-any-return]
        return _wait_for(original, scope, awaited, pid, found, options)

    return waitpid


def _wait_for(
    original: Any,
    scope: Scope,
    awaited: dict[int, ProcessObserver | CapturedProcess],
    pid: int,
    found: ProcessObserver | CapturedProcess,
    options: int,
) -> tuple[int, int]:
    if found.live:
        number, word = outside_the_run(original, pid, options)
        if number:
            del awaited[pid]
        found.note(scope, os.waitstatus_to_exitcode(word) if number else None)
        return number, word
    status = found.recall(scope)
    if status is None:
        return 0, 0
    del awaited[pid]
    return pid, _end_of(original, pid, found, status)


def _end_of(original: Any, pid: int, found: ProcessObserver | CapturedProcess, status: int) -> int:
    """Return the recorded end of a process in ``waitpid``'s form; a process that runs in the replay ends first, and is
    compared."""
    if isinstance(found, CapturedProcess):
        found.recalled()
    else:
        outside_the_run(found.let_end)
        _, word = outside_the_run(original, pid, 0)
        found.ended(os.waitstatus_to_exitcode(word), status)
    return status << 8 if status >= 0 else -status


def _wait_for_any(
    original: Any, scope: Scope, awaited: dict[int, ProcessObserver | CapturedProcess], options: int
) -> tuple[int, int]:
    session = scope.session
    if next(iter(awaited.values())).live:
        number, word = outside_the_run(original, -1, options)
        found = awaited.pop(number, None)
        session.clock_read(scope, _ANY, lambda: found.path if found is not None else _OTHER if number else "")
        if found is not None:
            found.note(scope, os.waitstatus_to_exitcode(word))
        return number, word
    path = session.question(scope, _ANY, lambda: _OTHER, lambda _: None)
    if not path:
        return 0, 0
    for pid, found in awaited.items():
        if found.path == path:
            del awaited[pid]
            return pid, _end_of(original, pid, found, found.recall(scope))
    return original(-1, options)  # type: ignore[no-any-return]


#: The name under which is recorded which process had ended when the program asked for any; and the placeholder for a
#: process that is not the run's.
_ANY: Final = "process.any"
_OTHER: Final = "other"


def _wait_any(original: Any) -> Any:
    @functools.wraps(original)
    def wait() -> tuple[int, int]:
        scope = current.get()
        if scope is None or not scope.session.state.extras.of(_Numbers).awaited:
            return original()  # type: ignore[no-any-return]
        return os.waitpid(-1, 0)

    return wait


# -- os.exec* --------------------------------------------------------------------------------------------------------------


def _exec(original: Any, with_env: bool) -> Any:
    @functools.wraps(original)
    def execute(path: Any, argv: Any, *env: Any) -> Any:
        there = isinstance(path, str | bytes | os.PathLike) and os.access(path, os.X_OK)
        scope = current.get()
        session = None if scope is None else scope.session
        if within.get() or not there or session is None or not session.recording or not argv:
            return original(path, argv, *env)
        at = _admission(argv, path)
        if at is None:
            return original(path, argv, *env)
        at[1].started(os.getpid())
        for end in process.before_exec:
            end()
        if not session.state.ended:
            session.log.flush()
            warn(
                f"the program becomes another one ({program_name(words_of(argv))}) in the middle of run {session.run_id}: its trace has "
                "no end, and a replay stops there"
            )
        return really(path, argv, joining_environment(at[1], env[0] if env else None))

    really = original if with_env else os.execve
    return execute


# -- uvloop ----------------------------------------------------------------------------------------------------------------


def _uvloop(original: Any, shell: bool) -> Any:
    @functools.wraps(original)
    async def start(self: Any, protocol_factory: Any, program: Any, *args: Any, **options: Any) -> Any:
        command = program if shell else [program, *args]
        at = _admission(command)
        if at is None:
            guard.check(Attempt("process", "uvloop.subprocess", words_of(command)[0]))
            return await original(self, protocol_factory, program, *args, **options)
        _, found = at
        options["env"] = joining_environment(found, options.get("env"))
        with starting(found):
            transport, protocol = await original(self, protocol_factory, program, *args, **options)
        found.started(transport.get_pid())
        return transport, protocol

    return guard.asks(start)


#: Module, class, name, and its replacement.
os_entrances: Final = (
    ("os", None, "system", _system),
    *((("os", None, "_spawnvef", _spawn),) if hasattr(os, "_spawnvef") else ()),
    *(("os", None, name, _posix_spawn) for name in ("posix_spawn", "posix_spawnp") if hasattr(os, name)),
    *(("os", None, name, wrap) for name, wrap in (("waitpid", _waitpid), ("wait", _wait_any)) if hasattr(os, name)),
    *((("os", None, "kill", lambda original: _kill(original, False)),) if hasattr(os, "kill") else ()),
    *(
        (
            ("os", None, "killpg", lambda original: _kill(original, True)),
            ("os", None, "getpgid", _getpgid),
        )
        if hasattr(os, "killpg")
        else ()
    ),
    *(("os", None, name, _fork) for name in ("fork", "forkpty") if hasattr(os, name)),
    ("os", None, "execv", lambda original: _exec(original, False)),
    ("os", None, "execve", lambda original: _exec(original, True)),
    ("uvloop", "Loop", "subprocess_exec", lambda original: _uvloop(original, False)),
    ("uvloop", "Loop", "subprocess_shell", lambda original: _uvloop(original, True)),
)

# -- processes started by subprocess and multiprocessing ---------------------------------------------------------------
#
# Whatever uses ``subprocess.Popen`` (including asyncio's processes) gets its ticket in an environment variable; a
# process that ``multiprocessing`` starts afresh (``spawn``, ``forkserver``) gets it with its preparation data; a forked
# one inherits it. The run decides about the ticket.

#: The positions of ``cwd`` and ``env`` among the arguments of ``Popen``.
_CWD: Final = 9
_ENV: Final = 10
#: Executed in a process that multiprocessing prepares, before the program's first line.
_PREPARED: Final = """\
import os, sys
os.environ[{variable!r}] = {ticket!r}
if "tracekit" in sys.modules:
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
            _apart(command)
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
    found = _begun(scope, command, words, options, one_program=one_program)
    size = options.get("bufsize", -1)
    size = -1 if size is None else size
    if found is None:
        original(self, *args, **kwargs)  # which the guard refuses
        return
    if not isinstance(found, CapturedProcess):
        _really_start(original, self, found, args, kwargs)
        if found.is_step:
            _has_steps(self, scope, ProcessSteps(session, found.path), size, loops)
        (expect if loops else follow)(self, found)
        return
    if found.live:
        found.counted = loops and not commands.may_join(words)
        try:
            _really_start(original, self, found.joining, args, kwargs)
        except BaseException as error:
            found.not_started(error)
            raise
        found.started(self.pid)
    else:
        _answer(original, self, found, args, kwargs)
    _has_steps(self, scope, found, size, loops)
    (expect if loops else follow)(self, found)
    if options.get("start_new_session") or options.get("process_group") == 0:
        session.state.extras.of(_Numbers).groups[self.pid] = found


def _begun(
    scope: Scope, command: Any, words: list[str], options: Mapping[str, Any], *, one_program: bool
) -> Admission | CapturedProcess | None:
    """Begin the step of a process that is about to be started.

    In a replay: return the consent for one that joined the recorded run, and answers for itself; ``None`` for one that
    the recording does not have.
    """
    session, name = scope.session, program_name(words)
    guard.refuse(Attempt("process", "process.start", name))
    executable = options.get("executable")
    if session.recording and executable is None and commands.stays_out(words, one_program=one_program):
        lane, found = started(parent_lane(scope), f"process:{name}", scope.live), None
    else:
        lane, found = _admit(scope, f"process:{name}", words)
    if found is not None and not found.live:
        return found
    if not session.state.live and not session.comes_next(scope, "process", name):
        return None
    if executable is not None:
        one_program, words = False, [os.fsdecode(executable), *words[1:]]
    side_effect, declared = commands.side_effect_of(words, one_program=one_program)
    path = lane.path
    info: dict[str, Any] = {"process": path} | ({} if declared else {"undeclared": True})
    if found is not None:
        info["lane"] = lane.id
    about = commands.described(session, command, words, options)
    step = session.begin(scope, Request(_spec(name, side_effect), about, info))
    if step.deferred:
        step = step.go()
    captured = CapturedProcess(session, step, path, found)
    if captured.live and side_effect != "read_only":
        inputs.about_to_start(scope, step.seq, options.get("cwd"))
    if found is not None:
        found.is_step = True
    if captured.live and "file" in (about.get("stdout"), about.get("stderr")):
        guard.observe(Attempt("process", "process.output", f"{name}, which writes to a file"))
    inherited = [stream for stream in ("stdout", "stderr") if stream not in about]
    if inherited and not captured.live:
        session.state.extras.of(_Inherited).report(session, name, inherited)
    return captured


@functools.lru_cache(1000)
def _spec(name: str, side_effect: str) -> Spec:
    return Spec("process", name, side_effect=side_effect)


class _Inherited:
    """Whether a replay has reported that what processes write to inherited streams is not shown."""

    def __init__(self) -> None:
        self._reported = False

    def report(self, session: Session, name: str, streams: list[str]) -> None:
        if not self._reported:
            self._reported = True
            session.report.warn(
                f"{name} inherited {' and '.join(streams)}: what such a process writes there is not in the trace, and not shown now"
            )


def _has_steps(self: Any, scope: Scope, steps: ProcessSteps, size: int, loops: bool) -> None:
    """Make what goes through the pipes of a process steps."""
    vars(self)[_STEPS] = steps
    if loops:  # which reads and writes by itself
        steps.open_outputs(scope, self)
    else:
        steps.wrap_pipes(self, size)
    scope.session.state.extras.of(_Numbers).steps[self.pid] = steps


def _let_start(original: Any, self: Any, args: Any, kwargs: Any) -> None:
    """Start a process that has been decided about: ``os.posix_spawn``, which ``Popen`` may use for it, is no second
    start."""
    token = within.set(True)
    try:
        original(self, *args, **kwargs)
    finally:
        within.reset(token)


def _really_start(original: Any, self: Any, found: Admission | None, args: Any, kwargs: Any) -> None:
    """Really start a process, with its ticket if it may join."""
    if found is None:
        with passing():
            _let_start(original, self, args, kwargs)
        return
    env = joining_environment(found, args[_ENV] if len(args) > _ENV else kwargs.get("env"))
    if len(args) > _ENV:
        args = (*args[:_ENV], env, *args[_ENV + 1 :])
    else:
        kwargs = {**kwargs, "env": env}
    with starting(found):
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
    try:
        _really_start(original, self, found, args, kwargs)
    except OSError as error:  # no such program, or not permitted
        found.not_started(scope, error)
        raise
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
        found = admission_of(scope, name.replace("/", "_"), None, pool)
        if found is None:
            return original(self)
        if _method(self) == "fork":
            with _forked(found):
                original(self)
        else:
            token = _starting.set(found.ticket)
            try:
                with starting(found):
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


class _Ready:
    """Joins the run when it is unpickled in the new process, before the program's modules; needs only builtins."""

    def __init__(self, ticket: str) -> None:
        self.ticket: Final = ticket

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_PREPARED.format(variable=VARIABLE, ticket=self.ticket),)


def _prepare(original: Any) -> Any:
    @functools.wraps(original)
    def get_preparation_data(*args: Any, **kwargs: Any) -> Any:
        data = original(*args, **kwargs)
        ticket = _starting.get()
        # First: unpickling what follows may import the program's modules.
        return data if ticket is None else {VARIABLE: _Ready(ticket), **data}

    return get_preparation_data


# -- patches -----------------------------------------------------------------------------------------------------------


def _patches() -> list[Patch]:
    found = []
    for module, owner, name, wrap in (
        ("subprocess", "Popen", "__init__", _popen),
        ("multiprocessing.process", "BaseProcess", "start", _start),
        ("multiprocessing.spawn", None, "get_preparation_data", _prepare),
        *status_entrances,
        *os_entrances,
        *pools,
    ):
        loaded: Any = sys.modules.get(module)
        if loaded is not None:
            place: Any = loaded if owner is None else getattr(loaded, owner, None)
            if place is not None:
                found.append(_switch.once(place, name, wrap))
    return found


_switch: Final = Switch(
    _patches,
    (
        "subprocess",
        "multiprocessing.process",
        "multiprocessing.spawn",
        "multiprocessing.pool",
        "concurrent.futures.process",
        "asyncio.base_subprocess",
        "asyncio.unix_events",
        "uvloop",
    ),
)
activate, deactivate = _switch.activate, _switch.deactivate
