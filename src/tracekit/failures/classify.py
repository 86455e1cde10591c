"""Classifies an exception or an HTTP error response: its failure type, and what to do about it."""

from __future__ import annotations

import builtins
import errno
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from .. import _reality, errors
from .structured import DEFAULTS, ORDER, FailureType, RecoveryStrategy, StructuredFailure

__all__ = [
    "NETWORK_NUMBERS",
    "Meaning",
    "Seen",
    "by_code",
    "by_name",
    "by_status",
    "classify",
    "classify_answer",
    "classify_recorded",
    "header",
    "retry_after",
    "seen",
    "seen_answer",
    "seen_in",
]

# -- rules -------------------------------------------------------------------------------------------------------------
#
# What exceptions of Python, HTTP clients and model SDKs mean, by class name, HTTP status and the provider's error code.

T: Final = FailureType
S: Final = RecoveryStrategy


class Meaning(NamedTuple):
    """A failure type, a keyword for ``details["kind"]``, and a strategy if it differs from the type's default."""

    type: FailureType
    kind: str | None = None
    strategy: RecoveryStrategy | None = None


# -- by HTTP status ----------------------------------------------------------------------------------------------------------

_RATE_LIMIT: Final = Meaning(T.AGENT_UNAVAILABLE, "rate_limit")
_OVERLOADED: Final = Meaning(T.AGENT_UNAVAILABLE, "overloaded")
_TIMEOUT: Final = Meaning(T.TIMEOUT, None, S.RETRY_AFTER_DELAY)
_SERVER: Final = Meaning(T.TRANSPORT, "server_error")
_REFUSED: Final = Meaning(T.INVALID_INPUT)

_BY_STATUS: Final = {
    401: Meaning(T.AGENT_UNAVAILABLE, "authentication", S.MANUAL_INTERVENTION),
    402: Meaning(T.AGENT_UNAVAILABLE, "payment", S.MANUAL_INTERVENTION),
    403: Meaning(T.AGENT_UNAVAILABLE, "permission", S.MANUAL_INTERVENTION),
    404: Meaning(T.INVALID_INPUT, "not_found"),
    407: Meaning(T.AGENT_UNAVAILABLE, "authentication", S.MANUAL_INTERVENTION),
    408: _TIMEOUT,
    409: Meaning(T.AGENT_UNAVAILABLE, "conflict"),
    413: Meaning(T.INVALID_INPUT, "too_large"),
    425: Meaning(T.AGENT_UNAVAILABLE, "too_early"),
    429: _RATE_LIMIT,
    501: Meaning(T.INVALID_INPUT, "not_implemented"),
    503: _OVERLOADED,
    504: _TIMEOUT,
    529: _OVERLOADED,
}


def by_status(status: int) -> Meaning | None:
    """Return the meaning of an HTTP status; ``None`` below 400, where the failure is something else."""
    if status < 400:
        return None
    return _BY_STATUS.get(status) or (_REFUSED if status < 500 else _SERVER)


# -- by the provider's error code --------------------------------------------------------------------------------------

_BY_CODE: Final = {
    "insufficient_quota": Meaning(T.AGENT_UNAVAILABLE, "quota", S.MANUAL_INTERVENTION),
    "billing_error": Meaning(T.AGENT_UNAVAILABLE, "payment", S.MANUAL_INTERVENTION),
    "rate_limit_error": _RATE_LIMIT,
    "rate_limit_exceeded": _RATE_LIMIT,
    "overloaded_error": _OVERLOADED,
    "timeout_error": _TIMEOUT,
    "authentication_error": _BY_STATUS[401],
    "invalid_api_key": _BY_STATUS[401],
    "permission_error": _BY_STATUS[403],
    "not_found_error": _BY_STATUS[404],
    "request_too_large": _BY_STATUS[413],
    "context_length_exceeded": Meaning(T.INVALID_INPUT, "context_length"),
    "invalid_request_error": _REFUSED,
    "api_error": _SERVER,
    "server_error": _SERVER,
}
#: Error codes that are more specific than the HTTP status they come with.
_TELLING: Final = frozenset(("insufficient_quota", "billing_error", "context_length_exceeded"))


