"""Whether a process is the one that a run's program has started, or something that this one has started in turn.

A shell, a launcher or a script does other things beside starting a Python program, and nothing of that is answered in a replay.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from typing import Any, Final

__all__ = ["is_itself", "started_as"]

#: Programs that set something and then become the one that they are given.
_BECOMING: Final = frozenset(("env", "nice", "nohup", "stdbuf", "setsid", "ionice", "taskset", "chrt", "exec"))


def started_as(words: list[str]) -> list[list[str]]:
    """What the command of a process may look like from inside: its program's name, and what follows, as a hash.

    An empty one says that there may be a shell between, which does nothing else.
    """
    found = [_command(words)]
    if os.path.basename(words[0]) in _BECOMING:
        found += [_command(words[first:]) for first in range(1, min(len(words), 8))]
    if getattr(words, "simple", False):
        found.append([])
    return found


def is_itself(by: Any, started: Any) -> bool:
    """Whether this process was started by process ``by`` itself, by a command that looks like one of ``started``."""
    if started is None:  # told in it, not in its environment
        return True
    starters = {os.getppid(), os.getpid()}  # that itself: it has become this program
    if [] in started:
        starters.add(_parent(os.getppid()))
    if by not in starters:
        return False
    argv = sys.orig_argv
    inside = [_command(["python", *argv[1:]]), *(_command(argv[first:]) for first in range(1, len(argv)))]
    return any([_python(command[0]), command[1]] in inside for command in started if command)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def _command(words: list[str]) -> list[str]:
    rest = "\0".join(words[1:]).encode("utf-8", "surrogateescape")
    return [os.path.basename(words[0]), sha256(rest).hexdigest()]


def _python(name: str) -> str:
    python = name.startswith("python") or name == os.path.basename(sys.executable)
    return "python" if python else name
