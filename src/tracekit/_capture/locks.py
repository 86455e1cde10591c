"""Captures in which order the threads of a run take a lock.

Where it passes from one thread to another, a replay passes it on in the same order.

Which thread takes a free lock first is decided by the operating system, and so is what threads see that share something
under a lock, a condition or an event (``Event.set``, ``Semaphore.release`` and ``Condition.wait`` all take the lock of a
``Condition``). What is taken in user code or in a package counts. Of the locks that the standard library takes, those count
that belong to an object of the program and under which its threads share something (``_SHARED``). The others do not: what
queues, pools and processes hand over is captured as such (``threads``), and what a module guards for itself (caches of
``re`` and ``strptime``, loggers by name, imports) is the same whoever comes first.

An entry is written only if another line of execution had the lock before: it says where that one had taken it. Under the
interpreter lock, threads that compute pass a lock on a few hundred times a second at most, and one thread that takes a lock
a million times writes nothing. (All tasks of an event loop are one line here: their order is captured already.)
"""

from __future__ import annotations

import os
import threading
from _thread import LockType, RLock
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from sys import _getframe
from types import FrameType
from typing import Any, Final
from weakref import ref

from .._journal.entry import LOCK_TAKEN
from .._reality import running_loop
from .._runtime.session import Scope, current
from .._sources import STDLIB
from .callers import of_the_program
from .in_place import MethodEntry, Unsupported
from .patch import ReversiblePatch, Switch
from .waits import armed, own, scope_of_timers

__all__ = ["Taking", "expected", "follow_locks", "hooks", "taken_by_caller", "taker", "taking"]

#: The module whose functions take locks on behalf of their callers.
_THREADING: Final = threading.__file__
_TRANSPARENT: Final = frozenset((_THREADING, __file__.replace("locks.py", "timers.py")))
#: The files of the standard library in which a lock of one of the program's own objects is taken, and how the names of the
#: functions begin that do so: what handlers write, which job comes first.
_SHARED: Final[Mapping[str, tuple[str, ...]]] = {
    os.path.join(STDLIB, *path): names
    for path, names in (
        (("logging", "__init__.py"), ("Handler.", "StreamHandler.", "FileHandler.")),
        (("logging", "handlers.py"), ("",)),
        (("sched.py",), ("scheduler.",)),
        (("zipfile.py",), ("ZipFile.",)),
        (("zipfile", "__init__.py"), ("ZipFile.",)),
    )
}
#: Code that is not itself the one on whose behalf it takes such a lock.
_PASSED_ON: Final = frozenset((_THREADING, *_SHARED))


class _Owner(ref[Any]):
    """A reference to a lock, with the line of execution that has taken it last, and where it did."""

    __slots__ = ("line", "me", "turn")

    me: int
    line: object
    turn: Any


class _Owners:
    """The owners of the locks of a run, from when it has several threads."""

    def __init__(self) -> None:
        self.followed = False
        self._found: Final[dict[int, _Owner]] = {}
        #: Those whose lock is gone. Added by C alone: what a signal handler raises in a callback would be lost.
        self._gone: Final[deque[_Owner]] = deque()

    def take(self, lock: Any, line: object, turn: Any) -> Any:
        """Note who has taken a lock now; return the turn of the one that had it before, if that was another."""
        if self._gone:
            self._forget()
        me = id(lock)
        owner = self._found.get(me)
        if owner is None or owner() is not lock:
            owner = _Owner(lock, self._gone.append)
            owner.me, owner.line, owner.turn = me, line, turn
            self._found[me] = owner
            return None
        before = None if owner.line == line else owner.turn
        owner.line, owner.turn = line, turn
        return before

    def _forget(self) -> None:
        found, gone = self._found, self._gone
        for _ in range(len(gone)):
            with suppress(IndexError):  # another thread was faster
                dead = gone.popleft()
                me = getattr(dead, "me", 0)  # a signal handler may have raised before it was added
                other = found.pop(me, dead)
                if other is not dead:  # of another lock, which is where that was
                    found.setdefault(me, other)


