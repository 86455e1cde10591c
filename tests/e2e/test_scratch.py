"""What a replayed program writes: into a layer of its own under the command line, and never over what was there before."""

from __future__ import annotations

import asyncio
import os
import shutil
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


def cli(place: Place, *arguments: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    return place.cli(*arguments, fresh=fresh, TMPDIR=str(place.directory.parent / "temporary"))


def files(place: Place) -> dict[str, object]:
    """Every file, with its content and the time of its last change, but for the store."""
    found: dict[str, object] = {}
    for path in sorted(place.directory.rglob("*")):
        if ".tracekit" not in path.parts and "__pycache__" not in path.parts:
            found[str(path)] = (path.read_bytes() if path.is_file() else None, path.lstat().st_mtime_ns)
    return found


@pytest.mark.usefixtures("layered")
def test_a_replay_leaves_files_as_they_were(place: Place) -> None:
    """Files that were appended to, changed, removed, made: the replay finds them as the recorded run did, does it all again, reads what it
    has written, and leaves the user's as they are. What it wrote is what is there already."""
    place.program(BEGIN + WRITES)
    done = cli(place, "run", "agent.py", fresh=True)
    assert done.returncode == 0, done.stderr
    before = files(place)
    for fresh in (True, False):
        again = cli(place, "replay", "last", fresh=fresh)
        assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
        assert ": exact (" in again.stderr
        assert "tracekit: files:" not in again.stderr
        assert files(place) == before


CLOSES = """
import os
from pathlib import Path

Path("report.md").write_text("new")
os.closerange(3, 256)
print(Path("report.md").read_text())
"""


@pytest.mark.usefixtures("layered")
def test_a_program_that_closes_what_is_not_its_own(place: Place) -> None:
    """A program that closes every descriptor, as one that goes into the background does, is replayed; what it wrote into the layer can't
    be listed any more, or kept, which is said."""
    place.program(CLOSES)
    done = cli(place, "run", "agent.py")
    assert done.returncode == 0, done.stderr
    (place.directory / "report.md").unlink()
    before = files(place)
    again = cli(place, "replay", "last")
    assert (again.returncode, again.stdout) == (0, "new\n"), again.stderr
    assert ": exact (" in again.stderr
    assert "those written in the scratch layer are gone, and can't be listed" in again.stderr
    kept = cli(place, "replay", "last", "--writes-to", "kept")
    assert kept.returncode == 1
    assert "could not be kept in " in kept.stderr
    assert "Traceback" not in again.stderr + kept.stderr
    assert {path: about for path, about in files(place).items() if "kept" not in path} == before


#: Runs tracekit with a file system of its own mounted at ``data`` and a file mounted at ``one.json``.
MOUNTED = """
import subprocess, sys
from pathlib import Path
from tracekit._capture import isolation as i
reason = i._unshare(i._NEW_NS)[1] or i._mount("none", "/", "", i._RECURSIVE | i._PRIVATE)
reason = reason or i._mount("tmpfs", "data", "tmpfs", 0) or i._mount("other.json", "one.json", "", i._BIND)
if reason:
    sys.exit("no mounts: " + reason)

def tracekit(*arguments):
    line = [sys.executable, "-c", "from tracekit.cli import main; main()", *arguments]
    done = subprocess.run(line, capture_output=True, text=True)
    print(done.returncode, done.stdout, done.stderr if done.returncode else "")
    print(Path("state.json").read_text(), Path("data/state.json").read_text())

tracekit("run", "agent.py")
tracekit("replay", "last")
"""


@pytest.mark.usefixtures("layered")
@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("store", [".tracekit", "data/store"])
def test_a_file_system_mounted_below_the_working_directory(place: Place, temporary: bool, store: str) -> None:
    """A replay keeps its writes in the layer, and finds its store, where a file system or a file is mounted below the working directory."""
    place.program(
        BEGIN
        + """
for name in ("state.json", "data/state.json"):
    path = Path(name)
    number = int(path.read_text()) if path.exists() else 0
    path.write_text(str(number + 1))
    print(look(number), path.read_text(), Path("one.json").read_text())
"""
    )
    (place.directory / "data").mkdir()
    (place.directory / "one.json").write_text("below")
    (place.directory / "other.json").write_text("mounted")
    (place.directory / "mounted.py").write_text(MOUNTED)
    where = place.directory.parent if temporary else place.directory.parent / "temporary"
    done = place.python("mounted.py", fresh=True, TMPDIR=str(where), TRACEKIT_DIR=store)
    expected = "0 0 1 mounted\n0 1 mounted\n \n1 1\n"
    assert done.stdout == expected * 2, done.stdout + done.stderr


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
def test_where_its_output_goes_is_no_file_of_the_program(place: Place) -> None:
    """A shell's redirections of standard output and error are nothing that the program writes: the replay leaves them, and names none."""
    place.program(BEGIN + "print(look('one'), flush=True)\nprint(look('two'), file=sys.stderr, flush=True)\n")
    line = [sys.executable, "-c", "from tracekit.cli import main; main()", "run", "agent.py"]
    environment = {**os.environ, "TRACEKIT_DIR": str(place.store), "TMPDIR": str(place.directory.parent / "temporary")}
    printed = [place.directory / name for name in ("out", "err")]
    with open(printed[0], "w") as out, open(printed[1], "w") as err:
        subprocess.run(line, cwd=place.directory, env=environment, stdout=out, stderr=err, check=True)
    assert [path.read_text().splitlines()[0] for path in printed] == ["one", "two"]
    for name in ("out", "err"):
        assert f'"name":"{name}"' not in place.runs[0].read_text()
    again = cli(place, "replay", "last")
    assert again.returncode == 0, again.stderr
    assert "tracekit: files:" not in again.stderr
    assert "changed files" not in cli(place, "show", "last", "--why").stdout


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


PACKAGE = """
import os
from pathlib import Path

STATE = Path(os.environ["STATE"]) / ".keeper"

def identity():
    if not (STATE / "id").exists():
        STATE.mkdir(parents=True)
        (STATE / "id").write_text("made")
        return "made"
    return "found"
"""


@pytest.mark.usefixtures("layered")
def test_a_file_that_the_program_has_not_come_to_make_is_not_called_removed(place: Place) -> None:
    """It is not there in the replay, and nobody has removed the user's."""
    program = BEGIN + "look(1)\nPath('made.txt').write_text('made')\n"
    place.program(program)
    assert place.cli("run", "agent.py").returncode == 0
    place.program(program.replace("look(1)", "look(2)"))
    again = place.cli("replay", "last")
    assert (again.returncode, "made.txt" in again.stderr) == (1, False), again.stderr
    assert (place.directory / "made.txt").read_text() == "made"


@pytest.mark.usefixtures("layered")
def test_what_was_born_in_the_recording_is_not_there(place: Place) -> None:
    """Files and directories that the recorded run made are absent at the beginning of its replay, whoever made them (the program, a package
    for itself, a tool, a process) and whoever looks (code below Python, ``os.path.exists``); each is there again once it has been made."""
    package = place.directory / "site-packages"
    package.mkdir()
    (package / "keeper.py").write_text(PACKAGE)
    place.program(
        BEGIN
        + """
sys.path.insert(0, "site-packages")
import keeper

@traced_tool(side_effect="reversible")
def store(text):
    os.makedirs("by_tool/deep", exist_ok=True)
    with sqlite3.connect("by_tool/deep/x.db") as database:
        database.execute("CREATE TABLE IF NOT EXISTS t (x)")
        database.execute("INSERT INTO t VALUES (?)", (text,))

def there():
    return [os.path.exists(name) for name in ("by_tool/deep/x.db", "by_process/y", "old.txt")]

print(keeper.identity(), there())
store("one")
print(there(), sqlite3.connect("file:by_tool/deep/x.db?mode=ro", uri=True).execute("SELECT count(*) FROM t").fetchone())
subprocess.run("mkdir by_process && echo y > by_process/y && rm old.txt && echo more >> log.txt && ln -s y by_process/link", shell=True)
print(there(), os.listdir("by_process"), os.readlink("by_process/link"), os.path.getsize("log.txt"))
os.remove("by_process/y")
print(there(), look(1))
"""
    )
    variables = {"TMPDIR": str(place.directory.parent / "temporary"), "STATE": str(place.directory.parent / "home")}
    done = place.cli("run", "agent.py", fresh=True, **variables)
    assert done.stdout.splitlines()[0] == "made [False, False, True]", done.stderr
    assert len(done.stdout.splitlines()) == 4, done.stderr
    before = files(place)
    for _ in range(2):
        again = place.cli("replay", "last", fresh=True, **variables)
        assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
        assert files(place) == before
    for name in ("by_tool", "by_process"):
        shutil.rmtree(place.directory / name)
    again = place.cli("replay", "last", fresh=True, **variables)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr


@pytest.mark.usefixtures("layered")
def test_what_code_below_python_changes(place: Place) -> None:
    """Under ``tracekit run`` a file in the working directory that native code has made or changed by itself is in a replay as it was."""
    place.program(
        BEGIN
        + """
import ctypes
libc = ctypes.CDLL(None)

def write(name, data):
    fd = libc.open(name.encode(), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    libc.write(fd, data, len(data))
    libc.close(fd)

print(os.path.exists("native.db"), os.path.getsize("log.txt"), look(1))
write("native.db", b"made")
write("log.txt", b"changed by native code")
"""
    )
    done = cli(place, "run", "agent.py")
    assert done.stdout == "False 4 1\n", done.stderr
    before = files(place)
    again = cli(place, "replay", "last")
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert files(place) == before


@pytest.mark.usefixtures("layered")
def test_what_a_process_changes_between_two_readings(place: Place) -> None:
    """The program writes a file, a process and then a tool change it, and the program reads on: each reading has what it had, as an input
    of the program or of code below it, in a directory of another day as well."""
    place.program(
        BEGIN
        + """
@traced_tool(side_effect="reversible")
def change(text):
    Path("state").write_text(text)

@traced_tool(side_effect="reversible")
def change_by_processes():
    for text in ("one process", "processes of a tool"):
        subprocess.run(["sh", "-c", f"printf '{text}' > state"])

def read():
    return open("state").read(), os.stat("state").st_size

Path("state").write_text("own")
print(read())
subprocess.run(["sh", "-c", "printf 'by process' > state"])
print(read())
change("a tool")
print(read())
change_by_processes()
print(read())
Path("state").write_text("own again")
print(read(), look(1))
"""
    )
    done = cli(place, "run", "agent.py")
    assert done.returncode == 0, done.stderr
    for state in ("own again", None, "of another day"):
        if state is None:
            (place.directory / "state").unlink()
        else:
            (place.directory / "state").write_text(state)
        again = cli(place, "replay", "last")
        assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
        assert "exact (" in again.stderr, again.stderr


@pytest.mark.usefixtures("layered")
def test_the_current_directory_of_another_place(place: Place) -> None:
    """A replay in another directory runs where the recorded run did: the path is the same for the program and for what it makes of it, what
    is in the directory is there, and what is written goes nowhere, or to ``--writes-to``."""
    place.program(
        BEGIN
        + """
here = os.getcwd()
print(look(here), open(os.path.join(here, "log.txt")).read(), os.path.exists(os.path.join(here, "unread.txt")))
Path(here, "new.txt").write_text("new")
print(sorted(os.listdir(here)) == sorted(os.listdir(".")), Path("new.txt").resolve())
"""
    )
    (place.directory / "unread.txt").write_text("unread")
    done = cli(place, "run", "agent.py")
    assert done.returncode == 0, done.stderr
    (place.directory / "new.txt").unlink()
    for there in ("elsewhere", "here"):
        place.directory = place.directory.rename(place.directory.parent / there)
        place.store = place.directory / ".tracekit"
        if there == "elsewhere":
            again = cli(place, "replay", "last", "--writes-to", "kept", "--", "agent.py")
            assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
            assert "other current director" not in again.stderr
            assert [path.name for path in (place.directory / "kept").rglob("*")] == ["new.txt"]
            assert not (place.directory / "new.txt").exists()
            assert not (place.directory.parent / "here").exists()


def test_the_first_temporary_file_of_a_program(place: Place) -> None:
    """It is made as ever: what the module tries out before, under its lock, is looked at as every other file that is written."""
    place.program(BEGIN + "import tempfile\nwith record('r'):\n    look(os.path.exists(tempfile.mkdtemp()))\n")
    done = place.python("agent.py", fresh=True, TMPDIR=str(place.directory.parent / "temporary"))
    assert done.returncode == 0, done.stderr


TEMPORARY = """
import tempfile

def make(**where):
    directory = tempfile.mkdtemp(**where)
    open(os.path.join(directory, "x"), "w").write("x")
    with tempfile.NamedTemporaryFile(delete=False, suffix=".txt", **where) as file:
        file.write(b"y")
    for name in (directory, file.name):
        look(os.path.relpath(name))
    return sorted(os.listdir(directory)), open(file.name).read()

print(make(), make(dir="."))
if os.fork() == 0:
    print(make(prefix="child-"), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.usefixtures("layered")
def test_temporary_files_that_were_left_behind_do_not_change_a_replay(place: Place) -> None:
    """A program that leaves its temporary files behind replays, repeatedly: it gets the recorded names, and the files of the
    recording stay as they are."""
    place.program(BEGIN + TEMPORARY)
    recorded = cli(place, "run", "agent.py")
    assert recorded.returncode == 0, recorded.stderr
    temporary = place.directory.parent / "temporary"

    def left() -> set[tuple[str, bytes | None]]:
        here = [
            path for where in (temporary, place.directory) for path in where.rglob("*") if ".tracekit" not in path.parts
        ]
        return {
            (str(path), path.read_bytes() if path.is_file() else None)
            for path in here
            if "__pycache__" not in path.parts
        }

    before = left()
    for _ in range(2):
        replayed = cli(place, "replay", "last")
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
        assert "(removed)" not in replayed.stderr
        assert left() == before
    for path in temporary.iterdir():  # what a replay that finds none leaves behind does not matter to the next one
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):
        replayed = cli(place, "replay", "last")
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr


MADE = """
import shutil, tempfile

def sh(script, **where):
    subprocess.run(["sh", "-c", script], check=True, **where)

@traced_tool(side_effect="reversible")
def save(path, text):
    Path(path).write_text(text)

def work(directory):
    Path(directory, "own").write_text("1")
    os.makedirs(directory + "/sub/deep")
    sh("cat own > copy; echo 2 > own; ln -s x sub/deep/link; mkdir empty", cwd=directory)
    sh(f"echo from elsewhere > {directory}/sub/deep/x")
    save(directory + "/saved", "by a tool")
    names = sorted(os.listdir(directory))
    read = [Path(directory, name).read_text() for name in ("own", "copy", "saved", "sub/deep/x")]
    return names, read, os.path.getsize(directory + "/saved"), os.readlink(directory + "/sub/deep/link")

with tempfile.TemporaryDirectory() as directory:
    print(look(work(directory)))
os.makedirs(OUTSIDE)
print(look(work(OUTSIDE)))
shutil.rmtree(OUTSIDE)
with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    print("one", file=file, flush=True)
    sh(f"echo two >> {file.name}")
    print(look(open(file.name).read()))
"""


@pytest.mark.usefixtures("layered")
def test_directories_that_a_program_makes(place: Place) -> None:
    """What processes and tools leave in a directory that the program has made, temporary or not, is there in a replay,
    and what a process makes of a file that the program has written. Nothing is left behind."""
    outside = place.directory.parent / "outside"
    place.program(f"{BEGIN}OUTSIDE = {str(outside)!r}\n{MADE}")
    recorded = cli(place, "run", "agent.py")
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout.count("from elsewhere") == 2
    for _ in range(2):
        replayed = cli(place, "replay", "last")
        assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr
        assert ": exact (" in replayed.stderr, replayed.stderr
    assert not outside.exists()
    assert not any((place.directory.parent / "temporary").iterdir())


def test_a_directory_that_a_program_makes_without_a_layer(place: Place) -> None:
    """A block that is replayed finds there what a process had left, although the process does not run."""
    block = """
import tempfile
from tracekit import replay
with {block}, tempfile.TemporaryDirectory() as directory:
    Path(directory, "own").write_text("1")
    subprocess.run("cat own > out; echo 2 > own", shell=True, check=True, cwd=directory)
    print(look([os.path.getsize(os.path.join(directory, "out")), sorted(os.listdir(directory))]))
    print(look([Path(directory, name).read_text() for name in ("own", "out")]))
"""
    place.program(BEGIN + block.format(block="record('r')"))
    done = place.python("agent.py")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, r"['2\n', '1']"), done.stderr
    again = place.program(BEGIN + block.format(block=f"replay({place.run!r})"), "again.py")
    replayed = place.python(again)
    assert (replayed.returncode, replayed.stdout) == (0, done.stdout), replayed.stderr


@pytest.mark.usefixtures("layered")
def test_a_store_in_a_temporary_directory_that_was_left_behind_is_kept(place: Place) -> None:
    """A directory that the recorded run left behind is not hidden if the store is in it: the replay names it instead."""
    place.program(BEGIN + "import tempfile\nprint(look(tempfile.mkdtemp()))\n")
    made = Path(cli(place, "run", "agent.py").stdout.strip())
    shutil.move(place.store, made / "store")
    place.store = made / "store"
    kept = {path: path.read_bytes() for path in place.store.rglob("*") if path.is_file()}
    replayed = cli(place, "replay", "last")
    assert (replayed.returncode, f"{made} is still there" in replayed.stderr) == (1, True), replayed.stderr
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_block_changes_no_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a directory for temporary files a replay in the same process refuses to open what was there for writing, to remove, rename
    or replace it, and an existing database; what is new is written, and listed. To make a directory that is there, or to
    give a file the permissions that it has, changes nothing. ``writes="real"`` does it all."""
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
        "callback": lambda: asyncio.run(_soon(os.remove, "mine")),
        "thread": lambda: asyncio.run(asyncio.to_thread(os.remove, "mine")),
    }
    for change in changes.values():

        def body(change: Callable[[], object] = change) -> None:
            with replay(run.id, store=tmp_path / "store"):
                _look(1)
                change()

        with pytest.raises(LiveCallBlockedError, match="was there before") as caught:
            body()
        assert caught.value.target in ("mine", "mine.db")
        assert Path("mine").read_text() == "mine"
    with replay(run.id, store=tmp_path / "store") as session:
        _look(1)
        for _ in range(2):
            Path("new").write_text("new")
        Path("new").rename("newer")
        os.remove("newer")
        Path(temporary, "temporary").write_text("changed")
        for _ in range(2):
            os.makedirs("a/b", exist_ok=True)
        Path("a/b/c").write_text("c")
        here.mkdir(exist_ok=True)
        here.chmod(here.stat().st_mode)
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


