"""The real clock, randomness and file calls: what tracekit itself uses, whatever is patched around it.

Each clock and each random source is a ``functools.partial`` around the C function. While a session is active, the
capture layer exchanges that C function for everybody, so it re-points these to genuine copies first (``repoint``);
references taken with ``from tracekit._reality import time_ns`` follow. It also keeps them out of reach of libraries that
replace every module attribute that *is* ``time.time``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import datetime as _datetime
import io
import os
import sys
import time as _time
from _thread import LockType, allocate_lock, get_ident, get_native_id, start_new_thread
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

__all__ = [
    "OwnThread",
    "aside",
    "clocks",
    "coarse_time_ns",
    "fdatasync",
    "free_in_forks",
    "gate",
    "kill",
    "monotonic",
    "monotonic_ns",
    "off_loop",
    "open_file",
    "own_threads",
    "perf_counter",
    "perf_counter_ns",
    "process_time_ns",
    "repoint",
    "room_aside",
    "running_loop",
    "running_task",
    "sleep",
    "stat",
    "system",
    "there",
    "time",
    "time_ns",
    "unfaked",
    "urandom",
    "write",
]


#: Beyond the numbers that a program with few files open gets.
_ASIDE: Final = 512


def aside(fd: int) -> int:
    """The descriptor under a high number, if the system has one: a program may close all that it has not opened itself, as a process that
    goes into the background does, and its next file must not get the number of one of ours."""
    import fcntl

    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
    except OSError:
        return fd
    os.close(fd)
    return high


def room_aside() -> None:
    """Make room for what ``aside`` moves: while a process has one thread only, since the kernel makes it wait later."""
    with suppress(OSError):
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.close(aside(fd))


def free_in_forks(lock: Any) -> Any:
    """``lock``, which is free in a forked child whoever held it when that was forked."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


def gate() -> LockType:
    """A lock that is held: whoever acquires it waits until somebody releases it."""
    made = allocate_lock()
    made.__enter__()  # as ``acquire``, but for the program's hooks around that
    return made


class OwnThread:
    """A thread of tracekit's own, of which the program sees nothing: ``threading`` neither lists nor counts it, so that a program that
    waits until its own threads are the only ones does not wait for this one.

    The process does not wait for it at its end. It is no part of any run: it begins with an empty context. What runs in it does not
    ask for ``threading.current_thread()``, which would list it from then on.
    """

    daemon: Final = True

    def __init__(self, do: Callable[[], object], name: str) -> None:
        self.name: Final = name
        #: As the kernel knows it, once it runs.
        self.native_id: int | None = None
        self._do: Final = do
        self._ended: Final = allocate_lock()

    def start(self) -> None:
        self._ended.acquire()
        try:
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
        """Wait until it has ended, for at most ``timeout`` seconds; at once in the thread itself."""
        if own_threads.get(get_ident()) is not self and self._ended.acquire(timeout=-1 if timeout is None else timeout):
            self._ended.release()

    def unlist(self) -> None:
        """In the thread itself, after it has called other people's code: that may have asked ``threading`` for it."""
        getattr(sys.modules.get("threading"), "_active", {}).pop(get_ident(), None)


#: Those that run, by ``get_ident()``.
own_threads: Final[dict[int, OwnThread]] = {}


def _own_threads_in_a_fork() -> None:
    """A forked child has none of them, and waits for none."""
    for thread in own_threads.values():
        thread._ended._at_fork_reinit()  # type: ignore[attr-defined]
    own_threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_threads_in_a_fork)


def unfaked(module: object, name: str) -> Any:
    """``module.name`` as the interpreter made it, though freezegun may be active: it keeps the originals as ``real_*``."""
    found = getattr(module, name)
    if getattr(found, "__module__", None) == "freezegun.api":
        return getattr(sys.modules["freezegun.api"], f"real_{name}", found)
    return found


#: asyncio is not imported to ask whether a loop of it runs.
_modules: Final[Mapping[str, Any]] = sys.modules


def running_loop() -> Any:
    """The event loop that runs in this thread, or ``None``."""
    ask = getattr(_modules.get("asyncio.events"), "_get_running_loop", None)  # it may just be being imported
    return None if ask is None else ask()


def running_task() -> Any:
    """The task that runs in this thread, or ``None``."""
    loop = running_loop()
    return None if loop is None else _modules["asyncio.tasks"].current_task(loop)


