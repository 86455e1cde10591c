"""Determines who is calling: user code, a package's or Python's, or code that sends telemetry.

Clock and random reads by user code belong to the run; those by code that sends telemetry do not.

User code is any file outside the standard library, ``site-packages`` and tracekit, and every included package: the one
that calls ``record()`` or defines a traced function, agent frameworks named by an integration, ``user_modules=``.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from sys import _getframe
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, Literal

from .._native import nearest
from .._runtime.session import current
from .._sources import ASYNCIO, PACKAGES, STDLIB, TRACEKIT, absolute, in_packages, is_tracekit
from .plugins import (
    Telemetry,
    callers_by_file,
    exporting_modules,
    exports_telemetry,
    is_captured,
    is_observer,
    is_wrapper,
    movers_by_file,
    sending_packages,
    sends_telemetry,
    telemetry_of,
)

__all__ = [
    "RUNNERS",
    "asked_by_user",
    "by_asyncio",
    "by_observer",
    "by_tracekit",
    "by_user",
    "called_back",
    "exclude",
    "exclude_package",
    "forget",
    "include",
    "include_package",
    "installed",
    "is_telemetry",
    "library",
    "library_at",
    "mover",
    "of_the_program",
    "own_code",
    "pass_through",
    "reader",
    "telemetry",
    "walk",
]

#: Transparent: the caller of this file decides.
PASS: Final = object()

_HERE: Final = os.path.dirname(os.path.abspath(__file__))
#: The file whose functions call those that the program passed in: such calls are the program's.
_HANDED: Final = os.path.join(_HERE, "handed.py")
_TIMEOUTS: Final = os.path.join(ASYNCIO, "timeouts.py")
_THREAD_POOL: Final = os.path.join(STDLIB, "multiprocessing", "pool.py")
#: Where a log record gets its time, which programs print, send and store.
_LOG_RECORDS: Final = os.path.join(STDLIB, "logging", "__init__.py")
#: Modules of the standard library whose reads count as those of a package: one more or fewer is no difference.
_AS_PACKAGES: Final = {_TIMEOUTS: "asyncio", _THREAD_POOL: "multiprocessing", _LOG_RECORDS: "logging"}
#: Modules of the standard library that use the clock or random numbers on behalf of their caller (the date and
#: boundaries of a mail, the time stamps of an archive), decide for it by the clock (when a job is due, whether a cookie
#: has expired), or call its functions in another process.
_HELPERS: Final = frozenset(
    os.path.join(STDLIB, name)
    for name in (
        "random.py", "uuid.py", "secrets.py", "statistics.py", "datetime.py", "_pydatetime.py", "dataclasses.py", "functools.py",
        "email", "zipfile", "zipfile.py", "gzip.py", "tarfile.py", "sched.py", "timeit.py",
        os.path.join("http", "cookiejar.py"), os.path.join("http", "cookies.py"), os.path.join("concurrent", "futures", "process.py"),
    )
)  # fmt: skip
#: Installed packages without clock reads of their own: a ``default_factory=datetime.now`` belongs to whoever creates
#: the instance.
_CLASS_MAKERS: Final = frozenset(
    ("pydantic", "pydantic_core", "pydantic_settings", "attr", "attrs", "cattrs", "msgspec")
)
#: Installed packages that run the program as a test, and time it: their clock reads are not the program's.
RUNNERS: Final = frozenset(("_pytest", "pytest", "pluggy"))
#: Installed files that call the program's own functions, and read no clock themselves: a column's
#: ``default=datetime.utcnow``.
_FOR_THE_PROGRAM: Final = tuple(
    os.path.join(*path)
    for path in (
        ("sqlalchemy", "sql", "schema.py"),
        ("django", "db", "models", "fields", "__init__.py"),
        ("mongoengine", "base", "fields.py"),
        ("tortoise", "fields", "base.py"),
        ("peewee.py",),
    )
)

#: What the program has declared as its own code, and as not its own, for the whole process.
_included: set[str] = set()
_excluded: set[str] = set()
_passed: set[str] = {os.path.join(_HERE, "in_place.py")}
_waiting: set[str] = set()  # packages that are user code but not imported yet
_unwanted: set[str] = set()  # packages that never are, not imported yet
_left_in: set[str] = set()  # ends of the paths of modules that are not excluded with their package

#: A cache by file name, given the declarations: True (user), False (not), PASS; unknown and pseudo files are not in it.
_kinds: dict[str, Any] = {}
_known = _kinds.get
#: A cache by file name: the installed package that it belongs to; empty: none.
_libraries: dict[str, Any] = {}
#: A cache of ``asked_by_user`` by ``between`` and file name: user code, not, or transparent.
_askers: defaultdict[frozenset[str], dict[str, Any]] = defaultdict(dict)
#: A cache of ``reader`` by file name: for files that decide alone, whoever calls them, and for transparent ones.
_readers: dict[str, Any] = {}
#: A cache of ``importing`` by file name: false for user code outside installed packages; code that is none is transparent.
_importers: dict[str, Any] = {}
_THROUGH: Final = object()
#: A cache of ``of_the_program`` by file name.
_of_the_program: dict[str, bool] = {}


def by_user() -> bool:
    """Return whether the calling function was called by user code. Takes some 60 ns if the answer is cached."""
    try:
        kind = _known(_getframe(2).f_code.co_filename)
    except ValueError:  # called by C, with no Python caller
        return False
    return kind if kind is True or kind is False else walk(_getframe(2))


def is_user(frame: FrameType) -> bool:
    """Return whether a frame is of user code."""
    return _kind_of(frame) is True


def importing() -> bool:
    """Return whether the nearest user code above the caller's caller is an installed package being imported, which
    happens once per process."""
    if nearest(_importers, _THROUGH, 3) is False:
        return False
    frame = _getframe(2).f_back
    while frame is not None and not is_user(frame):
        if frame.f_code.co_filename in _kinds:
            _importers[frame.f_code.co_filename] = _THROUGH
        frame = frame.f_back
    if frame is not None and not in_packages(frame.f_code.co_filename):
        if frame.f_code.co_filename in _kinds:
            _importers[frame.f_code.co_filename] = False
        return False
    while frame is not None and in_packages(frame.f_code.co_filename):
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def in_a_librarys_import() -> bool:
    """Return whether the nearest running user code is importing a module that is not user code."""
    frame: FrameType | None = _getframe(1)
    while frame is not None and _kind_of(frame) is not True:
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def by_tracekit() -> bool:
    """Return whether the calling function was called by tracekit itself or by an integration."""
    return is_tracekit(_getframe(2).f_code.co_filename)


def by_asyncio(depth: int = 2) -> bool:
    """Return whether an event loop of asyncio called the calling function; ``depth`` is counted as in ``reader``."""
    frame = _frame(depth)
    return frame is not None and frame.f_code.co_filename.startswith(ASYNCIO)


def walk(frame: FrameType | None) -> bool:
    """Return whether ``frame``, or the nearest one behind transparent frames, is of user code."""
    while frame is not None:
        kind = _known(frame.f_code.co_filename)
        if kind is None:
            kind = _kind_of(frame)
        if kind is not PASS:
            return kind is True
        frame = frame.f_back
    return False


def asked_by_user(between: frozenset[str], depth: int = 2) -> bool:
    """Return whether user code called the calling function; modules of the standard library named in ``between`` are
    transparent.

    ``depth`` is counted as in ``reader``.
    """
    askers = _askers[between]
    who = nearest(askers, PASS, depth)
    if who is not PASS:
        return who is True
    frame = _frame(depth)
    while frame is not None:
        who = askers.get(frame.f_code.co_filename)
        if who is None:
            who = _asker(frame, between, askers)
        if who is not PASS:
            return who is True
        frame = frame.f_back
    return False


def _asker(frame: FrameType, between: frozenset[str], askers: dict[str, Any]) -> Any:
    file = frame.f_code.co_filename
    who = PASS if frame.f_globals.get("__name__") in between else _kind_of(frame)
    if not file.startswith("<") or file.startswith(
        "<frozen "
    ):  # other generated code belongs to whoever it was generated for
        askers[file] = who
    return who


def _frame(depth: int) -> FrameType | None:
    """Return the frame ``depth`` levels above the calling function; ``None`` if C called it, without a Python caller."""
    try:
        return _getframe(depth + 1)
    except ValueError:
        return None


def called_back(depth: int, seam: CodeType | None) -> bool:
    """Return whether the program's code runs between the frame ``depth`` levels up and ``seam``, which called the
    library."""
    frame: FrameType | None = _getframe(depth + 1)
    while frame is not None and frame.f_code is not seam:
        if _kind_of(frame) is True:
            return True
        frame = frame.f_back
    return False


def reader(depth: int = 2) -> Literal[True] | str | None:
    """Return who called the calling function: ``True`` for user code, the name of an installed package, else ``None``.

    The timeouts of an event loop count as a package, ``asyncio``, and so do log records (``logging``); other parts of the
    standard library, and excluded code, as ``None``.
    """
    who = nearest(_readers, _THROUGH, depth)
    return _reader(depth + 1) if who is _THROUGH else who


def _reader(depth: int) -> Literal[True] | str | None:
    """The same, determined frame by frame, and cached if the file decides."""
    frame = _frame(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        who = _readers.get(file, PASS)
        if who is PASS:
            who = True if walk(frame) else _library_in(frame)
            kind, library = _known(file), _libraries.get(file)
            if kind is True or (kind is False and library is not None and library is not PASS):
                _readers[file] = who
            elif kind is PASS and library is PASS:  # its caller decides
                _readers[file] = _THROUGH
        if who is not _THROUGH:
            return who  # type: ignore[no-any-return]
        frame = frame.f_back
    return None


def library(depth: int = 2) -> str | None:
    """Return the installed package that called the calling function, even one whose reads do not count; ``None`` for
    others.

    ``depth`` is counted as in ``reader``.
    """
    return library_at(_frame(depth))


def library_at(frame: FrameType | None) -> str | None:
    """Return the installed package that ``frame``, or the nearest one behind transparent frames, belongs to."""
    while frame is not None:
        path = absolute(frame.f_code.co_filename)
        if in_packages(path) and not path.startswith(TRACEKIT):
            name = os.path.basename(_package_of(path)).removesuffix(".py")
            return None if name in RUNNERS else name
        if _kind_of(frame) is not PASS and not path.startswith(TRACEKIT):
            return None
        frame = frame.f_back
    return None


def mover() -> Literal[True] | str | None:
    """Return who hands something to another thread by calling the calling function, as in ``reader``.

    Packages run the program's functions in threads of their own, and distribute work through queues; so does the
    standard library's thread pool. ``None`` for code that sends telemetry, which does so beside the program, and for
    code whose calls are captured above.
    """
    try:
        frame = _getframe(2)
    except ValueError:  # called by C, with no Python caller
        return None
    file = frame.f_code.co_filename
    who = movers_by_file.get(file, PASS)
    if who is PASS:
        who = reader(3)
        if type(who) is str and _is_of(frame, _hands_over_nothing):
            who = None
        if _known(file) is False and _libraries.get(file) is not PASS and in_packages(file):  # the file alone decided
            movers_by_file[file] = who
    return who  # type: ignore[no-any-return]


def of_the_program(frame: FrameType) -> bool:
    """Return whether what the code of ``frame`` does between threads belongs to the run: user code and packages, but not
    those that send telemetry or whose calls are captured."""
    file = frame.f_code.co_filename
    found = _of_the_program.get(file)
    if found is None:
        path = absolute(file)
        installed_ = in_packages(path) and not path.startswith(TRACEKIT) and not _unwelcome(path)
        found = _kind_of(frame) is True or (
            installed_
            and library_at(frame) is not None
            and not _hands_over_nothing(frame.f_globals.get("__name__") or "")
        )
        if file in _kinds:  # other generated code belongs to whoever it was generated for
            _of_the_program[file] = found
    return found


def _library_in(frame: FrameType | None) -> str | None:
    while frame is not None:
        file = frame.f_code.co_filename
        name = _libraries.get(file)
        if name is None:
            name = _libraries[file] = _library_of(file, _kind_of(frame))
        if name is not PASS:
            return name or None
        frame = frame.f_back
    return None


def telemetry() -> Telemetry | None:
    """Return whose telemetry the running code sends, as decided by the nearest frame that is user code or sends
    telemetry.

    Frames in between are the transport. In a telemetry thread outside every run, everything is telemetry, including
    user code that it calls (an exporter, a filter). In any thread, so is what an exporter of the program sends that
    such a package calls for sending. Thus a package that wraps the program's actions (a decorator, an instrumented
    client), or reads something for it, does not turn these into telemetry.
    """
    runs, found = current.get() is not None, None
    if runs and sys.modules.keys().isdisjoint(sending_packages()):
        return None
    frame: FrameType | None = _getframe(1)
    role_of = callers_by_file.get
    by_user = False
    while frame is not None:
        role = role_of(frame.f_code.co_filename)
        if role is not False:  # most are, of a transport
            if role is None:
                role = _role_of(frame)
            if role is True:
                if runs and sys.modules.keys().isdisjoint(exporting_modules()):
                    return None
                by_user, found = True, None
            elif role:
                name = frame.f_code.co_qualname
                sender = telemetry_of(role, name)
                if sender is not None:
                    if not by_user or exports_telemetry(role, name):
                        return sender
                    found = found or sender
        frame = frame.f_back
    return None if runs else found


def _role_of(frame: FrameType) -> str | bool:
    """Return the name of a module that sends telemetry; else whether it is user code."""
    file, module = frame.f_code.co_filename, frame.f_globals.get("__name__") or ""
    role = module if sends_telemetry(module) else _kind_of(frame) is True
    if not file.startswith("<"):
        callers_by_file[file] = role
    return role


def _reclassify() -> None:
    """Clear the caches of decisions about files."""
    _kinds.clear()
    _libraries.clear()
    _readers.clear()
    _askers.clear()
    _importers.clear()
    _of_the_program.clear()
    callers_by_file.clear()
    movers_by_file.clear()


def by_observer() -> bool:
    """Return whether the calling function was called by a package that sends telemetry; the standard library is
    transparent."""
    return _is_of(_getframe(2), is_observer)


def _hands_over_nothing(module: str) -> bool:
    return is_observer(module) or is_captured(module)


def _is_of(frame: FrameType | None, packages: Callable[[str], bool]) -> bool:
    """Return whether the code of ``frame`` belongs to one of these packages; the standard library is transparent, and so
    is tracekit."""
    while frame is not None:
        if packages(frame.f_globals.get("__name__") or ""):
            return True
        file = frame.f_code.co_filename
        # where it is installed, tracekit itself is a package in a directory of the standard library
        if not file.startswith(TRACEKIT) and (in_packages(file) or not file.startswith(STDLIB)):
            return False
        frame = frame.f_back
    return False


def is_telemetry(function: Any) -> bool:
    """Return whether ``function`` sends telemetry, so that a thread that runs it is not part of a run."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return isinstance(module, str) and isinstance(name, str) and telemetry_of(module, name) is not None


