"""What the threads of a replay are doing, and whether any of them can still move.

There is one definition. A thread is

- *held*: the schedule holds it until the turn of what it asked for has come;
- *blocked*: it waits, without a time limit, for something that only another thread of this process can give it: a Python
  lock (and so a condition, an event, a future, a queue), the end of a thread, work for a pool. An event loop is blocked where it
  has nothing to run, no timer and no file but the pipe by which threads wake it. In a process whose replay nothing from outside
  has a part in (``closed_off``), a thread is blocked, too, that waits for pipes and sockets, as a server does: what may come there is
  not what was recorded;
- else it counts as *computing*: it runs, or it waits for a processor, or it is in native code of which nobody knows what it
  waits for (a sleep, a database's lock, a socket).

On Linux the kernel says which: what system call a thread is in, at which address or for which files it waits, and how often it
has run. The address of a Python lock is known, so that a mutex of some native library is not taken for one. On other systems only
waits that Python frames show are known, and everything else counts as computing.

A thread that is held or blocked is moved only by another one. So two looks at all threads between which none has run, and in
which each is held or blocked, prove that nothing in the process can move.
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

from .._reality import off_loop, own_threads, sleep, system
from .callsite import is_own, is_package, is_python, is_user_code, is_user_frame
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
    "in_debugger",
    "others_run_user_code",
]

_STDLIB: Final = os.path.dirname(os.__file__)
_TASKS: Final = "/proc/self/task"
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Whether the kernel says how often a thread has run.
_PRECISE: Final = os.path.exists(f"{_TASKS}/{os.getpid()}/schedstat")
_ASLEEP: Final = b"S"
#: Whether it says in which of its functions a thread is; and what that is of one that runs, or wants to.
_WCHAN: Final = os.path.exists(f"{_TASKS}/{os.getpid()}/wchan")
_NOWHERE: Final = (b"0", b"")
_CLOSED: Final = (-1, -1, -1)
#: The system calls in which a native event loop waits, by machine, and their time limit where there is none.
_EPOLL: Final = {"x86_64": (232, 281), "aarch64": (22,)}.get(os.uname().machine if hasattr(os, "uname") else "", ())
_FOREVER: Final = 0xFFFFFFFF
#: The system calls that end by the clock, by machine, and where their limit stands; ``None``: they have one always.
_LIMITED: Final[Mapping[int, int | None]] = {
    "x86_64": {35: None, 230: None, 219: None, 202: 4, 7: 3, 271: 3, 23: 5, 270: 5, 232: 4, 281: 4, 441: 4, 128: 3},
    "aarch64": {101: None, 115: None, 128: None, 98: 4, 73: 3, 72: 5, 22: 4, 441: 4, 137: 3},
}.get(os.uname().machine if hasattr(os, "uname") else "", {})
#: The system calls that wait for the end of a child process.
_WAITPID: Final = {"x86_64": (61, 247), "aarch64": (260, 95)}.get(
    os.uname().machine if hasattr(os, "uname") else "", ()
)
#: The system calls that read from a file descriptor, or write to one: their first argument.
_TRANSFERS: Final = {"x86_64": (0, 1, 19, 20), "aarch64": (63, 64, 65, 66)}.get(
    os.uname().machine if hasattr(os, "uname") else "", ()
)
#: Those that wait for one file descriptor to have something (a connection, data), their first argument.
_RECEIVES: Final = {"x86_64": (0, 19, 43, 45, 47, 288), "aarch64": (63, 65, 202, 207, 212, 242)}.get(
    os.uname().machine if hasattr(os, "uname") else "", ()
)
#: Those that wait for several, and how a thread says which: ``epoll``, ``poll``, ``select``.
_POLLS: Final[Mapping[int, str]] = {
    "x86_64": {232: "epoll", 281: "epoll", 441: "epoll", 7: "poll", 271: "poll", 23: "select", 270: "select"},
    "aarch64": {22: "epoll", 441: "epoll", 73: "poll", 72: "select"},
}.get(os.uname().machine if hasattr(os, "uname") else "", {})
#: Functions of the standard library that block in a lock of this process and in nothing else, by file and name.
_WAITS: Final = frozenset(
    (file, name)
    for file, names in (
        (threading.__file__, ("wait", "join", "_wait_for_tstate_lock")),
        (os.path.join(_STDLIB, "concurrent", "futures", "thread.py"), ("_worker",)),
    )
    for name in names
)
#: Where an event loop of asyncio waits, by file and name.
_RUN_ONCE: Final = os.path.join(_STDLIB, "asyncio", "base_events.py"), "_run_once"
#: No less than what the interpreter has once a process takes.
_INTERPRETER_SIZE: Final = 1 << 20


class Waiting(NamedTuple):
    """A task or thread that waits, the line that it is at, and the call by which it sleeps, where it does."""

    who: str
    where: str
    sleep: str | None

    def __str__(self) -> str:
        return f"{self.who} at {self.where}{f', in {self.sleep}: no such sleep ended in the recording' if self.sleep else ''}"


#: Whether a thread that is asleep, of which this was seen, can be moved only by what is no concern.
_Waits = Callable[[int, "_Stack", object], bool]


#: What interrupts a main thread that is blocked for ever. A program may have a handler of its own for the first, and one that a shell
#: has put into the background ignores it; the other does nothing by itself, and nearly nobody uses it.
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGURG) if hasattr(signal, "SIGURG") else (signal.SIGINT,)


def _arm() -> bool:
    """Make the second of ``_INTERRUPTS`` raise ``KeyboardInterrupt``, where it is nobody's and the calling thread may say so."""
    own = _INTERRUPTS[-1]
    if own is signal.SIGINT or threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(own) is not signal.SIG_DFL:
        return False
    try:
        signal.signal(own, signal.default_int_handler)
    except ValueError:  # a main thread of an interpreter beside the first
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
    """One thread of a replay: ``held`` while the schedule holds it."""

    __slots__ = ("_files", "_opens_later", "held", "ident", "last", "native", "proven")

    def __init__(self, native: int, ident: int) -> None:
        self.native: Final = native
        self.ident: Final = ident
        self.held = False
        #: The last look at it, and the one in which it was seen asleep twice in a row.
        self.last: object = None
        self.proven: object = None
        self._files: tuple[int, int, int] | None = None
        # The number of the main thread is nobody else's as long as the process lives: opened when somebody asks. Mostly nobody does.
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
        """Equal looks mean that it has not run in between; ``True``: it runs; ``None``: it has ended."""
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
        """Whether it is asleep as it was when it was ``proven`` to be."""
        if self.proven is None or self._files is None:
            return False
        try:
            # One that has not run since is in that sleep, or waits for a processor: then it is in no function of the kernel. Where the
            # kernel does not tell in which, its state is looked up, which takes longer.
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
    """The threads of one replay. What the hooks report takes ``lock`` by itself; all else is called with it held.

    ``solo`` is the ident of the only thread there is, or 0: what a lone thread asks for is never waited for. Where threads
    may take part that nobody reports (``hooked`` is false), no thread is known to be alone. ``watch`` is called
    when somebody may come to wait for another thread or task: from then on it is to be noticed where nothing can move any more.
    """

    def __init__(
        self, watch: Callable[[], object], failure: Callable[[], BaseException], *, hooked: bool = True
    ) -> None:
        self._watch: Final = watch
        self._failure: Final = failure
        self._hooked: Final = hooked
        #: Child processes from before the replay: it can't speak with them, so they are like any other process.
        with off_loop():
            self._processes_before: Final = frozenset(child_processes())
        self.lock: Final = RLock()
        self._members: dict[int, MonitoredThread] = {}
        #: Threads that are being started, live steps, and wake-ups under way: nothing is blocked meanwhile.
        self._moving = 0
        #: How often somebody was woken by the replay.
        self.wakes = 0
        #: Whether calls were handed to a pool, whose threads need not be members yet.
        self._pooled = False
        #: Whether threads were started, or calls handed to pools, but by the import of a library; and the threads that were started so.
        self._shared = False
        self._beside: Final[set[int]] = set()
        self.solo = 0
        #: The tasks of the run: named where they wait, cancelled where nothing can move and the replay has failed.
        self._tasks: Final[WeakSet[Any]] = WeakSet()
        #: The lanes of threads, and of calls in them, that have begun.
        self.lanes: Final[set[Lane]] = set()
        self._disbanded = self._left_failed = False
        #: The locks that were released because nothing can move and the replay has failed, and whether the main thread was interrupted.
        self._interrupted: Final[set[Any]] = set()
        self._main_interrupted = False
        #: Whether the signal that interrupts the main thread is ours, until the end.
        self._armed = _arm()
        #: The locks in which waits of the run wait: in which thread, and whether the program gave that a time limit.
        self._gates: Final[dict[Any, tuple[int, bool]]] = {}
        #: Whether the replay has failed, and is not over: threads wait for one another as they are, and nothing comes in an order.
        self.failed = False
        #: Whether nothing from outside this process has a part in the replay: it is reached by nobody, and reaches nobody.
        self.closed_off = False
        #: The calls of signal handlers that the replay brings about.
        self.signals: SignalHooks | None = None
        #: Python locks by the address at which the kernel sees somebody wait for them, kept so that it stays theirs.
        self._locks: dict[int, Any] = {}
        self._strange: set[int] = set()
        #: The call by which a thread sleeps, where it never woke up from such a sleep in the recording.
        self._sleeps: Final[dict[int, str]] = {}

    @property
    def several(self) -> bool:
        """Whether another thread takes part, or has: one that a library keeps since it was imported counts for none."""
        with self.lock:
            return self._shared or len(self._members.keys() - self._beside) > 1

    def join(self) -> MonitoredThread:
        """The calling thread takes part from now on."""
        return self.add(get_native_id(), get_ident())

    def add(self, native: int, ident: int) -> MonitoredThread:
        member = self._members.get(native)
        if member is None or member.ident != ident:
            if member is not None:
                member.dismiss()
            member = self._members[native] = MonitoredThread(native, ident)
            self._count()
        return member

    # -- what the hooks report -------------------------------------------------------------------------------------------

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
        """A thread goes out into the real world (a step that is live in a replay, a debugger) until ``back``."""
        self.launching()

    def back(self) -> None:
        self.launched(None, None)

    def debugged(self) -> bool:
        """Whether a thread of the process is stopped in a debugger: nobody knows for how long."""
        return any(map(in_debugger, sys._current_frames().values()))

    def processes(self) -> None:
        """The calling thread starts a process: somebody may come to wait for it."""
        with self.lock:
            self.join()
        self._watch()

    def submitted(self, *, beside: bool = False) -> None:
        """The calling thread hands a call to a pool: another thread will run it. ``beside``: it does so where a library is imported."""
        with self.lock:
            self.join()
            self._pooled = True
            self._shared = self._shared or not beside
            self._count()
        self._watch()

    def begun(self, lane: Lane) -> None:
        """A call that was handed to a pool, or a thread's own, is begun by the calling thread, in this lane."""
        with self.lock:
            self.join()
            self.lanes.add(lane)

    def created(self, task: Any) -> None:
        """A task of the run was created, in the loop of the calling thread."""
        with self.lock:
            self.join()
            self._tasks.add(task)
        self._watch()

    def task(self, owner: int) -> Any:
        """The task of the run with this ``id()``, or ``None``."""
        return next((task for task in [*self._tasks] if id(task) == owner), None)

    def wait_in(self, gate: Any, *, limited: bool = False) -> None:
        """Wait until another thread releases ``gate``; where nothing can move and the replay has failed, raise that failure.

        ``limited``: the wait has a time limit. Where the replay is over it returns, and goes on as a real one.
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
        """Whether the schedule holds the thread: a loop that is inside a call which does not await runs nothing meanwhile."""
        return any(member.ident == ident and member.held for member in self._members.values())

    def is_at_rest(self, ident: int) -> bool:
        """Whether the thread is held, or asleep as it was when it was ``settled``."""
        return any(one.ident == ident and (one.held or one.sleeps_on()) for one in self._members.values())

    def seen_of(self, ident: int) -> object | None:
        """What is seen of a thread that is asleep; ``None`` of one that is not, or does not take part. Equal answers mean that it has not
        run in between."""
        with self.lock:
            look = next((one.look() for one in self._members.values() if one.ident == ident), None)
        return None if look is True else look

    def waits(self, ident: int) -> bool:
        """Where nothing moves: whether the thread takes part, and is not held but waits for another one."""
        return any(member.ident == ident and not member.held for member in self._members.values())

    # -- waking ----------------------------------------------------------------------------------------------------------

    def waking(self, member: MonitoredThread | None) -> None:
        """Somebody who is held, or a loop, is about to be woken: nothing is blocked until ``woken``."""
        self._moving += 1
        self.wakes += 1
        if member is not None:
            member.moved()

    def woken(self) -> None:
        self._moving -= 1

    def interrupt(self) -> None:
        """Nothing can move, and the replay has failed: a wait raises, or tasks are cancelled and a blocked main thread interrupted.

        Of several waits that of the thread which came last: those that were there before wait for it, as a rule, and for what it does
        on its way out.
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
        with self.lock:  # the end of the replay waits for it: whoever comes after that is not interrupted
            main = threading.main_thread().ident
            blocked = any(member.ident == main and not member.held for member in self._members.values())
            if main is not None and blocked and not self._main_interrupted:
                self._main_interrupted = True
                signal.pthread_kill(main, number)

    def end_waits(self) -> None:
        """The replay has failed long ago: whatever may still move, waits raise that."""
        with self.lock:
            self._let_go([*self._gates])

    def _let_go(self, gates: Iterable[Any]) -> None:
        """Waits raise the failure of the replay."""
        for gate in gates:
            del self._gates[gate]
            self._interrupted.add(gate)
            _release(gate)

    # -- what can be seen ------------------------------------------------------------------------------------------------

    def asleep(self, me: MonitoredThread | None) -> bool:
        """Whether all others are asleep as they were when ``none_runs`` was asked, from one look at each."""
        if self._moving:
            return False
        for member in self._members.values():
            if member is me or member.held:
                continue
            if not member.sleeps_on():
                return False
        return True

    def none_runs(self, *, but: int = 0) -> bool:
        """Whether no thread of the run (``but`` this one) has had a processor since the last time that this was asked, or wants one.

        What sleeps in native code does not run, and yet may move: this says only that nothing is gained by a moment's wait.
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
        return resting

    def blocked(self) -> bool:
        """Whether nothing in this process can move by itself: each thread is held or blocked, and none has run since it was."""
        return self._rest(self._waits_here) is not None

    def left_to_others(self) -> bool:
        """Whether no thread of the run can move by itself: only others may make it go on."""
        return self._rest(self._waits_here, ours_only=True) is not None

    def at_rest(self, *, by_processes: bool = False) -> object | None:
        """What is seen of the run's threads where nothing in this process can move by itself, else ``None``. Equal answers, at whatever
        times: none of them has run in between.

        ``by_processes``: or is moved only by the end of a child process or by what goes through a pipe to one, or an event loop by what
        comes out of a pipe.
        """
        return self._rest(self._waits_beside_processes if by_processes else self._waits_for_us)

    def _rest(self, waits: _Waits, *, ours_only: bool = False) -> object | None:
        first = self._looks(waits, ours_only)
        if first is None or first != self._looks(waits, ours_only):
            return None
        ours, _ = first
        return self.wakes, ours

    def seen(self, but: Collection[int]) -> dict[int, object] | None:
        """What is seen of each thread that takes part, without these idents; ``None`` where one of them runs, or is about to.

        Equal answers mean that none of them has run in between.
        """
        if self._moving:
            return None
        looks = {native: member.look() for native, member in self._members.items() if member.ident not in but}
        return None if any(look is True for look in looks.values()) else looks

    def _looks(self, waits: _Waits, ours_only: bool) -> tuple[dict[int, object], dict[int, object]] | None:
        """What was seen of each thread that is not held, of those that take part and of others; ``None`` if one of them can move."""
        if self._moving or threading._limbo:  # type: ignore[attr-defined] # a thread that is being started has no frame yet
            return None
        ours_only = ours_only or self.failed  # what others may yet bring makes no failure undone
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
                if takes_part:  # it ends, or is in native code that called Python
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
        """Whether a thread that is asleep can be moved by another thread of this process only, or by what no replay waits for."""
        return self._waits_for_us(native, stack, look) or (
            self.closed_off and child_processes() <= self._processes_before and _waits_for_files(native, stack, look)
        )

    def _waits_beside_processes(self, native: int, stack: _Stack, look: object) -> bool:
        """Whether a thread that is asleep can be moved by other threads and processes of the run only."""
        return self._waits_for_us(native, stack, look) or _waits_for_process(native, stack, look)

    def _ends(self, stack: _Stack) -> bool:
        """Whether the main thread has come to its end, and waits only until a thread that is none of the run's does."""
        return stack.ends and any(
            not thread.daemon and ident != _main() and thread.native_id not in self._members
            for ident, thread in _known_threads()
        )

    def _threads(self) -> Iterator[tuple[int, int]]:
        """All threads but the calling one, by the kernel's number and Python's."""
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
        """Whether a thread that is asleep can be moved by another thread of this process only."""
        if stack.loop is not None and len(_watched(stack.loop)) <= 1:
            call = _call(native) if _PRECISE else [0]
            return bool(call) and call[0] != _futex() and (not _PRECISE or _glance(native) == look)
        code = stack.code
        by_frame = (code.co_filename, code.co_name) in _WAITS or code.co_filename.startswith(_PACKAGE)
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
            return False  # it has that as soon as who has it now goes on, wherever in our code it asks for it
        return by_frame or self._is_lock(call[1])

    def _rests(self, native: int, stack: _Stack, look: object) -> bool:
        """Whether a library's thread that is none of the run's is asleep for reasons of its own: not for the interpreter, or for us."""
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
        """Whether a thread that waits there waits for who looks at it: for this replay, or for another one in this process."""
        return any(lock is not None and address == _address(lock) for lock in (self.lock, *process.observers.values()))

    def _is_lock(self, address: int) -> bool:
        if address not in self._locks and address not in self._strange:
            # Not ``get_objects``: a tuple that another thread is just filling must not be held by anybody else.
            kinds = _lock_types()
            self._locks = {_address(one): one for one in gc.get_referrers(*kinds) if type(one) in kinds}
            if address not in self._locks:
                self._strange.add(address)
        return address in self._locks

    # -- for people ------------------------------------------------------------------------------------------------------

    def waiting(self) -> list[Waiting]:
        """Each task and thread of the run, and the line of the user's code that it is at."""
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
        """The calling thread sleeps by this call."""
        ident = get_ident()
        self._sleeps[ident] = sleep
        try:
            yield
        finally:
            del self._sleeps[ident]

    def others(self) -> list[Waiting]:
        """The threads that are none of the run's and that run user code, each with its line."""
        frames = _frames()
        return [
            Waiting(f"thread {thread.name!r}, which is none of the run's,", line, None)
            for ident, thread in _known_threads()
            if thread.native_id not in self._members
            and thread.native_id not in process.observers
            and (line := _line(frames[ident]) if ident in frames else None) is not None
        ]

    def disband(self, *, wake: bool = True) -> None:
        """The replay is over. Where it has failed, whoever waits raises that; else waits with a limit return, to go on as real ones.

        Without ``wake`` nobody who waits goes on.
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
    """What is seen of the threads of this process, without these, where all of them sleep; ``None`` where one runs, or may begin to.

    Equal answers mean that none has run in between. The second part: no thread of the program's own sleeps with a time limit, so
    that only what comes from outside can wake one.
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
        if look is True:  # an observer's, too: somebody may wait for what it holds
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
    """What is known of a thread by its frames."""

    #: That of the innermost function.
    code: CodeType
    #: Whether it runs code of the user's: what a library does beside the program brings nothing of the run about.
    of_user: bool
    #: Whether it is stopped in a debugger.
    debugged: bool
    #: Whether it is the main thread at the interpreter's end.
    ends: bool
    #: The event loop of the standard library that waits in it without a time limit, with nothing to run.
    loop: Any
    #: What it looks at files with.
    selector: Any
    #: Whether a wait of the standard library waits in it for what has not come, without a time limit; known only where the kernel does
    #: not say.
    waits: bool


