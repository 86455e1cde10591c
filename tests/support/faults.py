"""A disk that begins to fail: writes, syncs or changes of directories below a directory end in an error from some call on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracekit import _reality
from tracekit._journal import writer
from tracekit._reality import OwnLock, system

__all__ = ["KINDS", "Faults", "after_each_sync"]

#: What fails, and with which error; ``short``: half of what is written arrives before the disk is full; ``large``: what is short has
#: room still, and of the rest that much arrives.
KINDS = {
    "full": ("write", errno.ENOSPC),
    "short": ("write", errno.ENOSPC),
    "large": ("write", errno.ENOSPC),
    "write": ("write", errno.EIO),
    "sync": ("sync", errno.EIO),
    "read-only": ("directory", errno.EROFS),
}


#: Where what brings a file to the device is called from: by tracekit, and by others.
SYNCS = (
    (os, "fsync"),
    (os, "fdatasync"),
    (system, "fsync"),
    (system, "fdatasync"),
    (_reality, "fdatasync"),
    (writer, "_fdatasync"),
)


#: How many bytes have room on a disk that is full for what is ``large``: an intent record has.
ROOM = 600


class Faults:
    """The ``nth`` call of a kind fails, and so does every later one, unless ``once``. ``passed`` counts the calls."""

    def __init__(self, root: Path, kind: str, nth: int, *, once: bool = False) -> None:
        self.root = str(root)
        self.kind = kind
        self.what, self.number = KINDS[kind]
        self.nth = nth
        self.once = once
        self.passed = 0
        #: Set from the first failure on; ``at_failure`` is called then.
        self.failed = False
        self.at_failure: Callable[[], object] = lambda: None
        #: Whether a part of something has just been written for which there is no room.
        self._taken = False
        #: The disk is below tracekit: its lock is none of the program's.
        self._lock = OwnLock()

    @contextmanager
    def at_work(self) -> Iterator[Faults]:
        undo: list[Callable[[], None]] = []

        def exchange(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
            before = vars(owner)[name]
            setattr(owner, name, made(before))
            undo.append(lambda: setattr(owner, name, before))

        if self.what == "write":
            for owner in (os, system):
                exchange(owner, "write", self._write)
            exchange(writer.Journal, "_os_write", lambda real: staticmethod(self._write(real)))
        elif self.what == "sync":
            for owner, name in SYNCS:
                exchange(owner, name, self._sync)
        else:
            for owner in (os, system):
                exchange(owner, "open", self._open)
                for name in ("mkdir", "replace", "rename", "link", "unlink"):
                    exchange(owner, name, self._change)
        try:
            yield self
        finally:
            for restore in reversed(undo):
                restore()

    def _fails(self) -> bool:
        with self._lock:
            self.passed += 1
            now = self.passed == self.nth or (self.passed > self.nth and not self.once)
            if now and not self.failed:
                self.failed = True
                self.at_failure()
            return now

    def _error(self) -> OSError:
        return OSError(self.number, os.strerror(self.number))

    def _ours(self, fd: int) -> bool:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(self.root)

    def _write(self, real: Any) -> Any:
        def write(fd: int, data: bytes) -> int:
            if self._ours(fd) and self._taken:  # the rest of what was cut short
                self._taken = False
                raise self._error()
            if not self._ours(fd) or (self.kind == "large" and len(data) <= ROOM) or not self._fails():
                return int(real(fd, data))
            if self.kind == "large":
                self._taken = True
                return int(real(fd, data[:ROOM]))
            if self.kind == "short" and self.passed == self.nth and len(data) > 1:
                return int(real(fd, data[: len(data) // 2]))
            raise self._error()

        return write

    def _sync(self, real: Any) -> Any:
        def sync(fd: int) -> None:
            if self._ours(fd) and self._fails():
                raise self._error()
            real(fd)

        return sync

    def _open(self, real: Any) -> Any:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            changes = flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            if changes and self._below(path, dir_fd) and self._fails():
                raise self._error()
            return int(real(path, flags, mode, dir_fd=dir_fd))

        return opened

    def _change(self, real: Any) -> Any:
        def change(path: Any, *args: Any, **options: Any) -> Any:
            directory = options.get("dir_fd", options.get("src_dir_fd"))
            if self._below(path, directory) and self._fails():
                raise self._error()
            return real(path, *args, **options)

        return change

    def _below(self, path: Any, directory: int | None) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        whole = os.fspath(path)
        if not os.path.isabs(whole):
            whole = os.path.join(os.getcwd() if directory is None else os.readlink(f"/proc/self/fd/{directory}"), whole)
        return whole.startswith(self.root)


@contextmanager
def after_each_sync(note: Callable[[Path, bytes], object]) -> Iterator[None]:
    """Call ``note`` with the path of each file that is brought to the device, and with what is there from then on."""

    def noting(real: Any) -> Any:
        def sync(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            data = path.read_bytes() if path.is_file() else b""
            real(fd)
            note(path, data)

        return sync

    places = tuple(one for one in SYNCS if one[0] is not _reality)
    before = [getattr(owner, name) for owner, name in places]
    for (owner, name), real in zip(places, before, strict=True):
        setattr(owner, name, noting(real))
    try:
        yield
    finally:
        for (owner, name), real in zip(places, before, strict=True):
            setattr(owner, name, real)