def _library_of(file: str, kind: Any) -> Any:
    if file in _AS_PACKAGES:
        return _AS_PACKAGES[file]
    path = absolute(file)
    if kind is PASS or path.startswith(TRACEKIT):
        return PASS
    package = os.path.basename(_package_of(path)) if in_packages(path) and not _unwelcome(path) else ""
    name = package.partition(".")[0]
    return "" if name in RUNNERS else name


def _kind_of(frame: FrameType) -> Any:
    name = frame.f_code.co_filename
    kind = _known(name)
    if kind is None:
        if name.startswith("<") and name.endswith(">"):
            return _pseudo(name, frame)
        kind = _kinds[name] = _classify(name)
    return kind


def _pseudo(name: str, frame: FrameType) -> Any:
    """Classify generated code (a dataclass's ``__init__``, ``-c``, a prompt): by its module; without one, by its
    caller."""
    if name.startswith("<frozen "):
        return False
    module = frame.f_globals.get("__name__")
    if module in ("__main__", "__console__") or (module in (None, "builtins") and name == "<string>"):
        return True  # what a package runs for the program (``exec(code, {})``) is the program's
    file = getattr(sys.modules.get(module), "__file__", None) if isinstance(module, str) else None
    if file is None:
        return PASS
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = _classify(file)
    return kind


