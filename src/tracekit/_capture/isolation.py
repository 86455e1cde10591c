"""Isolation of a replayed program below Python: an empty network namespace, and a scratch layer over the file system.

On Linux a process can move itself into a network namespace that has nothing, not even an active loopback device, and
into a mount namespace in which everything it writes goes to an overlay in memory. It can't leave either by itself, so
this is for ``tracekit replay``, which starts nothing else in its process; it must happen before the first thread
starts. Child processes are inside as well. Sockets in the file system (Unix sockets) are covered by neither; the guard
handles them.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

from .. import _reality

__all__ = [
    "LayerChange",
    "ScratchLayer",
    "adopt_orphans",
    "available",
    "end_with_parent",
    "enter",
    "separate_descriptors",
]

_NEW_NS: Final = 0x00020000
_NEW_USER: Final = 0x10000000
_NEW_NET: Final = 0x40000000
_PARENT_DEATH_SIGNAL: Final = 1
_CHILD_SUBREAPER: Final = 36
#: ``close_range``, by its number, which is that of every architecture: older C libraries have no function for it.
_CLOSE_RANGE: Final = 436
_UNSHARE_DESCRIPTORS: Final = 2
#: Above every descriptor that a process can have.
_LAST_DESCRIPTOR: Final = 0x7FFFFFFF


def available() -> bool:
    """Return whether ``enter`` would work now, tried in a short-lived child process."""
    return sys.platform.startswith("linux") and _alone() and not _tried(lambda: _unshare(_NEW_NET)[1])


def enter(*, loopback: bool = False) -> str:
    """Move this process into an empty network namespace; return what is in force, or ``"not isolated: …"`` with the
    reason.

    ``loopback`` activates the namespace's own loopback device. It is not the host's: no server outside can be reached
    through it, so a replay with ``allow_hosts`` must not be isolated.
    """
    if not sys.platform.startswith("linux"):
        return f"not isolated: network namespaces are Linux's, and this is {sys.platform}"
    if not _alone():
        return "not isolated: the process has several threads already"
    how, reason = _unshare(_NEW_NET)
    if reason:
        return f"not isolated: {reason}"
    up = loopback and _loopback_up()
    reach = "nothing reachable but its own loopback" if up else "nothing reachable"
    return f"network namespace of its own ({how}), {reach}"


def _alone() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _tried(what: Any) -> str:
    """Run ``what`` in a child process that ends at once; return an empty string if it worked, else the reason."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        reason = "it failed"
        with suppress(BaseException):
            reason = what()
        with suppress(BaseException):
            os.write(into, reason.encode()[:1024])
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as answer:
        text = answer.read().decode(errors="replace")
    os.waitpid(child, 0)
    return text


def _unshare(flags: int) -> tuple[str, str]:
    """Unshare the namespaces; return how it worked and why it failed, one of which is empty.

    Tried first with the process's own rights, since a user namespace hides other users' files; then with such a
    namespace.
    """
    uid, gid = os.geteuid(), os.getegid()
    reason = _call("unshare", flags)
    if not reason:
        return "privileged", ""
    reason = _call("unshare", _NEW_USER | flags)
    if reason:
        return "", reason
    for file, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with suppress(OSError), open(f"/proc/self/{file}", "w") as stream:
            stream.write(content)
    return "unprivileged", ""


def _call(name: str, *args: Any) -> str:
    """Call a function of the C library; return an empty string if it worked, else the system's reason."""
    import ctypes

    try:
        function = getattr(_library(), name)
    except (OSError, AttributeError):
        return f"this C library has no {name}"
    return os.strerror(ctypes.get_errno()) if function(*args) else ""


