"""Replaces what a function does, in the function object itself, so that whoever took the function earlier is covered too.

A C function object consists of three words: a method definition, ``self``, and how it is called. Replacing the first
two leaves the object, its identity, name and module unchanged, wherever it is referred to: module attributes, default
arguments, closures, containers. The new definition calls a function *of the interpreter* (``PyNumber_Negative``,
``PyObject_GetItem`` …) that dispatches on ``self``, and ``self`` is a proxy whose ``__neg__`` or ``__getitem__`` is the
hook. No ctypes callback is involved, so a hooked read costs some 70 ns more than the original, and exceptions
propagate.

The C methods of a class share one definition. For a heap type (``random.Random.random``) its function pointer is
replaced in the same way. For class methods of a static type (``datetime.now``), the entry in the class's own dictionary
is replaced, and the shared pointer for bound methods taken earlier (``default_factory=datetime.now``).

Memory is touched only if its layout was recognised, and each way is tried once per process (``works``) before it is
used.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable
from functools import cache, partial
from threading import get_ident, local
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from .._runtime.process import process
from .patch import AttributePatch, ReversiblePatch

__all__ = [
    "NOARGS",
    "ONE",
    "VARARGS",
    "AuditHook",
    "ClassMethodExchange",
    "CodeExchange",
    "FunctionExchange",
    "MethodEntry",
    "MethodExchange",
    "Unsupported",
    "function_patch",
    "genuine",
    "marking",
    "plain",
    "works",
]

VARARGS, KEYWORDS, NOARGS, ONE, STATIC, FAST = 0x1, 0x2, 0x4, 0x8, 0x20, 0x80
_CONVENTION: Final = VARARGS | KEYWORDS | NOARGS | ONE | FAST
_HEAD: Final = object.__basicsize__
_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_CPYTHON: Final = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


class _Definition(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_void_p))

    def copy(self) -> _Definition:
        return type(self).from_buffer_copy(self)


_Pair = ctypes.c_void_p * 2
_api = ctypes.pythonapi
_object, _pointer = ctypes.py_object, ctypes.c_void_p
# A memmove that keeps the GIL: for other threads, both words change in one step.
_store = ctypes.PYFUNCTYPE(_pointer, _pointer, _pointer, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, _pointer).value or 0
)
_new_function = ctypes.PYFUNCTYPE(_object, _pointer, _object, _object)(("PyCFunction_NewEx", _api))
_new_method = ctypes.PYFUNCTYPE(_object, _object, _pointer)(("PyDescr_NewMethod", _api))
_new_class_method = ctypes.PYFUNCTYPE(_object, _object, _pointer)(("PyDescr_NewClassMethod", _api))
_type_modified = ctypes.PYFUNCTYPE(None, _object)(("PyType_Modified", _api))
_keep = ctypes.PYFUNCTYPE(None, _object)(("Py_IncRef", _api))
_drop = ctypes.PYFUNCTYPE(None, _object)(("Py_DecRef", _api))
# It takes two arguments; the third is the weak reference that calls it.
_interrupt = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, _object, _object)(("PyThreadState_SetAsyncExc", _api))

#: Calling convention -> the interpreter's function with the same arguments, and the method that it dispatches to.
_ROUTES: Final = {
    NOARGS: ("PyNumber_Negative", "__neg__"),
    ONE: ("PyObject_GetItem", "__getitem__"),
    VARARGS: ("PyObject_GetItem", "__getitem__"),  # the hook gets the tuple of arguments
    VARARGS | KEYWORDS: ("PyObject_Call", "__call__"),
    FAST | KEYWORDS: ("PyObject_Vectorcall", "__call__"),
}
#: The same for methods of a class to which we may add, with operators that nobody defines on a random number generator.
_METHOD_ROUTES: Final = {
    NOARGS: ("PyNumber_Positive", "__pos__"),
    ONE: ("PyNumber_InPlaceMatrixMultiply", "__imatmul__"),
}


class Unsupported(Exception):
    """The memory layout of this function is unknown; nothing was touched."""


@cache
def _address(name: str) -> int:
    return ctypes.cast(getattr(_api, name), _pointer).value or 0


def _definition_at(place: int, name: str) -> _Definition:
    address = _pointer.from_address(place).value
    definition = _Definition.from_address(address) if address else None
    if definition is None or definition.name != name.encode():
        raise Unsupported(f"{name}: not a method definition")
    return definition


def _function_definition(function: Any) -> _Definition:
    if not _CPYTHON or type(function) is not BuiltinFunctionType:
        raise Unsupported(f"{function!r} is not a C function")
    if type(function).__basicsize__ != _HEAD + 5 * _WORD:
        raise Unsupported("the layout of C functions is not known")
    return _definition_at(id(function) + _HEAD, function.__name__)


def _method_definition(owner: type, descriptor: Any) -> _Definition:
    if not _CPYTHON or type(descriptor).__basicsize__ != _HEAD + 5 * _WORD:
        raise Unsupported("the layout of method descriptors is not known")
    if _pointer.from_address(id(descriptor) + _HEAD).value != id(owner):
        raise Unsupported(f"{descriptor!r}: another layout")
    return _definition_at(id(descriptor) + _HEAD + 3 * _WORD, descriptor.__name__)


def convention(function: Any) -> int:
    """Return the calling convention of a C function, as the flags of its definition. Raises ``Unsupported`` if it is
    unknown."""
    return int(_function_definition(function).flags) & _CONVENTION


def genuine(function: Any) -> Any:
    """Return a copy of a C function that is unaffected when ``function`` is replaced, and as fast as the original."""
    definition = _function_definition(function)
    return _new_function(ctypes.addressof(definition), function.__self__, function.__module__)


class FunctionExchange:
    """Makes a C function of a module call ``hook`` instead.

    ``hook`` receives the proxy first, then: nothing (``NOARGS``), the argument (``ONE``), the tuple of arguments
    (``VARARGS``), or the arguments as they are (with keywords).
    """

    def __init__(self, function: Any, hook: Callable[..., Any]) -> None:
        definition = _function_definition(function)
        flags = definition.flags & _CONVENTION
        if flags not in _ROUTES:
            raise Unsupported(f"{function.__name__}: calling convention {flags:#x}")
        route, method = _ROUTES[flags]
        self.function: Final = function
        # A module, as ``__self__`` of such a function always is: repr, pickle and inspect ask for that.
        proxy_type: Any = type("_Proxy", (ModuleType,), {method: hook, "__slots__": ()})
        self.proxy: Final = proxy_type(function.__module__ or "builtins")
        self._ours = definition.copy()
        self._ours.call = _address(route)
        self._ours.flags = definition.flags & ~STATIC
        self._new = _Pair(ctypes.addressof(self._ours), id(self.proxy))
        self._old: Any = None
        self._place: Final = id(function) + _HEAD

    @property
    def target(self) -> str:
        return f"{self.function.__module__}.{self.function.__name__}"

    def apply(self) -> None:
        if self._old is not None:
            return
        self._old = _Pair.from_buffer_copy(_Pair.from_address(self._place))
        _keep(self.proxy)  # the function owns its ``self``; its own module stays counted for it
        _store(self._place, ctypes.addressof(self._new), ctypes.sizeof(_Pair))

    def restore(self) -> bool:
        if self._old is None:
            return True
        if bytes(_Pair.from_address(self._place)) != bytes(self._new):
            return False
        _store(self._place, ctypes.addressof(self._old), ctypes.sizeof(_Pair))
        self._old = None
        _drop(self.proxy)
        return True


class MethodExchange:
    """Makes a C method of the heap type ``owner`` call ``hook(self[, argument])`` instead, in all instances and
    subclasses."""

    def __init__(self, owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        descriptor = vars(owner)[name]
        self._shared = _method_definition(owner, descriptor)
        flags = self._shared.flags & _CONVENTION
        if flags not in _METHOD_ROUTES:
            raise Unsupported(f"{name}: calling convention {flags:#x}")
        route, method = _METHOD_ROUTES[flags]
        self._bare = self._shared.copy()
        self._call = _address(route)
        #: The original method, a descriptor.
        self.genuine: Final = _new_method(owner, ctypes.addressof(self._bare))
        self._slot = AttributePatch(owner, method, make(self.genuine))
        self.target: Final = f"{owner.__module__}.{owner.__qualname__}.{name}"
        self._applied = False

    def apply(self) -> None:
        if not self._applied:
            self._bare.call = self._shared.call
            self._slot.apply()
            self._shared.call = self._call
            self._applied = True

    def restore(self) -> bool:
        if not self._applied:
            return True
        if self._shared.call != self._call:
            return False
        self._applied = False
        self._shared.call = self._bare.call
        return self._slot.restore()


_EARLIER = ctypes.PYFUNCTYPE(_object, _object, _pointer, ctypes.c_ssize_t, _pointer)
_EARLIER_NOARGS = ctypes.PYFUNCTYPE(_object, _object, _pointer)


class ClassMethodExchange:
    """Makes a C class method of the static type ``owner`` (``datetime.now``) call ``hook(cls, …)`` instead.

    When looked up on the class, the hook comes from the class's own dictionary. A bound method taken earlier reaches it
    through the shared pointer and a ctypes callback (some 250 ns more). Such a callback can't raise: an exception of
    the hook is raised in the calling thread as soon as it is back in Python code.
    """

    def __init__(self, owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        descriptor = vars(owner)[name]
        self.owner: Final = owner
        self.name: Final = name
        self._shared = _method_definition(owner, descriptor)
        if self._shared.flags & (NOARGS | FAST | KEYWORDS) not in (NOARGS, FAST | KEYWORDS):
            raise Unsupported(f"{name}: calling convention {self._shared.flags:#x}")
        self._bare = self._shared.copy()
        #: The original class method, a descriptor.
        self.genuine: Final = _new_class_method(owner, ctypes.addressof(self._bare))
        hook = make(self.genuine)
        self._entry: Final = classmethod(hook)
        # Without arguments C passes only two words; a third and fourth would be arbitrary.
        kind = _EARLIER_NOARGS if self._shared.flags & NOARGS else _EARLIER
        self._earlier = kind(_unpacking(hook))
        self._call = ctypes.cast(self._earlier, _pointer).value
        self._found: Any = None
        self.target: Final = f"{owner.__module__}.{owner.__qualname__}.{name}"

    def apply(self) -> None:
        if self._found is None:
            self._found = vars(self.owner)[self.name]
            self._bare.call = self._shared.call
            _enter(self.owner, self.name, self._entry)
            self._shared.call = self._call

    def restore(self) -> bool:
        if self._found is None:
            return True
        if self._shared.call != self._call or vars(self.owner)[self.name] is not self._entry:
            return False
        self._shared.call = self._bare.call
        _enter(self.owner, self.name, self._found)
        self._found = None
        return True


class MethodEntry:
    """Replaces a method in the dictionary of a type that takes no assignment (``_thread.lock``) by ``hook``.

    Methods bound earlier are unaffected.
    """

    def __init__(self, owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        if not _CPYTHON:
            raise Unsupported("another interpreter")
        self.owner: Final = owner
        self.name: Final = name
        self.genuine: Final = vars(owner)[name]
        self._hook: Final = make(self.genuine)
        self.target: Final = f"{owner.__module__}.{owner.__qualname__}.{name}"
        self._applied = False

    def apply(self) -> None:
        if not self._applied:
            _enter(self.owner, self.name, self._hook)
            self._applied = True

    def restore(self) -> bool:
        if not self._applied:
            return True
        if vars(self.owner)[self.name] is not self._hook:
            return False
        self._applied = False
        _enter(self.owner, self.name, self.genuine)
        return True


def _enter(owner: type, name: str, value: object) -> None:
    # The dictionary behind the read-only view that ``vars()`` returns for a static type.
    (namespace,) = gc.get_referents(vars(owner))
    namespace[name] = value
    _type_modified(owner)


def _unpacking(hook: Callable[..., Any]) -> Callable[..., Any]:
    def call(cls: type, places: int | None, count: int = 0, names: int | None = None) -> Any:
        try:
            if not count and not names:
                return hook(cls)
            keywords = ctypes.cast(names, _object).value if names else ()
            values = [_object.from_address((places or 0) + i * _WORD).value for i in range(count + len(keywords))]
            return hook(cls, *values[:count], **dict(zip(keywords, values[count:], strict=True)))
        except BaseException as error:
            end = _raise_after(error)  # noqa: F841 (it dies with this frame)
            return None

    return call


class _End:
    """An object that dies with the frame that holds it."""

    __slots__ = ("__weakref__",)


#: Per thread: what raises the next error in it.
_pending: Final = local()


def _raise_after(error: BaseException) -> _End:
    """Raise ``error`` in this thread when the returned object dies.

    An interrupt is noticed at the next call in Python code, so it must be set when no more of our code is to run: by a
    weak reference with a callback in C.
    """
    end, me = _End(), get_ident()
    _pending.end = weakref.ref(end, partial(_interrupt, me, _carrier(error)))
    return end


def _carrier(error: BaseException) -> type[BaseException]:
    """Return a class that creates exactly ``error`` when it is called: an interrupt requires a class."""
    kind = type(error)
    error.__traceback__ = None
    return type(kind.__name__, (kind,), {"__new__": lambda _cls, *_args: error, "__init__": lambda _self, *_args: None})


#: How far into the interpreter's state the list of audit hooks may be, by version: in 3.12 the allocator's tables come
#: first.
_STATE: Final = {(3, 11): 16 << 10, (3, 12): 288 << 10, (3, 13): 16 << 10, (3, 14): 16 << 10}
_STRETCH: Final = 16 << 10
#: The range of possible object addresses, and the maximum number of hooks.
_MIN, _MAX, _MOST_HOOKS = 1 << 16, 1 << 56, 1 << 12


class AuditHook:
    """An audit hook that can be removed, unlike with ``sys.addaudithook`` alone.

    As long as the interpreter has a list of hooks, even an empty one, it builds each event (``id()`` costs four times
    as much). Only one word of the interpreter's state refers to that list. ``restore`` sets it to what it would be
    without our hook: a list of the others, or nothing. The word is searched for once, after the first ``apply``: the
    one that points to a list with our hook. What candidates point to is read through the kernel, for which no address
    is invalid, and without creating a reference to an object of another thread. If it is not found, the hook stays.
    """

    target: Final = "sys.audit"

    def __init__(self, hook: Callable[[str, tuple[Any, ...]], object]) -> None:
        self.hook: Final = hook
        self._applied = False
        self._place: int | None = None

    def apply(self) -> None:
        if not self._applied:
            sys.addaudithook(self.hook)
            self._applied = True

    def locate(self) -> None:
        """Find where the interpreter keeps its hooks, once this one is among them."""
        if self._place is None:
            self._place = self._found()

    def restore(self) -> bool:
        if not self._applied:
            return True
        if self._place is None:
            return False
        hooks: Any = _object.from_address(self._place).value
        others = [hook for hook in hooks if hook is not self.hook]
        _put(self._place, others)
        for late in hooks[len(others) + 1 :]:  # added by another thread meanwhile
            sys.addaudithook(late)
        _drop(hooks)
        self._applied = False
        return True

    def _found(self) -> int | None:
        """Return the address of the word that refers to the list, verified by briefly pointing it to a copy."""
        if not _CPYTHON:
            return None
        start, stop = int(_state()), _STATE.get(sys.version_info[:2], 0)
        try:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                for at in range(start, start + stop, _STRETCH):
                    words = ctypes.string_at(at, _STRETCH)
                    for i, address in enumerate(memoryview(words).cast("P")):
                        if _MIN < address < _MAX and not address % _WORD and self._is_list(memory, address):
                            return self._tried(at + i * _WORD, ctypes.cast(address, _object).value)
        except OSError:  # another system, or this process may not read its own memory
            pass
        return None

    def _is_list(self, memory: Any, address: int) -> bool:
        """Return whether there is a list at the address that contains the hook."""
        header = _read_words(memory, address, 4)
        if header is None or header[1] != id(list) or not 0 < header[2] < _MOST_HOOKS:
            return False
        hooks = _read_words(memory, header[3], header[2])
        return hooks is not None and id(self.hook) in hooks

    def _tried(self, place: int, hooks: list[Any]) -> int | None:
        heard: list[str] = []
        copy = [*hooks, lambda event, _args: heard.append(event)]
        _put(place, copy)
        sys.audit("tracekit.place")
        if _pointer.from_address(place).value != id(copy):
            return None
        _point(place, id(hooks))
        for late in copy[len(hooks) + 1 :]:  # added by another thread meanwhile
            sys.addaudithook(late)
        _drop(copy)
        return place if heard else None


def _read_words(memory: Any, address: int, count: int) -> list[int] | None:
    """Return words of this process's memory; ``None`` if there are none."""
    try:
        found = os.pread(memory.fileno(), count * _WORD, address)
    except (OSError, OverflowError):
        return None
    return memoryview(found).cast("P").tolist() if len(found) == count * _WORD else None


