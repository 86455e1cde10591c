"""The threads that take part in a replay, and whether any of them can still make progress.

A replay hands out the next recorded event when nothing else can run. For threads that can't be known from inside Python,
only seen: on Linux the kernel says of each thread whether it sleeps and how often it has run, and a thread that sleeps
and has not run since the last look is blocked until somebody wakes it. Elsewhere the position of its frame, looked
at several times, has to do.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, get_ident, get_native_id
from typing import Final

from .._reality import monotonic_ns

__all__ = ["Crew", "Member"]

_PRECISE: Final = os.path.exists("/proc/self/task") and os.path.exists(f"/proc/self/task/{os.getpid()}/schedstat")
#: For how long all must have been still before the next recorded event is handed out, and before a later one is (ns).
QUICK: Final = 150_000 if _PRECISE else 3_000_000
PATIENCE: Final = 20_000_000 if _PRECISE else 100_000_000
#: For how long a submitted call that no worker has taken up yet counts as about to run (ns), and one with a free worker.
_UPTAKE: Final = 2_000_000
_PROMPT: Final = 1_000_000_000
_ASLEEP: Final = b"S"


class Member:
    """One thread: ``waiting`` while it is held by the schedule."""

    __slots__ = ("_files", "ident", "last", "native", "proven", "since", "waiting")

    def __init__(self, native: int, ident: int) -> None:
        self.native: Final = native
        self.ident: Final = ident
        self.waiting = False
        #: The last look at it, when it first looked like that (ns), and the look of it when it was proven to be blocked.
        self.last: object = None
        self.since = 0
        self.proven: object = None
        self._files: tuple[int, int] | None = None
        if _PRECISE:
            try:
                self._files = _open(native, "stat"), _open(native, "schedstat")
            except OSError:  # it has ended already
                self._files = (-1, -1)

    def look(self) -> object:
        """What can be seen of the thread: equal looks mean that it has not run in between. ``None``: it has ended."""
        if self._files is None:
            frame = sys._current_frames().get(self.ident)
            return None if frame is None else (id(frame), frame.f_lasti)
        try:
            stat = os.pread(self._files[0], 256, 0)
            state = stat[stat.rindex(b")") + 2 :][:1]
            if state in (b"Z", b"X"):
                return None
            return os.pread(self._files[1], 64, 0) if state == _ASLEEP else True
        except (OSError, ValueError):
            return None

    def moved(self) -> None:
        """Somebody has just woken it."""
        self.waiting = False
        self.proven = self.last = None

    def dismiss(self) -> None:
        files, self._files = self._files, (-1, -1)
        for file in files or ():
            if file >= 0:
                os.close(file)


def _open(native: int, name: str) -> int:
    return os.open(f"/proc/self/task/{native}/{name}", os.O_RDONLY | os.O_CLOEXEC)


class Crew:
    """The threads of one replay. What the hooks tell takes ``lock`` by itself; all else is called with it held.

    ``solo`` is the ident of the only thread there is, or 0: what a lone thread asks for is never waited for. ``runnable``
    says whether one had a processor, or waited for one, at the last look.
    """

    __slots__ = ("_launching", "_members", "_prompt", "_queued", "_queued_at", "lock", "runnable", "solo")

    def __init__(self) -> None:
        self.lock: Final = RLock()
        self._members: dict[int, Member] = {}
        self._launching = 0
        self._queued = 0
        self._prompt = 0
        self._queued_at = 0
        self.solo = 0
        self.runnable = False

    @property
    def several(self) -> bool:
        """Whether another thread takes part, or is about to."""
        with self.lock:
            return len(self._members) > 1 or bool(self._launching or self._queued)

    def join(self) -> Member:
        """The calling thread takes part from now on."""
        return self.add(get_native_id(), get_ident())

    def add(self, native: int, ident: int) -> Member:
        member = self._members.get(native)
        if member is None or member.ident != ident:
            if member is not None:
                member.dismiss()
            member = self._members[native] = Member(native, ident)
            self._count()
        return member

    # -- what the hooks tell ---------------------------------------------------------------------------------------------

    def launching(self) -> None:
        """The calling thread starts a thread; until ``launched`` nothing counts as still."""
        with self.lock:
            self.join()
            self._launching += 1
            self._count()

    def launched(self, native: int | None, ident: int | None) -> None:
        """The thread has been started, or (``None``) could not be."""
        with self.lock:
            if native is not None and ident is not None:
                self.add(native, ident)
            self._launching -= 1
            self._count()

    def queued(self, prompt: bool = False) -> None:
        """The calling thread submits a call to a pool; ``prompt``: one that has a worker free for it."""
        with self.lock:
            self.join()
            self._queued += 1
            self._prompt += prompt
            self._queued_at = monotonic_ns()
            self._count()

    def taken_up(self) -> None:
        """A submitted call is begun by the calling thread."""
        with self.lock:
            self._queued -= 1
            self._prompt = max(0, self._prompt - 1)
            self.join()
            self._count()

    def withdrawn(self) -> None:
        """A submitted call was cancelled before it began."""
        with self.lock:
            self._queued -= 1
            self._prompt = min(self._prompt, self._queued)
            self._count()

    def away(self) -> None:
        """A thread goes out into the real world (a step that is live in a replay): nothing counts as still until ``back``."""
        self.launching()

    def back(self) -> None:
        self.launched(None, None)

    def _count(self) -> None:
        alone = len(self._members) == 1 and not self._launching and not self._queued
        self.solo = next(iter(self._members.values())).ident if alone else 0

    # -- what can be seen ------------------------------------------------------------------------------------------------

    def blocked(self, me: Member | None) -> bool:
        """Whether all others are known to be blocked still, from one look at each."""
        if self._launching or self._about_to_run():
            return False
        for member in self._members.values():
            if member is me or member.waiting:
                continue
            if not _PRECISE or member.proven is None or member.look() != member.proven:
                return False
        return True

    def stillness(self, now: int) -> int:
        """For how long (ns) nobody who is not held has moved; looks at each."""
        self.runnable = False
        if self._launching or self._about_to_run():
            return 0
        since, gone = 0, []
        for member in self._members.values():
            look = member.look()
            if look is None:
                gone.append(member)
            elif not member.waiting:
                self.runnable |= look is True
                if look is True or look != member.last:
                    member.last, member.since, member.proven = look, now, None
                since = max(since, member.since)
        for member in gone:
            del self._members[member.native]
            member.dismiss()
        if gone:
            self._count()
        still = now - since
        if still >= QUICK:
            for member in self._members.values():
                member.proven = member.last
        return still

    def _about_to_run(self) -> bool:
        if not self._queued:
            return False
        return monotonic_ns() - self._queued_at < (_PROMPT if self._prompt else _UPTAKE)

    def woken(self, ident: int) -> None:
        """The thread of a loop has been given something to do."""
        for member in self._members.values():
            if member.ident == ident:
                member.moved()

    def disband(self) -> None:
        for member in self._members.values():
            member.dismiss()
        self._members.clear()
        self.solo = 0
