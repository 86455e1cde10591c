"""The hash chain: each line carries the SHA-256 of the hash before it and of its own bytes.

A line ends in ``,"hash":"<64 lower-case hex digits>"}``; what stands before that is its *body*.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

__all__ = ["GENESIS", "SUFFIX", "link", "split"]

#: What the first entry is chained to.
GENESIS: Final = b"0" * 64
#: The length of ``,"hash":"…"}``.
SUFFIX: Final = 75

_KEY: Final = b',"hash":"'


def link(prev_hash: bytes, body: bytes) -> str:
    """The hash of the entry with this ``body`` after the entry with ``prev_hash`` (64 ASCII characters)."""
    return sha256(prev_hash + body).hexdigest()


def split(line: bytes) -> tuple[bytes, bytes]:
    """The body and the hash of a line (with or without its newline). ``ValueError`` where it doesn't end as a line must."""
    if line[-1:] == b"\n":
        line = line[:-1]
    if line[-SUFFIX : -SUFFIX + 9] != _KEY or line[-2:] != b'"}':
        raise ValueError('the line does not end in ,"hash":"…"}')
    return line[:-SUFFIX], line[-SUFFIX + 9 : -2]