def by_code(codes: Iterable[str], *, status: int | None) -> Meaning | None:
    """Return the meaning of a provider's error code. If an error status is known, only codes more specific than it
    count."""
    for code in codes:
        if code in _BY_CODE and (status is None or status < 400 or code in _TELLING):
            return _BY_CODE[code]
    return None


# -- by the name of the class ------------------------------------------------------------------------------------------------


def _all(meaning: Meaning, names: str) -> Iterator[tuple[str, Meaning]]:
    return ((name, meaning) for name in names.split())


_BY_NAME: Final = dict(
    (
        # tracekit's own errors
        *_all(Meaning(T.CONTRACT_VIOLATION), "ContractViolationError"),
        *_all(Meaning(T.BUDGET_EXCEEDED), "BudgetExceededError"),
        *_all(Meaning(T.SIDE_EFFECT_VIOLATION), "RunEndedError LiveCallBlockedError"),
        *_all(Meaning(T.LOG_INTEGRITY), "LogWriteError TraceIntegrityError TraceVersionError TraceError GraphError"),
        *_all(Meaning(T.RECOVERY_ERROR), "RecoveryRefusedError ReplayError"),
        *_all(_REFUSED, "RunNotFoundError RunStateError InvalidMessageError EnvelopeError RegistryError IntentionError InvalidRecordError"),
        *_all(Meaning(T.ROUTING_ERROR), "RoutingFailedError PendingRequestsError"),
        # timeouts
        *_all(
            Meaning(T.TIMEOUT),
            "StepTimeoutError TimeoutError TimeoutException APITimeoutError Timeout TimeoutExpired ConnectTimeout ReadTimeout "
            "WriteTimeout PoolTimeout ConnectTimeoutError ReadTimeoutError ServerTimeoutError SocketTimeoutError "
            "ConnectionTimeoutError DeadlineExceeded DeadlineExceededError RequestTimeoutError GatewayTimeoutError",
        ),
        # connections
        *_all(
            Meaning(T.NETWORK),
            "ConnectionError ConnectionResetError ConnectionRefusedError ConnectionAbortedError BrokenPipeError APIConnectionError "
            "ConnectError NetworkError ReadError WriteError CloseError ProxyError gaierror herror SSLError SSLCertVerificationError "
            "URLError ClientConnectionError ClientConnectorError ServerDisconnectedError EndpointConnectionError NewConnectionError "
            "MaxRetryError HTTPClientError ConnectionClosed ConnectionClosedError WebSocketConnectionClosedError",
        ),
        *_all(
            Meaning(T.TRANSPORT, "protocol"),
            "TransportError ProtocolError RemoteProtocolError LocalProtocolError StreamError StreamConsumed StreamClosed HTTPException "
            "BadStatusLine RemoteDisconnected IncompleteRead ChunkedEncodingError ClientPayloadError SSEError",
        ),
        *_all(Meaning(T.TRANSPORT, "decoding"), "DecodingError ContentDecodingError DecodeError"),
        *_all(Meaning(T.TRANSPORT, "redirects"), "TooManyRedirects"),
        *_all(
            Meaning(T.INVALID_INPUT, "url"),
            "InvalidURL UnsupportedProtocol MissingSchema InvalidSchema LocationParseError",
        ),
        # error names of providers: a recorded exception may have no status or body, only its class name
        *_all(_RATE_LIMIT, "RateLimitError"),
        *_all(_OVERLOADED, "OverloadedError ServiceUnavailableError"),
        *_all(_BY_STATUS[401], "AuthenticationError CredentialsError OAuthError UnauthorizedError"),
        *_all(_BY_STATUS[403], "PermissionDeniedError ForbiddenError"),
        *_all(_BY_STATUS[402], "PaymentRequiredError"),
        *_all(_BY_STATUS[404], "NotFoundError"),
        *_all(_BY_STATUS[409], "ConflictError"),
        *_all(_BY_STATUS[413], "RequestTooLargeError ContentTooLargeError"),
        *_all(_REFUSED, "BadRequestError UnprocessableEntityError PreconditionFailedError"),
        *_all(_SERVER, "InternalServerError"),
        # validation
        *_all(
            Meaning(T.SCHEMA_VALIDATION),
            "ValidationError SchemaError JSONDecodeError APIResponseValidationError APIWebhookValidationError "
            "StructuredOutputValidationError PydanticSerializationError OutputParserException",
        ),
        *_all(Meaning(T.SCHEMA_VALIDATION, "truncated"), "LengthFinishReasonError"),
        *_all(Meaning(T.INVALID_INPUT, "content_filter"), "ContentFilterFinishReasonError ContentFilterError"),
        # the program itself
        *_all(Meaning(T.AGENT_CRASHED), "MemoryError RecursionError SystemError BrokenExecutor BrokenProcessPool"),
        *_all(Meaning(T.AGENT_CRASHED, "exit"), "SystemExit"),
        *_all(Meaning(T.UNKNOWN, "cancelled"), "CancelledError GeneratorExit"),
        *_all(Meaning(T.AGENT_CRASHED, "interrupted"), "KeyboardInterrupt"),
    )
)  # fmt: skip


