"""Captures sleeps, deadlines and waits of the program's own code as events of its run.

And what its threads ask about one another without waiting.
"""

from __future__ import annotations

import threading
import time
from _thread import LockType, RLock, get_ident, get_native_id, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from sys import _getframe
from types import FrameType, SimpleNamespace
from typing import Any, Final

from .._reality import gate, monotonic_ns, repoint, running_loop
from .._runtime.session import Scope, current
from . import threads as handover
from .callers import by_observer, by_user, of_the_program
from .in_place import FunctionExchange, MethodEntry, Unsupported, genuine
from .locks import Taking, expected, taken_by_caller, taker, taking
from .locks import hooks as followed
from .patch import AttributePatch, ReversiblePatch, Switch, loaded
from .waits import armed, await_place, own, scope_of_timers

__all__ = ["hooks"]

# -- blocking ----------------------------------------------------------------------------------------------------------
#
# Waits of threads with a time limit, and questions that they ask about one another without waiting.
#
# A limit that expired is an event of the run. In a replay a wait with a limit lasts until the recorded place of that
# event, whatever happens meanwhile; if the limit did not expire, as long as it takes. ``Event``, ``Queue``,
# ``Semaphore``, ``Barrier`` and ``Future`` all wait on a ``Condition``, in a loop that computes the remaining time:
# when a limit fires at once in a replay, the clock that they use is put forward in that thread, so that they see it
# expired.
#
# A question (``is_set()``, ``done()``, ``is_alive()``, ``qsize()``, ``acquire(False)`` …) by user code is recorded with
# its answer, like a clock read. A replay gives the recorded answer, after waiting until it is true.

_Scope = Callable[[], "Scope | None"]


def _blocking_patches() -> list[ReversiblePatch]:
    once = hooks.once

    def limited(
        owner: Any,
        name: str,
        limit: Callable[..., Any],
        late: Any,
        ask: _Ask | None = None,
        lock_of: Callable[[Any], Any] | None = None,
        has_it: bool = False,
    ) -> ReversiblePatch:
        called = f"{owner.__name__}.{name}"
        return once(
            owner, name, lambda original: _limited(original, called, limit, late, ask, lock_of, has_it, scope_of_timers)
        )

    def asked(owner: Any, name: str, agree: Callable[[Any, Any], object] = _nothing) -> ReversiblePatch:
        return once(owner, name, lambda original: _asked(original, f"{owner.__name__}.{name}", agree, scope_of_timers))

    found = [
        once(threading.Condition, "wait", lambda original: _wait(original, scope_of_timers)),
        once(threading.Thread, "join", lambda original: _join(original, scope_of_timers)),
        once(threading, "_time", lambda _: _now),
        limited(threading.Event, "wait", _timeout, False, _is_set),
        limited(
            threading.Condition, "wait_for", _second, False, lock_of=lambda condition: condition._lock, has_it=True
        ),
        limited(threading.Semaphore, "acquire", _second, False, _is_free, lambda semaphore: semaphore._cond._lock),
        asked(threading.Event, "is_set", _until_set),
        asked(
            threading.Thread,
            "is_alive",
            lambda thread, answer: None if answer or thread.ident is None else thread.join(),
        ),
    ]
    if (futures := loaded("concurrent.futures._base")) is not None:
        # It reads the clock through its module, of which it uses no other name.
        clock = _Clock(**{**vars(time), "monotonic": _now})
        found += [
            once(futures, "time", lambda _: clock),
            limited(futures.Future, "result", _timeout, TimeoutError, _is_done),
            limited(futures.Future, "exception", _timeout, TimeoutError, _is_done),
            asked(futures.Future, "done", _until_done),
            asked(futures.Future, "running"),
            asked(futures.Future, "cancelled"),
            once(futures.Future, "add_done_callback", _add_done_callback),
            once(futures.Future, "cancel", lambda original: _cancel(original, scope_of_timers)),
        ]
    if (queue := loaded("queue")) is not None:
        found.append(once(queue, "time", lambda _: _now))
        found += [asked(queue.Queue, name) for name in ("qsize", "empty", "full")]
        found += hooks.made("questions of simple queues", lambda: _of_simple_queues(queue.SimpleQueue, scope_of_timers))
    if (pool := loaded("multiprocessing.pool")) is not None:
        found += [
            asked(pool.ApplyResult, "ready", _until_ready),
            once(
                pool.ApplyResult, "get", lambda original: _get_of_a_pool(original, pool.TimeoutError, scope_of_timers)
            ),
        ]
    return found + hooks.made("locks", _question_locks)


