"""What a process can do to the live world, as the interpreter reports it: one :class:`Attempt` or none an event.

Audit events are the seam, since C code raises them too: a connection made by a module that imported ``socket.socket``
long ago, or by a class of its own derived from ``_socket.socket``, is seen like any other.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from .guard_hosts import numeric

__all__ = ["ACTS", "FILES", "LIVE", "Attempt", "Kind", "descriptor", "on_signal", "peer", "thread_start"]

#: An ``act`` is nothing that a replay holds back: only who may do nothing at all is asked about it.
Kind = Literal["connect", "lookup", "listen", "send", "process", "file", "act"]


class Attempt:
    """One operation that would reach outside: ``operation`` (``"socket.connect"``) and its address, name or path."""

    __slots__ = ("kind", "operation", "sock", "target")

    def __init__(self, kind: Kind, operation: str, target: object, sock: Any = None) -> None:
        self.kind: Final = kind
        self.operation: Final = operation
        self.target: Final = target
        self.sock: Final = sock

    @property
    def text(self) -> str:
        """The target in words."""
        target = self.target
        if isinstance(target, tuple) and len(target) >= 2:
            host = f"[{target[0]}]" if ":" in str(target[0]) else target[0]
            return f"{host}:{target[1]}"
        return os.fsdecode(target) if isinstance(target, str | bytes) else repr(target)


#: Families that never leave the kernel: routing tables, ciphers.
_LOCAL_FAMILIES: Final = frozenset({16, 38}) if sys.platform == "linux" else frozenset()
_UNIX: Final = 1
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED: Final = getattr(os, "O_TMPFILE", 0)
_SHARED: Final = ("/dev/shm/", "/dev/mqueue/")


def peer(sock: Any) -> object:
    """The far end of a connected socket, or ``None`` where there is none outside this process (a socket pair)."""
    if sock.family in _LOCAL_FAMILIES:
        return None
    try:
        return sock.getpeername() or None
    except OSError:
        return None


def _to(kind: Kind, operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    def describe(args: tuple[Any, ...]) -> Attempt | None:
        sock, address = args[0], args[1]
        if sock.family in _LOCAL_FAMILIES:
            return None
        if address is None:  # sendmsg on a connected socket
            address = peer(sock)
        if address is None or (sock.family == _UNIX and not address):
            return None
        return Attempt(kind, operation, address, sock)

    return describe


def descriptor(operation: str, fd: object) -> Attempt | None:
    """Writing to a descriptor that is open already: of a file, or a socket."""
    if not isinstance(fd, int):
        return None
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return None
    outside = stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
    return Attempt("act", operation, f"descriptor {fd}") if outside else None


def _lookup(operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    reverse = operation in ("socket.gethostbyaddr", "socket.getnameinfo")

    def describe(args: tuple[Any, ...]) -> Attempt | None:
        name = args[0][0] if operation == "socket.getnameinfo" else args[0]
        return None if numeric(name) and not reverse else Attempt("lookup", operation, name)

    return describe


def _process(operation: str, index: int | None) -> Callable[[tuple[Any, ...]], Attempt | None]:
    def describe(args: tuple[Any, ...]) -> Attempt | None:
        return Attempt("process", operation, _program(args, index))

    return describe


def _program(args: tuple[Any, ...], index: int | None) -> str:
    """The program's name alone: arguments may hold secrets."""
    if index is None or index >= len(args):
        return "a copy of this process"
    program = args[index] if args[index] is not None or len(args) < 2 else args[1]
    if isinstance(program, list | tuple):
        program = program[0] if program else ""
    text = os.fsdecode(program) if isinstance(program, str | bytes | os.PathLike) else str(program)
    return text.split(None, 1)[0] if text.strip() else text


