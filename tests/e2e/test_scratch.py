"""What a replayed program writes: into a layer of its own under the command line, and never over what was there before."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.place import Place
from tracekit import LiveCallBlockedError, record, replay, traced_tool

BEGIN = """
import os, sqlite3, subprocess, sys
from pathlib import Path
from tracekit import record, replay, traced_tool

@traced_tool(side_effect="read_only")
def look(what):
    return what

"""

WRITES = """
with open("log.txt", "a") as file:
    file.write("more\\n")
print(look(open("log.txt").read()))
Path("report.md").write_text("new")
os.makedirs("out/deep", exist_ok=True)
Path("out/deep/file").write_text("deep")
print(sorted(os.listdir("out/deep")), Path("report.md").read_text())
if os.path.exists("old.txt"):
    os.remove("old.txt")
with open("edited.txt", "r+") as file:
    text = file.read()
    file.seek(0)
    file.write(text.upper())
    print(look(text))
with open("made.txt", "x") as file:
    file.write("made")
os.mkdir("made")
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A directory that is in none for temporary files."""
    directory = tmp_path / "here"
    directory.mkdir()
    (tmp_path / "temporary").mkdir()
    place = Place(directory)
    (directory / "log.txt").write_text("one\n")
    (directory / "old.txt").write_text("old")
    (directory / "edited.txt").write_text("text")
    return place


def cli(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    return place.cli(*arguments, fresh=True, TMPDIR=str(place.directory.parent / "temporary"))


def files(place: Place) -> dict[str, object]:
    """Every file, with its content and the time of its last change, but for the store."""
    found: dict[str, object] = {}
    for path in sorted(place.directory.rglob("*")):
        if ".tracekit" not in path.parts and "__pycache__" not in path.parts:
            found[str(path)] = (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
    return found


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where the system gives no layer."""
    where = tmp_path_factory.mktemp("probe")
    program = "from tracekit._capture.isolation import ScratchLayer as S; print(isinstance(S.enter(), str))"
    if Place(where).python("-c", program, fresh=True).stdout != "False\n":
        pytest.skip("this system gives a process no layer over its file system")


@pytest.mark.usefixtures("layered")
def test_a_replay_leaves_files_as_they_were(place: Place) -> None:
    """Files that were appended to, changed, removed, made: the replay finds them as the recorded run did, does it all again, reads what it
    has written, and leaves the user's as they are. What it wrote is what is there already."""
    place.program(BEGIN + WRITES)
    done = cli(place, "run", "agent.py")
    assert done.returncode == 0, done.stderr
    before = files(place)
    for _ in range(2):
        again = cli(place, "replay", "last")
        assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
        assert ": exact (" in again.stderr
        assert "tracekit: files:" not in again.stderr
        assert files(place) == before


@pytest.mark.usefixtures("layered")
def test_what_a_replay_writes_can_be_kept(place: Place) -> None:
    """It is said what was written; ``--writes-to DIRECTORY`` has it, by its path; ``--writes real`` changes the user's files."""
    place.program(
        BEGIN + "Path('report.md').write_text(look('new'))\nos.makedirs('d', exist_ok=True)\nopen('d/x', 'w').close()\n"
    )
    assert cli(place, "run", "agent.py").returncode == 0
    (place.directory / "report.md").write_text("mine")
    again = cli(place, "replay", "last")
    assert again.returncode == 0, again.stderr
    assert "tracekit: files: written in a scratch layer, and gone: report.md\n" in again.stderr
    again = cli(place, "replay", "last", "--writes-to", "kept")
    assert again.returncode == 0, again.stderr
    kept = place.directory / "kept"
    assert (kept / "report.md").read_text() == "new"
    assert (place.directory / "report.md").read_text() == "mine"
    again = cli(place, "replay", "last", "--writes", "real")
    assert again.returncode == 0, again.stderr
    assert (place.directory / "report.md").read_text() == "new"
    assert cli(place, "replay", "last", "--writes", "real", "--writes-to", "kept").returncode == 2


@pytest.mark.usefixtures("layered")
def test_a_lasting_database_is_as_it_was(place: Place) -> None:
    """A replay starts from the database that the recorded run found, whoever opens it, also where it is gone; and leaves today's alone."""
    place.program(
        BEGIN
        + """
connection = sqlite3.connect("state.db")
connection.execute("CREATE TABLE IF NOT EXISTS turns (what TEXT)")
connection.execute("INSERT INTO turns VALUES (?)", (look("turn"),))
connection.commit()
print(look(connection.execute("SELECT count(*) FROM turns").fetchone()[0]))
"""
    )
    assert cli(place, "run", "agent.py").stdout == "1\n"
    assert cli(place, "run", "agent.py").stdout == "2\n"
    database = place.directory / "state.db"
    before = files(place)
    for run, said in zip(place.runs, ("1\n", "2\n"), strict=True):
        again = cli(place, "replay", run.stem)
        assert (again.returncode, again.stdout) == (0, said), again.stderr
        assert files(place) == before
    database.unlink()
    again = cli(place, "replay", "last")
    assert (again.returncode, again.stdout, database.exists()) == (0, "2\n", False), again.stderr


