"""Names, regular expressions and named tuples that are created on first use, so that a program does not pay for what it
never uses."""

from __future__ import annotations

from collections import _tuplegetter, namedtuple  # type: ignore[attr-defined]  # it makes the fields of every named tuple
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, AnyStr, Final

if TYPE_CHECKING:
    import re
    from typing import NamedTuple as NamedTuple

__all__ = ["NamedTuple", "compile_all", "expression", "lazily"]


def lazily(namespace: dict[str, Any], homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` (PEP 562) for the module with this ``namespace``, which import its names
    on first use.

    ``homes`` maps each name to the module of the package that defines it: ``"_runs.run"``, or ``"_values:dumps"`` if
    the name is different there.
    """

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
    """A regular expression that is compiled on first use."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._source = pattern, flags

    def __getattr__(self, name: str) -> Any:
        from re import compile

        pattern, flags = self._source
        compiled = compile(pattern, flags)
        # From here on these attributes are found without ``__getattr__``.
        vars(self).update({way: getattr(compiled, way) for way in dir(compiled) if not way.startswith("_")})
        return getattr(compiled, name)


#: All lazy expressions created so far.
_expressions: Final[list[_Expression]] = []


def compile_all() -> None:
    """Compile every expression of the loaded modules; for a process that will be forked many times."""
    for one in _expressions:
        one.pattern  # noqa: B018  # looking at one compiles it


def expression(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return ``re.compile(pattern, flags)``, but compile on first use: compiling takes as long as a thousand matches."""
    made: Any = _Expression(pattern, flags)
    _expressions.append(made)
    return made  # type: ignore[no-any-return]


class _Tuple(tuple):  # type: ignore[type-arg]
    """A named tuple whose constructor is compiled when the first object is created."""

    __slots__ = ()
    if TYPE_CHECKING:
        _fields: tuple[str, ...]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        owner = next(one for one in cls.__mro__ if "_fields" in vars(one))
        made = namedtuple(owner.__name__, vars(owner)["_fields"], defaults=vars(owner)["_field_defaults"].values())  # type: ignore[misc]
        setattr(owner, "__new__", vars(made)["__new__"])  # noqa: B010  # a type checker takes it for a method
        return cls.__new__(cls, *args, **kwargs)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Any:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **others: Any) -> Any:
        made = self._make(map(others.pop, self._fields, self))
        if others:
            raise ValueError(f"Got unexpected field names: {[*others]!r}")
        return made

    __replace__ = _replace

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


class _Naming(type):
    """The metaclass that builds the classes whose base is ``NamedTuple``."""

    def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any]) -> Any:
        if not bases:
            return super().__new__(cls, name, bases, names)
        fields = tuple(names["__annotations__"])
        defaults = {field: names.pop(field) for field in fields if field in names}
        names |= {"__slots__": (), "_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
        names |= {field: _tuplegetter(at, None) for at, field in enumerate(fields)}
        return type(name, (_Tuple,), names)


if not TYPE_CHECKING:

    class NamedTuple(metaclass=_Naming):
        """Like ``typing.NamedTuple``, but the constructor is compiled on first use instead of at class creation."""
