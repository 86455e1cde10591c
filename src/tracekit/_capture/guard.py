"""Operations that reach outside the process: a replay's guard refuses them, a recording notes them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from errno import ECONNREFUSED, ENOENT
from functools import cache, partial, wraps
from importlib import import_module
from inspect import iscoroutinefunction
from threading import current_thread, get_ident, get_native_id
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from .. import _reality
from .._lazy import expression
from .._runtime.around import Around
from .._runtime.boundary import Boundary, Status
from .._runtime.lane import ROOT
from .._runtime.process import has_children, process
from .._runtime.session import Scope, Session, Step, accounted_for, current, enter, here
from .._runtime.step import Request, Spec
from .._sources import STDLIB, TRACEKIT, in_packages, is_user_code
from ..errors import ContractViolationError, LiveCallBlockedError, RunStateError
from .callers import telemetry
from .listening import close_to_others, is_closed, name_of, nobody_connected, show_as, take_name
from .patch import AttributePatch, LatePatch, ReversiblePatch, Switch, loaded, owner_of, when_imported
from .plugins import Integration, Native, discover, is_observer, is_wrapper, sort_by_place

if TYPE_CHECKING:
    from .in_place import AuditHook

__all__ = [
    "ACTS",
    "FILES",
    "LIVE",
    "Attempt",
    "Caller",
    "Guard",
    "Hosts",
    "Kind",
    "Reach",
    "Refuse",
    "allow",
    "asks",
    "check",
    "descriptor",
    "engaged",
    "everywhere",
    "forbidding",
    "held_by_name",
    "hooks",
    "left_by_fork",
    "numeric",
    "observe",
    "peer",
    "read_from",
    "refuse",
    "signal_to_other",
    "warm",
    "watching",
]

# -- allowed hosts -----------------------------------------------------------------------------------------------------
#
# The hosts that a replay may reach: those named by ``allow_hosts``, and the addresses that these names resolved to.


class Hosts:
    """``allow_hosts``: ``"db.test"``, ``"db.test:5432"``, ``"127.0.0.1"``, ``"[::1]:80"``, or the path of a socket.

    An entry without a port covers every port. Resolving a listed host is allowed, and so are the resulting addresses,
    on the entry's ports.
    """

    __slots__ = ("_allowed",)

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._allowed: Final[set[tuple[str, int | None]]] = set()
        for entry in entries:
            host, port = _parse(entry)
            self._allowed.add((host, port))
            if host == "localhost":
                self._allowed.update({("127.0.0.1", port), ("::1", port)})

    def permits(self, address: object) -> bool:
        """Return whether a connection to this socket address (a ``(host, port, …)`` tuple, or a path) is allowed."""
        if not self._allowed:
            return False
        host, port = _split(address)
        return (host, None) in self._allowed or (host, port) in self._allowed

    def looks_up(self, name: object) -> bool:
        """Return whether this name may be resolved: an entry names it, with whatever port."""
        host = _plain(name)
        return any(host == allowed for allowed, _ in self._allowed)

    def note(self, name: object, addresses: Iterable[object]) -> None:
        """Allow the socket addresses that ``name`` resolved to, if the name is allowed."""
        host = _plain(name)
        ports = [port for allowed, port in self._allowed if allowed == host]
        for address in addresses:
            self._allowed.update((_split(address)[0], port) for port in ports)


def numeric(host: object) -> bool:
    """Return whether a host is empty or a numeric address, which needs no name look-up."""
    if host is None or host in ("", b"", "<broadcast>"):
        return True
    return _canonical(_text(host)) is not None


def _parse(entry: str) -> tuple[str, int | None]:
    if entry.startswith("[") and "]" in entry:
        host, _, rest = entry[1:].partition("]")
        return _plain(host), int(rest[1:]) if rest.startswith(":") else None
    host, colon, port = entry.rpartition(":")
    if colon and ":" not in host and port.isdigit() and not entry.startswith("/"):
        return _plain(host), int(port)
    return _plain(entry), None


def _split(address: object) -> tuple[str, int | None]:
    if isinstance(address, tuple) and address:
        port = address[1] if len(address) > 1 and isinstance(address[1], int) else None
        return _plain(address[0]), port
    return _plain(address), None


def _plain(host: object) -> str:
    text = _text(host)
    if text.startswith("/"):
        return text
    return _canonical(text) or text.rstrip(".").lower()


def _text(host: object) -> str:
    if isinstance(host, bytes | bytearray):
        return bytes(host).decode("utf-8", "surrogateescape")
    return str(host)


def _canonical(host: str) -> str | None:
    """Return a numeric address in its shortest form (IPv4 if it is mapped into IPv6), or ``None`` for a name."""
    from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton  # light: no selectors, no enums

    bare = host.partition("%")[0]
    for family in (AF_INET, AF_INET6):
        try:
            address = inet_ntop(family, inet_pton(family, bare))
        except (OSError, ValueError):
            continue
        return address.removeprefix("::ffff:") if "." in address else address
    return None


# -- audit events ------------------------------------------------------------------------------------------------------
#
# Operations that reach outside, as the interpreter reports them: at most one ``Attempt`` per event. Audit events are
# used because C code raises them, too: a connection made by a module that imported ``socket.socket`` long ago, or by a
# class derived from ``_socket.socket``, is seen like any other.

#: A replay does not block an ``act``: only sessions in which nothing at all is allowed are asked about it.
Kind = Literal[
    "accept",
    "connect",
    "lookup",
    "listen",
    "send",
    "process",
    "fork",
    "native",
    "file",
    "stdin",
    "queue",
    "look",
    "wait",
    "act",
]


class Attempt:
    """An operation that would reach outside: ``operation`` (``"socket.connect"``) and its address, name or path."""

    __slots__ = ("kind", "mode", "operation", "replaces", "sock", "target")

    def __init__(
        self,
        kind: Kind,
        operation: str,
        target: object,
        sock: Any = None,
        replaces: object = None,
        mode: int | None = None,
    ) -> None:
        self.kind: Final = kind
        self.operation: Final = operation
        self.target: Final = target
        self.sock: Final = sock
        #: For a file being renamed, its new name.
        self.replaces: Final = replaces
        #: For a file whose permissions are set, the permissions.
        self.mode: Final = mode

    @property
    def text(self) -> str:
        """The target as text; for a renamed file, the file that it replaces, if one exists."""
        target = self.target
        if isinstance(self.replaces, str | bytes):
            with _reality.off_loop():
                target = self.replaces if os.path.lexists(self.replaces) else target
        if isinstance(target, tuple) and len(target) >= 2:
            host = f"[{target[0]}]" if ":" in str(target[0]) else target[0]
            return f"{host}:{target[1]}"
        return os.fsdecode(target) if isinstance(target, str | bytes) else repr(target)


#: Families that never leave the kernel: routing tables, ciphers.
_LOCAL_FAMILIES: Final = frozenset({16, 38}) if sys.platform == "linux" else frozenset()
_UNIX: Final = 1
_STREAM: Final = 1
_DATAGRAM: Final = 2
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNNAMED: Final = getattr(os, "O_TMPFILE", 0)
_SHARED: Final = ("/dev/shm/", "/dev/mqueue/")


@cache
def _number_of_family() -> Callable[[Any], int]:
    """Return a function for a socket's numeric family: Python's own property looks up an enum, which takes longer than
    a small ``send``."""
    from _socket import socket

    getter: Callable[[Any], int] = vars(socket)["family"].__get__
    return getter


def peer(sock: Any) -> object:
    """Return the remote address of a connected socket, or ``None`` if it is not outside this process (a socket pair)."""
    if _number_of_family()(sock) in _LOCAL_FAMILIES:
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
    """Describe writing to an open descriptor: of a file, or a socket."""
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
    """Return only the program's name: arguments may contain secrets."""
    if index is None or index >= len(args):
        return "a copy of this process"
    program = args[index] if args[index] is not None or len(args) < 2 else args[1]
    if isinstance(program, list | tuple):
        program = program[0] if program else ""
    text = os.fsdecode(program) if isinstance(program, str | bytes | os.PathLike) else str(program)
    return text.split(None, 1)[0] if text.strip() else text


#: Audit events whose last argument is a directory's descriptor.
_BY_DIRECTORY: Final = frozenset(
    f"os.{name}" for name in ("chmod", "chown", "link", "mkdir", "remove", "rmdir", "symlink", "utime")
)


def _change(operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    index = 1 if operation in ("os.link", "os.symlink") else 0  # what is created, not what it points to

    def describe(args: tuple[Any, ...]) -> Attempt | None:
        if _harmless(args[index]):
            return None
        if operation == "os.rename":
            return Attempt("file", operation, _from(args[0], args[2]), replaces=_from(args[1], args[3]))
        path = _from(args[index], args[-1] if operation in _BY_DIRECTORY else None)
        return Attempt("file", operation, path, mode=args[1] if operation == "os.chmod" else None)

    return describe


def _from(path: object, directory: object) -> object:
    """Return a path, resolved against the directory of this descriptor if it is relative to one."""
    path = _path(path)
    if type(directory) is int and directory >= 0 and isinstance(path, str | bytes) and not os.path.isabs(path):
        with suppress(OSError), _reality.off_loop():
            return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), os.fsdecode(path))
    return path


def _open(args: tuple[Any, ...]) -> Attempt | None:
    path, _, flags = args
    if not isinstance(flags, int) or not flags & _WRITING:
        return None
    if isinstance(path, int) or _harmless(path) or (_UNNAMED and flags & _UNNAMED == _UNNAMED):
        return None
    if _reality.is_directory(path):  # can't be written: so ``tempfile.TemporaryFile`` asks whether it can be unnamed
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


