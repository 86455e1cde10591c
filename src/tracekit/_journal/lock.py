"""One live writer a file. The kernel drops the lock with its holder, so a stale one never blocks."""

from __future__ import annotations

import os

from ..errors import RunStateError

__all__ = ["lock"]


def lock(fd: int, path: str) -> None:
    """Take the writer's lock of the open file ``fd``, held until it is closed. ``RunStateError`` if there is a live writer."""
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = _holder(fd)
        who = "another process" if pid is None else f"process {pid}"
        raise RunStateError(
            f"{path} is being written by {who}" + (" (this one)" if pid == os.getpid() else ""),
            path=path,
            pid=pid,
            next_action="wait until that run has ended, or end that process",
        ) from None


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
