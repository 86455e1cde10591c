"""What the threads of a replay are doing, and whether any of them can still move.

There is a single definition. A thread is

- *held*: the schedule holds it until the event that it asked for is next;
- *blocked*: it waits, without a time limit, for something that only another thread of this process can provide: a
  Python lock (and so a condition, an event, a future, a queue), the end of a thread, work for a pool. An event loop is
  blocked if it has nothing to run, no timer, and no file but the pipe with which threads wake it. If nothing outside
  the process takes part in the replay (``closed_off``), a thread that waits for pipes and sockets, as a server does, is
  blocked, too: what may arrive there is not what was recorded;
- otherwise *computing*: it runs, or waits for a processor, or is in native code that waits for something unknown (a
  sleep, a database's lock, a socket).

On Linux the kernel says which: what system call a thread is in, at which address or for which files it waits, and how
often it has run. The addresses of Python locks are known, so that a native library's mutex is not mistaken for one. On
other systems only waits visible in Python frames are recognised, and everything else counts as computing.

A held or blocked thread can only be moved by another one. So two looks at all threads, between which none has run, and
in which each is held or blocked, prove that nothing in the process can move.
"""

from __future__ import annotations

import ctypes
import gc
import os
import selectors
import signal
import struct
import sys
import threading
from _thread import LockType, RLock, allocate_lock, get_ident, get_native_id, start_new_thread
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import cache, lru_cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from .._reality import OwnLock, off_loop, own_threads, sleep, system
from .._sources import ASYNCIO, STDLIB, TRACEKIT, is_package, is_python, is_tracekit, is_user_code
from .callsite import is_user_frame
from .lane import Lane
from .process import has_children, process

if TYPE_CHECKING:
    from .session import SignalHooks

__all__ = [
    "MonitoredThread",
    "ThreadMonitor",
    "Waiting",
    "asleep",
    "child_processes",
    "others_run_user_code",
    "pipe_from_outside",
    "stopped_in_debugger",
]

_TASKS: Final = "/proc/self/task"
#: Whether the kernel says how often a thread has run.
_PRECISE: Final = os.path.exists(f"{_TASKS}/{os.getpid()}/schedstat")
_ASLEEP: Final = b"S"
#: Whether it says in which kernel function a thread sleeps; and its answers for a thread that runs or is runnable.
_WCHAN: Final = os.path.exists(f"{_TASKS}/{os.getpid()}/wchan")
_NOWHERE: Final = (b"0", b"")
_CLOSED: Final = (-1, -1, -1)
#: The system calls in which a native event loop waits, by machine, and the value that means no time limit.
_EPOLL: Final = {"x86_64": (232, 281), "aarch64": (22,)}.get(os.uname().machine if hasattr(os, "uname") else "", ())
_FOREVER: Final = 0xFFFFFFFF
#: The system calls with a timeout, by machine, and the position of that argument; ``None``: they always have one.
_LIMITED: Final[Mapping[int, int | None]] = {
    "x86_64": {35: None, 230: None, 219: None, 202: 4, 7: 3, 271: 3, 23: 5, 270: 5, 232: 4, 281: 4, 441: 4, 128: 3},
    "aarch64": {101: None, 115: None, 128: None, 98: 4, 73: 3, 72: 5, 22: 4, 441: 4, 137: 3},
}.get(os.uname().machine if hasattr(os, "uname") else "", {})
#: The system calls that wait for the end of a child process.
_WAITPID: Final = {"x86_64": (61, 247), "aarch64": (260, 95)}.get(
    os.uname().machine if hasattr(os, "uname") else "", ()
)
#: The system calls that read from or write to a file descriptor, which is their first argument.
_TRANSFERS: Final = {"x86_64": (0, 1, 19, 20), "aarch64": (63, 64, 65, 66)}.get(
    os.uname().machine if hasattr(os, "uname") else "", ()
)
#: The system calls that wait until a file descriptor, their first argument, has something (a connection, data).
_RECEIVES: Final = {"x86_64": (0, 19, 43, 45, 47, 288), "aarch64": (63, 65, 202, 207, 212, 242)}.get(
    os.uname().machine if hasattr(os, "uname") else "", ()
)
#: The system calls that wait for several descriptors, and how these are specified: ``epoll``, ``poll``, ``select``.
_POLLS: Final[Mapping[int, str]] = {
    "x86_64": {232: "epoll", 281: "epoll", 441: "epoll", 7: "poll", 271: "poll", 23: "select", 270: "select"},
    "aarch64": {22: "epoll", 441: "epoll", 73: "poll", 72: "select"},
}.get(os.uname().machine if hasattr(os, "uname") else "", {})
#: Functions of the standard library that block in a lock of this process and in nothing else, by file and name.
_WAITS: Final = frozenset(
    (file, name)
    for file, names in (
        (threading.__file__, ("wait", "join", "_wait_for_tstate_lock")),
        (os.path.join(STDLIB, "concurrent", "futures", "thread.py"), ("_worker",)),
    )
    for name in names
)
#: The function in which an asyncio event loop waits, by file and name.
_RUN_ONCE: Final = os.path.join(ASYNCIO, "base_events.py"), "_run_once"
#: A lower bound for the size of the interpreter's per-process state.
_INTERPRETER_SIZE: Final = 1 << 20


class Waiting(NamedTuple):
    """A task or thread that waits, its current line, and the function with which it sleeps, if it does."""

    who: str
    where: str
    sleep: str | None

    def __str__(self) -> str:
        return f"{self.who} at {self.where}{f', in {self.sleep}: no such sleep ended in the recording' if self.sleep else ''}"


#: Whether a sleeping thread, of which this was seen, can be moved only by things that don't matter.
_Waits = Callable[[int, "_Stack", object], bool]


#: What interrupts a main thread that is blocked forever. A program may have its own handler for the first signal, and
#: ignores it if a shell has put it into the background; the second has no default effect, and hardly any program uses
#: it.
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGURG) if hasattr(signal, "SIGURG") else (signal.SIGINT,)


