"""HTTP exchanges as steps: what all transports share, whatever their library.

A transport passes plain bytes: method, URL, headers, body. ``begin`` opens the step. A live exchange reports what was
received; one answered by the log returns ``Answer`` objects, from which the transport builds the library's own
response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from sys import _getframe
from types import CodeType
from typing import Any, Final, ParamSpec
from urllib.parse import parse_qsl, unquote

import orjson

from .._native import FORM, collected, picked, read_json, shallow, spaced
from .._reality import monotonic_ns
from .._runtime.bodies import Bodies, Continuation
from .._runtime.process import process
from .._runtime.redaction import StreamRedactor
from .._runtime.secrets import names_secret
from .._runtime.session import Outcome, Scope, Step, below, below_seam, current
from .._runtime.step import Circumstances, Request, Spec
from .._values import quick, to_json
from .._values.decoding import from_json
from ..errors import (
    DivergenceError,
    LiveCallBlockedError,
    NotReplayableError,
    ReplayError,
    RunStateError,
    TraceExhaustedError,
)
from .callers import called_back, telemetry
from .guard import Attempt, everywhere, observe
from .inputs import is_own_variable
from .plugins import Claim, Dialect, Route, base_url, note_captured, resolve, shown

__all__ = [
    "AMBIENT",
    "NOT_JSON",
    "PASSING",
    "Answer",
    "Exchange",
    "Facts",
    "Headers",
    "Piece",
    "SentBody",
    "begin",
    "body_not_kept",
    "body_of",
    "connection_failed",
    "decode",
    "encode",
    "message",
    "multipart",
    "outside",
    "pairs",
    "parsed",
    "passes_untouched",
    "raw_headers",
    "refuse",
    "request_body",
    "unconnected",
    "upload_of",
    "whole",
    "withheld",
]

# -- bodies ------------------------------------------------------------------------------------------------------------
#
# Bodies of HTTP messages: converts the bytes on the wire to a readable value that gives the same bytes back. A JSON
# body is kept as JSON if one of a few ways of writing JSON reproduces it byte for byte; the *format* says which.
# Anything else is kept as text if it is UTF-8, else as bytes. Nothing is ever normalised.

#: Returned by ``parsed`` for a body that is not JSON (``None`` is a JSON value).
NOT_JSON: Final = object()
_NOTHING: Final[Mapping[str, Any]] = {}


def _python(**style: Any) -> Callable[[Any], bytes]:
    made: list[Callable[[Any], str]] = []

    def write(value: Any) -> bytes:
        if not made:
            import json

            made.append(json.JSONEncoder(**style).encode)
        return made[0](value).encode()

    return write


#: How JSON is written, by the name of the format. The first is used by both SDKs and most servers.
_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "json": orjson.dumps,
    "json:indent": lambda value: orjson.dumps(value, option=orjson.OPT_INDENT_2),
    "json:spaced": _python(ensure_ascii=False),
    "json:ascii": _python(separators=(",", ":")),
    "json:spaced-ascii": _python(),
    "json:indent-ascii": _python(indent=2),
}
#: Those that write several lines, except for an empty value.
_INDENTED: Final = frozenset(("json:indent", "json:indent-ascii"))
_NEWLINE: Final = "+newline"


def parsed(content: bytes) -> Any:
    """Return the JSON value of ``content``, or ``NOT_JSON``."""
    return _parsed(content)[0]


def _parsed(content: bytes) -> tuple[Any, bytes | None]:
    """Like ``parsed``, and also return ``content`` if that is certain to be the JSON of the value as logged."""
    return read_json(content, NOT_JSON, _LEVELS, _MAX_UNCHECKED)


#: A longer body is checked value by value.
_MAX_UNCHECKED: Final = 1 << 20
#: A body with deeper nesting is kept as text: as a value it might not be serialisable.
_LEVELS: Final = 150


def _is_plain(data: bytes, value: Any) -> bool:
    """Return whether ``data``, which orjson wrote from ``value``, is also how the log writes that value, which is shallow.

    It is, if no key can be taken for a tag (it begins with a dollar sign).
    """
    return (b'"$' not in data and len(data) < _MAX_UNCHECKED) or to_json(value) is value


def _is_plain_part(data: bytes, value: Any) -> bool:
    """Like ``_is_plain``, for a part of a body: the body with fewer elements in a list, or those elements."""
    whole = [value] if type(value) is list else value
    return shallow(whole, _LEVELS) and _is_plain(data, whole)


def encode(
    content: bytes, value: Any = NOT_JSON, data: bytes | None = None, *, text: bool = True
) -> tuple[Any, str, bytes | None]:
    """Return a value for the log and its format, from which ``decode`` restores ``content``; and the JSON of the value
    as logged, if available.

    ``value`` and ``data`` are the result of ``_parsed``, if known. ``text=False`` keeps content that is not JSON as bytes.
    """
    if data is not None:
        return value, "json", data
    if value is not NOT_JSON and shallow(value, _LEVELS):
        data = orjson.dumps(value)
        format = "json" if data == content else _format(content, value, data)
        if format is not None:
            return value, format, data if _is_plain(data, value) else None
    if text:
        try:
            return content.decode(), "text", None
        except UnicodeDecodeError:
            pass
    return content, "bytes", None


def _format(content: bytes, value: Any, data: bytes) -> str | None:
    """Return the format that reproduces ``content`` from ``value``; ``data``, orjson's own output, differs from it."""
    end = ""
    if content.endswith(b"\n"):
        content, end = content[:-1], _NEWLINE
    one_line = b"\n" not in content
    if (
        one_line and FORM == "C" and content != data and spaced(content, data)
    ):  # in C this is determined without writing the value again
        return "json:spaced" + end
    for format, write in _WRITERS.items():
        if one_line and format in _INDENTED:
            continue
        try:
            if (data if write is orjson.dumps else write(value)) == content:
                return format + end
        except (TypeError, ValueError):  # json.dumps and orjson refuse different values
            continue
    return None


def decode(value: Any, format: str) -> bytes:
    """Return the bytes that were passed to ``encode``.

    If redaction replaced the value by a string, the result is that string as JSON.
    """
    if format == "bytes" or format == "text":
        return value.encode() if isinstance(value, str) else bytes(value)
    end = b""
    if format.endswith(_NEWLINE):
        format, end = format[: -len(_NEWLINE)], b"\n"
    return _WRITERS[format](value) + end


def multipart(content: bytes, content_type: str) -> list[dict[str, Any]] | None:
    """Return the parts of a multipart body, without its boundary (which varies); ``None`` if it is not one.

    Each part is ``{"name", "filename", "type", "body"}``, without absent fields; ``body`` is text if it is UTF-8, else
    bytes.
    """
    boundary = _boundary(content_type)
    if not boundary:
        return None
    pieces = (b"\r\n" + content).split(b"\r\n--" + boundary)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        return None
    return [_part(piece) for piece in pieces[1:-1]]


