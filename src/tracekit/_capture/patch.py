"""Reversible replacements of attributes, and the stack that applies them in order and restores them in reverse.

A patch restores exactly what it found, including "there was nothing". If somebody else has patched the same place
since, their patch stays: restoring the original below it would remove theirs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from .._reality import OwnLock

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = [
    "MISSING",
    "AtRestore",
    "AttributePatch",
    "DecoratedPatch",
    "LatePatch",
    "Patch",
    "PatchStack",
    "ReversiblePatch",
    "Switch",
    "imported_within",
    "loaded",
    "looking_like",
    "owner_of",
    "when_imported",
]

#: Found by an attribute patch if the owner has no such attribute of its own (it may be inherited).
MISSING: Final = object()
#: Equal to nothing that can be found.
_NEVER: Final = object()


class ReversiblePatch(Protocol):
    """One reversible replacement. Applying it twice, or restoring it when it is not applied, does nothing."""

    @property
    def target(self) -> str:
        """The name of what is replaced, such as ``"time.time"``."""
        ...

    def apply(self) -> None: ...

    def restore(self) -> bool:
        """Put back what was found. Return False if somebody else's replacement is on top, which is left alone."""
        ...


class Patch:
    """An attribute to replace: ``attribute`` (``"Client.send"``) of ``module``, once that module is imported.

    ``wrap`` receives the original and returns the replacement; as text, ``"package.module:function"``, it is imported
    when that is done, so that a program without the library does not load it. A function reachable by two names (a module that aliases
    another) is replaced once. Attributes that a version of the library lacks are skipped.

    ``decorated``: the attribute is a function made by a decorator (``@asynccontextmanager``) and imported by name. The
    function inside it is replaced, so that earlier imports are covered.
    """

    __slots__ = ("_wrap", "attribute", "decorated", "module")

    def __init__(
        self, module: str, attribute: str, wrap: Callable[[Any], Any] | str, *, decorated: bool = False
    ) -> None:
        self.module: Final = module
        self.attribute: Final = attribute
        self._wrap: Final = wrap
        self.decorated: Final = decorated

    def replacement(self, original: Any) -> Any:
        """Return what replaces ``original``."""
        wrap = self._wrap
        if isinstance(wrap, str):
            module, _, name = wrap.partition(":")
            wrap = getattr(import_module(module), name)
        return wrap(original)

    def __repr__(self) -> str:
        return f"Patch({self.module!r}, {self.attribute!r})"


def owner_of(module: Any, attribute: str) -> tuple[Any, str]:
    """Return the object in ``module`` that has ``attribute`` (``"Client.send"``), or ``None``, and the name there."""
    *way, name = attribute.split(".")
    for step in way:
        module = getattr(module, step, None)
    return module, name


class _Builtin(staticmethod):  # type: ignore[type-arg]
    """A Python function in place of one written in C: like that, it binds no ``self`` as a class attribute, and is
    pickled by name."""

    def __get__(self, instance: object, owner: type | None = None) -> _Builtin:
        return self

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<built-in function {self.__name__}>"


def looking_like(value: Any, found: Any, owner: Any) -> Any:
    """Return the function ``value`` made to look to a program like what it replaces; anything else unchanged."""
    if type(value) is not FunctionType:
        return value
    if type(found) in (BuiltinFunctionType, _Builtin) and isinstance(owner, ModuleType):
        # A function that two modules share is one object; ``wraps`` copies a function's attributes.
        builtin: _Builtin | None = vars(value).get("_as_builtin")
        if builtin is None or builtin.__func__ is not value:
            value.__name__, value.__module__, value.__annotations__ = found.__name__, owner.__name__, {}
            builtin = vars(value)["_as_builtin"] = _Builtin(value)
        return builtin
    if type(found) is FunctionType:
        value.__name__, value.__qualname__ = found.__name__, found.__qualname__
        value.__module__, value.__doc__ = found.__module__, found.__doc__
    return value