def _arm() -> bool:
    """Make the second of ``_INTERRUPTS`` raise ``KeyboardInterrupt``, if it is unused and the calling thread may set
    handlers."""
    own = _INTERRUPTS[-1]
    if own is signal.SIGINT or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(own) is not signal.SIG_DFL:
        return False
    try:
        signal.signal(own, signal.default_int_handler)
    except ValueError:  # the main thread of a subinterpreter
        return False
    return True


def _disarm() -> bool:
    own = _INTERRUPTS[-1]
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(own) is signal.default_int_handler:
        signal.signal(own, signal.SIG_DFL)
    return True


class MonitoredThread:
    """One thread of a replay; ``held`` while the schedule holds it."""

    __slots__ = ("_files", "_opens_later", "held", "ident", "last", "native", "proven")

    def __init__(self, native: int, ident: int) -> None:
        self.native: Final = native
        self.ident: Final = ident
        self.held = False
        #: The latest look at it, and the look in which it was seen asleep twice in a row.
        self.last: object = None
        self.proven: object = None
        self._files: tuple[int, int, int] | None = None
        # The main thread's number is not reused while the process lives, so its files can be opened when they are
        # needed, which they mostly are not.
        self._opens_later = _PRECISE and native == os.getpid()
        if not self._opens_later:
            self._open()

    def _open(self) -> None:
        self._opens_later = False
        if _PRECISE:
            try:
                self._files = (
                    _open(self.native, "stat"),
                    _open(self.native, "schedstat"),
                    _open(self.native, "wchan") if _WCHAN else -1,
                )
            except OSError:  # it has ended already
                self._files = _CLOSED

    def look(self) -> object:
        """Return the thread's state: equal values mean that it has not run in between; ``True``: it runs; ``None``: it
        has ended."""
        if self._opens_later:
            self._open()
        if self._files is None:
            return _frame_of(self.ident)
        try:
            stat = system.pread(self._files[0], 256, 0)
            at = stat.rindex(b")") + 2
            state = stat[at : at + 1]
            if state == _ASLEEP:
                return system.pread(self._files[1], 64, 0)
            return None if state in (b"Z", b"X") else True
        except (OSError, ValueError):
            return None

    def sleeps_on(self) -> bool:
        """Return whether it is still in the sleep in which it was when ``proven``."""
        if self.proven is None or self._files is None:
            return False
        try:
            # A thread that has not run since is in that sleep, or waits for a processor and is then in no kernel
            # function. If the kernel does not say in which, its state is read, which takes longer.
            if not _WCHAN or system.pread(self._files[2], 64, 0) in _NOWHERE:
                return self.look() == self.proven
            return system.pread(self._files[1], 64, 0) == self.proven
        except OSError:
            return False

    def moved(self) -> None:
        """Note that the thread is about to be woken."""
        self.held = False
        self.proven = self.last = None

    def dismiss(self) -> None:
        files, self._files, self._opens_later = self._files, _CLOSED, False
        for file in files or ():
            if file >= 0:
                system.close(file)


