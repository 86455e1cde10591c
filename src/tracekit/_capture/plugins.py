"""Integrations and other extensions: how they are found, which requests they claim, and what else they declare."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from .. import _reality
from .._announced import announced
from .._runtime.redaction import STAND_IN, environment_variables
from .._runtime.session import RunState
from .patch import declared_anew

if TYPE_CHECKING:
    from .._journal.reader import Trace
    from .patch import Patch

__all__ = [
    "GROUP",
    "PLACEHOLDER",
    "Ambient",
    "Claim",
    "Dialect",
    "Endpoint",
    "Form",
    "Integration",
    "Native",
    "Reading",
    "Route",
    "Scheduler",
    "TaskSource",
    "Telemetry",
    "attach",
    "callers_by_file",
    "declare_endpoints",
    "detach",
    "discover",
    "every",
    "exporting_modules",
    "exports_telemetry",
    "facts_to_record",
    "forms",
    "is_captured",
    "is_observer",
    "is_wrapper",
    "known",
    "movers_by_file",
    "note_captured",
    "recorded_credentials",
    "register",
    "register_tasks",
    "replayed_credentials",
    "resolve",
    "sending_packages",
    "sends_telemetry",
    "shown",
    "sort_by_place",
    "supply_placeholders",
    "task_sources",
    "telemetry_of",
    "trust",
    "trusted",
    "unregister",
]

T = TypeVar("T")

# -- integrations ------------------------------------------------------------------------------------------------------
#
# What an integration declares, and how integrations are found; exported by ``tracekit.integration``.

#: The entry-point group in which integrations announce themselves.
GROUP: Final = "tracekit.integrations"
#: The entry-point group of other forms of runs; see ``Form``.
FORMS: Final = "tracekit.forms"


class Claim:
    """What a dialect recognised in a request: the model, what a replay compares besides the body, and what is recorded
    but not compared."""

    __slots__ = ("info", "model", "signature")

    def __init__(
        self, model: str, signature: Mapping[str, Any] | None = None, info: Mapping[str, Any] | None = None
    ) -> None:
        self.model: Final = model
        self.signature: Final = signature
        self.info: Final = info


class Reading:
    """A model call's response as a dialect reads it; computed on demand, never stored.

    ``text`` is the answer's text, ``tool_calls`` a list of ``{"id", "name", "arguments"}`` (arguments parsed if they
    are JSON), ``refusal`` a text, ``reasoning`` its visible part, ``meta`` the fields for the outcome's ``meta``.
    """

    __slots__ = ("meta", "reasoning", "refusal", "text", "tool_calls")

    def __init__(
        self,
        *,
        text: str = "",
        tool_calls: Sequence[Mapping[str, Any]] = (),
        refusal: str | None = None,
        reasoning: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.text = text
        self.tool_calls = list(tool_calls)
        self.refusal = refusal
        self.reasoning = reasoning
        self.meta = dict(meta or {})

    def __repr__(self) -> str:
        return f"Reading(text={self.text!r}, tool_calls={self.tool_calls!r}, refusal={self.refusal!r})"


class Dialect(Protocol):
    """Reads the requests and responses of one wire protocol. Pure: no state, no I/O, no clock.

    ``name`` is ``"openai.chat"``, say; ``provider`` and ``operation`` are the values of OpenTelemetry's
    ``gen_ai.provider.name`` and ``gen_ai.operation.name``. A class that derives from this one needs only ``claims``,
    ``request`` and ``response`` if its responses are neither streams nor texts.
    """

    name: str
    provider: str
    operation: str

    def claims(self, method: str, path: str, own: bool) -> bool:
        """Return whether a request to ``path`` (without query) may be of this protocol; called once per URL.

        ``own`` is true if the integration's SDK sends the request or its service receives it. The integration's
        dialects are then asked first, and may claim a path that other protocols use as well.
        """
        ...

    def request(self, path: str, body: object) -> Claim | None:
        """Return the claim, or ``None`` if the body (parsed JSON, the parts of a form, or text) is not of this
        protocol.

        For a websocket, the method is ``WEBSOCKET`` and the body is the parameters of its URL. Don't modify the body:
        it may share parts with an earlier one. A claimed request is a model call and counts as read-only, so matching
        the path alone is not enough.
        """
        ...

    def response(self, body: object, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``meta`` of a response: ``model``, ``id``, ``finish_reasons``, ``usage`` …, as far as available.

        ``headers`` are the recorded ones, with lower-case names.
        """
        ...

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        """Return ``meta`` of a response in raw pieces. This runs while recording: read as few of them as possible. For
        a websocket, the pieces are the messages with a field ``usage``."""
        return {}

    def finished(self, tail: bytes) -> bool:
        """Return whether a stream that ends in ``tail`` is complete."""
        return False

    def read(self, body: object) -> Reading:
        """Read a response (parsed JSON, or all bytes of a stream) in full."""
        return Reading(meta=self.response(body, {}))