class AttributePatch:
    """Replace ``owner.name`` (of a module, a class or an instance) with ``value``.

    Only the owner's own attribute counts: an inherited method is "nothing there", and is deleted again.
    """

    def __init__(self, owner: Any, name: str, value: object) -> None:
        self.owner: Final = owner
        self.name: Final = name
        self.value = value
        self.applied = False
        self._found: object = MISSING
        #: The original that ``value`` was last made to look like: many runs find the same one.
        self._like: object = _NEVER

    @property
    def target(self) -> str:
        return f"{getattr(self.owner, '__name__', type(self.owner).__name__)}.{self.name}"

    @property
    def original(self) -> object:
        """What was found, raw (a ``classmethod`` object, not the bound method), or ``MISSING``."""
        return self._found

    def apply(self) -> None:
        if self.applied:
            return
        # Not getattr: it would run lazy attributes and descriptors, and find inherited attributes.
        found = self._found = getattr(self.owner, "__dict__", {}).get(self.name, MISSING)
        if found is not self._like:
            self.value, self._like = looking_like(self.value, found, self.owner), found
        self.applied = True  # first: a signal handler may raise right after the replacement
        setattr(self.owner, self.name, self.value)

    def restore(self) -> bool:
        if not self.applied:
            return True
        self.applied = False
        there = getattr(self.owner, "__dict__", {}).get(self.name, MISSING)
        if there is self._found:
            return True
        if there is not self.value:
            return False
        if self._found is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._found)
        self._found = MISSING
        return True


