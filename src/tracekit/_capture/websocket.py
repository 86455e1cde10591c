"""Websockets on the wire: parses the frames of both directions as they pass, and writes recorded ones.

A connection is one step; what was received and sent are its chunks, ``{"received": …}`` and ``{"sent": …}``, each a
decompressed frame: ``{"type", "data"}``, with ``more`` if the message continues in the next frame, and ``code`` and
``reason`` for a close. Bytes that are not valid frames are kept as they are, ``{"type": "raw"}``.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import orjson

from .._journal.entry import meta_of
from .._runtime.session import Outcome
from .http import Answer, Exchange
from .http1 import Arrivals, Incoming, Rendering

__all__ = ["Conversation", "ReplayedConversation"]

Frame = dict[str, Any]

_KINDS: Final = {0: "continuation", 1: "text", 2: "binary", 8: "close", 9: "ping", 10: "pong"}
_CODES: Final = {kind: code for code, kind in _KINDS.items()}
_DATA: Final = (0, 1, 2)
#: The end of every compressed message, which is not transmitted.
_TAIL: Final = b"\x00\x00\xff\xff"


class _Inflater:
    """Decompresses messages (RFC 7692); ``keeps``: each continues the compression state of the previous one."""

    __slots__ = ("_inner", "_keeps")

    def __init__(self, keeps: bool) -> None:
        self._keeps: Final = keeps
        self._inner = zlib.decompressobj(-zlib.MAX_WBITS)

    def inflate(self, data: bytes, last: bool) -> bytes:
        plain = self._inner.decompress(data + _TAIL if last else data)
        if last and not self._keeps:
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
        return plain


class _Frames:
    """The frames of one direction; those of a client are ``masked``."""

    __slots__ = ("_inflater", "_masked", "_packed", "_raw", "_rest")

    def __init__(self, masked: bool, inflater: _Inflater | None) -> None:
        self._masked: Final = masked
        self._inflater: Final = inflater
        self._packed = False
        self._rest = b""
        #: Whether the data has stopped being frames.
        self._raw = False

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames completed by ``data``."""
        self._rest += data
        found: list[Frame] = []
        while not self._raw and (frame := self._next()) is not None:
            found.append(frame)
        if self._raw and self._rest:
            found.append({"type": "raw", "data": self._rest})
            self._rest = b""
        return found

    def _next(self) -> Frame | None:
        data = self._rest
        if len(data) < 2:
            return None
        first, second = data[0], data[1]
        code, length, at = first & 0x0F, second & 0x7F, 2
        if code not in _KINDS or first & 0x30 or bool(second & 0x80) != self._masked:
            self._raw = True
            return None
        if length > 125:
            at = 4 if length == 126 else 10
            if len(data) < at:
                return None
            length = int.from_bytes(data[2:at], "big")
        mask = b""
        if self._masked:
            mask, at = data[at : at + 4], at + 4
        if len(data) < at + length:
            return None
        payload, rest = _unmasked(data[at : at + length], mask), data[at + length :]
        last = bool(first & 0x80)
        if code in (1, 2):
            self._packed = bool(first & 0x40)
        packed = self._packed if code in _DATA else bool(first & 0x40)
        if packed:
            try:
                if self._inflater is None or code not in _DATA:
                    raise zlib.error("nobody said so")
                payload = self._inflater.inflate(payload, last)
            except zlib.error:
                self._raw = True
                return None
        self._rest = rest
        return _frame(code, payload, last)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    if not mask or not payload:
        return payload
    size = len(payload)
    whole = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")


def _frame(code: int, payload: bytes, last: bool) -> Frame:
    frame: Frame = {"type": _KINDS[code]}
    if code == 8 and len(payload) >= 2:
        (frame["code"],) = struct.unpack_from("!H", payload)
        payload = payload[2:]
        frame["reason"] = _text(payload)
    elif code != 8 or payload:
        frame["data"] = payload if code == 2 else _text(payload)
    if not last:
        frame["more"] = True
    return frame


