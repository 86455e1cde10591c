"""A directory with a program, and the command line in it."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path

import tracekit
import tracekit_httpx
from tests.support.processes import python

__all__ = ["PACKAGES", "READINTO", "TOOL", "WAITS_FOR_EVER", "Place"]

#: The directories with tracekit and its integrations: of the checkout, or where they are installed.
PACKAGES = list(dict.fromkeys(str(Path(module.__file__ or "").parents[1]) for module in (tracekit, tracekit_httpx)))


#: A part of a program: ``os.readinto`` where Python does not have it (before 3.14).
READINTO = """
import os, posix

def _readinto(fd, buffer, /):
    with memoryview(buffer).cast("B") as room:
        found = posix.read(fd, len(room))
        room[:len(found)] = found
        return len(found)

if not hasattr(os, "readinto"):
    os.readinto = _readinto
"""


class Place:
    """A directory with a program, and the command line in it."""

    def __init__(self, directory: Path, *, imports: str = "") -> None:
        self.directory = directory
        self.imports = imports
        self.store = directory / ".tracekit"

    def program(self, text: str, name: str = "agent.py") -> str:
        (self.directory / name).write_text(textwrap.dedent(text))
        return name

    def cli(
        self, *arguments: str, input: str = "", fresh: bool = False, seeds: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """``tracekit *arguments``; ``fresh`` and ``seeds`` as for :func:`~tests.support.processes.python`."""
        line = ("-c", "from tracekit.cli import main; main()", *arguments)
        return self.python(*line, input=input, fresh=fresh, seeds=seeds, **variables)

    def python(
        self, *arguments: str, input: str = "", fresh: bool = False, seeds: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment |= {"TRACEKIT_DIR": str(self.store), "PYTHONPATH": os.pathsep.join(PACKAGES), **variables}
        where = self.directory
        return python(
            *arguments, input=input, cwd=where, env=environment, fresh=fresh, imports=self.imports, seeds=seeds
        )

    @property
    def runs(self) -> list[Path]:
        return sorted((self.store / "runs").glob("*.jsonl"))

    @property
    def run(self) -> str:
        (path,) = self.runs
        return path.stem

    def effects(self) -> int:
        """How often the program's tool really ran."""
        path = self.directory / "effects"
        return len(path.read_text()) if path.exists() else 0


TOOL = """
import os, random, sys, time
from tracekit import record, traced_tool

@traced_tool(side_effect="irreversible")
def charge(cents):
    with open("effects", "a") as file:
        file.write("x")
    return f"receipt {random.SystemRandom().random()}"
"""

#: To come after ``TOOL``: in a replay of it everything waits, since a tool alone sets what a thread waits for.
WAITS_FOR_EVER = """
import threading

reached = threading.Event()

@traced_tool(side_effect="read_only")
def go():
    reached.set()

waiting = threading.Thread(target=reached.wait)
waiting.start()
go()
waiting.join()
"""
