"""Prevents live calls by code that runs later than the replay: exit handlers, signal handlers, finalizers.

The block of a replay ends, but its process goes on: a test runner, an interactive prompt. Exit and signal handlers
registered inside the replay must not make traced calls after it. When an object is collected, nothing tells whether the
replay created it, so in a process that has replayed, no finalizer may make a traced call outside of a run. And during a
garbage collection, no finalizer hands over work or waits as a part of the run: when a collection happens is up to the
interpreter.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from types import BuiltinFunctionType, FrameType
from typing import Any, Final

from .._runtime.callsite import not_made
from .._runtime.process import process
from .._runtime.session import current
from .in_place import CodeExchange, FunctionExchange, Unsupported, genuine
from .patch import AttributePatch, ReversiblePatch, Switch

__all__ = ["LeftHandler", "WrappedHandler", "by_finalizer", "collecting", "for_finalizer", "kept"]

_in_handler: Final[ContextVar[bool]] = ContextVar("tracekit.leftover", default=False)


@contextmanager
def kept() -> Iterator[None]:
    """Wrap the handlers that are registered inside a replay; after the block, stop finalizers from making traced calls."""
    _switch.activate()
    try:
        yield
    finally:
        _switch.deactivate()
        process.refuse_leftovers(_refuse)


class WrappedHandler:
    """Wraps a handler of the program, and is equal to it."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler: Final = handler

    def __eq__(self, other: object) -> bool:
        return self.handler == (other.handler if isinstance(other, WrappedHandler) else other)

    def __hash__(self) -> int:
        return hash(self.handler)


class LeftHandler(WrappedHandler):
    """A handler registered inside a replay, recognised when it is called."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _in_handler.set(True)
        try:
            return self.handler(*args, **kwargs)
        finally:
            _in_handler.reset(token)


def _left(handler: Any) -> Any:
    scope = current.get()
    replayed = scope is not None and (not scope.session.recording or scope.session.state.partial)
    own = callable(handler) and type(handler) not in (BuiltinFunctionType, LeftHandler, signal.Handlers)
    return LeftHandler(handler) if replayed and own else handler


def _patches() -> list[ReversiblePatch]:
    real = genuine(atexit.register)

    def register(_proxy: object, func: Any, *args: Any, **kwargs: Any) -> Any:
        real(_left(func), *args, **kwargs)
        return func

    def set_handler(original: Any) -> Any:
        def set_one(_exchange: object, signalnum: Any, handler: Any) -> Any:
            return _own(original(signalnum, _left(handler)))

        return set_one

    def get_handler(original: Any) -> Any:
        return lambda _exchange, signalnum: _own(original(signalnum))

    patches: list[ReversiblePatch] = [
        CodeExchange(signal.signal, set_handler),  # type: ignore[arg-type]
        CodeExchange(signal.getsignal, get_handler),  # type: ignore[arg-type]
    ]
    try:
        return [FunctionExchange(atexit.register, register), *patches]
    except Unsupported:
        return [AttributePatch(atexit, "register", lambda *args, **kwargs: register(None, *args, **kwargs)), *patches]


def _own(handler: Any) -> Any:
    return handler.handler if isinstance(handler, LeftHandler) else handler


_switch: Final = Switch(_patches)


def _refuse(family: str, name: str) -> None:
    """Raise for a captured call outside of any run in a process that has replayed."""
    if _in_handler.get():
        who = "a handler that was registered inside a replay, after the end of that"
    elif by_finalizer():
        who = "a finalizer after a replay, which may have made the object that was collected"
    else:
        return
    raise not_made(
        family,
        name,
        f"by {who}",
        "call it in the block of the run; or replay in a process of its own, with `tracekit replay`",
    )


def for_finalizer(call: Callable[..., Any], *args: Any) -> Any:
    """Call what a finalizer has asked an event loop to call: that counts as called by the finalizer."""
    return call(*args)


_FINALIZERS: Final = (weakref.finalize.__call__.__code__, for_finalizer.__code__)


def by_finalizer(*, look_into: bool = True) -> bool:
    """Return whether the running code was called because an object is being collected, at a time chosen by the
    interpreter.

    Callbacks of weak references are recognised by their arguments only. Not to ``look_into`` frames for these leaves them
    out: up to Python 3.12, a frame keeps alive the values of the variables that somebody has looked at.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code in _FINALIZERS or (look_into and _is_weakref_callback(frame)):
            return True
        frame = frame.f_back
    return False


def _is_weakref_callback(frame: FrameType) -> bool:
    """Return whether this is the callback of a weak reference: called with only the reference, which is already dead."""
    code = frame.f_code
    if code.co_flags & inspect.CO_VARARGS:
        given = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        last = given[0] if type(given) is tuple and len(given) == 1 else None
    else:  # a method has its object before that
        last = frame.f_locals.get(code.co_varnames[code.co_argcount - 1]) if 0 < code.co_argcount < 3 else None
    return isinstance(last, weakref.ReferenceType) and last() is None


# -- garbage collections -----------------------------------------------------------------------------------------------


class _Here(threading.local):
    """Per thread: whether it is collecting garbage now, and the context in which the collection began."""

    under_way = False
    context: Context | None = None


class _Collections:
    """Tracks, while a run is active, which threads are collecting garbage."""

    target = "gc.callbacks"

    def __init__(self) -> None:
        self._here = _Here()

    def here(self) -> bool:
        """Return whether this thread is collecting garbage: then the running code is a finalizer."""
        return self._here.under_way

    def apply(self) -> None:
        # What other callbacks do, which run between these two, is a part of the collection.
        gc.callbacks.insert(0, self._begins)
        gc.callbacks.append(self._ends)

    def restore(self) -> bool:
        for callback in (self._begins, self._ends):
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)
        self._here = _Here()
        return True

    def _begins(self, phase: str, _info: object) -> None:
        if phase != "start":
            return
        self._here.under_way = True
        if sys.version_info < (3, 12):
            # Python 3.11 may collect in the middle of setting a context variable, and crashes if a finalizer sets one,
            # too: the values in use would be freed. They are kept alive until this thread's next collection.
            self._here.context = copy_context()

    def _ends(self, phase: str, _info: object) -> None:
        if phase == "stop":
            self._here.under_way = False


collecting: Final = _Collections()
