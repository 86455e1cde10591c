"""What user code reads from outside: environment variables."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from sys import _getframe
from types import FrameType
from typing import Any, Final

from .._runtime.session import Scope, current
from .callers import walk
from .patch import AttributePatch, Patch, Switch
from .plugins import PLACEHOLDER

__all__ = ["activate", "deactivate"]

#: Variables that say where a process runs, not what it does: a program may have others in a replay.
_PLACE: Final = frozenset({
    "HOME", "PATH", "TMPDIR", "TEMP", "TMP", "PWD", "OLDPWD", "SHLVL", "SHELL", "VIRTUAL_ENV", "_",
    "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR",
})  # fmt: skip
_OF_PLACE: Final = ("PYTHON", "PYTEST_", "TERM_", "TRACEKIT_")
#: Modules by which user code asks ``os.environ``.
_BETWEEN: Final = frozenset(("os", "_collections_abc", "collections.abc", __name__))


def _asks() -> Scope | None:
    """The scope of the run, where the running code is user code and part of it, outside every step."""
    scope = current.get()
    if scope is None or scope.live:
        return None
    frame: FrameType | None = _getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return scope if walk(frame) else None


# -- environment variables ---------------------------------------------------------------------------------------------


class _Written:
    """The variables that were set or taken away while runs are active: their values are the program's own."""

    def __init__(self) -> None:
        self.names: Final[set[str]] = set()


_written: Final = _Written()


class _Iterated(threading.local):
    """The names that this thread has been given by an iteration, as the very objects: whoever looks them up wants all variables, to
    hand them on to another process, and none of them."""

    def __init__(self) -> None:
        self.names: dict[int, Any] = {}


_iterated: Final = _Iterated()


def _is_input(environment: Any, name: Any) -> bool:
    if environment is not os.environ or type(name) is not str:
        return False
    if name in _PLACE or name.startswith(_OF_PLACE):
        return False
    return _iterated.names.get(id(name)) is not name


def _getting(original: Any) -> Any:
    def __getitem__(self: Any, key: Any) -> Any:
        scope = _asks() if current.get() is not None and _is_input(self, key) else None
        if scope is None:
            return original(self, key)
        try:
            value = original(self, key)
        except KeyError:
            value = None
        # What a replay supplies, so that SDKs can be made without a key, is no value of the program's.
        found = _read(scope, key, None if value == PLACEHOLDER else value)
        if found is None:
            raise KeyError(key)
        return value if value == PLACEHOLDER else found

    return __getitem__


def _read(scope: Scope, name: str, value: str | None) -> Any:
    return scope.session.input_read(scope, "environment", name, value, own=name in _written.names)


def _iterating(original: Any) -> Any:
    def __iter__(self: Any) -> Iterator[Any]:
        found = list(original(self))
        _iterated.names = {id(name): name for name in found}
        return iter(found)

    return __iter__


def _setting(original: Any) -> Any:
    def __setitem__(self: Any, key: Any, value: Any) -> None:
        original(self, key, value)
        if self is os.environ:
            _written.names.add(key)

    return __setitem__


def _deleting(original: Any) -> Any:
    def __delitem__(self: Any, key: Any) -> None:
        try:
            original(self, key)
        except KeyError:
            # In a replay the recorded one may serve where there is none: that is what is taken away.
            scope = _asks() if _is_input(self, key) else None
            if scope is None or key in _written.names or _read(scope, key, None) is None:
                raise
        if self is os.environ:
            _written.names.add(key)

    return __delitem__


def _patches() -> list[Patch]:
    environment = type(os.environ)
    return [
        AttributePatch(environment, name, make(getattr(environment, name)))
        for name, make in (
            ("__getitem__", _getting),
            ("__iter__", _iterating),
            ("__setitem__", _setting),
            ("__delitem__", _deleting),
        )
    ]


_switch: Final = Switch(_patches)


def activate() -> None:
    """Observe what user code reads from now on; each call wants a :func:`deactivate`."""
    _switch.on()


def deactivate() -> list[str]:
    """Release the hooks; the last holder restores everything."""
    if _switch.active:
        _written.names.clear()
    return _switch.off()
