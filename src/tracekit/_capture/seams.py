"""An HTTP exchange as a step: what every transport seam shares, whatever its library.

A seam hands over plain bytes: method, URL, headers, body. :func:`begin` opens the step; a live exchange tells what came back
(:meth:`Exchange.whole`, or :meth:`~Exchange.head`, :meth:`~Exchange.piece`, :meth:`~Exchange.end`), one that is not live gets
:class:`Answer` objects to build the library's own response from, so that the SDK's own code parses it.

The output of an outcome: ``{"status", "headers", "body", "format"}`` and, where they say something, ``http_version``,
``reason``, ``url`` (after redirects), ``history``. Of a stream the first chunk is ``{"head": {"status", "headers", …}}``, each
further one a piece as text or bytes, and the outcome ``{"complete": true}``. Bodies are stored with their content coding undone.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from .._engine import gate
from .._engine.effects import open_calls, outside_run
from .._engine.scope import Scope
from .._engine.step import Circumstances, Request, Spec
from .answer import Answer
from .bodies import NOT_JSON, is_plain, parsed
from .guard import everywhere
from .http_exchange import Exchange, refuse, within
from .messages import Headers, message
from .plugins import Claim, Dialect
from .requests import Facts, request_body
from .routes import Route, hear, resolve

__all__ = ["AMBIENT", "Answer", "Exchange", "Headers", "begin", "elsewhere", "message", "outside", "refuse", "within"]

#: What :func:`begin` returns for traffic that is not the program's and not to be sent either: answer it with nothing.
AMBIENT: Final = "ambient"

#: How many specs are remembered.
_SPECS: Final = 1024

_specs: dict[tuple[Any, ...], tuple[Spec, Circumstances | None, bytes]] = {}


def elsewhere(scope: Scope | None) -> bool:
    """Whether a request passes untouched: no run (and no whole-process replay) is active and nobody asks for its effect, or it is part
    of another request."""
    if scope is None:
        return gate.outside is None and not open_calls and not everywhere()
    inside = within.get()
    return inside is not None and inside.open


def begin(
    scope: Scope, method: str, scheme: bytes, netloc: bytes, raw_path: bytes, headers: Headers, content: bytes
) -> Exchange | str | None:
    """Open the step of a request.

    Returns ``None`` where the request is to be sent without a step, ``AMBIENT`` where it is to be answered with nothing.
    """
    about = Facts(headers)
    for credential in about.credentials:
        scope.session.redactor.learn(credential.decode("latin-1"))
    if about.upgrade or scheme in (b"ws", b"wss"):
        refuse(scope, f"a websocket to {netloc.decode('ascii', 'replace')}")
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    if route.ambient:
        return None if scope.session.recording else AMBIENT
    value = parsed(content)
    body, format = request_body(content, value, about.content_type)
    for dialect in route.dialects:
        claim = _claim(dialect, route.path, body if value is NOT_JSON else value)
        if claim is not None:
            hear(scope.session.run_id, route, dialect)
            return _model_call(scope, method, route, dialect, claim, about, body, format, content)
    hear(scope.session.run_id, route)
    return _plain_call(scope, method, route, about, body, format)


def outside(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, headers: Headers, content: bytes) -> bool:
    """A request outside every run, while the whole process replays (a known SDK's raises), or inside a call that may be made again.

    True for ambient traffic of a replay, which is to be answered with nothing. ``RunEndedError`` where it comes too late.
    """
    about = Facts(headers)
    route = resolve(method, scheme, netloc, raw_path, about.agent)
    if route.ambient:
        return gate.outside is not None or everywhere()
    value = parsed(content)
    model_call = any(_claim(dialect, route.path, value) is not None for dialect in route.dialects)
    if gate.outside is not None and (model_call or route.sdk is not None):
        gate.outside("llm" if model_call else "http", route.name)
    if open_calls and not model_call:
        begun = outside_run(route.name, route.side_effect)
        if begun is not None:
            begun.end()  # that it has begun decides; it ends with the call that made it
    return False


def _model_call(
    scope: Scope,
    method: str,
    route: Route,
    dialect: Dialect,
    claim: Claim,
    about: Facts,
    body: Any,
    format: str,
    content: bytes,
) -> Exchange:
    signature = claim.signature or {}
    key = ("llm", method, route, dialect.name, claim.model, about.version, about.attempt, format, *signature.items())
    found = _specs.get(key) or _remember(key, _model_spec(method, route, dialect, claim, about, format))
    spec, info, before = found
    if info is None or about.told is not None or claim.info:
        info = Circumstances(_info(route, about, format, provider=dialect.provider, claim=claim))
    input = {"method": method, "url": route.target, "body": body}
    # The body is written as it came, where that is how the log writes it.
    data = b"%b%b}" % (before, content) if before and format == "json" and is_plain(content, body) else None
    return Exchange(scope.session.begin(scope, Request(spec, input, info, None, data)), scope, dialect)


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
    varies = about.told is not None or bool(claim.info)
    info = None if varies else Circumstances(_info(route, about, format, provider=dialect.provider))
    try:
        before = orjson.dumps({"method": method, "url": route.target})[:-1] + b',"body":'
    except TypeError:  # what can't be encoded so takes the long way
        before = b""
    return spec, info, before


def _plain_call(scope: Scope, method: str, route: Route, about: Facts, body: Any, format: str) -> Exchange:
    key = ("http", route.name, route.side_effect)
    found = _specs.get(key) or _remember(key, (Spec("http", route.name, side_effect=route.side_effect), None, b""))
    input: dict[str, Any] = {"method": method, "url": route.url}
    if format != "none":
        input["body"] = body
    if about.content_type and format != "multipart":
        input["content_type"] = about.content_type.decode("latin-1")
    step = scope.session.begin(scope, Request(found[0], input, _info(route, about, format)))
    return Exchange(step, scope, None)


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


def _claim(dialect: Dialect, path: str, body: Any) -> Claim | None:
    """Whether a dialect takes the request; one that stumbles over it does not."""
    try:
        return dialect.request(path, body)
    except Exception:
        return None