def _stacks() -> dict[int, _Stack]:
    """What is known of all threads by their frames, by ident.

    Whoever has a frame keeps all that its function has, and what that was called by: if that function returns meanwhile, its objects
    live on, which a program notices (a cursor of a database that is still open). So no frame is handed on, nothing in here lets another
    thread run, and it is asked only where all are asleep.
    """
    by_frame = not _PRECISE or not _futex()
    return {ident: _stack(frame, by_frame) for ident, frame in _frames().items()}


def _frames() -> dict[int, FrameType]:
    """The frames of all other threads, by ident. With that of the caller, who has them, they would keep one another."""
    frames = sys._current_frames()
    del frames[get_ident()]
    return frames


def _stack(frame: FrameType, by_frame: bool) -> _Stack:
    of_user = debugged = ends = False
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        of_user = of_user or _is_users(code.co_filename)
        debugged = debugged or _is_debugger(code.co_filename)
        ends = ends or code is threading._shutdown.__code__  # type: ignore[attr-defined]
        at = at.f_back
    selector = frame.f_locals["self"] if _selects(frame) else None
    waits = by_frame and _waits_by_its_frame(frame)
    return _Stack(frame.f_code, of_user, debugged, ends, _resting_loop(frame), selector, waits)


def _waits_for_files(native: int, stack: _Stack, look: object) -> bool:
    """Whether a thread that is asleep waits, without a time limit, for pipes and sockets."""
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
    """Whether a socket was given a time limit for what it receives."""
    if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
        return False
    import _socket  # what runs beside sockets has it

    copy = _socket.socket(fileno=os.dup(fd))
    try:
        return any(copy.getsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, 16))
    finally:
        copy.close()


