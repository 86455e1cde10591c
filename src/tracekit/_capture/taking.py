"""What a callable takes, by name; for functions that are called with some of a tool's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter
from typing import Any

from .._engine.contract import impossible
from .binding import is_method

__all__ = ["called", "is_method", "names_of", "parameters_of"]


def called(function: Any) -> str:
    """The qualified name of a callable."""
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name.replace("<locals>.", "")


def names_of(tool: str, field: str, function: Callable[..., Any], known: Sequence[str]) -> tuple[list[str], bool]:
    """Which of the ``known`` names ``function`` takes, and whether it takes whatever there is."""
    parameters = parameters_of(function)
    if parameters is None:
        raise impossible(
            tool, field, f"it can't be told what {function!r} takes", "give a function with named parameters"
        )
    taken, every = [], False
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            every = True
        elif one.kind is not one.VAR_POSITIONAL:
            if one.name in known and one.kind is not one.POSITIONAL_ONLY:
                taken.append(one.name)
            elif one.default is one.empty:
                raise impossible(
                    tool,
                    field,
                    f"its function takes {one.name!r}, which is no parameter of the tool ({', '.join(known)})",
                    actual=one.name,
                )
    return taken, every


def parameters_of(function: Any, *, skip_first: bool = False) -> list[Parameter] | None:
    """The parameters by which a tool is called, its own object left out; ``None`` where nothing tells."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return found[1:] if found and (skip_first or is_method(function)) else found