def by_name(names: Iterable[str]) -> Meaning | None:
    """Return the meaning of the first known name among those of a class and its bases.

    A class named after a failure type (``NoAgentFoundError``, ``AgentCrashed``) has that type.
    """
    for name in names:
        found = _BY_NAME.get(name) or _BY_TYPE.get(name.lower())
        if found is not None:
            return found
    return None


def _spellings() -> Iterator[tuple[str, Any]]:
    for kind in FailureType:
        word = kind.value.replace("_", "")
        stem = word.removesuffix("error")
        if kind not in (T.UNKNOWN, T.TRANSPORT, T.NETWORK, T.TIMEOUT):
            yield from ((spelling, Meaning(kind)) for spelling in (word, f"{stem}error", f"{stem}exception"))


_BY_TYPE: Final = dict(_spellings())

# -- exceptions --------------------------------------------------------------------------------------------------------
#
# A uniform view of an exception: class names, status, headers, text, causes. No SDK is imported: what libraries have in
# common is read from attributes and class names. A recorded exception (a JSON tree) gets the same view, as far as the
# trace has the data.

#: How much of an error's text is kept, in characters.
MAX_TEXT: Final = 1 << 20


class Seen:
    """A uniform view of one exception. ``names`` are the unqualified names of its class and bases, most specific first."""

    __slots__ = ("_causes", "attributes", "exception", "kind", "members", "names", "text")

    def __init__(
        self, exception: str, names: tuple[str, ...], text: str, attributes: Any, causes: Any, members: list[Any]
    ) -> None:
        self.exception: Final = exception
        self.names: Final = names
        self.text: Final = text
        self.attributes: Final = attributes
        self.members: Final = members
        self._causes: Final = causes

    def get(self, *path: str) -> Any:
        """Return a (nested) attribute; ``None`` if it does not exist or reading it raises."""
        found = self.attributes
        for name in path:
            found = _item(found, name)
        return found

    @property
    def ordinary(self) -> bool:
        """Whether it is an ``Exception``, as far as known."""
        return "Exception" in self.names or "BaseException" not in self.names

    @property
    def status(self) -> int | None:
        """The HTTP status carried by the exception."""
        for path in (("status_code",), ("response", "status_code"), ("status",), ("response", "status"), ("code",)):
            found = self.get(*path)
            if type(found) is int and 100 <= found < 600:
                return found
        return None

    @property
    def headers(self) -> Any:
        """The HTTP response headers carried by the exception."""
        for path in (("response", "headers"), ("headers",), ("hdrs",)):
            found = self.get(*path)
            if found is not None:
                return found
        return None

    @property
    def codes(self) -> Iterator[str]:
        """The provider's error codes in the response body, innermost first."""
        body = self.get("body")
        inner = _item(body, "error")
        for holder in (inner, body, self.attributes):
            for key in ("code", "type"):
                found = _item(holder, key)
                if isinstance(found, str):
                    yield found

    @property
    def number(self) -> int | None:
        """``errno``."""
        found = self.get("errno")
        return found if type(found) is int else None

    def cause(self) -> Any:
        """Return the cause of the exception, or ``None``."""
        return self._causes()


