"""Tools that stand in for others, and how a tool's arguments are passed on to them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any, Final

from .._engine.contract import impossible
from .taking import is_method, parameters_of
from .wrapper import Captured, captured_of

__all__ = ["Passing", "StandIn"]

#: Stands for an argument where only the way of passing it counts.
_ANY: Final = object()


class StandIn:
    """A tool that stands in for another: what is known of it, and how it is called."""

    __slots__ = ("captured", "escalation", "instance", "needs_object", "tool")

    def __init__(self, tool: Any, captured: Captured, instance: Any, needs_object: bool) -> None:
        self.tool: Final = tool
        self.captured: Final = captured
        #: The object of a method that is bound already.
        self.instance: Final = instance
        self.needs_object: Final = needs_object
        self.escalation = False

    @classmethod
    def of(cls, tool: str, given: Any) -> StandIn:
        captured = captured_of(given)
        if captured is None or captured.spec.side_effect is None:
            raise impossible(
                tool,
                "fallback",
                f"{given!r} is no traced tool, so its side-effect class is not known",
                "decorate it with @traced_tool(side_effect=…)",
            )
        instance = getattr(given, "_self_instance", None)
        plain = not isinstance(captured.wrapped_as, staticmethod | classmethod)
        return cls(given, captured, instance, instance is None and plain and is_method(captured.inner))

    def reached(self) -> list[tuple[str, str]]:
        """Name and class of every tool that may come to stand in by way of this one."""
        found = [(self.captured.spec.name, str(self.captured.spec.side_effect))]
        terms = self.captured.terms
        for one in () if terms is None else terms.fallback:
            found += one.reached()
        return found

    def bound(self, instance: Any) -> tuple[Any, Any]:
        """The function to call, and its object: ``instance`` where the stand-in is a method of the same object."""
        if self.needs_object:
            tool = self.tool.__get__(instance, type(instance))
            return tool.__wrapped__, instance
        return self.tool.__wrapped__, self.instance


class Passing:
    """How the bound arguments of a tool are passed on to another: by name, where Python lets them."""

    __slots__ = ("_keyword", "_parameters", "_positional")

    def __init__(self, parameters: Sequence[Parameter] | None) -> None:
        self._parameters: Final = parameters
        spread = parameters is not None and any(one.kind is one.VAR_POSITIONAL for one in parameters)
        self._positional: Final = [
            one
            for one in parameters or ()
            if one.kind is one.POSITIONAL_ONLY or (spread and one.kind is one.POSITIONAL_OR_KEYWORD)
        ]
        self._keyword: Final = [
            one
            for one in parameters or ()
            if one not in self._positional and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]

    def arguments(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._parameters is None:
            return tuple(bound["args"]), dict(bound["kwargs"])
        args = [bound[one.name] for one in self._positional]
        kwargs = {one.name: bound[one.name] for one in self._keyword}
        for one in self._parameters:
            if one.kind is one.VAR_POSITIONAL:
                args += bound[one.name]
            elif one.kind is one.VAR_KEYWORD:
                kwargs |= bound[one.name]
        return tuple(args), kwargs

    def misfit(self, captured: Captured, instance: Any) -> str | None:
        """Why a stand-in can't take these arguments, or ``None``."""
        if self._parameters is None:
            return None
        sample: dict[str, Any] = {}
        for one in self._parameters:
            spread, named = one.kind is one.VAR_POSITIONAL, one.kind is one.VAR_KEYWORD
            sample[one.name] = (_ANY,) if spread else {"anything": _ANY} if named else _ANY
        args, kwargs = self.arguments(sample)
        others = parameters_of(captured.inner, skip_first=instance is not None)
        if others is None:
            return None
        try:
            inspect.Signature(others).bind(*args, **kwargs)
        except TypeError as error:
            return f"it can't take the tool's arguments ({error})"
        return None
