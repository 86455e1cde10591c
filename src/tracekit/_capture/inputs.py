"""Capture of what user code reads from outside: environment variables, files, directories, standard input.

And of how files were before the run changed them, and how its steps left them.
"""

from __future__ import annotations

import _io
import builtins
import errno
import io
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache, partial, wraps
from itertools import repeat
from sys import _getframe
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._journal.durable import is_past
from .._lazy import expression
from .._native import decoded, sha256_hex
from .._runtime.boundary import crossings_of
from .._runtime.callsite import warn
from .._runtime.inputs import LeftStates, OwnFiles
from .._runtime.session import Scope, current
from .callers import asked_by_user, by_asyncio, by_user, installed
from .guard import Attempt, allow, check, cross, observe, read_from, temporary_directories
from .in_place import CodeExchange
from .patch import AtRestore, AttributePatch, LatePatch, ReversiblePatch, Switch, loaded
from .plugins import PLACEHOLDER

if TYPE_CHECKING:
    from .._runtime.replayer import Replay

__all__ = [
    "GivenAway",
    "about_to_start",
    "brought_back",
    "bytes_of",
    "follow_directory",
    "hooks",
    "is_own_variable",
    "look_around",
]

#: Variables that say where a process runs, not what it does: they may differ in a replay.
_LOCAL_VARIABLES: Final = frozenset({
    "HOME", "PATH", "TMPDIR", "TEMP", "TMP", "PWD", "OLDPWD", "SHLVL", "SHELL", "VIRTUAL_ENV", "_",
    "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR",
})  # fmt: skip
_LOCAL_PREFIXES: Final = ("PYTHON", "PYTEST_", "TERM_", "TRACEKIT_")
#: Modules of the standard library through which user code opens a file.
_PASS_THROUGH: Final = frozenset({
    "os", "_collections_abc", "collections", "collections.abc", "codecs", "configparser", "fileinput", "string",
    "pathlib", "pathlib._abc", "pathlib._local", "pathlib._os", "pathlib.types",  # a package from 3.13 on
    "gzip", "bz2", "lzma", "compression.zstd", "compression.zstd._zstdfile", "tarfile", "zipfile",
    "xml.etree.ElementTree", "xml.dom.minidom", "xml.dom.expatbuilder", "xml.sax", "xml.sax.expatreader", "xml.sax.saxutils",
    "shutil", "filecmp", "wave", "mailbox", "netrc", "http.cookiejar",
    "glob", "fnmatch", "contextlib", __name__,
})  # fmt: skip
#: Those through which it reads a variable: ``os.path.expandvars``, too.
_WITH_PATHS: Final = _PASS_THROUGH | {"posixpath", "ntpath", "genericpath"}
#: Those through which it asks about a file.
_OF_PATHS: Final = _WITH_PATHS - {__name__}
_WRITING: Final = frozenset("wax+")
#: Packages that inspect the program, and read its code.
_INSPECTORS: Final = frozenset({
    "IPython", "_pytest", "pytest", "coverage", "debugpy", "pydevd", "pip", "setuptools", "pkg_resources", "traitlets", "wrapt",
})  # fmt: skip
_CODE: Final = (".py", ".pyc", ".pyi", ".pth", ".so", ".pyd", ".ipynb")
_OF_THE_SYSTEM: Final = ("/bin/", "/dev/", "/etc/", "/lib", "/proc/", "/run/", "/sys/", "/usr/", "/sbin/")
_getcwd: Final = os.getcwd


def _asks() -> Scope | None:
    """Return the scope of the run if the running code is user code and part of it, outside of any step."""
    scope = current.get()
    return scope if scope is not None and not scope.live and asked_by_user(_PASS_THROUGH, 3) else None


@_reality.off_loop()
def _library_asks(path: Any) -> bool:
    """Return whether an installed package opens this file for the program: a file of its data or state.

    Not the package's private files (hidden, temporary, or of the system), and no code.
    """
    package = _asking_package()
    if package is None or package in sys.stdlib_module_names or _watches(package):
        return False
    where, here = os.path.realpath(path), _getcwd() + os.sep
    if where.startswith(here):
        where = os.sep + where.removeprefix(here)
    elif _passes_away(where):
        return False
    return not where.endswith(_CODE) and os.sep + "." not in where


def _asking_package() -> str | None:
    """Return the installed package that asks; ``None`` if something else does."""
    frame: FrameType | None = _getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _PASS_THROUGH:
        frame = frame.f_back
    if frame is None:
        return None
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package if package.startswith("tracekit") or installed(frame.f_code.co_filename) else None


def _watches(package: str) -> bool:
    """Return whether a package inspects the program instead of being a part of it."""
    return package in _INSPECTORS or package.startswith("tracekit")


def _passes_away(where: str) -> bool:
    """Return whether a path is the system's, or a temporary file."""
    return where.startswith((*_OF_THE_SYSTEM, *temporary_directories()))


# -- environment variables ---------------------------------------------------------------------------------------------


class _Written:
    """The variables set or deleted outside of steps while runs are active: those are the program's own."""

    def __init__(self) -> None:
        self.names: Final[set[str]] = set()


_written: Final = _Written()


def is_own_variable(name: str) -> bool:
    """Return whether the program has set or deleted this variable itself."""
    return name in _written.names


class _Iterated(threading.local):
    """The names that this thread received from an iteration, by identity.

    Code that looks up these very objects wants all variables, to pass them to another process, and is interested in
    none.
    """

    def __init__(self) -> None:
        self.names: dict[int, Any] = {}


_iterated: Final = _Iterated()


def _is_input(environment: Any, name: Any) -> bool:
    if environment is not os.environ or type(name) is not str:
        return False
    if name in _LOCAL_VARIABLES or name.startswith(_LOCAL_PREFIXES):
        return False
    return _iterated.names.get(id(name)) is not name


def _getting(original: Any) -> Any:
    def __getitem__(self: Any, key: Any) -> Any:
        scope = current.get()
        if scope is None or scope.live or not asked_by_user(_WITH_PATHS) or not _is_input(self, key):
            return original(self, key)
        try:
            value = original(self, key)
        except KeyError:
            value = None
        # The placeholder that a replay supplies, so that SDK clients can be created without a key, is no value of the
        # program's.
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


#: Whether the environment is stored as bytes, which it decodes.
_POSIX: Final = os.name == "posix"


def _pairing(original: Any, iterating: Any, getting: Any) -> Any:
    """Wrap ``items()``: a library that scans all variables (for proxies, at each request) bypasses the per-variable
    hooks."""

    class Pairs(ItemsView[Any, Any]):
        _mapping: Any

        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            variables: Any = self._mapping
            if variables is os.environ and _POSIX:  # as os.environ does it
                return iter(decoded(self._mapping._data))
            names = list(iterating(variables))
            return zip(names, map(getting, repeat(variables), names), strict=True)

    def items(self: Any) -> Any:
        return Pairs(self) if current.get() is None or not by_user() else original(self)

    return items


