"""What user code reads from outside: environment variables, files and directories; and how files were before it changed them."""

from __future__ import annotations

import _io
import builtins
import errno
import io
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache, wraps
from hashlib import sha256
from sys import _getframe
from types import BuiltinFunctionType, FrameType
from typing import Any, Final

from .. import _reality
from .._runtime.session import Scope, current
from .callers import installed, walk
from .guard import Attempt, cross, temporary_directories
from .patch import AttributePatch, Patch, Switch
from .plugins import PLACEHOLDER

__all__ = ["activate", "deactivate"]

#: Variables that say where a process runs, not what it does: a program may have others in a replay.
_PLACE: Final = frozenset({
    "HOME", "PATH", "TMPDIR", "TEMP", "TMP", "PWD", "OLDPWD", "SHLVL", "SHELL", "VIRTUAL_ENV", "_",
    "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR",
})  # fmt: skip
_OF_PLACE: Final = ("PYTHON", "PYTEST_", "TERM_", "TRACEKIT_")
#: Modules of the standard library by which user code asks for a variable, or opens a file.
_BETWEEN: Final = frozenset({
    "os", "_collections_abc", "collections.abc", "pathlib", "pathlib._local", "codecs", "configparser", "fileinput",
    "gzip", "bz2", "lzma", "tarfile", "zipfile", "glob", "fnmatch", "contextlib", __name__,
})  # fmt: skip
_WRITING: Final = frozenset("wax+")
#: Packages that look at the program, and read its code.
_KEEPING: Final = frozenset({
    "IPython", "_pytest", "pytest", "coverage", "debugpy", "pydevd", "pip", "setuptools", "pkg_resources", "traitlets", "wrapt",
})  # fmt: skip
_CODE: Final = (".py", ".pyc", ".pyi", ".pth", ".so", ".pyd", ".ipynb")
_OF_THE_SYSTEM: Final = ("/bin/", "/dev/", "/etc/", "/lib", "/proc/", "/run/", "/sys/", "/usr/", "/sbin/")
_getcwd: Final = os.getcwd


def _asks() -> Scope | None:
    """The scope of the run, where the running code is user code and part of it, outside every step."""
    scope = current.get()
    if scope is None or scope.live:
        return None
    frame: FrameType | None = _getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return scope if walk(frame) else None


def _library_asks(path: Any) -> bool:
    """Whether an installed package opens this file for the program: one of its data or of its state.

    Not what the package keeps for itself (hidden, among temporary files, of the system), and no code.
    """
    frame: FrameType | None = _getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    if frame is None or not installed(frame.f_code.co_filename):
        return False
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    if package in sys.stdlib_module_names or package in _KEEPING or package.startswith("tracekit"):
        return False
    where, here = os.path.realpath(path), _getcwd() + os.sep
    if where.startswith(here):
        where = os.sep + where.removeprefix(here)
    elif where.startswith((*_OF_THE_SYSTEM, *temporary_directories())):
        return False
    return not where.endswith(_CODE) and os.sep + "." not in where


# -- environment variables ---------------------------------------------------------------------------------------------


class _Written:
    """The variables that were set or taken away, and the files that were written, while runs are active, outside every step: those are the
    program's own."""

    def __init__(self) -> None:
        self.names: Final[set[str]] = set()
        self.paths: Final[set[str]] = set()


_written: Final = _Written()


class _Iterated(threading.local):
    """The names that this thread has been given by an iteration, as the very objects: whoever looks them up wants all variables, to
    hand them on to another process, and none of them."""

    def __init__(self) -> None:
        self.names: dict[int, Any] = {}


_iterated: Final = _Iterated()


def _is_input(environment: Any, name: Any) -> bool:
    if environment is not os.environ or type(name) is not str:
        return False
    if name in _PLACE or name.startswith(_OF_PLACE):
        return False
    return _iterated.names.get(id(name)) is not name


