"""The journal: an append-only file, each line chained to the one before, and written with one call.

Sequence number, chain and write form one critical section. Once ``append`` has returned, the entry survives the death
of the process; once ``sync`` has returned, the death of the machine. Entries about things that have happened but could
not be written (``keep``) stay in memory and are written before any later entry: while there is no space for them, there
is none for anything else.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from errno import EFBIG
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import orjson

from .. import _reality
from .._native import Chain, grouped
from .._native import line as _line
from .._native.common import PENDING, take
from .._reality import OwnThread, system
from ..errors import LogWriteError
from .entry import FORMAT_VERSION

if TYPE_CHECKING:
    from .vault import Vault

__all__ = ["GENESIS", "Durability", "Journal"]

Durability = Literal["none", "effects", "always"]
#: An entry to be written: kind, lane, parent and tail. A clock or random read: the first three, its function and its
#: value.
_Entry = tuple[str, int, int, bytes]
_Read = tuple[str, int, int, str, Any]

#: The hash that the first entry is chained to.
GENESIS: Final = b"0" * 64

#: How many seconds a clock or random read waits at most for the background thread if no entry follows, which would
#: write it too. An entry that requested no sync waits twice that, or up to ``_LONGEST`` during a steady stream of
#: entries.
_PAUSE: Final = 0.005
#: A slow device is synced less often: the background thread pauses this many times as long as its last round took, but
#: not longer than ``_LONGEST`` seconds.
_REST: Final = 9
_LONGEST: Final = 0.05
#: Why nothing can be written after the last entry.
_OVER: Final = "its run has ended"
#: How many seconds a follower waits for a leader that may have been interrupted before it could wake anybody.
_INTERRUPTED: Final = 0.1

_MEND: Final = "{}, then resume this run or start a new one; what was written before is intact"
_WAITS: Final = "{}: the entries kept in memory are then written first, and the run continues"
_GONE: Final = (
    "leave the store, and descriptors that are not the program's own, alone while a run is going on; start a new one"
)


def making_room(cause: BaseException | None) -> str:
    """Return what to do where the log can't be written for this reason."""
    if isinstance(cause, OSError) and cause.errno == EFBIG:
        return "raise the limit on the size of files of the process (`ulimit -f`)"
    return "free space or repair the device"


_stat: Final = _reality.stat
_time_ns: Final = _reality.time_ns
_monotonic: Final = _reality.monotonic
_get_ident: Final = threading.get_ident
#: How many bytes of unwritable entries are kept in memory if no effect depends on them, and the overhead of each.
_KEPT: Final = 64 << 20
_ENTRY: Final = 256
#: The length of the part of a line that is unique to it: its hash.
_ENDING: Final = 64 + len(b'"}\n')
# macOS has no fdatasync.
_fdatasync: Final = getattr(os, "fdatasync", os.fsync)


