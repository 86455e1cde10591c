"""HTTP exchanges as steps: what every transport shares, whatever its library.

A transport hands over plain bytes: method, URL, headers, body. ``begin`` opens the step; a live exchange reports what came back,
one that is not live gets ``Answer`` objects to build the library's own response from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from sys import _getframe
from types import CodeType
from typing import Any, Final, ParamSpec
from urllib.parse import parse_qsl, unquote

import orjson

from .._native import FORM, brackets, picked, spaced
from .._reality import monotonic_ns
from .._runtime.bodies import Bodies, Continuation
from .._runtime.process import process
from .._runtime.redaction import StreamRedactor
from .._runtime.secrets import names_secret
from .._runtime.session import Outcome, Scope, Step, below, below_seam, current
from .._runtime.step import Circumstances, Request, Spec
from .._values import from_json, quick, to_json
from ..errors import DivergenceError, LiveCallBlockedError, ReplayError, RunStateError, TraceExhaustedError
from .callers import called_back, telemetry
from .guard import Attempt, everywhere, observe
from .plugins import Claim, Dialect, Route, note_captured, resolve, shown

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
    "piece_of",
    "refuse",
    "request_body",
    "response_headers",
    "textual",
    "unconnected",
    "upload_of",
    "whole",
    "withheld",
]

# -- bodies ------------------------------------------------------------------------------------------------------------
#
# Bodies of HTTP messages: bytes on the wire <-> a readable value that gives the same bytes back.
#
# A JSON body is kept as JSON where one of a few ways of writing JSON reproduces it byte for byte; the *format* says which.
# Anything else is kept as text where it is UTF-8, else as bytes. Nothing is ever normalised.

#: What ``parsed`` returns for a body that is not JSON; ``None`` is a JSON value.
NOT_JSON: Final = object()


def _python(**style: Any) -> Callable[[Any], bytes]:
    made: list[Callable[[Any], str]] = []

    def write(value: Any) -> bytes:
        if not made:
            import json

            made.append(json.JSONEncoder(**style).encode)
        return made[0](value).encode()

    return write


#: How JSON is written, by the name of the format. The first is how both SDKs and most servers write it.
_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "json": orjson.dumps,
    "json:indent": lambda value: orjson.dumps(value, option=orjson.OPT_INDENT_2),
    "json:spaced": _python(ensure_ascii=False),
    "json:ascii": _python(separators=(",", ":")),
    "json:spaced-ascii": _python(),
    "json:indent-ascii": _python(indent=2),
}
#: Those that write several lines, of anything but an empty value.
_INDENTED: Final = frozenset(("json:indent", "json:indent-ascii"))
_NEWLINE: Final = "+newline"


def parsed(content: bytes) -> Any:
    """The JSON value of ``content``, or ``NOT_JSON``."""
    if content[:1] not in b'{["' or not content:
        return NOT_JSON
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return NOT_JSON


#: A body longer than this is looked at value by value.
_EASY: Final = 1 << 20
#: So many containers are looked up one by one; where there are more, all are counted in so short a body.
_FEW: Final = 40
_SHORT: Final = 2048


def _is_plain(data: bytes, value: Any, containers: int) -> bool:
    """Whether ``data``, written by orjson from ``value``, is also how the log writes that value.

    It is where no key can be taken for a tag (a key with a dollar) and nothing is nested too deep.
    """
    return (36 not in data and len(data) < _EASY and containers <= _LEVELS) or to_json(value) is value


def _is_plain_part(data: bytes, value: Any) -> bool:
    """As ``_is_plain``, of a part of a body: the body itself, with fewer elements in a list, or those elements."""
    containers = _containers(data, value)
    whole = [value] if type(value) is list else value
    return (containers <= _LEVELS or _flat(whole)) and _is_plain(data, whole, containers)


def _containers(content: bytes, value: Any) -> int:
    """How many there may be at most in encoded JSON, and in its ``value``.

    ``find`` jumps from one to the next, ``count`` looks at each byte: 0.8 and 7 microseconds for one message of 10 KB. A text that is
    full of them (code, JSON in a text) is one value.
    """
    if len(content) <= 2 * _LEVELS:  # each has two brackets
        return len(content) // 2
    found = brackets(content, _FEW)
    if found < _FEW:
        return found
    if len(content) < _SHORT:
        return content.count(b"{") + content.count(b"[")
    found, level = 0, _below([[value]])
    while level and found <= _LEVELS:
        found += len(level)
        level = _below(level)
    return content.count(b"{") + content.count(b"[") if level else found


def _below(level: list[Any]) -> list[Any]:
    """The objects and arrays in these."""
    return [
        item
        for node in level
        for item in (node.values() if type(node) is dict else node)
        if type(item) is dict or type(item) is list
    ]


def encode(content: bytes, value: Any = NOT_JSON, *, text: bool = True) -> tuple[Any, str, bytes | None]:
    """A value for the log and its format: ``content`` again from ``decode``. Beside them the JSON of the value as the log writes it, where
    that is at hand.

    ``value`` is what ``parsed`` made of it, where that was asked before. ``text=False`` keeps what is not JSON as bytes.
    """
    containers = 0 if value is NOT_JSON else _containers(content, value)
    if value is not NOT_JSON and (containers <= _LEVELS or _flat(value)):
        data = orjson.dumps(value)
        format = "json" if data == content else _format(content, value, data)
        if format is not None:
            return value, format, data if _is_plain(data, value, containers) else None
    if text:
        try:
            return content.decode(), "text", None
        except UnicodeDecodeError:
            pass
    return content, "bytes", None


#: A body that is nested deeper is kept as text: as a value it might not be serialisable.
_LEVELS: Final = 150


def _flat(value: Any) -> bool:
    level = [value]
    for _ in range(_LEVELS):
        level = _below(level)
        if not level:
            return True
    return False


def _format(content: bytes, value: Any, data: bytes) -> str | None:
    """The format that reproduces ``content``, which is not ``data``, orjson's own writing, from ``value``."""
    end = ""
    if content.endswith(b"\n"):
        content, end = content[:-1], _NEWLINE
    one_line = b"\n" not in content
    if (
        one_line and FORM == "C" and content != data and spaced(content, data)
    ):  # in C that is found without writing it again
        return "json:spaced" + end
    for format, write in _WRITERS.items():
        if one_line and format in _INDENTED:
            continue
        try:
            if (data if write is orjson.dumps else write(value)) == content:
                return format + end
        except (TypeError, ValueError):  # json.dumps and orjson differ in what they refuse
            continue
    return None