_state = ctypes.PYFUNCTYPE(_pointer)(("PyInterpreterState_Get", _api))
_untrack = ctypes.PYFUNCTYPE(None, _object)(("PyObject_GC_UnTrack", _api))


def _put(place: int, hooks: list[Any]) -> None:
    """Make these the interpreter's hooks, in one step for other threads."""
    if hooks:
        _keep(hooks)
        _untrack(hooks)
    _point(place, id(hooks) if hooks else None)


def _point(place: int, address: int | None) -> None:
    word = _pointer(address)  # kept until it has been copied
    _store(place, ctypes.addressof(word), _WORD)


_HOOK: Final = 6_211_985  # stands for the hook among the constants


def _plain_stub(*args: Any, **kwargs: Any) -> Any:
    hook: Any = 6_211_985
    return hook(*args, **kwargs)


class CodeExchange:
    """Makes a Python function run ``hook(proxy, *args, **kwargs)`` instead, through every reference to it.

    ``make`` receives a copy of the original function.
    """

    def __init__(self, function: FunctionType, make: Callable[[Any], Callable[..., Any]]) -> None:
        if function.__closure__:
            raise Unsupported(f"{function.__qualname__} is a closure")
        self.function: Final = function
        self.genuine: Final = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        self.genuine.__kwdefaults__ = function.__kwdefaults__
        self._stub: Final = _stub_for(function.__code__, MethodType(make(self.genuine), self))
        self._found: CodeType | None = None

    @property
    def target(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def apply(self) -> None:
        if self._found is None:
            self._found = self.genuine.__code__ = self.function.__code__
            self.function.__code__ = self._stub

    def restore(self) -> bool:
        if self._found is None:
            return True
        if self.function.__code__ is not self._stub:
            return False
        self.function.__code__, self._found = self._found, None
        return True


def _stub_for(code: CodeType, hook: Any) -> CodeType:
    template = _plain_stub.__code__
    constants = tuple(hook if value == _HOOK else value for value in template.co_consts)
    return template.replace(co_consts=constants, co_name=code.co_name, co_qualname=code.co_qualname)


def works(patch: ReversiblePatch, *calls: Callable[[], Any], marker: object) -> str | None:
    """Try ``patch``, whose hook returns ``marker`` in this thread, with ``calls``; return what is wrong with it, or
    ``None``."""
    process.kept.append(patch)  # another thread may still be inside it
    before = [type(call()) for call in calls]
    patch.apply()
    try:
        reached = all(call() is marker for call in calls)
    finally:
        restored = patch.restore()
    if not restored or [type(call()) for call in calls] != before:
        return "the exchange could not be taken back"
    return None if reached else "not every reference reaches the hook"


def marking(marker: object, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook for ``works``: it returns ``marker`` in this thread, and calls ``real`` (with all arguments) in
    others."""
    me = get_ident()
    return lambda *args, **kwargs: marker if get_ident() == me else real(*args, **kwargs)


def function_patch(
    module: ModuleType, function: Any, make: Callable[[Any, int], Callable[..., Any]]
) -> ReversiblePatch:
    """Return a patch that replaces the C function ``function`` of ``module``; ``make(genuine, flags)`` creates the
    hook.

    Raises ``Unsupported`` if it does not work here. The first function of each calling convention is tried, since all
    others are replaced and called in the same way. The layout is checked for each function.
    """
    flags, real = convention(function), genuine(function)
    if flags not in _tried:
        _try(module, function, flags, real)
        _tried.add(flags)
    return FunctionExchange(function, make(real, flags))


#: The calling conventions for which replacing a function was tried, and works.
_tried: Final[set[int]] = set()


def _try(module: ModuleType, function: Any, flags: int, real: Any) -> None:
    spread = flags == VARARGS
    marker = object()
    probe = marking(marker, lambda _proxy, *args, **kw: real(*args[0], **kw) if spread else real(*args, **kw))
    arguments = _SAMPLES.get(function.__name__, (1,) if flags == ONE else ())
    fault = works(
        FunctionExchange(function, probe), lambda: function(*arguments), partial(function, *arguments), marker=marker
    )
    if fault is not None:
        raise Unsupported(f"{module.__name__}.{function.__name__}: {fault}")


#: Arguments with which to try functions that need some.
_SAMPLES: Final[dict[str, tuple[Any, ...]]] = {
    "clock_gettime": (0,),
    "clock_gettime_ns": (0,),
    "strftime": ("%Y",),
    "getrandom": (1,),
}


def plain(hook: Callable[..., Any], flags: int) -> Callable[..., Any]:
    """Return the hook as an ordinary function, to replace a module's attribute if nothing better works."""
    if flags == VARARGS:
        return lambda *args: hook(None, args)
    return lambda *args, **kwargs: hook(None, *args, **kwargs)
