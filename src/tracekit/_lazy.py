"""What is created on first use: names, modules, regular expressions and named tuples.

So a program does not pay for what it never uses.
"""

from __future__ import annotations

from collections import _tuplegetter, namedtuple  # type: ignore[attr-defined]  # it makes the fields of every named tuple
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from sys import _getframe, modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, AnyStr, Final

if TYPE_CHECKING:
    import re
    from typing import NamedTuple as NamedTuple

__all__ = ["NamedTuple", "expression", "imported", "later", "lazily", "make_all"]


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


class _LaterModule(ModuleType):
    """Stands in for a module until one of its names is first used, which imports it, and passes everything on to it."""

    def _real(self) -> ModuleType:
        real = vars(self).get("_imported")
        if real is None:
            real = vars(self)["_imported"] = import_module(self.__name__)
        return real

    def __getattr__(self, name: str) -> Any:
        real = self._real()
        # From here on the module that asks has the real one: each further name would cost two calls.
        asking = _getframe(1).f_globals
        for key, value in [*asking.items()]:  # copied at once: another thread may add a name
            if value is self:
                asking[key] = real
        return getattr(real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real(), name)


#: The modules that stand in for others.
_modules: Final[list[_LaterModule]] = []


def later(package: dict[str, Any], *names: str) -> None:
    """Let ``from package import name`` import these modules of the package with this namespace when one of their names is
    first used, and not at once.

    Importing a name from such a module (``from package.module import name``) imports the module at once, as always.
    """
    for name in names:
        module = package[name] = _LaterModule(f"{package['__name__']}.{name}")
        _modules.append(module)


def imported(module: ModuleType) -> bool:
    """Return whether a module has been imported, which a stand-in may stand for: without that, it has done nothing."""
    return module.__name__ in modules


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


def make_all() -> None:
    """Import the modules that stand-ins were made for, and compile every expression of the loaded modules; for a process
    that will be forked many times."""
    for module in _modules:
        module._real()
    for one in _expressions:
        one.pattern  # noqa: B018  # looking at one compiles it


def expression(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return ``re.compile(pattern, flags)``, but compile on first use: compiling takes as long as a thousand matches."""
    made: Any = _Expression(pattern, flags)
    _expressions.append(made)
    return made  # type: ignore[no-any-return]


#: How many objects of a named tuple are created without a compiled constructor, each of which takes longer.
_FEW: Final = 40


class _Tuple(tuple):  # type: ignore[type-arg]
    """A named tuple whose constructor is compiled when many objects are created, or one with wrong arguments."""

    __slots__ = ()
    if TYPE_CHECKING:
        _fields: tuple[str, ...]
        _field_defaults: dict[str, Any]
        #: The class whose base is ``NamedTuple``, and how many objects it and its subclasses have.
        _declared: Any
        _created: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        owner: Any = cls._declared
        if owner._created < _FEW:
            owner._created += 1
            given = {**owner._field_defaults, **kwargs}
            others = owner._fields[len(args) :]
            if len(args) <= len(owner._fields) and given.keys() >= {*others} and kwargs.keys() <= {*others}:
                return tuple.__new__(cls, (*args, *map(given.__getitem__, others)))
        made = namedtuple(owner.__name__, owner._fields, defaults=owner._field_defaults.values())  # type: ignore[misc]
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
        names["_created"] = 0
        names |= {field: _tuplegetter(at, None) for at, field in enumerate(fields)}
        made: Any = type(name, (_Tuple,), names)
        made._declared = made
        return made


if not TYPE_CHECKING:

    class NamedTuple(metaclass=_Naming):
        """Like ``typing.NamedTuple``, but the constructor is compiled when it is used much, not at class creation."""
