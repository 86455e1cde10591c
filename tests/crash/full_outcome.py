"""A program for whose intent records there is room on the disk, and not for what comes of its effects; prints what it was told.

``python full_outcome.py WHAT STORE LEDGER ENDS``: ``WHAT`` says how the effect is made, ``ENDS`` whether there is room again (``room``),
also without another call (``waits``), or not (``full``).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracekit import decision, record, traced_tool
from tracekit.errors import LogWriteError
from tracekit.tools import run_process

WHAT, STORE, LEDGER, ENDS = sys.argv[1:5]
#: More than the disk has room for, and not compressible.
ANSWER = "".join(f"{number:07d} " for number in range(20_000))
ROOM = 100 << 10


def happens(what: str) -> None:
    with open(LEDGER, "a") as file:
        file.write(f"{what}\n")


@traced_tool(side_effect="irreversible")
def pay(order: int) -> dict[str, str]:
    happens(f"pay {order}")
    return {"receipt": f"{order} {ANSWER}"}


@traced_tool(side_effect="irreversible")
async def pay_soon(order: int) -> dict[str, str]:
    await asyncio.sleep(0)
    happens(f"pay {order}")
    return {"receipt": f"{order} {ANSWER}"}


@traced_tool(side_effect="irreversible")
def refuse(order: int) -> None:
    happens(f"pay {order}")
    raise ValueError(f"{order} {ANSWER}")


@traced_tool(side_effect="irreversible")
def stream(order: int) -> Iterator[str]:
    happens(f"pay {order}")
    yield f"{order} {ANSWER}"


@traced_tool(side_effect="irreversible", exactly_once=True)
def pay_once(order: int) -> dict[str, str]:
    happens(f"pay {order}")
    return {"receipt": f"{order} {ANSWER}"}


@traced_tool(side_effect="reversible")
def book(order: int) -> dict[str, str]:
    happens(f"pay {order}")
    return {"receipt": f"{order} {ANSWER}"}


@traced_tool(side_effect="read_only")
def look(order: int) -> str:
    return f"{order} {ANSWER}"


@traced_tool(side_effect="irreversible")
def small(order: int) -> str:
    happens(f"small {order}")
    return "paid"


def in_thread(order: int) -> Any:
    came: list[Any] = []

    def work() -> None:
        try:
            came.append(pay(order))
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(came[0], BaseException):
        raise came[0]
    return came[0]


def process(order: int) -> Any:
    program = f"import sys; sys.stdout.write({str(order)!r} + ' ' + ''.join(f'{{n:07d}} ' for n in range(20_000)))"
    done = run_process([sys.executable, "-c", f"open({LEDGER!r}, 'a').write('pay {order}\\n'); {program}"])
    return done.stdout


def decided(order: int) -> Any:
    return decision("pay?", input={"order": order, "because": ANSWER}, output=True)


MADE: dict[str, Callable[[int], Any]] = {
    "call": pay,
    "async": lambda order: asyncio.run(pay_soon(order)),
    "error": refuse,
    "stream": lambda order: list(stream(order)),
    "once": pay_once,
    "reversible": book,
    "thread": in_thread,
    "process": process,
    "read": look,
    "decision": decided,
}


def attempt(make: Callable[[int], Any], order: int) -> Any:
    try:
        come = make(order)
    except LogWriteError as error:
        return {
            "text": str(error),
            "executed": error.executed,
            "kept": error.kept,
            "step": error.step,
            "run_id": error.run_id,
            "path": error.path,
        }
    except ValueError:
        return "raised"
    return "returned" if come else "nothing"


def mount() -> bool:
    """Mount a file system that has this much room left once the file ``filler`` is in it."""
    size = 64 * ROOM
    arguments = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", STORE]
    try:
        subprocess.run(arguments, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    Path(STORE, "filler").write_bytes(bytes(size - ROOM))
    return True


def limit(size: int) -> None:
    """Let no file of this process grow beyond ``size`` bytes; the signal that the system sends first is ignored by
    Python."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def outcome_arrives(path: str) -> None:
    while b'"type":"tool.return"' not in Path(path).read_bytes():
        time.sleep(0.01)


def main() -> None:
    mounted = mount()
    told: dict[str, Any] = {"end": None}
    try:
        with record("full", run_id="full", store=STORE) as run:
            if not mounted:  # not allowed here: the file itself gets a limit
                limit(os.path.getsize(run.path) + ROOM // 2)
            make = MADE[WHAT]
            told["first"] = attempt(make, 1)
            told["again"] = [attempt(make, 1), attempt(small, 2), attempt(small, 3)]
            if ENDS != "full":
                if mounted:
                    os.unlink(Path(STORE, "filler"))
                else:
                    limit(resource.RLIM_INFINITY)
            if ENDS == "waits":
                outcome_arrives(run.path)
            told["late"] = [attempt(make, 1), attempt(small, 4)]
    except LogWriteError as error:
        told["end"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
