"""One live writer a file. The kernel drops the lock with its holder, so a stale one never blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .. import _reality
from ..errors import RunStateError

__all__ = ["holder", "live_writer", "lock"]

#: Somebody may be looking who writes it (see ``holder``), which takes no time: so often, and so many seconds apart, is asked again.
_TRIES: Final = 5
_APART: Final = 0.002


def lock(fd: int, path: str) -> None:
    """Take the writer's lock of the open file ``fd``, held until it is closed. ``RunStateError`` if there is a live writer."""
    for _ in range(_TRIES):
        if _taken(fd):
            return
        _reality.sleep(_APART)
    pid = _holder(fd)
    who = "another process" if pid is None else f"process {pid}"
    raise RunStateError(
        f"{path} is being written by {who}" + (" (this one)" if pid == os.getpid() else ""),
        path=path,
        pid=pid,
        next_action="wait until that run has ended, or end that process",
    )


def _taken(fd: int) -> bool:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(path: str) -> int | bool:
    """Who writes the file at ``path``: a pid, ``True`` where the system does not name it, ``False`` for nobody. Changes nothing.

    What ``/proc/locks`` says is not enough: it leaves out other containers, and layered file systems go by other numbers there.
    """
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(fd) or True
        return False
    finally:
        os.close(fd)


@contextmanager
def live_writer(path: str) -> Iterator[bool]:
    """Whether the file at ``path`` has a live writer; where it has none, nobody becomes one inside the block."""
    import fcntl

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield True
        else:
            yield False
    finally:
        os.close(fd)


def _holder(fd: int) -> int | None:
    """The pid that the kernel names for the lock, where it tells (Linux)."""
    about = os.fstat(fd)
    wanted = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if "FLOCK" in words and "->" not in words and wanted in words:
                    return int(words[words.index(wanted) - 1])
    except (OSError, ValueError):
        pass
    return None
