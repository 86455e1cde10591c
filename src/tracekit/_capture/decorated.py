"""The object that replaces a decorated callable: like the original for signatures, methods, pickling and copying.

It delegates every attribute to the original, ``__class__`` included, so that ``inspect``, ``isinstance`` and other
decorators see the function that the program wrote. Binding follows the original's own ``__get__``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final

__all__ = ["BoundTool", "Tool"]

_new, _set = object.__new__, object.__setattr__


def _delegated(name: str) -> Any:
    return property(
        lambda self: getattr(self.__wrapped__, name), lambda self, value: setattr(self.__wrapped__, name, value)
    )


class _Kind(type):
    """The metaclass that keeps the original's ``__doc__`` and ``__module__`` visible, since each class has its own."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Kind:
        return super().__new__(
            cls, name, bases, {**namespace, **{one: _delegated(one) for one in ("__doc__", "__module__")}}
        )

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        return __name__


class _Wrapper(metaclass=_Kind):
    """A callable that passes its calls to ``_self_wrapper``, and everything else to the original, ``__wrapped__``.

    The wrapper receives the original, the object it is bound to (or ``None``), and the arguments.
    """

    __slots__ = ("__weakref__", "__wrapped__")

    __class__ = _delegated("__class__")
    __dict__ = _delegated("__dict__")

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not set yet
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__wrapped__" or name.startswith("_self_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __dir__(self) -> list[str]:
        return dir(self.__wrapped__)

    def __repr__(self) -> str:
        original = self.__wrapped__
        return f"<{type(self).__name__} at {id(self):#x} for {type(original).__name__} at {id(original):#x}>"

    def __str__(self) -> str:
        return str(self.__wrapped__)

    def __eq__(self, other: object) -> Any:
        return self.__wrapped__ == other

    def __ne__(self, other: object) -> Any:
        return self.__wrapped__ != other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __copy__(self) -> Any:
        return self


class BoundTool(_Wrapper):
    """A tool as a bound method; created at each access, like Python's own bound methods."""

    #: The tool, and the object and the class that it was read from.
    __slots__ = ("_self_binding",)

    @property
    def _self_instance(self) -> Any:
        return self._self_binding[1]

    @property
    def _self_wrapper(self) -> Any:
        return self._self_binding[0]._self_wrapper

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        function = self.__wrapped__
        tool, instance, owner = self._self_binding
        wrapper, instance_first = tool._self_call
        if not instance_first:
            instance = getattr(function, "__self__", None)
        elif instance is None and args and isinstance(args[0], owner):  # ``Class.method(instance, …)``
            instance, args = args[0], args[1:]
            function = MethodType(function, instance)
        return wrapper(function, instance, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind again: a method that was taken from its class becomes a method of ``instance``."""
        tool, bound_to, _ = self._self_binding
        return tool.__get__(instance, owner) if bound_to is None and tool._self_call[1] else self

    def __reduce_ex__(self, protocol: Any) -> Any:
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is None:
            return _named, (self.__module__, self.__qualname__)
        return getattr, (owner, self.__name__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is None or isinstance(owner, type) or not isinstance(self.__wrapped__, MethodType):
            return self
        from copy import deepcopy

        return getattr(deepcopy(owner, memo), self.__name__)


class Tool(_Wrapper):
    """A decorated callable. It pickles by name and copies to itself, as functions do."""

    __slots__ = ("_self_bind", "_self_call", "_self_instance", "_self_wrapper")

    def __new__(cls, wrapped: Any, wrapper: Any) -> Tool:
        made: Tool = _new(cls if type(wrapped) in _PLAIN else _tool_for(type(wrapped)))
        return made

    def __init__(self, wrapped: Any, wrapper: Any) -> None:
        unbound = isinstance(wrapped, BuiltinFunctionType | staticmethod)
        _set(self, "__wrapped__", wrapped)
        _set(self, "_self_instance", None if unbound else getattr(wrapped, "__self__", None))
        _set(self, "_self_wrapper", wrapper)
        #: The wrapper, and whether a call of what ``__get__`` returns has the object that it is bound to as its first argument.
        _set(self, "_self_call", (wrapper, not isinstance(wrapped, _BINDING_ITSELF)))
        #: The original's ``__get__``; ``None`` if the tool stays itself as an attribute of a class.
        _set(
            self, "_self_bind", None if isinstance(wrapped, BuiltinFunctionType) else getattr(wrapped, "__get__", None)
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, self._self_instance, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bind = self._self_bind
        if bind is None:
            return self
        bound = _new(BoundTool)
        _set(bound, "__wrapped__", bind(instance, owner))
        _set(bound, "_self_binding", (self, instance, owner))
        return bound

    def __set_name__(self, owner: Any, name: str) -> None:
        then: Callable[[Any, str], object] | None = getattr(self.__wrapped__, "__set_name__", None)
        if then is not None:
            then(owner, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__qualname__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


#: Originals that supply the first argument on their own, or have none.
_BINDING_ITSELF: Final = (BuiltinFunctionType, staticmethod, classmethod, MethodType)
#: Types without special methods that ``Tool`` lacks.
_PLAIN: Final = frozenset({FunctionType, BuiltinFunctionType, MethodType, staticmethod, classmethod})


def _tool_for(kind: type) -> Any:
    """Return the class of tools that replace objects of this class: Python looks up special methods (``len``, ``with``,
    ``[]``) in the class, so it has those of ``kind``."""

    def delegated(name: str) -> Any:
        return lambda self, /, *args, **kwargs: getattr(kind, name)(self.__wrapped__, *args, **kwargs)

    names = {
        name
        for name in dir(kind)
        if name.startswith("__") and name.endswith("__") and callable(getattr(kind, name)) and not hasattr(Tool, name)
    }
    return _Kind(Tool.__name__, (Tool,), {"__slots__": (), **{name: delegated(name) for name in names}})


def _named(module: str, qualname: str) -> Any:
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found