async def _soon(function: Callable[[str], None], *args: str) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(function, *args)
    await asyncio.sleep(0)


@traced_tool(side_effect="read_only")
def _look(what: int) -> int:
    return what


@pytest.mark.skipif(sys.platform != "linux", reason="a layer is Linux's")
def test_where_there_is_no_layer(place: Place) -> None:
    """Such a system refuses what was there before, and says where new files are, and that a file which was born in the recording is there
    from the beginning; ``--writes-to`` says why it can't be had."""
    place.program(
        BEGIN
        + "@traced_tool(side_effect='reversible')\ndef make():\n    Path('by_tool').write_text('x')\n"
        + "Path('new').write_text(look('x'))\nmake()\n"
    )
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
    assert ", 1 file of today without a scratch layer" in again.stderr
    again = place.python("launch.py", fresh=True, TRACEKIT_LAUNCH=instructions, **variables)
    assert again.returncode == 1
    assert "`tracekit replay --writes real`" in again.stderr


def _instructions(place: Place) -> str:
    """What ``tracekit replay last`` hands to the process that it becomes."""
    program = (
        "import json, os, sys\nfrom tracekit.cli import replay\n"
        "replay.launch = lambda instructions, *rest, **more: print(json.dumps(instructions))\nfrom tracekit.cli import main\nmain()\n"
    )
    return place.python("-c", program, "replay", "last", fresh=True).stdout