def seen(error: BaseException) -> Seen:
    """Return the view of a live exception."""
    kind = type(error)
    members = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []

    def cause() -> BaseException | None:
        return error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    if isinstance(error, errors.RecordedError):
        name = str(error.__dict__.get("type_name", ""))
        return Seen(name, _names_of(name), _text(error), error, cause, members)
    names = tuple(cls.__name__ for cls in kind.__mro__)
    return Seen(f"{kind.__module__}:{kind.__qualname__}", names, _text(error), error, cause, members)


def seen_in(tree: Mapping[str, Any]) -> Seen:
    """Return the view of a recorded exception, the ``error`` of an entry. The tree may be malformed."""
    name, text = tree.get("type"), tree.get("text")
    name = name if isinstance(name, str) else ""
    attributes = {**_mapping(tree.get("made_of")), **_mapping(tree.get("attrs"))}
    if name.startswith(f"{errors.__name__}:") and isinstance(attributes.get("what"), str):
        text = attributes["what"]  # without the location and the advice
    if name == "urllib.error:HTTPError":
        attributes = {**attributes, "headers": _pairs(attributes.get("headers"))}

    def cause() -> Any:
        found = tree.get("cause") or (None if tree.get("suppress") else tree.get("context"))
        return found if isinstance(found, Mapping) else None

    members = tree.get("members")
    found = [member for member in members if isinstance(member, Mapping)] if isinstance(members, list) else []
    return Seen(name, _names_of(name), text[:MAX_TEXT] if isinstance(text, str) else "", attributes, cause, found)


def seen_answer(status: int, headers: Any, body: Any) -> Seen:
    """Return the view of an HTTP error response."""
    inner = _item(body, "error")
    answer = next(
        (text for text in (_item(inner, "message"), inner, _item(body, "message")) if isinstance(text, str)), ""
    )
    text = f"HTTP {status}: {answer}" if answer else f"HTTP {status}"
    about = {"status_code": status, "headers": headers, "body": body}
    return Seen("", (), text[:MAX_TEXT], about, lambda: None, [])


def _names_of(name: str) -> tuple[str, ...]:
    """Return the names of a recorded class and its bases. The bases are known only for built-in classes and tracekit's
    own."""
    module, _, qualname = name.partition(":")
    own = qualname.rpartition(".")[2]
    home = builtins if module == "builtins" else errors if module == errors.__name__ else None
    kind = getattr(home, own, None) if home is not None else None
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return tuple(cls.__name__ for cls in kind.__mro__)
    return (own,)


def _item(holder: Any, name: str) -> Any:
    if holder is None:
        return None
    if isinstance(holder, Mapping):
        inside = holder.get("v") if "$t" in holder else holder  # in the form a trace stores it
        return inside.get(name) if isinstance(inside, Mapping) else None
    try:
        return getattr(holder, name, None)
    except Exception:  # a property that raises, such as `request` of httpx
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) and "$t" not in value else {}


def _pairs(value: object) -> dict[str, Any]:
    pairs = value if isinstance(value, list) else []
    return {str(pair[0]): pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}


def _text(error: BaseException) -> str:
    what = error.what if isinstance(error, errors.TracekitError) else error
    try:
        return str.__str__(str(what))[:MAX_TEXT]
    except Exception as raised:
        return f"<its text raised {type(raised).__name__}>"


#: Error numbers of the operating system that mean a network problem.
NETWORK_NUMBERS: Final = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETRESET", "ENETUNREACH",
        "ENOTCONN", "EPIPE", "ESHUTDOWN", "EADDRNOTAVAIL",
    )
    if hasattr(errno, name)
)  # fmt: skip