class Endpoint:
    """The side-effect class of a service's endpoint: ``method`` (``"*"`` for any) and the end of its path; ``*``
    matches within one segment."""

    __slots__ = ("method", "segments", "side_effect")

    def __init__(self, method: str, path: str, side_effect: str) -> None:
        self.method: Final = method
        self.segments: Final = tuple(path.strip("/").split("/"))
        self.side_effect: Final = side_effect

    def matches(self, method: str, segments: Sequence[str]) -> bool:
        if self.method not in ("*", method) or len(segments) < len(self.segments):
            return False
        tail = segments[-len(self.segments) :]
        return all(
            mine == theirs or ("*" in mine and fnmatchcase(theirs, mine))
            for mine, theirs in zip(self.segments, tail, strict=True)
        )


class Ambient:
    """An endpoint that receives telemetry, whoever sends it: a host (or ``"*.domain"``, ``"*:4318"``), the beginning of
    a path, methods.

    ``variable`` names an environment variable with another base URL of the same service. A request that a dialect
    claims is a model call nevertheless.
    """

    __slots__ = ("host", "methods", "path", "variable")

    def __init__(self, host: str, path: str = "/", *, methods: Iterable[str] = (), variable: str | None = None) -> None:
        self.host: Final = host
        self.path: Final = path
        self.methods: Final = frozenset(methods)
        self.variable: Final = variable


class Telemetry:
    """Telemetry, identified by the code that sends it: ``name`` is its product's name (``"LangSmith"``), ``senders``
    the modules that send it.

    A sender is a module or package (``"opentelemetry.exporter"``), or a function and what is defined in it
    (``"langsmith.client:Client.create_run"``, or the beginning of such a name). What a sender sends, over whatever
    transport, and threads that run its functions are not part of a run: telemetry goes out while recording, and is not
    sent in a replay. Name only the code that sends: what a package *reads* for the program (a prompt, a feature flag),
    and what it calls on the program's behalf, is part of the run.

    ``packages`` are those whose own clock reads and waits (for their threads) are not part of a run either, but for the
    modules in them that ``reads`` names: those decide what they read for the program, such as a cache of prompts.
    ``exporting`` are functions that only pass data to an exporter: what they call is telemetry, even if the exporter is
    the program's own.
    """

    __slots__ = ("exporting", "name", "packages", "reads", "senders")

    def __init__(
        self,
        name: str,
        senders: Sequence[str],
        *,
        packages: Sequence[str] = (),
        reads: Sequence[str] = (),
        exporting: Sequence[str] = (),
    ) -> None:
        self.name: Final = name
        self.senders: Final = (*senders, *exporting)
        self.packages: Final = tuple(packages)
        self.reads: Final = tuple(reads)
        self.exporting: Final = tuple(exporting)

    def __repr__(self) -> str:
        return f"Telemetry({self.name!r})"


