"""A disk whose power fails: every write, sync and change of a directory is recorded, and what the disk could hold after any of them.

``Disk(root)`` exchanges the calls by which files below ``root`` are written while its block is open; each really happens, and is one
event. ``disk.after(count, keep)`` is what the disk may hold if the power fails after so many events: all that was written
(``"all"``), only what was synced (``"none"``), or an arbitrary part of the rest: by sectors of 512 bytes, any of the sizes that the file
had since its last sync, and each change of a directory for itself. A sync counts from when it has returned, and for what was
written before it began.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.support.faults import SYNCS
from tracekit._journal import writer
from tracekit._reality import OwnLock, system

__all__ = ["Disk", "Event", "Held", "lay"]

SECTOR = 512
Keep = Literal["all", "none"] | random.Random


class Event(NamedTuple):
    """One thing that happened: to the file ``inode``, to the entry ``path`` of a directory, or in the program (``fact``)."""

    kind: str
    path: str = ""
    inode: int = 0
    data: bytes = b""
    size: int = 0
    fact: Any = None


class Held(NamedTuple):
    """What a disk holds: the files by path, the directories, and what of each file is certain whatever was lost."""

    files: dict[str, bytes]
    directories: list[str]
    synced: dict[str, bytes]


class Disk:
    """See the module. ``happened`` is for what the program does beside the disk, in the same order."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.events: list[Event] = []
        #: The disk is below tracekit: its lock is none of the program's.
        self._lock = OwnLock()
        for path, directories, files in os.walk(self.root):
            for name in [*directories, *files]:
                whole = os.path.join(path, name)
                inode = os.lstat(whole).st_ino
                kind = "there" if name in files else "there-directory"
                data = Path(whole).read_bytes() if name in files else b""
                self.events.append(Event(kind, whole, inode, data))
        #: How many events only say what was there before, for certain.
        self.begins = len(self.events)

    def happened(self, fact: Any) -> None:
        with self._lock:
            self.events.append(Event("fact", fact=fact))

    # -- recording -------------------------------------------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[Disk]:
        undo: list[Callable[[], None]] = []

        def exchange(owner: Any, name: str, made: Any) -> None:
            before = vars(owner)[name]
            setattr(owner, name, made)
            undo.append(lambda: setattr(owner, name, before))

        write, sync = self._write(os.write), self._sync(os.fsync)
        for owner in (os, system):
            exchange(owner, "write", write)
        exchange(writer.Journal, "_os_write", staticmethod(write))
        for owner, name in SYNCS:
            exchange(owner, name, sync)
        for owner in (os, system):
            exchange(owner, "ftruncate", self._truncate(owner.ftruncate))
            exchange(owner, "open", self._open(owner.open))
            exchange(owner, "mkdir", self._mkdir(owner.mkdir))
            for name in ("replace", "rename", "link"):
                exchange(owner, name, self._moves(name, getattr(owner, name)))
            exchange(owner, "unlink", self._unlink(owner.unlink))
        try:
            yield self
        finally:
            for restore in reversed(undo):
                restore()

    def _ours(self, fd: int) -> str | None:
        """The path of an open file of ours."""
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return None
        return path if path == self.root or path.startswith(self.root + os.sep) else None

    def _named(self, path: Any, directory: int | None) -> str | None:
        whole = os.fspath(path)
        if not os.path.isabs(whole):
            whole = os.path.join(os.getcwd() if directory is None else os.readlink(f"/proc/self/fd/{directory}"), whole)
        return whole if whole.startswith(self.root + os.sep) else None

    def _write(self, real: Any) -> Any:
        def write(fd: int, data: bytes) -> int:
            path = self._ours(fd)
            if path is None:
                return int(real(fd, data))
            with self._lock:
                written = int(real(fd, data))
                about = os.fstat(fd)
                self.events.append(Event("write", path, about.st_ino, bytes(data[:written]), about.st_size))
            return written

        return write

    def _sync(self, real: Any) -> Any:
        def sync(fd: int) -> None:
            path = self._ours(fd)
            with self._lock:
                begun = len(self.events)
            real(fd)
            if path is not None:
                about = os.fstat(fd)
                kind = "sync-directory" if stat.S_ISDIR(about.st_mode) else "sync"
                with self._lock:
                    self.events.append(Event(kind, path, about.st_ino, size=begun))

        return sync

    def _truncate(self, real: Any) -> Any:
        def truncate(fd: int, size: int) -> None:
            path = self._ours(fd)
            with self._lock:
                real(fd, size)
                if path is not None:
                    self.events.append(Event("truncate", path, os.fstat(fd).st_ino, size=size))

        return truncate

    def _open(self, real: Any) -> Any:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            whole = self._named(path, dir_fd) if isinstance(path, str | os.PathLike) and flags & os.O_CREAT else None
            with self._lock:
                new = whole is not None and not os.path.lexists(whole)
                fd = int(real(path, flags, mode, dir_fd=dir_fd))
                if new and whole is not None:
                    self.events.append(Event("name", whole, os.fstat(fd).st_ino))
            return fd

        return opened

    def _mkdir(self, real: Any) -> Any:
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            with self._lock:
                real(path, mode, dir_fd=dir_fd)
                whole = self._named(path, dir_fd)
                if whole is not None:
                    self.events.append(Event("mkdir", whole))

        return mkdir

    def _moves(self, name: str, real: Any) -> Any:
        def move(source: Any, target: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None, **more: Any) -> None:
            old, new = self._named(source, src_dir_fd), self._named(target, dst_dir_fd)
            with self._lock:
                real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)
                if new is not None:
                    inode = os.lstat(new).st_ino
                    if name == "link":
                        self.events.append(Event("name", new, inode))
                    else:
                        self.events.append(Event("move", new, inode, fact=old))

        return move

    def _unlink(self, real: Any) -> Any:
        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            with self._lock:
                whole = self._named(path, dir_fd)
                real(path, dir_fd=dir_fd)
                if whole is not None:
                    self.events.append(Event("unlink", whole))

        return unlink

    # -- what the disk may hold ------------------------------------------------------------------------------------------

    def after(self, count: int, keep: Keep) -> Held:
        """What may be left if the power fails after ``count`` events."""
        files: dict[int, _File] = {}
        names: list[tuple[int, Event]] = []
        certain: set[int] = set()
        for number, event in enumerate(self.events[:count]):
            if event.kind in ("there", "there-directory"):
                files[event.inode] = _File(event.data)
                names.append((number, event))
                certain.add(number)
            elif event.kind in ("name", "mkdir", "move", "unlink"):
                names.append((number, event))
                if event.kind == "name":
                    files.setdefault(event.inode, _File(b""))
            elif event.kind in ("write", "truncate"):
                files.setdefault(event.inode, _File(b"")).change(number, event)
            elif event.kind == "sync":
                files[event.inode].sync(event.size)
            elif event.kind == "sync-directory":
                done = {at for at, name in names if at < event.size and os.path.dirname(name.path) == event.path}
                certain |= done
        kept = [event for number, event in names if number in certain or _chosen(keep)]
        return self._assembled(kept, files, keep)

    def _assembled(self, names: list[Event], files: dict[int, _File], keep: Keep) -> Held:
        directories, entries = {self.root}, dict[str, int]()
        for event in names:
            if event.kind in ("mkdir", "there-directory"):
                directories.add(event.path)
            elif event.kind == "unlink":
                entries.pop(event.path, None)
            else:
                if event.kind == "move":
                    entries.pop(event.fact, None)
                entries[event.path] = event.inode

        def reachable(path: str) -> bool:
            parent = os.path.dirname(path)
            return path == self.root or (parent in directories and reachable(parent))

        there = {path: inode for path, inode in entries.items() if reachable(path)}
        return Held(
            {os.path.relpath(path, self.root): files[inode].held(keep) for path, inode in there.items()},
            sorted(os.path.relpath(path, self.root) for path in directories if reachable(path)),
            {os.path.relpath(path, self.root): files[inode].durable for path, inode in there.items()},
        )


