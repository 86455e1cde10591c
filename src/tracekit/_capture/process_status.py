"""How a process that a run has started stands: what its program was told of it, each time that it asked.

``poll``, ``wait`` and ``communicate`` of ``subprocess.Popen`` (so ``subprocess.run`` as well), ``is_alive``, ``join``, ``exitcode`` and
``close`` of ``multiprocessing``'s processes, and when a loop of asyncio hears of the end of one: how long a process takes is chance. A
recording writes down what each of them found; in a replay that is the answer, and where it was the end of the process, the replayed one
has come to its end, too, when the program hears of it.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from .._engine.gate import here
from .._engine.scope import Scope, current
from ..errors import ReplayError

__all__ = ["Standing", "expect", "follow", "places"]

#: The longest output that is kept of a process which took too long, in bytes.
_MOST: Final = 16 << 20


class Standing(Protocol):
    """What a session has to do with a process that it follows."""

    @property
    def session(self) -> Any: ...
    @property
    def path(self) -> str:
        """The path of its lane."""
        ...

    @property
    def live(self) -> bool:
        """Whether it is being recorded."""
        ...

    def note(self, scope: Scope, told: Any) -> None:
        """The program was told this: ``None`` (it runs), its exit status, or what there was when the time ran out."""
        ...

    def heard(self) -> None:
        """The program has heard of its end, while it was recorded."""
        ...

    def recall(self, scope: Scope) -> Any:
        """What the recorded program was told."""
        ...

    def let_end(self) -> None:
        """Wait until the process has ended."""
        ...

    def ended(self, status: int | None, recorded: int) -> None:
        """It has, with this status, where the recorded one has ended with that."""
        ...

    def let_run(self, step: Callable[[], bool]) -> None:
        """Call ``step`` until it says that all is done, or the process has come to where it waits."""
        ...


_followed: Final[WeakKeyDictionary[Any, Standing]] = WeakKeyDictionary()


def follow(process: Any, standing: Standing) -> None:
    """What is asked of this process from now on is part of the run."""
    _followed[process] = standing


def _place(process: Any) -> tuple[Standing, Scope] | None:
    """Where a question that is asked now belongs; ``None`` where it is none of the run's."""
    scope = current.get()
    if scope is None or scope.live:
        return None
    standing = _followed.get(process)
    session: Any = scope.session
    if standing is None or standing.session is not session or session.ended:
        return None
    scope = here()
    return None if scope is None else (standing, scope)


