"""Whose request is this: which dialects may claim it, its side-effect class, how its URL is told, or that it is ambient.

Everything that follows from method, URL and user agent alone is worked out once per URL.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from .plugins import Ambient, Dialect, Endpoint, Integration

__all__ = ["Route", "classify", "hear", "heard", "known", "register", "resolve", "secret", "shown", "unregister"]

#: Methods that change nothing (RFC 9110, "safe").
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: Names of query parameters and headers whose value is a credential, without case, ``-`` and ``_``; and how such names end.
_SECRET_NAMES: Final = frozenset(
    {
        "accesskey",
        "auth",
        "authorization",
        "authtoken",
        "key",
        "passwd",
        "password",
        "pwd",
        "session",
        "sessionid",
        "sig",
        "token",
    }
    | {"cookie", "setcookie", "setcookie2", "xamzcredential", "xamzdate", "xamzexpires", "authenticationinfo"}
)
_SECRET_ENDS: Final = (
    "accesstoken", "apikey", "apitoken", "authorization", "idtoken", "passphrase", "password", "refreshtoken", "secret",
    "secretkey", "securitytoken", "sessiontoken", "signature", "subscriptionkey",
)  # fmt: skip
_CACHE: Final = 4096

_integrations: dict[str, Integration] = {}
_classes: list[tuple[str, str]] = []
_routes: dict[tuple[str, bytes, bytes, bytes, bytes], Route] = {}
#: The integrations of which a request was captured, by run: for the runs that ask at their end.
heard: Final[dict[str, set[str]]] = {}


class Route:
    """What is the same at every request to one URL with one method.

    ``url`` is how the log tells it: without user names, and secrets in the query replaced. ``target`` is the same without
    ``origin``: a model call is known by what is asked, not by which gateway it went through.
    """

    __slots__ = ("ambient", "dialects", "name", "origin", "path", "sdk", "side_effect", "target", "url")

    def __init__(
        self,
        method: str,
        origin: str,
        path: str,
        target: str,
        *,
        ambient: bool,
        dialects: tuple[Dialect, ...],
        side_effect: str,
        sdk: str | None,
    ) -> None:
        self.origin: Final = origin
        self.path: Final = path
        self.target: Final = target
        self.url: Final = origin + target
        self.name: Final = f"{method} {origin.partition('://')[2]}{path}"
        self.ambient: Final = ambient
        self.dialects: Final = dialects
        self.side_effect: Final = side_effect
        self.sdk: Final = sdk


def register(integration: Integration) -> None:
    """Let the seams know this integration's dialects, endpoints and ambient hosts. Registering it again changes nothing."""
    if _integrations.get(integration.name) is not integration:
        _integrations[integration.name] = integration
        _routes.clear()


def unregister() -> None:
    """Forget every integration and every class given by the user."""
    _integrations.clear()
    _classes.clear()
    _routes.clear()


def known() -> Mapping[str, Integration]:
    """The registered integrations by name."""
    return _integrations


def hear(run_id: str, route: Route, dialect: Dialect | None = None) -> None:
    """A request of this run was captured: let its integration be known by the time the run ends."""
    names = heard.get(run_id)
    if names is not None:
        names.update(one.name for one in _integrations.values() if one.name == route.sdk or dialect in one.dialects)


def classify(classes: Mapping[str, str]) -> None:
    """The user's own side-effect classes, ``{"[METHOD ]host[/path]": class}``, ``*`` as in file names; the first to fit holds."""
    for pattern, side_effect in classes.items():
        if side_effect not in ("read_only", "reversible", "irreversible"):
            raise ValueError(
                f"http_classes[{pattern!r}]: {side_effect!r} is none of read_only, reversible, irreversible"
            )
    _classes[:0] = classes.items()
    _routes.clear()


def resolve(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, agent: bytes) -> Route:
    """The route of a request; ``raw_path`` is path and query as they are sent, ``agent`` the ``user-agent`` header."""
    key = (method, scheme, netloc, raw_path, agent)
    route = _routes.get(key)
    if route is None:
        if len(_routes) >= _CACHE:
            _routes.clear()
        route = _routes[key] = _route(method, scheme, netloc, raw_path, agent)
    return route


def secret(name: str) -> bool:
    """Whether what goes by this name (a header, a query parameter) is a credential."""
    plain = name.lower().replace("-", "").replace("_", "")
    return plain in _SECRET_NAMES or plain.endswith(_SECRET_ENDS)


def shown(url: str) -> str:
    """A URL as the log tells it: no user name, no password, no secret in the query."""
    origin, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    before, mark, query = (url if not slashes else slash + path).partition("?")
    return (f"{origin}://{host.rpartition('@')[2]}" if slashes else "") + before + mark + _without_secrets(query)


def _route(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, agent: bytes) -> Route:
    host = netloc.decode("ascii", "replace").rpartition("@")[2].lower()
    path, mark, query = raw_path.decode("ascii", "replace").partition("?")
    sdk = _sdk(agent.decode("latin-1"))
    return Route(
        method,
        f"{scheme.decode('ascii', 'replace')}://{host}",
        path,
        path + mark + _without_secrets(query),
        ambient=any(_is_ambient(entry, method, host, path) for entry in _ambient()),
        dialects=tuple(d for i in _integrations.values() for d in i.dialects if d.claims(method, path)),
        side_effect=_side_effect(method, host, path, sdk),
        sdk=sdk.name if sdk is not None else None,
    )


def _sdk(agent: str) -> Integration | None:
    for integration in _integrations.values():
        if agent.startswith(integration.agents):
            return integration
    return None


def _side_effect(method: str, host: str, path: str, sdk: Integration | None) -> str:
    for pattern, side_effect in _classes:
        if _fits(pattern, method, host, path):
            return side_effect
    if sdk is not None:
        found = _endpoint(sdk.endpoints, method, path)
        if found is not None:
            return found
    return "read_only" if method in _SAFE else "irreversible"


def _endpoint(endpoints: Iterable[Endpoint], method: str, path: str) -> str | None:
    segments = path.strip("/").split("/")
    for endpoint in endpoints:
        if endpoint.matches(method, segments):
            return endpoint.side_effect
    return None


def _fits(pattern: str, method: str, host: str, path: str) -> bool:
    wanted, space, where = pattern.rpartition(" ")
    if space and wanted.upper() != method:
        return False
    where = where.partition("://")[2] or where
    if "/" not in where:
        return fnmatchcase(host, where) or fnmatchcase(host.partition(":")[0], where)
    return fnmatchcase(host + path, where) or fnmatchcase(host.partition(":")[0] + path, where)


def _ambient() -> list[Ambient]:
    entries = [entry for integration in _integrations.values() for entry in integration.ambient]
    for entry in list(entries):
        base = os.environ.get(entry.variable or "", "") if entry.variable else ""
        if base:
            parts = urlsplit(base)
            entries.append(
                Ambient(parts.netloc.rpartition("@")[2].lower(), parts.path.rstrip("/") or "/", methods=entry.methods)
            )
    return entries


def _is_ambient(entry: Ambient, method: str, host: str, path: str) -> bool:
    if entry.methods and method not in entry.methods:
        return False
    if not path.startswith(entry.path):
        return False
    return fnmatchcase(host, entry.host) or fnmatchcase(host.partition(":")[0], entry.host)


def _without_secrets(query: str) -> str:
    if not query:
        return query
    pairs = []
    for pair in query.split("&"):
        name, equals, _ = pair.partition("=")
        pairs.append(f"{name}{equals}[REDACTED:query]" if equals and secret(name) else pair)
    return "&".join(pairs)
