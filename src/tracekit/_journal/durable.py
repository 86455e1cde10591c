"""The small files that a store keeps beside its traces: on the device when a function returns, and read as what they have to be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import orjson

from .. import _reality
from .._reality import system

__all__ = ["facts_in", "make_directory", "replacing", "sync_directory"]

_NAMES: Final = {
    str: "text",
    int: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def facts_in(data: bytes, shape: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object in ``data``, whose fields are of the types that ``shape`` names (a type, or a tuple of them); more may be there.

    ``ValueError`` says in words what is there instead: a file that another version wrote, or somebody has changed, is never guessed at.
    """
    try:
        facts = orjson.loads(data)
    except ValueError:
        raise ValueError("it is no JSON" if data else "it is empty") from None
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
    """A new file, by its descriptor, that takes the place of the one at ``path`` when the block ends; nothing of it is left if that fails.

    Only its owner may read it (0600). With ``sync`` it is on the device when the block has ended, and so is its name.
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
    """Bring a directory's entries to the device: a new or renamed file is not there before that."""
    fd = system.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        system.fsync(fd)
    finally:
        system.close(fd)


def make_directory(path: str, *, sync: bool, mode: int = 0o700) -> bool:
    """Make the directory ``path`` and what leads to it; whether it was not there. With ``sync`` its entry is on the device.

    That holds for one that was found, too: whoever made it may not have come to that yet.
    """
    parent = os.path.dirname(path)
    try:
        made = _new_directory(path, mode)
    except FileNotFoundError:
        make_directory(parent, sync=sync, mode=0o777)
        made = _new_directory(path, mode)
    if sync:
        # Who may not read the directory above has not made anything there.
        with nullcontext() if made else suppress(PermissionError):
            sync_directory(parent)
    return made


def _new_directory(path: str, mode: int) -> bool:
    if _is_directory(path):  # a replay only reads, and may not even try
        return False
    try:
        system.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(system.stat(path).st_mode)
    except OSError:
        return False