@pytest.mark.usefixtures("layered")
def test_processes_of_a_replay_are_in_its_layer(place: Place) -> None:
    """A process that joined the run writes into the layer of the replay, and finds there what its parent wrote."""
    place.program(BEGIN + "print(look(open('from_parent').read()))\nopen('from_child', 'w').close()\n", "child.py")
    place.program(
        BEGIN + "open('from_parent', 'w').write('p')\nfile = open('from_parent'); file.read()\n"
        "print(subprocess.run([sys.executable, 'child.py'], stdout=subprocess.PIPE, text=True).stdout, os.path.exists('from_child'))\n"
    )
    done = cli(place, "run", "agent.py")
    for name in ("from_parent", "from_child"):
        (place.directory / name).unlink()
    again = cli(place, "replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert not (place.directory / "from_child").exists()


def test_a_block_changes_no_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a directory for temporary files a replay in the same process refuses to open what was there for writing, to remove, rename
    or replace it, and an existing database; what is new is written, and listed. ``writes="real"`` does it all."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    for path in (here, temporary):
        path.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with record("r", store=tmp_path / "store") as run:
        _look(1)
    Path("mine").write_text("mine")
    Path(temporary, "temporary").write_text("t")
    sqlite3.connect("mine.db").execute("CREATE TABLE t (x)").connection.close()

    def replace() -> None:
        Path("other").write_text("x")
        os.replace("other", "mine")

    changes = {
        "append": lambda: open("mine", "a").close(),
        "write": lambda: Path("mine").write_text("x"),
        "remove": lambda: os.remove("mine"),
        "rename": lambda: os.rename("mine", "yours"),
        "replace": replace,
        "database": lambda: sqlite3.connect("mine.db"),
        "truncate": lambda: os.truncate("mine", 0),
    }
    for change in changes.values():

        def body(change: Callable[[], object] = change) -> None:
            with replay(run.id, store=tmp_path / "store"):
                _look(1)
                change()

        with pytest.raises(LiveCallBlockedError, match="was there before"):
            body()
        assert Path("mine").read_text() == "mine"
    with replay(run.id, store=tmp_path / "store") as session:
        _look(1)
        for _ in range(2):
            Path("new").write_text("new")
        Path("new").rename("newer")
        os.remove("newer")
        Path(temporary, "temporary").write_text("changed")
        os.makedirs("a/b")
        Path("a/b/c").write_text("c")
    assert session.report.exact
    assert [one.facts["name"] for one in session.report.verdict.of("written")] == [
        str(here / name) for name in ("new", "newer", "a", "a/b", "a/b/c")
    ]
    with replay(run.id, store=tmp_path / "store", writes="real") as session:
        _look(1)
        Path("mine").write_text("changed")
    assert (session.report.verdict.line, Path("mine").read_text()) == ("exact", "changed")
    with pytest.raises(ValueError, match="writes is"):
        replay(run.id, writes="all")  # type: ignore[arg-type]


@traced_tool(side_effect="read_only")
def _look(what: int) -> int:
    return what


@pytest.mark.skipif(sys.platform != "linux", reason="a layer is Linux's")
def test_where_there_is_no_layer(place: Place) -> None:
    """Such a system refuses what was there before, and says where new files are; ``--writes-to`` says why it can't be had."""
    place.program(BEGIN + "import threading\nPath('new').write_text(look('x'))\n")
    assert cli(place, "run", "agent.py").returncode == 0
    (place.directory / "new").unlink()
    program = "import tracekit._capture.isolation as i\ni._call = lambda *args: 'not allowed'\n"
    program += "from tracekit.cli import launch\nlaunch.main()\n"
    (place.directory / "launch.py").write_text(program)
    variables = {"TMPDIR": str(place.directory.parent / "temporary")}
    instructions = _instructions(place)
    again = place.python("launch.py", fresh=True, TRACEKIT_LAUNCH=instructions, **variables)
    assert (again.returncode, (place.directory / "new").read_text()) == (0, "x"), again.stderr
    assert "no scratch layer here (not allowed): new" in again.stderr
    again = place.python("launch.py", fresh=True, TRACEKIT_LAUNCH=instructions, **variables)
    assert again.returncode == 1
    assert "`tracekit replay --writes real`" in again.stderr


def _instructions(place: Place) -> str:
    """What ``tracekit replay last`` hands to the process that it becomes."""
    program = (
        "import json, os, sys\nfrom tracekit.cli import replay\n"
        "replay.launch = lambda instructions, *rest: print(json.dumps(instructions))\nfrom tracekit.cli import main\nmain()\n"
    )
    return place.python("-c", program, "replay", "last", fresh=True).stdout
