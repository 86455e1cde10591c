"""An agent of all three classes of effects, alone, in threads or in tasks, that is killed, resumed and killed again.

``python -m tests.crash.agent``: reads jobs from standard input, one JSON object a line, does each in a child forked from one warm
process, kills it as the job says, and answers with one line: how it ended. Each effect is marked in a ledger outside before the tool
returns; whatever the program gets to see is noted beside it. With a job as argument: does that one in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.ledger import Ledger
from tracekit import agent, decision, record, replay, resume, traced_tool
from tracekit._journal import writer
from tracekit.errors import RecoveryRefusedError, ReplayError
from tracekit.testing import crash_at

RUN = "agent"
#: How a child ends: refused by the recovery, replay not exact, and anything else.
REFUSED, INEXACT, WRONG = 4, 3, 1
#: A child that nobody kills ends by itself.
PATIENCE = 30

JOB: dict[str, Any] = {}
WORLD: dict[str, Ledger] = {}
#: How much of the log is on the device for certain.
SYNCED = [0]


def mark(tool: str, number: int) -> None:
    """Leave an effect in the world outside; for a moment before and after nobody knows whether it happened."""
    WORLD["ledger"].mark(f"{tool} {number}", cycle=JOB["cycle"], synced=SYNCED[0])


def saw(tool: str, number: int, value: Any) -> Any:
    """Note that the program was given ``value``."""
    WORLD["observed"].note(tool=tool, number=number, value=value, cycle=JOB["cycle"])
    return value


# -- tools --------------------------------------------------------------------------------------------------------------


@traced_tool(side_effect="read_only")
def look(number: int) -> str:
    mark("look", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="reversible")
def unbook(number: int) -> None:
    mark("unbook", number)


@traced_tool(side_effect="reversible", compensate=unbook)
def book(number: int) -> str:
    mark("book", number)
    return os.urandom(600).hex()  # large enough to stand in an entry of its own


@traced_tool(side_effect="irreversible")
def pay(number: int) -> str:
    mark("pay", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="reversible")
def trip(number: int) -> str:
    """Make calls inside a call."""
    return look(number + 100) + book(number + 100)[:8]


@traced_tool(side_effect="irreversible")
def settle(number: int) -> str:
    """Look first whether the effect has happened already."""
    found = look(number + 200)
    mark("settle", number)
    return found


@traced_tool(side_effect="read_only")
def errand(number: int) -> str:
    """Read something and have an effect inside, so that the read can't be made again once it has begun."""
    return pay(number + 300)


@traced_tool(side_effect="read_only")
def listen(number: int) -> Iterator[str]:
    for _ in range(3):
        yield os.urandom(4).hex()


@traced_tool(side_effect="read_only")
def refuse(number: int) -> None:
    raise ValueError(f"refused {number}")


@traced_tool(side_effect="irreversible", exactly_once=True)
def order(number: int) -> str:
    mark("order", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="irreversible", exactly_once=True)
async def order_async(number: int) -> str:
    await asyncio.sleep(0)
    mark("order_async", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="read_only")
async def look_async(number: int) -> str:
    await asyncio.sleep(0)
    mark("look_async", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="reversible")
async def book_async(number: int) -> str:
    mark("book_async", number)
    await asyncio.sleep(0.0005)
    return os.urandom(4).hex()


@traced_tool(side_effect="irreversible")
async def pay_async(number: int) -> str:
    await asyncio.sleep(0)
    mark("pay_async", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="reversible")
async def trip_async(number: int) -> str:
    first, second = await asyncio.gather(look_async(number + 100), book_async(number + 100))
    return first + second


# -- programs -----------------------------------------------------------------------------------------------------------


def turn(number: int) -> list[str]:
    """Play one round, in which random numbers and the clock decide what is called."""
    found = [saw("look", number, look(number))]
    if random.random() < 0.5:
        found.append(saw("book", number, book(number)))
    found.append(saw("pay", number, pay(number)))
    with agent("traveller"):
        found.append(saw("trip", number, trip(number)))
        if random.random() < 0.3:
            found.append(saw("errand", number, errand(number)))
    found.append(saw("settle", number, settle(number)))
    found += [saw("order", number, order(number)) for _ in range(2)]
    try:
        refuse(number)
    except ValueError as error:
        saw("refuse", number, str(error))
    pieces = [saw("listen", number, piece) for piece in listen(number)]
    decision("go on", input={"number": number}, output=time.time() > 0)
    return found + pieces


