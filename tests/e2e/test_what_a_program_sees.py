"""What a program finds when it looks at its process is what it finds without tracekit, recorded and replayed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.place import PACKAGES, TOOL, Place
from tests.support.processes import python

FACTS = """
import builtins, io, os, pickle, sqlite3, sys, threading, time, typing

class Files:
    open, open_text, remove, now = os.open, open, os.remove, time.time
    ask = input

files = Files()

print(sys.argv, __file__ == os.path.abspath(__file__))
print([thread.name for thread in threading.enumerate()], threading.active_count())
number = files.open("one", os.O_CREAT | os.O_WRONLY)
os.write(number, b"text")
os.close(number)
with files.open_text("one") as file:
    print(file.read(), files.now() > 0)
print(repr(files.ask()))
files.remove("one")
print(os.path.exists("one"))
for one in (os.open, os.remove, os.listdir, os.getcwd, os.fork, builtins.open, io.open, input, time.sleep, sqlite3.connect):
    print(one, pickle.loads(pickle.dumps(one)) is one, type(one).__name__ == "function", typing.get_type_hints(one))
print(files.open is os.open, Files.ask is input, sys.stdout.mode, sys.stdout is sys.__stdout__)
for one in (threading.Event.wait, threading.Thread.join, threading.Thread.start):
    print(one.__module__, one.__qualname__)
"""

WAITS = """
import threading, time
from tracekit import traced_tool

@traced_tool(side_effect="read_only")
def look(number):
    time.sleep(number / 100)
    return number

for number in range(3):
    threading.Thread(target=look, args=(number,)).start()
looks = 0
while threading.active_count() > 1:
    looks += 1
    time.sleep(0.001)
print(looks)
"""


def seen(place: Path, *command: str) -> str:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES), "TRACEKIT_DIR": str(place / "store")}
    done = python(*command, cwd=place, env=variables, input="an answer\n")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_finds_what_it_finds_without(tmp_path: Path) -> None:
    """Its arguments, its threads, and functions in C, which take no ``self`` from a class and are pickled."""
    (tmp_path / "program.py").write_text(FACTS)
    bare = seen(tmp_path, "program.py", "and", "more")
    assert bare.startswith("['program.py', 'and', 'more'] True\n['MainThread'] 1\n")
    assert seen(tmp_path, "-m", "tracekit", "run", "program.py", "and", "more") == bare
    assert seen(tmp_path, "-m", "tracekit", "replay", "last") == bare
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program.py").write_text(FACTS)
    assert seen(tmp_path, "-m", "tracekit", "run", "elsewhere/program.py") == seen(tmp_path, "elsewhere/program.py")


def test_a_program_waits_until_its_threads_are_the_only_ones(tmp_path: Path) -> None:
    """It sees none of tracekit's: a recording ends, and its replay is exact."""
    (tmp_path / "program.py").write_text(WAITS)
    assert int(recorded := seen(tmp_path, "-m", "tracekit", "run", "program.py"))
    assert seen(tmp_path, "-m", "tracekit", "replay", "last") == recorded
    (tmp_path / "blocks.py").write_text(
        "import threading\nfrom tracekit import record\nwith record():\n    print(threading.enumerate() == [threading.main_thread()])"
    )
    assert seen(tmp_path, "-W", "ignore", "blocks.py") == "True\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_program_closes_its_output(tmp_path: Path, stream: str) -> None:
    """It ends as it does without tracekit, and a replay says what came of it."""
    (tmp_path / "program.py").write_text(f"{TOOL}\nprint(len(charge(1)) > 0)\nsys.{stream}.close()")
    place = Place(tmp_path)
    recorded, replayed = place.cli("run", "program.py"), place.cli("replay", "last")
    assert (recorded.returncode, recorded.stdout) == (0, "True\n"), recorded.stderr
    assert (replayed.returncode, replayed.stdout) == (0, "True\n"), replayed.stderr
    assert "Traceback" not in recorded.stderr + replayed.stderr
    assert "exact" in replayed.stderr
