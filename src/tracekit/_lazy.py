"""Public names that a module imports when they are first used, so that its own import costs next to nothing (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazily"]


def lazily(namespace: dict[str, Any], homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the module with this ``namespace``. ``homes`` says in which module of the package each name
    lives: ``"_runs.run"``, or ``"_values:dumps"`` where it has another name there."""

    def getattribute(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        module, _, other = home.partition(":")
        value = getattr(import_module(f".{module}", namespace["__package__"]), other or name)
        namespace[name] = value
        return value

    return getattribute, lambda: [*namespace, *homes]
