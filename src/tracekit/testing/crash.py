"""``crash_at``: kill the process at a named point of recording or recovery, for tests.

The code under test has no hooks for this: ``crash_at`` replaces methods while its block is open.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .._journal.entry import ENDS, FAMILIES
from .._journal.store import Store
from .._journal.writer import Journal
from .._runtime.recorder import RecordedStep, Recording

__all__ = ["CRASH_POINTS", "RECOVERY_POINTS", "crash_at"]

#: In the order in which a step passes them; ``mid-…`` leaves half a line in the file.
CRASH_POINTS: Final = (
    "before-intent-write",
    "mid-intent-write",
    "after-intent-write",
    "after-intent-sync",
    "before-effect",
    "after-effect",
    "mid-chunk",
    "before-outcome-write",
    "mid-outcome-write",
    "after-outcome-write",
    "after-outcome-sync",
    "before-seal",
    "after-seal-before-tip",
)

#: Points at which a resumed run goes live, or a step is skipped: interrupted and repeated, or answered by an earlier
#: call.
RECOVERY_POINTS: Final = (
    "before-recovery-write",
    "mid-recovery-write",
    "after-recovery-write",
    "before-skipped-write",
    "mid-skipped-write",
    "after-skipped-write",
)

_ROLES: Final = (
    {
        kind: role
        for family in FAMILIES.values()
        for role, kinds in (
            ("intent", (family.intent,)),
            ("chunk", (family.chunk,)),
            ("outcome", (family.outcome, family.error)),
        )
        for kind in kinds
    }
    | {family.skipped: "skipped" for family in FAMILIES.values()}
    | {"recovery.started": "recovery"}
)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Crash:
    def __init__(self, point: str, nth: int, act: Callable[[], object]) -> None:
        self._point = point
        self._left = nth
        self._act = act
        self._lock = threading.Lock()

    def wants(self, point: str) -> bool:
        """Count this passing of ``point``, and return whether to crash now."""
        if point != self._point:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0

    def at(self, point: str) -> None:
        if self.wants(point):
            self._act()

    def torn(self, point: str, journal: Any, size: int) -> None:
        """Crash with only half of the last line, which begins at byte ``size``, in the file."""
        if self.wants(point):
            os.ftruncate(journal._fd, size + (os.fstat(journal._fd).st_size - size) // 2)
            self._act()


@contextmanager
def crash_at(point: str, *, nth: int = 1, act: Callable[[], object] = _die) -> Iterator[None]:
    """Kill the process (SIGKILL to itself, or call ``act``) when it reaches ``point`` inside the block for the ``nth``
    time.

    ``point`` is one of ``CRASH_POINTS`` or ``RECOVERY_POINTS``; any other raises ``ValueError``. The points around
    intent records and outcomes count steps of every kind; the ``…-sync`` points count only steps that are synced
    (effects, or all with durability ``"always"``). Use it in a process started for the purpose.
    """
    if point not in CRASH_POINTS and point not in RECOVERY_POINTS:
        raise ValueError(f"there is no crash point {point!r}; there are {', '.join(CRASH_POINTS + RECOVERY_POINTS)}")
    crash = _Crash(point, nth, act)
    undo: list[Callable[[], None]] = []

    def exchange(owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        setattr(owner, name, make(original))
        undo.append(lambda: setattr(owner, name, original))

    exchange(Journal, "_write", lambda original: _writing(crash, original))
    exchange(Journal, "append", lambda original: _appending(crash, original))
    exchange(Recording, "begin", lambda original: _then(crash, original, "before-effect"))
    exchange(RecordedStep, "done", lambda original: _first(crash, "after-effect", original))
    exchange(RecordedStep, "failed", lambda original: _first(crash, "after-effect", original))
    exchange(Store, "keep_tip", lambda original: _first(crash, "after-seal-before-tip", original))
    try:
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _first(crash: _Crash, point: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(*args: Any, **options: Any) -> Any:
        crash.at(point)
        return original(*args, **options)

    return method


def _then(crash: _Crash, original: Callable[..., Any], point: str) -> Callable[..., Any]:
    def method(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        crash.at(point)
        return result

    return method


def _writing(crash: _Crash, original: Callable[..., int]) -> Callable[..., int]:
    def write(journal: Any, kind: str, *args: Any) -> int:
        role = "seal" if kind in ENDS else _ROLES.get(kind)
        if role is None:
            return original(journal, kind, *args)
        crash.at(f"before-{role}" if role == "seal" else f"before-{role}-write")
        size = os.fstat(journal._fd).st_size
        seq = original(journal, kind, *args)
        crash.torn("mid-chunk" if role == "chunk" else f"mid-{role}-write", journal, size)
        crash.at(f"after-{role}-write")
        return seq

    return write


def _appending(crash: _Crash, original: Callable[..., int]) -> Callable[..., int]:
    def append(
        journal: Any, kind: str, lane: int, parent: int, tail: bytes, sync: bool | dict[int, None] = False
    ) -> int:
        seq = original(journal, kind, lane, parent, tail, sync)
        role = _ROLES.get(kind)
        if role is not None and journal.durability != "none" and (sync is not False or journal.durability == "always"):
            crash.at(f"after-{role}-sync")
        return seq

    return append