def _getting(original: Any) -> Any:
    def __getitem__(self: Any, key: Any) -> Any:
        if current.get() is None or _iterated.names.get(id(key)) is key:
            return original(self, key)
        scope = _asks() if _is_input(self, key) else None
        if scope is None:
            return original(self, key)
        try:
            value = original(self, key)
        except KeyError:
            value = None
        # What a replay supplies, so that SDKs can be made without a key, is no value of the program's.
        found = _read(scope, key, None if value == PLACEHOLDER else value)
        if found is None:
            raise KeyError(key)
        return value if value == PLACEHOLDER else found

    return __getitem__


def _read(scope: Scope, name: str, value: str | None) -> Any:
    return scope.session.input_read(scope, "environment", name, value, own=name in _written.names)


def _iterating(original: Any) -> Any:
    def __iter__(self: Any) -> Iterator[Any]:
        found = list(original(self))
        _iterated.names = {id(name): name for name in found}
        return iter(found)

    return __iter__


def _setting(original: Any) -> Any:
    def __setitem__(self: Any, key: Any, value: Any) -> None:
        original(self, key, value)
        if self is os.environ:
            _written.names.add(key)

    return __setitem__


def _deleting(original: Any) -> Any:
    def __delitem__(self: Any, key: Any) -> None:
        try:
            original(self, key)
        except KeyError:
            # In a replay the recorded one may serve where there is none: that is what is taken away.
            scope = _asks() if _is_input(self, key) else None
            if scope is None or key in _written.names or _read(scope, key, None) is None:
                raise
        if self is os.environ:
            _written.names.add(key)

    return __delitem__


# -- files -------------------------------------------------------------------------------------------------------------
#
# What the program opens for reading. What it has written itself outside every step, it writes in a replay, too: that is no input.