def _change(operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    index = 1 if operation in ("os.link", "os.symlink") else 0  # what is made, not what it points to

    def describe(args: tuple[Any, ...]) -> Attempt | None:
        return None if _harmless(args[index]) else Attempt("file", operation, _path(args[index]))

    return describe


def _open(args: tuple[Any, ...]) -> Attempt | None:
    path, _, flags = args
    if not isinstance(flags, int) or not flags & _WRITING:
        return None
    if isinstance(path, int) or _harmless(path) or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
        return None
    if os.path.isdir(path):  # can't be written; tempfile.TemporaryFile asks so before it makes its file without a name
        return None
    return Attempt("file", "open", _path(path))


def _database(args: tuple[Any, ...]) -> Attempt | None:
    path = _path(args[0])
    text = os.fsdecode(path) if isinstance(path, str | bytes) else ""
    memory = text in ("", ":memory:")
    readable = text.startswith("file:") and any(mode in text for mode in ("mode=ro", "mode=memory", "file::memory:"))
    return None if memory or readable else Attempt("file", "sqlite3.connect", path)


def _path(path: object) -> object:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _harmless(path: object) -> bool:
    """Devices hold nothing: the null device, terminals, descriptors that are open already."""
    path = _path(path)
    if not isinstance(path, str | bytes):
        return False
    text = os.fsdecode(path)
    return text == os.devnull or (text.startswith("/dev/") and not text.startswith(_SHARED) and ".." not in text)


#: Who hears of a signal to another process before it is sent.
on_signal: list[Callable[[int], object]] = []


def _signal(args: tuple[Any, ...]) -> None:
    for call in on_signal if args[1] else ():  # signal 0 only asks whether there is such a process
        call(abs(args[0]))


def _to_process(operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    def describe(args: tuple[Any, ...]) -> Attempt | None:
        _signal(args)
        return Attempt("act", operation, f"process {args[0]}") if args[1] else None  # 0 asks whether it is there

    return describe


def thread_start(args: tuple[Any, ...]) -> Attempt:
    """The start of a thread, by the name of what is to run in it."""
    thread = getattr(args[0], "__self__", None)
    runs = getattr(thread, "_target", None) or thread or args[0]
    return Attempt("act", "thread.start", str(getattr(runs, "__qualname__", type(runs).__qualname__)))


_Table = Mapping[str, Callable[[tuple[Any, ...]], Attempt | None]]

#: Connections, look-ups, listening and processes, by audit event.
LIVE: Final[_Table] = {
    "socket.connect": _to("connect", "socket.connect"),
    "socket.bind": _to("listen", "socket.bind"),
    "socket.sendto": _to("send", "socket.sendto"),
    "socket.sendmsg": _to("send", "socket.sendmsg"),
    **{
        f"socket.{name}": _lookup(f"socket.{name}")
        for name in ("getaddrinfo", "gethostbyname", "gethostbyaddr", "getnameinfo")
    },
    "subprocess.Popen": _process("subprocess.Popen", 0),
    "os.system": _process("os.system", 0),
    "os.posix_spawn": _process("os.posix_spawn", 0),
    "os.exec": _process("os.exec", 0),
    "os.spawn": _process("os.spawn", 1),
    "os.startfile": _process("os.startfile", 0),
    "os.fork": _process("os.fork", None),
    "os.forkpty": _process("os.forkpty", None),
    "os.kill": _signal,
    "os.killpg": _signal,
    "_winapi.CreateProcess": _process("_winapi.CreateProcess", 0),
}

#: Writes, creations and deletions of files, by audit event.
FILES: Final[_Table] = {
    "open": _open,
    "sqlite3.connect": _database,
    **{
        f"os.{name}": _change(f"os.{name}")
        for name in (
            "chflags", "chmod", "chown", "link", "mkdir", "remove", "removexattr", "rename", "rmdir", "setxattr",
            "symlink", "truncate", "utime",
        )
    },
}  # fmt: skip

#: What else reaches beyond the caller's own line of execution, by audit event.
ACTS: Final[_Table] = {
    **{f"os.{name}": _to_process(f"os.{name}") for name in ("kill", "killpg")},
    **{f"_thread.{name}": thread_start for name in ("start_new_thread", "start_joinable_thread")},
}
