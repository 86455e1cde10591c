"""Callables that are handed to an executor: what of them is captured already, which tools they are, by what names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from .._capture.taking import is_method
from .._capture.wrapper import Captured, captured_of
from ..errors import IntentionError

__all__ = ["captured_in", "check_named", "names_of", "tools_of"]


def names_of(tool: Any, name: str) -> set[str]:
    """By what it may be called: where the tool has its name from its function, by that of the function, too."""
    tool = _function(tool)
    full = str(getattr(tool, "__qualname__", ""))
    if not full and name == f"{type(tool).__qualname__.replace('<locals>.', '')}.__call__":
        return {name, type(tool).__name__}
    return {name, full, full.rpartition(".")[2]} if full.replace(".<locals>", "") == name else {name}


def _function(tool: Any) -> Any:
    while isinstance(tool, partial):
        tool = tool.func
    return tool


def captured_in(tool: Any) -> Captured | None:
    """What is known of a callable whose calls are captured by themselves: as it is, with arguments given, or as the call of an object."""
    tool = _function(tool)
    ways = (tool, getattr(tool, "__func__", None), getattr(type(tool), "__call__", None))  # noqa: B004 - the method itself
    return next((found for found in map(captured_of, ways) if found is not None), None)


def tools_of(given: Any) -> Iterator[Any]:
    """The tools that an object stands for: itself where it is callable, else its traced methods."""
    if inspect.isclass(given):
        raise IntentionError(
            f"{given!r:.80} is a class", next_action="give an object of it, or the methods that are to be called"
        )
    if callable(given):
        yield given
        return
    found = [name for name in dir(type(given)) if not name.startswith("_") and _is_tool(type(given), name)]
    if not found:
        raise IntentionError(
            f"{given!r:.80} is no tool: it can't be called, and has no traced methods",
            next_action="give functions or methods",
        )
    for name in found:
        yield getattr(given, name)


def _is_tool(owner: type, name: str) -> bool:
    """Whether the class has a traced tool of this name; nothing is computed to find out."""
    found = inspect.getattr_static(owner, name)
    known = captured_of(found) or captured_of(getattr(found, "__func__", None))
    return known is not None and known.spec.family == "tool"


def check_named(tool: Any, known: Captured) -> None:
    """``IntentionError`` for what can't be called with its arguments by name."""
    try:
        parameters = list(inspect.signature(tool).parameters.values())
    except (TypeError, ValueError):  # nobody says what it takes
        return
    if parameters and parameters[0].name in ("self", "cls") and is_method(known.inner):
        raise IntentionError(
            f"{known.spec.name!r} is a method without its object", next_action="give the method of an object: desk.look"
        )
    for one in parameters:
        if one.kind is one.POSITIONAL_ONLY and one.default is one.empty:
            raise IntentionError(
                f"{known.spec.name!r} takes {one.name!r} by its place only, and a call names its arguments",
                next_action="wrap it in a function with named parameters",
            )