#: How much content is kept, of one file and of all that a run reads, in bytes.
_ONE: Final = 256 << 10
_ALL: Final = 16 << 20
#: Of a larger file the beginning and the end are hashed.
_WHOLE: Final = 16 << 20
_SAMPLE: Final = 1 << 20
#: Files that hold credentials: their content is never kept.
_CREDENTIALS: Final = (
    ".env*", "*.env", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".git-credentials", ".htpasswd", ".dockercfg",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.asc", "*.gpg", "id_rsa*", "id_dsa*",
    "id_ecdsa*", "id_ed25519*", "*credential*", "*secret*", "*password*", "*token*", "service-account*.json",
    "*service_account*.json", "kubeconfig", "authorized_keys", "cookies*",
)  # fmt: skip
#: Directories of such files.
_HIDDEN: Final = frozenset((".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".config"))


class _Files:
    """What a run has read of files: where its names begin, how much content it has kept, and what each was when it was last looked at."""

    def __init__(self) -> None:
        self.directory: Final = os.path.realpath(_getcwd())
        self.kept = 0
        self.seen: Final[dict[str, tuple[tuple[int, ...], dict[str, Any]]]] = {}

    def named(self, where: str) -> tuple[str, bool]:
        """What a path is called, and whether it is in the working directory: from there, so that a run can be replayed elsewhere."""
        inside = where == self.directory or where.startswith(self.directory + os.sep)
        return (os.path.relpath(where, self.directory) if inside else where), inside


@lru_cache(maxsize=8)
def _opening(original: Any) -> Any:
    @wraps(original)
    def open_file(*args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if scope is None or scope.live:
            return original(*args, **kwargs)
        path = args[0] if args else kwargs.get("file")
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
        if type(mode) is not str or not isinstance(path, str | os.PathLike) or len(args) > 7 or kwargs.get("opener"):
            return original(*args, **kwargs)
        if not _WRITING.isdisjoint(mode):
            _about_to_write(path, whole="w" not in mode)
            return original(*args, **kwargs)
        if _asks() is None and not _library_asks(path):
            return original(*args, **kwargs)
        return _read_file(scope, original, path, args, kwargs)

    return open_file


def _read_file(scope: Scope, original: Any, path: Any, args: Any, kwargs: Any) -> Any:
    file = None
    try:
        file = original(*args, **kwargs)
    except FileNotFoundError:
        found = _input(scope, path, None)
        if found is None:
            raise
    else:
        found = _input(scope, path, file)
        if found is _AS_IT_IS:
            return file
        file.close()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return _recorded_file(original, path, found, args, kwargs)


_AS_IT_IS: Final = object()


@_reality.off_loop()
def _input(scope: Scope, path: Any, file: Any) -> Any:
    """What a program is given of a file: the content, as text or bytes; ``None``: that it is not there; or ``_AS_IT_IS``."""
    try:
        where = os.path.realpath(path)
        if where in _written.paths or installed(where):
            return None if file is None else _AS_IT_IS
        files = scope.session.state.extras.of(_Files)
        name, inside = files.named(where)
        value = None if file is None else _state(files, name, file.fileno(), inside and scope.session.recording)
    except Exception:  # observing never breaks the program
        return None if file is None else _AS_IT_IS
    if value is None and file is not None:  # no regular file
        return _AS_IT_IS
    found = scope.session.input_read(scope, "file", name, value, own=False)
    if found is value:
        return None if file is None else _AS_IT_IS
    return None if found is None else found["content"]


# What the program changes is to be as it was when it did so for the first time, before a replay does it again. So it is kept as it was.


@_reality.off_loop()
def _about_to_write(path: Any, *, whole: bool = True, seen: bool = False) -> None:
    """The program is about to change this file, or to make it. ``whole``: what is in it now matters, not only whether it is there.

    ``seen``: it is no matter who in the program does so, a library too.
    """
    scope = current.get()
    if scope is None or scope.live:
        return
    with suppress(Exception):  # observing never breaks the program
        where = os.path.realpath(path)
        if where in _written.paths:
            return
        asked = seen or _asks() is not None or _library_asks(where)
        _written.paths.add(where)
        if asked and scope.session.recording and not installed(where):
            _keep(scope, where, whole)


def _keep(scope: Scope, where: str, whole: bool) -> None:
    """``whole``: it matters what is in it. Where that is lost with the change, it matters only if the program has read it before."""
    files = scope.session.state.extras.of(_Files)
    name, inside = files.named(where)
    try:
        fd = os.open(where, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        scope.session.input_read(scope, "kept", name, None, own=False)
        return
    try:
        directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        value = {"directory": True} if directory and whole else _state(files, name, fd, inside)
    finally:
        os.close(fd)
    if value is not None and (whole or "content" in value):
        scope.session.input_read(scope, "kept", name, value, own=False)


def _changing(names: tuple[int, ...], made: int = -1) -> Callable[[Any], Any]:
    """A function that changes the files that these arguments name; of the one that argument ``made`` names nothing is left."""

    def make(original: Any) -> Any:
        @wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            scope = current.get()
            if (
                scope is not None and not scope.live and not kwargs
            ):  # relative to a directory that is open: a part of a larger removal
                for at in names:
                    if len(args) > at and isinstance(args[at], str | os.PathLike):
                        _about_to_write(args[at], whole=at != made)
            return original(*args, **kwargs)

        return change

    return make


def _connecting(original: Any) -> Any:
    """``sqlite3.connect``, which opens the file by itself, and the files beside it that a process left there when it was ended."""

    @wraps(original)
    def connect(*args: Any, **kwargs: Any) -> Any:
        database = args[0] if args else kwargs.get("database")
        if current.get() is not None and isinstance(database, str | os.PathLike):
            path = os.fspath(database)
            if isinstance(path, str) and path not in ("", ":memory:") and not path.startswith("file:"):
                for suffix in ("", "-wal", "-journal"):
                    _about_to_write(path + suffix, seen=True)
        return original(*args, **kwargs)

    return connect


def _state(files: _Files, name: str, fd: int, keep: bool) -> dict[str, Any] | None:
    """Size and hash of a file, and its content where it is to be kept; ``None`` where it is no regular file."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        return None
    version = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
    known = files.seen.get(name)
    if known is not None and known[0] == version:
        return known[1]
    size = about.st_size
    data = b"".join(_pieces(fd, size))
    value: dict[str, Any] = {"size": size, "sha256": sha256(data).hexdigest()}
    if size > _WHOLE:
        value["sampled"] = True
    if keep and size <= _ONE and files.kept + size <= _ALL and not _holds_credentials(name):
        files.kept += size
        try:
            value["content"] = data.decode()
        except UnicodeDecodeError:
            value["content"] = data
    files.seen[name] = version, value
    return value


def _pieces(fd: int, size: int) -> Iterator[bytes]:
    spans = [(0, size)] if size <= _WHOLE else [(0, _SAMPLE), (size - _SAMPLE, size)]
    for at, end in spans:
        while at < end and (piece := os.pread(fd, min(end - at, _SAMPLE), at)):
            at += len(piece)
            yield piece


def _holds_credentials(name: str) -> bool:
    *directories, last = name.lower().split(os.sep)
    return not _HIDDEN.isdisjoint(directories) or any(fnmatchcase(last, pattern) for pattern in _CREDENTIALS)


@_reality.off_loop()
def _without_name(data: bytes) -> int:
    """A descriptor of a file that is nowhere, to be read from its beginning."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("tracekit")
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="tracekit-")
        os.unlink(path)
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _recorded_file(original: Any, path: Any, content: str | bytes, args: Any, kwargs: Any) -> Any:
    """A file of this content, opened as the program has asked for."""
    data = content.encode() if isinstance(content, str) else bytes(content)
    fd = _without_name(data)
    if args:
        args = (fd, *args[1:])
    else:
        kwargs = {**kwargs, "file": fd}
    file = original(*args, **kwargs)
    below = getattr(file, "buffer", file)
    getattr(below, "raw", below).name = path
    return file


# -- directories -------------------------------------------------------------------------------------------------------
#
# What is in a directory, in the order in which the system says so. ``os.walk``, ``glob`` and ``pathlib`` ask the same two functions.

#: Of a directory with more in it than that nothing is recorded.
_NAMES: Final = 10_000


def _listing(original: Any) -> Any:
    @wraps(original)
    def listdir(*args: Any, **kwargs: Any) -> Any:
        scope = _asks() if current.get() is not None else None
        path = args[0] if args else kwargs.get("path")
        if scope is None or not (path is None or isinstance(path, str | os.PathLike)):
            return original(*args, **kwargs)
        try:
            found = original(*args, **kwargs)
        except FileNotFoundError:
            names = _listed(scope, "listing", path, None)
            if names is None:
                raise
            return names
        return _listed(scope, "listing", path, found) if len(found) <= _NAMES else found

    return listdir


def _scanning(original: Any) -> Any:
    @wraps(original)
    def scandir(*args: Any, **kwargs: Any) -> Any:
        scope = _asks() if current.get() is not None else None
        path = args[0] if args else kwargs.get("path")
        if scope is None or not (path is None or isinstance(path, str | os.PathLike)):
            return original(*args, **kwargs)
        entries: dict[str, Any] = {}
        try:
            with original(*args, **kwargs) as found:
                entries = {entry.name: entry for entry in found}
        except FileNotFoundError:
            names = _listed(scope, "scan", path, None)
            if names is None:
                raise
        else:
            if len(entries) > _NAMES:
                return _Scan([*entries.values()])
            names = _listed(scope, "scan", path, [name + "/" * _is_directory(one) for name, one in entries.items()])
        where = "." if path is None else os.fspath(path)
        return _Scan([entries.get(name.rstrip("/")) or _Entry(where, name) for name in names])

    return scandir


def _is_directory(entry: Any) -> bool:
    try:
        return bool(entry.is_dir(follow_symlinks=False))
    except OSError:
        return False


def _listed(scope: Scope, kind: str, path: Any, names: list[str] | None) -> Any:
    """The names that a program is given of a directory; ``None``: that it is not there."""
    try:
        files = scope.session.state.extras.of(_Files)
        where = os.path.realpath("." if path is None else path)
        if installed(where):
            return names
        name, _ = files.named(where)
    except Exception:  # observing never breaks the program
        return names
    found = scope.session.input_read(scope, kind, name, names, own=False)
    if found is None and names is not None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return None if found is None else [*found]


# -- where it runs, and who is asked -----------------------------------------------------------------------------------


def _directory(original: Any) -> Any:
    """``os.getcwd``: a replay may run elsewhere, and what lies there is there; so it is compared, not served."""

    @wraps(original)
    def getcwd() -> Any:
        value = original()
        scope = _asks() if current.get() is not None else None
        if scope is not None:
            scope.session.input_read(scope, "directory", ".", value, own=False)
        return value

    return getcwd


def _answering(original: Any) -> Any:
    """``input`` where nobody captures it, as under ``tracekit run``, and nobody has put something else in its place."""
    if not isinstance(original, BuiltinFunctionType):
        return original

    @wraps(original)
    def input(*args: Any) -> Any:
        scope = current.get()
        # What a process that has joined the run reads there is written by the one that started it, in a replay, too.
        if scope is None or not scope.session.state.joined:
            cross(Attempt("stdin", "input", "standard input"))
        return original(*args)

    return input


class _Scan:
    """What ``os.scandir`` gives."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries: Final = iter(entries)

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give nothing more."""
        for _ in self._entries:
            pass


class _Entry:
    """An entry of a directory that was there in the recording, and is not here."""

    def __init__(self, directory: str, name: str) -> None:
        self.name: Final = name.rstrip("/")
        self.path: Final = os.path.join(directory, self.name)
        self._directory: Final = name.endswith("/")

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self._directory

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return self.stat().st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)


class _Around:
    """A function of a module, around what is there when a run begins: a test may have a file system of its own in its place."""

    def __init__(self, module: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._module: Final = module
        self._name: Final = name
        self._make: Final = make
        self._patch: AttributePatch | None = None

    @property
    def target(self) -> str:
        return f"{self._module.__name__}.{self._name}"

    def apply(self) -> None:
        if self._patch is None:
            self._patch = AttributePatch(self._module, self._name, self._make(getattr(self._module, self._name)))
            self._patch.apply()

    def restore(self) -> bool:
        patch, self._patch = self._patch, None
        return patch is None or patch.restore()


def _patches() -> list[Patch]:
    found = _switch.made("all", _always)
    if "sqlite3" in sys.modules:
        found = found + _switch.made("sqlite3", _of_sqlite)
    return found


def _always() -> list[Patch]:
    environment = type(os.environ)
    variables = {"__getitem__": _getting, "__iter__": _iterating, "__setitem__": _setting, "__delitem__": _deleting}
    return [
        *(AttributePatch(environment, name, make(getattr(environment, name))) for name, make in variables.items()),
        *(_Around(module, "open", _opening) for module in (builtins, io, _io)),
        _Around(os, "getcwd", _directory),
        _Around(builtins, "input", _answering),
        _Around(os, "listdir", _listing),
        _Around(os, "scandir", _scanning),
        *(_Around(os, name, _changing((0,))) for name in ("remove", "unlink", "rmdir", "truncate")),
        *(_Around(os, name, _changing((0, 1), made=1)) for name in ("rename", "replace")),
        _Around(os, "mkdir", _changing((0,), made=0)),
    ]


def _of_sqlite() -> list[Patch]:
    return [_Around(sys.modules[name], "connect", _connecting) for name in ("sqlite3.dbapi2", "sqlite3")]


_switch: Final = Switch(_patches, ("sqlite3",))


def activate() -> None:
    """Observe what user code reads from now on; each call wants a :func:`deactivate`."""
    _switch.on()


def deactivate() -> list[str]:
    """Release the hooks; the last holder restores everything."""
    if _switch.active:
        _written.names.clear()
        _written.paths.clear()
    return _switch.off()
