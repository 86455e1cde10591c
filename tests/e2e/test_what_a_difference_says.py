"""What a replay says of a difference: of threads only where there are some, the line that ended the program, one count of one thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.place import Place

PROGRAM = """
import threading, random, sys
import eager
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(order):
    return order

def work():
    {work}

look(1)
{start}
look(2)
look(3)
{end}
"""
#: A library that has a thread pool make something while it is imported, as those of telemetry do.
EAGER = """
import threading
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
assert pool.submit(len, "abc").result() == 3
keeps = threading.Thread(target=threading.Event().wait, daemon=True)
keeps.start()
"""
ORDER = "thread order may differ"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "eager.py").write_text(EAGER)
    return place


def program(place: Place, work: str = "pass", start: str = "pass", end: str = "pass") -> None:
    text = PROGRAM.replace("{work}", work).replace("{start}", start).replace("{end}", end)
    place.program(f"import sys; sys.path.insert(0, {str(place.directory / 'lib' / 'site-packages')!r})\n{text}")


def replayed(place: Place, **change: str) -> str:
    """The program is recorded as it is, and replayed with the change."""
    started = {"start": change["start"]} if "Thread(" in change.get("start", "") else {}
    program(place, **started)
    assert place.cli("run", "agent.py").returncode == 0
    program(place, **change)
    done = place.cli("replay", "last")
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("change", ["random.random()", "look(9)"])
def test_a_librarys_own_threads_are_no_reason_to_look_for_a_race(place: Place, change: str) -> None:
    """A library has started them when it was imported; the program has one thread."""
    assert ORDER not in replayed(place, start=change)
    assert ORDER not in replayed(place, end=change)


JOINED = "t = threading.Thread(target=work); t.start(); t.join()"
BESIDE = """\
begun = threading.Event()
t = threading.Thread(target=lambda: (work(), begun.set(), threading.Event().wait()), daemon=True)
t.start()
begun.wait()"""


def test_a_thread_that_the_program_ran_beside_its_steps_is(place: Place) -> None:
    """What they share in a list is not recorded. One that was waited for at once came before all that follows."""
    assert ORDER in replayed(place, start=BESIDE, end="random.random()")
    assert ORDER not in replayed(place, start=JOINED, end="random.random()")


def test_a_step_that_was_left_out_is_not_a_matter_of_order(place: Place) -> None:
    """The step in its place is the next one of the same thread, beside which another one runs."""
    said = replayed(place, start=BESIDE, work="global look; asks = look; look = lambda n: n if n == 2 else asks(n)")
    assert "nearest recorded step" in said
    assert ORDER not in said


@pytest.mark.parametrize("end", ["raise SystemExit(4)", "sys.exit(4)"])
def test_the_line_that_ends_the_program_is_named(place: Place, end: str) -> None:
    """Every step matched, and the program ends with another status: where it does so is said, not that something is not captured."""
    said = replayed(place, end=end)
    assert "the program ended with another exit status" in said
    assert f"agent.py:{1 + 1 + PROGRAM.splitlines().index('{end}')}\n" in said
    assert "look at what ends the program there" in said


def test_an_exception_that_ends_the_program_is_named_with_its_line(place: Place) -> None:
    """In the verdict, too, not in the traceback alone."""
    said = replayed(place, work="raise ValueError('z')", end="work()")
    assert f"ValueError('z'), and the recorded one did not (at {place.directory}/agent.py:" in said


def test_recorded_steps_that_are_left_are_counted_one_by_one(place: Place) -> None:
    """The line of the verdict and what stands below it have the same number."""
    said = replayed(place, start="raise ValueError('early')")
    assert "2 recorded steps that were never requested" in said
    assert said.count("unconsumed_steps: step ") == 2
    assert "unconsumed steps" not in said