class ThreadMonitor:
    """The threads of one replay. Methods called by hooks take ``lock`` themselves; all others are called with it held.

    ``solo`` is the ident of the only thread there is, or 0: a lone thread never has to wait. If threads may take part
    without being reported (``hooked`` is false), no thread is known to be alone. ``watch`` is called when some code may
    begin to wait for another thread or task: from then on somebody must notice when nothing can move any more.
    """

    def __init__(
        self, watch: Callable[[], object], failure: Callable[[], BaseException], *, hooked: bool = True
    ) -> None:
        self._watch: Final = watch
        self._failure: Final = failure
        self._hooked: Final = hooked
        #: Child processes from before the replay: they can't communicate with it, so they are like any other process.
        with off_loop():
            self._processes_before: Final = frozenset(child_processes())
        self.lock: Final = OwnLock()
        self._members: dict[int, MonitoredThread] = {}
        #: Threads being started, live steps, and wake-ups in progress: nothing counts as blocked meanwhile.
        self._moving = 0
        #: How often the replay has woken something.
        self.wakes = 0
        #: Whether calls were submitted to a pool, whose threads need not be members yet.
        self._pooled = False
        #: Whether threads were started, or calls submitted to pools, other than by the import of a library; and the
        #: threads started by imports.
        self._shared = False
        self._beside: Final[set[int]] = set()
        self.solo = 0
        #: The tasks of the run: named where they wait, cancelled when nothing can move and the replay has failed.
        self._tasks: Final[WeakSet[Any]] = WeakSet()
        #: The lanes of threads, and of calls in them, that have begun.
        self.lanes: Final[set[Lane]] = set()
        #: Those that the program started and that have not ended, until one of them was open while another lane, which
        #: it did not start, went on: from then on, threads of the program are ``overlapping``.
        self.running: Final[set[Lane]] = set()
        self.overlapping = False
        self._disbanded = self._left_failed = False
        #: The locks released because nothing can move and the replay has failed, and whether the main thread was
        #: interrupted.
        self._interrupted: Final[set[Any]] = set()
        self._main_interrupted = False
        #: Whether the handler of the signal that interrupts the main thread is ours, until the end.
        self._armed = _arm()
        #: The locks in which waits of the run wait: the thread, and whether the program's wait has a time limit.
        self._gates: Final[dict[Any, tuple[int, bool]]] = {}
        #: Whether the replay has failed but is not over: threads then really wait for one another, and nothing is
        #: ordered.
        self.failed = False
        #: Whether nothing outside this process takes part in the replay, in either direction.
        self.closed_off = False
        #: The calls of signal handlers that the replay repeats.
        self.signals: SignalHooks | None = None
        #: Python locks by the address at which the kernel sees a thread wait for them; kept alive so that the address
        #: stays theirs.
        self._locks: dict[int, Any] = {}
        self._strange: set[tuple[int, int]] = set()
        #: The function with which each thread sleeps that never woke from such a sleep in the recording.
        self._sleeps: Final[dict[int, str]] = {}

    @property
    def several(self) -> bool:
        """Whether another thread takes part, or did; a thread that a library started when it was imported does not
        count."""
        with self.lock:
            return self._shared or len(self._members.keys() - self._beside) > 1

    def join(self) -> MonitoredThread:
        """Make the calling thread take part from now on."""
        return self.add(get_native_id(), get_ident())

    def add(self, native: int, ident: int) -> MonitoredThread:
        member = self._members.get(native)
        if member is None or member.ident != ident:
            if member is not None:
                member.dismiss()
            member = self._members[native] = MonitoredThread(native, ident)
            self._count()
        return member

    # -- called by hooks -----------------------------------------------------------------------------------------------

    def launching(self) -> None:
        """The calling thread starts a thread; until ``launched`` nothing counts as blocked."""
        with self.lock:
            self.join()
            self._moving += 1
            self._count()
        self._watch()

    def launched(self, native: int | None, ident: int | None, *, beside: bool = False) -> None:
        """The thread has been started, or (``None``) could not be; ``beside``: by the import of a library."""
        with self.lock:
            if native is not None and ident is not None:
                self.add(native, ident)
                if beside:
                    self._beside.add(native)
                else:
                    self._shared = True
            self._moving -= 1
            self._count()

    def away(self) -> None:
        """A thread does something in the real world (a step that is live in a replay, a debugger) until ``back``."""
        self.launching()

    def back(self) -> None:
        self.launched(None, None)

    def debugged(self) -> bool:
        """Return whether a thread of the process is stopped in a debugger, for an unknown time."""
        return stopped_in_debugger()

    def processes(self) -> None:
        """The calling thread starts a process, for which somebody may begin to wait."""
        with self.lock:
            self.join()
        self._watch()

    def submitted(self, *, beside: bool = False) -> None:
        """The calling thread submits a call to a pool: another thread will run it. ``beside``: during the import of a
        library."""
        with self.lock:
            self.join()
            self._pooled = True
            self._shared = self._shared or not beside
            self._count()
        self._watch()

    def begun(self, lane: Lane, *, beside: bool = False) -> None:
        """The calling thread begins a call submitted to a pool, or a thread's own, in this lane; ``beside``: for a
        library."""
        with self.lock:
            self.join()
            self.lanes.add(lane)
            if not (beside or self.overlapping):
                self.running.add(lane)

    def acts(self, lane: Lane) -> None:
        """Something captured is done in ``lane``, while threads are ``running``."""
        with self.lock:
            above = {lane}
            if self.running <= above:  # mostly there is one
                return
            outer = lane.parent
            while outer is not None:
                above.add(outer)
                outer = outer.parent
            self.running.difference_update([one for one in self.running if not one.open])
            if not self.running <= above:
                self.overlapping = True
                self.running.clear()

    def created(self, task: Any) -> None:
        """A task of the run was created, in the loop of the calling thread."""
        with self.lock:
            self.join()
            self._tasks.add(task)
        self._watch()

    def task(self, owner: int) -> Any:
        """Return the task of the run with this ``id()``, or ``None``."""
        return next((task for task in [*self._tasks] if id(task) == owner), None)

    def wait_in(self, gate: Any, *, limited: bool = False) -> None:
        """Wait until another thread releases ``gate``. Raises the replay's failure once it has failed and nothing can
        move.

        ``limited``: the wait has a time limit; it returns when the replay is over, and continues as a real one.
        """
        with self.lock:
            if self._left_failed:  # while the thread was on its way here
                raise self._failure()
            if self._disbanded and limited:
                return
            self._gates[gate] = self.join().native, limited
        self._watch()
        try:
            with off_loop():
                gate.acquire()
        finally:
            with self.lock:
                raises = gate in self._interrupted
                self._interrupted.discard(gate)
                self._gates.pop(gate, None)
        if raises:
            raise self._failure()

    def _count(self) -> None:
        alone = self._hooked and len(self._members) == 1 and not self._moving and not self._pooled
        self.solo = next(iter(self._members.values())).ident if alone else 0

    def holds(self, ident: int) -> bool:
        """Return whether the schedule holds the thread: a loop inside a call that does not await runs nothing
        meanwhile."""
        return any(member.ident == ident and member.held for member in self._members.values())

    def is_at_rest(self, ident: int) -> bool:
        """Return whether the thread is held, or still in the sleep in which it was ``settled``."""
        return any(one.ident == ident and (one.held or one.sleeps_on()) for one in self._members.values())

    def seen_of(self, ident: int) -> object | None:
        """Return the state of a thread that is asleep, ``None`` if it is not, or does not take part. Equal states mean
        that it has not run in between."""
        with self.lock:
            look = next((one.look() for one in self._members.values() if one.ident == ident), None)
        return None if look is True else look

    def waits(self, ident: int) -> bool:
        """When nothing moves: return whether the thread takes part, and is not held but waits for another one."""
        return any(member.ident == ident and not member.held for member in self._members.values())

    # -- waking --------------------------------------------------------------------------------------------------------

    def waking(self, member: MonitoredThread | None) -> None:
        """A held thread, or a loop, is about to be woken: nothing counts as blocked until ``woken``."""
        self._moving += 1
        self.wakes += 1
        if member is not None:
            member.moved()

    def woken(self) -> None:
        self._moving -= 1

    def interrupt(self) -> None:
        """Nothing can move, and the replay has failed: make a wait raise, or cancel the tasks and interrupt a blocked
        main thread.

        Of several waits, that of the youngest thread: older ones usually wait for it, and for what it does on its way
        out.
        """
        with self.lock:
            youngest = [*self._members][::-1]
            gates = sorted(self._gates, key=lambda gate: _place_in(youngest, self._gates[gate][0]))
            self._let_go(gates[:1])
        if gates:
            return
        tasks = [task for task in [*self._tasks] if not task.done()]
        for task in tasks:
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel, context=Context())
        number = next((one for one in _INTERRUPTS if signal.getsignal(one) is signal.default_int_handler), None)
        if tasks or number is None:
            return
        with self.lock:  # the end of the replay waits for this: a later caller is not interrupted
            main = threading.main_thread().ident
            blocked = any(member.ident == main and not member.held for member in self._members.values())
            if main is not None and blocked and not self._main_interrupted:
                self._main_interrupted = True
                signal.pthread_kill(main, number)

    def end_waits(self) -> None:
        """Make all waits raise: the replay failed long ago, whatever may still move."""
        with self.lock:
            self._let_go([*self._gates])

    def _let_go(self, gates: Iterable[Any]) -> None:
        """Make waits raise the failure of the replay."""
        for gate in gates:
            del self._gates[gate]
            self._interrupted.add(gate)
            _release(gate)

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def asleep(self, me: MonitoredThread | None) -> bool:
        """Return whether all others are still in the sleep that ``none_runs`` saw, with a single look at each."""
        if self._moving:
            return False
        for member in self._members.values():
            if member is me or member.held:
                continue
            if not member.sleeps_on():
                return False
        return True

    def none_runs(self, *, but: int = 0) -> bool:
        """Return whether no thread of the run (except ``but``) has had a processor since the last call, or wants one.

        A thread that sleeps in native code does not run, and yet may move: this only says that a short wait would gain
        nothing.
        """
        if self._moving:
            return False
        resting, gone = True, []
        for member in self._members.values():
            look = member.look()
            if look is None:
                gone.append(member)
            elif not member.held and member.native != but:
                same = look is not True and look == member.last
                member.last, member.proven = look, look if same else None
                resting &= same
        for member in gone:
            del self._members[member.native]
            member.dismiss()
        if gone:
            self._count()
        return resting and not gone  # one that has ended has run, and may have woken one that was looked at before

    def blocked(self) -> bool:
        """Return whether nothing in this process can move by itself: each thread is held or blocked, and none has run
        since."""
        return self._rest(self._waits_here) is not None

    def left_to_others(self) -> bool:
        """Return whether no thread of the run can move by itself, so that only others may make it go on."""
        return self._rest(self._waits_here, ours_only=True) is not None

    def at_rest(self, *, by_processes: bool = False) -> object | None:
        """Return the states of the run's threads if nothing in this process can move by itself, else ``None``. Equal
        results, at whatever times, mean that none has run in between.

        With ``by_processes``, threads also rest if they are moved only by the end of a child process, by data through a
        pipe to one, or (an event loop) by data from a pipe.
        """
        return self._rest(self._waits_beside_processes if by_processes else self._waits_for_us)

    def _rest(self, waits: _Waits, *, ours_only: bool = False) -> object | None:
        first = self._states(waits, ours_only)
        if first is None or first != self._states(waits, ours_only):
            return None
        ours, _ = first
        return self.wakes, ours

    def seen(self, but: Collection[int]) -> dict[int, object] | None:
        """Return the state of each thread that takes part, except these idents; ``None`` if one of them runs, or is
        about to.

        Equal results mean that none of them has run in between.
        """
        if self._moving:
            return None
        looks = {native: member.look() for native, member in self._members.items() if member.ident not in but}
        return None if any(look is True for look in looks.values()) else looks

    def _states(self, waits: _Waits, ours_only: bool) -> tuple[dict[int, object], dict[int, object]] | None:
        """Return the states of all threads that are not held, of those that take part and of others; ``None`` if one of
        them can move."""
        if self._moving or threading._limbo:  # type: ignore[attr-defined] # a thread that is being started has no frame yet
            return None
        ours_only = ours_only or self.failed  # what others may still bring does not undo a failure
        looks: dict[int, tuple[int, object]] = {}
        for native, ident in self._threads():
            member = self._members.get(native)
            if native in process.observers or (ours_only if member is None else member.held):
                continue
            look = _glance(native, ident) if member is None else member.look()
            if look is True:
                return None
            if look is not None:
                looks[native] = ident, look
        # Only now, when all are asleep: see ``_stacks``.
        stacks = _stacks()
        ours: dict[int, object] = {}
        others: dict[int, object] = {}
        for native, (ident, look) in looks.items():
            stack, takes_part = stacks.get(ident), native in self._members
            if stack is None:
                if takes_part:  # it is ending, or is in native code that has called Python
                    return None
                others[native] = look
                continue
            takes_part = takes_part or stack.of_user
            if (takes_part and ident == _main() and self._ends(stack)) or not (
                waits(native, stack, look)
                if takes_part
                else self._rests(native, stack, look)
                or (waits == self._waits_beside_processes and _waits_for_process(native, stack, look))
            ):
                return None
            (ours if takes_part else others)[native] = look
        return ours, others

    def _waits_here(self, native: int, stack: _Stack, look: object) -> bool:
        """Return whether a sleeping thread can be moved only by another thread of this process, or by things that no
        replay waits for."""
        return self._waits_for_us(native, stack, look) or (
            self.closed_off and child_processes() <= self._processes_before and _waits_for_files(native, stack, look)
        )

    def _waits_beside_processes(self, native: int, stack: _Stack, look: object) -> bool:
        """Return whether a sleeping thread can be moved only by other threads and processes of the run."""
        return self._waits_for_us(native, stack, look) or _waits_for_process(native, stack, look)

    def _ends(self, stack: _Stack) -> bool:
        """Return whether the main thread has reached its end, and only waits for threads that are not the run's."""
        return stack.ends and any(
            not thread.daemon and ident != _main() and thread.native_id not in self._members
            for ident, thread in _known_threads()
        )

    def _threads(self) -> Iterator[tuple[int, int]]:
        """Yield all threads except the calling one, as native id and ident."""
        here = get_native_id()
        natives = {ident: thread.native_id for ident, thread in _known_threads()}
        natives.update((member.ident, member.native) for member in self._members.values())
        if not _PRECISE:
            yield from ((native, ident) for ident, native in natives.items() if native and native != here)
            return
        idents = {native: ident for ident, native in natives.items()}
        for name in system.listdir(_TASKS):
            native = int(name)
            if native != here:
                yield native, idents.get(native, 0)

    def _waits_for_us(self, native: int, stack: _Stack, look: object) -> bool:
        """Return whether a sleeping thread can be moved only by another thread of this process."""
        if stack.loop is not None and len(_watched(stack.loop)) <= 1:
            call = _call(native) if _PRECISE else [0]
            return bool(call) and call[0] != _futex() and (not _PRECISE or _glance(native) == look)
        code = stack.code
        by_frame = (code.co_filename, code.co_name) in _WAITS or code.co_filename.startswith(TRACEKIT)
        if not _PRECISE or not _futex():
            return by_frame and stack.waits
        call = _call(native)
        if _glance(native) != look or len(call) < 5:
            return False
        if call[0] in _EPOLL and call[4] & _FOREVER == _FOREVER and _polls_nothing(call[1]):
            return True
        if call[0] != _futex() or call[4] != 0:
            return False
        if self._is_of_who_looks(call[1]) or (_interpreter() and _is_of_interpreter(call[1])):
            return False  # it gets the lock as soon as its holder goes on, wherever in our code it waits
        return by_frame or self._is_lock(call[1])

    def _rests(self, native: int, stack: _Stack, look: object) -> bool:
        """Return whether a library's thread that does not belong to the run sleeps for reasons of its own: not for the
        interpreter, nor for us."""
        if not _PRECISE or not _futex():
            return stack.code.co_name != "_worker" or stack.waits
        call = _call(native)
        if _glance(native) != look or not call:
            return False
        if call[0] != _futex() or len(call) < 5:
            return True
        if self._is_of_who_looks(call[1]):
            return False
        return call[4] == 0 or self._is_lock(call[1]) or not _is_of_interpreter(call[1])

    def _is_of_who_looks(self, address: int) -> bool:
        """Return whether a thread that waits there waits for a thread that observes it: for this replay, or another one
        in this process."""
        wanted = _wanted(address)
        return any(lock is not None and _address(lock) in wanted for lock in (self.lock, *process.observers.values()))

    def _is_lock(self, address: int) -> bool:
        """Return whether a thread that waits at ``address`` waits for a Python lock."""
        wanted = _wanted(address)
        if self._locks.keys().isdisjoint(wanted) and wanted not in self._strange:
            # Not ``get_objects``: a tuple that another thread is just filling must not be referenced by anybody else.
            kinds = _lock_types()
            self._locks = {_address(one): one for one in gc.get_referrers(*kinds) if type(one) in kinds}
            if self._locks.keys().isdisjoint(wanted):
                self._strange.add(wanted)
        return not self._locks.keys().isdisjoint(wanted)

    # -- for people ----------------------------------------------------------------------------------------------------

    def waiting(self) -> list[Waiting]:
        """Return each waiting task and thread of the run, with its line in the user's code."""
        found = [
            Waiting(f"task {task.get_name()!r} ({_qualname(task.get_coro())})", line, _sleep_of(task.get_coro()))
            for task in sorted((task for task in [*self._tasks] if not task.done()), key=lambda task: task.get_name())
            if (line := _line_of_task(task)) is not None
        ]
        frames, threads = _frames(), dict(_known_threads())
        for member in self._members.values():
            frame = frames.get(member.ident)
            if frame is None or (found and (loop := _resting_loop(frame)) is not None and len(_watched(loop)) <= 1):
                continue
            name = threads[member.ident].name if member.ident in threads else str(member.native)
            found.append(Waiting(f"thread {name!r}", _line_or_nearest(frame), self._sleeps.get(member.ident)))
        return found

    @contextmanager
    def sleeping(self, sleep: str) -> Iterator[None]:
        """A block in which the calling thread sleeps with this function."""
        ident = get_ident()
        self._sleeps[ident] = sleep
        try:
            yield
        finally:
            del self._sleeps[ident]

    def others(self) -> list[Waiting]:
        """Return the threads that don't belong to the run but run user code, each with its line."""
        frames = _frames()
        return [
            Waiting(f"thread {thread.name!r}, which is not one of the run's,", line, None)
            for ident, thread in _known_threads()
            if thread.native_id not in self._members
            and thread.native_id not in process.observers
            and (line := _line(frames[ident]) if ident in frames else None) is not None
        ]

    def disband(self, *, wake: bool = True) -> None:
        """End monitoring: the replay is over. If it has failed, waits raise that; otherwise waits with a limit return,
        to continue as real ones.

        Without ``wake``, no wait ends.
        """
        for member in self._members.values():
            member.dismiss()
        self._disbanded = True
        self._members.clear()
        if not wake:
            self._gates.clear()
        if self.failed:
            self._let_go([*self._gates])
            self.failed, self._left_failed = False, True
        for gate in [gate for gate, (_, limited) in self._gates.items() if limited]:
            _release(gate)
        self._gates.clear()
        self._locks.clear()
        self.solo = 0
        if self._armed:
            self._armed = not _disarm()


