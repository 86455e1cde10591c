"""The real clock, random source and file calls, which tracekit itself uses whatever is patched around it.

Each clock and random source is a ``functools.partial`` around the C function. While a session is active, the capture
layer replaces that C function for everybody; before that it repoints these partials to genuine copies (``repoint``), so
that references from ``from tracekit._reality import time_ns`` follow. Being partials also hides them from libraries
that replace every module attribute that *is* ``time.time``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import datetime as _datetime
import io
import os
import sys
import time as _time
from _thread import LockType, RLock, _local, allocate_lock, get_ident, get_native_id, start_new_thread
from collections.abc import Callable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager, nullcontext, suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

__all__ = [
    "OwnLock",
    "OwnThread",
    "acquire",
    "aside",
    "clocks",
    "coarse_time_ns",
    "fdatasync",
    "gate",
    "is_directory",
    "kill",
    "locked",
    "monotonic",
    "monotonic_ns",
    "off_loop",
    "open_file",
    "own_threads",
    "pause",
    "perf_counter",
    "perf_counter_ns",
    "process_time_ns",
    "repoint",
    "room_aside",
    "running_loop",
    "running_task",
    "shown_by",
    "sleep",
    "stat",
    "system",
    "there",
    "this_thread",
    "time",
    "time_ns",
    "unfaked",
    "urandom",
    "wake",
    "write",
]

T = TypeVar("T")

#: Above the descriptor numbers that a program with few open files gets.
_ASIDE: Final = 512


def aside(fd: int) -> int:
    """Move a descriptor to a high number, if the system has one free, and return it.

    A program may close all descriptors that it has not opened itself, as a daemon does; its next file must not get the
    number of one of tracekit's.
    """
    import fcntl

    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    except OSError:
        return fd
    os.close(fd)
    return high


def room_aside() -> None:
    """Grow the descriptor table for ``aside`` while the process has a single thread: the kernel is slow to do so later."""
    with suppress(OSError):
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.close(aside(fd))


def gate() -> LockType:
    """Return a new lock that is already held: acquiring it blocks until somebody releases it."""
    made = allocate_lock()
    acquire(made)
    return made


class OwnLock(RLock):  # type: ignore[misc]
    """A lock of tracekit's own, around what no other thread may find half done.

    It is reentrant: whoever holds it may be interrupted, in the same thread, by a signal handler or a finalizer of the
    program, which may come here as well. In a forked child it is free, whoever held it at the fork, except the code that
    forked. And it is taken as fast inside a run, which replaces the methods of the program's locks, as outside.

    What threads wait for as long as the program takes is no such lock, but a ``gate``.
    """

    __enter__ = RLock.__enter__
    acquire = RLock.acquire

    def __init__(self) -> None:
        if len(_own_locks.all) >= _own_locks.room:
            _own_locks.forget()
        _own_locks.all.add(ref(self))


class _OwnLocks:
    """All locks of tracekit's own that exist."""

    def __init__(self) -> None:
        # References without callbacks: what a signal handler raises in a callback would be lost.
        self.all: Final[set[ref[OwnLock]]] = set()
        #: How many there may be before those are forgotten that are gone.
        self.room = 1000

    def forget(self) -> None:
        for one in [*self.all]:
            if one() is None:
                self.all.discard(one)
        self.room = 1000 + 2 * len(self.all)

    def forked(self) -> None:
        """Free those that other threads held, in a forked child, where these do not run."""
        for one in [*self.all]:
            lock: Any = one()
            if lock is not None and not lock._is_owned():
                lock._at_fork_reinit()


_own_locks: Final = _OwnLocks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_locks.forked)


