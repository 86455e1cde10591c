"""The small files that a store keeps beside its traces: written durably and atomically, and checked when they are read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import orjson

from .. import _reality
from .._reality import system

__all__ = ["facts_in", "is_past", "make_directory", "replacing", "sync_directory"]

_NAMES: Final = {
    str: "text",
    int: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def facts_in(data: bytes, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the JSON object in ``data`` and check that its fields have the types in ``shape`` (a type, or a tuple of
    types); others may follow.

    Raises ``ValueError`` with a description of anything else: the content of a file written by another version, or
    changed by somebody, is never guessed.
    """
    try:
        facts = orjson.loads(data)
    except ValueError:
        raise ValueError("it is not JSON" if data else "it is empty") from None
    if type(facts) is not dict:
        raise ValueError(f"it holds {_kind(facts)}, not an object")
    for name, kinds in shape.items():
        expected = kinds if isinstance(kinds, tuple) else (kinds,)
        if name not in facts and type(None) not in expected:
            raise ValueError(f"it has no {name!r}")
        if type(facts.get(name)) not in expected:
            raise ValueError(
                f"its {name!r} is {_kind(facts[name])}, not {' or '.join(_NAMES[kind] for kind in expected)}"
            )
    return facts


def _kind(value: object) -> str:
    return _NAMES.get(type(value), "a number")


@contextmanager
def replacing(path: str, *, sync: bool = True) -> Iterator[int]:
    """Open a new file, as a descriptor, that replaces the one at ``path`` when the block ends; on failure it is
    removed.

    Only its owner can read it (0600). With ``sync``, content and name are on the device after the block.
    """
    temporary = f"{path}.{_reality.urandom(8).hex()}.tmp"
    fd = system.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            yield fd
            if sync:
                _reality.fdatasync(fd)
        finally:
            system.close(fd)
        system.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            system.unlink(temporary)
        raise
    if sync:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Sync a directory to the device; before that, a new or renamed file may be lost."""
    fd = system.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        system.fsync(fd)
    finally:
        system.close(fd)


#: The directories whose entries this process has synced, by device and inode.
_certain: Final[set[tuple[int, int]]] = set()


def make_directory(path: str, *, sync: bool, mode: int = 0o700) -> bool:
    """Create the directory ``path`` and its parents; return whether it did not exist. With ``sync`` its entry is on the
    device.

    The entry of an existing directory is synced, too, once per process: its creator may not have done so yet.
    """
    found = _directory(path)
    made = found is None and _new_directory(path, sync, mode)
    if made:
        found = _directory(path)
    if sync and (made or found not in _certain):
        # Without permission to read the parent, nothing was created there.
        with nullcontext() if made else suppress(PermissionError):
            sync_directory(os.path.dirname(path))
            if found is not None:
                _certain.add(found)
    return made


def _new_directory(path: str, sync: bool, mode: int) -> bool:
    try:
        try:
            system.mkdir(path, mode)
        except FileNotFoundError:
            parent = os.path.dirname(path)
            if not parent:  # the current directory was removed
                raise
            make_directory(parent, sync=sync, mode=0o777)
            system.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


def _directory(path: str) -> tuple[int, int] | None:
    """The device and inode of an existing directory. It is looked for first: a replay only reads, and may not even try to write."""
    try:
        about = system.stat(path)
    except OSError:
        return None
    return (about.st_dev, about.st_ino) if stat.S_ISDIR(about.st_mode) else None


#: Nanoseconds within which two changes of a file may get the same time stamp: on a file system with fine time stamps,
#: and on one that counts seconds or pairs of seconds.
_INSTANT: Final = 100_000_000, 2_000_000_000


def is_past(stamp: int) -> bool:
    """Return whether a time stamp of a file is so old that any further change of the file will have another one."""
    return _reality.time_ns() - stamp > _INSTANT[stamp % 1_000_000_000 == 0]
