"""Timers that come as signals: live in a recording, in no replay, and the recording says where that makes a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.place import Place

LIMIT = """
import signal, time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def ask(seconds):
    time.sleep(seconds)
    return "answer"

def late(number, frame):
    raise TimeoutError("too late")

signal.signal(signal.SIGALRM, late)
print(signal.getsignal(signal.SIGALRM) is late)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    ask(60)
except TimeoutError as error:
    print(error)
signal.alarm(1000)
print(ask(0), signal.alarm(0) > 900, signal.getitimer(signal.ITIMER_REAL))
"""

LEFT = """
import signal, time
print(time.time() > 0)
signal.setitimer(signal.ITIMER_REAL, 5, 5)
signal.setitimer(signal.ITIMER_VIRTUAL, {virtual})
for _ in range({more}):
    sum(range(1_000_000))
print("done")
"""

OUTSIDE = """
import signal
came = []
signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.1)
while not came:
    pass
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_limit_around_a_call_is_replayed(place: Place) -> None:
    """The call ends as it ended; a handler, and what is left of a timer, are the program's own to ask for; nothing is warned of."""
    place.program(LIMIT, "program.py")
    recorded = place.cli("run", "program.py")
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout == "True\ntoo late\nanswer True (0.0, 0.0)\n"
    assert "the timer" not in recorded.stderr
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout == recorded.stdout
    assert "exact" in replayed.stderr


def test_a_timer_that_the_program_left_does_not_end_its_replay(place: Place) -> None:
    """It would come while the replay runs, which may take longer than the recording, and end it: nobody handles it."""
    place.program(LEFT.format(virtual=1000, more=0), "program.py")
    assert place.cli("run", "program.py").returncode == 0
    slower = LEFT.format(virtual=0.01, more=20)
    place.program(slower, "program.py")
    replayed = place.cli("replay", "last")
    assert replayed.returncode == 0, replayed.stderr
    assert "done" in replayed.stdout


def test_one_that_came_outside_a_call_is_told(place: Place) -> None:
    """With the line that set it: a replay does not call the handler."""
    place.program(OUTSIDE, "program.py")
    recorded = place.cli("run", "program.py")
    assert recorded.returncode == 0, recorded.stderr
    assert "program.py:5 set has come, as SIGALRM: a replay sets no such timer" in recorded.stderr