def _text(payload: bytes) -> str | bytes:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def _bytes(data: Any) -> bytes:
    return data.encode() if isinstance(data, str) else bytes(data)


def _on_wire(frame: Frame) -> bytes:
    """Return a frame as a server sends it, uncompressed."""
    payload = _bytes(frame.get("data", b""))
    if frame["type"] == "raw":
        return payload
    if "code" in frame:
        payload = struct.pack("!H", frame["code"]) + _bytes(frame["reason"])
    first = _CODES[frame["type"]] | (0 if frame.get("more") else 0x80)
    size = len(payload)
    if size < 126:
        return struct.pack("!BB", first, size) + payload
    return (
        struct.pack("!BBH", first, 126, size) if size < 1 << 16 else struct.pack("!BBQ", first, 127, size)
    ) + payload


# -- recording ---------------------------------------------------------------------------------------------------------


class Conversation(Incoming):
    """A websocket that is being recorded: its handshake (or the response received instead), then the frames of both
    directions."""

    __slots__ = ("_inward", "_message", "_outward", "_parts")

    upgrades = True

    def __init__(self, exchange: Exchange, *, brought: bool, parts: bool = False) -> None:
        """``parts``: the library reacts to every arrival, even part of a frame."""
        self._parts: Final = parts
        super().__init__(exchange, "WEBSOCKET", "", quiet=False, brought=brought)
        self._inward: _Frames | None = None
        self._outward = _Frames(True, None)
        #: The type of the message whose frames are being received.
        self._message = ""

    @property
    def open(self) -> bool:
        """Whether the handshake succeeded."""
        return self._inward is not None

    def _body(self, data: bytes) -> None:
        if self._status != 101:
            super()._body(data)
            return
        if self._inward is None:
            self._inward = self._shaken()
        for frame in self._inward.feed(data):
            self._exchange.step.chunk({"received": frame}, info={"suspended": True} if self._first() else None)
            if frame["type"] in ("text", "continuation") and type(frame["data"]) is str:
                self._message += frame["data"]
                if "more" not in frame:
                    self._exchange.message(self._message)
                    self._message = ""
        if self._parts and self._first():
            self._exchange.mark("part", suspended=True)

    def _shaken(self) -> _Frames:
        """Start parsing frames after the handshake. The negotiated compression is not recorded."""
        keeps: dict[str, bool] | None = None
        headers = []
        for name, value in self._headers:
            if name.lower() != b"sec-websocket-extensions":
                headers.append((name, value))
            elif value.strip().startswith(b"permessage-deflate"):
                keeps = {side: side.encode() + b"_no_context_takeover" not in value for side in ("server", "client")}
        self._outward = _Frames(True, None if keeps is None else _Inflater(keeps["client"]))
        also, self._also = self._also or {}, None
        self._exchange.head(101, headers, also=also, suspended=self._first())
        return _Frames(False, None if keeps is None else _Inflater(keeps["server"]))

    def sent(self, data: bytes) -> None:
        """Record data that is about to be sent."""
        if self._inward is None or self.complete:  # the request itself
            return
        for frame in self._outward.feed(data):
            self._exchange.step.chunk({"sent": frame})

    def half_closed(self) -> None:
        """Record that the peer will not send any more."""
        if not self.complete and self._inward is not None:
            self._exchange.mark("eof", suspended=self._brought)

    def closed(self) -> None:
        if self.complete or self._inward is None:
            super().closed()
            return
        self.complete = True
        self._exchange.end(suspended=self._brought)


# -- replay ------------------------------------------------------------------------------------------------------------


