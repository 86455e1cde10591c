"""``instrument()`` and ``uninstrument()``: the patches that integrations describe, applied when their libraries are there.

No library is imported in order to patch it. Clients that were made earlier are covered, since it is the class that is patched.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from threading import RLock
from types import ModuleType
from typing import Any, Final

from .._reality import free_in_forks
from .._runtime.session import Session
from . import callers, commands
from .patch import AttributePatch, DecoratedPatch, PatchStack, when_imported
from .plugins import CapturedClients, Integration, Patch, classify, discover, known, register, trust, unregister

__all__ = ["cure", "instrument", "instrumented", "packages", "run_ended", "run_started", "uninstrument"]

_lock: Final = free_in_forks(RLock())
_stack: Final = PatchStack()
#: What the program has asked for, for the whole process.
_wanted: Final[dict[str, Integration]] = {}
#: What has been patched, by owner and name: one function can be reached through two modules.
_places: Final[set[tuple[int, str]]] = set()


def instrument(
    *names: str,
    user_modules: Iterable[str | ModuleType] = (),
    http_classes: Mapping[str, str] | None = None,
    mcp_trust: Iterable[str] = (),
    processes: Mapping[str, str] | None = None,
) -> None:
    """Capture the calls of every SDK that is installed, or of those named, whether it is imported already or will be.

    ``user_modules`` are packages that count as the user's own code, so that their clock and random reads belong to the run.
    ``http_classes`` gives side-effect classes to plain HTTP requests, ``{"[METHOD ]host[/path]": "read_only"}`` with ``*`` as
    in file names; without one GET, HEAD and OPTIONS are read-only and everything else is irreversible.
    ``mcp_trust`` names the MCP servers, by URL or command line (``*`` as in file names), whose annotations are believed: that a
    tool only reads, or that what it does can be undone; every tool of any other server is irreversible.
    ``processes`` gives side-effect classes to processes that do not join a run, ``{"git status*": "read_only"}``, by their command;
    without one a process is irreversible, but for those that are known to ask only (``uname``, ``git rev-parse`` …).
    Calling it again adds to the earlier calls. Raises ``ValueError`` for a name that no installed integration has.

    Examples:
        >>> import tracekit
        >>> tracekit.instrument()  # every installed SDK that tracekit knows
        >>> tracekit.instrument("openai", "httpx", http_classes={"POST search.example.com": "read_only"})
        >>> tracekit.uninstrument()
    """
    found = discover()
    for name in names:
        if name not in found:
            raise ValueError(f"no integration {name!r} is installed; there are: {', '.join(sorted(found)) or 'none'}")
    with _lock:
        classify(http_classes or {})
        trust(mcp_trust)
        commands.classify(processes or {})
        for module in user_modules:
            callers.include(module)
        for integration in found.values():
            if not names or integration.name in names or integration.attach is not None:
                _want(integration)
        _apply()


def uninstrument() -> None:
    """Restore everything that ``instrument`` replaced, exactly, and forget its arguments."""
    with _lock:
        _wanted.clear()
        _places.clear()
        _stack.restore()
        unregister()
        commands.forget_classes()
        callers.forget()


def instrumented() -> bool:
    """Whether ``instrument`` is in force."""
    return bool(_wanted)


def cure() -> str | None:
    """What has a library captured that is loaded and that no integration in force patches, as advice; ``None`` where there is none."""
    with _lock:
        beside = [
            integration.name
            for integration in {**discover(), **known()}.values()
            if integration.name not in _wanted and any(patch.module in sys.modules for patch in integration.patches)
        ]
        if not beside:
            return None
        if _wanted:
            return f"Name {' and '.join(map(repr, beside))} in tracekit.instrument() as well, or name none, which captures all it knows"
    return "Call tracekit.instrument() before the run: it captures what HTTP clients and SDKs send"


def packages() -> list[str]:
    """The distributions whose versions a run notes: those that the registered integrations are for."""
    return [name for integration in known().values() for name in integration.modules]


def _want(integration: Integration) -> None:
    _wanted[integration.name] = integration
    register(integration)
    module = sys.modules.get(f"tracekit_{integration.name}")
    if module is not None and module.__file__:
        callers.exclude(os.path.dirname(module.__file__))
    for package in integration.frameworks:
        callers.include_package(package)
    for telemetry in integration.telemetry:
        for package in telemetry.packages:
            callers.exclude_package(package)
    for patch in integration.patches:
        when_imported(patch.module, _apply)


def _apply() -> None:
    """Apply what can be applied now: asked for, its module loaded, not done yet."""
    with _lock:
        for integration in _wanted.values():
            for patch in integration.patches:
                module = sys.modules.get(patch.module)
                if module is not None:
                    _patch(module, patch)


def _patch(module: ModuleType, patch: Patch) -> None:
    *way, name = patch.attribute.split(".")
    owner: Any = module
    for step in way:
        owner = getattr(owner, step, None)
    original = vars(owner).get(name) if owner is not None else None
    place = (id(owner), name)
    if original is None or place in _places:
        return
    _places.add(place)
    if patch.decorated:
        if hasattr(original, "__wrapped__"):
            _stack.apply(DecoratedPatch(original, patch.wrap(original.__wrapped__)))
    else:
        _stack.apply(AttributePatch(owner, name, patch.wrap(original)))


# -- SDKs of which nothing is captured ---------------------------------------------------------------------------------


class _Imported:
    """The modules that were imported when a run began without ``instrument()``; ``None`` where it was in force."""

    before: frozenset[str] | None = None


def run_started(session: Session) -> None:
    """Remember which SDKs were imported when the run began, to note which of them make captured calls."""
    if not _wanted:
        session.state.extras.of(_Imported).before = frozenset(sys.modules)
        session.state.extras.of(CapturedClients).names = set()


def run_ended(session: Session) -> None:
    """Warn, at the end of a run, of an SDK that was imported and of which nothing was captured."""
    before = session.state.extras.of(_Imported).before
    captured = session.state.extras.of(CapturedClients).names or ()
    if before is None or _wanted:
        return
    for integration in {**discover(), **known()}.values():  # who captures one client has not thought of every SDK
        loaded = [name for name in integration.modules if name in sys.modules] if integration.agents else []
        if loaded and integration.name not in captured:
            # One that was imported for this run is almost surely used in it; of another nothing is known.
            earlier = all(name in before for name in loaded)
            session.report.warn(
                f"{integration.name} was imported and none of its calls was captured: call tracekit.instrument() before the run",
                quiet=earlier,
                uncaptured=not earlier,
            )
