"""HTTP/1 on the wire: parses requests and responses as they pass, and writes recorded responses.

For seams below the library's parser. ``served`` gives the recorded bytes to a library that reads from a socket;
``Arrivals`` delivers them through an event loop.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from .._journal.entry import meta_of
from .._native import fields, header_values
from .._runtime.session import Outcome
from ..errors import ReplayError
from .http import Answer, Exchange, Piece, SentBody, upload_of

__all__ = ["NOTHING", "Arrivals", "Chunks", "Incoming", "Rendering", "RequestHead", "served"]

#: The response to traffic that is not the program's.
NOTHING: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
#: What a piece of a response, or its end, was received together with: everything before it, or the end of the previous
#: chunk.
FORMER: Final = "former"
END_OF_FORMER: Final = "end of former"
#: Headers about how a response was transferred: a replay sends its own.
_TRAVEL: Final = frozenset(("transfer-encoding", "connection", "keep-alive"))


class RequestHead:
    """The head of a request, as far as the request's step needs it."""

    __slots__ = ("chunked", "codings", "expects", "headers", "length", "method", "target")

    def __init__(self, head: bytes) -> None:
        first, self.headers = fields(head, b"\r\n")
        method, _, rest = first.partition(b" ")
        self.method: Final = method.decode("ascii", "replace")
        self.target: Final = rest.rpartition(b" ")[0]
        length, transfer, expect, codings = header_values(self.headers, _ASKED)
        self.length = int(length) if length is not None and length.isdigit() else 0
        self.chunked = transfer is not None and b"chunked" in transfer.lower()
        self.expects = expect is not None and b"100-continue" in expect.lower()
        #: The content codings that the sender can decode.
        self.codings = "" if codings is None else codings.decode("latin-1").lower()


#: The headers of a request about its transfer.
_ASKED: Final = (b"content-length", b"transfer-encoding", b"expect", b"accept-encoding")


class Chunks:
    """Decodes the chunked transfer coding: yields pieces of data, and how much of each one's chunk is still to come."""

    __slots__ = ("_left", "_rest", "done", "wrong")

    _SIZE: Final = -1
    _BREAK: Final = -2
    _TRAILER: Final = -3

    def __init__(self) -> None:
        self._left = self._SIZE
        self._rest = b""
        self.done = False
        #: Whether the data is malformed; the reader will find out by itself.
        self.wrong = False

    def feed(self, data: bytes) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        data, at = self._rest + data, 0
        while at < len(data) and not self.done and not self.wrong:
            if self._left > 0:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                found.append((piece, self._left))
                if not self._left:
                    self._left = self._BREAK
            elif self._left == self._BREAK:
                if len(data) - at < 2:
                    break
                at += 2
                self._left = self._SIZE
            else:
                end = data.find(b"\n", at)
                if end < 0:
                    break
                self._line(data[at:end].rstrip(b"\r"))
                at = end + 1
        self._rest = data[at:]
        return found

    @property
    def breaks(self) -> bool:
        """Whether a chunk's data is complete but not its terminator."""
        return self._left == self._BREAK

    def _line(self, line: bytes) -> None:
        if self._left == self._TRAILER:
            self.done = not line
            return
        try:
            self._left = int(line.partition(b";")[0], 16) or self._TRAILER
        except ValueError:
            self.wrong = True


# -- content codings ---------------------------------------------------------------------------------------------------


class _Zlib:
    """gzip (also with several members) and deflate (also raw)."""

    def __init__(self, gzip: bool) -> None:
        self._gzip: Final = gzip
        self._make: Callable[[], Any] = lambda: zlib.decompressobj(zlib.MAX_WBITS + 16 if gzip else zlib.MAX_WBITS)
        self._inner = self._make()
        self._begun = gzip

    def decompress(self, data: bytes) -> bytes:
        try:
            plain: bytes = self._inner.decompress(data)
        except zlib.error:
            if self._begun:
                raise
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
            plain = self._inner.decompress(data)
        self._begun = True
        while self._gzip and self._inner.eof and (rest := self._inner.unused_data):
            self._inner = self._make()
            if not rest.startswith(b"\x1f"):  # padding
                break
            plain += self._inner.decompress(rest)
        return plain

    def flush(self) -> bytes:
        found: bytes = self._inner.flush()
        return found