class ReplayedConversation(Arrivals):
    """A recorded websocket: what is sent is compared, and received frames are delivered at their recorded place.
    ``ended``: called when the peer sends no more."""

    __slots__ = ("_accept", "_asks", "_ended", "_made", "_opening", "_outward", "_pings", "_waits", "open")

    def __init__(
        self,
        exchange: Exchange,
        receive: Callable[[bytes], object],
        lost: Callable[[str, BaseException | None], object],
        ended: Callable[[], object],
    ) -> None:
        super().__init__(exchange, "WEBSOCKET", receive, lost)
        self._ended: Final = ended
        #: The part of the request sent so far, until it is complete.
        self._opening: bytes | None = b""
        self._accept = ""
        self._outward: Final = _Frames(True, None)
        #: The frames that the program has sent and that have not been compared yet.
        self._made: list[Frame] = []
        #: The payloads of pings, which are random each time, by the recorded ones.
        self._pings: Final[dict[Any, Any]] = {}
        self.open = False
        self._asks = True
        #: Whether a recorded arrival is being waited for.
        self._waits = False

    def sent(self, data: bytes, *, complete: bool = False) -> None:
        if self._over:
            return
        if self._opening is not None:
            self._opening += data
            head, end, data = self._opening.partition(b"\r\n\r\n")
            if not end:
                return
            self._opening, self._accept = None, _accept(head)
        self._made += self._outward.feed(data)
        self._compare()
        self._pause()
        self.ask()

    # -- for code that reads from a socket -----------------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """Like ``sent``, for callers that fetch arrivals with ``next``."""
        self._asks = False
        self.sent(data)

    def comes(self) -> bool | None:
        """Return whether something is still to come; ``None`` if the program has to send something first. Then call
        ``next``."""
        self._asks = False
        entry = self._exchange.step.upcoming()
        if entry is None or meta_of(entry).get("abandoned"):
            return False
        if self._sends_next():
            return None
        self._waits = True
        return True

    def next(self) -> tuple[bytes, tuple[str, BaseException | None] | None]:
        """Return the next arrival, waiting for its turn, and how the connection ended, if it did."""
        step = self._exchange.step
        return self._taken(step.next_chunk() or step.answer())

    def delivered(self, end: object) -> None:
        """Note that the next recorded message was delivered; what is sent from now on is compared with what follows it."""
        self._waits = False
        self._over = self._over or end is not None
        self._compare()

    def ask(self) -> None:
        if self._asks:
            super().ask()

    def _sends_next(self) -> bool:
        return not self._waits and super()._sends_next()

    # -- both ----------------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        while self._made and (piece := self._next_sent()) is not None:
            made, then = self._made.pop(0), piece.output["sent"]
            if made["type"] == then["type"] == "ping":
                self._pings[then["data"]] = made["data"]
            elif not self._exchange.step.alike(then, made):
                raise self._otherwise(then, made)

    def _otherwise(self, then: Frame | None, made: Frame | None) -> BaseException:
        return self._exchange.sends_otherwise(_shown(then), _shown(made))

    def _taken(self, outcome: Outcome) -> tuple[bytes, tuple[str, BaseException | None] | None]:
        output = outcome.output
        if outcome.entry["type"].endswith(".chunk") and isinstance(output, dict):
            if "received" in output:
                return _on_wire(self._as_now(output["received"])), None
            if "moment" in output:
                if output["moment"] == "eof":
                    self._ended()
                elif output["moment"] == "part":
                    self._receive(b"")
                elif output["moment"] == "resumed":
                    self.flow(False)
                return b"", None
            if output.get("head", {}).get("status") == 101:
                self.open = True
                answer = Answer(outcome)
                answer.headers = [(n, self._accept if n == "sec-websocket-accept" else v) for n, v in answer.headers]
                return Rendering().head(answer, self._exchange), None
        if not self.open:
            return super()._taken(outcome)
        answer = Answer(outcome)
        if answer.error is not None:
            return b"", (answer.raised or "read", answer.error)
        return b"", ("closed", None)

    def _as_now(self, frame: Frame) -> Frame:
        if frame["type"] == "pong" and frame.get("data") in self._pings:
            return {**frame, "data": self._pings.pop(frame["data"])}
        return frame


def _accept(head: bytes) -> str:
    """Return the server's response to the key of a request."""
    key = b""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"sec-websocket-key":
            key = value.strip()
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _shown(frame: Frame | None) -> bytes:
    return b"" if frame is None else orjson.dumps(frame, default=repr)