@cache
def _library() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def separate_descriptors() -> Callable[[int], None]:
    """Return a function that gives the calling thread a table of descriptors of its own: the standard streams, and the
    one that it is called with, if any (``-1``: none).

    The program may then close and open whatever it likes without reaching what this thread uses, and this thread takes
    no number that the program would have got. Where the system can't do so (Linux before 5.9), the function does
    nothing. What it needs is imported here, not in the thread that calls it.
    """
    if not sys.platform.startswith("linux"):
        return lambda kept: None

    def separate(kept: int) -> None:
        if not _call("syscall", _CLOSE_RANGE, _LAST_DESCRIPTOR, _LAST_DESCRIPTOR, _UNSHARE_DESCRIPTORS):
            for first, last in ((3, kept - 1), (max(kept, 2) + 1, _LAST_DESCRIPTOR)):
                if first <= last:
                    _call("syscall", _CLOSE_RANGE, first, last, 0)

    _library()
    return separate


def adopt_orphans() -> bool:
    """Become the parent of processes that this process's children orphan; return whether the system supports it."""
    return sys.platform.startswith("linux") and not _call("prctl", _CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """On Linux, have the kernel kill this process when its parent dies, whatever it is doing. No effect elsewhere."""
    if sys.platform.startswith("linux"):
        _call("prctl", _PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def _loopback_up() -> bool:
    import fcntl
    import socket
    import struct

    get, put, up = 0x8913, 0x8914, 0x1
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, get, struct.pack("16sH14s", b"lo", 0, b""))
        flags = struct.unpack("16sH14s", request)[1]
        fcntl.ioctl(sock, put, struct.pack("16sH14s", b"lo", flags | up, b""))
        return True
    return False


# -- files -------------------------------------------------------------------------------------------------------------
#
# Each directory of the root gets an overlay: reads come from the lower directory, writes go to an upper directory in
# memory, which vanishes with the last process in the namespace. A file system that is mounted below a directory is not
# visible in the overlay, so it is mounted there again and gets an overlay of its own. An unprivileged process may not
# look below a mount point: for it, the subdirectories are covered one by one.

_BIND: Final = 0x1000
_RECURSIVE: Final = 0x4000
_PRIVATE: Final = 0x40000
_DETACH: Final = 2
#: Directories that hold no user's files, or only files that vanish at the next boot.
_OF_THE_SYSTEM: Final = ("/proc", "/sys", "/dev", "/run")
#: The maximum number of directories to cover; any more are reported.
_MAX_COVERED: Final = 256
#: A space, for example, as written in /proc/self/mountinfo.
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
#: The interpreter's own files.
_CACHES: Final = "__pycache__"


class LayerChange(NamedTuple):
    """A change that the program made in its layer: a path, and whether it was written or removed."""

    path: str
    removed: bool
    copy: str

    @property
    def text(self) -> str:
        return f"{self.path} (removed)" if self.removed else self.path


class _Covered(NamedTuple):
    path: str
    below: int
    above: int
    #: What the descriptors ``below`` and ``above`` stand for, as long as the program has not closed them.
    held: tuple[tuple[int, int], tuple[int, int]]

    def verify(self) -> None:
        """Raise ``OSError`` if the program has closed a descriptor, whoever has its number now."""
        if (_identity(self.below), _identity(self.above)) != self.held:
            raise OSError(errno.EBADF, "the program has closed tracekit's open files")


def _identity(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


class ScratchLayer:
    """An overlay over the file system for everything that this process and its children write from now on."""

    def __init__(self, memory: str, passes: set[str]) -> None:
        self._memory: Final = memory
        self._passes: Final = passes
        self._covered: Final[list[_Covered]] = []
        #: Directories that could not be covered: writes there are real.
        self.open: Final[list[str]] = []
        #: Mount points in covered directories without an overlay of their own: writes there are real.
        self._uncovered: Final[list[str]] = []
        #: A second place at which a directory is visible, and that directory; see ``show``.
        self._shown: tuple[str, str] | None = None
        #: What the layer was created for, and its state at that time; see ``is_for`` and ``untouched``.
        self._laid_for: tuple[str, frozenset[str]] | None = None
        self._marks: list[tuple[int, int]] = []

    @classmethod
    def enter(cls, passes: Iterable[str] = (), *, temporary: bool = False) -> ScratchLayer | str:
        """Create and enter a layer, except over ``passes`` and, unless ``temporary``, the directory for temporary
        files; return the reason if that fails.

        A working directory within the temporary files is covered in any case: the files a program finds there are its
        own.
        """
        passes = list(passes)
        found = cls._enter(passes, temporary)
        if isinstance(found, ScratchLayer) and not temporary:
            found._laid_for = _for(passes)
        return found

    @classmethod
    def possible(cls) -> bool:
        """Return whether a layer that covers temporary files, too, can be created now, tried in a short-lived child
        process."""
        return _alone() and not _tried(lambda: found if isinstance(found := cls.enter(temporary=True), str) else "")

    @classmethod
    def _enter(cls, passes: list[str], all_temporary: bool) -> ScratchLayer | str:
        if not sys.platform.startswith("linux"):
            return f"overlays of the file system are Linux's, and this is {sys.platform}"
        if not _alone():
            return "the process has several threads already"
        reason = _unshare(_NEW_NS)[1] or _mount("none", "/", "", _RECURSIVE | _PRIVATE)
        if reason:
            return reason
        mounted = _mounted()
        temporary = os.path.realpath(tempfile.gettempdir())
        memory = tempfile.mkdtemp(prefix="tracekit-", dir=temporary)
        reason = _mount("tmpfs", memory, "tmpfs", 0, "mode=0700")
        fd, around = (os.open(one, os.O_PATH | os.O_CLOEXEC) for one in (memory, temporary))
        try:
            if reason:
                return reason
            layer = cls(
                f"/proc/self/fd/{fd}",
                {one for one in (*map(os.path.realpath, passes), temporary) if os.path.isdir(one)},
            )
            return layer._laid(mounted, temporary, memory, all_temporary)
        except OSError as error:
            return str(error)
        finally:
            # The overlays keep the memory file system alive: the directory itself must not be left behind, however the
            # process ends.
            _umount(memory)  # remounted on top of a layer
            _umount(f"/proc/self/fd/{fd}")
            with suppress(OSError):
                os.rmdir(os.path.basename(memory), dir_fd=around)
            os.close(fd)
            os.close(around)

    def _laid(self, mounted: set[str], temporary: str, memory: str, all_temporary: bool) -> ScratchLayer | str:
        cwd = os.getcwd()
        others = self._passes - {temporary}
        kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in sorted(self._passes)}
        self._cover("/", mounted, _notes())
        for path, fd in kept.items():
            if self._under(path):
                _mount(f"/proc/self/fd/{fd}", path, "", _BIND | _RECURSIVE)
            os.close(fd)
            if path == temporary:  # before the paths inside it that are passed through
                if all_temporary:
                    if self._under(path):
                        _umount(memory)
                    self._passes.discard(temporary)
                    self._cover(temporary, mounted, _notes())
                    if not self.covers(temporary):
                        return f"{temporary} can't be covered"
                elif cwd.startswith(temporary + os.sep) and not any(_is_in(cwd, one) for one in others):
                    self._cover(cwd, mounted, _notes())
        os.chdir(cwd)
        if self.open and not self.covers(cwd) and not self._passing(cwd):
            self.leave()
            return f"{cwd} can't be covered"
        return self

    def _cover(self, directory: str, mounted: set[str], more: str) -> None:
        below = directory.rstrip(os.sep) + os.sep
        if directory in self._passes or directory in _OF_THE_SYSTEM:
            return
        inside = sorted(one for one in mounted if one.startswith(below) and one != directory)
        if directory != "/":
            if len(self._covered) < _MAX_COVERED and self._lay_below(directory, inside, mounted, more):
                return
            if not inside:
                if os.access(directory, os.X_OK):
                    self.open.append(directory)
                return
        try:
            with os.scandir(directory) as found:
                children = sorted(one.path for one in found if one.is_dir(follow_symlinks=False))
        except OSError:
            return
        for child in children:
            self._cover(child, mounted, more)

    def _lay_below(self, directory: str, inside: list[str], mounted: set[str], more: str) -> bool:
        """Cover a directory and the file systems mounted ``inside`` it; return whether that worked."""
        passes = [one for one in self._passes if _is_in(one, directory)]
        roots: dict[str, int] = {}
        try:
            for one in inside:
                if not any(_is_in(one, other) for other in (*passes, *roots)):
                    with suppress(FileNotFoundError):  # hidden by another file system mounted above it
                        roots[one] = os.open(one, os.O_PATH | os.O_CLOEXEC)
            if not self._lay(directory, more):
                return False
            for root, fd in roots.items():
                if _mount(f"/proc/self/fd/{fd}", root, "", _BIND | _RECURSIVE):
                    self._remove(self._covered.pop())
                    return False
        except OSError:
            return False
        finally:
            for fd in roots.values():
                os.close(fd)
        for root in roots:
            if os.path.isdir(root):
                self._cover(root, mounted, more)
            if all(one.path != root for one in self._covered):
                self._uncovered.append(root)
        return True

    @staticmethod
    def _remove(covered: _Covered) -> None:
        _umount(covered.path)
        os.close(covered.below)
        os.close(covered.above)

    def _lay(self, directory: str, more: str) -> bool:
        below = os.open(directory, os.O_PATH | os.O_CLOEXEC)
        own = os.path.join(self._memory, str(len(os.listdir(self._memory))))
        for name in ("above", "work"):
            os.makedirs(os.path.join(own, name), exist_ok=True)
        about = os.stat(directory)
        shutil.copymode(directory, os.path.join(own, "above"))
        with suppress(OSError):
            os.chown(os.path.join(own, "above"), about.st_uid, about.st_gid)
        base = os.open(own, os.O_PATH | os.O_CLOEXEC)
        at = f"/proc/self/fd/{base}"
        options = f"lowerdir=/proc/self/fd/{below},upperdir={at}/above,workdir={at}/work{more}"
        if _mount("overlay", directory, "overlay", 0, options):
            os.close(below)
            os.close(base)
            return False
        self._covered.append(_Covered(directory, below, base, (_identity(below), _identity(base))))
        return True

    def covers(self, path: str) -> bool:
        """Return whether a write to this (real) path goes into the layer."""
        if self._shown is not None and _is_in(path, self._shown[0]):
            path = self._shown[1] + path[len(self._shown[0]) :]
        covered = max((len(one.path) for one in self._covered if _is_in(path, one.path)), default=-1)
        uncovered = (*self._passes, *self.open, *self._uncovered)
        return covered > max((len(one) for one in uncovered if _is_in(path, one)), default=-1)

    def may_hide(self, path: str) -> bool:
        """Return whether this (real) path can be removed in the layer alone: it is covered, and neither the current directory
        nor anything that is passed through is below it."""
        return self.covers(path) and not any(_is_in(one, path) for one in (*self._passes, os.getcwd()))

    def show(self, directory: str, place: str) -> bool:
        """Make ``directory`` visible at ``place``, too, for this process and its children, hiding whatever is there;
        return whether that worked."""
        try:
            os.makedirs(place, exist_ok=True)
        except OSError:
            return False
        if not self._under(place) or _mount(directory, place, "", _BIND | _RECURSIVE):
            return False
        self._shown = place, directory
        return True

    def _under(self, path: str) -> bool:
        return any(_is_in(path, one.path) for one in self._covered)

    def _passing(self, path: str) -> bool:
        return any(_is_in(path, one) for one in self._passes)

    def is_for(self, passes: Iterable[str]) -> bool:
        """Return whether ``enter(passes)`` in the current directory would create the same layer."""
        return self._laid_for == _for(passes)

    def mark(self) -> None:
        """Remember the layer's current state for ``untouched``."""
        self._marks = self._changed_at()
        # Changes within one tick of the file system's clock have the same time, so wait for the next tick.
        while any(_reality.coarse_time_ns() in times for times in self._marks):
            _reality.sleep(0.001)

    def untouched(self) -> bool:
        """Return whether nothing in the layer was written, removed or had its mode changed since ``mark``, even if that
        was undone."""
        # The first change in a covered directory, however deep, creates an entry at the top of its upper directory.
        return bool(self._marks) and self._changed_at() == self._marks

    def _changed_at(self) -> list[tuple[int, int]]:
        found = (os.stat("above", dir_fd=one.above) for one in self._covered)
        return [(one.st_ctime_ns, one.st_mtime_ns) for one in found]

    def own(self) -> None:
        """In a forked child: unshare the mounts, so that the child can remove them or add to them.

        Raises ``OSError`` if the mounts can't be unshared.
        """
        reason = _unshare(_NEW_NS)[1]
        if reason:
            raise OSError(f"no mounts of its own: {reason}")

    def changes(self) -> list[LayerChange]:
        """Return what has been written or removed so far and differs from the lower directory, ordered by path.

        Raises ``OSError`` if the program has closed what is needed for that, or given up the right to read it.
        """
        found: list[LayerChange] = []
        for one in self._covered:
            one.verify()
            above = f"/proc/self/fd/{one.above}/above"
            found += (change for change in _walk(above, f"/proc/self/fd/{one.below}", one.path))
        shown = self._shown
        return sorted(one for one in found if shown is None or not one.path.startswith(shown[0] + os.sep))

    def keep(self, directory: str, cwd: str) -> None:
        """Copy the written files into ``directory``; those in the working directory by their path relative to it."""
        for change in self.changes():
            if not change.removed:
                inside = os.path.relpath(change.path, cwd) if change.path.startswith(cwd + os.sep) else ""
                target = os.path.join(directory, inside or change.path.lstrip(os.sep))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(change.copy, target, follow_symlinks=False)

    def leave(self) -> None:
        """Remove the layer from this process: later writes are real, and everything written so far is discarded."""
        cwd = os.getcwd()
        if self._shown is not None:
            _umount(self._shown[0])
            cwd = self._shown[1] if cwd == self._shown[0] else cwd
        for one in reversed(self._covered):
            _umount(one.path)
        with suppress(OSError):
            os.chdir(cwd)
        for one in self._covered:
            os.close(one.below)
            os.close(one.above)
        self._covered.clear()


def _for(passes: Iterable[str]) -> tuple[str, frozenset[str]]:
    return os.getcwd(), frozenset(map(os.path.realpath, passes))


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)