def decode(value: Any, format: str) -> bytes:
    """The bytes that ``encode`` was given.

    A value that redaction replaced by a string comes back as that string in JSON.
    """
    if format == "bytes" or format == "text":
        return value.encode() if isinstance(value, str) else bytes(value)
    end = b""
    if format.endswith(_NEWLINE):
        format, end = format[: -len(_NEWLINE)], b"\n"
    return _WRITERS[format](value) + end


def multipart(content: bytes, content_type: str) -> list[dict[str, Any]] | None:
    """The parts of a multipart body, without its boundary (which is different each time); ``None`` if it is not one.

    Each part is ``{"name", "filename", "type", "body"}``, what is absent left out; ``body`` is text where it is UTF-8, else bytes.
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
# HTTP messages as they are in the log: status, the headers that describe the body, and the body.
#
# ``{"status", "headers", "body", "format"}``; headers are lower-case, a list where a name comes twice. Bodies are kept with their
# content coding undone.

#: Header names and values as they are sent.
Headers = Sequence[tuple[bytes, bytes]]

#: Response headers that say how the body travelled, not what it is; it is stored, and given back, without them.
_TRAVEL: Final = frozenset({"content-encoding", "transfer-encoding", "connection", "keep-alive"})
#: How many header names are remembered.
_NAMES: Final = 10_000


class _Names(dict[bytes, str]):
    """Names of headers as they matter, by how they are written: ``found`` says it of a name in lower case, nothing where it does not.

    A cache, of nothing but the bytes.
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
    """A response header's name, but where it only says how the body travelled, or may carry a credential."""
    if name == "content-encoding":
        return name
    return "" if name in _TRAVEL or names_secret(name) else name


_KEPT: Final = _Names(_kept)


def message(status: int, headers: Headers, content: bytes, value: Any = NOT_JSON) -> dict[str, Any]:
    """A whole answer in the form of the log."""
    return _message(status, headers, content, value)[0]


def _message(status: int, headers: Headers, content: bytes, value: Any) -> tuple[dict[str, Any], bytes | None]:
    """As ``message``; and the JSON of its body, as ``encode`` gives it."""
    shown, content_type = response_headers(headers)
    body, format, data = encode(content, value, text=textual(content_type))
    return {"status": status, "headers": shown, "body": body, "format": format}, data