# -- retry after -------------------------------------------------------------------------------------------------------
#
# How long the server asks to wait: ``Retry-After`` in all its forms.


def retry_after(headers: Any, attribute: Any = None) -> float | None:
    """Return the seconds to wait: from ``retry-after-ms`` or ``retry-after`` (seconds or a date), else from an error's
    attribute.

    A date is taken relative to the response's own ``Date`` header, so that a wrong local clock does no harm, or to the
    local clock if there is none.
    """
    milliseconds = _number(header(headers, "retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = header(headers, "retry-after")
    if value is None:
        return _number(attribute.total_seconds() if isinstance(attribute, timedelta) else attribute)
    seconds = _number(value)
    return _until(value, header(headers, "date")) if seconds is None else seconds


def header(headers: Any, name: str) -> str | None:
    """Return a header, whatever the case of its name and the type of the mapping."""
    if headers is None:
        return None
    try:
        pairs = headers.items() if isinstance(headers, Mapping) or hasattr(headers, "items") else headers
        for key, value in pairs:
            if _header_text(key).lower() == name:
                return _header_text(value)
    except Exception:  # not headers after all
        return None
    return None


def _header_text(value: Any) -> str:
    if isinstance(value, list) and value:  # a repeated header, in the form a trace stores it
        value = value[0]
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return max(number, 0.0) if math.isfinite(number) else None


def _until(value: str, date: str | None) -> float | None:
    then, now = _instant(value), _instant(date)
    if then is None:
        return None
    since = _reality.time() if now is None else now.timestamp()
    return max(round(then.timestamp() - since, 3), 0.0)


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    from email.utils import parsedate_to_datetime

    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


# -- classify ----------------------------------------------------------------------------------------------------------

#: How deep causes are followed, and how many members of an exception group are examined.
MAX_CAUSES: Final = 8
MAX_MEMBERS: Final = 32
#: Strategies that are replaced by waiting if the server asks for that.
_AT_ONCE: Final = (RecoveryStrategy.RETRY, RecoveryStrategy.FALLBACK)
#: Attributes of tracekit's own errors that are worth querying.
_FACTS: Final = (
    "tool", "contract", "resource", "budget", "limit", "actual", "estimate", "spent", "timeout_ms", "model", "operation", "key",
)  # fmt: skip


def classify(
    error: BaseException,
    *,
    side_effect: str | None = None,
    run_id: str | None = None,
    step: int | None = None,
    name: str | None = None,
    agent: str | None = None,
) -> StructuredFailure:
    """Classify an exception: its failure type, whether and how it can be recovered from, how long to wait, and its
    cause.

    ``side_effect`` is the class of the step that was *started* and raised the error. If it is irreversible, the failure
    always calls for a person, and the actual failure is its ``caused_by``. ``run_id``, ``step``, ``name`` and ``agent``
    say where it happened. Never raises, whatever the exception contains.
    """
    return _placed(_failure(error, MAX_CAUSES, frozenset()), side_effect, run_id, step, name, agent)


def classify_recorded(
    tree: Mapping[str, Any],
    *,
    side_effect: str | None = None,
    run_id: str | None = None,
    step: int | None = None,
    name: str | None = None,
    agent: str | None = None,
) -> StructuredFailure:
    """Classify the ``error`` of a trace's entry, like ``classify``; the result is as exact as what was recorded."""
    return _placed(_failure(tree, MAX_CAUSES, frozenset()), side_effect, run_id, step, name, agent)


def classify_answer(status: int, headers: Any, body: Any) -> StructuredFailure:
    """Classify an HTTP response with an error ``status``; headers and body may be unknown."""
    return _of(seen_answer(status, headers, body), None)


def _placed(
    failure: StructuredFailure,
    side_effect: str | None,
    run_id: str | None,
    step: int | None,
    name: str | None,
    agent: str | None,
) -> StructuredFailure:
    if side_effect == "irreversible" and failure.type is not FailureType.IRREVERSIBLE_STEP_FAILED:
        what = repr(name) if name else "an irreversible step"
        raised = (failure.exception or "an error").rpartition(":")[2]
        failure = StructuredFailure(
            type=FailureType.IRREVERSIBLE_STEP_FAILED,
            reason=f"{what} failed, and may have taken effect: {raised}: {failure.reason}",
            exception=failure.exception,
            caused_by=failure,
        )
    return replace(
        failure,
        run_id=failure.run_id if run_id is None else run_id,
        step=failure.step if step is None else step,
        name=failure.name if name is None else name,
        agent=failure.agent if agent is None else agent,
    )


def _failure(error: Any, left: int, above: frozenset[int]) -> StructuredFailure:
    known = seen_in(error) if isinstance(error, Mapping) else seen(error)
    carried = known.get("failure")
    if isinstance(carried, StructuredFailure):  # the exception carries its own failure
        return carried
    above |= {id(error)}
    if known.members:
        return _group(known, left, above)
    behind = known.cause()
    follow = behind is not None and left > 1 and id(behind) not in above
    return _of(known, _failure(behind, left - 1, above) if follow else None)


def _of(known: Seen, caused_by: StructuredFailure | None) -> StructuredFailure:
    meaning, details = _meaning(known)
    wait = retry_after(known.headers, known.get("retry_after"))
    strategy = meaning.strategy
    if wait is not None and (strategy or DEFAULTS[meaning.type].strategy) in _AT_ONCE:
        strategy = RecoveryStrategy.RETRY_AFTER_DELAY
    run_id = known.get("run_id") if known.exception.startswith("tracekit.") else None
    return StructuredFailure(
        type=meaning.type,
        reason=known.text or known.exception,
        run_id=run_id if isinstance(run_id, str) else None,
        details=details,
        recovery_strategy=strategy,  # type: ignore[arg-type]  # None: the type's own
        retry_after_s=wait,
        caused_by=caused_by,
        exception=known.exception or None,
    )


def _meaning(known: Seen) -> tuple[Meaning, dict[str, Any]]:
    status = known.status if not known.exception.startswith(("builtins:", "tracekit.")) else None
    meaning = (
        by_code(known.codes, status=status)
        or (by_status(status) if status is not None else None)
        or by_name(known.names)
        or (Meaning(FailureType.NETWORK) if known.number in NETWORK_NUMBERS else None)
        or Meaning(FailureType.AGENT_ERROR if known.ordinary else FailureType.UNKNOWN)
    )
    details: dict[str, Any] = {}
    if meaning.kind is not None:
        details["kind"] = meaning.kind
    if status is not None:
        details["status"] = status
    code = next(known.codes, None)
    if code is not None and status is not None and len(code) <= 100:
        details["code"] = code
    request = header(known.headers, "request-id") or header(known.headers, "x-request-id")
    if request is not None and len(request) <= 200:
        details["request_id"] = request
    if known.number is not None:
        details["errno"] = known.number
    if known.exception.startswith("tracekit."):
        details.update((key, value) for key in _FACTS if _small(value := known.get(key)))
    return meaning, details


def _group(known: Seen, left: int, above: frozenset[int]) -> StructuredFailure:
    """Return the failure of an exception group: that of its gravest member."""
    members = [
        _failure(member, left - 1, above)
        for member in known.members[:MAX_MEMBERS]
        if left > 1 and id(member) not in above
    ]
    if not members:
        return StructuredFailure(type=FailureType.UNKNOWN, reason=known.text, exception=known.exception)
    gravest = max(members, key=lambda failure: ORDER.index(failure.recovery_strategy))
    waits = [failure.retry_after_s for failure in members if failure.retry_after_s is not None]
    return StructuredFailure(
        type=gravest.type,
        reason=known.text,
        details={"members": len(known.members), "types": [failure.type.value for failure in members]},
        recoverable=gravest.recoverable,
        recovery_strategy=gravest.recovery_strategy,
        retry_after_s=max(waits) if waits else None,
        caused_by=gravest,
        exception=known.exception,
    )


def _small(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= 32 and all(map(_small, value))
    return isinstance(value, (int, float, bool)) or (isinstance(value, str) and len(value) <= 500)
