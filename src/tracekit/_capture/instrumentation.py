"""``instrument()`` and ``uninstrument()``: apply the patches that integrations describe, and restore.

A patch is applied once its library is imported.

No library is imported in order to patch it. Since classes are patched, clients created earlier are covered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Final

from .._lazy import imported
from .._reality import OwnLock
from .._runtime.session import Session
from . import callers, commands
from .patch import AttributePatch, DecoratedPatch, Patch, PatchStack, owner_of, when_imported
from .plugins import (
    CapturedClients,
    Integration,
    declare_endpoints,
    discover,
    every,
    register,
    trust,
    unregister,
)

__all__ = ["cure", "instrument", "instrumented", "run_ended", "run_started", "uninstrument"]

_lock: Final = OwnLock()
_stack: Final = PatchStack()
#: The integrations that the program has requested, for the whole process.
_wanted: Final[dict[str, Integration]] = {}
#: What has been patched, by owner and name: a function may be reachable through two modules.
_places: Final[set[tuple[int, str]]] = set()
#: What could not be patched, since this version of the library is not as its integration expects.
_failed: Final[dict[str, str]] = {}


def instrument(
    *names: str,
    user_modules: Iterable[str | ModuleType] = (),
    http_classes: Mapping[str, str] | None = None,
    mcp_trust: Iterable[str] = (),
    processes: Mapping[str, str] | None = None,
) -> None:
    """Capture the calls of all installed SDKs, or of those named, whether they are imported already or later.

    - ``user_modules``: packages that count as the program's own code, so that their clock and random reads are
      captured.
    - ``http_classes``: side-effect classes of plain HTTP requests, ``{"[METHOD ]host[/path]": "read_only"}`` with ``*``
      as in file names. By default GET, HEAD and OPTIONS are read-only and everything else is irreversible.
    - ``mcp_trust``: MCP servers, by URL or command line (``*`` as in file names), whose annotations are trusted: that a
      tool only reads, or that its effect can be undone. Tools of all other servers are irreversible.
    - ``processes``: side-effect classes of processes that do not join a run, by their command, ``{"git status*":
      "read_only"}``. By default a process is irreversible unless it is known only to read (``uname``, ``git rev-parse``
      …).

    Further calls add to earlier ones. Raises ``ValueError`` for a name that no installed integration has.

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
        declare_endpoints(http_classes or {})
        trust(mcp_trust)
        if processes:
            commands.declare_commands(processes)
        for module in user_modules:
            callers.include(module)
        for integration in found.values():
            if not names or integration.name in names or integration.attach is not None:
                _want(integration)
        _apply()


def uninstrument() -> None:
    """Restore exactly what ``instrument`` replaced, and forget its arguments."""
    with _lock:
        _wanted.clear()
        _places.clear()
        _failed.clear()
        _stack.restore()
        unregister()
        if imported(commands):
            commands.forget_classes()
        callers.forget()


def instrumented() -> bool:
    """Return whether ``instrument`` is in effect."""
    return bool(_wanted)


def cure() -> str | None:
    """Return advice on how to capture a loaded library that no active integration patches; ``None`` if there is no such
    library."""
    with _lock:
        beside = [
            integration.name
            for integration in every()
            if integration.name not in _wanted and any(patch.module in sys.modules for patch in integration.patches)
        ]
        if not beside:
            return None
        if _wanted:
            return f"Name {' and '.join(map(repr, beside))} in tracekit.instrument() as well, or name none, which captures all it knows"
    return "Call tracekit.instrument() before the run: it captures what HTTP clients and SDKs send"


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
            callers.exclude_package(package, but=telemetry.reads)
    for patch in integration.patches:
        when_imported(patch.module, _apply)


def _apply() -> None:
    """Apply the patches that can be applied now: requested, module loaded, not applied yet."""
    with _lock:
        for integration in _wanted.values():
            for patch in integration.patches:
                module = sys.modules.get(patch.module)
                if module is not None:
                    _patch(module, patch)


def _patch(module: ModuleType, patch: Patch) -> None:
    owner, name = owner_of(module, patch.attribute)
    original = vars(owner).get(name) if owner is not None else None
    place = (id(owner), name)
    if original is None or place in _places:
        return
    _places.add(place)
    try:
        if patch.decorated:
            if hasattr(original, "__wrapped__"):
                _stack.apply(DecoratedPatch(original, patch.replacement(original.__wrapped__)))
        else:
            _stack.apply(AttributePatch(owner, name, patch.replacement(original)))
    except Exception as error:  # the program's own import of the library must not fail
        target = f"{patch.module}.{patch.attribute}"
        text = f"{target} of this version is not as tracekit expects ({type(error).__name__}: {error})"
        _failed[target] = f"{text}: what goes through it is not captured"


# -- SDKs of which nothing is captured ---------------------------------------------------------------------------------


class _Imported:
    """The modules that were imported when a run began without ``instrument()``; ``None`` if it was in effect."""

    before: tuple[str, ...] | None = None  # no set: to hash thousands of names takes longer than to open a run's file


def run_started(session: Session) -> None:
    """Remember which SDKs were imported when the run began, and note from now on which of them make captured calls."""
    if not _wanted:
        session.state.extras.of(_Imported).before = tuple(sys.modules)
        session.state.extras.of(CapturedClients).names = set()


def run_ended(session: Session) -> None:
    """Warn, at the end of a run, about SDKs that were imported but none of whose calls were captured, and about what could
    not be patched."""
    for sentence in _failed.values():
        session.report.warn(sentence, uncaptured=True)
    before = session.state.extras.of(_Imported).before
    captured = session.state.extras.of(CapturedClients).names or ()
    if before is None or _wanted:
        return
    for integration in every():  # capturing one client by name does not mean that every SDK was considered
        loaded = [name for name in integration.modules if name in sys.modules] if integration.agents else []
        if loaded and integration.name not in captured:
            # An SDK imported during the run was almost certainly used in it; about others nothing is known.
            earlier = all(name in before for name in loaded)
            session.report.warn(
                f"{integration.name} was imported and none of its calls was captured: call tracekit.instrument() before the run",
                quiet=earlier,
                uncaptured=not earlier,
            )