def _setting(original: Any) -> Any:
    def __setitem__(self: Any, key: Any, value: Any) -> None:
        original(self, key, value)
        if self is os.environ:
            _written.names.add(key)

    return __setitem__


def _deleting(getting: Any, original: Any) -> Any:
    def __delitem__(self: Any, key: Any) -> None:
        scope = _asks() if _is_input(self, key) and key not in _written.names else None
        recorded = None
        if scope is not None:  # whether there is something to delete is an input
            try:
                value = getting(self, key)
            except KeyError:
                value = None
            recorded = _read(scope, key, None if value == PLACEHOLDER else value)
            if recorded is None:
                raise KeyError(key)
        try:
            original(self, key)
        except KeyError:
            if recorded is None:
                raise
        if self is os.environ:
            _written.names.add(key)

    return __delitem__


# -- files -------------------------------------------------------------------------------------------------------------
#
# What the program opens for reading. What it has written itself outside of steps, it also writes in a replay: that is
# no input.

#: How much content is kept of one file by default, in bytes; for everything that a run reads, the limit is this many
#: times as much.
_KEEP_PER_FILE: Final = 256 << 10
_KEEP_FACTOR: Final = 64
_KEEP: Final = "TRACEKIT_KEEP_FILES"
_SIZE: Final = expression(r"(\d+)([KMG]?)(?:i?B)?", re.IGNORECASE)
#: Of a larger file only the beginning and the end are hashed.
_WHOLE: Final = 16 << 20
_SAMPLE: Final = 1 << 20
#: Files that hold credentials: their content is never kept.
_CREDENTIALS: Final = (
    ".env*", "*.env", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".git-credentials", ".htpasswd", ".dockercfg",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.asc", "*.gpg", "id_rsa*", "id_dsa*",
    "id_ecdsa*", "id_ed25519*", "*credential*", "*secret*", "*password*", "*token*", "service-account*.json",
    "*service_account*.json", "kubeconfig", "authorized_keys", "cookies*", "environ",
)  # fmt: skip
#: Directories of such files.
_HIDDEN: Final = frozenset((".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".config"))


def bytes_of(text: str) -> int:
    """Return a human-readable size (``256K``, ``4MiB``, ``0``) in bytes; raise ``ValueError`` if it is invalid."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: give a number of bytes, or one with K, M or G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]


class _Files:
    """What a run has read from files: the root of its names, how much content it has kept, and each file's last seen
    state."""

    def __init__(self) -> None:
        self.directory: Final = os.path.realpath(_getcwd())
        #: How much content is kept of one file.
        self.most = _KEEP_PER_FILE
        setting = os.environ.get(_KEEP)
        if setting:
            try:
                self.most = bytes_of(setting)
            except ValueError as error:
                warn(f"{_KEEP}: {error}; it is {_KEEP_PER_FILE >> 10}K")
        self.kept = 0
        #: By name, the last state of each file that was read, and its version, unless it had just been changed.
        self.seen: Final[dict[str, tuple[tuple[int, ...] | None, dict[str, Any]]]] = {}
        #: The files whose state before the run changed them has been recorded.
        self.found: Final[set[str]] = set()
        #: What open steps have changed themselves, by step, and how it was before their last piece.
        self.changed: Final[dict[int, dict[str, tuple[int, ...] | None]]] = {}
        #: Directories in which processes have run, as last scanned; ``None`` if one is too large.
        self.trees: Final[dict[str, _Tree | None]] = {}
        #: Where open steps that have changed the current directory had begun.
        self.gone: Final[dict[int, str]] = {}
        self.lock: Final = _reality.OwnLock()

    def take(self, value: dict[str, Any], name: str, data: bytes, keep: bool) -> None:
        """Add the content of a file to its record, if it is to be kept."""
        if (
            keep
            and len(data) <= self.most
            and self.kept + len(data) <= self.most * _KEEP_FACTOR
            and not _holds_credentials(name)
        ):
            self.kept += len(data)
            try:
                value["content"] = data.decode()
            except UnicodeDecodeError:
                value["content"] = data

    def named(self, where: str) -> tuple[str, bool]:
        """Return a path's recorded name, and whether it is in the working directory: then it is relative, so that a run
        can be replayed elsewhere. What the system says of the process is named without its number."""
        inside = where == self.directory or where.startswith(self.directory + os.sep)
        if inside:
            return os.path.relpath(where, self.directory), True
        mine = f"/proc/{os.getpid()}"
        return ("/proc/self" + where[len(mine) :] if f"{where}/".startswith(f"{mine}/") else where), False


class _Running:
    """The processes of a run that are running, as far as the directories in which they run are scanned."""

    def __init__(self) -> None:
        #: Open steps in which a process was started, and the directory that is scanned when they end.
        self.watched: Final[set[tuple[int, str]]] = set()
        #: What has been changed meanwhile: by steps, and by such a process itself.
        self.by_steps: Final[set[str]] = set()
        self.by_itself: Final[set[str]] = set()
        #: What the program has found when it last read a file or directory meanwhile.
        self.looks: Final[dict[str, object]] = {}

    def ends(self, step: int, root: str) -> None:
        """Note that the process of a step has ended."""
        self.watched.discard((step, root))
        if not self.watched:
            for known in (self.by_steps, self.by_itself, self.looks):
                known.clear()


class _Descriptors:
    """The files being read while the process has them open elsewhere, too.

    These are not closed: closing any of its descriptors of a file loses a process's locks on it, a database's among
    them.
    """

    def __init__(self) -> None:
        self._held: Final[dict[tuple[int, int], int]] = {}

    @contextmanager
    def opened(self, where: str, busy: set[tuple[int, int]] | None = None) -> Iterator[int]:
        """Yield a descriptor for reading the file at a path; ``busy`` are the open files, if known."""
        about = os.stat(where)
        file = about.st_dev, about.st_ino
        fd = self._held.get(file)
        if fd is not None and _is_open_as(fd, file):
            yield fd
            return
        keeps = file in (_open_files() if busy is None else busy)
        fd = os.open(where, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
        if keeps and stat.S_ISREG(about.st_mode):
            self._held[file] = fd
            yield fd
            return
        try:
            yield fd
        finally:
            os.close(fd)

    def release(self) -> None:
        """Close the files that are no longer open elsewhere."""
        if self._held:
            held = {*self._held.values()}
            busy = _open_files(held)
            for file in [one for one in self._held if one not in busy]:
                fd = self._held.pop(file)
                if _is_open_as(fd, file):
                    os.close(fd)


def _is_open_as(fd: int, file: tuple[int, int]) -> bool:
    """Return whether a descriptor still belongs to this file: the program may have closed it (``os.closerange``), and its
    number may be another file's by now."""
    try:
        about = os.fstat(fd)
    except OSError:
        return False
    return (about.st_dev, about.st_ino) == file


_descriptors: Final = _Descriptors()


def _open_files(without: set[int] | None = None) -> set[tuple[int, int]]:
    """Return the files that this process has open."""
    found = set()
    for name in os.listdir("/dev/fd"):
        if without is None or int(name) not in without:
            with suppress(OSError):
                about = os.fstat(int(name))
                found.add((about.st_dev, about.st_ino))
    return found


def _path_of(given: Any) -> str | None:
    """Return an argument that names a file as text; ``None`` if it names none, such as a descriptor."""
    if type(given) is str:
        return given
    return os.fsdecode(given) if isinstance(given, str | bytes | os.PathLike) else None


@lru_cache(maxsize=8)
def _opening(original: Any) -> Any:
    @wraps(original)
    def open_file(*args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if scope is None:
            return original(*args, **kwargs)
        given = args[0] if args else kwargs.get("file")
        if type(given) is int:
            if given == 0 and _asks() is not None:
                cross(read_from("open", given))
            return original(*args, **kwargs)
        path = _path_of(given)
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
        if type(mode) is not str or path is None or len(args) > 7 or kwargs.get("opener"):
            return original(*args, **kwargs)
        if not _WRITING.isdisjoint(mode):
            _about_to_write(path, whole="w" not in mode)
            return original(*args, **kwargs)
        if scope.live or (_asks() is None and not _library_asks(path)):
            return original(*args, **kwargs)
        return _read_file(scope, original, path, given, args, kwargs)

    return open_file


_TO_WRITE: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Flags of directories and unnamed files, from which nothing is read.
_OTHERWISE: Final = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_TMPFILE", 0) | getattr(os, "O_PATH", 0)


def _opening_by_number(original: Any) -> Any:
    """Wrap ``os.open``."""

    @wraps(original)
    def open(path: Any, flags: Any, *args: Any, **kwargs: Any) -> Any:
        scope, given = current.get(), path
        if scope is None or type(flags) is not int or type(given) is int:
            return original(given, flags, *args, **kwargs)
        path = _path_from(given, kwargs.get("dir_fd"))
        if path is None:
            return original(given, flags, *args, **kwargs)
        if flags & _TO_WRITE:
            if not flags & _OTHERWISE:
                if kwargs.get("dir_fd") is not None:  # the audit event does not say from where
                    check(Attempt("file", "open", path))
                _about_to_write(path, whole=not flags & os.O_TRUNC)
            return original(given, flags, *args, **kwargs)
        if scope.live or flags & _OTHERWISE or (_asks() is None and not _library_asks(path)):
            return original(given, flags, *args, **kwargs)
        _refuse_pipe(scope, path)
        fd: int | None = None
        try:
            fd = original(given, flags, *args, **kwargs)
        except FileNotFoundError:
            found = _input(scope, path, None)
            if found is None:
                raise
        else:
            assert fd is not None
            try:
                found = _input(scope, path, fd)
            except BaseException:  # the replay has failed, say
                os.close(fd)
                raise
            if found is _AS_IT_IS:
                return fd
            os.close(fd)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
        fd = _without_name(_as_bytes(found))
        os.set_inheritable(fd, False)
        return fd

    return open


def _path_from(given: Any, directory: Any) -> str | None:
    """Like ``_path_of``, for a path relative to the directory with this descriptor; ``None`` also if that is not known."""
    path = _path_of(given)
    if directory is None or path is None or os.path.isabs(path):
        return path
    try:
        with _no_part_of_the_run():
            return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path)
    except OSError:
        return None


@_reality.off_loop()
def _refuse_pipe(scope: Scope, path: Any) -> None:
    """Refuse to open a named pipe that was fed from outside in the recording: in a replay that would take for ever."""
    trace = scope.session.log.trace
    try:
        if trace is None or scope.session.recording or not stat.S_ISFIFO(os.stat(path).st_mode):
            return
        name = os.path.realpath(path)
    except (OSError, ValueError):  # it does not exist
        return
    if any(one.kind == "stdin" and one.target == name for one in crossings_of(trace.entries(damaged=True))):
        cross(Attempt("stdin", "open", name))


def _read_file(scope: Scope, original: Any, path: str, given: Any, args: Any, kwargs: Any) -> Any:
    _refuse_pipe(scope, path)
    file = None
    try:
        file = original(*args, **kwargs)
    except FileNotFoundError:
        found = _input(scope, path, None)
        if found is None:
            raise
    else:
        try:
            found = _input(scope, path, file)
        except BaseException:  # the replay has failed, say
            file.close()
            raise
        if found is _AS_IT_IS:
            return file
        file.close()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
    return _recorded_file(original, given, found, args, kwargs)


_AS_IT_IS: Final = object()


@_reality.off_loop()
def _input(scope: Scope, path: Any, file: Any) -> Any:
    """Return what a program gets for a file (or its descriptor): the content, as text or bytes; ``None`` if it does not
    exist; or ``_AS_IT_IS``."""
    if file is not None:
        cross(scope.session.state.extras.of(GivenAway).reading(file))
    try:
        where, own = os.path.realpath(path), scope.session.state.extras.of(OwnFiles)
        if where in own.paths or installed(where):
            return None if file is None else _AS_IT_IS
        files = scope.session.state.extras.of(_Files)
        name, inside = files.named(where)
        keep = scope.session.recording and (inside or own.made_around(where))
        _look_meanwhile(scope, where, read=True)
        value = None if file is None else _state(files, name, file if type(file) is int else file.fileno(), keep)
    except Exception:  # observing never breaks the program
        return None if file is None else _AS_IT_IS
    if value is None and file is not None:  # no regular file
        cross(read_from("open", file))
        return _AS_IT_IS
    found = scope.session.input_read(scope, "file", name, value, own=False)
    if found is value:
        return None if file is None else _AS_IT_IS
    return None if found is None else found["content"]


# Before a replay repeats the run's changes, the files must be as they were before the first one: so that state is kept,
# whoever changes them. A replay does not execute steps, so their changes must be supplied: how a step left the files is
# a part of its outcome.

#: The most files recorded per run.
_PATHS: Final = 10_000


@_reality.off_loop()
def _about_to_write(path: Any, *, whole: bool = True, native: bool = False) -> str | None:
    """Record a file that the run is about to change or create; return its resolved path if the run is what changes it.

    ``whole``: its present content matters, not only whether it exists. ``native``: code below Python opens it, and may
    read it.
    """
    scope = current.get()
    if scope is None:
        return None
    asks = _asks() is not None
    package = None if asks or native else _asking_package()
    if package is not None and _watches(package):
        return None
    where: str | None = None
    state = scope.session.state
    own_files = state.extras.of(OwnFiles)
    lasting, own_files.lasting = own_files.lasting, True  # should nothing more become known of it
    with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
        where = os.path.realpath(path)
        files, own = state.extras.of(_Files), own_files.paths
        passes = scope.live or (_passes_away(where) and not files.named(where)[1])
        own_files.lasting = lasting or not passes
        first = where not in files.found
        if not scope.live and not first and where in own:
            return where
        with files.lock:
            if first:
                files.found.add(where)
                if _is_lasting(scope, files, where):
                    _keep(scope, files, where, whole, native)
            if scope.live:
                own.discard(where)
                state.extras.of(_Running).by_steps.add(where)
                _changes(scope, files, where)
            else:
                own.add(where)
    return where


@contextmanager
def _no_part_of_the_run() -> Iterator[None]:
    """The block in which tracekit looks at files: the program did not ask for that, nor for what it causes (such as a
    temporary file's name)."""
    token = current.set(None)
    try:
        yield
    finally:
        current.reset(token)


def _is_lasting(scope: Scope, files: _Files, where: str) -> bool:
    """Return whether a file's state before the change must be kept: the run is recorded, and the file neither
    installed, nor temporary, nor in a directory that the run has made."""
    if not scope.session.recording or len(files.found) > _PATHS or installed(where):
        return False
    if files.named(where)[1]:
        return True
    return not _passes_away(where) and not scope.session.state.extras.of(OwnFiles).made_around(where)


def _keep(scope: Scope, files: _Files, where: str, whole: bool, native: bool) -> None:
    """Record the state of a file. ``whole``: its content matters; otherwise the content, which the change destroys,
    matters only if the program has read it before."""
    name, inside = files.named(where)
    value = _now(files, where, keep=inside or native, directory=whole)
    if value is _NOTHING or (isinstance(value, dict) and not whole and "content" not in value):
        return
    scope.session.input_read(scope, "kept", name, value, own=False)


#: Something that is no file.
_NOTHING: Final = object()


def _now(files: _Files, where: str, *, keep: bool, directory: bool = True) -> Any:
    """Return the state of a path: a file, a link, a directory; ``None`` for nothing, ``_NOTHING`` for what can't be
    recorded."""
    if os.path.islink(where):
        return {"link": os.readlink(where)}
    try:
        with _descriptors.opened(where) as fd:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                return {"directory": True} if directory else _NOTHING
            value = _state(files, files.named(where)[0], fd, keep)
            return _NOTHING if value is None else value
    except FileNotFoundError:
        return None
    except OSError:
        return _NOTHING


def _changes(scope: Scope, files: _Files, where: str) -> None:
    """Note that a step is about to change this file itself: how it leaves it is recorded before its outcome."""
    made = scope.session.recording and scope.session.state.extras.of(OwnFiles).made_around(where)
    if not made and not _is_lasting(scope, files, where):
        return
    step = scope.live
    known = files.changed.get(step)
    if known is None:
        known = files.changed[step] = {}
        _before_outcome(scope, step, lambda inside: _leave(inside, files, files.changed.pop(step, {})))
        _before_piece(scope, step, partial(_leave_so_far, files=files, known=known))
    known[where] = None


def _before_outcome(scope: Scope, step: int, write: Callable[[Scope], object]) -> None:
    endings = scope.session.state.before_outcome
    before = endings.get(step)
    inside = scope.inside(step, live=True)

    def write_all() -> None:
        if before is not None:
            before()
        with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
            write(inside)

    endings[step] = write_all


def _before_piece(scope: Scope, step: int, write: Callable[[Scope], object]) -> None:
    """Call ``write`` before each piece of a step's outcome, as a generator's: the program goes on with what it has left so
    far."""
    inside = scope.inside(step, live=True)

    def write_it() -> None:
        with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
            write(inside)

    scope.session.state.before_piece.setdefault(step, []).append(write_it)


def _leave_so_far(scope: Scope, files: _Files, known: dict[str, tuple[int, ...] | None]) -> None:
    with files.lock:
        now = {where: _version_at(where) for where in known}
        changed = [where for where, then in known.items() if then != now[where]]
        known.update(now)
    _leave(scope, files, changed)


@_reality.off_loop()
def _leave(scope: Scope, files: _Files, paths: Iterable[str]) -> None:
    """Record how a step has left these files."""
    own = scope.session.state.extras.of(OwnFiles)
    with files.lock:
        for where in paths:
            name, inside = files.named(where)
            value = _now(files, where, keep=inside or where in own.paths or own.made_around(where))
            if value is not _NOTHING:
                scope.session.input_read(scope, "left", name, value, own=False)


# A process may change anything, and so may code below Python. So the directory in which a process runs is scanned
# before it starts and when its end is known, and the working directory of a whole program when that begins and ends.

#: A directory with more entries than this is not scanned.
_ENTRIES: Final = 2_000
#: Directories of these names hold files of other tools.
_SKIPPED_DIRECTORIES: Final = frozenset(("__pycache__", "node_modules", "site-packages", ".tracekit", ".venv", "venv"))


def _version(about: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file does."""
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class _Tree:
    """The contents of a directory tree: what changes when a file does, and the content of small files, or the target of
    a link."""

    def __init__(self) -> None:
        self.versions: Final[dict[str, tuple[int, ...]]] = {}
        self.contents: Final[dict[str, bytes | str]] = {}

    @classmethod
    def look(cls, files: _Files, directory: str, before: _Tree | None, without: set[str]) -> _Tree | None:
        """Scan the directory; return ``None`` if it has too many entries."""
        tree = cls()
        versions, contents = tree.versions, tree.contents
        known, kept = ({}, {}) if before is None else (before.versions, before.contents)
        printed = _printed_into()
        left, total = [directory], 0
        unread: list[tuple[str, bool]] = []
        while left:
            try:
                with os.scandir(left.pop()) as found:
                    entries = list(found)
            except OSError:
                continue
            if len(versions) + len(entries) > _ENTRIES:
                return None
            for entry in entries:
                path = entry.path
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIPPED_DIRECTORIES and path not in without:
                        versions[path] = (0,)
                        left.append(path)
                    continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                link = stat.S_ISLNK(about.st_mode)
                if (about.st_dev, about.st_ino) in printed or not (link or stat.S_ISREG(about.st_mode)):
                    continue  # what passes through a named pipe or a socket is no content of it
                versions[path] = version = _version(about)
                total += about.st_size
                if path in kept and known[path] == version:
                    contents[path] = kept[path]
                elif link or (about.st_size <= files.most and total <= files.most * _KEEP_FACTOR):
                    unread.append((path, link))
        tree._read(unread, files.most)
        return tree

    def _read(self, paths: list[tuple[str, bool]], most: int) -> None:
        busy = _open_files() if paths else set()
        for path, link in paths:
            with suppress(OSError):
                if link:
                    self.contents[path] = os.readlink(path)
                else:
                    with _descriptors.opened(path, busy) as fd:
                        self.contents[path] = os.pread(fd, most, 0)

    def state(self, files: _Files, path: str) -> dict[str, Any] | None:
        """Return what was at a path, as far as it was scanned."""
        version, content = self.versions.get(path), self.contents.get(path)
        if version is None:
            return None
        if version == (0,):
            return {"directory": True}
        if isinstance(content, str):
            return {"link": content}
        if content is None:
            return {"size": version[1]}
        name, inside = files.named(path)
        value: dict[str, Any] = {"size": len(content), "sha256": sha256_hex(content)}
        files.take(value, name, content, inside)
        return value


def _printed_into() -> set[tuple[int, int]]:
    """Return the files that standard output and error go to, by device and number.

    The code that started the program opened them: printing to them is not writing a file.
    """
    found = set()
    for fd in (1, 2):
        with suppress(OSError):
            about = os.fstat(fd)
            found.add((about.st_dev, about.st_ino))
    return found


def look_around(scope: Scope) -> Callable[[], None]:
    """Scan the working directory before a program begins as the run of ``scope``.

    Call the result at the program's end: it records the earlier state of what was changed.
    """
    files = scope.session.state.extras.of(_Files)

    def look() -> None:
        if not scope.session.state.ended and not scope.session.state.discarded:
            with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
                _look(scope, files, files.directory, None)

    look()
    return look


@_reality.off_loop()
def about_to_start(scope: Scope, step: int, directory: Any) -> None:
    """Prepare for a process that is about to start as, or in, ``step``, in this directory (``None``: the current one).

    What it changes there, in the directories that the program has made, and of the files that it has written, is
    recorded before the outcome of the step.
    """
    with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
        files, own = scope.session.state.extras.of(_Files), scope.session.state.extras.of(OwnFiles)
        root = os.path.realpath(_getcwd() if directory is None else directory)
        own.made.difference_update([one for one in own.made if not os.path.isdir(one)])  # removed since
        roots = {one for one in own.made if not own.made_around(one)}
        if files.named(root)[1]:
            roots.add(files.directory)
        elif not (_passes_away(root + os.sep) or installed(root) or root in own.made or own.made_around(root)):
            roots.add(root)
        for one in roots:
            _watch(scope, files, one, step)
        others = {path for path in own.paths if not any(path.startswith(one + os.sep) for one in roots)}
        if others and len(others) <= _ENTRIES:
            _watch_files(scope, files, others, step)


class GivenAway:
    """For one run, the files that the program has given to processes to write to. What is in one of them while the
    process runs is nowhere in the trace."""

    def __init__(self) -> None:
        self._files: Final[list[tuple[str, os.stat_result, Callable[[], bool]]]] = []

    def add(self, process: str, number: int, ended: Callable[[], bool]) -> None:
        """Note a file that a process has been given; ``ended`` says whether the program knows that it has ended."""
        self._files[:] = [one for one in self._files if not one[2]()]
        self._files.append((process, os.fstat(number), ended))

    def reading(self, file: Any) -> Attempt | None:
        """Describe the reading of a file (or its descriptor) that a process may be writing to; ``None``: it is no such
        file."""
        with suppress(OSError, ValueError, AttributeError):  # a replacement of ``open`` may return anything
            for process, given, ended in self._files:
                about = os.fstat(file if type(file) is int else file.fileno())
                if os.path.samestat(about, given) and not ended():
                    return Attempt("process", "process.output", f"{process}, whose file is read while it writes to it")
        return None


@_reality.off_loop()
def brought_back(scope: Scope, number: int) -> bool:
    """Return whether a replay brings the file of this descriptor to the state in which a process has left it."""
    try:
        if not os.fstat(number).st_nlink:
            return False
        path = os.path.realpath(os.readlink(f"/proc/self/fd/{number}"))
        own = scope.session.state.extras.of(OwnFiles)
        return path in own.paths or own.made_around(path) or scope.session.state.extras.of(_Files).named(path)[1]
    except OSError:  # only Linux says where a descriptor's file is
        return not sys.platform.startswith("linux")


def _watch_files(scope: Scope, files: _Files, paths: set[str], step: int) -> None:
    """Look at files that the program has written itself, now and before the outcome of ``step``."""
    own, before = scope.session.state.extras.of(OwnFiles), {path: _version_at(path) for path in paths}

    def look(inside: Scope) -> None:
        changed = sorted(path for path, then in before.items() if path in own.paths and _version_at(path) != then)
        _leave(inside, files, changed)
        own.paths.difference_update(changed)

    _before_outcome(scope, step, look)


def _version_at(path: str) -> tuple[int, ...]:
    """Return the version of a file; empty if there is none."""
    try:
        return _version(os.stat(path, follow_symlinks=False))
    except OSError:
        return ()


def _watch(scope: Scope, files: _Files, root: str, step: int) -> None:
    """Scan a directory now and before the outcome of ``step``."""
    running = scope.session.state.extras.of(_Running)
    if (step, root) not in running.watched and _look(scope, files, root, None):
        running.watched.add((step, root))
        hooks.extend(_of_questions)

        def look(inside: Scope) -> None:
            running.ends(step, root)
            _look(inside, files, root, step)

        _before_outcome(scope, step, look)


@_reality.off_loop()
def _look(scope: Scope, files: _Files, root: str, step: int | None) -> bool:
    """Scan a directory, and record the earlier state of what has changed since the last scan; and how ``step``, which
    ends, leaves it.

    Return whether it can be scanned.
    """
    with files.lock:
        before = files.trees.get(root)
        if before is None and root in files.trees:
            return False
        runs = os.path.dirname(os.path.realpath(scope.session.log.path))
        store = os.path.dirname(runs)
        now = files.trees[root] = None if store == root else _Tree.look(files, root, before, {runs, store})
        if before is None or now is None:
            return now is not None
        then, since = before.versions, now.versions
        changed = [] if then == since else sorted({path for path, _ in then.items() ^ since.items()})
        own = scope.session.state.extras.of(OwnFiles)
        running = scope.session.state.extras.of(_Running)
        if step is None and running.watched:
            running.by_itself.update({*changed} - own.paths - running.by_steps)
        for path in changed:
            if path not in files.found and root not in own.made:
                files.found.add(path)
                own.lasting |= step is None
                scope.session.input_read(scope, "kept", files.named(path)[0], before.state(files, path), own=False)
        if step is not None:
            own.paths.difference_update(changed)
            _leave(scope, files, changed)
        return True


# What a process changes while it runs is brought back in a replay at its end, since only then it is known. So a program that
# asks again and again whether there is a file sees it then, and not in the round in which it saw it in the recording.


def _of_questions() -> list[ReversiblePatch]:
    """Patch ``os.stat`` and its like: once a process is captured, and to the end of the last run."""
    return hooks.made(
        "questions about files", lambda: [LatePatch(os, name, _asking) for name in ("stat", "lstat", "access")]
    )


def _asking(original: Any) -> Any:
    """Wrap ``os.stat`` and its like."""

    @wraps(original)
    def ask(*args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        path = args[0] if args else kwargs.get("path")
        if scope is None or scope.live or not isinstance(path, str | os.PathLike) or kwargs.get("dir_fd"):
            return original(*args, **kwargs)
        watched = scope.session.state.extras.of(_Running).watched
        if not watched or not scope.session.recording or not asked_by_user(_OF_PATHS):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            _look_meanwhile(scope, path)

    return ask


@_reality.off_loop()
def _look_meanwhile(scope: Scope, path: Any, *, names: list[str] | None = None, read: bool = False) -> None:
    """Note that the program sees what a running process has changed.

    What it reads (the ``names`` in a directory, or a file) is in the trace: that counts when it has read something else
    before.
    """
    running = scope.session.state.extras.of(_Running)
    if not running.watched or not scope.session.recording:
        return
    with suppress(Exception):  # observing never breaks the program
        with _no_part_of_the_run():
            files = scope.session.state.extras.of(_Files)
            where = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            if read:
                now = _version_at(where) if names is None else tuple(sorted(names))
                before = running.looks.setdefault(where, now)
                running.looks[where] = now
                if before == now:
                    return
            seen = [where] if names is None else [os.path.join(where, name.rstrip("/")) for name in names]
            own = scope.session.state.extras.of(OwnFiles).paths
            if all(
                one in own or one in running.by_steps or not _changed_meanwhile(running, files, one) for one in seen
            ):
                return
            name = files.named(where)[0]
        observe(Attempt("look", "os.stat", f"{name}, which a process changes while it runs"))


def _changed_meanwhile(running: _Running, files: _Files, where: str) -> bool:
    """Return whether a file was changed, or a directory made, since a process that is running has begun."""
    if where in running.by_itself:
        return True
    for _, root in running.watched:
        tree = files.trees.get(root)
        if tree is None or not where.startswith(root + os.sep):
            continue
        if not _SKIPPED_DIRECTORIES.isdisjoint(where[len(root) :].split(os.sep)):
            continue
        now = (0,) if os.path.isdir(where) and not os.path.islink(where) else _version_at(where)
        if tree.versions.get(where, ()) != now:
            return True
    return False


def _changing(names: tuple[str, ...], made: str = "") -> Callable[[Any], Any]:
    """Return a wrapper for functions that change the files that their first arguments, called ``names``, name; the file
    named by argument ``made`` is lost."""

    def make(original: Any) -> Any:
        @wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            scope = current.get()
            if scope is not None and not _is_relative(kwargs):
                for at, name in enumerate(names):
                    path = _path_of(args[at] if len(args) > at else kwargs.get(name))
                    if path is not None:
                        _about_to_write(path, whole=name != made)
            return original(*args, **kwargs)

        return change

    return make


def _is_relative(options: Mapping[str, Any]) -> bool:
    """Return whether a function is given the descriptor of a directory: what it changes is a part of a larger removal."""
    return any(name.endswith("dir_fd") and given is not None for name, given in options.items())


def _making(original: Any) -> Any:
    """Wrap ``os.mkdir``; see ``OwnFiles.made``."""

    @wraps(original)
    def mkdir(*args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        named = scope is not None and not _is_relative(kwargs)
        path = _path_of(args[0] if args else kwargs.get("path")) if named else None
        where = None if path is None else _about_to_write(path, whole=False)
        made = original(*args, **kwargs)
        if scope is not None and not scope.live and where is not None:
            state = scope.session.state
            with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
                if not state.extras.of(_Files).named(where)[1]:
                    state.extras.of(OwnFiles).made.add(where)
        return made

    return mkdir


def _connecting(original: Any) -> Any:
    """Wrap ``sqlite3.connect``, which opens by itself the file and those beside it that a killed process left behind."""

    @wraps(original)
    def connect(*args: Any, **kwargs: Any) -> Any:
        if current.get() is not None:
            path = _path_of(args[0] if args else kwargs.get("database"))
            if path and path != ":memory:" and not path.startswith("file:"):
                for suffix in ("", "-wal", "-journal"):
                    _about_to_write(path + suffix, native=True)
        return original(*args, **kwargs)

    return connect


def _state(files: _Files, name: str, fd: int, keep: bool) -> dict[str, Any] | None:
    """Return size and hash of a file, and its content if it is to be kept; ``None`` if it is no regular file."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        return None
    # Just changed, it may be changed again without another version.
    version = (about.st_dev, *_version(about)) if is_past(about.st_ctime_ns) else None
    size, whole = about.st_size, max(_WHOLE, files.most)
    if not size and (data := b"".join(_pieces(fd, whole, whole))):
        # The system generates it at each reading (/proc). The program's reading is another one, just after this.
        made: dict[str, Any] = {"size": len(data), "sha256": sha256_hex(data), "generated": True}
        files.take(made, name, data, keep=True)
        return made
    then, known = files.seen.get(name, (None, None))
    if then is not None and then == version:
        return known
    data = b"".join(_pieces(fd, size, whole))
    value: dict[str, Any] = {"size": size, "sha256": sha256_hex(data)}
    if known is not None and known.items() >= value.items():
        value = known  # what of its content is kept counts once
    else:
        if size > whole:
            value["sampled"] = True
        files.take(value, name, data, (keep and size <= whole) or not size)
    files.seen[name] = version, value
    return value


def _pieces(fd: int, size: int, whole: int) -> Iterator[bytes]:
    spans = [(0, size)] if size <= whole else [(0, _SAMPLE), (size - _SAMPLE, size)]
    for at, end in spans:
        while at < end and (piece := os.pread(fd, min(end - at, _SAMPLE), at)):
            at += len(piece)
            yield piece


def _holds_credentials(name: str) -> bool:
    *directories, last = name.lower().split(os.sep)
    return not _HIDDEN.isdisjoint(directories) or any(fnmatchcase(last, pattern) for pattern in _CREDENTIALS)


@_reality.off_loop()
def _without_name(data: bytes) -> int:
    """Return a descriptor of an unnamed file, positioned at its beginning."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("tracekit")
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="tracekit-")
        os.unlink(path)
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else bytes(content)


def _recorded_file(original: Any, path: Any, content: str | bytes, args: Any, kwargs: Any) -> Any:
    """Return a file with this content, opened as the program requested."""
    fd = _without_name(_as_bytes(content))
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
# The entries of a directory, in the system's order. ``os.walk``, ``glob`` and ``pathlib`` use the same two functions.

#: A directory with more entries than this is not recorded.
_NAMES: Final = 10_000


def _listing(original: Any) -> Any:
    @wraps(original)
    def listdir(*args: Any, **kwargs: Any) -> Any:
        scope = _asks() if current.get() is not None else None
        given = args[0] if args else kwargs.get("path")
        if scope is None or type(given) is int:
            return original(*args, **kwargs)
        path, encode = _path_of("." if given is None else given), _encoder(given)
        try:
            found = original(*args, **kwargs)
        except FileNotFoundError:
            names = None if path is None else _listed(scope, "listing", given, path, None)
            if names is None:
                raise
            return [*map(encode, names)]
        if path is None or len(found) > _NAMES:
            return found
        return [*map(encode, _listed(scope, "listing", given, path, [*map(os.fsdecode, found)]))]

    return listdir


def _scanning(original: Any) -> Any:
    @wraps(original)
    def scandir(*args: Any, **kwargs: Any) -> Any:
        scope = _asks() if current.get() is not None else None
        given = args[0] if args else kwargs.get("path")
        path = None if type(given) is int else _path_of("." if given is None else given)
        if scope is None or path is None:
            return original(*args, **kwargs)
        entries: dict[str, Any] = {}
        try:
            with original(*args, **kwargs) as found:
                entries = {os.fsdecode(entry.name): entry for entry in found}
        except FileNotFoundError:
            names = _listed(scope, "scan", given, path, None)
            if names is None:
                raise
        else:
            if len(entries) > _NAMES:
                return _Scan([*entries.values()])
            found_now = [name + "/" * _is_directory(one) for name, one in entries.items()]
            names = _listed(scope, "scan", given, path, found_now)
        encode = _encoder(given)
        return _Scan([entries.get(name.rstrip("/")) or _Entry(path, name, encode) for name in names])

    return scandir


def _encoder(given: Any) -> Callable[[str], Any]:
    """Return the function that gives the names in a directory the type of the path by which a program asks for them."""
    if type(given) is str or given is None:
        return str
    return os.fsencode if isinstance(os.fspath(given), bytes) else str


def _is_directory(entry: Any) -> bool:
    try:
        return bool(entry.is_dir(follow_symlinks=False))
    except OSError:
        return False


@_reality.off_loop()
def _listed(scope: Scope, kind: str, given: Any, path: str, names: list[str] | None) -> Any:
    """Return the names that a program gets for a directory; ``None`` if it does not exist."""
    try:
        files = scope.session.state.extras.of(_Files)
        where = os.path.realpath(path)
        if installed(where):
            return names
        name, _ = files.named(where)
        _look_meanwhile(scope, where, names=names or [], read=True)
    except Exception:  # observing never breaks the program
        return names
    found = scope.session.input_read(scope, kind, name, names, own=False)
    if found is None and names is not None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
    return None if found is None else [*found]


class _Scan:
    """The result of ``os.scandir``."""

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
        """Stop the iteration."""
        for _ in self._entries:
            pass


class _Entry:
    """A directory entry that existed in the recording, and does not exist now."""

    def __init__(self, directory: str, name: str, encode: Callable[[str], Any]) -> None:
        self.name: Final[Any] = encode(name.rstrip("/"))
        self.path: Final[Any] = encode(os.path.join(directory, name.rstrip("/")))
        self._directory: Final = name.endswith("/")

    def __fspath__(self) -> Any:
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


# -- the working directory ----------------------------------------------------------------------------------------------


def _directory(original: Any) -> Any:
    """Wrap ``os.getcwd``: a replay may run elsewhere, where its files are; so the directory is compared, not served."""

    @wraps(original)
    def getcwd() -> Any:
        value = original()
        scope = _asks() if current.get() is not None else None
        if scope is not None:
            scope.session.input_read(scope, "directory", ".", value, own=False)
        return value

    return getcwd


#: The name under which it is recorded in which directory a step has left the program.
_CURRENT: Final = "os.chdir"


def _changing_directory(original: Any) -> Any:
    """Wrap ``os.chdir`` and ``os.fchdir``: a replay runs no body of a step, so it goes where a step has gone."""

    @wraps(original)
    def change(*args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if scope is not None and scope.live and scope.session.recording:
            _about_to_go(scope)
        return original(*args, **kwargs)

    return change


def _about_to_go(scope: Scope) -> None:
    with suppress(Exception), _no_part_of_the_run():  # observing never breaks the program
        files, step = scope.session.state.extras.of(_Files), scope.live
        if step in files.gone:
            return
        files.gone[step] = _getcwd()

        def look(inside: Scope) -> None:
            now = _getcwd()
            if files.gone.pop(step, now) != now:
                name = files.named(os.path.realpath(now))[0]
                inside.session.input_read(inside, "state", _CURRENT, name, own=False)

        def look_again(inside: Scope) -> None:
            if step in files.gone:
                look(inside)
                files.gone[step] = _getcwd()

        _before_outcome(scope, step, look)
        _before_piece(scope, step, look_again)


def follow_directory(session: Replay) -> None:
    """Let a replay go where the recorded steps have left the program."""

    def go(name: Any) -> None:
        directory = os.path.join(session.state.extras.of(_Files).directory, name)
        try:
            with _no_part_of_the_run():
                os.chdir(directory)
        except OSError as error:
            text = f"a step went to the directory {name}, to which a replay can't go here: {error.strerror}"
            session.report.inexact("directory", text)

    session.state.extras.of(LeftStates).setters[_CURRENT] = go


# -- standard input ----------------------------------------------------------------------------------------------------
#
# ``input()``, ``getpass()`` and reads of ``sys.stdin``, of its buffer and of its descriptor are steps of a run.


def _step(name: str, function: Any) -> Any:
    """Wrap the function so that each call is a step; unlike a tool, it needs no identity."""
    shell: Any = None

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal shell
        if not _is_read_here():
            return function(*args, **kwargs)
        if shell is None:
            from .._runtime.step import Spec
            from .calls import Captured, shell_of

            shell = shell_of(Captured(function, Spec("tool", name, side_effect="read_only")))
        return shell(function, None, args, kwargs)

    return step


def _prompting(original: Any) -> Any:
    """Wrap ``input``; the prompt is printed before the step, also in a replay: what is printed belongs to the program.

    On a terminal the line editor shows it during the step.
    """
    shown: Any = _step("input", lambda prompt="": original())
    edited: Any = _step("input", original)

    @wraps(original)
    def input(prompt: object = "", /) -> Any:
        if current.get() is None:
            return original(prompt)
        if _edits():
            return edited(prompt)
        sys.stderr.flush()
        sys.stdout.write(str(prompt))
        sys.stdout.flush()
        return shown(prompt)

    return input


def _edits() -> bool:
    try:
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return False


def _is_read_here() -> bool:
    """Return whether what is read now is read by the program of a run: not by the body of a tool, which is no part of a
    replay, nor by a process that has joined the run, since the one that started it has written what it reads."""
    scope = current.get()
    return scope is not None and not scope.live and not scope.session.state.joined


def _asking_secretly(original: Any) -> Any:
    """Return the hook of ``getpass``: whatever is typed is a secret, there and wherever else the run has it."""

    def getpass(_exchange: object, *args: Any, **kwargs: Any) -> Any:
        if not _is_read_here():
            return original(*args, **kwargs)
        from .decorators import traced_tool

        @traced_tool(name="getpass", side_effect="read_only", redact="(?s).+")
        def ask() -> Any:
            typed = original(*args, **kwargs)
            scope = current.get()
            if scope is not None and scope.session.recording:
                scope.session.redactor.learn(typed)
            return typed

        return ask()

    return getpass


def _reading_by_number(original: Any) -> Any:
    """Wrap ``os.read``; an event loop's reads are not steps: that it reads standard input is in the run's boundary."""
    step: Any = _step("os.read", lambda length: original(0, length))

    @wraps(original)
    def read(fd: Any, length: Any, /) -> bytes:
        if fd != 0 or by_asyncio():
            return original(fd, length)  # type: ignore[no-any-return]
        return step(length)  # type: ignore[no-any-return]

    return read


def _reading_into(original: Any) -> Any:
    """Wrap ``os.readinto`` in the same way."""

    def fresh(length: int) -> bytes:
        filled = bytearray(length)
        return bytes(filled[: original(0, filled)])

    step: Any = _step("os.readinto", fresh)

    @wraps(original)
    def readinto(fd: Any, buffer: Any, /) -> int:
        if fd != 0 or by_asyncio() or not _is_read_here():
            return original(fd, buffer)  # type: ignore[no-any-return]
        room = memoryview(buffer).cast("B")
        found = step(len(room))
        room[: len(found)] = found
        return len(found)

    return readinto


def _standard_input(stream: Any) -> Any:
    """Return what replaces ``sys.stdin``, which is left alone if the program or a test has put something else there."""
    with suppress(OSError, ValueError):  # it is closed, or has no descriptor
        if type(stream) is io.TextIOWrapper and stream.fileno() == 0:
            return _Stdin(stream, "stdin", ("read", "readline", "readlines"))
    return stream


class _Stdin:
    """Standard input, or its buffer, whose reads are steps; everything else is delegated to the stream."""

    def __init__(self, stream: Any, name: str, reads: Iterable[str]) -> None:
        self._stream = stream
        for one in reads:
            setattr(self, one, _step(f"{name}.{one}", getattr(stream, one)))
        buffer = getattr(stream, "buffer", None)
        if isinstance(buffer, io.BufferedReader):
            self.buffer = _Buffer(buffer, f"{name}.buffer", ("read", "read1", "readline", "readlines", "peek"))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._stream)

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def __enter__(self) -> _Stdin:
        self._stream.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        if name in ("raw", "detach"):
            cross(read_from(f"stdin.{name}", 0))
        return getattr(self._stream, name)


class _Buffer(_Stdin):
    def readinto(self, into: Any) -> int:
        data = self.read(memoryview(into).nbytes)
        memoryview(into).cast("B")[: len(data)] = data
        return len(data)

    def readinto1(self, into: Any) -> int:
        data = self.read1(memoryview(into).nbytes)
        memoryview(into).cast("B")[: len(data)] = data
        return len(data)


# -- restoring files ---------------------------------------------------------------------------------------------------
#
# A replay executes no steps: it brings files to the state in which a step had left them.


class OwnDisk:
    """The files of a replay without a scratch layer: they are restored only where the program itself writes."""

    def lay(self, path: str, value: Any, *, first: bool, own: bool) -> bool | None:
        """See ``tracekit._runtime.inputs.Disk``."""
        if own:
            with allow(), _no_part_of_the_run():
                return restore(path, value)
        return True


def restore(path: str, value: Any) -> bool:
    """Bring one file to its recorded state; return whether that was possible."""
    if is_as_it_was(path, value):
        return True
    content = value.get("content") if isinstance(value, Mapping) else None
    if value is not None and not isinstance(content, str | bytes) and not ("directory" in value or "link" in value):
        return False
    in_place = isinstance(content, str | bytes) and os.path.isfile(path) and not os.path.islink(path)
    if not in_place:  # a file that the program has open must stay the same file
        remove(path)
    if value is None:
        return True
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if "directory" in value:
        os.mkdir(path)
    elif "link" in value:
        os.symlink(value["link"], path)
    else:
        with open(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else bytes(content or b""))
    return True


def remove(path: str) -> None:
    """Remove a file, or a directory with all that is in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)


def is_as_it_was(path: str, value: Any) -> bool:
    """Return whether a file is in its recorded state."""
    if value is None:
        return not os.path.lexists(path)
    if not isinstance(value, Mapping):
        return False
    try:
        if "link" in value or os.path.islink(path):
            return os.readlink(path) == value.get("link")
        if "directory" in value or os.path.isdir(path):
            return "directory" in value and os.path.isdir(path)
        if os.path.getsize(path) != value.get("size"):
            return False
        with open(path, "rb") as file:
            return value.get("sampled") is True or sha256_hex(file.read()) == value.get("sha256")
    except OSError:
        return False


# -- patches -----------------------------------------------------------------------------------------------------------


def _patches() -> list[ReversiblePatch]:
    found = hooks.made("all", _always)
    if "sqlite3" in sys.modules:
        found = found + hooks.made("sqlite3", _of_sqlite)
    if loaded("getpass") is not None:
        found = found + hooks.made("getpass", _of_passwords)
    for module, name in _OWN_OPEN.items():
        if module in sys.modules:
            found = found + hooks.made(module, partial(_of_own_open, sys.modules[module], name))
    return found


def _always() -> list[ReversiblePatch]:
    environment = type(os.environ)
    bare = environment.__iter__, environment.__getitem__
    variables: dict[str, Callable[[Any], Any]] = {
        "__getitem__": _getting,
        "__iter__": _iterating,
        "__setitem__": _setting,
        "__delitem__": partial(_deleting, environment.__getitem__),
    }
    return [
        AttributePatch(environment, "items", _pairing(environment.items, *bare)),
        *(AttributePatch(environment, name, make(getattr(environment, name))) for name, make in variables.items()),
        *(LatePatch(module, "open", _opening) for module in (builtins, io, _io)),
        LatePatch(os, "open", _opening_by_number),
        LatePatch(os, "getcwd", _directory),
        *(LatePatch(os, name, _changing_directory) for name in ("chdir", "fchdir") if hasattr(os, name)),
        LatePatch(builtins, "input", _prompting),
        LatePatch(sys, "stdin", _standard_input),
        LatePatch(os, "read", _reading_by_number),
        *(LatePatch(os, name, _reading_into) for name in ("readinto",) if hasattr(os, name)),  # from Python 3.14 on
        LatePatch(os, "listdir", _listing),
        LatePatch(os, "scandir", _scanning),
        *_of_pathlib(),
        *(LatePatch(os, name, _changing(("path",))) for name in ("remove", "unlink", "rmdir", "truncate")),
        *(LatePatch(os, name, _changing(("src", "dst"), made="dst")) for name in ("rename", "replace")),
        LatePatch(os, "mkdir", _making),
        AtRestore("files read", _forget),
    ]


def _forget() -> None:
    _written.names.clear()
    _descriptors.release()


def _of_pathlib() -> list[ReversiblePatch]:
    """Patch ``Path.glob`` of Python 3.13, which has its own reference to the function that lists a directory."""
    if sys.version_info >= (3, 13):
        import glob  # before ``os.scandir`` is replaced: it keeps the function that it finds

        globber = vars(glob).get("_StringGlobber")
        if getattr(globber, "scandir", None) is os.scandir:
            return [LatePatch(globber, "scandir", lambda original: staticmethod(_scanning(original)))]
    return []


#: The modules of the standard library that have references of their own to ``open``.
_OWN_OPEN: Final = {"bz2": "_builtin_open", "tarfile": "bltn_open"}


def _of_own_open(module: Any, name: str) -> list[ReversiblePatch]:
    """Patch a reference from before the first run; one that was made in a run is to what replaces ``open``."""
    is_genuine = isinstance(getattr(module, name, None), BuiltinFunctionType)
    return [LatePatch(module, name, _opening)] if is_genuine else []


def _of_passwords() -> list[ReversiblePatch]:
    function = sys.modules["getpass"].getpass
    replaced = type(function) is not FunctionType or function.__closure__  # by a test
    return [] if replaced else [CodeExchange(function, _asking_secretly)]


def _of_sqlite() -> list[ReversiblePatch]:
    return [LatePatch(sys.modules[name], "connect", _connecting) for name in ("sqlite3.dbapi2", "sqlite3")]


hooks: Final = Switch(_patches, ("sqlite3", "getpass", *_OWN_OPEN))