class Native:
    """A function of a client that connects below Python: ``attribute`` (``"Connection.connect"``) of ``module``.

    If Python code calls it, a replay refuses it and a recording reports it; importing the client is allowed. Attributes
    that a version of the client lacks are skipped.

    - ``target``: returns what a call reaches, given its arguments, as ``(host, port)`` or a text.
    - ``keeps``: the first argument is a connection or client, and only its first call is reported.
    - ``inside``: returns, given the arguments, whether the call reaches nothing outside the process.
    - ``nothing``: returns, given the arguments, the empty response that telemetry gets in a replay, where it is not
      sent; without it an ordinary connection error is raised.
    """

    __slots__ = ("attribute", "inside", "keeps", "module", "nothing", "target")

    def __init__(
        self,
        module: str,
        attribute: str,
        target: Callable[[tuple[Any, ...], Mapping[str, Any]], object] | None = None,
        *,
        keeps: bool = False,
        inside: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] | None = None,
        nothing: Callable[[tuple[Any, ...], Mapping[str, Any]], object] | None = None,
    ) -> None:
        self.module: Final = module
        self.attribute: Final = attribute
        self.target: Final = target
        self.keeps: Final = keeps
        self.inside: Final = inside
        self.nothing: Final = nothing

    def target_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Return what a call reaches, or the client's name if that can't be determined."""
        try:
            found = None if self.target is None else self.target(args, kwargs)
        except Exception:
            found = None
        return found or self.module.partition(".")[0]

    def __repr__(self) -> str:
        return f"Native({self.module!r}, {self.attribute!r})"


class Scheduler:
    """A library that schedules tasks or greenlets itself, beside asyncio; they open no lanes, so a replay could not
    tell them apart.

    ``name`` is the library's name (``"trio"``). ``starts`` are the functions that start it, or something in it
    (``"trio:run"``, ``"gevent:Greenlet.start"``): inside a run but outside its tools, they are refused before any of
    their code runs. ``running`` returns whether the calling code already runs in it; a run can't begin there. It is
    called only if the package of the first of ``starts`` has been imported. ``instead`` says what to do instead.
    """

    __slots__ = ("instead", "name", "package", "running", "starts")

    def __init__(self, name: str, starts: Sequence[str], running: Callable[[], bool], instead: str) -> None:
        self.name: Final = name
        self.starts: Final = tuple(tuple(start.split(":", 1)) for start in starts)
        self.running: Final = running
        self.instead: Final = instead
        self.package: Final = self.starts[0][0].partition(".")[0]

    def __repr__(self) -> str:
        return f"Scheduler({self.name!r})"


class QueueClass:
    """A class with which a library's threads exchange items: ``attribute`` (``"SyncQueue"``) of ``module``.

    ``put``, ``get`` and ``wait`` name its methods, with the arguments of those of ``queue.SimpleQueue``. ``get`` raises
    ``queue.Empty``; ``wait`` (optional) returns once an item is there, without removing it. The items' order is
    recorded and replayed like that of the standard library's queues.
    """

    __slots__ = ("attribute", "get", "module", "put", "wait")

    def __init__(
        self, module: str, attribute: str, *, put: str = "put", get: str = "get", wait: str | None = None
    ) -> None:
        self.module: Final = module
        self.attribute: Final = attribute
        self.put: Final = put
        self.get: Final = get
        self.wait: Final = wait

    def __repr__(self) -> str:
        return f"QueueClass({self.module!r}, {self.attribute!r})"


#: Held while dialects are created, for whatever integration: each is created once.
_making: Final = _reality.OwnLock()


class Integration:
    """What tracekit must know about one library. The core applies and restores what is described here.

    - ``modules``: packages that make it a *known SDK*: a run that imported one and captured none of its calls reports
      that.
    - ``patches``: the attributes to replace.
    - ``dialects``: the wire protocols, or a function that returns them, called at the first request; modules only they
      need are imported there.
    - ``agents``: beginnings of the ``user-agent`` header of the SDK's requests, up to its version. ``hosts`` (``*`` as
      in file names): the service's hosts, to recognise requests that something else sends.
    - ``endpoints``: side-effect classes of the service's endpoints.
    - ``telemetry``: code that sends telemetry. ``ambient``: endpoints that receive it.
    - ``credentials``: environment variables without which the SDK refuses to start; a replay sets placeholders for
      missing ones. Of a tuple, one is enough.
    - ``settings``: environment variables that configure what the SDK requests and where (a base URL, a region); a
      divergence names those that changed.
    - ``frameworks``: packages that count as user code. ``wrappers``: packages that wrap functions of the standard
      library, so that their caller counts as the caller.
    - ``native``: functions of clients that connect below Python, watched in every run and replay.
    - ``schedulers``: libraries whose tasks open no lanes; no run begins in one or starts one.
    - ``queues``: classes with which threads of the library exchange items.
    - ``request_ids``: functions (``module:Class.method``) that make an id for the headers of a request, with
      ``uuid4``. Headers are not compared, so these ids are not recorded.
    - ``ids``: functions (``module:function``) that make a ``UUID`` from a clock and from what they remember of the one
      before (``uuid7``). What each returns is recorded as one random number.
    - ``traceparent``: returns the current span of a tracing library as a W3C ``traceparent`` header.
    - ``attach``: puts the seam on one client object, and returns whether it knows that kind; ``detach`` removes it.
    """

    __slots__ = (
        "_dialects", "_making", "agents", "ambient", "attach", "credentials", "detach", "endpoints", "frameworks", "hosts", "ids",
        "modules", "name", "native", "patches", "queues", "request_ids", "schedulers", "settings", "telemetry", "traceparent", "wrappers",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        modules: Sequence[str] = (),
        patches: Sequence[Patch] = (),
        dialects: Sequence[Dialect] | Callable[[], Sequence[Dialect]] = (),
        agents: Sequence[str] = (),
        hosts: Sequence[str] = (),
        endpoints: Sequence[Endpoint] = (),
        ambient: Sequence[Ambient] = (),
        credentials: Sequence[str | tuple[str, ...]] = (),
        settings: Sequence[str] = (),
        frameworks: Sequence[str] = (),
        telemetry: Sequence[Telemetry] = (),
        wrappers: Sequence[str] = (),
        native: Sequence[Native] = (),
        schedulers: Sequence[Scheduler] = (),
        queues: Sequence[QueueClass] = (),
        request_ids: Sequence[str] = (),
        ids: Sequence[str] = (),
        traceparent: Callable[[], str | None] | None = None,
        attach: Callable[[Any], bool] | None = None,
        detach: Callable[[Any], bool] | None = None,
    ) -> None:
        self.name: Final = name
        self.modules: Final = tuple(modules)
        self.patches: Final = tuple(patches)
        self._making: Callable[[], Sequence[Dialect]] | None = dialects if callable(dialects) else None
        self._dialects: tuple[Dialect, ...] = () if callable(dialects) else tuple(dialects)
        self.agents: Final = tuple(agents)
        self.hosts: Final = tuple(hosts)
        self.endpoints: Final = tuple(endpoints)
        self.ambient: Final = tuple(ambient)
        #: Each as the variables of which one is enough.
        self.credentials: Final = tuple((way,) if isinstance(way, str) else way for way in credentials)
        self.settings: Final = tuple(settings)
        self.frameworks: Final = tuple(frameworks)
        self.telemetry: Final = tuple(telemetry)
        self.wrappers: Final = tuple(wrappers)
        self.native: Final = tuple(native)
        self.schedulers: Final = tuple(schedulers)
        self.queues: Final = tuple(queues)
        self.request_ids: Final = tuple(request_ids)
        self.ids: Final = tuple(ids)
        self.traceparent: Final = traceparent
        self.attach: Final = attach
        self.detach: Final = detach

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        """The library's protocols; created on first use if a function creates them."""
        making = self._making
        if making is not None:
            with _making:
                if self._making is not None:
                    self._dialects, self._making = self._made(making), None
        return self._dialects

    @_reality.off_loop()
    def _made(self, making: Callable[[], Sequence[Dialect]]) -> tuple[Dialect, ...]:
        try:
            return tuple(making())
        except Exception as error:
            text = f"tracekit: the dialects of the integration {self.name!r} could not be loaded: {error!r}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
            return ()

    def __repr__(self) -> str:
        return f"Integration({self.name!r})"


