"""A program sleeps once more than its recording did: the replay says so, with the line of the sleep."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.place import Place

PROGRAM = """
import asyncio, random, threading, time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(order):
    return order

async def waiting():
    await asyncio.sleep(0.01)

look(1)
time.sleep(0.01)
look(2)
{change}
look(3)
print("end")
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def recorded(place: Place, change: str = "pass") -> None:
    place.program(PROGRAM.replace("{change}", change))
    assert place.cli("run", "agent.py").returncode == 0


@pytest.mark.parametrize(
    ("sleep", "call", "line"),
    [
        ("time.sleep(0.1)", "time.sleep(0.1)", 15),
        ("time.sleep(3600)", "time.sleep(3600)", 15),
        ("asyncio.run(waiting())", "asyncio.sleep(0.01)", 10),
        ("asyncio.run(asyncio.sleep(0.1))", "asyncio.sleep(0.1)", 15),
    ],
)
def test_a_sleep_more_is_told_as_that(place: Place, sleep: str, call: str, line: int) -> None:
    """For an additional sleep between two steps the report names the call and its line, and speaks of no threads, tools
    or kills."""
    recorded(place)
    place.program(PROGRAM.replace("{change}", sleep))
    done = place.cli("replay", "last")
    assert done.returncode == 1
    assert f"the program sleeps here ({call}), and the recording has no such sleep" in done.stderr, done.stderr
    assert f"agent.py:{line}\n" in done.stderr
    assert not [word for word in ("everything", "thread order", "body of a tool", "died") if word in done.stderr]


def test_a_sleep_more_after_the_last_step(place: Place) -> None:
    """The same holds for an additional sleep just before the last line of the program."""
    recorded(place)
    place.program(PROGRAM.replace("{change}", "pass").replace("print(", "time.sleep(0.1); print("))
    done = place.cli("replay", "last")
    assert done.returncode == 1
    assert "the program sleeps here (time.sleep(0.1))" in done.stderr


def test_who_waits_for_a_sleep_more_is_listed_beside_it(place: Place) -> None:
    """If a thread sleeps and the main thread waits for it, only the thread is reported as sleeping."""
    body = "t = threading.Thread(target=lambda: {sleep}look(9)); t.start(); t.join()"
    recorded(place, body.replace("{sleep}", ""))
    place.program(PROGRAM.replace("{change}", body.replace("{sleep}", "time.sleep(0.1) or ")))
    done = place.cli("replay", "last")
    assert done.returncode == 1
    (main,) = (line for line in done.stderr.splitlines() if "thread 'MainThread'" in line)
    (other,) = (line for line in done.stderr.splitlines() if "thread 'Thread-1" in line)
    assert other.endswith("in time.sleep(0.1): no such sleep ended in the recording")
    assert "time.sleep" not in main


def test_another_length_of_a_recorded_sleep_is_no_difference(place: Place) -> None:
    """A replay accepts a sleep of another length than the recorded one."""
    recorded(place)
    place.program(PROGRAM.replace("{change}", "pass").replace("time.sleep(0.01)", "time.sleep(7)"))
    assert place.cli("replay", "last").returncode == 0
