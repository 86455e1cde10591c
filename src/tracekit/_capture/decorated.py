"""The object that replaces a decorated callable: like the original for signatures, methods, pickling and copying."""

from __future__ import annotations

from importlib import import_module
from types import MethodType
from typing import Any

import wrapt

__all__ = ["BoundTool", "Tool"]


class BoundTool(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]
    """A tool as a bound method; created at each access, like Python's own bound methods."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is None:
            return _named, (self.__module__, self.__qualname__)
        return getattr, (owner, self.__name__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is None or isinstance(owner, type) or not isinstance(self.__wrapped__, MethodType):
            return self
        from copy import deepcopy

        return getattr(deepcopy(owner, memo), self.__name__)


class Tool(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A decorated callable. It pickles by name and copies to itself, as functions do."""

    __slots__ = ()
    __bound_function_wrapper__ = BoundTool

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__qualname__

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


def _named(module: str, qualname: str) -> Any:
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found