@cache
@_reality.off_loop()
def discover() -> dict[str, Integration]:
    """Return every installed integration, by name, without importing any SDK. Searched once per process.

    An integration that fails to load causes a warning and is skipped: observing never breaks the program.
    """
    candidates = _candidates(GROUP) or [(name, _loader(name)) for name in _unregistered()]
    found: dict[str, Integration] = {}
    for integration in _loaded(candidates, Integration, "integration"):
        found.setdefault(integration.name, integration)
    return found


def _candidates(group: str) -> list[tuple[str, Callable[[], Any]]]:
    return [*{one.name: one.load for one in announced(group)}.items()]


def _loaded(candidates: Iterable[tuple[str, Callable[[], Any]]], kind: type[T], what: str) -> Iterator[T]:
    """Yield the objects of this kind; one that can't be loaded causes a warning."""
    for name, load in candidates:
        try:
            found = load()
        except Exception as error:
            warnings.warn(f"tracekit: the {what} {name!r} could not be loaded: {error!r}", RuntimeWarning, stacklevel=3)
            continue
        if isinstance(found, kind):
            yield found


def _unregistered() -> list[str]:
    """Return the ``tracekit_*`` packages on the path, for a checkout that is run without being installed."""
    names: set[str] = set()
    for folder in sys.path:
        try:
            names.update(
                entry for entry in os.listdir(folder or ".") if entry.startswith("tracekit_") and entry.isidentifier()
            )
        except OSError:
            continue
    return sorted(names)


def _loader(name: str) -> Callable[[], Any]:
    def load() -> Any:
        import importlib

        return getattr(importlib.import_module(name), "integration", None)

    return load


# -- forms -------------------------------------------------------------------------------------------------------------
#
# Other forms of runs: export formats, their schemas, and files of theirs that can be compared.


