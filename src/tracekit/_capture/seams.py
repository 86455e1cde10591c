"""An HTTP exchange as a step: what every transport seam shares, whatever its library.

A seam hands over plain bytes: method, URL, headers, body. :func:`begin` opens the step; a live exchange tells what came back
(:meth:`Exchange.whole`, or :meth:`~Exchange.head`, :meth:`~Exchange.piece`, :meth:`~Exchange.end`), one that is not live gets
:class:`Answer` objects to build the library's own response from, so that the SDK's own code parses it.

The output of an outcome: ``{"status", "headers", "body", "format"}`` and, where they say something, ``http_version``,
``reason``, ``url`` (after redirects), ``history``. Of a stream the first chunk is ``{"head": {"status", "headers", …}}``, each
further one a piece as text or bytes, and the outcome ``{"complete": true}``. Bodies are stored with their content coding undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from .._engine import gate
from .._engine.gate import Outcome, Step
from .._engine.scope import Scope, current
from .._engine.step import Spec
from .._reality import monotonic_ns
from ..errors import LiveCallBlockedError, ReplayError, RunStateError, TraceExhaustedError
from .bodies import NOT_JSON, decode, encode, multipart, parsed
from .guard import everywhere
from .plugins import Claim, Dialect
from .routes import Route, resolve, secret, shown

__all__ = ["AMBIENT", "Answer", "Exchange", "Headers", "begin", "elsewhere", "message", "outside", "refuse", "within"]

#: Header names and values as they are sent.
Headers = Sequence[tuple[bytes, bytes]]

#: What :func:`begin` returns for traffic that is not the program's and not to be sent either: answer it with nothing.
AMBIENT: Final = "ambient"

#: Response headers that say how the body travelled, not what it is; it is stored, and given back, without them.
_TRAVEL: Final = frozenset({"content-encoding", "transfer-encoding", "connection", "keep-alive"})
#: Request headers that are looked at, and those that change what a model does.
_TOLD: Final = frozenset(
    {"user-agent", "content-type", "x-stainless-retry-count", "x-stainless-package-version", "upgrade"}
    | {"anthropic-beta", "anthropic-version", "openai-beta"}
)
#: How many header names are remembered.
_NAMES: Final = 10_000
_TELLING: Final[dict[bytes, str]] = {}
_KEPT: Final[dict[bytes, str]] = {}
_SUSPENDED: Final = {"suspended": True}

#: The exchange that the running code is inside of: a send inside a send is one request.
within: Final[ContextVar[Exchange | None]] = ContextVar("tracekit.exchange", default=None)

_specs: dict[tuple[Any, ...], Spec] = {}


def elsewhere(scope: Scope | None) -> bool:
    """Whether a request passes untouched: no run (and no whole-process replay) is active, or it is part of another request."""
    if scope is None:
        return gate.outside is None and not everywhere()
    inside = within.get()
    return inside is not None and inside.open


def begin(
    scope: Scope, method: str, scheme: bytes, netloc: bytes, raw_path: bytes, headers: Headers, content: bytes
) -> Exchange | str | None:
    """Open the step of a request.

    Returns ``None`` where the request is to be sent without a step, ``AMBIENT`` where it is to be answered with nothing.
    """
    about = _Request(headers)
    if about.upgrade or scheme in (b"ws", b"wss"):
        refuse(scope, f"a websocket to {netloc.decode('ascii', 'replace')}")
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    if route.ambient:
        return None if scope.session.recording else AMBIENT
    value = parsed(content)
    body, format = _request_body(content, value, about.content_type)
    for dialect in route.dialects:
        claim = _claim(dialect, route.path, value if value is not NOT_JSON else body)
        if claim is not None:
            return _model_call(scope, method, route, dialect, claim, about, body, format)
    return _plain_call(scope, method, route, about, body, format)


def outside(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, headers: Headers, content: bytes) -> bool:
    """A request outside every run while the whole process replays: a known SDK's raises.

    True for ambient traffic, which is to be answered with nothing.
    """
    about = _Request(headers)
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    if route.ambient:
        return True
    if gate.outside is not None:
        value = parsed(content)
        if any(_claim(dialect, route.path, value) is not None for dialect in route.dialects):
            gate.outside("llm", route.name)
        elif route.sdk is not None:
            gate.outside("http", route.name)
    return False


def refuse(scope: Scope, what: str) -> None:
    """Say that this way out is not supported, instead of letting it pass unseen."""
    if scope.session.recording:
        raise RunStateError(
            f"{what} can't be recorded yet",
            run_id=scope.session.run_id,
            next_action="use the HTTP interface of the same service, or make the call outside the run",
        )
    raise LiveCallBlockedError(
        f"{what} was opened during a replay", run_id=scope.session.run_id, operation=what,
        next_action="use the HTTP interface of the same service: websockets are not captured yet",
    )  # fmt: skip


class _Request:
    """What the headers of a request say that matters here, in one pass over them."""

    __slots__ = ("agent", "attempt", "content_type", "told", "upgrade", "version")

    def __init__(self, headers: Headers) -> None:
        self.agent = b""
        self.attempt = 1
        self.content_type = b""
        self.upgrade = False
        self.version = b""
        self.told: dict[str, str] | None = None
        for raw, value in headers:
            telling = _TELLING.get(raw)
            if telling is None:
                telling = _telling(raw)
            if telling:
                self._tell(telling, value)

    def _tell(self, name: str, value: bytes) -> None:
        if name == "user-agent":
            self.agent = value
        elif name == "content-type":
            self.content_type = value
        elif name == "x-stainless-retry-count":
            self.attempt = int(value) + 1 if value.isdigit() else 1
        elif name == "x-stainless-package-version":
            self.version = value
        elif name == "upgrade":
            self.upgrade = value.lower() == b"websocket"
        else:
            self.told = {**(self.told or {}), name: value.decode("latin-1")}


def _telling(raw: bytes) -> str:
    """The name of a request header that matters, else nothing; remembered by how it is written."""
    name = raw.decode("latin-1").lower()
    found = name if name in _TOLD else ""
    if len(_TELLING) < _NAMES:
        _TELLING[raw] = found
    return found


def _request_body(content: bytes, value: Any, content_type: bytes) -> tuple[Any, str]:
    if not content:
        return None, "none"
    if content_type.startswith(b"multipart/"):
        parts = multipart(content, content_type.decode("latin-1"))
        if parts is not None:
            return parts, "multipart"
    return encode(content, value)


def _model_call(
    scope: Scope, method: str, route: Route, dialect: Dialect, claim: Claim, about: _Request, body: Any, format: str
) -> Exchange:
    signature = claim.signature or {}
    key = ("llm", dialect.name, claim.model, *signature.items())
    spec = _specs.get(key)
    if spec is None:
        spec = _remember(
            key,
            Spec(
                "llm", claim.model, side_effect="read_only", lists=True,
                signature={"dialect": dialect.name, "operation": dialect.operation, "model": claim.model, **signature},
            ),
        )  # fmt: skip
    info = _info(route, about, format, provider=dialect.provider, claim=claim)
    step = scope.session.begin(scope, spec, {"method": method, "url": route.target, "body": body}, info=info)
    return Exchange(step, scope, dialect)


def _plain_call(scope: Scope, method: str, route: Route, about: _Request, body: Any, format: str) -> Exchange:
    key = ("http", route.name, route.side_effect)
    spec = _specs.get(key)
    if spec is None:
        spec = _remember(key, Spec("http", route.name, side_effect=route.side_effect))
    input: dict[str, Any] = {"method": method, "url": route.url}
    if format != "none":
        input["body"] = body
    if about.content_type and format != "multipart":
        input["content_type"] = about.content_type.decode("latin-1")
    step = scope.session.begin(scope, spec, input, info=_info(route, about, format))
    return Exchange(step, scope, None)


def _remember(key: tuple[Any, ...], spec: Spec) -> Spec:
    if len(_specs) >= 1024:
        _specs.clear()
    _specs[key] = spec
    return spec


def _info(
    route: Route, about: _Request, format: str, *, provider: str | None = None, claim: Claim | None = None
) -> dict[str, Any]:
    """What is recorded of the circumstances and not compared."""
    info: dict[str, Any] = {}
    if provider is not None:
        info["provider"] = provider
        info["origin"] = route.origin
        info["attempt"] = about.attempt
    if route.sdk is not None:
        info["sdk"] = route.sdk
        if about.version:
            info["sdk_version"] = about.version.decode("latin-1")
        if provider is None and about.attempt > 1:
            info["attempt"] = about.attempt
    if format not in ("json", "none"):
        info["format"] = format
    if about.told is not None:
        info["headers"] = about.told
    if claim is not None and claim.info:
        info.update(claim.info)
    return info


class Exchange:
    """One request and its answer, as an open step."""

    __slots__ = ("_dialect", "_kept", "_scope", "_started", "_text", "_told", "body", "elapsed", "open", "step")

    def __init__(self, step: Step, scope: Scope, dialect: Dialect | None) -> None:
        self.step: Final = step
        self._scope: Final = scope
        self._dialect: Final = dialect
        self._kept: list[bytes] | None = None
        self._text = True
        self._told = False
        self._started = monotonic_ns()
        #: Seconds from the request to the end of its answer, once that is known.
        self.elapsed = 0.0
        #: While true, a request made from inside is part of this one.
        self.open = True
        #: The scope of the live call.
        self.body: Final = step.body() if step.live else scope

    # -- live ------------------------------------------------------------------------------------------------------------

    def whole(
        self,
        status: int,
        headers: Headers,
        content: bytes,
        *,
        also: Mapping[str, Any],
        elapsed: float | None,
        suspended: bool,
    ) -> None:
        """The answer came, its body is read: ``content`` with content coding undone, ``elapsed`` in seconds."""
        value = parsed(content)
        output = message(status, headers, content, value)
        info: dict[str, Any] = {"elapsed": self._lasted() if elapsed is None else elapsed}
        if suspended:
            info["suspended"] = True
        if self._dialect is not None and status < 400 and value is not NOT_JSON:
            info.update(_safely(self._dialect.response, value))
        self._told = True
        self.step.done({**output, **also} if also else output, info=info)

    def head(self, status: int, headers: Headers, *, also: Mapping[str, Any], suspended: bool) -> None:
        """Status and headers came, the body is going to be read piece by piece."""
        told, content_type = _response_headers(headers)
        self._text = _textual(content_type)
        if self._dialect is not None and status < 400:
            self._kept = []
        self.step.chunk({"head": {"status": status, "headers": told, **also}}, info=_SUSPENDED if suspended else None)

    def piece(self, data: bytes, *, suspended: bool = False) -> None:
        """One piece of the body, before the caller gets it."""
        if self._kept is not None:
            self._kept.append(data)
        value: Any = data
        if self._text:
            try:
                value = data.decode()
            except UnicodeDecodeError:
                pass
        self.step.chunk(value, info=_SUSPENDED if suspended else None)

    def end(self, *, suspended: bool = False) -> None:
        """The stream ended in order."""
        self._finish({"complete": True}, {"suspended": True} if suspended else {})

    def left(self) -> None:
        """The caller went away before the end; ``complete`` says whether the stream had said all it had to say by then."""
        if self._told:
            return
        kept = self._kept
        said = self._dialect is not None and kept and _safely_true(self._dialect.finished, b"".join(kept[-16:]))
        self._finish({"complete": bool(said)}, {"abandoned": True})

    def _finish(self, output: dict[str, Any], info: dict[str, Any]) -> None:
        if self._told:
            return
        self._told = True
        info["elapsed"] = self._lasted()
        if self._kept and self._dialect is not None:
            info.update(_safely(self._dialect.stream, self._kept))
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
    ) -> None:
        """The call or the stream raised ``error``; ``kind`` is its name in the library's own set of exceptions.

        ``response`` is the answer that hangs on the exception, where one does.
        """
        if self._told or isinstance(error, ReplayError):
            return
        self._told = True
        output: dict[str, Any] | None = None
        if kind is not None:
            output = {"raised": kind, "text": str(error)}
            if response is not None:
                output.update(message(*response))
        self.step.failed(error, output=output, info=_SUSPENDED if suspended else None)

    # -- answered from the log -------------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return Answer(self.step.answer())

    async def answer_async(self) -> Answer:
        return Answer(await self.step.answer_async())

    def first(self) -> Answer:
        """The head of a recorded stream; or the whole answer, or what was raised, where there was none."""
        chunk = self.step.next_chunk()
        return self.answer() if chunk is None else Answer(chunk)

    async def first_async(self) -> Answer:
        chunk = await self.step.next_chunk_async()
        return await self.answer_async() if chunk is None else Answer(chunk)

    def next_piece(self) -> bytes | Answer:
        """The next piece of a recorded stream, or how it ended."""
        chunk = self.step.next_chunk()
        return _piece(chunk) if chunk is not None else self._ended(self.step.answer())

    async def next_piece_async(self) -> bytes | Answer:
        chunk = await self.step.next_chunk_async()
        return _piece(chunk) if chunk is not None else self._ended(await self.step.answer_async())

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
        """Set the scope of the live call, and that it is inside a request; give the result to :meth:`leave`."""
        return current.set(self.body), within.set(self)

    def leave(self, tokens: tuple[Any, Any]) -> None:
        self.open = False
        current.reset(tokens[0])
        within.reset(tokens[1])

    def refuse(self, what: str) -> None:
        """The answer is of a kind that can't be captured: say so."""
        try:
            refuse(self._scope, what)
        except RunStateError as error:
            self.broke(error)
            raise


