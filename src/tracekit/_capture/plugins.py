"""What an integration says of itself, and how integrations are found; the public face is ``tracekit.integration``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

__all__ = ["GROUP", "Ambient", "Claim", "Dialect", "Endpoint", "Integration", "Patch", "Reading", "discover"]

#: The entry-point group in which integrations announce themselves.
GROUP: Final = "tracekit.integrations"


class Patch:
    """One attribute to be replaced: ``attribute`` (``"Client.send"``) of ``module``, once that module is imported.

    ``wrap`` gets the original and returns what takes its place. The same function reached by two names (one module that
    stands for another) is replaced once. What a version of the library does not have is left out.
    """

    __slots__ = ("attribute", "module", "wrap")

    def __init__(self, module: str, attribute: str, wrap: Callable[[Any], Any]) -> None:
        self.module: Final = module
        self.attribute: Final = attribute
        self.wrap: Final = wrap

    def __repr__(self) -> str:
        return f"Patch({self.module!r}, {self.attribute!r})"


class Claim:
    """What a dialect recognised in a request: the model, what replay compares beside the body, what is told but not compared."""

    __slots__ = ("info", "model", "signature")

    def __init__(
        self, model: str, signature: Mapping[str, Any] | None = None, info: Mapping[str, Any] | None = None
    ) -> None:
        self.model: Final = model
        self.signature: Final = signature
        self.info: Final = info


class Reading:
    """A model call as a dialect reads it, computed when asked for, never stored.

    ``text`` is the answer's text, ``tool_calls`` a list of ``{"id", "name", "arguments"}`` (arguments parsed where they are
    JSON), ``refusal`` a text, ``reasoning`` the visible part of it, ``meta`` the fields of the outcome's ``meta``.
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
    """Reads the requests and answers of one wire protocol. Pure: no state, no I/O, no clock.

    ``name`` is ``"openai.chat"``, ``provider`` and ``operation`` are the values of OpenTelemetry's ``gen_ai.provider.name`` and
    ``gen_ai.operation.name``.
    """

    name: str
    provider: str
    operation: str

    def claims(self, method: str, path: str) -> bool:
        """Whether a request to ``path`` (no query) may be of this protocol; asked once per URL."""
        ...

    def request(self, path: str, body: object) -> Claim | None:
        """What is asked for, or ``None`` if the body (parsed JSON, the parts of a form, or text) is not of this protocol.

        A claimed request is a model call and counts as read-only, so the path alone must not be enough.
        """
        ...

    def response(self, body: object) -> Mapping[str, Any]:
        """``meta`` of an answer: ``model``, ``id``, ``finish_reasons``, ``usage`` … as far as they are there."""
        ...

    def stream(self, pieces: Sequence[bytes]) -> Mapping[str, Any]:
        """The same of the raw pieces of a stream. It runs while recording: read as few of them as will do."""
        ...

    def finished(self, tail: bytes) -> bool:
        """Whether a stream that ends in ``tail`` has said all that it had to say."""
        ...

    def read(self, body: object) -> Reading:
        """An answer (parsed JSON, or the whole bytes of a stream) read in full."""
        ...


class Endpoint:
    """The side-effect class of an SDK's endpoint: ``method`` (``"*"`` for any) and the end of the path, ``*`` for one segment."""

    __slots__ = ("method", "segments", "side_effect")

    def __init__(self, method: str, path: str, side_effect: str) -> None:
        self.method: Final = method
        self.segments: Final = tuple(path.strip("/").split("/"))
        self.side_effect: Final = side_effect

    def matches(self, method: str, segments: Sequence[str]) -> bool:
        if self.method not in ("*", method) or len(segments) < len(self.segments):
            return False
        tail = segments[-len(self.segments) :]
        return all(mine in ("*", theirs) for mine, theirs in zip(self.segments, tail, strict=True))


class Ambient:
    """Traffic that is not the program's: a host (or ``"*.domain"``, ``"*"``), the beginning of a path, methods.

    ``variable`` names an environment variable that holds another base URL of the same service.
    """

    __slots__ = ("host", "methods", "path", "variable")

    def __init__(self, host: str, path: str = "/", *, methods: Iterable[str] = (), variable: str | None = None) -> None:
        self.host: Final = host
        self.path: Final = path
        self.methods: Final = frozenset(methods)
        self.variable: Final = variable


class Integration:
    """What tracekit must know of one library. The core applies and restores what is described here.

    ``modules`` are the packages whose presence makes it a *known SDK* (a run that imported one and captured nothing of it
    says so). ``credentials`` are the environment variables without which the SDK refuses to start; a replay sets a
    placeholder where one is absent. ``frameworks`` are packages that count as user code;
    ``background`` ones are no part of a run, nor is what they start (telemetry). ``agents`` are the beginnings of the
    ``user-agent`` header by which the SDK's requests are known. ``attach`` puts the seam on one client object, and says whether
    it knows that kind; ``detach`` takes it away.
    """

    __slots__ = (
        "agents", "ambient", "attach", "background", "credentials", "detach", "dialects", "endpoints", "frameworks", "modules", "name",
        "patches",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        *,
        modules: Sequence[str] = (),
        patches: Sequence[Patch] = (),
        dialects: Sequence[Dialect] = (),
        agents: Sequence[str] = (),
        endpoints: Sequence[Endpoint] = (),
        ambient: Sequence[Ambient] = (),
        credentials: Sequence[str] = (),
        frameworks: Sequence[str] = (),
        background: Sequence[str] = (),
        attach: Callable[[Any], bool] | None = None,
        detach: Callable[[Any], bool] | None = None,
    ) -> None:
        self.name: Final = name
        self.modules: Final = tuple(modules)
        self.patches: Final = tuple(patches)
        self.dialects: Final = tuple(dialects)
        self.agents: Final = tuple(agents)
        self.endpoints: Final = tuple(endpoints)
        self.ambient: Final = tuple(ambient)
        self.credentials: Final = tuple(credentials)
        self.frameworks: Final = tuple(frameworks)
        self.background: Final = tuple(background)
        self.attach: Final = attach
        self.detach: Final = detach

    def __repr__(self) -> str:
        return f"Integration({self.name!r})"


_found: dict[str, Integration] | None = None


def discover() -> dict[str, Integration]:
    """Every integration that is installed, by name. None of them imports its SDK. Looked for once per process.

    One that fails to load is reported as a warning and left out: observing never breaks the program.
    """
    global _found
    if _found is None:
        _found = {}
        for name, load in _candidates():
            try:
                integration = load()
            except Exception as error:
                warnings.warn(
                    f"tracekit: the integration {name!r} could not be loaded: {error!r}", RuntimeWarning, stacklevel=2
                )
                continue
            if isinstance(integration, Integration):
                _found.setdefault(integration.name, integration)
    return _found


def _candidates() -> list[tuple[str, Callable[[], Any]]]:
    from importlib.metadata import entry_points

    points = {point.name: point.load for point in entry_points(group=GROUP)}
    return list(points.items()) or [(name, _loader(name)) for name in _unregistered()]


def _unregistered() -> list[str]:
    """``tracekit_*`` packages on the path, for a checkout that is run without being installed."""
    import os

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