def _walk(above: str, below: str, path: str) -> Iterator[LayerChange]:
    with os.scandir(above) as found:
        entries = list(found)
    for entry in entries:
        name, lower = os.path.join(path, entry.name), os.path.join(below, entry.name)
        about = entry.stat(follow_symlinks=False)
        if stat.S_ISCHR(about.st_mode) and not about.st_rdev:
            yield LayerChange(name, True, entry.path)
        elif stat.S_ISDIR(about.st_mode):
            if entry.name == _CACHES:
                continue
            if os.path.isdir(lower):
                yield from _walk(entry.path, lower, name)
            else:  # created or moved there: its contents exist only in the upper directory
                for place, _, files in os.walk(name):
                    yield from (LayerChange(os.path.join(place, one), False, os.path.join(place, one)) for one in files)
        elif not _is_same(entry.path, lower, about):
            yield LayerChange(name, False, entry.path)


def _is_same(one: str, other: str, about: os.stat_result) -> bool:
    try:
        if stat.S_ISLNK(about.st_mode):
            return os.readlink(one) == os.readlink(other)
        return stat.S_ISREG(about.st_mode) and filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def _notes() -> str:
    """Return the overlay's mount option for its metadata: inside a user namespace it may not use the usual one, with
    which it can rename directories."""
    with open("/proc/self/uid_map", encoding="utf-8") as lines:
        return ",redirect_dir=on" if lines.read().split() == ["0", "0", "4294967295"] else ",userxattr"


def _mounted() -> set[str]:
    """Return all mount points."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        return {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in lines}


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> str:
    import ctypes

    number = ctypes.c_ulong(flags)
    return _call("mount", os.fsencode(source), os.fsencode(target), kind.encode(), number, os.fsencode(options))


def _umount(path: str) -> None:
    _call("umount2", os.fsencode(path), _DETACH)
