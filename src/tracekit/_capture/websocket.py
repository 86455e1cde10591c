"""Websockets as they are on the wire: the frames of both directions read while they pass, and recorded ones written again.

A connection is one step: what came and what was sent are its chunks, ``{"received": …}`` and ``{"sent": …}``, each a frame with its
compression undone: ``{"type", "data"}``, ``more`` where a message goes on in the next one, of a close ``code`` and ``reason``. Bytes that
are no such frames are kept as they came, ``{"type": "raw"}``.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import orjson

from .._runtime.session import Outcome
from .http import Answer, Exchange
from .http1 import Arrivals, Incoming, Rendering

__all__ = ["Conversation", "ReplayedConversation"]

Frame = dict[str, Any]

_KINDS: Final = {0: "continuation", 1: "text", 2: "binary", 8: "close", 9: "ping", 10: "pong"}
_CODES: Final = {kind: code for code, kind in _KINDS.items()}
_DATA: Final = (0, 1, 2)
#: What a compressed message ends with and is sent without.
_TAIL: Final = b"\x00\x00\xff\xff"


class _Inflater:
    """Undoes the compression of messages (RFC 7692); ``keeps``: each begins where the one before ended."""

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
        #: Whether what comes is no frames any more.
        self._raw = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete with ``data``."""
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
    """A frame as a server sends it, uncompressed."""
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


# -- while it is recorded ----------------------------------------------------------------------------------------------------


class Conversation(Incoming):
    """A websocket that is recorded: its handshake, or the answer that it has instead of one, and then the frames of both directions."""

    __slots__ = ("_inward", "_message", "_outward", "_parts")

    upgrades = True

    def __init__(self, exchange: Exchange, *, brought: bool, parts: bool = False) -> None:
        """``parts``: the library goes by when something comes, if only a part of a frame."""
        self._parts: Final = parts
        super().__init__(exchange, "WEBSOCKET", "", quiet=False, brought=brought)
        self._inward: _Frames | None = None
        self._outward = _Frames(True, None)
        #: The message whose frames are being received.
        self._message = ""

    @property
    def open(self) -> bool:
        """Whether the handshake was a success."""
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
        """The handshake is over: the frames that come now. What it agreed on for compression is not recorded."""
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
        """Something is about to be sent."""
        if self._inward is None or self.complete:  # the request itself
            return
        for frame in self._outward.feed(data):
            self._exchange.step.chunk({"sent": frame})

    def half_closed(self) -> None:
        """The peer sends nothing any more."""
        if not self.complete and self._inward is not None:
            self._exchange.mark("eof", suspended=self._brought)

    def closed(self) -> None:
        if self.complete or self._inward is None:
            super().closed()
            return
        self.complete = True
        self._exchange.end(suspended=self._brought)


# -- in a replay -------------------------------------------------------------------------------------------------------------


class ReplayedConversation(Arrivals):
    """A recorded websocket: what is sent is compared, what came comes where it came. ``ended``: the other side sends nothing any more."""

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
        #: What has been sent of the request, until it is whole.
        self._opening: bytes | None = b""
        self._accept = ""
        self._outward: Final = _Frames(True, None)
        #: The frames that the program has sent beyond those that it is known to have sent by now.
        self._made: list[Frame] = []
        #: The payloads of pings, which are another chance each time, by the recorded ones.
        self._pings: Final[dict[Any, Any]] = {}
        self.open = False
        self._asks = True
        #: Whether something is waited for that comes.
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

    # -- for who reads from a socket -------------------------------------------------------------------------------------

    def say(self, data: bytes) -> None:
        """As ``sent``; what comes is asked for by ``next``."""
        self._asks = False
        self.sent(data)

    def comes(self) -> bool | None:
        """Whether something is still to come: ``None`` where the program has to say something before that. Ask for it then."""
        self._asks = False
        entry = self._exchange.step.upcoming()
        if entry is None or (entry.get("meta") or {}).get("abandoned"):
            return False
        if self._sends_next():
            return None
        self._waits = True
        return True

    def next(self) -> tuple[bytes, tuple[str, BaseException | None] | None]:
        """What comes next, when its turn has come, and how the connection ended, where it did."""
        step = self._exchange.step
        return self._taken(step.next_chunk() or step.answer())

    def delivered(self, end: object) -> None:
        """The next recorded message has been delivered: what is sent from now on is compared with what follows."""
        self._waits = False
        self._over = self._over or end is not None
        self._compare()

    def ask(self) -> None:
        if self._asks:
            super().ask()

    def _sends_next(self) -> bool:
        return not self._waits and super()._sends_next()

    # -- both ------------------------------------------------------------------------------------------------------------

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
    """What the other side answers to the key of a request."""
    key = b""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"sec-websocket-key":
            key = value.strip()
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


def _shown(frame: Frame | None) -> bytes:
    return b"" if frame is None else orjson.dumps(frame, default=repr)
