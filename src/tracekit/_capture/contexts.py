"""Empty contexts, made by a program or for a greenlet that starts: what runs in one belongs to the run, like a thread's work.

The class ``Context`` cannot be changed or derived from, so ``contextvars.Context`` is replaced. A module that has taken it
before the run keeps the class: what runs in its empty contexts is outside the run, and is reported as such.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import wraps
from typing import Any, Final

from .._runtime.session import Scope, current
from .callers import by_tracekit
from .patch import AttributePatch, ReversiblePatch, Switch, loaded

__all__ = ["hooks"]


class _Entering(type):
    """The class of a stand-in for ``Context`` whose instances are real contexts, made within the run."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        scope = current.get()
        if scope is None or by_tracekit():  # tracekit's own are outside every run
            return Context(*args, **kwargs)
        return _within(scope, *args, **kwargs)

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, Context)

    def __subclasscheck__(cls, one: type) -> bool:
        return issubclass(one, Context)

    def __getattribute__(cls, name: str) -> Any:
        return getattr(Context, name)

    def __repr__(cls) -> str:
        return repr(Context)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is Context

    def __hash__(cls) -> int:
        return hash(Context)


class _Context(metaclass=_Entering):
    __slots__ = ()


def _within(scope: Scope, *args: Any, **kwargs: Any) -> Context:
    made = Context(*args, **kwargs)
    made.run(current.set, scope)
    return made


def _switching(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``greenlet.switch``, by which a greenlet starts: in an empty context, unless it was given one."""

    @wraps(original)
    def switch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self and self.gr_context is None and not self.dead:
            scope = current.get()
            if scope is not None:
                self.gr_context = _within(scope)
        return original(self, *args, **kwargs)

    return switch


def _of_greenlets() -> list[ReversiblePatch]:
    from .in_place import MethodEntry, Unsupported

    with suppress(Unsupported):  # what a greenlet does is then outside the run, and reported as such
        return [MethodEntry(loaded("greenlet").greenlet, "switch", _switching)]
    return []


#: The hooks, which are in place while any run is active.
hooks: Final = Switch(lambda: [AttributePatch(contextvars, "Context", _Context)], {"greenlet": _of_greenlets})
