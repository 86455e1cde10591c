"""Compressed traces: the file of a complete run as gzip, under the same name, read transparently.

Hash chain and seal are of the uncompressed content, so verification loses nothing. ``zcat -f`` reads either form.

The file has two gzip members: the last line, which says how the run ended, is a member of its own, and the header of
the first member says where it begins. So listing runs decompresses one line of each, not everything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import pack, unpack
from typing import Final

from .. import _reality
from .._reality import system
from ..errors import TraceIntegrityError
from .durable import replacing

__all__ = ["ends_of", "is_packed", "nameless", "pack_file", "unpack_file", "unpacked"]

_MAGIC: Final = b"\x1f\x8b\x08"
#: The header of the first member, with an extra field (``TK``) that holds the offset of the second one.
_HEADER: Final = _MAGIC + b"\x04" + b"\0" * 4 + b"\0\xff" + pack("<H", 12) + b"TK" + pack("<H", 8)
_PLAIN_HEADER: Final = _MAGIC + b"\0" + b"\0" * 4 + b"\0\xff"
_PIECE: Final = 1 << 20
#: A reader refuses to expand more bytes than this: a file of a few MiB could take all memory.
_MAX_SIZE: Final = 4 << 30


def is_packed(fd: int) -> bool:
    """Return whether an open file is compressed. A line of a trace begins with ``{``."""
    return system.pread(fd, 3, 0) == _MAGIC


def unpacked(fd: int, path: str) -> int:
    """Decompress a file into a new anonymous file, and return its descriptor. Raises ``TraceIntegrityError`` if it is
    damaged."""
    out = nameless()
    try:
        size = 0
        for piece in _pieces(fd, 0, path):
            size += len(piece)
            if size > _MAX_SIZE:
                raise _damaged(path, f"it would be larger than {_MAX_SIZE} bytes")
            _write(out, piece)
        system.lseek(out, 0, os.SEEK_SET)
    except BaseException:
        system.close(out)
        raise
    return out


def ends_of(fd: int, path: str, most: int) -> tuple[bytes, bytes]:
    """Return the beginning of a compressed file's content, up to ``most`` bytes, and its last line."""
    first = b""
    for piece in _pieces(fd, 0, path):
        first += piece
        if b"\n" in piece or len(first) >= most:
            break
    offset = _last_member(fd)
    if offset is None:  # compressed by another program
        last = b""
        for piece in _pieces(fd, 0, path):
            last = (last + piece)[-most:]
        return first, last[last.rstrip(b"\n").rfind(b"\n") + 1 :]
    return first, b"".join(_pieces(fd, offset, path))


def _last_member(fd: int) -> int | None:
    """Return the offset of the member with the last line; ``None`` for a file that another program has compressed."""
    header = system.pread(fd, len(_HEADER) + 8, 0)
    if len(header) < len(_HEADER) + 8 or header[: len(_HEADER)] != _HEADER:
        return None
    (offset,) = unpack("<Q", header[len(_HEADER) :])
    return int(offset)


def pack_file(source: int, path: str, last: int) -> None:
    """Replace the file at ``path`` with the compressed content of the open file ``source``, whose last line begins at
    ``last``.

    The new file is read back and compared before it replaces the old one; it is on the device on return.
    """
    with replacing(path) as out:
        _write(out, _HEADER + pack("<Q", 0))
        size = system.fstat(source).st_size
        _member(out, source, 0, last)
        second = system.lseek(out, 0, os.SEEK_CUR)
        _write(out, _PLAIN_HEADER)
        _member(out, source, last, size)
        system.pwrite(out, pack("<Q", second), len(_HEADER))
        at = 0
        for piece in _pieces(out, 0, path):
            if system.pread(source, len(piece), at) != piece:
                raise _damaged(path, "the decompressed content differs from the original")
            at += len(piece)
        if at != size:
            raise _damaged(path, "the decompressed content differs from the original")


def unpack_file(fd: int, path: str) -> None:
    """Replace the file at ``path`` with the content of the compressed file ``fd``."""
    with replacing(path) as out:
        for piece in _pieces(fd, 0, path):
            _write(out, piece)


def _member(out: int, source: int, start: int, end: int) -> None:
    """Write these bytes of ``source`` as the rest of a gzip member whose header has been written."""
    import zlib

    packer, check, at = zlib.compressobj(6, zlib.DEFLATED, -15), 0, start
    while at < end:
        piece = system.pread(source, min(_PIECE, end - at), at)
        if not piece:
            break
        check, at = zlib.crc32(piece, check), at + len(piece)
        _write(out, packer.compress(piece))
    _write(out, packer.flush() + pack("<II", check, (at - start) & 0xFFFFFFFF))


def _pieces(fd: int, at: int, path: str) -> Iterator[bytes]:
    """Yield the content from the member at offset ``at`` on, piece by piece."""
    import zlib  # few traces are compressed

    reader, rest = zlib.decompressobj(31), b""
    begun = False
    try:
        while True:
            data = rest or system.pread(fd, _PIECE, at)
            if not data:
                # One that ends where its second member should begin is complete to gzip.
                if begun and not (reader.eof and at > (_last_member(fd) or 0)):
                    raise _damaged(path, "its compressed content is cut off")
                return
            at += 0 if rest else len(data)
            if reader.eof:
                reader = zlib.decompressobj(31)
            begun = True
            piece = reader.decompress(data, _PIECE)
            rest = reader.unused_data if reader.eof else reader.unconsumed_tail
            if piece:
                yield piece
    except zlib.error as error:
        raise _damaged(path, f"its compressed content is damaged: {error}") from None


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[_reality.write(fd, data) :]


def nameless() -> int:
    """Open a new anonymous file: in memory if the system supports that, else in the directory for temporary files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tracekit", os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _damaged(path: str, problem: str) -> TraceIntegrityError:
    return TraceIntegrityError(
        f"{path}: {problem}",
        path=path,
        line=None,
        problem=problem,
        next_action="don't trust this trace; take a copy that verifies (`tracekit verify`)",
    )
