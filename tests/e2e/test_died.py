"""The replay of a run whose process died follows the log to its last entry; nobody knows what would have come next."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.place import Place
from tracekit import decision
from tracekit.integration import OpenRun, entered

PROGRAM = """
import asyncio, os, queue, random, signal, threading, time, urllib.request
from tracekit import traced_tool

def die():
    os.kill(os.getpid(), signal.SIGKILL)

@traced_tool(side_effect="read_only")
def look(order):
    return order

@traced_tool(side_effect="read_only")
def last(order):
    die()

async def two():
    async def one(order):
        await asyncio.sleep(0.001)
        return look(order)
    await asyncio.gather(one(2), one(3))
    await asyncio.sleep(60)

look(1)
{dies}
print("never")
"""
#: Where the process dies, and the same code when it is replayed: a kill from outside is in no program.
DIES = {
    "in a step": ("last(2)", "last(2)"),
    "before a step": ("die(); look(2)", "look(2)"),
    "before a draw": ("die(); random.random()", "random.random()"),
    "in a sleep": ("die(); time.sleep(60)", "time.sleep(60)"),
    "while tasks sleep": ("asyncio.run(two())", "asyncio.run(two())"),
    "before a request": ("die(); urllib.request.urlopen('http://127.0.0.1:9')", "urllib.request.urlopen('http://127.0.0.1:9')"),
    "while it waits for a thread": (
        "q = queue.Queue(); threading.Thread(target=lambda: (look(2), die())).start(); q.get()",
        "q = queue.Queue(); threading.Thread(target=lambda: (look(2), time.sleep(60))).start(); q.get()",
    ),
}  # fmt: skip
DIED = "this is where the log ends"
#: The hash seeds of the processes that ``verify-determinism`` and ``doctor`` start; how these start is not the subject here.
SEEDS = ("0", "1", "2")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def killed(place: Place, dies: str) -> None:
    program = PROGRAM.replace("{dies}", dies)
    if "two()" in dies:
        program = program.replace("await asyncio.sleep(60)", "die()")
    place.program(program)
    assert place.cli("run", "agent.py").returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


@pytest.mark.parametrize("where", DIES)
def test_the_same_code_up_to_the_end_of_its_log_is_neither_exact_nor_not(place: Place, where: str) -> None:
    """Wherever it died, the exit code is 3 and the verdict "unknown"; ``verify-determinism`` agrees, and ``doctor``
    finds nothing else wrong."""
    dies, again = DIES[where]
    killed(place, dies)
    place.program(PROGRAM.replace("{dies}", again))
    done = place.cli("replay", "last")
    assert (done.returncode, DIED in done.stderr, "has failed" in done.stderr) == (3, True, False), done.stderr
    assert "unknown: 1 recording without an end" in done.stderr
    assert place.cli("verify-determinism", "last", seeds=SEEDS).returncode == 3
    found = place.cli("doctor", "--json", "--run", "last", seeds=SEEDS)
    kinds = {one["code"] for one in json.loads(found.stdout)["findings"]}
    assert "incomplete" in kinds
    assert not kinds & {"waits", "today", "order", "chance"}, found.stdout


def test_a_run_that_is_still_recorded_has_not_died(place: Place) -> None:
    """It is replayed as far as its log goes, and no word says that its process is gone; its export says that it runs."""
    place.program("from tracekit import decision\ndef turn():\n    decision('turn', input=1, output=2)\n")
    run = OpenRun(str(place.directory / "open.jsonl"), name="open", input={})
    with entered(run.scope):
        decision("turn", input=1, output=2)
    done = place.cli("replay", "open.jsonl", "--entry", "agent:turn")
    exported = place.cli("export", "open.jsonl", "--to", "perfetto")
    run.close()
    assert done.returncode == 3, done.stderr
    assert "the run is still being recorded" in done.stderr
    assert "died" not in done.stderr
    assert '"state":"running"' in exported.stdout


@pytest.mark.parametrize(
    "changed",
    ["look(2); time.sleep(60)", "pass", "last(3)", "random.random(); last(2)", "look(1); last(2)"],
)
def test_other_code_before_the_end_of_the_log_is_not_exact(place: Place, changed: str) -> None:
    """If a recorded step is another one, or is not made, the death of the process is no excuse."""
    killed(place, "last(2)")
    place.program(PROGRAM.replace("{dies}", changed))
    done = place.cli("replay", "last")
    assert (done.returncode, DIED in done.stderr) == (1, False), done.stderr


def test_the_failure_of_a_block_says_that_its_log_ended(place: Place) -> None:
    """``replay()`` raises at the place where the log ends, and the verdict is unknown."""
    killed(place, "last(2)")
    place.program(
        PROGRAM.partition("look(1)\n{dies}")[0]
        + f"""
from tracekit import replay
from tracekit.errors import TraceExhaustedError
try:
    with replay({place.run!r}) as session:
        look(1)
        last(2)
except TraceExhaustedError as error:
    verdict = session.report.verdict
    print(error.at_log_end, verdict.answer, verdict.exit_code, [one.code for one in verdict.unknown])
"""
    )
    done = place.python("agent.py")
    assert done.stdout == "True unknown 3 ['incomplete']\n", done.stderr
