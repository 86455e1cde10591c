"""What exceptions of Python, of HTTP clients and of model SDKs mean, by class name, HTTP status and the provider's own words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from .kinds import FailureType, RecoveryStrategy

__all__ = ["Meaning", "by_code", "by_name", "by_status"]

T: Final = FailureType
S: Final = RecoveryStrategy


class Meaning(NamedTuple):
    """A type, a word for ``details["kind"]``, and a strategy where it is not the type's own."""

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
    """What an HTTP status means; ``None`` below 400, where the error is another."""
    if status < 400:
        return None
    return _BY_STATUS.get(status) or (_REFUSED if status < 500 else _SERVER)


# -- by what a provider calls it ---------------------------------------------------------------------------------------------

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
#: Words that say more than the status that they come with.
_TELLING: Final = frozenset(("insufficient_quota", "billing_error", "context_length_exceeded"))


def by_code(codes: Iterable[str], *, status: int | None) -> Meaning | None:
    """What a provider's own word means: beside a status only a word that says more than that."""
    for code in codes:
        if code in _BY_CODE and (status is None or status < 400 or code in _TELLING):
            return _BY_CODE[code]
    return None


# -- by the name of the class ------------------------------------------------------------------------------------------------


def _all(meaning: Meaning, names: str) -> Iterator[tuple[str, Meaning]]:
    return ((name, meaning) for name in names.split())


_BY_NAME: Final = dict(
    (
        # ours
        *_all(Meaning(T.CONTRACT_VIOLATION), "ContractViolationError"),
        *_all(Meaning(T.BUDGET_EXCEEDED), "BudgetExceededError"),
        *_all(Meaning(T.SIDE_EFFECT_VIOLATION), "RunEndedError LiveCallBlockedError"),
        *_all(Meaning(T.LOG_INTEGRITY), "LogWriteError TraceIntegrityError TraceVersionError TraceError GraphError"),
        *_all(Meaning(T.RECOVERY_ERROR), "RecoveryRefusedError ReplayError"),
        *_all(_REFUSED, "RunNotFoundError RunStateError InvalidMessageError EnvelopeError RegistryError IntentionError InvalidRecordError"),
        *_all(Meaning(T.ROUTING_ERROR), "RoutingFailedError PendingRequestsError"),
        # time
        *_all(
            Meaning(T.TIMEOUT),
            "StepTimeoutError TimeoutError TimeoutException APITimeoutError Timeout TimeoutExpired ConnectTimeout ReadTimeout "
            "WriteTimeout PoolTimeout ConnectTimeoutError ReadTimeoutError ServerTimeoutError SocketTimeoutError "
            "ConnectionTimeoutError DeadlineExceeded DeadlineExceededError RequestTimeoutError GatewayTimeoutError",
        ),
        # the way to the other side
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
        # what a provider says, where neither status nor body is known: a recorded exception may tell its name alone
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
        # shapes
        *_all(
            Meaning(T.SCHEMA_VALIDATION),
            "ValidationError SchemaError JSONDecodeError APIResponseValidationError APIWebhookValidationError "
            "StructuredOutputValidationError PydanticSerializationError OutputParserException",
        ),
        *_all(Meaning(T.SCHEMA_VALIDATION, "truncated"), "LengthFinishReasonError"),
        *_all(Meaning(T.INVALID_INPUT, "content_filter"), "ContentFilterFinishReasonError ContentFilterError"),
        # the program itself
        *_all(Meaning(T.AGENT_CRASHED), "MemoryError RecursionError SystemError SystemExit BrokenExecutor BrokenProcessPool"),
        *_all(Meaning(T.UNKNOWN, "cancelled"), "CancelledError GeneratorExit"),
        *_all(Meaning(T.AGENT_CRASHED, "interrupted"), "KeyboardInterrupt"),
    )
)  # fmt: skip


def by_name(names: Iterable[str]) -> Meaning | None:
    """What the first known name among those of a class and its bases means.

    A class that is named after a type (``NoAgentFoundError``, ``AgentCrashed``) is of that type.
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