def _decoders(codings: str, asked: str) -> list[Any]:
    """Return the decoders for a body, in decoding order; none if the request did not accept a coding, or it is unknown
    here."""
    found = [_decoder(coding) if coding in asked else None for coding in _each(codings)]
    return [] if None in found else found[::-1]


def _each(codings: str) -> list[str]:
    """Return the codings of a body, in the order in which they were applied."""
    return [coding.strip() for coding in codings.split(",")]


def _decoder(coding: str) -> Any:
    if coding in ("gzip", "x-gzip"):
        return _Zlib(True)
    if coding == "deflate":
        return _Zlib(False)
    if coding == "br":  # a program that accepts it has the library loaded
        brotli: Any = sys.modules.get("brotlicffi") or sys.modules.get("brotli")
        return None if brotli is None else _Brotli(brotli.Decompressor())
    if coding == "zstd":
        zstandard: Any = sys.modules.get("zstandard")
        if zstandard is not None:
            return _Unflushed(zstandard.ZstdDecompressor().decompressobj(read_across_frames=True))
        zstd: Any = sys.modules.get("compression.zstd") or sys.modules.get("backports.zstd")
        return None if zstd is None else _Unflushed(zstd.ZstdDecompressor())
    return None


class _Unflushed:
    def __init__(self, inner: Any) -> None:
        self._inner: Final = inner

    def decompress(self, data: bytes) -> bytes:
        found: bytes = self._inner.decompress(data)
        return found

    def flush(self) -> bytes:
        return b""


class _Brotli(_Unflushed):
    def decompress(self, data: bytes) -> bytes:
        decode = getattr(self._inner, "decompress", None) or self._inner.process
        found: bytes = decode(data)
        more = found
        while more and not self._inner.is_finished():  # from 1.2 on it may return only part of the available data
            more = decode(b"")
            found += more
        return found


class _Stored:
    """Re-encodes a body in a coding without compressing it, so that a decoder gets all of a piece at once.

    For bodies of which something was redacted, so that the original bytes can't be used. Needs no library.
    """

    def __init__(self, codings: str) -> None:
        self._steps: Final = [_STORED[coding]() for coding in _each(codings)]

    def piece(self, data: bytes) -> bytes:
        for step in self._steps:
            data = step.piece(data) if data else data
        return data

    def end(self) -> bytes:
        data = b""
        for step in self._steps:
            data = (step.piece(data) if data else b"") + step.end()
        return data

    def whole(self, data: bytes) -> bytes:
        return self.piece(data) + self.end()


class _StoredZlib:
    def __init__(self, bits: int) -> None:
        self._inner: Final = zlib.compressobj(0, zlib.DEFLATED, bits)

    def piece(self, data: bytes) -> bytes:
        return self._inner.compress(data) + self._inner.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self._inner.flush()


