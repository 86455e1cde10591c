"""Empty contexts that a program makes (``contextvars.Context()``): what runs in one belongs to the run, like a thread's work.

The class itself cannot be changed or derived from, so ``contextvars.Context`` is replaced. A module that has taken it before
the run keeps the class: what runs in its empty contexts is outside the run, and is reported as such.
"""

from __future__ import annotations

import contextvars
from contextvars import Context
from typing import Any, Final

from .._runtime.session import current
from .callers import by_tracekit
from .patch import AttributePatch, Switch

__all__ = ["hooks"]


class _Entering(type):
    """The class of a stand-in for ``Context`` whose instances are real contexts, made within the run."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = Context(*args, **kwargs)
        scope = current.get()
        if scope is not None and not by_tracekit():  # tracekit's own are outside every run
            made.run(current.set, scope)
        return made

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


#: The hook, which is in place while any run is active.
hooks: Final = Switch(lambda: [AttributePatch(contextvars, "Context", _Context)])