def _boundary(content_type: str) -> bytes:
    for item in content_type.split(";")[1:]:
        key, _, value = item.strip().partition("=")
        if key.lower() == "boundary":
            return value.strip('"').encode()
    return b""


def _part(piece: bytes) -> dict[str, Any]:
    head, _, body = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    part: dict[str, Any] = {}
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-disposition":
            for item in value.split(";")[1:]:
                key, _, quoted = item.strip().partition("=")
                if key in ("name", "filename"):
                    part[key] = quoted.strip('"')
        elif name.lower() == "content-type":
            part["type"] = value.strip()
    part["body"] = encode(body)[0]
    return part


# -- messages ----------------------------------------------------------------------------------------------------------
#
# HTTP messages in the form of the log: status, the headers that describe the body, and the body: ``{"status",
# "headers", "body", "format"}``. Header names are lower-case; a repeated header is a list. Bodies are stored with their
# content coding decoded.

#: Header names and values as sent.
Headers = Sequence[tuple[bytes, bytes]]

#: Response headers about how the body was transferred, not what it is; they are not stored, nor given back.
_TRAVEL: Final = frozenset({"content-encoding", "transfer-encoding", "connection", "keep-alive"})
#: How many header names are cached.
_NAMES: Final = 10_000


class _Names(dict[bytes, str]):
    """Header names that matter, by their raw spelling; ``found`` returns the name to use for a lower-case name, empty
    if it does not matter.

    A cache; depends on the bytes alone.
    """

    def __init__(self, found: Callable[[str], str]) -> None:
        super().__init__()
        self._found: Final = found

    def __missing__(self, raw: bytes) -> str:
        name = self._found(raw.decode("latin-1").lower())
        if len(self) < _NAMES:
            self[raw] = name
        return name


def _kept(name: str) -> str:
    """Return a response header's name, unless it only concerns the transfer of the body, or may carry a credential."""
    if name == "content-encoding":
        return name
    return "" if name in _TRAVEL or names_secret(name) else name


_KEPT: Final = _Names(_kept)


def message(status: int | None, headers: Headers, content: bytes | None) -> dict[str, Any]:
    """Return a message in the form of the log, without credentials: a request if ``status`` is ``None``.

    Without its body if ``content`` is ``None``. :meth:`Answer.of_message` reads it.
    """
    found = whole(status or 0, headers, content or b"", NOT_JSON, None, {})[0]
    if status is None:
        del found["status"]
    if content is None:
        del found["format"], found["body"]
    return found


def raw_headers(headers: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]) -> Headers:
    """Return headers that a library keeps as text in the form in which they are sent."""
    items = headers.items() if isinstance(headers, Mapping) else headers
    return [(_sent(name), _sent(value)) for name, value in items]


def _sent(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


def body_not_kept() -> NotReplayableError:
    """Return the error of reading a body that the trace does not contain."""
    return NotReplayableError(
        "The body of a recorded HTTP message is not in the trace.",
        reason="body",
        next_action="Read it in the tool, and raise or return what it says.",
    )


def whole(
    status: int, headers: Headers, content: bytes, value: Any, data: bytes | None, also: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes | None]:
    """Like ``message``, with ``also`` added; and also return its JSON as logged, if available.

    ``value`` and ``data`` are the result of ``_parsed``.
    """
    kept, content_type = response_headers(headers)
    if data is not None:  # the common case
        body, format = value, "json"
    else:
        body, format, data = encode(content, value, text=textual(content_type))
    output = {"status": status, "headers": kept, "body": body, "format": format, **also}
    if data is None:
        return output, None
    shown, more = quick(kept), quick(also) if also else b"}"
    if shown is None or more is None:
        return output, None
    end = b"," + more[1:] if also else more
    return output, b'{"status":%d,"headers":%b,"body":%b,"format":"%b"%b' % (
        status, shown, data, format.encode(), end,
    )  # fmt: skip


def body_of(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of the body of a recorded message; empty if it has none."""
    return decode(message["body"], message["format"]) if "format" in message else b""


def answer_problem(output: Any) -> str | None:
    """Return why a value is not a response in the form of the log; ``None`` if it is one."""
    if not isinstance(output, Mapping):
        return "it is not an object"
    status, headers, format = output.get("status"), output.get("headers", {}), output.get("format")
    if type(status) is not int or not 100 <= status <= 599:
        return "it has no 'status', a number like 200"
    if not isinstance(headers, Mapping) or "$t" in headers:
        return "its 'headers' are not an object"
    for name, value in headers.items():
        values = value if isinstance(value, list) else [value]
        if name != name.lower() or not all(isinstance(one, str) for one in values):
            return f"its header {name!r} is not a name in lower case with a text, or a list of them"
    if "body" not in output or not isinstance(format, str):
        return "it has no 'body' with its 'format', which is \"json\" or \"text\""
    try:
        body = from_json(output["body"])
        decode(body, format)
        if format not in ("text", "bytes") or isinstance(body, str | bytes):
            return None
    except (KeyError, TypeError, ValueError):
        pass
    return f"its 'body' can't be written in the 'format' {format!r}"


def response_headers(headers: Headers) -> tuple[dict[str, Any], str]:
    """Return the headers to store (lower-case; a repeated one as a list), and the content type."""
    kept: dict[str, Any] = collected(headers, _KEPT)
    if "location" in kept:
        places = kept["location"]
        kept["location"] = shown(places) if isinstance(places, str) else [*map(shown, places)]
    if "content-encoding" in kept:
        del kept["content-encoding"]
        kept.pop("content-length", None)
    content_type = kept.get("content-type", "")
    return kept, content_type if isinstance(content_type, str) else content_type[0]


def pairs(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return recorded headers as pairs."""
    found: list[tuple[str, str]] = []
    for name, value in headers.items():
        if type(value) is str:
            found.append((name, value))
        else:
            values: Iterable[str] = value if isinstance(value, list) else (value,)
            found.extend((name, item) for item in values)
    return found


@lru_cache(_NAMES)
def textual(content_type: str) -> bool:
    """Return whether a body of this type is stored as text if possible."""
    kind = content_type.partition(";")[0].strip().lower()
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("json", "xml", "jsonl", "ndjson"))
        or kind == "application/x-www-form-urlencoded"
    )


# -- recorded answers --------------------------------------------------------------------------------------------------
#
# A recorded response split into its parts, from which a seam builds its library's response, so that the SDK's own code
# parses it.