def asleep(but: Collection[int]) -> tuple[list[Any], bool] | None:
    """Return the states of this process's threads, except these, if all of them sleep; ``None`` if one runs, or may
    begin to.

    Equal results mean that none has run in between. The second part says that no thread of the program sleeps with a
    time limit, so that only something from outside can wake one.
    """
    if threading._limbo:  # type: ignore[attr-defined]  # one is being started
        return None
    idents = {thread.native_id: ident for ident, thread in _known_threads()}
    looks: dict[int, object] = {}
    here = get_native_id()
    for name in sorted(system.listdir(_TASKS)):
        native = int(name)
        if native in but or native == here:
            continue
        look = _glance(native)
        if look is True:  # also an observer's: somebody may wait for what it holds
            return None
        if look is not None and native not in process.observers:
            looks[native] = look
    stacks = _stacks()
    endless = True
    for native in looks:
        stack = stacks.get(idents.get(native, 0))
        endless &= not (stack is None or stack.of_user) or not _is_limited(native)
    return [[native, str(look)] for native, look in looks.items()], endless


class _Stack(NamedTuple):
    """What a thread's frames reveal."""

    #: The code of the innermost function.
    code: CodeType
    #: Whether it runs user code: what a library does by itself causes nothing in the run.
    of_user: bool
    #: Whether it is stopped in a debugger.
    debugged: bool
    #: Whether it is the main thread at interpreter shutdown.
    ends: bool
    #: The standard library event loop that waits in it without a time limit and with nothing to run.
    loop: Any
    #: The selector with which it waits for files.
    selector: Any
    #: Whether a wait of the standard library, without a time limit, waits in it for something that has not happened;
    #: determined only if the kernel does not say.
    waits: bool


