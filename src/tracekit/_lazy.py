"""What is made when it is first used: public names of a module, regular expressions. A program pays for nothing that it does not need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, AnyStr, Final

if TYPE_CHECKING:
    import re

__all__ = ["compile_all", "expression", "lazily"]


def lazily(namespace: dict[str, Any], homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Names that a module imports when they are first used (PEP 562): ``__getattr__`` and ``__dir__`` of the module with this
    ``namespace``. ``homes`` says in which module of the package each name
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


class _Expression:
    """A regular expression that is compiled when it is first used."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> Any:
        from re import compile

        pattern, flags = self._source
        compiled = compile(pattern, flags)
        # From here on they are its own, and cost nothing more.
        vars(self).update({way: getattr(compiled, way) for way in dir(compiled) if not way.startswith("_")})
        return getattr(compiled, name)


#: Those that were made so far.
_expressions: Final[list[_Expression]] = []


def compile_all() -> None:
    """Compile every expression of the modules that are loaded: for a process that is forked many times."""
    for one in _expressions:
        one.pattern  # noqa: B018  # looking at one compiles it


def expression(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """``re.compile(pattern, flags)``, made when it is first used: to compile one takes as long as to use it a thousand times."""
    made: Any = _Expression(pattern, flags)
    _expressions.append(made)
    return made  # type: ignore[no-any-return]