def _epolled(epoll: int) -> list[int]:
    """The descriptors that an ``epoll`` waits for."""
    lines = _contents(f"/proc/self/fdinfo/{epoll}").decode().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]


def _polled(call: Sequence[int]) -> list[int]:
    """The descriptors that a ``poll`` or ``select`` waits for: its arguments, in the memory of this process."""
    if _POLLS[call[0]] == "poll":
        found = (struct.unpack_from("=iHH", _memory(call[1], 8 * call[2]), 8 * i)[0] for i in range(call[2]))
        return [fd for fd in found if fd >= 0]
    size = (call[1] + 63) // 64 * 8
    wanted = [_memory(at, size) for at in call[2:5] if at]
    return [fd for fd in range(call[1]) if any(bits[fd // 8] >> fd % 8 & 1 for bits in wanted)]


def _memory(at: int, size: int) -> bytes:
    """A piece of this process's memory, by the kernel: it may be gone by now."""
    file = system.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return system.pread(file, size, at)
    finally:
        system.close(file)


def in_debugger(frame: FrameType | None) -> bool:
    """Whether a thread is stopped in a debugger."""
    while frame is not None and not _is_debugger(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


_is_users: Final = lru_cache(4096)(is_user_code)


#: Where a program stands still whose steps are debugged.
_OWN_DEBUGGER: Final = os.path.join(_PACKAGE, "_runs", "debugging.py")


@lru_cache(4096)
def _is_debugger(name: str) -> bool:
    return os.path.basename(name) in ("bdb.py", "pdb.py") or "pydev" in name or name == _OWN_DEBUGGER


def _waits_for_process(native: int, stack: _Stack, look: object) -> bool:
    """Whether a thread that is asleep can be moved by another process only."""
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
    """Whether the other end of a descriptor is in a process of this machine, as far as it has one: a pipe, or a socket without a name."""
    try:
        kind, _, inode = os.readlink(f"/proc/self/fd/{fd}").partition(":")
        return kind in ("pipe", "anon_inode") or (kind == "socket" and _is_nameless(inode.strip("[]")))
    except OSError:
        return False


def _leads_below(fd: int) -> bool:
    """Whether a descriptor is one end of a pipe whose other end a child process of this one holds."""
    try:
        pipe, writes = os.readlink(f"/proc/self/fd/{fd}"), _writes("self", str(fd))
        return pipe.startswith("pipe:") and any(_holds(child, pipe, not writes) for child in child_processes())
    except (OSError, ValueError):
        return False


def others_run_user_code() -> bool:
    """Whether user code runs, or waits, in another thread of this process."""
    stacks, here = _stacks(), get_ident()
    return any(ident != here and ident in stacks and stacks[ident].of_user for ident, _ in _known_threads())


def child_processes() -> set[int]:
    """The processes that this one has started and that are still there, whoever of its threads did; those that nobody awaited too."""
    found: set[int] = set()
    for task in system.listdir(_TASKS) if _PRECISE and has_children() else ():
        with suppress(OSError):  # that thread has ended
            found.update(map(int, _contents(f"{_TASKS}/{task}/children").split()))
    return found


def _holds(pid: int, pipe: str, writes: bool) -> bool:
    with suppress(OSError):  # that process has ended
        for fd in system.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it has just closed it
                if os.readlink(f"/proc/{pid}/fd/{fd}") == pipe and _writes(pid, fd) == writes:
                    return True
    return False


def _writes(pid: int | str, fd: str) -> bool:
    """Whether a descriptor was opened for writing."""
    info = dict(line.split(":", 1) for line in _contents(f"/proc/{pid}/fdinfo/{fd}").decode().splitlines())
    return int(info["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


def _is_endless(limit: int) -> bool:
    """Whether a time limit is none: no pointer to one, or a negative number of milliseconds."""
    return limit == 0 or limit & _FOREVER == _FOREVER


def _is_limited(native: int) -> bool:
    """Whether a thread is in a system call that ends by the clock; so it counts where that is not to be seen."""
    call = _call(native)
    if not call:
        return True
    at = _LIMITED.get(call[0], 0)
    return at is None or (at > 0 and (len(call) <= at or not _is_endless(call[at])))


def _release(gate: Any) -> None:
    with suppress(RuntimeError):  # somebody else did
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
    """As ``MonitoredThread.look``, of any thread."""
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
    """The number of the system call that a thread is in and its arguments; empty where it runs."""
    try:
        return [int(word, 0) for word in _read(native, "syscall").split()]
    except (OSError, ValueError):
        return []


def _address(lock: Any) -> int:
    """Where a thread waits that wants the lock: its first field."""
    found: int | None = ctypes.c_void_p.from_address(id(lock) + object.__basicsize__).value
    return found or 0


def _is_of_interpreter(address: int) -> bool:
    """Whether a thread that waits there may wait for the interpreter."""
    begin = _interpreter()
    return not begin or begin <= address < begin + _INTERPRETER_SIZE


@cache
def _interpreter() -> int:
    """Where what the interpreter has once a process begins, or 0."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    except (AttributeError, ValueError):
        return 0


def _lock_types() -> tuple[type, ...]:
    """The types of which an object is a lock as the kernel sees it: its first field says where a thread waits for it."""
    queue = getattr(sys.modules.get("_queue"), "SimpleQueue", None)
    return (LockType, RLock) if queue is None or not _is_like_a_lock(queue) else (LockType, RLock, queue)


@cache
def _is_like_a_lock(kind: Any) -> bool:
    """Whether who gets from an empty queue of this type waits where a thread that wants a lock would."""
    queue = kind()
    natives: list[int] = []
    start_new_thread(_get_from, (natives, queue))
    try:
        return _waited_in(natives, _address(queue)) != 0
    finally:
        queue.put(None)


def _get_from(natives: list[int], queue: Any) -> None:
    natives.append(get_native_id())
    queue.get()


@cache
@off_loop()
def _futex() -> int:
    """The number of the system call in which a thread waits for a Python lock, at its address; 0 where that is not to be seen."""
    found = {_waited_for(lock) for lock in (allocate_lock(), RLock())}
    return found.pop() if len(found) == 1 else 0


def _waited_for(lock: Any) -> int:
    """The number of the system call in which a thread waits for this lock, as soon as it does."""
    lock.acquire()
    natives: list[int] = []
    start_new_thread(_wait_in, (natives, lock))
    try:
        return _waited_in(natives, _address(lock))
    finally:
        lock.release()


def _waited_in(natives: list[int], address: int) -> int:
    """The number of the system call in which a thread, which says its number in ``natives``, waits at ``address`` once it sleeps for good;
    0: it waits elsewhere."""
    before: object = None
    while True:
        look = _glance(natives[0]) if natives else True
        call = [] if look is True else _call(natives[0])
        if len(call) > 4 and call[1] == address:
            return call[0]
        # Who sleeps with a time limit waits for the interpreter, and gets it; else this system does not say where it waits.
        if look is not True and look == before and (len(call) < 5 or call[4] == 0):
            return 0
        before = look
        sleep(0.001)


def _wait_in(natives: list[int], lock: Any) -> None:
    natives.append(get_native_id())
    with lock:
        pass


def _waits_by_its_frame(frame: FrameType) -> bool:
    """Where the kernel does not say: whether what a wait of the standard library waits for has not come, without a time limit."""
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
    """The descriptors that a loop of the standard library waits for; of one that is just being closed, some that say nothing."""
    return (-1, -1) if loop._selector is None else _registered(loop._selector) or (-1, -1)


def _registered(selector: Any) -> list[int]:
    """The descriptors that a selector waits for, as they are now: its thread may change them at any time. None where it is closed."""
    found = selector.get_map()
    return [] if found is None else list(found._selector._fd_to_key)


def _selects(frame: FrameType) -> bool:
    return frame.f_code.co_name == "select" and frame.f_code.co_filename == selectors.__file__


def _resting_loop(frame: FrameType) -> Any:
    """The event loop of the standard library that waits in ``frame`` without a time limit, with nothing to run, or ``None``."""
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
    """Whether these are sockets of a pair: UNIX ones without a name."""
    lines = _contents("/proc/self/net/unix").decode("utf-8", "replace").splitlines() if inodes else []
    return {line.split()[6] for line in lines[1:] if len(line.split()) == 7}.issuperset(inodes)


def _polls_nothing(epoll: int) -> bool:
    """Whether a native event loop (uvloop) looks at nothing but what wakes it: at most an eventfd, a pipe, a socket pair."""
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
    """The threads that ``threading`` knows by their ident, without its lock: who is looked at may hold that. And tracekit's own."""
    return [*threading._active.copy().items(), *own_threads.copy().items()]  # type: ignore[attr-defined]


def _line(frame: FrameType | None) -> str | None:
    while frame is not None and not is_user_frame(frame):
        frame = frame.f_back
    return None if frame is None else _place(frame)


def _line_or_nearest(frame: FrameType) -> str:
    """The line that a thread is at; see ``_most_telling``."""
    frames = [frame]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    return _place(_most_telling(frames))


def _most_telling(frames: Sequence[FrameType]) -> FrameType:
    """Of frames, the innermost first, that of the user's code; where there is none, of a package, or else one that is not tracekit's."""
    kinds: list[Callable[[FrameType], bool]] = [
        is_user_frame,
        lambda frame: is_package(frame.f_code.co_filename),
        lambda frame: not is_own(frame.f_code.co_filename),
    ]
    for kind in kinds:
        for frame in frames:
            if kind(frame):
                return frame
    return frames[0]


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _line_of_task(task: Any) -> str | None:
    """Where a task waits: the line of the innermost of its coroutines that is the user's; see ``_most_telling``. Where all of them are the
    standard library's, that of who runs its loop."""
    frames = _frames_of(task.get_coro())
    if frames and all(is_python(frame.f_code.co_filename) for frame in frames):
        frame = _frames().get(getattr(task.get_loop(), "_thread_id", None) or 0)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    return _place(_most_telling(frames)) if frames else None


def _frames_of(coroutine: Any) -> list[FrameType]:
    """The frames of a coroutine and of those that it awaits, the innermost first."""
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
    """The call by which a task sleeps; ``None``: it waits for something else."""
    frame = next(iter(_frames_of(coroutine)), None)
    if frame is None or frame.f_code is not sys.modules["asyncio"].sleep.__code__:
        return None
    delay = frame.f_locals.get("delay")
    return f"asyncio.sleep({delay:g})" if isinstance(delay, (int, float)) else "asyncio.sleep"


def _qualname(coroutine: Any) -> str:
    return str(getattr(coroutine, "__qualname__", type(coroutine).__qualname__))
