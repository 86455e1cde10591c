"""Indexes of large traces, kept in the store, so that the next replay starts at once.

They are what reading a complete run has found.

An index is valid only for the exact bytes it was made from: it holds the SHA-256 of the whole content, which is
recomputed whenever a trace is opened by its index. A change anywhere in the trace, even behind the last step that a
replay uses, invalidates the index; the trace is then read completely, and its damage reported as if there were no
index. An index is also valid only for the code that made it, and has a checksum of its own. An invalid index is ignored
and rewritten.

Whoever can write to the store can forge an index, as well as a kept tip. Therefore verification (``verify``, ``audit``,
checking a seal with a key) never uses one.

The file is a line of JSON, the packed arrays, and the SHA-256 of both: about 45 bytes per entry. (Compressing them
takes longer than computing them.)
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from io import RawIOBase
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import orjson

from .. import _reality
from .._reality import open_file, system
from .durable import make_directory, replacing

if TYPE_CHECKING:
    from typing_extensions import Buffer as WriteableBuffer

__all__ = ["ContentReader", "KeptIndex", "fingerprint_of", "index_of", "read_index", "write_index"]

_VERSION: Final = 1
_PIECE: Final = 1 << 20
_DIGEST: Final = 32
#: Array item sizes here: an index is for the machine that made it.
_MACHINE: Final = f"{sys.byteorder} {array('I').itemsize} {array('Q').itemsize}"


class KeptIndex(NamedTuple):
    """The results of reading a trace: the number of entries, the last hash, where each entry ends, and what collectors
    made of them."""

    entries: int
    head: str
    offsets: array[int]
    #: By the collector's name.
    found: Mapping[str, Any]


def index_of(path: str) -> str | None:
    """Return where the index of a trace is kept; ``None`` for one that is in no store."""
    stem, suffix = os.path.splitext(os.path.abspath(path))
    directory, name = os.path.split(stem)
    if os.path.basename(directory) != "runs" or suffix != ".jsonl":
        return None
    return os.path.join(os.path.dirname(directory), "indexes", name)


@lru_cache(16)
def fingerprint_of(*modules: str) -> str | None:
    """Return a fingerprint of the code of these modules; ``None`` if it can't be read."""
    found = sha256()
    for name in modules:
        path = getattr(sys.modules.get(name), "__file__", None)
        try:
            with open_file(path or "", "rb") as file:
                found.update(file.read())
        except OSError:
            return None
    return f"{found.hexdigest()} {_MACHINE}"


class ContentReader(RawIOBase):
    """A trace file being read: hashes all bytes read (SHA-256). To be buffered, and closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file
        self._hash: Final = sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._hash.update(memoryview(buffer)[:count])
        return count

    def digest(self) -> str:
        return self._hash.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


def _digest(fd: int, size: int) -> str:
    found, at, piece = sha256(), 0, bytearray(_PIECE)
    while at < size and (count := os.preadv(fd, [memoryview(piece)[: size - at]], at)):
        found.update(memoryview(piece)[:count])
        at += count
    return found.hexdigest()


@_reality.off_loop()
def read_index(path: str, fd: int, code: str, wanted: Sequence[str]) -> KeptIndex | None:
    """Return the index of the trace at ``path``, open as ``fd``, with everything ``wanted``; ``None`` if there is no
    valid one."""
    where = index_of(path)
    if where is None:
        return None
    try:
        with open_file(where, "rb") as file:
            data = file.read()
        line = data[: data.index(b"\n") + 1]
        if sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            return None
        about = orjson.loads(line)
        size = about["size"]
        if (about["index"], about["code"]) != (_VERSION, code) or not {*wanted} <= {*about["found"]}:
            return None
        if system.fstat(fd).st_size != size or _digest(fd, size) != about["content"]:
            return None
        packed = memoryview(data)[len(line) : -_DIGEST]
        offsets, *found = (_unpacked(value, packed) for value in [about["offsets"], *about["found"].values()])
        if len(offsets) != about["entries"] + 1 or offsets[-1] != size:
            return None
        return KeptIndex(about["entries"], about["head"], offsets, dict(zip(about["found"], found, strict=True)))
    except (OSError, ValueError, LookupError, TypeError):
        return None  # missing or damaged: the trace is read instead


@_reality.off_loop()
def write_index(path: str, index: KeptIndex, content: str, code: str) -> None:
    """Keep the index of the trace at ``path`` with content of this SHA-256. If it can't be written, there is none."""
    where = index_of(path)
    if where is None:
        return
    packer = _Packer()
    try:
        about = {
            "index": _VERSION,
            "code": code,
            "size": index.offsets[-1],
            "content": content,
            "entries": index.entries,
            "head": index.head,
            "offsets": packer.packed(index.offsets),
            "found": {name: packer.packed(value) for name, value in index.found.items()},
        }
        data = b"".join((orjson.dumps(about), b"\n", *packer.pieces))
        make_directory(os.path.dirname(where), sync=False)
        with replacing(where, sync=False) as fd:
            data += sha256(data).digest()
            while data:
                data = data[system.write(fd, data) :]
        if not _reality.there(path):  # deleted meanwhile
            system.unlink(where)
    except (OSError, TypeError, ValueError):
        with suppress(OSError):
            system.unlink(where)


# -- packing -----------------------------------------------------------------------------------------------------------
#
# Values of a few types as JSON, with arrays as bytes beside it. Nothing in the file is imported or evaluated.


class _Packer:
    def __init__(self) -> None:
        self.pieces: Final[list[bytes]] = []
        self._size = 0

    def packed(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is array or kind is bytearray:
            piece, at = bytes(value), self._size
            self.pieces.append(piece)
            self._size += len(piece)
            return {"array": value.typecode if kind is array else "", "at": at, "size": len(piece)}
        if kind is dict:
            return {"dict": [[self.packed(key), self.packed(item)] for key, item in value.items()]}
        if kind is list or kind is set:
            return {kind.__name__: [self.packed(item) for item in value]}
        if isinstance(value, tuple):
            return {"tuple": [self.packed(item) for item in value]}
        raise TypeError(f"an index holds no {kind.__name__}")


def _unpacked(value: Any, data: memoryview) -> Any:
    if type(value) is not dict:
        return value
    if "array" in value:
        piece = data[value["at"] : value["at"] + value["size"]]
        if len(piece) != value["size"]:
            raise ValueError("it is cut off")
        if not value["array"]:
            return bytearray(piece)
        found = array(value["array"])
        found.frombytes(piece)
        return found
    if "dict" in value:
        return {_unpacked(key, data): _unpacked(item, data) for key, item in value["dict"]}
    if "list" in value:
        return [_unpacked(item, data) for item in value["list"]]
    items = (_unpacked(item, data) for item in value["set" if "set" in value else "tuple"])
    return set(items) if "set" in value else tuple(items)