class Journal(Chain):
    """The open log of one run, or of one of its processes.

    ``encode_read`` encodes the values of clock and random reads as JSON when they are written. Every method may be
    called from any thread, from a signal handler and from a finalizer.
    """

    #: Writes bytes to the file.
    _os_write = staticmethod(_reality.write)

    def __init__(
        self,
        fd: int,
        path: str,
        run_id: str,
        *,
        durability: Durability = "effects",
        seq: int = 0,
        head: bytes = GENESIS,
        size: int = 0,
        ts: int = 0,
        root: str | None = None,
        encode_read: Callable[[Any], bytes] = orjson.dumps,
    ) -> None:
        self.path: Final = path
        self.run_id: Final = run_id
        self.durability: Final = durability
        #: The directory of its store, with what runs share (the secret, keys).
        self.root: Final = os.path.dirname(os.path.dirname(os.path.abspath(path))) if root is None else root
        #: Whether it is being closed, and whether the file has been.
        self.closed = self._let_go = False
        #: Entries that could not be written while the program went on.
        self.lost = 0
        self._fd: int = _reality.aside(fd)
        found = system.fstat(self._fd)
        #: Identifies the file: a program may close descriptors that are not its own, and reuse the number for its own
        #: file.
        self._file: Final = (found.st_dev, found.st_ino)
        #: The path when it was opened, with links resolved: the links may be changed later (a new release).
        self._place: Final = os.path.realpath(path)
        #: The end of the file: the last entry's ``seq``, hash and time, and the size. Replaced as a whole, never in
        #: part.
        self._end = (seq, head, ts, size)
        #: Why nothing can be written any more.
        self._broken: str | None = None
        #: Entries about things that have happened but are not in the file, by the ``seq`` that they will get, and their
        #: size.
        self._kept: dict[int, _Entry] = {}
        self._kept_bytes = 0
        #: Whether an entry can't simply be written: writing has stopped, or kept entries come first.
        self._stopped = False
        #: Whether the end entry has been written, which is the last one.
        self._over = False
        #: Whether writing has stopped because the file was changed, moved or removed by somebody else.
        self._gone = False
        self._lock: _reality.OwnLock = _reality.OwnLock()
        #: The end of the file once the entry being written is complete.
        self._in_flight: tuple[int, bytes, int, int] | None = None
        #: Held by the thread that syncs, the ``_leader``. Others wait as ``_followers``: the ``seq`` they need, and the
        #: lock they wait on.
        self._sync_lock = allocate_lock()
        self._leader = 0
        self._followers: deque[tuple[int, threading.Lock]] = deque()
        self._synced = seq
        #: The vault with the values behind the placeholders, if kept: on the device before the entries are.
        self.vault: Vault | None = None
        self._reads: deque[_Read] = deque()
        self._encode_read = encode_read
        self._run = orjson.dumps(run_id)
        self._middles: dict[str, bytes] = {}
        self._background: _Background | None = None
        #: Whether the background thread has to be woken for new work.
        self._asleep = True
        #: What the background thread has seen and not synced yet.
        self._due = seq
        self._always = durability == "always"
        self._lazy = durability == "effects"

    @property
    def seq(self) -> int:
        """``seq`` of the last entry."""
        return self._end[0]

    @property
    def head(self) -> bytes:
        """The hash of the last entry."""
        return self._end[1]

    # -- writing -------------------------------------------------------------------------------------------------------

    def observe(self, written: Callable[[], object]) -> None:
        """Call ``written`` after each entry from now on, once the entry is in the file. Journals without an observer
        pay nothing."""
        append = self.append

        def observed(kind: str, lane: int, parent: int, tail: bytes, sync: bool | dict[int, None] = False) -> int:
            seq = append(kind, lane, parent, tail, sync)
            written()
            return seq

        self.append = observed  # type: ignore[method-assign]  # of this journal alone: others have no overhead

    def append_last(self, kind: str, lane: int, parent: int, tail: Callable[[int], bytes], sync: bool = False) -> int:
        """Write the entry that ends the file, like ``append``; ``tail`` receives the number of entries, including this
        one.

        What other threads write or read meanwhile either precedes the end and is counted, or comes after it and is not
        written.
        """
        with self._lock:
            if sync:
                self._look()
            self._write_with_reads()
            seq = self._write(kind, lane, parent, tail(self.seq + 1))
            self._over = self._stopped = True
            self._reads = deque(maxlen=0)
        if sync or self._always:
            self.sync(seq)
        return seq

    def _crowded(self) -> None:
        # A loop that reads faster than the file can be written waits here, which bounds the pending reads.
        with suppress(LogWriteError):
            self.flush()

    def held(self) -> _reality.OwnLock:
        """Return the log's lock, for callers that number something and write it atomically: ``with journal.held(): …``."""
        return self._lock

    #: Methods of ``Chain``, named here as well because crash tests wrap them on this class.
    append = Chain.append
    _write = Chain._write
    _write_with_reads = Chain._write_with_reads

    def _look(self) -> None:
        """Raise unless the file is unchanged, so that nobody relies on an entry written to a lost file."""
        if self._broken is not None:
            return  # the writer gets the error
        while True:
            end, flight = (
                self._end,
                self._in_flight,
            )  # if this is a signal handler, its own thread may be in the middle of a write
            why = self._fault(end, flight or end)
            # If a signal handler has written an entry meanwhile, the end has moved: look again.
            if end is self._end and flight is self._in_flight:
                break
        if why is not None:
            self._lose(why)

    def _fault(self, end: tuple[int, bytes, int, int], last: tuple[int, bytes, int, int]) -> str | None:
        """Return what is wrong with the file if it should end at ``end`` or later, and not after ``last``."""
        seq, head, _, written = last
        try:
            found = system.fstat(self._fd)
        except OSError as error:
            return f"its descriptor was closed by the program ({error})"
        if (found.st_dev, found.st_ino) != self._file:
            return "its descriptor was closed by the program, and is another file's now"
        if not found.st_nlink:
            return "it was removed"
        if found.st_size < end[3]:
            return f"somebody has cut it, from {end[3]} bytes to {found.st_size}"
        if found.st_size > written:
            return f"somebody else has written to it: it has {found.st_size} bytes, not {written}"
        if seq and found.st_size == written and system.pread(self._fd, _ENDING, written - _ENDING) != head + b'"}\n':
            return "somebody has cut it, or written over it: it does not end as it did"
        if not self._in_place():
            return f"it was renamed: {self._place} is not there any more, or another file"
        return None

    def _in_place(self) -> bool:
        """Return whether the file still has the name under which recovery will look for it; true if that can't be
        determined."""
        try:
            found = _stat(self._place)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == self._file

    def _lose(self, why: str) -> NoReturn:
        self._break(why)
        self._gone = True
        raise self._error(why)

    def _owned(self) -> bool:
        """Return whether the descriptor still refers to our file."""
        try:
            found = system.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def _settle(self) -> None:
        if self._broken is not None:
            raise self._error(self._broken)
        if self._over:
            raise self._error(_OVER)
        if self._in_flight is not None:
            self._end = self._in_flight
            self._in_flight = None
        if self._kept:
            self._write_kept()

    def _break(self, why: str) -> None:
        """Stop writing for good."""
        self._broken = why
        self._stopped = True

    # -- entries that could not be written -----------------------------------------------------------------------------

    @property
    def keeps(self) -> int:
        """The number of entries that are only in memory, because they could not be written."""
        return len(self._kept)

    @property
    def room(self) -> bool:
        """Whether more entries may be kept that no effect depends on."""
        return self._kept_bytes < _KEPT

    def keep(self, kind: str, lane: int, parent: int, tail: bytes, sync: bool = False) -> int:
        """Write an entry about something that has happened, now or as soon as possible, and before any other; return
        its ``seq``.

        For entries that ``append`` could not write; takes the same arguments. Once the log's own ``seq`` has reached
        the returned one, the entry is in the file and can be synced. Raises ``LogWriteError`` if nothing will be
        written any more.
        """
        with self._lock:
            for entry in (*grouped(take(self._reads), self._encode_read), (kind, lane, parent, tail)):
                seq = self._keep(entry)
            with suppress(LogWriteError):
                self._settle()
        self._wake()  # it retries
        return seq

    def _keep(self, entry: _Entry) -> int:
        self._stopped = True
        while self._broken is None and not self._over:
            last = self._in_flight or self._end
            seq = max(last[0], next(reversed(self._kept), 0)) + 1
            if self._kept.setdefault(seq, entry) is entry:
                if (
                    seq > self._end[0] or self._kept.get(seq) is not entry
                ):  # otherwise a signal handler has written that entry meanwhile
                    self._kept_bytes += len(entry[3]) + _ENTRY
                    return seq
                del self._kept[seq]
        raise self._error(self._broken or _OVER)

    def _write_kept(self) -> None:
        """Write the kept entries, in order. If it raises ``LogWriteError``, those before are in the file."""
        while self._kept:
            if self._in_flight is not None:  # a signal handler is interrupting
                self._end, self._in_flight = self._in_flight, None
            end = self._end
            before, head, last, size = end
            seq, entry = next(iter(self._kept.items()))
            if seq <= before:  # it has been written
                self._kept.pop(seq, None)
                continue
            ts = max(_time_ns(), last)
            line, head = self._line(entry, seq, ts, head)
            self._put(end, line, (seq, head, ts, size + len(line)))
        self._kept_bytes = 0
        self._stopped = self._broken is not None or bool(self._kept)

    def _middle(self, kind: str) -> bytes:
        middle = b',"run_id":%b,"type":%b,"ts_ns":' % (self._run, orjson.dumps(kind))
        return self._middles.setdefault(kind, middle)

    def _give_back(self, reads: list[_Read]) -> None:
        if len(reads) <= PENDING:
            self._reads.extendleft(reversed(reads))
        else:  # a log that can't be written would let them grow without bound
            self.lost += len(reads)

    def _line(self, entry: _Entry, seq: int, ts: int, head: bytes) -> tuple[bytes, bytes]:
        """Return an entry as written, and its hash; ``head`` is the previous hash."""
        kind, lane, parent, tail = entry
        return _line(head, seq, self._middles.get(kind) or self._middle(kind), ts, lane, parent, tail)

    # -- errors --------------------------------------------------------------------------------------------------------

    def _complete(self, line: bytes, written: int) -> None:
        """Complete a short write, or cut the file back to its last complete line."""
        while written < len(line):
            try:
                more = self._os_write(self._fd, line[written:])
            except OSError as error:
                self._give_up(written, error)
            if more == 0:
                self._give_up(written, OSError("write returned 0"))
            written += more

    def _give_up(self, written: int, error: OSError) -> NoReturn:
        self._in_flight = None
        if written:
            try:
                system.ftruncate(self._fd, self._end[3])
            except OSError as second:
                self._break(f"a torn line could not be cut back: {second}")
        raise self._error(str(error), error) from error

    def _error(self, why: str, cause: OSError | None = None) -> LogWriteError:
        return LogWriteError(
            f"the log {self.path} can't be written: {why}{self._missing_text()}",
            run_id=self.run_id,
            path=self.path,
            next_action=_GONE
            if self._gone
            else (_WAITS if self._kept and self._broken is None else _MEND).format(making_room(cause)),
        )

    def _missing_text(self) -> str:
        """Return what the log lacks, as the end of a sentence."""
        count = len(self._kept)
        if not count:
            return ""
        return f"; it lacks {count} {'entry' if count == 1 else 'entries'} of what happened"

    # -- durability ----------------------------------------------------------------------------------------------------

    def sync(self, seq: int | None = None) -> None:
        """Sync everything up to ``seq`` (or everything) to the device. Concurrent callers share one sync.

        After a failed sync the journal is closed for good: the system may have dropped the pages.
        """
        if self.durability == "none":
            return
        want = self._end[0] if seq is None else seq
        while self._synced < want:
            if self._broken is not None:
                raise self._error(self._broken)
            if want > self._end[0] and want in self._kept:
                raise self._error("there is no room")
            me = _get_ident()
            if not _reality.locked(self._sync_lock):
                try:
                    with self._sync_lock:
                        self._leader = me
                        if self._synced < want and self._broken is None:
                            self._bring()
                finally:
                    if self._followers:
                        self._release()
            elif self._leader == me:  # a signal handler or finalizer interrupted this thread's own sync
                self._bring()
            else:
                self._follow(want)

    def _bring(self) -> None:
        reached = self._end[0]
        if self.vault is not None:
            self.vault.sync()
        try:
            _fdatasync(self._fd)
        except OSError as error:
            if not self._owned():  # closed since the check
                self._lose(f"its descriptor was closed by the program ({error})")
            self._break(f"a sync failed: {error}")
            raise self._error(f"a sync failed: {error}") from error
        if reached > self._synced:
            self._synced = reached

    def _follow(self, want: int) -> None:
        """Wait for the current sync; if it does not cover the entry, lead the next one, or wait for its leader."""
        gate = _reality.gate()
        self._followers.append((want, gate))
        if _reality.locked(self._sync_lock):  # so the holder will look at the followers afterwards
            with _reality.off_loop():
                _reality.acquire(gate, timeout=_INTERRUPTED)

    def _release(self) -> None:
        """Wake the followers whose entries are on the device, and one of the others to lead the next sync."""
        followers, led = self._followers, False
        for _ in range(len(followers)):
            try:
                want, gate = followers.popleft()
            except IndexError:  # another thread is doing the same
                return
            if want <= self._synced or self._broken is not None:
                gate.release()
            elif led:
                followers.append((want, gate))
            else:
                led = True
                gate.release()

    def flush(self) -> None:
        """Write kept entries and pending clock and random reads."""
        if self._reads or self._kept:
            with self._lock:
                self._write_with_reads()

    def _wake(self) -> None:
        background = self._background
        if background is None:
            with self._lock:
                background = self._background
                if background is None and not self.closed:
                    with suppress(RuntimeError):  # no more threads: Python 3.12 starts none during shutdown
                        background = self._background = _Background(self)
        if background is not None:
            background.wake()
        elif not self.closed:
            with suppress(LogWriteError):
                self.flush()
                if self._lazy:
                    self.sync()

    def _has_work(self) -> bool:
        """Return whether the background thread has something to write or to sync."""
        if self._broken is not None:
            return False
        return bool(self._reads or self._kept) or (self._lazy and self._synced < self.seq)

    def _tick(self) -> None:
        """Do one round of the background thread."""
        with suppress(
            LogWriteError
        ):  # callers that need the entry get the error; losses are counted where an entry is given up
            with self._lock:  # otherwise an entry that another thread is just writing would look like somebody else's
                self._look()
            self.flush()
            if self._lazy:
                # Sync only what existed a round ago: newer entries are probably being synced by an effect, which would
                # have to wait.
                due, self._due = self._due, self.seq
                self.sync(due)

    @_reality.off_loop()
    def close(self) -> None:
        """Flush, sync (unless durability is ``none``), and close the file. Idempotent: once it has been interrupted, by
        Ctrl-C say, the next call completes it."""
        with self._lock:
            if self._let_go:
                return
            self.closed = True
        if self._background is not None:
            self._background.stop()
        try:
            with self._lock:
                self._look()
            self.flush()
            self.sync()
        finally:
            with self._lock:
                self._break(self._broken or "the journal is closed")
                if self._owned():
                    system.close(self._fd)
                self._let_go = True

    def open(self) -> Journal:
        """Return the journal itself; a lazily created segment is created now."""
        return self

    def abandon(self) -> None:
        """Forget the file without touching it: for a forked child, whose parent continues to write."""
        self._sync_lock = allocate_lock()
        self._followers.clear()
        self._reads.clear()
        if not self.closed and self._owned():
            system.close(self._fd)  # the parent keeps its own descriptor, and the lock with it
        self.closed = self._let_go = True
        self._break("the journal belongs to the parent process")
        self._kept.clear()
        self._background = None
        self._asleep = True


class _Background:
    """The background thread: writes pending reads and syncs within milliseconds, as long as there is work."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: Held while nobody has woken the thread.
        self._gate = _reality.gate()
        self._stop = False
        self._thread = OwnThread(self._run, "tracekit-journal")
        self._thread.start()

    def wake(self) -> None:
        self._journal._asleep = False
        with suppress(RuntimeError):  # it is open already
            self._gate.release()

    def _run(self) -> None:
        journal = self._journal
        while not self._stop:
            _reality.acquire(self._gate)
            pause = _PAUSE
            while journal._has_work() and not self._stop:
                journal._rest(pause, _LONGEST)
                begun = _monotonic()
                journal._tick()
                rest = _LONGEST if journal.keeps else _REST * (_monotonic() - begun)
                pause = min(max(_PAUSE, rest), _LONGEST)
            journal._asleep = True
            if journal._has_work():  # what arrived before this line has not woken the thread
                self.wake()

    def stop(self) -> None:
        if not self._stop:  # unless an earlier call was interrupted
            self._stop = True
            self._journal._rouse()
        self.wake()
        self._thread.join()


assert FORMAT_VERSION == 1, "the line layout above is that of version 1"
