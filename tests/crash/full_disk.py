"""A program whose log can't be written from some point on; prints what its tools and its run told it.

``python full_disk.py WHAT STORE LEDGER``.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

from tracekit import Run, agent, decision, record, traced_tool
from tracekit.errors import LogWriteError, TracekitError

WHAT, STORE, LEDGER = sys.argv[1:4]
ROOM = 64 << 10


@traced_tool(side_effect="irreversible")
def pay(number: int) -> str:
    with open(LEDGER, "a") as file:
        file.write(f"pay {number}\n")
    return "paid"


@traced_tool(side_effect="reversible")
def book(number: int) -> str:
    with open(LEDGER, "a") as file:
        file.write(f"book {number}\n")
    return "booked"


@traced_tool(side_effect="read_only")
def look(number: int) -> str:
    return f"{number}: " + "x" * 700


@traced_tool(side_effect="read_only")
def study(text: str) -> str:
    return text + text  # both are blobs of their own


def attempt(tool: Any, number: int) -> Any:
    """Return what the tool gave, or the error that its caller was told."""
    try:
        return tool(number)
    except LogWriteError as error:
        return [error.code, error.path, str(error)]  # type: ignore[attr-defined]


def limit(size: int) -> None:
    """Let no file of this process grow beyond ``size`` bytes; the signal that the system sends first is ignored by
    Python."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Trouble:
    """One way in which writing the log can fail: ``begin`` starts the failure, ``mend`` ends it where that is possible."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.fd: int = run._session.log.journal._fd  # type: ignore[union-attr]
        self.kept = os.dup(self.fd)

    def begin(self) -> None:
        if WHAT in ("limit", "limit-mended"):
            limit(ROOM)
        elif WHAT == "eio":
            self._becomes("/proc/self/mem")  # a write at its beginning is an input/output error
        elif WHAT == "no-sync":
            reading, writing = os.pipe()  # it takes writes, and can't be synced
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
            os.dup2(writing, self.fd)
            self.pipe = reading, writing

    def _becomes(self, path: str) -> None:
        other = os.open(path, os.O_WRONLY)
        os.dup2(other, self.fd)
        os.close(other)

    def mend(self) -> None:
        if WHAT == "limit-mended":
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        elif WHAT in ("eio", "no-sync"):
            os.dup2(self.kept, self.fd)


def program(told: dict[str, Any]) -> None:
    with record("full", run_id="full", store=STORE) as run:
        told["body"] = True
        trouble = Trouble(run)
        told["before"] = [attempt(pay, 1), attempt(look, 1)[:3]]
        trouble.begin()
        told["studies"] = sum(len(attempt(study, f"{number} " * 900)) > 1800 for number in range(20))
        told["looks"] = sum(len(attempt(look, number)) > 700 for number in range(200))
        told["pay"] = [attempt(pay, 2), attempt(pay, 3)]
        told["book"] = attempt(book, 2)
        told["decided"] = [
            attempt(lambda number: decision("d", input="because " * 400, output=number), 5),
            time.time() > 0,
        ]
        with agent("late", identity={"since": 1}):
            told["decided"].append(attempt(look, 6)[:3])
        told["studied"] = len(attempt(study, "yes " * 900))
        told["after"] = attempt(look, 3)[:3]
        trouble.mend()
        if WHAT == "limit-mended":
            told["mended"] = attempt(pay, 4)


def main() -> None:
    if WHAT == "tmpfs":
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", STORE], capture_output=True)
        if done.returncode:  # not allowed here: a limit on the size of files is the next best thing
            limit(ROOM)
    if WHAT == "read-only":
        os.chmod(STORE, 0o555)
        if os.getuid() == 0:  # for whom permissions mean nothing
            os.setuid(65534)
    told: dict[str, Any] = {"body": False, "end": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            program(told)
        except TracekitError as error:
            told["end"] = [error.code, str(error)]
    told["warnings"] = [str(one.message) for one in caught]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
