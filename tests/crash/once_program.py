"""A program whose effects must happen once: ``python -m tests.crash.once_program JOB`` with a JSON object.

``ledger`` is where effects leave their mark, ``point`` where it is to be killed, ``threads`` how many call at once, ``start`` a file that
is waited for, ``hold`` a pipe that is opened inside the call, which never ends then. Prints the run's id, what each call came to, and
whether a replay in the same process was exact.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

from tests.support.once import once
from tracekit import record, replay, traced_tool
from tracekit._journal.keys import Keys
from tracekit.errors import ContractViolationError
from tracekit.testing import crash_at

JOB: dict[str, Any] = json.loads(sys.argv[1]) if __name__ == "__main__" else {}


def mark(text: str) -> None:
    fd = os.open(JOB["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, text.encode() + b"\n")
    os.fsync(fd)
    os.close(fd)


def pay(given: str) -> dict[str, str]:
    mark(f"pay {given}")
    if "hold" in JOB:
        with open(JOB["hold"], "w") as hold:  # whoever reads it knows that the call is under way
            hold.flush()
            signal.pause()
    return {"paid": given, "rng": os.urandom(4).hex()}


@traced_tool(side_effect="read_only")
def stop(given: str) -> str:
    if JOB.get("stop"):
        os.kill(os.getpid(), signal.SIGKILL)
    return given


def tool() -> Any:
    return once(pay, side_effect=JOB.get("side_effect", "irreversible"), store=JOB.get("store", True))


def one(call: Any) -> Any:
    try:
        return call("ACME")
    except ContractViolationError as error:
        return f"refused: {error.what}"


def agent() -> list[Any]:
    """Run the program itself, which is the same when it is recorded, replayed and resumed."""
    call, threads = tool(), JOB.get("threads", 0)
    if not threads:
        found = [one(call)]
        stop("here")
        return [*found, one(call)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda _: one(call), range(threads)))


@contextmanager
def killed(point: str) -> Iterator[None]:
    """Kill the process at a point of handling the key; the points of the log are those of the kit."""
    owner, name = (Keys, "_link") if point == "before-key" else (Keys, "used")
    original = getattr(owner, name)

    def instead(self: Any, *args: Any) -> Any:
        if point == "before-key" and args[2] == "secret":
            return original(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, original)


def main() -> None:
    point = JOB.get("point")
    at: Any = nullcontext()
    if point in ("before-key", "before-key-is-used"):
        at = killed(point)
    elif point is not None:
        at = crash_at(point)
    while "start" in JOB and not os.path.exists(JOB["start"]):
        pass
    with at, record("once") as run:
        found = agent()
    with replay(run.id) as session:
        again = agent()
    print(json.dumps({"run": run.id, "found": found, "exact": again == found and session.report.exact}))


if __name__ == "__main__":
    main()
