"""Modules that an operator names for their tools: imported with nothing live, since one of them may be a whole program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final, Never

from .._capture import guard as guards
from .._capture.guard_attempts import Attempt
from .._engine import gate
from .._engine.scope import current
from ..errors import LiveCallBlockedError, RecoveryRefusedError, RunStateError
from . import blocks

__all__ = ["definitions"]

_importing: Final = threading.Lock()


def definitions(name: str) -> ModuleType:
    """The module of this name. Nothing that its import begins goes live: no run, no traced call, no connection, no process.

    ``RecoveryRefusedError`` where it tries to, even if it keeps that to itself; ``RunStateError`` where it can't be imported.
    """
    tried: list[str] = []
    try:
        with _importing, _nothing_live(tried):
            module = import_module(name)
    except (Exception, LiveCallBlockedError, SystemExit) as error:
        if not tried:
            raise RunStateError(
                f"the module {name} can't be imported: {_told(error)}",
                next_action="name it as Python imports it, from the directory that it lies in",
            ) from error
    if tried:
        raise RecoveryRefusedError(
            f"{name} runs the program when it is imported ({tried[0]}); nothing of that was done",
            reasons=[{"code": "tools_run", "text": tried[0], "module": name}],
            next_action="put the program under `if __name__ == '__main__':`, or name a module that only defines the tools",
        )
    return module


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"


@contextmanager
def _nothing_live(tried: list[str]) -> Iterator[None]:
    """Refuse to this thread, and to those that begin meanwhile, whatever would be live; ``tried`` is told what that was."""
    others = frozenset(threading.get_ident() if one.ident is None else one.ident for one in threading.enumerate())
    watch = _Watch(others - {threading.get_ident()}, tried, gate.outside)
    guard = _Closed(watch)
    token = current.set(None)
    guard.engage()
    gate.refuse_outside(watch.call)
    blocks.forbidden = watch.block
    try:
        yield
    finally:
        blocks.forbidden = None
        gate.allow_outside(watch.call)
        guard.release()
        current.reset(token)


class _Watch:
    """What is refused to all but ``others``, the threads that have nothing to do with the import."""

    def __init__(self, others: frozenset[int], tried: list[str], before: Callable[[str, str], None] | None) -> None:
        self._others: Final = others
        self._tried: Final = tried
        self._before: Final = before

    def concerns(self) -> bool:
        return threading.get_ident() not in self._others

    def call(self, family: str, name: str) -> None:
        if self.concerns():
            self._refuse(f"it calls {family} {name!r}")
        if self._before is not None:
            self._before(family, name)

    def block(self, kind: str) -> None:
        if self.concerns():
            self._refuse(f"it opens a {kind}() block")

    def blocked(self, error: LiveCallBlockedError) -> None:
        self._tried.append(f"it reaches out: {error.__dict__.get('operation')} {error.__dict__.get('target')}")

    def _refuse(self, what: str) -> Never:
        self._tried.append(what)
        raise LiveCallBlockedError(
            f"{what} while it is imported for its tools; it was not executed",
            operation=what,
            next_action="put the program under `if __name__ == '__main__':`",
        )


class _Closed(guards.Guard):
    """The guard of the process, for those that the import concerns."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__("process", (), False, failed=watch.blocked)
        self._watch: Final = watch

    def blocks(self, attempt: Attempt) -> bool:
        return self._watch.concerns() and super().blocks(attempt)