def _stacks() -> dict[int, _Stack]:
    """Return what the frames of all threads reveal, by ident.

    A reference to a frame keeps alive all of its function's locals, and those of its callers: if the function returns
    meanwhile, its objects live on, which a program may notice (a database cursor that stays open). So no frame leaves
    this function, nothing in here lets another thread run, and it is called only when all are asleep.
    """
    by_frame = not _PRECISE or not _futex()
    return {ident: _stack(frame, by_frame) for ident, frame in _frames().items()}


def _frames() -> dict[int, FrameType]:
    """Return the frames of all other threads, by ident. Including the caller's frame would create a reference cycle."""
    frames = sys._current_frames()
    del frames[get_ident()]
    return frames


def _stack(frame: FrameType, by_frame: bool) -> _Stack:
    of_user = debugged = ends = False
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        of_user = of_user or is_user_code(code.co_filename)
        debugged = debugged or _is_debugger(code.co_filename)
        ends = ends or code is threading._shutdown.__code__  # type: ignore[attr-defined]
        at = at.f_back
    selector = frame.f_locals["self"] if _selects(frame) else None
    waits = by_frame and _waits_by_its_frame(frame)
    return _Stack(frame.f_code, of_user, debugged, ends, _resting_loop(frame), selector, waits)


def _waits_for_files(native: int, stack: _Stack, look: object) -> bool:
    """Return whether a sleeping thread waits, without a time limit, for pipes and sockets."""
    call = _call(native)
    if len(call) < 5:
        return False
    files: Collection[int] = ()
    try:
        if call[0] in _RECEIVES:
            files = () if _gives_up(call[1]) else (call[1],)
        elif not _is_limited(native):
            kind = _POLLS.get(call[0])
            files = _epolled(call[1]) if kind == "epoll" else _polled(call) if kind else ()
    except (OSError, ValueError):
        return False
    if not files or stack.debugged or not all(map(_is_pipe_or_socket, files)):
        return False
    return _glance(native) == look