class Answer:
    """A recorded response, or the head of one, split into its parts, from which a seam builds its library's response.

    ``content`` is ``None`` for the head of a stream; ``read`` says whether a body was recorded. ``error`` is the error
    to raise, ``raised`` its name among the library's own. ``wire`` is what the seam recorded about the transfer.
    ``complete`` is false for a stream that was cut off.
    """

    __slots__ = (
        "complete", "content", "elapsed", "error", "headers", "http_version", "raised", "read", "reason", "status",
        "text", "wire",
    )  # fmt: skip

    def __init__(self, outcome: Outcome) -> None:
        output: Mapping[str, Any] = outcome.output if isinstance(outcome.output, dict) else {}
        self.error = outcome.error
        self.raised: str | None = output.get("raised")
        self.text: str = output.get("text", "")
        recorded = output.get("head", output)
        self.status: int = recorded.get("status", 200)
        self.headers = pairs(recorded.get("headers", {}))
        self.http_version: str = recorded.get("http_version", "HTTP/1.1")
        self.reason: str | None = recorded.get("reason")
        self.wire: Mapping[str, Any] = recorded.get("wire", {})
        self.complete: bool = output.get("complete", True)
        self.elapsed: float = outcome.meta.get("elapsed", 0.0)
        self.read = "format" in recorded
        self.content = None if "head" in output else body_of(recorded)

    @classmethod
    def of_message(cls, recorded: Mapping[str, Any]) -> Answer:
        """Read what :func:`message` returned."""
        return cls(Outcome({**recorded}, None, {}, {}))


def piece_of(chunk: Outcome) -> bytes:
    """Return the bytes of a recorded piece of a stream."""
    return chunk.output.encode() if isinstance(chunk.output, str) else bytes(chunk.output)


class Piece:
    """A recorded piece of a body.

    ``part``: how much of the sender's own piece is still to come. ``size``: its number of bytes before content
    decoding, ``None`` if none was needed. ``coded``: those bytes, ``None`` if the log lacks them.
    """

    __slots__ = ("coded", "data", "part", "redacted", "size")

    def __init__(self, chunk: Outcome) -> None:
        meta = chunk.meta
        coded = meta.get("coded")
        self.data: Final = piece_of(chunk)
        self.part: Final[int] = meta.get("part", 0)
        self.coded: Final[bytes | None] = None if coded is None else from_json(coded)
        self.size: Final[int | None] = meta.get("size") if self.coded is None else len(self.coded)
        self.redacted: Final = bool(meta.get("redacted"))


# -- exchanges ---------------------------------------------------------------------------------------------------------
#
# An HTTP request and its response, as an open step. A live exchange records what is received (``Exchange.whole``, or
# ``Exchange.head``, ``Exchange.piece``, ``Exchange.end``); one answered by the log returns ``Answer`` objects.

_SUSPENDED: Final = {"suspended": True}

_P = ParamSpec("_P")


def refuse(scope: Scope, what: str) -> None:
    """Refuse a kind of connection that is not captured: a recording notes it and lets it pass, a replay fails."""
    if scope.session.recording:
        observe(Attempt("connect", "upgrade", what))
        return
    raise scope.session.fail(
        LiveCallBlockedError(
            f"{what} was opened during a replay",
            run_id=scope.session.run_id,
            operation=what,
            next_action="use the HTTP interface of the same service, or its websocket by `websockets` or `aiohttp`",
        )
    )


