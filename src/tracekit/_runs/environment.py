"""The first entry of a run: its input, its program, and where it happened (Python, platform, packages, code revision)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .. import _reality
from .._capture import zones
from .._capture.plugins import known
from .._journal import keys as journal_keys
from .._native import sha256_hex
from .._runtime.process import process
from .._runtime.redaction import below
from .._values import canonical
from ..errors import TracekitError
from .program import Program

if TYPE_CHECKING:
    from .._runtime.recorder import Recording

__all__ = [
    "begin_log",
    "cores_here",
    "drift",
    "environment",
    "file_hash",
    "git_revision",
    "is_input",
    "this_program",
]

# -- the first entry ---------------------------------------------------------------------------------------------------


def begin_log(
    session: Recording,
    name: str | None,
    input: Any,
    about: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    program: Program | None = None,
    agent: str | None = None,
    cause: Mapping[str, Any] | None = None,
    recognisable: bool = False,
) -> None:
    """Write the first entry of a run; what may be secret in it is redacted, except for ``own`` (see ``Recording.meta``).

    ``program`` is kept so that it can be started again. Of a ``recognisable`` input with secrets a hash is kept, too.
    """
    redactor, journal, here = session.redactor, session.log.journal, environment()
    own = {**own, "environment": here}
    about = {"environment": {"host": here.pop("host"), "argv": redactor.redact_argv(sys.argv)}, **about}
    if program is not None:
        arguments = redactor.redact_argv(program.arguments)
        about["program_command"] = {**program.as_dict(), "arguments": arguments, **file_hash(program)}
    fields: dict[str, Any] = {} if agent is None else {"agent_id": agent}
    if cause is not None:
        fields["cause"] = [cause]
    fields["name"], marks = (None, []) if name is None else redactor.redact_text(name)
    encoded = session.encoder.encode(input, whole=True)
    if recognisable and encoded.redacted and not encoded.notes:
        key = _input_key(journal_keys.Keys(journal.root, sync=journal.durability != "none"), input)
        if key is not None:
            about["input_key"] = key
    if marks or encoded.redacted:
        about["info"] = {"redacted": [*below(marks, "/name"), *encoded.redacted]}
    tail = b',%b,"input":%b%b' % (canonical(fields)[1:-1], encoded.data, session.meta(about, own))
    journal.append("run.started", 0, 0, tail)


# -- input -------------------------------------------------------------------------------------------------------------
#
# How the input of a run is recognised if the log keeps only a part of it: by a hash under the store's secret.


def _input_key(keys: journal_keys.Keys, value: Any) -> dict[str, str] | None:
    """Return the hash of an input, and the secret's fingerprint; ``None`` if the store can't keep a secret: that ends
    no run."""
    try:
        return {"digest": _digest(keys, value), "by": keys.fingerprint()}
    except (OSError, TracekitError):
        return None


def is_input(keys: journal_keys.Keys, key: object, value: Any) -> bool | None:
    """Return whether ``key`` was made from the input ``value``; ``None`` if that is unknown."""
    if not isinstance(key, Mapping):
        return None
    try:
        if keys.known_by() != key.get("by"):
            return None
        return _digest(keys, value) == key.get("digest")
    except (OSError, TracekitError):
        return None


def _digest(keys: journal_keys.Keys, value: Any) -> str:
    return keys.digest(b"input", canonical(value))


# -- program -----------------------------------------------------------------------------------------------------------


@_reality.off_loop()
def file_hash(program: Program) -> dict[str, str]:
    """Return ``sha256`` of the program's file, under that key; an empty dictionary if it can't be read."""
    path = program.script or getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        about = os.stat(path)  # type: ignore[arg-type]
        return {"sha256": _hash(str(path), about.st_mtime_ns, about.st_size)}
    except (OSError, TypeError):
        return {}


@lru_cache(maxsize=4)
def _hash(path: str, changed_ns: int, size: int) -> str:
    with open(path, "rb") as file:
        return sha256_hex(file.read())


@_reality.off_loop()
def this_program() -> Program | None:
    """Return the program of this process, or ``None`` for a prompt, ``-c`` or an embedded interpreter."""
    named: Program | None = process.role.command
    if named is not None:
        return named
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    arguments = tuple(sys.argv[1:])
    try:
        cwd = os.getcwd()
    except OSError:
        return None
    if spec is not None and spec.name:
        name = spec.name.removesuffix(".__main__")
        return Program(None, name, arguments, cwd)
    file = getattr(main, "__file__", None)
    script = os.path.abspath(file) if file else None
    called = sys.argv[0] if sys.argv and os.path.abspath(sys.argv[0]) == script else None
    return Program(script, None, arguments, cwd, called) if script else None


# -- environment -------------------------------------------------------------------------------------------------------
#
# Where a run happened: interpreter, platform, versions, code revision; and a description of how two such places differ.
#
# Everything is read from memory and from files, without running commands, and at most once per process.

_COMPARED: Final = (
    ("implementation", "the interpreter"),
    ("hash_seed", "the hash seed"),
    ("time_zone", "the time zone"),
    ("revision", "the code revision"),
)
_REF_LIMIT: Final = 1 << 24  # a packed-refs file beyond this is not read


@_reality.off_loop()
def environment() -> dict[str, Any]:
    """Return the place of a run for ``run.started``: ``python``, ``implementation``, ``platform``, ``host``,
    ``packages``, ``revision``, ``hash_seed``, ``time_zone``, ``time_zone_rule``.

    ``packages`` are those that the registered integrations support and whose module (of the same name, ``-`` as ``_``)
    is loaded, with their versions. ``hash_seed`` is the number set by ``PYTHONHASHSEED``, or ``"random"``.
    """
    packages: dict[str, str] = {}
    for integration in known().values():
        for name in integration.modules:
            if (version := _version(name)) is not None:
                packages[name] = version
    seed = os.environ.get("PYTHONHASHSEED", "")
    return {
        **_interpreter(),
        "packages": packages,
        "revision": git_revision(_code()),
        "hash_seed": int(seed) if seed.isdigit() else "random",
        **zones.local_zone(),
    }


@_reality.off_loop()
def git_revision(path: str | os.PathLike[str]) -> str | None:
    """Return the commit checked out at ``path`` (40 or 64 hex digits), or ``None`` outside git."""
    return _revision(os.path.abspath(path))


def drift(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how the place of a replay differs from that of its recording, one sentence each; empty if it does not.

    A key that one side lacks (an older trace, a package not loaded yet) is no difference.
    """
    found = [
        f"Python is {there} in the recording and {here} here"
        for there, here in [(_minor(recorded), _minor(now))]
        if there and here and there != here
    ]
    found += [
        f"{label} is {recorded[key]} in the recording and {now[key]} here"
        for key, label in _COMPARED
        if recorded.get(key) is not None and now.get(key) is not None and recorded[key] != now[key]
    ]
    there, here = recorded.get("packages") or {}, now.get("packages") or {}
    found += [
        f"{name} is {there[name]} in the recording and {here[name]} here"
        for name in sorted(there)
        if name in here and there[name] != here[name]
    ]
    return found


