"""Files and directories that are on the device when a function returns: made, found, or put in the place of another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from .. import _reality

__all__ = ["make_directory", "replacing", "sync_directory"]


@contextmanager
def replacing(path: str, *, sync: bool = True) -> Iterator[int]:
    """A new file, by its descriptor, that takes the place of the one at ``path`` when the block ends; nothing of it is left if that fails.

    Only its owner may read it (0600). With ``sync`` it is on the device when the block has ended, and so is its name.
    """
    temporary = f"{path}.{_reality.urandom(8).hex()}.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            yield fd
            if sync:
                _reality.fdatasync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Bring a directory's entries to the device: a new or renamed file is not there before that."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
    if os.path.isdir(path):  # a replay only reads, and may not even try
        return False
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    return True
