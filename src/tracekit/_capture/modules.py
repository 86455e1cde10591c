"""What the body of an installed module does while it is imported belongs to the module: chance decides who is the first to import it."""

from __future__ import annotations

import importlib.machinery
from types import FunctionType
from typing import Any, Final

from .._runtime.lane import NOBODY
from .._runtime.session import current, owner
from .callers import packaged
from .patch import LatePatch, Patch, Switch

__all__ = ["activate", "deactivate"]


def _executing(original: Any) -> Any:
    def exec_module(self: Any, module: Any) -> Any:
        scope = current.get()
        if scope is None or scope.live or not packaged(getattr(module, "__file__", None) or ""):
            return original(self, module)
        own = scope.session.importing(scope, module.__name__)
        if own is None:
            return original(self, module)
        own.lane.owner = owner()  # as ``entered`` does it: a program imports thousands of modules
        token = current.set(own)
        try:
            return original(self, module)
        finally:
            current.reset(token)
            own.lane.owner = NOBODY

    # The interpreter takes the frames of the import system out of the traceback of what a module raises.
    found = original.__code__.co_filename if type(original) is FunctionType else exec_module.__code__.co_filename
    exec_module.__code__ = exec_module.__code__.replace(co_filename=found)
    return exec_module


def _patches() -> list[Patch]:
    # Where both loaders of Python modules, those of sources and of compiled files, have it from.
    owner = next(one for one in importlib.machinery.SourceFileLoader.__mro__ if "exec_module" in vars(one))
    return [LatePatch(owner, "exec_module", _executing)]


_switch: Final = Switch(_patches)


def activate() -> None:
    """Let modules be imported in lanes of their own from now on; each call wants a ``deactivate``."""
    _switch.activate()


def deactivate() -> list[str]:
    """Release the hook; the last holder restores it."""
    return _switch.deactivate()
