"""One reversible replacement, and the stack that applies and restores in order.

A patch restores exactly what it found, "nothing was there" included. Where someone else has patched the same place since,
theirs stays: putting ours back below it would take theirs away.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from .._reality import free_in_forks

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = [
    "MISSING",
    "AttributePatch",
    "DecoratedPatch",
    "LatePatch",
    "Patch",
    "PatchStack",
    "Switch",
    "loaded",
    "looking_like",
    "when_imported",
]

#: What an attribute patch finds where there is no own attribute (it may be inherited).
MISSING: Final = object()
#: What is never found anywhere.
_NEVER: Final = object()


class Patch(Protocol):
    """One reversible replacement. Applying twice, or restoring what is not applied, does nothing."""

    @property
    def target(self) -> str:
        """What is replaced, as ``"time.time"``."""
        ...

    def apply(self) -> None: ...

    def restore(self) -> bool:
        """Put back what was found. False where someone else's replacement lies on top, which is left alone."""
        ...


class _Builtin(staticmethod):  # type: ignore[type-arg]
    """A Python function in the place of one in C: as that, it takes no ``self`` where a class has it as an attribute, and is pickled by
    its name."""

    def __get__(self, instance: object, owner: type | None = None) -> _Builtin:
        return self

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<built-in function {self.__name__}>"


def looking_like(value: Any, found: Any, owner: Any) -> Any:
    """The function ``value`` as what it replaces shows itself to a program; anything else as it is."""
    if type(value) is not FunctionType:
        return value
    if type(found) in (BuiltinFunctionType, _Builtin) and isinstance(owner, ModuleType):
        # A function that two modules have is one object; ``wraps`` copies what a function has.
        builtin: _Builtin | None = vars(value).get("_as_builtin")
        if builtin is None or builtin.__func__ is not value:
            value.__name__, value.__module__, value.__annotations__ = found.__name__, owner.__name__, {}
            builtin = vars(value)["_as_builtin"] = _Builtin(value)
        return builtin
    if type(found) is FunctionType:
        value.__module__, value.__qualname__, value.__doc__ = found.__module__, found.__qualname__, found.__doc__
    return value


class AttributePatch:
    """``owner.name`` (a module, a class, an instance) becomes ``value``.

    Only the owner's own attribute counts: a method that a class inherits is "nothing there", and is deleted again.
    """

    def __init__(self, owner: Any, name: str, value: object) -> None:
        self.owner: Final = owner
        self.name: Final = name
        self.value = value
        self.applied = False
        self._found: object = MISSING
        #: What was found when ``value`` was last made to look like it: the same is found again for each of many runs.
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
        found = self._found = self._own()
        if found is not self._like:
            self.value, self._like = looking_like(self.value, found, self.owner), found
        setattr(self.owner, self.name, self.value)
        self.applied = True

    def restore(self) -> bool:
        if not self.applied:
            return True
        self.applied = False
        if self._own() is not self.value:
            return False
        if self._found is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._found)
        self._found = MISSING
        return True

    def _own(self) -> object:
        # Not getattr: it would run lazy attributes and descriptors, and find what is only inherited.
        return getattr(self.owner, "__dict__", {}).get(self.name, MISSING)


class LatePatch(AttributePatch):
    """``owner.name`` becomes ``make(what is there)``: made anew where that is another one, since a test may put its own function there."""

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