#: Those by which the system says that this thread itself has failed.
_OWN_FAULTS: Final = frozenset(
    getattr(_signal, name) for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV") if hasattr(_signal, name)
)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A block in which this thread leaves signals to the other threads, as do for ever the threads that it starts there."""
    if not hasattr(_signal, "pthread_sigmask"):
        yield
        return
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - _OWN_FAULTS)
        yield
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


class _Thread(_local):
    """The running thread."""

    def __init__(self) -> None:
        self.itself: Final = object()


_running: Final = _Thread()


def this_thread() -> object:
    """Return what identifies the running thread for good; its ident becomes that of a later thread."""
    return _running.itself


class OwnThread:
    """A thread of tracekit's own that the program does not see: ``threading`` neither lists nor counts it.

    So a program that waits until only its own threads are left does not wait for this one, and the process does not
    join it at exit. It is not part of any run: it starts with an empty context. Code that runs in it must not call
    ``threading.current_thread()``, which would list it from then on (see ``unlist``).
    """

    daemon: Final = True

    def __init__(self, do: Callable[[], object], name: str) -> None:
        self.name: Final = name
        #: The kernel's thread id, once the thread runs.
        self.native_id: int | None = None
        self._do: Final = do
        self._ended: Final = allocate_lock()

    def start(self) -> None:
        self._ended.acquire()
        try:
            # A program that takes a signal by ``signal.sigwait`` blocks it in all of its threads. In one that does not,
            # it would end the process.
            with _signals_blocked():
                start_new_thread(self._run, ())
        except BaseException:
            self._ended.release()
            raise

    def _run(self) -> None:
        self.native_id = get_native_id()
        own_threads[get_ident()] = self
        try:
            self._do()
        finally:
            del own_threads[get_ident()]
            self._ended.release()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, for at most ``timeout`` seconds; return at once in the thread itself."""
        if own_threads.get(get_ident()) is not self and acquire(
            self._ended, timeout=-1 if timeout is None else timeout
        ):
            self._ended.release()

    def unlist(self) -> None:
        """Remove this thread from ``threading``'s list, which code of others called in it may have put it on. Call it
        in the thread itself."""
        getattr(sys.modules.get("threading"), "_active", {}).pop(get_ident(), None)


#: The running ones, by ``get_ident()``.
own_threads: Final[dict[int, OwnThread]] = {}


def _own_threads_in_a_fork() -> None:
    """Forget the parent's threads in a forked child: none of them runs there."""
    for thread in own_threads.values():
        thread._ended._at_fork_reinit()  # type: ignore[attr-defined]
    own_threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_threads_in_a_fork)


def unfaked(module: object, name: str) -> Any:
    """Return ``module.name`` as the interpreter made it, even if freezegun is active: it keeps the originals as
    ``real_*``."""
    found = getattr(module, name)
    if getattr(found, "__module__", None) == "freezegun.api":
        return getattr(sys.modules["freezegun.api"], f"real_{name}", found)
    return found