class Form:
    """Another form of runs: events for another system, another tool's recordings, records of one kind of step.

    An instance is announced in the entry-point group ``tracekit.forms``, where the command line looks for it. A
    subclass overrides what the form supports: ``export`` or ``send`` (``tracekit export --to NAME``), ``schema``
    (``tracekit schema NAME``), ``compared``, and ``recognises``, ``recorded`` and ``served`` for files of its own
    (``tracekit verify-determinism FILE``).
    """

    #: The form's name on the command line.
    name: str = ""
    #: A sentence for ``tracekit export --help``.
    summary: str = ""
    #: Whether ``export`` leaves out messages, arguments and results unless requested.
    payloads: bool = False

    @property
    def exports(self) -> bool:
        """Whether runs can be written in this form."""
        return type(self).export is not Form.export

    def export(self, traces: Sequence[Trace], *, payloads: bool = False) -> Iterable[bytes]:
        """Yield the runs in this form, piece by piece. ``traces`` are verified: each run's own file, then those of its
        child processes."""
        raise NotImplementedError

    @property
    def sends(self) -> bool:
        """Whether runs are sent in this form, not written."""
        return type(self).send is not Form.send

    def send(self, traces: Sequence[Trace], *, endpoint: str | None = None, payloads: bool = False) -> str:
        """Send runs to ``endpoint``, or to the endpoint of the form's own settings; return a sentence about what was
        sent."""
        raise NotImplementedError

    def schema(self) -> Mapping[str, Any] | None:
        """Return the form's JSON Schema, or ``None``."""
        return None

    def compared(self, trace: Trace, entries: Iterable[Mapping[str, Any]]) -> bytes | None:
        """Return these entries of ``trace`` in this form, whose hash ``tracekit verify-determinism`` shows; ``None`` to
        show nothing.

        The entry of a step that a replay made holds what the replay produced.
        """
        return None

    def recognises(self, path: str) -> bool:
        """Return whether the file has this form and names no program, so that it can only be served."""
        return False

    def recorded(self, path: str) -> list[bytes]:
        """Return the lines of such a file, in an order that does not depend on how it was written."""
        raise NotImplementedError

    def served(self, path: str) -> list[bytes]:
        """Return the lines of such a file as a program receives them that is answered from it."""
        return self.recorded(path)


@_reality.off_loop()
def forms() -> dict[str, Form]:
    """Return every installed form, by name. One that fails to load causes a warning."""
    return {form.name: form for form in _loaded(_candidates(FORMS), Form, "form")}


# -- routes ------------------------------------------------------------------------------------------------------------
#
# Which dialects may claim a request, its side-effect class, how its URL is recorded, and whether it is ambient.
# Everything that depends on method, URL and user agent alone is computed once per URL.

#: Methods that change nothing (RFC 9110, "safe").
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: How many routes are cached.
_CACHE: Final = 4096

#: What this program has registered, for the whole process; and a cache of the routes derived from it.
_integrations: dict[str, Integration] = {}
_classes: list[tuple[str, str]] = []
_trusted: list[str] = []
_routes: dict[tuple[str, bytes, bytes, bytes, bytes], Route] = {}