class Taking:
    """A lock that is about to be taken by the program."""

    __slots__ = ("_lock", "_scope", "_turn")

    def __init__(self, lock: Any, scope: Scope, turn: Any) -> None:
        self._lock: Final = lock
        self._scope: Final = scope
        self._turn: Final = turn

    @property
    def passes(self) -> bool:
        """Whether another thread had the lock before, in the recording that is replayed."""
        return bool(self._turn.comes)

    def await_turn(self) -> None:
        """In a replay, wait for the threads that took the lock before."""
        self._turn.await_lock()

    def taken(self) -> None:
        """The lock has been taken."""
        turn, lock = self._turn, self._lock
        turn.took_lock()
        loop = running_loop()
        line = self._scope.lane if loop is None else ref(loop)
        before = self._scope.session.state.extras.of(_Owners).take(lock, line, turn)
        if before is not None and turn.live:
            where = before.identity()
            if where is not None:
                turn.fired({"following": where})


def expected(lock: Any, frame: FrameType | None, *, at_once: bool = False) -> Taking | None:
    """Return what to report to if ``lock`` is taken, if code of ``frame`` would take it as a part of the run. It need not
    come to that: an attempt may fail, a limit expire.

    What a wait with a limit takes while it lasts is no part of the run: where the limit expired, a replay does not wait.
    What it has taken when it returns is. Nor does what is taken while a package is imported belong to the run: chance
    decides who does that.
    """
    if not hooks.extended or frame is None or own.limit is not None or own.taking or not of_the_program(frame):
        return None
    scope = scope_of_timers()
    if scope is None or scope.lane.imports or not scope.session.state.extras.of(_Owners).followed:
        return None
    turn = armed(scope, f"{LOCK_TAKEN}:{frame.f_code.co_qualname}", 0)
    if turn is None:
        return None
    if at_once:
        turn.await_lock()
    return Taking(lock, scope, turn)


#: Of a lock that is taken next: in a replay this waits for the threads that took it before.
taking: Final = partial(expected, at_once=True)


def taken_by_caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame on whose behalf the standard library takes the lock of a condition."""
    while frame is not None and frame.f_code.co_filename in _TRANSPARENT:
        frame = frame.f_back
    return frame


def taker(frame: FrameType) -> FrameType | None:
    """Return the frame on whose behalf the code of ``frame`` takes a lock: its own, or that of the caller of one of these
    parts of the standard library. If such a part is all that a thread runs (a ``QueueListener``), that is whoever handed
    it to the thread."""
    code = frame.f_code
    names = _SHARED.get(code.co_filename)
    if names is None or not code.co_qualname.startswith(names):
        return frame
    above: FrameType | None = frame
    while above is not None and above.f_code.co_filename in _PASSED_ON:
        above = above.f_back
    return above


# -- hooks -------------------------------------------------------------------------------------------------------------
#
# In place while a run that has started a thread is active: everybody else takes locks as ever.


def follow_locks(scope: Scope) -> None:
    """A thread is about to be started in ``scope``, or a call handed to one: from now on the order matters in which locks
    are taken in its run. What a step does inside, a replay does not do."""
    if not scope.live:
        owners = scope.session.state.extras.of(_Owners)
        if not owners.followed:
            owners.followed = True
            hooks.extend(_patches)


#: Those of the locks come with the first run that has several threads, and stay to the end of the last run.
hooks: Final = Switch()


def _patches() -> list[ReversiblePatch]:
    return [hooks.once(threading.Condition, "__enter__", _enter_condition), *hooks.made("locks", _entering)]


def _enter_condition(original: Any) -> Any:
    def __enter__(self: Any) -> Any:
        if current.get() is None:
            return original(self)
        found = taking(self._lock, taken_by_caller(_getframe(1)))
        entered = original(self)
        if found is not None:
            found.taken()
        return entered

    __enter__.__qualname__ = "Condition.__enter__"
    return __enter__


def _entering() -> list[ReversiblePatch]:
    def entering(genuine: Any, release: Any) -> Any:
        def __enter__(self: Any) -> Any:
            # A signal handler may raise as soon as the lock is taken, before anybody knows: so the same call of C that
            # takes it notes it.
            taken: list[Any] = []
            try:
                if current.get() is None or (frame := taker(_getframe(1))) is None or not of_the_program(frame):
                    taken.extend(map(genuine, (self,)))
                    return taken[0]
                found = taking(self, frame)
                taken.extend(map(genuine, (self,)))
                if found is not None:
                    found.taken()
                return taken[0]
            except BaseException:
                if taken:
                    release(self)
                raise

        return __enter__

    try:
        return [
            MethodEntry(kind, "__enter__", partial(entering, release=vars(kind)["release"]))
            for kind in (LockType, RLock)
        ]
    except (Unsupported, KeyError):  # an interpreter that implements them differently
        return []
