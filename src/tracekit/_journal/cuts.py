"""What a recovery cuts off the end of a file is kept beside it: ``<the trace's name without .jsonl>.cut-<offset>``."""

from __future__ import annotations

import os
from typing import Final

from .. import _reality
from .heads import sync_directory
from .names import SUFFIX

__all__ = ["keep_cut"]

_PIECE: Final = 1 << 20


def keep_cut(fd: int, path: str, offset: int) -> str:
    """Copy what the open file ``fd`` at ``path`` holds from ``offset`` on, and return where to: on the device when this returns.

    Bytes that were kept already (by who died before they were cut) are not kept twice; other bytes that once stood there stay,
    and these get a number.
    """
    base = f"{path.removesuffix(SUFFIX)}.cut-{offset}"
    kept, number = base, 1
    while os.path.exists(kept):
        if _same(fd, offset, kept):
            break
        number += 1
        kept = f"{base}.{number}"
    else:
        _copy(fd, offset, kept)
    sync_directory(os.path.dirname(path))
    return kept


def _copy(fd: int, offset: int, kept: str) -> None:
    temporary = f"{kept}.{_reality.urandom(8).hex()}.tmp"
    out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            while piece := os.pread(fd, _PIECE, offset):
                offset += os.write(out, piece)
            _reality.fdatasync(out)
        finally:
            os.close(out)
        os.rename(temporary, kept)
    except BaseException:
        os.unlink(temporary)
        raise


def _same(fd: int, offset: int, kept: str) -> bool:
    with open(kept, "rb") as file:
        while True:
            old = file.read(_PIECE)
            if old != os.pread(fd, max(len(old), 1), offset):
                return False
            if not old:
                return True
            offset += len(old)