class _StoredZstd:
    """RFC 8878: a frame of raw blocks."""

    _SIZE: Final = 1 << 16

    def __init__(self) -> None:
        #: the magic number, a frame without a size, and a window of 128 KiB
        self._head = b"\x28\xb5\x2f\xfd\x00\x38"

    def piece(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        blocks = [data[at : at + self._SIZE] for at in range(0, len(data), self._SIZE)]
        return head + b"".join([(len(block) << 3).to_bytes(3, "little") + block for block in blocks])

    def end(self) -> bytes:
        head, self._head = self._head, b""
        return head + b"\x01\x00\x00"


class _StoredBrotli:
    """RFC 7932: uncompressed meta-blocks."""

    _SIZE: Final = 1 << 16
    #: A window of 4 MiB, declared before the first block.
    _WINDOW: Final = (0b1011, 4)

    def __init__(self) -> None:
        self._head, self._bits = self._WINDOW

    def piece(self, data: bytes) -> bytes:
        made = b""
        for at in range(0, len(data), self._SIZE):
            block = data[at : at + self._SIZE]
            made += self._with(((len(block) - 1) << 3) | (1 << 19), 3) + block
        return made

    def end(self) -> bytes:
        return self._with(3, 1)

    def _with(self, bits: int, size: int) -> bytes:
        head, self._head = (bits << self._bits) | self._head, 0
        self._bits = 0
        return head.to_bytes(size, "little")


_STORED: Final[dict[str, Callable[[], Any]]] = {
    "gzip": lambda: _StoredZlib(zlib.MAX_WBITS + 16),
    "x-gzip": lambda: _StoredZlib(zlib.MAX_WBITS + 16),
    "deflate": lambda: _StoredZlib(zlib.MAX_WBITS),
    "br": _StoredBrotli,
    "zstd": _StoredZstd,
}


# -- receiving a response ----------------------------------------------------------------------------------------------


class Incoming:
    """A response that is parsed as it is received, and recorded before the library gets it.

    ``method`` is the request's, ``asked`` the content codings that its sender can decode. ``quiet``: the caller sees
    nothing of the response before it is complete, so it is recorded as a whole. ``brought``: an event loop delivers it.
    """

    __slots__ = (
        "_also", "_asked", "_brought", "_chunks", "_coded", "_decoders", "_exchange", "_head", "_headers", "_left", "_method",
        "_pieces", "_status", "_with", "begun", "complete", "early", "quiet",
    )  # fmt: skip

    #: Whether the server may switch to another protocol.
    upgrades: ClassVar[bool] = False

    def __init__(self, exchange: Exchange, method: str, asked: str, *, quiet: bool, brought: bool = False) -> None:
        self._exchange: Final = exchange
        self._method: Final = method
        self._asked: Final = asked
        self.quiet = quiet
        self._brought: Final = brought
        #: What the next recorded piece was received together with.
        self._with: str | None = None
        #: How sending the request ended prematurely.
        self.early: str | None = None
        #: Whether the head of the response has arrived, and whether all of it has.
        self.begun = False
        self.complete = False
        self._head = b""
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._also: dict[str, Any] | None = None
        #: Bytes of the body that are still to come; ``None``: up to the end of the connection.
        self._left: int | None = None
        self._chunks: Chunks | None = None
        #: The decoders of the body's content coding, and whether it has one.
        self._decoders: list[Any] = []
        self._coded = False
        #: Pieces held back, as they were received.
        self._pieces: list[tuple[bytes, int]] = []

    def feed(self, data: bytes) -> None:
        """Process bytes from the connection, before the library gets them."""
        if self.complete:
            return
        self._with = END_OF_FORMER if self._chunks is not None and self._chunks.breaks else None
        if self.begun:
            self._body(data)
            return
        self._head += data
        while end := _end_of_head(self._head):
            head, self._head = self._head[:end], self._head[end:]
            if self._heading(head):
                data, self._head = self._head, b""
                self._body(data)
                return

    def _heading(self, head: bytes) -> bool:
        """Return whether this is the head of the final response, not an interim one."""
        first, headers = fields(head.replace(b"\r\n", b"\n").rstrip(b"\n"), b"\n")
        version, _, rest = first.strip().partition(b" ")
        status, _, reason = rest.strip().partition(b" ")
        if not version.startswith(b"HTTP/") or not status.isdigit():
            # Not HTTP: keep it as received; the library decides what to do with it.
            self.begun, self._status, self._left = True, 0, None
            self._pieces.append((head, 0))
            self._also = {}
            return True
        self._status = int(status)
        if self._status == 101 and not self.upgrades:
            self._exchange.refuse("an upgraded connection (101)")
        if 100 <= self._status < 200 and self._status != 101:
            if self._brought:
                self._exchange.mark("continue" if self._status == 100 else "interim", suspended=self._first())
            return False
        self.begun = True
        self._headers = headers
        self._also = self._more(version, reason.strip())
        return True

    def _more(self, version: bytes, reason: bytes) -> dict[str, Any]:
        """Return what is kept of the head besides status and headers; also determines how the body is delimited."""
        also: dict[str, Any] = {}
        if version != b"HTTP/1.1":
            also["http_version"] = version.decode("latin-1")
        if reason != b"OK":
            also["reason"] = reason.decode("latin-1")
        travel: dict[str, str] = {}
        names: list[str] = []
        cookies: list[str] = []
        coding = length = ""
        known = _NAMES
        for (name, odd), content in [(found, content) for raw, content in self._headers if (found := known[raw])]:
            if odd and odd not in names:
                names.append(odd)
            if not name:
                continue
            value = content.decode("latin-1")
            if name in _TRAVEL:
                travel[name] = value
            elif name == "content-encoding":
                coding = value.strip().lower()
            elif name == "content-length":
                length = value
            else:
                cookies.append(self._exchange.cookie(value))
        self._delimit(travel.get("transfer-encoding", ""), length)
        coded: dict[str, str] = {}
        if coding and coding != "identity":
            self._decoders = _decoders(coding, self._asked)
            if self._decoders:
                self._coded = True
                coded = {"content-encoding": coding, **({"content-length": length} if length else {})}
            else:
                self._keep_coding(travel, coding)
        if travel or names or cookies or coded:
            wire = {"headers": travel, "names": names, "jar": cookies, "coded": coded}
            also["wire"] = {key: value for key, value in wire.items() if value}
        return also

    def _keep_coding(self, travel: dict[str, str], coding: str) -> None:
        travel["content-encoding"] = coding
        self._headers = [pair for pair in self._headers if pair[0].lower() != b"content-encoding"]

    def _delimit(self, transfer: str, length: str) -> None:
        if self._method == "HEAD" or self._status in (204, 304):
            self._left = 0
        elif transfer.lower() == "chunked":
            self._chunks = Chunks()
        else:
            try:
                self._left = int(length)
            except ValueError:
                self._left = None
            if self._left is not None and self._left < 0:
                self._left = None

    def _over(self) -> bool:
        return self._chunks.done if self._chunks is not None else self._left == 0

    def _body(self, data: bytes) -> None:
        if self._chunks is not None:
            self._pieces += self._chunks.feed(data)
        elif data:
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            self._pieces.append((data, 0))
        if self._over():
            if not self.quiet and len(self._pieces) > 1:  # the caller may see one after the other
                self._flush()
            self._end()
        elif not self.quiet:
            self._flush()

    def speak(self) -> None:
        """Stop holding pieces back."""
        self.quiet = False
        if self.begun and not self.complete:
            self._flush()

    def _flush(self) -> None:
        exchange, also = self._exchange, self._also
        if also is not None:
            self._also = None
            exchange.head(self._status, self._headers, also=also, early=self.early, suspended=self._first())
        pieces, self._pieces = self._pieces, []
        for data, part in pieces:
            if not self._coded:
                exchange.piece(data, part=part, **self._how())
                continue
            plain = self._undone(data)
            if plain is None:  # the reader will report what is wrong with it
                exchange.piece(data, part=part, plain=b"", **self._how())
            else:
                exchange.piece(plain, part=part, coded=data, **self._how())

    def _undone(self, data: bytes, *, all: bool = False) -> bytes | None:
        """Decode a piece, with ``all`` to its end; return ``None`` from the piece on where decoding fails."""
        if not self._decoders:
            return None
        try:
            for decoder in self._decoders:
                data = decoder.decompress(data) if data else b""
                if all:
                    data += decoder.flush()
        except Exception:
            self._decoders = []
            return None
        return data

    def _first(self) -> bool:
        """Return whether this piece is the first of what an event loop delivers at once; in a replay the rest comes with it."""
        first, self._with = self._with != FORMER, FORMER
        return first and self._brought

    def _how(self) -> dict[str, Any]:
        """Return how this piece was received."""
        together = self._with
        return {"suspended": self._first(), "received_with": None if self._brought else together}

    def _end(self, *, complete: bool = True) -> None:
        self.complete = True
        if self._also is None or not complete:
            self._flush()
            rest = self._undone(b"", all=True)
            if rest:
                self._exchange.piece(rest, coded=b"", **self._how())
            self._exchange.end(complete=complete, **self._how())
            return
        coded = b"".join([data for data, _ in self._pieces])
        plain = self._undone(coded, all=True) if self._coded else coded
        if plain is None:  # the reader will report what is wrong with it
            self._coded, plain = False, coded
            wire = self._also["wire"]
            self._keep_coding(wire.setdefault("headers", {}), wire.pop("coded")["content-encoding"])
        self._pieces = []
        self._exchange.whole(
            self._status,
            self._headers,
            plain,
            also=self._also,
            elapsed=None,
            coded=coded if self._coded else None,
            early=self.early,
            suspended=self._first(),
        )

    def closed(self) -> None:
        """The server closed the connection."""
        if self.complete:
            return
        self._with = None
        if self.begun:
            self._end(complete=self._chunks is None and self._left is None)
            return
        self.complete = True
        error = ConnectionResetError("the connection was closed without an answer")
        response = (0, (), self._head) if self._head else None
        self._exchange.broke(error, "closed", response=response, early=self.early, suspended=self._first())

    def broke(self, error: BaseException, kind: str = "read") -> None:
        """Reading, or the preceding sending, raised an error."""
        if self.complete:
            return
        self._with = None
        if self.begun:
            self._flush()
        self.complete = True
        self._exchange.broke(error, kind, early=None if self.begun else self.early, suspended=self._first())

    def left(self) -> None:
        """The library stopped reading."""
        if self.complete:
            return
        self._with = FORMER
        if not self.begun:
            self.complete = True
            self._exchange.unanswered()
            return
        self._flush()
        self.complete = True
        self._exchange.left()


def _end_of_head(data: bytes) -> int:
    """Return where the body begins; 0 while the head is incomplete. A line that is not HTTP counts as a head."""
    if not data.startswith(b"HTTP/") and data[:5] != b"HTTP/"[: len(data[:5])]:
        return data.find(b"\n") + 1
    for mark in (b"\r\n\r\n", b"\n\n"):
        at = data.find(mark)
        if at >= 0:
            return at + len(mark)
    return 0


class _Names(dict[bytes, tuple[str, str] | None]):
    """For a raw header name: its normalised name if it matters here, and its spelling if unusual; ``None`` if neither."""

    def __missing__(self, raw: bytes) -> tuple[str, str] | None:
        spelled = raw.decode("latin-1")
        name = spelled.lower()
        matters = name in _TRAVEL or name in ("content-encoding", "content-length", "set-cookie")
        found = (name if matters else "", "" if spelled == _canonical(spelled) else spelled)
        known = found if any(found) else None
        if len(self) < 10_000:
            self[raw] = known
        return known


#: A cache; depends on the bytes alone.
_NAMES: Final = _Names()


def _canonical(name: str) -> str:
    """Return the usual capitalisation of a header name."""
    return "-".join(part.capitalize() for part in name.split("-"))


# -- recorded responses ------------------------------------------------------------------------------------------------


class Rendering:
    """Writes a recorded response as it would be on the wire, piece by piece."""

    __slots__ = ("_again", "_asked", "_chunked", "_length", "_whole", "_within")

    def __init__(self, asked: str = "") -> None:
        """``asked``: the content codings that the sender of the request can decode."""
        self._asked: Final = asked
        self._chunked = False
        #: The length of the body, if the head declares it.
        self._length: int | None = None
        #: The part of a chunk received so far, and whether the chunk's head has been written.
        self._whole = b""
        self._within = False
        #: Re-encodes a body that was not recorded completely; then each chunk is held until it is complete.
        self._again: _Stored | None = None

    def head(self, answer: Answer, exchange: Exchange) -> bytes:
        """Return the head, and the body if it was recorded as a whole."""
        if not answer.status:  # no HTTP
            return answer.content or b""
        self._chunked = answer.wire.get("headers", {}).get("transfer-encoding", "").lower() == "chunked"
        coded: Mapping[str, str] = answer.wire.get("coded", {})
        codings = coded.get("content-encoding", "").lower()
        if codings and not all(coding in self._asked for coding in _each(codings)):
            raise exchange.not_asked(codings)
        if answer.content is None:
            self._length = None if self._chunked else _length(answer)
            actual = self._other_length(codings, exchange)
            if actual is not None:
                self._length = actual
            return _head(answer, actual or 0)
        body = answer.content
        if codings and "body" in answer.wire:
            body = answer.wire["body"]
        elif codings and answer.wire.get("size"):
            exchange.coded_again()
            body = _Stored(codings).whole(body)
        head = _head(answer, len(body))
        if self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        return head + body

    def _other_length(self, codings: str, exchange: Exchange) -> int | None:
        """Return the length of a body that was not recorded completely; ``None`` if it was, or no length was declared."""
        if self._length is None and not codings:
            return None
        pieces, complete = exchange.rest_of_body()
        if not codings:
            redacted = complete and any(piece.redacted for piece in pieces)
            return sum(len(piece.data) for piece in pieces) if redacted else None
        if not any(piece.size is not None and piece.coded is None for piece in pieces):
            return None
        exchange.coded_again()
        self._again = _Stored(codings)
        if self._length is None:
            return None
        made = _Stored(codings)
        length = sum(len(piece.data if piece.size is None else made.piece(piece.data)) for piece in pieces)
        return length + len(made.end()) if complete else max(length + 1, self._length)

    def piece(self, piece: Piece) -> bytes:
        """Return a piece of the body."""
        data, part = piece.data, piece.part
        if self._again is None:
            data = data if piece.coded is None else piece.coded
        elif piece.size is not None:
            data = self._again.piece(data)
        if not self._chunked:
            return data
        if self._again is not None and part:
            self._whole += data
            return b""
        data, self._whole = self._whole + data, b""
        if not data:  # an empty chunk would end the body
            return b""
        begin = b"" if self._within else b"%x\r\n" % (len(data) + part)
        self._within = part > 0
        return b"%b%b%b" % (begin, data, b"" if self._within else b"\r\n")

    def broken(self) -> bytes:
        """Return the incomplete chunk with which the response ends."""
        return b"%x\r\n%b" % (len(self._whole) + 1, self._whole) if self._whole else b""

    def end(self, answer: Answer) -> bytes:
        if not answer.complete:
            return b""
        rest = b"" if self._again is None else self._again.end()
        if not self._chunked:
            return rest
        return (b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n"

    def until_closed(self, answer: Answer) -> bool:
        """Return whether only the end of the connection delimits the body."""
        return not self._chunked and self._length is None and _length(answer) is None


def served(exchange: Exchange, asked: str) -> Iterator[bytes]:
    """Yield the recorded response as it would be on the wire, in the units in which it was received. Raises what
    reading it raised.

    ``asked``: the content codings that the sender of the request can decode.
    """
    answer = exchange.first()
    if answer.raised is not None or answer.error is not None:
        if answer.raised == "closed":
            if answer.read:
                yield answer.content or b""
            return
        raise answer.error or ConnectionAbortedError(answer.text)
    rendering = Rendering(asked)
    block = rendering.head(answer, exchange)
    if answer.content is not None:
        if block:
            yield block
        return
    while True:
        together, ends = exchange.received_with(), b""
        if together == END_OF_FORMER and block.endswith(b"\r\n"):
            block, ends = block[:-2], b"\r\n"
        if together != FORMER:
            if block:
                yield block
            block = ends
        piece = exchange.next_of_body()
        if not isinstance(piece, Piece):
            break
        block += rendering.piece(piece)
    block += rendering.broken()
    if piece.error is None:
        block += rendering.end(piece)
    if block:
        yield block
    if piece.error is not None:
        raise piece.error


#: What an event before the response looks like on the wire.
_MOMENTS: Final = {
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "interim": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}


class Arrivals:
    """Delivers a recorded response through an event loop: what arrived together arrives together, at its recorded
    place.

    ``receive`` gets the bytes. ``lost`` is called when the connection ends, with a kind (``closed``: cleanly, by the
    server; ``failed``: the replay has failed) and the error.
    """

    __slots__ = (
        "_asked",
        "_complete",
        "_exchange",
        "_lost",
        "_method",
        "_over",
        "_receive",
        "_rendering",
        "_sent",
        "_withdraw",
        "flow",
    )

    def __init__(
        self,
        exchange: Exchange,
        method: str,
        receive: Callable[[bytes], object],
        lost: Callable[[str, BaseException | None], object],
        asked: str = "",
    ) -> None:
        self._asked: Final = asked
        self._exchange: Final = exchange
        self._method: Final = method
        self._receive: Final = receive
        self._lost: Final = lost
        self._rendering: Rendering | None = None
        self._withdraw: Callable[[], object] | None = None
        self._over = False
        self._sent: Final = SentBody(exchange)
        #: Called when sending is paused (true) or resumed.
        self.flow: Callable[[bool], object] = lambda paused: None
        #: Whether the program has sent the whole request.
        self._complete = False

    @property
    def over(self) -> bool:
        """Whether nothing more will arrive."""
        return self._over or self._exchange.step.upcoming() is None

    def ask(self) -> None:
        """Schedule the next arrival, unless the program has to do something first."""
        if self._withdraw is not None or self._over:
            return
        step = self._exchange.step
        entry = step.upcoming()
        if entry is not None and not (_says(entry, "abandoned") or self._is_own(entry)):
            self._withdraw = step.on_next(self._came)

    def sent(self, data: bytes, *, complete: bool = False) -> None:
        """A piece of the request's body is being sent; ``complete``: the last one."""
        if self._over:
            return
        self._sent.sent(data)
        self._complete = self._complete or complete
        self._compare()
        self._pause()
        self.ask()

    def close(self) -> None:
        """The program closes the connection."""
        if self._over:
            return
        self._over = True
        if self._withdraw is not None:
            self._withdraw()
            return
        entry = self._exchange.step.upcoming()
        if entry is not None and _says(entry, "abandoned"):
            self._exchange.step.take_next()

    def _compare(self) -> None:
        """Compare what is sent with what was recorded, as far as the log has been followed."""
        sent = self._sent
        while sent.wants and (piece := self._next_sent()) is not None:
            sent.recorded(upload_of(piece) or b"")
        if self._complete and (piece := self._next_sent()) is not None:  # the recorded program sent more
            sent.recorded(upload_of(piece) or b"")
        sent.compare(sent_all=self._complete, recorded_all=False)

    def _sends_next(self) -> bool:
        """Return whether the recorded program sends something before anything arrives."""
        if self._withdraw is not None:
            return False
        entry = self._exchange.step.upcoming()
        return entry is not None and self._is_sent(entry)

    def _next_sent(self) -> Outcome | None:
        """Return what the recorded program sends next, if that precedes any arrival."""
        return self._exchange.step.take_next() if self._sends_next() else None

    def _came(self, outcome: Outcome) -> None:
        self._withdraw = None
        if isinstance(outcome.error, ReplayError):
            self._end("failed", outcome.error)
            return
        step = self._exchange.step
        try:
            data, end = self._taken(outcome)
            while end is None and (entry := step.upcoming()) is not None:
                if self._is_own(entry) or _says(entry, "suspended") or _says(entry, "abandoned"):
                    break
                more, end = self._taken(step.take_next())
                data += more
        except ReplayError as failure:
            self._end("failed", failure)
            return
        self._over = end is not None
        if data:
            self._receive(data)
        if end is None:
            self._go_on()
        elif end[0]:
            self._lost(*end)

    def _go_on(self) -> None:
        try:
            self._compare()
            self._pause()
        except ReplayError as failure:
            self._end("failed", failure)
        else:
            self.ask()

    def _end(self, kind: str, error: BaseException | None) -> None:
        self._over = True
        self._lost(kind, error)

    @staticmethod
    def _is_sent(entry: Mapping[str, Any]) -> bool:
        output = entry.get("output")
        return isinstance(output, dict) and "sent" in output and entry["type"].endswith(".chunk")

    @classmethod
    def _is_own(cls, entry: Mapping[str, Any]) -> bool:
        """Return whether the program causes it: it sends something, or more than the server takes."""
        return cls._is_sent(entry) or _moment(entry.get("output")) == "paused"

    def _pause(self) -> None:
        """Pause sending where it was paused in the recording."""
        if self._withdraw is None and not self._over:
            entry = self._exchange.step.upcoming()
            if entry is not None and _moment(entry.get("output")) == "paused":
                self._exchange.step.take_next()
                self.flow(True)

    def _taken(self, outcome: Outcome) -> tuple[bytes, tuple[str, BaseException | None] | None]:
        """Return the bytes of what arrived, and how the response ended, if it did (an empty kind if the connection
        stays open)."""
        rendering = self._rendering
        if outcome.entry["type"].endswith(".chunk"):
            if _moment(outcome.output) == "resumed":
                self.flow(False)
                return b"", None
            if rendering is not None:
                return rendering.piece(Piece(outcome)), None
            if "moment" in outcome.output:
                return _MOMENTS.get(outcome.output["moment"], b""), None
            self._rendering = Rendering(self._asked)
            return self._rendering.head(Answer(outcome), self._exchange), None
        self._sent.compare(sent_all=True, recorded_all=self._complete)
        answer = Answer(outcome)
        if rendering is None and answer.raised == "closed":
            return (answer.content or b"" if answer.read else b""), ("closed", None)
        if answer.error is not None or answer.raised is not None:
            rest = b"" if rendering is None else rendering.broken()
            return rest, (answer.raised or "read", answer.error or ConnectionAbortedError(answer.text))
        if rendering is None:
            rendering = Rendering(self._asked)
            data = rendering.head(answer, self._exchange)
            status = answer.status
        else:
            data = rendering.broken() + rendering.end(answer)
            status = 200
        if not answer.complete or (
            self._method != "HEAD" and status not in (204, 304) and rendering.until_closed(answer)
        ):
            return data, ("closed", None)
        return data, ("", None)


def _moment(output: object) -> object:
    return output.get("moment") if isinstance(output, dict) else None


def _says(entry: Any, key: str) -> bool:
    return bool(meta_of(entry).get(key))


def _length(answer: Answer) -> int | None:
    for name, value in (*answer.headers, *answer.wire.get("coded", {}).items()):
        if name == "content-length" and value.isdigit():
            return int(value)
    return None


def _head(answer: Answer, length: int = 0) -> bytes:
    """``length``: of the body, if redaction changed it."""
    wire = answer.wire
    spelled = {name.lower(): name for name in wire.get("names", ())}
    lines = [f"{answer.http_version} {answer.status} {'OK' if answer.reason is None else answer.reason}"]
    headers: list[tuple[str, str]] = [*answer.headers]
    headers += [("set-cookie", cookie) for cookie in wire.get("jar", ())]
    headers += wire.get("coded", {}).items()
    headers += wire.get("headers", {}).items()
    for name, value in headers:
        if length and name == "content-length":
            value = str(length)
        lines.append(f"{spelled.get(name) or _canonical(name)}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
