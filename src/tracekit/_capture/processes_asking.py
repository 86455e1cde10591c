"""A process that a run's program is about to start: its name and command, and what the run's session says to it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from .._engine.lanes import Lane, started
from .._engine.scope import Scope
from . import guard, process_status
from .guard_attempts import Attempt
from .launch import parent_lane

__all__ = ["VARIABLE", "Welcome", "asked", "named", "starting", "told", "welcome", "within", "words_of"]

#: What tells a process which run to join: JSON.
VARIABLE: Final = "TRACEKIT_JOIN"
#: What a shell's command may begin with: ``NAME=value``.
_SETTING: Final = re.compile(r"[A-Za-z_]\w*=")
#: What means something to a shell, but for quotes.
_OF_SHELLS: Final = frozenset(";&|<>()`$\n*?[]{}~#!\\")
_QUOTED: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


class Welcome(process_status.Standing, Protocol):
    """What a session says to a process that is about to be started."""

    @property
    def ticket(self) -> str:
        """What the process is told."""
        ...

    def admitted(self) -> AbstractContextManager[None]:
        """Around the start."""
        ...

    def started(self, pid: int) -> None:
        """It runs."""
        ...

    def not_started(self, scope: Scope, error: OSError) -> None:
        """It could not be started."""
        ...


Ask = Callable[[Scope, Lane, list[str] | None, bool], Welcome | None]
_welcome: Ask | None = None
#: Whether a process is being started here that has been asked about.
within: Final[ContextVar[bool]] = ContextVar("tracekit.process.within", default=False)


def welcome(ask: Ask) -> None:
    """From now on ``ask`` is asked for each process that a run starts: by its lane, its command (``None``: a process of
    ``multiprocessing``), and whether it is a pool's worker."""
    global _welcome
    _welcome = ask


def asked(scope: Scope, name: str, words: list[str] | None, pool: bool = False) -> Welcome | None:
    guard.refuse(Attempt("process", "process.start", name))  # before it has a line of execution
    if _welcome is None:
        return None
    return _welcome(scope, started(parent_lane(scope), f"process:{name}", scope.live), words, pool)


@contextmanager
def starting(found: Welcome) -> Iterator[None]:
    """Around the start of a process: what that is made of is asked about no more."""
    token = within.set(True)
    try:
        with found.admitted():
            yield
    finally:
        within.reset(token)


def told(found: Welcome, env: Any) -> dict[Any, Any]:
    """The environment of a process, ``env`` or that of this one, in which it is told what to join."""
    return {**(os.environ if env is None else env), VARIABLE: found.ticket}


class Words(list[str]):
    """A command, word by word. ``simple``: it was one text, in which a shell finds nothing but the words of one program."""

    simple = False


def _active(quoted: re.Match[str]) -> str:
    """What a shell does not take as it stands, in a text in quotes."""
    text = quoted.group()
    return "" if text[0] == "'" else "".join(letter for letter in text if letter in "$`\\")


def words_of(command: Any) -> list[str]:
    if isinstance(command, str | bytes | os.PathLike):
        text = os.fsdecode(command)
        try:
            words = Words(shlex.split(text))
        except ValueError:  # an open quote
            words = Words(text.split())
        words.simple = _OF_SHELLS.isdisjoint(_QUOTED.sub(_active, text))
        while len(words) > 1 and _SETTING.match(words[0]):
            del words[0]
        return words or [""]
    return [os.fsdecode(word) if isinstance(word, str | bytes | os.PathLike) else "" for word in command] or [""]


def named(words: list[str]) -> str:
    """A program's name; of a Python program that of its script or module, whatever its interpreter is called here."""
    name = os.path.basename(words[0])
    if name.startswith("python") or words[0] == sys.executable:
        name = _script(words[1:]) or "python"
    return "".join("_" if letter in "/#@+" else letter for letter in name)


def _script(words: list[str]) -> str:
    rest = iter(words)
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if word in ("-c", "-"):
            return ""
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""