class Exchange:
    """A request and its response, as an open step."""

    # No __slots__: from 3.13 on Python makes objects without them faster, and most values are the class's defaults.

    _kept: list[bytes] | None = None
    #: Whether the response is a websocket, whose messages its dialect reads.
    _events = False
    _headers: Mapping[str, Any] = {}
    _text = True
    _reported = False
    #: Seconds from the request to the end of its response, once known.
    elapsed = 0.0
    #: While true, requests made from inside are part of this one.
    open = True
    #: The method, host and path of the request.
    target: tuple[str, bytes, bytes] | None = None
    #: The code that calls the library.
    entered_by: CodeType | None = None
    #: The body to send instead of the program's, if it differs.
    sends: bytes | None = None
    #: The number of encoded bytes of the last piece from the log; ``None`` if no content decoding was needed.
    size: int | None = None
    #: The body being sent piece by piece.
    _sent: SentBody | None = None

    def __init__(self, step: Step, scope: Scope, dialect: Dialect | None) -> None:
        self.step = step
        self._scope: Final = scope
        self._dialect: Final = dialect
        self._started = monotonic_ns()
        #: The scope of the live call.
        self.body = step.body() if step.live else scope

    def go(self) -> bool:
        """Return whether the call has to be made. In a resumed run, wait first until the log has been followed to its
        end."""
        if self.step.deferred:
            self._go(self.step.go())
        return self.step.live

    async def go_async(self) -> bool:
        if self.step.deferred:
            self._go(await self.step.go_async())
        return self.step.live

    def _go(self, step: Step) -> None:
        self.step = step
        self.body = step.body() if step.live else self._scope
        self._started = monotonic_ns()

    # -- live ----------------------------------------------------------------------------------------------------------

    def whole(
        self,
        status: int,
        headers: Headers,
        content: bytes,
        *,
        also: Mapping[str, Any] = _NOTHING,
        elapsed: float | None = None,
        suspended: bool = False,
        early: str | None = None,
        coded: bytes | None = None,
    ) -> None:
        """Record a response whose body has been read: ``content`` after content decoding, ``elapsed`` in seconds
        (``None``: as measured).

        ``also``: whatever else the response is made of. ``suspended``: whether the event loop ran meanwhile. ``early``: how
        sending the request ended prematurely, for ``early`` in a replay. ``coded``: the body as transferred.
        """
        value, data = _parsed(content)
        if coded is not None:
            also = {**also, "wire": {**also.get("wire", {}), **self._coded(content, value, coded)}}
        output, data = whole(status, headers, content, value, data, also)
        info: dict[str, Any] = {"elapsed": self._lasted() if elapsed is None else elapsed}
        if early is not None:
            info["early"] = early
        if suspended:
            info["suspended"] = True
        if self._dialect is not None and status < 400:
            if value is not NOT_JSON:
                info.update(_safely(self._dialect.response, value, output["headers"]))
            elif content:  # a stream that the caller read as a whole
                info.update(_safely(self._dialect.stream, [content]))
        self._reported = True
        self.step.done(output, info=info, data=data)

    def sent(self, data: bytes) -> None:
        """A piece of a body that is sent as it is produced: record it, or compare it with the recorded body."""
        body = self._sent
        if body is None:
            body = self._sent = SentBody(self)
        if self.step.live:
            self.step.chunk({"sent": body.stored(data)})
            return
        body.sent(data)
        while body.wants and self._sends_next():
            body.recorded(upload_of(self.step.take_next()) or b"")
        body.compare(sent_all=False, recorded_all=not self._sends_next())

    def draws(self) -> bool:
        """Return whether the recorded program continued here to produce the body that it sent: a piece, its end, or an
        exception."""
        return (self._sent is not None and self._sent.behind) or self._sends_next() or self.early() in (None, "raised")

    def _sends_next(self) -> bool:
        """Return whether the recorded program sent something before anything was received."""
        if not self.step.comes_in_pieces():
            return False
        output = (self.step.upcoming() or {}).get("output")
        return isinstance(output, dict) and "sent" in output

    def sends_otherwise(self, recorded: bytes, actual: bytes) -> ReplayError:
        """Return the error to raise if the program sends another body than the recorded one."""
        return self._scope.session.fail(
            DivergenceError(
                f"the program sends another body, piece by piece: the recorded one continues with {_brief(recorded)}, "
                f"this one with {_brief(actual)}",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="check what the body is built from: a file that has changed, or something that is not captured",
            )
        )

    def reads_coded(self) -> ReplayError:
        """Return the error to raise if the program reads the encoded body, while the recorded program had it decoded."""
        return self._scope.session.fail(
            DivergenceError(
                "the program reads the body of an answer as it travelled, with its content coding; the recorded program had the "
                "coding undone, and so it is in the trace",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="read it as the recorded program did, or record it again",
            )
        )

    def not_asked(self, codings: str) -> ReplayError:
        """Return the error to raise if the program does not accept the content coding of the recorded response, and so
        may be unable to decode it."""
        return self._scope.session.fail(
            DivergenceError(
                f"the recorded answer has a content coding ({codings}) that the recorded program accepted; this one does not",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="install what the library decodes it with (`brotli`, `zstandard`), or send the recorded `Accept-Encoding`",
            )
        )

    def coded_again(self) -> None:
        """Report that a replay re-encodes a body of which the log lacks the original bytes."""
        self._scope.session.report.warn(
            f"step {self.step.seq}'s answer was compressed, and a secret was taken out of it: it is compressed again, to other bytes"
        )

    @property
    def has_dialect(self) -> bool:
        """Whether a dialect reads the response."""
        return self._dialect is not None

    @property
    def scope(self) -> Scope:
        """The scope in which it was begun."""
        return self._scope

    def redaction(self) -> StreamRedactor:
        """Return what redacts a text that passes piece by piece."""
        return self._scope.session.redactor.stream()

    def _all_sent(self) -> None:
        """Note that nothing more is sent: what comes next was received."""
        body = self._sent
        while self._sends_next():
            if body is None:
                body = self._sent = SentBody(self)
            body.recorded(upload_of(self.step.take_next()) or b"")
        if body is not None and self.early() is None:
            body.compare(sent_all=True, recorded_all=True)

    def early(self) -> str | None:
        """Return how sending the recorded request ended prematurely; known before its response."""
        return self.step.ahead("early")

    def received_with(self) -> str | None:
        """Return what the next piece of a recorded stream, or its end, was received together with; known before its
        turn."""
        return self.step.ahead("with")

    def draw(self) -> tuple[Any, Any]:
        """Prepare for the program's own code to produce a piece of the body; pass the result to ``drawn``."""
        return current.set(self._scope), below.set(None)

    def drawn(self, tokens: tuple[Any, Any]) -> None:
        current.reset(tokens[0])
        below.reset(tokens[1])

    def head(
        self,
        status: int,
        headers: Headers,
        *,
        also: Mapping[str, Any] = _NOTHING,
        suspended: bool = False,
        early: str | None = None,
    ) -> None:
        """Record status and headers of a response whose body will be read piece by piece."""
        shown, content_type = response_headers(headers)
        self._text = textual(content_type)
        if self._dialect is not None and status < 400:
            self._kept, self._headers, self._events = [], shown, status == 101
        self.step.chunk({"head": {"status": status, "headers": shown, **also}}, info=_circumstances(suspended, early))

    def piece(
        self,
        data: bytes,
        *,
        suspended: bool = False,
        part: int = 0,
        received_with: str | None = None,
        size: int | None = None,
        coded: bytes | None = None,
        plain: bytes | None = None,
    ) -> None:
        """Record one piece of the body, before the caller gets it.

        ``part``: how many bytes of the sender's own piece are still to come. ``received_with``: what it was received
        together with, in the transport's terms, for ``received_with`` in a replay. ``size``: its number of bytes before
        content decoding; ``coded``: those bytes. ``plain``: for a piece that stays encoded, its decoded content.
        """
        if self._kept is not None:
            self._kept.append(data if plain is None else plain)
        value: Any = data
        if self._text and plain is None:
            try:
                value = data.decode()
            except UnicodeDecodeError:
                pass
        if size is None and coded is None and received_with is None and not (suspended or part):  # the common case
            self.step.chunk(value)
            return
        info: Mapping[str, Any] | None = _SUSPENDED if suspended else None
        if part:
            info = {"part": part, **(info or {})}
        if coded is not None:
            info = {"coded": coded, **(info or {})}
        elif size is not None:
            info = {"size": size, **(info or {})}
        if received_with is not None:
            info = {**(info or {}), "with": received_with}
        self.step.chunk(value, info=info)

    def receiver(self, *, suspended: bool = False) -> Callable[[bytes], None]:
        """Return a function that records one piece after another of a response whose head is recorded, as ``piece`` does
        with no more about it than ``suspended``: plain pieces in one call."""
        pieces = self.step.plain_pieces() if self._text else None
        piece = partial(self.piece, suspended=True) if suspended else self.piece
        if pieces is None:
            return piece
        return partial(pieces.receive, self._kept, piece, self.step.after_others if suspended else None)

    def _coded(self, content: bytes, value: Any, coded: bytes) -> dict[str, Any]:
        """Return how a body was transferred whose content coding was decoded: its bytes, or only their number if they
        would reveal a secret."""
        body = content.decode("utf-8", "replace") if value is NOT_JSON else value
        redactor = self._scope.session.redactor
        hides = redactor.without_secrets(body) is not body
        return {"size": len(coded)} if hides else {"size": len(coded), "body": coded}

    def message(self, text: str) -> None:
        """A message received over a websocket; the dialect reads those that report usage."""
        if self._events and self._kept is not None and '"usage"' in text:
            self._kept.append(text.encode("utf-8", "surrogatepass"))

    def mark(self, what: str, *, suspended: bool = False) -> None:
        """Record an event before the response that the program may notice: ``opened`` (the connection), ``continue``
        (the server asks for the body)."""
        self.step.chunk({"moment": what}, info=_SUSPENDED if suspended else None)

    def end(self, *, suspended: bool = False, complete: bool = True, received_with: str | None = None) -> None:
        """Record the end of the stream; not ``complete``: the connection was closed too early."""
        info: dict[str, Any] = {"suspended": True} if suspended else {}
        if received_with is not None:
            info["with"] = received_with
        self._finish({"complete": complete}, info)

    def left(self, *, suspended: bool = False) -> None:
        """Record that the caller left before the end; ``complete`` says whether the stream had delivered everything by
        then. ``suspended``: other tasks ran while the connection was closed."""
        if self._reported:
            return
        kept = self._kept
        said = self._dialect is not None and kept and _safely_true(self._dialect.finished, b"".join(kept[-16:]))
        self._finish(
            {"complete": bool(said)}, {"abandoned": True, "suspended": True} if suspended else {"abandoned": True}
        )

    def unanswered(self) -> None:
        """Record that the caller left before any response: whether the request was carried out is unknown."""
        if self._reported:
            return
        self._reported = True
        error = ConnectionAbortedError("the connection was closed before an answer was read")
        self.step.failed(error, output={"raised": "left", "text": str(error)}, info={"abandoned": True})

    def learn(self, secret: str) -> None:
        """Keep ``secret`` out of everything that is stored from now on."""
        self._scope.session.redactor.learn(secret)

    def hide(self, secret: str) -> str:
        """Keep ``secret`` out of everything that is stored from now on; return its placeholder."""
        self.learn(secret)
        return self._scope.session.redactor.placeholder(secret)

    def cookie(self, value: str) -> str:
        """Return a ``set-cookie`` header without the cookie's value."""
        pair, semicolon, rest = value.partition(";")
        name, equals, secret = pair.partition("=")
        return f"{name}{equals}{self.hide(secret.strip())}{semicolon}{rest}" if secret.strip() else value

    def jar(self, headers: Headers) -> list[str]:
        """Return the cookies that a response sets, without their values; none for a model call, where they don't
        matter."""
        if self._dialect is not None:
            return []
        return [self.cookie(one[-1].decode("latin-1")) for one in headers if one[0].lower() == b"set-cookie"]

    def inside(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return ``call(*args)``, made as part of this request, which continues afterwards."""
        tokens = self.enter()
        try:
            return call(*args)
        finally:
            current.reset(tokens[0])
            below.reset(tokens[1])

    def _finish(self, output: dict[str, Any], info: dict[str, Any]) -> None:
        if self._reported:
            return
        self._reported = True
        info["elapsed"] = self._lasted()
        if self._events and self._dialect is not None:
            info.update(_safely(self._dialect.stream, self._kept or []))
        elif self._kept and self._dialect is not None:
            value = parsed(b"".join(self._kept)) if self._kept[0][:1] == b"{" else NOT_JSON
            if value is NOT_JSON:
                info.update(_safely(self._dialect.stream, self._kept))
            else:  # a response that is not a stream, and arrived in pieces
                info.update(_safely(self._dialect.response, value, self._headers))
        self.step.done(output, info=info)

    def _lasted(self) -> float:
        self.elapsed = (monotonic_ns() - self._started) // 1000 / 1_000_000
        return self.elapsed

    def broke(
        self,
        error: BaseException,
        kind: str | None = None,
        *,
        response: tuple[int, Headers, bytes] | None = None,
        suspended: bool = False,
        early: str | None = None,
    ) -> None:
        """Record that the call or the stream raised ``error``; ``kind`` is its name among the library's exceptions.

        ``response`` is the response attached to the exception, if any; ``early`` as in ``whole``.
        """
        if self._reported or isinstance(error, ReplayError):
            return
        self._reported = True
        output: dict[str, Any] | None = None
        if kind is not None:
            output = {"raised": kind, "text": str(error)}
            if response is not None:
                output.update(message(*response))
        info = _circumstances(suspended, early)
        if self._events and self._dialect is not None:
            info = {**(info or {}), **_safely(self._dialect.stream, self._kept or [])}
        self.step.failed(error, output=output, info=info)

    # -- answered from the log -----------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return Answer(self.step.answer())

    async def answer_async(self) -> Answer:
        return Answer(await self.step.answer_async())

    def first(self) -> Answer:
        """Return the head of a recorded stream; or the complete response, or the error, if there was no stream."""
        self._all_sent()
        chunk = self.step.next_chunk()
        return self.answer() if chunk is None else Answer(chunk)

    async def first_async(self) -> Answer:
        self._all_sent()
        chunk = await self.step.next_chunk_async()
        return await self.answer_async() if chunk is None else Answer(chunk)

    def rest_of_body(self) -> tuple[list[Piece], bool]:
        """Return the remaining pieces of a recorded stream, before their turn, and whether it reaches its end."""
        found = [*self.step.rest()]
        end = found[-1].output if found else None
        complete = isinstance(end, dict) and bool(end.get("complete"))
        return [Piece(item) for item in found if isinstance(item.output, str | bytes)], complete

    def next_piece(self) -> bytes | Answer:
        """Return the next piece of a recorded stream, or how it ended."""
        piece = self.next_of_body()
        return piece.data if isinstance(piece, Piece) else piece

    def next_of_body(self) -> Piece | Answer:
        """The same, with how the piece was transferred."""
        chunk = self.step.next_chunk()
        if chunk is None:
            return self._ended(self.step.answer())
        piece = Piece(chunk)
        self.size = piece.size
        return piece

    async def next_piece_async(self) -> bytes | Answer:
        chunk = await self.step.next_chunk_async()
        if chunk is None:
            return self._ended(await self.step.answer_async())
        piece = Piece(chunk)
        self.size = piece.size
        return piece.data

    async def left_async(self) -> None:
        """In a replay, run what ran while the recorded program closed what it left."""
        entry = self.step.upcoming()
        meta = (entry or {}).get("meta") or {}
        if meta.get("abandoned") and meta.get("suspended"):
            await self.step.answer_async()

    def _ended(self, outcome: Outcome) -> Answer:
        if outcome.abandoned:
            raise TraceExhaustedError(
                "the recorded program left this stream here; the replayed one reads on",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="see which code reads further than when it was recorded, and record it again",
            )
        return Answer(outcome)

    # -- both ----------------------------------------------------------------------------------------------------------

    def enter(self) -> tuple[Any, Any]:
        """Enter the scope of the live call, and mark the code as inside a request; pass the result to ``leave``."""
        self.entered_by = _getframe(1).f_code
        return current.set(self.body), below.set(self)

    def leave(self, tokens: tuple[Any, Any]) -> None:
        self.open = False
        current.reset(tokens[0])
        below.reset(tokens[1])

    def refuse(self, what: str) -> None:
        """Raise an error: this kind of response can't be captured, and was not requested."""
        if not self._scope.session.recording:
            refuse(self._scope, what)
        observe(Attempt("connect", "upgrade", what), status="refused")
        error = RunStateError(
            f"{what} can't be recorded",
            run_id=self._scope.session.run_id,
            next_action="ask for it by the header `Upgrade`, so that it is known before there is an answer",
        )
        self.broke(error)
        raise error


def upload_of(chunk: Outcome | None) -> bytes | None:
    """Return the bytes of a recorded piece of a request's body; ``None`` for anything else."""
    if chunk is None or not isinstance(chunk.output, dict) or "sent" not in chunk.output:
        return None
    data = chunk.output["sent"]
    return data.encode() if isinstance(data, str) else bytes(data)


class SentBody:
    """A body that is sent piece by piece: redacted while it is recorded, and compared with the recorded one in a
    replay.

    The pieces may differ, as long as they form the same body. If a placeholder stands for another value, the end of
    that value is recognised by what follows it; so the comparison waits for both.
    """

    __slots__ = ("_actual", "_ahead", "_exchange", "_placeholders", "_recorded", "_redaction")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange: Final = exchange
        self._redaction: Final = exchange.redaction()
        self._placeholders: Final = exchange.scope.session.redactor.placeholders
        #: What has been sent, and what the recorded program sent, beyond what is known to be equal.
        self._actual = b""
        self._recorded = b""
        #: How many more pieces have been sent than recorded ones taken.
        self._ahead = 0

    def stored(self, data: bytes) -> str | bytes:
        """Return a piece as stored in the log."""
        plain: bytes = self._redaction.feed(data)[0]
        try:
            return plain.decode()
        except UnicodeDecodeError:
            return plain

    def sent(self, data: bytes) -> None:
        if data:
            self._actual += self._redaction.feed(data)[0]
            self._ahead += 1
            self._advance()

    def recorded(self, piece: bytes) -> None:
        self._recorded += piece
        self._ahead -= 1
        self._advance()

    @property
    def behind(self) -> bool:
        """Whether the recorded program had sent more by now."""
        return bool(self._recorded)

    @property
    def wants(self) -> bool:
        """Whether the next recorded piece is needed to compare what has been sent."""
        return bool(self._actual) and (not self._recorded or self._ahead > 0)

    def compare(self, *, sent_all: bool, recorded_all: bool) -> None:
        """Raise if another body is sent; ``…_all`` says that nothing more will be sent, or was recorded."""
        more, missing = bool(self._actual), bool(self._recorded)
        if more and missing:
            differs = (sent_all and recorded_all) or not self._placeholder_first()
        else:
            differs = (more and recorded_all) or (missing and sent_all)
        if differs:
            raise self._exchange.sends_otherwise(self._recorded, self._actual)

    def _places(self) -> list[tuple[int, str]]:
        return self._placeholders.within(self._recorded.decode("latin-1")) if self._placeholders else []

    def _advance(self) -> None:
        """Drop the common beginning of both."""
        one, other = self._recorded, self._actual
        size = min(len(one), len(other))
        if not size:
            return
        if one[:size] != other[:size]:
            low, high = 0, size  # the number of equal bytes
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
            size = low
        for start, text in self._places():
            if start < size < start + len(text):
                size = start  # a placeholder is consumed as a whole
        self._recorded, self._actual = one[size:], other[size:]
        if self._recorded and self._actual and self._placeholder_first() and self._exchange.step.alike(*self._texts()):
            self._recorded = self._actual = b""

    def _placeholder_first(self) -> bool:
        """Return whether the recorded body continues with a placeholder."""
        places = self._places()
        return bool(places) and places[0][0] == 0

    def _texts(self) -> tuple[str, str]:
        try:
            return self._recorded.decode(), self._actual.decode()
        except UnicodeDecodeError:
            return self._recorded.decode("latin-1"), self._actual.decode("latin-1")


def _circumstances(suspended: bool, early: str | None) -> dict[str, Any] | None:
    info: dict[str, Any] = dict(_SUSPENDED) if suspended else {}
    if early is not None:
        info["early"] = early
    return info or None


def _brief(data: bytes) -> str:
    return repr(data[:200]) + (f" … ({len(data)} bytes)" if len(data) > 200 else "")


def _safely(read: Callable[_P, Mapping[str, Any]], *args: _P.args, **kwargs: _P.kwargs) -> Mapping[str, Any]:
    """Call a dialect while recording: a response that it does not understand must not break the program."""
    try:
        return read(*args, **kwargs)
    except Exception:
        return {}


def _safely_true(ask: Callable[_P, bool], *args: _P.args, **kwargs: _P.kwargs) -> bool:
    try:
        return ask(*args, **kwargs)
    except Exception:
        return False


# -- requests ----------------------------------------------------------------------------------------------------------
#
# The parts of a request that matter to its step: a few of its headers, and its body as a value.

#: Request headers that are examined, and those that change what a model does.
_VARYING: Final = frozenset(
    {"user-agent", "content-type", "x-stainless-retry-count", "amz-sdk-request", "upgrade"}
    | {"anthropic-beta", "anthropic-version", "openai-beta"}
)


def _looked_at(name: str) -> str:
    """Return a request header's name, if it matters."""
    return name if name in _VARYING or names_secret(name) not in ("", "cookie", "key") else ""


_LOOKED_AT: Final = _Names(_looked_at)


class Facts:
    """The relevant contents of a request's headers, from one pass over them.

    ``attempt`` counts from 1; ``varying`` has the headers that change what a model does, ``None`` if there are none.
    ``credentials`` are the values of credential headers.
    """

    __slots__ = ("agent", "attempt", "content_type", "credentials", "upgrade", "varying")

    def __init__(self, headers: Sequence[tuple[str, bytes]]) -> None:
        """``headers`` are those that matter."""
        self.agent = b""
        self.attempt = 1
        self.content_type = b""
        #: The protocol to which the connection is to be upgraded, unless that is another version of HTTP.
        self.upgrade = ""
        self.varying: dict[str, str] | None = None
        self.credentials: list[str] = []
        for name, value in headers:
            if name == "user-agent":
                self.agent = value
            elif name == "content-type":
                self.content_type = value
            elif name == "x-stainless-retry-count":
                self.attempt = int(value) + 1 if value.isdigit() else 1
            elif name == "amz-sdk-request":
                self.attempt = _sdk_attempt(value)
            elif name == "upgrade":
                protocol = value.decode("latin-1").lower()
                self.upgrade = "" if protocol.startswith(("h2", "http")) else protocol
            elif name in _VARYING:
                self.varying = {**(self.varying or {}), name: value.decode("latin-1")}
            else:
                self.credentials.append(value.decode("latin-1"))


#: How many requests' headers are cached.
_FACTS: Final = 64
#: A cache by the headers that matter; emptied when it is full.
_facts: Final[dict[tuple[tuple[str, bytes], ...], Facts]] = {}


def _facts_of(headers: Headers) -> Facts:
    """Return the facts of a request; clients send the same headers each time."""
    given = tuple(picked(headers, _LOOKED_AT))
    found = _facts.get(given)
    if found is None:
        if len(_facts) >= _FACTS:
            _facts.clear()
        found = _facts[given] = Facts(given)
    return found


def _sdk_attempt(value: bytes) -> int:
    """Return the number in ``attempt=2; max=5``."""
    _, found, rest = value.partition(b"attempt=")
    number = rest.partition(b";")[0].strip()
    return int(number) if found and number.isdigit() else 1


def request_body(content: bytes, value: Any, data: bytes | None, content_type: bytes) -> tuple[Any, str, bytes | None]:
    """Return a request body in the form of the log, as ``encode`` does; ``value`` and ``data`` are the result of ``_parsed``."""
    if not content:
        return None, "none", None
    if content_type.startswith(b"multipart/"):
        parts = multipart(content, content_type.decode("latin-1"))
        if parts is not None:
            return parts, "multipart", None
    return encode(content, value, data)


# -- the step of a request ---------------------------------------------------------------------------------------------
#
# Whether a request is a step, of which spec, and what is logged about its circumstances.
#
# The output of an outcome is ``{"status", "headers", "body", "format"}`` and, if relevant, ``http_version``,
# ``reason``. For a stream, the first chunk is ``{"head": {"status", "headers", …}}``, each further one a piece as text
# or bytes, and the outcome ``{"complete": true}``. Bodies are stored with their content coding decoded.

#: Returned by ``begin`` and ``outside`` for traffic that is not the program's: answer it with nothing, or send it
#: inside ``passing()``.
AMBIENT: Final = "ambient"
PASSING: Final = "passing"

#: How many specs are cached.
_SPECS: Final = 1024

#: A cache of specs by the request's properties; emptied when it is full.
_specs: dict[tuple[Any, ...], tuple[Spec, Circumstances | None, bytes]] = {}


def passes_untouched(scope: Scope | None) -> bool:
    """Return whether a request passes untouched: it is part of another request, or no run (and no whole-process replay)
    is active and nobody needs to know its effect. Requests by the program's own code inside another one (a transport of
    its own) are not part of it."""
    if scope is None and not process.sessions and process.outside is None and not process.effects.open:
        return not everywhere() or below_seam()
    seam = below.get()
    if seam is None or not seam.open:
        return False
    return seam.entered_by is None or not called_back(2, seam.entered_by)


def withheld(scope: Scope | None) -> bool:
    """Return whether connections must not be opened before their purpose is known: in a replay the log answers most
    requests."""
    return everywhere() if scope is None else not scope.session.recording


def unconnected(scope: Scope, scheme: bytes, netloc: bytes, error: BaseException, kind: str, text: str) -> None:
    """Record that a connection failed, before there was a request: only the failure makes it a step."""
    request = _connection(scheme, netloc)
    if request is not None:
        scope.session.begin(scope, request).failed(error, output={"raised": kind, "text": text})


def connection_failed(scope: Scope, scheme: bytes, netloc: bytes) -> Answer | None:
    """Return the recorded failure of the connection about to be opened, if it failed."""
    request = _connection(scheme, netloc)
    if request is None or not scope.session.comes_next(scope, "http", request.spec.name):
        return None
    step = scope.session.begin(scope, request)
    if step.deferred:
        step = step.go()
    if step.live:  # the recorded process died there: whether there is a connection will show when it is used
        step.done(None)
        return None
    answer = Answer(step.answer())
    return None if answer.error is None else answer


def _connection(scheme: bytes, netloc: bytes) -> Request | None:
    route = resolve("CONNECT", scheme, netloc, b"", b"")
    if _is_ambient(route):
        return None
    key = ("connection", route.name)
    spec = (_specs.get(key) or _remember(key, (Spec("http", route.name, side_effect="read_only"), None, b"")))[0]
    return Request(spec, {"method": "CONNECT", "url": route.url})


def begin(
    scope: Scope,
    method: str,
    scheme: bytes,
    netloc: bytes,
    raw_path: bytes,
    headers: Headers,
    content: bytes,
    *,
    streamed: bool = False,
    websocket: bool = False,
    within: Callable[[], bool] = lambda: False,
    rewrites: bool = False,
) -> Exchange | str | None:
    """Open the step of a request; ``streamed``: its body is sent as it is produced, and reported to ``Exchange.sent``.

    ``websocket``: it requests a websocket, and the seam records its traffic; ``method`` is then ``"WEBSOCKET"``. If the
    seam does not record it, ``within`` returns whether code of this process answers: the program is on both sides.
    ``rewrites``: the seam uses ``Exchange.sends``, and so can send another body than the program's.

    Returns the exchange; ``PASSING`` if the request has to be sent without a step; ``AMBIENT`` if it has to be answered
    with nothing; ``None`` if the library has to be called as it is: code of this process answers, or the request only
    forwards one in progress.
    """
    target = method, netloc, raw_path
    seam = below.get()
    if seam is not None and seam.open and seam.target == target:
        return None  # a transport of the program forwards it through another library
    about = _facts_of(headers)
    for credential in about.credentials:
        scope.session.redactor.learn(credential)
    if (about.upgrade or scheme in (b"ws", b"wss")) and not websocket:
        if within():
            return None
        what = "a websocket" if about.upgrade in ("", "websocket") else f"an upgraded connection ({about.upgrade})"
        refuse(scope, f"{what} to {netloc.decode('ascii', 'replace')}")
        return PASSING
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    dialects = () if streamed else route.dialects
    if not dialects and _is_ambient(route, scope):
        return _ambient(route) if scope.session.recording else AMBIENT
    bodies = scope.session.state.extras.of(Bodies) if dialects else None
    data: bytes | None
    continued = None if bodies is None else bodies.continued(content, _is_plain_part)
    if continued is not None:
        value = body = continued.value
        format, data = "json", content
    else:
        value, data = _parsed(content)
        if streamed:
            body, format, data = {"streamed": True}, "stream", None
        elif data is not None:  # the common case
            body, format = value, "json"
        else:
            body, format, data = request_body(content, value, None, about.content_type)
    asked = _parameters(route) if websocket else body if value is NOT_JSON else value
    for dialect in dialects:
        claim = _claim(dialect, route.path, asked)
        if claim is not None:
            note_captured(scope.session.state, route, dialect)
            sends = None
            model = scope.session.model(claim.model)
            if rewrites and model != claim.model:
                other = _of_another_model(dialect, route.path, value, claim.model, model, headers)
                if other is not None:
                    claim, sends = other
                    body, format, data = request_body(sends, *_parsed(sends), about.content_type)
                    continued = None
            if bodies is not None and continued is None and sends is None and data is not None and format == "json":
                bodies.remember(content, value)
            exchange = _model_call(scope, method, route, dialect, claim, about, body, format, data, continued)
            exchange.sends, exchange.target = sends, target
            return exchange
    if dialects and _is_ambient(route):  # no dialect claims it
        return _ambient(route) if scope.session.recording else AMBIENT
    note_captured(scope.session.state, route)
    exchange = _plain_call(scope, method, route, about, body, format, data)
    exchange.target = target
    return exchange


#: Headers derived from the body: with another body, the request would be refused.
_OF_THE_BODY: Final = frozenset(
    (b"content-md5", b"content-digest", b"digest", b"signature", b"x-amz-content-sha256", b"x-amz-date")
)


def _of_another_model(
    dialect: Dialect, path: str, value: Any, asked: str, model: str, headers: Headers
) -> tuple[Claim, bytes] | None:
    """Return the request rewritten for another model, if only its body names the model and no header depends on the
    body; else ``None``."""
    if not isinstance(value, dict) or value.get("model") != asked or names_model(path, asked):
        return None
    if any(header[0].lower() in _OF_THE_BODY for header in headers):
        return None
    value = {**value, "model": model}
    claim = _claim(dialect, path, value)
    return None if claim is None else (claim, orjson.dumps(value))


def names_model(path: str, model: str) -> bool:
    """Return whether a URL's path names the requested model, or a deployment of one."""
    from .wire import deployment

    path = unquote(path)
    return deployment(path) is not None or path.endswith(f"/{model}") or f"/{model}/" in path or f"/{model}:" in path


def _is_ambient(route: Route, scope: Scope | None = None) -> bool:
    """Return whether a request is telemetry (unless it is a model call): by its endpoint, or by the code that sends it.

    That a variable names its endpoint is an input of the run: a replay answers what the recording has answered.
    """
    if route.ambient is True or telemetry() is not None:
        return True
    for variable, bases in route.ambient.items():
        base = base_url(variable)
        if scope is not None:
            base = scope.session.input_read(scope, "endpoint", variable, base, own=is_own_variable(variable))
        if base in bases:
            return True
    return False


def _ambient(route: Route) -> str:
    """Note ambient traffic in the run's boundary, and let it through."""
    observe(Attempt("connect", "http", route.origin), status="ambient")
    return PASSING


def outside(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, headers: Headers, content: bytes) -> str | None:
    """Handle a request outside every run, while one is open, while the whole process replays (a known SDK's raises), or
    inside a call that may be repeated.

    Returns ``AMBIENT`` or ``PASSING`` for ambient traffic, as ``begin`` does. Raises ``RunEndedError`` if it comes too
    late.
    """
    about = _facts_of(headers)
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    ambient = _is_ambient(route)
    unasked = process.outside is None and not process.effects.open
    if unasked and not ambient:
        return None
    model_call = False
    if route.dialects:
        value = parsed(content)
        asked = _parameters(route) if method == "WEBSOCKET" else value
        model_call = any(_claim(dialect, route.path, asked) is not None for dialect in route.dialects)
    if ambient and not model_call:
        return AMBIENT if everywhere() else _ambient(route)
    if unasked:
        return None
    if process.outside is not None and (model_call or route.sdk is not None):
        process.outside("llm" if model_call else "http", route.name)
    if process.effects.open and not model_call:
        begun = process.effects.begins_outside(route.name, route.side_effect)
        if begun is not None:
            begun.end()  # only its beginning counts; it ends with the call that made it
    return None


def _model_call(
    scope: Scope,
    method: str,
    route: Route,
    dialect: Dialect,
    claim: Claim,
    about: Facts,
    body: Any,
    format: str,
    data: bytes | None,
    continued: Continuation | None,
) -> Exchange:
    signature = claim.signature or {}
    key = ("llm", method, route, dialect.name, claim.model, about.attempt, format, *signature.items())
    found = _specs.get(key) or _remember(key, _model_spec(method, route, dialect, claim, about, format))
    spec, info, before = found
    if info is None or about.varying is not None or claim.info:
        info = Circumstances(_info(route, about, format, provider=dialect.provider, claim=claim))
    input = {"method": method, "url": route.target, "body": body}
    data = b"%b%b}" % (before, data) if before and data is not None else None
    request = Request(spec, input, info, None, data, None, continued)
    return Exchange(scope.session.begin(scope, request), scope, dialect)


def _model_spec(
    method: str, route: Route, dialect: Dialect, claim: Claim, about: Facts, format: str
) -> tuple[Spec, Circumstances | None, bytes]:
    """Return what all such calls share: the spec, the circumstances, and the input's JSON up to the body."""
    spec = Spec(
        "llm", claim.model, side_effect="read_only", lists=True,
        signature={
            "dialect": dialect.name, "operation": dialect.operation, "model": claim.model, **(claim.signature or {})
        },
    )  # fmt: skip
    varies = about.varying is not None or bool(claim.info)
    info = None if varies else Circumstances(_info(route, about, format, provider=dialect.provider))
    try:
        before = orjson.dumps({"method": method, "url": route.target})[:-1] + b',"body":'
    except TypeError:  # values that can't be encoded this way take the slow path
        before = b""
    return spec, info, before


def _plain_call(
    scope: Scope, method: str, route: Route, about: Facts, body: Any, format: str, data: bytes | None
) -> Exchange:
    key = ("http", route.name, route.side_effect, route.sdk, route.sdk_version, about.attempt, format)
    spec, info, _ = _specs.get(key) or _remember(key, _plain_spec(route, about, format))
    if about.varying is not None:
        info = Circumstances(_info(route, about, format))
    input: dict[str, Any] = {"method": method, "url": route.url}
    if about.content_type and format != "multipart":
        input["content_type"] = about.content_type.decode("latin-1")
    if data is not None:
        around = quick(input)
        data = None if around is None else b'%b,"body":%b}' % (around[:-1], data)
    if format != "none":
        input["body"] = body
    return Exchange(scope.session.begin(scope, Request(spec, input, info, None, data)), scope, None)


def _plain_spec(route: Route, about: Facts, format: str) -> tuple[Spec, Circumstances | None, bytes]:
    """Return what all such requests share."""
    info = {name: value for name, value in _info(route, about, format).items() if name != "headers"}
    return Spec("http", route.name, side_effect=route.side_effect), Circumstances(info) if info else None, b""


def _remember(
    key: tuple[Any, ...], made: tuple[Spec, Circumstances | None, bytes]
) -> tuple[Spec, Circumstances | None, bytes]:
    if len(_specs) >= _SPECS:
        _specs.clear()
    _specs[key] = made
    return made


def _info(
    route: Route, about: Facts, format: str, *, provider: str | None = None, claim: Claim | None = None
) -> dict[str, Any]:
    """Return the circumstances that are recorded but not compared."""
    info: dict[str, Any] = {}
    if provider is not None:
        info["provider"] = provider
        info["origin"] = route.origin
        info["attempt"] = about.attempt
    if route.sdk is not None:
        info["sdk"] = route.sdk
        if route.sdk_version:
            info["sdk_version"] = route.sdk_version
        if provider is None and about.attempt > 1:
            info["attempt"] = about.attempt
    if format not in ("json", "none"):
        info["format"] = format
    if about.varying is not None:
        info["headers"] = about.varying
    if claim is not None and claim.info:
        info.update(claim.info)
    return info


def _parameters(route: Route) -> dict[str, str]:
    """Return the parameters in a URL: the input of a request for a websocket."""
    return dict(parse_qsl(route.target.partition("?")[2]))


def _claim(dialect: Dialect, path: str, body: Any) -> Claim | None:
    """Ask whether a dialect claims the request; an error counts as no."""
    try:
        return dialect.request(path, body)
    except Exception:
        return None