def _classify(file: str) -> Any:
    path = absolute(file)
    if _under(path, _passed) or _under(path, _HELPERS):
        return PASS
    if path == _HANDED:
        return True
    if is_tracekit(path) or _unwelcome(path):
        return False
    if _under(path, _included) or _arrived(path):
        return True
    if path.endswith(_FOR_THE_PROGRAM) and in_packages(path):
        return True
    if not in_packages(path):
        return not path.startswith(STDLIB)
    package = os.path.basename(_package_of(path)).removesuffix(".py")
    return PASS if package in _CLASS_MAKERS or is_wrapper(package) else False


def _under(path: str, places: Set[str]) -> bool:
    return any(path == place or path.startswith(place + os.sep) for place in places)


def _arrived(path: str) -> bool:
    """Return whether ``path`` belongs to a package that was included by name before its import."""
    for name in [name for name in _waiting if name in sys.modules]:
        _waiting.discard(name)
        _included.update(_places(sys.modules[name]))
    return _under(path, _included)


def _unwelcome(path: str) -> bool:
    """Return whether ``path`` is in a package that was excluded by name before it was imported."""
    for name in [name for name in _unwanted if name in sys.modules]:
        _unwanted.discard(name)
        _excluded.update(_places(sys.modules[name]))
    return _under(path, _excluded) and not path.endswith((*_left_in,))