def whole(
    status: int, headers: Headers, content: bytes, value: Any, also: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes | None]:
    """As ``message``, with ``also`` in it; and its JSON as the log writes it, where that is at hand."""
    output, body = _message(status, headers, content, value)
    format, shown, more = output["format"], quick(output["headers"]), quick(also)
    output.update(also)
    if body is None or shown is None or more is None:
        return output, None
    end = b"," + more[1:] if also else b"}"
    return output, b'{"status":%d,"headers":%b,"body":%b,"format":"%b"%b' % (
        status, shown, body, format.encode(), end,
    )  # fmt: skip


def body_of(message: Mapping[str, Any]) -> bytes:
    """The bytes of the body of a recorded message; empty where it has none."""
    return decode(message["body"], message["format"]) if "format" in message else b""


def answer_problem(output: Any) -> str | None:
    """Why this is no answer in the form of the log; ``None`` where it is one."""
    if not isinstance(output, Mapping):
        return "it is no object"
    status, headers, format = output.get("status"), output.get("headers", {}), output.get("format")
    if type(status) is not int or not 100 <= status <= 599:
        return "it has no 'status', a number like 200"
    if not isinstance(headers, Mapping) or "$t" in headers:
        return "its 'headers' are no object"
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
    """The headers that are kept, lower-case, a list where a name comes twice; and the content type."""
    kept: dict[str, Any] = {}
    for name, content in picked(headers, _KEPT):
        value = content.decode("latin-1")
        if name == "location":
            value = shown(value)
        if name in kept:
            before = kept[name]
            kept[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            kept[name] = value
    if "content-encoding" in kept:
        del kept["content-encoding"]
        kept.pop("content-length", None)
    content_type = kept.get("content-type", "")
    return kept, content_type if isinstance(content_type, str) else content_type[0]


def pairs(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Recorded headers as pairs again."""
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
    """Whether a body of this type is kept as text where possible."""
    kind = content_type.partition(";")[0].strip().lower()
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("json", "xml", "jsonl", "ndjson"))
        or kind == "application/x-www-form-urlencoded"
    )


# -- recorded answers --------------------------------------------------------------------------------------------------
#
# A recorded answer taken apart: what a seam builds its library's response from, so that the SDK's own code parses it.


class Answer:
    """A recorded answer, or the head of one, taken apart: what a seam builds its library's response from.

    ``content`` is ``None`` for the head of a stream, ``read`` says whether a body was recorded. ``error`` is what to raise,
    ``raised`` its name among the library's own. ``wire`` is what a seam says of how the answer travelled. ``complete`` is false of a
    stream that broke off.
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


def piece_of(chunk: Outcome) -> bytes:
    """The bytes of a recorded piece of a stream."""
    return chunk.output.encode() if isinstance(chunk.output, str) else bytes(chunk.output)


class Piece:
    """A recorded piece of a body.

    ``part``: how much of what its sender made one piece is still to come. ``size``: how many bytes it had with its content coding; ``None``
    where no coding was undone. ``coded``: these; ``None`` where the log does not have them.
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
# One HTTP request and its answer, as an open step.
#
# A live exchange records what came back (``Exchange.whole``, or ``Exchange.head``, ``Exchange.piece``,
# ``Exchange.end``), one that is not live gives ``Answer`` objects.

_SUSPENDED: Final = {"suspended": True}

_P = ParamSpec("_P")


def refuse(scope: Scope, what: str) -> None:
    """A kind of connection that is not captured: a recording names it and lets it pass, a replay fails."""
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
    """One request and its answer, as an open step."""

    # No __slots__: from 3.13 on Python makes objects without them faster, and what most have is their class's.

    _kept: list[bytes] | None = None
    #: Whether the answer is a websocket, whose messages its dialect reads.
    _events = False
    _headers: Mapping[str, Any] = {}
    _text = True
    _reported = False
    #: Seconds from the request to the end of its answer, once that is known.
    elapsed = 0.0
    #: While true, a request made from inside is part of this one.
    open = True
    #: The method, host and path that it asks for.
    target: tuple[str, bytes, bytes] | None = None
    #: The code that calls the library.
    entered_by: CodeType | None = None
    #: The body to send in place of the program's, where it is another one.
    sends: bytes | None = None
    #: How many bytes the piece that came last from the log had with its content coding; ``None`` where no coding was undone.
    size: int | None = None
    #: What is sent of a body piece by piece.
    _sent: SentBody | None = None

    def __init__(self, step: Step, scope: Scope, dialect: Dialect | None) -> None:
        self.step = step
        self._scope: Final = scope
        self._dialect: Final = dialect
        self._started = monotonic_ns()
        #: The scope of the live call.
        self.body = step.body() if step.live else scope

    def go(self) -> bool:
        """Whether the call is to be made; where a resumed run has first to follow its log to the end, this waits for that."""
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

    # -- live ------------------------------------------------------------------------------------------------------------

    def whole(
        self,
        status: int,
        headers: Headers,
        content: bytes,
        *,
        also: Mapping[str, Any],
        elapsed: float | None,
        suspended: bool = False,
        early: str | None = None,
        coded: bytes | None = None,
    ) -> None:
        """The answer came, its body is read: ``content`` with content coding undone, ``elapsed`` in seconds.

        ``early``: how sending the request ended before its time, for ``early`` in a replay. ``coded``: the body as it travelled.
        """
        value = parsed(content)
        if coded is not None:
            also = {**also, "wire": {**also.get("wire", {}), **self._coded(content, value, coded)}}
        output, data = whole(status, headers, content, value, also)
        info: dict[str, Any] = {"elapsed": self._lasted() if elapsed is None else elapsed}
        if early is not None:
            info["early"] = early
        if suspended:
            info["suspended"] = True
        if self._dialect is not None and status < 400:
            if value is not NOT_JSON:
                info.update(_safely(self._dialect.response, value, output["headers"]))
            elif content:  # a stream that its maker read whole
                info.update(_safely(self._dialect.stream, [content]))
        self._reported = True
        self.step.done(output, info=info, data=data)

    def sent(self, data: bytes) -> None:
        """A piece of a body that is sent as it is produced: recorded, or compared with what was recorded."""
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
        """Whether the recorded program went on from here to produce the body that it sent: a piece, its end, or an exception."""
        return (self._sent is not None and self._sent.behind) or self._sends_next() or self.early() in (None, "raised")

    def _sends_next(self) -> bool:
        """Whether the recorded program sent something before anything came."""
        entry = self.step.upcoming()
        output = None if entry is None else entry.get("output")
        return isinstance(output, dict) and "sent" in output

    def sends_otherwise(self, recorded: bytes, actual: bytes) -> ReplayError:
        """What to raise where the program sends another body than the recorded one."""
        return self._scope.session.fail(
            DivergenceError(
                f"the program sends another body, piece by piece: the recorded one goes on with {_brief(recorded)}, "
                f"this one with {_brief(actual)}",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="see what the body is made of: a file that has changed, or something that is not captured",
            )
        )

    def reads_coded(self) -> ReplayError:
        """What to raise where the program reads a body with its content coding, and the recorded one had it undone."""
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
        """What to raise where the program does not ask for the content coding that the recorded answer has: it may not undo it."""
        return self._scope.session.fail(
            DivergenceError(
                f"the recorded answer has a content coding ({codings}) that the recorded program asked for; this one does not",
                run_id=self._scope.session.run_id,
                step=self.step.seq,
                next_action="install what the library undoes it with (`brotli`, `zstandard`), or send the recorded `Accept-Encoding`",
            )
        )

    def coded_again(self) -> None:
        """A replay hands a body on with its content coding of which the log does not have the bytes that travelled: that is said."""
        self._scope.session.report.warn(
            f"step {self.step.seq}'s answer was compressed, and a secret was taken out of it: it is compressed again, to other bytes"
        )

    @property
    def has_dialect(self) -> bool:
        """Whether a dialect reads the answer."""
        return self._dialect is not None

    @property
    def scope(self) -> Scope:
        """Where it was begun."""
        return self._scope

    def redaction(self) -> StreamRedactor:
        """Takes secrets out of a text that passes piece by piece."""
        return self._scope.session.redactor.stream()

    def _all_sent(self) -> None:
        """Nothing more is sent: what is next was received."""
        body = self._sent
        while self._sends_next():
            if body is None:
                body = self._sent = SentBody(self)
            body.recorded(upload_of(self.step.take_next()) or b"")
        if body is not None and self.early() is None:
            body.compare(sent_all=True, recorded_all=True)

    def early(self) -> str | None:
        """How sending the recorded request ended before its time; known before its answer."""
        return self.step.ahead("early")

    def received_with(self) -> str | None:
        """What the next piece of a recorded stream, or its end, was received with; known before its turn."""
        return self.step.ahead("with")

    def draw(self) -> tuple[Any, Any]:
        """The program's own code is about to produce a piece of the body that it sends; give the result to ``drawn``."""
        return current.set(self._scope), below.set(None)

    def drawn(self, tokens: tuple[Any, Any]) -> None:
        current.reset(tokens[0])
        below.reset(tokens[1])

    def head(
        self,
        status: int,
        headers: Headers,
        *,
        also: Mapping[str, Any],
        suspended: bool = False,
        early: str | None = None,
    ) -> None:
        """Status and headers came, the body is going to be read piece by piece."""
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
        """One piece of the body, before the caller gets it.

        ``part``: how many bytes of what its sender made one piece are still to come. ``received_with``: what came at once with it, as the
        transport calls it, for ``received_with`` in a replay. ``size``: how many bytes it was before its content coding was undone;
        ``coded``: what they were. ``plain``: of a piece that is kept with its coding, what that stands for.
        """
        if self._kept is not None:
            self._kept.append(data if plain is None else plain)
        value: Any = data
        if self._text and plain is None:
            try:
                value = data.decode()
            except UnicodeDecodeError:
                pass
        if size is None and coded is None and received_with is None and not (suspended or part):  # the everyday piece
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

    def _coded(self, content: bytes, value: Any, coded: bytes) -> dict[str, Any]:
        """How a body travelled whose content coding is undone: in which bytes, or in how many, where they would tell a secret."""
        body = content.decode("utf-8", "replace") if value is NOT_JSON else value
        redactor = self._scope.session.redactor
        hides = redactor.without_secrets(body) is not body
        return {"size": len(coded)} if hides else {"size": len(coded), "body": coded}

    def message(self, text: str) -> None:
        """A message that was received over a websocket: its dialect reads those that say what was used."""
        if self._events and self._kept is not None and '"usage"' in text:
            self._kept.append(text.encode("utf-8", "surrogatepass"))

    def mark(self, what: str, *, suspended: bool = False) -> None:
        """A moment before the answer that the program may notice: ``opened`` (the connection), ``continue`` (the other side asks for the
        body)."""
        self.step.chunk({"moment": what}, info=_SUSPENDED if suspended else None)

    def end(self, *, suspended: bool = False, complete: bool = True, received_with: str | None = None) -> None:
        """The stream ended; not ``complete``: the connection was closed before it had to be."""
        info: dict[str, Any] = {"suspended": True} if suspended else {}
        if received_with is not None:
            info["with"] = received_with
        self._finish({"complete": complete}, info)

    def left(self, *, suspended: bool = False) -> None:
        """The caller went away before the end; ``complete`` says whether the stream had said all it had to say by then. ``suspended``:
        other tasks went on while the connection was closed."""
        if self._reported:
            return
        kept = self._kept
        said = self._dialect is not None and kept and _safely_true(self._dialect.finished, b"".join(kept[-16:]))
        self._finish(
            {"complete": bool(said)}, {"abandoned": True, "suspended": True} if suspended else {"abandoned": True}
        )

    def unanswered(self) -> None:
        """The caller went away before anything came back: whether the request was carried out is not known."""
        if self._reported:
            return
        self._reported = True
        error = ConnectionAbortedError("the connection was closed before an answer was read")
        self.step.failed(error, output={"raised": "left", "text": str(error)}, info={"abandoned": True})

    def learn(self, secret: str) -> None:
        """Keep ``secret`` out of all that is stored from now on."""
        self._scope.session.redactor.learn(secret)

    def hide(self, secret: str) -> str:
        """Keep ``secret`` out of all that is stored from now on; returns the placeholder that stands for it."""
        self.learn(secret)
        return self._scope.session.redactor.placeholder(secret)

    def cookie(self, value: str) -> str:
        """A ``set-cookie`` header without the cookie's value."""
        pair, semicolon, rest = value.partition(";")
        name, equals, secret = pair.partition("=")
        return f"{name}{equals}{self.hide(secret.strip())}{semicolon}{rest}" if secret.strip() else value

    def jar(self, headers: Headers) -> list[str]:
        """The cookies that an answer sets, without their values; none of a model call's, of which nobody makes anything."""
        if self._dialect is not None:
            return []
        return [self.cookie(value.decode("latin-1")) for name, value in headers if name.lower() == b"set-cookie"]

    def inside(self, call: Callable[..., Any], *args: Any) -> Any:
        """``call(*args)`` as part of this request, which goes on afterwards."""
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
            else:  # an answer that is no stream, and came in pieces
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
        """The call or the stream raised ``error``; ``kind`` is its name in the library's own set of exceptions.

        ``response`` is the answer that hangs on the exception, where one does; ``early`` as in ``whole``.
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

    # -- answered from the log -------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return Answer(self.step.answer())

    async def answer_async(self) -> Answer:
        return Answer(await self.step.answer_async())

    def first(self) -> Answer:
        """The head of a recorded stream; or the whole answer, or what was raised, where there was none."""
        self._all_sent()
        chunk = self.step.next_chunk()
        return self.answer() if chunk is None else Answer(chunk)

    async def first_async(self) -> Answer:
        self._all_sent()
        chunk = await self.step.next_chunk_async()
        return await self.answer_async() if chunk is None else Answer(chunk)

    def rest_of_body(self) -> tuple[list[Piece], bool]:
        """The pieces of a recorded stream that are still to come, before their turn; and whether it comes to its end."""
        found = [*self.step.rest()]
        end = found[-1].output if found else None
        complete = isinstance(end, dict) and bool(end.get("complete"))
        return [Piece(item) for item in found if isinstance(item.output, str | bytes)], complete

    def next_piece(self) -> bytes | Answer:
        """The next piece of a recorded stream, or how it ended."""
        piece = self.next_of_body()
        return piece.data if isinstance(piece, Piece) else piece

    def next_of_body(self) -> Piece | Answer:
        """The same, with how the piece travelled."""
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
        """Let go on in a replay what went on while the recorded program closed what it left."""
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

    # -- what both need --------------------------------------------------------------------------------------------------

    def enter(self) -> tuple[Any, Any]:
        """Set the scope of the live call, and that it is inside a request; give the result to ``leave``."""
        self.entered_by = _getframe(1).f_code
        return current.set(self.body), below.set(self)

    def leave(self, tokens: tuple[Any, Any]) -> None:
        self.open = False
        current.reset(tokens[0])
        below.reset(tokens[1])

    def refuse(self, what: str) -> None:
        """Raise that an answer of this kind can't be captured: nobody has asked for it."""
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
    """The bytes of a recorded piece of a request's body; ``None`` of anything else."""
    if chunk is None or not isinstance(chunk.output, dict) or "sent" not in chunk.output:
        return None
    data = chunk.output["sent"]
    return data.encode() if isinstance(data, str) else bytes(data)


class SentBody:
    """A body that is sent piece by piece: without its secrets as it is recorded, and compared with the recorded one in a replay.

    The pieces need not be the same, only what they make together. Where a placeholder stands for another value than its own, where that
    ends is seen in what follows it: then nothing is decided before both are there.
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
        """A piece as the log has it."""
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
        """Whether what has been sent is to be compared with a recorded piece that is not here yet."""
        return bool(self._actual) and (not self._recorded or self._ahead > 0)

    def compare(self, *, sent_all: bool, recorded_all: bool) -> None:
        """Raise where another body is sent; nothing more comes of what is sent, or of what was recorded, where it is ``…_all``."""
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
        """Leave out what both begin with, and what is equal altogether."""
        one, other = self._recorded, self._actual
        size = min(len(one), len(other))
        if not size:
            return
        if one[:size] != other[:size]:
            low, high = 0, size  # as many bytes as are equal
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
            size = low
        for start, text in self._places():
            if start < size < start + len(text):
                size = start  # a placeholder is taken whole
        self._recorded, self._actual = one[size:], other[size:]
        if self._recorded and self._actual and self._placeholder_first() and self._exchange.step.alike(*self._texts()):
            self._recorded = self._actual = b""

    def _placeholder_first(self) -> bool:
        """Whether what is recorded goes on with a placeholder."""
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
    """What a dialect reads while recording; an answer that it does not understand must not break the program."""
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
# What a request says that matters to its step: a few of its headers, and its body as a value.

#: Request headers that are looked at, and those that change what a model does.
_VARYING: Final = frozenset(
    {"user-agent", "content-type", "x-stainless-retry-count", "amz-sdk-request", "upgrade"}
    | {"anthropic-beta", "anthropic-version", "openai-beta"}
)


def _looked_at(name: str) -> str:
    """A request header's name, where it matters."""
    return name if name in _VARYING or names_secret(name) not in ("", "cookie", "key") else ""


_LOOKED_AT: Final = _Names(_looked_at)


class Facts:
    """What the headers of a request say that matters here, in one pass over them.

    ``attempt`` counts from 1; ``varying`` holds the headers that change what a model does, ``None`` where there are none.
    ``credentials`` are the values of credential headers.
    """

    __slots__ = ("agent", "attempt", "content_type", "credentials", "upgrade", "varying")

    def __init__(self, headers: Sequence[tuple[str, bytes]]) -> None:
        """Of the headers that matter."""
        self.agent = b""
        self.attempt = 1
        self.content_type = b""
        #: To which protocol the connection is to change; another version of HTTP is none.
        self.upgrade = ""
        self.varying: dict[str, str] | None = None
        self.credentials: list[bytes] = []
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
                self.credentials.append(value)


#: How many requests' headers are remembered.
_FACTS: Final = 64
#: A cache, of nothing but the headers that matter; emptied when it is full.
_facts: Final[dict[tuple[tuple[str, bytes], ...], Facts]] = {}


def _facts_of(headers: Headers) -> Facts:
    """The facts of a request: a client says the same of each."""
    given = tuple(picked(headers, _LOOKED_AT))
    found = _facts.get(given)
    if found is None:
        if len(_facts) >= _FACTS:
            _facts.clear()
        found = _facts[given] = Facts(given)
    return found


def _sdk_attempt(value: bytes) -> int:
    """The number in ``attempt=2; max=5``."""
    _, found, rest = value.partition(b"attempt=")
    number = rest.partition(b";")[0].strip()
    return int(number) if found and number.isdigit() else 1


def request_body(content: bytes, value: Any, content_type: bytes) -> tuple[Any, str, bytes | None]:
    """A request body in the form of the log, as ``encode`` gives it; ``value`` is the result of ``parsed``."""
    if not content:
        return None, "none", None
    if content_type.startswith(b"multipart/"):
        parts = multipart(content, content_type.decode("latin-1"))
        if parts is not None:
            return parts, "multipart", None
    return encode(content, value)


# -- the step of a request ---------------------------------------------------------------------------------------------
#
# Whether a request is a step, and of which spec, and what the log has of its circumstances.
#
# The output of an outcome: ``{"status", "headers", "body", "format"}`` and, where they say something, ``http_version``,
# ``reason``. Of a stream the first chunk is ``{"head": {"status", "headers", …}}``, each
# further one a piece as text or bytes, and the outcome ``{"complete": true}``. Bodies are stored with their content coding undone.

#: What ``begin`` and ``outside`` return for traffic that is not the program's: answer it with nothing, or send it in a block of
#: ``passing()``.
AMBIENT: Final = "ambient"
PASSING: Final = "passing"

#: How many specs are remembered.
_SPECS: Final = 1024

#: A cache of specs, of nothing but what the request is; emptied when it is full.
_specs: dict[tuple[Any, ...], tuple[Spec, Circumstances | None, bytes]] = {}


def passes_untouched(scope: Scope | None) -> bool:
    """Whether a request passes untouched: no run (and no whole-process replay) is active and nobody asks for its effect, or it is part
    of another request. What the program's own code asks for on the way (a transport of its own) is no part of that."""
    if scope is None and not process.sessions and process.outside is None and not process.effects.open:
        return not everywhere() or below_seam()
    seam = below.get()
    if seam is None or not seam.open:
        return False
    return seam.entered_by is None or not called_back(2, seam.entered_by)


def withheld(scope: Scope | None) -> bool:
    """Whether no connection is to be opened before it is known what for: in a replay the log answers most requests."""
    return everywhere() if scope is None else not scope.session.recording


def unconnected(scope: Scope, scheme: bytes, netloc: bytes, error: BaseException, kind: str, text: str) -> None:
    """Record that no connection came about, before there was a request: only the failure makes a step of it."""
    request = _connection(scheme, netloc)
    if request is not None:
        scope.session.begin(scope, request).failed(error, output={"raised": kind, "text": text})


def connection_failed(scope: Scope, scheme: bytes, netloc: bytes) -> Answer | None:
    """The recorded failure of the connection that is to be opened, where it failed."""
    request = _connection(scheme, netloc)
    if request is None or not scope.session.comes_next(scope, "http", request.spec.name):
        return None
    step = scope.session.begin(scope, request)
    if step.deferred:
        step = step.go()
    if step.live:  # the recorded process died there: whether there is a connection is seen when it is used
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

    ``websocket``: it asks for one, and the seam records what passes over that; ``method`` is ``"WEBSOCKET"`` then. Where the seam does not,
    ``within`` says whether code of this process answers: the program's own, on both sides. ``None``: that is called as it is. So is what
    only sends on the request that is under way.

    ``rewrites``: a seam that can send another body than the program's looks at ``Exchange.sends``.

    Returns ``PASSING`` where the request is to be sent without a step, ``AMBIENT`` where it is to be answered with nothing.
    """
    target = method, netloc, raw_path
    seam = below.get()
    if seam is not None and seam.open and seam.target == target:
        return None  # a transport of the program's own sends it on by another library
    about = _facts_of(headers)
    for credential in about.credentials:
        scope.session.redactor.learn(credential.decode("latin-1"))
    if (about.upgrade or scheme in (b"ws", b"wss")) and not websocket:
        if within():
            return None
        what = "a websocket" if about.upgrade in ("", "websocket") else f"an upgraded connection ({about.upgrade})"
        refuse(scope, f"{what} to {netloc.decode('ascii', 'replace')}")
        return PASSING
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    dialects = () if streamed else route.dialects
    if not dialects and _is_ambient(route):
        return _ambient(route) if scope.session.recording else AMBIENT
    bodies = scope.session.state.extras.of(Bodies) if dialects else None
    data: bytes | None
    continued = None if bodies is None else bodies.continued(content, _is_plain_part)
    if continued is not None:
        value = body = continued.value
        format, data = "json", content
    else:
        value = parsed(content)
        body, format, data = (
            ({"streamed": True}, "stream", None) if streamed else request_body(content, value, about.content_type)
        )
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
                    body, format, data = request_body(sends, parsed(sends), about.content_type)
                    continued = None
            if bodies is not None and continued is None and sends is None and data is not None and format == "json":
                bodies.remember(content, value)
            exchange = _model_call(scope, method, route, dialect, claim, about, body, format, data, continued)
            exchange.sends, exchange.target = sends, target
            return exchange
    if dialects and _is_ambient(route):  # none of them takes it
        return _ambient(route) if scope.session.recording else AMBIENT
    note_captured(scope.session.state, route)
    exchange = _plain_call(scope, method, route, about, body, format, data)
    exchange.target = target
    return exchange


#: Headers that say what is in the body: another one would be refused.
_OF_THE_BODY: Final = frozenset(
    (b"content-md5", b"content-digest", b"digest", b"signature", b"x-amz-content-sha256", b"x-amz-date")
)


def _of_another_model(
    dialect: Dialect, path: str, value: Any, asked: str, model: str, headers: Headers
) -> tuple[Claim, bytes] | None:
    """A request made one of another model, where its body alone names the model, and no header depends on the body; else ``None``."""
    if not isinstance(value, dict) or value.get("model") != asked or names_model(path, asked):
        return None
    if any(name.lower() in _OF_THE_BODY for name, _ in headers):
        return None
    value = {**value, "model": model}
    claim = _claim(dialect, path, value)
    return None if claim is None else (claim, orjson.dumps(value))


def names_model(path: str, model: str) -> bool:
    """Whether the path of a URL says which model is asked: by its name, or as a deployment of one."""
    from .wire import deployment

    path = unquote(path)
    return deployment(path) is not None or path.endswith(f"/{model}") or f"/{model}/" in path or f"/{model}:" in path


def _is_ambient(route: Route) -> bool:
    """Whether a request to there is telemetry, unless it is a model call: by its endpoint, or by the code that sends it."""
    return route.ambient or telemetry() is not None


def _ambient(route: Route) -> str:
    """Ambient traffic is let through, and is in the boundary of the run."""
    observe(Attempt("connect", "http", route.origin), status="ambient")
    return PASSING


def outside(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, headers: Headers, content: bytes) -> str | None:
    """A request outside every run, while one is open, while the whole process replays (a known SDK's raises), or inside a call that may
    be made again.

    ``AMBIENT`` or ``PASSING`` for ambient traffic, as ``begin`` says it. ``RunEndedError`` where it comes too late.
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
            begun.end()  # that it has begun decides; it ends with the call that made it
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
    """What is the same at each such call: the spec, the circumstances, and the input's JSON up to the body."""
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
    except TypeError:  # what can't be encoded so takes the long way
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
    """What is the same at each such request."""
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
    """What is recorded of the circumstances and not compared."""
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
    """The parameters in a URL: what a request for a websocket asks for."""
    return dict(parse_qsl(route.target.partition("?")[2]))


def _claim(dialect: Dialect, path: str, body: Any) -> Claim | None:
    """Whether a dialect takes the request; one that stumbles over it does not."""
    try:
        return dialect.request(path, body)
    except Exception:
        return None