class Route:
    """What all requests to one URL with one method share.

    ``url`` is how it is recorded: without user names, and with secrets in the query replaced. ``target`` is the same
    without ``origin``: a model call is identified by what is requested, not by the gateway it goes through.
    ``ambient`` are the variables of which one with this base URL makes it telemetry; true if it is that anyhow.
    """

    __slots__ = ("ambient", "dialects", "name", "origin", "path", "sdk", "sdk_version", "side_effect", "target", "url")

    def __init__(
        self,
        method: str,
        origin: str,
        path: str,
        target: str,
        *,
        ambient: Literal[True] | Mapping[str, tuple[str, ...]],
        dialects: tuple[Dialect, ...],
        side_effect: str,
        sdk: str | None,
        sdk_version: str | None,
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
        self.sdk_version: Final = sdk_version


def register(integration: Integration) -> None:
    """Make this integration's dialects, endpoints and ambient hosts known to the seams. Idempotent."""
    if _integrations.get(integration.name) is not integration:
        _integrations[integration.name] = integration
        _routes.clear()
        _forget_declared()
        declared_anew()


def unregister() -> None:
    """Forget every integration and every class set by the user."""
    _integrations.clear()
    _classes.clear()
    _trusted.clear()
    _routes.clear()
    _forget_declared()
    declared_anew()


def known() -> Mapping[str, Integration]:
    """Return the registered integrations by name."""
    return _integrations


def every() -> Collection[Integration]:
    """Return the installed integrations and those that the program has registered itself."""
    return {**discover(), **_integrations}.values()


class CapturedClients:
    """The integrations that captured a request in a run; ``None`` if the run does not need to know at its end."""

    names: set[str] | None = None


def note_captured(state: RunState, route: Route, dialect: Dialect | None = None) -> None:
    """Note that a request of this run was captured by its integration."""
    names = state.extras.of(CapturedClients).names
    if names is not None:
        names.update(one.name for one in _integrations.values() if one.name == route.sdk or dialect in one.dialects)


def declare_endpoints(classes: Mapping[str, str]) -> None:
    """Add the user's side-effect classes, ``{"[METHOD ]host[/path]": class}`` with ``*`` as in file names; the first
    match applies."""
    for pattern, side_effect in classes.items():
        if side_effect not in ("read_only", "reversible", "irreversible"):
            raise ValueError(
                f"http_classes[{pattern!r}]: {side_effect!r} is not one of read_only, reversible, irreversible"
            )
    _classes[:0] = classes.items()
    _routes.clear()


def trust(servers: Iterable[str]) -> None:
    """Add MCP servers, by URL or command line (``*`` as in file names), whose annotations the user trusts."""
    if isinstance(servers, str):
        raise ValueError(f"mcp_trust is a list of servers, not one text: [{servers!r}]")
    _trusted.extend(servers)


def trusted(server: str) -> bool:
    """Return whether the user trusts what an MCP server (its URL or command line) says about which of its tools only
    read."""
    return any(fnmatchcase(server, pattern) for pattern in _trusted)


def resolve(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, agent: bytes) -> Route:
    """Return the route of a request; ``raw_path`` is path and query as sent, ``agent`` the ``user-agent`` header."""
    key = (method, scheme, netloc, raw_path, agent)
    route = _routes.get(key)
    if route is None:
        if len(_routes) >= _CACHE:
            _routes.clear()
        route = _routes[key] = _route(method, scheme, netloc, raw_path, agent)
    return route


def shown(url: str) -> str:
    """Return a URL without user name and password. Secrets in the query are left for the run's redactor."""
    origin, slashes, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{origin}://{host.rpartition('@')[2]}{slash}{path}" if slashes else url


def _route(method: str, scheme: bytes, netloc: bytes, raw_path: bytes, agent: bytes) -> Route:
    host = netloc.decode("ascii", "replace").rpartition("@")[2].lower()
    path, mark, query = raw_path.decode("ascii", "replace").partition("?")
    sdk, version = _sdk(agent.decode("latin-1"))
    services = [i for i in _integrations.values() if any(_is_host(pattern, host) for pattern in i.hosts)]
    own = list(dict.fromkeys([*services, sdk] if sdk is not None else services))
    others = [i for i in _integrations.values() if i not in own]
    return Route(
        method,
        f"{scheme.decode('ascii', 'replace')}://{host}",
        path,
        path + mark + query,
        ambient=_ambient(method, host, path),
        dialects=(
            *(d for i in own for d in i.dialects if d.claims(method, path, True)),
            *(d for i in others for d in i.dialects if d.claims(method, path, False)),
        ),
        side_effect=_side_effect(method, host, path, own),
        sdk=sdk.name if sdk is not None else None,
        sdk_version=version,
    )


def _sdk(agent: str) -> tuple[Integration | None, str | None]:
    """Return the integration whose SDK sent the request according to the ``user-agent`` header, and the SDK's version
    if stated."""
    for integration in _integrations.values():
        for beginning in integration.agents:
            if agent.startswith(beginning):
                version = agent[len(beginning) :].lstrip("/ ").partition(" ")[0]
                return integration, version if version[:1].isdigit() else None
    return None, None


def _side_effect(method: str, host: str, path: str, own: Iterable[Integration]) -> str:
    for pattern, side_effect in _classes:
        if _fits(pattern, method, host, path):
            return side_effect
    for integration in own:
        found = _endpoint(integration.endpoints, method, path)
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
        return _is_host(where, host)
    return fnmatchcase(host + path, where) or fnmatchcase(host.partition(":")[0] + path, where)


def _ambient(method: str, host: str, path: str) -> Literal[True] | Mapping[str, tuple[str, ...]]:
    """Return whether a request is telemetry; else the base URLs, without a scheme, that would make it so, by variable."""
    bases: dict[str, tuple[str, ...]] = {}
    for integration in _integrations.values():
        for entry in integration.ambient:
            if entry.methods and method not in entry.methods:
                continue
            if path.startswith(entry.path) and _is_host(entry.host, host):
                return True
            at = path.find(entry.path)
            if entry.variable and at >= 0:
                bases[entry.variable] = (*bases.get(entry.variable, ()), host + path[:at])
    return bases


def base_url(variable: str) -> str | None:
    """Return the base URL that an environment variable names: host and path, without user name and scheme."""
    value = os.environ.get(variable)
    if not value:
        return None
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    return parts.netloc.rpartition("@")[2].lower() + parts.path.rstrip("/")


def _is_host(pattern: str, host: str) -> bool:
    """Return whether a host, with or without port, matches the pattern."""
    return fnmatchcase(host, pattern) or fnmatchcase(host.partition(":")[0], pattern)


# -- telemetry ---------------------------------------------------------------------------------------------------------
#
# Which code sends telemetry, by its module; ``callers`` finds out which code is calling.

#: A cache, by module name: the senders in it, each with the beginning of its functions' names (empty: all of them).
_senders: dict[str, tuple[tuple[str, Telemetry], ...]] = {}
#: A cache of callers by file name; maintained by ``callers``.
callers_by_file: Final[dict[str, Any]] = {}
#: The same for code that passes something to another thread.
movers_by_file: Final[dict[str, Any]] = {}
#: The sort of code at a file and module; maintained by ``guard``.
sort_by_place: Final[dict[tuple[str, Any], int]] = {}


class _Packages:
    """Whether a module belongs to a package that some integration names, and is none of the modules ``but``; cached by the
    module's name."""

    def __init__(
        self, named: Callable[[Integration], Iterable[str]], but: Callable[[Integration], Iterable[str]] | None = None
    ) -> None:
        self._named: Final = named
        self._but: Final = but
        self._found: Final[dict[str, bool]] = {}

    def __call__(self, module: str) -> bool:
        found = self._found.get(module)
        if found is None:
            found = self._is_in(self._named, module) and not (self._but and self._is_in(self._but, module))
            self._found[module] = found
        return found

    @staticmethod
    def _is_in(named: Callable[[Integration], Iterable[str]], module: str) -> bool:
        packages = (one for integration in every() for one in named(integration))
        return any(module == one or module.startswith(one + ".") for one in packages)

    def forget(self) -> None:
        self._found.clear()


#: Packages that send telemetry; they may wrap what the program does.
is_observer: Final = _Packages(
    lambda integration: (one for sent in integration.telemetry for one in sent.packages),
    but=lambda integration: (one for sent in integration.telemetry for one in sent.reads),
)
#: Packages whose calls integrations capture.
is_captured: Final = _Packages(lambda integration: integration.modules)
#: Packages that only wrap functions of the standard library; their caller counts as the caller.
is_wrapper: Final = _Packages(lambda integration: integration.wrappers)


def telemetry_of(module: str, function: str) -> Telemetry | None:
    """Return whose telemetry a function (its ``__qualname__``) of this module sends; ``None`` if it is not a sender."""
    found = _senders.get(module)
    if found is None:
        found = _senders[module] = _senders_in(module)
    for beginning, telemetry in found:
        if function.startswith(beginning):
            return telemetry
    return None


def _forget_declared() -> None:
    exporting_modules.cache_clear()
    sending_packages.cache_clear()
    request_id_makers.cache_clear()
    id_makers.cache_clear()
    schedulers.cache_clear()
    _senders.clear()
    for packages in (is_observer, is_captured, is_wrapper):
        packages.forget()
    callers_by_file.clear()
    movers_by_file.clear()
    sort_by_place.clear()


def exports_telemetry(module: str, function: str) -> bool:
    """Return whether a function of this module only passes data to an exporter."""
    return any(
        module == place and function.startswith(name)
        for _, telemetry in _senders[module]
        for place, _, name in (one.partition(":") for one in telemetry.exporting)
    )


@cache
def exporting_modules() -> frozenset[str]:
    """Return the modules with functions that only pass data to an exporter."""
    return frozenset(
        place.partition(":")[0] for one in every() for telemetry in one.telemetry for place in telemetry.exporting
    )


@cache
def request_id_makers() -> frozenset[tuple[str, str]]:
    """Return the functions that make ids for the headers of requests: the module and ``__qualname__`` of each."""
    makers = (maker.partition(":") for integration in every() for maker in integration.request_ids)
    return frozenset((module, function) for module, _, function in makers)


@cache
def id_makers() -> list[tuple[str, str]]:
    """Return the functions of packages that make ids from what they remember: the module and the name of each."""
    makers = (maker.partition(":") for integration in every() for maker in integration.ids)
    return [(module, function) for module, _, function in makers]


@cache
def schedulers() -> list[Scheduler]:
    """Return the schedulers of libraries whose tasks open no lanes."""
    return [scheduler for integration in every() for scheduler in integration.schedulers]


@cache
def sending_packages() -> frozenset[str]:
    """Return the packages and modules in which something sends telemetry."""
    return frozenset(
        sender.partition(":")[0] for one in every() for telemetry in one.telemetry for sender in telemetry.senders
    )


def sends_telemetry(module: str) -> bool:
    """Return whether some function of this module sends telemetry."""
    if module not in _senders:
        telemetry_of(module, "")
    return bool(_senders[module])


def _senders_in(module: str) -> tuple[tuple[str, Telemetry], ...]:
    found = []
    for integration in every():
        for telemetry in integration.telemetry:
            for sender in telemetry.senders:
                place, _, function = sender.partition(":")
                if module == place or module.startswith(place + "."):
                    found.append((function, telemetry))
    return tuple(found)


# -- tasks -------------------------------------------------------------------------------------------------------------
#
# Work that reaches a program from outside, such as tasks of a queue or requests to a server. A replayed or resumed
# program does not listen for any: it is given those in the log.


class TaskSource(Protocol):
    """A source of a program's tasks: a queue, a server, the handlers of a framework."""

    def has_tasks(self, trace: Trace) -> bool:
        """Return whether the log has tasks of this source."""
        ...

    def replay_tasks(self) -> None:
        """Give every recorded task to the program again, inside the active replay or resumed run.

        Returns when all are done; raises what makes the replay fail.
        """
        ...


#: The task sources of this program: definitions, like functions.
_sources: Final[list[TaskSource]] = []


def register_tasks(source: TaskSource) -> None:
    """Register a source of this program's tasks; in a replay it is used where the program would listen for work."""
    if source not in _sources:
        _sources.append(source)


def task_sources() -> Sequence[TaskSource]:
    """Return the registered sources."""
    return tuple(_sources)


# -- transports --------------------------------------------------------------------------------------------------------
#
# Capturing one client's transport without patching its class.


def attach(transport: Any) -> None:
    """Put the seam on this one HTTP client object. Idempotent.

    Raises ``TypeError`` if no installed integration knows this kind of client.
    """
    for integration in discover().values():
        if integration.attach is not None and integration.attach(transport):
            register(integration)
            return
    raise TypeError(
        f"no installed integration captures a {type(transport).__module__}.{type(transport).__qualname__}; "
        f"installed are {', '.join(sorted(discover())) or 'none'}"
    )


def detach(transport: Any) -> None:
    """Remove the seam; do nothing if there is none."""
    for integration in discover().values():
        if integration.detach is not None and integration.detach(transport):
            return


# -- credentials -------------------------------------------------------------------------------------------------------
#
# Placeholders for credentials without which SDKs refuse to start: a replay needs none, since nothing is sent.

#: Recognisable wherever it turns up.
PLACEHOLDER: Final = STAND_IN


def facts_to_record() -> dict[str, Any]:
    """Return what a recording keeps of the program's SDKs, as far as it is set here.

    - ``credentials``: the names of their credential variables.
    - ``settings``: the variables that configure what they request and where, with their values.
    - ``traceparent``: the current span in W3C's form, from an integration, else from the environment.
    """
    variables = environment_variables()
    credentials: set[str] = set()
    settings: dict[str, str] = {}
    span: str | None = None
    for one in discover().values():
        for name in one.settings:
            if value := variables.get(name):
                settings[name] = value
        for way in one.credentials:
            credentials.update(filter(variables.get, way))
        if span is None and one.traceparent is not None:
            span = one.traceparent()
    facts: dict[str, Any] = {"credentials": sorted(credentials)} if credentials else {}
    if settings:
        facts["settings"] = settings
    if span or (span := variables.get("TRACEPARENT")):
        facts["traceparent"] = span[:512]
    return facts


def replayed_credentials(started: object, ended: object) -> list[str]:
    """Return the credential variables for which a replay supplies placeholders: those that the recorded process had.

    ``started`` and ``ended`` are ``meta`` of the first and the last entry of its trace. A program may set variables
    itself, from a file that a recording does not keep, so those set at the end count, too. If the trace does not say
    what was set at the end, an SDK that had nothing at the beginning gets everything that it accepts.
    """
    at_start, at_end = _listed(started), _listed(ended)
    had = set(at_start or ()) | set(at_end or ())
    if at_end is None:
        for one in discover().values():
            if had.isdisjoint(name for way in one.credentials for name in way):
                had.update(way[0] for way in one.credentials)
    return sorted(had)


def recorded_credentials(path: str) -> list[str]:
    """Like ``replayed_credentials``, for a trace file, which is not verified."""
    from .._journal.store import first_entry, last_entry

    return replayed_credentials(first_entry(path).get("meta"), last_entry(path).get("meta"))


def _listed(meta: object) -> list[str] | None:
    names = meta.get("credentials") if isinstance(meta, Mapping) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def supply_placeholders(recorded: Iterable[str] | None = None) -> Callable[[], None]:
    """Set a placeholder for each credential variable that is missing or empty; return a function that removes them.

    ``recorded`` are the variables that the recorded process had; ``None`` if that is unknown. An SDK gets these and no
    others: SDKs choose a service by the variables that are set, refuse to choose between two, and raise if there is
    none, as they then did in the recording. Variables that the program changes in the meantime are left alone.
    """
    before: dict[str, str | None] = {}
    for name in _variables(frozenset(replayed_credentials(None, None) if recorded is None else recorded)):
        before.setdefault(name, os.environ.get(name))
        os.environ[name] = _value(name)

    def restore() -> None:
        for name, value in before.items():
            if os.environ.get(name) != _value(name):
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        before.clear()

    return restore


def _variables(recorded: frozenset[str]) -> list[str]:
    """Return the variables that SDKs require, except those for which an alternative is set."""
    return [
        had[0] if (had := [name for name in names if name in recorded]) else names[0]
        for integration in discover().values()
        for names in integration.credentials
        if not recorded.isdisjoint(names) or _is_switch(names[0])
        if not any(os.environ.get(name) for name in names)
    ]


def _is_switch(name: str) -> bool:
    return name.endswith("_DISABLED")


def _value(name: str) -> str:
    return "true" if _is_switch(name) else PLACEHOLDER