def _minor(place: Mapping[str, Any]) -> str:
    return ".".join(str(place.get("python") or "").split(".")[:2])


@lru_cache(maxsize=1)
def _interpreter() -> dict[str, str]:
    info = sys.version_info
    final = "" if info.releaselevel == "final" else f"{info.releaselevel[0]}{info.serial}"
    if hasattr(os, "uname"):
        host = os.uname()  # platform.platform() would run `uname -p` as a process
        system, name = f"{host.sysname}-{host.release}-{host.machine}", host.nodename
    else:
        system, name = sys.platform, ""
    return {
        "python": f"{info.major}.{info.minor}.{info.micro}{final}",
        "implementation": sys.implementation.name,
        "platform": system,
        "host": name,
    }


def _code() -> str:
    """Return the directory of the program's code: of its script, else the working directory."""
    program = process.role.command
    script = program.script if program is not None else getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return os.path.dirname(os.path.abspath(script)) if script else os.getcwd()
    except OSError:
        return os.sep


def _version(name: str) -> str | None:
    module = sys.modules.get(name.replace("-", "_"))
    if module is None:
        return None
    version = vars(module).get("__version__")
    return version if isinstance(version, str) else _installed(name)


@lru_cache(maxsize=256)
def _installed(name: str) -> str | None:
    from importlib import metadata  # some 10 ms to import; most packages have a version attribute

    try:
        return metadata.version(name)
    except Exception:  # a broken installation must not prevent recording
        return None


@lru_cache(maxsize=64)
def _revision(path: str) -> str | None:
    try:
        git = _git_directory(path)
        if git is None:
            return None
        head = _line(os.path.join(git, "HEAD"))
        if not head.startswith("ref:"):
            return _hex(head)
        ref = head[4:].strip()
        if os.path.isabs(ref) or ".." in ref.split("/"):
            return None
        return _reference(git, ref)
    except (OSError, UnicodeDecodeError):
        return None


def _git_directory(path: str) -> str | None:
    """Return ``.git`` of the nearest enclosing work tree; in linked work trees and submodules, a file that names it."""
    while True:
        candidate = os.path.join(path, ".git")
        if os.path.isdir(candidate):
            return candidate
        if os.path.isfile(candidate):
            line = _line(candidate)
            return os.path.normpath(os.path.join(path, line[7:].strip())) if line.startswith("gitdir:") else None
        up = os.path.dirname(path)
        if up == path:
            return None
        path = up


def _reference(git: str, ref: str) -> str | None:
    common = git
    if os.path.isfile(os.path.join(git, "commondir")):  # a linked work tree: branches are kept in the main one
        common = os.path.normpath(os.path.join(git, _line(os.path.join(git, "commondir"))))
    for directory in dict.fromkeys((git, common)):
        loose = os.path.join(directory, *ref.split("/"))
        if os.path.isfile(loose):
            return _hex(_line(loose))
    return _packed(os.path.join(common, "packed-refs"), ref)


def _packed(file: str, ref: str) -> str | None:
    if not os.path.isfile(file) or os.path.getsize(file) > _REF_LIMIT:
        return None
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            revision, _, name = line.rstrip("\n").partition(" ")
            if name == ref:
                return _hex(revision)
    return None


def _line(file: str) -> str:
    with open(file, encoding="utf-8") as stream:
        return stream.readline(4096).strip()


def _hex(text: str) -> str | None:
    right = len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)
    return text if right else None


def cores_here() -> int:
    """Return the number of processors that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