def include(module: ModuleType | str) -> None:
    """Count a module's whole package as user code: a module, its name, or one of its files or directories.

    A file of an installed package stands for the package; a file that is user code anyway changes nothing.
    """
    if not isinstance(module, str):
        _add(_places(sys.modules.get(module.__name__.partition(".")[0], module)))
    elif os.sep in module or module.endswith(".py"):
        if _known(module) is not True and module not in _included and not module.startswith("<"):
            _add({_package_of(absolute(module))})
    elif module.isidentifier() or "." in module.strip("."):
        include_package(module)


def own_code(function: Any) -> None:
    """Count the file that defines ``function`` as user code: a handler that a library calls for the program."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is not None:
        include(code.co_filename)


def _package_of(path: str) -> str:
    for part in PACKAGES:
        before, found, rest = path.partition(part)
        if found:
            return before + found + rest.partition(os.sep)[0]
    return path


def _add(places: set[str]) -> None:
    # The standard library as a whole, tracekit itself and its integrations are never user code, whoever calls from
    # there.
    places = {place for place in places if not is_tracekit(place) and (in_packages(place) or not installed(place))}
    if not places <= _included:
        _included.update(places)
        _reclassify()


def installed(path: str) -> bool:
    """Return whether ``path`` (absolute) belongs to the interpreter or an installed package, whose content depends only
    on their versions."""
    path += os.sep
    return in_packages(path) or path.startswith(STDLIB)


def include_package(name: str) -> None:
    """Count the package called ``name`` (``"langgraph"``) as user code, now or when it is imported. Imports nothing."""
    module = sys.modules.get(name)
    if module is not None:
        _add(_places(module))
    elif name not in _waiting:
        _waiting.add(name)
        _reclassify()


def exclude(path: str) -> None:
    """Never count the file or directory ``path`` as user code (an integration's own modules)."""
    _excluded.add(absolute(path))
    _reclassify()


def exclude_package(name: str, but: Iterable[str] = ()) -> None:
    """Count the package ``name`` neither as user code nor as a package of the program, except for the modules ``but``.
    Imports nothing."""
    _left_in.update(os.sep + module.replace(".", os.sep) + ".py" for module in but)
    module = sys.modules.get(name)
    if module is not None:
        _excluded.update(_places(module))
    else:
        _unwanted.add(name)
    _reclassify()


def pass_through(path: str) -> None:
    """Make the file or directory ``path`` transparent: its callers decide (thin wrappers of clocks and random numbers)."""
    _passed.add(absolute(path))
    _reclassify()


def forget() -> None:
    """Drop every inclusion and exclusion (``uninstrument()``)."""
    _included.clear()
    _excluded.clear()
    _waiting.clear()
    _unwanted.clear()
    _left_in.clear()
    _reclassify()


def _places(module: ModuleType) -> set[str]:
    paths = getattr(module, "__path__", None)
    if paths is not None:
        return {absolute(path) for path in paths}
    file = getattr(module, "__file__", None)
    return {absolute(file)} if file else set()