class Answer:
    """A recorded answer, or the head of one, taken apart: what a seam builds its library's response from.

    ``content`` is ``None`` for the head of a stream, ``read`` says whether a body was recorded. ``error`` is what to raise,
    ``raised`` its name among the library's own. ``history`` holds the answers that were redirects.
    """

    __slots__ = (
        "content",
        "elapsed",
        "error",
        "headers",
        "history",
        "http_version",
        "raised",
        "read",
        "reason",
        "status",
        "text",
        "url",
    )

    def __init__(self, outcome: Outcome) -> None:
        self._read(outcome.output if isinstance(outcome.output, dict) else {}, outcome.error, outcome.meta)

    def _read(self, output: Mapping[str, Any], error: BaseException | None, meta: Mapping[str, Any]) -> None:
        self.error = error
        self.raised: str | None = output.get("raised")
        self.text: str = output.get("text", "")
        told = output.get("head", output)
        self.status: int = told.get("status", 200)
        self.headers = _pairs(told.get("headers", {}))
        self.http_version: str = told.get("http_version", "HTTP/1.1")
        self.reason: str | None = told.get("reason")
        self.url: str | None = told.get("url")
        self.history = [Answer._past(past) for past in told.get("history", ())]
        self.elapsed: float = meta.get("elapsed", 0.0)
        self.read = "format" in told
        self.content = None if "head" in output else _content(told)

    @classmethod
    def _past(cls, message: Mapping[str, Any]) -> Answer:
        answer = cls.__new__(cls)
        answer._read(message, None, {})
        return answer