def _really(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """How it is found out is nothing to record."""
    token = current.set(None)
    try:
        return call(*args, **options)
    finally:
        current.reset(token)


# -- subprocess ------------------------------------------------------------------------------------------------------------


def _poll(original: Any) -> Any:
    @functools.wraps(original)
    def poll(self: Any) -> Any:
        at = _place(self)
        if at is None:
            return original(self)
        standing, scope = at
        if standing.live:
            status = _really(original, self)
            standing.note(scope, status)
            return status
        return _known(self, standing, standing.recall(scope))

    return poll


def _wait(original: Any) -> Any:
    @functools.wraps(original)
    def wait(self: Any, timeout: float | None = None) -> Any:
        at = _place(self)
        if at is None:
            return original(self, timeout)
        standing, scope = at
        if not standing.live:
            told = standing.recall(scope)
            if told is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            return _known(self, standing, told)
        try:
            status = _really(original, self, timeout)
        except subprocess.TimeoutExpired:
            standing.note(scope, None)
            raise
        standing.note(scope, status)
        return status

    return wait


def _communicate(original: Any) -> Any:
    @functools.wraps(original)
    def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        at = _place(self)
        if at is None:
            return original(self, input, timeout)
        standing, scope = at
        if not standing.live:
            return _again(original, self, standing, standing.recall(scope), input, timeout)
        try:
            found = _really(original, self, input, timeout)
        except subprocess.TimeoutExpired as error:
            parts = {"output": error.output, "stderr": error.stderr}
            whole = sum(len(part or b"") for part in parts.values()) <= _MOST
            standing.note(scope, parts if whole else {"too_much": True})
            raise
        standing.note(scope, self.returncode)
        return found

    return communicate


def _again(original: Any, self: Any, standing: Standing, told: Any, input: Any, timeout: float | None) -> Any:
    if not isinstance(told, dict):
        found = _really(original, self, input)
        _known(self, standing, told)
        return found
    given = [input]

    def feed() -> bool:  # what it was given and what it wrote until then went through its pipes
        try:
            original(self, given.pop() if given else None, 0.02)
        except subprocess.TimeoutExpired:
            return False
        return True

    _really(standing.let_run, feed)
    raise subprocess.TimeoutExpired(self.args, timeout or 0, output=told.get("output"), stderr=told.get("stderr"))


def _known(process: Any, standing: Standing, status: Any) -> Any:
    """The recorded answer; where that is the end, the replayed process has come to its own."""
    if status is None:
        return None
    if process.returncode is None:
        _really(standing.let_end)
        _really(type(process).wait, process)
    standing.ended(process.returncode, status)
    process.returncode = status
    return status


# -- asyncio ---------------------------------------------------------------------------------------------------------------

_expected: Final[WeakKeyDictionary[Any, tuple[Standing, Any]]] = WeakKeyDictionary()


def expect(process: Any, standing: Standing) -> None:
    """An event loop will hear of the end of this process: an event of the run."""
    scope = current.get()
    scope = None if scope is None or scope.live else here()
    if scope is not None and not standing.session.ended:
        turn = standing.session.arm(scope, "process.exit", 0)
        if not turn.live:
            turn.from_outside()
        _expected[process] = standing, turn


def _exited(original: Any) -> Any:
    @functools.wraps(original)
    def _process_exited(self: Any, returncode: int) -> None:
        standing, turn = _expected.pop(self._proc, (None, None))
        if standing is None or turn is None or standing.session.ended:
            original(self, returncode)
        elif turn.live:
            turn.fired({"process": standing.path, "status": returncode})
            standing.heard()
            original(self, returncode)
        elif turn.comes:  # else the loop did not hear of it

            def heard() -> None:
                status = turn.about["status"]
                with suppress(ReplayError):  # it is the replay's failure now
                    standing.ended(returncode, status)
                original(self, status)

            turn.on_fire(heard)

    return _process_exited


# -- multiprocessing -------------------------------------------------------------------------------------------------------


def _asking(original: Any, unfinished: Any = None) -> Any:
    """A method that asks how the process stands; it answers ``unfinished`` as long as that goes on."""

    @functools.wraps(original)
    def ask(self: Any, *args: Any, **options: Any) -> Any:
        at = _place(self)
        if at is None or getattr(self, "_popen", None) is None:
            return original(self, *args, **options)
        standing, scope = at
        if standing.live:
            popen = self._popen
            found = _really(original, self, *args, **options)
            standing.note(scope, popen.returncode)
            return found
        status = standing.recall(scope)
        if status is None:
            return unfinished
        popen = self._popen
        if popen.returncode is None:
            _really(standing.let_end)
            popen.wait()
        standing.ended(popen.returncode, status)
        popen.returncode = status
        return _really(original, self)

    return ask


def _exitcode(original: Any) -> Any:
    return property(_asking(original.fget), doc=original.__doc__)


#: Module, class, name, and what goes in its place.
places: Final = (
    ("subprocess", "Popen", "poll", _poll),
    ("subprocess", "Popen", "wait", _wait),
    ("subprocess", "Popen", "communicate", _communicate),
    ("asyncio.base_subprocess", "BaseSubprocessTransport", "_process_exited", _exited),
    ("multiprocessing.process", "BaseProcess", "is_alive", lambda original: _asking(original, True)),
    ("multiprocessing.process", "BaseProcess", "join", _asking),
    ("multiprocessing.process", "BaseProcess", "close", _asking),
    ("multiprocessing.process", "BaseProcess", "exitcode", _exitcode),
)