#: Looked up here, so that asking for the running loop does not import asyncio.
_modules: Final[Mapping[str, Any]] = sys.modules


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or ``None``."""
    ask = getattr(_modules.get("asyncio.events"), "_get_running_loop", None)  # None while asyncio is being imported
    return None if ask is None else ask()


def running_task() -> Any:
    """Return the asyncio task that runs in this thread, or ``None``."""
    loop = running_loop()
    return None if loop is None else _modules["asyncio.tasks"].current_task(loop)


def wake(future: Any) -> None:
    """Let the task that awaits ``future`` go on; may be called in any thread. In a closed loop there is no such task."""

    def go_on() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(go_on, context=Context())


#: What ``off_loop`` does to a decorated function if there is no loop to hide.
_NO_LOOP: Final = nullcontext()


class off_loop(ContextDecorator):
    """Hide the running event loop of this thread inside the block or decorated function; for tracekit's own file
    operations.

    These are small and deliberately made where they are needed; a tool that detects blocking calls in a loop
    (``blockbuster``) would refuse them. No code of the program runs inside.

    A decorated function's wrapper has a frame of the standard library (``contextlib``). That matters: capture decides
    by the module of each frame whether an operation is the program's or tracekit's, and would take a frame of this
    module for tracekit's.
    """

    __slots__ = ("_loop",)

    def _recreate_cm(self) -> Any:
        """A separate manager for each call of a decorated function, or none if no loop is running."""
        ask = getattr(_modules.get("asyncio.events"), "_get_running_loop", None)  # see ``running_loop``
        return _NO_LOOP if ask is None or ask() is None else off_loop()

    def __enter__(self) -> None:
        self._loop = running_loop()
        if self._loop is not None:
            _modules["asyncio.events"]._set_running_loop(None)

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            _modules["asyncio.events"]._set_running_loop(self._loop)


def _real(name: str) -> partial[Any]:
    return partial(unfaked(_time, name))


#: Seconds since the epoch, as ``float``.
time: Final[Callable[[], float]] = _real("time")
#: Nanoseconds since the epoch.
time_ns: Final[Callable[[], int]] = _real("time_ns")
#: The time stamps that Linux gives to changes in file systems; it advances in ticks.
coarse_time_ns: Final[Callable[[], int]] = partial(unfaked(_time, "clock_gettime_ns"), 5)
#: Seconds of a clock that never goes back.
monotonic: Final[Callable[[], float]] = _real("monotonic")
#: Nanoseconds of a clock that never goes back.
monotonic_ns: Final[Callable[[], int]] = _real("monotonic_ns")
#: Seconds of the clock with the highest resolution, for durations.
perf_counter: Final[Callable[[], float]] = _real("perf_counter")
#: The same in nanoseconds.
perf_counter_ns: Final[Callable[[], int]] = _real("perf_counter_ns")
#: Nanoseconds of processor time that this process has used.
process_time_ns: Final[Callable[[], int]] = _real("process_time_ns")
#: Really waits for the given seconds.
sleep: Final[Callable[[float], None]] = partial(off_loop()(unfaked(_time, "sleep")))
#: Random bytes from the operating system.
urandom: Final[Callable[[int], bytes]] = partial(os.urandom)
#: The functions of ``os`` as the system provides them, for tracekit's own files. Those in ``os`` may have been replaced
#: already: by a test that mocks ``os.replace``, or by a tool that detects blocking calls in event loops.
if TYPE_CHECKING:
    import os as system
else:
    system = sys.modules.get("posix", os)
#: ``open``, which a test may replace as well.
open_file: Final = io.open
#: Writes to a descriptor.
write: Final[Callable[[int, bytes], int]] = system.write
#: Sends a signal to a thread of this process; ``None`` where the system has no such thing.
pthread_kill: Final[Callable[[int, int], None] | None] = getattr(_signal, "pthread_kill", None)
#: Sends a signal to a process.
kill: Final[Callable[[int, int], None]] = system.kill
#: Methods of a lock, which a run replaces in its type.
acquire: Final[Callable[..., bool]] = LockType.acquire
locked: Final[Callable[[LockType], bool]] = LockType.locked
#: The state of a file.
stat: Final[Callable[[str], os.stat_result]] = system.stat
#: Syncs a file's content to the device; macOS has no ``fdatasync``.
fdatasync: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


def is_directory(path: str | bytes | os.PathLike[Any]) -> bool:
    try:
        return (system.stat(path).st_mode & 0o170000) == 0o040000  # as ``stat.S_ISDIR``, without its import
    except (OSError, ValueError):
        return False


def there(path: str, *, link: bool = False) -> bool:
    """Return whether a file or directory exists at the path; with ``link``, a dangling symbolic link counts as well."""
    try:
        system.lstat(path) if link else system.stat(path)
    except (OSError, ValueError):
        return False
    return True


#: The clocks that are kept (ns), and by function, which of them it shows.
_CLOCKS: Final = ("time.time_ns", "time.monotonic_ns", "time.perf_counter_ns")
_SHOWS: Final = {"loop.time": "time.monotonic_ns"} | {name.removesuffix("_ns"): name for name in _CLOCKS}
#: Those of the process and its threads, of which a run begins at zero.
_FROM_ZERO: Final = ("time.process_time", "time.thread_time")


def clocks() -> dict[str, int]:
    """Read the clocks (ns), by the names of the functions that read them so."""
    return {"time.time_ns": time_ns(), "time.monotonic_ns": monotonic_ns(), "time.perf_counter_ns": perf_counter_ns()}


def shown_by(function: str, clocks: Mapping[str, Any], since: int = 0) -> Any:
    """Return what a function that a run captures (``time.time``, ``datetime.datetime.now``) shows ``since`` ns after
    ``clocks`` were read; ``None`` for another function, or if they don't say."""
    if function.startswith(_FROM_ZERO):
        return since if function.endswith("_ns") else since / 1e9
    instant = clocks.get("time.time_ns" if function.startswith("datetime.") else _SHOWS.get(function, function))
    if type(instant) is not int:
        return None
    instant += since
    if not function.startswith("datetime."):
        return instant / 1e9 if function in _SHOWS else instant
    utc = function.endswith(("(UTC)", ".utcnow"))
    moment = unfaked(_datetime, "datetime").fromtimestamp(instant / 1e9, _datetime.UTC if utc else None)
    if function.endswith(".utcnow"):
        return moment.replace(tzinfo=None)
    return moment.date() if function == "datetime.date.today" else moment


def pause(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a call in which this thread may rest for long: a wait, or a function of the program.

    A signal handler that is called meanwhile runs at once. Elsewhere in tracekit's own code it would have to wait (see
    ``_runtime.signals``).
    """
    return function(*args, **kwargs)


def repoint(name: str, genuine: Callable[..., Any]) -> None:
    """Make ``name`` of this module, and every reference to it, call ``genuine`` from now on."""
    source = globals()[name]
    assert isinstance(source, partial)
    # In place: a new partial would not reach those who imported the old one.
    source.__setstate__((genuine, (), None, None))  # type: ignore[attr-defined]