class LatePatch(AttributePatch):
    """Replace ``owner.name`` with ``make(found)``, made again when something else is found, since a test may put its
    own function there."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], object]) -> None:
        super().__init__(owner, name, MISSING)
        self._make: Final = make
        self._made_of: object = _NEVER

    def apply(self) -> None:
        if not self.applied:
            there = getattr(self.owner, self.name)
            if there is not self._made_of:
                self.value, self._made_of, self._like = self._make(there), there, _NEVER
            super().apply()


class AtRestore:
    """What to do when the patches around it are restored."""

    def __init__(self, target: str, then: Callable[[], object]) -> None:
        self.target: Final = target
        self._then: Final = then

    def apply(self) -> None:
        pass

    def restore(self) -> bool:
        self._then()
        return True


class DecoratedPatch:
    """Replace the function inside a decorated function (``function.__wrapped__``) with ``value``.

    The decorated function stays the same object, wherever it has been imported to.
    """

    def __init__(self, function: Any, value: object) -> None:
        self.value: Final = value
        self.applied = False
        self._name: Final = getattr(function, "__qualname__", repr(function))
        self._found: Final = function.__wrapped__
        self._cell: Final = next(cell for cell in function.__closure__ if cell.cell_contents is self._found)

    @property
    def target(self) -> str:
        return self._name

    def apply(self) -> None:
        if not self.applied:
            self._cell.cell_contents = self.value
            self.applied = True

    def restore(self) -> bool:
        if not self.applied:
            return True
        self.applied = False
        if self._cell.cell_contents is not self.value:
            return False
        self._cell.cell_contents = self._found
        return True


class PatchStack:
    """Patches applied in order and restored in reverse; all or nothing; thread-safe."""

    def __init__(self) -> None:
        self._lock: Final = OwnLock()
        self._applied: list[ReversiblePatch] = []

    def __len__(self) -> int:
        return len(self._applied)

    def apply(self, *patches: ReversiblePatch) -> None:
        """Apply ``patches`` on top. If one fails, those before it are restored and its error propagates."""
        with self._lock:
            new = [patch for patch in patches if patch not in self._applied] if self._applied else patches
            before = len(self._applied)
            try:
                for patch in new:
                    self._applied.append(patch)  # first: a signal handler may raise right after it is applied
                    patch.apply()
            except BaseException:
                done, self._applied[before:] = self._applied[before:], []
                _restore(done)
                raise

    def restore(self) -> list[str]:
        """Restore everything in reverse order. Return the targets where somebody else's patch was on top."""
        with self._lock:
            applied, self._applied = self._applied, []
            return _restore(applied)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Remove the patches for the block, so that another patcher sees the original functions; then apply them again."""
        with self._lock:
            patches = list(self._applied)
            self.restore()
            try:
                yield
            finally:
                self.apply(*patches)


def _restore(patches: list[ReversiblePatch]) -> list[str]:
    covered: list[str] = []
    failure: BaseException | None = None
    for patch in reversed(patches):
        try:
            if not patch.restore():
                covered.append(patch.target)
        except BaseException as error:  # the others must be restored all the same
            failure = failure or error
    if failure is not None:
        raise failure
    return covered


class Switch:
    """A stack of patches that is applied while at least one session holds it.

    ``patches`` is a table of them, or a function that returns them, and more of them once one of ``modules`` has been
    imported. A function that returns these says what integrations declare: it is called before the first activation, and
    whenever other integrations are known (``declared_anew``). ``modules`` may also say by name how the patches of each
    module are made. Each patch is created only once (``once``, ``made``), from the genuine function.
    """

    def __init__(
        self,
        patches: Callable[[], list[ReversiblePatch]] | Sequence[Patch] = (),
        modules: Iterable[str] | Mapping[str, Callable[[], list[ReversiblePatch]]] | Callable[[], Iterable[str]] = (),
    ) -> None:
        if not callable(patches):
            modules = modules or [*dict.fromkeys(patch.module for patch in patches)]
            patches = partial(self.of, patches)
        self._core: Final = patches
        self._later: Final = modules if isinstance(modules, Mapping) else {}
        self._declared: Final[Callable[[], Iterable[str]]] = modules if callable(modules) else tuple
        #: Whether the declared modules are watched.
        self._up_to_date = not callable(modules)
        self._modules: Final[list[str]] = []
        #: The result of ``patches()``, and the modules that were loaded at that time.
        self._known: list[ReversiblePatch] = []
        self._known_for: list[ModuleType | None] | None = None
        self._lock: Final = OwnLock()
        self._holders = 0
        #: Whether it has further patches until the last holder releases it (``extend``).
        self.extended = False
        self._made: Final[dict[object, list[ReversiblePatch]]] = {}
        if callable(modules):
            _declaring.append(self)
        else:
            self._watch(modules)
        self.stack: Final = PatchStack()
        #: What could not be replaced in place on this interpreter, and the consequences.
        self.degraded: Final[list[str]] = []

    @property
    def active(self) -> bool:
        return self._holders > 0

    def _watch(self, modules: Iterable[str]) -> None:
        """Look for more patches once one of these modules is imported."""
        for module in modules:
            if module not in self._modules:
                self._modules.append(module)
                when_imported(module, self._more)

    def _watch_declared(self) -> None:
        self._up_to_date = True  # first: finding the integrations registers some
        self._known_for = None
        self._watch(self._declared())

    def declared_anew(self) -> None:
        """Other integrations are known now: apply what they declare, if the switch is held, or else with the next holder."""
        with self._lock:
            self._up_to_date = False
            if self._holders:
                self._watch_declared()
                self._more()

    def _patches(self) -> list[ReversiblePatch]:
        """Return all patches that are possible now."""
        found = [*self._core()]
        for name, make in self._later.items():
            module = loaded(name)
            if module is not None:
                found += self.made((name, id(module)), make)
        return found

    def made(self, key: object, make: Callable[[], list[ReversiblePatch]]) -> list[ReversiblePatch]:
        """Return the patches under ``key``, created at the first request."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found

    def of(self, table: Iterable[Patch]) -> list[ReversiblePatch]:
        """Return the patches in a table whose module is loaded and has the attribute, the same ones each time."""
        found = []
        for patch in table:
            owner, name = owner_of(loaded(patch.module), patch.attribute)
            if owner is not None and hasattr(owner, name):
                found.append(self.once(owner, name, patch.replacement))
        return found

    def once(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> ReversiblePatch:
        """Return the patch of one attribute, the same one each time."""

        def make() -> list[ReversiblePatch]:
            found = vars(owner).get(name)
            if isinstance(found, classmethod):
                return [AttributePatch(owner, name, classmethod(wrap(found.__func__)))]
            return [AttributePatch(owner, name, wrap(getattr(owner, name)))]

        return self.made((id(owner), name), make)[0]

    def activate(self) -> None:
        """Hold the switch; the first holder applies the patches."""
        with self._lock:
            self._holders += 1
            try:
                if self._holders == 1:
                    if not self._up_to_date:
                        self._watch_declared()
                    there = [*map(loaded if _imports.under_way else sys.modules.get, self._modules)]
                    if self._known_for != there:
                        self._known_for, self._known = there, self._patches()
                    self.stack.apply(*self._known)
            except BaseException:
                self._holders -= 1
                if not self._holders:
                    self.stack.restore()
                raise
        self._wait_for_imports()

    def extend(self, patches: Callable[[], list[ReversiblePatch]]) -> None:
        """Apply further patches until the last holder releases the switch; none if nobody holds it."""
        with self._lock:
            if self._holders:
                self.stack.apply(*patches())
                self.extended = True

    def deactivate(self) -> list[str]:
        """Release the switch; the last holder restores the patches. Return the targets that somebody else has patched
        since."""
        with self._lock:
            if not self._holders:
                return []
            self._holders -= 1
            if self._holders:
                return []
            self.extended = False
            return self.stack.restore()

    def _wait_for_imports(self) -> None:
        """Wait for modules that other threads are importing, and apply their patches."""
        waited = False
        for name in [*self._modules]:
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                import_module(name)
                waited = True
        if waited:
            self._more()

    def _more(self) -> None:
        """A module was imported: apply its patches, if the switch is held."""
        with self._lock:
            self._known_for = None
            if self._holders:
                self.stack.apply(*self._patches())


#: Those whose modules integrations declare.
_declaring: Final[list[Switch]] = []


def declared_anew() -> None:
    """Other integrations are known now than before."""
    for switch in _declaring:
        switch.declared_anew()


# -- imports -----------------------------------------------------------------------------------------------------------
#
# To patch a module that is not imported yet, register a function with ``when_imported``: it is called after the module
# was executed and before the program can use it, since the import system holds the module's lock until then, in every
# thread that imports it. Code that holds a lock of tracekit must not wait for an import lock, so a module that another
# thread is importing counts as not loaded (``loaded``).


class _Announced:
    """The loader of a module whose import somebody waits for. The module sees only its original loader."""

    def __init__(self, loader: Any) -> None:
        self._loader: Final = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        name, under_way = module.__name__, _imports.under_way
        under_way[name] = 0
        try:
            with _imports.around.get(name, nullcontext)():
                self._loader.exec_module(module)
            under_way[name] = threading.get_ident()
            for then in [*_imports.waiting[name]]:
                then()
        finally:
            under_way.pop(name, None)


class _Imports:
    """A finder that finds what all the others find, only for modules whose import somebody waits for."""

    def __init__(self) -> None:
        self.waiting: Final[dict[str, list[Callable[[], object]]]] = {}
        #: The context in which a module is executed.
        self.around: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {}
        #: The modules being imported, each with the thread for which it is already loaded.
        self.under_way: Final[dict[str, int]] = {}
        self._finding: Final = threading.local()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.waiting or getattr(self._finding, "name", None) == name:
            return None
        before = getattr(self._finding, "name", None)
        self._finding.name = name  # another hook of this kind asks all finders, too
        try:
            specs = (finder.find_spec(name, path, target) for finder in [*sys.meta_path] if finder is not self)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._finding.name = before
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Announced(spec.loader)  # type: ignore[assignment]  # it has what a loader has
        return spec


_imports: Final = _Imports()


def when_imported(name: str, then: Callable[[], object]) -> None:
    """Call ``then()`` after each import of module ``name`` from now on; registering twice has no further effect."""
    waiting = _imports.waiting.setdefault(name, [])
    if then not in waiting:
        waiting.append(then)
    if _imports not in sys.meta_path:
        sys.meta_path.insert(0, _imports)


def imported_within(name: str, context: Callable[[], AbstractContextManager[object]]) -> None:
    """Execute module ``name`` in ``context()`` from now on, such as one without the hooks that it must not find."""
    _imports.around[name] = context
    when_imported(name, _nothing)


def _nothing() -> None: ...


def loaded(name: str) -> Any:
    """Return module ``name``, or ``None`` until it has been executed."""
    there = _imports.under_way.get(name)
    return sys.modules.get(name) if there is None or there == threading.get_ident() else None