def alone(rounds: int) -> list[str]:
    return [value for number in range(rounds) for value in turn(number)]


def threads(rounds: int) -> list[str]:
    found: dict[int, list[str]] = {}

    def work(start: int) -> None:
        found[start] = [value for number in range(start, start + rounds) for value in turn(number)]

    workers = [threading.Thread(target=work, args=(1000 * n,)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    return [value for start in sorted(found) for value in found[start]]


async def turn_async(number: int) -> list[str]:
    found = [saw("look_async", number, await look_async(number))]
    if random.random() < 0.5:
        found.append(saw("book_async", number, await book_async(number)))
    found.append(saw("pay_async", number, await pay_async(number)))
    found.append(saw("trip_async", number, await trip_async(number)))
    await asyncio.sleep(0.0005)
    orders = await asyncio.gather(*(order_async(number) for _ in range(2)))
    return found + [saw("order_async", number, order) for order in orders]


def tasks(rounds: int) -> list[str]:
    async def worker(start: int) -> list[str]:
        return [value for number in range(start, start + rounds) for value in await turn_async(number)]

    async def main() -> list[str]:
        return [value for part in await asyncio.gather(*(worker(1000 * n) for n in range(3))) for value in part]

    return asyncio.run(main())


PROGRAMS: dict[str, Callable[[int], list[str]]] = {"alone": alone, "threads": threads, "tasks": tasks}


# -- one job ------------------------------------------------------------------------------------------------------------


def do(job: dict[str, Any]) -> None:
    """Record, resume or replay the program of a job."""
    JOB.update(job)
    os.makedirs(job["dir"], exist_ok=True)
    WORLD.update({name: Ledger(os.path.join(job["dir"], name)) for name in ("ledger", "observed")})
    program, store = PROGRAMS[job["program"]], os.path.join(job["dir"], "store")
    if job["mode"] == "replay":
        with replay(RUN, store=store) as session:
            program(job["rounds"])
        if not session.report.exact:
            raise AssertionError(session.report.as_dict())
        return
    if job["mode"] == "record":
        begun: Any = record(RUN, run_id=RUN, store=store, durability=job["durability"])
    else:
        begun = resume(RUN, store=store)
    crash = contextlib.nullcontext() if job["point"] is None else crash_at(job["point"], nth=job["nth"])
    with witnessed(), crash, begun as run:
        run.set_result(program(job["rounds"]))


@contextlib.contextmanager
def witnessed() -> Iterator[None]:
    """Note in ``SYNCED`` how long the log was when the last finished sync began."""
    real = writer._fdatasync

    def sync(fd: int) -> None:
        size = os.fstat(fd).st_size
        real(fd)
        SYNCED[0] = max(SYNCED[0], size)

    writer._fdatasync = sync  # type: ignore[misc]
    try:
        yield
    finally:
        writer._fdatasync = real  # type: ignore[misc]


def status(job: dict[str, Any]) -> int:
    """Do a job and return how it ended; what went wrong is on standard error."""
    try:
        do(job)
    except RecoveryRefusedError as error:
        os.write(2, f"{error}\n".encode())
        return REFUSED
    except AssertionError as error:
        os.write(2, f"{error}\n".encode())
        return INEXACT
    except (Exception, ReplayError):
        os.write(2, traceback.format_exc().encode())
        return WRONG
    return 0


def child(job: dict[str, Any]) -> None:
    errors = os.open(os.path.join(job["dir"], "errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 2)
    os._exit(status(job))


def driver() -> None:
    """Fork one child for each job from a process that has imported everything; the first job makes it do so."""
    do(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        job = json.loads(line)
        os.makedirs(job["dir"], exist_ok=True)
        pid = os.fork()
        if pid == 0:
            child(job)
        if job["delay"] is not None:
            time.sleep(job["delay"])
            os.kill(pid, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(status(json.loads(sys.argv[1])))
    driver()