#: The devices that store nothing and lead nowhere: others are disks, printers, serial lines.
_DEVICES: Final = expression(
    r"/dev/(?:null|zero|full|u?random|tty|console|ptmx|std(?:in|out|err)|fd/\d+|pts/(?:\d+|ptmx)|[pt]ty[p-za-e]\w*)"
)


def _harmless(path: object) -> bool:
    """Return whether a path is a device that stores nothing: the null device, terminals, descriptors already open."""
    path = _path(path)
    if not isinstance(path, str | bytes):
        return False
    text = os.fsdecode(path)
    return text == os.devnull or _DEVICES.fullmatch(text) is not None


def _signal(operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    def describe(args: tuple[Any, ...]) -> Attempt | None:
        number, sent = args
        if sent:  # 0 only asks whether the process exists
            process.about_to_signal(abs(number))
        return signal_to_other(operation, number, sent)

    return describe


@_reality.off_loop()
def signal_to_other(operation: str, number: int, sent: int) -> Attempt | None:
    """Describe a signal that ``os.kill`` or ``os.killpg`` is about to send to a process, or group, that the program has
    not started here.

    The program's own group counts as its own. Returns ``None`` otherwise, or if the kernel does not say who started
    which process.
    """
    if not sent or number in (0, os.getpid()) or not _lists_children():
        return None
    ours = {one for one in (os.getpid(), *_descendants(os.getpid())) if one not in _engaged.seams.before}
    if operation == "os.killpg" or number < 0:
        ours = {_group(one) for one in ours}
    return None if abs(number) in ours else Attempt("send", operation, f"process {number}, signal {sent}")


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended
        return 0


@cache
def _lists_children() -> bool:
    """Return whether the kernel says which processes a process has started."""
    return os.path.exists(f"/proc/self/task/{get_native_id()}/children")


def _to_process(operation: str) -> Callable[[tuple[Any, ...]], Attempt | None]:
    def describe(args: tuple[Any, ...]) -> Attempt | None:
        if args[1]:
            process.about_to_signal(abs(args[0]))
        return Attempt("act", operation, f"process {args[0]}") if args[1] else None  # 0 only asks whether it exists

    return describe


def thread_start(args: tuple[Any, ...]) -> Attempt | None:
    """Describe the start of a thread, by the name of what it runs; ``None`` for a thread of tracekit's own."""
    if str(getattr(args[0], "__module__", "")).startswith("tracekit."):  # one of a program runs threading's function
        return None
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
    "os.kill": _signal("os.kill"),
    "os.killpg": _signal("os.killpg"),
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

#: Other operations that reach beyond the caller's own thread, by audit event.
ACTS: Final[_Table] = {
    **{f"os.{name}": _to_process(f"os.{name}") for name in ("kill", "killpg")},
    **{f"_thread.{name}": thread_start for name in ("start_new_thread", "start_joinable_thread")},
}

# -- the caller --------------------------------------------------------------------------------------------------------
#
# Who is calling: the user's file and line for messages, and the few callers whose calls are not the program's.

#: Modules between the caller and the operation.
_SEAMS: Final = tuple(
    f"tracekit._capture.{name}" for name in ("guard", "handed", "inputs", "listening", "popen", "processes", "threads")
)
#: tracekit's modules that use files of their own, and call no function of the program.
_KEEPS_RUNS: Final = ("tracekit._journal.", "tracekit._runs.")
#: Debuggers communicate with their front end; what the program itself does while being debugged has other innermost
#: frames.
_DEBUGGERS: Final = ("debugpy", "pydevd", "_pydev", "pydev_", "remote_pdb", "rpdb", "web_pdb", "madbg")
#: Modules that identify the host by running a fixed command (``uname -p``, ``file``, ``ldconfig``).
_PROBES: Final = frozenset({"platform", "uuid", "ctypes.util", "distro.distro"})
_PAIRS: Final = frozenset({"socketpair", "_fallback_socketpair"})
_MAKERS: Final = frozenset({"create_connection", "create_server"})
#: Modules whose files are not the program's: compiled modules, logs, data of debuggers and test runners.
_KEEPERS: Final = ("importlib.", "logging", "pdb", "bdb")
_KEEPING: Final = frozenset(
    {"IPython", "_pytest", "concurrent_log_handler", "coverage", "loguru", "structlog", "traitlets"}
)
_CLOSING: Final = frozenset({"_do_shutdown", "unwrap"})


#: What a frame of the stack is, by its file and module, one bit each: ignored (our own seam, a wrapper), the standard
#: library's, wrapped around others' calls, tracekit's, an installed package's.
_NOBODY, _STANDARD, _AROUND, _OURS, _PACKAGE = 1, 2, 4, 8, 16


def _sort_of(file: str, module: str) -> int:
    sort = _NOBODY if module.startswith(_SEAMS) or is_wrapper(module) else 0
    installed = in_packages(file)
    if file.startswith("<frozen ") or (file.startswith(STDLIB) and not installed):
        sort |= _STANDARD
    if is_observer(module):
        sort |= _AROUND
    if module.startswith("tracekit") and (file.startswith(TRACEKIT) or module.startswith("tracekit_")):
        sort |= _OURS
    return sort | (_PACKAGE if installed else 0)


class Caller:
    """The call stack seen from a guarded operation, read once.

    ``location`` is the innermost ``file:line`` of user code, else of a package; ``own`` says which.
    """

    __slots__ = ("_names", "_nearest", "_standard", "location", "own")

    def __init__(self) -> None:
        self.location: str | None = None
        self.own = False
        nearest = ""
        #: Of the standard library, in frames before that: the modules, and the functions.
        self._standard: list[str] = []
        self._names: list[str] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code, module = frame.f_code, frame.f_globals.get("__name__", "")
            sort = sort_by_place.get((code.co_filename, module))
            if sort is None:
                sort = sort_by_place[code.co_filename, module] = _sort_of(code.co_filename, str(module))
            if sort & _STANDARD and not sort & _NOBODY:
                if not nearest:
                    self._standard.append(module)
                    self._names.append(code.co_name)
            elif not sort & _NOBODY:
                if not sort & _AROUND:
                    nearest = nearest or module or code.co_filename
                if not sort & _OURS:
                    self.own = not sort & _PACKAGE
                    if self.own or self.location is None:
                        self.location = f"{code.co_filename}:{frame.f_lineno}"
                    if self.own:
                        break
            frame = frame.f_back
        #: The module nearest to the operation that is not the standard library's.
        self._nearest = nearest

    def passes(self, kind: Kind) -> bool:
        """Return whether this is not the program's call: a debugger's, a host probe, tracekit's files, a socket pair."""
        if kind in ("process", "fork"):
            return self.probes or self._tracker
        if kind == "send" and self._tracker:
            return True
        if kind == "listen" and self._nearest == "urllib3.util.connection":
            return True  # it binds a socket when it is imported, to detect IPv6
        if kind == "act" and self._nearest.startswith(_DEBUGGERS):
            return True
        if kind == "stdin":  # the pipes of a process are the process's
            return self.keeps or "asyncio.base_subprocess" in self._standard
        if kind in ("look", "wait"):
            return False
        if kind in ("file", "act"):
            return self._nearest.startswith(_KEEPS_RUNS)
        return self._nearest.startswith(_DEBUGGERS) or self._plumbing(kind)

    @property
    def probes(self) -> bool:
        """Whether the interpreter identifies the host, which is not an action of the program."""
        return self._nearest in _PROBES or not _PROBES.isdisjoint(self._standard)

    @property
    def keeps(self) -> bool:
        """Whether the changed file is not the program's: by the import system, a log, a debugger, a test runner."""
        by_itself = any(module.startswith(_KEEPERS) for module in self._standard)
        return by_itself or self._nearest.partition(".")[0] in _KEEPING or self._nearest.startswith(_DEBUGGERS)

    @property
    def leaks(self) -> bool:
        """Whether the socket belongs to a helper that closes it only after an ``OSError``, and nobody else can."""
        return self._in_socket(_MAKERS)

    @property
    def _tracker(self) -> bool:
        """Multiprocessing's own helper, which runs nothing of the program."""
        nearest = self._nearest.rpartition(".")[2]  # a package with its own pool has its own tracker, by the same name
        return nearest == "resource_tracker" or "multiprocessing.resource_tracker" in self._standard

    def _plumbing(self, kind: Kind) -> bool:
        return self._in_socket(_PAIRS) or (kind == "send" and not _CLOSING.isdisjoint(self._names))

    def _in_socket(self, names: Set[str]) -> bool:
        """Return whether a function of ``socket`` with one of these names is running."""
        return any(
            module == "socket" and name in names for module, name in zip(self._standard, self._names, strict=True)
        )


# -- replaced functions ------------------------------------------------------------------------------------------------
#
# Functions and methods with which a process reaches outside, replaced for guards and recordings alike. A guard needs
# those that raise no audit event: sending on a connection that existed before the replay, listening and accepting,
# multiprocessing's own way to start a process, named pipes, native clients, and uvloop, which connects, resolves and
# spawns below Python. A recording needs the others as well, since it has no audit hook, which would make ``id()`` and
# ``deepcopy`` more expensive. They are in place while a guard is engaged or a run is active, and are restored exactly.
# asyncio's look-ups are caught where the program makes them, since the thread that carries them out knows neither the
# caller nor its context.

#: Called before an operation goes ahead; it may raise.
Check = Callable[[Attempt | None], None]
Note = Callable[[object, Iterable[object]], None]
Make = Callable[[Any], Any]


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def asks(function: F) -> F:
    """Mark a replaced ``function`` as asking by itself, since it knows about processes that may be started."""
    function._tracekit_asks = True  # type: ignore[attr-defined]
    return function


#: Functions that write to a descriptor, and the position of that argument.
_WRITERS: Final = {
    "write": 0, "writev": 0, "pwrite": 0, "pwritev": 0, "sendfile": 0, "splice": 1, "copy_file_range": 1,
}  # fmt: skip


class _Seams:
    """The replacements: for live operations, for files and for acts. ``note`` receives the results of look-ups."""

    def __init__(self, note: Note) -> None:
        self._live: Final = _seams_of("live", note)
        self._audited: Final = _seams_of("audited", note)
        self._files: Final = Switch(_of_files)
        self._acts: Final = Switch(_of_acts)
        #: The functions of native clients that are replaced: one may be reachable by two names.
        self._native: Final[set[tuple[int, str]]] = set()
        #: What integrations declare, and the same by module.
        self._natives_of: Mapping[str, Integration] | None = None
        self._natives: Mapping[str, list[Native]] = {}
        #: The replacements, each with its owner and the original: reused for later runs.
        self._entrances: Final[dict[tuple[int, str], tuple[Any, Any, ReversiblePatch]]] = {}
        #: The processes, with their descendants, that this one had started before.
        self.before: frozenset[int] = frozenset()
        # It takes the function by name when it is imported, which must get the original.
        when_imported("_posixsubprocess", partial(import_module, "subprocess"))

    def use(self, *, live: bool, observed: bool, files: bool, acts: bool) -> None:
        """Put the replacements in place, or remove them. ``observed``: live operations are reported to a recording,
        which has no audit hook."""
        wanted = ((live or observed, self._live), (observed, self._audited), (files, self._files), (acts, self._acts))
        begins = (live or observed) and not self._live.active
        for on, switch in wanted:
            if on and not switch.active:
                switch.activate()
        if begins:
            self._wrap_pipes()
            self._add_native()
        for on, switch in reversed(wanted):  # two of them may have replaced one function
            if not on and switch.active:
                switch.deactivate()
        if not self._live.active:
            self._native.clear()

    @_reality.off_loop()
    def _wrap_pipes(self) -> None:
        """Find the processes that exist already, and wrap writing to pipes that lead to them."""
        self.before = frozenset(_descendants(os.getpid())) if has_children() else frozenset()
        if self.before and (pipes := _pipes_to_others(self.before)):
            from .in_place import Unsupported

            with suppress(Unsupported):
                self._live.stack.apply(*_pipe_seams(pipes))

    def _add_native(self) -> None:
        """Wrap the native clients that are loaded; others once they are imported."""
        known = discover()
        if self._natives_of != known:
            self._natives_of, self._natives = {**known}, _by_module(known)
            for name in self._natives:
                when_imported(name, self._add_native)
        for name, natives in self._natives.items() if self._live.active else ():
            module = sys.modules.get(name)
            for native in natives if module is not None else ():
                self._add_entrance(module, native)

    def _add_entrance(self, module: Any, native: Native) -> None:
        owner, name = owner_of(module, native.attribute)
        key = (id(owner), name)
        if owner is None or name not in vars(owner) or key in self._native:
            return
        found = vars(owner)[name]
        known = self._entrances.get(key)
        if known is not None and known[0] is owner and known[1] is found:
            self._live.stack.apply(known[2])
            self._native.add(key)
            return
        entrance = partial(_native_entrance, native)
        patch: ReversiblePatch = AttributePatch(owner, name, entrance(found))
        try:
            self._live.stack.apply(patch)
        except TypeError:  # a type that takes no assignment
            from .in_place import MethodEntry, Unsupported

            try:
                patch = MethodEntry(owner, name, entrance)
                self._live.stack.apply(patch)
            except Unsupported:
                return
        self._entrances[key] = owner, found, patch
        self._native.add(key)


def _by_module(integrations: Mapping[str, Integration]) -> Mapping[str, list[Native]]:
    """Return the functions of native clients declared by integrations, by module."""
    found: dict[str, list[Native]] = {}
    for integration in integrations.values():
        for native in integration.native:
            found.setdefault(native.module, []).append(native)
    return found


#: Returns what to replace in a module for live operations (``"live"``), or because it raises an audit event, which a
#: guard receives and a recording does not (``"audited"``).
_SeamsOf = Callable[[Any, str, Note], Iterable[tuple[Any, str, Make]]]


def _seams_of(kind: str, note: Note) -> Switch:
    """Return the switch for replacements of this kind in all loaded modules, and in others once they are imported."""

    def late(name: str, seams: _SeamsOf) -> list[ReversiblePatch]:
        return [LatePatch(*seam) for seam in seams(loaded(name), kind, note)]

    return Switch(modules={name: partial(late, name, seams) for name, seams in _LATER.items()})


def _of_files() -> list[ReversiblePatch]:
    return [LatePatch(os, name, _pipe(check, name)) for name in ("mkfifo", "mknod") if hasattr(os, name)]


def _of_acts() -> list[ReversiblePatch]:
    found = [LatePatch(os, name, _writing(check, name)) for name in _WRITERS if hasattr(os, name)]
    if sys.version_info < (3, 12):  # later versions raise an audit event for it
        found += [LatePatch(owner, name, _starting(check)) for owner, name in _thread_starts()]
    return [*found]


def _of_socket(socket: Any, kind: str, note: Note) -> Iterable[tuple[Any, str, Make]]:
    if kind == "audited":
        for name in ("connect", "connect_ex", "sendto", "sendmsg"):
            yield socket.socket, name, _reaching(name)
        return
    for name in ("send", "sendall", "sendfile"):
        yield socket.socket, name, _sending(name)
    for name in ("listen", "accept"):
        yield socket.socket, name, _listening(name)
    yield socket.socket, "bind", _binding
    yield socket.socket, "getsockname", name_of
    yield socket, "gethostbyaddr", _reverse_lookup
    yield socket, "getnameinfo", _naming
    yield socket, "gethostbyname", _noting("gethostbyname", note, lambda found: (found,))
    yield socket, "gethostbyname_ex", _noting("gethostbyname_ex", note, lambda found: found[2])


def _of_bare_socket(module: Any, kind: str, note: Note) -> Iterable[tuple[Any, str, Make]]:
    if kind == "live":
        yield module, "getaddrinfo", _noting("getaddrinfo", note, lambda found: (entry[4] for entry in found))


def _of_ssl(ssl: Any, kind: str, note: Note) -> Iterable[tuple[Any, str, Make]]:
    if kind == "live":
        for name in ("send", "write"):
            yield ssl.SSLSocket, name, _sending(name)


def _of_asyncio(asyncio: Any, kind: str, note: Note) -> Iterable[tuple[Any, str, Make]]:
    if kind == "live":
        yield asyncio.BaseEventLoop, "getaddrinfo", _asyncio_lookup
        yield asyncio.BaseEventLoop, "connect_read_pipe", _first(_reading, note, "connect_read_pipe")


def _of_subprocess(subprocess: Any, kind: str, note: Note) -> Iterable[tuple[Any, str, Make]]:
    if kind == "live" and "_posixsubprocess" in sys.modules:
        yield sys.modules["_posixsubprocess"], "fork_exec", _fork_exec


def _idle() -> bool:
    """Return whether nobody asks what the running code does: no guard is engaged, and it is accounted for, or in no
    run."""
    return not _engaged.guards and (accounted_for() or not process.sessions)


def _reaching(name: str) -> Make:
    describe = _to("connect" if name.startswith("connect") else "send", f"socket.{name}")
    at = {"sendto": -1, "sendmsg": 3}.get(name, 0)

    def make(original: Any) -> Any:
        def reaching(self: Any, *args: Any) -> Any:
            if not accounted_for() and process.sessions:
                with suppress(Exception):  # the operation itself rejects wrong arguments
                    address = args[at] if at < len(args) else None
                    observe(describe((self, address)))
            return original(self, *args)

        reaching.__name__ = name
        return reaching

    return make


def _sending(name: str) -> Make:
    def make(original: Any) -> Any:
        def sending(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _idle():
                target = peer(self)
                if target:
                    cross(Attempt("send", f"socket.{name}", target, self))
            return original(self, *args, **kwargs)

        sending.__name__ = name
        return sending

    return make


def _listening(name: str) -> Make:
    def make(original: Any) -> Any:
        def listening(self: Any, *args: Any) -> Any:
            if not _idle():
                target = self.getsockname()
                if target:
                    attempt = Attempt("listen", f"socket.{name}", target, self)
                    cross(attempt) if name == "listen" else check(attempt)
                    if name == "accept":
                        return _accepted_one(original(self), attempt)
            return original(self, *args)

        listening.__name__ = name
        return listening

    return make


def _accepted_one(found: Any, attempt: Attempt) -> Any:
    """Note that somebody has connected; refuse it where the program listens in a replay, and nobody can."""
    if is_closed(attempt.sock):
        try:
            check(Attempt("listen", attempt.operation, attempt.target))
        except BaseException:
            found[0].close()
            raise
    observe(Attempt("accept", attempt.operation, attempt.target))
    return found


def _binding(original: Any) -> Any:
    """Record the port that an address is bound to, which the system may have chosen, and give a replay the same one.

    Binding alone reaches nobody: programs do it to find a free port for another process. ``listen`` is refused.
    """

    def bind(self: Any, address: Any) -> Any:
        scope = None if _idle() else here()
        if scope is None or scope.live or Caller().passes("listen"):
            return original(self, address)
        if not _is_internet(self, address):
            attempt = Attempt("listen", "socket.bind", address, self)
            if _number_of_family()(self) == _UNIX:
                if self.type & _DATAGRAM:  # it receives without listening
                    observe(attempt)
                elif _is_named(address) and _nobody_connects(attempt):
                    check(Attempt("file", "socket.bind", _path(address)))
                    with allow():
                        original(self, address)
                        take_name(self, _path(address))
                    return None
            return original(self, address)
        live = False

        def bound() -> int:
            nonlocal live
            live = True
            check(Attempt("listen", "socket.bind", address, self))
            original(self, address)
            return self.getsockname()[1]  # type: ignore[no-any-return]

        port = _asked_of_system(scope, "socket.bind", bound)
        if not live:
            if self.type & _STREAM:
                process.role.listen()  # a server's tasks are in the log
            _bind_again(original, self, address, port)
            _show_recorded(self, address[0], port)
        return None

    return bind


def _asked_of_system(scope: Scope, function: str, real: Callable[[], T]) -> T:
    """Return what the system answers, as recorded in a replay; an error of the system is an answer, too."""
    failed: list[OSError] = []

    def answer() -> Any:
        try:
            return real()
        except OSError as error:
            failed.append(error)
            return {"type": type(error).__name__, "errno": error.errno, "text": error.strerror}

    found: Any = scope.session.question(scope, function, answer, lambda _: None)
    if failed:
        raise failed[0]
    if isinstance(found, dict):
        from socket import gaierror, herror

        types = {"gaierror": gaierror, "herror": herror}  # others have a number that makes their type
        raise types.get(found["type"], OSError)(found["errno"], found["text"])
    return found  # type: ignore[no-any-return]


def _is_internet(sock: Any, address: Any) -> bool:
    family = _number_of_family()(sock)
    if family in _LOCAL_FAMILIES or family == _UNIX or not isinstance(address, tuple) or len(address) < 2:
        return False
    return isinstance(address[0], str) and type(address[1]) is int


def _bind_again(original: Any, sock: Any, address: Any, port: int) -> None:
    """Bind a socket of a replay to the recorded port; to another one, or not at all, if that is not possible here."""
    anywhere = "::" if ":" in address[0] else "0.0.0.0"  # a network namespace of its own may have no other address
    wanted = [(host, port, *address[2:]) for host in dict.fromkeys((address[0], anywhere))]
    for one in (*wanted, *([address] if address[1] == 0 else [])):
        with suppress(OSError), allow():
            original(sock, one)
            return


def _show_recorded(sock: Any, host: str, port: int) -> None:
    """Show the program the recorded address of a socket that could not be bound to it here."""
    bound = sock.getsockname()
    anywhere, this = ("::", "::1") if len(bound) > 2 else ("0.0.0.0", "127.0.0.1")
    shown = anywhere if not host else this if host == "localhost" else host
    if (shown, port) != bound[:2]:
        show_as(sock, (shown, port, *bound[2:]))


def _is_named(address: object) -> bool:
    """Return whether the address of a Unix socket is a path."""
    path = _path(address)
    return isinstance(path, str | bytes) and bool(path) and path[0] not in ("\0", 0)


@_reality.off_loop()
def read_from(operation: str, pipe: Any) -> Attempt | None:
    """Describe the reading of a pipe, or of standard input, that is fed from outside; ``None``: it is not."""
    from .._runtime.threads import pipe_from_outside

    scope = current.get()
    with suppress(OSError, ValueError, AttributeError, TypeError):  # it is closed, or not a file of the system
        fd = pipe if type(pipe) is int else pipe.fileno()
        if fd == 0:  # that of a process that has joined the run is written by the process that started it
            joined = scope is not None and scope.session.state.joined
            return None if joined else Attempt("stdin", operation, "standard input")
        name = pipe_from_outside(fd) if stat.S_ISFIFO(os.fstat(fd).st_mode) else None
        if name is not None:
            return Attempt("stdin", operation, name if name.startswith("/") else "a pipe")
    return None


def _reading(factory: Any, pipe: Any = None) -> None:
    cross(read_from("loop.connect_read_pipe", pipe))


def _pipes_to_others(others: Collection[int]) -> dict[tuple[int, int], str]:
    """Return the pipes that lead from here to these processes, by device and inode, with the reader's name.

    A pipe that is also read here counts as the process's own.
    """
    import fcntl

    writing, reading = set[tuple[int, int]](), set[tuple[int, int]]()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it was the directory's own descriptor
            about = os.fstat(fd)
            if stat.S_ISFIFO(about.st_mode):
                reads = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
                (reading if reads else writing).add((about.st_dev, about.st_ino))
    found: dict[tuple[int, int], str] = {}
    for other in others if writing - reading else ():
        with suppress(OSError):  # it has ended, or is another user's
            for name in os.listdir(f"/proc/{other}/fd"):
                end = f"/proc/{other}/fd/{name}"
                about = os.stat(end)
                if not os.lstat(end).st_mode & stat.S_IRUSR:  # the link says how it is open: not for reading
                    continue
                if (about.st_dev, about.st_ino) in writing - reading:
                    with open(f"/proc/{other}/comm") as file:
                        found.setdefault((about.st_dev, about.st_ino), file.read().strip())
    return found


def _descendants(pid: int) -> Iterator[int]:
    with suppress(OSError):  # it has ended, or this kernel does not tell
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    yield child
                    yield from _descendants(child)


#: What writes to a pipe, by module or type and name.
_FEEDING: Final = ("os.write", "os.writev", "FileIO.write", "BufferedWriter.write", "TextIOWrapper.write")


def _pipe_seams(pipes: Mapping[tuple[int, int], str]) -> Iterable[ReversiblePatch]:
    """Yield patches for everything that writes to one of ``pipes``, immediately or when a buffer is full."""
    import io

    from .in_place import MethodEntry

    def feeding(operation: str) -> Make:
        def make(original: Any) -> Any:
            def write(to: Any, *args: Any, **kwargs: Any) -> Any:
                reader = None if _idle() or _allowed.get() else _reader(to)
                if reader is None:
                    return original(to, *args, **kwargs)
                cross(Attempt("send", operation, f"{reader} (there before the run)"))
                with allow():  # what a buffer passes on is the same write
                    return original(to, *args, **kwargs)

            write.__name__ = operation.rpartition(".")[2]
            return write

        return make

    def _reader(to: Any) -> str | None:
        try:
            about = os.fstat(to if type(to) is int else to.fileno())
        except (OSError, ValueError, AttributeError, TypeError):  # it is closed, or not a file of the system
            return None
        return pipes.get((about.st_dev, about.st_ino))

    for operation in _FEEDING:
        place, name = operation.split(".")
        if place == "os":
            yield AttributePatch(os, name, feeding(operation)(getattr(os, name)))
        else:
            yield MethodEntry(getattr(io, place), name, feeding(operation))


def _noting(name: str, note: Note, addresses: Callable[[Any], Iterable[object]]) -> Make:
    def make(original: Any) -> Any:
        def looked_up(host: Any, *args: Any, **kwargs: Any) -> Any:
            if not accounted_for() and process.sessions and not numeric(host):
                observe(Attempt("lookup", f"socket.{name}", host))
            found = original(host, *args, **kwargs)
            note(host, addresses(found))
            return found

        return looked_up

    return make


def _reverse_lookup(original: Any) -> Any:
    """Record the name of an address, with which servers and ``getfqdn`` name this host."""

    def gethostbyaddr(host: Any) -> Any:
        scope = None if _idle() else here()
        if scope is None or scope.live or not isinstance(host, str):
            return original(host)

        def found() -> Any:
            check(Attempt("lookup", "socket.gethostbyaddr", host))
            return [*original(host)]

        return tuple(_asked_of_system(scope, "socket.gethostbyaddr", found))

    return gethostbyaddr


def _naming(original: Any) -> Any:
    def getnameinfo(address: Any, flags: int) -> Any:
        if not accounted_for() and process.sessions:
            with suppress(Exception):  # the operation itself rejects wrong arguments
                observe(Attempt("lookup", "socket.getnameinfo", address[0]))
        return original(address, flags)

    return getnameinfo


def _asyncio_lookup(original: Any) -> Any:
    async def getaddrinfo(
        self: Any, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        import socket

        _cross_name(host, "loop.getaddrinfo")
        if not _engaged.guards or self.__class__.getaddrinfo is not getaddrinfo:  # or a loop with its own resolver
            return await original(self, host, port, family=family, type=type, proto=proto, flags=flags)
        # Like asyncio, but in the caller's context, so that what is allowed here is allowed there.
        ask = copy_context().run
        return await self.run_in_executor(None, ask, socket.getaddrinfo, host, port, family, type, proto, flags)

    return getaddrinfo


def _cross_name(host: Any, operation: str) -> None:
    if not numeric(host):
        cross(Attempt("lookup", operation, host))


def _fork_exec(original: Any) -> Any:
    def fork_exec(args: Any, *rest: Any) -> Any:
        check(Attempt("process", "_posixsubprocess.fork_exec", args[0] if args else ""))
        return original(args, *rest)

    return fork_exec


def _pipe(check: Check, name: str) -> Make:
    def make(original: Any) -> Any:
        def guarded(path: Any, *args: Any, **kwargs: Any) -> Any:
            check(Attempt("file", f"os.{name}", os.fspath(path)))
            return original(path, *args, **kwargs)

        guarded.__name__ = name
        return guarded

    return make


def _thread_starts() -> Iterable[tuple[Any, str]]:
    import _thread
    import threading

    return ((_thread, "start_new_thread"), (_thread, "start_new"), (threading, "_start_new_thread"))


def _starting(check: Check) -> Make:
    def make(original: Any) -> Any:
        def start_new_thread(*args: Any) -> Any:
            check(thread_start(args))
            return original(*args)

        return start_new_thread

    return make


def _writing(check: Check, name: str) -> Make:
    at = _WRITERS[name]

    def make(original: Any) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            check(descriptor(f"os.{name}", args[at] if len(args) > at else None))
            return original(*args, **kwargs)

        guarded.__name__ = name
        return guarded

    return make


# -- uvloop ------------------------------------------------------------------------------------------------------------


def _of_uvloop(uvloop: Any, kind: str, note: Note) -> Iterable[tuple[Any, str, Make]]:
    loop = getattr(uvloop, "Loop", None)
    for name, before in _before().items() if kind == "live" else ():
        if hasattr(loop, name):
            yield loop, name, _first(before, note, name)
    for name, listens in _serving().items() if kind == "live" else ():
        if hasattr(loop, name):
            yield loop, name, listens


#: The modules with functions to replace, loaded now or later.
_LATER: Final[Mapping[str, _SeamsOf]] = {
    "_socket": _of_bare_socket,
    "socket": _of_socket,
    "ssl": _of_ssl,
    "asyncio": _of_asyncio,
    "subprocess": _of_subprocess,
    "uvloop": _of_uvloop,
}


def _first(before: Callable[..., None], note: Note, name: str) -> Make:
    def make(original: Any) -> Any:
        async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(original, "_tracekit_asks"):
                before(*args, **kwargs)
            found = await original(self, *args, **kwargs)
            if name == "getaddrinfo":
                note(args[0] if args else kwargs.get("host"), (entry[4] for entry in found))
            return found

        guarded.__name__ = name
        return guarded

    return make


def _before() -> dict[str, Callable[..., None]]:
    """Return, for each of uvloop's own operations, a function that checks it by its arguments."""

    def connection(factory: Any, host: Any = None, port: Any = None, **more: Any) -> None:
        if host is not None:
            _cross_name(host, "uvloop.create_connection")
            cross(Attempt("connect", "uvloop.create_connection", (host, port)))

    def sock_connect(sock: Any, address: Any) -> None:
        cross(_to("connect", "uvloop.sock_connect")((sock, address)))

    def unix_connection(factory: Any, path: Any = None, **more: Any) -> None:
        if path is not None:
            cross(Attempt("connect", "uvloop.create_unix_connection", os.fspath(path)))

    def datagram(factory: Any, local: Any = None, remote: Any = None, *, sock: Any = None, **more: Any) -> None:
        local, remote = more.get("local_addr", local), more.get("remote_addr", remote)
        if sock is None:
            kind: Kind = "connect" if remote else "listen"
            cross(Attempt(kind, "uvloop.create_datagram_endpoint", remote or local or ("0.0.0.0", 0)))

    def lookup(host: Any, *args: Any, **more: Any) -> None:
        _cross_name(host, "loop.getaddrinfo")

    def reverse(sockaddr: Any, *args: Any, **more: Any) -> None:
        cross(Attempt("lookup", "loop.getnameinfo", sockaddr[0]))

    def process(factory: Any, program: Any, *args: Any, **more: Any) -> None:
        text = os.fsdecode(program)
        cross(Attempt("process", "uvloop.subprocess", text.split(None, 1)[0] if text.strip() else text))

    return {
        "connect_read_pipe": _reading,
        "create_connection": connection,
        "create_datagram_endpoint": datagram,
        "create_unix_connection": unix_connection,
        "sock_connect": sock_connect,
        "getaddrinfo": lookup,
        "getnameinfo": reverse,
        "subprocess_exec": process,
        "subprocess_shell": process,
    }


def _serving() -> dict[str, Make]:
    """Return the replacements of uvloop's servers, which bind, listen and accept below Python."""

    def tcp(original: Any) -> Any:
        async def create_server(self: Any, factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
            if _idle():
                return await original(self, factory, host, port, **more)
            sock = more.get("sock")
            target = (host or "0.0.0.0", port or 0) if sock is None else sock.getsockname()
            attempt = Attempt("listen", "uvloop.create_server", target, sock)
            alone = _nobody_connects(attempt)
            if not alone:
                cross(attempt)
                factory = _noting_connections(factory, attempt)
            if sock is None and isinstance(host, str) and host and numeric(host):
                host = port = None
                sock = more["sock"] = _bound(target, more)
            if not alone:
                return await original(self, factory, host, port, **more)
            return await _closed_server(self, original, attempt, (factory, host, port), more)

        return create_server

    def unix(original: Any) -> Any:
        async def create_unix_server(self: Any, factory: Any, path: Any = None, **more: Any) -> Any:
            if _idle():
                return await original(self, factory, path, **more)
            sock = more.get("sock")
            target = os.fspath(path) if path is not None else sock.getsockname() if sock is not None else ""
            attempt = Attempt("listen", "uvloop.create_unix_server", target)
            if sock is not None and is_closed(sock):
                return await original(self, factory, path, **more)
            if sock is not None or not _is_named(target) or not _nobody_connects(attempt):
                cross(attempt)
                return await original(self, _noting_connections(factory, attempt), path, **more)
            check(Attempt("file", "uvloop.create_unix_server", target))
            starts = more.pop("start_serving", True)
            server = await original(self, factory, path, **more, start_serving=False)
            with allow():
                take_name(server, target)
            if starts:
                await server.start_serving()
            return server

        return create_unix_server

    return {"create_server": tcp, "create_unix_server": unix}


def _noting_connections(factory: Any, attempt: Attempt) -> Any:
    """Return a factory of protocols that notes each connection, for which it is called."""

    def accepted() -> Any:
        observe(Attempt("accept", attempt.operation, attempt.target))
        return factory()

    return accepted


def _bound(address: Any, more: dict[str, Any]) -> Any:
    """Bind the socket of a server to a numeric address, as uvloop does after a look-up by a thread of its own. The end of
    that is no event of a recording, so the look-up is left out in a run and in its replay."""
    import socket

    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if more.pop("reuse_address", None) in (None, True):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if more.pop("reuse_port", None):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            sock.bind(address)
        except OSError as error:
            text = f"error while attempting to bind on address {address!r}: {(error.strerror or str(error)).lower()}"
            raise OSError(error.errno, text) from None
    except BaseException:
        sock.close()
        raise
    for name in ("family", "flags"):
        more.pop(name, None)
    return sock


async def _closed_server(
    loop: Any, original: Any, attempt: Attempt, args: tuple[Any, ...], more: dict[str, Any]
) -> Any:
    """Make a server of a replay that nobody reaches, before it begins to listen."""
    from socket import socket

    starts = more.pop("start_serving", True)
    server = await original(loop, *args, start_serving=False, **more)
    for one in server.sockets:
        with socket(fileno=os.dup(one.fileno())) as same:  # which can be known, unlike an object of uvloop's
            with allow():
                closed = close_to_others(same)
            if not closed:
                server.close()
                check(attempt)
    if starts:
        await server.start_serving()
    return server


# -- observing ---------------------------------------------------------------------------------------------------------
#
# What a recording notes about an operation that goes ahead. It never raises, and delays the program only for writing
# the log.

#: Whether a socket was accepted: it carries a server's responses, whoever requested them.
_accepted: Final[WeakKeyDictionary[Any, bool]] = WeakKeyDictionary()


def observe(attempt: Attempt | None, *, status: Status = "noted", lane: str | None = None, by: object = None) -> None:
    """Note an operation that is about to go ahead in the boundary of the runs that it belongs to, unless a step
    accounts for it.

    ``lane`` is that of a process about to be started; ``by`` is the socket or client used, which is noted only once.
    """
    if attempt is None or accounted_for() or _allowed.get():
        return
    with suppress(Exception):  # observing never breaks the program
        found = [*_boundaries()]
        by = attempt.sock if by is None else by
        if not found or (attempt.kind == "send" and _is_accepted(by)):
            return
        if attempt.kind == "accept":  # a server of the process that is not the run's accepts connections, too
            found = [one for one in found if not one[2] or one[0].listens_on(attempt.text)]
        if by is not None:
            to = attempt.text if attempt.kind == "send" and peer(by) is None else None
            found = [one for one in found if not one[0].knows(by, to, one[2]) or attempt.kind == "connect"]
        caller = Caller() if found else None
        if caller is None or caller.passes(attempt.kind):
            return
        sender = telemetry() if attempt.kind in _SENDING else None
        if sender is not None:
            status = "ambient"
        text, where = attempt.text[:_TARGET], caller.location
        if attempt.kind == "lookup" and where is None:  # a thread that resolves a name for another, where it was noted
            return
        if attempt.kind == "native":
            text = f"{attempt.operation.partition('.')[0]} to {text}"
        for boundary, place, unattributed in found:
            boundary.note(
                status, attempt.kind, attempt.operation, text, where,
                place=place, unattributed=unattributed and status != "ambient", lane=lane,
                telemetry=None if sender is None else sender.name,
            )  # fmt: skip


#: What telemetry does to send its data.
_SENDING: Final = frozenset(("connect", "lookup", "native", "process", "send"))
#: How much of a target is kept, in characters.
_TARGET: Final = 300


def _boundaries() -> Iterator[tuple[Boundary, tuple[int, int], bool]]:
    """Yield the boundary of the run that the running code belongs to, with lane and step; if that is unknown, those of
    all runs of the process."""
    scope = current.get()
    for session in process.sessions if scope is None else (scope.session,):
        state = session.state
        if state.boundary is not None and session.recording and not state.ended:
            place = (0, ROOT) if scope is None else (max(scope.lane.id, 0), scope.parent)
            yield state.boundary, place, scope is None and not process.role.is_whole_program(session)


def _is_accepted(sock: Any) -> bool:
    """Return whether this socket was accepted from a listening one, whose port it has."""
    try:
        known = _accepted.get(sock)
        if known is None:
            known = _accepted[sock] = _has_a_listeners_port(sock)
    except TypeError:  # it can't be weakly referenced
        return False
    return known


@_reality.off_loop()
def _has_a_listeners_port(sock: Any) -> bool:
    import socket

    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return False
    port = f":{sock.getsockname()[1]:04X}"
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as file:
                rows = [line.split(None, 4) for line in file]
            if any(row[3] == "0A" and row[1].endswith(port) for row in rows):  # 0A: listening
                return True
        except OSError:
            # No such table: servers set this option to share an address with earlier sockets; clients have no use for
            # it.
            return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))
    return False


# -- references taken earlier ------------------------------------------------------------------------------------------
#
# A function that a module imported by name before any run is the original, whose calls are not seen.

#: Where functions that are replaced during a run are found, by the module that they state as their own.
_HOMES: Final = {"posix": "os", "os": "os", "_socket": "socket", "socket": "socket", "_io": "io", "io": "io"}


class _Held:
    """The findings, and the names of the modules that were loaded when they were made."""

    modules: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


def held_by_name() -> tuple[str, ...]:
    """Return a sentence for each module of user code that holds originals of functions now replaced: ``from os import
    system``."""
    if (modules := tuple(sys.modules)) != _Held.modules:
        _Held.modules = modules
        _Held.sentences = tuple(_bare_names())
    return _Held.sentences


def _bare_names() -> Iterator[str]:
    seen, libraries = set[int](), dict[str, bool]()  # most of thousands of modules are ruled out by their names
    for name in [*sys.modules]:
        package = name.partition(".")[0]
        if package not in libraries:
            names = _names_of(package)
            libraries[package] = names is not None and not _is_users(names)
        if libraries[package]:
            continue
        names = _names_of(name)
        if names is None or id(names) in seen:  # one module may have two names
            continue
        seen.add(id(names))
        if not _is_users(names):
            continue
        found = [home for value in [*names.values()] if (home := _bare(value)) is not None]
        if found:
            yield (
                f"{name} has {', '.join(sorted(found))} under names of its own, imported before the first run: what it does by "
                "them is in no trace"
            )


def _names_of(module: str) -> dict[str, Any] | None:
    """Return the namespace of a loaded module that comes from a file."""
    # Not its attributes: some packages import a module when an attribute is read.
    names = getattr(sys.modules.get(module), "__dict__", None)
    return names if type(names) is dict and isinstance(names.get("__file__"), str) else None


def _is_users(names: dict[str, Any]) -> bool:
    return is_user_code(names["__file__"])


def _bare(value: Any) -> str | None:
    """Return the public name of a function that is now replaced by another."""
    if type(value) not in (BuiltinFunctionType, FunctionType) or value.__module__ not in _HOMES:
        return None
    home = _HOMES[value.__module__]
    now = getattr(sys.modules.get(home), value.__name__, value)
    return None if now is value else f"{home}.{value.__name__}"


# -- native clients ----------------------------------------------------------------------------------------------------
#
# Clients that connect below Python are seen where Python code calls them. Integrations declare these functions.


def _native_entrance(native: Native, found: Any) -> Any:
    """Return the replacement of ``found``, a function as stored in its owner."""
    if isinstance(found, (classmethod, staticmethod)):
        return type(found)(_native_entrance(native, found.__func__))
    operation = f"{native.module}.{native.attribute}"

    def goes_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the call is made; in a replay, telemetry may get an empty response instead."""
        if not _idle() and not (native.inside is not None and native.inside(args, kwargs)):
            attempt = Attempt("native", operation, native.target_of(args, kwargs))
            try:
                check(attempt)
            except ConnectionRefusedError:
                if native.nothing is None:
                    raise
                return False
            observe(attempt, by=args[0] if args and native.keeps else None)
        return True

    def nothing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert native.nothing is not None
        return native.nothing(args, kwargs)

    if iscoroutinefunction(found):

        @wraps(found)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await found(*args, **kwargs) if goes_out(args, kwargs) else nothing(args, kwargs)

        return call_async

    @wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        return found(*args, **kwargs) if goes_out(args, kwargs) else nothing(args, kwargs)

    return call


# -- guards ------------------------------------------------------------------------------------------------------------
#
# The guard: while a replay is active, nothing in this process reaches the outside world. An audit hook sees
# connections, name look-ups, listening, processes and file changes at the C level; operations without an audit event
# are caught by the replaced functions above. Both are in place while a guard is engaged, and are removed with the last
# one.

Reach = Literal["process", "context", "off"]

_VERBS: Final[dict[Kind, str]] = {
    "accept": "accept a connection on",
    "connect": "connect to",
    "lookup": "look up",
    "listen": "listen on",
    "send": "send to",
    "native": "call a native client:",
    "process": "start a process:",
    "file": "change a file:",
    "stdin": "read",
}
_TOOL: Final = "let a @traced_tool or an instrumented client make this call, so that the replay answers it"
_NEXT: Final[dict[Kind, str]] = {
    "lookup": f"{_TOOL}; or, for a test's own server, replay(..., allow_hosts=[{{host!r}}])",
    "listen": "a server's work that comes through handlers (@on_task) is replayed without it: by `tracekit replay`, or with "
    "`replay_tasks(handler)` inside the block; a run that a request handler opened, by `tracekit replay RUN --entry "
    "module:function`; or, for a test's own server, replay(..., allow_hosts=[{host!r}])",
    "native": "let a @traced_tool make this call, so that the replay answers it; or, for a test's own server, name its host in "
    "replay(..., allow_hosts=[...])",
    "process": f"{_TOOL}; or let it join the run that is recorded, by importing tracekit; or replay(..., guard='off') to "
    "let it run for real",
    "stdin": "let a @traced_tool read it, so that the replay answers it; what `input()` and `sys.stdin` read is captured",
    "file": "let a @traced_tool make this change, so that the replay answers it; or replay without dry_run",
}
_NEXT_NO_NETWORK: Final = "the network is blocked here; for a server of the test's own, allow_hosts=[{host!r}]"
_NEXT_RESUMED: Final = (
    "a resumed run can't start processes before it has reached the end of its log: let a @traced_tool start this one, so that "
    "the log answers it; or abandon the run with `tracekit recovery abort`"
)
_NEXT_MULTIPROCESSING: Final = (
    "this is a socket by which multiprocessing talks to processes of its own. Those of the method forkserver are replayed where "
    "the program imports tracekit, so that they join the run; a Manager is not: pass values through a Queue or a Pipe, or use it in a "
    "@traced_tool"
)
_NEXT_FORK: Final = (
    "look at what decides whether it is forked, and record again if the change is meant; a fork whose function was imported before the run "
    "(`from os import fork`) is not in the trace: call it as `os.fork()`, or fork in a @traced_tool, which the replay answers"
)
_NEXT_PIPE: Final = (
    "let a @traced_tool write to that process, so that the replay answers it; or start the process in the run; or replay(..., "
    "guard='off')"
)
_NEXT_SIGNAL: Final = (
    "let a @traced_tool send this signal, so that the replay answers it; or start that process in the run; or replay(..., guard='off'), "
    "which guards nothing"
)
_NEXT_SQLITE: Final = "open it read-only (sqlite3.connect('file:...?mode=ro', uri=True)); or replay without dry_run"

_NEXT_WRITTEN: Final = (
    "it was there before, and a replay leaves such files as they were: run the program by `tracekit replay`, which gives it a layer of its "
    "own to write to; let it write in a directory for temporary files; or replay(..., writes='real')"
)
_NEXT_OUTPUT: Final = (
    "give it `stdout=PIPE`, or a named file that is read after its end; or put the process into a @traced_tool"
)

_PROBE: Final = "tracekit.guard"
_allowed: Final[ContextVar[bool]] = ContextVar("tracekit.guard.allowed", default=False)

#: Returns the error to raise for an operation, given ``file:line`` of the caller.
Refuse = Callable[[Attempt, str | None], BaseException]


#: Which files a replayed program may write: only new ones, or all.
Writes = Literal["new", "real"]


class _NewFiles:
    """The files that a replay may write: those in directories for temporary files, and elsewhere those that did not
    exist before it.

    ``note`` receives the path of each of the others, once.
    """

    def __init__(self, note: Callable[[str, str | None], None], covered: Callable[[str], bool]) -> None:
        self._note: Final = note
        self._covered: Final = covered
        self._made: Final[set[str]] = set()
        self._lock: Final = _reality.OwnLock()

    @_reality.off_loop()
    def permit(self, attempt: Attempt) -> bool:
        """Return whether this only changes files that did not exist before."""
        return all(self._permits(path, attempt) for path in (attempt.target, attempt.replaces))

    def _permits(self, path: object, attempt: Attempt) -> bool:
        if not isinstance(path, str | bytes):  # a descriptor: it was checked when it was opened
            return True
        text = os.fsdecode(path)
        if attempt.operation == "sqlite3.connect" and text.startswith("file:"):
            text = text[len("file:") :].partition("?")[0]
        where = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
        if any(where.startswith(place) for place in temporary_directories()) or self._covered(where):
            return True
        with self._lock:
            if where in self._made:
                return True
            caller = Caller()
            if caller.passes("file") or caller.keeps:
                return True
            if os.path.lexists(where):
                return False
            self._made.add(where)
        self._note(where, caller.location)
        return True


@_reality.off_loop()
def _changes_nothing(attempt: Attempt) -> bool:
    """Return whether the operation changes nothing: creating a directory that exists (which fails by itself, as
    ``exist_ok=True`` expects), or setting permissions that the file has."""
    path = attempt.target
    if not isinstance(path, str | bytes):
        return False
    if attempt.operation == "os.mkdir":
        return os.path.lexists(path)
    if attempt.mode is None:
        return False
    try:
        return stat.S_IMODE(os.stat(path).st_mode) == stat.S_IMODE(attempt.mode)
    except OSError:
        return False


def temporary_directories() -> tuple[str, ...]:
    """Return the directories for temporary files, as prefixes."""
    # ``tempfile.gettempdir`` itself tests them by writing and removing files, under a lock; this function may be called
    # meanwhile.
    known = getattr(sys.modules.get("tempfile"), "tempdir", None)
    names = [known] if isinstance(known, str) else [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    found = [name for name in names if name] or ["/tmp"]
    return (*(os.path.realpath(name) + os.sep for name in found), *_SHARED)


class Guard:
    """Blocks live operations between ``engage`` and ``release``, with ``LiveCallBlockedError``.

    - ``scope``: ``"process"`` (all threads and contexts), ``"context"`` (only code whose context belongs to a replay)
      or ``"off"``.
    - ``allow_hosts``: as in ``Hosts``; ``permitted`` is called with what it lets through.
    - ``dry_run``: also block file changes, with every scope (``"off"`` then means: everywhere, files only).
    - ``writes="new"``: existing files may not be changed, unless they are in a directory for temporary files or
      ``covered`` by a layer; ``wrote`` is called with the path of each other file that is written.
    - ``failed``: called with each refusal before it is raised; the error's ``run_id`` is that of the caller's context,
      or ``None`` if a thread has lost it.
    - ``resumes``: the guard stands until a resumed run has reached the end of its log, and no option opens it.

    Guards nest and overlap in any order; an operation must be allowed by all engaged guards.
    """

    def __init__(
        self,
        scope: Reach = "process",
        allow_hosts: Iterable[str] = (),
        dry_run: bool = False,
        failed: Callable[[LiveCallBlockedError], None] | None = None,
        *,
        resumes: bool = False,
        permitted: Callable[[Attempt], None] | None = None,
        writes: Writes = "real",
        wrote: Callable[[str, str | None], None] = lambda path, where: None,
        covered: Callable[[str], bool] = lambda path: False,
    ) -> None:
        if scope not in ("process", "context", "off"):
            raise RunStateError(f"guard={scope!r} is not known", next_action="use guard='process', 'context' or 'off'")
        self.scope: Final[Reach] = scope
        self.dry_run: Final = dry_run
        self.hosts: Final = Hosts((allow_hosts,) if isinstance(allow_hosts, str) else allow_hosts)
        self.failed = failed
        self.resumes: Final = resumes
        self._new: Final = _NewFiles(wrote, covered) if writes == "new" and not dry_run else None
        self._permitted: Final = permitted
        #: The sockets that were reported already.
        self._let_through: Final[WeakSet[Any]] = WeakSet()

    @property
    def files(self) -> bool:
        """Whether it checks file changes."""
        return self.dry_run or self._new is not None

    def engage(self) -> None:
        """Start blocking. Each call needs one ``release``."""
        if self.scope != "off" or self.files:
            warm(files=self.files)
        with _engaged.lock:
            _engaged.set((*_engaged.guards, self))

    def release(self) -> None:
        """Stop blocking; with the last guard, everything that was patched is restored."""
        with _engaged.lock:
            if self not in _engaged.guards:
                raise RunStateError("this guard is not engaged", next_action="call release() once for each engage()")
            at = _engaged.guards.index(self)
            _engaged.set(_engaged.guards[:at] + _engaged.guards[at + 1 :])

    def __enter__(self) -> Guard:
        self.engage()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def blocks(self, attempt: Attempt) -> bool:
        """Return whether this guard, with its options, blocks an operation here and now."""
        if attempt.kind == "act":
            return False
        if attempt.kind == "file":
            if (self.scope == "context" and _replaying() is None) or _changes_nothing(attempt):
                return False
            return self.dry_run or (self._new is not None and not self._new.permit(attempt))
        elif self.scope == "off":
            return False
        elif attempt.kind == "lookup":
            if self.hosts.looks_up(attempt.target):
                return False
        elif attempt.kind != "process" and self.hosts.permits(attempt.target):
            if self._permitted is not None and (self.scope != "context" or _replaying() is not None):
                self._permit(self._permitted, attempt)
            return False
        return self.scope != "context" or _replaying() is not None

    def _permit(self, permitted: Callable[[Attempt], None], attempt: Attempt) -> None:
        """Report what is let through; for a connection once, not for each piece that is sent."""
        if attempt.sock is not None:
            if attempt.kind == "send" and attempt.sock in self._let_through:
                return
            self._let_through.add(attempt.sock)
        permitted(attempt)


class NoNetwork(Guard):
    """Blocks network access, in a replay or not; processes, files and listening are allowed."""

    def __init__(self, allow_hosts: Iterable[str] = ()) -> None:
        super().__init__("process", allow_hosts)

    def blocks(self, attempt: Attempt) -> bool:
        return (
            attempt.kind in ("connect", "lookup", "send", "native")
            and not _is_pipe(attempt)
            and attempt.operation not in _SIGNALLING
            and super().blocks(attempt)
        )


#: What sends a signal.
_SIGNALLING: Final = ("os.kill", "os.killpg")


def _is_pipe(attempt: Attempt) -> bool:
    """Return whether data is sent to another process of this machine through a pipe, not over a network."""
    return attempt.kind == "send" and attempt.operation in _FEEDING


class Watch(Guard):
    """Blocks nothing by itself: while it is engaged, a session's ``reach`` (a ``Refuse``) is asked, also about file
    changes and other acts. Its own ``reach`` is asked about everything the engaging thread does, in every context.

    Without one it may last longer, and relies on the interpreter's own events alone: it replaces nothing that
    others use.
    """

    def __init__(self, reach: Refuse | None = None) -> None:
        super().__init__("context")
        self.reach: Final = reach
        self.thread: Final = get_ident()

    def engage(self) -> None:
        with _engaged.lock:
            _engaged.set((*_engaged.guards, self))

    def blocks(self, attempt: Attempt) -> bool:
        return False


# -- forbidding calls --------------------------------------------------------------------------------------------------
#
# A session around a session that refuses some calls before they happen, and records the refusals.

#: Returns why a call is refused, or ``None``.
Rule = Callable[[Spec], ContractViolationError | None]
#: Returns the error for an operation that reaches out of the process, given ``file:line`` of the caller.
Reached = Callable[[Attempt, str | None], ContractViolationError]


class _Forbidding(Around):
    """A session around ``session`` that refuses the calls forbidden by ``rule``."""

    def __init__(self, session: Session, rule: Rule, reach: Refuse | None) -> None:
        super().__init__(session)
        self._rule: Final = rule
        if reach is not None:
            self.reach, self.decides = reach, True

    def begin(self, scope: Scope, request: Request) -> Step:
        error = self._rule(request.spec)
        if error is not None:
            raise self.refuse(scope, request, error)
        return super().begin(scope, request)


@contextmanager
def forbidding(rule: Rule, *, reach: Reached | None = None) -> Iterator[None]:
    """A block in which ``rule`` decides which captured calls are refused, before they happen; refusals are logged. It
    has no effect outside a run.

    With ``reach``, nothing outside the process may be reached either, captured or not: connections, look-ups,
    listening, processes, files. Nor may anything be started that could do so later: threads, another run. ``reach``
    returns the error for each attempt.
    """
    scope = here()
    if scope is None:
        yield
        return
    noted = None if reach is None else _noted(reach, scope)
    session = _Forbidding(scope.session, rule, noted)
    token = enter(Scope(session, scope.lane, scope.parent, scope.agent, scope.live, scope.spending, scope.call))
    try:
        with nullcontext() if noted is None else Watch(noted):
            yield
    finally:
        current.reset(token)


def _noted(reach: Reached, forbidden: Scope) -> Refuse:
    """Return ``reach`` with its refusals recorded. A replay does not compare the target: ports and paths differ between
    equal runs."""

    def refused(attempt: Attempt, location: str | None) -> BaseException:
        error = reach(attempt, location)
        scope = here()
        if scope is None or not isinstance(
            scope.session, _Forbidding
        ):  # code in a context of its own must not bypass the rule
            scope = forbidden
        spec = Spec("tool", attempt.operation, side_effect="irreversible")
        return scope.session.refuse(scope, Request(spec, {}), error)

    return refused


def watching() -> Watch:
    """Return a block in which leftovers of ``forbidding`` with ``reach`` (a callback, a task) are refused as well."""
    return Watch()


def everywhere() -> bool:
    """Return whether a replay guards the whole process now, including threads that have lost its context."""
    guards = _engaged.guards
    return bool(guards) and any(guard.scope == "process" for guard in guards)


def engaged() -> tuple[Guard, ...]:
    """Return the engaged guards."""
    return _engaged.guards


def left_by_fork() -> None:
    """In a forked child, revoke what was allowed for the fork: the child has inherited that context."""
    _allowed.set(False)


@contextmanager
def allow() -> Iterator[None]:
    """Let tracekit's own operations through, in this context and in tasks started from it.

    For what a replay itself needs: a child that joins the replay, a step that ``live=`` lets go live.
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


@_reality.off_loop()
def warm(*, files: bool = False) -> None:
    """Fill the caches that the interpreter fills by running commands, which are not effects of the program.

    The first request of the OpenAI SDK in a process calls ``platform.platform()``, which runs ``uname -p``. With
    ``files``, the directory for temporary files is determined as well, by writing a file as a test.
    """
    import platform

    with allow(), suppress(Exception):
        platform.platform()
        _ = platform.uname().processor
        if files:
            import tempfile

            tempfile.gettempdir()


def cross(attempt: Attempt | None) -> None:
    """Handle an operation that is about to reach outside: ask the guards, and note it in a recording."""
    check(attempt)
    observe(attempt)


def check(attempt: Attempt | None) -> None:
    """Raise ``LiveCallBlockedError`` if a guard blocks this operation of this caller.

    Telemetry, which a replay does not send, gets an ordinary ``OSError``, as if nobody were listening.
    """
    if attempt is None:
        return
    refuse(attempt)
    guards = _blocking(attempt)
    if not guards:
        return
    caller = Caller()
    if caller.passes(attempt.kind) or _stays_alone(attempt):
        return
    if attempt.kind == "listen":
        process.role.listen()
    if attempt.kind in _SENDING and telemetry() is not None:
        raise _unsent(attempt)
    if attempt.sock is not None and caller.leaks:
        attempt.sock.close()
    error = _error(attempt, caller, guards)
    for guard in guards:
        if guard.failed is not None:
            with suppress(Exception):
                guard.failed(error)
    raise error


def _blocking(attempt: Attempt) -> list[Guard]:
    """Return the guards that block this operation."""
    if _allowed.get() or _gone_live():
        return []
    return [guard for guard in _engaged.guards if guard.blocks(attempt)]


def _nobody_connects(attempt: Attempt) -> bool:
    """Return whether guards block listening here, and nobody connected to this socket in the recording that is
    replayed: then a socket that nobody reaches is as good.

    A resumed run is live in the end, and so needs a socket that others reach.
    """
    guards, scope = _blocking(attempt), _replaying()
    if not guards or scope is None or any(guard.resumes for guard in guards):
        return False
    return nobody_connected(scope.session, attempt.text)


def _stays_alone(attempt: Attempt) -> bool:
    """Return whether the program may listen on a socket in a replay, or ask it for connections: nobody reaches it."""
    if attempt.sock is None or attempt.operation not in ("socket.listen", "socket.accept"):
        return False
    if is_closed(attempt.sock):
        return True
    if attempt.operation != "socket.listen" or not _nobody_connects(attempt):
        return False
    process.role.listen()  # a server whose connections were not seen
    with allow():
        return close_to_others(attempt.sock)


def _unsent(attempt: Attempt) -> OSError:
    """Return the error that telemetry gets in a replay, as if its receiver were absent."""
    if attempt.kind == "lookup":
        from _socket import EAI_NONAME, gaierror

        return gaierror(EAI_NONAME, "Name or service not known")
    if attempt.kind == "process":
        return FileNotFoundError(ENOENT, os.strerror(ENOENT), attempt.text)
    return ConnectionRefusedError(ECONNREFUSED, os.strerror(ECONNREFUSED))


def refuse(attempt: Attempt) -> None:
    """Raise the error of the caller's session for an operation, in a recording as well; applies even to what a replay
    allows."""
    reach = _reach()
    if reach is None or (attempt.kind == "act" and _allowed.get()):
        return
    caller = Caller()
    if caller.passes(attempt.kind) or (attempt.kind == "file" and caller.keeps):
        return
    if attempt.sock is not None and caller.leaks:
        attempt.sock.close()
    raise reach(attempt, caller.location)


def _reach() -> Refuse | None:
    """Return the function to ask about what the running code does: that of its session, or of a watch of its thread."""
    scope = current.get()
    reach: Refuse | None = None if scope is None else scope.session.reach
    if reach is None:
        for guard in _engaged.guards:
            if isinstance(guard, Watch) and guard.reach is not None and guard.thread == get_ident():
                return guard.reach
    return reach


def _error(attempt: Attempt, caller: Caller, guards: Iterable[Guard]) -> LiveCallBlockedError:
    resumes = any(guard.resumes for guard in guards)
    alone = all(isinstance(guard, NoNetwork) for guard in guards)
    action = _NEXT_RESUMED if resumes and attempt.kind == "process" else _next(attempt)
    if attempt.kind == "file" and not any(guard.dry_run for guard in guards):
        action = _NEXT_WRITTEN
    thread = current_thread()
    where = "" if caller.own else f", in thread {thread.name!r}, in a package's code"
    scope = _replaying()
    who = "resumed run" if resumes else "program" if alone else "replay"
    if alone:
        action = _NEXT_NO_NETWORK.format(host=attempt.text)
    return LiveCallBlockedError(
        f"the {who} was about to {_VERBS[attempt.kind]} {attempt.text} ({attempt.operation}{where}); it was not done",
        run_id=None if scope is None else scope.session.run_id,
        location=caller.location,
        next_action=action,
        operation=attempt.operation,
        target=attempt.text,
        kind=attempt.kind,
    )


def _next(attempt: Attempt) -> str:
    if attempt.operation == "sqlite3.connect":
        return _NEXT_SQLITE
    if attempt.operation in ("os.fork", "os.forkpty"):
        return _NEXT_FORK
    if _is_pipe(attempt):
        return _NEXT_PIPE
    if attempt.operation == "process.output":
        return _NEXT_OUTPUT
    if attempt.kind == "send" and attempt.operation in _SIGNALLING:
        return _NEXT_SIGNAL
    if attempt.kind == "listen" and f"{os.sep}pymp-" in attempt.text:  # its directories are called that
        return _NEXT_MULTIPROCESSING
    return _NEXT.get(attempt.kind, _NEXT["lookup"]).format(host=attempt.text)


def _gone_live() -> bool:
    """Return whether this is the body of a step that ``live=`` lets go live: it belongs to the new run of a partial
    replay."""
    scope = current.get()
    return scope is not None and scope.session.state.partial


def _replaying() -> Any:
    scope = current.get()
    return None if scope is None or scope.session.recording else scope


class _Engagement:
    """The engaged guards of this process, and what is in place for them: hook, events, replacements, the interpreter's
    flag."""

    def __init__(self) -> None:
        self.lock: Final = _reality.OwnLock()
        self.guards: tuple[Guard, ...] = ()
        self.seams: Final = _Seams(self._note)
        #: Whether a run is active, so that what leaves the process is observed.
        self.observing = False
        #: The replacements that the guards need.
        self._needed = {"live": False, "files": False, "acts": False}
        #: The audit events that are examined, with the function that interprets each.
        self.events: Final[dict[str, Callable[[tuple[Any, ...]], Attempt | None]]] = {}
        self._tables: tuple[bool, ...] = ()
        self._hook: AuditHook | None = None
        #: The user's setting, while a dry run changes it.
        self._bytecode: bool | None = None

    def set(self, guards: tuple[Guard, ...]) -> None:
        """Adjust hook, table, replacements and the interpreter's flag to these guards; under the lock."""
        discover()  # now: each event asks the integrations who caused it, and loading them causes events
        watched = closely = live = files = dry = False
        for guard in guards:
            if isinstance(guard, Watch):
                watched, closely = True, closely or guard.reach is not None
            else:
                live, files, dry = live or guard.scope != "off", files or guard.files, dry or guard.dry_run
        if guards and not self.guards:
            self._hear()
        self.guards = guards  # before the table: an event found in the table must find its guards
        self._listen_to(live or watched, files or watched, watched)
        self._needed = {"live": live or closely, "files": files or closely, "acts": closely}
        self.seams.use(observed=self.observing, **self._needed)
        self._forbid_bytecode(dry)
        if not guards and self._hook is not None:
            self._hook.restore()

    def observe(self, observing: bool) -> None:
        """A run is active, so that what leaves the process is observed; or the last one has ended."""
        with self.lock:
            self.observing = observing
            self.seams.use(observed=observing, **self._needed)

    def _listen_to(self, *tables: bool) -> None:
        """Select the active tables of audit events: live operations, files, acts."""
        if tables == self._tables:
            return
        self._tables = tables
        wanted = {
            event: table[event] for table, on in zip((LIVE, FILES, ACTS), tables, strict=True) if on for event in table
        }
        self.events.update(wanted)
        for event in [event for event in self.events if event not in wanted]:
            del self.events[event]

    def _note(self, name: object, addresses: Iterable[object]) -> None:
        """Pass the addresses of an allowed look-up to the engaged guards."""
        for guard in self.guards:
            if guard.hosts.looks_up(name):
                guard.hosts.note(name, addresses)

    def _forbid_bytecode(self, forbidden: bool) -> None:
        """Don't write bytecode: the import system's caches are files, too, and a dry run would refuse the program's
        imports."""
        if forbidden and self._bytecode is None:
            self._bytecode = sys.dont_write_bytecode
            sys.dont_write_bytecode = True
        elif not forbidden and self._bytecode is not None:
            sys.dont_write_bytecode = self._bytecode
            self._bytecode = None

    def _hear(self) -> None:
        """Add the audit hook, and check that it works: somebody else's hook may have refused it."""
        from .in_place import AuditHook

        heard: list[bool] = []
        hook = self._hook = self._hook or AuditHook(_heard_event)

        def probe(args: tuple[Any, ...]) -> None:
            heard.append(True)
            with suppress(Exception):  # otherwise it stays
                hook.locate()

        self.events[_PROBE] = probe
        try:
            hook.apply()
            sys.audit(_PROBE)
        finally:
            del self.events[_PROBE]
            if not heard:
                hook.restore()
        if not heard:
            raise RunStateError(
                "the replay guard can't see this process: another audit hook refused it",
                next_action="remove that hook, or replay with guard='off' and no network",
            )


_engaged: Final = _Engagement()


class _Observation:
    """What leaves the process is observed while a run is active."""

    target = "boundary"

    def apply(self) -> None:
        _engaged.observe(True)

    def restore(self) -> bool:
        _engaged.observe(False)
        return True


hooks: Final = Switch(lambda: [_Observation()])


def _heard_event(event: str, args: tuple[Any, ...], find_event: Callable[[str], Any] = _engaged.events.get) -> None:
    describe = find_event(event)
    if describe is not None:
        check(describe(args))