class DecoratedPatch:
    """What a decorated function holds of the one that it was made of (``function.__wrapped__``) becomes ``value``.

    The decorated function stays the object that it is, wherever it has been imported to.
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
    """Patches applied in order and restored in reverse; all or nothing; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock: Final = free_in_forks(threading.RLock())
        self._applied: list[Patch] = []

    def __len__(self) -> int:
        return len(self._applied)

    def apply(self, *patches: Patch) -> None:
        """Apply ``patches`` on top. If one fails, those before it are restored, and the error passes."""
        with self._lock:
            new = [patch for patch in patches if patch not in self._applied] if self._applied else patches
            done: list[Patch] = []
            try:
                for patch in new:
                    patch.apply()
                    done.append(patch)
            except BaseException:
                _restore(done)
                raise
            self._applied += done

    def restore(self) -> list[str]:
        """Restore everything, the last first. Returns the targets where someone else's patch was on top."""
        with self._lock:
            applied, self._applied = self._applied, []
            return _restore(applied)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Take the patches away for the block, so that another patcher sees bare functions, and put them back."""
        with self._lock:
            patches = list(self._applied)
            self.restore()
            try:
                yield
            finally:
                self.apply(*patches)


def _restore(patches: list[Patch]) -> list[str]:
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
    """A stack of patches that is on while at least one session holds it.

    ``patches()`` gives what to apply, and more of it once one of ``modules`` has been imported. It makes each patch once (``once``,
    ``made``), from what is genuine.
    """

    def __init__(self, patches: Callable[[], list[Patch]], modules: Iterable[str] = ()) -> None:
        self._patches: Final = patches
        self._modules: Final[list[str]] = []
        #: What ``patches()`` gave, and for what was there of the modules then.
        self._known: list[Patch] = []
        self._known_for: list[ModuleType | None] | None = None
        self._lock: Final = free_in_forks(threading.RLock())
        self._holders = 0
        self._made: Final[dict[object, list[Patch]]] = {}
        self.watch(modules)
        self.stack: Final = PatchStack()
        #: What could not be exchanged in place on this interpreter, and what follows from it.
        self.degraded: Final[list[str]] = []

    @property
    def active(self) -> bool:
        return self._holders > 0

    def watch(self, modules: Iterable[str]) -> None:
        """There is more once one of these has been imported, too. Known before anything is on: so none is imported past it then."""
        for module in modules:
            if module not in self._modules:
                self._modules.append(module)
                when_imported(module, self._more)

    def made(self, key: object, make: Callable[[], list[Patch]]) -> list[Patch]:
        """The patches under ``key``, made when they are first asked for."""
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found

    def once(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
        """The patch of one attribute, the same each time that it is asked for."""

        def make() -> list[Patch]:
            found = vars(owner).get(name)
            if isinstance(found, classmethod):
                return [AttributePatch(owner, name, classmethod(wrap(found.__func__)))]
            return [AttributePatch(owner, name, wrap(getattr(owner, name)))]

        return self.made((id(owner), name), make)[0]

    def activate(self) -> None:
        """Hold the switch; the first holder applies the patches."""
        with self._lock:
            if not self._holders:
                there = _loaded_of(self._modules)
                if self._known_for != there:
                    self._known_for, self._known = there, self._patches()
                self.stack.apply(*self._known)
            self._holders += 1
        if [module for module in [*self._modules] if module in sys.modules and _awaited(module)]:
            self._more()

    def deactivate(self) -> list[str]:
        """Release the switch; the last holder restores. Returns the targets that someone else has patched since."""
        with self._lock:
            if not self._holders:
                return []
            self._holders -= 1
            return [] if self._holders else self.stack.restore()

    def _more(self) -> None:
        """A module was imported: apply what is new, if there is a holder."""
        with self._lock:
            self._known_for = None
            if self._holders:
                self.stack.apply(*self._patches())


# -- imports -----------------------------------------------------------------------------------------------------------
#
# Whoever patches a module that is not there yet is called when it has been executed, before the program can use it: the import system
# holds the module's lock until then, in every thread that imports it. Whoever holds a lock of ours must not wait for one of those, so a
# module that another thread is importing is not there (``loaded``).


class _Announced:
    """The loader of a module that somebody waits for. The module sees its own loader, as if this one had never been."""

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
            self._loader.exec_module(module)
            under_way[name] = threading.get_ident()
            for then in [*_imports.waiting[name]]:
                then()
        finally:
            under_way.pop(name, None)


class _Imports:
    """A finder that finds a module as all the others do, where somebody waits for it, and nothing else."""

    def __init__(self) -> None:
        self.waiting: Final[dict[str, list[Callable[[], object]]]] = {}
        #: The modules that are being imported, each with the thread for which it is there already.
        self.under_way: Final[dict[str, int]] = {}
        self._finding: Final = threading.local()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.waiting or getattr(self._finding, "name", None) == name:
            return None
        before, self._finding.name = (
            getattr(self._finding, "name", None),
            name,
        )  # another hook of this kind asks everybody, too
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
    """Call ``then()`` each time that module ``name`` has been imported from now on; asking twice is asking once."""
    waiting = _imports.waiting.setdefault(name, [])
    if then not in waiting:
        waiting.append(then)
    if _imports not in sys.meta_path:
        sys.meta_path.insert(0, _imports)


def loaded(name: str) -> Any:
    """Module ``name``, or ``None`` before it has been executed."""
    there = _imports.under_way.get(name)
    return sys.modules.get(name) if there is None or there == threading.get_ident() else None


def _loaded_of(names: list[str]) -> list[ModuleType | None]:
    """``loaded`` of each."""
    return [*map(loaded if _imports.under_way else sys.modules.get, names)]


def _awaited(name: str) -> bool:
    """Wait for another thread that is importing module ``name``; whether there was one."""
    if not getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
        return False
    import_module(name)
    return True