def _question_locks() -> list[ReversiblePatch]:
    """Return patches for locks, whose types take no assignment and are replaced in another way."""
    try:
        return _of_locks(scope_of_timers)
    except (Unsupported, KeyError):  # their questions get real answers
        return []


def _now() -> float:
    """Return the monotonic clock (s) as put forward in this thread."""
    return monotonic_ns() / 1e9 + own.ahead


def _put_forward(to: float) -> None:
    left = to - _now()
    if left > 0:
        own.ahead += left


def _wait(original: Any, scope_of_timers: _Scope) -> Any:
    def wait(self: Any, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0:
            return original(self, timeout)  # type: ignore[no-any-return]
        scope = scope_of_timers()
        if scope is None:
            return original(self, timeout)  # type: ignore[no-any-return]
        if by_observer():
            return _beside(scope, original, self, timeout)  # type: ignore[no-any-return]
        threads: Any = scope.session.threads
        frame = taken_by_caller(_getframe(1))

        def retake() -> Taking | None:
            return taking(self._lock, frame)

        if timeout is None:
            limit = own.limit
            if limit is not None:
                return limit.wait(self)  # type: ignore[no-any-return]
            if threads is not None:
                return _wait_in_a_gate(self, threads.wait_in, retake)
            original(self)
            _taken(retake())
            return True
        until = _now() + timeout
        timer = armed(scope, "threading.wait", timeout)
        if timer is None:
            notified = _wait_in_a_gate(self, lambda gate: threads.wait_in(gate, limited=True), retake)
        elif timer.comes:
            # A notification may have found it when its limit had run out already: it goes to it again, and changes nothing.
            notified = _wait_in_a_gate(self, lambda gate: _until_place(gate, timer, threads), retake)
            notified = notified and (timer.live or threads.failed)
        else:
            notified = False if timer.live else _wait_in_a_gate(self, lambda gate: _hold(gate, timer, threads), retake)
        if not notified and timer is not None and timer.live:
            notified = original(self, timeout)
            if not notified:
                timer.fired()
            _taken(retake())
        if not notified:
            # Otherwise a limit that expired a little early would be armed again, for the rest.
            _put_forward(until)
        return notified

    wait.__qualname__ = "Condition.wait"
    return wait


def _beside(scope: Scope, wait: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Wait, for telemetry, for its own threads, which are not part of the run: not recorded, without a place, and
    meanwhile it is unknown what may still move."""
    threads = scope.session.threads
    token = current.set(None)
    if threads is not None:
        threads.launching()
    try:
        return wait(*args, **options)
    finally:
        if threads is not None:
            threads.launched(None, None)
        current.reset(token)


def _taken(lock: Taking | None) -> None:
    if lock is not None:
        lock.taken()


def _attempt(lock: Taking | None, acquire: Callable[..., Any], *args: Any) -> Any:
    """Try to take a lock; report it if that succeeds."""
    acquired = acquire(*args)
    if acquired:
        _taken(lock)
    return acquired


def _take(lock: Taking | None, acquire: Callable[..., Any], *args: Any) -> Any:
    """Take a lock that was taken in the recording, when its turn has come."""
    if lock is not None:
        lock.await_turn()
    return _attempt(lock, acquire, *args)


def _wait_in_a_gate(condition: Any, hold: Callable[[Any], object], retake: Callable[[], Taking | None] | None) -> bool:
    """Wait until notified, or until ``hold``, which waits for the lock it is given, returns first; return whether it
    was notified. ``retake`` is called before the condition's lock is taken again, and what it returns afterwards."""
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = gate()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    notified = True
    taking = None
    try:
        hold(waiter)
        taking = None if retake is None else retake()
    finally:
        condition._acquire_restore(saved)
        _taken(taking)
        if waiter in condition._waiters:  # nobody has notified it
            condition._waiters.remove(waiter)
            notified = False
    return notified


def _until_place(gate: Any, timer: Any, threads: Any) -> None:
    """Block until the recorded place of ``timer``; in a replay that has failed, until ``gate`` is released."""
    if not (await_place(timer, threads) or timer.live):
        threads.wait_in(gate, limited=True)


def _hold(gate: Any, timer: Any, threads: Any) -> None:
    """Block until ``gate`` is released, possibly by the timer; a timer fired by a failed replay does not count."""

    def fire() -> None:
        if threads.failed:
            return
        try:
            gate.release()
        except RuntimeError:  # notified at the same moment
            pass

    timer.on_fire(fire, anywhere=True)
    try:
        threads.wait_in(gate, limited=True)
    finally:
        timer.cancel()


def _join(original: Any, scope_of_timers: _Scope) -> Any:
    def join(self: threading.Thread, timeout: float | None = None) -> None:
        if timeout is not None and timeout <= 0:
            return original(self, timeout)  # type: ignore[no-any-return]
        scope = scope_of_timers()
        if scope is None:
            return original(self, timeout)  # type: ignore[no-any-return]
        if by_observer():
            return _beside(scope, original, self, timeout)  # type: ignore[no-any-return]
        if timeout is None:
            return original(self, timeout)  # type: ignore[no-any-return]
        original(self, 0)  # raises usage errors
        threads: Any = scope.session.threads
        timer = armed(scope, "threading.join", timeout)
        if timer is None or (timer.comes and not await_place(timer, threads)):
            _until_ended(original, self, threads, lambda ended: threads.wait_in(ended, limited=True))
        elif not (timer.comes or timer.live):
            _until_ended(original, self, threads, lambda ended: _hold(ended, timer, threads))
        if timer is not None and timer.live:
            original(self, timeout)
            if self.is_alive():
                timer.fired()
        return None

    join.__qualname__ = "Thread.join"
    return join


def _until_ended(join: Any, thread: threading.Thread, threads: Any, wait: Callable[[Any], object]) -> None:
    """Wait for the end of a thread in a lock that is released then."""
    if thread.is_alive():
        ended = gate()
        threads.launching()
        try:
            start_new_thread(_notify, (join, thread, threads, ended))
        except BaseException:
            threads.launched(None, None)
            raise
        wait(ended)


def _notify(join: Any, thread: threading.Thread, threads: Any, ended: Any) -> None:
    # It takes part: between the end of the thread and that of the wait, somebody can still move.
    threads.launched(get_native_id(), get_ident(), beside=True)
    join(thread)
    try:
        ended.release()
    except RuntimeError:  # the timeout came first
        pass


# -- limits above conditions -------------------------------------------------------------------------------------------


class _Opened(Exception):
    """The log answers nothing any more (a resumed run has followed it to its end): the limit runs on the real clock."""


class _Limit:
    """A limit that did not expire in the recording: waits on conditions below it have no limit. ``taking`` is the lock that
    the program has when they are over."""

    def __init__(self, timer: Any, threads: Any, taking: Taking | None) -> None:
        self._timer: Final = timer
        self._threads: Final = threads
        self._taking: Final = taking

    def wait(self, condition: Any) -> bool:
        timer, threads, taking = self._timer, self._threads, self._taking
        hold = (
            (lambda gate: _hold(gate, timer, threads))
            if timer.pending
            else (lambda gate: threads.wait_in(gate, limited=True))
        )
        notified = not timer.live and _wait_in_a_gate(condition, hold, None if taking is None else taking.await_turn)
        if not notified and timer.live:
            raise _Opened
        return notified


def _timeout(args: Any, options: Any) -> tuple[Any, Any, Any]:
    """Return the limit of a call, and its arguments without; for methods without other arguments."""
    return (args[0] if args else options.get("timeout")), (), {}


def _second(args: Any, options: Any) -> tuple[Any, Any, Any]:
    """Return the limit of a call that takes it as its second argument, and its arguments without."""
    rest = {name: value for name, value in options.items() if name != "timeout"}
    if not (args[0] if args else rest.get("blocking", True)):
        return 0, args, options  # it does not wait
    return (args[1] if len(args) > 1 else options.get("timeout")), args[:1], rest


def _in_time(timer: Any, threads: Any, lock: Taking | None, has_it: bool, wait: Callable[[], Any]) -> Any:
    """Wait as long as it takes for what came in time in the recording."""
    if lock is not None and not has_it:
        lock.await_turn()
    own.limit = _Limit(timer, threads, lock if has_it else None)
    try:
        result = wait()
        _taken(lock)
        return result
    finally:
        own.limit = None


def _waited(timer: Any, result: Any, lock: Taking | None, until: float | None) -> Any:
    """Record what a wait came to; one at a condition ``until`` then has its lock."""
    if not result:
        timer.fired()
    elif until is not None and _now() >= until:  # nobody need have notified it
        timer.fired({"came": True})
    if result or until is not None:
        _taken(lock)
    return result


class _Clock(SimpleNamespace):
    """What a module of the standard library reads the clock from that computes what is left of a limit."""


def _computed(frame: FrameType) -> bool:
    """Return whether code of ``frame`` has computed what is left of a limit (``Executor.map``): that nothing is left is then
    no question of the program, but the limit has run out."""
    return type(frame.f_globals.get("time")) is _Clock


def _limited(
    original: Any,
    name: str,
    limit_of: Callable[..., Any],
    late: Any,
    ask: _Ask | None,
    lock_of: Callable[[Any], Any] | None,
    has_it: bool,
    scope_of: _Scope,
) -> Any:
    """Wrap a wait with a limit: ``late`` is what it returns, or raises, on expiry. A call that does not wait is a
    question (``ask``). ``lock_of`` gives the lock that decides which of several threads goes on first, if there is one.
    ``has_it``: the program has that lock again whenever the wait is over, as it has that of a condition; otherwise it is
    free in time, as that of a semaphore is."""

    def expired() -> Any:
        if late is TimeoutError:
            raise TimeoutError
        return late

    def wait(self: Any, *args: Any, **options: Any) -> Any:
        seconds, first, rest = limit_of(args, options)
        if seconds is None:
            return original(self, *args, **options)
        if seconds <= 0 and not _computed(_getframe(1)):
            if ask is None or current.get() is None or not by_user() or (asking := scope_of()) is None:
                return original(self, *args, **options)
            if ask(asking, self, lambda: original(self, *args, **options), lambda: original(self)):
                return original(self) if late is TimeoutError else True
            return expired()
        scope = scope_of()
        if scope is None or own.limit is not None:
            return original(self, *args, **options)
        if by_observer():
            return _beside(scope, original, self, *args, **options)
        threads: Any = scope.session.threads
        lock = None if lock_of is None else expected(lock_of(self), taken_by_caller(_getframe(1)))
        timer = armed(scope, name, seconds)
        if timer is None:
            return original(self, *args, **options)
        if timer.comes:
            if not await_place(timer, threads, *((self, lock) if has_it else ())):
                return original(self, *args, **options)
            _put_forward(_now() + seconds)
            if has_it:  # it returns what its predicate did
                with _as_a_whole():
                    result = original(self, *first, **rest, timeout=0)
                return result if timer.about.get("came") else result and late
            return expired()
        if not timer.live:
            try:
                return _in_time(timer, threads, lock, has_it, lambda: original(self, *first, **rest))
            except _Opened:
                pass
        until = _now() + seconds
        token = current.set(None)  # the internals of the wait are not recorded
        try:
            result = original(self, *args, **options)
        except TimeoutError:
            if late is TimeoutError and not self.done():
                timer.fired()
            raise
        finally:
            current.reset(token)
        if late is TimeoutError:
            return result
        return _waited(timer, result, lock, until if has_it else None)

    wait.__qualname__ = original.__qualname__
    return wait


# -- questions ---------------------------------------------------------------------------------------------------------

#: Answers a wait without a time limit: the scope, the object, the call as made, and the call without limit.
_Ask = Callable[[Scope, Any, Callable[[], Any], Callable[[], Any]], Any]


def _nothing(asked: object, answer: object) -> None:
    """Wait for nothing."""


def _is_set(scope: Scope, event: Any, at_once: Callable[[], Any], wait: Callable[[], Any]) -> Any:
    return scope.session.question(scope, "Event.is_set", at_once, lambda answer: _until_set(event, answer))


@contextmanager
def _as_a_whole() -> Iterator[None]:
    """What takes several locks in turn is one thing to the run, or nothing."""
    before, own.taking = own.taking, True
    try:
        yield
    finally:
        own.taking = before


def _is_free(scope: Scope, semaphore: Any, at_once: Callable[[], Any], wait: Callable[[], Any]) -> Any:
    # Only what comes of it is a part of the run: where it was not free, a replay does not even try.
    found = expected(semaphore._cond._lock, taken_by_caller(_getframe(2)))

    def whole(acquire: Callable[[], Any]) -> Any:
        with _as_a_whole():
            return acquire()

    return scope.session.question(
        scope,
        "Semaphore.acquire",
        lambda: _attempt(found, whole, at_once),
        lambda answer: answer and _take(found, whole, wait),
    )


def _is_done(scope: Scope, future: Any, at_once: Callable[[], Any], wait: Callable[[], Any]) -> Any:
    if _is_called_back_for(future):
        return at_once()
    return scope.session.question(scope, "Future.done", future.done, lambda answer: _until_done(future, answer))


def _until_set(event: Any, answer: object) -> None:
    if answer:
        event.wait()


def _until_ready(result: Any, answer: object) -> None:
    if answer:
        result.wait()


def _get_of_a_pool(original: Any, late: type[Exception], scope_of: _Scope) -> Any:
    """Wrap ``get`` of a result of ``multiprocessing.pool``, which reports in its own way that it is not there yet."""

    def get(self: Any, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0 or current.get() is None or not by_user() or (scope := scope_of()) is None:
            return original(self, timeout)
        session = scope.session
        if not session.question(scope, "ApplyResult.ready", self.ready, lambda answer: _until_ready(self, answer)):
            raise late
        return original(self)

    return get


def _until_done(future: Any, answer: object) -> None:
    if answer:
        with suppress(loaded("concurrent.futures._base").CancelledError):
            future.exception()  # also returns for one that is cancelled, and of which nobody has been notified


def _asked(original: Any, name: str, agree: Callable[[Any, Any], object], scope_of: _Scope) -> Any:
    def ask(self: Any) -> Any:
        if current.get() is None or not by_user() or _is_called_back_for(self):
            return original(self)
        scope = scope_of()
        if scope is None:
            return original(self)
        return scope.session.question(scope, name, lambda: original(self), lambda answer: agree(self, answer))

    ask.__qualname__ = original.__qualname__
    return ask


def _is_called_back_for(future: object) -> bool:
    """Return whether this thread is in a callback that reports ``future`` as done."""
    return any(one is future for one in own.called_back_for)


class _DoneCallback:
    """A future's callback. Inside it, asking whether the future is done or cancelled is not a question, whichever
    thread calls it: the one with the result, or one that adds the callback a moment later.

    The program's own has a lane, counted when it is added: a worker of a pool calls it after the submitted call, outside
    every context of the run.
    """

    __slots__ = ("_arguments", "_call", "_callback", "_options", "_programs")

    def __init__(self, callback: Any, scope: Scope | None) -> None:
        self._callback: Final = callback
        self._programs: Final = scope is not None
        enclosed = (callback, (), {}) if scope is None else handover.enclose(scope, callback, (), {})
        self._call, self._arguments, self._options = enclosed

    def __call__(self, future: Any) -> Any:
        before = own.called_back_for, own.calls_back
        own.called_back_for, own.calls_back = (*before[0], future), self._programs
        try:
            return self._call(*self._arguments, future, **self._options)
        finally:
            own.called_back_for, own.calls_back = before

    def __repr__(self) -> str:
        return repr(self._callback)


def _add_done_callback(original: Any) -> Any:
    def add_done_callback(self: Any, fn: Any) -> None:
        scope = current.get()
        original(self, fn if scope is None else _DoneCallback(fn, scope if of_the_program(_getframe(1)) else None))

    add_done_callback.__qualname__ = original.__qualname__
    return add_done_callback


def _cancel(original: Any, scope_of: _Scope) -> Any:
    """Capture that a thread no longer takes what it gets from an event loop. Whether that is in time is an event of the run; the
    loop does not set the result of such a future in a replay (``loops``)."""

    def cancel(self: Any) -> bool:
        handed = getattr(self, "_tracekit_handed", None)
        if handed is None or running_loop() is not None or _is_called_back_for(self) or (scope := scope_of()) is None:
            return original(self)  # type: ignore[no-any-return]
        turn = armed(scope, "Future.cancel", 0)
        if turn is not None and turn.live:
            return _cancelled(original, self, turn, handed)
        if (
            turn is not None
            and turn.comes
            and await_place(turn, scope.session.threads)
            and "given_up" not in turn.about
        ):
            _until_done(self, True)
        answer = bool(original(self))
        if answer and vars(self).pop("_tracekit_withheld", False):
            self.set_running_or_notify_cancel()  # as the loop does that finds it cancelled
        return answer

    cancel.__qualname__ = original.__qualname__
    return cancel


def _cancelled(original: Any, future: Any, turn: Any, handed: Any) -> bool:
    """Cancel a future and write whether that was in time, as one thing to whoever sets its result; then its callbacks are called."""
    with future._condition:
        vars(future)["_invoke_callbacks"] = _no_callbacks
        before = future._state
        try:
            answer = bool(original(future))
        finally:
            del vars(future)["_invoke_callbacks"]
        given_up = handed.identity() if answer else None
        turn.fired(None if given_up is None else {"given_up": given_up})
    if future._state != before:
        future._invoke_callbacks()
    return answer


def _no_callbacks() -> None:
    """Call no callbacks."""


def _of_simple_queues(kind: Any, scope_of: _Scope) -> list[ReversiblePatch]:
    def asked(name: str) -> ReversiblePatch:
        return MethodEntry(kind, name, lambda original: _asked(original, f"SimpleQueue.{name}", _nothing, scope_of))

    try:
        return [asked("qsize"), asked("empty")]
    except (Unsupported, KeyError):  # an interpreter that implements it differently
        return []


def _of_locks(scope_of: _Scope) -> list[ReversiblePatch]:
    """Return patches for ``acquire`` without or with a limit, and ``locked``."""

    def acquire(original: Any) -> Any:
        def acquire(self: Any, blocking: Any = True, timeout: Any = -1) -> Any:
            if current.get() is None:
                return original(self, blocking, timeout)
            if blocking is True and timeout == -1:
                if not followed.extended:  # nobody else can have it
                    return original(self)
                found = taking(self, taker(_getframe(1)))
                taken = original(self)
                _taken(found)
                return taken
            found = expected(self, taker(_getframe(1)))

            scope = scope_of() if by_user() else None
            if scope is not None:
                return scope.session.question(
                    scope,
                    "lock.acquire",
                    lambda: _attempt(found, original, self, blocking, timeout),
                    lambda answer: answer and _take(found, original, self),
                )
            if found is not None and found.passes:
                return _take(found, original, self)
            return _attempt(found, original, self, blocking, timeout)

        return acquire

    def locked(original: Any) -> Any:
        def locked(self: Any) -> Any:
            if current.get() is None or not by_user():
                return original(self)
            scope = scope_of()
            if scope is None:
                return original(self)
            return scope.session.question(
                scope, "lock.locked", lambda: original(self), lambda answer: None if answer else _until_free(self)
            )

        return locked

    def _until_free(lock: Any) -> None:
        with lock:
            pass

    asked = MethodEntry(LockType, "locked", locked)
    return [
        MethodEntry(LockType, "acquire", acquire),
        hooks.once(threading.Condition, "_is_owned", lambda original: _is_owned(original, asked.genuine)),
        asked,
        MethodEntry(RLock, "acquire", acquire),
        *([MethodEntry(RLock, "locked", locked)] if "locked" in vars(RLock) else []),  # from Python 3.14 on
    ]


def _is_owned(original: Any, locked: Any) -> Any:
    """Keep conditions from asking a question: they check that their lock is held, whenever somebody is notified."""

    def _is_owned(self: Any) -> Any:
        lock = self._lock
        return locked(lock) if type(lock) is LockType else original(self)

    _is_owned.__qualname__ = "Condition._is_owned"
    return _is_owned


# -- timers ------------------------------------------------------------------------------------------------------------
#
# Sleeps and deadlines of the run's own code: events of the run, logged when they fire.
#
# While recording they run on the real clock. A replay schedules nothing: a timer fires at once at its recorded place
# among the other events, and one that did not fire in the recording does not fire; what remains of it when the replay
# has ended passes in real time, since the recorded program waited on, too. Timers armed inside a live step (a tool's
# own back-off) are not the run's.

hooks: Final = Switch(lambda: _patches(), handover.handed_over_in)


def _patches() -> list[ReversiblePatch]:
    return [
        *_blocking_patches(),
        *hooks.made("sleep", lambda: [_sleep_patch()]),
        *handover.handover_patches(hooks, scope_of_timers),
    ]


# -- time.sleep --------------------------------------------------------------------------------------------------------


def _sleep_patch() -> ReversiblePatch:
    """Patch ``sleep`` in place if possible, so that references imported by name are covered; else the module's
    attribute."""
    bare = time.sleep  # noqa: TID251
    try:
        real = genuine(bare)
        repoint("sleep", real)
        return FunctionExchange(bare, lambda _proxy, seconds: _sleep(real, seconds))
    except (Unsupported, AttributeError):
        return AttributePatch(time, "sleep", lambda seconds: _sleep(bare, seconds))


def _sleep(real: Callable[[Any], None], seconds: Any) -> None:
    scope = scope_of_timers()
    if scope is None or not _positive(seconds):
        return real(seconds)
    if by_observer():
        return _beside(scope, real, seconds)  # type: ignore[no-any-return]
    timer = scope.session.arm(scope, "time.sleep", seconds)
    if not timer.live:
        timer.wait()
    if timer.live:
        real(seconds)
        timer.fired()
    return None


def _positive(seconds: Any) -> bool:
    try:
        return bool(seconds > 0)
    except TypeError:  # the real function reports the error
        return False
