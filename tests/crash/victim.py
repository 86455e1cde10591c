"""A program that is to be killed: an agent whose effects leave marks outside, and which notes everything that it gets to see.

``python victim.py JOBS.json``: forks a child for each job from one warm process, lets it be killed, and prints how each ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from tracekit import decision, record, traced_tool
from tracekit.testing import crash_at

ledger = observed = -1
#: A child that nobody kills ends by itself.
PATIENCE = 30


def mark(name: str, number: int) -> None:
    """Leave an effect in the world outside, which is on its device when this returns."""
    os.write(ledger, f"{name} {number}\n".encode())
    os.fsync(ledger)


def saw(name: str, number: int, value: Any) -> None:
    """Note that the program was given ``value``."""
    os.write(observed, json.dumps([name, number, value]).encode() + b"\n")


@traced_tool(side_effect="irreversible")
def pay(number: int) -> str:
    mark("pay", number)
    return os.urandom(4).hex()


@traced_tool(side_effect="reversible")
def book(number: int) -> str:
    mark("book", number)
    return os.urandom(600).hex()  # large enough to be a blob of its own


@traced_tool(side_effect="read_only")
def look(number: int) -> str:
    return os.urandom(4).hex()


@traced_tool(side_effect="irreversible")
def refuse(number: int) -> None:
    mark("refuse", number)
    raise ValueError(f"refused {number}")


@traced_tool(side_effect="read_only")
def listen(number: int) -> Iterator[str]:
    for _ in range(3):
        yield os.urandom(4).hex()


def turn(number: int) -> None:
    """Call each kind of tool once."""
    for tool in (look, pay, book):
        saw(tool.__name__, number, tool(number))
    try:
        refuse(number)
    except ValueError as error:
        saw("refuse", number, str(error))
    for piece in listen(number):
        saw("listen", number, piece)
    decision("go on", input={"number": number}, output=time.time() > 0)


def worker(start: int, rounds: int) -> None:
    for number in range(start, start + rounds):
        turn(number)


def agent(job: dict[str, Any]) -> None:
    crash = nullcontext() if job["point"] is None else crash_at(job["point"], nth=job["nth"])
    with crash, record("victim", run_id="victim", store=job["dir"], durability=job["durability"]) as run:
        if job["threads"]:
            threads = [threading.Thread(target=worker, args=(1000 * i, job["rounds"])) for i in range(job["threads"])]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        else:
            worker(0, job["rounds"])
        run.set_result("done")


def child(job: dict[str, Any]) -> None:
    global ledger, observed
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    ledger = os.open(os.path.join(job["dir"], "ledger"), flags)
    observed = os.open(os.path.join(job["dir"], "observed"), flags)
    agent(job)


def wait_until_it_has_seen_something(job: dict[str, Any], pid: int) -> None:
    path = os.path.join(job["dir"], "observed")
    while not (os.path.exists(path) and os.path.getsize(path)):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        jobs = json.load(file)
    with record("warm", store=os.path.join(os.path.dirname(path), "warm")):
        look(0)
    ends = []
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            try:
                child(job)
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{job}: {error!r}\n".encode())
                os._exit(1)
        if job["delay"] is not None:
            if job["under_way"]:
                wait_until_it_has_seen_something(job, pid)
            time.sleep(job["delay"])
            os.kill(pid, signal.SIGKILL)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(json.dumps(ends))


if __name__ == "__main__":
    main(sys.argv[1])
