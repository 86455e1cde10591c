"""One reversible replacement, and the stack that applies and restores in order.

A patch restores exactly what it found, "nothing was there" included. Where someone else has patched the same place since,
theirs stays: putting ours back below it would take theirs away.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, Protocol

from .._reality import free_in_forks

__all__ = ["MISSING", "AttributePatch", "DecoratedPatch", "Patch", "PatchStack", "Switch", "when_imported"]

#: What an attribute patch finds where there is no own attribute (it may be inherited).
MISSING: Final = object()


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


class AttributePatch:
    """``owner.name`` (a module, a class, an instance) becomes ``value``.

    Only the owner's own attribute counts: a method that a class inherits is "nothing there", and is deleted again.
    """

    def __init__(self, owner: Any, name: str, value: object) -> None:
        self.owner: Final = owner
        self.name: Final = name
        self.value: Final = value
        self.applied = False
        self._found: object = MISSING

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
        self._found = self._own()
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
        self._lifted = False

    def __len__(self) -> int:
        return len(self._applied)

    def apply(self, *patches: Patch) -> None:
        """Apply ``patches`` on top. If one fails, those before it are restored, and the error passes."""
        with self._lock:
            done: list[Patch] = []
            try:
                for patch in patches:
                    if patch not in self._applied:
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

    ``patches()`` gives what to apply, and more of it once one of ``modules`` has been imported. It makes each patch once (:meth:`once`,
    :meth:`made`), from what is genuine.
    """

    def __init__(self, patches: Callable[[], list[Patch]], modules: Iterable[str] = ()) -> None:
        self._patches: Final = patches
        self._modules: Final = tuple(modules)
        #: What ``patches()`` gave, and for what was there of the modules then.
        self._known: list[Patch] = []
        self._known_for: list[tuple[ModuleType | None, bool]] | None = None
        self._lock: Final = free_in_forks(threading.RLock())
        self._holders = 0
        self._made: Final[dict[object, list[Patch]]] = {}
        self.stack: Final = PatchStack()
        #: What could not be exchanged in place on this interpreter, and what follows from it.
        self.degraded: Final[list[str]] = []

    @property
    def active(self) -> bool:
        return self._holders > 0

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

    def on(self) -> None:
        """Hold the switch; the first holder applies the patches."""
        with self._lock:
            if not self._holders:
                loaded = [_loaded(module) for module in self._modules]
                if self._known_for != loaded:
                    for module in self._modules:
                        when_imported(module, self._more)
                    self._known_for, self._known = loaded, self._patches()
                self.stack.apply(*self._known)
            self._holders += 1

    def off(self) -> list[str]:
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


def _loaded(name: str) -> tuple[ModuleType | None, bool]:
    """The module, if it has been imported, and whether it still is being imported."""
    module = sys.modules.get(name)
    return module, bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


#: The import hooks of this process: none can be taken back, so each is asked for once.
_watched: Final[set[tuple[str, Callable[[], object]]]] = set()


def when_imported(name: str, then: Callable[[], object]) -> None:
    """Call ``then()`` each time that module ``name`` has been imported from now on; asking twice is asking once."""
    if (name, then) in _watched:
        return
    _watched.add((name, then))
    from wrapt import register_post_import_hook

    register_post_import_hook(lambda _module: then(), name)