class _File:
    """One file's content: on the device for certain, and as the program sees it."""

    def __init__(self, data: bytes) -> None:
        self.durable = data
        self.now = data
        #: Each state since the last sync, by the number of the event that made it.
        self._states: list[tuple[int, bytes]] = []

    def change(self, number: int, event: Event) -> None:
        if event.kind == "truncate":
            self.now = self.now[: event.size].ljust(event.size, b"\0")
        else:
            start = event.size - len(event.data)  # appended, as all of ours are
            self.now = self.now[:start].ljust(start, b"\0") + event.data
        self._states.append((number, self.now))

    def sync(self, begun: int) -> None:
        for number, state in self._states:
            if number < begun:
                self.durable = state
        self._states = [(number, state) for number, state in self._states if number >= begun]

    def held(self, keep: Keep) -> bytes:
        if keep == "all" or not self._states:
            return self.now if keep == "all" else self.durable
        if keep == "none":
            return self.durable
        assert isinstance(keep, random.Random)
        size = keep.choice([len(self.durable), *(len(state) for _, state in self._states)])
        old, new = self.durable.ljust(size, b"\0"), self.now.ljust(size, b"\0")
        odds = keep.choice((0.1, 0.5, 0.9))
        return b"".join(
            (new if keep.random() < odds else old)[at : min(at + SECTOR, size)] for at in range(0, size, SECTOR)
        )


def _chosen(keep: Keep) -> bool:
    return keep == "all" or (keep != "none" and isinstance(keep, random.Random) and keep.random() < 0.5)


def lay(held: Held, directory: Path) -> None:
    """Write what a disk holds into a new directory."""
    for path in held.directories:
        (directory / path).mkdir(parents=True, exist_ok=True)
    for path, data in held.files.items():
        (directory / path).write_bytes(data)
