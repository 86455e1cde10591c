"""The ``tracekit`` command. Each subcommand has a module of its own, imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .commands import COMMANDS, GROUP, UnusableCommandError, main

__all__ = ["COMMANDS", "GROUP", "UnusableCommandError", "main"]


if not TYPE_CHECKING:  # the process in which a program is recorded or replayed needs no command line
    __getattr__, __dir__ = lazily(
        globals(), dict.fromkeys(("COMMANDS", "GROUP", "UnusableCommandError", "main"), "commands")
    )