def message(status: int, headers: Headers, content: bytes, value: Any = NOT_JSON) -> dict[str, Any]:
    """A whole answer as the log tells it."""
    told, content_type = _response_headers(headers)
    body, format = encode(content, value, text=_textual(content_type))
    return {"status": status, "headers": told, "body": body, "format": format}


def _content(message: Mapping[str, Any]) -> bytes:
    return decode(message["body"], message["format"]) if "format" in message else b""


def _piece(chunk: Outcome) -> bytes:
    return chunk.output.encode() if isinstance(chunk.output, str) else bytes(chunk.output)


def _response_headers(headers: Headers) -> tuple[dict[str, Any], str]:
    """The headers that are kept, lower-case, a list where a name comes twice; and the content type."""
    told: dict[str, Any] = {}
    coded = False
    for raw, content in headers:
        name = _KEPT.get(raw)
        if name is None:
            name = _kept(raw)
        if not name:
            coded = coded or raw.lower() == b"content-encoding"
            continue
        value = content.decode("latin-1")
        if name == "location":
            value = shown(value)
        if name in told:
            before = told[name]
            told[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            told[name] = value
    if coded:
        told.pop("content-length", None)
    content_type = told.get("content-type", "")
    return told, content_type if isinstance(content_type, str) else content_type[0]


def _kept(raw: bytes) -> str:
    """A response header's name, or nothing where it only says how the body travelled, or may carry a credential."""
    name = raw.decode("latin-1").lower()
    dropped = name in _TRAVEL or secret(name) or name.endswith(("-token", "-cookie"))
    if len(_KEPT) < _NAMES:
        _KEPT[raw] = "" if dropped else name
    return "" if dropped else name


def _pairs(headers: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in headers.items():
        values: Iterable[str] = value if isinstance(value, list) else (value,)
        pairs.extend((name, item) for item in values)
    return pairs


def _textual(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("json", "xml", "jsonl", "ndjson"))
        or kind == "application/x-www-form-urlencoded"
    )


def _claim(dialect: Dialect, path: str, body: Any) -> Claim | None:
    """Whether a dialect takes the request; one that stumbles over it does not."""
    try:
        return dialect.request(path, body)
    except Exception:
        return None


def _safely(read: Any, value: Any) -> Mapping[str, Any]:
    """What a dialect reads while recording; an answer that it does not understand must not break the program."""
    try:
        found: Mapping[str, Any] = read(value)
    except Exception:
        return {}
    return found


def _safely_true(ask: Any, value: Any) -> bool:
    try:
        return bool(ask(value))
    except Exception:
        return False
