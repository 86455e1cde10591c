"""Runs the bodies of installed modules in lanes of their own while they are imported, since chance decides which code
imports a module first."""

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
        own.lane.owner = owner()  # inlined from ``entered``: a program imports thousands of modules
        token = current.set(own)
        try:
            return original(self, module)
        finally:
            current.reset(token)
            own.lane.owner = NOBODY

    # The interpreter removes the import system's frames from the traceback of a module's exception.
    found = original.__code__.co_filename if type(original) is FunctionType else exec_module.__code__.co_filename
    exec_module.__code__ = exec_module.__code__.replace(co_filename=found)
    return exec_module


def _patches() -> list[Patch]:
    # The class from which both loaders of Python modules, of sources and of compiled files, inherit it.
    owner = next(one for one in importlib.machinery.SourceFileLoader.__mro__ if "exec_module" in vars(one))
    return [LatePatch(owner, "exec_module", _executing)]


_switch: Final = Switch(_patches)
activate, deactivate = _switch.activate, _switch.deactivate
