"""Whether everything in a process of a replay waits: told to the process that started it, each time that this one asks.

Nobody knows by the clock whether a process has come so far as the recorded one had. But where every thread of it sleeps, and has not
run for a while, it waits for something from outside: a message, a signal. With it goes what of its log it has not come to.
"""

from __future__ import annotations

import json
import os
import select
import signal
from _thread import get_native_id, start_new_thread
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from .. import _reality
from .._capture import guard

__all__ = ["Answer", "Teller", "ask_file", "still_file"]

Answer = dict[str, Any]

#: For how long nothing must have run, and for how long that is waited for before the process is called busy, in seconds.
_QUIET: Final = 0.25
_PATIENCE: Final = 20.0
_LOOK: Final = 0.01
_TASKS: Final = "/proc/self/task"


def ask_file(report: str) -> str:
    """The pipe by which the process is asked whose report this is; each byte is a question."""
    return f"{report}.ask"


def still_file(report: str) -> str:
    """Where it answers: the number of the question, the steps that are left, and what it looks like."""
    return f"{report}.still"


class Teller:
    """Answers in a thread of its own. ``left`` gives the recorded steps that the program has not come to, ``watcher`` the thread
    that hands out what was recorded, ``below`` what the processes look like that this one has started, ``None``: one is busy."""

    def __init__(
        self,
        report: str,
        left: Callable[[], list[dict[str, Any]]],
        watcher: Callable[[], int],
        below: Callable[[], list[Any] | None],
    ) -> None:
        self._report: Final = report
        self._left: Final = left
        self._watcher: Final = watcher
        self._below: Final = below
        self._parent: Final = os.getppid()
        self._questions = 0
        with guard.allow():
            os.mkfifo(ask_file(report), 0o600)
            self._fd: Final = os.open(ask_file(report), os.O_RDWR | os.O_CLOEXEC)
        start_new_thread(self._listen, ())

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._me: int = get_native_id()
        with guard.allow(), suppress(OSError):  # the replay is over, and its directory gone
            while True:
                if select.select([self._fd], [], [], 1.0)[0]:
                    self._questions += len(os.read(self._fd, 4096))
                    self._answer()
                elif os.getppid() != self._parent and not os.path.exists(ask_file(self._report)):
                    os.kill(os.getpid(), signal.SIGKILL)  # what belongs to a replay does not outlive it

    def _answer(self) -> None:
        until = _reality.monotonic() + _PATIENCE
        look, since = self._look(), _reality.monotonic()
        while look is None or _reality.monotonic() - since < _QUIET:
            if _reality.monotonic() > until:
                look = None
                break
            _reality.sleep(_LOOK)
            now = self._look()
            if now is None or now != look:
                look, since = now, _reality.monotonic()
        left = self._left()
        told = {"question": self._questions, "busy": look is None, "count": len(left), "left": left[:3], "look": look}
        path = still_file(self._report)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(f"{path}.new", path)

    def _look(self) -> list[Any] | None:
        """Equal looks mean that nothing has run in between; ``None``: something runs."""
        try:
            tasks = sorted(os.listdir(_TASKS))
        except OSError:  # no such system: as far as it came is what can be seen
            return [len(self._left())]
        found: list[Any] = []
        for task in tasks:
            if int(task) in (self._me, self._watcher()):
                continue
            try:
                with open(f"{_TASKS}/{task}/stat", "rb") as file:
                    state = file.read().rpartition(b")")[2].split()[0]
                with open(f"{_TASKS}/{task}/schedstat", "rb") as file:
                    found.append([task, file.read().decode()])
            except OSError:  # it has just ended
                return None
            if state not in (b"S", b"Z"):
                return None
        below = self._below()
        return None if below is None else [found, below]