@contextmanager
def off_loop() -> Iterator[None]:
    """A block, or a decorated function, in which this thread is in no event loop, as far as anybody can see: for tracekit's own files.

    They are small, and are read and written where they are needed, by design: whoever watches a loop for what blocks it (``blockbuster``)
    would refuse that. Nothing of the program's runs inside.

    The frame of a decorated function's wrapper is the standard library's: who asks whether an operation is the program's or tracekit's goes
    by the module of each frame, and would take one of this module for tracekit's.
    """
    loop = running_loop()
    if loop is None:
        yield
        return
    events = _modules["asyncio.events"]
    events._set_running_loop(None)
    try:
        yield
    finally:
        events._set_running_loop(loop)


def _real(name: str) -> partial[Any]:
    return partial(unfaked(_time, name))


#: Seconds since the epoch, as ``float``.
time: Final[Callable[[], float]] = _real("time")
#: Nanoseconds since the epoch.
time_ns: Final[Callable[[], int]] = _real("time_ns")
#: The time that Linux gives to what is changed in its file systems, which goes on in ticks.
coarse_time_ns: Final[Callable[[], int]] = partial(unfaked(_time, "clock_gettime_ns"), 5)
#: Seconds of a clock that never goes back.
monotonic: Final[Callable[[], float]] = _real("monotonic")
#: Nanoseconds of a clock that never goes back.
monotonic_ns: Final[Callable[[], int]] = _real("monotonic_ns")
#: Seconds of the finest clock, for durations.
perf_counter: Final[Callable[[], float]] = _real("perf_counter")
#: Nanoseconds of the finest clock, for durations.
perf_counter_ns: Final[Callable[[], int]] = _real("perf_counter_ns")
#: Nanoseconds of processor time that this process has used.
process_time_ns: Final[Callable[[], int]] = _real("process_time_ns")
#: Waits the given seconds for real.
sleep: Final[Callable[[float], None]] = partial(off_loop()(unfaked(_time, "sleep")))
#: That many bytes from the operating system.
urandom: Final[Callable[[int], bytes]] = partial(os.urandom)
#: The functions of ``os`` as the system makes them, for tracekit's own files. In ``os`` they may be somebody's already: a test's, which
#: replaces ``os.replace`` by a mock, or those of who watches event loops for what blocks them.
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
#: The state of a file.
stat: Final[Callable[[str], os.stat_result]] = system.stat
#: Brings a file's content to the device; macOS has no ``fdatasync``.
fdatasync: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)


def there(path: str, *, link: bool = False) -> bool:
    """Whether there is a file or directory at the path; with ``link`` a link that leads nowhere is one as well."""
    try:
        system.lstat(path) if link else system.stat(path)
    except (OSError, ValueError):
        return False
    return True


def clocks() -> dict[str, Any]:
    """One reading of every clock that a run captures, by the names of its reads: what a replay has where none was read."""
    wall, steady, fine = time_ns(), monotonic_ns(), perf_counter_ns()
    datetime = unfaked(_datetime, "datetime")
    now = datetime.fromtimestamp(wall / 1e9)
    found: dict[str, Any] = {
        "time.time": wall / 1e9,
        "time.time_ns": wall,
        "time.monotonic": steady / 1e9,
        "time.monotonic_ns": steady,
        "loop.time": steady / 1e9,
        "time.perf_counter": fine / 1e9,
        "time.perf_counter_ns": fine,
        "datetime.datetime.now": now,
        "datetime.datetime.now(UTC)": datetime.fromtimestamp(wall / 1e9, _datetime.UTC),
        "datetime.datetime.utcnow": datetime.fromtimestamp(wall / 1e9, _datetime.UTC).replace(tzinfo=None),
        "datetime.datetime.today": now,
        "datetime.date.today": now.date(),
    }
    for name in ("process_time", "thread_time"):
        found[f"time.{name}"], found[f"time.{name}_ns"] = 0.0, 0
    return found


def repoint(name: str, genuine: Callable[..., Any]) -> None:
    """Let ``name`` of this module, and every reference to it, call ``genuine`` from now on."""
    source = globals()[name]
    assert isinstance(source, partial)
    # In place: a new partial would not reach those who imported the old one.
    source.__setstate__((genuine, (), None, None))  # type: ignore[attr-defined]