def _is_pipe_or_socket(fd: int) -> bool:
    """Not standard input: somebody may type something."""
    name = "" if fd == 0 else os.readlink(f"/proc/self/fd/{fd}")
    return name in ("anon_inode:[eventfd]", "anon_inode:inotify") or name.startswith(("pipe:", "socket:"))


def _gives_up(fd: int) -> bool:
    """Return whether a socket has a receive timeout."""
    if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
        return False
    import _socket  # a process with sockets has it loaded

    copy = _socket.socket(fileno=os.dup(fd))
    try:
        return any(copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, 16))
    finally:
        copy.close()


def _epolled(epoll: int) -> list[int]:
    """Return the descriptors that an ``epoll`` waits for."""
    lines = _contents(f"/proc/self/fdinfo/{epoll}").decode().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


def _polled(call: Sequence[int]) -> list[int]:
    """Return the descriptors that a ``poll`` or ``select`` waits for: its arguments, in the memory of this process."""
    if _POLLS[call[0]] == "poll":
        found = (struct.unpack_from("=iHH", _memory(call[1], 8 * call[2]), 8 * i)[0] for i in range(call[2]))
        return [fd for fd in found if fd >= 0]
    size = (call[1] + 63) // 64 * 8
    wanted = [_memory(at, size) for at in call[2:5] if at]
    return [fd for fd in range(call[1]) if any(bits[fd // 8] >> fd % 8 & 1 for bits in wanted)]


def _memory(at: int, size: int) -> bytes:
    """Read a piece of this process's memory through the kernel, since it may be gone by now."""
    file = system.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return system.pread(file, size, at)
    finally:
        system.close(file)


def stopped_in_debugger() -> bool:
    """Return whether a thread of the process is stopped in a debugger, for an unknown time."""
    return any(map(_in_debugger, sys._current_frames().values()))


def _in_debugger(frame: FrameType | None) -> bool:
    """Return whether a thread is stopped in a debugger."""
    while frame is not None and not _is_debugger(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


#: Where a program stops whose steps are being debugged.
_OWN_DEBUGGER: Final = os.path.join(TRACEKIT, "_runs", "debugging.py")


@lru_cache(4096)
def _is_debugger(name: str) -> bool:
    return os.path.basename(name) in ("bdb.py", "pdb.py") or "pydev" in name or name == _OWN_DEBUGGER


def _waits_for_process(native: int, stack: _Stack, look: object) -> bool:
    """Return whether a sleeping thread can be moved only by another process."""
    call = _call(native)
    if not call or _glance(native) != look:
        return False
    if call[0] in _WAITPID:
        return True
    if call[0] in _TRANSFERS:
        return len(call) > 1 and _leads_below(call[1])
    if stack.selector is not None and call[0] != _futex() and not _is_limited(native):  # as ``communicate`` does
        files = _registered(stack.selector)
        if files and all(map(_leads_below, files)):
            return True
    return stack.loop is not None and call[0] != _futex() and all(map(_is_pipe, _watched(stack.loop)))


def _is_pipe(fd: int) -> bool:
    """Return whether the other end of a descriptor is in a process of this machine, if anywhere: a pipe, or a socket
    without a name."""
    try:
        kind, _, inode = os.readlink(f"/proc/self/fd/{fd}").partition(":")
        return kind in ("pipe", "anon_inode") or (kind == "socket" and _is_nameless(inode.strip("[]")))
    except OSError:
        return False


def _leads_below(fd: int) -> bool:
    """Return whether a descriptor is one end of a pipe whose other end a child process holds."""
    try:
        pipe, writes = os.readlink(f"/proc/self/fd/{fd}"), _writes("self", str(fd))
        return pipe.startswith("pipe:") and any(_holds(child, pipe, not writes) for child in child_processes())
    except (OSError, ValueError):
        return False


def pipe_from_outside(fd: int) -> str | None:
    """Return the name of a pipe, if neither this process nor one below it has its other end; ``None``, too, where that
    can't be seen."""
    with suppress(OSError, ValueError):
        pipe = os.readlink(f"/proc/self/fd/{fd}")
        processes: list[int | str] = ["self", *child_processes()]
        if not any(_holds(process, pipe, writes=True) for process in processes):
            return pipe
    return None


def others_run_user_code() -> bool:
    """Return whether user code runs, or waits, in another thread of this process."""
    stacks, here = _stacks(), get_ident()
    return any(ident != here and ident in stacks and stacks[ident].of_user for ident, _ in _known_threads())


def child_processes() -> set[int]:
    """Return the child processes of all threads of this process that still exist, including zombies."""
    found: set[int] = set()
    for task in system.listdir(_TASKS) if _PRECISE and has_children() else ():
        with suppress(OSError):  # that thread has ended
            found.update(map(int, _contents(f"{_TASKS}/{task}/children").split()))
    return found


def _holds(pid: int | str, pipe: str, writes: bool) -> bool:
    with suppress(OSError):  # that process has ended
        for fd in system.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it has just closed it
                if os.readlink(f"/proc/{pid}/fd/{fd}") == pipe and _writes(pid, fd) == writes:
                    return True
    return False


def _writes(pid: int | str, fd: str) -> bool:
    """Return whether a descriptor was opened for writing."""
    info = dict(line.split(":", 1) for line in _contents(f"/proc/{pid}/fdinfo/{fd}").decode().splitlines())
    return int(info["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


def _is_endless(limit: int) -> bool:
    """Return whether a time limit means none: a null pointer, or a negative number of milliseconds."""
    return limit == 0 or limit & _FOREVER == _FOREVER


def _is_limited(native: int) -> bool:
    """Return whether a thread is in a system call with a time limit; true if that can't be seen."""
    call = _call(native)
    if not call:
        return True
    at = _LIMITED.get(call[0], 0)
    return at is None or (at > 0 and (len(call) <= at or not _is_endless(call[at])))


def _release(gate: Any) -> None:
    with suppress(RuntimeError):  # somebody else has released it
        gate.release()


def _place_in(natives: Sequence[int], native: int) -> int:
    return natives.index(native) if native in natives else len(natives)


def _main() -> int | None:
    return threading.main_thread().ident


def _frame_of(ident: int) -> object:
    frame = _frames().get(ident)
    return None if frame is None else (id(frame), frame.f_lasti)


def _open(native: int, name: str) -> int:
    return system.open(f"{_TASKS}/{native}/{name}", os.O_RDONLY | os.O_CLOEXEC)


def _read(native: int, name: str) -> bytes:
    file = _open(native, name)
    try:
        return system.read(file, 512)
    finally:
        system.close(file)


def _glance(native: int, ident: int = 0) -> object:
    """Like ``MonitoredThread.look``, for any thread."""
    if not _PRECISE:
        return _frame_of(ident)
    try:
        stat = _read(native, "stat")
        state = stat[stat.rindex(b")") + 2 :][:1]
        if state in (b"Z", b"X"):
            return None
        return _read(native, "schedstat") if state == _ASLEEP else True
    except (OSError, ValueError):
        return None


def _call(native: int) -> list[int]:
    """Return the number and the arguments of the system call that a thread is in; empty if it runs."""
    try:
        return [int(word, 0) for word in _read(native, "syscall").split()]
    except (OSError, ValueError):
        return []


# A thread waits for a Python lock at a semaphore. Up to Python 3.13 the semaphore belongs to the lock, whose first field
# points to it. From 3.14 on (SimpleQueue: 3.13) the thread is *parked*: the semaphore is on its own stack, and the word
# before it is the address of the lock's first field (``struct wait_entry`` in CPython's Python/parking_lot.c). Which of
# the two applies is found out once for each type, with a thread that waits.

_WORD: Final = ctypes.sizeof(ctypes.c_void_p)


def _address(lock: Any) -> int:
    """Return the address that ``_wanted`` contains for a thread that waits for this lock."""
    field = id(lock) + object.__basicsize__
    kind: Any = RLock if isinstance(lock, OwnLock) else type(lock)
    found: int | None = field if _wait_for(kind).parked else ctypes.c_void_p.from_address(field).value
    return found or 0


def _wanted(address: int) -> tuple[int, int]:
    """Return the two addresses that identify what a thread waiting at ``address`` waits for: ``address`` itself, and
    the one that the thread is parked for, if it is."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:  # the kernel checks the address
            return address, int.from_bytes(os.pread(memory.fileno(), _WORD, address - _WORD), sys.byteorder)
    except (OSError, OverflowError):
        return address, 0


def _is_of_interpreter(address: int) -> bool:
    """Return whether a thread that waits there may be waiting for the interpreter."""
    begin = _interpreter()
    return not begin or begin <= address < begin + _INTERPRETER_SIZE


@cache
def _interpreter() -> int:
    """Return the address of the interpreter's per-process state, or 0."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except (AttributeError, ValueError):
        return 0


def _lock_types() -> tuple[type, ...]:
    """Return the types whose objects the kernel shows a thread to wait for, provided that it does so for locks."""
    queue = getattr(sys.modules.get("_queue"), "SimpleQueue", None)
    return (LockType, RLock, queue) if queue is not None and _wait_for(queue).call else (LockType, RLock)


def _futex() -> int:
    """Return the number of the system call in which a thread waits for a Python lock; 0 if it doesn't show which lock."""
    kinds: tuple[Any, ...] = (LockType, RLock)
    found = {_wait_for(kind).call for kind in kinds}
    return found.pop() if len(found) == 1 else 0


class _Wait(NamedTuple):
    """How the kernel shows a thread that waits for an object of a type."""

    #: The number of the system call; 0 if it doesn't show the object.
    call: int
    #: Whether the thread is parked for the first field of the object.
    parked: bool


@cache
@off_loop()
def _wait_for(kind: Any) -> _Wait:
    """Find out how a thread waits for an object of this type: for a lock, or for an item of an empty queue."""
    wanted: Any = allocate_lock() if kind is LockType else kind()
    is_lock = kind in (LockType, RLock)
    if is_lock:
        wanted.acquire()
    natives: list[int] = []
    start_new_thread(_take if is_lock else _get_from, (natives, wanted))
    try:
        return _seen_wait(natives, wanted)
    finally:
        if is_lock:
            wanted.release()
        else:
            wanted.put(None)


def _seen_wait(natives: list[int], wanted: Any) -> _Wait:
    """Observe how a thread, whose number appears in ``natives``, waits for ``wanted``."""
    field = id(wanted) + object.__basicsize__
    before: object = None
    while True:
        look = _glance(natives[0]) if natives else True
        call = [] if look is True else _call(natives[0])
        if len(call) > 4:
            at, parked_for = _wanted(call[1])
            if parked_for == field:
                return _Wait(call[0], True)
            if at == ctypes.c_void_p.from_address(field).value:
                return _Wait(call[0], False)
        # A thread that sleeps with a time limit waits for the interpreter and will get it; otherwise this system does
        # not reveal where it waits.
        if look is not True and look == before and (len(call) < 5 or call[4] == 0):
            return _Wait(0, False)
        before = look
        sleep(0.001)


def _get_from(natives: list[int], queue: Any) -> None:
    natives.append(get_native_id())
    queue.get()


def _take(natives: list[int], lock: Any) -> None:
    natives.append(get_native_id())
    with lock:
        pass


def _waits_by_its_frame(frame: FrameType) -> bool:
    """For systems without kernel information: return whether a wait of the standard library, without a time limit,
    waits for something that has not happened."""
    names = frame.f_locals
    if frame.f_code.co_name == "_worker":
        return bool(names["work_queue"].empty())
    if frame.f_code.co_name == "acquire":
        return names["timeout"] == -1 and bool(names["self"].locked())
    if names.get("timeout") is not None:
        return False
    if "waiter" in names:
        return bool(names["waiter"].locked())
    if "gate" in names:
        return bool(names["gate"].locked())
    return frame.f_code.co_name == "join" and bool(names["self"].is_alive())


def _watched(loop: Any) -> Collection[int]:
    """Return the descriptors that a standard library loop waits for; for one that is just being closed, some
    meaningless ones."""
    return (-1, -1) if loop._selector is None else _registered(loop._selector) or (-1, -1)


def _registered(selector: Any) -> list[int]:
    """Return the descriptors that a selector waits for at present: its thread may change them at any time. Empty if it
    is closed."""
    found = selector.get_map()
    return [] if found is None else list(found._selector._fd_to_key)


def _selects(frame: FrameType) -> bool:
    return frame.f_code.co_name == "select" and frame.f_code.co_filename == selectors.__file__


def _resting_loop(frame: FrameType) -> Any:
    """Return the standard library event loop that waits in ``frame`` without a time limit and with nothing to run, or
    ``None``."""
    if not _selects(frame):
        return None
    caller: FrameType | None = frame
    for _ in range(3):
        caller = None if caller is None else caller.f_back
        if caller is not None and (caller.f_code.co_filename, caller.f_code.co_name) == _RUN_ONCE:
            break
    else:
        return None
    assert caller is not None
    loop: Any = caller.f_locals["self"]
    if (
        caller.f_locals["timeout"] is not None
        or loop._ready
        or loop._stopping
        or any(not handle._cancelled for handle in loop._scheduled)
    ):
        return None
    return loop


def _is_nameless(*inodes: str) -> bool:
    """Return whether these sockets belong to socket pairs: UNIX sockets without a name."""
    lines = _contents("/proc/self/net/unix").decode("utf-8", "replace").splitlines() if inodes else []
    return {line.split()[6] for line in lines[1:] if len(line.split()) == 7}.issuperset(inodes)


def _polls_nothing(epoll: int) -> bool:
    """Return whether a native event loop (uvloop) watches nothing but its wake-up: at most an eventfd, a pipe, a socket
    pair."""
    try:
        info = _contents(f"/proc/self/fdinfo/{epoll}").decode()
        found = [
            os.readlink(f"/proc/self/fd/{line.split()[1]}") for line in info.splitlines() if line.startswith("tfd:")
        ]
        kinds = [name.partition("[")[0] for name in found]
        sockets = [name.partition("[")[2].rstrip("]") for name in found if name.startswith("socket:")]
        if len(kinds) != len(set(kinds)) or not {*kinds} <= {"anon_inode:", "pipe:", "socket:"}:
            return False
        if "anon_inode:[eventfd]" not in found:
            return False
        return _is_nameless(*sockets)
    except (OSError, ValueError, IndexError):
        return False


def _contents(path: str) -> bytes:
    file = system.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := system.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        system.close(file)


def _known_threads() -> list[tuple[int, Any]]:
    """Return the threads known to ``threading``, by ident, without taking its lock, which an observed thread may hold;
    and tracekit's own."""
    return [*threading._active.copy().items(), *own_threads.copy().items()]  # type: ignore[attr-defined]


def _line(frame: FrameType | None) -> str | None:
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return None if frame is None else _place(frame)


def _line_or_nearest(frame: FrameType) -> str:
    """Return the line that a thread is at; see ``_most_telling``."""
    frames = [frame]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    return _place(_most_telling(frames))


def _most_telling(frames: Sequence[FrameType]) -> FrameType:
    """Return, of these frames (innermost first), that of user code; else that of a package, or else one that is not
    tracekit's."""
    kinds: list[Callable[[FrameType], bool]] = [
        is_user_frame,
        lambda frame: is_package(frame.f_code.co_filename),
        lambda frame: not is_tracekit(frame.f_code.co_filename),
    ]
    for kind in kinds:
        for frame in frames:
            if kind(frame):
                return frame
    return frames[0]


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _line_of_task(task: Any) -> str | None:
    """Return the line at which a task waits: that of its innermost coroutine in user code; see ``_most_telling``. If
    all belong to the standard library, that of the code that runs its loop."""
    frames = _frames_of(task.get_coro())
    if frames and all(is_python(frame.f_code.co_filename) for frame in frames):
        frame = _frames().get(getattr(task.get_loop(), "_thread_id", None) or 0)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    return _place(_most_telling(frames)) if frames else None


def _frames_of(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine and of those that it awaits, innermost first."""
    frames: list[FrameType] = []
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                frames.insert(0, frame)
                coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            break
    return frames


def _sleep_of(coroutine: Any) -> str | None:
    """Return the function with which a task sleeps; ``None`` if it waits for something else."""
    frame = next(iter(_frames_of(coroutine)), None)
    if frame is None or frame.f_code is not sys.modules["asyncio"].sleep.__code__:
        return None
    delay = frame.f_locals.get("delay")
    return f"asyncio.sleep({delay:g})" if isinstance(delay, (int, float)) else "asyncio.sleep"


def _qualname(coroutine: Any) -> str:
    return str(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))
